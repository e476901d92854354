//! Dumps of a database with everything in it: every format, whole and in parts, made and restored by the extension's owner and
//! by a superuser. What comes back is the same row for row and grant for grant, and goes on.

use agent_sessions_tests::{Catalogue, Database, Role, Scratch, assert_sqlstate};

use super::world::{self, World};
use crate::items::Random;

/// A database with everything in it, and with grants of every level and of a user's own.
struct Source {
    db: Database,
    world: World,
    catalogue: Catalogue,
    bound: String,
}

impl Source {
    async fn grown(name: &str) -> Source {
        let db = Database::create(name).await;
        let owner = db.owner().await;
        world::grow(&owner).await;
        for level in ["reader", "auditor", "writer", "admin"] {
            db.role(level, Some(level)).await;
        }
        let (bound, own) = (db.role("bound", Some("writer")).await, db.role("own", None).await);
        owner
            .run(&format!(
                "select agent_sessions.tenant_bind('{bound}', 'acme');
                 select agent_sessions.access_force_rls(true), agent_sessions.access_force_rls(false);
                 grant usage on schema agent_sessions to {own};
                 grant select (sid, payload) on agent_sessions.session_item to {own} with grant option;
                 grant execute on function agent_sessions.session_get, agent_sessions.schema_version to {own};
                 grant select on agent_sessions.live_item to public"
            ))
            .await;
        let superuser = db.superuser().await;
        let world = World::of(&superuser).await;
        world.assert_whole();
        let catalogue = Catalogue::of(&superuser).await;
        Source { db, world, catalogue, bound }
    }

    async fn dump(&self, role: Role, arguments: &[&str]) -> Scratch {
        let name =
            format!("{role:?}{}", arguments.concat()).replace(|character: char| !character.is_alphanumeric(), "_");
        let scratch = Scratch::new(&self.db, &name);
        self.db.program("pg_dump", role).args(arguments).args(["-f", scratch.path()]).output().await;
        scratch
    }

    async fn assert_restored(&self, target: &Database, how: &str) {
        let superuser = target.superuser().await;
        self.world.assert_restored(&superuser, how).await;
        assert_eq!(self.catalogue.differences(&Catalogue::of(&superuser).await), Default::default(), "{how}");
        let bound = target.connect(Role::Named(self.bound.clone())).await;
        assert_sqlstate!(bound.query("select agent_sessions.tenant_use('')", &[]).await, "SE019");
    }

    async fn assert_goes_on(&self, target: &Database, how: &str) {
        self.world.assert_goes_on(&target.superuser().await, &target.writer().await, how).await;
    }
}

async fn restore(target: &Database, role: Role, arguments: &[&str], dump: &Scratch) {
    let restore = target.program("pg_restore", role).args(arguments);
    restore.args(["--exit-on-error", "-d", &target.name, dump.path()]).output().await;
}

async fn run(target: &Database, role: Role, dump: &Scratch) {
    target.psql(role).args(["-f", dump.path()]).output().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_format_comes_back_whoever_dumps_and_restores() {
    let source = Source::grown("backup_formats").await;
    let as_owner = format!("--role={}", source.db.role_name(&Role::Owner));
    let (owner, superuser) = ((Role::Owner, &["-j4"][..]), (Role::Superuser, &["-j4", &as_owner][..]));
    for (dumping, format, restoring) in [
        (Role::Owner, &["-Fc"][..], &[owner.clone(), superuser.clone()][..]),
        (Role::Superuser, &["-Fc"], &[owner.clone(), superuser.clone()]),
        (Role::Owner, &["-Fd", "-j4"], &[superuser]),
        (Role::Superuser, &["-Fd", "-j4"], &[owner]),
        (Role::Owner, &["-Ft"], &[(Role::Owner, &[])]),
    ] {
        let dump = source.dump(dumping.clone(), format).await;
        for (restoring, arguments) in restoring {
            let how = format!("{format:?} by {dumping:?}, restored by {restoring:?}");
            let target = Database::empty("backup_restored").await;
            restore(&target, restoring.clone(), arguments, &dump).await;
            source.assert_restored(&target, &how).await;
            if format[0] == "-Ft" {
                source.assert_goes_on(&target, &how).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_scripts_come_back() {
    let source = Source::grown("backup_plain").await;
    for (role, arguments) in [
        (Role::Owner, &["-Fp"][..]),
        (Role::Superuser, &["-Fp"]),
        (Role::Owner, &["-Fp", "--inserts"]),
        (Role::Superuser, &["-Fp", "--column-inserts", "--rows-per-insert=3"]),
        (Role::Owner, &["-Fp", "--no-owner", "--quote-all-identifiers", "--serializable-deferrable"]),
    ] {
        let dump = source.dump(role.clone(), arguments).await;
        let target = Database::empty("backup_restored").await;
        run(&target, Role::Owner, &dump).await;
        source.assert_restored(&target, &format!("{arguments:?} by {role:?}")).await;
    }
    let dump = source.dump(Role::Owner, &["-Fp", "--clean", "--if-exists"]).await;
    let target = Database::create("backup_replaced").await;
    world::grow(&target.owner().await).await;
    run(&target, Role::Owner, &dump).await;
    source.assert_restored(&target, "in the place of another").await;
    source.assert_goes_on(&target, "in the place of another").await;
}

/// That the policies hold for the owner too is remembered, and has to be said again: a dump does not say it.
#[tokio::test(flavor = "multi_thread")]
async fn forced_policies_come_back_as_a_word() {
    let source = Source::grown("backup_forced").await;
    let (force, word) = (
        "select agent_sessions.access_force_rls(true)",
        "select value from agent_sessions.setting where name = 'force_rls'",
    );
    source.db.owner().await.run(force).await;
    let forced = Catalogue::of(&source.db.superuser().await).await;
    let dump = source.dump(Role::Superuser, &["-Fc"]).await;
    let target = Database::empty("backup_forced").await;
    restore(&target, Role::Owner, &["-j4"], &dump).await;
    let superuser = target.superuser().await;
    assert_eq!(superuser.value::<String>(word, &[]).await, "on");
    assert_eq!(source.catalogue.differences(&Catalogue::of(&superuser).await), Default::default());
    target.owner().await.run(force).await;
    assert_eq!(forced.differences(&Catalogue::of(&superuser).await), Default::default());
}

/// Then the extension is the superuser's, and the grants that its owner has made are not.
#[tokio::test(flavor = "multi_thread")]
async fn a_superuser_who_names_no_owner_keeps_all_rows_and_grants_again() {
    let source = Source::grown("backup_no_owner").await;
    let dump = source.dump(Role::Superuser, &["-Fc"]).await;
    let target = Database::empty("backup_no_owner").await;
    let restore = target.program("pg_restore", Role::Superuser).args(["-j4", "-d", &target.name, dump.path()]);
    assert!(!restore.run().await.success, "it is told that grants are missing");
    let superuser = target.superuser().await;
    source.world.assert_restored(&superuser, "no owner").await;
    let writer = target.writer().await;
    assert_sqlstate!(writer.try_append("parent", "1").await, "42501");
    let again = format!("select agent_sessions.access_grant('{}', 'writer')", target.role_name(&Role::Writer));
    superuser.run(&again).await;
    source.assert_goes_on(&target, "no owner").await;
}

/// The definition of a database is a database without a session.
#[tokio::test(flavor = "multi_thread")]
async fn definitions_and_data_come_back_one_after_the_other() {
    let source = Source::grown("backup_halves").await;
    for role in [Role::Owner, Role::Superuser] {
        let schema = source.dump(role.clone(), &["-Fc", "--schema-only"]).await;
        let data = source.dump(role.clone(), &["-Fd", "-j4", "--data-only"]).await;
        let target = Database::empty("backup_halves").await;
        restore(&target, Role::Owner, &[], &schema).await;
        let superuser = target.superuser().await;
        assert_eq!(source.catalogue.differences(&Catalogue::of(&superuser).await), Default::default(), "{role:?}");
        let rows = "select count(*) from agent_sessions.session_item";
        assert_eq!(superuser.value::<i64>(rows, &[]).await, 0);
        // It works as it is; what is made there goes.
        let writer = target.writer().await;
        writer.create_session("before").await;
        writer.append("before", "1").await;
        writer.assert_dense("before", 1).await;
        writer.run("select agent_sessions.session_delete('before')").await;
        superuser.run("alter table agent_sessions.session alter sid restart").await;
        restore(&target, Role::Owner, &["-j4"], &data).await;
        source.assert_restored(&target, &format!("halves by {role:?}")).await;
        source.assert_goes_on(&target, &format!("halves by {role:?}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sections_come_back_one_after_the_other() {
    let source = Source::grown("backup_sections").await;
    let dump = source.dump(Role::Owner, &["-Fc"]).await;
    let target = Database::empty("backup_sections").await;
    for section in ["--section=pre-data", "--section=data", "--section=post-data"] {
        restore(&target, Role::Owner, &["-j2", section], &dump).await;
    }
    source.assert_restored(&target, "sections").await;
}

/// What pg_dump carries, as `-t` names it.
async fn carried(db: &Database) -> Vec<String> {
    let sql = "select relation::regclass::text from pg_extension, unnest(extconfig) relation where extname = 'agent_sessions' order by 1";
    let rows = db.superuser().await.query(sql, &[]).await.expect("what is carried");
    rows.iter().map(|row| row.get(0)).collect()
}

/// Tables have no order among them: each on its own, whichever comes first.
#[tokio::test(flavor = "multi_thread")]
async fn single_tables_come_back_in_any_order() {
    let source = Source::grown("backup_tables").await;
    let carried = carried(&source.db).await;
    let mut dumps = Vec::new();
    for relation in &carried {
        dumps.push(source.dump(Role::Owner, &["-Fc", "--data-only", "-t", relation]).await);
    }
    let mut random = Random(7);
    for round in 0..4 {
        let mut order: Vec<usize> = (0..dumps.len()).collect();
        // The head of a log after its entries, and before.
        order.reverse();
        for place in (1..order.len()).rev().filter(|_| round > 0) {
            order.swap(place, random.below(place + 1));
        }
        let target = Database::create("backup_tables").await;
        let how: Vec<&str> = order.iter().map(|number| carried[*number].as_str()).collect();
        for number in &order {
            restore(&target, Role::Owner, &[], &dumps[*number]).await;
        }
        source.world.assert_restored(&target.superuser().await, &format!("seed 7, {how:?}")).await;
        if round == 0 {
            source.assert_goes_on(&target, "single tables").await;
        }
    }
}

/// Rows that are there already are not written a second time, whichever way they come.
#[tokio::test(flavor = "multi_thread")]
async fn data_that_comes_a_second_time_changes_nothing() {
    let source = Source::grown("backup_twice").await;
    let target = Database::create("backup_twice").await;
    let superuser = target.superuser().await;
    let copies = source.dump(Role::Owner, &["-Fp", "--data-only"]).await;
    run(&target, Role::Owner, &copies).await;
    // A key that is taken, and by way of the rules a position that has passed.
    let inserts = ["-Fp", "--data-only", "--rows-per-insert=100", "--on-conflict-do-nothing"];
    let inserts = source.dump(Role::Owner, &inserts).await;
    for (dump, codes) in [(copies, &["23505", "SE007"][..]), (inserts, &["SE007"])] {
        // On through all tables, whatever is refused.
        let on = ["-v", "ON_ERROR_STOP=0", "-v", "VERBOSITY=sqlstate", "-f", dump.path()];
        let again = target.psql(Role::Owner).args(on).run().await;
        assert!(codes.iter().all(|code| again.stderr.contains(code)), "{}", again.stderr);
        source.world.assert_restored(&superuser, &format!("{codes:?}")).await;
    }
    source.assert_goes_on(&target, "twice").await;
}
