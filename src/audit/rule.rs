//! The rules of `audit_event`, as triggers: they hold for every statement that writes it.

use agent_sessions_core::audit::{self, Columns, GENESIS};
use agent_sessions_core::error::Error;
use agent_sessions_core::{limit, name};
use pgrx::pg_sys::{INT8OID, TEXTOID};

use crate::audit::chain::Chain;
use crate::audit::track::TRAIL;
use crate::identity;
use crate::postgres::catalog;
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::setting;
use crate::postgres::trigger::{Decision, Event, Returns, Trigger, Tuple};
use crate::postgres::value::{self, clock};

/// The columns of `audit_event`, in their order.
mod column {
    use pgrx::pg_sys::{INT8OID, JSONBOID, JSONOID, Oid, TEXTOID, TIMESTAMPTZOID};

    pub const TENANT: usize = 0;
    pub const STREAM: usize = 1;
    pub const SEQ: usize = 2;
    pub const EVENT_ID: usize = 3;
    pub const OCCURRED_AT: usize = 4;
    pub const RECORDED_AT: usize = 5;
    pub const ACTION: usize = 6;
    pub const ACTOR: usize = 7;
    pub const TARGET: usize = 8;
    pub const SESSION_ID: usize = 9;
    pub const STATUS: usize = 10;
    pub const ATTRS: usize = 11;
    pub const PAYLOAD: usize = 12;
    pub const FIELDS: usize = 13;
    pub const DATA: usize = 14;
    pub const PREV_HASH: usize = 15;
    pub const HASH: usize = 16;

    /// Their types.
    pub const TYPES: &[Oid] = &[
        TEXTOID,
        TEXTOID,
        INT8OID,
        TEXTOID,
        TIMESTAMPTZOID,
        TIMESTAMPTZOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        JSONBOID,
        JSONOID,
        JSONBOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
    ];
}
use column::*;

static PREDECESSOR: KeptPlan = KeptPlan::new(
    c"select e.hash from agent_sessions.audit_event e \
      where e.tenant operator(pg_catalog.=) $1 and e.stream operator(pg_catalog.=) $2 \
        and e.seq operator(pg_catalog.=) ($3 operator(pg_catalog.-) 1)",
    &[TEXTOID, TEXTOID, INT8OID],
);

static SAME_ID: KeptPlan = KeptPlan::new(
    c"select e.action, e.actor, e.target, e.session_id, e.status, e.data from agent_sessions.audit_event e \
      where e.tenant operator(pg_catalog.=) $1 and e.stream operator(pg_catalog.=) $2 \
        and e.event_id operator(pg_catalog.=) $3",
    &[TEXTOID, TEXTOID, TEXTOID],
);

static PRUNED: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.audit_chain c \
      where c.tenant operator(pg_catalog.=) $1 and c.stream operator(pg_catalog.=) $2 \
        and c.base_seq operator(pg_catalog.>=) $3",
    &[TEXTOID, TEXTOID, INT8OID],
);

/// Gives an event its place in the chain and the text that is hashed, or checks those that it brings.
pub fn on_audit_insert<'a>(trigger: &Trigger<'a>) -> Returns<'a> {
    let mut row = trigger.row(TYPES);
    if is_full(&row) && catalog::is_owner() {
        return restore(row);
    }
    let current = identity::tenant()?;
    if row.datum(TENANT).is_none() {
        row.set_text(TENANT, &current);
    }
    if row.datum(STREAM).is_none() {
        row.set_text(STREAM, "");
    }
    let (tenant, stream) = (row.text(TENANT).unwrap_or_default(), row.text(STREAM).unwrap_or_default());
    if tenant != current && catalog::is_bound_by_policies(trigger.relation()) {
        // The policy refuses it. Nothing of another tenant's is locked before.
        return Ok((Some(row), Decision::Write));
    }
    if row.datum(ACTOR).is_none() {
        row.set_text(ACTOR, &actor());
    }
    check(&row)?;
    let spi = Spi::connect();
    let chain = Chain::lock(&spi, tenant, stream);
    if is_replayed(&spi, &row)? {
        return Ok((None, Decision::Skip));
    }
    link(&mut row, &chain)?;
    Ok((Some(row), Decision::Write))
}

/// SE001 for the stream that the engine writes to, unless it is the owner who writes.
pub fn check_own_stream(stream: &str) -> Result<(), Error> {
    if stream == TRAIL && !catalog::is_owner() {
        return Err(Error::invalid("stream", "is the one that the engine writes to"));
    }
    Ok(())
}

/// Who acts when nobody is named.
pub fn actor() -> String {
    let actor = setting::actor();
    if actor.is_empty() { catalog::role_name(catalog::acting_user()) } else { actor }
}

/// Whether the row brings every column that the engine sets: an event of a restore, or one that was chained elsewhere.
fn is_full(row: &Tuple) -> bool {
    [TENANT, STREAM, SEQ, RECORDED_AT, DATA, PREV_HASH, HASH].iter().all(|&column| row.datum(column).is_some())
}

/// A full row of the owner's, in any order of tables: it has to follow from the event before, if that is there.
fn restore<'a>(row: Tuple<'a>) -> Returns<'a> {
    let text = |column| row.text(column).unwrap_or_default();
    let seq = row.int8(SEQ).unwrap_or_default();
    let mismatch = |column| Error::DigestMismatch { column, position: seq };
    if audit::hash(text(PREV_HASH), text(DATA)) != text(HASH) {
        return Err(mismatch("hash"));
    }
    let spi = Spi::connect();
    let before = PREDECESSOR.run(&spi, See::Now, &[row.datum(TENANT), row.datum(STREAM), row.datum(SEQ)]);
    let before = if seq == 1 { Some(GENESIS) } else { before.first().and_then(|before| before.text(0)) };
    if before.is_some_and(|before| before != text(PREV_HASH)) {
        return Err(mismatch("prev_hash"));
    }
    Ok((None, Decision::Write))
}

/// Names, sizes and times; before anything is locked.
fn check(row: &Tuple) -> Result<(), Error> {
    let text = |column| row.text(column);
    name::optional("tenant", text(TENANT).unwrap_or_default())?;
    name::optional("stream", text(STREAM).unwrap_or_default())?;
    check_own_stream(text(STREAM).unwrap_or_default())?;
    limit::index_entry("stream", &[TENANT, STREAM, EVENT_ID].map(|column| text(column).unwrap_or_default()))?;
    limit::index_entry("session_id", &[TENANT, SESSION_ID].map(|column| text(column).unwrap_or_default()))?;
    if text(ACTION).is_none() {
        return Err(Error::invalid("action", "must be given"));
    }
    let labels = [
        ("event_id", EVENT_ID),
        ("action", ACTION),
        ("actor", ACTOR),
        ("target", TARGET),
        ("session_id", SESSION_ID),
        ("status", STATUS),
    ];
    labels.into_iter().try_for_each(|(argument, column)| name::label(argument, text(column)))?;
    for column in [FIELDS, DATA] {
        if row.datum(column).is_some() {
            return Err(Error::invalid("data", "is built by the database"));
        }
    }
    limit::at_most("payload", value::size(row.datum(PAYLOAD)), limit::MAX_PAYLOAD_BYTES)?;
    limit::at_most("attrs", value::size(row.datum(ATTRS)), limit::MAX_PAYLOAD_BYTES)
}

/// Whether the event came before, by its event_id. SE021 if that was with another content; attrs and times may differ.
fn is_replayed(spi: &Spi, row: &Tuple) -> Result<bool, Error> {
    let Some(id) = row.text(EVENT_ID) else { return Ok(false) };
    let found = SAME_ID.run(spi, See::Latest, &[row.datum(TENANT), row.datum(STREAM), row.datum(EVENT_ID)]);
    let Some(stored) = found.first() else { return Ok(false) };
    let same =
        (0..).zip([ACTION, ACTOR, TARGET, SESSION_ID, STATUS]).all(|(at, column)| stored.text(at) == row.text(column))
            && stored.text(5).and_then(audit::payload) == Some(payload(row));
    if same { Ok(true) } else { Err(Error::DedupeConflict { key: id.to_owned() }) }
}

fn payload<'a>(row: &Tuple<'a>) -> &'a str {
    row.text(PAYLOAD).unwrap_or("null")
}

/// Fills in what the engine sets, and refuses what is given and differs (SE017).
fn link(row: &mut Tuple, chain: &Chain) -> Result<(), Error> {
    let seq = chain.next_seq;
    if row.int8(SEQ).is_some_and(|given| given != seq) {
        return Err(Error::DigestMismatch { column: "seq", position: seq });
    }
    row.set_int8(SEQ, seq);
    let now = clock();
    row.set_int8(RECORDED_AT, now);
    if row.datum(OCCURRED_AT).is_none() {
        row.set_int8(OCCURRED_AT, now);
    }
    let columns = Columns {
        tenant: row.text(TENANT).unwrap_or_default(),
        stream: row.text(STREAM).unwrap_or_default(),
        event_id: row.text(EVENT_ID),
        occurred_at: row.int8(OCCURRED_AT).unwrap_or_default(),
        recorded_at: now,
        action: row.text(ACTION).unwrap_or_default(),
        actor: row.text(ACTOR),
        target: row.text(TARGET),
        session_id: row.text(SESSION_ID),
        status: row.text(STATUS),
        attrs: row.jsonb_text(ATTRS),
    };
    let data = audit::data(seq, &columns, payload(row))
        .ok_or_else(|| Error::invalid("occurred_at", "must lie in the years 0 to 9999"))?;
    limit::at_most("payload", data.len(), limit::MAX_PAYLOAD_BYTES)?;
    row.clear(PAYLOAD);
    row.set_text(DATA, &data);
    demand(row, "prev_hash", PREV_HASH, &chain.prev_hash)?;
    demand(row, "hash", HASH, &audit::hash(&chain.prev_hash, &data))
}

/// Sets a hash, or refuses another one that the row brings.
fn demand(row: &mut Tuple, name: &'static str, column: usize, hash: &str) -> Result<(), Error> {
    match row.text(column) {
        Some(given) if given != hash => {
            Err(Error::DigestMismatch { column: name, position: row.int8(SEQ).unwrap_or_default() })
        }
        Some(_) => Ok(()),
        None => {
            row.set_text(column, hash);
            Ok(())
        }
    }
}

/// No event changes, and none goes unless audit_prune has moved the chain's base past it.
pub fn on_audit_change<'a>(trigger: &Trigger<'a>) -> Returns<'a> {
    if trigger.event() == Event::Delete {
        let row = trigger.row(TYPES);
        let spi = Spi::connect();
        let _owner = AsOwner::switch();
        if PRUNED.run(&spi, See::Latest, &[row.datum(TENANT), row.datum(STREAM), row.datum(SEQ)]).len() > 0 {
            return Ok((None, Decision::Write));
        }
    }
    Err(Error::AppendOnly {
        object: "audit_event",
        reason: "an event is never changed, and only removed by audit_prune",
    })
}
