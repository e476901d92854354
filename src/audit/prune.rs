//! Pruning a stream: events that an anchor covers are removed, and the chain begins behind them.

use agent_sessions_core::error::Error;
use pgrx::pg_sys::{Datum, INT8OID, TEXTOID};

use crate::audit::append::check_names;
use crate::audit::chain::Chain;
use crate::draft;
use crate::postgres::call::{Call, Returns};
use crate::postgres::catalog;
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::trigger::{self, Decision, Event, Trigger};
use crate::postgres::value::text_datum;

static ANCHORED: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.audit_anchor_leaf l \
      where l.tenant operator(pg_catalog.=) $1 and l.stream operator(pg_catalog.=) $2 \
        and l.seq operator(pg_catalog.>=) $3 limit 1",
    &[TEXTOID, TEXTOID, INT8OID],
);

static MOVE_BASE: KeptPlan = KeptPlan::new(
    c"update agent_sessions.audit_chain set base_seq = $3, base_hash = ( \
        select e.hash from agent_sessions.audit_event e \
        where e.tenant operator(pg_catalog.=) $1 and e.stream operator(pg_catalog.=) $2 \
          and e.seq operator(pg_catalog.=) $3) \
      where tenant operator(pg_catalog.=) $1 and stream operator(pg_catalog.=) $2",
    &[TEXTOID, TEXTOID, INT8OID],
);

static REMOVE: KeptPlan = KeptPlan::new(
    c"delete from agent_sessions.audit_event \
      where tenant operator(pg_catalog.=) $1 and stream operator(pg_catalog.=) $2 and seq operator(pg_catalog.<=) $3",
    &[TEXTOID, TEXTOID, INT8OID],
);

static IS_EVENT: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.audit_event e \
      where e.tenant operator(pg_catalog.=) $1 and e.stream operator(pg_catalog.=) $2 \
        and e.seq operator(pg_catalog.=) $3 and e.hash operator(pg_catalog.=) $4",
    &[TEXTOID, TEXTOID, INT8OID, TEXTOID],
);

const NOT_ANCHORED: &str = "no anchor has recorded the stream as far as this";

pub fn audit_prune(call: &mut Call) -> Returns {
    let stream = call.text().unwrap_or_default();
    let before_seq = call.int8().ok_or_else(|| Error::invalid("before_seq", "must be given"))?;
    draft::position("before_seq", Some(before_seq))?;
    let tenant = check_names(stream, None, None)?;

    let spi = Spi::connect();
    let Some(chain) = Chain::lock_existing(&spi, &tenant, stream) else { return Ok(Some(Datum::from(0_i64))) };
    // The newest event stays.
    let last = (before_seq - 1).min(chain.next_seq - 2);
    if last <= chain.base_seq {
        return Ok(Some(Datum::from(0_i64)));
    }
    let _owner = AsOwner::switch();
    let place = [Some(text_datum(&tenant)), Some(text_datum(stream)), Some(Datum::from(last))];
    if ANCHORED.run(&spi, See::Latest, &place).len() == 0 {
        return Err(Error::AppendOnly { object: "audit_event", reason: NOT_ANCHORED });
    }
    MOVE_BASE.run(&spi, See::Latest, &place);
    Ok(Some(Datum::from(REMOVE.run(&spi, See::Latest, &place).len() as i64)))
}

/// The columns of `audit_chain`, in their order.
mod column {
    use pgrx::pg_sys::{INT8OID, Oid, TEXTOID};

    pub const TENANT: usize = 0;
    pub const STREAM: usize = 1;
    pub const BASE_SEQ: usize = 2;
    pub const BASE_HASH: usize = 3;

    /// Their types.
    pub const TYPES: &[Oid] = &[TEXTOID, TEXTOID, INT8OID, TEXTOID];
}

/// A chain stays, and its base only moves on, to an event that an anchor covers.
pub fn on_chain_change<'a>(trigger: &Trigger<'a>) -> trigger::Returns<'a> {
    use column::*;
    let refused = |reason| Err(Error::AppendOnly { object: "audit_chain", reason });
    if trigger.event() != Event::Update {
        return refused("a chain stays");
    }
    let (old, new) = (trigger.row(TYPES), trigger.new_row(TYPES));
    let is_same = [TENANT, STREAM].iter().all(|&column| new.same_bytes(&old, column));
    if !is_same || !catalog::is_owner() || new.int8(BASE_SEQ) <= old.int8(BASE_SEQ) {
        return refused("its base is moved on by audit_prune");
    }
    let spi = Spi::connect();
    let _owner = AsOwner::switch();
    let base = [TENANT, STREAM, BASE_SEQ, BASE_HASH].map(|column| new.datum(column));
    if IS_EVENT.run(&spi, See::Latest, &base).len() == 0 || ANCHORED.run(&spi, See::Latest, &base[..3]).len() == 0 {
        return refused(NOT_ANCHORED);
    }
    Ok((None, Decision::Write))
}
