//! Chains that were made outside of PostgreSQL by the published formula, and our own as another language sees them.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use agent_sessions_tests::{Connection, Database, Program, Ran, assert_sqlstate, detail, setting};
use serde_json::{Value, json};
use tokio_postgres::SimpleQueryMessage;

use super::{Event, array_of, assert_chained, batch, column, count, export, import, in_tenant, quoted, try_import};

const FIELDS: &str = r#"{"action":"type","actor":["who","id"],"target":"n","occurred_at":"at","attrs":"facts"}"#;

async fn python(arguments: &[&str], input: String) -> Ran {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/audit_chain.py");
    let script = script.to_str().expect("a path in UTF-8");
    let program = Program::new(Path::new(&setting("AGENT_SESSIONS_PYTHON")));
    program.args(["-I", script]).args(arguments).input(input).run().await
}

/// The lines of a chain that Python has made.
async fn foreign(events: usize) -> Vec<String> {
    let made = python(&["make", &events.to_string()], String::new()).await;
    assert!(made.success, "{}", made.stderr);
    let made = String::from_utf8(made.stdout).expect("output in UTF-8");
    made.lines().map(str::to_owned).collect()
}

/// What Python says of lines: whether they are a chain, and the head or the first line that is wrong.
async fn verified(lines: &[String]) -> (bool, String) {
    let ran = python(&["verify"], lines.join("\n") + "\n").await;
    let told = String::from_utf8(ran.stdout).expect("output in UTF-8");
    (ran.success, told.trim_end().to_owned())
}

async fn head(connection: &Connection, stream: &str) -> String {
    let head = "select head_seq || ' ' || head_hash from agent_sessions.audit_stream where stream = $1::text";
    connection.value(head, &[&stream]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_was_made_elsewhere_is_imported_verifies_and_goes_on() {
    let db = Database::create("audit_foreign").await;
    let writer = in_tenant(&db, "acme").await;
    let lines = foreign(1_000).await;
    assert_eq!(import(&writer, "old", &array_of(&lines), Some(FIELDS)).await, 1_000);
    assert_chained(&writer, "old", 1_000).await;
    // PostgreSQL's own JSON reads the same out of each text.
    let differ =
        "agent_sessions.audit_event where tenant = 'acme' and stream = 'old' and (action, actor, occurred_at, attrs)
        is distinct from (data::json ->> 'type', data::json -> 'who' ->> 'id', (data::json ->> 'at')::timestamptz,
          (data::json -> 'facts')::jsonb)";
    assert_eq!(count(&writer, differ).await, 0);
    assert_eq!(count(&writer, "agent_sessions.audit_list('old', action => 'login', max_rows => 1000)").await, 333);
    assert_eq!(count(&writer, "agent_sessions.audit_list('old', max_rows => 1000) where actor is null").await, 90);

    Event::in_stream("old", "own").append(&writer).await;
    batch(&writer, "old", r#"[{"action":"own"},{"action":"own","payload":"\ud83d"}]"#).await;
    assert_chained(&writer, "old", 1_003).await;
    assert_eq!(verified(&export(&writer, "old").await).await, (true, head(&writer, "old").await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_with_one_byte_changed_is_refused_at_that_line() {
    let db = Database::create("audit_foreign_changed").await;
    let writer = db.writer().await;
    let lines = foreign(60).await;
    for place in [0, 1, 2, 30, 59] {
        let line: Value = serde_json::from_str(&lines[place]).expect("a line of JSON");
        let data = line["data"].as_str().expect("a text").as_bytes();
        // Its first, one in the middle and its last, and each stays ASCII.
        for at in [0, data.len() / 2, data.len() - 1] {
            let at = (at..data.len()).chain(0..at).find(|at| data[*at].is_ascii_graphic()).expect("a letter");
            let mut changed = data.to_vec();
            changed[at] ^= 1;
            let mut line = line.clone();
            line["data"] = json!(String::from_utf8(changed).expect("one ASCII character for another"));
            let mut lines = lines.clone();
            lines[place] = line.to_string();
            let error = assert_sqlstate!(try_import(&writer, "old", &array_of(&lines), None).await, "SE017");
            let seq = place as i64 + 1;
            assert_eq!(detail(&error), json!({"column": "hash", "position": seq}), "byte {at}");
            assert_eq!(verified(&lines).await, (false, seq.to_string()));
        }
    }
    assert_chained(&writer, "old", 0).await;
    assert_eq!(import(&writer, "old", &array_of(&lines), None).await, 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_language_agrees_on_our_own_chains() {
    let db = Database::create("audit_own").await;
    let writer = in_tenant(&db, "Müller & \"Söhne\"").await;
    for payload in crate::payloads::CASES {
        let event = Event {
            payload: Some(payload),
            actor: Some("ines \u{1F525}\\\""),
            attrs: Some(r#"{"z":[1e2,"\u00e9"],"a":123456789012345678901234567890}"#),
            ..Event::in_stream("s", "приём")
        };
        event.append(&writer).await;
        event.insert(&writer).await;
    }
    let lines = export(&writer, "s").await;
    assert_eq!(lines.len(), 2 * crate::payloads::CASES.len());
    assert_eq!(verified(&lines).await, (true, head(&writer, "s").await));
    for place in [0, 7, lines.len() - 1] {
        let mut cut = lines.clone();
        cut.remove(place);
        let wanted = if place + 1 == lines.len() {
            let last: Value = serde_json::from_str(&cut[place - 1]).expect("a line of JSON");
            (true, format!("{place} {}", last["hash"].as_str().expect("a hash")))
        } else {
            (false, (place + 1).to_string())
        };
        assert_eq!(verified(&cut).await, wanted);
    }
    assert!(!verified(&[]).await.0);
}

/// Buffers that an import touches, with all that it does.
async fn buffers(connection: &Connection, stream: &str, lines: &[String]) -> usize {
    let import = format!(
        "explain (analyze, buffers, timing off, format json)
         select agent_sessions.audit_import('{stream}', {}, '{{\"action\":\"type\",\"occurred_at\":\"at\"}}')",
        quoted(&array_of(lines))
    );
    let answer = connection.simple_query(&import).await.expect("a plan");
    let text = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let plan: Value = serde_json::from_str(text.expect("a plan")).expect("a plan is JSON");
    let blocks = ["Shared Hit Blocks", "Shared Read Blocks"].map(|key| plan[0]["Plan"][key].as_u64().expect("a count"));
    blocks.iter().sum::<u64>() as usize
}

/// In a database without statistics, as a restore finds it: the same look at the event before is made for every row of one.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_costs_as_much_per_line_in_a_long_stream_as_in_a_short_one() {
    const SHORT: usize = 500;
    const LONG: usize = 10_000;
    let db = Database::create("audit_import_cost").await;
    db.owner().await.run("alter table agent_sessions.audit_event set (autovacuum_enabled = off)").await;
    let writer = db.writer().await;
    let lines = foreign(SHORT + LONG).await;
    let short = buffers(&writer, "s", &lines[..SHORT]).await / SHORT;
    let long = buffers(&writer, "s", &lines[SHORT..]).await / LONG;
    writeln!(std::io::stdout(), "audit_import: {short} buffers a line in the first {SHORT}, {long} in {LONG} more")
        .expect("standard output is open");
    assert!(long < 2 * short, "{short}, {long}");
    assert_chained(&writer, "s", (SHORT + LONG) as i64).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_lines_are_imported_at_once() {
    const LINES: usize = 100_000;
    let db = Database::create("audit_foreign_large").await;
    let writer = db.writer().await;
    let lines = foreign(LINES).await;
    let mut more = lines.clone();
    more.push(lines[0].clone());
    let error = assert_sqlstate!(try_import(&writer, "old", &array_of(&more), None).await, "SE018");
    assert_eq!(detail(&error), json!({"argument": "lines", "limit": LINES, "actual": LINES + 1}));

    let array = array_of(&lines);
    let mut wrong = lines;
    wrong[LINES - 1] = wrong[LINES - 1].replacen("user-", "user_", 1);
    let error = assert_sqlstate!(try_import(&writer, "old", &array_of(&wrong), None).await, "SE017");
    assert_eq!(detail(&error)["position"], LINES);
    assert_chained(&writer, "old", 0).await;

    let begun = Instant::now();
    assert_eq!(import(&writer, "old", &array, Some(FIELDS)).await, LINES as i64);
    let imported = begun.elapsed();
    let begun = Instant::now();
    assert_chained(&writer, "old", LINES as i64).await;
    let megabytes = array.len() >> 20;
    writeln!(
        std::io::stdout(),
        "audit_import of {LINES} lines, {megabytes} MiB: {imported:.1?}; chain checked twice: {:.1?}",
        begun.elapsed()
    )
    .expect("standard output is open");
    assert_eq!(column(&writer, "old", "seq::text").await.len(), LINES);
}
