//! Many writers on one session under READ COMMITTED: no error, every entry there, positions dense.

use std::collections::BTreeSet;
use std::sync::Arc;

use agent_sessions_tests::{Append, Connection, Database, assert_sqlstate, together};

const CLIENTS: usize = 8;
const APPENDS: usize = 250;

fn payload(client: usize, number: usize) -> String {
    format!(r#"{{"client":{client},"number":{number}}}"#)
}

/// All payloads are there once, and those of one client in the order in which it wrote them.
async fn assert_complete(connection: &Connection, session: &str, clients: usize, each: usize) {
    connection.assert_dense(session, (clients * each) as i64).await;
    let stored: Vec<String> =
        connection.history(session).await.into_iter().map(|item| item.payload.expect("a payload")).collect();
    for client in 0..clients {
        let mine = format!(r#"{{"client":{client},"#);
        let mine: Vec<&String> = stored.iter().filter(|stored| stored.starts_with(&mine)).collect();
        let written: Vec<String> = (0..each).map(|number| payload(client, number)).collect();
        assert!(mine.iter().copied().eq(&written), "client {client} of {session}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_clients_append_by_function() {
    let db = Database::create("append_by_function").await;
    let clients = db.writers(CLIENTS).await;
    clients[0].create_session("s").await;
    together(CLIENTS, |client| {
        let writer = clients[client].clone();
        async move {
            for number in 0..APPENDS {
                writer.append("s", &payload(client, number)).await;
            }
        }
    })
    .await;
    assert_complete(&clients[0], "s", CLIENTS, APPENDS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_clients_append_by_function_and_by_plain_insert() {
    let db = Database::create("append_by_insert").await;
    let clients = db.writers(CLIENTS).await;
    clients[0].create_session("s").await;
    together(CLIENTS, |client| {
        let writer = clients[client].clone();
        async move {
            for number in 0..APPENDS {
                let payload = payload(client, number);
                if client % 4 == 0 {
                    writer.append("s", &payload).await;
                } else {
                    assert_eq!(writer.raw_append("s", &payload).await.expect("a plain INSERT"), 1);
                }
            }
        }
    })
    .await;
    assert_complete(&clients[0], "s", CLIENTS, APPENDS).await;
}

/// `ON CONFLICT DO NOTHING` has nothing to do with writers that lose no conflict.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_inserts_that_would_do_nothing_on_conflict() {
    let db = Database::create("do_nothing").await;
    let clients = db.writers(20).await;
    clients[0].create_session("s").await;
    let inserted = together(clients.len(), |client| {
        let writer = clients[client].clone();
        async move {
            let insert = "insert into agent_sessions.session_item (sid, payload)
                          select sid, $1::text::json from agent_sessions.session where session_id = 's'
                          on conflict do nothing";
            writer.execute(insert, &[&payload(client, 0)]).await.expect("an INSERT")
        }
    })
    .await;
    assert_eq!(inserted, vec![1; clients.len()]);
    assert_complete(&clients[0], "s", clients.len(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn first_appends_create_the_session_once() {
    let db = Database::create("first_appends").await;
    let clients = db.writers(25).await;
    for tenant in ["", "new tenant"] {
        for client in &clients {
            client.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        }
        for round in 0..4 {
            let session = format!("round {round}");
            let mut positions = together(clients.len(), |client| {
                let (writer, session) = (clients[client].clone(), session.clone());
                async move {
                    let first = payload(client, 0);
                    Append::to(&session, &first).on_missing("create").run(&writer).await.expect("a first append")
                }
            })
            .await;
            positions.sort();
            assert_eq!(positions, (0..25).collect::<Vec<i64>>());
            assert_complete(&clients[0], &session, clients.len(), 1).await;
        }
    }
    let sessions: i64 = db.owner().await.value("select count(*) from agent_sessions.session", &[]).await;
    assert_eq!(sessions, 8);
}

/// The creator has not committed yet: the second waits, and then appends to the same session.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_append_waits_for_the_creator() {
    let db = Database::create("first_append_waits").await;
    for (session, creator_commits) in [("committed", true), ("rolled back", false)] {
        let (first, second) = (db.writer().await, db.writer().await);
        first.begin("read committed").await;
        Append::to(session, "1").on_missing("create").run(&first).await.expect("the creator's append");
        let pid = second.pid;
        let waiting = tokio::spawn(async move {
            let position = Append::to(session, "2").on_missing("create").run(&second).await;
            (position, second)
        });
        db.wait_until_blocked(pid).await;
        if creator_commits {
            first.commit().await;
        } else {
            first.rollback().await;
        }
        let (position, second) = waiting.await.expect("the waiting append");
        let entries = if creator_commits { 2 } else { 1 };
        assert_eq!(position.expect("an append"), entries - 1, "{session}");
        second.assert_dense(session, entries).await;
    }
}

/// What comes second in a batch stays second, although both have the same time.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_batches_of_two_keep_their_order() {
    let db = Database::create("batches_of_two").await;
    let clients = db.writers(4).await;
    clients[0].create_session("s").await;
    together(clients.len(), |client| {
        let writer = clients[client].clone();
        async move {
            for number in 0..250 {
                let pair = format!(
                    r#"[{{"kind":"reasoning","payload":"{client}-{number}"}},{{"payload":"{client}-{number}"}}]"#
                );
                let positions = writer.append_batch("s", &pair).await;
                assert_eq!(positions[1], positions[0] + 1);
            }
        }
    })
    .await;
    clients[0].assert_dense("s", 2000).await;
    for pair in clients[0].history("s").await.chunks(2) {
        let kinds: Vec<_> = pair.iter().map(|item| item.kind.as_deref()).collect();
        assert_eq!(kinds, [Some("reasoning"), Some("message")]);
        assert_eq!(pair[0].payload, pair[1].payload);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runs_that_end_together_are_both_there() {
    let db = Database::create("two_runs").await;
    let clients = db.writers(2).await;
    for round in 0..20 {
        let session = format!("round {round}");
        clients[0].create_session(&session).await;
        let runs = together(2, |client| {
            let (writer, session) = (clients[client].clone(), session.clone());
            async move {
                let items: Vec<String> =
                    (0..20).map(|number| format!(r#"{{"payload":{}}}"#, payload(client, number))).collect();
                writer.append_batch(&session, &format!("[{}]", items.join(","))).await
            }
        })
        .await;
        for run in &runs {
            assert!(run.windows(2).all(|pair| pair[1] == pair[0] + 1), "a run is torn apart: {run:?}");
        }
        assert_complete(&clients[0], &session, 2, 20).await;
    }
}

/// Every kind of writer at once, by function and by plain SQL.
#[tokio::test(flavor = "multi_thread")]
async fn mixed_writers_leave_one_dense_chain() {
    const ROUNDS: usize = 60;
    let db = Database::create("mixed_writers").await;
    let clients = db.writers(9).await;
    clients[0].create_session("s").await;
    for number in 0..ROUNDS {
        clients[0].append("s", &payload(100, number)).await;
    }
    let written = together(clients.len(), |client| {
        let writer = clients[client].clone();
        async move {
            let mut written = 0;
            for round in 0..ROUNDS {
                written += mixed_write(&writer, client, round).await;
            }
            written
        }
    })
    .await;
    let entries = (ROUNDS + written.iter().sum::<usize>()) as i64;
    clients[0].assert_dense("s", entries).await;
    assert_eq!(live_by_history(&clients[0]).await, live_by_log(&clients[0]).await);
}

/// One write of the client's kind, and how many entries it must have written.
async fn mixed_write(writer: &Connection, client: usize, round: usize) -> usize {
    let payload = payload(client, round);
    let target = round as i64;
    match client {
        0 => {
            writer.append("s", &payload).await;
            1
        }
        1 => writer
            .append_batch("s", &format!(r#"[{{"payload":{payload}}},{{"payload":1}},{{"payload":2}}]"#))
            .await
            .len(),
        2 => {
            let summary = Append::to("s", &payload).kind("summary").kept_from(target);
            summary.run(writer).await.expect("a summary");
            1
        }
        3 if !round.is_multiple_of(3) => {
            let revise = "select agent_sessions.session_revise(
                session_id => 's', target => $1::bigint, payload => $2::text::json)";
            writer.value::<i64>(revise, &[&target, &payload]).await;
            1
        }
        4 if round.is_multiple_of(3) => {
            let retract = "select agent_sessions.session_retract(session_id => 's', targets => array[$1::bigint])";
            assert_eq!(writer.value::<i64>(retract, &[&target]).await, 1);
            1
        }
        5 => writer.raw_append("s", &payload).await.expect("a plain INSERT") as usize,
        6 => {
            let rows = "insert into agent_sessions.session_item (sid, payload)
                        select sid, to_json(n) from agent_sessions.session, generate_series(1, 2) n where session_id = 's'";
            writer.execute(rows, &[]).await.expect("a plain INSERT of two rows") as usize
        }
        7 if round % 3 == 1 => {
            let revise = "insert into agent_sessions.session_item (sid, op, target, payload)
                          select sid, 'revise', $1::bigint, $2::text::json
                          from agent_sessions.session where session_id = 's'";
            writer.execute(revise, &[&target, &payload]).await.expect("a plain revise") as usize
        }
        8 => {
            // An item of its own comes and goes again.
            let position = writer.append("s", &payload).await;
            let retract = "insert into agent_sessions.session_item (sid, op, target)
                           select sid, 'retract', $1::bigint from agent_sessions.session where session_id = 's'";
            1 + writer.execute(retract, &[&position]).await.expect("a plain retract") as usize
        }
        _ => 0,
    }
}

async fn live_by_history(connection: &Connection) -> BTreeSet<(i64, String)> {
    let history = connection.history("s").await;
    history.into_iter().map(|item| (item.position, item.payload.expect("a payload"))).collect()
}

/// The same, worked out from the entries: the newest about a target wins.
async fn live_by_log(connection: &Connection) -> BTreeSet<(i64, String)> {
    let entries = "select i.position, i.op, i.target, i.payload::text
                   from agent_sessions.session_item i join agent_sessions.session s using (sid)
                   where s.session_id = 's' order by i.position";
    let mut live = std::collections::BTreeMap::new();
    for row in connection.query(entries, &[]).await.expect("the log") {
        let (position, op, target): (i64, &str, Option<i64>) = (row.get(0), row.get(1), row.get(2));
        match op {
            "append" => live.insert(position, row.get::<_, String>(3)),
            "revise" => live.insert(target.expect("a target"), row.get(3)),
            "retract" => live.remove(&target.expect("a target")),
            other => panic!("nobody wrote {other}"),
        };
    }
    live.into_iter().collect()
}

/// However a waiting append ends, nothing of it stays, and the lock is free again.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_that_gives_up_waiting_leaves_nothing() {
    let db = Database::create("gives_up").await;
    let holder = db.writer().await;
    for (number, (limit, code)) in
        [("set statement_timeout = '200ms'", "57014"), ("set lock_timeout = '200ms'", "55P03"), ("", "57014")]
            .into_iter()
            .enumerate()
    {
        let session = format!("s{number}");
        holder.create_session(&session).await;
        holder.begin("read committed").await;
        holder.append(&session, r#""held""#).await;
        for raw in [false, true] {
            let waiter = Arc::new(db.writer().await);
            waiter.run(limit).await;
            let waiting = tokio::spawn({
                let (waiter, session) = (waiter.clone(), session.clone());
                async move {
                    if raw {
                        waiter.raw_append(&session, "1").await.map(|_| ())
                    } else {
                        Append::to(&session, "1").item_id("i").run(&waiter).await.map(|_| ())
                    }
                }
            });
            if limit.is_empty() {
                db.wait_until_blocked(waiter.pid).await;
                waiter.cancel().await;
            }
            assert_sqlstate!(waiting.await.expect("the waiting append"), code);
        }
        holder.commit().await;
        holder.assert_dense(&session, 1).await;
        let free = Append::to(&session, "2").item_id("i").run(&holder).await;
        assert_eq!(free.expect("an append"), 1, "the id of the append that gave up is free");
    }
}

/// Writers wait for a transaction that has appended, and go on behind it, or in its place.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_lands_behind_the_one_it_waited_for() {
    let db = Database::create("lands_behind").await;
    let holder = db.writer().await;
    holder.create_session("s").await;
    let mut next = 0;
    for (commits, raw) in [(true, false), (true, true), (false, false), (false, true)] {
        holder.begin("read committed").await;
        assert_eq!(holder.append("s", r#""first""#).await, next);
        let waiter = db.writer().await;
        let pid = waiter.pid;
        let waiting = tokio::spawn(async move {
            if raw {
                waiter.raw_append("s", r#""second""#).await.map(|_| ())
            } else {
                waiter.try_append("s", r#""second""#).await.map(|_| ())
            }
        });
        db.wait_until_blocked(pid).await;
        if commits {
            holder.commit().await;
            next += 2;
        } else {
            holder.rollback().await;
            next += 1;
        }
        waiting.await.expect("the waiting append").expect("no error");
        holder.assert_dense("s", next).await;
    }
}

/// Who reads waits for nobody, and sees a batch whole or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn readers_do_not_wait_for_writers() {
    let db = Database::create("readers").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    writer.create_session("s").await;
    writer.append("s", "0").await;
    reader.run("set lock_timeout = '1ms'; set statement_timeout = '10s'").await;
    writer.begin("read committed").await;
    writer.append_batch("s", r#"[{"payload":1},{"payload":2}]"#).await;
    writer.run("select agent_sessions.session_set(session_id => 's', title => 't')").await;
    let next = "select next_position from agent_sessions.session_get(session_id => 's')";
    assert_eq!(reader.value::<i64>(next, &[]).await, 1);
    reader.assert_dense("s", 1).await;
    writer.commit().await;
    assert_eq!(reader.value::<i64>(next, &[]).await, 3);
    reader.assert_dense("s", 3).await;
}

/// What a rolled-back part of a transaction has written is written by nobody, and its position is free.
#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_takes_its_entries_along() {
    let db = Database::create("savepoints").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    writer.begin("read committed").await;
    assert_eq!(writer.append("s", "0").await, 0);
    for raw in [false, true] {
        writer.run("savepoint part").await;
        assert_eq!(Append::to("s", "1").item_id("i").run(&writer).await.expect("an append"), 1);
        writer.append_batch("s", r#"[{"payload":2},{"payload":3}]"#).await;
        if raw {
            assert_eq!(writer.raw_append("s", "4").await.expect("a plain INSERT"), 1);
        }
        writer.run("rollback to part").await;
    }
    assert_eq!(writer.raw_append_at("s", 1, "5").await.expect("a plain INSERT"), 1);
    assert_eq!(Append::to("s", "6").item_id("i").run(&writer).await.expect("the id is free again"), 2);
    writer.commit().await;
    writer.assert_dense("s", 3).await;
}

/// A trigger of the owner's refuses a row, before ours or after it: the next write finds its own way to the tail.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_row_leaves_no_trace() {
    let db = Database::create("refused_row").await;
    let (owner, writer) = (db.owner().await, db.writer().await);
    owner
        .run(
            "create function public.refuse() returns trigger language plpgsql as $$
                begin if new.tag = 'refused' then raise exception 'no' using errcode = 'P0099'; end if; return new; end $$",
        )
        .await;
    for trigger in ["aaa", "zzz"] {
        owner
            .run(&format!(
                "create trigger {trigger} before insert on agent_sessions.session_item
                 for each row execute function public.refuse()"
            ))
            .await;
        writer.create_session(trigger).await;
        writer.append(trigger, "0").await;
        writer.begin("read committed").await;
        writer.append(trigger, "1").await;
        writer.run("savepoint part").await;
        assert_sqlstate!(Append::to(trigger, "2").tag("refused").run(&writer).await, "P0099");
        writer.run("rollback to part").await;
        assert_eq!(writer.raw_append_at(trigger, 2, "3").await.expect("a plain INSERT"), 1);
        writer.append_batch(trigger, r#"[{"payload":4},{"payload":5}]"#).await;
        writer.commit().await;
        writer.assert_dense(trigger, 5).await;
        owner.run(&format!("drop trigger {trigger} on agent_sessions.session_item")).await;
    }
}
