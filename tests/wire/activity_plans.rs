//! What session_activity and tenant_usage read: as a reader of one tenant among others, and as the owner; with statistics and
//! without.

use agent_sessions_tests::{Connection, Database};
use serde_json::Value;

use crate::explain::{explain, touched};
use crate::long_logs::{self, ITEMS};

const SESSIONS: i64 = 2_000;
/// Items whose payloads are stored out of line, two pages each.
const LARGE: i64 = 200;

/// A tenant of one long log among sessions that hardly have any, so that the average misleads; one of large payloads; and the
/// empty one with three sessions.
async fn filled(name: &str) -> Database {
    let db = long_logs::database(name).await;
    let writer = db.writer().await;
    writer.run("set agent_sessions.tenant = 'long'").await;
    long_logs::append(&writer, "long", 0, ITEMS).await;
    writer
        .run(&format!(
            "insert into agent_sessions.session (tenant, agent_id, session_id)
               select 'long', '', 's' || n from generate_series(1, {SESSIONS}) n;
             insert into agent_sessions.session_item (sid, payload)
               select sid, '1' from agent_sessions.session where session_id in ('s1', 's2');
             set agent_sessions.tenant = 'large';
             select from agent_sessions.session_append_batch('large', on_missing => 'create', items => (
               select json_agg(json_build_object('payload', (
                 select string_agg(md5(n || ' ' || part), '') from generate_series(1, 500) part)))
               from generate_series(1, {LARGE}) n));
             set agent_sessions.tenant = ''"
        ))
        .await;
    for session in ["1", "2", "3"] {
        writer.create_session(session).await;
        writer.append(session, "1").await;
    }
    db
}

async fn read(connection: &Connection, query: &str) -> (i64, Value) {
    // What a backend reads of the catalogs it reads once.
    explain(connection, query).await;
    let explained = explain(connection, query).await;
    (touched(&explained), explained)
}

async fn assert_reads_at_most(connection: &Connection, query: &str, most: i64) {
    let (touched, explained) = read(connection, query).await;
    assert!(touched <= most, "{query}: {touched} buffers, {most} would do\n{explained:#}");
}

async fn pages(db: &Database, table: &str) -> i64 {
    let pages = format!("select pg_relation_size({table}) / current_setting('block_size')::bigint");
    db.superuser().await.value(&pages, &[]).await
}

const CHEAP: &str = "session_id, status, active_at, last_entry_at, entries, branches, cost";

#[tokio::test(flavor = "multi_thread")]
async fn a_column_costs_what_it_reads_and_nothing_that_is_not_asked_for() {
    let db = filled("activity_plans").await;
    let items = pages(&db, "'agent_sessions.session_item'").await;
    let toast =
        pages(&db, "(select reltoastrelid from pg_class where oid = 'agent_sessions.session_item'::regclass)").await;
    assert!(toast > LARGE, "{toast} pages are out of line");
    for analyzed in [false, true] {
        if analyzed {
            long_logs::analyze(&db).await;
        }
        let (reader, owner) = (db.reader().await, db.owner().await);
        for connection in [&reader, &owner] {
            connection.run("set jit = off; set max_parallel_workers_per_gather = 0").await;
        }
        let page = |columns: &str| {
            format!("select {columns} from agent_sessions.session_activity order by active_at desc limit 20")
        };
        reader.run("set agent_sessions.tenant = 'long'").await;
        // Until there are statistics, the planner does not know that a tenant has many sessions: it reads and sorts them, and looks
        // for each one's branches among them.
        let sorted = if analyzed { 0 } else { SESSIONS / 2 + 20 * SESSIONS / 4 };
        assert_reads_at_most(&reader, &page(CHEAP), 240 + sorted).await;
        assert_reads_at_most(&reader, &page("*"), 1_000 + sorted).await;
        // The index leads by tenant: over all of them, the rows of session are read and sorted.
        assert_reads_at_most(&owner, &page(CHEAP), 240 + SESSIONS / 4).await;
        assert_reads_at_most(&owner, &page("*"), 1_000 + SESSIONS / 4).await;
        // Each log is read by itself, the long one once.
        let largest = "select session_id, stored_bytes, open_items from agent_sessions.session_activity order by stored_bytes desc limit 1";
        assert_reads_at_most(&reader, largest, 2 * (items + items / 2) + SESSIONS * 10).await;

        let (usage, sums) = (
            "select * from agent_sessions.tenant_usage",
            "select tenant, sessions, cost, live_leases from agent_sessions.tenant_usage",
        );
        for connection in [&reader, &owner] {
            assert_reads_at_most(connection, usage, items + SESSIONS * 10).await;
            assert_reads_at_most(connection, sums, SESSIONS / 4).await;
        }

        // A small tenant does not read the others' logs, except for stored_bytes.
        reader.run("set agent_sessions.tenant = ''").await;
        assert_reads_at_most(&reader, "select * from agent_sessions.session_activity", 100).await;
        assert_reads_at_most(&reader, "select tenant, sessions, entries, cost from agent_sessions.tenant_usage", 100)
            .await;
        // What is stored out of line is not fetched for its size.
        reader.run("set agent_sessions.tenant = 'large'").await;
        let large = "select stored_bytes from agent_sessions.session_activity";
        assert_reads_at_most(&reader, large, 50).await;
        let bytes: i64 = reader.value(large, &[]).await;
        assert!((LARGE * 8_000..LARGE * 17_000).contains(&bytes), "{bytes} bytes");
    }
}
