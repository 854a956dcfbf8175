//! An outbox without the type of its store, for the parts of the dispatcher and for the other tenants.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;

use super::{Inner, Plan};
use crate::alert::Latency;
use crate::commons::Share;
use crate::dispatch::hot::Door;
use crate::dispatch::wake::Reason;
use crate::handler::Answering;
use crate::join::wait;
use crate::message::Message;
use crate::sink::Recovery;
use crate::store::Store;

/// See the module.
pub(crate) trait Home: std::fmt::Debug + Send + Sync {
    fn name(&self) -> &Arc<str>;
    fn plan(&self) -> &Plan;
    fn share(&self) -> &Share;
    fn door(&self) -> &Door;
    fn latency(&self) -> &Latency;
    /// Handles a message that waits for a join.
    fn wait(self: Arc<Self>, message: Arc<Message>) -> Answering;
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
    /// What its store's type is called.
    fn type_name(&self) -> &'static str;
    /// Says that it may be its turn among the tenants.
    fn wake(&self);
    /// Says that a sink can be sent to again.
    fn recovered(&self, sink: &str, recovery: Recovery);
    /// Closes unused connections.
    fn rest(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

impl<S: Store> Home for Inner<S> {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn share(&self) -> &Share {
        &self.share
    }

    fn door(&self) -> &Door {
        &self.door
    }

    fn latency(&self) -> &Latency {
        &self.latency
    }

    fn wait(self: Arc<Self>, message: Arc<Message>) -> Answering {
        Box::pin(wait::handle(self, message))
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn type_name(&self) -> &'static str {
        std::any::type_name::<S>()
    }

    fn wake(&self) {
        self.wakeup.wake(Reason::Turn);
    }

    fn recovered(&self, sink: &str, recovery: Recovery) {
        self.recoveries.note(sink, recovery);
        self.wakeup.wake(Reason::Now);
    }

    fn rest(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move { self.store.rest().await })
    }
}
