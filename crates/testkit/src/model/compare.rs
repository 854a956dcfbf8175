//! Whether two stores say the same about a message, each by its own clock.
//!
//! Row numbers may have gaps and are not compared; their order is. Nothing else may be left out without a reason.

use std::time::{Duration, SystemTime};

use posthaste_core::{EndedJoin, HistoryEntry, Join, Message, Record, Stats, Step};

/// How far two times may be apart: far more than a slow machine takes, far less than the model's unit.
const TOLERANCE: i128 = 300_000;

/// Milliseconds after now, or before.
fn offset(time: SystemTime, now: SystemTime) -> i128 {
    let millis = |duration: Duration| i128::try_from(duration.as_millis()).unwrap();
    time.duration_since(now).map_or_else(|error| -millis(error.duration()), millis)
}

/// The two clocks: the reference's and the store's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    pub(super) reference: SystemTime,
    pub(super) store: SystemTime,
}

impl Clocks {
    fn agree(self, reference: SystemTime, store: SystemTime) -> bool {
        (offset(reference, self.reference) - offset(store, self.store)).abs() < TOLERANCE
    }

    fn same_time(
        self,
        what: &str,
        reference: Option<SystemTime>,
        store: Option<SystemTime>,
    ) -> Result<(), String> {
        let same = match (reference, store) {
            (None, None) => true,
            (Some(reference), Some(store)) => self.agree(reference, store),
            _ => false,
        };
        if same {
            return Ok(());
        }
        let ms = |time: Option<SystemTime>, now| time.map(|time| offset(time, now));
        let (reference, store) = (ms(reference, self.reference), ms(store, self.store));
        Err(format!("{what} should be {reference:?} ms from now, but is {store:?}"))
    }

    /// Compares messages.
    pub(super) fn same_message(
        self,
        reference: &Message,
        store: &Message,
        parked: bool,
    ) -> Result<(), String> {
        let (r, s) = (reference, store);
        same("id", r.id, s.id)?;
        same("epoch", r.epoch, s.epoch)?;
        same("topic", &r.topic, &s.topic)?;
        same("key", &r.key, &s.key)?;
        same("order", r.order, s.order)?;
        same("payload", &r.payload, &s.payload)?;
        same("content type", &r.content_type, &s.content_type)?;
        same("headers", &r.headers, &s.headers)?;
        same("correlation id", &r.correlation_id, &s.correlation_id)?;
        same("aggregate type", &r.aggregate_type, &s.aggregate_type)?;
        same("aggregate id", &r.aggregate_id, &s.aggregate_id)?;
        same("tenant id", &r.tenant_id, &s.tenant_id)?;
        same("priority", r.priority, s.priority)?;
        same("attempts", r.attempts, s.attempts)?;
        same("lease losses", r.lease_losses, s.lease_losses)?;
        same("handled", &r.handled, &s.handled)?;
        self.same_time("failing since", r.failing_since, s.failing_since)?;
        self.same_time("occurred at", Some(r.occurred_at), Some(s.occurred_at))?;
        self.same_time("created at", Some(r.created_at), Some(s.created_at))?;
        self.same_time("expires at", r.expires_at, s.expires_at)?;
        // Parked messages have no due time: stores may put anything there.
        if parked { Ok(()) } else { self.same_time("due at", Some(r.due_at), Some(s.due_at)) }
    }

    /// Compares everything that is stored about a message.
    pub(super) fn same_record(self, reference: &Record, store: &Record) -> Result<(), String> {
        let (r, s) = (reference, store);
        same("state", r.state, s.state)?;
        same("parked", r.parked, s.parked)?;
        self.same_message(&r.message, &s.message, r.parked)?;
        self.same_time("leased until", r.leased_until, s.leased_until)?;
        same("worker", &r.worker, &s.worker)?;
        self.same_time("done at", r.done_at, s.done_at)?;
        same("done by", &r.done_by, &s.done_by)?;
        same("error class", r.error_class, s.error_class)?;
        same("last error", &r.last_error, &s.last_error)
    }

    /// Compares whole tables, in the order of enqueueing.
    pub(super) fn same_table(self, reference: &[Record], store: &[Record]) -> Result<(), String> {
        let ids = |records: &[Record]| records.iter().map(|record| record.message.id).collect::<Vec<_>>();
        same("the table", ids(reference), ids(store))?;
        for (r, s) in reference.iter().zip(store) {
            self.same_record(r, s).map_err(|difference| format!("of {}: {difference}", r.message.id))?;
        }
        Ok(())
    }

    /// Compares all joins, in the order of their ids.
    pub(super) fn same_joins(self, reference: &[Join], store: &[Join]) -> Result<(), String> {
        let ids = |joins: &[Join]| joins.iter().map(|join| join.id).collect::<Vec<_>>();
        same("the joins", ids(reference), ids(store))?;
        for (r, s) in reference.iter().zip(store) {
            self.same_join(r, s).map_err(|difference| format!("of join {}: {difference}", r.id))?;
        }
        Ok(())
    }

    /// Compares everything that is stored about a join.
    pub(super) fn same_join(self, reference: &Join, store: &Join) -> Result<(), String> {
        let (r, s) = (reference, store);
        same("grouping key", &r.grouping_key, &s.grouping_key)?;
        same("status", r.status, s.status)?;
        same("expected steps", r.expected_steps, s.expected_steps)?;
        same("attached steps", r.attached_steps, s.attached_steps)?;
        same("completed steps", r.completed_steps, s.completed_steps)?;
        same("failed steps", r.failed_steps, s.failed_steps)?;
        same("metadata", &r.metadata, &s.metadata)?;
        self.same_time("created at", Some(r.created_at), Some(s.created_at))?;
        self.same_time("updated at", Some(r.updated_at), Some(s.updated_at))?;
        self.same_time("ended at", r.ended_at, s.ended_at)?;
        self.same_time("expires at", r.expires_at, s.expires_at)
    }

    /// Compares the steps of a join, in the order of their messages' ids.
    pub(super) fn same_steps(self, reference: &[Step], store: &[Step]) -> Result<(), String> {
        let facts = |steps: &[Step]| steps.iter().map(|step| (step.message, step.status)).collect::<Vec<_>>();
        same("the steps", facts(reference), facts(store))?;
        for (r, s) in reference.iter().zip(store) {
            self.same_time("attached at", Some(r.created_at), Some(s.created_at))?;
            self.same_time("step updated at", Some(r.updated_at), Some(s.updated_at))?;
        }
        Ok(())
    }

    /// Compares what operators did.
    pub(super) fn same_history(
        self,
        reference: &[HistoryEntry],
        store: &[HistoryEntry],
    ) -> Result<(), String> {
        same("entries", reference.len(), store.len())?;
        for (r, s) in reference.iter().zip(store) {
            same("action", &r.action, &s.action)?;
            same("by", &r.by, &s.by)?;
            same("why", &r.why, &s.why)?;
            same("attempts then", r.attempts, s.attempts)?;
            same("lease losses then", r.lease_losses, s.lease_losses)?;
            same("last error then", &r.last_error, &s.last_error)?;
            self.same_time("at", Some(r.at), Some(s.at))?;
        }
        Ok(())
    }
}

/// Compares two values.
#[allow(clippy::needless_pass_by_value, reason = "callers hand over numbers as well as references")]
pub(super) fn same<T: PartialEq + std::fmt::Debug>(what: &str, reference: T, store: T) -> Result<(), String> {
    if reference == store {
        return Ok(());
    }
    Err(format!("{what} should be {reference:?}, but is {store:?}"))
}

/// Joins that ended, sorted: the contract leaves open in which order they are reported.
pub(super) fn sorted(mut joins: Vec<EndedJoin>) -> Vec<EndedJoin> {
    joins.sort_by_key(|join| join.id);
    joins
}

/// Compares statistics.
pub(super) fn same_stats(reference: &Stats, store: &Stats) -> Result<(), String> {
    let plain = |stats: &Stats| Stats { oldest_ready: None, oldest_failing: None, ..stats.clone() };
    same("the statistics", plain(reference), plain(store))?;
    let age = |stats: &Stats| stats.oldest_ready.map(|age| i128::try_from(age.as_millis()).unwrap());
    match (age(reference), age(store)) {
        (Some(r), Some(s)) if (r - s).abs() < TOLERANCE => Ok(()),
        (reference, store) => same("the age of the oldest", reference, store),
    }
}
