//! The rules of the tables: an event is written once by whatever statement, and is never changed or removed.

use agent_sessions_tests::{Connection, Database, Error, assert_sqlstate, detail, sqlstate};
use serde_json::json;

use super::{Event, assert_chained, column, copy, count, export, in_tenant, texts};

/// An event in each of two tenants and streams, and an anchor.
async fn filled(db: &Database) {
    for tenant in ["", "a"] {
        let writer = in_tenant(db, tenant).await;
        for stream in ["s", "t"] {
            Event { event_id: Some("e"), ..Event::in_stream(stream, "a") }.append(&writer).await;
            Event::in_stream(stream, "b").append(&writer).await;
        }
        writer.run("select agent_sessions.audit_anchor()").await;
    }
}

async fn stored(db: &Database) -> Vec<String> {
    let tables = ["audit_event", "audit_chain", "audit_anchor", "audit_anchor_leaf"];
    let rows = tables.map(|table| format!("select '{table}' || to_json(t)::text from agent_sessions.{table} t"));
    texts(&db.superuser().await, &format!("{} order by 1", rows.join(" union all "))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_changes_or_removes_an_event() {
    let db = Database::create("audit_append_only").await;
    filled(&db).await;
    let before = stored(&db).await;
    assert_eq!(before.len(), 8 + 4 + 2 + 4);
    let mut changes: Vec<String> = texts(
        &db.superuser().await,
        "select 'update agent_sessions.audit_event set ' || quote_ident(attname) || ' = ' || quote_ident(attname)
         from pg_attribute where attrelid = 'agent_sessions.audit_event'::regclass and attnum > 0",
    )
    .await;
    assert_eq!(changes.len(), 17);
    changes.extend(
        [
            "update agent_sessions.audit_event set action = 'x'",
            "update agent_sessions.audit_event set data = 'x', hash = 'sha256:x' where seq = 2",
            "update agent_sessions.audit_event set seq = 3 where seq = 2",
            "update agent_sessions.audit_event set tenant = 'b'",
            "update agent_sessions.audit_event set fields = '{}'",
            "delete from agent_sessions.audit_event",
            "delete from agent_sessions.audit_event where seq = 2",
            "delete from agent_sessions.audit_event where stream = 's' and tenant = ''",
            "truncate agent_sessions.audit_event",
            "truncate agent_sessions.audit_event, agent_sessions.audit_chain cascade",
        ]
        .map(str::to_owned),
    );
    for connection in [db.owner().await, db.superuser().await] {
        for change in &changes {
            let error = assert_sqlstate!(connection.batch_execute(change).await, "SE014");
            if !change.starts_with("truncate") {
                assert_eq!(detail(&error)["object"], "audit_event", "{change}");
            }
        }
    }
    assert_eq!(stored(&db).await, before);
    let writer = db.writer().await;
    for change in &changes {
        assert_sqlstate!(writer.batch_execute(change).await, "42501");
    }
    assert_eq!(stored(&db).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_would_change_no_event_changes_none() {
    let db = Database::create("audit_no_change").await;
    filled(&db).await;
    let owner = db.owner().await;
    for nothing in [
        "update agent_sessions.audit_event set action = 'x' where false",
        "delete from agent_sessions.audit_event where seq > 9",
    ] {
        assert_eq!(owner.execute(nothing, &[]).await.expect(nothing), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_changes_or_removes_a_chain_or_an_anchor() {
    let db = Database::create("audit_chain_rules").await;
    filled(&db).await;
    let before = stored(&db).await;
    for connection in [db.owner().await, db.superuser().await] {
        for change in [
            "delete from agent_sessions.audit_chain",
            "update agent_sessions.audit_chain set stream = 'x'",
            "update agent_sessions.audit_chain set tenant = 'x'",
            "update agent_sessions.audit_chain set base_seq = 0",
            "update agent_sessions.audit_chain set base_seq = 5, base_hash = 'sha256:x'",
            "update agent_sessions.audit_chain set base_seq = 1, base_hash = 'sha256:x'",
            "truncate agent_sessions.audit_chain",
            "truncate agent_sessions.audit_anchor",
            "truncate agent_sessions.audit_anchor_leaf",
        ] {
            assert_sqlstate!(connection.batch_execute(change).await, "SE014");
        }
    }
    assert_eq!(stored(&db).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_insert_is_chained_in_every_form() {
    let db = Database::create("audit_raw").await;
    let writer = db.writer().await;
    for (rows, written, total) in [
        ("(stream, action) values ('s', 'one')", 1, 1),
        ("(stream, action) values ('s', 'two'), ('s', 'three'), ('s', 'four')", 3, 4),
        ("(stream, action, payload) select 's', 'n' || n, to_json(n) from generate_series(1, 50) n", 50, 54),
        ("(stream, action) values ('s', 'five') on conflict do nothing", 1, 55),
        (
            "(stream, action, event_id) values ('s', 'a', 'e'), ('s', 'a', 'e'), ('s', 'b', null) on conflict do nothing",
            2,
            57,
        ),
        ("(stream, action, event_id) values ('s', 'a', 'e')", 0, 57),
        ("(tenant, stream, action) values ('', 's', 'named')", 1, 58),
        ("(tenant, stream, action) values (null, 's', 'null is not given')", 1, 59),
        ("(stream, action) select s, 'both' from unnest('{s,t,s,t}'::text[]) s", 4, 61),
        ("(stream, action, seq) values ('s', 'at its place', 62)", 1, 62),
        (
            "(stream, action, seq, prev_hash) select 's', 'linked', head_seq + 1, head_hash
             from agent_sessions.audit_stream where stream = 's'",
            1,
            63,
        ),
        ("(stream, action, prev_hash) select 'new', 'first', 'sha256:' || repeat('0', 64)", 1, 63),
    ] {
        let insert = format!("insert into agent_sessions.audit_event {rows}");
        let inserted = writer.execute(&insert, &[]).await.unwrap_or_else(|error| panic!("{insert}\n{error:?}"));
        assert_eq!(inserted, written, "{insert}");
        assert_chained(&writer, "s", total).await;
    }
    let twice = "with written as (
            insert into agent_sessions.audit_event (stream, action) values ('s', 'w') returning seq)
          insert into agent_sessions.audit_event (stream, action) select 's', 'after ' || seq from written";
    assert_eq!(writer.execute(twice, &[]).await.expect("two INSERTs in one statement"), 1);
    assert_chained(&writer, "s", 65).await;
    assert_chained(&writer, "t", 2).await;
    assert_chained(&writer, "new", 1).await;
    assert_eq!(column(&writer, "s", "action").await[54..56], ["five", "a"]);
    // The order of a statement's rows is the order of the chain.
    let rows: Vec<String> = (1..=50).map(|n| format!("n{n}")).collect();
    assert_eq!(column(&writer, "s", "action").await[4..54], rows);
    assert_eq!(column(&writer, "s", "action").await[63..], ["w", "after 64"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_copy_are_chained() {
    let db = Database::create("audit_copy").await;
    let owner = db.owner().await;
    let lines = [
        "s\tone\t{\"a\":\"x\\\\u0000\"}\t\\N",
        "s\ttwo\t\\N\te",
        "t\tone\t[1,\\n2]\t\\N",
        "s\ttwo\t\\N\te",
        "s\tthree\t 7 \t\\N\n",
    ];
    let lines = &lines.join("\n");
    let sql = "copy agent_sessions.audit_event (stream, action, payload, event_id) from stdin";
    // One of them is a replay.
    assert_eq!(copy(&owner, sql, lines).await.expect("a COPY"), 4);
    let payloads = column(&owner, "s", "substring(data from '\"payload\":(.*)}$')").await;
    assert_eq!(payloads, [r#"{"a":"x\u0000"}"#, "null", " 7 "]);
    assert_eq!(column(&owner, "t", "substring(data from '\"payload\":(.*)}$')").await, ["[1,\n2]"]);
    assert_chained(&owner, "s", 3).await;
    assert_chained(&owner, "t", 1).await;
    let refused = copy(&owner, sql, "s\tfour\t\\N\t\\N\ns\t\\N\t\\N\t\\N\n").await;
    assert_sqlstate!(refused, "SE001");
    assert_chained(&owner, "s", 3).await;
    // PostgreSQL has no COPY FROM for roles that policies bind.
    assert_sqlstate!(copy(&db.writer().await, sql, lines).await, "0A000");
}

async fn refused_insert(connection: &Connection, columns: &str, values: &str) -> Error {
    let insert =
        format!("insert into agent_sessions.audit_event (stream, action, {columns}) values ('s', 'a', {values})");
    connection.batch_execute(&insert).await.expect_err(&insert)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_given_place_or_hash_is_verified() {
    let db = Database::create("audit_given").await;
    for connection in [db.writer().await, db.owner().await, db.superuser().await] {
        let next = count(&connection, "agent_sessions.audit_event").await + 2;
        Event::in_stream("s", "a").append(&connection).await;
        for seq in [next - 1, next + 1, 0, -1, i64::MAX] {
            let error = refused_insert(&connection, "seq", &seq.to_string()).await;
            assert_eq!(sqlstate(&error), "SE017", "{seq}");
            assert_eq!(detail(&error), json!({"column": "seq", "position": next}));
        }
        let zeros = format!("'sha256:{}'", "0".repeat(64));
        for (columns, values) in [
            ("prev_hash", zeros.clone()),
            ("prev_hash", "''".to_owned()),
            ("hash", zeros.clone()),
            ("hash", "'x'".to_owned()),
            ("seq, prev_hash", format!("{next}, {zeros}")),
            ("seq, hash", format!("{next}, {zeros}")),
        ] {
            let error = refused_insert(&connection, columns, &values).await;
            assert_eq!(sqlstate(&error), "SE017", "{columns}");
            let named = columns.rsplit(' ').next().expect("a column");
            assert_eq!(detail(&error), json!({"column": named, "position": next}));
        }
        assert_chained(&connection, "s", next - 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_engine_sets_is_not_the_clients_to_give() {
    let db = Database::create("audit_set").await;
    let (writer, owner) = (db.writer().await, db.owner().await);
    for (column, value) in [("fields", "'{}'"), ("data", "'x'"), ("recorded_at", "now()")] {
        let error = refused_insert(&writer, column, value).await;
        assert_eq!(sqlstate(&error), "42501", "{column}");
    }
    for (column, value) in [("fields", "'{}'"), ("data", "'x'"), ("data, hash", "'x', 'y'"), ("seq, data", "1, 'x'")] {
        let error = refused_insert(&owner, column, value).await;
        assert_eq!(sqlstate(&error), "SE001", "{column}");
    }
    // What the owner says of the server's clock is not believed.
    owner
        .run("insert into agent_sessions.audit_event (stream, action, recorded_at) values ('s', 'a', '2001-01-01')")
        .await;
    assert_eq!(count(&owner, "agent_sessions.audit_event where recorded_at > now() - interval '1 hour'").await, 1);
    assert_chained(&owner, "s", 1).await;
    let upsert = "insert into agent_sessions.audit_event (stream, action) values ('s', 'a')
                  on conflict (tenant, stream, seq) do update set action = 'x'";
    assert_sqlstate!(writer.batch_execute(upsert).await, "42501");
}

/// A full row, as a restore brings it.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_row_of_the_owners_has_to_follow_from_the_one_before() {
    let db = Database::create("audit_full_rows").await;
    let (writer, owner) = (db.writer().await, db.owner().await);
    for number in 0..4 {
        Event { payload: Some("[1]"), event_id: Some(&number.to_string()), ..Event::in_stream("s", "a") }
            .append(&writer)
            .await;
    }
    let columns = "event_id, occurred_at, recorded_at, action, actor, target, session_id, status, attrs, fields";
    let full = |seq: i64, data: &str, prev_hash: &str, hash: &str| {
        format!(
            "insert into agent_sessions.audit_event (tenant, stream, seq, data, prev_hash, hash, {columns})
             select tenant, 'copy', seq, {data}, {prev_hash}, {hash}, {columns}
             from agent_sessions.audit_event where stream = 's' and seq = {seq}"
        )
    };
    let wrong = "'sha256:' || repeat('1', 64)";
    let rehashed = |prev_hash: &str, data: &str| {
        format!("'sha256:' || encode(sha256(convert_to({prev_hash} || E'\\n' || {data}, 'UTF8')), 'hex')")
    };
    for connection in [&owner, &db.superuser().await] {
        connection.begin("read committed").await;
        connection.run(&full(1, "data", "prev_hash", "hash")).await;
        connection.run(&full(2, "data", "prev_hash", "hash")).await;
        for (sql, named, position) in [
            (full(3, "data", "prev_hash", wrong), "hash", 3),
            (full(3, "data || ' '", "prev_hash", "hash"), "hash", 3),
            (full(3, "data", wrong, "hash"), "hash", 3),
            // A chain of its own that does not follow.
            (full(3, "data", wrong, &rehashed(wrong, "data")), "prev_hash", 3),
        ] {
            connection.run("savepoint s").await;
            let error = assert_sqlstate!(connection.batch_execute(&sql).await, "SE017");
            assert_eq!(detail(&error), json!({"column": named, "position": position}), "{sql}");
            connection.run("rollback to s").await;
        }
        connection.run(&full(3, "data", "prev_hash", "hash")).await;
        connection.run(&full(4, "data", "prev_hash", "hash")).await;
        assert_eq!(count(connection, "agent_sessions.audit_event where stream = 'copy'").await, 4);
        connection.rollback().await;
    }
    // The first has nothing before it but the genesis.
    let first = full(1, "data", wrong, &rehashed(wrong, "data"));
    let error = assert_sqlstate!(owner.batch_execute(&first).await, "SE017");
    assert_eq!(detail(&error), json!({"column": "prev_hash", "position": 1}));
    // One that is there already is not written again, nor instead.
    let again = full(1, "data", "prev_hash", "hash").replace("'copy'", "'s'");
    assert_sqlstate!(owner.batch_execute(&again).await, "23505");
    assert_eq!(owner.execute(&format!("{again} on conflict do nothing"), &[]).await.expect("nothing"), 0);
    let upsert = format!("{again} on conflict (tenant, stream, seq) do update set action = 'x'");
    assert_sqlstate!(owner.batch_execute(&upsert).await, "SE014");
    // A client that brings all of it is no restore.
    assert_sqlstate!(writer.batch_execute(&full(1, "data", "prev_hash", "hash")).await, "42501");
    assert_eq!(export(&owner, "copy").await, Vec::<String>::new());
}
