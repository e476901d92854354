//! Installing: by a role that is no superuser, into a schema of its own, in a database of the right encoding, again after
//! a DROP.

use agent_sessions_tests::{Connection, Database, Role, assert_sqlstate, detail};

async fn installed(connection: &Connection) -> i64 {
    connection.value("select count(*) from pg_extension where extname = 'agent_sessions'", &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_owner_installs_it_and_uses_it() {
    let db = Database::empty("install_owner").await;
    let owner = db.owner().await;
    let superuser: bool = owner.value("select rolsuper from pg_roles where rolname = current_user", &[]).await;
    assert!(!superuser);
    owner.run("create extension agent_sessions").await;
    owner.create_session("s").await;
    owner.append("s", "1").await;
    owner.assert_dense("s", 1).await;
    // Nobody else has anything of it until it is handed out.
    assert_sqlstate!(db.writer().await.query("select agent_sessions.schema_version()", &[]).await, "42501");
    let where_to = "select extnamespace::regnamespace::text || ' ' || extrelocatable from pg_extension where extname = 'agent_sessions'";
    assert_eq!(owner.value::<String>(where_to, &[]).await, "pg_catalog false");
}

/// CREATE on the database is enough, and then the extension is that role's.
#[tokio::test(flavor = "multi_thread")]
async fn the_installing_role_owns_it() {
    let db = Database::empty("install_role").await;
    let role = db.role("installer", None).await;
    let installer = db.connect(Role::Named(role.clone())).await;
    assert_sqlstate!(installer.batch_execute("create extension agent_sessions").await, "42501");
    db.owner().await.run(&format!("grant create on database {} to {role}", db.name)).await;
    installer.run("create extension agent_sessions").await;
    installer.run(&format!("select agent_sessions.access_grant('{}', 'writer')", db.role_name(&Role::Writer))).await;
    db.writer().await.create_session("s").await;
    let foreign = "select count(*) from pg_class
                   where relnamespace = 'agent_sessions'::regnamespace and relowner <> current_user::regrole";
    assert_eq!(installer.value::<i64>(foreign, &[]).await, 0);
    let owner = db.owner().await;
    assert_sqlstate!(owner.query("select * from agent_sessions.session", &[]).await, "42501");
    assert_sqlstate!(owner.batch_execute("drop extension agent_sessions").await, "42501");
    installer.run("drop extension agent_sessions").await;
}

/// A superuser may own it too; the roles that it hands out to are none.
#[tokio::test(flavor = "multi_thread")]
async fn a_superuser_installs_it_as_well() {
    let db = Database::empty("install_superuser").await;
    let superuser = db.superuser().await;
    superuser.run("create extension agent_sessions").await;
    let writer = db.role_name(&Role::Writer);
    superuser.run(&format!("select agent_sessions.access_grant('{writer}', 'writer')")).await;
    let connection = db.writer().await;
    work(&connection, "s").await;
    assert_sqlstate!(db.owner().await.batch_execute("select agent_sessions.schema_version()").await, "42501");
    superuser.run(&format!("select agent_sessions.access_revoke('{writer}')")).await;
    assert_sqlstate!(connection.try_append("s", "1").await, "42501");
    superuser.run("drop extension agent_sessions").await;
}

/// Whoever owns a schema can drop what is in it; one that was there before is not adopted.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_somebody_elses_is_not_adopted() {
    let db = Database::empty("install_squatter").await;
    let role = db.role("squatter", None).await;
    let owner = db.owner().await;
    owner.run(&format!("grant create on database {} to {role}", db.name)).await;
    let squatter = db.connect(Role::Named(role.clone())).await;
    for prepared in [
        "create schema agent_sessions",
        "create table agent_sessions.session (mine text)",
        "create function agent_sessions.current_tenant() returns text language sql as 'select 1::text'",
    ] {
        squatter.run(prepared).await;
        for create in ["create extension agent_sessions", "create extension if not exists agent_sessions"] {
            assert_sqlstate!(owner.batch_execute(create).await, "42P06");
            assert_sqlstate!(db.superuser().await.batch_execute(create).await, "42P06");
        }
        assert_eq!(installed(&owner).await, 0);
        let kept = format!(
            "select count(*) from pg_namespace n where nspname = 'agent_sessions' and nspowner = '{role}'::regrole
             and not exists (select from pg_depend where classid = 'pg_namespace'::regclass and objid = n.oid and deptype = 'e')"
        );
        assert_eq!(owner.value::<i64>(&kept, &[]).await, 1);
        let tables = "select coalesce(string_agg(relname, ','), '') from pg_class
                      where relnamespace = 'agent_sessions'::regnamespace and relkind = 'r'";
        assert!(["", "session"].contains(&owner.value::<String>(tables, &[]).await.as_str()));
    }
    assert!(owner.batch_execute("create extension agent_sessions schema agent_sessions").await.is_err());
    squatter.run("drop schema agent_sessions cascade").await;
    owner.run("create extension agent_sessions").await;
    assert_eq!(installed(&owner).await, 1);
}

/// A database beside a test's own, dropped with it.
struct Beside<'a> {
    db: &'a Database,
    name: String,
}

impl Beside<'_> {
    async fn drop(self) {
        self.db.superuser().await.run(&format!("drop database {} with (force)", self.name)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_not_utf8_is_refused() {
    let db = Database::empty("install_encoding").await;
    let superuser = db.superuser().await;
    for encoding in ["SQL_ASCII", "LATIN1", "EUC_JP"] {
        let beside = Beside { db: &db, name: format!("{}_{}", db.name, encoding.to_lowercase()) };
        superuser
            .run(&format!(
                "create database {} encoding '{encoding}' lc_collate 'C' lc_ctype 'C' template template0 owner {}",
                beside.name,
                db.role_name(&Role::Owner)
            ))
            .await;
        let owner = db.cluster.connect(&db.role_name(&Role::Owner), &beside.name).await;
        let refused = owner.batch_execute("create extension agent_sessions").await;
        let nothing = "select count(*) from pg_namespace where nspname = 'agent_sessions'";
        let left: i64 = owner.value(nothing, &[]).await;
        drop(owner);
        beside.drop().await;
        assert_sqlstate!(refused, "0A000");
        assert_eq!(left, 0, "{encoding}");
    }
}

async fn work(connection: &Connection, session: &str) {
    connection.create_session(session).await;
    assert_eq!(connection.append(session, "{\"a\":1}").await, 0);
    assert_eq!(connection.append_batch(session, r#"[{"payload":1,"item_id":"i"},{"payload":2}]"#).await, [1, 2]);
    assert_eq!(connection.raw_append(session, "3").await.expect("a raw append"), 1);
    for (change, wanted) in [
        ("session_revise(session_id => $1::text, item_id => 'i', payload => '4')", 4i64),
        ("session_retract(session_id => $1::text, targets => '{2}')", 1),
        ("session_set(session_id => $1::text, title => 'T')", 1),
        ("session_pop(session_id => $1::text)", 3),
    ] {
        let sql = format!("select * from agent_sessions.{change}");
        assert_eq!(connection.value::<i64>(&sql, &[&session]).await, wanted, "{change}");
    }
    assert_eq!(connection.history(session).await.len(), 2);
    connection.assert_dense(session, 7).await;
    let listed = "select count(*) from agent_sessions.session_list()";
    assert_eq!(connection.value::<i64>(listed, &[]).await, 1);
    connection.run(&format!("select agent_sessions.session_delete('{session}')")).await;
}

/// Backends keep their plans, and what they remember of roles and tables, over a DROP and a CREATE.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_extension_is_created_again_in_the_same_sessions() {
    let db = Database::create("install_again").await;
    let (owner, writer) = (db.owner().await, db.writer().await);
    let bound = db.role("bound", Some("writer")).await;
    let client = db.connect(Role::Named(bound.clone())).await;
    for round in 0..3 {
        let session = format!("round {round}");
        work(&owner, &session).await;
        work(&writer, &session).await;
        work(&client, &session).await;
        owner.run(&format!("select agent_sessions.tenant_bind('{bound}', 'a')")).await;
        assert_sqlstate!(client.query("select agent_sessions.current_tenant()", &[]).await, "SE019");

        owner.run("drop extension agent_sessions").await;
        let left = "select count(*) from pg_namespace where nspname = 'agent_sessions'";
        assert_eq!(owner.value::<i64>(left, &[]).await, 0);
        assert_sqlstate!(writer.try_append(&session, "1").await, "3F000");
        owner.run("create extension agent_sessions").await;
        assert_sqlstate!(writer.try_append(&session, "1").await, "42501");
        for role in [db.role_name(&Role::Writer), bound.clone()] {
            owner.run(&format!("select agent_sessions.access_grant('{role}', 'writer')")).await;
        }
        // Bindings have gone with the extension.
        assert_eq!(client.value::<i64>("select count(*) from agent_sessions.session", &[]).await, 0);
    }
    // In one transaction, undone.
    owner.create_session("kept").await;
    owner.append("kept", "1").await;
    owner.begin("read committed").await;
    owner.run("drop extension agent_sessions; create extension agent_sessions").await;
    owner.create_session("kept").await;
    owner.assert_dense("kept", 0).await;
    owner.rollback().await;
    owner.assert_dense("kept", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_version_is_told_and_required() {
    let db = Database::create("install_version").await;
    let reader = db.reader().await;
    let version: String = reader.value("select agent_sessions.schema_version()", &[]).await;
    let extension = "select extversion from pg_extension where extname = 'agent_sessions'";
    assert_eq!(reader.value::<String>(extension, &[]).await, version);
    let require = "select agent_sessions.schema_require(min => $1::text, max => $2::text)";
    let (lowest, highest) = ("0.0.0", "9999.0.0");
    for (min, max) in [
        (None, None),
        (Some(version.as_str()), None),
        (None, Some(version.as_str())),
        (Some(&version), Some(&version)),
        (Some(lowest), Some(highest)),
    ] {
        reader.execute(require, &[&min, &max]).await.unwrap_or_else(|error| panic!("{min:?} to {max:?}: {error:?}"));
    }
    for (min, max) in
        [(Some(highest), None), (None, Some(lowest)), (Some(highest), Some(lowest)), (Some(highest), Some(&version))]
    {
        let error = assert_sqlstate!(reader.execute(require, &[&min, &max]).await, "SE005");
        assert_eq!(detail(&error)["actual"], *version);
    }
    for malformed in ["", "one", "1", "1.x.0", "1.0.0.0.0", "-1.0.0", " 1.0.0", "v1.0.0", "99999999999999999999.0.0"] {
        for (min, max) in [(Some(malformed), None), (None, Some(malformed))] {
            let argument = if min.is_some() { "min" } else { "max" };
            let error = assert_sqlstate!(reader.execute(require, &[&min, &max]).await, "SE001");
            assert_eq!(detail(&error)["argument"], argument, "{malformed:?}");
        }
    }
}
