//! A write with the wrong tenant is an error, and the same one as for a session that does not exist at all.

use agent_sessions_tests::{Database, assert_sqlstate};

const WRITES: [&str; 6] = [
    "select agent_sessions.session_append(session_id => $1::text, payload => '1')",
    "select agent_sessions.session_append_batch(session_id => $1::text, items => '[{\"payload\":1}]')",
    "select agent_sessions.session_revise(session_id => $1::text, target => 0, payload => '1')",
    "select agent_sessions.session_retract(session_id => $1::text, from_target => 0)",
    "select agent_sessions.session_set(session_id => $1::text, title => 'x')",
    "select agent_sessions.session_delete(session_id => $1::text)",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_write_with_the_wrong_tenant_is_an_error() {
    let db = Database::create("wrong_tenant").await;
    let (ours, theirs) = (db.writer().await, db.writer().await);
    ours.run("set agent_sessions.tenant = 'ours'").await;
    theirs.run("set agent_sessions.tenant = 'theirs'").await;
    ours.create_session("of ours").await;
    ours.append("of ours", "0").await;

    for write in WRITES {
        let wrong = assert_sqlstate!(theirs.query(write, &[&"of ours"]).await, "SE002");
        let missing = assert_sqlstate!(theirs.query(write, &[&"of nobody"]).await, "SE002");
        let told = |error: &agent_sessions_tests::Error, session: &str| {
            let raised = error.as_db_error().expect("the server's error");
            format!("{} {:?} {:?}", raised.message(), raised.detail(), raised.hint()).replace(session, "?")
        };
        assert_eq!(told(&wrong, "of ours"), told(&missing, "of nobody"), "{write}");
    }

    // By plain SQL, with a key that was learned elsewhere.
    let sid: i64 = ours.value("select sid from agent_sessions.session where session_id = 'of ours'", &[]).await;
    let insert = "insert into agent_sessions.session_item (sid, payload) values ($1::bigint, '1')";
    assert_sqlstate!(theirs.execute(insert, &[&sid]).await, "SE002");
    assert_sqlstate!(theirs.execute(insert, &[&(sid + 1000)]).await, "SE002");

    ours.assert_dense("of ours", 1).await;
}
