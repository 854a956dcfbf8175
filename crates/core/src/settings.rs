//! Every setting of an outbox, once: its name, unit, default and bound. The builder, a file and the environment use the
//! same names, and impossible values do not construct.
//!
//! Nothing here acts; it only defines the settings.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde::de::Error as _;

use crate::error::{Error, ErrorKind, Result};
use crate::message::DEFAULT_MAX_PAYLOAD_BYTES;
use crate::retry::DEFAULT_MAX_ATTEMPTS;
use crate::schedule::Schedule;

/// A value that a file or the environment gives as text.
trait Value: Sized {
    /// What such a text looks like.
    const LIKE: &'static str;

    fn parse(text: &str) -> Option<Self>;
    fn show(&self) -> String;
}

impl Value for u32 {
    const LIKE: &'static str = "a whole number, from 0 to 4294967295 at most";

    fn parse(text: &str) -> Option<Self> {
        text.trim().replace('_', "").parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for bool {
    const LIKE: &'static str = "true or false";

    fn parse(text: &str) -> Option<Self> {
        text.trim().parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// A topic.
impl Value for String {
    const LIKE: &'static str = "a topic of 1 to 255 bytes";

    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

impl Value for Duration {
    const LIKE: &'static str = "a duration like 500ms, 30s, 5m, 24h or 7d";

    fn parse(text: &str) -> Option<Self> {
        parse_duration(text)
    }

    fn show(&self) -> String {
        show_duration(*self)
    }
}

impl Value for Option<Duration> {
    const LIKE: &'static str = "a duration like 24h or 7d, or forever";

    fn parse(text: &str) -> Option<Self> {
        if text.trim() == "forever" { Some(None) } else { parse_duration(text).map(Some) }
    }

    fn show(&self) -> String {
        self.map_or_else(|| "forever".to_owned(), show_duration)
    }
}

impl Value for Schedule {
    const LIKE: &'static str = "a duration like 5s, a cron expression like 0 3 * * *, or off";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// A number with its unit: `500ms`, `30s`, `5m`, `24h`, `7d`.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..split].parse().ok()?;
    let millis = match text[split..].trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(millis).map(Duration::from_millis)
}

/// The shortest text that [`parse_duration`] reads as this duration.
pub(crate) fn show_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let unit = units.into_iter().find(|(_, size)| millis > 0 && millis.is_multiple_of(*size));
    let (unit, size) = unit.unwrap_or(("ms", 1));
    format!("{}{unit}", millis / size)
}

/// A setting, as the documentation shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingInfo {
    /// Its name in the builder and in files; the environment has it in capitals, behind a prefix.
    pub name: &'static str,
    /// Its default.
    pub default: String,
    /// What it may be.
    pub bound: String,
    /// What it is for.
    pub meaning: &'static str,
}

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr, $low:expr, $high:expr;)*
     --- $($(#[doc = $free_doc:literal])+ $free:ident: $free_type:ty = $free_default:expr;)*) => {
        /// The settings of an outbox. Each has a default that suits most programs.
        ///
        /// ```
        /// use std::time::Duration;
        /// use posthaste_core::Settings;
        ///
        /// let mut settings = Settings::default();
        /// settings.workers = 16;
        /// settings.set("lease", "1m")?;                       // as a file or the environment would say it
        /// assert_eq!(settings.lease, Duration::from_secs(60));
        /// assert!(settings.set("lease", "yesterday").is_err());
        /// # Ok::<(), posthaste_core::Error>(())
        /// ```
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct Settings {
            $($(#[doc = $doc])+ pub $name: $type,)*
            $($(#[doc = $free_doc])+ pub $free: $free_type,)*
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($name: $default,)* $($free: $free_default,)* }
            }
        }

        impl Settings {
            /// The names of all settings.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)* $(stringify!($free),)*];

            /// Every setting, for documentation.
            pub fn table() -> Vec<SettingInfo> {
                let defaults = Self::default();
                vec![
                    $(SettingInfo {
                        name: stringify!($name),
                        default: Value::show(&defaults.$name),
                        bound: format!("{} to {}", Value::show(&$low), Value::show(&$high)),
                        meaning: concat!($($doc),+).trim_ascii_start(),
                    },)*
                    $(SettingInfo {
                        name: stringify!($free),
                        default: Value::show(&defaults.$free),
                        bound: <$free_type as Value>::LIKE.to_owned(),
                        meaning: concat!($($free_doc),+).trim_ascii_start(),
                    },)*
                ]
            }

            /// Sets the setting of this name from a text.
            pub fn set(&mut self, name: &str, text: &str) -> Result<()> {
                match name {
                    $(stringify!($name) => self.$name = parsed(name, text)?,)*
                    $(stringify!($free) => self.$free = parsed(name, text)?,)*
                    _ => {
                        return Err(Error::new(ErrorKind::Configuration, "no such setting")
                            .with_context("name", crate::text::cut(name, 100))
                            .with_remedy(format!("the settings are {}", Self::NAMES.join(", "))));
                    }
                }
                Ok(())
            }

            fn check_bounds(&self) -> Result<()> {
                $(if !($low..=$high).contains(&self.$name) {
                    return Err(out_of_bounds(
                        stringify!($name), &self.$name.show(), &Value::show(&$low), &Value::show(&$high),
                    ));
                })*
                Ok(())
            }
        }
    };
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const DAY: u64 = 24 * 3600;

settings! {
    /// How many handlers run at a time.
    workers: u32 = 4, 1, 10_000;
    /// How many messages may wait in memory right after their commit; 0 switches the hot path off.
    hot_capacity: u32 = 1_000, 0, 1_000_000;
    /// How many bytes of payload and headers they may have together.
    hot_bytes: u32 = 64 << 20, 0, 1 << 31;
    /// How many claimed messages may wait in memory for a handler.
    cold_capacity: u32 = 2_000, 1, 1_000_000;
    /// How many bytes of payload and headers they may have together, about: a claim is sized by the messages before it.
    cold_bytes: u32 = 64 << 20, 1, 1 << 31;
    /// The most messages of one claim.
    batch: u32 = 1_000, 1, 10_000;
    /// The most outcomes of one settlement.
    settle_batch: u32 = 1_000, 1, 10_000;
    /// Settlements that nobody waits for, and that are not full, follow each other no more closely than this; what was
    /// delivered since the last one comes again after a crash. 0 settles at once.
    settle_interval: Duration = ms(50), ms(0), secs(10);
    /// How long a message is owned without being renewed, and so how long a crash hides it.
    lease: Duration = secs(30), ms(100), secs(DAY);
    /// The shortest pause between two claims that are not full.
    poll_floor: Duration = ms(10), ms(1), secs(60);
    /// The longest pause between two claims, when there is nothing to do.
    poll_ceiling: Duration = secs(1), ms(1), secs(3600);
    /// The most bytes of a payload.
    max_payload_bytes: u32 = DEFAULT_MAX_PAYLOAD_BYTES as u32, 1, 1 << 30;
    /// How many attempts a message has before it is dead.
    max_attempts: u32 = DEFAULT_MAX_ATTEMPTS, 1, 1_000_000;
    /// The pause after the first failed attempt; it doubles with every further one.
    retry_base: Duration = secs(2), ms(1), secs(DAY);
    /// The longest pause between two attempts, before the jitter.
    retry_max: Duration = secs(60), ms(1), secs(30 * DAY);
    /// The pause after a failure that only a change of configuration can cure.
    unroutable_delay: Duration = secs(300), ms(1), secs(30 * DAY);
    /// How long a handler may take before it is cancelled and its attempt has failed.
    handler_timeout: Duration = secs(300), ms(10), secs(7 * DAY);
    /// How long a cancelled handler may go on before it is dropped.
    cancel_grace: Duration = secs(5), ms(1), secs(3600);
    /// How long a graceful shutdown may take. Handlers are cut off 3s before its end, or half-way if it is shorter than 6s.
    shutdown_grace: Duration = secs(25), ms(0), secs(3600);
    /// How long done messages are kept, if pruning is on.
    keep_done_for: Duration = secs(7 * DAY), ms(0), secs(3650 * DAY);
    /// How long joins are kept that are over, if pruning is on.
    keep_joins_for: Duration = secs(7 * DAY), ms(0), secs(3650 * DAY);
    /// How many messages may be ready and due before that is an alert.
    alert_ready: u32 = 1_000, 1, 10_000;
    /// How many messages may be dead before that is an alert.
    alert_dead: u32 = 10, 0, 10_000;
    /// How long messages may take from when they are due until they are done, on average, before that is an alert.
    alert_latency: Duration = secs(30), ms(1), secs(30 * DAY);
    /// How long the oldest message that is ready may have been due before that is an alert.
    alert_oldest: Duration = secs(300), ms(1), secs(30 * DAY);
    /// How often a message that waits for a join looks at it, although the join's end would make it due at once.
    join_check: Duration = secs(60), ms(100), secs(30 * DAY);
    /// The most connections over all tenants' databases, for the work in the background. Those who publish have their own.
    tenants_connections: u32 = 64, 1, 10_000;
    /// The most messages of one tenant's turn, before the others that wait have theirs.
    tenants_quantum: u32 = 100, 1, 10_000;
    /// How often the tenants are discovered anew.
    tenants_refresh: Duration = secs(300), ms(100), secs(DAY);
    /// After how long without a message a tenant counts as idle, and after how long without a call its connections are closed.
    tenants_idle: Duration = secs(60), ms(0), secs(30 * DAY);
    /// The longest pause between two claims of an idle tenant, if that is longer than poll_ceiling.
    tenants_idle_poll: Duration = ms(1_500), ms(1), secs(3600);
    /// The longest pause between two attempts at a tenant's database that fails.
    tenants_retry: Duration = secs(15), ms(1), secs(3600);
    /// How long the messages of a removed tenant may take to be delivered, before it is left as it is.
    tenants_drain: Duration = secs(600), ms(0), secs(30 * DAY);
    ---
    /// The topic of messages that wait for joins; the same for everybody who uses the database.
    join_wait_topic: String = crate::join::DEFAULT_WAIT_TOPIC.to_owned();
    /// For how long a message may fail without a break because something is down, before it is dead.
    outage_limit: Option<Duration> = Some(secs(DAY));
    /// For how long a message may be unroutable without a break, before it is dead.
    unroutable_limit: Option<Duration> = Some(secs(7 * DAY));
    /// How long dead messages are kept, if pruning is on.
    keep_dead_for: Option<Duration> = None;
    /// Whether pruned messages are moved to the archive table.
    archive: bool = false;
    /// Whether other processes are told about new messages, where the database has a way.
    notify: bool = true;
    /// When messages are taken back whose lease has run out.
    reap: Schedule = Schedule::every(secs(10));
    /// When messages are given up that nobody claimed before their expiry, and joins whose deadline has passed.
    expire: Schedule = Schedule::every(secs(60));
    /// When messages behind a dead one with the policy park are set aside.
    park: Schedule = Schedule::every(secs(60));
    /// When messages are removed, or archived, whose retention is over.
    prune: Schedule = Schedule::every(secs(300));
    /// When the queue is measured for metrics and for warnings about topics that nobody handles here.
    stats: Schedule = Schedule::every(secs(15));
}

fn parsed<T: Value>(name: &str, text: &str) -> Result<T> {
    T::parse(text).ok_or_else(|| {
        let text = crate::text::cut(text, 60);
        Error::new(ErrorKind::Configuration, format!("{name} is `{text}`, which cannot be understood"))
            .with_remedy(format!("give it {}", T::LIKE))
    })
}

fn out_of_bounds(name: &str, value: &str, low: &str, high: &str) -> Error {
    Error::new(ErrorKind::Configuration, format!("{name} is {value}"))
        .with_remedy(format!("give it {low} to {high}"))
}

impl Settings {
    /// The defaults, changed by what the environment has: `PREFIX` followed by a setting's name in capitals, as in
    /// `POSTHASTE_POLL_CEILING=500ms`.
    pub fn from_env(prefix: &str) -> Result<Self> {
        let mut settings = Self::default();
        settings.apply_env(prefix)?;
        Ok(settings)
    }

    /// Applies the settings of the environment.
    pub fn apply_env(&mut self, prefix: &str) -> Result<()> {
        self.apply(prefix, |variable| std::env::var(variable).ok())
    }

    fn apply(&mut self, prefix: &str, read: impl Fn(&str) -> Option<String>) -> Result<()> {
        for name in Self::NAMES {
            let variable = format!("{prefix}{}", name.to_uppercase());
            if let Some(text) = read(&variable) {
                let set = self.set(name, &text).and_then(|()| self.check_bounds());
                set.map_err(|error| error.with_context("variable", variable))?;
            }
        }
        self.check()
    }

    /// Refuses invalid values, naming the setting and its bounds.
    pub fn check(&self) -> Result<()> {
        self.check_bounds()?;
        let topic = &self.join_wait_topic;
        if topic.contains('*') || crate::topic::Topic::new(topic.as_str()).is_err() {
            // A pattern would take messages for waits that are none.
            return Err(Error::new(ErrorKind::Configuration, "join_wait_topic is no topic")
                .with_remedy("give it 1 to 255 bytes, without * and NUL"));
        }
        if self.poll_floor > self.poll_ceiling {
            return Err(Error::new(
                ErrorKind::Configuration,
                format!("poll_floor is {}", self.poll_floor.show()),
            )
            .with_remedy(format!("give it at most poll_ceiling, {}", self.poll_ceiling.show())));
        }
        if self.retry_base > self.retry_max {
            return Err(Error::new(
                ErrorKind::Configuration,
                format!("retry_base is {}", self.retry_base.show()),
            )
            .with_remedy(format!("give it at most retry_max, {}", self.retry_max.show())));
        }
        Ok(())
    }

    /// The same from the text of a TOML file, where an unknown name is an error.
    #[cfg(feature = "toml")]
    pub fn from_toml(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|source| {
            let message = source.message();
            let message = message.strip_prefix("invalid configuration: ").unwrap_or(message);
            let error = Error::new(ErrorKind::Configuration, message);
            match source.span() {
                Some(span) => error.with_context("line", text[..span.start].lines().count().max(1)),
                None => error,
            }
        })
    }

    /// The same from a TOML file.
    #[cfg(feature = "toml")]
    pub fn from_file(path: impl AsRef<std::path::Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|source| {
            Error::new(ErrorKind::Configuration, format!("the file of settings cannot be read: {source}"))
                .with_context("file", path.display())
                .with_source(source)
        })?;
        Self::from_toml(&text).map_err(|error| error.with_context("file", path.display()))
    }
}

/// From any format that has maps: names to numbers, truth values or texts.
impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Scalar {
            Bool(bool),
            Number(i64),
            Text(String),
            Other(serde::de::IgnoredAny),
        }
        let mut settings = Self::default();
        for (name, value) in BTreeMap::<String, Scalar>::deserialize(deserializer)? {
            let text = match value {
                Scalar::Bool(value) => value.to_string(),
                Scalar::Number(value) => value.to_string(),
                Scalar::Text(value) => value,
                Scalar::Other(_) => {
                    return Err(D::Error::custom(format!(
                        "invalid configuration: {name} is neither a whole number nor a text nor true or false; give the \
                         settings at the top of the file, without a section"
                    )));
                }
            };
            settings.set(&name, &text).map_err(D::Error::custom)?;
        }
        settings.check().map_err(D::Error::custom)?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_shown() {
        for text in ["0ms", "500ms", "30s", "5m", "24h", "7d"] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(parse_duration(&show_duration(duration)), Some(duration), "{text}");
        }
        assert_eq!(show_duration(Duration::from_secs(3600)), "1h");
        for text in ["", "s", "5", "5 weeks", "-1s", "99999999999999999999s", "999999999999999999d"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn defaults_are_within_their_bounds() {
        Settings::default().check().unwrap();
    }

    /// OBX-065, INB-005: everything is configurable, by the same names everywhere.
    #[test]
    fn the_environment_has_the_same_names() {
        let mut settings = Settings::default();
        let read = |variable: &str| match variable {
            "MY_MAX_ATTEMPTS" => Some("3".to_owned()),
            "MY_SETTLE_BATCH" => Some("1_000".to_owned()),
            "MY_KEEP_DEAD_FOR" => Some("30d".to_owned()),
            "MY_REAP" => Some("off".to_owned()),
            "MY_ARCHIVE" => Some("true".to_owned()),
            _ => None,
        };
        settings.apply("MY_", read).unwrap();
        assert_eq!((settings.max_attempts, settings.settle_batch), (3, 1_000));
        assert_eq!(settings.keep_dead_for, Some(Duration::from_secs(30 * DAY)));
        assert!(settings.archive && settings.reap == Schedule::off());
    }

    #[test]
    fn impossible_values_are_refused_with_the_remedy() {
        let error = |name: &str, text: &str| {
            let mut settings = Settings::default();
            settings.set(name, text).and_then(|()| settings.check()).unwrap_err().to_string()
        };
        assert_eq!(error("workers", "0"), "invalid configuration: workers is 0; give it 1 to 10000");
        assert!(
            error("workers", "many")
                .contains("workers is `many`, which cannot be understood; give it a whole number")
        );
        assert!(error("lease", "1ms").contains("lease is 1ms; give it 100ms to 1d"));
        assert!(error("poll_floor", "5s").contains("at most poll_ceiling, 1s"));
        assert!(error("retry_base", "2m").contains("at most retry_max, 1m"));
        assert!(error("worker", "3").contains("the settings are workers, hot_capacity"));
        assert!(error("prune", "now and then").contains("a cron expression"));
    }

    #[test]
    fn maps_of_any_format_are_settings() {
        let settings: Settings =
            serde_json::from_str(r#"{ "workers": 8, "lease": "1m", "notify": false }"#).unwrap();
        assert_eq!((settings.workers, settings.lease, settings.notify), (8, Duration::from_secs(60), false));
        let unknown = serde_json::from_str::<Settings>(r#"{ "wokers": 8 }"#).unwrap_err();
        assert!(unknown.to_string().contains("no such setting (name=wokers)"), "{unknown}");
        assert!(serde_json::from_str::<Settings>(r#"{ "workers": 0 }"#).is_err());
        let section = serde_json::from_str::<Settings>(r#"{ "outbox": { "workers": 1 } }"#).unwrap_err();
        assert!(section.to_string().contains("outbox is neither"), "{section}");
    }

    #[cfg(feature = "toml")]
    #[test]
    fn files_name_the_line() {
        let refused = |text| Settings::from_toml(text).unwrap_err().to_string();
        assert_eq!(Settings::from_toml("workers = 3\nreap = \"off\"").unwrap().workers, 3);
        assert!(
            refused("lease = \"30s\"\nworkers = ").contains("line=2"),
            "{}",
            refused("lease = \"30s\"\nworkers = ")
        );
        assert!(refused("[outbox]\nworkers = 3").contains("without a section"));
        assert!(
            refused("workers = 0").starts_with("invalid configuration: workers is 0; give it 1 to 10000")
        );
    }
}
