//! Branches between tenants and agents: none leaves its tenant, and what a branch inherits is read by whoever may read the
//! branch, and by nobody else.

use agent_sessions_tests::{Append, Branch, Connection, Database, Error, assert_sqlstate, detail};
use serde_json::json;

use crate::branches::{ENTRIES, call_of, lineage, rows, sample, shown};
use crate::hiding::{count, deleted, stored};

async fn with(db: &Database, settings: &str) -> Connection {
    let writer = db.writer().await;
    // The settings are known once the library is loaded.
    writer.run(&format!("select agent_sessions.schema_version(); {settings}")).await;
    writer
}

async fn under_isolation(db: &Database, agent: &str) -> Connection {
    with(db, &format!("set agent_sessions.isolation = agent; set agent_sessions.agent = '{agent}'")).await
}

/// All that an error tells.
fn told(error: &Error) -> String {
    let raised = error.as_db_error().expect("the server's error");
    format!("{:?}", (raised.message(), raised.detail(), raised.hint(), raised.constraint()))
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_session_is_branched_as_little_as_a_missing_one() {
    let db = Database::create("branch_tenants").await;
    let (ours, theirs) = (
        with(&db, "set agent_sessions.tenant = 'ours'").await,
        with(&db, "set agent_sessions.tenant = 'theirs'").await,
    );
    let owner = db.owner().await;
    sample(&ours, "s").await;
    let sid: i64 = ours.value("select sid from agent_sessions.session", &[]).await;
    let before = rows(&db).await;
    let points = |source: &'static str| {
        [
            Branch::of(source),
            Branch::of(source).at_target(0),
            Branch::of(source).at_target(99),
            Branch::of(source).at_item_id("a"),
            Branch::of(source).at_tag("t").inherit(false),
        ]
    };
    for (point, missing) in points("s").into_iter().zip(points("m")) {
        let error = assert_sqlstate!(point.run(&theirs).await, "SE002");
        assert_eq!(detail(&error), json!({"session_id": "s", "agent_id": ""}));
        let other = assert_sqlstate!(missing.run(&theirs).await, "SE002");
        assert_eq!(told(&error).replace("\"s\\", "\"m\\").replace("\\\"s\\", "\\\"m\\"), told(&other));
    }
    // By raw SQL, with a fork that is in the log, one that is not, and none.
    for fork in ["3", "99", "-1", "0", "null"] {
        let raw = |tenant: &str, source: i64| {
            format!(
                "insert into agent_sessions.session (tenant, session_id, branched_from, fork_position)
                 values ({tenant}, 'b', {source}, {fork})"
            )
        };
        let error = assert_sqlstate!(theirs.batch_execute(&raw("null", sid)).await, "SE002");
        let other = assert_sqlstate!(theirs.batch_execute(&raw("null", 987_654_321)).await, "SE002");
        assert_eq!(told(&error).replace(&sid.to_string(), "987654321"), told(&other), "{fork}");
        // Not even the owner, whom no policy binds, makes a branch of another tenant's.
        assert_sqlstate!(owner.batch_execute(&raw("'theirs'", sid)).await, "SE002");
    }
    for read in ["session_lineage('s', tenant => 'ours')", "session_list(branched_from => 's', tenant => 'ours')"] {
        assert_eq!(count(&theirs, &format!("agent_sessions.{read}")).await, 0, "{read}");
    }
    assert_eq!(rows(&db).await, before);
    // The same ids in two tenants, and deletions that do not meet.
    for writer in [&ours, &theirs] {
        if count(writer, "agent_sessions.session").await == 0 {
            sample(writer, "s").await;
        }
        writer.branched(Branch::of("s").named("b").title("%d")).await;
        deleted(writer, "s").await;
        assert_eq!(writer.value::<String>("select title from agent_sessions.session_get('b')", &[]).await, "1");
    }
    deleted(&ours, "b").await;
    assert_eq!(stored(&db).await, "b [s]");
    theirs.assert_dense("b", ENTRIES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_role_branches_in_its_own_tenant() {
    let db = Database::create("branch_bound").await;
    let owner = db.owner().await;
    let role = db.role("bound", Some("writer")).await;
    owner.run(&format!("select agent_sessions.tenant_bind('{role}', 'acme')")).await;
    let bound = db.connect(agent_sessions_tests::Role::Named(role)).await;
    bound.run("select agent_sessions.tenant_use('acme')").await;
    assert_sqlstate!(Branch::of("s").run(&bound).await, "SE019");
    bound.run("set agent_sessions.tenant = 'acme'").await;
    sample(&bound, "s").await;
    bound.branch("s", "b").await;
    deleted(&bound, "s").await;
    bound.append("b", "9").await;
    bound.assert_dense("b", ENTRIES + 1).await;
    assert_eq!(shown(&bound, "b").await.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_reads_and_writes_a_branch_whose_ancestors_are_hidden_from_it() {
    let db = Database::create("branch_isolated").await;
    let writer = db.writer().await;
    writer.run("select agent_sessions.schema_version(); set agent_sessions.agent = 'one'").await;
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("mid").new_agent_id("two").at_target(6)).await;
    writer.branched(Branch::of("mid").agent_id("two").named("b").new_agent_id("three").seed("\"own\"")).await;
    let three = under_isolation(&db, "three").await;
    assert_eq!(shown(&three, "b").await, ["0 20", "3 3", "4 \"\"", "6 6", "7 \"own\""]);
    assert_eq!(three.log("b").await.len(), 8);
    three.assert_dense("b", 8).await;
    assert_eq!(count(&three, "agent_sessions.session_stats('b')").await, 3);
    assert_eq!(count(&three, "agent_sessions.session_context('b')").await, 5);
    assert_eq!(count(&three, "agent_sessions.session_history('b', item_ids => '{a,d}')").await, 2);
    assert_eq!(count(&three, "agent_sessions.session_history('b', tags => '{t}', newest_first => true)").await, 3);
    // Its ancestors it does not see, by no other way either.
    assert_eq!(lineage(&three, "b").await, ["0 b 7"]);
    let from = "select branched_from from agent_sessions.session_get('b')";
    assert_eq!(three.value::<Option<String>>(from, &[]).await, None);
    assert_eq!(count(&three, "agent_sessions.session_item").await, 1, "raw SQL shows its own");
    for call in ["session_history('s', agent_id => 'one')", "session_log('mid', agent_id => 'two')"] {
        assert_eq!(count(&three, &format!("agent_sessions.{call}")).await, 0, "{call}");
    }
    for (source, agent) in [("s", "one"), ("mid", "two")] {
        let error = assert_sqlstate!(Branch::of(source).agent_id(agent).run(&three).await, "SE002");
        let raised = error.as_db_error().expect("the server's error");
        assert!(!raised.hint().unwrap_or_default().contains("exists for agent"), "{raised:?}");
    }
    // Its own branches, also where its ancestors' part is left; not into another agent's name.
    three.branched(Branch::of("b").named("c").at_item_id("d")).await;
    assert_eq!(shown(&three, "c").await, ["0 20", "1 1", "3 3"]);
    assert_sqlstate!(Branch::of("b").named("d").new_agent_id("one").run(&three).await, "42501");
    let raw = "insert into agent_sessions.session (agent_id, session_id, branched_from, fork_position)
               select 'one', 'd', sid, 1 from agent_sessions.session where session_id = 'b'";
    assert_sqlstate!(three.batch_execute(raw).await, "42501");
    // It writes about what it inherits.
    assert_eq!(Append::to("b", "3").item_id("d").tag("t").run(&three).await.expect("a replay"), 3);
    assert_sqlstate!(Append::to("b", "4").item_id("d").tag("t").run(&three).await, "SE010");
    for call in [
        "session_revise('{s}', '30', item_id => 'd')",
        "session_delta('{s}', target => 4, chunk_no => 0, chunk => 'x')",
        "session_retract('{s}', targets => '{6}')",
        "session_pop('{s}')",
    ] {
        call_of(&three, call, "b").await;
    }
    let raw = "insert into agent_sessions.session_item (sid, op, target, payload)
               select sid, 'revise', 4, '\"said\"' from agent_sessions.session where session_id = 'b'";
    assert_eq!(three.execute(raw, &[]).await.expect("a raw revision"), 1);
    assert_eq!(shown(&three, "b").await, ["0 20", "3 30", "4 \"said\""]);
    three.assert_dense("b", 12).await;
    // Deleted ancestors change nothing, and go when the agent that sees none of them deletes its last branch.
    let (one, two) = (under_isolation(&db, "one").await, under_isolation(&db, "two").await);
    assert_eq!(lineage(&two, "mid").await, ["0 mid 7"]);
    deleted(&one, "s").await;
    deleted(&two, "mid").await;
    assert_eq!(stored(&db).await, "b c [mid] [s]");
    assert_eq!(shown(&three, "b").await, ["0 20", "3 30", "4 \"said\""]);
    deleted(&three, "b").await;
    three.assert_dense("c", 4).await;
    deleted(&three, "c").await;
    assert_eq!(rows(&db).await, (0, 0));
}

/// The parent is copied with the rest; that the agent may not see it is no reason to refuse.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_branches_its_sub_session_of_another_agents_session() {
    let db = Database::create("branch_sub_isolated").await;
    let writer = db.writer().await;
    writer
        .run(
            "select agent_sessions.session_create('p', agent_id => 'one');
             select agent_sessions.session_create('sub', agent_id => 'two', parent_session_id => 'p',
               parent_agent_id => 'one', items => '[{\"payload\":0}]')",
        )
        .await;
    let two = under_isolation(&db, "two").await;
    two.branch("sub", "b").await;
    assert_eq!(shown(&two, "b").await, ["0 0"]);
    let parent = "select parent_session_id from agent_sessions.session_get('b', agent_id => 'two')";
    assert_eq!(writer.value::<Option<String>>(parent, &[]).await.as_deref(), Some("p"));
    writer.run("select agent_sessions.session_delete('p', agent_id => 'one')").await;
    assert_eq!(rows(&db).await, (0, 0));
}

/// Without isolation an agent's name is a part of the key, and no wall.
#[tokio::test(flavor = "multi_thread")]
async fn without_isolation_a_lineage_names_the_agents() {
    let db = Database::create("branch_agents").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("s").new_agent_id("one")).await;
    writer.branched(Branch::of("s").agent_id("one").named("s").new_agent_id("two")).await;
    let agents = "select string_agg(depth || ' ' || agent_id, ', ' order by depth)
                  from agent_sessions.session_lineage('s', agent_id => 'two')";
    assert_eq!(writer.value::<String>(agents, &[]).await, "0 two, 1 one, 2 ");
    // One that is deleted leaves its place in the count.
    writer.run("select agent_sessions.session_delete('s', agent_id => 'one')").await;
    assert_eq!(writer.value::<String>(agents, &[]).await, "0 two, 2 ");
}

/// The policies bind the owner, too; inherited entries are read all the same.
#[tokio::test(flavor = "multi_thread")]
async fn forced_policies_do_not_hide_what_is_inherited() {
    let db = Database::create("branch_forced").await;
    let (owner, writer) = (db.owner().await, db.writer().await);
    owner.run("select agent_sessions.access_force_rls(true)").await;
    for connection in [&owner, &writer] {
        sample(connection, "s").await;
        connection.branched(Branch::of("s").named("b").seed("\"own\"").title("%d")).await;
        connection.branch("b", "c").await;
        deleted(connection, "s").await;
        deleted(connection, "b").await;
        assert_eq!(stored(&db).await, "[b] c [s]");
        assert_eq!(shown(connection, "c").await, ["0 20", "3 3", "4 \"\"", "6 6", "9 \"own\""]);
        call_of(connection, "session_revise('{s}', '30', item_id => 'd')", "c").await;
        connection.assert_dense("c", ENTRIES + 2).await;
        deleted(connection, "c").await;
        assert_eq!(rows(&db).await, (0, 0));
    }
}
