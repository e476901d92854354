//! Compare-and-set on the log and on the state: one winner, and every loser is told where it stands.

use std::sync::Arc;

use agent_sessions_tests::{
    Append, Connection, Database, Error, assert_one_winner, assert_sqlstate, detail, sqlstate, together,
};
use serde_json::json;

const WRITERS: usize = 4;
const ROUNDS: i64 = 50;

#[derive(Clone, Copy, Debug)]
enum At {
    Append,
    Batch,
    Insert,
}

impl At {
    const ALL: [At; 3] = [At::Append, At::Batch, At::Insert];

    async fn write(self, writer: &Connection, session: &str, position: i64, payload: &str) -> Result<(), Error> {
        match self {
            At::Append => Append::to(session, payload).expected_position(position).run(writer).await.map(|_| ()),
            At::Batch => {
                let batch = format!(r#"[{{"payload":{payload}}}]"#);
                writer.try_append_batch(session, &batch, Some(position)).await.map(|_| ())
            }
            At::Insert => writer.raw_append_at(session, position, payload).await.map(|_| ()),
        }
    }
}

/// The first entry and later ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_position_has_one_winner() {
    let db = Database::create("position_race").await;
    let writers = db.writers(WRITERS).await;
    for at in At::ALL {
        let session = format!("{at:?}");
        writers[0].create_session(&session).await;
        for position in 0..ROUNDS {
            let results = together(WRITERS, |number| {
                let (writer, session) = (writers[number].clone(), session.clone());
                async move { at.write(&writer, &session, position, &format!("[{position},{number}]")).await }
            })
            .await;
            assert_one_winner(results, "SE007", &json!({"expected": position, "actual": position + 1}));
        }
        writers[0].assert_dense(&session, ROUNDS).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_position_of_a_missing_session_has_one_winner() {
    let db = Database::create("first_position_race").await;
    let writers = db.writers(WRITERS).await;
    for round in 0..20 {
        let session = format!("round {round}");
        let results = together(WRITERS, |number| {
            let (writer, session) = (writers[number].clone(), session.clone());
            async move { Append::to(&session, "1").on_missing("create").expected_position(0).run(&writer).await }
        })
        .await;
        assert_eq!(assert_one_winner(results, "SE007", &json!({"expected": 0, "actual": 1})), 0);
        writers[0].assert_dense(&session, 1).await;
    }
}

/// The loser waited for the winner, so what it is told is the winner's position and not the one it had read.
#[tokio::test(flavor = "multi_thread")]
async fn a_loser_that_waited_succeeds_at_the_position_it_is_told() {
    let db = Database::create("loser_waited").await;
    let (winner, loser) = (db.writer().await, Arc::new(db.writer().await));
    for at in At::ALL {
        let session = format!("{at:?}");
        winner.create_session(&session).await;
        winner.append(&session, "0").await;
        winner.begin("read committed").await;
        winner.append_batch(&session, r#"[{"payload":1},{"payload":2}]"#).await;
        let waiting = tokio::spawn({
            let (loser, session) = (loser.clone(), session.clone());
            async move { at.write(&loser, &session, 1, "3").await }
        });
        db.wait_until_blocked(loser.pid).await;
        winner.commit().await;
        let error = assert_sqlstate!(waiting.await.expect("the waiting write"), "SE007");
        assert_eq!(detail(&error), json!({"expected": 1, "actual": 3}));
        let actual = detail(&error)["actual"].as_i64().expect("the next position");
        at.write(&loser, &session, actual, "3").await.expect("one retry succeeds");
        loser.assert_dense(&session, 4).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_lies_ahead_is_refused() {
    let db = Database::create("position_ahead").await;
    let writer = db.writer().await;
    for at in At::ALL {
        let session = format!("{at:?}");
        writer.create_session(&session).await;
        let error = assert_sqlstate!(at.write(&writer, &session, 5, "1").await, "SE007");
        assert_eq!(detail(&error), json!({"expected": 5, "actual": 0}));
        writer.assert_dense(&session, 0).await;
    }
}

#[derive(Clone, Copy, Debug)]
enum Revision {
    Set,
    Update,
}

impl Revision {
    const ALL: [Revision; 2] = [Revision::Set, Revision::Update];

    async fn write(self, writer: &Connection, expected: i64, state: &str) -> Result<u64, Error> {
        let sql = match self {
            Revision::Set => {
                "select agent_sessions.session_set(
                    session_id => 's', state => $2::text::json, expected_revision => $1::bigint)"
            }
            Revision::Update => {
                "update agent_sessions.session set state = $2::text::json, revision = $1::bigint + 1
                 where session_id = 's'"
            }
        };
        writer.execute(sql, &[&expected, &state]).await
    }
}

/// Another one each time: a write that changes nothing moves no revision, and would not keep the next one out.
fn state(revision: i64, writer: usize) -> String {
    format!(r#"{{"after": {revision}, "by": {writer}}}"#)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revision_has_one_winner() {
    let db = Database::create("revision_race").await;
    let writers = db.writers(WRITERS).await;
    writers[0].create_session("s").await;
    let mut revision = 0;
    for write in Revision::ALL {
        for _ in 0..20 {
            let results = together(WRITERS, |number| {
                let writer = writers[number].clone();
                async move { write.write(&writer, revision, &state(revision, number)).await.map(|_| number) }
            })
            .await;
            let told = json!({"expected": revision, "actual": revision + 1});
            let won = assert_one_winner(results, "SE006", &told);
            revision += 1;
            let row = writers[0]
                .query_one("select state::text, revision from agent_sessions.session_get(session_id => 's')", &[])
                .await
                .expect("the session");
            let stored: (String, i64) = (row.get(0), row.get(1));
            assert_eq!(stored, (state(revision - 1, won), revision));
        }
    }
}

/// One replica tightens permissions; the other writes a title on what it had read before.
#[tokio::test(flavor = "multi_thread")]
async fn a_later_write_does_not_undo_a_permission_change() {
    let db = Database::create("permission_change").await;
    let (first, second) = (db.writer().await, db.writer().await);
    let create = "select session_id from agent_sessions.session_create(
        session_id => 's', metadata => '{\"may\": \"everything\"}')";
    first.value::<String>(create, &[]).await;
    let tighten = "select agent_sessions.session_set(
        session_id => 's', metadata => '{\"may\": \"read\"}', expected_revision => 0)";
    assert_eq!(first.value::<i64>(tighten, &[]).await, 1);
    let stale = "select agent_sessions.session_set(session_id => 's', title => 'Triage',
        metadata => '{\"may\": \"everything\"}', expected_revision => 0)";
    let error = assert_sqlstate!(second.try_value::<i64>(stale, &[]).await, "SE006");
    assert_eq!(detail(&error), json!({"expected": 0, "actual": 1}));
    let kept = "select title is null and metadata = '{\"may\": \"read\"}'
                from agent_sessions.session_get(session_id => 's')";
    assert!(first.value::<bool>(kept, &[]).await);
}

/// An increment that reads, adds and compares loses no update.
#[tokio::test(flavor = "multi_thread")]
async fn increments_with_retries_lose_nothing() {
    const EACH: i64 = 20;
    let db = Database::create("increments").await;
    let writers = db.writers(WRITERS).await;
    let create = "select session_id from agent_sessions.session_create(session_id => 's', state => '0')";
    writers[0].value::<String>(create, &[]).await;
    together(WRITERS, |number| {
        let writer = writers[number].clone();
        async move {
            for _ in 0..EACH {
                loop {
                    let get = "select state::text, revision from agent_sessions.session_get(session_id => 's')";
                    let row = writer.query_one(get, &[]).await.expect("the session");
                    let count: i64 = row.get::<_, &str>(0).parse().expect("a number");
                    match Revision::Set.write(&writer, row.get(1), &(count + 1).to_string()).await {
                        Ok(_) => break,
                        Err(error) => assert_eq!(sqlstate(&error), "SE006", "{error:?}"),
                    }
                }
            }
        }
    })
    .await;
    let total = "select state::text || ' ' || revision from agent_sessions.session_get(session_id => 's')";
    assert_eq!(writers[0].value::<String>(total, &[]).await, "80 80");
}
