//! A consumer's connection: the channel that brings deliveries, and the one that takes dead letters.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::stream::StreamExt as _;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel};
use tokio::time::{Instant, timeout_at};

use super::delivery::give_back;
use super::{DeadLetter, Options};
use crate::link::{Link, Trouble};
use crate::quiet::quietly;
use crate::window::{self, Answer, Parcel};

pub(super) struct Line {
    link: Arc<Link>,
    channel: Channel,
    pub(super) deliveries: lapin::Consumer,
    patience: std::time::Duration,
}

impl Line {
    /// Connects, checks that the queues exist, and begins to consume. One try.
    pub(super) async fn open(options: &Options) -> Result<Self, Trouble> {
        let patience = options.server.patience;
        let link = Arc::new(Link::connect(&options.server, Instant::now() + patience).await?);
        let opening = async {
            let channel = link.channel(Instant::now() + patience).await?;
            look_for(&channel, &options.queue).await?;
            if let DeadLetter::Queue(queue) = &options.dead_letter {
                look_for(&channel, queue).await?;
            }
            quietly(channel.basic_qos(options.prefetch, BasicQosOptions::default())).await?;
            let (queue, tag) = (options.queue.as_str().into(), ShortString::default());
            let (with, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
            let deliveries = quietly(channel.basic_consume(queue, tag, with, arguments)).await?;
            Ok((channel, deliveries))
        };
        let opened = timeout_at(Instant::now() + patience, opening).await;
        let (channel, deliveries) = opened.unwrap_or(Err(Trouble::Late))?;
        Ok(Self { link, channel, deliveries, patience })
    }

    pub(super) fn dead_letters(&self) -> DeadLetters {
        DeadLetters {
            link: Arc::clone(&self.link),
            patience: self.patience,
            channel: tokio::sync::Mutex::default(),
        }
    }

    /// Takes no more deliveries.
    pub(super) async fn cancel(&self) {
        let cancelling = self.channel.basic_cancel(self.deliveries.tag(), BasicCancelOptions::default());
        let _ = timeout_at(Instant::now() + self.patience, quietly(cancelling)).await;
    }

    /// Gives back messages that were delivered, but not started.
    pub(super) async fn give_back_the_rest(&mut self) {
        while let Some(Some(Ok(delivery))) = self.deliveries.next().now_or_never() {
            give_back(&delivery).await;
        }
    }

    /// Gives back messages that were not acked, before the connection closes, so that the server need not notice it.
    pub(super) async fn close(self) {
        let closing = self.channel.close(200, "OK".into());
        let _ = timeout_at(Instant::now() + self.patience, quietly(closing)).await;
        if let Some(link) = Arc::into_inner(self.link) {
            link.close().await;
        }
    }
}

/// Whether a queue is there. It declares nothing.
async fn look_for(channel: &Channel, queue: &str) -> lapin::Result<()> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    quietly(channel.queue_declare(queue.into(), options, FieldTable::default())).await.map(drop)
}

/// Publishes dead letters, one at a time, and knows what became of each.
pub(super) struct DeadLetters {
    link: Arc<Link>,
    patience: std::time::Duration,
    channel: tokio::sync::Mutex<Option<Channel>>,
}

impl DeadLetters {
    /// Hands a message to this queue. Without an error it is there.
    pub(super) async fn publish(
        &self,
        queue: &str,
        properties: BasicProperties,
        payload: &[u8],
    ) -> Result<(), Trouble> {
        let deadline = Instant::now() + self.patience;
        let mut idle = timeout_at(deadline, self.channel.lock()).await.map_err(|_| Trouble::Late)?;
        let channel = match idle.take().filter(|channel| channel.status().connected()) {
            Some(channel) => channel,
            None => {
                let channel = self.link.channel(deadline).await?;
                let confirming = quietly(channel.confirm_select(ConfirmSelectOptions::default()));
                timeout_at(deadline, confirming).await.map_err(|_| Trouble::Late)??;
                channel
            }
        };
        let exchange = ShortString::default();
        let parcel = Parcel { index: 0, payload, exchange, routing_key: queue.into(), properties };
        let (answers, trouble) = window::publish(&channel, &[parcel], deadline).await;
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        *idle = Some(channel);
        match answers[..] {
            [Answer::Kept] => Ok(()),
            [Answer::Returned] => Err(Trouble::Lost(format!("there is no queue `{queue}`"))),
            _ => Err(Trouble::Lost(format!("the queue `{queue}` did not take it"))),
        }
    }
}
