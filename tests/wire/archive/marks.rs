//! What an import may claim: it proves that the lines are whole, not that they were true. So each entry stays marked.

use agent_sessions_tests::{Branch, Connection, Database, Role, assert_sqlstate};
use serde_json::json;

use super::*;
use crate::branches::{call_of, sample};
use crate::hiding::deleted;

/// How many entries of a log are marked, and how many are not.
async fn marked(connection: &Connection, session: &str) -> (i64, i64) {
    let sql = "select count(imported_at), count(*) - count(imported_at) from agent_sessions.session_log($1::text)";
    let row = connection.query_one(sql, &[&session]).await.expect("a log");
    (row.get(0), row.get(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_imported_stays_marked_wherever_it_goes() {
    let db = Database::create("import_marks").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    assert_eq!(marked(&writer, "s").await, (0, 9));
    let lines = export(&writer, "s").await;
    deleted(&writer, "s").await;
    import(&writer, &lines).await;
    writer.append("s", "9").await;
    assert_eq!(marked(&writer, "s").await, (9, 1));
    // Through a branch that is flattened, and an erasure, which leaves the mark.
    writer.branched(Branch::of("s").named("b").at_target(5)).await;
    writer.append("b", "6").await;
    call_of(&writer, "session_erase('{s}', target => 0)", "b").await;
    call_of(&writer, "session_flatten('{s}')", "b").await;
    assert_eq!(marked(&writer, "b").await, (6, 2));
    // Through another export: everything is marked then.
    try_import_as(&writer, &export(&writer, "b").await, Some("c"), None).await.expect("an import");
    assert_eq!(marked(&writer, "c").await, (8, 0));
    let once = "select count(distinct imported_at) from agent_sessions.session_log('c')";
    assert_eq!(writer.value::<i64>(once, &[]).await, 1);
    // Nobody takes a mark away, and nobody gives one.
    let owner = db.owner().await;
    for change in ["imported_at = null", "imported_at = now()"] {
        let update = format!("update agent_sessions.session_item set {change} where position = 1");
        assert_sqlstate!(writer.batch_execute(&update).await, "42501");
        assert_sqlstate!(owner.batch_execute(&update).await, "SE014");
    }
    let insert = "insert into agent_sessions.session_item (sid, payload, imported_at)
                  select sid, '1', '2000-01-01' from agent_sessions.session where session_id = 's'";
    assert_sqlstate!(writer.batch_execute(insert).await, "42501");
    owner.run(insert).await;
    // Besides the two that were written, the erasure through the branch stands in this log.
    assert_eq!(marked(&writer, "s").await, (9, 3), "what the log chains by itself was written here");
}

/// A dump is no import: marks and their absence come through it.
#[tokio::test(flavor = "multi_thread")]
async fn marks_come_through_a_dump() {
    let (db, restored) = (Database::create("import_dump").await, Database::empty("import_restored").await);
    let writer = db.writer().await;
    sample(&writer, "s").await;
    try_import_as(&writer, &export(&writer, "s").await, Some("t"), None).await.expect("an import");
    writer.append("t", "1").await;
    let dump = db.program("pg_dump", Role::Owner).output().await;
    restored.psql(Role::Owner).input(dump).output().await;
    let owner = restored.owner().await;
    assert_eq!((marked(&owner, "s").await, marked(&owner, "t").await), ((0, 9), (9, 1)));
}

/// A writer can make lines that verify, with times of long ago: they are marked, and no anchor holds them.
#[tokio::test(flavor = "multi_thread")]
async fn an_invented_log_is_known_for_what_it_is() {
    let db = Database::create("import_invented").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    let root: String = writer.value("select root from agent_sessions.audit_anchor()", &[]).await;
    let checked = "select ok from agent_sessions.audit_check_anchor($1::text)";
    let truth = export(&writer, "s").await;
    deleted(&writer, "s").await;
    assert!(!writer.value::<bool>(checked, &[&root]).await);
    // The same session with another content: chained by this very database under the same genesis, then exported.
    let created_at = row(&parsed(&truth[0]), "session")["created_at"].clone();
    let head = json!({"session": {"session_id": "s", "agent_id": "", "created_at": created_at}}).to_string();
    let invented = |n: i64| json!({"entry": {"payload": "\"never said\"", "created_at": 1000 + n}}).to_string();
    let lines: Vec<String> = std::iter::once(head).chain((0..9).map(invented)).collect();
    import(&writer, &lines).await;
    let lines = export(&writer, "s").await;
    deleted(&writer, "s").await;
    import(&writer, &lines).await;
    writer.assert_dense("s", 9).await;
    assert_eq!(marked(&writer, "s").await, (9, 0));
    assert!(!writer.value::<bool>(checked, &[&root]).await);
    // The true one is what the anchor tells of.
    deleted(&writer, "s").await;
    import(&writer, &truth).await;
    assert!(writer.value::<bool>(checked, &[&root]).await);
}

async fn digests(connection: &Connection, session: &str, agent: &str) -> Vec<Vec<u8>> {
    let sql =
        "select array_agg(digest order by position) from agent_sessions.session_log($1::text, agent_id => $2::text)";
    connection.value(sql, &[&session, &agent]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenant_agent_or_id_gets_a_chain_of_its_own() {
    let db = Database::create("import_renamed").await;
    let (writer, other) = (db.writer().await, db.writer().await);
    other.run("set agent_sessions.tenant = 'other'").await;
    sample(&writer, "s").await;
    call_of(&writer, "session_erase('{s}', target => 3)", "s").await;
    let lines = export(&writer, "s").await;
    let original = digests(&writer, "s", "").await;
    import(&other, &lines).await;
    try_import_as(&writer, &lines, Some("t"), None).await.expect("another id");
    try_import_as(&writer, &lines, None, Some("coder")).await.expect("another agent");
    for (connection, session, agent) in [(&other, "s", ""), (&writer, "t", ""), (&writer, "s", "coder")] {
        let sql = "select ok and redacted = 1 from agent_sessions.session_verify($1::text, agent_id => $2::text)";
        assert!(connection.value::<bool>(sql, &[&session, &agent]).await);
        let copy = digests(connection, session, agent).await;
        assert!(copy.len() == 10 && copy.iter().all(|digest| !original.contains(digest)));
        assert_eq!(texts(connection, HISTORY, &[&session, &agent]).await, texts(&writer, HISTORY, &[&"s", &""]).await);
        // Back under its own name, it is chained as it was.
        let back = export_of(connection, session, agent).await;
        deleted(&writer, "s").await;
        try_import_as(&writer, &back, Some("s"), Some("")).await.expect("back");
        assert_eq!(digests(&writer, "s", "").await, original);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_writers_import_and_only_what_they_may_see() {
    let db = Database::create("import_roles").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    sample(&writer, "s").await;
    let lines = export(&reader, "s").await;
    assert_eq!(lines, export(&writer, "s").await);
    let stranger = db.stranger().await;
    assert_sqlstate!(stranger.query("select agent_sessions.session_export('s')", &[]).await, "42501");
    let auditor = db.connect(Role::Named(db.role("auditor", Some("auditor")).await)).await;
    for connection in [&reader, &auditor, &stranger] {
        assert_sqlstate!(try_import_as(connection, &lines, Some("t"), None).await, "42501");
    }
    // No other tenant's: neither out nor in.
    let bound = db.role("bound", Some("writer")).await;
    db.owner().await.run(&format!("select agent_sessions.tenant_bind('{bound}', 'mine')")).await;
    let bound = db.connect(Role::Named(bound)).await;
    assert_sqlstate!(try_import(&bound, &lines).await, "SE019");
    assert_sqlstate!(bound.query("select agent_sessions.session_export('s')", &[]).await, "SE019");
    bound.run("set agent_sessions.tenant = 'mine'").await;
    assert!(export(&bound, "s").await.is_empty());
    let across = "select line from agent_sessions.session_export('s', tenant => '') line";
    assert!(texts(&bound, across, &[]).await.is_empty());
    assert_eq!(import(&bound, &lines).await, 9);
    // Under isolation, no other agent's.
    writer.run("set agent_sessions.isolation = agent; set agent_sessions.agent = 'coder'").await;
    assert!(export(&writer, "s").await.is_empty());
    assert_sqlstate!(try_import_as(&writer, &lines, Some("t"), None).await, "42501");
    assert_eq!(try_import_as(&writer, &lines, None, Some("coder")).await.expect("its own"), 9);
    assert_eq!(rows(&db).await[0], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_export_on_one_snapshot_and_a_forced_policy_changes_nothing() {
    let db = Database::create("export_forced").await;
    let (writer, owner) = (db.writer().await, db.owner().await);
    sample(&writer, "s").await;
    writer.branch("s", "b").await;
    deleted(&writer, "s").await;
    owner.run("select agent_sessions.access_force_rls(true)").await;
    let reader = db.reader().await;
    reader.run("begin isolation level repeatable read read only").await;
    let lines = export(&reader, "b").await;
    writer.append("b", "1").await;
    assert_eq!(export(&reader, "b").await, lines, "what was exported is what the snapshot shows");
    assert_eq!(count_of(&lines, "ancestor"), 1, "a hidden source is exported along");
    deleted(&writer, "b").await;
    writer.begin("serializable").await;
    import(&writer, &lines).await;
    writer.commit().await;
    writer.assert_dense("b", 9).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trail_tells_of_an_import_and_where_it_came_from() {
    let db = Database::create("import_tracked").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    let lines = export(&writer, "s").await;
    try_import_as(&writer, &lines, Some("before"), None).await.expect("an import");
    db.owner().await.run("select agent_sessions.audit_track('import', true)").await;
    try_import_as(&writer, &lines, Some("t"), Some("coder")).await.expect("an import");
    let told =
        "select concat_ws(' ', action, target, session_id, payload) from agent_sessions.audit_list('agent_sessions')";
    let digest = row(&parsed(&lines[9]), "entry")["digest"].clone();
    let payload = json!({"next_position": 9, "digest": digest, "tenant": "", "agent_id": "", "session_id": "s"});
    assert_eq!(texts(&writer, told, &[]).await, [format!("session_import coder t {payload}")]);
}
