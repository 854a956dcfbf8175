//! The database of a small world: rows, row locks, transactions and what each of them sees.
//!
//! Each statement is one step, or one step when it takes its snapshot and one for each lock. No step keeps a snapshot for a later
//! one, only the rows that it read with it. So the committed rows and the changes of each open transaction suffice: there are no
//! versions.

use std::rc::Rc;

use crate::cursor::{Advance, Cursor};

/// Messages are numbered from 0 in the order of their seqs; a set of messages is a bit mask.
pub(crate) const MESSAGES: usize = 3;
/// Each claim of each worker has a token of its own, from 1 on. The last is for the drain at the end.
pub(crate) const TOKENS: usize = 7;
/// The rows of leases: one for each token, and one for messages that a renewal cuts off.
pub(crate) const LEASES: usize = 2 * TOKENS;

pub(crate) type Xid = u8;

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum State {
    #[default]
    Unpublished,
    Ready,
    Over,
}

/// A row of the outbox.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Message {
    pub(crate) state: State,
    /// The epoch of the row.
    pub(crate) token: u8,
    /// The transaction that orders it in `outbox_new`; 0 is null, and the message waits by its due time.
    pub(crate) born: Xid,
}

/// A row of `outbox_lease`. Without items there is no row.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Lease {
    pub(crate) items: u8,
    pub(crate) born: Xid,
    pub(crate) ran_out: bool,
}

/// The token of a row of `outbox_lease`.
pub(crate) fn token_of(lease: usize) -> u8 {
    u8::try_from(lease % TOKENS).unwrap() + 1
}

/// The modes of row locks. Two conflict if their sum is 5 or more, as in PostgreSQL's table.
pub(crate) const KEY_SHARE: u8 = 1;
pub(crate) const SHARE: u8 = 2;
pub(crate) const UPDATE: u8 = 4;

/// An open transaction: its locks, its changes, and the variables of its routine.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Transaction {
    pub(crate) is_open: bool,
    /// 0 until its first write or lock.
    pub(crate) xid: Xid,
    pub(crate) locks: [u8; MESSAGES],
    pub(crate) lease_locks: u16,
    pub(crate) messages: [Option<Message>; MESSAGES],
    pub(crate) leases: [Option<Lease>; LEASES],
    pub(crate) turns_added: u8,
    pub(crate) turns_taken: u8,
    pub(crate) cursor: Option<(u8, Rc<Cursor>)>,
    /// The messages that it takes at its commit.
    pub(crate) claims: u8,
    /// The token under which it ends the tenure of each message at its commit.
    pub(crate) ends: [u8; MESSAGES],

    /// The messages published when it began.
    pub(crate) seen: u8,
    pub(crate) base: Option<Rc<Cursor>>,
    pub(crate) leased: u8,
    pub(crate) due: u8,
    pub(crate) waiting: u8,
    pub(crate) candidates: [Option<u8>; MESSAGES],
    pub(crate) picked: u8,
    pub(crate) items: u8,
    pub(crate) advance: Option<Box<Advance>>,
    pub(crate) held: u8,
    pub(crate) over: u8,
    pub(crate) lease_rows: u16,
    /// For each message that is over, the one behind it in its key.
    pub(crate) next: [Option<u8>; MESSAGES],
}

/// The statement that an actor executes next.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Step {
    #[default]
    Begin,
    FreeTurns,
    LockDue,
    LookNew,
    LockNew,
    LookAgain,
    Chosen,
    Advance,
    LookHeads,
    LockHeads,
    PassWaiting,
    WriteCursor,
    WriteLease,
    Holding,
    AckRows,
    CheckAcks,
    LookNext,
    FreeNext,
    EndLeases,
    ReleaseRows,
    LookLeases,
    LetGo,
    TakeBack,
    Trim,
    KeepLeases,
    Commit,
    Finished,
}

#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Actor {
    pub(crate) step: Step,
    /// How many rounds of its program it has begun.
    pub(crate) rounds: u8,
    /// The messages that it believes to hold.
    pub(crate) token: u8,
    pub(crate) items: u8,
    pub(crate) tx: Transaction,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) messages: [Message; MESSAGES],
    pub(crate) leases: [Lease; LEASES],
    /// The rows of `outbox_turn`: the message that was over.
    pub(crate) turns: u8,
    pub(crate) cursor: (u8, Rc<Cursor>),
    pub(crate) next_cursor: u8,
    pub(crate) next_xid: Xid,
    pub(crate) last_ended: Xid,
    pub(crate) actors: Vec<Actor>,
    pub(crate) crashes: u8,
    pub(crate) timeouts: u8,
    /// The token that truly holds each message, as told by the commits.
    pub(crate) holders: [u8; MESSAGES],
    pub(crate) wrong: Option<&'static str>,
}

pub(crate) fn bit(message: usize) -> u8 {
    1 << message
}

pub(crate) fn each(set: u8) -> impl Iterator<Item = usize> {
    (0..MESSAGES).filter(move |message| set & bit(*message) != 0)
}

/// The rows that a transaction sees. Without an actor: the committed ones.
pub(crate) type Viewer = Option<usize>;

impl World {
    pub(crate) fn message(&self, viewer: Viewer, message: usize) -> Message {
        let changed = viewer.and_then(|who| self.actors[who].tx.messages[message]);
        changed.unwrap_or(self.messages[message])
    }

    pub(crate) fn lease(&self, viewer: Viewer, lease: usize) -> Lease {
        let changed = viewer.and_then(|who| self.actors[who].tx.leases[lease]);
        changed.unwrap_or(self.leases[lease])
    }

    pub(crate) fn is_ready(&self, viewer: Viewer, message: usize) -> bool {
        self.message(viewer, message).state == State::Ready
    }

    /// Messages that are held by a lease with this token, as `held` and the row say.
    pub(crate) fn held(&self, viewer: Viewer, token: u8, items: u8) -> u8 {
        each(items)
            .filter(|m| self.is_ready(viewer, *m) && self.message(viewer, *m).token != token)
            .fold(0, |set, m| set | bit(m))
    }

    /// The contents of the lease rows with this token.
    pub(crate) fn items_of(&self, viewer: Viewer, token: u8) -> u8 {
        let leases = (0..LEASES).filter(|lease| token_of(*lease) == token);
        leases.fold(0, |set, lease| set | self.lease(viewer, lease).items)
    }

    pub(crate) fn xid(&mut self, who: usize) -> Xid {
        if self.actors[who].tx.xid == 0 {
            self.actors[who].tx.xid = self.next_xid;
            self.next_xid += 1;
        }
        self.actors[who].tx.xid
    }

    pub(crate) fn is_locked(&self, who: usize, message: usize, mode: u8) -> bool {
        let others = self.actors.iter().enumerate().filter(|(other, _)| *other != who);
        others.into_iter().any(|(_, other)| {
            let held = other.tx.locks[message];
            held != 0 && held + mode >= 5
        })
    }

    /// Locks a row unless another transaction did: `skip locked`.
    pub(crate) fn lock(&mut self, who: usize, message: usize, mode: u8) -> bool {
        if self.is_locked(who, message, mode) {
            return false;
        }
        self.xid(who);
        let held = &mut self.actors[who].tx.locks[message];
        *held = mode.max(*held);
        true
    }

    pub(crate) fn is_lease_locked(&self, who: usize, lease: usize) -> bool {
        let others = self.actors.iter().enumerate().filter(|(other, _)| *other != who);
        others.into_iter().any(|(_, other)| other.tx.lease_locks & (1 << lease) != 0)
    }

    pub(crate) fn lock_lease(&mut self, who: usize, lease: usize) -> bool {
        if self.is_lease_locked(who, lease) {
            return false;
        }
        self.xid(who);
        self.actors[who].tx.lease_locks |= 1 << lease;
        true
    }

    pub(crate) fn change(&mut self, who: usize, message: usize, row: Message) {
        self.xid(who);
        self.actors[who].tx.messages[message] = Some(row);
    }

    pub(crate) fn change_lease(&mut self, who: usize, lease: usize, row: Lease) {
        self.xid(who);
        self.actors[who].tx.leases[lease] = Some(row);
    }

    /// The xids of open transactions, as bits.
    pub(crate) fn running(&self) -> u32 {
        self.actors.iter().filter(|actor| actor.tx.xid != 0).fold(0, |set, actor| set | 1 << actor.tx.xid)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.actors.iter().all(|actor| !actor.tx.is_open)
    }

    /// Ends a transaction without a trace of its changes.
    pub(crate) fn abort(&mut self, who: usize) {
        self.last_ended = self.last_ended.max(self.actors[who].tx.xid);
        self.actors[who].tx = Transaction::default();
    }

    /// Commits, and judges whether the transaction's changes were right.
    pub(crate) fn commit(&mut self, who: usize, keys: &[u8; MESSAGES]) {
        let tx = std::mem::take(&mut self.actors[who].tx);
        self.last_ended = self.last_ended.max(tx.xid);
        for message in 0..MESSAGES {
            let token = tx.ends[message];
            if token != 0 {
                if self.holders[message] != token {
                    self.wrong.get_or_insert("a settlement or a reap of a lease that was over was applied");
                }
                self.holders[message] = 0;
            }
        }
        for (row, changed) in self.messages.iter_mut().zip(tx.messages) {
            *row = changed.unwrap_or(*row);
        }
        for (row, changed) in self.leases.iter_mut().zip(tx.leases) {
            *row = changed.unwrap_or(*row);
        }
        self.turns = (self.turns & !tx.turns_taken) | tx.turns_added;
        if let Some(cursor) = tx.cursor
            && cursor.0 > self.cursor.0
        {
            self.cursor = cursor;
        }
        for message in each(tx.claims) {
            if self.holders[message] != 0 {
                self.wrong.get_or_insert("a message was claimed while another claim held it");
            } else if !self.is_ready(None, message) {
                self.wrong.get_or_insert("a message was claimed after it was over");
            }
            self.holders[message] = self.actors[who].token;
            let is_earlier = |e: &usize| keys[*e] == keys[message] && self.is_ready(None, *e);
            if keys[message] != 0 && each(tx.seen & (bit(message) - 1)).any(|e| is_earlier(&e)) {
                self.wrong
                    .get_or_insert("a message was claimed while an earlier one of its key was not over");
            }
        }
        for message in 0..MESSAGES {
            let counts = |lease: &usize| {
                self.leases[*lease].items & bit(message) != 0
                    && self.held(None, token_of(*lease), bit(message)) != 0
            };
            if (0..LEASES).filter(counts).count() > 1 {
                self.wrong.get_or_insert("a message is in two leases that count");
            }
        }
    }

    /// Renames transactions and cursors so that worlds that differ in numbers alone are one. Keeps their order, and whether one
    /// follows the last that ended: statements compare nothing else.
    pub(crate) fn canonicalize(&mut self) {
        let mut xids: u32 = 1 | 1 << self.last_ended | 1 << (self.last_ended + 1);
        let mut cursors: u32 = 1 << self.cursor.0;
        let note = |set: &mut u32, message: &Message| *set |= 1 << message.born;
        self.messages.iter().for_each(|message| note(&mut xids, message));
        self.leases.iter().for_each(|lease| xids |= 1 << lease.born);
        xids |= self.cursor.1.xids();
        for actor in &self.actors {
            let tx = &actor.tx;
            xids |= 1 << tx.xid;
            tx.messages.iter().flatten().for_each(|message| note(&mut xids, message));
            tx.leases.iter().flatten().for_each(|lease| xids |= 1 << lease.born);
            if let Some((id, cursor)) = &tx.cursor {
                cursors |= 1 << id;
                xids |= cursor.xids();
            }
            xids |= tx.base.as_ref().map_or(0, |base| base.xids());
            xids |= tx.advance.as_ref().map_or(0, |advance| advance.xids());
        }
        let rank = |set: u32, n: u8| u8::try_from((set & ((1 << n) - 1)).count_ones()).unwrap();
        let (next_cursor, next_xid) = (rank(cursors, self.next_cursor), rank(xids, self.next_xid));
        if next_cursor == self.next_cursor && next_xid == self.next_xid {
            return;
        }
        let xid = |n: u8| rank(xids, n);
        let rename_cursor = |cursor: &mut Rc<Cursor>| {
            let renamed = cursor.renamed(&xid);
            if renamed != **cursor {
                *cursor = Rc::new(renamed);
            }
        };
        (self.next_cursor, self.next_xid) = (next_cursor, next_xid);
        self.last_ended = xid(self.last_ended);
        self.messages.iter_mut().for_each(|message| message.born = xid(message.born));
        self.leases.iter_mut().for_each(|lease| lease.born = xid(lease.born));
        self.cursor.0 = rank(cursors, self.cursor.0);
        rename_cursor(&mut self.cursor.1);
        for actor in &mut self.actors {
            let tx = &mut actor.tx;
            tx.xid = xid(tx.xid);
            tx.messages.iter_mut().flatten().for_each(|message| message.born = xid(message.born));
            tx.leases.iter_mut().flatten().for_each(|lease| lease.born = xid(lease.born));
            if let Some((id, cursor)) = &mut tx.cursor {
                *id = rank(cursors, *id);
                rename_cursor(cursor);
            }
            tx.base.iter_mut().for_each(rename_cursor);
            tx.advance.iter_mut().for_each(|advance| advance.rename(&xid));
        }
    }
}
