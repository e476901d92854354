//! The contract as a program: sessions in memory, whose logs are vectors of entries. No SQL, no index, nothing clever; a
//! branch is a copy. It is written from the documentation, not from the engine.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::compare::{Row, row};
use super::log::{Entry, Op, Session};
use super::step::{Call, Lease, Name, Number, OnMissing, Step};

/// What a refused call is told: its code, and in DETAIL at least these members.
#[derive(Debug, PartialEq)]
pub struct Refusal {
    pub code: &'static str,
    pub told: Value,
}

pub type Outcome<T> = Result<T, Refusal>;

/// What a call comes to: its rows, or why it is refused.
pub type Answer = Outcome<Vec<Row>>;

pub fn refuse<T>(code: &'static str) -> Outcome<T> {
    refuse_telling(code, json!({}))
}

pub fn refuse_telling<T>(code: &'static str, told: Value) -> Outcome<T> {
    Err(Refusal { code, told })
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    /// All that ever were. Deleted ones live on as long as a branch needs their logs.
    pub sessions: Vec<Session>,
    /// The session that each lease is of.
    pub leases: Vec<usize>,
    /// The entries whose content is gone.
    pub erased: BTreeSet<usize>,
    /// How many entries and steps there were.
    pub entries: usize,
    pub steps: usize,
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
    pub fn run(&mut self, step: &Step) -> Answer {
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
    fn raw(&mut self, step: &Step) -> Answer {
        if let Some(session) = self.find(step.session.name()) {
            let family = self.gone_with(session);
            self.call(step)?;
            if matches!(step.call, Call::Delete { .. }) && family.iter().any(|gone| self.is_needed(*gone)) {
                return refuse("SE022");
            }
        }
        Ok(vec![row![self.written]])
    }

    fn call(&mut self, step: &Step) -> Answer {
        if step.call.is_malformed() {
            return refuse("SE001");
        }
        let (name, lease) = (step.session.name(), &step.lease);
        let value = |number: &Option<Number>| number.map(Number::value);
        match &step.call {
            Call::Create { given, parent, items, keep } => self.create(name, given, *parent, items.as_deref(), *keep),
            Call::Set { given, merge, expected, on_missing } => {
                self.set(name, lease, given, *merge, value(expected), *on_missing)
            }
            Call::Append { item, open, expected, on_missing } => {
                self.append(name, lease, item, *open, value(expected), *on_missing)
            }
            Call::Batch { items, expected, on_conflict, on_missing } => {
                self.append_batch(name, lease, items, value(expected), *on_conflict, *on_missing)
            }
            Call::Revise { which, payload, kind, attrs, expected } => {
                let session = self.existing(name)?;
                let revise = |model: &mut Model| model.revise(session, *which, *kind, payload, *attrs, step.raw);
                Ok(vec![row![self.writing(session, lease, value(expected), revise)?]])
            }
            Call::Retract { targets, item_ids, from_target, expected, ignore } => {
                let Some(session) = self.unless_ignored(name, *ignore)? else { return Ok(vec![row![None::<i64>]]) };
                let retract = |model: &mut Model| match from_target {
                    Some(target) => Ok(model.retract_from(session, target.value())),
                    None => model.retract(session, targets.iter().flatten(), item_ids.iter().flatten()),
                };
                Ok(vec![row![self.writing(session, lease, value(expected), retract)?]])
            }
            Call::Pop => self.pop(name, lease),
            Call::Delta { target, chunk_no, chunk } => self.delta(name, lease, target.value(), chunk_no.value(), chunk),
            Call::Branch { at_target, at_item_id, at_tag, to, inherit, seed, title } => {
                let source = self.branch_source(name, lease, value(at_target), *at_item_id, *at_tag)?;
                self.branch(source, to.name(), *inherit, *seed, *title)
            }
            Call::Flatten => self.flatten(name, lease),
            Call::Trim { keep_from, force } => self.trim(name, lease, keep_from.value(), *force),
            Call::Erase { target, item_id } => self.erase(name, lease, value(target), *item_id),
            Call::Delete { ignore } => self.delete(name, lease, *ignore),
            Call::Expire => Ok(vec![row![self.expire(lease)]]),
            Call::Claim { on_missing } => self.claim(name, *on_missing),
            Call::Extend => self.extend(name, lease),
            Call::Release => Ok(vec![row![self.release(name, lease)]]),
            Call::Break => self.break_lease(name),
            Call::History { page, kinds, tags, item_ids } => {
                let Some(session) = self.find(name) else { return Ok(Vec::new()) };
                Ok(self.history_rows(&self.sessions[session], page, [kinds, tags, item_ids]))
            }
            Call::Context { max_rows } => {
                let Some(session) = self.find(name) else { return Ok(Vec::new()) };
                Ok(self.context_rows(&self.sessions[session], *max_rows))
            }
            Call::Log { page } => {
                let Some(session) = self.find(name) else { return Ok(Vec::new()) };
                Ok(self.log_rows(&self.sessions[session], page))
            }
        }
    }

    pub fn existing(&self, name: Name) -> Outcome<usize> {
        self.find(name).map_or_else(|| refuse("SE002"), Ok)
    }

    pub fn make(&mut self, name: Name) -> usize {
        self.sessions.push(Session::new(name));
        self.written += 1;
        self.sessions.len() - 1
    }

    /// The session, or nothing if there is none and that may be.
    pub fn unless_ignored(&self, name: Name, ignore: bool) -> Outcome<Option<usize>> {
        match self.find(name) {
            None if !ignore => refuse("SE002"),
            found => Ok(found),
        }
    }

    pub fn find_or_make(&mut self, name: Name, on_missing: OnMissing) -> Outcome<Option<usize>> {
        match (self.find(name), on_missing) {
            (Some(session), _) => Ok(Some(session)),
            (None, OnMissing::Error) => refuse("SE002"),
            (None, OnMissing::Ignore) => Ok(None),
            (None, OnMissing::Create) => Ok(Some(self.make(name))),
        }
    }

    /// Whether the lease lets its bearer write to the session that the call names.
    pub fn admit(&self, session: usize, lease: &Lease) -> Outcome<()> {
        match lease {
            Lease::Argument(number) if self.sessions[session].lease != Some(*number) => refuse("SE008"),
            _ => self.admit_indirectly(session, lease),
        }
    }

    /// The same for a session that the call reaches through another: what is brought for others does not count.
    pub fn admit_indirectly(&self, session: usize, lease: &Lease) -> Outcome<()> {
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

    /// A call that may write to a log: only what has written something needs the lease, and lands where it is expected.
    pub fn writing<T>(
        &mut self,
        session: usize,
        lease: &Lease,
        expected: Option<i64>,
        write: impl FnOnce(&mut Model) -> Outcome<T>,
    ) -> Outcome<T> {
        let next = self.sessions[session].next;
        let answer = write(self)?;
        if self.sessions[session].next > next {
            self.admit(session, lease)?;
            if let Some(expected) = expected
                && expected != next
            {
                return refuse_telling("SE007", json!({"expected": expected, "actual": next}));
            }
        }
        Ok(answer)
    }

    /// Writes an entry at the end of a log, and returns its position.
    pub fn write(&mut self, session: usize, entry: Entry) -> i64 {
        let (serial, holder) = (self.entries, session);
        let session = &mut self.sessions[session];
        let position = session.next;
        match (entry.op, entry.target) {
            (Op::Revise | Op::Retract, Some(target)) => drop(session.deltas.remove(&target)),
            (Op::RetractFrom, Some(target)) => drop(session.deltas.split_off(&target)),
            _ => {}
        }
        session.log.push(Entry { serial, holder, position, ..entry });
        session.next += 1;
        self.entries += 1;
        self.written += 1;
        position
    }

    /// Writes an entry about an earlier one.
    pub fn write_about(&mut self, session: usize, op: Op, target: i64) -> i64 {
        self.write(session, Entry { op, target: Some(target), ..Entry::default() })
    }
}
