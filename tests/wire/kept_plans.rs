//! The engine's plans are kept for as long as a connection lives: they hold whatever the tables were like when they were made.

use agent_sessions_tests::{Connection, Database};

use crate::explain::{explain, number};

// So many that a scan of them, or of the sessions, is hundreds of buffers.
const ENTRIES: usize = 20_000;

/// A look-up touches the levels of an index and a page or two of the table; a branch that is deleted is the longest of these calls.
const BUFFERS: f64 = 160.0;

/// A call of every kind that a connection repeats, where the log goes on at `next`.
fn calls(next: i64) -> Vec<String> {
    let open = next + 1;
    [
        format!("session_append('s', '1', item_id => 'a{next}', on_missing => 'create')"),
        format!("session_append('s', '1', item_id => 'a{next}')"),
        "session_append('s', '1', open => true)".to_owned(),
        format!("session_delta('s', target => {open}, chunk_no => 0, chunk => 'x')"),
        format!("session_revise('s', '2', target => {open})"),
        format!("session_retract('s', targets => '{{{open}}}')"),
        "session_set('s', title => 'x')".to_owned(),
        "session_claim('c', ttl => '1 millisecond')".to_owned(),
        "session_history('s', max_rows => 2, newest_first => true)".to_owned(),
        "session_context('s', max_rows => 2)".to_owned(),
        "audit_append('test', '1')".to_owned(),
        format!("session_branch('s', new_session_id => 'b{next}', title => 'Branch %d')"),
        format!("session_create('sub{next}', parent_session_id => 'b{next}')"),
        format!("session_append('b{next}', '1')"),
        format!("session_history('b{next}', max_rows => 2, newest_first => true)"),
        format!("session_trim('b{next}', keep_from => {next})"),
        format!("session_erase('b{next}', target => {next})"),
        format!("session_branch('b{next}', new_session_id => 'bb{next}', at_target => 0)"),
        format!("session_delete('b{next}')"),
        format!("session_flatten('bb{next}')"),
        format!("session_trim('bb{next}', keep_from => 2, force => true)"),
        "session_claim_next(ttl => '1 millisecond')".to_owned(),
        "session_expire(older_than => '1 year')".to_owned(),
        "session_lineage('s')".to_owned(),
        "session_pop('s')".to_owned(),
        "audit_append('test', '1', event_id => 'a')".to_owned(),
    ]
    .map(|call| format!("select from agent_sessions.{call}"))
    .to_vec()
}

async fn grow(writer: &Connection) {
    let elements = |element: &str| format!("[{}]", vec![element; ENTRIES].join(","));
    writer.append_batch("s", &elements(r#"{"payload":1}"#)).await;
    let events = elements(r#"{"action":"test","payload":1}"#);
    writer.run(&format!("select from agent_sessions.audit_append_batch('', '{events}')")).await;
    writer.run("select agent_sessions.session_create('other ' || n) from generate_series(1, 2000) n").await;
}

/// ANALYZE of a new database, as deployments run it, says that the tables have no page and no row.
#[tokio::test(flavor = "multi_thread")]
async fn plans_from_when_the_tables_were_empty_find_by_key_when_they_are_not() {
    let db = Database::create("kept_plans").await;
    db.superuser().await.run("vacuum analyze").await;
    let writer = db.writer().await;
    for call in calls(0) {
        writer.run(&call).await;
    }
    grow(&writer).await;
    // The first round reads catalogs, once.
    for is_judged in [false, true] {
        let next = writer.value("select next_position from agent_sessions.session_get('s')", &[]).await;
        for call in calls(next) {
            let plan = &explain(&writer, &call).await["Plan"];
            let buffers = number(plan, "Shared Hit Blocks") + number(plan, "Shared Read Blocks");
            if is_judged {
                println!("{buffers:>4} buffers: {call}");
                assert!(buffers > 0.0 && buffers < BUFFERS, "{call}: {buffers} buffers");
            }
        }
    }
}
