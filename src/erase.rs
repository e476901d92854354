//! Erasing the content of entries, for every branch that shares them. What stays verifies.

use agent_sessions_core::chain::erase_payload;
use agent_sessions_core::error::Error;
use agent_sessions_core::name;
use agent_sessions_core::word::{OnMissing, Op};
use pgrx::pg_sys::{BOOLOID, Datum, INT8ARRAYOID, INT8OID};

use crate::address::Address;
use crate::audit::track::{self, Deed, What};
use crate::draft::{self, Draft};
use crate::head::Head;
use crate::item;
use crate::lease::Given;
use crate::lineage::Stretch;
use crate::log::Log;
use crate::postgres::call::{Call, Returns};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::{Element, Json, array};

static DROP_DELTAS: KeptPlan = KeptPlan::new(
    c"delete from agent_sessions.session_delta where sid operator(pg_catalog.=) $1 and target operator(pg_catalog.=) $2",
    &[INT8OID, INT8OID],
);

// What of an entry and, if wanted, of the revisions of the item there can be erased still.
static ERASABLE: KeptPlan = KeptPlan::new(
    c"select i.position from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.=) $2 \
        and i.position operator(pg_catalog.<) $3 \
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

/// What is to be erased: the entry at a position, alone or with the revisions of the item there.
struct Erasure<'a> {
    place: i64,
    with_revisions: bool,
    reason: Option<&'a str>,
    lease: Option<&'a str>,
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
    let erasure = Erasure { place, with_revisions: item_id.is_some(), reason, lease };
    let mut erased = 0;
    for stretch in log.lineage.stretches().iter().rev() {
        erased += erasure.run(&log, stretch)?;
    }
    let _owner = AsOwner::switch();
    // Chunks of an inherited item that is open may have been sent to the branch.
    DROP_DELTAS.run(&spi, See::Latest, &[log.sid(), place].map(|value| Some(Datum::from(value))));
    if erased > 0 {
        let Address { tenant, agent_id, session_id } = &address;
        let payload = serde_json::json!({ "target": place, "item_id": item_id, "erased": erased, "reason": reason });
        track::note(&spi, &Deed { what: What::Erase, action: "session_erase", tenant, agent_id, session_id, payload });
    }
    Ok(Some(Datum::from(erased)))
}

fn has_content(log: &Log, place: i64) -> bool {
    log.lineage.stretch_of(place).is_some_and(|stretch| {
        let entry = [Some(Datum::from(stretch.sid)), Some(Datum::from(place))];
        stretch.run(&EXISTS, log.spi, See::Now, &entry).len() > 0
    })
}

impl Erasure<'_> {
    /// Erases what a stretch of the log holds, and says so in the log that holds it, which tells it to all of its branches; how
    /// many entries.
    fn run(&self, log: &Log, stretch: &Stretch) -> Result<i64, Error> {
        if self.entries(log.spi, stretch).is_empty() {
            return Ok(0);
        }
        let ancestor = if stretch.is_inherited { Some(self.open_ancestor(log.spi, stretch.sid)?) } else { None };
        let holder = ancestor.as_ref().unwrap_or(log);
        // Again, now that it is locked: another branch may have erased it meanwhile.
        let entries = self.entries(log.spi, stretch);
        if entries.is_empty() {
            return Ok(0);
        }
        let revisions: Vec<i64> = entries.iter().copied().filter(|entry| *entry != self.place).collect();
        let payload = erase_payload(self.reason, &revisions);
        let _owner = AsOwner::switch();
        let draft = Draft { payload: Some(Json::from_part(&payload)), ..Draft::about(Op::Erase, self.place) };
        holder.write(&[draft], self.lease);
        let sid = Some(Datum::from(stretch.sid));
        let positions: Vec<_> = entries.iter().map(|entry| Some(Datum::from(*entry))).collect();
        ERASE.run(log.spi, See::Latest, &[sid, Some(array(Element::Int8, &positions))]);
        DROP_DELTAS.run(log.spi, See::Latest, &[sid, Some(Datum::from(self.place))]);
        Ok(entries.len() as i64)
    }

    /// Which entries of a stretch still have a content that is to be erased.
    fn entries(&self, spi: &Spi, stretch: &Stretch) -> Vec<i64> {
        let [sid, target, until] = [stretch.sid, self.place, stretch.until].map(|value| Some(Datum::from(value)));
        let arguments = [sid, target, until, Some(Datum::from(self.with_revisions))];
        stretch.run(&ERASABLE, spi, See::Latest, &arguments).iter().filter_map(|row| row.int8(0)).collect()
    }

    /// The log of an ancestor, which may have been deleted while its branches stayed.
    fn open_ancestor<'s>(&self, spi: &'s Spi, sid: i64) -> Result<Log<'s>, Error> {
        let missing = |reason| Error::ItemNotFound { target: Some(self.place), item_id: None, reason };
        let head = Head::lock_ancestor(spi, sid)
            .ok_or_else(|| missing("the entry is inherited from a session that is not visible"))?;
        head.admit(None)?;
        let _owner = AsOwner::switch();
        Log::of(spi, head).ok_or_else(|| missing("the session that holds the entry is gone"))
    }
}
