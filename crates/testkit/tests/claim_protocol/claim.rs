//! A claim, statement by statement: `routines/claim.sql`.

use crate::plan::{Fault, Plan, Worker};
use crate::search::Move;
use crate::world::{Lease, MESSAGES, Message, State, Step, UPDATE, World, bit, each};

impl World {
    /// Begins a claim; one of the caller leaves the turns to others.
    pub(crate) fn begin_claim(mut self, who: usize, plan: &Plan, worker: Worker) -> Move {
        let published = (0..MESSAGES).filter(|m| self.messages[*m].state != State::Unpublished);
        let seen = published.fold(0, |set, m| set | bit(m));
        let actor = &mut self.actors[who];
        actor.rounds += 1;
        actor.token = plan.first_token(who) + actor.rounds - 1;
        actor.items = 0;
        actor.tx.is_open = true;
        actor.tx.seen = seen;
        if self.turns != 0 && !worker.is_caller {
            let taken = self.turns & !self.actors.iter().fold(0, |set, a| set | a.tx.turns_taken);
            if taken != 0 {
                self.xid(who);
                self.actors[who].tx.turns_taken = taken;
                self.actors[who].tx.over = taken;
                self.look_next(who, plan);
                self.actors[who].step = Step::FreeTurns;
                return Move::new("take_turns: reads what is behind what was over", taken, self);
            }
        }
        self.look_due(who, plan, worker);
        Move::new("claim: reads the cursor and what is due", self.actors[who].tx.due, self)
    }

    /// `cursor_for`, `leased_since` and `look_due`: without locks.
    pub(crate) fn look_due(&mut self, who: usize, plan: &Plan, worker: Worker) {
        let viewer = Some(who);
        let cursor = self.newest_cursor(viewer);
        self.actors[who].tx.leased = self.leased_since(viewer, &cursor);
        self.actors[who].tx.base = Some(cursor);
        self.judge_due(who, plan, worker);
    }

    fn judge_due(&mut self, who: usize, plan: &Plan, worker: Worker) {
        let leased = self.actors[who].tx.leased;
        let (mut free, mut waiting) = (0, 0);
        for m in each(!leased).filter(|m| self.is_ready(Some(who), *m)) {
            if self.message(Some(who), m).born == 0 {
                let set = if self.waits(Some(who), &plan.keys, m) { &mut waiting } else { &mut free };
                *set |= bit(m);
            }
        }
        let tx = &mut self.actors[who].tx;
        tx.due = free;
        tx.waiting = if worker.moves_waiting { waiting } else { 0 };
        tx.picked = 0;
        let needs_locks = tx.due | tx.waiting != 0;
        self.actors[who].step = if needs_locks { Step::LockDue } else { Step::LookNew };
    }

    /// `take_due`: locks due messages; before, it may move some waiting ones to `outbox_new`.
    pub(crate) fn lock_due(&self, who: usize, worker: Worker) -> Vec<Move> {
        let tx = &self.actors[who].tx;
        let subsets = (0..=tx.waiting).filter(|moved| moved & !tx.waiting == 0);
        let one = |moved: u8| {
            let mut world = self.clone();
            let is_due = |world: &World, m: usize| {
                let row = world.message(Some(who), m);
                row.state == State::Ready && row.born == 0
            };
            for m in each(moved) {
                if is_due(&world, m) && world.lock(who, m, UPDATE) {
                    let born = world.xid(who);
                    let row = world.message(Some(who), m);
                    world.change(who, m, Message { born, ..row });
                }
            }
            for m in each(tx.due) {
                let has_room = (world.actors[who].tx.picked.count_ones() as usize) < worker.limit;
                if has_room && is_due(&world, m) && world.lock(who, m, UPDATE) {
                    world.actors[who].tx.picked |= bit(m);
                }
            }
            world.actors[who].tx.due = 0;
            world.actors[who].tx.waiting = 0;
            world.actors[who].step = Step::LookNew;
            if moved == 0 {
                Move::new("take_due: locks", world.actors[who].tx.picked, world)
            } else {
                Move::new("take_due: locks, and moves to outbox_new", moved, world)
            }
        };
        subsets.map(one).collect()
    }

    /// `take_new`: its snapshot.
    pub(crate) fn look_new(mut self, who: usize, plan: &Plan, worker: Worker) -> Move {
        let base = self.actors[who].tx.base.clone().unwrap();
        let met = self.candidates(Some(who), &plan.keys, &base);
        let set = met.iter().fold(0, |set, m| set | bit(*m));
        // Fault::OldSnapshot looks at these leases again, and at no newer ones.
        self.actors[who].tx.leased |= self.leased_since(Some(who), &base);
        let mut candidates = [None; MESSAGES];
        for (slot, m) in candidates.iter_mut().zip(&met) {
            *slot = Some(u8::try_from(*m).unwrap());
        }
        self.actors[who].tx.candidates = candidates;
        self.actors[who].tx.held = 0;
        if set == 0 {
            return Move { label: "take_new: reads nothing; pick", ..self.look_again(who, plan, worker) };
        }
        self.actors[who].step = Step::LockNew;
        Move::new("take_new: reads candidates", set, self)
    }

    /// `take_new`: locks one candidate, or skips it.
    pub(crate) fn lock_new(mut self, who: usize, plan: &Plan, worker: Worker) -> Move {
        let mut candidates = self.actors[who].tx.candidates;
        let m = usize::from(candidates[0].take().unwrap());
        candidates.rotate_left(1);
        let base = self.actors[who].tx.base.clone().unwrap();
        let row = self.message(Some(who), m);
        let fits = row.state == State::Ready && row.born != 0 && base.has(row.born, m);
        let is_taken = plan.has(Fault::NoLock) || (fits && self.lock(who, m, UPDATE));
        if is_taken {
            self.actors[who].tx.held |= bit(m);
        }
        if self.actors[who].tx.held.count_ones() as usize >= worker.limit {
            candidates = [None; MESSAGES];
        }
        self.actors[who].tx.candidates = candidates;
        if candidates[0].is_none() {
            self.actors[who].step = Step::LookAgain;
        }
        Move::new(if is_taken { "take_new: locks" } else { "take_new: skips" }, bit(m), self)
    }

    /// `pick` and the second look: drops messages that were leased before their lock was obtained. If nothing
    /// remains, it picks again.
    pub(crate) fn look_again(mut self, who: usize, plan: &Plan, worker: Worker) -> Move {
        let base = self.actors[who].tx.base.clone().unwrap();
        let found = self.actors[who].tx.picked | std::mem::take(&mut self.actors[who].tx.held);
        let picked = each(found).take(worker.limit).fold(0, |set, m| set | bit(m));
        let leased = match plan.fault {
            Some(Fault::NoSecondLook) => 0,
            Some(Fault::OldSnapshot) => self.actors[who].tx.leased,
            _ => self.leased_since(Some(who), &base),
        };
        self.actors[who].tx.picked = 0;
        let items = picked & !leased;
        if worker.is_caller && items != picked {
            // Back to the savepoint: the locks of this pick are gone.
            self.actors[who].tx.locks = [0; MESSAGES];
        }
        if picked != 0 && (items == 0 || (worker.is_caller && items != picked)) {
            self.actors[who].tx.leased = leased;
            self.judge_due(who, plan, worker);
            return Move::new("second look: drops all, picks again; due are", self.actors[who].tx.due, self);
        }
        let tx = &mut self.actors[who].tx;
        tx.items = items;
        tx.leased = 0;
        self.actors[who].step = Step::Chosen;
        if items == 0 && self.actors[who].tx.xid == 0 && !worker.advances {
            self.end_claim(who);
        }
        Move::new("second look: keeps", items, self)
    }

    fn end_claim(&mut self, who: usize) {
        self.abort(who);
        self.actors[who].token = 0;
        self.actors[who].step = Step::Begin;
    }

    /// After the pick: the claim ends, or moves the cursor. How far it has read and chance decide that, so the model tries both.
    pub(crate) fn chosen(&self, who: usize, plan: &Plan, worker: Worker) -> Vec<Move> {
        let mut moves = Vec::new();
        let items = self.actors[who].tx.items;
        if items == 0 {
            let mut world = self.clone();
            world.commit_nothing(who, plan);
            moves.push(Move::new("claim: commits, it found nothing", 0, world));
        } else {
            moves.push(self.clone().write_lease(who, plan));
        }
        if worker.advances {
            let mut world = self.clone();
            world.begin_advance(who, plan);
            moves.push(Move::new("advance_cursor: reads open transactions and leases", 0, world));
        }
        moves
    }

    fn commit_nothing(&mut self, who: usize, plan: &Plan) {
        self.commit(who, &plan.keys);
        self.actors[who].token = 0;
        self.actors[who].step = Step::Begin;
    }

    /// Nothing can happen between the insert of the lease and the commit that others could tell, so they are one step.
    pub(crate) fn write_lease(mut self, who: usize, plan: &Plan) -> Move {
        let items = self.actors[who].tx.items;
        let born = self.xid(who);
        let token = self.actors[who].token;
        self.change_lease(who, usize::from(token) - 1, Lease { items, born, ran_out: false });
        self.actors[who].tx.claims = items;
        self.actors[who].items = items;
        self.commit(who, &plan.keys);
        self.actors[who].step = Step::Holding;
        Move::new("claim: writes its lease and commits", items, self)
    }

    /// After the cursor was written, or not: the end, or all over if nothing was found.
    pub(crate) fn after_advance(mut self, who: usize, plan: &Plan, worker: Worker) -> Move {
        let has_moved = self.write_cursor(who, plan);
        if self.actors[who].tx.items != 0 {
            self.actors[who].step = Step::WriteLease;
        } else if has_moved {
            self.look_due(who, plan, worker);
            return Move::new("advance_cursor: writes it; the claim begins again", 0, self);
        } else {
            self.commit_nothing(who, plan);
            return Move::new("advance_cursor: has nothing to write; commits", 0, self);
        }
        Move::new(
            if has_moved { "advance_cursor: writes it" } else { "advance_cursor: has nothing to write" },
            0,
            self,
        )
    }
}
