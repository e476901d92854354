//! Appending items: one, or a batch.

use std::collections::HashMap;

use agent_sessions_core::element;
use agent_sessions_core::error::Error;
use agent_sessions_core::word::{OnConflict, OnMissing, Op};
use pgrx::pg_sys::Datum;

use crate::address::Address;
use crate::draft::{self, Draft, Item};
use crate::item;
use crate::log::Log;
use crate::postgres::call::{Call, Returns};
use crate::postgres::plan::{See, Spi};
use crate::postgres::value::text_datum;

#[derive(Clone, Copy)]
enum Outcome {
    Appended,
    Replayed,
    Kept,
    Revised,
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Outcome::Appended => "appended",
            Outcome::Replayed => "replayed",
            Outcome::Kept => "kept",
            Outcome::Revised => "revised",
        }
    }
}

/// An item that an item_id stands for: stored, or among the drafts of this call.
struct Standing<'a> {
    item: item::Item<'a>,
    /// The draft that brings the item, if it is one of this call.
    first: Option<usize>,
    /// The draft that brings its content, likewise.
    content: Option<usize>,
}

/// What became of an item: its place in the log, and the digest of the content that it now has.
pub struct Placed {
    outcome: Outcome,
    position: i64,
    first: Option<usize>,
    content: Option<usize>,
    digest: Option<Datum>,
    created_at: Option<Datum>,
}

pub fn session_append(call: &mut Call) -> Returns {
    let session_id = call.text();
    let payload = call.json();
    let kind = call.text();
    let item_id = call.text();
    let tag = call.text();
    let author = call.text();
    let attrs = call.datum();
    let kept_from = call.int8();
    let open = call.bool().unwrap_or(false);
    let expected_position = call.int8();
    let on_conflict = OnConflict::parse(call.text())?;
    let on_missing = OnMissing::parse(call.text())?;
    let agent_id = call.text();
    let lease = call.text();

    let payload = payload.ok_or_else(|| Error::invalid("payload", "must be given"))?;
    draft::check_size("payload", payload.text)?;
    draft::check_attrs(attrs)?;
    draft::position("expected_position", expected_position)?;
    let draft = Draft {
        op: if open { Op::Open } else { Op::Append },
        kind: Some(kind.unwrap_or("message")),
        item_id,
        tag,
        author,
        target: kept_from,
        payload: Some(payload),
        attrs,
    };
    draft.check_names()?;
    let address = Address::resolve(session_id, agent_id)?;

    let spi = Spi::connect();
    let Some(log) = Log::open(&spi, &address, on_missing)? else { return Ok(None) };
    let placed = append(&log, &[Item { draft, on_conflict, element: None }], expected_position, lease)?;
    Ok(placed.first().map(|placed| Datum::from(placed.position)))
}

pub fn session_append_batch(call: &mut Call) -> Returns {
    let session_id = call.text();
    let items = call.json();
    let expected_position = call.int8();
    let on_conflict = OnConflict::parse(call.text())?;
    let on_missing = OnMissing::parse(call.text())?;
    let agent_id = call.text();
    let lease = call.text();

    let items = items.ok_or_else(|| Error::invalid("items", "must be given"))?;
    draft::position("expected_position", expected_position)?;
    let address = Address::resolve(session_id, agent_id)?;
    let elements = element::parse(items.text)?;
    let items = from_elements(&elements, on_conflict)?;
    let mut set = call.set();
    if items.is_empty() {
        return Ok(None);
    }

    let spi = Spi::connect();
    let Some(log) = Log::open(&spi, &address, on_missing)? else { return Ok(None) };
    let placed = append(&log, &items, expected_position, lease)?;
    for (ordinal, (item, placed)) in items.iter().zip(placed).enumerate() {
        set.put(&[
            Some(Datum::from(ordinal as i32)),
            Some(Datum::from(placed.position)),
            item.draft.item_id.map(text_datum),
            placed.digest,
            placed.created_at,
            Some(text_datum(placed.outcome.as_str())),
        ]);
    }
    Ok(None)
}

/// The items of a parsed batch. SE001 and SE018 name the element.
pub fn from_elements<'a>(
    elements: &'a [element::Element<'a>],
    on_conflict: OnConflict,
) -> Result<Vec<Item<'a>>, Error> {
    let item = |(index, element)| {
        pgrx::check_for_interrupts!();
        Item::from_element(index, element, on_conflict)
    };
    elements.iter().enumerate().map(item).collect()
}

/// Appends `items` to an open log. Ids are looked up first: a replay holds even if the lease or the position is lost.
pub fn append(log: &Log, items: &[Item], expected: Option<i64>, lease: Option<&str>) -> Result<Vec<Placed>, Error> {
    let mut standing = stored(log, items);
    let mut drafts: Vec<Draft> = Vec::with_capacity(items.len());
    let mut placed: Vec<Placed> = Vec::with_capacity(items.len());
    for item in items {
        pgrx::check_for_interrupts!();
        let known = item.draft.item_id.and_then(|id| standing.get_mut(id));
        placed.push(match known {
            Some(known) => known.meet(item, &mut drafts)?,
            None => {
                let position = log.next_position() + drafts.len() as i64;
                item.check_kept_tail(position)?;
                let fresh = Standing {
                    item: item::Item::drafted(position, &item.draft),
                    first: Some(drafts.len()),
                    content: Some(drafts.len()),
                };
                let appended = fresh.placed(Outcome::Appended);
                drafts.push(item.draft);
                if let Some(id) = item.draft.item_id {
                    standing.insert(id, fresh);
                }
                appended
            }
        });
    }
    if !drafts.is_empty() {
        log.head.admit(lease)?;
        log.expect(expected)?;
    }
    let written = log.write(&drafts, lease);
    for placed in &mut placed {
        placed.digest = placed.content.map_or(placed.digest, |draft| written[draft].digest);
        placed.created_at = placed.first.map_or(placed.created_at, |draft| written[draft].created_at);
    }
    Ok(placed)
}

/// The stored items that the ids of `items` stand for.
fn stored<'a>(log: &Log<'a>, items: &[Item<'a>]) -> HashMap<&'a str, Standing<'a>> {
    let ids: Vec<&str> = items.iter().filter_map(|item| item.draft.item_id).filter(|id| log.may_hold(id)).collect();
    if ids.is_empty() {
        return HashMap::new();
    }
    let positions = item::places(log.spi, See::Now, &log.lineage, item::id_array(&ids));
    let positions: Vec<i64> = positions.iter().map(|(_, position)| *position).collect();
    if positions.is_empty() {
        return HashMap::new();
    }
    item::Item::at(log.spi, &log.lineage, &positions)
        .into_iter()
        .filter_map(|item| Some((item.item_id?, Standing { item, first: None, content: None })))
        .collect()
}

impl<'a> Standing<'a> {
    /// What an item comes to whose id is taken. SE010 for other content, unless `on_conflict` says otherwise.
    fn meet(&mut self, item: &Item<'a>, drafts: &mut Vec<Draft<'a>>) -> Result<Placed, Error> {
        let draft = &item.draft;
        let reused = || Error::ItemIdReused {
            item_id: draft.item_id.unwrap_or_default().to_owned(),
            position: self.item.position,
        };
        match (item.on_conflict, draft.payload) {
            (OnConflict::Keep, _) => Ok(self.placed(Outcome::Kept)),
            (OnConflict::Error, _) if self.item.is_replayed_by(draft) => Ok(self.placed(Outcome::Replayed)),
            // A revision cannot change what an item is, only what it says.
            (OnConflict::Replace, Some(payload)) if self.item.is_labelled_as(draft) => {
                // An item that is still open is closed by its content, were it the same.
                let closes = self.item.open && draft.op != Op::Open;
                if self.item.shows(payload, draft.attrs) && !closes {
                    return Ok(self.placed(Outcome::Replayed));
                }
                let attrs = draft.attrs.or(self.item.attrs);
                self.content = Some(drafts.len());
                self.item.revise(payload, attrs);
                drafts.push(Draft::revise(self.item.position, payload, attrs));
                Ok(self.placed(Outcome::Revised))
            }
            _ => Err(reused()),
        }
    }

    fn placed(&self, outcome: Outcome) -> Placed {
        Placed {
            outcome,
            position: self.item.position,
            first: self.first,
            content: self.content,
            digest: self.item.digest,
            created_at: self.item.created_at,
        }
    }
}
