//! Flattening: a branch gets what it inherits as entries of its own, and lets go of its source.

use std::sync::Arc;

use agent_sessions_tests::{Append, Branch, Connection, Database, Error, Item, assert_sqlstate, detail, sqlstate};
use serde_json::json;

use crate::branch_readers::{assert_equal, assert_pages, change, family, flatten as flat_copy};
use crate::branches::{ENTRIES, call_of, lineage, rows, sample, shown};
use crate::hiding::{Way, assert_tidy, count, delete, deleted, stored};
use crate::items::Random;

async fn try_flatten(connection: &Connection, session: &str) -> Result<i64, Error> {
    connection.try_value("select agent_sessions.session_flatten(session_id => $1::text)", &[&session]).await
}

/// How many entries were copied.
async fn flattened(connection: &Connection, session: &str) -> i64 {
    try_flatten(connection, session).await.unwrap_or_else(|error| panic!("{session}: {error:?}"))
}

fn without_digests(items: Vec<Item>) -> Vec<Item> {
    items.into_iter().map(|item| Item { digest: Vec::new(), ..item }).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flattened_branch_reads_on_by_itself() {
    let db = Database::create("flatten").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("b").at_target(6)).await;
    for payload in ["7", "8"] {
        writer.append("b", payload).await;
    }
    writer.branch("b", "c").await;
    call_of(&writer, "session_revise('{s}', '30', item_id => 'd')", "c").await;
    call_of(&writer, "session_delta('{s}', target => 4, chunk_no => 0, chunk => 'its own')", "c").await;
    let (log, history) = (reader.log("c").await, reader.history("c").await);
    let entry_at = "select digest from agent_sessions.session_log('c', after => 8)";
    let own: Vec<u8> = reader.value(entry_at, &[]).await;
    assert_eq!(flattened(&writer, "c").await, 9);
    assert_eq!(without_digests(reader.log("c").await), without_digests(log));
    assert_eq!(without_digests(reader.history("c").await), without_digests(history));
    assert_eq!(reader.value::<Vec<u8>>(entry_at, &[]).await, own, "its own entries keep their digests");
    let open = "select delta_text from agent_sessions.session_history('c', item_ids => '{o}') where open";
    assert_eq!(reader.value::<String>(open, &[]).await, "its own");
    reader.assert_dense("c", 10).await;
    // It is nobody's branch any more, and needs nobody.
    assert_eq!(lineage(&reader, "c").await, ["0 c 9"]);
    assert_eq!(count(&reader, "agent_sessions.session_list(branched_from => 'b')").await, 0);
    let row = "select branched_from is null and next_position = 10 from agent_sessions.session_get('c')";
    assert!(reader.value::<bool>(row, &[]).await);
    for source in ["b", "s"] {
        delete(&writer, source, Way::Raw).await.expect("a delete");
    }
    assert_eq!(rows(&db).await, (1, 10));
    reader.assert_dense("c", 10).await;
    // What was inherited is its own in every respect.
    assert_eq!(count(&reader, "agent_sessions.live_item where session_id = 'c'").await, 6);
    assert_eq!(Append::to("c", "3").item_id("d").tag("t").run(&writer).await.expect("a replay"), 3);
    assert_sqlstate!(Append::to("c", "4").item_id("d").tag("t").run(&writer).await, "SE010");
    call_of(&writer, "session_retract('{s}', targets => '{0}')", "c").await;
    call_of(&writer, "session_revise('{s}', '\"closed\"', item_id => 'o')", "c").await;
    assert_eq!(writer.append("c", "12").await, 12);
    assert_eq!(shown(&writer, "c").await, ["3 30", "4 \"closed\"", "6 6", "7 7", "8 8", "12 12"]);
    assert_eq!(flattened(&writer, "c").await, 0, "there is nothing left to copy");
    for fork in 1..=13 {
        let name = format!("at {fork}");
        assert_eq!(writer.branched(Branch::of("c").named(&name).at_target(fork - 1)).await.next_position, fork);
        writer.append(&name, "1").await;
        writer.assert_dense(&name, fork + 1).await;
    }
    writer.assert_dense("c", 13).await;
}

/// Those that leave within what was inherited, at its end, and behind it.
#[tokio::test(flavor = "multi_thread")]
async fn branches_of_a_flattened_branch_stay_what_they_were() {
    let db = Database::create("flatten_above").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.branch("s", "b").await;
    writer.branch("b", "at its fork").await;
    writer.append("b", "9").await;
    for (name, target) in [("within", 3), ("at the end", ENTRIES - 1), ("behind", ENTRIES)] {
        writer.branched(Branch::of("b").named(name).at_target(target)).await;
        writer.append(name, "\"own\"").await;
    }
    writer.branch("within", "further").await;
    // Off a branch that leaves behind the inheritance, but within that itself.
    writer.branched(Branch::of("behind").named("through").at_target(2)).await;
    let branches = ["at its fork", "within", "at the end", "behind", "further", "through"];
    let mut before = Vec::new();
    for branch in branches {
        before.push(writer.log(branch).await);
    }
    assert_eq!(flattened(&writer, "b").await, ENTRIES);
    for (branch, log) in branches.iter().zip(&before) {
        let verdict = writer.verify(branch).await;
        assert!(verdict.ok, "{branch}: {verdict:?}");
        assert_eq!(&without_digests(writer.log(branch).await), &without_digests(log.clone()), "{branch}");
    }
    assert_tidy(&db).await;
    // They are still branches, whose sources are hidden for them, and may be flattened themselves.
    deleted(&writer, "s").await;
    deleted(&writer, "b").await;
    for branch in branches {
        assert!(writer.verify(branch).await.ok, "{branch}");
        assert!(flattened(&writer, branch).await > 0, "{branch}");
        assert!(writer.verify(branch).await.ok, "{branch}");
        assert_tidy(&db).await;
    }
    assert_eq!(stored(&db).await.matches('[').count(), 0, "nothing is hidden for nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn hidden_ancestors_go_with_the_last_branch_that_is_flattened() {
    let db = Database::create("flatten_hidden").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("b").seed("1")).await;
    writer.branched(Branch::of("b").named("c").seed("2")).await;
    writer.branched(Branch::of("b").named("d").at_target(2)).await;
    deleted(&writer, "s").await;
    deleted(&writer, "b").await;
    assert_eq!(flattened(&writer, "c").await, ENTRIES + 1);
    assert_eq!(stored(&db).await, "[b] c d [s]");
    assert_tidy(&db).await;
    assert_eq!(flattened(&writer, "d").await, 3);
    assert_eq!(stored(&db).await, "c d");
    writer.assert_dense("c", ENTRIES + 2).await;
    writer.assert_dense("d", 3).await;
    assert_eq!(rows(&db).await, (2, ENTRIES + 2 + 3));
}

/// What only reads on from the copies for the sake of branches that do not: they go over, and it goes.
#[tokio::test(flavor = "multi_thread")]
async fn hidden_branches_go_when_those_that_needed_them_go_over() {
    let db = Database::create("flatten_go_over").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("b").seed("1")).await;
    // Each reads on from the one before it, but for the last, which leaves within what all of them inherit.
    writer.branched(Branch::of("b").named("c").seed("2")).await;
    writer.branched(Branch::of("c").named("d").seed("3")).await;
    writer.branched(Branch::of("d").named("e").at_target(1)).await;
    let log = writer.log("e").await;
    for session in ["c", "d"] {
        deleted(&writer, session).await;
    }
    assert_eq!(stored(&db).await, "b [c] [d] e s");
    assert_eq!(flattened(&writer, "b").await, ENTRIES);
    assert_eq!(stored(&db).await, "b e s");
    assert_tidy(&db).await;
    assert_eq!(writer.log("e").await, log);
    assert!(writer.verify("e").await.ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_inherits_nothing_is_not_written_to() {
    let db = Database::create("flatten_nothing").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("none").inherit(false)).await;
    let zero = "insert into agent_sessions.session (session_id, branched_from, fork_position)
                select 'zero', sid, 0 from agent_sessions.session where session_id = 's'";
    writer.run(zero).await;
    let before = rows(&db).await;
    for session in ["s", "none", "zero"] {
        assert_eq!(flattened(&writer, session).await, 0);
    }
    let error = assert_sqlstate!(try_flatten(&writer, "missing").await, "SE002");
    assert_eq!(detail(&error), json!({"session_id": "missing", "agent_id": ""}));
    assert_sqlstate!(try_flatten(&writer, "").await, "SE001");
    assert_sqlstate!(try_flatten(&db.reader().await, "s").await, "42501");
    assert_eq!(rows(&db).await, before);
    assert_eq!(lineage(&writer, "none").await, ["0 none -", "1 s -"], "what it tells of its source stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leased_branch_is_flattened_by_its_holder_alone() {
    let db = Database::create("flatten_fenced").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.branch("s", "b").await;
    let claim = "select lease from agent_sessions.session_claim($1::text, ttl => '1 hour', holder => 'worker')";
    let lease: String = writer.value(claim, &[&"b"]).await;
    // The source's own lease is nobody's concern: it is only read.
    writer.value::<String>(claim, &[&"s"]).await;
    let before = rows(&db).await;
    let error = assert_sqlstate!(try_flatten(&writer, "b").await, "SE009");
    assert_eq!(detail(&error), json!({"holder": "worker"}));
    let with = |lease: &str| format!("select agent_sessions.session_flatten('b', lease => '{lease}')");
    assert_sqlstate!(writer.try_value::<i64>(&with("lost"), &[]).await, "SE008");
    assert_eq!(rows(&db).await, before);
    assert_eq!(writer.value::<i64>(&with(&lease), &[]).await, ENTRIES);
    writer.assert_dense("b", ENTRIES).await;
    assert_eq!(Append::to("b", "9").lease(&lease).run(&writer).await.expect("an append"), ENTRIES);
}

/// What is broken is not chained anew, as if it had been written so.
#[tokio::test(flavor = "multi_thread")]
async fn a_tampered_inheritance_is_not_copied() {
    let db = Database::create("flatten_tampered").await;
    let (writer, superuser) = (db.writer().await, db.superuser().await);
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("b").at_target(6).seed("1")).await;
    for (change, position) in [
        ("update agent_sessions.session_item set payload = '[]' where position = 3", 3),
        ("delete from agent_sessions.session_item where position = 6", 6),
        ("delete from agent_sessions.session where session_id = 's'", 0),
        ("update agent_sessions.session set fork_digest = sha256('') where session_id = 'b'", 7),
    ] {
        superuser.begin("read committed").await;
        superuser.run(&format!("set local session_replication_role = replica; {change}")).await;
        superuser.run("set local session_replication_role = origin; savepoint before").await;
        let error = assert_sqlstate!(try_flatten(&superuser, "b").await, "SE017");
        assert_eq!(detail(&error)["position"], json!(position), "{change}");
        superuser.run("rollback to before").await;
        assert_eq!(superuser.verify("b").await.first_bad_position, Some(position), "{change}");
        superuser.rollback().await;
    }
    assert_eq!(flattened(&writer, "b").await, 7);
    // And what is changed afterwards is found, on both sides of the joint.
    for position in 0..8 {
        superuser.begin("read committed").await;
        let change = format!(
            "set local session_replication_role = replica;
             update agent_sessions.session_item i set created_at = i.created_at + interval '1 microsecond'
             from agent_sessions.session s where s.sid = i.sid and s.session_id = 'b' and position = {position}"
        );
        superuser.run(&change).await;
        assert_eq!(superuser.verify("b").await.first_bad_position, Some(position));
        superuser.rollback().await;
    }
    for (change, position) in [
        ("fork_position = null, fork_digest = null", 7),
        ("fork_position = 6", 6),
        ("fork_position = 0", 0),
        ("fork_digest = sha256('')", 7),
        ("created_at = created_at + interval '1 s'", 0),
    ] {
        superuser.begin("read committed").await;
        superuser
            .run(&format!(
                "set local session_replication_role = replica;
                 update agent_sessions.session set {change} where session_id = 'b'"
            ))
            .await;
        assert_eq!(superuser.verify("b").await.first_bad_position, Some(position), "{change}");
        superuser.rollback().await;
    }
}

/// The copies are the branch's: its agent's, whoever's they were.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_flattens_what_it_inherits_from_another() {
    let db = Database::create("flatten_agents").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("b").new_agent_id("two")).await;
    writer.run("set agent_sessions.isolation = agent; set agent_sessions.agent = 'two'").await;
    assert_eq!(count(&writer, "agent_sessions.session_item").await, 0);
    let before = shown(&writer, "b").await;
    assert_eq!(flattened(&writer, "b").await, ENTRIES);
    assert_eq!(count(&writer, "agent_sessions.session_item").await, ENTRIES);
    assert_eq!(shown(&writer, "b").await, before);
    writer.append("b", "9").await;
    writer.assert_dense("b", ENTRIES + 1).await;
    assert_sqlstate!(try_flatten(&writer, "s").await, "SE002");
}

/// Nobody gives up a source by UPDATE, or gives one to a session that has none.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_is_given_up_by_flattening_alone() {
    let db = Database::create("flatten_raw").await;
    let (writer, owner) = (db.writer().await, db.owner().await);
    sample(&writer, "s").await;
    writer.branch("s", "b").await;
    writer.append("b", "9").await;
    writer.branch("s", "c").await;
    flattened(&writer, "c").await;
    for change in [
        "branched_from = null where session_id = 'b'",
        "branched_from = (select sid from agent_sessions.session where session_id = 's') where session_id = 'c'",
        "fork_position = null, fork_digest = null where session_id = 'c'",
    ] {
        let sql = format!("update agent_sessions.session set {change}");
        assert_sqlstate!(writer.batch_execute(&sql).await, "42501");
        assert_sqlstate!(owner.batch_execute(&sql).await, "SE014");
    }
    for session in ["b", "c"] {
        assert!(writer.verify(session).await.ok);
    }
}

fn spawn_flatten(connection: &Arc<Connection>, session: &'static str) -> tokio::task::JoinHandle<Result<i64, Error>> {
    let connection = connection.clone();
    tokio::spawn(async move { try_flatten(&connection, session).await })
}

/// Whatever happens to the source meanwhile, the branch ends up with its own copy, and nothing is left behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_flattening_and_a_deletion_at_the_same_time_are_both_done() {
    let db = Database::create("flatten_races").await;
    let (first, second) = (db.writer().await, Arc::new(db.writer().await));
    for isolation in ["read committed", "repeatable read"] {
        // The source is deleted first, and its deletion waits.
        sample(&first, "s").await;
        first.branched(Branch::of("s").named("b").seed("1")).await;
        second.begin(isolation).await;
        assert_eq!(count(&second, "agent_sessions.session").await, 2);
        first.begin("read committed").await;
        deleted(&first, "s").await;
        let task = spawn_flatten(&second, "b");
        while !task.is_finished() && !db.is_blocked(second.pid).await {}
        first.commit().await;
        let done = task.await.expect("the task");
        match done {
            Ok(copies) => {
                assert_eq!(copies, ENTRIES);
                second.commit().await;
            }
            Err(error) => {
                assert_eq!((sqlstate(&error), isolation), ("40001", "repeatable read"), "{error:?}");
                second.rollback().await;
                assert_eq!(flattened(&second, "b").await, ENTRIES);
            }
        }
        assert_eq!(stored(&db).await, "b", "{isolation}");
        second.assert_dense("b", ENTRIES + 1).await;
        assert_tidy(&db).await;
        deleted(&first, "b").await;

        sample(&first, "s").await;
        first.branched(Branch::of("s").named("b").seed("1")).await;
        second.begin(isolation).await;
        assert_eq!(count(&second, "agent_sessions.session").await, 2);
        first.begin("read committed").await;
        assert_eq!(flattened(&first, "b").await, ENTRIES);
        let task = tokio::spawn({
            let second = second.clone();
            async move { delete(&second, "s", Way::Function).await }
        });
        while !task.is_finished() && !db.is_blocked(second.pid).await {}
        first.commit().await;
        match task.await.expect("the task") {
            Ok(()) => second.commit().await,
            Err(error) => {
                assert_eq!((sqlstate(&error), isolation), ("40001", "repeatable read"), "{error:?}");
                second.rollback().await;
                deleted(&second, "s").await;
            }
        }
        assert_eq!(stored(&db).await, "b", "{isolation}");
        second.assert_dense("b", ENTRIES + 1).await;
        assert_tidy(&db).await;
        deleted(&first, "b").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_is_flattened_once_and_takes_what_was_appended_before() {
    let db = Database::create("flatten_once").await;
    let (first, second) = (db.writer().await, Arc::new(db.writer().await));
    sample(&first, "s").await;
    first.branch("s", "b").await;
    first.begin("read committed").await;
    assert_eq!(flattened(&first, "b").await, ENTRIES);
    let task = spawn_flatten(&second, "b");
    db.wait_until_blocked(second.pid).await;
    first.commit().await;
    assert_eq!(task.await.expect("the task").expect("no error"), 0);
    second.assert_dense("b", ENTRIES).await;

    first.branch("s", "c").await;
    first.begin("read committed").await;
    first.append("c", "9").await;
    let task = spawn_flatten(&second, "c");
    db.wait_until_blocked(second.pid).await;
    first.commit().await;
    assert_eq!(task.await.expect("the task").expect("no error"), ENTRIES);
    second.assert_dense("c", ENTRIES + 1).await;

    first.branch("s", "d").await;
    for isolation in ["repeatable read", "serializable"] {
        second.begin(isolation).await;
        assert_eq!(second.history("d").await.len(), 4 + usize::from(isolation == "serializable"));
        first.append("d", "9").await;
        assert_sqlstate!(try_flatten(&second, "d").await, "40001");
        second.rollback().await;
    }
}

/// A branch that is being copied from an ancestor which its source lets go meanwhile: nothing of it is lost.
#[tokio::test(flavor = "multi_thread")]
async fn two_generations_are_flattened_at_the_same_time() {
    let db = Database::create("flatten_generations").await;
    let (writer, first, second) = (db.writer().await, Arc::new(db.writer().await), Arc::new(db.writer().await));
    let superuser = db.superuser().await;
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("b").seed("1")).await;
    writer.branched(Branch::of("b").named("c").seed("2")).await;
    deleted(&writer, "s").await;
    let logs = [writer.log("b").await, writer.log("c").await].map(without_digests);
    // A row that may come to stand where the copy of position 3 has to makes the copying wait there.
    superuser
        .run(
            "begin; set local session_replication_role = replica;
             insert into agent_sessions.session_item
             select c.sid, i.position, i.tenant, i.agent_id, i.op, i.kind, null, i.tag, i.author, i.target, i.payload, i.attrs,
               i.salt, i.content_digest, i.digest, i.created_at
             from agent_sessions.session_item i, agent_sessions.session c
             where c.session_id = 'c' and i.position = 3",
        )
        .await;
    let of_c = spawn_flatten(&first, "c");
    db.wait_until_blocked(first.pid).await;
    let of_b = spawn_flatten(&second, "b");
    while !of_b.is_finished() && !db.is_blocked(second.pid).await {}
    superuser.rollback().await;
    assert_eq!(of_c.await.expect("the task").expect("c is flattened"), ENTRIES + 1);
    assert_eq!(of_b.await.expect("the task").expect("b is flattened"), ENTRIES);
    for (session, log) in ["b", "c"].into_iter().zip(logs) {
        writer.assert_dense(session, log.len() as i64).await;
        assert_eq!(without_digests(writer.log(session).await), log, "{session}");
    }
    assert_eq!(stored(&db).await, "b c");
}

/// Families of branches, some of which are flattened: all of them read as they did.
#[tokio::test(flavor = "multi_thread")]
async fn flattened_members_of_a_family_change_nothing_for_the_others() {
    let db = Database::create("flatten_family").await;
    let (writer, reader, owner) = (db.writer().await, db.reader().await, db.owner().await);
    for seed in 11..=14 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let sessions = family(&writer, &mut random, &seed.to_string()).await;
        for session in &sessions {
            flat_copy(&owner, session, &format!("flat {session}")).await;
        }
        let mut copied = 0;
        for _ in 0..5 {
            copied += flattened(&writer, &random.pick(&sessions)).await;
            for session in &sessions {
                let verdict = reader.verify(session).await;
                assert!(verdict.ok, "{session}: {verdict:?}");
            }
        }
        assert!(copied > 0, "seed {seed} flattens nothing");
        for session in &sessions {
            let flat = format!("flat {session}");
            assert_equal(&reader, &mut random, session, &flat, 30).await;
            assert_pages(&reader, session, &flat).await;
        }
        // All of them are written to, and go in any order.
        for _ in 0..20 {
            let session = random.pick(&sessions);
            change(&writer, &mut random, &session).await;
        }
        let mut left = sessions;
        while !left.is_empty() {
            let session = left.swap_remove(random.below(left.len()));
            deleted(&writer, &session).await;
            assert_tidy(&db).await;
            for session in &left {
                let verdict = reader.verify(session).await;
                assert!(verdict.ok, "{session}: {verdict:?}");
            }
        }
        assert_eq!(count(&owner, "agent_sessions.session where session_id not like 'flat%'").await, 0);
    }
}

/// Else the copies would keep what is erased at that moment from all that share it.
#[tokio::test(flavor = "multi_thread")]
async fn a_flattening_waits_for_an_erasure_of_what_it_copies() {
    let db = Database::create("flatten_erasure").await;
    let (eraser, flattener) = (db.writer().await, Arc::new(db.writer().await));
    sample(&eraser, "s").await;
    eraser.branch("s", "b").await;
    eraser.begin("read committed").await;
    eraser.run("select agent_sessions.session_erase('s', target => 0)").await;
    let task = spawn_flatten(&flattener, "b");
    db.wait_until_blocked(flattener.pid).await;
    eraser.commit().await;
    assert_eq!(task.await.expect("the task").expect("a flattening"), ENTRIES);
    let verdict = eraser.verify("b").await;
    assert!(verdict.ok && verdict.redacted > 0, "{verdict:?}");
    let kept = "select count(*) from agent_sessions.session_log('b') where position = 0 and payload is not null";
    assert_eq!(eraser.value::<i64>(kept, &[]).await, 0);
}

/// Both would delete the source that is left hidden: the second waits before it copies, not when neither can go on.
#[tokio::test(flavor = "multi_thread")]
async fn flattenings_of_two_branches_of_a_deleted_session_take_turns() {
    let db = Database::create("flatten_siblings").await;
    let (owner, writer) = (db.owner().await, db.writer().await);
    sample(&writer, "s").await;
    for branch in ["b", "c"] {
        writer.branch("s", branch).await;
    }
    writer.run("select agent_sessions.session_delete('s')").await;
    // What they have copied by now, they cannot write down.
    owner.run("begin; lock table agent_sessions.session in share mode").await;
    let mut tasks = Vec::new();
    for branch in ["b", "c"] {
        let flattener = Arc::new(db.writer().await);
        tasks.push(spawn_flatten(&flattener, branch));
        db.wait_until_blocked(flattener.pid).await;
    }
    owner.rollback().await;
    for task in tasks {
        assert_eq!(task.await.expect("the task").expect("a flattening"), ENTRIES);
    }
    for branch in ["b", "c"] {
        assert!(writer.verify(branch).await.ok);
    }
    let left = "select count(*) from agent_sessions.session";
    assert_eq!(db.superuser().await.value::<i64>(left, &[]).await, 2);
}
