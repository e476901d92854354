//! Exporting a session: its row and its log as lines, which stand alone.

use agent_sessions_core::archive::{Ancestor, Chunk, Entry, Format, Hex, Line, Session, Sum, Text, Time};
use pgrx::pg_sys::{Datum, INT8OID};

use crate::address;
use crate::identity;
use crate::lineage::{Lineage, Stretch};
use crate::postgres::call::{Call, Returns, Set};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::raise;
use crate::postgres::rows::Row;
use crate::postgres::value::{self, text_datum};
use crate::verify;

static HEAD: KeptPlan = KeptPlan::new(
    c"select s.tenant, s.agent_id, s.session_id, s.created_at, p.agent_id, p.session_id, s.owner, s.origin, s.title, s.status, \
        s.metadata, s.state, s.revision, s.input_tokens, s.output_tokens, s.cost::pg_catalog.text, s.lease_fence, s.closed_at, \
        s.expires_at, s.fork_position, s.fork_digest, \
        case when s.base_position operator(pg_catalog.>) 0 then s.base_position end, s.base_digest \
      from agent_sessions.session s \
      left join agent_sessions.session p on p.sid operator(pg_catalog.=) s.parent_sid and p.deleted_at is null \
      where s.sid operator(pg_catalog.=) $1",
    &[INT8OID],
);

static ANCESTOR: KeptPlan = KeptPlan::new(
    c"select s.agent_id, s.session_id, s.created_at, s.fork_position, s.fork_digest, \
        case when s.base_position operator(pg_catalog.>) 0 then s.base_position end, s.base_digest \
      from agent_sessions.session s where s.sid operator(pg_catalog.=) $1",
    &[INT8OID],
);

static CHUNKS: KeptPlan = KeptPlan::new(
    c"select d.target, d.chunk_no, d.chunk from agent_sessions.session_delta d \
      where d.sid operator(pg_catalog.=) $1 order by d.target, d.chunk_no",
    &[INT8OID],
);

pub fn session_export(call: &mut Call) -> Returns {
    let session_id = call.text();
    let agent_id = call.text();
    let tenant = call.text();
    let address = address::of_reader(session_id, agent_id, tenant)?;
    let set = call.set_of_values();

    let spi = Spi::connect();
    let Some(lineage) = Lineage::find(&spi, See::Caller, &address) else { return Ok(None) };
    let own = lineage.own();
    let visible = identity::isolated();
    let mut lines = Lines { set, sum: Sum::default() };
    HEAD.stream(&spi, &[Some(Datum::from(own.sid))], |row| lines.put(&Line::Session(Box::new(session(row)))));
    for stretch in lineage.inherited() {
        let _owner = AsOwner::switch();
        ANCESTOR.stream(&spi, &[Some(Datum::from(stretch.sid))], |row| {
            // The chain stands on the ancestor's names, which isolation keeps from others.
            if visible.as_deref().is_some_and(|visible| row.text(0) != Some(visible)) {
                raise::outside_of_policy();
            }
            lines.put(&Line::Ancestor(ancestor(row)));
        });
        lines.entries(&spi, stretch);
        let bounds = [stretch.sid, stretch.until].map(|bound| Some(Datum::from(bound)));
        verify::EXPLANATIONS.stream(&spi, &bounds, |row| {
            lines.put(&Line::Explanation(Entry::from(&verify::entry(row))));
        });
    }
    lines.entries(&spi, &own);
    CHUNKS.stream(&spi, &[Some(Datum::from(own.sid))], |row| lines.put(&Line::Chunk(chunk(row))));
    lines.end();
    Ok(None)
}

/// The lines that are put out, and what they come to.
struct Lines<'a> {
    set: Set<'a>,
    sum: Sum,
}

impl Lines<'_> {
    fn put(&mut self, line: &Line) {
        let text = line.text();
        self.sum.add(&text);
        self.set.put(&[Some(text_datum(&text))]);
    }

    fn entries(&mut self, spi: &Spi, stretch: &Stretch) {
        let bounds = [stretch.sid, stretch.until].map(|bound| Some(Datum::from(bound)));
        verify::ENTRIES.stream(spi, &bounds, |row| self.put(&Line::Entry(Entry::from(&verify::entry(row)))));
    }

    fn end(mut self) {
        let end = Line::End(self.sum.end());
        self.set.put(&[Some(text_datum(&end.text()))]);
    }
}

fn text<'s>(row: Row<'s>, column: usize) -> Option<Text<'s>> {
    row.text(column).map(Text::from)
}

fn digest(row: Row, column: usize) -> Option<Hex<32>> {
    row.bytes(column).and_then(value::digest).map(Hex)
}

fn session(row: Row<'_>) -> Session<'_> {
    Session {
        format: Some(Format::Version1),
        tenant: text(row, 0),
        agent_id: text(row, 1),
        session_id: text(row, 2),
        created_at: row.int8(3).map(Time),
        parent_agent_id: text(row, 4),
        parent_session_id: text(row, 5),
        owner: text(row, 6),
        origin: text(row, 7),
        title: text(row, 8),
        status: text(row, 9),
        metadata: row.jsonb_text(10).map(Text::from),
        state: text(row, 11),
        revision: row.int8(12),
        input_tokens: row.int8(13),
        output_tokens: row.int8(14),
        cost: text(row, 15),
        lease_fence: row.int8(16),
        closed_at: row.int8(17).map(Time),
        expires_at: row.int8(18).map(Time),
        fork_position: row.int8(19),
        fork_digest: digest(row, 20),
        base_position: row.int8(21),
        base_digest: digest(row, 22),
    }
}

fn ancestor(row: Row<'_>) -> Ancestor<'_> {
    Ancestor {
        agent_id: text(row, 0).unwrap_or_default(),
        session_id: text(row, 1).unwrap_or_default(),
        created_at: Time(row.int8(2).unwrap_or_default()),
        fork_position: row.int8(3),
        fork_digest: digest(row, 4),
        base_position: row.int8(5),
        base_digest: digest(row, 6),
    }
}

fn chunk(row: Row<'_>) -> Chunk<'_> {
    Chunk {
        target: row.int8(0).unwrap_or_default(),
        chunk_no: row.int4(1).unwrap_or_default(),
        chunk: text(row, 2).unwrap_or_default(),
    }
}
