//! What verifying, anchoring and proving cost: time is printed, memory is bounded.
//!
//! With AGENT_SESSIONS_LARGE in the environment the stream has a million events and the tenant 100 000 chains.

use std::io::Write;
use std::time::{Duration, Instant};

use agent_sessions_tests::{Database, Role, assert_sqlstate, detail};
use serde_json::json;

use super::*;

/// What a backend may need besides, in kB.
const MEMORY: u64 = 32 * 1024;

fn is_large() -> bool {
    std::env::var_os("AGENT_SESSIONS_LARGE").is_some()
}

/// The test runner keeps what print! says of a test that passes.
fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("standard output is open");
}

/// A backend whose memory is watched.
struct Watched {
    connection: Connection,
}

/// What a call has cost.
#[derive(Debug)]
struct Cost {
    took: Duration,
    /// How far the backend's memory was at its height above what it was before, in kB.
    grew: u64,
}

impl Watched {
    /// A fresh backend, to which all pages that it will read are mapped: they are the server's, and would count as its own.
    async fn open(db: &Database, role: Role, pages: &[&str]) -> Watched {
        let connection = db.connect(role).await;
        connection
            .run("set agent_sessions.tenant = 'acme'; set jit = off; set enable_seqscan = off; set enable_bitmapscan = off")
            .await;
        for sql in pages {
            connection.query(*sql, &[]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
        }
        // The library (that of the compiler, 50 MB, is switched off), its plans and PostgreSQL's own caches.
        connection.run("select * from agent_sessions.audit_verify('none'); select * from agent_sessions.audit_check_anchor('none')").await;
        Watched { connection }
    }

    /// The most that the backend ever had in memory, in kB.
    fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.connection.pid))
            .expect("the server is on this machine");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    async fn cost<T>(&self, what: &str, call: impl AsyncFnOnce(&Connection) -> T) -> (T, Cost) {
        self.cost_below(MEMORY, what, call).await
    }

    async fn cost_below<T>(&self, most: u64, what: &str, call: impl AsyncFnOnce(&Connection) -> T) -> (T, Cost) {
        let (before, began) = (self.peak(), Instant::now());
        let result = call(&self.connection).await;
        let cost = Cost { took: began.elapsed(), grew: self.peak() - before };
        say(&format!("{what}: {} ms, {} kB more at the height", cost.took.as_millis(), cost.grew));
        assert!(cost.grew < most, "{what}: {cost:?}");
        (result, cost)
    }
}

/// The pages of the chain's table and index.
const CHAIN: &str = "select sum(length(hash) + length(data)) from agent_sessions.audit_event where tenant = 'acme' and stream = 'orders' and seq > 0";

/// Makes a stream as long as wanted, ten thousand events at a time.
async fn long_stream(writer: &Connection, events: i64) {
    let append = "select count(*) from agent_sessions.audit_append_batch('orders', (
        select json_agg(json_build_object('action', 'look ' || n, 'payload', json_build_object('number', n, 'text', md5(n::text)),
          'actor', 'ann', 'target', 'item ' || n % 100, 'attrs', json_build_object('n', n)))
        from generate_series($1::bigint + 1, $1 + 10000) n))";
    let began = Instant::now();
    for done in (0..events).step_by(10_000) {
        assert_eq!(writer.value::<i64>(append, &[&done]).await, 10_000);
    }
    say(&format!("{events} events appended in {} ms", began.elapsed().as_millis()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_stream_verifies_in_memory_that_does_not_grow() {
    let events = if is_large() { 1_000_000 } else { 110_000 };
    let db = Database::create("measure_stream").await;
    let writer = db.writer().await;
    writer.run("set agent_sessions.tenant = 'acme'").await;
    long_stream(&writer, events).await;
    let made = anchor(&writer).await;

    let watched = Watched::open(&db, Role::Writer, &[CHAIN]).await;
    let (found, cost) =
        watched.cost(&format!("audit_verify of {events} events"), async |c| verdict(c, "'orders'").await).await;
    assert_eq!(found, untouched(events));
    assert!(cost.took < Duration::from_secs(events as u64 / 5_000));
    watched.cost("audit_check_anchor of one stream", async |c| assert_eq!(lost(c, &made).await, None)).await;
    let (near, _) =
        watched.cost("audit_proof of the newest event", async |c| proofs::proof(c, "orders", events, None).await).await;
    let (checked, _) = watched.cost("audit_check_proof", async |c| proofs::checks(c, &near, &made.root).await).await;
    assert!(checked);

    // Behind the 100 000th, too.
    let tamperer = Tamperer::of(&db, "orders", events).await;
    let event = "agent_sessions.audit_event";
    tamperer
        .assert_found(&format!("update {event} set actor = 'eve' where seq = 100003"), 100_003, Fault::Columns)
        .await;
    tamperer.assert_found(&format!("delete from {event} where seq = 100003"), 100_003, Fault::Missing).await;
    tamperer.connection.run(&format!("delete from {event} where seq > 100003")).await;
    assert_eq!(tamperer.verdict().await, untouched(100_003));
    assert!(lost(&writer, &made).await.is_some());
    let began = Instant::now();
    let again = anchor(&writer).await;
    assert_eq!(prune(&admin(&db).await, "orders", 100_000).await.expect("pruned"), 99_999);
    say(&format!("audit_prune of 99999 events: {} ms", began.elapsed().as_millis()));
    assert_eq!(verdict(&writer, "'orders'").await, Verdict { entries: 4, redacted: 99_999, fault: None });
    assert_eq!(lost(&writer, &again).await, None);
}

/// A page of rows is small, whatever is in them.
#[tokio::test(flavor = "multi_thread")]
async fn large_events_verify_in_memory_that_does_not_grow() {
    const LARGE: i64 = 400;
    let db = Database::create("measure_large").await;
    let writer = db.writer().await;
    writer.run("set agent_sessions.tenant = 'acme'").await;
    let append = "select count(outcome) from generate_series(1, $1::bigint) n, lateral agent_sessions.audit_append('look', stream => 'orders',
        payload => (select to_json(string_agg(md5((n * 100000 + i)::text), '')) from generate_series(1, 8000) i))";
    assert_eq!(writer.value::<i64>(append, &[&LARGE]).await, LARGE);
    anchor(&writer).await;
    let watched = Watched::open(&db, Role::Writer, &[CHAIN]).await;
    let what = format!("audit_verify of {LARGE} events of 250 kB");
    let (found, _) = watched.cost(&what, async |c| verdict(c, "'orders'").await).await;
    assert_eq!(found, untouched(LARGE));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_streams_verify_in_memory_that_does_not_grow() {
    const STREAMS: i64 = 10_000;
    let db = Database::create("measure_streams").await;
    let writer = db.writer().await;
    writer.run("set agent_sessions.tenant = 'acme'").await;
    let append = "select count(outcome) from generate_series(1, $1::bigint) n, lateral agent_sessions.audit_append('look', stream => 's' || n)";
    assert_eq!(writer.value::<i64>(append, &[&STREAMS]).await, STREAMS);
    let pages =
        "select sum(length(hash) + length(data)) from agent_sessions.audit_event where tenant = 'acme' and stream > ''";
    let watched = Watched::open(&db, Role::Writer, &[pages]).await;
    let sql = "select count(*) filter (where ok) from agent_sessions.audit_verify()";
    let what = format!("audit_verify of {STREAMS} streams");
    assert_eq!(watched.cost(&what, async |c| c.value::<i64>(sql, &[]).await).await.0, STREAMS);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_chains_are_anchored_checked_and_proven() {
    let chains: i64 = if is_large() { 100_000 } else { 10_000 };
    let db = Database::create("measure_chains").await;
    let writer = orders(&db).await;
    let create =
        "insert into agent_sessions.session (session_id) select 'session ' || n from generate_series(1, $1::bigint) n";
    assert_eq!(writer.execute(create, &[&chains]).await.expect("sessions") as i64, chains);
    // Not of the empty table: the plans made for that would stay.
    db.owner().await.run("analyze agent_sessions.session").await;
    let fill = "insert into agent_sessions.session_item (sid, payload) select sid, '1' from agent_sessions.session";
    assert_eq!(writer.execute(fill, &[]).await.expect("items") as i64, chains);

    let pages = [
        "select sum(length(session_id)) from agent_sessions.session where tenant = 'acme' and sid > 0",
        "select sum(length(session_id)) from agent_sessions.session where tenant = 'acme' and agent_id = '' and session_id > ''",
        "select sum(length(digest)) from agent_sessions.session_item where sid > 0",
    ];
    let watched = Watched::open(&db, Role::Writer, &pages).await;
    let most = Duration::from_secs(chains as u64 / 500);
    // The pages that it writes come on top.
    let (made, cost) =
        watched.cost_below(2 * MEMORY, &format!("audit_anchor of {chains} chains"), async |c| anchor(c).await).await;
    assert_eq!(made.chains as i64, chains + 1);
    assert!(cost.took < most, "{cost:?}");
    let leaves = "select sum(length(leaf)) from agent_sessions.audit_anchor_leaf where tenant = 'acme' and anchor_id = 1 and ordinal >= 0";
    let watched = Watched::open(&db, Role::Writer, &[&pages[..], &[leaves]].concat()).await;
    let (found, cost) = watched
        .cost(&format!("audit_check_anchor of {chains} chains"), async |c| lost_by(c, "$1", &[&made.root]).await)
        .await;
    assert_eq!(found, None);
    assert!(cost.took < most, "{cost:?}");
    let (proof, cost) = watched
        .cost(&format!("audit_proof among {chains} chains"), async |c| proofs::proof(c, "orders", 3, None).await)
        .await;
    assert!(cost.took < most, "{cost:?}");
    assert!(proofs::checks(&writer, &proof, &made.root).await);
    assert!(proof.len() < 10_000, "{}", proof.len());

    // The trail is looked at for every session that was deleted.
    let deleted = 2_000;
    let admin = admin(&db).await;
    admin.run("select agent_sessions.audit_track('delete', true)").await;
    let delete = "select count(agent_sessions.session_delete('session ' || n)) from generate_series(1, $1::bigint) n";
    assert_eq!(admin.value::<i64>(delete, &[&i64::from(deleted)]).await, i64::from(deleted));
    let watched = Watched::open(&db, Role::Writer, &[&pages[..], &[leaves]].concat()).await;
    let what = format!("audit_check_anchor of {chains} chains of which {deleted} were deleted");
    let (found, cost) = watched.cost(&what, async |c| lost_by(c, "$1", &[&made.root]).await).await;
    assert_eq!(found, None);
    assert!(cost.took < most, "{cost:?}");
}

/// A proof holds the texts up to the anchored head; one that would be too large is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_proof_that_would_be_too_large_is_refused() {
    let db = Database::create("measure_proof").await;
    let writer = db.writer().await;
    writer.run("set agent_sessions.tenant = 'acme'").await;
    let append = "select count(outcome) from generate_series(1, 5) n, lateral agent_sessions.audit_append('look ' || n, stream => 'orders',
        payload => to_json(repeat('0123456789abcdef', 3500000)))";
    assert_eq!(writer.value::<i64>(append, &[]).await, 5);
    let made = anchor(&writer).await;
    let refused = writer.query("select agent_sessions.audit_proof('orders', 1)", &[]).await;
    assert_eq!(detail(&assert_sqlstate!(refused, "SE018"))["limit"], json!(255 << 20));
    let checked = "select agent_sessions.audit_check_proof(agent_sessions.audit_proof('orders', 3), $1)";
    assert!(writer.value::<bool>(checked, &[&made.root]).await);
}
