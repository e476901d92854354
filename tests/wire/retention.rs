//! Retention: what trimming, erasing and expiring take away, what they leave, and who may call them.

mod erase;
mod erased_branches;
mod erased_bytes;
mod expire;
mod fences;
mod model;
mod races;
mod trim;
mod trim_rules;
mod trimmed_branches;

use agent_sessions_tests::{Connection, Database, Error, Verdict};

/// A function that returns a number, called with these arguments.
async fn try_call(connection: &Connection, call: &str) -> Result<Option<i64>, Error> {
    connection.try_value(&format!("select agent_sessions.{call}"), &[]).await
}

async fn call(connection: &Connection, call: &str) -> i64 {
    match try_call(connection, call).await {
        Ok(Some(number)) => number,
        other => panic!("{call}: {other:?}"),
    }
}

/// A session of messages: at position n the payload n, under the item_id i<n>.
async fn session_of(writer: &Connection, session: &str, items: i64) {
    let fill =
        "select agent_sessions.session_append(session_id => $1::text, payload => to_json(n), item_id => 'i' || n,
                on_missing => 'create') from generate_series(0, $2::bigint - 1) n";
    let rows = writer.query(fill, &[&session, &items]).await.expect("a session of messages");
    assert_eq!(rows.len() as i64, items);
}

async fn try_branch(connection: &Connection, arguments: &str) -> Result<String, Error> {
    connection.try_value(&format!("select session_id from agent_sessions.session_branch({arguments})"), &[]).await
}

/// A branch that inherits up to and including `last`.
async fn branch(connection: &Connection, source: &str, last: i64, name: &str) {
    let made = try_branch(connection, &format!("'{source}', at_target => {last}, new_session_id => '{name}'")).await;
    assert_eq!(made.expect("a branch"), name);
}

async fn delete(connection: &Connection, session: &str) {
    assert!(connection.value::<bool>("select agent_sessions.session_delete($1::text)", &[&session]).await);
}

/// The texts of a query's only column.
async fn texts(connection: &Connection, sql: &str) -> Vec<String> {
    let rows = connection.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// Every entry of a log, with what it is about.
async fn outline(connection: &Connection, session: &str) -> Vec<String> {
    texts(
        connection,
        &format!("select concat_ws(' ', position, op, target) from agent_sessions.session_log('{session}')"),
    )
    .await
}

/// The live items of a reader's answer, each as its position and payload.
async fn items(connection: &Connection, reader: &str) -> Vec<String> {
    texts(connection, &format!("select concat_ws(' ', position, payload::text) from agent_sessions.{reader}")).await
}

async fn history(connection: &Connection, session: &str) -> Vec<String> {
    items(connection, &format!("session_history('{session}')")).await
}

async fn next_position(connection: &Connection, session: &str) -> i64 {
    connection.value("select next_position from agent_sessions.session_get($1::text)", &[&session]).await
}

async fn assert_verifies(connection: &Connection, session: &str, entries: i64, redacted: i64) {
    let whole = Verdict { entries, redacted, ok: true, first_bad_position: None, reason: None };
    assert_eq!(connection.verify(session).await, whole, "{session}");
}

/// All that the engine stores.
async fn everything(db: &Database) -> Vec<String> {
    texts(
        &db.superuser().await,
        "select to_jsonb(s)::text from agent_sessions.session s
         union all select to_jsonb(i)::text from agent_sessions.session_item i
         union all select to_jsonb(d)::text from agent_sessions.session_delta d
         order by 1",
    )
    .await
}

/// The sessions that are stored, those that are hidden in brackets.
async fn stored(db: &Database) -> Vec<String> {
    texts(
        &db.superuser().await,
        "select case when deleted_at is null then session_id else '(' || session_id || ')' end
         from agent_sessions.session order by session_id",
    )
    .await
}

/// Entries and chunks of sessions that are not there.
async fn orphans(db: &Database) -> i64 {
    let orphans = "select (select count(*) from agent_sessions.session_item
                           where sid not in (select sid from agent_sessions.session))
                        + (select count(*) from agent_sessions.session_delta
                           where sid not in (select sid from agent_sessions.session))";
    db.superuser().await.value(orphans, &[]).await
}

/// A superuser whose statements fire no trigger.
async fn tamperer(db: &Database) -> Connection {
    let superuser = db.superuser().await;
    superuser.run("set session_replication_role = replica").await;
    superuser
}

/// What session_verify says first of a session while this change stands; it is taken back.
async fn fault_after(tamperer: &Connection, session: &str, sql: &str) -> Option<i64> {
    tamperer.begin("read committed").await;
    let changed = tamperer.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    assert!(!changed.is_empty(), "{sql}");
    let verdict = tamperer.verify(session).await;
    tamperer.rollback().await;
    assert_eq!(verdict.ok, verdict.first_bad_position.is_none(), "{sql}: {verdict:?}");
    assert_eq!(verdict.ok, verdict.reason.is_none(), "{sql}: {verdict:?}");
    verdict.first_bad_position
}

/// The condition that picks one entry.
fn entry(session: &str, position: i64) -> String {
    format!("sid = (select sid from agent_sessions.session where session_id = '{session}') and position = {position}")
}

async fn claim(connection: &Connection, session: &str) -> String {
    connection.value("select lease from agent_sessions.session_claim($1::text, '1 minute')", &[&session]).await
}

/// Ends a lease as time would.
async fn end_lease(db: &Database, session: &str) {
    let end = format!(
        "update agent_sessions.session set lease_expires_at = clock_timestamp() - interval '1 second'
         where session_id = '{session}' and lease_digest is not null"
    );
    tamperer(db).await.run(&end).await;
}
