//! Erasing what branches share: the content goes for all of them, and the log that owned it says so.

use agent_sessions_tests::{Connection, Database, Role, assert_sqlstate};

use super::{
    assert_verifies, branch, call, claim, delete, end_lease, entry, everything, fault_after, history, outline,
    session_of, stored, tamperer, texts, try_branch, try_call,
};

/// `a` with items 0 to 3; `b` from 2 on, `c` from `b`, and `d`, a sibling of `b`.
async fn family(writer: &Connection) {
    session_of(writer, "a", 4).await;
    branch(writer, "a", 2, "b").await;
    branch(writer, "a", 2, "d").await;
    writer.append("b", "\"b3\"").await;
    branch(writer, "b", 3, "c").await;
    writer.append("c", "\"c4\"").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inherited_entry_is_erased_in_the_log_that_owns_it() {
    let db = Database::create("erase_inherited").await;
    let writer = db.writer().await;
    family(&writer).await;
    let digests = async |session: &str| -> Vec<Vec<u8>> {
        writer.log(session).await.into_iter().map(|entry| entry.digest).collect()
    };
    let before = (digests("b").await, digests("c").await, digests("d").await);
    assert_eq!(call(&writer, "session_erase('c', target => 1, reason => 'asked')").await, 1);
    for (session, items) in [
        ("a", vec!["0 0", "1", "2 2", "3 3"]),
        ("b", vec!["0 0", "1", "2 2", "3 \"b3\""]),
        ("c", vec!["0 0", "1", "2 2", "3 \"b3\"", "4 \"c4\""]),
        ("d", vec!["0 0", "1", "2 2"]),
    ] {
        assert_eq!(history(&writer, session).await, items, "{session}");
    }
    assert_eq!(outline(&writer, "a").await, ["0 append", "1 append", "2 append", "3 append", "4 erase 1"]);
    for (session, entries) in [("a", 5), ("b", 4), ("c", 5), ("d", 3)] {
        assert_verifies(&writer, session, entries, 1).await;
    }
    assert_eq!(
        (digests("b").await, digests("c").await, digests("d").await),
        before,
        "the branches' logs are as they were"
    );
    // Once is for all.
    let before = everything(&db).await;
    for session in ["a", "b", "c", "d"] {
        assert_eq!(call(&writer, &format!("session_erase('{session}', target => 1)")).await, 0);
        assert_eq!(call(&writer, &format!("session_erase('{session}', item_id => 'i1')")).await, 0);
    }
    assert_eq!(everything(&db).await, before);
    // In the log between, which is neither the first nor the own one.
    assert_eq!(call(&writer, "session_erase('c', target => 3)").await, 1);
    assert_eq!(outline(&writer, "b").await.len(), 5);
    assert_eq!(history(&writer, "b").await[3], "3");
    assert_eq!(history(&writer, "a").await[3], "3 3");
    for (session, entries, redacted) in [("a", 5, 1), ("b", 5, 2), ("c", 5, 2), ("d", 3, 1)] {
        assert_verifies(&writer, session, entries, redacted).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn by_item_id_the_revisions_in_every_log_of_the_lineage_go() {
    let db = Database::create("erase_lineage").await;
    let writer = db.writer().await;
    session_of(&writer, "a", 2).await;
    let revise = async |session: &str, payload: &str| {
        call(&writer, &format!("session_revise('{session}', '\"{payload}\"', item_id => 'i0')")).await
    };
    assert_eq!(revise("a", "in a").await, 2);
    branch(&writer, "a", 2, "b").await;
    assert_eq!(revise("b", "in b").await, 3);
    assert_eq!(revise("b", "again in b").await, 4);
    branch(&writer, "b", 3, "c").await;
    assert_eq!(revise("c", "in c").await, 4);
    assert_eq!(revise("a", "later in a").await, 3);
    assert_eq!(call(&writer, "session_erase('c', item_id => 'i0', reason => 'asked')").await, 4);
    assert_eq!(history(&writer, "c").await, ["0", "1 1"]);
    // What the others said behind the forks is theirs.
    assert_eq!(history(&writer, "b").await, ["0 \"again in b\"", "1 1"]);
    assert_eq!(history(&writer, "a").await, ["0 \"later in a\"", "1 1"]);
    let erased = "select s.session_id || ' ' || i.position || ' ' || i.payload::text
                  from agent_sessions.session_item i join agent_sessions.session s on s.sid = i.sid
                  where op = 'erase' order by 1";
    assert_eq!(
        texts(&writer, erased).await,
        [
            "a 4 {\"reason\":\"asked\",\"revisions\":[2]}",
            "b 5 {\"reason\":\"asked\",\"revisions\":[3]}",
            "c 5 {\"reason\":\"asked\",\"revisions\":[4]}"
        ]
    );
    for (session, entries, redacted) in [("a", 5, 2), ("b", 6, 3), ("c", 6, 4)] {
        assert_verifies(&writer, session, entries, redacted).await;
    }
    // From the source, its own later revision goes, and the branches keep what is only theirs.
    assert_eq!(call(&writer, "session_erase('a', item_id => 'i0')").await, 1);
    assert_eq!(history(&writer, "a").await, ["0", "1 1"]);
    assert_eq!(history(&writer, "b").await, ["0 \"again in b\"", "1 1"]);
    assert_verifies(&writer, "a", 6, 3).await;
    assert_verifies(&writer, "b", 6, 3).await;
    // A revision alone, where it is inherited.
    assert_eq!(call(&writer, "session_erase('b', target => 4)").await, 1);
    assert_verifies(&writer, "b", 7, 4).await;
    assert_verifies(&writer, "c", 6, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_deleted_ancestor_left_behind_can_be_erased() {
    let db = Database::create("erase_hidden").await;
    let writer = db.writer().await;
    family(&writer).await;
    delete(&writer, "d").await;
    delete(&writer, "a").await;
    delete(&writer, "b").await;
    assert_eq!(stored(&db).await, ["(a)", "(b)", "c"]);
    assert_eq!(call(&writer, "session_erase('c', item_id => 'i0', reason => 'asked')").await, 1);
    assert_eq!(call(&writer, "session_erase('c', target => 3)").await, 1);
    assert_eq!(history(&writer, "c").await, ["0", "1 1", "2 2", "3", "4 \"c4\""]);
    assert_verifies(&writer, "c", 5, 2).await;
    assert_eq!(stored(&db).await, ["(a)", "(b)", "c"]);
    let left = "select count(*) from agent_sessions.session_item
                where op = 'erase' or payload::text in ('0', '\"b3\"')";
    assert_eq!(db.superuser().await.value::<i64>(left, &[]).await, 2, "the two erase entries, and no content");
    // It goes with them, as ever.
    delete(&writer, "c").await;
    assert!(everything(&db).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trimmed_or_own_item_of_the_id_is_not_confused_with_an_inherited_one() {
    let db = Database::create("erase_same_id").await;
    let writer = db.writer().await;
    session_of(&writer, "a", 2).await;
    branch(&writer, "a", 1, "b").await;
    // The same id behind the fork, once in each log.
    for session in ["a", "b"] {
        let own = format!("session_append('{session}', '\"own\"', item_id => 'x')");
        assert_eq!(call(&writer, &own).await, 2);
    }
    assert_eq!(call(&writer, "session_erase('b', item_id => 'x')").await, 1);
    assert_eq!(history(&writer, "a").await, ["0 0", "1 1", "2 \"own\""]);
    assert_eq!(history(&writer, "b").await, ["0 0", "1 1", "2"]);
    assert_eq!(call(&writer, "session_erase('a', target => 2)").await, 1);
    for session in ["a", "b"] {
        assert_verifies(&writer, session, 4, 1).await;
    }
    // What the parent has behind the fork is no entry of the branch's.
    writer.append("a", "4").await;
    assert_sqlstate!(try_call(&writer, "session_erase('b', target => 4)").await, "SE011");
}

/// Chunks are of the log that they were sent to; the item that they are for may be inherited.
#[tokio::test(flavor = "multi_thread")]
async fn the_chunks_for_an_inherited_open_item_go_with_its_content() {
    let db = Database::create("erase_inherited_chunks").await;
    let writer = db.writer().await;
    writer.create_session("a").await;
    call(&writer, "session_append('a', '\"\"', item_id => 'o', open => true)").await;
    branch(&writer, "a", 0, "b").await;
    for session in ["a", "b"] {
        writer.run(&format!("select agent_sessions.session_delta('{session}', 0, 0, 'to {session}')")).await;
    }
    assert_eq!(call(&writer, "session_erase('b', item_id => 'o')").await, 1);
    assert_eq!(writer.value::<i64>("select count(*) from agent_sessions.session_delta", &[]).await, 0);
    for (session, entries) in [("a", 2), ("b", 1)] {
        assert_eq!(history(&writer, session).await, ["0"]);
        assert_verifies(&writer, session, entries, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erase_entry_behind_the_fork_is_missed_through_the_branch() {
    let db = Database::create("erase_inherited_tamper").await;
    let writer = db.writer().await;
    family(&writer).await;
    call(&writer, "session_erase('c', target => 1)").await;
    call(&writer, "session_erase('c', target => 3)").await;
    let tamperer = tamperer(&db).await;
    for (sql, faults) in [
        (format!("delete from agent_sessions.session_item where {}", entry("a", 4)), [Some(1); 4]),
        (format!("update agent_sessions.session_item set target = 2 where {}", entry("a", 4)), [Some(1); 4]),
        (format!("delete from agent_sessions.session_item where {}", entry("b", 4)), [None, Some(3), Some(3), None]),
        (
            format!(
                "update agent_sessions.session_item set payload = null, attrs = null, salt = null where {}",
                entry("a", 2)
            ),
            [Some(2); 4],
        ),
        // A branch's entry explains nothing of what it inherits.
        (
            format!(
                "update agent_sessions.session_item
                 set position = 3, sid = (select sid from agent_sessions.session where session_id = 'd') where {}",
                entry("a", 4)
            ),
            [Some(1), Some(1), Some(1), Some(1)],
        ),
    ] {
        for (session, fault) in ["a", "b", "c", "d"].iter().zip(faults) {
            assert_eq!(fault_after(&tamperer, session, &sql).await, fault, "{session}: {sql}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_the_log_that_owns_the_entry_counts() {
    let db = Database::create("erase_ancestor_lease").await;
    let (writer, other) = (db.writer().await, db.writer().await);
    family(&writer).await;
    let lease = claim(&other, "a").await;
    let before = everything(&db).await;
    for refused in ["target => 1", "item_id => 'i1'"] {
        for session in ["b", "c", "d"] {
            let erase = format!("session_erase('{session}', {refused})");
            assert_sqlstate!(try_call(&writer, &erase).await, "SE009");
        }
    }
    assert_eq!(everything(&db).await, before);
    // Where nothing of the leased log is touched, its lease is nobody's business.
    assert_eq!(call(&writer, "session_erase('c', target => 3)").await, 1);
    // A revision in the branch's own log, and the item's content in the leased one: both or none.
    call(&writer, "session_revise('b', '\"b\"', item_id => 'i1')").await;
    let before = everything(&db).await;
    assert_sqlstate!(try_call(&writer, "session_erase('b', item_id => 'i1')").await, "SE009");
    assert_eq!(everything(&db).await, before);
    writer.run(&format!("set agent_sessions.lease = '{lease}'")).await;
    assert_eq!(call(&writer, "session_erase('b', item_id => 'i1')").await, 2);
    for session in ["a", "b", "c", "d"] {
        assert!(writer.verify(session).await.ok, "{session}");
    }
    // A lost one is refused for the owning log as for any other.
    end_lease(&db, "a").await;
    let before = everything(&db).await;
    assert_sqlstate!(try_call(&writer, "session_erase('d', target => 0)").await, "SE008");
    assert_eq!(everything(&db).await, before);
    writer.run("reset agent_sessions.lease").await;
    assert_eq!(call(&writer, "session_erase('d', target => 0)").await, 1);
}

/// The argument is the lease of the session that the call names; nobody holds the one that owns the entry.
#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_the_branch_serves_to_erase_what_it_inherits() {
    let db = Database::create("erase_branch_lease").await;
    let (writer, other) = (db.writer().await, db.writer().await);
    family(&writer).await;
    let lease = claim(&writer, "b").await;
    assert_sqlstate!(try_call(&other, "session_erase('b', target => 0)").await, "SE009");
    other.run(&format!("set agent_sessions.lease = '{lease}'")).await;
    assert_eq!(call(&other, "session_erase('b', target => 0)").await, 1);
    assert_eq!(call(&writer, &format!("session_erase('b', target => 1, lease => '{lease}')")).await, 1);
    // Both are held: the setting takes both leases.
    let both = format!("{lease},{}", claim(&writer, "a").await);
    other.run(&format!("set agent_sessions.lease = '{both}'")).await;
    assert_eq!(call(&other, "session_erase('b', target => 2)").await, 1);
    assert_verifies(&writer, "b", 4, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_invisible_agents_session_owns_is_not_erased() {
    let db = Database::create("erase_isolated").await;
    let role = db.role("isolated", Some("writer")).await;
    let (writer, isolated) = (db.writer().await, db.connect(Role::Named(role)).await);
    session_of(&writer, "a", 2).await;
    try_branch(&writer, "'a', new_session_id => 'b', new_agent_id => 'x'").await.expect("a branch");
    isolated.run("set agent_sessions.isolation = 'agent'; set agent_sessions.agent = 'x'").await;
    assert_eq!(history(&isolated, "b").await, ["0 0", "1 1"], "it reads what it inherits");
    let before = everything(&db).await;
    assert_sqlstate!(try_call(&isolated, "session_erase('b', target => 0)").await, "SE011");
    assert_eq!(everything(&db).await, before);
    // Deleted or not makes no difference.
    delete(&writer, "a").await;
    let before = everything(&db).await;
    assert_sqlstate!(try_call(&isolated, "session_erase('b', target => 0)").await, "SE011");
    assert_eq!(everything(&db).await, before);
    writer.run("set agent_sessions.agent = 'x'").await;
    assert_eq!(call(&writer, "session_erase('b', target => 0)").await, 1);
    assert_verifies(&isolated, "b", 2, 1).await;
}
