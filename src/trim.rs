//! Trimming a log: its beginning goes for good, and what stays verifies from there.

use agent_sessions_core::chain::trim_payload;
use agent_sessions_core::digest::Digest;
use agent_sessions_core::error::Error;
use agent_sessions_core::word::{OnMissing, Op};
use pgrx::pg_sys::{BYTEAOID, Datum, INT8OID};

use crate::address::Address;
use crate::audit::track::{self, Deed, What};
use crate::deletion;
use crate::draft::{self, Draft};
use crate::history;
use crate::log::Log;
use crate::postgres::call::{Call, Returns};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::{Json, bytes_datum};

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
    let Address { tenant, agent_id, session_id } = &address;
    let payload = serde_json::json!({ "base_position": base, "removed": removed });
    track::note(&spi, &Deed { what: What::Trim, action: "session_trim", tenant, agent_id, session_id, payload });
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
