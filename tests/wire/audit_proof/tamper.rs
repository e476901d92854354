//! What a superuser changes with the triggers off, audit_verify finds, at the right event, and says why.

use agent_sessions_tests::Database;

use super::*;
use Fault::{Columns, Link, Missing, Text};

const ALL: &[i64] = &[1, 2, 3, 4, 5, 6, 7, 8, 9];
const BARE: &[i64] = &[1, 2, 4, 5, 7, 8];

/// One change of each typed column at each event that can have it.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_column_is_found_at_its_event() {
    let db = Database::create("audit_columns").await;
    orders(&db).await;
    let tamperer = Tamperer::of(&db, "orders", EVENTS).await;
    let changes: &[(&str, &[i64])] = &[
        ("event_id = 'f'", ALL),
        ("event_id = ''", ALL),
        ("event_id = null", FULL),
        ("occurred_at = occurred_at + interval '1 microsecond'", ALL),
        ("occurred_at = occurred_at - interval '1 day'", ALL),
        ("occurred_at = 'infinity'", ALL),
        ("occurred_at = '-infinity'", ALL),
        ("occurred_at = '0044-03-15 BC'", ALL),
        ("occurred_at = '10000-01-01'", ALL),
        ("occurred_at = recorded_at", FULL),
        ("recorded_at = recorded_at + interval '1 microsecond'", ALL),
        ("recorded_at = recorded_at - interval '1 day'", ALL),
        ("recorded_at = 'infinity'", ALL),
        ("recorded_at = occurred_at, occurred_at = recorded_at", FULL),
        ("action = action || ' '", ALL),
        ("action = upper(action)", ALL),
        ("action = ''", ALL),
        ("actor = 'bob'", ALL),
        ("actor = ''", ALL),
        ("actor = null", ALL),
        ("actor = action, action = actor", ALL),
        ("target = 'cafe 🔥'", ALL),
        ("target = null", FULL),
        ("target = actor, actor = target", FULL),
        ("session_id = 't'", ALL),
        ("session_id = null", FULL),
        ("session_id = status, status = session_id", FULL),
        ("status = 'failed'", ALL),
        ("status = null", FULL),
        ("status = ''", BARE),
        ("attrs = '{\"n\": 1.5, \"list\": [1, null]}'", ALL),
        ("attrs = '{\"n\": 1.50, \"list\": [1, null], \"m\": 2}'", ALL),
        ("attrs = '{\"n\": 1.50}'", ALL),
        ("attrs = '{}'", ALL),
        ("attrs = 'null'", ALL),
        ("attrs = null", FULL),
        // As if it had been imported, with columns that nothing maps.
        ("fields = '{}'", ALL),
        ("fields = '{\"action\": \"status\"}'", ALL),
        ("fields = '[]'", ALL),
    ];
    for (change, seqs) in changes {
        for seq in *seqs {
            let sql = format!("update agent_sessions.audit_event set {change} where seq = {seq}");
            tamperer.assert_found(&sql, *seq, Columns).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_text_or_hash_is_found_at_its_event() {
    let db = Database::create("audit_texts").await;
    orders(&db).await;
    let tamperer = Tamperer::of(&db, "orders", EVENTS).await;
    let texts: &[(&str, &[i64])] = &[
        ("data = data || ' '", ALL),
        ("data = ' ' || data", ALL),
        ("data = ''", ALL),
        ("data = replace(data, '\"seq\":', '\"seq\": ')", ALL),
        ("data = replace(data, 'null}', 'true}')", BARE),
        ("data = replace(data, '1e2', '100')", FULL),
        ("data = replace(data, '\\u0000', '\\u0001')", FULL),
        ("data = replace(data, 'café', 'cafe\u{301}')", FULL),
        ("data = replace(data, ':', E':\\n')", ALL),
        // The column goes along.
        ("data = replace(data, 'ann', 'bob'), actor = 'bob'", FULL),
        ("data = replace(data, '\"look', '\"hook'), action = replace(action, 'look', 'hook')", BARE),
        ("hash = 'sha256:' || repeat('0', 64)", ALL),
        ("hash = upper(hash)", ALL),
        ("hash = substr(hash, 8)", ALL),
        ("hash = left(hash, -1)", ALL),
        ("hash = left(hash, -1) || case right(hash, 1) when '0' then '1' else '0' end", ALL),
        ("hash = overlay(hash placing case substr(hash, 8, 1) when '0' then '1' else '0' end from 8)", ALL),
        ("hash = prev_hash", ALL),
    ];
    let links: &[(&str, &[i64])] = &[
        ("prev_hash = hash", ALL),
        ("prev_hash = ''", ALL),
        ("prev_hash = upper(prev_hash)", &ALL[1..]),
        ("prev_hash = 'sha256:' || repeat('0', 64)", &ALL[1..]),
        ("prev_hash = left(prev_hash, -1) || case right(prev_hash, 1) when '0' then '1' else '0' end", ALL),
    ];
    for (changes, fault) in [(texts, Text), (links, Link)] {
        for (change, seqs) in changes {
            for seq in *seqs {
                let sql = format!("update agent_sessions.audit_event set {change} where seq = {seq}");
                tamperer.assert_found(&sql, *seq, fault).await;
            }
        }
    }
}

/// The hash alone is no protection: whoever can write it has to write all that follow.
#[tokio::test(flavor = "multi_thread")]
async fn a_rewritten_event_needs_the_whole_rest_of_the_chain() {
    let db = Database::create("audit_rewritten").await;
    orders(&db).await;
    let tamperer = Tamperer::of(&db, "orders", EVENTS).await;
    for seq in ALL {
        let rewrite = format!(
            "update agent_sessions.audit_event set data = left(data, -1) || ' }}', hash = {} where seq = {seq}",
            hash("prev_hash", "left(data, -1) || ' }'")
        );
        if *seq < EVENTS {
            tamperer.assert_found(&rewrite, seq + 1, Link).await;
        }
        // With the links written anew there is nothing to see in the chain: this is what anchors are for.
        tamperer.connection.begin("read committed").await;
        tamperer.connection.run(&rewritten("orders", *seq)).await;
        assert_eq!(tamperer.verdict().await, untouched(EVENTS), "rewritten from {seq}");
        tamperer.connection.rollback().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_swapped_and_inserted_events_are_found() {
    let db = Database::create("audit_order").await;
    orders(&db).await;
    let tamperer = Tamperer::of(&db, "orders", EVENTS).await;
    let event = "agent_sessions.audit_event";
    for seq in 1..EVENTS {
        let remove = format!("delete from {event} where seq = {seq}");
        tamperer.assert_found(&remove, seq, Missing).await;
        // Closing the gap does not hide it.
        let close = format!(
            "{remove}; update {event} set seq = seq + 1000 where seq > {seq}; update {event} set seq = seq - 1001 where seq > 1000"
        );
        tamperer.assert_found(&close, seq, Link).await;
        let relinked = format!(
            "{close}; update {event} set prev_hash = coalesce((select e.hash from {event} e where e.seq = {seq} - 1),
               'sha256:' || repeat('0', 64)) where seq = {seq}"
        );
        tamperer.assert_found(&relinked, seq, Text).await;
        let rehashed = format!("{relinked}; update {event} set hash = {} where seq = {seq}", hash("prev_hash", "data"));
        tamperer.assert_found(&rehashed, seq, Columns).await;
    }
    tamperer.assert_found(&format!("delete from {event} where seq between 2 and 8"), 2, Missing).await;
    tamperer.assert_found(&format!("delete from {event} where seq < 9"), 1, Missing).await;
    tamperer.assert_found(&format!("update {event} set seq = 10 where seq = 9"), 9, Missing).await;
    let later = format!("update {event} set seq = seq + 1000; update {event} set seq = seq - 999");
    tamperer.assert_found(&later, 1, Missing).await;
    tamperer.assert_found(&format!("update {event} set seq = seq + 9223372036854775798"), 1, Missing).await;
    for (one, other) in [(1, 2), (1, 9), (3, 6), (4, 5), (8, 9)] {
        let swap = format!(
            "update {event} set seq = 1000 where seq = {one}; update {event} set seq = {one} where seq = {other};
             update {event} set seq = {other} where seq = 1000"
        );
        tamperer.assert_found(&swap, one, Link).await;
        let fields = "event_id = null, prev_hash = a.prev_hash, hash = a.hash";
        // Texts and columns alone change places.
        let contents = format!(
            "create temporary table a on commit drop as table {event};
             update {event} e set data = a.data, action = a.action, actor = a.actor, target = a.target, session_id = a.session_id,
               status = a.status, attrs = a.attrs, occurred_at = a.occurred_at, recorded_at = a.recorded_at, event_id = null
             from a where (e.seq, a.seq) in (({one}, {other}), ({other}, {one}))"
        );
        tamperer.assert_found(&contents, one, Text).await;
        let hashes = format!(
            "create temporary table a on commit drop as table {event};
             update {event} e set {fields} from a where (e.seq, a.seq) in (({one}, {other}), ({other}, {one}))"
        );
        tamperer.assert_found(&hashes, one, Link).await;
    }
    let copy = |from: i64, to: i64| {
        format!(
            "insert into {event}
             select tenant, stream, {to}, null, occurred_at, recorded_at, action, actor, target, session_id, status, attrs, payload,
               fields, data, prev_hash, hash
             from {event} where seq = {from}"
        )
    };
    for from in [1, 3, 9] {
        tamperer.assert_found(&copy(from, 10), 10, Link).await;
    }
    tamperer.assert_found(&copy(2, 11), 10, Missing).await;
    tamperer.assert_found(&copy(2, i64::MAX), 10, Missing).await;
    let doubled = format!(
        "update {event} set seq = seq + 1000 where seq >= 4; update {event} set seq = seq - 999 where seq >= 1000;
         {}; update {event} set prev_hash = (select hash from {event} where seq = 3) where seq = 4",
        copy(2, 4)
    );
    tamperer.assert_found(&doubled, 4, Text).await;

    // A tail that was cut leaves a valid chain, which a head that was kept tells from the whole one.
    let (connection, cut) = (&tamperer.connection, format!("delete from {event} where seq > 7"));
    let head: String =
        connection.value("select head_hash from agent_sessions.audit_stream where stream = 'orders'", &[]).await;
    connection.begin("read committed").await;
    connection.run(&cut).await;
    assert_eq!(tamperer.verdict().await, untouched(7));
    for kept in
        ["head_seq => 9".to_owned(), format!("head_hash => '{head}'"), format!("head_seq => 9, head_hash => '{head}'")]
    {
        assert_eq!(first_bad(connection, &format!("'orders', {kept}")).await, Some(8), "{kept}");
    }
    connection.rollback().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_belongs_to_its_tenant_and_stream() {
    let db = Database::create("audit_moved").await;
    let writer = orders(&db).await;
    fill(&writer, "other", 2).await;
    let tamperer = Tamperer::of(&db, "orders", EVENTS).await;
    let connection = &tamperer.connection;
    for column in ["tenant = 'acmf'", "tenant = ''", "stream = 'moved'", "stream = ''"] {
        for seq in 1..EVENTS {
            let moved =
                format!("update agent_sessions.audit_event set {column} where stream = 'orders' and seq = {seq}");
            tamperer.assert_found(&moved, seq, Missing).await;
        }
    }
    // At the end of another stream.
    let appended = "update agent_sessions.audit_event set stream = 'other' where stream = 'orders' and seq = 3";
    connection.begin("read committed").await;
    connection.run(appended).await;
    assert_eq!(first_bad(connection, "'orders'").await, Some(3));
    assert_eq!(first_bad(connection, "'other'").await, Some(3));
    connection.rollback().await;
    // A whole chain under another name, with its row.
    for (set, tenant, stream) in [
        ("tenant = 'acmf'", "acmf", "orders"),
        ("stream = 'order'", "acme", "order"),
        ("tenant = 'acmeo', stream = 'rders'", "acmeo", "rders"),
    ] {
        connection.begin("read committed").await;
        connection
            .run(&format!(
                "update agent_sessions.audit_event set {set} where stream = 'orders';
                 update agent_sessions.audit_chain set {set} where stream = 'orders'"
            ))
            .await;
        let found = verdict(connection, &format!("'{stream}', tenant => '{tenant}'")).await;
        let (seq, reason) = found.fault.expect(set);
        assert_eq!(seq, 1, "{set}");
        tamperer.assert_named(Columns, reason, set);
        connection.rollback().await;
    }
    // Others are not blamed, and a fault stays where it is when the stream goes on.
    connection
        .run("update agent_sessions.audit_event set actor = 'eve' where stream = 'orders' and seq in (4, 6)")
        .await;
    for more in 1..=3 {
        fill(&writer, "orders", 1).await;
        let found = verdicts(&writer, "").await;
        assert_eq!(found["orders"].entries, EVENTS + more);
        assert_eq!(found["orders"].fault.as_ref().map(|(seq, _)| *seq), Some(4));
        assert_eq!(found["other"], untouched(2));
    }
}

/// A chain's base says where it begins.
#[tokio::test(flavor = "multi_thread")]
async fn a_moved_base_is_found() {
    let db = Database::create("audit_base").await;
    let writer = orders(&db).await;
    let kept = anchor(&writer).await;
    assert_eq!(prune(&admin(&db).await, "orders", 5).await.expect("pruned"), 4);
    let connection = tamperer(&db).await;
    let pruned = Verdict { entries: 5, redacted: 4, fault: None };
    assert_eq!(verdict(&connection, "'orders'").await, pruned);
    for (base, seq) in [
        ("base_hash = 'sha256:' || repeat('0', 64)", 5),
        ("base_hash = left(base_hash, -1) || 'x'", 5),
        ("base_hash = (select hash from agent_sessions.audit_event where seq = 5)", 5),
        ("base_seq = 3", 4),
        ("base_seq = 1", 2),
        ("base_seq = 0, base_hash = null", 1),
        // What is left below is not of the chain.
        ("base_seq = 5", 5),
        ("base_seq = 6", 5),
        ("base_seq = 9", 5),
    ] {
        connection.begin("read committed").await;
        connection.run(&format!("update agent_sessions.audit_chain set {base}")).await;
        assert_eq!(first_bad(&connection, "'orders'").await, Some(seq), "{base}");
        connection.rollback().await;
        assert_eq!(verdict(&connection, "'orders'").await, pruned, "after {base}");
    }
    // Events that the base says are gone: they are shown, so they are looked at.
    for forged in [1, 4] {
        connection.begin("read committed").await;
        connection
            .run(&format!(
                "insert into agent_sessions.audit_event
                 select tenant, stream, {forged}, null, occurred_at, recorded_at, 'forged', actor, target, session_id, status, attrs,
                   payload, fields, data, prev_hash, hash
                 from agent_sessions.audit_event where seq = 5"
            ))
            .await;
        assert_eq!(first_bad(&connection, "'orders'").await, Some(forged), "an event below the base");
        connection.rollback().await;
    }
    // The chain's row is gone: nothing says that the beginning was pruned.
    connection.begin("read committed").await;
    connection.run("delete from agent_sessions.audit_chain").await;
    assert_eq!(first_bad(&connection, "'orders'").await, Some(1));
    connection.rollback().await;
    assert_eq!(lost(&writer, &kept).await, None);
}

/// Rows are read a thousand at a time.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_behind_the_first_thousands_is_found() {
    let db = Database::create("audit_thousands").await;
    let writer = db.writer().await;
    writer.run("set agent_sessions.tenant = 'acme'").await;
    fill(&writer, "orders", 2_005).await;
    let tamperer = Tamperer::of(&db, "orders", 2_005).await;
    let event = "agent_sessions.audit_event";
    for seq in [999, 1_000, 1_001, 1_003, 2_000, 2_001, 2_004] {
        tamperer.assert_found(&format!("delete from {event} where seq = {seq}"), seq, Missing).await;
        tamperer.assert_found(&format!("update {event} set data = data || ' ' where seq = {seq}"), seq, Text).await;
        tamperer.assert_found(&format!("update {event} set actor = 'eve' where seq = {seq}"), seq, Columns).await;
        tamperer.assert_found(&format!("update {event} set prev_hash = hash where seq = {seq}"), seq, Link).await;
    }
    tamperer.assert_found(&format!("update {event} set actor = 'eve' where seq in (2003, 1003)"), 1_003, Columns).await;
}
