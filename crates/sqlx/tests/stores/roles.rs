//! The rights of each database role on PostgreSQL: the test tries everything as each role, and `roles.txt` lists the
//! calls that succeed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use posthaste_core::{
    Birth, Change, ClaimRequest, Enqueued, ErrorKind, Failure, Filter, JoinStore, MessageId, NewJoin,
    NewMessage, Outcome, Result, Retention, Settlement, Store, StoreAdmin, Topics, TransactionalStore, Turn,
    WorkerId,
};
use posthaste_sqlx::{MySql, PgStore, Postgres, Role, SqlStore, Sqlite, StoreOptions};
use posthaste_testkit::Fixture;
use sqlx_core::executor::Executor as _;
use sqlx_core::pool::PoolOptions;

use crate::callers::POSTGRES;
use crate::fixture::{Backend, PgFixture, is_committed, session, unique};

/// The schema of a fixture.
fn schema(fixture: &PgFixture) -> &str {
    fixture.url.rsplit("%3D").next().unwrap()
}

/// A new database role with the rights of this one.
async fn granted(fixture: &PgFixture, role: Role) -> String {
    let name = format!("{}_{role:?}", unique()).to_lowercase();
    fixture.run(format!("create role {name}")).await;
    fixture.run(PgStore::grants_sql(&fixture.options, role, &name).unwrap()).await;
    name
}

/// A store that works as this database role.
async fn store_as(fixture: &PgFixture, name: &str) -> PgStore {
    let set = format!("set role {name}");
    let pool = PoolOptions::new().max_connections(1).after_connect(move |connection, _| {
        let set = set.clone();
        Box::pin(async move { Postgres::run(connection, set).await })
    });
    PgStore::from_pool(pool.connect(&fixture.url).await.unwrap(), &fixture.options).unwrap()
}

/// Every right on a table, on columns of it, or on a sequence, that a role has itself or as one of all.
const RIGHTS: &str = "
    with mine as (select oid, relname, relkind from pg_class where relnamespace = current_schema()::regnamespace),
    rights as (
        select m.relname, v.verb, null as columns
        from mine m cross join unnest(array['select', 'insert', 'update', 'delete', 'truncate', 'references', 'trigger']) v (verb)
        where m.relkind in ('r', 'v', 'm', 'p') and has_table_privilege('ROLE', m.oid, v.verb)
        union all
        select m.relname, v.verb, string_agg(a.attname, ' ' order by a.attname)
        from mine m
        join pg_attribute a on a.attrelid = m.oid and a.attname <> all('{tableoid,cmin,cmax,xmin,xmax}') and not a.attisdropped
        cross join unnest(array['select', 'insert', 'update', 'references']) v (verb)
        where m.relkind in ('r', 'v', 'm', 'p') and not has_table_privilege('ROLE', m.oid, v.verb)
          and has_column_privilege('ROLE', m.oid, a.attname, v.verb)
        group by m.relname, v.verb
        union all
        select m.relname, v.verb, null
        from mine m cross join unnest(array['usage', 'select', 'update']) v (verb)
        where m.relkind = 'S' and has_sequence_privilege('ROLE', m.oid, v.verb)
    )
    select relname || ': ' || string_agg(verb || coalesce(' (' || columns || ')', ''), ', ' order by verb)
    from rights group by relname order by relname";

/// The routines that this role gets an answer from; the others tell it that something is denied.
async fn routines(fixture: &PgFixture, name: &str) -> BTreeSet<&'static str> {
    let mut connection = fixture.users.acquire().await.unwrap();
    let mut may = BTreeSet::new();
    for routine in POSTGRES {
        for call in routine.accepted {
            Postgres::run(&mut connection, format!("begin; set local role {name}")).await.unwrap();
            match Postgres::run(&mut connection, (*call).to_owned()).await {
                Ok(()) => drop(may.insert(routine.name)),
                Err(error) => {
                    assert!(error.to_string().contains("permission denied"), "{call} as {name}: {error}");
                }
            }
            Postgres::run(&mut connection, "rollback".to_owned()).await.unwrap();
        }
    }
    may
}

/// S6, D20, O1: a call succeeds only for the roles that `roles.txt` lists. A publisher has no table at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_may_do_this_and_no_more() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    // One join and one message, so that calls about them return something.
    fixture.run("select start_join(1, join_id => '0198c7a1-0000-7000-8000-00000000000c')".to_owned()).await;
    fixture.run("select enqueue('t', 'x', dedup_key => 'once')".to_owned()).await;
    let stranger = format!("{}_stranger", unique());
    fixture
        .run(format!("create role {stranger}; grant usage on schema {} to {stranger}", schema(&fixture)))
        .await;
    let mut text = String::from("Written by the test every_role_may_do_this_and_no_more.\n");
    let mut all = vec![("Stranger".to_owned(), stranger)];
    for role in Role::ALL {
        all.push((format!("{role:?}"), granted(&fixture, role).await));
    }
    for (role, name) in &all {
        let rights = fixture.texts(&RIGHTS.replace("ROLE", name)).await;
        let may = routines(&fixture, name).await;
        if ["Publisher", "Joins"].contains(&role.as_str()) {
            assert_eq!(rights, ["outbox_version: select"], "{role} needs no right on a table");
        }
        write!(text, "\n{role}\n").unwrap();
        for right in rights {
            writeln!(text, "  {right}").unwrap();
        }
        for routine in may {
            writeln!(text, "  {routine}()").unwrap();
        }
    }
    for (_, name) in &all {
        fixture.run(format!("drop owned by {name}; drop role {name}")).await;
    }
    fixture.destroy().await;
    is_committed(Path::new("sql/postgres/roles/roles.txt"), &text);
}

/// A publisher's message is always ready: neither leased nor dead, of its own transaction, and due some day.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_forges_nothing() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let name = granted(&fixture, Role::Publisher).await;
    let mut connection = fixture.users.acquire().await.unwrap();
    Postgres::run(&mut connection, format!("set role {name}")).await.unwrap();
    for forged in [
        "insert into outbox (message_id, topic) values (gen_random_uuid(), 't')",
        "update outbox set due_at = 'infinity'",
        "delete from outbox",
        "select payload from outbox",
        "select due_at from outbox",
        "begin; lock table outbox in share mode",
        "truncate outbox",
        "insert into outbox_join (join_id) values (gen_random_uuid())",
        "select setval(pg_get_serial_sequence('outbox', 'seq'), 1)",
        "insert into outbox_lease (token, leased_until, worker, items) values (1, 'infinity', 'w', '{[0,99)}')",
        "insert into outbox_cursor (filter, next_xid, lease_from, lease_late, segments) values ('', '9', '9', '{}', '{}')",
        "insert into outbox_turn values ('k', 1)",
        "create function steal() returns int language sql as 'select 1'",
        "alter function publish_one security invoker",
    ] {
        let error = Postgres::run(&mut connection, forged.to_owned()).await.expect_err(forged).to_string();
        assert!(error.contains("permission denied") || error.contains("must be owner"), "{forged}: {error}");
        Postgres::run(&mut connection, "rollback".to_owned()).await.unwrap();
    }
    for odd in [
        "select enqueue('t', 'x', key => 'k', due_at => '-infinity')",
        "select enqueue('t', 'x', key => 'k', due_at => '1970-01-01')",
        "select publish_one(gen_random_uuid(), 't', 1::smallint, null, 'x', 'a/b', null, null, null, null, null, -9::smallint, \
         null, 'k', null, '-infinity', null, null)",
    ] {
        Postgres::run(&mut connection, odd.to_owned()).await.unwrap();
    }
    // The pool may lend this connection again.
    Postgres::run(&mut connection, "reset role".to_owned()).await.unwrap();
    drop(connection);
    let sound = "select (state = 0 and epoch = 0 and born is not null and leased_until is null and isfinite(due_at) \
                 and due_at >= created_at)::text from outbox";
    assert_eq!(fixture.texts(sound).await, ["true"; 3]);
    let claimed = fixture.store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await.unwrap();
    assert_eq!(claimed.len(), 1, "the first of the key");
    fixture.run(format!("drop owned by {name}; drop role {name}")).await;
    fixture.destroy().await;
}

/// Roles that an earlier release granted tables to can publish, and start joins, once it is updated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn earlier_grants_are_enough() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let (name, other) = (unique(), unique());
    fixture.run(format!("create role {name}; create role {other}")).await;
    for role in [&name, &other] {
        fixture.run(format!("grant usage on schema {} to {role}", schema(&fixture))).await;
    }
    let insert = "grant insert on outbox, outbox_join to";
    fixture.run(format!("{insert} {name}; grant select on outbox_version to {name}")).await;
    let publish = format!("begin; set local role {name}; select enqueue('t', 'x'), start_join(1)");
    let mut connection = fixture.users.acquire().await.unwrap();
    Postgres::run(&mut connection, publish.clone()).await.expect_err("not yet");
    Postgres::run(&mut connection, "rollback".to_owned()).await.unwrap();

    fixture.run("update outbox_version set routines = 'of an earlier release'".to_owned()).await;
    fixture.store.migrate().await.unwrap();
    Postgres::run(&mut connection, publish).await.unwrap();
    Postgres::run(&mut connection, "rollback".to_owned()).await.unwrap();
    let enqueue = format!("begin; set local role {other}; select enqueue('t', 'x')");
    let denied = Postgres::run(&mut connection, enqueue).await.expect_err("it was never granted anything");
    assert!(denied.to_string().contains("permission denied"), "{denied}");
    Postgres::run(&mut connection, "rollback".to_owned()).await.unwrap();
    drop(connection);
    fixture.run(format!("drop owned by {name}, {other}; drop role {name}, {other}")).await;
    fixture.destroy().await;
}

/// OBX-123, OBX-124: three roles, each of which can do its own work and not the others'.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_can_do_their_own_work_only() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let mut roles = Vec::new();
    let mut stores = Vec::new();
    for role in [Role::Publisher, Role::Relay, Role::Operator] {
        let name = granted(&fixture, role).await;
        stores.push(store_as(&fixture, &name).await);
        roles.push(name);
    }
    let [publisher, worker, operator] = &stores[..] else { unreachable!() };
    let refused = |outcome: Result<()>, what: &str| {
        let error = outcome.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Permission, "{what}: {error}");
        assert!(error.to_string().contains("grants"), "{error}");
    };
    let request = ClaimRequest::new(WorkerId::new("w").unwrap());
    let message = || NewMessage::bytes("t", "secret").dedup_key("once").key("k").build().unwrap();
    let requeue = Change::new(Filter::default(), "ada", "again").unwrap();
    for store in &stores {
        store.check().await.unwrap();
    }

    // The publisher publishes, and learns of duplicates; it cannot read, claim or change anything.
    publisher.enqueue(&[message()]).await.unwrap();
    assert!(publisher.enqueue(&[message()]).await.unwrap()[0].is_duplicate());
    session(publisher)
        .await
        .execute("select id from enqueue('other', 'x', dedup_key => 'once')")
        .await
        .unwrap();
    publisher.nudge().await.unwrap();
    refused(publisher.claim(&request).await.map(drop), "the publisher claims");
    refused(
        publisher.turn("job", Turn::Every(std::time::Duration::ZERO)).await.map(drop),
        "the publisher keeps house",
    );
    refused(publisher.list(&Filter::default(), None, 1).await.map(drop), "the publisher reads");
    refused(publisher.requeue(&requeue).await.map(drop), "the publisher requeues");
    refused(publisher.pause("t", "ada", "why").await.map(drop), "the publisher pauses");

    // The worker claims, settles, keeps house and publishes to itself; it cannot requeue or archive.
    let hot = WorkerId::new("hot").unwrap();
    let mut tx = worker.pool().begin().await.unwrap();
    let birth = Birth::Leased { worker: &hot, lease: std::time::Duration::from_secs(60) };
    let born = worker.insert(&mut tx, &[NewMessage::bytes("t", "x").build().unwrap()], birth).await.unwrap();
    let Enqueued::New { lease: Some(lease), .. } = born[0] else { panic!("{born:?}") };
    assert_eq!(worker.survivors(&mut tx, &[lease]).await.unwrap(), [true]);
    tx.rollback().await.unwrap();
    let claimed = worker.claim(&request).await.unwrap();
    worker.renew(&[claimed[0].lease()], std::time::Duration::from_secs(60)).await.unwrap();
    let outcome = Outcome::Fail { failure: Failure::permanent("no") };
    worker.settle(&[Settlement::new(claimed[0].lease(), outcome)]).await.unwrap();
    assert!(worker.turn("job", Turn::Every(std::time::Duration::ZERO)).await.unwrap());
    worker.reap(10).await.unwrap();
    worker.expire(10).await.unwrap();
    worker.park(10).await.unwrap();
    worker.hasten(&Topics::all(), 10).await.unwrap();
    assert!(worker.paused().await.unwrap().is_none());
    refused(worker.requeue(&requeue).await.map(drop), "the worker requeues");
    refused(worker.pause("t", "ada", "why").await.map(drop), "the worker pauses");
    refused(worker.resume("t").await.map(drop), "the worker resumes");

    // The operator lists, requeues, buries, pauses, prunes and archives; it cannot publish.
    assert!(operator.pause("t", "ada", "why").await.unwrap());
    assert_eq!(operator.pauses().await.unwrap().len(), 1);
    assert!(operator.resume("t").await.unwrap());
    assert_eq!(operator.list(&Filter::default(), None, 10).await.unwrap().records.len(), 1);
    assert_eq!(operator.stats().await.unwrap().dead.value, 1);
    assert_eq!(operator.requeue(&requeue).await.unwrap().len(), 1);
    assert_eq!(operator.bury(&requeue).await.unwrap().len(), 1);
    let now = Retention::done(std::time::Duration::ZERO).dead(std::time::Duration::ZERO);
    assert_eq!(operator.prune(&now.archive(), 10).await.unwrap(), 1);
    assert!(operator.turn("job", Turn::Every(std::time::Duration::ZERO)).await.unwrap());
    assert!(!operator.turn("job", Turn::Every(std::time::Duration::from_secs(3_600))).await.unwrap());
    refused(operator.enqueue(&[message()]).await.map(drop), "the operator publishes");

    // A join: started and filled by the publisher, counted and continued by the worker, listed and removed by the
    // operator.
    let (step, wait) = (NewMessage::bytes("step", "x").build().unwrap(), MessageId::new());
    let join = NewJoin::expecting(1).build().unwrap();
    let mut tx = publisher.pool().begin().await.unwrap();
    publisher.insert(&mut tx, std::slice::from_ref(&step), Birth::Ready).await.unwrap();
    refused(publisher.start_join(&mut tx, &join).await, "the publisher starts joins");
    tx.rollback().await.unwrap();
    fixture.run(PgStore::grants_sql(&fixture.options, Role::Joins, &roles[0]).unwrap()).await;
    let mut tx = publisher.pool().begin().await.unwrap();
    publisher.insert(&mut tx, std::slice::from_ref(&step), Birth::Ready).await.unwrap();
    assert!(!publisher.has_join(&mut tx, join.id()).await.unwrap());
    publisher.start_join(&mut tx, &join).await.unwrap();
    publisher.attach(&mut tx, join.id(), &[step.id()]).await.unwrap();
    assert!(publisher.has_join(&mut tx, join.id()).await.unwrap());
    publisher.wait_for_join(&mut tx, join.id(), wait).await.unwrap();
    tx.commit().await.unwrap();
    let claimed = worker.claim(&request).await.unwrap();
    let acked = worker.settle(&[Settlement::new(claimed[0].lease(), Outcome::Ack)]).await.unwrap();
    assert_eq!(acked.joins.len(), 1);
    assert!(worker.continue_join(join.id(), wait, Some(&step)).await.unwrap());
    assert!(operator.join(join.id()).await.unwrap().is_some());
    refused(publisher.prune_joins(std::time::Duration::ZERO, 10).await.map(drop), "the publisher prunes");
    // The publisher had the join locked when it was refused, and its pool rolls back in the background: the lock goes
    // soon.
    let begin = std::time::Instant::now();
    while operator.prune_joins(std::time::Duration::ZERO, 10).await.unwrap() == 0 {
        assert!(begin.elapsed() < std::time::Duration::from_secs(120), "the operator cannot prune");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }

    for store in &stores {
        store.close().await;
    }
    for role in &roles {
        fixture.run(format!("drop owned by {role}; drop role {role}")).await;
    }
    fixture.destroy().await;
}

/// Names from configuration are checked, and those of roles with them.
#[test]
fn hostile_names_are_refused() {
    for name in ["a\"b", "a;drop table x", "a b", "", "ünicode", "1a", &"x".repeat(33), "a`b", "a]b", "a\0b"]
    {
        assert!(
            PgStore::grants_sql(&StoreOptions::new(), Role::Relay, name).is_err() || name.len() == 33,
            "{name}"
        );
        assert!(PgStore::migration_sql(&StoreOptions::new().schema(name)).is_err(), "{name}");
        assert!(SqlStore::<Sqlite>::migration_sql(&StoreOptions::new().schema(name)).is_err(), "{name}");
        if !name.is_empty() {
            assert!(SqlStore::<MySql>::migration_sql(&StoreOptions::new().prefix(name)).is_err(), "{name}");
        }
    }
}
