//! The contract of a session's head: creating, changing and deleting it, and its lease.

use serde_json::json;

use super::compare::row;
use super::contract::{Answer, Model, Outcome, refuse, refuse_telling};
use super::log::Session;
use super::step::{Document, Given, Item, Lease, Name, OnConflict, OnMissing, Who};

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

impl Model {
    pub fn create(
        &mut self,
        name: Name,
        given: &Given,
        parent: Option<Who>,
        items: Option<&[Item]>,
        keep: bool,
    ) -> Answer {
        let parent = parent.map(|parent| self.existing(parent.name())).transpose()?;
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

    pub fn set(
        &mut self,
        name: Name,
        lease: &Lease,
        given: &Given,
        merge: bool,
        expected: Option<i64>,
        on_missing: OnMissing,
    ) -> Answer {
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

    /// The session and all that are below it.
    pub fn gone_with(&self, session: usize) -> Vec<usize> {
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

    pub fn delete(&mut self, name: Name, lease: &Lease, ignore: bool) -> Answer {
        let Some(session) = self.unless_ignored(name, ignore)? else { return Ok(vec![row![None::<bool>]]) };
        self.admit(session, lease)?;
        for below in &self.gone_with(session)[1..] {
            self.admit_indirectly(*below, lease)?;
        }
        self.remove(session);
        Ok(vec![row![true]])
    }

    fn remove(&mut self, session: usize) {
        for gone in self.gone_with(session) {
            self.sessions[gone].deleted = true;
            self.sessions[gone].lease = None;
        }
        self.written += 1;
    }

    /// The longest expired ones first, each with all that is below it. A lease below protects what is above, and so does one
    /// that was brought and is lost.
    pub fn expire(&mut self, lease: &Lease) -> usize {
        let is_due = |session: &usize| self.sessions[*session].expired.is_some();
        let mut due: Vec<usize> = (0..self.sessions.len()).filter(is_due).collect();
        due.sort_by_key(|session| self.sessions[*session].expired);
        let mut deleted = 0;
        for session in due {
            let is_held =
                |one: &usize| self.sessions[*one].lease.is_some() || self.admit_indirectly(*one, lease).is_err();
            if !self.sessions[session].deleted && !self.gone_with(session).iter().any(is_held) {
                self.remove(session);
                deleted += 1;
            }
        }
        deleted
    }
}

/// Leases. Time is not modelled: they last until they are released or broken.
impl Model {
    pub fn claim(&mut self, name: Name, on_missing: OnMissing) -> Answer {
        let Some(session) = self.find_or_make(name, on_missing)? else { return Ok(Vec::new()) };
        if self.sessions[session].lease.is_some() {
            return Ok(Vec::new());
        }
        let number = self.leases.len();
        self.leases.push(session);
        self.sessions[session].lease = Some(number);
        self.written += 1;
        Ok(vec![row![number]])
    }

    pub fn extend(&mut self, name: Name, lease: &Lease) -> Answer {
        let session = self.existing(name)?;
        match (self.sessions[session].lease, lease) {
            (Some(live), Lease::Argument(given)) if live == *given => {
                self.written += 1;
                Ok(vec![row![live]])
            }
            _ => refuse("SE008"),
        }
    }

    pub fn release(&mut self, name: Name, lease: &Lease) -> bool {
        let Some(session) = self.find(name) else { return false };
        match (self.sessions[session].lease, lease) {
            (Some(live), Lease::Argument(given)) if live == *given => self.end_lease(session),
            _ => false,
        }
    }

    pub fn break_lease(&mut self, name: Name) -> Answer {
        let session = self.existing(name)?;
        Ok(vec![row![self.end_lease(session)]])
    }

    fn end_lease(&mut self, session: usize) -> bool {
        let ended = self.sessions[session].lease.take().is_some();
        self.written += usize::from(ended);
        ended
    }
}
