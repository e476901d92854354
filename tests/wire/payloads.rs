//! Payloads and states come back byte for byte: by every way in, by every way out, in both formats of the protocol, and
//! out of a dump.

use std::io::Cursor;
use std::path::Path;
use std::pin::pin;

use agent_sessions_tests::{
    Append, Connection, Database, Program, Role, assert_sqlstate, detail, examples, sqlstate, transcripts,
};
use futures_util::SinkExt;
use serde_json::json;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// What other stores have changed or refused: key order, duplicates, number forms, U+0000, lone surrogates, white space.
pub const CASES: &[&str] = &[
    r#"{"b":1,"a":2,"b":3}"#,
    "7",
    "1e2",
    "-0.0",
    "1e400000",
    "123456789012345678901234567890",
    "[0.10,1E-5,-0,1.0e+2,3.0]",
    " {\t\"a\" :\r\n [ 1 ,2 ] }\n ",
    r#"{"a":"x\u0000y"}"#,
    r#"{"x\u0000y":1}"#,
    r#""\u0000""#,
    r#""\ud83d""#,
    r#""\ude00""#,
    r#"{"\ud83d":"\ude00","\ude00\ud83d":0}"#,
    r#""\ud83d\ude80 \u00e9 \u00E9""#,
    r#""\/\b\f\n\r\t\"\\""#,
    "\"\u{7f}\u{85}\u{2028}\u{feff}\u{10ffff}\u{fffd}\u{1F525}e\u{301}\"",
    r#""\\.""#,
    r#""\\N""#,
    r#"["it's","$$ $p$ ''","a,b;c","%s %(x)s :name ? $1"]"#,
    "null",
    "true",
    r#""""#,
    "{}",
    " [ ] ",
    r#"{"":{"":[]}}"#,
];

/// Below, at and far above the size from which a value is stored out of line.
const SIZES: [usize; 4] = [1, 2_032, 8 << 10, 1 << 20];
const LARGEST: usize = 64 << 20;
const BELOW_ALL_SETTINGS: usize = 255 << 20;

/// The bytes of a value as the binary format carries them; jsonb has its format's version in front.
#[derive(Clone, Debug, PartialEq)]
pub struct Verbatim(pub Vec<u8>);

impl ToSql for Verbatim {
    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        if *of == Type::JSONB {
            out.extend_from_slice(&[1]);
        }
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Verbatim {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw.to_vec()))
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::JSON
    }
}

/// A JSON string of exactly so many bytes, which compresses badly.
pub fn sized(bytes: usize) -> String {
    const DIGITS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
    if bytes == 1 {
        return "1".to_owned();
    }
    let mut text = Vec::with_capacity(bytes + 10);
    text.push(b'"');
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.extend((0..10).map(|digit| DIGITS[(state >> (4 + 6 * digit)) as usize % 64]));
    }
    text.truncate(bytes - 1);
    text.push(b'"');
    String::from_utf8(text).expect("digits are ASCII")
}

/// Every case, every size, every line of the transcripts and of the project's own examples.
fn payloads() -> Vec<String> {
    let cases = CASES.iter().map(|case| (*case).to_owned());
    let sizes = SIZES.iter().map(|bytes| sized(*bytes));
    let lines = transcripts().into_iter().chain(examples()).flat_map(|transcript| transcript.lines);
    cases.chain(sizes).chain(lines).collect()
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn batch_of<'a>(payloads: impl IntoIterator<Item = &'a String>) -> String {
    let elements: Vec<String> =
        payloads.into_iter().map(|payload| format!("{{ \"kind\":\"event\", \"payload\" :{payload}}}")).collect();
    format!(" [ {} ] ", elements.join(" ,\n"))
}

fn assert_same<S: AsRef<[u8]>>(got: &[S], sent: &[String], way: &str) {
    assert_eq!(got.len(), sent.len(), "{way}");
    for (place, (got, sent)) in got.iter().zip(sent).enumerate() {
        let got = got.as_ref();
        assert!(
            got == sent.as_bytes(),
            "{way}, payload {place}: {} bytes came back for {}: {:.200} for {:.200}",
            got.len(),
            sent.len(),
            String::from_utf8_lossy(got),
            sent
        );
    }
}

async fn texts(connection: &Connection, sql: &str, session: &str) -> Vec<String> {
    let rows = connection.query(sql, &[&session]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// The first column, in text format.
async fn plain(connection: &Connection, sql: &str) -> Vec<String> {
    let messages = connection.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    messages
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0).expect("no payload is NULL").to_owned()),
            _ => None,
        })
        .collect()
}

async fn assert_returns(connection: &Connection, session: &str, sent: &[String]) {
    for sql in [
        "select payload::text from agent_sessions.session_history(session_id => $1::text)",
        "select payload::text from agent_sessions.session_log(session_id => $1::text)",
        "select payload::text from agent_sessions.live_item where session_id = $1::text order by position",
        "select i.payload::text from agent_sessions.session_item i join agent_sessions.session s on s.sid = i.sid
         where s.session_id = $1::text order by i.position",
    ] {
        assert_same(&texts(connection, sql, session).await, sent, &format!("{session}: {sql}"));
    }
    let binary = "select payload from agent_sessions.session_history(session_id => $1::text)";
    let rows = connection.query(binary, &[&session]).await.expect("a history in binary format");
    let got: Vec<Vec<u8>> = rows.iter().map(|row| row.get::<_, Verbatim>(0).0).collect();
    assert_same(&got, sent, &format!("{session}: json in binary format"));
    let text = format!("select payload from agent_sessions.session_history(session_id => {})", quoted(session));
    assert_same(&plain(connection, &text).await, sent, &format!("{session}: json in text format"));
}

async fn append_each(writer: &Connection, session: &str, payloads: &[String]) {
    writer.create_session(session).await;
    for (place, payload) in payloads.iter().enumerate() {
        assert_eq!(writer.append(session, payload).await, place as i64);
    }
}

async fn append_batch(writer: &Connection, session: &str, items: &str) -> u64 {
    let sql = "select outcome from agent_sessions.session_append_batch(
        session_id => $1::text, items => $2::text::json, on_missing => 'create')";
    match writer.execute(sql, &[&session, &items]).await {
        Ok(rows) => rows,
        Err(error) => panic!("a batch of {} bytes to {session}: {error:?}", items.len()),
    }
}

async fn new_sid(writer: &Connection, session: &str) -> i64 {
    writer.create_session(session).await;
    writer.value("select sid from agent_sessions.session where session_id = $1", &[&session]).await
}

async fn copy(owner: &Connection, session: &str, payloads: &[String], text: impl Fn(&str) -> String, options: &str) {
    let sid = new_sid(owner, session).await;
    let lines: String = payloads.iter().map(|payload| text(payload)).map(|field| format!("{sid}\t{field}\n")).collect();
    let sql = format!("copy agent_sessions.session_item (sid, payload) from stdin with ({options})");
    let mut sink = pin!(owner.copy_in(&sql).await.expect("a COPY begins"));
    sink.send(Cursor::new(lines.into_bytes())).await.expect("a COPY takes its lines");
    assert_eq!(sink.finish().await.expect("a COPY ends"), payloads.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn session_append_keeps_every_byte() {
    let db = Database::create("bytes_append").await;
    let writer = db.writer().await;
    let payloads = payloads();
    append_each(&writer, "text parameters", &payloads).await;
    assert_returns(&writer, "text parameters", &payloads).await;

    writer.create_session("json parameters").await;
    let typed = writer
        .prepare_typed(
            "select agent_sessions.session_append(session_id => $1, payload => $2)",
            &[Type::TEXT, Type::JSON],
        )
        .await
        .expect("a statement with a parameter of type json");
    for payload in &payloads {
        let sent = Verbatim(payload.clone().into_bytes());
        writer.query_one(&typed, &[&"json parameters", &sent]).await.expect("an append in binary format");
    }
    assert_returns(&writer, "json parameters", &payloads).await;

    writer.create_session("literals").await;
    for payload in &payloads {
        let append = format!(
            "select agent_sessions.session_append(session_id => 'literals', payload => {}::text::json)",
            quoted(payload)
        );
        plain(&writer, &append).await;
    }
    assert_returns(&writer, "literals", &payloads).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_append_batch_keeps_every_byte() {
    let db = Database::create("bytes_batch").await;
    let writer = db.writer().await;
    let payloads = payloads();
    // The elements are taken raw: white space around a value is between the tokens of the batch, not part of it.
    let values: Vec<String> =
        payloads.iter().map(|payload| payload.trim_matches([' ', '\t', '\r', '\n']).to_owned()).collect();
    let items = batch_of(&payloads);
    assert_eq!(append_batch(&writer, "parameters", &items).await, payloads.len() as u64);
    assert_returns(&writer, "parameters", &values).await;

    let literal = format!(
        "select position from agent_sessions.session_append_batch(
            session_id => 'literals', on_missing => 'create', items => {}::text::json)",
        quoted(&items)
    );
    let positions: Vec<String> = (0..payloads.len()).map(|position| position.to_string()).collect();
    assert_eq!(plain(&writer, &literal).await, positions);
    assert_returns(&writer, "literals", &values).await;

    let create = "select next_position from agent_sessions.session_create(
        session_id => 'created with', items => $1::text::json)";
    assert_eq!(writer.value::<i64>(create, &[&items]).await, payloads.len() as i64);
    assert_returns(&writer, "created with", &values).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_revise_keeps_every_byte() {
    let db = Database::create("bytes_revise").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    writer.append("s", r#""first""#).await;
    for payload in payloads() {
        let revise = "select agent_sessions.session_revise(
            session_id => 's', target => 0, payload => $1::text::json)";
        writer.value::<i64>(revise, &[&payload]).await;
        let now = texts(&writer, "select payload::text from agent_sessions.session_history($1::text)", "s").await;
        assert_same(&now, &[payload], "a revision");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_inserts_keep_every_byte() {
    let db = Database::create("bytes_insert").await;
    let writer = db.writer().await;
    let payloads = payloads();
    let sid = new_sid(&writer, "parameters").await;
    for payload in &payloads {
        let insert = "insert into agent_sessions.session_item (sid, payload) values ($1, $2::text::json)";
        assert_eq!(writer.execute(insert, &[&sid, payload]).await.expect("an INSERT"), 1);
    }
    assert_returns(&writer, "parameters", &payloads).await;

    let sid = new_sid(&writer, "many rows").await;
    let rows: Vec<String> = payloads.iter().map(|payload| format!("({sid}, {})", quoted(payload))).collect();
    writer.run(&format!("insert into agent_sessions.session_item (sid, payload) values {}", rows.join(", "))).await;
    assert_returns(&writer, "many rows", &payloads).await;
}

/// By the owner, whom policies do not bind.
#[tokio::test(flavor = "multi_thread")]
async fn copy_keeps_every_byte() {
    let db = Database::create("bytes_copy").await;
    let (owner, writer) = (db.owner().await, db.writer().await);
    let payloads = payloads();
    let escaped =
        |payload: &str| payload.replace('\\', r"\\").replace('\t', r"\t").replace('\n', r"\n").replace('\r', r"\r");
    copy(&owner, "text", &payloads, escaped, "format text").await;
    assert_returns(&writer, "text", &payloads).await;

    let csv = |payload: &str| format!("\"{}\"", payload.replace('"', "\"\""));
    copy(&owner, "csv", &payloads, csv, "format csv, delimiter E'\\t'").await;
    assert_returns(&writer, "csv", &payloads).await;

    let sid = new_sid(&owner, "binary").await;
    let binary = "copy agent_sessions.session_item (sid, kind, payload) from stdin with (format binary)";
    let sink = owner.copy_in(binary).await.expect("a COPY begins");
    let mut rows = pin!(BinaryCopyInWriter::new(sink, &[Type::INT8, Type::TEXT, Type::JSON]));
    for payload in &payloads {
        let sent = Verbatim(payload.clone().into_bytes());
        rows.as_mut().write(&[&sid, &"message", &sent]).await.expect("a COPY takes a row");
    }
    assert_eq!(rows.finish().await.expect("a COPY ends"), payloads.len() as u64);
    assert_returns(&writer, "binary", &payloads).await;

    // PostgreSQL itself has no COPY FROM for roles that policies bind.
    let bound = writer.batch_execute("copy agent_sessions.session_item (sid, payload) from stdin").await;
    assert_eq!(sqlstate(&bound.expect_err("a COPY of the writer's")), "0A000");
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_one_and_of_very_many_come_back_whole() {
    let db = Database::create("bytes_counts").await;
    let writer = db.writer().await;
    for count in [1, 32_768, 100_000] {
        let payloads: Vec<String> = (0..count).map(|number| format!("{{\"n\":{number},\"n\":-{number}.0}}")).collect();
        let session = format!("batch of {count}");
        assert_eq!(append_batch(&writer, &session, &batch_of(&payloads)).await, count);
        let history = "select payload::text from agent_sessions.session_history(session_id => $1::text)";
        assert_same(&texts(&writer, history, &session).await, &payloads, &session);
        let ends = writer
            .query_one(
                "select min(position), max(position), count(*), bool_and(digest is not null)
                 from agent_sessions.session_log(session_id => $1::text)",
                &[&session],
            )
            .await
            .expect("the ends of the log");
        assert_eq!((ends.get(0), ends.get(1), ends.get(2)), (0_i64, count as i64 - 1, count as i64));
        let verdict = writer.verify(&session).await;
        assert!(verdict.ok && verdict.entries == count as i64, "{verdict:?}");
    }
}

/// An operation that took a lock first would wait for the holder.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_payload_is_kept_and_one_byte_more_refused_before_a_lock() {
    let db = Database::create("bytes_largest").await;
    let writer = db.writer().await;
    writer.run("set lock_timeout = '60s'").await;
    let largest = vec![sized(LARGEST)];
    append_each(&writer, "largest", &largest).await;
    let history = "select payload::text from agent_sessions.session_history(session_id => $1::text)";
    assert_same(&texts(&writer, history, "largest").await, &largest, "64 MiB");
    let batch = format!("[{{\"payload\":{}}}]", largest[0]);
    assert_eq!(append_batch(&writer, "largest", &batch).await, 1);
    let last = "select payload::text from agent_sessions.session_history(session_id => $1::text, after => 0)";
    assert_same(&texts(&writer, last, "largest").await, &largest, "64 MiB in a batch");
    drop((largest, batch));

    let holder = db.superuser().await;
    holder.run("begin; select from agent_sessions.session for update").await;
    let over = sized(LARGEST + 1);
    let too_large = json!({"argument": "payload", "limit": LARGEST, "actual": LARGEST + 1});
    let refused = assert_sqlstate!(Append::to("largest", &over).run(&writer).await, "SE018");
    assert_eq!(detail(&refused), too_large);
    let revise = "select agent_sessions.session_revise(
        session_id => 'largest', target => 0, payload => $1::text::json)";
    assert_eq!(detail(&assert_sqlstate!(writer.try_value::<i64>(revise, &[&over]).await, "SE018")), too_large);
    for sql in [
        "select position from agent_sessions.session_append_batch(session_id => 'largest', items => $1::text::json)",
        "select next_position from agent_sessions.session_create(session_id => 'new', items => $1::text::json)",
    ] {
        let batch = format!("[{{\"payload\":1}},{{\"payload\":{over}}}]");
        let refused = assert_sqlstate!(writer.query(sql, &[&batch]).await, "SE018");
        let expected = json!({"argument": "payload", "limit": LARGEST, "actual": LARGEST + 1, "element": 1});
        assert_eq!(detail(&refused), expected);
    }
    for sql in [
        "select agent_sessions.session_set(session_id => 'largest', state => $1::text::json)",
        "select revision from agent_sessions.session_create(session_id => 'new', state => $1::text::json)",
    ] {
        let refused = assert_sqlstate!(writer.query(sql, &[&over]).await, "SE018");
        let expected = json!({"argument": "state", "limit": LARGEST, "actual": LARGEST + 1});
        assert_eq!(detail(&refused), expected);
    }
    holder.rollback().await;
    let counts = "select (select count(*) from agent_sessions.session)::text || ' ' || count(*)
                  from agent_sessions.session_item";
    assert_eq!(holder.value::<String>(counts, &[]).await, "1 2");
    assert_eq!(writer.append("largest", "{}").await, 2);
}

/// The setting binds the functions. What a table holds must restore under any setting: its triggers know the fixed limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_raw_insert_is_bound_by_the_fixed_limit_alone() {
    let db = Database::create("bytes_fixed_limit").await;
    let writer = db.writer().await;
    let sid = new_sid(&writer, "raw").await;
    let insert = "insert into agent_sessions.session_item (sid, payload)
        select $1::bigint, ('\"' || repeat('x', $2::int - 2) || '\"')::json";
    assert_eq!(writer.execute(insert, &[&sid, &(LARGEST as i32 + 1)]).await.expect("over the default"), 1);
    let refused = writer.execute(insert, &[&sid, &(BELOW_ALL_SETTINGS as i32 + 1)]).await;
    let expected = json!({"argument": "payload", "limit": BELOW_ALL_SETTINGS, "actual": BELOW_ALL_SETTINGS + 1});
    assert_eq!(detail(&assert_sqlstate!(refused, "SE018")), expected);
    writer.assert_dense("raw", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_smaller_setting_binds_the_functions() {
    let db = Database::create("bytes_setting").await;
    let superuser = db.superuser().await;
    superuser.create_session("s").await;
    superuser.run("set agent_sessions.max_payload_bytes = 100").await;
    assert_eq!(superuser.append("s", &sized(100)).await, 0);
    let refused = assert_sqlstate!(superuser.try_append("s", &sized(101)).await, "SE018");
    assert_eq!(detail(&refused), json!({"argument": "payload", "limit": 100, "actual": 101}));
    let beyond = superuser.batch_execute("set agent_sessions.max_payload_bytes = '256MB'").await;
    assert_eq!(sqlstate(&beyond.expect_err("no setting exceeds 255 MiB")), "22023");
}

#[tokio::test(flavor = "multi_thread")]
async fn states_keep_every_byte() {
    let db = Database::create("bytes_states").await;
    let writer = db.writer().await;
    let by_function = "select state::text from agent_sessions.session_get(session_id => $1::text)";
    let by_table = "select state::text from agent_sessions.session where session_id = $1::text";
    for state in payloads() {
        let create = "select session_id from agent_sessions.session_create(state => $1::text::json)";
        let created: String = writer.value(create, &[&state]).await;
        let set = "select agent_sessions.session_set(
            session_id => $1::text, state => $2::text::json, on_missing => 'create')";
        writer.value::<i64>(set, &[&"set", &state]).await;
        let insert = "insert into agent_sessions.session (tenant, agent_id, session_id, state)
            values ('', '', $1::text, $2::text::json)";
        let inserted = format!("raw {created}");
        writer.execute(insert, &[&inserted, &state]).await.expect("an INSERT");
        writer
            .execute("update agent_sessions.session set state = '1' where session_id = $1", &[&created])
            .await
            .unwrap();
        let update = "update agent_sessions.session set state = $2::text::json where session_id = $1";
        for (session, way) in [(created.as_str(), "created"), ("set", "set"), (&inserted, "inserted")] {
            if way == "created" {
                assert_eq!(writer.execute(update, &[&session, &state]).await.expect("an UPDATE"), 1);
            }
            for sql in [by_function, by_table] {
                assert_same(&texts(&writer, sql, session).await, std::slice::from_ref(&state), way);
            }
            let binary = "select state from agent_sessions.session_get(session_id => $1::text)";
            assert_eq!(writer.value::<Verbatim>(binary, &[&session]).await.0, state.as_bytes(), "{way}");
            let text = format!("select state from agent_sessions.session_get(session_id => {})", quoted(session));
            assert_same(&plain(&writer, &text).await, std::slice::from_ref(&state), way);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_keeps_every_value_byte_for_byte() {
    let db = Database::create("bytes_merge").await;
    let writer = db.writer().await;
    let merge = "select agent_sessions.session_set(
        session_id => 's', state => $1::text::json, merge => true, on_missing => 'create')";
    let state = "select state::text from agent_sessions.session_get(session_id => $1::text)";
    writer.create_session("s").await;
    for case in CASES {
        writer.run("update agent_sessions.session set state = '{\"before\":1e2,\"after\":-0.0}'").await;
        let patch = format!("{{ \"case\" : {case} , \"after\": \"\\ud83d\" }}");
        writer.value::<i64>(merge, &[&patch]).await;
        let value = case.trim();
        let merged = format!("{{\"before\":1e2,\"after\":\"\\ud83d\",\"case\":{value}}}");
        assert_same(&texts(&writer, state, "s").await, std::slice::from_ref(&merged), "a merge");
        // What was merged in stays as it is when something else is merged.
        writer.value::<i64>(merge, &[&r#"{"before":[ 1 ]}"#]).await;
        let merged = format!("{{\"before\":[ 1 ],\"after\":\"\\ud83d\",\"case\":{value}}}");
        assert_same(&texts(&writer, state, "s").await, &[merged], "a second merge");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_carries_every_byte() {
    let db = Database::create("bytes_dumped").await;
    let writer = db.writer().await;
    let payloads = payloads();
    append_each(&writer, "dumped", &payloads).await;
    let set = "select agent_sessions.session_set(
        session_id => $1::text, state => $2::text::json, on_missing => 'create')";
    for (number, state) in payloads.iter().enumerate() {
        writer.value::<i64>(set, &[&format!("state {number}"), state]).await;
    }
    let restored = Database::empty("bytes_restored").await;
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.dump", restored.name));
    let path = file.to_str().expect("a path in UTF-8");
    db.program("pg_dump", Role::Owner).args(["--format=custom", "--file", path]).output().await;
    let restore: Program = restored.program("pg_restore", Role::Owner);
    restore.args(["--exit-on-error", "--dbname", &restored.name, path]).output().await;
    std::fs::remove_file(&file).expect("the dump is there");

    let writer = restored.writer().await;
    assert_returns(&writer, "dumped", &payloads).await;
    let state = "select state::text from agent_sessions.session_get(session_id => $1::text)";
    for (number, sent) in payloads.iter().enumerate() {
        let session = format!("state {number}");
        assert_same(&texts(&writer, state, &session).await, std::slice::from_ref(sent), &session);
    }
    writer.assert_dense("dumped", payloads.len() as i64).await;
    assert_eq!(writer.append("dumped", "{}").await, payloads.len() as i64);
}
