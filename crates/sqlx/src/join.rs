//! Joins in a SQL store: the same for all dialects.
//!
//! Counting is the databases' own business, in the statements that end messages. Nothing here is retried that runs in a
//! transaction of the user's.

use std::time::Duration;

use posthaste_core::{
    Attached, EndedJoin, Error, ErrorKind, JoinId, JoinStatus, JoinStore, Look, MessageId, NewJoin,
    NewMessage, Reported, Result, StepEnd, join_is_over, not_a_step, too_many_steps, unknown_join,
    unknown_step,
};

use crate::arg::{Arg, moment, span_micros};
use crate::dialect::{Connection, Dialect};
use crate::row::{self, Columns};
use crate::sql::Statement;
use crate::store::SqlStore;

/// Why a call about a join was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    UnknownJoin,
    UnknownMessage(MessageId),
    Over(JoinStatus),
    TooMany { expected: u32, attached: u32 },
}

/// The result of a statement about one join, in the form that `routines/joins.sql` describes.
#[derive(Clone, Copy, Debug)]
struct Answer {
    refusal: Option<Refusal>,
    moved: u32,
    ended: bool,
    /// None if there is no such join.
    join: Option<EndedJoin>,
    expires_in: Option<Duration>,
}

impl Answer {
    fn read<R: Columns>(id: JoinId, row: &R) -> Result<Self> {
        let status = row.opt_small(4)?.map(JoinStatus::from_code).transpose()?;
        let join = match status {
            None => None,
            Some(status) => Some(EndedJoin {
                id,
                status,
                expected_steps: row.count(5)?,
                completed_steps: row.count(7)?,
                failed_steps: row.count(8)?,
            }),
        };
        let moved = row.count(2)?;
        let refusal = match (row.small(0)?, join) {
            (1, _) | (_, None) => Some(Refusal::UnknownJoin),
            (2, _) => Some(Refusal::UnknownMessage(row.id(1)?)),
            (3, Some(join)) => Some(Refusal::Over(join.status)),
            (4, Some(join)) => Some(Refusal::TooMany { expected: join.expected_steps, attached: moved }),
            _ => None,
        };
        let expires_in =
            row.opt_int(9)?.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or_default()));
        Ok(Self { refusal, moved, ended: row.bool(3)?, join, expires_in })
    }

    fn ended(&self) -> Option<EndedJoin> {
        self.join.filter(|_| self.ended)
    }

    fn look(&self) -> Look {
        match self.join {
            None => Look::Unknown,
            Some(join) if join.status == JoinStatus::Pending => Look::Pending { expires_in: self.expires_in },
            Some(join) => Look::Over(join),
        }
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Asks a statement about one join, through the user's connection.
    async fn ask(
        &self,
        operation: &'static str,
        connection: &mut Connection<D>,
        statement: &Statement,
        join: JoinId,
        args: &[Arg<'_>],
    ) -> Result<Answer> {
        let rows =
            D::fetch(connection, statement, args).await.map_err(|error| self.wrap(operation, error))?;
        let row = rows.first().ok_or_else(|| Error::new(ErrorKind::Database, "the database gave no answer"));
        Answer::read(join, row?).map_err(|error| error.during(operation))
    }

    pub(crate) async fn look_at(&self, join: JoinId) -> Result<Look> {
        let look = self.look_once(join).await?;
        if look != (Look::Pending { expires_in: Some(Duration::ZERO) }) {
            return Ok(look);
        }
        let rows =
            self.sweep("look", &self.statements().expire_join, &[Arg::Id(Some(join.as_uuid()))]).await?;
        match row::ended_joins(&rows)?.1.first() {
            Some(ended) => Ok(Look::Expired(*ended)),
            None => self.look_once(join).await,
        }
    }

    async fn look_once(&self, join: JoinId) -> Result<Look> {
        let rows = self.fetch("look", &self.statements().look, &[Arg::Id(Some(join.as_uuid()))]).await?;
        let answer = rows.first().map(|row| Answer::read(join, row)).transpose()?;
        Ok(answer.map_or(Look::Unknown, |answer| answer.look()))
    }

    pub(crate) async fn continue_once(
        &self,
        join: JoinId,
        wait: MessageId,
        continuation: Option<&NewMessage>,
    ) -> Result<bool> {
        let mut link = self.acquire("continue").await?;
        let mut tx = self.begin_own("continue", &mut link, D::BEGIN).await?;
        let args = [Arg::Id(Some(join.as_uuid())), Arg::Id(Some(wait.as_uuid()))];
        let first = D::fetch(&mut tx, &self.statements().continue_join, &args);
        if self.answer("continue", first).await?.is_empty() {
            self.answer("continue", tx.rollback()).await?;
            return Ok(false);
        }
        if let Some(continuation) = continuation {
            let batch = std::slice::from_ref(continuation);
            self.insert_own("continue", &mut tx, batch).await?;
        }
        self.commit_own("continue", tx).await?;
        Ok(true)
    }

    pub(crate) async fn prune_joins_once(&self, keep: Duration, limit: u32) -> Result<u64> {
        let keep = span_micros(keep).min(crate::store::MAX_PERIOD_MICROS);
        let mut link = self.acquire("prune joins").await?;
        let mut tx = self.begin_own("prune joins", &mut link, D::BEGIN).await?;
        let args = [Arg::int(keep), Arg::int(limit)];
        let over = D::fetch(&mut tx, &self.statements().over_joins, &args);
        let rows = self.answer("prune joins", over).await?;
        let joins: Vec<MessageId> = rows.iter().map(|row| row.id(0)).collect::<Result<_>>()?;
        if !joins.is_empty() {
            let args = [Arg::Ids(Some(&joins))];
            let prune = D::execute(&mut tx, &self.statements().prune_joins, &args);
            self.answer("prune joins", prune).await?;
        }
        self.commit_own("prune joins", tx).await?;
        Ok(joins.len() as u64)
    }
}

impl<D: Dialect> JoinStore for SqlStore<D> {
    async fn has_join(&self, connection: &mut Connection<D>, join: JoinId) -> Result<bool> {
        let args = [Arg::Id(Some(join.as_uuid()))];
        let answer = self.ask("start a join", connection, &self.statements().look, join, &args).await?;
        Ok(answer.join.is_some())
    }

    async fn start_join(&self, connection: &mut Connection<D>, join: &NewJoin) -> Result<()> {
        let (id, (from_now, expires)) = (join.id(), moment(join.expires()));
        let args = [
            Arg::Id(Some(id.as_uuid())),
            Arg::Text(join.grouping_key()),
            Arg::int(join.expected_steps()),
            Arg::Text(join.metadata()),
            Arg::Bool(from_now),
            Arg::Int(expires),
        ];
        let started = D::execute(connection, &self.statements().start_join, &args).await;
        started.map(drop).map_err(|error| self.wrap("start a join", error))
    }

    async fn attach(
        &self,
        connection: &mut Connection<D>,
        join: JoinId,
        messages: &[MessageId],
    ) -> Result<Attached> {
        let args = [Arg::Id(Some(join.as_uuid())), Arg::Ids(Some(messages))];
        let answer = self.ask("attach", connection, &self.statements().attach, join, &args).await?;
        match answer.refusal {
            None => Ok(Attached { new: answer.moved, ended: answer.ended() }),
            Some(Refusal::UnknownJoin) => Err(unknown_join(join)),
            Some(Refusal::UnknownMessage(message)) => Err(unknown_step(join, message)),
            Some(Refusal::Over(status)) => Err(join_is_over(join, status)),
            Some(Refusal::TooMany { expected, attached }) => Err(too_many_steps(join, expected, attached)),
        }
    }

    async fn report(
        &self,
        connection: &mut Connection<D>,
        join: JoinId,
        message: MessageId,
        end: StepEnd,
    ) -> Result<Reported> {
        let args = [
            Arg::Id(Some(join.as_uuid())),
            Arg::Id(Some(message.as_uuid())),
            Arg::Small(Some(end.status().code())),
        ];
        let answer = self.ask("report a step", connection, &self.statements().report, join, &args).await?;
        match answer.refusal {
            None => Ok(Reported { counted: answer.moved > 0, ended: answer.ended() }),
            Some(Refusal::UnknownJoin) => Err(unknown_join(join)),
            Some(_) => Err(not_a_step(join, message)),
        }
    }

    async fn cancel_join(&self, connection: &mut Connection<D>, join: JoinId) -> Result<Option<EndedJoin>> {
        let args = [Arg::Id(Some(join.as_uuid()))];
        let answer =
            self.ask("cancel a join", connection, &self.statements().cancel_join, join, &args).await?;
        if answer.refusal.is_some() {
            return Err(unknown_join(join));
        }
        Ok(answer.ended())
    }

    async fn wait_for_join(
        &self,
        connection: &mut Connection<D>,
        join: JoinId,
        wait: MessageId,
    ) -> Result<Look> {
        let args = [Arg::Id(Some(join.as_uuid())), Arg::Id(Some(wait.as_uuid()))];
        let answer = self.ask("wait for a join", connection, &self.statements().wait, join, &args).await?;
        if answer.refusal.is_some() {
            return Err(unknown_join(join));
        }
        Ok(answer.look())
    }
}
