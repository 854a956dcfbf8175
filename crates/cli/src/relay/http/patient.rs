//! A stream with limits on writing: a client that takes nothing for a while, or too long for all that it is sent, is cut, and its place is
//! free for others.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// How many times as long as a pause a whole response may take.
const WHOLE: u32 = 6;

/// A stream that fails when a write has made no progress for a while, or when a response has taken [`WHOLE`] times as long.
pub(super) struct Patient<S> {
    stream: S,
    patience: Duration,
    /// Counts while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
    /// When the response that is being written must be over.
    until: Option<Instant>,
}

impl<S> Patient<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, waiting: None, until: None }
    }

    fn progress<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let (patience, now) = (self.patience, Instant::now());
        if now > *self.until.get_or_insert_with(|| now + patience * WHOLE) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if polled.is_ready() {
            self.waiting = None;
            return polled;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(patience)));
        match waiting.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.progress(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.progress(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// All of a response has been written when it is flushed.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.until = None;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// Sends so many bytes to a client that takes one every half of the patience.
    async fn send(bytes: usize) -> io::Result<()> {
        let patience = Duration::from_secs(1);
        let (ours, mut theirs) = duplex(1);
        let client = tokio::spawn(async move {
            while theirs.read_u8().await.is_ok() {
                sleep(patience / 2).await;
            }
        });
        let mut stream = Patient::new(ours, patience);
        // Short ones first: each response has its own time.
        for _ in 0..10 {
            stream.write_all(b"abc").await?;
            stream.flush().await?;
        }
        let sent = stream.write_all(&vec![b'x'; bytes]).await;
        client.abort();
        sent
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_a_response_byte_by_byte_is_cut() {
        assert!(send(10).await.is_ok());
        assert_eq!(send(1_000).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
