//! Rows that nothing leads to, leases that nobody ended, and sequences behind their rows.

use std::io::Write;
use std::time::Instant;

use super::*;

/// What the triggers would have refused, or taken along.
fn behind_the_triggers(sql: &str) -> String {
    format!("set session_replication_role = replica; {sql}; reset session_replication_role")
}

/// The remedies take away what is left, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn rows_without_what_they_hang_on_are_found() {
    let db = healthy("doctor_rows").await;
    let writer = db.db.writer().await;
    writer.create_session("other").await;
    writer.append("other", "1").await;
    writer.run("set agent_sessions.tenant = 'a'").await;
    let open = "select agent_sessions.session_append('s', '\"\"', open => true, on_missing => 'create');
                select agent_sessions.session_delta('s', target => 0, chunk_no => n, chunk => 'x') from generate_series(0, 2) n";
    let tree = "select agent_sessions.session_create('s'); select agent_sessions.session_create('c', parent_session_id => 's')";
    let branch = "select agent_sessions.session_create('s', items => '[{\"payload\": 1}]');
                  select agent_sessions.session_branch('s', new_session_id => 'b')";
    for (made, broken, check, status) in [
        (
            "select agent_sessions.session_create(n, items => '[{\"payload\": 1}]') from unnest(array['s', 't', 'u']) n",
            "delete from agent_sessions.session where session_id in ('s', 't')",
            "logs",
            "fail",
        ),
        (open, "update agent_sessions.session_item set op = 'append' where op = 'open'", "logs", "warn"),
        (open, "update agent_sessions.session_delta set target = 5", "logs", "warn"),
        (tree, "delete from agent_sessions.session where session_id = 's'", "sessions", "fail"),
        (tree, "update agent_sessions.session set deleted_at = now() where session_id = 's'", "sessions", "fail"),
        (branch, "update agent_sessions.session set deleted_at = now() where session_id = 'b'", "sessions", "warn"),
        (
            branch,
            "delete from agent_sessions.session where session_id = 's';
             delete from agent_sessions.session_item i using agent_sessions.session b
               where i.position = 0 and i.tenant = 'a' and i.sid <> b.sid and b.session_id = 'b'",
            "sessions",
            "fail",
        ),
    ] {
        for forced in [false, true] {
            db.owner.run(&format!("select agent_sessions.access_force_rls({forced})")).await;
            writer.run(made).await;
            assert_well(&report(&db.owner).await);
            db.suffers(&behind_the_triggers(broken), check, status).await;
            writer.run("delete from agent_sessions.session").await;
        }
    }
    assert_eq!(db.superuser.value::<i64>("select count(*) from agent_sessions.session_item", &[]).await, 1);
    writer.run("reset agent_sessions.tenant").await;
    writer.assert_dense("other", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_without_their_chain_are_found() {
    let db = healthy("doctor_audit").await;
    let writer = db.db.writer().await;
    let verified =
        "select coalesce(bool_and(ok and entries = 4 - redacted), false), count(*) from agent_sessions.audit_verify()";
    writer
        .run(
            "select agent_sessions.audit_append('login', stream => s) from unnest(array['', 'a', 'b']) s, generate_series(1, 4);
             select agent_sessions.audit_anchor()",
        )
        .await;
    db.owner.run("select agent_sessions.audit_prune('b', before_seq => 3)").await;
    db.suffers(&behind_the_triggers("delete from agent_sessions.audit_chain where stream <> 'a'"), "audit", "fail")
        .await;
    let row = writer.query_one(verified, &[]).await.expect("verdicts");
    assert_eq!((row.get::<_, bool>(0), row.get::<_, i64>(1)), (true, 3), "with the base that was lost");
    writer.run("select agent_sessions.audit_append('login', stream => 'b')").await;

    let cut = "delete from agent_sessions.audit_anchor_leaf where ordinal = 2";
    db.superuser.run("create table public.kept as select * from agent_sessions.audit_anchor_leaf").await;
    db.superuser.run(&behind_the_triggers(cut)).await;
    assert_eq!(found(&report(&db.owner).await), [("audit", "fail")]);
    let restored = "delete from agent_sessions.audit_anchor_leaf;
                    insert into agent_sessions.audit_anchor_leaf select * from public.kept";
    db.superuser.run(&behind_the_triggers(restored)).await;
    assert_well(&report(&db.owner).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_nobody_ended_are_found() {
    let db = healthy("doctor_leases").await;
    let writer = db.db.writer().await;
    writer
        .run(
            "set agent_sessions.tenant = 'a';
             select agent_sessions.session_claim(s, ttl => '1 hour', holder => 'w') from unnest(array['gone', 'alive', 'soon']) s",
        )
        .await;
    assert_well(&report(&db.owner).await);
    let aged = |by: &str, session: &str| {
        behind_the_triggers(&format!(
            "update agent_sessions.session set lease_expires_at = now() + interval '{by}' where session_id = '{session}'"
        ))
    };
    db.superuser.run(&aged("-30 minutes", "soon")).await;
    assert_well(&report(&db.owner).await);
    assert_eq!(found(&report_of(&db.owner, "10 minutes").await), [("leases", "warn")]);
    db.superuser.run(&aged("1 minute", "soon")).await;
    db.suffers(&aged("-2 hours", "gone"), "leases", "warn").await;
    writer.run("select agent_sessions.session_claim('gone', ttl => '1 hour')").await;
    let checked = db.suffers(&aged("25 hours", "gone"), "leases", "fail").await;
    assert!(!checked.detail.contains("gone"), "no tenant's names: {}", checked.detail);
    let held = "select count(*) from agent_sessions.lease_status where live";
    assert_eq!(writer.value::<i64>(held, &[]).await, 2, "the others are left alone");
}

/// As after a logical switch-over, which leaves sequences behind.
#[tokio::test(flavor = "multi_thread")]
async fn sequences_behind_their_rows_are_found() {
    let db = healthy("doctor_sequences").await;
    let writer = db.db.writer().await;
    for session in ["a", "b", "c"] {
        writer.run(&format!("select agent_sessions.session_claim('{session}', ttl => '1 minute')")).await;
    }
    for sequence in ["session_sid_seq", "lease_fence_seq"] {
        for value in ["1", "2, true", "3, false"] {
            db.suffers(&format!("select setval('agent_sessions.{sequence}', {value})"), "sequences", "fail").await;
        }
    }
    writer.create_session("d").await;
    let fence = "select fence from agent_sessions.session_claim('d', ttl => '1 minute')";
    assert_eq!(writer.value::<i64>(fence, &[]).await, 4);
}

/// A look-up per log and one reading of the sessions, however long the logs are.
#[tokio::test(flavor = "multi_thread")]
async fn the_report_is_made_in_time() {
    const SESSIONS: i32 = 20_000;
    let db = healthy("doctor_cost").await;
    let writer = db.db.writer().await;
    writer
        .run(&format!(
            "insert into agent_sessions.session (session_id) select n::text from generate_series(1, {SESSIONS}) n;
             insert into agent_sessions.session_item (sid, payload) select s.sid, '1' from agent_sessions.session s, generate_series(1, 5)"
        ))
        .await;
    db.superuser.run("vacuum analyze agent_sessions.session, agent_sessions.session_item").await;
    db.owner.run("set statement_timeout = '20s'").await;
    let begun = Instant::now();
    assert_well(&report(&db.owner).await);
    let took = begun.elapsed().as_millis();
    writeln!(std::io::stdout(), "doctor() over {SESSIONS} sessions: {took} ms").expect("standard output is open");
}
