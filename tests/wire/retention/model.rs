//! Random sessions and branches, trimmed and erased at random, against rules that are computed from what was there before.

use std::collections::{BTreeMap, BTreeSet};

use agent_sessions_tests::{Connection, Database, sqlstate};

use crate::items::Random;

use super::{assert_verifies, branch, call, delete, orphans, stored, try_call};

/// An entry of a log, or an item of a history.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    position: i64,
    op: String,
    target: Option<i64>,
    item_id: Option<String>,
    payload: Option<String>,
    /// Of the entry; of an item, that of the entry whose content it shows. No two entries have the same.
    digest: Vec<u8>,
}

impl Row {
    fn has_content(&self) -> bool {
        matches!(self.op.as_str(), "append" | "open" | "revise")
    }
}

/// What one session shows.
#[derive(Clone, Debug, PartialEq)]
struct Shown {
    log: Vec<Row>,
    history: Vec<Row>,
}

impl Shown {
    fn next(&self) -> i64 {
        self.log.last().map_or(0, |last| last.position + 1)
    }

    /// Where the kept tail of the newest live summary begins.
    fn kept_from(&self) -> Option<i64> {
        let first_entry = |item: &Row| self.log.iter().find(|entry| entry.position == item.position);
        self.history.iter().rev().find_map(|item| first_entry(item)?.target)
    }
}

async fn rows(connection: &Connection, sql: &str, session: &str) -> Vec<Row> {
    let rows = connection.query(sql, &[&session]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter()
        .map(|row| Row {
            position: row.get(0),
            op: row.get(1),
            target: row.get(2),
            item_id: row.get(3),
            payload: row.get(4),
            digest: row.get(5),
        })
        .collect()
}

/// What is known of a session apart from its log.
#[derive(Clone, Debug)]
struct Session {
    name: String,
    source: Option<usize>,
    fork: i64,
    base: i64,
    deleted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Append,
    Summary,
    Revise,
    Retract,
    RetractFrom,
    Branch,
    Delete,
    TrimNothing,
    TrimNeeded,
    Trim,
    TrimPastFork,
    EraseNothing,
    Erase,
    EraseItem,
    EraseInherited,
}

struct Model<'a> {
    random: Random,
    writer: &'a Connection,
    sessions: Vec<Session>,
    said: i64,
    seen: BTreeSet<Step>,
}

impl Model<'_> {
    /// Whether a session that is there reads entries of this one.
    fn is_needed(&self, at: usize) -> bool {
        let reads = |(branch, session): (usize, &Session)| {
            session.source == Some(at) && session.fork > session.base && self.is_there(branch)
        };
        self.sessions.iter().enumerate().any(reads)
    }

    fn is_there(&self, at: usize) -> bool {
        !self.sessions[at].deleted || self.is_needed(at)
    }

    fn alive(&self) -> Vec<usize> {
        (0..self.sessions.len()).filter(|at| !self.sessions[*at].deleted).collect()
    }

    async fn show(&self, at: usize) -> Shown {
        let name = &self.sessions[at].name;
        let log =
            "select position, op, target, item_id, payload::text, digest from agent_sessions.session_log($1::text)";
        let history = "select position, op, null::bigint, item_id, payload::text, digest
                       from agent_sessions.session_history($1::text)";
        Shown { log: rows(self.writer, log, name).await, history: rows(self.writer, history, name).await }
    }

    async fn show_all(&self) -> BTreeMap<usize, Shown> {
        let mut all = BTreeMap::new();
        for at in self.alive() {
            all.insert(at, self.show(at).await);
        }
        all
    }

    fn below(&mut self, bound: i64) -> i64 {
        self.random.below(bound as usize) as i64
    }

    /// One of them, if there are any.
    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| self.random.pick(from))
    }

    fn text(&mut self) -> String {
        self.said += 1;
        format!("\"said {}\"", self.said)
    }

    /// Anything that is no retention.
    async fn change(&mut self, at: usize) {
        let (name, shown, payload) = (self.sessions[at].name.clone(), self.show(at).await, self.text());
        let next = shown.next();
        let first = shown.log.first().map_or(0, |first| first.position);
        let live: Vec<i64> = shown.history.iter().map(|item| item.position).collect();
        let aimed = self.pick(&live);
        let (step, sql) = match (self.random.below(12), aimed) {
            (0, _) => {
                let kept_from = next - self.below(next - first + 1);
                (Step::Summary, format!("session_append('{name}', '{payload}', kept_from => {kept_from})"))
            }
            (1..=3, Some(target)) => {
                (Step::Revise, format!("session_revise('{name}', '{payload}', target => {target})"))
            }
            (4, Some(target)) => (Step::Retract, format!("session_retract('{name}', targets => '{{{target}}}')")),
            (5, _) => {
                let target = next - self.below(4.min(next - first + 1));
                (Step::RetractFrom, format!("session_retract('{name}', from_target => {target})"))
            }
            (number, _) => {
                let item_id = if number % 2 == 0 { format!(", item_id => 'i{}'", self.said) } else { String::new() };
                let open = number % 3 == 0;
                (Step::Append, format!("session_append('{name}', '{payload}'{item_id}, open => {open})"))
            }
        };
        self.seen.insert(step);
        call(self.writer, &sql).await;
    }

    async fn fork(&mut self, at: usize) {
        let log = self.show(at).await.log;
        let positions: Vec<i64> = log.iter().map(|entry| entry.position).collect();
        let Some(last) = self.pick(&positions) else { return };
        let name = format!("s{}", self.sessions.len());
        branch(self.writer, &self.sessions[at].name, last, &name).await;
        self.sessions.push(Session { name, source: Some(at), fork: last + 1, base: 0, deleted: false });
        self.seen.insert(Step::Branch);
    }

    async fn trim(&mut self, at: usize) {
        let before = self.show_all().await;
        let next = before[&at].next();
        let (keep_from, force) = (self.below(next + 2), self.random.one_in(3));
        let kept_from = if force { None } else { before[&at].kept_from() };
        let base = kept_from.unwrap_or(keep_from).min(keep_from).min(next - 1);
        let session = &self.sessions[at];
        let first = session.fork.max(session.base);
        let (name, needed) = (session.name.clone(), self.is_needed(at));
        let removed = call(self.writer, &format!("session_trim('{name}', {keep_from}, force => {force})")).await;
        let after = self.show_all().await;
        if base <= first || needed {
            assert_eq!((removed, &after), (0, &before), "{name} to {keep_from}");
            self.seen.insert(if base <= first { Step::TrimNothing } else { Step::TrimNeeded });
            return;
        }
        assert_eq!(removed, base - first, "{name} to {keep_from}");
        let mut expected = before.clone();
        let shown = expected.get_mut(&at).expect("the session");
        shown.log.retain(|entry| entry.position >= base);
        shown.history.retain(|item| item.position >= base);
        let trim = after[&at].log.last().expect("an entry").clone();
        assert_eq!((trim.position, trim.op.as_str(), trim.target), (next, "trim", Some(base)));
        shown.log.push(trim);
        assert_eq!(after, expected, "{name} to {keep_from}");
        self.seen.insert(if self.sessions[at].fork > self.sessions[at].base { Step::TrimPastFork } else { Step::Trim });
        self.sessions[at].base = base;
    }

    async fn erase(&mut self, at: usize) {
        let before = self.show_all().await;
        let (log, name) = (&before[&at].log, self.sessions[at].name.clone());
        let positions: Vec<i64> = log.iter().map(|entry| entry.position).collect();
        let ids: Vec<&Row> = log.iter().filter(|entry| entry.item_id.is_some()).collect();
        let by_id = if self.random.one_in(2) { self.pick(&ids) } else { None };
        let Some(place) = by_id.map(|entry| entry.position).or(self.pick(&positions)) else { return };
        let aimed = |entry: &&Row| {
            entry.position == place || (by_id.is_some() && entry.op == "revise" && entry.target == Some(place))
        };
        let entries: Vec<&Row> = log.iter().filter(aimed).filter(|entry| entry.has_content()).collect();
        let arguments = match by_id.and_then(|entry| entry.item_id.as_ref()) {
            Some(id) => format!("item_id => '{id}'"),
            None => format!("target => {place}"),
        };
        let erased = try_call(self.writer, &format!("session_erase('{name}', {arguments})")).await;
        let after = self.show_all().await;
        let gone: BTreeSet<&Vec<u8>> =
            entries.iter().filter(|entry| entry.payload.is_some()).map(|entry| &entry.digest).collect();
        match erased {
            Ok(count) => assert_eq!(count, Some(gone.len() as i64), "{name}: {arguments}"),
            Err(error) => {
                assert_eq!((sqlstate(&error), entries.len()), ("SE011", 0), "{name}: {arguments}");
            }
        }
        let mut expected = before.clone();
        for (session, shown) in &mut expected {
            for row in shown.log.iter_mut().chain(&mut shown.history) {
                row.payload.take_if(|_| gone.contains(&row.digest));
            }
            // Whoever owned one of them says so at its end; of several sessions that do, each once.
            let said: Vec<Row> = after[session].log.iter().skip(shown.log.len()).cloned().collect();
            assert!(said.len() <= 1 && said.iter().all(|entry| entry.op == "erase" && entry.target == Some(place)));
            assert!(said.is_empty() || !gone.is_empty(), "{name}: {arguments}: nothing is written to erase nothing");
            shown.log.extend(said);
        }
        assert_eq!(after, expected, "{name}: {arguments}");
        let inherited = place < self.sessions[at].fork.max(self.sessions[at].base);
        self.seen.insert(match (gone.is_empty(), by_id.is_some(), inherited) {
            (true, ..) => Step::EraseNothing,
            (_, _, true) => Step::EraseInherited,
            (_, true, _) => Step::EraseItem,
            _ => Step::Erase,
        });
    }

    async fn verify(&self, db: &Database) {
        for (at, shown) in self.show_all().await {
            let redacted = shown.log.iter().filter(|entry| entry.has_content() && entry.payload.is_none()).count();
            assert_verifies(self.writer, &self.sessions[at].name, shown.log.len() as i64, redacted as i64).await;
        }
        let mut expected: Vec<String> = (0..self.sessions.len())
            .filter(|at| self.is_there(*at))
            .map(|at| &self.sessions[at])
            .map(|session| if session.deleted { format!("({})", session.name) } else { session.name.clone() })
            .collect();
        expected.sort_by_key(|name| name.trim_matches(['(', ')']).to_owned());
        assert_eq!(stored(db).await, expected);
        assert_eq!(orphans(db).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trims_and_erasures_take_what_the_rules_say_and_no_more() {
    let db = Database::create("retention_model").await;
    let writer = db.writer().await;
    let mut seen = BTreeSet::new();
    for seed in 1..=5 {
        println!("seed {seed}");
        writer.create_session("s0").await;
        let root = Session { name: "s0".to_owned(), source: None, fork: 0, base: 0, deleted: false };
        let mut model = Model { random: Random(seed), writer: &writer, sessions: vec![root], said: 0, seen };
        for _ in 0..100 {
            let alive = model.alive();
            let Some(at) = model.pick(&alive) else { break };
            match model.random.below(16) {
                0 if alive.len() < 5 => model.fork(at).await,
                1 if alive.len() > 1 => {
                    delete(&writer, &model.sessions[at].name).await;
                    model.sessions[at].deleted = true;
                    model.seen.insert(Step::Delete);
                }
                2..=4 => model.trim(at).await,
                5..=6 => model.erase(at).await,
                _ => {
                    model.change(at).await;
                    continue;
                }
            }
            model.verify(&db).await;
        }
        for at in model.alive() {
            delete(&writer, &model.sessions[at].name).await;
        }
        assert!(stored(&db).await.is_empty(), "seed {seed}");
        seen = model.seen;
    }
    assert_eq!(seen.len(), 15, "every step was taken: {seen:?}");
}
