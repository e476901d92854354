//! Many programs that install or update at once take turns under the lock that the README shows.

use std::path::Path;
use std::sync::Arc;

use agent_sessions_tests::{Catalogue, Connection, Database, Error, Role, together};

use super::changes::OLD;
use super::{OWNER, Server, installed_version};

const PROGRAMS: usize = 16;

const CREATE: &str = "create extension if not exists agent_sessions;";
const UPDATE: &str = "alter extension agent_sessions update;";

/// The README's block with the lock.
fn snippet() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let page = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let blocks = page.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
    let locked: Vec<&str> = blocks.filter(|block| block.contains("pg_advisory_xact_lock")).collect();
    let [snippet] = locked[..] else { panic!("README.md has {} blocks with the lock", locked.len()) };
    assert!(snippet.contains(CREATE), "{snippet}");
    snippet.to_owned()
}

async fn all_at_once(connections: Vec<Connection>, sql: &str) -> Vec<Result<(), Error>> {
    let connections: Vec<_> = connections.into_iter().map(Arc::new).collect();
    together(connections.len(), |number| {
        let (connection, sql) = (connections[number].clone(), sql.to_owned());
        async move { connection.batch_execute(&sql).await }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn many_install_it_at_once() {
    let db = Database::empty("install_race").await;
    for result in all_at_once(db.connections(Role::Owner, PROGRAMS).await, &snippet()).await {
        result.expect("none fails");
    }
    let owner = db.owner().await;
    owner.create_session("s").await;
    owner.append("s", "1").await;
    owner.assert_dense("s", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_update_it_at_once() {
    let server = Server::shared().await;
    let owner = server.installed("raced", OLD).await;
    let mut programs = Vec::with_capacity(PROGRAMS);
    for _ in 0..PROGRAMS {
        programs.push(server.server.cluster.connect(OWNER, "raced").await);
    }
    for result in all_at_once(programs, &snippet().replace(CREATE, UPDATE)).await {
        result.expect("none fails");
    }
    assert_eq!(installed_version(&owner).await, server.current);
    assert_eq!(server.fresh.differences(&Catalogue::of(&owner).await), Default::default());
}
