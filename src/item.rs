//! What the log says of one of its items now: whether it is live, and with which content.

use agent_sessions_core::error::Error;
use agent_sessions_core::word::Op;
use pgrx::pg_sys::{Datum, INT8ARRAYOID, INT8OID, TEXTARRAYOID};

use crate::draft::Draft;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::rows::Row;
use crate::postgres::value::{self, Element, Json, array, text_datum};

// The rule of the view live_entry, for items that are not live too: what came last, a revision or a retraction, holds.
static ITEMS: KeptPlan = KeptPlan::new(
    c"select i.position, i.kind, i.tag, i.author, i.target, i.item_id, i.payload, i.attrs, i.digest, i.created_at, \
        revision.position, revision.payload, revision.attrs, revision.digest, \
        coalesce(revision.position, -1) operator(pg_catalog.<) greatest(retraction.position, cut.position), \
        i.op operator(pg_catalog.=) 'open' and revision.position is null \
      from agent_sessions.session_item i \
      left join lateral ( \
        select c.position, c.payload, c.attrs, c.digest from agent_sessions.session_item c \
        where c.sid operator(pg_catalog.=) i.sid and c.target operator(pg_catalog.=) i.position \
          and c.op operator(pg_catalog.=) 'revise' \
        order by c.position desc limit 1) revision on true \
      left join lateral ( \
        select c.position from agent_sessions.session_item c \
        where c.sid operator(pg_catalog.=) i.sid and c.target operator(pg_catalog.=) i.position \
          and c.op operator(pg_catalog.=) 'retract' \
        order by c.position desc limit 1) retraction on true \
      left join lateral ( \
        select pg_catalog.max(c.position) as position from agent_sessions.session_item c \
        where c.sid operator(pg_catalog.=) i.sid and c.op operator(pg_catalog.=) 'retract_from' \
          and c.target operator(pg_catalog.<=) i.position and c.position operator(pg_catalog.>) i.position) cut on true \
      where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.=) any ($2) \
        and i.op operator(pg_catalog.=) any (array['append', 'open']) \
      order by i.position",
    &[INT8OID, INT8ARRAYOID],
);

static PLACES: KeptPlan = KeptPlan::new(
    c"select i.item_id, i.position from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.item_id operator(pg_catalog.=) any ($2)",
    &[INT8OID, TEXTARRAYOID],
);

static LIVE_FROM: KeptPlan = KeptPlan::new(
    c"select pg_catalog.count(*) from agent_sessions.live_entry e \
      where e.sid operator(pg_catalog.=) $1 and e.position operator(pg_catalog.>=) $2",
    &[INT8OID, INT8OID],
);

/// An item, as its first entry and the newest entry about it tell.
pub struct Item<'s> {
    pub position: i64,
    pub kind: Option<&'s str>,
    pub item_id: Option<&'s str>,
    pub live: bool,
    /// Streamed, and not yet closed by a revision.
    pub open: bool,
    pub created_at: Option<Datum>,
    /// The entry that the content stands in: the newest revision, or the item's own.
    pub content_position: i64,
    pub digest: Option<Datum>,
    pub attrs: Option<Datum>,
    payload: Option<&'s str>,
    tag: Option<&'s str>,
    author: Option<&'s str>,
    target: Option<i64>,
    first_payload: Option<&'s str>,
}

impl<'s> Item<'s> {
    fn read(row: Row<'s>) -> Option<Item<'s>> {
        let position = row.int8(0)?;
        let revised_at = row.int8(10);
        let [payload, attrs, digest] = if revised_at.is_some() { [11, 12, 13] } else { [6, 7, 8] };
        Some(Item {
            position,
            kind: row.text(1),
            tag: row.text(2),
            author: row.text(3),
            target: row.int8(4),
            item_id: row.text(5),
            first_payload: row.text(6),
            created_at: row.datum(9),
            live: !row.bool(14),
            open: row.bool(15),
            content_position: revised_at.unwrap_or(position),
            payload: row.text(payload),
            attrs: row.jsonb(attrs),
            digest: row.datum(digest),
        })
    }

    /// The item that a draft is about to become.
    pub fn drafted(position: i64, draft: &Draft<'s>) -> Item<'s> {
        let payload = draft.payload.map(|payload| payload.text);
        Item {
            position,
            kind: draft.kind,
            tag: draft.tag,
            author: draft.author,
            target: draft.target,
            item_id: draft.item_id,
            first_payload: payload,
            created_at: None,
            live: true,
            open: draft.op == Op::Open,
            content_position: position,
            payload,
            attrs: draft.attrs,
            digest: None,
        }
    }

    /// Gives the item the content that a revision brings; it is live again if it was not.
    pub fn revise(&mut self, payload: Json<'s>, attrs: Option<Datum>) {
        (self.payload, self.attrs, self.live, self.open) = (Some(payload.text), attrs, true, false);
    }

    /// The items among `positions`, in their order. Entries that are no items, and positions beyond the log, are left out.
    pub fn at(spi: &'s Spi, sid: i64, positions: &[i64]) -> Vec<Item<'s>> {
        let positions: Vec<_> = positions.iter().map(|position| Some(Datum::from(*position))).collect();
        let arguments = [Some(Datum::from(sid)), Some(array(Element::Int8, &positions))];
        ITEMS.run(spi, See::Now, &arguments).iter().filter_map(Item::read).collect()
    }

    /// The item at `target`; SE011 if there is none.
    pub fn find(spi: &'s Spi, sid: i64, target: i64) -> Result<Item<'s>, Error> {
        Item::at(spi, sid, &[target]).pop().ok_or(Error::ItemNotFound {
            target: Some(target),
            item_id: None,
            reason: "no item was appended at the target",
        })
    }

    /// Whether `draft` is the item's first entry again. attrs may differ: they describe, and do not identify.
    pub fn is_replayed_by(&self, draft: &Draft) -> bool {
        self.is_labelled_as(draft) && self.first_payload == draft.payload.map(|payload| payload.text)
    }

    /// Whether `draft` has the item's kind, tag, author and kept_from.
    pub fn is_labelled_as(&self, draft: &Draft) -> bool {
        self.kind == draft.kind && self.tag == draft.tag && self.author == draft.author && self.target == draft.target
    }

    /// Whether the item is live with this content; attrs that are not given are those that it has.
    pub fn shows(&self, payload: Json, attrs: Option<Datum>) -> bool {
        // SAFETY: both are jsonb.
        let text = |attrs: Option<Datum>| attrs.map(|attrs| unsafe { value::jsonb_text(attrs) });
        self.live && self.payload == Some(payload.text) && (attrs.is_none() || text(attrs) == text(self.attrs))
    }
}

/// The positions of the items with these ids, in no order. Ids that were never used are left out.
pub fn places<'s>(spi: &'s Spi, sid: i64, item_ids: &[&str]) -> Vec<(&'s str, i64)> {
    let ids: Vec<_> = item_ids.iter().map(|id| Some(text_datum(id))).collect();
    let arguments = [Some(Datum::from(sid)), Some(array(Element::Text, &ids))];
    PLACES.run(spi, See::Now, &arguments).iter().filter_map(|row| Some((row.text(0)?, row.int8(1)?))).collect()
}

/// How many live items stand at `target` or later.
pub fn live_from(spi: &Spi, sid: i64, target: i64) -> i64 {
    let arguments = [Some(Datum::from(sid)), Some(Datum::from(target))];
    LIVE_FROM.run(spi, See::Now, &arguments).first().and_then(|row| row.int8(0)).unwrap_or(0)
}
