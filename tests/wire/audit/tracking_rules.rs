//! Who says what is tracked, for which tenant, and that the trail and the deed are one transaction.

use agent_sessions_tests::{Connection, Database, Role, assert_sqlstate, detail};

use super::tracking::{TRAIL, adds, track, trail};
use super::{Event, admin, assert_chained, count, in_tenant, texts};

const SET: &str = "select agent_sessions.session_set('s', title => (random())::text)";

async fn tracked(db: &Database) -> Vec<String> {
    texts(&db.superuser().await, "select tenant || ':' || what from agent_sessions.audit_tracking order by 1").await
}

async fn session(writer: &Connection) {
    writer.create_session("s").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn words_are_enabled_and_disabled_one_by_one_or_all() {
    let db = Database::create("track_words").await;
    let admin = admin(&db).await;
    let call = async |what: &str, enabled: bool| {
        admin.run(&format!("select agent_sessions.audit_track(what => '{what}', enabled => {enabled})")).await;
        tracked(&db).await
    };
    const ALL: [&str; 8] = [":access", ":branch", ":delete", ":erase", ":lease", ":state", ":tenant", ":trim"];
    assert_eq!(call("state", true).await, [":state"]);
    assert_eq!(call("state", true).await, [":state"]);
    assert_eq!(call("erase", true).await, [":erase", ":state"]);
    assert_eq!(call("trim", false).await, [":erase", ":state"]);
    assert_eq!(call("state", false).await, [":erase"]);
    assert_eq!(call("all", true).await, ALL);
    assert_eq!(call("all", true).await, ALL);
    assert_eq!(call("lease", false).await, ALL.iter().filter(|what| **what != ":lease").copied().collect::<Vec<_>>());
    assert_eq!(call("all", false).await, Vec::<String>::new());
    assert_eq!(call("all", false).await, Vec::<String>::new());

    for (arguments, named) in [
        ("'', true", "what"),
        ("'State', true", "what"),
        ("'append', true", "what"),
        ("'state,delete', true", "what"),
        ("' state', true", "what"),
        ("null, true", "what"),
        ("'state', null", "enabled"),
        ("'all', null", "enabled"),
    ] {
        let refused = admin.query(&format!("select agent_sessions.audit_track({arguments})"), &[]).await;
        assert_eq!(detail(&assert_sqlstate!(refused, "SE001"))["argument"], named, "{arguments}");
    }
    assert_eq!(tracked(&db).await, Vec::<String>::new());
    for connection in [db.writer().await, db.reader().await] {
        assert_sqlstate!(connection.query("select agent_sessions.audit_track('state', true)", &[]).await, "42501");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_its_own_trail_and_its_own_words() {
    let db = Database::create("track_tenants").await;
    let tenants = ["", "a", "b"];
    let writers = [in_tenant(&db, "").await, in_tenant(&db, "a").await, in_tenant(&db, "b").await];
    for writer in &writers {
        session(writer).await;
    }
    let admin = admin(&db).await;
    admin.run("set agent_sessions.tenant = 'a'; select agent_sessions.audit_track('state', true)").await;
    admin.run("set agent_sessions.tenant = 'b'; select agent_sessions.audit_track('delete', true)").await;
    for writer in &writers {
        writer.run(SET).await;
    }
    let told = |counts: [usize; 3]| tenants.into_iter().zip(counts).collect::<Vec<_>>();
    let found = async || {
        let mut found = Vec::new();
        for (tenant, writer) in tenants.into_iter().zip(&writers) {
            found.push((tenant, trail(writer).await.len()));
        }
        found
    };
    assert_eq!(found().await, told([0, 1, 0]));
    // Who passes the policies deletes all of them at once: the trail is that of the session's tenant.
    db.owner().await.run("delete from agent_sessions.session").await;
    assert_eq!(found().await, told([0, 1, 1]));
    let owner = db.role_name(&Role::Owner);
    assert_eq!(trail(&writers[2]).await, [format!("session_delete {owner} - s null")]);
    for (writer, events) in writers.iter().zip([0, 1, 1]) {
        assert_chained(writer, TRAIL, events).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trail_is_written_or_rolled_back_with_the_deed() {
    let db = Database::create("track_transaction").await;
    track(&db.owner().await, "all").await;
    let (writer, other) = (db.writer().await, db.writer().await);
    session(&writer).await;
    writer.begin("read committed").await;
    writer.run(SET).await;
    assert_eq!((trail(&writer).await.len(), trail(&other).await.len()), (1, 0));
    writer.rollback().await;
    assert_eq!(trail(&writer).await.len(), 0);
    assert_eq!(count(&writer, "agent_sessions.audit_stream").await, 0);

    writer.begin("read committed").await;
    writer.run(SET).await;
    writer.run(&format!("savepoint one; {SET}; select agent_sessions.session_delete('s'); rollback to one")).await;
    assert_eq!(trail(&writer).await.len(), 1);
    writer.commit().await;
    assert_eq!(trail(&other).await.len(), 1);

    // A deed that is refused has not been done.
    let stale = "select agent_sessions.session_set('s', title => 'x', expected_revision => 0)";
    assert_sqlstate!(writer.query(stale, &[]).await, "SE006");
    writer.run("select agent_sessions.session_branch('s', new_session_id => 'b')").await;
    assert_sqlstate!(
        writer.batch_execute("update agent_sessions.session set revision = 7 where session_id = 's'").await,
        "SE006"
    );
    writer.run("select agent_sessions.session_claim('s', '1 hour')").await;
    assert_sqlstate!(writer.query("select agent_sessions.session_delete('s')", &[]).await, "SE009");
    assert_chained(&writer, TRAIL, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tracking_that_is_rolled_back_was_never_on() {
    let db = Database::create("track_rollback").await;
    let (admin, writer) = (admin(&db).await, db.writer().await);
    session(&writer).await;
    admin.begin("read committed").await;
    admin.run("select agent_sessions.audit_track('state', true)").await;
    // Others do not track yet; the transaction itself does.
    writer.run(SET).await;
    assert_eq!(trail(&writer).await.len(), 0);
    admin.run(SET).await;
    assert_eq!(trail(&admin).await.len(), 1);
    admin.rollback().await;
    assert_eq!(tracked(&db).await, Vec::<String>::new());
    writer.run(SET).await;
    assert_eq!(trail(&writer).await.len(), 0);
    // From its commit on it holds for everybody, one snapshot or not.
    writer.begin("repeatable read").await;
    writer.run("select count(*) from agent_sessions.session").await;
    track(&db.owner().await, "state").await;
    writer.run(SET).await;
    writer.commit().await;
    assert_eq!(trail(&writer).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_actor_is_the_setting_else_the_role() {
    let db = Database::create("track_actor").await;
    track(&db.owner().await, "all").await;
    let (writer, superuser) = (db.writer().await, db.superuser().await);
    session(&writer).await;
    let role = db.role_name(&Role::Writer);
    writer.run(SET).await;
    writer.run(&format!("begin; set local agent_sessions.actor = 'ann'; {SET}; commit")).await;
    superuser.run(SET).await;
    superuser.run(&format!("set role {role}; {SET}")).await;
    writer.run("set agent_sessions.actor = 'ben'; select agent_sessions.session_delete('s')").await;
    let superuser = db.role_name(&Role::Superuser);
    assert_eq!(super::column(&writer, TRAIL, "actor").await, [&role, "ann", &superuser, &role, "ben"]);
}

/// What is tracked does not depend on the privileges of who does it.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_any_privilege_on_the_trail_is_tracked() {
    let db = Database::create("track_unprivileged").await;
    track(&db.owner().await, "all").await;
    let (writer, owner) = (db.writer().await, db.owner().await);
    session(&writer).await;
    let role = db.role("bare", None).await;
    owner
        .run(&format!(
            "grant usage on schema agent_sessions to {role};
             grant select, update (title), delete on agent_sessions.session to {role};
             grant execute on function agent_sessions.visible_tenant, agent_sessions.isolated_agent to {role}"
        ))
        .await;
    let bare = db.connect(Role::Named(role.clone())).await;
    let added =
        adds(&writer, &bare, "update agent_sessions.session set title = 'x'; delete from agent_sessions.session").await;
    let wanted = [
        format!("session_delete {role} - s null"),
        format!("session_set {role} - s {{\"changed\":[\"title\"],\"revision\":1}}"),
    ];
    assert_eq!(added, wanted);
    assert_sqlstate!(bare.query("select * from agent_sessions.audit_event", &[]).await, "42501");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deed_behind_a_trail_that_the_snapshot_does_not_see_is_a_serialization_failure() {
    for isolation in ["repeatable read", "serializable"] {
        let db = Database::create("track_snapshot").await;
        track(&db.owner().await, "all").await;
        let (writer, other) = (db.writer().await, db.writer().await);
        session(&writer).await;
        other.create_session("other").await;
        writer.begin(isolation).await;
        writer.run("select count(*) from agent_sessions.session").await;
        other.run("select agent_sessions.session_delete('other')").await;
        assert_sqlstate!(writer.batch_execute(SET).await, "40001");
        writer.rollback().await;
        writer.run(SET).await;
        assert_chained(&writer, TRAIL, 2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_are_tracked_at_the_same_time_write_one_trail() {
    const CLIENTS: usize = 6;
    const CHANGES: usize = 40;
    let db = Database::create("track_race").await;
    track(&db.owner().await, "all").await;
    let clients = db.writers(CLIENTS).await;
    agent_sessions_tests::together(CLIENTS, |client| {
        let writer = clients[client].clone();
        async move {
            let id = format!("s{client}");
            writer.create_session(&id).await;
            for number in 0..CHANGES {
                writer.run(&format!("select agent_sessions.session_set('{id}', title => '{number}')")).await;
            }
            writer.run(&format!("select agent_sessions.session_delete('{id}')")).await;
        }
    })
    .await;
    assert_chained(&clients[0], TRAIL, (CLIENTS * (CHANGES + 1)) as i64).await;
}

/// The trail is dumped like every stream; that its deeds are done again by the restore is not told.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_writes_no_trail() {
    let db = Database::create("track_dumped").await;
    track(&db.owner().await, "all").await;
    let writer = db.writer().await;
    writer
        .run(
            "select agent_sessions.session_create('s', items => '[{\"payload\":0},{\"payload\":1},{\"payload\":2}]');
             select agent_sessions.session_create('gone'); select agent_sessions.session_delete('gone');
             select agent_sessions.session_set('s', title => 't', state => '{}');
             select agent_sessions.session_branch('s', new_session_id => 'b');
             select agent_sessions.session_erase('b', target => 0);
             select agent_sessions.session_create('hidden', items => '[{\"payload\":0}]');
             select agent_sessions.session_branch('hidden', new_session_id => 'of hidden');
             select agent_sessions.session_delete('hidden');
             select agent_sessions.session_create('trimmed', items => '[{\"payload\":0},{\"payload\":1},{\"payload\":2}]');
             select agent_sessions.session_trim('trimmed', 2)",
        )
        .await;
    let before = trail(&writer).await;
    assert_eq!(before.len(), 7);
    Event::in_stream("s", "a").append(&writer).await;
    let stored = "select to_json(e)::text from agent_sessions.audit_event e order by stream, seq";
    let events = texts(&db.superuser().await, stored).await;
    let dump = db.program("pg_dump", Role::Owner).output().await;
    for (role, before) in
        [(Role::Owner, String::new()), (Role::Superuser, format!("set role {};\n", db.role_name(&Role::Owner)))]
    {
        let copy = Database::empty("track_restored").await;
        copy.psql(role).input(before + &dump).output().await;
        assert_eq!(texts(&copy.superuser().await, stored).await, events);
        assert_eq!(tracked(&copy).await.len(), 8);
        // And it goes on.
        let writer = copy.writer().await;
        writer.run(SET).await;
        assert_chained(&writer, TRAIL, 8).await;
        assert_chained(&writer, "s", 1).await;
    }
}
