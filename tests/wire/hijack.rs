//! Attempts to have code of an attacker's run by the installation, by a function, a trigger or a view, or to have an object of
//! theirs taken for one of the extension's.

mod calls;
mod install;
mod source;
mod user;

use agent_sessions_tests::{Connection, Database};
use tokio_postgres::SimpleQueryMessage;

/// Shadows of everything that a name could be looked up for: each function and operator of pg_catalog with the same arguments,
/// each type as a domain that checks its values, each relation as a view. Whichever of them runs draws a number, which no
/// rollback takes back.
const SHADOWS: &str = r#"
    create schema attack;
    grant usage on schema attack to public;
    create sequence attack.ran;
    create function attack.touched() returns boolean security definer language plpgsql set search_path = pg_catalog
      as 'begin perform pg_catalog.nextval(''attack.ran''); return true; end';
    set check_function_bodies = off;
    do $do$
    declare
      body constant text := 'begin perform attack.touched(); raise exception ''hijacked''; end';
      shadow text;
    begin
      for shadow in
        select format('create function attack.%I(%s) returns %s language plpgsql as %L', p.proname,
          array_to_string(array(select format_type(a, null) from unnest(p.proargtypes) a), ', '),
          case when r.typtype = 'p' then 'boolean' else format_type(r.oid, null) end, body)
        from pg_proc p join pg_type r on r.oid = p.prorettype
        where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind <> 'p' and p.proname not like 'RI\_%'
          and not exists (select from unnest(p.proargtypes) a join pg_type t on t.oid = a
                          where t.typtype = 'p' and t.typname not like 'any_%')
        union all
        -- those that take "any", which PL/pgSQL does not
        select format('create function attack.%I(%s variadic text[]) returns text language plpgsql as %L', f.name, f.before, body)
        from (values ('format', 'text,'), ('concat', ''), ('concat_ws', 'text,'), ('json_build_object', ''),
          ('jsonb_build_object', ''), ('json_build_array', ''), ('num_nulls', '')) f (name, before)
        union all
        select format('create function attack.operator_%s(%s) returns %s language plpgsql as %L', o.oid,
          concat_ws(', ', nullif(o.oprleft, 0)::regtype, nullif(o.oprright, 0)::regtype), o.oprresult::regtype, body)
        from pg_operator o where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprresult <> 0
        union all
        select format('create operator attack.%s (%s function = attack.operator_%s)', o.oprname,
          concat('leftarg = ' || nullif(o.oprleft, 0)::regtype || ', ', 'rightarg = ' || nullif(o.oprright, 0)::regtype || ', '), o.oid)
        from pg_operator o where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprresult <> 0
        union all
        select format('create domain attack.%I as pg_catalog.%I check (attack.touched())', t.typname, t.typname)
        from pg_type t where t.typnamespace = 'pg_catalog'::regnamespace and t.typtype = 'b' and t.typelem = 0
        union all
        select format('create view attack.%I as select seen.* from %s seen where attack.touched()', c.relname, c.oid::regclass)
        from pg_class c where c.relkind in ('r', 'v') and c.relnamespace in ('pg_catalog'::regnamespace, to_regnamespace('agent_sessions'))
      loop
        begin
          execute shadow;
        exception when others then
          -- duplicates, and what no user may make
          null;
        end;
      end loop;
    end
    $do$;
    grant select on all tables in schema attack to public;
    reset check_function_bodies"#;

/// What a session can prepare for itself.
const TEMPORARY: &str = r#"
    create function pg_temp.now() returns timestamptz language sql as 'select attack.touched()::text::timestamptz';
    create domain pg_temp.json as text check (attack.touched());
    create temp view session as select 1::bigint as sid where attack.touched();
    create temp view session_item as select 1::bigint as sid where attack.touched();
    create temp view setting as select 1::bigint as name where attack.touched();
    create temp view tenant_binding as select 1::bigint as role where attack.touched();
    create temp view pg_extension as select 1::bigint as oid where attack.touched();
    create temp view pg_class as select 1::bigint as oid where attack.touched()"#;

const HIJACKED_PATH: &str = "set search_path = pg_temp, attack, public, pg_catalog";

/// A connection that looks every name up among the shadows first.
async fn hijack(connection: &Connection) {
    connection.run(TEMPORARY).await;
    connection.run(HIJACKED_PATH).await;
}

/// How often a shadow has run.
async fn ran(db: &Database) -> i64 {
    let count = "select case when is_called then last_value else 0 end from attack.ran";
    db.superuser().await.value(count, &[]).await
}

/// The rows of a statement in the simplest form, as anything else would be looked up among the shadows.
async fn rows(connection: &Connection, sql: &str) -> Vec<String> {
    let messages = connection.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => {
            let columns: Vec<&str> = (0..row.len()).map(|column| row.get(column).unwrap_or("NULL")).collect();
            Some(columns.join(" | "))
        }
        _ => None,
    };
    messages.into_iter().filter_map(row).collect()
}

/// The shadows are in place: a name without a schema runs one.
async fn assert_shadowed(db: &Database, hijacked: &Connection) {
    for sql in [
        "select now()",
        "select sha256('')",
        "select clock_timestamp()",
        "select convert_to('', 'UTF8')",
        "select 1 = 1",
        "select 'a'::pg_catalog.text = 'b'::pg_catalog.text",
        "select 'a'::pg_catalog.text || 'b'::pg_catalog.text",
        "select '{}'::pg_catalog.jsonb @> '{}'::pg_catalog.jsonb",
        "select from pg_class",
        "select '1'::text",
        "select '{}'::jsonb",
        "select jsonb_typeof('{}')",
        "select format('x')",
        "select max(1)",
        "select from session",
    ] {
        let before = ran(db).await;
        // Most of them raise.
        let _ = hijacked.simple_query(sql).await;
        assert!(ran(db).await > before, "{sql} runs no shadow");
    }
}
