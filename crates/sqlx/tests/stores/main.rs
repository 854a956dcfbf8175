//! Every store of this crate against its real database: the conformance suite, and what only one of them can show.
//!
//! One program for all, because linking is what takes the time.

#![allow(clippy::unwrap_used, clippy::print_stderr, unreachable_pub, reason = "tests")]

mod atomicity;
mod backlogs;
mod callers;
mod costs;
mod crashes;
mod cursors;
mod dumps;
mod examine;
mod fixture;
mod inbox;
mod isolation;
mod languages;
mod leases;
mod limits;
mod locks;
mod old_sqlite;
mod one_file;
mod plans;
mod refusals;
mod replaced;
mod roles;
mod round_trips;
mod schema;
mod search_path;
mod settle_costs;
mod silence;
mod tenants;
mod transactions;
mod turns;
mod waits;
mod wakeup;

mod postgres {
    posthaste_testkit::store_suite!(crate::fixture::PgFixture);
}

mod mysql {
    posthaste_testkit::store_suite!(crate::fixture::MySqlFixture);
}

mod sqlite {
    posthaste_testkit::store_suite!(crate::fixture::SqliteFixture);
}

/// Handlers, dispatcher, hot path and housekeeping over each of them.
mod runtime {
    mod postgres {
        posthaste_testkit::runtime_suite!(crate::fixture::PgFixture);
    }

    mod mysql {
        posthaste_testkit::runtime_suite!(crate::fixture::MySqlFixture);
    }

    mod sqlite {
        posthaste_testkit::runtime_suite!(crate::fixture::SqliteFixture);
    }
}
