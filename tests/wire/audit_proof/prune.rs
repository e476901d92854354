//! Pruning: what an anchor covers may go, by the admin's call alone, and the rest is a chain as before.

use agent_sessions_tests::{Database, assert_sqlstate, detail};
use serde_json::json;

use super::*;

async fn stream_row(connection: &Connection, stream: &str) -> (i64, Option<i64>, Option<i64>) {
    let sql = "select base_seq, head_seq, events from agent_sessions.audit_stream where stream = $1";
    let row = connection.query_one(sql, &[&stream]).await.expect("the stream");
    (row.get(0), row.get(1), row.get(2))
}

async fn seqs(connection: &Connection, sql: &str) -> Vec<i64> {
    let rows = connection.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_anchor_has_recorded_stays() {
    let db = Database::create("prune_anchored").await;
    let writer = orders(&db).await;
    fill(&writer, "other", 5).await;
    let admin = admin(&db).await;
    for before in [2, 5, EVENTS, 1000] {
        let refused = assert_sqlstate!(prune(&admin, "orders", before).await, "SE014");
        assert_eq!(detail(&refused)["object"], json!("audit_event"));
    }
    // Another tenant's anchor of a stream of that name, and one that was rolled back.
    let others = db.writer().await;
    fill(&others, "orders", 20).await;
    anchor(&others).await;
    writer.begin("read committed").await;
    anchor(&writer).await;
    writer.rollback().await;
    assert_sqlstate!(prune(&admin, "orders", 2).await, "SE014");

    anchor(&writer).await;
    fill(&writer, "orders", 1).await;
    fill(&writer, "other", 1).await;
    // The anchor has recorded 9 of 10 events.
    fill(&writer, "orders", 1).await;
    assert_sqlstate!(prune(&admin, "orders", EVENTS + 2).await, "SE014");
    assert_eq!(verdict(&writer, "'orders'").await, untouched(EVENTS + 2));
    assert_eq!(prune(&admin, "orders", EVENTS + 1).await.expect("pruned"), EVENTS);
    assert_eq!(verdict(&writer, "'orders'").await, Verdict { entries: 2, redacted: EVENTS, fault: None });
    assert_eq!(verdict(&writer, "'other'").await, untouched(6));
    assert_eq!(verdict(&others, "'orders'").await, untouched(20));
}

#[tokio::test(flavor = "multi_thread")]
async fn pruning_counts_and_keeps_the_newest() {
    let db = Database::create("prune_counts").await;
    let writer = orders(&db).await;
    let kept = anchor(&writer).await;
    let admin = admin(&db).await;
    for (before, removed, base) in [
        (0, 0, 0),
        (1, 0, 0),
        (2, 1, 1),
        (2, 0, 1),
        (5, 3, 4),
        (4, 0, 4),
        (5, 0, 4),
        (i64::MAX, 4, 8),
        (i64::MAX, 0, 8),
        (9, 0, 8),
        (10, 0, 8),
    ] {
        assert_eq!(prune(&admin, "orders", before).await.expect("a number"), removed, "before {before}");
        assert_eq!(stream_row(&admin, "orders").await, (base, Some(EVENTS), Some(EVENTS - base)), "before {before}");
        let found = verdict(&writer, "'orders'").await;
        assert_eq!(found, Verdict { entries: EVENTS - base, redacted: base, fault: None }, "before {before}");
        assert_eq!(lost(&writer, &kept).await, None, "before {before}");
    }
    fill(&writer, "one", 1).await;
    anchor(&writer).await;
    assert_eq!(prune(&admin, "one", 5).await.expect("a number"), 0);
    // A stream that is not there is not made.
    assert_eq!(prune(&admin, "none", 5).await.expect("a number"), 0);
    let streams = "select count(*) from agent_sessions.audit_stream";
    assert_eq!(admin.value::<i64>(streams, &[]).await, 2);
    assert_eq!(admin.value::<i64>("select agent_sessions.audit_import('none', '[]')", &[]).await, 0);
    assert_eq!(admin.value::<i64>(streams, &[]).await, 2);

    assert_eq!(detail(&assert_sqlstate!(prune(&admin, "orders", -1).await, "SE001"))["argument"], json!("before_seq"));
    for call in ["audit_prune('orders', null)", "audit_prune(repeat('x', 501), 1)"] {
        assert_sqlstate!(admin.query(&format!("select agent_sessions.{call}"), &[]).await, "SE001");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_admin_prunes_and_nobody_deletes() {
    let db = Database::create("prune_roles").await;
    let writer = orders(&db).await;
    anchor(&writer).await;
    let auditor = db.connect(agent_sessions_tests::Role::Named(db.role("auditor", Some("auditor")).await)).await;
    for other in [&writer, &db.reader().await, &db.stranger().await, &auditor] {
        assert_sqlstate!(prune(other, "orders", 3).await, "42501");
    }
    let admin = admin(&db).await;
    let delete = |seq: i64| format!("delete from agent_sessions.audit_event where stream = 'orders' and seq = {seq}");
    for role in [&writer, &admin] {
        assert_sqlstate!(role.execute(&delete(1), &[]).await, "42501");
    }
    // Another tenant's admin finds nothing there.
    admin.run("set agent_sessions.tenant = 'other'").await;
    assert_eq!(prune(&admin, "orders", 3).await.expect("a number"), 0);
    admin.run("set agent_sessions.tenant = 'acme'").await;
    assert_eq!(prune(&admin, "orders", 3).await.expect("pruned"), 2);

    // The owner's raw DELETE goes as far as the base, which the owner moves as far as an anchor.
    let owner = db.owner().await;
    for seq in [3, 4, EVENTS] {
        assert_sqlstate!(owner.execute(&delete(seq), &[]).await, "SE014");
    }
    let base = |seq: i64, hash: &str| {
        format!("update agent_sessions.audit_chain set base_seq = {seq}, base_hash = {hash} where stream = 'orders'")
    };
    let of =
        |seq: i64| format!("(select hash from agent_sessions.audit_event where stream = 'orders' and seq = {seq})");
    for refused in [
        base(5, &of(4)),
        base(5, "'forged'"),
        base(1, &of(3)),
        base(2, "base_hash"),
        base(0, "null"),
        base(10, &of(9)),
        "update agent_sessions.audit_chain set stream = 'moved'".to_owned(),
        "update agent_sessions.audit_chain set tenant = 'other'".to_owned(),
        "delete from agent_sessions.audit_chain".to_owned(),
        "truncate agent_sessions.audit_chain".to_owned(),
        "truncate agent_sessions.audit_event".to_owned(),
        "update agent_sessions.audit_event set seq = seq".to_owned(),
    ] {
        assert_sqlstate!(owner.batch_execute(&refused).await, "SE014");
    }
    assert_eq!(owner.execute(&base(5, &of(5)), &[]).await.expect("a base that an anchor covers"), 1);
    let seen = verdict(&writer, "'orders'").await;
    assert_eq!(seen.redacted, 5);
    let rows = owner.execute("delete from agent_sessions.audit_event where stream = 'orders' and seq <= 5", &[]).await;
    assert_eq!(rows.expect("below the base"), 3);
    assert_sqlstate!(owner.execute(&delete(6), &[]).await, "SE014");
    assert_eq!(verdict(&writer, "'orders'").await, Verdict { entries: 4, redacted: 5, fault: None });
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_show_what_is_left_and_appends_go_on() {
    let db = Database::create("prune_readers").await;
    let writer = orders(&db).await;
    let kept = anchor(&writer).await;
    assert_eq!(prune(&admin(&db).await, "orders", 7).await.expect("pruned"), 6);
    let left = "select seq from agent_sessions";
    assert_eq!(seqs(&writer, &format!("{left}.audit_list('orders')")).await, [9, 8, 7]);
    assert_eq!(
        seqs(&writer, &format!("{left}.audit_list('orders', after => 2, newest_first => false, max_rows => 2)")).await,
        [7, 8]
    );
    assert_eq!(seqs(&writer, &format!("{left}.audit_list('orders', before => 7)")).await, [] as [i64; 0]);
    assert_eq!(seqs(&writer, &format!("{left}.audit_list(actor => 'ann')")).await, [9]);
    let exported = "select (l::json ->> 'seq')::bigint from agent_sessions.audit_export('orders') l";
    assert_eq!(seqs(&writer, exported).await, [7, 8, 9]);
    let counted: i64 = writer.value("select sum(events)::bigint from agent_sessions.audit_stats('orders')", &[]).await;
    assert_eq!(counted, 3);
    for seq in 1..=6_i64 {
        let proof = "select agent_sessions.audit_proof('orders', $1)";
        assert_sqlstate!(writer.query(proof, &[&seq]).await, "SE011");
    }
    assert!(proofs::checks(&writer, &proofs::proof(&writer, "orders", 7, None).await, &kept.root).await);

    // The id of an event that is gone is free again, one that is left is not.
    let append = "select seq || ' ' || outcome from agent_sessions.audit_append('sell 9', stream => 'orders', event_id => $1,
        payload => '{\"b\":1e2, \"a\":\"\\u0000 \\ud83d\", \"b\":[ ]}', actor => 'ann', target => 'café 🔥', session_id => 's', status => 'ok')";
    for (event_id, told) in [("e9", "9 replayed"), ("e3", "10 appended"), ("e3", "10 replayed"), ("e6", "11 appended")]
    {
        assert_eq!(writer.value::<String>(append, &[&event_id]).await, told, "{event_id}");
    }
    let raw = "insert into agent_sessions.audit_event (stream, seq, action) values ('orders', 12, 'raw')";
    assert_eq!(writer.execute(raw, &[]).await.expect("the next seq"), 1);
    assert_eq!(verdict(&writer, "'orders'").await, Verdict { entries: 6, redacted: 6, fault: None });
    assert_eq!(lost(&writer, &kept).await, None);
}

/// The engine's own trail is a stream as any other, but for who writes to it.
#[tokio::test(flavor = "multi_thread")]
async fn an_admin_prunes_the_engines_trail() {
    let db = Database::create("prune_trail").await;
    let (writer, admin) = (orders(&db).await, admin(&db).await);
    admin.run("select agent_sessions.audit_track('all', true)").await;
    writer
        .run(
            "select agent_sessions.session_create('s');
             select agent_sessions.session_set('s', title => n::text) from generate_series(1, 5) n",
        )
        .await;
    let kept = anchor(&writer).await;
    assert_eq!(prune(&admin, "agent_sessions", 4).await.expect("pruned"), 3);
    let found = verdict(&writer, "'agent_sessions'").await;
    assert_eq!(found, Verdict { entries: 2, redacted: 3, fault: None });
    assert_eq!(lost(&writer, &kept).await, None);
    assert_sqlstate!(prune(&writer, "agent_sessions", 5).await, "42501");
}

#[tokio::test(flavor = "multi_thread")]
async fn pruning_waits_for_appends_and_they_for_it() {
    let db = Database::create("prune_races").await;
    let (writer, admin) = (orders(&db).await, admin(&db).await);
    anchor(&writer).await;
    writer.begin("read committed").await;
    fill(&writer, "orders", 1).await;
    let pid = admin.pid;
    let waiting = tokio::spawn(async move {
        let removed = prune(&admin, "orders", 1000).await;
        (admin, removed)
    });
    db.wait_until_blocked(pid).await;
    writer.commit().await;
    let (admin, removed) = waiting.await.expect("the task");
    // Now the newest is one that the anchor has not seen, and all that it has seen may go.
    assert_eq!(removed.expect("pruned"), EVENTS);
    anchor(&writer).await;
    fill(&writer, "orders", 1).await;
    admin.begin("read committed").await;
    assert_eq!(prune(&admin, "orders", 11).await.expect("pruned"), 1);
    let pid = writer.pid;
    let waiting = tokio::spawn(async move {
        fill(&writer, "orders", 1).await;
        writer
    });
    db.wait_until_blocked(pid).await;
    admin.commit().await;
    let writer = waiting.await.expect("the task");
    assert_eq!(verdict(&writer, "'orders'").await, Verdict { entries: 2, redacted: 10, fault: None });
    // Two at once: what the one has removed the other does not count.
    anchor(&writer).await;
    let (first, second) = (super::admin(&db).await, super::admin(&db).await);
    first.begin("read committed").await;
    assert_eq!(prune(&first, "orders", 12).await.expect("pruned"), 1);
    let pid = second.pid;
    let waiting = tokio::spawn(async move { prune(&second, "orders", 12).await });
    db.wait_until_blocked(pid).await;
    first.commit().await;
    assert_eq!(waiting.await.expect("the task").expect("a number"), 0);
    for isolation in ["repeatable read", "serializable"] {
        first.begin(isolation).await;
        first.run("select 1 from agent_sessions.audit_event").await;
        fill(&writer, "orders", 1).await;
        assert_sqlstate!(prune(&first, "orders", 1000).await, "40001");
        first.rollback().await;
    }
}
