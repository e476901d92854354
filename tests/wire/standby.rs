//! Streaming replication: a hot standby reads and verifies all there is and refuses to write, and one that takes over has
//! all that was acknowledged.

use std::process::Command;

use agent_sessions_tests::{Connection, OwnCluster, assert_sqlstate, sqlstate};
use tokio_postgres::SimpleQueryMessage;

use crate::crash::load::Load;
use crate::crash::say;
use crate::items::Random;
use crate::roles::Level;
use crate::roles::functions::FUNCTIONS;
use crate::roles::relations::{Kind, RELATIONS, Relation};

/// Functions that are declared volatile and write nothing.
const HARMLESS: [&str; 1] = ["tenant_use"];

async fn replicated() -> (OwnCluster, OwnCluster) {
    let primary = OwnCluster::start(&["fsync = off"]).await;
    primary.install().await;
    let standby = primary.standby(&[]).await;
    (primary, standby)
}

/// From now on the server acknowledges what a standby shows, and nothing else.
async fn wait_for_standbys(server: &OwnCluster, wait: bool) {
    let names = if wait { "*" } else { "" };
    let superuser = server.superuser().await;
    superuser.run(&format!("alter system set synchronous_standby_names = '{names}'")).await;
    superuser.run("alter system set synchronous_commit = 'remote_apply'").await;
    superuser.run("select pg_reload_conf()").await;
    // Backends read it when they begin; those that run already, between two statements.
    let is_set = format!("select current_setting('synchronous_standby_names') = '{names}'");
    while !server.superuser().await.value::<bool>(&is_set, &[]).await {}
}

/// Returns when the standby shows all that was written so far.
async fn catch_up(primary: &OwnCluster, standby: &OwnCluster) {
    let written: String = primary.superuser().await.value("select pg_current_wal_lsn()::text", &[]).await;
    let shown = format!("select pg_last_wal_replay_lsn() >= '{written}'::pg_lsn");
    let observer = standby.superuser().await;
    while !observer.value::<bool>(&shown, &[]).await {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Something of everything that readers look for.
const CONTENT: &str = r#"
    select agent_sessions.session_append_batch('s', on_missing => 'create', items =>
      '[{"payload":0},{"payload":1},{"payload":2,"item_id":"i","tag":"t"},{"payload":{"a":"\u0000"},"attrs":{"x":1}}]');
    select agent_sessions.session_revise('s', '"revised"', target => 1);
    select agent_sessions.session_append('s', '""', item_id => 'open', open => true);
    select agent_sessions.session_delta('s', target => 5, chunk_no => 0, chunk => 'text');
    select agent_sessions.session_erase('s', target => 3, reason => 'why');
    select agent_sessions.session_branch('s', new_session_id => 'branch', title => '%d');
    select agent_sessions.session_append('branch', '"own"');
    select agent_sessions.session_append('trimmed', '0', on_missing => 'create');
    select agent_sessions.session_append('trimmed', '1');
    select agent_sessions.session_trim('trimmed', keep_from => 1);
    select agent_sessions.session_create('due', expires_at => '2020-01-01');
    select agent_sessions.session_claim('claimed', '1 hour', holder => 'h');
    select agent_sessions.session_set('s', state => '{"a":1}', title => 't', metadata => '{"m":1}');
    select agent_sessions.audit_append('login', stream => 'logins', event_id => 'e');
    select agent_sessions.audit_append('logout', stream => 'logins');
    select agent_sessions.audit_anchor();
"#;

/// All values of all rows, as text.
async fn rows(connection: &Connection, sql: &str) -> Result<Vec<Vec<Option<String>>>, tokio_postgres::Error> {
    let messages = connection.simple_query(sql).await?;
    let values = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()),
        _ => None,
    });
    Ok(values.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_reads_and_verifies_everything_and_writes_nothing() {
    let (primary, standby) = replicated().await;
    primary.app_client().await.run(CONTENT).await;
    // A binding that is made while the standby has already read the bindings.
    let bound = standby.app_client().await;
    bound.run("select agent_sessions.tenant_use('other')").await;
    primary.owner().await.run("select agent_sessions.tenant_bind('app_client', '')").await;
    catch_up(&primary, &standby).await;
    assert_sqlstate!(bound.batch_execute("select agent_sessions.tenant_use('other')").await, "SE019");

    let (there, here) = (primary.owner().await, standby.owner().await);
    let volatile = "select provolatile::text from pg_proc
                    where pronamespace = 'agent_sessions'::regnamespace and proname = $1";
    let (mut readers, mut writers) = (0, 0);
    for function in FUNCTIONS.iter().filter(|function| function.caller != Level::Nobody) {
        let kind: String = here.value(volatile, &[&function.name]).await;
        // An import of nothing would write nothing.
        let call = function
            .usual_call("app_client")
            .replace("'[]'", "(select json_agg(l::json) from agent_sessions.audit_export('logins') l)");
        if kind == "v" && !HARMLESS.contains(&function.name) {
            writers += 1;
            for isolation in ["read committed", "repeatable read"] {
                here.begin(isolation).await;
                assert_eq!(here.batch_execute(&call).await.as_ref().err().map(sqlstate), Some("25006"), "{call}");
                here.rollback().await;
            }
        } else {
            readers += 1;
            let found = rows(&here, &call).await.unwrap_or_else(|error| panic!("{call}: {error:?}"));
            // The clock, and the doctor's view of the server, are each server's own.
            let is_of_now = call.contains("now()") || function.name.starts_with("doctor");
            assert!(is_of_now || found == rows(&there, &call).await.expect("it reads"), "{call}: {found:?}");
        }
    }
    assert!(readers > 20 && writers > 25, "{readers} readers, {writers} writers");
    // Findings are about each server.
    let has_rows = |relation: &Relation| {
        matches!(relation.kind, Kind::Table | Kind::View) && !relation.name.starts_with("finding")
    };
    let relations = RELATIONS.iter().filter(|relation| has_rows(relation));
    for relation in relations {
        let all = format!("select to_jsonb(r) - 'remaining' from agent_sessions.{} r order by 1", relation.name);
        let found = rows(&here, &all).await.expect("it is read");
        assert_eq!(found, rows(&there, &all).await.expect("it is read"), "{}", relation.name);
        assert!(!found.is_empty() || ["setting", "audit_tracking"].contains(&relation.name), "{all}");
    }

    // Whoever may read there reads here, and plain SQL writes nothing either.
    let client = standby.app_client().await;
    for session in ["s", "branch", "trimmed"] {
        let verdict = client.verify(session).await;
        assert!(verdict.ok && verdict.entries > 0, "{session}: {verdict:?}");
    }
    assert!(client.value::<bool>("select bool_and(ok) from agent_sessions.audit_verify()", &[]).await);
    assert_sqlstate!(client.raw_append("s", "1").await, "25006");
    assert_sqlstate!(client.execute("delete from agent_sessions.session", &[]).await, "25006");
    let waiting = "select agent_sessions.session_claim('s', '1 minute', wait => '1 hour')";
    assert_sqlstate!(client.batch_execute(waiting).await, "25006");
    let release = "select agent_sessions.session_release('claimed', '1:x')";
    assert_sqlstate!(client.batch_execute(release).await, "25006");
}

const CLIENTS: usize = 8;
const FAILOVERS: usize = 2;
const SEED: u64 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn all_that_was_acknowledged_is_there_when_a_standby_takes_over() {
    let mut random = Random(SEED);
    let mut load = Load::of(CLIENTS, SEED);
    let (mut primary, mut standby) = replicated().await;
    for failover in 1..=FAILOVERS {
        wait_for_standbys(&primary, true).await;
        let steps = 500 + random.below(800);
        load.until_stopped(&primary, steps, primary.crash()).await;
        standby.promote().await;
        // The configuration came along with the copy.
        wait_for_standbys(&standby, false).await;
        load.audit(&standby, &format!("seed {SEED}, failover {failover} at step {steps}")).await;
        let next = standby.standby(&[]).await;
        primary = std::mem::replace(&mut standby, next);
    }
    load.conclude();
}

/// A fence that was told does not come again on the server that takes over, whatever the client has said of waiting.
#[tokio::test(flavor = "multi_thread")]
async fn fences_grow_when_a_standby_takes_over() {
    let (primary, standby) = replicated().await;
    wait_for_standbys(&primary, true).await;
    let mut random = Random(SEED);
    let mut told = 0;
    let claim = |session: &str| format!("select fence from agent_sessions.session_claim('{session}', '1 hour')");
    let client = primary.app_client().await;
    for _ in 0..20 + random.below(60) {
        told = client.value::<i64>(&claim("s"), &[]).await;
        client.run("select agent_sessions.session_break_lease('s')").await;
    }
    primary.crash().await;
    standby.promote().await;
    wait_for_standbys(&standby, false).await;
    let client = standby.app_client().await;
    let next: i64 = client.value(&claim("s"), &[]).await;
    assert!(next > told, "{next} after {told}");
    client.run("select agent_sessions.session_break_lease('s'); select agent_sessions.session_delete('s')").await;
    let anew: i64 = client.value(&claim("s"), &[]).await;
    assert!(anew > next, "{anew} after {next}");
    say(&format!("fence {told} before the failover, {next} and {anew} after it"));
}

async fn signal(pid: i32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(sent.is_ok_and(|sent| sent.success()), "{name} to {pid}");
}

/// A claim waits for the standby that would give its fence again, also of a client that waits for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_is_told_when_the_standby_has_it() {
    let (primary, _standby) = replicated().await;
    let client = primary.app_client().await;
    client.create_session("s").await;
    wait_for_standbys(&primary, true).await;
    let superuser = primary.superuser().await;
    let sender: i32 = superuser.value("select pid from pg_stat_replication", &[]).await;
    let careless = primary.app_client().await;
    careless.run("set synchronous_commit = off").await;
    signal(sender, "STOP").await;
    // An append does not wait: the client has said so.
    careless.append("s", "0").await;
    let pid = careless.pid;
    let claiming = tokio::spawn(async move {
        careless.value::<i64>("select fence from agent_sessions.session_claim('s', '1 hour')", &[]).await
    });
    let waits = "select exists (select from pg_stat_activity where pid = $1 and wait_event = 'SyncRep')";
    let mut has_waited = false;
    while !claiming.is_finished() && !has_waited {
        has_waited = superuser.value(waits, &[&pid]).await;
    }
    signal(sender, "CONT").await;
    assert!(claiming.await.expect("a claim") > 0);
    assert!(has_waited, "the fence was told before");
}
