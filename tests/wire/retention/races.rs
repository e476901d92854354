//! Trimming and erasing beside other writers: both orders of a race, and transactions with one snapshot.

use std::sync::Arc;

use agent_sessions_tests::{Connection, Database, Error, assert_sqlstate, together};
use tokio::task::JoinHandle;

use super::{
    assert_verifies, branch, call, delete, everything, history, next_position, orphans, outline, session_of, stored,
    texts, try_branch, try_call,
};

type Running = JoinHandle<Result<Option<i64>, Error>>;

/// Starts a query of one number that has to wait, and returns once it does.
async fn waiting_query(db: &Database, connection: &Arc<Connection>, sql: &str) -> Running {
    let (connection, sql) = (connection.clone(), sql.to_owned());
    let pid = connection.pid;
    let running = tokio::spawn(async move { connection.try_value(&sql, &[]).await });
    db.wait_until_blocked(pid).await;
    running
}

/// The same for a function that returns a number.
async fn waiting(db: &Database, connection: &Arc<Connection>, call: &str) -> Running {
    waiting_query(db, connection, &format!("select agent_sessions.{call}")).await
}

async fn outcome(running: Running) -> Result<Option<i64>, Error> {
    running.await.expect("no panic")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_and_a_trim_wait_for_each_other() {
    let db = Database::create("race_trim_append").await;
    let (first, second) = (db.writer().await, Arc::new(db.writer().await));
    // The append waits, and lands behind the trim entry.
    session_of(&first, "a", 4).await;
    first.begin("read committed").await;
    assert_eq!(call(&first, "session_trim('a', 3)").await, 3);
    let append = waiting(&db, &second, "session_append('a', '\"late\"', item_id => 'i0')").await;
    first.commit().await;
    assert_eq!(outcome(append).await.expect("an append"), Some(5));
    assert_eq!(outline(&first, "a").await, ["3 append", "4 trim 3", "5 append"]);
    assert_verifies(&first, "a", 3, 0).await;
    // The trim waits, and counts what was appended meanwhile.
    session_of(&first, "b", 4).await;
    first.begin("read committed").await;
    assert_eq!(first.append("b", "\"late\"").await, 4);
    let trim = waiting(&db, &second, "session_trim('b', 5)").await;
    assert_eq!(first.append("b", "\"later\"").await, 5);
    first.commit().await;
    assert_eq!(outcome(trim).await.expect("a trim"), Some(5));
    assert_eq!(outline(&first, "b").await, ["5 append", "6 trim 5"]);
    assert_verifies(&first, "b", 2, 0).await;
    // A target that goes while it is waited for is gone.
    session_of(&first, "c", 4).await;
    for late in ["session_revise('c', '9', target => 0)", "session_erase('c', target => 0)"] {
        first.begin("read committed").await;
        assert_eq!(call(&first, "session_trim('c', 1)").await, 1);
        let about = waiting(&db, &second, late).await;
        first.commit().await;
        assert_sqlstate!(outcome(about).await, "SE011");
        delete(&first, "c").await;
        session_of(&first, "c", 4).await;
    }
    // And one that was rolled back was none.
    first.begin("read committed").await;
    assert_eq!(call(&first, "session_trim('c', 1)").await, 1);
    let revise = waiting(&db, &second, "session_revise('c', '9', target => 0)").await;
    first.rollback().await;
    assert_eq!(outcome(revise).await.expect("a revision"), Some(4));
    assert_verifies(&first, "c", 5, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_that_is_written_meanwhile_protects_what_it_keeps() {
    let db = Database::create("race_trim_summary").await;
    let (first, second) = (db.writer().await, Arc::new(db.writer().await));
    session_of(&first, "s", 4).await;
    first.begin("read committed").await;
    call(&first, "session_append('s', '\"sum\"', kind => 'summary', kept_from => 2)").await;
    let trim = waiting(&db, &second, "session_trim('s', 4)").await;
    first.commit().await;
    assert_eq!(outcome(trim).await.expect("a trim"), Some(2));
    assert_eq!(history(&first, "s").await, ["2 2", "3 3", "4 \"sum\""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_and_a_trim_wait_for_each_other() {
    let db = Database::create("race_trim_branch").await;
    let (first, second) = (db.writer().await, Arc::new(db.writer().await));
    // The branch is there first: nothing is trimmed.
    session_of(&first, "a", 4).await;
    first.begin("read committed").await;
    branch(&first, "a", 1, "b").await;
    let trim = waiting(&db, &second, "session_trim('a', 3)").await;
    first.commit().await;
    assert_eq!(outcome(trim).await.expect("a trim"), Some(0));
    assert_verifies(&first, "a", 4, 0).await;
    assert_verifies(&first, "b", 2, 0).await;
    delete(&first, "b").await;
    // It was taken back.
    first.begin("read committed").await;
    branch(&first, "a", 1, "b").await;
    let trim = waiting(&db, &second, "session_trim('a', 2)").await;
    first.rollback().await;
    assert_eq!(outcome(trim).await.expect("a trim"), Some(2));
    // The trim is there first: the branch point is gone, or the branch begins at the base.
    session_of(&first, "c", 4).await;
    let late = |last: i64| {
        format!(
            "select fork_position from agent_sessions.session_branch('c', at_target => {last}, new_session_id => 'd')"
        )
    };
    first.begin("read committed").await;
    assert_eq!(call(&first, "session_trim('c', 2)").await, 2);
    let gone = waiting_query(&db, &second, &late(1)).await;
    first.commit().await;
    assert_sqlstate!(outcome(gone).await, "SE012");
    first.begin("read committed").await;
    assert_eq!(call(&first, "session_trim('c', 3)").await, 1);
    let kept = waiting_query(&db, &second, &late(3)).await;
    first.commit().await;
    assert_eq!(outcome(kept).await.expect("a branch"), Some(4));
    assert_eq!(history(&first, "d").await, ["3 3"]);
    assert_verifies(&first, "d", 1, 0).await;
}

/// The last two branches that need a hidden source let it go at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn branches_that_cut_off_a_hidden_source_together_leave_nothing_of_it() {
    let db = Database::create("race_trim_collect").await;
    let (first, second) = (db.writer().await, Arc::new(db.writer().await));
    session_of(&first, "a", 2).await;
    for name in ["b", "c"] {
        branch(&first, "a", 1, name).await;
        first.append(name, "2").await;
        first.append(name, "3").await;
    }
    delete(&first, "a").await;
    first.begin("read committed").await;
    assert_eq!(call(&first, "session_trim('b', 3)").await, 1);
    let trim = waiting(&db, &second, "session_trim('c', 3)").await;
    first.commit().await;
    assert_eq!(outcome(trim).await.expect("a trim"), Some(1));
    assert_eq!(stored(&db).await, ["b", "c"]);
    assert_eq!(orphans(&db).await, 0);
    for name in ["b", "c"] {
        assert_verifies(&first, name, 2, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trims_among_appends_leave_a_whole_log() {
    let db = Database::create("race_trim_stress").await;
    let writers = db.writers(6).await;
    session_of(&writers[0], "s", 1).await;
    let sums = together(writers.len(), |number| {
        let writer = writers[number].clone();
        async move {
            let mut removed = 0;
            for _ in 0..40 {
                if number == 0 {
                    let keep_from = (next_position(&writer, "s").await - 3).max(0);
                    removed += call(&writer, &format!("session_trim('s', {keep_from})")).await;
                } else {
                    writer.append("s", "1").await;
                }
            }
            removed
        }
    })
    .await;
    let left = writers[0].log("s").await.len() as i64;
    let next = next_position(&writers[0], "s").await;
    assert_eq!(sums[0] + left, next, "every position is there, or was counted when it went");
    assert!(sums[0] > 0, "trims came between the appends: {sums:?}");
    assert_verifies(&writers[0], "s", left, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_that_waited_for_another_finds_nothing_left() {
    let db = Database::create("race_erase_twice").await;
    let (first, second) = (db.writer().await, Arc::new(db.writer().await));
    for (one, other) in [("a", "a"), ("a", "b"), ("b", "a"), ("b", "d")] {
        session_of(&first, "a", 2).await;
        for name in ["b", "d"] {
            branch(&first, "a", 1, name).await;
        }
        first.begin("read committed").await;
        assert_eq!(call(&first, &format!("session_erase('{one}', item_id => 'i0')")).await, 1);
        let again = waiting(&db, &second, &format!("session_erase('{other}', target => 0)")).await;
        first.commit().await;
        assert_eq!(outcome(again).await.expect("an erasure"), Some(0), "{one}, then {other}");
        assert_eq!(outline(&first, "a").await, ["0 append", "1 append", "2 erase 0"], "{one}, then {other}");
        for session in ["b", "d", "a"] {
            delete(&first, session).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn erasures_of_one_item_at_the_same_time_are_one() {
    let db = Database::create("race_erase").await;
    let writers = db.writers(6).await;
    session_of(&writers[0], "a", 2).await;
    let mut sessions = vec!["a".to_owned()];
    for number in 1..writers.len() {
        sessions.push(format!("b{number}"));
        branch(&writers[0], "a", 1, &sessions[number]).await;
    }
    let erased = together(writers.len(), |number| {
        let (writer, session) = (writers[number].clone(), sessions[number].clone());
        async move { call(&writer, &format!("session_erase('{session}', item_id => 'i0')")).await }
    })
    .await;
    assert_eq!(erased.iter().sum::<i64>(), 1, "{erased:?}");
    assert_eq!(outline(&writers[0], "a").await, ["0 append", "1 append", "2 erase 0"]);
    for session in &sessions {
        assert_verifies(&writers[0], session, if session == "a" { 3 } else { 2 }, 1).await;
    }
}

/// Whatever the other transaction wrote, and whether or not there would have been anything to do.
#[tokio::test(flavor = "multi_thread")]
async fn behind_an_entry_that_the_snapshot_does_not_see_is_a_serialization_failure() {
    let db = Database::create("race_snapshot").await;
    let (winner, loser) = (db.writer().await, db.writer().await);
    for isolation in ["repeatable read", "serializable"] {
        for meanwhile in [
            "session_append('s', '1')",
            "session_trim('s', 1)",
            "session_erase('s', target => 2)",
            "session_retract('s', targets => '{1}')",
        ] {
            for late in [
                "session_trim('s', 2)",
                "session_trim('s', 0)",
                "session_erase('s', target => 3)",
                "session_erase('s', item_id => 'i2')",
                "session_erase('b', target => 0)",
            ] {
                session_of(&winner, "s", 4).await;
                if late.contains("'b'") {
                    if meanwhile.contains("trim") {
                        delete(&winner, "s").await;
                        continue;
                    }
                    branch(&winner, "s", 1, "b").await;
                }
                loser.begin(isolation).await;
                assert_eq!(history(&loser, "s").await.len(), 4);
                call(&winner, meanwhile).await;
                let before = everything(&db).await;
                assert_sqlstate!(try_call(&loser, late).await, "40001");
                loser.rollback().await;
                assert_eq!(everything(&db).await, before, "{isolation}: {meanwhile}, then {late}");
                for session in stored(&db).await {
                    delete(&winner, &session).await;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_the_snapshot_does_not_see_is_needed_all_the_same() {
    let db = Database::create("race_snapshot_branch").await;
    let (first, second) = (db.writer().await, db.writer().await);
    session_of(&first, "a", 4).await;
    second.begin("repeatable read").await;
    assert_eq!(history(&second, "a").await.len(), 4);
    branch(&first, "a", 1, "b").await;
    assert_eq!(call(&second, "session_trim('a', 3)").await, 0);
    second.rollback().await;
    assert_verifies(&first, "a", 4, 0).await;
    assert_verifies(&first, "b", 2, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_goes_on_with_the_log_of_its_snapshot() {
    let db = Database::create("race_snapshot_reader").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    session_of(&writer, "a", 4).await;
    branch(&writer, "a", 1, "b").await;
    writer.append("b", "2").await;
    writer.append("b", "3").await;
    reader.begin("repeatable read").await;
    let seen = (history(&reader, "a").await, history(&reader, "b").await, outline(&reader, "b").await);
    call(&writer, "session_trim('b', 3)").await;
    call(&writer, "session_trim('a', 3)").await;
    call(&writer, "session_erase('a', target => 3)").await;
    assert_eq!((history(&reader, "a").await, history(&reader, "b").await, outline(&reader, "b").await), seen);
    assert_verifies(&reader, "a", 4, 0).await;
    assert_verifies(&reader, "b", 4, 0).await;
    reader.commit().await;
    assert_eq!(history(&reader, "a").await, ["3"]);
    assert_eq!(history(&reader, "b").await, ["3 3"]);
    assert_verifies(&reader, "a", 3, 1).await;
    assert_verifies(&reader, "b", 2, 0).await;
}

/// A whole transaction under one snapshot that nobody disturbs.
#[tokio::test(flavor = "multi_thread")]
async fn alone_under_one_snapshot_all_calls_work_on_what_the_last_left() {
    let db = Database::create("race_snapshot_alone").await;
    let writer = db.writer().await;
    for isolation in ["repeatable read", "serializable"] {
        session_of(&writer, "s", 4).await;
        writer.begin(isolation).await;
        assert_eq!(call(&writer, "session_trim('s', 1)").await, 1);
        assert_eq!(call(&writer, "session_erase('s', item_id => 'i2')").await, 1);
        assert_eq!(writer.append("s", "6").await, 6);
        try_branch(&writer, "'s', at_target => 3, new_session_id => 'b'").await.expect("a branch");
        assert_eq!(call(&writer, "session_erase('b', target => 3)").await, 1);
        assert_eq!(call(&writer, "session_trim('s', 4)").await, 0);
        writer.commit().await;
        assert_eq!(history(&writer, "s").await, ["1 1", "2", "3", "6 6"]);
        assert_eq!(history(&writer, "b").await, ["1 1", "2", "3"]);
        assert_verifies(&writer, "s", 7, 2).await;
        assert_verifies(&writer, "b", 3, 2).await;
        let ops = "select string_agg(op, ' ' order by position) from agent_sessions.session_log('s')";
        assert_eq!(texts(&writer, ops).await, ["append append append trim erase append erase"]);
        for session in ["s", "b"] {
            delete(&writer, session).await;
        }
    }
}
