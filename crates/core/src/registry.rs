//! Which handlers a topic has: exact ones in the order of registration, then patterns in theirs.
//!
//! Looking up must not depend on how often a topic occurs: handlers are found by name, and nothing is remembered of
//! topics that messages bring.

use std::any::type_name;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Answering, Arrival, Handler, HandlerError, Need, States};
use crate::message::Message;
use crate::sink::Guarded;
use crate::text;
use crate::topic::Topics;
use crate::trace::{TRACEPARENT, TraceContext};

/// The most bytes of a handler's name.
const MAX_NAME_BYTES: usize = 200;

/// A handler with its types forgotten.
trait Erased: Send + Sync {
    fn call(&self, arrival: &Arrival) -> Answering;
}

struct Typed<H, Args>(H, std::marker::PhantomData<fn(Args)>);

impl<H: Handler<Args>, Args: 'static> Erased for Typed<H, Args> {
    fn call(&self, arrival: &Arrival) -> Answering {
        self.0.call(arrival)
    }
}

/// What hands a message to a sink.
struct ToSink {
    sink: Guarded,
    patience: Duration,
}

/// The message with a trace that its receiver can continue: its own, or else that of its delivery.
fn traced(message: Arc<Message>) -> Arc<Message> {
    match TraceContext::current() {
        Some(context) if !message.headers.contains_key(TRACEPARENT) => {
            let mut traced = Message::clone(&message);
            context.put(&mut traced.headers);
            Arc::new(traced)
        }
        _ => message,
    }
}

impl Erased for ToSink {
    fn call(&self, arrival: &Arrival) -> Answering {
        let (sink, patience, message) = (self.sink.clone(), self.patience, Arc::clone(&arrival.message));
        Box::pin(async move { sink.deliver(traced(message), patience).await })
    }
}

/// What handles a message that waits for a join, in whichever outbox it is.
struct Waits;

impl Erased for Waits {
    fn call(&self, arrival: &Arrival) -> Answering {
        let waiting = Arc::clone(&arrival.home).wait(Arc::clone(&arrival.message));
        // In a task of its own: a delivery that times out is dropped, and a call to a database must not be.
        Box::pin(async move {
            let waited = tokio::spawn(waiting).await;
            waited.unwrap_or_else(|error| Err(HandlerError::infrastructure(error)))
        })
    }
}

/// A handler under the name by which it is remembered as done.
pub(crate) struct Registered {
    pub(crate) name: String,
    pattern: String,
    handler: Box<dyn Erased>,
    /// The sink that it stands for, if it does.
    sink: Option<Guarded>,
    /// Whether it is posthaste's own, for messages that wait for joins.
    is_join_wait: bool,
}

impl Registered {
    pub(crate) fn call(&self, arrival: &Arrival) -> Answering {
        self.handler.call(arrival)
    }

    pub(crate) fn is_sink(&self) -> bool {
        self.sink.is_some()
    }

    /// Whether its time-out says that something is down: it has no code of users.
    pub(crate) fn is_outage_if_late(&self) -> bool {
        self.is_sink() || self.is_join_wait
    }

    fn is_down(&self) -> bool {
        self.sink.as_ref().is_some_and(Guarded::is_down)
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}", self.name, self.pattern)
    }
}

/// Handlers as they are being registered.
#[derive(Debug, Default)]
pub(crate) struct Registration {
    handlers: Vec<Registered>,
    needs: Vec<(String, Need)>,
    reserved: Option<String>,
}

impl Registration {
    pub(crate) fn add<H: Handler<Args>, Args: 'static>(
        &mut self,
        pattern: &str,
        name: Option<&str>,
        handler: H,
    ) -> Result<()> {
        let refuse = |error: Error| error.with_context("topic", text::cut(pattern, 255));
        Topics::of([pattern]).map_err(refuse)?;
        let name = match name {
            Some(name) if name.contains(['\n', '\t']) => {
                let text = "the name of a handler has a line break or a tab";
                return Err(refuse(Error::invalid(text, "remove it")));
            }
            Some(name) => {
                let name = text::required("the name of a handler", name.to_owned(), MAX_NAME_BYTES);
                let name = name.map_err(refuse)?;
                if self.handlers.iter().any(|other| other.name == name) {
                    return Err(refuse(Error::invalid("two handlers have one name", "give each its own"))
                        .with_context("name", name));
                }
                name
            }
            None => self.unique(&text::cut(type_name::<H>(), MAX_NAME_BYTES - 10)),
        };
        self.needs.extend(H::needs().into_iter().map(|need| (name.clone(), need)));
        let handler = Box::new(Typed(handler, std::marker::PhantomData));
        self.handlers.push(Registered {
            name,
            pattern: pattern.to_owned(),
            handler,
            sink: None,
            is_join_wait: false,
        });
        Ok(())
    }

    /// Registers a sink, for an outbox with this lease. One sink may be registered for several patterns.
    pub(crate) fn add_sink(&mut self, pattern: &str, sink: &Guarded, lease: Duration) -> Result<()> {
        Topics::of([pattern]).map_err(|error| error.with_context("topic", text::cut(pattern, 255)))?;
        sink.check(lease)?;
        let name = format!("sink {}", sink.name());
        let same = |other: &Registered| other.sink.as_ref().is_some_and(|other| other.is_same(sink));
        if self.handlers.iter().any(|other| other.name == name && !same(other)) {
            return Err(Error::new(ErrorKind::Configuration, "two sinks have one name")
                .with_context("sink", sink.name())
                .with_remedy(
                    "give one of them another by SinkOptions::name, or clone one Guarded for both",
                ));
        }
        let handler = Box::new(ToSink { sink: sink.clone(), patience: sink.patience(lease) });
        let sink = Some(sink.clone());
        self.handlers.push(Registered {
            name,
            pattern: pattern.to_owned(),
            handler,
            sink,
            is_join_wait: false,
        });
        Ok(())
    }

    /// Two closures of one function have one type name: the second is called so.
    fn unique(&self, name: &str) -> String {
        let taken = |name: &str| self.handlers.iter().any(|other| other.name == name);
        if !taken(name) {
            return name.to_owned();
        }
        (2..).map(|n| format!("{name}#{n}")).find(|name| !taken(name)).unwrap_or_default()
    }

    /// Whether nothing has been registered.
    pub(crate) fn is_empty(&self) -> bool {
        self.handlers.is_empty()
    }

    /// Registers the only handler of the topic of what waits for joins: patterns do not get its messages.
    pub(crate) fn reserve(&mut self, topic: &str) -> Result<()> {
        Topics::of([topic]).map_err(|error| error.with_context("topic", text::cut(topic, 255)))?;
        if self.handlers.iter().any(|other| other.pattern == topic) {
            return Err(Error::new(ErrorKind::Configuration, "this topic has a handler of posthaste's own")
                .with_context("topic", topic)
                .with_remedy("handle the continuations instead, or set join_wait_topic to another topic"));
        }
        let (name, pattern) = ("posthaste: wait for a join".to_owned(), topic.to_owned());
        self.handlers.push(Registered {
            name,
            pattern,
            handler: Box::new(Waits),
            sink: None,
            is_join_wait: true,
        });
        self.reserved = Some(topic.to_owned());
        Ok(())
    }

    pub(crate) fn finish(self, states: &States) -> Result<Registry> {
        if let Some((handler, need)) = self.needs.iter().find(|(_, need)| !states.has(need)) {
            return Err(Error::new(ErrorKind::Configuration, "a handler needs a value that nobody shares")
                .with_context("handler", handler)
                .with_context("type", need.name())
                .with_remedy("give it to the builder by share()"));
        }
        let topics = Topics::of(self.handlers.iter().map(|handler| handler.pattern.as_str()))?;
        let reserved = self.reserved;
        let mut sinks: Vec<Guarded> = Vec::new();
        for sink in self.handlers.iter().filter_map(|handler| handler.sink.as_ref()) {
            if !sinks.iter().any(|other| other.is_same(sink)) {
                sinks.push(sink.clone());
            }
        }
        let mut registry = Registry { topics, reserved, exact: HashMap::new(), patterns: Vec::new(), sinks };
        for handler in self.handlers.into_iter().map(Arc::new) {
            match handler.pattern.strip_suffix('*').map(str::to_owned) {
                Some(prefix) => registry.patterns.push((prefix, handler)),
                None => registry.exact.entry(handler.pattern.clone()).or_default().push(handler),
            }
        }
        Ok(registry)
    }
}

/// The handlers of an outbox.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    topics: Topics,
    /// A topic whose messages patterns do not get.
    reserved: Option<String>,
    exact: HashMap<String, Vec<Arc<Registered>>>,
    patterns: Vec<(String, Arc<Registered>)>,
    sinks: Vec<Guarded>,
}

impl Registry {
    /// Whether there is no handler at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.patterns.is_empty()
    }

    /// What to claim now: not what only sinks take that are down.
    pub(crate) fn topics(&self) -> Cow<'_, Topics> {
        if !self.sinks.iter().any(Guarded::is_down) {
            return Cow::Borrowed(&self.topics);
        }
        let up = self.all().filter(|handler| !handler.is_down()).map(|handler| handler.pattern.as_str());
        // They were all acceptable when they were registered.
        Topics::of(up).map_or(Cow::Borrowed(&self.topics), Cow::Owned)
    }

    /// Whether this topic has a handler here.
    pub(crate) fn handles(&self, topic: &str) -> bool {
        !self.is_empty() && self.topics.contains(topic)
    }

    /// Whether one of its receivers could have it at once: it has some, and not all of them are sinks that are down.
    pub(crate) fn handles_now(&self, topic: &str) -> bool {
        self.handles(topic)
            && (self.sinks.is_empty() || self.matching(topic).any(|handler| !handler.is_down()))
    }

    /// The sinks whose messages may have other receivers, too: those messages wait for the sink while it is down.
    pub(crate) fn shared_sinks(&self) -> impl Iterator<Item = &Guarded> {
        self.sinks.iter().filter(|sink| {
            let topics = self.topics_of(sink.name());
            let others =
                self.all().filter(|other| other.sink.as_ref().is_none_or(|other| !other.is_same(sink)));
            others.into_iter().any(|other| !other.is_join_wait && topics.meets(&other.pattern))
        })
    }

    /// All sinks, each of them once.
    pub(crate) fn sinks(&self) -> &[Guarded] {
        &self.sinks
    }

    /// The sink of this name.
    pub(crate) fn sink(&self, name: &str) -> Option<&Guarded> {
        self.sinks.iter().find(|sink| sink.name() == name)
    }

    /// The topics that a sink takes.
    pub(crate) fn topics_of(&self, sink: &str) -> Topics {
        let is_it =
            |handler: &&Arc<Registered>| handler.sink.as_ref().is_some_and(|other| other.name() == sink);
        // They were all acceptable when they were registered.
        Topics::of(self.all().filter(is_it).map(|handler| handler.pattern.as_str()))
            .unwrap_or_else(|_| Topics::none())
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Registered>> {
        self.exact.values().flatten().chain(self.patterns.iter().map(|(_, handler)| handler))
    }

    fn matching<'a>(&'a self, topic: &'a str) -> impl Iterator<Item = &'a Arc<Registered>> {
        let exact = self.exact.get(topic).into_iter().flatten();
        let reserved = self.reserved.as_deref() == Some(topic);
        let patterns =
            self.patterns.iter().filter(move |(prefix, _)| !reserved && topic.starts_with(prefix.as_str()));
        exact.chain(patterns.map(|(_, handler)| handler))
    }

    /// The handlers of this topic, in their order; each sink once, however many of its patterns match.
    pub(crate) fn of(&self, topic: &str) -> Vec<Arc<Registered>> {
        let mut handlers: Vec<Arc<Registered>> = Vec::with_capacity(1);
        for handler in self.matching(topic) {
            if handler.sink.is_none() || !handlers.iter().any(|other| other.name == handler.name) {
                handlers.push(Arc::clone(handler));
            }
        }
        handlers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::{HandlerResult, Shared};
    use crate::message::Message;

    async fn plain(_: Message) -> HandlerResult {
        Ok(())
    }

    async fn greedy(_: Message, _: Shared<u8>) -> HandlerResult {
        Ok(())
    }

    fn names(registry: &Registry, topic: &str) -> Vec<String> {
        registry.of(topic).iter().map(|handler| handler.name.clone()).collect()
    }

    /// HOT-011, OBX-054: exact handlers in their order, wildcards after them.
    #[test]
    fn exact_before_patterns_each_in_their_order() {
        let mut registration = Registration::default();
        for (pattern, name) in
            [("*", "all"), ("order.*", "orders"), ("order.placed", "b"), ("order.placed", "a")]
        {
            registration.add(pattern, Some(name), plain).unwrap();
        }
        let registry = registration.finish(&States::default()).unwrap();
        assert_eq!(names(&registry, "order.placed"), ["b", "a", "all", "orders"]);
        assert_eq!(names(&registry, "order.x"), ["all", "orders"]);
        assert_eq!(names(&registry, "Order.x"), ["all"]);
        assert!(registry.topics().is_all());
    }

    /// JOIN-050: only the built-in handler gets waits for joins, not even handlers for `*`.
    #[test]
    fn a_reserved_topic_has_one_handler() {
        let mut registration = Registration::default();
        registration.add("*", Some("all"), plain).unwrap();
        registration.reserve("join.wait").unwrap();
        let registry = registration.finish(&States::default()).unwrap();
        assert_eq!(names(&registry, "join.wait"), ["posthaste: wait for a join"]);
        assert_eq!(names(&registry, "join.other"), ["all"]);
        let mut taken = Registration::default();
        taken.add("join.wait", None, plain).unwrap();
        assert!(taken.reserve("join.wait").is_err());
    }

    #[test]
    fn names_are_stable_and_unique() {
        let mut registration = Registration::default();
        registration.add("a", None, plain).unwrap();
        registration.add("b", None, plain).unwrap();
        assert!(registration.add("a", Some("x\ny"), plain).is_err());
        registration.add("a", Some("x"), plain).unwrap();
        assert!(registration.add("b", Some("x"), plain).unwrap_err().to_string().contains("name=x"));
        assert!(registration.add("a*b", Some("y"), plain).is_err());
        let registry = registration.finish(&States::default()).unwrap();
        assert!(names(&registry, "a")[0].ends_with("tests::plain"));
        assert!(names(&registry, "b")[0].ends_with("tests::plain#2"));
        assert!(!registry.handles("c") && !Registry::default().handles("c"));
    }

    #[test]
    fn what_a_handler_needs_must_be_shared() {
        let mut registration = Registration::default();
        registration.add("a", None, greedy).unwrap();
        let error = registration.finish(&States::default()).unwrap_err();
        assert!(error.to_string().contains("type=u8") && error.to_string().contains("share()"), "{error}");
        let mut states = States::default();
        states.insert(7u8);
        let mut registration = Registration::default();
        registration.add("a", None, greedy).unwrap();
        assert!(registration.finish(&states).is_ok());
    }
}
