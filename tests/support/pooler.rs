//! A pooler of a test's own: PgBouncer in transaction mode, which gives a client a server connection for one transaction.
//!
//! `AGENT_SESSIONS_POOLED` in the environment puts one in front of the databases of all tests. It has one server connection
//! for each role and database: PgBouncer before 1.21 knows no prepared statements, which the tests' client uses, and so they
//! are at least where they were prepared. A test that needs two transactions at once does not work there.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;

use super::own_directory::{OwnDirectory, Stop};
use crate::{Cluster, Program};

const STOP: Stop = Stop { pid_file: "pooler.pid", signal: "TERM" };

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Pooler {
    /// Where clients connect.
    pub cluster: Cluster,
    _directory: OwnDirectory,
}

impl Pooler {
    /// A pooler in front of all databases of a server, for these roles, with as many server connections for each of them
    /// and each database.
    pub async fn start(server: &Cluster, roles: &[String], connections: usize) -> Pooler {
        let directory = OwnDirectory::make(STOP);
        let cluster = directory.listener(&server.superuser);
        let own = directory.path.display();
        let settings = format!(
            "[databases]\n* = host={} port={}\n\
             [pgbouncer]\npool_mode = transaction\ndefault_pool_size = {connections}\nquery_wait_timeout = 20\n\
             unix_socket_dir = {own}\nlisten_port = {}\nauth_type = trust\nauth_file = {own}/roles\n\
             pidfile = {own}/{}\nlogfile = {own}/pooler.log\n",
            server.host, server.port, cluster.port, STOP.pid_file
        );
        directory.write("pooler.ini", &settings);
        directory.write("roles", &roles.iter().map(|role| format!("\"{role}\" \"\"\n")).collect::<String>());
        let pooler = Program::new(program()).run_as(directory.user, &directory.path);
        pooler.args(["--daemon", "--quiet", "pooler.ini"]).output().await;
        let socket = directory.path.join(format!(".s.PGSQL.{}", cluster.port));
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < deadline, "the pooler does not listen");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Pooler { cluster, _directory: directory }
    }

    /// The one that stands in front of all tests' databases, if the environment asks for it.
    pub async fn of_all_tests(roles: &[String]) -> Option<&'static Cluster> {
        static POOLER: OnceCell<Pooler> = OnceCell::const_new();
        std::env::var_os("AGENT_SESSIONS_POOLED")?;
        Some(&POOLER.get_or_init(|| async { Pooler::start(&Cluster::installed(), roles, 1).await }).await.cluster)
    }
}

/// Debian keeps it where not every user's PATH leads.
fn program() -> &'static Path {
    let installed = Path::new("/usr/sbin/pgbouncer");
    if installed.exists() { installed } else { Path::new("pgbouncer") }
}
