//! Tenants and agents: what one of them sees of another is nothing, by functions and by raw SQL, and a bound role cannot
//! leave its tenants.

mod bindings;
mod calls;
mod inference;
mod statements;
mod world;

use agent_sessions_tests::{Append, Connection, Database, Role, assert_sqlstate, detail, sqlstate};
use serde_json::json;

async fn in_tenant(db: &Database, tenant: &str) -> Connection {
    let writer = db.writer().await;
    writer.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
    writer
}

async fn count(connection: &Connection, rows: &str) -> i64 {
    connection.value(&format!("select count(*) from {rows}"), &[]).await
}

/// Every way to look at sessions, entries and events; `s` is the session, or the stream, that is looked for.
const READS: [&str; 18] = [
    "agent_sessions.session",
    "agent_sessions.session_item",
    "agent_sessions.session_head",
    "agent_sessions.live_item",
    "agent_sessions.session_get(session_id => 's')",
    "agent_sessions.session_list(roots_only => false)",
    "agent_sessions.session_list(title => 'T', metadata => '{}', order_by => 'activity')",
    "agent_sessions.session_history(session_id => 's')",
    "agent_sessions.session_log(session_id => 's')",
    "agent_sessions.session_stats(session_id => 's')",
    "agent_sessions.session_verify(session_id => 's')",
    "agent_sessions.audit_event",
    "agent_sessions.audit_chain",
    "agent_sessions.audit_stream",
    "agent_sessions.audit_list(stream => 's')",
    "agent_sessions.audit_stats(stream => 's')",
    "agent_sessions.audit_export(stream => 's')",
    "agent_sessions.audit_verify(stream => 's')",
];

const WRITES: [&str; 8] = [
    "select agent_sessions.session_append(session_id => 's', payload => '1')",
    "select agent_sessions.session_append_batch(session_id => 's', items => '[{\"payload\":1}]')",
    "select agent_sessions.session_revise(session_id => 's', target => 0, payload => '1')",
    "select agent_sessions.session_retract(session_id => 's', from_target => 0)",
    "select agent_sessions.session_set(session_id => 's', title => 'x')",
    "select agent_sessions.session_delete(session_id => 's')",
    "select agent_sessions.session_create(session_id => 'sub', parent_session_id => 's')",
    "select agent_sessions.session_create(session_id => 'sub', parent_session_id => 's', parent_agent_id => '')",
];

async fn with_a_session(writer: &Connection) -> i64 {
    writer
        .run("select agent_sessions.session_create(session_id => 's', title => 'T', metadata => '{}', items => '[{\"payload\":0, \"item_id\":\"i\"}]');
             select agent_sessions.audit_append('a', stream => 's')")
        .await;
    writer.value("select sid from agent_sessions.session where session_id = 's'", &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_another_tenant_is_seen_or_written() {
    let db = Database::create("tenants_apart").await;
    let (ours, theirs) = (in_tenant(&db, "ours").await, in_tenant(&db, "theirs").await);
    let sid = with_a_session(&ours).await;
    for read in READS {
        assert_eq!(count(&ours, read).await, 1, "{read}");
        assert_eq!(count(&theirs, read).await, 0, "{read}");
        // Saying the tenant is not being in it.
        if let Some(call) = read.strip_suffix(')') {
            assert_eq!(count(&theirs, &format!("{call}, tenant => 'ours')")).await, 0, "{read}");
        }
    }
    for write in WRITES {
        let error = assert_sqlstate!(theirs.batch_execute(write).await, "SE002");
        assert_eq!(detail(&error), json!({"session_id": "s", "agent_id": ""}), "{write}");
        let raised = error.as_db_error().expect("the server's error");
        assert!(!raised.hint().unwrap_or_default().contains("exists for agent"), "{write}: {raised:?}");
    }
    assert_eq!(count(&theirs, "agent_sessions.session_pop(session_id => 's')").await, 0);
    for (raw, rows) in [
        ("update agent_sessions.session set title = 'x'", 0),
        ("delete from agent_sessions.session", 0),
        ("select from agent_sessions.session for update", 0),
    ] {
        assert_eq!(theirs.execute(raw, &[]).await.expect(raw), rows, "{raw}");
    }
    for raw in [
        format!("insert into agent_sessions.session_item (sid, payload) values ({sid}, '1')"),
        format!("insert into agent_sessions.session_item (sid, payload, item_id) values ({sid}, '0', 'i')"),
        format!("insert into agent_sessions.session_item (sid, payload) values ({sid}, '1') on conflict do nothing"),
        format!("insert into agent_sessions.session_item (sid, op, target) values ({sid}, 'retract', 0)"),
        format!("insert into agent_sessions.session (session_id, parent_sid) values ('sub', {sid})"),
    ] {
        assert_sqlstate!(theirs.batch_execute(&raw).await, "SE002");
    }
    // A row of another tenant's is refused before its key is compared with what is there.
    for session in ["s", "new"] {
        let foreign = format!("insert into agent_sessions.session (tenant, session_id) values ('ours', '{session}')");
        assert_sqlstate!(theirs.batch_execute(&foreign).await, "42501");
        assert_sqlstate!(theirs.batch_execute(&format!("{foreign} on conflict do nothing")).await, "42501");
    }
    ours.assert_dense("s", 1).await;
    assert_eq!(count(&ours, "agent_sessions.session where title = 'T' and revision = 0").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_may_use_the_same_ids() {
    let db = Database::create("tenants_same_ids").await;
    let tenants = [in_tenant(&db, "").await, in_tenant(&db, "a").await, in_tenant(&db, "b").await];
    for (number, writer) in tenants.iter().enumerate() {
        writer.create_session("s").await;
        for entry in 0..=number {
            let payload = format!("[{number}, {entry}]");
            let id = format!("i{entry}");
            Append::to("s", &payload).item_id(&id).tag("t").run(writer).await.expect("an append");
        }
        let again = writer.query("select agent_sessions.session_create(session_id => 's')", &[]).await;
        assert_sqlstate!(again, "SE003");
    }
    for (number, writer) in tenants.iter().enumerate() {
        writer.assert_dense("s", number as i64 + 1).await;
        let payloads: Vec<_> = writer.history("s").await.into_iter().filter_map(|item| item.payload).collect();
        let wanted: Vec<_> = (0..=number).map(|entry| format!("[{number}, {entry}]")).collect();
        assert_eq!(payloads, wanted);
        let by_id = "agent_sessions.session_history(session_id => 's', item_ids => '{i0,i1,i2}', tags => '{t}')";
        assert_eq!(count(writer, by_id).await, number as i64 + 1);
    }
    tenants[1].run("delete from agent_sessions.session").await;
    assert_eq!(count(&tenants[1], "agent_sessions.session_item").await, 0);
    tenants[0].assert_dense("s", 1).await;
    tenants[2].assert_dense("s", 3).await;
    // A log is bound to its tenant: the same session elsewhere has another first link.
    let digests = "select count(distinct content_digest), count(distinct digest) from agent_sessions.session_item where position = 0";
    let row = db.superuser().await.query_one(digests, &[]).await.expect("digests");
    assert_eq!((row.get(0), row.get(1)), (2i64, 2i64));
}

/// The forms of one statement for tenant and work; nothing of the tenant is left afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_is_used_for_one_statement() {
    let db = Database::create("tenants_use").await;
    let role = db.role("bound", Some("writer")).await;
    db.owner().await.run(&format!("select agent_sessions.tenant_bind('{role}', 'a')")).await;
    // The bound role has no tenant until the statement says so.
    for writer in [db.writer().await, db.connect(Role::Named(role)).await] {
        let setting = "select current_setting('agent_sessions.tenant')";
        for (write, wanted) in [
            ("select (agent_sessions.session_create(session_id => 's')).session_id from tenant_use", "s"),
            ("select agent_sessions.session_append(session_id => 's', payload => '1')::text from tenant_use", "0"),
            ("select agent_sessions.session_append(session_id => 's', payload => '2')::text from tenant_use", "1"),
            (
                "select agent_sessions.session_revise(session_id => 's', target => 0, payload => '3')::text from tenant_use",
                "2",
            ),
            ("select agent_sessions.session_retract(session_id => 's', targets => '{1}')::text from tenant_use", "1"),
            ("select agent_sessions.session_set(session_id => 's', title => 'T')::text from tenant_use", "1"),
        ] {
            let sql = write.replace("tenant_use", "agent_sessions.tenant_use(tenant => $1::text) t");
            assert_eq!(writer.value::<String>(&sql, &[&"a"]).await, wanted, "{write}");
            assert_eq!(writer.value::<String>(setting, &[]).await, "", "{write}");
        }
        let batch =
            "select (agent_sessions.session_append_batch(session_id => 's', items => '[{\"payload\":5}]')).outcome
                     from agent_sessions.tenant_use($1::text) t";
        assert_eq!(writer.value::<String>(batch, &[&"a"]).await, "appended");

        let reads = [
            ("session_get(session_id => 's', tenant => t)", 1),
            ("session_list(tenant => t)", 1),
            ("session_list(tenant => t, title => 't', order_by => 'activity')", 1),
            ("session_history(session_id => 's', tenant => t)", 2),
            ("session_history(session_id => 's', after => -1, max_rows => 1, newest_first => true, tenant => t)", 1),
            ("session_log(session_id => 's', tenant => t)", 5),
            ("session_stats(session_id => 's', tenant => t)", 1),
            ("session_verify(session_id => 's', tenant => t)", 1),
        ];
        for plans in ["force_custom_plan", "force_generic_plan"] {
            writer.run(&format!("set plan_cache_mode = {plans}")).await;
            for (read, rows) in reads {
                let sql =
                    format!("select h.* from agent_sessions.tenant_use($1::text) t, lateral agent_sessions.{read} h");
                let read_rows = writer.query(&sql, &[&"a"]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
                assert_eq!(read_rows.len(), rows, "{read}, {plans}");
                assert_eq!(writer.value::<String>(setting, &[]).await, "", "{read}");
            }
        }
        // In a transaction it lasts until the end of it.
        writer.begin("read committed").await;
        assert_eq!(writer.value::<String>("select agent_sessions.tenant_use('a')", &[]).await, "a");
        assert_eq!(writer.append("s", "6").await, 5);
        assert_eq!(count(&writer, "agent_sessions.session").await, 1);
        writer.commit().await;
        assert_eq!(writer.value::<String>(setting, &[]).await, "");
        writer.begin("read committed").await;
        writer.run("savepoint one; select agent_sessions.tenant_use('a'); rollback to one").await;
        assert_eq!(writer.value::<String>(setting, &[]).await, "");
        writer.rollback().await;

        let delete =
            "select agent_sessions.session_delete(session_id => 's') from agent_sessions.tenant_use($1::text) t";
        assert!(writer.value::<bool>(delete, &[&"a"]).await);
    }
    let writer = db.writer().await;
    for malformed in ["E'a\\nb'", "repeat('x', 501)"] {
        let error = assert_sqlstate!(
            writer.batch_execute(&format!("select agent_sessions.tenant_use({malformed})")).await,
            "SE001"
        );
        assert_eq!(detail(&error)["argument"], "tenant");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unset_or_reset_tenant_is_the_empty_one() {
    let db = Database::create("tenants_unset").await;
    let writer = db.writer().await;
    let current = "select agent_sessions.current_tenant()";
    assert_eq!(writer.value::<String>(current, &[]).await, "", "before the library is asked for the first time");
    writer.create_session("of nobody").await;
    writer.run("set agent_sessions.tenant = 'a'").await;
    writer.create_session("of a").await;
    let sees = async |wanted: &str, when: &str| {
        let sql = "select agent_sessions.current_tenant() || ': ' || string_agg(session_id, ',') from agent_sessions.session_list()";
        assert_eq!(writer.value::<String>(sql, &[]).await, wanted, "{when}");
        let sql =
            "select agent_sessions.current_tenant() || ': ' || string_agg(session_id, ',') from agent_sessions.session";
        assert_eq!(writer.value::<String>(sql, &[]).await, wanted, "{when}");
    };
    sees("a: of a", "set").await;
    writer.begin("read committed").await;
    writer.run("set local agent_sessions.tenant = ''").await;
    sees(": of nobody", "set local, empty").await;
    writer.rollback().await;
    sees("a: of a", "after a rollback").await;
    writer.run("reset agent_sessions.tenant").await;
    sees(": of nobody", "reset").await;
    writer.begin("read committed").await;
    writer.run("set local agent_sessions.tenant = 'a'").await;
    sees("a: of a", "set local").await;
    writer.commit().await;
    sees(": of nobody", "after a commit").await;
    writer.run("set agent_sessions.tenant = 'a'; reset all").await;
    sees(": of nobody", "reset all").await;
    writer.run("set agent_sessions.tenant = 'a'").await;
    writer.run("discard all").await;
    sees(": of nobody", "discard all").await;
    writer.run("set agent_sessions.tenant = ''").await;
    sees(": of nobody", "set to nothing").await;
    writer.run("select set_config('agent_sessions.tenant', 'a', false)").await;
    sees("a: of a", "set_config").await;
    writer.run("set agent_sessions.tenant = E'a\\tb'").await;
    assert_eq!(count(&writer, "agent_sessions.session").await, 0, "malformed");
    for malformed in [current, "select * from agent_sessions.session_list()", "select agent_sessions.session_create()"]
    {
        assert_sqlstate!(writer.query(malformed, &[]).await, "SE001");
    }
    // A setting that was made before the library was loaded holds too.
    let early = db.writer().await;
    early.run("set agent_sessions.tenant = 'a'").await;
    assert_eq!(count(&early, "agent_sessions.session where session_id = 'of a'").await, 1);
}

/// Everything that asks for the tenant, as a writer: the functions refuse, and so does a raw INSERT; other raw SQL finds no
/// rows, since a refusal that comes with the first row would tell that there is one.
async fn assert_denied(connection: &Connection, why: &str) {
    for sql in [
        "select agent_sessions.current_tenant()",
        "select * from agent_sessions.session_list()",
        "select * from agent_sessions.session_list(parent_session_id => 's')",
        "select * from agent_sessions.session_get(session_id => 's')",
        "select * from agent_sessions.session_history(session_id => 's')",
        "select * from agent_sessions.session_log(session_id => 's')",
        "select * from agent_sessions.session_verify(session_id => 's')",
        "select * from agent_sessions.audit_list()",
        "select * from agent_sessions.audit_list('s', newest_first => false)",
        "select * from agent_sessions.audit_stats()",
        "select * from agent_sessions.audit_export('s')",
        "select * from agent_sessions.audit_verify()",
        "select agent_sessions.audit_append('a')",
        "select agent_sessions.audit_append_batch('s', '[]')",
        "select agent_sessions.audit_import('s', '[]')",
        "insert into agent_sessions.audit_event (action) values ('a')",
        "select agent_sessions.session_create(session_id => 'mine')",
        "select agent_sessions.session_append(session_id => 's', payload => '1')",
        "select agent_sessions.session_set(session_id => 's', title => 'x', on_missing => 'create')",
        "insert into agent_sessions.session (session_id) values ('mine')",
        "insert into agent_sessions.session (tenant, session_id) values ('a', 'mine')",
        "insert into agent_sessions.session_item (sid, payload) values (1, '1')",
        "insert into agent_sessions.session_item (sid, payload) values (987654321, '1')",
        "insert into agent_sessions.session_delta (sid, target, chunk_no, chunk) values (1, 0, 0, 'c')",
    ] {
        match connection.batch_execute(sql).await {
            Ok(()) => panic!("{why}: {sql} was accepted"),
            Err(error) => assert_eq!(sqlstate(&error), "SE019", "{why}: {sql}: {error:?}"),
        }
    }
    for sql in [
        "select from agent_sessions.session",
        "select from agent_sessions.session_item",
        "select from agent_sessions.session_head",
        "select from agent_sessions.live_item",
        "select from agent_sessions.lease_status",
        "select from agent_sessions.audit_event",
        "select from agent_sessions.audit_stream",
        "insert into agent_sessions.session_item (sid, payload) select sid, '1' from agent_sessions.session",
        "update agent_sessions.session set title = 'x'",
        "delete from agent_sessions.session",
    ] {
        match connection.execute(sql, &[]).await {
            Ok(rows) => assert_eq!(rows, 0, "{why}: {sql}"),
            Err(error) => panic!("{why}: {sql}: {error:?}"),
        }
    }
}

async fn assert_admitted(connection: &Connection, tenant: &str, why: &str) {
    match connection.try_value::<String>("select agent_sessions.current_tenant()", &[]).await {
        Ok(current) => assert_eq!(current, tenant, "{why}"),
        Err(error) => panic!("{why}: {error:?}"),
    }
    count(connection, "agent_sessions.session").await;
    count(connection, "agent_sessions.session_list()").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_role_stays_in_its_tenants() {
    let db = Database::create("tenants_bound").await;
    let owner = db.owner().await;
    let bound = db.role("bound", Some("writer")).await;
    let free = db.role("free", Some("writer")).await;
    db.superuser().await.run(&format!("grant {free} to {bound}")).await;
    for tenant in ["", "a", "b"] {
        with_a_session(&in_tenant(&db, tenant).await).await;
    }
    // It is connected, and has its plans, before it is bound.
    let client = db.connect(Role::Named(bound.clone())).await;
    client.run("set agent_sessions.tenant = 'b'").await;
    assert_admitted(&client, "b", "not bound yet").await;
    client.append("s", "1").await;

    owner.run(&format!("select agent_sessions.tenant_bind(role => '{bound}', tenant => 'a')")).await;
    assert_denied(&client, "bound to another tenant").await;
    client.run("reset agent_sessions.tenant").await;
    assert_denied(&client, "the empty tenant").await;
    let refused = client.query("select agent_sessions.tenant_use('b')", &[]).await;
    let error = assert_sqlstate!(refused, "SE019");
    assert_eq!(detail(&error)["tenant"], "b");
    assert_eq!(client.value::<String>("select agent_sessions.tenant_use('a')", &[]).await, "a");
    let outside =
        "select agent_sessions.session_append(session_id => 's', payload => '1') from agent_sessions.tenant_use('b')";
    assert_sqlstate!(client.query(outside, &[]).await, "SE019");

    // Neither a role of another binding nor the way back helps.
    for tenant in ["", "b"] {
        client.run(&format!("set agent_sessions.tenant = '{tenant}'; set role {free}")).await;
        assert_denied(&client, "SET ROLE to a role that is not bound").await;
        client.run("reset role").await;
        client.begin("read committed").await;
        client.run(&format!("set local role {free}")).await;
        assert_sqlstate!(client.query("select * from agent_sessions.session_list()", &[]).await, "SE019");
        client.rollback().await;
        assert_sqlstate!(client.batch_execute(&format!("set session authorization {free}")).await, "42501");
    }
    assert_sqlstate!(
        client.batch_execute("set row_security = off; select * from agent_sessions.session").await,
        "42501"
    );
    assert_sqlstate!(client.batch_execute("select * from agent_sessions.tenant_binding").await, "42501");
    // Rows of another tenant, brought by name.
    client.run("reset row_security; set agent_sessions.tenant = 'a'").await;
    assert_sqlstate!(
        client.batch_execute("insert into agent_sessions.session (tenant, session_id) values ('b', 'x')").await,
        "42501"
    );
    assert_eq!(count(&client, "agent_sessions.session_get(session_id => 's', tenant => 'b')").await, 0);
    assert_eq!(count(&client, "agent_sessions.session_history(session_id => 's', tenant => 'b')").await, 0);
    assert_eq!(count(&client, "agent_sessions.session_verify(session_id => 's', tenant => 'b')").await, 0);
    assert_eq!(count(&client, "agent_sessions.session_list(tenant => 'b')").await, 0);
    assert_admitted(&client, "a", "its tenant").await;
    client.append("s", "2").await;
    client.run(&format!("set role {free}")).await;
    assert_admitted(&client, "a", "as another role, in its tenant").await;
    client.run("reset role").await;

    // A second binding adds a tenant; taking one away leaves the other, and without any the role is free.
    owner
        .run(&format!("select agent_sessions.tenant_bind('{bound}', 'b'), agent_sessions.tenant_bind('{bound}', 'b')"))
        .await;
    assert_eq!(owner.value::<i64>("select count(*) from agent_sessions.tenant_binding", &[]).await, 2);
    for tenant in ["a", "b"] {
        client.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        assert_admitted(&client, tenant, "one of two").await;
    }
    owner.run(&format!("select agent_sessions.tenant_unbind(role => '{bound}', tenant => 'b')")).await;
    assert_denied(&client, "no longer bound to it").await;
    owner
        .run(&format!(
            "select agent_sessions.tenant_unbind('{bound}', 'a'), agent_sessions.tenant_unbind('{bound}', 'a')"
        ))
        .await;
    assert_admitted(&client, "b", "not bound any more").await;
    for tenant in ["E'a\\nb'", "repeat('x', 501)"] {
        let bind = format!("select agent_sessions.tenant_bind('{bound}', {tenant})");
        assert_sqlstate!(owner.batch_execute(&bind).await, "SE001");
    }
    in_tenant(&db, "b").await.assert_dense("s", 2).await;
    in_tenant(&db, "a").await.assert_dense("s", 2).await;
    in_tenant(&db, "").await.assert_dense("s", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_group_binds_its_members() {
    let db = Database::create("tenants_group").await;
    let (owner, superuser) = (db.owner().await, db.superuser().await);
    with_a_session(&in_tenant(&db, "b").await).await;
    let group = db.role("group", Some("writer")).await;
    let member = db.role("member", Some("writer")).await;
    let outsider = db.role("outsider", Some("writer")).await;
    owner.run(&format!("select agent_sessions.tenant_bind('{group}', 'a')")).await;
    let client = db.connect(Role::Named(member.clone())).await;
    client.run("set agent_sessions.tenant = 'b'").await;
    assert_admitted(&client, "b", "not a member").await;

    // Also one that does not inherit the group's privileges, and one that was connected before.
    superuser.run(&format!("alter role {member} noinherit; grant {group} to {member}")).await;
    assert_denied(&client, "a member").await;
    client.run(&format!("set role {group}")).await;
    assert_denied(&client, "as the group").await;
    client.run("set agent_sessions.tenant = 'a'").await;
    assert_admitted(&client, "a", "as the group, in its tenant").await;
    client.run("reset role").await;
    assert_admitted(&client, "a", "a member, in its tenant").await;
    // The role that a session becomes counts as well as the one that it is.
    superuser.run(&format!("grant {group} to {outsider}; revoke {group} from {member}")).await;
    client.run("set agent_sessions.tenant = 'b'").await;
    assert_admitted(&client, "b", "no longer a member").await;
    let other = db.connect(Role::Superuser).await;
    other.run(&format!("set agent_sessions.tenant = 'b'; set role {outsider}")).await;
    assert_denied(&other, "a superuser as a member of the group").await;
    other.run("reset role").await;
    assert_admitted(&other, "b", "a superuser").await;
    // Bound through one group and by itself: to both tenants.
    owner.run(&format!("select agent_sessions.tenant_bind('{outsider}', 'c')")).await;
    let client = db.connect(Role::Named(outsider)).await;
    for tenant in ["a", "c"] {
        client.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        assert_admitted(&client, tenant, "bound twice").await;
    }
    client.run("set agent_sessions.tenant = 'b'").await;
    assert_denied(&client, "bound twice, to neither").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_holds_from_its_commit_on() {
    let db = Database::create("tenants_commit").await;
    let (owner, superuser) = (db.owner().await, db.superuser().await);
    with_a_session(&db.writer().await).await;
    let role = db.role("bound", Some("writer")).await;
    let client = db.connect(Role::Named(role.clone())).await;
    assert_admitted(&client, "", "before").await;

    owner.begin("read committed").await;
    owner.run(&format!("select agent_sessions.tenant_bind('{role}', 'a')")).await;
    assert_admitted(&client, "", "not committed").await;
    owner.rollback().await;
    assert_admitted(&client, "", "rolled back").await;

    // In the binding transaction itself, and after it has come to nothing.
    superuser.begin("read committed").await;
    superuser
        .run(&format!("savepoint one; select agent_sessions.tenant_bind('{role}', 'a'); set local role {role}"))
        .await;
    assert_sqlstate!(superuser.query("select * from agent_sessions.session_list()", &[]).await, "SE019");
    superuser.run(&format!("rollback to one; set local role {role}")).await;
    assert_admitted(&superuser, "", "rolled back to a savepoint").await;
    superuser.rollback().await;

    // A transaction with one snapshot is bound by what is committed, not by what it has seen.
    client.begin("repeatable read").await;
    assert_admitted(&client, "", "its snapshot is taken").await;
    owner.run(&format!("select agent_sessions.tenant_bind('{role}', 'a')")).await;
    assert_sqlstate!(client.query("select * from agent_sessions.session_list()", &[]).await, "SE019");
    client.rollback().await;
    assert_denied(&client, "committed").await;

    // By plain SQL of the owner's, as a restore does it; and a renamed role stays bound.
    owner.run("delete from agent_sessions.tenant_binding").await;
    assert_admitted(&client, "", "the binding is deleted").await;
    owner.run(&format!("insert into agent_sessions.tenant_binding (role, tenant) values ('{role}', 'a')")).await;
    assert_denied(&client, "the binding is inserted").await;
    owner.run("update agent_sessions.tenant_binding set tenant = ''").await;
    assert_admitted(&client, "", "the binding is changed").await;
    owner.run("update agent_sessions.tenant_binding set tenant = 'a'").await;
    superuser.run(&format!("alter role {role} rename to {role}x")).await;
    assert_denied(&client, "renamed").await;
    superuser.run(&format!("alter role {role}x rename to {role}")).await;
    owner.run("truncate agent_sessions.tenant_binding").await;
    assert_admitted(&client, "", "the bindings are gone").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_agent_sees_and_writes_its_own_sessions_only() {
    let db = Database::create("tenants_agents").await;
    let (planner, coder) = (db.writer().await, db.writer().await);
    planner.run("set agent_sessions.agent = 'planner'").await;
    coder.run("set agent_sessions.agent = 'coder'").await;
    let sid = with_a_session(&planner).await;
    coder.create_session("mine").await;

    // Shared: the tenant's sessions are visible, and the agent is a part of the address.
    assert_eq!(count(&coder, "agent_sessions.session").await, 2);
    assert_eq!(count(&coder, "agent_sessions.session_list()").await, 2);
    assert_eq!(count(&coder, "agent_sessions.session_get(session_id => 's', agent_id => 'planner')").await, 1);
    assert_eq!(count(&coder, "agent_sessions.session_get(session_id => 's')").await, 0);
    let refused = coder.try_append("s", "1").await;
    let error = assert_sqlstate!(refused, "SE002");
    assert_eq!(detail(&error), json!({"session_id": "s", "agent_id": "coder"}));
    assert!(error.as_db_error().and_then(|raised| raised.hint()).unwrap_or_default().contains("planner"));
    Append::to("s", "1").agent_id("planner").run(&coder).await.expect("a shared session");

    planner.run("set agent_sessions.isolation = 'agent'").await;
    coder.run("set agent_sessions.isolation = 'agent'").await;
    for read in [
        "agent_sessions.session where session_id = 's'",
        "agent_sessions.session_item",
        "agent_sessions.live_item",
        "agent_sessions.session_list() where session_id = 's'",
        "agent_sessions.session_list(agent_id => 'planner')",
        "agent_sessions.session_get(session_id => 's', agent_id => 'planner')",
        "agent_sessions.session_history(session_id => 's', agent_id => 'planner')",
        "agent_sessions.session_log(session_id => 's', agent_id => 'planner')",
        "agent_sessions.session_stats(session_id => 's', agent_id => 'planner')",
        "agent_sessions.session_verify(session_id => 's', agent_id => 'planner')",
    ] {
        assert!(count(&planner, read).await > 0, "{read}");
        assert_eq!(count(&coder, read).await, 0, "{read}");
    }
    assert_eq!(count(&coder, "agent_sessions.session").await, 1);
    assert_eq!(count(&coder, "agent_sessions.session_list()").await, 1);
    for write in [
        "select agent_sessions.session_append(session_id => 's', agent_id => 'planner', payload => '1')",
        "select agent_sessions.session_append_batch(session_id => 's', agent_id => 'planner', items => '[{\"payload\":1}]')",
        "select agent_sessions.session_revise(session_id => 's', agent_id => 'planner', target => 0, payload => '1')",
        "select agent_sessions.session_retract(session_id => 's', agent_id => 'planner', from_target => 0)",
        "select agent_sessions.session_set(session_id => 's', agent_id => 'planner', title => 'x')",
        "select agent_sessions.session_delete(session_id => 's', agent_id => 'planner')",
        "select agent_sessions.session_create(parent_session_id => 's', parent_agent_id => 'planner')",
    ] {
        let error = assert_sqlstate!(coder.batch_execute(write).await, "SE002");
        let raised = error.as_db_error().expect("the server's error");
        assert!(!raised.hint().unwrap_or_default().contains("exists for agent"), "{write}: {raised:?}");
    }
    for raw in [
        format!("insert into agent_sessions.session_item (sid, payload) values ({sid}, '1')"),
        format!("insert into agent_sessions.session (session_id, parent_sid) values ('sub', {sid})"),
    ] {
        assert_sqlstate!(coder.batch_execute(&raw).await, "SE002");
    }
    assert_sqlstate!(
        coder.batch_execute("insert into agent_sessions.session (agent_id, session_id) values ('planner', 'x')").await,
        "42501"
    );
    assert_sqlstate!(
        coder.batch_execute("select agent_sessions.session_create(session_id => 'x', agent_id => 'planner')").await,
        "42501"
    );
    for raw in [
        "update agent_sessions.session set title = 'x' where session_id = 's'",
        "delete from agent_sessions.session where session_id = 's'",
    ] {
        assert_eq!(coder.execute(raw, &[]).await.expect(raw), 0);
    }
    assert_sqlstate!(coder.batch_execute("set agent_sessions.isolation = 'none'").await, "22023");
    planner.run("select agent_sessions.session_claim(session_id => 's', ttl => '1 hour')").await;
    assert_eq!(count(&planner, "agent_sessions.lease_status").await, 1);
    assert_eq!(count(&coder, "agent_sessions.lease_status").await, 0);

    // Its own sessions are as ever, and the other's log is what it was.
    coder.append("mine", "1").await;
    coder
        .run("insert into agent_sessions.session_item (sid, payload) select sid, '2' from agent_sessions.session")
        .await;
    coder.assert_dense("mine", 2).await;
    planner.assert_dense("s", 2).await;
    assert_eq!(count(&planner, "agent_sessions.session where session_id = 's' and revision = 0").await, 1);
    coder.run("reset agent_sessions.isolation").await;
    assert_eq!(count(&coder, "agent_sessions.session").await, 2);
}

/// A parent is looked up as the caller: one that it may not see is one that is not there.
#[tokio::test(flavor = "multi_thread")]
async fn a_parent_is_of_the_same_tenant() {
    let db = Database::create("tenants_parents").await;
    let (a, b) = (in_tenant(&db, "a").await, in_tenant(&db, "b").await);
    let sid = with_a_session(&a).await;
    let by_function = "select agent_sessions.session_create(session_id => 'sub', parent_session_id => 's')";
    let by_insert = format!("insert into agent_sessions.session (session_id, parent_sid) values ('raw', {sid})");
    assert_sqlstate!(b.batch_execute(by_function).await, "SE002");
    assert_sqlstate!(b.batch_execute(&by_insert).await, "SE002");
    // Who passes the policies is held to it as well.
    for connection in [db.owner().await, db.superuser().await] {
        connection.run("set agent_sessions.tenant = 'b'").await;
        assert_sqlstate!(connection.batch_execute(by_function).await, "SE002");
        assert_sqlstate!(connection.batch_execute(&by_insert).await, "SE002");
    }
    a.run(by_function).await;
    a.run(&by_insert).await;
    let children = "agent_sessions.session_list(parent_session_id => 's') where parent_session_id = 's'";
    assert_eq!(count(&a, children).await, 2);
    assert_eq!(count(&b, children).await, 0);
    assert_eq!(count(&a, "agent_sessions.session_list()").await, 1, "roots only");
}

/// A backend keeps its plans; what one role may see does not become another role's.
#[tokio::test(flavor = "multi_thread")]
async fn plans_made_as_one_role_show_another_no_more() {
    let db = Database::create("tenants_plans").await;
    let sid = with_a_session(&in_tenant(&db, "a").await).await;
    let connection = db.superuser().await;
    let writer = db.role_name(&Role::Writer);
    let insert = format!("insert into agent_sessions.session_item (sid, payload) values ({sid}, '1')");
    for round in 0..8 {
        connection.run(&format!("reset role; set agent_sessions.tenant = 'a'; {insert}")).await;
        connection.append("s", "1").await;
        assert!(connection.verify("s").await.ok);
        for read in READS {
            assert!(count(&connection, read).await > 0, "{read}, round {round}");
        }
        connection.run(&format!("set agent_sessions.tenant = 'b'; set role {writer}")).await;
        for read in READS {
            assert_eq!(count(&connection, read).await, 0, "{read}, round {round}");
        }
        assert_sqlstate!(connection.batch_execute(&insert).await, "SE002");
        for write in WRITES {
            assert_sqlstate!(connection.batch_execute(write).await, "SE002");
        }
    }
    in_tenant(&db, "a").await.assert_dense("s", 17).await;
}
