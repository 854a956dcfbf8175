//! The statements of a store: read from the `.sql` files at compile time, rendered once when a store is made.
//!
//! Every dialect has the same files; a missing one does not compile.

use std::sync::Arc;

use sqlx_core::sql_str::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::naming::Naming;

/// A statement with the names of one store in it.
#[derive(Clone, Debug)]
pub(crate) struct Statement(Arc<str>);

impl Statement {
    pub(crate) fn new(sql: String) -> Self {
        Self(sql.into())
    }

    #[cfg(any(feature = "mysql", feature = "sqlite"))]
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Safe, because its text comes from our files and from names that `naming.rs` has checked.
    pub(crate) fn sql(&self) -> SqlStr {
        AssertSqlSafe(Arc::clone(&self.0)).into_sql_str()
    }
}

/// Special statements for the most frequent calls, where they differ from the general ones.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "the others have none"))]
pub(crate) struct Shortcuts<T> {
    /// One message, ready.
    pub(crate) one: T,
    /// Many messages, all ready.
    pub(crate) batch: T,
    /// One message, stored leased.
    pub(crate) leased: T,
    /// Acks that are all of one epoch.
    pub(crate) ack: T,
}

macro_rules! statements {
    ($($name:ident),* $(,)?) => {
        /// The text of a dialect's files.
        #[derive(Clone, Copy, Debug)]
        pub struct Files {
            $(pub(crate) $name: &'static str,)*
            pub(crate) shortcuts: Option<Shortcuts<&'static str>>,
            /// Numbered, never edited once released.
            pub(crate) migrations: &'static [(&'static str, &'static str)],
            /// Made again whenever their text has changed.
            pub(crate) routines: &'static [&'static str],
        }

        /// The statements of one store.
        #[derive(Clone, Debug)]
        pub(crate) struct Statements {
            $(pub(crate) $name: Statement,)*
            #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "the others have none"))]
            pub(crate) shortcuts: Option<Shortcuts<Statement>>,
        }

        impl Statements {
            pub(crate) fn new(files: &Files, naming: &Naming) -> Self {
                let render = |text| Statement::new(naming.render(text));
                Self {
                    $($name: render(files.$name),)*
                    shortcuts: files.shortcuts.map(|Shortcuts { one, batch, leased, ack }| Shortcuts {
                        one: render(one),
                        batch: render(batch),
                        leased: render(leased),
                        ack: render(ack),
                    }),
                }
            }
        }
    };
}

statements!(
    archive,
    attach,
    bury,
    cancel_join,
    claim,
    continue_join,
    count,
    duplicates,
    enqueue,
    expire,
    expire_join,
    forget,
    forget_inbox,
    hasten,
    history,
    identity,
    join,
    joins,
    list,
    look,
    note,
    over,
    over_joins,
    park,
    pause,
    pauses,
    pending_steps,
    prune,
    prune_joins,
    reap,
    remember,
    remembered,
    remembered_hash,
    renew,
    report,
    requeue,
    resume,
    select,
    settle,
    start_join,
    stats,
    steps,
    survivors,
    topics,
    turn,
    uncount,
    unpark,
    version,
    wait,
);

/// The files of a dialect's folder, with its migrations and routines in the order in which they are run.
macro_rules! files {
    (
        $dialect:literal, shortcuts: $shortcuts:expr, migrations: [$($migration:literal),* $(,)?],
        routines: [$($routine:literal),* $(,)?]
    ) => {
        $crate::sql::Files {
            archive: include_str!(concat!("../sql/", $dialect, "/archive.sql")),
            attach: include_str!(concat!("../sql/", $dialect, "/attach.sql")),
            bury: include_str!(concat!("../sql/", $dialect, "/bury.sql")),
            cancel_join: include_str!(concat!("../sql/", $dialect, "/cancel_join.sql")),
            claim: include_str!(concat!("../sql/", $dialect, "/claim.sql")),
            continue_join: include_str!(concat!("../sql/", $dialect, "/continue_join.sql")),
            count: include_str!(concat!("../sql/", $dialect, "/count.sql")),
            duplicates: include_str!(concat!("../sql/", $dialect, "/duplicates.sql")),
            enqueue: include_str!(concat!("../sql/", $dialect, "/enqueue.sql")),
            expire: include_str!(concat!("../sql/", $dialect, "/expire.sql")),
            expire_join: include_str!(concat!("../sql/", $dialect, "/expire_join.sql")),
            forget: include_str!(concat!("../sql/", $dialect, "/forget.sql")),
            forget_inbox: include_str!(concat!("../sql/", $dialect, "/forget_inbox.sql")),
            hasten: include_str!(concat!("../sql/", $dialect, "/hasten.sql")),
            history: include_str!(concat!("../sql/", $dialect, "/history.sql")),
            identity: include_str!(concat!("../sql/", $dialect, "/identity.sql")),
            join: include_str!(concat!("../sql/", $dialect, "/join.sql")),
            joins: include_str!(concat!("../sql/", $dialect, "/joins.sql")),
            list: include_str!(concat!("../sql/", $dialect, "/list.sql")),
            look: include_str!(concat!("../sql/", $dialect, "/look.sql")),
            note: include_str!(concat!("../sql/", $dialect, "/note.sql")),
            over: include_str!(concat!("../sql/", $dialect, "/over.sql")),
            over_joins: include_str!(concat!("../sql/", $dialect, "/over_joins.sql")),
            park: include_str!(concat!("../sql/", $dialect, "/park.sql")),
            pause: include_str!(concat!("../sql/", $dialect, "/pause.sql")),
            pauses: include_str!(concat!("../sql/", $dialect, "/pauses.sql")),
            pending_steps: include_str!(concat!("../sql/", $dialect, "/pending_steps.sql")),
            prune: include_str!(concat!("../sql/", $dialect, "/prune.sql")),
            prune_joins: include_str!(concat!("../sql/", $dialect, "/prune_joins.sql")),
            reap: include_str!(concat!("../sql/", $dialect, "/reap.sql")),
            remember: include_str!(concat!("../sql/", $dialect, "/remember.sql")),
            remembered: include_str!(concat!("../sql/", $dialect, "/remembered.sql")),
            remembered_hash: include_str!(concat!("../sql/", $dialect, "/remembered_hash.sql")),
            renew: include_str!(concat!("../sql/", $dialect, "/renew.sql")),
            report: include_str!(concat!("../sql/", $dialect, "/report.sql")),
            requeue: include_str!(concat!("../sql/", $dialect, "/requeue.sql")),
            resume: include_str!(concat!("../sql/", $dialect, "/resume.sql")),
            select: include_str!(concat!("../sql/", $dialect, "/select.sql")),
            settle: include_str!(concat!("../sql/", $dialect, "/settle.sql")),
            start_join: include_str!(concat!("../sql/", $dialect, "/start_join.sql")),
            stats: include_str!(concat!("../sql/", $dialect, "/stats.sql")),
            steps: include_str!(concat!("../sql/", $dialect, "/steps.sql")),
            survivors: include_str!(concat!("../sql/", $dialect, "/survivors.sql")),
            topics: include_str!(concat!("../sql/", $dialect, "/topics.sql")),
            turn: include_str!(concat!("../sql/", $dialect, "/turn.sql")),
            uncount: include_str!(concat!("../sql/", $dialect, "/uncount.sql")),
            unpark: include_str!(concat!("../sql/", $dialect, "/unpark.sql")),
            version: include_str!(concat!("../sql/", $dialect, "/version.sql")),
            wait: include_str!(concat!("../sql/", $dialect, "/wait.sql")),
            shortcuts: $shortcuts,
            migrations: &[$((
                $migration,
                include_str!(concat!("../sql/", $dialect, "/migrations/", $migration, ".sql")),
            )),*],
            routines: &[$(include_str!(concat!("../sql/", $dialect, "/routines/", $routine, ".sql"))),*],
        }
    };
}
pub(crate) use files;
