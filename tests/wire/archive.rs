//! Exports and imports of sessions: what comes back, what is refused, and what an import is marked with.

mod branches;
mod marks;
mod measures;
mod other_stores;
mod program;
mod round_trips;
mod tampering;

use agent_sessions_tests::{Connection, Database, Error};
use serde_json::Value;
use tokio_postgres::types::ToSql;

/// The entries of a log, without when they were imported.
const LOG: &str =
    "select (l.position, op, target, kind, item_id, tag, author, payload::text, attrs, created_at, digest)::text
    from agent_sessions.session_log(session_id => $1::text, agent_id => $2::text) l";

/// What the history shows, without the digests.
const HISTORY: &str = "select (h.position, op, kind, item_id, tag, author, payload::text, attrs, created_at,
      revised_at_position, open, delta_text)::text
    from agent_sessions.session_history(session_id => $1::text, agent_id => $2::text) h";

/// All of a session's row that comes along.
const ROW: &str =
    "select (session_id, agent_id, owner, title, status, metadata, state::text, revision, last_entry_at, input_tokens,
      output_tokens, cost, origin, parent_session_id, expires_at, created_at, closed_at)::text
    from agent_sessions.session_get(session_id => $1::text, agent_id => $2::text)";

async fn texts(connection: &Connection, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<String> {
    let rows = connection.query(sql, parameters).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

async fn export(connection: &Connection, session: &str) -> Vec<String> {
    export_of(connection, session, "").await
}

async fn export_of(connection: &Connection, session: &str, agent: &str) -> Vec<String> {
    let sql = "select line from agent_sessions.session_export(session_id => $1::text, agent_id => $2::text) line";
    texts(connection, sql, &[&session, &agent]).await
}

/// The argument of an import, as a client makes it of the lines of a file.
fn array_of(lines: &[String]) -> String {
    format!("[{}]", lines.join(","))
}

/// An import under other names than the lines say, where these are given. Returns the next position.
async fn try_import_as(
    connection: &Connection,
    lines: &[String],
    session: Option<&str>,
    agent: Option<&str>,
) -> Result<i64, Error> {
    let sql = "select next_position from agent_sessions.session_import(
        lines => $1::text::json, session_id => $2::text, agent_id => $3::text)";
    connection.try_value(sql, &[&array_of(lines), &session, &agent]).await
}

async fn try_import(connection: &Connection, lines: &[String]) -> Result<i64, Error> {
    try_import_as(connection, lines, None, None).await
}

async fn import(connection: &Connection, lines: &[String]) -> i64 {
    try_import(connection, lines).await.unwrap_or_else(|error| panic!("{error:?}\n{:.2000}", lines.join("\n")))
}

/// One line's content, by the kind that it is of.
fn row<'v>(line: &'v Value, kind: &str) -> &'v Value {
    line.get(kind).unwrap_or_else(|| panic!("no {kind}: {line}"))
}

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn count_of(lines: &[String], kind: &str) -> usize {
    lines.iter().filter(|line| line.starts_with(&format!("{{\"{kind}\":"))).count()
}

/// All rows that an import could leave behind.
async fn rows(db: &Database) -> [i64; 4] {
    let sql = "select array[(select count(*) from agent_sessions.session), (select count(*) from agent_sessions.session_item),
        (select count(*) from agent_sessions.session_delta), (select count(*) from agent_sessions.audit_event)]";
    let counts: Vec<i64> = db.superuser().await.value(sql, &[]).await;
    counts.try_into().expect("four counts")
}
