//! A server of a test's own, for what the others must not go through: it is stopped in the middle, and started again.
//!
//! It runs the programs of the shared server, as that one's OS user, with PostgreSQL's default durability, and listens on a
//! socket in a directory of its own. A keeper outlives the test, however that ends: it stops the server and deletes its files.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::{Cluster, Installation, Program};

/// Where the first server listens; each has a socket of its own, so that this only tells them apart.
const FIRST_PORT: u16 = 5600;

/// A socket's path may have 107 bytes.
const LONGEST_DIRECTORY: usize = 90;

/// Waits until the test has ended, which closes the pipe, and cleans up after it.
const KEEPER: &str = r#"cat >/dev/null
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" && timeout 15 tail --pid="$pid" -f /dev/null
rm -rf "$1" 2>/dev/null"#;

pub struct OwnCluster {
    /// For `Connection::open` and `Cluster::connect`.
    pub cluster: Cluster,
    directory: PathBuf,
    programs: PathBuf,
    user: OsUser,
    keeper: Option<Child>,
}

/// Whom a server runs as: PostgreSQL refuses root, in whose place the shared server's user comes.
#[derive(Clone, Copy)]
pub struct OsUser {
    uid: u32,
    gid: u32,
    is_ours: bool,
}

impl OsUser {
    fn of_servers(shared: &Cluster) -> OsUser {
        let ours = std::fs::metadata("/proc/self").expect("a proc file system");
        if ours.uid() != 0 {
            return OsUser { uid: ours.uid(), gid: ours.gid(), is_ours: true };
        }
        let socket = format!("{}/.s.PGSQL.{}", shared.host, shared.port);
        let theirs = std::fs::metadata(&socket).unwrap_or_else(|error| panic!("{socket}: {error}"));
        OsUser { uid: theirs.uid(), gid: theirs.gid(), is_ours: false }
    }

    /// Makes a command run as this user, with an environment that tells PostgreSQL nothing.
    pub fn run(self, command: &mut Command) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path).env("LC_ALL", "C.UTF-8");
        if !self.is_ours {
            command.uid(self.uid).gid(self.gid);
        }
    }
}

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
        Self::in_a_place_of_its_own(shared, PathBuf::from(programs))
    }

    /// The same with a copy of an installation for itself: of another version, or to install into.
    pub async fn with_files_of(installation: &Installation) -> OwnCluster {
        let mut own = Self::in_a_place_of_its_own(Cluster::installed(), PathBuf::new());
        let files = own.directory.join("pg").display().to_string();
        Program::new(Path::new("mkdir")).run_as(own.user, &own.directory).args([&files]).output().await;
        let unpack = Program::new(Path::new("tar")).run_as(own.user, &own.directory);
        // Through a pipe, since the server's user may be unable to enter the folder that they come from.
        unpack.args(["-x", "-C", &files]).input(installation.packed().await).output().await;
        own.programs = installation.programs_below(Path::new(&files));
        own
    }

    fn in_a_place_of_its_own(shared: Cluster, programs: PathBuf) -> OwnCluster {
        let user = OsUser::of_servers(&shared);
        let directory = make_directory(user);
        let keeper = keep(&directory, user);
        let cluster = Cluster { host: directory.display().to_string(), port: next_port(), superuser: shared.superuser };
        OwnCluster { cluster, directory, programs, user, keeper: Some(keeper) }
    }

    /// Makes its data directory.
    pub async fn init(&self, arguments: &[&str]) {
        let superuser = format!("--username={}", self.cluster.superuser);
        let initdb = ["--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", &superuser];
        self.program("initdb").args(initdb).args(arguments).output().await;
    }

    pub async fn stop(&self) {
        self.program("pg_ctl").args(["--mode=fast", "--wait", "stop"]).output().await;
    }

    /// Stops the server as a crash does: nothing is written any more, and the next start recovers.
    pub async fn crash(&self) {
        self.program("pg_ctl").args(["--mode=immediate", "--wait", "stop"]).output().await;
    }

    pub async fn start_again(&self) {
        let log = self.directory.join("server.log");
        let log = log.display().to_string();
        let started = self.program("pg_ctl").args(["--log", &log, "--wait", "--timeout=120", "start"]).run().await;
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        assert!(started.success, "the server does not start: {}\n{}", started.stderr, said());
    }

    /// One of its programs that work on its data directory.
    pub fn program(&self, name: &str) -> Program {
        Program::new(&self.programs.join(name)).run_as(self.user, &self.directory).args(["-D", &self.data()])
    }

    /// One of its programs that connect to it.
    pub fn client(&self, name: &str, role: &str, database: &str) -> Program {
        let program = Program::new(&self.programs.join(name)).run_as(self.user, &self.directory);
        program.connecting(&self.cluster, role, database)
    }

    /// Where its programs are.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Where it and all its files are; the OS user of servers owns it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn data(&self) -> String {
        self.directory.join("data").display().to_string()
    }

    /// Puts an empty file into the data directory, as recovery is asked for.
    pub fn signal(&self, name: &str) {
        let file = self.directory.join("data").join(name);
        std::fs::write(&file, "").unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// Appends settings, each as in postgresql.conf, and its own address.
    pub fn configure(&self, settings: &[&str]) {
        let file = self.directory.join("data/postgresql.conf");
        let directory = self.directory.display();
        let mut lines =
            format!("listen_addresses = ''\nunix_socket_directories = '{directory}'\nport = {}\n", self.cluster.port);
        settings.iter().for_each(|setting| lines.extend([setting, "\n"]));
        let opened = OpenOptions::new().append(true).open(&file);
        let written = opened.and_then(|mut file| file.write_all(lines.as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

impl Drop for OwnCluster {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            if let Err(error) = keeper.wait() {
                eprintln!("the keeper of {}: {error}", self.directory.display());
            }
        }
        // The servers' user cannot remove it where the parent is not open to everyone.
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// Beside the private servers' own, since their OS user has to be able to enter it.
fn make_directory(user: OsUser) -> PathBuf {
    let parent = std::env::var("AGENT_SESSIONS_RUN_DIR").unwrap_or_else(|_| "/var/tmp".to_owned());
    let name = format!("agent_sessions_{}", &uuid::Uuid::new_v4().simple().to_string()[..16]);
    let directory = Path::new(&parent).join(name);
    let told = directory.display().to_string();
    assert!(told.len() <= LONGEST_DIRECTORY, "{told} is too long for a socket: set AGENT_SESSIONS_RUN_DIR");
    let made = DirBuilder::new().mode(0o700).create(&directory);
    made.and_then(|()| if user.is_ours { Ok(()) } else { chown(&directory, Some(user.uid), Some(user.gid)) })
        .unwrap_or_else(|error| panic!("{told}: {error}"));
    directory
}

fn keep(directory: &Path, user: OsUser) -> Child {
    let mut keeper = Command::new("sh");
    keeper.args(["-c", KEEPER, "keeper"]).arg(directory).current_dir("/");
    user.run(&mut keeper);
    // An interrupt of the terminal is for the test; a group of its own is not in the way of it.
    keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    keeper.spawn().unwrap_or_else(|error| panic!("sh: {error}"))
}

fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(FIRST_PORT);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
