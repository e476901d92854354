//! What can be inferred of others' rows without being shown them: by a function of one's own that is called on the way, by
//! statistics, by sequences, by the planner.

use std::collections::BTreeSet;

use agent_sessions_tests::{Connection, Role, assert_sqlstate};

use super::world::{Wall, World};
use crate::roles::Level;
use crate::roles::relations::{Kind, RELATIONS};

/// A function that writes down all that it is asked about, and that seems to cost nothing, so that the planner asks it first.
const SPY: &str = "
    create function own.spy(seen text) returns boolean language plpgsql cost 0.0000001 as $$
    begin
      insert into own.seen values (seen);
      return true;
    end $$;
    create function own.spies(one text, other text) returns boolean language sql cost 0.0000001 as
      'select own.spy(one) and own.spy(other)';
    create operator own.=== (leftarg = text, rightarg = text, function = own.spies)";

/// Where a function of one's own is called with a column of a relation.
const PLACES: [&str; 10] = [
    "select from {relation} r where own.spy(r.{column}::text)",
    "select from {relation} r where r.{column}::text operator(own.===) 'x'",
    "select from (values (1), (2)) v (n) join {relation} r on own.spy(r.{column}::text || v.n::text)",
    "select from (values (1)) v (n) left join {relation} r on own.spy(r.{column}::text) where r.{column} is null",
    "select from {relation} r order by own.spy(r.{column}::text) limit 1",
    "select from {relation} r limit (select count(*) from {relation} i where own.spy(i.{column}::text))",
    "select count(*) filter (where own.spy(r.{column}::text)) from {relation} r having bool_and(own.spy('x')) is not null",
    "select from own.barrier_{name} r where own.spy(r.{column}::text)",
    "select case when own.spy(r.{column}::text) then 1 end from {relation} r where r.{column} is not null",
    "select from {relation} r where exists (select from {relation} i where own.spy(i.{column}::text || r.{column}::text))",
];

/// The same in statements that write.
const WRITES: [&str; 3] = [
    "update agent_sessions.session r set title = 'x' where own.spy(r.session_id)",
    "delete from agent_sessions.session r where own.spy(r.session_id)",
    "insert into agent_sessions.session (session_id) values ('theirs-session')
       on conflict (tenant, agent_id, session_id) where deleted_at is null
       do update set title = 'x' where own.spy(session.title)",
];

/// Lets a role make functions and views that spy, and returns where they may: every column of every relation that it reads.
async fn with_a_spy(world: &World, visitor: &Connection) -> Vec<(&'static str, String)> {
    let role: String = visitor.value("select current_user::text", &[]).await;
    let superuser = world.db.superuser().await;
    superuser.run(&format!("create schema own authorization {role}")).await;
    visitor.run(&format!("create table own.seen (value text); {SPY}")).await;
    let mut columns = Vec::new();
    for relation in RELATIONS.iter().filter(|relation| relation.select < Level::Owner) {
        let name = relation.name;
        visitor
            .run(&format!(
                "create view own.barrier_{name} with (security_barrier) as select * from agent_sessions.{name}"
            ))
            .await;
        let sql = format!(
            "select attname::text from pg_attribute
             where attrelid = 'agent_sessions.{name}'::regclass and attnum > 0 and not attisdropped"
        );
        let of_it = superuser.query(&sql, &[]).await.expect("the columns");
        columns.extend(of_it.iter().map(|row| (name, row.get::<_, String>(0))));
    }
    columns
}

/// The spy sees what is one's own, and nothing of theirs: neither their names nor their keys.
async fn assert_the_spy_sees_its_own(world: &World, visitor: &Connection) {
    let mut seen = BTreeSet::new();
    let columns = with_a_spy(world, visitor).await;
    for (name, column) in columns {
        // A tenant's trail is that of all its agents.
        if world.wall == Wall::Agent && name.starts_with("audit_") {
            continue;
        }
        for place in PLACES {
            let sql = place
                .replace("{relation}", &format!("agent_sessions.{name}"))
                .replace("{name}", name)
                .replace("{column}", &column);
            seen.extend(spied(visitor, &sql).await);
        }
    }
    for sql in WRITES {
        seen.extend(spied(visitor, sql).await);
    }
    assert!(seen.iter().any(|value| value == "s") && seen.len() > 50, "the spy is at work: {seen:?}");
    let names = [world.theirs.sid.to_string(), world.theirs.branch_sid.to_string(), "theirs".to_owned()];
    let betrayed: Vec<&String> = seen.iter().filter(|value| names.iter().any(|name| value.contains(name))).collect();
    assert!(betrayed.is_empty(), "{betrayed:?}");
}

async fn spied(visitor: &Connection, sql: &str) -> Vec<String> {
    visitor.begin("read committed").await;
    visitor.run(sql).await;
    let rows = visitor.query("select distinct coalesce(value, '') from own.seen", &[]).await.expect("what was seen");
    visitor.rollback().await;
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_of_ones_own_is_shown_nothing_of_another_tenant() {
    let world = World::create("spy_tenant", Wall::Tenant).await;
    let writer = world.db.role("spy", Some("writer")).await;
    assert_the_spy_sees_its_own(&world, &world.visitor(Role::Named(writer)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_of_ones_own_is_shown_nothing_of_another_agent() {
    let world = World::create("spy_agent", Wall::Agent).await;
    let writer = world.db.role("spy", Some("writer")).await;
    assert_the_spy_sees_its_own(&world, &world.visitor(Role::Named(writer)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_of_the_owners_is_shown_nothing_under_forced_policies() {
    let world = World::create("spy_forced", Wall::Tenant).await;
    let visitor = world.visitor(Role::Owner).await;
    visitor.run("select agent_sessions.access_force_rls(true)").await;
    assert_the_spy_sees_its_own(&world, &visitor).await;
}

/// After ANALYZE, with so much of theirs that every sample holds it.
async fn analyzed(name: &str) -> World {
    let world = World::create(name, Wall::Tenant).await;
    let theirs = world.db.writer().await;
    theirs
        .run(
            "select agent_sessions.schema_version(); set agent_sessions.tenant = 'theirs-tenant';
             select agent_sessions.session_create('theirs-' || n, owner => 'theirs-owner') from generate_series(1, 300) n;
             select agent_sessions.audit_append('theirs-action', stream => 'theirs-stream') from generate_series(1, 300)",
        )
        .await;
    world.db.superuser().await.run("analyze").await;
    world
}

/// What the statistics hold of the tables is for who passes their policies. Totals of a table are not of anybody's.
#[tokio::test(flavor = "multi_thread")]
async fn statistics_views_show_no_values() {
    let world = analyzed("infer_statistics").await;
    let shown = "select count(*) from pg_stats where schemaname = 'agent_sessions' and tablename in (
                   select relname from pg_class where relnamespace = 'agent_sessions'::regnamespace and relrowsecurity)";
    let owner = world.visitor(Role::Owner).await;
    assert!(owner.value::<i64>(shown, &[]).await > 0, "there are statistics");
    for level in ["reader", "auditor", "writer", "admin"] {
        let role = world.db.role(level, Some(level)).await;
        let visitor = world.visitor(Role::Named(role)).await;
        for view in ["pg_stats", "pg_stats_ext", "pg_stats_ext_exprs"] {
            let sql = format!("select count(*) from {view} where schemaname = 'agent_sessions'");
            assert_eq!(visitor.value::<i64>(&sql, &[]).await, 0, "{view} as {level}");
        }
        assert_sqlstate!(visitor.query("select stavalues1 from pg_statistic", &[]).await, "42501");
        let ranges = "select count(last_value) from pg_sequences where schemaname = 'agent_sessions'";
        assert_eq!(visitor.value::<i64>(ranges, &[]).await, 0, "sequences as {level}");
    }
    owner.run("select agent_sessions.access_force_rls(true)").await;
    assert_eq!(owner.value::<i64>(shown, &[]).await, 0, "the owner under forced policies");
}

/// The planner tells how many rows it expects, from statistics over all tenants: of what is unique, always the same.
#[tokio::test(flavor = "multi_thread")]
async fn plans_tell_nothing_of_ids() {
    let world = analyzed("infer_plans").await;
    let visitor = world.visitor(Role::Writer).await;
    let tables = RELATIONS.iter().filter(|relation| relation.kind == Kind::Table && relation.select < Level::Owner);
    let mut asked = 0;
    for table in tables {
        for column in table.columns.iter().map(|column| column.name) {
            let what = match column {
                "session_id" if table.name == "session" => "session",
                "item_id" => "item",
                "event_id" => "event",
                _ => continue,
            };
            world
                .assert_alike(
                    &visitor,
                    &format!("explain select from agent_sessions.{} where {column} = '{{name}}-{what}'", table.name),
                )
                .await;
            asked += 1;
        }
    }
    assert_eq!(asked, 3);
    for call in [
        "session_get('{name}-session')",
        "session_list(parent_session_id => '{name}-session')",
        "session_history('{name}-session')",
    ] {
        let sql = format!("explain select from agent_sessions.{call}");
        world.assert_alike(&visitor, &sql).await;
    }
}
