//! Calls of the readers with their optional arguments given or not, prepared as drivers do it, and what EXPLAIN says of
//! them.

use agent_sessions_tests::Connection;
use serde_json::Value;
use tokio_postgres::SimpleQueryMessage;

/// An optional argument: its name, its type, and the value that is given unless the test has another.
pub struct Argument {
    pub name: &'static str,
    pub of: &'static str,
    pub value: &'static str,
}

pub const fn argument(name: &'static str, of: &'static str, value: &'static str) -> Argument {
    Argument { name, of, value }
}

/// Which of some arguments are given: bit n is the n-th.
#[derive(Clone, Copy)]
pub struct Given {
    pub arguments: &'static [Argument],
    pub bits: usize,
}

impl Given {
    pub fn combinations(arguments: &'static [Argument]) -> impl Iterator<Item = Given> {
        (0..1 << arguments.len()).map(move |bits| Given { arguments, bits })
    }

    pub fn has(self, name: &str) -> bool {
        self.each().any(|(argument, is_given)| is_given && argument.name == name)
    }

    pub fn has_any(self, names: &[&str]) -> bool {
        names.iter().any(|name| self.has(name))
    }

    /// How many are given, those left out of the count that `names` has.
    pub fn count_without(self, names: &[&str]) -> usize {
        self.each().filter(|(argument, is_given)| *is_given && !names.contains(&argument.name)).count()
    }

    pub fn names(self) -> String {
        let names: Vec<&str> =
            self.each().filter(|(_, is_given)| *is_given).map(|(argument, _)| argument.name).collect();
        if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
    }

    fn each(self) -> impl Iterator<Item = (&'static Argument, bool)> {
        self.arguments.iter().enumerate().map(move |(place, argument)| (argument, self.bits >> place & 1 == 1))
    }
}

/// How a statement leaves out what is not given.
#[derive(Clone, Copy)]
pub enum Form {
    /// One statement names all arguments; those not given are NULL.
    Null,
    /// A statement of its own names only those that are given.
    Short,
}

impl Form {
    pub const BOTH: [Form; 2] = [Form::Null, Form::Short];

    pub fn told(self) -> &'static str {
        match self {
            Form::Null => "the rest NULL",
            Form::Short => "the rest left out",
        }
    }
}

/// A statement that is prepared under the name `page`, and its execution.
pub struct Prepared {
    pub prepare: String,
    pub execute: String,
}

impl Prepared {
    /// A call of a reader. `first` are arguments that are always given: name, type and value.
    pub fn call(
        reader: &str,
        first: &[(&str, &str, &str)],
        given: Given,
        form: Form,
        value: impl Fn(&Argument) -> String,
    ) -> Prepared {
        let mut arguments: Vec<(&str, &str, String)> =
            first.iter().map(|(name, of, value)| (*name, *of, format!("'{value}'"))).collect();
        for (argument, is_given) in given.each() {
            match (is_given, form) {
                (true, _) => arguments.push((argument.name, argument.of, format!("'{}'", value(argument)))),
                (false, Form::Null) => arguments.push((argument.name, argument.of, "null".to_owned())),
                (false, Form::Short) => {}
            }
        }
        let types: Vec<&str> = arguments.iter().map(|argument| argument.1).collect();
        let named: Vec<String> =
            arguments.iter().enumerate().map(|(place, argument)| format!("{} => ${}", argument.0, place + 1)).collect();
        let values: Vec<&str> = arguments.iter().map(|argument| argument.2.as_str()).collect();
        Prepared::new(
            &types.join(", "),
            &format!("select * from agent_sessions.{reader}({})", named.join(", ")),
            &values.join(", "),
        )
    }

    /// Any statement, with the types of its parameters and their values.
    pub fn new(types: &str, statement: &str, values: &str) -> Prepared {
        let in_brackets = |list: &str| if list.is_empty() { String::new() } else { format!(" ({list})") };
        Prepared {
            prepare: format!("prepare page{} as {statement}", in_brackets(types)),
            execute: format!("execute page{}", in_brackets(values)),
        }
    }
}

/// What EXPLAIN says of a statement that it runs.
pub async fn explain(connection: &Connection, statement: &str) -> Value {
    let explain = format!("explain (analyze, buffers, timing off, summary off, format json) {statement}");
    let answer = connection.simple_query(&explain).await.unwrap_or_else(|error| panic!("{explain}\n{error:?}"));
    let text = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let mut plans: Value = serde_json::from_str(text.expect("a plan")).expect("a plan in JSON");
    plans[0].take()
}

pub fn number(node: &Value, key: &str) -> f64 {
    node[key].as_f64().unwrap_or(0.0)
}

/// The buffers that a statement has read.
pub fn touched(explained: &Value) -> i64 {
    ["Shared Hit Blocks", "Shared Read Blocks"].iter().map(|blocks| number(&explained["Plan"], blocks) as i64).sum()
}

/// Runs prepared statements, and keeps what is wrong with them until the end.
pub struct Judge {
    pub connection: Connection,
    when: String,
    prepared: String,
    faults: Vec<String>,
    judged: usize,
}

impl Judge {
    pub async fn new(connection: Connection, plan_cache_mode: &str) -> Judge {
        let judge = Judge { connection, when: String::new(), prepared: String::new(), faults: Vec::new(), judged: 0 };
        judge.set(plan_cache_mode).await;
        judge
    }

    /// Goes on with another connection, which has planned nothing yet; `when` is told with what is wrong there.
    pub async fn go_on(&mut self, connection: Connection, plan_cache_mode: &str, when: &str) {
        (self.connection, self.when, self.prepared) = (connection, format!(" ({when})"), String::new());
        self.set(plan_cache_mode).await;
    }

    async fn set(&self, plan_cache_mode: &str) {
        self.connection.run(&format!("set plan_cache_mode = {plan_cache_mode}; set jit = off")).await;
    }

    pub async fn judge(&mut self, what: &str, statement: &Prepared, faults: impl Fn(&Value) -> Vec<String>) {
        if self.prepared != statement.prepare {
            self.connection.run(&format!("deallocate all; {}", statement.prepare)).await;
            self.prepared.clone_from(&statement.prepare);
        }
        self.judged += 1;
        // What a backend reads of the catalogs it reads once, so the second run decides.
        if faults(&explain(&self.connection, &statement.execute).await).is_empty() {
            return;
        }
        let faults = faults(&explain(&self.connection, &statement.execute).await);
        if !faults.is_empty() {
            self.faults.push(format!("{what}{}: {}", self.when, faults.join("; ")));
        }
    }

    pub fn close(self) {
        assert!(self.judged > 0);
        let bad = self.faults.len();
        let some: Vec<&str> = self.faults.iter().step_by(bad.div_ceil(40).max(1)).map(String::as_str).collect();
        assert!(bad == 0, "{bad} of {} calls are bad, such as\n{}", self.judged, some.join("\n"));
    }
}
