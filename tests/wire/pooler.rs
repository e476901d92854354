//! Behind a pooler in transaction mode: what one client sets does not reach the next, and the rules hold as on connections of
//! one's own.

use std::process::{Command, Stdio};
use std::sync::Arc;

use agent_sessions_tests::{
    Append, Connection, Database, Pooler, Role, assert_one_winner, assert_sqlstate, detail, sqlstate, together,
};
use serde_json::json;
use tokio_postgres::{Error, SimpleQueryMessage};

async fn client(db: &Database, pooler: &Pooler) -> Connection {
    pooler.cluster.connect(&db.role_name(&Role::Writer), &db.name).await
}

async fn clients(db: &Database, pooler: &Pooler, count: usize) -> Vec<Arc<Connection>> {
    let mut clients = Vec::with_capacity(count);
    for _ in 0..count {
        clients.push(Arc::new(client(db, pooler).await));
    }
    clients
}

/// The values of a query without parameters, which prepares nothing: the next statement may run on another server connection.
async fn rows(client: &Connection, sql: &str) -> Result<Vec<Vec<String>>, Error> {
    let messages = client.simple_query(sql).await?;
    let values = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|at| row.get(at).unwrap_or("").to_owned()).collect()),
        _ => None,
    });
    Ok(values.collect())
}

async fn value(client: &Connection, sql: &str) -> Result<String, Error> {
    Ok(rows(client, sql).await?.remove(0).remove(0))
}

async fn told(client: &Connection, sql: &str) -> String {
    value(client, sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
}

async fn sessions(client: &Connection) -> i64 {
    let count = "select count(*) from agent_sessions.session_get('s')";
    told(client, count).await.parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_on_one_server_connection_take_turns() {
    let db = Database::create("pooler_turns").await;
    let pooler = db.pooler(1).await;
    let (one, two) = (client(&db, &pooler).await, client(&db, &pooler).await);
    assert_eq!(one.pid, two.pid, "they have a backend each");

    one.create_session("s").await;
    assert_eq!(two.append("s", "0").await, 0);
    assert_eq!(one.append_batch("s", r#"[{"payload":1},{"payload":2}]"#).await, [1, 2]);
    let stale = Append::to("s", "3").expected_position(1).run(&two).await;
    assert_eq!(detail(&assert_sqlstate!(stale, "SE007")), json!({"expected": 1, "actual": 3}));
    assert_eq!(Append::to("s", "3").expected_position(3).item_id("i").run(&two).await.expect("it is next"), 3);
    assert_eq!(Append::to("s", "3").expected_position(3).item_id("i").run(&one).await.expect("a replay"), 3);
    let stale = two.batch_execute("select agent_sessions.session_set('s', state => '1', expected_revision => 1)").await;
    assert_eq!(detail(&assert_sqlstate!(stale, "SE006")), json!({"expected": 1, "actual": 0}));

    // A lease is what the client has, not its connection.
    let claim = "select lease from agent_sessions.session_claim('s', '1 minute')";
    let lease: String = one.value(claim, &[]).await;
    assert_sqlstate!(two.try_append("s", "4").await, "SE009");
    assert_eq!(Append::to("s", "4").lease(&lease).run(&one).await.expect("with the lease"), 4);
    assert_eq!(two.query(claim, &[]).await.expect("a claim").len(), 0);
    assert_sqlstate!(Append::to("s", "5").lease("1:x").run(&two).await, "SE008");
    one.run(&format!(
        "begin;
         set local agent_sessions.lease = '{lease}';
         insert into agent_sessions.session_item (sid, payload)
           select sid, '5' from agent_sessions.session where session_id = 's';
         commit"
    ))
    .await;
    assert_sqlstate!(two.raw_append("s", "6").await, "SE009");
    assert!(one.value::<bool>("select agent_sessions.session_release('s', $1)", &[&lease]).await);
    assert_eq!(two.raw_append("s", "6").await.expect("it is free"), 1);
    two.assert_dense("s", 7).await;
}

/// Whatever is set for one transaction, or in one statement, is gone for the client that comes next.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_of_one_transaction_does_not_reach_the_next_client() {
    let db = Database::create("pooler_tenants").await;
    let pooler = db.pooler(1).await;
    let (one, two) = (client(&db, &pooler).await, client(&db, &pooler).await);
    let create = "select agent_sessions.session_append('s', '0', on_missing => 'create')";

    // The first statement of all on the server connection: the library, and with it the setting, is not known yet.
    one.run(&format!("begin; set local agent_sessions.tenant = 'a'; {create}; commit")).await;
    assert_eq!(sessions(&two).await, 0);
    one.run(&format!("{create} from agent_sessions.tenant_use('b')")).await;
    assert_eq!(sessions(&two).await, 0);
    let read = |tenant: &str| {
        format!(
            "select count(*) from agent_sessions.tenant_use('{tenant}') t,
               lateral agent_sessions.session_history('s', tenant => t)"
        )
    };
    for (tenant, items) in [("a", "1"), ("b", "1"), ("c", "0")] {
        assert_eq!(told(&one, &read(tenant)).await, items, "{tenant}");
        assert_eq!(sessions(&two).await, 0);
    }
    // Between the statements of a transaction nobody comes in; a statement that fails ends the tenant, too.
    one.run(&format!("begin; set local agent_sessions.tenant = 'c'; {create}")).await;
    one.run("set local agent_sessions.agent = 'x'; set local agent_sessions.isolation = 'agent'").await;
    assert_sqlstate!(one.batch_execute("select 1 / 0").await, "22012");
    one.rollback().await;
    assert_eq!(told(&two, "select current_setting('agent_sessions.isolation')").await, "shared");
    assert_eq!(sessions(&two).await, 0);
    assert_eq!(told(&two, &read("c")).await, "0");
    let tenants = "select string_agg(tenant, ',' order by tenant) from agent_sessions.session";
    assert_eq!(db.owner().await.value::<String>(tenants, &[]).await, "a,b");
}

/// What the guide warns of.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_is_set_for_the_session_reaches_the_next_client() {
    let db = Database::create("pooler_leak").await;
    let pooler = db.pooler(1).await;
    let (one, two) = (client(&db, &pooler).await, client(&db, &pooler).await);
    one.run(
        "select agent_sessions.session_append('s', '0', on_missing => 'create') from agent_sessions.tenant_use('a')",
    )
    .await;
    one.run("set agent_sessions.tenant = 'a'").await;
    assert_eq!(sessions(&two).await, 1, "the pooler resets the session now: the guide warns in vain");
    // What is said in the statement itself holds against it, and does not undo it.
    assert_eq!(told(&two, "select agent_sessions.tenant_use('b')").await, "b");
    let read = "select count(*) from agent_sessions.tenant_use('b') t,
                  lateral agent_sessions.session_history('s', tenant => t)";
    assert_eq!(told(&two, read).await, "0");
    assert_eq!(sessions(&two).await, 1);
}

/// A client that goes away in a transaction leaves nothing behind, and the next finds the session free.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_gone_holds_nothing() {
    let db = Database::create("pooler_gone").await;
    let pooler = db.pooler(1).await;
    let next = client(&db, &pooler).await;
    next.create_session("s").await;
    let gone = client(&db, &pooler).await;
    gone.run(
        "begin; set local agent_sessions.tenant = ''; select agent_sessions.session_append('s', '0');
         select agent_sessions.session_claim('s', '1 hour')",
    )
    .await;
    drop(gone);
    assert_eq!(told(&next, "select agent_sessions.session_append('s', '1')").await, "0");
    next.assert_dense("s", 1).await;
}

const CLIENTS: usize = 8;
const ROUNDS: usize = 25;

/// More clients than server connections: the statements of one come to any of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_race_through_the_pooler_leaves_one_dense_chain() {
    let db = Database::create("pooler_race").await;
    let pooler = db.pooler(3).await;
    let clients = clients(&db, &pooler, CLIENTS).await;
    clients[0].run("select agent_sessions.session_create('s')").await;
    let raced = together(CLIENTS, |number| {
        let client = clients[number].clone();
        async move {
            let mut pids = Vec::new();
            for round in 0..ROUNDS {
                let id = format!("{number}-{round}");
                let append = format!("select agent_sessions.session_append('s', '\"{id}\"', item_id => '{id}')");
                let position = told(&client, &append).await;
                assert_eq!(told(&client, &append).await, position, "a replay");
                let batch = format!(
                    "select position, pg_backend_pid() from agent_sessions.session_append_batch('s',
                       '[{{\"payload\":\"{id}\"}},{{\"payload\":\"{id}\"}}]') order by ordinal"
                );
                let pair = rows(&client, &batch).await.expect("a batch");
                let positions: Vec<i64> = pair.iter().map(|row| row[0].parse().expect("a position")).collect();
                assert_eq!(positions[1], positions[0] + 1);
                pids.push(pair[0][1].clone());
            }
            pids
        }
    })
    .await;
    let mut pids: Vec<String> = raced.concat();
    pids.sort();
    pids.dedup();
    assert!((2..=3).contains(&pids.len()), "{} server connections", pids.len());
    let entries = CLIENTS * ROUNDS * 3;
    db.writer().await.assert_dense("s", entries as i64).await;

    // One wins a position, and one a lease.
    let won = together(CLIENTS, |number| {
        let client = clients[number].clone();
        let append = format!("select agent_sessions.session_append('s', '{number}', expected_position => {entries})");
        async move { value(&client, &append).await }
    })
    .await;
    assert_one_winner(won, "SE007", &json!({"expected": entries, "actual": entries + 1}));
    let claims = together(CLIENTS, |number| {
        let client = clients[number].clone();
        async move {
            let claimed = rows(&client, "select lease from agent_sessions.session_claim('s', '1 hour')").await;
            let lease = claimed.expect("a claim").pop().map(|mut row| row.remove(0));
            let lease = lease.map_or("null".to_owned(), |lease| format!("'{lease}'"));
            let append = format!("select agent_sessions.session_append('s', '{number}', lease => {lease})");
            value(&client, &append).await
        }
    })
    .await;
    let (wrote, refused): (Vec<_>, Vec<_>) = claims.into_iter().partition(Result::is_ok);
    assert_eq!(wrote.len(), 1, "{wrote:?}");
    assert!(refused.iter().all(|result| result.as_ref().is_err_and(|error| sqlstate(error) == "SE009")));
    db.writer().await.assert_dense("s", entries as i64 + 2).await;
}

/// Each client has its tenant, and says so in its statements or transactions alone.
#[tokio::test(flavor = "multi_thread")]
async fn tenants_that_share_server_connections_see_their_own_sessions() {
    let db = Database::create("pooler_race_tenants").await;
    let pooler = db.pooler(2).await;
    let clients = clients(&db, &pooler, CLIENTS).await;
    together(CLIENTS, |number| {
        let client = clients[number].clone();
        async move {
            for round in 0..ROUNDS {
                let append = format!("agent_sessions.session_append('s', '{number}', on_missing => 'create')");
                let written = if round % 2 == 0 {
                    told(&client, &format!("select {append} from agent_sessions.tenant_use('{number}')")).await
                } else {
                    let local = format!("set local agent_sessions.tenant = '{number}'");
                    told(&client, &format!("begin; {local}; select {append}; commit")).await
                };
                assert_eq!(written, round.to_string());
                let read = format!(
                    "select count(*) filter (where h.payload::text = '{number}'), count(*)
                     from agent_sessions.tenant_use('{number}') t,
                       lateral agent_sessions.session_history('s', tenant => t) h"
                );
                let counts = rows(&client, &read).await.expect("a history").remove(0);
                assert_eq!(counts, [(round + 1).to_string(), (round + 1).to_string()]);
            }
        }
    })
    .await;
    let sessions = "select count(*) from agent_sessions.session";
    assert_eq!(db.owner().await.value::<i64>(sessions, &[]).await, CLIENTS as i64);
}

/// Modules that set nothing for a session, and never need two transactions at once.
const MODULES: [&str; 3] = ["items::", "compare_and_set::", "context::"];

/// Tests among them that do.
const SKIPPED: [&str; 1] = ["waited"];

#[tokio::test(flavor = "multi_thread")]
async fn other_tests_pass_through_a_pooler() {
    let itself = std::env::current_exe().expect("this test's program");
    let ran = tokio::task::spawn_blocking(move || {
        let mut tests = Command::new(itself);
        tests
            .args(MODULES)
            .args(SKIPPED.map(|skipped| ["--skip", skipped]).concat())
            .args(["--test-threads", "2"])
            .env("AGENT_SESSIONS_POOLED", "1")
            .stdin(Stdio::null());
        tests.output().expect("this test's program runs")
    });
    let ran = ran.await.expect("it does not panic");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}
