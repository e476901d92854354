//! Names and sizes are checked before anything is locked or written, by the functions and by the tables.

use agent_sessions_tests::{Connection, Database, Error, assert_sqlstate, detail};
use serde_json::json;

use super::{Event, assert_chained, column, count, quoted, texts, try_batch, try_import, verdicts, wait_for_nothing};

/// An event that is refused: its code, and the argument that is named.
type Refused<'a> = (Event<'a>, &'static str, &'static str);

const LONGER_BY_ONE: usize = 501;

/// Every name, empty where it must not be, too long, and with a control character.
fn malformed(long: &str) -> Vec<Refused<'_>> {
    let mut refused = vec![
        (Event { action: None, ..Event::in_stream("s", "a") }, "SE001", "action"),
        (Event::in_stream("s", ""), "SE001", "action"),
        (Event { actor: Some(""), ..Event::in_stream("s", "a") }, "SE001", "actor"),
        (Event { target: Some(""), ..Event::in_stream("s", "a") }, "SE001", "target"),
        (Event { session_id: Some(""), ..Event::in_stream("s", "a") }, "SE001", "session_id"),
        (Event { status: Some(""), ..Event::in_stream("s", "a") }, "SE001", "status"),
        (Event { event_id: Some(""), ..Event::in_stream("s", "a") }, "SE001", "event_id"),
    ];
    for bad in [long, "a\nb", "\t", "\u{7f}", "a\u{85}"] {
        let event = Event::in_stream("s", "a");
        refused.extend([
            (Event { action: Some(bad), ..event }, "SE001", "action"),
            (Event { stream: Some(bad), ..event }, "SE001", "stream"),
            (Event { actor: Some(bad), ..event }, "SE001", "actor"),
            (Event { target: Some(bad), ..event }, "SE001", "target"),
            (Event { session_id: Some(bad), ..event }, "SE001", "session_id"),
            (Event { status: Some(bad), ..event }, "SE001", "status"),
            (Event { event_id: Some(bad), ..event }, "SE001", "event_id"),
        ]);
    }
    refused
}

async fn assert_refused(result: Result<(), Error>, (event, code, argument): &Refused<'_>) {
    let error = assert_sqlstate!(result, *code);
    assert_eq!(detail(&error)["argument"], *argument, "{event:?}");
}

/// Another client holds the lock of the stream `s`: whoever asks for it gets 55P03.
async fn with_the_stream_locked(db: &Database) -> (Connection, Connection) {
    let (holder, writer) = (db.writer().await, db.writer().await);
    holder.begin("read committed").await;
    Event::in_stream("s", "a").append(&holder).await;
    wait_for_nothing(&writer).await;
    assert_sqlstate!(Event::in_stream("s", "a").try_append(&writer).await, "55P03");
    assert_sqlstate!(Event::in_stream("s", "a").try_insert(&writer).await, "55P03");
    (holder, writer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_name_is_refused_before_the_stream_is_locked() {
    let db = Database::create("audit_names").await;
    let (holder, writer) = with_the_stream_locked(&db).await;
    let long = "\u{1F680}".repeat(LONGER_BY_ONE);
    for refused in malformed(&long) {
        assert_refused(refused.0.try_append(&writer).await.map(|_| ()), &refused).await;
        assert_refused(refused.0.try_insert(&writer).await.map(|_| ()), &refused).await;
    }
    for stream in [long.as_str(), "a\nb"] {
        let error = assert_sqlstate!(try_batch(&writer, stream, r#"[{"action":"a"}]"#).await, "SE001");
        assert_eq!(detail(&error)["argument"], "stream");
        let error = assert_sqlstate!(try_import(&writer, stream, "[]", None).await, "SE001");
        assert_eq!(detail(&error)["argument"], "stream");
    }
    assert_sqlstate!(try_batch(&writer, "s", r#"[{"action":"a"},{"action":""}]"#).await, "SE001");
    assert_sqlstate!(try_import(&writer, "s", r#"[{"data":"x"}]"#, None).await, "SE001");
    for function in [
        "audit_append('a', occurred_at => 'infinity', stream => 's')",
        "audit_append('a', '1', 's', attrs => repeat('1', 21)::jsonb)",
    ] {
        let sql = format!("set agent_sessions.max_payload_bytes = 20; select * from agent_sessions.{function}");
        let refused = writer.batch_execute(&sql).await;
        assert_sqlstate!(refused, if function.contains("attrs") { "SE018" } else { "SE001" });
    }
    holder.commit().await;
    assert_chained(&writer, "s", 1).await;
    assert_eq!(count(&writer, "agent_sessions.audit_stream").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_tenant_is_refused() {
    let db = Database::create("audit_bad_tenant").await;
    let writer = db.writer().await;
    for bad in ["E'a\\nb'".to_owned(), format!("'{}'", "t".repeat(LONGER_BY_ONE))] {
        writer.run(&format!("set agent_sessions.tenant = {bad}")).await;
        let event = Event::of("a");
        for refused in [
            event.try_append(&writer).await.map(|_| ()),
            event.try_insert(&writer).await.map(|_| ()),
            try_batch(&writer, "", "[]").await.map(|_| ()),
            try_import(&writer, "", "[]", None).await.map(|_| ()),
        ] {
            assert_refused(refused, &(event, "SE001", "tenant")).await;
        }
    }
    assert_eq!(count(&db.superuser().await, "agent_sessions.audit_chain").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_actor_from_the_setting_is_checked_like_one_that_is_given() {
    let db = Database::create("audit_bad_actor").await;
    let writer = db.writer().await;
    for bad in ["E'a\\nb'".to_owned(), format!("'{}'", "t".repeat(LONGER_BY_ONE))] {
        writer.run(&format!("set agent_sessions.actor = {bad}")).await;
        let event = Event::in_stream("s", "a");
        for refused in [
            event.try_append(&writer).await.map(|_| ()),
            event.try_insert(&writer).await.map(|_| ()),
            try_batch(&writer, "s", r#"[{"action":"a"}]"#).await.map(|_| ()),
        ] {
            assert_refused(refused, &(event, "SE001", "actor")).await;
        }
    }
    assert_chained(&writer, "s", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_500_characters_of_any_kind_are_stored_as_they_are() {
    let db = Database::create("audit_long_names").await;
    let writer = db.writer().await;
    let longest = "\u{1F680}".repeat(500);
    for name in [longest.as_str(), " ", "'", "\"", "\\", "a/b", "%s", "{}", "null", "\u{10ffff}", "e\u{301}"] {
        let event = Event {
            actor: Some(name),
            target: Some(name),
            session_id: Some(name),
            status: Some(name),
            event_id: Some(name),
            ..Event::in_stream("s", name)
        };
        event.append(&writer).await;
        let event = Event { event_id: None, ..event };
        event.insert(&writer).await;
        let stored = column(&writer, "s", "array[action, actor, target, session_id, status]::text").await;
        let wanted: String = writer.value("select array_fill($1::text, array[5])::text", &[&name]).await;
        assert_eq!(stored.last(), Some(&wanted));
        Event { stream: Some(name), ..event }.append(&writer).await;
        assert_chained(&writer, name, 1).await;
        let name = quoted(name);
        assert_eq!(count(&writer, &format!("agent_sessions.audit_list({name})")).await, 1);
        let filtered = format!("agent_sessions.audit_list('s', actor => {name}, session_id => {name})");
        assert_eq!(count(&writer, &filtered).await, 2);
    }
    assert_chained(&writer, "s", 22).await;
    assert_eq!(verdicts(&writer, "").await.len(), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_do_not_fit_an_index_entry_together_are_refused_before_the_stream_is_locked() {
    let db = Database::create("audit_wide_names").await;
    let (holder, writer) = with_the_stream_locked(&db).await;
    // Four bytes a character.
    let [wide, other] = ["\u{1F680}", "\u{1F525}"].map(|character| character.repeat(400));
    let by_stream = Event { event_id: Some(&other), ..Event::in_stream(&wide, "a") };
    let by_tenant = Event { session_id: Some(&other), ..Event::in_stream("s", "a") };
    for (tenant, event) in
        [("", by_stream), (wide.as_str(), Event { stream: Some(&other), ..by_tenant }), (&wide, by_tenant)]
    {
        writer.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        for refused in [event.try_append(&writer).await.map(|_| ()), event.try_insert(&writer).await.map(|_| ())] {
            let error = assert_sqlstate!(refused, "SE018");
            assert_eq!(
                (&detail(&error)["limit"], &detail(&error)["actual"]),
                (&json!(2_600), &json!(3_200)),
                "{error:?}"
            );
        }
    }
    holder.commit().await;
    assert_eq!(texts(&db.superuser().await, "select tenant || stream from agent_sessions.audit_chain").await, ["s"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_of_the_limit_fits_and_one_byte_more_does_not() {
    let db = Database::create("audit_sizes").await;
    let (holder, writer) = with_the_stream_locked(&db).await;
    let default = 64_usize << 20;
    let of = |bytes: usize| {
        format!(
            "select seq from agent_sessions.audit_append('a', ('\"' || repeat('x', {}) || '\"')::json, 's')",
            bytes - 2
        )
    };
    let error = assert_sqlstate!(writer.query(&of(default + 1), &[]).await, "SE018");
    assert_eq!(detail(&error), json!({"argument": "payload", "limit": default, "actual": default + 1}));
    holder.commit().await;
    assert_eq!(writer.value::<i64>(&of(default), &[]).await, 2);
    assert_eq!(
        column(&writer, "s", "octet_length(agent_sessions.audit_payload(data)::text)::text").await[1],
        default.to_string()
    );

    writer.run("set agent_sessions.max_payload_bytes = 100").await;
    assert_sqlstate!(writer.query(&of(101), &[]).await, "SE018");
    let attrs = |bytes: usize| {
        format!(
            "select seq from agent_sessions.audit_append('a', attrs => to_jsonb(repeat('x', {bytes})), stream => 's')"
        )
    };
    assert_sqlstate!(writer.query(&attrs(200), &[]).await, "SE018");
    assert_eq!(writer.value::<i64>(&of(100), &[]).await, 3);
    assert_eq!(writer.value::<i64>(&attrs(50), &[]).await, 4);
    // The setting binds the functions; a row once stored restores under any of them.
    let raw = Event { payload: Some(&format!("\"{}\"", "x".repeat(500))), ..Event::in_stream("s", "a") }
        .try_insert(&writer)
        .await;
    assert_eq!(raw.expect("an INSERT"), 1);
    assert_chained(&writer, "s", 5).await;
}
