//! The contract of branches, and of what removes or destroys: trimming and erasing.

use std::collections::{BTreeMap, BTreeSet};

use super::compare::row;
use super::contract::{Answer, Model, Outcome, refuse};
use super::log::{Entry, Op, Session};
use super::step::{Item, Lease, Name, OnConflict};

/// A title's first %d becomes one more than the largest number that a sibling has in its place.
fn numbered(title: &str, siblings: &[&str]) -> String {
    let Some((before, after)) = title.split_once("%d") else { return title.to_owned() };
    let number = |sibling: &&str| sibling.strip_prefix(before)?.strip_suffix(after)?.parse::<u64>().ok();
    let largest = siblings.iter().filter_map(number).max().unwrap_or(0);
    format!("{before}{}{after}", largest + 1)
}

impl Model {
    /// The session, and where its branch begins.
    pub fn branch_source(
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
    pub fn branch(
        &mut self,
        (source, fork): (usize, i64),
        to: Name,
        inherit: bool,
        seed: Option<&'static str>,
        title: Option<&str>,
    ) -> Answer {
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
            let item = Item { payload, kind: Some("seed"), ..Item::default() };
            self.place(branch, Op::Append, &item, OnConflict::Error)?;
        }
        Ok(vec![self.session_row(branch)])
    }

    /// Whether a branch that is still there stands on this session's log.
    pub fn is_needed(&self, session: usize) -> bool {
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
    pub fn flatten(&mut self, name: Name, lease: &Lease) -> Answer {
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
    pub fn trim(&mut self, name: Name, lease: &Lease, keep_from: i64, force: bool) -> Answer {
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
    pub fn erase(&mut self, name: Name, lease: &Lease, target: Option<i64>, item_id: Option<&str>) -> Answer {
        let session = self.existing(name)?;
        self.admit(session, lease)?;
        let stored = &self.sessions[session];
        let entry = match item_id {
            Some(item_id) => stored.item_with_id(item_id),
            None => target.and_then(|target| stored.entry(target)).filter(|entry| entry.has_content()),
        };
        let Some(entry) = entry.cloned() else { return refuse("SE011") };
        let is_meant = |one: &&Entry| {
            one.position == entry.position
                || item_id.is_some() && one.op == Op::Revise && one.target == Some(entry.position)
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
}
