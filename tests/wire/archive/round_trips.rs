//! What is exported and imported again is the same session, whatever state it was in.

use agent_sessions_tests::{Append, Connection, Database, Role, assert_sqlstate, detail};
use serde_json::json;

use super::*;
use crate::branches::{call_of, sample};
use crate::hiding::deleted;

/// Every session of a tenant that a reader sees, with its agent.
async fn sessions(connection: &Connection) -> Vec<(String, String)> {
    let sql = "select session_id, agent_id from agent_sessions.session order by sid";
    let rows = connection.query(sql, &[]).await.expect("the sessions");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Exports without ancestors come back line by line; what a branch inherits is chained anew.
#[tokio::test(flavor = "multi_thread")]
async fn every_session_of_one_database_comes_back_in_another() {
    let (from, to) = (Database::create("export_all").await, Database::create("import_all").await);
    crate::digests::fill(&from).await;
    let (reader, writer, other) = (from.reader().await, to.writer().await, to.reader().await);
    let (mut whole, mut inherited, mut all) = (0, 0, Vec::new());
    for tenant in ["", "Müller & Söhne"] {
        for connection in [&reader, &writer, &other] {
            connection.run(&format!("set agent_sessions.tenant = '{tenant}'; set timezone = 'Asia/Kathmandu'")).await;
        }
        // Sub-sessions come after their parents, by sid.
        for (session, agent) in sessions(&reader).await {
            let lines = export_of(&reader, &session, &agent).await;
            import(&writer, &lines).await;
            let id: &[&(dyn ToSql + Sync)] = &[&session, &agent];
            let verdict = "select ok from agent_sessions.session_verify(session_id => $1::text, agent_id => $2::text)";
            assert!(other.value::<bool>(verdict, id).await, "{session}");
            assert_eq!(texts(&other, HISTORY, id).await, texts(&reader, HISTORY, id).await, "{session}");
            let again = export_of(&other, &session, &agent).await;
            if count_of(&lines, "ancestor") == 0 {
                assert_eq!(again, lines);
                assert_eq!(texts(&other, LOG, id).await, texts(&reader, LOG, id).await, "{session}");
                assert_eq!(texts(&other, ROW, id).await, texts(&reader, ROW, id).await, "{session}");
                whole += 1;
            } else {
                inherited += 1;
                all.extend(again);
            }
            all.extend(lines);
        }
    }
    assert!(whole > 10 && inherited > 3, "{whole} {inherited}");
    super::program::assert_whole(&all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_row_comes_back_with_everything_that_a_client_sees() {
    let db = Database::create("import_row").await;
    let writer = db.writer().await;
    writer.create_session("parent").await;
    let create = "select session_id from agent_sessions.session_create(session_id => 's', title => E'two\\nlines', metadata =>
        '{\"n\": 1.50}', state => $1::text::json, owner => 'ann', origin => 'cli', parent_session_id => 'parent', status => 'open',
        input_tokens => 9223372036854775, output_tokens => 0, cost => 0.0210, expires_at => 'infinity',
        created_at => '0044-03-15 12:00:00.000001 BC')";
    let state = "{ \"b\" : 1e2, \"a\":\"\\u0000\\ud83d\",\n\t\"b\": -0.0 }";
    writer.value::<String>(create, &[&state]).await;
    writer.run("select agent_sessions.session_set('s', status => 'closed')").await;
    writer.run("select agent_sessions.session_claim('s', ttl => '1 ms', holder => 'w')").await;
    db.owner().await.run("select agent_sessions.session_break_lease('s')").await;
    let (lines, before) = (export(&writer, "s").await, texts(&writer, ROW, &[&"s", &""]).await);
    let fence = "select lease_fence from agent_sessions.session where session_id = 's'";
    let fenced: i64 = writer.value(fence, &[]).await;
    deleted(&writer, "s").await;
    assert_eq!(import(&writer, &lines).await, 0);
    assert_eq!(texts(&writer, ROW, &[&"s", &""]).await, before);
    assert_eq!(export(&writer, "s").await, lines);
    // Fences go on, and no lease comes along.
    let claim = "select fence from agent_sessions.session_claim('s', ttl => '1 hour', holder => 'w')";
    assert!(writer.value::<i64>(claim, &[]).await > fenced);
    assert!(!lines.join("").contains("nonce") && !lines.join("").contains("lease_digest"));
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_come_back_byte_for_byte() {
    let db = Database::create("import_payloads").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
    let large = crate::payloads::sized(1 << 20);
    let payloads: Vec<&str> = crate::payloads::CASES.iter().copied().chain([deep.as_str(), large.as_str()]).collect();
    for payload in &payloads {
        writer.append("s", payload).await;
    }
    let lines = export(&writer, "s").await;
    super::program::assert_whole(&lines).await;
    deleted(&writer, "s").await;
    // A client that parses the lines and writes them anew changes nothing.
    let rewritten: Vec<String> = lines.iter().map(|line| parsed(line).to_string()).collect();
    assert_ne!(rewritten, lines);
    import(&writer, &rewritten).await;
    let stored: Vec<String> = writer.log("s").await.into_iter().filter_map(|item| item.payload).collect();
    assert_eq!(stored, payloads);
    assert_eq!(export(&writer, "s").await, lines);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_item_goes_on_where_its_chunks_ended() {
    let db = Database::create("import_chunks").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    for (number, chunk) in ["so", "\u{1F680}\n", ""].iter().enumerate() {
        call_of(&writer, &format!("session_delta('{{s}}', 4, {number}, '{chunk}')"), "s").await;
    }
    Append::to("s", "1").item_id("other").run(&writer).await.expect("an append");
    let lines = export(&writer, "s").await;
    assert_eq!(count_of(&lines, "chunk"), 3);
    deleted(&writer, "s").await;
    import(&writer, &lines).await;
    assert_eq!(export(&writer, "s").await, lines);
    let text = "select delta_text from agent_sessions.session_history('s', item_ids => '{o}') where open";
    assert_eq!(writer.value::<String>(text, &[]).await, "so\u{1F680}\n");
    let next = "select agent_sessions.session_delta('s', 4, $1::int, 'on')";
    let error = assert_sqlstate!(writer.try_value::<i32>(next, &[&2]).await, "SE013");
    assert_eq!(detail(&error), json!({"expected": 2, "actual": 3}));
    assert_eq!(writer.value::<i32>(next, &[&3]).await, 4);
    call_of(&writer, "session_revise('{s}', '\"closed\"', item_id => 'o')", "s").await;
    assert_eq!(rows(&db).await[2], 0, "its chunks are gone");
    // The log goes on, and its ids stay used.
    assert_eq!(writer.append("s", "2").await, 11);
    assert_sqlstate!(Append::to("s", "9").item_id("a").run(&writer).await, "SE010");
    writer.assert_dense("s", 12).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_there_is_left_alone() {
    let db = Database::create("import_exists").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    let lines = export(&writer, "s").await;
    let before = rows(&db).await;
    for (session, agent) in [(None, None), (Some("s"), None), (Some("s"), Some(""))] {
        let error = assert_sqlstate!(try_import_as(&writer, &lines, session, agent).await, "SE003");
        assert_eq!(detail(&error), json!({"session_id": "s", "agent_id": ""}));
    }
    assert_eq!(rows(&db).await, before);
    for (session, agent) in [(Some("t"), None), (None, Some("coder")), (Some("t"), Some("coder"))] {
        assert_eq!(try_import_as(&writer, &lines, session, agent).await.expect("an import"), 9);
    }
    assert_eq!(rows(&db).await[0], before[0] + 3);
    assert!(export(&writer, "missing").await.is_empty());
}

/// Two that bring the same session at once: one makes it.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_imports_at_once_one_wins() {
    let db = Database::create("import_race").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    let lines = export(&writer, "s").await;
    deleted(&writer, "s").await;
    let (first, second) = (db.writer().await, db.connect(Role::Writer).await);
    first.begin("read committed").await;
    import(&first, &lines).await;
    let pid = second.pid;
    let waiting = tokio::spawn(async move { try_import(&second, &lines).await });
    db.wait_until_blocked(pid).await;
    first.commit().await;
    assert_sqlstate!(waiting.await.expect("no panic"), "SE003");
    writer.assert_dense("s", 9).await;
}

/// A sub-session hangs below its parent again, which nobody deletes meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_sub_session_finds_its_parent_or_stands_alone() {
    let db = Database::create("import_parent").await;
    let (writer, deleter) = (db.writer().await, db.writer().await);
    writer.create_session("parent").await;
    writer.run("select agent_sessions.session_create('s', parent_session_id => 'parent')").await;
    let lines = export(&writer, "s").await;
    let parent = "select parent_session_id from agent_sessions.session_get('s')";
    deleted(&writer, "s").await;
    writer.begin("read committed").await;
    import(&writer, &lines).await;
    assert_eq!(writer.value::<Option<String>>(parent, &[]).await.as_deref(), Some("parent"));
    let pid = deleter.pid;
    let waiting = tokio::spawn(async move { deleted(&deleter, "parent").await });
    db.wait_until_blocked(pid).await;
    writer.commit().await;
    waiting.await.expect("a deletion");
    assert_eq!(rows(&db).await[0], 0, "it went with its parent");
    import(&writer, &lines).await;
    assert_eq!(writer.value::<Option<String>>(parent, &[]).await, None);
}
