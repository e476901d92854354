//! From an older major version of PostgreSQL to the one under test: by dump, and by pg_upgrade.

use std::io::Write;

use agent_sessions_tests::{About, Catalogue, Cluster, Connection, Installation, OwnCluster};

use super::world::{self, World};
use super::{DATABASE, OWNER, Site, WRITER};

/// The older server, or a line that says that there is none.
fn older() -> Option<Installation> {
    let older = Installation::older();
    if older.is_none() {
        // The test runner keeps what print! says of a test that passes.
        writeln!(std::io::stdout(), "major versions: there is no older server here to come from")
            .expect("standard output is open");
    }
    older
}

/// A server with an empty data directory. Checksums are on by default from PostgreSQL 18 on, and pg_upgrade wants them alike.
async fn server_of(installation: &Installation) -> OwnCluster {
    let server = OwnCluster::with_files_of(installation).await;
    server.init(&["--data-checksums"]).await;
    server.configure(&["fsync = off"]);
    server
}

/// A server of the older version, prepared by `as_owner` before it is filled.
async fn grown(installation: &Installation, as_owner: &str) -> (Site, World) {
    let server = server_of(installation).await;
    server.start_again().await;
    let site = Site::found(server).await;
    site.owner().await.run(as_owner).await;
    world::grow(&site.owner().await).await;
    let world = World::of(&site.superuser(DATABASE).await).await;
    world.assert_whole();
    (site, world)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_goes_to_the_newer_major_version() {
    let Some(older) = older() else { return };
    let (site, world) = grown(&older, "").await;
    let server = server_of(&Installation::under_test()).await;
    server.start_again().await;
    let target = Site { server };
    // By the newer version's programs, as PostgreSQL advises.
    let from = |program| {
        let superuser = &site.server.cluster.superuser;
        target.server.client(program, superuser, DATABASE).connecting(&site.server.cluster, superuser, DATABASE)
    };
    let globals = from("pg_dumpall").args(["--globals-only"]).output().await;
    let psql = target.server.client("psql", &target.server.cluster.superuser, "postgres");
    // The superuser is there already.
    psql.args(["-X", "-q"]).input(globals).output().await;
    let file = target.server.directory().join("dump").display().to_string();
    let dump = from("pg_dump").args(["-Fc", &format!("--role={OWNER}"), "-f", &file]);
    dump.output().await;
    target.superuser("postgres").await.run(&format!("create database {DATABASE} owner {OWNER}")).await;
    let restore = target.server.client("pg_restore", OWNER, DATABASE);
    restore.args(["-j4", "--exit-on-error", "-d", DATABASE, &file]).output().await;

    let superuser = target.superuser(DATABASE).await;
    world.assert_restored(&superuser, "by dump").await;
    world.assert_goes_on(&superuser, &target.writer().await, "by dump").await;
}

/// Whether the server under test was built with lz4; pg_upgrade takes values along as they are compressed.
async fn has_lz4() -> bool {
    let shared = Cluster::installed();
    let superuser = shared.connect(&shared.superuser, "postgres").await;
    superuser
        .value("select 'lz4' = any (enumvals) from pg_settings where name = 'default_toast_compression'", &[])
        .await
}

const WITHOUT_LZ4: &str = "
    do $$
    declare
      it record;
    begin
      for it in
        select attrelid::regclass as relation, attname as name from pg_attribute join pg_class on pg_class.oid = attrelid
        where relnamespace = 'agent_sessions'::regnamespace and relkind = 'r' and attcompression = 'l'
      loop
        execute format('alter table %s alter column %I set compression default', it.relation, it.name);
      end loop;
    end
    $$";

/// Some builds of PostgreSQL 15 keep a number of their own among a column's options, which no other server knows.
const WITHOUT_FOREIGN_OPTIONS: &str =
    "update pg_attribute set attoptions = null where attoptions::text like '%pg_attver%'";

#[tokio::test(flavor = "multi_thread")]
async fn pg_upgrade_keeps_everything() {
    let Some(older) = older() else { return };
    let compression = if has_lz4().await { "" } else { WITHOUT_LZ4 };
    let (site, world) = grown(&older, compression).await;
    site.superuser(DATABASE).await.run(WITHOUT_FOREIGN_OPTIONS).await;
    site.server.stop().await;
    // A copy leaves the older one as it was, for the next.
    for mode in ["--copy", "--link"] {
        let server = server_of(&Installation::under_test()).await;
        let from = ["-b", &site.server.programs().display().to_string(), "-d", &site.server.data()];
        let to = ["-B", &server.programs().display().to_string(), "-U", &server.cluster.superuser];
        let ran = server.program("pg_upgrade").args(from).args(to).args([mode, "--no-sync"]).run().await;
        assert!(ran.success, "{mode}: {}{}", String::from_utf8_lossy(&ran.stdout), ran.stderr);
        server.start_again().await;
        let upgraded = Site { server };
        let superuser = upgraded.superuser(DATABASE).await;
        world.assert_copied(&superuser, mode).await;
        if mode == "--link" {
            upgraded.assert_as_installed_here(&superuser).await;
            world.assert_goes_on(&superuser, &upgraded.writer().await, mode).await;
        }
    }
}

/// A view as it is printed, without the names of columns: an older version's dump spells out those that they have by themselves.
fn without_names(view: &str) -> String {
    let is_of_a_name = |letter: char| letter.is_alphanumeric() || ['_', '"'].contains(&letter);
    let mut parts = view.split(" AS ");
    let first = parts.next().unwrap_or_default();
    std::iter::once(first).chain(parts.map(|part| part.trim_start_matches(is_of_a_name))).collect()
}

impl Site {
    /// The tables and all else are as CREATE EXTENSION makes them on this server. The extension itself has become the
    /// superuser's: pg_upgrade makes all extensions, and nothing gives one to another owner.
    async fn assert_as_installed_here(&self, upgraded: &Connection) {
        let fresh = self.installed("fresh").await;
        let mut differing = Catalogue::of(&fresh).await.differences(&Catalogue::of(upgraded).await);
        differing.retain(|(kind, _), (fresh, upgraded)| {
            kind != "view" || without_names(&fresh.concat()) != without_names(&upgraded.concat())
        });
        let abouts: Vec<&About> = differing.keys().collect();
        assert_eq!(abouts, [&("extension".to_owned(), "agent_sessions".to_owned())], "{differing:#?}");
        // The engine asks who owns the tables.
        let owner = self.owner().await;
        owner
            .run(&format!(
                "select agent_sessions.access_revoke('{WRITER}'), agent_sessions.access_grant('{WRITER}', 'admin')"
            ))
            .await;
    }
}
