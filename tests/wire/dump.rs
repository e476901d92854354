//! What pg_dump writes and pg_restore reads: all rows, byte for byte, in every format, and the restored log goes on.

use agent_sessions_tests::Scratch;

use agent_sessions_tests::{Connection, Database, Role, sqlstate};

const SESSIONS: i64 = 40;
const ENTRIES_EACH: i64 = 100;
const PARALLEL_RESTORES: usize = 10;

/// Two tenants' sessions with sub-sessions, revisions, retractions and payloads that only bytes can keep; large ones too.
async fn filled(name: &str) -> Source {
    let db = Database::create(name).await;
    let bound = db.role("bound", Some("writer")).await;
    let writer = db.writer().await;
    for session in 0..SESSIONS {
        let tenant = ["", "acme"][(session % 2) as usize];
        let parent = if session < 10 { "null".to_owned() } else { format!("'session {}'", session - 10) };
        writer
            .run(&format!(
                "set agent_sessions.tenant = '{tenant}';
                 select agent_sessions.session_create(session_id => 'session {session}', title => E'Title\\twith\\na break',
                   metadata => '{{\"n\": {session}}}', state => '{{\"b\" :1, \"a\":2,\"b\":3}}', parent_session_id => {parent},
                   owner => 'owner', input_tokens => 1, cost => 0.10, expires_at => 'infinity');
                 select agent_sessions.session_append_batch(session_id => 'session {session}', items => (
                   select json_agg(json_build_object('payload', json_build_object('n', n, 'text', repeat(md5(n::text), n % 20)),
                     'item_id', 'item ' || n, 'tag', 'tag ' || n % 5, 'attrs', json_build_object('n', n)))
                   from generate_series(1, {ENTRIES_EACH} - 8) n));
                 select agent_sessions.session_append('session {session}', E'{{\"b\":1, \"a\" : 2,\\t\"b\":1e400000,\\n\"\\\\u0000\":-0.0}} ');
                 select agent_sessions.session_append('session {session}', '\"\\ud83d \\u0000 \\\\ \\\\N \\\\.\"', kept_from => 3);
                 select agent_sessions.session_append('session {session}', (
                   select to_json(string_agg(md5(n::text || '{session}'), '')) from generate_series(1, {}) n));
                 select agent_sessions.session_revise('session {session}', '[\"revised\"]', item_id => 'item 2');
                 select agent_sessions.session_retract('session {session}', targets => '{{3}}');
                 select agent_sessions.session_append('session {session}', '0', open => true);
                 select agent_sessions.session_delta('session {session}', {ENTRIES_EACH} - 3, 0, E'a\\tb');
                 select agent_sessions.session_delta('session {session}', {ENTRIES_EACH} - 3, 1, E'\\\\.\\n');
                 select agent_sessions.session_append('session {session}', '1', author => 'a');
                 select agent_sessions.session_retract('session {session}', from_target => {ENTRIES_EACH} - 2);
                 select agent_sessions.session_set('session {session}', status => 'closed')",
                if session % 10 == 0 { 20_000 } else { 50 }
            ))
            .await;
    }
    // A key and a fence that are gone, so that no row has the last of them.
    writer
        .run("reset agent_sessions.tenant; select agent_sessions.session_create(session_id => 'gone');
             select agent_sessions.session_release('gone', (select lease from agent_sessions.session_claim('gone', '1 minute')));
             select agent_sessions.session_delete('gone')")
        .await;
    let owner = db.owner().await;
    owner
        .run(&format!(
            "select agent_sessions.tenant_bind('{bound}', 'acme');
             select agent_sessions.access_force_rls(true); select agent_sessions.access_force_rls(false)"
        ))
        .await;
    let content = content(&db).await;
    assert_eq!(content.items, SESSIONS * ENTRIES_EACH);
    Source { db, bound, content }
}

struct Source {
    db: Database,
    bound: String,
    content: Content,
}

/// All rows of all tables, the key that the next session gets, and the fence that the next claim does.
#[derive(Clone, Debug, PartialEq)]
struct Content {
    items: i64,
    digests: Vec<String>,
    next_sid: i64,
    next_fence: i64,
}

async fn content(db: &Database) -> Content {
    let superuser = db.superuser().await;
    let mut digests = Vec::new();
    for (table, order) in [
        ("session", "sid"),
        ("session_item", "sid, position"),
        ("session_delta", "sid, target, chunk_no"),
        ("setting", "name"),
        ("tenant_binding", "role, tenant"),
    ] {
        let sql = format!(
            "select '{table} ' || count(*) || ' ' || coalesce(md5(string_agg(md5(t::text), '' order by {order})), '-')
             from agent_sessions.{table} t"
        );
        digests.push(superuser.value(&sql, &[]).await);
    }
    let items = superuser.value("select count(*) from agent_sessions.session_item", &[]).await;
    let next = async |sequence: &str| {
        let sql = format!("select last_value + is_called::integer from agent_sessions.{sequence}");
        superuser.value::<i64>(&sql, &[]).await
    };
    let (next_sid, next_fence) = (next("session_sid_seq").await, next("lease_fence_seq").await);
    Content { items, digests, next_sid, next_fence }
}

impl Source {
    async fn dump(&self, role: Role, arguments: &[&str]) -> Scratch {
        let scratch = Scratch::new(&self.db, &arguments.join("").replace(['/', '-'], "_"));
        self.db.program("pg_dump", role).args(arguments).args(["-f", scratch.path()]).output().await;
        scratch
    }

    /// Everything is there, verifies, and goes on.
    async fn assert_restored(&self, target: &Database, how: &str) {
        assert_eq!(content(target).await, self.content, "{how}");
        let superuser = target.superuser().await;
        let verified = "select count(*) filter (where v.ok and v.redacted = 0 and v.entries = $1), count(*)
                        from agent_sessions.session s, lateral agent_sessions.session_verify(
                          session_id => s.session_id, agent_id => s.agent_id, tenant => s.tenant) v";
        let row = superuser.query_one(verified, &[&ENTRIES_EACH]).await.expect("the verdicts");
        assert_eq!((row.get(0), row.get(1)), (SESSIONS, SESSIONS), "{how}");

        let writer = target.writer().await;
        for (tenant, session) in [("", "session 0"), ("acme", "session 39")] {
            writer.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
            assert_eq!(writer.append(session, "{\"after\": 1}").await, ENTRIES_EACH, "{how}");
            assert_eq!(writer.raw_append(session, "{\"after\": 2}").await.expect("a raw append"), 1, "{how}");
            writer.assert_dense(session, ENTRIES_EACH + 2).await;
            // The ids of before are still used.
            let replay =
                "select agent_sessions.session_append(session_id => $1::text, item_id => 'item 2', payload => '0')";
            let refused = writer.try_value::<i64>(replay, &[&session]).await.expect_err("another content");
            assert_eq!(sqlstate(&refused), "SE010", "{how}");
        }
        writer.create_session("new").await;
        let sid: i64 = superuser.value("select sid from agent_sessions.session where session_id = 'new'", &[]).await;
        assert_eq!(sid, self.content.next_sid, "{how}: no key is used again");

        let bound = target.connect(Role::Named(self.bound.clone())).await;
        let denied = bound.query("select count(*) from agent_sessions.session", &[]).await.expect_err("another tenant");
        assert_eq!(sqlstate(&denied), "SE019", "{how}");
        bound.run("set agent_sessions.tenant = 'acme'").await;
        let sees: i64 = bound.value("select count(*) from agent_sessions.session", &[]).await;
        assert_eq!(sees, SESSIONS / 2 + 1, "{how}");

        assert_eq!(grants(target).await, grants(&self.db).await, "{how}");
    }
}

/// The privileges that were handed out, with who gave them.
async fn grants(db: &Database) -> Vec<String> {
    let sql = "
        with acls (object, owner, acl) as (
          select oid::regclass::text, relowner, relacl from pg_class where relnamespace = 'agent_sessions'::regnamespace
          union all
          select attrelid::regclass || '.' || attname, relowner, attacl from pg_attribute join pg_class on pg_class.oid = attrelid
          where relnamespace = 'agent_sessions'::regnamespace
          union all
          select oid::regprocedure::text, proowner, proacl from pg_proc where pronamespace = 'agent_sessions'::regnamespace
          union all
          select nspname, nspowner, nspacl from pg_namespace where nspname = 'agent_sessions'
        )
        select concat_ws(' ', object, grantee::regrole, grantor::regrole, privilege_type, is_grantable)
        from acls, lateral aclexplode(acl) where grantee <> owner order by 1";
    let rows = db.superuser().await.query(sql, &[]).await.expect("the privileges");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_restores_by_the_owner_are_complete() {
    let source = filled("dump_parallel").await;
    let dump = source.dump(Role::Owner, &["-Fc"]).await;
    for run in 0..PARALLEL_RESTORES {
        let target = Database::empty("restore").await;
        target
            .program("pg_restore", Role::Owner)
            .args(["-j4", "--exit-on-error", "-d", &target.name, dump.path()])
            .output()
            .await;
        let how = format!("parallel restore {run}");
        if run == 0 {
            source.assert_restored(&target, &how).await;
        } else {
            assert_eq!(content(&target).await, source.content, "{how}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_format_restores_all_rows() {
    let source = filled("dump_formats").await;

    let plain = source.dump(Role::Owner, &["-Fp"]).await;
    let target = Database::empty("restore_plain").await;
    target.psql(Role::Owner).args(["-f", plain.path()]).output().await;
    source.assert_restored(&target, "plain").await;

    let folder = source.dump(Role::Owner, &["-Fd", "-j4"]).await;
    let target = Database::empty("restore_folder").await;
    target
        .program("pg_restore", Role::Owner)
        .args(["-j4", "--exit-on-error", "-d", &target.name, folder.path()])
        .output()
        .await;
    source.assert_restored(&target, "directory").await;

    let custom = source.dump(Role::Owner, &["-Fc"]).await;
    let target = Database::empty("restore_single").await;
    target
        .program("pg_restore", Role::Owner)
        .args(["--single-transaction", "--exit-on-error", "-d", &target.name, custom.path()])
        .output()
        .await;
    source.assert_restored(&target, "one transaction").await;

    let owner = target.role_name(&Role::Owner);
    let target = Database::empty("restore_superuser").await;
    target
        .program("pg_restore", Role::Superuser)
        .args(["-j4", "--exit-on-error", &format!("--role={owner}"), "-d", &target.name, custom.path()])
        .output()
        .await;
    source.assert_restored(&target, "superuser with --role").await;
    let of_the_owner =
        format!("select extowner = '{owner}'::regrole from pg_extension where extname = 'agent_sessions'");
    assert!(target.superuser().await.value::<bool>(&of_the_owner, &[]).await);
}

/// Into a database where the extension is already, with the privileges handed out there.
#[tokio::test(flavor = "multi_thread")]
async fn data_alone_restores_into_an_installed_extension() {
    let source = filled("dump_data").await;
    for (arguments, how) in [
        (vec!["-Fc", "--data-only"], "data only"),
        (vec!["-Fp", "--data-only", "--rows-per-insert=100"], "data only, as INSERT statements"),
    ] {
        let dump = source.dump(Role::Owner, &arguments).await;
        let target = Database::create("restore_data").await;
        target.owner().await.run(&format!("select agent_sessions.access_grant('{}', 'writer')", source.bound)).await;
        if arguments.contains(&"-Fc") {
            target
                .program("pg_restore", Role::Owner)
                .args(["-j4", "--exit-on-error", "-d", &target.name, dump.path()])
                .output()
                .await;
        } else {
            target.psql(Role::Owner).args(["-f", dump.path()]).output().await;
        }
        source.assert_restored(&target, how).await;
    }
}

/// A dump with forced policies would hold a part of the rows; it is refused instead.
#[tokio::test(flavor = "multi_thread")]
async fn forced_policies_ask_for_a_role_that_passes_them() {
    let db = Database::create("dump_forced").await;
    let writer = db.writer().await;
    for tenant in ["a", "b"] {
        writer.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        writer.create_session("s").await;
        writer.append("s", "1").await;
    }
    db.owner().await.run("select agent_sessions.access_force_rls(true)").await;
    let scratch = Scratch::new(&db, "forced");
    let refused = db.program("pg_dump", Role::Owner).args(["-Fc", "-f", scratch.path()]).run().await;
    assert!(!refused.success, "a dump of one tenant's rows");
    db.program("pg_dump", Role::Superuser).args(["-Fc", "-f", scratch.path()]).output().await;

    let target = Database::empty("restore_forced").await;
    target
        .program("pg_restore", Role::Owner)
        .args(["-j4", "--exit-on-error", "-d", &target.name, scratch.path()])
        .output()
        .await;
    let restored = content(&target).await;
    assert_eq!(restored, content(&db).await);
    assert_eq!(restored.items, 2);
}

/// A dump taken while others write is one moment of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_dump_under_writers_is_one_moment() {
    let db = Database::create("dump_live").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    writer.append_batch("s", &batch(2000)).await;
    let scratch = Scratch::new(&db, "live");
    let dumping = {
        let program = db.program("pg_dump", Role::Owner).args(["-Fd", "-j2", "-f", scratch.path()]);
        tokio::spawn(program.output())
    };
    let mut appended = 0;
    while !dumping.is_finished() {
        writer.append("s", "\"during\"").await;
        writer.run("select agent_sessions.session_create()").await;
        appended += 1;
    }
    dumping.await.expect("the dump");
    assert!(appended > 0);
    let target = Database::empty("restore_live").await;
    target
        .program("pg_restore", Role::Owner)
        .args(["-j4", "--exit-on-error", "-d", &target.name, scratch.path()])
        .output()
        .await;
    let writer = target.writer().await;
    let verdict = writer.verify("s").await;
    assert!(verdict.ok && verdict.entries >= 2000, "{verdict:?}");
    assert_eq!(writer.append("s", "1").await, verdict.entries);
    assert_no_orphans(&target.superuser().await).await;
}

fn batch(elements: usize) -> String {
    let elements: Vec<String> = (0..elements).map(|number| format!("{{\"payload\":{number}}}")).collect();
    format!("[{}]", elements.join(","))
}

async fn assert_no_orphans(connection: &Connection) {
    let orphans =
        "select count(*) from agent_sessions.session_item where sid not in (select sid from agent_sessions.session)";
    assert_eq!(connection.value::<i64>(orphans, &[]).await, 0);
}
