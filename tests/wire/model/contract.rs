//! The contract as a program: sessions in memory, whose logs are vectors of entries. No SQL, no index, nothing clever; a
//! branch is a copy. It is written from the documentation, not from the engine.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::compare::{Row, row};
use super::plan::{Call, Document, Given, Item, Kind, Lease, Name, Number, OnConflict, NAMES, OnMissing, Page, Step, Which, Who};

/// What a refused call is told: its code, and in DETAIL at least these members.
#[derive(Debug, PartialEq)]
pub struct Refusal {
    pub code: &'static str,
    pub told: Value,
}

type Outcome<T> = Result<T, Refusal>;

fn refuse<T>(code: &'static str) -> Outcome<T> {
    refuse_telling(code, json!({}))
}

fn refuse_telling<T>(code: &'static str, told: Value) -> Outcome<T> {
    Err(Refusal { code, told })
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    Append,
    Open,
    Revise,
    Retract,
    RetractFrom,
    Trim,
    Erase,
}

impl Op {
    pub fn word(self) -> &'static str {
        match self {
            Op::Append => "append",
            Op::Open => "open",
            Op::Revise => "revise",
            Op::Retract => "retract",
            Op::RetractFrom => "retract_from",
            Op::Trim => "trim",
            Op::Erase => "erase",
        }
    }
}

/// An entry never changes. Its content may be erased, which the model notes beside it, for all who share the entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The same in every log that holds the entry.
    serial: usize,
    /// The session that wrote it.
    holder: usize,
    pub position: i64,
    pub op: Op,
    pub target: Option<i64>,
    pub kind: Option<&'static str>,
    pub item_id: Option<&'static str>,
    pub tag: Option<&'static str>,
    pub author: Option<&'static str>,
    payload: Option<&'static str>,
    attrs: Option<&'static str>,
}

impl Entry {
    pub fn is_item(&self) -> bool {
        matches!(self.op, Op::Append | Op::Open)
    }

    pub fn has_content(&self) -> bool {
        self.is_item() || self.op == Op::Revise
    }

    /// Whether it says something about the item at `position`.
    fn is_about(&self, position: i64) -> bool {
        match self.op {
            Op::Revise | Op::Retract => self.target == Some(position),
            Op::RetractFrom => self.target <= Some(position) && position < self.position,
            _ => false,
        }
    }
}

/// An item that the history shows, and the entry that its content stands in.
#[derive(Clone, Copy)]
pub struct Live<'a> {
    pub item: &'a Entry,
    pub content: &'a Entry,
}

impl Live<'_> {
    pub fn is_revised(&self) -> bool {
        self.content.position != self.item.position
    }

    pub fn is_open(&self) -> bool {
        self.item.op == Op::Open && !self.is_revised()
    }
}

#[derive(Clone, Debug)]
pub struct Session {
    pub name: Name,
    pub deleted: bool,
    /// The session that it is a sub-session of, and the one that it branched off.
    pub parent: Option<usize>,
    pub source: Option<usize>,
    pub fork: Option<i64>,
    base: i64,
    pub next: i64,
    /// What its readers see: the inherited entries, then its own.
    pub log: Vec<Entry>,
    /// The chunks of open items.
    pub deltas: BTreeMap<i64, Vec<&'static str>>,
    pub title: Option<String>,
    pub status: Option<&'static str>,
    pub owner: Option<&'static str>,
    pub origin: Option<&'static str>,
    pub metadata: Option<Document>,
    pub state: Option<Document>,
    pub revision: i64,
    pub input_tokens: Option<i64>,
    /// When expires_at was set, which is past at once.
    pub expired: Option<usize>,
    pub lease: Option<usize>,
}

impl Session {
    fn new(name: Name) -> Session {
        Session {
            name,
            deleted: false,
            parent: None,
            source: None,
            fork: None,
            base: 0,
            next: 0,
            log: Vec::new(),
            deltas: BTreeMap::new(),
            title: None,
            status: None,
            owner: None,
            origin: None,
            metadata: None,
            state: None,
            revision: 0,
            input_tokens: None,
            expired: None,
            lease: None,
        }
    }

    /// Whether its log begins with entries of another session.
    fn inherits(&self) -> bool {
        self.source.is_some() && self.fork.is_some_and(|fork| self.base < fork)
    }

    pub fn entry(&self, position: i64) -> Option<&Entry> {
        self.log.iter().find(|entry| entry.position == position)
    }

    fn item(&self, position: i64) -> Option<&Entry> {
        self.entry(position).filter(|entry| entry.is_item())
    }

    fn item_with_id(&self, item_id: &str) -> Option<&Entry> {
        self.log.iter().find(|entry| entry.item_id == Some(item_id))
    }

    /// The entry that the item's content stands in, whether it is live or not.
    fn content(&self, position: i64) -> Option<&Entry> {
        let is_content = |entry: &&Entry| entry.position == position || entry.op == Op::Revise && entry.target == Some(position);
        self.log.iter().rev().find(is_content)
    }

    /// The newest entry about an item wins.
    fn live_at(&self, position: i64) -> Option<Live<'_>> {
        let item = self.item(position)?;
        match self.log.iter().rev().find(|entry| entry.is_about(position)) {
            None => Some(Live { item, content: item }),
            Some(newest) if newest.op == Op::Revise => Some(Live { item, content: newest }),
            Some(_) => None,
        }
    }

    pub fn history(&self) -> Vec<Live<'_>> {
        self.log.iter().filter_map(|entry| self.live_at(entry.position)).collect()
    }

    /// The newest live summary, if there is one, and the live items from its kept_from on, or all; older summaries aside.
    pub fn context(&self) -> (Option<Live<'_>>, Vec<Live<'_>>) {
        let mut items = self.history();
        let summary = items.iter().rev().find(|live| live.item.target.is_some()).copied();
        let kept_from = summary.and_then(|summary| summary.item.target).unwrap_or(0);
        items.retain(|live| live.item.position >= kept_from && live.item.target.is_none());
        (summary, items)
    }

    pub fn delta_text(&self, live: &Live) -> Option<String> {
        live.is_open().then(|| self.deltas.get(&live.item.position).map(|chunks| chunks.concat()))?
    }

    fn newest_open(&self) -> Option<i64> {
        self.history().iter().rev().find(|live| live.is_open()).map(|live| live.item.position)
    }

    /// Changes what is given; whether that moves the revision.
    fn change(&mut self, given: &Given, now: usize) -> bool {
        let before = self.clone();
        self.title = given.title.map(str::to_owned).or(self.title.take());
        self.status = given.status.or(self.status);
        self.owner = given.owner.or(self.owner);
        self.metadata = given.metadata.clone().or(self.metadata.take());
        self.state = given.state.clone().or(self.state.take());
        self.input_tokens = given.input_tokens.or(self.input_tokens);
        self.expired = given.expired.then_some(now).or(self.expired);
        (&self.title, self.status, self.owner, &self.metadata, &self.state)
            != (&before.title, before.status, before.owner, &before.metadata, &before.state)
    }
}

/// The given members replace the stored ones of the same key; the rest stays where it is.
fn merged(stored: &Option<Document>, given: Option<Document>) -> Outcome<Option<Document>> {
    match (stored, given) {
        (Some(Document::Object(stored)), Some(Document::Object(given))) => {
            let mut members = stored.clone();
            for (key, value) in given {
                match members.iter_mut().find(|member| member.0 == key) {
                    Some(member) => member.1 = value,
                    None => members.push((key, value)),
                }
            }
            Ok(Some(Document::Object(members)))
        }
        (Some(_), Some(_)) => refuse("SE001"),
        (_, given) => Ok(given),
    }
}

/// A title's first %d becomes one more than the largest number that a sibling has in its place.
fn numbered(title: &str, siblings: &[&str]) -> String {
    let Some((before, after)) = title.split_once("%d") else { return title.to_owned() };
    let number = |sibling: &&str| sibling.strip_prefix(before)?.strip_suffix(after)?.parse::<u64>().ok();
    let largest = siblings.iter().filter_map(number).max().unwrap_or(0);
    format!("{before}{}{after}", largest + 1)
}

/// What became of an element of a batch.
struct Placed {
    position: i64,
    outcome: &'static str,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    /// All that ever were. Deleted ones live on as long as a branch needs their logs.
    pub sessions: Vec<Session>,
    /// The session that each lease is of.
    pub leases: Vec<usize>,
    erased: BTreeSet<usize>,
    entries: usize,
    steps: usize,
    /// Entries, chunks, rows and leases that the last step has written.
    pub written: usize,
}

impl Model {
    pub fn find(&self, name: Name) -> Option<usize> {
        self.sessions.iter().position(|session| session.name == name && !session.deleted)
    }

    pub fn is_erased(&self, entry: &Entry) -> bool {
        self.erased.contains(&entry.serial)
    }

    pub fn payload(&self, entry: &Entry) -> Option<&'static str> {
        entry.payload.filter(|_| !self.is_erased(entry))
    }

    pub fn attrs(&self, entry: &Entry) -> Option<&'static str> {
        entry.attrs.filter(|_| !self.is_erased(entry))
    }

    /// Does what a step says. A refused step changes nothing.
    pub fn run(&mut self, step: &Step) -> Outcome<Vec<Row>> {
        self.written = 0;
        self.steps += 1;
        let before = self.clone();
        let answer = if step.raw { self.raw(step) } else { self.call(step) };
        if answer.is_err() {
            *self = before;
        }
        answer
    }

    /// Raw SQL does what the function does, and tells how many rows that were. It finds its session by a query, which may
    /// find none, and never hides one that branches need.
    fn raw(&mut self, step: &Step) -> Outcome<Vec<Row>> {
        if let Some(session) = self.find(step.session.name()) {
            let family = self.gone_with(session);
            self.call(step)?;
            if matches!(step.call, Call::Delete { .. }) && family.iter().any(|gone| self.is_needed(*gone)) {
                return refuse("SE022");
            }
        }
        Ok(vec![row![self.written]])
    }

    fn call(&mut self, step: &Step) -> Outcome<Vec<Row>> {
        if step.call.is_malformed() {
            return refuse("SE001");
        }
        let (name, lease) = (step.session.name(), &step.lease);
        let value = |number: &Option<Number>| number.map(Number::value);
        match &step.call {
            Call::Create { given, parent, items, keep } => self.create(name, given, parent.map(Who::name), items.as_deref(), *keep),
            Call::Set { given, merge, expected, on_missing } => {
                self.set(name, lease, given, *merge, value(expected), *on_missing)
            }
            Call::Append { item, open, expected, on_missing } => {
                let Some(session) = self.find_or_make(name, *on_missing)? else { return Ok(vec![row![None::<i64>]]) };
                let on_conflict = item.on_conflict.unwrap_or(OnConflict::Error);
                let op = if *open { Op::Open } else { Op::Append };
                let (next, placed) = (self.sessions[session].next, self.place(session, op, item, on_conflict)?);
                self.admit_what_was_written(session, lease, next, value(expected))?;
                Ok(vec![row![placed.position]])
            }
            Call::Batch { items, .. } if items.is_empty() => Ok(Vec::new()),
            Call::Batch { items, expected, on_conflict, on_missing } => {
                let Some(session) = self.find_or_make(name, *on_missing)? else { return Ok(Vec::new()) };
                let next = self.sessions[session].next;
                let placed = self.place_all(session, items, *on_conflict)?;
                self.admit_what_was_written(session, lease, next, value(expected))?;
                let rows = placed.iter().zip(items).enumerate();
                Ok(rows.map(|(n, (placed, item))| row![n, placed.position, item.item_id, placed.outcome]).collect())
            }
            Call::Revise { which, payload, kind, attrs, expected } => {
                let session = self.existing(name)?;
                let next = self.sessions[session].next;
                let position = self.revise(session, *which, *kind, payload, *attrs, step.raw)?;
                self.admit_what_was_written(session, lease, next, value(expected))?;
                Ok(vec![row![position]])
            }
            Call::Retract { targets, item_ids, from_target, expected, ignore } => {
                let Some(session) = self.find(name) else {
                    return if *ignore { Ok(vec![row![None::<i64>]]) } else { refuse("SE002") };
                };
                let next = self.sessions[session].next;
                let removed = match from_target {
                    Some(target) => self.retract_from(session, target.value()),
                    None => self.retract(session, targets.as_deref().unwrap_or(&[]), item_ids.as_deref().unwrap_or(&[]))?,
                };
                self.admit_what_was_written(session, lease, next, value(expected))?;
                Ok(vec![row![removed]])
            }
            Call::Pop => {
                let Some(session) = self.find(name) else { return Ok(Vec::new()) };
                let Some(newest) = self.sessions[session].history().pop() else { return Ok(Vec::new()) };
                let (shown, position) = (self.item_row(&self.sessions[session], &newest), newest.item.position);
                self.admit(session, lease)?;
                self.write_about(session, Op::Retract, position);
                Ok(vec![shown])
            }
            Call::Delta { target, chunk_no, chunk } => self.delta(name, lease, target.value(), chunk_no.value(), chunk),
            Call::Branch { at_target, at_item_id, at_tag, to, inherit, seed, title } => {
                let source = self.branch_source(name, lease, value(at_target), *at_item_id, *at_tag)?;
                self.branch(source, to.name(), *inherit, *seed, *title)
            }
            Call::Flatten => self.flatten(name, lease),
            Call::Trim { keep_from, force } => self.trim(name, lease, keep_from.value(), *force),
            Call::Erase { target, item_id } => self.erase(name, lease, value(target), *item_id),
            Call::Delete { ignore } => {
                let Some(session) = self.find(name) else {
                    return if *ignore { Ok(vec![row![None::<bool>]]) } else { refuse("SE002") };
                };
                self.admit(session, lease)?;
                for below in self.gone_with(session) {
                    if below != session {
                        self.admit_indirectly(below, lease)?;
                    }
                }
                self.delete(session);
                Ok(vec![row![true]])
            }
            Call::Claim { on_missing } => {
                let Some(session) = self.find_or_make(name, *on_missing)? else { return Ok(Vec::new()) };
                if self.sessions[session].lease.is_some() {
                    return Ok(Vec::new());
                }
                let number = self.leases.len();
                self.leases.push(session);
                self.sessions[session].lease = Some(number);
                self.written += 1;
                Ok(vec![row![number]])
            }
            Call::Extend => {
                let session = self.existing(name)?;
                match (self.sessions[session].lease, lease) {
                    (Some(live), Lease::Argument(given)) if live == *given => {
                        self.written += 1;
                        Ok(vec![row![live]])
                    }
                    _ => refuse("SE008"),
                }
            }
            Call::Release => {
                let live = self.find(name).and_then(|session| self.sessions[session].lease);
                let ends = matches!((live, lease), (Some(live), Lease::Argument(given)) if live == *given);
                Ok(vec![row![ends && self.end_lease(name)]])
            }
            Call::Break => {
                self.existing(name)?;
                Ok(vec![row![self.end_lease(name)]])
            }
            Call::Expire => Ok(vec![row![self.expire(lease)]]),
            Call::History { page, kinds, tags, item_ids } => {
                let Some(session) = self.find(name) else { return Ok(Vec::new()) };
                let session = &self.sessions[session];
                let is_among = |list: &Option<Vec<_>>, word: Option<_>| {
                    list.as_ref().is_none_or(|list| word.is_some_and(|word| list.contains(&word)))
                };
                let mut items = session.history();
                items.retain(|live| {
                    is_among(kinds, live.item.kind) && is_among(tags, live.item.tag) && is_among(item_ids, live.item.item_id)
                });
                let items = page.of(items, |live| live.item.position);
                Ok(items.iter().map(|live| self.item_row(session, live)).collect())
            }
            Call::Context { max_rows } => {
                let Some(session) = self.find(name) else { return Ok(Vec::new()) };
                Ok(self.context_rows(&self.sessions[session], *max_rows))
            }
            Call::Log { page } => {
                let Some(session) = self.find(name) else { return Ok(Vec::new()) };
                let entries = page.of(self.sessions[session].log.iter().collect(), |entry| entry.position);
                Ok(entries.into_iter().map(|entry| self.entry_row(entry)).collect())
            }
        }
    }

    fn existing(&self, name: Name) -> Outcome<usize> {
        self.find(name).map_or_else(|| refuse("SE002"), Ok)
    }

    fn make(&mut self, name: Name) -> usize {
        self.sessions.push(Session::new(name));
        self.written += 1;
        self.sessions.len() - 1
    }

    fn find_or_make(&mut self, name: Name, on_missing: OnMissing) -> Outcome<Option<usize>> {
        match (self.find(name), on_missing) {
            (Some(session), _) => Ok(Some(session)),
            (None, OnMissing::Error) => refuse("SE002"),
            (None, OnMissing::Ignore) => Ok(None),
            (None, OnMissing::Create) => Ok(Some(self.make(name))),
        }
    }

    /// Whether the lease lets its bearer write to the session that the call names.
    fn admit(&self, session: usize, lease: &Lease) -> Outcome<()> {
        match lease {
            Lease::Argument(number) if self.sessions[session].lease != Some(*number) => refuse("SE008"),
            _ => self.admit_indirectly(session, lease),
        }
    }

    /// The same for a session that the call reaches through another: what is brought for others does not count.
    fn admit_indirectly(&self, session: usize, lease: &Lease) -> Outcome<()> {
        let brought: &[usize] = match lease {
            Lease::Argument(number) => std::slice::from_ref(number),
            Lease::Setting(numbers) => numbers,
            _ => &[],
        };
        let brought: Vec<usize> = brought.iter().copied().filter(|number| self.leases[*number] == session).collect();
        match self.sessions[session].lease {
            Some(live) if brought.contains(&live) => Ok(()),
            None if brought.is_empty() => Ok(()),
            Some(_) if brought.is_empty() => refuse("SE009"),
            _ => refuse("SE008"),
        }
    }

    /// Only what writes to the log needs the lease, and lands where it is expected. `next` is where the log ended before.
    fn admit_what_was_written(&self, session: usize, lease: &Lease, next: i64, expected: Option<i64>) -> Outcome<()> {
        if self.sessions[session].next == next {
            return Ok(());
        }
        self.admit(session, lease)?;
        match expected {
            Some(expected) if expected != next => refuse_telling("SE007", json!({"expected": expected, "actual": next})),
            _ => Ok(()),
        }
    }

    fn write(&mut self, session: usize, entry: Entry) -> i64 {
        let serial = self.entries;
        let session = &mut self.sessions[session];
        let position = session.next;
        match entry.op {
            Op::Revise | Op::Retract => drop(session.deltas.remove(&entry.target.expect("what it is about"))),
            Op::RetractFrom => drop(session.deltas.split_off(&entry.target.expect("where it begins"))),
            _ => {}
        }
        session.log.push(Entry { serial, position, ..entry });
        session.next += 1;
        self.entries += 1;
        self.written += 1;
        position
    }

    fn write_about(&mut self, session: usize, op: Op, target: i64) -> i64 {
        self.write_content(session, op, target, None, None)
    }

    fn write_content(
        &mut self,
        session: usize,
        op: Op,
        target: i64,
        payload: Option<&'static str>,
        attrs: Option<&'static str>,
    ) -> i64 {
        let entry = Entry {
            serial: 0,
            holder: session,
            position: 0,
            op,
            target: Some(target),
            kind: None,
            item_id: None,
            tag: None,
            author: None,
            payload,
            attrs,
        };
        self.write(session, entry)
    }

    fn create(
        &mut self,
        name: Name,
        given: &Given,
        parent: Option<Name>,
        items: Option<&[Item]>,
        keep: bool,
    ) -> Outcome<Vec<Row>> {
        let parent = parent.map(|parent| self.existing(parent)).transpose()?;
        if let Some(stored) = self.find(name) {
            return if keep { Ok(vec![self.session_row(stored)]) } else { refuse("SE003") };
        }
        let session = self.make(name);
        self.sessions[session].change(given, self.steps);
        self.sessions[session].origin = given.origin;
        self.sessions[session].parent = parent;
        self.place_all(session, items.unwrap_or(&[]), OnConflict::Error)?;
        Ok(vec![self.session_row(session)])
    }

    fn set(
        &mut self,
        name: Name,
        lease: &Lease,
        given: &Given,
        merge: bool,
        expected: Option<i64>,
        on_missing: OnMissing,
    ) -> Outcome<Vec<Row>> {
        let is_new = self.find(name).is_none();
        let Some(session) = self.find_or_make(name, on_missing)? else { return Ok(vec![row![None::<i64>]]) };
        self.admit(session, lease)?;
        let stored = &mut self.sessions[session];
        if let Some(expected) = expected
            && expected != stored.revision
        {
            return refuse_telling("SE006", json!({"expected": expected, "actual": stored.revision}));
        }
        if is_new {
            stored.origin = given.origin;
        }
        if given.origin.is_some() && given.origin != stored.origin {
            return refuse_telling("SE004", json!({"expected": given.origin, "actual": stored.origin}));
        }
        let mut given = given.clone();
        if merge {
            given.state = merged(&stored.state, given.state)?;
            given.metadata = merged(&stored.metadata, given.metadata)?;
        }
        if stored.change(&given, self.steps) || is_new {
            stored.revision += 1;
        }
        self.written += 1;
        Ok(vec![row![self.sessions[session].revision]])
    }

    /// A batch is taken whole or not at all; a single append is a batch of one.
    fn place_all(&mut self, session: usize, items: &[Item], on_conflict: OnConflict) -> Outcome<Vec<Placed>> {
        items.iter().map(|item| self.place(session, Op::Append, item, item.on_conflict.unwrap_or(on_conflict))).collect()
    }

    fn place(&mut self, session: usize, op: Op, item: &Item, on_conflict: OnConflict) -> Outcome<Placed> {
        let kept_from = item.kept_from.map(Number::value);
        let kind = item.kind.unwrap_or("message");
        let stored = &self.sessions[session];
        let Some(first) = item.item_id.and_then(|item_id| stored.item_with_id(item_id)) else {
            if kept_from > Some(stored.next) {
                return refuse("SE001");
            }
            let entry = Entry {
                serial: 0,
                holder: session,
                position: 0,
                op,
                target: kept_from,
                kind: Some(kind),
                item_id: item.item_id,
                tag: item.tag,
                author: item.author,
                payload: Some(item.payload),
                attrs: item.attrs,
            };
            return Ok(Placed { position: self.write(session, entry), outcome: "appended" });
        };
        let position = first.position;
        let is_same_item =
            (first.kind, first.tag, first.author, first.target) == (Some(kind), item.tag, item.author, kept_from);
        let is_replay = is_same_item && self.payload(first) == Some(item.payload);
        match on_conflict {
            OnConflict::Keep => Ok(Placed { position, outcome: "kept" }),
            OnConflict::Error if is_replay => Ok(Placed { position, outcome: "replayed" }),
            // Said to be open, it stays open.
            OnConflict::Replace
                if is_same_item && self.shows(session, position, item.payload, item.attrs, op == Op::Open) =>
            {
                Ok(Placed { position, outcome: "replayed" })
            }
            OnConflict::Replace if is_same_item => {
                self.give_content(session, position, item.payload, item.attrs);
                Ok(Placed { position, outcome: "revised" })
            }
            _ => refuse_telling("SE010", json!({"item_id": item.item_id, "position": position})),
        }
    }

    /// Whether there is nothing to revise; attrs that are not given stay. Any content closes an open item.
    fn shows(&self, session: usize, position: i64, payload: &str, attrs: Option<&str>, stays_open: bool) -> bool {
        self.sessions[session].live_at(position).is_some_and(|live| {
            (stays_open || !live.is_open())
                && self.payload(live.content) == Some(payload)
                && (attrs.is_none() || self.attrs(live.content) == attrs)
        })
    }

    fn give_content(
        &mut self,
        session: usize,
        position: i64,
        payload: &'static str,
        attrs: Option<&'static str>,
    ) -> i64 {
        let content = self.sessions[session].content(position).expect("the item has an entry");
        let attrs = attrs.or(self.attrs(content));
        self.write_content(session, Op::Revise, position, Some(payload), attrs)
    }

    /// The function is for live items; a plain INSERT may revive one, as on_conflict => 'replace' does.
    fn revise(
        &mut self,
        session: usize,
        which: Which,
        kind: Option<&str>,
        payload: &'static str,
        attrs: Option<&'static str>,
        may_revive: bool,
    ) -> Outcome<i64> {
        let stored = &self.sessions[session];
        let item = match which {
            Which::At(target) => stored.item(target.value()),
            Which::WithId(item_id) => stored.item_with_id(item_id),
        };
        let is_meant = |item: &&Entry| kind.is_none_or(|kind| item.kind == Some(kind));
        let Some(position) = item.filter(is_meant).map(|item| item.position) else { return refuse("SE011") };
        match stored.live_at(position) {
            None if !may_revive => refuse("SE011"),
            Some(live) if self.shows(session, position, payload, attrs, false) => Ok(live.content.position),
            _ => Ok(self.give_content(session, position, payload, attrs)),
        }
    }

    fn retract(&mut self, session: usize, targets: &[Number], item_ids: &[&str]) -> Outcome<usize> {
        let stored = &self.sessions[session];
        let by_position = targets.iter().map(|target| stored.item(target.value()));
        let by_id = item_ids.iter().map(|item_id| stored.item_with_id(item_id));
        let mut places = BTreeSet::new();
        for item in by_position.chain(by_id) {
            let Some(item) = item else { return refuse("SE011") };
            places.insert(item.position);
        }
        places.retain(|place| stored.live_at(*place).is_some());
        for place in &places {
            self.write_about(session, Op::Retract, *place);
        }
        Ok(places.len())
    }

    fn retract_from(&mut self, session: usize, target: i64) -> usize {
        let removed = self.sessions[session].history().iter().filter(|live| live.item.position >= target).count();
        if removed > 0 {
            self.write_about(session, Op::RetractFrom, target);
        }
        removed
    }

    fn delta(
        &mut self,
        name: Name,
        lease: &Lease,
        target: i64,
        chunk_no: i64,
        chunk: &'static str,
    ) -> Outcome<Vec<Row>> {
        let session = self.existing(name)?;
        self.admit(session, lease)?;
        let stored = &mut self.sessions[session];
        if !stored.live_at(target).is_some_and(|live| live.is_open()) {
            return refuse("SE011");
        }
        let chunks = stored.deltas.entry(target).or_default();
        let count = chunks.len() as i64;
        if chunk_no == count {
            chunks.push(chunk);
            self.written += 1;
        } else if chunk_no != count - 1 || chunks.last() != Some(&chunk) {
            return refuse_telling("SE013", json!({"expected": chunk_no, "actual": count}));
        }
        Ok(vec![row![self.sessions[session].deltas[&target].len()]])
    }

    /// The session, and where its branch begins.
    fn branch_source(
        &self,
        name: Name,
        lease: &Lease,
        at_target: Option<i64>,
        at_item_id: Option<&str>,
        at_tag: Option<&str>,
    ) -> Outcome<(usize, i64)> {
        let source = self.existing(name)?;
        self.admit(source, lease)?;
        let stored = &self.sessions[source];
        let items = stored.history();
        let newest = |is_it: &dyn Fn(&Entry) -> bool| items.iter().rev().map(|live| live.item).find(|item| is_it(item));
        let last = match (at_target, at_item_id, at_tag) {
            (Some(target), ..) => stored.entry(target),
            (_, Some(item_id), _) => newest(&|item| item.item_id == Some(item_id)),
            (.., Some(tag)) => newest(&|item| item.tag == Some(tag)),
            _ => return Ok((source, stored.next)),
        };
        last.map_or_else(|| refuse("SE012"), |last| Ok((source, last.position + 1)))
    }

    /// A copy of the log up to the fork, and of some columns.
    fn branch(
        &mut self,
        (source, fork): (usize, i64),
        to: Name,
        inherit: bool,
        seed: Option<&'static str>,
        title: Option<&str>,
    ) -> Outcome<Vec<Row>> {
        if self.find(to).is_some() {
            return refuse("SE003");
        }
        let siblings = self.sessions.iter().filter(|session| session.source == Some(source) && !session.deleted);
        let siblings: Vec<&str> = siblings.filter_map(|session| session.title.as_deref()).collect();
        let title = title.map(|title| numbered(title, &siblings));
        let branch = self.make(to);
        let stored = self.sessions[source].clone();
        let made = &mut self.sessions[branch];
        *made = Session {
            parent: stored.parent,
            source: Some(source),
            title: title.or(stored.title),
            owner: stored.owner,
            origin: stored.origin,
            metadata: stored.metadata,
            state: stored.state,
            ..Session::new(to)
        };
        if inherit {
            (made.fork, made.next) = (Some(fork), fork);
            made.log = stored.log.into_iter().filter(|entry| entry.position < fork).collect();
        }
        if let Some(payload) = seed {
            let item = Item {
                payload,
                kind: Some("seed"),
                item_id: None,
                tag: None,
                author: None,
                attrs: None,
                kept_from: None,
                on_conflict: None,
            };
            self.place(branch, Op::Append, &item, OnConflict::Error)?;
        }
        Ok(vec![self.session_row(branch)])
    }

    /// Whether a branch that is still there stands on this session's log.
    fn is_needed(&self, session: usize) -> bool {
        self.sessions.iter().enumerate().any(|(number, branch)| {
            branch.source == Some(session) && branch.inherits() && (!branch.deleted || self.is_needed(number))
        })
    }

    /// Deleted, and no branch keeps it.
    pub fn is_gone(&self, session: usize) -> bool {
        self.sessions[session].deleted && !self.is_needed(session)
    }

    /// What it inherits becomes its own: from now on it is erased on its own, here and in the branches of this session.
    /// Further entries tell again what was trimmed and erased.
    fn flatten(&mut self, name: Name, lease: &Lease) -> Outcome<Vec<Row>> {
        let session = self.existing(name)?;
        self.admit(session, lease)?;
        let inherited = self.sessions[session].log.iter().filter(|entry| entry.holder != session);
        let inherited: Vec<Entry> = inherited.cloned().collect();
        let Some(first) = inherited.first().map(|entry| entry.position) else { return Ok(vec![row![0_i64]]) };
        let mut copies = BTreeMap::new();
        for entry in &inherited {
            copies.insert(entry.serial, self.entries);
            self.entries += 1;
        }
        for reader in self.read_through(session) {
            for entry in &mut self.sessions[reader].log {
                if let Some(copy) = copies.get(&entry.serial) {
                    (entry.serial, entry.holder) = (*copy, session);
                }
            }
        }
        if first > 0 {
            self.write_about(session, Op::Trim, first);
            self.sessions[session].base = first;
        }
        for entry in inherited.iter().filter(|entry| self.is_erased(entry)).cloned().collect::<Vec<_>>() {
            self.erased.insert(copies[&entry.serial]);
            self.write_about(session, Op::Erase, entry.position);
        }
        self.sessions[session].source = None;
        self.written += 1;
        Ok(vec![row![inherited.len()]])
    }

    /// The session and those whose logs go on from its own. Those that have left before go over to the session that holds
    /// the last entry that they inherit.
    fn read_through(&mut self, session: usize) -> Vec<usize> {
        let mut readers = vec![session];
        // A branch is younger than its source.
        for number in session + 1..self.sessions.len() {
            let branch = &self.sessions[number];
            if !branch.inherits() || branch.source.is_none_or(|source| !readers.contains(&source)) {
                continue;
            }
            let last = branch.log.iter().rfind(|entry| Some(entry.position) < branch.fork);
            if branch.fork > self.sessions[session].fork {
                readers.push(number);
            } else if let Some(last) = last {
                self.sessions[number].source = Some(last.holder);
            }
        }
        readers
    }

    /// Removes own entries only: what is inherited goes from the log together with the first of these.
    fn trim(&mut self, name: Name, lease: &Lease, keep_from: i64, force: bool) -> Outcome<Vec<Row>> {
        let session = self.existing(name)?;
        self.admit(session, lease)?;
        let stored = &self.sessions[session];
        let inherits_until = stored.source.and(stored.fork).unwrap_or(0);
        let first_own = stored.base.max(inherits_until);
        let kept_from = stored.context().0.and_then(|summary| summary.item.target).filter(|_| !force);
        let base = keep_from.min(stored.next - 1).min(kept_from.unwrap_or(keep_from));
        let mut removed = stored.log.iter().filter(|entry| (first_own..base).contains(&entry.position));
        // What only an earlier trim has left is not worth another one.
        if removed.all(|entry| entry.op == Op::Trim) || self.is_needed(session) {
            return Ok(vec![row![0_i64]]);
        }
        self.write_about(session, Op::Trim, base);
        let stored = &mut self.sessions[session];
        stored.base = base;
        stored.log.retain(|entry| entry.position >= base);
        stored.deltas.retain(|target, _| *target >= base);
        Ok(vec![row![base - first_own]])
    }

    /// The session that holds an erased entry tells of it, in its own log. The chunks of an open item go, too.
    fn erase(
        &mut self,
        name: Name,
        lease: &Lease,
        target: Option<i64>,
        item_id: Option<&str>,
    ) -> Outcome<Vec<Row>> {
        let session = self.existing(name)?;
        self.admit(session, lease)?;
        let stored = &self.sessions[session];
        let entry = match item_id {
            Some(item_id) => stored.item_with_id(item_id),
            None => target.and_then(|target| stored.entry(target)).filter(|entry| entry.has_content()),
        };
        let Some(entry) = entry.cloned() else { return refuse("SE011") };
        let is_meant = |one: &&Entry| {
            one.position == entry.position || item_id.is_some() && one.op == Op::Revise && one.target == Some(entry.position)
        };
        let erased: Vec<Entry> =
            stored.log.iter().filter(is_meant).filter(|entry| !self.is_erased(entry)).cloned().collect();
        let holders: BTreeSet<usize> = erased.iter().map(|entry| entry.holder).collect();
        for holder in &holders {
            if *holder != session {
                self.admit_indirectly(*holder, lease)?;
            }
        }
        self.sessions[session].deltas.remove(&entry.position);
        for holder in holders {
            self.sessions[holder].deltas.remove(&entry.position);
            self.write_about(holder, Op::Erase, entry.position);
        }
        self.erased.extend(erased.iter().map(|entry| entry.serial));
        Ok(vec![row![erased.len()]])
    }

    /// The session and all that are below it.
    fn gone_with(&self, session: usize) -> Vec<usize> {
        let mut family = vec![session];
        let mut next = 0;
        while next < family.len() {
            let below = |(_, one): &(usize, &Session)| one.parent == Some(family[next]) && !one.deleted;
            let children: Vec<usize> = self.sessions.iter().enumerate().filter(below).map(|(child, _)| child).collect();
            family.extend(children);
            next += 1;
        }
        family
    }

    fn delete(&mut self, session: usize) {
        for gone in self.gone_with(session) {
            self.sessions[gone].deleted = true;
            self.sessions[gone].lease = None;
        }
        self.written += 1;
    }

    fn end_lease(&mut self, name: Name) -> bool {
        let ended = self.find(name).and_then(|session| self.sessions[session].lease.take()).is_some();
        self.written += usize::from(ended);
        ended
    }

    /// The longest expired ones first, each with all that is below it. A lease below protects what is above, and so does one
    /// that was brought and is lost.
    fn expire(&mut self, lease: &Lease) -> usize {
        let is_due = |session: &usize| self.sessions[*session].expired.is_some();
        let mut due: Vec<usize> = (0..self.sessions.len()).filter(is_due).collect();
        due.sort_by_key(|session| self.sessions[*session].expired);
        let mut deleted = 0;
        for session in due {
            let is_held =
                |one: &usize| self.sessions[*one].lease.is_some() || self.admit_indirectly(*one, lease).is_err();
            if !self.sessions[session].deleted && !self.gone_with(session).iter().any(is_held) {
                self.delete(session);
                deleted += 1;
            }
        }
        deleted
    }
}

impl Call {
    /// What is refused before anything is looked at: arguments that exclude each other, or none of them; a document to merge
    /// that is no object; numbers below 0, but a page may begin and end anywhere.
    fn is_malformed(&self) -> bool {
        let has_wrong_arguments = match self {
            Call::Set { given, merge: true, .. } => {
                [&given.state, &given.metadata].into_iter().flatten().any(|document| matches!(document, Document::Number(_)))
            }
            Call::Retract { targets, item_ids, from_target, .. } => {
                from_target.is_some() == (targets.is_some() || item_ids.is_some())
            }
            Call::Branch { at_target, at_item_id, at_tag, .. } => {
                [at_target.is_some(), at_item_id.is_some(), at_tag.is_some()].into_iter().filter(|given| *given).count() > 1
            }
            Call::Erase { target, item_id } => target.is_some() == item_id.is_some(),
            Call::History { .. } | Call::Log { .. } => return false,
            _ => false,
        };
        has_wrong_arguments || self.clone().numbers().iter().any(|number| number.value() < 0)
    }
}

impl Page {
    /// The rows that this page has of those in the order of the log.
    fn of<T>(&self, mut rows: Vec<T>, position: impl Fn(&T) -> i64) -> Vec<T> {
        let value = |number: Option<Number>, otherwise| number.map_or(otherwise, Number::value);
        let inside = value(self.after, i64::MIN) + 1..value(self.before, i64::MAX);
        rows.retain(|row| inside.contains(&position(row)));
        if self.newest_first {
            rows.reverse();
        }
        rows.truncate(self.max_rows.map_or(usize::MAX, |rows| rows as usize));
        rows
    }
}

/// Looking up.
impl Model {
    /// The step with its numbers and its lease as they are now.
    pub fn look_up(&self, step: &Step) -> Step {
        let mut step = step.clone();
        for who in step.sessions() {
            *who = Who::Is(self.name(*who));
        }
        let session = self.find(step.session.name()).map(|session| &self.sessions[session]);
        for number in step.call.numbers() {
            *number = Number::Is(number_in(session, *number));
        }
        step.lease = self.lease(&step, session);
        step
    }

    fn name(&self, who: Who) -> Name {
        let one = |n: usize, names: Vec<Name>| names.iter().copied().cycle().nth(n);
        let existing = || self.sessions.iter().filter(|session| !session.deleted);
        let found = match who {
            Who::Is(name) => Some(name),
            Who::Existing(n) => one(n, existing().map(|session| session.name).collect()),
            Who::Such(kind, n) => {
                let such = existing().filter(|session| self.is_such(session, kind));
                return one(n, such.map(|session| session.name).collect()).unwrap_or_else(|| self.name(Who::Existing(n)));
            }
            Who::Free(n) => one(n, NAMES.into_iter().filter(|name| self.find(*name).is_none()).collect()),
        };
        found.unwrap_or(NAMES[0])
    }

    fn is_such(&self, session: &Session, kind: Kind) -> bool {
        match kind {
            Kind::Leased => session.lease.is_some(),
            Kind::Streaming => session.newest_open().is_some(),
            Kind::Branch => session.source.is_some(),
            Kind::Source => self.find(session.name).is_some_and(|number| self.is_needed(number)),
        }
    }

    fn lease(&self, step: &Step, session: Option<&Session>) -> Lease {
        let live = session.and_then(|session| session.lease);
        let (found, by_setting) = match step.lease {
            Lease::Live { by_setting } => (live, by_setting),
            Lease::Lost { which, by_setting } => {
                let is_lost = |number: &usize| {
                    let of = &self.sessions[self.leases[*number]];
                    of.name == step.session.name() && of.lease != Some(*number)
                };
                let lost: Vec<usize> = (0..self.leases.len()).filter(is_lost).collect();
                ((!lost.is_empty()).then(|| lost[which % lost.len()]), by_setting)
            }
            Lease::All => {
                let live = self.sessions.iter().filter(|session| !session.deleted);
                return Lease::Setting(live.filter_map(|session| session.lease).collect());
            }
            _ => return step.lease.clone(),
        };
        match found {
            None => Lease::Nothing,
            Some(_) if !by_setting && !step.raw && !step.call.takes_lease() => Lease::Nothing,
            Some(number) if by_setting || step.raw => Lease::Setting(vec![number]),
            Some(number) => Lease::Argument(number),
        }
    }
}

fn number_in(session: Option<&Session>, number: Number) -> i64 {
    let next = session.map_or(0, |session| session.next);
    let newest = |from_newest: usize, positions: Vec<i64>| {
        positions.iter().rev().cycle().nth(from_newest).copied().unwrap_or(next)
    };
    match (number, session) {
        (Number::Is(value), _) => value,
        (Number::Next(more), _) => next + more,
        (Number::Revision(more), _) => session.map_or(0, |session| session.revision) + more,
        (_, None) => 0,
        (Number::Live(n), Some(session)) => {
            newest(n, session.history().iter().map(|live| live.item.position).collect())
        }
        (Number::Entry(n), Some(session)) => newest(n, session.log.iter().map(|entry| entry.position).collect()),
        (Number::Open, Some(session)) => session.newest_open().unwrap_or(next),
        (Number::Chunks(more), Some(session)) => {
            let chunks = session.newest_open().and_then(|open| session.deltas.get(&open));
            chunks.map_or(0, |chunks| chunks.len() as i64) + more
        }
    }
}
