//! Logs of other stores: lines without digests, which are chained where they arrive.

use agent_sessions_tests::{Append, Database, assert_sqlstate, detail};
use serde_json::json;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn lines_without_digests_are_chained_where_they_arrive() {
    let db = Database::create("import_plain").await;
    let writer = db.writer().await;
    let session = json!({"session": {"session_id": "s", "title": "Moved", "owner": "ann", "status": "closed", "metadata": "{\"a\": 1}",
        "state": "{\"b\":1, \"b\":2}", "created_at": "2024-05-01T10:00:00+02:00", "input_tokens": 3}});
    let lines: Vec<String> = [
        session,
        json!({"entry": {"kind": "message", "author": "user", "item_id": "m1", "payload": "{\"role\":\"user\", \"n\":1e2}",
            "created_at": "2024-05-01T10:00:01.5Z", "tag": "t", "attrs": "{\"a\":1}"}}),
        json!({"entry": {"payload": "\"\\u0000\"", "created_at": 7}}),
        json!({"entry": {"op": "append", "payload": "1", "target": 1, "kind": "summary"}}),
    ]
    .iter()
    .map(Value::to_string)
    .collect();
    let began: std::time::SystemTime = writer.value("select clock_timestamp()", &[]).await;
    assert_eq!(import(&writer, &lines).await, 3);
    writer.assert_dense("s", 3).await;
    let log = "select concat_ws('|', position, op, target, kind, item_id, tag, author, payload::text, attrs,
        created_at at time zone 'UTC') from agent_sessions.session_log('s') where position < 2";
    assert_eq!(
        texts(&writer, log, &[]).await,
        [
            "0|append|message|m1|t|user|{\"role\":\"user\", \"n\":1e2}|{\"a\": 1}|2024-05-01 10:00:01.5",
            "1|append|message|\"\\u0000\"|2000-01-01 00:00:00.000007",
        ]
    );
    let row = "select concat_ws('|', title, owner, status, metadata, state::text, revision, input_tokens,
        created_at at time zone 'UTC', closed_at is not null) from agent_sessions.session_get('s')";
    let wanted = "Moved|ann|closed|{\"a\": 1}|{\"b\":1, \"b\":2}|0|3|2024-05-01 08:00:00|t";
    assert_eq!(texts(&writer, row, &[]).await, [wanted]);
    let now = "select created_at >= $1 and imported_at >= $1 from agent_sessions.session_log('s', after => 1)";
    assert!(writer.value::<bool>(now, &[&began]).await, "what has no time is of now");
    assert_eq!(
        Append::to("s", "{\"role\":\"user\", \"n\":1e2}")
            .item_id("m1")
            .tag("t")
            .author("user")
            .attrs("{\"a\":1}")
            .run(&writer)
            .await
            .expect("a replay"),
        0
    );
    assert_eq!(writer.append("s", "2").await, 3);
    // From here on it exports and comes back like any other.
    let exported = export(&writer, "s").await;
    super::program::assert_whole(&exported).await;
    let session = json!({"session": {}}).to_string();
    assert_eq!(try_import_as(&writer, &[session], Some("empty"), None).await.expect("an empty one"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_without_its_format_is_no_log_of_another_store() {
    let db = Database::create("import_stripped").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    writer.append("s", "1").await;
    let mut lines = export(&writer, "s").await;
    lines[0] = lines[0].replace("\"format\":\"agent_sessions/session/1\"", "\"format\":null");
    let error = assert_sqlstate!(try_import_as(&writer, &lines, Some("t"), None).await, "SE001");
    assert_eq!(detail(&error)["element"], 0);
    for entry in [
        json!({"op": "erase", "target": 0, "payload": "{}"}),
        json!({"op": "trim", "target": 0, "payload": "{}"}),
        json!({"op": "retract", "target": 0}),
        json!({"op": "open", "payload": "1"}),
        json!({}),
    ] {
        let lines =
            [json!({"session": {"session_id": "t"}}), json!({"entry": {"payload": "1"}}), json!({ "entry": entry })];
        let error = assert_sqlstate!(try_import(&writer, &lines.map(|line| line.to_string())).await, "SE001");
        assert_eq!(detail(&error)["element"], 2, "{entry}");
    }
}
