//! Importing events that were chained elsewhere by the same formula.

use agent_sessions_core::audit::{self, Fields, Line, MAPPED};
use agent_sessions_core::element;
use agent_sessions_core::error::Error;
use agent_sessions_core::timestamp;
use agent_sessions_core::{limit, name};
use pgrx::pg_sys::{Datum, INT8OID, JSONBOID, TEXTOID, TIMESTAMPTZOID};

use crate::audit::append::check_stream;
use crate::audit::chain::Chain;
use crate::postgres::call::{Call, Returns};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::{self, clock, text_datum};

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

pub fn audit_import(call: &mut Call) -> Returns {
    let stream = call.text().unwrap_or_default();
    let lines = call.json().ok_or_else(|| Error::invalid("lines", "must be given"))?;
    let fields = call.jsonb_text().unwrap_or("{}");
    let mapping = Fields::parse(fields)
        .ok_or_else(|| Error::invalid("fields", "must map columns to a key of data, or to an array of keys"))?;
    let lines: Vec<Line> = element::parse_as("lines", lines.text)?;
    let columns: Result<Vec<_>, Error> = lines
        .iter()
        .enumerate()
        .map(|(index, line)| columns(&mapping, line).map_err(|error| error.in_element(index)))
        .collect();
    let columns = columns?;
    let tenant = check_stream(stream, None)?;

    let spi = Spi::connect();
    let chain = Chain::lock(&spi, &tenant, stream);
    check_chain(&chain, &lines)?;
    let fields = value::jsonb(fields).map_err(|reason| Error::invalid("fields", reason))?;
    let _owner = AsOwner::switch();
    let mut prev_hash = chain.prev_hash.as_str();
    for (seq, (line, columns)) in (chain.next_seq..).zip(lines.iter().zip(&columns)) {
        pgrx::check_for_interrupts!();
        let spi = Spi::connect();
        let chained = [
            Some(text_datum(&tenant)),
            Some(text_datum(stream)),
            Some(Datum::from(seq)),
            Some(Datum::from(clock())),
            Some(fields),
            Some(text_datum(&line.data)),
            Some(text_datum(prev_hash)),
            Some(text_datum(&line.hash)),
        ];
        let columns: Result<Vec<_>, Error> =
            MAPPED.iter().zip(columns).map(|(column, value)| as_datum(column, value.as_deref())).collect();
        INSERT.run(&spi, See::Now, &[&chained, &columns?[..]].concat());
        prev_hash = &line.hash;
    }
    Ok(Some(Datum::from(lines.len() as i64)))
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

/// What a line's text says of the columns. SE001 for a text that cannot be stored, or a value that its column cannot hold.
fn columns(fields: &Fields, line: &Line) -> Result<[Option<String>; 8], Error> {
    if line.data.contains('\0') {
        return Err(Error::invalid("data", "must not contain the character NUL"));
    }
    limit::at_most("data", line.data.len(), limit::MAX_PAYLOAD_BYTES)?;
    let values = fields
        .values(&line.data)
        .ok_or_else(|| Error::invalid("data", "is no JSON that fields could be taken from"))?;
    for (column, value) in MAPPED.iter().zip(&values) {
        match (*column, value) {
            ("occurred_at", Some(at)) if timestamp::parse(at).is_none() => {
                return Err(Error::invalid("occurred_at", "must be a time as RFC 3339 writes it"));
            }
            ("occurred_at" | "attrs", _) => {}
            (column, label) => name::label(column, label.as_deref())?,
        }
    }
    Ok(values)
}

fn as_datum(column: &str, value: Option<&str>) -> Result<Option<Datum>, Error> {
    let Some(value) = value else { return Ok(None) };
    match column {
        "occurred_at" => Ok(timestamp::parse(value).map(Datum::from)),
        "attrs" => value::jsonb(value).map(Some).map_err(|reason| Error::invalid("attrs", reason)),
        _ => Ok(Some(text_datum(value))),
    }
}
