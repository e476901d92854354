//! What a page of the engine's readers touches. To the planner a call is a Function Scan, so it is judged by the buffers
//! that its statements read: at 100 000 items a page touches a few, whatever is asked for, in whatever log.

use agent_sessions_tests::{Append, Connection, Role};
use serde_json::Value;

use crate::explain::{Argument, Form, Given, Judge, Prepared, argument, explain, number, touched};
use crate::long_logs::{self, ITEMS, REVISIONS, link};

const PAGE: i64 = 20;
/// Positions between `after` and `before`, or between one of them and an end of the log.
const WINDOW: i64 = 100;

/// The values of `after` and `before` depend on which of them are given.
const HISTORY: [Argument; 10] = [
    argument("after", "bigint", ""),
    argument("before", "bigint", ""),
    argument("max_rows", "int", "20"),
    argument("newest_first", "boolean", "true"),
    argument("kinds", "text[]", "{message,other}"),
    argument("tags", "text[]", "{t7,t8}"),
    argument("item_ids", "text[]", "{i50007,i99,i0}"),
    argument("attrs", "jsonb", r#"{"k": 4}"#),
    argument("agent_id", "text", ""),
    argument("tenant", "text", ""),
];

const LOG: [Argument; 6] = [
    argument("after", "bigint", ""),
    argument("before", "bigint", ""),
    argument("max_rows", "int", "20"),
    argument("newest_first", "boolean", "true"),
    argument("agent_id", "text", ""),
    argument("tenant", "text", ""),
];

const CONTEXT: [Argument; 3] =
    [argument("max_rows", "int", "20"), argument("agent_id", "text", ""), argument("tenant", "text", "")];

/// They only name the session: both or neither are given.
const NAMES: [&str; 2] = ["agent_id", "tenant"];

/// What makes a page shorter than the log.
const ENDS: [&str; 5] = ["after", "before", "max_rows", "tags", "item_ids"];

/// Those arguments of session_history.
fn given_of(names: &[&str]) -> Given {
    let places = HISTORY.iter().enumerate().filter(|(_, argument)| names.contains(&argument.name));
    Given { arguments: &HISTORY, bits: places.map(|(place, _)| 1 << place).sum() }
}

/// Whether the item that was appended as the n-th has what the arguments ask for.
fn is_wanted(given: Given, n: i64) -> bool {
    (!given.has("kinds") || n % 2 == 0)
        && (!given.has("tags") || [7, 8].contains(&(n % 1_000)))
        && (!given.has("item_ids") || [0, 99, 50_007].contains(&n))
        && (!given.has("attrs") || n % 10 == 4)
}

struct Log {
    session: String,
    /// Sessions that hold it.
    stretches: i64,
    /// Sessions that hold entries about its items.
    changed: i64,
    /// Entries at its end, none of them a live item.
    tail: i64,
    /// Whether every entry is an item, at the position of its number.
    is_plain: bool,
    next_position: i64,
}

impl Log {
    /// `after` and `before`, around the middle of the log, its end, or its beginning.
    fn window(&self, given: Given) -> (i64, i64) {
        let middle = ITEMS / 2;
        match (given.has("after"), given.has("before")) {
            (true, true) => (middle - WINDOW / 2, middle + WINDOW / 2 + 1),
            (true, false) => (self.next_position - WINDOW - 1, self.next_position),
            (false, true) => (-1, WINDOW),
            (false, false) => (-1, self.next_position),
        }
    }

    fn call(&self, reader: &str, given: Given, form: Form) -> Prepared {
        let (after, before) = self.window(given);
        Prepared::call(reader, &[("session_id", "text", &self.session)], given, form, |argument| match argument.name {
            "after" => after.to_string(),
            "before" => before.to_string(),
            _ => argument.value.to_owned(),
        })
    }

    /// Rows of a page of session_history, where that is plain to see.
    fn rows(&self, given: Given) -> Option<i64> {
        let most = if given.has("max_rows") { PAGE } else { ITEMS * 2 };
        let (after, before) = self.window(given);
        if self.is_plain {
            return Some(most.min((after + 1..before).filter(|n| is_wanted(given, *n)).count() as i64));
        }
        let is_filtered = given.has_any(&["tags", "item_ids", "attrs"]);
        (given.has("max_rows") && !is_filtered && (self.tail == 0 || !given.has("after"))).then_some(most)
    }

    /// Buffers that a page of session_history may touch.
    fn history_budget(&self, given: Given) -> i64 {
        let (after, before) = self.window(given);
        let mut items = before - after - 1;
        if given.has("max_rows") {
            // Filters that have no index drop what they do not want; kinds leave every second item, attrs every tenth.
            let dropped = if given.has("kinds") { 2 } else { 1 } * if given.has("attrs") { 15 } else { 1 };
            items = items.min(PAGE * dropped);
        }
        // Each tag is looked up, and each id, in every session; what they find lies apart, up to a page of each.
        let is_page = given.has("max_rows") && !given.has_any(&["kinds", "attrs"]);
        let (items, apart, look_ups) = match (given.has("item_ids"), given.has("tags")) {
            (true, _) => (3, 3, 25),
            (false, true) if is_page => (3 * PAGE, 3 * PAGE, 15),
            (false, true) => (2 * ITEMS / 1_000, 2 * ITEMS / 1_000, 15),
            (false, false) => (items, 0, 10),
        };
        let tail =
            if given.has("newest_first") && !given.has("before") || given.has("after") { self.tail / 4 } else { 0 };
        50 + self.stretches * look_ups + items / 4 + apart * 2 + items * self.changed * 7 + tail
    }
}

/// Every kind of log that a page is read from.
async fn logs(writer: &Connection) -> Vec<Log> {
    long_logs::append(writer, "plain", 0, ITEMS).await;
    long_logs::change(writer, "changed", 10, WINDOW).await;
    long_logs::change(writer, "changed last", 1, 1).await;
    long_logs::annotate(writer, "annotated", WINDOW).await;
    long_logs::append(writer, "rewound", 0, ITEMS).await;
    writer.run(&format!("select agent_sessions.session_retract('rewound', from_target => {})", ITEMS / 2)).await;
    long_logs::append(writer, "rewound", ITEMS, ITEMS + WINDOW).await;
    for ancestors in [8, 64] {
        let chain = ancestors.to_string();
        long_logs::chain(writer, &chain, ancestors).await;
        long_logs::append(writer, &link(&chain, ancestors), ITEMS, ITEMS + PAGE / 2).await;
    }
    near_forks(writer).await;
    branches(writer).await;
    let mut logs = Vec::new();
    for (session, stretches, changed, tail, is_plain) in [
        ("plain", 1, 0, 0, true),
        ("changed", 1, 1, 0, false),
        ("changed last", 1, 1, REVISIONS + 205, false),
        ("annotated", 1, 0, 0, false),
        ("rewound", 1, 1, 0, false),
        ("branch of plain", 2, 0, 0, true),
        ("branch of changed", 2, 2, 10, false),
        ("8 8", 9, 0, 0, true),
        ("64 64", 65, 0, 0, true),
        ("fork 64", 65, 0, 0, true),
        ("branch of 64 64", 66, 1, 10, false),
    ] {
        let next_position = long_logs::next_position(writer, session).await;
        logs.push(Log { session: session.to_owned(), stretches, changed, tail, is_plain, next_position });
    }
    logs
}

/// Branches that stand so near to one another that a page crosses several forks.
async fn near_forks(writer: &Connection) {
    let mut source = "plain".to_owned();
    for number in 1..=64 {
        let fork = link("fork", number);
        long_logs::branch(writer, &source, &fork).await;
        long_logs::append(writer, &fork, ITEMS + 3 * number - 3, ITEMS + 3 * number).await;
        source = fork;
    }
}

/// Branches with items of their own; two of them also change what they inherit.
async fn branches(writer: &Connection) {
    for (source, first) in [("plain", ITEMS), ("changed", ITEMS + WINDOW), ("64 64", ITEMS + PAGE / 2)] {
        let branch = format!("branch of {source}");
        long_logs::branch(writer, source, &branch).await;
        let fork = long_logs::next_position(writer, &branch).await;
        long_logs::append(writer, &branch, first, first + PAGE / 2).await;
        if source != "plain" {
            long_logs::revise(writer, &branch, fork - 5, fork, 2).await;
            long_logs::revise(writer, &branch, 7, ITEMS, ITEMS / 5).await;
            writer.run(&format!("select agent_sessions.session_retract('{branch}', targets => '{{9,{fork}}}')")).await;
        }
    }
}

/// Up to three filters in the one statement that names all arguments, up to two in statements that are planned one by one,
/// and all of them. agent_id and tenant beside few.
fn history_pages(form: Form) -> impl Iterator<Item = Given> {
    let most = match form {
        Form::Null => 3,
        Form::Short => 2,
    };
    Given::combinations(&HISTORY).filter(move |given| {
        let filters = given.count_without(&NAMES);
        let is_few = match NAMES.map(|name| given.has(name)) {
            [false, false] => filters <= most || filters == HISTORY.len() - NAMES.len(),
            [true, true] => filters <= 2,
            _ => false,
        };
        is_few && given.has_any(&ENDS)
    })
}

fn log_pages() -> impl Iterator<Item = Given> {
    Given::combinations(&LOG).filter(|given| given.has("agent_id") == given.has("tenant") && given.has_any(&ENDS))
}

/// What is wrong with a call: too many buffers, or other rows than there are, which would be another page.
fn faults(explained: &Value, budget: i64, rows: Option<i64>) -> Vec<String> {
    let plan = &explained["Plan"];
    let mut faults = Vec::new();
    if plan["Node Type"] != "Function Scan" {
        faults.push(format!("a {} is judged by its plan", plan["Node Type"]));
    }
    let touched = touched(explained);
    if touched > budget {
        faults.push(format!("{touched} buffers, {budget} would do"));
    }
    let read = number(plan, "Actual Rows") as i64;
    if rows.is_some_and(|rows| rows != read) {
        faults.push(format!("{read} rows instead of {rows:?}"));
    }
    faults
}

async fn judge_pages(judge: &mut Judge, log: &Log) {
    // A function that is not part of the plan is called alike in both forms: one log will do to see that.
    let forms = if log.session == "plain" { &Form::BOTH[..] } else { &[Form::Null] };
    for form in forms.iter().copied() {
        for given in history_pages(form) {
            let what = format!("session_history of {} given {}, {}", log.session, given.names(), form.told());
            let (budget, rows) = (log.history_budget(given), log.rows(given));
            judge.judge(&what, &log.call("session_history", given, form), |plan| faults(plan, budget, rows)).await;
        }
        for given in log_pages() {
            let what = format!("session_log of {} given {}, {}", log.session, given.names(), form.told());
            let rows = if given.has("max_rows") { PAGE } else { WINDOW };
            let budget = 50 + log.stretches * 6 + rows / 4;
            judge.judge(&what, &log.call("session_log", given, form), |plan| faults(plan, budget, Some(rows))).await;
        }
    }
}

/// The context as far as `wanted` says of the arguments.
async fn judge_contexts(judge: &mut Judge, log: &Log, wanted: fn(Given) -> bool) {
    for given in Given::combinations(&CONTEXT).filter(|given| wanted(*given)) {
        let what = format!("session_context of {} given {}", log.session, given.names());
        // It is read from its end, then from where that came to; a summary is looked for before.
        let budget = 2 * log.history_budget(given_of(&["max_rows", "newest_first"])) + 4 * log.stretches;
        judge.judge(&what, &log.call("session_context", given, Form::Null), |plan| faults(plan, budget, None)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_touches_a_few_buffers_whatever_is_asked_for_and_whatever_the_log() {
    let db = long_logs::database("pages").await;
    let writer = db.writer().await;
    let logs = logs(&writer).await;
    let mut judge = Judge::new(db.reader().await, "auto").await;
    // A new or restored database has no statistics, and plans that are made meanwhile stay for a while.
    for analyzed in ["never analyzed", "analyzed"] {
        if analyzed == "analyzed" {
            long_logs::analyze(&db).await;
        }
        for mode in ["force_generic_plan", "auto"] {
            judge.go_on(db.reader().await, mode, &format!("{mode}, {analyzed}")).await;
            for log in &logs {
                judge_pages(&mut judge, log).await;
                judge_contexts(&mut judge, log, |given| given.has("max_rows")).await;
            }
        }
    }
    for log in &logs {
        let summary = Append::to(&log.session, "1").kind("summary").kept_from(log.next_position - PAGE / 2);
        summary.run(&writer).await.expect("a summary");
        judge_contexts(&mut judge, log, |_| true).await;
    }
    judge.close();
}

/// What has to scan a log, such as a filter that finds nothing, does so once, however many pages the engine makes of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_whole_log_is_read_once() {
    let db = long_logs::database("pages_whole").await;
    let writer = db.writer().await;
    long_logs::append(&writer, "plain", 0, ITEMS).await;
    long_logs::change(&writer, "changed", 10, WINDOW).await;
    long_logs::chain(&writer, "8", 8).await;
    let reader = db.reader().await;
    // What cannot be counted in buffers would not be noticed in a page either.
    let least = ITEMS / 50;
    for (session, changed) in [("plain", 0), ("changed", 1), ("8 8", 0)] {
        for call in [
            "session_history($)",
            "session_history($, newest_first => true)",
            "session_history($, kinds => '{message}')",
            r#"session_history($, attrs => '{"k": 44}')"#,
            r#"session_history($, attrs => '{"k": 44}', max_rows => 20, newest_first => true)"#,
            "session_log($)",
            "session_context($)",
            "session_stats($)",
        ] {
            let call = call.replacen('$', &format!("'{session}'"), 1);
            let touched = touched(&explain(&reader, &format!("select * from agent_sessions.{call}")).await);
            let most = ITEMS / 10 + ITEMS * changed * 3;
            assert!((least..most).contains(&touched), "{call}: {touched} buffers, {least} to {most} would do");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_lacks_its_index_is_noticed() {
    let db = long_logs::database("pages_indexes").await;
    let writer = db.writer().await;
    long_logs::append(&writer, "plain", 0, ITEMS).await;
    long_logs::change(&writer, "changed", 10, WINDOW).await;
    long_logs::analyze(&db).await;
    let role = db.role_name(&Role::Reader);
    let superuser = db.superuser().await;
    superuser.run("set plan_cache_mode = force_generic_plan; set jit = off").await;
    for (drop, session, changed, names) in [
        ("alter table agent_sessions.session_item drop constraint session_item_pkey", "plain", 0, &["max_rows"][..]),
        ("drop index agent_sessions.session_item_tag_idx", "plain", 0, &["max_rows", "tags"]),
        ("drop index agent_sessions.session_item_id_key", "plain", 0, &["item_ids"]),
        ("drop index agent_sessions.session_item_target_idx", "changed", 1, &["max_rows"]),
    ] {
        let next_position = long_logs::next_position(&writer, session).await;
        let log =
            Log { session: session.to_owned(), stretches: 1, changed, tail: 0, is_plain: changed == 0, next_position };
        let given = given_of(names);
        let call = log.call("session_history", given, Form::Short);
        for (indexes, is_noticed) in [("select", false), (drop, true)] {
            superuser.run(&format!("begin; {indexes}; set local role {role}; {}", call.prepare)).await;
            explain(&superuser, &call.execute).await;
            let explained = explain(&superuser, &call.execute).await;
            let faults = faults(&explained, log.history_budget(given), log.rows(given));
            assert_eq!(!faults.is_empty(), is_noticed, "{indexes}: {faults:?}");
            superuser.run("rollback; deallocate all").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_are_assigned_no_transaction_id() {
    let db = long_logs::database("pages_xid").await;
    let writer = db.writer().await;
    writer.create_session("plain").await;
    writer
        .append_batch("plain", r#"[{"payload": 1, "item_id": "a", "tag": "t"}, {"payload": 2}, {"payload": 3}]"#)
        .await;
    long_logs::branch(&writer, "plain", "branch").await;
    long_logs::branch(&writer, "branch", "branch of it").await;
    Append::to("branch", "1").kept_from(1).run(&writer).await.expect("a summary");
    writer
        .run(
            "select agent_sessions.session_revise('branch', '4', target => 1);
              select agent_sessions.session_retract('branch', targets => '{0}');
              select agent_sessions.session_append('branch of it', '0', open => true);
              select agent_sessions.session_delta('branch of it', 3, 0, 'x')",
        )
        .await;
    let reader = db.reader().await;
    reader.begin("read committed").await;
    for session in ["plain", "branch", "branch of it"] {
        for call in [
            "session_history($)",
            "session_history($, newest_first => true, kinds => '{message}', attrs => '{}', max_rows => 1)",
            "session_history($, tags => '{t}')",
            "session_history($, item_ids => '{a}')",
            "session_log($)",
            "session_context($)",
            "session_stats($)",
            "session_verify($)",
            "session_lineage($)",
            "session_get($)",
            "session_list()",
            "live_item",
            "session_activity",
            "tenant_usage",
        ] {
            let call = call.replacen('$', &format!("'{session}'"), 1);
            let count = format!("select count(*) from agent_sessions.{call}");
            reader.value::<i64>(&count, &[]).await;
            let none = reader.value::<bool>("select pg_current_xact_id_if_assigned() is null", &[]).await;
            assert!(none, "{call} was assigned a transaction id");
        }
    }
    // What the test looks for does exist.
    writer.begin("read committed").await;
    writer.append("plain", "1").await;
    assert!(!writer.value::<bool>("select pg_current_xact_id_if_assigned() is null", &[]).await);
    writer.rollback().await;
}
