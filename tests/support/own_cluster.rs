//! A server of a test's own, for what the others must not go through: it is stopped in the middle, and started again.
//!
//! It runs the programs of the shared server, as that one's OS user, with PostgreSQL's default durability, and listens on a
//! socket in a directory of its own.

use std::path::PathBuf;

use super::own_directory::{OwnDirectory, Stop};
use crate::{Cluster, Connection, Program};

const STOP: Stop = Stop { pid_file: "data/postmaster.pid", signal: "QUIT" };

pub struct OwnCluster {
    /// For `Connection::open` and `Cluster::connect`.
    pub cluster: Cluster,
    directory: OwnDirectory,
    programs: PathBuf,
}

impl OwnCluster {
    /// A running server with these settings besides the default ones, each as in postgresql.conf.
    pub async fn start(settings: &[&str]) -> OwnCluster {
        let own = OwnCluster::make().await;
        let superuser = format!("--username={}", own.cluster.superuser);
        let initdb = ["--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", &superuser];
        own.program("initdb").args(initdb).output().await;
        own.configure(settings);
        own.start_again().await;
        own
    }

    /// The database with the extension that `install` makes.
    pub const DATABASE: &str = "app";
    /// Whom it belongs to, who is no superuser.
    pub const OWNER: &str = "app_owner";
    /// Who may do all in it that access_grant gives.
    pub const CLIENT: &str = "app_client";

    pub async fn install(&self) {
        let (database, owner, client) = (Self::DATABASE, Self::OWNER, Self::CLIENT);
        let superuser = self.cluster.connect(&self.cluster.superuser, "postgres").await;
        superuser.run(&format!("create role {owner} login; create role {client} login")).await;
        superuser.run(&format!("create database {database} owner {owner}")).await;
        let owner = self.owner().await;
        owner.run("create extension agent_sessions").await;
        owner.run(&format!("select agent_sessions.access_grant('{client}', 'admin')")).await;
    }

    pub async fn superuser(&self) -> Connection {
        self.cluster.connect(&self.cluster.superuser, Self::DATABASE).await
    }

    pub async fn owner(&self) -> Connection {
        self.cluster.connect(Self::OWNER, Self::DATABASE).await
    }

    pub async fn client(&self) -> Connection {
        self.cluster.connect(Self::CLIENT, Self::DATABASE).await
    }

    /// A running hot standby of this server, which keeps its settings and takes these besides.
    pub async fn standby(&self, settings: &[&str]) -> OwnCluster {
        let standby = OwnCluster::make().await;
        let Cluster { host, port, superuser } = &self.cluster;
        let source = format!("--dbname=host={host} port={port} user={superuser}");
        let copy = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", &source];
        standby.program("pg_basebackup").args(copy).output().await;
        standby.configure(settings);
        standby.start_again().await;
        standby
    }

    /// Makes a standby a server that is written to.
    pub async fn promote(&self) {
        self.program("pg_ctl").args(["--wait", "promote"]).output().await;
    }

    /// Stops the server as a crash does: nothing is written any more, and the next start recovers.
    pub async fn crash(&self) {
        self.stop("immediate").await;
    }

    /// Stops the server in order.
    pub async fn shut_down(&self) {
        self.stop("fast").await;
    }

    async fn stop(&self, mode: &str) {
        self.program("pg_ctl").args(["--mode", mode, "--wait", "stop"]).output().await;
    }

    pub async fn start_again(&self) {
        let log = self.directory.path.join("server.log");
        let log = log.display().to_string();
        let started = self.program("pg_ctl").args(["--log", &log, "--wait", "--timeout=120", "start"]).run().await;
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        assert!(started.success, "the server does not start: {}\n{}", started.stderr, said());
    }

    /// The files of a server to be, and where it will listen.
    async fn make() -> OwnCluster {
        let shared = Cluster::installed();
        let superuser = shared.connect(&shared.superuser, "postgres").await;
        let programs: String = superuser.value("select setting from pg_config where name = 'BINDIR'", &[]).await;
        let directory = OwnDirectory::make(STOP);
        OwnCluster { cluster: directory.listener(&shared.superuser), directory, programs: PathBuf::from(programs) }
    }

    fn program(&self, name: &str) -> Program {
        let data = self.directory.path.join("data").display().to_string();
        let program = Program::new(&self.programs.join(name));
        program.run_as(self.directory.user, &self.directory.path).args(["-D", &data])
    }

    fn configure(&self, settings: &[&str]) {
        let Cluster { host, port, .. } = &self.cluster;
        let mut lines = format!("listen_addresses = ''\nunix_socket_directories = '{host}'\nport = {port}\n");
        settings.iter().for_each(|setting| lines.extend([setting, "\n"]));
        self.directory.write("data/postgresql.conf", &lines);
    }
}
