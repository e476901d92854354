//! To whom a binding holds, and from when on: sessions that are under way, roles in roles, and roles that take the place of others.

use agent_sessions_tests::{Cluster, Connection, Database, Error, Role, assert_sqlstate, sqlstate};

/// A database with a session in each of these tenants.
async fn with_tenants(name: &str, tenants: &[&str]) -> Database {
    let db = Database::create(name).await;
    let writer = db.writer().await;
    for tenant in tenants {
        writer.run(&format!("set agent_sessions.tenant = '{tenant}'; select agent_sessions.session_create('s')")).await;
    }
    db
}

async fn bind(owner: &Connection, role: &str, tenant: &str) {
    owner.run(&format!("select agent_sessions.tenant_bind('{role}', '{tenant}')")).await;
}

/// What a statement comes to inside of the transaction that is open, without ending it.
async fn within(connection: &Connection, sql: &str) -> Result<u64, Error> {
    connection.run("savepoint before").await;
    let result = connection.execute(sql, &[]).await;
    connection.run("rollback to before").await;
    result
}

/// Asserts which of these tenants the connection may work in, by function and by raw SQL.
async fn assert_admitted_to(connection: &Connection, tenants: &[&str], all: &[&str], why: &str) {
    for tenant in all {
        connection.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        let current = connection.query("select agent_sessions.current_tenant()", &[]).await;
        let listed = connection.query("select * from agent_sessions.session_list()", &[]).await;
        let rows = connection.execute("select from agent_sessions.session", &[]).await.expect("raw SQL");
        let told = (current.as_ref().err().map(sqlstate), listed.as_ref().err().map(sqlstate), rows);
        let wanted = if tenants.contains(tenant) { (None, None, 1) } else { (Some("SE019"), Some("SE019"), 0) };
        assert_eq!(told, wanted, "{tenant:?}, {why}");
    }
}

/// Statements whose plans and look-ups are all there when the binding comes, in a transaction that holds its locks.
#[tokio::test(flavor = "multi_thread")]
async fn a_binding_holds_from_the_next_statement_on() {
    let db = with_tenants("bindings_meanwhile", &["a", "b"]).await;
    let owner = db.owner().await;
    let role = db.role("bound", Some("writer")).await;
    let client = db.connect(Role::Named(role.clone())).await;
    client.run("select agent_sessions.schema_version(); set agent_sessions.tenant = 'b'").await;
    let refused = [
        "select agent_sessions.current_tenant()",
        "select * from agent_sessions.session_list()",
        "select * from agent_sessions.session_history('s')",
        "select agent_sessions.session_append('s', '1')",
        "select agent_sessions.audit_append('a')",
        "insert into agent_sessions.session (session_id) values ('new')",
        "insert into agent_sessions.audit_event (action) values ('a')",
    ];
    let finding = "select from agent_sessions.session";
    for isolation in ["read committed", "repeatable read", "serializable"] {
        for sql in refused {
            client.begin(isolation).await;
            for _ in 0..3 {
                within(&client, sql).await.unwrap_or_else(|error| panic!("{sql}, {isolation}: {error:?}"));
                assert_eq!(within(&client, finding).await.expect(finding), 1);
            }
            bind(&owner, &role, "a").await;
            match within(&client, sql).await {
                Ok(_) => panic!("{sql}, {isolation}: as if it were not bound"),
                Err(error) => assert_eq!(sqlstate(&error), "SE019", "{sql}, {isolation}: {error:?}"),
            }
            assert_eq!(within(&client, finding).await.expect(finding), 0, "{isolation}");
            owner.run(&format!("select agent_sessions.tenant_unbind('{role}', 'a')")).await;
            within(&client, sql).await.unwrap_or_else(|error| panic!("{sql}, {isolation}: still bound: {error:?}"));
            assert_eq!(within(&client, finding).await.expect(finding), 1, "{isolation}");
            client.rollback().await;
        }
    }
}

const ALL: [&str; 4] = ["", "a", "b", "c"];

/// Of who is logged in, and of whom a function or SET ROLE makes of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_in_two_roles_has_the_tenants_that_both_have() {
    let db = with_tenants("bindings_two", &ALL).await;
    let (owner, superuser) = (db.owner().await, db.superuser().await);
    let [one, two, both, free] = [
        db.role("one", Some("writer")).await,
        db.role("two", Some("writer")).await,
        db.role("both", Some("writer")).await,
        db.role("free", Some("writer")).await,
    ];
    for (role, tenant) in [(&one, "a"), (&two, "b"), (&both, "a"), (&both, "b")] {
        bind(&owner, role, tenant).await;
    }
    // A function that works as its owner, whoever calls it.
    superuser.run("create schema own; grant usage on schema own to public").await;
    for definer in [&two, &free] {
        superuser
            .run(&format!(
                "create function own.as_{definer}() returns bigint language sql security definer
                   as 'select count(*) from agent_sessions.session_list()';
                 alter function own.as_{definer}() owner to {definer}"
            ))
            .await;
    }
    let cases: [(&str, &str, &[&str]); 7] = [
        (&one, &free, &["a"]),
        (&one, &two, &[]),
        (&two, &two, &["b"]),
        (&both, &two, &["b"]),
        (&both, &free, &["a", "b"]),
        (&free, &two, &["b"]),
        (&free, &free, &ALL),
    ];
    for (caller, definer, wanted) in cases {
        let client = db.connect(Role::Named(caller.to_owned())).await;
        client.run("select agent_sessions.schema_version()").await;
        let mut admitted = Vec::new();
        for tenant in ALL {
            client.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
            match client.try_value::<i64>(&format!("select own.as_{definer}()"), &[]).await {
                Ok(sessions) => {
                    assert_eq!(sessions, 1, "{tenant:?}, {caller}, {definer}");
                    admitted.push(tenant);
                }
                Err(error) => assert_eq!(sqlstate(&error), "SE019", "{tenant:?}, {caller}, {definer}: {error:?}"),
            }
        }
        assert_eq!(admitted, wanted, "{caller} as {definer}");
    }

    // A pool that is a superuser, and becomes its clients; a member has what its groups have, and as one of them no more.
    superuser.run(&format!("grant {two}, {free} to {one}; select agent_sessions.schema_version()")).await;
    for (step, wanted) in [
        ("reset role".to_owned(), ALL.as_slice()),
        (format!("set role {both}"), &["a", "b"]),
        (format!("set role {one}"), &["a", "b"]),
        (format!("reset role; set session authorization {one}"), &["a", "b"]),
        (format!("set role {two}"), &["b"]),
        (format!("set role {free}"), &["a", "b"]),
        (format!("reset role; reset session authorization; set session authorization {free}"), &ALL),
        ("reset session authorization".to_owned(), &ALL),
    ] {
        superuser.run(&step).await;
        for tenant in ALL {
            superuser.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
            let current = superuser.query("select agent_sessions.current_tenant()", &[]).await;
            let code = current.as_ref().err().map(sqlstate);
            assert_eq!(code, (!wanted.contains(&tenant)).then_some("SE019"), "{tenant:?} after {step}");
        }
    }
}

/// However a role is a member: through others, without their privileges, or without the right to become one of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_is_bound_however_it_is_one() {
    let db = with_tenants("bindings_members", &ALL).await;
    let (owner, superuser) = (db.owner().await, db.superuser().await);
    let [top, middle, member] =
        [db.role("top", None).await, db.role("middle", None).await, db.role("member", Some("writer")).await];
    bind(&owner, &top, "a").await;
    superuser
        .run(&format!("alter role {middle} noinherit; alter role {member} noinherit; grant {top} to {middle}"))
        .await;
    let client = db.connect(Role::Named(member.clone())).await;
    client.run("select agent_sessions.schema_version()").await;
    assert_admitted_to(&client, &ALL, &ALL, "no member").await;
    let mut options = vec!["", " with admin option"];
    if Cluster::major() >= 16 {
        options.push(" with inherit false, set false");
    }
    for option in options {
        superuser.run(&format!("grant {middle} to {member}{option}")).await;
        assert_admitted_to(&client, &["a"], &ALL, option).await;
        superuser.run(&format!("revoke {middle} from {member}")).await;
        assert_admitted_to(&client, &ALL, &ALL, "no member any more").await;
    }
    superuser.run(&format!("grant {middle} to {member}; revoke {top} from {middle}")).await;
    assert_admitted_to(&client, &ALL, &ALL, "a group that is no member any more").await;
}

/// A binding is a role's, not a name's.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_takes_the_name_of_another_does_not_take_its_tenants() {
    let db = with_tenants("bindings_names", &ALL).await;
    let (owner, superuser) = (db.owner().await, db.superuser().await);
    let role = db.role("bound", Some("writer")).await;
    bind(&owner, &role, "a").await;
    let client = db.connect(Role::Named(role.clone())).await;
    client.run("select agent_sessions.schema_version()").await;
    assert_admitted_to(&client, &["a"], &ALL, "bound").await;

    // Under another name it stays bound; who has its name now is not.
    superuser.run(&format!("alter role {role} rename to {role}_old; create role {role} login")).await;
    owner.run(&format!("select agent_sessions.access_grant('{role}', 'writer')")).await;
    assert_admitted_to(&client, &["a"], &ALL, "renamed").await;
    let newcomer = db.connect(Role::Named(role.clone())).await;
    newcomer.run("select agent_sessions.schema_version()").await;
    assert_admitted_to(&newcomer, &ALL, &ALL, "under a name that was bound").await;
    drop(client);
    superuser.run(&format!("select agent_sessions.access_revoke('{role}_old'); drop role {role}_old")).await;
    assert_admitted_to(&newcomer, &ALL, &ALL, "after the other is gone").await;

    // Dropped and made again it is another role: without a grant, and without a binding until it gets one.
    bind(&owner, &role, "b").await;
    assert_admitted_to(&newcomer, &["b"], &ALL, "bound itself").await;
    let left = "select count(*) from agent_sessions.tenant_binding";
    assert_eq!(owner.value::<i64>(left, &[]).await, 1, "what the dropped role left is gone");
    drop(newcomer);
    superuser
        .run(&format!("select agent_sessions.access_revoke('{role}'); drop role {role}; create role {role} login"))
        .await;
    let again = db.connect(Role::Named(role.clone())).await;
    assert_sqlstate!(again.query("select agent_sessions.current_tenant()", &[]).await, "42501");
    owner.run(&format!("select agent_sessions.access_grant('{role}', 'writer')")).await;
    again.run("select agent_sessions.schema_version()").await;
    assert_admitted_to(&again, &ALL, &ALL, "made again").await;
    bind(&owner, &role, "c").await;
    assert_admitted_to(&again, &["c"], &ALL, "made again and bound").await;
}
