//! Sessions: creating, reading, listing, setting and deleting them.

use std::collections::{BTreeSet, HashSet};

use agent_sessions_tests::{Append, Connection, Database, assert_sqlstate, detail, sqlstate};
use serde_json::{Value, json};
use uuid::Uuid;

const SESSION_COLUMNS: [&str; 23] = [
    "session_id",
    "agent_id",
    "owner",
    "title",
    "status",
    "metadata",
    "state",
    "revision",
    "next_position",
    "last_entry_at",
    "input_tokens",
    "output_tokens",
    "cost",
    "origin",
    "parent_session_id",
    "branched_from",
    "fork_position",
    "lease_holder",
    "lease_expires_at",
    "expires_at",
    "created_at",
    "closed_at",
    "cursor",
];

/// The one row of a call, as JSON.
async fn row(connection: &Connection, call: &str) -> Value {
    let mut rows = rows(connection, call).await;
    assert_eq!(rows.len(), 1, "{call}: {rows:?}");
    rows.remove(0)
}

async fn rows(connection: &Connection, call: &str) -> Vec<Value> {
    let sql = format!("select row_to_json(r)::text from agent_sessions.{call} r");
    let rows = connection.query(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter().map(|row| serde_json::from_str(row.get(0)).expect("a row is JSON")).collect()
}

/// The session_ids of a list, in its order.
async fn listed(connection: &Connection, arguments: &str) -> Vec<String> {
    let ids = rows(connection, &format!("session_list({arguments})")).await;
    ids.iter().map(|row| row["session_id"].as_str().expect("a session_id").to_owned()).collect()
}

async fn revision(connection: &Connection, call: &str) -> Option<i64> {
    connection.value(&format!("select agent_sessions.{call}"), &[]).await
}

/// Walks through a list by the cursors of its last rows.
async fn pages(connection: &Connection, arguments: &str, rows_per_page: i32) -> Vec<Vec<(String, String)>> {
    let sql = format!(
        "select session_id, agent_id, cursor from agent_sessions.session_list(
            {arguments}, after => $1::text, max_rows => $2::int)"
    );
    let (mut after, mut pages) = (None::<String>, Vec::new());
    loop {
        let rows = connection.query(&sql, &[&after, &rows_per_page]).await;
        let rows = rows.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
        let Some(last) = rows.last() else { return pages };
        let before = after.replace(last.get(2));
        assert_ne!(after, before, "{arguments}: a page ends where the one before it did");
        pages.push(rows.iter().map(|row| (row.get(0), row.get(1))).collect());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_created_with_all_that_is_given() {
    let db = Database::create("create_all").await;
    let writer = db.writer().await;
    row(&writer, "session_create(session_id => 'parent', agent_id => 'planner')").await;
    let mut created = row(
        &writer,
        r#"session_create(
            session_id => 's', title => 'A title', metadata => '{"k": [1, 2]}', state => '{"b":1,"a":2}', owner => 'ines',
            origin => 'cli', parent_session_id => 'parent', parent_agent_id => 'planner',
            items => '[{"payload":1},{"payload":2,"item_id":"second"}]', status => 'running', input_tokens => 10,
            output_tokens => 20, cost => 0.000125, expires_at => '2100-01-01 00:00:00.000001+00',
            created_at => '2001-02-03 04:05:06.789012+00', on_conflict => 'error', agent_id => 'coder')"#,
    )
    .await;
    let stored = row(&writer, "session_get(session_id => 's', agent_id => 'coder', tenant => '')").await;
    assert_eq!(created, stored);
    let written = created["last_entry_at"].take();
    assert!(written.as_str().is_some_and(|at| at > "2026"), "{written}");
    let cursor = created["cursor"].take();
    assert!(cursor.as_str().is_some_and(|cursor| !cursor.is_empty()), "{cursor}");
    assert_eq!(
        created,
        json!({
            "session_id": "s", "agent_id": "coder", "owner": "ines", "title": "A title", "status": "running",
            "metadata": {"k": [1, 2]}, "state": {"b": 1, "a": 2}, "revision": 0, "next_position": 2,
            "last_entry_at": null, "input_tokens": 10, "output_tokens": 20, "cost": 0.000125, "origin": "cli",
            "parent_session_id": "parent", "branched_from": null, "fork_position": null, "lease_holder": null,
            "lease_expires_at": null, "expires_at": "2100-01-01T00:00:00.000001+00:00",
            "created_at": "2001-02-03T04:05:06.789012+00:00", "closed_at": null, "cursor": null
        })
    );
    let history =
        "select count(*) from agent_sessions.session_history('s', item_ids => '{second}', agent_id => 'coder')";
    assert_eq!(writer.value::<i64>(history, &[]).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_session_has_an_id_of_its_own_and_nothing_else() {
    let db = Database::create("create_bare").await;
    let writer = db.writer().await;
    let mut ids = HashSet::new();
    for call in ["session_create()", "session_create(session_id => null)", "session_create(title => null)"] {
        let created = row(&writer, call).await;
        let id = created["session_id"].as_str().expect("an id");
        let uuid: Uuid = id.parse().expect("a UUID");
        assert_eq!((uuid.get_version_num(), uuid.to_string().as_str()), (7, id));
        assert!(ids.insert(id.to_owned()));
        let milliseconds = uuid.get_timestamp().expect("a time in it").to_unix().0;
        let skew = "select abs(extract(epoch from clock_timestamp())::bigint - $1::bigint)";
        assert!(writer.value::<i64>(skew, &[&(milliseconds as i64)]).await < 60, "{id}");
        for (column, value) in created.as_object().expect("a row") {
            let expected = match column.as_str() {
                "session_id" | "created_at" | "cursor" => continue,
                "agent_id" => json!(""),
                "revision" | "next_position" => json!(0),
                _ => Value::Null,
            };
            assert_eq!(*value, expected, "{column}");
        }
    }
}

/// The columns of a session's row; a list leaves the state out.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_sessions_have_the_documented_columns() {
    let db = Database::create("session_columns").await;
    let writer = db.writer().await;
    let columns = async |call: &str| -> Vec<String> {
        let statement = writer.prepare(&format!("select * from agent_sessions.{call}")).await.expect("a statement");
        statement.columns().iter().map(|column| column.name().to_owned()).collect()
    };
    assert_eq!(columns("session_get(session_id => 's')").await, SESSION_COLUMNS);
    assert_eq!(columns("session_create(session_id => 's')").await, SESSION_COLUMNS);
    let without_state: Vec<&str> = SESSION_COLUMNS.into_iter().filter(|column| *column != "state").collect();
    assert_eq!(columns("session_list()").await, without_state);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_session_of_the_same_id_is_refused_or_kept() {
    let db = Database::create("create_conflict").await;
    let writer = db.writer().await;
    let first = row(
        &writer,
        r#"session_create(session_id => 's', title => 'first', state => '{"a":1}', items => '[{"payload":1}]')"#,
    )
    .await;
    for call in [
        "session_create(session_id => 's')",
        "session_create(session_id => 's', on_conflict => null)",
        "session_create(session_id => 's', items => '[{\"payload\":1}]')",
    ] {
        let refused = writer.query(&format!("select * from agent_sessions.{call}"), &[]).await;
        assert_eq!(detail(&assert_sqlstate!(refused, "SE003")), json!({"session_id": "s", "agent_id": ""}));
    }
    let kept = row(
        &writer,
        r#"session_create(session_id => 's', title => 'second', state => '{"a":2}', owner => 'x',
            items => '[{"payload":2}]', input_tokens => 7, on_conflict => 'keep')"#,
    )
    .await;
    assert_eq!(kept, first);
    writer.assert_dense("s", 1).await;
    // Another agent's, another tenant's: another session.
    row(&writer, "session_create(session_id => 's', agent_id => 'coder')").await;
    writer.run("set agent_sessions.tenant = 'other'").await;
    row(&writer, "session_create(session_id => 's')").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_is_looked_up_under_its_agent() {
    let db = Database::create("create_parent").await;
    let writer = db.writer().await;
    row(&writer, "session_create(session_id => 'parent', agent_id => 'planner')").await;
    let refused = writer.query("select * from agent_sessions.session_create(parent_session_id => 'parent')", &[]).await;
    assert_eq!(detail(&assert_sqlstate!(refused, "SE002")), json!({"session_id": "parent", "agent_id": ""}));
    let same =
        row(&writer, "session_create(session_id => 'a', parent_session_id => 'parent', agent_id => 'planner')").await;
    assert_eq!(same["parent_session_id"], "parent");
    writer.run("set agent_sessions.agent = 'planner'").await;
    let by_setting = row(&writer, "session_create(session_id => 'b', parent_session_id => 'parent')").await;
    assert_eq!((&by_setting["parent_session_id"], &by_setting["agent_id"]), (&json!("parent"), &json!("planner")));
    writer.run("set agent_sessions.tenant = 'other'").await;
    let elsewhere =
        writer.query("select * from agent_sessions.session_create(parent_session_id => 'parent')", &[]).await;
    assert_sqlstate!(elsewhere, "SE002");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_found_under_its_agent_and_tenant() {
    let db = Database::create("get").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    for agent in ["", "coder"] {
        row(&writer, &format!("session_create(session_id => 's', title => 'of {agent}', agent_id => '{agent}')")).await;
    }
    writer.run("begin; select agent_sessions.tenant_use('blue')").await;
    row(&writer, "session_create(session_id => 's', title => 'blue')").await;
    writer.commit().await;

    assert_eq!(row(&reader, "session_get(session_id => 's')").await["title"], "of ");
    assert_eq!(row(&reader, "session_get(session_id => 's', agent_id => 'coder')").await["title"], "of coder");
    for nothing in [
        "session_get(session_id => 'absent')",
        "session_get(session_id => 's', agent_id => 'absent')",
        "session_get(session_id => 's', tenant => 'absent')",
    ] {
        assert_eq!(rows(&reader, nothing).await, Vec::<Value>::new(), "{nothing}");
    }
    reader.run("set agent_sessions.agent = 'coder'").await;
    assert_eq!(row(&reader, "session_get(session_id => 's')").await["title"], "of coder");
    assert_eq!(row(&reader, "session_get(session_id => 's', agent_id => '')").await["title"], "of ");
    let in_one_statement = "select h.title from agent_sessions.tenant_use('blue') t,
        lateral agent_sessions.session_get(session_id => 's', agent_id => '', tenant => t) h";
    assert_eq!(reader.value::<String>(in_one_statement, &[]).await, "blue");
}

async fn several(writer: &Connection) {
    for (id, more) in [
        ("a", "owner => 'ines', origin => 'cli', status => 'open', title => 'Fix the Build', agent_id => 'coder'"),
        ("b", "owner => 'ines', origin => 'web', status => 'done', title => 'build 100%', metadata => '{\"n\": 1}'"),
        (
            "c",
            "owner => 'omar', origin => 'cli', status => 'open', metadata => '{\"n\": 1, \"deep\": {\"x\": [1, 2]}}'",
        ),
        ("d", "parent_session_id => 'c', owner => 'ines'"),
        ("e", "parent_session_id => 'c', status => 'open'"),
        ("f", "parent_session_id => 'd', title => 'deeper build'"),
    ] {
        row(writer, &format!("session_create(session_id => '{id}', {more})")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_filtered_by_each_argument_and_by_all_of_them() {
    let db = Database::create("list_filters").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    several(&writer).await;
    for (arguments, expected) in [
        ("", "cba"),
        ("roots_only => true", "cba"),
        ("roots_only => null", "fedcba"),
        ("roots_only => false", "fedcba"),
        ("owner => 'ines'", "ba"),
        ("owner => 'ines', roots_only => false", "dba"),
        ("owner => 'INES'", ""),
        ("origin => 'cli'", "ca"),
        ("status => 'open'", "ca"),
        ("status => 'open', roots_only => false", "eca"),
        ("title => 'BUILD'", "ba"),
        ("title => '%'", "b"),
        ("title => '_'", ""),
        ("title => 'build', roots_only => false", "fba"),
        ("title => ''", "ba"),
        ("metadata => '{\"n\": 1}'", "cb"),
        ("metadata => '{\"deep\": {\"x\": [2]}}'", "c"),
        ("metadata => '{\"n\": 2}'", ""),
        ("agent_id => 'coder'", "a"),
        ("agent_id => ''", "cb"),
        ("agent_id => 'absent'", ""),
        ("tenant => ''", "cba"),
        ("tenant => 'absent'", ""),
        ("parent_session_id => 'c'", "ed"),
        ("parent_session_id => 'c', roots_only => true", "ed"),
        ("parent_session_id => 'c', owner => 'ines'", "d"),
        ("parent_session_id => 'd'", "f"),
        ("parent_session_id => 'f'", ""),
        ("parent_session_id => 'absent'", ""),
        ("branched_from => 'c'", ""),
        ("max_rows => 2", "cb"),
        ("max_rows => 0", ""),
        ("max_rows => 1, parent_session_id => 'c'", "e"),
        (
            "owner => 'ines', origin => 'web', status => 'done', metadata => '{\"n\": 1}', title => 'build',
             roots_only => true, max_rows => 5, agent_id => '', tenant => ''",
            "b",
        ),
    ] {
        for order in ["", "order_by => 'created'", "order_by => 'activity'", "order_by => null"] {
            let joined: Vec<&str> = [arguments, order].into_iter().filter(|part| !part.is_empty()).collect();
            let arguments = joined.join(", ");
            assert_eq!(listed(&reader, &arguments).await.concat(), expected, "{arguments}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_shows_what_a_session_shows() {
    let db = Database::create("list_rows").await;
    let writer = db.writer().await;
    several(&writer).await;
    writer.append("c", "{}").await;
    for listed in rows(&writer, "session_list(roots_only => false)").await {
        let (id, agent) = (&listed["session_id"], &listed["agent_id"]);
        let (id, agent) = (id.as_str().expect("an id"), agent.as_str().expect("an agent"));
        let mut got = row(&writer, &format!("session_get(session_id => '{id}', agent_id => '{agent}')")).await;
        got.as_object_mut().expect("a row").remove("state");
        assert_eq!(listed, got);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_has_100_rows_unless_told_otherwise() {
    let db = Database::create("list_100").await;
    let writer = db.writer().await;
    writer
        .run(
            "insert into agent_sessions.session (tenant, agent_id, session_id)
              select '', '', 's' || n from generate_series(1, 120) n",
        )
        .await;
    for order in ["created", "activity"] {
        assert_eq!(listed(&writer, &format!("order_by => '{order}'")).await.len(), 100);
        assert_eq!(listed(&writer, &format!("order_by => '{order}', max_rows => 1000")).await.len(), 120);
    }
}

/// Pages meet neither gaps nor doubles, although many sessions share one time and others come in meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn pages_join_over_equal_times() {
    let db = Database::create("list_pages").await;
    let (writer, superuser) = (db.writer().await, db.superuser().await);
    writer
        .run(
            "insert into agent_sessions.session (tenant, agent_id, session_id, created_at, owner, metadata)
              select '', 'agent ' || n % 3, 's' || n, timestamptz '2020-01-01' + n / 20 * interval '1 microsecond',
                'owner ' || n % 2, '{\"k\": 1}'
              from generate_series(1, 60) n",
        )
        .await;
    writer.create_session("parent").await;
    for number in 0..15 {
        row(
            &writer,
            &format!("session_create(session_id => 'child {number}', parent_session_id => 'parent', created_at => '2021-01-01')"),
        )
        .await;
    }
    superuser
        .run("set session_replication_role = replica;
              update agent_sessions.session set active_at = timestamptz '2022-02-02' + (sid % 4) * interval '1 microsecond'")
        .await;
    for order in ["created", "activity"] {
        for (filter, count) in [
            ("roots_only => true", 61),
            ("roots_only => false", 76),
            ("owner => 'owner 1'", 30),
            ("agent_id => 'agent 2'", 20),
            ("metadata => '{\"k\": 1}'", 60),
            ("parent_session_id => 'parent'", 15),
        ] {
            let arguments = format!("{filter}, order_by => '{order}'");
            let whole: Vec<(String, String)> = pages(&writer, &arguments, 1_000).await.concat();
            assert_eq!(whole.len(), count, "{arguments}");
            for rows_per_page in [1, 7, 20] {
                let pages = pages(&writer, &arguments, rows_per_page).await;
                assert!(
                    pages[..pages.len() - 1].iter().all(|page| page.len() == rows_per_page as usize),
                    "{arguments}"
                );
                assert_eq!(pages.concat(), whole, "{arguments}, {rows_per_page} a page");
            }
            let distinct: BTreeSet<&(String, String)> = whole.iter().collect();
            assert_eq!(distinct.len(), count, "{arguments}");
        }
        let times = format!(
            "select array_agg(at order by place) = array_agg(at order by at desc) from (
                select l.ordinality as place, {} as at
                from agent_sessions.session_list(order_by => '{order}', max_rows => 1000, roots_only => false)
                  with ordinality l
                join agent_sessions.session s using (session_id, agent_id)) listed",
            if order == "created" { "s.created_at" } else { "s.active_at" }
        );
        assert!(superuser.value::<bool>(&times, &[]).await, "{order}: newest first");
    }
    // What is created after the first page was read is not on a later one.
    let first = rows(&writer, "session_list(max_rows => 7)").await;
    let cursor = first[6]["cursor"].as_str().expect("a cursor").to_owned();
    let rest = listed(&writer, &format!("after => '{cursor}', max_rows => 1000")).await;
    writer.create_session("newer").await;
    assert_eq!(listed(&writer, &format!("after => '{cursor}', max_rows => 1000")).await, rest);
    assert_eq!(rest.len(), 61 - 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_belongs_to_the_order_that_it_came_from() {
    let db = Database::create("list_cursors").await;
    let writer = db.writer().await;
    several(&writer).await;
    for (order, other) in [("created", "activity"), ("activity", "created")] {
        let first = row(&writer, &format!("session_list(order_by => '{order}', max_rows => 1)")).await;
        let cursor = first["cursor"].as_str().expect("a cursor");
        assert_eq!(listed(&writer, &format!("order_by => '{order}', after => '{cursor}'")).await, ["b", "a"]);
        let truncated = &cursor[..cursor.len() - 1];
        let tampered = [
            (other, cursor.to_owned()),
            (order, truncated.to_owned()),
            (order, format!("{cursor}0")),
            (order, format!("{truncated}g")),
            (order, cursor.to_uppercase().replace(|letter: char| letter.is_ascii_digit(), "G")),
            (order, "\u{1F525}".repeat(cursor.len())),
        ];
        for (order, cursor) in tampered {
            for parent in ["", ", parent_session_id => 'c'"] {
                let sql = format!(
                    "select * from agent_sessions.session_list(order_by => '{order}', after => '{cursor}'{parent})"
                );
                let refused = assert_sqlstate!(writer.query(&sql, &[]).await, "SE001");
                assert_eq!(detail(&refused)["argument"], "after", "{sql}");
            }
        }
    }
    let created = row(&writer, "session_get(session_id => 'c')").await["cursor"].as_str().expect("a cursor").to_owned();
    assert_eq!(listed(&writer, &format!("after => '{created}'")).await, ["b", "a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn setting_changes_what_is_given_and_moves_the_revision_by_one() {
    let db = Database::create("set_each").await;
    let writer = db.writer().await;
    row(
        &writer,
        r#"session_create(session_id => 's', title => 'old', metadata => '{"a": 1}', state => '{"a":1}', owner => 'old',
            status => 'old', input_tokens => 1, output_tokens => 2, cost => 3)"#,
    )
    .await;
    let mut before = row(&writer, "session_get(session_id => 's')").await;
    for (argument, column, value, moves) in [
        (r#"state => '{"b":2}'"#, "state", json!({"b": 2}), 1),
        (r#"state => 'null'"#, "state", Value::Null, 1),
        (r#"metadata => '{"b": 2}'"#, "metadata", json!({"b": 2}), 1),
        ("title => 'new'", "title", json!("new"), 1),
        ("title => ''", "title", json!(""), 1),
        ("status => 'new'", "status", json!("new"), 1),
        ("owner => 'new'", "owner", json!("new"), 1),
        ("input_tokens => 10", "input_tokens", json!(10), 0),
        ("output_tokens => 0", "output_tokens", json!(0), 0),
        ("cost => 0.5", "cost", json!(0.5), 0),
        ("expires_at => '2100-01-01 00:00:00+00'", "expires_at", json!("2100-01-01T00:00:00+00:00"), 0),
        ("created_at => '2000-01-01 00:00:00+00'", "created_at", before["created_at"].clone(), 0),
        ("merge => true", "title", json!(""), 0),
    ] {
        let now = revision(&writer, &format!("session_set(session_id => 's', {argument})")).await;
        before["revision"] = json!(before["revision"].as_i64().expect("a revision") + moves);
        before[column] = value;
        let after = row(&writer, "session_get(session_id => 's')").await;
        assert_eq!(after, before, "{argument}");
        assert_eq!(json!(now), after["revision"], "{argument}");
    }
    // What is given and is so already is no change.
    for same in ["title => ''", "status => 'new'", "owner => 'new'", "state => 'null'", "metadata => '{\"b\":2}'"] {
        let now = revision(&writer, &format!("session_set(session_id => 's', {same})")).await;
        assert_eq!(json!(now), before["revision"], "{same}");
    }
    let all =
        "session_set(session_id => 's', state => '{}', metadata => '{}', merge => false, title => 't', status => 'u',
        owner => 'o', input_tokens => 5, output_tokens => 6, cost => 7, origin => null, expires_at => 'infinity',
        created_at => now(), expected_revision => 7, on_missing => 'error', agent_id => '', lease => null)";
    assert_eq!(revision(&writer, all).await, Some(8));
    let agents = "session_set(session_id => 's', title => 'of coder', agent_id => 'coder', on_missing => 'create')";
    assert_eq!(revision(&writer, agents).await, Some(1));
    assert_eq!(row(&writer, "session_get(session_id => 's')").await["title"], "t");
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_is_the_status_that_has_a_time() {
    let db = Database::create("set_closed").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    assert_eq!(revision(&writer, "session_set(session_id => 's', status => 'closed')").await, Some(1));
    let closed = row(&writer, "session_get(session_id => 's')").await;
    let since = closed["closed_at"].as_str().expect("a time").to_owned();
    let recent = "select clock_timestamp() - $1::text::timestamptz < interval '60 seconds'";
    assert!(writer.value::<bool>(recent, &[&since]).await, "{since}");
    assert_eq!(revision(&writer, "session_set(session_id => 's', title => 'still closed')").await, Some(2));
    assert_eq!(row(&writer, "session_get(session_id => 's')").await["closed_at"], json!(since));
    assert_eq!(revision(&writer, "session_set(session_id => 's', status => 'open')").await, Some(3));
    assert_eq!(row(&writer, "session_get(session_id => 's')").await["closed_at"], Value::Null);
    let created = row(&writer, "session_create(session_id => 'born closed', status => 'closed')").await;
    assert!(created["closed_at"].is_string(), "{created}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_replaces_top_level_keys_only() {
    let db = Database::create("set_merge").await;
    let writer = db.writer().await;
    let merge =
        "select agent_sessions.session_set(session_id => 's', state => $1::text::json, metadata => $2::text::jsonb,
        merge => true, on_missing => 'create')";
    let read = async || {
        let row = writer
            .query_one(
                "select state::text, metadata::text, revision from agent_sessions.session_get(session_id => 's')",
                &[],
            )
            .await
            .expect("the session");
        (row.get::<_, Option<String>>(0), row.get::<_, Option<String>>(1), row.get::<_, i64>(2))
    };
    let given = |text: &str| Some(text.to_owned());
    // Nothing is there to merge with: the document as it is.
    writer.value::<i64>(merge, &[&r#"{"a":{"x":1},"b":1.0}"#, &r#"{"a": {"x": 1}, "b": 1}"#]).await;
    assert_eq!(read().await, (given(r#"{"a":{"x":1},"b":1.0}"#), given(r#"{"a": {"x": 1}, "b": 1}"#), 1));
    writer.value::<i64>(merge, &[&r#"{"a":{"y":2},"c":null}"#, &r#"{"a": {"y": 2}, "c": null}"#]).await;
    let merged = (given(r#"{"a":{"y":2},"b":1.0,"c":null}"#), given(r#"{"a": {"y": 2}, "b": 1, "c": null}"#), 2);
    assert_eq!(read().await, merged);
    writer.value::<i64>(merge, &[&None::<&str>, &r#"{"b": 2}"#]).await;
    assert_eq!(read().await, (merged.0.clone(), given(r#"{"a": {"y": 2}, "b": 2, "c": null}"#), 3));
    writer.value::<i64>(merge, &[&r#"{"d":"\u0000"}"#, &None::<&str>]).await;
    assert_eq!(read().await.0, given(r#"{"a":{"y":2},"b":1.0,"c":null,"d":"\u0000"}"#));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revision_that_has_passed_is_a_conflict() {
    let db = Database::create("set_expected").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    assert_eq!(
        revision(&writer, "session_set(session_id => 's', title => 'a', expected_revision => 0)").await,
        Some(1)
    );
    for (expected, what) in
        [(0, "title => 'b'"), (2, "title => 'b'"), (0, "cost => 1"), (9, "state => '{}', merge => true")]
    {
        let sql =
            format!("select agent_sessions.session_set(session_id => 's', {what}, expected_revision => {expected})");
        let refused = assert_sqlstate!(writer.try_value::<i64>(&sql, &[]).await, "SE006");
        assert_eq!(detail(&refused), json!({"expected": expected, "actual": 1}), "{sql}");
    }
    let stored = row(&writer, "session_get(session_id => 's')").await;
    assert_eq!((&stored["title"], &stored["cost"], &stored["revision"]), (&json!("a"), &Value::Null, &json!(1)));
    assert_eq!(revision(&writer, "session_set(session_id => 's', cost => 1, expected_revision => 1)").await, Some(1));
    assert_eq!(
        revision(&writer, "session_set(session_id => 's', title => 'b', expected_revision => 1)").await,
        Some(2)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_is_set_once() {
    let db = Database::create("set_origin").await;
    let writer = db.writer().await;
    let create = "session_set(session_id => 's', origin => 'cli', title => 'a', on_missing => 'create')";
    assert_eq!(revision(&writer, create).await, Some(1));
    assert_eq!(revision(&writer, "session_set(session_id => 's', origin => 'cli', title => 'b')").await, Some(2));
    let other = "select agent_sessions.session_set(session_id => 's', origin => 'web', title => 'c')";
    let refused = assert_sqlstate!(writer.try_value::<i64>(other, &[]).await, "SE004");
    assert_eq!(detail(&refused), json!({"expected": "web", "actual": "cli"}));
    writer.create_session("without").await;
    let late = "select agent_sessions.session_set(session_id => 'without', origin => 'web')";
    let refused = assert_sqlstate!(writer.try_value::<i64>(late, &[]).await, "SE004");
    assert_eq!(detail(&refused), json!({"expected": "web", "actual": null}));
    let stored = row(&writer, "session_get(session_id => 's')").await;
    assert_eq!((&stored["origin"], &stored["title"]), (&json!("cli"), &json!("b")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_session_is_an_error_created_or_ignored() {
    let db = Database::create("set_missing").await;
    let writer = db.writer().await;
    for on_missing in ["", ", on_missing => 'error'", ", on_missing => null"] {
        let sql = format!("select agent_sessions.session_set(session_id => 's', title => 't'{on_missing})");
        let refused = assert_sqlstate!(writer.try_value::<Option<i64>>(&sql, &[]).await, "SE002");
        assert_eq!(detail(&refused), json!({"session_id": "s", "agent_id": ""}));
    }
    assert_eq!(revision(&writer, "session_set(session_id => 's', title => 't', on_missing => 'ignore')").await, None);
    assert_eq!(listed(&writer, "").await, Vec::<String>::new());
    let create = r#"session_set(session_id => 's', title => 't', state => '{"a":1}', metadata => '{"b": 2}', status => 'x',
        owner => 'o', input_tokens => 1, output_tokens => 2, cost => 3, origin => 'cli', expires_at => '2100-01-01+00',
        created_at => '2001-01-01+00', on_missing => 'create')"#;
    assert_eq!(revision(&writer, create).await, Some(1));
    let stored = row(&writer, "session_get(session_id => 's')").await;
    let columns = [
        "title",
        "state",
        "metadata",
        "status",
        "owner",
        "input_tokens",
        "output_tokens",
        "cost",
        "origin",
        "expires_at",
        "created_at",
        "revision",
        "next_position",
    ];
    let values: Vec<&Value> = columns.iter().map(|column| &stored[*column]).collect();
    assert_eq!(
        json!(values),
        json!(["t", {"a": 1}, {"b": 2}, "x", "o", 1, 2, 3, "cli", "2100-01-01T00:00:00+00:00",
            "2001-01-01T00:00:00+00:00", 1, 0])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hint_names_the_agent_that_has_the_session() {
    let db = Database::create("hint_agent").await;
    let writer = db.writer().await;
    row(&writer, "session_create(session_id => 's', agent_id => 'the coder')").await;
    row(&writer, "session_create(session_id => 'hidden')").await;
    for call in [
        "session_append(session_id => $1::text, payload => '1', agent_id => 'other')",
        "session_append_batch(session_id => $1::text, items => '[{\"payload\":1}]', agent_id => 'other')",
        "session_revise(session_id => $1::text, payload => '1', target => 0, agent_id => 'other')",
        "session_retract(session_id => $1::text, targets => '{0}', agent_id => 'other')",
        "session_set(session_id => $1::text, title => 't', agent_id => 'other')",
        "session_delete(session_id => $1::text, agent_id => 'other')",
        "session_create(session_id => 'new', parent_session_id => $1::text, agent_id => 'other')",
    ] {
        let sql = format!("select * from agent_sessions.{call}");
        for (session, named) in [("s", true), ("absent", false)] {
            let refused = writer.query(&sql, &[&session]).await.expect_err(call);
            assert_eq!(sqlstate(&refused), "SE002", "{call}");
            assert_eq!(detail(&refused), json!({"session_id": session, "agent_id": "other"}), "{call}");
            let hint = refused.as_db_error().and_then(|raised| raised.hint()).expect("a hint");
            assert_eq!(hint.contains("the coder"), named, "{call}: {hint}");
        }
    }
    // Another tenant's session is not told.
    writer.run("set agent_sessions.tenant = 'blue'").await;
    let refused = assert_sqlstate!(writer.try_append("s", "1").await, "SE002");
    let hint = refused.as_db_error().and_then(|raised| raised.hint()).expect("a hint");
    assert!(!hint.contains("the coder"), "{hint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_takes_the_log_and_the_sub_sessions() {
    let db = Database::create("delete").await;
    let writer = db.writer().await;
    several(&writer).await;
    for (session, agent) in [("a", "coder"), ("b", ""), ("c", ""), ("d", ""), ("e", ""), ("f", "")] {
        Append::to(session, "1").item_id("first").agent_id(agent).run(&writer).await.expect("an append");
    }
    let delete = async |arguments: &str| -> Option<bool> {
        writer.value(&format!("select agent_sessions.session_delete({arguments})"), &[]).await
    };
    assert_eq!(delete("session_id => 'c'").await, Some(true));
    assert_eq!(listed(&writer, "roots_only => false").await, ["b", "a"]);
    let items = "select count(*) from agent_sessions.session_item";
    assert_eq!(db.superuser().await.value::<i64>(items, &[]).await, 2);
    assert_eq!(
        delete("session_id => 'a', on_missing => 'error', agent_id => 'coder', lease => null").await,
        Some(true)
    );
    assert_eq!(delete("session_id => 'c', on_missing => 'ignore'").await, None);
    for on_missing in ["", ", on_missing => 'error'", ", on_missing => null"] {
        let sql = format!("select agent_sessions.session_delete(session_id => 'c'{on_missing})");
        assert_sqlstate!(writer.try_value::<Option<bool>>(&sql, &[]).await, "SE002");
    }
    // Nothing of the old log is left under the old name.
    writer.create_session("c").await;
    assert_eq!(Append::to("c", "2").item_id("first").run(&writer).await.expect("a new log"), 0);
    writer.assert_dense("c", 1).await;
    assert_eq!(writer.history("c").await[0].payload.as_deref(), Some("2"));
    assert_eq!(writer.history("b").await.len(), 1);
}

/// A head that every append rewrote could not be pruned while any snapshot is held.
#[tokio::test(flavor = "multi_thread")]
async fn activity_is_noted_at_most_once_a_minute() {
    let db = Database::create("active_at").await;
    let (writer, superuser) = (db.writer().await, db.superuser().await);
    superuser.run("set session_replication_role = replica").await;
    writer.create_session("s").await;
    let version = async || -> String {
        writer.value("select format('%s %s %s', xmin, ctid, active_at) from agent_sessions.session", &[]).await
    };
    let append = async |way: usize| {
        match way {
            0 => {
                writer.append("s", "1").await;
            }
            1 => {
                let batch = "select position from agent_sessions.session_append_batch('s', '[{\"payload\":1}]')";
                writer.value::<i64>(batch, &[]).await;
            }
            _ => {
                writer
                    .run(
                        "insert into agent_sessions.session_item (sid, payload)
                          select sid, '1' from agent_sessions.session where session_id = 's'",
                    )
                    .await;
            }
        };
    };
    for way in 0..3 {
        let before = version().await;
        for _ in 0..3 {
            append(way).await;
        }
        assert_eq!(version().await, before, "way {way}: fresh, so untouched");

        superuser.run("update agent_sessions.session set active_at = clock_timestamp() - interval '50 seconds'").await;
        let young = version().await;
        append(way).await;
        assert_eq!(version().await, young, "way {way}: younger than 60 seconds");

        superuser.run("update agent_sessions.session set active_at = clock_timestamp() - interval '61 seconds'").await;
        let old = version().await;
        append(way).await;
        let touched = version().await;
        assert_ne!(touched, old, "way {way}: touched once");
        append(way).await;
        assert_eq!(version().await, touched, "way {way}: and no more");
        let row = writer
            .query_one(
                "select clock_timestamp() - active_at < interval '30 seconds', revision from agent_sessions.session",
                &[],
            )
            .await
            .expect("the head");
        assert_eq!((row.get(0), row.get(1)), (true, 0_i64), "way {way}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_by_activity_follows_the_appends() {
    let db = Database::create("list_activity").await;
    let (writer, superuser) = (db.writer().await, db.superuser().await);
    for session in ["a", "b", "c"] {
        writer.create_session(session).await;
    }
    superuser
        .run(
            "set session_replication_role = replica;
              update agent_sessions.session set active_at = active_at - interval '2 minutes'",
        )
        .await;
    assert_eq!(listed(&writer, "order_by => 'activity'").await, ["c", "b", "a"]);
    writer.append("a", "1").await;
    assert_eq!(listed(&writer, "order_by => 'activity'").await, ["a", "c", "b"]);
    writer.append("b", "1").await;
    assert_eq!(listed(&writer, "order_by => 'activity'").await, ["b", "a", "c"]);
    assert_eq!(listed(&writer, "order_by => 'created'").await, ["c", "b", "a"]);
}
