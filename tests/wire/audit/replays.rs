//! Idempotency: an event_id is used once in a stream, and the same event again is the one that is there.

use agent_sessions_tests::{Database, assert_sqlstate, detail, sqlstate, together};
use serde_json::json;

use super::{Appended, Event, assert_chained, batch, column, count, in_tenant, try_batch};

const FIRST: Event = Event {
    action: Some("order.approve"),
    payload: Some(r#"{"b":1,"a":"\u0000","b":2}"#),
    stream: Some("s"),
    actor: Some("ann"),
    target: Some("order"),
    session_id: Some("chat"),
    status: Some("ok"),
    attrs: Some(r#"{"n":1}"#),
    occurred_at: Some("2026-01-01"),
    event_id: Some("e"),
};

fn replayed(first: &Appended) -> Appended {
    Appended { outcome: "replayed".to_owned(), ..first.clone() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_event_again_is_the_one_that_is_there() {
    let db = Database::create("audit_replay").await;
    let writer = db.writer().await;
    let first = FIRST.append(&writer).await;
    Event { event_id: Some("other"), ..FIRST }.append(&writer).await;
    let before = column(&writer, "s", "to_json(audit_event)::text").await;
    for again in [
        FIRST,
        // Facts to search for and times are not what was done.
        Event { attrs: None, ..FIRST },
        Event { attrs: Some(r#"{"n":2}"#), ..FIRST },
        Event { occurred_at: None, ..FIRST },
        Event { occurred_at: Some("1999-01-01"), ..FIRST },
    ] {
        assert_eq!(again.append(&writer).await, replayed(&first), "{again:?}");
        assert_eq!(again.try_insert(&writer).await.expect("a replay"), 0, "{again:?}");
    }
    let raw = "insert into agent_sessions.audit_event (stream, action, event_id) values ('s', 'order.approve', 'e')
               on conflict do nothing";
    assert_sqlstate!(writer.batch_execute(raw).await, "SE021");
    assert_eq!(column(&writer, "s", "to_json(audit_event)::text").await, before);
    assert_chained(&writer, "s", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_with_white_space_around_it_is_replayed_too() {
    let db = Database::create("audit_replay_payloads").await;
    let writer = db.writer().await;
    for (number, payload) in crate::payloads::CASES.iter().enumerate() {
        let id = number.to_string();
        let event = Event { payload: Some(payload), event_id: Some(&id), ..Event::in_stream("s", "a") };
        let first = event.append(&writer).await;
        match event.try_append(&writer).await {
            Ok(again) => assert_eq!(again, replayed(&first), "{payload:?}"),
            Err(error) => panic!("{payload:?}: {error:?}"),
        }
        assert_eq!(event.try_insert(&writer).await.expect("a replay"), 0, "{payload:?}");
        let element = format!(r#"[{{"action":"a","event_id":"b{number}","payload":{payload}}}]"#);
        let first = batch(&writer, "b", &element).await;
        assert_eq!(batch(&writer, "b", &element).await, [replayed(&first[0])], "{payload:?}");
    }
    assert_chained(&writer, "s", crate::payloads::CASES.len() as i64).await;
    assert_chained(&writer, "b", crate::payloads::CASES.len() as i64).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_id_with_other_content_is_refused() {
    let db = Database::create("audit_dedupe").await;
    let writer = db.writer().await;
    FIRST.append(&writer).await;
    for other in [
        Event { action: Some("order.reject"), ..FIRST },
        Event { payload: None, ..FIRST },
        Event { payload: Some(r#"{"b":2,"a":"\u0000","b":1}"#), ..FIRST },
        Event { payload: Some(r#"{"b": 1,"a":"\u0000","b":2}"#), ..FIRST },
        // Left out, it is the role's name.
        Event { actor: None, ..FIRST },
        Event { actor: Some("Ann"), ..FIRST },
        Event { target: None, ..FIRST },
        Event { target: Some("orders"), ..FIRST },
        Event { session_id: None, ..FIRST },
        Event { session_id: Some("other"), ..FIRST },
        Event { status: None, ..FIRST },
        Event { status: Some("error"), ..FIRST },
    ] {
        for refused in [other.try_append(&writer).await.map(|_| ()), other.try_insert(&writer).await.map(|_| ())] {
            let error = assert_sqlstate!(refused, "SE021");
            assert_eq!(detail(&error), json!({"key": "e"}), "{other:?}");
        }
    }
    writer.run("set agent_sessions.actor = 'ann'").await;
    assert_eq!(Event { actor: None, ..FIRST }.append(&writer).await.outcome, "replayed");
    assert_chained(&writer, "s", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_free_in_another_stream_and_in_another_tenant() {
    let db = Database::create("audit_dedupe_scope").await;
    let (ours, theirs) = (in_tenant(&db, "ours").await, in_tenant(&db, "theirs").await);
    let (here, there) = (FIRST, Event { stream: Some("t"), action: Some("other"), ..FIRST });
    for writer in [&ours, &theirs] {
        for event in [here, there] {
            assert_eq!(event.append(writer).await.outcome, "appended");
            assert_eq!(event.append(writer).await.outcome, "replayed");
        }
        assert_eq!(Event { event_id: Some("E"), ..here }.append(writer).await.outcome, "appended");
        // Without an id the same event is another one.
        assert_eq!(Event { event_id: None, ..here }.append(writer).await.outcome, "appended");
        assert_eq!(Event { event_id: None, ..here }.append(writer).await.seq, 4);
        assert_chained(writer, "s", 4).await;
        assert_chained(writer, "t", 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_may_hold_what_is_there_and_the_same_event_twice() {
    let db = Database::create("audit_replay_batch").await;
    let writer = db.writer().await;
    let element = |id: &str| format!(r#"{{"action":"a","event_id":"{id}","payload":"{id}"}}"#);
    let of = |ids: &[&str]| format!("[{}]", ids.iter().map(|id| element(id)).collect::<Vec<_>>().join(","));
    let first = batch(&writer, "s", &of(&["1", "2"])).await;
    let second = batch(&writer, "s", &of(&["3", "1", "4", "3", "4", "2"])).await;
    let told: Vec<(i64, &str)> = second.iter().map(|row| (row.seq, row.outcome.as_str())).collect();
    let wanted = [(3, "appended"), (1, "replayed"), (4, "appended"), (3, "replayed"), (4, "replayed"), (2, "replayed")];
    assert_eq!(told, wanted);
    let (hash_of_1, hash_of_2) = (&first[0].hash, &first[1].hash);
    assert_eq!((&second[1].hash, &second[5].hash, &second[3].hash), (hash_of_1, hash_of_2, &second[0].hash));
    assert_eq!(batch(&writer, "s", &of(&["1", "2", "3", "4"])).await.len(), 4);
    assert_chained(&writer, "s", 4).await;

    // Other content is refused with all that came before it.
    for conflict in [r#"{"action":"b","event_id":"5"}"#, r#"{"action":"a","event_id":"1"}"#] {
        let error = assert_sqlstate!(try_batch(&writer, "s", &format!("[{},{conflict}]", element("5"))).await, "SE021");
        assert_eq!(detail(&error)["key"], if conflict.contains('5') { "5" } else { "1" });
    }
    assert_chained(&writer, "s", 4).await;

    let rows = "insert into agent_sessions.audit_event (stream, action, event_id, payload)
                select 's', 'a', id, to_json(id) from unnest('{2,6,4,6,7}'::text[]) id";
    assert_eq!(writer.execute(rows, &[]).await.expect("two of them are new"), 2);
    assert_chained(&writer, "s", 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_send_the_same_event_at_the_same_time_get_the_same_answer() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 25;
    let db = Database::create("audit_replay_race").await;
    let clients = db.writers(CLIENTS).await;
    let answers = together(CLIENTS, |client| {
        let writer = clients[client].clone();
        async move {
            let mut answers = Vec::new();
            for round in 0..ROUNDS {
                let id = format!("round {round}");
                answers.push(Event { event_id: Some(&id), payload: Some("[1]"), ..FIRST }.append(&writer).await);
            }
            answers
        }
    })
    .await;
    for round in 0..ROUNDS {
        let of_round: Vec<&Appended> = answers.iter().map(|answers| &answers[round]).collect();
        let appended = of_round.iter().filter(|answer| answer.outcome == "appended").count();
        assert_eq!(appended, 1, "{of_round:?}");
        assert!(of_round.iter().all(|answer| (answer.seq, &answer.hash) == (of_round[0].seq, &of_round[0].hash)));
    }
    assert_chained(&clients[0], "s", ROUNDS as i64).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_different_events_with_one_id_one_is_taken() {
    const CLIENTS: usize = 8;
    let db = Database::create("audit_dedupe_race").await;
    let clients = db.writers(CLIENTS).await;
    let answers = together(CLIENTS, |client| {
        let writer = clients[client].clone();
        async move {
            let payload = client.to_string();
            Event { payload: Some(&payload), ..FIRST }.try_append(&writer).await
        }
    })
    .await;
    let won: Vec<&Appended> = answers.iter().filter_map(|answer| answer.as_ref().ok()).collect();
    assert_eq!(won.len(), 1, "{answers:?}");
    for lost in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        assert_eq!((sqlstate(lost), detail(lost)), ("SE021", json!({"key": "e"})));
    }
    assert_chained(&clients[0], "s", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_waited_finds_what_was_committed_and_not_what_was_rolled_back() {
    let db = Database::create("audit_replay_waits").await;
    let [first, second] = [db.writer().await, db.writer().await].map(std::sync::Arc::new);
    for commits in [true, false] {
        let id = format!("committed: {commits}");
        first.begin("read committed").await;
        let written = Event { event_id: Some(&id), ..FIRST }.append(&first).await;
        let waiting = tokio::spawn({
            let (second, id) = (second.clone(), id.clone());
            async move { Event { event_id: Some(&id), ..FIRST }.append(&second).await }
        });
        db.wait_until_blocked(second.pid).await;
        if commits {
            first.commit().await
        } else {
            first.rollback().await
        }
        let answer = waiting.await.expect("the other client's answer");
        if commits {
            assert_eq!(answer, replayed(&written));
        } else {
            assert_eq!((answer.seq, answer.outcome.as_str()), (written.seq, "appended"));
        }
    }
    assert_chained(&first, "s", 2).await;
    assert_eq!(count(&first, "agent_sessions.audit_stream").await, 1);
}
