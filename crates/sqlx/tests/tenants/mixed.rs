//! Databases of several dialects at a time.

use std::collections::BTreeMap;

use posthaste_core::{
    JoinStatus, JoinWait, MessageId, NewJoin, StoreAdmin as _, Tenants, TenantsBuilder, Topics,
};
use posthaste_sqlx::{MySql, Postgres, SqlStore, Sqlite};
use posthaste_testkit::{Fixture as _, JoinCensus, Logs, stored};
use tracing::Level;

use crate::fixture::{Backend, Connection, SqlFixture};
use crate::support::{Journal, described, draft, eventually, listened, run};

/// Messages by themselves, steps of a join, the wait for it, and the continuation.
const MESSAGES: u64 = 3;
const STEPS: u64 = 2;
const DONE: u64 = MESSAGES + STEPS + 2;

/// A tenant that publishes in its own transactions, together with rows of its own.
struct Member<D: Backend>(SqlFixture<D>);

impl<D: Backend> Member<D> {
    async fn new() -> Option<Self> {
        if !SqlFixture::<D>::available() {
            eprintln!("skipped: {} is not available", D::NAME);
            return None;
        }
        let fixture = SqlFixture::<D>::create().await;
        fixture.run("create table business (id integer not null)".to_owned()).await;
        Some(Self(fixture))
    }

    fn join(&self, builder: TenantsBuilder) -> TenantsBuilder {
        builder.tenant(D::NAME, described(&self.0, &self.0.url))
    }

    async fn row(connection: &mut Connection<D>) {
        D::run(connection, "insert into business values (1)".to_owned()).await.unwrap();
    }

    /// Publishes in transactions of its own, one of which is rolled back; returns the messages to expect.
    async fn publish(&self, tenants: &Tenants) -> Vec<MessageId> {
        let outbox = tenants.outbox::<SqlStore<D>>(D::NAME).await.unwrap();
        let mut published = Vec::new();
        for is_kept in [true, false, true] {
            let mut tx = self.0.begin().await;
            Self::row(&mut tx).await;
            let id = outbox.publish(&mut *tx, draft()).await.unwrap().id();
            if is_kept {
                self.0.commit(tx).await;
                published.push(id);
            } else {
                self.0.rollback(tx).await;
            }
        }
        let mut tx = outbox.begin().await.unwrap();
        Self::row(&mut tx).await;
        published.push(tx.publish(draft()).await.unwrap().id());
        tx.commit().await.unwrap();

        let mut tx = self.0.begin().await;
        Self::row(&mut tx).await;
        let join = NewJoin::of([draft(), draft()]).wait(JoinWait::on_complete(draft()));
        let join = outbox.start_join(&mut *tx, join).await.unwrap();
        self.0.commit(tx).await;
        published.extend(join.steps.iter().map(posthaste_core::Enqueued::id));
        published
    }

    /// All stored messages of the topic: the published ones, and the continuation.
    async fn stored(&self, published: &[MessageId]) -> Vec<MessageId> {
        let stored = stored(&self.0.store, &Topics::of(["t"]).unwrap()).await;
        let stored: Vec<MessageId> = stored.into_iter().map(|record| record.message.id).collect();
        assert!(published.iter().all(|id| stored.contains(id)), "{}", D::NAME);
        assert_eq!(stored.len(), published.len() + 1, "{}", D::NAME);
        stored
    }

    async fn end(self) {
        assert_eq!(self.0.texts("select 'x' from business").await.len(), 4, "what was committed");
        let stats = self.0.store.stats().await.unwrap();
        assert_eq!((stats.done.value, stats.pending().value, stats.dead.value), (DONE, 0, 0), "{}", D::NAME);
        JoinCensus::of(&self.0.store).await.exact().unwrap();
        let joins = self.0.store.joins(&Default::default(), None, 10).await.unwrap().joins;
        assert_eq!(joins.iter().map(|join| join.status).collect::<Vec<_>>(), [JoinStatus::Completed]);
        self.0.destroy().await;
    }
}

/// Every line about a message says whose it is.
fn lines_name_the_store(logs: &Logs, published: &BTreeMap<&str, Vec<MessageId>>) {
    let owner: BTreeMap<String, &str> =
        published.iter().flat_map(|(key, ids)| ids.iter().map(|id| (id.to_string(), *key))).collect();
    let mut lines = BTreeMap::<&str, usize>::new();
    for line in logs.all() {
        let ours = line.target.starts_with("posthaste") && !line.is_span;
        if let Some(key) = owner.get(line.field("message_id")).filter(|_| ours) {
            assert_eq!(line.field("store"), *key, "{line:?}");
            *lines.entry(key).or_default() += 1;
        }
    }
    for (key, ids) in published {
        assert!(lines.get(key).is_some_and(|count| *count >= ids.len()), "{lines:?}");
    }
}

/// OBX-066, OBX-072, OBX-073, OBX-121: a file, a schema and a database, of three dialects, served by one: each message from its own
/// store, joins in each, figures together, and lines that name the store.
#[test]
fn mixed_dialects() {
    listened(Level::DEBUG, async |logs| {
        let journal = Journal::default();
        let (sqlite, postgres, mysql) =
            (Member::<Sqlite>::new().await, Member::<Postgres>::new().await, Member::<MySql>::new().await);
        let mut builder = journal.builder();
        builder =
            sqlite.as_ref().map_or_else(|| unreachable!("SQLite is always there"), |it| it.join(builder));
        if let Some(it) = &postgres {
            builder = it.join(builder);
        }
        if let Some(it) = &mysql {
            builder = it.join(builder);
        }
        let tenants = builder.build().await.unwrap();
        let running = run(&tenants);
        let mut published = BTreeMap::new();
        if let Some(it) = &sqlite {
            published.insert(Sqlite::NAME, it.publish(&tenants).await);
        }
        if let Some(it) = &postgres {
            published.insert(Postgres::NAME, it.publish(&tenants).await);
        }
        if let Some(it) = &mysql {
            published.insert(MySql::NAME, it.publish(&tenants).await);
        }
        // The continuation of each, too.
        journal.reaches(published.values().map(|ids| ids.len() + 1).sum()).await;
        let members = published.len() as u64;
        eventually("all is settled", async || {
            tenants.stats().await.tenants.iter().all(|(_, stats)| stats.as_ref().unwrap().done.value == DONE)
        })
        .await;
        if let Some(it) = &sqlite {
            published.insert(Sqlite::NAME, it.stored(&published[Sqlite::NAME]).await);
        }
        if let Some(it) = &postgres {
            published.insert(Postgres::NAME, it.stored(&published[Postgres::NAME]).await);
        }
        if let Some(it) = &mysql {
            published.insert(MySql::NAME, it.stored(&published[MySql::NAME]).await);
        }
        for (key, ids) in &published {
            let (mut expected, mut handled) = (ids.clone(), journal.of(key));
            expected.sort();
            handled.sort();
            assert_eq!(handled, expected, "of {key}");
        }

        // An outbox is created once, with the type of its store; an unknown key is an error that names it.
        let (one, again) = (tenants.outbox::<SqlStore<Sqlite>>(Sqlite::NAME), tenants.outbox(Sqlite::NAME));
        let (one, again): (_, posthaste_core::Outbox<SqlStore<Sqlite>>) =
            (one.await.unwrap(), again.await.unwrap());
        assert!(std::ptr::eq(one.settings(), again.settings()) && one.worker() == again.worker());
        assert!(tenants.outbox::<SqlStore<Postgres>>(Sqlite::NAME).await.is_err());
        let unknown = tenants.outbox::<SqlStore<Sqlite>>("oracle").await.unwrap_err();
        assert_eq!(unknown.kind(), posthaste_core::ErrorKind::NotFound);
        assert!(unknown.to_string().contains("oracle"), "{unknown}");

        let stats = tenants.stats().await;
        assert_eq!(stats.total.done.value, members * DONE);
        assert_eq!((stats.total.pending().value, stats.tenants.len() as u64), (0, members));
        lines_name_the_store(&logs, &published);
        running.stop().await;
        if let Some(it) = sqlite {
            it.end().await;
        }
        if let Some(it) = postgres {
            it.end().await;
        }
        if let Some(it) = mysql {
            it.end().await;
        }
    });
}
