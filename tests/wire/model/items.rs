//! The contract of the items: appending, revising, retracting and streaming them.

use std::collections::BTreeSet;

use serde_json::json;

use super::compare::row;
use super::contract::{Answer, Model, Outcome, refuse, refuse_telling};
use super::log::{Entry, Op};
use super::step::{Item, Lease, Name, Number, OnConflict, OnMissing, Which};

/// What became of an element of a batch.
pub struct Placed {
    pub position: i64,
    outcome: &'static str,
}

impl Model {
    pub fn append(
        &mut self,
        name: Name,
        lease: &Lease,
        item: &Item,
        open: bool,
        expected: Option<i64>,
        on_missing: OnMissing,
    ) -> Answer {
        let Some(session) = self.find_or_make(name, on_missing)? else { return Ok(vec![row![None::<i64>]]) };
        let op = if open { Op::Open } else { Op::Append };
        let on_conflict = item.on_conflict.unwrap_or(OnConflict::Error);
        let place = |model: &mut Model| model.place(session, op, item, on_conflict);
        Ok(vec![row![self.writing(session, lease, expected, place)?.position]])
    }

    pub fn append_batch(
        &mut self,
        name: Name,
        lease: &Lease,
        items: &[Item],
        expected: Option<i64>,
        on_conflict: OnConflict,
        on_missing: OnMissing,
    ) -> Answer {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let Some(session) = self.find_or_make(name, on_missing)? else { return Ok(Vec::new()) };
        let placed = self.writing(session, lease, expected, |model| model.place_all(session, items, on_conflict))?;
        let rows = placed.iter().zip(items).enumerate();
        Ok(rows.map(|(ordinal, (placed, item))| row![ordinal, placed.position, item.item_id, placed.outcome]).collect())
    }

    /// A batch is taken whole or not at all; a single append is a batch of one.
    pub fn place_all(&mut self, session: usize, items: &[Item], on_conflict: OnConflict) -> Outcome<Vec<Placed>> {
        items
            .iter()
            .map(|item| self.place(session, Op::Append, item, item.on_conflict.unwrap_or(on_conflict)))
            .collect()
    }

    pub fn place(&mut self, session: usize, op: Op, item: &Item, on_conflict: OnConflict) -> Outcome<Placed> {
        let kept_from = item.kept_from.map(Number::value);
        let kind = item.kind.unwrap_or("message");
        let stored = &self.sessions[session];
        let Some(first) = item.item_id.and_then(|item_id| stored.item_with_id(item_id)) else {
            if kept_from > Some(stored.next) {
                return refuse("SE001");
            }
            let entry = Entry {
                op,
                target: kept_from,
                kind: Some(kind),
                item_id: item.item_id,
                tag: item.tag,
                author: item.author,
                payload: Some(item.payload),
                attrs: item.attrs,
                ..Entry::default()
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
        let revision =
            Entry { op: Op::Revise, target: Some(position), payload: Some(payload), attrs, ..Entry::default() };
        self.write(session, revision)
    }

    /// The function is for live items; a plain INSERT may revive one, as on_conflict => 'replace' does.
    pub fn revise(
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

    pub fn retract<'a>(
        &mut self,
        session: usize,
        targets: impl Iterator<Item = &'a Number>,
        item_ids: impl Iterator<Item = &'a &'static str>,
    ) -> Outcome<usize> {
        let stored = &self.sessions[session];
        let by_position = targets.map(|target| stored.item(target.value()));
        let by_id = item_ids.map(|item_id| stored.item_with_id(item_id));
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

    pub fn retract_from(&mut self, session: usize, target: i64) -> usize {
        let removed = self.sessions[session].history().iter().filter(|live| live.item.position >= target).count();
        if removed > 0 {
            self.write_about(session, Op::RetractFrom, target);
        }
        removed
    }

    pub fn pop(&mut self, name: Name, lease: &Lease) -> Answer {
        let Some(session) = self.find(name) else { return Ok(Vec::new()) };
        let Some(newest) = self.sessions[session].history().pop() else { return Ok(Vec::new()) };
        let (shown, position) = (self.item_row(&self.sessions[session], &newest), newest.item.position);
        self.admit(session, lease)?;
        self.write_about(session, Op::Retract, position);
        Ok(vec![shown])
    }

    pub fn delta(&mut self, name: Name, lease: &Lease, target: i64, chunk_no: i64, chunk: &'static str) -> Answer {
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
}
