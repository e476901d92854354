//! Memory and disks that run out in the middle of a call: an ordinary error, nothing half-written, and a backend that goes on.

use std::collections::BTreeMap;

use agent_sessions_tests::{Connection, Error, OwnCluster, assert_sqlstate, sqlstate};

use crate::crash::say;

const CALLS: [&str; 9] = [
    "session_append_batch('s', (select batch from public.big))",
    "session_append('s', (select payload from public.big))",
    "session_branch('s', new_session_id => 'b', seed => (select payload from public.big))",
    "session_verify('long')",
    "audit_verify('e')",
    "session_history('long')",
    "session_flatten('heir')",
    "audit_append_batch('e', (select events from public.big))",
    "audit_anchor()",
];

const WARM: &str = "select agent_sessions.session_verify('s');
    begin;
    select agent_sessions.session_append('s', '1');
    rollback";

fn is_fatal(error: &Error) -> bool {
    error.as_db_error().is_some_and(|raised| raised.severity() == "FATAL")
}

/// The server, that is, and every backend but at worst its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_goes_on_when_a_backend_is_out_of_memory() {
    let server = OwnCluster::start(&["jit = off", "fsync = off"]).await;
    server.install().await;
    let superuser = server.superuser().await;
    superuser
        .run(
            "create table public.big as
               select (select json_agg(json_build_object('payload', n, 'item_id', n::text)) from generate_series(1, 40000) n) as batch,
                      (select json_agg(json_build_object('action', 'a', 'payload', n)) from generate_series(1, 20000) n) as events,
                      to_json(repeat('x', 20000000)) as payload;
             grant select on public.big to public",
        )
        .await;
    let other = server.app_client().await;
    other
        .run(
            "select count(*) from (select agent_sessions.session_append_batch('long', batch, on_missing => 'create') from public.big) b;
             select agent_sessions.session_append('long', payload) from public.big;
             select agent_sessions.session_append('s', '0', on_missing => 'create');
             select agent_sessions.session_branch('long', new_session_id => 'heir');
             select count(*) from (select agent_sessions.audit_append_batch('e', events) from public.big) b",
        )
        .await;
    let started = "select pg_postmaster_start_time()::text";
    let up_since: String = superuser.value(started, &[]).await;
    // By call: errors after which the backend went on, and those that ended it, since it was Rust that needed memory.
    let mut refused: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for call in CALLS {
        // With less, pgrx finds no memory for its copy of PostgreSQL's error, and the server panics.
        for growth in [4 << 20, 8 << 20, 12 << 20, 16 << 20, 40 << 20] {
            let client = server.app_client().await;
            // The library, the plans and the stack are there before memory is short.
            client.run(WARM).await;
            client.run("begin").await;
            server.limit_memory(client.pid, Some(growth)).await;
            let ended = client.batch_execute(&format!("select count(*) from agent_sessions.{call}")).await;
            let is_fatal = ended.as_ref().err().is_some_and(is_fatal);
            if let Err(error) = ended {
                assert!(error.code().is_some(), "{call} with {growth} bytes more: {error:?}");
                assert_eq!(sqlstate(&error), "53200", "{call} with {growth} bytes more: {error:?}");
                refused.entry(call).or_default()[usize::from(is_fatal)] += 1;
            }
            if !is_fatal {
                server.limit_memory(client.pid, None).await;
                client.rollback().await;
                client.run(WARM).await;
                assert!(client.verify("s").await.ok);
            }
        }
    }
    assert_eq!(superuser.value::<String>(started, &[]).await, up_since, "the server has crashed");
    say(&format!("of 5 limits each, memory was too short, and then so short that the backend ended: {refused:?}"));
    assert!(refused.len() > CALLS.len() / 2, "{refused:?}");
    other.assert_dense("s", 1).await;
}

/// Fills what is left of the disk.
async fn fill(filler: &Connection) {
    for size in [4000, 100] {
        let more = format!("insert into public.filler select repeat('x', {size}) from generate_series(1, 50)");
        let full = loop {
            if let Err(error) = filler.batch_execute(&more).await {
                break error;
            }
        };
        assert_eq!(sqlstate(&full), "53100", "{full:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_takes_nothing_half() {
    let Some(server) = OwnCluster::with_small_disk("40m").await else {
        return say("a full disk: skipped, no disk can be mounted here");
    };
    server.install().await;
    let client = server.app_client().await;
    // Of another database, whose catalogs have room when the table goes.
    let filler = server.cluster.connect(&server.cluster.superuser, "postgres").await;
    filler.run("create table public.filler (x text) tablespace small").await;
    client.create_session("s").await;
    client.run("select agent_sessions.session_append('s', '0', open => true)").await;
    fill(&filler).await;

    // One after the other, until there is no room.
    let mut entries = 1;
    let full = loop {
        match client.try_append("s", &format!("\"{}\"", "y".repeat(500))).await {
            Ok(position) => assert_eq!(position, entries),
            Err(error) => break error,
        }
        entries += 1;
    };
    assert_eq!(sqlstate(&full), "53100", "{full:?}");
    client.assert_dense("s", entries).await;
    let batch = "select count(*) from agent_sessions.session_append_batch('s',
        (select json_agg(json_build_object('payload', repeat(n::text, 400))) from generate_series(1, 5000) n))";
    let events = "select count(*) from agent_sessions.audit_append_batch('e',
        (select json_agg(json_build_object('action', 'a', 'payload', repeat(n::text, 400))) from generate_series(1, 5000) n))";
    let seed = "select count(*) from agent_sessions.session_branch('s', seed => (select to_json(string_agg(md5(n::text), '')) from generate_series(1, 20000) n))";
    for call in [batch, events, seed] {
        assert_sqlstate!(client.batch_execute(call).await, "53100");
        // What is there is read and verified without any room.
        client.assert_dense("s", entries).await;
    }
    let sessions = "select count(*) from agent_sessions.session_list()";
    assert_eq!(client.value::<i64>(sessions, &[]).await, 1);
    assert_eq!(client.query("select * from agent_sessions.audit_list()", &[]).await.expect("a list").len(), 0);

    filler.run("drop table public.filler").await;
    for call in [batch, events, seed] {
        client.run(call).await;
    }
    client.assert_dense("s", entries + 5000).await;
    assert!(client.value::<bool>("select bool_and(ok) from agent_sessions.audit_verify()", &[]).await);
}
