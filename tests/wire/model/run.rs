//! Runs a plan, on the engine and on the model, and compares after each step.

use std::collections::HashMap;
use std::fmt::Write;

use agent_sessions_tests::{Connection, Database, Error, Role, detail, sqlstate};
use tokio_postgres::SimpleQueryMessage;

use super::compare::{READERS, Row, SESSION, row};
use super::contract::{Answer, Model, Refusal};
use super::sql::statements;
use super::step::{Call, Lease, Name, Step, Who};
use super::tally::{CODES, Tally};

/// Who asks: an admin, whom policies bind, and the owner, who sees what is hidden.
pub struct Clients {
    pub admin: Connection,
    pub owner: Connection,
}

struct Case<'a> {
    clients: &'a Clients,
    model: Model,
    /// The text and the fence of each lease.
    leases: Vec<(String, i64)>,
    /// The newest fence under each name.
    fences: HashMap<Name, i64>,
    /// The SQL so far, and what came of it.
    script: String,
}

impl Clients {
    pub async fn of(db: &Database) -> Clients {
        let admin = db.connect(Role::Named(db.role("admin", Some("admin")).await)).await;
        for reader in &READERS {
            admin.run(&format!("prepare {} as {}", reader.function, reader.sql())).await;
        }
        Clients { admin, owner: db.owner().await }
    }
}

/// Runs a plan among sessions of its own; the SQL of it and the first difference, if there is one.
pub async fn run(clients: &Clients, tenant: &str, plan: &[Step], tally: &mut Tally) -> Result<(), String> {
    let enter = format!("set agent_sessions.tenant = '{tenant}'");
    clients.admin.run(&enter).await;
    let script = format!("{enter};\n");
    let mut case = Case { clients, model: Model::default(), leases: Vec::new(), fences: HashMap::new(), script };
    match case.run(tenant, plan, tally).await {
        Ok(()) => Ok(()),
        Err(difference) => Err(format!("{}\n{difference}", case.script)),
    }
}

impl Case<'_> {
    async fn run(&mut self, tenant: &str, plan: &[Step], tally: &mut Tally) -> Result<(), String> {
        for step in plan {
            self.step(step, tally).await?;
        }
        self.compare_what_is_stored(tenant).await?;
        let delete =
            Step { session: Who::Existing(0), lease: Lease::All, raw: false, call: Call::Delete { ignore: false } };
        while self.model.sessions.iter().any(|session| !session.deleted) {
            self.step(&delete, tally).await?;
        }
        self.compare_what_is_stored(tenant).await
    }

    async fn step(&mut self, step: &Step, tally: &mut Tally) -> Result<(), String> {
        let step = self.model.look_up(step);
        for statement in statements(&step, &|number| format!(":'lease_{number}'")) {
            let end = if statement.contains("select lease, fence") { " \\gset\n" } else { ";\n" };
            let lease = format!("select lease as lease_{},", self.leases.len());
            self.script.push_str(&statement.replace(SESSION, "*").replace("select lease,", &lease));
            self.script.push_str(end);
        }
        let asked = self.ask(&step).await;
        let expected = self.model.run(&step);
        let answer = self.understood(&step, asked)?;
        writeln!(self.script, "-- {}", told(&answer)).expect("a String takes all");
        tally.count(step.what(), &answer, self.model.written > 0);
        if answer != expected {
            return Err(format!("the model says {}", told(&expected)));
        }
        self.compare().await
    }

    /// The rows of the step's own statement, or how many there are of a raw one.
    async fn ask(&self, step: &Step) -> Result<Vec<Row>, Error> {
        let statements = statements(step, &|number| format!("'{}'", self.leases[number].0));
        let messages = self.clients.admin.simple_query(&statements.join(";")).await?;
        let mut answers = by_statement(messages);
        let (rows, affected) = answers.swap_remove(usize::from(statements.len() > 1));
        Ok(if step.raw { vec![row![affected]] } else { rows })
    }

    /// The answer in the model's words.
    fn understood(&mut self, step: &Step, asked: Result<Vec<Row>, Error>) -> Result<Answer, String> {
        match asked {
            Ok(rows) if matches!(step.call, Call::Claim { .. } | Call::Extend) => {
                Ok(Ok(rows.into_iter().map(|row| self.lease_row(step, row)).collect::<Result<_, _>>()?))
            }
            Ok(rows) => Ok(Ok(rows)),
            Err(error) => match CODES.iter().find(|code| **code == sqlstate(&error)) {
                Some(code) => Ok(Err(Refusal { code, told: numbers_told(code, &error) })),
                None => Err(format!("{error:?}")),
            },
        }
    }

    /// A lease by its number, after a look at its fence.
    fn lease_row(&mut self, step: &Step, row: Row) -> Result<Row, String> {
        let [Some(lease), Some(fence)] = &row[..] else { return Err(format!("no lease: {row:?}")) };
        let fence: i64 = fence.parse().expect("a fence is a number");
        if matches!(step.call, Call::Claim { .. }) {
            let newest = self.fences.insert(step.session.name(), fence);
            if newest >= Some(fence) {
                return Err(format!("the fence {fence} comes after {newest:?}"));
            }
            self.leases.push((lease.clone(), fence));
        }
        match self.leases.iter().position(|known| *known == (lease.clone(), fence)) {
            Some(number) => Ok(row![number]),
            None => Err(format!("{lease} with fence {fence} is not known")),
        }
    }

    /// Of deleted sessions only those are left whose logs a branch needs, and nothing of all others.
    async fn compare_what_is_stored(&self, tenant: &str) -> Result<(), String> {
        let heads = "select count(*) from agent_sessions.session where tenant = $1";
        let orphans = "select count(*) from agent_sessions.session_item i
                       where i.tenant = $1 and not exists (select from agent_sessions.session s where s.sid = i.sid)";
        let chunks = "select count(*) from agent_sessions.session_delta d
                      where d.tenant = $1 and not exists (select from agent_sessions.session s where s.sid = d.sid)";
        let left = (0..self.model.sessions.len()).filter(|session| !self.model.is_gone(*session)).count();
        for (what, sql, expected) in [("sessions", heads, left), ("entries", orphans, 0), ("chunks", chunks, 0)] {
            let count: i64 = self.clients.owner.value(sql, &[&tenant]).await;
            if count != expected as i64 {
                return Err(format!("in the end {count} {what} are stored instead of {expected}"));
            }
        }
        Ok(())
    }

    /// Every reader shows of every session what the model knows.
    async fn compare(&self) -> Result<(), String> {
        let ask: Vec<String> = READERS.iter().map(|reader| format!("execute {}", reader.function)).collect();
        let answers = match self.clients.admin.simple_query(&ask.join(";")).await {
            Ok(messages) => by_statement(messages),
            Err(error) => return Err(format!("a reader fails: {error:?}")),
        };
        for (reader, (rows, _)) in READERS.iter().zip(answers) {
            let expected = reader.shown(&self.model);
            if rows != expected {
                let only = |one: &[Row], other: &[Row]| {
                    let rows = one.iter().filter(|row| !other.contains(row));
                    rows.map(|row| format!("\n  {}", line(row))).collect::<String>()
                };
                return Err(format!(
                    "{} shows{}\ninstead of{}",
                    reader.function,
                    only(&rows, &expected),
                    only(&expected, &rows)
                ));
            }
        }
        Ok(())
    }
}

/// What DETAIL has to say of these codes.
fn numbers_told(code: &str, error: &Error) -> serde_json::Value {
    match code {
        "SE004" | "SE006" | "SE007" | "SE010" | "SE013" => detail(error),
        _ => serde_json::json!({}),
    }
}

fn told(answer: &Answer) -> String {
    match answer {
        Ok(rows) if rows.is_empty() => "no row".to_owned(),
        Ok(rows) => rows.iter().map(line).collect::<Vec<_>>().join("\n-- "),
        Err(Refusal { code, told }) => format!("{code} {told}"),
    }
}

fn line(row: &Row) -> String {
    row.iter().map(|value| value.as_deref().unwrap_or("-")).collect::<Vec<_>>().join(" | ")
}

/// The rows that each statement has returned, and how many rows it says it is about.
fn by_statement(messages: Vec<SimpleQueryMessage>) -> Vec<(Vec<Row>, i64)> {
    let (mut answers, mut rows) = (Vec::new(), Vec::new());
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => rows.push((0..row.len()).map(|n| row.get(n).map(str::to_owned)).collect()),
            SimpleQueryMessage::CommandComplete(affected) => answers.push((std::mem::take(&mut rows), affected as i64)),
            _ => {}
        }
    }
    answers
}
