//! Branching: where a branch leaves its source, what it takes along, and that each writes to its own log.

use std::sync::Arc;

use agent_sessions_tests::{Append, Branch, Branched, Connection, Database, Item, assert_sqlstate, detail, together};
use serde_json::{Value, json};

/// Entries of the log that [`sample`] writes.
pub const ENTRIES: i64 = 9;

/// A log in which every kind of change stands between the items.
pub async fn sample(writer: &Connection, session: &str) {
    writer.create_session(session).await;
    for call in [
        "session_append('{s}', '0', item_id => 'a', tag => 't', author => 'ann', attrs => '{\"n\": 0}')",
        "session_append('{s}', '1', item_id => 'b')",
        "session_revise('{s}', '20', target => 0)",
        "session_append('{s}', '3', item_id => 'd', tag => 't')",
        "session_append('{s}', '\"\"', item_id => 'o', open => true)",
        "session_retract('{s}', targets => '{1}')",
        "session_append('{s}', '6', kind => 'tool', tag => 't')",
        "session_append('{s}', '7', item_id => 'late', tag => 'gone')",
        "session_retract('{s}', from_target => 7)",
    ] {
        call_of(writer, call, session).await;
    }
    writer.assert_dense(session, ENTRIES).await;
}

/// Runs a function of the extension that must succeed; `{s}` in the call is the session.
pub async fn call_of(connection: &Connection, call: &str, session: &str) {
    connection.run(&format!("select agent_sessions.{}", call.replace("{s}", session))).await;
}

/// What the history of [`sample`] shows when it ends before `fork`.
fn shown_before(fork: i64) -> &'static [&'static str] {
    match fork {
        0 => &[],
        1 => &["0 0"],
        2 => &["0 0", "1 1"],
        3 => &["0 20", "1 1"],
        4 => &["0 20", "1 1", "3 3"],
        5 => &["0 20", "1 1", "3 3", "4 \"\""],
        6 => &["0 20", "3 3", "4 \"\""],
        8 => &["0 20", "3 3", "4 \"\"", "6 6", "7 7"],
        _ => &["0 20", "3 3", "4 \"\"", "6 6"],
    }
}

/// Position and payload of the live items.
pub async fn shown(connection: &Connection, session: &str) -> Vec<String> {
    let item = |item: Item| format!("{} {}", item.position, item.payload.unwrap_or_default());
    connection.history(session).await.into_iter().map(item).collect()
}

/// Op, target and payload of the entries from a position on.
pub async fn written_from(connection: &Connection, session: &str, first: i64) -> Vec<String> {
    let sql = "select concat_ws(' ', position, op, target, kind, item_id, payload::text)
               from agent_sessions.session_log(session_id => $1::text, after => $2::bigint - 1)";
    let rows = connection.query(sql, &[&session, &first]).await.expect("a log");
    rows.iter().map(|row| row.get(0)).collect()
}

/// How many sessions and entries there are, those included that nobody sees.
pub async fn rows(db: &Database) -> (i64, i64) {
    let sql =
        "select (select count(*) from agent_sessions.session), (select count(*) from agent_sessions.session_item)";
    let row = db.superuser().await.query_one(sql, &[]).await.expect("counts");
    (row.get(0), row.get(1))
}

fn branched(session: &str, source: &str, fork: i64) -> Branched {
    Branched {
        session_id: session.to_owned(),
        agent_id: String::new(),
        branched_from: Some(source.to_owned()),
        fork_position: Some(fork),
        next_position: fork,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_shows_what_stood_at_its_fork_whatever_the_source_does_later() {
    let db = Database::create("branch_points").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    sample(&writer, "s").await;
    let mut points: Vec<(String, Branch, i64)> = (0..ENTRIES)
        .map(|target| (format!("target {target}"), Branch::of("s").at_target(target), target + 1))
        .collect();
    points.push(("whole".into(), Branch::of("s"), ENTRIES));
    // The item's own entry is the last one inherited: what revised it later is not.
    points.push(("id a".into(), Branch::of("s").at_item_id("a"), 1));
    points.push(("id d".into(), Branch::of("s").at_item_id("d"), 4));
    points.push(("id o".into(), Branch::of("s").at_item_id("o"), 5));
    points.push(("tag t".into(), Branch::of("s").at_tag("t"), 7));
    let mut stood = Vec::new();
    for (name, branch, fork) in &points {
        assert_eq!(writer.branched(branch.clone().named(name)).await, branched(name, "s", *fork));
        assert_eq!(shown(&reader, name).await, shown_before(*fork), "{name}");
        stood.push((reader.history(name).await, reader.log(name).await));
    }
    for change in [
        "session_delta('{s}', target => 4, chunk_no => 0, chunk => 'x')",
        "session_append('{s}', '9')",
        "session_append_batch('{s}', '[{\"payload\":10,\"tag\":\"t\"},{\"payload\":11,\"item_id\":\"new\"}]')",
        "session_append('{s}', '1.0', item_id => 'b', on_conflict => 'replace')",
        "session_revise('{s}', '21', item_id => 'a')",
        "session_revise('{s}', '\"said\"', item_id => 'o')",
        "session_append('{s}', '\"so far\"', kind => 'summary', kept_from => 3)",
        "session_pop('{s}')",
        "session_retract('{s}', item_ids => '{d}')",
        "session_retract('{s}', from_target => 0)",
    ] {
        call_of(&writer, change, "s").await;
        for ((name, _, fork), (history, log)) in points.iter().zip(&stood) {
            assert_eq!(&reader.history(name).await, history, "{name} after {change}");
            assert_eq!(&reader.log(name).await, log, "{name} after {change}");
            reader.assert_dense(name, *fork).await;
        }
    }
    assert!(reader.history("s").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_point_has_to_be_in_the_log_or_shown_by_the_history() {
    let db = Database::create("branch_no_point").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.create_session("empty").await;
    writer.create_session("trimmed").await;
    for id in ["i0", "i1", "i2"] {
        Append::to("trimmed", "0").item_id(id).tag(id).run(&writer).await.expect("an append");
    }
    call_of(&writer, "session_trim('{s}', keep_from => 2)", "trimmed").await;
    let before = rows(&db).await;
    let target = |target: i64| json!({"target": target, "item_id": null, "tag": null});
    let item_id = |id: &str| json!({"target": null, "item_id": id, "tag": null});
    let tag = |tag: &str| json!({"target": null, "item_id": null, "tag": tag});
    let cases: Vec<(Branch, Value)> = vec![
        (Branch::of("s").at_target(ENTRIES), target(ENTRIES)),
        (Branch::of("s").at_target(i64::MAX), target(i64::MAX)),
        (Branch::of("s").at_item_id("unknown"), item_id("unknown")),
        (Branch::of("s").at_item_id("b"), item_id("b")),
        (Branch::of("s").at_item_id("late"), item_id("late")),
        (Branch::of("s").at_tag("unknown"), tag("unknown")),
        (Branch::of("s").at_tag("gone"), tag("gone")),
        (Branch::of("empty").at_target(0), target(0)),
        (Branch::of("trimmed").at_target(0), target(0)),
        (Branch::of("trimmed").at_target(1), target(1)),
        (Branch::of("trimmed").at_target(4), target(4)),
        (Branch::of("trimmed").at_item_id("i1"), item_id("i1")),
        (Branch::of("trimmed").at_tag("i0"), tag("i0")),
    ];
    for (branch, told) in cases {
        let error = assert_sqlstate!(branch.clone().seed("1").run(&writer).await, "SE012");
        assert_eq!(detail(&error), told, "{branch:?}");
    }
    assert_eq!(rows(&db).await, before);
    // What is left of a trimmed log can be inherited.
    for (name, point, fork) in [
        ("kept", Branch::of("trimmed").at_target(2), 3),
        ("kept id", Branch::of("trimmed").at_item_id("i2"), 3),
        ("kept whole", Branch::of("trimmed"), 4),
    ] {
        assert_eq!(writer.branched(point.named(name)).await.fork_position, Some(fork));
        assert_eq!(shown(&writer, name).await, ["2 0"]);
        assert!(writer.verify(name).await.ok, "{name}");
    }
}

/// A branch knows the ids and tags that it inherits, unless it has retracted them.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_of_a_branch_leaves_at_what_that_branch_shows() {
    let db = Database::create("branch_of_branch").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    writer.branch("s", "b").await;
    assert_eq!(writer.branched(Branch::of("b").named("at d").at_item_id("d")).await, branched("at d", "b", 4));
    assert_eq!(writer.branched(Branch::of("b").named("at t").at_tag("t")).await, branched("at t", "b", 7));
    call_of(&writer, "session_retract('{s}', targets => '{3,6}')", "b").await;
    assert_sqlstate!(Branch::of("b").at_item_id("d").run(&writer).await, "SE012");
    assert_eq!(writer.branched(Branch::of("b").named("at t again").at_tag("t")).await, branched("at t again", "b", 1));
    call_of(&writer, "session_append('{s}', '33', item_id => 'd', tag => 't', on_conflict => 'replace')", "b").await;
    assert_eq!(writer.branched(Branch::of("b").named("revived").at_item_id("d")).await, branched("revived", "b", 4));
    assert_eq!(shown(&writer, "revived").await, shown_before(4), "the revival is behind the fork");
    // Neither the empty beginning of a log nor one that is empty needs an entry.
    writer.create_session("empty").await;
    assert_eq!(writer.branch("empty", "none").await, branched("none", "empty", 0));
    writer.append("none", "1").await;
    for name in ["at d", "at t", "at t again", "revived", "none"] {
        let next = writer.append(name, "8").await;
        writer.assert_dense(name, next + 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_arguments_are_named() {
    let db = Database::create("branch_malformed").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    let before = rows(&db).await;
    let long = "x".repeat(501);
    let title = "t".repeat(10_001);
    let numbered = format!("%d{}", "t".repeat(9_999));
    let s = || Branch::of("s");
    for (branch, argument) in [
        (s().at_target(0).at_item_id("a"), "at_target"),
        (s().at_target(0).at_tag("t"), "at_target"),
        (s().at_item_id("a").at_tag("t"), "at_target"),
        (s().at_target(0).at_item_id("a").at_tag("t"), "at_target"),
        (s().at_target(-1), "at_target"),
        (s().at_item_id(""), "at_item_id"),
        (s().at_item_id(&long), "at_item_id"),
        (s().at_tag("a\nb"), "at_tag"),
        (s().named(""), "new_session_id"),
        (s().named(&long), "new_session_id"),
        (s().new_agent_id(&long), "new_agent_id"),
        (s().new_agent_id("\t"), "new_agent_id"),
        (s().title(&title), "title"),
        (Branch::of(""), "session_id"),
        (s().agent_id(&long), "agent_id"),
    ] {
        let error = assert_sqlstate!(branch.run(&writer).await, "SE001");
        assert_eq!(detail(&error)["argument"], json!(argument), "{branch:?}");
    }
    // The number makes it too long.
    writer.branched(s().named("ninth").title("9")).await;
    let tenth = s().title(&numbered);
    assert_eq!(numbered.len(), 10_001);
    assert_sqlstate!(tenth.run(&writer).await, "SE001");
    writer.run("set agent_sessions.max_payload_bytes = 10").await;
    let error = assert_sqlstate!(s().seed("\"123456789\"").run(&writer).await, "SE018");
    assert_eq!(detail(&error)["argument"], json!("seed"));
    let missing = writer.query("select agent_sessions.session_branch(session_id => null)", &[]).await;
    let error = assert_sqlstate!(missing, "SE001");
    assert_eq!(detail(&error)["argument"], json!("session_id"));
    assert_eq!(rows(&db).await, (before.0 + 1, before.1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_taken_once_and_an_unknown_source_is_told() {
    let db = Database::create("branch_ids").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    let before = rows(&db).await;
    let error = assert_sqlstate!(Branch::of("s").named("s").seed("1").run(&writer).await, "SE003");
    assert_eq!(detail(&error), json!({"session_id": "s", "agent_id": ""}));
    let error = assert_sqlstate!(Branch::of("none").run(&writer).await, "SE002");
    assert_eq!(detail(&error), json!({"session_id": "none", "agent_id": ""}));
    let error = assert_sqlstate!(Branch::of("s").agent_id("other").run(&writer).await, "SE002");
    assert_eq!(detail(&error), json!({"session_id": "s", "agent_id": "other"}));
    assert_eq!(rows(&db).await, before);
    // Another agent may use the id, and each has its own.
    let of_coder = writer.branched(Branch::of("s").named("s").new_agent_id("coder")).await;
    assert_eq!((of_coder.session_id.as_str(), of_coder.agent_id.as_str()), ("s", "coder"));
    let again = Branch::of("s").named("s").agent_id("coder");
    let error = assert_sqlstate!(again.run(&writer).await, "SE003");
    assert_eq!(detail(&error), json!({"session_id": "s", "agent_id": "coder"}));
    // The agent is the source's, or that of the setting.
    assert_eq!(writer.branched(Branch::of("s").agent_id("coder").named("c")).await.agent_id, "coder");
    writer.run("set agent_sessions.agent = 'coder'").await;
    assert_eq!(writer.branched(Branch::of("s").named("d")).await.agent_id, "coder");
    assert_eq!(writer.branched(Branch::of("s").named("e").new_agent_id("")).await.agent_id, "");
    writer.run("reset agent_sessions.agent").await;
    let mut generated = Vec::new();
    for _ in 0..3 {
        let branch = writer.branched(Branch::of("s")).await;
        let id = uuid::Uuid::parse_str(&branch.session_id).expect("a UUID");
        assert_eq!(id.get_version_num(), 7, "{id}");
        generated.push(branch.session_id);
    }
    generated.dedup();
    assert_eq!(generated.len(), 3);
    let reader = db.reader().await;
    assert_sqlstate!(Branch::of("s").run(&reader).await, "42501");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_is_copied_and_what_belongs_to_the_run_is_not() {
    let db = Database::create("branch_document").await;
    let writer = db.writer().await;
    let state = r#"{"b":1,"a":"x\u0000y", "b":1e2,"half":"\ud83d"}"#;
    writer.create_session("parent").await;
    let create = "select session_id from agent_sessions.session_create(session_id => 's', title => 'a title',
        metadata => '{\"m\": [1]}', state => $1::text::json, owner => 'ines', origin => 'cli', parent_session_id => 'parent',
        items => '[{\"payload\":1}]', status => 'busy', input_tokens => 5, output_tokens => 6, cost => 0.7,
        expires_at => now() + interval '1 day')";
    writer.value::<String>(create, &[&state]).await;
    call_of(&writer, "session_set('{s}', status => 'closed', expected_revision => 0)", "s").await;
    let lease: String = writer
        .value("select lease from agent_sessions.session_claim('s', ttl => '1 hour', holder => 'worker')", &[])
        .await;
    writer.branched(Branch::of("s").named("b").lease(&lease)).await;
    writer.branched(Branch::of("s").named("c").lease(&lease).title("another").inherit(false)).await;
    let document = "select concat_ws('|', owner, origin, title, metadata, state::text, parent_session_id)
                    from agent_sessions.session_get(session_id => $1::text)";
    let expected = |title: &str| format!("ines|cli|{title}|{{\"m\": [1]}}|{state}|parent");
    for (session, title) in [("s", "a title"), ("b", "a title"), ("c", "another")] {
        assert_eq!(writer.value::<String>(document, &[&session]).await, expected(title), "{session}");
    }
    let of_the_run = "select concat_ws('|', status, input_tokens, output_tokens, cost, lease_holder, lease_expires_at,
          expires_at, closed_at), revision
        from agent_sessions.session_get(session_id => $1::text)";
    for session in ["b", "c"] {
        let row = writer.query_one(of_the_run, &[&session]).await.expect("the session");
        assert_eq!((row.get::<_, &str>(0), row.get::<_, i64>(1)), ("", 0), "{session}");
    }
    let fence = "select lease_fence from agent_sessions.session where session_id = 'b'";
    assert_eq!(db.superuser().await.value::<i64>(fence, &[]).await, 0);
    assert_eq!(writer.append("b", "1").await, 1, "the branch is not leased");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_is_the_first_item_of_the_branch() {
    let db = Database::create("branch_seed").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    let seed = r#"{"b":1,"a":"\u0000","b":2}"#;
    let seeded = writer.branched(Branch::of("s").named("b").at_target(3).seed(seed)).await;
    assert_eq!((seeded.fork_position, seeded.next_position), (Some(4), 5));
    assert_eq!(written_from(&writer, "b", 4).await, [format!("4 append seed {seed}")]);
    writer.assert_dense("b", 5).await;
    let first = writer.branched(Branch::of("s").named("alone").inherit(false).seed(seed)).await;
    assert_eq!((first.fork_position, first.next_position), (None, 1));
    assert_eq!(written_from(&writer, "alone", 0).await, [format!("0 append seed {seed}")]);
    writer.assert_dense("alone", 1).await;
}

/// The lineage is recorded, and nothing of the source is needed.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_does_not_inherit_begins_an_empty_log() {
    let db = Database::create("branch_without").await;
    let writer = db.writer().await;
    for (number, deletion) in ["session_delete('{s}')", ""].into_iter().enumerate() {
        let (source, branch) = (format!("s{number}"), format!("b{number}"));
        sample(&writer, &source).await;
        let made = writer.branched(Branch::of(&source).named(&branch).inherit(false)).await;
        assert_eq!((made.branched_from.as_deref(), made.fork_position), (Some(source.as_str()), None));
        assert_eq!(made.next_position, 0);
        assert!(writer.log(&branch).await.is_empty());
        writer.assert_dense(&branch, 0).await;
        assert_eq!(lineage(&writer, &branch).await, [format!("0 {branch} -"), format!("1 {source} -")]);
        // The source's ids are not the branch's.
        let reused = Append::to(&branch, "5").item_id("a").expected_position(0);
        assert_eq!(reused.run(&writer).await.expect("an append"), 0);
        assert_sqlstate!(
            writer
                .try_value::<i64>("select agent_sessions.session_revise($1::text, '1', target => 3)", &[&branch])
                .await,
            "SE011"
        );
        match deletion {
            "" => writer.run(&format!("delete from agent_sessions.session where session_id = '{source}'")).await,
            call => call_of(&writer, call, &source).await,
        }
        let left = "select count(*) from agent_sessions.session where session_id = $1::text";
        assert_eq!(db.superuser().await.value::<i64>(left, &[&source]).await, 0);
        writer.append(&branch, "6").await;
        writer.assert_dense(&branch, 2).await;
        assert_eq!(lineage(&writer, &branch).await, [format!("0 {branch} -")]);
    }
    assert_eq!(rows(&db).await, (2, 4));
}

/// Depth, session and fork of each row of session_lineage.
pub async fn lineage(connection: &Connection, session: &str) -> Vec<String> {
    let sql = "select concat_ws(' ', l.depth, l.session_id, coalesce(l.fork_position::text, '-'))
               from agent_sessions.session_lineage(session_id => $1::text) l";
    let rows = connection.query(sql, &[&session]).await.expect("a lineage");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_tells_what_it_branched_off_and_what_branched_off_it() {
    let db = Database::create("branch_lists").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    sample(&writer, "s").await;
    writer.branched(Branch::of("s").named("b1").at_target(2)).await;
    writer.branched(Branch::of("s").named("b2").seed("1")).await;
    writer.branched(Branch::of("b2").named("c").at_target(5)).await;
    writer.branched(Branch::of("c").named("d")).await;
    writer.branched(Branch::of("s").named("s").new_agent_id("coder")).await;
    let row = "select concat_ws(' ', branched_from, fork_position, next_position)
               from agent_sessions.session_get(session_id => $1::text)";
    for (session, told) in [("s", "9"), ("b1", "s 3 3"), ("b2", "s 9 10"), ("c", "b2 6 6"), ("d", "c 6 6")] {
        assert_eq!(reader.value::<String>(row, &[&session]).await, told);
    }
    assert_eq!(lineage(&reader, "d").await, ["0 d 6", "1 c 6", "2 b2 9", "3 s -"]);
    assert_eq!(lineage(&reader, "s").await, ["0 s -"]);
    assert!(lineage(&reader, "none").await.is_empty());
    let of_agent = "select string_agg(concat_ws('/', session_id, agent_id), ' ' order by depth)
                    from agent_sessions.session_lineage(session_id => 's', agent_id => 'coder')
                    where created_at <= clock_timestamp()";
    assert_eq!(reader.value::<String>(of_agent, &[]).await, "s/coder s/");

    let listed = |arguments: &'static str| {
        let sql = format!(
            "select coalesce(string_agg(concat_ws(' ', session_id, branched_from, fork_position, next_position), ', '
               order by ordinality), '')
             from rows from (agent_sessions.session_list({arguments})) with ordinality"
        );
        let reader = &reader;
        async move { reader.value::<String>(&sql, &[]).await }
    };
    assert_eq!(listed("branched_from => 's'").await, "s s 9 9, b2 s 9 10, b1 s 3 3");
    assert_eq!(listed("branched_from => 's', agent_id => ''").await, "b2 s 9 10, b1 s 3 3");
    assert_eq!(listed("branched_from => 'b2', order_by => 'activity'").await, "c b2 6 6");
    assert_eq!(listed("branched_from => 'd'").await, "");
    assert_eq!(listed("branched_from => 'none'").await, "");
    // A page behind the cursor of the one before.
    let page =
        "select session_id, cursor from agent_sessions.session_list(branched_from => 's', max_rows => 1, after => $1)";
    let (mut after, mut seen) = (None::<String>, Vec::new());
    while let Some(row) = reader.query_opt(page, &[&after]).await.expect("a page") {
        seen.push(row.get::<_, String>(0));
        after = Some(row.get(1));
    }
    assert_eq!(seen, ["s", "b2", "b1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_branches_are_numbered_each_once() {
    const BRANCHES: usize = 25;
    let db = Database::create("branch_numbers").await;
    let writers = db.writers(BRANCHES).await;
    sample(&writers[0], "s").await;
    together(BRANCHES, |number| {
        let writer = writers[number].clone();
        async move {
            let named = number.to_string();
            writer.branched(Branch::of("s").named(&named).title("fork %d of s").seed("1")).await
        }
    })
    .await;
    let mut titles = titles(&writers[0]).await;
    let mut expected: Vec<String> = (1..=BRANCHES).map(|number| format!("fork {number} of s")).collect();
    titles.sort();
    expected.sort();
    assert_eq!(titles, expected);
}

/// The titles of the branches that there are, in the order in which they were made.
async fn titles(connection: &Connection) -> Vec<String> {
    let sql = "select title from agent_sessions.session where branched_from is not null order by sid";
    connection.query(sql, &[]).await.expect("titles").iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_counts_the_siblings_there_are_and_them_alone() {
    let db = Database::create("branch_siblings").await;
    let (writer, superuser) = (db.writer().await, db.superuser().await);
    sample(&writer, "s").await;
    let fork = |title: &'static str, agent: &'static str| {
        let writer = &writer;
        async move { writer.branched(Branch::of("s").title(title).new_agent_id(agent)).await.session_id }
    };
    // Of another agent, which isolation then hides.
    fork("%d", "other").await;
    // Deleted, and hidden since a branch of its own needs it: it counts no more.
    let hidden = fork("%d", "").await;
    let below = writer.branched(Branch::of(&hidden).title("%d")).await.session_id;
    call_of(&writer, "session_delete('{s}')", &hidden).await;
    writer.run("set agent_sessions.isolation = agent").await;
    fork("%d", "").await;
    // Not those with another text around, nor anything that is no number.
    for title in ["9", "fork 8", "x", "-7", "100 %"] {
        fork(title, "").await;
    }
    fork("fork %d", "").await;
    fork("%d and %d", "").await;
    fork("%d", "").await;
    writer.branched(Branch::of(&below).title("%d")).await;
    assert_eq!(
        titles(&superuser).await,
        ["1", "2", "1", "2", "9", "fork 8", "x", "-7", "100 %", "fork 9", "1 and %d", "10", "1"]
    );
    // The source's own title is copied as it is.
    writer.run("select agent_sessions.session_set('s', title => 'of %d')").await;
    writer.branched(Branch::of("s")).await;
    assert_eq!(titles(&superuser).await.last().map(String::as_str), Some("of %d"));
}

/// Who branches writes: it keeps the source, and gets what only its reader may have.
#[tokio::test(flavor = "multi_thread")]
async fn a_leased_session_is_branched_by_its_holder_alone() {
    let db = Database::create("branch_fenced").await;
    let writer = db.writer().await;
    sample(&writer, "s").await;
    let claim = "select lease from agent_sessions.session_claim('s', ttl => '1 hour', holder => 'worker')";
    let lost: String = writer.value(claim, &[]).await;
    call_of(&writer, &format!("session_release('{{s}}', '{lost}')"), "s").await;
    let lease: String = writer.value(claim, &[]).await;
    let before = rows(&db).await;
    let raw = "insert into agent_sessions.session (session_id, branched_from, fork_position)
               select 'raw', sid, 3 from agent_sessions.session where session_id = 's'";
    for (setting, given, code) in [
        ("", None, "SE009"),
        ("", Some(lost.as_str()), "SE008"),
        ("", Some("nonsense"), "SE008"),
        (lost.as_str(), None, "SE008"),
        // What is given counts, not what is set.
        (lease.as_str(), Some(lost.as_str()), "SE008"),
    ] {
        writer.run(&format!("set agent_sessions.lease = '{setting}'")).await;
        let mut branch = Branch::of("s").named("b").seed("1");
        if let Some(given) = given {
            branch = branch.lease(given);
        }
        let error = assert_sqlstate!(branch.run(&writer).await, code);
        if code == "SE009" {
            assert_eq!(detail(&error), json!({"holder": "worker"}));
        }
        let none = branch.inherit(false);
        assert_sqlstate!(none.run(&writer).await, code);
        if given.is_none() {
            assert_sqlstate!(writer.execute(raw, &[]).await, code);
        }
        assert_eq!(rows(&db).await, before, "{setting} {given:?}");
    }
    writer.run("reset agent_sessions.lease").await;
    writer.branched(Branch::of("s").named("by argument").seed("1").lease(&lease)).await;
    writer.run(&format!("set agent_sessions.lease = '{lease}'")).await;
    writer.branched(Branch::of("s").named("by setting").seed("1")).await;
    assert_eq!(writer.execute(raw, &[]).await.expect("a raw branch"), 1);
    for (branch, entries) in [("by argument", ENTRIES + 1), ("by setting", ENTRIES + 1), ("raw", 3)] {
        writer.assert_dense(branch, entries).await;
    }
}

/// A branch is made of what is committed: it waits for a writer of its source, and has what that has written.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_waits_for_the_writer_of_its_source() {
    let db = Database::create("branch_waits").await;
    let (first, second) = (db.writer().await, Arc::new(db.writer().await));
    sample(&first, "s").await;
    for (commits, fork) in [(false, ENTRIES), (true, ENTRIES + 1)] {
        first.begin("read committed").await;
        first.append("s", "9").await;
        let waiting = tokio::spawn({
            let second = second.clone();
            async move { second.branched(Branch::of("s")).await }
        });
        db.wait_until_blocked(second.pid).await;
        if commits {
            first.commit().await;
        } else {
            first.rollback().await;
        }
        let made = waiting.await.expect("the waiting branch");
        assert_eq!((made.fork_position, made.next_position), (Some(fork), fork));
        first.assert_dense(&made.session_id, fork).await;
    }
}

/// A transaction with one snapshot that does not see the end of the source may not say where that is.
#[tokio::test(flavor = "multi_thread")]
async fn a_branch_under_an_old_snapshot_is_a_serialization_failure() {
    let db = Database::create("branch_snapshot").await;
    let (other, writer) = (db.writer().await, db.writer().await);
    sample(&other, "s").await;
    let raw = "insert into agent_sessions.session (session_id, branched_from, fork_position)
               select 'raw', sid, 3 from agent_sessions.session where session_id = 's'";
    for isolation in ["repeatable read", "serializable"] {
        for point in [Branch::of("s"), Branch::of("s").at_target(0), Branch::of("s").at_tag("t")] {
            writer.begin(isolation).await;
            writer.history("s").await;
            let next = other.append("s", "9").await;
            assert_sqlstate!(point.run(&writer).await, "40001");
            writer.rollback().await;
            writer.begin(isolation).await;
            writer.history("s").await;
            other.append("s", "9").await;
            assert_sqlstate!(writer.execute(raw, &[]).await, "40001");
            writer.rollback().await;
            writer.begin(isolation).await;
            let made = writer.branched(Branch::of("s")).await;
            assert_eq!(made.fork_position, Some(next + 2));
            writer.commit().await;
            writer.assert_dense(&made.session_id, next + 2).await;
        }
        // An id that was taken after the snapshot.
        writer.begin(isolation).await;
        writer.history("s").await;
        other.branch("s", isolation).await;
        assert_sqlstate!(Branch::of("s").named(isolation).run(&writer).await, "40001");
        writer.rollback().await;
    }
}
