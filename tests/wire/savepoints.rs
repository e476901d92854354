//! Savepoints: of what is rolled back to one nothing stays, in the tables or in the backend.

use std::time::Duration;

use agent_sessions_tests::{Append, Connection, Database, assert_sqlstate};

use crate::roles::functions::FUNCTIONS;
use crate::roles::{Level, with_a_session};

/// All that the owner sees at this moment, in one text.
async fn seen(owner: &Connection) -> String {
    let tables =
        "select string_agg(format('select %L, coalesce(string_agg(t::text, ''|'' order by t::text), '''') from %s t',
                    c.oid::regclass, c.oid::regclass), ' union all ')
                  from pg_class c where c.relnamespace = 'agent_sessions'::regnamespace and c.relkind = 'r'";
    let tables: String = owner.value(tables, &[]).await;
    owner.value(&format!("select string_agg(r::text, '|' order by r::text) from ({tables}) r"), &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_stays_of_a_writing_function_that_is_rolled_back_to_a_savepoint() {
    let db = Database::create("savepoints_functions").await;
    with_a_session(&db.writer().await).await;
    let other = db.role("other", None).await;
    let owner = db.owner().await;
    let volatile = "select provolatile::text from pg_proc
                    where pronamespace = 'agent_sessions'::regnamespace and proname = $1";
    let settings = "select current_setting('agent_sessions.tenant') || current_setting('synchronous_commit')";
    owner.run("set synchronous_commit = off; select agent_sessions.session_claim('leased', '1 hour')").await;
    let before = seen(&owner).await;
    let mut changing = 0;
    for function in FUNCTIONS.iter().filter(|function| function.caller != Level::Nobody) {
        let call = function.usual_call(&other);
        if owner.value::<String>(volatile, &[&function.name]).await != "v" {
            continue;
        }
        owner.begin("read committed").await;
        for _ in 0..2 {
            owner.run(&format!("savepoint part; {call}")).await;
            changing += i32::from(seen(&owner).await != before);
            owner.run("rollback to part").await;
            assert_eq!(seen(&owner).await, before, "{call}");
        }
        assert_eq!(owner.value::<String>(settings, &[]).await, "off", "{call}");
        // What comes next in the transaction finds its own way: by function, by plain SQL, and twice the same.
        owner.run(&format!("savepoint part; {call}; release part; rollback to part")).await;
        assert_eq!(Append::to("s", "\"after\"").item_id("after").run(&owner).await.expect("an append"), 3, "{call}");
        assert_eq!(owner.raw_append_at("s", 4, "1").await.expect("a plain INSERT"), 1, "{call}");
        owner.assert_dense("s", 5).await;
        owner.rollback().await;
        assert_eq!(seen(&owner).await, before, "{call}");
    }
    assert!(changing >= 36, "{changing} of the calls write something");
}

/// A claim that is rolled back has given nothing, and what it was given does not write.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_rolled_back_admits_nobody_and_keeps_nobody_out() {
    let db = Database::create("savepoints_leases").await;
    let (writer, rival) = (db.writer().await, db.writer().await);
    writer.create_session("s").await;
    let claim = "select lease, fence from agent_sessions.session_claim('s', '1 hour')";
    writer.run("begin; savepoint part").await;
    let row = writer.query_one(claim, &[]).await.expect("a claim");
    let (lease, fence): (String, i64) = (row.get(0), row.get(1));
    assert_eq!(Append::to("s", "0").lease(&lease).run(&writer).await.expect("with its lease"), 0);
    // A function that fails in between had the lease, too.
    writer.run("savepoint within").await;
    assert_sqlstate!(Append::to("s", "1").lease(&lease).expected_position(7).run(&writer).await, "SE007");
    writer.run("rollback to within").await;
    assert_sqlstate!(writer.raw_append("s", "1").await, "SE009");
    writer.run("rollback to part").await;
    assert_eq!(writer.raw_append("s", "\"free\"").await.expect("no lease is live"), 1);
    writer.run("savepoint part").await;
    assert_sqlstate!(Append::to("s", "2").lease(&lease).run(&writer).await, "SE008");
    writer.run("rollback to part; commit").await;
    let next: i64 = rival.query_one(claim, &[]).await.expect("a claim").get(1);
    assert!(next > fence, "{next} after {fence}");
    rival.assert_dense("s", 1).await;
}

async fn active_long_ago(db: &Database) {
    let long_ago = "set session_replication_role = replica;
                    update agent_sessions.session set active_at = clock_timestamp() - interval '1 hour'";
    db.superuser().await.run(long_ago).await;
}

/// Two entries, of which the second is refused.
const REFUSED: &str = "insert into agent_sessions.session_item (sid, op, payload)
    select sid, op, '1' from agent_sessions.session, unnest(array['append', 'nonsense']) op where session_id = 'left'";

/// A session that a statement began to write to, before it failed, is neither touched nor locked by those after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_not_written_to_after_all_is_neither_active_nor_locked() {
    let db = Database::create("savepoints_activity").await;
    let (writer, rival) = (db.writer().await, db.writer().await);
    writer.create_session("left").await;
    writer.create_session("written").await;
    rival.run("set lock_timeout = '2s'").await;
    let active = "select string_agg(session_id, ',' order by session_id) from agent_sessions.session
                  where active_at > clock_timestamp() - interval '1 minute'";
    for in_a_block in [false, true] {
        active_long_ago(&db).await;
        writer.begin("read committed").await;
        if in_a_block {
            writer.run(&format!("do $do$ begin {REFUSED}; exception when others then null; end $do$")).await;
        } else {
            writer.run("savepoint part").await;
            assert_sqlstate!(writer.batch_execute(REFUSED).await, "SE001");
            writer.run("rollback to part").await;
        }
        writer.raw_append("written", "1").await.expect("a plain INSERT");
        rival.append("left", "1").await;
        writer.commit().await;
        active_long_ago(&db).await;
        writer.begin("read committed").await;
        writer.run("savepoint part").await;
        assert_sqlstate!(writer.batch_execute(REFUSED).await, "SE001");
        writer.run("rollback to part; release part").await;
        writer.raw_append("written", "1").await.expect("a plain INSERT");
        writer.commit().await;
        assert_eq!(writer.value::<String>(active, &[]).await, "written", "in a block: {in_a_block}");
    }
    tokio::time::timeout(Duration::from_secs(10), rival.append("left", "2")).await.expect("it is free");
}
