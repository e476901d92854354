//! Raw SQL that names what others have: every column of every table and view, and every way to write.

use std::collections::BTreeSet;

use agent_sessions_tests::{Connection, Role};

use super::world::{INSIDE, OUTSIDE, Wall, World, answer};
use crate::roles::Level;
use crate::roles::relations::RELATIONS;

/// Statements about `{name-…}` and `{sid}` that write, or lock.
const WRITES: &[&str] = &[
    "select from agent_sessions.session where sid = {sid} for update",
    "select from agent_sessions.session where sid = {sid} for key share nowait",
    "select from agent_sessions.session where session_id = '{name}-session' for no key update skip locked",
    "update agent_sessions.session set title = 'x' where sid = {sid}",
    "update agent_sessions.session set title = 'x', revision = 1 where session_id = '{name}-session'",
    "update agent_sessions.session set title = s.session_id from agent_sessions.session_item i
       join agent_sessions.session s using (sid) where session.sid = i.sid and i.item_id = '{name}-item'",
    "delete from agent_sessions.session where sid = {sid}",
    "delete from agent_sessions.session where sid = {branch_sid} returning session_id",
    "delete from agent_sessions.session where session_id = '{name}-session'",
    "delete from agent_sessions.session where sid = {hidden_sid}",
    "insert into agent_sessions.session (session_id) values ('{name}-session')",
    "insert into agent_sessions.session (tenant, session_id) values ('{name}-tenant', '{name}-session')",
    "insert into agent_sessions.session (tenant, session_id) values ('{name}-tenant', 'new') on conflict do nothing",
    "insert into agent_sessions.session (agent_id, session_id) values ('{name}-agent', '{name}-session')",
    "insert into agent_sessions.session (agent_id, session_id) values ('{name}-agent', '{name}-session')
       on conflict do nothing",
    "insert into agent_sessions.session (tenant, agent_id, session_id) values ('{name}-tenant', '', '{name}-session')
       on conflict (tenant, agent_id, session_id) where deleted_at is null do update set title = 'x' returning sid > 0",
    "insert into agent_sessions.session (agent_id, session_id) values ('{name}-agent', '{name}-session')
       on conflict (tenant, agent_id, session_id) where deleted_at is null do update set title = 'x' returning sid > 0",
    "insert into agent_sessions.session (session_id, parent_sid) values ('new', {sid})",
    "insert into agent_sessions.session (tenant, session_id, parent_sid) values ('{name}-tenant', 'new', {sid})",
    "insert into agent_sessions.session (session_id, branched_from) values ('new', {sid})",
    "insert into agent_sessions.session (session_id, branched_from, fork_position) values ('new', {sid}, 1)",
    "insert into agent_sessions.session (session_id, branched_from, fork_position) values ('new', {branch_sid}, 99)",
    "insert into agent_sessions.session (session_id, branched_from, fork_position) values ('new', {hidden_sid}, 1)",
    "insert into agent_sessions.session (session_id, parent_sid) values ('new', {hidden_sid})",
    "insert into agent_sessions.session (tenant, session_id, branched_from) values ('{name}-tenant', 'new', {sid})",
    "insert into agent_sessions.session (session_id, parent_sid, branched_from, fork_position)
       values ('new', {sid}, {branch_sid}, 1)",
    "insert into agent_sessions.session_item (sid, payload) values ({sid}, '1')",
    "insert into agent_sessions.session_item (sid, payload) values ({branch_sid}, '1')",
    "insert into agent_sessions.session_item (sid, payload) values ({hidden_sid}, '1')",
    "insert into agent_sessions.session_item (sid, position, payload) values ({sid}, 0, '1') on conflict do nothing",
    "insert into agent_sessions.session_item (sid, position, payload) values ({sid}, 99, '1')",
    "insert into agent_sessions.session_item (sid, payload, item_id) values ({sid}, '0', '{name}-item')",
    "insert into agent_sessions.session_item (sid, op, target, payload) values ({sid}, 'revise', 0, '1')",
    "insert into agent_sessions.session_item (sid, op, target) values ({sid}, 'retract_from', 0)",
    "insert into agent_sessions.session_item (sid, payload, item_id)
       select sid, '1', '{name}-item' from agent_sessions.session where session_id = 's'",
    "insert into agent_sessions.session_delta (sid, target, chunk_no, chunk) values ({sid}, 3, 1, 'c')",
    "insert into agent_sessions.session_delta (sid, target, chunk_no, chunk) values ({sid}, 3, 0, 'theirs-chunk')",
    "insert into agent_sessions.session_delta (sid, target, chunk_no, chunk) values ({sid}, 0, 0, 'c') on conflict do nothing",
    "set local agent_sessions.lease = '{lease}'; insert into agent_sessions.session_item (sid, payload) values ({sid}, '1')",
    "set local agent_sessions.lease = '{lease}'; delete from agent_sessions.session where sid = {sid}",
    "merge into agent_sessions.session s using (values ('{name}-session')) v (id) on s.session_id = v.id
       when matched then update set title = 'x' when not matched then insert (session_id) values (v.id)",
];

/// The same of the audit trail, which is walled by tenants alone.
const AUDITED: &[&str] = &[
    "insert into agent_sessions.audit_event (tenant, stream, action) values ('{name}-tenant', '{name}-stream', 'a')",
    "insert into agent_sessions.audit_event (tenant, stream, action, event_id)
       values ('{name}-tenant', '{name}-stream', '{name}-action', '{name}-event') on conflict do nothing",
    "insert into agent_sessions.audit_event (tenant, stream, action, seq) values ('{name}-tenant', '{name}-stream', 'a', 1)",
    "insert into agent_sessions.audit_event (tenant, stream, action, seq) values ('{name}-tenant', '{name}-stream', 'a', 2)",
    "insert into agent_sessions.audit_event (stream, action, event_id) values ('{name}-stream', 'a', '{name}-event')
       returning seq",
    "insert into agent_sessions.audit_event (stream, action, seq) values ('{name}-stream', 'a', 2)",
];

/// Index scans and scans of whole tables, which may look at the conditions in another order.
const PLANS: [&str; 2] =
    ["set local enable_seqscan = off", "set local enable_indexscan = off; set local enable_bitmapscan = off"];

/// A query for a value of theirs, and one for a value that nobody has, of every column that has such values.
async fn look_ups(world: &World) -> Vec<(String, String)> {
    let (tenant, wall) = match world.wall {
        Wall::Tenant => ("theirs-tenant", "tenant"),
        Wall::Agent => ("own-tenant", "agent_id"),
    };
    // No policy binds them; the views are those of one tenant.
    let (among_theirs, among_own) = (world.db.superuser().await, world.db.superuser().await);
    for (connection, tenant) in [(&among_theirs, tenant), (&among_own, "own-tenant")] {
        connection
            .run(&format!("select agent_sessions.schema_version(); set agent_sessions.tenant = '{tenant}'"))
            .await;
    }
    let mut look_ups = Vec::new();
    for relation in RELATIONS.iter().filter(|relation| relation.select < Level::Owner) {
        let name = format!("agent_sessions.{}", relation.name);
        let columns = columns(&among_theirs, &name).await;
        let is_walled = columns.iter().any(|(column, _)| column == wall);
        if world.wall == Wall::Agent && !is_walled {
            continue;
        }
        let (theirs, own) = match is_walled {
            true => (format!("{wall} like 'theirs%'"), format!("{wall} not like 'theirs%'")),
            false => ("true".to_owned(), "true".to_owned()),
        };
        for (column, kind) in &columns {
            let Some(absent) = absent_value(kind) else { continue };
            let theirs = values(&among_theirs, &name, column, &theirs).await;
            if let Some(value) = theirs.difference(&values(&among_own, &name, column, &own).await).next() {
                let look_up = |value: &str| format!("select 1 from {name} where {column} = {value}::{kind}");
                look_ups.push((look_up(value), look_up(absent)));
            }
        }
    }
    assert!(look_ups.len() > 40, "{} columns", look_ups.len());
    look_ups
}

/// The columns of a relation, with their types.
async fn columns(superuser: &Connection, name: &str) -> Vec<(String, String)> {
    let sql = format!(
        "select attname::text, format_type(atttypid, null) from pg_attribute
         where attrelid = '{name}'::regclass and attnum > 0 and not attisdropped"
    );
    let rows = superuser.query(&sql, &[]).await.expect("the columns");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

async fn values(superuser: &Connection, name: &str, column: &str, of: &str) -> BTreeSet<String> {
    let sql = format!("select distinct quote_literal({column}::text) from {name} where {of} and {column} is not null");
    let rows = superuser.query(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// A value that no row has; none for json, which has no equality.
fn absent_value(kind: &str) -> Option<&'static str> {
    match kind {
        "text" => Some("'absent'"),
        "bigint" | "integer" | "numeric" => Some("97000000"),
        "timestamp with time zone" => Some("'1999-01-01'"),
        "bytea" => Some("'\\x97'"),
        "uuid" => Some("'97000000-0000-4000-8000-000000000000'"),
        "jsonb" => Some("'{\"absent\": 1}'"),
        "interval" => Some("'97 years'"),
        "json" | "boolean" => None,
        other => panic!("which value of the type {other} has nobody?"),
    }
}

/// Everything that can be asked, with each of these settings made before.
async fn assert_nothing_is_told(world: &World, visitor: &Connection, settings: &[&str]) {
    let look_ups = look_ups(world).await;
    for setting in settings {
        for (about_theirs, about_absent) in &look_ups {
            for plan in PLANS {
                let (theirs, absent) = (world.theirs.fill(setting), world.absent.fill(setting));
                let about_theirs = format!("{theirs}; {plan}; {about_theirs}");
                world.assert_answered_alike(visitor, &about_theirs, &format!("{absent}; {plan}; {about_absent}")).await;
            }
        }
        let audited = if world.wall == Wall::Tenant { AUDITED } else { &[] };
        for write in WRITES.iter().chain(audited) {
            world.assert_alike(visitor, &format!("{setting}; {write}")).await;
        }
    }
}

/// Whole relations, as they are and as text.
async fn assert_nothing_is_shown(world: &World, visitor: &Connection) {
    for relation in RELATIONS.iter().filter(|relation| relation.select < Level::Owner) {
        // A tenant's trail is that of all its agents.
        if world.wall == Wall::Agent && relation.name.starts_with("audit_") {
            continue;
        }
        for sql in [
            format!("select * from agent_sessions.{}", relation.name),
            format!(
                "select r::text, (select count(*) from agent_sessions.{0}) from agent_sessions.{0} r",
                relation.name
            ),
        ] {
            let answer = answer(visitor, &sql).await;
            assert!(!world.theirs.occur_in(&answer), "{sql}\n{answer}");
        }
    }
}

/// Every way to write, to stay: nothing of theirs is changed.
async fn assert_nothing_is_changed(world: &World, visitor: &Connection) {
    let before = world.fingerprint().await;
    for write in WRITES.iter().chain(AUDITED) {
        let _ = visitor.batch_execute(&format!("begin; {}; commit", world.theirs.fill(write))).await;
        visitor.rollback().await;
    }
    assert_eq!(world.fingerprint().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_sql_tells_a_tenant_nothing_of_another() {
    let world = World::create("raw_free", Wall::Tenant).await;
    let visitor = world.visitor(Role::Writer).await;
    assert_nothing_is_shown(&world, &visitor).await;
    assert_nothing_is_told(&world, &visitor, &INSIDE).await;
    assert_nothing_is_changed(&world, &visitor).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_sql_tells_a_bound_role_nothing_of_another_tenant() {
    let world = World::create("raw_bound", Wall::Tenant).await;
    let (bound, free) = (world.bound("writer").await, world.db.role("free", Some("writer")).await);
    world.db.superuser().await.run(&format!("grant {free} to {bound}")).await;
    let visitor = world.visitor(Role::Named(bound)).await;
    assert_nothing_is_told(&world, &visitor, &[INSIDE[0], INSIDE[1], &format!("set local role {free}")]).await;
    assert_nothing_is_changed(&world, &visitor).await;
}

/// Not even whether the refusal is one.
#[tokio::test(flavor = "multi_thread")]
async fn raw_sql_tells_a_role_outside_of_its_tenants_nothing() {
    let world = World::create("raw_denied", Wall::Tenant).await;
    let visitor = world.visitor(Role::Named(world.bound("writer").await)).await;
    assert_nothing_is_told(&world, &visitor, &OUTSIDE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_sql_tells_the_owner_under_forced_policies_nothing() {
    for (name, wall) in [("raw_forced", Wall::Tenant), ("raw_forced_agent", Wall::Agent)] {
        let world = World::create(name, wall).await;
        let visitor = world.visitor(Role::Owner).await;
        visitor.run("select agent_sessions.access_force_rls(true)").await;
        assert_nothing_is_shown(&world, &visitor).await;
        assert_nothing_is_told(&world, &visitor, &INSIDE).await;
        assert_nothing_is_changed(&world, &visitor).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_sql_tells_an_isolated_agent_nothing_of_another() {
    let world = World::create("raw_agent", Wall::Agent).await;
    let visitor = world.visitor(Role::Writer).await;
    assert_nothing_is_shown(&world, &visitor).await;
    assert_nothing_is_told(&world, &visitor, &INSIDE).await;
    assert_nothing_is_changed(&world, &visitor).await;
}
