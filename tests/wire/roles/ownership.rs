//! Whose the objects are, and that none of them looks a name up when it runs.

use agent_sessions_tests::{Database, Role};

use super::assert_none;

#[tokio::test(flavor = "multi_thread")]
async fn everything_belongs_to_the_extensions_owner_but_c_functions() {
    let db = Database::create("roles_owner").await;
    let superuser = db.superuser().await;
    let owner = db.role_name(&Role::Owner);
    let extension = "select extowner::regrole::text from pg_extension where extname = 'agent_sessions'";
    assert_eq!(superuser.value::<String>(extension, &[]).await, owner);
    let foreign = format!(
        "select 'schema ' || nspname from pg_namespace where nspname = 'agent_sessions' and nspowner <> '{owner}'::regrole
         union all
         select 'relation ' || oid::regclass from pg_class
         where relnamespace = 'agent_sessions'::regnamespace and relowner <> '{owner}'::regrole
         union all
         select 'type ' || oid::regtype from pg_type
         where typnamespace = 'agent_sessions'::regnamespace and typowner <> '{owner}'::regrole
         union all
         select 'function ' || p.oid::regprocedure from pg_proc p join pg_language l on l.oid = p.prolang
         where p.pronamespace = 'agent_sessions'::regnamespace and l.lanname <> 'c' and p.proowner <> '{owner}'::regrole
         union all
         select 'function of no superuser ' || p.oid::regprocedure
         from pg_proc p join pg_language l on l.oid = p.prolang join pg_roles r on r.oid = p.proowner
         where p.pronamespace = 'agent_sessions'::regnamespace and l.lanname = 'c' and not r.rolsuper
         union all
         select 'function that the owner cannot hand on, or trigger that it can ' || p.oid::regprocedure from pg_proc p
         where p.pronamespace = 'agent_sessions'::regnamespace
           and (p.prorettype = 'trigger'::regtype) = has_function_privilege('{owner}', p.oid, 'EXECUTE WITH GRANT OPTION')
         union all
         select 'outside of the extension: ' || p.oid::regprocedure from pg_proc p
         where p.pronamespace = 'agent_sessions'::regnamespace and not exists (
           select from pg_depend d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')"
    );
    assert_none(&superuser, "objects of others", &foreign).await;
    let counts = "select count(*) filter (where l.lanname = 'c'), count(*) filter (where l.lanname = 'sql')
                  from pg_proc p join pg_language l on l.oid = p.prolang where p.pronamespace = 'agent_sessions'::regnamespace";
    let row = superuser.query_one(counts, &[]).await.expect("functions");
    assert!(row.get::<_, i64>(0) > 0 && row.get::<_, i64>(1) > 0, "there are functions of both languages");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_object_has_a_comment() {
    let db = Database::create("roles_comments").await;
    let uncommented = "
        select 'schema ' || nspname from pg_namespace
        where nspname = 'agent_sessions' and obj_description(oid, 'pg_namespace') is null
        union all
        select 'extension ' || extname from pg_extension
        where extname = 'agent_sessions' and obj_description(oid, 'pg_extension') is null
        union all
        select 'function ' || oid::regprocedure from pg_proc
        where pronamespace = 'agent_sessions'::regnamespace and obj_description(oid, 'pg_proc') is null
        union all
        select 'relation ' || oid::regclass from pg_class
        where relnamespace = 'agent_sessions'::regnamespace and relkind in ('r', 'v')
          and obj_description(oid, 'pg_class') is null
        union all
        select 'column ' || attrelid::regclass || '.' || attname from pg_attribute join pg_class on pg_class.oid = attrelid
        where relnamespace = 'agent_sessions'::regnamespace and relkind = 'r' and attnum > 0 and not attisdropped
          and col_description(attrelid, attnum) is null
        union all
        select 'type ' || pg_type.oid::regtype from pg_type join pg_class on pg_class.oid = typrelid
        where typnamespace = 'agent_sessions'::regnamespace and relkind = 'c' and obj_description(pg_type.oid, 'pg_type') is null
        union all
        select 'policy ' || polname || ' on ' || polrelid::regclass from pg_policy join pg_class on pg_class.oid = polrelid
        where relnamespace = 'agent_sessions'::regnamespace and obj_description(pg_policy.oid, 'pg_policy') is null";
    assert_none(&db.superuser().await, "objects without a comment", uncommented).await;
}

/// No function or view runs as its owner, and the bodies of SQL functions are bound to objects, not to names.
#[tokio::test(flavor = "multi_thread")]
async fn no_function_depends_on_a_search_path() {
    let db = Database::create("roles_bodies").await;
    let dependent = "select p.oid::regprocedure::text from pg_proc p join pg_language l on l.oid = p.prolang
                     where p.pronamespace = 'agent_sessions'::regnamespace
                       and (p.prosecdef or l.lanname not in ('c', 'sql') or (l.lanname = 'sql' and p.prosqlbody is null))";
    let superuser = db.superuser().await;
    assert_none(&superuser, "functions that look names up when they run", dependent).await;
    let definers = "select relname::text from pg_class
                    where relnamespace = 'agent_sessions'::regnamespace and relkind = 'v'
                      and not coalesce(reloptions @> '{security_invoker=true}', false)";
    assert_none(&superuser, "views that read as their owner", definers).await;
}
