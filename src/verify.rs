//! Verifying a session's log.

use agent_sessions_core::chain::{Entry, Start, Walk};
use agent_sessions_core::digest::Link;
use pgrx::pg_sys::{Datum, INT8OID};

use crate::head::{Base, sid_of};
use crate::identity;
use crate::postgres::call::{Call, Returns};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::text_datum;

static ENTRIES: KeptPlan = KeptPlan::new(
    c"select i.position, i.tenant, i.agent_id, i.op, i.kind, i.item_id, i.tag, i.author, i.target, i.created_at, i.salt, \
        i.payload, i.attrs, i.content_digest, i.digest \
      from agent_sessions.session_item i where i.sid operator(pg_catalog.=) $1 order by i.position",
    &[INT8OID],
);

pub fn session_verify(call: &mut Call) -> Returns {
    let session_id = call.text();
    let agent_id = call.text();
    let tenant = call.text();
    let mut set = call.set();
    let tenant = tenant.map_or_else(identity::tenant, |tenant| Ok(tenant.to_owned()))?;
    let agent_id = agent_id.map_or_else(identity::agent, str::to_owned);

    let spi = Spi::connect();
    let key = [Some(text_datum(&tenant)), Some(text_datum(&agent_id)), session_id.map(text_datum)];
    let Some(sid) = sid_of(&spi, See::Caller, &key) else { return Ok(None) };
    let Some(base) = Base::of(&spi, See::Caller, sid) else { return Ok(None) };
    let mut walk = Walk::from(Start {
        tenant: &base.tenant,
        agent_id: &base.agent_id,
        position: base.position,
        previous: base.previous,
        trimmed: base.position > 0,
    });
    // As the owner: an entry whose tenant or agent was changed is hidden from the caller, and has to be found.
    let _owner = AsOwner::switch();
    ENTRIES.stream(&spi, &[Some(Datum::from(sid))], |rows| {
        for row in rows.iter() {
            walk.step(&Entry {
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
            });
        }
    });
    let verdict = walk.finish();
    set.put(&[
        Some(Datum::from(verdict.entries)),
        Some(Datum::from(verdict.redacted)),
        Some(Datum::from(verdict.fault.is_none())),
        verdict.fault.map(|(position, _)| Datum::from(position)),
        verdict.fault.map(|(_, reason)| text_datum(reason)),
    ]);
    Ok(None)
}
