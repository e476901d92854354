//! What pg_dump writes and pg_restore reads: all rows, byte for byte, in every format, and the restored log goes on.

use agent_sessions_tests::Scratch;

use agent_sessions_tests::{Append, Connection, Database, Role, sqlstate};

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

/// The columns of a table that a restore keeps: no lease survives one, its fence does.
const KEPT_COLUMNS: &str = "
    select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute
    where attrelid = $1::text::regclass and attnum > 0 and not attisdropped
      and attname not in ('lease_digest', 'lease_holder', 'lease_expires_at')";

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
        let columns: String = superuser.value(KEPT_COLUMNS, &[&format!("agent_sessions.{table}")]).await;
        let sql = format!(
            "select '{table} ' || count(*) || ' ' || coalesce(md5(string_agg(md5(row({columns})::text), '' order by {order})), '-')
             from agent_sessions.{table}"
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

async fn dump(db: &Database, role: Role, arguments: &[&str]) -> Scratch {
    let scratch = Scratch::new(db, &arguments.join("").replace(['/', '-', '='], "_"));
    db.program("pg_dump", role).args(arguments).args(["-f", scratch.path()]).output().await;
    scratch
}

async fn restore(db: &Database, role: Role, arguments: &[&str], dump: &Scratch) {
    let program = db.program("pg_restore", role).args(arguments);
    program.args(["--exit-on-error", "-d", &db.name, dump.path()]).output().await;
}

impl Source {
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
        let denied = bound.query("select agent_sessions.current_tenant()", &[]).await.expect_err("another tenant");
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
    let dump = dump(&source.db, Role::Owner, &["-Fc"]).await;
    for run in 0..PARALLEL_RESTORES {
        let target = Database::empty("restore").await;
        restore(&target, Role::Owner, &["-j4"], &dump).await;
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

    let plain = dump(&source.db, Role::Owner, &["-Fp"]).await;
    let target = Database::empty("restore_plain").await;
    target.psql(Role::Owner).args(["-f", plain.path()]).output().await;
    source.assert_restored(&target, "plain").await;

    let folder = dump(&source.db, Role::Owner, &["-Fd", "-j4"]).await;
    let target = Database::empty("restore_folder").await;
    restore(&target, Role::Owner, &["-j4"], &folder).await;
    source.assert_restored(&target, "directory").await;

    let custom = dump(&source.db, Role::Owner, &["-Fc"]).await;
    let target = Database::empty("restore_single").await;
    restore(&target, Role::Owner, &["--single-transaction"], &custom).await;
    source.assert_restored(&target, "one transaction").await;

    let owner = target.role_name(&Role::Owner);
    let target = Database::empty("restore_superuser").await;
    restore(&target, Role::Superuser, &["-j4", &format!("--role={owner}")], &custom).await;
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
        let dump = dump(&source.db, Role::Owner, &arguments).await;
        let target = Database::create("restore_data").await;
        target.owner().await.run(&format!("select agent_sessions.access_grant('{}', 'writer')", source.bound)).await;
        if arguments.contains(&"-Fc") {
            restore(&target, Role::Owner, &["-j4"], &dump).await;
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
    restore(&target, Role::Owner, &["-j4"], &scratch).await;
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
    restore(&target, Role::Owner, &["-j4"], &scratch).await;
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

/// One tenant's sessions of every kind that a dump has to carry: branches of branches, what was trimmed, erased, hidden or
/// streamed, leases, sub-sessions, and branches that inherit nothing.
pub(crate) const FOREST: &str = r#"
    create function pg_temp.items(first integer, last integer) returns json language sql as $$
      select json_agg(json_build_object('payload', json_build_object('n', n), 'item_id', 'item ' || n, 'tag', 'tag ' || n % 3))
      from generate_series(first, last) n $$;

    select agent_sessions.session_create('root', title => 'Root', state => '{"b":1, "a":2}', items => pg_temp.items(0, 29));
    select agent_sessions.session_revise('root', '"revised"', item_id => 'item 3');
    select agent_sessions.session_revise('root', '"revised again"', item_id => 'item 3');
    select agent_sessions.session_retract('root', targets => '{4}');
    select agent_sessions.session_retract('root', from_target => 28);
    -- behind a range that was retracted
    select agent_sessions.session_append('root', '""', item_id => 'stream', open => true);
    select agent_sessions.session_delta('root', 34, 0, E'root\t');
    select agent_sessions.session_delta('root', 34, 1, E'\\.\n');
    select agent_sessions.session_branch('root', new_session_id => 'streaming', title => 'fork %d');
    select agent_sessions.session_delta('streaming', 34, 0, 'an inherited item');
    select agent_sessions.session_append('root', '"summary"', kind => 'summary', kept_from => 20);

    select agent_sessions.session_branch('root', new_session_id => 'b1', title => 'fork %d');
    select agent_sessions.session_revise('b1', '"of the branch"', item_id => 'item 5');
    select agent_sessions.session_retract('b1', item_ids => '{item 6}');
    select agent_sessions.session_retract('b1', from_target => 25);
    select agent_sessions.session_append_batch('b1', pg_temp.items(100, 109));
    select agent_sessions.session_append('b1', '""', item_id => 'stream of b1', open => true);
    select agent_sessions.session_delta('b1', 49, 0, 'b1');
    select agent_sessions.session_revise('root', '"of the root"', item_id => 'item 5');
    select agent_sessions.session_branch('b1', new_session_id => 'b2');
    select agent_sessions.session_append_batch('b2', pg_temp.items(200, 204));
    select agent_sessions.session_branch('b2', at_target => 5, new_session_id => 'b3');
    select agent_sessions.session_branch('b2', at_item_id => 'item 102', new_session_id => 'b4', new_agent_id => 'other');
    select agent_sessions.session_append_batch('b4', pg_temp.items(300, 304), agent_id => 'other');
    select agent_sessions.session_branch('b4', at_tag => 'tag 1', new_session_id => 'b5', agent_id => 'other');
    select agent_sessions.session_branch('b2', inherit => false, seed => '"a seed"', new_session_id => 'seeded');
    select agent_sessions.session_branch('seeded', new_session_id => 'seeded 1');
    select agent_sessions.session_append('seeded 1', '1');
    select agent_sessions.session_create('empty');
    select agent_sessions.session_branch('empty', new_session_id => 'of empty');
    select agent_sessions.session_append('of empty', '1');

    -- in the session itself, behind the forks; through a branch; through a branch of a branch; a revised item whole
    select agent_sessions.session_erase('root', target => 7, reason => 'asked for');
    select agent_sessions.session_erase('b2', target => 8);
    select agent_sessions.session_erase('b2', item_id => 'item 101');
    select agent_sessions.session_erase('b5', item_id => 'item 5', agent_id => 'other');
    select agent_sessions.session_erase('b1', item_id => 'item 5');
    select agent_sessions.session_erase('root', item_id => 'item 3');
    select agent_sessions.session_append('root', '"tail"');

    select agent_sessions.session_create('trimmed', items => pg_temp.items(0, 19));
    select agent_sessions.session_erase('trimmed', item_id => 'item 9');
    select agent_sessions.session_trim('trimmed', 8);
    select agent_sessions.session_branch('trimmed', new_session_id => 'of trimmed');
    select agent_sessions.session_append_batch('of trimmed', pg_temp.items(20, 29));
    select agent_sessions.session_branch('of trimmed', new_session_id => 'below');
    select agent_sessions.session_append_batch('below', pg_temp.items(30, 39));
    select agent_sessions.session_trim('below', 35);
    select agent_sessions.session_create('nearly trimmed', items => pg_temp.items(0, 4));
    select agent_sessions.session_trim('nearly trimmed', 4);

    select agent_sessions.session_create('hidden', items => pg_temp.items(0, 9));
    select agent_sessions.session_branch('hidden', new_session_id => 'heir');
    select agent_sessions.session_delete('hidden');
    select agent_sessions.session_create('hidden', items => '[{"payload":"another of that name"}]');
    select agent_sessions.session_erase('heir', target => 3);
    select agent_sessions.session_create('hidden 1', items => pg_temp.items(0, 9));
    select agent_sessions.session_branch('hidden 1', new_session_id => 'hidden 2');
    select agent_sessions.session_append('hidden 2', '"own"');
    select agent_sessions.session_branch('hidden 2', new_session_id => 'heir 2');
    select agent_sessions.session_append('heir 2', '"own"');
    select agent_sessions.session_delete('hidden 2');
    select agent_sessions.session_delete('hidden 1');

    select agent_sessions.session_create('parent', items => '[{"payload":0}]');
    select agent_sessions.session_create('child', parent_session_id => 'parent', items => '[{"payload":1}]');
    select agent_sessions.session_create('grandchild', parent_session_id => 'child', items => '[{"payload":2}]');
    select agent_sessions.session_branch('child', new_session_id => 'heir of child');
    select agent_sessions.session_create('other child', parent_session_id => 'parent');
    select agent_sessions.session_delete('child');

    -- flattened: with erased and open items, out of a trimmed log, the last that needed a hidden one, with branches, hidden itself
    select agent_sessions.session_branch('root', new_session_id => 'flat');
    select agent_sessions.session_delta('flat', 34, 0, 'a copied item');
    select agent_sessions.session_append('flat', '"own"');
    select agent_sessions.session_revise('flat', '"own"', item_id => 'item 9');
    select agent_sessions.session_flatten('flat');
    select agent_sessions.session_append('flat', '"after"');
    select agent_sessions.session_branch('flat', new_session_id => 'of flat');
    select agent_sessions.session_erase('of flat', item_id => 'item 9');
    select agent_sessions.session_branch('of trimmed', new_session_id => 'flat trimmed');
    select agent_sessions.session_flatten('flat trimmed');
    select agent_sessions.session_append('flat trimmed', '"own"');
    select agent_sessions.session_create('hidden 3', items => pg_temp.items(0, 9));
    select agent_sessions.session_branch('hidden 3', new_session_id => 'flat hidden');
    select agent_sessions.session_delete('hidden 3');
    select agent_sessions.session_flatten('flat hidden');
    select agent_sessions.session_append('flat hidden', '"own"');
    select agent_sessions.session_branch('flat hidden', new_session_id => 'heir of flat');
    select agent_sessions.session_delete('flat hidden');

    -- long enough for one table to come in while another does
    select agent_sessions.session_create('long', items => pg_temp.items(0, 1999));
    select agent_sessions.session_branch('long', at_target => 1499, new_session_id => 'of long');
    select agent_sessions.session_append_batch('of long', pg_temp.items(2000, 2499));

    select agent_sessions.session_claim('root', '1 hour', holder => 'a holder');
    select agent_sessions.session_claim('heir', '1 hour');
    select agent_sessions.session_claim('parent', '1 microsecond');
    select agent_sessions.session_release('empty', (select lease from agent_sessions.session_claim('empty', '1 minute')));
    -- the last key and the last fence are of a session that is gone
    select agent_sessions.session_delete('gone', lease => (select lease from agent_sessions.session_claim('gone', '1 minute')));
    drop function pg_temp.items"#;

pub(crate) const TENANTS: [&str; 2] = ["", "acme"];

/// A session that is not hidden, with where its log ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Known {
    pub(crate) tenant: String,
    agent_id: String,
    session_id: String,
    next_position: i64,
}

/// What there is of a forest: its rows, what readers show of every session, and how much there is of each kind.
struct Forest {
    content: Content,
    sessions: Vec<Known>,
    shown: Vec<String>,
    kinds: Vec<(String, i64)>,
}

async fn grown(name: &str) -> (Database, Forest) {
    let db = Database::create(name).await;
    for tenant in TENANTS {
        let writer = db.writer().await;
        writer.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        writer.run(FOREST).await;
    }
    let forest = forest(&db).await;
    for (kind, count) in &forest.kinds {
        assert!(*count > 0, "the forest has no {kind}");
    }
    for shown in &forest.shown {
        assert!(shown.contains(" verifies "), "it does not verify: {shown}");
    }
    let leases: i64 = db.superuser().await.value(LEASES, &[]).await;
    assert_eq!(leases, 6, "two that are live and one that has expired, of each tenant");
    (db, forest)
}

const LEASES: &str =
    "select count(*) from agent_sessions.session where num_nonnulls(lease_digest, lease_holder, lease_expires_at) > 0";

/// Every session that is not hidden.
pub(crate) async fn known(superuser: &Connection) -> Vec<Known> {
    let heads = "select tenant, agent_id, session_id, next_position from agent_sessions.session_head order by 1, 2, 3";
    let rows = superuser.query(heads, &[]).await.expect("the heads");
    let known = |row: &tokio_postgres::Row| Known {
        tenant: row.get(0),
        agent_id: row.get(1),
        session_id: row.get(2),
        next_position: row.get(3),
    };
    rows.iter().map(known).collect()
}

/// What the readers show of every session, and what its chain says.
pub(crate) async fn shown(superuser: &Connection) -> Vec<String> {
    // Aggregates keep the order in which a reader returns its rows.
    let shown = "
        select concat_ws(' ', s.tenant, s.agent_id, s.session_id, s.branched_from, s.parent_session_id, s.fork_position, v.entries, v.redacted, v.reason,
          case when v.ok then 'verifies' end,
          (select count(*) || md5(string_agg(h::text, '|')) from agent_sessions.session_history(s.session_id, agent_id => s.agent_id, tenant => s.tenant) h),
          (select count(*) || md5(string_agg(l::text, '|')) from agent_sessions.session_log(s.session_id, agent_id => s.agent_id, tenant => s.tenant) l),
          (select count(*) || md5(string_agg(c::text, '|')) from agent_sessions.session_context(s.session_id, agent_id => s.agent_id, tenant => s.tenant) c),
          (select string_agg(a::text, '|') from agent_sessions.session_lineage(s.session_id, agent_id => s.agent_id, tenant => s.tenant) a))
        from agent_sessions.session_head s,
          lateral agent_sessions.session_verify(s.session_id, agent_id => s.agent_id, tenant => s.tenant) v
        order by s.tenant, s.agent_id, s.session_id";
    let rows = superuser.query(shown, &[]).await.expect("what the readers show");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn forest(db: &Database) -> Forest {
    let superuser = db.superuser().await;
    let sessions = known(&superuser).await;
    let shown = shown(&superuser).await;
    let kinds = "
        select 'hidden session', count(*) from agent_sessions.session where deleted_at is not null
        union all select 'hidden sub-session', count(*) from agent_sessions.session where deleted_at is not null and parent_sid is not null
        union all select 'branch', count(*) from agent_sessions.session where fork_position > 0
        union all select 'branch at 0', count(*) from agent_sessions.session where fork_position = 0
        union all select 'branch that inherits nothing', count(*) from agent_sessions.session
          where branched_from is not null and fork_position is null
        union all select 'branch that has left its inheritance', count(*) from agent_sessions.session where base_position > fork_position
        union all select 'trimmed session', count(*) from agent_sessions.session where base_position > 0 and fork_position is null
        union all select 'redacted entry', count(*) from agent_sessions.session_item where salt is null and op <> 'retract'
        union all select 'redacted revision', count(*) from agent_sessions.session_item where salt is null and op = 'revise'
        union all select 'chunk', count(*) from agent_sessions.session_delta
        union all select 'chunk for an inherited item', count(*) from agent_sessions.session_delta d
          where not exists (select from agent_sessions.session_item i where i.sid = d.sid and i.position = d.target)
        union all select 'chunk behind a retracted range', count(*) from agent_sessions.session_delta d
          where exists (select from agent_sessions.session_item i where i.sid = d.sid and i.op = 'retract_from' and i.position < d.target)
        union all select 'flattened branch', count(*) from agent_sessions.session where branched_from is null and fork_position > 0
        union all select 'sub-session', count(*) from agent_sessions.session where parent_sid is not null";
    let rows = superuser.query(kinds, &[]).await.expect("the kinds");
    let kinds: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    Forest { content: content(db).await, sessions, shown, kinds }
}

impl Known {
    /// The session can be claimed, written and branched, and the branch as well.
    pub(crate) async fn assert_goes_on(&self, writer: &Connection, last_fence: i64, how: &str) {
        let told = format!("{how}: {self:?}");
        writer
            .run(&format!(
                "set agent_sessions.tenant = '{}'; set agent_sessions.agent = '{}'",
                self.tenant, self.agent_id
            ))
            .await;
        let claim = "select lease, fence from agent_sessions.session_claim($1::text, '1 minute')";
        let claimed = writer.query_one(claim, &[&self.session_id]).await.expect("no lease is live");
        let (lease, fence): (String, i64) = (claimed.get(0), claimed.get(1));
        assert!(fence > last_fence, "{told}: fence {fence} after {last_fence}");
        let appended = Append::to(&self.session_id, "\"after\"").lease(&lease).run(writer).await;
        assert_eq!(appended.expect("an append"), self.next_position, "{told}");
        let branch = format!("after {}", self.session_id);
        let branched = "select fork_position from agent_sessions.session_branch($1::text, new_session_id => $2::text, lease => $3::text)";
        let fork: i64 = writer.value(branched, &[&self.session_id, &branch, &lease]).await;
        assert_eq!(fork, self.next_position + 1, "{told}");
        let released = "select agent_sessions.session_release($1::text, $2::text)";
        assert!(writer.value::<bool>(released, &[&self.session_id, &lease]).await, "{told}");
        assert_eq!(writer.raw_append(&self.session_id, "\"raw\"").await.expect("a raw append"), 1, "{told}");
        assert_eq!(writer.append(&branch, "\"of the branch\"").await, fork, "{told}");
        for session in [&self.session_id, &branch] {
            let verdict = writer.verify(session).await;
            assert!(verdict.ok, "{told}: {session}: {verdict:?}");
        }
        assert_eq!(
            writer.history(&branch).await.pop().and_then(|last| last.payload).as_deref(),
            Some("\"of the branch\""),
            "{told}"
        );
        assert_eq!(writer.log(&self.session_id).await.last().map(|last| last.position), Some(fork), "{told}");
    }

    async fn delete(&self, writer: &Connection) {
        writer
            .run(&format!(
                "set agent_sessions.tenant = '{}'; set agent_sessions.agent = '{}'",
                self.tenant, self.agent_id
            ))
            .await;
        // A session that goes with its parent is gone already.
        let delete = "select agent_sessions.session_delete($1::text, on_missing => 'ignore')";
        writer.query(delete, &[&self.session_id]).await.expect("a deletion");
    }
}

impl Forest {
    /// All of it is there, no lease is, and every session goes on.
    async fn assert_restored(&self, target: &Database, how: &str) {
        let restored = forest(target).await;
        assert_eq!(restored.content, self.content, "{how}");
        assert_eq!(restored.kinds, self.kinds, "{how}");
        assert_eq!(restored.shown, self.shown, "{how}");
        assert_eq!(restored.sessions, self.sessions, "{how}");
        let superuser = target.superuser().await;
        assert_eq!(superuser.value::<i64>(LEASES, &[]).await, 0, "{how}");
        let writer = target.writer().await;
        for known in &self.sessions {
            known.assert_goes_on(&writer, self.content.next_fence - 1, how).await;
        }
        for tenant in TENANTS {
            assert_heirs_collect(&superuser, &writer, tenant, how).await;
        }
        // What is deleted leaves nothing behind, in whatever order.
        for known in &self.sessions {
            known.delete(&writer).await;
            Known { session_id: format!("after {}", known.session_id), ..known.clone() }.delete(&writer).await;
        }
        for table in ["session", "session_item", "session_delta"] {
            let left = format!("select count(*) from agent_sessions.{table}");
            assert_eq!(superuser.value::<i64>(&left, &[]).await, 0, "{how}: {table}");
        }
    }
}

/// A hidden session goes with the last of the branches that need it, and not before.
async fn assert_heirs_collect(superuser: &Connection, writer: &Connection, tenant: &str, how: &str) {
    let counts = "select array[count(*) filter (where deleted_at is null), count(*) filter (where deleted_at is not null)]
                  from agent_sessions.session where tenant = $1::text and session_id in ('hidden', 'heir', 'after heir')";
    for (deleted, left) in [("", [3_i64, 1]), ("heir", [2, 2]), ("after heir", [1, 0])] {
        let heir = Known {
            tenant: tenant.to_owned(),
            agent_id: String::new(),
            session_id: deleted.to_owned(),
            next_position: 0,
        };
        if !deleted.is_empty() {
            heir.delete(writer).await;
        }
        assert_eq!(superuser.value::<Vec<i64>>(counts, &[&tenant]).await, left, "{how}: after deleting '{deleted}'");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn branches_and_what_retention_has_left_come_through_parallel_restores() {
    let (db, grown) = grown("dump_forest").await;
    let as_owner = format!("--role={}", db.role_name(&Role::Owner));
    let folder = dump(&db, Role::Owner, &["-Fd", "-j4"]).await;
    let custom = dump(&db, Role::Superuser, &["-Fc", &as_owner]).await;
    let superuser = ["-j4", &as_owner];
    for (run, (dump, role, arguments)) in [
        (&folder, Role::Owner, &superuser[..1]),
        (&custom, Role::Owner, &superuser[..1]),
        (&folder, Role::Superuser, &superuser[..]),
        (&custom, Role::Superuser, &superuser[..]),
        (&folder, Role::Owner, &superuser[..1]),
        (&custom, Role::Owner, &superuser[..1]),
    ]
    .into_iter()
    .enumerate()
    {
        let target = Database::empty("restore_forest").await;
        restore(&target, role.clone(), arguments, dump).await;
        grown.assert_restored(&target, &format!("run {run} as {role:?}")).await;
    }
}

/// In the order of the dump, where chunks come in before the entries that they belong to.
#[tokio::test(flavor = "multi_thread")]
async fn branches_and_what_retention_has_left_come_through_serial_restores() {
    let (db, grown) = grown("dump_forest_serial").await;
    let plain = dump(&db, Role::Owner, &["-Fp"]).await;
    let target = Database::empty("restore_forest_plain").await;
    target.psql(Role::Owner).args(["-f", plain.path()]).output().await;
    grown.assert_restored(&target, "plain").await;
    let inserts = dump(&db, Role::Owner, &["-Fp", "--data-only", "--rows-per-insert=7"]).await;
    let target = Database::create("restore_forest_inserts").await;
    target.psql(Role::Owner).args(["-f", inserts.path()]).output().await;
    grown.assert_restored(&target, "as INSERT statements").await;
}
