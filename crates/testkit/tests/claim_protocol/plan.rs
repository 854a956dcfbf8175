//! A world: its messages, its actors, its failures, and the way in which the protocol is broken.

use crate::world::MESSAGES;

/// A way to break the protocol. The checker must find what each of them leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// A claim does not look at the leases again after it has locked its candidates.
    NoSecondLook,
    /// A claim does not lock its candidates.
    NoLock,
    /// The second look has the snapshot of the first, as in REPEATABLE READ.
    OldSnapshot,
    /// The cursor passes transactions that are open.
    IgnoresOpenTransactions,
    /// The cursor stops at new transactions, but keeps no segment for transactions that were open at the last move,
    /// too.
    ForgetsOpenTransactions,
    /// The cursor does not note the transactions that may yet commit a lease.
    ForgetsOpenLeases,
    /// The cursor passes messages that wait for their key without locking the first of the key.
    PassesWithoutHeads,
    /// The cursor passes messages that others have locked, and keeps no segment for them.
    ForgetsLocked,
    /// The cursor begins in the middle of the claim's own transaction, which may yet move other messages in front of that.
    PassesOwnTransaction,
    /// An ack does not look for the next message of its key.
    NoFreeNext,
    /// What `free_next` finds locked it does not note in `outbox_turn`.
    ForgetsTurns,
    /// What takes a message out of a lease does not write the token into the row.
    KeepsToken,
    /// A release keeps the message's place in `outbox_new`.
    ReleaseKeepsBorn,
    /// An ack or a release trusts the leases that it read before it had the locks of its messages. Meanwhile the message may have been
    /// taken back, claimed and released: then the row has the token of that release, and looks held.
    SettlesByOldLook,
    /// A release that has waited for a renewal does not look for the lease that the renewal cut off.
    LetsGoOnce,
}

/// A worker: claims, and then settles its messages or dies.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Worker {
    pub(crate) rounds: u8,
    pub(crate) limit: usize,
    pub(crate) acks: bool,
    pub(crate) releases: bool,
    /// It may stop to work and keep its lease.
    pub(crate) dies: bool,
    /// A claim may move the cursor.
    pub(crate) advances: bool,
    /// A claim may move what waits for its key from `outbox_due` to `outbox_new`.
    pub(crate) moves_waiting: bool,
    /// Claims are part of a transaction of the caller: they leave the locks of others alone.
    pub(crate) is_caller: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Publishes a set of messages in one transaction.
    Publisher(u8),
    Worker(Worker),
    /// Takes back what ran out, so many times.
    Reaper(u8),
    /// Renews the lease of a worker, for these messages.
    Renewer {
        of: usize,
        items: u8,
    },
}

pub(crate) struct Plan {
    /// The key of each message; 0 is none.
    pub(crate) keys: [u8; MESSAGES],
    /// The messages at the start, and which of them wait by their due time.
    pub(crate) published: u8,
    pub(crate) due: u8,
    pub(crate) roles: Vec<Role>,
    /// How many transactions may be aborted, with their actors.
    pub(crate) crashes: u8,
    /// How many leases may run out.
    pub(crate) timeouts: u8,
    pub(crate) fault: Option<Fault>,
}

impl Plan {
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// The first token of an actor.
    pub(crate) fn first_token(&self, who: usize) -> u8 {
        let rounds = |role: &Role| if let Role::Worker(worker) = role { worker.rounds } else { 0 };
        1 + self.roles[..who].iter().map(rounds).sum::<u8>()
    }

    pub(crate) fn name(&self, who: usize) -> String {
        match self.roles.get(who) {
            Some(Role::Publisher(_)) => format!("publisher {who}"),
            Some(Role::Worker(_)) => format!("worker {who}"),
            Some(Role::Reaper(_)) => format!("reaper {who}"),
            Some(Role::Renewer { of, .. }) => format!("renewal of worker {of}"),
            None => "drain".to_owned(),
        }
    }
}
