//! Streaming: the text of an open item, added chunk by chunk outside the chain, and dropped when the item is closed.

use agent_sessions_core::error::Error;
use agent_sessions_core::limit;
use agent_sessions_core::word::{OnMissing, Op};
use pgrx::pg_sys::{Datum, INT4OID, INT8OID, TEXTOID};

use crate::address::Address;
use crate::draft;
use crate::head::{self, Head};
use crate::identity;
use crate::item::Item;
use crate::item_rule;
use crate::lease::Given;
use crate::log::Log;
use crate::postgres::call::{Call, Returns};
use crate::postgres::catalog;
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::setting;
use crate::postgres::trigger::{self, Decision, Trigger};
use crate::postgres::value::{self, text_datum};

/// The columns of `session_delta`, in their order.
mod column {
    use pgrx::pg_sys::{INT4OID, INT8OID, Oid, TEXTOID};

    pub const SID: usize = 0;
    pub const TARGET: usize = 1;
    pub const CHUNK_NO: usize = 2;
    pub const TENANT: usize = 3;
    pub const AGENT_ID: usize = 4;
    pub const CHUNK: usize = 5;

    /// Their types.
    pub const TYPES: &[Oid] = &[INT8OID, INT8OID, INT4OID, TEXTOID, TEXTOID, TEXTOID];
}

static LAST: KeptPlan = KeptPlan::new(
    c"select d.chunk_no, d.chunk from agent_sessions.session_delta d \
      where d.sid operator(pg_catalog.=) $1 and d.target operator(pg_catalog.=) $2 order by d.chunk_no desc limit 1",
    &[INT8OID, INT8OID],
);

static INSERT: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.session_delta (sid, target, chunk_no, chunk) values ($1, $2, $3, $4)",
    &[INT8OID, INT8OID, INT4OID, TEXTOID],
);

static DROP_ONE: KeptPlan = KeptPlan::new(
    c"delete from agent_sessions.session_delta d \
      where d.sid operator(pg_catalog.=) $1 and d.target operator(pg_catalog.=) $2",
    &[INT8OID, INT8OID],
);

// In a restore the chunks of later items may be there before the entry.
static DROP_BETWEEN: KeptPlan = KeptPlan::new(
    c"delete from agent_sessions.session_delta d \
      where d.sid operator(pg_catalog.=) $1 and d.target operator(pg_catalog.>=) $2 \
        and d.target operator(pg_catalog.<) $3",
    &[INT8OID, INT8OID, INT8OID],
);

pub fn session_delta(call: &mut Call) -> Returns {
    let session_id = call.text();
    let target = call.int8();
    let chunk_no = call.int4();
    let chunk = call.text();
    let durable = call.bool().unwrap_or(true);
    let agent_id = call.text();
    let lease = call.text();

    let target = target.ok_or_else(|| Error::invalid("target", "must be given"))?;
    let chunk_no = chunk_no.ok_or_else(|| Error::invalid("chunk_no", "must be given"))?;
    let chunk = chunk.ok_or_else(|| Error::invalid("chunk", "must be given"))?;
    draft::position("target", Some(target))?;
    draft::position("chunk_no", Some(chunk_no.into()))?;
    draft::check_size("chunk", chunk)?;
    let address = Address::resolve(session_id, agent_id)?;

    let add = || add(&address, target, chunk_no, chunk, lease);
    if durable { add() } else { setting::committing_asynchronously(add) }
}

fn add(address: &Address, target: i64, chunk_no: i32, chunk: &str, lease: Option<&str>) -> Returns {
    let spi = Spi::connect();
    let Some(log) = Log::open(&spi, address, OnMissing::Error)? else { return Ok(None) };
    log.head.admit(lease)?;
    let _lease = Given::to_triggers(lease);
    INSERT.run(
        &spi,
        See::Now,
        &[
            Some(Datum::from(log.sid())),
            Some(Datum::from(target)),
            Some(Datum::from(chunk_no)),
            Some(text_datum(chunk)),
        ],
    );
    log.head.touch(&spi);
    Ok(Some(Datum::from(chunk_no + 1)))
}

/// Takes the next chunk of an open item. A full row of the owner's is what a restore brings, and is taken as it is.
pub fn on_delta_insert<'a>(trigger: &Trigger<'a>) -> trigger::Returns<'a> {
    let mut row = trigger.row(column::TYPES);
    let given = |name| Error::invalid(name, "must be given");
    let sid = row.int8(column::SID).ok_or_else(|| given("sid"))?;
    let target = row.int8(column::TARGET).ok_or_else(|| given("target"))?;
    let chunk_no = row.int4(column::CHUNK_NO).ok_or_else(|| given("chunk_no"))?;
    let chunk = row.text(column::CHUNK).ok_or_else(|| given("chunk"))?;
    draft::position("target", Some(target))?;
    draft::position("chunk_no", Some(chunk_no.into()))?;
    limit::at_most("chunk", value::size(row.datum(column::CHUNK)), limit::MAX_PAYLOAD_BYTES)?;
    if row.datum(column::TENANT).is_some() && row.datum(column::AGENT_ID).is_some() && catalog::is_owner() {
        return Ok((Some(row), Decision::Write));
    }

    // SE019 before the look-up: it must not tell whether there is such a session.
    identity::tenant()?;
    let spi = Spi::connect();
    let Some(log) = Head::lock_by_sid(&spi, sid).and_then(|head| Log::of(&spi, head)) else {
        return Err(head::unknown(sid));
    };
    log.head.admit(None)?;
    let item = Item::find(&spi, &log.lineage, target)?;
    if !(item.open && item.live) {
        return Err(Error::ItemNotFound { target: Some(target), item_id: None, reason: "the item is not open" });
    }
    let last = LAST.run(&spi, See::Latest, &[Some(Datum::from(sid)), Some(Datum::from(target))]);
    let last = last.first().and_then(|row| row.int4(0).map(|no| (no, row.text(1))));
    let next = last.map_or(0, |(no, _)| no + 1);
    if last == Some((chunk_no, Some(chunk))) {
        return Ok((None, Decision::Skip));
    }
    if chunk_no != next {
        return Err(Error::DeltaOutOfOrder { expected: chunk_no.into(), actual: next.into() });
    }
    row.set_text(column::TENANT, &log.head.tenant);
    row.set_text(column::AGENT_ID, &log.head.agent_id);
    Ok((Some(row), Decision::Write))
}

pub fn on_delta_update<'a>(_: &Trigger<'a>) -> trigger::Returns<'a> {
    Err(Error::AppendOnly { object: "session_delta", reason: "a chunk is not changed" })
}

/// An item that is revised is closed, and one that is retracted is gone: their chunks go, whoever wrote them.
pub fn on_item_closed<'a>(trigger: &Trigger<'a>) -> trigger::Returns<'a> {
    let closing = item_rule::closing(trigger)?;
    let spi = Spi::connect();
    let _owner = AsOwner::switch();
    let [sid, target, position] = [closing.sid, closing.target, closing.position].map(|value| Some(Datum::from(value)));
    if closing.op == Op::RetractFrom {
        DROP_BETWEEN.run(&spi, See::Latest, &[sid, target, position]);
    } else {
        DROP_ONE.run(&spi, See::Latest, &[sid, target]);
    }
    Ok((None, Decision::Skip))
}
