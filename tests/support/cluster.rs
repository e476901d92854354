//! Where the server under test is, as `make test` says through the environment.

use std::path::PathBuf;

use crate::Connection;

/// A variable of the environment that `make test` sets up; without it there is nothing to test against.
pub fn setting(name: &str) -> String {
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => value,
        _ => panic!("{name} is not set: run `make test`"),
    }
}

#[derive(Clone, Debug)]
pub struct Cluster {
    pub host: String,
    pub port: u16,
    pub superuser: String,
}

impl Cluster {
    /// The cluster with the extension as users install it.
    pub fn installed() -> Self {
        Self::on_port_of("AGENT_SESSIONS_PORT")
    }

    /// The cluster whose library carries the `#[pg_test]` functions.
    pub fn in_backend() -> Self {
        Self::on_port_of("AGENT_SESSIONS_IN_BACKEND_PORT")
    }

    /// The server's major version.
    pub fn major() -> u32 {
        let major = setting("AGENT_SESSIONS_PG");
        major.parse().unwrap_or_else(|_| panic!("AGENT_SESSIONS_PG is no major version: {major}"))
    }

    /// The folder of psql, pg_dump and their like, of the server's own version.
    pub fn programs() -> PathBuf {
        PathBuf::from(setting("AGENT_SESSIONS_BIN"))
    }

    pub async fn connect(&self, user: &str, database: &str) -> Connection {
        Connection::open(self, user, database, "wire").await
    }

    fn on_port_of(variable: &str) -> Self {
        let port = setting(variable);
        Self {
            host: setting("AGENT_SESSIONS_HOST"),
            port: port.parse().unwrap_or_else(|_| panic!("{variable} is no port: {port}")),
            superuser: setting("AGENT_SESSIONS_SUPERUSER"),
        }
    }
}
