//! Transactions that use one snapshot: whoever would append behind an entry that it cannot see gets 40001, and only that.

use std::sync::Arc;

use agent_sessions_tests::{Append, Connection, Database, Error, assert_sqlstate, sqlstate, together};

const ONE_SNAPSHOT: [&str; 2] = ["repeatable read", "serializable"];

/// Every way to write an entry about session `s`, which holds an item at position 0.
#[derive(Clone, Copy, Debug)]
enum Write {
    Append,
    ExpectedPosition,
    Replay,
    Batch,
    Revise,
    Retract,
    Pop,
    RawAppend,
    RawPosition,
    RawReplay,
    RawRows,
    RawRevise,
    RawRetract,
}

impl Write {
    const ALL: [Write; 13] = [
        Write::Append,
        Write::ExpectedPosition,
        Write::Replay,
        Write::Batch,
        Write::Revise,
        Write::Retract,
        Write::Pop,
        Write::RawAppend,
        Write::RawPosition,
        Write::RawReplay,
        Write::RawRows,
        Write::RawRevise,
        Write::RawRetract,
    ];

    async fn run(self, connection: &Connection, session: &str) -> Result<(), Error> {
        let sql = match self {
            Write::Append => return connection.try_append(session, "1").await.map(|_| ()),
            // Its own snapshot says that the next position is 1.
            Write::ExpectedPosition => {
                return Append::to(session, "1").expected_position(1).run(connection).await.map(|_| ());
            }
            // What the winner wrote.
            Write::Replay => {
                return Append::to(session, r#""winner""#).item_id("winner").run(connection).await.map(|_| ());
            }
            Write::Batch => {
                let batch = r#"[{"payload":1},{"payload":2}]"#;
                return connection.try_append_batch(session, batch, None).await.map(|_| ());
            }
            Write::Revise => "select agent_sessions.session_revise(session_id => $1::text, target => 0, payload => '[]')",
            Write::Retract => "select agent_sessions.session_retract(session_id => $1::text, targets => '{0}')",
            Write::Pop => "select position from agent_sessions.session_pop(session_id => $1::text)",
            Write::RawAppend => return connection.raw_append(session, "1").await.map(|_| ()),
            Write::RawPosition => return connection.raw_append_at(session, 1, "1").await.map(|_| ()),
            Write::RawReplay => {
                "insert into agent_sessions.session_item (sid, item_id, payload)
                 select sid, 'winner', '\"winner\"' from agent_sessions.session where session_id = $1::text"
            }
            Write::RawRows => {
                "insert into agent_sessions.session_item (sid, payload)
                 select sid, to_json(n) from agent_sessions.session, generate_series(1, 2) n where session_id = $1::text"
            }
            Write::RawRevise => {
                "insert into agent_sessions.session_item (sid, op, target, payload)
                 select sid, 'revise', 0, '[]' from agent_sessions.session where session_id = $1::text"
            }
            Write::RawRetract => {
                "insert into agent_sessions.session_item (sid, op, target)
                 select sid, 'retract', 0 from agent_sessions.session where session_id = $1::text"
            }
        };
        connection.query(sql, &[&session]).await.map(|_| ())
    }

    /// A stale position stays stale when the transaction is repeated as it is.
    fn succeeds_when_repeated(self) -> bool {
        !matches!(self, Write::ExpectedPosition | Write::RawPosition)
    }
}

/// Begins a transaction and takes its snapshot of a session that holds one item.
async fn snapshot(connection: &Connection, isolation: &str, session: &str) {
    connection.begin(isolation).await;
    let seen = connection.history(session).await;
    assert_eq!(seen.len(), 1, "{session}");
}

async fn winner_appends(connection: &Connection, session: &str) {
    let won = Append::to(session, r#""winner""#).item_id("winner").run(connection).await;
    assert_eq!(won.expect("the winner's append"), 1);
}

async fn session_with_an_item(connection: &Connection, session: &str) {
    connection.create_session(session).await;
    connection.append(session, "0").await;
}

async fn assert_repeating_helps(write: Write, loser: &Connection, isolation: &str, session: &str) {
    loser.rollback().await;
    loser.assert_dense(session, 2).await;
    loser.begin(isolation).await;
    let again = write.run(loser, session).await;
    if write.succeeds_when_repeated() {
        again.unwrap_or_else(|error| panic!("{write:?} again: {error:?}"));
        loser.commit().await;
    } else {
        assert_sqlstate!(again, "SE007");
        loser.rollback().await;
    }
    let verdict = loser.verify(session).await;
    assert!(verdict.ok, "{write:?}: {verdict:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_winner_that_committed_before_is_a_serialization_failure() {
    let db = Database::create("winner_before").await;
    let (winner, loser) = (db.writer().await, db.writer().await);
    for isolation in ONE_SNAPSHOT {
        for write in Write::ALL {
            let session = format!("{isolation} {write:?}");
            session_with_an_item(&winner, &session).await;
            snapshot(&loser, isolation, &session).await;
            winner_appends(&winner, &session).await;
            let refused = write.run(&loser, &session).await;
            assert!(refused.is_err(), "{session} wrote behind an entry that it does not see");
            assert_sqlstate!(refused, "40001");
            assert_repeating_helps(write, &loser, isolation, &session).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_winner_that_commits_while_waiting_is_a_serialization_failure() {
    let db = Database::create("winner_meanwhile").await;
    let (winner, loser) = (db.writer().await, Arc::new(db.writer().await));
    for isolation in ONE_SNAPSHOT {
        for write in Write::ALL {
            let session = format!("{isolation} {write:?}");
            session_with_an_item(&winner, &session).await;
            snapshot(&loser, isolation, &session).await;
            winner.begin("read committed").await;
            winner_appends(&winner, &session).await;
            let waiting = tokio::spawn({
                let (loser, session) = (loser.clone(), session.clone());
                async move { write.run(&loser, &session).await }
            });
            db.wait_until_blocked(loser.pid).await;
            winner.commit().await;
            let refused = waiting.await.expect("the waiting write");
            assert!(refused.is_err(), "{session} wrote behind an entry that it does not see");
            assert_sqlstate!(refused, "40001");
            assert_repeating_helps(write, &loser, isolation, &session).await;
        }
    }
}

/// A winner that rolls back has not won.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_rolls_back_disturbs_nobody() {
    let db = Database::create("rolls_back").await;
    let (other, waiter) = (db.writer().await, Arc::new(db.writer().await));
    for isolation in ONE_SNAPSHOT {
        for write in Write::ALL {
            let session = format!("{isolation} {write:?}");
            session_with_an_item(&other, &session).await;
            snapshot(&waiter, isolation, &session).await;
            other.begin("read committed").await;
            winner_appends(&other, &session).await;
            let waiting = tokio::spawn({
                let (waiter, session) = (waiter.clone(), session.clone());
                async move { write.run(&waiter, &session).await }
            });
            db.wait_until_blocked(waiter.pid).await;
            other.rollback().await;
            let written = waiting.await.expect("the waiting write");
            written.unwrap_or_else(|error| panic!("{session}: {error:?}"));
            waiter.commit().await;
            let entries = waiter.log(&session).await.len() as i64;
            assert!(entries > 1, "{session} has written nothing");
            waiter.assert_dense(&session, entries).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_sees_its_own_entries() {
    let db = Database::create("own_entries").await;
    let writer = db.writer().await;
    for isolation in ONE_SNAPSHOT {
        writer.begin(isolation).await;
        writer.create_session(isolation).await;
        for position in 0..3 {
            assert_eq!(writer.append(isolation, "1").await, 3 * position);
            assert_eq!(writer.raw_append(isolation, "2").await.expect("a plain INSERT"), 1);
            assert_eq!(writer.append_batch(isolation, r#"[{"payload":3}]"#).await, [3 * position + 2]);
        }
        writer.commit().await;
        writer.assert_dense(isolation, 9).await;
    }
}

/// The first entry of all, where there is no tail to look at.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_entry_is_no_exception() {
    let db = Database::create("first_entry").await;
    let (winner, loser) = (db.writer().await, db.writer().await);
    for isolation in ONE_SNAPSHOT {
        for raw in [false, true] {
            let session = format!("{isolation} {raw}");
            winner.create_session(&session).await;
            loser.begin(isolation).await;
            assert!(loser.history(&session).await.is_empty());
            winner.append(&session, "1").await;
            let refused = if raw {
                loser.raw_append(&session, "2").await.map(|_| ())
            } else {
                loser.try_append(&session, "2").await.map(|_| ())
            };
            assert_sqlstate!(refused, "40001");
            loser.rollback().await;
            loser.assert_dense(&session, 1).await;
        }
    }
}

/// A session that the snapshot does not know must not become a bare unique violation.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_created_since_the_snapshot_is_a_serialization_failure() {
    let db = Database::create("created_since").await;
    let (winner, loser) = (db.writer().await, db.writer().await);
    for isolation in ONE_SNAPSHOT {
        loser.begin(isolation).await;
        assert!(loser.history(isolation).await.is_empty());
        Append::to(isolation, "1").on_missing("create").run(&winner).await.expect("the winner's append");
        let refused = Append::to(isolation, "2").on_missing("create").run(&loser).await;
        assert_sqlstate!(refused, "40001");
        loser.rollback().await;
        let again = Append::to(isolation, "2").on_missing("create").run(&loser).await;
        assert_eq!(again.expect("the same again"), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_written_since_the_snapshot_is_a_serialization_failure() {
    let db = Database::create("state_since").await;
    let (winner, loser) = (db.writer().await, db.writer().await);
    let function = "select agent_sessions.session_set(session_id => $1::text, title => 'x')";
    let raw = "update agent_sessions.session set title = 'y' where session_id = $1::text";
    for isolation in ONE_SNAPSHOT {
        winner.create_session(isolation).await;
        for set in [function, raw] {
            loser.begin(isolation).await;
            assert!(loser.history(isolation).await.is_empty());
            winner.query(function, &[&isolation]).await.expect("the winner's title");
            winner.query(raw, &[&isolation]).await.expect("the winner's title");
            assert_sqlstate!(loser.query(set, &[&isolation]).await, "40001");
            loser.rollback().await;
        }
    }
}

/// Under load every error is 40001, and whoever tries again gets through.
#[tokio::test(flavor = "multi_thread")]
async fn retries_complete_under_load() {
    const CLIENTS: usize = 8;
    const APPENDS: usize = 25;
    let db = Database::create("retries_complete").await;
    let clients = db.writers(CLIENTS).await;
    for isolation in ONE_SNAPSHOT {
        clients[0].create_session(isolation).await;
        together(CLIENTS, |client| {
            let writer = clients[client].clone();
            async move {
                for number in 0..APPENDS {
                    let payload = format!("[{client},{number}]");
                    while let Err(error) = in_transaction(&writer, isolation, &payload, client % 2 == 0).await {
                        assert_eq!(sqlstate(&error), "40001", "{error:?}");
                    }
                }
            }
        })
        .await;
        clients[0].assert_dense(isolation, (CLIENTS * APPENDS) as i64).await;
        let mut payloads: Vec<_> = clients[0].history(isolation).await.into_iter().map(|item| item.payload).collect();
        payloads.sort();
        payloads.dedup();
        assert_eq!(payloads.len(), CLIENTS * APPENDS, "each once");
    }
}

async fn in_transaction(writer: &Connection, session: &str, payload: &str, raw: bool) -> Result<(), Error> {
    writer.begin(session).await;
    let appended = if raw {
        writer.raw_append(session, payload).await.map(|_| ())
    } else {
        writer.try_append(session, payload).await.map(|_| ())
    };
    // SERIALIZABLE may also fail at the end.
    let ended = match &appended {
        Ok(()) => writer.batch_execute("commit").await,
        Err(_) => writer.batch_execute("rollback").await,
    };
    appended.and(ended)
}
