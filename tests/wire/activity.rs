//! What an administrator sees: session_activity and tenant_usage.

use agent_sessions_tests::{Append, Branch, Connection, Database, Role, assert_sqlstate};

use crate::hiding::deleted;

async fn texts(connection: &Connection, sql: &str) -> Vec<String> {
    let rows = connection.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// Session, entries, open items and branches of every row.
const ACTIVITY: &str = "select concat_ws(' ', session_id, entries, open_items, branches, case when deleted_at is not null then 'hidden' end)
    from agent_sessions.session_activity order by session_id, deleted_at";

/// Sessions of whose rows the view says other than what there is, as `count(*)` and live_item see it.
const WRONG: &str = "select session_id from agent_sessions.session_activity a
    join agent_sessions.session s using (tenant, agent_id, session_id)
    where s.deleted_at is not distinct from a.deleted_at and (
      a.entries <> (select count(*) from agent_sessions.session_item i where i.sid = s.sid)
      or a.last_entry_at is distinct from (select max(i.created_at) from agent_sessions.session_item i where i.sid = s.sid)
      or a.open_items <> (select count(*) from agent_sessions.live_item l
           where l.open and (l.agent_id, l.session_id) = (s.agent_id, s.session_id))
      or a.branches <> (select count(*) from agent_sessions.session b where b.branched_from = s.sid))";

async fn open_item(writer: &Connection, session: &str) -> i64 {
    writer.value("select agent_sessions.session_append($1::text, '\"\"', open => true)", &[&session]).await
}

/// One session of every kind that differs in what its own log holds.
async fn sessions(writer: &Connection) {
    writer.create_session("empty").await;
    for session in ["changed", "streamed", "trimmed", "erased", "source"] {
        writer.create_session(session).await;
        writer.append_batch(session, r#"[{"payload": 0}, {"payload": 1}, {"payload": 2}]"#).await;
    }
    writer
        .run(
            "select agent_sessions.session_revise('changed', '9', target => 0);
             select agent_sessions.session_retract('changed', targets => '{1}');
             select agent_sessions.session_trim('trimmed', keep_from => 2);
             select agent_sessions.session_erase('erased', target => 1)",
        )
        .await;
    let closed = open_item(writer, "streamed").await;
    let retracted = open_item(writer, "streamed").await;
    open_item(writer, "streamed").await;
    let cut = open_item(writer, "streamed").await;
    writer
        .run(&format!(
            "select agent_sessions.session_revise('streamed', '\"done\"', target => {closed});
             select agent_sessions.session_retract('streamed', targets => '{{{retracted}}}');
             select agent_sessions.session_retract('streamed', from_target => {cut})"
        ))
        .await;
    let waiting = open_item(writer, "streamed").await;
    writer.run(&format!("select agent_sessions.session_delta('streamed', {waiting}, 0, 'so far')")).await;
    writer.branched(Branch::of("source").named("branch").at_target(1)).await;
    writer.append("branch", "3").await;
    writer.branched(Branch::of("source").named("seeded").inherit(false).seed("0")).await;
    writer.branched(Branch::of("branch").named("flat")).await;
    writer.run("select agent_sessions.session_flatten('flat'); select agent_sessions.session_trim('branch', keep_from => 2)").await;
    writer.branched(Branch::of("streamed").named("closing")).await;
    writer.run(&format!("select agent_sessions.session_revise('closing', '\"done\"', target => {waiting})")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_session_s_own_log_is_counted() {
    let db = Database::create("activity_sessions").await;
    let writer = db.writer().await;
    sessions(&writer).await;
    let expected = [
        "branch 1 0 0",
        "changed 5 0 0",
        // What a branch closes is open in its source.
        "closing 1 0 0",
        "empty 0 0 0",
        "erased 4 0 0",
        "flat 3 0 0",
        "seeded 1 0 0",
        "source 3 0 2",
        "streamed 11 2 1",
        "trimmed 2 0 0",
    ];
    let reader = db.reader().await;
    assert_eq!(texts(&reader, ACTIVITY).await, expected);
    assert_eq!(texts(&db.superuser().await, WRONG).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn hidden_sessions_are_shown_to_who_passes_the_policies_alone() {
    let db = Database::create("activity_hidden").await;
    let (writer, owner) = (db.writer().await, db.owner().await);
    writer.create_session("s").await;
    writer.append_batch("s", r#"[{"payload": 0}, {"payload": 1}, {"payload": 2}]"#).await;
    writer.branched(Branch::of("s").named("branch").at_target(1)).await;
    writer.append("branch", "2").await;
    writer.run("select from agent_sessions.session_claim('branch', '1 hour')").await;
    deleted(&writer, "s").await;
    writer.create_session("s").await;
    let usage =
        "select concat_ws(' ', sessions, hidden_sessions, live_leases, entries) from agent_sessions.tenant_usage";
    assert_eq!(texts(&writer, ACTIVITY).await, ["branch 1 0 0", "s 0 0 0"]);
    assert_eq!(texts(&writer, usage).await, ["2 0 1 1"]);
    // Of the hidden log, two entries are left, which the branch reads.
    assert_eq!(texts(&owner, ACTIVITY).await, ["branch 1 0 0", "s 2 0 1 hidden", "s 0 0 0"]);
    assert_eq!(texts(&owner, usage).await, ["2 1 1 3"]);
}

/// Tenant a has agents x and y, tenant b has one session.
async fn tenants(db: &Database) {
    let writer = db.writer().await;
    writer
        .run(
            "set agent_sessions.tenant = 'a';
             select agent_sessions.session_append('1', '1234567890', agent_id => 'x', on_missing => 'create');
             select agent_sessions.session_append('2', '1234567890', agent_id => 'y', on_missing => 'create');
             select agent_sessions.session_set('2', input_tokens => 10, output_tokens => 3, cost => 0.5, agent_id => 'y');
             select agent_sessions.session_set('1', input_tokens => 1, cost => 0.25, agent_id => 'x');
             set agent_sessions.tenant = 'b';
             select agent_sessions.session_append('3', '12345', on_missing => 'create')",
        )
        .await;
}

const USAGE: &str = "select concat_ws(' ', tenant, sessions, entries, stored_bytes, input_tokens, output_tokens, cost)
    from agent_sessions.tenant_usage order by tenant";
const NAMES: &str =
    "select tenant || ' ' || agent_id || ' ' || session_id from agent_sessions.session_activity order by 1";

#[tokio::test(flavor = "multi_thread")]
async fn a_role_sees_its_tenant_and_the_owner_all() {
    let db = Database::create("activity_tenants").await;
    tenants(&db).await;
    let (reader, owner) = (db.reader().await, db.owner().await);
    let (a, b) = ("a 2 2 22 11 3 0.75", "b 1 1 6 0 0 0");
    assert_eq!(texts(&reader, USAGE).await, Vec::<String>::new());
    reader.run("set agent_sessions.tenant = 'a'").await;
    assert_eq!(texts(&reader, USAGE).await, [a]);
    assert_eq!(texts(&reader, NAMES).await, ["a x 1", "a y 2"]);
    reader.run("set agent_sessions.isolation = 'agent'; set agent_sessions.agent = 'x'").await;
    assert_eq!(texts(&reader, USAGE).await, ["a 1 1 11 1 0 0.25"]);
    assert_eq!(texts(&reader, NAMES).await, ["a x 1"]);
    for passing in [&owner, &db.superuser().await] {
        assert_eq!(texts(passing, USAGE).await, [a, b]);
        assert_eq!(texts(passing, NAMES).await, ["a x 1", "a y 2", "b  3"]);
    }

    // A binding holds here, too, and forced policies bind the owner.
    let bound = db.role("bound", Some("reader")).await;
    owner.run(&format!("select agent_sessions.tenant_bind('{bound}', 'b')")).await;
    let bound = db.connect(Role::Named(bound)).await;
    bound.run("set agent_sessions.tenant = 'a'").await;
    for view in ["session_activity", "tenant_usage"] {
        let read = bound.query(&format!("select from agent_sessions.{view}"), &[]).await;
        assert!(read.is_err() || read.is_ok_and(|rows| rows.is_empty()), "{view} shows another tenant's rows");
    }
    bound.run("set agent_sessions.tenant = 'b'").await;
    assert_eq!(texts(&bound, USAGE).await, [b]);
    owner.run("select agent_sessions.access_force_rls(true); set agent_sessions.tenant = 'b'").await;
    assert_eq!(texts(&owner, USAGE).await, [b]);
    assert_eq!(texts(&owner, NAMES).await, ["b  3"]);
}

/// How a monitoring role sees the sums of all tenants, and no payload: through a function that runs as the owner.
#[tokio::test(flavor = "multi_thread")]
async fn the_owner_can_hand_on_the_sums_of_all_tenants_alone() {
    let db = Database::create("activity_handed_on").await;
    tenants(&db).await;
    let monitor = db.role("monitor", None).await;
    db.owner()
        .await
        .run(&format!(
            "create function usage() returns table (tenant text, entries bigint) language sql stable security definer
               set search_path = '' begin atomic select u.tenant, u.entries from agent_sessions.tenant_usage u; end;
             revoke all on function usage() from public;
             grant execute on function usage() to {monitor}"
        ))
        .await;
    let connection = db.connect(Role::Named(monitor)).await;
    assert_eq!(texts(&connection, "select tenant || entries from usage() order by 1").await, ["a2", "b1"]);
    for view in ["session_activity", "tenant_usage"] {
        let read = connection.query(&format!("select from agent_sessions.{view}"), &[]).await;
        assert_sqlstate!(read, "42501");
    }
}

/// One client's figures must not break the view of all.
#[tokio::test(flavor = "multi_thread")]
async fn no_figures_make_a_sum_overflow() {
    let db = Database::create("activity_overflow").await;
    let writer = db.writer().await;
    let most = "select from agent_sessions.session_create($1::text, input_tokens => 9223372036854775807,
        output_tokens => 9223372036854775807, cost => ('9e131071')::numeric)";
    for session in ["1", "2"] {
        writer.execute(most, &[&session]).await.expect("a session");
    }
    let sums = "select concat_ws(' ', input_tokens, output_tokens, cost = 2e100) from agent_sessions.tenant_usage";
    assert_eq!(texts(&db.owner().await, sums).await, ["18446744073709551614 18446744073709551614 t"]);
}

async fn stored_bytes(connection: &Connection, session: &str) -> i64 {
    let bytes = "select stored_bytes from agent_sessions.session_activity where session_id = $1";
    connection.value(bytes, &[&session]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_bytes_are_those_of_payloads_and_attrs_compressed() {
    let db = Database::create("activity_bytes").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    assert_eq!(stored_bytes(&writer, "s").await, 0);
    // A value that is short and not compressed has one byte before it.
    writer.append("s", "1234567").await;
    assert_eq!(stored_bytes(&writer, "s").await, 8);
    let attrs = r#"{"k": 1}"#;
    Append::to("s", "1").attrs(attrs).run(&writer).await.expect("an item with attrs");
    let of_attrs: i64 = writer.value("select pg_column_size($1::text::jsonb)::bigint", &[&attrs]).await;
    let small = stored_bytes(&writer, "s").await;
    assert!((10 + of_attrs - 3..=10 + of_attrs).contains(&small), "{small} bytes, attrs have {of_attrs}");
    let repeated = format!("\"{}\"", "abc".repeat(40_000));
    writer.append("s", &repeated).await;
    let compressed = stored_bytes(&writer, "s").await - small;
    assert!((100..10_000).contains(&compressed), "{compressed} bytes of 120 000");
    writer.run("select agent_sessions.session_erase('s', target => 2)").await;
    let reason: i64 = writer
        .value("select octet_length(payload::text)::bigint + 1 from agent_sessions.session_log('s', after => 2)", &[])
        .await;
    assert_eq!(stored_bytes(&writer, "s").await, small + reason);
    let usage: i64 = writer.value("select stored_bytes from agent_sessions.tenant_usage", &[]).await;
    assert_eq!(usage, small + reason);
}
