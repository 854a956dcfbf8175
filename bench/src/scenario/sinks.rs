//! Sinks: the drain to a broker, with its confirms.
//!
//! Objects in a broker have unique names, and are deleted at the end.

use std::sync::Arc;

use async_nats::jetstream;
use lapin::options::{ExchangeDeleteOptions, QueueDeleteOptions};
use posthaste::nats::{NatsOptions, NatsSink, StreamConfig};
use posthaste::rabbitmq::{ExchangeType, RabbitOptions, RabbitSink, Topology};
use posthaste::{Guarded, Outbox};

use crate::args::Scale;
use crate::measure::{Case, Result, Sample, Unit};
use crate::meter::Meter;
use crate::store::{Product, Room, in_room};
use crate::workload;

const SCENARIO: &str = "sinks";

/// A broker, and where it is.
#[derive(Clone)]
enum Broker {
    Rabbitmq(String),
    Nats(String),
}

pub(crate) fn cases<P: Product>(product: &Arc<P>, scale: Scale, rabbitmq: &str, nats: &str) -> Vec<Case> {
    let case = |(subject, broker): (&str, Broker)| {
        let product = Arc::clone(product);
        let run = move || {
            let broker = broker.clone();
            in_room(Arc::clone(&product), move |room| Box::pin(measure(room, scale.sinks, broker)))
        };
        Case::new(SCENARIO, P::NAME, subject, Unit::Messages, run)
    };
    let rabbitmq = ("posthaste to RabbitMQ", Broker::Rabbitmq(rabbitmq.to_owned()));
    [rabbitmq, ("posthaste to NATS JetStream", Broker::Nats(nats.to_owned()))].map(case).into()
}

async fn measure<P: Product>(room: &Room<P>, messages: u64, broker: Broker) -> Result<Sample> {
    let name = format!("bench_{:012x}", fastrand::u64(..1 << 48));
    let store = room.store(false).await?;
    workload::preload(&store, messages, |_| None).await?;
    room.analyze().await?;
    let sink = broker.open(&name).await?;
    let outbox = Outbox::builder(store.clone()).sink("*", sink).build().await?;
    let meter = Meter::start(room).await?;
    let tally = outbox.drain().await;
    let stopped = meter.stop(room).await?;
    let kept = broker.close(&name).await;
    let delivered = tally?.delivered;
    workload::nothing_left(&store).await?;
    P::close(&store).await;
    let kept = kept?;
    if kept != messages {
        return Err(format!(
            "the broker keeps {kept} of {messages} messages, of which {delivered} were delivered"
        )
        .into());
    }
    stopped.sample(room, messages).await
}

impl Broker {
    async fn open(&self, name: &str) -> Result<Guarded> {
        match self {
            Self::Rabbitmq(url) => {
                let topology =
                    Topology::new().exchange(name, ExchangeType::Fanout).queue(name).bind(name, name, "");
                Ok(RabbitSink::new(RabbitOptions::new(url, name)?.declare(topology))?.into())
            }
            Self::Nats(url) => {
                let stream = jetstream::new(async_nats::connect(url).await?);
                let subjects = vec![format!("{name}.>")];
                let config = StreamConfig { name: name.to_owned(), subjects, ..StreamConfig::default() };
                stream.create_stream(config).await?;
                Ok(NatsSink::new(NatsOptions::new(url)?).subject_prefix(name)?.into())
            }
        }
    }

    /// Deletes the created objects, and returns how many messages had come.
    async fn close(&self, name: &str) -> Result<u64> {
        match self {
            Self::Rabbitmq(url) => {
                let connection =
                    lapin::Connection::connect(url, lapin::ConnectionProperties::default()).await?;
                let channel = connection.create_channel().await?;
                let kept = channel.queue_delete(name.into(), QueueDeleteOptions::default()).await?;
                channel.exchange_delete(name.into(), ExchangeDeleteOptions::default()).await?;
                Ok(u64::from(kept))
            }
            Self::Nats(url) => {
                let stream = jetstream::new(async_nats::connect(url).await?);
                let kept = stream.get_stream(name).await?.cached_info().state.messages;
                stream.delete_stream(name).await?;
                Ok(kept)
            }
        }
    }
}
