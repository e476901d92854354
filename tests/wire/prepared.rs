//! Two-phase commit: what was prepared outlives a restart, holds its sessions until it is decided, and is there whole or not
//! at all.

use agent_sessions_tests::{Connection, OwnCluster, assert_sqlstate};

/// A transaction of each kind, and the session that it holds.
const PARTS: [(&str, &str); 5] = [
    (
        "appended",
        "select agent_sessions.session_append_batch('appended', '[{\"payload\":1},{\"payload\":2,\"item_id\":\"i\"}]');
         select agent_sessions.session_append('appended', '\"\"', open => true);
         select agent_sessions.session_delta('appended',
           target => (select next_position - 1 from agent_sessions.session_get('appended')), chunk_no => 0, chunk => 'x', durable => false)",
    ),
    ("claimed", "select agent_sessions.session_claim('claimed', '1 hour', holder => 'prepared')"),
    ("source", "select agent_sessions.session_branch('source', new_session_id => 'branch', seed => '\"seed\"')"),
    ("deleted", "select agent_sessions.session_delete('deleted')"),
    ("erased", "select agent_sessions.session_erase('erased', target => 0, reason => 'why')"),
];

async fn prepared(client: &Connection) {
    for (session, part) in PARTS {
        client.run(&format!("begin; {part}; select agent_sessions.audit_append('did', stream => '{session}')")).await;
        client.run(&format!("prepare transaction '{session}'")).await;
        // The backend has nothing of it any more.
        client.run("select agent_sessions.session_append('beside', '1', on_missing => 'create')").await;
    }
}

/// Whoever wants one of the sessions waits for the decision.
async fn assert_held(server: &OwnCluster) {
    let rival = server.app_client().await;
    rival.run("set lock_timeout = '50 ms'").await;
    for (session, _) in PARTS {
        assert_sqlstate!(rival.try_append(session, "1").await, "55P03");
    }
    let claim = "select fence from agent_sessions.session_claim('claimed', '1 hour', wait => '50 ms')";
    assert_eq!(rival.query(claim, &[]).await.expect("a claim").len(), 0);
}

async fn decide(server: &OwnCluster, decision: &str) {
    let client = server.app_client().await;
    for (session, _) in PARTS {
        client.run(&format!("{decision} prepared '{session}'")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_prepared_outlives_a_restart_and_is_there_whole_or_not_at_all() {
    let server = OwnCluster::start(&["max_prepared_transactions = 10", "fsync = off"]).await;
    server.install().await;
    let client = server.app_client().await;
    for (session, _) in PARTS {
        client.run(&format!("select agent_sessions.session_append('{session}', '0', on_missing => 'create')")).await;
    }

    prepared(&client).await;
    server.stop().await;
    server.start_again().await;
    assert_held(&server).await;
    decide(&server, "rollback").await;
    let client = server.app_client().await;
    for (session, _) in PARTS {
        client.assert_dense(session, 1).await;
        assert_eq!(client.append(session, "1").await, 1);
    }
    assert_eq!(client.query("select * from agent_sessions.audit_list()", &[]).await.expect("a list").len(), 0);
    let fence = "select fence from agent_sessions.session_claim('claimed', '1 hour')";
    let told: i64 = client.value(fence, &[]).await;
    client.run("select agent_sessions.session_break_lease('claimed')").await;

    prepared(&client).await;
    server.crash().await;
    server.start_again().await;
    assert_held(&server).await;
    decide(&server, "commit").await;
    let client = server.app_client().await;
    client.assert_dense("appended", 5).await;
    let text = "select delta_text from agent_sessions.session_history('appended') where open";
    assert_eq!(client.value::<String>(text, &[]).await, "x");
    assert_sqlstate!(client.try_append("claimed", "2").await, "SE009");
    let holder = "select fence, holder from agent_sessions.lease_status where session_id = 'claimed'";
    let row = client.query_one(holder, &[]).await.expect("a lease");
    assert_eq!(row.get::<_, &str>(1), "prepared");
    assert!(row.get::<_, i64>(0) > told);
    client.assert_dense("branch", 3).await;
    assert_sqlstate!(client.try_append("deleted", "2").await, "SE002");
    let erased = client.verify("erased").await;
    assert!(erased.ok && erased.redacted == 1, "{erased:?}");
    assert_eq!(client.append("source", "2").await, 2);
    let streams = "select count(*), bool_and(ok), bool_and(entries = 1) from agent_sessions.audit_verify()";
    let row = client.query_one(streams, &[]).await.expect("a verdict");
    assert_eq!((row.get(0), row.get(1), row.get(2)), (PARTS.len() as i64, true, true));
}
