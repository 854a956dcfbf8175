//! W3C trace context: carried in a message's headers from its publisher to its handlers, and on from there.
//!
//! It is read and written here, and nowhere else. It must never fail a message: what cannot be read is left alone.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::message::{Headers, Message};

/// The header of the trace's identity.
pub const TRACEPARENT: &str = "traceparent";
/// The header of what vendors add to it.
pub const TRACESTATE: &str = "tracestate";

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// Which trace something belongs to, and which span it was caused by.
///
/// While a handler runs, the context of its message is the [current](Self::current) one, and messages that it publishes
/// continue the same trace. Elsewhere, [`scope`](Self::scope) sets the current one.
///
/// ```
/// use posthaste_core::TraceContext;
///
/// let context: TraceContext = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse()?;
/// assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
/// assert_eq!(context.child().trace_id(), context.trace_id());
/// # Ok::<(), posthaste_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace: [u8; 16],
    span: [u8; 8],
    flags: u8,
    state: Option<String>,
}

impl TraceContext {
    /// The beginning of a new trace.
    #[allow(clippy::new_without_default, reason = "a default that differs every time would surprise")]
    pub fn new() -> Self {
        let trace = fastrand::u128(1..).to_be_bytes();
        Self { trace, span: fastrand::u64(1..).to_be_bytes(), flags: 1, state: None }
    }

    /// The context of the handler, or of the [`scope`](Self::scope), that is running.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok()
    }

    /// Runs a future in which this is the current context.
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        CURRENT.scope(self, future).await
    }

    /// A span caused by this one.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { span: fastrand::u64(1..).to_be_bytes(), ..self.clone() }
    }

    /// The trace, in hexadecimal.
    pub fn trace_id(&self) -> String {
        self.trace_hex().to_string()
    }

    /// The span, in hexadecimal.
    pub fn span_id(&self) -> String {
        self.span_hex().to_string()
    }

    /// The trace for a log line that may be disabled: it is formatted only when it is shown.
    pub(crate) fn trace_hex(&self) -> impl fmt::Display + '_ {
        Hex(&self.trace)
    }

    /// The same for the span.
    pub(crate) fn span_hex(&self) -> impl fmt::Display + '_ {
        Hex(&self.span)
    }

    /// The context in these headers, if there is one that can be read.
    pub fn from_headers(headers: &Headers) -> Option<Self> {
        let mut context: Self = headers.get(TRACEPARENT)?.parse().ok()?;
        context.state = headers.get(TRACESTATE).cloned();
        Some(context)
    }

    /// The context of a message: that of its headers, or else one that follows from its id, the same for every attempt.
    pub(crate) fn of(message: &Message) -> Self {
        Self::from_headers(&message.headers)
            .unwrap_or_else(|| Self { trace: *message.id.as_bytes(), ..Self::new() })
    }

    /// Puts it into headers that have none.
    pub(crate) fn put(&self, headers: &mut Headers) {
        if !headers.contains_key(TRACEPARENT) {
            headers.insert(TRACEPARENT.to_owned(), self.to_string());
            if let Some(state) = &self.state {
                headers.insert(TRACESTATE.to_owned(), state.clone());
            }
        }
    }
}

/// The value of the header `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{}", Hex(&self.trace), Hex(&self.span), Hex(&[self.flags]))
    }
}

impl FromStr for TraceContext {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        read(text).ok_or_else(|| {
            Error::invalid("the trace context cannot be read", "give it as the W3C defines traceparent")
        })
    }
}

fn read(text: &str) -> Option<TraceContext> {
    let mut parts = text.split('-');
    let [version] = bytes(parts.next()?)?;
    let trace: [u8; 16] = bytes(parts.next()?)?;
    let span: [u8; 8] = bytes(parts.next()?)?;
    let [flags] = bytes(parts.next()?)?;
    // Later versions may have more parts; version 0 has exactly these.
    let known = version != 0xff && (version != 0 || parts.next().is_none());
    (known && trace != [0; 16] && span != [0; 8]).then_some(TraceContext { trace, span, flags, state: None })
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let lower = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if text.len() != 2 * N || !lower {
        return None;
    }
    let mut bytes = [0; N];
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * n..2 * n + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// Bytes in hexadecimal, written at once: a number's own way costs a hundred times as much, for every message.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.0.iter().try_for_each(|byte| {
            let digit = |n: u8| char::from(DIGITS[usize::from(n)]);
            f.write_char(digit(byte >> 4))?;
            f.write_char(digit(byte & 15))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_read_and_written() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context: TraceContext = text.parse().unwrap();
        assert_eq!(context.to_string(), text);
        assert_ne!(context.child().span_id(), context.span_id());
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-é4bf92f3577b34da6a3ce929d0e0e47-00f067aa0ba902b7-01",
        ] {
            assert!(bad.parse::<TraceContext>().is_err(), "{bad}");
        }
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more";
        assert!(later.parse::<TraceContext>().is_ok());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_scope_is_current_and_headers_that_are_there_stay() {
        assert_eq!(TraceContext::current(), None);
        let context = TraceContext::new();
        assert_eq!(context.clone().scope(async { TraceContext::current() }).await, Some(context.clone()));
        let mut headers = Headers::from([(TRACEPARENT.to_owned(), "mine".to_owned())]);
        context.put(&mut headers);
        assert_eq!(headers[TRACEPARENT], "mine");
    }
}
