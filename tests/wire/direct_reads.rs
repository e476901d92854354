//! Pages are read without a statement where nobody could tell; what the owner adds to the tables, and what the caller may not see,
//! holds for them as for any SELECT.

use agent_sessions_tests::{Append, Connection, Database, Role, assert_sqlstate};

use crate::direct_writes;
use crate::items::Random;

/// How often a policy asked for the tenant: not at all, where no statement ran.
async fn statements(connection: &Connection, call: &str) -> i64 {
    direct_writes::calls(connection, "visible_tenant", call).await
}

/// A database that counts calls, with a log of four items.
async fn logged(name: &str) -> Database {
    let db = direct_writes::counted(name).await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    for payload in ["0", "1", "2", "3"] {
        Append::to("s", payload).tag("t").author("ann").run(&writer).await.expect("an append");
    }
    db
}

async fn positions(connection: &Connection, call: &str) -> Vec<i64> {
    let rows = connection.query(&format!("select position from agent_sessions.{call}"), &[]).await.expect("a page");
    rows.iter().map(|row| row.get(0)).collect()
}

const PAGE: &str = "session_history('s', max_rows => 2, newest_first => true)";

#[tokio::test(flavor = "multi_thread")]
async fn a_page_runs_no_statement() {
    let db = logged("direct_reads").await;
    let writer = db.writer().await;
    writer.branch("s", "b").await;
    writer.append("b", "4").await;
    for role in [Role::Reader, Role::Writer] {
        let connection = db.connect(role.clone()).await;
        for call in [
            PAGE,
            "session_history('s')",
            "session_history('s', after => 1, before => 3)",
            "session_history('b', max_rows => 3, newest_first => true)",
            "session_history('b')",
            "session_log('b', max_rows => 3, newest_first => true)",
            "session_log('s')",
            "session_stats('s')",
        ] {
            assert_eq!(statements(&connection, call).await, 0, "{role:?} {call}");
        }
        // A label is looked up by a statement.
        assert_eq!(statements(&connection, "session_history('s', tags => '{t}')").await, 1, "{role:?}");
    }
}

/// A connection that has read before learns of it with the next page, and again when it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_owner_adds_to_the_policies_holds_for_a_page() {
    let db = logged("direct_policies").await;
    let (owner, reader) = (db.owner().await, db.reader().await);
    assert_eq!(positions(&reader, PAGE).await, [3, 2]);
    for (add, remove, shown) in [
        (
            "create policy extra on agent_sessions.session_item as restrictive using (position < 3)",
            "drop policy extra on agent_sessions.session_item",
            &[2, 1][..],
        ),
        (
            "create policy extra on agent_sessions.session as restrictive for select using (session_id <> 's')",
            "drop policy extra on agent_sessions.session",
            &[],
        ),
    ] {
        owner.run(add).await;
        assert_eq!(positions(&reader, PAGE).await, shown, "{add}");
        owner.run(remove).await;
        assert_eq!(positions(&reader, PAGE).await, [3, 2], "{remove}");
        assert_eq!(statements(&reader, PAGE).await, 0, "{remove}");
    }
}

/// Whatever the connection has found out before.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_needs_what_a_select_needs() {
    let db = logged("direct_reading_rights").await;
    let (owner, reader) = (db.owner().await, db.reader().await);
    let role = db.role_name(&Role::Reader);
    for table in ["session", "session_item"] {
        assert_eq!(positions(&reader, PAGE).await, [3, 2]);
        owner.run(&format!("revoke select on agent_sessions.{table} from {role}")).await;
        assert_sqlstate!(reader.batch_execute(&format!("select from agent_sessions.{PAGE}")).await, "42501");
        owner.run(&format!("grant select on agent_sessions.{table} to {role}")).await;
    }
    reader.run("set row_security = off").await;
    assert_sqlstate!(reader.batch_execute(&format!("select from agent_sessions.{PAGE}")).await, "42501");
    reader.run("reset row_security").await;
    reader.run("set agent_sessions.tenant = 'other'").await;
    assert_eq!(positions(&reader, PAGE).await, [0_i64; 0]);
    reader.run("reset agent_sessions.tenant").await;
    assert_eq!(positions(&reader, PAGE).await, [3, 2]);
}

/// Also where it says nothing of the positions that are there.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_with_a_hole_is_read_to_its_end() {
    let db = logged("direct_holes").await;
    let (superuser, reader) = (db.superuser().await, db.reader().await);
    let tamper = "set session_replication_role = replica;
                  delete from agent_sessions.session_item where position = 1;
                  update agent_sessions.session_item set position = 4000000000 where position = 3;
                  reset session_replication_role";
    superuser.run(tamper).await;
    for call in ["session_history('s', max_rows => 3", "session_log('s', max_rows => 3"] {
        assert_eq!(positions(&reader, &format!("{call})")).await, [0, 2, 4_000_000_000], "{call}");
        let newest = positions(&reader, &format!("{call}, newest_first => true)")).await;
        assert_eq!(newest, [4_000_000_000, 2, 0], "{call}");
    }
}

/// Each connection remembers where it saw a log end.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_log_is_found_after_a_rollback_and_behind_what_others_append() {
    let db = logged("direct_ends").await;
    let (writer, other) = (db.writer().await, db.writer().await);
    writer.begin("read committed").await;
    for position in 4..10 {
        assert_eq!(writer.append("s", "1").await, position);
    }
    writer.rollback().await;
    assert_eq!(positions(&writer, PAGE).await, [3, 2]);
    assert_eq!(writer.append("s", "1").await, 4);
    for position in 5..8 {
        assert_eq!(other.append("s", "1").await, position);
    }
    assert_eq!(positions(&writer, PAGE).await, [7, 6]);
    assert_eq!(writer.append("s", "1").await, 8);
    writer.begin("repeatable read").await;
    assert_eq!(positions(&writer, PAGE).await, [8, 7]);
    assert_eq!(other.append("s", "1").await, 9);
    assert_eq!(positions(&other, PAGE).await, [9, 8]);
    assert_eq!(positions(&writer, PAGE).await, [8, 7]);
    writer.rollback().await;
    assert!(writer.verify("s").await.ok);
}

/// All that readers show of a session, whole and in pages.
async fn shown(connection: &Connection, session: &str) -> Vec<String> {
    let mut shown = Vec::new();
    for reader in ["session_history", "session_log", "session_context"] {
        let pages = match reader {
            "session_context" => vec!["", ", max_rows => 3"],
            _ => vec![
                "",
                ", newest_first => true",
                ", max_rows => 5",
                ", max_rows => 5, newest_first => true",
                ", after => 3, before => 30, max_rows => 7",
                ", after => 3, before => 30, max_rows => 7, newest_first => true",
            ],
        };
        for page in pages {
            let sql = format!("select r::text from agent_sessions.{reader}('{session}'{page}) r");
            let rows = connection.query(&sql, &[]).await.expect("a page");
            shown.push(format!("{sql}: {:?}", rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>()));
        }
    }
    shown
}

/// Some items are changed far more often than others, also in ancestors behind the fork.
#[tokio::test(flavor = "multi_thread")]
async fn with_and_without_statements_the_same_is_shown() {
    let seed = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_nanos() as u64;
    println!("seed {seed}");
    let mut random = Random(seed);
    let db = logged("direct_same").await;
    let (owner, writer, reader) = (db.owner().await, db.writer().await, db.reader().await);
    writer.create_session("s0").await;
    let mut sessions = vec!["s0".to_owned()];
    for step in 0..400 {
        let session = sessions[random.below(sessions.len())].clone();
        let next = writer.log(&session).await.len() as i64;
        let target = if random.below(2) == 0 { 2 } else { random.below(next.max(1) as usize) as i64 };
        let call = match random.below(20) {
            0 if sessions.len() < 6 => {
                let branch = format!("s{}", sessions.len());
                let call = format!("session_branch('{session}', new_session_id => '{branch}')");
                sessions.push(branch);
                call
            }
            0..=5 => format!("session_append('{session}', '{step}')"),
            6 => format!("session_append('{session}', '{step}', kept_from => {target})"),
            7 => format!("session_append('{session}', '{step}', open => true)"),
            8 if random.below(4) == 0 => format!("session_retract('{session}', from_target => {target})"),
            8..=10 => format!("session_retract('{session}', targets => '{{{target}}}')"),
            _ => format!("session_revise('{session}', '{step}', target => {target}, attrs => '{{\"step\": {step}}}')"),
        };
        // What is refused is another test's business.
        let _ = writer.batch_execute(&format!("select agent_sessions.{call}")).await;
    }
    for session in &sessions {
        assert_eq!(statements(&reader, &format!("session_log('{session}')")).await, 0);
        let without = shown(&reader, session).await;
        for table in ["session", "session_item"] {
            owner.run(&format!("create policy extra on agent_sessions.{table} as restrictive using (true)")).await;
        }
        assert_ne!(statements(&reader, &format!("session_log('{session}')")).await, 0);
        let with = shown(&reader, session).await;
        for table in ["session", "session_item"] {
            owner.run(&format!("drop policy extra on agent_sessions.{table}")).await;
        }
        for (without, with) in without.iter().zip(&with) {
            assert_eq!(without, with, "{session}");
        }
        let lengths = without.iter().map(String::len).sum::<usize>();
        assert!(lengths > 1_000, "{session}: {lengths}");
    }
}
