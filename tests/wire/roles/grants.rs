//! What access_grant gives, access_revoke takes back, and nobody hands on.

use agent_sessions_tests::{Connection, Database, Role, assert_sqlstate, detail, sqlstate};

use super::functions::FUNCTIONS;
use super::{Level, assert_none, everybody, list, with_a_session};

const ACLS: &str = "
    with acls (object, acl) as (
      select 'relation ' || oid::regclass,
        coalesce(relacl, acldefault(case relkind when 'S' then 's' else 'r' end::\"char\", relowner))
      from pg_class where relnamespace = 'agent_sessions'::regnamespace and relkind in ('r', 'v', 'S', 'm')
      union all
      select 'column ' || attrelid::regclass || '.' || attname, attacl
      from pg_attribute join pg_class on pg_class.oid = attrelid
      where relnamespace = 'agent_sessions'::regnamespace and attacl is not null
      union all
      select 'function ' || oid::regprocedure, coalesce(proacl, acldefault('f', proowner))
      from pg_proc where pronamespace = 'agent_sessions'::regnamespace
      union all
      select 'schema ' || nspname, coalesce(nspacl, acldefault('n', nspowner)) from pg_namespace where nspname = 'agent_sessions'
      union all
      select 'type ' || oid::regtype, typacl from pg_type where typnamespace = 'agent_sessions'::regnamespace
      union all
      select 'default ' || oid, defaclacl from pg_default_acl
    )
    select object, grantee, grantor, privilege_type, is_grantable
    from acls, lateral aclexplode(acl)";

async fn acls(connection: &Connection) -> Vec<String> {
    let sql = format!(
        "select concat_ws(' ', object, grantee, grantor, privilege_type, is_grantable) from ({ACLS}) a order by 1"
    );
    list(connection, &sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_granted_to_public() {
    let db = Database::create("roles_public").await;
    let superuser = db.superuser().await;
    let public = format!("select object || ' ' || privilege_type from ({ACLS}) a where grantee = 0");
    assert_none(&superuser, "grants to PUBLIC", &public).await;
    assert!(acls(&superuser).await.len() > FUNCTIONS.len(), "the privileges are looked at");
}

/// What a superuser's default privileges would add to the objects that the installation makes is taken away again.
#[tokio::test(flavor = "multi_thread")]
async fn default_privileges_open_nothing() {
    let db = Database::empty("roles_defaults").await;
    let superuser = db.superuser().await;
    let other = db.role("other", None).await;
    for kind in ["tables", "sequences", "functions", "types", "schemas"] {
        superuser.run(&format!("alter default privileges grant all on {kind} to public, {other}")).await;
    }
    db.owner().await.run("create extension agent_sessions").await;
    let granted = format!(
        "select object || ' ' || privilege_type from ({ACLS}) a
         where object not like 'default %' and grantee in (0, '{other}'::regrole)"
    );
    assert_none(&superuser, "grants by default privileges", &granted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoke_leaves_nothing_of_a_grant() {
    let db = Database::create("roles_revoke").await;
    with_a_session(&db.writer().await).await;
    let (owner, superuser) = (db.owner().await, db.superuser().await);
    let role = db.role("guest", None).await;
    let guest = db.connect(Role::Named(role.clone())).await;
    let count = "select count(*) from agent_sessions.session";
    let depends = format!(
        "select classid::regclass::text from pg_shdepend where refobjid = '{role}'::regrole
         and dbid = (select oid from pg_database where datname = current_database())"
    );
    let before = acls(&superuser).await;
    for granting in [&owner, &superuser] {
        for level in ["reader", "writer", "auditor", "admin"] {
            assert_sqlstate!(guest.query(count, &[]).await, "42501");
            granting.run(&format!("select agent_sessions.access_grant(role => '{role}', level => '{level}')")).await;
            assert_ne!(acls(&superuser).await, before, "{level}");
            assert_eq!(guest.value::<i64>(count, &[]).await, 1, "{level}");
            let again = acls(&superuser).await;
            granting.run(&format!("select agent_sessions.access_grant(role => '{role}', level => '{level}')")).await;
            assert_eq!(acls(&superuser).await, again, "{level} twice");
            if ["writer", "admin"].contains(&level) {
                guest.append("s", "1").await;
            } else {
                assert_sqlstate!(guest.try_append("s", "1").await, "42501");
            }
            // What a superuser has granted is the owner's to take back.
            owner.run(&format!("select agent_sessions.access_revoke(role => '{role}')")).await;
            assert_eq!(acls(&superuser).await, before, "{level}");
            assert_none(&superuser, level, &depends).await;
        }
        granting.run(&format!("select agent_sessions.access_revoke(role => '{role}')")).await;
        assert_eq!(acls(&superuser).await, before, "a revoke without a grant");
    }
    // A writer who becomes nothing at once, in a session that has its plans.
    owner.run(&format!("select agent_sessions.access_grant('{role}', 'writer')")).await;
    guest.append("s", "2").await;
    owner.run(&format!("select agent_sessions.access_revoke('{role}')")).await;
    assert_sqlstate!(guest.try_append("s", "3").await, "42501");
    assert_sqlstate!(guest.raw_append("s", "3").await, "42501");
}

#[tokio::test(flavor = "multi_thread")]
async fn access_is_handed_out_by_the_owner_only() {
    let db = Database::create("roles_grant").await;
    let (owner, superuser, writer) = (db.owner().await, db.superuser().await, db.writer().await);
    let role = db.role("guest", None).await;
    let deputy = db.role("deputy", Some("writer")).await;
    let before = acls(&superuser).await;
    let calls = [
        format!("select agent_sessions.access_grant('{role}', 'reader')"),
        format!("select agent_sessions.access_revoke('{}')", db.role_name(&Role::Reader)),
        "select agent_sessions.access_force_rls(true)".to_owned(),
        format!("select agent_sessions.tenant_bind('{role}', 'a')"),
        format!("select agent_sessions.tenant_unbind('{role}', 'a')"),
    ];
    for call in &calls {
        assert_sqlstate!(writer.batch_execute(call).await, "42501");
    }
    assert_eq!(acls(&superuser).await, before);

    // EXECUTE alone does not make an owner.
    for function in ["access_grant", "access_revoke", "access_force_rls", "tenant_bind", "tenant_unbind"] {
        owner.run(&format!("grant execute on function agent_sessions.{function} to {deputy}")).await;
    }
    let before = acls(&superuser).await;
    let connection = db.connect(Role::Named(deputy.clone())).await;
    for call in &calls {
        assert_sqlstate!(connection.batch_execute(call).await, "42501");
    }
    assert_eq!(acls(&superuser).await, before);
    assert_eq!(owner.value::<i64>("select count(*) from agent_sessions.tenant_binding", &[]).await, 0);
    assert_eq!(owner.value::<i64>("select count(*) from agent_sessions.setting", &[]).await, 0);
    // A member of the owner's role is as the owner.
    superuser.run(&format!("grant {} to {deputy}", db.role_name(&Role::Owner))).await;
    for call in &calls {
        connection.begin("read committed").await;
        connection.run(call).await;
        connection.rollback().await;
    }

    for level in ["", "owner", "Reader", "superuser"] {
        let call = format!("select agent_sessions.access_grant('{role}', '{level}')");
        let error = assert_sqlstate!(owner.batch_execute(&call).await, "SE001");
        assert_eq!(detail(&error)["argument"], "level");
    }
    for call in [
        "select agent_sessions.access_grant('no such role', 'reader')",
        "select agent_sessions.access_grant('public', 'reader')",
        "select agent_sessions.access_revoke('no such role')",
        "select agent_sessions.tenant_bind('no such role', 'a')",
        "select agent_sessions.tenant_unbind('no such role', 'a')",
    ] {
        assert_sqlstate!(owner.batch_execute(call).await, "42704");
    }
    // A name that has to be quoted is one name.
    let odd = r#"odd "role"; drop table agent_sessions.session_item"#;
    superuser.begin("read committed").await;
    superuser.run(&format!("create role {}", quoted(odd))).await;
    superuser.execute("select agent_sessions.access_grant($1::text::name, 'reader')", &[&odd]).await.expect("a grant");
    let may = "select has_table_privilege($1::text::name, 'agent_sessions.session', 'SELECT')";
    assert!(superuser.value::<bool>(may, &[&odd]).await);
    superuser.execute("select agent_sessions.access_revoke($1::text::name)", &[&odd]).await.expect("a revoke");
    assert!(!superuser.value::<bool>(may, &[&odd]).await);
    superuser.rollback().await;
}

/// Who holds a privilege cannot hand it on; PostgreSQL only warns of that where some privilege is held.
#[tokio::test(flavor = "multi_thread")]
async fn no_level_hands_its_privileges_on() {
    let db = Database::create("roles_hand_on").await;
    let (superuser, guest) = (db.superuser().await, db.role("guest", None).await);
    let everybody = everybody(&db).await;
    let before = acls(&superuser).await;
    for somebody in everybody.iter().filter(|somebody| !somebody.may(Level::Owner)) {
        for grantee in ["public", &guest] {
            for privilege in [
                "usage on schema agent_sessions",
                "select on all tables in schema agent_sessions",
                "select on agent_sessions.session",
                "insert (session_id) on agent_sessions.session",
                "execute on all functions in schema agent_sessions",
                "execute on function agent_sessions.session_get",
                "execute on function agent_sessions.session_append",
                "usage on type agent_sessions.item_row",
                "usage on sequence agent_sessions.lease_fence_seq",
            ] {
                let grant = format!("grant {privilege} to {grantee}");
                if let Err(error) = somebody.connection.batch_execute(&grant).await {
                    assert_eq!(sqlstate(&error), "42501", "{grant} as {}: {error:?}", somebody.title);
                }
            }
        }
        assert_eq!(acls(&superuser).await, before, "{}", somebody.title);
    }
}

fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}
