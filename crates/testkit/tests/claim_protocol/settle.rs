//! Acks, releases, reaps and renewals, statement by statement: `routines/settle.sql`, `lease.sql` and `keep.sql`.

use crate::plan::{Fault, Plan, Worker};
use crate::search::Move;
use crate::world::{LEASES, Lease, MESSAGES, Message, State, Step, UPDATE, World, bit, each, token_of};

impl World {
    fn begin_settling(&mut self, who: usize, step: Step) {
        let (token, items) = (self.actors[who].token, self.actors[who].items);
        let held = self.items_of(None, token) & items;
        let actor = &mut self.actors[who];
        actor.tx.is_open = true;
        actor.tx.held = held;
        actor.step = step;
    }

    fn end_settling(&mut self, who: usize) {
        let actor = &mut self.actors[who];
        (actor.token, actor.items) = (0, 0);
        actor.step = Step::Begin;
    }

    /// A worker's moves with the messages that it holds.
    pub(crate) fn settle(&self, who: usize, worker: Worker) -> Vec<Move> {
        let mut moves = Vec::new();
        let begin = |label, step| {
            let mut world = self.clone();
            world.begin_settling(who, step);
            let held = world.actors[who].tx.held;
            if held == 0 {
                // No row can match: this settlement is lost.
                world.abort(who);
                world.end_settling(who);
            }
            Move::new(label, held, world)
        };
        if worker.acks {
            moves.push(begin("ack: reads leases, holds", Step::AckRows));
        }
        if worker.releases {
            moves.push(begin("release: reads leases, holds", Step::ReleaseRows));
        }
        if worker.dies {
            let mut world = self.clone();
            world.end_settling(who);
            world.actors[who].step = Step::Finished;
            moves.push(Move::new("dies, and leaves its lease", 0, world));
        }
        moves
    }

    /// The next message that a settlement has to lock, in the order of seq.
    fn next_row(&self, who: usize) -> Option<usize> {
        each(self.actors[who].tx.held).next()
    }

    fn is_held_row(&self, who: usize, m: usize) -> bool {
        self.held(Some(who), self.actors[who].token, bit(m)) != 0
    }

    /// `ack_runs`: deletes a row, once it is not locked.
    pub(crate) fn ack_row(mut self, who: usize, plan: &Plan) -> Option<Move> {
        let m = self.next_row(who).unwrap();
        let mut label = "ack: finds lost";
        if self.is_held_row(who, m) {
            if !self.lock(who, m, UPDATE) {
                return None;
            }
            self.change(who, m, Message { state: State::Over, ..Message::default() });
            let token = self.actors[who].token;
            let tx = &mut self.actors[who].tx;
            tx.over |= bit(m);
            tx.ends[m] = token;
            label = "ack: deletes";
        }
        self.actors[who].tx.held &= !bit(m);
        if self.actors[who].tx.held == 0 {
            self.actors[who].step = match self.actors[who].tx.over {
                0 => Step::Commit,
                _ if plan.has(Fault::SettlesByOldLook) => Step::LookNext,
                _ => Step::CheckAcks,
            };
        }
        Some(Move::new(label, bit(m), self))
    }

    /// Looks at the leases again, under the locks: `Fault::SettlesByOldLook` does not. If a message was lost, the settlement goes back
    /// and begins again without it.
    pub(crate) fn check_acks(mut self, who: usize) -> Move {
        let token = self.actors[who].token;
        let over = self.actors[who].tx.over;
        let held = self.items_of(None, token) & over;
        if held == over {
            self.actors[who].step = Step::LookNext;
            return Move::new("ack: looks at its lease again, holds", held, self);
        }
        self.abort(who);
        self.begin_settling(who, Step::AckRows);
        if self.actors[who].tx.held == 0 {
            self.abort(who);
            self.end_settling(who);
        }
        Move::new("ack: its lease is over, begins again with", held, self)
    }

    /// `free_next`, its snapshot: the first message behind each that is over, if it may have been passed.
    pub(crate) fn look_next(&mut self, who: usize, plan: &Plan) {
        let mut next = [None; MESSAGES];
        for m in each(self.actors[who].tx.over).filter(|m| plan.keys[*m] != 0) {
            let is_behind = |n: &usize| plan.keys[*n] == plan.keys[m] && self.is_ready(Some(who), *n);
            let behind = (m + 1..MESSAGES).find(is_behind);
            next[m] =
                behind.filter(|n| self.message(Some(who), *n).born != 0).map(|n| u8::try_from(n).unwrap());
        }
        self.actors[who].tx.next = next;
    }

    pub(crate) fn look_behind(mut self, who: usize, plan: &Plan) -> Move {
        let over = self.actors[who].tx.over;
        if !plan.has(Fault::NoFreeNext) {
            self.look_next(who, plan);
        }
        let has_next = self.actors[who].tx.next.iter().any(Option::is_some);
        self.actors[who].step = if has_next { Step::FreeNext } else { Step::EndLeases };
        Move::new("free_next: reads what is behind", over, self)
    }

    /// `free_next`, its locks: what comes next waits by its due time from now on, or its turn is noted.
    pub(crate) fn free_next(&mut self, who: usize, plan: &Plan) -> u8 {
        let next = std::mem::take(&mut self.actors[who].tx.next);
        let mut freed = 0;
        for (over, n) in next.into_iter().enumerate() {
            let Some(n) = n.map(usize::from) else { continue };
            if self.is_ready(Some(who), n) && self.lock(who, n, UPDATE) {
                let row = self.message(Some(who), n);
                self.change(who, n, Message { born: 0, ..row });
                freed |= bit(n);
            } else if !plan.has(Fault::ForgetsTurns) {
                self.actors[who].tx.turns_added |= bit(over);
            }
        }
        freed
    }

    /// `end_leases`: removes a lease of which nothing is left, unless another session has locked it.
    pub(crate) fn end_leases(mut self, who: usize) -> Move {
        let token = self.actors[who].token;
        for lease in (0..LEASES).filter(|lease| token_of(*lease) == token) {
            let row = self.lease(Some(who), lease);
            let is_over = self.held(Some(who), token, row.items) == 0;
            if row.items != 0 && is_over && self.lock_lease(who, lease) {
                self.change_lease(who, lease, Lease::default());
            }
        }
        self.actors[who].step = Step::Commit;
        Move::new("end_leases", 0, self)
    }

    /// `judge` and the update of `settle_all`: locks a row in any state, then judges it by the leases. With the fault, by those that
    /// it read before it had the lock.
    pub(crate) fn release_row(mut self, who: usize, plan: &Plan) -> Option<Move> {
        let m = self.next_row(who).unwrap();
        if self.message(Some(who), m).state == State::Ready && !self.lock(who, m, UPDATE) {
            return None;
        }
        let token = self.actors[who].token;
        // A look that is newer than the lock: all that takes a message out of a lease commits before its lock is free.
        let is_leased = plan.has(Fault::SettlesByOldLook) || self.items_of(None, token) & bit(m) != 0;
        let mut label = "release: finds lost";
        if is_leased && self.is_held_row(who, m) {
            let row = self.message(Some(who), m);
            let epoch = if plan.has(Fault::KeepsToken) { row.token } else { token };
            let born = if plan.has(Fault::ReleaseKeepsBorn) { row.born } else { 0 };
            self.change(who, m, Message { token: epoch, born, ..row });
            let tx = &mut self.actors[who].tx;
            tx.over |= bit(m);
            tx.ends[m] = token;
            label = "release: frees";
        }
        self.actors[who].tx.held &= !bit(m);
        if self.actors[who].tx.held == 0 {
            let is_any = self.actors[who].tx.over != 0;
            self.actors[who].step = if is_any { Step::LookLeases } else { Step::Commit };
        }
        Some(Move::new(label, bit(m), self))
    }

    /// `let_go`: its snapshot.
    pub(crate) fn look_leases(mut self, who: usize) -> Move {
        let (token, over) = (self.actors[who].token, self.actors[who].tx.over);
        let has = |l: &usize| token_of(*l) == token && self.lease(Some(who), *l).items & over != 0;
        let rows = (0..LEASES).filter(has).fold(0, |set, lease| set | 1 << lease);
        self.actors[who].tx.lease_rows = rows;
        self.actors[who].step = Step::LetGo;
        Move::new("let_go: reads its leases, for", over, self)
    }

    /// `let_go`: waits for the leases that it has read, and takes messages out of them. A renewal that it has waited for may have cut
    /// one in two, and the new one is not in that snapshot; so it looks again until nothing is left.
    pub(crate) fn let_go(mut self, who: usize, plan: &Plan) -> Option<Move> {
        let (token, over) = (self.actors[who].token, self.actors[who].tx.over);
        let rows = std::mem::take(&mut self.actors[who].tx.lease_rows);
        for lease in (0..LEASES).filter(|lease| rows & (1 << lease) != 0) {
            if !self.lock_lease(who, lease) {
                return None;
            }
            let row = self.lease(Some(who), lease);
            self.change_lease(who, lease, Lease { items: row.items & !over, ..row });
        }
        let is_done = self.items_of(Some(who), token) & over == 0 || plan.has(Fault::LetsGoOnce);
        self.actors[who].step = if is_done { Step::Commit } else { Step::LookLeases };
        Some(Move::new("let_go: takes out of them", over, self))
    }

    pub(crate) fn commit_settlement(mut self, who: usize, plan: &Plan) -> Move {
        let over = self.actors[who].tx.over;
        self.commit(who, &plan.keys);
        self.end_settling(who);
        Move::new("commits the end of", over, self)
    }

    /// `reap_all`: locks leases that ran out.
    pub(crate) fn begin_reap(mut self, who: usize) -> Option<Move> {
        let cursor = self.newest_cursor(None);
        let mut items = 0;
        for lease in 0..LEASES {
            let row = self.leases[lease];
            let is_out = row.items != 0 && row.ran_out && cursor.reads_lease(row.born);
            if is_out && self.lock_lease(who, lease) {
                items |= row.items;
            }
        }
        if items == 0 {
            return None;
        }
        let actor = &mut self.actors[who];
        actor.tx.is_open = true;
        actor.rounds += 1;
        actor.step = Step::TakeBack;
        Some(Move::new("reap: locks leases that ran out, of", items, self))
    }

    fn locked_leases(&self, who: usize) -> Vec<usize> {
        (0..LEASES).filter(|lease| self.actors[who].tx.lease_locks & (1 << lease) != 0).collect()
    }

    /// `take_back`: skips rows that are locked.
    pub(crate) fn take_back(mut self, who: usize, plan: &Plan) -> Move {
        let mut back = 0;
        for lease in self.locked_leases(who) {
            let (items, token) = (self.lease(Some(who), lease).items, token_of(lease));
            for m in each(self.held(Some(who), token, items)) {
                if self.lock(who, m, UPDATE) {
                    let row = self.message(Some(who), m);
                    let epoch = if plan.has(Fault::KeepsToken) { row.token } else { token };
                    self.change(who, m, Message { token: epoch, born: 0, ..row });
                    self.actors[who].tx.ends[m] = token;
                    back |= bit(m);
                }
            }
        }
        self.actors[who].step = Step::Trim;
        Move::new("reap: takes back", back, self)
    }

    /// `trim_leases`: ended messages leave the leases.
    pub(crate) fn trim_leases(mut self, who: usize) -> Move {
        let mut rest = 0;
        for lease in self.locked_leases(who) {
            let row = self.lease(Some(who), lease);
            let items = self.held(Some(who), token_of(lease), row.items);
            self.change_lease(who, lease, Lease { items, ..row });
            rest |= items;
        }
        self.actors[who].step = Step::Commit;
        Move::new("reap: leaves in the leases", rest, self)
    }

    /// Commits a reap or a renewal.
    pub(crate) fn commit_upkeep(mut self, who: usize, plan: &Plan) -> Move {
        self.commit(who, &plan.keys);
        self.actors[who].step = Step::Begin;
        Move::new("commits", 0, self)
    }

    /// `renew_all`: waits for the leases.
    pub(crate) fn begin_renewal(mut self, who: usize, of: usize, items: u8) -> Option<Move> {
        let (token, items) = (self.actors[of].token, self.actors[of].items & items);
        if token == 0 || items == 0 {
            return None;
        }
        let has = |l: &usize| token_of(*l) == token && self.leases[*l].items & items != 0;
        let leases: Vec<usize> = (0..LEASES).filter(has).collect();
        if leases.is_empty() {
            return None;
        }
        for lease in leases {
            if !self.lock_lease(who, lease) {
                return None;
            }
        }
        let actor = &mut self.actors[who];
        actor.tx.is_open = true;
        actor.tx.items = items;
        actor.rounds += 1;
        actor.step = Step::KeepLeases;
        Some(Move::new("renew: locks the lease of", items, self))
    }

    /// `renew_all` and `keep_leases`: judges, and cuts off messages that are not renewed.
    pub(crate) fn keep_leases(mut self, who: usize) -> Move {
        let mut all = 0;
        for lease in self.locked_leases(who) {
            let row = self.lease(Some(who), lease);
            let token = token_of(lease);
            let kept = self.held(Some(who), token, row.items & self.actors[who].tx.items);
            let rest = row.items & !self.actors[who].tx.items;
            if kept == 0 {
                continue;
            }
            let born = self.xid(who);
            let renewed = Lease { items: kept, born, ran_out: false };
            let is_part = self.held(Some(who), token, row.items & !kept) != 0;
            if is_part {
                self.change_lease(who, lease, Lease { items: rest, ..row });
                let cut = (lease + LEASES / 2) % LEASES;
                self.change_lease(who, cut, renewed);
            } else {
                self.change_lease(who, lease, renewed);
            }
            all |= kept;
        }
        self.actors[who].step = Step::Commit;
        Move::new("renew: keeps", all, self)
    }
}
