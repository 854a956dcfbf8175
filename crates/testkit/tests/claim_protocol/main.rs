//! Checks the claim protocol of PostgreSQL in every interleaving of small worlds: the routines of `crates/sqlx/sql/postgres` as a
//! model. See ADR 0033.
//!
//! An actor is a program of statements. The checker lets every actor go next, at every statement, and aborts transactions and lets
//! leases run out at every moment, until no new state is left. In each state it checks that
//!
//! - a message has one holder, and only its holder can settle it;
//! - a message is not claimed before an earlier one of its key has ended;
//! - a claim finds all that can start, if nothing is under way (`hides`), and everything is delivered in the end (`loses`);
//! - no transactions wait for each other.
//!
//! All at once, with three workers, three messages, two keys, crashes and late commits, is too much for a test of seconds. So
//! there are several worlds that overlap; that one and other large ones run with `--ignored`, in a release build. Each way to
//! break the protocol (`Fault`) has a world in which the checker must find the violation.
//!
//! The model leaves out: times (a lease lives or ran out), priorities, topics and pauses, joins, retries, suspects (they are
//! due), dead and expired messages, messages stored leased, the limits of 16 segments and 20,000 entries, and the removal of
//! old cursors. Statements that read one after the other without a lock between them mostly read at one moment.
//!
//! After changing a routine, change the model: nothing here reads the SQL.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "test code: this is how it reports")]

mod claim;
mod cursor;
mod plan;
mod search;
mod settle;
mod world;

use std::time::Instant;

use plan::{Fault, Plan, Role, Worker};
use search::search;

const M1: u8 = 1;
const M2: u8 = 2;
const M3: u8 = 4;
const ALL: u8 = 7;

/// Claims up to `limit` messages, so many times, and acks them.
fn acks(limit: usize, rounds: u8) -> Worker {
    Worker { limit, rounds, acks: true, ..Worker::default() }
}

/// The same, and it may move the cursor.
fn moves(limit: usize, rounds: u8) -> Worker {
    Worker { advances: true, ..acks(limit, rounds) }
}

/// Three messages without keys, which are there from the start.
fn plan(roles: &[Role]) -> Plan {
    Plan { keys: [0; 3], published: ALL, due: 0, roles: roles.to_vec(), crashes: 0, timeouts: 0, fault: None }
}

fn holds(name: &str, plan: &Plan) {
    let start = Instant::now();
    let report = search(plan);
    eprintln!("{name}: {} states, {:.1?}", report.states, start.elapsed());
    if let Some(violation) = report.violation {
        panic!("{name}: {}\n{}", violation.what, violation.trace.join("\n"));
    }
}

/// Breaks the protocol, and expects this violation after so many steps.
fn breaks(fault: Fault, expected: &str, steps: usize, plan: Plan) {
    let start = Instant::now();
    let report = search(&Plan { fault: Some(fault), ..plan });
    let violation = report.violation.unwrap_or_else(|| panic!("{fault:?} was not noticed"));
    let (states, time) = (report.states, start.elapsed());
    eprintln!("{fault:?}: {} ({states} states, {time:.1?})\n{}", violation.what, violation.trace.join("\n"));
    assert!(violation.what.contains(expected), "{fault:?}: {}", violation.what);
    assert_eq!(violation.trace.len(), steps, "{fault:?}: steps of the shortest trace");
}

/// Three workers claim two of three messages each.
fn race() -> Plan {
    plan(&[Role::Worker(acks(2, 1)); 3])
}

/// The message of the older transaction, or that with the higher seq, may be committed last.
fn late_commit() -> Plan {
    let roles = [Role::Publisher(M2), Role::Publisher(M1), Role::Worker(moves(1, 2))];
    Plan { published: 0, ..plan(&roles) }
}

/// A claim is open for longer than another transaction, and than two moves of the cursor.
fn open_claim() -> Plan {
    let roles = [Role::Worker(acks(1, 1)), Role::Publisher(M2), Role::Worker(moves(1, 2))];
    Plan { published: M1, ..plan(&roles) }
}

/// A transaction ends that has locked messages which a move of the cursor passed.
fn crash_beside_a_move() -> Plan {
    Plan { crashes: 1, ..plan(&[Role::Worker(acks(1, 1)), Role::Worker(moves(1, 1))]) }
}

/// Two messages of a key, and one without: taken, acked or released while the cursor moves.
fn two_of_a_key() -> Plan {
    let worker = Role::Worker(Worker { releases: true, ..moves(1, 1) });
    Plan { keys: [1, 1, 0], ..plan(&[worker, worker]) }
}

/// The next message of a key is committed while the first is acked and the cursor moves.
fn published_behind() -> Plan {
    let roles = [Role::Worker(acks(1, 1)), Role::Publisher(M2), Role::Worker(moves(1, 1))];
    Plan { keys: [1, 1, 0], published: M1, ..plan(&roles) }
}

/// Two claims move the cursor while the first message of a key is acked.
fn two_moves() -> Plan {
    let mover = Role::Worker(moves(1, 1));
    Plan { keys: [1, 1, 0], published: M1 | M2, ..plan(&[Role::Worker(acks(1, 1)), mover, mover]) }
}

/// What waits for its key goes from one index to the other.
fn waiting_and_due() -> Plan {
    let worker = Worker { moves_waiting: true, ..moves(1, 2) };
    Plan { keys: [1; 3], due: M2 | M3, ..plan(&[Role::Worker(worker), Role::Worker(acks(1, 1))]) }
}

/// A lease runs out, is taken back, and its message is taken and released by another worker before its holder settles.
fn stale_holder() -> Plan {
    let worker = Worker { releases: true, ..acks(1, 2) };
    let roles = [Role::Worker(acks(1, 1)), Role::Worker(worker), Role::Reaper(1)];
    Plan { published: M1, timeouts: 1, crashes: 1, ..plan(&roles) }
}

/// A renewal cuts a lease in two that is being released.
fn partial_renewal() -> Plan {
    let worker = Worker { releases: true, ..acks(3, 1) };
    let renewal = Role::Renewer { of: 0, items: M1 | M2 };
    Plan { timeouts: 1, ..plan(&[Role::Worker(worker), renewal, Role::Worker(acks(1, 1))]) }
}

/// A worker dies, or its transaction is aborted, and its messages are taken back.
fn death() -> Plan {
    let dies = Worker { releases: true, dies: true, ..acks(2, 1) };
    let roles = [Role::Worker(dies), Role::Worker(acks(1, 1)), Role::Reaper(1)];
    Plan { crashes: 1, timeouts: 1, ..plan(&roles) }
}

const TWICE: &str = "a message was claimed while another claim held it";
const STALE: &str = "a settlement or a reap of a lease that was over was applied";
const HIDDEN: &str = "a message can start, and a claim would not find it";
const LOST: &str = "a message is never delivered";

#[test]
fn claims_race() {
    holds("race", &race());
}

#[test]
fn transactions_commit_late() {
    holds("late commit", &late_commit());
    holds("open claim", &open_claim());
    let publishers = [Role::Publisher(M2), Role::Publisher(M3), Role::Publisher(M1)];
    let roles = [&publishers[..], &[Role::Worker(moves(3, 1))]].concat();
    holds("three late commits", &Plan { published: 0, ..plan(&roles) });
}

#[test]
fn the_cursor_moves_past_locks() {
    holds("crash beside a move", &crash_beside_a_move());
    let caller = Role::Worker(Worker { is_caller: true, ..moves(1, 1) });
    let roles = [caller, Role::Worker(acks(1, 1))];
    holds("caller's transaction", &Plan { keys: [1, 1, 0], crashes: 1, ..plan(&roles) });
}

#[test]
fn keys_are_in_order() {
    holds("two of a key", &two_of_a_key());
    holds("published behind", &published_behind());
    holds("waiting and due", &waiting_and_due());
    let worker = Role::Worker(Worker { releases: true, ..moves(1, 1) });
    holds("three of a key", &Plan { keys: [1; 3], ..plan(&[worker, Role::Worker(moves(1, 2))]) });
    let roles = [Role::Publisher(M1), worker, Role::Worker(acks(1, 1))];
    holds("published in front", &Plan { keys: [1, 1, 0], published: M2, ..plan(&roles) });
}

#[test]
fn two_keys_are_in_order() {
    let worker = Role::Worker(Worker { releases: true, ..moves(1, 1) });
    let roles = [worker, Role::Worker(acks(1, 1)), Role::Worker(acks(1, 1))];
    holds("two keys", &Plan { keys: [1, 1, 2], ..plan(&roles) });
}

#[test]
fn leases_run_out() {
    holds("stale holder", &stale_holder());
    holds("death", &death());
    let dies = Worker { releases: true, dies: true, ..moves(2, 1) };
    let roles = [Role::Worker(dies), Role::Worker(acks(1, 1)), Role::Reaper(1)];
    holds("death within a key", &Plan { keys: [1, 1, 0], timeouts: 1, ..plan(&roles) });
}

#[test]
fn leases_are_renewed() {
    holds("partial renewal", &partial_renewal());
    let renewal = Role::Renewer { of: 0, items: ALL };
    let dies = Worker { releases: true, dies: true, ..acks(2, 1) };
    let roles = [Role::Worker(dies), Role::Worker(acks(1, 1)), Role::Reaper(1), renewal];
    holds("renewal", &Plan { published: M1 | M2, timeouts: 1, ..plan(&roles) });
}

#[test]
#[ignore = "minutes and gigabytes: cargo test --release -p posthaste-testkit --test claim_protocol -- --ignored"]
fn large_worlds() {
    let worker = Worker { releases: true, ..moves(1, 1) };
    let (mover, twice) = (Role::Worker(worker), Role::Worker(moves(1, 2)));
    let acker = Role::Worker(acks(1, 1));
    let dies = Role::Worker(Worker { releases: true, dies: true, ..moves(2, 1) });
    let caller = Role::Worker(Worker { is_caller: true, ..worker });
    let renewal = Role::Renewer { of: 0, items: ALL };
    let late = [Role::Publisher(M2), Role::Publisher(M1 | M3)];

    let (late_second, late_first) = (Role::Publisher(M2), Role::Publisher(M1));
    let (acks_and_moves, releases) =
        (Role::Worker(moves(1, 1)), Role::Worker(Worker { releases: true, ..acks(1, 1) }));
    let roles = [late_second, acks_and_moves, acker, acker];
    holds("all at once", &Plan { keys: [1, 1, 2], published: M1 | M3, crashes: 1, ..plan(&roles) });
    let roles = [late_first, releases, acks_and_moves, acker];
    holds("all at once, releases", &Plan { keys: [1, 1, 2], published: M2 | M3, crashes: 1, ..plan(&roles) });

    holds("two moves", &two_moves());
    holds("two keys, three workers", &Plan { keys: [1, 1, 2], ..plan(&[mover; 3]) });
    holds("two keys, a crash", &Plan { keys: [1, 1, 2], crashes: 1, ..plan(&[twice, mover]) });
    holds("late commits, two movers", &Plan { published: 0, ..plan(&[late[0], late[1], acker, mover]) });
    holds("caller", &Plan { keys: [1, 1, 0], crashes: 1, ..plan(&[caller, acker, mover]) });
    let roles = [dies, Role::Worker(moves(1, 1)), Role::Reaper(1), renewal];
    holds("renewal and cursor", &Plan { published: M1 | M2, timeouts: 1, ..plan(&roles) });
    let roles = [Role::Publisher(M3), dies, Role::Worker(moves(1, 1)), Role::Reaper(1)];
    holds("death and cursor", &Plan { published: M1 | M2, timeouts: 2, crashes: 1, ..plan(&roles) });
}

#[test]
fn without_the_second_look_two_hold_a_message() {
    breaks(Fault::NoSecondLook, TWICE, 12, race());
    breaks(Fault::OldSnapshot, TWICE, 12, race());
}

#[test]
fn without_locks_two_hold_a_message() {
    breaks(Fault::NoLock, TWICE, 12, race());
}

#[test]
fn a_cursor_that_passes_open_transactions_hides() {
    breaks(Fault::IgnoresOpenTransactions, HIDDEN, 12, late_commit());
    breaks(Fault::ForgetsOpenTransactions, HIDDEN, 16, late_commit());
    breaks(Fault::PassesOwnTransaction, HIDDEN, 31, waiting_and_due());
}

#[test]
fn a_cursor_that_forgets_open_leases_gives_a_message_twice() {
    breaks(Fault::ForgetsOpenLeases, TWICE, 34, open_claim());
}

#[test]
fn a_cursor_that_forgets_locked_messages_hides() {
    breaks(Fault::ForgetsLocked, HIDDEN, 13, crash_beside_a_move());
}

#[test]
fn without_locks_of_the_first_of_a_key_the_next_is_hidden() {
    breaks(Fault::PassesWithoutHeads, HIDDEN, 23, published_behind());
}

#[test]
fn an_ack_that_frees_nothing_hides_the_next() {
    breaks(Fault::NoFreeNext, LOST, 16, two_of_a_key());
}

#[test]
fn a_turn_that_is_not_noted_is_lost() {
    breaks(Fault::ForgetsTurns, HIDDEN, 34, two_moves());
}

#[test]
fn an_end_without_its_token_leaves_the_message_in_its_lease() {
    breaks(Fault::KeepsToken, LOST, 5, stale_holder());
}

#[test]
fn a_release_to_its_old_place_hides() {
    breaks(Fault::ReleaseKeepsBorn, HIDDEN, 21, two_of_a_key());
}

#[test]
fn a_settlement_by_an_old_look_is_stale() {
    breaks(Fault::SettlesByOldLook, STALE, 24, stale_holder());
}

#[test]
fn a_release_beside_a_renewal_hides() {
    breaks(Fault::LetsGoOnce, HIDDEN, 17, partial_renewal());
}
