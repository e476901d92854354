//! Retention: trimming the beginning of a log, and erasing the content of entries. What stays verifies.

use agent_sessions_core::chain::{erase_payload, trim_payload};
use agent_sessions_core::digest::Digest;
use agent_sessions_core::error::Error;
use agent_sessions_core::name;
use agent_sessions_core::word::{OnMissing, Op};
use pgrx::pg_sys::{BOOLOID, BYTEAOID, Datum, INT8ARRAYOID, INT8OID};

use crate::address::Address;
use crate::audit::track::{self, Deed, What};
use crate::deletion;
use crate::draft::{self, Draft};
use crate::head::Head;
use crate::history;
use crate::item;
use crate::lease::Given;
use crate::lineage::Stretch;
use crate::log::Log;
use crate::postgres::call::{Call, Returns};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::{Element, Json, array, bytes_datum};

static MOVE_BASE: KeptPlan = KeptPlan::new(
    c"update agent_sessions.session set base_position = $2, base_digest = $3 where sid operator(pg_catalog.=) $1",
    &[INT8OID, INT8OID, BYTEAOID],
);

static WORTH_TRIMMING: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.>=) $2 \
        and i.position operator(pg_catalog.<) $3 and i.op operator(pg_catalog.<>) 'trim' limit 1",
    &[INT8OID, INT8OID, INT8OID],
);

static REMOVE: KeptPlan = KeptPlan::new(
    c"delete from agent_sessions.session_item \
      where sid operator(pg_catalog.=) $1 and position operator(pg_catalog.<) $2",
    &[INT8OID, INT8OID],
);

static DROP_DELTAS_BEFORE: KeptPlan = KeptPlan::new(
    c"delete from agent_sessions.session_delta where sid operator(pg_catalog.=) $1 and target operator(pg_catalog.<) $2",
    &[INT8OID, INT8OID],
);

static DROP_DELTAS: KeptPlan = KeptPlan::new(
    c"delete from agent_sessions.session_delta where sid operator(pg_catalog.=) $1 and target operator(pg_catalog.=) $2",
    &[INT8OID, INT8OID],
);

// What of an entry and, if wanted, of the revisions of the item there can be erased still.
static ERASABLE: KeptPlan = KeptPlan::new(
    c"select i.position from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.=) $2 \
        and i.op operator(pg_catalog.=) any (array['append', 'open', 'revise']) and i.salt is not null \
      union all \
      select i.position from agent_sessions.session_item i \
      where $4 and i.sid operator(pg_catalog.=) $1 and i.target operator(pg_catalog.=) $2 \
        and i.position operator(pg_catalog.<) $3 \
        and i.op operator(pg_catalog.=) 'revise' and i.salt is not null",
    &[INT8OID, INT8OID, INT8OID, BOOLOID],
);

static EXISTS: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.=) $2 \
        and i.op operator(pg_catalog.=) any (array['append', 'open', 'revise'])",
    &[INT8OID, INT8OID],
);

static ERASE: KeptPlan = KeptPlan::new(
    c"update agent_sessions.session_item set payload = null, attrs = null, salt = null \
      where sid operator(pg_catalog.=) $1 and position operator(pg_catalog.=) any ($2)",
    &[INT8OID, INT8ARRAYOID],
);

pub fn session_trim(call: &mut Call) -> Returns {
    let session_id = call.text();
    let keep_from = call.int8().ok_or_else(|| Error::invalid("keep_from", "must be given"))?;
    let force = call.bool().unwrap_or(false);
    let agent_id = call.text();
    let lease = call.text();
    draft::position("keep_from", Some(keep_from))?;
    let address = Address::resolve(session_id, agent_id)?;

    let spi = Spi::connect();
    let Some(log) = Log::open(&spi, &address, OnMissing::Error)? else { return Ok(None) };
    log.head.admit(lease)?;
    let Some(base) = next_base(&log, keep_from, force) else { return Ok(Some(Datum::from(0_i64))) };
    let Some(digest) = log.digest_before(base) else { return Err(address.not_found(&spi)) };
    let _owner = AsOwner::switch();
    let payload = trim_payload(&digest);
    log.write(&[Draft { payload: Some(Json::from_part(&payload)), ..Draft::about(Op::Trim, base) }], lease);
    move_base(&spi, log.sid(), base, &digest);
    let before = [log.sid(), base].map(|value| Some(Datum::from(value)));
    DROP_DELTAS_BEFORE.run(&spi, See::Latest, &before);
    let removed = REMOVE.run(&spi, See::Latest, &before).len() as i64;
    // A branch that has left its inheritance behind needs its ancestors no longer.
    deletion::collect(&spi, log.head.origin.branched_from);
    let payload = serde_json::json!({ "base_position": base, "removed": removed });
    tell(&spi, &address, What::Trim, "session_trim", payload);
    Ok(Some(Datum::from(removed)))
}

/// Where a log may begin that is to be kept from a position on; `None` if nothing can go.
fn next_base(log: &Log, keep_from: i64, force: bool) -> Option<i64> {
    // The newest entry stays: what the trim entry is about lies before it.
    let base = keep_from.min(log.next_position() - 1);
    let kept_tail = if force { None } else { history::newest_summary(log.spi, See::Now, &log.lineage) };
    let base = kept_tail.and_then(|summary| summary.kept_from()).map_or(base, |kept_from| kept_from.min(base));
    let from = log.lineage.own().from;
    if base <= from || deletion::is_needed(log.spi, log.sid()) {
        return None;
    }
    // What only an earlier trim has left is not worth another one.
    let bounds = [log.sid(), from, base].map(|bound| Some(Datum::from(bound)));
    (WORTH_TRIMMING.run(log.spi, See::Now, &bounds).len() > 0).then_some(base)
}

/// Moves the base of a log to where a trim entry says that it is. As the owner.
pub fn move_base(spi: &Spi, sid: i64, base: i64, digest: &Digest) {
    MOVE_BASE.run(spi, See::Now, &[Some(Datum::from(sid)), Some(Datum::from(base)), Some(bytes_datum(digest))]);
}

pub fn session_erase(call: &mut Call) -> Returns {
    let session_id = call.text();
    let target = call.int8();
    let item_id = call.text();
    let reason = call.text();
    let agent_id = call.text();
    let lease = call.text();
    draft::position("target", target)?;
    name::label("item_id", item_id)?;
    name::label("reason", reason)?;
    if target.is_some() == item_id.is_some() {
        return Err(Error::invalid("target", "must be given, or item_id instead"));
    }
    let address = Address::resolve(session_id, agent_id)?;

    let spi = Spi::connect();
    let Some(log) = Log::open(&spi, &address, OnMissing::Error)? else { return Ok(None) };
    log.head.admit(lease)?;
    let place = match item_id {
        Some(id) => item::places(&spi, See::Now, &log.lineage, item::id_array(&[id])).first().map(|(_, place)| *place),
        None => target,
    };
    let place = place.filter(|place| has_content(&log, *place)).ok_or_else(|| Error::ItemNotFound {
        target,
        item_id: item_id.map(str::to_owned),
        reason: "no entry with a content is there",
    })?;
    // What the caller brings for the ancestors is among it, too.
    let _lease = Given::to_triggers(lease);
    // From branch to source, as every call locks that locks both.
    let mut erased = 0;
    for stretch in log.lineage.stretches().iter().rev() {
        erased += erase(&log, stretch, place, item_id.is_some(), reason, lease)?;
        if stretch.from <= place {
            break;
        }
    }
    let _owner = AsOwner::switch();
    DROP_DELTAS.run(&spi, See::Latest, &[log.sid(), place].map(|value| Some(Datum::from(value))));
    if erased > 0 {
        let payload = serde_json::json!({ "target": place, "item_id": item_id, "erased": erased, "reason": reason });
        tell(&spi, &address, What::Erase, "session_erase", payload);
    }
    Ok(Some(Datum::from(erased)))
}

fn tell(spi: &Spi, address: &Address, what: What, action: &str, payload: serde_json::Value) {
    let Address { tenant, agent_id, session_id } = address;
    track::note(spi, &Deed { what, action, tenant, agent_id, session_id, payload });
}

fn has_content(log: &Log, place: i64) -> bool {
    log.lineage.stretch_of(place).is_some_and(|stretch| {
        let entry = [Some(Datum::from(stretch.sid)), Some(Datum::from(place))];
        stretch.run(&EXISTS, log.spi, See::Now, &entry).len() > 0
    })
}

/// What a stretch holds of an entry, and of the item's revisions if those are wanted, with a content.
fn erasable(log: &Log, stretch: &Stretch, place: i64, with_revisions: bool) -> Vec<i64> {
    let [sid, target, until] = [stretch.sid, place, stretch.until].map(|value| Some(Datum::from(value)));
    let arguments = [sid, target, until, Some(Datum::from(with_revisions))];
    stretch.run(&ERASABLE, log.spi, See::Latest, &arguments).iter().filter_map(|row| row.int8(0)).collect()
}

/// Erases that; how many entries.
fn erase(
    log: &Log,
    stretch: &Stretch,
    place: i64,
    with_revisions: bool,
    reason: Option<&str>,
    lease: Option<&str>,
) -> Result<i64, Error> {
    if erasable(log, stretch, place, with_revisions).is_empty() {
        return Ok(0);
    }
    // The entry that says so stands in the log that held the content: an ancestor's tells it to all of its branches.
    let ancestor = if stretch.is_inherited { Some(open_ancestor(log, stretch.sid, place)?) } else { None };
    let holder = ancestor.as_ref().unwrap_or(log);
    // Again, now that it is locked: another branch may have erased it meanwhile.
    let entries = erasable(log, stretch, place, with_revisions);
    if entries.is_empty() {
        return Ok(0);
    }
    let revisions: Vec<i64> = entries.iter().copied().filter(|entry| *entry != place).collect();
    let payload = erase_payload(reason, &revisions);
    let _owner = AsOwner::switch();
    holder.write(&[Draft { payload: Some(Json::from_part(&payload)), ..Draft::about(Op::Erase, place) }], lease);
    let positions: Vec<_> = entries.iter().map(|entry| Some(Datum::from(*entry))).collect();
    let sid = Some(Datum::from(stretch.sid));
    ERASE.run(log.spi, See::Latest, &[sid, Some(array(Element::Int8, &positions))]);
    DROP_DELTAS.run(log.spi, See::Latest, &[sid, Some(Datum::from(place))]);
    Ok(entries.len() as i64)
}

/// The log of an ancestor, which may have been deleted while its branches stayed.
fn open_ancestor<'s>(log: &Log<'s>, sid: i64, place: i64) -> Result<Log<'s>, Error> {
    let head = Head::lock_ancestor(log.spi, sid).ok_or(Error::ItemNotFound {
        target: Some(place),
        item_id: None,
        reason: "the entry is inherited from a session that is not visible",
    })?;
    head.admit(None)?;
    let _owner = AsOwner::switch();
    Log::of(log.spi, head).ok_or(Error::ItemNotFound {
        target: Some(place),
        item_id: None,
        reason: "the session that holds the entry is gone",
    })
}
