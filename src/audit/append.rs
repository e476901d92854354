//! Appending events: one, or a batch.

use agent_sessions_core::audit::{self, Element};
use agent_sessions_core::element;
use agent_sessions_core::error::Error;
use agent_sessions_core::timestamp;
use agent_sessions_core::{limit, name};
use pgrx::pg_sys::{Datum, JSONBOID, JSONOID, TEXTOID, TIMESTAMPTZOID};

use crate::audit::rule::check_own_stream;
use crate::draft;
use crate::identity;
use crate::postgres::call::{Call, Returns, Set};
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::raise;
use crate::postgres::value::{self, Json, text_datum};

static INSERT: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.audit_event (tenant, stream, action, payload, actor, target, session_id, status, attrs, \
        occurred_at, event_id) \
      values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) returning seq, hash",
    &[
        TEXTOID,
        TEXTOID,
        TEXTOID,
        JSONOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        JSONBOID,
        TIMESTAMPTZOID,
        TEXTOID,
    ],
);

static REPLAYED: KeptPlan = KeptPlan::new(
    c"select e.seq, e.hash from agent_sessions.audit_event e \
      where e.tenant operator(pg_catalog.=) $1 and e.stream operator(pg_catalog.=) $2 \
        and e.event_id operator(pg_catalog.=) $3",
    &[TEXTOID, TEXTOID, TEXTOID],
);

/// An event that is to be written, its names and sizes checked.
pub struct Event<'a> {
    pub action: &'a str,
    pub payload: Option<Json<'a>>,
    pub actor: Option<&'a str>,
    pub target: Option<&'a str>,
    pub session_id: Option<&'a str>,
    pub status: Option<&'a str>,
    pub attrs: Option<Datum>,
    pub occurred_at: Option<i64>,
    pub event_id: Option<&'a str>,
}

impl Event<'_> {
    pub fn of(action: &str) -> Event<'_> {
        Event {
            action,
            payload: None,
            actor: None,
            target: None,
            session_id: None,
            status: None,
            attrs: None,
            occurred_at: None,
            event_id: None,
        }
    }

    fn check(&self) -> Result<(), Error> {
        name::required("action", self.action)?;
        let labels = [
            ("actor", self.actor),
            ("target", self.target),
            ("session_id", self.session_id),
            ("status", self.status),
            ("event_id", self.event_id),
        ];
        labels.into_iter().try_for_each(|(argument, label)| name::label(argument, label))?;
        if let Some(payload) = self.payload {
            draft::check_size("payload", payload.text)?;
        }
        draft::check_attrs(self.attrs)?;
        if self.occurred_at.is_some_and(|at| timestamp::format(at).is_none()) {
            return Err(Error::invalid("occurred_at", "must lie in the years 0 to 9999"));
        }
        Ok(())
    }

    /// Inserts the event; the trigger does the rest. Its seq, its hash, and whether it came before.
    fn insert(&self, spi: &Spi, tenant: &str, stream: &str) -> [Option<Datum>; 3] {
        let [tenant, stream] = [tenant, stream].map(|text| Some(text_datum(text)));
        let [event_id, actor, target, session_id, status] =
            [self.event_id, self.actor, self.target, self.session_id, self.status].map(|text| text.map(text_datum));
        let inserted = INSERT.run(
            spi,
            See::Now,
            &[
                tenant,
                stream,
                Some(text_datum(self.action)),
                self.payload.map(|payload| payload.datum),
                actor,
                target,
                session_id,
                status,
                self.attrs,
                self.occurred_at.map(Datum::from),
                event_id,
            ],
        );
        if let Some(row) = inserted.first() {
            return [row.datum(0), row.datum(1), Some(text_datum("appended"))];
        }
        match REPLAYED.run(spi, See::Now, &[tenant, stream, event_id]).first() {
            Some(row) => [row.datum(0), row.datum(1), Some(text_datum("replayed"))],
            None => raise::row_was_dropped(),
        }
    }
}

pub fn audit_append(call: &mut Call) -> Returns {
    let action = call.text();
    let payload = call.json();
    let stream = call.text().unwrap_or_default();
    let actor = call.text();
    let target = call.text();
    let session_id = call.text();
    let status = call.text();
    let attrs = call.datum();
    let occurred_at = call.int8();
    let event_id = call.text();

    let action = action.ok_or_else(|| Error::invalid("action", "must be given"))?;
    let event = Event { action, payload, actor, target, session_id, status, attrs, occurred_at, event_id };
    event.check()?;
    let tenant = check_stream(stream, event_id, session_id)?;
    let mut set = call.set();
    put(&mut set, &[event], &tenant, stream);
    Ok(None)
}

pub fn audit_append_batch(call: &mut Call) -> Returns {
    let stream = call.text().unwrap_or_default();
    let events = call.json().ok_or_else(|| Error::invalid("events", "must be given"))?;
    let elements: Vec<Element> = element::parse_as("events", events.text)?;
    let tenant = check_stream(stream, None, None)?;
    let events: Result<Vec<Event>, Error> = elements
        .iter()
        .enumerate()
        .map(|(index, element)| from_element(stream, element).map_err(|error| error.in_element(index)))
        .collect();
    let events = events?;
    let mut set = call.set();
    put(&mut set, &events, &tenant, stream);
    Ok(None)
}

fn put(set: &mut Set, events: &[Event], tenant: &str, stream: &str) {
    for event in events {
        // A connection each, which frees what an event leaves behind.
        let spi = Spi::connect();
        set.put(&event.insert(&spi, tenant, stream));
    }
}

fn from_element<'a>(stream: &str, element: &'a Element<'a>) -> Result<Event<'a>, Error> {
    let attrs = element.attrs.map(|attrs| {
        draft::check_size("attrs", attrs.get())?;
        value::jsonb(attrs.get()).map_err(|reason| Error::invalid("attrs", reason))
    });
    let occurred_at = element.occurred_at.as_deref().map(|at| {
        timestamp::parse(at).ok_or_else(|| Error::invalid("occurred_at", "must be a time as RFC 3339 writes it"))
    });
    let event = Event {
        action: &element.action,
        payload: element.payload.map(|payload| Json::from_part(payload.get())),
        actor: element.actor.as_deref(),
        target: element.target.as_deref(),
        session_id: element.session_id.as_deref(),
        status: element.status.as_deref(),
        attrs: attrs.transpose()?,
        occurred_at: occurred_at.transpose()?,
        event_id: element.event_id.as_deref(),
    };
    event.check()?;
    check_stream(stream, event.event_id, event.session_id)?;
    Ok(event)
}

/// The tenant; SE001 for a malformed stream, SE018 if the names do not fit an index entry.
pub fn check_stream(stream: &str, event_id: Option<&str>, session_id: Option<&str>) -> Result<String, Error> {
    check_own_stream(stream)?;
    check_names(stream, event_id, session_id)
}

/// The same for who does not write there.
pub fn check_names(stream: &str, event_id: Option<&str>, session_id: Option<&str>) -> Result<String, Error> {
    name::optional("stream", stream)?;
    let tenant = identity::tenant()?;
    limit::index_entry("stream", &[&tenant, stream, event_id.unwrap_or_default()])?;
    limit::index_entry("session_id", &[&tenant, session_id.unwrap_or_default()])?;
    Ok(tenant)
}

/// Writes an event of the engine's own, as the owner: what is tracked does not depend on the caller's privileges.
pub fn write(spi: &Spi, tenant: &str, stream: &str, event: &Event) {
    event.insert(spi, tenant, stream);
}

pub fn audit_payload(call: &mut Call) -> Returns {
    Ok(call.text().and_then(audit::payload).map(text_datum))
}
