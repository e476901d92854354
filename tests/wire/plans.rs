//! The plans of what is SQL to the reader: session_list, session_get, the view live_item, and the look-up that every write
//! begins with. At 100 000 items and 5 000 sessions, as an application role under forced generic plans, which is what drivers
//! that prepare their statements get, pages come from index conditions, and nothing sorts the whole.
//!
//! The engine's readers are a Function Scan to the planner: pages.rs judges them by what they touch.

use agent_sessions_tests::{Connection, Database};
use serde_json::Value;

use crate::explain::{Argument, Form, Given, Judge, Prepared, argument, number};
use crate::long_logs::{self, ITEMS};

const SESSIONS: i64 = 5_000;
const PAGE: i64 = 20;
/// A server that can compile plans (jit_above_cost) takes longer to compile a page of this cost than to read it.
const COMPILED_FROM: f64 = 100_000.0;

const LIST: [Argument; 11] = [
    argument("after", "text", ""),
    argument("max_rows", "int", "20"),
    argument("roots_only", "boolean", "false"),
    argument("origin", "text", "cli"),
    argument("status", "text", "open"),
    argument("metadata", "jsonb", r#"{"k": 1}"#),
    argument("title", "text", "title"),
    argument("tenant", "text", ""),
    argument("agent_id", "text", "rare"),
    argument("owner", "text", "owner 7"),
    argument("parent_session_id", "text", "parent"),
];

/// What a plan may do.
struct Bound {
    /// Rows that its scans meet, those included that a filter drops.
    met: i64,
    /// Rows that go into any one sort.
    sorted: i64,
    /// What an index condition of a scan of the page says.
    conditions: Vec<&'static str>,
}

/// Two logs of 100 000 items, one of them with entries about earlier ones.
async fn filled(name: &str) -> Database {
    let db = long_logs::database(name).await;
    let writer = db.writer().await;
    long_logs::append(&writer, "plain", 0, ITEMS).await;
    long_logs::change(&writer, "changed", 1, 1).await;
    db
}

async fn fill_lists(writer: &Connection) {
    writer
        .run(&format!(
            r#"insert into agent_sessions.session (tenant, agent_id, session_id, owner, origin, status, title, metadata, created_at)
               select '', case n % 50 when 0 then 'rare' else '' end, 's' || n, 'owner ' || n % 100, 'cli', 'open', 'Title ' || n,
                 '{{"k": 1}}', timestamptz '2020-01-01' + n * interval '1 minute'
               from generate_series(1, {SESSIONS}) n;
               select session_id from agent_sessions.session_create(session_id => 'parent')"#
        ))
        .await;
    writer
        .run(
            "insert into agent_sessions.session (tenant, agent_id, session_id, parent_sid, owner)
              select '', '', 'child ' || n, s.sid, 'owner 7' from agent_sessions.session s, generate_series(1, 30) n
              where s.session_id = 'parent'",
        )
        .await;
}

/// The rows that a node has handed up, over all its loops.
fn rows(node: &Value) -> f64 {
    number(node, "Actual Rows") * number(node, "Actual Loops")
}

fn walk<'a>(node: &'a Value, found: &mut Vec<&'a Value>) {
    found.push(node);
    for child in node["Plans"].as_array().into_iter().flatten() {
        walk(child, found);
    }
}

/// What is wrong with those parts of a plan that ran.
fn faults(explained: &Value, bound: &Bound) -> Vec<String> {
    let mut nodes = Vec::new();
    walk(&explained["Plan"], &mut nodes);
    let mut faults = Vec::new();
    let cost = number(&explained["Plan"], "Total Cost");
    if cost > COMPILED_FROM && bound.met < ITEMS {
        faults.push(format!("a cost of {cost}"));
    }
    let mut met = 0.0;
    for node in &nodes {
        let kind = node["Node Type"].as_str().unwrap_or_default();
        let relation = node["Relation Name"].as_str().unwrap_or_default();
        if kind == "Function Scan" && node["Function Name"] != "unnest" {
            faults.push(format!("{} is not part of the plan", node["Function Name"]));
        }
        if number(node, "Actual Loops") == 0.0 {
            continue;
        }
        // A Gather starts its workers even if what it gathers from never runs.
        if kind.contains("Seq Scan") || kind.contains("Gather") {
            faults.push(format!("{kind} {relation}"));
        }
        if !relation.is_empty() {
            let dropped = number(node, "Rows Removed by Filter") + number(node, "Rows Removed by Index Recheck");
            met += rows(node) + dropped * number(node, "Actual Loops");
        } else if kind.contains("Bitmap Index Scan") {
            met += rows(node);
        }
        if kind.contains("Sort") {
            let inputs = node["Plans"].as_array().into_iter().flatten();
            let input: f64 = inputs.filter(|child| child["Parent Relationship"] == "Outer").map(rows).sum();
            if input > bound.sorted as f64 {
                faults.push(format!("{kind} of {input} rows by {}", node["Sort Key"]));
            }
        }
    }
    if met > bound.met as f64 {
        faults.push(format!("the scans meet {met} rows, {} would do", bound.met));
    }
    let conditions: Vec<String> = nodes
        .iter()
        .filter(|node| number(node, "Actual Loops") > 0.0)
        .filter_map(|node| node["Index Cond"].as_str())
        .map(unqualified)
        .collect();
    for wanted in &bound.conditions {
        if !conditions.iter().any(|condition| condition.contains(wanted)) {
            faults.push(format!("no executed scan has {wanted:?} among its index conditions"));
        }
    }
    faults
}

/// A condition without quotes and without the names of its tables, which the planner numbers.
fn unqualified(condition: &str) -> String {
    let mut plain = String::new();
    for character in condition.chars().filter(|character| *character != '"') {
        if character == '.' && plain.ends_with(|last: char| last.is_alphanumeric()) {
            let table = plain.trim_end_matches(|last: char| last.is_alphanumeric() || last == '_').len();
            plain.truncate(table);
        } else {
            plain.push(character);
        }
    }
    plain
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_a_large_database_come_from_index_conditions() {
    let db = filled("plans").await;
    let writer = db.writer().await;
    fill_lists(&writer).await;
    long_logs::analyze(&db).await;
    let mut judge = Judge::new(writer, "force_generic_plan").await;
    judge_sessions(&mut judge).await;
    for order in ["created", "activity"] {
        let middle = format!(
            "select cursor from agent_sessions.session_list(order_by => '{order}', max_rows => 1000) offset 999"
        );
        let cursor: String = judge.connection.value(&middle, &[]).await;
        list_pages(&mut judge, order, &cursor).await;
    }
    judge.close();
}

/// A new or restored database has none until its first ANALYZE, and plans that are made meanwhile stay for a while.
#[tokio::test(flavor = "multi_thread")]
async fn pages_of_one_session_need_no_statistics() {
    let db = filled("plans_unanalyzed").await;
    let mut judge = Judge::new(db.writer().await, "force_generic_plan").await;
    judge_sessions(&mut judge).await;
    judge.close();
}

async fn judge_sessions(judge: &mut Judge) {
    for session in ["plain", "changed"] {
        live_item_pages(judge, session).await;
        tail(judge, session).await;
        for arguments in ["", ", agent_id => null, tenant => null", ", agent_id => '', tenant => ''"] {
            let call = format!("select * from agent_sessions.session_get(session_id => $1{arguments})");
            let statement = Prepared::new("text", &call, &format!("'{session}'"));
            let conditions = vec!["tenant =", "agent_id =", "session_id =", "sid ="];
            let bound = Bound { met: 10, sorted: 0, conditions };
            judge.judge(&call, &statement, |plan| faults(plan, &bound)).await;
        }
    }
}

/// What every write reads first.
async fn tail(judge: &mut Judge, session: &str) {
    let key: i64 =
        judge.connection.value("select sid from agent_sessions.session where session_id = $1", &[&session]).await;
    let tail = "select position, digest from agent_sessions.session_item where sid = $1 order by position desc limit 1";
    let bound = Bound { met: 1, sorted: 0, conditions: vec!["sid ="] };
    let statement = Prepared::new("bigint", tail, &key.to_string());
    judge.judge(&format!("the tail of {session}"), &statement, |plan| faults(plan, &bound)).await;
}

/// The view pages by ranges of positions, which are dense.
async fn live_item_pages(judge: &mut Judge, session: &str) {
    for (condition, values) in [
        ("session_id = $1 and position >= $2 and position < $3", "50000, 50100"),
        ("session_id = $1 and position between $2 and $3", "50000, 50099"),
        ("session_id = $1 and agent_id = '' and position > $2 and position < $3", "50000, 50101"),
        ("session_id = $1 and agent_id = '' and position > $2 and position <= $3", "99899, null"),
    ] {
        for order in ["", "order by position", "order by position desc limit 20"] {
            let page =
                format!("select position, payload::text from agent_sessions.live_item where {condition} {order}");
            let statement = Prepared::new("text, bigint, bigint", &page, &format!("'{session}', {values}"));
            // There is one session of that id, yet the planner may not know: it may sort the page.
            let bound =
                Bound { met: 600, sorted: 100, conditions: vec!["session_id =", "sid =", "position >", "position <"] };
            judge.judge(&format!("{page} of {session}"), &statement, |plan| faults(plan, &bound)).await;
        }
    }
}

/// Alone and, in the one statement that names all arguments, in pairs; with and without a cursor and a page's size.
fn list_combinations(form: Form) -> impl Iterator<Item = Given> {
    let most = match form {
        Form::Null => 2,
        Form::Short => 1,
    };
    Given::combinations(&LIST).filter(move |given| given.count_without(&["after", "max_rows"]) <= most)
}

fn list_bound(order: &str, given: Given) -> Bound {
    let has = |name| given.has(name);
    let rows = if has("max_rows") { PAGE } else { 100 };
    let arm = ["parent_session_id", "owner", "agent_id"].into_iter().find(|name| has(name));
    let (selected, condition) = match (arm, order) {
        (Some("parent_session_id"), _) => (30, "parent_sid ="),
        // one owner of a hundred, one agent of fifty
        (Some("owner"), "activity") => (SESSIONS / 100 + 30, "owner ="),
        (Some("agent_id"), "activity") => (SESSIONS / 50, "agent_id ="),
        (_, "activity") => (rows, "ROW(active_at, sid) <"),
        (_, _) => (rows, "ROW(created_at, sid) <"),
    };
    // A filter that has no index drops what it does not want from the page's own order.
    let drops = order == "created" && (has("owner") || has("agent_id")) || has("metadata") || has("title");
    let selected = if drops && condition.starts_with("ROW") { SESSIONS + 100 } else { selected };
    // Each row of the page is read again for its columns, its tail and its parent.
    Bound { met: selected + rows * 3 + 50, sorted: rows.max(30), conditions: vec!["tenant =", condition] }
}

async fn list_pages(judge: &mut Judge, order: &str, cursor: &str) {
    for form in Form::BOTH {
        for given in list_combinations(form) {
            let value = |argument: &Argument| if argument.name == "after" { cursor } else { argument.value }.to_owned();
            let statement = Prepared::call("session_list", &[("order_by", "text", order)], given, form, value);
            let what = format!("session_list by {order} given {}, {}", given.names(), form.told());
            let bound = list_bound(order, given);
            judge.judge(&what, &statement, |plan| faults(plan, &bound)).await;
        }
    }
}
