//! Settlements and renewals that pass messages which other sessions have locked, so that one session does not hold up all outcomes.
//!
//! See ADR 0036. Nothing here decides what an outcome does to a message: the statements do.

use std::time::Duration;

use posthaste_core::{ErrorKind, Lease, Result, Settled, SettledBatch, Settlement};

use super::SqlStore;
use crate::dialect::{Dialect, Passing, codes};
use crate::link::Link;
use crate::row::{self, Columns as _};

impl<D: Dialect> SqlStore<D> {
    pub(super) async fn settle_once(&self, settlements: &[&Settlement]) -> Result<SettledBatch> {
        let mut link = self.acquire("settle").await?;
        let mut passes_locked = self.expects_locked();
        let answer = loop {
            let answer = self.try_to_settle(&mut link, settlements, passes_locked).await;
            // Another session has locked one of them. The others need not wait for it.
            if passes_locked || !is_busy::<D>(&answer) {
                break answer;
            }
            passes_locked = true;
        };
        if answer.as_ref().is_ok_and(|batch| batch.settled.contains(&Settled::Locked)) {
            self.0.lock_met.note();
        }
        answer
    }

    async fn try_to_settle(
        &self,
        link: &mut Link<D>,
        settlements: &[&Settlement],
        passes_locked: bool,
    ) -> Result<SettledBatch> {
        let leases = settlements.iter().map(|settlement| settlement.lease);
        let is_free = self.unlocked("settle", link, leases, passes_locked).await?;
        let free: Vec<&Settlement> = chosen(settlements, &is_free);
        if free.is_empty() {
            return Ok(SettledBatch { settled: with_locked(&is_free, Vec::new()), joins: Vec::new() });
        }
        let settle = D::settle(link, &self.0.statements, &free, self.0.keep_done, passes_locked);
        let rows = self.answer("settle", settle).await?;
        let (codes, joins) = row::ended_joins(&rows)?;
        let mut settled =
            codes.into_iter().map(|row| Settled::from_code(row.small(0)?)).collect::<Result<Vec<_>>>()?;
        if let [all] = settled[..] {
            settled.resize(free.len(), all);
        }
        Ok(SettledBatch { settled: with_locked(&is_free, settled), joins })
    }

    /// Whether a locked message was met a short time ago: then settlements and renewals do not wait at all.
    fn expects_locked(&self) -> bool {
        D::PASSING != Passing::Never && self.0.lock_met.is_recent()
    }

    /// Which of these messages can be settled or renewed without waiting; all, where the statement itself finds that out.
    async fn unlocked(
        &self,
        operation: &'static str,
        link: &mut Link<D>,
        leases: impl Iterator<Item = Lease>,
        passes_locked: bool,
    ) -> Result<Vec<bool>> {
        let items: Vec<i64> = leases.map(|lease| lease.item.get()).collect();
        if !passes_locked || D::PASSING != Passing::ByLooking {
            return Ok(vec![true; items.len()]);
        }
        let unlocked = self.answer(operation, D::unlocked(link, &self.0.naming, &items)).await?;
        Ok(items.iter().map(|item| unlocked.contains(item)).collect())
    }

    pub(super) async fn renew_once(&self, leases: &[&Lease], lease: Duration) -> Result<Vec<Settled>> {
        let mut link = self.acquire("renew").await?;
        let mut passes_locked = D::PASSING == Passing::ByLooking && self.expects_locked();
        let answer = loop {
            let answer = self.try_to_renew(&mut link, leases, lease, passes_locked).await;
            if passes_locked || D::PASSING != Passing::ByLooking || !is_busy::<D>(&answer) {
                break answer;
            }
            passes_locked = true;
        };
        if answer.as_ref().is_ok_and(|answers| answers.contains(&Settled::Locked)) {
            self.0.lock_met.note();
        }
        answer
    }

    async fn try_to_renew(
        &self,
        link: &mut Link<D>,
        leases: &[&Lease],
        lease: Duration,
        passes_locked: bool,
    ) -> Result<Vec<Settled>> {
        let is_free = self.unlocked("renew", link, leases.iter().map(|lease| **lease), passes_locked).await?;
        let free: Vec<&Lease> = chosen(leases, &is_free);
        if free.is_empty() {
            return Ok(with_locked(&is_free, Vec::new()));
        }
        let renew = D::renew(link, &self.0.statements.renew, &free, lease);
        Ok(with_locked(&is_free, codes(&self.answer("renew", renew).await?)?))
    }
}

/// Whether a call failed because a message, or all of them, are locked by another session and can be passed.
fn is_busy<D: Dialect>(answer: &Result<impl Sized>) -> bool {
    D::PASSING != Passing::Never && answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy)
}

fn chosen<'a, T>(all: &[&'a T], is_chosen: &[bool]) -> Vec<&'a T> {
    all.iter().zip(is_chosen).filter(|(_, is_chosen)| **is_chosen).map(|(one, _)| *one).collect()
}

/// The answers for all, from those for the ones that no other session has locked.
fn with_locked(is_free: &[bool], answers: Vec<Settled>) -> Vec<Settled> {
    let mut answers = answers.into_iter();
    is_free.iter().map_while(|free| if *free { answers.next() } else { Some(Settled::Locked) }).collect()
}
