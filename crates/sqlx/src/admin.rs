//! What operators need of a SQL store: the same for all dialects.

use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::store::admin::{MAX_PAGE, STATS_CAP};
use posthaste_core::store::check_batch;
use posthaste_core::{
    Change, Count, Cursor, Failure, FailureClass, Filter, Finding, HistoryEntry, Holder, Join, JoinFilter,
    JoinId, JoinListing, JoinStatus, Listing, LockWait, MessageId, Pause, Record, Result, State, Stats,
    StepListing, StepStatus, StoreAdmin, Topic, TopicCount, WorkItemId,
};
use sqlx_core::database::Database;

use crate::arg::Arg;
use crate::dialect::Dialect;
use crate::retry::Tries;
use crate::row::{self, Columns};
use crate::sql::Statement;
use crate::store::{SqlStore, retrying};

/// The values of a filter, in the order in which `list.sql` and `select.sql` take them after their first.
fn filter_args(filter: &Filter, limit: u32) -> Vec<Arg<'_>> {
    let [exact, prefixes] = Arg::topics(&filter.topics);
    vec![
        Arg::Small(filter.state.map(State::code)),
        exact,
        prefixes,
        Arg::Text(filter.key.as_deref()),
        Arg::Text(filter.tenant_id.as_deref()),
        Arg::Text(filter.correlation_id.as_deref()),
        Arg::Small(filter.class.map(FailureClass::code)),
        Arg::time(filter.created_from),
        Arg::time(filter.created_before),
        Arg::Ids((!filter.ids.is_empty()).then_some(&filter.ids)),
        Arg::int(limit),
    ]
}

#[derive(Clone, Copy, PartialEq)]
enum Action {
    Requeue,
    Bury,
}

impl<D: Dialect> SqlStore<D> {
    async fn change(&self, action: Action, change: &Change) -> Result<Vec<MessageId>> {
        let name = if action == Action::Requeue { "requeue" } else { "bury" };
        let statements = self.statements();
        let mut args = vec![Arg::Bool(action == Action::Requeue)];
        args.extend(filter_args(change.filter(), change.get_limit()));
        let mut link = self.acquire(name).await?;
        let mut tx = self.begin_own(name, &mut link, D::BEGIN).await?;
        let rows = self.answer(name, D::fetch(&mut tx, &statements.select, &args)).await?;
        let mut seqs = Vec::with_capacity(rows.len());
        let mut ids = Vec::with_capacity(rows.len());
        let mut keyed = Vec::new();
        for row in &rows {
            let seq = row.int(0)?;
            seqs.push(seq);
            ids.push(row.id(1)?);
            keyed.extend(row.opt_text(2)?.map(|key| (seq, key)));
        }
        if change.is_dry_run() || seqs.is_empty() {
            self.answer(name, tx.rollback()).await?;
            return Ok(ids);
        }
        let note = [Arg::Ints(&seqs), Arg::text(name), Arg::text(change.by()), Arg::text(change.why())];
        self.answer(name, D::execute(&mut tx, &statements.note, &note)).await?;
        match action {
            Action::Requeue => {
                self.answer(name, D::execute(&mut tx, &statements.requeue, &[Arg::Ints(&seqs)])).await?;
            }
            Action::Bury => {
                let reason = Failure::new(
                    FailureClass::Buried,
                    format!("buried by {}: {}", change.by(), change.why()),
                );
                let args = [Arg::Ints(&seqs), Arg::text(reason.text())];
                self.answer(name, D::execute(&mut tx, &statements.bury, &args)).await?;
            }
        }
        self.unpark(name, &mut tx, &keyed).await?;
        match action {
            Action::Requeue => {
                self.answer(name, D::fetch(&mut tx, &statements.uncount, &[Arg::Ids(Some(&ids))])).await?;
            }
            Action::Bury => {
                let failed_step = StepStatus::Failed.code();
                let ends: Vec<(MessageId, i16)> = ids.iter().map(|id| (*id, failed_step)).collect();
                self.answer(name, D::fetch(&mut tx, &statements.count, &[Arg::Ends(&ends)])).await?;
            }
        }
        self.commit_own(name, tx).await?;
        Ok(ids)
    }

    /// Runs an operator's query, planned for its own arguments.
    async fn read(
        &self,
        operation: &'static str,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> Result<Vec<<D::Db as Database>::Row>> {
        let mut link = self.acquire(operation).await?;
        let mut tx = self.begin_own(operation, &mut link, D::BEGIN_READ).await?;
        let rows = self.answer(operation, D::fetch(&mut tx, statement, args)).await?;
        self.answer(operation, tx.rollback()).await?;
        Ok(rows)
    }

    async fn records(&self, filter: &Filter, after: i64, limit: u32) -> Result<Vec<Record>> {
        let mut args = vec![Arg::int(after)];
        args.extend(filter_args(filter, limit));
        let rows = self.read("list", &self.statements().list, &args).await?;
        rows.iter().map(row::record).collect::<Result<_>>().map_err(|error| error.during("list"))
    }
}

#[async_trait]
impl<D: Dialect> StoreAdmin for SqlStore<D> {
    async fn stats(&self) -> Result<Stats> {
        let cap = [Arg::int(STATS_CAP + 1)];
        let count = |value: i64| Count::capped(u64::try_from(value).unwrap_or_default());
        let mut stats = Stats::default();
        for row in &self.fetch("stats", &self.statements().stats, &cap).await? {
            stats.ready = count(row.int(0)?);
            stats.scheduled = count(row.int(1)?);
            stats.parked = count(row.int(2)?);
            stats.leased = count(row.int(3)?);
            stats.done = count(row.int(4)?);
            stats.dead = count(row.int(5)?);
            let span = |micros| Duration::from_micros(u64::try_from(micros).unwrap_or_default());
            stats.oldest_ready = row.opt_int(6)?.map(span);
            stats.failing = count(row.int(7)?);
            stats.oldest_failing = row.opt_int(8)?.map(span);
        }
        // A topic's count is exact if all messages of its state were counted.
        let all_ready = [stats.ready, stats.scheduled, stats.parked].iter().all(|count| count.exact);
        for row in &self.fetch("stats", &self.statements().topics, &cap).await? {
            let state = State::from_code(row.small(1)?)?;
            let exact = match state {
                State::Ready => all_ready,
                State::Leased => stats.leased.exact,
                State::Done => stats.done.exact,
                State::Dead => stats.dead.exact,
            };
            let count = Count { value: count(row.int(2)?).value, exact };
            stats.topics.push(TopicCount { topic: row.text(0)?, state, count });
        }
        Ok(stats)
    }

    async fn list(&self, filter: &Filter, after: Option<Cursor>, limit: u32) -> Result<Listing> {
        check_batch("page", limit, MAX_PAGE).map_err(|error| error.during("list"))?;
        filter.check().map_err(|error| error.during("list"))?;
        let after = after.map_or(i64::MIN, |cursor| cursor.item().get());
        let mut records = self.records(filter, after, limit + 1).await?;
        let more = records.len() > limit as usize;
        records.truncate(limit as usize);
        let last: Option<WorkItemId> = records.last().filter(|_| more).map(|record| record.message.item);
        Ok(Listing { next: last.map(Cursor::after), records })
    }

    async fn show(&self, id: MessageId) -> Result<Option<(Record, Vec<HistoryEntry>)>> {
        let filter = Filter { ids: vec![id], ..Filter::default() };
        let Some(record) = self.records(&filter, i64::MIN, 1).await?.pop() else { return Ok(None) };
        let seq = [Arg::int(record.message.item.get())];
        let rows = self.fetch("show", &self.statements().history, &seq).await?;
        let history = rows.iter().map(row::history).collect::<Result<_>>()?;
        Ok(Some((record, history)))
    }

    async fn requeue(&self, change: &Change) -> Result<Vec<MessageId>> {
        change.check().map_err(|error| error.during("requeue"))?;
        retrying!(self.change(Action::Requeue, change))
    }

    async fn bury(&self, change: &Change) -> Result<Vec<MessageId>> {
        change.check().map_err(|error| error.during("bury"))?;
        retrying!(self.change(Action::Bury, change))
    }
    async fn join(&self, id: JoinId) -> Result<Option<Join>> {
        let rows = self.fetch("join", &self.statements().join, &[Arg::Id(Some(id.as_uuid()))]).await?;
        rows.first().map(row::join).transpose().map_err(|error| error.during("join"))
    }

    async fn joins(&self, filter: &JoinFilter, after: Option<JoinId>, limit: u32) -> Result<JoinListing> {
        check_batch("page", limit, MAX_PAGE).map_err(|error| error.during("joins"))?;
        filter.check().map_err(|error| error.during("joins"))?;
        let args = [
            Arg::Id(after.as_ref().map(JoinId::as_uuid)),
            Arg::Text(filter.grouping_key.as_deref()),
            Arg::Small(filter.status.map(JoinStatus::code)),
            Arg::Id(filter.message.as_ref().map(MessageId::as_uuid)),
            Arg::int(limit + 1),
        ];
        let rows = self.read("joins", &self.statements().joins, &args).await?;
        let mut joins: Vec<Join> = rows.iter().map(row::join).collect::<Result<_>>()?;
        let more = joins.len() > limit as usize;
        joins.truncate(limit as usize);
        Ok(JoinListing { next: joins.last().filter(|_| more).map(|last| last.id), joins })
    }

    async fn steps(&self, join: JoinId, after: Option<MessageId>, limit: u32) -> Result<StepListing> {
        check_batch("page", limit, MAX_PAGE).map_err(|error| error.during("steps"))?;
        let args = [
            Arg::Id(Some(join.as_uuid())),
            Arg::Id(after.as_ref().map(MessageId::as_uuid)),
            Arg::int(limit + 1),
        ];
        let rows = self.read("steps", &self.statements().steps, &args).await?;
        let mut steps: Vec<_> = rows.iter().map(row::step).collect::<Result<_>>()?;
        let more = steps.len() > limit as usize;
        steps.truncate(limit as usize);
        Ok(StepListing { next: steps.last().filter(|_| more).map(|last| last.message), steps })
    }

    async fn pause(&self, topics: &str, by: &str, why: &str) -> Result<bool> {
        Pause::check(topics, by, why).map_err(|error| error.during("pause"))?;
        let args = [Arg::text(topics), Arg::text(by), Arg::text(why)];
        Ok(!self.fetch("pause", &self.statements().pause, &args).await?.is_empty())
    }

    async fn resume(&self, topics: &str) -> Result<bool> {
        // What no database can compare with a name is no name that is paused.
        if topics.len() > Topic::MAX_BYTES || topics.contains('\0') {
            return Ok(false);
        }
        Ok(!self.fetch("resume", &self.statements().resume, &[Arg::text(topics)]).await?.is_empty())
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        let rows = self.fetch("pauses", &self.statements().pauses, &[]).await?;
        rows.iter().map(row::pause).collect()
    }

    async fn holder(&self, id: MessageId) -> Result<Option<Holder>> {
        let found = D::holder(&self.connect_options(), self.get_naming(), id).await;
        found.map_err(|error| self.wrap("holder", error))
    }

    async fn lock_waits(&self) -> Result<Vec<LockWait>> {
        let waits = D::lock_waits(&self.connect_options(), self.get_naming()).await;
        waits.map_err(|error| self.wrap("lock waits", error))
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.examination().await
    }
}
