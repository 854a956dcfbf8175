//! F-04: the database is restarted under load, fast and then as by a crash. Nothing is lost, charged or half-made, and
//! delivery goes on by itself; how soon is said, and depends on the machine.
//!
//! The servers are the test's own; shared ones are never restarted.

use std::time::Duration;

use posthaste_sqlx::{MySql, Postgres};

use crate::base::Base;
use crate::case::{Case, allowed, caught, eventually, short_lease};
use crate::fixture::{Backend as _, is_missing, unique};
use crate::server::{self, Server};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_postgres() {
    if is_missing(Postgres::NAME) {
        return;
    }
    let Some(server) = server::postgres() else {
        eprintln!("PostgreSQL's programs are not on this machine: nothing was restarted");
        return;
    };
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port);
    answers::<Postgres>(&url).await;
    restarted::<Postgres>(server, format!("{url}?options=-csearch_path%3D{}", unique())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_mysql() {
    if is_missing(MySql::NAME) {
        return;
    }
    let Some(server) = server::mariadb() else {
        eprintln!("MariaDB's programs are not on this machine: nothing was restarted");
        return;
    };
    let home = format!("mysql://root@127.0.0.1:{}", server.port);
    answers::<MySql>(&format!("{home}/mysql")).await;
    let (pool, database) = (MySql::pool(&format!("{home}/mysql"), 1).await.unwrap(), unique());
    let mut connection = pool.acquire().await.unwrap();
    MySql::run(&mut connection, format!("create database {database}")).await.unwrap();
    drop(connection);
    pool.close().await;
    restarted::<MySql>(server, format!("{home}/{database}")).await;
}

async fn answers<D: Base>(url: &str) {
    eventually("the server answers", async || D::pool(url, 1).await.is_ok()).await;
}

async fn restarted<D: Base>(mut server: Server, url: String) {
    let case = Case::<D>::at(&url).await;
    let outcome = caught(restarts(&case, &mut server)).await;
    // The whole server goes, so nothing is taken back; its connections would wait for it.
    drop(server);
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

async fn restarts<D: Base>(case: &Case<D>, server: &mut Server) {
    let producers = case.producers();
    let workers = [case.worker_with("a0", short_lease), case.worker_with("b0", short_lease)];
    case.are_working(&[&workers[0], &workers[1]]).await;
    let mut allowed = allowed();
    allowed.lease_losses = true;
    let mut back = Vec::new();
    let (fast, immediate) = (server.recipe().fast, server.recipe().immediate);
    for signal in [fast, immediate, fast, immediate] {
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.restart(signal).await;
        for worker in &workers {
            *allowed.faults.entry(worker.name.clone()).or_default() += 1;
        }
        eventually("the server answers again", async || case.journal.backlog().await.is_ok()).await;
        let begun = std::time::Instant::now();
        let before = case.journal.number("count(*)", "deliveries").await.unwrap();
        let more = async || case.journal.number("count(*)", "deliveries").await.is_ok_and(|now| now > before);
        eventually("delivery goes on", more).await;
        back.push(begun.elapsed());
    }
    let ledger = producers.stop().await;
    let recovery = case.drained().await;
    case.check(&format!("restarts, back after {back:?}, drained after {recovery:?}"), &ledger, &allowed)
        .await;
}
