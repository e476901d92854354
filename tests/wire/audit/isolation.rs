//! Transactions that use one snapshot: whoever would append behind an event that it cannot see gets 40001, and only that.

use std::sync::Arc;

use agent_sessions_tests::{Connection, Database, Error, assert_sqlstate, sqlstate, together};

use super::{Event, array_of, assert_chained, export, try_batch, try_import};

const ONE_SNAPSHOT: [&str; 2] = ["repeatable read", "serializable"];

/// Every way to write to the stream `s`, whose last event has the id `winner`.
#[derive(Clone, Copy, Debug)]
enum Write {
    Append,
    Replay,
    Conflict,
    Batch,
    Import,
    RawAppend,
    RawReplay,
    RawDoNothing,
    RawSeq,
}

impl Write {
    const ALL: [Write; 9] = [
        Write::Append,
        Write::Replay,
        Write::Conflict,
        Write::Batch,
        Write::Import,
        Write::RawAppend,
        Write::RawReplay,
        Write::RawDoNothing,
        Write::RawSeq,
    ];

    async fn run(self, connection: &Connection, lines: &str) -> Result<(), Error> {
        let event = Event::in_stream("s", "a");
        let winner = Event { event_id: Some("winner"), ..event };
        match self {
            Write::Append => event.try_append(connection).await.map(drop),
            Write::Replay => winner.try_append(connection).await.map(drop),
            Write::Conflict => Event { action: Some("b"), ..winner }.try_append(connection).await.map(drop),
            Write::Batch => try_batch(connection, "s", r#"[{"action":"a"},{"action":"b"}]"#).await.map(drop),
            Write::Import => try_import(connection, "s", lines, None).await.map(drop),
            Write::RawAppend => event.try_insert(connection).await.map(drop),
            Write::RawReplay => winner.try_insert(connection).await.map(drop),
            Write::RawDoNothing => {
                let insert =
                    "insert into agent_sessions.audit_event (stream, action) values ('s', 'a') on conflict do nothing";
                connection.batch_execute(insert).await
            }
            // What its own snapshot says.
            Write::RawSeq => {
                let insert = "insert into agent_sessions.audit_event (stream, action, seq)
                              select 's', 'a', count(*) + 1 from agent_sessions.audit_event where stream = 's'";
                connection.batch_execute(insert).await
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_that_the_snapshot_does_not_see_is_a_serialization_failure() {
    let db = Database::create("audit_snapshot").await;
    let (late, winner) = (db.writer().await, db.writer().await);
    for isolation in ONE_SNAPSHOT {
        for write in Write::ALL {
            for exists in [true, false] {
                let tenant = format!("{write:?}, {isolation}, {exists}");
                for connection in [&late, &winner] {
                    connection.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
                }
                Event::in_stream("source", "a").append(&winner).await;
                let lines = array_of(&export(&winner, "source").await);
                if exists {
                    Event::in_stream("s", "a").append(&winner).await;
                }
                late.begin(isolation).await;
                let seen = late.value::<i64>("select count(*) from agent_sessions.audit_event", &[]).await;
                assert_eq!(seen, 1 + i64::from(exists));
                Event { event_id: Some("winner"), ..Event::in_stream("s", "a") }.append(&winner).await;
                match write.run(&late, &lines).await {
                    Ok(()) => panic!("{tenant}"),
                    Err(error) => assert_eq!(sqlstate(&error), "40001", "{tenant}: {error:?}"),
                }
                late.rollback().await;
                assert_chained(&winner, "s", 1 + i64::from(exists)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_that_is_committed_while_it_waits_is_a_serialization_failure() {
    let db = Database::create("audit_snapshot_waits").await;
    let (late, winner) = (Arc::new(db.writer().await), db.writer().await);
    let mut events = 0;
    for isolation in ONE_SNAPSHOT {
        for commits in [true, false] {
            for round in ["new", "again"] {
                late.begin(isolation).await;
                late.run("select count(*) from agent_sessions.audit_event").await;
                winner.begin("read committed").await;
                Event::in_stream("s", "a").append(&winner).await;
                let waiting = tokio::spawn({
                    let late = late.clone();
                    async move { Event::in_stream("s", "b").try_append(&late).await }
                });
                db.wait_until_blocked(late.pid).await;
                if commits {
                    winner.commit().await
                } else {
                    winner.rollback().await
                }
                let answer = waiting.await.expect("the late append");
                if commits {
                    assert_sqlstate!(answer, "40001");
                    late.rollback().await;
                } else {
                    assert!(answer.is_ok(), "{isolation}, {round}: {answer:?}");
                    late.commit().await;
                }
                events += 1;
            }
        }
    }
    assert_chained(&winner, "s", events).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_writes_alone_meets_no_error() {
    let db = Database::create("audit_snapshot_alone").await;
    let (writer, other) = (db.writer().await, db.writer().await);
    for (round, isolation) in ONE_SNAPSHOT.into_iter().enumerate() {
        writer.begin(isolation).await;
        writer.run("select count(*) from agent_sessions.audit_event").await;
        // Another stream's events are none of its business.
        Event::in_stream("other", "a").append(&other).await;
        let first = Event { event_id: Some(isolation), ..Event::in_stream("s", "a") };
        let appended = first.append(&writer).await;
        assert_eq!(first.append(&writer).await.outcome, "replayed");
        Event::in_stream("s", "a").insert(&writer).await;
        assert_eq!(try_batch(&writer, "s", r#"[{"action":"a"},{"action":"a"}]"#).await.expect("a batch").len(), 2);
        assert_sqlstate!(Event { action: Some("b"), ..first }.try_append(&writer).await, "SE021");
        writer.rollback().await;
        assert_eq!(appended.seq, 1 + 3 * round as i64);

        writer.begin(isolation).await;
        for _ in 0..3 {
            Event::in_stream("s", "a").append(&writer).await;
        }
        assert_chained(&writer, "s", 3 * (round as i64 + 1)).await;
        writer.commit().await;
    }
    assert_chained(&other, "s", 6).await;
    assert_chained(&other, "other", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_try_again_after_40001_write_everything() {
    const CLIENTS: usize = 5;
    const APPENDS: usize = 30;
    for isolation in ONE_SNAPSHOT {
        let db = Database::create("audit_snapshot_race").await;
        let clients = db.writers(CLIENTS).await;
        let refused: usize = together(CLIENTS, |client| {
            let writer = clients[client].clone();
            async move {
                let mut refused = 0;
                for number in 0..APPENDS {
                    while !appended_once(&writer, isolation, &format!("{client} {number}")).await {
                        refused += 1;
                    }
                }
                refused
            }
        })
        .await
        .into_iter()
        .sum();
        // All at once, and never in each other's way: that would be no race.
        assert!(refused > 0, "{isolation}");
        assert_chained(&clients[0], "s", (CLIENTS * APPENDS) as i64).await;
    }
}

/// Whether a transaction of its own has written the event; if not, the code was 40001.
async fn appended_once(writer: &Connection, isolation: &str, id: &str) -> bool {
    writer.begin(isolation).await;
    let event = Event { event_id: Some(id), ..Event::in_stream("s", "a") };
    let result = match event.try_append(writer).await {
        Ok(_) => writer.batch_execute("commit").await,
        Err(error) => {
            writer.rollback().await;
            Err(error)
        }
    };
    if let Err(error) = &result {
        assert_eq!(sqlstate(error), "40001", "{error:?}");
    }
    result.is_ok()
}
