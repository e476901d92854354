//! What was written under the older version is read, verified and written on under the current one.

use agent_sessions_tests::{Catalogue, assert_sqlstate, detail};
use serde_json::json;

use super::changes::OLD;
use super::{OWNER, READER, Server, WRITER, empty, installed_version};
use crate::backup::world::{self, World};

/// Their rows, or whether they are carried, is what the update changes.
const CHANGED: &[&str] = &["setting", "audit_tracking"];

const REMEMBERED: &str = "select string_agg(name || ' ' || value, ',') from agent_sessions.setting";

#[tokio::test(flavor = "multi_thread")]
async fn data_of_the_old_version_goes_on_under_the_current_one() {
    let server = Server::shared().await;
    let (owner, superuser) = (server.installed("continued", OLD).await, server.superuser("continued").await);
    owner.run("insert into agent_sessions.setting (name) values ('force_rls')").await;
    world::grow(&owner).await;
    let tracked = "select count(*) from agent_sessions.audit_tracking";
    let tracked_before: i64 = owner.value(tracked, &[]).await;
    let before = World::of(&superuser).await;
    before.assert_whole();

    // A client asks, and learns that the library is ahead of the schema.
    let required = "select agent_sessions.schema_require()";
    let refused = assert_sqlstate!(owner.batch_execute(required).await, "SE005");
    let told = detail(&refused);
    assert_eq!((&told["actual"], &told["library"]), (&json!(OLD), &json!(server.current)));
    owner.run("alter extension agent_sessions update").await;
    owner.run(required).await;

    before.assert_copied_but(CHANGED, &superuser, "updated").await;
    assert_eq!(owner.value::<String>(REMEMBERED, &[]).await, "force_rls on");
    assert_eq!(owner.value::<i64>(tracked, &[]).await, tracked_before);
    // What is new is handed out by another grant.
    owner.run(&format!("select agent_sessions.access_grant('{WRITER}', 'writer')")).await;
    let writer = server.server.cluster.connect(WRITER, "continued").await;
    before.assert_goes_on(&superuser, &writer, "updated").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_granted_stays_and_is_dumped() {
    let server = Server::shared().await;
    let (owner, superuser) = (server.installed("granted", OLD).await, server.superuser("granted").await);
    owner
        .run(&format!(
            "select agent_sessions.access_grant('{READER}', 'reader');
             grant select (payload) on agent_sessions.session_item to {READER} with grant option"
        ))
        .await;
    world::grow(&owner).await;
    let granted = |catalogue: &Catalogue| -> Vec<String> {
        let facts = catalogue.facts("privilege").into_iter().filter(|(_, fact)| fact.contains(READER));
        facts.map(|(object, fact)| format!("{object} {fact}")).collect()
    };
    let before = granted(&Catalogue::of(&owner).await);
    assert!(before.len() > 20, "{before:?}");
    owner.run("alter extension agent_sessions update").await;
    let (updated, world) = (Catalogue::of(&owner).await, World::of(&superuser).await);
    assert_eq!(granted(&updated), before);
    let reader = server.server.cluster.connect(READER, "granted").await;
    assert!(reader.value::<i64>("select count(*) from agent_sessions.live_item", &[]).await > 0);

    let dump = server.dump("granted").await;
    server.restore("granted_restored", &dump).await;
    let superuser = server.superuser("granted_restored").await;
    assert_eq!(updated.differences(&Catalogue::of(&superuser).await), Default::default());
    world.assert_restored(&superuser, "restored").await;
}

/// The other way to a newer version: into a database where that one is installed.
#[tokio::test(flavor = "multi_thread")]
async fn a_dump_of_the_old_version_restores_into_the_current_one() {
    let server = Server::shared().await;
    let (owner, superuser) = (server.installed("dumped", OLD).await, server.superuser("dumped").await);
    world::grow(&owner).await;
    let before = World::of(&superuser).await;
    let dump = server.dump("dumped").await;
    server.restore("dumped_restored", &dump).await;
    let superuser = server.superuser("dumped_restored").await;
    assert_eq!(installed_version(&superuser).await, server.current);
    before.without_leases().assert_copied_but(CHANGED, &superuser, "restored from the old version").await;
}

impl Server {
    /// A dump by the owner, who is no superuser.
    async fn dump(&self, database: &str) -> String {
        let file = self.server.directory().join(format!("{database}.dump")).display().to_string();
        self.server.client("pg_dump", OWNER, database).args(["-Fc", "-f", &file]).output().await;
        file
    }

    /// Restores it into a new database of the owner's.
    async fn restore(&self, database: &str, dump: &str) {
        empty(&self.server, database).await;
        let restore = self.server.client("pg_restore", OWNER, database);
        restore.args(["--exit-on-error", "-j2", "-d", database, dump]).output().await;
    }
}
