//! Verifying streams.

use agent_sessions_core::audit::{Columns, Event, Fields, GENESIS, MAPPED, Walk, is_own};
use agent_sessions_core::error::Error;
use agent_sessions_core::timestamp;
use pgrx::pg_sys::{Datum, INT8OID, TEXTOID};

use crate::draft;
use crate::identity;
use crate::postgres::call::{Call, Returns};
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::rows::Row;
use crate::postgres::value::{self, text_datum};

// A chain's row may be missing while a restore is under way, its events may be missing behind a base.
static STREAMS: KeptPlan = KeptPlan::new(
    c"select c.stream from agent_sessions.audit_chain c where c.tenant operator(pg_catalog.=) $1 \
        and ($2 is null or c.stream operator(pg_catalog.=) $2) \
      union \
      select e.stream from agent_sessions.audit_event e where e.tenant operator(pg_catalog.=) $1 \
        and ($2 is null or e.stream operator(pg_catalog.=) $2) \
      order by 1",
    &[TEXTOID, TEXTOID],
);

static BASE: KeptPlan = KeptPlan::new(
    c"select c.base_seq, c.base_hash from agent_sessions.audit_chain c \
      where c.tenant operator(pg_catalog.=) $1 and c.stream operator(pg_catalog.=) $2",
    &[TEXTOID, TEXTOID],
);

static HASH_AT: KeptPlan = KeptPlan::new(
    c"select e.hash from agent_sessions.audit_event e \
      where e.tenant operator(pg_catalog.=) $1 and e.stream operator(pg_catalog.=) $2 and e.seq operator(pg_catalog.=) $3",
    &[TEXTOID, TEXTOID, INT8OID],
);

static BELOW_BASE: KeptPlan = KeptPlan::new(
    c"select e.seq from agent_sessions.audit_event e \
      where e.tenant operator(pg_catalog.=) $1 and e.stream operator(pg_catalog.=) $2 and e.seq operator(pg_catalog.<=) $3 \
      order by e.seq limit 1",
    &[TEXTOID, TEXTOID, INT8OID],
);

static EVENTS: KeptPlan = KeptPlan::new(
    c"select e.seq, e.prev_hash, e.hash, e.data, e.tenant, e.stream, e.event_id, e.occurred_at, e.recorded_at, e.action, \
        e.actor, e.target, e.session_id, e.status, e.attrs, e.fields \
      from agent_sessions.audit_event e \
      where e.tenant operator(pg_catalog.=) $1 and e.stream operator(pg_catalog.=) $2 \
        and e.seq operator(pg_catalog.>=) $3 order by e.seq",
    &[TEXTOID, TEXTOID, INT8OID],
);

/// Where EVENTS has the columns of [`MAPPED`].
const PLACES: [usize; 8] = [6, 7, 9, 10, 11, 12, 13, 14];

/// A head that was kept elsewhere.
#[derive(Clone, Copy)]
struct Head<'a> {
    seq: Option<i64>,
    hash: Option<&'a str>,
}

struct Verdict {
    entries: i64,
    pruned: i64,
    fault: Option<(i64, &'static str)>,
}

pub fn audit_verify(call: &mut Call) -> Returns {
    let stream = call.text();
    let from_seq = call.int8();
    let head = Head { seq: call.int8(), hash: call.text() };
    let tenant = call.text();
    draft::position("from_seq", from_seq)?;
    draft::position("head_seq", head.seq)?;
    if stream.is_none() && (from_seq.is_some() || head.seq.is_some() || head.hash.is_some()) {
        return Err(Error::invalid("stream", "must be given with from_seq, head_seq or head_hash"));
    }
    let tenant = tenant.map_or_else(identity::tenant, |tenant| Ok(tenant.to_owned()))?;
    let mut set = call.set();

    let spi = Spi::connect();
    let streams = STREAMS.run(&spi, See::Caller, &[Some(text_datum(&tenant)), stream.map(text_datum)]);
    let mut streams: Vec<&str> = streams.iter().filter_map(|row| row.text(0)).collect();
    if streams.is_empty() && (head.seq.is_some() || head.hash.is_some()) {
        // A head that was kept is missed even if all of the stream is gone.
        streams.extend(stream);
    }
    for stream in streams {
        // A connection each, which frees what a stream leaves behind.
        let spi = Spi::connect();
        let verdict = verify(&spi, &tenant, stream, from_seq, head);
        set.put(&[
            Some(text_datum(stream)),
            Some(Datum::from(verdict.entries)),
            Some(Datum::from(verdict.pruned)),
            Some(Datum::from(verdict.fault.is_none())),
            verdict.fault.map(|(seq, _)| Datum::from(seq)),
            verdict.fault.map(|(_, reason)| text_datum(reason)),
        ]);
    }
    Ok(None)
}

fn verify(spi: &Spi, tenant: &str, stream: &str, from_seq: Option<i64>, head: Head) -> Verdict {
    let name = [Some(text_datum(tenant)), Some(text_datum(stream))];
    let base = BASE.run(spi, See::Caller, &name);
    let base = base.first().and_then(|row| Some((row.int8(0)?, row.text(1).unwrap_or(GENESIS).to_owned())));
    let (pruned, base_hash) = base.unwrap_or((0, GENESIS.to_owned()));
    let first = from_seq.unwrap_or(1).max(pruned + 1);
    let [tenant, stream] = name;
    let before = if first == pruned + 1 {
        Some(base_hash)
    } else {
        let before = HASH_AT.run(spi, See::Caller, &[tenant, stream, Some(Datum::from(first - 1))]);
        before.first().and_then(|row| row.text(0)).map(str::to_owned)
    };
    let Some(before) = before else {
        return Verdict { entries: 0, pruned, fault: Some((first - 1, "the event is missing")) };
    };

    let mut walk = Walk::from(first, &before);
    // A head before what is walked is only looked up.
    let earlier = |seq: i64| HASH_AT.run(spi, See::Caller, &[tenant, stream, Some(Datum::from(seq))]);
    let is_earlier =
        |seq: i64| seq < first && earlier(seq).iter().any(|row| is_head(head, seq, row.text(0).unwrap_or_default()));
    let mut is_head_found = is_head(head, first - 1, &before) || head.seq.is_some_and(is_earlier);
    EVENTS.stream(spi, &[tenant, stream, Some(Datum::from(first))], |row| {
        let event = event(row);
        walk.step(&event);
        is_head_found |= is_head(head, event.seq, event.hash);
    });
    let wants_head = head.seq.is_some() || head.hash.is_some();
    let (last, _) = walk.head();
    let lost = head.seq.map_or(last + 1, |seq| seq.min(last + 1));
    let below = BELOW_BASE.run(spi, See::Caller, &[tenant, stream, Some(Datum::from(pruned))]);
    let below = below.first().and_then(|row| row.int8(0)).map(|seq| (seq, "the event stands below the base"));
    let fault = below
        .or(walk.fault())
        .or((wants_head && !is_head_found).then_some((lost, "the given head is not in the chain")));
    Verdict { entries: walk.entries(), pruned, fault }
}

fn is_head(head: Head, seq: i64, hash: &str) -> bool {
    head.seq.is_none_or(|wanted| wanted == seq) && head.hash.is_none_or(|wanted| wanted == hash)
}

fn event(row: Row<'_>) -> Event<'_> {
    let data = row.text(3).unwrap_or_default();
    let columns = Columns {
        tenant: row.text(4).unwrap_or_default(),
        stream: row.text(5).unwrap_or_default(),
        event_id: row.text(6),
        occurred_at: row.int8(7).unwrap_or_default(),
        recorded_at: row.int8(8).unwrap_or_default(),
        action: row.text(9).unwrap_or_default(),
        actor: row.text(10),
        target: row.text(11),
        session_id: row.text(12),
        status: row.text(13),
        attrs: row.jsonb_text(14),
    };
    Event {
        seq: row.int8(0).unwrap_or_default(),
        prev_hash: row.text(1).unwrap_or_default(),
        hash: row.text(2).unwrap_or_default(),
        data,
        columns: match row.jsonb_text(15) {
            None => Ok(columns),
            // The mark is in no hash: what was built for this very place is no import.
            Some(_) if is_own(row.int8(0).unwrap_or_default(), columns.tenant, columns.stream, data) => Err(false),
            Some(fields) => Err(Fields::parse(fields).is_some_and(|fields| agrees(&fields, data, row))),
        },
    }
}

/// Whether an imported event's columns are those that its text has where the fields say.
fn agrees(fields: &Fields, data: &str, row: Row) -> bool {
    let Some(values) = fields.values(data) else { return false };
    MAPPED.iter().zip(PLACES).zip(values).all(|((column, place), value)| match *column {
        "occurred_at" => value.as_deref().and_then(timestamp::parse) == row.int8(place),
        "attrs" => match value.as_deref().map(value::jsonb).transpose() {
            // SAFETY: the datum has just been made as a jsonb.
            Ok(attrs) => attrs.map(|attrs| unsafe { value::jsonb_text(attrs) }) == row.jsonb_text(place),
            Err(_) => false,
        },
        _ => value.as_deref() == row.text(place),
    })
}
