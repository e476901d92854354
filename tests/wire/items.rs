//! Items of one session: appending, revising, retracting, popping, and what the readers then show.

use std::collections::BTreeMap;
use std::fmt::Write;

use agent_sessions_tests::{Append, Connection, Database, Error, assert_sqlstate, detail};
use serde_json::{Value, json};
use tokio_postgres::types::ToSql;

async fn count(connection: &Connection, call: &str) -> Option<i64> {
    connection.value(&format!("select agent_sessions.{call}"), &[]).await
}

async fn refused(connection: &Connection, call: &str) -> Result<Option<i64>, Error> {
    connection.try_value(&format!("select agent_sessions.{call}"), &[]).await
}

/// The rows of a call, as JSON.
async fn rows(connection: &Connection, call: &str) -> Vec<Value> {
    let sql = format!("select row_to_json(r)::text from agent_sessions.{call} r");
    let rows = connection.query(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter().map(|row| serde_json::from_str(row.get(0)).expect("a row is JSON")).collect()
}

/// The live items as `position payload`, in the order of the history.
async fn shown(connection: &Connection, session: &str) -> Vec<String> {
    let history = connection.history(session).await;
    history.iter().map(|item| format!("{} {}", item.position, item.payload.as_deref().expect("a payload"))).collect()
}

/// The log as `op target`.
async fn ops(connection: &Connection, session: &str) -> Vec<String> {
    let sql = "select op || coalesce(' ' || target, '') from agent_sessions.session_log(session_id => $1::text)";
    let rows = connection.query(sql, &[&session]).await.expect("a log");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn appended(connection: &Connection, session: &str, payloads: &[&str]) {
    connection.create_session(session).await;
    for payload in payloads {
        connection.append(session, payload).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_stores_all_that_is_given() {
    let db = Database::create("append_all").await;
    let writer = db.writer().await;
    writer.run("select session_id from agent_sessions.session_create(session_id => 's', agent_id => 'coder')").await;
    let all = r#"session_append(session_id => 's', payload => '{"b":1,"a":2}', kind => 'tool_call', item_id => 'call-1',
        tag => 'turn 1', author => 'coder', attrs => '{"tool": "grep"}', kept_from => 0, open => false,
        expected_position => 0, on_conflict => 'error', on_missing => 'error', agent_id => 'coder', lease => null)"#;
    assert_eq!(count(&writer, all).await, Some(0));
    let bare = "session_append(session_id => 's', payload => 'null', agent_id => 'coder', open => true)";
    assert_eq!(count(&writer, bare).await, Some(1));

    let mut history = rows(&writer, "session_history(session_id => 's', agent_id => 'coder', tenant => '')").await;
    let mut log = rows(&writer, "session_log(session_id => 's', agent_id => 'coder', tenant => '')").await;
    for row in history.iter_mut().chain(&mut log) {
        let digest = row["digest"].take();
        assert_eq!(digest.as_str().map(str::len), Some(2 + 64), "{digest}");
        assert!(row["created_at"].take().is_string());
    }
    let first = json!({"position": 0, "op": "append", "kind": "tool_call", "item_id": "call-1", "tag": "turn 1",
        "author": "coder", "payload": {"b": 1, "a": 2}, "attrs": {"tool": "grep"}, "created_at": null, "digest": null,
        "revised_at_position": null, "open": false, "delta_text": null});
    let second = json!({"position": 1, "op": "open", "kind": "message", "item_id": null, "tag": null, "author": null,
        "payload": null, "attrs": null, "created_at": null, "digest": null, "revised_at_position": null, "open": true,
        "delta_text": null});
    assert_eq!(history, [first, second]);
    assert_eq!(
        log[0],
        json!({"position": 0, "op": "append", "target": 0, "kind": "tool_call", "item_id": "call-1", "tag": "turn 1",
            "author": "coder", "payload": {"b": 1, "a": 2}, "attrs": {"tool": "grep"}, "created_at": null,
            "digest": null, "imported_at": null})
    );
    assert_eq!((&log[1]["op"], &log[1]["target"]), (&json!("open"), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_items_have_the_documented_columns() {
    let db = Database::create("item_columns").await;
    let writer = db.writer().await;
    let item =
        "position op kind item_id tag author payload attrs created_at digest revised_at_position open delta_text";
    for (relation, expected) in [
        ("session_history(session_id => 's')", item),
        ("session_pop(session_id => 's')", item),
        (
            "session_log(session_id => 's')",
            "position op target kind item_id tag author payload attrs created_at digest imported_at",
        ),
        (
            "session_append_batch(session_id => 's', items => '[]')",
            "ordinal position item_id digest created_at outcome",
        ),
        ("session_stats(session_id => 's')", "kind items bytes first_at last_at"),
        ("session_verify(session_id => 's')", "entries redacted ok first_bad_position reason"),
        (
            "live_item",
            "session_id agent_id owner position op kind item_id tag author payload attrs created_at digest \
             revised_at_position open delta_text",
        ),
    ] {
        let statement = writer.prepare(&format!("select * from agent_sessions.{relation}")).await.expect("a statement");
        let names: Vec<&str> = statement.columns().iter().map(|column| column.name()).collect();
        assert_eq!(names.join(" "), expected, "{relation}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_to_a_missing_session_fails_creates_or_is_ignored() {
    let db = Database::create("append_missing").await;
    let writer = db.writer().await;
    let batch = r#"session_append_batch(session_id => 's', items => '[{"payload":1}]'"#;
    assert_sqlstate!(writer.try_append("s", "1").await, "SE002");
    assert_sqlstate!(writer.query(&format!("select * from agent_sessions.{batch})"), &[]).await, "SE002");
    let ignore = "session_append(session_id => 's', payload => '1', on_missing => 'ignore')";
    assert_eq!(count(&writer, ignore).await, None);
    assert_eq!(rows(&writer, &format!("{batch}, on_missing => 'ignore')")).await, Vec::<Value>::new());
    assert_eq!(rows(&writer, "session_get(session_id => 's')").await.len(), 0);

    let expected = Append::to("s", "1").on_missing("create").expected_position(1).run(&writer).await;
    assert_eq!(detail(&assert_sqlstate!(expected, "SE007")), json!({"expected": 1, "actual": 0}));
    assert_eq!(rows(&writer, "session_get(session_id => 's')").await.len(), 0, "nothing was created");
    assert_eq!(
        Append::to("s", "1").on_missing("create").expected_position(0).run(&writer).await.expect("an append"),
        0
    );
    assert_eq!(Append::to("s", "2").on_missing("create").run(&writer).await.expect("an append"), 1);
    assert_eq!(rows(&writer, &format!("{batch}, on_missing => 'create', agent_id => 'coder')")).await.len(), 1);
    writer.assert_dense("s", 2).await;
    for call in [
        "session_revise(session_id => 'absent', payload => '1', target => 0)",
        "session_retract(session_id => 'absent', targets => '{0}')",
        "session_retract(session_id => 'absent', from_target => 0, on_missing => 'error')",
    ] {
        assert_sqlstate!(refused(&writer, call).await, "SE002");
    }
    let ignored = "session_retract(session_id => 'absent', targets => '{0}', on_missing => 'ignore')";
    assert_eq!(count(&writer, ignored).await, None);
    assert_eq!(rows(&writer, "session_pop(session_id => 'absent')").await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_id_that_is_taken_is_replayed_refused_kept_or_replaced() {
    let db = Database::create("on_conflict").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    let first = || Append::to("s", r#"{"n": 1}"#).item_id("i").kind("k").tag("t").author("a").attrs(r#"{"x": 1}"#);
    assert_eq!(first().run(&writer).await.expect("an append"), 0);
    writer.append("s", r#""other""#).await;

    // A replay, whatever has become of the position that was expected.
    for replay in [first(), first().on_conflict("error"), first().expected_position(0), first().expected_position(7)] {
        assert_eq!(replay.run(&writer).await.expect("a replay"), 0);
    }
    for other in [
        first().kind("l"),
        first().tag("u"),
        first().author("b"),
        first().kept_from(0),
        Append::to("s", r#"{"n":1}"#).item_id("i").kind("k").tag("t").author("a").attrs(r#"{"x": 1}"#),
        Append::to("s", r#"{"n": 1}"#).item_id("i"),
    ] {
        let error = assert_sqlstate!(other.clone().run(&writer).await, "SE010");
        assert_eq!(detail(&error), json!({"item_id": "i", "position": 0}), "{other:?}");
        // What is expected of the position does not matter either.
        assert_sqlstate!(other.expected_position(2).run(&writer).await, "SE010");
    }
    for keep in [first(), Append::to("s", r#"{"n": 2}"#).item_id("i"), Append::to("s", "3").item_id("i").kind("z")] {
        assert_eq!(keep.on_conflict("keep").run(&writer).await.expect("the first one"), 0);
    }
    writer.assert_dense("s", 2).await;

    let second = || Append::to("s", r#"{"n": 2}"#).item_id("i").kind("k").tag("t").author("a").on_conflict("replace");
    assert_eq!(second().run(&writer).await.expect("a revision"), 0);
    assert_eq!(ops(&writer, "s").await, ["append", "append", "revise 0"]);
    assert_eq!(shown(&writer, "s").await, [r#"0 {"n": 2}"#, r#"1 "other""#]);
    assert_eq!(second().run(&writer).await.expect("the same again"), 0);
    writer.assert_dense("s", 3).await;
    // The first content again is still a replay, and changes nothing.
    assert_eq!(first().run(&writer).await.expect("a replay"), 0);
    assert_eq!(shown(&writer, "s").await[0], r#"0 {"n": 2}"#);
    assert_eq!(Append::to("s", "9").item_id("new").on_conflict("replace").run(&writer).await.expect("an append"), 3);
    assert_eq!(Append::to("s", "9").item_id("newer").on_conflict("keep").run(&writer).await.expect("an append"), 4);
    let stale = second().expected_position(5).on_conflict("keep").run(&writer).await;
    assert_eq!(stale.expect("the first one"), 0);
    let stale = Append::to("s", "8").item_id("new").on_conflict("replace").expected_position(2).run(&writer).await;
    assert_eq!(detail(&assert_sqlstate!(stale, "SE007")), json!({"expected": 2, "actual": 5}));
    writer.assert_dense("s", 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_id_stays_used_and_replace_revives_it() {
    let db = Database::create("revive").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    let item = |payload| Append::to("s", payload).item_id("i");
    item("1").run(&writer).await.expect("an append");
    writer.append("s", r#""after""#).await;
    assert_eq!(count(&writer, "session_retract(session_id => 's', item_ids => '{i}')").await, Some(1));
    assert_eq!(shown(&writer, "s").await, [r#"1 "after""#]);

    assert_eq!(item("1").run(&writer).await.expect("a replay"), 0);
    assert_eq!(item("2").on_conflict("keep").run(&writer).await.expect("the first one"), 0);
    assert_eq!(detail(&assert_sqlstate!(item("2").run(&writer).await, "SE010"))["position"], 0);
    let revise = "session_revise(session_id => 's', payload => '2', item_id => 'i')";
    assert_sqlstate!(refused(&writer, revise).await, "SE011");
    assert_eq!(shown(&writer, "s").await, [r#"1 "after""#]);
    writer.assert_dense("s", 3).await;

    assert_eq!(item("2").on_conflict("replace").run(&writer).await.expect("a revival"), 0);
    assert_eq!(shown(&writer, "s").await, ["0 2", r#"1 "after""#]);
    assert_eq!(count(&writer, "session_retract(session_id => 's', from_target => 0)").await, Some(2));
    assert_eq!(shown(&writer, "s").await, Vec::<String>::new());
    // The content that it had is no replay: it is not shown any more.
    assert_eq!(item("2").on_conflict("replace").run(&writer).await.expect("a revival"), 0);
    assert_eq!(shown(&writer, "s").await, ["0 2"]);
    assert_eq!(ops(&writer, "s").await, ["append", "append", "retract 0", "revise 0", "retract_from 0", "revise 0"]);
    writer.assert_dense("s", 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_tells_what_became_of_each_element() {
    let db = Database::create("batch_outcomes").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    for (payload, item_id) in [("1", "a"), ("2", "b"), ("3", "gone")] {
        Append::to("s", payload).item_id(item_id).run(&writer).await.expect("an append");
    }
    count(&writer, "session_retract(session_id => 's', item_ids => '{gone}')").await;
    let named = r#"
        {"payload":1,"item_id":"a"},
        {"payload":9,"item_id":"a","on_conflict":"keep"},
        {"payload":8,"item_id":"b","on_conflict":"replace"},
        {"payload":5,"item_id":"new","kind":"event","tag":"t","author":"x","attrs":{"k":1},"kept_from":2},
        {"payload":5,"item_id":"new","kind":"event","tag":"t","author":"x","kept_from":2},
        {"payload":6,"item_id":"new","on_conflict":"keep"},
        {"payload":7,"item_id":"new","kind":"event","tag":"t","author":"x","kept_from":2,"on_conflict":"replace"},
        {"payload":3,"item_id":"gone","on_conflict":"replace"}"#;
    let unnamed =
        r#"{"payload":null,"kind":null,"item_id":null,"tag":null,"author":null,"attrs":null,"kept_from":null}"#;
    let batch = |items: &str| {
        format!(
            "session_append_batch(session_id => 's', items => '[{items}]', expected_position => 4, on_conflict => 'error',
             on_missing => 'error', agent_id => '', lease => null)"
        )
    };
    let answers = rows(&writer, &batch(&format!("{named},{unnamed}"))).await;
    let told: Vec<Value> =
        answers.iter().map(|row| json!([row["ordinal"], row["position"], row["item_id"], row["outcome"]])).collect();
    assert_eq!(
        json!(told),
        json!([
            [0, 0, "a", "replayed"],
            [1, 0, "a", "kept"],
            [2, 1, "b", "revised"],
            [3, 5, "new", "appended"],
            [4, 5, "new", "replayed"],
            [5, 5, "new", "kept"],
            [6, 5, "new", "revised"],
            [7, 2, "gone", "revised"],
            [8, 8, null, "appended"]
        ])
    );
    let ops = ops(&writer, "s").await;
    assert_eq!(ops[4..], ["revise 1", "append 2", "revise 5", "revise 2", "append"]);
    assert_eq!(shown(&writer, "s").await, ["0 1", "1 8", "2 3", "5 7", "8 null"]);
    // Each row tells the digest of the entry that its content stands in, and when the item was first written.
    let log = rows(&writer, "session_log(session_id => 's')").await;
    let contents = [0, 0, 4, 5, 5, 5, 6, 7, 8];
    for (row, content) in answers.iter().zip(contents) {
        let position = row["position"].as_u64().expect("a position") as usize;
        assert_eq!(
            (&row["digest"], &row["created_at"]),
            (&log[content]["digest"], &log[position]["created_at"]),
            "{row}"
        );
    }
    writer.assert_dense("s", 9).await;

    // The same again writes nothing, so that it does not matter which position is expected.
    let again = rows(&writer, &batch(named)).await;
    let outcomes: Vec<Value> = again.iter().map(|row| row["outcome"].clone()).collect();
    assert_eq!(
        json!(outcomes),
        json!(["replayed", "kept", "replayed", "replayed", "replayed", "kept", "replayed", "replayed"])
    );
    let places = |rows: &[Value]| -> Vec<Value> { rows.iter().map(|row| row["position"].clone()).collect() };
    assert_eq!(places(&again), places(&answers[..8]));
    writer.assert_dense("s", 9).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_written_whole_or_not_at_all() {
    let db = Database::create("batch_whole").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    Append::to("s", "1").item_id("a").run(&writer).await.expect("an append");
    for (items, expected, code) in [
        (r#"[{"payload":2},{"payload":3,"item_id":"a"}]"#, None::<i64>, "SE010"),
        (r#"[{"payload":2,"item_id":"b"},{"payload":3,"item_id":"b"}]"#, None, "SE010"),
        (r#"[{"payload":2},{"payload":3}]"#, Some(0), "SE007"),
        (r#"[{"payload":2},{"payload":3}]"#, Some(2), "SE007"),
        (r#"[{"payload":1,"item_id":"a"},{"payload":3}]"#, Some(0), "SE007"),
        (r#"[{"payload":2},{"payload":3,"kept_from":3}]"#, None, "SE001"),
        (r#"[{"payload":2},{"payload":3,"kind":""}]"#, None, "SE001"),
    ] {
        let sql = "select * from agent_sessions.session_append_batch(
            session_id => 's', items => $1::text::json, expected_position => $2::bigint)";
        let parameters: &[&(dyn ToSql + Sync)] = &[&items, &expected];
        let error = assert_sqlstate!(writer.query(sql, parameters).await, code);
        if code == "SE007" {
            assert_eq!(detail(&error), json!({"expected": expected, "actual": 1}));
        }
        writer.assert_dense("s", 1).await;
    }
    let replays = "session_append_batch(session_id => 's', items => '[{\"payload\":1,\"item_id\":\"a\"}]', expected_position => 0)";
    assert_eq!(rows(&writer, replays).await[0]["outcome"], "replayed");
    let mixed = r#"session_append_batch(session_id => 's', expected_position => 1,
        items => '[{"payload":1,"item_id":"a"},{"payload":2},{"payload":3,"kept_from":2}]')"#;
    let positions: Vec<Value> = rows(&writer, mixed).await.iter().map(|row| row["position"].clone()).collect();
    assert_eq!(json!(positions), json!([0, 1, 2]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revision_gives_an_item_new_content_in_its_place() {
    let db = Database::create("revise").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    Append::to("s", "1").item_id("i").kind("k").tag("t").author("a").attrs(r#"{"x": 1}"#).run(&writer).await.unwrap();
    writer.append("s", "2").await;
    let before = rows(&writer, "session_history(session_id => 's')").await;

    let all = "session_revise(session_id => 's', payload => '10', target => 0, item_id => null, kind => 'k',
        attrs => '{\"x\": 2}', expected_position => 2, agent_id => '', lease => null)";
    assert_eq!(count(&writer, all).await, Some(2));
    let after = rows(&writer, "session_history(session_id => 's')").await;
    let mut expected = before.clone();
    expected[0]["payload"] = json!(10);
    expected[0]["attrs"] = json!({"x": 2});
    expected[0]["revised_at_position"] = json!(2);
    expected[0]["digest"] = rows(&writer, "session_log(session_id => 's', after => 1)").await[0]["digest"].clone();
    assert_ne!(expected[0]["digest"], before[0]["digest"]);
    assert_eq!(after, expected);

    // attrs that are not given stay.
    assert_eq!(count(&writer, "session_revise(session_id => 's', payload => '11', item_id => 'i')").await, Some(3));
    assert_eq!(rows(&writer, "session_history(session_id => 's')").await[0]["attrs"], json!({"x": 2}));
    // The same bytes as now write nothing and name the entry that they stand in.
    for same in [
        "session_revise(session_id => 's', payload => '11', target => 0)",
        "session_revise(session_id => 's', payload => '11', item_id => 'i', attrs => '{\"x\":2}', kind => 'k')",
        "session_revise(session_id => 's', payload => '11', item_id => 'i', expected_position => 0)",
    ] {
        assert_eq!(count(&writer, same).await, Some(3), "{same}");
    }
    assert_eq!(count(&writer, "session_revise(session_id => 's', payload => '2', target => 1)").await, Some(1));
    writer.assert_dense("s", 4).await;
    assert_eq!(count(&writer, "session_revise(session_id => 's', payload => ' 11', target => 0)").await, Some(4));
    assert_eq!(
        count(&writer, "session_revise(session_id => 's', payload => ' 11', target => 0, attrs => '{}')").await,
        Some(5)
    );
    assert_eq!(count(&writer, "session_revise(session_id => 's', payload => '1', target => 0)").await, Some(6));
    assert_eq!(ops(&writer, "s").await[2..], ["revise 0"; 5]);

    let stale =
        refused(&writer, "session_revise(session_id => 's', payload => '12', target => 0, expected_position => 6)")
            .await;
    assert_eq!(detail(&assert_sqlstate!(stale, "SE007")), json!({"expected": 6, "actual": 7}));
    for absent in [
        "session_revise(session_id => 's', payload => '12', target => 0, kind => 'message')",
        "session_revise(session_id => 's', payload => '1', target => 0, kind => 'message')",
        "session_revise(session_id => 's', payload => '12', item_id => 'absent')",
        "session_revise(session_id => 's', payload => '12', target => 7)",
        "session_revise(session_id => 's', payload => '12', target => 2)",
    ] {
        let error = assert_sqlstate!(refused(&writer, absent).await, "SE011");
        assert!(detail(&error)["reason"].is_string(), "{absent}");
    }
    writer.assert_dense("s", 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_item_is_open_until_a_revision_closes_it() {
    let db = Database::create("open").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    let open = "session_append(session_id => 's', payload => '\"\"', item_id => 'i', open => true)";
    assert_eq!(count(&writer, open).await, Some(0));
    assert_eq!(count(&writer, "session_append(session_id => 's', payload => '1', open => null)").await, Some(1));
    let is_open =
        async |position: usize| rows(&writer, "session_history(session_id => 's')").await[position]["open"].clone();
    assert_eq!((is_open(0).await, is_open(1).await), (json!(true), json!(false)));
    let live = "select open from agent_sessions.live_item where session_id = 's' order by position limit 1";
    assert!(writer.value::<bool>(live, &[]).await);
    // Closing it with the bytes that it was opened with is a change.
    assert_eq!(count(&writer, "session_revise(session_id => 's', payload => '\"\"', item_id => 'i')").await, Some(2));
    assert_eq!((is_open(0).await, is_open(1).await), (json!(false), json!(false)));
    assert_eq!(count(&writer, "session_revise(session_id => 's', payload => '\"\"', item_id => 'i')").await, Some(2));
    assert_eq!(ops(&writer, "s").await, ["open", "append", "revise 0"]);

    assert_eq!(count(&writer, "session_append(session_id => 's', payload => '3', open => true)").await, Some(3));
    assert_eq!(count(&writer, "session_retract(session_id => 's', targets => '{3}')").await, Some(1));
    assert_eq!(shown(&writer, "s").await, [r#"0 """#, "1 1"]);
    writer.assert_dense("s", 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retract_takes_items_out_by_position_by_id_or_from_one_on() {
    let db = Database::create("retract").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    for number in 0..8 {
        Append::to("s", &number.to_string()).item_id(&format!("i{number}")).run(&writer).await.expect("an append");
    }
    let all = "session_retract(session_id => 's', targets => '{1}', item_ids => '{i3,i1}', from_target => null,
        expected_position => 8, on_missing => 'error', agent_id => '', lease => null)";
    assert_eq!(count(&writer, all).await, Some(2));
    assert_eq!(shown(&writer, "s").await.join(","), "0 0,2 2,4 4,5 5,6 6,7 7");
    assert_eq!(ops(&writer, "s").await[8..], ["retract 1", "retract 3"]);

    // Twice is once; what is live of a list goes, the rest is not counted.
    for again in ["targets => '{1,3}'", "item_ids => '{i1}'", "targets => '{1}', expected_position => 0"] {
        assert_eq!(count(&writer, &format!("session_retract(session_id => 's', {again})")).await, Some(0), "{again}");
    }
    writer.assert_dense("s", 10).await;
    assert_eq!(count(&writer, "session_retract(session_id => 's', targets => '{1,2}')").await, Some(1));
    assert_eq!(ops(&writer, "s").await[10..], ["retract 2"]);

    assert_eq!(
        count(&writer, "session_retract(session_id => 's', from_target => 5, expected_position => 11)").await,
        Some(3)
    );
    assert_eq!(ops(&writer, "s").await[11..], ["retract_from 5"], "one entry");
    assert_eq!(count(&writer, "session_retract(session_id => 's', from_target => 5)").await, Some(0));
    // What comes later is not of the range.
    assert_eq!(writer.append("s", "12").await, 12);
    assert_eq!(shown(&writer, "s").await.join(","), "0 0,4 4,12 12");
    assert_eq!(count(&writer, "session_retract(session_id => 's', from_target => 1)").await, Some(2));
    assert_eq!(shown(&writer, "s").await.join(","), "0 0");
    assert_eq!(count(&writer, "session_retract(session_id => 's', from_target => 0)").await, Some(1));
    assert_eq!(count(&writer, "session_retract(session_id => 's', from_target => 99)").await, Some(0));
    writer.assert_dense("s", 15).await;

    for absent in ["targets => '{0,99}'", "targets => '{8}'", "item_ids => '{i0,absent}'"] {
        assert_sqlstate!(refused(&writer, &format!("session_retract(session_id => 's', {absent})")).await, "SE011");
    }
    writer.append("s", "15").await;
    for (stale, retract) in [(15, "targets => '{15}'"), (17, "from_target => 15")] {
        let call = format!("session_retract(session_id => 's', {retract}, expected_position => {stale})");
        let error = assert_sqlstate!(refused(&writer, &call).await, "SE007");
        assert_eq!(detail(&error), json!({"expected": stale, "actual": 16}));
    }
    let both = "session_retract(session_id => 's', targets => '{15}', from_target => 15)";
    assert_eq!(detail(&assert_sqlstate!(refused(&writer, both).await, "SE001"))["argument"], "from_target");
    writer.assert_dense("s", 16).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_takes_the_newest_live_item() {
    let db = Database::create("pop").await;
    let writer = db.writer().await;
    appended(&writer, "s", &["1", "2", "3"]).await;
    count(&writer, "session_revise(session_id => 's', payload => '30', target => 2)").await;
    count(&writer, "session_retract(session_id => 's', targets => '{1}')").await;
    let newest = rows(&writer, "session_history(session_id => 's', newest_first => true, max_rows => 1)").await;
    assert_eq!(rows(&writer, "session_pop(session_id => 's', agent_id => '', lease => null)").await, newest);
    assert_eq!((&newest[0]["position"], &newest[0]["payload"]), (&json!(2), &json!(30)));
    assert_eq!(rows(&writer, "session_pop(session_id => 's')").await[0]["payload"], json!(1));
    assert_eq!(rows(&writer, "session_pop(session_id => 's')").await, Vec::<Value>::new());
    assert_eq!(ops(&writer, "s").await[3..], ["revise 2", "retract 1", "retract 2", "retract 0"]);
    writer.assert_dense("s", 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_keeps_where_its_tail_begins() {
    let db = Database::create("kept_from").await;
    let writer = db.writer().await;
    appended(&writer, "s", &["1", "2"]).await;
    assert_eq!(Append::to("s", r#""so far""#).kind("summary").kept_from(1).run(&writer).await.expect("a summary"), 2);
    assert_eq!(Append::to("s", r#""all""#).kind("summary").kept_from(3).run(&writer).await.expect("a summary"), 3);
    assert_eq!(ops(&writer, "s").await, ["append", "append", "append 1", "append 3"]);
    // A summary is about no earlier entry: it changes nothing of what is live.
    assert_eq!(shown(&writer, "s").await, ["0 1", "1 2", r#"2 "so far""#, r#"3 "all""#]);
    let later = Append::to("s", "1").kept_from(5).run(&writer).await;
    assert_eq!(detail(&assert_sqlstate!(later, "SE001"))["argument"], "kept_from");
    writer.assert_dense("s", 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_count_the_live_items() {
    let db = Database::create("stats").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    assert_eq!(rows(&writer, "session_stats(session_id => 's')").await, Vec::<Value>::new());
    for (payload, kind) in [("1", "message"), (r#""é""#, "tool"), ("[1, 2]", "message"), ("7", "gone"), ("8", "tool")]
    {
        Append::to("s", payload).kind(kind).run(&writer).await.expect("an append");
    }
    count(&writer, "session_revise(session_id => 's', payload => '12345', target => 0)").await;
    count(&writer, "session_retract(session_id => 's', targets => '{3}')").await;
    let stats = rows(&writer, "session_stats(session_id => 's', agent_id => '', tenant => '')").await;
    let counts: Vec<Value> = stats.iter().map(|row| json!([row["kind"], row["items"], row["bytes"]])).collect();
    assert_eq!(json!(counts), json!([["message", 2, 5 + 6], ["tool", 2, 4 + 1]]));
    let log = rows(&writer, "session_log(session_id => 's')").await;
    let times: Vec<Value> = stats.iter().map(|row| json!([row["first_at"], row["last_at"]])).collect();
    let at = |position: usize| log[position]["created_at"].clone();
    assert_eq!(json!(times), json!([[at(0), at(2)], [at(1), at(4)]]));
    assert_eq!(rows(&writer, "session_stats(session_id => 's', tenant => 'other')").await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_view_shows_the_live_items_of_all_sessions() {
    let db = Database::create("live_item").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    writer.run("select session_id from agent_sessions.session_create(session_id => 'a', owner => 'ines')").await;
    appended(&writer, "b", &["1", "2"]).await;
    writer.append("a", "3").await;
    count(&writer, "session_retract(session_id => 'b', targets => '{0}')").await;
    count(&writer, "session_revise(session_id => 'a', payload => '30', target => 0)").await;
    writer.run("begin; select agent_sessions.tenant_use('blue')").await;
    appended(&writer, "blue", &["4"]).await;
    writer.commit().await;
    let all =
        "select string_agg(concat_ws(' ', session_id, agent_id, owner, position, payload, revised_at_position), ','
        order by session_id, position) from agent_sessions.live_item";
    assert_eq!(reader.value::<String>(all, &[]).await, "a  ines 0 30 1,b  1 2");
    reader.run("set agent_sessions.tenant = 'blue'").await;
    assert_eq!(reader.value::<String>(all, &[]).await, "blue  0 4");
}

/// A sequence that is the same in every run (SplitMix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

const KINDS: [&str; 3] = ["message", "tool", "event"];
const TAGS: [&str; 3] = ["red", "green", "blue"];

/// An item as the model knows it.
#[derive(Clone, Debug)]
struct Known {
    position: i64,
    op: &'static str,
    kind: &'static str,
    item_id: Option<String>,
    tag: Option<&'static str>,
    payload: String,
    attrs: Option<usize>,
    revised_at: Option<i64>,
    live: bool,
}

/// What the readers show of an item.
#[derive(Debug, PartialEq)]
struct Shown {
    position: i64,
    op: String,
    kind: String,
    item_id: Option<String>,
    tag: Option<String>,
    payload: String,
    attrs: Option<String>,
    revised_at: Option<i64>,
    open: bool,
}

impl Known {
    fn shown(&self) -> Shown {
        Shown {
            position: self.position,
            op: self.op.to_owned(),
            kind: self.kind.to_owned(),
            item_id: self.item_id.clone(),
            tag: self.tag.map(str::to_owned),
            payload: self.payload.clone(),
            attrs: self.attrs.map(attrs),
            revised_at: self.revised_at,
            open: self.op == "open" && self.revised_at.is_none(),
        }
    }
}

fn attrs(number: usize) -> String {
    format!("{{\"n\": {number}}}")
}

/// The arguments of session_history; None is not given.
#[derive(Debug, Default)]
struct Filter {
    after: Option<i64>,
    before: Option<i64>,
    max_rows: Option<i32>,
    newest_first: Option<bool>,
    kinds: Option<Vec<String>>,
    tags: Option<Vec<String>>,
    item_ids: Option<Vec<String>>,
    attrs: Option<String>,
}

const HISTORY: &str = "select position, op, kind, item_id, tag, payload::text, attrs::text, revised_at_position, open
    from agent_sessions.session_history(session_id => 'model', after => $1::bigint, before => $2::bigint,
      max_rows => $3::int, newest_first => $4::boolean, kinds => $5::text[], tags => $6::text[],
      item_ids => $7::text[], attrs => $8::text::jsonb)";
const LOG: &str = "select position, op, target from agent_sessions.session_log(session_id => 'model',
    after => $1::bigint, before => $2::bigint, max_rows => $3::int, newest_first => $4::boolean)";
const LIVE: &str = "select position, op, kind, item_id, tag, payload::text, attrs::text, revised_at_position, open
    from agent_sessions.live_item where session_id = 'model' order by position";

/// A session in memory, without an index, a trigger or a clever query.
struct Model {
    random: Random,
    items: Vec<Known>,
    entries: Vec<(&'static str, Option<i64>)>,
    said: usize,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self { random: Random(seed), items: Vec::new(), entries: Vec::new(), said: 0 }
    }

    fn next_position(&self) -> i64 {
        self.entries.len() as i64
    }

    fn payload(&mut self) -> String {
        self.said += 1;
        format!("{{\"said\":{},\"n\":{}.0}}", self.said, self.random.below(9))
    }

    /// The place in `items` of one that is live, or not.
    fn any(&mut self, live: bool) -> Option<usize> {
        let places: Vec<usize> = (0..self.items.len()).filter(|place| self.items[*place].live == live).collect();
        (!places.is_empty()).then(|| self.random.pick(&places))
    }

    async fn append(&mut self, writer: &Connection) {
        let known = Known {
            position: self.next_position(),
            op: if self.random.one_in(6) { "open" } else { "append" },
            kind: self.random.pick(&KINDS),
            item_id: self.random.one_in(2).then(|| format!("item {}", self.items.len())),
            tag: self.random.one_in(2).then(|| self.random.pick(&TAGS)),
            payload: self.payload(),
            attrs: self.random.one_in(2).then(|| self.random.below(3)),
            revised_at: None,
            live: true,
        };
        let sql =
            "select agent_sessions.session_append(session_id => 'model', payload => $1::text::json, kind => $2::text,
            item_id => $3::text, tag => $4::text, attrs => $5::text::jsonb, open => $6::boolean)";
        let parameters: &[&(dyn ToSql + Sync)] =
            &[&known.payload, &known.kind, &known.item_id, &known.tag, &known.attrs.map(attrs), &(known.op == "open")];
        assert_eq!(writer.value::<i64>(sql, parameters).await, known.position);
        self.entries.push((known.op, None));
        self.items.push(known);
    }

    async fn append_batch(&mut self, writer: &Connection) {
        let mut elements = Vec::new();
        for _ in 0..1 + self.random.below(5) {
            let known = Known {
                position: self.next_position(),
                op: "append",
                kind: self.random.pick(&KINDS),
                item_id: self.random.one_in(2).then(|| format!("item {}", self.items.len())),
                tag: self.random.one_in(2).then(|| self.random.pick(&TAGS)),
                payload: self.payload(),
                attrs: self.random.one_in(2).then(|| self.random.below(3)),
                revised_at: None,
                live: true,
            };
            let mut element = format!("{{\"kind\":\"{}\",\"payload\":{}", known.kind, known.payload);
            for (key, value) in [("item_id", known.item_id.as_deref()), ("tag", known.tag)] {
                if let Some(value) = value {
                    write!(element, ",\"{key}\":\"{value}\"").expect("a String takes all");
                }
            }
            if let Some(number) = known.attrs {
                write!(element, ",\"attrs\":{}", attrs(number)).expect("a String takes all");
            }
            elements.push(element + "}");
            self.entries.push(("append", None));
            self.items.push(known);
        }
        let items = format!("[{}]", elements.join(","));
        let sql = "select max(position) from agent_sessions.session_append_batch(
            session_id => 'model', items => $1::text::json)";
        assert_eq!(writer.value::<i64>(sql, &[&items]).await, self.next_position() - 1);
    }

    async fn revise(&mut self, writer: &Connection) {
        let Some(place) = self.any(true) else { return };
        let (payload, position) = (self.payload(), self.next_position());
        let number = self.random.one_in(3).then(|| self.random.below(3));
        let item = &mut self.items[place];
        let (target, item_id) =
            if item.item_id.is_some() { (None, item.item_id.clone()) } else { (Some(item.position), None) };
        let sql = "select agent_sessions.session_revise(session_id => 'model', payload => $1::text::json,
            target => $2::bigint, item_id => $3::text, attrs => $4::text::jsonb)";
        let parameters: &[&(dyn ToSql + Sync)] = &[&payload, &target, &item_id, &number.map(attrs)];
        assert_eq!(writer.value::<i64>(sql, parameters).await, position);
        (item.payload, item.revised_at, item.attrs) = (payload, Some(position), number.or(item.attrs));
        self.entries.push(("revise", Some(item.position)));
    }

    /// A retracted item that has an id comes back by the id's replacement.
    async fn revive(&mut self, writer: &Connection) {
        let Some(place) = self.any(false) else { return };
        let (payload, position) = (self.payload(), self.next_position());
        let item = &mut self.items[place];
        let Some(item_id) = &item.item_id else { return };
        let sql =
            "select agent_sessions.session_append(session_id => 'model', payload => $1::text::json, kind => $2::text,
            item_id => $3::text, tag => $4::text, on_conflict => 'replace')";
        assert_eq!(writer.value::<i64>(sql, &[&payload, &item.kind, item_id, &item.tag]).await, item.position);
        (item.payload, item.revised_at, item.live) = (payload, Some(position), true);
        self.entries.push(("revise", Some(item.position)));
    }

    async fn retract(&mut self, writer: &Connection) {
        let mut places: Vec<usize> = (0..1 + self.random.below(3)).filter_map(|_| self.any(true)).collect();
        places.extend(self.any(false));
        let (ids, targets): (Vec<usize>, Vec<usize>) =
            places.iter().partition(|place| self.items[**place].item_id.is_some());
        let targets: Vec<i64> = targets.iter().map(|place| self.items[*place].position).collect();
        let ids: Vec<&String> = ids.iter().filter_map(|place| self.items[*place].item_id.as_ref()).collect();
        let sql = "select agent_sessions.session_retract(
            session_id => 'model', targets => $1::bigint[], item_ids => $2::text[])";
        let removed: i64 = writer.value(sql, &[&targets, &ids]).await;
        places.sort_unstable();
        places.dedup();
        places.retain(|place| self.items[*place].live);
        assert_eq!(removed, places.len() as i64);
        for place in places {
            self.items[place].live = false;
            self.entries.push(("retract", Some(self.items[place].position)));
        }
    }

    async fn retract_from(&mut self, writer: &Connection) {
        // Near the end, or little would be left.
        let target = (self.next_position() - 1 - self.random.below(6) as i64).max(0);
        let sql = "select agent_sessions.session_retract(session_id => 'model', from_target => $1::bigint)";
        let removed: i64 = writer.value(sql, &[&target]).await;
        let range: Vec<&mut Known> =
            self.items.iter_mut().filter(|item| item.live && item.position >= target).collect();
        assert_eq!(removed, range.len() as i64);
        if !range.is_empty() {
            self.entries.push(("retract_from", Some(target)));
        }
        for item in range {
            item.live = false;
        }
    }

    async fn pop(&mut self, writer: &Connection) {
        let sql = "select (select position from agent_sessions.session_pop(session_id => 'model'))";
        let popped: Option<i64> = writer.value(sql, &[]).await;
        let newest = self.items.iter_mut().rev().find(|item| item.live);
        assert_eq!(popped, newest.as_ref().map(|item| item.position));
        if let Some(item) = newest {
            item.live = false;
            self.entries.push(("retract", Some(item.position)));
        }
    }

    /// A filter that gives those arguments whose bits are set.
    fn filter(&mut self, given: usize) -> Filter {
        let end = self.entries.len() + 2;
        let ids: Vec<String> =
            self.items.iter().filter_map(|item| item.item_id.clone()).chain(["absent".to_owned()]).collect();
        let mut filter = Filter::default();
        let random = &mut self.random;
        let mut some = |from: &[String], most: usize| -> Vec<String> {
            (0..random.below(most + 1)).map(|_| random.pick(from)).collect()
        };
        let words = |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
        if given & 1 != 0 {
            filter.kinds = Some(some(&words(&["message", "tool", "absent"]), 3));
        }
        if given & 2 != 0 {
            filter.tags = Some(some(&words(&["red", "green", "absent"]), 3));
        }
        if given & 4 != 0 {
            filter.item_ids = Some(some(&ids, 8));
        }
        if given & 8 != 0 {
            filter.attrs = Some(random.pick(&[attrs(0), attrs(1), "{}".to_owned()]));
        }
        if given & 16 != 0 {
            filter.after = Some(random.below(end) as i64 - 1);
        }
        if given & 32 != 0 {
            filter.before = Some(random.below(end) as i64);
        }
        if given & 64 != 0 {
            filter.max_rows = Some(random.below(6) as i32);
        }
        if given & 128 != 0 {
            filter.newest_first = Some(random.one_in(2) || given & 64 != 0);
        }
        filter
    }

    fn history(&self, filter: &Filter) -> Vec<Shown> {
        let among = |list: &Option<Vec<String>>, word: Option<&str>| {
            list.as_ref().is_none_or(|list| word.is_some_and(|word| list.iter().any(|one| one == word)))
        };
        let mut shown: Vec<Shown> = self
            .items
            .iter()
            .filter(|item| {
                item.live
                    && filter.after.is_none_or(|after| item.position > after)
                    && filter.before.is_none_or(|before| item.position < before)
                    && among(&filter.kinds, Some(item.kind))
                    && among(&filter.tags, item.tag)
                    && among(&filter.item_ids, item.item_id.as_deref())
                    && filter.attrs.as_ref().is_none_or(|wanted| {
                        item.attrs.is_some_and(|number| wanted == "{}" || *wanted == attrs(number))
                    })
            })
            .map(Known::shown)
            .collect();
        if filter.newest_first == Some(true) {
            shown.reverse();
        }
        shown.truncate(filter.max_rows.map_or(usize::MAX, |rows| rows as usize));
        shown
    }

    async fn compare_history(&mut self, reader: &Connection, given: usize) {
        let filter = self.filter(given);
        let parameters: &[&(dyn ToSql + Sync)] = &[
            &filter.after,
            &filter.before,
            &filter.max_rows,
            &filter.newest_first,
            &filter.kinds,
            &filter.tags,
            &filter.item_ids,
            &filter.attrs,
        ];
        assert_eq!(items(reader, HISTORY, parameters).await, self.history(&filter), "{filter:?}");
    }

    async fn compare_log(&mut self, reader: &Connection, given: usize) {
        let filter = self.filter(given << 4);
        let parameters: &[&(dyn ToSql + Sync)] =
            &[&filter.after, &filter.before, &filter.max_rows, &filter.newest_first];
        let rows = reader.query(LOG, parameters).await.expect("a log");
        let log: Vec<(i64, String, Option<i64>)> =
            rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
        let mut expected: Vec<(i64, String, Option<i64>)> = (0..)
            .zip(&self.entries)
            .map(|(position, (op, target))| (position, (*op).to_owned(), *target))
            .filter(|(position, ..)| filter.after.is_none_or(|after| *position > after))
            .filter(|(position, ..)| filter.before.is_none_or(|before| *position < before))
            .collect();
        if filter.newest_first == Some(true) {
            expected.reverse();
        }
        expected.truncate(filter.max_rows.map_or(usize::MAX, |rows| rows as usize));
        assert_eq!(log, expected, "{filter:?}");
    }

    async fn compare_the_whole(&self, reader: &Connection) {
        assert_eq!(items(reader, LIVE, &[]).await, self.history(&Filter::default()));
        let mut stats: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        for item in self.items.iter().filter(|item| item.live) {
            let kind = stats.entry(item.kind.to_owned()).or_default();
            *kind = (kind.0 + 1, kind.1 + item.payload.len() as i64);
        }
        let sql = "select kind, items, bytes from agent_sessions.session_stats(session_id => 'model')";
        let rows = reader.query(sql, &[]).await.expect("statistics");
        let counted = rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect();
        assert_eq!(stats, counted);
        reader.assert_dense("model", self.next_position()).await;
    }

    async fn compare(&mut self, reader: &Connection) {
        for given in 0..256 {
            self.compare_history(reader, given).await;
        }
        for given in 0..16 {
            self.compare_log(reader, given).await;
        }
        self.compare_the_whole(reader).await;
    }
}

async fn items(reader: &Connection, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<Shown> {
    let rows = reader.query(sql, parameters).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter()
        .map(|row| Shown {
            position: row.get(0),
            op: row.get(1),
            kind: row.get(2),
            item_id: row.get(3),
            tag: row.get(4),
            payload: row.get(5),
            attrs: row.get(6),
            revised_at: row.get(7),
            open: row.get(8),
        })
        .collect()
}

/// Random histories, read with every combination of arguments, against a model that only knows the rules.
#[tokio::test(flavor = "multi_thread")]
async fn readers_agree_with_a_model_of_the_log() {
    let db = Database::create("model").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    for seed in 1..=6 {
        println!("seed {seed}");
        writer.create_session("model").await;
        let mut model = Model::new(seed);
        // Nothing is about an earlier entry: the readers' short way.
        for _ in 0..12 {
            model.append(&writer).await;
        }
        model.append_batch(&writer).await;
        model.compare(&reader).await;
        for _ in 0..60 {
            match model.random.below(12) {
                0..=3 => model.append(&writer).await,
                4 => model.append_batch(&writer).await,
                5..=7 => model.revise(&writer).await,
                8 => model.retract(&writer).await,
                9 => model.retract_from(&writer).await,
                10 => model.pop(&writer).await,
                _ => model.revive(&writer).await,
            }
            let given = model.random.below(256);
            model.compare_history(&reader, given).await;
        }
        for op in ["append", "open", "revise", "retract"] {
            assert!(model.entries.iter().any(|(found, _)| *found == op), "seed {seed} never makes the entry {op}");
        }
        model.compare(&reader).await;
        writer.run("select agent_sessions.session_delete(session_id => 'model')").await;
    }
}
