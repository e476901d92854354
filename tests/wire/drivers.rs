//! The one call form of the documentation through three drivers, and with parameters typed as JDBC and Npgsql type them.

use std::path::{Path, PathBuf};

use agent_sessions_tests::{
    Connection, Database, Program, Role, assert_sqlstate, detail, setting, sqlstate, transcripts,
};
use serde_json::{Value, json};
use tokio_postgres::types::{ToSql, Type};

use crate::payloads::{CASES, Verbatim};

/// The cases, and the first lines of a real conversation.
fn payloads() -> Vec<String> {
    let lines = transcripts().into_iter().flat_map(|transcript| transcript.lines.into_iter().take(10));
    CASES.iter().map(|case| (*case).to_owned()).chain(lines).collect()
}

fn client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name)
}

/// Runs a client and asserts that it went every way with every payload, and that the database holds just that.
async fn assert_calls(db: &Database, program: Program, ways: i64) {
    let payloads = payloads();
    let input = serde_json::to_string(&payloads).expect("texts are JSON");
    let said = program.pointed_at(db, Role::Writer).input(input).output().await;
    let said: Value = serde_json::from_str(said.trim()).unwrap_or_else(|_| panic!("it said {said}"));
    assert_eq!(said, json!({"ways": ways, "payloads": payloads.len()}));

    let reader = db.reader().await;
    let sessions = reader.query("select session_id, state::text from agent_sessions.session order by 1", &[]).await;
    let sessions = sessions.expect("the sessions");
    assert_eq!(sessions.len() as i64, ways);
    for session in sessions {
        let (session, state): (String, String) = (session.get(0), session.get(1));
        assert_eq!(Some(&state), payloads.last(), "{session}");
        let history = reader.history(&session).await;
        let sent = payloads.iter().map(String::as_str);
        let elements = payloads.iter().map(|payload| payload.trim_matches([' ', '\t', '\r', '\n']));
        let stored: Vec<&str> = history.iter().filter_map(|item| item.payload.as_deref()).collect();
        assert_eq!(stored, sent.chain(elements).collect::<Vec<&str>>(), "{session}");
        reader.assert_dense(&session, 2 * payloads.len() as i64).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn psycopg_keeps_every_byte() {
    let db = Database::create("psycopg").await;
    let script = client("psycopg_calls.py");
    let script = script.to_str().expect("a path in UTF-8");
    let python = Program::new(Path::new(&setting("AGENT_SESSIONS_PYTHON"))).args(["-I", script]);
    assert_calls(&db, python, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_postgres_keeps_every_byte() {
    let db = Database::create("node_postgres").await;
    let script = client("node_calls.mjs");
    let node = Program::new(Path::new("node"))
        .args([script.to_str().expect("a path in UTF-8")])
        .env("AGENT_SESSIONS_NODE_MODULES", &setting("AGENT_SESSIONS_NODE_MODULES"));
    assert_calls(&db, node, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokio_postgres_keeps_every_byte() {
    let db = Database::create("tokio_postgres").await;
    let writer = db.writer().await;
    let payloads = payloads();
    let append = "select agent_sessions.session_append(session_id => $1, payload => $2::text::json, item_id => $3,
        attrs => $4::text::jsonb, expected_position => $5, on_missing => 'create')";
    let batch = "select position from agent_sessions.session_append_batch(session_id => $1, items => $2::text::json)";
    let set = "select agent_sessions.session_set(session_id => $1, state => $2::text::json)";
    let history =
        "select payload::text from agent_sessions.session_history(session_id => $1, after => $2, max_rows => $3,
        kinds => $4::text[])";
    for (position, payload) in (0..).zip(&payloads) {
        let parameters: &[&(dyn ToSql + Sync)] = &[&"s", payload, &format!("i{position}"), &r#"{"k":1}"#, &position];
        assert_eq!(writer.value::<i64>(append, parameters).await, position);
        assert_eq!(writer.value::<i64>(set, &[&"s", payload]).await, position + 1);
    }
    let read = async |after: Option<i64>, rows: Option<i32>| -> Vec<String> {
        let kinds = vec!["message"];
        let rows = writer.query(history, &[&"s", &after, &rows, &kinds]).await.expect("a history");
        rows.iter().map(|row| row.get(0)).collect()
    };
    assert_eq!(read(None, None).await, payloads);
    assert_eq!(read(Some(0), Some(1)).await, payloads[1..2]);
    let items = format!(
        "[{}]",
        payloads.iter().map(|payload| format!("{{\"payload\":{payload}}}")).collect::<Vec<_>>().join(",")
    );
    assert_eq!(writer.query(batch, &[&"s", &items]).await.expect("a batch").len(), payloads.len());
    let values: Vec<&str> = payloads.iter().map(|payload| payload.trim_matches([' ', '\t', '\r', '\n'])).collect();
    assert_eq!(read(Some(payloads.len() as i64 - 1), None).await, values);

    let in_tenant = "select agent_sessions.session_append(session_id => $1, payload => '1', on_missing => 'create')
        from agent_sessions.tenant_use($2)";
    assert_eq!(writer.value::<i64>(in_tenant, &[&"s", &"tokio"]).await, 0);
    let read = "select h.payload::text from agent_sessions.tenant_use($1) t,
        lateral agent_sessions.session_history(session_id => $2, tenant => t) h";
    assert_eq!(writer.value::<String>(read, &[&"tokio", &"s"]).await, "1");
}

const TYPED_CREATE: &str = "select revision from agent_sessions.session_create(session_id => $1, title => $2,
    state => $3::text::json, input_tokens => $4)";
const TYPED_APPEND: &str =
    "select agent_sessions.session_append(session_id => $1, payload => $2::text::json, kind => $3,
    item_id => $4, attrs => $5::text::jsonb, kept_from => $6, open => $7, expected_position => $8, agent_id => $9)";
const TYPED_BATCH: &str = "select position from agent_sessions.session_append_batch(session_id => $1,
    items => $2::text::json, expected_position => $3)";
const TYPED_HISTORY: &str = "select payload::text from agent_sessions.session_history(session_id => $1, after => $2,
    max_rows => $3, newest_first => $4, kinds => $5::text[], attrs => $6::text::jsonb)";
const TYPED_RETRACT: &str = "select agent_sessions.session_retract(session_id => $1, targets => $2::bigint[],
    item_ids => $3::text[])";

/// The types that a driver declares for its texts, JSON texts, integers, page sizes, booleans and arrays of text.
struct Declared {
    name: &'static str,
    text: Type,
    json: Type,
    integer: Type,
    small: Type,
    boolean: Type,
    texts: Type,
}

async fn assert_typed_calls(writer: &Connection, of: &Declared) {
    let prepare = async |sql: &str, types: &[&Type]| {
        let types: Vec<Type> = types.iter().map(|of| (*of).clone()).collect();
        match writer.prepare_typed(sql, &types).await {
            Ok(statement) => statement,
            Err(error) => panic!("{}: {sql}\n{error:?}", of.name),
        }
    };
    let (text, json, integer) = (&of.text, &of.json, &of.integer);
    let create = prepare(TYPED_CREATE, &[text, text, json, integer]).await;
    let append = prepare(TYPED_APPEND, &[text, json, text, text, json, integer, &of.boolean, integer, text]).await;
    let batch = prepare(TYPED_BATCH, &[text, json, integer]).await;
    let history = prepare(TYPED_HISTORY, &[text, integer, &of.small, &of.boolean, &of.texts, json]).await;
    let retract = prepare(TYPED_RETRACT, &[text, &Type::UNKNOWN, &of.texts]).await;

    // A jsonb has lost the bytes before the server calls anything; what it holds still arrives.
    let payload = if of.json == Type::JSONB { r#"{"a": 2, "b": 3}"# } else { r#"{"b":1,"a":2,"b":3}"# };
    let sent = |text: &str| Verbatim(text.as_bytes().to_vec());
    let whole = |number: i64, of: &Type| match *of {
        Type::INT4 => Verbatim((number as i32).to_be_bytes().to_vec()),
        _ => Verbatim(number.to_be_bytes().to_vec()),
    };
    let none = None::<Verbatim>;
    let session = sent(of.name);
    let parameters: &[&(dyn ToSql + Sync)] = &[&session, &sent("a title"), &sent(payload), &whole(7, integer)];
    writer.query_one(&create, parameters).await.unwrap_or_else(|error| panic!("{}: {error:?}", of.name));
    for position in 0..2_i64 {
        let parameters: &[&(dyn ToSql + Sync)] = &[
            &session,
            &sent(payload),
            &sent("event"),
            &sent(&format!("i{position}")),
            &sent(r#"{"k":1}"#),
            &none,
            &false,
            &whole(position, integer),
            &none,
        ];
        let row = writer.query_one(&append, parameters).await.unwrap_or_else(|error| panic!("{}: {error:?}", of.name));
        assert_eq!(row.get::<_, i64>(0), position, "{}", of.name);
    }
    let items = sent(&format!("[{{\"payload\":{payload},\"kind\":\"event\",\"attrs\":{{\"k\":1}}}}]"));
    let row = writer.query_one(&batch, &[&session, &items, &whole(2, integer)]).await.expect("a batch");
    assert_eq!(row.get::<_, i64>(0), 2);
    let stale = assert_sqlstate!(writer.query(&batch, &[&session, &items, &whole(2, integer)]).await, "SE007");
    assert_eq!(detail(&stale), json!({"expected": 2, "actual": 3}));

    let kinds = vec!["event"];
    let parameters: &[&(dyn ToSql + Sync)] =
        &[&session, &whole(0, integer), &whole(1, &history.params()[2]), &true, &kinds, &sent(r#"{"k":1}"#)];
    let rows = writer.query(&history, parameters).await.unwrap_or_else(|error| panic!("{}: {error:?}", of.name));
    let payloads: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(payloads, [payload], "{}", of.name);
    let parameters: &[&(dyn ToSql + Sync)] = &[&session, &none, &none, &none, &None::<Vec<&str>>, &none];
    assert_eq!(writer.query(&history, parameters).await.expect("a history").len(), 3);
    let row = writer.query_one(&retract, &[&session, &vec![0_i64, 2], &vec!["i1"]]).await.expect("a retract");
    assert_eq!(row.get::<_, i64>(0), 3);
    let state = "select state::text from agent_sessions.session_get(session_id => $1)";
    assert_eq!(writer.value::<String>(state, &[&of.name]).await, payload);
}

/// JDBC sends setString as varchar, or with stringtype=unspecified as an unknown, setLong as int8 and setInt as int4;
/// Npgsql sends text, and what it is told is json or jsonb as that.
#[tokio::test(flavor = "multi_thread")]
async fn parameters_may_have_the_types_that_drivers_declare() {
    let db = Database::create("typed").await;
    let writer = db.writer().await;
    let declared = |name, text: Type, json: Type, integer: Type| Declared {
        name,
        text,
        json,
        integer,
        small: Type::INT4,
        boolean: Type::BOOL,
        texts: Type::TEXT_ARRAY,
    };
    for of in [
        declared("JDBC", Type::VARCHAR, Type::VARCHAR, Type::INT8),
        declared("JDBC with setInt", Type::VARCHAR, Type::VARCHAR, Type::INT4),
        Declared {
            texts: Type::VARCHAR_ARRAY,
            ..declared("JDBC with arrays of varchar", Type::VARCHAR, Type::VARCHAR, Type::INT8)
        },
        Declared {
            small: Type::UNKNOWN,
            boolean: Type::UNKNOWN,
            texts: Type::UNKNOWN,
            ..declared("JDBC, unspecified", Type::UNKNOWN, Type::UNKNOWN, Type::UNKNOWN)
        },
        declared("Npgsql", Type::TEXT, Type::TEXT, Type::INT8),
        declared("Npgsql with json", Type::TEXT, Type::JSON, Type::INT8),
        declared("Npgsql with jsonb", Type::TEXT, Type::JSONB, Type::INT4),
    ] {
        assert_typed_calls(&writer, &of).await;
    }
}

/// A parameter that is declared json needs no cast, and arrives as it was sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_parameter_of_type_json_needs_no_cast() {
    let db = Database::create("typed_json").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    let append = "select agent_sessions.session_append(session_id => $1, payload => $2, attrs => $3)";
    let append = writer.prepare_typed(append, &[Type::TEXT, Type::JSON, Type::JSONB]).await.expect("a statement");
    let payloads = payloads();
    for payload in &payloads {
        let parameters: &[&(dyn ToSql + Sync)] =
            &[&"s", &Verbatim(payload.clone().into_bytes()), &Verbatim(br#"{"k":1}"#.to_vec())];
        writer.query_one(&append, parameters).await.expect("an append");
    }
    let stored: Vec<Option<String>> = writer.history("s").await.into_iter().map(|item| item.payload).collect();
    assert_eq!(stored, payloads.into_iter().map(Some).collect::<Vec<_>>());
}

/// Every function of the contract, called with every argument by name, unquoted, and NULL: which is the same as not given,
/// so that nothing may be STRICT. What needs its arguments says so by its own code.
#[tokio::test(flavor = "multi_thread")]
async fn every_argument_of_every_function_can_be_named_and_be_null() {
    let db = Database::create("named").await;
    let owner = db.owner().await;
    let calls = owner
        .query(
            "select p.proname::text, p.proisstrict, format('select * from agent_sessions.%s(%s)', p.proname, (
               select string_agg(format('%s => null::%s', p.proargnames[n], format_type(p.proargtypes[n - 1], null)), ', '
                 order by n)
               from generate_series(1, p.pronargs) n))
             from pg_proc p
             where p.pronamespace = 'agent_sessions'::regnamespace and p.prorettype <> 'trigger'::regtype
             order by 1",
            &[],
        )
        .await
        .expect("the functions");
    assert!(calls.len() > 30, "{} functions", calls.len());
    for call in calls {
        let (name, is_strict, sql): (String, bool, String) = (call.get(0), call.get(1), call.get(2));
        assert!(!is_strict, "{name} is STRICT");
        owner.run("begin").await;
        if let Err(error) = owner.query(&sql, &[]).await {
            let code = sqlstate(&error);
            assert!(code.starts_with("SE"), "{sql}\n{error:?}");
        }
        owner.rollback().await;
    }
}
