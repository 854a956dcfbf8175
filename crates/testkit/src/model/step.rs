//! One step on both stores, and the comparison of what they answered.
//!
//! The reference's clock ticks before each step and the store's clock is waited for, so that what happened earlier is
//! earlier on both.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use posthaste_core::{
    Birth, Change, ClaimRequest, Clock, Enqueued, Lease, ManualClock, MemoryStore, MessageId, NewMessage,
    Outcome, Result, Retention, Settlement, Store, StoreAdmin, Topics, TransactionalStore, WorkerId,
};

use super::compare::{Clocks, same, same_stats};
use super::operation::{Choice, Draft, Handled, How, Operation, Pick, UNIT, Verdict};
use crate::Fixture;
use crate::store_suite::records;

/// More than any sequence has messages: limits that leave the choice to the store must not decide.
const ALL: u32 = 1_000;

/// A store and the reference, and what the sequence has met so far.
pub(super) struct Pair<'a, F: Fixture> {
    fixture: &'a F,
    reference: MemoryStore,
    clock: Arc<ManualClock>,
    clocks: Clocks,
    ids: Vec<MessageId>,
    /// Every lease there ever was, as the reference and as the store number it.
    leases: Vec<(Lease, Lease)>,
    /// What the jobs of this sequence are called, because a store may remember those of others.
    jobs: MessageId,
}

type Checked = Result<(), String>;

impl<'a, F: Fixture> Pair<'a, F> {
    pub(super) fn new(fixture: &'a F, reference: MemoryStore, clock: Arc<ManualClock>) -> Self {
        let clocks = Clocks { reference: clock.now(), store: SystemTime::now() };
        Self {
            fixture,
            reference,
            clock,
            clocks,
            ids: Vec::new(),
            leases: Vec::new(),
            jobs: MessageId::new(),
        }
    }

    /// Does one operation on both, and compares the answers.
    pub(super) async fn step(&mut self, operation: &Operation) -> Checked {
        // A millisecond is what the coarsest database can tell apart.
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.clock.advance(Duration::from_millis(1));
        self.clocks = Clocks { reference: self.clock.now(), store: self.fixture.now().await };
        let (reference, store) = (&self.reference, self.fixture.store());
        match operation {
            Operation::Enqueue { batch, how } => self.enqueue(batch, *how).await,
            Operation::Claim { worker, limit, lease, topics } => {
                self.claim(*worker, *limit, *lease, topics).await
            }
            Operation::Settle { picks, delete } => self.settle(picks, *delete).await,
            Operation::Renew { picks, lease } => self.renew(picks, *lease).await,
            Operation::Reap => answers("reaped", reference.reap(ALL).await, store.reap(ALL).await),
            Operation::Expire => answers("expired", reference.expire(ALL).await, store.expire(ALL).await),
            Operation::Park => answers("parked", reference.park(ALL).await, store.park(ALL).await),
            Operation::Prune { done, dead, archive } => {
                let mut retention = Retention::done(UNIT * *done);
                retention = dead.map_or(retention, |dead| retention.dead(UNIT * dead));
                retention = if *archive { retention.archive() } else { retention };
                let (r, s) = (reference.prune(&retention, ALL).await, store.prune(&retention, ALL).await);
                answers("pruned", r, s)
            }
            Operation::Requeue(choice) => {
                let change = self.change(choice);
                answers("requeued", reference.requeue(&change).await, store.requeue(&change).await)
            }
            Operation::Bury(choice) => {
                let change = self.change(choice);
                answers("buried", reference.bury(&change).await, store.bury(&change).await)
            }
            Operation::Turn { job, turn } => {
                let job = format!("{} {job}", self.jobs);
                let (ours, theirs) = (turn.turn(self.clocks.reference), turn.turn(self.clocks.store));
                answers("turn", reference.turn(&job, ours).await, store.turn(&job, theirs).await)
            }
            Operation::Advance(units) => {
                self.clock.advance(UNIT * *units);
                self.fixture.advance(UNIT * *units).await;
                self.clocks = Clocks { reference: self.clock.now(), store: self.fixture.now().await };
                Ok(())
            }
        }
    }

    fn change(&self, choice: &Choice) -> Change {
        let change = Change::new(choice.filter(&self.ids), "model", "because").unwrap().limit(choice.limit);
        if choice.dry_run { change.dry_run() } else { change }
    }

    async fn enqueue(&mut self, batch: &[Draft], how: How) -> Checked {
        let new: Vec<_> = batch.iter().map(|_| MessageId::new()).collect();
        let messages = |now| -> Vec<NewMessage> {
            batch.iter().zip(&new).map(|(draft, id)| draft.message(*id, &self.ids, now)).collect()
        };
        let (ours, theirs) = (messages(self.clocks.reference), messages(self.clocks.store));
        let reference = self.enqueue_reference(&ours, how).await;
        let store = self.enqueue_store(&theirs, how).await;
        let kind = |answer: &Enqueued| match answer {
            Enqueued::New { id, lease } => (*id, Some(lease.map(|lease| lease.epoch))),
            Enqueued::Duplicate { id } => (*id, None),
        };
        let kinds = |answers: &[Enqueued]| answers.iter().map(kind).collect::<Vec<_>>();
        same("enqueued", kinds(&reference), kinds(&store))?;
        for pair in reference.iter().zip(&store) {
            if let (Enqueued::New { lease: Some(r), .. }, Enqueued::New { lease: Some(s), .. }) = pair {
                self.leases.push((*r, *s));
            }
        }
        self.ids.extend(new);
        Ok(())
    }

    async fn enqueue_reference(&self, messages: &[NewMessage], how: How) -> Vec<Enqueued> {
        let store = &self.reference;
        let mut tx = store.begin();
        let worker = worker(9);
        let birth = birth(how, &worker);
        let (first, rest) = messages.split_at(cut(how, messages));
        let mut enqueued = store.insert(&mut tx, first, birth).await.unwrap();
        let savepoint = tx.savepoint();
        enqueued.extend(store.insert(&mut tx, rest, birth).await.unwrap());
        match how {
            How::RolledBack => drop(tx),
            How::SavepointAt(_) => {
                tx.rollback_to(&savepoint);
                tx.commit();
            }
            How::Alone | How::Committed | How::Leased => tx.commit(),
        }
        enqueued
    }

    async fn enqueue_store(&self, messages: &[NewMessage], how: How) -> Vec<Enqueued> {
        let (fixture, store) = (self.fixture, self.fixture.store());
        if let How::Alone = how {
            return store.enqueue(messages).await.unwrap();
        }
        let worker = worker(9);
        let birth = birth(how, &worker);
        let mut tx = fixture.begin().await;
        let (first, rest) = messages.split_at(cut(how, messages));
        let mut enqueued = store.insert(fixture.connection(&mut tx), first, birth).await.unwrap();
        fixture.savepoint(fixture.connection(&mut tx)).await;
        enqueued.extend(store.insert(fixture.connection(&mut tx), rest, birth).await.unwrap());
        match how {
            How::RolledBack => fixture.rollback(tx).await,
            How::SavepointAt(_) => {
                fixture.rollback_to_savepoint(fixture.connection(&mut tx)).await;
                fixture.commit(tx).await;
            }
            How::Alone | How::Committed | How::Leased => fixture.commit(tx).await,
        }
        enqueued
    }

    async fn claim(&mut self, name: u8, limit: u32, lease: u32, topics: &[&str]) -> Checked {
        let topics = Topics::of(topics).unwrap();
        let request = ClaimRequest::new(worker(name)).limit(limit).lease(UNIT * lease).topics(topics);
        let reference = self.reference.claim(&request).await.unwrap();
        let store = self.fixture.store().claim(&request).await.unwrap();
        let ids = |claimed: &[posthaste_core::Message]| {
            claimed.iter().map(|message| message.id).collect::<Vec<_>>()
        };
        same("claimed", ids(&reference), ids(&store))?;
        for (r, s) in reference.iter().zip(&store) {
            self.clocks
                .same_message(r, s, false)
                .map_err(|difference| format!("claimed {}: {difference}", r.id))?;
            self.leases.push((r.lease(), s.lease()));
        }
        Ok(())
    }

    /// The leases that were picked, as each store numbers them.
    fn picked(&self, pick: Pick) -> Option<(Lease, Lease)> {
        let back = pick.index.checked_rem(self.leases.len())?;
        let (mut r, mut s) = self.leases[self.leases.len() - 1 - back];
        r.epoch += pick.later;
        s.epoch += pick.later;
        Some((r, s))
    }

    async fn settle(&mut self, picks: &[(Pick, Verdict, Handled)], delete: bool) -> Checked {
        let mut batch: Vec<_> = picks
            .iter()
            .filter_map(|(pick, verdict, handled)| {
                let handled = handled.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
                Some((self.picked(*pick)?, verdict.outcome(), handled))
            })
            .collect();
        if delete {
            // A second epoch of a row that the same batch deletes is lost or gone: either is true.
            let mut rows = HashSet::new();
            batch.retain(|((reference, _), ..)| rows.insert(reference.item));
        }
        let settlements = |reference: bool| -> Vec<Settlement> {
            let one =
                |((r, s), outcome, handled): &((Lease, Lease), Outcome, Option<Vec<String>>)| Settlement {
                    lease: if reference { *r } else { *s },
                    outcome: outcome.clone(),
                    handled: handled.clone(),
                };
            batch.iter().map(one).collect()
        };
        let (ours, theirs) = (settlements(true), settlements(false));
        if delete {
            let reference = self.reference.clone().keep_done(false);
            let store = self.fixture.store_that_deletes();
            return answers("settled", reference.settle(&ours).await, store.settle(&theirs).await);
        }
        let store = self.fixture.store();
        answers("settled", self.reference.settle(&ours).await, store.settle(&theirs).await)
    }

    async fn renew(&mut self, picks: &[Pick], lease: u32) -> Checked {
        let leases: Vec<_> = picks.iter().filter_map(|pick| self.picked(*pick)).collect();
        let (ours, theirs): (Vec<_>, Vec<_>) = leases.into_iter().unzip();
        let reference = self.reference.renew(&ours, UNIT * lease).await;
        answers("renewed", reference, self.fixture.store().renew(&theirs, UNIT * lease).await)
    }

    /// Compares everything that can be seen.
    pub(super) async fn compare(&self) -> Checked {
        let (reference, store) = (&self.reference, self.fixture.store());
        self.clocks.same_table(&records(reference).await, &records(store).await)?;
        same_stats(&reference.stats().await.unwrap(), &store.stats().await.unwrap())
    }

    /// Compares what operators did to each message, and what was archived. The archive may hold what earlier sequences
    /// left there.
    pub(super) async fn compare_histories(&self) -> Checked {
        for id in &self.ids {
            let reference = self.reference.show(*id).await.unwrap().map(|(_, history)| history);
            let store = self.fixture.store().show(*id).await.unwrap().map(|(_, history)| history);
            let (reference, store) = (reference.unwrap_or_default(), store.unwrap_or_default());
            let of = |difference| format!("history of {id}: {difference}");
            self.clocks.same_history(&reference, &store).map_err(of)?;
        }
        let known: HashSet<_> = self.ids.iter().collect();
        let mut ours: Vec<_> = self.reference.archived().iter().map(|record| record.message.id).collect();
        let mut theirs = self.fixture.archived().await;
        theirs.retain(|id| known.contains(id));
        ours.sort_unstable();
        theirs.sort_unstable();
        same("the archive", ours, theirs)
    }
}

fn worker(name: u8) -> WorkerId {
    WorkerId::new(format!("worker-{name}")).unwrap()
}

fn birth(how: How, worker: &WorkerId) -> Birth<'_> {
    match how {
        How::Leased => Birth::Leased { worker, lease: UNIT * 2 },
        _ => Birth::Ready,
    }
}

/// Where the savepoint is.
fn cut(how: How, messages: &[NewMessage]) -> usize {
    match how {
        How::SavepointAt(at) => at.min(messages.len()),
        _ => messages.len() / 2,
    }
}

fn answers<T: PartialEq + std::fmt::Debug>(what: &str, reference: Result<T>, store: Result<T>) -> Checked {
    match (reference, store) {
        (Ok(reference), Ok(store)) => same(what, reference, store),
        (reference, store) => Err(format!("{what} should be {reference:?}, but is {store:?}")),
    }
}
