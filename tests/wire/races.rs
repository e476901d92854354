//! Races that have one winner: compare-and-set on the log and on the state, replays of one item_id, pops.

use std::collections::BTreeSet;
use std::sync::Arc;

use agent_sessions_tests::{Append, Connection, Database, Error, Role, assert_sqlstate, detail, sqlstate, together};
use serde_json::json;

const WRITERS: usize = 4;
const ROUNDS: i64 = 50;

async fn shared(db: &Database, count: usize) -> Vec<Arc<Connection>> {
    db.connections(Role::Writer, count).await.into_iter().map(Arc::new).collect()
}

/// One of the results is a success, all others have this code and this DETAIL.
fn assert_one_winner<T: std::fmt::Debug>(results: Vec<Result<T, Error>>, code: &str, told: &serde_json::Value) -> T {
    let mut winners = Vec::new();
    for result in results {
        match result {
            Ok(won) => winners.push(won),
            Err(error) => {
                assert_eq!(sqlstate(&error), code, "{error:?}");
                assert_eq!(&detail(&error), told);
            }
        }
    }
    assert_eq!(winners.len(), 1, "{winners:?}");
    winners.remove(0)
}

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
    let writers = shared(&db, WRITERS).await;
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
    let writers = shared(&db, WRITERS).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_revision_has_one_winner() {
    let db = Database::create("revision_race").await;
    let writers = shared(&db, WRITERS).await;
    writers[0].create_session("s").await;
    let mut revision = 0;
    for write in Revision::ALL {
        for _ in 0..20 {
            let results = together(WRITERS, |number| {
                let writer = writers[number].clone();
                async move { write.write(&writer, revision, &format!(r#"{{"by": {number}}}"#)).await.map(|_| number) }
            })
            .await;
            let told = json!({"expected": revision, "actual": revision + 1});
            let won = assert_one_winner(results, "SE006", &told);
            revision += 1;
            let row = writers[0]
                .query_one("select state::text, revision from agent_sessions.session_get(session_id => 's')", &[])
                .await
                .expect("the session");
            let state: (String, i64) = (row.get(0), row.get(1));
            assert_eq!(state, (format!(r#"{{"by": {won}}}"#), revision));
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
    let writers = shared(&db, WRITERS).await;
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

const REPLAYS: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn replays_of_one_item_are_one_row() {
    let db = Database::create("replays").await;
    let writers = shared(&db, REPLAYS).await;
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
    let writers = shared(&db, REPLAYS).await;
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
    let writers = shared(&db, REPLAYS).await;
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
    let writers = shared(&db, WRITERS).await;
    writers[0].create_session("s").await;
    for position in 0..20 {
        let item_id = format!("call {position}");
        let results = together(WRITERS, |number| {
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

#[tokio::test(flavor = "multi_thread")]
async fn an_item_is_popped_once() {
    const CLIENTS: usize = 8;
    const ITEMS: usize = 100;
    let db = Database::create("pop_race").await;
    let writers = shared(&db, CLIENTS).await;
    writers[0].create_session("s").await;
    let items: Vec<String> = (0..ITEMS).map(|number| format!(r#"{{"payload":{number}}}"#)).collect();
    writers[0].append_batch("s", &format!("[{}]", items.join(","))).await;
    let popped = together(CLIENTS, |number| {
        let writer = writers[number].clone();
        async move {
            let pop = "select payload::text from agent_sessions.session_pop(session_id => 's')";
            let mut mine: Vec<usize> = Vec::new();
            while let Some(row) = writer.query_opt(pop, &[]).await.expect("a pop") {
                mine.push(row.get::<_, &str>(0).parse().expect("a number"));
            }
            mine
        }
    })
    .await;
    for mine in &popped {
        assert!(mine.windows(2).all(|pair| pair[0] > pair[1]), "the newest goes first: {mine:?}");
    }
    let all: Vec<usize> = popped.concat();
    assert_eq!(all.len(), ITEMS, "an item came twice");
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>().len(), ITEMS);
    assert!(writers[0].history("s").await.is_empty());
    writers[0].assert_dense("s", 2 * ITEMS as i64).await;
}

/// Eight callers and three items: three get one each, five get none.
#[tokio::test(flavor = "multi_thread")]
async fn a_pop_of_nothing_returns_nothing() {
    let db = Database::create("pop_nothing").await;
    let writers = shared(&db, 8).await;
    writers[0].create_session("s").await;
    writers[0].append_batch("s", r#"[{"payload":1},{"payload":2},{"payload":3}]"#).await;
    let mut popped = together(8, |number| {
        let writer = writers[number].clone();
        async move {
            let pop = "select position from agent_sessions.session_pop(session_id => 's')";
            writer.query_opt(pop, &[]).await.expect("a pop").map(|row| row.get::<_, i64>(0))
        }
    })
    .await;
    popped.sort();
    assert_eq!(popped, [None, None, None, None, None, Some(0), Some(1), Some(2)]);
}

/// Two callers create one session: by session_create one wins, and with `keep` both get the same row.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_created_once() {
    let db = Database::create("create_race").await;
    let writers = shared(&db, WRITERS).await;
    for round in 0..10 {
        let session = format!("round {round}");
        let create = "select title from agent_sessions.session_create(session_id => $1::text, title => $2::text)";
        let results = together(WRITERS, |number| {
            let (writer, session) = (writers[number].clone(), session.clone());
            async move { writer.try_value::<String>(create, &[&session, &format!("by {number}")]).await }
        })
        .await;
        let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1, "{won:?}");
        for result in lost {
            assert_sqlstate!(result, "SE003");
        }

        let kept = format!("kept {round}");
        let keep = "select title from agent_sessions.session_create(
            session_id => $1::text, title => $2::text, on_conflict => 'keep')";
        let titles = together(WRITERS, |number| {
            let (writer, session) = (writers[number].clone(), kept.clone());
            async move { writer.value::<String>(keep, &[&session, &format!("by {number}")]).await }
        })
        .await;
        assert_eq!(titles, vec![titles[0].clone(); WRITERS], "all get the stored row");
    }
}

/// session_set with `create`: one makes revision 1, and every other moves it on by one.
#[tokio::test(flavor = "multi_thread")]
async fn first_states_create_the_session_once() {
    let db = Database::create("set_race").await;
    let writers = shared(&db, 8).await;
    let mut revisions = together(8, |number| {
        let writer = writers[number].clone();
        async move {
            let set = "select agent_sessions.session_set(
                session_id => 's', state => $1::text::json, on_missing => 'create')";
            writer.value::<i64>(set, &[&format!(r#"{{"by":{number}}}"#)]).await
        }
    })
    .await;
    revisions.sort();
    assert_eq!(revisions, (1..=8).collect::<Vec<i64>>());
}
