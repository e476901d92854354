//! Timeouts, cancels and terminated backends, while a call waits and while it works: an ordinary error, nothing half-written,
//! and a backend that goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_sessions_tests::{Connection, Database, Error, Role, assert_sqlstate, sqlstate};

use crate::crash::say;

/// How a call is ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    StatementTimeout,
    LockTimeout,
    Cancel,
    Terminate,
}

impl End {
    const ALL: [End; 4] = [End::StatementTimeout, End::LockTimeout, End::Cancel, End::Terminate];

    fn code(self) -> &'static str {
        match self {
            End::StatementTimeout | End::Cancel => "57014",
            End::LockTimeout => "55P03",
            End::Terminate => "57P01",
        }
    }

    fn setting(self) -> &'static str {
        match self {
            End::StatementTimeout => "set statement_timeout = '150 ms'",
            End::LockTimeout => "set lock_timeout = '100 ms'",
            End::Cancel | End::Terminate => "select 1",
        }
    }

    async fn send(self, superuser: &Connection, pid: i32) {
        let function = match self {
            End::Cancel => "pg_cancel_backend",
            End::Terminate => "pg_terminate_backend",
            End::StatementTimeout | End::LockTimeout => return,
        };
        assert!(superuser.value::<bool>(&format!("select {function}($1)"), &[&pid]).await);
    }
}

/// All that is stored, in one text.
async fn stored(superuser: &Connection) -> String {
    let tables = "select string_agg(format('select %L, count(*), sum(hashtextextended(t::text, 0)) from %s t', c.oid::regclass, c.oid::regclass), ' union all ')
                  from pg_class c where c.relnamespace = 'agent_sessions'::regnamespace and c.relkind = 'r'";
    let tables: String = superuser.value(tables, &[]).await;
    superuser.value(&format!("select string_agg(r::text, '|' order by r::text) from ({tables}) r"), &[]).await
}

/// The calls that wait for whoever writes to the session `s` or the stream `e`.
const WAITING: [&str; 15] = [
    "session_append('s', '1')",
    "session_append_batch('s', (select json_agg(json_build_object('payload', n)) from generate_series(1, 200) n))",
    "session_revise('s', '1', target => 0)",
    "session_retract('s', targets => '{0}')",
    "session_pop('s')",
    "session_delta('s', target => 1, chunk_no => 0, chunk => 'x')",
    "session_set('s', title => 't')",
    "session_branch('s', new_session_id => 'b', seed => '1')",
    "session_claim('s', '1 minute')",
    "session_trim('s', keep_from => 1)",
    "session_erase('s', target => 0)",
    "session_delete('s')",
    "session_flatten('heir')",
    "audit_append('login', stream => 'e')",
    "audit_append_batch('e', '[{\"action\":\"a\"},{\"action\":\"b\"}]')",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_ends_with_an_ordinary_error_and_its_backend_goes_on() {
    let db = Database::create("interrupts_waiting").await;
    let (holder, superuser) = (db.writer().await, db.superuser().await);
    holder.create_session("s").await;
    holder.append("s", "0").await;
    holder.run("select agent_sessions.session_append('s', '\"\"', open => true)").await;
    holder.run("select agent_sessions.session_branch('s', new_session_id => 'heir')").await;
    holder.run("select agent_sessions.audit_append('login', stream => 'e')").await;
    let before = stored(&superuser).await;
    for call in WAITING {
        let call = format!("select * from agent_sessions.{call}");
        holder.run("begin; select agent_sessions.audit_append('held', stream => 'e')").await;
        holder.append("s", "\"held\"").await;
        holder.append("heir", "\"held\"").await;
        for end in End::ALL {
            let waiter = Arc::new(db.writer().await);
            waiter.run(end.setting()).await;
            let waiting = tokio::spawn({
                let (waiter, call) = (waiter.clone(), call.clone());
                async move { waiter.batch_execute(&call).await }
            });
            if matches!(end, End::Cancel | End::Terminate) {
                db.wait_until_blocked(waiter.pid).await;
            }
            end.send(&superuser, waiter.pid).await;
            let ended = waiting.await.expect("the call does not panic");
            assert_eq!(ended.as_ref().err().map(sqlstate), Some(end.code()), "{call}, {end:?}: {ended:?}");
            if end != End::Terminate {
                assert_goes_on(&waiter, &format!("{call}, {end:?}")).await;
            }
        }
        holder.rollback().await;
        assert_eq!(stored(&superuser).await, before, "{call}");
    }
    assert!(holder.verify("s").await.ok);
}

/// The backend is in no transaction, and writes and reads.
async fn assert_goes_on(connection: &Connection, after: &str) {
    if let Err(error) = connection.batch_execute("select agent_sessions.session_get('s')").await {
        panic!("{after}: the next call fails: {error:?}");
    }
    connection.run("set statement_timeout = 0; set lock_timeout = 0; begin").await;
    connection.run("select agent_sessions.session_append('other', '1', on_missing => 'create')").await;
    connection.rollback().await;
}

const ENTRIES: usize = 100_000;

const PATIENCE: Duration = Duration::from_millis(500);

/// What takes long, and whether it writes.
const WORKING: [(&str, bool); 8] = [
    ("session_verify('s')", false),
    ("audit_verify('e')", false),
    ("session_history('s')", false),
    ("session_stats('s')", false),
    ("session_append_batch('s', $batch)", true),
    ("audit_append_batch('e', $events)", true),
    ("session_flatten('heir')", true),
    ("session_retract('s', targets => array(select n from generate_series(0, 99999) n))", true),
];

/// An end comes at several moments of the work, so that it meets different parts of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_works_long_is_cancelled_at_once() {
    let db = Database::create("interrupts_working").await;
    let (writer, superuser) = (db.writer().await, db.superuser().await);
    superuser
        .run(&format!(
            "create table public.big as
               select (select json_agg(json_build_object('payload', n, 'item_id', n::text)) from generate_series(1, {ENTRIES}) n) as batch,
                      (select json_agg(json_build_object('action', 'a', 'payload', n)) from generate_series(1, {ENTRIES}) n) as events;
             grant select on public.big to public"
        ))
        .await;
    writer
        .run(
            "select count(*) from (select agent_sessions.session_append_batch('s', batch, on_missing => 'create') from public.big) b;
             select count(*) from (select agent_sessions.audit_append_batch('e', events) from public.big) b;
             select agent_sessions.session_branch('s', new_session_id => 'heir')",
        )
        .await;
    let mut told = Vec::new();
    for (call, writes) in WORKING {
        let call = call.replace("$batch", "(select batch from public.big)");
        let call = call.replace("$events", "(select events from public.big)");
        let call = format!("select count(*) from agent_sessions.{call}");
        // Other ids than those that are stored, which would be replayed.
        let call =
            call.replace("select batch", "select replace(batch::text, '\"item_id\" : \"', '\"item_id\" : \"x')::json");
        let before = if writes { Some(stored(&superuser).await) } else { None };
        let mut late = Vec::new();
        for milliseconds in [15, 40, 100, 250, 600] {
            let worker = db.writer().await;
            // Of the transaction, so that what follows its end has all the time that it needs.
            worker.run(&format!("begin; set local statement_timeout = '{milliseconds} ms'")).await;
            let begun = Instant::now();
            let ended = worker.batch_execute(&call).await;
            let took = begun.elapsed();
            let is_done = ended.is_ok();
            if let Err(error) = ended {
                assert_eq!(sqlstate(&error), "57014", "{call}: {error:?}");
                late.push(took.saturating_sub(Duration::from_millis(milliseconds)));
            }
            // A timeout that comes with the last step of the call ends what comes next.
            if let Err(error) = worker.batch_execute("rollback").await {
                assert!(is_done && sqlstate(&error) == "57014", "{call}: {error:?}");
                worker.rollback().await;
            }
            assert_goes_on(&worker, &call).await;
            if is_done {
                break;
            }
        }
        late.sort();
        // The median: the machine has other things to do.
        let usual = *late.get(late.len() / 2).expect("it is cancelled before it is done");
        assert!(usual < PATIENCE, "{call}: {late:?}");
        told.push(usual);
        if let Some(before) = before {
            assert_eq!(stored(&superuser).await, before, "{call}");
        }
    }
    say(&format!("{ENTRIES} entries and events: a cancel took {:?} at most", told.iter().max()));
    assert!(writer.verify("s").await.ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_terminated_at_work_leaves_nothing() {
    let db = Database::create("interrupts_terminated").await;
    let (writer, superuser) = (db.writer().await, db.superuser().await);
    writer.create_session("s").await;
    let before = stored(&superuser).await;
    for round in 0..6 {
        let worker = Arc::new(db.connect(Role::Writer).await);
        let batch = "select count(*) from agent_sessions.session_append_batch('s',
            (select json_agg(json_build_object('payload', n)) from generate_series(1, 100000) n))";
        let working = tokio::spawn({
            let worker = worker.clone();
            async move { worker.batch_execute(batch).await }
        });
        tokio::time::sleep(Duration::from_millis(60 << round)).await;
        End::Terminate.send(&superuser, worker.pid).await;
        let ended: Result<(), Error> = working.await.expect("the call does not panic");
        if round == 0 {
            assert_sqlstate!(ended, "57P01");
        } else if ended.is_ok() {
            break;
        }
        assert_eq!(stored(&superuser).await, before, "round {round}");
    }
    let entries = writer.verify("s").await.entries;
    assert!([0, 100_000].contains(&entries), "{entries}");
}
