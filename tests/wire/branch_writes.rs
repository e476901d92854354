//! Writing to a branch: positions go on from the fork, and what it says of inherited items stands in its own log. By
//! functions and by raw SQL alike.

use agent_sessions_tests::{Append, Branch, Connection, Database, Error, assert_sqlstate, detail};
use serde_json::json;

use crate::branches::{ENTRIES, call_of, rows, sample, shown, written_from};

/// The same change by a function and by a raw INSERT, and the entry that it comes to, if it comes to one.
struct Change {
    call: &'static str,
    /// Columns and values, besides the session.
    raw: (&'static str, &'static str),
    entry: Option<&'static str>,
}

/// What can be said in a branch of [`sample`], in this order. Positions 0, 3, 4 and 6 are live there.
const CHANGES: &[Change] = &[
    Change {
        call: "session_append('{s}', '9', item_id => 'own', tag => 't', expected_position => 9)",
        raw: ("position, payload, item_id, tag", "9, '9', 'own', 't'"),
        entry: Some("9 append message own 9"),
    },
    // An inherited item again, and one that was retracted.
    Change {
        call: "session_append('{s}', '0', item_id => 'a', tag => 't', author => 'ann', expected_position => 0)",
        raw: ("payload, item_id, tag, author", "'0', 'a', 't', 'ann'"),
        entry: None,
    },
    Change { call: "session_append('{s}', '1', item_id => 'b')", raw: ("payload, item_id", "'1', 'b'"), entry: None },
    Change {
        call: "session_revise('{s}', '30', item_id => 'd')",
        raw: ("op, target, payload", "'revise', 3, '30'"),
        entry: Some("10 revise 3 30"),
    },
    // The same as it shows, by an inherited revision and by the branch's own.
    Change {
        call: "session_revise('{s}', '20', target => 0)",
        raw: ("op, target, payload", "'revise', 0, '20'"),
        entry: None,
    },
    Change {
        call: "session_revise('{s}', '30', target => 3)",
        raw: ("op, target, payload", "'revise', 3, '30'"),
        entry: None,
    },
    Change {
        call: "session_revise('{s}', '\"said\"', item_id => 'o', expected_position => 11)",
        raw: ("position, op, target, payload", "11, 'revise', 4, '\"said\"'"),
        entry: Some("11 revise 4 \"said\""),
    },
    Change {
        call: "session_append('{s}', '\"so far\"', kind => 'summary', kept_from => 3)",
        raw: ("kind, target, payload", "'summary', 3, '\"so far\"'"),
        entry: Some("12 append 3 summary \"so far\""),
    },
    Change {
        call: "session_retract('{s}', item_ids => '{a}')",
        raw: ("op, target", "'retract', 0"),
        entry: Some("13 retract 0"),
    },
    // Retracted by the branch, and by the source before the fork.
    Change { call: "session_retract('{s}', targets => '{0}')", raw: ("op, target", "'retract', 0"), entry: None },
    Change { call: "session_retract('{s}', targets => '{1}')", raw: ("op, target", "'retract', 1"), entry: None },
    Change {
        call: "session_append('{s}', '\"\"', open => true)",
        raw: ("op, payload", "'open', '\"\"'"),
        entry: Some("14 open message \"\""),
    },
    Change {
        call: "session_retract('{s}', from_target => 4)",
        raw: ("op, target", "'retract_from', 4"),
        entry: Some("15 retract_from 4"),
    },
    Change { call: "session_retract('{s}', from_target => 4)", raw: ("op, target", "'retract_from', 4"), entry: None },
    Change {
        call: "session_append('{s}', '40', item_id => 'own', tag => 't', on_conflict => 'replace')",
        // A revision by raw SQL brings back what was retracted, too.
        raw: ("op, target, payload", "'revise', 9, '40'"),
        entry: Some("16 revise 9 40"),
    },
];

/// What a branch of [`sample`] shows after [`CHANGES`].
const SHOWN: [&str; 2] = ["3 30", "9 40"];

async fn insert(connection: &Connection, session: &str, columns: &str, values: &str) -> Result<u64, Error> {
    let sql = format!(
        "insert into agent_sessions.session_item (sid, {columns})
         select sid, {values} from agent_sessions.session where session_id = $1::text"
    );
    connection.execute(&sql, &[&session]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_inherited_items_stand_in_the_branch_by_functions_and_by_raw_sql() {
    let db = Database::create("branch_changes").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.branch("s", "calls").await;
    writer.branch("s", "raw").await;
    // Through a branch without entries, and one with some.
    writer.branch("s", "between").await;
    writer.branch("between", "below").await;
    let source = writer.log("s").await;
    let mut expected = Vec::new();
    for Change { call, raw: (columns, values), entry } in CHANGES {
        for session in ["calls", "below"] {
            call_of(&writer, call, session).await;
        }
        let inserted =
            insert(&writer, "raw", columns, values).await.unwrap_or_else(|error| panic!("{call}: {error:?}"));
        assert_eq!(inserted, u64::from(entry.is_some()), "{call}");
        expected.extend(*entry);
        for session in ["calls", "raw", "below"] {
            assert_eq!(written_from(&writer, session, ENTRIES).await, expected, "{session} after {call}");
        }
        assert_eq!(shown(&writer, "raw").await, shown(&writer, "calls").await, "after {call}");
    }
    let next = ENTRIES + expected.len() as i64;
    for session in ["calls", "raw", "below"] {
        assert_eq!(shown(&writer, session).await, SHOWN, "{session}");
        writer.assert_dense(session, next).await;
    }
    assert_eq!(writer.log("s").await, source);
    assert_eq!(shown(&writer, "between").await, shown(&writer, "s").await);
    // Not one row was copied.
    let first =
        "select count(*), min(position) from agent_sessions.session_item i join agent_sessions.session s using (sid)
                 where s.session_id = $1::text";
    for (session, entries) in [("calls", expected.len() as i64), ("below", expected.len() as i64), ("s", ENTRIES)] {
        let row = writer.query_one(first, &[&session]).await.expect("its rows");
        let wanted = if session == "s" { 0 } else { ENTRIES };
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (entries, wanted), "{session}");
    }
    // All rows of one statement, each knowing the ones before.
    writer.branch("s", "at once").await;
    let at_once = "insert into agent_sessions.session_item (sid, op, kind, item_id, tag, target, payload)
        select b.sid, l.op, l.kind, l.item_id, l.tag, l.target, l.payload
        from agent_sessions.session b, agent_sessions.session_log('raw', after => $1::bigint - 1) l
        where b.session_id = 'at once' order by l.position";
    assert_eq!(writer.execute(at_once, &[&ENTRIES]).await.expect("the entries"), expected.len() as u64);
    assert_eq!(written_from(&writer, "at once", 0).await, written_from(&writer, "raw", 0).await);
    writer.assert_dense("at once", next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_branch_cannot_say_is_refused_by_functions_and_by_raw_sql() {
    let db = Database::create("branch_refusals").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("b").at_target(5)).await;
    writer.append("b", "\"own\"").await;
    let before = rows(&db).await;
    for (call, columns, values, code, told) in [
        // Inherited ids are taken, wherever they stand.
        (
            "session_append('{s}', '5', item_id => 'd', tag => 't')",
            "payload, item_id, tag",
            "'5', 'd', 't'",
            "SE010",
            json!({"item_id": "d", "position": 3}),
        ),
        (
            "session_append('{s}', '1', item_id => 'b', kind => 'other')",
            "payload, item_id, kind",
            "'1', 'b', 'other'",
            "SE010",
            json!({"item_id": "b", "position": 1}),
        ),
        (
            "session_append('{s}', '5', expected_position => 6)",
            "position, payload",
            "6, '5'",
            "SE007",
            json!({"expected": 6, "actual": 7}),
        ),
        (
            "session_append('{s}', '5', expected_position => 9)",
            "position, payload",
            "9, '5'",
            "SE007",
            json!({"expected": 9, "actual": 7}),
        ),
        (
            "session_retract('{s}', targets => '{3}', expected_position => 0)",
            "position, op, target",
            "0, 'retract', 3",
            "SE007",
            json!({"expected": 0, "actual": 7}),
        ),
    ] {
        let by_call = writer.batch_execute(&format!("select agent_sessions.{}", call.replace("{s}", "b"))).await;
        let raw = insert(&writer, "b", columns, values).await.map(|_| ());
        for refused in [by_call, raw] {
            let error = assert_sqlstate!(refused, code);
            assert_eq!(detail(&error), told, "{call}");
        }
    }
    // Entries that are no items, and those that the source has written behind the fork.
    for target in [2, 5, 7, 8, 9] {
        let calls = [
            format!("session_revise('{{s}}', '1', target => {target})"),
            format!("session_retract('{{s}}', targets => array[{target}]::bigint[])"),
            format!("session_delta('{{s}}', target => {target}, chunk_no => 0, chunk => 'x')"),
        ];
        for call in calls {
            let sql = format!("select agent_sessions.{}", call.replace("{s}", "b"));
            let error = assert_sqlstate!(writer.batch_execute(&sql).await, "SE011");
            assert_eq!(detail(&error)["target"], json!(target), "{call}");
        }
        for op in ["'revise', '1'", "'retract', null"] {
            let values = format!("{target}, {op}");
            assert_sqlstate!(insert(&writer, "b", "target, op, payload", &values).await, "SE011");
        }
    }
    for id in ["late", "unknown"] {
        for call in [
            format!("session_revise('b', '1', item_id => '{id}')"),
            format!("session_retract('b', item_ids => '{{{id}}}')"),
        ] {
            let sql = format!("select agent_sessions.{call}");
            let error = assert_sqlstate!(writer.batch_execute(&sql).await, "SE011");
            assert_eq!(detail(&error)["item_id"], json!(id), "{call}");
        }
    }
    assert_sqlstate!(insert(&writer, "b", "op, target, payload", "'trim', 6, '{}'").await, "SE014");
    assert_eq!(rows(&db).await, before);
    writer.assert_dense("b", 7).await;
}

/// The id of an inherited item is taken in the branch, and the source's later ids are free there.
#[tokio::test(flavor = "multi_thread")]
async fn an_inherited_id_replays_and_a_later_one_of_the_source_is_free() {
    let db = Database::create("branch_replays").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("b").at_target(3)).await;
    writer.branch("b", "c").await;
    let id_a = Append::to("c", "0").item_id("a").tag("t").author("ann");
    assert_eq!(id_a.run(&writer).await.expect("a replay"), 0);
    // Whatever is expected, and even if its lease is lost.
    assert_eq!(id_a.clone().expected_position(77).lease("lost").run(&writer).await.expect("a replay"), 0);
    let other = Append::to("c", "5").item_id("a").tag("t").author("ann");
    let error = assert_sqlstate!(other.run(&writer).await, "SE010");
    assert_eq!(detail(&error), json!({"item_id": "a", "position": 0}));
    assert_eq!(other.clone().on_conflict("keep").run(&writer).await.expect("the first"), 0);
    writer.assert_dense("c", 4).await;

    let batch = r#"[{"payload":3,"item_id":"d","tag":"t"},{"payload":"new","item_id":"n"},{"payload":4,"item_id":"o"},
        {"payload":31,"item_id":"d","tag":"t","on_conflict":"replace"},{"payload":1,"item_id":"b","on_conflict":"keep"}]"#;
    let sql = "select concat_ws(' ', ordinal, position, item_id, outcome)
               from agent_sessions.session_append_batch(session_id => 'c', items => $1::text::json, expected_position => 4)";
    let outcomes: Vec<String> =
        writer.query(sql, &[&batch]).await.expect("a batch").iter().map(|row| row.get(0)).collect();
    assert_eq!(outcomes, ["0 3 d replayed", "1 4 n appended", "2 5 o appended", "3 3 d revised", "4 1 b kept"]);
    assert_eq!(shown(&writer, "c").await, ["0 20", "1 1", "3 31", "4 \"new\"", "5 4"]);
    writer.assert_dense("c", 7).await;

    // The source has used `o` and `late` behind the fork; it and the branch between may use what the branch has used.
    for (session, id, position) in [("b", "late", 4), ("b", "n", 5), ("s", "n", 9), ("b", "o", 6)] {
        let free = Append::to(session, "\"its own\"").item_id(id);
        assert_eq!(free.run(&writer).await.expect("an append"), position, "{session} {id}");
    }
    assert_eq!(shown(&writer, "c").await, ["0 20", "1 1", "3 31", "4 \"new\"", "5 4"]);
    let by_id = "select string_agg(position || ' ' || payload::text, ', ' order by position)
                 from agent_sessions.session_history(session_id => $1::text, item_ids => '{a,n,o,late}')";
    for (session, items) in [
        ("c", "0 20, 4 \"new\", 5 4"),
        ("b", "0 20, 4 \"its own\", 5 \"its own\", 6 \"its own\""),
        ("s", "0 20, 4 \"\", 9 \"its own\""),
    ] {
        assert_eq!(writer.value::<String>(by_id, &[&session]).await, items, "{session}");
    }
}

async fn context(connection: &Connection, session: &str) -> Vec<String> {
    let sql = "select position || ' ' || payload::text from agent_sessions.session_context(session_id => $1::text)";
    connection.query(sql, &[&session]).await.expect("a context").iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_reaches_through_the_branches() {
    let db = Database::create("branch_context").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    assert_eq!(context(&writer, "s").await, ["0 20", "3 3", "4 \"\"", "6 6"]);
    let summary = |session: &'static str, payload: &'static str, kept_from: i64| {
        let writer = &writer;
        async move {
            let summary = Append::to(session, payload).kind("summary").kept_from(kept_from);
            summary.run(writer).await.expect("a summary")
        }
    };
    assert_eq!(summary("s", "\"first\"", 3).await, 9);
    writer.branch("s", "b").await;
    writer.append("b", "10").await;
    // The tail that the source keeps later is not the branch's.
    summary("s", "\"later\"", 10).await;
    assert_eq!(context(&writer, "b").await, ["9 \"first\"", "3 3", "4 \"\"", "6 6", "10 10"]);
    writer.branch("b", "c").await;
    assert_eq!(summary("c", "\"second\"", 4).await, 11);
    assert_eq!(context(&writer, "c").await, ["11 \"second\"", "4 \"\"", "6 6", "10 10"]);
    writer.branch("c", "d").await;
    // A summary may be revised or retracted where it is inherited; the one before then counts again.
    call_of(&writer, "session_revise('{s}', '\"better\"', target => 11)", "d").await;
    assert_eq!(context(&writer, "d").await, ["11 \"better\"", "4 \"\"", "6 6", "10 10"]);
    call_of(&writer, "session_retract('{s}', targets => '{11}')", "d").await;
    assert_eq!(context(&writer, "d").await, ["9 \"first\"", "3 3", "4 \"\"", "6 6", "10 10"]);
    call_of(&writer, "session_retract('{s}', targets => '{9}')", "d").await;
    assert_eq!(context(&writer, "d").await, ["0 20", "3 3", "4 \"\"", "6 6", "10 10"]);
    let few = "select count(*) from agent_sessions.session_context(session_id => $1::text, max_rows => 2)";
    for (session, rows) in [("d", 2), ("c", 3), ("b", 3)] {
        assert_eq!(writer.value::<i64>(few, &[&session]).await, rows, "{session}");
    }
    assert_eq!(context(&writer, "c").await, ["11 \"second\"", "4 \"\"", "6 6", "10 10"]);
    assert_eq!(summary("d", "\"all\"", 0).await, 15);
    assert_eq!(context(&writer, "d").await, ["15 \"all\"", "0 20", "3 3", "4 \"\"", "6 6", "10 10"]);
}

/// Whether the item at position 4 of [`sample`] is open, and its text so far.
async fn streamed(connection: &Connection, session: &str) -> (bool, Option<String>) {
    let sql = "select open, delta_text from agent_sessions.session_history(session_id => $1::text, item_ids => '{o}')";
    let row = connection.query_one(sql, &[&session]).await.expect("the item");
    (row.get(0), row.get(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_item_is_streamed_on_in_each_branch_by_itself() {
    let db = Database::create("branch_open").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    let delta = |session: &'static str, number: i32, chunk: &'static str| {
        let writer = &writer;
        async move {
            let sql = "select agent_sessions.session_delta($1::text, target => 4, chunk_no => $2, chunk => $3)";
            writer.try_value::<i32>(sql, &[&session, &number, &chunk]).await
        }
    };
    let text = |text: &str| (true, Some(text.to_owned()));
    for session in ["b", "c", "d", "e"] {
        writer.branch("s", session).await;
    }
    assert_eq!(delta("s", 0, "of the source").await.expect("a chunk"), 1);
    assert_eq!(streamed(&writer, "b").await, (true, None));
    let error = assert_sqlstate!(delta("b", 1, "x").await, "SE013");
    assert_eq!(detail(&error), json!({"expected": 1, "actual": 0}));
    for session in ["b", "c", "d", "e"] {
        assert_eq!(delta(session, 0, "its ").await.expect("a chunk"), 1);
    }
    let raw = "insert into agent_sessions.session_delta (sid, target, chunk_no, chunk)
               select sid, 4, 1, 'own' from agent_sessions.session where session_id = 'b'";
    assert_eq!(writer.execute(raw, &[]).await.expect("a raw chunk"), 1);
    assert_eq!(writer.execute(raw, &[]).await.expect("the same again"), 0);
    assert_eq!(streamed(&writer, "b").await, text("its own"));
    assert_eq!(streamed(&writer, "s").await, text("of the source"));
    // Each is closed, retracted or taken back alone, and takes along its own chunks.
    let chunks = "select string_agg(s.session_id, ' ' order by s.session_id, d.chunk_no)
                  from agent_sessions.session_delta d join agent_sessions.session s using (sid)";
    assert_eq!(writer.value::<String>(chunks, &[]).await, "b b c d e s");
    call_of(&writer, "session_revise('{s}', '\"closed\"', item_id => 'o')", "c").await;
    assert_eq!(streamed(&writer, "c").await, (false, None));
    assert_eq!(writer.value::<String>(chunks, &[]).await, "b b d e s");
    call_of(&writer, "session_retract('{s}', from_target => 3)", "d").await;
    assert_eq!(writer.value::<String>(chunks, &[]).await, "b b e s");
    call_of(&writer, "session_retract('{s}', item_ids => '{o}')", "e").await;
    assert_eq!(writer.value::<String>(chunks, &[]).await, "b b s");
    for closed in ["c", "d", "e"] {
        assert_sqlstate!(delta(closed, 0, "late").await, "SE011");
        assert!(writer.verify(closed).await.ok);
    }
    call_of(&writer, "session_revise('{s}', '\"said\"', item_id => 'o')", "s").await;
    assert_eq!(writer.value::<String>(chunks, &[]).await, "b b");
    assert_eq!(streamed(&writer, "b").await, text("its own"));
    assert_eq!(delta("b", 2, "!").await.expect("a chunk"), 3);
    call_of(&writer, "session_delete('{s}')", "b").await;
    assert_eq!(writer.value::<Option<String>>(chunks, &[]).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn items_are_popped_through_the_fork_and_only_in_the_branch() {
    let db = Database::create("branch_pop").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.branch("s", "b").await;
    writer.append("b", "9").await;
    writer.branch("b", "c").await;
    let pop = "select position || ' ' || payload::text from agent_sessions.session_pop(session_id => 'c')";
    let mut popped: Vec<String> = Vec::new();
    while let Some(row) = writer.query_opt(pop, &[]).await.expect("a pop") {
        popped.push(row.get(0));
    }
    assert_eq!(popped, ["9 9", "6 6", "4 \"\"", "3 3", "0 20"]);
    assert_eq!(
        written_from(&writer, "c", 10).await,
        ["10 retract 9", "11 retract 6", "12 retract 4", "13 retract 3", "14 retract 0"]
    );
    assert!(writer.history("c").await.is_empty());
    assert_eq!(shown(&writer, "b").await, ["0 20", "3 3", "4 \"\"", "6 6", "9 9"]);
    writer.assert_dense("c", 15).await;
}

/// A row of `session` that names a source is a branch, and nothing that makes it one is a client's to give or to change.
#[tokio::test(flavor = "multi_thread")]
async fn a_raw_insert_of_a_session_is_a_branch() {
    let db = Database::create("branch_raw").await;
    let (writer, owner) = (db.writer().await, db.owner().await);
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("below").at_target(2)).await;
    let make = |session: &str, source: &str, fork: &str| {
        format!(
            "insert into agent_sessions.session (session_id, branched_from, fork_position)
             select '{session}', sid, {fork} from agent_sessions.session where session_id = '{source}'"
        )
    };
    for fork in 0..=ENTRIES {
        let (raw, called) = (format!("raw {fork}"), format!("called {fork}"));
        assert_eq!(writer.execute(&make(&raw, "s", &fork.to_string()), &[]).await.expect("a branch"), 1);
        let point = Branch::of("s").named(&called);
        if fork > 0 {
            writer.branched(point.at_target(fork - 1)).await;
            assert_eq!(writer.history(&raw).await, writer.history(&called).await);
        }
        assert_eq!(writer.append(&raw, "9").await, fork);
        writer.assert_dense(&raw, fork + 1).await;
    }
    let told = |target: Option<i64>| json!({"target": target, "item_id": null, "tag": null});
    for (source, fork, target) in [
        ("s", "10", Some(9)),
        ("s", "9223372036854775807", Some(i64::MAX - 1)),
        ("s", "-1", Some(-2)),
        ("s", "-9223372036854775808", None),
        ("below", "4", Some(3)),
    ] {
        let error = assert_sqlstate!(writer.execute(&make("x", source, fork), &[]).await, "SE012");
        assert_eq!(detail(&error), told(target), "{source} {fork}");
    }
    // Without a fork it only says where it comes from.
    writer.run(&make("without", "s", "null")).await;
    assert_eq!(writer.append("without", "0").await, 0);
    // The digest of the fork is the engine's, whoever gives one.
    let forged = "insert into agent_sessions.session (session_id, branched_from, fork_position, fork_digest)
                  select 'forged', sid, 3, sha256('') from agent_sessions.session where session_id = 's'";
    assert_sqlstate!(writer.execute(forged, &[]).await, "42501");
    owner.run(forged).await;
    writer.append("forged", "3").await;
    for session in ["without", "forged"] {
        assert!(writer.verify(session).await.ok, "{session}");
    }
    for change in [
        "branched_from = null",
        "branched_from = sid",
        "fork_position = 2",
        "fork_position = null",
        "fork_digest = sha256('')",
        "fork_digest = null, fork_position = null, branched_from = null",
        "fork_position = fork_position + 1, fork_digest = (select digest from agent_sessions.session_item where position = 3 limit 1)",
    ] {
        let sql = format!("update agent_sessions.session set {change} where session_id = 'raw 3'");
        assert_sqlstate!(writer.execute(&sql, &[]).await, "42501");
        let error = assert_sqlstate!(owner.execute(&sql, &[]).await, "SE014");
        assert_eq!(detail(&error)["object"], json!("session"), "{change}");
    }
    // No session becomes a branch afterwards.
    let becomes = "update agent_sessions.session set branched_from = (select sid from agent_sessions.session
                     where session_id = 's'), fork_position = 0, fork_digest = sha256('') where session_id = 'without'";
    assert_sqlstate!(owner.execute(becomes, &[]).await, "SE014");
    let missing =
        "insert into agent_sessions.session (session_id, branched_from, fork_position) values ('x', 987654321, 0)";
    assert_sqlstate!(writer.execute(missing, &[]).await, "SE002");
}

/// What is left of a trimmed log can be inherited; where nothing is left, nothing can.
#[tokio::test(flavor = "multi_thread")]
async fn a_raw_branch_of_a_trimmed_log_verifies_or_is_refused() {
    let db = Database::create("branch_raw_trimmed").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    call_of(&writer, "session_trim('{s}', keep_from => 3)", "s").await;
    for fork in 0..=ENTRIES + 1 {
        let session = format!("b{fork}");
        let raw = "insert into agent_sessions.session (session_id, branched_from, fork_position)
                   select $1::text, sid, $2::bigint from agent_sessions.session where session_id = 's'";
        match writer.execute(raw, &[&session, &fork]).await {
            Ok(_) => {
                assert!(fork >= 3, "{fork}");
                assert_eq!(writer.append(&session, "1").await, fork);
                let verdict = writer.verify(&session).await;
                assert!(verdict.ok, "a fork at {fork}: {verdict:?}");
            }
            Err(error) => {
                assert!(fork <= 3, "{fork}");
                assert_sqlstate!(Err::<(), _>(error), "SE012");
            }
        }
    }
}
