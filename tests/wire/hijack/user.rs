//! Whoever the engine acts as meanwhile: the caller's code runs as the caller, and sees what the caller may.

use agent_sessions_tests::{Role, sqlstate};

use super::*;

/// A function of the caller's that tells what it is shown, and is cheaper than any policy.
const TELLTALE: &str = "
    create table public.told (what text);
    create function public.tell(what text) returns boolean language plpgsql security definer set search_path = pg_catalog cost 0.0000001
      as 'begin insert into public.told values (what); return true; end';
    create function public.tell(what text, ignored text) returns boolean language sql cost 0.0000001 as 'select public.tell(what)';
    create operator public.<<< (leftarg = text, rightarg = text, function = public.tell)";

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_of_the_callers_sees_no_row_that_the_caller_may_not() {
    let db = Database::create("hijack_leak").await;
    let (writer, superuser) = (db.writer().await, db.superuser().await);
    superuser.run(TELLTALE).await;
    for tenant in ["ours", "theirs"] {
        writer
            .run(&format!(
                "set agent_sessions.tenant = '{tenant}';
                 select agent_sessions.session_create('{tenant}', title => '{tenant}', owner => '{tenant}', items => '[{{\"payload\": \"{tenant}\", \"tag\": \"{tenant}\"}}]');
                 select agent_sessions.session_append('{tenant}', '\"\"', open => true, tag => '{tenant}');
                 select agent_sessions.session_delta('{tenant}', target => 1, chunk_no => 0, chunk => '{tenant}');
                 select agent_sessions.session_claim('{tenant}', ttl => '1 hour', holder => '{tenant}');
                 select agent_sessions.audit_append('{tenant}', stream => '{tenant}');
                 select agent_sessions.audit_anchor()"
            ))
            .await;
    }
    writer.run("set agent_sessions.tenant = 'ours'").await;
    let leave_hidden = "set session_replication_role = replica;
                        insert into agent_sessions.session (tenant, agent_id, session_id, title, revision, active_at, created_at, updated_at, deleted_at)
                          values ('ours', '', 'hidden', 'hidden', 0, now(), now(), now(), now())";
    superuser.run(leave_hidden).await;
    for (rows, column) in [
        ("agent_sessions.session", "title"),
        ("agent_sessions.session_item", "tag"),
        ("agent_sessions.session_delta", "chunk"),
        ("agent_sessions.session_head", "title"),
        ("agent_sessions.live_item", "tag"),
        ("agent_sessions.lease_status", "holder"),
        ("agent_sessions.audit_event", "action"),
        ("agent_sessions.audit_chain", "stream"),
        ("agent_sessions.audit_anchor", "tenant"),
        ("agent_sessions.audit_anchor_leaf", "tenant"),
        ("agent_sessions.audit_stream", "stream"),
        ("agent_sessions.session_list()", "title"),
        ("agent_sessions.session_list(title => 'ours')", "title"),
        ("agent_sessions.session_get('ours')", "title"),
        ("agent_sessions.session_get('theirs')", "title"),
        ("agent_sessions.session_history('ours')", "tag"),
        ("agent_sessions.session_history('theirs')", "tag"),
        ("agent_sessions.audit_list()", "action"),
        ("agent_sessions.audit_stats()", "action"),
    ] {
        for condition in [
            format!("public.tell({column}::text)"),
            format!("{column}::text operator(public.<<<) ''"),
            format!("case when public.tell({column}::text) then true end"),
        ] {
            superuser.run("truncate public.told").await;
            writer.run(&format!("select * from {rows} where {condition}")).await;
            writer
                .run(&format!(
                    "select * from {rows} r join (select {column} as c from {rows}) s on public.tell(s.c::text)"
                ))
                .await;
            let told = superuser.query("select distinct what from public.told", &[]).await.expect("what was told");
            let told: Vec<String> = told.iter().map(|row| row.get(0)).collect();
            if rows.contains("'theirs'") {
                assert!(told.is_empty(), "{rows} where {condition} told {told:?}");
            } else {
                assert_eq!(told, ["ours"], "{rows} where {condition}");
            }
        }
    }
    for write in [
        "update agent_sessions.session set title = title where public.tell(title)",
        "delete from agent_sessions.session where public.tell(title)",
    ] {
        superuser.run("truncate public.told").await;
        // The lease is in the way of the deletion, after the condition was asked.
        let _ = writer.batch_execute(write).await;
        let foreign = "select count(*) from public.told where what <> 'ours'";
        assert_eq!(superuser.value::<i64>(foreign, &[]).await, 0, "{write}");
    }
}

/// An error in the middle of what is done as the owner does not leave the caller the owner.
#[tokio::test(flavor = "multi_thread")]
async fn the_caller_is_itself_again_after_every_error() {
    let db = Database::create("hijack_user").await;
    let writer = db.writer().await;
    let admin = db.role("admin", Some("admin")).await;
    let admin = db.connect(Role::Named(admin)).await;
    let owner = db.owner().await;
    for tenant in ["theirs", ""] {
        writer
            .run(&format!(
                "set agent_sessions.tenant = '{tenant}'; select agent_sessions.session_create('s', items => '[{{\"payload\": 1}}]');
                 select agent_sessions.session_branch('s', new_session_id => 'b')"
            ))
            .await;
    }
    let calls = [
        "agent_sessions.access_grant('nobody at all', 'reader')",
        "agent_sessions.access_grant(current_user, 'reader')",
        "agent_sessions.access_revoke('nobody at all')",
        "agent_sessions.tenant_bind('nobody at all', 'a')",
        "agent_sessions.tenant_unbind('nobody at all', 'a')",
        "agent_sessions.session_trim('s', keep_from => 99)",
        "agent_sessions.session_erase('s', target => 99)",
        "agent_sessions.session_flatten('s', lease => 'x')",
        "agent_sessions.session_branch('s', at_target => 99)",
        "agent_sessions.session_delete('s', lease => 'x')",
        "agent_sessions.session_claim('s', ttl => '-1 s')",
        "agent_sessions.session_break_lease('none')",
        "agent_sessions.audit_prune('none', before_seq => 1)",
        "agent_sessions.audit_track('nothing', true)",
        "agent_sessions.audit_proof('none', seq => 1)",
        "agent_sessions.doctor('-1 s')",
        "agent_sessions.doctor(('1 ' || 'fortnite')::interval)",
        "agent_sessions.session_verify('s')",
        "agent_sessions.session_history('b')",
        "agent_sessions.session_delete('s')",
        "agent_sessions.doctor()",
    ];
    for (name, connection) in [("writer", &writer), ("admin", &admin), ("owner", &owner)] {
        let user: String = connection.value("select current_user::text", &[]).await;
        let mut failed = 0;
        for call in calls {
            connection.begin("read committed").await;
            connection.run("savepoint before").await;
            if let Err(error) = connection.batch_execute(&format!("select * from {call}")).await {
                failed += 1;
                assert!(!sqlstate(&error).starts_with("XX"), "{call}: {error:?}");
            }
            connection.run("rollback to before").await;
            let caught = format!("do $$ begin perform {call}; exception when others then null; end $$");
            connection.run(&caught.replace("perform agent", "perform * from agent")).await;
            let now: String = connection.value("select current_user::text", &[]).await;
            assert_eq!(now, user, "{name} after {call}");
            // The context is left as well: SET ROLE is refused in what runs as another user.
            connection.run(&format!("set local role {user}")).await;
            if name != "owner" {
                let seen = "select count(*) from agent_sessions.session where tenant <> ''";
                assert_eq!(connection.value::<i64>(seen, &[]).await, 0, "{name} after {call}");
            }
            connection.rollback().await;
        }
        assert!(failed > 10, "{name}: only {failed} calls were refused");
    }
}

/// Arguments, defaults of columns and code in the same statement are the caller's, however deep the engine is in its own.
#[tokio::test(flavor = "multi_thread")]
async fn code_of_the_callers_runs_as_the_caller() {
    let db = Database::create("hijack_arguments").await;
    let role = db.role("app", Some("writer")).await;
    let superuser = db.superuser().await;
    superuser
        .run(
            "create table public.ran_as (who text, session_who text); grant insert, select on public.ran_as to public;
             create function public.spy(value text) returns text language plpgsql as
               'begin insert into public.ran_as values (current_user, session_user); return value; end';
             create domain public.watched as text check (public.spy(value) is not null);
             create table public.mine (sid bigint, note text default public.spy('x'));
             grant all on public.mine to public;
             create function public.on_mine() returns trigger language plpgsql as
               'begin perform public.spy(''x''); perform agent_sessions.session_append(''s'', ''2''); perform public.spy(''x''); return new; end';
             create trigger mine after insert on public.mine for each row execute function public.on_mine()",
        )
        .await;
    let app = db.connect(Role::Named(role.clone())).await;
    for call in [
        "select agent_sessions.session_create(public.spy('s'), title => 'T'::public.watched)",
        "select agent_sessions.session_append('s', public.spy('1')::json, item_id => public.spy('i'))",
        "select agent_sessions.session_append(h.session_id, to_json(public.spy('1'))) from agent_sessions.session_list() h where public.spy(h.title) = 'T'",
        "insert into agent_sessions.session_item (sid, payload, item_id) select sid, public.spy('1')::json, public.spy('j') from agent_sessions.session",
        "update agent_sessions.session set title = public.spy('U')",
        "select public.spy(payload::text) from agent_sessions.session_history('s')",
        "insert into public.mine (sid) select sid from agent_sessions.session",
        "select agent_sessions.session_branch('s', new_session_id => public.spy('b'), seed => public.spy('1')::json)",
        "select agent_sessions.session_erase('s', item_id => public.spy('i'), reason => public.spy('r'))",
        "with gone as (delete from agent_sessions.session where session_id = public.spy('b') returning session_id) select public.spy(session_id) from gone",
        "select agent_sessions.session_delete(public.spy('s'))",
    ] {
        superuser.run("truncate public.ran_as").await;
        app.run(call).await;
        let others = format!(
            "select count(*) filter (where who <> '{role}' or session_who <> '{role}'), count(*) from public.ran_as"
        );
        let row = superuser.query_one(&others, &[]).await.expect("who ran");
        let (others, all): (i64, i64) = (row.get(0), row.get(1));
        assert!(all > 0 && others == 0, "{call}: {others} of {all} ran as somebody else");
    }
}

/// The views that doctor() reads are the owner's to change: what the owner puts there gains nothing by a superuser who looks.
#[tokio::test(flavor = "multi_thread")]
async fn the_owners_code_stays_the_owners_when_a_superuser_calls() {
    let db = Database::create("hijack_superuser").await;
    let (owner, superuser) = (db.owner().await, db.superuser().await);
    superuser.run("create schema owners; grant all on schema owners to public").await;
    owner
        .run(
            "create table owners.ran_as (who text, gained text);
             create function owners.spy() returns boolean language plpgsql as $$
               declare gained text := 'nothing';
               begin
                 begin
                   execute format('set role %I', session_user);
                   gained := 'a role';
                 exception when insufficient_privilege then null;
                 end;
                 begin
                   execute format('set session authorization %I', session_user);
                   gained := 'a session';
                 exception when insufficient_privilege then null;
                 end;
                 perform set_config('search_path', 'owners', false);
                 insert into owners.ran_as values (current_user, gained);
                 return false;
               end $$;
             create or replace view agent_sessions.finding_server with (security_invoker = true) as
               select 'mine' as check_name, 'fail' as severity, '' collate \"C\" as finding, '' collate \"C\" as remedy, 1 as step, null::timestamptz as since
               where owners.spy()",
        )
        .await;
    superuser.run("set search_path = public; select from agent_sessions.doctor()").await;
    assert_eq!(
        superuser.value::<String>("show search_path", &[]).await,
        "public",
        "what it sets is gone with the call"
    );
    let row = superuser.query_one("select who, gained from owners.ran_as", &[]).await.expect("the spy ran once");
    let ran_as: (String, String) = (row.get(0), row.get(1));
    assert_eq!(ran_as, (db.role_name(&Role::Owner), "nothing".to_owned()));
    assert!(superuser.value::<bool>("select rolsuper from pg_roles where rolname = current_user", &[]).await);
}
