//! Runs the SQL of README.md, block by block and in order, in a fresh database.
//!
//! A block is what stands between "```sql" and "```". Comments in its first lines say how it is run:
//!
//! - `-- as app` runs it as the role `app`, which may connect and has what the blocks before granted to it; every other
//!   block runs as the owner of the database, who is no superuser. A role has one connection for all of its blocks, so
//!   that what one block sets holds in the next. The role's real name is one that only this run uses: the test writes it
//!   in place of `app` where that is a word of its own or quoted.
//! - `-- error: SE007` says that the block's last statement is refused with that SQLSTATE.
//! - `-- not run: why` leaves the block out; the test prints it.

use std::io::Write;
use std::path::Path;

use agent_sessions_tests::{Connection, Database, Role, sqlstate};
use tokio_postgres::SimpleQueryMessage;

/// A page with fewer has lost its examples, or this test their marks.
const FEWEST: usize = 5;

/// How a block is run, and with which result.
#[derive(Debug, PartialEq)]
struct Block {
    line: usize,
    sql: String,
    as_app: bool,
    error: Option<String>,
    not_run: Option<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut lines = page.lines().enumerate();
    let mut blocks = Vec::new();
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```") else { continue };
        let inside: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| !line.trim_start().starts_with("```")).collect();
        if info.trim() == "sql" {
            blocks.push(block(number + 1, &inside));
        }
    }
    blocks
}

fn block(line: usize, inside: &[&str]) -> Block {
    let head: Vec<&str> = inside.iter().map_while(|line| line.trim().strip_prefix("--")).map(str::trim).collect();
    let said =
        |mark: &str| head.iter().find_map(|comment| comment.strip_prefix(mark)).map(|rest| rest.trim().to_owned());
    Block {
        line,
        sql: inside.join("\n"),
        as_app: head.contains(&"as app"),
        error: said("error:"),
        not_run: said("not run:"),
    }
}

/// Writes a role's real name in place of `app`.
fn for_role(sql: &str, role: &str) -> String {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    let mut written = String::new();
    let mut rest = sql;
    while let Some(place) = rest.find("app") {
        let (before, after) = (&rest[..place], &rest[place + 3..]);
        written.push_str(before);
        written.push_str(if before.ends_with(is_part) || after.starts_with(is_part) { "app" } else { role });
        rest = after;
    }
    written + rest
}

/// Outside of one, a statement's time is its transaction's.
async fn is_in_transaction(connection: &Connection) -> bool {
    let answer = connection.simple_query("select now() <> statement_timestamp()").await.expect("an answer");
    answer.iter().any(|message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("t")))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_block_of_the_readme_runs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let page = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (left_out, run): (Vec<Block>, Vec<Block>) =
        blocks(&page).into_iter().partition(|block| block.not_run.is_some());
    assert!(run.len() >= FEWEST, "README.md has {} blocks of SQL to run", run.len());

    let db = Database::empty("documentation").await;
    let role = db.role("app", None).await;
    let (owner, app) = (db.owner().await, db.connect(Role::Named(role.clone())).await);
    for block in &run {
        let connection: &Connection = if block.as_app { &app } else { &owner };
        let result = connection.batch_execute(&for_role(&block.sql, &role)).await;
        match (&block.error, result) {
            (None, Ok(())) => {}
            (Some(code), Err(error)) => {
                assert_eq!(sqlstate(&error), code, "README.md line {}\n{}\n{error:?}", block.line, block.sql);
            }
            (Some(code), Ok(())) => panic!("README.md line {}: {code} was expected\n{}", block.line, block.sql),
            (None, Err(error)) => panic!("README.md line {}\n{}\n{error:?}", block.line, block.sql),
        }
        assert!(
            !is_in_transaction(connection).await,
            "README.md line {}: its transaction is open\n{}",
            block.line,
            block.sql
        );
    }
    // The test runner keeps what println! says of a test that passes.
    let mut out = std::io::stdout().lock();
    writeln!(out, "README.md: {} blocks ran, {} were left out", run.len(), left_out.len())
        .expect("standard output is open");
    for block in &left_out {
        let why = block.not_run.as_deref().unwrap_or_default();
        assert!(!why.is_empty(), "README.md line {}: say why it is not run", block.line);
        writeln!(out, "README.md line {} is not run: {why}", block.line).expect("standard output is open");
    }
}

#[test]
fn marks_are_read_from_the_first_comments_alone() {
    let page = "text\n```sql\n-- as app\n-- error: SE007\nselect 1; -- not run: no\n```\n```sh\nselect 2\n```\n \
                ```sql\n-- not run: needs a standby\nselect 3;\n-- as app\n```\n";
    let block = |line, sql: &str, as_app, error: Option<&str>, not_run: Option<&str>| Block {
        line,
        sql: sql.to_owned(),
        as_app,
        error: error.map(str::to_owned),
        not_run: not_run.map(str::to_owned),
    };
    assert_eq!(
        blocks(page),
        [
            block(2, "-- as app\n-- error: SE007\nselect 1; -- not run: no", true, Some("SE007"), None),
            block(10, "-- not run: needs a standby\nselect 3;\n-- as app", false, None, Some("needs a standby")),
        ]
    );
    assert_eq!(
        for_role("grant to app; 'app' apple session_append xapp app", "r"),
        "grant to r; 'r' apple session_append xapp r"
    );
}
