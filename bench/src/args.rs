//! The command line, and the counts that follow from it.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Measure posthaste beside the limits of its databases, and beside its peers
///
/// Every repetition has a fresh database, and the subjects take turns. The table goes to standard output; all samples and a page to
/// read go to the folder of --output.
#[derive(Debug, Parser)]
#[command(
    name = "posthaste-bench",
    version,
    max_term_width = 110,
    after_help = "Examples:\n  posthaste-bench --quick\n  posthaste-bench --only drain --store postgres --repetitions 3\n  \
                  posthaste-bench --only enqueue,drain,latency --store postgres --peers"
)]
pub(crate) struct Args {
    /// Which scenarios; all by default
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SCENARIO")]
    pub(crate) only: Vec<Scenario>,
    /// Which databases
    #[arg(long, value_enum, value_delimiter = ',', default_value = "postgres,sqlite,mariadb")]
    pub(crate) store: Vec<StoreName>,
    /// Any database of the PostgreSQL server; its user must be allowed to create databases
    #[arg(long, value_name = "URL", env = "POSTHASTE_TEST_POSTGRES", hide_env_values = true)]
    #[arg(default_value = "postgres://postgres@127.0.0.1:5432/postgres", hide_default_value = true)]
    pub(crate) postgres: String,
    /// Any database of the MariaDB server; its user must be allowed to create databases
    #[arg(long, value_name = "URL", env = "POSTHASTE_TEST_MYSQL", hide_env_values = true)]
    #[arg(default_value = "mysql://root@127.0.0.1:3306/mysql", hide_default_value = true)]
    pub(crate) mariadb: String,
    /// The RabbitMQ server
    #[arg(long, value_name = "URL", env = "POSTHASTE_TEST_RABBITMQ", hide_env_values = true)]
    #[arg(default_value = "amqp://guest:guest@127.0.0.1:5672", hide_default_value = true)]
    pub(crate) rabbitmq: String,
    /// The NATS server, with JetStream
    #[arg(long, value_name = "URL", env = "POSTHASTE_TEST_NATS", hide_env_values = true)]
    #[arg(default_value = "nats://127.0.0.1:4222", hide_default_value = true)]
    pub(crate) nats: String,
    /// How often everything is measured [default: 5; with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repetitions: Option<u32>,
    /// A tenth of the work: whether it runs at all, not how fast
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Backlogs of one and of five million messages, too; takes hours
    #[arg(long)]
    pub(crate) full: bool,
    /// Other projects beside posthaste: all in bench/peers, or those that are named
    #[arg(long, value_delimiter = ',', num_args = 0.., value_name = "NAME")]
    pub(crate) peers: Option<Vec<String>>,
    /// Print the report as JSON instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Where the report goes [default: bench, in the folder that cargo builds in]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,
    /// Deliver so many messages from memory and nothing else, for a counter of instructions
    #[arg(long, value_name = "N", hide = true)]
    pub(crate) count: Option<u64>,
    /// With --count: store them, and deliver none
    #[arg(long, requires = "count", hide = true)]
    pub(crate) only_store: bool,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    Enqueue,
    BatchEnqueue,
    Drain,
    Steady,
    Latency,
    LongTransaction,
    Growth,
    Obstacles,
    Claimers,
    Ordered,
    Joins,
    Sinks,
}

/// Where it can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreName {
    Postgres,
    Mariadb,
    Sqlite,
}

impl Args {
    pub(crate) fn has(&self, scenario: Scenario) -> bool {
        self.only.is_empty() || self.only.contains(&scenario)
    }

    pub(crate) fn scale(&self) -> Scale {
        let mut scale = if self.quick { Scale::QUICK } else { Scale::DEFAULT };
        if self.full {
            scale.drain = 1_000_000;
            scale.backlogs = &[10_000, 100_000, 1_000_000, 5_000_000];
            scale.seconds = 10;
        }
        scale.repetitions = self.repetitions.unwrap_or(scale.repetitions);
        scale
    }
}

/// How much work each scenario does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) repetitions: u32,
    /// How long what goes on for a time goes on.
    pub(crate) seconds: u64,
    pub(crate) clients: u32,
    pub(crate) drain: u64,
    /// How many transactions of a batch each.
    pub(crate) batches: u64,
    pub(crate) backlog: u64,
    pub(crate) backlogs: &'static [u64],
    pub(crate) growth: u64,
    pub(crate) done: u64,
    pub(crate) ordered: u64,
    pub(crate) joins: u64,
    pub(crate) sinks: u64,
}

impl Scale {
    const DEFAULT: Self = Self {
        repetitions: 5,
        seconds: 4,
        clients: 8,
        drain: 100_000,
        batches: 50,
        backlog: 10_000,
        backlogs: &[10_000, 100_000],
        growth: 20_000,
        done: 1_000_000,
        ordered: 50_000,
        joins: 1_000,
        sinks: 20_000,
    };
    const QUICK: Self = Self {
        repetitions: 2,
        seconds: 1,
        clients: 8,
        drain: 10_000,
        batches: 5,
        backlog: 1_000,
        backlogs: &[1_000, 10_000],
        growth: 1_000,
        done: 50_000,
        ordered: 5_000,
        joins: 100,
        sinks: 2_000,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
    }

    #[test]
    fn peers_may_be_named_or_not() {
        let peers = |line: &str| Args::parse_from(line.split(' ')).peers;
        assert_eq!(peers("x"), None);
        assert_eq!(peers("x --peers"), Some(Vec::new()));
        assert_eq!(peers("x --peers pgmq,river"), Some(vec!["pgmq".to_owned(), "river".to_owned()]));
    }
}
