//! What is not as it was installed: lost, changed, or added.

use agent_sessions_tests::Cluster;

use super::*;

/// Runs the statements that a query yields.
async fn run_each(connection: &Connection, query: &str) -> i64 {
    let block = format!(
        "do $do$ declare statement text; begin for statement in {query} loop execute statement; end loop; end $do$"
    );
    connection.run(&block).await;
    connection.value(&format!("select count(*) from ({query}) q"), &[]).await
}

/// All of a kind at once, so that none is forgotten: what is left out of the list of a check would not be found.
#[tokio::test(flavor = "multi_thread")]
async fn everything_that_is_lost_is_found_and_made_again() {
    let db = healthy("doctor_lost").await;
    for (kind, check, status) in [
        ("trigger", "triggers", "fail"),
        ("policy", "policies", "fail"),
        ("index", "indexes", "warn"),
        ("unique index", "indexes", "fail"),
        ("constraint", "constraints", "fail"),
        ("not null", "columns", "fail"),
        ("default", "columns", "fail"),
        ("row security", "row_security", "fail"),
    ] {
        // The columns of a primary key are NOT NULL as long as there is one, that of an identity as long as it is.
        let removable = if kind == "not null" {
            "and not exists (
               select from pg_attribute a left join pg_index i on i.indrelid = a.attrelid and i.indisprimary
               where f.name = format('%s.%I', a.attrelid::regclass, a.attname) and (a.attnum = any (i.indkey) or a.attidentity <> ''))"
        } else {
            ""
        };
        let removals = format!("select f.removal from agent_sessions.as_found f where f.kind = '{kind}' {removable}");
        let statements: i64 = db.superuser.value(&format!("select count(*) from ({removals}) r"), &[]).await;
        assert!(statements > 0, "{kind}");
        // The view itself shows less with every statement.
        db.superuser.run(&format!("create temp table removal as {removals}")).await;
        run_each(&db.superuser, "select removal from removal").await;
        db.superuser.run("drop table removal").await;
        let found = db.is_healed(kind, check, status).await;
        let lost = found.detail.lines().filter(|line| line.starts_with(&format!("lost {kind}: "))).count();
        assert_eq!(lost as i64, statements, "{kind}: {}", found.detail);
    }
    // And the rules hold again.
    let writer = db.db.writer().await;
    writer.create_session("s").await;
    writer.append("s", "1").await;
    writer.assert_dense("s", 1).await;
    assert_sqlstate!(db.owner.batch_execute("delete from agent_sessions.session_item").await, "SE014");
}

#[tokio::test(flavor = "multi_thread")]
async fn triggers_that_do_not_fire_are_found() {
    let db = healthy("doctor_triggers").await;
    for how in ["disable", "enable replica", "enable always"] {
        let alterations = format!(
            "select format('alter table %s {how} trigger %I', tgrelid::regclass, tgname) from pg_trigger
             where not tgisinternal and tgname not in ('forget', 'forget_all')"
        );
        let triggers = run_each(&db.owner, &alterations).await;
        let found = db.is_healed(how, "triggers", "fail").await;
        assert_eq!(found.detail.lines().count() as i64, triggers, "{how}");
    }
    for broken in [
        "alter table agent_sessions.session disable trigger all",
        "alter table agent_sessions.session_item disable trigger user",
        "alter table agent_sessions.tenant_binding enable trigger forget",
        "alter trigger link on agent_sessions.session_item rename to other; alter table agent_sessions.session_item disable trigger other",
        "drop trigger link on agent_sessions.session_item;
         create trigger link before insert on agent_sessions.session_item
           for each row when (new.position < 1000) execute function agent_sessions.on_item_insert()",
        "drop trigger keep on agent_sessions.session_item;
         create trigger keep before truncate on agent_sessions.session_item
           for each statement execute function agent_sessions.on_items_inserted()",
    ] {
        db.suffers(broken, "triggers", "fail").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_is_found() {
    let db = healthy("doctor_changed").await;
    for (broken, check) in [
        ("alter policy visible on agent_sessions.session using (true)", "policies"),
        ("alter policy visible on agent_sessions.session_item to pg_monitor", "policies"),
        ("alter view agent_sessions.session_head reset (security_invoker)", "views"),
        ("alter view agent_sessions.live_item set (security_invoker = false)", "views"),
        ("alter function agent_sessions.session_get security definer", "functions"),
        ("alter function agent_sessions.session_append(text, json, text, text, text, text, jsonb, bigint, boolean, bigint, text, text, text, text)
            set search_path = public", "functions"),
        ("alter function agent_sessions.current_tenant() immutable", "functions"),
        ("alter function agent_sessions.doctor(interval) reset all", "functions"),
        ("alter table agent_sessions.session alter column lease_fence set default 7", "columns"),
        ("alter table agent_sessions.session alter column sid set generated by default", "columns"),
        ("alter table agent_sessions.session_item alter column payload set statistics -1", "statistics"),
        ("alter table agent_sessions.session_delta alter column chunk set statistics 100", "statistics"),
        ("drop index agent_sessions.session_item_id_key;
          create unique index session_item_id_key on agent_sessions.session_item (sid, item_id) where item_id > 'a'", "indexes"),
        ("alter table agent_sessions.session_item drop constraint session_item_op_check,
            add constraint session_item_op_check check (op <> '')", "constraints"),
        ("alter table agent_sessions.session drop constraint session_revision_check,
            add constraint session_revision_check check (revision >= 0) not valid", "constraints"),
        ("update pg_index set indisvalid = false where indexrelid = 'agent_sessions.session_key'::regclass", "indexes"),
        ("update pg_extension set extconfig = extconfig[:11], extcondition = extcondition[:11] where extname = 'agent_sessions'", "dumps"),
        ("alter extension agent_sessions drop sequence agent_sessions.lease_fence_seq;
          alter extension agent_sessions add sequence agent_sessions.lease_fence_seq", "dumps"),
        ("alter extension agent_sessions drop function agent_sessions.session_get(text, text, text)", "members"),
        ("alter extension agent_sessions drop type agent_sessions.item_row", "members"),
    ] {
        db.suffers(broken, check, "fail").await;
    }
    // What is the administrator's to choose is no finding.
    db.superuser
        .run(
            "alter index agent_sessions.session_key set (fillfactor = 70); alter index agent_sessions.session_pkey set (fillfactor = 70);
             alter table agent_sessions.session set (autovacuum_vacuum_scale_factor = 0.01);
             alter table agent_sessions.session_item alter column payload set storage external;
             alter table agent_sessions.session alter column owner set statistics 500;
             alter table agent_sessions.session replica identity full;
             create view public.mine as select title from agent_sessions.session; create publication mine for all tables;
             comment on table agent_sessions.session is 'mine'; analyze",
        )
        .await;
    assert_well(&report(&db.owner).await);
    // A column's data is in no script: what the remedy tells is no statement.
    db.superuser.run("alter table agent_sessions.audit_anchor alter column root type varchar(100)").await;
    let ill = report(&db.owner).await;
    assert_eq!(found(&ill), [("columns", "fail")]);
    assert!(ill["columns"].remedy.starts_with("--") && !ill["columns"].remedy.contains(';'), "{}", told(&ill));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_users_have_added_is_found() {
    let db = healthy("doctor_added").await;
    db.superuser
        .run(
            "create table public.note (sid bigint); create table public.kind (name text primary key);
             create function public.seen() returns trigger language plpgsql as 'begin return new; end';
             create extension if not exists plpgsql",
        )
        .await;
    for (broken, check, status) in [
        (
            "create trigger mine before insert on agent_sessions.session for each row execute function public.seen()",
            "triggers",
            "warn",
        ),
        ("create rule mine as on insert to agent_sessions.session_item do instead nothing", "triggers", "warn"),
        (
            "alter table agent_sessions.session_item add constraint mine foreign key (kind) references public.kind (name)",
            "constraints",
            "warn",
        ),
        ("alter table agent_sessions.session_item add constraint mine check (kind <> 'x')", "constraints", "warn"),
        (
            "alter table public.note add constraint mine foreign key (sid) references agent_sessions.session (sid)",
            "constraints",
            "warn",
        ),
        ("create index mine on agent_sessions.session_item (created_at)", "indexes", "warn"),
        ("create unique index mine on agent_sessions.session_item (sid, tag)", "indexes", "warn"),
        ("create index mine on agent_sessions.session_item ((attrs ->> 'name'))", "indexes", "warn"),
        ("create policy mine on agent_sessions.session_item using (true)", "policies", "fail"),
        (
            "create policy mine on agent_sessions.session_item as restrictive for select to pg_monitor using (kind = 'x')",
            "policies",
            "warn",
        ),
        ("create policy mine on agent_sessions.session_item for insert with check (true)", "policies", "fail"),
        ("alter table agent_sessions.session_item alter column kind set default 'x'", "columns", "fail"),
        ("alter table agent_sessions.session alter column owner set not null", "columns", "warn"),
        ("create statistics public.mine on sid, kind from agent_sessions.session_item", "statistics", "warn"),
        ("create table agent_sessions.mine (a text)", "members", "warn"),
        ("create function agent_sessions.mine() returns text language sql as 'select 1::text'", "members", "warn"),
        ("create type agent_sessions.mood as enum ('a')", "members", "warn"),
        ("create operator agent_sessions.=== (leftarg = text, rightarg = text, function = texteq)", "members", "warn"),
        ("alter extension agent_sessions add function public.seen()", "members", "warn"),
    ] {
        db.suffers(broken, check, status).await;
    }
    // A column more and no restore takes a dump; a child's rows show in the parent and obey no trigger.
    db.suffers("alter table agent_sessions.session_item add column mine text", "columns", "fail").await;
    db.suffers("create table public.child () inherits (agent_sessions.session_item)", "columns", "fail").await;
    db.suffers(
        "create function public.evil() returns text language sql as 'select 1::text';
         alter table agent_sessions.session_item alter column author set default public.evil()",
        "columns",
        "fail",
    )
    .await;
    if Cluster::major() >= 18 {
        let unenforced = "alter table agent_sessions.session drop constraint session_revision_check,
                          add constraint session_revision_check check (revision >= 0) not enforced";
        db.suffers(unenforced, "constraints", "fail").await;
    }
}

/// Values that an ANALYZE has taken survive their erasure, also when later ones take none.
#[tokio::test(flavor = "multi_thread")]
async fn kept_values_of_payloads_are_found() {
    let db = healthy("doctor_values").await;
    let writer = db.db.writer().await;
    writer.create_session("s").await;
    writer
        .run("select agent_sessions.session_append('s', '1', attrs => '{\"secret\": 1}') from generate_series(1, 3)")
        .await;
    db.suffers(
        "alter table agent_sessions.session_item alter column attrs set statistics 100; analyze agent_sessions.session_item;
         alter table agent_sessions.session_item alter column attrs set statistics 0; analyze agent_sessions.session_item",
        "statistics",
        "fail",
    )
    .await;
    db.suffers(
        "alter table agent_sessions.session_item alter column attrs set statistics 100; analyze agent_sessions.session_item",
        "statistics",
        "fail",
    )
    .await;
}
