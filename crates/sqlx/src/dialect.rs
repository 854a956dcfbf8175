//! The differences of the databases: how values are bound and rows are read, how a batch is inserted, how a migration
//! is guarded, and the meaning of errors.
//!
//! Their common code is in `store.rs` and `admin.rs`, once.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use posthaste_core::{
    Birth, Enqueued, Error, ErrorKind, Finding, Holder, Lease, LockWait, MessageId, NewMessage, Result,
    Settlement,
};
use sqlx_core::Error as SqlxError;
use sqlx_core::database::Database;
use sqlx_core::error::DatabaseError;
use sqlx_core::pool::{Pool, PoolOptions};

use crate::arg::Arg;
use crate::error::Verdict;
use crate::examine::Check;
use crate::interrupt::Interrupt;
use crate::listen::Bell;
use crate::migrate::Script;
use crate::naming::Naming;
use crate::pools::Whose;
use crate::row::Columns;
use crate::sql::{Files, Statement, Statements};

/// A connection of a dialect's.
pub(crate) type Connection<D> = <<D as Dialect>::Db as Database>::Connection;
/// What it takes to make one.
pub(crate) type ConnectOptions<D> = <Connection<D> as sqlx_core::connection::Connection>::Options;

pub(crate) mod sealed {
    /// Dialects are ours alone.
    pub trait Sealed {}
}

/// How settlements and renewals pass messages that other sessions have locked.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// No session locks a message without locking all.
    Never,
    /// The settlement does it by itself, and renewals wait for no message.
    Itself,
    /// They cannot; what is locked is looked for before, and left out.
    ByLooking,
}

/// One of the databases that this crate knows.
#[allow(private_interfaces, reason = "sealed: nobody else implements or calls it")]
pub trait Dialect: sealed::Sealed + Debug + Copy + Send + Sync + 'static {
    /// The driver.
    type Db: Database<Row: Columns>;

    #[doc(hidden)]
    const FILES: Files;
    /// How its URLs begin.
    #[doc(hidden)]
    const SCHEMES: &'static [&'static str];
    /// The options that its URLs may have.
    #[doc(hidden)]
    const URL_OPTIONS: &'static [&'static str];
    #[doc(hidden)]
    const QUOTE: char;
    #[doc(hidden)]
    const DEFAULT_SCHEMA: Option<&'static str>;
    #[doc(hidden)]
    const DEFAULT_PREFIX: &'static str;
    /// How a transaction of our own begins.
    #[doc(hidden)]
    const BEGIN: &'static str;
    /// How one begins that only reads.
    #[doc(hidden)]
    const BEGIN_READ: &'static str = Self::BEGIN;
    /// How one begins that examines the database through a user's connection, if that needs one: functions that another role
    /// put on the user's search path must not run.
    #[doc(hidden)]
    const BEGIN_EXAMINATION: Option<&'static str> = None;
    /// How a transaction begins that we open for a user.
    #[doc(hidden)]
    const BEGIN_USER: &'static str = "BEGIN";
    /// Whether processes can tell each other that there is something to claim.
    #[doc(hidden)]
    const LISTENS: bool = false;
    /// Whether there is a network in between, which can lose connections silently.
    #[doc(hidden)]
    const IS_REMOTE: bool = true;
    /// Whether COMMIT may roll back, and say nothing.
    #[doc(hidden)]
    const COMMIT_MAY_ROLL_BACK: bool = false;
    /// About the most bytes of one insert.
    #[doc(hidden)]
    const MAX_INSERT_BYTES: usize;

    #[doc(hidden)]
    fn judge(error: &dyn DatabaseError) -> Verdict;
    #[doc(hidden)]
    fn check_naming(naming: &Naming) -> Result<()> {
        let _ = naming;
        Ok(())
    }
    #[doc(hidden)]
    fn check_options(options: &ConnectOptions<Self>) -> Result<()> {
        let _ = options;
        Ok(())
    }
    /// Where the database is, without any secret.
    #[doc(hidden)]
    fn endpoint(options: &ConnectOptions<Self>) -> String;
    /// The file on this machine that has the database, if it is one that can be replaced while connections have it open.
    #[doc(hidden)]
    fn file(options: &ConnectOptions<Self>) -> Option<PathBuf> {
        let _ = options;
        None
    }
    /// A stable identity of the database, from the result of `identity.sql`; `None` if it has none.
    #[doc(hidden)]
    fn place(answer: String) -> io::Result<Option<String>> {
        Ok(Some(answer))
    }
    /// The settings that our own connections have, and a user's may not have. The server ends a statement that takes longer
    /// than this, where it can.
    #[doc(hidden)]
    fn own_connections(
        options: ConnectOptions<Self>,
        pool: PoolOptions<Self::Db>,
        statement_timeout: Duration,
    ) -> (ConnectOptions<Self>, PoolOptions<Self::Db>);

    /// Lets no statement of our own connections run for longer than this.
    #[doc(hidden)]
    fn limit_statements(
        options: ConnectOptions<Self>,
        pool: PoolOptions<Self::Db>,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> (ConnectOptions<Self>, PoolOptions<Self::Db>);

    /// The settings of connections on which the store opens transactions for a user: the user's own, and only as much
    /// more as is needed beside the store's.
    #[doc(hidden)]
    fn user_connections(options: ConnectOptions<Self>) -> ConnectOptions<Self> {
        options
    }

    #[doc(hidden)]
    fn fetch<'c>(
        connection: &'c mut Connection<Self>,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> impl Future<Output = Result<Vec<<Self::Db as Database>::Row>, SqlxError>> + Send + use<'c, Self>;
    #[doc(hidden)]
    fn execute<'c>(
        connection: &'c mut Connection<Self>,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> impl Future<Output = Result<u64, SqlxError>> + Send + use<'c, Self>;

    /// Runs a script of our own making: several statements, no values.
    #[doc(hidden)]
    fn run_script(
        connection: &mut Connection<Self>,
        script: &str,
    ) -> impl Future<Output = Result<(), SqlxError>> + Send;

    /// Inserts a batch that fits into one statement. An inner error is the driver's, to be wrapped by the caller.
    #[doc(hidden)]
    fn insert(
        connection: &mut Connection<Self>,
        statements: &Statements,
        messages: &[NewMessage],
        birth: Birth<'_>,
    ) -> impl Future<Output = Result<Result<Vec<Enqueued>>, SqlxError>> + Send;
    /// How many of so many messages the next insert takes, if they are not too long.
    #[doc(hidden)]
    fn insert_rows(left: usize) -> usize;
    /// Whether inserting this batch takes more than one statement.
    #[doc(hidden)]
    fn insert_is_long(messages: &[NewMessage]) -> bool;

    /// Inserts one row through a user's connection; false if one with the same key is there.
    #[doc(hidden)]
    fn insert_unless_there(
        connection: &mut Connection<Self>,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> impl Future<Output = Result<bool, SqlxError>> + Send {
        async { Ok(Self::execute(connection, statement, args).await? > 0) }
    }

    /// How settlements and renewals pass messages that other sessions have locked.
    #[doc(hidden)]
    const PASSING: Passing = Passing::Never;
    /// Which of these messages no other session has locked; only called for [`Passing::ByLooking`].
    #[doc(hidden)]
    fn unlocked(
        _connection: &mut Connection<Self>,
        _naming: &Naming,
        _items: &[i64],
    ) -> impl Future<Output = Result<HashSet<i64>, SqlxError>> + Send {
        async { Ok(HashSet::new()) }
    }

    /// Answers a code for each settlement, which come in the order of their leases, or one that holds for all, and then the joins
    /// that ended by them, with no code. Waits for messages that other sessions have locked, unless it is to pass them.
    #[doc(hidden)]
    fn settle(
        connection: &mut Connection<Self>,
        statements: &Statements,
        settlements: &[&Settlement],
        keep_done: bool,
        passes_locked: bool,
    ) -> impl Future<Output = Result<Vec<<Self::Db as Database>::Row>, SqlxError>> + Send;
    /// Runs a statement that may end messages, and counts them in their joins in the same transaction. Joins that end by it
    /// are the rows whose first column is null.
    #[doc(hidden)]
    fn sweep(
        connection: &mut Connection<Self>,
        statements: &Statements,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> impl Future<Output = Result<Vec<<Self::Db as Database>::Row>, SqlxError>> + Send {
        let _ = statements;
        Self::fetch(connection, statement, args)
    }
    #[doc(hidden)]
    fn renew(
        connection: &mut Connection<Self>,
        statement: &Statement,
        leases: &[&Lease],
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<<Self::Db as Database>::Row>, SqlxError>> + Send;

    /// Notifies listeners on the channel that there may be something to claim; only called for dialects that
    /// [listen](Self::LISTENS).
    #[doc(hidden)]
    fn nudge(
        connection: &mut Connection<Self>,
        channel: &str,
    ) -> impl Future<Output = Result<(), SqlxError>> + Send {
        let _ = (connection, channel);
        async { Ok(()) }
    }

    /// Rings the bell for each notification on the channel, on a connection of this pool, until that is lost or the pool is
    /// closed; only called for dialects that [listen](Self::LISTENS). After this much quiet it asks the server whether the
    /// connection still works.
    #[doc(hidden)]
    fn listen(
        pool: &Pool<Self::Db>,
        channel: &str,
        bell: &Bell,
        quiet: Duration,
    ) -> impl Future<Output = Result<(), SqlxError>> + Send {
        let _ = (pool, channel, bell, quiet);
        async { Ok(()) }
    }

    /// The checks of an examination, and the query for the database's time; `None` if the database uses this
    /// machine's clock.
    #[doc(hidden)]
    const CHECKS: &'static [Check];
    /// Checks of the store's own connections: whether they have the requested settings.
    #[doc(hidden)]
    const OWN_CHECKS: &'static [Check] = &[];
    #[doc(hidden)]
    const EXAMINED: Whose = Whose::Users;
    #[doc(hidden)]
    const CLOCK: Option<&'static str> = None;
    /// What no statement can tell.
    #[doc(hidden)]
    fn look_around(options: &ConnectOptions<Self>) -> Vec<Finding> {
        let _ = options;
        Vec::new()
    }
    /// Which session keeps a message's row locked, on connections of its own.
    #[doc(hidden)]
    fn holder(
        options: &ConnectOptions<Self>,
        naming: &Naming,
        id: MessageId,
    ) -> impl Future<Output = Result<Option<Holder>, SqlxError>> + Send;

    /// Which process writes to the file, where the operating system tells; it is asked when a file is locked.
    #[doc(hidden)]
    fn writer(options: &ConnectOptions<Self>) -> Option<Holder> {
        let _ = options;
        None
    }

    /// Which of its sessions wait for locks, and for whom, on a connection of its own.
    #[doc(hidden)]
    fn lock_waits(
        options: &ConnectOptions<Self>,
        naming: &Naming,
    ) -> impl Future<Output = Result<Vec<LockWait>, SqlxError>> + Send {
        let _ = (options, naming);
        async { Ok(Vec::new()) }
    }

    /// A whole script for the database's own client.
    #[doc(hidden)]
    fn print(script: &Script) -> String;
    /// Applies the missing parts of a script, on a connection of its own, under a lock of the database's.
    #[doc(hidden)]
    fn migrate(
        options: &ConnectOptions<Self>,
        script: &Script,
    ) -> impl Future<Output = Result<Result<u32>, SqlxError>> + Send;
}

/// The result of an insert for each message of the batch: `stored` are the new rows, `twins` the rows that conflict with
/// the others.
pub(crate) fn answers(
    messages: &[NewMessage],
    stored: &[(MessageId, Option<Lease>)],
    twins: &[(MessageId, Option<Vec<u8>>)],
) -> Result<Vec<Enqueued>> {
    let mut stored: HashMap<_, _> = stored.iter().copied().collect();
    let answer = |message: &NewMessage| {
        if let Some(lease) = stored.remove(&message.id()) {
            return Ok(Enqueued::New { id: message.id(), lease });
        }
        let dedup = message.dedup().map(|hash| hash.as_slice());
        let is_twin = |(id, hash): &&(MessageId, Option<Vec<u8>>)| {
            *id == message.id() || (dedup.is_some() && hash.as_deref() == dedup)
        };
        twins.iter().find(is_twin).map(|(id, _)| Enqueued::Duplicate { id: *id }).ok_or_else(|| {
            Error::new(
                ErrorKind::Conflict,
                "the message was not stored, and no stored message has its id or dedup key",
            )
            .with_remedy(
                "publish it again, in a new transaction: its twin was removed at the same moment. If that keeps failing, \
                 numbers of the column seq are taken already, as after an incomplete restore: run `posthaste doctor`",
            )
        })
    };
    messages.iter().map(answer).collect()
}

/// One per answer of a statement that answers with a code for each of a batch.
pub(crate) fn codes<R: Columns>(rows: &[R]) -> Result<Vec<posthaste_core::Settled>> {
    rows.iter().map(|row| posthaste_core::Settled::from_code(row.small(0)?)).collect()
}

/// How a dialect sends its statements: the same interface for every driver, whose types have nothing else in common.
macro_rules! sends {
    ($connection:ty, $row:ty) => {
        fn fetch<'c>(
            connection: &'c mut $connection,
            statement: &$crate::sql::Statement,
            args: &[$crate::arg::Arg<'_>],
        ) -> impl Future<Output = Result<Vec<$row>, sqlx_core::Error>> + Send + use<'c> {
            sqlx_core::query::query_with_result(statement.sql(), bind(args)).fetch_all(connection)
        }

        fn execute<'c>(
            connection: &'c mut $connection,
            statement: &$crate::sql::Statement,
            args: &[$crate::arg::Arg<'_>],
        ) -> impl Future<Output = Result<u64, sqlx_core::Error>> + Send + use<'c> {
            let query = sqlx_core::query::query_with_result(statement.sql(), bind(args));
            async move { Ok(query.execute(connection).await?.rows_affected()) }
        }

        async fn run_script(connection: &mut $connection, script: &str) -> Result<(), sqlx_core::Error> {
            let statement = $crate::sql::Statement::new(script.to_owned());
            connection.execute(sqlx_core::raw_sql::raw_sql(statement.sql())).await.map(drop)
        }
    };
}
pub(crate) use sends;

/// The batch in pieces that fit into one statement each.
pub(crate) fn chunks<D: Dialect>(messages: &[NewMessage]) -> Vec<&[NewMessage]> {
    let mut chunks = Vec::new();
    let mut left = messages;
    while !left.is_empty() {
        let most = &left[..D::insert_rows(left.len())];
        let sizes = most.iter().scan(0, |bytes, message| {
            *bytes += message.size();
            Some(*bytes)
        });
        let fit = sizes.take_while(|bytes| *bytes <= D::MAX_INSERT_BYTES).count().max(1);
        let (chunk, others) = left.split_at(D::insert_rows(fit));
        chunks.push(chunk);
        left = others;
    }
    chunks
}

#[cfg(all(test, feature = "mysql"))]
mod tests {
    use super::*;
    use crate::MySql;

    /// R17: headers fill a statement as payloads do.
    #[test]
    fn a_statement_is_full_of_headers_too() {
        let wide = || NewMessage::bytes("t", "").header("h", "x".repeat(60_000)).build().expect("a message");
        let messages: Vec<NewMessage> = (0..500).map(|_| wide()).collect();
        for chunk in chunks::<MySql>(&messages) {
            let bytes: usize = chunk.iter().map(NewMessage::size).sum();
            assert!(bytes <= MySql::MAX_INSERT_BYTES, "{bytes} bytes in {} messages", chunk.len());
        }
    }
}
