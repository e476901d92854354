//! Expiring: sessions whose time has come go, whole, without waiting and without touching what is held.

use agent_sessions_tests::{Connection, Database, Error, Role, assert_sqlstate, detail, together};
use serde_json::json;

use super::{
    assert_verifies, branch, call, claim, end_lease, everything, history, orphans, session_of, stored, tamperer,
    try_call,
};

/// Creates a session with an item. Its time to go is so many seconds ago; none if NULL.
async fn session(writer: &Connection, name: &str, expired_for: Option<i32>, parent: Option<&str>) {
    let create =
        "select session_id from agent_sessions.session_create(session_id => $1::text, items => '[{\"payload\":0}]',
                  expires_at => clock_timestamp() - make_interval(secs => $2::int), parent_session_id => $3::text)";
    assert_eq!(writer.value::<String>(create, &[&name, &expired_for, &parent]).await, name);
}

/// Sets back when a session was last active.
async fn idle(db: &Database, session: &str, age: &str) {
    let set = format!(
        "update agent_sessions.session set active_at = clock_timestamp() - interval '{age}' where session_id = '{session}'"
    );
    assert_eq!(tamperer(db).await.execute(&set, &[]).await.expect("an update"), 1);
}

async fn expire(connection: &Connection) -> i64 {
    call(connection, "session_expire()").await
}

/// A call that would wait for a lock is ended.
async fn impatient(db: &Database) -> Connection {
    let connection = db.writer().await;
    connection.run("set statement_timeout = '5 s'").await;
    connection
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_go_when_their_time_has_passed() {
    let db = Database::create("expire_time").await;
    let writer = db.writer().await;
    session(&writer, "past", Some(1), None).await;
    session(&writer, "long past", Some(1_000_000), None).await;
    session(&writer, "future", Some(-3600), None).await;
    session(&writer, "none", None, None).await;
    call(&writer, "session_append('past', '\"\"', open => true)").await;
    writer.run("select agent_sessions.session_delta('past', 1, 0, 'chunk')").await;
    idle(&db, "none", "10 years").await;
    assert_eq!(expire(&writer).await, 2);
    assert_eq!(stored(&db).await, ["future", "none"]);
    assert_eq!(orphans(&db).await, 0);
    assert_eq!(expire(&writer).await, 0);
    // The time is the session's to move.
    writer.run("select agent_sessions.session_set('future', expires_at => clock_timestamp())").await;
    assert_eq!(expire(&writer).await, 1);
    assert_eq!(stored(&db).await, ["none"]);
    assert_verifies(&writer, "none", 1, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_age_those_go_too_that_were_inactive_for_longer() {
    let db = Database::create("expire_age").await;
    let writer = db.writer().await;
    for (name, age) in
        [("new", "0"), ("hour", "1 hour"), ("week", "7 days"), ("month", "32 days"), ("year", "400 days")]
    {
        session(&writer, name, None, None).await;
        idle(&db, name, age).await;
    }
    session(&writer, "expired", Some(1), None).await;
    session(&writer, "later", Some(-3600), None).await;
    idle(&db, "later", "400 days").await;
    assert_eq!(call(&writer, "session_expire(older_than => null)").await, 1);
    assert_eq!(call(&writer, "session_expire(older_than => '2 years')").await, 0);
    assert_eq!(call(&writer, "session_expire(older_than => '12 months')").await, 2, "whatever their time");
    assert_eq!(stored(&db).await, ["hour", "month", "new", "week"]);
    session(&writer, "expired", Some(1), None).await;
    assert_eq!(call(&writer, "session_expire(older_than => '1 month')").await, 2);
    assert_eq!(stored(&db).await, ["hour", "new", "week"]);
    assert_eq!(call(&writer, "session_expire(older_than => '6 days 23 hours 59 minutes')").await, 1);
    // An append is what makes a session active.
    writer.append("hour", "1").await;
    assert_eq!(call(&writer, "session_expire(older_than => '59 minutes')").await, 0);
    assert_eq!(call(&writer, "session_expire(older_than => '0')").await, 2);
    assert!(everything(&db).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_calls_are_refused_and_delete_nothing() {
    let db = Database::create("expire_arguments").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    session(&writer, "s", Some(1), None).await;
    idle(&db, "s", "1 year").await;
    let before = everything(&db).await;
    for (arguments, argument) in [
        ("older_than => '-1 second'", "older_than"),
        ("older_than => '-1 day'", "older_than"),
        ("older_than => '-1 month'", "older_than"),
        ("older_than => '1 month -40 days'", "older_than"),
        ("max_rows => -1", "max_rows"),
        ("max_rows => -2147483648, older_than => '1 day'", "max_rows"),
    ] {
        let error = assert_sqlstate!(try_call(&writer, &format!("session_expire({arguments})")).await, "SE001");
        assert_eq!(detail(&error)["argument"], json!(argument), "{arguments}");
    }
    assert_sqlstate!(try_call(&reader, "session_expire()").await, "42501");
    assert_eq!(call(&writer, "session_expire(max_rows => 0)").await, 0);
    assert_eq!(call(&writer, "session_expire(older_than => '1 day', max_rows => 0)").await, 0);
    assert_eq!(everything(&db).await, before);
    assert_eq!(call(&writer, "session_expire(older_than => null, max_rows => null)").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_deletes_so_many_and_the_next_ones_the_rest() {
    let db = Database::create("expire_rows").await;
    let writer = db.writer().await;
    for number in 0..7 {
        session(&writer, &format!("expired {number}"), Some(1), None).await;
        session(&writer, &format!("inactive {number}"), None, None).await;
        idle(&db, &format!("inactive {number}"), "2 days").await;
    }
    session(&writer, "stays", None, None).await;
    let mut deleted = Vec::new();
    while deleted.last() != Some(&0) {
        deleted.push(call(&writer, "session_expire(older_than => '1 day', max_rows => 5)").await);
        assert_eq!(stored(&db).await.len() as i64, 15 - deleted.iter().sum::<i64>());
    }
    assert_eq!(deleted, [5, 5, 4, 0]);
    assert_eq!(stored(&db).await, ["stays"]);

    // A thousand when not said.
    let many = "insert into agent_sessions.session (session_id, expires_at)
                select 'n' || n, clock_timestamp() from generate_series(1, 1002) n";
    for max_rows in ["", "max_rows => null"] {
        assert_eq!(writer.execute(many, &[]).await.expect("many sessions"), 1002);
        assert_eq!(call(&writer, &format!("session_expire({max_rows})")).await, 1000);
        assert_eq!(call(&writer, &format!("session_expire({max_rows})")).await, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_tenants_sessions_of_all_agents_go() {
    let db = Database::create("expire_tenant").await;
    let writer = db.writer().await;
    for (tenant, agent, name) in [("one", "x", "x1"), ("one", "y", "y1"), ("two", "x", "x2"), ("", "", "none")] {
        writer.run(&format!("set agent_sessions.tenant = '{tenant}'; set agent_sessions.agent = '{agent}'")).await;
        session(&writer, name, Some(1), None).await;
    }
    idle(&db, "x2", "1 year").await;
    writer.run("set agent_sessions.tenant = 'one'; set agent_sessions.agent = 'z'").await;
    assert_eq!(call(&writer, "session_expire(older_than => '1 day')").await, 2);
    assert_eq!(stored(&db).await, ["none", "x2"]);
    // The owner and a superuser pass the policies, and get their tenant's alike.
    for (connection, tenant, left) in [(db.owner().await, "two", vec!["none"]), (db.superuser().await, "", vec![])] {
        assert_eq!(call(&connection, "session_expire(max_rows => 0)").await, 0);
        connection.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        assert_eq!(expire(&connection).await, 1);
        assert_eq!(stored(&db).await, left);
    }
    let stranger = db.role("bound", Some("writer")).await;
    db.owner().await.run(&format!("select agent_sessions.tenant_bind('{stranger}', 'two')")).await;
    let bound = db.connect(Role::Named(stranger)).await;
    assert_sqlstate!(try_call(&bound, "session_expire()").await, "SE019");
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_sessions_go_with_their_session_and_not_the_other_way_round() {
    let db = Database::create("expire_below").await;
    let writer = db.writer().await;
    session(&writer, "a", Some(1), None).await;
    session(&writer, "a1", None, Some("a")).await;
    session(&writer, "a2", Some(-3600), Some("a")).await;
    session(&writer, "a11", None, Some("a1")).await;
    session(&writer, "b", None, None).await;
    session(&writer, "b1", Some(1), Some("b")).await;
    session(&writer, "b11", None, Some("b1")).await;
    session(&writer, "c", Some(1), None).await;
    session(&writer, "c1", Some(1), Some("c")).await;
    session(&writer, "c11", Some(2), Some("c1")).await;
    // In the order of their times: c11, a, b1, and c, with which c1 is gone.
    assert_eq!(expire(&writer).await, 4);
    assert_eq!(stored(&db).await, ["b"]);
    assert_eq!(orphans(&db).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_leased_stays_with_all_that_is_above_it() {
    let db = Database::create("expire_leased").await;
    let (writer, holder) = (db.writer().await, db.writer().await);
    let mut leases = Vec::new();
    for (leased, parent) in [("root", None), ("child", Some("root")), ("grandchild", Some("child"))] {
        let name = |level: &str| format!("{leased} {level}");
        for (level, above) in [("root", None), ("child", Some("root")), ("grandchild", Some("child"))] {
            let expired = (level == "root").then_some(1);
            session(&writer, &name(level), expired, above.map(name).as_deref()).await;
        }
        session(&writer, &format!("{leased} beside"), Some(1), Some(&name("root"))).await;
        idle(&db, &name("root"), "1 year").await;
        leases.push((name(leased), claim(&holder, &name(leased)).await, parent));
    }
    session(&writer, "free", Some(1), None).await;
    let both = "session_expire(older_than => '1 day')";
    assert_eq!(call(&writer, both).await, 4, "the free one, and those beside, which are held by nobody");
    assert_eq!(stored(&db).await.len(), 9);
    // Not for the holder either.
    let list: Vec<&str> = leases.iter().map(|(_, lease, _)| lease.as_str()).collect();
    holder.run(&format!("set agent_sessions.lease = '{}'", list.join(","))).await;
    assert_eq!(call(&holder, both).await, 0);
    for (number, (leased, _, _)) in (1..).zip(&leases) {
        end_lease(&db, leased).await;
        assert_eq!(call(&writer, both).await, 1, "{leased}");
        assert_eq!(stored(&db).await.len(), 9 - 3 * number);
    }
    assert!(everything(&db).await.is_empty());
}

/// Under isolation the caller does not see who holds the sub-session of another agent.
#[tokio::test(flavor = "multi_thread")]
async fn an_invisible_sub_sessions_lease_protects_what_is_above_it() {
    let db = Database::create("expire_isolated").await;
    let (writer, isolated) = (db.writer().await, db.writer().await);
    session(&writer, "parent", Some(1), None).await;
    session(&writer, "free", Some(1), None).await;
    let child = "select session_id from agent_sessions.session_create('child', agent_id => 'other',
                 parent_session_id => 'parent', parent_agent_id => '')";
    writer.run(child).await;
    writer.run("select * from agent_sessions.session_claim('child', '1 minute', agent_id => 'other')").await;
    isolated.run("set agent_sessions.isolation = 'agent'").await;
    assert_eq!(expire(&isolated).await, 1, "the one that is free");
    assert_eq!(stored(&db).await, ["child", "parent"]);
    end_lease(&db, "child").await;
    assert_eq!(expire(&isolated).await, 1);
    assert!(everything(&db).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_locked_is_passed_over_without_waiting() {
    let db = Database::create("expire_locked").await;
    let (writer, expirer) = (db.writer().await, impatient(&db).await);
    for write in [
        "session_append('busy', '1')",
        "session_set('busy', title => 'T')",
        "session_claim('busy', '1 minute')",
        "session_branch('busy', new_session_id => 'branch')",
    ] {
        session(&writer, "busy", Some(1), None).await;
        session(&writer, "free", Some(1), None).await;
        writer.begin("read committed").await;
        writer.run(&format!("select * from agent_sessions.{write}")).await;
        assert_eq!(call(&expirer, "session_expire(older_than => '0')").await, 1, "{write}");
        assert_eq!(stored(&db).await, ["busy"], "{write}");
        writer.rollback().await;
        assert_eq!(expire(&expirer).await, 1, "{write}");
    }
    // It counts what it deletes: others are found behind those that are locked.
    session(&writer, "busy", Some(100), None).await;
    session(&writer, "free", Some(1), None).await;
    writer.begin("read committed").await;
    writer.append("busy", "1").await;
    assert_eq!(call(&expirer, "session_expire(max_rows => 1)").await, 1);
    writer.commit().await;
    assert_eq!(stored(&db).await, ["busy"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_locked_below_a_session_is_not_waited_for_either() {
    let db = Database::create("expire_locked_below").await;
    let (writer, expirer) = (db.writer().await, impatient(&db).await);
    for write in [
        "session_append('child', '1')",
        "session_claim('child', '1 minute')",
        "session_create('new child', parent_session_id => 'parent')",
    ] {
        session(&writer, "parent", Some(1), None).await;
        session(&writer, "child", None, Some("parent")).await;
        session(&writer, "free", Some(1), None).await;
        writer.begin("read committed").await;
        writer.run(&format!("select * from agent_sessions.{write}")).await;
        match try_call(&expirer, "session_expire()").await {
            Ok(deleted) => assert_eq!(deleted, Some(1), "{write}"),
            Err(error) => panic!("{write}: {error:?}"),
        }
        assert_eq!(stored(&db).await, ["child", "parent"], "{write}");
        writer.rollback().await;
        assert_eq!(expire(&expirer).await, 1, "{write}");
    }
    assert!(everything(&db).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_an_expiry_finds_the_session_gone() {
    let db = Database::create("expire_waited_for").await;
    let (expirer, writer) = (db.writer().await, std::sync::Arc::new(db.writer().await));
    for write in [
        "session_append('s', '1')",
        "session_set('s', title => 'T')",
        "session_claim('s', '1 minute', on_missing => 'error')",
        "session_branch('s')",
        "session_trim('s', 1)",
    ] {
        session(&writer, "s", Some(1), None).await;
        expirer.begin("read committed").await;
        assert_eq!(expire(&expirer).await, 1);
        let waiting = tokio::spawn({
            let writer = writer.clone();
            async move { writer.batch_execute(&format!("select * from agent_sessions.{write}")).await }
        });
        db.wait_until_blocked(writer.pid).await;
        expirer.commit().await;
        assert_sqlstate!(waiting.await.expect("no panic"), "SE002");
        assert!(everything(&db).await.is_empty(), "{write}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_branches_need_is_hidden_and_goes_with_the_last_of_them() {
    let db = Database::create("expire_branches").await;
    let writer = db.writer().await;
    session_of(&writer, "a", 3).await;
    branch(&writer, "a", 1, "b").await;
    session(&writer, "a child", None, Some("a")).await;
    let expires =
        |session: &str| format!("select agent_sessions.session_set('{session}', expires_at => clock_timestamp())");
    writer.run(&expires("a")).await;
    assert_eq!(expire(&writer).await, 1);
    assert_eq!(stored(&db).await, ["(a)", "b"], "its sub-session goes");
    assert_eq!(history(&writer, "b").await, ["0 0", "1 1"]);
    assert_verifies(&writer, "b", 2, 0).await;
    assert_eq!(expire(&writer).await, 0, "what is hidden is gone for it");
    writer.run(&expires("b")).await;
    assert_eq!(expire(&writer).await, 1);
    assert!(everything(&db).await.is_empty());

    // Both in one call, whichever comes first.
    for (first, second) in [("a", "b"), ("b", "a")] {
        session_of(&writer, "a", 3).await;
        branch(&writer, "a", 1, "b").await;
        writer.append("b", "2").await;
        writer.run(&expires(first)).await;
        writer.run(&expires(second)).await;
        assert_eq!(expire(&writer).await, 2);
        assert!(everything(&db).await.is_empty(), "{first} before {second}");
    }
}

/// Whoever writes to the source of a branch is not in the way of the branch's end.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_goes_while_its_source_is_written() {
    let db = Database::create("expire_busy_source").await;
    let (writer, expirer) = (db.writer().await, impatient(&db).await);
    session_of(&writer, "a", 2).await;
    branch(&writer, "a", 1, "b").await;
    writer.run("select agent_sessions.session_set('b', expires_at => clock_timestamp())").await;
    writer.begin("read committed").await;
    writer.append("a", "2").await;
    assert_eq!(expire(&expirer).await, 1);
    writer.commit().await;
    assert_eq!(stored(&db).await, ["a"]);
    assert_verifies(&writer, "a", 3, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_is_a_sub_session_of_its_source_goes_with_it() {
    let db = Database::create("expire_branch_below").await;
    let writer = db.writer().await;
    session_of(&writer, "a", 2).await;
    let below = "insert into agent_sessions.session (session_id, parent_sid, branched_from, fork_position)
                 select 'b', sid, sid, 2 from agent_sessions.session where session_id = 'a'";
    writer.execute(below, &[]).await.expect("a branch below its source");
    writer.append("b", "2").await;
    writer.run("select agent_sessions.session_set('a', expires_at => clock_timestamp())").await;
    assert_eq!(expire(&writer).await, 1);
    assert!(everything(&db).await.is_empty());
}

/// Calls until nothing is left; how many each call deleted.
async fn expire_all(connection: &Connection, max_rows: i32) -> Result<i64, Error> {
    let mut sum = 0;
    loop {
        let deleted = try_call(connection, &format!("session_expire(max_rows => {max_rows})")).await?;
        sum += deleted.unwrap_or_default();
        if deleted == Some(0) {
            return Ok(sum);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_at_the_same_time_share_the_work() {
    let db = Database::create("expire_together").await;
    let writers = db.writers(4).await;
    let many = "insert into agent_sessions.session (session_id, expires_at)
                select 'n' || n, clock_timestamp() from generate_series(1, 400) n";
    assert_eq!(writers[0].execute(many, &[]).await.expect("many sessions"), 400);
    let sums = together(writers.len(), |number| {
        let writer = writers[number].clone();
        async move { expire_all(&writer, 20).await.expect("no error") }
    })
    .await;
    assert_eq!(sums.iter().sum::<i64>(), 400, "each was deleted by one: {sums:?}");
    assert!(everything(&db).await.is_empty());
}

/// Three generations that expire together: whoever deletes the first takes the others' along.
#[tokio::test(flavor = "multi_thread")]
async fn calls_at_the_same_time_do_not_fail_over_families() {
    let db = Database::create("expire_families").await;
    let writers = db.writers(4).await;
    for round in 0..3 {
        let generation = |name: &str, parent: &str| {
            format!(
                "insert into agent_sessions.session (session_id, parent_sid, expires_at)
                 select '{name} ' || n, (select sid from agent_sessions.session where session_id = '{parent} ' || n),
                   clock_timestamp() - random() * interval '1 s'
                 from generate_series(1, 100) n"
            )
        };
        for (name, parent) in [("a", ""), ("b", "a"), ("c", "b")] {
            assert_eq!(writers[0].execute(&generation(name, parent), &[]).await.expect("a generation"), 100);
        }
        let sums = together(writers.len(), |number| {
            let writer = writers[number].clone();
            async move { expire_all(&writer, 25).await }
        })
        .await;
        for sum in sums {
            assert!(sum.is_ok(), "round {round}: {sum:?}");
        }
        // One that was passed over, since another call had it, may be left by a call that took the rest for all.
        expire_all(&writers[0], 25).await.expect("the rest");
        assert!(everything(&db).await.is_empty(), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_one_snapshot_it_deletes_whole_sessions_or_fails() {
    let db = Database::create("expire_snapshot").await;
    let (expirer, writer) = (db.writer().await, db.writer().await);
    for isolation in ["repeatable read", "serializable"] {
        session(&writer, "s", Some(1), None).await;
        expirer.begin(isolation).await;
        assert_eq!(history(&expirer, "s").await.len(), 1);
        // Entries and sub-sessions that the snapshot does not see go, too.
        writer.append("s", "1").await;
        session(&writer, "child", None, Some("s")).await;
        assert_eq!(expire(&expirer).await, 1);
        expirer.commit().await;
        assert!(everything(&db).await.is_empty(), "{isolation}");

        session(&writer, "s", Some(1), None).await;
        expirer.begin(isolation).await;
        assert_eq!(history(&expirer, "s").await.len(), 1);
        writer.run("select agent_sessions.session_set('s', title => 'T')").await;
        assert_sqlstate!(try_call(&expirer, "session_expire()").await, "40001");
        expirer.rollback().await;
        assert_eq!(expire(&expirer).await, 1, "{isolation}");
    }
}
