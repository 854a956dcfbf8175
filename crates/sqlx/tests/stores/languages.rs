//! The queue from other languages: nothing but the database's own command line, and both sides of it mixed.
//!
//! OBX-112, OBX-120: routines for enqueue, claim, ack, abandon, fail and reap, with the semantics of the Rust calls.

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use posthaste_core::{
    ClaimRequest, Event, FailureClass, Inbox, InboxStore, JoinId, JoinStatus, Message, MessageId, NewMessage,
    Once, Outbox, Received, Settled, State, Store, StoreAdmin, WorkerId, handled,
};
use posthaste_testkit::Fixture;

use crate::fixture::{Backend, MySqlFixture, PgFixture, SqlFixture};

/// A client that runs SQL: the answers are rows of texts.
struct Client(Vec<String>);

impl Client {
    fn psql(url: &str) -> Self {
        // The schema is in the search path; names are written out all the same where a user would.
        Self(
            ["psql", "-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-d", url]
                .map(String::from)
                .to_vec(),
        )
    }

    fn mariadb(url: &str) -> Self {
        let rest = url.strip_prefix("mysql://").unwrap();
        let (login, rest) = rest.split_once('@').unwrap();
        let (address, database) = rest.split_once('/').unwrap();
        let (host, port) = address.split_once(':').unwrap_or((address, "3306"));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let mut command =
            vec!["mariadb".to_owned(), "--no-defaults".to_owned(), "-N".to_owned(), "-B".to_owned()];
        command.push("--default-character-set=utf8mb4".to_owned());
        command.extend([
            format!("-h{host}"),
            format!("-P{port}"),
            format!("-u{user}"),
            format!("-D{database}"),
        ]);
        if !password.is_empty() {
            command.push(format!("-p{password}"));
        }
        Self(command)
    }

    fn try_run(&self, sql: &str) -> Result<Vec<Vec<String>>, String> {
        let flag = if self.0[0] == "psql" { "-c" } else { "-e" };
        let output = Command::new(&self.0[0]).args(&self.0[1..]).args([flag, sql]).output();
        let output = output.unwrap_or_else(|error| panic!("{} cannot be started: {error}", self.0[0]));
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        // Ids are binary in one of the dialects; the tests read the other columns.
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
    }

    fn run(&self, sql: &str) -> Vec<Vec<String>> {
        self.try_run(sql).unwrap_or_else(|error| panic!("{sql}\n{error}"))
    }

    fn one(&self, sql: &str) -> String {
        let rows = self.run(sql);
        assert_eq!((rows.len(), rows[0].len()), (1, 1), "{sql}: {rows:?}");
        rows[0][0].clone()
    }
}

/// How a dialect spells the calls.
struct Spelling {
    client: Client,
    enqueue: fn(topic: &str, payload: &str, key: &str, dedup: &str) -> String,
    claim: &'static str,
    ack: fn(item: &str, epoch: &str) -> String,
    abandon: fn(item: &str, epoch: &str, error: &str, delay_seconds: u32) -> String,
    defer: fn(item: &str, epoch: &str, delay_seconds: u32) -> String,
    release: fn(item: &str, epoch: &str) -> String,
    fail: fn(item: &str, epoch: &str, error: &str) -> String,
    renew: fn(item: &str, epoch: &str) -> String,
    reap: &'static str,
    now: &'static str,
}

fn postgres(url: &str) -> Spelling {
    Spelling {
        client: Client::psql(url),
        enqueue: |topic, payload, key, dedup| {
            format!("select * from enqueue('{topic}', '{payload}', key => '{key}', dedup_key => '{dedup}')")
        },
        claim: "select seq, epoch, message_id, topic, convert_from(payload, 'UTF8') from claim('shell', 10, '1 minute')",
        ack: |item, epoch| format!("select ack({item}, {epoch})"),
        abandon: |item, epoch, error, delay| {
            format!("select abandon({item}, {epoch}, '{error}', interval '{delay} seconds')")
        },
        defer: |item, epoch, delay| format!("select defer({item}, {epoch}, interval '{delay} seconds')"),
        release: |item, epoch| format!("select release({item}, {epoch})"),
        fail: |item, epoch, error| format!("select fail({item}, {epoch}, '{error}')"),
        renew: |item, epoch| format!("select renew({item}, {epoch}, interval '1 minute')"),
        reap: "select * from reap()",
        now: "update outbox set due_at = now() where state = 0; update outbox_lease set leased_until = now() - interval '1 s'",
    }
}

fn mysql(url: &str) -> Spelling {
    Spelling {
        client: Client::mariadb(url),
        enqueue: |topic, payload, key, dedup| {
            format!(
                "call posthaste_enqueue('{topic}', '{payload}', json_object('key', '{key}', 'dedup_key', '{dedup}'), @id, @dup); \
                 select @id, if(@dup, 't', 'f')"
            )
        },
        claim: "call posthaste_claim('shell', 10, 60000000, null, null)",
        ack: |item, epoch| format!("call posthaste_ack({item}, {epoch}, true)"),
        abandon: |item, epoch, error, delay| {
            format!("call posthaste_abandon({item}, {epoch}, '{error}', {delay} * 1000000, 1, 10)")
        },
        defer: |item, epoch, delay| format!("call posthaste_defer({item}, {epoch}, {delay} * 1000000)"),
        release: |item, epoch| format!("call posthaste_release({item}, {epoch})"),
        fail: |item, epoch, error| format!("call posthaste_fail({item}, {epoch}, '{error}', 4)"),
        renew: |item, epoch| format!("call posthaste_renew('[[{item}, {epoch}]]', 60000000)"),
        reap: "call posthaste_reap(1000, 5)",
        now: "update posthaste_outbox set due_at = utc_timestamp(6) where state = 0; \
              update posthaste_outbox set leased_until = utc_timestamp(6) - interval 1 second where state = 1",
    }
}

#[derive(serde::Serialize)]
struct Greeting {
    text: &'static str,
}

impl Event for Greeting {
    const TOPIC: &'static str = "greeting";
}

/// The whole life of a message, by the client alone; the Rust side only reads.
async fn whole_life<D: Backend>(fixture: SqlFixture<D>, sql: Spelling) {
    let Spelling { client, .. } = &sql;
    let enqueued = client.run(&(sql.enqueue)("order.placed", "{\"order\": 7}", "customer-1", "order-7"));
    let id: MessageId = enqueued[0][0].parse().unwrap();
    assert_eq!((enqueued[0][1].as_str(), id.as_uuid().get_version_num()), ("f", 7));
    // Again: the stored one is named.
    let again = client.run(&(sql.enqueue)("order.placed", "{\"order\": 7}", "customer-1", "order-7"));
    assert_eq!(again, [[id.to_string(), "t".to_owned()]]);

    let claim = || {
        let rows = client.run(sql.claim);
        assert_eq!(rows.len(), 1, "{rows:?}");
        (rows[0][0].clone(), rows[0][1].clone())
    };
    let (item, epoch) = claim();
    assert_eq!(client.run(sql.claim), Vec::<Vec<String>>::new(), "leased");
    assert_eq!(client.one(&(sql.renew)(&item, &epoch)), "0");
    assert_eq!(client.one(&(sql.defer)(&item, &epoch, 3600)), "0");
    assert_eq!(client.run(sql.claim).len(), 0, "deferred");
    client.run(sql.now);

    let (_, second) = claim();
    assert_eq!(client.one(&(sql.ack)(&item, &epoch)), "1", "a stale epoch is lost");
    assert_eq!(client.one(&(sql.abandon)(&item, &second, "it\u{1F600} failed", 3600)), "0");
    client.run(sql.now);

    let (_, third) = claim();
    assert_eq!(client.one(&(sql.release)(&item, &third)), "0");
    let (_, fourth) = claim();
    client.run(sql.now);
    // On MySQL and MariaDB, what only the rows of joins have stands between the two numbers.
    let reaped = client.run(sql.reap);
    assert_eq!(
        (reaped.len(), reaped[0].first(), reaped[0].last()),
        (1, Some(&"1".into()), Some(&"0".into()))
    );
    assert_eq!(client.one(&(sql.renew)(&item, &fourth)), "1");
    let (_, fifth) = claim();
    assert_eq!(client.one(&(sql.fail)(&item, &fifth, "hopeless")), "0");
    assert_eq!(client.one(&(sql.fail)("999999", "1", "gone")), "2");

    let (record, _) = fixture.store.show(id).await.unwrap().unwrap();
    assert_eq!((record.state, record.error_class), (State::Dead, Some(FailureClass::Permanent)));
    assert_eq!(record.last_error.as_deref(), Some("[BUSINESS] hopeless"));
    assert_eq!((record.message.attempts, record.message.lease_losses), (1, 1));
    assert_eq!(record.message.epoch.to_string(), fifth);
    assert_eq!(&record.message.payload[..], br#"{"order": 7}"#);
    assert_eq!(
        (record.message.key.as_deref(), record.message.topic.as_str()),
        (Some("customer-1"), "order.placed")
    );

    // A topic that ends in * is the beginning of one, as in Rust.
    client.run(&(sql.enqueue)("pattern.one", "x", "", ""));
    client.run(&(sql.enqueue)("plain", "x", "", ""));
    let claim_some = |topics: &[&str]| -> Vec<String> {
        let (list, json) = (topics.join("','"), format!("[\"{}\"]", topics.join("\",\"")));
        let call = match D::NAME {
            "postgres" => {
                format!("select topic, seq, epoch from claim('shell', 10, '1 minute', array['{list}'])")
            }
            _ => format!("call posthaste_claim('shell', 10, 60000000, '{json}', null)"),
        };
        client
            .run(&call)
            .iter()
            .flatten()
            .filter(|text| text.contains("pattern.") || *text == "plain")
            .cloned()
            .collect()
    };
    assert_eq!(claim_some(&["other.*", "other"]), Vec::<String>::new());
    assert_eq!(claim_some(&["pattern.*"]), ["pattern.one"]);
    assert_eq!(claim_some(&["other", "*"]), ["plain"]);

    // From there to here, and back.
    client.run(&(sql.enqueue)("greeting", "{\"text\":\"hello\"}", "", ""));
    let outbox = Outbox::builder(fixture.store.clone()).build().await.unwrap();
    let claimed = outbox.claim(&ClaimRequest::new(WorkerId::new("rust").unwrap())).await.unwrap();
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].json::<HashMap<String, String>>().unwrap()["text"], "hello");
    assert_eq!(outbox.ack(&[claimed[0].lease()]).await.unwrap(), [Settled::Applied]);
    outbox.enqueue(&Greeting { text: "and back" }).await.unwrap();
    let rows = client.run(sql.claim);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(client.one(&(sql.ack)(&rows[0][0], &rows[0][1])), "0");
    assert_eq!(client.one(&(sql.ack)(&rows[0][0], &rows[0][1])), "0", "an ack repeated is applied");
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_life_by_psql_alone() {
    if PgFixture::available() {
        let fixture = PgFixture::create().await;
        let sql = postgres(&fixture.url);
        whole_life(fixture, sql).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_life_by_the_mariadb_client_alone() {
    if MySqlFixture::available() {
        let fixture = MySqlFixture::create().await;
        let sql = mysql(&fixture.url);
        whole_life(fixture, sql).await;
    }
}

/// Refused calls and their errors; each reason once.
pub const POSTGRES_REFUSES: &[(&str, &str)] = &[
    ("select enqueue('', 'x')", "topic is empty"),
    ("select enqueue(null, 'x')", "topic is empty"),
    ("select enqueue('t', null)", "payload is null"),
    ("select enqueue(repeat('é', 128), 'x')", "topic has 256 bytes, the limit is 255"),
    ("select enqueue('t', 'x', key => repeat('k', 256))", "key has 256 bytes, the limit is 255"),
    ("select enqueue('t', repeat('x', 1048577))", "payload has 1048577 bytes, the limit is 1048576"),
    ("select enqueue('t', 'x', headers => '[1]')", "headers are not a JSON object of texts"),
    ("select enqueue('t', 'x', headers => '{\"a\": 1}')", "headers are not a JSON object of texts"),
    ("select enqueue('t', 'x', order_policy => 'maybe')", "order_policy is maybe"),
    ("select enqueue('t', 'x', priority => 40000)", "priority is 40000"),
    ("select enqueue('t', 'x', delay => '-1 hour')", "delay is -01:00:00"),
    ("select enqueue('t', 'x', expires_in => '200 years')", "expires_in is 200 years"),
    ("select claim('', 1)", "worker has 0 bytes"),
    ("select claim('w', 0)", "max_messages is 0"),
    ("select claim('w', 1, '-1 hour')", "lease is -01:00:00"),
    ("select renew(1, 1, '100 years')", "lease is 100 years"),
    ("select defer(1, 1, null)", "delay is null"),
    ("select abandon(1, 1, 'x', '-1 hour')", "delay is -01:00:00"),
    ("select abandon(1, 1, 'x', class => 99)", "class is 99"),
    ("select abandon(1, 1, 'x', max_age => '-1 hour')", "max_age is -01:00:00"),
    ("select fail(1, 1, 'x', 0)", "class is 0"),
];

pub const MYSQL_REFUSES: &[(&str, &str)] = &[
    ("call posthaste_enqueue('', 'x', null, @id, @dup)", "topic is empty"),
    ("call posthaste_enqueue('t', null, null, @id, @dup)", "payload is null"),
    (
        "call posthaste_enqueue(repeat('é', 128), 'x', null, @id, @dup)",
        "topic has 256 bytes, the limit is 255",
    ),
    (
        "call posthaste_enqueue('t', 'x', json_object('key', repeat('k', 256)), @id, @dup)",
        "key has 256 bytes, the limit is 255",
    ),
    ("call posthaste_enqueue('t', repeat('x', 1048577), null, @id, @dup)", "payload has 1048577 bytes"),
    (
        "call posthaste_enqueue('t', 'x', '{\"headers\": [1]}', @id, @dup)",
        "headers are not a JSON object of texts",
    ),
    (
        "call posthaste_enqueue('t', 'x', '{\"headers\": {\"a\": 1}}', @id, @dup)",
        "headers are not a JSON object",
    ),
    ("call posthaste_enqueue('t', 'x', '{\"order\": \"maybe\"}', @id, @dup)", "order is none of block"),
    ("call posthaste_enqueue('t', 'x', '{\"kee\": \"k\"}', @id, @dup)", "unknown option kee"),
    ("call posthaste_enqueue('t', 'x', '{\"Dedup_Key\": \"k\"}', @id, @dup)", "unknown option Dedup_Key"),
    ("call posthaste_enqueue('t', 'x', '{\"key \": \"k\"}', @id, @dup)", "unknown option key "),
    ("call posthaste_enqueue('t', 'x', '{\"k\\\\u0065y\": \"k\"}', @id, @dup)", "unknown option"),
    ("call posthaste_start_join(1, '{\"Metadata\": \"m\"}', @join)", "unknown option Metadata"),
    ("call posthaste_enqueue('t', 'x', 'no json', @id, @dup)", "options are not a JSON object"),
    (
        "call posthaste_enqueue('t', 'x', '{\"message_id\": \"order-1\"}', @id, @dup)",
        "message_id: give it a UUID",
    ),
    ("call posthaste_enqueue('t', 'x', '{\"priority\": \"high\"}', @id, @dup)", "priority: give it"),
    ("call posthaste_enqueue('t', 'x', '{\"priority\": 100000}', @id, @dup)", "priority: give it"),
    ("call posthaste_enqueue('t', 'x', '{\"delay_us\": -1}', @id, @dup)", "delay_us: give it"),
    ("call posthaste_enqueue('t', 'x', '{\"expires_us\": \"abc\"}', @id, @dup)", "expires_us: give it"),
    ("call posthaste_enqueue('t', 'x', '{\"dedup_key\": [1]}', @id, @dup)", "dedup_key: give it a text"),
    ("call posthaste_claim('', 1, 1000000, null, null)", "worker: give it"),
    ("call posthaste_claim('w', 0, 1000000, null, null)", "limit: give it"),
    ("call posthaste_claim('w', 1, 1, null, null)", "lease: give it"),
    ("call posthaste_claim('w', 1, 1000000, 'order.placed', null)", "topics: give a JSON array"),
    ("call posthaste_renew('[[1, 1]]', 0)", "lease: give it"),
    ("call posthaste_defer(1, 1, null)", "give a delay"),
    ("call posthaste_abandon(1, 1, 'x', null, 77, 10)", "class of 1 to 5"),
    ("call posthaste_fail(1, 1, 'x', 0)", "class of 1 to 5"),
    ("call posthaste_turn('job', null, null)", "either a period or a time"),
    ("call posthaste_turn('job', 1, 1)", "either a period or a time"),
];

/// What Rust refuses, the routines refuse, by name and before anything is written.
async fn refusals<D: Backend>(fixture: SqlFixture<D>, client: Client, calls: &[(&str, &str)]) {
    for (sql, says) in calls {
        let error = client.try_run(sql).expect_err(sql);
        assert!(error.contains(says), "{sql}\n{error}");
    }
    let everything = fixture.store.list(&posthaste_core::Filter::default(), None, 10).await.unwrap();
    assert_eq!(everything.records.len(), 0, "nothing is written");
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_functions_refuse_bad_input() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let client = Client::psql(&fixture.url);
    refusals(fixture, client, POSTGRES_REFUSES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_procedures_refuse_bad_input() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    let client = Client::mariadb(&fixture.url);
    refusals(fixture, client, MYSQL_REFUSES).await;
}

/// A message enqueued by a routine in a transaction that is rolled back was never there, and its options arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_and_transactions() {
    let store = if PgFixture::available() {
        let fixture = PgFixture::create().await;
        let client = Client::psql(&fixture.url);
        client.run("begin; select enqueue('gone', 'x'); rollback");
        client.run(
            "select enqueue('kept', 'x', delay => '1 hour', expires_in => '2 hours', priority => -3::smallint, \
             correlation_id => 'c', headers => '{\"a\": \"ü\"}', aggregate_type => 'order', aggregate_id => '7', \
             tenant_id => 't', order_policy => 'skip', content_type => 'text/plain', \
             message_id => '0198c7a1-0000-7000-8000-000000000001')",
        );
        check_options(&fixture).await;
        Some(fixture)
    } else {
        None
    };
    if let Some(fixture) = store {
        fixture.destroy().await;
    }
    if MySqlFixture::available() {
        let fixture = MySqlFixture::create().await;
        let client = Client::mariadb(&fixture.url);
        client.run("start transaction; call posthaste_enqueue('gone', 'x', null, @id, @dup); rollback");
        client.run(
            "call posthaste_enqueue('kept', 'x', '{\"delay_us\": 3600000000, \"expires_us\": 7200000000, \
             \"priority\": -3, \"correlation_id\": \"c\", \"headers\": {\"a\": \"ü\"}, \"aggregate_type\": \"order\", \
             \"aggregate_id\": \"7\", \"tenant_id\": \"t\", \"order\": \"skip\", \"content_type\": \"text/plain\", \
             \"message_id\": \"0198c7a1-0000-7000-8000-000000000001\"}', @id, @dup)",
        );
        check_options(&fixture).await;
        fixture.destroy().await;
    }
}

/// Null means absent, in every option of `enqueue`: two messages without a dedup key are two, and have no key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn null_means_absent() {
    if PgFixture::available() {
        let fixture = PgFixture::create().await;
        let client = Client::psql(&fixture.url);
        let call = "select duplicate from enqueue('t', 'x', key => null, delay => null, due_at => null, expires_in => null, \
                    priority => null, dedup_key => null, correlation_id => null, headers => 'null', aggregate_type => null, \
                    aggregate_id => null, tenant_id => null, order_policy => null, content_type => null, message_id => null, \
                    max_payload_bytes => null)";
        assert_eq!([client.one(call), client.one(call)], ["f", "f"]);
        without_options(fixture).await;
    }
    if MySqlFixture::available() {
        let fixture = MySqlFixture::create().await;
        let client = Client::mariadb(&fixture.url);
        let names = [
            "message_id",
            "key",
            "delay_us",
            "expires_us",
            "priority",
            "dedup_key",
            "correlation_id",
            "aggregate_type",
            "aggregate_id",
            "tenant_id",
            "order",
            "content_type",
            "headers",
            "max_payload_bytes",
        ];
        let options = names.map(|name| format!("\"{name}\": null")).join(", ");
        let call = format!(
            "call posthaste_enqueue('t', 'x', '{{{options}}}', @id, @dup); select if(@dup, 't', 'f')"
        );
        assert_eq!([client.one(&call), client.one(&call)], ["f", "f"]);
        client.run("call posthaste_start_join(1, '{\"grouping_key\": null, \"metadata\": null, \"expires_us\": null}', @join)");
        assert_eq!(
            client.one(
                "select count(*) from posthaste_outbox_join where grouping_key is null and expires_at is null"
            ),
            "1"
        );
        without_options(fixture).await;
    }
}

/// A blank is a value like others: only empty text and null mean none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blank_is_a_value() {
    if PgFixture::available() {
        let fixture = PgFixture::create().await;
        let client = Client::psql(&fixture.url);
        let call = "select duplicate from enqueue(' ', 'x', key => ' ', tenant_id => ' ', dedup_key => ' ')";
        assert_eq!([client.one(call), client.one(call)], ["f", "t"]);
        one_of_blanks(fixture).await;
    }
    if MySqlFixture::available() {
        let fixture = MySqlFixture::create().await;
        let client = Client::mariadb(&fixture.url);
        let options = "{\"key\": \" \", \"tenant_id\": \" \", \"dedup_key\": \" \"}";
        let call =
            format!("call posthaste_enqueue(' ', 'x', '{options}', @id, @dup); select if(@dup, 't', 'f')");
        assert_eq!([client.one(&call), client.one(&call)], ["f", "t"]);
        one_of_blanks(fixture).await;
    }
}

async fn one_of_blanks<D: Backend>(fixture: SqlFixture<D>) {
    let records = fixture.store.list(&posthaste_core::Filter::default(), None, 10).await.unwrap().records;
    let [Message { topic, key, tenant_id, .. }] =
        &records.iter().map(|record| &record.message).collect::<Vec<_>>()[..]
    else {
        panic!("{records:?}")
    };
    assert_eq!((topic.as_str(), key.as_deref(), tenant_id.as_deref()), (" ", Some(" "), Some(" ")));
    fixture.destroy().await;
}

async fn without_options<D: Backend>(fixture: SqlFixture<D>) {
    let records = fixture.store.list(&posthaste_core::Filter::default(), None, 10).await.unwrap().records;
    assert_eq!(records.len(), 2);
    for Message { key, tenant_id, correlation_id, aggregate_type, headers, content_type, priority, .. } in
        records.iter().map(|record| &record.message)
    {
        assert_eq!((key, tenant_id, correlation_id, aggregate_type), (&None, &None, &None, &None));
        assert_eq!((headers.len(), content_type.as_str(), *priority), (0, "application/json", 0));
    }
    fixture.destroy().await;
}

/// A message that could not be stored, because its number is taken, is an error and never a duplicate; and the doctor knows.
async fn taken_numbers<D: Backend>(
    fixture: SqlFixture<D>,
    client: Client,
    spoil: &str,
    enqueue: &str,
    mend: Option<&str>,
) {
    let many: Vec<_> = (0..20).map(|_| NewMessage::bytes("t", "x").build().unwrap()).collect();
    fixture.store.enqueue(&many).await.unwrap();
    client.run(spoil);
    for _ in 0..3 {
        let error = client.try_run(enqueue).expect_err("a duplicate of nothing");
        assert!(
            error.contains("Begin again") || error.contains("Out of range value for column 'seq'"),
            "{error}"
        );
    }
    let error = fixture.store.enqueue(&[NewMessage::bytes("t", "x").build().unwrap()]).await.unwrap_err();
    assert!(error.to_string().contains("posthaste doctor"), "{error}");
    let numbers = async || {
        let findings = fixture.store.examine().await.unwrap();
        findings.into_iter().find(|finding| finding.check == "numbers").unwrap()
    };
    let found = numbers().await;
    assert_eq!(found.severity, posthaste_core::Severity::Danger, "{found:?}");
    if let Some(command) = mend {
        assert!(found.remedy.as_ref().unwrap().starts_with(command), "{found:?}");
        client.run(&found.remedy.unwrap());
        client.run(enqueue);
        assert_eq!(numbers().await.severity, posthaste_core::Severity::Fine);
    }
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taken_number_is_no_duplicate() {
    if PgFixture::available() {
        let fixture = PgFixture::create().await;
        let client = Client::psql(&fixture.url);
        let spoil = "alter table outbox alter column seq restart with 1";
        taken_numbers(fixture, client, spoil, "select enqueue('t', 'x')", Some("select setval(")).await;
    }
    if MySqlFixture::available() {
        let fixture = MySqlFixture::create().await;
        let client = Client::mariadb(&fixture.url);
        let spoil = "update posthaste_outbox set seq = 9223372036854775806 order by seq desc limit 1; \
                     alter table posthaste_outbox auto_increment = 9223372036854775807; \
                     call posthaste_enqueue('t', 'x', null, @id, @dup)";
        taken_numbers(fixture, client, spoil, "call posthaste_enqueue('t', 'x', null, @id, @dup)", None)
            .await;
    }
}

async fn check_options<D: Backend>(fixture: &SqlFixture<D>) {
    let records = fixture.store.list(&posthaste_core::Filter::default(), None, 10).await.unwrap().records;
    assert_eq!(records.len(), 1);
    let message = &records[0].message;
    let expected = NewMessage::bytes("kept", "x")
        .id("0198c7a1-0000-7000-8000-000000000001".parse::<MessageId>().unwrap())
        .header("a", "ü")
        .build()
        .unwrap();
    assert_eq!((message.id, &message.headers), (expected.id(), expected.headers()));
    let seconds = |later: std::time::SystemTime| later.duration_since(message.created_at).unwrap().as_secs();
    assert_eq!((seconds(message.due_at), seconds(message.expires_at.unwrap())), (3600, 7200));
    assert_eq!((message.priority, message.order), (-3, posthaste_core::OrderPolicy::Skip));
    assert_eq!((message.correlation_id.as_deref(), message.tenant_id.as_deref()), (Some("c"), Some("t")));
    assert_eq!(
        (message.aggregate_type.as_deref(), message.aggregate_id.as_deref()),
        (Some("order"), Some("7"))
    );
    assert_eq!(message.content_type, "text/plain");
    assert!(fixture.store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await.unwrap().is_empty());
}

/// INB-006, HOT-011: how long an outage may last, and which handlers are done, can be given from other languages;
/// without them, both stay as they are.
async fn outages_and_handlers<D: Backend>(fixture: SqlFixture<D>, client: Client, calls: Calls) {
    fixture.store.enqueue(&[NewMessage::bytes("t", "x").build().unwrap()]).await.unwrap();
    let worker = WorkerId::new("w").unwrap();
    let claim = async || {
        client.run(calls.due);
        let claimed = fixture.store.claim(&ClaimRequest::new(worker.clone())).await.unwrap().remove(0);
        (claimed.item.to_string(), claimed.epoch.to_string(), claimed)
    };
    let (item, epoch, claimed) = claim().await;
    assert_eq!((claimed.failing_since, claimed.handled.len()), (None, 0));
    assert_eq!(client.one(&(calls.outage)(&item, &epoch, 3600)), "0");
    let (item, epoch, claimed) = claim().await;
    let since = claimed.failing_since.unwrap();
    assert_eq!(client.one(&(calls.release)(&item, &epoch, "mail\nsearch")), "0");
    let (item, epoch, claimed) = claim().await;
    assert_eq!(
        (claimed.failing_since, claimed.handled),
        (Some(since), vec!["mail".to_owned(), "search".to_owned()])
    );
    assert_eq!(client.one(&(calls.plain)(&item, &epoch)), "0");
    let (item, epoch, claimed) = claim().await;
    assert_eq!((claimed.failing_since, claimed.handled.len(), claimed.attempts), (Some(since), 2, 0));
    assert_eq!(client.one(&(calls.outage)(&item, &epoch, 0)), "0");
    let (record, _) = fixture.store.show(claimed.id).await.unwrap().unwrap();
    assert_eq!((record.state, record.error_class), (State::Dead, Some(FailureClass::Infrastructure)));
    assert_eq!((record.message.attempts, record.message.handled.len()), (0, 2));
    fixture.destroy().await;
}

/// How a dialect spells them.
struct Calls {
    due: &'static str,
    outage: fn(item: &str, epoch: &str, max_age_seconds: u64) -> String,
    release: fn(item: &str, epoch: &str, handled: &str) -> String,
    plain: fn(item: &str, epoch: &str) -> String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outages_and_handlers_by_psql() {
    if PgFixture::available() {
        let fixture = PgFixture::create().await;
        let client = Client::psql(&fixture.url);
        let calls = Calls {
            due: "update outbox set due_at = now() where state = 0",
            outage: |item, epoch, age| {
                format!(
                    "select abandon({item}, {epoch}, 'down', class => 2, max_age => interval '{age} seconds')"
                )
            },
            release: |item, epoch, handled| {
                format!(
                    "select * from settle(array[{item}], array[{epoch}], '{{3}}', '{{0}}', '{{null}}', '{{null}}', \
                     '{{10}}', handled => array['{handled}'])"
                )
            },
            plain: |item, epoch| format!("select abandon({item}, {epoch}, 'down', class => 3)"),
        };
        outages_and_handlers(fixture, client, calls).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outages_and_handlers_by_the_mariadb_client() {
    if MySqlFixture::available() {
        let fixture = MySqlFixture::create().await;
        let client = Client::mariadb(&fixture.url);
        let calls = Calls {
            due: "update posthaste_outbox set due_at = utc_timestamp(6) where state = 0",
            outage: |item, epoch, age| {
                format!(
                    "call posthaste_settle('[[{item}, {epoch}, 1, 0, 2, \"[INFRA] down\", 10, {}]]', true)",
                    age * 1_000_000
                )
            },
            release: |item, epoch, handled| {
                let names = handled.replace('\n', "\\\\n");
                format!(
                    "call posthaste_settle('[[{item}, {epoch}, 3, 0, null, null, 10, null, \"{names}\"]]', true)"
                )
            },
            plain: |item, epoch| format!("call posthaste_abandon({item}, {epoch}, 'down', 0, 3, 10)"),
        };
        outages_and_handlers(fixture, client, calls).await;
    }
}

/// A join that another language starts, in one transaction of its own, is counted and continued by Rust.
async fn a_join_from_elsewhere<D: Backend>(
    fixture: SqlFixture<D>,
    client: Client,
    start: fn(join: &JoinId, step: &MessageId) -> String,
    refused: &[(&str, &str)],
) {
    let (join, step) = (JoinId::new(), MessageId::new());
    client.run(&start(&join, &step));
    let outbox = Outbox::builder(fixture.store.clone())
        .on_topic("step", async |_: Message| handled())
        .on_topic("next", async |next: Message| {
            assert_eq!(&next.payload[..], br#"{"n": 1}"#);
            handled()
        })
        .build()
        .await
        .unwrap();
    let tally = outbox.drain().await.unwrap();
    assert_eq!(
        (tally.delivered, tally.failed, tally.dead),
        (3, 0, 0),
        "the step, the wait, the continuation"
    );
    let ended = fixture.store.join(join).await.unwrap().unwrap();
    assert_eq!((ended.status, ended.grouping_key.as_deref()), (JoinStatus::Completed, Some("g")));
    for (sql, says) in refused {
        let sql = sql.replace("JOIN", &join.to_string()).replace("NEW", &MessageId::new().to_string());
        let error = client.try_run(&sql).expect_err(&sql);
        assert!(error.contains(says), "{sql}\n{error}");
    }
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_by_psql() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let client = Client::psql(&fixture.url);
    let start = |join: &JoinId, step: &MessageId| {
        format!(
            "begin; select start_join(1, grouping_key => 'g', join_id => '{join}'); \
             select id from enqueue('step', '', message_id => '{step}'); \
             select attach('{join}', '{step}'), attach('{join}', '{step}'); \
             select enqueue_join_wait('{join}', 'next', '{{\"n\": 1}}', on_fail_topic => 'bad'); commit"
        )
    };
    let refused = [
        ("select start_join(0)", "expected_steps is 0"),
        ("select start_join(1, grouping_key => repeat('k', 256))", "grouping_key has more than 255 bytes"),
        ("select attach('NEW', 'NEW')", "there is no such join"),
        ("select attach('JOIN', 'NEW')", "the message is not stored"),
        ("select attach('JOIN', (enqueue('t', 'x')).id)", "the join is over"),
        ("select report_step_failed('JOIN', 'NEW')", "not a step of join"),
        ("select cancel_join('NEW')", "there is no such join"),
        ("select enqueue_join_wait('JOIN', '')", "on_complete_topic is not acceptable"),
    ];
    a_join_from_elsewhere(fixture, client, start, &refused).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_by_the_mariadb_client() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    let client = Client::mariadb(&fixture.url);
    let start = |join: &JoinId, step: &MessageId| {
        format!(
            "start transaction; \
             call posthaste_start_join(1, json_object('join_id', '{join}', 'grouping_key', 'g'), @j); \
             call posthaste_enqueue('step', '', json_object('message_id', '{step}'), @m, @dup); \
             call posthaste_attach(@j, @m); call posthaste_attach('{join}', '{step}'); \
             call posthaste_enqueue_join_wait(@j, 'next', \
                 json_object('on_complete_payload', '{{\"n\": 1}}', 'on_fail_topic', 'bad'), @w); commit"
        )
    };
    let refused = [
        ("call posthaste_start_join(0, null, @j)", "expected steps: give it at least 1"),
        ("call posthaste_start_join(1, '{\"key\": \"k\"}', @j)", "unknown option key"),
        ("call posthaste_attach('NEW', 'NEW')", "there is no such join"),
        ("call posthaste_attach('JOIN', 'NEW')", "the message is not stored"),
        ("call posthaste_report_step_failed('JOIN', 'NEW')", "not a step of the join"),
        ("call posthaste_cancel_join('NEW')", "there is no such join"),
    ];
    a_join_from_elsewhere(fixture, client, start, &refused).await;
}

/// INB-001, INB-011: a consumer in another language and one in Rust have the same inbox: what one has acted upon, the other does
/// not.
async fn an_inbox_from_elsewhere<D: Backend>(
    fixture: SqlFixture<D>,
    client: Client,
    once: fn(id: &MessageId, payload: &str) -> String,
    roll_back: fn(&str) -> String,
    forget: &str,
    refused: &[(&str, &str)],
) {
    let inbox = Inbox::new(fixture.store.clone(), "stock").unwrap();
    let here = async |id: MessageId, payload: &str| {
        let mut tx = fixture.begin().await;
        let message = Received::new("shop", id, "order.placed", payload.to_owned());
        let once = inbox.once(&mut tx, &message).await.unwrap();
        fixture.commit(tx).await;
        once
    };
    let (theirs, ours) = (MessageId::new(), MessageId::new());
    client.run(&roll_back(&once(&theirs, "{}")));
    assert_eq!(client.one(&once(&theirs, "{}")), "first", "what was rolled back was never there");
    assert_eq!(client.one(&once(&theirs, "{}")), "repeated");
    assert_eq!(client.one(&once(&theirs, "x")), "altered");
    assert_eq!((here(theirs, "{}").await, here(theirs, "x").await), (Once::Repeated, Once::Altered));
    assert_eq!(here(ours, "ü").await, Once::First);
    assert_eq!(
        (client.one(&once(&ours, "ü")), client.one(&once(&ours, "u"))),
        ("repeated".into(), "altered".into())
    );
    let record = fixture.store.remembered("stock", "shop", theirs).await.unwrap().unwrap();
    assert_eq!((record.topic.as_str(), record.payload.as_deref()), ("order.placed", Some(&b"{}"[..])));
    assert_eq!(
        record.occurred_at,
        Some(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000))
    );
    for (sql, says) in refused {
        let error = client.try_run(sql).expect_err(sql);
        assert!(error.contains(says), "{sql}\n{error}");
    }
    assert_eq!(client.one(forget), "0");
    fixture.advance(Duration::from_secs(7_200)).await;
    assert_eq!(client.one(forget), "2");
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_by_psql() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let client = Client::psql(&fixture.url);
    let once = |id: &MessageId, payload: &str| {
        format!(
            "select inbox_once('stock', 'shop', '{id}', 'order.placed', convert_to('{payload}', 'UTF8'), \
             keep_payload => true, occurred_at => to_timestamp(1700000000))"
        )
    };
    let refused = [
        ("select inbox_once('', 's', gen_random_uuid(), 't', '')", "consumer has 0 bytes"),
        ("select inbox_once(repeat('c', 101), 's', gen_random_uuid(), 't', '')", "consumer has 101 bytes"),
        ("select inbox_once('c', repeat('é', 128), gen_random_uuid(), 't', '')", "source has 256 bytes"),
        ("select inbox_once('c', 's', gen_random_uuid(), null, '')", "topic has 0 bytes"),
        ("select inbox_once('c', 's', null, 't', '')", "message_id is null"),
        ("select inbox_once('c', 's', gen_random_uuid(), 't', null)", "payload is null"),
        ("select inbox_forget('stock', '0')", "keep is 00:00:00"),
        ("select inbox_forget('stock', '-1 hour')", "keep is -01:00:00"),
        ("select inbox_forget('stock', '1 hour', 1001)", "max_messages is 1001"),
        ("select inbox_forget(null, '1 hour')", "consumer is null"),
    ];
    let roll_back = |sql: &str| format!("begin; {sql}; rollback");
    let forget = "select inbox_forget('stock', '1 hour')";
    an_inbox_from_elsewhere(fixture, client, once, roll_back, forget, &refused).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_by_the_mariadb_client() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    let client = Client::mariadb(&fixture.url);
    let once = |id: &MessageId, payload: &str| {
        format!(
            "call posthaste_inbox_once('stock', 'shop', '{id}', 'order.placed', '{payload}', \
             '{{\"keep_payload\": true, \"occurred_us\": 1700000000000000}}', @once); select @once"
        )
    };
    let refused = [
        ("call posthaste_inbox_once('', 's', uuid(), 't', '', null, @o)", "consumer: give it 1 to 100 bytes"),
        ("call posthaste_inbox_once(repeat('c', 101), 's', uuid(), 't', '', null, @o)", "consumer: give it"),
        ("call posthaste_inbox_once('c', repeat('é', 128), uuid(), 't', '', null, @o)", "source: give it"),
        ("call posthaste_inbox_once('c', 's', uuid(), null, '', null, @o)", "topic: give it"),
        ("call posthaste_inbox_once('c', 's', 'order-1', 't', '', null, @o)", "message_id: give it a UUID"),
        ("call posthaste_inbox_once('c', 's', uuid(), 't', null, null, @o)", "payload is null"),
        (
            "call posthaste_inbox_once('c', 's', uuid(), 't', '', '{\"keep\": true}', @o)",
            "unknown option keep",
        ),
        (
            "call posthaste_inbox_once('c', 's', uuid(), 't', '', '{\"occurred_us\": -1}', @o)",
            "occurred_us: give it",
        ),
        (
            "call posthaste_inbox_once('c', 's', uuid(), 't', '', '{\"keep_payload\": 1}', @o)",
            "keep_payload: give it",
        ),
        ("call posthaste_inbox_forget('stock', 0, 1000)", "give a consumer"),
        ("call posthaste_inbox_forget('stock', 3600000000, 1001)", "a limit of 1 to 1000"),
        // Forgetting commits; in an open transaction that would commit the caller's work.
        ("start transaction; call posthaste_inbox_forget('stock', 3600000000, 1000)", "make it outside"),
    ];
    let roll_back = |sql: &str| format!("start transaction; {sql}; rollback");
    let forget = "call posthaste_inbox_forget('stock', 3600000000, 1000)";
    an_inbox_from_elsewhere(fixture, client, once, roll_back, forget, &refused).await;
}

/// Pauses from other languages: topics paused here are not claimed there, and the other way round.
async fn pauses_from_elsewhere<D: Backend>(
    fixture: SqlFixture<D>,
    client: Client,
    [pause, again, resume]: [&str; 3],
    claim: &str,
    refused: &[(&str, &str)],
) {
    let store = &fixture.store;
    let yes = |rows: Vec<Vec<String>>| matches!(rows.concat().concat().as_str(), "t" | "1");
    store.enqueue(&[NewMessage::bytes("order.placed", "x").build().unwrap()]).await.unwrap();
    assert!(yes(client.run(pause)));
    assert!(!yes(client.run(again)), "it is paused already");
    let pauses = store.pauses().await.unwrap();
    assert_eq!(pauses.len(), 1);
    assert_eq!(
        (&*pauses[0].topics, &*pauses[0].by, &*pauses[0].why),
        ("order.*", "ada", "the stock is counted")
    );
    let request = ClaimRequest::new(WorkerId::new("w").unwrap());
    assert!(store.claim(&request).await.unwrap().is_empty());
    for (sql, says) in refused {
        let error = client.try_run(sql).expect_err(sql);
        assert!(error.contains(says), "{sql}\n{error}");
    }
    assert_eq!(store.pauses().await.unwrap().len(), 1);
    assert!(yes(client.run(resume)));
    assert!(!yes(client.run(resume)), "it is resumed already");
    assert!(store.pause("*", "bob", "all of it").await.unwrap());
    assert!(client.run(claim).is_empty());
    assert!(store.resume("*").await.unwrap());
    assert_eq!(client.run(claim).len(), 1);
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_by_psql() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let client = Client::psql(&fixture.url);
    let calls = [
        "select pause('order.*', 'ada', 'the stock is counted')",
        "select pause('order.*', 'bob', 'another reason')",
        "select resume('order.*')",
    ];
    let refused = [
        ("select pause('', 'a', 'b')", "topics has 0 bytes"),
        ("select pause(null, 'a', 'b')", "topics has 0 bytes"),
        ("select pause(repeat('é', 128), 'a', 'b')", "topics has 256 bytes"),
        ("select pause('a*b', 'a', 'b')", "Use * only as the last character"),
        ("select pause('a', '', 'b')", "by_whom has 0 bytes"),
        ("select pause('a', 'a', repeat('x', 1001))", "why has 1001 bytes"),
    ];
    pauses_from_elsewhere(fixture, client, calls, "select seq from claim('shell')", &refused).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_by_the_mariadb_client() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    let client = Client::mariadb(&fixture.url);
    let calls = [
        "call posthaste_pause('order.*', 'ada', 'the stock is counted')",
        "call posthaste_pause('order.*', 'bob', 'another reason')",
        "call posthaste_resume('order.*')",
    ];
    let refused = [
        ("call posthaste_pause('', 'a', 'b')", "topics: give 1 to 255 bytes"),
        ("call posthaste_pause(null, 'a', 'b')", "topics: give 1 to 255 bytes"),
        ("call posthaste_pause(repeat('é', 128), 'a', 'b')", "topics: give 1 to 255 bytes"),
        ("call posthaste_pause('a*b', 'a', 'b')", "only as the last character"),
        ("call posthaste_pause('a', '', 'b')", "who: give 1 to 100 bytes"),
        ("call posthaste_pause('a', 'a', '')", "why: give 1 to 1000 bytes"),
    ];
    let claim = "call posthaste_claim('shell', 10, 30000000, null, null)";
    pauses_from_elsewhere(fixture, client, calls, claim, &refused).await;
}
