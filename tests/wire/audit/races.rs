//! Many writers at the same time under READ COMMITTED: one chain for each stream, no gap, no error, no needless wait.

use std::sync::Arc;

use agent_sessions_tests::{Connection, Database, assert_sqlstate, together};

use super::{
    Event, array_of, assert_chained, batch, column, count, export, import, in_tenant, try_import, wait_for_nothing,
};

#[tokio::test(flavor = "multi_thread")]
async fn twenty_five_first_appends_make_one_chain() {
    const CLIENTS: usize = 25;
    let db = Database::create("audit_first").await;
    let clients = db.writers(CLIENTS).await;
    for tenant in ["new", "newer", "newest"] {
        for writer in &clients {
            writer.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        }
        let mut places = together(CLIENTS, |client| {
            let writer = clients[client].clone();
            async move {
                if client % 3 == 0 {
                    let insert =
                        "insert into agent_sessions.audit_event (stream, action) values ('s', 'a') returning seq";
                    writer.value::<i64>(insert, &[]).await
                } else {
                    Event::in_stream("s", "a").append(&writer).await.seq
                }
            }
        })
        .await;
        places.sort_unstable();
        assert_eq!(places, (1..=CLIENTS as i64).collect::<Vec<_>>());
        assert_chained(&clients[0], "s", CLIENTS as i64).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn six_clients_append_to_one_stream() {
    const CLIENTS: usize = 6;
    const APPENDS: usize = 200;
    let db = Database::create("audit_six").await;
    let clients = db.writers(CLIENTS).await;
    together(CLIENTS, |client| {
        let writer = clients[client].clone();
        async move {
            for number in 0..APPENDS {
                let (actor, payload) = (client.to_string(), number.to_string());
                let event = Event { actor: Some(&actor), payload: Some(&payload), ..Event::in_stream("s", "a") };
                match client {
                    0 => event.insert(&writer).await,
                    1 => {
                        let element = format!(r#"[{{"action":"a","actor":"1","payload":{number}}}]"#);
                        assert_eq!(batch(&writer, "s", &element).await.len(), 1);
                    }
                    _ => assert_eq!(event.append(&writer).await.outcome, "appended"),
                }
            }
        }
    })
    .await;
    assert_chained(&clients[0], "s", (CLIENTS * APPENDS) as i64).await;
    // Each client's own events are in the order in which it wrote them.
    let payloads = column(&clients[0], "s", "actor || ' ' || agent_sessions.audit_payload(data)::text").await;
    for client in 0..CLIENTS {
        let mine = payloads.iter().filter_map(|payload| payload.strip_prefix(&format!("{client} ")));
        assert!(mine.eq((0..APPENDS).map(|number| number.to_string())), "client {client}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_several_clients_stay_together() {
    const CLIENTS: usize = 6;
    let db = Database::create("audit_batches_race").await;
    let clients = db.writers(CLIENTS).await;
    together(CLIENTS, |client| {
        let writer = clients[client].clone();
        async move {
            for number in 0..20 {
                let element = format!(r#"{{"action":"{client} {number}"}}"#);
                let appended = batch(&writer, "s", &array_of(&vec![element; 5])).await;
                let first = appended[0].seq;
                assert_eq!(
                    appended.iter().map(|row| row.seq).collect::<Vec<_>>(),
                    (first..first + 5).collect::<Vec<_>>()
                );
            }
        }
    })
    .await;
    assert_chained(&clients[0], "s", 600).await;
    let actions = column(&clients[0], "s", "action").await;
    assert!(actions.chunks(5).all(|chunk| chunk.iter().all(|action| action == &chunk[0])));
}

#[tokio::test(flavor = "multi_thread")]
async fn different_streams_do_not_wait_for_each_other() {
    let db = Database::create("audit_no_wait").await;
    let (holder, writer) = (db.writer().await, db.writer().await);
    let elsewhere = in_tenant(&db, "other").await;
    for existing in ["old", "t"] {
        Event::in_stream(existing, "a").append(&holder).await;
    }
    holder.begin("read committed").await;
    Event::in_stream("old", "a").append(&holder).await;
    Event::in_stream("new", "a").append(&holder).await;
    for other in [&writer, &elsewhere] {
        wait_for_nothing(other).await;
    }
    Event::in_stream("t", "a").append(&writer).await;
    Event::in_stream("u", "a").append(&writer).await;
    Event::in_stream("t", "a").insert(&writer).await;
    batch(&writer, "t", r#"[{"action":"a"}]"#).await;
    let lines = array_of(&export(&writer, "t").await);
    assert_eq!(import(&writer, "v", &lines, None).await, 4);
    // The same streams of another tenant, too.
    for stream in ["old", "new"] {
        Event::in_stream(stream, "a").append(&elsewhere).await;
    }
    // Looking waits for nothing at all.
    assert_chained(&writer, "old", 1).await;
    assert_eq!(count(&writer, "agent_sessions.audit_list('old')").await, 1);
    assert_eq!(count(&writer, "agent_sessions.audit_stream").await, 4);
    // That the lock is held, each form of writing says.
    for stream in ["old", "new"] {
        let event = Event::in_stream(stream, "a");
        assert_sqlstate!(event.try_append(&writer).await, "55P03");
        assert_sqlstate!(event.try_insert(&writer).await, "55P03");
        assert_sqlstate!(super::try_batch(&writer, stream, r#"[{"action":"a"}]"#).await, "55P03");
        assert_sqlstate!(try_import(&writer, stream, &lines, None).await, "55P03");
    }
    holder.commit().await;
    assert_chained(&writer, "old", 2).await;
    assert_chained(&writer, "new", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rolled_back_leaves_no_gap() {
    let db = Database::create("audit_rollbacks").await;
    let writer = db.writer().await;
    let append = async || Event::in_stream("s", "a").append(&writer).await.seq;
    writer.begin("read committed").await;
    assert_eq!(append().await, 1);
    writer.rollback().await;
    assert_eq!(count(&writer, "agent_sessions.audit_stream").await, 0);
    assert_eq!(append().await, 1);

    writer.begin("read committed").await;
    assert_eq!(append().await, 2);
    writer.run("savepoint one").await;
    assert_eq!(append().await, 3);
    assert_eq!(batch(&writer, "s", r#"[{"action":"a"},{"action":"a"}]"#).await[1].seq, 5);
    writer.run("savepoint two").await;
    assert_eq!(append().await, 6);
    writer.run("rollback to two").await;
    assert_eq!(append().await, 6);
    writer.run("rollback to one").await;
    assert_eq!(append().await, 3);
    writer.run("release one").await;
    assert_eq!(append().await, 4);
    // A statement that fails after it has written takes it back.
    writer.run("savepoint three").await;
    let fails = "insert into agent_sessions.audit_event (stream, action) values ('s', 'a'), ('s', 'a'), ('s', '')";
    assert_sqlstate!(writer.batch_execute(fails).await, "SE001");
    writer.run("rollback to three").await;
    assert_eq!(append().await, 5);
    writer.commit().await;
    assert_chained(&writer, "s", 5).await;

    let caught = "do $$ begin
          for n in 1..20 loop
            begin
              perform agent_sessions.audit_append('a', stream => 's');
              if n % 2 = 0 then raise exception 'no'; end if;
            exception when raise_exception then null;
            end;
          end loop;
        end $$";
    writer.run(caught).await;
    assert_chained(&writer, "s", 15).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waited_for_a_transaction_that_was_rolled_back_takes_its_place() {
    let db = Database::create("audit_takes_over").await;
    let (first, second) = (db.writer().await, Arc::new(db.writer().await));
    for (round, stream) in ["s", "s", "other"].into_iter().enumerate() {
        first.begin("read committed").await;
        let given_up = Event::in_stream(stream, "given up").append(&first).await;
        let waiting = tokio::spawn({
            let second = second.clone();
            async move { Event::in_stream(stream, "kept").append(&second).await.seq }
        });
        db.wait_until_blocked(second.pid).await;
        first.rollback().await;
        assert_eq!(waiting.await.expect("the other append"), given_up.seq, "round {round}");
    }
    assert_eq!(column(&first, "s", "action").await, ["kept", "kept"]);
    assert_chained(&first, "s", 2).await;
    assert_chained(&first, "other", 1).await;
}

/// Clients that roll back, fail, import and replay at random; what is left is one chain.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_give_up_now_and_then_leave_one_chain() {
    const CLIENTS: usize = 6;
    let db = Database::create("audit_give_up").await;
    let clients = db.writers(CLIENTS).await;
    let kept: i64 = together(CLIENTS, |client| {
        let writer = clients[client].clone();
        async move {
            let mut kept = 0;
            for number in 0..60 {
                let commits = (number + client) % 3 != 0;
                writer.begin("read committed").await;
                kept += i64::from(commits) * wrote(&writer, client, number).await;
                if commits { writer.commit().await } else { writer.rollback().await }
            }
            kept
        }
    })
    .await
    .into_iter()
    .sum();
    assert_chained(&clients[0], "s", kept).await;
}

/// Writes in one of several ways; how many events.
async fn wrote(writer: &Connection, client: usize, number: usize) -> i64 {
    let id = format!("{client} {number}");
    let event = Event { event_id: Some(&id), ..Event::in_stream("s", "a") };
    assert_eq!(event.append(writer).await.outcome, "appended");
    match number % 3 {
        0 => {
            assert_eq!(event.append(writer).await.outcome, "replayed");
            1
        }
        1 => {
            writer.run("savepoint one").await;
            Event::in_stream("s", "taken back").append(writer).await;
            assert_sqlstate!(Event { action: Some("b"), ..event }.try_append(writer).await, "SE021");
            writer.run("rollback to one").await;
            1
        }
        _ => {
            batch(writer, "s", r#"[{"action":"a"},{"action":"b"}]"#).await;
            3
        }
    }
}
