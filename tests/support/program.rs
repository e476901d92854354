//! psql, pg_dump and their like, of the server's own version, pointed at a test's database.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use super::own_directory::OsUser;
use crate::{Cluster, Database, Role};

pub struct Program {
    command: Command,
    input: Vec<u8>,
    told: String,
}

/// What a program that ended has said.
#[derive(Debug)]
pub struct Ran {
    pub success: bool,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Database {
    /// A program of the server's own version, with host, port, user and database in its environment.
    pub fn program(&self, name: &str, role: Role) -> Program {
        Program::new(&Cluster::programs().join(name)).pointed_at(self, role)
    }

    /// psql that stops at the first error and prints bare values.
    pub fn psql(&self, role: Role) -> Program {
        self.program("psql", role).args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"])
    }
}

impl Program {
    pub fn new(path: &Path) -> Self {
        let mut command = Command::new(path);
        // libpq also reads files and variables of whoever runs the tests.
        for variable in ["PGSERVICE", "PGOPTIONS", "PGPASSWORD", "PGCLIENTENCODING"] {
            command.env_remove(variable);
        }
        Self { command, input: Vec::new(), told: path.display().to_string() }
    }

    /// Gives the program libpq's variables for this database and role.
    pub fn pointed_at(self, db: &Database, role: Role) -> Self {
        self.connecting(&db.cluster, &db.role_name(&role), &db.name)
    }

    /// The same for any server, role and database.
    pub fn connecting(mut self, cluster: &Cluster, user: &str, database: &str) -> Self {
        self.command
            .env("PGHOST", &cluster.host)
            .env("PGPORT", cluster.port.to_string())
            .env("PGUSER", user)
            .env("PGDATABASE", database);
        self
    }

    pub fn args<S: AsRef<str>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        for argument in arguments {
            self.told.push(' ');
            self.told.push_str(argument.as_ref());
            self.command.arg(argument.as_ref());
        }
        self
    }

    /// Runs the program as the OS user of a server, in a folder that this user can enter.
    pub fn run_as(mut self, user: OsUser, folder: &Path) -> Self {
        user.run(self.command.current_dir(folder));
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// Runs it to its end, whatever that is.
    pub async fn run(mut self) -> Ran {
        let ran = tokio::task::spawn_blocking(move || {
            let piped = self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = piped.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.told));
            let mut stdin = child.stdin.take().expect("its standard input is a pipe");
            // Both pipes may fill up, so writing and reading go on at the same time. A program that stops at an error
            // leaves the rest unread; its exit code tells.
            let writing = thread::spawn(move || stdin.write_all(&self.input));
            let output = child.wait_with_output().unwrap_or_else(|error| panic!("{}: {error}", self.told));
            let written = writing.join().expect("writing does not panic");
            assert!(written.is_ok() || !output.status.success(), "{}: {written:?}", self.told);
            Ran {
                success: output.status.success(),
                stdout: output.stdout,
                stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            }
        });
        ran.await.expect("running a program does not panic")
    }

    /// Runs it and returns its standard output; a failure is the test's.
    pub async fn output(self) -> String {
        let told = self.told.clone();
        let ran = self.run().await;
        assert!(ran.success, "{told}\n{}", ran.stderr);
        String::from_utf8(ran.stdout).unwrap_or_else(|_| panic!("{told}: its output is not UTF-8"))
    }
}
