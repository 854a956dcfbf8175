//! What the two services of the story agree upon: the event, and where the broker is.
//!
//! Everything else is each service's own business; neither knows the other's tables.

use posthaste::Event;
use posthaste::rabbitmq::{ExchangeType, Topology};
use serde::{Deserialize, Serialize};

/// An order was placed. It says which articles to reserve, and how many.
#[derive(Debug, Serialize, Deserialize, Event)]
#[event(topic = "order.placed")]
pub struct OrderPlaced {
    /// The order's number.
    pub order_id: i64,
    /// The ordered article.
    pub item: String,
    /// How much of it.
    pub quantity: i64,
}

/// Anything that can go wrong in `main`.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The value of an environment variable, or else this.
pub fn from_env(name: &str, otherwise: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| otherwise.to_owned())
}

/// The broker's URL.
pub fn broker() -> String {
    from_env("STORY_BROKER", "amqp://guest:guest@127.0.0.1:5672")
}

/// The exchange that events go to.
pub fn exchange() -> String {
    from_env("STORY_EXCHANGE", "story")
}

/// Declares the exchange. Both sides say so, because either may be the first to come.
pub fn topology() -> Topology {
    Topology::new().exchange(exchange(), ExchangeType::Topic)
}

/// Writes logs to the standard error.
pub fn log() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .init();
}
