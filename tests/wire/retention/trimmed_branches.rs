//! Trimming beside branches: nothing goes that one of them needs, and a branch that leaves its inheritance lets it go.

use agent_sessions_tests::{Database, assert_sqlstate};

use super::{
    assert_verifies, branch, call, delete, everything, fault_after, history, next_position, orphans, outline,
    session_of, stored, tamperer, texts, try_branch,
};

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_trimmed_while_a_branch_needs_it() {
    let db = Database::create("trim_needed").await;
    let writer = db.writer().await;
    session_of(&writer, "a", 6).await;
    branch(&writer, "a", 2, "b").await;
    let before = everything(&db).await;
    // Below the fork, at it, and behind it alike.
    for keep_from in [1, 3, 4, 6, 100] {
        for force in ["", ", force => true"] {
            assert_eq!(call(&writer, &format!("session_trim('a', {keep_from}{force})")).await, 0);
        }
    }
    assert_eq!(everything(&db).await, before, "nothing is written to remove nothing");
    delete(&writer, "b").await;
    assert_eq!(stored(&db).await, ["a"]);
    assert_eq!(call(&writer, "session_trim('a', 4)").await, 4);
    assert_verifies(&writer, "a", 3, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hidden_branch_needs_its_source_as_long_as_its_own_branches_do() {
    let db = Database::create("trim_needed_hidden").await;
    let writer = db.writer().await;
    session_of(&writer, "a", 4).await;
    branch(&writer, "a", 2, "b").await;
    writer.append("b", "\"b\"").await;
    branch(&writer, "b", 3, "c").await;
    delete(&writer, "b").await;
    assert_eq!(stored(&db).await, ["a", "(b)", "c"]);
    assert_eq!(call(&writer, "session_trim('a', 2)").await, 0);
    delete(&writer, "c").await;
    assert_eq!(stored(&db).await, ["a"]);
    assert_eq!(call(&writer, "session_trim('a', 2)").await, 2);
    assert_verifies(&writer, "a", 3, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn branches_that_inherit_nothing_hold_nothing() {
    let db = Database::create("trim_unneeded").await;
    let writer = db.writer().await;
    session_of(&writer, "a", 4).await;
    try_branch(&writer, "'a', inherit => false, new_session_id => 'b', seed => '1'").await.expect("a branch");
    let at_the_start = "insert into agent_sessions.session (tenant, agent_id, session_id, branched_from, fork_position)
                        select '', '', 'c', sid, 0 from agent_sessions.session where session_id = 'a'";
    assert_eq!(writer.execute(at_the_start, &[]).await.expect("a raw branch"), 1);
    writer.append("c", "1").await;
    assert_eq!(call(&writer, "session_trim('a', 2)").await, 2);
    assert_verifies(&writer, "a", 3, 0).await;
    for branch in ["b", "c"] {
        assert_eq!(history(&writer, branch).await, ["0 1"]);
        assert_verifies(&writer, branch, 1, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_trims_none_of_what_it_inherits() {
    let db = Database::create("trim_inherited").await;
    let writer = db.writer().await;
    session_of(&writer, "a", 4).await;
    branch(&writer, "a", 2, "b").await;
    writer.append("b", "\"b\"").await;
    let before = everything(&db).await;
    for keep_from in [0, 1, 2, 3] {
        assert_eq!(call(&writer, &format!("session_trim('b', {keep_from}, force => true)")).await, 0);
    }
    assert_eq!(everything(&db).await, before);
    // Nor through the summary that keeps some of it.
    writer.run("select agent_sessions.session_append('b', '\"sum\"', kind => 'summary', kept_from => 1)").await;
    assert_eq!(call(&writer, "session_trim('b', 100)").await, 0);
    assert_eq!(history(&writer, "b").await, ["0 0", "1 1", "2 2", "3 \"b\"", "4 \"sum\""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_trims_behind_its_fork_cuts_its_inheritance_off() {
    let db = Database::create("trim_behind_fork").await;
    let writer = db.writer().await;
    session_of(&writer, "a", 4).await;
    branch(&writer, "a", 2, "b").await;
    for payload in ["3", "4", "5"] {
        writer.append("b", &format!("\"b{payload}\"")).await;
    }
    call(&writer, "session_revise('b', '\"revised\"', target => 1)").await;
    call(&writer, "session_retract('b', targets => '{0}')").await;
    assert_eq!(call(&writer, "session_trim('b', 5)").await, 2, "its own entries before the base");
    assert_eq!(outline(&writer, "b").await, ["5 append", "6 revise 1", "7 retract 0", "8 trim 5"]);
    assert_eq!(history(&writer, "b").await, ["5 \"b5\""]);
    assert_verifies(&writer, "b", 4, 0).await;
    assert_eq!(next_position(&writer, "b").await, 9);
    // The source has lost nothing, and is free of it.
    assert_eq!(history(&writer, "a").await, ["0 0", "1 1", "2 2", "3 3"]);
    assert_verifies(&writer, "a", 4, 0).await;
    let lineage = "select depth || ' ' || session_id from agent_sessions.session_lineage('b')";
    assert_eq!(texts(&writer, lineage).await, ["0 b", "1 a"], "where it came from stays known");
    assert_eq!(call(&writer, "session_trim('a', 2)").await, 2);
    delete(&writer, "a").await;
    assert_eq!(stored(&db).await, ["b"], "deleted, not hidden");
    assert_eq!(writer.append("b", "9").await, 9);
    assert_eq!(history(&writer, "b").await, ["5 \"b5\"", "9 9"]);
    assert_verifies(&writer, "b", 5, 0).await;
    // What it inherited is no target any more, and its ids are free.
    for gone in ["session_revise('b', '9', target => 1)", "session_erase('b', item_id => 'i1')"] {
        assert_sqlstate!(super::try_call(&writer, gone).await, "SE011");
    }
    assert_eq!(call(&writer, "session_append('b', '1', item_id => 'i1')").await, 10);
    assert_eq!(orphans(&db).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn hidden_ancestors_go_when_the_last_branch_has_cut_them_off() {
    let db = Database::create("trim_collects").await;
    let writer = db.writer().await;
    session_of(&writer, "root", 3).await;
    branch(&writer, "root", 1, "middle").await;
    writer.append("middle", "2").await;
    for leaf in ["x", "y"] {
        branch(&writer, "middle", 2, leaf).await;
        writer.append(leaf, "3").await;
        writer.append(leaf, "4").await;
    }
    delete(&writer, "root").await;
    delete(&writer, "middle").await;
    assert_eq!(stored(&db).await, ["(middle)", "(root)", "x", "y"]);
    assert_eq!(call(&writer, "session_trim('x', 4)").await, 1);
    assert_eq!(stored(&db).await, ["(middle)", "(root)", "x", "y"], "y needs them");
    assert_eq!(history(&writer, "y").await, ["0 0", "1 1", "2 2", "3 3", "4 4"]);
    assert_verifies(&writer, "y", 5, 0).await;
    assert_eq!(call(&writer, "session_trim('y', 4)").await, 1);
    assert_eq!(stored(&db).await, ["x", "y"]);
    assert_eq!(orphans(&db).await, 0);
    for leaf in ["x", "y"] {
        assert_eq!(history(&writer, leaf).await, ["4 4"]);
        assert_verifies(&writer, leaf, 2, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_hidden_ancestor_that_nobody_needs_goes() {
    let db = Database::create("trim_collects_some").await;
    let writer = db.writer().await;
    session_of(&writer, "root", 3).await;
    branch(&writer, "root", 1, "middle").await;
    writer.append("middle", "2").await;
    branch(&writer, "middle", 2, "leaf").await;
    writer.append("leaf", "3").await;
    writer.append("leaf", "4").await;
    // A branch of the middle one's that reads the root only.
    branch(&writer, "middle", 0, "early").await;
    branch(&writer, "root", 0, "sibling").await;
    delete(&writer, "root").await;
    delete(&writer, "middle").await;
    call(&writer, "session_trim('leaf', 4)").await;
    assert_eq!(stored(&db).await, ["early", "leaf", "(middle)", "(root)", "sibling"]);
    delete(&writer, "early").await;
    assert_eq!(stored(&db).await, ["leaf", "(root)", "sibling"]);
    assert_verifies(&writer, "sibling", 1, 0).await;
    assert_verifies(&writer, "leaf", 2, 0).await;
    assert_eq!(orphans(&db).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_of_a_trimmed_log_begins_at_its_base() {
    let db = Database::create("trim_then_branch").await;
    let writer = db.writer().await;
    session_of(&writer, "a", 5).await;
    call(&writer, "session_trim('a', 1)").await;
    call(&writer, "session_trim('a', 2)").await;
    // The trim entries stand behind one fork and before the other.
    for (last, name, entries) in [(3, "early", 3), (6, "late", 6)] {
        branch(&writer, "a", last, name).await;
        assert_eq!(writer.append(name, "\"b\"").await, last + 1);
        assert_verifies(&writer, name, entries, 0).await;
        assert_eq!(history(&writer, name).await[0], "2 2");
    }
    let tamperer = tamperer(&db).await;
    for (sql, position) in [
        ("delete from agent_sessions.session_item where op = 'trim' and target = 2", 2),
        ("update agent_sessions.session set base_digest = sha256('x') where session_id = 'a'", 2),
        ("update agent_sessions.session set base_position = 3 where session_id = 'a'", 3),
        ("update agent_sessions.session set base_position = 0, base_digest = null where session_id = 'a'", 0),
    ] {
        for name in ["a", "early", "late"] {
            assert_eq!(fault_after(&tamperer, name, sql).await, Some(position), "{name}: {sql}");
        }
    }
    // The branch cuts off a source that was trimmed itself.
    writer.append("late", "\"last\"").await;
    delete(&writer, "early").await;
    delete(&writer, "a").await;
    assert_eq!(stored(&db).await, ["(a)", "late"]);
    assert_eq!(call(&writer, "session_trim('late', 8)").await, 1);
    assert_eq!(stored(&db).await, ["late"]);
    assert_verifies(&writer, "late", 2, 0).await;
}

/// By raw SQL, too, a branch begins behind an entry that is there.
#[tokio::test(flavor = "multi_thread")]
async fn no_branch_forks_at_or_before_the_base() {
    let db = Database::create("trim_fork_at_base").await;
    let writer = db.writer().await;
    session_of(&writer, "a", 4).await;
    call(&writer, "session_trim('a', 2)").await;
    let fork = |at: i64| {
        format!(
            "insert into agent_sessions.session (tenant, agent_id, session_id, branched_from, fork_position)
             select '', '', 'at {at}', sid, {at} from agent_sessions.session where session_id = 'a'"
        )
    };
    for gone in [0, 1, 2] {
        assert_sqlstate!(writer.execute(&fork(gone), &[]).await, "SE012");
    }
    writer.execute(&fork(3), &[]).await.expect("a branch behind the first entry");
    assert_eq!(writer.append("at 3", "\"b\"").await, 3);
    assert_eq!(history(&writer, "at 3").await, ["2 2", "3 \"b\""]);
    assert_verifies(&writer, "at 3", 2, 0).await;
}
