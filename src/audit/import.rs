//! Importing events that were chained elsewhere by the same formula.

use std::collections::HashSet;

use agent_sessions_core::audit::{self, Fields, Line, MAPPED};
use agent_sessions_core::element;
use agent_sessions_core::error::Error;
use agent_sessions_core::timestamp;
use agent_sessions_core::{limit, name};
use pgrx::pg_sys::{Datum, INT8OID, JSONBOID, TEXTARRAYOID, TEXTOID, TIMESTAMPTZOID};

use crate::audit::append::check_stream;
use crate::audit::chain::Chain;
use crate::postgres::call::{Call, Returns};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::{self, Element, array, clock, text_datum};

static INSERT: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.audit_event (tenant, stream, seq, recorded_at, fields, data, prev_hash, hash, event_id, \
        occurred_at, action, actor, target, session_id, status, attrs) \
      values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)",
    &[
        TEXTOID,
        TEXTOID,
        INT8OID,
        TIMESTAMPTZOID,
        JSONBOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TIMESTAMPTZOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        JSONBOID,
    ],
);

static TAKEN: KeptPlan = KeptPlan::new(
    c"select e.event_id from pg_catalog.unnest($3) as u (event_id) \
      cross join lateral ( \
        select e.event_id from agent_sessions.audit_event e \
        where e.tenant operator(pg_catalog.=) $1 and e.stream operator(pg_catalog.=) $2 \
          and e.event_id operator(pg_catalog.=) u.event_id offset 0) e limit 1",
    &[TEXTOID, TEXTOID, TEXTARRAYOID],
);

pub fn audit_import(call: &mut Call) -> Returns {
    let stream = call.text().unwrap_or_default();
    let lines = call.json().ok_or_else(|| Error::invalid("lines", "must be given"))?;
    let fields = call.jsonb_text().unwrap_or("{}");
    let mapping = Fields::parse(fields)
        .ok_or_else(|| Error::invalid("fields", "must map columns to a key of data, or to an array of keys"))?;
    let fields = value::jsonb(fields).map_err(|reason| Error::invalid("fields", reason))?;
    let lines: Vec<Line> = element::parse_as("lines", lines.text)?;
    let tenant = check_stream(stream, None, None)?;
    let columns: Result<Vec<Columns>, Error> = lines
        .iter()
        .enumerate()
        .map(|(index, line)| Columns::of(&mapping, stream, line).map_err(|error| error.in_element(index)))
        .collect();
    let columns = columns?;
    if lines.is_empty() {
        return Ok(Some(Datum::from(0_i64)));
    }

    let spi = Spi::connect();
    let chain = Chain::lock(&spi, &tenant, stream);
    check_chain(&chain, &lines)?;
    // Lines of ours that come back to their place are what they were, no imports.
    let columns: Result<Vec<Columns>, Error> = (chain.next_seq..)
        .zip(lines.iter().zip(columns))
        .map(|(seq, (line, columns))| match audit::is_own(seq, &tenant, stream, &line.data) {
            true => Columns::own(seq, &tenant, stream, line),
            false => Ok(columns),
        })
        .collect();
    let columns = columns?;
    check_ids(&spi, &tenant, stream, &columns)?;
    let _owner = AsOwner::switch();
    let mut prev_hash = chain.prev_hash.as_str();
    for (seq, (line, columns)) in (chain.next_seq..).zip(lines.iter().zip(&columns)) {
        pgrx::check_for_interrupts!();
        // A connection each, which frees what a line leaves behind.
        let spi = Spi::connect();
        let chained = [
            Some(text_datum(&tenant)),
            Some(text_datum(stream)),
            Some(Datum::from(seq)),
            Some(Datum::from(columns.recorded_at.unwrap_or_else(clock))),
            if columns.recorded_at.is_some() { None } else { Some(fields) },
            Some(text_datum(&line.data)),
            Some(text_datum(prev_hash)),
            Some(text_datum(&line.hash)),
        ];
        INSERT.run(&spi, See::Now, &[&chained[..], &columns.datums()].concat());
        prev_hash = &line.hash;
    }
    Ok(Some(Datum::from(lines.len() as i64)))
}

/// SE021 for an event_id that the stream has already, or that comes twice.
fn check_ids(spi: &Spi, tenant: &str, stream: &str, columns: &[Columns]) -> Result<(), Error> {
    let ids: Vec<&str> = columns.iter().filter_map(Columns::event_id).collect();
    let mut seen = HashSet::new();
    let twice = ids.iter().find(|id| !seen.insert(**id)).map(|id| (*id).to_owned());
    let taken = || {
        let ids = array(Element::Text, &ids.iter().map(|id| Some(text_datum(id))).collect::<Vec<_>>());
        let taken = TAKEN.run(spi, See::Latest, &[Some(text_datum(tenant)), Some(text_datum(stream)), Some(ids)]);
        taken.first().and_then(|row| row.text(0)).map(str::to_owned)
    };
    match twice.or_else(taken) {
        Some(key) => Err(Error::DedupeConflict { key }),
        None => Ok(()),
    }
}

/// SE017 for the first line that does not follow from the one before.
fn check_chain(chain: &Chain, lines: &[Line]) -> Result<(), Error> {
    let mut prev_hash = chain.prev_hash.as_str();
    for (seq, line) in (chain.next_seq..).zip(lines) {
        pgrx::check_for_interrupts!();
        let mismatch = |column| Err(Error::DigestMismatch { column, position: seq });
        if line.seq.is_some_and(|given| given != seq) {
            return mismatch("seq");
        }
        if line.prev_hash.as_deref().is_some_and(|given| given != prev_hash) {
            return mismatch("prev_hash");
        }
        if audit::hash(prev_hash, &line.data) != line.hash {
            return mismatch("hash");
        }
        prev_hash = &line.hash;
    }
    Ok(())
}

/// What a line's text says of the columns.
struct Columns {
    values: [Option<String>; 8],
    attrs: Option<Datum>,
    /// Of a line that is one of ours.
    recorded_at: Option<i64>,
}

impl Columns {
    /// SE001 for a text that cannot be stored, or a value that its column cannot hold; SE018 for what is too long.
    fn of(fields: &Fields, stream: &str, line: &Line) -> Result<Columns, Error> {
        if line.data.contains('\0') {
            return Err(Error::invalid("data", "must not contain the character NUL"));
        }
        limit::at_most("data", line.data.len(), limit::MAX_PAYLOAD_BYTES)?;
        let values = fields.values(&line.data);
        let values = values.ok_or_else(|| Error::invalid("data", "is no JSON that fields could be taken from"))?;
        let mut attrs = None;
        for (column, value) in MAPPED.iter().zip(&values) {
            match (*column, value.as_deref()) {
                ("occurred_at", Some(at)) if timestamp::parse(at).is_none() => {
                    return Err(Error::invalid("occurred_at", "must be a time as RFC 3339 writes it"));
                }
                ("occurred_at", _) => {}
                ("attrs", value) => {
                    attrs = value.map(value::jsonb).transpose().map_err(|reason| Error::invalid("attrs", reason))?;
                }
                (column, label) => name::label(column, label)?,
            }
        }
        let columns = Columns { values, attrs, recorded_at: None };
        check_stream(stream, columns.event_id(), columns.values[SESSION_ID].as_deref())?;
        Ok(columns)
    }

    /// The columns of an event that was built for its place. SE017 if its text is not what such columns would make.
    fn own(seq: i64, tenant: &str, stream: &str, line: &Line) -> Result<Columns, Error> {
        let columns = Columns::of(&Fields::own(), stream, line)?;
        let [event_id, occurred_at, action, actor, target, session_id, status, _] =
            columns.values.each_ref().map(Option::as_deref);
        let recorded_at = audit::recorded_at(&line.data);
        let told = audit::Columns {
            tenant,
            stream,
            event_id,
            occurred_at: occurred_at.and_then(timestamp::parse).unwrap_or(i64::MAX),
            recorded_at: recorded_at.unwrap_or(i64::MAX),
            action: action.unwrap_or_default(),
            actor,
            target,
            session_id,
            status,
            // SAFETY: the datum was made as a jsonb.
            attrs: columns.attrs.map(|attrs| unsafe { value::jsonb_text(attrs) }),
        };
        if !audit::agrees(seq, &told, &line.data) {
            return Err(Error::DigestMismatch { column: "data", position: seq });
        }
        Ok(Columns { recorded_at, ..columns })
    }

    fn event_id(&self) -> Option<&str> {
        self.values[EVENT_ID].as_deref()
    }

    /// In the order of [`MAPPED`].
    fn datums(&self) -> Vec<Option<Datum>> {
        let datum = |(column, value): (&&str, &Option<String>)| match *column {
            "occurred_at" => value.as_deref().and_then(timestamp::parse).map(Datum::from),
            "attrs" => self.attrs,
            _ => value.as_deref().map(text_datum),
        };
        MAPPED.iter().zip(&self.values).map(datum).collect()
    }
}

/// Their places in [`MAPPED`].
const EVENT_ID: usize = 0;
const SESSION_ID: usize = 5;
