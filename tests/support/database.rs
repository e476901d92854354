//! A database of a test's own. The template is made once per run: the owner, who is no superuser, creates the extension
//! and grants; each test's copy takes the privileges along.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;

use super::admin::{self, prefix};
use crate::{Cluster, Connection, Pooler};

/// How long a backend may take to reach the lock that the test forces it to wait for.
const PATIENCE: Duration = Duration::from_secs(60);

static TEMPLATE: OnceCell<String> = OnceCell::const_new();
static MADE: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Debug)]
pub enum Role {
    /// Owns the database and the extension; no superuser.
    Owner,
    Superuser,
    Writer,
    Reader,
    /// A role that may connect and has no grant.
    Stranger,
    /// The name that `Database::role` returned.
    Named(String),
}

impl Role {
    /// The roles that all databases of a run share.
    const OF_THE_RUN: [&str; 4] = ["owner", "writer", "reader", "stranger"];

    fn is_of_the_run(&self) -> bool {
        !matches!(self, Role::Superuser | Role::Named(_))
    }
}

pub struct Database {
    pub name: String,
    pub cluster: Cluster,
    observer: OnceCell<Connection>,
    roles: Mutex<Vec<String>>,
}

impl Database {
    /// A database with the extension installed and the run's writer and reader granted.
    pub async fn create(name: &str) -> Self {
        let template = TEMPLATE.get_or_init(make_template).await;
        Self::copy(name, template).await
    }

    /// A database of the owner's without the extension.
    pub async fn empty(name: &str) -> Self {
        TEMPLATE.get_or_init(make_template).await;
        Self::copy(name, "template0").await
    }

    async fn copy(name: &str, template: &str) -> Self {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = named(&format!("{number}_{name}"));
        let owner = run_role("owner");
        admin::run(format!("create database {name} template {template} encoding 'UTF8' owner {owner}")).await;
        Self { name, cluster: Cluster::installed(), observer: OnceCell::new(), roles: Mutex::new(Vec::new()) }
    }

    pub async fn connect(&self, role: Role) -> Connection {
        let pooler = if role.is_of_the_run() { Pooler::of_all_tests(&run_roles()).await } else { None };
        pooler.unwrap_or(&self.cluster).connect(&self.role_name(&role), &self.name).await
    }

    /// A pooler in front of this database, with as many server connections for each of the run's roles.
    pub async fn pooler(&self, connections: usize) -> Pooler {
        Pooler::start(&self.cluster, &run_roles(), connections).await
    }

    pub async fn superuser(&self) -> Connection {
        self.connect(Role::Superuser).await
    }

    pub async fn owner(&self) -> Connection {
        self.connect(Role::Owner).await
    }

    pub async fn writer(&self) -> Connection {
        self.connect(Role::Writer).await
    }

    pub async fn reader(&self) -> Connection {
        self.connect(Role::Reader).await
    }

    pub async fn stranger(&self) -> Connection {
        self.connect(Role::Stranger).await
    }

    /// Several writers, to be shared with concurrent tasks.
    pub async fn writers(&self, count: usize) -> Vec<Arc<Connection>> {
        self.connections(Role::Writer, count).await.into_iter().map(Arc::new).collect()
    }

    /// Several connections of the same role.
    pub async fn connections(&self, role: Role, count: usize) -> Vec<Connection> {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            connections.push(self.connect(role.clone()).await);
        }
        connections
    }

    /// Makes a login role for this database alone, at an access level or without any, and returns its name.
    pub async fn role(&self, name: &str, level: Option<&str>) -> String {
        let role = named(&format!("{}_{name}", MADE.fetch_add(1, Ordering::Relaxed)));
        admin::run(format!("create role {role} login")).await;
        self.roles.lock().expect("no test panics while it holds this").push(role.clone());
        if let Some(level) = level {
            self.owner().await.run(&format!("select agent_sessions.access_grant('{role}', '{level}')")).await;
        }
        role
    }

    /// The name by which a role connects and is granted to.
    pub fn role_name(&self, role: &Role) -> String {
        match role {
            Role::Owner => run_role("owner"),
            Role::Superuser => self.cluster.superuser.clone(),
            Role::Writer => run_role("writer"),
            Role::Reader => run_role("reader"),
            Role::Stranger => run_role("stranger"),
            Role::Named(name) => name.clone(),
        }
    }

    /// Whether that backend waits for a lock at this moment.
    pub async fn is_blocked(&self, pid: i32) -> bool {
        let waits = "select wait_event_type is not distinct from 'Lock' and cardinality(pg_blocking_pids(pid)) > 0
                     from pg_stat_activity where pid = $1";
        self.observer.get_or_init(|| self.superuser()).await.value(waits, &[&pid]).await
    }

    /// Returns when that backend waits for a lock.
    pub async fn wait_until_blocked(&self, pid: i32) {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_blocked(pid).await {
            assert!(Instant::now() < deadline, "backend {pid} never waits for a lock");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        admin::run_blocking(format!("drop database {} with (force)", self.name));
        for role in self.roles.get_mut().expect("no test panics while it holds this").drain(..) {
            admin::run_blocking(format!("drop role {role}"));
        }
    }
}

async fn make_template() -> String {
    // The cell lets the next test try again; what failed once would then fail for another, misleading reason.
    static BEGUN: AtomicBool = AtomicBool::new(false);
    assert!(!BEGUN.swap(true, Ordering::Relaxed), "the template database was not made: an earlier test says why");
    let cluster = Cluster::installed();
    let template = named("template");
    let [owner, writer, reader] = ["owner", "writer", "reader"].map(run_role);
    for role in run_roles() {
        admin::run(format!("create role {role} login nosuperuser")).await;
    }
    admin::run(format!("create database {template} template template0 encoding 'UTF8' owner {owner}")).await;
    let connection = cluster.connect(&owner, &template).await;
    connection.run("create extension agent_sessions").await;
    connection.run(&format!("select agent_sessions.access_grant('{writer}', 'writer')")).await;
    connection.run(&format!("select agent_sessions.access_grant('{reader}', 'reader')")).await;
    template
}

fn run_roles() -> Vec<String> {
    Role::OF_THE_RUN.map(run_role).to_vec()
}

fn run_role(name: &str) -> String {
    named(name)
}

/// Identifiers of PostgreSQL have at most 63 bytes.
fn named(name: &str) -> String {
    let mut name = format!("{}_{name}", prefix());
    name.truncate(63);
    name
}
