//! Importing a session: verified line by line, then written as it was, and marked as imported.
//!
//! The engine writes as the owner, since no writer may set times and digests. So nothing is taken on trust: the lines are
//! checked before the first row, and the trigger links every entry once more.

use agent_sessions_core::archive::{Check, Checked, Chunk, Entry, Hex, Line, Text, Time};
use agent_sessions_core::digest::hex;
use agent_sessions_core::error::Error;
use agent_sessions_core::word::Op;
use agent_sessions_core::{element, limit};
use pgrx::PgMemoryContexts;
use pgrx::pg_sys::{
    BYTEAARRAYOID, BYTEAOID, Datum, INT4ARRAYOID, INT8ARRAYOID, INT8OID, JSONARRAYOID, JSONBARRAYOID, JSONBOID,
    JSONOID, NUMERICOID, TEXTARRAYOID, TEXTOID, TIMESTAMPTZARRAYOID, TIMESTAMPTZOID, UUIDARRAYOID,
};

use crate::address::Address;
use crate::audit::track::{self, Deed, What};
use crate::draft;
use crate::handoff::{Handoff, Offer};
use crate::head::{self, Head};
use crate::identity;
use crate::postgres::call::{Call, Returns};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::raise;
use crate::postgres::value::{self, Element, array, bytes_datum, clock, text_datum, uuid_datum};
use crate::session;
use crate::session_rule::check_cost;
use crate::tail::Tail;

// A sub-session hangs below its parent again, if that is there for the caller.
static PARENT: KeptPlan = KeptPlan::new(
    c"select s.sid from agent_sessions.session s \
      where s.tenant operator(pg_catalog.=) $1 and s.agent_id operator(pg_catalog.=) $2 \
        and s.session_id operator(pg_catalog.=) $3 and s.deleted_at is null for key share",
    &[TEXTOID, TEXTOID, TEXTOID],
);

static CREATE: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.session (tenant, agent_id, session_id, created_at, parent_sid, owner, origin, title, status, \
        metadata, state, revision, input_tokens, output_tokens, cost, lease_fence, closed_at, expires_at, fork_position, \
        fork_digest, base_position, base_digest, active_at, updated_at) \
      values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $23) \
      on conflict (tenant, agent_id, session_id) where deleted_at is null do nothing returning sid",
    &[
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TIMESTAMPTZOID,
        INT8OID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        JSONBOID,
        JSONOID,
        INT8OID,
        INT8OID,
        INT8OID,
        NUMERICOID,
        INT8OID,
        TIMESTAMPTZOID,
        TIMESTAMPTZOID,
        INT8OID,
        BYTEAOID,
        INT8OID,
        BYTEAOID,
        TIMESTAMPTZOID,
    ],
);

static RESTORE: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.session_item (sid, imported_at, position, op, kind, item_id, tag, author, target, payload, \
        attrs, salt, content_digest, digest, created_at) \
      select $1, $2, e.position, e.op, e.kind, e.item_id, e.tag, e.author, e.target, e.payload, e.attrs, e.salt, \
        e.content_digest, e.digest, e.created_at \
      from rows from (pg_catalog.unnest($3), pg_catalog.unnest($4), pg_catalog.unnest($5), pg_catalog.unnest($6), \
                      pg_catalog.unnest($7), pg_catalog.unnest($8), pg_catalog.unnest($9), pg_catalog.unnest($10), \
                      pg_catalog.unnest($11), pg_catalog.unnest($12), pg_catalog.unnest($13), pg_catalog.unnest($14), \
                      pg_catalog.unnest($15)) \
        as e (position, op, kind, item_id, tag, author, target, payload, attrs, salt, content_digest, digest, created_at)",
    &[
        INT8OID,
        TIMESTAMPTZOID,
        INT8ARRAYOID,
        TEXTARRAYOID,
        TEXTARRAYOID,
        TEXTARRAYOID,
        TEXTARRAYOID,
        TEXTARRAYOID,
        INT8ARRAYOID,
        JSONARRAYOID,
        JSONBARRAYOID,
        UUIDARRAYOID,
        BYTEAARRAYOID,
        BYTEAARRAYOID,
        TIMESTAMPTZARRAYOID,
    ],
);

static RESTORE_CHUNKS: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.session_delta (sid, tenant, agent_id, target, chunk_no, chunk) \
      select $1, $2, $3, c.target, c.chunk_no, c.chunk \
      from rows from (pg_catalog.unnest($4), pg_catalog.unnest($5), pg_catalog.unnest($6)) as c (target, chunk_no, chunk)",
    &[INT8OID, TEXTOID, TEXTOID, INT8ARRAYOID, INT4ARRAYOID, TEXTARRAYOID],
);

/// What is written at once: so many lines, or fewer of so many bytes.
const LINES_AT_ONCE: usize = 1_000;
const BYTES_AT_ONCE: usize = 8 << 20;

pub fn session_import(call: &mut Call) -> Returns {
    let lines = call.json().ok_or_else(|| Error::invalid("lines", "must be given"))?;
    let session_id = call.text();
    let agent_id = call.text();
    let mut set = call.set();

    let lines = element::split::<{ limit::ARCHIVE_LINES }>("lines", lines.text)?;
    let lines: Vec<&str> = lines.into_iter().map(|line| line.get()).collect();
    let checked = check(&lines)?;
    let told = &checked.session;
    let address = Address::resolve(session_id.or(told.session_id.as_deref()), agent_id.or(told.agent_id.as_deref()))?;
    if identity::isolated().is_some_and(|visible| visible != address.agent_id) {
        raise::outside_of_policy();
    }
    let spi = Spi::connect();
    let import = Import::of(&checked, &address, clock());
    let sid = import.create(&spi)?;
    import.write(&spi, sid, &lines)?;
    import.note(&spi);
    session::show(&spi, &address, &mut set);
    Ok(None)
}

/// The line at a place, naming it in what is wrong with it.
fn parsed(lines: &[&str], index: usize) -> Result<Line<'static>, Error> {
    Line::parse(lines[index]).map_err(|error| Error::invalid("lines", error.to_string()).in_element(index))
}

/// Reads the lines, one by one, for what is wrong with them.
fn check(lines: &[&str]) -> Result<Checked, Error> {
    let mut check = Check::default();
    let mut memory = PgMemoryContexts::new("agent_sessions line");
    for index in 0..lines.len() {
        pgrx::check_for_interrupts!();
        let line = parsed(lines, index)?;
        // SAFETY: nothing that the context holds is used after the line was looked at.
        unsafe {
            memory.switch_to(|_| check_values(&line)).map_err(|error| error.in_element(index))?;
            memory.reset();
        }
        check.take(line).map_err(|error| error.in_element(index))?;
    }
    check.finish()
}

/// SE001 and SE018 for what the database's types do not take.
fn check_values(line: &Line) -> Result<(), Error> {
    let json = |argument, text: &Option<Text>| match text {
        None => Ok(()),
        Some(text) => {
            draft::check_size(argument, text)?;
            value::json(text).map(drop).map_err(|reason| Error::invalid(argument, reason))
        }
    };
    match line {
        Line::Session(session) => {
            json("state", &session.state)?;
            draft::check_size("metadata", session.metadata.as_deref().unwrap_or_default())?;
            jsonb("metadata", &session.metadata)?;
            check_cost(cost(&session.cost)?)
        }
        Line::Entry(entry) | Line::Explanation(entry) => {
            json("payload", &entry.payload)?;
            draft::check_size("attrs", entry.attrs.as_deref().unwrap_or_default())?;
            jsonb("attrs", &entry.attrs).map(drop)
        }
        Line::Chunk(chunk) => draft::check_size("chunk", &chunk.chunk),
        Line::Ancestor(_) | Line::End(_) => Ok(()),
    }
}

fn jsonb(argument: &'static str, text: &Option<Text>) -> Result<Option<Datum>, Error> {
    text.as_deref().map(value::jsonb).transpose().map_err(|reason| Error::invalid(argument, reason))
}

fn cost(text: &Option<Text>) -> Result<Option<Datum>, Error> {
    text.as_deref().map(value::numeric).transpose().map_err(|reason| Error::invalid("cost", reason))
}

fn text(text: &Option<Text>) -> Option<Datum> {
    text.as_deref().map(text_datum)
}

fn time(time: Option<Time>) -> Option<Datum> {
    time.map(|time| Datum::from(time.0))
}

fn bytes<const N: usize>(bytes: Option<Hex<N>>) -> Option<Datum> {
    bytes.map(|bytes| bytes_datum(&bytes.0))
}

/// What was checked, and where it goes.
struct Import<'a> {
    checked: &'a Checked,
    address: &'a Address,
    now: i64,
    /// Whether the session is the one that was exported, so that its own entries keep their digests.
    is_same: bool,
}

impl<'a> Import<'a> {
    fn of(checked: &'a Checked, address: &'a Address, now: i64) -> Import<'a> {
        let Address { tenant, agent_id, session_id } = address;
        let told = &checked.session;
        let is_same = !checked.is_plain()
            && told.tenant.as_deref() == Some(tenant)
            && told.agent_id.as_deref() == Some(agent_id)
            && told.session_id.as_deref() == Some(session_id);
        Import { checked, address, now, is_same }
    }

    /// Makes the session's row. SE003 if there is one.
    fn create(&self, spi: &Spi) -> Result<i64, Error> {
        let told = &self.checked.session;
        let parent = told.parent_session_id.as_deref().and_then(|session_id| {
            let agent_id = told.parent_agent_id.as_deref().unwrap_or(&self.address.agent_id);
            let parent = [&self.address.tenant, agent_id, session_id].map(|text| Some(text_datum(text)));
            PARENT.run(spi, See::Now, &parent).first().and_then(|row| row.int8(0))
        });
        let is_closed = told.status.as_deref() == Some("closed");
        // Chained anew, the log has one genesis, and no joint.
        let (fork_position, fork_digest) =
            if self.is_same { (told.fork_position, told.fork_digest) } else { (None, None) };
        let [tenant, agent_id, session_id] = self.address.parameters();
        let row = [
            tenant,
            agent_id,
            session_id,
            Some(time(told.created_at).unwrap_or(Datum::from(self.now))),
            parent.map(Datum::from),
            text(&told.owner),
            text(&told.origin),
            text(&told.title),
            text(&told.status),
            jsonb("metadata", &told.metadata)?,
            text(&told.state),
            Some(Datum::from(told.revision.unwrap_or(0))),
            told.input_tokens.map(Datum::from),
            told.output_tokens.map(Datum::from),
            cost(&told.cost)?,
            Some(Datum::from(told.lease_fence.unwrap_or(0))),
            time(told.closed_at).or(is_closed.then(|| Datum::from(self.now))),
            time(told.expires_at),
            fork_position.map(Datum::from),
            bytes(fork_digest),
            Some(Datum::from(self.checked.base.map_or(0, |(position, _)| position))),
            self.checked.base.map(|(_, digest)| bytes_datum(&digest)),
            Some(Datum::from(self.now)),
        ];
        let _owner = AsOwner::switch();
        let created = CREATE.run(spi, See::Now, &row).first().and_then(|row| row.int8(0));
        created.ok_or_else(|| Error::SessionExists {
            session_id: self.address.session_id.clone(),
            agent_id: self.address.agent_id.clone(),
        })
    }

    /// Writes the log and the chunks, as the owner.
    fn write(&self, spi: &Spi, sid: i64, lines: &[&str]) -> Result<(), Error> {
        let _owner = AsOwner::switch();
        let head = Head::lock_by_sid(spi, sid).ok_or_else(|| head::unknown(sid))?;
        let mut batch = Batch { import: self, head: &head, entries: Vec::new(), chunks: Vec::new(), bytes: 0 };
        for index in 0..lines.len() {
            pgrx::check_for_interrupts!();
            let size = lines[index].len();
            match parsed(lines, index)? {
                Line::Entry(entry) => batch.add_entry(entry, size)?,
                Line::Chunk(chunk) => batch.add_chunk(chunk, size)?,
                _ => {}
            }
        }
        // A joint may stand right behind what was written.
        batch.flush()?;
        // What the ancestors' logs tell of what is missing has to stand in the session's own, as after a flattening.
        for Entry { op, target, payload, .. } in self.checked.explanations.iter().cloned() {
            batch.add_entry(Entry { op, target, payload, ..Entry::default() }, 0)?;
        }
        batch.flush()
    }

    fn note(&self, spi: &Spi) {
        let Address { tenant, agent_id, session_id } = self.address;
        let told = &self.checked.session;
        let payload = serde_json::json!({
            "next_position": self.checked.next_position,
            "digest": self.checked.digest.map(|digest| hex(&digest)),
            "tenant": told.tenant,
            "agent_id": told.agent_id,
            "session_id": told.session_id,
        });
        let deed = Deed { what: What::Import, action: "session_import", tenant, agent_id, session_id, payload };
        track::note(spi, &deed);
    }
}

/// Rows that are written by one statement.
struct Batch<'a> {
    import: &'a Import<'a>,
    head: &'a Head,
    entries: Vec<Entry<'static>>,
    chunks: Vec<Chunk<'static>>,
    bytes: usize,
}

impl Batch<'_> {
    fn add_entry(&mut self, entry: Entry<'static>, size: usize) -> Result<(), Error> {
        // What stands behind a joint links to something else than the entry before.
        if entry.position.is_some() && entry.position == self.head.origin.fork_position {
            self.flush()?;
        }
        self.entries.push(entry);
        self.count(size)
    }

    fn add_chunk(&mut self, chunk: Chunk<'static>, size: usize) -> Result<(), Error> {
        self.chunks.push(chunk);
        self.count(size)
    }

    fn count(&mut self, size: usize) -> Result<(), Error> {
        self.bytes += size;
        if self.entries.len() + self.chunks.len() >= LINES_AT_ONCE || self.bytes >= BYTES_AT_ONCE {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        // A connection of its own, which frees what the rows leave behind.
        let spi = Spi::connect();
        if !self.entries.is_empty() {
            self.write_entries(&spi)?;
        }
        if !self.chunks.is_empty() {
            self.write_chunks(&spi);
        }
        self.entries.clear();
        self.chunks.clear();
        self.bytes = 0;
        Ok(())
    }

    fn write_entries(&self, spi: &Spi) -> Result<(), Error> {
        let head = self.head;
        let tail = Tail::of(spi, head, None).ok_or_else(|| head::unknown(head.sid))?;
        let offer =
            Offer::make(Handoff { sid: head.sid, tenant: head.tenant.clone(), agent_id: head.agent_id.clone(), tail });
        let positions: Vec<_> =
            (tail.next_position..).take(self.entries.len()).map(|position| Some(Datum::from(position))).collect();
        let attrs: Result<Vec<_>, Error> = self.entries.iter().map(|entry| jsonb("attrs", &entry.attrs)).collect();
        let column = |element, value: &dyn Fn(&Entry) -> Option<Datum>| {
            Some(array(element, &self.entries.iter().map(value).collect::<Vec<_>>()))
        };
        let import = self.import;
        let keeps = |entry: &Entry| import.is_same && entry.position.is_some_and(|at| at >= import.checked.own_from);
        let written = RESTORE.run(
            spi,
            See::Now,
            &[
                Some(Datum::from(head.sid)),
                Some(Datum::from(import.now)),
                Some(array(Element::Int8, &positions)),
                column(Element::Text, &|entry| Some(text_datum(entry.op.as_deref().unwrap_or(Op::Append.as_str())))),
                column(Element::Text, &|entry| text(&entry.kind).or_else(|| default_kind(entry))),
                column(Element::Text, &|entry| text(&entry.item_id)),
                column(Element::Text, &|entry| text(&entry.tag)),
                column(Element::Text, &|entry| text(&entry.author)),
                column(Element::Int8, &|entry| entry.target.map(Datum::from)),
                column(Element::Json, &|entry| text(&entry.payload)),
                Some(array(Element::Jsonb, &attrs?)),
                column(Element::Uuid, &|entry| entry.salt.map(|salt| uuid_datum(salt.0))),
                column(Element::Bytes, &|entry| bytes(entry.content_digest)),
                column(Element::Bytes, &|entry| bytes(entry.digest.filter(|_| keeps(entry)))),
                column(Element::Time, &|entry| time(entry.created_at)),
            ],
        );
        drop(offer);
        if written.len() != self.entries.len() {
            raise::row_was_dropped();
        }
        Ok(())
    }

    fn write_chunks(&self, spi: &Spi) {
        let head = self.head;
        let column = |element, value: &dyn Fn(&Chunk) -> Datum| {
            Some(array(element, &self.chunks.iter().map(|chunk| Some(value(chunk))).collect::<Vec<_>>()))
        };
        RESTORE_CHUNKS.run(
            spi,
            See::Now,
            &[
                Some(Datum::from(head.sid)),
                Some(text_datum(&head.tenant)),
                Some(text_datum(&head.agent_id)),
                column(Element::Int8, &|chunk| Datum::from(chunk.target)),
                column(Element::Int4, &|chunk| Datum::from(chunk.chunk_no)),
                column(Element::Text, &|chunk| text_datum(&chunk.chunk)),
            ],
        );
    }
}

/// The kind of an item of another store that names none.
fn default_kind(entry: &Entry) -> Option<Datum> {
    entry.op.as_deref().is_none_or(|op| op == Op::Append.as_str()).then(|| text_datum("message"))
}
