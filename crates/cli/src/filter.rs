//! Which messages a command is about: the options that list, requeue and bury share.

use std::time::SystemTime;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use posthaste::{FailureClass, Filter, JoinStatus, MessageId, OrderPolicy, Result, State, Topics};

use crate::when;

/// Which messages; everything that is given must match.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Which messages")]
pub(crate) struct FilterArgs {
    /// In this state
    #[arg(long, value_parser = state_parser())]
    pub(crate) state: Option<State>,
    /// Of this topic, or of those that begin like `order.*`; may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub(crate) topic: Vec<String>,
    /// With this key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Of this tenant
    #[arg(long, value_name = "ID")]
    pub(crate) tenant: Option<String>,
    /// With this correlation id
    #[arg(long, value_name = "ID")]
    pub(crate) correlation: Option<String>,
    /// Whose last failure was of this class
    #[arg(long, value_parser = class_parser())]
    pub(crate) class: Option<FailureClass>,
    /// Enqueued at or after this time: RFC 3339, or an age like 2h or 7d
    #[arg(long, value_name = "TIME", value_parser = when::past)]
    pub(crate) from: Option<SystemTime>,
    /// Enqueued before this time
    #[arg(long, value_name = "TIME", value_parser = when::past)]
    pub(crate) before: Option<SystemTime>,
}

impl FilterArgs {
    /// Whether nothing is asked for, so that every message matches.
    pub(crate) fn is_empty(&self) -> bool {
        let texts = [&self.key, &self.tenant, &self.correlation];
        self.state.is_none()
            && self.topic.is_empty()
            && texts.iter().all(|text| text.is_none())
            && self.class.is_none()
            && self.from.is_none()
            && self.before.is_none()
    }

    /// The filter, for these ids or for any.
    pub(crate) fn filter(&self, ids: &[MessageId]) -> Result<Filter> {
        let topics = if self.topic.is_empty() { Topics::all() } else { Topics::of(&self.topic)? };
        let filter = Filter {
            state: self.state,
            topics,
            key: self.key.clone(),
            tenant_id: self.tenant.clone(),
            correlation_id: self.correlation.clone(),
            class: self.class,
            created_from: self.from,
            created_before: self.before,
            ids: ids.to_vec(),
        };
        filter.check()?;
        Ok(filter)
    }
}

/// A parser of these names.
macro_rules! parser {
    ($parser:ident, $type:ident { $($name:literal: $value:ident),+ }) => {
        pub(crate) fn $parser() -> impl TypedValueParser<Value = $type> {
            PossibleValuesParser::new([$($name),+]).try_map(|text| match text.as_str() {
                $($name => Ok($type::$value),)+
                // The parser before has refused it.
                _ => Err("it is none of these"),
            })
        }
    };
}
parser!(state_parser, State { "ready": Ready, "leased": Leased, "done": Done, "dead": Dead });
parser!(class_parser, FailureClass {
    "business": Business, "infrastructure": Infrastructure, "unroutable": Unroutable, "permanent": Permanent,
    "too-large": TooLarge, "expired": Expired, "crash-suspect": CrashSuspect, "buried": Buried
});
parser!(status_parser, JoinStatus {
    "pending": Pending, "completed": Completed, "failed": Failed, "cancelled": Cancelled, "expired": Expired
});
parser!(order_parser, OrderPolicy { "block": Block, "park": Park, "skip": Skip });

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        filter: FilterArgs,
    }

    fn read(args: &[&str]) -> Result<FilterArgs, clap::Error> {
        Line::try_parse_from(["x"].iter().chain(args)).map(|line| line.filter)
    }

    #[test]
    fn every_state_and_class_has_a_name() {
        for state in State::ALL {
            assert_eq!(read(&["--state", &state.to_string()]).unwrap().state, Some(state));
        }
        for class in FailureClass::ALL {
            let name = class.to_string().replace(' ', "-");
            assert_eq!(read(&["--class", &name]).unwrap().class, Some(class));
        }
        assert!(read(&["--state", "odd"]).is_err());
    }

    #[test]
    fn a_filter_is_empty_only_if_nothing_was_given() {
        assert!(read(&[]).unwrap().is_empty());
        for args in [
            ["--state", "dead"],
            ["--topic", "t"],
            ["--key", "k"],
            ["--tenant", "t"],
            ["--correlation", "c"],
            ["--class", "expired"],
            ["--from", "2h"],
            ["--before", "2h"],
        ] {
            assert!(!read(&args).unwrap().is_empty(), "{args:?}");
        }
        let filter = read(&["--topic", "order.*", "--topic", "x"]).unwrap().filter(&[]).unwrap();
        assert!(filter.topics.contains("order.placed") && !filter.topics.contains("y"));
        assert!(read(&["--topic", "a.*.b"]).unwrap().filter(&[]).is_err());
    }
}
