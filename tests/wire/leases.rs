//! Leases: one holder at a time, a fence that grows, and no write from whoever has lost its lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_sessions_tests::{Append, Connection, Database, Error, Role, assert_sqlstate, detail, sqlstate, together};
use serde_json::json;
use tokio_postgres::SimpleQueryMessage;

/// How long a test waits for what has to come soon.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
struct Lease {
    text: String,
    fence: i64,
    remaining: i32,
}

/// A row of one of the functions that return a lease, called with these arguments.
async fn try_lease(connection: &Connection, call: &str) -> Result<Option<Lease>, Error> {
    let sql = format!("select lease, fence, remaining_ms, expires_at from agent_sessions.{call}");
    let row = connection.query_opt(&sql, &[]).await?;
    Ok(row.map(|row| Lease { text: row.get(0), fence: row.get(1), remaining: row.get(2) }))
}

async fn lease(connection: &Connection, call: &str) -> Lease {
    match try_lease(connection, call).await {
        Ok(Some(lease)) => lease,
        other => panic!("{call}: {other:?}"),
    }
}

async fn claim(connection: &Connection, session: &str) -> Lease {
    lease(connection, &format!("session_claim('{session}', '1 minute')")).await
}

async fn release(connection: &Connection, session: &str, lease: &str) -> bool {
    let sql = "select agent_sessions.session_release(session_id => $1::text, lease => $2::text)";
    connection.value(sql, &[&session, &lease]).await
}

async fn append(connection: &Connection, session: &str, lease: &str) -> Result<i64, Error> {
    Append::to(session, "1").lease(lease).run(connection).await
}

async fn bring(connection: &Connection, leases: &str) {
    connection.run(&format!("set agent_sessions.lease = '{leases}'")).await;
}

/// Ends a lease as time would.
async fn expire(db: &Database, session: &str) {
    let expired = format!(
        "set session_replication_role = replica;
         update agent_sessions.session set lease_expires_at = clock_timestamp() - interval '1 second'
         where session_id = '{session}' and lease_digest is not null"
    );
    db.superuser().await.run(&expired).await;
}

/// Returns once the server says so.
async fn until(db: &Database, condition: &str) {
    let observer = db.superuser().await;
    let deadline = Instant::now() + PATIENCE;
    while !observer.value::<bool>(condition, &[]).await {
        assert!(Instant::now() < deadline, "never: {condition}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns once that backend sleeps in a claim that waits.
async fn until_sleeping(db: &Database, pid: i32) {
    until(db, &format!("select wait_event is not distinct from 'Extension' from pg_stat_activity where pid = {pid}"))
        .await;
}

/// Rows affected or returned.
async fn write(connection: &Connection, sql: &str) -> Result<u64, Error> {
    let messages = connection.simple_query(sql).await?;
    let counts = messages.iter().map(|message| match message {
        SimpleQueryMessage::CommandComplete(rows) => *rows,
        _ => 0,
    });
    Ok(counts.sum())
}

/// A session `s` with a live item at 0, an open one with a chunk at 1, and a live one at 2.
async fn session(writer: &Connection) {
    writer.create_session("s").await;
    writer.append("s", "0").await;
    writer.run("select agent_sessions.session_append('s', '\"\"', open => true)").await;
    writer.run("select agent_sessions.session_delta('s', 1, 0, 'chunk')").await;
    writer.append("s", "2").await;
}

/// Every function that writes to the session `s`.
fn writing_functions(lease: &str) -> Vec<String> {
    [
        "session_append('s', '1'",
        "session_append('s', '1', item_id => 'new', on_conflict => 'keep'",
        "session_append('s', '1', on_missing => 'create'",
        "session_append_batch('s', '[{\"payload\": 1}, {\"payload\": 2}]'",
        "session_revise('s', '1', target => 0",
        "session_revise('s', '1', target => 1",
        "session_retract('s', targets => '{0}'",
        "session_retract('s', from_target => 1",
        "session_pop('s'",
        "session_delta('s', 1, 1, 'more'",
        "session_set('s', title => 'T'",
        "session_set('s', state => '{\"a\": 1}', merge => true",
        "session_set('s', input_tokens => 1, cost => 1",
        "session_set('s', status => 'closed', on_missing => 'create'",
        "session_delete('s'",
    ]
    .iter()
    .map(|call| format!("select * from agent_sessions.{call}, lease => {lease})"))
    .collect()
}

/// Every kind of plain statement that changes the session `s` or its log.
fn raw_writes() -> Vec<String> {
    let item = |values: &str| {
        format!(
            "insert into agent_sessions.session_item (sid, op, target, payload)
             select sid, {values} from agent_sessions.session where session_id = 's'"
        )
    };
    let mut writes = vec![
        item("'append', null, '1'"),
        item("'open', null, '1'"),
        item("'revise', 0, '1'"),
        item("'retract', 0, null"),
        item("'retract_from', 0, null"),
        "insert into agent_sessions.session_delta (sid, target, chunk_no, chunk)
         select sid, 1, 1, 'more' from agent_sessions.session where session_id = 's'"
            .to_owned(),
        "insert into agent_sessions.session (tenant, agent_id, session_id) values ('', '', 's')
         on conflict (tenant, session_id, agent_id) where deleted_at is null do update set title = 'T'"
            .to_owned(),
        "delete from agent_sessions.session where session_id = 's'".to_owned(),
    ];
    for change in [
        "title = 'T'",
        "status = 'closed'",
        "closed_at = now()",
        "owner = 'o'",
        "origin = 'o'",
        "state = '{}'",
        "metadata = '{}'",
        "input_tokens = 1",
        "output_tokens = 1",
        "cost = 1",
        "expires_at = now()",
        "revision = revision + 1",
    ] {
        writes.push(format!("update agent_sessions.session set {change} where session_id = 's'"));
    }
    writes
}

/// All that the engine stores.
async fn everything(db: &Database) -> Vec<String> {
    let sql = "
        select to_jsonb(s)::text from agent_sessions.session s
        union all select to_jsonb(i)::text from agent_sessions.session_item i
        union all select to_jsonb(d)::text from agent_sessions.session_delta d
        order by 1";
    let rows = db.superuser().await.query(sql, &[]).await.expect("all rows");
    rows.iter().map(|row| row.get(0)).collect()
}

/// With this lease, as an argument and in the setting, no write passes and nothing changes.
async fn assert_refused(db: &Database, connection: &Connection, lease: Option<&str>, code: &str) {
    let before = everything(db).await;
    let argument = lease.map_or("null".to_owned(), |lease| format!("'{lease}'"));
    let functions = writing_functions(&argument).into_iter().map(|sql| ("", sql));
    let raw = raw_writes().into_iter().map(|sql| (lease.unwrap_or_default(), sql));
    for (setting, sql) in functions.chain(raw) {
        bring(connection, setting).await;
        let refused = write(connection, &sql).await;
        assert_eq!(refused.as_ref().err().map(sqlstate), Some(code), "{sql}: {refused:?}");
        assert_eq!(everything(db).await, before, "{sql}");
    }
    bring(connection, "").await;
}

/// With this lease, every write passes. Nothing stays of it.
async fn assert_admitted(connection: &Connection, lease: Option<&str>) {
    let argument = lease.map_or("null".to_owned(), |lease| format!("'{lease}'"));
    let functions = writing_functions(&argument).into_iter().map(|sql| ("", sql));
    let raw = raw_writes().into_iter().map(|sql| (lease.unwrap_or_default(), sql));
    for (setting, sql) in functions.chain(raw) {
        bring(connection, setting).await;
        connection.begin("read committed").await;
        match write(connection, &sql).await {
            Ok(rows) => assert!(rows > 0, "{sql}"),
            Err(error) => panic!("{sql}: {error:?}"),
        }
        connection.rollback().await;
    }
    bring(connection, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_holder_writes() {
    let db = Database::create("lease_holder").await;
    let (holder, other) = (db.writer().await, db.writer().await);
    session(&holder).await;
    assert_admitted(&other, None).await;
    let held = lease(&holder, "session_claim('s', '1 minute', holder => 'worker 1')").await;
    assert_admitted(&holder, Some(&held.text)).await;
    // Whoever has the lease writes, on whichever connection.
    assert_admitted(&other, Some(&held.text)).await;
    assert_refused(&db, &other, None, "SE009").await;
    let refused = assert_sqlstate!(other.try_append("s", "1").await, "SE009");
    assert_eq!(detail(&refused), json!({"holder": "worker 1"}));

    let nonce = held.text.split_once(':').expect("sid:nonce").1;
    for wrong in [format!("0:{nonce}"), format!("{}a", held.text), held.text.to_uppercase() + " "] {
        assert_sqlstate!(append(&other, "s", &wrong).await, "SE008");
    }
    for malformed in ["", "x", ":", "1:", ":a", "99999999999999999999:a", "\u{1F680}", "'"] {
        assert_sqlstate!(append(&other, "s", malformed).await, "SE008");
        assert_sqlstate!(
            try_lease(&other, &format!("session_extend('s', $${malformed}$$, '1 minute')")).await,
            "SE008"
        );
    }
    // An argument counts for itself, whatever the setting holds.
    bring(&other, &held.text).await;
    assert_sqlstate!(append(&other, "s", "x").await, "SE008");
    append(&other, "s", &held.text).await.expect("the lease as an argument");
    other.append("s", "1").await;

    // What only reads asks for no lease.
    bring(&other, "").await;
    let keep = "select title from agent_sessions.session_create('s', title => 'other', on_conflict => 'keep')";
    assert_eq!(other.value::<Option<String>>(keep, &[]).await, None);
    assert!(other.verify("s").await.ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_stalls_before_its_first_write_is_fenced() {
    let db = Database::create("lease_stall").await;
    let (a, b) = (db.writer().await, db.writer().await);
    session(&a).await;
    let lost = lease(&a, "session_claim('s', '1 second')").await;
    let held = lease(&b, "session_claim('s', '1 minute', wait => '1 minute')").await;
    assert!(held.fence > lost.fence);
    assert_refused(&db, &a, Some(&lost.text), "SE008").await;
    assert_refused(&db, &a, None, "SE009").await;
    for arguments in ["", ", allow_expired => true"] {
        let extend = format!("session_extend('s', '{}', '1 minute'{arguments})", lost.text);
        assert_sqlstate!(try_lease(&a, &extend).await, "SE008");
    }
    assert_admitted(&b, Some(&held.text)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_connection_is_cut_is_fenced() {
    let db = Database::create("lease_cut").await;
    let (a, b) = (db.writer().await, db.writer().await);
    session(&a).await;
    let lost = lease(&a, "session_claim('s', '1 second')").await;
    a.begin("read committed").await;
    append(&a, "s", &lost.text).await.expect("a write of the holder's");
    drop(a);
    let held = lease(&b, "session_claim('s', '1 minute', wait => '1 minute')").await;
    assert!(held.fence > lost.fence);
    b.assert_dense("s", 3).await;
    let again = db.writer().await;
    assert_refused(&db, &again, Some(&lost.text), "SE008").await;
    assert_admitted(&b, Some(&held.text)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ended_does_not_write_even_if_nobody_has_claimed_since() {
    let db = Database::create("lease_ended").await;
    let (a, b) = (db.writer().await, db.writer().await);
    let admin = db.connect(Role::Named(db.role("admin", Some("admin")).await)).await;
    session(&a).await;

    let expired = claim(&a, "s").await;
    expire(&db, "s").await;
    assert_refused(&db, &a, Some(&expired.text), "SE008").await;
    assert_admitted(&b, None).await;

    let released = claim(&a, "s").await;
    assert!(release(&a, "s", &released.text).await);
    assert_refused(&db, &a, Some(&released.text), "SE008").await;
    assert_admitted(&b, None).await;

    let broken = claim(&a, "s").await;
    let take = "select agent_sessions.session_break_lease('s')";
    assert!(admin.value::<bool>(take, &[]).await);
    assert!(!admin.value::<bool>(take, &[]).await);
    assert_refused(&db, &a, Some(&broken.text), "SE008").await;
    assert_admitted(&b, None).await;
    for ended in [expired, released, broken] {
        let extend = format!("session_extend('s', '{}', '1 minute', allow_expired => true)", ended.text);
        assert_sqlstate!(try_lease(&a, &extend).await, "SE008");
    }

    // The deleted session's lease is not the new one's.
    let deleted = claim(&a, "s").await;
    a.run(&format!("select agent_sessions.session_delete('s', lease => '{}')", deleted.text)).await;
    assert_sqlstate!(Append::to("s", "1").on_missing("create").lease(&deleted.text).run(&a).await, "SE008");
    assert!(everything(&db).await.is_empty(), "a refused append creates no session");
    session(&b).await;
    for sql in writing_functions(&format!("'{}'", deleted.text)) {
        assert_sqlstate!(write(&a, &sql).await, "SE008");
    }
}

/// Two processes share a lease, as a parent and its child may; it ends between their writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_ends_for_all_who_share_it() {
    let db = Database::create("lease_shared").await;
    let (a, b) = (db.writer().await, db.writer().await);
    let shared = claim(&a, "s").await;
    append(&a, "s", &shared.text).await.expect("before it ends");
    append(&b, "s", &shared.text).await.expect("before it ends");
    a.begin("read committed").await;
    append(&a, "s", &shared.text).await.expect("in a transaction that is open when it ends");
    a.commit().await;
    expire(&db, "s").await;
    assert_sqlstate!(append(&b, "s", &shared.text).await, "SE008");
    assert_sqlstate!(append(&a, "s", &shared.text).await, "SE008");
    a.assert_dense("s", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_transaction_writes_to_leased_and_unleased_sessions() {
    let db = Database::create("lease_list").await;
    let (writer, other) = (db.writer().await, db.writer().await);
    let (x, y) = (claim(&writer, "x").await.text, claim(&writer, "y").await.text);
    let lost = claim(&writer, "lost").await.text;
    writer.create_session("free").await;
    expire(&db, "lost").await;
    claim(&other, "lost").await;

    for list in [format!("{x},{y}"), format!("{y} {x}"), format!(" {x}, nonsense, 0:a, {lost}, {y},")] {
        writer.begin("read committed").await;
        writer.run(&format!("set local agent_sessions.lease = '{list}'")).await;
        for session in ["x", "free", "y"] {
            assert_eq!(writer.raw_append(session, "1").await.expect("a raw append"), 1, "{list} {session}");
            writer.append(session, "2").await;
            let title =
                format!("update agent_sessions.session set title = title || 'T' where session_id = '{session}'");
            writer.run(&title).await;
        }
        writer.commit().await;
    }
    for session in ["x", "free", "y"] {
        writer.assert_dense(session, 6).await;
    }
    // In one statement, too; and one lost lease undoes the whole.
    let all = "insert into agent_sessions.session_item (sid, payload)
               select sid, '3' from agent_sessions.session where session_id = any ('{x,y,free,LOST}')";
    bring(&writer, &format!("{x},{y},{lost}")).await;
    assert_eq!(write(&writer, all).await.expect("three entries"), 3);
    assert_sqlstate!(write(&writer, &all.replace("LOST", "lost")).await, "SE008");
    bring(&writer, &format!("{x},{y}")).await;
    assert_sqlstate!(write(&writer, &all.replace("LOST", "lost")).await, "SE009");
    for session in ["x", "free", "y"] {
        writer.assert_dense(session, 7).await;
    }
    assert!(writer.log("lost").await.is_empty());
    // A list is no lease of one session.
    bring(&writer, "").await;
    assert_sqlstate!(append(&writer, "x", &format!("{x},{y}")).await, "SE008");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_needs_no_lease() {
    let db = Database::create("lease_replay").await;
    let (a, b) = (db.writer().await, db.writer().await);
    let lost = claim(&a, "s").await.text;
    let first = Append::to("s", "1").item_id("i").lease(&lost).run(&a).await.expect("the first time");
    expire(&db, "s").await;
    let held = claim(&b, "s").await.text;
    append(&b, "s", &held).await.expect("the new holder's");
    let before = everything(&db).await;

    let batch = |items: &str, lease: &str| {
        format!("select position from agent_sessions.session_append_batch('s', '{items}', lease => {lease})")
    };
    let once = r#"[{"payload":1,"item_id":"i"}]"#;
    for (setting, argument) in [("", Some(lost.as_str())), ("", None), (lost.as_str(), None)] {
        bring(&a, setting).await;
        for word in ["error", "keep", "replace"] {
            let mut again = Append::to("s", "1").item_id("i").on_conflict(word);
            if let Some(lease) = argument {
                again = again.lease(lease);
            }
            assert_eq!(again.run(&a).await.expect("a replay"), first, "{word}");
        }
        let literal = argument.map_or("null".to_owned(), |lease| format!("'{lease}'"));
        assert_eq!(a.value::<i64>(&batch(once, &literal), &[]).await, first);
        let raw = "insert into agent_sessions.session_item (sid, item_id, payload)
                   select sid, 'i', '1' from agent_sessions.session";
        assert_eq!(write(&a, raw).await.expect("a raw replay"), 0);
        // What is new beside the replay needs the lease.
        let code = |brings: bool| if brings { "SE008" } else { "SE009" };
        let more = batch(r#"[{"payload":1,"item_id":"i"},{"payload":2}]"#, &literal);
        assert_sqlstate!(write(&a, &more).await, code(argument.is_some() || !setting.is_empty()));
        assert_sqlstate!(write(&a, &raw.replace("'i', '1'", "'j', '1'")).await, code(!setting.is_empty()));
    }
    assert_eq!(everything(&db).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_claims_have_one_winner() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 50;
    let db = Database::create("lease_race").await;
    let writers = db.writers(CLIENTS).await;
    let mut fence = 0;
    for round in 0..ROUNDS {
        // Every second round the session is not there yet.
        let session = if round % 2 == 0 { "s".to_owned() } else { format!("round {round}") };
        let results = together(CLIENTS, |number| {
            let (writer, session) = (writers[number].clone(), session.clone());
            async move { try_lease(&writer, &format!("session_claim('{session}', '1 minute')")).await }
        })
        .await;
        let mut won: Vec<Lease> = results.into_iter().filter_map(|result| result.expect("no error")).collect();
        assert_eq!(won.len(), 1, "round {round}: {won:?}");
        let winner = won.remove(0);
        assert!(winner.fence > fence, "round {round}");
        fence = winner.fence;
        append(&writers[0], &session, &winner.text).await.expect("the winner's write");
        assert!(release(&writers[round % CLIENTS], &session, &winner.text).await);
    }
    writers[0].assert_dense("s", ROUNDS as i64 / 2).await;
}

/// Two runners reload, call a tool and store its result: under leases their pairs never interleave.
#[tokio::test(flavor = "multi_thread")]
async fn pairs_written_under_leases_never_interleave() {
    const PAIRS: usize = 20;
    let db = Database::create("lease_pairs").await;
    let writers = db.writers(2).await;
    writers[0].create_session("s").await;
    together(2, |number| {
        let writer = writers[number].clone();
        async move {
            for pair in 0..PAIRS {
                let held = lease(&writer, "session_claim('s', '1 minute', wait => '1 minute')").await;
                let at = writer.history("s").await.len() as i64;
                for kind in ["call", "result"] {
                    let payload = format!("[{number},{pair}]");
                    Append::to("s", &payload).kind(kind).lease(&held.text).run(&writer).await.expect("a half");
                }
                assert_eq!(writer.history("s").await.len() as i64, at + 2);
                assert!(release(&writer, "s", &held.text).await);
            }
        }
    })
    .await;
    let log = writers[0].log("s").await;
    assert_eq!(log.len(), 2 * 2 * PAIRS);
    for pair in log.chunks(2) {
        assert_eq!(pair[0].payload, pair[1].payload);
        assert_eq!((pair[0].kind.as_deref(), pair[1].kind.as_deref()), (Some("call"), Some("result")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fence_only_grows() {
    let db = Database::create("lease_fence").await;
    let (writer, owner) = (db.writer().await, db.owner().await);
    let admin = db.connect(Role::Named(db.role("admin", Some("admin")).await)).await;
    let mut fences = Vec::new();
    let stored = "select lease_fence from agent_sessions.session where session_id = 's'";

    let first = claim(&writer, "s").await;
    fences.push(("a first claim", first.fence));
    let extended = lease(&writer, &format!("session_extend('s', '{}', '2 minutes')", first.text)).await;
    assert_eq!((extended.fence, &extended.text), (first.fence, &first.text), "extending claims nothing");
    assert!(extended.remaining > first.remaining);
    assert!(release(&writer, "s", &first.text).await);
    assert_eq!(writer.value::<i64>(stored, &[]).await, first.fence, "a release keeps the fence");

    fences.push(("after a release", claim(&writer, "s").await.fence));
    admin.run("select agent_sessions.session_break_lease('s')").await;
    fences.push(("after a break", claim(&writer, "s").await.fence));
    expire(&db, "s").await;
    fences.push(("after an expiry", claim(&writer, "s").await.fence));
    expire(&db, "s").await;

    writer.begin("read committed").await;
    fences.push(("rolled back", claim(&writer, "s").await.fence));
    writer.rollback().await;
    assert_eq!(writer.query("select from agent_sessions.lease_status where live", &[]).await.expect("leases").len(), 0);
    writer.begin("read committed").await;
    writer.run("savepoint p").await;
    fences.push(("rolled back to a savepoint", claim(&writer, "s").await.fence));
    writer.run("rollback to p").await;
    let again = claim(&writer, "s").await;
    fences.push(("after both", again.fence));
    writer.commit().await;

    writer.run(&format!("select agent_sessions.session_delete('s', lease => '{}')", again.text)).await;
    let recreated = claim(&writer, "s").await;
    fences.push(("deleted and created again", recreated.fence));
    assert!(release(&writer, "s", &recreated.text).await);

    for back in [1, 5] {
        owner.run(&format!("select setval('agent_sessions.lease_fence_seq', {back}, false)")).await;
        fences.push(("the sequence is set back", claim(&writer, "s").await.fence));
        expire(&db, "s").await;
        fences.push(("and goes on", claim(&writer, "s").await.fence));
        expire(&db, "s").await;
    }
    assert!(fences.windows(2).all(|pair| pair[0].1 < pair[1].1), "{fences:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_lease_does_not_survive_a_restore_and_its_fence_does() {
    let db = Database::create("lease_dump").await;
    let writer = db.writer().await;
    session(&writer).await;
    let held = claim(&writer, "s").await;
    append(&writer, "s", &held.text).await.expect("the holder's");
    let freed = claim(&writer, "freed").await;
    assert!(release(&writer, "freed", &freed.text).await);
    let gone = claim(&writer, "gone").await;
    writer.run(&format!("select agent_sessions.session_delete('gone', lease => '{}')", gone.text)).await;

    let dump = db.program("pg_dump", Role::Owner).output().await;
    assert!(!dump.contains(held.text.split_once(':').expect("sid:nonce").1), "the dump shows the lease");
    let target = Database::empty("lease_restore").await;
    target.psql(Role::Owner).input(dump).output().await;

    let restored = target.writer().await;
    assert_eq!(restored.log("s").await, writer.log("s").await);
    restored.assert_dense("s", 4).await;
    assert!(restored.query("select from agent_sessions.lease_status", &[]).await.expect("leases").is_empty());
    assert_refused(&target, &restored, Some(&held.text), "SE008").await;
    assert_admitted(&restored, None).await;
    for (session, before) in [("s", held.fence), ("freed", freed.fence), ("gone", gone.fence)] {
        let after = claim(&restored, session).await.fence;
        assert!(after > before, "{session}: {before} then {after}");
    }
    // At the source nothing has changed.
    append(&writer, "s", &held.text).await.expect("the holder's");
}

/// The clock is read after the lock: a lease that ends while its holder waits is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_while_waiting_for_the_row_is_lost() {
    let db = Database::create("lease_wait").await;
    let (blocker, holder) = (db.writer().await, Arc::new(db.writer().await));
    session(&holder).await;
    let calls = [
        "session_extend('s', 'LEASE', '1 minute')",
        "session_append('s', '1', lease => 'LEASE')",
        "session_append_batch('s', '[{\"payload\":1}]', lease => 'LEASE')",
        "session_revise('s', '1', target => 0, lease => 'LEASE')",
        "session_retract('s', targets => '{0}', lease => 'LEASE')",
        "session_pop('s', lease => 'LEASE')",
        "session_delta('s', 1, 1, 'more', lease => 'LEASE')",
        "session_set('s', title => 'T', lease => 'LEASE')",
        "session_delete('s', lease => 'LEASE')",
    ]
    .map(|call| format!("select * from agent_sessions.{call}"));
    let raw = [
        "insert into agent_sessions.session_item (sid, payload)
         select sid, '1' from agent_sessions.session where session_id = 's'",
        "insert into agent_sessions.session_delta (sid, target, chunk_no, chunk)
         select sid, 1, 1, 'more' from agent_sessions.session where session_id = 's'",
        "update agent_sessions.session set title = 'T' where session_id = 's'",
        "delete from agent_sessions.session where session_id = 's'",
    ]
    .map(str::to_owned);
    for sql in calls.into_iter().chain(raw) {
        let held = lease(&holder, "session_claim('s', '1 second', wait => '1 minute')").await;
        blocker.begin("read committed").await;
        blocker.run("select from agent_sessions.session where session_id = 's' for no key update").await;
        if !sql.contains("LEASE") {
            bring(&holder, &held.text).await;
        }
        let waiting = tokio::spawn({
            let (holder, sql) = (holder.clone(), sql.replace("LEASE", &held.text));
            async move { write(&holder, &sql).await }
        });
        db.wait_until_blocked(holder.pid).await;
        until(&db, "select lease_expires_at <= clock_timestamp() from agent_sessions.session where session_id = 's'")
            .await;
        blocker.rollback().await;
        let refused = waiting.await.expect("the waiting write");
        assert_eq!(refused.as_ref().err().map(sqlstate), Some("SE008"), "{sql}: {refused:?}");
        bring(&holder, "").await;
    }
    holder.assert_dense("s", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_is_only_revived_if_that_is_asked_for_and_nobody_has_claimed_since() {
    let db = Database::create("lease_extend").await;
    let (a, b) = (db.writer().await, db.writer().await);
    let extend = |lease: &Lease, more: &str| format!("session_extend('s', '{}', '1 minute'{more})", lease.text);
    const ALLOWED: &str = ", allow_expired => true";

    let first = claim(&a, "s").await;
    lease(&a, &extend(&first, "")).await;
    expire(&db, "s").await;
    for refused in ["", ", allow_expired => false", ", allow_expired => null"] {
        assert_sqlstate!(try_lease(&a, &extend(&first, refused)).await, "SE008");
    }
    assert_sqlstate!(append(&a, "s", &first.text).await, "SE008");
    let revived = lease(&a, &extend(&first, ALLOWED)).await;
    assert_eq!((&revived.text, revived.fence), (&first.text, first.fence));
    assert!(revived.remaining > 50_000 && revived.remaining <= 60_000, "{revived:?}");
    append(&a, "s", &first.text).await.expect("it is live again");
    assert!(try_lease(&b, "session_claim('s', '1 minute')").await.expect("no error").is_none());

    // A claim that was rolled back is none.
    expire(&db, "s").await;
    b.begin("read committed").await;
    claim(&b, "s").await;
    b.rollback().await;
    lease(&a, &extend(&first, ALLOWED)).await;

    expire(&db, "s").await;
    let second = claim(&b, "s").await;
    for how in ["", ALLOWED] {
        assert_sqlstate!(try_lease(&a, &extend(&first, how)).await, "SE008");
    }
    expire(&db, "s").await;
    assert_sqlstate!(try_lease(&a, &extend(&first, ALLOWED)).await, "SE008");
    lease(&b, &extend(&second, ALLOWED)).await;
    assert!(release(&b, "s", &second.text).await);
    for ended in [&first, &second] {
        assert_sqlstate!(try_lease(&a, &extend(ended, ALLOWED)).await, "SE008");
    }
    assert_sqlstate!(try_lease(&a, "session_extend('s', null, '1 minute')").await, "SE008");
    assert_sqlstate!(try_lease(&a, "session_extend('none', '1:a', '1 minute')").await, "SE002");
}

/// What a holder of before still does, late, is nothing to the holder of now.
#[tokio::test(flavor = "multi_thread")]
async fn the_old_lease_does_not_touch_the_new_holder() {
    let db = Database::create("lease_old").await;
    let (a, b) = (db.writer().await, db.writer().await);
    let old = claim(&a, "s").await;
    expire(&db, "s").await;
    let held = lease(&b, "session_claim('s', '1 minute', holder => 'b')").await;
    let before = everything(&db).await;
    assert!(!release(&a, "s", &old.text).await);
    let extend = |arguments: &str| format!("session_extend('s', '{}', '1 hour'{arguments})", old.text);
    assert_sqlstate!(try_lease(&a, &extend("")).await, "SE008");
    assert_sqlstate!(try_lease(&a, &extend(", allow_expired => true")).await, "SE008");
    assert!(try_lease(&a, "session_claim('s', '1 minute')").await.expect("no error").is_none());
    // The holder itself claims nothing twice.
    assert!(try_lease(&b, "session_claim('s', '1 minute')").await.expect("no error").is_none());
    assert_eq!(everything(&db).await, before);
    append(&b, "s", &held.text).await.expect("the new holder writes");
    assert!(release(&b, "s", &held.text).await);
    assert!(!release(&b, "s", &held.text).await, "it is released once");

    // An expired lease is still the last one's to release.
    let last = claim(&a, "s").await;
    expire(&db, "s").await;
    assert!(release(&a, "s", &last.text).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_never_raises() {
    let db = Database::create("lease_release").await;
    let writer = db.writer().await;
    let held = claim(&writer, "s").await;
    let before = everything(&db).await;
    let long = "\u{1F680}".repeat(500);
    for arguments in [
        "null, null".to_owned(),
        "'s', null".to_owned(),
        format!("null, '{}'", held.text),
        "'s', ''".to_owned(),
        "'s', 'x'".to_owned(),
        "'s', ':'".to_owned(),
        "'s', '1:'".to_owned(),
        "'s', '99999999999999999999:a'".to_owned(),
        format!("'s', '{},{}'", held.text, held.text),
        format!("'s', repeat('{}', 100000)", held.text),
        format!("'none', '{}'", held.text),
        format!("'', '{}'", held.text),
        format!("repeat('s', 501), '{}'", held.text),
        format!("e'a\\nb', '{}'", held.text),
        format!("'s', '{}', agent_id => 'other'", held.text),
        format!("'s', '{}', agent_id => e'\\t'", held.text),
        format!("'{long}', '{}', agent_id => '{long}'", held.text),
    ] {
        let sql = format!("select agent_sessions.session_release({arguments})");
        assert!(!writer.value::<bool>(&sql, &[]).await, "{arguments}");
    }
    assert_eq!(everything(&db).await, before);

    let bound = db.role("bound", Some("writer")).await;
    db.owner().await.run(&format!("select agent_sessions.tenant_bind('{bound}', 'acme')")).await;
    let bound = db.connect(Role::Named(bound)).await;
    assert!(!release(&bound, "s", &held.text).await, "a tenant that it may not use");
    assert!(release(&writer, "s", &held.text).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_waits_for_a_transaction_that_has_written() {
    let db = Database::create("lease_locked").await;
    let (writer, claimant) = (db.writer().await, Arc::new(db.writer().await));
    writer.create_session("s").await;
    for commits in [true, false] {
        writer.begin("read committed").await;
        writer.append("s", "1").await;
        let waiting = tokio::spawn({
            let claimant = claimant.clone();
            async move { try_lease(&claimant, "session_claim('s', '1 minute')").await }
        });
        db.wait_until_blocked(claimant.pid).await;
        if commits {
            writer.commit().await
        } else {
            writer.rollback().await
        }
        let held = waiting.await.expect("the waiting claim").expect("no error").expect("a lease");
        assert!(release(&claimant, "s", &held.text).await);
    }

    // Who waits for another claim sees what that has claimed.
    writer.begin("read committed").await;
    let held = claim(&writer, "s").await;
    let waiting = tokio::spawn({
        let claimant = claimant.clone();
        async move { try_lease(&claimant, "session_claim('s', '1 minute')").await }
    });
    db.wait_until_blocked(claimant.pid).await;
    writer.commit().await;
    assert!(waiting.await.expect("the waiting claim").expect("no error").is_none());
    assert!(release(&writer, "s", &held.text).await);

    writer.begin("read committed").await;
    writer.raw_append("s", "1").await.expect("a raw append");
    claimant.run("set lock_timeout = '50ms'").await;
    assert_sqlstate!(try_lease(&claimant, "session_claim('s', '1 minute')").await, "55P03");
    claimant.run("reset lock_timeout").await;
    writer.rollback().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_waits_as_long_as_it_is_told() {
    let db = Database::create("lease_patience").await;
    let (holder, claimant) = (db.writer().await, Arc::new(db.writer().await));
    // A wait that is not bounded ends the test with 57014.
    claimant.run("set statement_timeout = '30s'").await;
    holder.create_session("s").await;
    let wait = |wait: &'static str| {
        let claimant = claimant.clone();
        async move {
            let begun = Instant::now();
            let result = try_lease(&claimant, &format!("session_claim('s', '1 minute', wait => '{wait}')")).await;
            (result.expect("no error"), begun.elapsed())
        }
    };

    // Another transaction holds the session.
    holder.begin("read committed").await;
    holder.append("s", "1").await;
    let (lease, took) = wait("300 milliseconds").await;
    assert!(lease.is_none() && took >= Duration::from_millis(300), "{lease:?} after {took:?}");
    assert!(wait("1 microsecond").await.0.is_none());
    let waiting = tokio::spawn(wait("25 seconds"));
    until_sleeping(&db, claimant.pid).await;
    holder.commit().await;
    let (lease, took) = waiting.await.expect("the waiting claim");
    let lease = lease.expect("a lease after the commit");
    assert!(took < Duration::from_secs(25), "{took:?}");
    assert!(release(&claimant, "s", &lease.text).await);

    // Another lease is live.
    let held = claim(&holder, "s").await;
    assert!(wait("0").await.0.is_none());
    let (lease, took) = wait("300 milliseconds").await;
    assert!(lease.is_none() && took >= Duration::from_millis(300), "{lease:?} after {took:?}");
    let waiting = tokio::spawn(wait("25 seconds"));
    until_sleeping(&db, claimant.pid).await;
    append(&holder, "s", &held.text).await.expect("whoever waits holds up nobody");
    assert!(release(&holder, "s", &held.text).await);
    let lease = waiting.await.expect("the waiting claim").0.expect("a lease after the release");
    assert!(lease.fence > held.fence);
    assert!(release(&claimant, "s", &lease.text).await);

    claim(&holder, "s").await;
    let waiting = tokio::spawn(wait("25 seconds"));
    until_sleeping(&db, claimant.pid).await;
    expire(&db, "s").await;
    assert!(waiting.await.expect("the waiting claim").0.is_some(), "a lease after the expiry");

    // A cancel is obeyed.
    let held = try_lease(&holder, "session_claim('s', '1 minute', wait => '1 hour')");
    let cancel = async {
        until_sleeping(&db, holder.pid).await;
        holder.cancel().await;
    };
    let (cancelled, ()) = tokio::join!(held, cancel);
    assert_sqlstate!(cancelled, "57014");
}

/// Whoever waits comes in one after the other: a claim that finds the session taken again goes on waiting, and does not
/// hold it up meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn all_who_wait_get_their_turn() {
    const CLIENTS: usize = 8;
    const TURNS: usize = 10;
    let db = Database::create("lease_turns").await;
    let writers = db.writers(CLIENTS).await;
    writers[0].create_session("s").await;
    let begun = Instant::now();
    let fences = together(CLIENTS, |number| {
        let writer = writers[number].clone();
        async move {
            let mut mine = Vec::new();
            for turn in 0..TURNS {
                let call = "session_claim('s', '5 minutes', wait => '2 minutes')";
                let claimed = try_lease(&writer, call).await.expect("no error");
                let held = claimed.unwrap_or_else(|| panic!("no lease in turn {turn}, and the wait is not over"));
                append(&writer, "s", &held.text).await.expect("the holder writes");
                assert!(release(&writer, "s", &held.text).await);
                mine.push(held.fence);
            }
            mine
        }
    })
    .await;
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    let mut all = fences.concat();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), CLIENTS * TURNS, "each claim has a fence of its own");
    writers[0].assert_dense("s", (CLIENTS * TURNS) as i64).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_no_wait_is_refused() {
    let db = Database::create("lease_waits").await;
    let writer = db.writer().await;
    for wait in ["-1 microsecond", "-1 day", "1 month", "100000 years"] {
        let call = format!("session_claim('s', '1 minute', wait => '{wait}')");
        let error = assert_sqlstate!(try_lease(&writer, &call).await, "SE001");
        assert_eq!(detail(&error)["argument"], "wait", "{wait}");
    }
    let absent = lease(&writer, "session_claim('s', '1 minute', wait => null)").await;
    // The longest that an interval without months can hold is a long wait, not none.
    writer.run("set statement_timeout = '300ms'").await;
    let longest = "session_claim('s', '1 minute', wait => '2562047788 hours')";
    let result = try_lease(&writer, longest).await;
    let code = result.as_ref().err().map(sqlstate);
    assert!(code == Some("57014") || code == Some("SE001"), "{result:?}");
    assert!(release(&writer, "s", &absent.text).await);
}

async fn next(connection: &Connection, arguments: &str) -> Option<String> {
    let sql = format!(
        "select session_id, lease, fence, expires_at, remaining_ms, agent_id
         from agent_sessions.session_claim_next(ttl => '1 minute'{arguments})"
    );
    let row = connection.query_opt(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"))?;
    assert!(row.get::<_, i64>(2) > 0 && row.get::<_, i32>(4) > 50_000, "{row:?}");
    Some(row.get(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_claim_each_session_once() {
    const WORKERS: usize = 8;
    const SESSIONS: usize = 20;
    let db = Database::create("lease_workers").await;
    let workers = db.writers(WORKERS).await;
    let mut sessions: Vec<String> = (0..SESSIONS).map(|number| format!("session {number:02}")).collect();
    for session in &sessions {
        workers[0].create_session(session).await;
    }
    let claimed = together(WORKERS, |number| {
        let worker = workers[number].clone();
        async move {
            let mut mine = Vec::new();
            while let Some(session) = next(&worker, "").await {
                mine.push(session);
            }
            mine
        }
    })
    .await;
    let mut all = claimed.concat();
    all.sort();
    sessions.sort();
    assert_eq!(all, sessions);
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_next_skips_what_is_held() {
    let db = Database::create("lease_next").await;
    let (worker, other) = (db.writer().await, db.writer().await);
    for session in ["first", "second", "third", "fourth"] {
        worker.create_session(session).await;
    }
    other.begin("read committed").await;
    other.append("second", "1").await;
    claim(&worker, "third").await;
    // The longest inactive goes first; nobody waits for the lock of the second.
    worker.run("set lock_timeout = '1ms'").await;
    assert_eq!(next(&worker, "").await.as_deref(), Some("first"));
    assert_eq!(next(&worker, "").await.as_deref(), Some("fourth"));
    assert_eq!(next(&worker, "").await, None);
    other.rollback().await;
    assert_eq!(next(&worker, "").await.as_deref(), Some("second"));
    assert_eq!(next(&worker, "").await, None);
    expire(&db, "third").await;
    assert_eq!(next(&worker, "").await.as_deref(), Some("third"));
    assert_eq!(next(&worker, "").await, None);
    // What it returns is a lease as any other.
    expire(&db, "third").await;
    let held = lease(&worker, "session_claim_next(ttl => '1 minute', holder => 'worker')").await;
    assert_sqlstate!(worker.try_append("third", "1").await, "SE009");
    append(&worker, "third", &held.text).await.expect("the holder writes");
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_next_takes_what_it_is_told_to() {
    let db = Database::create("lease_filters").await;
    let worker = db.writer().await;
    for (session, arguments) in [
        ("closed", "status => 'closed'"),
        ("queued of o", "status => 'queued', owner => 'o'"),
        ("queued of a", "status => 'queued', agent_id => 'a'"),
        ("failed of o and a", "status => 'failed', owner => 'o', agent_id => 'a'"),
        ("plain", "title => 'T'"),
    ] {
        worker.run(&format!("select agent_sessions.session_create('{session}', {arguments})")).await;
    }
    worker.run("set agent_sessions.tenant = 'other'; select agent_sessions.session_create('elsewhere')").await;
    worker.run("reset agent_sessions.tenant").await;
    let all = ["closed", "queued of o", "queued of a", "failed of o and a", "plain"];
    for (arguments, wanted) in [
        ("", &all[1..]),
        (", status => 'queued'", &all[1..3]),
        (", status => 'closed'", &all[..1]),
        (", status => 'none'", &[]),
        (", owner => 'o'", &[all[1], all[3]]),
        (", agent_id => 'a'", &[all[2], all[3]]),
        (", agent_id => ''", &[all[1], all[4]]),
        (", status => 'queued', owner => 'o', agent_id => ''", &all[1..2]),
        (", status => 'queued', owner => 'o', agent_id => 'a'", &[]),
    ] as [(&str, &[&str]); 9]
    {
        worker.begin("read committed").await;
        let mut found = Vec::new();
        while let Some(session) = next(&worker, arguments).await {
            found.push(session);
        }
        worker.rollback().await;
        assert_eq!(found, wanted, "{arguments}");
    }
    for malformed in ["ttl => null", "status => '', ttl => '1 minute'", "status => 'queued'"] {
        assert_sqlstate!(try_lease(&worker, &format!("session_claim_next({malformed})")).await, "SE001");
    }
    worker.run("set agent_sessions.isolation = 'agent'; set agent_sessions.agent = 'a'").await;
    assert_eq!(next(&worker, "").await.as_deref(), Some("queued of a"));
    assert_eq!(next(&worker, "").await.as_deref(), Some("failed of o and a"));
    assert_eq!(next(&worker, "").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_session_is_created_unless_told_otherwise() {
    let db = Database::create("lease_missing").await;
    let writer = db.writer().await;
    let call = |session: &str, arguments: &str| format!("session_claim('{session}', '1 minute'{arguments})");
    for wait in ["", ", wait => '100 milliseconds'"] {
        let error = call("none", &format!(", on_missing => 'error'{wait}"));
        assert_sqlstate!(try_lease(&writer, &error).await, "SE002");
        let ignore = call("none", &format!(", on_missing => 'ignore'{wait}"));
        assert!(try_lease(&writer, &ignore).await.expect("no error").is_none());
        assert_sqlstate!(try_lease(&writer, &call("none", &format!(", on_missing => 'keep'{wait}"))).await, "SE001");
    }
    assert!(everything(&db).await.is_empty());
    for (number, arguments) in
        ["", ", on_missing => 'create'", ", on_missing => null", ", wait => '1 second'"].into_iter().enumerate()
    {
        let session = format!("new {number}");
        let held = lease(&writer, &call(&session, arguments)).await;
        append(&writer, &session, &held.text).await.expect("the holder writes");
    }
    let revisions = "select max(revision) from agent_sessions.session";
    assert_eq!(writer.value::<i64>(revisions, &[]).await, 0);
    writer.create_session("there").await;
    for word in ["error", "ignore", "create"] {
        let held = lease(&writer, &call("there", &format!(", on_missing => '{word}'"))).await;
        assert!(release(&writer, "there", &held.text).await);
    }
    // Another agent's session is another session.
    claim(&writer, "there").await;
    lease(&writer, &call("there", ", agent_id => 'a'")).await;
    writer.run("set agent_sessions.tenant = 'other'").await;
    lease(&writer, &call("there", "")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_arguments_claim_nothing() {
    let db = Database::create("lease_arguments").await;
    let writer = db.writer().await;
    let held = claim(&writer, "held").await;
    writer.create_session("free").await;
    let before = everything(&db).await;
    let ttls = [
        "null",
        "'0'",
        "'-1 second'",
        "'25 hours'",
        "'24 hours 1 microsecond'",
        "'1 day 1 microsecond'",
        "'1 month'",
        "'1 month -29 days'",
        "'1 year'",
        "'-1 month'",
        "'2562047788 hours'",
        "'2147483647 days'",
    ];
    for ttl in ttls {
        for call in [
            format!("session_claim('free', {ttl})"),
            format!("session_claim('new', {ttl})"),
            format!("session_claim_next(ttl => {ttl})"),
            format!("session_extend('held', '{}', {ttl})", held.text),
            format!("session_extend('none', '1:a', {ttl})"),
        ] {
            let error = assert_sqlstate!(try_lease(&writer, &call).await, "SE001");
            assert_eq!(detail(&error)["argument"], "ttl", "{call}");
        }
    }
    for (argument, given) in [
        ("holder", "'free', '1 minute', holder => repeat('h', 501)"),
        ("holder", "'free', '1 minute', holder => ''"),
        ("holder", "'free', '1 minute', holder => e'a\\nb'"),
        ("session_id", "null, '1 minute'"),
        ("session_id", "'', '1 minute'"),
        ("session_id", "repeat('s', 501), '1 minute'"),
        ("session_id", "e'a\\nb', '1 minute'"),
        ("agent_id", "'free', '1 minute', agent_id => repeat('a', 501)"),
        ("on_missing", "'free', '1 minute', on_missing => 'CREATE'"),
    ] {
        let error = assert_sqlstate!(try_lease(&writer, &format!("session_claim({given})")).await, "SE001");
        assert_eq!(detail(&error)["argument"], argument, "{given}");
    }
    let refused = try_lease(&writer, "session_claim_next(ttl => '1 minute', holder => repeat('h', 501))").await;
    assert_eq!(detail(&assert_sqlstate!(refused, "SE001"))["argument"], "holder");
    assert_eq!(everything(&db).await, before);

    for (ttl, milliseconds) in [("24 hours", 86_400_000), ("1 day", 86_400_000), ("90 seconds", 90_000)] {
        let call = format!("session_claim('free', '{ttl}', holder => repeat('\u{1F680}', 500))");
        let held = lease(&writer, &call).await;
        assert!((milliseconds - 10_000..=milliseconds).contains(&held.remaining), "{ttl}: {held:?}");
        assert!(release(&writer, "free", &held.text).await);
    }
    // As short as a ttl may be: the lease has ended when it is returned.
    for _ in 0..20 {
        let held = lease(&writer, "session_claim('free', '1 microsecond', wait => '1 minute')").await;
        assert_sqlstate!(append(&writer, "free", &held.text).await, "SE008");
    }
}

/// Clients give durations, so that neither their clocks nor their settings count.
#[tokio::test(flavor = "multi_thread")]
async fn time_zones_change_nothing() {
    let db = Database::create("lease_zones").await;
    let (east, west) = (db.writer().await, db.writer().await);
    east.run("set timezone = 'Pacific/Kiritimati'; set datestyle = 'SQL, DMY'").await;
    west.run("set timezone = 'Etc/GMT+12'; set datestyle = 'German'; set intervalstyle = 'iso_8601'").await;
    let (mut holder, mut other) = (&east, &west);
    for _ in 0..2 {
        let held = lease(holder, "session_claim('s', '1 hour')").await;
        assert!(held.remaining > 3_590_000 && held.remaining <= 3_600_000, "{held:?}");
        for connection in [holder, other] {
            let left = "select live and remaining > interval '59 minutes' and remaining <= interval '1 hour'
                          and expires_at - clock_timestamp() <= interval '1 hour'
                        from agent_sessions.lease_status where session_id = 's'";
            assert!(connection.value::<bool>(left, &[]).await);
        }
        assert!(try_lease(other, "session_claim('s', '1 hour')").await.expect("no error").is_none());
        assert_sqlstate!(other.try_append("s", "1").await, "SE009");
        append(holder, "s", &held.text).await.expect("the holder writes");
        let extended = lease(other, &format!("session_extend('s', '{}', 'PT2H')", held.text)).await;
        assert!(extended.remaining > 7_190_000 && extended.remaining <= 7_200_000, "{extended:?}");
        expire(&db, "s").await;
        assert_sqlstate!(append(holder, "s", &held.text).await, "SE008");
        std::mem::swap(&mut holder, &mut other);
    }
    let takes_a_time = "
        select p.oid::regprocedure::text from pg_proc p, unnest(p.proargtypes) t
        where p.pronamespace = 'agent_sessions'::regnamespace
          and p.proname = any ('{session_claim,session_claim_next,session_extend,session_release,session_break_lease}')
          and t = any ('{timestamptz,timestamp,date,time,timetz}'::regtype[])";
    assert!(east.query(takes_a_time, &[]).await.expect("the functions' arguments").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_reader_learns_a_live_lease() {
    let db = Database::create("lease_secret").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    session(&writer).await;
    let held = lease(&writer, "session_claim('s', '1 minute', holder => 'worker')").await;
    append(&writer, "s", &held.text).await.expect("the holder writes");
    let (sid, nonce) = held.text.split_once(':').expect("sid:nonce");
    assert!(nonce.len() >= 32, "128 bits");

    let relations = "select oid::regclass::text from pg_class
                     where relnamespace = 'agent_sessions'::regnamespace and relkind in ('r', 'v', 'm', 'S')
                       and has_table_privilege(oid, 'SELECT')";
    let relations = reader.query(relations, &[]).await.expect("what a reader may select from");
    let mut queries: Vec<String> = relations.iter().map(|row| row.get(0)).collect();
    queries.extend(
        ["get", "history", "log", "stats", "context", "verify"]
            .map(|function| format!("agent_sessions.session_{function}('s')")),
    );
    queries.push("agent_sessions.session_list()".to_owned());
    queries.push("pg_stat_activity".to_owned());
    let mut shown = String::new();
    for from in queries {
        let rows = reader.query(&format!("select t::text from {from} t"), &[]).await.expect("a read");
        for row in rows {
            shown += row.get(0);
        }
    }
    assert!(shown.contains("worker"), "the holder's name is for people");
    assert!(!shown.contains(nonce), "a reader sees the nonce");

    let other = db.writer().await;
    for refused in [other.try_append("s", "1").await, append(&other, "s", "1:a").await] {
        let error = refused.expect_err("no lease");
        assert!(!format!("{error:?} {}", detail(&error)).contains(nonce), "{error:?}");
    }

    // What a reader does see proves nothing.
    let digest = "select encode(lease_digest, 'hex') from agent_sessions.session where session_id = 's'";
    let digest: String = reader.value(digest, &[]).await;
    assert_sqlstate!(append(&reader, "s", &held.text).await, "42501");
    for forged in [format!("{sid}:{digest}"), format!("{sid}:\\x{digest}"), format!("{sid}:"), digest.clone()] {
        assert_sqlstate!(append(&other, "s", &forged).await, "SE008");
        assert!(!release(&other, "s", &forged).await);
        let extend = format!("session_extend('s', '{forged}', '1 minute', allow_expired => true)");
        assert_sqlstate!(try_lease(&other, &extend).await, "SE008");
        bring(&other, &forged).await;
        let refused = other.raw_append("s", "1").await.expect_err("a forged lease");
        assert!(["SE008", "SE009"].contains(&sqlstate(&refused)), "{refused:?}");
        bring(&other, "").await;
    }
    // Each claim has a nonce of its own, and another tenant has no use for this one.
    bring(&other, &held.text).await;
    other.run("set agent_sessions.tenant = 'other'").await;
    assert_eq!(other.raw_append("s", "1").await.expect("nothing visible"), 0);
    assert_sqlstate!(append(&other, "s", &held.text).await, "SE002");
    assert!(other.query("select from agent_sessions.lease_status", &[]).await.expect("leases").is_empty());
    assert!(release(&writer, "s", &held.text).await);
    assert_ne!(claim(&writer, "s").await.text, held.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_writer_gives_itself_a_lease() {
    let db = Database::create("lease_columns").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    for change in [
        "lease_digest = sha256('nonce')",
        "lease_fence = 9",
        "lease_holder = 'me'",
        "lease_expires_at = now()",
        "title = 'T', lease_digest = null",
    ] {
        let update = format!("update agent_sessions.session set {change} where session_id = 's'");
        assert_sqlstate!(write(&writer, &update).await, "42501");
    }
    for column in ["lease_digest", "lease_fence", "lease_holder", "lease_expires_at"] {
        let insert = format!("insert into agent_sessions.session (session_id, {column}) values ('t', null)");
        assert_sqlstate!(write(&writer, &insert).await, "42501");
    }
    assert_sqlstate!(write(&writer, "select nextval('agent_sessions.lease_fence_seq')").await, "42501");
    assert_sqlstate!(write(&writer, "select agent_sessions.session_break_lease('s')").await, "42501");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_follows_the_rules_of_leases() {
    let db = Database::create("lease_owner").await;
    let (owner, writer) = (db.owner().await, db.writer().await);
    let earlier = claim(&writer, "s").await;
    assert!(release(&writer, "s", &earlier.text).await);
    let sid: i64 = owner.value("select sid from agent_sessions.session", &[]).await;
    let fence = async || owner.value::<i64>("select lease_fence from agent_sessions.session", &[]).await;
    let update = async |change: &str| write(&owner, &format!("update agent_sessions.session set {change}")).await;
    let take = |nonce: &str, until: &str| {
        format!("lease_digest = sha256('{nonce}'), lease_holder = 'owner', lease_expires_at = {until}")
    };
    let soon = "clock_timestamp() + interval '1 hour'";

    for until in ["clock_timestamp() + interval '25 hours'", "'infinity'"] {
        assert_sqlstate!(update(&take("n", until)).await, "SE001");
    }
    assert_sqlstate!(update(&take("n", "null")).await, "23514");
    assert_sqlstate!(update(&format!("lease_expires_at = {soon}")).await, "23514");
    assert_eq!(update("lease_fence = 1").await.expect("the fence is the trigger's"), 1);
    assert_eq!(fence().await, earlier.fence);

    let revision = "select revision from agent_sessions.session";
    update(&(take("first", soon) + ", lease_fence = 1000000")).await.expect("a claim by raw SQL");
    let first = fence().await;
    assert!(first > earlier.fence && first < 1_000_000, "{first}");
    assert_eq!(owner.value::<i64>(revision, &[]).await, 0);
    append(&writer, "s", &format!("{sid}:first")).await.expect("its nonce is the lease");
    assert_sqlstate!(writer.try_append("s", "1").await, "SE009");
    assert!(try_lease(&writer, "session_claim('s', '1 minute')").await.expect("no error").is_none());

    assert_sqlstate!(update(&take("second", soon)).await, "SE009");
    bring(&owner, &format!("{sid}:other")).await;
    assert_sqlstate!(update(&take("second", soon)).await, "SE008");
    bring(&owner, "").await;
    assert_sqlstate!(update("lease_expires_at = clock_timestamp() + interval '25 hours'").await, "SE001");
    for (change, code) in [("title = 'T'", "SE009"), ("cost = 1", "SE009"), ("revision = revision + 1", "SE009")] {
        assert_sqlstate!(update(change).await, code);
    }
    assert_sqlstate!(write(&owner, "delete from agent_sessions.session").await, "SE009");
    assert_eq!(fence().await, first);
    append(&writer, "s", &format!("{sid}:first")).await.expect("the holder is undisturbed");

    update("lease_expires_at = clock_timestamp() + interval '23 hours', lease_fence = 0").await.expect("longer");
    assert_eq!(fence().await, first);
    update("lease_digest = null, lease_expires_at = null, lease_fence = 0").await.expect("a break");
    assert_eq!(fence().await, first);
    assert_sqlstate!(append(&writer, "s", &format!("{sid}:first")).await, "SE008");
    let held = claim(&writer, "s").await;
    assert!(held.fence > first);

    // A lease is not inserted either.
    let insert = "insert into agent_sessions.session (tenant, agent_id, session_id, lease_digest, lease_holder, lease_expires_at)
                  values ('', '', 't', sha256('n'), 'owner', clock_timestamp() + interval '1 hour')";
    write(&owner, insert).await.expect("a session");
    writer.append("t", "1").await;
}

/// What is no digest is no lease; functions and triggers must not differ about it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_digest_has_32_bytes() {
    let db = Database::create("lease_digest").await;
    let owner = db.owner().await;
    owner.create_session("s").await;
    for digest in ["'\\x'", "'\\x01'", "sha512('n')"] {
        let update = format!(
            "update agent_sessions.session set lease_digest = {digest}, lease_expires_at = clock_timestamp() + interval '1 hour'"
        );
        let refused = write(&owner, &update).await.expect_err("no digest");
        assert!(["SE001", "23514"].contains(&sqlstate(&refused)), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_committed_durably() {
    let db = Database::create("lease_durable").await;
    let (writer, owner) = (db.writer().await, db.owner().await);
    session(&writer).await;
    owner
        .run(
            "create schema app;
             grant usage on schema app to public;
             create function app.take() returns bigint language plpgsql set search_path = pg_catalog as $$
             begin return (select fence from agent_sessions.session_claim('s', '1 minute')); end $$",
        )
        .await;
    let setting = "select current_setting('synchronous_commit')";
    for call in [
        "select * from agent_sessions.session_claim('s', '1 minute')",
        "select * from agent_sessions.session_claim('new', '1 minute', wait => '1 second')",
        "select * from agent_sessions.session_claim_next(ttl => '1 minute')",
        "select app.take()",
        "savepoint p; select * from agent_sessions.session_claim('s', '1 minute'); release p",
        "select agent_sessions.session_delta('s', 1, 1, 'c', durable => false); select agent_sessions.session_claim('s', '1 minute')",
    ] {
        for before in ["off", "on", "local"] {
            writer.run(&format!("set synchronous_commit = {before}")).await;
            writer.begin("read committed").await;
            assert!(write(&writer, call).await.unwrap_or_else(|error| panic!("{call}: {error:?}")) > 0, "{call}");
            let during: String = writer.value(setting, &[]).await;
            assert_ne!(during, "off", "{call}");
            if before != "off" {
                assert_eq!(during, before, "{call}");
            }
            writer.rollback().await;
            assert_eq!(writer.value::<String>(setting, &[]).await, before, "{call}");
        }
    }
    writer.run("set synchronous_commit = off").await;
    claim(&writer, "s").await;
    assert_eq!(writer.value::<String>(setting, &[]).await, "off", "it is the client's again after the claim");
}

/// Under one snapshot, what was claimed meanwhile is a serialization failure, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn old_snapshots_claim_nothing() {
    let db = Database::create("lease_snapshots").await;
    let (a, b) = (Arc::new(db.writer().await), db.writer().await);
    let snapshot = "select count(*) from agent_sessions.session";
    a.run("set statement_timeout = '20s'").await;
    for isolation in ["repeatable read", "serializable"] {
        let begin = async || {
            a.begin(isolation).await;
            a.value::<i64>(snapshot, &[]).await
        };
        b.create_session(isolation).await;
        let s = isolation;
        let claims = [format!("session_claim('{s}', '1 minute')"), "session_claim_next(ttl => '1 minute')".to_owned()];
        let waiting = format!("session_claim('{s}', '1 minute', wait => '300 milliseconds')");

        // Nothing has happened meanwhile.
        for call in [&claims[0], &claims[1], &waiting] {
            begin().await;
            let held = lease(&a, call).await;
            append(&a, s, &held.text).await.expect("the holder writes");
            lease(&a, &format!("session_extend('{s}', '{}', '1 minute')", held.text)).await;
            assert!(release(&a, s, &held.text).await);
            a.commit().await;
        }
        // Claimed meanwhile.
        for call in &claims {
            begin().await;
            let held = claim(&b, s).await;
            assert_sqlstate!(try_lease(&a, call).await, "40001");
            a.rollback().await;
            assert!(release(&b, s, &held.text).await);
        }
        begin().await;
        let held = claim(&b, s).await;
        match try_lease(&a, &waiting).await {
            Ok(lease) => assert!(lease.is_none(), "{lease:?}"),
            Err(error) => assert_eq!(sqlstate(&error), "40001", "{error:?}"),
        }
        a.rollback().await;
        assert!(release(&b, s, &held.text).await);
        // Claimed and released meanwhile.
        for call in [&claims[0], &claims[1], &waiting] {
            begin().await;
            let held = claim(&b, s).await;
            assert!(release(&b, s, &held.text).await);
            assert_sqlstate!(try_lease(&a, call).await, "40001");
            a.rollback().await;
        }
        // Claimed by a transaction that is still open.
        begin().await;
        b.begin("read committed").await;
        let held = claim(&b, s).await;
        let blocked = tokio::spawn({
            let (a, call) = (a.clone(), claims[0].clone());
            async move { try_lease(&a, &call).await }
        });
        db.wait_until_blocked(a.pid).await;
        b.commit().await;
        assert_sqlstate!(blocked.await.expect("the blocked claim"), "40001");
        a.rollback().await;
        assert!(release(&b, s, &held.text).await);
        // Created meanwhile.
        for (number, wait) in ["0", "300 milliseconds"].into_iter().enumerate() {
            let created = format!("{isolation} {number}");
            begin().await;
            b.create_session(&created).await;
            let call = format!("session_claim('{created}', '1 minute', wait => '{wait}')");
            assert_sqlstate!(try_lease(&a, &call).await, "40001");
            a.rollback().await;
            b.run(&format!("select agent_sessions.session_delete('{created}')")).await;
        }
        // Extended by another meanwhile.
        let held = claim(&a, s).await;
        let extend = format!("session_extend('{s}', '{}', '1 minute')", held.text);
        begin().await;
        lease(&b, &extend).await;
        assert_sqlstate!(try_lease(&a, &extend).await, "40001");
        a.rollback().await;
        assert!(release(&a, s, &held.text).await);
        b.run(&format!("select agent_sessions.session_delete('{s}')")).await;
    }
}

/// A function that fails takes the lease that it was given along.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_call_leaves_no_lease_behind() {
    let db = Database::create("lease_left").await;
    let writer = db.writer().await;
    db.superuser()
        .await
        .run(
            "create function public.refuse() returns trigger language plpgsql as $$
             begin raise exception 'refused'; end $$;
             create trigger zz_refuse before insert on agent_sessions.session_item
               for each row when (new.payload::text = '\"poison\"') execute function public.refuse();
             create trigger zz_refuse before insert on agent_sessions.session_delta
               for each row when (new.chunk = 'poison') execute function public.refuse();
             create trigger zz_refuse before update on agent_sessions.session
               for each row when (new.title = 'poison') execute function public.refuse()",
        )
        .await;
    session(&writer).await;
    let held = claim(&writer, "s").await;
    for call in [
        "session_append('s', '\"poison\"', lease => 'LEASE')",
        "session_append_batch('s', '[{\"payload\":\"poison\"}]', lease => 'LEASE')",
        "session_revise('s', '\"poison\"', target => 0, lease => 'LEASE')",
        "session_delta('s', 1, 1, 'poison', lease => 'LEASE')",
        "session_set('s', title => 'poison', lease => 'LEASE')",
        "session_delta('s', 1, 99, 'out of order', lease => 'LEASE')",
    ] {
        writer.begin("read committed").await;
        writer.run("savepoint p").await;
        let sql = format!("select * from agent_sessions.{}", call.replace("LEASE", &held.text));
        let failed = write(&writer, &sql).await.expect_err("the call fails");
        assert!(["P0001", "SE013"].contains(&sqlstate(&failed)), "{call}: {failed:?}");
        for raw in raw_writes() {
            writer.run("rollback to p").await;
            let refused = write(&writer, &raw).await;
            assert_eq!(refused.as_ref().err().map(sqlstate), Some("SE009"), "after {call}: {raw}: {refused:?}");
        }
        writer.rollback().await;
    }
    // Nor does one that succeeds.
    append(&writer, "s", &held.text).await.expect("the holder writes");
    assert_sqlstate!(writer.raw_append("s", "1").await, "SE009");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_not_deleted_from_under_the_holder_of_its_sub_session() {
    let db = Database::create("lease_children").await;
    let writer = db.writer().await;
    for session in ["child", "grandchild"] {
        writer.create_session("parent").await;
        writer.run("select agent_sessions.session_create('child', parent_session_id => 'parent')").await;
        writer.run("select agent_sessions.session_create('grandchild', parent_session_id => 'child')").await;
        writer.append("grandchild", "1").await;
        let below = claim(&writer, session).await;
        let before = everything(&db).await;
        let deletes = [
            "select agent_sessions.session_delete('parent')",
            "delete from agent_sessions.session where session_id = 'parent'",
        ];
        for delete in deletes {
            assert_sqlstate!(write(&writer, delete).await, "SE009");
        }
        let parent = claim(&writer, "parent").await;
        let both = everything(&db).await;
        let delete = format!("select agent_sessions.session_delete('parent', lease => '{}')", parent.text);
        assert_sqlstate!(write(&writer, &delete).await, "SE009");
        assert_eq!(everything(&db).await, both);
        assert!(release(&writer, "parent", &parent.text).await);
        assert_eq!(everything(&db).await.len(), before.len());

        let parent = claim(&writer, "parent").await;
        bring(&writer, &below.text).await;
        writer.begin("read committed").await;
        let delete = format!("select agent_sessions.session_delete('parent', lease => '{}')", parent.text);
        assert_eq!(write(&writer, &delete).await.expect("one lease as an argument, one in the setting"), 1);
        writer.rollback().await;
        bring(&writer, &format!("{},{}", parent.text, below.text)).await;
        assert_eq!(write(&writer, deletes[1]).await.expect("with both leases"), 1);
        bring(&writer, "").await;
        assert!(everything(&db).await.is_empty());
    }
}

/// As on a standby.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_transaction_claims_nothing() {
    let db = Database::create("lease_read_only").await;
    let admin = db.connect(Role::Named(db.role("admin", Some("admin")).await)).await;
    let held = claim(&admin, "s").await;
    admin.create_session("free").await;
    let before = everything(&db).await;
    for call in [
        "session_claim('s', '1 minute')",
        "session_claim('free', '1 minute')",
        "session_claim('free', '1 minute', wait => '1 second')",
        "session_claim('new', '1 minute')",
        "session_claim_next(ttl => '1 minute')",
        "session_extend('s', 'LEASE', '1 minute')",
        "session_release('s', 'LEASE')",
        "session_break_lease('s')",
    ] {
        admin.run("begin read only").await;
        let sql = format!("select * from agent_sessions.{}", call.replace("LEASE", &held.text));
        assert_sqlstate!(write(&admin, &sql).await, "25006");
        admin.rollback().await;
    }
    assert_eq!(everything(&db).await, before);
}

/// A heartbeat must not break its holder's compare-and-set.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_moves_no_revision_and_no_position() {
    let db = Database::create("lease_revision").await;
    let writer = db.writer().await;
    session(&writer).await;
    let row = "select (to_jsonb(s) - '{lease_digest,lease_fence,lease_holder,lease_expires_at}'::text[])::text
               from agent_sessions.session s";
    let before: String = writer.value(row, &[]).await;
    let held = claim(&writer, "s").await;
    lease(&writer, &format!("session_extend('s', '{}', '1 hour')", held.text)).await;
    assert_eq!(writer.value::<String>(row, &[]).await, before);
    assert!(release(&writer, "s", &held.text).await);
    assert_eq!(writer.value::<String>(row, &[]).await, before);
    writer.assert_dense("s", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_status_tells_who_holds_what() {
    let db = Database::create("lease_status").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    writer.run("select agent_sessions.session_create('live', owner => 'o', agent_id => 'a')").await;
    let live = lease(&writer, "session_claim('live', '1 minute', holder => 'h', agent_id => 'a')").await;
    let ended = claim(&writer, "expired").await;
    let released = claim(&writer, "released").await;
    expire(&db, "expired").await;
    assert!(release(&writer, "released", &released.text).await);
    let status =
        "select session_id, agent_id, owner, holder, fence, live, remaining > '0', expires_at > clock_timestamp()
                  from agent_sessions.lease_status order by session_id";
    let rows = reader.query(status, &[]).await.expect("leases");
    type Status = (String, String, Option<String>, Option<String>, i64, bool, bool, bool);
    let rows: Vec<Status> =
        rows.iter().map(|r| (r.get(0), r.get(1), r.get(2), r.get(3), r.get(4), r.get(5), r.get(6), r.get(7))).collect();
    let text = |text: &str| text.to_owned();
    assert_eq!(
        rows,
        [
            (text("expired"), text(""), None, None, ended.fence, false, false, false),
            (text("live"), text("a"), Some(text("o")), Some(text("h")), live.fence, true, true, true),
        ]
    );
    let shown = "select lease_holder from agent_sessions.session_get('live', agent_id => 'a')";
    assert_eq!(reader.value::<String>(shown, &[]).await, "h");
    reader.run("set agent_sessions.isolation = 'agent'; set agent_sessions.agent = 'a'").await;
    assert_eq!(reader.query(status, &[]).await.expect("leases").len(), 1);
}

/// The lease columns are written as the owner, whose rows the policies may restrict as well.
#[tokio::test(flavor = "multi_thread")]
async fn leases_work_under_forced_policies_and_bound_tenants() {
    let db = Database::create("lease_forced").await;
    let bound = db.role("bound", Some("admin")).await;
    let owner = db.owner().await;
    owner.run(&format!("select agent_sessions.tenant_bind('{bound}', 'acme')")).await;
    owner.run("select agent_sessions.access_force_rls(true)").await;
    let bound = db.connect(Role::Named(bound)).await;
    assert_sqlstate!(try_lease(&bound, "session_claim('s', '1 minute')").await, "SE019");
    bound.run("set agent_sessions.tenant = 'acme'").await;
    let held = claim(&bound, "s").await;
    append(&bound, "s", &held.text).await.expect("the holder writes");
    assert_sqlstate!(bound.try_append("s", "1").await, "SE009");
    let extended = lease(&bound, &format!("session_extend('s', '{}', '2 minutes')", held.text)).await;
    assert_eq!(extended.fence, held.fence);
    assert!(release(&bound, "s", &held.text).await);
    let next = lease(&bound, "session_claim_next(ttl => '1 minute')").await;
    assert!(next.fence > held.fence);
    assert!(bound.value::<bool>("select agent_sessions.session_break_lease('s')", &[]).await);
}
