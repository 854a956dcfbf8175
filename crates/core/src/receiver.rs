//! The stored progress of a message's receivers: the handlers and sinks of its topic, each independent.
//!
//! Stores keep it as text, one line for each receiver, and never look inside. A line that is only a name means done, so what
//! earlier versions wrote reads the same.

use std::time::Duration;

use crate::message::Message;
use crate::outcome::{Failure, FailureClass};
use crate::text;

/// The most bytes of a stored reason why a receiver gave up.
const MAX_REASON_BYTES: usize = 500;

/// How far one receiver of a message has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// The handler's name, or `sink` and the sink's name.
    pub name: String,
    /// Its state.
    pub state: ReceiverState,
}

/// The state of one receiver of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReceiverState {
    /// It has the message, and does not get it again.
    Done,
    /// It gets the message again.
    Waiting {
        /// The attempts that it has used up.
        attempts: u32,
        /// How long after the message is due this receiver wants it.
        delay: Duration,
    },
    /// It never gets the message. The message is dead once all other receivers are finished.
    GaveUp {
        /// The attempts that it has used up.
        attempts: u32,
        /// Why.
        failure: Failure,
    },
}

impl Message {
    /// How far each receiver has come, as of the last settlement. Receivers that are not listed have not had the message.
    ///
    /// A message that was requeued is a new chance for every receiver that is not done.
    pub fn receivers(&self) -> Vec<Receiver> {
        let known = self.handled.iter().filter_map(|line| Receiver::parse(line));
        known.filter_map(|receiver| receiver.with_attempts_of(self.attempts)).collect()
    }
}

impl Receiver {
    /// Reads a stored line; none if it makes no sense.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(5, '\t');
        let name = fields.next()?.to_owned();
        let Some(word) = fields.next() else { return Some(Self { name, state: ReceiverState::Done }) };
        let attempts = fields.next()?.parse().ok()?;
        let number = fields.next()?;
        let state = match word {
            "waiting" => {
                ReceiverState::Waiting { attempts, delay: Duration::from_millis(number.parse().ok()?) }
            }
            "gave-up" => {
                let class = FailureClass::from_code(number.parse().ok()?).ok()?;
                ReceiverState::GaveUp { attempts, failure: Failure::stored(class, fields.next()?) }
            }
            _ => return None,
        };
        Some(Self { name, state })
    }

    /// The line that is stored.
    pub(crate) fn line(&self) -> String {
        let name = &self.name;
        match &self.state {
            ReceiverState::Done => name.clone(),
            ReceiverState::Waiting { attempts, delay } => {
                format!("{name}\twaiting\t{attempts}\t{}", delay.as_millis())
            }
            ReceiverState::GaveUp { attempts, failure } => {
                let reason: String =
                    failure.text().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                let reason = text::cut(&reason, MAX_REASON_BYTES);
                format!("{name}\tgave-up\t{attempts}\t{}\t{reason}", failure.class().code())
            }
        }
    }

    /// A receiver never has more attempts than its message. A requeue resets the message's attempts, so earlier records no
    /// longer hold.
    fn with_attempts_of(mut self, message: u32) -> Option<Self> {
        match &mut self.state {
            ReceiverState::GaveUp { .. } if message == 0 => return None,
            ReceiverState::Waiting { attempts, .. } | ReceiverState::GaveUp { attempts, .. } => {
                *attempts = (*attempts).min(message);
            }
            ReceiverState::Done => {}
        }
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use proptest::prelude::*;

    use super::*;
    use crate::id::{Lease, WorkItemId};
    use crate::message::NewMessage;

    fn read(lines: &[&str], attempts: u32) -> Vec<(String, ReceiverState)> {
        let lease = Lease { item: WorkItemId::new(1), epoch: 1 };
        let mut message = NewMessage::bytes("t", "").build().unwrap().leased(lease, SystemTime::UNIX_EPOCH);
        message.handled = lines.iter().map(|line| (*line).to_owned()).collect();
        message.attempts = attempts;
        message.receivers().into_iter().map(|receiver| (receiver.name, receiver.state)).collect()
    }

    fn waiting(attempts: u32, millis: u64) -> ReceiverState {
        ReceiverState::Waiting { attempts, delay: Duration::from_millis(millis) }
    }

    proptest! {
        /// Every line that is written can be read again.
        #[test]
        fn lines_are_reversible(name in "[^\t\n\0]{1,20}", attempts in 0..9u32, millis in 0..9_000_000u64, text in ".{0,40}") {
            let failure = Failure::permanent(text.replace(char::is_control, " "));
            for state in [ReceiverState::Done, waiting(attempts, millis), ReceiverState::GaveUp { attempts, failure }] {
                let receiver = Receiver { name: name.clone(), state };
                prop_assert_eq!(Receiver::parse(&receiver.line()), Some(receiver));
            }
        }

        #[test]
        fn any_line_can_be_read(line in ".*") {
            let _ = Receiver::parse(&line);
        }
    }

    #[test]
    fn a_reason_stays_on_its_line() {
        let failure = Failure::permanent(format!("a\nb\tc{}", "é".repeat(1_000)));
        let line =
            Receiver { name: "x".to_owned(), state: ReceiverState::GaveUp { attempts: 1, failure } }.line();
        assert!(!line.contains('\n') && line.len() < 600, "{line}");
        assert!(line.starts_with("x\tgave-up\t1\t4\t[BUSINESS] a b c"), "{line}");
    }

    /// R14 for receivers: the attempts that a requeue has set back count for none of them.
    #[test]
    fn a_requeued_message_is_a_new_chance() {
        let lines = ["a", "b\twaiting\t3\t250", "c\tgave-up\t5\t1\t[BUSINESS] no"];
        assert_eq!(read(&lines, 7).len(), 3);
        assert_eq!(read(&lines, 7)[1].1, waiting(3, 250));
        let again = read(&lines, 0);
        assert_eq!(again, [("a".to_owned(), ReceiverState::Done), ("b".to_owned(), waiting(0, 250))]);
    }

    #[test]
    fn nonsense_is_left_out() {
        assert!(
            read(&["a\twhatever\t1\t2", "b\twaiting\tx\t2", "c\tgave-up\t1\t99\tno", "d\twaiting"], 1)
                .is_empty()
        );
    }
}
