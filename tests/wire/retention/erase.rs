//! Erasing: the content goes for good, the chain still verifies, and the log says that and why it went.

use agent_sessions_tests::{Append, Connection, Database, Item, assert_sqlstate, detail};
use serde_json::{Value, json};

use super::{
    assert_verifies, call, entry, everything, fault_after, history, items, outline, session_of, tamperer, texts,
    try_call,
};

/// A log with an entry of every kind. Items: 0 (revised at 4 and 6), 1 (retracted), 2 (open), 3 (a summary).
async fn with_every_kind(db: &Database) -> Connection {
    let writer = db.writer().await;
    writer
        .run(
            "select session_id from agent_sessions.session_create('s');
             select agent_sessions.session_append('s', '\"first\"', item_id => 'a', tag => 't', author => 'u',
               attrs => '{\"n\": 0}');
             select agent_sessions.session_append('s', '\"1\"', item_id => 'b', attrs => '{\"n\": 1}');
             select agent_sessions.session_append('s', '\"\"', item_id => 'c', open => true);
             select agent_sessions.session_append('s', '\"sum\"', item_id => 'd', kind => 'summary', kept_from => 0);
             select agent_sessions.session_revise('s', '\"second\"', item_id => 'a', attrs => '{\"n\": 4}');
             select agent_sessions.session_retract('s', item_ids => '{b}');
             select agent_sessions.session_revise('s', '\"third\"', item_id => 'a', attrs => '{\"n\": 6}');
             select agent_sessions.session_append('s', '\"7\"');
             select agent_sessions.session_retract('s', from_target => 7);
             select agent_sessions.session_delta('s', 2, 0, 'chunk ');
             select agent_sessions.session_delta('s', 2, 1, 'by chunk')",
        )
        .await;
    assert_verifies(&writer, "s", 9, 0).await;
    writer
}

/// What remains of an entry when its content is gone.
fn without_content(entry: &Item) -> Item {
    Item { payload: None, attrs: None, ..entry.clone() }
}

/// Erases by these arguments; of the log, exactly the content of these entries is gone, and one entry was added.
async fn assert_erased(writer: &Connection, arguments: &str, place: i64, gone: &[i64]) {
    let before = writer.log("s").await;
    assert_eq!(call(writer, &format!("session_erase('s', {arguments})")).await, gone.len() as i64, "{arguments}");
    let after = writer.log("s").await;
    let expected: Vec<Item> = before
        .iter()
        .map(|entry| if gone.contains(&entry.position) { without_content(entry) } else { entry.clone() })
        .collect();
    assert_eq!(after[..before.len()], expected, "{arguments}");
    assert_eq!(after.len(), before.len() + 1, "{arguments}");
    let last = outline(writer, "s").await.pop().expect("an entry");
    assert_eq!(last, format!("{} erase {place}", before.len()), "{arguments}");
    let salts = format!(
        "select count(*) from agent_sessions.session_item where salt is null and content_digest is not null
           and position = any (array[{}]::bigint[])",
        gone.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
    );
    assert_eq!(writer.value::<i64>(&salts, &[]).await, gone.len() as i64, "{arguments}");
    assert!(writer.verify("s").await.ok, "{arguments}");
}

async fn said(connection: &Connection, position: i64) -> Value {
    let log = connection.log("s").await;
    let entry = log.iter().find(|entry| entry.position == position).expect("an entry");
    serde_json::from_str(entry.payload.as_deref().expect("a payload")).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn by_target_one_entry_loses_its_content_and_no_other() {
    let db = Database::create("erase_target").await;
    let writer = with_every_kind(&db).await;
    let live = ["0 \"third\"", "2 \"\"", "3 \"sum\""];
    // Superseded ones: what is live stays.
    assert_erased(&writer, "target => 0", 0, &[0]).await;
    assert_eq!(history(&writer, "s").await, live);
    assert_erased(&writer, "target => 4", 4, &[4]).await;
    assert_eq!(history(&writer, "s").await, live);
    assert_eq!(items(&writer, "live_item order by position").await, live);
    // The live one: the item stays, and shows that its content is gone.
    assert_erased(&writer, "target => 6", 6, &[6]).await;
    assert_eq!(history(&writer, "s").await, ["0", live[1], live[2]]);
    assert_eq!(items(&writer, "live_item order by position").await, ["0", live[1], live[2]]);
    assert_erased(&writer, "target => 3", 3, &[3]).await;
    assert_eq!(items(&writer, "session_context('s')").await, ["3", "0", live[1]]);
    assert_verifies(&writer, "s", 13, 4).await;
    let stats = "select concat_ws(' ', kind, items, bytes) from agent_sessions.session_stats('s')";
    assert_eq!(texts(&writer, stats).await, ["message 2 2", "summary 1 0"]);
    let attrs = "select concat_ws(' ', position) from agent_sessions.session_history('s', attrs => '{}')";
    assert!(texts(&writer, attrs).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn by_item_id_the_item_and_all_its_revisions_lose_their_contents() {
    let db = Database::create("erase_item").await;
    let writer = with_every_kind(&db).await;
    assert_erased(&writer, "item_id => 'a', reason => 'asked to, by e-mail'", 0, &[0, 4, 6]).await;
    assert_eq!(said(&writer, 9).await, json!({"reason": "asked to, by e-mail", "revisions": [4, 6]}));
    assert_eq!(history(&writer, "s").await, ["0", "2 \"\"", "3 \"sum\""]);
    assert_verifies(&writer, "s", 10, 3).await;
    let names = "select concat_ws(' ', item_id, tag, author, revised_at_position)
                 from agent_sessions.session_history('s', tags => '{t}')";
    assert_eq!(texts(&writer, names).await, ["a t u 6"], "names stay, as the chain needs them");
    // A summary has no revision; a reason need not be given.
    assert_erased(&writer, "item_id => 'd'", 3, &[3]).await;
    assert_eq!(said(&writer, 10).await, json!({"reason": null, "revisions": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_time_there_is_nothing_to_erase_and_nothing_is_written() {
    let db = Database::create("erase_twice").await;
    let writer = with_every_kind(&db).await;
    assert_erased(&writer, "target => 4", 4, &[4]).await;
    // What is left of the item goes now.
    assert_erased(&writer, "item_id => 'a'", 0, &[0, 6]).await;
    let before = everything(&db).await;
    for again in ["target => 0", "target => 4", "target => 6", "item_id => 'a'", "item_id => 'a', reason => 'again'"] {
        assert_eq!(call(&writer, &format!("session_erase('s', {again})")).await, 0, "{again}");
    }
    assert_eq!(everything(&db).await, before);
    assert_verifies(&writer, "s", 11, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_content_and_what_is_malformed_is_refused() {
    let db = Database::create("erase_refused").await;
    let (writer, reader) = (with_every_kind(&db).await, db.reader().await);
    call(&writer, "session_erase('s', target => 0)").await;
    call(&writer, "session_append('s', '10')").await;
    let long = format!("target => 4, reason => '{}'", "x".repeat(501));
    let before = everything(&db).await;
    for (arguments, target, item_id) in [
        ("target => 5", json!(5), Value::Null),
        ("target => 8", json!(8), Value::Null),
        ("target => 9", json!(9), Value::Null),
        ("target => 11", json!(11), Value::Null),
        ("target => 9223372036854775807", json!(i64::MAX), Value::Null),
        ("item_id => 'unused'", Value::Null, json!("unused")),
    ] {
        let error = assert_sqlstate!(try_call(&writer, &format!("session_erase('s', {arguments})")).await, "SE011");
        let told = detail(&error);
        assert_eq!((&told["target"], &told["item_id"]), (&target, &item_id), "{arguments}");
    }
    for (arguments, argument) in [
        ("reason => 'why'", "target"),
        ("target => 0, item_id => 'a'", "target"),
        ("target => -1", "target"),
        ("item_id => ''", "item_id"),
        ("item_id => E'a\\nb'", "item_id"),
        ("target => 4, reason => ''", "reason"),
        ("target => 4, reason => E'a\\nb'", "reason"),
        (long.as_str(), "reason"),
    ] {
        let error = assert_sqlstate!(try_call(&writer, &format!("session_erase('s', {arguments})")).await, "SE001");
        assert_eq!(detail(&error)["argument"], json!(argument), "{arguments}");
    }
    assert_sqlstate!(try_call(&writer, "session_erase('missing', target => 0)").await, "SE002");
    assert_sqlstate!(try_call(&writer, "session_erase('missing')").await, "SE001");
    writer.run("set agent_sessions.tenant = 'other'").await;
    assert_sqlstate!(try_call(&writer, "session_erase('s', target => 4)").await, "SE002");
    writer.run("reset agent_sessions.tenant").await;
    assert_sqlstate!(try_call(&reader, "session_erase('s', target => 4)").await, "42501");
    assert_eq!(everything(&db).await, before);
    // 500 characters are a reason.
    let reason = "\u{1F680}".repeat(500);
    assert_eq!(call(&writer, &format!("session_erase('s', target => 4, reason => '{reason}')")).await, 1);
    assert_eq!(said(&writer, 11).await["reason"], json!(reason));
    // A trim entry is none either.
    assert_eq!(call(&writer, "session_trim('s', 7, force => true)").await, 7);
    for gone in [0, 12] {
        assert_sqlstate!(try_call(&writer, &format!("session_erase('s', target => {gone})")).await, "SE011");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retracted_and_open_items_are_erased_with_their_chunks() {
    let db = Database::create("erase_open").await;
    let writer = with_every_kind(&db).await;
    assert_erased(&writer, "item_id => 'b'", 1, &[1]).await;
    assert_erased(&writer, "target => 7", 7, &[7]).await;
    assert_eq!(history(&writer, "s").await, ["0 \"third\"", "2 \"\"", "3 \"sum\""]);
    let chunks = "select count(*) from agent_sessions.session_delta";
    assert_eq!(writer.value::<i64>(chunks, &[]).await, 2);
    assert_erased(&writer, "item_id => 'c'", 2, &[2]).await;
    assert_eq!(writer.value::<i64>(chunks, &[]).await, 0);
    let open = "select concat_ws(' ', position, open, coalesce(delta_text, 'no text'))
                from agent_sessions.session_history('s', item_ids => '{c}')";
    assert_eq!(texts(&writer, open).await, ["2 t no text"], "it is still open");
    assert_eq!(call(&writer, "session_revise('s', '\"closed\"', target => 2)").await, 12);
    assert_eq!(history(&writer, "s").await, ["0 \"third\"", "2 \"closed\"", "3 \"sum\""]);
    assert_verifies(&writer, "s", 13, 3).await;
    // The same by target.
    assert_eq!(call(&writer, "session_append('s', '\"\"', open => true)").await, 13);
    writer.run("select agent_sessions.session_delta('s', 13, 0, 'x')").await;
    assert_erased(&writer, "target => 13", 13, &[13]).await;
    assert_eq!(writer.value::<i64>(chunks, &[]).await, 0);
}

/// Chunks that came after the erasure of an open item's own content are content, too.
#[tokio::test(flavor = "multi_thread")]
async fn chunks_that_are_streamed_to_an_erased_item_can_be_erased_again() {
    let db = Database::create("erase_open_again").await;
    let writer = with_every_kind(&db).await;
    call(&writer, "session_erase('s', item_id => 'c')").await;
    assert_eq!(writer.value::<i32>("select agent_sessions.session_delta('s', 2, 0, 'more')", &[]).await, 1);
    assert_eq!(call(&writer, "session_erase('s', item_id => 'c')").await, 0, "no entry had a content");
    assert_eq!(writer.value::<i64>("select count(*) from agent_sessions.session_delta", &[]).await, 0);
    assert!(writer.verify("s").await.ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_id_of_an_erased_item_stays_used() {
    let db = Database::create("erase_ids").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 3).await;
    for id in ["i0", "i1", "i2"] {
        call(&writer, &format!("session_erase('s', item_id => '{id}')")).await;
    }
    let append =
        async |payload: &str, word: &str| Append::to("s", payload).item_id("i1").on_conflict(word).run(&writer).await;
    for payload in ["1", "2", "null"] {
        let error = assert_sqlstate!(append(payload, "error").await, "SE010");
        assert_eq!(detail(&error)["position"], json!(1));
        assert_eq!(append(payload, "keep").await.expect("the item's position"), 1);
        let raw = "insert into agent_sessions.session_item (sid, item_id, payload)
                   select sid, 'i1', $1::text::json from agent_sessions.session";
        assert_sqlstate!(writer.execute(raw, &[&payload]).await, "SE010");
    }
    assert_verifies(&writer, "s", 6, 3).await;
    assert_eq!(append("\"new\"", "replace").await.expect("the item's position"), 1);
    assert_eq!(outline(&writer, "s").await[6..], ["6 revise 1"]);
    assert_eq!(history(&writer, "s").await, ["0", "1 \"new\"", "2"]);
    assert_eq!(call(&writer, "session_revise('s', '\"new\"', item_id => 'i0')").await, 7);
    assert_eq!(call(&writer, "session_retract('s', item_ids => '{i2}')").await, 1);
    assert_eq!(history(&writer, "s").await, ["0 \"new\"", "1 \"new\""]);
    assert_verifies(&writer, "s", 9, 3).await;
    // The new content can be erased, too.
    assert_eq!(call(&writer, "session_erase('s', item_id => 'i1')").await, 1);
    assert_eq!(said(&writer, 9).await, json!({"reason": null, "revisions": [6]}));
    assert_eq!(history(&writer, "s").await, ["0 \"new\"", "1"]);
    assert_verifies(&writer, "s", 10, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_log_can_be_trimmed_and_an_erase_entry_that_is_trimmed_is_needed_no_more() {
    let db = Database::create("erase_trim").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 4).await;
    for id in ["i0", "i3"] {
        call(&writer, &format!("session_erase('s', item_id => '{id}')")).await;
    }
    assert_eq!(call(&writer, "session_trim('s', 2)").await, 2);
    assert_verifies(&writer, "s", 5, 1).await;
    assert_eq!(call(&writer, "session_trim('s', 6)").await, 4);
    assert_verifies(&writer, "s", 2, 0).await;
}

/// The owner may do by hand what the function does, and nothing more.
#[tokio::test(flavor = "multi_thread")]
async fn a_raw_update_is_an_erasure_that_an_erase_entry_names_or_refused() {
    let db = Database::create("erase_raw").await;
    let (writer, owner, superuser) = (with_every_kind(&db).await, db.owner().await, db.superuser().await);
    call(&writer, "session_erase('s', target => 1)").await;
    let set = |position: i64, change: &str| {
        format!("update agent_sessions.session_item set {change} where {}", entry("s", position))
    };
    let nulls = "payload = null, attrs = null, salt = null";
    let before = everything(&db).await;
    // Not named by an erase entry: items, revisions, entries without a content.
    let mut refused: Vec<String> = [0, 2, 3, 4, 6, 7].iter().map(|position| set(*position, nulls)).collect();
    // Named, but not an erasure.
    refused.extend(["payload = '1'", "attrs = '{}'", "salt = gen_random_uuid()"].map(|change| set(1, change)));
    for change in [
        "created_at = created_at + interval '1 s'",
        "digest = content_digest",
        "content_digest = digest",
        "item_id = null",
        "item_id = 'z'",
        "kind = 'other'",
        "tag = 'tag'",
        "author = 'x'",
        "target = 0",
        "tenant = 'x'",
        "agent_id = 'x'",
        "op = 'open'",
    ] {
        refused.extend([set(1, change), set(1, &format!("{change}, {nulls}"))]);
    }
    for sql in &refused {
        for connection in [&owner, &superuser] {
            assert_sqlstate!(connection.execute(sql, &[]).await, "SE014");
        }
        assert_sqlstate!(writer.execute(sql, &[]).await, "42501");
    }
    assert_eq!(everything(&db).await, before);

    // An entry that names it makes the same statement an erasure.
    let name = "insert into agent_sessions.session_item (sid, op, target, payload)
                select sid, 'erase', 3, '{\"reason\": \"by hand\", \"revisions\": []}' from agent_sessions.session";
    owner.run(name).await;
    assert_verifies(&writer, "s", 11, 1).await;
    assert_eq!(owner.execute(&set(3, nulls), &[]).await.expect("an erasure"), 1);
    assert_verifies(&writer, "s", 11, 2).await;
    assert_eq!(history(&writer, "s").await, ["0 \"third\"", "2 \"\"", "3"]);
}

/// An entry for one content is none for another: not for a revision beside it, and not for what came later.
#[tokio::test(flavor = "multi_thread")]
async fn an_erase_entry_allows_no_more_than_what_it_tells_of() {
    let db = Database::create("erase_covers").await;
    let (writer, owner) = (with_every_kind(&db).await, db.owner().await);
    let tamperer = tamperer(&db).await;
    call(&writer, "session_erase('s', target => 0)").await;
    call(&writer, "session_erase('s', item_id => 'd')").await;
    call(&writer, "session_revise('s', '\"later\"', item_id => 'd')").await;
    for (position, what) in [(4, "a revision of an item that was erased alone"), (11, "a revision after the erasure")] {
        let redact = format!(
            "update agent_sessions.session_item set payload = null, attrs = null, salt = null where {}",
            entry("s", position)
        );
        assert_eq!(fault_after(&tamperer, "s", &redact).await, Some(position), "{what}");
        assert_sqlstate!(owner.execute(&redact, &[]).await, "SE014");
    }
    assert_verifies(&writer, "s", 12, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_that_went_without_its_erase_entry_is_found() {
    let db = Database::create("erase_tamper").await;
    let writer = with_every_kind(&db).await;
    call(&writer, "session_erase('s', item_id => 'a', reason => 'asked')").await;
    writer.append("s", "10").await;
    let tamperer = tamperer(&db).await;
    let set = |position: i64, change: &str| {
        format!("update agent_sessions.session_item set {change} where {}", entry("s", position))
    };
    for (sql, position) in [
        (set(1, "payload = null, attrs = null, salt = null"), 1),
        (set(7, "payload = null, attrs = null, salt = null"), 7),
        (set(5, "salt = null"), 5),
        // Without its payload it tells of its target alone, not of the revisions.
        (set(9, "payload = null, salt = null"), 4),
        // An erased content cannot be given another, with or without a salt.
        (set(0, "salt = gen_random_uuid(), payload = '1'"), 0),
        (set(4, "salt = gen_random_uuid(), payload = '1'"), 4),
        (set(0, "content_digest = sha256('x')"), 0),
        (set(6, "target = 3"), 6),
        // What the erase entry says.
        (format!("delete from agent_sessions.session_item where {}", entry("s", 9)), 0),
        (set(9, "op = 'trim'"), 0),
        (set(9, "target = 1"), 0),
        (set(9, "payload = '{\"reason\": null, \"revisions\": [4, 6]}'"), 9),
        (set(9, "created_at = created_at + interval '1 s'"), 9),
    ] {
        assert_eq!(fault_after(&tamperer, "s", &sql).await, Some(position), "{sql}");
    }
    assert_verifies(&writer, "s", 11, 3).await;
}
