//! Every SQL routine inside of its caller's transaction: at every isolation level, accepted or refused, the caller alone
//! decides about its own work. A routine that is not in the lists below fails these tests.

use std::collections::BTreeSet;

use posthaste_sqlx::{MySql, Postgres};
use posthaste_testkit::Fixture;

use crate::fixture::{Backend, Connection, MySqlFixture, SqlFixture};
use crate::languages::{MYSQL_REFUSES, POSTGRES_REFUSES};

/// A routine, with calls that are acceptable by themselves, and calls that never are.
pub(crate) struct Routine {
    pub(crate) name: &'static str,
    pub(crate) accepted: &'static [&'static str],
    refused: &'static [&'static str],
}

const fn routine(
    name: &'static str,
    accepted: &'static [&'static str],
    refused: &'static [&'static str],
) -> Routine {
    Routine { name, accepted, refused }
}

/// What differs between the databases.
struct Caller {
    levels: &'static [&'static str],
    begin: fn(level: &str) -> String,
    enqueue: &'static str,
    /// Around a call that may fail, where an error would otherwise end the transaction.
    savepoint: bool,
    /// Starts three joins: one that has ended, one that has all its steps, and one that can have one more.
    joins: &'static [&'static str],
    routines: &'static [Routine],
    /// More calls that are never acceptable, one for each reason.
    refuses: &'static [(&'static str, &'static str)],
    /// The names of all routines.
    names: &'static str,
    /// Whether a valid call is refused all the same, at this level, because of the transaction around it, and the
    /// error.
    is_refused: fn(routine: &str, level: &str) -> bool,
    says: &'static str,
}

/// Calls each routine between two changes of the caller's, and ends the transaction both ways.
async fn work_is_the_callers<D: Backend>(caller: Caller) {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let listed: BTreeSet<String> = caller.routines.iter().map(|routine| routine.name.to_owned()).collect();
    let there: BTreeSet<String> = fixture.texts(caller.names).await.into_iter().collect();
    assert_eq!(listed, there, "every routine is called here");

    fixture.run("create table work (n int primary key)".to_owned()).await;
    for sql in caller.joins {
        fixture.run((*sql).to_owned()).await;
    }
    let more = Routine { name: "", accepted: &[], refused: &[] };
    let reasons: Vec<&str> = caller.refuses.iter().map(|(call, _)| *call).collect();
    let mut connection = fixture.users.acquire().await.unwrap();
    for level in caller.levels {
        for (routine, reasons) in
            caller.routines.iter().map(|routine| (routine, &[][..])).chain([(&more, &reasons[..])])
        {
            let accepted = routine.accepted.iter().map(|call| (call, false));
            let refused = routine.refused.iter().chain(reasons).map(|call| (call, true));
            for (call, is_bad) in accepted.chain(refused) {
                for commit in [true, false] {
                    let what =
                        format!("{call} at {level}, then {}", if commit { "commit" } else { "rollback" });
                    let outcome = one_call::<D>(&mut connection, &caller, level, call, commit).await;
                    if is_bad {
                        outcome.expect_err(&what);
                    } else if (caller.is_refused)(routine.name, level) {
                        let error = outcome.expect_err(&what).to_string();
                        assert!(error.contains(caller.says), "{what}: {error}");
                    } else {
                        outcome.expect(&what);
                    }
                    let (work, messages) = left(&fixture).await;
                    let expected = if commit { ("1 2", 1) } else { ("", 0) };
                    assert_eq!((work.as_str(), messages), expected, "{what}");
                    fixture.run("delete from work".to_owned()).await;
                    fixture.run(format!("delete from {}", D::TABLE)).await;
                }
            }
        }
    }
    drop(connection);
    fixture.destroy().await;
}

async fn one_call<D: Backend>(
    connection: &mut Connection<D>,
    caller: &Caller,
    level: &str,
    call: &str,
    commit: bool,
) -> Result<(), sqlx_core::Error> {
    let mut run = async |sql: &str| D::run(connection, sql.to_owned()).await;
    run(&(caller.begin)(level)).await.unwrap();
    run("insert into work values (1)").await.unwrap();
    run(caller.enqueue).await.unwrap();
    if caller.savepoint {
        run("savepoint here").await.unwrap();
    }
    let outcome = run(call).await;
    if caller.savepoint && outcome.is_err() {
        run("rollback to savepoint here").await.unwrap();
    }
    run("insert into work values (2)").await.unwrap();
    run(if commit { "commit" } else { "rollback" }).await.unwrap();
    outcome
}

/// The caller's committed state: its numbers, and how many messages.
async fn left<D: Backend>(fixture: &SqlFixture<D>) -> (String, usize) {
    let (number, mine) = match D::NAME {
        "postgres" => ("n::text", "topic = 'mine'"),
        _ => ("cast(n as char)", "topic = cast('mine' as binary)"),
    };
    let work = fixture.texts(&format!("select {number} from work order by n")).await;
    let messages = fixture.texts(&format!("select 'one' from {} where {mine}", D::TABLE)).await;
    (work.join(" "), messages.len())
}

const PUBLISH: &str = "select publish(array[gen_random_uuid()], '{other}', '{null}', '{0}', '{null}', '{x}', '{a/b}', '{null}', \
                       '{null}', '{null}', '{null}', '{null}', '{0}', '{null}', '{null}', '{null}', '{null}', '{null}')";
const PUBLISH_NONSENSE: &str = "select publish(array[gen_random_uuid()], '{other}', '{null}', '{7}', '{null}', '{x}', '{a/b}', \
                                '{null}', '{null}', '{null}', '{null}', '{null}', '{0}', '{null}', '{null}', '{null}', '{null}', \
                                '{null}')";
const PUBLISH_ONE: &str = "select publish_one(gen_random_uuid(), 'other', 0::smallint, null, 'x', 'a/b', null, null, null, null, \
                           null, 0::smallint, null, null, null, null, null, null)";
const PUBLISH_NEVER: &str = "select publish_one(gen_random_uuid(), 'other', 0::smallint, null, 'x', 'a/b', null, null, null, \
                             null, null, 0::smallint, null, null, null, 'infinity', null, null)";
const PUBLISH_NO_POLICY: &str = "select publish_one(gen_random_uuid(), 'other', 7::smallint, null, 'x', 'a/b', null, null, null, \
                                 null, null, 0::smallint, null, null, null, null, null, null)";

pub(crate) const POSTGRES: &[Routine] = &[
    routine(
        "abandon",
        &["select abandon(1, 1, 'x')", "select abandon(1, 1, null, null, null, null)"],
        &["select abandon(1, 1, 'x', '-1 hour')", "select abandon(1, 1, 'x', class => 9)"],
    ),
    routine("ack", &["select ack(1, 1)", "select ack(1, 1, null)"], &["select ack('x', 1)"]),
    routine("ack_all", &["select ack_all('{1}', '{2}', '{1}', true)"], &[]),
    routine("ack_runs", &["select ack_runs('{1}', '{2}', '{1}', true, now())"], &[]),
    routine(
        "add_join",
        &["select add_join(gen_random_uuid(), null, 1, null, null)"],
        &["select add_join(null, null, 1, null, null)"],
    ),
    routine(
        "advance_cursor",
        &["select advance_cursor(cursor_for(''), null, null, null, '{}', '{}', false)"],
        &[],
    ),
    routine(
        "attach",
        &["select attach('0198c7a1-0000-7000-8000-00000000000c', message_id) from outbox"],
        &[
            "select attach(gen_random_uuid(), gen_random_uuid())",
            "select attach('0198c7a1-0000-7000-8000-00000000000c', gen_random_uuid())",
            "select attach('0198c7a1-0000-7000-8000-00000000000a', message_id) from outbox",
            "select attach('0198c7a1-0000-7000-8000-00000000000b', message_id) from outbox",
        ],
    ),
    routine("attach_steps", &["select attach_steps(gen_random_uuid(), '{}')"], &[]),
    routine("cancel_join", &[], &["select cancel_join(gen_random_uuid())"]),
    routine(
        "choose",
        &["select choose(true, null, null, null, null, null, null, null, null, null, null, 1)"],
        &["select choose(true, null, null, null, null, null, null, null, null, null, null, -1)"],
    ),
    routine(
        "claim",
        &["select claim('w', 1, '1 s', array['nothing'])", "select claim('w', null, null, array['nothing'])"],
        &["select claim('')", "select claim('w', 0)", "select claim('w', 1, '-1 s')"],
    ),
    routine("claim_all", &["select claim_all('w', 1, '1 s', array['nothing'], null, 1, false)"], &[]),
    routine("count_steps", &["select count_steps('{}', '{}')"], &[]),
    routine("cursor_for", &["select cursor_for('')"], &[]),
    routine("defer", &["select defer(1, 1, '1 s')"], &["select defer(1, 1, null)"]),
    routine("end_join", &["select end_join(gen_random_uuid())"], &[]),
    routine("ended_segments", &["select ended_segments((cursor_for('')).segments)"], &[]),
    routine("end_leases", &["select end_leases('{1}', '{}')"], &[]),
    routine("entries_read", &["select entries_read(1)"], &[]),
    routine(
        "enqueue",
        &[
            "select enqueue('other', 'x')",
            "select enqueue('other', 'x', priority => null, headers => 'null')",
        ],
        &[
            "select enqueue('', 'x')",
            "select enqueue('t', null)",
            "select enqueue('t', 'x', priority => 40000)",
        ],
    ),
    routine("enqueue_bytes", &["select enqueue_bytes('other', 'x')"], &["select enqueue_bytes('', 'x')"]),
    routine("enqueue_join_wait", &[], &["select enqueue_join_wait(gen_random_uuid(), 't')"]),
    routine("expire", &["select expire()", "select expire(null)"], &["select expire(-1)"]),
    routine("expire_all", &["select expire_all(1)"], &["select expire_all(-1)"]),
    routine("expire_joins", &["select expire_joins(1, null)"], &["select expire_joins(-1, null)"]),
    routine(
        "fail",
        &["select fail(1, 1, 'x')", "select fail(1, 1, 'x', null)"],
        &["select fail(1, 1, 'x', 0)"],
    ),
    routine(
        "fault_of",
        &["select fault_of('t', 'x', null, 0, 0::smallint, 'block', null, null, null, 9, '{}')"],
        &[],
    ),
    routine(
        "first_open",
        &["select first_open((cursor_for('')).segments[2], '{}', null, null, '{}', '{}', '{}', '{}', false)"],
        &[],
    ),
    routine("free_next", &["select free_next('{}', '{}')"], &[]),
    routine("give_up_expired", &["select give_up_expired(1, now())"], &[]),
    routine("held", &["select held('{1}')"], &[]),
    routine(
        "inbox_forget",
        &["select inbox_forget('c', '1 day')", "select inbox_forget('c', '1 day', null)"],
        &["select inbox_forget(null, '1 day')", "select inbox_forget('c', '0')"],
    ),
    routine(
        "inbox_once",
        &["select inbox_once('c', 's', gen_random_uuid(), 't', 'x')"],
        &["select inbox_once('', 's', gen_random_uuid(), 't', 'x')"],
    ),
    routine("is_held", &["select is_held('{}', 1)"], &[]),
    routine("join_answer", &["select join_answer(0, gen_random_uuid(), null, 0, false)"], &[]),
    routine(
        "judge",
        &["select judge('{1}', '{1}', '{0}', '{0}', '{1}', '{x}', '{1}', '{1}', '{x}', '{1}')"],
        &[],
    ),
    routine("keep_leases", &["select keep_leases('{}', '{}', now())"], &[]),
    routine("leased", &["select leased()"], &[]),
    routine("leased_among", &["select leased_among('{[1,5)}', '0', '{}')"], &[]),
    routine("leased_since", &["select leased_since('0', '{}')"], &[]),
    routine("leases_since", &["select leases_since('0', '{}')"], &[]),
    routine("let_go", &["select let_go('{1}', '{1}')"], &[]),
    routine("lock_free", &["select lock_free('{1}')"], &[]),
    routine("lock_heads", &["select lock_heads(0::smallint, '0', 0, '{}')"], &[]),
    routine("look_due", &["select look_due(1, '-infinity', 0, '{}', null, null, '{}', '{}')"], &[]),
    routine("look_suspect", &["select look_suspect('1 s', '{}', null, null, '{}', '{}')"], &[]),
    routine(
        "move_segment",
        &[
            "select move_segment((cursor_for('')).segments[2], '{}', '0', '{}', null, null, '{}', '{}', false)",
        ],
        &[],
    ),
    routine("new_id", &["select new_id()"], &[]),
    routine("new_token", &["select new_token()"], &[]),
    routine("newest_cursor", &["select newest_cursor()"], &[]),
    routine("park", &["select park()", "select park(null)"], &["select park(-1)"]),
    routine("pause", &["select pause('other', 'ada', 'why')"], &["select pause('a*b', 'ada', 'why')"]),
    routine(
        "pick_free",
        &["select pick_free(cursor_for(''), false, 1, '1 s', array['nothing'], null, '{}', '{}', false)"],
        &[],
    ),
    routine(
        "pick_in_savepoint",
        &["select pick_in_savepoint(cursor_for(''), true, 1, '1 s', array['nothing'], null, '{}', '{}')"],
        &[],
    ),
    routine(
        "pick_with_due",
        &["select pick_with_due('{}', '{}', 1, '1 s', array['nothing'], null, '{}', '{}', false)"],
        &[],
    ),
    routine("publish", &[PUBLISH], &[PUBLISH_NONSENSE]),
    routine("publish_one", &[PUBLISH_ONE], &[PUBLISH_NEVER, PUBLISH_NO_POLICY]),
    routine("ranges_of", &["select ranges_of('{1}')"], &[]),
    routine("reap", &["select reap()", "select reap(null, null)"], &["select reap(-1)"]),
    routine("reap_all", &["select reap_all(1, 1)"], &["select reap_all(-1, 1)"]),
    routine("release", &["select release(1, 1)"], &[]),
    routine("renew", &["select renew(1, 1)", "select renew(1, 1, null)"], &["select renew(1, 1, '9 years')"]),
    routine("renew_all", &["select renew_all('{1}', '{1}')"], &[]),
    routine(
        "report_step",
        &["select report_step(gen_random_uuid(), gen_random_uuid(), 1::smallint)"],
        &["select report_step(gen_random_uuid(), gen_random_uuid(), 0::smallint)"],
    ),
    routine(
        "report_step_completed",
        &[],
        &["select report_step_completed(gen_random_uuid(), gen_random_uuid())"],
    ),
    routine("report_step_failed", &[], &["select report_step_failed(gen_random_uuid(), gen_random_uuid())"]),
    routine("require", &["select require(true, 'x', 'y')"], &["select require(false, 'x', 'y')"]),
    routine("require_delay", &["select require_delay('x', '1 s')"], &["select require_delay('x', '-1 s')"]),
    routine(
        "require_join",
        &["select require_join(0::smallint, gen_random_uuid())"],
        &["select require_join(1::smallint, gen_random_uuid())"],
    ),
    routine("require_lease", &["select require_lease('1 s')"], &["select require_lease('0')"]),
    routine("require_read_committed", &["select require_read_committed()"], &[]),
    routine("resume", &["select resume('other')"], &[]),
    routine("settle", &["select settle('{1}', '{1}', '{0}', '{0}', '{1}', '{x}', '{1}', null)"], &[]),
    routine(
        "settle_free",
        &["select settle_free(true, '{1}', '{1}', '{3}', '{0}', '{1}', '{x}', '{1}', true, '{1}', '{x}')"],
        &[],
    ),
    routine(
        "settle_locked",
        &["select settle_locked('{1}', '{1}', '{3}', '{0}', '{1}', '{x}', '{1}', true, '{1}', '{x}', '{}')"],
        &[],
    ),
    routine("settle_all", &["select settle_all('{1}', '{1}', '{3}', '{0}', '{1}', '{x}', '{1}')"], &[]),
    routine("split_segment", &["select split_segment((cursor_for('')).segments, 5::smallint)"], &[]),
    routine("split_segments", &["select split_segments((cursor_for('')).segments, null)"], &[]),
    routine(
        "start_join",
        &["select start_join(1)", "select start_join(1, join_id => null)"],
        &["select start_join(0)", "select start_join(1, expires_after => '-1 s')"],
    ),
    routine("take_back", &["select take_back('{}', 1, 5, now())"], &[]),
    routine("take_due", &["select take_due(1, '{}', array['nothing'], null, '{}', '{}', false)"], &[]),
    routine("take_new", &["select take_new('{}', '{}', 1, array['nothing'], null, '{}', '{}')"], &[]),
    routine("take_suspect", &["select take_suspect(1)"], &[]),
    routine("take_turns", &["select take_turns()"], &[]),
    routine("trim_leases", &["select trim_leases('{}')"], &[]),
    routine("uncount_steps", &["select uncount_steps('{}')"], &[]),
    routine("twins", &["select twins(array[gen_random_uuid()], '{x}')"], &[]),
    routine("wait_for_join", &["select wait_for_join(gen_random_uuid(), gen_random_uuid())"], &[]),
    routine("wake_waits", &["select wake_waits('{}')"], &[]),
];

/// Routines that take, keep or free messages: refused at levels where a snapshot is older than the locks.
const NEEDS_READ_COMMITTED: &[&str] = &[
    "abandon",
    "ack",
    "ack_all",
    "claim",
    "claim_all",
    "defer",
    "expire",
    "expire_all",
    "fail",
    "park",
    "reap",
    "reap_all",
    "release",
    "renew",
    "renew_all",
    "require_read_committed",
    "settle",
    "settle_all",
    "settle_free",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_postgres_functions_leave_the_callers_work_alone() {
    work_is_the_callers::<Postgres>(Caller {
        levels: &["read uncommitted", "read committed", "repeatable read", "serializable"],
        begin: |level| format!("begin isolation level {level}"),
        enqueue: "select enqueue('mine', 'x')",
        savepoint: true,
        joins: &[
            "select start_join(1, join_id => '0198c7a1-0000-7000-8000-00000000000a')",
            "select cancel_join('0198c7a1-0000-7000-8000-00000000000a')",
            "select start_join(1, join_id => '0198c7a1-0000-7000-8000-00000000000b')",
            "select attach('0198c7a1-0000-7000-8000-00000000000b', id) from enqueue('step', 'x')",
            "select start_join(1000, join_id => '0198c7a1-0000-7000-8000-00000000000c')",
            "delete from outbox",
        ],
        routines: POSTGRES,
        refuses: POSTGRES_REFUSES,
        names: "select distinct proname::text from pg_proc where pronamespace = current_schema()::regnamespace",
        is_refused: |routine, level| {
            !level.starts_with("read ") && NEEDS_READ_COMMITTED.contains(&routine)
        },
        says: "cannot be claimed or settled at isolation level",
    })
    .await;
}

const ID: &str = "0198c7a1-0000-7000-8000-000000000001";

const MYSQL: &[Routine] = &[
    routine(
        "abandon",
        &[
            "call posthaste_abandon(1, 1, 'x', null, 1, 10)",
            "call posthaste_abandon(1, 1, null, null, null, null)",
        ],
        &["call posthaste_abandon(1, 1, 'x', -1, 1, 10)", "call posthaste_abandon(1, 1, 'x', null, 9, 10)"],
    ),
    routine("ack", &["call posthaste_ack(1, 1, true)", "call posthaste_ack(1, 1, null)"], &[]),
    routine(
        "attach",
        &["call posthaste_attach('0198c7a1-0000-7000-8000-00000000000c', @id)"],
        &[
            "call posthaste_attach(uuid(), uuid())",
            "call posthaste_attach('0198c7a1-0000-7000-8000-00000000000c', uuid())",
            "call posthaste_attach('0198c7a1-0000-7000-8000-00000000000a', @id)",
            "call posthaste_attach('0198c7a1-0000-7000-8000-00000000000b', @id)",
        ],
    ),
    routine("attach_steps", &["call posthaste_attach_steps(repeat('x', 16), '[]', false)"], &[]),
    routine("cancel_join", &[], &["call posthaste_cancel_join('0198c7a1-0000-7000-8000-000000000001')"]),
    routine(
        "claim",
        &[
            "call posthaste_claim('w', 1, 1000000, null, null)",
            "call posthaste_claim('w', null, null, 'null', 'null')",
        ],
        &[
            "call posthaste_claim('', 1, 1000000, null, null)",
            "call posthaste_claim('w', 0, 1000000, null, null)",
            "call posthaste_claim('w', 1, 1, null, null)",
            "call posthaste_claim('w', 1, 1000000, 'x', null)",
            "call posthaste_claim('w', 1, 1000000, null, '{}')",
        ],
    ),
    routine("continue_join", &["call posthaste_continue_join(repeat('x', 16), repeat('y', 16))"], &[]),
    routine("count_steps", &["call posthaste_count_steps('[]', utc_timestamp(6))"], &[]),
    routine(
        "defer",
        &["call posthaste_defer(1, 1, 1000)"],
        &["call posthaste_defer(1, 1, null)", "call posthaste_defer(1, 1, -1)"],
    ),
    routine("end_join", &["call posthaste_end_join(repeat('x', 16), false)"], &[]),
    routine(
        "enqueue",
        &[
            "call posthaste_enqueue('other', 'x', null, @id, @duplicate)",
            "call posthaste_enqueue('other', 'x', 'null', @id, @duplicate)",
        ],
        &[
            "call posthaste_enqueue('', 'x', null, @id, @duplicate)",
            "call posthaste_enqueue('t', null, null, @id, @duplicate)",
            "call posthaste_enqueue('t', 'x', 'no json', @id, @duplicate)",
            "call posthaste_enqueue('t', 'x', '{\"kee\": null}', @id, @duplicate)",
            "call posthaste_enqueue('t', 'x', '{\"priority\": 99999}', @id, @duplicate)",
        ],
    ),
    routine(
        "enqueue_join_wait",
        &[],
        &[
            "call posthaste_enqueue_join_wait('0198c7a1-0000-7000-8000-000000000001', 't', null, @id)",
            "call posthaste_enqueue_join_wait('0198c7a1-0000-7000-8000-000000000001', '', null, @id)",
        ],
    ),
    routine(
        "expire",
        &["call posthaste_expire(10)", "call posthaste_expire(null)"],
        &["call posthaste_expire(-1)"],
    ),
    routine("expire_join", &["call posthaste_expire_join(repeat('x', 16))"], &[]),
    routine("expire_joins", &["call posthaste_expire_joins(1, null, utc_timestamp(6))"], &[]),
    routine(
        "fail",
        &["call posthaste_fail(1, 1, 'x', 4)", "call posthaste_fail(1, 1, 'x', null)"],
        &["call posthaste_fail(1, 1, 'x', 0)"],
    ),
    routine(
        "hasten",
        &["call posthaste_hasten(null, null, 10)", "call posthaste_hasten('[\"a\"]', '[]', null)"],
        &["call posthaste_hasten(null, null, -1)"],
    ),
    routine(
        "inbox_forget",
        &["call posthaste_inbox_forget('c', 1000, 10)", "call posthaste_inbox_forget('c', 1000, null)"],
        &["call posthaste_inbox_forget(null, 1000, 10)", "call posthaste_inbox_forget('c', 0, 10)"],
    ),
    routine(
        "inbox_once",
        &["call posthaste_inbox_once('c', 's', uuid(), 't', 'x', 'null', @once)"],
        &["call posthaste_inbox_once('', 's', uuid(), 't', 'x', null, @once)"],
    ),
    routine(
        "join_answer",
        &["call posthaste_join_answer(1, repeat('x', 16), null, 0, false, false)"],
        &["call posthaste_join_answer(1, repeat('x', 16), null, 0, false, true)"],
    ),
    routine("joins", &["call posthaste_joins(null, null, null, null, 10)"], &[]),
    routine(
        "list",
        &["call posthaste_list(0, null, null, null, null, null, null, null, null, null, null, 10)"],
        &[],
    ),
    routine("over", &["call posthaste_over(1, 1, 10)"], &[]),
    routine("over_joins", &["call posthaste_over_joins(1, 10)"], &[]),
    routine("park", &["call posthaste_park(10)", "call posthaste_park(null)"], &["call posthaste_park(-1)"]),
    routine(
        "pause",
        &["call posthaste_pause('other', 'ada', 'why')"],
        &["call posthaste_pause('a*b', 'ada', 'why')"],
    ),
    routine("prune_joins", &["call posthaste_prune_joins('[]')"], &[]),
    routine(
        "reap",
        &["call posthaste_reap(10, 5)", "call posthaste_reap(null, null)"],
        &["call posthaste_reap(-1, 5)"],
    ),
    routine("release", &["call posthaste_release(1, 1)"], &[]),
    routine(
        "renew",
        &["call posthaste_renew('[[1, 1]]', 1000000)", "call posthaste_renew('[[1, 1]]', null)"],
        &["call posthaste_renew('[[1, 1]]', 1)", "call posthaste_renew('no json', 1000000)"],
    ),
    routine("report_step", &["call posthaste_report_step(repeat('x', 16), repeat('y', 16), 1, false)"], &[]),
    routine("report_step_completed", &[], &["call posthaste_report_step_completed(uuid(), uuid())"]),
    routine("report_step_failed", &[], &["call posthaste_report_step_failed(uuid(), uuid())"]),
    routine("resume", &["call posthaste_resume('other')"], &[]),
    routine(
        "select",
        &["call posthaste_select(true, null, null, null, null, null, null, null, null, null, null, 10)"],
        &[],
    ),
    routine(
        "settle",
        &[
            "call posthaste_settle('[[1, 1, 0, 0, null, null, 10]]', true)",
            "call posthaste_settle('[]', null)",
        ],
        &["call posthaste_settle('no json', true)"],
    ),
    routine(
        "start_join",
        &["call posthaste_start_join(1, 'null', @join)"],
        &["call posthaste_start_join(0, null, @join)", "call posthaste_start_join(1, '{\"x\": 1}', @join)"],
    ),
    routine("stats", &["call posthaste_stats(10)"], &[]),
    routine("topics", &["call posthaste_topics(10)"], &[]),
    routine("turn", &["call posthaste_turn('job', 1, null)"], &["call posthaste_turn('job', null, null)"]),
    routine("uncount_steps", &["call posthaste_uncount_steps('[]')"], &[]),
    routine("wait_for_join", &["call posthaste_wait_for_join(repeat('x', 16), repeat('y', 16), false)"], &[]),
    routine("wake_waits", &["call posthaste_wake_waits('[]', utc_timestamp(6))"], &[]),
];

/// Routines that open and commit a transaction of their own: refused in the caller's.
const COMMITS: &[&str] = &[
    "abandon",
    "ack",
    "claim",
    "defer",
    "expire",
    "expire_join",
    "fail",
    "hasten",
    "inbox_forget",
    "park",
    "reap",
    "release",
    "renew",
    "settle",
    "turn",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_mysql_procedures_leave_the_callers_work_alone() {
    work_is_the_callers::<MySql>(Caller {
        levels: &["read uncommitted", "read committed", "repeatable read", "serializable"],
        begin: |level| format!("set session transaction isolation level {level}; start transaction"),
        enqueue: "call posthaste_enqueue('mine', 'x', null, @id, @duplicate)",
        savepoint: false,
        joins: &[
            "call posthaste_start_join(1, '{\"join_id\": \"0198c7a1-0000-7000-8000-00000000000a\"}', @join)",
            "call posthaste_cancel_join('0198c7a1-0000-7000-8000-00000000000a')",
            "call posthaste_start_join(1, '{\"join_id\": \"0198c7a1-0000-7000-8000-00000000000b\"}', @join)",
            "call posthaste_enqueue('step', 'x', null, @step, @dup); \
             call posthaste_attach('0198c7a1-0000-7000-8000-00000000000b', @step)",
            "call posthaste_start_join(1000, '{\"join_id\": \"0198c7a1-0000-7000-8000-00000000000c\"}', @join)",
            "delete from posthaste_outbox",
        ],
        routines: MYSQL,
        refuses: MYSQL_REFUSES,
        names: "select cast(substr(routine_name, 11) as char) from information_schema.routines \
                where routine_schema = database()",
        is_refused: |routine, _| COMMITS.contains(&routine),
        says: "make it outside of your transaction",
    })
    .await;
}

/// A caller's savepoint is still there after a refused call, and so is the work before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_call_keeps_the_callers_savepoints() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    fixture.run("create table work (n int primary key)".to_owned()).await;
    let mut connection = fixture.users.acquire().await.unwrap();
    let mut run = async |sql: &str| MySql::run(&mut connection, sql.to_owned()).await;
    run("start transaction; insert into work values (1); savepoint mine; insert into work values (2)")
        .await
        .unwrap();
    run("call posthaste_claim('', 1, 1000000, null, null)").await.unwrap_err();
    run("call posthaste_reap(10, 5)").await.unwrap_err();
    run("rollback to savepoint mine; insert into work values (3); commit").await.unwrap();
    assert_eq!(fixture.texts("select cast(n as char) from work order by n").await, ["1", "3"]);
    drop(connection);
    fixture.destroy().await;
}

/// A session whose commits begin the next transaction is in none after a call, and its later work is committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_transaction_is_left_open() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    fixture.run("create table work (n int primary key)".to_owned()).await;
    let mut connection = fixture.users.acquire().await.unwrap();
    MySql::run(&mut connection, "set session completion_type = 'CHAIN'".to_owned()).await.unwrap();
    let commits = MYSQL.iter().filter(|routine| COMMITS.contains(&routine.name));
    let calls: Vec<&str> = commits.flat_map(|routine| routine.accepted).copied().collect();
    // The last one fails inside of the transaction that it began.
    for (n, call) in calls.iter().chain(&["call posthaste_settle('no json', true)"]).enumerate() {
        let outcome = MySql::run(&mut connection, (*call).to_owned()).await;
        assert_eq!(outcome.is_err(), n == calls.len(), "{call}: {outcome:?}");
        MySql::run(&mut connection, format!("insert into work values ({n})")).await.unwrap();
        let work = fixture.texts(&format!("select 'one' from work where n = {n}")).await;
        assert_eq!(work, ["one"], "{call}");
    }
    drop(connection);
    fixture.destroy().await;
}

/// The same for a message that is stored already: the caller learns which, at every level, and goes on.
async fn duplicates_at_every_level<D: Backend>(begin: fn(&str) -> String, enqueue: &str, twin: &str) {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    fixture.run("create table work (n int primary key)".to_owned()).await;
    fixture.run(enqueue.to_owned()).await;
    let mut connection = fixture.users.acquire().await.unwrap();
    let levels = ["read uncommitted", "read committed", "repeatable read", "serializable"];
    for (n, level) in levels.iter().enumerate() {
        D::run(&mut connection, begin(level)).await.unwrap();
        D::run(&mut connection, format!("insert into work values ({n})")).await.unwrap();
        D::run(&mut connection, enqueue.to_owned()).await.unwrap();
        assert_eq!(D::texts(&mut connection, twin.to_owned()).await.unwrap(), [ID], "{level}");
        D::run(&mut connection, "commit".to_owned()).await.unwrap();
    }
    let count = fixture.texts(&format!("select 'one' from {}", D::TABLE)).await.len();
    assert_eq!((count, fixture.texts("select 'one' from work").await.len()), (1, levels.len()));
    drop(connection);
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_duplicates_at_every_level() {
    let enqueue = format!("select enqueue('t', 'x', message_id => '{ID}', dedup_key => 'once')");
    let twin = "select id::text from enqueue('t', 'x', dedup_key => 'once') where duplicate";
    duplicates_at_every_level::<Postgres>(|level| format!("begin isolation level {level}"), &enqueue, twin)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_duplicates_at_every_level() {
    let enqueue = format!(
        "call posthaste_enqueue('t', 'x', '{{\"message_id\": \"{ID}\", \"dedup_key\": \"once\"}}', @id, @duplicate)"
    );
    let begin = |level: &str| format!("set session transaction isolation level {level}; start transaction");
    duplicates_at_every_level::<MySql>(
        begin,
        &enqueue,
        "select cast(@id as char) from dual where @duplicate",
    )
    .await;
}
