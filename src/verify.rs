//! Verifying a session's log, what it inherits included.

use agent_sessions_core::chain::{Entry, Start, Verdict, Walk};
use agent_sessions_core::digest::Link;
use pgrx::pg_sys::{Datum, INT8OID};

use crate::address;
use crate::head::Base;
use crate::lineage::{Lineage, Stretch};
use crate::postgres::call::{Call, Returns};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::rows::Row;
use crate::postgres::value::text_datum;

/// The entries of a session before a position.
pub static ENTRIES: KeptPlan = KeptPlan::new(
    c"select i.position, i.tenant, i.agent_id, i.op, i.kind, i.item_id, i.tag, i.author, i.target, i.created_at, i.salt, \
        i.payload, i.attrs, i.content_digest, i.digest \
      from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.<) $2 order by i.position",
    &[INT8OID, INT8OID],
);

/// What an ancestor's log says behind the fork about the entries before it.
pub static EXPLANATIONS: KeptPlan = KeptPlan::new(
    c"select i.position, i.tenant, i.agent_id, i.op, i.kind, i.item_id, i.tag, i.author, i.target, i.created_at, i.salt, \
        i.payload, i.attrs, i.content_digest, i.digest \
      from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.>=) $2 \
        and i.target operator(pg_catalog.<) $2 and i.op operator(pg_catalog.=) any (array['erase', 'trim'])",
    &[INT8OID, INT8OID],
);

pub fn session_verify(call: &mut Call) -> Returns {
    let session_id = call.text();
    let agent_id = call.text();
    let tenant = call.text();
    let mut set = call.set();
    let address = address::of_reader(session_id, agent_id, tenant)?;

    let spi = Spi::connect();
    let Some(lineage) = Lineage::find(&spi, See::Caller, &address) else { return Ok(None) };
    let Some(verdict) = walk(&spi, lineage.stretches()) else { return Ok(None) };
    set.put(&[
        Some(Datum::from(verdict.entries)),
        Some(Datum::from(verdict.redacted)),
        Some(Datum::from(verdict.fault.is_none())),
        verdict.fault.map(|(position, _)| Datum::from(position)),
        verdict.fault.map(|(_, reason)| text_datum(reason)),
    ]);
    Ok(None)
}

/// Walks stretches of a log, the oldest first; `None` if one of their sessions is gone.
pub fn walk(spi: &Spi, stretches: &[Stretch]) -> Option<Verdict> {
    // As the owner: an entry whose tenant or agent was changed is hidden from the caller, and has to be found.
    let _owner = AsOwner::switch();
    let mut walk = Walk::default();
    for stretch in stretches {
        let base = Base::of(spi, See::Caller, stretch.sid)?;
        let start = Start {
            tenant: &base.tenant,
            agent_id: &base.agent_id,
            position: base.position,
            previous: base.previous,
            trimmed: base.is_trimmed,
            forked_from: base.fork_digest,
        };
        walk.enter(&start);
        let bounds = [Some(Datum::from(stretch.sid)), Some(Datum::from(stretch.until))];
        ENTRIES.stream(spi, &bounds, |row| {
            let entry = entry(row);
            if let Some((fork, digest)) = base.rejoin
                && fork == entry.link.position
            {
                walk.rejoin(digest);
            }
            walk.step(&start, &entry);
        });
        EXPLANATIONS.stream(spi, &bounds, |row| walk.explain(&entry(row)));
    }
    Some(walk.finish())
}

/// A row of [`ENTRIES`] or [`EXPLANATIONS`].
pub fn entry(row: Row<'_>) -> Entry<'_> {
    Entry {
        tenant: row.text(1).unwrap_or_default(),
        agent_id: row.text(2).unwrap_or_default(),
        link: Link {
            position: row.int8(0).unwrap_or_default(),
            op: row.text(3).unwrap_or_default(),
            kind: row.text(4),
            item_id: row.text(5),
            tag: row.text(6),
            author: row.text(7),
            target: row.int8(8),
            created_at: row.int8(9).unwrap_or_default(),
        },
        salt: row.uuid(10),
        payload: row.text(11),
        attrs: row.jsonb_text(12),
        content_digest: row.bytes(13).unwrap_or_default(),
        digest: row.bytes(14).unwrap_or_default(),
    }
}
