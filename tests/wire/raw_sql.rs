//! Raw SQL parity: a plain INSERT, UPDATE or DELETE of a writer does what the functions do, and is refused where they
//! refuse. What only the engine may do is refused to a writer, and to the owner too.

use std::io::Cursor;
use std::pin::pin;

use agent_sessions_tests::{Append, Connection, Database, Error, assert_sqlstate, detail, sqlstate};
use futures_util::SinkExt;
use serde_json::{Value, json};

const COLUMNS: &str = "position, op, kind, item_id, tag, author, target, payload, attrs";

/// 501 characters: one too many for a label.
const LONG: &str = match std::str::from_utf8(&[b'x'; 501]) {
    Ok(text) => text,
    Err(_) => panic!("letters are UTF-8"),
};

/// What a client says of an entry; the extension fills in what is left out.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    position: Option<i64>,
    op: Option<&'static str>,
    kind: Option<&'static str>,
    item_id: Option<&'static str>,
    tag: Option<&'static str>,
    author: Option<&'static str>,
    target: Option<i64>,
    payload: Option<&'static str>,
    attrs: Option<&'static str>,
}

impl Row {
    const EMPTY: Row = Row {
        position: None,
        op: None,
        kind: None,
        item_id: None,
        tag: None,
        author: None,
        target: None,
        payload: None,
        attrs: None,
    };

    fn message(payload: &'static str) -> Row {
        Row { payload: Some(payload), ..Row::EMPTY }
    }

    fn about(op: &'static str, target: i64) -> Row {
        Row { op: Some(op), target: Some(target), ..Row::EMPTY }
    }

    fn fields(&self) -> [(&'static str, Option<String>); 9] {
        let text = |text: Option<&str>| text.map(str::to_owned);
        let number = |number: Option<i64>| number.map(|number| number.to_string());
        [
            ("bigint", number(self.position)),
            ("text", text(self.op)),
            ("text", text(self.kind)),
            ("text", text(self.item_id)),
            ("text", text(self.tag)),
            ("text", text(self.author)),
            ("bigint", number(self.target)),
            ("json", text(self.payload)),
            ("jsonb", text(self.attrs)),
        ]
    }

    fn values(&self, sid: i64) -> String {
        let mut values = sid.to_string();
        for (kind, value) in self.fields() {
            let literal = value.map_or("null".into(), |value| quote(&value));
            values.push_str(&format!(", {literal}::{kind}"));
        }
        values
    }

    fn line(&self, sid: i64) -> String {
        let mut line = sid.to_string();
        for (_, value) in self.fields() {
            line.push('\t');
            match value {
                None => line.push_str("\\N"),
                Some(value) => line.push_str(&value.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t")),
            }
        }
        line.push('\n');
        line
    }
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A writer, and the owner for COPY FROM, which PostgreSQL refuses to every role that policies bind.
struct Clients {
    writer: Connection,
    owner: Connection,
}

impl Clients {
    async fn of(db: &Database) -> Clients {
        Clients { writer: db.writer().await, owner: db.owner().await }
    }
}

/// How a client may put rows into a table.
#[derive(Clone, Copy, Debug)]
enum Form {
    Single,
    MultiRow,
    Select,
    Cte,
    Copy,
    Merge,
    DoNothing,
}

impl Form {
    const ALL: [Form; 7] =
        [Form::Single, Form::MultiRow, Form::Select, Form::Cte, Form::Copy, Form::Merge, Form::DoNothing];

    /// The forms that bring many rows in one statement.
    const BULK: [Form; 6] = [Form::MultiRow, Form::Select, Form::Cte, Form::Copy, Form::Merge, Form::DoNothing];

    /// Inserts the rows into one session's log, and returns how many the server says it has inserted.
    async fn insert(self, clients: &Clients, sid: i64, rows: &[Row]) -> Result<u64, Error> {
        let writer = &clients.writer;
        let into = format!("insert into agent_sessions.session_item (sid, {COLUMNS})");
        let tuples: Vec<String> = rows.iter().map(|row| format!("({})", row.values(sid))).collect();
        let numbered: Vec<String> =
            rows.iter().enumerate().map(|(number, row)| format!("({number}, {})", row.values(sid))).collect();
        let given = format!("(values {}) as given (number, sid, {COLUMNS})", numbered.join(", "));
        match self {
            Form::Single => {
                let mut inserted = 0;
                for tuple in tuples {
                    inserted += writer.execute(&format!("{into} values {tuple}"), &[]).await?;
                }
                Ok(inserted)
            }
            Form::MultiRow => writer.execute(&format!("{into} values {}", tuples.join(", ")), &[]).await,
            Form::DoNothing => {
                writer.execute(&format!("{into} values {} on conflict do nothing", tuples.join(", ")), &[]).await
            }
            Form::Select => {
                writer.execute(&format!("{into} select sid, {COLUMNS} from {given} order by number"), &[]).await
            }
            Form::Cte => {
                let sql = format!(
                    "with brought as (select * from {given}),
                          written as ({into} select sid, {COLUMNS} from brought order by number returning position)
                     select count(*) from written"
                );
                writer.try_value::<i64>(&sql, &[]).await.map(|written| written as u64)
            }
            Form::Merge => {
                let sql = format!(
                    "merge into agent_sessions.session_item using (select * from {given} order by number) given on false
                     when not matched then insert (sid, {COLUMNS}) values (given.sid, given.{})",
                    COLUMNS.replace(", ", ", given.")
                );
                writer.execute(&sql, &[]).await
            }
            Form::Copy => {
                let lines: String = rows.iter().map(|row| row.line(sid)).collect();
                copy(&clients.owner, &format!("copy agent_sessions.session_item (sid, {COLUMNS}) from stdin"), lines)
                    .await
            }
        }
    }
}

async fn copy(connection: &Connection, sql: &str, lines: String) -> Result<u64, Error> {
    let mut sink = pin!(connection.copy_in(sql).await?);
    sink.send(Cursor::new(lines.into_bytes())).await?;
    sink.finish().await
}

async fn sid_of(connection: &Connection, session: &str) -> i64 {
    connection.value("select sid from agent_sessions.session where session_id = $1::text", &[&session]).await
}

/// Every entry with all that a client may give, in the order of the log.
async fn entries(connection: &Connection, session: &str) -> Vec<String> {
    let sql = "select concat_ws(' | ', position, op, coalesce(kind, '-'), coalesce(item_id, '-'), coalesce(tag, '-'),
                 coalesce(author, '-'), coalesce(target::text, '-'), coalesce(payload::text, '-'),
                 coalesce(attrs::text, '-'))
               from agent_sessions.session_log(session_id => $1::text)";
    let rows = connection.query(sql, &[&session]).await.expect("the log");
    rows.iter().map(|row| row.get(0)).collect()
}

/// All bytes of both tables, as one digest.
async fn fingerprint(db: &Database) -> String {
    let sql = "select md5(concat(
                 (select string_agg(s::text, E'\\n' order by s.sid) from agent_sessions.session s),
                 (select string_agg(i::text, E'\\n' order by i.sid, i.position) from agent_sessions.session_item i)))";
    db.superuser().await.value(sql, &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_writes_the_log_that_the_function_writes() {
    let db = Database::create("raw_forms").await;
    let clients = Clients::of(&db).await;
    let writer = &clients.writer;
    let rows = [
        Row { item_id: Some("a"), author: Some("user"), ..Row::message("{\"b\" : 1,\"a\":2, \"b\":1e2}") },
        Row { kind: Some("tool call"), tag: Some("run 1"), attrs: Some("{\"x\": [1, null]}"), ..Row::message("[]") },
        Row { op: Some("append"), kind: Some("tool_result"), ..Row::message("\"\\u0000 \\ud83d \\\\ it's\"") },
        Row { op: Some("open"), item_id: Some("d"), ..Row::message("null") },
        Row { target: Some(1), kind: Some("summary"), ..Row::message(" {\"sum\":\t-0.0} ") },
        Row { payload: Some("{\"b\":2}"), ..Row::about("revise", 0) },
        Row::about("retract", 1),
        Row::about("retract_from", 4),
        Row { item_id: Some("e"), ..Row::message("1e400000") },
    ];

    writer.create_session("function").await;
    for row in &rows[..5] {
        let sql = "select agent_sessions.session_append(session_id => 'function', payload => $1::text::json,
                     kind => $2::text, item_id => $3::text, tag => $4::text, author => $5::text,
                     attrs => $6::text::jsonb, kept_from => $7::bigint, open => $8::boolean)";
        let open = row.op == Some("open");
        let given: [&(dyn tokio_postgres::types::ToSql + Sync); 8] =
            [&row.payload, &row.kind, &row.item_id, &row.tag, &row.author, &row.attrs, &row.target, &open];
        writer.value::<i64>(sql, &given).await;
    }
    writer
        .run(
            "select agent_sessions.session_revise(session_id => 'function', item_id => 'a', payload => '{\"b\":2}');
             select agent_sessions.session_retract(session_id => 'function', targets => '{1}');
             select agent_sessions.session_retract(session_id => 'function', from_target => 4);
             select agent_sessions.session_append(session_id => 'function', item_id => 'e', payload => '1e400000')",
        )
        .await;
    let written = entries(writer, "function").await;
    assert_eq!(written.len(), rows.len(), "{written:#?}");
    let live = writer.history("function").await;

    for form in Form::ALL {
        let session = format!("{form:?}");
        writer.create_session(&session).await;
        let sid = sid_of(writer, &session).await;
        let inserted = form.insert(&clients, sid, &rows).await.unwrap_or_else(|error| panic!("{form:?}: {error:?}"));
        assert_eq!(inserted, rows.len() as u64, "{form:?}");
        assert_eq!(entries(writer, &session).await, written, "{form:?}");
        writer.assert_dense(&session, rows.len() as i64).await;
        let shown: Vec<_> =
            writer.history(&session).await.into_iter().map(|item| (item.position, item.payload)).collect();
        assert_eq!(
            shown,
            live.iter().map(|item| (item.position, item.payload.clone())).collect::<Vec<_>>(),
            "{form:?}"
        );
    }
}

/// What a statement comes to.
enum Outcome {
    /// Accepted, and a raw INSERT says that it has written this many rows.
    Written(u64),
    Refused(&'static str, Option<Value>),
}
use Outcome::{Refused, Written};

struct Scenario {
    /// The call; `{s}` stands for the session.
    function: &'static str,
    row: Row,
    outcome: Outcome,
}

fn scenario(function: &'static str, row: Row, outcome: Outcome) -> Scenario {
    Scenario { function, row, outcome }
}

fn invalid(argument: &str) -> Outcome {
    Refused("SE001", Some(json!({"argument": argument})))
}

/// On the log that `prepare` writes: the next position is 6.
fn scenarios() -> Vec<Scenario> {
    let moved = |expected: i64| Refused("SE007", Some(json!({"expected": expected, "actual": 6})));
    let a = Row { item_id: Some("a"), tag: Some("t"), author: Some("u"), ..Row::message("{\"n\": 0}") };
    vec![
        scenario("session_append('{s}', '{\"x\" :1}')", Row::message("{\"x\" :1}"), Written(1)),
        scenario(
            "session_append('{s}', '1', kind => 'note', item_id => 'c', tag => 't', author => 'w', attrs => '{\"k\":[1]}')",
            Row {
                kind: Some("note"),
                item_id: Some("c"),
                tag: Some("t"),
                author: Some("w"),
                attrs: Some("{\"k\":[1]}"),
                ..Row::message("1")
            },
            Written(1),
        ),
        scenario("session_append('{s}', '1', open => true)", Row { op: Some("open"), ..Row::message("1") }, Written(1)),
        // Compare-and-set.
        scenario(
            "session_append('{s}', '1', expected_position => 6)",
            Row { position: Some(6), ..Row::message("1") },
            Written(1),
        ),
        scenario(
            "session_append('{s}', '1', expected_position => 5)",
            Row { position: Some(5), ..Row::message("1") },
            moved(5),
        ),
        scenario(
            "session_append('{s}', '1', expected_position => 7)",
            Row { position: Some(7), ..Row::message("1") },
            moved(7),
        ),
        scenario(
            "session_append('{s}', '1', expected_position => -1)",
            Row { position: Some(-1), ..Row::message("1") },
            Refused("SE001", None),
        ),
        // Idempotency: also after the expected position has passed, and after a revision.
        scenario("session_append('{s}', '{\"n\": 0}', item_id => 'a', tag => 't', author => 'u')", a, Written(0)),
        scenario(
            "session_append('{s}', '{\"n\": 0}', item_id => 'a', tag => 't', author => 'u', expected_position => 0)",
            Row { position: Some(0), ..a },
            Written(0),
        ),
        scenario(
            "session_append('{s}', '{\"n\": 1}', item_id => 'b')",
            Row { item_id: Some("b"), ..Row::message("{\"n\": 1}") },
            Written(0),
        ),
        scenario(
            "session_append('{s}', '{\"n\":0}', item_id => 'a', tag => 't', author => 'u')",
            Row { payload: Some("{\"n\":0}"), ..a },
            Refused("SE010", Some(json!({"item_id": "a", "position": 0}))),
        ),
        scenario(
            "session_append('{s}', '{\"n\": 0}', item_id => 'a', author => 'u')",
            Row { tag: None, ..a },
            Refused("SE010", Some(json!({"item_id": "a", "position": 0}))),
        ),
        scenario(
            "session_append('{s}', '{\"n\": 0}', item_id => 'a', tag => 't', author => 'v')",
            Row { author: Some("v"), ..a },
            Refused("SE010", Some(json!({"item_id": "a", "position": 0}))),
        ),
        scenario(
            "session_append('{s}', '{\"n\": 0}', item_id => 'a', tag => 't', author => 'u', kind => 'note')",
            Row { kind: Some("note"), ..a },
            Refused("SE010", Some(json!({"item_id": "a", "position": 0}))),
        ),
        scenario(
            "session_append('{s}', '{\"n\": 0}', item_id => 'a', tag => 't', author => 'u', kept_from => 0)",
            Row { target: Some(0), ..a },
            Refused("SE010", Some(json!({"item_id": "a", "position": 0}))),
        ),
        scenario(
            "session_append('{s}', '{\"n\": \"one\"}', item_id => 'b')",
            Row { item_id: Some("b"), ..Row::message("{\"n\": \"one\"}") },
            Refused("SE010", Some(json!({"item_id": "b", "position": 1}))),
        ),
        // Summaries.
        scenario(
            "session_append('{s}', '1', kept_from => 2)",
            Row { target: Some(2), ..Row::message("1") },
            Written(1),
        ),
        scenario(
            "session_append('{s}', '1', kept_from => 6)",
            Row { target: Some(6), ..Row::message("1") },
            Written(1),
        ),
        scenario(
            "session_append('{s}', '1', kept_from => 7)",
            Row { target: Some(7), ..Row::message("1") },
            Refused("SE001", None),
        ),
        scenario(
            "session_append('{s}', '1', kept_from => -1)",
            Row { target: Some(-1), ..Row::message("1") },
            Refused("SE001", None),
        ),
        // Revisions.
        scenario(
            "session_revise('{s}', '[9]', target => 0)",
            Row { payload: Some("[9]"), ..Row::about("revise", 0) },
            Written(1),
        ),
        scenario(
            "session_revise('{s}', '[9]', item_id => 'b', attrs => '{\"k\":1}')",
            Row { payload: Some("[9]"), attrs: Some("{\"k\":1}"), ..Row::about("revise", 1) },
            Written(1),
        ),
        scenario(
            "session_revise('{s}', '{\"n\": \"one\"}', target => 1)",
            Row { payload: Some("{\"n\": \"one\"}"), ..Row::about("revise", 1) },
            Written(0),
        ),
        scenario(
            "session_revise('{s}', '{\"n\": 1}', target => 1)",
            Row { payload: Some("{\"n\": 1}"), ..Row::about("revise", 1) },
            Written(1),
        ),
        scenario(
            "session_revise('{s}', '1', target => 2, expected_position => 6)",
            Row { position: Some(6), payload: Some("1"), ..Row::about("revise", 2) },
            Written(1),
        ),
        scenario(
            "session_revise('{s}', '1', target => 2, expected_position => 3)",
            Row { position: Some(3), payload: Some("1"), ..Row::about("revise", 2) },
            moved(3),
        ),
        scenario(
            "session_revise('{s}', '1', target => 4)",
            Row { payload: Some("1"), ..Row::about("revise", 4) },
            Refused("SE011", None),
        ),
        scenario(
            "session_revise('{s}', '1', target => 6)",
            Row { payload: Some("1"), ..Row::about("revise", 6) },
            Refused("SE011", None),
        ),
        scenario(
            "session_revise('{s}', '1', target => -1)",
            Row { payload: Some("1"), ..Row::about("revise", -1) },
            invalid("target"),
        ),
        // Retractions.
        scenario("session_retract('{s}', targets => '{0}')", Row::about("retract", 0), Written(1)),
        scenario("session_retract('{s}', item_ids => '{b}')", Row::about("retract", 1), Written(1)),
        scenario("session_retract('{s}', targets => '{3}')", Row::about("retract", 3), Written(0)),
        scenario("session_retract('{s}', targets => '{4}')", Row::about("retract", 4), Refused("SE011", None)),
        scenario("session_retract('{s}', targets => '{99}')", Row::about("retract", 99), Refused("SE011", None)),
        scenario(
            "session_retract('{s}', targets => '{0}', expected_position => 5)",
            Row { position: Some(5), ..Row::about("retract", 0) },
            moved(5),
        ),
        scenario("session_retract('{s}', from_target => 1)", Row::about("retract_from", 1), Written(1)),
        scenario("session_retract('{s}', from_target => 3)", Row::about("retract_from", 3), Written(0)),
        // Names.
        scenario(
            "session_append('{s}', '1', kind => '')",
            Row { kind: Some(""), ..Row::message("1") },
            invalid("kind"),
        ),
        scenario(
            "session_append('{s}', '1', item_id => E'a\\tb')",
            Row { item_id: Some("a\tb"), ..Row::message("1") },
            invalid("item_id"),
        ),
        scenario("session_append('{s}', '1', tag => '')", Row { tag: Some(""), ..Row::message("1") }, invalid("tag")),
        scenario(
            "session_append('{s}', '1', author => repeat('x', 501))",
            Row { author: Some(LONG), ..Row::message("1") },
            invalid("author"),
        ),
        // Content.
        scenario("session_append('{s}', null)", Row::EMPTY, invalid("payload")),
        scenario("session_revise('{s}', null, target => 0)", Row::about("revise", 0), invalid("payload")),
        scenario("session_append('{s}', '{\"a\":')", Row::message("{\"a\":"), Refused("22P02", None)),
    ]
}

/// Positions 0 to 3 are items, 3 is retracted by 4, and 5 revises 1.
async fn prepare(writer: &Connection, session: &str) {
    writer.create_session(session).await;
    let items = r#"[{"payload":{"n": 0},"item_id":"a","tag":"t","author":"u"}, {"payload":{"n": 1},"item_id":"b"},
                    {"payload":{"n": 2}}, {"payload":{"n": 3}}]"#;
    writer.append_batch(session, items).await;
    let sql = "select agent_sessions.session_retract(session_id => $1::text, targets => '{3}'),
                 agent_sessions.session_revise(session_id => $1::text, item_id => 'b', payload => '{\"n\": \"one\"}')";
    let row = writer.query_one(sql, &[&session]).await.expect("the log is prepared");
    assert_eq!((row.get(0), row.get(1)), (1i64, 5i64));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_comes_to_the_same_by_raw_sql() {
    let db = Database::create("raw_scenarios").await;
    let clients = Clients::of(&db).await;
    let writer = &clients.writer;
    for (number, Scenario { function, row, outcome }) in scenarios().into_iter().enumerate() {
        let session = format!("{number} by function");
        prepare(writer, &session).await;
        let before = entries(writer, &session).await;
        let call = format!("select agent_sessions.{}", function.replace("{s}", &session));
        let called = writer.batch_execute(&call).await;
        let wanted = entries(writer, &session).await;
        match &outcome {
            Written(rows) => {
                assert!(called.is_ok(), "{call}: {called:?}");
                assert_eq!(wanted.len() - before.len(), *rows as usize, "{call}");
            }
            Refused(code, told) => {
                refused_with(called.expect_err(&call), code, told.as_ref(), &call);
                assert_eq!(wanted, before, "{call}");
            }
        }
        writer.assert_dense(&session, wanted.len() as i64).await;

        for form in Form::ALL {
            let session = format!("{number} by {form:?}");
            prepare(writer, &session).await;
            let sid = sid_of(writer, &session).await;
            let inserted = form.insert(&clients, sid, &[row]).await;
            let told = format!("{form:?} of {row:?}");
            match &outcome {
                Written(rows) => {
                    assert_eq!(inserted.unwrap_or_else(|error| panic!("{told}: {error:?}")), *rows, "{told}")
                }
                Refused(code, detail) => {
                    let error = inserted.err().unwrap_or_else(|| panic!("{told} was accepted, {code} was expected"));
                    refused_with(error, code, detail.as_ref(), &told);
                }
            }
            assert_eq!(entries(writer, &session).await, wanted, "{told}");
            writer.assert_dense(&session, wanted.len() as i64).await;
        }
    }
}

/// The error has this code, and its DETAIL at least these members.
fn refused_with(error: Error, code: &str, told: Option<&Value>, what: &str) {
    assert_eq!(sqlstate(&error), code, "{what}: {error:?}");
    for (member, value) in told.and_then(Value::as_object).into_iter().flatten() {
        assert_eq!(&detail(&error)[member], value, "{what}: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_rows_of_one_statement_replay_and_fail_together() {
    let db = Database::create("raw_many").await;
    let clients = Clients::of(&db).await;
    let writer = &clients.writer;
    for form in Form::BULK {
        let session = format!("{form:?}");
        prepare(writer, &session).await;
        let sid = sid_of(writer, &session).await;
        let identified = |item_id, payload| Row { item_id: Some(item_id), ..Row::message(payload) };

        // New, a replay from before, a replay of the first of these, new.
        let rows = [
            identified("c", "1"),
            identified("b", "{\"n\": 1}"),
            identified("c", "1"),
            Row { position: Some(7), ..Row::message("2") },
        ];
        assert_eq!(form.insert(&clients, sid, &rows).await.expect("replays pass"), 2, "{form:?}");
        let before = entries(writer, &session).await;
        writer.assert_dense(&session, 8).await;

        // One that is refused takes all of them along.
        let error = assert_sqlstate!(
            form.insert(&clients, sid, &[Row::message("3"), identified("c", "4"), Row::message("5")]).await,
            "SE010"
        );
        assert_eq!(detail(&error), json!({"item_id": "c", "position": 6}));
        let at = |position| Row { position: Some(position), ..Row::message("6") };
        let error = assert_sqlstate!(form.insert(&clients, sid, &[at(8), at(8)]).await, "SE007");
        assert_eq!(detail(&error), json!({"expected": 8, "actual": 9}));
        assert_eq!(entries(writer, &session).await, before, "{form:?}");
        assert_eq!(
            form.insert(&clients, sid, &[at(8), at(9), at(10)]).await.expect("contiguous positions"),
            3,
            "{form:?}"
        );
        writer.assert_dense(&session, 11).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_writes_to_several_sessions_and_returns_what_was_set() {
    let db = Database::create("raw_several").await;
    let writer = db.writer().await;
    for session in ["one", "two"] {
        writer.create_session(session).await;
        writer.append(session, "0").await;
    }
    let sql = "insert into agent_sessions.session_item (sid, payload)
               select s.sid, to_json(n) from agent_sessions.session s, generate_series(1, 3) n
               order by n, s.session_id
               returning position, op, kind, tenant, agent_id, salt is not null and created_at is not null,
                 octet_length(content_digest), octet_length(digest)";
    let rows = writer.query(sql, &[]).await.expect("six entries");
    let positions: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(positions, [1, 1, 2, 2, 3, 3]);
    for row in &rows {
        let texts: [&str; 4] = [row.get(1), row.get(2), row.get(3), row.get(4)];
        assert_eq!(texts, ["append", "message", "", ""]);
        assert_eq!((row.get(5), row.get(6), row.get(7)), (true, 32i32, 32i32));
    }
    for session in ["one", "two"] {
        writer.assert_dense(session, 4).await;
    }
}

/// Settings bind the functions; what raw SQL stores is bound by fixed maxima only, so that it always restores.
#[tokio::test(flavor = "multi_thread")]
async fn the_size_setting_binds_the_functions_only() {
    let db = Database::create("raw_sizes").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    writer.run("set agent_sessions.max_payload_bytes = 20").await;
    let payload = json!("x".repeat(19)).to_string();
    let error = assert_sqlstate!(writer.try_append("s", &payload).await, "SE018");
    assert_eq!(detail(&error), json!({"argument": "payload", "limit": 20, "actual": 21}));
    assert_eq!(writer.raw_append("s", &payload).await.expect("a raw INSERT"), 1);
    writer.assert_dense("s", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fixed_maximum_binds_raw_sql() {
    let db = Database::create("raw_maximum").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    let insert = "insert into agent_sessions.session_item (sid, payload)
                  select sid, ('1' || repeat(' ', 255 * 1024 * 1024))::json from agent_sessions.session";
    let error = assert_sqlstate!(writer.batch_execute(insert).await, "SE018");
    assert_eq!(detail(&error), json!({"argument": "payload", "limit": 255 << 20, "actual": (255 << 20) + 1}));
    writer.assert_dense("s", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_entry_needs_a_session_that_exists_and_words_that_are_known() {
    let db = Database::create("raw_malformed").await;
    let clients = Clients::of(&db).await;
    let writer = &clients.writer;
    prepare(writer, "s").await;
    let sid = sid_of(writer, "s").await;
    let before = fingerprint(&db).await;
    let refusals = [
        (Row { op: Some("delete"), ..Row::message("1") }, "SE001"),
        (Row { op: Some(""), ..Row::message("1") }, "SE001"),
        (Row { op: Some("Append"), ..Row::message("1") }, "SE001"),
        (Row { op: Some("revise"), ..Row::message("1") }, "SE001"),
        (Row { op: Some("retract"), ..Row::EMPTY }, "SE001"),
        (Row { op: Some("retract_from"), ..Row::EMPTY }, "SE001"),
        (Row { kind: Some("message"), payload: Some("1"), ..Row::about("revise", 0) }, "SE001"),
        (Row { item_id: Some("x"), payload: Some("1"), ..Row::about("revise", 0) }, "SE001"),
        (Row { tag: Some("x"), ..Row::about("retract", 0) }, "SE001"),
        (Row { author: Some("x"), ..Row::about("retract_from", 0) }, "SE001"),
        (Row { payload: Some("1"), ..Row::about("retract", 0) }, "SE001"),
        (Row { attrs: Some("{}"), ..Row::about("retract", 0) }, "SE001"),
        (Row { payload: Some("{}"), ..Row::about("trim", 1) }, "SE014"),
        (Row { payload: Some("{}"), ..Row::about("erase", 1) }, "SE014"),
    ];
    for form in Form::ALL {
        for (row, code) in refusals {
            // COPY is for the owner, as whom the engine trims and erases.
            if matches!(form, Form::Copy) && code == "SE014" {
                continue;
            }
            let error = form.insert(&clients, sid, &[row]).await.expect_err("a malformed entry");
            assert_eq!(sqlstate(&error), code, "{form:?} of {row:?}: {error:?}");
        }
        let unknown = form.insert(&clients, sid + 1_000_000, &[Row::message("1")]).await;
        assert_sqlstate!(unknown, "SE002");
    }
    let missing = "insert into agent_sessions.session_item (payload) values ('1')";
    assert_sqlstate!(writer.batch_execute(missing).await, "SE001");
    let called = Append::to("nothing", "1").run(writer).await;
    let error = assert_sqlstate!(called, "SE002");
    assert_eq!(detail(&error), json!({"session_id": "nothing", "agent_id": ""}));
    assert_eq!(fingerprint(&db).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_the_engine_may_do_is_refused_to_a_writer() {
    let db = Database::create("raw_forbidden").await;
    let writer = db.writer().await;
    prepare(&writer, "s").await;
    let sid = sid_of(&writer, "s").await;
    let before = fingerprint(&db).await;

    let mut refusals: Vec<(String, &str)> = Vec::new();
    for (column, value) in [
        ("tenant", "''"),
        ("agent_id", "''"),
        ("salt", "gen_random_uuid()"),
        ("content_digest", "sha256('')"),
        ("digest", "sha256('')"),
        ("created_at", "now() - interval '1 day'"),
    ] {
        let insert =
            format!("insert into agent_sessions.session_item (sid, payload, {column}) values ({sid}, '1', {value})");
        refusals.push((insert, "42501"));
        refusals.push((format!("copy agent_sessions.session_item (sid, payload, {column}) from stdin"), "42501"));
        let merge = format!(
            "merge into agent_sessions.session_item using (values (1)) v on false
             when not matched then insert (sid, payload, {column}) values ({sid}, '1', {value})"
        );
        refusals.push((merge, "42501"));
    }
    for column in [
        "position",
        "op",
        "kind",
        "item_id",
        "tag",
        "author",
        "target",
        "payload",
        "attrs",
        "salt",
        "content_digest",
        "digest",
        "created_at",
        "sid",
        "tenant",
        "agent_id",
    ] {
        refusals.push((format!("update agent_sessions.session_item set {column} = null"), "42501"));
    }
    for (column, value) in [
        ("revision", "7"),
        ("fork_digest", "sha256('')"),
        ("lease_digest", "sha256('')"),
        ("lease_fence", "9"),
        ("lease_holder", "'me'"),
        ("lease_expires_at", "'infinity'"),
        ("base_position", "1"),
        ("base_digest", "sha256('')"),
        ("active_at", "now()"),
        ("updated_at", "now()"),
        ("closed_at", "now()"),
        ("deleted_at", "now()"),
    ] {
        let insert = format!("insert into agent_sessions.session (session_id, {column}) values ('t', {value})");
        refusals.push((insert, "42501"));
        if !["revision", "closed_at"].contains(&column) {
            refusals.push((format!("update agent_sessions.session set {column} = {value}"), "42501"));
        }
    }
    for (column, value) in [
        ("tenant", "'x'"),
        ("agent_id", "'x'"),
        ("session_id", "'x'"),
        ("parent_sid", "1"),
        ("branched_from", "1"),
        ("fork_position", "0"),
        ("created_at", "now()"),
        ("sid", "default"),
    ] {
        refusals.push((format!("update agent_sessions.session set {column} = {value}"), "42501"));
    }
    let statements = [
        // The key is the engine's: by the rewriter for plain values, by privilege for all other ways.
        ("insert into agent_sessions.session (sid, session_id) values (99, 't')", "428C9"),
        ("insert into agent_sessions.session (sid, session_id) overriding system value values (99, 't')", "42501"),
        ("copy agent_sessions.session (sid, session_id) from stdin", "42501"),
        ("update agent_sessions.session set sid = 99", "428C9"),
        ("select setval('agent_sessions.session_sid_seq', 1)", "42501"),
        ("select nextval('agent_sessions.session_sid_seq')", "42501"),
        ("copy agent_sessions.session_item (sid, payload) from stdin", "0A000"),
        // Entries stay.
        ("delete from agent_sessions.session_item", "42501"),
        ("truncate agent_sessions.session_item", "42501"),
        ("truncate agent_sessions.session", "42501"),
        ("truncate agent_sessions.session, agent_sessions.session_item", "42501"),
        (
            "insert into agent_sessions.session_item (sid, position, payload) select sid, 0, '1' from agent_sessions.session
             on conflict (sid, position) do update set payload = excluded.payload",
            "42501",
        ),
        (
            "merge into agent_sessions.session_item i using agent_sessions.session s on s.sid = i.sid
             when matched then delete",
            "42501",
        ),
        (
            "merge into agent_sessions.session_item i using agent_sessions.session s on s.sid = i.sid
             when matched then update set payload = '1'",
            "42501",
        ),
        // The rules stay.
        ("set session_replication_role = replica", "42501"),
        ("alter table agent_sessions.session_item disable trigger all", "42501"),
        ("alter table agent_sessions.session_item disable row level security", "42501"),
        ("create policy all_of_it on agent_sessions.session using (true)", "42501"),
        ("create or replace function agent_sessions.current_tenant() returns text language sql as 'select 1'", "42501"),
        ("create table agent_sessions.mine ()", "42501"),
        ("drop table agent_sessions.session_item", "42501"),
        ("drop extension agent_sessions", "42501"),
        ("set row_security = off; select * from agent_sessions.session", "42501"),
        ("select * from agent_sessions.tenant_binding", "42501"),
        ("insert into agent_sessions.tenant_binding (role, tenant) values (current_user::regrole, 'x')", "42501"),
        ("delete from agent_sessions.tenant_binding", "42501"),
        ("select * from agent_sessions.setting", "42501"),
        ("insert into agent_sessions.setting (name, value) values ('force_rls', 'on')", "42501"),
    ];
    refusals.extend(statements.map(|(sql, code)| (sql.to_owned(), code)));

    for (sql, code) in refusals {
        let attempted = match sql.starts_with("copy ") {
            // A connection of its own: the client loses step with the server when a COPY is refused.
            true => copy(&db.writer().await, &sql, String::new()).await.map(|_| ()),
            false => writer.batch_execute(&sql).await,
        };
        match attempted {
            Ok(()) => panic!("{sql}: was accepted, {code} was expected"),
            Err(error) => assert_eq!(sqlstate(&error), code, "{sql}: {error:?}"),
        }
        writer.run("reset row_security").await;
    }
    assert_eq!(fingerprint(&db).await, before);
    writer.assert_dense("s", 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_and_a_superuser_change_no_entry_either() {
    let db = Database::create("raw_owner").await;
    let writer = db.writer().await;
    prepare(&writer, "s").await;
    writer.create_session("parent").await;
    let before = fingerprint(&db).await;

    let mut refusals: Vec<String> = [
        "delete from agent_sessions.session_item",
        "delete from agent_sessions.session_item where position = 5",
        "truncate agent_sessions.session_item",
        "truncate agent_sessions.session",
        "truncate agent_sessions.session_item, agent_sessions.session cascade",
        "update agent_sessions.session_item set payload = payload",
        "update agent_sessions.session_item set payload = null, attrs = null, salt = null",
        "update agent_sessions.session set sid = default",
        "update agent_sessions.session set parent_sid = (select sid from agent_sessions.session where session_id = 'parent')
         where session_id = 's'",
        "update agent_sessions.session set created_at = created_at - interval '1 microsecond'",
    ]
    .map(str::to_owned)
    .into();
    for (column, value) in [
        ("position", "position + 100"),
        ("op", "'open'"),
        ("kind", "'x'"),
        ("item_id", "'x' || position"),
        ("tag", "'x'"),
        ("author", "'x'"),
        ("target", "0"),
        ("payload", "'7'"),
        ("attrs", "'{}'"),
        ("salt", "gen_random_uuid()"),
        ("content_digest", "sha256('')"),
        ("digest", "sha256('')"),
        ("created_at", "now()"),
        ("tenant", "'x'"),
        ("agent_id", "'x'"),
        ("sid", "sid + 1"),
    ] {
        refusals.push(format!("update agent_sessions.session_item set {column} = {value} where position = 0"));
    }
    for (column, value) in [("tenant", "'x'"), ("agent_id", "'x'"), ("session_id", "session_id || 'x'")] {
        refusals.push(format!("update agent_sessions.session set {column} = {value}"));
    }
    for connection in [db.owner().await, db.superuser().await] {
        for sql in &refusals {
            match connection.batch_execute(sql).await {
                Ok(()) => panic!("{sql}: was accepted, SE014 was expected"),
                Err(error) => assert_eq!(sqlstate(&error), "SE014", "{sql}: {error:?}"),
            }
        }
        assert_eq!(fingerprint(&db).await, before);
    }
}

/// What a restore brings: every column, checked and not replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_row_of_the_owner_is_checked_against_the_chain() {
    let db = Database::create("raw_full").await;
    let (writer, owner, superuser) = (db.writer().await, db.owner().await, db.superuser().await);
    prepare(&writer, "s").await;
    owner.run("create table public.saved as select * from agent_sessions.session_item").await;
    superuser
        .run("set session_replication_role = replica; delete from agent_sessions.session_item where position = 5; reset session_replication_role")
        .await;
    assert_eq!(writer.verify("s").await.entries, 5);

    let restore = |columns: &str| {
        let columns = [
            "sid",
            "position",
            "tenant",
            "agent_id",
            "op",
            "kind",
            "item_id",
            "tag",
            "author",
            "target",
            "payload",
            "attrs",
            "salt",
            "content_digest",
            "digest",
            "created_at",
        ]
        .map(|column| match columns.split_once(" = ") {
            Some((changed, value)) if changed == column => value.to_owned(),
            _ => column.to_owned(),
        });
        format!("insert into agent_sessions.session_item select {} from public.saved", columns.join(", "))
    };
    let flipped = "digest = set_byte(digest, 31, get_byte(digest, 31) # 1)";
    let content_flipped = "content_digest = set_byte(content_digest, 0, get_byte(content_digest, 0) # 128)";
    for (change, code, told) in [
        ("position = 6", "SE007", json!({"expected": 6, "actual": 5})),
        ("position = 4", "SE007", json!({"expected": 4, "actual": 5})),
        (flipped, "SE017", json!({"column": "digest", "position": 5})),
        (content_flipped, "SE017", json!({"column": "content_digest", "position": 5})),
        ("payload = '{\"n\": \"two\"}'", "SE017", json!({"column": "content_digest", "position": 5})),
        ("attrs = '{}'", "SE017", json!({"column": "content_digest", "position": 5})),
        ("salt = gen_random_uuid()", "SE017", json!({"column": "content_digest", "position": 5})),
        ("created_at = created_at + interval '1 microsecond'", "SE017", json!({"column": "digest", "position": 5})),
        ("target = 0", "SE017", json!({"column": "digest", "position": 5})),
    ] {
        let sql = format!("{} where position = 5", restore(change));
        let error = owner.batch_execute(&sql).await.expect_err(change);
        assert_eq!(sqlstate(&error), code, "{change}: {error:?}");
        assert_eq!(detail(&error), told, "{change}");
    }
    // A writer brings no full row, whatever it says.
    owner.run(&format!("grant select on public.saved to {}", db.role_name(&agent_sessions_tests::Role::Writer))).await;
    assert_sqlstate!(writer.batch_execute(&format!("{} where position = 5", restore(""))).await, "42501");
    owner.run(&format!("{} where position = 5", restore(""))).await;
    writer.assert_dense("s", 6).await;

    // Before its session is there, an entry is checked against its content; what it links to is for session_verify.
    superuser
        .run("set session_replication_role = replica; create table public.heads as table agent_sessions.session;
              delete from agent_sessions.session; delete from agent_sessions.session_item; reset session_replication_role")
        .await;
    assert_sqlstate!(
        owner.batch_execute(&format!("{} where position = 0", restore("payload = '{\"n\": 1}'"))).await,
        "SE017"
    );
    owner.run(&format!("{} where position = 0", restore(""))).await;
    let resalted = restore("salt = gen_random_uuid()");
    assert_sqlstate!(owner.batch_execute(&format!("{resalted} where position = 1")).await, "SE017");
    owner.run(&format!("{} where position > 0 order by position", restore(""))).await;
    assert_eq!(owner.value::<i64>("select count(*) from agent_sessions.session", &[]).await, 0, "no head is made");
    let partial = "insert into agent_sessions.session_item (sid, payload) select sid, '1' from public.saved limit 1";
    assert_sqlstate!(owner.batch_execute(partial).await, "SE002");
    superuser
        .run(
            "set session_replication_role = replica;
              insert into agent_sessions.session overriding system value select * from public.heads;
              reset session_replication_role",
        )
        .await;
    writer.assert_dense("s", 6).await;

    // Entries whose session is gone may go.
    superuser.run("set session_replication_role = replica; delete from agent_sessions.session; reset session_replication_role").await;
    assert_eq!(owner.execute("delete from agent_sessions.session_item", &[]).await.expect("orphans may go"), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_stay_dense_over_savepoints() {
    let db = Database::create("raw_savepoints").await;
    let (writer, superuser) = (db.writer().await, db.superuser().await);
    superuser
        .run(
            "create function public.boom() returns trigger language plpgsql as $$ begin raise exception 'boom'; end $$;
             create trigger zz_boom before insert on agent_sessions.session_item
             for each row when (new.tag = 'boom') execute function public.boom()",
        )
        .await;
    writer.create_session("s").await;
    writer.begin("read committed").await;
    for raw in [false, true] {
        let append = async |payload: &str| match raw {
            true => writer.raw_append("s", payload).await.map(|_| ()),
            false => writer.try_append("s", payload).await.map(|_| ()),
        };
        writer.run("savepoint failed").await;
        match raw {
            true => assert_sqlstate!(writer.raw_append_at("s", 99, "1").await.map(|_| ()), "SE007"),
            false => {
                assert_sqlstate!(Append::to("s", "1").expected_position(99).run(&writer).await.map(|_| ()), "SE007")
            }
        };
        writer.run("rollback to failed").await;
        append("1").await.expect("an append after a refused one");

        writer.run("savepoint undone").await;
        append("2").await.expect("an append to be undone");
        writer.append_batch("s", r#"[{"payload":3},{"payload":4}]"#).await;
        append("5").await.expect("an append to be undone");
        writer.run("rollback to undone").await;
        append("6").await.expect("an append after undone ones");

        // The insert of the function itself fails, after the function has found out where it goes.
        writer.run("savepoint insert_failed").await;
        assert_sqlstate!(Append::to("s", "7").tag("boom").run(&writer).await, "P0001");
        writer.run("rollback to insert_failed").await;
        append("8").await.expect("an append after a failed insert");
    }
    writer
        .run(
            "do $$ begin
               begin
                 perform agent_sessions.session_append(session_id => 's', payload => '9');
                 raise exception 'undo';
               exception when raise_exception then null;
               end;
               insert into agent_sessions.session_item (sid, payload)
                 select sid, '10' from agent_sessions.session where session_id = 's';
               begin
                 insert into agent_sessions.session_item (sid, payload)
                   select sid, '11' from agent_sessions.session where session_id = 's';
                 raise exception 'undo';
               exception when raise_exception then null;
               end;
               perform agent_sessions.session_append(session_id => 's', payload => '12');
             end $$",
        )
        .await;
    writer.commit().await;
    writer.assert_dense("s", 8).await;
    let payloads: Vec<_> = writer.history("s").await.into_iter().filter_map(|item| item.payload).collect();
    assert_eq!(payloads, ["1", "6", "8", "1", "6", "8", "10", "12"]);
}

/// What an owner's own trigger writes while a function or a statement writes goes where it belongs.
#[tokio::test(flavor = "multi_thread")]
async fn entries_that_a_trigger_writes_are_entries_like_others() {
    let db = Database::create("raw_nested").await;
    let (writer, owner) = (db.writer().await, db.owner().await);
    writer.create_session("s").await;
    writer.create_session("mirror").await;
    owner
        .run(
            "create function public.mirror() returns trigger language plpgsql as $$ begin
               perform agent_sessions.session_append(session_id => 'mirror', payload => new.payload);
               insert into agent_sessions.session_item (sid, payload)
                 select sid, new.payload from agent_sessions.session where session_id = 'mirror';
               insert into agent_sessions.session_item (sid, payload) values (new.sid, '\"noted\"');
               perform agent_sessions.session_append(session_id => 's', payload => '\"noted\"');
               return null;
             end $$;
             create trigger zz_mirror after insert on agent_sessions.session_item
             for each row when (new.tag = 'mirrored') execute function public.mirror()",
        )
        .await;
    let tagged = r#"[{"payload":1,"tag":"mirrored"},{"payload":2},{"payload":3,"tag":"mirrored"}]"#;
    for round in 0..3 {
        let base = round * 15;
        assert_eq!(Append::to("s", "0").tag("mirrored").run(&writer).await.expect("an append"), base);
        assert_eq!(writer.append_batch("s", tagged).await, [base + 3, base + 4, base + 5]);
        let raw = "insert into agent_sessions.session_item (sid, payload, tag)
                   select sid, '4', 'mirrored' from agent_sessions.session where session_id = 's'
                   returning position";
        assert_eq!(writer.value::<i64>(raw, &[]).await, base + 10);
        assert_eq!(writer.append("s", "5").await, base + 13);
        assert_eq!(writer.raw_append_at("s", base + 14, "6").await.expect("a raw append"), 1);
    }
    writer.assert_dense("s", 45).await;
    writer.assert_dense("mirror", 24).await;
    let payloads: Vec<_> = writer.history("mirror").await.into_iter().filter_map(|item| item.payload).collect();
    assert_eq!(payloads[..8], ["0", "0", "1", "1", "3", "3", "4", "4"]);
}

async fn revision(connection: &Connection, session: &str) -> i64 {
    connection.value("select revision from agent_sessions.session where session_id = $1::text", &[&session]).await
}

/// What an UPDATE does to the revision; the call of the same meaning does the same.
#[tokio::test(flavor = "multi_thread")]
async fn the_revision_moves_by_raw_updates_as_by_session_set() {
    let db = Database::create("raw_revision").await;
    let writer = db.writer().await;
    let steps: [(&str, Option<&str>, i64); 18] = [
        ("title = 'a'", Some("title => 'a'"), 1),
        ("title = 'a'", Some("title => 'a'"), 0),
        ("status = 'busy', metadata = '{\"a\": 1}'", Some("status => 'busy', metadata => '{\"a\": 1}'"), 1),
        ("metadata = '{\"a\":1}'", Some("metadata => '{\"a\":1}'"), 0),
        ("state = '{\"a\":1}'", Some("state => '{\"a\":1}'"), 1),
        ("state = '{\"a\":1}'", Some("state => '{\"a\":1}'"), 0),
        ("state = '{\"a\": 1}'", Some("state => '{\"a\": 1}'"), 1),
        ("owner = 'o'", Some("owner => 'o'"), 1),
        (
            "input_tokens = 5, output_tokens = 6, cost = 0.25, expires_at = 'infinity'",
            Some("input_tokens => 5, output_tokens => 6, cost => 0.25, expires_at => 'infinity'"),
            0,
        ),
        ("status = 'closed'", Some("status => 'closed'"), 1),
        ("status = 'open again'", Some("status => 'open again'"), 1),
        ("title = 'b', revision = revision + 1", None, 1),
        ("revision = revision + 1", None, 1),
        ("closed_at = now()", None, 1),
        ("origin = 'cli'", None, 1),
        ("title = null, owner = null, metadata = null, state = null", None, 1),
        ("title = null", None, 0),
        ("cost = cost + 1", None, 0),
    ];
    writer.create_session("raw").await;
    writer.create_session("function").await;
    for (assignments, arguments, moves) in steps {
        let before = revision(&writer, "raw").await;
        writer.run(&format!("update agent_sessions.session set {assignments} where session_id = 'raw'")).await;
        assert_eq!(revision(&writer, "raw").await - before, moves, "{assignments}");
        if let Some(arguments) = arguments {
            let before = revision(&writer, "function").await;
            let call = format!("select agent_sessions.session_set(session_id => 'function', {arguments})");
            let told: i64 = writer.value(&call, &[]).await;
            assert_eq!(told - before, moves, "{arguments}");
            assert_eq!(revision(&writer, "function").await, told, "{arguments}");
        }
    }

    let current = revision(&writer, "raw").await;
    let before = fingerprint(&db).await;
    for given in [current + 2, current - 1, 0] {
        let update =
            format!("update agent_sessions.session set title = 'stale', revision = {given} where session_id = 'raw'");
        let error = assert_sqlstate!(writer.batch_execute(&update).await, "SE006");
        assert_eq!(detail(&error), json!({"expected": given - 1, "actual": current}));
    }
    let stale = "select agent_sessions.session_set(session_id => 'function', title => 'stale', expected_revision => 1)";
    let error = assert_sqlstate!(writer.batch_execute(stale).await, "SE006");
    assert_eq!(detail(&error), json!({"expected": 1, "actual": revision(&writer, "function").await}));
    assert_eq!(fingerprint(&db).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_sets_closed_at_and_opening_clears_it() {
    let db = Database::create("raw_closing").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    let closed = "select closed_at is not null and closed_at <= clock_timestamp() and closed_at >= created_at
                  from agent_sessions.session where session_id = 's'";
    let closed_at = "select closed_at::text from agent_sessions.session where session_id = 's'";
    for (close, open) in [
        ("update agent_sessions.session set status = 'closed'", "update agent_sessions.session set status = 'open'"),
        (
            "select agent_sessions.session_set(session_id => 's', status => 'closed')",
            "select agent_sessions.session_set(session_id => 's', status => 'open')",
        ),
    ] {
        writer.run(close).await;
        assert!(writer.value::<bool>(closed, &[]).await, "{close}");
        let at: Option<String> = writer.value(closed_at, &[]).await;
        writer.run(close).await;
        assert_eq!(writer.value::<Option<String>>(closed_at, &[]).await, at, "closing twice keeps the time");
        writer.run(open).await;
        assert_eq!(writer.value::<Option<String>>(closed_at, &[]).await, None, "{open}");
    }
    for create in [
        "insert into agent_sessions.session (session_id, status) values ('t', 'closed')",
        "select agent_sessions.session_create(session_id => 'u', status => 'closed')",
    ] {
        writer.run(create).await;
    }
    let count = "select count(*) from agent_sessions.session where status = 'closed' and closed_at is not null";
    assert_eq!(writer.value::<i64>(count, &[]).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_session_is_the_one_that_session_create_makes() {
    let db = Database::create("raw_session").await;
    let writer = db.writer().await;
    writer.run("set agent_sessions.tenant = 'acme'; set agent_sessions.agent = 'coder'").await;
    writer.create_session("parent").await;
    let create = "select session_id from agent_sessions.session_create(session_id => 'function', title => 'T',
        metadata => '{\"m\": 1}', state => '{\"b\" :1, \"a\":2}', owner => 'o', origin => 'cli', status => 'open',
        parent_session_id => 'parent', input_tokens => 1, output_tokens => 2, cost => 0.50,
        expires_at => '2100-01-01 00:00:00+00', created_at => '2020-02-02 02:02:02.123456+00')";
    writer.value::<String>(create, &[]).await;
    let parent = sid_of(&writer, "parent").await;
    let columns = "title, metadata, state, owner, origin, status, parent_sid, input_tokens, output_tokens, cost,
                   expires_at, created_at";
    let values = format!(
        "'T', '{{\"m\": 1}}'::jsonb, '{{\"b\" :1, \"a\":2}}'::json, 'o', 'cli', 'open', {parent}, 1, 2, 0.50,
         '2100-01-01 00:00:00+00'::timestamptz, '2020-02-02 02:02:02.123456+00'::timestamptz"
    );
    let inserts = [
        format!("insert into agent_sessions.session (session_id, {columns}) values ('insert', {values})"),
        format!(
            "with given as (select 'cte', {values})
             insert into agent_sessions.session (session_id, {columns}) select * from given"
        ),
        format!(
            "insert into agent_sessions.session (session_id, {columns}) values ('nothing', {values}) on conflict do nothing"
        ),
        format!(
            "merge into agent_sessions.session using (values (1)) v on false
             when not matched then insert (session_id, {columns}) values ('merge', {values})"
        ),
        format!(
            "insert into agent_sessions.session (tenant, agent_id, session_id, {columns})
             values ('acme', 'coder', 'upsert', {values})
             on conflict (tenant, agent_id, session_id) where deleted_at is null do update set title = excluded.title"
        ),
    ];
    for insert in &inserts {
        assert_eq!(writer.execute(insert, &[]).await.unwrap_or_else(|error| panic!("{insert}: {error:?}")), 1);
    }
    let lines = format!(
        "copy\tT\t{{\"m\": 1}}\t{{\"b\" :1, \"a\":2}}\to\tcli\topen\t{parent}\t1\t2\t0.50\t2100-01-01 00:00:00+00\t2020-02-02 02:02:02.123456+00\n"
    );
    let into = format!("copy agent_sessions.session (session_id, {columns}) from stdin");
    let owner = db.owner().await;
    owner.run("set agent_sessions.tenant = 'acme'; set agent_sessions.agent = 'coder'").await;
    assert_eq!(copy(&owner, &into, lines).await.expect("a COPY"), 1);

    let shown =
        "select session_id, (to_jsonb(s) - array['sid', 'session_id', 'active_at', 'updated_at'])::text, state::text,
                   active_at = updated_at
                 from agent_sessions.session s where session_id <> 'parent' order by sid";
    let rows = writer.query(shown, &[]).await.expect("the sessions");
    let sessions: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(sessions, ["function", "insert", "cte", "nothing", "merge", "upsert", "copy"]);
    let first: (&str, &str) = (rows[0].get(1), rows[0].get(2));
    assert_eq!(first.1, "{\"b\" :1, \"a\":2}");
    for row in &rows {
        let session: &str = row.get(0);
        assert_eq!((row.get::<_, &str>(1), row.get::<_, &str>(2)), first, "{session}");
        writer.append(session, "1").await;
    }
    let made: (String, String) = {
        let row = writer
            .query_one("select tenant, agent_id from agent_sessions.session where session_id = 'insert'", &[])
            .await
            .expect("the session");
        (row.get(0), row.get(1))
    };
    assert_eq!(made, ("acme".to_owned(), "coder".to_owned()));

    // An id that is left out is a UUIDv7; the same id again is PostgreSQL's own error, or an update if that is asked for.
    let unnamed = "insert into agent_sessions.session (title) values ('unnamed') returning session_id";
    let session: String = writer.value(unnamed, &[]).await;
    let id = uuid::Uuid::parse_str(&session).expect("a UUID");
    assert_eq!(id.get_version_num(), 7);
    let again = "insert into agent_sessions.session (session_id) values ('insert')";
    let error = assert_sqlstate!(writer.batch_execute(again).await, "23505");
    assert_eq!(error.as_db_error().and_then(|raised| raised.constraint()), Some("session_key"));
    assert_sqlstate!(writer.query("select agent_sessions.session_create(session_id => 'insert')", &[]).await, "SE003");
    assert_eq!(writer.execute(&format!("{again} on conflict do nothing"), &[]).await.expect("nothing to do"), 0);
    let upsert = inserts[4].replace("'T'", "'U'");
    assert_eq!(writer.execute(&upsert, &[]).await.expect("an upsert"), 1);
    let row = writer
        .query_one("select title, revision from agent_sessions.session where session_id = 'upsert'", &[])
        .await
        .expect("the session");
    assert_eq!((row.get(0), row.get(1)), ("U", 1i64));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_session_is_refused_by_raw_sql_as_by_the_functions() {
    let db = Database::create("raw_session_malformed").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    let before = fingerprint(&db).await;
    // Column and argument, the value, and whether an UPDATE may bring it too.
    let values = [
        ("session_id", "''", false),
        ("session_id", "E'a\\nb'", false),
        ("session_id", "repeat('x', 501)", false),
        ("agent_id", "repeat('x', 501)", false),
        ("agent_id", "E'\\t'", false),
        ("owner", "''", true),
        ("owner", "repeat('x', 501)", true),
        ("status", "''", true),
        ("status", "E'a\\x7f'", true),
        ("origin", "''", true),
        ("title", "repeat('x', 10001)", true),
        ("input_tokens", "-1", true),
        ("output_tokens", "-1", true),
        ("cost", "-0.01", true),
        ("cost", "'NaN'", true),
        ("cost", "'Infinity'", true),
        ("created_at", "'infinity'", false),
        ("created_at", "'-infinity'", false),
    ];
    for (column, value, updatable) in values {
        let mut statements = vec![format!("insert into agent_sessions.session ({column}) values ({value})")];
        statements.push(format!("select agent_sessions.session_create({column} => {value})"));
        if updatable {
            statements.push(format!("update agent_sessions.session set {column} = {value}"));
            if column != "origin" {
                statements.push(format!("select agent_sessions.session_set(session_id => 's', {column} => {value})"));
            }
        }
        for sql in statements {
            let error = writer.batch_execute(&sql).await.err().unwrap_or_else(|| panic!("{sql}: was accepted"));
            assert_eq!(sqlstate(&error), "SE001", "{sql}: {error:?}");
            assert_eq!(detail(&error)["argument"], *column, "{sql}");
        }
    }
    let orphan = "insert into agent_sessions.session (session_id, parent_sid) values ('t', 1000000)";
    assert_sqlstate!(writer.batch_execute(orphan).await, "SE002");
    let orphan = "select agent_sessions.session_create(session_id => 't', parent_session_id => 'nothing')";
    let error = assert_sqlstate!(writer.batch_execute(orphan).await, "SE002");
    assert_eq!(detail(&error), json!({"session_id": "nothing", "agent_id": ""}));
    assert_eq!(fingerprint(&db).await, before);
}

/// A session with a sub-session of its own agent, one of another agent, and one below that; and a bystander.
async fn family(writer: &Connection) {
    writer
        .run(
            "select agent_sessions.session_create(session_id => 'root', items => '[{\"payload\": 1}, {\"payload\": 2}]');
             select agent_sessions.session_create(session_id => 'child', parent_session_id => 'root',
               items => '[{\"payload\": 1}]');
             select agent_sessions.session_create(session_id => 'helper', agent_id => 'helper', parent_session_id => 'root',
               parent_agent_id => '', items => '[{\"payload\": 1}]');
             select agent_sessions.session_create(session_id => 'below', agent_id => 'helper', parent_session_id => 'helper',
               items => '[{\"payload\": 1}]');
             select agent_sessions.session_create(session_id => 'bystander', items => '[{\"payload\": 1}]')",
        )
        .await;
}

async fn left(db: &Database) -> (Vec<String>, i64) {
    let superuser = db.superuser().await;
    let rows =
        superuser.query("select session_id from agent_sessions.session order by sid", &[]).await.expect("sessions");
    let orphans =
        "select count(*) from agent_sessions.session_item where sid not in (select sid from agent_sessions.session)";
    assert_eq!(superuser.value::<i64>(orphans, &[]).await, 0, "no entry is left without its session");
    let items = superuser.value("select count(*) from agent_sessions.session_item", &[]).await;
    (rows.iter().map(|row| row.get(0)).collect(), items)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_session_takes_its_log_and_its_sub_sessions_along() {
    let db = Database::create("raw_delete").await;
    let writer = db.writer().await;
    for delete in [
        "delete from agent_sessions.session where session_id = 'root'",
        "with gone as (delete from agent_sessions.session where session_id = 'root' returning sid) select count(*) from gone",
        "delete from agent_sessions.session where session_id in ('root', 'child')",
        "merge into agent_sessions.session s using (values ('root')) v (id) on s.session_id = v.id when matched then delete",
        "select agent_sessions.session_delete(session_id => 'root')",
    ] {
        for isolation in ["shared", "agent"] {
            family(&writer).await;
            assert_eq!(left(&db).await.1, 6);
            writer.run(&format!("set agent_sessions.isolation = '{isolation}'")).await;

            writer.begin("read committed").await;
            writer.run(delete).await;
            writer.rollback().await;
            assert_eq!(left(&db).await.1, 6, "{delete}, rolled back");

            writer.run(delete).await;
            assert_eq!(left(&db).await, (vec!["bystander".to_owned()], 1), "{delete}, isolation {isolation}");
            writer.run("reset agent_sessions.isolation; delete from agent_sessions.session").await;
            assert_eq!(left(&db).await, (vec![], 0));
        }
    }
    // All at once, parents and children in one statement.
    family(&writer).await;
    writer.run("delete from agent_sessions.session").await;
    assert_eq!(left(&db).await, (vec![], 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_chain_of_sub_sessions_goes_at_once() {
    let db = Database::create("raw_delete_chain").await;
    let writer = db.writer().await;
    let chain = "do $$ begin
        perform agent_sessions.session_create(session_id => '0');
        for depth in 1..1000 loop
          perform agent_sessions.session_create(session_id => depth::text, parent_session_id => (depth - 1)::text,
            items => '[{\"payload\": 1}]');
        end loop;
      end $$";
    for delete in [
        "delete from agent_sessions.session where session_id = '0'",
        "select agent_sessions.session_delete(session_id => '0')",
    ] {
        writer.run(chain).await;
        writer.run(delete).await;
        assert_eq!(left(&db).await, (vec![], 0), "{delete}");
    }
}
