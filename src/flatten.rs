//! Flattening a branch: it gets copies of what it inherits, and lets go of its source.
//!
//! The copies are chained anew, from the branch's own genesis; its own entries keep their links.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use agent_sessions_core::chain::{erase_payload, trim_payload};
use agent_sessions_core::digest::{Digest, Link};
use agent_sessions_core::error::Error;
use agent_sessions_core::word::{OnMissing, Op};
use pgrx::pg_sys::{BYTEAOID, Datum, INT8OID, TEXTOID};

use crate::address::{Address, sid_of};
use crate::deletion;
use crate::draft::Draft;
use crate::family;
use crate::head::Base;
use crate::lineage::Stretch;
use crate::log::Log;
use crate::postgres::call::{Call, Returns};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi, seeing};
use crate::postgres::value::{self, Json, bytes_datum, text_datum};
use crate::trim;
use crate::verify;

static ENTRIES: KeptPlan = KeptPlan::new(
    c"select i.position, i.op, i.kind, i.item_id, i.tag, i.author, i.target, i.created_at, i.content_digest, i.salt \
      from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.>=) $2 \
        and i.position operator(pg_catalog.<) $3 order by i.position",
    &[INT8OID, INT8OID, INT8OID],
);

// Held while it is copied: an erasure waits, and then finds no branch here, or was there before. Not shared with a second
// flattening: of what both hold, neither could go on to delete what is hidden.
static KEEP_FROM_ERASURE: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session s where s.sid operator(pg_catalog.=) $1 for no key update",
    &[INT8OID],
);

static COPY: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.session_item (sid, position, tenant, agent_id, op, kind, item_id, tag, author, target, \
        payload, attrs, salt, content_digest, digest, created_at, imported_at) \
      select $3, i.position, $4, $5, i.op, i.kind, i.item_id, i.tag, i.author, i.target, i.payload, i.attrs, i.salt, \
        i.content_digest, $6, i.created_at, i.imported_at \
      from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.=) $2",
    &[INT8OID, INT8OID, INT8OID, TEXTOID, TEXTOID, BYTEAOID],
);

// What leaves within the inheritance inherits nothing of the branch's own, be it a branch of its or of one that reads on: it goes
// over to the ancestor whose entry it follows, since the copies have other digests.
static GO_OVER: KeptPlan = KeptPlan::new(
    c"with recursive readers (sid) as ( \
        select $1 union \
        select s.sid from agent_sessions.session s join readers r on s.branched_from operator(pg_catalog.=) r.sid \
        where s.fork_position operator(pg_catalog.>) s.base_position and s.fork_position operator(pg_catalog.>) $5) \
      update agent_sessions.session s set branched_from = $2 from agent_sessions.session o \
      where s.branched_from operator(pg_catalog.=) any (array(select r.sid from readers r)) \
        and s.fork_position operator(pg_catalog.>) $3 and s.fork_position operator(pg_catalog.<=) $4 \
        and s.fork_position operator(pg_catalog.>) s.base_position and o.sid operator(pg_catalog.=) s.sid \
      returning o.branched_from",
    &[INT8OID, INT8OID, INT8OID, INT8OID, INT8OID],
);

static LET_GO: KeptPlan = KeptPlan::new(
    c"update agent_sessions.session set branched_from = null where sid operator(pg_catalog.=) $1",
    &[INT8OID],
);

pub fn session_flatten(call: &mut Call) -> Returns {
    let session_id = call.text();
    let agent_id = call.text();
    let lease = call.text();
    let address = Address::resolve(session_id, agent_id)?;

    let spi = Spi::connect();
    let named = || sid_of(&spi, See::Latest, &address.parameters());
    while let Some(sid) = named()
        && !family::lock_with_readers(&spi, sid, || named() == Some(sid))
    {}
    let Some(log) = Log::open(&spi, &address, OnMissing::Error)? else { return Ok(None) };
    log.head.admit(lease)?;
    if !log.head.origin.inherits() {
        return Ok(Some(Datum::from(0_i64)));
    }
    let inherited = log.lineage.inherited();
    for stretch in inherited.iter().rev() {
        stretch.run(&KEEP_FROM_ERASURE, &spi, See::Latest, &[Some(Datum::from(stretch.sid))]);
    }
    // What is broken must not be chained anew, as if it had been written so.
    let verdict = seeing(See::Latest, || verify::walk(&spi, log.lineage.stretches()));
    if let Some((position, _)) = verdict.and_then(|verdict| verdict.fault) {
        return Err(Error::DigestMismatch { column: "digest", position });
    }
    let Some(base) = Base::of(&spi, See::Latest, log.sid()) else { return Err(address.not_found(&spi)) };
    let first = log.lineage.first_position();
    let _owner = AsOwner::switch();
    let oldest = Base::of(&spi, See::Latest, inherited[0].sid).filter(|oldest| oldest.is_trimmed);
    let start = oldest.map_or(base.unforked, |oldest| oldest.previous);
    let copies = seeing(See::Latest, || copy(&log, inherited, start));

    // The copies are the branch's own now: so has to be what explains them.
    let trimmed = trim_payload(&start);
    let trim = Draft { payload: Some(Json::from_part(&trimmed)), ..Draft::about(Op::Trim, first) };
    let erased = erase_payload(None, &[]);
    let erasures = copies
        .redacted
        .iter()
        .map(|position| Draft { payload: Some(Json::from_part(&erased)), ..Draft::about(Op::Erase, *position) });
    let drafts: Vec<Draft> = (first > 0).then_some(trim).into_iter().chain(erasures).collect();
    log.write(&drafts, lease);
    // In descending order: as everywhere, branches are locked before their sources.
    let mut left = BTreeSet::from([Reverse(log.head.origin.branched_from)]);
    for stretch in inherited {
        let fork = log.lineage.own().from;
        let bounds = [log.sid(), stretch.sid, stretch.from, stretch.until, fork].map(|bound| Some(Datum::from(bound)));
        left.extend(GO_OVER.run(&spi, See::Latest, &bounds).iter().map(|row| Reverse(row.int8(0))));
    }
    LET_GO.run(&spi, See::Now, &[Some(Datum::from(log.sid()))]);
    if first > 0 {
        trim::move_base(&spi, log.sid(), first, &start);
    }
    left.into_iter().for_each(|Reverse(source)| deletion::collect(&spi, source));
    Ok(Some(Datum::from(copies.count)))
}

struct Copies {
    count: i64,
    /// Where entries stand whose content was erased.
    redacted: Vec<i64>,
}

/// Copies the stretches into the branch's own log, chained from `start` on.
fn copy(log: &Log, inherited: &[Stretch], start: Digest) -> Copies {
    let mut copies = Copies { count: 0, redacted: Vec::new() };
    let mut previous = start;
    for stretch in inherited {
        let bounds = [stretch.sid, stretch.from, stretch.until].map(|bound| Some(Datum::from(bound)));
        ENTRIES.stream(log.spi, &bounds, |row| {
            let position = row.int8(0).unwrap_or_default();
            let link = Link {
                position,
                op: row.text(1).unwrap_or_default(),
                kind: row.text(2),
                item_id: row.text(3),
                tag: row.text(4),
                author: row.text(5),
                target: row.int8(6),
                created_at: row.int8(7).unwrap_or_default(),
            };
            let content = row.bytes(8).and_then(value::digest).unwrap_or_default();
            previous = link.digest(&previous, &content);
            let entry = [
                Some(Datum::from(stretch.sid)),
                Some(Datum::from(position)),
                Some(Datum::from(log.sid())),
                Some(text_datum(&log.head.tenant)),
                Some(text_datum(&log.head.agent_id)),
                Some(bytes_datum(&previous)),
            ];
            COPY.run(log.spi, See::Now, &entry);
            copies.count += 1;
            if row.uuid(9).is_none() {
                copies.redacted.push(position);
            }
        });
    }
    copies
}
