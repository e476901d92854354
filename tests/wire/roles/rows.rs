//! What a role sees and writes of the tables' rows.

use agent_sessions_tests::{Database, assert_sqlstate};

use super::with_a_session;

#[tokio::test(flavor = "multi_thread")]
async fn every_role_sees_the_rows_that_it_may() {
    let db = Database::create("roles_rows").await;
    let writer = db.writer().await;
    for tenant in ["", "other"] {
        writer.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        writer.create_session("s").await;
        writer.append("s", "1").await;
    }
    writer.run("reset agent_sessions.tenant").await;
    let (reader, owner, stranger) = (db.reader().await, db.owner().await, db.stranger().await);
    // The owner passes the policies, as it has to dump the tables; functions and the public view keep to the tenant.
    for (rows, tenant, of_the_owner) in [
        ("agent_sessions.session", 1, 2),
        ("agent_sessions.session_item", 1, 2),
        ("agent_sessions.session_head", 1, 2),
        ("agent_sessions.live_item", 1, 1),
        ("agent_sessions.session_get(session_id => 's')", 1, 1),
        ("agent_sessions.session_list()", 1, 1),
        ("agent_sessions.session_history(session_id => 's')", 1, 1),
        ("agent_sessions.session_log(session_id => 's')", 1, 1),
        ("agent_sessions.session_stats(session_id => 's')", 1, 1),
        ("agent_sessions.session_verify(session_id => 's')", 1, 1),
        ("agent_sessions.session_lineage(session_id => 's')", 1, 1),
    ] {
        let sql = format!("select count(*) from {rows}");
        for (connection, wanted) in [(&reader, tenant), (&writer, tenant), (&owner, of_the_owner)] {
            assert_eq!(connection.value::<i64>(&sql, &[]).await, wanted, "{rows}");
        }
        assert_sqlstate!(stranger.query(&sql, &[]).await, "42501");
    }
    for table in ["agent_sessions.setting", "agent_sessions.tenant_binding", "agent_sessions.audit_tracking"] {
        let sql = format!("select count(*) from {table}");
        for connection in [&reader, &writer, &stranger] {
            assert_sqlstate!(connection.query(&sql, &[]).await, "42501");
        }
        owner.value::<i64>(&sql, &[]).await;
    }
}

/// A reader writes nothing by raw SQL either.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_writes_nothing() {
    let db = Database::create("roles_reader").await;
    with_a_session(&db.writer().await).await;
    let reader = db.reader().await;
    for sql in [
        "insert into agent_sessions.session (session_id) values ('t')",
        "insert into agent_sessions.session_item (sid, payload) select sid, '1' from agent_sessions.session",
        "update agent_sessions.session set title = 'x'",
        "delete from agent_sessions.session",
        "select from agent_sessions.session for update",
        "select from agent_sessions.session for key share",
        "truncate agent_sessions.session",
        "do $$ begin lock table agent_sessions.session in share mode; end $$",
    ] {
        assert_sqlstate!(reader.batch_execute(sql).await, "42501");
    }
    reader.assert_dense("s", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_policies_hold_for_the_owner_and_are_remembered() {
    let db = Database::create("roles_force").await;
    let (owner, writer, superuser) = (db.owner().await, db.writer().await, db.superuser().await);
    writer.run("set agent_sessions.tenant = 'a'").await;
    writer.create_session("s").await;
    writer.append("s", "0").await;
    let forced = "select string_agg(distinct relforcerowsecurity::text, ',') from pg_class
                  where relnamespace = 'agent_sessions'::regnamespace and relrowsecurity";
    let remembered = "select coalesce(string_agg(name || ' ' || value, ','), '') from agent_sessions.setting";
    let entries = "select count(*) from agent_sessions.session_item";
    assert_eq!(superuser.value::<String>(forced, &[]).await, "false");
    assert_eq!(owner.value::<i64>(entries, &[]).await, 1);

    owner.run("select agent_sessions.access_force_rls(enabled => true)").await;
    assert_eq!(superuser.value::<String>(forced, &[]).await, "true");
    assert_eq!(superuser.value::<String>(remembered, &[]).await, "force_rls on");
    assert_eq!(owner.value::<i64>(entries, &[]).await, 0, "another tenant's entries");
    owner.run("set agent_sessions.tenant = 'a'").await;
    assert_eq!(owner.value::<i64>(entries, &[]).await, 1);
    owner.append("s", "1").await;
    writer.append("s", "2").await;
    writer.assert_dense("s", 3).await;
    // What follows from a rule still reaches all rows.
    owner.run("set agent_sessions.tenant = 'b'").await;
    writer.run("delete from agent_sessions.session").await;
    assert_eq!(superuser.value::<i64>(entries, &[]).await, 0);

    owner.run("select agent_sessions.access_force_rls(enabled => false)").await;
    assert_eq!(superuser.value::<String>(forced, &[]).await, "false");
    assert_eq!(superuser.value::<String>(remembered, &[]).await, "force_rls off");
}
