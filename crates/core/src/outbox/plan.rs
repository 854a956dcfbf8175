//! The configuration of an outbox: settings, handlers, rules by topic, encryption. The same for all tenants.

use std::sync::Arc;

use crate::dispatch::verdict::Rules;
use crate::encryption::{self, Cipher};
use crate::error::Result;
use crate::handler::States;
use crate::message::{Message, NewMessage};
use crate::order::OrderPolicy;
use crate::outcome::Failure;
use crate::registry::Registry;
use crate::settings::Settings;
use crate::topic::Topics;

/// See the module.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) registry: Registry,
    pub(crate) states: Arc<States>,
    pub(super) cipher: Option<Arc<dyn Cipher>>,
    pub(super) rules: Rules,
    pub(super) rules_by_topic: Vec<(Topics, Rules)>,
    pub(super) order: Vec<(Topics, OrderPolicy)>,
}

impl Plan {
    /// Encrypts a message that is about to be stored, if that is to be.
    pub(crate) fn seal(&self, message: &mut NewMessage) -> Result<()> {
        self.cipher.as_ref().map_or(Ok(()), |cipher| encryption::seal(&**cipher, message))
    }

    /// Decrypts a message for its handlers, or returns its outcome.
    pub(crate) fn open(&self, message: &Arc<Message>) -> Result<Arc<Message>, Failure> {
        if self.cipher.is_none() && !encryption::is_sealed(message) {
            return Ok(Arc::clone(message));
        }
        let mut open = Message::clone(message);
        encryption::open(self.cipher.as_deref(), &mut open)?;
        Ok(Arc::new(open))
    }

    /// The rules of this topic.
    pub(crate) fn rules_of(&self, topic: &str) -> &Rules {
        let own = self.rules_by_topic.iter().find(|(topics, _)| topics.contains(topic));
        own.map_or(&self.rules, |(_, rules)| rules)
    }
}
