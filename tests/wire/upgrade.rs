//! Updates: data of an older version is read and verified by the current one, an updated installation equals a fresh one, and
//! what has been released does not change.

mod changes;
mod data;
mod equality;
mod kinds;
mod races;
mod released;

use agent_sessions_tests::{Connection, Installation, OwnCluster};

use changes::{OLD, old_script, update_script};

const OWNER: &str = "upgrade_owner";
const READER: &str = "upgrade_reader";

/// A server of the test's own, whose files hold the old version's script and those that lead from it to the current one.
struct Server {
    server: OwnCluster,
    /// The version that the product is of.
    current: String,
}

impl Server {
    async fn start() -> Server {
        let installation = Installation::under_test();
        let server = OwnCluster::with_files_of(&installation).await;
        server.init(&[]).await;
        server.configure(&["fsync = off"]);
        server.start_again().await;
        let superuser = server.cluster.connect(&server.cluster.superuser, "postgres").await;
        superuser.run(&format!("create role {OWNER} login; create role {READER} login")).await;
        let default = "select default_version from pg_available_extensions where name = 'agent_sessions'";
        let current: String = superuser.value(default, &[]).await;
        let script = installation.script(&current);
        let server = Server { server, current };
        server.install_script(OLD, &old_script(&script));
        server.install_script(&format!("{OLD}--{}", server.current), &update_script(&script, None));
        for version in released::versions() {
            server.install_script(&version, &released::script(&version));
        }
        server
    }

    /// The versions that the current one has to be reached from.
    fn older_versions(&self) -> Vec<String> {
        let released = released::versions().into_iter().filter(|version| *version != self.current);
        std::iter::once(OLD.to_owned()).chain(released).collect()
    }

    fn install_script(&self, versions: &str, script: &str) {
        let extensions = Installation::under_test().extensions_below(&self.server.directory().join("pg"));
        let file = extensions.join(format!("agent_sessions--{versions}.sql"));
        std::fs::write(&file, script).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    fn current_script(&self) -> String {
        Installation::under_test().script(&self.current)
    }

    async fn superuser(&self, database: &str) -> Connection {
        self.server.cluster.connect(&self.server.cluster.superuser, database).await
    }

    async fn owner(&self, database: &str) -> Connection {
        self.server.cluster.connect(OWNER, database).await
    }

    /// A database of the owner's, who has nothing installed yet.
    async fn empty(&self, database: &str) -> Connection {
        self.superuser("postgres").await.run(&format!("create database {database} owner {OWNER}")).await;
        self.owner(database).await
    }

    /// The same with a version installed, and a role that the owner has let read.
    async fn installed(&self, database: &str, version: &str) -> Connection {
        let owner = self.empty(database).await;
        owner.run(&format!("create extension agent_sessions version '{version}'")).await;
        assert_eq!(installed_version(&owner).await, version);
        owner.run(&format!("select agent_sessions.access_grant('{READER}', 'reader')")).await;
        owner
    }
}

async fn installed_version(connection: &Connection) -> String {
    connection.value("select extversion from pg_extension where extname = 'agent_sessions'", &[]).await
}
