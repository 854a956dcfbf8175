//! Where claims begin to read `outbox_new`, and how a claim moves that place: `routines/cursor.sql`, of one priority.

use std::rc::Rc;

use crate::plan::{Fault, Plan};
use crate::world::{KEY_SHARE, LEASES, MESSAGES, SHARE, Step, Viewer, World, Xid, bit, each};

/// From a message to the end of the priority, or to the last message of one transaction.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Segment {
    pub(crate) born: Xid,
    pub(crate) seq: usize,
    pub(crate) last: Option<usize>,
}

impl Segment {
    fn has(self, born: Xid, seq: usize) -> bool {
        match self.last {
            Some(last) => born == self.born && (self.seq..=last).contains(&seq),
            None => (born, seq) >= (self.born, self.seq),
        }
    }
}

/// A row of `outbox_cursor`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Cursor {
    next_xid: Xid,
    lease_from: Xid,
    lease_late: u32,
    segments: Vec<Segment>,
}

fn renamed(set: u32, xid: &impl Fn(Xid) -> Xid) -> u32 {
    (0..32).filter(|n| set & (1 << n) != 0).fold(0, |new, n| new | 1 << xid(n))
}

impl Cursor {
    pub(crate) fn start() -> Self {
        Self {
            next_xid: 0,
            lease_from: 0,
            lease_late: 0,
            segments: vec![Segment { born: 0, seq: 0, last: None }],
        }
    }

    pub(crate) fn xids(&self) -> u32 {
        let borns = self.segments.iter().fold(0, |set, segment| set | 1 << segment.born);
        borns | self.lease_late | 1 << self.next_xid | 1 << self.lease_from
    }

    pub(crate) fn renamed(&self, xid: &impl Fn(Xid) -> Xid) -> Self {
        Self {
            next_xid: xid(self.next_xid),
            lease_from: xid(self.lease_from),
            lease_late: renamed(self.lease_late, xid),
            segments: self.segments.iter().map(|s| Segment { born: xid(s.born), ..*s }).collect(),
        }
    }

    /// Whether a lease of this transaction is among those that claims with this cursor read.
    pub(crate) fn reads_lease(&self, born: Xid) -> bool {
        born >= self.lease_from || self.lease_late & (1 << born) != 0
    }

    pub(crate) fn has(&self, born: Xid, seq: usize) -> bool {
        self.segments.iter().any(|segment| segment.has(born, seq))
    }
}

/// The variables of `advance_cursor` and `move_segment`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Advance {
    next_xid: Xid,
    stop: Xid,
    writing: u32,
    leased: u8,
    at: usize,
    done: Vec<Segment>,
    stretches: Vec<Segment>,
    first: Option<(Xid, usize)>,
    heads: u8,
}

impl Advance {
    pub(crate) fn xids(&self) -> u32 {
        let segments = self.done.iter().chain(&self.stretches).fold(0, |set, s| set | 1 << s.born);
        let first = self.first.map_or(0, |(born, _)| 1 << born);
        segments | first | self.writing | 1 << self.next_xid | 1 << self.stop
    }

    pub(crate) fn rename(&mut self, xid: &impl Fn(Xid) -> Xid) {
        self.next_xid = xid(self.next_xid);
        self.stop = xid(self.stop);
        self.writing = renamed(self.writing, xid);
        self.done.iter_mut().chain(&mut self.stretches).for_each(|s| s.born = xid(s.born));
        self.first = self.first.map(|(born, seq)| (xid(born), seq));
    }
}

impl World {
    /// `cursor_for`: the newest cursor that is seen.
    pub(crate) fn newest_cursor(&self, viewer: Viewer) -> Rc<Cursor> {
        let own = viewer.and_then(|who| self.actors[who].tx.cursor.as_ref());
        own.filter(|own| own.0 > self.cursor.0).unwrap_or(&self.cursor).1.clone()
    }

    /// `leased_since`.
    pub(crate) fn leased_since(&self, viewer: Viewer, cursor: &Cursor) -> u8 {
        let leases = (0..LEASES).map(|lease| self.lease(viewer, lease));
        leases.filter(|l| l.items != 0 && cursor.reads_lease(l.born)).fold(0, |set, l| set | l.items)
    }

    /// Whether an earlier message of its key is not over.
    pub(crate) fn waits(&self, viewer: Viewer, keys: &[u8; MESSAGES], message: usize) -> bool {
        keys[message] != 0 && (0..message).any(|e| keys[e] == keys[message] && self.is_ready(viewer, e))
    }

    /// The messages of `outbox_new` that are in a segment, in the order of the index.
    pub(crate) fn entries(&self, viewer: Viewer, segment: Segment) -> Vec<(Xid, usize)> {
        let ready = (0..MESSAGES).filter(|m| self.is_ready(viewer, *m));
        let mut entries: Vec<_> = ready
            .map(|m| (self.message(viewer, m).born, m))
            .filter(|(born, m)| *born != 0 && segment.has(*born, *m))
            .collect();
        entries.sort_unstable();
        entries
    }

    /// What `take_new` may lock, in the order in which it meets them.
    pub(crate) fn candidates(&self, viewer: Viewer, keys: &[u8; MESSAGES], cursor: &Cursor) -> Vec<usize> {
        let leased = self.leased_since(viewer, cursor);
        let met = cursor.segments.iter().flat_map(|segment| self.entries(viewer, *segment));
        met.map(|(_, m)| m).filter(|m| leased & bit(*m) == 0 && !self.waits(viewer, keys, *m)).collect()
    }

    fn advance(&mut self, who: usize) -> &mut Advance {
        self.actors[who].tx.advance.as_mut().unwrap()
    }

    /// The first statement of `advance_cursor`: one snapshot for open writers and leases.
    pub(crate) fn begin_advance(&mut self, who: usize, plan: &Plan) {
        let base = self.actors[who].tx.base.clone().unwrap();
        let next_xid = self.last_ended + 1;
        let before = self.running() & ((1 << next_xid) - 1);
        let writing = before | 1 << self.xid(who);
        let new = (0..32).find(|x| *x >= base.next_xid && writing & (1 << x) != 0).unwrap_or(next_xid);
        let ignores = plan.has(Fault::IgnoresOpenTransactions);
        self.actors[who].tx.advance = Some(Box::new(Advance {
            next_xid,
            stop: if ignores { next_xid } else { next_xid.min(new) },
            writing,
            leased: self.leased_since(Some(who), &base),
            at: 0,
            done: Vec::new(),
            stretches: Vec::new(),
            first: None,
            heads: 0,
        }));
        self.actors[who].step = Step::Advance;
    }

    /// `move_segment` up to its first look at the messages, for each segment that needs none and for one that does.
    pub(crate) fn advance_segment(&mut self, who: usize, plan: &Plan, is_own: bool) {
        let base = self.actors[who].tx.base.clone().unwrap();
        loop {
            let advance = self.advance(who);
            let segment = base.segments[advance.at];
            let Some(_) = segment.last else { break };
            advance.at += 1;
            if advance.writing & (1 << segment.born) != 0 {
                advance.done.push(segment);
                continue;
            }
            let leased = advance.leased;
            let open = self.entries(Some(who), segment).into_iter().find(|(_, m)| leased & bit(*m) == 0);
            if let Some((_, seq)) = open {
                self.advance(who).done.push(Segment { seq, ..segment });
            }
            return;
        }
        let rest = base.segments[self.advance(who).at];
        self.pass_locked(who, rest, is_own);
        let first = self.advance(who).first;
        if is_own && first.is_some_and(|(_, m)| self.waits(Some(who), &plan.keys, m)) {
            self.actors[who].step = Step::LookHeads;
        } else {
            self.finish_rest(who, plan, rest);
        }
    }

    /// `first_open` for the rest of a priority: passes what other sessions have locked, and keeps a stretch for it.
    fn pass_locked(&mut self, who: usize, rest: Segment, leaves_locked: bool) {
        let leased = self.advance(who).leased;
        for (born, seq) in self.entries(Some(who), rest).into_iter().filter(|(_, m)| leased & bit(*m) == 0) {
            if !leaves_locked || self.lock(who, seq, KEY_SHARE) {
                self.advance(who).first = Some((born, seq));
                return;
            }
            let stretches = &mut self.advance(who).stretches;
            match stretches.last_mut().filter(|stretch| stretch.born == born) {
                Some(stretch) => stretch.last = Some(seq),
                None => stretches.push(Segment { born, seq, last: Some(seq) }),
            }
        }
    }

    /// `lock_heads`, what its snapshot shows: the first of each key for which others wait behind this place.
    pub(crate) fn look_heads(&mut self, who: usize, plan: &Plan) {
        let (leased, first) = (self.advance(who).leased, self.advance(who).first.unwrap());
        let rest = Segment { born: first.0, seq: first.1, last: None };
        let mut heads = 0;
        for (_, m) in self.entries(Some(who), rest) {
            if leased & bit(m) == 0 && self.waits(Some(who), &plan.keys, m) {
                let is_head = |e: &usize| plan.keys[*e] == plan.keys[m] && self.is_ready(Some(who), *e);
                heads |= (0..MESSAGES).find(is_head).map_or(0, bit);
            }
        }
        self.advance(who).heads = heads;
        self.actors[who].step = Step::LockHeads;
    }

    /// `lock_heads`, its locks: it skips rows that others locked, and messages that have ended by now.
    pub(crate) fn lock_heads(&mut self, who: usize, plan: &Plan) {
        if !plan.has(Fault::PassesWithoutHeads) {
            let mut locked = 0;
            for m in each(self.advance(who).heads) {
                if self.is_ready(Some(who), m) && self.lock(who, m, SHARE) {
                    locked |= bit(m);
                }
            }
            self.advance(who).heads = locked;
        }
        self.actors[who].step = Step::PassWaiting;
    }

    /// The second `first_open`: passes what waits behind a head that is locked.
    pub(crate) fn pass_waiting(&mut self, who: usize, plan: &Plan) {
        let (leased, heads) = (self.advance(who).leased, self.advance(who).heads);
        let first = self.advance(who).first.unwrap();
        let is_passed = |m: usize| heads & bit(m) == 0 && each(heads).any(|h| plan.keys[h] == plan.keys[m]);
        let entries = self.entries(Some(who), Segment { born: first.0, seq: first.1, last: None });
        let open = entries.into_iter().find(|(_, m)| leased & bit(*m) == 0 && !is_passed(*m));
        self.advance(who).first = open;
        let base = self.actors[who].tx.base.clone().unwrap();
        let rest = base.segments[self.advance(who).at];
        self.finish_rest(who, plan, rest);
    }

    /// The end of `move_segment` for the rest of a priority.
    fn finish_rest(&mut self, who: usize, plan: &Plan, rest: Segment) {
        let advance = self.advance(who);
        let (born, mut seq) =
            advance.first.filter(|first| first.0 < advance.stop).unwrap_or((advance.stop, 0));
        if !plan.has(Fault::PassesOwnTransaction) && advance.writing & (1 << born) != 0 {
            seq = 0;
        }
        if !plan.has(Fault::ForgetsLocked) {
            advance.done.extend(advance.stretches.iter().filter(|stretch| stretch.born < advance.stop));
        }
        let forgets = plan.has(Fault::IgnoresOpenTransactions) || plan.has(Fault::ForgetsOpenTransactions);
        let writing = if forgets { 0 } else { advance.writing };
        for x in (rest.born..born).filter(|x| writing & (1 << x) != 0) {
            advance.done.push(Segment { born: x, seq: 0, last: Some(MESSAGES - 1) });
        }
        advance.done.push(Segment { born, seq, last: None });
        self.actors[who].step = Step::WriteCursor;
    }

    /// The insert of `advance_cursor`. Whether it wrote anything.
    pub(crate) fn write_cursor(&mut self, who: usize, plan: &Plan) -> bool {
        let base = self.actors[who].tx.base.clone().unwrap();
        let advance = self.actors[who].tx.advance.take().unwrap();
        if advance.done == base.segments {
            return false;
        }
        let rows: Vec<_> = (0..LEASES).map(|l| self.lease(Some(who), l)).filter(|l| l.items != 0).collect();
        let borns = rows.iter().fold(0_u32, |set, lease| set | 1 << lease.born);
        let oldest = (base.lease_from..32).find(|x| borns & (1 << x) != 0).unwrap_or(advance.stop);
        let open = if plan.has(Fault::ForgetsOpenLeases) { 0 } else { advance.writing };
        let late = (base.lease_late | open) & (open | borns) & ((1 << advance.stop) - 1);
        let cursor = Cursor {
            next_xid: advance.next_xid,
            lease_from: oldest.min(advance.stop),
            lease_late: late,
            segments: advance.done,
        };
        self.actors[who].tx.cursor = Some((self.next_cursor, Rc::new(cursor)));
        self.next_cursor += 1;
        true
    }
}
