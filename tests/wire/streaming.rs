//! Streaming: an item that is open while its text arrives in chunks, and is closed by its payload.

use std::io::Write;

use agent_sessions_tests::{Append, Connection, Database, assert_sqlstate, detail};
use serde_json::{Value, json};
use tokio_postgres::{Error, SimpleQueryMessage};

async fn open(connection: &Connection, item_id: &str) -> i64 {
    let sql = "select agent_sessions.session_append('s', '\"\"', item_id => $1, open => true)";
    connection.value::<i64>(sql, &[&item_id]).await
}

async fn delta(connection: &Connection, target: i64, chunk_no: i32, chunk: &str) -> Result<i32, Error> {
    let sql = "select agent_sessions.session_delta(session_id => 's', target => $1, chunk_no => $2, chunk => $3)";
    connection.try_value::<i32>(sql, &[&target, &chunk_no, &chunk]).await
}

async fn raw_delta(connection: &Connection, target: i64, chunk_no: i32, chunk: &str) -> Result<u64, Error> {
    let sql = "insert into agent_sessions.session_delta (sid, target, chunk_no, chunk)
               select sid, $1, $2, $3 from agent_sessions.session where session_id = 's'";
    connection.execute(sql, &[&target, &chunk_no, &chunk]).await
}

/// Position, whether open, and the text so far, of what the history shows.
async fn shown(connection: &Connection, arguments: &str) -> Vec<(i64, bool, Option<String>)> {
    let sql =
        format!("select position, open, delta_text from agent_sessions.session_history(session_id => 's'{arguments})");
    let rows = connection.query(&sql, &[]).await.expect("a history");
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

async fn chunks(db: &Database) -> i64 {
    db.superuser().await.value::<i64>("select count(*) from agent_sessions.session_delta", &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_fold_into_the_text_of_an_open_item_until_a_revision_closes_it() {
    let db = Database::create("streaming").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    writer.create_session("s").await;
    writer.append("s", "0").await;
    let target = open(&writer, "answer").await;
    assert_eq!(shown(&reader, "").await, [(0, false, None), (1, true, None)]);
    for (number, chunk) in ["Hel", "", "lo \u{1F680}", "!"].into_iter().enumerate() {
        assert_eq!(delta(&writer, target, number as i32, chunk).await.expect("a chunk"), number as i32 + 1);
    }
    let streamed = [(0, false, None), (1, true, Some("Hello \u{1F680}!".to_owned()))];
    assert_eq!(shown(&reader, "").await, streamed);
    for arguments in [", newest_first => true, max_rows => 1", ", item_ids => '{answer}'"] {
        assert_eq!(shown(&reader, arguments).await, streamed[1..], "{arguments}");
    }
    let live = "select delta_text from agent_sessions.live_item where session_id = 's' and position = 1";
    assert_eq!(reader.value::<String>(live, &[]).await, "Hello \u{1F680}!");
    // A log that was changed elsewhere is read another way, and shows the same.
    writer.run("select agent_sessions.session_revise('s', '10', target => 0)").await;
    assert_eq!(shown(&reader, "").await, streamed);
    // Chunks are outside the chain.
    assert!(writer.verify("s").await.ok);
    assert_eq!(writer.log("s").await.len(), 3);

    writer.run("select agent_sessions.session_revise('s', '\"Hello!\"', item_id => 'answer')").await;
    assert_eq!(shown(&reader, "").await, [(0, false, None), (1, false, None)]);
    assert_eq!(chunks(&db).await, 0);
    let error = assert_sqlstate!(delta(&writer, target, 4, "late").await, "SE011");
    assert_eq!(detail(&error)["target"], json!(1));
    assert_sqlstate!(raw_delta(&writer, target, 0, "late").await, "SE011");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_payload_that_an_open_item_has_may_close_it_unchanged() {
    let db = Database::create("streaming_unchanged").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    let target = open(&writer, "answer").await;
    delta(&writer, target, 0, "x").await.expect("a chunk");
    writer.run("select agent_sessions.session_revise('s', '\"\"', item_id => 'answer')").await;
    assert_eq!(shown(&writer, "").await, [(0, false, None)]);
    assert_eq!(chunks(&db).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_come_in_order_by_function_and_by_raw_sql() {
    let db = Database::create("streaming_order").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    writer.append("s", "0").await;
    let target = open(&writer, "answer").await;
    let error = assert_sqlstate!(delta(&writer, target, 1, "b").await, "SE013");
    assert_eq!(detail(&error), json!({"expected": 1, "actual": 0}));
    assert_eq!(raw_delta(&writer, target, 0, "a").await.expect("a chunk"), 1);
    assert_eq!(delta(&writer, target, 0, "a").await.expect("the same again"), 1);
    assert_eq!(raw_delta(&writer, target, 0, "a").await.expect("the same again"), 0);
    for result in [
        delta(&writer, target, 0, "x").await.map(i64::from),
        raw_delta(&writer, target, 0, "x").await.map(|n| n as i64),
    ] {
        let error = assert_sqlstate!(result, "SE013");
        assert_eq!(detail(&error), json!({"expected": 0, "actual": 1}));
    }
    assert_eq!(delta(&writer, target, 1, "b").await.expect("a chunk"), 2);
    assert_sqlstate!(delta(&writer, target, 0, "a").await, "SE013");
    // Not every entry is an open item.
    for other in [0, 7] {
        assert_sqlstate!(delta(&writer, other, 0, "a").await, "SE011");
        assert_sqlstate!(raw_delta(&writer, other, 0, "a").await, "SE011");
    }
    for bad in
        ["target => -1", "chunk_no => -1", "target => null", "chunk_no => null", "chunk => null", "session_id => ''"]
    {
        let mut arguments = vec![("session_id", "'s'"), ("target", "1"), ("chunk_no", "2"), ("chunk", "'c'")];
        let (name, value) = bad.split_once(" => ").expect("an argument");
        arguments.retain(|argument| argument.0 != name);
        arguments.push((name, value));
        let named: Vec<String> = arguments.iter().map(|(name, value)| format!("{name} => {value}")).collect();
        let sql = format!("select agent_sessions.session_delta({})", named.join(", "));
        let error = assert_sqlstate!(writer.batch_execute(&sql).await, "SE001");
        assert_eq!(detail(&error)["argument"], json!(name), "{sql}");
    }
    assert_sqlstate!(writer.batch_execute("select agent_sessions.session_delta('none', 1, 0, 'a')").await, "SE002");
    assert_eq!(shown(&writer, ", after => 0").await, [(1, true, Some("ab".to_owned()))]);
    assert_sqlstate!(writer.batch_execute("update agent_sessions.session_delta set chunk = 'x'").await, "42501");
    assert_sqlstate!(writer.batch_execute("delete from agent_sessions.session_delta").await, "42501");
    let owner = db.owner().await;
    assert_sqlstate!(owner.batch_execute("update agent_sessions.session_delta set chunk = 'x'").await, "SE014");
    assert_sqlstate!(owner.batch_execute("truncate agent_sessions.session_delta").await, "SE014");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_writers_of_one_chunk_the_one_who_waited_is_refused() {
    let db = Database::create("streaming_race").await;
    let (first, second) = (db.writer().await, db.writer().await);
    first.create_session("s").await;
    let target = open(&first, "answer").await;
    first.begin("read committed").await;
    delta(&first, target, 0, "first").await.expect("a chunk");
    let pid = second.pid;
    let waiting = tokio::spawn(async move { delta(&second, target, 0, "second").await });
    db.wait_until_blocked(pid).await;
    first.commit().await;
    let error = assert_sqlstate!(waiting.await.expect("the task"), "SE013");
    assert_eq!(detail(&error), json!({"expected": 0, "actual": 1}));
    assert_eq!(shown(&first, "").await, [(0, true, Some("first".to_owned()))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_retracts_or_deletes_an_open_item_drops_its_chunks() {
    let db = Database::create("streaming_drops").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    for (item, ending) in [
        ("a", "select agent_sessions.session_retract('s', item_ids => '{a}')"),
        ("b", "select agent_sessions.session_retract('s', from_target => 0)"),
        (
            "c",
            "insert into agent_sessions.session_item (sid, op, target)
               select sid, 'retract', target from agent_sessions.session_delta limit 1",
        ),
        ("d", "select * from agent_sessions.session_pop('s')"),
        ("e", "select agent_sessions.session_delete('s')"),
    ] {
        let target = open(&writer, item).await;
        for number in 0..3 {
            delta(&writer, target, number, "x").await.expect("a chunk");
        }
        assert_eq!(chunks(&db).await, 3, "{item}");
        writer.run(ending).await;
        assert_eq!(chunks(&db).await, 0, "{ending}");
    }
}

/// Bytes of WAL that a statement writes, as its own backend counts them.
pub async fn wal(connection: &Connection, sql: &str) -> i64 {
    let explain = format!("explain (analyze, wal, format json) {sql}");
    let answer = connection.simple_query(&explain).await.expect("a plan");
    let text = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plan: Value = serde_json::from_str(text.expect("a plan")).expect("a plan is JSON");
    plan[0]["Plan"]["WAL Bytes"].as_i64().expect("a count of bytes")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_message_costs_less_than_its_rewrites() {
    let db = Database::create("streaming_wal").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    let chunk = |number: i32| format!("{number:04} of what a model says.");
    let (mut streamed, mut rewritten, mut text) = (0, 0, String::new());
    let target = open(&writer, "streamed").await;
    Append::to("s", "\"\"").item_id("rewritten").run(&writer).await.expect("an append");
    for number in 0..400 {
        let chunk = &chunk(number)[..20];
        text.push_str(chunk);
        streamed +=
            wal(&writer, &format!("select agent_sessions.session_delta('s', {target}, {number}, '{chunk}')")).await;
        rewritten +=
            wal(&writer, &format!("select agent_sessions.session_revise('s', '\"{text}\"', item_id => 'rewritten')"))
                .await;
    }
    streamed +=
        wal(&writer, &format!("select agent_sessions.session_revise('s', '\"{text}\"', item_id => 'streamed')")).await;
    let ratio = streamed as f64 / rewritten as f64;
    writeln!(
        std::io::stdout(),
        "400 chunks of a message of {} bytes: {streamed} bytes of WAL streamed, {rewritten} rewritten ({ratio:.2})",
        text.len()
    )
    .expect("standard output is open");
    assert!(ratio < 0.5, "{ratio}");
}
