//! A session in memory: its log is a vector of entries, and what is live follows from them.

use std::collections::BTreeMap;

use super::step::{Document, Given, Name};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Op {
    #[default]
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
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// The same in every log that shows the entry.
    pub serial: usize,
    /// The session whose own it is.
    pub holder: usize,
    pub position: i64,
    pub op: Op,
    pub target: Option<i64>,
    pub kind: Option<&'static str>,
    pub item_id: Option<&'static str>,
    pub tag: Option<&'static str>,
    pub author: Option<&'static str>,
    pub payload: Option<&'static str>,
    pub attrs: Option<&'static str>,
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
    pub base: i64,
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
    pub fn new(name: Name) -> Session {
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
    pub fn inherits(&self) -> bool {
        self.source.is_some() && self.fork.is_some_and(|fork| self.base < fork)
    }

    pub fn entry(&self, position: i64) -> Option<&Entry> {
        self.log.iter().find(|entry| entry.position == position)
    }

    pub fn item(&self, position: i64) -> Option<&Entry> {
        self.entry(position).filter(|entry| entry.is_item())
    }

    pub fn item_with_id(&self, item_id: &str) -> Option<&Entry> {
        self.log.iter().find(|entry| entry.item_id == Some(item_id))
    }

    /// The entry that the item's content stands in, whether it is live or not.
    pub fn content(&self, position: i64) -> Option<&Entry> {
        let is_content =
            |entry: &&Entry| entry.position == position || entry.op == Op::Revise && entry.target == Some(position);
        self.log.iter().rev().find(is_content)
    }

    /// The newest entry about an item wins.
    pub fn live_at(&self, position: i64) -> Option<Live<'_>> {
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

    pub fn newest_open(&self) -> Option<i64> {
        self.history().iter().rev().find(|live| live.is_open()).map(|live| live.item.position)
    }

    /// Changes what is given; whether that moves the revision.
    pub fn change(&mut self, given: &Given, now: usize) -> bool {
        let before = self.clone();
        self.title = given.title.map(str::to_owned).or(self.title.take());
        self.status = given.status.or(self.status);
        self.owner = given.owner.or(self.owner);
        self.metadata = given.metadata.clone().map(Document::sorted).or(self.metadata.take());
        self.state = given.state.clone().or(self.state.take());
        self.input_tokens = given.input_tokens.or(self.input_tokens);
        self.expired = given.expired.then_some(now).or(self.expired);
        (&self.title, self.status, self.owner, &self.metadata, &self.state)
            != (&before.title, before.status, before.owner, &before.metadata, &before.state)
    }
}
