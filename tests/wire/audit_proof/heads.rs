//! The forms of audit_verify: all streams or one, from a seq on, and with a head that was kept elsewhere.

use agent_sessions_tests::{Database, assert_sqlstate, detail};
use serde_json::json;

use super::*;

async fn hash_at(connection: &Connection, seq: i64) -> String {
    let sql = "select hash from agent_sessions.audit_list('orders', after => $1::bigint - 1, max_rows => 1, newest_first => false)";
    connection.value(sql, &[&seq]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_stream_has_a_row_and_one_that_is_not_there_has_none() {
    let db = Database::create("audit_heads_all").await;
    let writer = orders(&db).await;
    assert_eq!(verdicts(&db.writer().await, "").await, BTreeMap::new(), "another tenant's streams");
    for stream in ["", "an other", "Z"] {
        fill(&writer, stream, 2).await;
    }
    let all: Vec<(String, Verdict)> = [("", 2), ("Z", 2), ("an other", 2), ("orders", EVENTS)]
        .map(|(stream, events)| (stream.to_owned(), untouched(events)))
        .into();
    assert_eq!(verdicts(&writer, "").await, all.into_iter().collect());
    assert_eq!(verdict(&writer, "''").await, untouched(2));
    assert_eq!(verdicts(&writer, "'none'").await, BTreeMap::new());
    assert_eq!(verdicts(&writer, "'orders', tenant => 'other'").await, BTreeMap::new());
    assert_eq!(verdict(&writer, "'orders', null, null, null, 'acme'").await, untouched(EVENTS));
}

#[tokio::test(flavor = "multi_thread")]
async fn verifying_from_a_seq_trusts_the_event_before() {
    let db = Database::create("audit_heads_from").await;
    let writer = orders(&db).await;
    for (from, entries) in [(0, EVENTS), (1, EVENTS), (2, EVENTS - 1), (EVENTS, 1), (EVENTS + 1, 0)] {
        let found = verdict(&writer, &format!("'orders', from_seq => {from}")).await;
        assert_eq!(found, untouched(entries), "from {from}");
    }
    // Nothing to begin with is no proof of anything.
    for from in [EVENTS + 2, i64::MAX] {
        assert!(first_bad(&writer, &format!("'orders', from_seq => {from}")).await.is_some(), "from {from}");
    }
    let superuser = tamperer(&db).await;
    superuser.run("update agent_sessions.audit_event set actor = 'eve' where seq = 4").await;
    for (from, bad) in [(1, Some(4)), (4, Some(4)), (5, None), (9, None)] {
        assert_eq!(first_bad(&writer, &format!("'orders', from_seq => {from}")).await, bad, "from {from}");
    }
    superuser.run("delete from agent_sessions.audit_event where seq = 4").await;
    for (from, bad) in [(3, Some(4)), (4, Some(4)), (5, Some(4)), (6, None)] {
        assert_eq!(first_bad(&writer, &format!("'orders', from_seq => {from}")).await, bad, "from {from}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_head_has_to_be_in_the_chain() {
    let db = Database::create("audit_heads_kept").await;
    let writer = orders(&db).await;
    let (fourth, last) = (hash_at(&writer, 4).await, hash_at(&writer, EVENTS).await);
    let genesis = format!("sha256:{}", "0".repeat(64));
    for (head, bad) in [
        (format!("head_seq => 4, head_hash => '{fourth}'"), None),
        (format!("head_seq => {EVENTS}, head_hash => '{last}'"), None),
        (format!("head_hash => '{fourth}'"), None),
        ("head_seq => 4".to_owned(), None),
        (format!("head_seq => {EVENTS}"), None),
        // Of a stream that had nothing yet.
        (format!("head_seq => 0, head_hash => '{genesis}'"), None),
        (format!("head_seq => 4, head_hash => '{last}'"), Some(4)),
        (format!("head_seq => 5, head_hash => '{fourth}'"), Some(5)),
        (format!("head_seq => 4, head_hash => '{}'", fourth.to_uppercase()), Some(4)),
        ("head_seq => 10".to_owned(), Some(10)),
        (format!("head_seq => {}", i64::MAX), Some(10)),
        (format!("head_seq => 10, head_hash => '{last}'"), Some(10)),
        ("head_hash => ''".to_owned(), Some(10)),
        (format!("from_seq => 5, head_seq => 4, head_hash => '{fourth}'"), None),
        (format!("from_seq => 5, head_seq => 9, head_hash => '{last}'"), None),
        (format!("from_seq => 10, head_seq => 9, head_hash => '{last}'"), None),
        // A head before the beginning is in the chain, too.
        (format!("from_seq => 7, head_seq => 4, head_hash => '{fourth}'"), None),
    ] {
        assert_eq!(first_bad(&writer, &format!("'orders', {head}")).await, bad, "{head}");
    }
    // What is wrong with the chain itself comes first.
    let superuser = tamperer(&db).await;
    superuser.run("update agent_sessions.audit_event set actor = 'eve' where seq = 6").await;
    assert_eq!(first_bad(&writer, &format!("'orders', head_seq => 4, head_hash => '{last}'")).await, Some(6));
    // Of the stream that is gone altogether, a kept head is all that tells.
    superuser.run("delete from agent_sessions.audit_event; delete from agent_sessions.audit_chain").await;
    assert_eq!(verdicts(&writer, "").await, BTreeMap::new());
    for head in
        ["head_seq => 4".to_owned(), format!("head_hash => '{last}'"), format!("head_seq => 9, head_hash => '{last}'")]
    {
        let found = verdicts(&writer, &format!("'orders', {head}")).await;
        assert!(found.get("orders").is_some_and(|verdict| verdict.fault.is_some()), "{head}: {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_head_outlives_pruning_as_far_as_it_is_not_pruned() {
    let db = Database::create("audit_heads_pruned").await;
    let writer = orders(&db).await;
    let hashes = [hash_at(&writer, 3).await, hash_at(&writer, 4).await, hash_at(&writer, 5).await];
    anchor(&writer).await;
    prune(&admin(&db).await, "orders", 5).await.expect("pruned");
    for (seq, hash, bad) in
        [(4, &hashes[1], None), (5, &hashes[2], None), (4, &hashes[0], Some(4)), (3, &hashes[0], Some(3))]
    {
        let found = verdict(&writer, &format!("'orders', head_seq => {seq}, head_hash => '{hash}'")).await;
        assert_eq!((found.redacted, found.entries), (4, 5));
        assert_eq!(found.fault.map(|(seq, _)| seq), bad, "head {seq}");
    }
    // It cannot begin before the base.
    for from in [0, 1, 4, 5] {
        let found = verdict(&writer, &format!("'orders', from_seq => {from}")).await;
        assert_eq!(found, Verdict { entries: 5, redacted: 4, fault: None }, "from {from}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_mean_nothing_are_refused() {
    let db = Database::create("audit_heads_refused").await;
    let writer = orders(&db).await;
    for (arguments, argument) in [
        ("'orders', from_seq => -1", "from_seq"),
        ("'orders', head_seq => -1", "head_seq"),
        ("from_seq => 1", "stream"),
        ("head_seq => 1", "stream"),
        ("head_hash => 'x'", "stream"),
    ] {
        let refused = writer.query(&format!("select * from agent_sessions.audit_verify({arguments})"), &[]).await;
        assert_eq!(detail(&assert_sqlstate!(refused, "SE001"))["argument"], json!(argument), "{arguments}");
    }
    assert_sqlstate!(db.reader().await.query("select * from agent_sessions.audit_verify()", &[]).await, "42501");
}
