//! Appends are written without a statement where nobody could tell; what the owner adds to the table, and what the caller may not
//! do, holds for them as for any INSERT.

use agent_sessions_tests::{Append, Connection, Database, Error, Role, assert_sqlstate};

/// Runs a call in a transaction that is rolled back, and says by how much a count of the transaction's has grown.
pub async fn growth(connection: &Connection, count: &str, call: &str) -> i64 {
    connection.begin("read committed").await;
    let before: i64 = connection.value(count, &[]).await;
    connection.run(&format!("select from agent_sessions.{call}")).await;
    let after: i64 = connection.value(count, &[]).await;
    connection.rollback().await;
    after - before
}

/// How often a call runs a function of the extension's.
pub async fn calls(connection: &Connection, function: &str, call: &str) -> i64 {
    // What earlier transactions have counted may not have been handed on yet.
    let count = format!(
        "select coalesce(sum(calls), 0)::bigint from pg_stat_xact_user_functions where funcname = '{function}'"
    );
    growth(connection, &count, call).await
}

/// How often the trigger of an INSERT ran: not at all, where no statement did.
async fn inserts(connection: &Connection, call: &str) -> i64 {
    calls(connection, "on_item_insert", call).await
}

/// A database that counts calls.
pub async fn counted(name: &str) -> Database {
    let db = Database::create(name).await;
    let count =
        "do $$ begin execute format('alter database %I set track_functions = ''all''', current_database()); end $$";
    db.superuser().await.run(count).await;
    db
}

async fn append(connection: &Connection) -> Result<i64, Error> {
    Append::to("s", "1").tag("t").author("ann").run(connection).await
}

const APPEND: &str = "session_append('s', '1')";

#[tokio::test(flavor = "multi_thread")]
async fn an_append_runs_no_statement_that_inserts() {
    let db = counted("direct").await;
    db.writer().await.create_session("s").await;
    for role in [Role::Writer, Role::Owner, Role::Superuser] {
        let connection = db.connect(role.clone()).await;
        for call in [
            APPEND,
            "session_append('s', '{}', item_id => 'i', tag => 't', author => 'a', attrs => '{\"k\": 1}', kept_from => 0)",
            "session_append('s', '1', open => true)",
            "session_append('new', '1', on_missing => 'create')",
            r#"session_append_batch('s', '[{"payload": 1}, {"payload": 2, "item_id": "i"}]')"#,
            r#"session_create('other', items => '[{"payload": 1}]')"#,
            "session_branch('s', seed => '1')",
        ] {
            assert_eq!(inserts(&connection, call).await, 0, "{role:?} {call}");
        }
        // What an entry about another closes is a trigger's business.
        connection.run("select agent_sessions.session_append('s', '1', item_id => 'r')").await;
        assert_eq!(inserts(&connection, "session_revise('s', '2', item_id => 'r')").await, 1, "{role:?}");
    }
    let isolated = db.writer().await;
    isolated.run("select agent_sessions.session_append('mine', '1', agent_id => 'a', on_missing => 'create')").await;
    isolated.run("set agent_sessions.isolation = agent; set agent_sessions.agent = 'a'").await;
    assert_eq!(inserts(&isolated, "session_append('mine', '1')").await, 0);
}

/// A connection that has appended before learns of it with the next append, and again when it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_owner_adds_to_the_table_is_a_statements_to_obey() {
    let db = counted("direct_additions").await;
    let (owner, writer) = (db.owner().await, db.writer().await);
    writer.create_session("s").await;
    owner
        .run(
            "create table public.seen (position bigint);
             grant insert on public.seen to public;
             create function public.see() returns trigger language plpgsql as
               'begin insert into public.seen values (new.position); return new; end'",
        )
        .await;
    for (add, remove) in [
        ("create trigger see after insert on # for each row execute function public.see()", "drop trigger see on #"),
        (
            "create rule see as on insert to # do also insert into public.seen values (new.position)",
            "drop rule see on #",
        ),
        ("create index extra on # (author)", "drop index agent_sessions.extra"),
        ("create index extra on # ((attrs ->> 'k'))", "drop index agent_sessions.extra"),
        ("alter table # add constraint extra check (author <> 'bob')", "alter table # drop constraint extra"),
        ("create policy extra on # as restrictive using (true)", "drop policy extra on #"),
        ("alter table # disable trigger activity", "alter table # enable trigger activity"),
        ("alter table # enable always trigger activity", "alter table # enable trigger activity"),
    ] {
        let [add, remove] = [add, remove].map(|sql| sql.replace('#', "agent_sessions.session_item"));
        assert_eq!(inserts(&writer, APPEND).await, 0, "before {add}");
        owner.run(&add).await;
        assert_eq!(inserts(&writer, APPEND).await, 1, "after {add}");
        owner.run(&remove).await;
        assert_eq!(inserts(&writer, APPEND).await, 0, "after {remove}");
    }
    let policy = "select pg_get_expr(polqual, polrelid) from pg_policy
                  where polrelid = 'agent_sessions.session_item'::regclass";
    let installed: String = owner.value(policy, &[]).await;
    let alter = |using: &str| format!("alter policy visible on agent_sessions.session_item using ({using})");
    owner.run(&alter(&format!("({installed}) and author is distinct from 'bob'"))).await;
    assert_eq!(inserts(&writer, APPEND).await, 1);
    owner.run(&alter(&installed)).await;
    assert_eq!(inserts(&writer, APPEND).await, 0);
    // No way back from a column: the table has it for good, if only as dropped.
    owner.run("alter table agent_sessions.session_item add column extra int default 7").await;
    append(&writer).await.expect("an append");
    assert_eq!(owner.value::<i32>("select extra from agent_sessions.session_item", &[]).await, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_does_what_the_additions_say() {
    let db = Database::create("direct_effects").await;
    let (owner, writer) = (db.owner().await, db.writer().await);
    writer.create_session("s").await;
    append(&writer).await.expect("an append");
    owner
        .run(
            "create table public.seen (position bigint);
             grant insert on public.seen to public;
             create function public.see() returns trigger language plpgsql as
               'begin insert into public.seen values (new.position); return null; end';
             create trigger see after insert on agent_sessions.session_item for each row execute function public.see()",
        )
        .await;
    append(&writer).await.expect("an append");
    assert_eq!(owner.value::<i64>("select sum(position)::bigint from public.seen", &[]).await, 1);
    for (add, remove, code) in [
        (
            "alter table # add constraint extra check (author <> 'ann') not valid",
            "alter table # drop constraint extra",
            "23514",
        ),
        (
            "create policy extra on # as restrictive for insert with check (author <> 'ann')",
            "drop policy extra on #",
            "42501",
        ),
    ] {
        let [add, remove] = [add, remove].map(|sql| sql.replace('#', "agent_sessions.session_item"));
        owner.run(&add).await;
        assert_sqlstate!(append(&writer).await, code);
        owner.run(&remove).await;
        append(&writer).await.expect("an append");
    }
    owner.run("create unique index extra on agent_sessions.session_item (author) where tag = 'u'").await;
    let tagged = Append::to("s", "1").tag("u").author("ann");
    tagged.run(&writer).await.expect("the first");
    assert_sqlstate!(tagged.run(&writer).await, "23505");
    assert!(writer.verify("s").await.ok);
}

/// Whatever the connection has found out before.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_needs_what_an_insert_needs() {
    let db = Database::create("direct_rights").await;
    let (owner, superuser, writer) = (db.owner().await, db.superuser().await, db.writer().await);
    let role = db.role_name(&Role::Writer);
    writer.create_session("s").await;
    append(&writer).await.expect("an append");
    for column in ["sid", "position", "op", "kind", "item_id", "tag", "author", "target", "payload", "attrs"] {
        owner.run(&format!("revoke insert ({column}) on agent_sessions.session_item from {role}")).await;
        assert_sqlstate!(append(&writer).await, "42501");
        owner.run(&format!("grant insert ({column}) on agent_sessions.session_item to {role}")).await;
        append(&writer).await.expect("an append");
    }
    owner.run(&format!("revoke select on agent_sessions.session_item from {role}")).await;
    assert_sqlstate!(append(&writer).await, "42501");
    owner.run(&format!("grant select on agent_sessions.session_item to {role}")).await;

    // By membership, and no longer.
    let member = db.role("direct_member", None).await;
    superuser.run(&format!("grant {role} to {member}")).await;
    let connection = db.connect(Role::Named(member.clone())).await;
    append(&connection).await.expect("an append");
    superuser.run(&format!("revoke {role} from {member}")).await;
    assert_sqlstate!(append(&connection).await, "42501");

    writer.run("set row_security = off").await;
    assert_sqlstate!(append(&writer).await, "42501");
    writer.run("reset row_security").await;
    writer.run("begin read only").await;
    assert_sqlstate!(append(&writer).await, "25006");
    writer.rollback().await;
    append(&writer).await.expect("an append");
    // Without the triggers there is nothing that would link a row.
    superuser.run("set session_replication_role = replica").await;
    assert_sqlstate!(append(&superuser).await, "23502");
}

/// As SELECT … FOR UPDATE and INSERT: an index on `session` can be built meanwhile, one on `session_item` waits.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_locks_the_tables_as_its_statements_would() {
    let db = Database::create("direct_locks").await;
    let (owner, writer) = (db.owner().await, db.writer().await);
    writer.create_session("s").await;
    writer.begin("read committed").await;
    append(&writer).await.expect("an append");
    let lock = |table: &str| format!("begin; lock table agent_sessions.{table} in share mode nowait; rollback");
    owner.run(&lock("session")).await;
    assert_sqlstate!(owner.batch_execute(&lock("session_item")).await, "55P03");
    owner.rollback().await;
    writer.commit().await;
}

/// A table is looked up by its name, as a statement does, also by a connection that has known it under that.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_name_is_not_written() {
    let db = Database::create("direct_renamed").await;
    let (superuser, writer) = (db.superuser().await, db.writer().await);
    writer.create_session("s").await;
    let mut expected = 0;
    for (there, back, call, code) in [
        (
            "alter table agent_sessions.session_item rename to elsewhere",
            "alter table agent_sessions.elsewhere rename to session_item",
            "select agent_sessions.session_append('s', '1')",
            "42P01",
        ),
        (
            "alter table agent_sessions.session rename to elsewhere",
            "alter table agent_sessions.elsewhere rename to session",
            "select agent_sessions.session_append('s', '1')",
            "42P01",
        ),
        (
            "alter schema agent_sessions rename to elsewhere",
            "alter schema elsewhere rename to agent_sessions",
            "select elsewhere.session_append('s', '1')",
            "3F000",
        ),
    ] {
        append(&writer).await.expect("an append");
        superuser.run(there).await;
        assert_sqlstate!(writer.try_value::<i64>(call, &[]).await, code);
        superuser.run(back).await;
        expected += 1;
        writer.assert_dense("s", expected).await;
    }
    append(&writer).await.expect("an append");
}
