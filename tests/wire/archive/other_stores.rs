//! Logs of other stores: lines without digests, which are chained where they arrive.

use std::path::Path;

use agent_sessions_tests::{Append, Cluster, Database, Program, Role, Scratch, assert_sqlstate, detail, setting};
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

/// A store as many agents have it, with what such stores hold: times in several forms, texts of all kinds, nothing where nothing is.
const STORE: &str = r#"
import sqlite3, sys
store = sqlite3.connect(sys.argv[1])
store.executescript("""
    create table sessions (id text primary key, title text, user_id text, created_at text);
    create table messages (id integer primary key, session_id text, role text, content text, created_at text);
    insert into sessions values ('chat-1', 'Slow checkout', 'ann', '2024-05-01 10:00:00'), ('chat/2 ''x''', null, null, 1714557600);
    insert into messages (session_id, role, content, created_at) values
      ('chat-1', 'user', 'Why?', '2024-05-01 10:00:01'), ('chat/2 ''x''', 'user', 'other', null),
      ('chat-1', 'assistant', '', '2024-05-01T12:00:02.5+02:00');
""")
content = 'a "quoted" \\ back\nslash\t\0 \u2028 🚀 \x7f é $1 :lines `date`'
store.execute("insert into messages (session_id, role, content, created_at) values ('chat-1', 'tool', ?, ?)", (content, 1714557603.25))
store.commit()
"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_example_moves_a_store_from_sqlite() {
    let db = Database::create("import_sqlite").await;
    let (store, folder) = (Scratch::new(&db, "store.db"), Scratch::new(&db, "moved"));
    let python = setting("AGENT_SESSIONS_PYTHON");
    let python = || Program::new(Path::new(&python));
    python().args(["-c", STORE, store.path()]).output().await;
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let example = |name: &str| examples.join(name).to_str().expect("a path in UTF-8").to_owned();
    python().args(["-I", &example("sqlite_to_ndjson.py"), store.path(), folder.path()]).output().await;
    let files = ["000001.ndjson", "000002.ndjson"].map(|name| format!("{}/{name}", folder.path()));
    let path = format!("{}:{}", Cluster::programs().display(), std::env::var("PATH").unwrap_or_default());
    let import = || {
        let program = Program::new(Path::new("bash")).pointed_at(&db, Role::Writer).env("PATH", &path);
        program.args([example("import_ndjson.sh").as_str()]).args(&files)
    };
    assert_eq!(import().output().await, "chat-1|3\nchat/2 'x'|1\n");
    let again = import().run().await;
    assert!(!again.success && again.stderr.contains("exists already"), "{}", again.stderr);

    let writer = db.writer().await;
    let log = "select concat_ws('|', position, kind, item_id, author, payload::text, created_at at time zone 'UTC', imported_at is not null)
        from agent_sessions.session_log($1::text)";
    let odd = r#""a \"quoted\" \\ back\nslash\t\u0000"#.to_owned() + " \u{2028} \u{1F680} \u{7f} é $1 :lines `date`\"";
    assert_eq!(
        texts(&writer, log, &[&"chat-1"]).await,
        [
            r#"0|message|message-1|user|{"role": "user", "content": "Why?"}|2024-05-01 10:00:01|t"#.to_owned(),
            r#"1|message|message-3|assistant|{"role": "assistant", "content": ""}|2024-05-01 10:00:02.5|t"#.to_owned(),
            format!(r#"2|message|message-4|tool|{{"role": "tool", "content": {odd}}}|2024-05-01 10:00:03.25|t"#),
        ]
    );
    let heads = "select concat_ws('|', session_id, title, owner, created_at at time zone 'UTC')
        from agent_sessions.session_list() order by session_id";
    assert_eq!(
        texts(&writer, heads, &[]).await,
        ["chat-1|Slow checkout|ann|2024-05-01 10:00:00", "chat/2 'x'|2024-05-01 10:00:00"]
    );
    writer.assert_dense("chat-1", 3).await;

    // The same script takes what session_export has written.
    let lines = export(&writer, "chat-1").await;
    crate::hiding::deleted(&writer, "chat-1").await;
    std::fs::write(&files[0], lines.join("\n") + "\n").expect("the file can be written");
    assert_eq!(import().run().await.stdout, b"chat-1|3\n");
    assert_eq!(export(&writer, "chat-1").await, lines);
}
