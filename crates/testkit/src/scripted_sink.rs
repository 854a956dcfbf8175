//! A sink with scripted verdicts that records its messages, for tests of the code around sinks.
//!
//! It is no substitute for a broker: the suite tests a sink itself on the real server.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use posthaste_core::{Batch, Message, MessageId, Sink, SinkError, Verdict};
use tokio::sync::watch;

type Script = Box<dyn Fn(&Message) -> Verdict + Send + Sync>;

/// A sink with scripted verdicts. Clones are the same sink.
///
/// ```
/// use posthaste_core::{MemoryStore, NewMessage, Outbox, SinkError};
/// use posthaste_testkit::ScriptedSink;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
/// let sink = ScriptedSink::new("broker");
/// sink.answer(|message| if message.payload.is_empty() { Err(SinkError::refused("empty")) } else { Ok(()) });
/// let outbox = Outbox::builder(MemoryStore::new()).sink("*", sink.clone()).build().await?;
/// outbox.enqueue_all(["", "x"].map(|payload| NewMessage::bytes("t", payload))).await?;
/// assert_eq!(outbox.drain().await?.dead, 1);
/// assert_eq!(sink.taken().len(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ScriptedSink(Arc<Inner>);

struct Inner {
    name: String,
    script: Mutex<Script>,
    batches: Mutex<Vec<Vec<Arc<Message>>>>,
    taken: Mutex<Vec<Arc<Message>>>,
    /// Whether calls are held up.
    held: watch::Sender<bool>,
    down: Mutex<Option<String>>,
    probes: AtomicUsize,
    sending: AtomicUsize,
    most_sending: AtomicUsize,
}

impl fmt::Debug for ScriptedSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedSink").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl ScriptedSink {
    /// A sink with this name that takes everything.
    pub fn new(name: &str) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            script: Mutex::new(Box::new(|_| Ok(()))),
            batches: Mutex::default(),
            taken: Mutex::default(),
            held: watch::Sender::new(false),
            down: Mutex::default(),
            probes: AtomicUsize::new(0),
            sending: AtomicUsize::new(0),
            most_sending: AtomicUsize::new(0),
        }))
    }

    /// Sets its verdict from now on.
    pub fn answer(&self, script: impl Fn(&Message) -> Verdict + Send + Sync + 'static) {
        *self.0.script.lock().unwrap() = Box::new(script);
    }

    /// Is down from now on, for messages and probes.
    pub fn go_down(&self, why: &str) {
        *self.0.down.lock().unwrap() = Some(why.to_owned());
    }

    /// Is there again.
    pub fn come_up(&self) {
        *self.0.down.lock().unwrap() = None;
    }

    /// Holds calls up, or lets them go.
    pub fn hold(&self, hold: bool) {
        self.0.held.send_replace(hold);
    }

    /// The messages of every batch that it was sent, in order.
    pub fn batches(&self) -> Vec<Vec<Arc<Message>>> {
        self.0.batches.lock().unwrap().clone()
    }

    /// The messages that it took.
    pub fn taken(&self) -> Vec<Arc<Message>> {
        self.0.taken.lock().unwrap().clone()
    }

    /// Their ids.
    pub fn taken_ids(&self) -> Vec<MessageId> {
        self.taken().iter().map(|message| message.id).collect()
    }

    /// How often it was probed.
    pub fn probes(&self) -> usize {
        self.0.probes.load(Ordering::Acquire)
    }

    /// The most batches that were under way at a time.
    pub fn most_in_flight(&self) -> usize {
        self.0.most_sending.load(Ordering::Acquire)
    }

    fn reachable(&self) -> Verdict {
        self.0.down.lock().unwrap().as_ref().map_or(Ok(()), |why| Err(SinkError::down(why)))
    }
}

/// Counts a call for as long as it lasts.
struct Stay<'a>(&'a Inner);

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.0.sending.fetch_sub(1, Ordering::AcqRel);
    }
}

#[async_trait]
impl Sink for ScriptedSink {
    async fn send(&self, batch: &Batch<'_>) -> Vec<Verdict> {
        let now = self.0.sending.fetch_add(1, Ordering::AcqRel) + 1;
        self.0.most_sending.fetch_max(now, Ordering::AcqRel);
        let _stay = Stay(&self.0);
        self.0.batches.lock().unwrap().push(batch.to_vec());
        let mut held = self.0.held.subscribe();
        let _ = held.wait_for(|held| !held).await;
        if let Err(down) = self.reachable() {
            return batch.all(&Err(down));
        }
        let verdicts: Vec<Verdict> = {
            let script = self.0.script.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            batch.iter().map(|message| script(message)).collect()
        };
        let taken = batch.iter().zip(&verdicts).filter(|(_, verdict)| verdict.is_ok());
        self.0.taken.lock().unwrap().extend(taken.map(|(message, _)| Arc::clone(message)));
        verdicts
    }

    async fn probe(&self) -> Verdict {
        self.0.probes.fetch_add(1, Ordering::AcqRel);
        self.reachable()
    }

    fn name(&self) -> String {
        self.0.name.clone()
    }
}
