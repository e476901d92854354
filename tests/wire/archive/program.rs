//! A program of Python's standard library checks exports by itself, and finds what the database finds.

use std::path::Path;

use agent_sessions_tests::{Branch, Database, Program, Ran, detail, setting, sqlstate};
use serde_json::json;

use super::*;
use crate::branches::{call_of, sample};

async fn check(lines: &[String]) -> Ran {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/session_export.py");
    let script = script.to_str().expect("a path in UTF-8");
    let input: String = lines.iter().map(|line| line.clone() + "\n").collect();
    Program::new(Path::new(&setting("AGENT_SESSIONS_PYTHON"))).args(["-I", script]).input(input).run().await
}

/// What it prints of an export that it finds whole: the last position and its digest. Of several in a row, a line each.
pub async fn assert_whole(lines: &[String]) -> String {
    let ran = check(lines).await;
    assert!(ran.success, "{}{}\n{:.2000}", String::from_utf8_lossy(&ran.stdout), ran.stderr, lines.join("\n"));
    let heads = String::from_utf8(ran.stdout).expect("output in UTF-8");
    assert_eq!(heads.lines().count(), count_of(lines, "end"));
    heads.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_names_the_head_that_an_anchor_holds() {
    let db = Database::create("export_program").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    let head = assert_whole(&export(&writer, "s").await).await;
    writer.run("select root from agent_sessions.audit_anchor()").await;
    let leaf: String = writer.value("select leaf from agent_sessions.audit_anchor_leaf", &[]).await;
    let (position, digest) = head.split_once(' ').expect("a position and a digest");
    let leaf = parsed(&leaf);
    assert_eq!((leaf[4].to_string().as_str(), leaf[5].as_str()), (position, Some(digest)));
}

/// One value of each line of an export changed: the program and the import name the same position.
#[tokio::test(flavor = "multi_thread")]
async fn it_finds_what_the_import_finds() {
    let db = Database::create("export_program_tampered").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    call_of(&writer, "session_erase('{s}', target => 3, reason => 'why')", "s").await;
    writer.branched(Branch::of("s").named("b").at_target(5)).await;
    writer.append("b", "6").await;
    writer.branch("b", "c").await;
    writer.append("c", "7").await;
    let lines = export(&writer, "c").await;
    assert_whole(&lines).await;
    assert_eq!(check(&lines[..lines.len() - 1]).await.stderr, "", "an end is missing, and that is all");
    let mut found = std::collections::BTreeSet::new();
    for at in 0..lines.len() {
        for (key, value) in [
            ("title", json!("x")),
            ("created_at", json!(7)),
            ("payload", json!("9")),
            ("salt", json!("00".repeat(16))),
            ("digest", json!("00".repeat(32))),
            ("content_digest", json!("00".repeat(32))),
            ("position", json!(99)),
            ("tag", json!("other")),
            ("fork_digest", json!("00".repeat(32))),
            ("session_id", json!("other")),
        ] {
            let mut line = parsed(&lines[at]);
            let kind = line.as_object().and_then(|line| line.keys().next().cloned()).expect("a kind");
            // Of each kind of line, one will do.
            if line[&kind].get(key).is_none_or(Value::is_null) || !found.insert((kind.clone(), key)) {
                continue;
            }
            line[&kind][key] = value;
            let mut changed = lines.clone();
            changed[at] = line.to_string();
            let (ran, refused) = (check(&changed).await, try_import(&writer, &changed).await);
            let error = refused.expect_err(&changed[at]);
            assert!(!ran.success, "{}", changed[at]);
            assert_eq!(sqlstate(&error), "SE017", "{}", changed[at]);
            let named = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
            assert_eq!(detail(&error)["position"].to_string(), named, "{}", changed[at]);
        }
    }
    assert!(found.len() > 14, "{found:?}");
}
