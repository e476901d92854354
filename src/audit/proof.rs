//! Proofs that an event is under an anchor's root: made from the tables, checked without them.

use agent_sessions_core::anchor::{Format, Proof, path_text};
use agent_sessions_core::digest::unhex;
use agent_sessions_core::error::Error;
use agent_sessions_core::{limit, merkle};
use pgrx::pg_sys::{Datum, INT8OID, TEXTOID};

use crate::audit::anchor::Anchor;
use crate::draft;
use crate::postgres::call::{Call, Returns};
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::text_datum;

static LEAF: KeptPlan = KeptPlan::new(
    c"select l.ordinal, l.seq from agent_sessions.audit_anchor_leaf l \
      where l.tenant operator(pg_catalog.=) $1 and l.anchor_id operator(pg_catalog.=) $2 \
        and l.stream operator(pg_catalog.=) $3",
    &[TEXTOID, INT8OID, TEXTOID],
);

static EVENTS: KeptPlan = KeptPlan::new(
    c"select e.prev_hash, e.data from agent_sessions.audit_event e \
      where e.tenant operator(pg_catalog.=) $1 and e.stream operator(pg_catalog.=) $2 \
        and e.seq operator(pg_catalog.>=) $3 and e.seq operator(pg_catalog.<=) $4 order by e.seq",
    &[TEXTOID, TEXTOID, INT8OID, INT8OID],
);

pub fn audit_proof(call: &mut Call) -> Returns {
    // Made when the connection has ended, whose memory ends with it.
    prove(call).map(|proof| Some(text_datum(&proof)))
}

fn prove(call: &mut Call) -> Result<String, Error> {
    let stream = call.text().unwrap_or_default();
    let seq = call.int8().ok_or_else(|| Error::invalid("seq", "must be given"))?;
    let anchor_id = call.int8();
    draft::position("seq", Some(seq))?;
    let missing = |reason| Error::ItemNotFound { target: Some(seq), item_id: None, reason };

    let spi = Spi::connect();
    let anchor = Anchor::find(&spi, anchor_id, None)?.ok_or_else(|| missing("no such anchor is recorded"))?;
    let [tenant, name] = [anchor.tenant.as_str(), stream].map(|text| Some(text_datum(text)));
    let leaf = LEAF.run(&spi, See::Caller, &[tenant, Some(Datum::from(anchor.id)), name]);
    let leaf = leaf.first().and_then(|row| row.int8(0).zip(row.int8(1))).filter(|(_, head)| *head >= seq);
    let (ordinal, head) = leaf.ok_or_else(|| missing("the anchor does not reach the event"))?;

    let (mut prev_hash, mut data, mut bytes) = (None, Vec::new(), 0);
    EVENTS.stream(&spi, &[tenant, name, Some(Datum::from(seq)), Some(Datum::from(head))], |row| {
        prev_hash = prev_hash.take().or_else(|| row.text(0).map(str::to_owned));
        let text = row.text(1).unwrap_or_default();
        bytes += text.len();
        if bytes <= limit::MAX_PAYLOAD_BYTES {
            data.push(text.to_owned());
        }
    });
    limit::at_most("proof", bytes, limit::MAX_PAYLOAD_BYTES)?;
    let prev_hash = prev_hash.filter(|_| data.len() as i64 == head - seq + 1);
    let prev_hash = prev_hash.ok_or_else(|| missing("the event, or one after it, is gone"))?;

    let mut leaves = Vec::new();
    anchor.leaves(&spi, |leaf| leaves.push(merkle::leaf(leaf.as_bytes())));
    let path = merkle::path(&leaves, ordinal as usize).ok_or_else(|| missing("the anchor's leaves are incomplete"))?;
    let proof = Proof {
        format: Format::Version1,
        tenant: anchor.tenant.clone(),
        stream: stream.to_owned(),
        seq,
        prev_hash,
        data,
        path: path_text(&path),
    };
    serde_json::to_string(&proof).map_err(|error| Error::invalid("seq", error.to_string()))
}

pub fn audit_check_proof(call: &mut Call) -> Returns {
    let proof = call.json().ok_or_else(|| Error::invalid("proof", "must be given"))?;
    let root = call.text().ok_or_else(|| Error::invalid("root", "must be given"))?;
    let leads_to = serde_json::from_str::<Proof>(proof.text).ok().and_then(|proof| proof.root());
    Ok(Some(Datum::from(leads_to.is_some() && leads_to == unhex(root))))
}
