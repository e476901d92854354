//! Leases fence trimming, erasing, branching and deleting as they fence appends.

use agent_sessions_tests::{Connection, Database, assert_sqlstate, sqlstate};

use super::{assert_verifies, claim, end_lease, everything, session_of};

/// `s` with four items and an open one, and `child`, a sub-session.
async fn session(writer: &Connection) {
    session_of(writer, "s", 4).await;
    writer
        .run(
            "select agent_sessions.session_append('s', '\"\"', item_id => 'o', open => true);
             select agent_sessions.session_delta('s', 4, 0, 'chunk');
             select session_id from agent_sessions.session_create('child', parent_session_id => 's')",
        )
        .await;
}

/// Every call that needs the lease of `s`.
fn calls(lease: Option<&str>) -> Vec<String> {
    let lease = lease.map_or("null".to_owned(), |lease| format!("'{lease}'"));
    [
        "session_trim('s', 2",
        "session_trim('s', 2, force => true",
        "session_trim('s', 0",
        "session_erase('s', target => 0",
        "session_erase('s', item_id => 'i1', reason => 'asked'",
        "session_erase('s', item_id => 'o'",
        "session_branch('s'",
        "session_branch('s', at_target => 1, new_session_id => 'new', seed => '1', title => 'T %d'",
        "session_branch('s', inherit => false",
        "session_delete('s'",
    ]
    .iter()
    .map(|call| format!("select * from agent_sessions.{call}, lease => {lease})"))
    .collect()
}

/// The plain statements that do the same.
fn raw() -> Vec<String> {
    [
        "insert into agent_sessions.session (tenant, agent_id, session_id, branched_from, fork_position)
         select '', '', 'new', sid, 2 from agent_sessions.session where session_id = 's'",
        "delete from agent_sessions.session where session_id = 's'",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Each call with the lease as an argument; each, and the plain statements, with it in the setting.
fn attempts(lease: Option<&str>) -> impl Iterator<Item = (&str, String)> {
    let as_argument = calls(lease).into_iter().map(|sql| ("", sql));
    as_argument.chain(calls(None).into_iter().chain(raw()).map(move |sql| (lease.unwrap_or_default(), sql)))
}

async fn bring(connection: &Connection, leases: &str) {
    connection.run(&format!("set agent_sessions.lease = '{leases}'")).await;
}

/// With this lease, none of them passes and nothing changes.
async fn assert_refused(db: &Database, connection: &Connection, lease: Option<&str>, code: &str) {
    let before = everything(db).await;
    for (setting, sql) in attempts(lease) {
        bring(connection, setting).await;
        let refused = connection.batch_execute(&sql).await;
        assert_eq!(refused.as_ref().err().map(sqlstate), Some(code), "{sql}: {refused:?}");
        assert_eq!(everything(db).await, before, "{sql}");
    }
    bring(connection, "").await;
}

/// With this lease, each of them passes. Nothing stays of it.
async fn assert_admitted(connection: &Connection, lease: Option<&str>) {
    for (setting, sql) in attempts(lease) {
        bring(connection, setting).await;
        connection.begin("read committed").await;
        connection.run(&sql).await;
        connection.rollback().await;
    }
    bring(connection, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_holder_trims_erases_branches_and_deletes() {
    let db = Database::create("fence_holder").await;
    let (a, b) = (db.writer().await, db.writer().await);
    session(&a).await;
    assert_admitted(&a, None).await;
    let lost = claim(&a, "s").await;
    assert_admitted(&a, Some(&lost)).await;
    assert_admitted(&b, Some(&lost)).await;
    assert_refused(&db, &b, None, "SE009").await;

    // It ends, with and without another holder since.
    end_lease(&db, "s").await;
    assert_refused(&db, &a, Some(&lost), "SE008").await;
    assert_admitted(&b, None).await;
    let held = claim(&b, "s").await;
    assert_refused(&db, &a, Some(&lost), "SE008").await;
    assert_refused(&db, &a, None, "SE009").await;
    for malformed in ["x", "0:0", &format!("{held}0")] {
        let refused =
            a.batch_execute(&format!("select agent_sessions.session_trim('s', 2, lease => '{malformed}')")).await;
        assert_sqlstate!(refused, "SE008");
    }
    assert_admitted(&b, Some(&held)).await;
    assert_verifies(&b, "s", 5, 0).await;
}

/// The holder's transaction is under way when its lease ends: what it has not done yet, it does not do.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_inside_a_transaction_ends_its_trims() {
    let db = Database::create("fence_ends").await;
    let a = db.writer().await;
    session(&a).await;
    let lease: String =
        a.value("select lease from agent_sessions.session_claim('s', make_interval(secs => 2))", &[]).await;
    a.begin("read committed").await;
    let trim = |keep_from: i64| format!("select agent_sessions.session_trim('s', {keep_from}, lease => '{lease}')");
    assert_eq!(a.value::<i64>(&trim(1), &[]).await, 1);
    let ended = "select pg_sleep(extract(epoch from lease_expires_at - clock_timestamp()) + 0.001)
                 from agent_sessions.session where session_id = 's'";
    a.run(ended).await;
    assert_sqlstate!(a.try_value::<i64>(&trim(2), &[]).await, "SE008");
    a.rollback().await;
    assert_verifies(&a, "s", 5, 0).await;
}

/// A sub-session that is held keeps its session from being deleted, and the whole of it stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_not_deleted_over_a_sub_session_that_is_held() {
    let db = Database::create("fence_below").await;
    let (a, b) = (db.writer().await, db.writer().await);
    session(&a).await;
    let lease = claim(&b, "child").await;
    let before = everything(&db).await;
    let delete = "select agent_sessions.session_delete('s')";
    assert_sqlstate!(a.batch_execute(delete).await, "SE009");
    assert_eq!(everything(&db).await, before);
    bring(&b, &lease).await;
    b.run(delete).await;
    assert!(everything(&db).await.is_empty());
}

/// Whoever holds a branch has no say over its source, and the other way round.
#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_a_branch_is_not_that_of_its_source() {
    let db = Database::create("fence_branch").await;
    let (a, b) = (db.writer().await, db.writer().await);
    session(&a).await;
    a.run("select session_id from agent_sessions.session_branch('s', new_session_id => 'b')").await;
    let (of_source, of_branch) = (claim(&a, "s").await, claim(&b, "b").await);
    let before = everything(&db).await;
    for (session, lease) in [("s", &of_branch), ("b", &of_source)] {
        for call in ["session_trim(S, 2, lease => L)", "session_branch(S, lease => L)", "session_delete(S, lease => L)"]
        {
            let sql = call.replace('S', &format!("'{session}'")).replace('L', &format!("'{lease}'"));
            assert_sqlstate!(a.batch_execute(&format!("select * from agent_sessions.{sql}")).await, "SE008");
        }
    }
    assert_eq!(everything(&db).await, before);
    // The source is deleted by its holder: it is hidden, and the branch's lease lives on.
    a.run(&format!("select agent_sessions.session_delete('s', lease => '{of_source}')")).await;
    assert_sqlstate!(a.batch_execute("select agent_sessions.session_delete('b')").await, "SE009");
    b.run(&format!("select agent_sessions.session_delete('b', lease => '{of_branch}')")).await;
    assert!(everything(&db).await.is_empty());
}
