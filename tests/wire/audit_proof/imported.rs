//! The columns of imported events are those that their fields name in the text.

use agent_sessions_tests::{Database, assert_sqlstate, detail};
use serde_json::json;

use super::*;
use Fault::{Columns, Missing, Text};

/// The events of a chain that was made elsewhere.
pub const IMPORTED: i64 = 6;

/// Imports a chain, computed here, into the stream `old` of the tenant acme.
pub async fn import(writer: &Connection, fields: &str) {
    let (first, next) = (hash("'sha256:' || repeat('0', 64)", "data"), hash("c.hash", "t.data"));
    let lines = format!(
        r#"with recursive texts (n, data) as (
             select n, format('{{ "n":%s, "type":"look", "user":{{"id":"ann é %s", "id ":"x"}}, "when":"2001-02-03T04:05:06.%s+01:00",
               "more":{{"b":[1, %s], "a":1e2}}, "empty":null, "flag":true, "nothing":{{"at":null}} }}', n, n, n, n)
             from generate_series(1, {IMPORTED}) n
           ), chain (n, data, hash) as (
             select n, data, {first} from texts where n = 1
             union all
             select t.n, t.data, {next} from chain c join texts t on t.n = c.n + 1
           )
           select json_agg(json_build_object('data', data, 'hash', hash) order by n)::text from chain"#
    );
    let lines: String = writer.value(&lines, &[]).await;
    let import = "select agent_sessions.audit_import('old', $1::text::json, $2::text::jsonb)";
    assert_eq!(writer.value::<i64>(import, &[&lines, &fields]).await, IMPORTED);
}

const FIELDS: &str = r#"{"action": "type", "actor": ["user", "id"], "occurred_at": "when", "attrs": "more", "status": "flag",
    "target": "empty", "session_id": ["nothing", "at"]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_column_of_an_imported_event_is_found() {
    let db = Database::create("audit_imported").await;
    let writer = db.writer().await;
    writer.run("set agent_sessions.tenant = 'acme'").await;
    import(&writer, FIELDS).await;
    let row = writer
        .query_one(
            "select concat_ws('|', action, actor, status, target, session_id, event_id, attrs,
               extract(epoch from occurred_at - '2001-02-03 03:05:06+00') * 10)
             from agent_sessions.audit_event where seq = 2",
            &[],
        )
        .await
        .expect("the event");
    assert_eq!(row.get::<_, String>(0), r#"look|ann é 2|true|{"a": 100, "b": [1, 2]}|2.000000"#);

    let tamperer = Tamperer::of(&db, "old", IMPORTED).await;
    for change in [
        "action = 'Look'",
        "action = null",
        "actor = 'ann'",
        "actor = null",
        "status = 'false'",
        "status = null",
        "target = ''",
        "target = 'null'",
        "session_id = 's'",
        "event_id = 'e'",
        "occurred_at = occurred_at + interval '1 microsecond'",
        "occurred_at = occurred_at + interval '1 hour'",
        "occurred_at = null",
        "attrs = attrs || '{\"a\": 101}'",
        "attrs = attrs - 'a'",
        "attrs = '{}'",
        "attrs = null",
        // A mapping that does not give these columns, or is none.
        "fields = '{}'",
        "fields = fields - 'actor'",
        "fields = fields || '{\"event_id\": \"type\"}'",
        "fields = jsonb_set(fields, '{actor}', '[\"user\", \"id \"]')",
        "fields = jsonb_set(fields, '{action}', '\"when\"')",
        "fields = fields || '{\"seq\": \"n\"}'",
        "fields = fields || '{\"action\": 1}'",
        "fields = '[]'",
        "fields = 'null'",
        "fields = '\"type\"'",
        // As if the database had made it.
        "fields = null",
    ] {
        for seq in [1, 2, IMPORTED] {
            // The table's constraints let only columns of the imported go.
            let sql = format!("update agent_sessions.audit_event set {change} where seq = {seq}");
            tamperer.assert_found(&sql, seq, Columns).await;
        }
    }
    for change in ["data = data || ' '", "data = replace(data, 'look', 'Look'), action = 'Look'", "data = '{}'"] {
        tamperer.assert_found(&format!("update agent_sessions.audit_event set {change} where seq = 4"), 4, Text).await;
    }
    tamperer.assert_found("delete from agent_sessions.audit_event where seq = 5", 5, Missing).await;
}

/// What the database appends behind an imported chain is checked as its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_both_kinds_verifies_and_is_found_out() {
    let db = Database::create("audit_mixed").await;
    let writer = db.writer().await;
    writer.run("set agent_sessions.tenant = 'acme'").await;
    import(&writer, FIELDS).await;
    fill(&writer, "old", 3).await;
    let tamperer = Tamperer::of(&db, "old", IMPORTED + 3).await;
    assert_eq!(tamperer.verdict().await, untouched(IMPORTED + 3));
    for seq in [IMPORTED, IMPORTED + 1, IMPORTED + 3] {
        let change = format!("update agent_sessions.audit_event set actor = 'eve' where seq = {seq}");
        tamperer.assert_found(&change, seq, Columns).await;
        let mark = format!(
            "update agent_sessions.audit_event set fields = case when fields is null then '{{}}'::jsonb end where seq = {seq}"
        );
        tamperer.assert_found(&mark, seq, Columns).await;
    }
}

/// Nothing in a hash says that an event was imported: its text does, which is not one that the database builds for that place.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_the_streams_own_is_no_import_whatever_its_row_says() {
    let db = Database::create("audit_own_events").await;
    let (writer, superuser) = (db.writer().await, db.superuser().await);
    writer
        .run(
            r#"set agent_sessions.tenant = 'acme';
               select agent_sessions.audit_append('look', '{"a": "\u0000"}', 's', 'ann', 'door', 'chat', 'ok', '{"b": [1.50], "a": 1e2}', '2001-02-03', 'e1');
               select agent_sessions.audit_append('look', null, 's');
               select agent_sessions.audit_append('leave', ' [1] ', 's')"#,
        )
        .await;
    let all = "select string_agg(e::text, E'\\n' order by seq) from agent_sessions.audit_list('s') e";
    let before: String = writer.value(all, &[]).await;
    let lines: String =
        writer.value("select json_agg(l::json)::text from agent_sessions.audit_export('s') l", &[]).await;
    let verified = "select ok || ' ' || coalesce(first_bad_seq, 0) from agent_sessions.audit_verify('s')";

    // Lost, and brought back from an export: they are what they were.
    superuser
        .run(
            "set session_replication_role = replica; delete from agent_sessions.audit_event;
             delete from agent_sessions.audit_chain; reset session_replication_role",
        )
        .await;
    let import = "select agent_sessions.audit_import('s', $1::text::json)";
    assert_eq!(writer.value::<i64>(import, &[&lines]).await, 3);
    assert_eq!(writer.value::<String>(all, &[]).await, before);
    assert_eq!(writer.value::<String>(verified, &[]).await, "true 0");

    for mark in ["fields = '{}', action = null, actor = null, occurred_at = null", "fields = '{}'"] {
        superuser
            .run(&format!(
                "set session_replication_role = replica; create table public.kept as table agent_sessions.audit_event;
                 update agent_sessions.audit_event set {mark} where seq = 2; reset session_replication_role"
            ))
            .await;
        assert_eq!(writer.value::<String>(verified, &[]).await, "false 2", "{mark}");
        superuser
            .run(
                "set session_replication_role = replica; delete from agent_sessions.audit_event;
                 insert into agent_sessions.audit_event table public.kept; drop table public.kept;
                 reset session_replication_role",
            )
            .await;
    }

    // A text that pretends to be one of the stream's, and is not what its columns would make.
    let forged = r#"with forged (data) as (
                      select '{"seq":4,"tenant":"acme","stream":"s","occurred_at":"2001-02-03T00:00:00.000000Z","action":"x","payload":1}')
                    select json_build_array(json_build_object('data', data, 'hash', 'sha256:' || encode(sha256(convert_to(
                      (select head_hash from agent_sessions.audit_stream where stream = 's') || E'\n' || data, 'UTF8')), 'hex')))::text
                    from forged"#;
    let forged: String = writer.value(forged, &[]).await;
    let error = assert_sqlstate!(writer.query(import, &[&forged]).await, "SE017");
    assert_eq!(detail(&error), json!({"column": "data", "position": 4}));
}
