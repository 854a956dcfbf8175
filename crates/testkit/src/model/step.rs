//! One step on both stores, and the comparison of their results.
//!
//! The reference's clock ticks before each step and the store's clock is waited for, so that what happened earlier is
//! earlier on both.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use posthaste_core::{
    Birth, Change, ClaimRequest, Clock, Enqueued, Expired, Join, JoinFilter, JoinId, JoinStatus, Lease,
    ManualClock, MemoryStore, Message, MessageId, NewMessage, Outcome, Reaped, Result, Retention,
    SettledBatch, Settlement, Step, Store, StoreAdmin, Topics, TransactionalStore, WorkerId,
};

use super::compare::{Clocks, same, same_stats, sorted};
use super::joins::{Answer, End, Move, Moves, seen};
use super::operation::{Choice, Draft, Handled, How, Operation, Pick, UNIT, Verdict};
use crate::Fixture;
use crate::store_suite::records;

/// More than any sequence has messages: limits that leave the choice to the store must not decide.
const ALL: u32 = 1_000;

/// A store and the reference, and the state of the sequence so far.
pub(super) struct Pair<'a, F: Fixture> {
    fixture: &'a F,
    reference: MemoryStore,
    clock: Arc<ManualClock>,
    clocks: Clocks,
    ids: Vec<MessageId>,
    /// Every lease there ever was, as the reference and as the store number it.
    leases: Vec<(Lease, Lease)>,
    /// The names of this sequence's jobs, because a store may remember other sequences' jobs.
    jobs: MessageId,
    /// Less than any join of this sequence.
    first_join: JoinId,
    /// Every join that was ever started, and every message that was ever to wait for one.
    joins: Vec<JoinId>,
    waits: Vec<(JoinId, MessageId)>,
    /// The reference's joins and steps when they were last compared.
    compared: Vec<(Join, Vec<Step>)>,
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
            first_join: JoinId::new(),
            joins: Vec::new(),
            waits: Vec::new(),
            compared: Vec::new(),
        }
    }

    /// Does one operation on both, and compares the answers.
    pub(super) async fn step(&mut self, operation: &Operation) -> Checked {
        // A millisecond is the resolution of the coarsest database.
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
            Operation::Reap => {
                let plain = |reaped: Reaped| Reaped { joins: sorted(reaped.joins), ..reaped };
                let (r, s) = (reference.reap(ALL).await, store.reap(ALL).await);
                answers("reaped", r.map(plain), s.map(plain))
            }
            Operation::Expire => {
                let plain = |expired: Expired| Expired { joins: sorted(expired.joins), ..expired };
                let (r, s) = (reference.expire(ALL).await, store.expire(ALL).await);
                answers("expired", r.map(plain), s.map(plain))
            }
            Operation::Park => answers("parked", reference.park(ALL).await, store.park(ALL).await),
            Operation::Hasten { topics, limit } => {
                let topics = Topics::of(*topics).unwrap();
                answers(
                    "hastened",
                    reference.hasten(&topics, *limit).await,
                    store.hasten(&topics, *limit).await,
                )
            }
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
            Operation::Join { moves, end } => self.join(moves, *end).await,
            Operation::Look(back) => {
                let known = back.checked_rem(self.joins.len());
                let join = known.map_or_else(JoinId::new, |back| self.joins[self.joins.len() - 1 - back]);
                let (r, s) = (reference.look(join).await, store.look(join).await);
                answers("seen", r.map(seen), s.map(seen))
            }
            Operation::Continue { wait, stranger, continuation } => {
                self.continue_join(*wait, *stranger, continuation.as_ref()).await
            }
            Operation::PruneJoins(units) => {
                let keep = UNIT * *units;
                let (r, s) = (reference.prune_joins(keep, ALL).await, store.prune_joins(keep, ALL).await);
                answers("pruned joins", r, s)
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
            Enqueued::New { id, lease } => (*id, Some(lease.is_some())),
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
        let ids = |claimed: &[Message]| claimed.iter().map(|message| message.id).collect::<Vec<_>>();
        same("claimed", ids(&reference), ids(&store))?;
        for (r, s) in reference.iter().zip(&store) {
            if s.epoch == 0 || self.leases.iter().any(|(_, before)| *before == s.lease()) {
                return Err(format!("claimed {}: epoch {} was given out before", r.id, s.epoch));
            }
            self.leases.push((r.lease(), s.lease()));
            let s = Message { epoch: self.translated(s.lease()), ..s.clone() };
            self.clocks
                .same_message(r, &s, false)
                .map_err(|difference| format!("claimed {}: {difference}", r.id))?;
        }
        Ok(())
    }

    /// The reference's epoch of a lease of the store. Epochs are compared for being equal only, so each store may number them
    /// as it likes.
    fn translated(&self, lease: Lease) -> i32 {
        let found = self.leases.iter().rev().find(|(_, store)| *store == lease);
        found.map_or(lease.epoch, |(reference, _)| reference.epoch)
    }

    /// The leases that were picked, as each store numbers them.
    fn picked(&self, pick: Pick) -> Option<(Lease, Lease)> {
        let back = pick.index.checked_rem(self.leases.len())?;
        let (mut r, mut s) = self.leases[self.leases.len() - 1 - back];
        r.epoch = r.epoch.wrapping_add(pick.later);
        // Each lease of the reference must correspond to the same lease of the store.
        let other = self.leases.iter().find(|(reference, _)| *reference == r);
        s.epoch = other.map_or(s.epoch.wrapping_add(pick.later), |(_, store)| store.epoch);
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
        let plain = |batch: SettledBatch| SettledBatch { joins: sorted(batch.joins), ..batch };
        let (reference, store) = if delete {
            let reference = self.reference.clone().keep_done(false);
            let store = self.fixture.store_that_deletes();
            (reference.settle(&ours).await, store.settle(&theirs).await)
        } else {
            (self.reference.settle(&ours).await, self.fixture.store().settle(&theirs).await)
        };
        answers("settled", reference.map(plain), store.map(plain))
    }

    async fn join(&mut self, moves: &[Move], end: End) -> Checked {
        let moves = Moves::new(moves, &self.ids, &self.joins);
        let reference = self.join_reference(&moves, end).await;
        let store = self.join_store(&moves, end).await;
        same("the answers", reference, store)?;
        let (made, started, waits) = (moves.messages(), moves.started(), moves.waits());
        self.ids.extend(made);
        self.joins.extend(started);
        self.waits.extend(waits);
        Ok(())
    }

    async fn join_reference(&self, moves: &Moves<'_>, end: End) -> Vec<Answer> {
        let (store, now) = (&self.reference, self.clocks.reference);
        let (cut, mut fresh) = (moves.cut(end), Vec::new());
        let mut tx = store.begin();
        let mut made = moves.make(store, &mut tx, 0..cut, &mut fresh, now).await;
        if let End::SavepointAt(_) = end {
            let savepoint = tx.savepoint();
            made.extend(moves.make(store, &mut tx, cut..moves.len(), &mut fresh, now).await);
            tx.rollback_to(&savepoint);
        }
        match end {
            End::RollBack => drop(tx),
            End::Commit | End::SavepointAt(_) => tx.commit(),
        }
        made
    }

    async fn join_store(&self, moves: &Moves<'_>, end: End) -> Vec<Answer> {
        let (fixture, store, now) = (self.fixture, self.fixture.store(), self.clocks.store);
        let (cut, mut fresh) = (moves.cut(end), Vec::new());
        let mut tx = fixture.begin().await;
        let mut made = moves.make(store, fixture.connection(&mut tx), 0..cut, &mut fresh, now).await;
        if let End::SavepointAt(_) = end {
            fixture.savepoint(fixture.connection(&mut tx)).await;
            let connection = fixture.connection(&mut tx);
            made.extend(moves.make(store, connection, cut..moves.len(), &mut fresh, now).await);
            fixture.rollback_to_savepoint(fixture.connection(&mut tx)).await;
        }
        match end {
            End::RollBack => fixture.rollback(tx).await,
            End::Commit | End::SavepointAt(_) => fixture.commit(tx).await,
        }
        made
    }

    async fn continue_join(&mut self, wait: usize, stranger: bool, continuation: Option<&Draft>) -> Checked {
        let Some(back) = wait.checked_rem(self.waits.len()) else { return Ok(()) };
        let (join, wait) = self.waits[self.waits.len() - 1 - back];
        let wait = if stranger { MessageId::new() } else { wait };
        let id = MessageId::new();
        let message = |now| continuation.map(|draft| draft.message(id, &self.ids, now));
        let (ours, theirs) = (message(self.clocks.reference), message(self.clocks.store));
        let reference = self.reference.continue_join(join, wait, ours.as_ref()).await;
        let store = self.fixture.store().continue_join(join, wait, theirs.as_ref()).await;
        self.ids.push(id);
        answers("continued", reference, store)
    }

    async fn renew(&mut self, picks: &[Pick], lease: u32) -> Checked {
        let leases: Vec<_> = picks.iter().filter_map(|pick| self.picked(*pick)).collect();
        let (ours, theirs): (Vec<_>, Vec<_>) = leases.into_iter().unzip();
        let reference = self.reference.renew(&ours, UNIT * lease).await;
        answers("renewed", reference, self.fixture.store().renew(&theirs, UNIT * lease).await)
    }

    /// Compares everything that can be seen.
    pub(super) async fn compare(&mut self) -> Checked {
        let (reference, store) = (&self.reference, self.fixture.store());
        let mut theirs = records(store).await;
        for record in &mut theirs {
            record.message.epoch = self.translated(record.message.lease());
        }
        self.clocks.same_table(&records(reference).await, &theirs)?;
        same_stats(&reference.stats().await.unwrap(), &store.stats().await.unwrap())?;
        self.compare_joins().await
    }

    /// Compares all joins, and the steps of joins that the reference has changed; the other steps are compared at the
    /// end.
    async fn compare_joins(&mut self) -> Checked {
        let (reference, store) = (&self.reference, self.fixture.store());
        let all = JoinFilter::default();
        let ours = self.joins_of(reference, &all).await;
        self.clocks.same_joins(&ours, &self.joins_of(store, &all).await)?;
        let mut now = Vec::with_capacity(ours.len());
        for join in ours {
            let steps = steps_of(reference, join.id).await;
            let before = self.compared.iter().find(|(before, _)| before.id == join.id);
            if before.is_none_or(|before| before != &(join.clone(), steps.clone())) {
                self.compare_steps(join.id, &steps).await?;
            }
            now.push((join, steps));
        }
        self.compared = now;
        Ok(())
    }

    async fn compare_steps(&self, join: JoinId, steps: &[Step]) -> Checked {
        let store = steps_of(self.fixture.store(), join).await;
        let of = |difference| format!("of join {join}: {difference}");
        self.clocks.same_steps(steps, &store).map_err(of)
    }

    async fn joins_of<S: StoreAdmin>(&self, store: &S, filter: &JoinFilter) -> Vec<Join> {
        store.joins(filter, Some(self.first_join), 200).await.unwrap().joins
    }

    /// Compares the results of the other queries for joins.
    pub(super) async fn compare_views(&self) -> Checked {
        let (reference, store) = (&self.reference, self.fixture.store());
        for id in &self.joins {
            let (ours, theirs) = (reference.join(*id).await.unwrap(), store.join(*id).await.unwrap());
            let one = |join: Option<Join>| Vec::from_iter(join);
            self.clocks.same_joins(&one(ours), &one(theirs))?;
            self.compare_steps(*id, &steps_of(reference, *id).await).await?;
        }
        let step = self.compared.iter().flat_map(|(_, steps)| steps).next().map(|step| step.message);
        let filters = [
            JoinFilter { status: Some(JoinStatus::Pending), ..JoinFilter::default() },
            JoinFilter { grouping_key: Some("g".to_owned()), ..JoinFilter::default() },
            JoinFilter { message: step, ..JoinFilter::default() },
        ];
        for filter in filters {
            let (ours, theirs) =
                (self.joins_of(reference, &filter).await, self.joins_of(store, &filter).await);
            self.clocks
                .same_joins(&ours, &theirs)
                .map_err(|difference| format!("asked for {filter:?}: {difference}"))?;
        }
        Ok(())
    }

    /// Compares the history of each message, and the archive. The archive may hold messages of earlier sequences.
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

async fn steps_of<S: StoreAdmin>(store: &S, join: JoinId) -> Vec<Step> {
    store.steps(join, None, 200).await.unwrap().steps
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
