//! The brokers whose queues and streams `posthaste doctor` examines. A build without a broker has a stand-in with the same
//! function, so that nothing else asks which features there are.

#[cfg(feature = "nats")]
pub(crate) mod nats;
#[cfg(feature = "rabbitmq")]
pub(crate) mod rabbitmq;

use posthaste::{Finding, Result};

/// The findings about one broker.
pub(crate) struct Examined {
    /// The broker, without any login.
    pub(crate) place: String,
    /// One answer for each name that was asked for.
    pub(crate) answers: Vec<Result<Finding>>,
}

#[cfg(not(feature = "nats"))]
pub(crate) mod nats {
    pub(crate) async fn examine(_: &str, _: &[String]) -> posthaste::Result<super::Examined> {
        Err(crate::missing::missing("NATS", "nats"))
    }
}

#[cfg(not(feature = "rabbitmq"))]
pub(crate) mod rabbitmq {
    pub(crate) async fn examine(_: &str, _: &[String]) -> posthaste::Result<super::Examined> {
        Err(crate::missing::missing("RabbitMQ", "rabbitmq"))
    }
}
