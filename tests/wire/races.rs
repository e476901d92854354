//! Races for the same thing: items popped, sessions created, sessions deleted under a writer.

use std::collections::BTreeSet;
use std::sync::Arc;

use agent_sessions_tests::{Append, Connection, Database, Error, assert_sqlstate, sqlstate, together};

const WRITERS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn an_item_is_popped_once() {
    const CLIENTS: usize = 8;
    const ITEMS: usize = 100;
    let db = Database::create("pop_race").await;
    let writers = db.writers(CLIENTS).await;
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
    let writers = db.writers(8).await;
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
    let writers = db.writers(WRITERS).await;
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
    let writers = db.writers(8).await;
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

async fn delete(connection: &Connection, session: &str, raw: bool) -> Result<(), Error> {
    let sql = if raw {
        "delete from agent_sessions.session where session_id = $1::text"
    } else {
        "select agent_sessions.session_delete(session_id => $1::text)"
    };
    connection.execute(sql, &[&session]).await.map(|_| ())
}

async fn append(connection: &Connection, session: &str, raw: bool) -> Result<(), Error> {
    if raw {
        connection.raw_append(session, "1").await.map(|_| ())
    } else {
        connection.try_append(session, "1").await.map(|_| ())
    }
}

/// No entry without its session, and no sub-session without its parent.
async fn assert_no_orphans(db: &Database) {
    let orphans = "
        select (select count(*) from agent_sessions.session_item i
                where not exists (select from agent_sessions.session s where s.sid = i.sid))
             + (select count(*) from agent_sessions.session c
                where parent_sid is not null and not exists (select from agent_sessions.session s where s.sid = c.parent_sid))";
    assert_eq!(db.owner().await.value::<i64>(orphans, &[]).await, 0);
}

/// A delete that waited for an append takes that entry along.
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_takes_what_it_waited_for() {
    let db = Database::create("delete_waits").await;
    let (writer, deleter) = (db.writer().await, Arc::new(db.writer().await));
    for raw in [false, true] {
        let session = format!("{raw}");
        writer.create_session(&session).await;
        writer.append(&session, "0").await;
        writer.begin("read committed").await;
        writer.append(&session, "1").await;
        let waiting = tokio::spawn({
            let (deleter, session) = (deleter.clone(), session.clone());
            async move { delete(&deleter, &session, raw).await }
        });
        db.wait_until_blocked(deleter.pid).await;
        writer.commit().await;
        waiting.await.expect("the waiting delete").expect("no error");
        assert!(writer.log(&session).await.is_empty());
        assert_no_orphans(&db).await;
    }
}

/// An append that waited for a delete has no session to write to.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_that_waited_for_a_delete_finds_no_session() {
    let db = Database::create("append_waits").await;
    let (deleter, writer) = (db.writer().await, Arc::new(db.writer().await));
    for raw in [false, true] {
        let session = format!("{raw}");
        deleter.create_session(&session).await;
        deleter.append(&session, "0").await;
        deleter.begin("read committed").await;
        delete(&deleter, &session, raw).await.expect("a delete");
        let waiting = tokio::spawn({
            let (writer, session) = (writer.clone(), session.clone());
            async move { append(&writer, &session, raw).await }
        });
        db.wait_until_blocked(writer.pid).await;
        deleter.commit().await;
        assert_sqlstate!(waiting.await.expect("the waiting append"), "SE002");
        assert_no_orphans(&db).await;
    }
}

/// The delete's snapshot does not see the newest entry: it takes it along, or it is a serialization failure.
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_with_an_old_snapshot_leaves_no_orphan() {
    let db = Database::create("old_delete").await;
    let (writer, deleter) = (db.writer().await, db.writer().await);
    for isolation in ["repeatable read", "serializable"] {
        for raw in [false, true] {
            let session = format!("{isolation} {raw}");
            writer.create_session(&session).await;
            writer.append(&session, "0").await;
            deleter.begin(isolation).await;
            assert_eq!(deleter.history(&session).await.len(), 1);
            writer.append(&session, "1").await;
            match delete(&deleter, &session, raw).await {
                Ok(()) => deleter.commit().await,
                Err(error) => {
                    assert_eq!(sqlstate(&error), "40001", "{error:?}");
                    deleter.rollback().await;
                    delete(&deleter, &session, raw).await.expect("the same again");
                }
            }
            assert!(writer.log(&session).await.is_empty());
            assert_no_orphans(&db).await;
        }
    }
}

/// A sub-session that is being created goes with its parent, or is not created.
#[tokio::test(flavor = "multi_thread")]
async fn no_sub_session_outlives_its_parent() {
    let db = Database::create("sub_sessions").await;
    let (creator, deleter) = (Arc::new(db.writer().await), Arc::new(db.writer().await));
    let create = "select session_id from agent_sessions.session_create(
        session_id => $1::text, parent_session_id => $2::text)";
    for raw in [false, true] {
        let (parent, child) = (format!("parent {raw}"), format!("child {raw}"));
        creator.create_session(&parent).await;
        creator.begin("read committed").await;
        creator.value::<String>(create, &[&child, &parent]).await;
        let waiting = tokio::spawn({
            let (deleter, parent) = (deleter.clone(), parent.clone());
            async move { delete(&deleter, &parent, raw).await }
        });
        db.wait_until_blocked(deleter.pid).await;
        creator.commit().await;
        waiting.await.expect("the waiting delete").expect("no error");
        assert_no_orphans(&db).await;

        creator.create_session(&parent).await;
        deleter.begin("read committed").await;
        delete(&deleter, &parent, raw).await.expect("a delete");
        let waiting = tokio::spawn({
            let (creator, parent, child) = (creator.clone(), parent.clone(), child.clone());
            async move { creator.try_value::<String>(create, &[&child, &parent]).await }
        });
        db.wait_until_blocked(creator.pid).await;
        deleter.commit().await;
        assert_sqlstate!(waiting.await.expect("the waiting create"), "SE002");
        assert_no_orphans(&db).await;
    }
}

/// The delete's snapshot does not see the sub-session: it takes it along, or it is a serialization failure.
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_with_an_old_snapshot_leaves_no_sub_session() {
    let db = Database::create("old_parent").await;
    let (creator, deleter) = (db.writer().await, db.writer().await);
    let create = "select session_id from agent_sessions.session_create(
        session_id => $1::text, parent_session_id => $2::text)";
    for isolation in ["repeatable read", "serializable"] {
        for raw in [false, true] {
            let (parent, child) = (format!("parent {isolation} {raw}"), format!("child {isolation} {raw}"));
            creator.create_session(&parent).await;
            deleter.begin(isolation).await;
            assert!(deleter.history(&parent).await.is_empty());
            creator.value::<String>(create, &[&child, &parent]).await;
            creator.append(&child, "1").await;
            match delete(&deleter, &parent, raw).await {
                Ok(()) => deleter.commit().await,
                Err(error) => {
                    assert_eq!(sqlstate(&error), "40001", "{error:?}");
                    deleter.rollback().await;
                    delete(&deleter, &parent, raw).await.expect("the same again");
                }
            }
            assert!(creator.log(&child).await.is_empty());
            assert_no_orphans(&db).await;
        }
    }
}

/// Every writer that creates what is missing, against deletes: who is told to create is never told that nothing is there.
#[tokio::test(flavor = "multi_thread")]
async fn who_creates_what_is_missing_survives_deletes() {
    let db = Database::create("create_delete").await;
    let writers = db.writers(8).await;
    together(writers.len(), |number| {
        let writer = writers[number].clone();
        async move {
            for _ in 0..40 {
                match number {
                    0 | 1 => match delete(&writer, "s", number == 1).await {
                        Ok(()) => {}
                        Err(error) => assert_eq!(sqlstate(&error), "SE002", "{error:?}"),
                    },
                    _ => create_what_is_missing(&writer, number).await.expect("a write that creates"),
                }
            }
        }
    })
    .await;
    assert_no_orphans(&db).await;
    let sessions = "select count(*) from agent_sessions.session";
    if writers[0].value::<i64>(sessions, &[]).await > 0 {
        let entries = writers[0].log("s").await.len() as i64;
        writers[0].assert_dense("s", entries).await;
    }
}

async fn create_what_is_missing(writer: &Connection, number: usize) -> Result<(), Error> {
    let sql = match number {
        2..=4 => return Append::to("s", "1").on_missing("create").run(writer).await.map(|_| ()),
        5 => {
            "select from agent_sessions.session_append_batch(
                session_id => 's', items => '[{\"payload\":1}]', on_missing => 'create')"
        }
        6 => "select agent_sessions.session_set(session_id => 's', title => 't', on_missing => 'create')",
        _ => "select from agent_sessions.session_create(session_id => 's', on_conflict => 'keep')",
    };
    writer.query_one(sql, &[]).await.map(|_| ())
}
