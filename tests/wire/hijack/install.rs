//! Installing among the shadows, over what others have prepared, and elsewhere.

use agent_sessions_tests::{Role, assert_sqlstate};

use super::*;

/// Everything that the installation has made, in PostgreSQL's words.
const MADE: &str = "
    select i.kind || ' ' || i.name || ': ' || i.statement from agent_sessions.as_installed i
    union all
    select 'body of ' || c.oid::regclass || ': ' || pg_get_viewdef(c.oid) from pg_class c
    where c.relnamespace = 'agent_sessions'::regnamespace and c.relkind = 'v'
    union all
    select 'body of ' || p.oid::regprocedure || ': ' || pg_get_functiondef(p.oid) from pg_proc p
    where p.pronamespace = 'agent_sessions'::regnamespace
    union all
    select 'comment: ' || d.description from pg_description d join pg_class c on c.oid = d.objoid and d.classoid = 'pg_class'::regclass
    where c.relnamespace = 'agent_sessions'::regnamespace
    order by 1";

async fn made(db: &Database) -> Vec<String> {
    let rows = db.superuser().await.query(MADE, &[]).await.expect("what was made");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_runs_and_uses_nothing_of_an_attackers() {
    let clean = made(&Database::create("hijack_clean").await).await;
    let db = Database::empty("hijack_install").await;
    db.superuser().await.run(SHADOWS).await;
    for installer in [Role::Superuser, Role::Owner] {
        let connection = db.connect(installer.clone()).await;
        hijack(&connection).await;
        assert_shadowed(&db, &connection).await;
        let before = ran(&db).await;
        connection.run("create extension agent_sessions").await;
        assert_eq!(made(&db).await, clean, "{installer:?}");
        let foreign = "select count(*) from pg_depend d join pg_depend s on s.classid = d.refclassid and s.objid = d.refobjid
                       where s.refclassid = 'pg_namespace'::regclass and s.refobjid = 'attack'::regnamespace
                         and exists (select from pg_extension e join pg_depend m on m.refobjid = e.oid and m.deptype = 'e'
                                     where e.extname = 'agent_sessions' and m.classid = d.classid and m.objid = d.objid)";
        assert_eq!(db.superuser().await.value::<i64>(foreign, &[]).await, 0);
        connection.run("drop extension agent_sessions").await;
        assert_eq!(ran(&db).await, before, "{installer:?}");
    }
}

/// Whatever it is that somebody has made in a schema of that name, the installation neither takes nor replaces it.
#[tokio::test(flavor = "multi_thread")]
async fn objects_of_every_kind_are_not_adopted() {
    let db = Database::empty("hijack_squatter").await;
    let role = db.role("squatter", None).await;
    let owner = db.owner().await;
    owner.run(&format!("grant create on database {} to {role}", db.name)).await;
    let squatter = db.connect(Role::Named(role.clone())).await;
    for prepared in [
        "create view agent_sessions.live_item as select 1 as position",
        "create materialized view agent_sessions.session_item as select 1 as position",
        "create sequence agent_sessions.lease_fence_seq",
        "create type agent_sessions.item_row as (position bigint)",
        "create type agent_sessions.session_row as enum ('a')",
        "create domain agent_sessions.audit_row as text",
        "create function agent_sessions.on_item_insert() returns trigger language plpgsql as 'begin return new; end'",
        "create function agent_sessions.doctor(older_than interval) returns void language sql as ''",
        "create procedure agent_sessions.session_append() language sql as ''",
        "create aggregate agent_sessions.session_stats(bigint) (sfunc = int8pl, stype = bigint)",
        "create operator agent_sessions.= (leftarg = text, rightarg = text, function = textne)",
        "create collation agent_sessions.\"C\" from \"C\"",
        "create text search configuration agent_sessions.simple (copy = simple)",
        "create table agent_sessions.setting (name text primary key, value text)",
    ] {
        squatter.run(&format!("create schema agent_sessions; {prepared}")).await;
        let before = made_by(&squatter).await;
        for connection in [&owner, &db.superuser().await] {
            for create in [
                "create extension agent_sessions",
                "create extension if not exists agent_sessions cascade",
                "create extension agent_sessions schema pg_catalog",
            ] {
                assert_sqlstate!(connection.batch_execute(create).await, "42P06");
            }
        }
        assert_eq!(made_by(&squatter).await, before, "{prepared}");
        squatter.run("drop schema agent_sessions cascade").await;
    }
    // What lies elsewhere under our names is left alone.
    squatter.run("create schema mine; create table mine.session (sid bigint); create function mine.doctor() returns text language sql as 'select null::text'").await;
    owner.run("create extension agent_sessions").await;
    assert_eq!(squatter.value::<i64>("select count(*) from mine.session", &[]).await, 0);
    assert_sqlstate!(squatter.batch_execute("create table agent_sessions.mine ()").await, "42501");
}

/// What there is in the schema, and whose it is.
async fn made_by(connection: &Connection) -> Vec<String> {
    let sql = "select concat_ws(' ', d.classid::regclass, d.objid, n.nspowner::regrole) from pg_depend d join pg_namespace n on n.oid = d.refobjid
               where d.refclassid = 'pg_namespace'::regclass and n.nspname = 'agent_sessions' order by 1";
    connection.query(sql, &[]).await.expect("objects").iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_installed_where_it_belongs_or_not_at_all() {
    let db = Database::empty("hijack_elsewhere").await;
    let owner = db.owner().await;
    owner.run("create schema x").await;
    let superuser = db.superuser().await;
    for (create, code) in [
        ("create extension agent_sessions schema x", "0A000"),
        ("create extension agent_sessions schema agent_sessions", "3F000"),
        ("create extension agent_sessions version '9.9.9'", "22023"),
    ] {
        for connection in [&owner, &superuser] {
            assert_sqlstate!(connection.batch_execute(create).await, code);
        }
    }
    // With CASCADE, PostgreSQL takes the schema for what else would be installed.
    owner.run("create extension agent_sessions schema x cascade").await;
    let in_x =
        "select count(*) from pg_depend where refclassid = 'pg_namespace'::regclass and refobjid = 'x'::regnamespace";
    assert_eq!(owner.value::<i64>(in_x, &[]).await, 0);
    for (alter, code) in [
        ("alter extension agent_sessions set schema x", "0A000"),
        ("alter extension agent_sessions update to '9.9.9'", "22023"),
        ("alter extension agent_sessions add schema agent_sessions", "55000"),
    ] {
        assert_sqlstate!(owner.batch_execute(alter).await, code);
    }
    let outside = "select count(*) from pg_depend d join pg_extension e on e.oid = d.refobjid and d.refclassid = 'pg_extension'::regclass,
                     lateral pg_identify_object(d.classid, d.objid, 0) o
                   where e.extname = 'agent_sessions' and d.deptype = 'e'
                     and o.schema is distinct from 'agent_sessions' and o.identity <> 'agent_sessions'";
    assert_eq!(superuser.value::<i64>(outside, &[]).await, 0);
}

/// Whoever could add a member could have it dropped with the extension, or kept out of dumps.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_changes_what_belongs_to_it() {
    let db = Database::create("hijack_members").await;
    let role = db.role("stranger", Some("admin")).await;
    db.superuser().await.run(&format!("create schema theirs authorization {role}")).await;
    let stranger = db.connect(Role::Named(role)).await;
    stranger
        .run("create table theirs.t (); create function theirs.f() returns text language sql as 'select null::text'; create type theirs.e as enum ('a')")
        .await;
    for alter in [
        "alter extension agent_sessions add table theirs.t",
        "alter extension agent_sessions add function theirs.f()",
        "alter extension agent_sessions add type theirs.e",
        "alter extension agent_sessions drop table agent_sessions.session",
        "alter extension agent_sessions update",
        "drop extension agent_sessions",
        "comment on extension agent_sessions is 'theirs'",
        "create or replace function agent_sessions.session_get(session_id text, agent_id text, tenant text)
           returns setof agent_sessions.session_row language sql as 'select null'",
        "create or replace view agent_sessions.live_item as select 1",
        "create function agent_sessions.f() returns text language sql as 'select null'",
        "alter table agent_sessions.session_item disable trigger link",
        "create trigger theirs before insert on agent_sessions.session_item for each row execute function agent_sessions.on_item_insert()",
        "create trigger theirs before insert on theirs.t for each row execute function agent_sessions.on_item_insert()",
        "create policy theirs on agent_sessions.session using (true)",
        "create rule theirs as on insert to agent_sessions.session_item do instead nothing",
        "create index on agent_sessions.session_item ((theirs.f()))",
        "create statistics theirs.s on sid, position from agent_sessions.session_item",
        "create table theirs.child () inherits (agent_sessions.session_item)",
        "create table theirs.refers (sid bigint references agent_sessions.session (sid))",
        "alter table agent_sessions.session_item alter column author set default theirs.f()",
        "alter table agent_sessions.session_item add constraint theirs check (theirs.f() is null)",
        "lock table agent_sessions.session_item in access exclusive mode",
        "security label for none on table agent_sessions.session is 'theirs'",
    ] {
        let refused = stranger.batch_execute(&format!("begin; {alter}; commit")).await;
        let code = if alter.starts_with("security") { "22023" } else { "42501" };
        assert_sqlstate!(refused, code);
        stranger.rollback().await;
    }
}

/// An event trigger is a superuser's own; it sees what we do, and stands in nobody's way.
#[tokio::test(flavor = "multi_thread")]
async fn event_triggers_see_the_statements_of_the_caller() {
    let db = Database::empty("hijack_event").await;
    let (owner, superuser) = (db.owner().await, db.superuser().await);
    superuser
        .run(
            "create schema watch; grant usage on schema watch to public;
             create table watch.seen (tag text, who text); grant insert on watch.seen to public;
             create function watch.see() returns event_trigger language plpgsql as
               'begin insert into watch.seen values (tg_tag, current_user); end';
             create event trigger see on ddl_command_end execute function watch.see();
             create event trigger dropped on sql_drop execute function watch.see()",
        )
        .await;
    owner.run("create extension agent_sessions").await;
    let writer = db.role_name(&Role::Writer);
    superuser.run("truncate watch.seen").await;
    owner.run(&format!("select agent_sessions.access_grant('{writer}', 'writer')")).await;
    let client = db.writer().await;
    client.create_session("s").await;
    client.append("s", "1").await;
    client.run("select agent_sessions.session_delete('s')").await;
    owner.run("select agent_sessions.access_force_rls(true); select agent_sessions.access_force_rls(false)").await;
    let seen =
        superuser.query("select distinct tag, who from watch.seen order by 1, 2", &[]).await.expect("what was seen");
    let seen: Vec<(String, String)> = seen.iter().map(|row| (row.get(0), row.get(1))).collect();
    let owner_name = db.role_name(&Role::Owner);
    assert_eq!(seen, [("ALTER TABLE".to_owned(), owner_name.clone()), ("GRANT".to_owned(), owner_name)]);
    owner.run("drop extension agent_sessions").await;
}
