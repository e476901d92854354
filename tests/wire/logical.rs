//! Logical replication, and sessions whose triggers do not fire: rows arrive as they are, and verify.

use std::time::Duration;

use agent_sessions_tests::{Append, Branch, Connection, Database, OwnCluster, Role, assert_sqlstate};
use tokio_postgres::SimpleQueryMessage;

/// The tables that hold what clients have written.
const TABLES: [&str; 8] = [
    "session",
    "session_item",
    "session_delta",
    "audit_chain",
    "audit_event",
    "audit_anchor",
    "audit_anchor_leaf",
    "audit_tracking",
];

/// What the tables hold, as one text each.
async fn content(connection: &Connection) -> Vec<(&'static str, String)> {
    let mut content = Vec::new();
    for table in TABLES {
        let all =
            format!("select coalesce(string_agg(r::text, E'\\n' order by r::text), '') from agent_sessions.{table} r");
        content.push((table, connection.value(&all, &[]).await));
    }
    content
}

/// Returns once the copy has what the source has.
async fn until_the_same(source: &Connection, copy: &Connection) {
    for _ in 0..2_000 {
        if content(source).await == content(copy).await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(content(copy).await, content(source).await);
}

const NEXT: &str = "select next_position from agent_sessions.session_get('branch')";

/// Something of everything, in tenants of their own.
async fn write(client: &Connection, tenant: &str) {
    client
        .run(&format!(
            r#"set agent_sessions.tenant = '{tenant}';
               select agent_sessions.session_append_batch('s', on_missing => 'create', items =>
                 '[{{"payload":{{"b":1,"a":1.0,"a":2}}}},{{"payload":"\u0000","attrs":{{"x":1}}}},{{"payload":2,"item_id":"i"}}]');
               select agent_sessions.session_revise('s', '"revised"', item_id => 'i');
               select agent_sessions.session_append('s', '""', open => true);
               select agent_sessions.session_delta('s', target => 4, chunk_no => 0, chunk => 'text');
               select agent_sessions.session_delta('s', target => 4, chunk_no => 1, chunk => 'more');
               select agent_sessions.session_set('s', state => '{{"a": 1}}', title => 't');
               select agent_sessions.session_branch('s', new_session_id => 'branch');
               select agent_sessions.session_append('branch', '"own"');
               select agent_sessions.session_erase('s', target => 1, reason => 'why');
               select agent_sessions.session_append('trimmed', '0', on_missing => 'create');
               select agent_sessions.session_append('trimmed', '1');
               select agent_sessions.session_trim('trimmed', keep_from => 1);
               select agent_sessions.session_append('hidden', '0', on_missing => 'create');
               select agent_sessions.session_branch('hidden', new_session_id => 'heir');
               select agent_sessions.session_delete('hidden');
               select agent_sessions.session_append('gone', '0', on_missing => 'create');
               select agent_sessions.session_delete('gone');
               select agent_sessions.audit_append('login', stream => 'logins', event_id => 'e');
               select agent_sessions.audit_append('logout', stream => 'logins');
               select agent_sessions.audit_anchor();
               select agent_sessions.audit_prune('logins', before_seq => 2);
               select agent_sessions.session_claim('claimed', '1 hour')"#
        ))
        .await;
}

async fn assert_verifies(client: &Connection, tenant: &str) {
    client.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
    for session in ["s", "branch", "trimmed", "heir"] {
        let verdict = client.verify(session).await;
        assert!(verdict.ok && verdict.entries > 0, "{tenant} {session}: {verdict:?}");
    }
    assert!(client.value::<bool>("select bool_and(ok) from agent_sessions.audit_verify()", &[]).await, "{tenant}");
    let root = "select root from agent_sessions.audit_anchor";
    let anchored = format!("select ok from agent_sessions.audit_check_anchor(({root}))");
    assert!(client.value::<bool>(&anchored, &[]).await, "{tenant}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_arrive_by_logical_replication_are_unchanged_and_verify() {
    let source = OwnCluster::start(&["wal_level = logical", "fsync = off"]).await;
    let copy = OwnCluster::start(&["fsync = off"]).await;
    source.install().await;
    copy.install().await;
    let (client, owner) = (source.app_client().await, source.owner().await);
    // One tenant comes by the first copy of the tables, one change by change.
    write(&client, "first").await;
    client.run("select agent_sessions.audit_append('before', stream => 'tracked')").await;
    let tables = TABLES.map(|table| format!("agent_sessions.{table}")).join(", ");
    owner.run(&format!("create publication everything for table {tables}, agent_sessions.tenant_binding")).await;
    let [host, port] = [source.cluster.host.clone(), source.cluster.port.to_string()];
    let connect = format!("host={host} port={port} user={} dbname=app", source.cluster.superuser);
    let subscriber = copy.superuser().await;
    subscriber.run(&format!("create subscription everything connection '{connect}' publication everything")).await;
    let publisher = source.superuser().await;
    until_the_same(&publisher, &subscriber).await;
    let reader = copy.app_client().await;
    assert_verifies(&reader, "first").await;

    client.run("select agent_sessions.audit_track('all', true)").await;
    write(&client, "second").await;
    for number in 0..50 {
        Append::to("s", &number.to_string()).run(&client).await.expect("an append");
    }
    client.branched(Branch::of("branch").named("later").at_target(2)).await;
    until_the_same(&publisher, &subscriber).await;
    for tenant in ["first", "second"] {
        assert_verifies(&reader, tenant).await;
    }
    // A binding that arrives counts in a backend that has read the bindings before.
    owner.run("select agent_sessions.tenant_bind('app_client', 'first')").await;
    let bindings = "select count(*) from agent_sessions.tenant_binding";
    while subscriber.value::<i64>(bindings, &[]).await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_sqlstate!(reader.query("select * from agent_sessions.session_list()", &[]).await, "SE019");
    reader.run("set agent_sessions.tenant = 'first'").await;

    // The copy takes over: logs go on, and a fence goes on from that which arrived with its session.
    subscriber.run("drop subscription everything").await;
    assert_eq!(reader.append("branch", "1").await, reader.value::<i64>(NEXT, &[]).await - 1);
    reader.run("select agent_sessions.session_break_lease('claimed')").await;
    let fence = "select lease_fence from agent_sessions.session where session_id = 'claimed'";
    let told: i64 = reader.value(fence, &[]).await;
    let claim = "select fence from agent_sessions.session_claim('claimed', '1 hour')";
    assert!(reader.value::<i64>(claim, &[]).await > told);
    assert_verifies(&reader, "first").await;
}

/// The first column.
async fn lines(connection: &Connection, sql: &str) -> Vec<String> {
    let messages = connection.simple_query(sql).await.expect("rows");
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
        _ => None,
    });
    rows.collect()
}

/// What tools write that load data with triggers off.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_written_as_a_replica_are_unchanged_and_verify() {
    let (source, copy) = (Database::create("replica_source").await, Database::create("replica_copy").await);
    let admin = source.role("admin", Some("admin")).await;
    write(&source.connect(Role::Named(admin)).await, "first").await;
    let (from, to) = (source.superuser().await, copy.superuser().await);
    to.run("set session_replication_role = replica").await;
    for table in TABLES {
        let columns = format!(
            "select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute
             where attrelid = 'agent_sessions.{table}'::regclass and attnum > 0 and not attisdropped"
        );
        let columns: String = to.value(&columns, &[]).await;
        let rows =
            lines(&from, &format!("select quote_literal(r) from agent_sessions.{table} r order by r::text desc")).await;
        for row in rows {
            to.run(&format!(
                "insert into agent_sessions.{table} ({columns}) overriding system value
                 select {columns} from (select ({row}::agent_sessions.{table}).*) r"
            ))
            .await;
        }
    }
    assert_eq!(content(&to).await, content(&from).await);
    assert_verifies(&copy.writer().await, "first").await;
}
