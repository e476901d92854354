//! A branch exports whole, and comes back as a session of its own.

use agent_sessions_tests::{Branch, Database, assert_sqlstate};

use super::*;
use crate::branch_readers::{change, family, flatten as flat_copy};
use crate::branches::{call_of, lineage, sample};
use crate::hiding::{assert_tidy, deleted};
use crate::items::Random;

const NO_DIGESTS: &str =
    "select (l.position, op, target, kind, item_id, tag, author, payload::text, attrs, created_at)::text
     from agent_sessions.session_log(session_id => $1::text) l";

/// Its own entries keep their digests, so that an anchor that covered them holds; what it inherited is chained anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_comes_back_by_itself() {
    let db = Database::create("import_branch").await;
    let (writer, admin) = (db.writer().await, db.owner().await);
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("b").at_target(6)).await;
    writer.append("b", "7").await;
    writer.branch("b", "c").await;
    call_of(&writer, "session_revise('{s}', '30', item_id => 'd')", "c").await;
    call_of(&writer, "session_delta('{s}', target => 4, chunk_no => 0, chunk => 'its own')", "c").await;
    let (log, history) = (texts(&writer, NO_DIGESTS, &[&"c"]).await, texts(&writer, HISTORY, &[&"c", &""]).await);
    let own = "select digest from agent_sessions.session_log('c', after => 7)";
    let digest: Vec<u8> = writer.value(own, &[]).await;
    let root: String = writer.value("select root from agent_sessions.audit_anchor()", &[]).await;
    let lines = export(&writer, "c").await;
    assert_eq!([count_of(&lines, "ancestor"), count_of(&lines, "entry"), count_of(&lines, "chunk")], [2, 9, 1]);
    deleted(&writer, "c").await;
    assert_eq!(import(&writer, &lines).await, 9);
    assert_eq!(texts(&writer, NO_DIGESTS, &[&"c"]).await, log);
    assert_eq!(texts(&writer, HISTORY, &[&"c", &""]).await, history);
    assert_eq!(writer.value::<Vec<u8>>(own, &[]).await, digest);
    writer.assert_dense("c", 9).await;
    let anchored = "select ok from agent_sessions.audit_check_anchor($1::text)";
    assert!(admin.value::<bool>(anchored, &[&root]).await);
    assert_eq!(lineage(&writer, "c").await, ["0 c 8"], "it needs nobody");
    // From here on it is flat: exported again, it comes back line by line.
    let flat = export(&writer, "c").await;
    assert_eq!(count_of(&flat, "ancestor"), 0);
    deleted(&writer, "c").await;
    import(&writer, &flat).await;
    assert_eq!(export(&writer, "c").await, flat);
    writer.append("c", "9").await;
    writer.branched(Branch::of("c").named("d").at_target(3)).await;
    writer.append("d", "4").await;
    writer.assert_dense("c", 10).await;
    writer.assert_dense("d", 5).await;
    assert_tidy(&db).await;
}

/// What explains a trimmed beginning and erased entries stands in the ancestors' logs, behind the fork.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_in_what_is_inherited_stays_explained() {
    let db = Database::create("import_explained").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    call_of(&writer, "session_trim('{s}', keep_from => 2)", "s").await;
    writer.branched(Branch::of("s").named("b").at_target(8)).await;
    writer.append("b", "9").await;
    writer.branch("b", "c").await;
    for (session, target) in [("s", 6), ("c", 3), ("c", 9)] {
        call_of(&writer, &format!("session_erase('{{s}}', target => {target}, reason => 'asked')"), session).await;
    }
    let lines = export(&writer, "c").await;
    assert_eq!(count_of(&lines, "explanation"), 4, "{}", lines.join("\n"));
    super::program::assert_whole(&lines).await;
    let before = writer.verify("c").await;
    for name in ["copy", "c"] {
        if name == "c" {
            deleted(&writer, "c").await;
        }
        assert_eq!(try_import_as(&writer, &lines, Some(name), None).await.expect("an import"), 14);
        let verdict = writer.verify(name).await;
        assert!(verdict.ok, "{verdict:?}");
        assert_eq!((verdict.redacted, verdict.entries), (before.redacted, before.entries + 4));
        let reasons =
            "select count(*) from agent_sessions.session_log($1::text) where op = 'erase' and imported_at is not null
            and payload ->> 'reason' = 'asked'";
        assert_eq!(writer.value::<i64>(reasons, &[&name]).await, 3);
        let again = export(&writer, name).await;
        super::program::assert_whole(&again).await;
        deleted(&writer, name).await;
        import(&writer, &again).await;
        assert_eq!(export(&writer, name).await, again);
    }
    // Where the branch has no entry of its own, what explains stands right at the joint.
    writer.branched(Branch::of("s").named("d").at_target(8)).await;
    let lines = export(&writer, "d").await;
    deleted(&writer, "d").await;
    assert_eq!(import(&writer, &lines).await, 12);
    let verdict = writer.verify("d").await;
    assert!(verdict.ok, "{verdict:?}");
    let again = export(&writer, "d").await;
    super::program::assert_whole(&again).await;
    writer.append("d", "12").await;
    assert!(writer.verify("d").await.ok);
}

/// Families of branches at random: at every depth, what was imported reads as what was exported.
#[tokio::test(flavor = "multi_thread")]
async fn branches_at_any_depth_read_as_before() {
    let (db, other) = (Database::create("export_family").await, Database::create("import_family").await);
    let (writer, reader, owner) = (db.writer().await, other.reader().await, db.owner().await);
    let target = other.writer().await;
    let mut all = Vec::new();
    for seed in [3, 40_427] {
        let mut random = Random(seed);
        let family = family(&writer, &mut random, &format!("f{seed}")).await;
        for session in &family {
            change(&writer, &mut random, session).await;
        }
        for session in &family {
            let lines = export(&writer, session).await;
            import(&target, &lines).await;
            all.extend(lines);
            assert!(reader.verify(session).await.ok, "seed {seed}: {session}");
            for what in [
                NO_DIGESTS,
                "select (h.position, payload::text, open, delta_text)::text
                from agent_sessions.session_history(session_id => $1::text) h",
            ] {
                assert_eq!(
                    texts(&reader, what, &[session]).await,
                    texts(&writer, what, &[session]).await,
                    "seed {seed}: {session}"
                );
            }
        }
        // The same as what a flat copy says.
        let last = family.last().expect("a session");
        let flat = format!("{last} flat");
        flat_copy(&owner, last, &flat).await;
        assert_eq!(texts(&reader, NO_DIGESTS, &[last]).await, texts(&writer, NO_DIGESTS, &[&flat]).await);
    }
    super::program::assert_whole(&all).await;
}

/// A branch that inherits nothing any more, or never did.
#[tokio::test(flavor = "multi_thread")]
async fn branches_without_an_inheritance_come_back_line_by_line() {
    let db = Database::create("import_forks").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("none").inherit(false)).await;
    let zero = "insert into agent_sessions.session (session_id, branched_from, fork_position)
                select 'zero', sid, 0 from agent_sessions.session where session_id = 's'";
    writer.run(zero).await;
    writer.branched(Branch::of("s").named("trimmed").at_target(3)).await;
    writer.branched(Branch::of("s").named("flat").at_target(3)).await;
    writer.branched(Branch::of("s").named("flat, trimmed").at_target(3)).await;
    writer.branched(Branch::of("s").named("flat, trimmed to its fork").at_target(3)).await;
    for session in ["none", "zero", "trimmed", "flat", "flat, trimmed", "flat, trimmed to its fork"] {
        for payload in ["1", "2", "3"] {
            writer.append(session, payload).await;
        }
        if session.starts_with("flat") {
            call_of(&writer, "session_flatten('{s}')", session).await;
        }
        if session.contains("trimmed") {
            let base = if session.ends_with("fork") { 4 } else { 5 };
            call_of(&writer, &format!("session_trim('{{s}}', keep_from => {base})"), session).await;
        }
        let lines = export(&writer, session).await;
        assert_eq!(count_of(&lines, "ancestor"), 0, "{session}");
        super::program::assert_whole(&lines).await;
        deleted(&writer, session).await;
        import(&writer, &lines).await;
        assert_eq!(export(&writer, session).await, lines, "{session}");
        assert!(writer.verify(session).await.ok, "{session}");
        writer.append(session, "4").await;
        assert!(writer.verify(session).await.ok, "{session}");
        assert!(try_import_as(&writer, &lines, Some("other"), None).await.is_ok(), "{session}");
        assert!(writer.verify("other").await.ok, "{session}");
        deleted(&writer, "other").await;
    }
    // And one that has no entry yet, whose first one follows its genesis.
    writer.branched(Branch::of("s").named("empty").inherit(false)).await;
    writer.run(&zero.replace("'zero'", "'zero, empty'")).await;
    for session in ["empty", "zero, empty"] {
        let lines = export(&writer, session).await;
        deleted(&writer, session).await;
        assert_eq!(import(&writer, &lines).await, 0);
        writer.append(session, "1").await;
        assert!(writer.verify(session).await.ok, "{session}");
        assert_eq!(export(&writer, session).await.len(), 3);
    }
}

/// The lines name the sessions that a branch inherits from, which isolation does not let the caller know.
#[tokio::test(flavor = "multi_thread")]
async fn what_isolation_keeps_from_an_agent_is_not_exported_either() {
    let db = Database::create("export_isolated").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    let make = "select agent_sessions.session_branch('s', new_session_id => 'theirs', new_agent_id => 'two');
                select agent_sessions.session_append('own', '1', agent_id => 'two', on_missing => 'create');
                select agent_sessions.session_branch('own', new_session_id => 'of own', agent_id => 'two')";
    writer.run(make).await;
    let reader = db.reader().await;
    let lines =
        |session: &str| format!("select count(*) from agent_sessions.session_export('{session}', agent_id => 'two')");
    assert!(reader.value::<i64>(&lines("theirs"), &[]).await > 2);
    reader.run("set agent_sessions.isolation = agent; set agent_sessions.agent = 'two'").await;
    for session in ["own", "of own"] {
        assert!(reader.value::<i64>(&lines(session), &[]).await > 2, "{session}");
    }
    assert_sqlstate!(reader.batch_execute(&lines("theirs")).await, "42501");
    writer.run("select agent_sessions.session_flatten('theirs', agent_id => 'two')").await;
    assert!(reader.value::<i64>(&lines("theirs"), &[]).await > 2, "it is whole by itself now");
}
