//! What is stored of an event: the text that is hashed, byte for byte, and the columns beside it.

use std::collections::BTreeSet;

use agent_sessions_tests::{Connection, Database, Role, assert_sqlstate, detail};

use super::{Event, assert_chained, batch, column, in_tenant, texts, try_batch};
use crate::payloads::CASES;

/// The server's times as RFC 3339 writes them.
fn utc(column: &str) -> String {
    format!(r#"to_char({column} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"#)
}

/// A JSON string; names hold no control characters.
fn json_text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The text of an event as the contract has it, from what was given and the times that were stored.
fn text_of(seq: i64, tenant: &str, given: &Event, actor: &str, times: &[String; 2]) -> String {
    let mut text = format!("{{\"seq\":{seq}");
    let columns = [
        ("tenant", Some(tenant)),
        ("stream", Some(given.stream.unwrap_or_default())),
        ("occurred_at", Some(&times[0])),
        ("recorded_at", Some(&times[1])),
        ("event_id", given.event_id),
        ("action", given.action),
        ("actor", Some(given.actor.unwrap_or(actor))),
        ("target", given.target),
        ("session_id", given.session_id),
        ("status", given.status),
    ];
    for (key, value) in columns {
        if let Some(value) = value {
            text += &format!(",\"{key}\":{}", json_text(value));
        }
    }
    if let Some(attrs) = given.attrs {
        text += &format!(",\"attrs\":{attrs}");
    }
    text + &format!(",\"payload\":{}}}", given.payload.unwrap_or("null"))
}

/// Every column, no column but the one that is needed, and texts that JSON has to escape or that are not ASCII.
fn samples() -> Vec<Event<'static>> {
    let full = Event {
        payload: Some(r#"{"b":1, "a":2,"b":3}"#),
        actor: Some("ann"),
        target: Some("order/4711"),
        session_id: Some("chat-1"),
        status: Some("ok"),
        // As jsonb prints it.
        attrs: Some(r#"{"a": [1, null, 1.50], "z": "ü"}"#),
        occurred_at: Some("2026-03-04 05:06:07.123456+02"),
        event_id: Some("e-1"),
        ..Event::in_stream("orders", "order.approve")
    };
    let odd = r#" "quoted" \back\slash/ 'it''s' "#;
    vec![
        full,
        Event::in_stream("orders", "login"),
        Event::of("login"),
        Event { target: Some("t"), ..Event::of("only a target") },
        Event { attrs: Some("{}"), ..Event::of("x") },
        Event {
            action: Some("приём \u{1F680}\u{2028}"),
            actor: Some(odd),
            target: Some(odd),
            session_id: Some(odd),
            status: Some("\u{feff}e\u{301}"),
            event_id: Some(odd),
            stream: Some(r#"стрим "1" \ "#),
            ..full
        },
    ]
}

async fn assert_texts(connection: &Connection, tenant: &str, role: &str, stream: &str, given: &[Event<'_>]) {
    let sql = format!(
        "select data, {}, {}, payload is null and fields is null from agent_sessions.audit_event
         where stream = $1::text order by seq",
        utc("occurred_at"),
        utc("recorded_at")
    );
    let rows = connection.query(&sql, &[&stream]).await.expect("the events");
    assert_eq!(rows.len(), given.len(), "{stream}");
    for ((seq, row), given) in (1..).zip(&rows).zip(given) {
        let times = [row.get(1), row.get(2)];
        assert_eq!(row.get::<_, String>(0), text_of(seq, tenant, given, role, &times));
        if given.occurred_at.is_none() {
            assert_eq!(times[0], times[1], "now, when it is left out");
        } else {
            assert_eq!(times[0], "2026-03-04T03:06:07.123456Z");
        }
        assert!(row.get::<_, bool>(3), "payload and fields are not stored");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_the_text_that_the_page_describes() {
    for raw in [false, true] {
        let db = Database::create("audit_text").await;
        for tenant in ["", "Müller & \"Söhne\""] {
            let writer = in_tenant(&db, tenant).await;
            // No setting of the client's has a say.
            writer
                .run(
                    "set timezone = 'Asia/Kathmandu'; set datestyle = 'German, DMY'; set extra_float_digits = -15;
                     set intervalstyle = 'sql_standard'; set bytea_output = 'escape';
                     set default_transaction_isolation = 'serializable'",
                )
                .await;
            for given in samples() {
                if raw {
                    given.insert(&writer).await;
                } else {
                    assert_eq!(given.append(&writer).await.outcome, "appended");
                }
            }
            let streams: BTreeSet<&str> = samples().iter().map(|given| given.stream.unwrap_or_default()).collect();
            assert_eq!(streams.len(), 3);
            for stream in streams {
                let of_stream = samples().into_iter().filter(|given| given.stream.unwrap_or_default() == stream);
                let of_stream: Vec<Event> = of_stream.collect();
                assert_texts(&writer, tenant, &db.role_name(&Role::Writer), stream, &of_stream).await;
                assert_chained(&writer, stream, of_stream.len() as i64).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_writes_the_same_texts() {
    let db = Database::create("audit_text_batch").await;
    let writer = in_tenant(&db, "acme").await;
    let given: Vec<Event> = samples().into_iter().map(|event| Event { stream: Some("s"), ..event }).collect();
    let elements: Vec<String> = given
        .iter()
        .map(|event| {
            let labels = [
                ("action", event.action),
                ("actor", event.actor),
                ("target", event.target),
                ("session_id", event.session_id),
                ("status", event.status),
                ("occurred_at", event.occurred_at.map(|_| "2026-03-04T05:06:07.123456+02:00")),
                ("event_id", event.event_id),
            ];
            let labels = labels.iter().filter_map(|(key, value)| Some(format!("\"{key}\":{}", json_text((*value)?))));
            let raw = [("attrs", event.attrs), ("payload", event.payload)];
            let raw = raw.iter().filter_map(|(key, value)| Some(format!("\"{key}\":{}", (*value)?)));
            format!("{{{}}}", labels.chain(raw).collect::<Vec<_>>().join(" , "))
        })
        .collect();
    let appended = batch(&writer, "s", &format!("[{}]", elements.join(",\n"))).await;
    assert_eq!(appended.iter().map(|row| row.seq).collect::<Vec<_>>(), (1..=6).collect::<Vec<_>>());
    assert_texts(&writer, "acme", &db.role_name(&Role::Writer), "s", &given).await;
    assert_chained(&writer, "s", 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_returned_is_what_is_stored() {
    let db = Database::create("audit_returned").await;
    let writer = db.writer().await;
    for seq in 1..=5 {
        let appended = Event::in_stream("s", "a").append(&writer).await;
        assert_eq!((appended.seq, appended.outcome.as_str()), (seq, "appended"));
        assert_eq!(column(&writer, "s", "hash").await.last(), Some(&appended.hash));
    }
    let raw = "insert into agent_sessions.audit_event (stream, action) values ('s', 'a') returning seq, hash";
    let row = writer.query_one(raw, &[]).await.expect("an INSERT");
    assert_eq!(row.get::<_, i64>(0), 6);
    assert_eq!(column(&writer, "s", "hash").await.last(), Some(&row.get(1)));
    assert_chained(&writer, "s", 6).await;
}

/// Payloads that jsonb would change or refuse, and those that could be taken for a part of the text around them.
fn payloads() -> Vec<String> {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let own = [
        r#"{"payload":1,"payload":2}"#,
        r#"",\"payload\":1}""#,
        "[1,\n2,\r\n\t3\n]",
        r#"{"seq":9,"tenant":"x","action":"y"}"#,
        r#"{"a":{"payload":{"payload":null}}}"#,
    ];
    let own = own.into_iter().map(str::to_owned).chain([nested(1_000), crate::payloads::sized(1 << 20)]);
    CASES.iter().map(|case| (*case).to_owned()).chain(own).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_stands_in_the_text_byte_for_byte() {
    let db = Database::create("audit_payloads").await;
    let writer = db.writer().await;
    let payloads = payloads();
    for (number, payload) in payloads.iter().enumerate() {
        let event = Event { payload: Some(payload), attrs: Some(r#"{"payload":0}"#), ..Event::in_stream("f", "a") };
        event.append(&writer).await;
        Event { stream: Some("raw"), ..event }.insert(&writer).await;
        let element = format!("[ {{ \"payload\" :\n{payload}\t, \"action\":\"{number}\"}}]");
        assert_eq!(batch(&writer, "batch", &element).await.len(), 1);
    }
    for stream in ["f", "raw", "batch"] {
        let data = column(&writer, stream, "data").await;
        assert_eq!(data.len(), payloads.len());
        for (data, payload) in data.iter().zip(&payloads) {
            // White space around an element's value is the batch's, not the value's.
            let payload = if stream == "batch" { payload.trim_ascii() } else { payload };
            let end = format!(",\"payload\":{payload}}}");
            assert!(data.ends_with(&end), "{stream}: {data:.300} for {payload:.200}");
            assert!(data.starts_with("{\"seq\":"), "{stream}: {data:.300}");
        }
        assert_chained(&writer, stream, payloads.len() as i64).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_is_listed_as_it_was_given() {
    let db = Database::create("audit_listed").await;
    let writer = db.writer().await;
    let payloads = payloads();
    for payload in &payloads {
        Event { payload: Some(payload), ..Event::in_stream("s", "a") }.append(&writer).await;
    }
    for sql in [
        "select payload::text from agent_sessions.audit_list('s', newest_first => false, max_rows => 1000)",
        "select agent_sessions.audit_payload(data)::text from agent_sessions.audit_event order by seq",
    ] {
        let listed = texts(&writer, sql).await;
        assert_eq!(listed.len(), payloads.len());
        for (listed, payload) in listed.iter().zip(&payloads) {
            assert!(listed == payload, "{sql}: {listed:.200?} for {payload:.200?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_payload_is_null() {
    let db = Database::create("audit_no_payload").await;
    let writer = db.writer().await;
    Event::of("a").append(&writer).await;
    Event { payload: Some("null"), ..Event::of("a") }.append(&writer).await;
    Event::of("a").insert(&writer).await;
    batch(&writer, "", r#"[{"action":"a"},{"action":"a","payload":null},{"action":"a","payload": null }]"#).await;
    let ends = column(&writer, "", "right(data, 16)").await;
    assert_eq!(ends, vec![",\"payload\":null}"; 6]);
    // It is the JSON null that is listed, not SQL's.
    assert_eq!(texts(&writer, "select payload::text from agent_sessions.audit_list('')").await, vec!["null"; 6]);
    for none in ["null", "'{}'", "''", "'no json'", "'[1]'", "'\"payload\"'"] {
        let sql = format!("select coalesce(agent_sessions.audit_payload({none})::text, 'none')");
        assert_eq!(writer.value::<String>(&sql, &[]).await, "none", "{none}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attrs_stand_in_the_text_as_they_are_stored() {
    let db = Database::create("audit_attrs").await;
    let writer = db.writer().await;
    for attrs in [
        r#"{"b":1,"a":2,"b":3}"#,
        r#" [ 1e2 , -0.0, 123456789012345678901234567890, 1.50 ] "#,
        r#""text \u00e9 \" \\ \n""#,
        "null",
        "7",
        r#"{"payload":1}"#,
    ] {
        let event = Event { attrs: Some(attrs), ..Event::in_stream("s", "a") };
        event.append(&writer).await;
        event.insert(&writer).await;
        let differs =
            column(&writer, "s", "(position(',\"attrs\":' || attrs::text || ',\"payload\":' in data) > 0)::text");
        assert!(!differs.await.contains(&"false".to_owned()), "{attrs}");
    }
    // An element's null is not given, the argument's is SQL's.
    batch(&writer, "t", r#"[{"action":"a","attrs":null},{"action":"a","attrs":{"b": 1,"a" :[]}}]"#).await;
    assert_eq!(column(&writer, "t", "coalesce(attrs::text, '-')").await, ["-", r#"{"a": [], "b": 1}"#]);
    assert_chained(&writer, "s", 12).await;
    assert_chained(&writer, "t", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_that_has_a_text_is_kept_to_the_microsecond() {
    let db = Database::create("audit_times").await;
    let writer = db.writer().await;
    let times = [
        ("0001-01-01 00:00:00+00 BC", "0000-01-01T00:00:00.000000Z"),
        ("9999-12-31 23:59:59.999999+00", "9999-12-31T23:59:59.999999Z"),
        ("1999-12-31 23:59:59.999999+00", "1999-12-31T23:59:59.999999Z"),
        ("2000-01-01 00:00:00.000001+14", "1999-12-31T10:00:00.000001Z"),
        ("2024-02-29 12:00:00-11:30", "2024-02-29T23:30:00.000000Z"),
    ];
    for (given, _) in times {
        let event = Event { occurred_at: Some(given), ..Event::in_stream("s", "a") };
        event.append(&writer).await;
        event.insert(&writer).await;
    }
    let stored = column(&writer, "s", "substring(data from '\"occurred_at\":\"([^\"]*)\"')").await;
    assert_eq!(stored, times.iter().flat_map(|(_, text)| [*text; 2]).collect::<Vec<_>>());

    let elements = [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000000Z"),
        ("2026-01-01t00:00:00.1234567z", "2026-01-01T00:00:00.123456Z"),
        ("0000-01-01T00:00:00Z", "0000-01-01T00:00:00.000000Z"),
        ("2026-01-01T00:30:00.5+01:00", "2025-12-31T23:30:00.500000Z"),
    ];
    for (given, _) in elements {
        batch(&writer, "b", &format!(r#"[{{"action":"a","occurred_at":"{given}"}}]"#)).await;
    }
    let stored = column(&writer, "b", &utc("occurred_at")).await;
    // to_char has no year 0.
    assert_eq!(stored.len(), elements.len());
    let stored = column(&writer, "b", "substring(data from '\"occurred_at\":\"([^\"]*)\"')").await;
    assert_eq!(stored, elements.map(|(_, text)| text));
    assert_chained(&writer, "s", 10).await;
    assert_chained(&writer, "b", 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_that_has_no_text_is_refused() {
    let db = Database::create("audit_no_times").await;
    let writer = db.writer().await;
    for given in [
        "infinity",
        "-infinity",
        "10000-01-01 00:00:00+00",
        "9999-12-31 23:59:59.999999-01",
        "0002-12-31 23:59:59.999999+00 BC",
        "294276-12-31 00:00:00+00",
        "4713-01-01 00:00:00+00 BC",
    ] {
        let event = Event { occurred_at: Some(given), ..Event::in_stream("s", "a") };
        let error = assert_sqlstate!(event.try_append(&writer).await, "SE001");
        assert_eq!(detail(&error)["argument"], "occurred_at", "{given}");
        let error = assert_sqlstate!(event.try_insert(&writer).await, "SE001");
        assert_eq!(detail(&error)["argument"], "occurred_at", "{given}");
    }
    for given in [
        "\"\"",
        "\"now\"",
        "\"infinity\"",
        "\"2026-01-01\"",
        "\"2026-01-01T00:00:00\"",
        "\"10000-01-01T00:00:00Z\"",
        "\"-0001-01-01T00:00:00Z\"",
        "\"9999-12-31T23:59:59-01:00\"",
        "\"0000-01-01T00:00:00+00:01\"",
        "1700000000",
        "{}",
    ] {
        let events = format!(r#"[{{"action":"a"}},{{"action":"a","occurred_at":{given}}}]"#);
        let error = assert_sqlstate!(try_batch(&writer, "s", &events).await, "SE001");
        assert_eq!(detail(&error)["element"], 1, "{given}");
    }
    assert_chained(&writer, "s", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_clock_says_when_it_was_recorded() {
    let db = Database::create("audit_recorded").await;
    let writer = db.writer().await;
    writer.begin("read committed").await;
    let before: String = writer.value("select clock_timestamp()::text", &[]).await;
    Event { occurred_at: Some("2001-01-01"), ..Event::of("a") }.append(&writer).await;
    Event::of("a").insert(&writer).await;
    batch(&writer, "", r#"[{"action":"a"},{"action":"a"}]"#).await;
    // Not the transaction's time: later events have later times.
    let between = format!(
        "select count(*) filter (where recorded_at between '{before}' and clock_timestamp())
           + 10 * count(distinct recorded_at) from agent_sessions.audit_event"
    );
    assert_eq!(writer.value::<i64>(&between, &[]).await, 44);
    writer.commit().await;
    let order = "select coalesce(bool_and(recorded_at > before), false) from (
                   select recorded_at, lag(recorded_at) over (order by seq) as before from agent_sessions.audit_event) e
                 where before is not null";
    assert!(writer.value::<bool>(order, &[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_actor_is_the_argument_else_the_setting_else_the_role() {
    let db = Database::create("audit_actor").await;
    let (writer, role) = (db.writer().await, db.role_name(&Role::Writer));
    let say = async |connection: &Connection| {
        Event { actor: Some("given"), ..Event::of("a") }.append(connection).await;
        Event::of("a").append(connection).await;
        Event::of("a").insert(connection).await;
        batch(connection, "", r#"[{"action":"a","actor":"given"},{"action":"a"},{"action":"a","actor":null}]"#).await;
    };
    say(&writer).await;
    writer.run("set agent_sessions.actor = 'ann \u{e9}'").await;
    say(&writer).await;
    writer.run("set agent_sessions.actor = ''").await;
    say(&writer).await;
    writer.begin("read committed").await;
    writer.run("set local agent_sessions.actor = 'ben'").await;
    say(&writer).await;
    writer.commit().await;
    let superuser = db.superuser().await;
    superuser.run(&format!("set role {role}")).await;
    say(&superuser).await;
    let wanted: Vec<&str> = [&role, "ann \u{e9}", &role, "ben", &role]
        .into_iter()
        .flat_map(|who| ["given", who, who, "given", who, who])
        .collect();
    assert_eq!(column(&writer, "", "actor").await, wanted);
    assert_chained(&writer, "", 30).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_stream_of_every_tenant_is_a_chain_of_its_own() {
    let db = Database::create("audit_streams").await;
    let tenants = [in_tenant(&db, "").await, in_tenant(&db, "a").await, in_tenant(&db, "A").await];
    let streams = ["", "s", "S", " ", "agent", "ß"];
    for round in 1..=3 {
        for writer in &tenants {
            for stream in streams {
                let appended = Event::in_stream(stream, "same").append(writer).await;
                assert_eq!(appended.seq, round);
            }
        }
    }
    for writer in &tenants {
        for stream in streams {
            assert_chained(writer, stream, 3).await;
        }
        let seen = texts(writer, "select stream from agent_sessions.audit_stream where head_seq = 3 order by 1").await;
        assert_eq!(seen.len(), streams.len());
        assert_eq!(super::verdicts(writer, "").await.len(), streams.len());
    }
    // Tenant and stream are a part of the text: no two events have the same hash.
    let distinct = "select count(distinct hash) from agent_sessions.audit_event";
    assert_eq!(db.superuser().await.value::<i64>(distinct, &[]).await, 3 * 3 * streams.len() as i64);
    // NULL is the stream without a name.
    let given = "select seq from agent_sessions.audit_append(action => 'a', stream => null)";
    assert_eq!(tenants[0].value::<i64>(given, &[]).await, 4);
    tenants[0].run("insert into agent_sessions.audit_event (action) values ('a')").await;
    assert_eq!(batch(&tenants[0], "", r#"[{"action":"a"}]"#).await[0].seq, 6);
}
