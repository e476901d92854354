//! What bad input gets: its code and a DETAIL that names it, before any lock is taken, with nothing written, and a
//! backend that lives on.

use agent_sessions_tests::{Append, Connection, Database, Error, assert_sqlstate, detail, sqlstate};
use serde_json::{Value, json};
use tokio_postgres::types::ToSql;

use crate::payloads::Verbatim;

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Every function that writes to one session, called with the session's id as $1.
const WRITERS: [&str; 8] = [
    "session_create(session_id => $1::text)",
    "session_set(session_id => $1::text, title => 'new')",
    "session_delete(session_id => $1::text)",
    "session_append(session_id => $1::text, payload => '1')",
    "session_append_batch(session_id => $1::text, items => '[{\"payload\":1}]')",
    "session_revise(session_id => $1::text, payload => '1', target => 0)",
    "session_retract(session_id => $1::text, targets => '{0}')",
    "session_pop(session_id => $1::text)",
];

/// The same with the agent's id as $1.
const WRITERS_BY_AGENT: [&str; 8] = [
    "session_create(session_id => 'new', agent_id => $1::text)",
    "session_set(session_id => 's', title => 'new', agent_id => $1::text)",
    "session_delete(session_id => 's', agent_id => $1::text)",
    "session_append(session_id => 's', payload => '1', agent_id => $1::text)",
    "session_append_batch(session_id => 's', items => '[{\"payload\":1}]', agent_id => $1::text)",
    "session_revise(session_id => 's', payload => '1', target => 0, agent_id => $1::text)",
    "session_retract(session_id => 's', targets => '{0}', agent_id => $1::text)",
    "session_pop(session_id => 's', agent_id => $1::text)",
];

const READERS: [&str; 5] = [
    "session_get(session_id => $1::text)",
    "session_history(session_id => $1::text)",
    "session_log(session_id => $1::text)",
    "session_stats(session_id => $1::text)",
    "session_verify(session_id => $1::text)",
];

/// Where a label of the client's goes in, and under which name.
const LABELS: [(&str, &str); 14] = [
    ("kind", "session_append(session_id => 's', payload => '1', kind => $1::text)"),
    ("item_id", "session_append(session_id => 's', payload => '1', item_id => $1::text)"),
    ("tag", "session_append(session_id => 's', payload => '1', tag => $1::text)"),
    ("author", "session_append(session_id => 's', payload => '1', author => $1::text)"),
    ("item_id", "session_revise(session_id => 's', payload => '1', item_id => $1::text)"),
    ("kind", "session_revise(session_id => 's', payload => '1', target => 0, kind => $1::text)"),
    ("item_ids", "session_retract(session_id => 's', item_ids => array[$1::text])"),
    ("owner", "session_create(session_id => 'new', owner => $1::text)"),
    ("origin", "session_create(session_id => 'new', origin => $1::text)"),
    ("status", "session_create(session_id => 'new', status => $1::text)"),
    ("parent_session_id", "session_create(session_id => 'new', parent_session_id => $1::text)"),
    ("owner", "session_set(session_id => 's', owner => $1::text)"),
    ("origin", "session_set(session_id => 's', origin => $1::text)"),
    ("status", "session_set(session_id => 's', status => $1::text)"),
];

const TOO_DEEP: usize = 100_000;

/// A session `s` of three items whose head another session holds locked for as long as the bench lives: whatever took a
/// lock, or waited for one, before it looked at its arguments fails with 55P03.
struct Bench {
    db: Database,
    holder: Connection,
    writer: Connection,
    before: String,
}

impl Bench {
    async fn new(name: &str) -> Self {
        let db = Database::create(name).await;
        let writer = db.writer().await;
        writer.create_session("s").await;
        for item_id in ["a", "b", "c"] {
            let append = Append::to("s", r#"{"stored":true}"#).item_id(item_id).run(&writer).await;
            append.expect("an append");
        }
        let holder = db.superuser().await;
        holder.run("begin; select from agent_sessions.session for update").await;
        writer.run("set lock_timeout = '20s'").await;
        let before = fingerprint(&holder).await;
        Self { db, holder, writer, before }
    }

    /// The error of a call that must be refused, have written nothing, and leave its backend alive.
    async fn refused(&self, call: &str, parameters: Parameters<'_>, code: &str) -> Error {
        let sql = if call.starts_with("insert ") || call.starts_with("update ") {
            call.to_owned()
        } else {
            format!("select * from agent_sessions.{call}")
        };
        let error = match self.writer.query(&sql, parameters).await {
            Ok(rows) => panic!("{sql} with {parameters:.200?} was taken, {} rows", rows.len()),
            Err(error) => error,
        };
        assert_eq!(sqlstate(&error), code, "{sql} with {parameters:.200?}\n{error:?}");
        let pid: i32 = self.writer.value("select pg_backend_pid()", &[]).await;
        assert_eq!(pid, self.writer.pid, "{sql}: the backend has ended");
        assert_eq!(fingerprint(&self.holder).await, self.before, "{sql} with {parameters:.200?} has written");
        error
    }

    /// SE001 whose DETAIL names the argument and gives a reason.
    async fn invalid(&self, argument: &str, call: &str, parameters: Parameters<'_>) -> Value {
        let detail = detail(&self.refused(call, parameters, "SE001").await);
        assert_eq!(detail["argument"], argument, "{call} with {parameters:.200?}: {detail}");
        assert!(detail["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{call}: {detail}");
        detail
    }

    /// SE001 of the element of a batch.
    async fn invalid_element(&self, element: usize, items: &str) {
        for call in [
            "session_append_batch(session_id => 's', items => $1::text::json)",
            "session_create(session_id => 'new', items => $1::text::json)",
        ] {
            let detail = detail(&self.refused(call, &[&items], "SE001").await);
            assert_eq!(detail["element"], json!(element), "{items:.200}: {detail}");
            assert!(detail["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{items:.200}: {detail}");
        }
    }

    /// After all of it, the writer can go on.
    async fn close(self) {
        self.holder.rollback().await;
        assert_eq!(self.writer.append("s", "{}").await, 3);
        self.writer.assert_dense("s", 4).await;
        drop(self.db);
    }
}

/// Which row versions the tables hold.
async fn fingerprint(superuser: &Connection) -> String {
    let versions = "select
        (select string_agg(format('%s %s %s', sid, xmin, ctid), ',' order by sid) from agent_sessions.session) || ';' ||
        (select string_agg(format('%s %s %s %s', sid, position, xmin, ctid), ',' order by sid, position)
         from agent_sessions.session_item)";
    superuser.value(versions, &[]).await
}

/// Not an id, and why.
fn bad_names() -> Vec<String> {
    let too_long = ["a", "\u{e9}", "\u{1F525}"].map(|character| character.repeat(501));
    let controls = ["a\nb", "\r", "\t", "a\u{1b}[0m", "\u{7f}", "\u{85}"].map(str::to_owned);
    too_long.into_iter().chain(controls).collect()
}

/// Ids that must be stored as they are.
fn good_names() -> Vec<String> {
    let longest = ["a", "\u{e9}", "\u{1F525}"].map(|character| character.repeat(500));
    let strange = [
        " ",
        " a ",
        "'",
        "\"",
        "\\",
        "\\n",
        "/",
        "../a/b",
        "%41",
        "$1",
        "{}",
        "NULL",
        "null",
        "-1",
        "a,b;c",
        "e\u{301}",
        "\u{e9}",
        "\u{2028}",
        "\u{202e}abc",
        "\u{feff}",
        "\u{10ffff}",
        "A",
        "a",
    ];
    longest.into_iter().chain(strange.map(str::to_owned)).collect()
}

fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_session_and_agent_ids_are_arguments() {
    let bench = Bench::new("bad_ids").await;
    for call in WRITERS {
        for name in bad_names().into_iter().chain([String::new()]) {
            bench.invalid("session_id", call, &[&name]).await;
        }
    }
    for call in &WRITERS[1..] {
        bench.invalid("session_id", call, &[&None::<&str>]).await;
    }
    for call in WRITERS_BY_AGENT {
        for name in bad_names() {
            bench.invalid("agent_id", call, &[&name]).await;
        }
    }
    for name in bad_names() {
        bench
            .invalid(
                "parent_agent_id",
                "session_create(session_id => 'new', parent_session_id => 's',
            parent_agent_id => $1::text)",
                &[&name],
            )
            .await;
        bench.invalid("tenant", "tenant_use(tenant => $1::text)", &[&name]).await;
    }
    // A tenant that is not given is the one that is set.
    let kept = "select agent_sessions.tenant_use(tenant => null) from agent_sessions.tenant_use(tenant => 'kept')";
    assert_eq!(bench.writer.value::<String>(kept, &[]).await, "kept");
    bench.close().await;
}

/// A reader finds nothing under what cannot exist.
#[tokio::test(flavor = "multi_thread")]
async fn readers_have_no_rows_for_malformed_ids() {
    let db = Database::create("bad_ids_read").await;
    let reader = db.reader().await;
    let names = bad_names().into_iter().chain([String::new()]).map(Some).chain([None]);
    for name in names {
        for call in READERS {
            let rows = reader.query(&format!("select * from agent_sessions.{call}"), &[&name]).await;
            assert_eq!(rows.expect("no error").len(), 0, "{call} with {name:.50?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_labels_are_arguments() {
    let bench = Bench::new("bad_labels").await;
    for (argument, call) in LABELS {
        for name in bad_names().into_iter().chain([String::new()]) {
            bench.invalid(argument, call, &[&name]).await;
        }
    }
    let title = "\u{1F525}".repeat(10_001);
    bench.invalid("title", "session_create(session_id => 'new', title => $1::text)", &[&title]).await;
    bench.invalid("title", "session_set(session_id => 's', title => $1::text)", &[&title]).await;
    for key in ["kind", "item_id", "tag", "author"] {
        for name in bad_names().into_iter().chain([String::new()]) {
            let name = serde_json::to_string(&name).expect("a text is JSON");
            bench.invalid_element(1, &format!("[{{\"payload\":1}},{{\"payload\":2,\"{key}\":{name}}}]")).await;
        }
    }
    bench.close().await;
}

/// What the functions refuse, the triggers refuse in raw SQL.
#[tokio::test(flavor = "multi_thread")]
async fn malformed_names_in_raw_sql_are_arguments() {
    let bench = Bench::new("bad_raw").await;
    bench.holder.rollback().await;
    let item = |column: &str| {
        format!(
            "insert into agent_sessions.session_item (sid, payload, {column})
                 select sid, '1', $1::text from agent_sessions.session where session_id = 's' returning 1"
        )
    };
    for name in bad_names().into_iter().chain([String::new()]) {
        for column in ["kind", "item_id", "tag", "author"] {
            bench.invalid(column, &item(column), &[&name]).await;
        }
        for column in ["owner", "origin", "status"] {
            let insert = format!(
                "insert into agent_sessions.session (tenant, agent_id, session_id, {column})
                                  values ('', '', 'new', $1::text) returning 1"
            );
            bench.invalid(column, &insert, &[&name]).await;
            let update =
                format!("update agent_sessions.session set {column} = $1::text where session_id = 's' returning 1");
            bench.invalid(column, &update, &[&name]).await;
        }
        let insert =
            "insert into agent_sessions.session (tenant, agent_id, session_id) values ('', '', $1::text) returning 1";
        bench.invalid("session_id", insert, &[&name]).await;
    }
    for name in bad_names() {
        let insert = "insert into agent_sessions.session (tenant, agent_id, session_id) values ('', $1::text, 'new') returning 1";
        bench.invalid("agent_id", insert, &[&name]).await;
    }
    bench.invalid("op", &item("op"), &[&"delete"]).await;
    let no_payload = "insert into agent_sessions.session_item (sid, kind)
        select sid, $1::text from agent_sessions.session where session_id = 's' returning 1";
    bench.invalid("payload", no_payload, &[&"message"]).await;
    let target = "insert into agent_sessions.session_item (sid, op, payload, target)
        select sid, 'revise', '1', $1::bigint from agent_sessions.session where session_id = 's' returning 1";
    bench.invalid("target", target, &[&-1_i64]).await;
    bench.invalid("target", target, &[&None::<i64>]).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_possible_name_is_stored_exactly() {
    let db = Database::create("good_names").await;
    let writer = db.writer().await;
    let names = good_names();
    for name in &names {
        let create =
            "select session_id || '|' || owner || '|' || origin || '|' || status from agent_sessions.session_create(
            session_id => $1::text, owner => $1::text, origin => $1::text, status => $1::text, title => $1::text)";
        let expected = [name.as_str(); 4].join("|");
        assert_eq!(writer.value::<String>(create, &[name]).await, expected, "{name:.50}");
        let append = Append::to(name, "1").kind(name).item_id(name).tag(name).author(name).run(&writer).await;
        assert_eq!(append.unwrap_or_else(|error| panic!("{name:.50}: {error:?}")), 0);
        let history = writer.history(name).await;
        let texts = [&history[0].kind, &history[0].item_id, &history[0].tag, &history[0].author];
        assert!(texts.iter().all(|text| text.as_ref() == Some(name)), "{name:.50}: {texts:.200?}");
        let title: String =
            writer.value("select title from agent_sessions.session_get(session_id => $1::text)", &[name]).await;
        assert_eq!(&title, name);
        let by_id = "select count(*) from agent_sessions.session_history(
            session_id => $1::text, item_ids => array[$1::text], tags => array[$1::text], kinds => array[$1::text])";
        assert_eq!(writer.value::<i64>(by_id, &[name]).await, 1, "{name:.50}");

        let as_agent =
            "select agent_id from agent_sessions.session_create(session_id => 'as agent', agent_id => $1::text)";
        assert_eq!(writer.value::<String>(as_agent, &[name]).await, *name);
        let tenant = "select t from agent_sessions.tenant_use(tenant => $1::text) t";
        assert_eq!(writer.value::<String>(tenant, &[name]).await, *name);
    }
    let sessions = "select count(*) from agent_sessions.session where session_id <> 'as agent'";
    assert_eq!(writer.value::<i64>(sessions, &[]).await, names.len() as i64, "no two of them are one");
    let long_title = "\u{1F525}\n\t".repeat(3_333);
    let set = "select agent_sessions.session_set(session_id => 'a', title => $1::text)";
    writer.value::<i64>(set, &[&long_title]).await;
    let title = "select title from agent_sessions.session_get(session_id => 'a')";
    assert_eq!(writer.value::<String>(title, &[]).await, long_title);
}

/// An index entry holds at most 2 704 bytes, and the index's own error would be no code of ours.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_together_exceed_an_index_entry_are_limits() {
    let bench = Bench::new("long_names").await;
    let fire = "\u{1F525}".repeat(500);
    let limit = |error: &Error| {
        let detail = detail(error);
        (detail["limit"].clone(), detail["actual"].clone())
    };
    let create = "session_create(session_id => $1::text, agent_id => $1::text)";
    assert_eq!(limit(&bench.refused(create, &[&fire], "SE018").await), (json!(2600), json!(4000)));
    bench.writer.run("begin").await;
    bench.writer.value::<String>("select agent_sessions.tenant_use($1::text)", &[&fire]).await;
    bench.writer.run("savepoint before").await;
    for (call, actual) in [
        (create, 6000),
        ("session_create(session_id => 's', agent_id => $1::text)", 4001),
        ("session_create(session_id => 's', owner => $1::text)", 4000),
        ("session_append(session_id => $1::text, payload => '1', agent_id => $1::text, on_missing => 'create')", 6000),
        ("session_set(session_id => $1::text, agent_id => $1::text, on_missing => 'create')", 6000),
    ] {
        let sql = format!("select * from agent_sessions.{call}");
        let refused = assert_sqlstate!(bench.writer.query(&sql, &[&fire]).await, "SE018");
        assert_eq!(limit(&refused), (json!(2600), json!(actual)), "{call}");
        bench.writer.run("rollback to before").await;
    }
    let raw = "insert into agent_sessions.session (tenant, agent_id, session_id) values ($1::text, $1::text, $1::text)";
    assert_eq!(
        limit(&assert_sqlstate!(bench.writer.execute(raw, &[&fire]).await, "SE018")),
        (json!(2600), json!(6000))
    );
    bench.writer.rollback().await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_below_zero_are_arguments() {
    let bench = Bench::new("negative").await;
    for (argument, call) in [
        ("expected_position", "session_append(session_id => 's', payload => '1', expected_position => $1::bigint)"),
        ("kept_from", "session_append(session_id => 's', payload => '1', kept_from => $1::bigint)"),
        (
            "expected_position",
            "session_append_batch(session_id => 's', items => '[{\"payload\":1}]', expected_position => $1::bigint)",
        ),
        ("target", "session_revise(session_id => 's', payload => '1', target => $1::bigint)"),
        (
            "expected_position",
            "session_revise(session_id => 's', payload => '1', target => 0, expected_position => $1::bigint)",
        ),
        ("targets", "session_retract(session_id => 's', targets => array[0, $1::bigint])"),
        ("from_target", "session_retract(session_id => 's', from_target => $1::bigint)"),
        ("expected_position", "session_retract(session_id => 's', targets => '{0}', expected_position => $1::bigint)"),
        ("input_tokens", "session_create(session_id => 'new', input_tokens => $1::bigint)"),
        ("output_tokens", "session_create(session_id => 'new', output_tokens => $1::bigint)"),
        ("cost", "session_create(session_id => 'new', cost => $1::bigint)"),
        ("input_tokens", "session_set(session_id => 's', input_tokens => $1::bigint)"),
        ("output_tokens", "session_set(session_id => 's', output_tokens => $1::bigint)"),
        ("cost", "session_set(session_id => 's', cost => $1::bigint)"),
        ("expected_revision", "session_set(session_id => 's', title => 't', expected_revision => $1::bigint)"),
        ("max_rows", "session_history(session_id => 's', max_rows => $1::bigint::int)"),
        ("max_rows", "session_history(session_id => 's', max_rows => $1::bigint::int, newest_first => true)"),
        ("max_rows", "session_history(session_id => 's', max_rows => $1::bigint::int, item_ids => '{a}')"),
        ("max_rows", "session_history(session_id => 's', max_rows => $1::bigint::int, tags => '{a}')"),
        ("max_rows", "session_log(session_id => 's', max_rows => $1::bigint::int)"),
        ("max_rows", "session_list(max_rows => $1::bigint::int)"),
        ("max_rows", "session_list(max_rows => $1::bigint::int, order_by => 'activity')"),
    ] {
        bench.invalid(argument, call, &[&-1_i64]).await;
    }
    for cost in ["NaN", "Infinity", "-Infinity", "-0.01"] {
        bench.invalid("cost", "session_create(session_id => 'new', cost => $1::text::numeric)", &[&cost]).await;
        bench.invalid("cost", "session_set(session_id => 's', cost => $1::text::numeric)", &[&cost]).await;
    }
    for time in ["infinity", "-infinity"] {
        let create = "session_create(session_id => 'new', created_at => $1::text::timestamptz)";
        bench.invalid("created_at", create, &[&time]).await;
    }
    bench.invalid_element(1, r#"[{"payload":1},{"payload":2,"kept_from":-1}]"#).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_at_the_ends_of_their_type_are_harmless() {
    let db = Database::create("far_positions").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    writer.append("s", "1").await;
    let count = "select count(*) from agent_sessions.session_history(
        session_id => 's', after => $1::bigint, before => $2::bigint, max_rows => $3::int)";
    for (after, before, rows, expected) in [
        (Some(i64::MIN), Some(i64::MAX), Some(i32::MAX), 1_i64),
        (Some(i64::MAX), None, None, 0),
        (None, Some(i64::MIN), None, 0),
        (None, None, Some(0), 0),
    ] {
        assert_eq!(writer.value::<i64>(count, &[&after, &before, &rows]).await, expected, "{after:?} {before:?}");
    }
    let far = Append::to("s", "2").expected_position(i64::MAX).run(&writer).await;
    assert_eq!(detail(&assert_sqlstate!(far, "SE007")), json!({"expected": i64::MAX, "actual": 1}));
    for call in [
        "session_revise(session_id => 's', payload => '2', target => 9223372036854775807)",
        "session_retract(session_id => 's', targets => '{9223372036854775807}')",
    ] {
        let sql = format!("select agent_sessions.{call}");
        assert_sqlstate!(writer.try_value::<i64>(&sql, &[]).await, "SE011");
    }
    let later = Append::to("s", "2").kept_from(2).run(&writer).await;
    assert_eq!(detail(&assert_sqlstate!(later, "SE001"))["argument"], "kept_from");
    let batch = r#"[{"payload":1,"kept_from":1},{"payload":2,"kept_from":3}]"#;
    let refused = writer
        .query(
            "select * from agent_sessions.session_append_batch(session_id => 's', items => $1::text::json)",
            &[&batch],
        )
        .await;
    let refused = detail(&assert_sqlstate!(refused, "SE001"));
    assert_eq!((&refused["argument"], &refused["element"]), (&json!("kept_from"), &json!(1)));
    writer.assert_dense("s", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_words_than_the_named_ones_are_arguments() {
    let bench = Bench::new("wrong_words").await;
    for word in ["", "ERROR", "upsert", "error ", "\u{1F525}"] {
        for (argument, call) in [
            ("on_conflict", "session_append(session_id => 's', payload => '1', on_conflict => $1::text)"),
            ("on_missing", "session_append(session_id => 's', payload => '1', on_missing => $1::text)"),
            (
                "on_conflict",
                "session_append_batch(session_id => 's', items => '[{\"payload\":1}]', on_conflict => $1::text)",
            ),
            (
                "on_missing",
                "session_append_batch(session_id => 's', items => '[{\"payload\":1}]', on_missing => $1::text)",
            ),
            ("on_missing", "session_retract(session_id => 's', targets => '{0}', on_missing => $1::text)"),
            ("on_missing", "session_set(session_id => 's', on_missing => $1::text)"),
            ("on_missing", "session_delete(session_id => 's', on_missing => $1::text)"),
            ("on_conflict", "session_create(session_id => 's', on_conflict => $1::text)"),
            ("order_by", "session_list(order_by => $1::text)"),
            ("after", "session_list(after => $1::text)"),
            ("after", "session_list(after => $1::text, order_by => 'activity')"),
            ("min", "schema_require(min => $1::text)"),
            ("max", "schema_require(max => $1::text)"),
        ] {
            bench.invalid(argument, call, &[&word]).await;
        }
        let element = json!([{"payload": 1}, {"payload": 1, "on_conflict": word}]).to_string();
        bench.invalid_element(1, &element).await;
    }
    for (argument, call) in [
        ("on_missing", "session_retract(session_id => 's', targets => '{0}', on_missing => $1::text)"),
        ("on_missing", "session_delete(session_id => 's', on_missing => $1::text)"),
    ] {
        bench.invalid(argument, call, &[&"create"]).await;
    }
    bench.invalid("on_conflict", "session_create(session_id => 's', on_conflict => $1::text)", &[&"replace"]).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_payload_is_an_argument() {
    let bench = Bench::new("no_payload").await;
    for (argument, call) in [
        ("payload", "session_append(session_id => 's', payload => $1::text::json)"),
        ("payload", "session_revise(session_id => 's', target => 0, payload => $1::text::json)"),
        ("items", "session_append_batch(session_id => 's', items => $1::text::json)"),
    ] {
        bench.invalid(argument, call, &[&None::<&str>]).await;
    }
    bench.refused("session_revise(session_id => 's', payload => '1')", &[], "SE001").await;
    bench.refused("session_retract(session_id => 's')", &[], "SE001").await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_array_of_objects_is_a_batch() {
    let bench = Bench::new("bad_batch").await;
    for items in ["{}", "null", "1", "true", r#""[]""#, r#"{"payload":1}"#] {
        for call in [
            "session_append_batch(session_id => 's', items => $1::text::json)",
            "session_create(session_id => 'new', items => $1::text::json)",
        ] {
            let detail = bench.invalid("items", call, &[&items]).await;
            assert_eq!(detail.get("element"), None, "{items}: {detail}");
        }
    }
    for element in [
        "null",
        "1",
        "\"x\"",
        "true",
        "[]",
        "[{}]",
        "{}",
        r#"{"kind":"message"}"#,
        r#"{"payload":1,"payloads":2}"#,
        r#"{"payload":1,"Kind":"x"}"#,
        r#"{"payload":1,"":1}"#,
        r#"{"payload":1,"position":7}"#,
        r#"{"payload":1,"payload":2}"#,
        r#"{"payload":1,"kind":"a","kind":"b"}"#,
        r#"{"payload":1,"kind":7}"#,
        r#"{"payload":1,"kind":true}"#,
        r#"{"payload":1,"item_id":7}"#,
        r#"{"payload":1,"item_id":["x"]}"#,
        r#"{"payload":1,"tag":1.5}"#,
        r#"{"payload":1,"author":{}}"#,
        r#"{"payload":1,"on_conflict":1}"#,
        r#"{"payload":1,"kept_from":"3"}"#,
        r#"{"payload":1,"kept_from":1.5}"#,
        r#"{"payload":1,"kept_from":9223372036854775808}"#,
        r#"{"payload":1,"tag":"\ud83d"}"#,
        r#"{"payload":1,"item_id":"\ude00"}"#,
        r#"{"payload":1,"tag":"a\u0000b"}"#,
        r#"{"payload":1,"attrs":{"a":"x\u0000y"}}"#,
        r#"{"payload":1,"attrs":{"x\u0000y":1}}"#,
        r#"{"payload":1,"attrs":{"a":"\ud83d"}}"#,
        r#"{"payload":1,"attrs":{"a":1e400000}}"#,
        r#"{"payload":1,"attrs":-1e1000000}"#,
    ] {
        bench.invalid_element(0, &format!("[{element}]")).await;
        bench.invalid_element(2, &format!("[{{\"payload\":1}},{{\"payload\":2}},{element},{{\"payload\":3}}]")).await;
    }
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_100_000_elements_or_targets_are_a_limit() {
    let bench = Bench::new("too_many").await;
    let items = format!("[{}]", vec![r#"{"payload":1}"#; 100_001].join(","));
    for call in [
        "session_append_batch(session_id => 's', items => $1::text::json)",
        "session_create(session_id => 'new', items => $1::text::json)",
    ] {
        let refused = bench.refused(call, &[&items], "SE018").await;
        assert_eq!(detail(&refused), json!({"argument": "items", "limit": 100_000, "actual": 100_001}));
    }
    let targets: Vec<i64> = (0..100_001).map(|number| number % 3).collect();
    let refused =
        bench.refused("session_retract(session_id => 's', targets => $1::bigint[])", &[&targets], "SE018").await;
    assert_eq!(detail(&refused), json!({"argument": "targets", "limit": 100_000, "actual": 100_001}));
    let item_ids = vec!["a"; 100_001];
    let refused =
        bench.refused("session_retract(session_id => 's', item_ids => $1::text[])", &[&item_ids], "SE018").await;
    assert_eq!(detail(&refused), json!({"argument": "item_ids", "limit": 100_000, "actual": 100_001}));
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_arrays_write_nothing() {
    let bench = Bench::new("empty_arrays").await;
    bench.holder.rollback().await;
    for items in ["[]", " [ ] "] {
        let batch = "select * from agent_sessions.session_append_batch(
            session_id => 's', items => $1::text::json, expected_position => 3)";
        assert_eq!(bench.writer.query(batch, &[&items]).await.expect("an empty batch").len(), 0);
    }
    for retract in ["targets => '{}'", "item_ids => '{}'", "targets => '{}', item_ids => '{}'"] {
        let sql = format!("select agent_sessions.session_retract(session_id => 's', {retract})");
        assert_eq!(bench.writer.value::<i64>(&sql, &[]).await, 0, "{retract}");
    }
    assert_eq!(fingerprint(&bench.holder).await, bench.before);
    let created = "select next_position from agent_sessions.session_create(session_id => 'no items', items => '[]')";
    assert_eq!(bench.writer.value::<i64>(created, &[]).await, 0);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arrays_of_targets_are_lists_of_values() {
    let bench = Bench::new("bad_targets").await;
    for (argument, targets) in [
        ("targets", "targets => array[0, null]::bigint[]"),
        ("targets", "targets => array[null]::bigint[]"),
        ("item_ids", "item_ids => array['a', null]"),
        ("targets", "targets => array[[0, 1], [1, 2]]::bigint[]"),
        ("targets", "targets => array[[0]]::bigint[]"),
        ("item_ids", "item_ids => array[['a', 'b']]"),
        ("item_ids", "item_ids => array['a', '']"),
    ] {
        bench.invalid(argument, &format!("session_retract(session_id => 's', {targets})"), &[]).await;
    }
    bench.holder.rollback().await;
    let retract = "select agent_sessions.session_retract(session_id => 's', targets => $1::bigint[])";
    assert_eq!(bench.writer.value::<i64>(retract, &[&vec![0_i64, 1, 0, 1]]).await, 2);
    let ids = "select agent_sessions.session_retract(session_id => 's', item_ids => array['c', 'c'], targets => '{2}')";
    assert_eq!(bench.writer.value::<i64>(ids, &[]).await, 1);
    // Other bounds than 1 are still a list.
    bench.writer.append("s", "6").await;
    let bounds = "select agent_sessions.session_retract(session_id => 's', targets => '[5:5]={6}'::bigint[])";
    assert_eq!(bench.writer.value::<i64>(bounds, &[]).await, 1);
    bench.writer.assert_dense("s", 8).await;
}

/// What no value of PostgreSQL's types can hold gets PostgreSQL's own code.
#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_types_are_the_servers_own() {
    let bench = Bench::new("type_errors").await;
    for (call, code) in [
        (r#"session_append(session_id => 's', payload => '1', attrs => '{"a":"\u0000"}')"#, "22P05"),
        (r#"session_append(session_id => 's', payload => '1', attrs => '{"a":"\ud83d"}')"#, "22P02"),
        (r#"session_append(session_id => 's', payload => '1', attrs => '{"a":1e400000}')"#, "22003"),
        (r#"session_append(session_id => 's', payload => '{"a":}')"#, "22P02"),
        (r#"session_append_batch(session_id => 's', items => '[{"payload":1},]')"#, "22P02"),
        (r#"session_set(session_id => 's', metadata => '{"a":"\u0000"}')"#, "22P05"),
        (r#"session_create(session_id => 'new', state => '')"#, "22P02"),
        ("session_append(session_id => 's', payload => '1', expected_position => 9223372036854775808)", "42883"),
        ("session_append(session_id => 's', payload => '1', expected_position => '9223372036854775808')", "22003"),
        ("session_append(session_id => 's', payload => '1', nonsense => 1)", "42883"),
    ] {
        bench.refused(call, &[], code).await;
    }
    for call in WRITERS.iter().chain(&READERS) {
        bench.refused(call, &[&"a\0b"], "22021").await;
    }
    for bytes in [b"\"\0\"".to_vec(), b"\"\xff\"".to_vec(), b"\"\xed\xa0\xbd\"".to_vec()] {
        let payload = Verbatim(bytes);
        bench.refused("session_append(session_id => 's', payload => $1)", &[&payload], "22021").await;
        bench.refused("session_append_batch(session_id => 's', items => $1)", &[&payload], "22021").await;
    }
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_json_is_stored_or_refused_by_the_server() {
    let bench = Bench::new("deep_json").await;
    let too_deep = nested(TOO_DEEP);
    let in_batch = format!("[{{\"payload\":{too_deep}}}]");
    let in_object = format!("{{\"a\":{too_deep}}}");
    for (call, value) in [
        ("session_append(session_id => 's', payload => $1::text::json)", &too_deep),
        ("session_append(session_id => 's', payload => '1', attrs => $1::text::jsonb)", &too_deep),
        ("session_append_batch(session_id => 's', items => $1::text::json)", &in_batch),
        ("session_revise(session_id => 's', target => 0, payload => $1::text::json)", &too_deep),
        ("session_create(session_id => 'new', state => $1::text::json)", &in_object),
        ("session_create(session_id => 'new', metadata => $1::text::jsonb)", &in_object),
        ("session_create(session_id => 'new', items => $1::text::json)", &in_batch),
        ("session_set(session_id => 's', state => $1::text::json)", &in_object),
        ("session_set(session_id => 's', state => $1::text::json, merge => true)", &in_object),
    ] {
        bench.refused(call, &[value], "54001").await;
    }
    bench.holder.rollback().await;
    for (place, levels) in [(3, 1_000), (5, 5_000)] {
        let deep = nested(levels);
        assert_eq!(bench.writer.append("s", &deep).await, place);
        let batch = format!("[{{\"payload\":{deep},\"attrs\":{deep}}}]");
        let append =
            "select position from agent_sessions.session_append_batch(session_id => 's', items => $1::text::json)";
        assert_eq!(bench.writer.value::<i64>(append, &[&batch]).await, place + 1);
        for item in &bench.writer.history("s").await[place as usize..] {
            assert!(item.payload.as_ref() == Some(&deep), "{levels} levels");
        }
        let object = format!("{{\"a\":{deep}}}");
        for merge in [false, true] {
            let set = "select agent_sessions.session_set(session_id => 's', state => $1::text::json, merge => $2)";
            bench.writer.value::<i64>(set, &[&object, &merge]).await;
            let state = "select state::text from agent_sessions.session_get(session_id => 's')";
            assert!(bench.writer.value::<String>(state, &[]).await == object, "{levels} levels, merge {merge}");
        }
    }
    bench.writer.assert_dense("s", 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_objects_merge() {
    let db = Database::create("bad_merge").await;
    let writer = db.writer().await;
    let set = "select agent_sessions.session_set(session_id => 's', state => $1::text::json, merge => $2::boolean)";
    for (stored, patch) in [(r#"{"a":1}"#, "[1]"), ("[1]", r#"{"a":1}"#), ("1", "{}"), ("{}", "null")] {
        let start = "select agent_sessions.session_set(
            session_id => 's', state => $1::text::json, on_missing => 'create')";
        writer.value::<i64>(start, &[&stored]).await;
        let refused = assert_sqlstate!(writer.try_value::<i64>(set, &[&patch, &true]).await, "SE001");
        assert_eq!(detail(&refused)["argument"], "state");
        let now = "select state::text from agent_sessions.session_get(session_id => 's')";
        assert_eq!(writer.value::<String>(now, &[]).await, stored);
    }
    let metadata = "select agent_sessions.session_set(session_id => 's', metadata => $1::text::jsonb, merge => true)";
    let refused = assert_sqlstate!(writer.try_value::<i64>(metadata, &[&"[1]"]).await, "SE001");
    assert_eq!(detail(&refused)["argument"], "metadata");
}

/// A savepoint is all that a client needs after any of these.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_refusal_the_transaction_goes_on_without_a_lock() {
    let db = Database::create("refused_savepoint").await;
    let (writer, other) = (db.writer().await, db.superuser().await);
    writer.create_session("s").await;
    Append::to("s", "1").item_id("a").run(&writer).await.expect("an append");
    for (call, code) in [
        ("session_append(session_id => 's', payload => '2', kind => '')", "SE001"),
        ("session_append(session_id => 's', payload => '2', expected_position => 0)", "SE007"),
        ("session_append(session_id => 's', payload => '2', item_id => 'a')", "SE010"),
        ("session_append(session_id => 's', payload => '2', lease => 'none')", "SE008"),
        ("session_append(session_id => 'absent', payload => '2')", "SE002"),
        (
            "session_append_batch(session_id => 's', items => '[{\"payload\":2},{\"payload\":3,\"item_id\":\"a\"}]')",
            "SE010",
        ),
        ("session_revise(session_id => 's', payload => '2', target => 7)", "SE011"),
        ("session_retract(session_id => 's', targets => '{0,7}')", "SE011"),
        ("session_set(session_id => 's', title => 't', expected_revision => 9)", "SE006"),
        ("session_set(session_id => 's', title => 't', lease => 'none')", "SE008"),
        ("session_delete(session_id => 's', lease => 'none')", "SE008"),
        ("session_pop(session_id => 's', lease => 'none')", "SE008"),
        ("session_create(session_id => 's')", "SE003"),
    ] {
        writer.run("begin; savepoint before").await;
        let sql = format!("select * from agent_sessions.{call}");
        assert_eq!(sqlstate(&writer.query(&sql, &[]).await.expect_err(call)), code, "{call}");
        // The lock ends with the failed statement. That it has ended shows in the next answer.
        let next = writer.batch_execute("select 1").await;
        assert_eq!(sqlstate(&next.expect_err("the transaction has failed")), "25P02");
        other.run("begin; select from agent_sessions.session where session_id = 's' for update nowait; rollback").await;
        writer.run("rollback to before").await;
        assert_eq!(writer.append("s", "2").await, 1, "{call}");
        writer.rollback().await;
        writer.assert_dense("s", 1).await;
    }
    let revision = "select revision from agent_sessions.session_get(session_id => 's')";
    assert_eq!(writer.value::<i64>(revision, &[]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_of_the_owner_refuse_what_they_do_not_know() {
    let db = Database::create("bad_access").await;
    let owner = db.owner().await;
    let writer = db.role_name(&agent_sessions_tests::Role::Writer);
    for level in ["", "WRITER", "god"] {
        let sql = "select agent_sessions.access_grant(role => $1::text::name, level => $2::text)::text";
        let refused = assert_sqlstate!(owner.try_value::<String>(sql, &[&writer, &level]).await, "SE001");
        assert_eq!(detail(&refused)["argument"], "level");
    }
    for call in [
        "access_grant(role => 'no such role', level => 'reader')",
        "access_revoke(role => 'no such role')",
        "tenant_bind(role => 'no such role', tenant => 't')",
        "tenant_unbind(role => 'no such role', tenant => 't')",
    ] {
        assert_sqlstate!(owner.query(&format!("select agent_sessions.{call}"), &[]).await, "42704");
    }
    for call in [
        "access_grant(role => null, level => 'reader')",
        "access_grant(role => current_user, level => null)",
        "access_revoke(role => null)",
        "tenant_bind(role => null, tenant => 't')",
        "tenant_bind(role => current_user, tenant => null)",
        "tenant_unbind(role => null, tenant => 't')",
        "access_force_rls(enabled => null)",
    ] {
        assert_sqlstate!(owner.query(&format!("select agent_sessions.{call}"), &[]).await, "SE001");
    }
    for name in bad_names() {
        for call in ["tenant_bind", "tenant_unbind"] {
            let sql = format!("select agent_sessions.{call}(role => current_user, tenant => $1::text)::text");
            let refused = assert_sqlstate!(owner.try_value::<String>(&sql, &[&name]).await, "SE001");
            assert_eq!(detail(&refused)["argument"], "tenant");
        }
    }
}
