//! Trimming: exactly the entries before keep_from go, and the log goes on and verifies from there.

use agent_sessions_tests::{Append, Connection, Database, Item, assert_sqlstate, detail};
use serde_json::{Value, json};

use super::{
    assert_verifies, call, entry, everything, fault_after, history, items, next_position, outline, session_of,
    tamperer, texts, try_branch, try_call,
};

async fn summary(writer: &Connection, payload: &str, kept_from: i64) -> i64 {
    Append::to("s", payload).kind("summary").kept_from(kept_from).run(writer).await.expect("a summary")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The log after a trim is its end before, and the entry that says so.
fn assert_trimmed(before: &[Item], after: &[Item], base: i64) {
    let base = base as usize;
    let (trim, kept) = after.split_last().expect("a log has an entry");
    assert_eq!(kept, &before[base..], "what is kept stays byte for byte");
    assert_eq!((trim.position, trim.op.as_str()), (before.len() as i64, "trim"));
    let said: Value = serde_json::from_str(trim.payload.as_deref().expect("a payload")).expect("JSON");
    assert_eq!(said, json!({ "base_digest": hex(&before[base - 1].digest) }));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_removes_exactly_what_lies_before_keep_from() {
    let db = Database::create("trim_exactly").await;
    let writer = db.writer().await;
    for base in 1..5 {
        let session = format!("s{base}");
        session_of(&writer, &session, 5).await;
        session_of(&writer, "other", 5).await;
        let before = writer.log(&session).await;
        assert_eq!(call(&writer, &format!("session_trim('{session}', {base})")).await, base);
        assert_trimmed(&before, &writer.log(&session).await, base);
        assert_eq!(outline(&writer, &session).await.last().expect("a log"), &format!("5 trim {base}"));
        assert_verifies(&writer, &session, 6 - base, 0).await;
        assert_verifies(&writer, "other", 5, 0).await;
        assert_eq!(history(&writer, "other").await.len(), 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_go_on_behind_the_trim_entry() {
    let db = Database::create("trim_positions").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 4).await;
    assert_eq!(call(&writer, "session_trim('s', 2)").await, 2);
    assert_eq!(next_position(&writer, "s").await, 5);
    let stale = assert_sqlstate!(Append::to("s", "1").expected_position(4).run(&writer).await, "SE007");
    assert_eq!(detail(&stale), json!({"expected": 4, "actual": 5}));
    assert_eq!(Append::to("s", "5").expected_position(5).run(&writer).await.expect("the next position"), 5);
    assert_eq!(writer.raw_append_at("s", 6, "6").await.expect("the next position"), 1);
    assert_eq!(writer.append_batch("s", r#"[{"payload":7},{"payload":8}]"#).await, [7, 8]);
    assert_eq!(call(&writer, "session_revise('s', '\"3\"', target => 3)").await, 9);
    assert_eq!(call(&writer, "session_retract('s', targets => '{2}')").await, 1);
    assert_eq!(history(&writer, "s").await, ["3 \"3\"", "5 5", "6 6", "7 7", "8 8"]);
    assert_verifies(&writer, "s", 9, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_reader_shows_the_log_from_the_base_on() {
    let db = Database::create("trim_readers").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    writer.create_session("s").await;
    for position in 0..6 {
        let payload = format!("\"{position}\"");
        Append::to("s", &payload)
            .kind(if position % 2 == 0 { "even" } else { "odd" })
            .item_id(&format!("i{position}"))
            .tag("t")
            .attrs(r#"{"a": 1}"#)
            .run(&writer)
            .await
            .expect("an append");
    }
    assert_eq!(call(&writer, "session_trim('s', 3)").await, 3);
    let kept = ["3 \"3\"", "4 \"4\"", "5 \"5\""];
    for all in [
        "session_history('s')",
        "session_history('s', after => 2)",
        "session_history('s', after => 0, before => 100)",
        "session_history('s', tags => '{t}')",
        "session_history('s', kinds => '{even,odd}', attrs => '{\"a\": 1}')",
        "session_history('s', item_ids => '{i0,i1,i2,i3,i4,i5}')",
        "session_context('s')",
        "session_log('s', before => 6)",
        "live_item",
    ] {
        assert_eq!(items(&reader, all).await, kept, "{all}");
    }
    assert_eq!(items(&reader, "session_history('s', newest_first => true, max_rows => 2)").await, [kept[2], kept[1]]);
    assert_eq!(items(&reader, "session_history('s', max_rows => 1)").await, [kept[0]]);
    assert_eq!(items(&reader, "session_context('s', max_rows => 2)").await, [kept[1], kept[2]]);
    for none in ["session_history('s', before => 3)", "session_log('s', before => 3)"] {
        assert!(items(&reader, none).await.is_empty(), "{none}");
    }
    let stats =
        texts(&reader, "select concat_ws(' ', kind, items, bytes) from agent_sessions.session_stats('s')").await;
    assert_eq!(stats, ["even 1 3", "odd 2 6"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_further_trim_goes_on_where_the_last_one_ended() {
    let db = Database::create("trim_again").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 8).await;
    assert_eq!(call(&writer, "session_trim('s', 2)").await, 2);
    let before = everything(&db).await;
    for done in [2, 1, 0] {
        assert_eq!(call(&writer, &format!("session_trim('s', {done})")).await, 0);
        assert_eq!(everything(&db).await, before, "nothing is written to remove nothing");
    }
    assert_eq!(call(&writer, "session_trim('s', 5)").await, 3);
    assert_eq!(outline(&writer, "s").await[3..], ["8 trim 2", "9 trim 5"]);
    assert_verifies(&writer, "s", 5, 0).await;
    // The entry that told of the first goes with what it told of.
    assert_eq!(call(&writer, "session_trim('s', 9)").await, 4);
    assert_eq!(outline(&writer, "s").await, ["9 trim 5", "10 trim 9"]);
    assert_verifies(&writer, "s", 2, 0).await;
    assert_eq!(writer.append("s", "11").await, 11);
    assert_verifies(&writer, "s", 3, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_entry_stays_in_any_case() {
    let db = Database::create("trim_all").await;
    let writer = db.writer().await;
    for (session, keep_from) in [("last", 4), ("end", 5), ("beyond", 6), ("far", i64::MAX)] {
        session_of(&writer, session, 5).await;
        assert_eq!(
            call(&writer, &format!("session_trim('{session}', {keep_from}, force => true)")).await,
            4,
            "{session}"
        );
        assert_eq!(outline(&writer, session).await, ["4 append", "5 trim 4"], "{session}");
        assert_eq!(history(&writer, session).await, ["4 4"]);
        assert_verifies(&writer, session, 2, 0).await;
        // That may be a trim entry.
        assert_eq!(call(&writer, &format!("session_trim('{session}', {})", keep_from.max(5))).await, 1, "{session}");
        assert_eq!(outline(&writer, session).await, ["5 trim 4", "6 trim 5"], "{session}");
        assert!(history(&writer, session).await.is_empty());
        assert_verifies(&writer, session, 2, 0).await;
        assert_eq!(next_position(&writer, session).await, 7);
        assert_eq!(Append::to(session, "7").expected_position(7).run(&writer).await.expect("the next position"), 7);
        assert_verifies(&writer, session, 3, 0).await;
    }
    writer.create_session("empty").await;
    session_of(&writer, "single", 1).await;
    let before = everything(&db).await;
    for session in ["empty", "single"] {
        for keep_from in [0, 1, i64::MAX] {
            assert_eq!(call(&writer, &format!("session_trim('{session}', {keep_from}, force => true)")).await, 0);
        }
    }
    assert_eq!(everything(&db).await, before, "there is nothing to trim");
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_calls_are_refused_and_change_nothing() {
    let db = Database::create("trim_arguments").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    session_of(&writer, "s", 3).await;
    let before = everything(&db).await;
    for (arguments, argument) in [
        ("'s', null", "keep_from"),
        ("'s', -1", "keep_from"),
        ("'s', -9223372036854775808", "keep_from"),
        ("null, 1", "session_id"),
        ("'', 1", "session_id"),
        ("'missing', null", "keep_from"),
    ] {
        let error = assert_sqlstate!(try_call(&writer, &format!("session_trim({arguments})")).await, "SE001");
        assert_eq!(detail(&error)["argument"], json!(argument), "{arguments}");
    }
    for missing in ["session_trim('missing', 1)", "session_trim('s', 1, agent_id => 'other')"] {
        assert_sqlstate!(try_call(&writer, missing).await, "SE002");
    }
    writer.run("set agent_sessions.tenant = 'other'").await;
    assert_sqlstate!(try_call(&writer, "session_trim('s', 1)").await, "SE002");
    writer.run("reset agent_sessions.tenant").await;
    assert_sqlstate!(try_call(&reader, "session_trim('s', 1)").await, "42501");
    assert_eq!(call(&writer, "session_trim('s', 0)").await, 0);
    assert_eq!(everything(&db).await, before);
    // NULL is not given.
    let all = "session_trim(session_id => 's', keep_from => 1, force => null, agent_id => null, lease => null)";
    assert_eq!(call(&writer, all).await, 1);
}

/// The log is all that knows an id: with the entry, the memory that it was used goes.
#[tokio::test(flavor = "multi_thread")]
async fn the_id_of_a_trimmed_item_is_free_again_and_that_of_a_kept_one_is_not() {
    let db = Database::create("trim_ids").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 4).await;
    assert_eq!(call(&writer, "session_revise('s', '\"new\"', item_id => 'i0')").await, 4);
    assert_eq!(call(&writer, "session_trim('s', 3)").await, 3);
    let append = async |payload: &str, item_id: &str, word: &str| {
        Append::to("s", payload).item_id(item_id).on_conflict(word).run(&writer).await
    };
    assert_eq!(append("3", "i3", "error").await.expect("a replay"), 3);
    assert_eq!(append("9", "i3", "keep").await.expect("a kept item"), 3);
    assert_sqlstate!(append("9", "i3", "error").await, "SE010");
    for (position, (payload, item_id, word)) in
        (6..).zip([("0", "i0", "error"), ("9", "i1", "keep"), ("9", "i2", "replace")])
    {
        assert_eq!(append(payload, item_id, word).await.expect("a new item"), position, "{item_id}");
        assert_eq!(append(payload, item_id, "error").await.expect("a replay of it"), position, "{item_id}");
    }
    // The revision of the trimmed item is none of the new one.
    assert_eq!(history(&writer, "s").await, ["3 3", "6 0", "7 9", "8 9"]);
    assert_eq!(items(&writer, "live_item order by position").await, history(&writer, "s").await);
    assert_verifies(&writer, "s", 6, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_trimmed_is_no_target_any_more() {
    let db = Database::create("trim_targets").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 5).await;
    call(&writer, "session_append('s', '\"\"', open => true)").await;
    call(&writer, "session_append('s', '6')").await;
    assert_eq!(call(&writer, "session_trim('s', 6)").await, 6);
    let before = everything(&db).await;
    for aimed in [
        "session_revise('s', '9', target => 0)",
        "session_revise('s', '9', target => 5)",
        "session_revise('s', '9', item_id => 'i0')",
        "session_retract('s', targets => '{6,0}')",
        "session_retract('s', item_ids => '{i4}')",
        "session_erase('s', target => 4)",
        "session_erase('s', item_id => 'i4')",
        "session_delta('s', 5, 0, 'x')",
    ] {
        assert_sqlstate!(try_call(&writer, aimed).await, "SE011");
    }
    for point in ["at_target => 5", "at_target => 0", "at_item_id => 'i0'"] {
        assert_sqlstate!(try_branch(&writer, &format!("'s', {point}")).await, "SE012");
    }
    for (table, values) in [
        ("session_item (sid, op, target, payload)", "'revise', 0, '9'"),
        ("session_item (sid, op, target)", "'retract', 5"),
        ("session_delta (sid, target, chunk_no, chunk)", "5, 0, 'x'"),
    ] {
        let raw = format!("insert into agent_sessions.{table} select sid, {values} from agent_sessions.session");
        assert_sqlstate!(writer.execute(&raw, &[]).await, "SE011");
    }
    assert_eq!(everything(&db).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_begins_before_the_base_is_what_is_left_of_it() {
    let db = Database::create("trim_ranges").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 6).await;
    assert_eq!(call(&writer, "session_trim('s', 2)").await, 2);
    // A summary of what is gone keeps all that is left.
    assert_eq!(summary(&writer, "\"sum\"", 1).await, 7);
    assert_eq!(items(&writer, "session_context('s')").await, ["7 \"sum\"", "2 2", "3 3", "4 4", "5 5"]);
    assert_eq!(call(&writer, "session_retract('s', from_target => 0)").await, 5);
    assert!(history(&writer, "s").await.is_empty());
    assert!(items(&writer, "live_item").await.is_empty());
    assert_eq!(writer.append("s", "9").await, 9);
    assert_verifies(&writer, "s", 8, 0).await;
    // What was retracted stays so when the base passes the beginning of its range, and comes near its end.
    assert_eq!(call(&writer, "session_trim('s', 5, force => true)").await, 3);
    assert_eq!(history(&writer, "s").await, ["9 9"]);
    assert_verifies(&writer, "s", 6, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_items_revisions_leave_the_history_with_it() {
    let db = Database::create("trim_revised").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 4).await;
    for target in [0, 2, 3] {
        call(&writer, &format!("session_revise('s', '\"revised\"', target => {target})")).await;
    }
    call(&writer, "session_retract('s', targets => '{1,3}')").await;
    assert_eq!(call(&writer, "session_trim('s', 2)").await, 2);
    assert_eq!(history(&writer, "s").await, ["2 \"revised\""]);
    assert_eq!(items(&writer, "live_item").await, ["2 \"revised\""]);
    assert_eq!(call(&writer, "session_revise('s', '\"again\"', target => 2)").await, 10);
    assert_eq!(history(&writer, "s").await, ["2 \"again\""]);
    assert_verifies(&writer, "s", 9, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_items_before_the_base_go_with_their_chunks_and_later_ones_stay() {
    let db = Database::create("trim_open").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 1).await;
    for (target, before) in [(1, true), (2, false)] {
        assert_eq!(call(&writer, "session_append('s', '\"\"', open => true)").await, target);
        for chunk in 0..2 {
            let delta = format!("select agent_sessions.session_delta('s', {target}, {chunk}, 'before: {before}. ')");
            assert_eq!(writer.value::<i32>(&delta, &[]).await, chunk + 1);
        }
    }
    assert_eq!(call(&writer, "session_trim('s', 2)").await, 2);
    let chunks = "select distinct target || ' ' || chunk from agent_sessions.session_delta";
    assert_eq!(texts(&writer, chunks).await, ["2 before: false. "]);
    assert_eq!(writer.value::<i32>("select agent_sessions.session_delta('s', 2, 2, 'end')", &[]).await, 3);
    let text = "select delta_text from agent_sessions.session_history('s')";
    assert_eq!(texts(&writer, text).await, ["before: false. before: false. end"]);
    assert_eq!(call(&writer, "session_revise('s', '\"closed\"', target => 2)").await, 4);
    assert_eq!(history(&writer, "s").await, ["2 \"closed\""]);
    assert_verifies(&writer, "s", 3, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_newest_live_summary_keeps_stays_unless_forced() {
    let db = Database::create("trim_summary").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 6).await;
    summary(&writer, "\"first\"", 2).await;
    assert_eq!(call(&writer, "session_trim('s', 1)").await, 1, "a base before the kept tail is nobody's business");
    assert_eq!(call(&writer, "session_trim('s', 5)").await, 1, "up to the kept tail");
    assert_eq!(outline(&writer, "s").await[0], "2 append");
    let context = items(&writer, "session_context('s')").await;
    assert_eq!(context, ["6 \"first\"", "2 2", "3 3", "4 4", "5 5"]);
    let before = everything(&db).await;
    for keep_from in [3, 6, 7, 100, i64::MAX] {
        assert_eq!(call(&writer, &format!("session_trim('s', {keep_from})")).await, 0);
    }
    assert_eq!(everything(&db).await, before);

    // The newest one counts, whether it keeps more or less; a revision of it keeps what it kept.
    summary(&writer, "\"second\"", 4).await;
    assert_eq!(call(&writer, "session_revise('s', '\"second, revised\"', target => 9)").await, 10);
    assert_eq!(call(&writer, "session_trim('s', 100)").await, 2);
    assert_eq!(items(&writer, "session_context('s')").await, ["9 \"second, revised\"", "4 4", "5 5"]);
    assert_verifies(&writer, "s", 8, 0).await;
    // One that is retracted protects nothing; the one before does again.
    call(&writer, "session_retract('s', targets => '{9}')").await;
    assert_eq!(call(&writer, "session_trim('s', 100)").await, 0, "the first summary keeps from 2 on");
    call(&writer, "session_retract('s', targets => '{6}')").await;
    assert_eq!(call(&writer, "session_trim('s', 6)").await, 2);
    assert_eq!(history(&writer, "s").await, [""; 0]);
    assert_verifies(&writer, "s", 9, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_that_keeps_nothing_lets_all_before_it_go() {
    let db = Database::create("trim_empty_tail").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 3).await;
    assert_eq!(summary(&writer, "\"all\"", 3).await, 3);
    writer.append("s", "4").await;
    assert_eq!(call(&writer, "session_trim('s', 100)").await, 3);
    assert_eq!(items(&writer, "session_context('s')").await, ["3 \"all\"", "4 4"]);
    assert_verifies(&writer, "s", 3, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn force_trims_into_the_kept_tail_and_beyond_the_summary() {
    let db = Database::create("trim_force").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 4).await;
    summary(&writer, "\"sum\"", 1).await;
    writer.append("s", "5").await;
    assert_eq!(call(&writer, "session_trim('s', 3, force => true)").await, 3);
    assert_eq!(items(&writer, "session_context('s')").await, ["4 \"sum\"", "3 3", "5 5"]);
    assert_eq!(call(&writer, "session_trim('s', 5)").await, 0, "the summary still protects what it keeps");
    assert_eq!(call(&writer, "session_trim('s', 5, force => true)").await, 2);
    assert_eq!(items(&writer, "session_context('s')").await, ["5 5"]);
    assert_verifies(&writer, "s", 3, 0).await;
}

/// The trim entry, the base and the first kept link hold each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_base_is_found() {
    let db = Database::create("trim_tamper").await;
    let writer = db.writer().await;
    session_of(&writer, "s", 6).await;
    call(&writer, "session_trim('s', 1)").await;
    call(&writer, "session_trim('s', 3)").await;
    writer.append("s", "8").await;
    let tamperer = tamperer(&db).await;
    let head = "update agent_sessions.session set";
    let trim = entry("s", 7);
    let update = "update agent_sessions.session_item set";
    for (sql, position) in [
        (format!("delete from agent_sessions.session_item where {trim}"), 3),
        ("delete from agent_sessions.session_item where position >= 7".to_owned(), 3),
        (format!("{update} target = 2 where {trim}"), 3),
        (format!("{update} op = 'erase' where {trim}"), 3),
        (format!("{update} payload = '{{}}' where {trim}"), 3),
        (format!("{update} payload = '3' where {trim}"), 3),
        (format!("{update} payload = null, salt = null where {trim}"), 3),
        (format!("{update} payload = (payload::text || ' ')::json where {trim}"), 7),
        (format!("{update} created_at = created_at + interval '1 s' where {trim}"), 7),
        (format!("{head} base_digest = sha256('x')"), 3),
        (format!("{head} base_digest = set_byte(base_digest, 31, get_byte(base_digest, 31) # 1)"), 3),
        (format!("{head} base_position = 2"), 2),
        (format!("{head} base_position = 4"), 4),
        (format!("{head} base_position = 0, base_digest = null"), 0),
        // To hide the entries between an older base and this one, or to make the log begin later.
        (
            format!(
                "{head} base_position = 1, base_digest = (
                   select decode(payload ->> 'base_digest', 'hex') from agent_sessions.session_item where position = 6)"
            ),
            1,
        ),
        (
            format!(
                "{head} base_position = 4, base_digest = (select digest from agent_sessions.session_item where position = 3)"
            ),
            4,
        ),
        (
            format!(
                "{head} base_position = 4, base_digest = (
                   select digest from agent_sessions.session_item where position = 3);
                 delete from agent_sessions.session_item where position = 3"
            ),
            4,
        ),
        ("delete from agent_sessions.session_item where position = 3".to_owned(), 3),
        ("delete from agent_sessions.session_item where position = 6".to_owned(), 6),
    ] {
        assert_eq!(fault_after(&tamperer, "s", &sql).await, Some(position), "{sql}");
    }
    // The trim entry's digest and the base together: the link of the first kept entry tells.
    let both = format!(
        "{update} payload = jsonb_build_object('base_digest', encode(sha256('x'), 'hex'))::json where {trim};
         {head} base_digest = sha256('x')"
    );
    assert_eq!(fault_after(&tamperer, "s", &both).await, Some(3));
    assert_verifies(&writer, "s", 6, 0).await;
}
