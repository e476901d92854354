//! What the triggers hold of trimming when raw SQL tries it.

use agent_sessions_tests::{Connection, Database, assert_sqlstate};

use super::{assert_verifies, call, entry, everything, history, outline, session_of, tamperer};

/// Each statement is refused with this code, and nothing changes.
async fn assert_refused(db: &Database, connection: &Connection, code: &str, statements: &[&str]) {
    let before = everything(db).await;
    for sql in statements {
        assert_sqlstate!(connection.execute(*sql, &[]).await, code);
        assert_eq!(everything(db).await, before, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_trims_and_erases_by_function_only() {
    let db = Database::create("trim_raw_writer").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 4).await;
    call(&writer, "session_trim('s', 2)").await;
    let denied = [
        "delete from agent_sessions.session_item",
        "delete from agent_sessions.session_item where position = 2",
        "delete from agent_sessions.session_delta",
        "update agent_sessions.session set base_position = 3",
        "update agent_sessions.session set base_digest = null",
        "update agent_sessions.session set base_position = base_position",
        "update agent_sessions.session_item set payload = null",
        "update agent_sessions.session_item set attrs = null, payload = null, salt = null where position = 2",
        "insert into agent_sessions.session (session_id, base_position, base_digest) values ('t', 1, sha256('x'))",
    ];
    assert_refused(&db, &writer, "42501", &denied).await;
    let entries = [
        "insert into agent_sessions.session_item (sid, op, target, payload)
         select sid, 'trim', 3, '{}' from agent_sessions.session",
        "insert into agent_sessions.session_item (sid, op, target, payload)
         select sid, 'erase', 3, '{\"reason\": null, \"revisions\": []}' from agent_sessions.session",
        "insert into agent_sessions.session_item (sid, position, op, target, payload)
         select sid, 5, 'erase', 0, '{}' from agent_sessions.session",
    ];
    assert_refused(&db, &writer, "SE014", &entries).await;
    assert_verifies(&writer, "s", 3, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_deletes_nothing_that_is_not_below_the_base() {
    let db = Database::create("trim_raw_delete").await;
    let (writer, owner, superuser) = (db.writer().await, db.owner().await, db.superuser().await);
    session_of(&writer, "s", 5).await;
    session_of(&writer, "other", 5).await;
    call(&writer, "session_trim('s', 3)").await;
    let kept: Vec<String> = (3..6)
        .map(|position| format!("delete from agent_sessions.session_item where {}", entry("s", position)))
        .collect();
    let mut refused: Vec<&str> = kept.iter().map(String::as_str).collect();
    // The other session's base is not this one's.
    let other = format!("delete from agent_sessions.session_item where {}", entry("other", 1));
    refused.extend(["delete from agent_sessions.session_item", "truncate agent_sessions.session_item", &other]);
    assert_refused(&db, &owner, "SE014", &refused).await;
    assert_refused(&db, &superuser, "SE014", &refused).await;

    // What a restore has brought back below the base may go, and only that.
    let tamperer = tamperer(&db).await;
    let again = "insert into agent_sessions.session_item
                 select (select sid from agent_sessions.session where session_id = 's'), position, tenant, agent_id, op,
                   kind, 'again ' || position, tag, author, target, payload, attrs, salt, content_digest, digest, created_at
                 from agent_sessions.session_item where sid = (
                   select sid from agent_sessions.session where session_id = 'other') and position < 3";
    tamperer.run(again).await;
    assert_refused(&db, &owner, "SE014", &refused).await;
    let below =
        format!("delete from agent_sessions.session_item where {}", entry("s", 2).replace("position =", "position <="));
    assert_eq!(owner.execute(&below, &[]).await.expect("what is below the base"), 3);
    assert_verifies(&writer, "s", 3, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_base_moves_only_on_to_where_a_trim_entry_says() {
    let db = Database::create("trim_raw_base").await;
    let (writer, owner, superuser) = (db.writer().await, db.owner().await, db.superuser().await);
    session_of(&writer, "s", 6).await;
    session_of(&writer, "untrimmed", 6).await;
    call(&writer, "session_trim('s', 2)").await;
    call(&writer, "session_trim('s', 4)").await;
    let head = |change: &str| format!("update agent_sessions.session set {change} where session_id = 's'");
    let digest =
        |position: i64| format!("(select digest from agent_sessions.session_item where {})", entry("s", position));
    let moves = [
        // Back to the first trim's, which its entry still names.
        head(
            "base_position = 2, base_digest = (
               select decode(payload ->> 'base_digest', 'hex') from agent_sessions.session_item
               where op = 'trim' and target = 2)",
        ),
        head("base_position = 0, base_digest = null"),
        // Without an entry, or with another digest than the entry's.
        head(&format!("base_position = 5, base_digest = {}", digest(4))),
        head("base_digest = sha256('x')"),
        "update agent_sessions.session set base_position = 1, base_digest = sha256('x') where session_id = 'untrimmed'"
            .to_owned(),
    ];
    let moves: Vec<&str> = moves.iter().map(String::as_str).collect();
    assert_refused(&db, &owner, "SE014", &moves).await;
    assert_refused(&db, &superuser, "SE014", &moves).await;

    // An entry that names another digest does not help, and one of another session's neither.
    let trim = |target: i64, digest: &str| {
        format!(
            "insert into agent_sessions.session_item (sid, op, target, payload)
             select sid, 'trim', {target}, json_build_object('base_digest', {digest})
             from agent_sessions.session where session_id = 's'"
        )
    };
    owner.run(&trim(5, "encode(sha256('x'), 'hex')")).await;
    assert_refused(&db, &owner, "SE014", &[&head(&format!("base_position = 5, base_digest = {}", digest(4)))]).await;
    for payload in ["3", "null", "[]", "\"base_digest\"", "{\"base_digest\": 3}", "{\"base_digest\": null}"] {
        let odd = "insert into agent_sessions.session_item (sid, op, target, payload)
                   select sid, 'trim', 5, $1::text::json from agent_sessions.session where session_id = 's'";
        owner.execute(odd, &[&payload]).await.expect("an entry of the owner's");
    }
    assert_refused(&db, &owner, "SE014", &[&head("base_position = 5, base_digest = sha256('y')")]).await;
    assert_verifies(&writer, "s", 11, 0).await;
    // All three steps by hand are a trim like any other.
    owner.run(&trim(5, &format!("encode({}, 'hex')", digest(4)))).await;
    owner.run(&head(&format!("base_position = 5, base_digest = {}", digest(4)))).await;
    owner.run(&format!("delete from agent_sessions.session_item where {}", entry("s", 4))).await;
    assert_eq!(history(&writer, "s").await, ["5 5"]);
    assert_eq!(outline(&writer, "s").await[0], "5 append");
    assert_verifies(&writer, "s", 11, 0).await;
    assert_eq!(call(&writer, "session_trim('s', 6)").await, 1);
    assert_verifies(&writer, "s", 11, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_takes_the_whole_trim_back() {
    let db = Database::create("trim_rollback").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 4).await;
    let before = everything(&db).await;
    writer.begin("read committed").await;
    assert_eq!(call(&writer, "session_trim('s', 2)").await, 2);
    writer.run("savepoint a").await;
    assert_eq!(call(&writer, "session_trim('s', 3)").await, 1);
    writer.run("rollback to a").await;
    assert_eq!(outline(&writer, "s").await, ["2 append", "3 append", "4 trim 2"]);
    assert_verifies(&writer, "s", 3, 0).await;
    assert_eq!(call(&writer, "session_trim('s', 3)").await, 1);
    writer.rollback().await;
    assert_eq!(everything(&db).await, before);
    assert_verifies(&writer, "s", 4, 0).await;
}
