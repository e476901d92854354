//! The directory of a server of a test's own. A keeper outlives the test, however that ends: it stops the server and deletes
//! its files.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::Cluster;

/// Where the first server listens; each has a socket of its own, so that this only tells them apart.
const FIRST_PORT: u16 = 5600;

/// A socket's path may have 107 bytes.
const LONGEST: usize = 90;

/// Waits until the test has ended, which closes the pipe, and cleans up after it.
const KEEPER: &str = r#"cat >/dev/null
pid=$(head -n 1 "$1/$2" 2>/dev/null) && kill -s "$3" "$pid" && timeout 15 tail -s 0.05 --pid="$pid" -f /dev/null
rm -rf "$1" 2>/dev/null"#;

/// How a server is stopped at once: the file that tells its process, and the signal.
pub struct Stop {
    pub pid_file: &'static str,
    pub signal: &'static str,
}

pub struct OwnDirectory {
    pub path: PathBuf,
    pub user: OsUser,
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

    pub fn ids(self) -> (String, String) {
        (self.uid.to_string(), self.gid.to_string())
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

impl OwnDirectory {
    /// A directory of the servers' user beside the private servers' own, since it has to be able to enter it.
    pub fn make(stop: Stop) -> OwnDirectory {
        let user = OsUser::of_servers(&Cluster::installed());
        let parent = std::env::var("AGENT_SESSIONS_RUN_DIR").unwrap_or_else(|_| "/var/tmp".to_owned());
        let name = format!("agent_sessions_{}", &uuid::Uuid::new_v4().simple().to_string()[..16]);
        let path = Path::new(&parent).join(name);
        let told = path.display().to_string();
        assert!(told.len() <= LONGEST, "{told} is too long for a socket: set AGENT_SESSIONS_RUN_DIR");
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.and_then(|()| if user.is_ours { Ok(()) } else { chown(&path, Some(user.uid), Some(user.gid)) })
            .unwrap_or_else(|error| panic!("{told}: {error}"));
        let keeper = keep(&path, user, stop);
        OwnDirectory { path, user, keeper: Some(keeper) }
    }

    /// Makes a folder in it.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        let made = DirBuilder::new().mode(0o700).create(&path);
        let user = self.user;
        made.and_then(|()| if user.is_ours { Ok(()) } else { chown(&path, Some(user.uid), Some(user.gid)) })
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Adds text to a file, which is made if it does not exist.
    pub fn write(&self, file: &str, text: &str) {
        let opened = OpenOptions::new().create(true).append(true).open(self.path.join(file));
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        written.unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    /// Where a server in here listens for `superuser` and others.
    pub fn listener(&self, superuser: &str) -> Cluster {
        static NEXT: AtomicU16 = AtomicU16::new(FIRST_PORT);
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        Cluster { host: self.path.display().to_string(), port, superuser: superuser.to_owned() }
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            if let Err(error) = keeper.wait() {
                eprintln!("the keeper of {}: {error}", self.path.display());
            }
        }
        // The servers' user cannot remove it where the parent is not open to everyone.
        let _ = std::fs::remove_dir(&self.path);
    }
}

fn keep(directory: &Path, user: OsUser, stop: Stop) -> Child {
    let mut keeper = Command::new("sh");
    keeper.args(["-c", KEEPER, "keeper"]).arg(directory).args([stop.pid_file, stop.signal]).current_dir("/");
    user.run(&mut keeper);
    // An interrupt of the terminal is for the test; a group of its own is not in the way of it.
    keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    keeper.spawn().unwrap_or_else(|error| panic!("sh: {error}"))
}
