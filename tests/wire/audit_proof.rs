//! What the audit trail proves: the tampering that its chain, an anchor or a proof tells; pruning, dumps, and what verifying costs.

mod anchored;
mod anchors;
mod dumps;
mod heads;
mod imported;
mod malformed;
mod measures;
mod program;
mod proofs;
mod prune;
mod settings;
mod tamper;

use std::collections::BTreeMap;
use std::sync::Mutex;

use agent_sessions_tests::{Connection, Database, Error, Role};
use tokio_postgres::types::ToSql;

/// The events of the stream that most tests begin with.
const EVENTS: i64 = 9;

/// Those of them that have every column.
const FULL: &[i64] = &[3, 6, 9];

/// The stream `orders` of the tenant acme: every third event has all columns, the others have what is demanded.
async fn orders(db: &Database) -> Connection {
    let writer = db.writer().await;
    writer.run("set agent_sessions.tenant = 'acme'").await;
    fill(&writer, "orders", EVENTS).await;
    writer
}

/// Appends events to a stream, as `orders` has them.
async fn fill(writer: &Connection, stream: &str, events: i64) {
    let head = "select coalesce(max(head_seq), 0) from agent_sessions.audit_stream where stream = $1";
    let head: i64 = writer.value(head, &[&stream]).await;
    let append = r#"
        select count(*) filter (where outcome = 'appended')
        from (select n, n % 3 = 0 as is_full from generate_series($2::bigint + 1, $2 + $3::bigint) n) numbers,
          lateral agent_sessions.audit_append(case when is_full then 'sell ' else 'look ' end || n, stream => $1::text,
            payload => case when is_full then '{"b":1e2, "a":"\u0000 \ud83d", "b":[ ]}'::json end,
            actor => case when is_full then 'ann' end, target => case when is_full then 'café 🔥' end,
            session_id => case when is_full then 's' end, status => case when is_full then 'ok' end,
            attrs => case when is_full then '{"n": 1.50, "list": [1, null]}'::jsonb end,
            occurred_at => case when is_full then '2001-02-03 04:05:06.789+00'::timestamptz end,
            event_id => case when is_full then 'e' || n end)"#;
    assert_eq!(writer.value::<i64>(append, &[&stream, &head, &events]).await, events);
}

/// A row of audit_verify.
#[derive(Clone, Debug, PartialEq)]
struct Verdict {
    entries: i64,
    redacted: i64,
    /// The first bad seq, and why.
    fault: Option<(i64, String)>,
}

fn untouched(entries: i64) -> Verdict {
    Verdict { entries, redacted: 0, fault: None }
}

/// What audit_verify says of each stream, called with these arguments.
async fn verdicts(connection: &Connection, arguments: &str) -> BTreeMap<String, Verdict> {
    let sql = format!(
        "select stream, entries, redacted, ok, first_bad_seq, reason from agent_sessions.audit_verify({arguments})"
    );
    let rows = connection.query(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter()
        .map(|row| {
            let fault: Option<(i64, String)> = row.get::<_, Option<i64>>(4).zip(row.get(5));
            assert_eq!(row.get::<_, bool>(3), fault.is_none(), "{sql}");
            (row.get(0), Verdict { entries: row.get(1), redacted: row.get(2), fault })
        })
        .collect()
}

/// What audit_verify says of the one stream that its arguments name.
async fn verdict(connection: &Connection, arguments: &str) -> Verdict {
    let mut found: Vec<Verdict> = verdicts(connection, arguments).await.into_values().collect();
    assert_eq!(found.len(), 1, "audit_verify({arguments})");
    found.remove(0)
}

async fn first_bad(connection: &Connection, arguments: &str) -> Option<i64> {
    verdict(connection, arguments).await.fault.map(|(seq, _)| seq)
}

/// What can be wrong with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Missing,
    Link,
    Text,
    Columns,
}

/// A superuser whose statements fire no trigger.
struct Tamperer {
    connection: Connection,
    stream: String,
    entries: i64,
    /// What audit_verify has called each fault so far.
    reasons: Mutex<BTreeMap<Fault, String>>,
}

impl Tamperer {
    async fn of(db: &Database, stream: &str, entries: i64) -> Tamperer {
        let connection = tamperer(db).await;
        Tamperer { connection, stream: stream.to_owned(), entries, reasons: Mutex::new(BTreeMap::new()) }
    }

    async fn verdict(&self) -> Verdict {
        verdict(&self.connection, &format!("'{}'", self.stream)).await
    }

    /// Runs what an attacker would, asserts that this seq is named for this fault, and takes it back.
    async fn assert_found(&self, sql: &str, seq: i64, fault: Fault) {
        self.connection.begin("read committed").await;
        self.connection.run(sql).await;
        let found = self.verdict().await;
        let (first_bad, reason) = found.fault.unwrap_or_else(|| panic!("not found: {sql}"));
        assert_eq!(first_bad, seq, "{reason}: {sql}");
        self.assert_named(fault, reason, sql);
        self.connection.rollback().await;
        assert_eq!(self.verdict().await, untouched(self.entries), "after {sql}");
    }

    /// A fault is always called the same, and no other is called so.
    fn assert_named(&self, fault: Fault, reason: String, sql: &str) {
        let mut reasons = self.reasons.lock().expect("no test panics while it holds this");
        let name = reasons.entry(fault).or_insert_with(|| reason.clone()).clone();
        let faults: Vec<Fault> = reasons.iter().filter(|(_, name)| **name == reason).map(|(fault, _)| *fault).collect();
        drop(reasons);
        assert_eq!((name, faults), (reason, vec![fault]), "{sql}");
    }
}

/// A superuser of the tenant acme whose statements fire no trigger.
async fn tamperer(db: &Database) -> Connection {
    let superuser = db.superuser().await;
    superuser.run("set session_replication_role = replica; set agent_sessions.tenant = 'acme'").await;
    superuser
}

/// SQL of the hash that an event has behind another.
fn hash(before: &str, data: &str) -> String {
    format!("'sha256:' || encode(sha256(convert_to({before} || E'\\n' || {data}, 'UTF8')), 'hex')")
}

/// SQL that gives a stream's event another payload, and hashes it and all that follow it anew: the chain is valid again.
fn rewritten(stream: &str, seq: i64) -> String {
    let hash = hash("previous", "event.data");
    format!(
        "do $$
         declare
           event agent_sessions.audit_event;
           previous text := coalesce(
             (select e.hash from agent_sessions.audit_event e where e.stream = '{stream}' and e.seq = {seq} - 1),
             'sha256:' || repeat('0', 64));
         begin
           for event in select * from agent_sessions.audit_event e where e.stream = '{stream}' and e.seq >= {seq} order by e.seq loop
             if event.seq = {seq} then
               event.data := left(event.data, strpos(event.data, '\"payload\":') + 9) || '\"forged\"}}';
             end if;
             event.hash := {hash};
             update agent_sessions.audit_event e set data = event.data, prev_hash = previous, hash = event.hash
               where e.stream = '{stream}' and e.seq = event.seq;
             previous := event.hash;
           end loop;
         end
         $$"
    )
}

#[derive(Clone, Debug)]
struct Anchor {
    id: i64,
    root: String,
    chains: i32,
}

async fn try_anchor(connection: &Connection) -> Result<Anchor, Error> {
    let made = connection.query_one("select anchor_id, root, chains from agent_sessions.audit_anchor()", &[]).await?;
    Ok(Anchor { id: made.get(0), root: made.get(1), chains: made.get(2) })
}

async fn anchor(connection: &Connection) -> Anchor {
    try_anchor(connection).await.expect("an anchor")
}

/// What audit_check_anchor finds of an anchor whose root was kept; nothing if its chains are there.
async fn lost(connection: &Connection, anchor: &Anchor) -> Option<String> {
    let by_root = lost_by(connection, "root => $1", &[&anchor.root]).await;
    let by_id = lost_by(connection, "root => $1, anchor_id => $2", &[&anchor.root, &anchor.id]).await;
    assert_eq!(by_root.is_some(), by_id.is_some(), "{by_root:?}, but by its id {by_id:?}");
    by_id
}

async fn lost_by(connection: &Connection, arguments: &str, parameters: &[&(dyn ToSql + Sync)]) -> Option<String> {
    let sql = format!("select ok, reason from agent_sessions.audit_check_anchor({arguments})");
    let row = connection.query_one(&sql, parameters).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    let reason: Option<String> = row.get(1);
    assert_eq!(row.get::<_, bool>(0), reason.is_none(), "{reason:?}");
    reason
}

async fn prune(connection: &Connection, stream: &str, before_seq: i64) -> Result<i64, Error> {
    connection.try_value("select agent_sessions.audit_prune($1, $2)", &[&stream, &before_seq]).await
}

/// An admin of the tenant acme.
async fn admin(db: &Database) -> Connection {
    let admin = db.connect(Role::Named(db.role("admin", Some("admin")).await)).await;
    admin.run("set agent_sessions.tenant = 'acme'").await;
    admin
}
