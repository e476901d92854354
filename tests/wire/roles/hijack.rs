//! Objects of an attacker's, in the schemas that a search path names first, are never what the engine means.

use agent_sessions_tests::{Connection, Database, Role, assert_sqlstate, detail, sqlstate};
use serde_json::json;
use tokio_postgres::SimpleQueryMessage;

/// Everything that the engine's statements could find instead of what they mean, if they looked names up.
const ATTACK: &str = r#"
    create schema attack;
    grant usage on schema attack to public;
    do $do$
    declare
      kind text;
      symbol text;
      signature text;
      number integer := 0;
      body text := $body$ language plpgsql as $f$ begin raise exception 'hijacked'; end $f$ $body$;
    begin
      foreach kind in array array['bigint', 'integer', 'text', 'name', 'oid', 'boolean', 'jsonb', 'bytea', 'uuid',
                                  'timestamptz', 'numeric', 'regrole', 'text[]', 'interval'] loop
        number := number + 1;
        execute format('create function attack.compare_%s(%s, %s) returns boolean', number, kind, kind) || body;
        foreach symbol in array array['=', '<>', '<', '>', '<=', '>=', '+', '-', '||', '@>'] loop
          execute format('create operator attack.%s (leftarg = %s, rightarg = %s, function = attack.compare_%s)',
            symbol, kind, kind, number);
        end loop;
      end loop;
      foreach signature in array array[
        'now()', 'clock_timestamp()', 'lower(text)', 'position(text, text)', 'octet_length(text)', 'sha256(bytea)',
        'count()', 'max(bigint)', 'min(bigint)', 'sum(bigint)', 'unnest(text[])', 'unnest(bigint[])', 'unnest(anyarray)',
        'json_array_elements(json)', 'jsonb_typeof(jsonb)', 'gen_random_uuid()', 'array_agg(text)', 'current_setting(text)',
        'set_config(text, text, boolean)', 'current_tenant()', 'current_agent()', 'isolated_agent()',
        'log_of(text, text, text)', 'page_rows(integer, integer)', 'session_append(text, json)', 'quote_ident(text)',
        'has_privs_of_role(oid, oid)', 'pg_has_role(name, text)', 'length(text)', 'char_length(text)'
      ] loop
        execute format('create function attack.%s returns text', signature) || body;
      end loop;
      foreach kind in array array['pg_class', 'pg_extension', 'pg_roles', 'pg_authid', 'pg_auth_members', 'pg_proc',
                                  'pg_namespace', 'session', 'session_item', 'setting', 'tenant_binding', 'live_item',
                                  'session_head'] loop
        execute format('create table attack.%I ()', kind);
      end loop;
      foreach kind in array array['text', 'json', 'jsonb', 'name', 'oid', 'bytea', 'uuid', 'timestamptz', 'regrole',
                                  'regclass', 'int8', 'bool'] loop
        execute format('create type attack.%I as enum (''hijacked'')', kind);
      end loop;
    end
    $do$"#;

const HIJACKED_PATH: &str = "set search_path = attack, pg_temp, public, pg_catalog";

/// Statements in the simplest form, since everything else would be looked up in the attacker's schema as well.
async fn rows(connection: &Connection, sql: &str) -> Vec<Vec<Option<String>>> {
    let messages = connection.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    messages
        .into_iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
            }
            _ => None,
        })
        .collect()
}

async fn one(connection: &Connection, sql: &str) -> String {
    let rows = rows(connection, sql).await;
    assert_eq!(rows.len(), 1, "{sql}");
    rows[0][0].clone().unwrap_or_else(|| panic!("{sql}: NULL"))
}

async fn write_and_read(writer: &Connection, session: &str) {
    let call = |function: &str, arguments: &str| {
        format!("select * from agent_sessions.{function}(session_id => '{session}'{arguments})")
    };
    let create = ", title => 'T', metadata => '{\"m\": 1}', state => '{\"a\": 1}', owner => 'o', cost => 1,
                  items => '[{\"payload\": 0, \"item_id\": \"first\"}]'";
    assert_eq!(one(writer, &call("session_create", create)).await, session);
    assert_eq!(one(writer, &call("session_append", ", payload => '1', tag => 't', attrs => '{\"k\": 1}'")).await, "1");
    assert_eq!(one(writer, &call("session_append", ", payload => '0', item_id => 'first'")).await, "0");
    let batch = ", items => '[{\"payload\": 2}, {\"payload\": 3, \"item_id\": \"i\", \"attrs\": {\"k\": 2}}]'";
    assert_eq!(rows(writer, &call("session_append_batch", batch)).await.len(), 2);
    assert_eq!(one(writer, &call("session_revise", ", payload => '4', item_id => 'i'")).await, "4");
    assert_eq!(one(writer, &call("session_retract", ", targets => '{1}', item_ids => '{first}'")).await, "2");
    assert_eq!(one(writer, &call("session_pop", "")).await, "3");
    assert_eq!(one(writer, &call("session_retract", ", from_target => 2")).await, "1");
    assert_eq!(
        one(writer, &call("session_set", ", state => '{\"b\": 2}', metadata => '{\"n\": 1}', merge => true")).await,
        "1"
    );
    let insert = "insert into agent_sessions.session_item (sid, payload) select sid, '5' from agent_sessions.session";
    writer.batch_execute(insert).await.expect("a raw INSERT");
    writer.batch_execute("update agent_sessions.session set title = 'U'").await.expect("a raw UPDATE");

    for (arguments, wanted) in [
        ("", 1),
        (", after => 3, before => 99, max_rows => 5, newest_first => true", 1),
        (", kinds => '{message}', attrs => '{}'", 0),
        (", tags => '{t}'", 0),
        (", item_ids => '{i}'", 0),
    ] {
        assert_eq!(rows(writer, &call("session_history", arguments)).await.len(), wanted, "{arguments}");
    }
    assert_eq!(rows(writer, &call("session_log", "")).await.len(), 10);
    assert_eq!(rows(writer, &call("session_stats", "")).await.len(), 1);
    assert_eq!(rows(writer, &call("session_get", "")).await[0][6].as_deref(), Some("{\"a\":1,\"b\":2}"));
    for arguments in
        ["", "title => 'u', metadata => '{\"m\": 1}', owner => 'o'", "order_by => 'activity', agent_id => ''"]
    {
        assert_eq!(rows(writer, &format!("select * from agent_sessions.session_list({arguments})")).await.len(), 1);
    }
    assert_eq!(rows(writer, "select * from agent_sessions.live_item").await.len(), 1);
    assert_eq!(rows(writer, &call("session_context", "")).await.len(), 1);
    let verdict = rows(writer, &call("session_verify", "")).await;
    assert_eq!(verdict, [[Some("10".to_owned()), Some("0".to_owned()), Some("t".to_owned()), None, None]]);
    let lease = one(writer, &call("session_claim", ", ttl => '1 minute', holder => 'h'")).await;
    let given = format!(", lease => '{lease}'");
    assert_eq!(one(writer, &call("session_append", &format!(", payload => '6'{given}"))).await, "10");
    assert_eq!(one(writer, &call("session_extend", &format!(", ttl => '1 hour'{given}"))).await, lease);
    assert_eq!(rows(writer, "select * from agent_sessions.lease_status").await.len(), 1);
    assert_eq!(one(writer, &call("session_release", &given)).await, "t");
    assert_eq!(one(writer, "select agent_sessions.tenant_use(tenant => 'a')").await, "a");
    rows(writer, "select agent_sessions.schema_version(), agent_sessions.schema_require(min => '0.0.0')").await;
    assert_eq!(one(writer, &call("session_delete", "")).await, "t");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_attackers_runs() {
    let db = Database::create("roles_hijack").await;
    let role = db.role("guest", None).await;
    db.superuser().await.run(ATTACK).await;

    let hijacked = db.writer().await;
    hijacked
        .run(&format!(
            "create temp table session (); create temp table session_item (); create temp table setting ();
             create temp table tenant_binding (); {HIJACKED_PATH}"
        ))
        .await;
    for sql in [
        "select now()",
        "select 1::pg_catalog.int8 = 1::pg_catalog.int8",
        "select 'a'::pg_catalog.text = 'b'::pg_catalog.text",
    ] {
        let error = hijacked.simple_query(sql).await.err().unwrap_or_else(|| panic!("{sql}: the attack does not work"));
        assert_eq!(sqlstate(&error), "P0001", "{sql}: {error:?}");
    }
    write_and_read(&hijacked, "hijacked").await;

    // Plans that were made before, and are made again under the attacker's path.
    let replanned = db.writer().await;
    write_and_read(&replanned, "before").await;
    db.superuser()
        .await
        .run("analyze agent_sessions.session; analyze agent_sessions.session_item; discard plans")
        .await;
    replanned.run(HIJACKED_PATH).await;
    write_and_read(&replanned, "after").await;

    for connection in [db.owner().await, db.superuser().await] {
        connection.run(HIJACKED_PATH).await;
        for call in [
            format!("select agent_sessions.access_grant(role => '{role}', level => 'writer')"),
            format!("select agent_sessions.tenant_bind(role => '{role}', tenant => 'a')"),
            "select agent_sessions.access_force_rls(enabled => true)".to_owned(),
            "select agent_sessions.access_force_rls(enabled => false)".to_owned(),
        ] {
            rows(&connection, &call).await;
        }
        let bound = db.connect(Role::Named(role.clone())).await;
        bound.run(HIJACKED_PATH).await;
        let refused = bound.simple_query("select agent_sessions.current_tenant()").await.map(|_| ());
        let error = assert_sqlstate!(refused, "SE019");
        assert_eq!(detail(&error), json!({"tenant": "", "role": role}));
        bound.run("set agent_sessions.tenant = 'a'").await;
        write_and_read(&bound, "bound").await;
        rows(&connection, &format!("select agent_sessions.tenant_unbind(role => '{role}', tenant => 'a')")).await;
        rows(&connection, &format!("select agent_sessions.access_revoke(role => '{role}')")).await;
    }
}
