//! Branches that are made and deleted while their source is: whatever the order, nothing that is needed is lost, and nothing
//! that is not needed stays.

use std::sync::Arc;

use agent_sessions_tests::{Branch, Connection, Database, Error, assert_sqlstate, sqlstate, together};
use tokio::task::JoinHandle;

use crate::branches::{rows, sample};
use crate::hiding::{WAYS, Way, assert_tidy, count, delete, deleted, outside_branch, stored, sub_session};
use crate::items::Random;

const ONE_SNAPSHOT: [&str; 2] = ["repeatable read", "serializable"];

/// How a client makes a branch `new` of `s`.
#[derive(Clone, Copy, Debug)]
enum Making {
    Function,
    Raw,
}

const MAKINGS: [Making; 2] = [Making::Function, Making::Raw];

async fn make(connection: &Connection, way: Making) -> Result<(), Error> {
    match way {
        Making::Function => Branch::of("s").named("new").run(connection).await.map(|_| ()),
        Making::Raw => {
            // The sid is known from before, as that of a client who has looked it up.
            let sql = "insert into agent_sessions.session (session_id, branched_from, fork_position)
                       values ('new', (select min(sid) from agent_sessions.session where session_id = 's'), 3)";
            connection.execute(sql, &[]).await.map(|_| ())
        }
    }
}

fn spawn_delete(connection: &Arc<Connection>, session: &str, way: Way) -> JoinHandle<Result<(), Error>> {
    let (connection, session) = (connection.clone(), session.to_owned());
    tokio::spawn(async move { delete(&connection, &session, way).await })
}

/// The result of what waits for a lock, or did not have to, once the other transaction commits.
async fn after_commit<T>(
    db: &Database,
    waiting: &Connection,
    task: JoinHandle<Result<T, Error>>,
    other: &Connection,
) -> Result<T, Error> {
    while !task.is_finished() && !db.is_blocked(waiting.pid).await {}
    other.commit().await;
    task.await.expect("the task")
}

/// Runs it again, as a client does, after a serialization failure.
async fn delete_until_done(connection: &Connection, session: &str, way: Way) {
    while let Err(error) = delete(connection, session, way).await {
        assert_eq!(sqlstate(&error), "40001", "{session} {way:?}: {error:?}");
        connection.rollback().await;
        connection.begin("repeatable read").await;
    }
    connection.commit().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_last_branches_that_go_at_the_same_time_leave_nothing() {
    let db = Database::create("last_branches").await;
    let (first, second) = (db.writer().await, Arc::new(db.writer().await));
    for (one, other) in [(Way::Function, Way::Function), (Way::Raw, Way::Function), (Way::Raw, Way::Raw)] {
        sample(&first, "root").await;
        first.branched(Branch::of("root").named("s").seed("1")).await;
        first.branch("s", "b").await;
        first.branch("s", "c").await;
        deleted(&first, "root").await;
        deleted(&first, "s").await;
        first.begin("read committed").await;
        delete(&first, "b", one).await.expect("the first");
        let task = spawn_delete(&second, "c", other);
        db.wait_until_blocked(second.pid).await;
        first.commit().await;
        task.await.expect("the task").expect("the second");
        assert_eq!(rows(&db).await, (0, 0), "{one:?} {other:?}");
    }
}

/// The subtransaction in which it waits ends with the error: else every later statement would be refused until a ROLLBACK.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_gives_up_waiting_leaves_the_connection_usable() {
    let db = Database::create("hiding_gives_up").await;
    let (holder, deleter) = (db.writer().await, db.writer().await);
    sample(&holder, "s").await;
    holder.branch("s", "b").await;
    holder.begin("read committed").await;
    holder.append("b", "1").await;
    for (setting, code) in [("lock_timeout", "55P03"), ("statement_timeout", "57014")] {
        deleter.run(&format!("set {setting} = '50ms'")).await;
        for call in ["session_delete('b')", "session_flatten('b')"] {
            assert_sqlstate!(deleter.batch_execute(&format!("select agent_sessions.{call}")).await, code);
            assert_eq!(stored(&db).await, "b s", "{call}");
        }
        deleter.run(&format!("reset {setting}")).await;
    }
    holder.commit().await;
    deleted(&deleter, "b").await;
}

/// Else it would hold what the deletion of the branch needs, while it waits for the next session of that name.
#[tokio::test(flavor = "multi_thread")]
async fn who_waited_for_a_session_that_was_hidden_locks_the_new_one_alone() {
    let db = Database::create("hidden_lock").await;
    let (deleter, writer, superuser) = (db.writer().await, Arc::new(db.writer().await), db.superuser().await);
    for call in [
        "session_append('s', '1', on_missing => 'create')",
        "session_append_batch('s', '[{\"payload\":1}]', on_missing => 'create')",
        "session_set('s', title => 'x', on_missing => 'create')",
        "session_claim('s', ttl => '1 minute')",
    ] {
        sample(&deleter, "s").await;
        deleter.branch("s", "b").await;
        deleter.begin("read committed").await;
        deleted(&deleter, "s").await;
        writer.begin("read committed").await;
        let task = tokio::spawn({
            let writer = writer.clone();
            async move { writer.batch_execute(&format!("select agent_sessions.{call}")).await }
        });
        db.wait_until_blocked(writer.pid).await;
        deleter.commit().await;
        task.await.expect("the task").unwrap_or_else(|error| panic!("{call}: {error:?}"));
        let free = "select coalesce(string_agg(session_id, ' '), '')
                    from (select session_id from agent_sessions.session where deleted_at is not null
                          for update skip locked) free";
        assert_eq!(superuser.value::<String>(free, &[]).await, "s", "{call}");
        writer.rollback().await;
        deleted(&deleter, "b").await;
        assert_eq!(rows(&db).await, (0, 0), "{call}");
    }
}

/// As above, where each has a snapshot from before.
#[tokio::test(flavor = "multi_thread")]
async fn two_last_branches_leave_nothing_under_old_snapshots() {
    let db = Database::create("last_snapshots").await;
    let (first, second) = (db.writer().await, Arc::new(db.writer().await));
    for isolation in ONE_SNAPSHOT {
        for way in WAYS {
            sample(&first, "s").await;
            first.branch("s", "b").await;
            first.branch("s", "c").await;
            // The snapshot of the second is from before the source was hidden.
            second.begin(isolation).await;
            assert_eq!(count(&second, "agent_sessions.session").await, 3);
            deleted(&first, "s").await;
            first.begin(isolation).await;
            delete(&first, "b", way).await.expect("the first");
            let waiting = spawn_delete(&second, "c", way);
            db.wait_until_blocked(second.pid).await;
            first.commit().await;
            match waiting.await.expect("the task") {
                Ok(()) => second.commit().await,
                Err(error) => {
                    assert_eq!(sqlstate(&error), "40001", "{error:?}");
                    second.rollback().await;
                    second.begin(isolation).await;
                    delete_until_done(&second, "c", way).await;
                }
            }
            assert_eq!(rows(&db).await, (0, 0), "{isolation} {way:?}");
        }
    }
}

/// The source is hidden, or gone, and no branch of it is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_waited_for_the_deletion_of_its_source_is_not_made() {
    let db = Database::create("branch_too_late").await;
    let (deleter, maker) = (db.writer().await, Arc::new(db.writer().await));
    for (way, is_needed) in [(Way::Function, true), (Way::Function, false), (Way::Raw, false)] {
        for making in MAKINGS {
            sample(&deleter, "s").await;
            if is_needed {
                deleter.branch("s", "b").await;
            }
            deleter.begin("read committed").await;
            delete(&deleter, "s", way).await.expect("a delete");
            let task = tokio::spawn({
                let maker = maker.clone();
                async move { make(&maker, making).await }
            });
            db.wait_until_blocked(maker.pid).await;
            deleter.commit().await;
            assert_sqlstate!(task.await.expect("the task"), "SE002");
            assert_eq!(stored(&db).await, if is_needed { "b [s]" } else { "" }, "{way:?} {making:?}");
            assert_tidy(&db).await;
            if is_needed {
                deleted(&deleter, "b").await;
            }
        }
    }
}

/// The source is hidden by a function, and kept from a raw DELETE.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_waited_for_a_branch_finds_it() {
    let db = Database::create("branch_in_time").await;
    let (maker, deleter) = (db.writer().await, Arc::new(db.writer().await));
    for making in MAKINGS {
        for way in WAYS {
            for commits in [true, false] {
                sample(&maker, "s").await;
                maker.begin("read committed").await;
                make(&maker, making).await.expect("a branch");
                let task = spawn_delete(&deleter, "s", way);
                db.wait_until_blocked(deleter.pid).await;
                if commits {
                    maker.commit().await;
                } else {
                    maker.rollback().await;
                }
                let done = task.await.expect("the task");
                let left = match (commits, way) {
                    (true, Way::Function) => "new [s]",
                    (true, Way::Raw) => "new s",
                    (false, _) => "",
                };
                if left == "new s" {
                    assert_sqlstate!(done, "SE022");
                } else {
                    done.expect("a delete");
                }
                assert_eq!(stored(&db).await, left, "{making:?} {way:?}");
                assert_tidy(&db).await;
                if commits {
                    assert!(maker.verify("new").await.ok);
                    maker.run("delete from agent_sessions.session").await;
                }
                assert_eq!(rows(&db).await, (0, 0), "{making:?} {way:?}");
            }
        }
    }
}

/// Neither waits for the other to no end, and the source, which its last branch has left, does not stay behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_and_its_last_branch_that_go_at_the_same_time_leave_nothing() {
    let db = Database::create("source_and_branch").await;
    let (first, second) = (db.writer().await, Arc::new(db.writer().await));
    for isolation in ["read committed", "repeatable read"] {
        for way in WAYS {
            for (one, one_way, other, other_way) in [("s", Way::Function, "b", way), ("b", way, "s", Way::Function)] {
                sample(&first, "s").await;
                first.branch("s", "b").await;
                second.begin(isolation).await;
                assert_eq!(count(&second, "agent_sessions.session").await, 2);
                first.begin("read committed").await;
                delete(&first, one, one_way).await.expect("the first");
                let task = spawn_delete(&second, other, other_way);
                match after_commit(&db, &second, task, &first).await {
                    Ok(()) => second.commit().await,
                    Err(error) => {
                        assert_eq!((sqlstate(&error), isolation), ("40001", "repeatable read"), "{error:?}");
                        second.rollback().await;
                        second.begin(isolation).await;
                        delete_until_done(&second, other, other_way).await;
                    }
                }
                assert_eq!(stored(&db).await, "", "{isolation}: {one}, then {other} by {way:?}");
                assert_eq!(rows(&db).await, (0, 0));
            }
        }
    }
}

/// A sub-session that is made while its parent is being hidden goes with it, or is not made.
#[tokio::test(flavor = "multi_thread")]
async fn no_sub_session_stays_below_a_parent_that_was_hidden_meanwhile() {
    let db = Database::create("hidden_parent").await;
    let (maker, deleter) = (db.writer().await, Arc::new(db.writer().await));
    // A sub-session, one that a branch elsewhere needs, and a branch of another sub-session.
    for case in 0..3 {
        sample(&maker, "s").await;
        sub_session(&maker, "sub", "s").await.expect("a sub-session");
        maker.branch("s", "b").await;
        maker.begin("read committed").await;
        match case {
            0 => sub_session(&maker, "late", "s").await.expect("a sub-session"),
            1 => {
                sub_session(&maker, "late", "s").await.expect("a sub-session");
                outside_branch(&maker, "late", "c").await.expect("a branch");
            }
            _ => assert_eq!(maker.branch("sub", "late").await.next_position, 1),
        }
        let task = spawn_delete(&deleter, "s", Way::Function);
        db.wait_until_blocked(deleter.pid).await;
        maker.commit().await;
        task.await.expect("the task").expect("a delete");
        assert_eq!(stored(&db).await, ["b [s]", "b c [late] [s]", "b [s]"][case], "case {case}");
        assert_tidy(&db).await;
        // What may be seen is not taken away later.
        let visible = count(&maker, "agent_sessions.session").await;
        deleted(&maker, "b").await;
        assert_eq!(count(&maker, "agent_sessions.session").await, visible - 1, "case {case}");
        maker.run("delete from agent_sessions.session").await;
        assert_eq!(rows(&db).await, (0, 0), "case {case}");

        // The other order: the parent is hidden first.
        sample(&maker, "s").await;
        maker.branch("s", "b").await;
        maker.begin("read committed").await;
        deleted(&maker, "s").await;
        let task = tokio::spawn({
            let deleter = deleter.clone();
            async move { sub_session(&deleter, "late", "s").await }
        });
        db.wait_until_blocked(deleter.pid).await;
        maker.commit().await;
        assert_sqlstate!(task.await.expect("the task"), "SE002");
        assert_eq!(stored(&db).await, "b [s]");
        deleted(&maker, "b").await;
    }
}

/// Who goes from a branch to its source, and who takes both, do not wait for each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_tree_and_a_branch_in_it_go_at_the_same_time() {
    let db = Database::create("tree_and_branch").await;
    let (first, second) = (db.writer().await, Arc::new(db.writer().await));
    for (way, flattens) in [(Way::Function, false), (Way::Raw, false), (Way::Function, true)] {
        first.create_session("p").await;
        sub_session(&first, "s", "p").await.expect("a sub-session");
        first.branch("s", "b").await;
        first.begin("read committed").await;
        first.append("b", "1").await;
        let task = spawn_delete(&second, "p", Way::Function);
        db.wait_until_blocked(second.pid).await;
        // It has the lock of its session, and touches no other that it names.
        if flattens {
            first.run("select agent_sessions.session_flatten('b')").await;
        } else {
            delete(&first, "b", way).await.expect("the branch goes");
        }
        first.commit().await;
        task.await.expect("the task").expect("the tree goes");
        assert_eq!(rows(&db).await, (0, 0), "{way:?} {flattens}");
    }
}

/// A deletion with an old snapshot does what one with a new snapshot does, or is a serialization failure.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_under_an_old_snapshot_misses_nothing() {
    let db = Database::create("hiding_snapshot").await;
    let (other, deleter) = (db.writer().await, db.writer().await);
    for isolation in ONE_SNAPSHOT {
        // What is made after the snapshot, and what is left after the deletion and after that of the branches `b` and `c`.
        for (case, left) in [(0, "b"), (1, "b c"), (2, "b"), (3, "b c"), (4, "b")] {
            sample(&other, "s").await;
            sub_session(&other, "sub", "s").await.expect("a sub-session");
            if case != 4 {
                other.branch("s", "b").await;
            }
            deleter.begin(isolation).await;
            assert!(count(&deleter, "agent_sessions.session").await > 1);
            match case {
                0 => sub_session(&other, "late", "s").await.expect("a sub-session"),
                1 => {
                    sub_session(&other, "late", "s").await.expect("a sub-session");
                    outside_branch(&other, "late", "c").await.expect("a branch");
                }
                2 => assert_eq!(other.branch("sub", "late").await.next_position, 1),
                3 => outside_branch(&other, "sub", "c").await.expect("a branch"),
                _ => assert_eq!(other.branch("s", "b").await.fork_position, Some(9)),
            }
            delete_until_done(&deleter, "s", Way::Function).await;
            assert_tidy(&db).await;
            let visible = "select string_agg(session_id, ' ' order by session_id) from agent_sessions.session";
            assert_eq!(other.value::<String>(visible, &[]).await, left, "{isolation}, case {case}");
            for branch in left.split(' ') {
                assert!(other.verify(branch).await.ok, "{branch}");
                deleted(&other, branch).await;
            }
            assert_eq!(rows(&db).await, (0, 0), "{isolation}, case {case}");
        }
    }
}

/// A raw DELETE with an old snapshot finds the branch that was made since.
#[tokio::test(flavor = "multi_thread")]
async fn a_raw_delete_under_an_old_snapshot_finds_the_branch() {
    let db = Database::create("raw_snapshot").await;
    let (other, deleter) = (db.writer().await, db.writer().await);
    for isolation in ONE_SNAPSHOT {
        sample(&other, "s").await;
        deleter.begin(isolation).await;
        assert_eq!(count(&deleter, "agent_sessions.session").await, 1);
        other.branch("s", "b").await;
        match delete(&deleter, "s", Way::Raw).await {
            Err(error) if sqlstate(&error) == "40001" => {}
            refused => drop(assert_sqlstate!(refused, "SE022")),
        }
        deleter.rollback().await;
        // And that the source has gone is no session for it.
        deleter.begin(isolation).await;
        assert_eq!(count(&deleter, "agent_sessions.session").await, 2);
        deleted(&other, "s").await;
        assert_sqlstate!(Branch::of("s").run(&deleter).await, "40001");
        deleter.rollback().await;
        deleted(&other, "b").await;
        assert_eq!(rows(&db).await, (0, 0));
    }
}

/// Sessions, sub-sessions and branches that come and go: every call is done, or finds what it names gone or there already,
/// and never is one the victim of a deadlock.
#[tokio::test(flavor = "multi_thread")]
async fn branches_and_deletions_race_and_leave_a_tidy_table() {
    const CLIENTS: usize = 8;
    const CALLS: usize = 400;
    let db = Database::create("hiding_race").await;
    let writers = db.writers(CLIENTS).await;
    println!("seeds 1 to {CLIENTS}");
    together(CLIENTS, |number| {
        let writer = writers[number].clone();
        async move {
            let mut random = Random(number as u64 + 1);
            for _ in 0..CALLS {
                let [one, other] = [random.below(6), random.below(6)].map(|name| format!("r{name}"));
                let sql = match random.below(10) {
                    0 => format!("session_append('{one}', '1', on_missing => 'create')"),
                    1 => format!(
                        "session_create('{one}', parent_session_id => '{other}', items => '[{{\"payload\":1}}]')"
                    ),
                    2 => format!("session_flatten('{one}')"),
                    3 => format!("session_trim('{one}', keep_from => {}, force => true)", random.below(9)),
                    4..=6 => format!("session_branch('{one}', new_session_id => '{other}', seed => '1')"),
                    _ => format!("session_delete('{one}')"),
                };
                if let Err(error) = writer.batch_execute(&format!("select agent_sessions.{sql}")).await {
                    let code = sqlstate(&error);
                    assert!(["SE002", "SE003"].contains(&code), "{sql}: {error:?}");
                }
            }
        }
    })
    .await;
    assert_tidy(&db).await;
    let writer = &writers[0];
    let names = "select session_id from agent_sessions.session order by sid desc";
    for row in writer.query(names, &[]).await.expect("what is left") {
        let session: &str = row.get(0);
        assert!(writer.verify(session).await.ok, "{session}");
        let gone = "select agent_sessions.session_delete($1::text, on_missing => 'ignore')";
        writer.execute(gone, &[&session]).await.expect("a delete");
        assert_tidy(&db).await;
    }
    assert_eq!(rows(&db).await, (0, 0));
}
