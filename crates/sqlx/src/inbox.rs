//! The inbox of a SQL store: the same for all dialects.
//!
//! Remembering runs in the consumer's own transaction, so nothing of it is retried here, and nothing of it may doom that
//! transaction. How each database lets two of them meet stands in `remember.sql`.

use std::time::Duration;

use posthaste_core::store::{MAX_PRUNE_BATCH, check_batch};
use posthaste_core::{
    Error, ErrorKind, InboxEntry, InboxRecord, InboxStore, MessageId, Once, Result, TransactionalStore,
};

use crate::arg::{Arg, micros, span_micros};
use crate::dialect::{Connection, Dialect};
use crate::row::Columns;
use crate::store::{MAX_PERIOD_MICROS, MAX_TIME_MICROS, SqlStore};

impl<D: Dialect> InboxStore for SqlStore<D> {
    async fn remember(
        &self,
        connection: &mut <Self as TransactionalStore>::Connection,
        entry: &InboxEntry<'_>,
    ) -> Result<Once> {
        // A publisher's time, whatever it is, must not stop a consumer.
        let occurred = entry.occurred_at.map(|time| micros(time).min(MAX_TIME_MICROS));
        let args = [
            Arg::text(entry.consumer),
            Arg::text(entry.source),
            Arg::Id(Some(entry.message_id.as_uuid())),
            Arg::text(entry.topic),
            Arg::Bytes(Some(entry.payload_hash)),
            Arg::Bytes(entry.payload),
            Arg::Int(occurred),
        ];
        let failed = |error| self.wrap("inbox", error);
        let statements = self.statements();
        if D::insert_unless_there(connection, &statements.remember, &args).await.map_err(failed)? {
            return Ok(Once::First);
        }
        self.compare(connection, entry).await
    }

    async fn remembered(
        &self,
        consumer: &str,
        source: &str,
        message_id: MessageId,
    ) -> Result<Option<InboxRecord>> {
        let args = [Arg::text(consumer), Arg::text(source), Arg::Id(Some(message_id.as_uuid()))];
        let rows = self.fetch("inbox", &self.statements().remembered, &args).await?;
        rows.first().map(record).transpose().map_err(|error| error.during("inbox"))
    }

    async fn forget(&self, consumer: &str, keep: Duration, limit: u32) -> Result<u64> {
        check_batch("forget limit", limit, MAX_PRUNE_BATCH).map_err(|error| error.during("forget"))?;
        let keep = span_micros(keep).clamp(1, MAX_PERIOD_MICROS);
        let args = [Arg::text(consumer), Arg::int(keep), Arg::int(limit)];
        let rows = self.fetch("forget", &self.statements().forget_inbox, &args).await?;
        rows.iter().map(|row| Ok(u64::try_from(row.int(0)?).unwrap_or_default())).sum()
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Whether the message that is there is this one.
    async fn compare(&self, connection: &mut Connection<D>, entry: &InboxEntry<'_>) -> Result<Once> {
        let args =
            [Arg::text(entry.consumer), Arg::text(entry.source), Arg::Id(Some(entry.message_id.as_uuid()))];
        let rows = D::fetch(connection, &self.statements().remembered_hash, &args).await;
        let rows = rows.map_err(|error| self.wrap("inbox", error))?;
        let Some(row) = rows.first() else {
            return Err(Error::new(ErrorKind::Conflict, "the message was forgotten at the same moment")
                .during("inbox")
                .with_context("message_id", entry.message_id)
                .with_remedy("begin again, in a new transaction"));
        };
        Ok(if row.bytes(0)? == entry.payload_hash { Once::Repeated } else { Once::Altered })
    }
}

fn record<R: Columns>(row: &R) -> Result<InboxRecord> {
    let hash = row.bytes(1)?.try_into().map_err(|_| {
        Error::new(ErrorKind::Codec, "the hash of a payload has not 32 bytes").with_context("column", 1)
    })?;
    Ok(InboxRecord::new(row.text(0)?, hash, row.opt_bytes(2)?, row.opt_time(3)?, row.time(4)?))
}
