//! Who may do what with the audit trail: a reader nothing, an auditor look and verify, a writer append as well.

use agent_sessions_tests::{Connection, Database, Role, assert_sqlstate};

use super::{Event, admin, assert_chained, auditor, count};

/// Every way to look; each shows a row once there is an event in the stream `s`.
const READS: [&str; 11] = [
    "agent_sessions.audit_event",
    "agent_sessions.audit_chain",
    "agent_sessions.audit_stream",
    "agent_sessions.audit_list()",
    "agent_sessions.audit_list('s', newest_first => false)",
    "agent_sessions.audit_stats()",
    "agent_sessions.audit_export('s')",
    "agent_sessions.audit_verify()",
    "agent_sessions.audit_verify('s')",
    "agent_sessions.audit_matching(null, null, null, null, null, null, null, null, null, null)",
    "agent_sessions.audit_payload((select data from agent_sessions.audit_event))",
];

const WRITES: [&str; 8] = [
    "select agent_sessions.audit_append('a', stream => 's')",
    "select agent_sessions.audit_append_batch('s', '[]')",
    "select agent_sessions.audit_append_batch('s', '[{\"action\":\"a\"}]')",
    "select agent_sessions.audit_import('s', '[]')",
    "select agent_sessions.audit_anchor()",
    "insert into agent_sessions.audit_event (stream, action) values ('s', 'a')",
    "insert into agent_sessions.audit_event (stream, action) select 's', 'a' where false",
    "insert into agent_sessions.audit_event (stream, action) values ('s', 'a') on conflict do nothing",
];

const ADMINISTERS: [&str; 2] =
    ["select agent_sessions.audit_track('all', true)", "select agent_sessions.audit_prune('s', 1)"];

/// What only the engine does, for everybody.
const NOBODYS: [&str; 12] = [
    "update agent_sessions.audit_event set action = 'x'",
    "delete from agent_sessions.audit_event",
    "truncate agent_sessions.audit_event",
    "insert into agent_sessions.audit_chain (tenant, stream) values ('', 'x')",
    "update agent_sessions.audit_chain set base_seq = 0",
    "delete from agent_sessions.audit_chain",
    "insert into agent_sessions.audit_anchor values ('', 1, '', 0, now())",
    "delete from agent_sessions.audit_anchor",
    "delete from agent_sessions.audit_anchor_leaf",
    "insert into agent_sessions.audit_tracking values ('', 'state')",
    "select * from agent_sessions.audit_tracking",
    "select * from agent_sessions.audit_event for update",
];

async fn assert_may(connection: &Connection, sql: &str) {
    connection.begin("read committed").await;
    connection.run(sql).await;
    connection.rollback().await;
}

async fn assert_may_not(connection: &Connection, who: &str, sql: &str) {
    match connection.batch_execute(sql).await {
        Ok(()) => panic!("{who} may: {sql}"),
        refused => drop(assert_sqlstate!(refused, "42501")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_level_does_what_it_is_for_and_no_more() {
    let db = Database::create("audit_access").await;
    Event::in_stream("s", "a").append(&db.writer().await).await;
    let reads = READS.map(|read| format!("select * from {read}"));
    for (who, connection, levels) in [
        ("a stranger", db.stranger().await, 0),
        ("a reader", db.reader().await, 0),
        ("an auditor", auditor(&db).await, 1),
        ("a writer", db.writer().await, 2),
        ("an admin", admin(&db).await, 3),
    ] {
        let groups: [Vec<&str>; 3] =
            [reads.iter().map(String::as_str).collect(), WRITES.to_vec(), ADMINISTERS.to_vec()];
        for (level, group) in groups.iter().enumerate() {
            for sql in group {
                if level < levels {
                    assert_may(&connection, sql).await
                } else {
                    assert_may_not(&connection, who, sql).await
                }
            }
        }
        for sql in NOBODYS {
            assert_may_not(&connection, who, sql).await;
        }
        if levels > 0 {
            for read in READS {
                assert_eq!(count(&connection, read).await, 1, "{read} as {who}");
            }
        }
    }
    assert_chained(&db.writer().await, "s", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_level_that_is_taken_away_leaves_nothing_of_the_trail() {
    let db = Database::create("audit_revoke").await;
    Event::in_stream("s", "a").append(&db.writer().await).await;
    let owner = db.owner().await;
    for level in ["auditor", "writer", "admin"] {
        let role = db.role(level, Some(level)).await;
        let connection = db.connect(Role::Named(role.clone())).await;
        assert_eq!(count(&connection, "agent_sessions.audit_list()").await, 1, "{level}");
        owner.run(&format!("select agent_sessions.access_revoke('{role}')")).await;
        for sql in READS
            .map(|read| format!("select * from {read}"))
            .iter()
            .map(String::as_str)
            .chain(WRITES)
            .chain(ADMINISTERS)
        {
            assert_may_not(&connection, level, sql).await;
        }
    }
}

/// What follows from a rule does not depend on the caller's privileges, nor give any.
#[tokio::test(flavor = "multi_thread")]
async fn appending_needs_no_privilege_on_what_the_engine_keeps() {
    let db = Database::create("audit_bare_insert").await;
    let role = db.role("bare", None).await;
    let owner = db.owner().await;
    owner
        .run(&format!(
            "grant usage on schema agent_sessions to {role};
             grant insert (stream, action) on agent_sessions.audit_event to {role}"
        ))
        .await;
    let bare = db.connect(Role::Named(role)).await;
    // The policy asks for the tenant as the role does.
    assert_sqlstate!(
        bare.batch_execute("insert into agent_sessions.audit_event (stream, action) values ('s', 'a')").await,
        "42501"
    );
    let role = bare.value::<String>("select current_user::text", &[]).await;
    owner.run(&format!("grant execute on function agent_sessions.visible_tenant to {role}")).await;
    bare.run("insert into agent_sessions.audit_event (stream, action) values ('s', 'a'), ('s', 'b')").await;
    assert_may_not(&bare, "a role that may insert", "select * from agent_sessions.audit_event").await;
    assert_may_not(
        &bare,
        "a role that may insert",
        "insert into agent_sessions.audit_event (stream, action, seq) values ('s', 'a', 3)",
    )
    .await;
    assert_chained(&owner, "s", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_under_forced_policies_appends_and_sees_its_tenant() {
    let db = Database::create("audit_force").await;
    let owner = db.owner().await;
    owner.run("select agent_sessions.access_force_rls(true)").await;
    for tenant in ["", "a"] {
        owner.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        Event::in_stream("s", "a").append(&owner).await;
        Event::in_stream("s", "a").insert(&owner).await;
        super::batch(&owner, "s", r#"[{"action":"a"}]"#).await;
        assert_chained(&owner, "s", 3).await;
        assert_eq!(count(&owner, "agent_sessions.audit_event").await, 3);
        assert_eq!(count(&owner, "agent_sessions.audit_list(tenant => 'a')").await, if tenant == "a" { 3 } else { 0 });
    }
    let foreign =
        owner.batch_execute("insert into agent_sessions.audit_event (tenant, action) values ('b', 'a')").await;
    assert_sqlstate!(foreign, "42501");
}
