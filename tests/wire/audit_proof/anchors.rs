//! Making anchors: what they cover, in which order, for whom, and beside others that write.

use std::path::Path;

use agent_sessions_tests::{Database, Program, Ran, Role, assert_sqlstate, detail, setting, together};
use serde_json::json;

use super::*;

/// The root of no leaves: SHA-256 of nothing.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The heads of all chains, as a tenant's rows tell.
const HEADS: &str = "
    select json_build_object('chain', 'stream', 'tenant', tenant, 'stream', stream, 'seq', seq, 'hash', hash)::text
    from (select distinct on (stream) * from agent_sessions.audit_event where tenant = $1 order by stream, seq desc) e
    union all
    select json_build_object('chain', 'session', 'tenant', tenant, 'agent_id', agent_id, 'session_id', session_id,
      'position', position, 'digest', encode(digest, 'hex'))::text
    from (select distinct on (s.sid) s.tenant, s.agent_id, s.session_id, i.position, i.digest
          from agent_sessions.session s join agent_sessions.session_item i using (sid)
          where s.tenant = $1 and s.deleted_at is null order by s.sid, i.position desc) e";

/// Runs the implementation in Python, written from the documents alone.
pub async fn python(arguments: &[&str], input: String) -> Ran {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/audit_root.py");
    let script = script.to_str().expect("a path in UTF-8");
    let arguments: Vec<&str> = ["-I", script].iter().chain(arguments).copied().collect();
    Program::new(Path::new(&setting("AGENT_SESSIONS_PYTHON"))).args(arguments).input(input).run().await
}

/// The root and the number of leaves that Python finds of a tenant's chains.
async fn root_by_python(superuser: &Connection, tenant: &str) -> (String, i32) {
    let rows = superuser.query(HEADS, &[&tenant]).await.expect("the heads");
    let ran = python(&["root"], rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect()).await;
    assert!(ran.success, "{}", ran.stderr);
    let told = String::from_utf8(ran.stdout).expect("output in UTF-8");
    let (root, leaves) = told.trim().split_once(' ').expect("a root and a number");
    (root.to_owned(), leaves.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_is_that_of_the_documented_leaves() {
    let db = Database::create("anchor_root").await;
    let (writer, superuser) = (db.writer().await, db.superuser().await);
    let tenant = "Müller \"&\" \\ Söhne";
    writer.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
    let none = anchor(&writer).await;
    assert_eq!((none.root.as_str(), none.chains), (EMPTY, 0));
    assert_eq!(lost(&writer, &none).await, None);

    // Names whose order and spelling differ between collations and JSON writers.
    let streams = ["", "a", "B", "ä", "\u{1F525} \"q\" \\ / <&>", "\u{A0}\u{2028}"];
    let sessions =
        [("", "chat"), ("Bot", "chat"), ("bot", "chat"), ("", "Chat"), ("", "é\""), ("\\", "\u{FFFF}\u{10000}")];
    let mut kept = vec![none];
    let mut leaves = 0;
    for round in 0..streams.len() {
        let (agent, session) = sessions[round];
        fill(&writer, streams[round], round as i64 + 1).await;
        kept.push(anchor(&writer).await);
        let append = "select agent_sessions.session_append($1, '1', on_missing => 'create', agent_id => $2)
                      from generate_series(0, $3)";
        writer.query(append, &[&session, &agent, &(round as i32)]).await.expect("items");
        // No log, no leaf.
        let create = "select session_id from agent_sessions.session_create('empty ' || $1, agent_id => $2)";
        writer.query(create, &[&session, &agent]).await.expect("a session");
        let made = anchor(&writer).await;
        leaves += 2;
        assert_eq!(root_by_python(&superuser, tenant).await, (made.root.clone(), leaves));
        assert_eq!(made.chains, leaves);
        kept.push(made);
    }
    for (number, one) in (1..).zip(&kept) {
        assert_eq!(one.id, number);
        assert_eq!(lost(&writer, one).await, None, "{one:?}");
    }

    let recorded =
        "select a.root, a.chains, count(l.ordinal), min(l.ordinal), max(l.ordinal), count(l.stream), sum(l.seq)::bigint
                    from agent_sessions.audit_anchor a join agent_sessions.audit_anchor_leaf l using (tenant, anchor_id)
                    where anchor_id = $1 group by 1, 2";
    let last = kept.last().expect("the last");
    let row = writer.query_one(recorded, &[&last.id]).await.expect("the anchor");
    assert_eq!((row.get::<_, &str>(0), row.get(1)), (last.root.as_str(), leaves));
    assert_eq!((row.get(2), row.get(3), row.get(4)), (12_i64, 0_i64, 11_i64));
    assert_eq!((row.get(5), row.get(6)), (6_i64, 21_i64));
    let spelt = "select leaf::json ->> 0 || ' ' || (leaf::json ->> 2) || ' ' || (leaf::json ->> 3)
                 from agent_sessions.audit_anchor_leaf where anchor_id = $1 order by ordinal";
    let order: Vec<String> =
        writer.query(spelt, &[&last.id]).await.expect("the leaves").iter().map(|row| row.get(0)).collect();
    assert_eq!(order[..3], ["stream  1", "stream B 3", "stream a 2"]);
    assert_eq!(order[6..10], ["session  Chat", "session  chat", "session Bot chat", "session bot chat"]);
}

/// The caller may see one agent's sessions alone; the anchor is the tenant's.
#[tokio::test(flavor = "multi_thread")]
async fn an_anchor_covers_what_the_callers_agent_does_not_see() {
    let db = Database::create("anchor_agents").await;
    let writer = db.writer().await;
    for agent in ["", "a", "b"] {
        writer
            .run(&format!(
                "select agent_sessions.session_append('s', '1', agent_id => '{agent}', on_missing => 'create')"
            ))
            .await;
    }
    let all = anchor(&writer).await;
    writer.run("set agent_sessions.isolation = 'agent'; set agent_sessions.agent = 'a'").await;
    let sees: i64 = writer.value("select count(*) from agent_sessions.session", &[]).await;
    let isolated = anchor(&writer).await;
    assert_eq!((sees, isolated.chains, isolated.root), (1, 3, all.root.clone()));
    assert_eq!(lost(&writer, &all).await, None);
    tamperer(&db).await.run("delete from agent_sessions.session_item where agent_id = 'b'").await;
    assert!(lost(&writer, &all).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_anchors_do_not_exist() {
    let db = Database::create("anchor_tenants").await;
    let writer = orders(&db).await;
    let theirs = anchor(&writer).await;
    let other = db.writer().await;
    other.run("set agent_sessions.tenant = 'other'").await;
    assert!(lost(&other, &theirs).await.is_some());
    let proof = "select agent_sessions.audit_proof('orders', 1, $1)::text";
    assert_sqlstate!(other.try_value::<String>(proof, &[&theirs.id]).await, "SE011");
    for table in ["audit_anchor", "audit_anchor_leaf"] {
        let rows: i64 = other.value(&format!("select count(*) from agent_sessions.{table}"), &[]).await;
        assert_eq!(rows, 0, "{table}");
    }
    // Each tenant counts its own, and covers its own.
    fill(&other, "orders", 2).await;
    let ours = anchor(&other).await;
    assert_eq!((ours.id, ours.chains), (1, 1));
    assert_eq!(lost_by(&writer, "$1, $2", &[&theirs.root, &ours.id]).await, None);
    assert!(lost_by(&writer, "$1, $2", &[&ours.root, &ours.id]).await.is_some());
    assert!(lost_by(&other, "$1, $2", &[&theirs.root, &theirs.id]).await.is_some());
    let named = detail(&assert_sqlstate!(other.try_value::<String>(proof, &[&2_i64]).await, "SE011"));
    assert_eq!(named["target"], json!(1));
    // What another tenant does is not missed here, nor does it make anything right.
    tamperer(&db).await.run("delete from agent_sessions.audit_event where tenant = 'other'").await;
    assert_eq!(lost(&writer, &theirs).await, None);
    assert!(lost(&other, &ours).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_make_and_check_an_anchor() {
    let db = Database::create("anchor_roles").await;
    let writer = orders(&db).await;
    let kept = anchor(&writer).await;
    let auditor = db.connect(Role::Named(db.role("auditor", Some("auditor")).await)).await;
    auditor.run("set agent_sessions.tenant = 'acme'").await;
    assert_eq!(lost(&auditor, &kept).await, None);
    let proof: String = auditor.value("select agent_sessions.audit_proof('orders', 2)::text", &[]).await;
    let check = "select agent_sessions.audit_check_proof($1::text::json, $2)";
    assert!(auditor.value::<bool>(check, &[&proof, &kept.root]).await);
    assert_sqlstate!(try_anchor(&auditor).await, "42501");
    let (reader, stranger) = (db.reader().await, db.stranger().await);
    for nobody in [&reader, &stranger] {
        for call in [
            "select * from agent_sessions.audit_anchor()",
            "select * from agent_sessions.audit_check_anchor('x')",
            "select agent_sessions.audit_proof('orders', 1)",
            "select agent_sessions.audit_check_proof('{}', 'x')",
            "select * from agent_sessions.audit_anchor",
            "select * from agent_sessions.audit_anchor_leaf",
        ] {
            assert_sqlstate!(nobody.query(call, &[]).await, "42501");
        }
    }
    let admin = admin(&db).await;
    for change in [
        "insert into agent_sessions.audit_anchor values ('acme', 9, 'x', 1, now())",
        "update agent_sessions.audit_anchor set root = 'x'",
        "delete from agent_sessions.audit_anchor",
        "insert into agent_sessions.audit_anchor_leaf values ('acme', 1, 9, 'x')",
        "update agent_sessions.audit_anchor_leaf set leaf = 'x'",
        "delete from agent_sessions.audit_anchor_leaf",
        "truncate agent_sessions.audit_anchor",
        "update agent_sessions.audit_chain set base_seq = 2",
    ] {
        assert_sqlstate!(admin.batch_execute(change).await, "42501");
    }
    let owner = db.owner().await;
    for table in ["audit_anchor", "audit_anchor_leaf"] {
        assert_sqlstate!(owner.batch_execute(&format!("truncate agent_sessions.{table}")).await, "SE014");
    }
    writer.run("begin read only").await;
    assert_eq!(lost(&writer, &kept).await, None);
    assert_sqlstate!(try_anchor(&writer).await, "25006");
}

#[tokio::test(flavor = "multi_thread")]
async fn anchors_at_the_same_time_get_ids_of_their_own() {
    let db = Database::create("anchor_ids").await;
    let writer = db.writer().await;
    fill(&writer, "orders", 3).await;
    let writers = db.writers(8).await;
    let made = together(8, |number| {
        let writer = writers[number].clone();
        async move {
            let mut made = Vec::new();
            for _ in 0..10 {
                made.push(anchor(&writer).await);
            }
            made
        }
    })
    .await;
    let mut ids: Vec<i64> = made.iter().flatten().map(|anchor| anchor.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..=80).collect::<Vec<_>>());
    assert!(made.iter().flatten().all(|anchor| anchor.root == made[0][0].root), "nothing was written between");

    // Whatever the isolation level, one that waited for another does not take its number.
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let (first, second) = (db.writer().await, db.writer().await);
        first.begin(isolation).await;
        let before = anchor(&first).await;
        second.begin(isolation).await;
        second.run("select 1 from agent_sessions.session").await;
        let pid = second.pid;
        let waiting = tokio::spawn(async move {
            let made = anchor(&second).await;
            second.commit().await;
            made
        });
        db.wait_until_blocked(pid).await;
        first.commit().await;
        let after = waiting.await.expect("the task");
        assert_eq!(after.id, before.id + 1, "{isolation}");
        assert_eq!(lost(&writer, &after).await, None, "{isolation}");
    }
    // What is rolled back has no number.
    writer.begin("read committed").await;
    fill(&writer, "orders", 1).await;
    let undone = anchor(&writer).await;
    writer.rollback().await;
    assert!(lost(&writer, &undone).await.is_some());
    assert_eq!(anchor(&writer).await.id, undone.id);
}

/// The heads of an anchor are those of one moment, and what the trail tells of later counts from then on.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_while_an_anchor_waits_for_its_turn_is_accepted() {
    let db = Database::create("anchor_waits").await;
    let writer = db.writer().await;
    admin_of_all(&db, "delete").await;
    writer.run("select agent_sessions.session_append('doomed', '1', on_missing => 'create')").await;
    let (first, second) = (db.writer().await, db.writer().await);
    first.begin("read committed").await;
    anchor(&first).await;
    let pid = second.pid;
    let waiting = tokio::spawn(async move { anchor(&second).await });
    db.wait_until_blocked(pid).await;
    writer.run("select agent_sessions.session_delete('doomed')").await;
    first.commit().await;
    assert_eq!(lost(&writer, &waiting.await.expect("the task")).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_after_an_anchors_snapshot_is_accepted() {
    let db = Database::create("anchor_snapshot").await;
    let writer = db.writer().await;
    admin_of_all(&db, "delete").await;
    writer.run("select agent_sessions.session_append('doomed', '1', on_missing => 'create')").await;
    let later = db.writer().await;
    later.begin("repeatable read").await;
    later.run("select 1 from agent_sessions.session").await;
    writer.run("select agent_sessions.session_delete('doomed')").await;
    let made = anchor(&later).await;
    later.commit().await;
    assert_eq!(lost(&writer, &made).await, None);
}

/// Has the empty tenant's trail tell of what is done.
async fn admin_of_all(db: &Database, what: &str) {
    let admin = admin(db).await;
    admin.run(&format!("set agent_sessions.tenant = ''; select agent_sessions.audit_track('{what}', true)")).await;
}

/// Writers of streams and logs, who also trim, branch, delete and prune; none of it is missed by an anchor that was made meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn anchors_beside_writers_are_of_one_moment() {
    const ROUNDS: usize = 40;
    let db = Database::create("anchor_writers").await;
    admin_of_all(&db, "delete").await;
    let writers = db.writers(5).await;
    let pruner = std::sync::Arc::new(admin(&db).await);
    pruner.run("set agent_sessions.tenant = ''").await;
    let made = together(6, |number| {
        let (writer, pruner) = (writers[number.min(4)].clone(), pruner.clone());
        async move {
            let mut made = Vec::new();
            for round in 0..ROUNDS {
                match number {
                    0 | 1 => made.push(anchor(&writer).await),
                    2 => fill(&writer, &format!("stream {}", round % 3), 2).await,
                    3 => {
                        let session = format!("s{}", round / 4);
                        let work = [
                            format!("session_append('{session}', '1', on_missing => 'create')"),
                            format!("session_append('{session}', '2')"),
                            format!("session_trim('{session}', 2)"),
                            format!("session_delete('{session}')"),
                        ];
                        writer.run(&format!("select agent_sessions.{}", work[round % 4])).await;
                    }
                    4 => {
                        writer
                            .run(&format!(
                                "select agent_sessions.session_append('t', '1', on_missing => 'create');
                                 select 1 from agent_sessions.session_branch('t', new_session_id => 't{round}')"
                            ))
                            .await;
                    }
                    _ => {
                        let anchored =
                            "select max(seq) from agent_sessions.audit_anchor_leaf where stream = 'stream 0'";
                        let before: Option<i64> = pruner.value(anchored, &[]).await;
                        if let Some(before) = before {
                            prune(&pruner, "stream 0", before).await.expect("pruned");
                        }
                    }
                }
            }
            made
        }
    })
    .await;
    let checking = db.writer().await;
    let made: Vec<Anchor> = made.into_iter().flatten().collect();
    assert_eq!(made.len(), 2 * ROUNDS);
    for one in &made {
        assert_eq!(lost(&checking, one).await, None, "{one:?}");
    }
    assert!(verdicts(&checking, "").await.values().all(|verdict| verdict.fault.is_none()));
}
