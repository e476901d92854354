//! Lines that are not what was exported: refused with a code of the contract, and nothing is written.

use agent_sessions_tests::{Branch, Connection, Database, assert_sqlstate, detail, sqlstate};
use serde_json::json;

use super::*;
use crate::branches::{call_of, sample};
use crate::hiding::deleted;

/// A trimmed and flattened session with an erased entry, an open item with chunks, and a branch of it.
async fn exports(writer: &Connection) -> Vec<Vec<String>> {
    sample(writer, "o").await;
    writer.branched(Branch::of("o").named("s").at_target(6)).await;
    for call in [
        "session_flatten('{s}')",
        "session_append('{s}', '8', item_id => 'x', author => 'ann', attrs => '{\"a\": 1}')",
        "session_erase('{s}', item_id => 'x', reason => 'why')",
        "session_append('{s}', '9', kind => 'summary', kept_from => 3)",
        "session_trim('{s}', keep_from => 3)",
        "session_delta('{s}', 4, 0, 'one')",
        "session_delta('{s}', 4, 1, 'two')",
        "session_set('{s}', title => 't', status => 'closed', owner => 'ann', cost => 1.5, input_tokens => 7, state => '{}')",
    ] {
        call_of(writer, call, "s").await;
    }
    writer.branched(Branch::of("s").named("b").seed("1")).await;
    call_of(writer, "session_erase('{s}', target => 3)", "b").await;
    vec![export(writer, "s").await, export(writer, "b").await]
}

/// Other values of a JSON value, of its type and of others.
fn others(value: &Value) -> Vec<Value> {
    let mut others = vec![
        json!(null),
        json!("x"),
        json!("00".repeat(32)),
        json!("00".repeat(16)),
        json!(-1),
        json!(1),
        json!([]),
        json!({}),
    ];
    match value {
        Value::String(text) => {
            others.extend([json!(format!("{text} ")), json!(format!("{text}\0")), json!(text.to_uppercase())]);
            let mut turned: Vec<char> = text.chars().collect();
            if let Some(last) = turned.last_mut() {
                *last = if *last == '0' { '1' } else { '0' };
                others.push(json!(turned.into_iter().collect::<String>()));
            }
        }
        Value::Number(number) => {
            let number = number.as_i64().expect("an integer");
            others.extend([
                json!(number + 1),
                json!(-number),
                json!(number.to_string()),
                json!(i64::MAX),
                json!(number as f64 + 0.5),
            ]);
        }
        _ => {}
    }
    others.retain(|other| other != value);
    others
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_of_every_line_is_covered() {
    let db = Database::create("import_tampered").await;
    let writer = db.writer().await;
    let exports = exports(&writer).await;
    for session in ["b", "s", "o"] {
        deleted(&writer, session).await;
    }
    assert_eq!(rows(&db).await[..3], [0, 0, 0]);
    let mut refused = std::collections::BTreeMap::new();
    for lines in &exports {
        let kinds = ["session", "entry", "end"];
        assert!(kinds.iter().all(|kind| count_of(lines, kind) > 0), "{}", lines.join("\n"));
        for at in 0..lines.len() {
            let line = parsed(&lines[at]);
            let (kind, columns) = line.as_object().and_then(|line| line.iter().next()).expect("a kind");
            let columns = columns.as_object().expect("an object");
            let mut changed: Vec<Value> = Vec::new();
            for (column, value) in columns {
                for other in others(value) {
                    let mut columns = columns.clone();
                    columns.insert(column.clone(), other);
                    changed.push(json!({ kind: columns }));
                }
                if !value.is_null() {
                    let mut columns = columns.clone();
                    columns.remove(column);
                    changed.push(json!({ kind: columns }));
                }
            }
            let mut more = columns.clone();
            more.insert("more".to_owned(), json!(null));
            changed.extend([
                json!({ kind: more }),
                json!({ "other": columns }),
                json!(columns),
                json!(null),
                json!("entry"),
            ]);
            for other in changed {
                let mut lines = lines.clone();
                lines[at] = other.to_string();
                let error = try_import(&writer, &lines).await.expect_err(&lines[at]);
                let code = sqlstate(&error).to_owned();
                assert!(["SE001", "SE010", "SE017"].contains(&code.as_str()), "{code}: {}", lines[at]);
                assert!(code != "SE001" || detail(&error)["argument"].is_string());
                *refused.entry(code).or_insert(0) += 1;
            }
        }
    }
    assert!(refused["SE001"] > 500 && refused["SE017"] > 300, "{refused:?}");
    assert_eq!(rows(&db).await[..3], [0, 0, 0]);
    // As they were, they are taken.
    for lines in &exports {
        import(&writer, lines).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_are_lost_swapped_or_doubled_are_found() {
    let db = Database::create("import_lines").await;
    let writer = db.writer().await;
    let exports = exports(&writer).await;
    for session in ["b", "s", "o"] {
        deleted(&writer, session).await;
    }
    for lines in &exports {
        for at in 0..lines.len() {
            let (mut lost, mut doubled, mut swapped) = (lines.clone(), lines.clone(), lines.clone());
            lost.remove(at);
            doubled.insert(at, lines[at].clone());
            swapped.swap(at, (at + 1) % lines.len());
            let cut = lines[..at].to_vec();
            let only_end = [&cut[..], &lines[lines.len() - 1..]].concat();
            for changed in [lost, doubled, swapped, cut, only_end] {
                if changed == *lines {
                    continue;
                }
                let error = try_import(&writer, &changed).await.expect_err(&changed.join("\n"));
                assert!(["SE001", "SE010", "SE017"].contains(&sqlstate(&error)), "{error:?}");
            }
        }
    }
    // Of two exports, no mixture is one.
    let mixed = [&exports[0][..3], &exports[1][3..]].concat();
    let error = try_import(&writer, &mixed).await.expect_err("a mixture");
    assert!(["SE001", "SE010", "SE017"].contains(&sqlstate(&error)), "{error:?}");
    assert_eq!(rows(&db).await[..3], [0, 0, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_wrong_position_or_line_is_named() {
    let db = Database::create("import_named").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    let lines = export(&writer, "s").await;
    let with = |at: usize, from: &str, to: &str| {
        let mut lines = lines.clone();
        assert!(lines[at].contains(from), "{}", lines[at]);
        lines[at] = lines[at].replace(from, to);
        lines
    };
    for (at, from, to, position) in [
        (1, "\"tag\":\"t\"", "\"tag\":\"u\"", 0),
        (3, "\"20\"", "\"21\"", 2),
        (7, "\"created_at\":", "\"created_at\":1", 6),
        (0, "\"title\":null", "\"title\":\"x\"", 9),
    ] {
        let error = assert_sqlstate!(try_import_as(&writer, &with(at, from, to), Some("t"), None).await, "SE017");
        assert_eq!(detail(&error), json!({"column": "lines", "position": position}));
    }
    for (at, from, to, argument) in [
        (1, "\"tag\":\"t\"", "\"tag\":\"\"", "tag"),
        (3, "\"20\"", "\"{\"", "payload"),
        (1, "\"{\\\"n\\\": 0}\"", "\"{\\\"n\\\": \\\"\\\\u0000\\\"}\"", "attrs"),
        (0, "\"cost\":null", "\"cost\":\"much\"", "cost"),
        (0, "\"cost\":null", "\"cost\":\"-1\"", "cost"),
        (0, "\"cost\":null", "\"cost\":\"NaN\"", "cost"),
        (0, "\"state\":null", "\"state\":\"{]\"", "state"),
        (0, "\"metadata\":null", "\"metadata\":\"\"", "metadata"),
        (0, "\"revision\":0", "\"revision\":-1", "revision"),
    ] {
        let error = assert_sqlstate!(try_import_as(&writer, &with(at, from, to), Some("t"), None).await, "SE001");
        assert_eq!((&detail(&error)["argument"], &detail(&error)["element"]), (&json!(argument), &json!(at)), "{to}");
    }
    for (lines, argument) in [
        (None, "lines"),
        (Some("[]"), "lines"),
        (Some("{}"), "lines"),
        (Some("null"), "lines"),
        (Some("[1]"), "lines"),
        (Some("[{\"session\":{}}]"), "session_id"),
        (Some("[{\"session\":{\"session_id\":\"\"}}]"), "session_id"),
        (Some("[{\"session\":{\"session_id\":\"a\\nb\"}}]"), "session_id"),
        (Some("[{\"session\":{\"session_id\":\"a\",\"agent_id\":\"\\u0001\"}}]"), "agent_id"),
    ] {
        let sql = "select session_id from agent_sessions.session_import(lines => $1::text::json)";
        let error = assert_sqlstate!(writer.try_value::<String>(sql, &[&lines]).await, "SE001");
        assert_eq!(detail(&error)["argument"], argument, "{lines:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_for_imports() {
    let db = Database::create("import_limits").await;
    let writer = db.writer().await;
    writer.run("set agent_sessions.max_payload_bytes = '1 kB'").await;
    let large = json!("x".repeat(2_000)).to_string();
    for (key, argument) in [("payload", "payload"), ("attrs", "attrs")] {
        let mut entry = json!({"payload": "1"});
        entry[key] = json!(large);
        let lines = [json!({"session": {"session_id": "s"}}).to_string(), json!({ "entry": entry }).to_string()];
        let error = assert_sqlstate!(try_import(&writer, &lines).await, "SE018");
        assert_eq!((&detail(&error)["argument"], &detail(&error)["element"]), (&json!(argument), &json!(1)));
    }
    for key in ["state", "metadata"] {
        let lines = [json!({"session": {"session_id": "s", key: large}}).to_string()];
        assert_eq!(detail(&assert_sqlstate!(try_import(&writer, &lines).await, "SE018"))["argument"], key);
    }
    let many = "select session_id from agent_sessions.session_import(
        (select ('[' || string_agg('{}', ',') || ']')::json from generate_series(1, 1000001)))";
    let error = assert_sqlstate!(writer.try_value::<String>(many, &[]).await, "SE018");
    assert_eq!(detail(&error), json!({"argument": "lines", "limit": 1_000_000, "actual": 1_000_001}));
    assert_eq!(rows(&db).await[..3], [0, 0, 0]);
}
