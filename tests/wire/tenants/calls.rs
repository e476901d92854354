//! Every function of the schema, called with names of what others have: the answer is that about what nobody has.
//!
//! Each argument that can name something is tried by itself, the others being one's own or left out, and all of them together.

use agent_sessions_tests::{Connection, Role};

use super::world::{INSIDE, OUTSIDE, Wall, World, answer};
use crate::roles::Level;
use crate::roles::functions::{FUNCTIONS, Function};

/// Arguments that look for nothing by name.
const NAMELESS: &str = "
    after allow_expired at at_target before before_seq chunk chunk_no cost created_at data durable enabled
    events expected_position expected_revision expires_at fields force from_seq from_target head_hash head_seq
    inherit input_tokens items library keep_from kept_from level lines max max_rows merge min newest_first occurred_at
    older_than on_conflict on_missing open order_by otherwise output_tokens payload proof reason role roots_only
    seed seq sid since state target targets ttl until wait what";

/// What the argument of a function is when it names what others have; none if it names nothing.
fn name_of(function: &Function, argument: &str) -> Option<&'static str> {
    Some(match argument {
        "tenant" => "'{name}-tenant'",
        "session_id" | "parent_session_id" | "branched_from" | "new_session_id" => "'{name}-session'",
        "agent_id" | "parent_agent_id" | "new_agent_id" => "'{name}-agent'",
        "item_id" | "at_item_id" => "'{name}-item'",
        "item_ids" => "array['{name}-item']",
        "kind" => "'{name}-kind'",
        "kinds" => "array['{name}-kind']",
        "tag" | "at_tag" => "'{name}-tag'",
        "tags" => "array['{name}-tag']",
        "author" => "'{name}-author'",
        "owner" => "'{name}-owner'",
        "origin" => "'{name}-origin'",
        "title" => "'{name}-title'",
        "status" => "'{name}-status'",
        "metadata" | "attrs" => "'{\"{name}\": 1}'",
        "holder" => "'{name}-holder'",
        "lease" => "'{lease}'",
        "after" if function.name == "session_list" => "agent_sessions.list_cursor('activity', '2100-01-01', {sid})",
        "stream" => "'{name}-stream'",
        "event_id" => "'{name}-event'",
        "action" => "'{name}-action'",
        "actor" => "'{name}-actor'",
        "target" if function.name.starts_with("audit_") => "'{name}-target'",
        "root" => "'{root}'",
        "lines" if function.name == "session_import" => {
            r#"'[{"session": {"parent_session_id": "{name}-session", "parent_agent_id": "{name}-agent"}}]'"#
        }
        "anchor_id" => "{anchor_id}",
        other => {
            let name = function.name;
            assert!(
                NAMELESS.split_whitespace().any(|nameless| nameless == other),
                "{name}: what is {other} when it names what others have, or is it NAMELESS?"
            );
            return None;
        }
    })
}

/// By which arguments others' things are named in a call, and what the other arguments are.
#[derive(Clone)]
struct Naming {
    named: Vec<&'static str>,
    /// One's own: nothing is found by one's own filters and those of others together.
    rest: Rest,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Own,
    /// Only what the function cannot do without.
    LeftOut,
}

fn call_naming(world: &World, function: &Function, naming: &Naming) -> String {
    let points = ["at_item_id", "at_tag"].iter().any(|point| naming.named.contains(point));
    // The session that an event belongs to is a filter like others.
    let needed = |argument: &str| match function.name {
        "audit_proof" => true,
        name if name.starts_with("audit_") => argument == "root",
        _ => ["session_id", "ttl"].contains(&argument),
    };
    let call = function.call(|argument, usual| match name_of(function, argument) {
        Some(name) if naming.named.contains(&argument) => name.to_owned(),
        // One point of a branch excludes the others.
        None if argument == "at_target" && points => "null".to_owned(),
        _ if naming.rest == Rest::LeftOut && !needed(argument) => "null".to_owned(),
        _ if usual == "''" && argument.ends_with("agent_id") && world.wall == Wall::Agent => "'own-agent'".to_owned(),
        _ if usual == "''" && argument == "tenant" => "'own-tenant'".to_owned(),
        _ => usual.replace("{role}", &world.db.role_name(&Role::Stranger)),
    });
    // What differs from call to call, whoever is named.
    format!(
        "select to_jsonb(called) - '{{created_at, last_entry_at, first_at, last_at, recorded_at, cursor, lease, fence, expires_at,
           lease_expires_at, remaining_ms, digest, hash, root, at, list_cursor}}'::text[]
         from ({call}) called"
    )
}

/// A tenant's trail is that of all its agents.
fn is_walled(world: &World, function: &Function) -> bool {
    world.wall == Wall::Tenant || !function.name.starts_with("audit_")
}

/// Each argument by itself, and all together, which comes last.
fn namings(world: &World, function: &Function, says_tenant: bool) -> Vec<Naming> {
    let names_something = |argument: &&str| {
        name_of(function, argument).is_some() && (says_tenant || *argument != "tenant") && is_walled(world, function)
    };
    let named: Vec<&str> = function.arguments.iter().map(|(argument, _)| *argument).filter(names_something).collect();
    let looks_only = function.caller < Level::Writer || function.name == "session_claim_next";
    let rests = if looks_only { [Rest::Own, Rest::LeftOut].as_slice() } else { &[Rest::Own] };
    let of = |named: Vec<&'static str>| rests.iter().map(move |rest| Naming { named: named.clone(), rest: *rest });
    let mut namings: Vec<Naming> = named.iter().flat_map(|argument| of(vec![*argument])).collect();
    if named.len() > 1 {
        // The id of a session that is made is not one of those that are looked for.
        let looked_for = named.iter().copied().filter(|argument| *argument != "new_session_id").collect();
        namings.extend(of(looked_for).chain(of(named)));
    }
    namings
}

/// Every function, as one visitor, with each of these settings made before the call.
async fn assert_nothing_is_told(world: &World, visitor: &Connection, says_tenant: bool, settings: &[&str]) {
    let mut compared = 0;
    for function in FUNCTIONS.iter().filter(|function| function.caller != Level::Nobody) {
        for naming in namings(world, function, says_tenant) {
            let call = call_naming(world, function, &naming);
            for setting in settings {
                world.assert_alike(visitor, &format!("{setting}; {call}")).await;
            }
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared} calls");
}

/// What the functions show to who names nothing of theirs, is nothing of theirs.
async fn assert_nothing_is_shown(world: &World, visitor: &Connection) {
    for function in FUNCTIONS.iter().filter(|function| function.caller < Level::Owner && is_walled(world, function)) {
        for rest in [Rest::Own, Rest::LeftOut] {
            let call = call_naming(world, function, &Naming { named: Vec::new(), rest });
            let answer = answer(visitor, &call).await;
            assert!(!world.theirs.occur_in(&answer), "{call}\n{answer}");
        }
    }
}

/// The same to stay: nothing of theirs is changed.
async fn assert_nothing_is_changed(world: &World, visitor: &Connection, says_tenant: bool) {
    let before = world.fingerprint().await;
    for function in FUNCTIONS.iter().filter(|function| function.caller < Level::Owner) {
        if let Some(naming) = namings(world, function, says_tenant).pop() {
            let call = world.theirs.fill(&call_naming(world, function, &naming));
            let _ = visitor.batch_execute(&call).await;
        }
    }
    assert_eq!(world.fingerprint().await, before);
}

async fn assert_apart(world: &World, visitor: &Connection) {
    assert_nothing_is_shown(world, visitor).await;
    assert_nothing_is_told(world, visitor, true, &INSIDE).await;
    assert_nothing_is_changed(world, visitor, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_is_told_nothing_of_another() {
    let world = World::create("apart_free", Wall::Tenant).await;
    let admin = world.db.role("admin", Some("admin")).await;
    assert_apart(&world, &world.visitor(Role::Named(admin)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_role_is_told_nothing_of_another_tenant() {
    let world = World::create("apart_bound", Wall::Tenant).await;
    let (bound, free) = (world.bound("admin").await, world.db.role("free", Some("admin")).await);
    world.db.superuser().await.run(&format!("grant {free} to {bound}")).await;
    let visitor = world.visitor(Role::Named(bound)).await;
    // As a pool does that takes on the role of its client.
    let settings = [INSIDE[0], INSIDE[1], &format!("set local role {free}")];
    assert_nothing_is_told(&world, &visitor, true, &settings).await;
    assert_nothing_is_changed(&world, &visitor, true).await;
}

/// A backend keeps its plans, and what it remembers of tables and roles.
#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_has_served_another_tenant_tells_nothing_of_it() {
    let world = World::create("apart_pooled", Wall::Tenant).await;
    let (other, own) = (world.db.role("other", Some("admin")).await, world.bound("admin").await);
    let pool = world.visitor(Role::Superuser).await;
    for _ in 0..6 {
        pool.run(&format!("set session authorization {other}; set agent_sessions.tenant = 'theirs-tenant'")).await;
        for function in FUNCTIONS.iter().filter(|function| function.caller < Level::Owner) {
            if let Some(naming) = namings(&world, function, true).pop() {
                let call = world.theirs.fill(&call_naming(&world, function, &naming));
                let _ = pool.batch_execute(&format!("begin; {call}")).await;
                pool.rollback().await;
            }
        }
        pool.run("reset session authorization").await;
    }
    pool.run(&format!("set session authorization {own}; set agent_sessions.tenant = 'own-tenant'")).await;
    assert_nothing_is_shown(&world, &pool).await;
    assert_nothing_is_told(&world, &pool, true, &INSIDE[..1]).await;
    assert_nothing_is_changed(&world, &pool, true).await;
}

/// The setting is not one of the tenants that the role is bound to, or no tenant at all: even the refusal tells nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_outside_of_its_tenants_is_told_nothing() {
    let world = World::create("apart_denied", Wall::Tenant).await;
    let visitor = world.visitor(Role::Named(world.bound("admin").await)).await;
    assert_nothing_is_told(&world, &visitor, true, &OUTSIDE).await;
}

/// No policy binds the owner; the functions keep it to its tenant, unless it says another.
#[tokio::test(flavor = "multi_thread")]
async fn the_owner_is_told_nothing_by_the_functions_unless_it_says_the_tenant() {
    let world = World::create("apart_owner", Wall::Tenant).await;
    let visitor = world.visitor(Role::Owner).await;
    assert_nothing_is_shown(&world, &visitor).await;
    assert_nothing_is_told(&world, &visitor, false, &INSIDE).await;
    assert_nothing_is_changed(&world, &visitor, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_under_forced_policies_is_told_nothing() {
    for (name, wall) in [("apart_forced", Wall::Tenant), ("apart_forced_agent", Wall::Agent)] {
        let world = World::create(name, wall).await;
        let visitor = world.visitor(Role::Owner).await;
        visitor.run("select agent_sessions.access_force_rls(true)").await;
        assert_apart(&world, &visitor).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_agent_is_told_nothing_of_another() {
    let world = World::create("apart_agent", Wall::Agent).await;
    let admin = world.db.role("admin", Some("admin")).await;
    assert_apart(&world, &world.visitor(Role::Named(admin)).await).await;
}
