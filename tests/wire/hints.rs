//! What a backend remembers of a session, where its row lies and how its log ended, spares it look-ups, and is used only while it
//! holds.

use agent_sessions_tests::{Append, Connection, Database, OwnCluster, assert_sqlstate, together};

use crate::direct_writes::growth;

/// How often a call searches an index.
async fn searches(connection: &Connection, index: &str, call: &str) -> i64 {
    growth(connection, &format!("select pg_stat_get_xact_numscans('agent_sessions.{index}'::regclass)"), call).await
}

async fn append(connection: &Connection) {
    Append::to("s", "1").run(connection).await.expect("an append");
}

async fn entries(connection: &Connection) -> i64 {
    connection.value("select next_position from agent_sessions.session_get('s')", &[]).await
}

const APPEND: &str = "session_append('s', '1')";
const PAGE: &str = "session_history('s', max_rows => 5)";

/// For as long as nobody else has the session in between, and not after a rollback.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_again_searches_neither_for_the_session_nor_for_the_end_of_its_log() {
    let db = Database::create("hints_searches").await;
    let (a, b) = (db.writer().await, db.writer().await);
    a.create_session("s").await;
    assert_eq!(searches(&a, "session_key", APPEND).await, 1);
    assert_eq!(searches(&a, "session_key", APPEND).await, 0);
    assert_eq!(searches(&b, "session_key", PAGE).await, 1);
    assert_eq!(searches(&b, "session_key", PAGE).await, 0);

    assert!(searches(&a, "session_item_pkey", APPEND).await > 0, "the one before was rolled back");
    append(&a).await;
    assert_eq!(searches(&a, "session_item_pkey", APPEND).await, 0);
    append(&a).await;
    append(&b).await;
    assert_eq!(searches(&a, "session_item_pkey", APPEND).await, 1, "another has appended");

    // The row moves, and is found from where it was.
    a.run("select agent_sessions.session_set('s', state => '1')").await;
    for connection in [&a, &b] {
        assert_eq!(searches(connection, "session_key", APPEND).await, 0);
        assert_eq!(searches(connection, "session_key", PAGE).await, 0);
    }
    a.assert_dense("s", 3).await;
}

/// Whatever the transaction was that appended last, the next append stands behind what is there.
#[tokio::test(flavor = "multi_thread")]
async fn what_became_of_the_last_append_does_not_mislead_the_next() {
    let db = Database::create("hints_ends").await;
    let (a, owner) = (db.writer().await, db.owner().await);
    let insert = "insert into agent_sessions.session_item (sid, payload) select sid, '1' from agent_sessions.session";
    let call = "select agent_sessions.session_append('s', '1')";
    a.create_session("s").await;
    for (last, stays) in [
        (format!("begin; {call}; rollback"), 0),
        (format!("begin; {call}; savepoint p; {call}; rollback to p; commit"), 1),
        (format!("begin; savepoint p; {call}; rollback to p; {call}; commit"), 1),
        (format!("begin; savepoint p; {call}; release p; {call}; savepoint q; {insert}; rollback to q; commit"), 2),
        (format!("begin; {call}; savepoint p; {insert}; release p; commit"), 2),
        (format!("begin; {call}; {insert}; commit"), 2),
        (format!("begin; {call}; select agent_sessions.session_set('s', state => '1'); {call}; commit"), 2),
        (format!("begin; {call}; select agent_sessions.session_revise('s', '2', target => 0); commit"), 2),
        (format!("begin; {call}; select agent_sessions.session_retract('s', from_target => 3); commit"), 2),
        (
            format!(
                "do $$ begin {call_in}; begin {call_in}; raise 'no'; exception when others then end; end $$",
                call_in = call.replace("select", "perform")
            ),
            1,
        ),
        ("select from agent_sessions.session_append_batch('s', '[{\"payload\": 1}, {\"payload\": 2}]')".to_owned(), 2),
        (format!("begin; set local transaction isolation level repeatable read; {call}; commit"), 1),
    ] {
        append(&a).await;
        let before = entries(&a).await;
        a.run(&last).await;
        append(&a).await;
        a.assert_dense("s", before + stays + 1).await;
        append(&a).await;
        owner.assert_dense("s", before + stays + 2).await;
    }
    // An error behind the append takes it along.
    let broken = "with one as materialized (select agent_sessions.session_append('s', '1') as position)
                  select 1 / (position - position) from one";
    let before = entries(&a).await;
    assert_sqlstate!(a.try_value::<i64>(broken, &[]).await, "22012");
    append(&a).await;
    a.assert_dense("s", before + 1).await;
}

/// The backend that prepares it does not know what becomes of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_that_was_prepared_is_not_remembered() {
    let server = OwnCluster::start(&["max_prepared_transactions = 10", "fsync = off"]).await;
    server.install().await;
    let client = server.app_client().await;
    client.create_session("s").await;
    for (decision, stays) in [("rollback", 0), ("commit", 1)] {
        append(&client).await;
        let before = entries(&client).await;
        client.run("begin; select agent_sessions.session_append('s', '1'); prepare transaction 'p'").await;
        client.run(&format!("{decision} prepared 'p'")).await;
        append(&client).await;
        client.assert_dense("s", before + stays + 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_connection_has_written_is_seen_by_the_next_append() {
    let db = Database::create("hints_others").await;
    let (a, b, owner) = (db.writer().await, db.writer().await, db.owner().await);
    a.create_session("s").await;
    append(&a).await;
    for theirs in [
        "select agent_sessions.session_append('s', '2')",
        "select from agent_sessions.session_append_batch('s', '[{\"payload\": 1}, {\"payload\": 2}]')",
        "insert into agent_sessions.session_item (sid, payload) select sid, '3' from agent_sessions.session",
        "select agent_sessions.session_revise('s', '4', target => 0)",
        "select agent_sessions.session_retract('s', targets => '{1}')",
        "select agent_sessions.session_set('s', state => '1'); select agent_sessions.session_append('s', '5')",
        "begin; select agent_sessions.session_append('s', '2'); savepoint p; select agent_sessions.session_append('s', '2');
         rollback to p; commit",
        "begin; select agent_sessions.session_append('s', '2'); rollback",
        "select from agent_sessions.session where session_id = 's' for key share",
        "select from agent_sessions.session where session_id = 's' for update",
    ] {
        b.run(theirs).await;
        let before = entries(&a).await;
        assert_eq!(Append::to("s", "1").expected_position(before).run(&a).await.expect("an append"), before, "{theirs}");
        a.assert_dense("s", before + 1).await;
    }
    // Not even where the rules were switched off.
    let before = entries(&a).await;
    let cut = format!("delete from agent_sessions.session_item where position = {}", before - 1);
    db.superuser().await.run(&format!("set session_replication_role = replica; {cut}")).await;
    append(&a).await;
    a.assert_dense("s", before).await;
    // Of a whole log nothing is left but where it goes on.
    let before = entries(&a).await;
    owner.run(&format!("select agent_sessions.session_trim('s', {before})")).await;
    let after = entries(&a).await;
    assert_eq!(Append::to("s", "1").run(&a).await.expect("an append"), after);
    assert!(a.verify("s").await.ok);
}

/// Others come between the look at who had the session last and the lock on it: rarely, so it takes many tries.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_between_a_look_and_a_lock_is_noticed() {
    const CLIENTS: usize = 4;
    const APPENDS: i64 = 20_000;
    let db = Database::create("hints_between").await;
    let writers = db.writers(CLIENTS).await;
    for session in ["s", "t"] {
        writers[0].create_session(session).await;
    }
    // In the server, so that no client's way to it slows them down.
    let call = format!(
        "do $$ begin for n in 1..{APPENDS} loop
           perform agent_sessions.session_append(case when random() < 0.8 then 's' else 't' end, '1'); commit;
         end loop; end $$"
    );
    together(CLIENTS, |number| {
        let (writer, call) = (writers[number].clone(), call.clone());
        async move { writer.run(&call).await }
    })
    .await;
    let mut entries = 0;
    for session in ["s", "t"] {
        let verdict = writers[0].verify(session).await;
        assert!(verdict.ok, "{verdict:?}");
        entries += verdict.entries;
    }
    assert_eq!(entries, APPENDS * CLIENTS as i64);
}

/// Where the row lay may be another row, or no page at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_was_given_away_leads_nowhere() {
    let db = Database::create("hints_places").await;
    let (a, b, superuser) = (db.writer().await, db.writer().await, db.superuser().await);
    let place = "select ctid::text from agent_sessions.session where session_id = $1";
    a.create_session("s").await;
    append(&a).await;
    let first: String = superuser.value(place, &[&"s"]).await;

    // Another session lies there: it is not taken for this one, nor held.
    b.run("select agent_sessions.session_delete('s')").await;
    superuser.run("vacuum (truncate off) agent_sessions.session").await;
    b.create_session("t").await;
    assert_eq!(superuser.value::<String>(place, &[&"t"]).await, first);
    a.begin("read committed").await;
    a.run("savepoint p").await;
    assert_sqlstate!(Append::to("s", "1").run(&a).await, "SE002");
    a.run("rollback to p").await;
    b.run("set lock_timeout = '1 s'; select agent_sessions.session_append('t', '1')").await;
    a.rollback().await;
    b.assert_dense("t", 1).await;

    // The same name again, elsewhere.
    b.create_session("s").await;
    assert_eq!(Append::to("s", "1").run(&a).await.expect("an append"), 0);
    assert_eq!(a.log("s").await.len(), 1);

    // A file that ends before the place.
    a.run("do $$ begin for n in 1..500 loop perform agent_sessions.session_create('many ' || n); end loop; end $$")
        .await;
    a.run("select agent_sessions.session_append('many 500', '1')").await;
    b.run("select agent_sessions.session_delete(session_id) from agent_sessions.session where session_id like 'many%'")
        .await;
    superuser.run("vacuum (truncate on) agent_sessions.session").await;
    let pages: i64 = superuser.value("select pg_relation_size('agent_sessions.session') / 8192", &[]).await;
    assert!(pages < 3, "{pages} pages are left");
    assert_sqlstate!(Append::to("many 500", "1").run(&a).await, "SE002");
    assert_eq!(a.query("select from agent_sessions.session_history('many 500')", &[]).await.expect("a page").len(), 0);

    // Another file.
    append(&a).await;
    superuser.run("vacuum full agent_sessions.session").await;
    append(&a).await;
    superuser.run("cluster agent_sessions.session using session_pkey").await;
    append(&a).await;
    a.assert_dense("s", 4).await;
}

/// More sessions than a backend remembers.
#[tokio::test(flavor = "multi_thread")]
async fn who_serves_many_sessions_goes_on_to_find_them() {
    let db = Database::create("hints_many").await;
    let a = db.writer().await;
    a.run(
        "do $$ begin
           for n in 1..5000 loop perform agent_sessions.session_append(n::text, '1', on_missing => 'create'); end loop;
         end $$",
    )
    .await;
    for _ in 0..2 {
        a.run(
            "do $$ begin for n in 1..5000 loop perform agent_sessions.session_append(n::text, '2'); end loop; end $$",
        )
        .await;
    }
    let wrong = "select count(*) from (
                   select sid from agent_sessions.session_item group by sid having array_agg(position order by position) <> '{0,1,2}'
                 ) of_session";
    assert_eq!(a.value::<i64>(wrong, &[]).await, 0);
}
