//! Importing chains: our own exports and their continuation, and what is refused, at which line.

use agent_sessions_tests::{Connection, Database, assert_sqlstate, detail};
use serde_json::{Value, json};

use super::{
    Event, array_of, assert_chained, auditor, batch, column, count, export, import, in_tenant, texts, try_import,
};

const FIELDS: &str = r#"{"action":"action","actor":"actor","target":"target","session_id":"session_id","status":"status",
    "attrs":"attrs","occurred_at":"occurred_at","event_id":"event_id"}"#;

async fn filled(writer: &Connection, stream: &str, events: usize) -> Vec<String> {
    for number in 1..=events {
        let (id, payload) = (format!("e{number}"), format!(r#"{{"number":{number}, "text":"\u0000 \u00e9"}}"#));
        let event = Event {
            payload: Some(&payload),
            target: Some("order \"1\""),
            status: number.is_multiple_of(2).then_some("ok"),
            attrs: Some(r#"{"b":[1.5,null],"a":"ü"}"#),
            event_id: Some(&id),
            ..Event::in_stream(stream, "order.approve")
        };
        event.append(writer).await;
    }
    export(writer, stream).await
}

/// The lines with one key of the one at `place` (from 0) changed, or taken away.
fn with(lines: &[String], place: usize, key: &str, value: Option<Value>) -> String {
    let mut lines = lines.to_vec();
    let mut line: Value = serde_json::from_str(&lines[place]).expect("a line is JSON");
    match value {
        Some(value) => line[key] = value,
        None => drop(line.as_object_mut().expect("a line is an object").remove(key)),
    }
    lines[place] = line.to_string();
    array_of(&lines)
}

fn value(line: &str, key: &str) -> String {
    let line: Value = serde_json::from_str(line).expect("a line is JSON");
    line[key].as_str().expect("a text").to_owned()
}

/// A line that follows the end of a stream, by the published formula.
async fn next_line(connection: &Connection, stream: &str, data: &str) -> String {
    let line = "select json_build_object('data', $2::text, 'hash',
          'sha256:' || encode(sha256(convert_to(prev || E'\\n' || $2::text, 'UTF8')), 'hex'))::text
        from (select coalesce((select head_hash from agent_sessions.audit_stream where stream = $1::text),
          'sha256:' || repeat('0', 64)) as prev) head";
    connection.value(line, &[&stream, &data]).await
}

const COLUMNS: &str = "concat_ws(' | ', seq, event_id, occurred_at, action, actor, target, session_id, status, attrs)";

#[tokio::test(flavor = "multi_thread")]
async fn an_export_is_taken_into_another_stream_and_another_tenant() {
    let db = Database::create("audit_import").await;
    let (source, target) = (in_tenant(&db, "source").await, in_tenant(&db, "target").await);
    let lines = filled(&source, "s", 20).await;
    let texts_of_source = column(&source, "s", "concat_ws(' ', data, prev_hash, hash)").await;
    for (writer, stream) in [(&source, "copy"), (&target, "s"), (&target, "")] {
        assert_eq!(import(writer, stream, &array_of(&lines), Some(FIELDS)).await, 20);
        assert_chained(writer, stream, 20).await;
        assert_eq!(column(writer, stream, "concat_ws(' ', data, prev_hash, hash)").await, texts_of_source);
        assert_eq!(column(writer, stream, COLUMNS).await, column(&source, "s", COLUMNS).await);
        let listed = format!("select payload::text from agent_sessions.audit_list('{stream}') where imported");
        assert_eq!(
            texts(writer, &listed).await,
            texts(&source, "select payload::text from agent_sessions.audit_list('s')").await
        );
        // What is imported is exported again, but for the stream's name.
        let again = export(writer, stream).await;
        for (line, original) in again.iter().zip(&lines) {
            let original: Value = serde_json::from_str(original).expect("a line is JSON");
            let mut line: Value = serde_json::from_str(line).expect("a line is JSON");
            assert_eq!(line["stream"], stream);
            line["stream"] = json!("s");
            assert_eq!(line, original);
        }
    }
    assert_chained(&source, "s", 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_are_filled_as_fields_say_and_no_others() {
    let db = Database::create("audit_import_fields").await;
    let writer = db.writer().await;
    let data = r#"{"type":"login","user":{"id":"ann","role":{"name":"admin"}},"at":"2026-01-02T03:04:05.678901+01:00",
        "n":7,"yes":true,"list":[1,"x"],"none":null,"facts":{"b":1,"a":[]},"type2":"\u00e9\ud83d\ude80","":"empty key"}"#;
    let cases = [
        ("null", "- - - - - - - -"),
        ("{}", "- - - - - - - -"),
        (r#"{"action":"type"}"#, "- - login - - - - -"),
        (r#"{"action":["type"]}"#, "- - login - - - - -"),
        (r#"{"actor":["user","id"],"target":["user","role","name"]}"#, "- - - ann admin - - -"),
        (r#"{"occurred_at":"at"}"#, "- 2026-01-02T02:04:05.678901Z - - - - - -"),
        (r#"{"attrs":"facts","status":"n","session_id":"yes"}"#, r#"- - - - - true 7 {"a": [], "b": 1}"#),
        (r#"{"attrs":["n"]}"#, "- - - - - - - 7"),
        (r#"{"attrs":"none","action":"none","target":["none","x"]}"#, "- - - - - - - -"),
        (
            r#"{"action":"missing","actor":["user","missing"],"target":["type","id"],"status":["list","0"]}"#,
            "- - - - - - - -",
        ),
        (r#"{"action":"type2","event_id":""}"#, "empty key - é\u{1F680} - - - - -"),
        (r#"{"action":"type","actor":"type","event_id":["user","id"]}"#, "ann - login login - - - -"),
    ];
    let row = "concat_ws(' ', coalesce(event_id, '-'),
        coalesce(to_char(occurred_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), '-'), coalesce(action, '-'),
        coalesce(actor, '-'), coalesce(target, '-'), coalesce(session_id, '-'), coalesce(status, '-'),
        coalesce(attrs::text, '-'))";
    for (number, (fields, wanted)) in cases.into_iter().enumerate() {
        let stream = number.to_string();
        let line = next_line(&writer, &stream, data).await;
        let given = (fields != "null").then_some(fields);
        assert_eq!(import(&writer, &stream, &array_of(&[line]), given).await, 1, "{fields}");
        assert_eq!(column(&writer, &stream, row).await, [wanted], "{fields}");
        assert_eq!(column(&writer, &stream, "data").await, [data], "{fields}");
        assert_chained(&writer, &stream, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attrs_are_taken_over_with_all_their_digits() {
    let db = Database::create("audit_import_attrs").await;
    let writer = db.writer().await;
    for (number, attrs) in [
        r#"{"n":123456789012345678901234567890}"#,
        r#"{"n":1e2}"#,
        r#"[0.1000000000000000055511151231257827,1.50,-0.0]"#,
        r#"{"a":1,"a":2}"#,
    ]
    .into_iter()
    .enumerate()
    {
        let stream = number.to_string();
        let data = format!(r#"{{"facts":{attrs}}}"#);
        let line = next_line(&writer, &stream, &data).await;
        import(&writer, &stream, &array_of(&[line]), Some(r#"{"attrs":"facts"}"#)).await;
        assert_eq!(
            column(&writer, &stream, "attrs::text").await,
            column(&writer, &stream, "(data::jsonb -> 'facts')::text").await
        );
        assert_chained(&writer, &stream, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_are_found_whatever_else_the_text_holds() {
    let db = Database::create("audit_import_payloads").await;
    let writer = db.writer().await;
    let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
    for (number, payload) in crate::payloads::CASES.iter().copied().chain([deep.as_str()]).enumerate() {
        let (stream, copy) = (number.to_string(), format!("copy {number}"));
        Event { payload: Some(payload), status: Some("ok"), ..Event::in_stream(&stream, "a") }.append(&writer).await;
        let lines = array_of(&export(&writer, &stream).await);
        match try_import(&writer, &copy, &lines, Some(FIELDS)).await {
            Ok(taken) => assert_eq!(taken, Some(1)),
            Err(error) => panic!("{payload:.200}: {error:?}"),
        }
        assert_eq!(column(&writer, &copy, COLUMNS).await, column(&writer, &stream, COLUMNS).await);
        assert_chained(&writer, &copy, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_goes_on_where_the_stream_ends_and_appends_go_on_behind_it() {
    let db = Database::create("audit_import_continues").await;
    let writer = db.writer().await;
    let lines = filled(&writer, "s", 12).await;
    // In pieces, with and without what the line may leave out.
    assert_eq!(import(&writer, "t", &array_of(&lines[..5]), None).await, 5);
    let bare: Vec<String> = lines[5..8]
        .iter()
        .map(|line| json!({"data": value(line, "data"), "hash": value(line, "hash")}).to_string())
        .collect();
    assert_eq!(import(&writer, "t", &array_of(&bare), Some(r#"{"action":"action"}"#)).await, 3);
    assert_eq!(import(&writer, "t", &array_of(&lines[8..]), Some(FIELDS)).await, 4);
    assert_chained(&writer, "t", 12).await;

    // Behind events of our own, too.
    assert_eq!(Event::in_stream("t", "own").append(&writer).await.seq, 13);
    Event::in_stream("t", "own").insert(&writer).await;
    assert_eq!(batch(&writer, "t", r#"[{"action":"own"}]"#).await[0].seq, 15);
    let line = next_line(&writer, "t", "no JSON at all: \"\n\t\\ \u{1F680}").await;
    assert_eq!(import(&writer, "t", &array_of(&[line]), None).await, 1);
    assert_eq!(Event::in_stream("t", "own").append(&writer).await.seq, 17);
    assert_chained(&writer, "t", 17).await;
    let imported = "select string_agg(case when imported then 'i' else 'o' end, '')
                    from agent_sessions.audit_list('t', newest_first => false)";
    assert_eq!(writer.value::<String>(imported, &[]).await, "iiiiiiiiiiiioooio");
    // What was imported before does not follow any more.
    let error = assert_sqlstate!(try_import(&writer, "t", &array_of(&lines), None).await, "SE017");
    assert_eq!(detail(&error), json!({"column": "seq", "position": 18}));
    let error = assert_sqlstate!(try_import(&writer, "t", &array_of(&bare), None).await, "SE017");
    assert_eq!(detail(&error), json!({"column": "hash", "position": 18}));
    assert_chained(&writer, "t", 17).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_line_that_is_wrong_is_named_and_nothing_is_loaded() {
    let db = Database::create("audit_import_wrong").await;
    let writer = db.writer().await;
    let lines = filled(&writer, "s", 12).await;
    assert_eq!(import(&writer, "t", &array_of(&lines[..2]), None).await, 2);
    let rest = &lines[2..];
    let zeros = format!("sha256:{}", "0".repeat(64));
    for place in [0, 4, 9] {
        let seq = place as i64 + 3;
        let data = value(&rest[place], "data");
        let hash = value(&rest[place], "hash");
        let upper = format!("sha256:{}", hash["sha256:".len()..].to_uppercase());
        let cases = [
            ("seq", json!(seq + 1), "seq"),
            ("seq", json!(0), "seq"),
            ("seq", json!(-seq), "seq"),
            ("prev_hash", json!(zeros), "prev_hash"),
            ("prev_hash", json!(hash), "prev_hash"),
            ("prev_hash", json!(""), "prev_hash"),
            ("hash", json!(zeros), "hash"),
            ("hash", json!(upper), "hash"),
            ("hash", json!(hash["sha256:".len()..]), "hash"),
            ("hash", json!(format!("{hash} ")), "hash"),
            ("data", json!(data.replacen("approve", "approvf", 1)), "hash"),
            ("data", json!(format!("{data} ")), "hash"),
            ("data", json!(""), "hash"),
        ];
        for (key, wrong, named) in cases {
            let error = assert_sqlstate!(
                try_import(&writer, "t", &with(rest, place, key, Some(wrong.clone())), None).await,
                "SE017"
            );
            assert_eq!(detail(&error), json!({"column": named, "position": seq}), "{key} = {wrong} at {seq}");
        }
    }
    for (wrong, seq) in [
        // One line is missing, two are swapped, one comes twice.
        (array_of(&[&rest[..3], &rest[4..]].concat()), 6),
        (array_of(&[&rest[..3], &[rest[4].clone(), rest[3].clone()], &rest[5..]].concat()), 6),
        (array_of(&[&rest[..3], &rest[2..]].concat()), 6),
        (array_of(&lines), 3),
        (array_of(&rest[1..]), 3),
    ] {
        let error = assert_sqlstate!(try_import(&writer, "t", &wrong, Some(FIELDS)).await, "SE017");
        assert_eq!(detail(&error)["position"], seq);
    }
    assert_chained(&writer, "t", 2).await;
    assert_eq!(import(&writer, "t", &array_of(rest), None).await, 10);
    assert_chained(&writer, "t", 12).await;
    // A stream that a refused import would have made is not there.
    assert_sqlstate!(try_import(&writer, "new", &array_of(rest), None).await, "SE017");
    assert_eq!(count(&writer, "agent_sessions.audit_stream where stream = 'new'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_line_is_named() {
    let db = Database::create("audit_import_malformed").await;
    let writer = db.writer().await;
    let lines = filled(&writer, "s", 3).await;
    let (data, hash) = (value(&lines[1], "data"), value(&lines[1], "hash"));
    let long = "x".repeat(501);
    let malformed = [
        "null".to_owned(),
        "1".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        json!({"data": data}).to_string(),
        json!({"hash": hash}).to_string(),
        json!({"data": null, "hash": hash}).to_string(),
        json!({"data": {"a": 1}, "hash": hash}).to_string(),
        json!({"data": data, "hash": 1}).to_string(),
        json!({"data": data, "hash": hash, "seq": "2"}).to_string(),
        json!({"data": data, "hash": hash, "seq": 2.5}).to_string(),
        json!({"data": data, "hash": hash, "prev_hash": 7}).to_string(),
        json!({"data": data, "hash": hash, "stream": {}}).to_string(),
        json!({"data": data, "hash": hash, "tenant": ""}).to_string(),
        format!(r#"{{"data":"a","data":"a","hash":"{hash}"}}"#),
        format!(r#"{{"data":"\ud83d","hash":"{hash}"}}"#),
        // The text itself may hold the escape, not the character.
        format!(r#"{{"data":"a\u0000b","hash":"{hash}"}}"#),
    ];
    for line in &malformed {
        let wrong = array_of(&[&lines[0], line, &lines[2]]);
        let error = assert_sqlstate!(try_import(&writer, "t", &wrong, None).await, "SE001");
        assert_eq!(detail(&error)["element"], 1, "{line}");
    }
    for (fields, text) in [
        (r#"{"action":"a"}"#, r#"{"a":""}"#.to_owned()),
        (r#"{"action":"a"}"#, r#"{"a":"x\ny"}"#.to_owned()),
        (r#"{"action":"a"}"#, r#"{"a":"x\u0000y"}"#.to_owned()),
        (r#"{"event_id":"a"}"#, format!(r#"{{"a":"{long}"}}"#)),
        (r#"{"occurred_at":"a"}"#, r#"{"a":"2026-01-01T00:00:00"}"#.to_owned()),
        (r#"{"occurred_at":"a"}"#, r#"{"a":1767225600}"#.to_owned()),
        (r#"{"action":"a"}"#, "no JSON".to_owned()),
        (r#"{"action":"a"}"#, r#"{"a":"x"} {"a":"y"}"#.to_owned()),
        (r#"{"attrs":"a"}"#, r#"{"a":{"b":"\u0000"}}"#.to_owned()),
    ] {
        let first = next_line(&writer, "u", &text).await;
        let error = assert_sqlstate!(try_import(&writer, "u", &array_of(&[first]), Some(fields)).await, "SE001");
        assert_eq!(detail(&error)["element"], 0, "{fields} {text}");
    }
    for array in ["null", "{}", "1", "\"[]\""] {
        let error = assert_sqlstate!(try_import(&writer, "t", array, None).await, "SE001");
        assert_eq!(detail(&error)["argument"], "lines", "{array}");
    }
    let missing = writer.query("select agent_sessions.audit_import('t', null)", &[]).await;
    assert_eq!(detail(&assert_sqlstate!(missing, "SE001"))["argument"], "lines");
    assert_eq!(texts(&writer, "select stream from agent_sessions.audit_stream").await, ["s"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_fields_are_refused() {
    let db = Database::create("audit_import_bad_fields").await;
    let writer = db.writer().await;
    let lines = array_of(&filled(&writer, "s", 2).await);
    for fields in [
        "null",
        "[]",
        "1",
        "\"action\"",
        r#"{"action":1}"#,
        r#"{"action":null}"#,
        r#"{"action":{"a":1}}"#,
        r#"{"action":["a",1]}"#,
        r#"{"action":[["a"]]}"#,
        r#"{"seq":"n"}"#,
        r#"{"hash":"n"}"#,
        r#"{"data":"n"}"#,
        r#"{"payload":"n"}"#,
        r#"{"recorded_at":"n"}"#,
        r#"{"tenant":"tenant"}"#,
        r#"{"Action":"a"}"#,
    ] {
        let error = assert_sqlstate!(try_import(&writer, "t", &lines, Some(fields)).await, "SE001");
        assert_eq!(detail(&error)["argument"], "fields", "{fields}");
    }
    assert_chained(&writer, "t", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_of_no_lines_writes_nothing() {
    let db = Database::create("audit_import_nothing").await;
    let writer = db.writer().await;
    assert_eq!(import(&writer, "s", "[]", None).await, 0);
    assert_eq!(count(&writer, "agent_sessions.audit_stream").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_event_id_is_used_once_in_the_stream() {
    let db = Database::create("audit_import_ids").await;
    let writer = db.writer().await;
    let lines = filled(&writer, "s", 3).await;
    Event { event_id: Some("e2"), ..Event::in_stream("t", "own") }.append(&writer).await;
    let line = next_line(&writer, "t", r#"{"id":"e2"}"#).await;
    let refused = try_import(&writer, "t", &array_of(&[line]), Some(r#"{"event_id":"id"}"#)).await;
    assert_eq!(detail(&assert_sqlstate!(refused, "SE021"))["key"], "e2");
    // Every line maps the same text.
    let refused = try_import(&writer, "u", &array_of(&lines), Some(r#"{"event_id":"action"}"#)).await;
    assert_eq!(detail(&assert_sqlstate!(refused, "SE021"))["key"], "order.approve");
    assert_chained(&writer, "t", 1).await;
    assert_chained(&writer, "u", 0).await;

    // An event that was imported is known by its id: with the same content it is the same event.
    assert_eq!(import(&writer, "v", &array_of(&lines), Some(FIELDS)).await, 3);
    let again = Event {
        payload: Some(r#"{"number":2, "text":"\u0000 \u00e9"}"#),
        target: Some("order \"1\""),
        status: Some("ok"),
        event_id: Some("e2"),
        ..Event::in_stream("v", "order.approve")
    };
    assert_eq!(again.append(&writer).await.seq, 2);
    assert_sqlstate!(Event { status: None, ..again }.try_append(&writer).await, "SE021");
    assert_chained(&writer, "v", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn imported_names_that_do_not_fit_an_index_entry_are_refused() {
    let db = Database::create("audit_import_names").await;
    let writer = db.writer().await;
    // Incompressible, four bytes a character.
    let wide = async |seed: i32| {
        let sql = "select string_agg(chr(128512 + (n * $1) % 60000), '') from generate_series(1, 490) n";
        writer.value::<String>(sql, &[&seed]).await
    };
    let (stream, id) = (wide(7_919).await, wide(7_907).await);
    let line = next_line(&writer, &stream, &json!({"id": id}).to_string()).await;
    let refused = try_import(&writer, &stream, &array_of(&[line.as_str()]), Some(r#"{"event_id":"id"}"#)).await;
    assert_eq!(detail(&assert_sqlstate!(refused, "SE018"))["element"], 0);
    writer.run(&format!("set agent_sessions.tenant = '{stream}'")).await;
    let refused = try_import(&writer, "s", &array_of(&[line]), Some(r#"{"session_id":"id"}"#)).await;
    assert_eq!(detail(&assert_sqlstate!(refused, "SE018"))["element"], 0);
    assert_eq!(count(&db.superuser().await, "agent_sessions.audit_chain").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_waits_for_the_stream_and_keeps_it() {
    let db = Database::create("audit_import_waits").await;
    let (first, second) = (db.writer().await, std::sync::Arc::new(db.writer().await));
    let lines = array_of(&filled(&first, "s", 3).await);
    first.begin("read committed").await;
    assert_eq!(import(&first, "t", &lines, None).await, 3);
    let waiting = tokio::spawn({
        let (second, lines) = (second.clone(), lines.clone());
        async move { try_import(&second, "t", &lines, None).await }
    });
    db.wait_until_blocked(second.pid).await;
    first.commit().await;
    let error = assert_sqlstate!(waiting.await.expect("the other import"), "SE017");
    assert_eq!(detail(&error)["position"], 4);
    assert_chained(&auditor(&db).await, "t", 3).await;
}
