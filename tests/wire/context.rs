//! What an agent has to be shown: the newest summary and the tail that it keeps.

use agent_sessions_tests::{Append, Connection, Database, assert_sqlstate, detail};
use serde_json::json;

async fn context(connection: &Connection, arguments: &str) -> Vec<String> {
    let sql = format!(
        "select position || ' ' || payload::text from agent_sessions.session_context(session_id => 's'{arguments})"
    );
    let rows = connection.query(&sql, &[]).await.expect("a context");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn summary(connection: &Connection, payload: &str, kept_from: i64) -> i64 {
    Append::to("s", payload).kind("summary").kept_from(kept_from).run(connection).await.expect("a summary")
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_summary_it_is_the_history() {
    let db = Database::create("context_plain").await;
    let writer = db.writer().await;
    assert!(context(&writer, "").await.is_empty(), "no session");
    writer.create_session("s").await;
    assert!(context(&writer, "").await.is_empty(), "no item");
    for payload in ["0", "1", "2", "3"] {
        writer.append("s", payload).await;
    }
    assert_eq!(context(&writer, "").await, ["0 0", "1 1", "2 2", "3 3"]);
    assert_eq!(context(&writer, ", max_rows => 2").await, ["2 2", "3 3"]);
    let error = assert_sqlstate!(
        writer.try_value::<i64>("select count(*) from agent_sessions.session_context('s', max_rows => -1)", &[]).await,
        "SE001"
    );
    assert_eq!(detail(&error)["argument"], json!("max_rows"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_summary_comes_first_then_what_it_keeps() {
    let db = Database::create("context_summary").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    for payload in ["0", "1", "2", "3"] {
        writer.append("s", payload).await;
    }
    assert_eq!(summary(&writer, r#""first""#, 2).await, 4);
    assert_eq!(context(&writer, "").await, [r#"4 "first""#, "2 2", "3 3"]);
    writer.append("s", "5").await;
    assert_eq!(context(&writer, "").await, [r#"4 "first""#, "2 2", "3 3", "5 5"]);
    // A later one supersedes it, and keeps what it says, the older summary aside.
    assert_eq!(summary(&writer, r#""second""#, 3).await, 6);
    assert_eq!(context(&writer, "").await, [r#"6 "second""#, "3 3", "5 5"]);
    assert_eq!(context(&writer, ", max_rows => 1").await, [r#"6 "second""#, "5 5"]);
    // Its own position keeps nothing but what comes after.
    assert_eq!(summary(&writer, r#""third""#, 7).await, 7);
    writer.append("s", "8").await;
    assert_eq!(context(&writer, "").await, [r#"7 "third""#, "8 8"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_shows_what_is_live_now() {
    let db = Database::create("context_changes").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    for payload in ["0", "1", "2"] {
        writer.append("s", payload).await;
    }
    summary(&writer, r#""first""#, 1).await;
    summary(&writer, r#""second""#, 2).await;
    let change = "select agent_sessions.session_revise('s', '\"fixed\"', target => 2),
                         agent_sessions.session_revise('s', '\"again\"', target => 4)";
    writer.run(change).await;
    assert_eq!(context(&writer, "").await, [r#"4 "again""#, r#"2 "fixed""#]);
    writer.run("select agent_sessions.session_retract('s', targets => '{4}')").await;
    assert_eq!(context(&writer, "").await, [r#"3 "first""#, "1 1", r#"2 "fixed""#]);
    writer.run("select agent_sessions.session_retract('s', from_target => 2)").await;
    assert_eq!(context(&writer, "").await, ["0 0", "1 1"]);
}

/// The documented compaction: the summary and the totals in one statement, only if nothing was appended meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_is_one_statement_and_only_one_wins() {
    let db = Database::create("compaction").await;
    let writer = db.writer().await;
    writer.run("select session_id from agent_sessions.session_create('s', origin => 'cli')").await;
    for payload in ["0", "1"] {
        writer.append("s", payload).await;
    }
    let compact = |origin: &str| {
        format!(
            "select agent_sessions.session_append('s', '\"summary\"', kind => 'summary', kept_from => 1, expected_position => 2),
                    agent_sessions.session_set('s', input_tokens => 10, output_tokens => 2, cost => 0.5, origin => '{origin}')"
        )
    };
    assert_sqlstate!(writer.batch_execute(&compact("web")).await, "SE004");
    assert_eq!(writer.log("s").await.len(), 2, "nothing of a refused compaction stays");
    writer.run(&compact("cli")).await;
    assert_sqlstate!(writer.batch_execute(&compact("cli")).await, "SE007");
    let told = "select next_position = 3 and input_tokens = 10 and cost = 0.5 from agent_sessions.session_get('s')";
    assert!(writer.value::<bool>(told, &[]).await);
    assert_eq!(context(&writer, "").await, [r#"2 "summary""#, "1 1"]);
}
