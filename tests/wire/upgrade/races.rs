//! Many programs that install or update at once take turns under the lock that the README shows.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

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

/// An update waits for the transactions that are open, and who has waited for it works on with the plans of before.
#[tokio::test(flavor = "multi_thread")]
async fn writers_go_on_over_an_update() {
    let server = Server::shared().await;
    let (first, second) =
        (server.installed("written", OLD).await, server.server.cluster.connect(OWNER, "written").await);
    let (updating, observer) =
        (server.server.cluster.connect(OWNER, "written").await, server.superuser("written").await);
    for (connection, session) in [(&first, "first"), (&second, "second")] {
        connection.create_session(session).await;
        // Often enough for a generic plan.
        for _ in 0..7 {
            connection.append(session, "1").await;
        }
    }
    first.begin("read committed").await;
    first.append("first", "\"before\"").await;
    let pid = updating.pid;
    let updated = tokio::spawn(async move { updating.batch_execute(UPDATE).await });
    blocked(&observer, pid).await;
    let pid = second.pid;
    let waited = tokio::spawn(async move { (second.append("second", "\"waited\"").await, second) });
    blocked(&observer, pid).await;
    first.append("first", "\"still\"").await;
    first.commit().await;
    updated.await.expect("it does not panic").expect("an update");
    let (position, second) = waited.await.expect("an append");
    assert_eq!((position, installed_version(&first).await), (7, server.current.clone()));
    assert_eq!((first.append("first", "\"after\"").await, second.append("second", "\"after\"").await), (9, 8));
    first.assert_dense("first", 10).await;
    second.assert_dense("second", 9).await;
}

/// Returns when that backend waits for another.
async fn blocked(observer: &Connection, pid: i32) {
    while !observer.value::<bool>("select cardinality(pg_blocking_pids($1)) > 0", &[&pid]).await {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
