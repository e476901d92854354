//! Backups of every kind bring back everything: dumps in all formats and parts, copies of the files, a point in time, and the
//! way to a newer major version.

mod base_backup;
mod dumps;
mod major_versions;
pub mod world;

use agent_sessions_tests::{Connection, OwnCluster};

const DATABASE: &str = "backup";
const OWNER: &str = "backup_owner";
const WRITER: &str = "backup_writer";

/// A server of a test's own with a database whose owner, no superuser, has installed the extension and let a role do everything.
struct Site {
    server: OwnCluster,
}

impl Site {
    async fn found(server: OwnCluster) -> Site {
        let site = Site { server };
        let superuser = site.superuser("postgres").await;
        superuser.run(&format!("create role {OWNER} login; create role {WRITER} login")).await;
        site.installed(DATABASE).await;
        site
    }

    /// A new database with the extension, and its owner in it.
    async fn installed(&self, database: &str) -> Connection {
        self.superuser("postgres").await.run(&format!("create database {database} owner {OWNER}")).await;
        let owner = self.server.cluster.connect(OWNER, database).await;
        owner.run("create extension agent_sessions").await;
        owner.run(&format!("select agent_sessions.access_grant('{WRITER}', 'admin')")).await;
        owner
    }

    async fn superuser(&self, database: &str) -> Connection {
        self.server.cluster.connect(&self.server.cluster.superuser, database).await
    }

    async fn owner(&self) -> Connection {
        self.server.cluster.connect(OWNER, DATABASE).await
    }

    async fn writer(&self) -> Connection {
        self.server.cluster.connect(WRITER, DATABASE).await
    }
}
