//! Updates: data of an older version is read and verified by the current one, an updated installation equals a fresh one, and
//! what has been released does not change.

mod changes;
mod data;
mod equality;
mod guard;
mod kinds;
mod races;
mod released;

use std::sync::{Arc, Weak};

use agent_sessions_tests::{Catalogue, Connection, Installation, OwnCluster};
use tokio::sync::Mutex;

use changes::{OLD, old_script, update_script};

const OWNER: &str = "upgrade_owner";
const READER: &str = "upgrade_reader";
const WRITER: &str = "upgrade_writer";

/// A server of these tests' own, whose files hold the old version's script and those that lead from it to the current one.
struct Server {
    server: OwnCluster,
    /// The version that the product is of.
    current: String,
    /// What a fresh installation of it is.
    fresh: Catalogue,
}

/// The one that runs, as long as some test uses it. Each has databases of its own there.
static RUNNING: Mutex<Weak<Server>> = Mutex::const_new(Weak::new());

impl Server {
    async fn shared() -> Arc<Server> {
        let mut running = RUNNING.lock().await;
        if let Some(server) = running.upgrade() {
            return server;
        }
        let server = Arc::new(Server::start().await);
        *running = Arc::downgrade(&server);
        server
    }

    async fn start() -> Server {
        let installation = Installation::under_test();
        let cluster = OwnCluster::with_files_of(&installation).await;
        cluster.init(&[]).await;
        cluster.configure(&["fsync = off"]);
        cluster.start_again().await;
        let superuser = cluster.cluster.connect(&cluster.cluster.superuser, "postgres").await;
        superuser.run(&[OWNER, READER, WRITER].map(|role| format!("create role {role} login;")).concat()).await;
        let default = "select default_version from pg_available_extensions where name = 'agent_sessions'";
        let current: String = superuser.value(default, &[]).await;
        let fresh = Catalogue::of(&installed(&cluster, "fresh", &current).await).await;
        let server = Server { server: cluster, current, fresh };

        let script = installation.script(&server.current);
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

    /// A database with a version installed, and with grants of its owner's.
    async fn installed(&self, database: &str, version: &str) -> Connection {
        installed(&self.server, database, version).await
    }
}

/// A new database of the owner's, who is no superuser.
async fn empty(cluster: &OwnCluster, database: &str) -> Connection {
    let superuser = cluster.cluster.connect(&cluster.cluster.superuser, "postgres").await;
    superuser.run(&format!("create database {database} owner {OWNER}")).await;
    cluster.cluster.connect(OWNER, database).await
}

async fn installed(cluster: &OwnCluster, database: &str, version: &str) -> Connection {
    let owner = empty(cluster, database).await;
    owner.run(&format!("create extension agent_sessions version '{version}'")).await;
    assert_eq!(installed_version(&owner).await, version);
    // By hand: access_grant is the library's, which may know of functions that an older version has not.
    owner
        .run(&format!(
            "grant usage on schema agent_sessions to {READER}; grant select on agent_sessions.session to {READER};
             grant select (payload) on agent_sessions.session_item to {READER};
             grant execute on function agent_sessions.schema_version to {READER}"
        ))
        .await;
    owner
}

async fn installed_version(connection: &Connection) -> String {
    connection.value("select extversion from pg_extension where extname = 'agent_sessions'", &[]).await
}
