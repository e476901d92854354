//! The plans of the readers at 100 000 items and 5 000 sessions, as an application role under forced generic plans, which
//! is what drivers that prepare their statements get: pages come from index conditions, and nothing sorts the whole.

use std::fmt::Write;

use agent_sessions_tests::{Connection, Database};
use serde_json::Value;
use tokio_postgres::SimpleQueryMessage;

const ITEMS: i64 = 100_000;
const SESSIONS: i64 = 5_000;
const PAGE: i64 = 20;
/// Entries about earlier ones, which stand at the end of the changed log.
const CHANGES: i64 = 1_205;
/// A server that can compile plans (jit_above_cost) takes longer to compile a page of this cost than to read it.
const COMPILED_FROM: f64 = 100_000.0;

/// An optional argument: its name, its type, and the value that is given.
struct Argument {
    name: &'static str,
    of: &'static str,
    value: &'static str,
}

const fn argument(name: &'static str, of: &'static str, value: &'static str) -> Argument {
    Argument { name, of, value }
}

/// after and before come first: which values are given for them depends on which of them are given.
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

const LIST: [Argument; 11] = [
    argument("after", "text", "a cursor"),
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

/// Which arguments are given: bit n is the n-th.
#[derive(Clone, Copy)]
struct Given(usize);

impl Given {
    fn has(self, arguments: &[Argument], name: &str) -> bool {
        arguments.iter().position(|argument| argument.name == name).is_some_and(|place| self.0 >> place & 1 == 1)
    }

    /// after and before enclose 100 positions wherever they stand.
    fn value(self, arguments: &[Argument], argument: &Argument) -> String {
        let both = self.has(arguments, "after") && self.has(arguments, "before");
        match argument.name {
            "after" if argument.of == "bigint" => if both { 50_000 } else { ITEMS - 101 }.to_string(),
            "before" => if both { 50_101 } else { 100 }.to_string(),
            _ => argument.value.to_owned(),
        }
    }

    fn names(self, arguments: &[Argument]) -> String {
        let names: Vec<&str> =
            (0..arguments.len()).filter(|place| self.0 >> place & 1 == 1).map(|place| arguments[place].name).collect();
        if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
    }
}

/// What a plan may do.
struct Bound {
    /// Rows that its scans meet, those included that a filter drops.
    met: i64,
    /// Rows that go into any one sort.
    sorted: i64,
    /// What an index condition of a scan of the page says.
    conditions: Vec<&'static str>,
}

/// Two logs of 100 000 items, one of them with entries about earlier ones. There are no statistics until somebody asks.
async fn filled(name: &str) -> Database {
    let db = Database::create(name).await;
    let (owner, writer) = (db.owner().await, db.writer().await);
    for table in ["session", "session_item"] {
        owner.run(&format!("alter table agent_sessions.{table} set (autovacuum_enabled = off)")).await;
    }
    let batch = format!(
        r#"select count(*) from agent_sessions.session_append_batch(session_id => $1::text, on_missing => 'create', items => (
             select json_agg(json_build_object('payload', n, 'item_id', 'i' || n, 'tag', 't' || n % 1000,
               'kind', case n % 2 when 0 then 'message' else 'tool' end, 'attrs', json_build_object('k', n % 10)))
             from generate_series(0, {ITEMS} - 1) n))"#
    );
    for session in ["plain", "changed"] {
        assert_eq!(writer.value::<i64>(&batch, &[&session]).await, ITEMS);
    }
    writer
        .run("insert into agent_sessions.session_item (sid, op, target, payload)
              select sid, 'revise', n, '-1' from agent_sessions.session, generate_series(0, 99999, 100) n
              where session_id = 'changed';
              select agent_sessions.session_retract('changed', targets => array(select generate_series(3, 99999, 500))::bigint[]);
              select agent_sessions.session_append('changed', '1');
              select agent_sessions.session_retract('changed', from_target => 101200);
              select agent_sessions.session_append('changed', '1');
              select agent_sessions.session_retract('changed', from_target => 101202);
              select agent_sessions.session_append('changed', '1')")
        .await;
    let cuts = "select count(*) from agent_sessions.session_log('changed', after => 100000) where op = 'retract_from'";
    assert_eq!(writer.value::<i64>(cuts, &[]).await, 2);
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

/// A prepared statement with the arguments of a reader: all of them, NULL where not given, or only those given.
fn statement(reader: &str, session: Option<&str>, arguments: &[Argument], given: Given, all: bool) -> (String, String) {
    let mut types: Vec<&str> = session.map(|_| "text").into_iter().collect();
    let mut named: Vec<String> = session.map(|_| "session_id => $1".to_owned()).into_iter().collect();
    let mut values: Vec<String> = session.map(|session| format!("'{session}'")).into_iter().collect();
    for (place, argument) in arguments.iter().enumerate() {
        let is_given = given.0 >> place & 1 == 1;
        if !is_given && !all {
            continue;
        }
        types.push(argument.of);
        named.push(format!("{} => ${}", argument.name, types.len()));
        let value = given.value(arguments, argument);
        values.push(if is_given { format!("'{value}'") } else { "null".to_owned() });
    }
    let prepare = format!(
        "prepare page{} as select * from agent_sessions.{reader}({})",
        if types.is_empty() { String::new() } else { format!(" ({})", types.join(", ")) },
        named.join(", ")
    );
    let execute =
        if values.is_empty() { "execute page".to_owned() } else { format!("execute page ({})", values.join(", ")) };
    (prepare, execute)
}

async fn plan(connection: &Connection, execute: &str) -> Value {
    let explain = format!("explain (analyze, timing off, summary off, format json) {execute}");
    let answer = connection.simple_query(&explain).await.unwrap_or_else(|error| panic!("{explain}\n{error:?}"));
    let text = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let mut plans: Value = serde_json::from_str(text.expect("a plan")).expect("a plan in JSON");
    plans[0].take()
}

fn number(node: &Value, key: &str) -> f64 {
    node[key].as_f64().unwrap_or(0.0)
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

struct Judge<'a> {
    connection: &'a Connection,
    prepared: String,
    told: String,
    plans: usize,
}

impl<'a> Judge<'a> {
    async fn new(connection: &'a Connection) -> Self {
        connection.run("set plan_cache_mode = force_generic_plan; set jit = off").await;
        Self { connection, prepared: String::new(), told: String::new(), plans: 0 }
    }

    async fn judge(&mut self, what: &str, prepare: &str, execute: &str, bound: &Bound) {
        if self.prepared != prepare {
            self.connection.run(&format!("deallocate all; {prepare}")).await;
            prepare.clone_into(&mut self.prepared);
        }
        let plan = plan(self.connection, execute).await;
        self.plans += 1;
        let faults = faults(&plan, bound);
        if !faults.is_empty() {
            writeln!(self.told, "{what}: {}", faults.join("; ")).expect("a String takes all");
        }
    }

    /// Pages of a session's log, in both forms of a statement: `combinations` says what is given in each.
    async fn pages(
        &mut self,
        reader: &str,
        session: &str,
        arguments: &[Argument],
        combinations: fn(bool) -> Vec<Given>,
        bound: fn(&str, Given) -> Bound,
    ) {
        for all in [true, false] {
            for given in combinations(all) {
                let (prepare, execute) = statement(reader, Some(session), arguments, given, all);
                let what = format!("{reader} of {session} given {}, {}", given.names(arguments), form(all));
                self.judge(&what, &prepare, &execute, &bound(session, given)).await;
            }
        }
    }

    fn close(self) {
        assert!(self.plans > 0);
        let bad = self.told.lines().count();
        let first: Vec<&str> = self.told.lines().take(40).collect();
        assert!(bad == 0, "{bad} of {} plans are bad\n{}", self.plans, first.join("\n"));
    }
}

fn form(all: bool) -> &'static str {
    if all { "the rest NULL" } else { "the rest left out" }
}

/// Up to three and all for the one statement that names all arguments; up to two and all for the statements that leave
/// some out, which are planned one by one. agent_id and tenant only name the session: both or neither, beside few.
fn history_combinations(all: bool) -> Vec<Given> {
    let filters = 0xff;
    let most = if all { 3 } else { 2 };
    (0..1 << HISTORY.len())
        .map(Given)
        .filter(|given| {
            let rest = Given(given.0 & filters);
            let ends = ["after", "before", "max_rows", "tags", "item_ids"];
            // Nothing but a filter holds back from the whole log: once each will do.
            let whole = !ends.iter().any(|name| rest.has(&HISTORY, name));
            match given.0 & !filters {
                0 => (rest.0.count_ones() <= most || rest.0 == filters) && (!whole || rest.0.count_ones() <= 1),
                0x300 => rest.0.count_ones() <= 2 && !whole,
                _ => false,
            }
        })
        .collect()
}

fn log_combinations(_: bool) -> Vec<Given> {
    (0..1 << LOG.len()).map(Given).filter(|given| [0, 0x30].contains(&(given.0 & 0x30))).collect()
}

fn history_bound(session: &str, given: Given) -> Bound {
    let has = |name| given.has(&HISTORY, name);
    let selected = if has("item_ids") {
        3
    } else if has("tags") {
        2 * ITEMS / 1_000
    } else if has("after") || has("before") {
        100
    } else if has("max_rows") {
        PAGE * if has("kinds") { 2 } else { 1 } * if has("attrs") { 10 } else { 1 }
    } else {
        ITEMS
    };
    let sorted = if has("item_ids") || has("tags") { selected } else { 0 };
    let conditions = match (has("item_ids"), has("tags")) {
        (true, _) => vec!["item_id = ANY", "sid ="],
        (false, true) => vec!["sid =", "tag =", "position >", "position <"],
        _ => vec!["sid =", "position >", "position <"],
    };
    // Each item of a changed log is looked up among the entries about it and the two retracted ranges. Whether there are
    // such entries at all may be found by gathering them.
    let met = if session == "changed" { selected * 5 + 2 * CHANGES } else { selected };
    Bound { met: met + 50, sorted, conditions }
}

fn log_bound(session: &str, given: Given) -> Bound {
    let has = |name| given.has(&LOG, name);
    let changes = if session == "changed" { CHANGES } else { 0 };
    let selected = if has("after") && has("before") || has("before") {
        100
    } else if has("max_rows") {
        PAGE
    } else if has("after") {
        100 + changes
    } else {
        ITEMS + changes
    };
    Bound { met: selected + 50, sorted: 0, conditions: vec!["sid =", "position >", "position <"] }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_a_large_database_come_from_index_conditions() {
    let db = filled("plans").await;
    let writer = db.writer().await;
    fill_lists(&writer).await;
    db.owner().await.run("analyze agent_sessions.session; analyze agent_sessions.session_item").await;
    let mut judge = Judge::new(&writer).await;
    judge_logs(&mut judge).await;
    for order in ["created", "activity"] {
        let middle = format!(
            "select cursor from agent_sessions.session_list(order_by => '{order}', max_rows => 1000) offset 999"
        );
        let cursor: String = writer.value(&middle, &[]).await;
        list_pages(&mut judge, order, &cursor).await;
    }
    judge.close();
}

/// A new or restored database has none until its first ANALYZE, and plans that are made meanwhile stay for a while.
#[tokio::test(flavor = "multi_thread")]
async fn pages_of_logs_need_no_statistics() {
    let db = filled("plans_unanalyzed").await;
    let writer = db.writer().await;
    let mut judge = Judge::new(&writer).await;
    judge_logs(&mut judge).await;
    judge.close();
}

async fn judge_logs(judge: &mut Judge<'_>) {
    for session in ["plain", "changed"] {
        judge.pages("session_history", session, &HISTORY, history_combinations, history_bound).await;
        judge.pages("session_log", session, &LOG, log_combinations, log_bound).await;
        live_item_pages(judge, session).await;
        tail(judge, session).await;
        for arguments in ["", ", agent_id => null, tenant => null", ", agent_id => '', tenant => ''"] {
            let prepare =
                format!("prepare page (text) as select * from agent_sessions.session_get(session_id => $1{arguments})");
            let conditions = vec!["tenant =", "agent_id =", "session_id =", "sid ="];
            let bound = Bound { met: 10, sorted: 0, conditions };
            judge.judge(&prepare, &prepare, &format!("execute page ('{session}')"), &bound).await;
        }
    }
}

/// What every write reads first.
async fn tail(judge: &mut Judge<'_>, session: &str) {
    let key: i64 =
        judge.connection.value("select sid from agent_sessions.session where session_id = $1", &[&session]).await;
    let prepare = "prepare page (bigint) as
        select position, digest from agent_sessions.session_item where sid = $1 order by position desc limit 1";
    let bound = Bound { met: 1, sorted: 0, conditions: vec!["sid ="] };
    judge.judge(&format!("the tail of {session}"), prepare, &format!("execute page ({key})"), &bound).await;
}

/// The view pages by ranges of positions, which are dense.
async fn live_item_pages(judge: &mut Judge<'_>, session: &str) {
    for (condition, values) in [
        ("session_id = $1 and position >= $2 and position < $3", "50000, 50100"),
        ("session_id = $1 and position between $2 and $3", "50000, 50099"),
        ("session_id = $1 and agent_id = '' and position > $2 and position < $3", "50000, 50101"),
        ("session_id = $1 and agent_id = '' and position > $2 and position <= $3", "99899, null"),
    ] {
        for order in ["", "order by position", "order by position desc limit 20"] {
            let prepare = format!(
                "prepare page (text, bigint, bigint) as
                 select position, payload::text from agent_sessions.live_item where {condition} {order}"
            );
            let execute = format!("execute page ('{session}', {values})");
            // There is one session of that id, yet the planner may not know: it may sort the page.
            let bound =
                Bound { met: 600, sorted: 100, conditions: vec!["session_id =", "sid =", "position >", "position <"] };
            judge.judge(&format!("live_item of {session}: {condition} {order}"), &prepare, &execute, &bound).await;
        }
    }
}

/// Alone and, in the one statement that names all arguments, in pairs; with and without a cursor and a page's size.
fn list_combinations(all: bool) -> impl Iterator<Item = Given> {
    let most = if all { 2 } else { 1 };
    (0..1 << LIST.len()).map(Given).filter(move |given| (given.0 >> 2).count_ones() <= most)
}

fn list_bound(order: &str, given: Given) -> Bound {
    let has = |name| given.has(&LIST, name);
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

async fn list_pages(judge: &mut Judge<'_>, order: &str, cursor: &str) {
    for all in [true, false] {
        for given in list_combinations(all) {
            let (prepare, execute) = statement("session_list", None, &LIST, given, all);
            let call = prepare.strip_suffix(')').expect("a call");
            let comma = if call.ends_with('(') { "" } else { ", " };
            let prepare = format!("{call}{comma}order_by => '{order}')");
            let execute = execute.replacen("'a cursor'", &format!("'{cursor}'"), 1);
            let what = format!("session_list by {order} given {}, {}", given.names(&LIST), form(all));
            judge.judge(&what, &prepare, &execute, &list_bound(order, given)).await;
        }
    }
}
