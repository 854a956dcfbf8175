//! The tests' own tables beside the outbox: `orders`, the business rows that producers write together with messages, and
//! `deliveries`, into which every handler writes when it begins and when it has done its work.
//!
//! A handler's row is committed before its work begins, so that it is there when the process is killed. The journal must
//! never hold a transaction open, and never repeat a statement whose fate is unknown.

use posthaste_core::{Message, MessageId};
use posthaste_sqlx::Dialect;
use sqlx_core::Error;
use sqlx_core::pool::Pool;

use crate::base::Base;
use crate::check::{Delivered, Picture, Row};
use crate::fixture::Connection;

/// Writes the tables of the tests, and reads them.
pub struct Journal<D: Base> {
    pool: Pool<<D as Dialect>::Db>,
    /// Which process writes.
    process: String,
}

impl<D: Base> Clone for Journal<D> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), process: self.process.clone() }
    }
}

/// An id as the journal writes it.
pub fn hex(id: MessageId) -> String {
    id.as_uuid().simple().to_string()
}

/// The statement that writes a business row, in the transaction of its message.
pub fn order(id: MessageId) -> String {
    format!("insert into orders (message) values ('{}')", hex(id))
}

impl<D: Base> Journal<D> {
    /// The journal of this process, over so many connections.
    pub async fn open(url: &str, process: &str, connections: u32) -> Result<Self, Error> {
        Ok(Self { pool: D::pool(url, connections).await?, process: process.to_owned() })
    }

    /// The journal over connections that are there already.
    pub fn over(pool: Pool<<D as Dialect>::Db>) -> Self {
        Self { pool, process: "test".to_owned() }
    }

    /// Creates the tables.
    pub async fn create(&self) {
        let (counter, name) = (D::COUNTER, D::NAME_TYPE);
        self.run(format!("create table orders (message {name} not null primary key)")).await.unwrap();
        self.run(format!(
            "create table deliveries (n {counter}, message {name} not null, process {name} not null, \
             attempt integer not null, epoch integer not null, finished integer not null)"
        ))
        .await
        .unwrap();
        self.run("create index deliveries_message on deliveries (message)".to_owned()).await.unwrap();
    }

    /// A handler begins.
    pub async fn begin(&self, message: &Message) -> Result<(), Error> {
        let (id, process) = (hex(message.id), &self.process);
        let (attempt, epoch) = (message.attempts + 1, message.epoch);
        self.run(format!(
            "insert into deliveries (message, process, attempt, epoch, finished) \
             values ('{id}', '{process}', {attempt}, {epoch}, 0)"
        ))
        .await
    }

    /// A handler has done its work.
    pub async fn finish(&self, message: &Message) -> Result<(), Error> {
        let (id, process, epoch) = (hex(message.id), &self.process, message.epoch);
        self.run(format!(
            "update deliveries set finished = 1 \
             where message = '{id}' and process = '{process}' and epoch = {epoch}"
        ))
        .await
    }

    async fn run(&self, sql: String) -> Result<(), Error> {
        let mut connection = self.pool.acquire().await?;
        D::run(&mut connection, sql).await
    }

    /// The texts that a query answers with.
    pub async fn texts(&self, sql: String) -> Result<Vec<String>, Error> {
        let mut connection = self.pool.acquire().await?;
        D::texts(&mut connection, sql).await
    }

    /// A number that a query answers with.
    pub async fn number(&self, what: &str, rest: &str) -> Result<u64, Error> {
        let answer = self.texts(format!("select concat_ws('', {what}) from {rest}")).await?;
        Ok(answer[0].parse().unwrap())
    }

    /// How many messages are ready or leased.
    pub async fn backlog(&self) -> Result<u64, Error> {
        self.number("count(*)", &format!("{} where state in (0, 1)", D::TABLE)).await
    }

    /// How many deliveries a process has begun.
    pub async fn begun(&self, process: &str) -> Result<u64, Error> {
        self.number("count(*)", &format!("deliveries where process = '{process}'")).await
    }

    /// How many messages are leased to a process.
    pub async fn leased(&self, process: &str) -> Result<u64, Error> {
        self.number("count(*)", &D::leased(process)).await
    }

    /// Everything that there is.
    pub async fn picture(&self) -> Picture {
        let (id, key) = (D::hex("message_id"), D::KEY);
        let rows = format!(
            "select concat_ws('|', seq, {id}, state, attempts, lease_losses, coalesce(error_class, 0), topic, \
             coalesce({key}, '-'), coalesce(last_error, '-')) from {} order by seq",
            D::TABLE
        );
        let deliveries =
            "select concat_ws('|', message, process, attempt, epoch, finished) from deliveries order by n";
        Picture {
            orders: self.texts("select message from orders".to_owned()).await.unwrap(),
            rows: self.texts(rows).await.unwrap().iter().map(|line| row(line)).collect(),
            deliveries: self
                .texts(deliveries.to_owned())
                .await
                .unwrap()
                .iter()
                .map(|line| delivered(line))
                .collect(),
        }
    }
}

/// Writes a business row.
pub async fn write_order<D: Base>(connection: &mut Connection<D>, id: MessageId) -> Result<(), Error> {
    D::run(connection, order(id)).await
}

fn row(line: &str) -> Row {
    let fields: Vec<&str> = line.splitn(9, '|').collect();
    let number = |n: usize| fields[n].parse().unwrap();
    Row {
        seq: fields[0].parse().unwrap(),
        id: fields[1].to_owned(),
        state: number(2),
        attempts: number(3),
        lease_losses: number(4),
        class: number(5),
        topic: fields[6].to_owned(),
        key: (fields[7] != "-").then(|| fields[7].to_owned()),
        error: fields[8].to_owned(),
    }
}

fn delivered(line: &str) -> Delivered {
    let fields: Vec<&str> = line.split('|').collect();
    Delivered {
        id: fields[0].to_owned(),
        process: fields[1].to_owned(),
        attempt: fields[2].parse().unwrap(),
        epoch: fields[3].parse().unwrap(),
        finished: fields[4] == "1",
    }
}
