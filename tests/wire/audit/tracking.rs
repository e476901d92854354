//! The automatic trail: each deed of the engine that is tracked is one event, in the same transaction, and no other is.

use agent_sessions_tests::{Connection, Database, Role};

use super::{Verdict, admin, assert_chained, column, count, verdicts};

pub const TRAIL: &str = "agent_sessions";

const NOTHING: [&str; 0] = [];

/// The trail, each event as its action, actor, target, session_id and payload.
pub async fn trail(connection: &Connection) -> Vec<String> {
    let row = "concat_ws(' ', action, actor, coalesce(target, '-'), coalesce(session_id, '-'),
                 agent_sessions.audit_payload(data)::text)";
    column(connection, TRAIL, row).await
}

/// Enables a word in the tenant of the connection.
pub async fn track(connection: &Connection, what: &str) {
    connection.run(&format!("select agent_sessions.audit_track('{what}', true)")).await;
}

/// What the statement adds to the trail, in any order.
pub async fn adds(reader: &Connection, connection: &Connection, sql: &str) -> Vec<String> {
    let before = trail(reader).await.len();
    connection.run(sql).await;
    let mut added = trail(reader).await.split_off(before);
    added.sort();
    added
}

/// The same of one connection, whose role is the actor, which the texts leave out as `me`.
async fn assert_adds<S: AsRef<str>>(connection: &Connection, sql: &str, wanted: &[S]) {
    let me: String = connection.value("select current_user::text", &[]).await;
    let added = adds(connection, connection, sql).await;
    let added: Vec<String> = added.iter().map(|told| told.replacen(&format!(" {me} "), " me ", 1)).collect();
    let mut wanted: Vec<&str> = wanted.iter().map(AsRef::as_ref).collect();
    wanted.sort_unstable();
    assert_eq!(added, wanted, "{sql}");
}

async fn sessions(writer: &Connection, ids: &[&str]) {
    for id in ids {
        let create = "select session_id from agent_sessions.session_create($1::text, items =>
            '[{\"payload\":0,\"item_id\":\"i\"},{\"payload\":1},{\"payload\":2},{\"payload\":3}]')";
        writer.value::<String>(create, &[id]).await;
    }
}

/// Something of everything that can be tracked, and much that cannot.
async fn everything(db: &Database, admin: &Connection, other: &str) {
    let (writer, owner) = (db.writer().await, db.owner().await);
    sessions(&writer, &["s", "long", "held", "gone", "raw gone"]).await;
    writer.append("s", "4").await;
    writer
        .run(
            "select agent_sessions.session_set('s', title => 't');
             select agent_sessions.session_branch('s', new_session_id => 'b');
             select agent_sessions.session_erase('s', target => 0, reason => 'r');
             select agent_sessions.session_trim('long', 2);
             select agent_sessions.session_claim('held', '1 hour');
             select agent_sessions.session_delete('gone');
             select agent_sessions.session_import('[{\"session\": {\"session_id\": \"copy\"}}]');
             delete from agent_sessions.session where session_id = 'raw gone'",
        )
        .await;
    admin.run("select agent_sessions.session_break_lease('held')").await;
    owner
        .run(&format!(
            "select agent_sessions.access_grant('{other}', 'reader'); select agent_sessions.tenant_bind('{other}', 'a')"
        ))
        .await;
}

/// For each word of audit_track, what it makes of `everything`, without the actors.
const TOLD: [(&str, &[&str]); 9] = [
    ("state", &["session_set - s {\"changed\":[\"title\"],\"revision\":1}"]),
    ("delete", &["session_delete - gone null", "session_delete - raw gone null"]),
    ("branch", &["session_branch - b {\"fork_position\":5}"]),
    (
        "import",
        &[
            "session_import - copy {\"agent_id\":null,\"digest\":null,\"next_position\":0,\"session_id\":\"copy\",\"tenant\":null}",
        ],
    ),
    ("erase", &["session_erase - s {\"erased\":1,\"item_id\":null,\"reason\":\"r\",\"target\":0}"]),
    ("trim", &["session_trim - long {\"base_position\":2,\"removed\":2}"]),
    ("lease", &["session_break_lease - held null"]),
    ("access", &["access_grant OTHER - {\"level\":\"reader\"}"]),
    ("tenant", &["tenant_bind OTHER - {\"tenant\":\"a\"}"]),
];

async fn without_actors(connection: &Connection, other: &str) -> Vec<String> {
    let row = "concat_ws(' ', action, coalesce(target, '-'), coalesce(session_id, '-'),
                 agent_sessions.audit_payload(data)::text)";
    column(connection, TRAIL, row).await.iter().map(|told| told.replace(other, "OTHER")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_tracked_unless_it_is_enabled() {
    let db = Database::create("track_off").await;
    let (admin, other) = (admin(&db).await, db.role("other", None).await);
    everything(&db, &admin, &other).await;
    let superuser = db.superuser().await;
    assert_eq!(count(&superuser, "agent_sessions.audit_event").await, 0);
    assert_eq!(count(&superuser, "agent_sessions.audit_chain").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_word_tracks_its_own_deeds_and_no_others() {
    for (what, told) in TOLD {
        let db = Database::create("track_one").await;
        let (admin, other) = (admin(&db).await, db.role("other", None).await);
        track(&db.owner().await, what).await;
        everything(&db, &admin, &other).await;
        let writer = db.writer().await;
        assert_eq!(without_actors(&writer, &other).await, told, "{what}");
        assert_chained(&writer, TRAIL, told.len() as i64).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_tracks_each_of_them_once() {
    let db = Database::create("track_all").await;
    let (admin, other) = (admin(&db).await, db.role("other", None).await);
    track(&db.owner().await, "all").await;
    everything(&db, &admin, &other).await;
    let writer = db.writer().await;
    let mut told = without_actors(&writer, &other).await;
    let mut wanted: Vec<String> =
        TOLD.iter().flat_map(|(_, told)| told.iter().map(|told| (*told).to_owned())).collect();
    told.sort();
    wanted.sort();
    assert_eq!(told, wanted);
    let verdict =
        Verdict { stream: TRAIL.to_owned(), entries: 10, redacted: 0, ok: true, first_bad_seq: None, reason: None };
    assert_eq!(verdicts(&writer, "").await, [verdict]);
    let actors = column(&writer, TRAIL, "actor").await;
    let of = |role: &Role| actors.iter().filter(|actor| **actor == db.role_name(role)).count();
    assert_eq!((of(&Role::Writer), of(&Role::Owner)), (7, 2));
    // A deed is no more than that: no status, attrs, id, or time of its own.
    let plain =
        "agent_sessions.audit_event where status is null and attrs is null and event_id is null and fields is null
                   and occurred_at = recorded_at";
    assert_eq!(count(&writer, plain).await, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_appended_or_created_is_not_tracked() {
    let db = Database::create("track_appends").await;
    track(&db.owner().await, "all").await;
    let writer = db.writer().await;
    sessions(&writer, &["s"]).await;
    assert_adds(
        &writer,
        "select agent_sessions.session_append('s', '1', item_id => 'x');
         select agent_sessions.session_append_batch('s', '[{\"payload\":1}]');
         select agent_sessions.session_revise('s', '2', target => 1);
         select agent_sessions.session_retract('s', targets => '{2}');
         select agent_sessions.session_pop('s');
         select agent_sessions.session_append('s', '\"\"', open => true, item_id => 'open');
         select agent_sessions.session_delta('s', 9, 0, 'x');
         select agent_sessions.session_append('new', '1', on_missing => 'create');
         select agent_sessions.session_create('sub', parent_session_id => 's');
         select agent_sessions.session_create('s', on_conflict => 'keep');
         select agent_sessions.session_release('s', (select lease from agent_sessions.session_claim('s', '1 hour')));
         select agent_sessions.session_history('s'), agent_sessions.session_verify('s');
         insert into agent_sessions.session (session_id) values ('raw');
         insert into agent_sessions.session_item (sid, payload)
           select sid, '1' from agent_sessions.session where session_id = 'raw';
         select agent_sessions.audit_append('a')",
        &NOTHING,
    )
    .await;
    assert_chained(&writer, "", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_document_is_tracked_with_what_has_changed() {
    let db = Database::create("track_state").await;
    track(&db.owner().await, "state").await;
    let writer = db.writer().await;
    sessions(&writer, &["s", "t"]).await;
    writer.run("select agent_sessions.session_create('s', agent_id => 'planner')").await;
    let set = |changed: &str, revision: i64| {
        format!("session_set me - s {{\"changed\":[{changed}],\"revision\":{revision}}}")
    };
    for (sql, wanted) in [
        (
            "select agent_sessions.session_set('s', title => 't', state => '{}', metadata => '{}', status => 'x',
               owner => 'o')",
            vec![set("\"owner\",\"title\",\"status\",\"metadata\",\"state\"", 1)],
        ),
        ("select agent_sessions.session_set('s', title => 't')", vec![]),
        ("select agent_sessions.session_set('s', state => '{\"a\":1}', merge => true)", vec![set("\"state\"", 2)]),
        (
            "update agent_sessions.session set origin = 'app' where session_id = 's' and agent_id = ''",
            vec![set("\"origin\"", 3)],
        ),
        (
            "update agent_sessions.session set title = 'u' where session_id = 's' and agent_id = ''",
            vec![set("\"title\"", 4)],
        ),
        ("update agent_sessions.session set title = 'u' where session_id = 's' and agent_id = ''", vec![]),
        // Not the document: what a heartbeat or a count changes.
        ("select agent_sessions.session_set('s', input_tokens => 1, cost => 2)", vec![]),
        ("update agent_sessions.session set output_tokens = 3, expires_at = 'infinity' where session_id = 's'", vec![]),
        (
            "select agent_sessions.session_set('s', agent_id => 'planner', title => 'p')",
            vec!["session_set me planner s {\"changed\":[\"title\"],\"revision\":1}".to_owned()],
        ),
        (
            "update agent_sessions.session set status = 'y' where agent_id = ''",
            vec![
                "session_set me - s {\"changed\":[\"status\"],\"revision\":5}".to_owned(),
                "session_set me - t {\"changed\":[\"status\"],\"revision\":1}".to_owned(),
            ],
        ),
    ] {
        assert_adds(&writer, sql, &wanted).await;
    }
    // Also where it makes the session that it changes.
    let made = ["session_set me - made {\"changed\":[\"title\"],\"revision\":1}"];
    assert_adds(&writer, "select agent_sessions.session_set('made', title => 't', on_missing => 'create')", &made)
        .await;
    // One statement, two changes of one session.
    let twice = "select agent_sessions.session_set('t', title => 'a'), agent_sessions.session_set('t', title => 'b')";
    assert_eq!(adds(&writer, &writer, twice).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn that_a_session_was_closed_is_among_what_has_changed() {
    let db = Database::create("track_closed").await;
    track(&db.owner().await, "state").await;
    let writer = db.writer().await;
    sessions(&writer, &["s"]).await;
    writer.run("update agent_sessions.session set closed_at = now()").await;
    let told = column(&writer, TRAIL, "agent_sessions.audit_payload(data)::text").await;
    assert_eq!(told, ["{\"changed\":[\"closed_at\"],\"revision\":1}"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_is_tracked_once_for_every_session_that_goes() {
    let db = Database::create("track_delete").await;
    let writer = db.writer().await;
    let ids = ["one", "two", "three", "parent", "raw parent", "source", "expired", "expired too", "held"];
    sessions(&writer, &ids).await;
    writer
        .run(
            "select agent_sessions.session_create('child', parent_session_id => 'parent');
             select agent_sessions.session_create('grandchild', parent_session_id => 'child', agent_id => 'a',
               parent_agent_id => '');
             select agent_sessions.session_create('raw child', parent_session_id => 'raw parent');
             select agent_sessions.session_branch('source', new_session_id => 'branch');
             select agent_sessions.session_create('source child', parent_session_id => 'source');
             update agent_sessions.session set expires_at = now() - interval '1 hour'
             where session_id like 'expired%' or session_id = 'held';
             select agent_sessions.session_claim('held', '1 hour')",
        )
        .await;
    track(&db.owner().await, "delete").await;
    for (sql, gone) in [
        ("select agent_sessions.session_delete('one')", vec!["- one"]),
        ("select agent_sessions.session_delete('one', on_missing => 'ignore')", vec![]),
        ("delete from agent_sessions.session where session_id = 'nobody'", vec![]),
        ("delete from agent_sessions.session where session_id in ('two', 'three')", vec!["- three", "- two"]),
        ("select agent_sessions.session_delete('parent')", vec!["- child", "- parent", "a grandchild"]),
        ("delete from agent_sessions.session where session_id = 'raw parent'", vec!["- raw child", "- raw parent"]),
        // Hidden, since a branch reads it; with the branch it goes, of which the trail was told.
        ("select agent_sessions.session_delete('source')", vec!["- source", "- source child"]),
        ("select agent_sessions.session_delete('branch')", vec!["- branch"]),
        ("select agent_sessions.session_expire()", vec!["- expired", "- expired too"]),
        ("select agent_sessions.session_expire()", vec![]),
    ] {
        let wanted: Vec<String> = gone.iter().map(|gone| format!("session_delete me {gone} null")).collect();
        assert_adds(&writer, sql, &wanted).await;
    }
    let left = "select string_agg(session_id, ' ') from agent_sessions.session";
    assert_eq!(db.superuser().await.value::<String>(left, &[]).await, "held");
    assert_chained(&writer, TRAIL, 13).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_is_tracked_by_function_and_by_plain_insert() {
    let db = Database::create("track_branch").await;
    track(&db.owner().await, "branch").await;
    let (writer, owner) = (db.writer().await, db.owner().await);
    sessions(&writer, &["s"]).await;
    for connection in [&writer, &owner] {
        let name: String = connection
            .value("select case when current_user = session_user then substring(current_user from '[a-z]*$') end", &[])
            .await;
        for (arguments, payload) in [
            ("", "{\"fork_position\":4}"),
            (", at_target => 1", "{\"fork_position\":2}"),
            (", inherit => false, seed => '1'", "{\"fork_position\":null}"),
            (", new_agent_id => 'other'", "{\"fork_position\":4}"),
        ] {
            let id = format!("{name}{arguments}").replace('\'', "");
            let agent = if arguments.contains("agent") { "other" } else { "-" };
            let sql = format!("select agent_sessions.session_branch('s', new_session_id => '{id}'{arguments})");
            assert_adds(connection, &sql, &[&format!("session_branch me {agent} {id} {payload}")]).await;
        }
    }
    let raw = "insert into agent_sessions.session (session_id, branched_from, fork_position)
               select 'raw ' || n, sid, n from agent_sessions.session, generate_series(1, 2) n where session_id = 's'";
    let wanted = ["session_branch me - raw 1 {\"fork_position\":1}", "session_branch me - raw 2 {\"fork_position\":2}"];
    assert_adds(&writer, raw, &wanted).await;
    let refused = "do $$ begin
          perform agent_sessions.session_branch('s', new_session_id => 'raw 1');
        exception when sqlstate 'SE003' then null;
        end $$";
    assert_adds(&writer, refused, &NOTHING).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn erasures_and_trims_are_tracked_if_they_take_something() {
    let db = Database::create("track_retention").await;
    track(&db.owner().await, "erase").await;
    track(&db.owner().await, "trim").await;
    let writer = db.writer().await;
    sessions(&writer, &["s", "t", "source"]).await;
    writer
        .run(
            "select agent_sessions.session_branch('source', new_session_id => 'branch');
             select agent_sessions.session_revise('s', '9', item_id => 'i')",
        )
        .await;
    let erased = |session: &str, target: i64, item: &str, reason: &str, erased: i64| {
        format!(
            "session_erase me - {session} {{\"erased\":{erased},\"item_id\":{item},\"reason\":{reason},\"target\":{target}}}"
        )
    };
    let trimmed = |session: &str, base: i64, removed: i64| {
        format!("session_trim me - {session} {{\"base_position\":{base},\"removed\":{removed}}}")
    };
    for (sql, wanted) in [
        ("select agent_sessions.session_erase('s', target => 1)", vec![erased("s", 1, "null", "null", 1)]),
        ("select agent_sessions.session_erase('s', target => 1)", vec![]),
        (
            "select agent_sessions.session_erase('s', item_id => 'i', reason => 'asked to \"forget\"')",
            vec![erased("s", 0, "\"i\"", "\"asked to \\\"forget\\\"\"", 2)],
        ),
        ("select agent_sessions.session_erase('branch', target => 2)", vec![erased("branch", 2, "null", "null", 1)]),
        ("select agent_sessions.session_trim('t', 2)", vec![trimmed("t", 2, 2)]),
        ("select agent_sessions.session_trim('t', 2)", vec![]),
        ("select agent_sessions.session_trim('t', 0)", vec![]),
        // Its branch reads it.
        ("select agent_sessions.session_trim('source', 2)", vec![]),
    ] {
        assert_adds(&writer, sql, &wanted).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_lease_is_tracked_and_what_holders_do_is_not() {
    let db = Database::create("track_lease").await;
    track(&db.owner().await, "lease").await;
    let (writer, admin) = (db.writer().await, admin(&db).await);
    sessions(&writer, &["s"]).await;
    writer.run("select agent_sessions.session_claim('s', '1 hour')").await;
    assert_adds(&admin, "select agent_sessions.session_break_lease('s')", &["session_break_lease me - s null"]).await;
    assert_adds(&admin, "select agent_sessions.session_break_lease('s')", &NOTHING).await;
    let holders =
        "select agent_sessions.session_extend('s', lease, '1 hour'), agent_sessions.session_release('s', lease)
                   from agent_sessions.session_claim('s', '1 minute')";
    assert_adds(&writer, holders, &NOTHING).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_to_roles_is_tracked_in_the_tenant_that_is_set() {
    let db = Database::create("track_roles").await;
    let owner = db.owner().await;
    let role = db.role("other", None).await;
    owner.run("set agent_sessions.tenant = 'a'").await;
    track(&owner, "access").await;
    track(&owner, "tenant").await;
    let me = db.role_name(&Role::Owner);
    for (sql, wanted) in [
        (
            format!("select agent_sessions.access_grant('{role}', 'writer')"),
            format!("access_grant me {role} - {{\"level\":\"writer\"}}"),
        ),
        (format!("select agent_sessions.access_revoke('{role}')"), format!("access_revoke me {role} - null")),
        (
            "select agent_sessions.access_force_rls(true)".to_owned(),
            format!("access_force_rls me {me} - {{\"enabled\":true}}"),
        ),
        (
            "select agent_sessions.access_force_rls(false)".to_owned(),
            format!("access_force_rls me {me} - {{\"enabled\":false}}"),
        ),
        (
            format!("select agent_sessions.tenant_bind('{role}', 'b')"),
            format!("tenant_bind me {role} - {{\"tenant\":\"b\"}}"),
        ),
        (
            format!("select agent_sessions.tenant_unbind('{role}', 'b')"),
            format!("tenant_unbind me {role} - {{\"tenant\":\"b\"}}"),
        ),
    ] {
        assert_adds(&owner, &sql, &[&wanted]).await;
    }
    owner.run(&format!("set agent_sessions.tenant = ''; select agent_sessions.access_grant('{role}', 'reader')")).await;
    assert_eq!(trail(&owner).await, Vec::<String>::new());
}
