//! Every function, view and rule among the shadows: nothing of them runs, and what comes out is what comes out elsewhere.

use agent_sessions_tests::Role;

use super::*;

/// Who runs a statement.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    Writer,
    Admin,
    Owner,
}

use Who::{Admin, Owner, Writer};

/// With results that are the same in every database.
const SCRIPT: &[(Who, &str)] = &[
    (
        Writer,
        "select session_id, title, metadata, state, owner, revision, next_position, cost from agent_sessions.session_create(session_id => 's',
           title => 'T', metadata => '{\"m\": 1}', state => '{\"a\": 1}', owner => 'o', cost => 1, items => '[{\"payload\": 0, \"item_id\": \"first\"}]')",
    ),
    (Writer, "select agent_sessions.session_append('s', '{\"b\" :1}', item_id => 'a', tag => 't', author => 'ann', attrs => '{\"k\": 1}')"),
    (Writer, "select agent_sessions.session_append('s', '0', item_id => 'first')"),
    (
        Writer,
        "select ordinal, position, item_id, outcome from agent_sessions.session_append_batch('s',
           '[{\"payload\": 2}, {\"payload\": 3, \"item_id\": \"i\", \"attrs\": {\"k\": 2}}, {\"payload\": 3, \"item_id\": \"i\", \"attrs\": {\"k\": 2}}]')",
    ),
    (Writer, "select agent_sessions.session_revise('s', '4', item_id => 'i')"),
    (Writer, "select agent_sessions.session_append('s', '5', item_id => 'i', on_conflict => 'replace')"),
    (Writer, "select agent_sessions.session_retract('s', targets => '{2}', item_ids => '{a}')"),
    (Writer, "select agent_sessions.session_append('s', '\"\"', item_id => 'o', open => true)"),
    (Writer, "select agent_sessions.session_delta('s', target => 8, chunk_no => 0, chunk => 'one ')"),
    (Writer, "select agent_sessions.session_delta('s', target => 8, chunk_no => 1, chunk => 'two', durable => false)"),
    (Writer, "select position, delta_text, open from agent_sessions.session_history('s', newest_first => true, max_rows => 1)"),
    (Writer, "select agent_sessions.session_revise('s', '\"one two\"', item_id => 'o')"),
    (Writer, "select position, payload from agent_sessions.session_pop('s')"),
    (Writer, "select agent_sessions.session_append('s', '\"summary\"', kind => 'summary', kept_from => 3)"),
    (Writer, "select agent_sessions.session_retract('s', from_target => 11)"),
    (Writer, "select agent_sessions.session_set('s', state => '{\"b\": 2}', metadata => '{\"n\": 1}', merge => true, expected_revision => 0)"),
    (Writer, "select session_id, parent_session_id from agent_sessions.session_create('c', parent_session_id => 's', parent_agent_id => '', agent_id => 'x')"),
    (Writer, "insert into agent_sessions.session_item (sid, payload, item_id, tag, attrs) select sid, '6', 'raw', 't', '{\"k\": 2}' from agent_sessions.session"),
    (Writer, "insert into agent_sessions.session_item (sid, op, target, payload) select sid, 'revise', 0, '7' from agent_sessions.session"),
    (Writer, "update agent_sessions.session set title = 'U', status = 'open'"),
    (Writer, "select session_id, branched_from, fork_position, title from agent_sessions.session_branch('s', at_item_id => 'first', new_session_id => 'b', title => 'try %d')"),
    (Writer, "select session_id, fork_position from agent_sessions.session_branch('b', new_session_id => 'bb', seed => '1')"),
    (Writer, "select depth, session_id, fork_position from agent_sessions.session_lineage('bb')"),
    (Writer, "select agent_sessions.session_retract('b', targets => '{0}')"),
    (Writer, "select position, payload from agent_sessions.session_history('bb')"),
    (Writer, "select agent_sessions.session_flatten('bb')"),
    (Writer, "select position, op, target, kind, item_id, tag, author, payload, attrs from agent_sessions.session_log('s')"),
    (Writer, "select position, kind, payload, revised_at_position, open from agent_sessions.session_history('s', after => 0, before => 99, max_rows => 5)"),
    (Writer, "select position from agent_sessions.session_history('s', kinds => '{message,summary}', tags => '{t}', item_ids => '{a,raw}', attrs => '{\"k\": 2}')"),
    (Writer, "select position, payload from agent_sessions.session_context('s', max_rows => 3)"),
    (Writer, "select kind, items, bytes from agent_sessions.session_stats('s')"),
    (Writer, "select session_id, agent_id, title, metadata, state, revision, next_position from agent_sessions.session_get('s')"),
    (Writer, "select session_id, next_position from agent_sessions.session_list(title => 'u', metadata => '{\"m\": 1}', owner => 'o')"),
    (Writer, "select session_id from agent_sessions.session_list(order_by => 'activity', agent_id => 'x', roots_only => false)"),
    (Writer, "select session_id from agent_sessions.session_list(parent_session_id => 's')"),
    (Writer, "select session_id from agent_sessions.session_list(branched_from => 's', max_rows => 5)"),
    (Writer, "select session_id, position, payload from agent_sessions.live_item"),
    (Writer, "select session_id, next_position from agent_sessions.session_head"),
    (Writer, "select entries, redacted, ok from agent_sessions.session_verify('s')"),
    (Writer, "select entries, redacted, ok from agent_sessions.session_verify('bb')"),
    (Writer, "select agent_sessions.session_release('s', (select lease from agent_sessions.session_claim('s', ttl => '1 minute', holder => 'h')))"),
    (Writer, "select fence, session_id from agent_sessions.session_claim_next(ttl => '1 minute', agent_id => 'x')"),
    (Writer, "select session_id, holder, fence, live from agent_sessions.lease_status"),
    (Admin, "select agent_sessions.session_break_lease('c', agent_id => 'x')"),
    (Admin, "select agent_sessions.audit_track('all', true)"),
    (Writer, "select seq, outcome from agent_sessions.audit_append('login', '{\"n\": 1}', stream => 'orders', actor => 'ann', session_id => 's', event_id => 'e1')"),
    (Writer, "select seq, outcome from agent_sessions.audit_append('login', '{\"n\": 1}', stream => 'orders', actor => 'ann', session_id => 's', event_id => 'e1')"),
    (Writer, "select seq, outcome from agent_sessions.audit_append_batch('orders', '[{\"action\": \"a\"}, {\"action\": \"b\", \"attrs\": {\"k\": 1}}]')"),
    (Writer, "select seq, actor, action, payload from agent_sessions.audit_list('orders', newest_first => false, attrs => '{}')"),
    (Writer, "select seq, actor, action from agent_sessions.audit_list(actor => 'ann', session_id => 's', since => '2020-01-01')"),
    (Writer, "select action, events from agent_sessions.audit_stats('orders')"),
    (Writer, "select stream, base_seq, head_seq, events from agent_sessions.audit_stream"),
    (Writer, "select stream, entries, redacted, ok from agent_sessions.audit_verify()"),
    (Writer, "select chains from agent_sessions.audit_anchor()"),
    (Writer, "select ok from agent_sessions.audit_anchor a, lateral agent_sessions.audit_check_anchor(a.root)"),
    (Writer, "select agent_sessions.audit_check_proof(agent_sessions.audit_proof('orders', seq => 2), a.root) from agent_sessions.audit_anchor a"),
    (
        Writer,
        "select agent_sessions.audit_import('copy', x.lines) from (select ('[' operator(pg_catalog.||) pg_catalog.string_agg(l, ',')
           operator(pg_catalog.||) ']')::pg_catalog.json as lines from agent_sessions.audit_export('orders') l) x",
    ),
    (Admin, "select agent_sessions.audit_prune('orders', before_seq => 2)"),
    (Writer, "select agent_sessions.session_set('s', title => 'tracked')"),
    (Writer, "select agent_sessions.session_trim('s', keep_from => 1)"),
    (Writer, "select agent_sessions.session_erase('s', item_id => 'i', reason => 'asked for')"),
    (Writer, "select agent_sessions.session_erase('s', target => 0)"),
    (Writer, "select entries, redacted, ok from agent_sessions.session_verify('s')"),
    (Writer, "select agent_sessions.session_delete('s')"),
    (Writer, "select position, op from agent_sessions.session_log('b')"),
    (Writer, "delete from agent_sessions.session where session_id operator(pg_catalog.=) 'bb'"),
    (Writer, "select agent_sessions.session_delete('b')"),
    (Writer, "select agent_sessions.session_expire(older_than => '1 year')"),
    (Writer, "select session_id from agent_sessions.session"),
    (Writer, "select seq, action, target from agent_sessions.audit_list('agent_sessions', newest_first => false) where action operator(pg_catalog.<>) 'audit.track'"),
    (Writer, "select agent_sessions.tenant_use('t'), agent_sessions.schema_version(), agent_sessions.schema_require('0.0.0')"),
    (Owner, "select agent_sessions.access_grant('{role}', 'admin')"),
    (Owner, "select agent_sessions.access_revoke('{role}')"),
    (Owner, "select agent_sessions.tenant_bind('{role}', 'a')"),
    (Owner, "select agent_sessions.tenant_unbind('{role}', 'a')"),
    (Owner, "select agent_sessions.access_force_rls(true)"),
    (Admin, "select check_name, status from agent_sessions.doctor()"),
    (Owner, "select agent_sessions.access_force_rls(false)"),
    (Owner, "select check_name, status from agent_sessions.doctor()"),
];

/// What the script returns, statement by statement.
async fn played(db: &Database, is_hijacked: bool) -> Vec<Vec<String>> {
    let role = db.role("guest", None).await;
    let admin = db.role("admin", Some("admin")).await;
    let connections =
        [(Writer, db.writer().await), (Admin, db.connect(Role::Named(admin)).await), (Owner, db.owner().await)];
    if is_hijacked {
        for (_, connection) in &connections {
            hijack(connection).await;
            assert_shadowed(db, connection).await;
        }
    }
    let before = if is_hijacked { ran(db).await } else { 0 };
    let mut results = Vec::new();
    for (who, sql) in SCRIPT {
        let (_, connection) = connections.iter().find(|(role, _)| role == who).expect("a connection for everyone");
        results.push(rows(connection, &sql.replace("{role}", &role)).await);
        if is_hijacked {
            assert_eq!(ran(db).await, before, "{who:?}: {sql}");
        }
    }
    results
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_attackers_runs_in_any_call() {
    let clean = Database::create("hijack_none").await;
    let expected = played(&clean, false).await;
    let silent = [
        "insert",
        "update",
        "delete",
        "select agent_sessions.access",
        "select agent_sessions.tenant",
        "select agent_sessions.audit_track",
    ];
    for ((_, sql), rows) in SCRIPT.iter().zip(&expected) {
        let gone = sql.contains("select session_id from agent_sessions.session") && !sql.contains("session_list(");
        assert!(!rows.is_empty() || gone || silent.iter().any(|start| sql.starts_with(start)), "{sql} shows nothing");
    }
    let db = Database::create("hijack_calls").await;
    db.superuser().await.run(SHADOWS).await;
    let found = played(&db, true).await;
    for ((who, sql), (found, expected)) in SCRIPT.iter().zip(found.iter().zip(&expected)) {
        assert_eq!(found, expected, "{who:?}: {sql}");
    }
}

/// The path that a session begins with is one, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_path_of_the_databases_is_of_no_use_either() {
    let db = Database::create("hijack_defaults").await;
    let superuser = db.superuser().await;
    superuser.run(SHADOWS).await;
    superuser.run(&format!("alter database {} set search_path = attack, pg_temp, public, pg_catalog", db.name)).await;
    let psql = |sql: &str| db.psql(Role::Writer).args(["-v", "VERBOSITY=sqlstate", "-c", sql]);
    let drawn = async || {
        let count = "select case when is_called then last_value else 0 end from attack.ran";
        superuser.value::<i64>(count, &[]).await
    };
    assert!(!psql("select now()").run().await.success, "the path holds");
    let before = drawn().await;
    assert!(before > 0);
    let create = "select session_id from agent_sessions.session_create('s', items => '[{\"payload\": 1}]')";
    assert_eq!(psql(create).output().await.trim(), "s");
    let verify = "select entries, ok from agent_sessions.session_verify('s')";
    assert_eq!(psql(verify).output().await.trim(), "1|t");
    let refused = psql("select agent_sessions.session_append('s', '1', expected_position => 5)").run().await;
    assert!(refused.stderr.contains("SE007"), "{}", refused.stderr);
    assert_eq!(drawn().await, before);
}
