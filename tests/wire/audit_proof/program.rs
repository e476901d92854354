//! The program in docs/guide.md that checks an export without the database.

use std::path::Path;

use agent_sessions_tests::{Database, Program, Ran, setting};

use super::*;

/// The one block of Python in docs/guide.md that reads an export.
fn program() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide.md");
    let page = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let blocks = page.split("```python\n").skip(1).filter_map(|rest| rest.split_once("\n```")).map(|(block, _)| block);
    let found: Vec<&str> = blocks.filter(|block| block.contains("sys.stdin") && block.contains("prev_hash")).collect();
    assert_eq!(found.len(), 1, "docs/guide.md has one program that checks an export");
    found[0].to_owned() + "\n"
}

async fn check(export: &str) -> Ran {
    let python = setting("AGENT_SESSIONS_PYTHON");
    Program::new(Path::new(&python)).args(["-c", &program()]).input(export).run().await
}

async fn export(connection: &Connection, stream: &str) -> String {
    let rows = connection.query("select * from agent_sessions.audit_export($1)", &[&stream]).await.expect("an export");
    rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect()
}

async fn head(connection: &Connection, stream: &str) -> String {
    connection.value("select head_hash from agent_sessions.audit_stream where stream = $1", &[&stream]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_readmes_program_prints_the_head_of_an_export() {
    let db = Database::create("program_whole").await;
    let writer = orders(&db).await;
    imported::import(&writer, r#"{"action": "type"}"#).await;
    fill(&writer, "old", 2).await;
    let strange = "select count(*) from unnest($1::text[]) p, agent_sessions.audit_append('strange', p::json, 'strange \"\\', target => 'é\u{2028}')";
    let payloads = [
        "\"\\r\\n\\t\"",
        "\"\u{2028}\u{85}\u{1F525}\"",
        "\" \u{7f} \\ud83d \\u0000\"",
        "[1 ,\n\r\t2]",
        "1e400000",
        "{\"payload\":{}}",
    ];
    assert_eq!(writer.value::<i64>(strange, &[&payloads.as_slice()]).await, payloads.len() as i64);
    for stream in ["orders", "old", "strange \"\\"] {
        let ran = check(&export(&writer, stream).await).await;
        assert!(ran.success, "{stream}: {}", ran.stderr);
        assert_eq!(String::from_utf8(ran.stdout).expect("a hash").trim(), head(&writer, stream).await);
    }
    // psql writes the same bytes.
    let psql = db.psql(agent_sessions_tests::Role::Writer).args([
        "-c",
        "set agent_sessions.tenant = 'acme'",
        "-c",
        "select agent_sessions.audit_export('orders')",
    ]);
    assert_eq!(psql.output().await, export(&writer, "orders").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_readmes_program_refuses_a_tampered_export() {
    let db = Database::create("program_tampered").await;
    let writer = orders(&db).await;
    let whole = export(&writer, "orders").await;
    let lines: Vec<&str> = whole.lines().collect();
    let without = |at: usize| [&lines[..at], &lines[at + 1..]].concat().join("\n");
    let with = |at: usize, line: String| {
        let mut changed: Vec<&str> = lines.clone();
        changed[at] = &line;
        changed.join("\n")
    };
    let mut tampered = vec![("not JSON", format!("{whole}x\n")), ("half a line", whole[..whole.len() - 3].to_owned())];
    for at in 0..lines.len() {
        if at + 1 < lines.len() {
            tampered.push(("removed", without(at)));
        }
        tampered.push(("doubled", with(at, format!("{0}\n{0}", lines[at]))));
        let old: serde_json::Value = serde_json::from_str(lines[at]).expect("JSON");
        for (field, from, to) in [("data", "l", "L"), ("hash", "a", "b"), ("prev_hash", "0", "1"), ("data", "{", "{ ")]
        {
            let mut changed = old.clone();
            let text = old[field].as_str().expect("a text").replace(from, to);
            changed[field] = text.into();
            if changed != old {
                tampered.push((field, with(at, changed.to_string())));
            }
        }
        let mut moved = old.clone();
        moved["seq"] = (at + 2).into();
        tampered.push(("seq", with(at, moved.to_string())));
    }
    let mut swapped = lines.clone();
    swapped.swap(3, 4);
    tampered.push(("swapped", swapped.join("\n")));
    for (how, export) in tampered {
        let ran = check(&export).await;
        assert!(!ran.success, "{how}: {}\n{export}", String::from_utf8_lossy(&ran.stdout));
        assert!(ran.stdout.is_empty(), "{how}");
    }
    // A cut tail is shown by the head that it prints, and by nothing else.
    let cut = check(&without(lines.len() - 1)).await;
    assert!(cut.success);
    assert_ne!(String::from_utf8(cut.stdout).expect("a hash").trim(), head(&writer, "orders").await);
    // What a superuser changes in the table shows in its export.
    tamperer(&db)
        .await
        .run(&format!("update agent_sessions.audit_event set data = {} where seq = 5", "data || ' '"))
        .await;
    assert!(!check(&export(&writer, "orders").await).await.success);
}
