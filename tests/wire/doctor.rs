//! What `doctor()` finds: each thing is broken on purpose, found by its check and by no other, and well again after what
//! the remedy says.

mod access;
mod catalog;
mod data;
mod server;

use std::collections::BTreeMap;

use agent_sessions_tests::{Branch, Connection, Database, Role, Scratch, assert_sqlstate, detail};
use serde_json::json;

use crate::branches::sample;
use crate::hiding::deleted;

/// A row of the report.
#[derive(Clone)]
struct Check {
    status: String,
    detail: String,
    remedy: String,
}

type Report = BTreeMap<String, Check>;

async fn report_of(connection: &Connection, older_than: &str) -> Report {
    let sql = "select check_name, status, coalesce(detail, ''), coalesce(remedy, '')
               from agent_sessions.doctor(older_than => $1::text::interval)";
    let rows = connection.query(sql, &[&older_than]).await.unwrap_or_else(|error| panic!("{error:?}"));
    let check =
        |row: &tokio_postgres::Row| (row.get(0), Check { status: row.get(1), detail: row.get(2), remedy: row.get(3) });
    let report: Report = rows.iter().map(check).collect();
    assert_eq!(report.len(), rows.len(), "a row for each check");
    report
}

async fn report(connection: &Connection) -> Report {
    report_of(connection, "1 hour").await
}

/// The checks that found something, but that the shared server runs without fsync.
fn found(report: &Report) -> Vec<(&str, &str)> {
    let checks = report.iter().map(|(name, check)| (name.as_str(), check.status.as_str()));
    checks.filter(|(name, status)| *status != "ok" && *name != "durability").collect()
}

/// What the checks say that found something.
fn told(report: &Report) -> String {
    let checks = found(report).into_iter().map(|(name, status)| (name, status, &report[name]));
    checks.map(|(name, status, said)| format!("\n{name}: {status}\n{}\n{}", said.detail, said.remedy)).collect()
}

fn assert_well(report: &Report) {
    assert!(found(report).is_empty(), "{}", told(report));
}

/// A database with nothing to find.
async fn healthy(name: &str) -> Patient {
    let db = Database::create(name).await;
    set_timeout(&db).await;
    let (owner, superuser) = (db.owner().await, db.superuser().await);
    assert_well(&report(&owner).await);
    Patient { owner, superuser, db }
}

async fn set_timeout(db: &Database) {
    let sql = format!("alter database {} set idle_in_transaction_session_timeout = '10s'", db.name);
    db.owner().await.run(&sql).await;
}

struct Patient {
    owner: Connection,
    superuser: Connection,
    db: Database,
}

impl Patient {
    /// Breaks something as the superuser; one check says so and what to do, and after that everything is well again.
    /// Returns that check.
    async fn suffers(&self, broken: &str, check: &str, status: &str) -> Check {
        self.superuser.run(broken).await;
        self.is_healed(broken, check, status).await
    }

    async fn is_healed(&self, broken: &str, check: &str, status: &str) -> Check {
        let ill = report(&self.owner).await;
        assert_eq!(found(&ill), [(check, status)], "{broken}: {}", told(&ill));
        self.follow(&ill[check], broken).await;
        let after = report(&self.owner).await;
        assert!(found(&after).is_empty(), "{broken}: {}\nleft {}", ill[check].remedy, told(&after));
        ill[check].clone()
    }

    /// Does what the remedy says, as the one that it says.
    async fn follow(&self, check: &Check, broken: &str) {
        let by_superuser = check.remedy.contains("-- as a superuser");
        let connection = if by_superuser { &self.superuser } else { &self.owner };
        if let Err(error) = connection.batch_execute(&check.remedy).await {
            panic!("{broken}: {}\n{error:?}", check.remedy);
        }
    }
}

/// The only thing that a fresh installation is told is a setting that is not set; what is done with it afterwards adds nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_installation_is_told_so() {
    let db = Database::create("doctor_well").await;
    let (owner, writer) = (db.owner().await, db.writer().await);
    assert_eq!(found(&report(&owner).await), [("idle_timeout", "warn")]);
    set_timeout(&db).await;
    let owner = db.owner().await;

    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("b").seed("1")).await;
    writer.branched(Branch::of("s").named("none").inherit(false)).await;
    deleted(&writer, "s").await;
    writer
        .run(
            "set agent_sessions.tenant = 'a';
             select agent_sessions.session_create('p', items => '[{\"payload\": 1}, {\"payload\": 2}]');
             select agent_sessions.session_create('c', parent_session_id => 'p');
             select agent_sessions.session_append('c', '\"\"', open => true);
             select agent_sessions.session_delta('c', target => 0, chunk_no => 0, chunk => 'text');
             select agent_sessions.session_trim('p', keep_from => 1);
             select agent_sessions.session_claim('c', ttl => '1 hour');
             select agent_sessions.audit_append('login', stream => n::text) from generate_series(1, 3) n;
             select agent_sessions.audit_append('login', stream => '1');
             select agent_sessions.audit_anchor()",
        )
        .await;
    owner
        .run(
            "set agent_sessions.tenant = 'a'; select agent_sessions.audit_prune('1', before_seq => 2);
             reset agent_sessions.tenant; analyze",
        )
        .await;
    assert_well(&report(&owner).await);
    owner.run("select agent_sessions.access_force_rls(true)").await;
    assert_well(&report(&owner).await);
    owner.run("select agent_sessions.access_force_rls(false)").await;
    assert_well(&report(&owner).await);
}

/// It is the same report for all, whatever their settings: who asks as an admin sees what the owner does.
#[tokio::test(flavor = "multi_thread")]
async fn admins_get_the_owners_report_and_others_none() {
    let db = Database::create("doctor_callers").await;
    set_timeout(&db).await;
    let admin = db.role("admin", Some("admin")).await;
    let owner = db.owner().await;
    owner.run(&format!("select agent_sessions.tenant_bind('{admin}', 'a')")).await;
    let admin = db.connect(Role::Named(admin)).await;
    admin
        .run(
            "set agent_sessions.tenant = 'a'; set agent_sessions.agent = 'x'; set agent_sessions.isolation = 'agent';
             set search_path = agent_sessions, public; set quote_all_identifiers = on",
        )
        .await;
    db.superuser().await.run("alter table agent_sessions.session_item disable trigger link").await;
    for forced in [false, true] {
        owner.run(&format!("select agent_sessions.access_force_rls({forced})")).await;
        for connection in [&owner, &admin] {
            assert_eq!(found(&report(connection).await), [("triggers", "fail")]);
        }
    }
    for connection in [db.reader().await, db.writer().await, db.stranger().await] {
        let call = "select from agent_sessions.doctor()";
        assert_sqlstate!(connection.batch_execute(call).await, "42501");
    }
    let negative = owner.batch_execute("select from agent_sessions.doctor('-1 second')").await;
    assert_eq!(detail(&assert_sqlstate!(negative, "SE001"))["argument"], json!("older_than"));
    owner.begin("repeatable read, read only").await;
    assert_eq!(found(&report(&owner).await), [("triggers", "fail")]);
    owner.rollback().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_library_of_another_version_is_found() {
    let db = healthy("doctor_version").await;
    let version: String = db.owner.value("select agent_sessions.schema_version()", &[]).await;
    db.superuser.run("update pg_extension set extversion = '0.0.1' where extname = 'agent_sessions'").await;
    let ill = report(&db.owner).await;
    assert_eq!(found(&ill), [("library", "fail")]);
    let refused = db.owner.batch_execute("select agent_sessions.schema_require()").await;
    assert_sqlstate!(refused, "SE005");
    // There is no script from that version: only the server's answer to the remedy can be seen.
    assert_sqlstate!(db.owner.batch_execute(&ill["library"].remedy).await, "22023");
    db.superuser
        .run(&format!("update pg_extension set extversion = '{version}' where extname = 'agent_sessions'"))
        .await;
    assert_well(&report(&db.owner).await);
}

/// FORCE ROW LEVEL SECURITY is no part of a dump; that it was wanted is.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_restore_has_to_be_told_is_found() {
    let source = healthy("doctor_dumped").await;
    source.owner.run("select agent_sessions.access_force_rls(true)").await;
    source.superuser.run("select from agent_sessions.session_create('s')").await;
    let dump = Scratch::new(&source.db, "dump");
    source.db.program("pg_dump", Role::Superuser).args(["-Fc", "-f", dump.path()]).output().await;
    let db = Database::empty("doctor_restored").await;
    let owner_name = db.role_name(&Role::Owner);
    let role = format!("--role={owner_name}");
    db.program("pg_restore", Role::Superuser)
        .args(["--exit-on-error", &role, "-d", &db.name, dump.path()])
        .output()
        .await;
    set_timeout(&db).await;
    let restored = Patient { owner: db.owner().await, superuser: db.superuser().await, db };
    let found = restored.is_healed("restored", "row_security", "fail").await;
    assert_eq!(found.remedy, "select agent_sessions.access_force_rls(true);");
}
