//! Concurrent replays of one item_id: one row, and everyone gets its position.

use std::sync::Arc;

use agent_sessions_tests::{Append, Database, assert_one_winner, together};
use serde_json::json;

const REPLAYS: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn replays_of_one_item_are_one_row() {
    let db = Database::create("replays").await;
    let writers = db.writers(REPLAYS).await;
    writers[0].create_session("s").await;
    for position in 0..20 {
        let item_id = format!("call {position}");
        let positions = together(REPLAYS, |number| {
            let (writer, item_id) = (writers[number].clone(), item_id.clone());
            async move {
                Append::to("s", r#"{"same" : 1}"#).item_id(&item_id).run(&writer).await.expect("a replay is no error")
            }
        })
        .await;
        assert_eq!(positions, vec![position; REPLAYS]);
    }
    writers[0].assert_dense("s", 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replays_by_plain_insert_are_one_row() {
    let db = Database::create("raw_replays").await;
    let writers = db.writers(REPLAYS).await;
    writers[0].create_session("s").await;
    for position in 0..20 {
        let item_id = format!("call {position}");
        let inserted = together(REPLAYS, |number| {
            let (writer, item_id) = (writers[number].clone(), item_id.clone());
            async move {
                let insert = "insert into agent_sessions.session_item (sid, item_id, payload)
                              select sid, $1::text, '{\"same\" : 1}' from agent_sessions.session where session_id = 's'";
                writer.execute(insert, &[&item_id]).await.expect("a replay is no error")
            }
        })
        .await;
        assert_eq!(inserted.iter().sum::<u64>(), 1, "{inserted:?}");
    }
    writers[0].assert_dense("s", 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replays_of_one_batch_are_written_once() {
    let db = Database::create("batch_replays").await;
    let writers = db.writers(REPLAYS).await;
    writers[0].create_session("s").await;
    for round in 0..10 {
        let outcomes = together(REPLAYS, |number| {
            let writer = writers[number].clone();
            async move {
                let items = format!(r#"[{{"item_id":"a{round}","payload":1}},{{"item_id":"b{round}","payload":2}}]"#);
                let batch = "select position, outcome from agent_sessions.session_append_batch(
                    session_id => 's', items => $1::text::json) order by ordinal";
                let rows = writer.query(batch, &[&items]).await.expect("a replay is no error");
                rows.iter().map(|row| (row.get(0), row.get(1))).collect::<Vec<(i64, String)>>()
            }
        })
        .await;
        let at = |outcome: &str| vec![(2 * round, outcome.to_owned()), (2 * round + 1, outcome.to_owned())];
        let appended = outcomes.iter().filter(|rows| **rows == at("appended")).count();
        let replayed = outcomes.iter().filter(|rows| **rows == at("replayed")).count();
        assert_eq!((appended, replayed), (1, REPLAYS - 1), "{outcomes:?}");
    }
    writers[0].assert_dense("s", 20).await;
}

/// Other content under the same id: one is stored, all others are told that the id is taken, and where.
#[tokio::test(flavor = "multi_thread")]
async fn an_item_id_with_other_content_has_one_winner() {
    let db = Database::create("reused_id").await;
    let writers = db.writers(REPLAYS).await;
    writers[0].create_session("s").await;
    for position in 0..20 {
        let item_id = format!("call {position}");
        let results = together(REPLAYS, |number| {
            let (writer, item_id) = (writers[number].clone(), item_id.clone());
            async move { Append::to("s", &number.to_string()).item_id(&item_id).run(&writer).await }
        })
        .await;
        let won = assert_one_winner(results, "SE010", &json!({"item_id": item_id, "position": position}));
        assert_eq!(won, position);
    }
    writers[0].assert_dense("s", 20).await;
}

/// A replay that waited for the first to end: it committed, and the replay is one; it rolled back, and the replay is first.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_waits_for_the_first() {
    let db = Database::create("replay_waits").await;
    let (first, second) = (db.writer().await, Arc::new(db.writer().await));
    for commits in [true, false] {
        let session = format!("{commits}");
        first.create_session(&session).await;
        first.begin("read committed").await;
        first.append(&session, "0").await;
        Append::to(&session, "1").item_id("i").run(&first).await.expect("the first");
        let waiting = tokio::spawn({
            let (second, session) = (second.clone(), session.clone());
            async move { Append::to(&session, "1").item_id("i").run(&second).await }
        });
        db.wait_until_blocked(second.pid).await;
        if commits {
            first.commit().await;
        } else {
            first.rollback().await;
        }
        let (position, entries) = if commits { (1, 2) } else { (0, 1) };
        assert_eq!(waiting.await.expect("the waiting append").expect("no error"), position);
        second.assert_dense(&session, entries).await;
    }
}
