//! What a superuser changes with the triggers off in what a branch inherits, session_verify of the branch finds.

use agent_sessions_tests::{Branch, Connection, Database, Verdict};

use crate::branches::{ENTRIES, sample};

/// `s`, of which `b` inherits seven entries and adds three, of which `c` inherits all.
async fn with_branches(db: &Database) -> Connection {
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("b").at_target(6)).await;
    for payload in ["7", "8", "9"] {
        writer.append("b", payload).await;
    }
    writer.branch("b", "c").await;
    writer.append("c", "10").await;
    // Leaves before what is tampered with, or has nothing of it.
    writer.branched(Branch::of("b").named("early").at_target(0)).await;
    writer.branched(Branch::of("b").named("none").inherit(false).seed("1")).await;
    writer
}

/// Where a session was found to be bad.
type Fault = Option<i64>;

/// Where each session was found to be bad, by name.
async fn faults(connection: &Connection) -> Vec<(&'static str, Fault)> {
    let mut faults = Vec::new();
    for session in ["s", "b", "c", "early", "none"] {
        let sql = "select 1 from agent_sessions.session_get($1::text)";
        if connection.query_opt(sql, &[&session]).await.expect("a row or none").is_some() {
            let Verdict { ok, first_bad_position, reason, .. } = connection.verify(session).await;
            assert_eq!(
                (ok, reason.is_none()),
                (first_bad_position.is_none(), first_bad_position.is_none()),
                "{session}"
            );
            faults.push((session, first_bad_position));
        }
    }
    faults
}

/// Runs what an attacker would, asserts what is found in `s`, `b` and `c`, and takes it back.
async fn assert_found(tamperer: &Connection, sql: &str, [s, b, c]: [Fault; 3]) {
    let sound = [("s", None), ("b", None), ("c", None), ("early", None), ("none", None)];
    let sid = |session: &str| format!("(select sid from agent_sessions.session where session_id = '{session}')");
    let sql = sql.replace("{s}", &sid("s")).replace("{b}", &sid("b")).replace("{c}", &sid("c"));
    tamperer.begin("read committed").await;
    tamperer.run("set local session_replication_role = replica").await;
    tamperer.run(&sql).await;
    assert_eq!(faults(tamperer).await, [("s", s), ("b", b), ("c", c), ("early", None), ("none", None)], "{sql}");
    tamperer.rollback().await;
    assert_eq!(faults(tamperer).await, sound, "after {sql}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_inherited_entry_is_found_from_every_branch_that_has_it() {
    let db = Database::create("branch_tamper").await;
    with_branches(&db).await;
    let superuser = db.superuser().await;
    // Position 0 is in `early`, too.
    for position in 1..ENTRIES {
        let inherited = (position < 7).then_some(position);
        for change in [
            "digest = set_byte(digest, 0, get_byte(digest, 0) # 1)",
            "content_digest = set_byte(content_digest, 31, get_byte(content_digest, 31) # 128)",
            "created_at = created_at + interval '1 microsecond'",
            "agent_id = 'other'",
        ] {
            let sql =
                format!("update agent_sessions.session_item set {change} where sid = {{s}} and position = {position}");
            assert_found(&superuser, &sql, [Some(position), inherited, inherited]).await;
        }
        let remove = format!("delete from agent_sessions.session_item where sid = {{s}} and position = {position}");
        // The end of a log is told by an anchor alone, but a branch knows what it needs.
        let of_source = (position < ENTRIES - 1).then_some(position);
        assert_found(&superuser, &remove, [of_source, inherited, inherited]).await;
        let tail = format!("delete from agent_sessions.session_item where sid = {{s}} and position >= {position}");
        assert_found(&superuser, &tail, [None, inherited, inherited]).await;
    }
    for position in [1, 3, 4, 6] {
        for change in ["payload = '[]'", "payload = (payload::text || ' ')::json", "kind = 'other'"] {
            let sql =
                format!("update agent_sessions.session_item set {change} where sid = {{s}} and position = {position}");
            assert_found(&superuser, &sql, [Some(position); 3]).await;
        }
    }
    for position in 7..10 {
        let own = "update agent_sessions.session_item set payload = '0' where sid = {b} and position = ";
        assert_found(&superuser, &format!("{own}{position}"), [None, Some(position), Some(position)]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_or_moved_ancestor_is_found() {
    let db = Database::create("branch_tamper_row").await;
    let writer = with_branches(&db).await;
    writer.run("select agent_sessions.session_delete('early')").await;
    let superuser = db.superuser().await;
    let sid = |session: &'static str| {
        let superuser = &superuser;
        async move {
            let sql = "select sid from agent_sessions.session where session_id = $1::text";
            superuser.value::<i64>(sql, &[&session]).await
        }
    };
    let [s, b, c, none] = [sid("s").await, sid("b").await, sid("c").await, sid("none").await];
    // What is changed, and where `b` and `c` are then found to be bad.
    let cases: &[(String, Option<Fault>, Fault)] = &[
        (format!("delete from agent_sessions.session where sid = {s}"), Some(Some(0)), Some(0)),
        (
            format!(
                "delete from agent_sessions.session where sid = {s}; delete from agent_sessions.session_item where sid = {s}"
            ),
            Some(Some(0)),
            Some(0),
        ),
        (format!("delete from agent_sessions.session where sid = {b}"), None, Some(0)),
        (format!("delete from agent_sessions.session_item where sid = {b}"), Some(None), Some(7)),
        // The row says other than its genesis did.
        (format!("update agent_sessions.session set created_at = created_at + interval '1 s' where sid = {s}"), Some(Some(0)), Some(0)),
        (format!("update agent_sessions.session set session_id = 't' where sid = {s}"), Some(Some(0)), Some(0)),
        (format!("update agent_sessions.session set created_at = created_at + interval '1 s' where sid = {b}"), Some(Some(7)), Some(7)),
        // A fork elsewhere, with the digest that belongs there, and one that does not.
        (
            format!(
                "update agent_sessions.session set fork_position = 5, fork_digest =
                   (select digest from agent_sessions.session_item where sid = {s} and position = 4) where sid = {b}"
            ),
            Some(Some(5)),
            Some(5),
        ),
        (format!("update agent_sessions.session set fork_position = 6 where sid = {b}"), Some(Some(6)), Some(6)),
        (format!("update agent_sessions.session set fork_position = 8 where sid = {b}"), Some(Some(8)), Some(8)),
        (format!("update agent_sessions.session set fork_digest = sha256('') where sid = {b}"), Some(Some(7)), Some(7)),
        (format!("update agent_sessions.session set fork_digest = sha256('') where sid = {c}"), Some(None), Some(10)),
        // Off another session, or off none.
        (format!("update agent_sessions.session set branched_from = {none} where sid = {b}"), Some(Some(0)), Some(0)),
        (format!("update agent_sessions.session set branched_from = null where sid = {b}"), Some(Some(0)), Some(0)),
        (
            format!(
                "update agent_sessions.session set branched_from = null, fork_position = null, fork_digest = null
                 where sid = {b}"
            ),
            Some(Some(0)),
            Some(0),
        ),
        // Said to be trimmed up to the fork, so that nothing seems to be missing.
        (
            format!(
                "update agent_sessions.session set base_position = fork_position, base_digest = fork_digest where sid = {b};
                 delete from agent_sessions.session where sid = {s}; delete from agent_sessions.session_item where sid = {s}"
            ),
            Some(Some(7)),
            Some(7),
        ),
    ];
    for (sql, in_b, in_c) in cases {
        superuser.begin("read committed").await;
        superuser.run("set local session_replication_role = replica").await;
        superuser.run(sql).await;
        let found = faults(&superuser).await;
        let of = |session: &str| found.iter().find(|(name, _)| *name == session).map(|(_, fault)| *fault);
        assert_eq!((of("b"), of("c")), (*in_b, Some(*in_c)), "{sql}");
        assert_eq!(of("none"), Some(None), "{sql}");
        superuser.rollback().await;
    }
    assert_eq!(faults(&superuser).await, [("s", None), ("b", None), ("c", None), ("none", None)]);
}

/// A lineage that leads back to itself is a fault like another, and no work without end.
#[tokio::test(flavor = "multi_thread")]
async fn a_circular_lineage_is_found() {
    let db = Database::create("branch_tamper_circle").await;
    with_branches(&db).await;
    let superuser = db.superuser().await;
    superuser.run("set statement_timeout = '20s'").await;
    for (from, to) in [("b", "c"), ("b", "b"), ("s", "c")] {
        superuser.begin("read committed").await;
        superuser.run("set local session_replication_role = replica").await;
        let circle = "update agent_sessions.session set fork_position = 7, fork_digest = sha256(''),
                        branched_from = (select sid from agent_sessions.session where session_id = $2::text)
                      where session_id = $1::text";
        assert_eq!(superuser.execute(circle, &[&from, &to]).await.expect("an update"), 1);
        for session in ["b", "c", "early"] {
            let verdict = superuser.verify(session).await;
            assert_eq!((verdict.ok, verdict.first_bad_position), (false, Some(0)), "{session}: {from} off {to}");
        }
        superuser.rollback().await;
    }
}

/// A source that was written anew from some entry on, with every digest as it has to be: it verifies, but its branches do not
/// follow from it.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_with_a_new_chain_is_not_what_its_branches_left() {
    let db = Database::create("branch_rewritten").await;
    with_branches(&db).await;
    let superuser = db.superuser().await;
    for changed in [0, 1, 6, 7, 8] {
        superuser.begin("read committed").await;
        // The true session steps aside, and one of the same genesis gets all entries again, one of them another.
        superuser
            .run(&format!(
                "create temp table true_log on commit drop as select i.* from agent_sessions.session_item i
                   join agent_sessions.session s using (sid) where s.session_id = 's';
                 set local session_replication_role = replica;
                 update agent_sessions.session set session_id = 'aside' where session_id = 's';
                 set local session_replication_role = origin;
                 insert into agent_sessions.session (session_id, created_at)
                 select 's', created_at from agent_sessions.session where session_id = 'aside';
                 insert into agent_sessions.session_item
                   (sid, op, kind, item_id, tag, author, target, payload, attrs, salt, created_at)
                 select s.sid, t.op, t.kind, t.item_id, t.tag, t.author, t.target, t.payload, t.attrs, t.salt,
                   t.created_at + case position when {changed} then interval '1 microsecond' else '0' end
                 from true_log t, agent_sessions.session s where s.session_id = 's' order by t.position;
                 set local session_replication_role = replica;
                 delete from agent_sessions.session_item where sid = (select max(sid) from true_log);
                 update agent_sessions.session_item set sid = (select max(sid) from true_log)
                 where sid = (select sid from agent_sessions.session where session_id = 's');
                 delete from agent_sessions.session where session_id = 's';
                 update agent_sessions.session set session_id = 's' where session_id = 'aside'"
            ))
            .await;
        let new = (changed < 7).then_some(7);
        let early = (changed < 1).then_some(1);
        assert_eq!(
            faults(&superuser).await,
            [("s", None), ("b", new), ("c", new), ("early", early), ("none", None)],
            "rewritten from {changed}"
        );
        superuser.rollback().await;
    }
}
