//! Statements that would never end: a store with a limit has them ended by the database, and its connection serves the next call.

use std::time::Duration;

use posthaste_core::{ErrorKind, Filter, NewMessage, Store as _, StoreAdmin as _};
use posthaste_sqlx::{MySql, Postgres, SqlStore, Sqlite};
use posthaste_testkit::Fixture as _;

use crate::fixture::{Backend, SqlFixture};

/// Lists of this store never end.
async fn lists_hang<D: Backend>(fixture: &SqlFixture<D>) {
    let endless = match D::NAME {
        "postgres" => {
            "alter table outbox rename to outbox_table;
             create view outbox as select o.* from outbox_table o, lateral (select pg_sleep(3600), o.seq) s"
        }
        "mysql" => {
            "drop procedure posthaste_list;
             create procedure posthaste_list(
                 a bigint, b int, c text, d text, e text, f text, g text, h int, i bigint, j bigint, k text, l int)
             begin select sleep(3600); end"
        }
        _ => {
            "alter table posthaste_outbox rename to outbox_table;
             create view posthaste_outbox as
             with recursive endless (n) as (select 1 union all select n + 1 from endless)
             select o.* from outbox_table o, endless where n < 0"
        }
    };
    fixture.run(endless.to_owned()).await;
}

async fn a_statement_that_never_ends<D: Backend>() {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    fixture.store.enqueue(&[NewMessage::bytes("t", "x").build().unwrap()]).await.unwrap();
    lists_hang(&fixture).await;
    // One connection: it must come back. Nothing else ends a statement.
    let options = fixture.options.clone().max_connections(1).listen(false);
    let options = options.answer_timeout(Duration::from_secs(600));
    let options = options.statement_timeout(Duration::from_millis(200));
    let store = SqlStore::<D>::connect_with(&fixture.url, &options).await.unwrap();
    for _ in 0..2 {
        let error = store.list(&Filter::default(), None, 10).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
        store.pauses().await.unwrap();
    }
    store.close().await;
    fixture.destroy().await;
}

#[tokio::test]
async fn postgres_ends_a_statement_at_the_limit() {
    a_statement_that_never_ends::<Postgres>().await;
}

#[tokio::test]
async fn mysql_ends_a_statement_at_the_limit() {
    a_statement_that_never_ends::<MySql>().await;
}

#[tokio::test]
async fn sqlite_ends_a_statement_at_the_limit() {
    a_statement_that_never_ends::<Sqlite>().await;
}
