//! Proofs of single events: made from the tables, checked without them, by this database or by another program.

use agent_sessions_tests::{Database, Role, assert_sqlstate, detail};
use serde_json::json;

use super::anchors::python;
use super::*;

const CHECK: &str = "select agent_sessions.audit_check_proof(proof => $1::text::json, root => $2::text)";

async fn try_proof(connection: &Connection, stream: &str, seq: i64, anchor_id: Option<i64>) -> Result<String, Error> {
    let sql = "select agent_sessions.audit_proof(stream => $1::text, seq => $2::bigint, anchor_id => $3::bigint)::text";
    connection.try_value(sql, &[&stream, &seq, &anchor_id]).await
}

/// A proof as its JSON text.
pub async fn proof(connection: &Connection, stream: &str, seq: i64, anchor_id: Option<i64>) -> String {
    try_proof(connection, stream, seq, anchor_id).await.expect("a proof")
}

pub async fn checks(connection: &Connection, proof: &str, root: &str) -> bool {
    connection.value(CHECK, &[&proof, &root]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_of_a_stream_is_proven_against_every_anchor_that_reaches_it() {
    const NAME: &str = "Ströme \"q\" \\ \u{1F525}";
    let db = Database::create("proof_every").await;
    let writer = orders(&db).await;
    let mut anchors = Vec::new();
    // The tree grows with the stream, so that its leaf lies at another place under each root.
    for round in 0..5 {
        fill(&writer, NAME, 4).await;
        fill(&writer, &format!("{round}"), 1).await;
        fill(&writer, &format!("z{round}"), 1).await;
        writer.run(&format!("select agent_sessions.session_append('s{round}', '1', on_missing => 'create')")).await;
        anchors.push((anchor(&writer).await, 4 * (round + 1)));
    }
    // A stream without events of its own among them: from another chain, with bytes of its own.
    imported::import(&writer, "{}").await;
    let last = anchor(&writer).await;

    let elsewhere = Database::empty("proof_elsewhere").await;
    let far = elsewhere.owner().await;
    far.run("create extension agent_sessions").await;
    for (made, head) in &anchors {
        let mut proofs = String::new();
        for seq in 1..=*head {
            let proof = proof(&writer, NAME, seq, Some(made.id)).await;
            assert!(checks(&far, &proof, &made.root).await, "{seq}: {proof}");
            assert!(!proof.contains('\n'));
            for (other, _) in &anchors {
                let same = other.root == made.root;
                assert_eq!(checks(&writer, &proof, &other.root).await, same, "{seq} of {} by {}", made.id, other.id);
            }
            proofs += &(proof + "\n");
        }
        let ran = python(&["proof", &made.root], proofs).await;
        assert!(ran.success, "{}", ran.stderr);
        assert_eq!(String::from_utf8(ran.stdout).expect("a number").trim(), head.to_string());
        let refused = assert_sqlstate!(try_proof(&writer, NAME, head + 1, Some(made.id)).await, "SE011");
        assert_eq!(detail(&refused)["target"], json!(head + 1));
    }
    for seq in 1..=imported::IMPORTED {
        let newest = proof(&writer, "old", seq, None).await;
        assert_eq!(newest, proof(&writer, "old", seq, Some(last.id)).await);
        assert!(checks(&far, &newest, &last.root).await);
        assert!(python(&["proof", &last.root], newest).await.success);
    }
}

/// A proof is as large as the events in it.
#[tokio::test(flavor = "multi_thread")]
async fn large_events_are_proven() {
    let db = Database::create("proof_large").await;
    let writer = db.writer().await;
    writer.run("set agent_sessions.tenant = 'acme'").await;
    let append =
        "select agent_sessions.audit_append('look', to_json(repeat('0123456789abcdef', $1)), stream => 'orders')";
    for size in [1, 100, 1_000, 10_000, 100_000, 1_000_000] {
        writer.query(append, &[&size]).await.expect("an event");
    }
    let made = anchor(&writer).await;
    for seq in 1..=6 {
        let text = proof(&writer, "orders", seq, None).await;
        assert!(checks(&writer, &text, &made.root).await, "{seq}");
        assert!(!checks(&writer, &text.replacen("0123456789abcdef", "0123456789abcdeF", 1), &made.root).await, "{seq}");
    }
}

/// A proof is a JSON text: spaces and the order of its keys are nobody's concern.
#[tokio::test(flavor = "multi_thread")]
async fn a_proof_survives_every_way_that_json_travels() {
    let db = Database::create("proof_travels").await;
    let writer = orders(&db).await;
    let made = anchor(&writer).await;
    let text = proof(&writer, "orders", 5, None).await;
    let parsed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let keys: Vec<&String> = parsed.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["data", "format", "path", "prev_hash", "seq", "stream", "tenant"]);
    assert_eq!(parsed["data"].as_array().map(Vec::len), Some(5));
    for travelled in [
        parsed.to_string(),
        serde_json::to_string_pretty(&parsed).expect("JSON"),
        writer.value("select ($1::text::jsonb)::text", &[&text]).await,
        writer.value("select to_json(string_to_table($1, E'\\n'))::text", &[&text]).await,
    ] {
        let inner = serde_json::from_str::<String>(&travelled).unwrap_or(travelled);
        assert!(checks(&writer, &inner, &made.root).await, "{inner}");
    }
    // A proof holds one event and those behind it; those before do not matter any more.
    tamperer(&db).await.run("delete from agent_sessions.audit_event where seq < 5").await;
    assert_eq!(proof(&writer, "orders", 5, None).await, text);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_not_proven() {
    let db = Database::create("proof_refused").await;
    let writer = orders(&db).await;
    assert_sqlstate!(try_proof(&writer, "orders", 1, None).await, "SE011");
    fill(&writer, "beside", 1).await;
    let made = anchor(&writer).await;
    fill(&writer, "new", 1).await;
    fill(&writer, "orders", 1).await;
    for (stream, seq, anchor_id) in [
        ("orders", EVENTS + 1, None),
        ("orders", i64::MAX, None),
        ("orders", 0, None),
        ("new", 1, None),
        ("none", 1, None),
        ("", 1, None),
        ("orders", 1, Some(2)),
        ("orders", 1, Some(0)),
        ("orders", 1, Some(-1)),
    ] {
        assert_sqlstate!(try_proof(&writer, stream, seq, anchor_id).await, "SE011");
    }
    let negative = assert_sqlstate!(try_proof(&writer, "orders", -1, None).await, "SE001");
    assert_eq!(detail(&negative)["argument"], json!("seq"));
    let without = writer.query("select agent_sessions.audit_proof('orders', null)", &[]).await;
    assert_sqlstate!(without, "SE001");

    // A stream that was changed since does not lead there, one that was cut has nothing to show.
    let connection = tamperer(&db).await;
    let event = "agent_sessions.audit_event";
    for change in [
        format!("update {event} set data = replace(data, 'look', 'hook') where seq = 4"),
        format!("update {event} set data = replace(data, 'look', 'hook') where seq = 8"),
        format!("update {event} set prev_hash = hash where seq = 4"),
        rewritten("orders", 2),
        "update agent_sessions.audit_anchor_leaf set leaf = leaf || ' ' where stream = 'beside'".to_owned(),
        "update agent_sessions.audit_anchor_leaf set seq = 8 where stream = 'orders'".to_owned(),
        "update agent_sessions.audit_anchor_leaf set ordinal = 2 where stream = 'beside'".to_owned(),
        "insert into agent_sessions.audit_anchor_leaf values ('acme', 1, 2, 'x')".to_owned(),
    ] {
        connection.begin("read committed").await;
        connection.run(&change).await;
        let changed = proof(&connection, "orders", 4, None).await;
        assert!(!checks(&connection, &changed, &made.root).await, "{change}");
        connection.rollback().await;
    }
    for change in [
        format!("delete from {event} where seq = 9"),
        format!("delete from {event} where seq = 6"),
        format!("delete from {event} where seq = 4"),
        format!("delete from {event} where stream = 'orders'"),
        "delete from agent_sessions.audit_anchor_leaf".to_owned(),
        "delete from agent_sessions.audit_anchor".to_owned(),
    ] {
        connection.begin("read committed").await;
        connection.run(&change).await;
        assert_sqlstate!(try_proof(&connection, "orders", 4, None).await, "SE011");
        connection.rollback().await;
    }
    assert!(checks(&connection, &proof(&connection, "orders", 4, None).await, &made.root).await);
}

/// Whoever holds a root and a proof needs no privilege on any table, and no tenant.
#[tokio::test(flavor = "multi_thread")]
async fn a_proof_is_checked_with_the_privilege_to_call_alone() {
    let db = Database::create("proof_alone").await;
    let writer = orders(&db).await;
    let made = anchor(&writer).await;
    let text = proof(&writer, "orders", 3, None).await;
    let role = db.role("checker", None).await;
    let checker = db.connect(Role::Named(role.clone())).await;
    assert_sqlstate!(checker.try_value::<bool>(CHECK, &[&text, &made.root]).await, "42501");
    db.owner()
        .await
        .run(&format!(
            "grant usage on schema agent_sessions to {role};
             grant execute on function agent_sessions.audit_check_proof to {role};
             select agent_sessions.tenant_bind('{role}', 'none of these')"
        ))
        .await;
    assert!(checks(&checker, &text, &made.root).await);
    let declared = "select provolatile::text || proparallel::text from pg_proc where oid = 'agent_sessions.audit_check_proof'::regproc";
    assert_eq!(writer.value::<String>(declared, &[]).await, "is");
    // Nothing is read: not even what is locked, or gone.
    let connection = tamperer(&db).await;
    connection.begin("read committed").await;
    connection
        .run(
            "lock table agent_sessions.audit_event, agent_sessions.audit_chain, agent_sessions.audit_anchor,
               agent_sessions.audit_anchor_leaf, agent_sessions.tenant_binding, agent_sessions.setting in access exclusive mode",
        )
        .await;
    checker.run("set statement_timeout = '30 s'").await;
    assert!(checks(&checker, &text, &made.root).await);
    assert!(!checks(&checker, &text.replace("look", "hook"), &made.root).await);
    connection.rollback().await;
    connection.run("delete from agent_sessions.audit_event; delete from agent_sessions.audit_anchor").await;
    assert!(checks(&checker, &text, &made.root).await);
}
