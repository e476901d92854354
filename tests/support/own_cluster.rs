//! A server of a test's own, for what the others must not go through: it is stopped in the middle, and started again.
//!
//! It runs the programs of the shared server, as that one's OS user, with PostgreSQL's default durability, and listens on a
//! socket in a directory of its own.

use std::path::{Path, PathBuf};

use super::own_directory::{OwnDirectory, Stop};
use super::small_disk;
use crate::{Cluster, Connection, Installation, Program};

const STOP: Stop = Stop { pid_file: "data/postmaster.pid", signal: "QUIT" };

pub struct OwnCluster {
    /// For `Connection::open` and `Cluster::connect`.
    pub cluster: Cluster,
    directory: OwnDirectory,
    programs: PathBuf,
    small_disk: Option<&'static str>,
}

const SMALL: &str = "small";

impl OwnCluster {
    /// A running server with these settings besides the default ones, each as in postgresql.conf.
    pub async fn start(settings: &[&str]) -> OwnCluster {
        let own = Self::without_data().await;
        own.init(&[]).await;
        own.configure(settings);
        own.start_again().await;
        own
    }

    /// The place of a server that has no data yet.
    pub async fn without_data() -> OwnCluster {
        let shared = Cluster::installed();
        let superuser = shared.connect(&shared.superuser, "postgres").await;
        let programs: String = superuser.value("select setting from pg_config where name = 'BINDIR'", &[]).await;
        Self::in_a_place_of_its_own(PathBuf::from(programs))
    }

    /// The same with a copy of an installation for itself: of another version, or to install into.
    pub async fn with_files_of(installation: &Installation) -> OwnCluster {
        let mut own = Self::in_a_place_of_its_own(PathBuf::new());
        let (user, directory) = (own.directory.user, own.directory.path.clone());
        let files = directory.join("pg").display().to_string();
        Program::new(Path::new("mkdir")).run_as(user, &directory).args([&files]).output().await;
        let unpack = Program::new(Path::new("tar")).run_as(user, &directory);
        // Through a pipe, since the server's user may be unable to enter the folder that they come from.
        unpack.args(["-x", "-C", &files]).input(installation.packed().await).output().await;
        own.programs = installation.programs_below(Path::new(&files));
        own
    }

    fn in_a_place_of_its_own(programs: PathBuf) -> OwnCluster {
        let directory = OwnDirectory::make(STOP);
        let cluster = directory.listener(&Cluster::installed().superuser);
        OwnCluster { cluster, directory, programs, small_disk: None }
    }

    /// Makes its data directory.
    pub async fn init(&self, arguments: &[&str]) {
        let superuser = format!("--username={}", self.cluster.superuser);
        let initdb = ["--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", &superuser];
        self.program("initdb").args(initdb).args(arguments).output().await;
    }

    /// A running server with a tablespace `small` on a disk of that size, as tmpfs takes it; `None` where no disk can be mounted.
    pub async fn with_small_disk(size: &'static str) -> Option<OwnCluster> {
        if !small_disk::is_possible() {
            return None;
        }
        let mut own = OwnCluster::start(&["fsync = off"]).await;
        own.stop().await;
        let place = own.directory.folder(SMALL);
        own.small_disk = Some(size);
        own.start_again().await;
        let superuser = own.cluster.connect(&own.cluster.superuser, "postgres").await;
        superuser.run(&format!("create tablespace {SMALL} location '{}'", place.display())).await;
        Some(own)
    }

    /// The database with the extension that `install` makes, on the small disk if there is one.
    pub const DATABASE: &str = "app";
    /// Whom it belongs to, who is no superuser.
    pub const OWNER: &str = "app_owner";
    /// Who may do all in it that access_grant gives.
    pub const CLIENT: &str = "app_client";

    pub async fn install(&self) {
        let (database, owner, client) = (Self::DATABASE, Self::OWNER, Self::CLIENT);
        let superuser = self.cluster.connect(&self.cluster.superuser, "postgres").await;
        superuser.run(&format!("create role {owner} login; create role {client} login")).await;
        let tablespace = self.small_disk.map_or("pg_default", |_| SMALL);
        superuser.run(&format!("create database {database} owner {owner} tablespace {tablespace}")).await;
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

    pub async fn app_client(&self) -> Connection {
        self.cluster.connect(Self::CLIENT, Self::DATABASE).await
    }

    /// A running hot standby of this server, which keeps its settings and takes these besides.
    pub async fn standby(&self, settings: &[&str]) -> OwnCluster {
        let standby = Self::without_data().await;
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

    /// Lets a backend's memory grow by so many bytes from now on; `None`: by any.
    pub async fn limit_memory(&self, pid: i32, growth: Option<u64>) {
        let limit = growth.map_or("unlimited".to_owned(), |growth| (virtual_memory(pid) + growth).to_string());
        let prlimit = Program::new(Path::new("prlimit")).run_as(self.directory.user, &self.directory.path);
        prlimit.args([format!("--pid={pid}"), format!("--as={limit}:")]).output().await;
    }

    /// Stops the server as a crash does: nothing is written any more, and the next start recovers.
    pub async fn crash(&self) {
        self.end("immediate").await;
    }

    /// Stops the server in order.
    pub async fn stop(&self) {
        self.end("fast").await;
    }

    async fn end(&self, mode: &str) {
        self.program("pg_ctl").args(["--mode", mode, "--wait", "stop"]).output().await;
    }

    pub async fn start_again(&self) {
        let log = self.directory.path.join("server.log");
        let log = log.display().to_string();
        let start = ["--log", &log, "--wait", "--timeout=120", "start"];
        let started = match self.small_disk {
            None => self.program("pg_ctl"),
            Some(size) => {
                let program = small_disk::program(&self.directory, SMALL, size, &self.programs.join("pg_ctl"));
                program.args(["-D", &self.data()])
            }
        };
        let started = started.args(start).run().await;
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        assert!(started.success, "the server does not start: {}\n{}", started.stderr, said());
    }

    /// One of its programs that work on its data directory.
    pub fn program(&self, name: &str) -> Program {
        let program = Program::new(&self.programs.join(name));
        program.run_as(self.directory.user, &self.directory.path).args(["-D", &self.data()])
    }

    /// One of its programs that connect to it.
    pub fn client(&self, name: &str, role: &str, database: &str) -> Program {
        let program = Program::new(&self.programs.join(name)).run_as(self.directory.user, &self.directory.path);
        program.connecting(&self.cluster, role, database)
    }

    /// Where its programs are.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Where it and all its files are; the OS user of servers owns it.
    pub fn directory(&self) -> &Path {
        &self.directory.path
    }

    pub fn data(&self) -> String {
        self.directory.path.join("data").display().to_string()
    }

    /// Puts an empty file into the data directory, as recovery is asked for.
    pub fn signal(&self, name: &str) {
        let file = self.directory.path.join("data").join(name);
        std::fs::write(&file, "").unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// Appends settings, each as in postgresql.conf, and its own address.
    pub fn configure(&self, settings: &[&str]) {
        let Cluster { host, port, .. } = &self.cluster;
        let mut lines = format!("listen_addresses = ''\nunix_socket_directories = '{host}'\nport = {port}\n");
        settings.iter().for_each(|setting| lines.extend([setting, "\n"]));
        self.directory.write("data/postgresql.conf", &lines);
    }
}

/// The bytes that a process has mapped.
fn virtual_memory(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let size =
        status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    size.expect("it has memory") * 1024
}
