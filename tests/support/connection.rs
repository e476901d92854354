//! One connection, and the SQL that nearly every test says.

use std::ops::Deref;

use tokio_postgres::types::{FromSqlOwned, ToSql};
use tokio_postgres::{CancelToken, Client, Config, Error, NoTls, SimpleQueryMessage};

use crate::Cluster;

pub struct Connection {
    client: Client,
    pub pid: i32,
}

impl Deref for Connection {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Connection {
    pub async fn open(cluster: &Cluster, user: &str, database: &str, application: &str) -> Self {
        let connected = Config::new()
            .host_path(&cluster.host)
            .port(cluster.port)
            .user(user)
            .dbname(database)
            .application_name(application)
            .connect(NoTls)
            .await;
        let (client, wire) = connected.unwrap_or_else(|error| panic!("{user} cannot connect to {database}: {error:?}"));
        // A broken wire reaches the test as the error of its next statement.
        tokio::spawn(wire);
        // Prepares nothing: a pooler may run the next statement on another server connection.
        match client.simple_query("select pg_backend_pid()").await.as_deref() {
            Ok([SimpleQueryMessage::RowDescription(_), SimpleQueryMessage::Row(row), ..]) => {
                let pid = row.get(0).and_then(|pid| pid.parse().ok()).expect("a number");
                Self { client, pid }
            }
            other => panic!("{user} in {database}: {other:?}"),
        }
    }

    /// Begins a transaction at an isolation level, named as in SQL.
    pub async fn begin(&self, isolation: &str) {
        self.run(&format!("begin isolation level {isolation}")).await;
    }

    pub async fn commit(&self) {
        self.run("commit").await;
    }

    pub async fn rollback(&self) {
        self.run("rollback").await;
    }

    /// Statements that must succeed.
    pub async fn run(&self, sql: &str) {
        if let Err(error) = self.client.batch_execute(sql).await {
            panic!("{sql}\n{error:?}");
        }
    }

    /// The one value of a query that must succeed.
    pub async fn value<T: FromSqlOwned>(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> T {
        match self.try_value(sql, parameters).await {
            Ok(value) => value,
            Err(error) => panic!("{sql}\n{error:?}"),
        }
    }

    /// The one value of a query that may be refused.
    pub async fn try_value<T: FromSqlOwned>(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<T, Error> {
        self.client.query_one(sql, parameters).await?.try_get(0)
    }

    /// Asks the server to cancel what this connection is running.
    pub async fn cancel(&self) {
        let token: CancelToken = self.client.cancel_token();
        if let Err(error) = token.cancel_query(NoTls).await {
            panic!("cannot ask for a cancel: {error:?}");
        }
    }
}
