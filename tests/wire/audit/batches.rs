//! Batches of events: all or none, in their order, and an error says which element it is about.

use agent_sessions_tests::{Database, assert_sqlstate, detail};
use serde_json::json;

use super::{Event, assert_chained, batch, column, count, try_batch};

#[tokio::test(flavor = "multi_thread")]
async fn events_are_appended_in_the_order_of_the_array() {
    let db = Database::create("audit_batch").await;
    let writer = db.writer().await;
    Event::in_stream("s", "before").append(&writer).await;
    let elements: Vec<String> = (0..500).map(|n| format!(r#"{{"action":"a{n}","payload":{n}}}"#)).collect();
    let appended = batch(&writer, "s", &format!("[{}]", elements.join(","))).await;
    assert_eq!(appended.iter().map(|row| row.seq).collect::<Vec<_>>(), (2..=501).collect::<Vec<_>>());
    assert!(appended.iter().all(|row| row.outcome == "appended"));
    let hashes: Vec<String> = appended.into_iter().map(|row| row.hash).collect();
    assert_eq!(column(&writer, "s", "hash").await[1..], hashes);
    let actions: Vec<String> = (0..500).map(|n| format!("a{n}")).collect();
    assert_eq!(column(&writer, "s", "action").await[1..], actions);
    assert_chained(&writer, "s", 501).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_batch_writes_nothing() {
    let db = Database::create("audit_batch_empty").await;
    let writer = db.writer().await;
    for events in ["[]", " [ ] "] {
        assert_eq!(batch(&writer, "s", events).await, []);
    }
    assert_eq!(count(&writer, "agent_sessions.audit_stream").await, 0);
    assert_eq!(count(&writer, "agent_sessions.audit_verify()").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_may_be_large() {
    let db = Database::create("audit_batch_large").await;
    let writer = db.writer().await;
    let events = "select count(*), min(seq), max(seq), count(*) filter (where outcome = 'appended')
                  from agent_sessions.audit_append_batch('s', (
                    select json_agg(json_build_object('action', 'a', 'payload', n, 'event_id', n::text))
                    from generate_series(1, $1::integer) n))";
    let row = writer.query_one(events, &[&32_768]).await.expect("a batch");
    assert_eq!([0, 1, 2, 3].map(|column| row.get::<_, i64>(column)), [32_768, 1, 32_768, 32_768]);
    let row = writer.query_one(events, &[&32_769]).await.expect("a batch of replays and one more");
    assert_eq!([0, 1, 2, 3].map(|column| row.get::<_, i64>(column)), [32_769, 1, 32_769, 1]);
    assert_chained(&writer, "s", 32_769).await;

    let error = assert_sqlstate!(writer.query(events, &[&100_001]).await, "SE018");
    assert_eq!(detail(&error), json!({"argument": "events", "limit": 100_000, "actual": 100_001}));
}

/// Elements that are refused, with the code and the argument that is named.
const BAD: &[(&str, &str)] = &[
    ("null", "events"),
    ("1", "events"),
    ("[]", "events"),
    ("\"action\"", "events"),
    ("{}", "events"),
    (r#"{"payload":1}"#, "events"),
    (r#"{"action":null}"#, "events"),
    (r#"{"action":1}"#, "events"),
    (r#"{"action":["a"]}"#, "events"),
    (r#"{"action":""}"#, "action"),
    (r#"{"action":"a\nb"}"#, "action"),
    (r#"{"action":"a\u0000b"}"#, "action"),
    (r#"{"action":"\ud83d"}"#, "events"),
    (r#"{"action":"a","Action":"a"}"#, "events"),
    (r#"{"action":"a","action":"a"}"#, "events"),
    (r#"{"action":"a","payload":1,"payload":1}"#, "events"),
    (r#"{"action":"a","stream":"t"}"#, "events"),
    (r#"{"action":"a","tenant":"t"}"#, "events"),
    (r#"{"action":"a","seq":2}"#, "events"),
    (r#"{"action":"a","data":"x"}"#, "events"),
    (r#"{"action":"a","actor":""}"#, "actor"),
    (r#"{"action":"a","actor":7}"#, "events"),
    (r#"{"action":"a","target":"a\u0007"}"#, "target"),
    (r#"{"action":"a","session_id":""}"#, "session_id"),
    (r#"{"action":"a","status":"\u0085"}"#, "status"),
    (r#"{"action":"a","status":true}"#, "events"),
    (r#"{"action":"a","event_id":""}"#, "event_id"),
    (r#"{"action":"a","event_id":{}}"#, "events"),
    (r#"{"action":"a","attrs":{"a":"\u0000"}}"#, "attrs"),
    (r#"{"action":"a","attrs":"\ud83d"}"#, "attrs"),
    (r#"{"action":"a","occurred_at":"yesterday"}"#, "occurred_at"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_element_is_named_and_nothing_is_written() {
    let db = Database::create("audit_batch_bad").await;
    let writer = db.writer().await;
    let long = format!(r#"{{"action":"a","event_id":"{}"}}"#, "i".repeat(501));
    for (element, argument) in BAD.iter().copied().chain([(long.as_str(), "event_id")]) {
        for (place, events) in [
            (0, format!("[{element}]")),
            (0, format!("[{element}, {element}]")),
            (2, format!(r#"[{{"action":"a"}}, {{"action":"a","event_id":"e"}}, {element}, {{"action":"a"}}]"#)),
        ] {
            let error = assert_sqlstate!(try_batch(&writer, "s", &events).await, "SE001");
            let told = detail(&error);
            assert_eq!((&told["element"], &told["argument"]), (&json!(place), &json!(argument)), "{element}");
        }
    }
    for events in ["null", "{}", "1", "\"[]\"", r#"{"action":"a"}"#] {
        let error = assert_sqlstate!(try_batch(&writer, "s", events).await, "SE001");
        assert_eq!(detail(&error)["element"], serde_json::Value::Null, "{events}");
    }
    let missing = writer.query("select * from agent_sessions.audit_append_batch('s')", &[]).await;
    assert_eq!(detail(&assert_sqlstate!(missing, "SE001"))["argument"], "events");
    assert_chained(&writer, "s", 0).await;
    assert_eq!(count(&writer, "agent_sessions.audit_stream").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_element_that_is_too_large_is_named() {
    let db = Database::create("audit_batch_sizes").await;
    let writer = db.writer().await;
    writer.run("set agent_sessions.max_payload_bytes = 20").await;
    let fits = format!(r#"{{"action":"a","payload":"{}"}}"#, "x".repeat(18));
    assert_eq!(batch(&writer, "s", &format!("[{fits}]")).await.len(), 1);
    for (argument, over) in [
        ("payload", format!(r#"{{"action":"a","payload":"{}"}}"#, "x".repeat(19))),
        ("attrs", format!(r#"{{"action":"a","attrs":"{}"}}"#, "x".repeat(19))),
    ] {
        let error = assert_sqlstate!(try_batch(&writer, "s", &format!("[{fits},{over}]")).await, "SE018");
        assert_eq!(detail(&error), json!({"argument": argument, "limit": 20, "actual": 21, "element": 1}));
    }
    assert_chained(&writer, "s", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_element_whose_names_do_not_fit_an_index_entry_is_named() {
    let db = Database::create("audit_batch_names").await;
    let writer = db.writer().await;
    // Four bytes a character.
    let stream = "\u{1F680}".repeat(490);
    let id = "\u{1F525}".repeat(490);
    let events = format!(r#"[{{"action":"a"}},{{"action":"a","event_id":"{id}"}}]"#);
    let error = assert_sqlstate!(try_batch(&writer, &stream, &events).await, "SE018");
    assert_eq!(detail(&error)["element"], 1);
    writer.run(&format!("set agent_sessions.tenant = '{stream}'")).await;
    let events = format!(r#"[{{"action":"a"}},{{"action":"a","session_id":"{id}"}}]"#);
    let error = assert_sqlstate!(try_batch(&writer, "s", &events).await, "SE018");
    assert_eq!(detail(&error)["element"], 1);
    assert_eq!(count(&writer, "agent_sessions.audit_stream").await, 0);
}
