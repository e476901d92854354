//! Changing what the log shows, by further entries: revise, retract, pop.

use std::collections::HashSet;

use agent_sessions_core::error::Error;
use agent_sessions_core::limit;
use agent_sessions_core::name;
use agent_sessions_core::word::OnMissing;
use pgrx::pg_sys::Datum;

use crate::address::Address;
use crate::draft::{self, Draft};
use crate::history::{self, Wanted};
use crate::item::{self, Item};
use crate::log::Log;
use crate::postgres::call::{Call, Returns};
use crate::postgres::plan::{See, Spi};

pub fn session_revise(call: &mut Call) -> Returns {
    let session_id = call.text();
    let payload = call.json();
    let target = call.int8();
    let item_id = call.text();
    let kind = call.text();
    let attrs = call.datum();
    let expected_position = call.int8();
    let agent_id = call.text();
    let lease = call.text();

    let payload = payload.ok_or_else(|| Error::invalid("payload", "must be given"))?;
    draft::check_size("payload", payload.text)?;
    draft::check_attrs(attrs)?;
    draft::position("target", target)?;
    name::label("item_id", item_id)?;
    name::label("kind", kind)?;
    draft::position("expected_position", expected_position)?;
    if target.is_some() == item_id.is_some() {
        return Err(Error::invalid("target", "must be given, or item_id instead"));
    }
    let address = Address::resolve(session_id, agent_id)?;

    let spi = Spi::connect();
    let Some(log) = Log::open(&spi, &address, OnMissing::Error)? else { return Ok(None) };
    let missing = |reason| Error::ItemNotFound { target, item_id: item_id.map(str::to_owned), reason };
    let place = match item_id {
        Some(id) => {
            item::places(&spi, See::Now, &log.lineage, item::id_array(&[id])).first().map(|(_, position)| *position)
        }
        None => target,
    };
    let found = place.and_then(|place| Item::at(&spi, &log.lineage, &[place]).pop());
    let item = found.ok_or_else(|| missing("no item was appended there"))?;
    if !item.live {
        return Err(missing("the item was retracted"));
    }
    if kind.is_some() && kind != item.kind {
        return Err(missing("the item is of another kind"));
    }
    if item.shows(payload, attrs) && !item.open {
        return Ok(Some(Datum::from(item.content_position)));
    }
    log.head.admit(lease)?;
    log.expect(expected_position)?;
    let written = log.write(&[Draft::revise(item.position, payload, attrs.or(item.attrs))], lease);
    Ok(written.first().map(|written| Datum::from(written.position)))
}

/// What a retract takes out of the history.
enum Aim<'a> {
    Items { targets: Vec<i64>, item_ids: Vec<&'a str> },
    From(i64),
}

pub fn session_retract(call: &mut Call) -> Returns {
    let session_id = call.text();
    let targets = call.int8_array("targets")?;
    let item_ids = call.text_array("item_ids")?;
    let from_target = call.int8();
    let expected_position = call.int8();
    let on_missing = OnMissing::parse_without_create(call.text())?;
    let agent_id = call.text();
    let lease = call.text();

    let aim = match (targets, item_ids, from_target) {
        (None, None, Some(from_target)) => Aim::From(from_target),
        (None, None, None) => return Err(Error::invalid("targets", "must be given, or item_ids, or from_target")),
        (targets, item_ids, None) => {
            Aim::Items { targets: targets.unwrap_or_default(), item_ids: item_ids.unwrap_or_default() }
        }
        _ => return Err(Error::invalid("from_target", "must not be given together with targets or item_ids")),
    };
    aim.check()?;
    draft::position("expected_position", expected_position)?;
    let address = Address::resolve(session_id, agent_id)?;

    let spi = Spi::connect();
    let Some(log) = Log::open(&spi, &address, on_missing)? else { return Ok(None) };
    let (drafts, removed) = aim.drafts(&log)?;
    if !drafts.is_empty() {
        log.head.admit(lease)?;
        log.expect(expected_position)?;
        log.write(&drafts, lease);
    }
    Ok(Some(Datum::from(removed)))
}

impl Aim<'_> {
    fn check(&self) -> Result<(), Error> {
        match self {
            Aim::From(target) => draft::position("from_target", Some(*target)),
            Aim::Items { targets, item_ids } => {
                limit::at_most("targets", targets.len(), limit::BATCH_ELEMENTS)?;
                limit::at_most("item_ids", item_ids.len(), limit::BATCH_ELEMENTS)?;
                targets.iter().try_for_each(|target| draft::position("targets", Some(*target)))?;
                item_ids.iter().try_for_each(|id| name::required("item_ids", id))
            }
        }
    }

    /// The entries that retract what is live of it, and how many items that is. SE011 for an item that never was.
    fn drafts(&self, log: &Log) -> Result<(Vec<Draft<'static>>, i64), Error> {
        match self {
            Aim::From(target) => {
                let live = history::count_from(See::Now, &log.lineage, *target);
                Ok((if live > 0 { vec![Draft::retract_from(*target)] } else { Vec::new() }, live))
            }
            Aim::Items { targets, item_ids } => {
                let mut places = targets.clone();
                if !item_ids.is_empty() {
                    let found = item::places(log.spi, See::Now, &log.lineage, item::id_array(item_ids));
                    let known: HashSet<&str> = found.iter().map(|(id, _)| *id).collect();
                    if let Some(unknown) = item_ids.iter().find(|id| !known.contains(*id)) {
                        return Err(Error::ItemNotFound {
                            target: None,
                            item_id: Some((*unknown).to_owned()),
                            reason: "no item was appended with the id",
                        });
                    }
                    places.extend(found.iter().map(|(_, position)| position));
                }
                places.sort_unstable();
                places.dedup();
                let items = Item::at(log.spi, &log.lineage, &places);
                if let Some(unknown) =
                    places.iter().find(|place| items.binary_search_by_key(*place, |item| item.position).is_err())
                {
                    return Err(Error::ItemNotFound {
                        target: Some(*unknown),
                        item_id: None,
                        reason: "no item was appended there",
                    });
                }
                let live = items.iter().filter(|item| item.live);
                let drafts: Vec<_> = live.map(|item| Draft::retract(item.position)).collect();
                let removed = drafts.len() as i64;
                Ok((drafts, removed))
            }
        }
    }
}

pub fn session_pop(call: &mut Call) -> Returns {
    let session_id = call.text();
    let agent_id = call.text();
    let lease = call.text();
    let address = Address::resolve(session_id, agent_id)?;
    let mut set = call.set();

    let spi = Spi::connect();
    let Some(log) = Log::open(&spi, &address, OnMissing::Ignore)? else { return Ok(None) };
    let newest = Wanted { newest_first: true, max_rows: Some(1), ..Wanted::ALL };
    let mut popped = None;
    history::live_items(See::Now, &log.lineage, &newest, |spi, item| {
        set.put(&item.columns(spi, See::Now, &log.lineage));
        popped = Some(item.position());
        true
    });
    if let Some(position) = popped {
        log.head.admit(lease)?;
        log.write(&[Draft::retract(position)], lease);
    }
    Ok(None)
}
