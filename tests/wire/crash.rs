//! Crashes: a server that is stopped in the middle and started again has all that it acknowledged, once, and nothing that
//! nobody asked for.

mod calls;
mod ledger;
pub mod load;

use std::io::Write;

use agent_sessions_tests::{Connection, OwnCluster};

use crate::items::Random;
use load::Load;

const DATABASE: &str = OwnCluster::DATABASE;
const CLIENT: &str = OwnCluster::CLIENT;

/// The writer of WAL sleeps through the test, so that what does not wait for the disk is lost.
const ASLEEP: &str = "wal_writer_delay = 10s";

/// A server with the extension, and a table besides.
async fn server() -> OwnCluster {
    let server = OwnCluster::start(&[ASLEEP]).await;
    server.install().await;
    let owner = server.owner().await;
    owner
        .run(&format!(
            "create schema app; grant usage on schema app to {CLIENT};
             create table app.told (number bigint); grant insert, select on app.told to {CLIENT}"
        ))
        .await;
    server
}

async fn after_a_crash(server: &OwnCluster) -> Connection {
    server.crash().await;
    server.start_again().await;
    server.app_client().await
}

pub fn say(line: &str) {
    // The test runner keeps what print! says of a test that passes.
    writeln!(std::io::stdout(), "{line}").expect("standard output is open");
}

/// How a client has turned waiting for the disk off, in this session or for all of them.
#[derive(Clone, Copy, Debug)]
enum Careless {
    Not,
    Session,
    Transaction,
    Database,
}

impl Careless {
    async fn prepare(self, server: &OwnCluster) {
        if let Careless::Database = self {
            let off = format!("alter database {DATABASE} set synchronous_commit = off");
            server.owner().await.run(&off).await;
        }
    }

    async fn claim(self, client: &Connection, session: &str) -> i64 {
        match self {
            Careless::Not | Careless::Database => {}
            Careless::Session => client.run("set synchronous_commit = off").await,
            Careless::Transaction => client.run("begin; set local synchronous_commit = off").await,
        }
        let fence = claim(client, session).await.expect("no lease is live");
        if let Careless::Transaction = self {
            client.commit().await;
        }
        fence
    }
}

/// The fence; `None` while a lease is live.
async fn claim(client: &Connection, session: &str) -> Option<i64> {
    let claim = "select fence from agent_sessions.session_claim($1::text, '1 hour')";
    client.query_opt(claim, &[&session]).await.expect("a claim").map(|row| row.get(0))
}

async fn end_lease(client: &Connection, session: &str) {
    let ended = "select agent_sessions.session_break_lease($1::text)";
    assert!(client.value::<bool>(ended, &[&session]).await, "{session} has a lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_was_told_is_not_given_again_after_a_crash() {
    let server = server().await;
    let mut random = Random(1);
    let mut careless_rows = 0;
    for (careless, rounds) in
        [(Careless::Not, 3), (Careless::Session, 7), (Careless::Transaction, 7), (Careless::Database, 7)]
    {
        careless.prepare(&server).await;
        for round in 0..rounds {
            let client = server.app_client().await;
            // The sequence is written down once in 32 fences: each round ends elsewhere in that.
            for _ in 0..random.below(40) {
                careless.claim(&client, "s").await;
                end_lease(&client, "s").await;
            }
            // The row of a session that the claim creates remembers nothing yet.
            let session = if round % 3 == 0 { format!("{careless:?} {round}") } else { "s".to_owned() };
            let told = careless.claim(&client, &session).await;
            if round % 2 == 0 {
                client.run("begin; set local synchronous_commit = off; insert into app.told values (0); commit").await;
                careless_rows += 1;
            }
            let client = after_a_crash(&server).await;
            assert_eq!(claim(&client, &session).await, None, "{careless:?} {round}: the lease lives on");
            end_lease(&client, &session).await;
            let next = claim(&client, &session).await.expect("it was broken");
            assert!(next > told, "{careless:?} {round}: {next} after {told}");
            end_lease(&client, &session).await;
            client.query("select agent_sessions.session_delete($1::text)", &[&session]).await.expect("a deletion");
            let last = claim(&client, &session).await.expect("a new session");
            assert!(last > next, "{careless:?} {round}: {last} after {next}");
            end_lease(&client, &session).await;
        }
    }
    let kept: i64 = server.app_client().await.value("select count(*) from app.told", &[]).await;
    say(&format!(
        "crashes took {} of {careless_rows} rows that did not wait for the disk, and no fence",
        careless_rows - kept
    ));
    assert!(kept < careless_rows, "the crashes lose nothing: nothing is shown");
}

async fn chunks(client: &Connection) -> Vec<String> {
    let chunks = "select chunk from agent_sessions.session_delta order by chunk_no";
    client.query(chunks, &[]).await.expect("the chunks").iter().map(|row| row.get(0)).collect()
}

async fn stream(client: &Connection, target: i64, number: usize, chunk: &str) {
    let delta = "select agent_sessions.session_delta('s', $1, $2, $3, durable => false)";
    let told: i32 = client.value(delta, &[&target, &(number as i32), &chunk]).await;
    assert_eq!(told as usize, number + 1);
}

const STREAM_ROUNDS: usize = 6;

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_takes_chunks_that_are_not_durable_and_nothing_else() {
    let server = server().await;
    let mut random = Random(2);
    let mut client = server.app_client().await;
    client.create_session("s").await;
    let (mut entries, mut sent, mut lost) = (0, 0, 0);
    for round in 0..STREAM_ROUNDS {
        let open = "select agent_sessions.session_append('s', '\"\"', open => true)";
        let target: i64 = client.value(open, &[]).await;
        let text: Vec<String> = (0..2 + random.below(30)).map(|number| format!("{round} {number}")).collect();
        // An entry in the same statement waits for the disk, and with it all that was written before.
        let durable = if round % 2 == 0 { 0 } else { 1 + random.below(text.len()) };
        for (number, chunk) in text.iter().enumerate() {
            if number + 1 == durable {
                let both = format!(
                    "select agent_sessions.session_delta('s', {target}, {number}, '{chunk}', durable => false),
                            agent_sessions.session_append('s', '\"beside\"')"
                );
                if round % 4 == 1 {
                    client.run(&both).await;
                } else {
                    client.query(&both, &[]).await.unwrap_or_else(|error| panic!("{both}: {error:?}"));
                }
            } else {
                stream(&client, target, number, chunk).await;
            }
        }
        entries += 1 + i64::from(durable > 0);
        client = after_a_crash(&server).await;
        client.assert_dense("s", entries).await;
        let kept = chunks(&client).await;
        assert!(kept.len() >= durable, "round {round}: {} of {durable} chunks that were durable", kept.len());
        assert_eq!(kept, text[..kept.len()], "round {round}");
        (sent, lost) = (sent + text.len(), lost + text.len() - kept.len());

        stream(&client, target, kept.len(), "goes on").await;
        let close = "select agent_sessions.session_revise('s', '\"whole\"', target => $1)";
        assert_eq!(client.value::<i64>(close, &[&target]).await, entries);
        entries += 1;
        assert_eq!(chunks(&client).await, Vec::<String>::new());
        let shown = client.history("s").await.into_iter().find(|item| item.position == target);
        assert_eq!(shown.and_then(|item| item.payload).as_deref(), Some("\"whole\""));
    }
    client = after_a_crash(&server).await;
    client.assert_dense("s", entries).await;
    say(&format!("crashes took {lost} of {sent} chunks that were not durable, and none of {entries} entries"));
    assert!(lost > 0, "the crashes lose nothing: nothing is shown");
}

/// Statements that send a chunk and write a row, $number, and whether they are one that is also sent by the extended protocol.
const BESIDE: [(&str, bool); 9] = [
    ("insert into app.told values ($number); $delta", false),
    ("$delta; insert into app.told values ($number)", false),
    ("begin; $delta; insert into app.told values ($number); commit", false),
    ("with told as (insert into app.told values ($number) returning 1) $delta from told", true),
    ("insert into app.told select $number from ($delta) d", true),
    ("do $do$ begin perform $call; insert into app.told values ($number); end $do$", true),
    ("$delta, app.tell($number)", true),
    ("select app.tell($number), $call", true),
    ("select app.tell_and_send($number, $next)", true),
];

/// Only chunks may be lost, whatever else a client writes where it sends one.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_statement_writes_beside_a_chunk_outlive_a_crash() {
    let server = server().await;
    server
        .owner()
        .await
        .run(&format!(
            "create function app.tell(number bigint) returns void language plpgsql as $$
               begin insert into app.told values (number); end $$;
             create function app.tell_and_send(number bigint, next integer) returns integer language sql as $$
               select agent_sessions.session_delta('s', 0, next, 'x', durable => false);
               insert into app.told values (number) returning 1 $$;
             grant execute on all functions in schema app to {CLIENT}"
        ))
        .await;
    let client = server.app_client().await;
    client.create_session("s").await;
    client.run("select agent_sessions.session_append('s', '\"\"', open => true)").await;
    let simple = BESIDE.iter().map(|(sql, _)| (*sql, false));
    let extended = BESIDE.iter().filter(|(_, extended)| *extended).map(|(sql, _)| (*sql, true));
    let mut lost = Vec::new();
    for (number, (statement, is_extended)) in simple.chain(extended).enumerate() {
        let client = server.app_client().await;
        let next: i64 = client.value("select count(*) from agent_sessions.session_delta", &[]).await;
        let call = format!("agent_sessions.session_delta('s', 0, {next}, 'x', durable => false)");
        let sql = statement.replace("$delta", "select $call").replace("$call", &call);
        let sql = sql.replace("$number", &number.to_string()).replace("$next", &next.to_string());
        if is_extended {
            client.query(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        } else {
            client.run(&sql).await;
        }
        let client = after_a_crash(&server).await;
        let kept = "select count(*) from app.told where number = $1";
        if client.value::<i64>(kept, &[&(number as i64)]).await == 0 {
            lost.push((statement, is_extended));
        }
    }
    assert!(lost.is_empty(), "the rows of these are lost: {lost:#?}");
}

const CLIENTS: usize = 8;
const CRASHES: usize = 6;
const SEED: u64 = 1;

#[tokio::test(flavor = "multi_thread")]
async fn all_that_was_acknowledged_outlives_crashes_once_and_in_place() {
    let server = server().await;
    let mut random = Random(SEED);
    let mut load = Load::of(CLIENTS, SEED);
    for crash in 1..=CRASHES {
        let steps = 400 + random.below(800);
        load.until_stopped(&server, steps, server.crash()).await;
        server.start_again().await;
        load.audit(&server, &format!("seed {SEED}, crash {crash} at step {steps}")).await;
    }
    load.conclude();
    load.assert_all_kinds();
}
