//! The mutants: one defect each, that a careless change could bring in, and the tests that must notice it.
//!
//! Names that begin with `M-` are those of the fault catalogue, of which this is what can be written in one line.
//! A mutant must be a defect that a user could meet, not a matter of taste, and its tests must fail because of it
//! every time. What one line of a dialect's SQL cannot break, because a second line looks again, is not listed for it.

mod brokers;
mod encryption;
mod guards;
mod inbox;
mod leases;
mod mysql;
mod pause;
mod postgres;
mod runtime;
mod rust;
mod sinks;
mod sqlite;
mod tenants;

/// A change of one place in one file.
#[derive(Debug)]
pub(super) struct Mutant {
    pub(super) name: &'static str,
    /// The effect on a user.
    pub(super) why: &'static str,
    /// Relative to the workspace.
    pub(super) file: &'static str,
    /// Occurs exactly once in the file; lines around it may be part of it, to say which of several is meant.
    pub(super) original: &'static str,
    pub(super) mutated: &'static str,
    pub(super) program: Program,
    /// The tests that must fail, as a filter expression of cargo-nextest.
    pub(super) killers: &'static str,
}

/// Where the tests are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Program {
    /// Every store against its real database.
    Stores,
    /// Everything of the SQL crate; tests that start its example need it.
    SqlxWhole,
    /// The tests of the SQL crate.
    SqlxUnits,
    /// The store in memory.
    Memory,
    /// The runtime on the store in memory.
    Runtime,
    /// Many stores at a time, over a simulated network.
    Tenants,
    /// Whole outboxes on a simulated clock, with faults.
    Simulation,
    /// The tests of the core.
    CoreUnits,
    /// The sink and the consumer on a real RabbitMQ.
    Rabbitmq,
    /// The tests of the RabbitMQ crate.
    RabbitmqUnits,
    /// The sink and the consumer on a real NATS.
    Nats,
}

impl Program {
    /// In an order in which little is built twice: what depends on most comes first.
    pub(super) const ALL: [Self; 11] = [
        Self::Stores,
        Self::SqlxWhole,
        Self::SqlxUnits,
        Self::Rabbitmq,
        Self::RabbitmqUnits,
        Self::Nats,
        Self::Memory,
        Self::Runtime,
        Self::Tenants,
        Self::Simulation,
        Self::CoreUnits,
    ];

    /// What cargo is to build.
    pub(super) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Stores => &["-p", "posthaste-sqlx", "--test", "stores"],
            Self::SqlxWhole => &["-p", "posthaste-sqlx"],
            Self::SqlxUnits => &["-p", "posthaste-sqlx", "--lib"],
            Self::Memory => &["-p", "posthaste-testkit", "--test", "memory"],
            Self::Runtime => &["-p", "posthaste-testkit", "--test", "runtime", "--test", "looks"],
            Self::Tenants => &["-p", "posthaste-testkit", "--test", "tenants"],
            Self::Simulation => &["-p", "posthaste-testkit", "--test", "simulation"],
            Self::CoreUnits => &["-p", "posthaste-core", "--lib"],
            Self::Rabbitmq => &["-p", "posthaste-rabbitmq", "--test", "rabbitmq"],
            Self::RabbitmqUnits => &["-p", "posthaste-rabbitmq", "--lib"],
            Self::Nats => &["-p", "posthaste-nats", "--test", "nats"],
        }
    }
}

/// All mutants, those of the core last: after one of them everything is built again.
pub(super) fn all() -> impl Iterator<Item = &'static Mutant> {
    [
        postgres::MUTANTS,
        leases::MUTANTS,
        mysql::MUTANTS,
        sqlite::MUTANTS,
        brokers::MUTANTS,
        rust::MUTANTS,
        inbox::MUTANTS,
        pause::MUTANTS,
        runtime::MUTANTS,
        tenants::MUTANTS,
        sinks::MUTANTS,
        encryption::MUTANTS,
        guards::MUTANTS,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_mutant_applies_to_the_workspace() {
        let mut stale = Vec::new();
        for mutant in all() {
            let file = crate::stages::root().join(mutant.file);
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let count = text.matches(mutant.original).count();
            if count != 1 {
                stale.push(format!("{}: occurs {count} times in {}", mutant.name, mutant.file));
            }
        }
        assert!(stale.is_empty(), "update the list:\n{}", stale.join("\n"));
    }

    #[test]
    fn every_mutant_is_a_change_with_a_name_of_its_own() {
        let mut names = HashSet::new();
        for mutant in all() {
            assert!(names.insert(mutant.name), "{} is there twice", mutant.name);
            assert_ne!(mutant.original, mutant.mutated, "{}", mutant.name);
            assert!(!mutant.why.is_empty() && !mutant.killers.is_empty(), "{}", mutant.name);
        }
    }
}
