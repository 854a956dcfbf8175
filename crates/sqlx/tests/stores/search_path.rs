//! PostgreSQL: functions and operators that another role has put on the search path never run with the rights of a caller of
//! posthaste's, be it a worker, an operator or a superuser.

use std::time::Duration;

use posthaste_core::{
    Birth, Change, ClaimRequest, Enqueued, Filter, JoinStore, NewJoin, NewMessage, Outcome, Retention,
    Settled, Settlement, Severity, Store, StoreAdmin, Topics, TransactionalStore, Transactions, Turn,
    WorkerId,
};
use posthaste_sqlx::{PgStore, Postgres};
use posthaste_testkit::Fixture;

use crate::fixture::{Backend, PgFixture, unique};

/// Parts of routines: what calls them has JIT off already.
#[rustfmt::skip]
const INSIDE: [&str; 39] = [
    "ack_runs", "add_join", "advance_cursor", "cursor_for", "end_leases", "ended_segments", "entries_read", "first_open", "free_next",
    "give_up_expired", "held", "is_held", "judge", "keep_leases", "leased_among", "leased_since", "leases_since",
    "let_go", "lock_free", "lock_heads", "look_due", "look_suspect", "move_segment", "new_token", "newest_cursor",
    "pick_free", "pick_in_savepoint", "pick_with_due", "publish_one", "ranges_of", "require_read_committed", "settle_locked", "split_segments", "take_back",
    "take_due", "take_new", "take_suspect", "take_turns", "trim_leases",
];

const MINUTE: Duration = Duration::from_secs(60);

/// Each is nearer to the types of a call of ours than what PostgreSQL itself has, and so is taken if it is on the path.
const DECOYS: &[&str] = &[
    "function cardinality(bigint[]) returns integer",
    "function cardinality(text[]) returns integer",
    "function unnest(bigint[]) returns setof bigint",
    "function unnest(text[]) returns setof text",
    "function unnest(smallint[]) returns setof smallint",
    "function unnest(uuid[]) returns setof uuid",
    "function unnest(int8multirange) returns setof int8range",
    "function array_fill(smallint, integer[]) returns smallint[]",
    "function array_position(text[], text) returns integer",
    "function lower(int8range) returns bigint",
    "function upper(int8range) returns bigint",
    "function format(text, text, integer, integer) returns text",
    "function format(text, text, integer) returns text",
    "function concat_decoy(text, integer) returns text",
    "function concat_decoy(text, bigint) returns text",
    "function concat_decoy(bigint, text) returns text",
    "function concat_decoy(text, oid) returns text",
    "function contains_decoy(int8multirange, bigint) returns boolean",
    "function overlaps_decoy(int8multirange, int8multirange) returns boolean",
    "function minus_decoy(int8multirange, int8multirange) returns int8multirange",
    "function times_decoy(bigint, interval) returns interval",
    "function times_decoy(numeric, integer) returns numeric",
    "function starts_decoy(name, text) returns boolean",
];

const OPERATORS: &[&str] = &[
    "|| (leftarg = text, rightarg = integer, function = concat_decoy)",
    "|| (leftarg = text, rightarg = bigint, function = concat_decoy)",
    "|| (leftarg = bigint, rightarg = text, function = concat_decoy)",
    "|| (leftarg = text, rightarg = oid, function = concat_decoy)",
    "@> (leftarg = int8multirange, rightarg = bigint, function = contains_decoy)",
    "&& (leftarg = int8multirange, rightarg = int8multirange, function = overlaps_decoy)",
    "- (leftarg = int8multirange, rightarg = int8multirange, function = minus_decoy)",
    "* (leftarg = bigint, rightarg = interval, function = times_decoy)",
    "* (leftarg = numeric, rightarg = integer, function = times_decoy)",
    "^@ (leftarg = name, rightarg = text, function = starts_decoy)",
];

/// A schema full of decoys that raise an error, and a URL whose sessions have it first on their path.
async fn decoys(fixture: &PgFixture) -> (String, String) {
    let schema = unique();
    fixture.run(format!("create schema {schema}")).await;
    let mut script = format!("set local search_path = {schema}, pg_catalog; ");
    for decoy in DECOYS {
        script += &format!(
            "create {decoy} language plpgsql as $$ begin raise exception 'hijacked: {}'; end $$; ",
            decoy.replace('\'', "")
        );
    }
    for operator in OPERATORS {
        script += &format!("create operator {schema}.{operator}; ");
    }
    let mut tx = fixture.users.begin().await.unwrap();
    Postgres::run(&mut tx, script).await.unwrap();
    tx.commit().await.unwrap();
    let own = fixture.url.rsplit("%3D").next().unwrap().to_owned();
    (schema.clone(), fixture.url.replace(&format!("%3D{own}"), &format!("%3D{schema},{own},public")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_put_on_the_path_does_not_run() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let (schema, url) = decoys(&fixture).await;
    let mut session = sqlx_core::pool::PoolOptions::<sqlx_postgres::Postgres>::new()
        .max_connections(1)
        .connect(&url)
        .await
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let hijacked = Postgres::run(&mut session, "select cardinality('{1}'::bigint[])".to_owned()).await;
    assert!(hijacked.unwrap_err().to_string().contains("hijacked"), "the decoys are in the way");

    // By SQL, as any language does it.
    let mut run = async |sql: &str| Postgres::run(&mut session, sql.to_owned()).await.expect(sql);
    run("select enqueue('t', 'x', key => 'k', priority => 3, dedup_key => 'd', headers => '{\"a\": \"b\"}')")
        .await;
    run("select enqueue('t', 'x', dedup_key => 'd', delay => '0')").await;
    for verb in [
        "defer(seq, epoch, '0')",
        "release(seq, epoch)",
        "abandon(seq, epoch, 'no', '0')",
        "renew(seq, epoch)",
    ] {
        run("update outbox set due_at = now()").await;
        run(&format!("select {verb} from claim('w', topics => array['t', 'u*'])")).await;
        run("select settle(array[seq], array[epoch], '{3}', '{0}', '{null}', '{null}', '{1}') from claim('w')").await;
        run("update outbox_lease set leased_until = now() - interval '1 s'; select reap()").await;
    }
    run("select fail(seq, epoch, 'no') from claim('w')").await;
    run("select expire(), park(), pause('p', 'ada', 'why'), resume('p')").await;
    run("select inbox_once('c', 's', gen_random_uuid(), 't', 'x'), inbox_forget('c', '1 day')").await;
    run("select enqueue_join_wait(start_join(1, expires_after => '1 hour'), 'done')").await;
    run("select attach(join_id, (select message_id from outbox limit 1)) from outbox_join").await;
    run("select cancel_join(start_join(2))").await;
    drop(session);

    // By Rust: our own connections pin their path, even if the URL has another; a pool of the user's has the hostile one.
    let ours = PgStore::connect_with(&url, &fixture.options).await.unwrap();
    let findings = ours.examine().await.unwrap();
    let found = findings.iter().find(|finding| finding.check == "search path").unwrap();
    assert_eq!((found.severity, found.found.as_str()), (Severity::Fine, "pg_catalog, pg_temp"));
    let pool = sqlx_core::pool::PoolOptions::new().max_connections(4).connect(&url).await.unwrap();
    let theirs = PgStore::from_pool(pool, &fixture.options).unwrap();
    for store in [ours, theirs] {
        fixture.clear().await;
        whole_life(&store).await;
        store.close().await;
    }
    fixture.run(format!("drop schema {schema} cascade")).await;
    fixture.destroy().await;
}

/// Everything that Rust sends: as a publisher, a worker, an operator, a consumer and a doctor.
async fn whole_life(store: &PgStore) {
    let message = |key: &str| {
        NewMessage::bytes("rust", "x").key(key).dedup_key(key).delay(Duration::ZERO).build().unwrap()
    };
    store.enqueue(&[message("a"), message("b"), message("c")]).await.unwrap();
    assert!(store.enqueue(&[message("a")]).await.unwrap()[0].is_duplicate());
    let worker = WorkerId::new("w").unwrap();
    let birth = Birth::Leased { worker: &worker, lease: MINUTE };
    let mut tx = store.begin().await.unwrap();
    let plain = || NewMessage::bytes("rust", "x").expires_after(MINUTE).build().unwrap();
    let born =
        store.insert(&mut tx, &[NewMessage::bytes("rust", "x").build().unwrap()], birth).await.unwrap();
    let Enqueued::New { lease: Some(lease), .. } = born[0] else { panic!("{born:?}") };
    assert_eq!(store.survivors(&mut tx, &[lease]).await.unwrap(), [true]);
    let step = plain();
    store.insert(&mut tx, &[step.clone(), plain()], Birth::Ready).await.unwrap();
    let join = NewJoin::expecting(1).expires_after(MINUTE).build().unwrap();
    store.start_join(&mut tx, &join).await.unwrap();
    store.attach(&mut tx, join.id(), &[step.id()]).await.unwrap();
    store.commit(tx).await.unwrap();

    let claimed = store.claim(&ClaimRequest::new(worker)).await.unwrap();
    let leases: Vec<_> = claimed.iter().map(posthaste_core::Message::lease).collect();
    store.renew(&leases, MINUTE).await.unwrap();
    let (first, rest) = leases.split_first().unwrap();
    let mut settlements: Vec<_> = rest.iter().map(|lease| Settlement::new(*lease, Outcome::Ack)).collect();
    let failure = posthaste_core::Failure::permanent("no");
    settlements.push(Settlement::new(*first, Outcome::Fail { failure }));
    let settled = store.settle(&settlements).await.unwrap().settled;
    assert!(settled.iter().all(|answer| *answer == Settled::Applied), "{settled:?}");
    store.reap(10).await.unwrap();
    store.expire(10).await.unwrap();
    store.park(10).await.unwrap();
    store.hasten(&Topics::of(["a", "b*"]).unwrap(), 10).await.unwrap();
    assert!(store.turn("job", Turn::Every(MINUTE)).await.unwrap());

    store.stats().await.unwrap();
    store.list(&Filter::default(), None, 10).await.unwrap();
    store.show(step.id()).await.unwrap();
    let change = |why: &str| Change::new(Filter::default(), "ada", why).unwrap();
    assert_eq!(store.requeue(&change("again")).await.unwrap().len(), 1);
    assert_eq!(store.bury(&change("enough")).await.unwrap().len(), 1);
    store.prune(&Retention::done(Duration::ZERO).archive(), 100).await.unwrap();
    store.prune_joins(Duration::ZERO, 10).await.unwrap();
    store.identity().await.unwrap();
    store.examine().await.unwrap();
}

/// Every routine pins its search path. Routines that run queries, which take a millisecond, never compile them first, which
/// takes a hundred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_routine_pins_its_settings() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let ours = "pronamespace = current_schema()::regnamespace";
    let path = "search_path=pg_catalog, pg_temp";
    let open = format!(
        "select proname::text from pg_proc where {ours} and not coalesce('{path}' = any(proconfig), false)"
    );
    assert_eq!(fixture.texts(&open).await, Vec::<String>::new(), "without a search path of its own");
    // What calls these has it set already, or they run no query, or nothing but one insert.
    let compiled = format!(
        "select proname::text from pg_proc where {ours} and provolatile <> 'i' and not coalesce('jit=off' = any(proconfig), false) \
         and proname <> all(array[{}])",
        INSIDE.map(|name| format!("'{name}'")).join(", ")
    );
    assert_eq!(fixture.texts(&compiled).await, Vec::<String>::new(), "with JIT");
    let wide = "select proname::text from pg_proc where pronamespace = current_schema()::regnamespace and prorows > 1000";
    assert_eq!(fixture.texts(wide).await, Vec::<String>::new(), "with estimates that make plans expensive");
    fixture.destroy().await;
}

/// The doctor names schemas on the path of our connections in which others may create something.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_others_can_write_to_is_found() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let schema = unique();
    fixture.run(format!("create schema {schema}; grant create on schema {schema} to public")).await;
    let own = fixture.url.rsplit("%3D").next().unwrap().to_owned();
    let url = fixture.url.replace(&format!("%3D{own}"), &format!("%3D{own},{schema}"));
    // A pool of the user's has the path of its URL, as our own have behind a pooler that drops start-up options.
    let pool = sqlx_core::pool::PoolOptions::new().max_connections(2).connect(&url).await.unwrap();
    let store = PgStore::from_pool(pool, &fixture.options).unwrap();
    let findings = store.examine().await.unwrap();
    let found = findings.iter().find(|finding| finding.check == "search path").unwrap();
    assert_eq!(found.severity, Severity::Warning, "{found:?}");
    assert!(found.found.contains(&format!("{schema} (PUBLIC)")), "{found:?}");
    store.close().await;
    fixture.run(format!("drop schema {schema}")).await;
    fixture.destroy().await;
}
