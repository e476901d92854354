//! Deleting what branches need: the session is hidden, its branches read on, and it goes with the last of them.

use agent_sessions_tests::{Append, Branch, Connection, Database, Error, assert_sqlstate, detail};
use serde_json::json;

use crate::branches::{ENTRIES, call_of, lineage, rows, sample, shown};

/// The rows of sessions that there are, hidden ones in brackets.
pub async fn stored(db: &Database) -> String {
    let sql =
        "select coalesce(string_agg(case when deleted_at is null then session_id else '[' || session_id || ']' end, ' '
                 order by session_id collate \"C\", sid), '') from agent_sessions.session";
    db.superuser().await.value(sql, &[]).await
}

/// No entry and no chunk without its session, no hidden session and no entry of one that nobody needs, no sub-session without
/// its parent, and no visible one below a hidden.
pub async fn assert_tidy(db: &Database) {
    let sql = "
        select concat_ws(', ', 'entry of sid ' || i.sid) from agent_sessions.session_item i
        where not exists (select from agent_sessions.session s where s.sid = i.sid)
        union all
        select 'chunk of sid ' || d.sid from agent_sessions.session_delta d
        where not exists (select from agent_sessions.session s where s.sid = d.sid and s.deleted_at is null)
        union all
        select 'hidden and not needed: ' || s.session_id from agent_sessions.session s
        where s.deleted_at is not null and not exists (
          select from agent_sessions.session b where b.branched_from = s.sid and b.fork_position > b.base_position)
        union all
        select 'not read by a branch: ' || i.position || ' of ' || s.session_id from agent_sessions.session s
        join agent_sessions.session_item i using (sid)
        where s.deleted_at is not null and i.op not in ('erase', 'trim') and not exists (
          select from agent_sessions.session b
          where b.branched_from = s.sid and b.fork_position > greatest(b.base_position, i.position))
        union all
        select 'without its source: ' || b.session_id from agent_sessions.session b
        where b.branched_from is not null and b.fork_position > b.base_position
          and not exists (select from agent_sessions.session s where s.sid = b.branched_from)
        union all
        select 'without its parent: ' || c.session_id from agent_sessions.session c
        where c.parent_sid is not null and c.deleted_at is null and not exists (
          select from agent_sessions.session p where p.sid = c.parent_sid and p.deleted_at is null)";
    let left: Vec<String> =
        db.superuser().await.query(sql, &[]).await.expect("what is left").iter().map(|row| row.get(0)).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// How a client deletes a session.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    Function,
    Raw,
}

pub const WAYS: [Way; 2] = [Way::Function, Way::Raw];

pub async fn delete(connection: &Connection, session: &str, way: Way) -> Result<(), Error> {
    let sql = match way {
        Way::Function => "select agent_sessions.session_delete(session_id => $1::text)",
        Way::Raw => "delete from agent_sessions.session where session_id = $1::text",
    };
    connection.execute(sql, &[&session]).await.map(|_| ())
}

pub async fn deleted(connection: &Connection, session: &str) {
    delete(connection, session, Way::Function).await.unwrap_or_else(|error| panic!("{session}: {error:?}"));
}

/// A sub-session with an item.
pub async fn sub_session(connection: &Connection, session: &str, parent: &str) -> Result<(), Error> {
    let sql = "select from agent_sessions.session_create(session_id => $1::text, parent_session_id => $2::text,
               items => '[{\"payload\":1}]')";
    connection.execute(sql, &[&session, &parent]).await.map(|_| ())
}

/// A branch by plain SQL, which is no sub-session of its source's parent.
pub async fn outside_branch(connection: &Connection, source: &str, session: &str) -> Result<(), Error> {
    let sql = "insert into agent_sessions.session (session_id, branched_from, fork_position)
               select $2::text, sid, 1 from agent_sessions.session where session_id = $1::text";
    connection.execute(sql, &[&source, &session]).await.map(|_| ())
}

pub async fn count(connection: &Connection, rows: &str) -> i64 {
    connection.value(&format!("select count(*) from {rows}"), &[]).await
}

/// Every way to look for session `s`.
const READS: [&str; 13] = [
    "agent_sessions.session where session_id = 's'",
    "agent_sessions.session_activity where session_id = 's'",
    "agent_sessions.session_head where session_id = 's'",
    "agent_sessions.live_item where session_id = 's'",
    "agent_sessions.session_get(session_id => 's')",
    "agent_sessions.session_list(roots_only => false) where session_id = 's'",
    "agent_sessions.session_list(owner => 'ines', order_by => 'activity') where session_id = 's'",
    "agent_sessions.session_lineage(session_id => 's')",
    "agent_sessions.session_history(session_id => 's')",
    "agent_sessions.session_log(session_id => 's')",
    "agent_sessions.session_context(session_id => 's')",
    "agent_sessions.session_stats(session_id => 's')",
    "agent_sessions.session_verify(session_id => 's')",
];

/// Every way to write to session `s`, or below it.
const WRITES: [&str; 15] = [
    "session_append('s', '1')",
    "session_append('s', '0', item_id => 'a', tag => 't', author => 'ann')",
    "session_append_batch('s', '[{\"payload\":1}]')",
    "session_revise('s', '1', target => 0)",
    "session_retract('s', from_target => 0)",
    "session_delta('s', target => 4, chunk_no => 0, chunk => 'x')",
    "session_set('s', title => 'x')",
    "session_delete('s')",
    "session_branch('s')",
    "session_trim('s', keep_from => 1)",
    "session_erase('s', target => 0)",
    "session_create('sub', parent_session_id => 's')",
    "session_claim('s', ttl => '1 minute', on_missing => 'error')",
    "session_extend('s', lease => 'x', ttl => '1 minute')",
    "session_append('s', '1', lease => 'x')",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_a_branch_needs_is_hidden_and_its_branches_read_on() {
    let db = Database::create("hidden").await;
    let (writer, reader, owner) = (db.writer().await, db.reader().await, db.owner().await);
    sample(&writer, "s").await;
    call_of(&writer, "session_set('{s}', owner => 'ines')", "s").await;
    call_of(&writer, "session_delta('{s}', target => 4, chunk_no => 0, chunk => 'x')", "s").await;
    writer.branched(Branch::of("s").named("b").seed("\"own\"")).await;
    writer.branched(Branch::of("b").named("c").at_target(3)).await;
    for read in READS {
        assert!(count(&reader, read).await > 0, "{read} finds it");
    }
    let (b, c) = (writer.log("b").await, writer.history("c").await);
    let sid: i64 = writer.value("select sid from agent_sessions.session where session_id = 's'", &[]).await;
    assert!(writer.value::<bool>("select agent_sessions.session_delete('s')", &[]).await);
    assert_eq!(stored(&db).await, "b c [s]");
    assert_tidy(&db).await;
    for read in READS {
        for (role, connection) in [("reader", &reader), ("writer", &writer)] {
            assert_eq!(count(connection, read).await, 0, "a {role} finds {read}");
        }
        // The owner passes the policies: a table shows it, a function does not.
        if read.contains('(') {
            assert_eq!(count(&owner, read).await, 0, "the owner finds {read}");
        }
    }
    for write in WRITES {
        let error = assert_sqlstate!(writer.batch_execute(&format!("select agent_sessions.{write}")).await, "SE002");
        assert_eq!(detail(&error), json!({"session_id": "s", "agent_id": ""}), "{write}");
    }
    assert_eq!(count(&writer, "agent_sessions.session_pop('s')").await, 0);
    assert!(!writer.value::<bool>("select agent_sessions.session_release('s', 'x')", &[]).await);
    let ignored = "select agent_sessions.session_delete('s', on_missing => 'ignore')";
    assert_eq!(writer.value::<Option<bool>>(ignored, &[]).await, None);
    for raw in [
        format!("insert into agent_sessions.session_item (sid, payload) values ({sid}, '1')"),
        format!("insert into agent_sessions.session_item (sid, payload, item_id) values ({sid}, '1', 'b')"),
        format!("insert into agent_sessions.session_delta (sid, target, chunk_no, chunk) values ({sid}, 4, 0, 'x')"),
        format!("insert into agent_sessions.session (session_id, parent_sid) values ('x', {sid})"),
        format!("insert into agent_sessions.session (session_id, branched_from, fork_position) values ('x', {sid}, 1)"),
        format!("insert into agent_sessions.session (session_id, branched_from) values ('x', {sid})"),
    ] {
        for connection in [&writer, &owner] {
            assert_sqlstate!(connection.batch_execute(&raw).await, "SE002");
        }
    }
    for raw in ["update agent_sessions.session set title = 'x'", "delete from agent_sessions.session"] {
        assert_eq!(writer.execute(&format!("{raw} where sid = {sid}"), &[]).await.expect(raw), 0);
    }
    let unhide = format!("update agent_sessions.session set deleted_at = null where sid = {sid}");
    assert_sqlstate!(owner.batch_execute(&unhide).await, "SE014");
    let raw = format!("delete from agent_sessions.session where sid = {sid}");
    assert_eq!(detail(&assert_sqlstate!(owner.batch_execute(&raw).await, "SE022")), json!({"session_id": "s"}));
    assert_sqlstate!(
        owner.batch_execute(&format!("delete from agent_sessions.session_item where sid = {sid}")).await,
        "SE014"
    );

    assert_eq!(reader.log("b").await, b);
    assert_eq!(reader.history("c").await, c);
    assert_eq!(lineage(&reader, "c").await, ["0 c 4", "1 b 9"]);
    assert_eq!(writer.append("b", "10").await, ENTRIES + 1);
    writer.assert_dense("b", ENTRIES + 2).await;
    writer.assert_dense("c", 4).await;
    call_of(&writer, "session_revise('{s}', '50', item_id => 'a')", "c").await;
    assert_eq!(shown(&writer, "c").await, ["0 50", "1 1", "3 3"]);
    // Not even its branches tell its name, to whomever.
    for connection in [&reader, &writer, &owner] {
        for call in ["session_get('b')", "session_list() where session_id = 'b'"] {
            let sql = format!("select branched_from from agent_sessions.{call}");
            assert_eq!(connection.value::<Option<String>>(&sql, &[]).await, None, "{call}");
        }
        let row = "select fork_position from agent_sessions.session_get('b')";
        assert_eq!(connection.value::<Option<i64>>(row, &[]).await, Some(ENTRIES));
        assert_eq!(count(connection, "agent_sessions.session_list(branched_from => 's')").await, 0);
    }
}

/// What no branch reads is gone at once, however often what they read becomes less.
#[tokio::test(flavor = "multi_thread")]
async fn a_hidden_session_keeps_what_its_branches_read() {
    let db = Database::create("hidden_rest").await;
    let writer = db.writer().await;
    let kept = "select count(*) from agent_sessions.session_item i join agent_sessions.session s using (sid)
                where s.session_id = $1::text";
    let superuser = db.superuser().await;
    sample(&writer, "s").await;
    for target in [1, 3, 6] {
        writer.branched(Branch::of("s").named(&format!("at {target}")).at_target(target)).await;
    }
    writer.branched(Branch::of("at 6").named("below").at_target(2)).await;
    writer.append("at 6", "7").await;
    deleted(&writer, "s").await;
    for (branch, of_s, of_at_6) in [("", 7, 1), ("at 3", 7, 1), ("at 6", 7, 0), ("at 1", 7, 0), ("below", 0, 0)] {
        if !branch.is_empty() {
            deleted(&writer, branch).await;
        }
        assert_eq!(superuser.value::<i64>(kept, &[&"s"]).await, of_s, "after {branch}");
        assert_eq!(superuser.value::<i64>(kept, &[&"at 6"]).await, of_at_6, "after {branch}");
        assert_tidy(&db).await;
        for left in ["at 1", "at 3", "at 6", "below"] {
            if count(&writer, &format!("agent_sessions.session where session_id = '{left}'")).await > 0 {
                assert!(writer.verify(left).await.ok, "{left} after {branch}");
            }
        }
    }
    assert_eq!(rows(&db).await, (0, 0));
    // The furthest fork goes first.
    sample(&writer, "s").await;
    for target in [1, 3, 6] {
        writer.branched(Branch::of("s").named(&format!("at {target}")).at_target(target)).await;
    }
    deleted(&writer, "s").await;
    for (branch, of_s) in [("at 6", 4), ("at 3", 2), ("at 1", 0)] {
        delete(&writer, branch, Way::Raw).await.expect("a delete");
        assert_eq!(superuser.value::<i64>(kept, &[&"s"]).await, of_s, "after {branch}");
        assert_tidy(&db).await;
    }
}

/// The id is free: what is made under it has nothing to do with what was.
#[tokio::test(flavor = "multi_thread")]
async fn the_id_of_a_hidden_session_can_be_used_again() {
    let db = Database::create("hidden_id").await;
    let writer = db.writer().await;
    for round in 0..3 {
        sample(&writer, "s").await;
        writer.branch("s", &format!("b{round}")).await;
        call_of(&writer, "session_append('{s}', '9', item_id => 'own')", "s").await;
        deleted(&writer, "s").await;
    }
    assert_eq!(stored(&db).await, "b0 b1 b2 [s] [s] [s]");
    let created = Append::to("s", "0").item_id("b").on_missing("create");
    assert_eq!(created.run(&writer).await.expect("an append"), 0);
    assert_eq!(shown(&writer, "s").await, ["0 0"]);
    writer.assert_dense("s", 1).await;
    writer.branch("s", "b").await;
    assert_eq!(count(&writer, "agent_sessions.session_list(branched_from => 's')").await, 1);
    for round in 0..3 {
        let branch = format!("b{round}");
        writer.assert_dense(&branch, ENTRIES).await;
        assert_eq!(lineage(&writer, &branch).await, [format!("0 {branch} 9")]);
    }
    deleted(&writer, "b").await;
    deleted(&writer, "s").await;
    for (branch, left) in [("b1", "b0 b2 [s] [s]"), ("b0", "b2 [s]"), ("b2", "")] {
        deleted(&writer, branch).await;
        assert_eq!(stored(&db).await, left);
    }
    assert_eq!(rows(&db).await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn hidden_ancestors_go_with_the_last_branch_that_needs_them() {
    let db = Database::create("hidden_chain").await;
    let writer = db.writer().await;
    for way in WAYS {
        // a - b - c - d, and e off b; f off c inherits nothing of c's own, and needs c as the way to the rest.
        sample(&writer, "a").await;
        for (source, branch) in [("a", "b"), ("b", "c"), ("c", "d"), ("b", "e")] {
            writer.branched(Branch::of(source).named(branch).seed("1")).await;
        }
        writer.branched(Branch::of("c").named("f").at_target(2)).await;
        writer.branched(Branch::of("a").named("none").inherit(false)).await;
        for (session, left) in [
            ("b", "a [b] c d e f none"),
            ("a", "[a] [b] c d e f none"),
            ("c", "[a] [b] [c] d e f none"),
            ("d", "[a] [b] [c] e f none"),
            ("none", "[a] [b] [c] e f"),
        ] {
            // Those that are needed only a function hides.
            let needed = left.contains(&format!("[{session}]"));
            delete(&writer, session, if needed { Way::Function } else { way }).await.expect("a delete");
            assert_eq!(stored(&db).await, left, "{way:?}");
            assert_tidy(&db).await;
        }
        writer.assert_dense("e", ENTRIES + 2).await;
        writer.assert_dense("f", 3).await;
        delete(&writer, "f", way).await.expect("a delete");
        assert_eq!(stored(&db).await, "[a] [b] e");
        writer.assert_dense("e", ENTRIES + 2).await;
        delete(&writer, "e", way).await.expect("a delete");
        assert_eq!(rows(&db).await, (0, 0), "{way:?}");
    }
    // All at once, which no nesting of triggers may end.
    sample(&writer, "d0").await;
    for depth in 0..200 {
        writer.branched(Branch::of(&format!("d{depth}")).named(&format!("d{}", depth + 1)).seed("1")).await;
    }
    for depth in (0..200).rev() {
        deleted(&writer, &format!("d{depth}")).await;
    }
    writer.assert_dense("d200", ENTRIES + 200).await;
    assert_eq!(rows(&db).await, (201, ENTRIES + 200));
    deleted(&writer, "d200").await;
    assert_eq!(rows(&db).await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_delete_of_what_a_branch_needs_is_refused() {
    let db = Database::create("raw_delete").await;
    let (writer, owner) = (db.writer().await, db.owner().await);
    sample(&writer, "s").await;
    sub_session(&writer, "sub", "s").await.expect("a sub-session");
    outside_branch(&writer, "sub", "b").await.expect("a branch");
    let before = rows(&db).await;
    for connection in [&writer, &owner] {
        // By itself, through its parent, and with others that could go.
        for (condition, named) in [("= 'sub'", "sub"), ("= 's'", "sub"), ("<> 'b'", "sub")] {
            let sql = format!("delete from agent_sessions.session where session_id {condition}");
            let error = assert_sqlstate!(connection.batch_execute(&sql).await, "SE022");
            assert_eq!(detail(&error), json!({"session_id": named}), "{condition}");
            assert_eq!(rows(&db).await, before, "{condition}");
        }
    }
    assert_eq!(stored(&db).await, "b s sub");
    // Who deletes the branch in the same statement needs nothing any more.
    assert_eq!(
        writer.execute("delete from agent_sessions.session where session_id <> 's'", &[]).await.expect("both"),
        2
    );
    assert_eq!(stored(&db).await, "s");
    writer.branched(Branch::of("s").named("b").seed("1")).await;
    writer.branch("b", "c").await;
    sample(&writer, "t").await;
    writer.branch("t", "u").await;
    deleted(&writer, "t").await;
    assert_eq!(writer.execute("delete from agent_sessions.session", &[]).await.expect("all"), 4);
    assert_eq!(rows(&db).await, (0, 0));
    // A branch at the beginning, and one that inherits nothing, keep nothing.
    sample(&writer, "s").await;
    let at_zero = "insert into agent_sessions.session (session_id, branched_from, fork_position)
                   select 'zero', sid, 0 from agent_sessions.session where session_id = 's'";
    writer.run(at_zero).await;
    writer.branched(Branch::of("s").named("none").inherit(false)).await;
    for branch in ["zero", "none"] {
        writer.append(branch, "0").await;
    }
    delete(&writer, "s", Way::Raw).await.expect("a delete");
    assert_eq!(rows(&db).await, (2, 2));
    for branch in ["zero", "none"] {
        writer.assert_dense(branch, 1).await;
    }
}

/// Sub-sessions of which some are needed from outside, some from inside alone, and some in both ways.
#[tokio::test(flavor = "multi_thread")]
async fn a_tree_goes_but_for_what_branches_outside_need() {
    let db = Database::create("hidden_tree").await;
    let writer = db.writer().await;
    for root_is_needed in [false, true] {
        writer.run("select agent_sessions.session_create('p', items => '[{\"payload\":1}]')").await;
        for (session, parent) in [
            ("plain", "p"),
            ("needed", "p"),
            ("below needed", "needed"),
            ("inside", "p"),
            ("way", "p"),
            ("deep", "plain"),
        ] {
            sub_session(&writer, session, parent).await.expect("a sub-session");
        }
        outside_branch(&writer, "needed", "x").await.expect("a branch");
        outside_branch(&writer, "deep", "y").await.expect("a branch");
        // In the tree: a branch is a sub-session of its source's parent.
        writer.branch("inside", "inside branch").await;
        writer.branched(Branch::of("way").named("way on").seed("1")).await;
        outside_branch(&writer, "way on", "z").await.expect("a branch");
        if root_is_needed {
            outside_branch(&writer, "p", "r").await.expect("a branch");
        }
        // An empty branch, which needs nothing of it.
        let none = "insert into agent_sessions.session (session_id, branched_from)
                    select 'n', sid from agent_sessions.session where session_id = 'plain'";
        writer.run(none).await;
        assert_tidy(&db).await;
        deleted(&writer, "p").await;
        let root = if root_is_needed { "[p] r " } else { "" };
        assert_eq!(stored(&db).await, format!("[deep] n [needed] {root}[way] [way on] x y z"));
        assert_tidy(&db).await;
        for branch in ["x", "y", "z"] {
            writer.assert_dense(branch, 1).await;
        }
        assert_eq!(count(&writer, "agent_sessions.session").await, if root_is_needed { 5 } else { 4 });
        if root_is_needed {
            deleted(&writer, "r").await;
        }
        for (branch, left) in [("x", "[deep] n [way] [way on] y z"), ("z", "[deep] n y"), ("n", "[deep] y"), ("y", "")]
        {
            deleted(&writer, branch).await;
            assert_eq!(stored(&db).await, left);
            assert_tidy(&db).await;
        }
        assert_eq!(rows(&db).await, (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hidden_session_has_no_lease() {
    let db = Database::create("hidden_lease").await;
    let writer = db.writer().await;
    let claim = |session: &'static str| {
        let writer = &writer;
        async move {
            let sql = "select lease from agent_sessions.session_claim($1::text, ttl => '1 hour', holder => 'worker')";
            writer.value::<String>(sql, &[&session]).await
        }
    };
    sample(&writer, "s").await;
    sub_session(&writer, "sub", "s").await.expect("a sub-session");
    writer.branch("s", "b").await;
    outside_branch(&writer, "sub", "c").await.expect("a branch");
    let (lease, of_sub) = (claim("s").await, claim("sub").await);
    let with = |given: &str| {
        let sql = format!("select agent_sessions.session_delete('s', lease => '{given}')");
        let writer = &writer;
        async move { writer.batch_execute(&sql).await }
    };
    // Each session of the tree is fenced by its own lease.
    assert_sqlstate!(delete(&writer, "s", Way::Function).await, "SE009");
    assert_sqlstate!(with("lost").await, "SE008");
    assert_sqlstate!(with(&of_sub).await, "SE008");
    assert_sqlstate!(with(&lease).await, "SE009");
    assert_eq!(stored(&db).await, "b c s sub");
    writer.run(&format!("set agent_sessions.lease = '{of_sub}'")).await;
    with(&lease).await.expect("both leases");
    writer.run("reset agent_sessions.lease").await;
    assert_eq!(stored(&db).await, "b c [s] [sub]");
    let held = "select count(*) from agent_sessions.session
                where lease_digest is not null or lease_holder is not null or lease_expires_at is not null";
    assert_eq!(db.superuser().await.value::<i64>(held, &[]).await, 0);
    // The old lease is of no use, neither there nor for who has the id next.
    assert_sqlstate!(Append::to("s", "1").lease(&lease).run(&writer).await, "SE002");
    let extend = format!("select agent_sessions.session_extend('s', '{lease}', ttl => '1 hour')");
    assert_sqlstate!(writer.batch_execute(&extend).await, "SE002");
    let release = format!("select agent_sessions.session_release('s', '{lease}')");
    assert!(!writer.value::<bool>(&release, &[]).await);
    sample(&writer, "s").await;
    assert!(!writer.value::<bool>(&release, &[]).await);
    assert_sqlstate!(Append::to("s", "1").lease(&lease).run(&writer).await, "SE008");
    let next = claim("s").await;
    assert_eq!(Append::to("s", "1").lease(&next).run(&writer).await.expect("an append"), ENTRIES);
    // A branch that goes takes its hidden source along, which no lease keeps; one that is leased stays.
    let of_b = claim("b").await;
    assert_sqlstate!(delete(&writer, "b", Way::Function).await, "SE009");
    assert_sqlstate!(delete(&writer, "b", Way::Raw).await, "SE009");
    assert_eq!(stored(&db).await, "b c [s] s [sub]");
    // That the old leases are still brought is in nobody's way.
    writer.run(&format!("set agent_sessions.lease = '{lease},{of_sub}'")).await;
    writer.run(&format!("select agent_sessions.session_delete('b', lease => '{of_b}')")).await;
    deleted(&writer, "c").await;
    assert_eq!(stored(&db).await, "s");
}
