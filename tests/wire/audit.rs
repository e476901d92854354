//! The audit trail: what an event is, who writes and who sees it, and that nothing of it changes.

mod access;
mod batches;
mod foreign_chains;
mod imports;
mod isolation;
mod lists;
mod names;
mod races;
mod replays;
mod rules;
mod tenants;
mod text;
mod tracking;
mod tracking_rules;

use std::pin::pin;

use agent_sessions_tests::{Connection, Database, Error, Role};
use futures_util::SinkExt;

const APPEND: &str = "select seq, hash, outcome from agent_sessions.audit_append(
    action => $1::text, payload => $2::text::json, stream => $3::text, actor => $4::text, target => $5::text,
    session_id => $6::text, status => $7::text, attrs => $8::text::jsonb, occurred_at => $9::text::timestamptz,
    event_id => $10::text)";

const INSERT: &str = "insert into agent_sessions.audit_event
    (action, payload, stream, actor, target, session_id, status, attrs, occurred_at, event_id)
    values ($1::text, $2::text::json, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text::jsonb,
      $9::text::timestamptz, $10::text)";

/// What a client gives of an event; what is not set is not given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Event<'a> {
    action: Option<&'a str>,
    payload: Option<&'a str>,
    stream: Option<&'a str>,
    actor: Option<&'a str>,
    target: Option<&'a str>,
    session_id: Option<&'a str>,
    status: Option<&'a str>,
    attrs: Option<&'a str>,
    occurred_at: Option<&'a str>,
    event_id: Option<&'a str>,
}

impl<'a> Event<'a> {
    fn of(action: &'a str) -> Self {
        Self { action: Some(action), ..Self::default() }
    }

    fn in_stream(stream: &'a str, action: &'a str) -> Self {
        Self { stream: Some(stream), ..Self::of(action) }
    }

    fn parameters(&self) -> [Option<&'a str>; 10] {
        [
            self.action,
            self.payload,
            self.stream,
            self.actor,
            self.target,
            self.session_id,
            self.status,
            self.attrs,
            self.occurred_at,
            self.event_id,
        ]
    }

    /// By audit_append.
    async fn try_append(&self, connection: &Connection) -> Result<Appended, Error> {
        let parameters = self.parameters();
        let [a, b, c, d, e, f, g, h, i, j] = &parameters;
        let row = connection.query_one(APPEND, &[a, b, c, d, e, f, g, h, i, j]).await?;
        Ok(Appended { seq: row.get(0), hash: row.get(1), outcome: row.get(2) })
    }

    async fn append(&self, connection: &Connection) -> Appended {
        self.try_append(connection).await.unwrap_or_else(|error| panic!("{self:?}: {error:?}"))
    }

    /// By a plain INSERT; the number of rows.
    async fn try_insert(&self, connection: &Connection) -> Result<u64, Error> {
        let parameters = self.parameters();
        let [a, b, c, d, e, f, g, h, i, j] = &parameters;
        connection.execute(INSERT, &[a, b, c, d, e, f, g, h, i, j]).await
    }

    async fn insert(&self, connection: &Connection) {
        let inserted = self.try_insert(connection).await.unwrap_or_else(|error| panic!("{self:?}: {error:?}"));
        assert_eq!(inserted, 1, "{self:?}");
    }
}

/// A row of audit_append.
#[derive(Clone, Debug, PartialEq)]
struct Appended {
    seq: i64,
    hash: String,
    outcome: String,
}

async fn try_batch(connection: &Connection, stream: &str, events: &str) -> Result<Vec<Appended>, Error> {
    let batch = "select seq, hash, outcome
                 from agent_sessions.audit_append_batch(stream => $1::text, events => $2::text::json)";
    let rows = connection.query(batch, &[&stream, &events]).await?;
    Ok(rows.iter().map(|row| Appended { seq: row.get(0), hash: row.get(1), outcome: row.get(2) }).collect())
}

async fn batch(connection: &Connection, stream: &str, events: &str) -> Vec<Appended> {
    try_batch(connection, stream, events).await.unwrap_or_else(|error| panic!("{stream}: {events:.500}\n{error:?}"))
}

async fn try_import(
    connection: &Connection,
    stream: &str,
    lines: &str,
    fields: Option<&str>,
) -> Result<Option<i64>, Error> {
    let import =
        "select agent_sessions.audit_import(stream => $1::text, lines => $2::text::json, fields => $3::text::jsonb)";
    connection.try_value(import, &[&stream, &lines, &fields]).await
}

async fn import(connection: &Connection, stream: &str, lines: &str, fields: Option<&str>) -> i64 {
    match try_import(connection, stream, lines, fields).await {
        Ok(Some(lines)) => lines,
        other => panic!("an import into {stream}: {other:?}"),
    }
}

/// The lines of audit_export.
async fn export(connection: &Connection, stream: &str) -> Vec<String> {
    texts(connection, &format!("select agent_sessions.audit_export({})", quoted(stream))).await
}

fn array_of<S: AsRef<str>>(lines: &[S]) -> String {
    let lines: Vec<&str> = lines.iter().map(AsRef::as_ref).collect();
    format!("[{}]", lines.join(","))
}

/// An SQL literal.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The texts of a query's only column.
async fn texts(connection: &Connection, sql: &str) -> Vec<String> {
    let rows = connection.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

async fn count(connection: &Connection, rows: &str) -> i64 {
    connection.value(&format!("select count(*) from {rows}"), &[]).await
}

/// A column of a stream's events, as text, in the order of seq.
async fn column(connection: &Connection, stream: &str, expression: &str) -> Vec<String> {
    let sql = format!(
        "select {expression} from agent_sessions.audit_event
         where tenant = agent_sessions.current_tenant() and stream = {} order by seq",
        quoted(stream)
    );
    texts(connection, &sql).await
}

/// A row of audit_verify.
#[derive(Clone, Debug, PartialEq)]
struct Verdict {
    stream: String,
    entries: i64,
    redacted: i64,
    ok: bool,
    first_bad_seq: Option<i64>,
    reason: Option<String>,
}

/// What audit_verify says, called with these arguments.
async fn verdicts(connection: &Connection, arguments: &str) -> Vec<Verdict> {
    let sql = format!(
        "select stream, entries, redacted, ok, first_bad_seq, reason from agent_sessions.audit_verify({arguments})"
    );
    let rows = connection.query(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter()
        .map(|row| Verdict {
            stream: row.get(0),
            entries: row.get(1),
            redacted: row.get(2),
            ok: row.get(3),
            first_bad_seq: row.get(4),
            reason: row.get(5),
        })
        .collect()
}

fn sound(stream: &str, entries: i64) -> Verdict {
    Verdict { stream: stream.to_owned(), entries, redacted: 0, ok: true, first_bad_seq: None, reason: None }
}

/// The stream has exactly this many events, dense from 1, linked from the genesis by the published formula, and audit_verify
/// agrees. A stream without events was never made.
async fn assert_chained(connection: &Connection, stream: &str, events: i64) {
    let broken = format!(
        "with event as (
           select seq, prev_hash, hash, row_number() over (order by seq) as place,
             coalesce(lag(hash) over (order by seq), 'sha256:' || repeat('0', 64)) as before,
             'sha256:' || encode(sha256(convert_to(prev_hash || E'\\n' || data, 'UTF8')), 'hex') as computed
           from agent_sessions.audit_event where tenant = agent_sessions.current_tenant() and stream = {})
         select count(*) || ' events, broken:'
           || coalesce(string_agg(' ' || seq, '') filter (where seq <> place or prev_hash <> before or hash <> computed), '')
         from event",
        quoted(stream)
    );
    assert_eq!(connection.value::<String>(&broken, &[]).await, format!("{events} events, broken:"), "{stream}");
    let wanted = if events == 0 { Vec::new() } else { vec![sound(stream, events)] };
    assert_eq!(verdicts(connection, &quoted(stream)).await, wanted, "{stream}");
}

async fn copy(connection: &Connection, sql: &str, lines: &str) -> Result<u64, Error> {
    let mut sink = pin!(connection.copy_in(sql).await?);
    sink.send(std::io::Cursor::new(lines.as_bytes().to_vec())).await?;
    sink.finish().await
}

async fn in_tenant(db: &Database, tenant: &str) -> Connection {
    let writer = db.writer().await;
    writer.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
    writer
}

async fn auditor(db: &Database) -> Connection {
    let role = db.role("auditor", Some("auditor")).await;
    db.connect(Role::Named(role)).await
}

async fn admin(db: &Database) -> Connection {
    let role = db.role("admin", Some("admin")).await;
    db.connect(Role::Named(role)).await
}

/// Has this connection's waits for a lock end at once, as an error of its own.
async fn wait_for_nothing(connection: &Connection) {
    connection.run("set lock_timeout = '1ms'").await;
}
