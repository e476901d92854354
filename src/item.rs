//! What a log says of one of its items now, whether it is live or not: what is replayed, revised or retracted.

use agent_sessions_core::error::Error;
use agent_sessions_core::word::Op;
use pgrx::pg_sys::{Datum, INT8ARRAYOID, INT8OID, TEXTARRAYOID};

use crate::changes::{Changed, Changes};
use crate::draft::Draft;
use crate::lineage::Lineage;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::rows::Row;
use crate::postgres::value::{self, Element, Json, array, text_datum};

static FIRST: KeptPlan = KeptPlan::new(
    c"select i.position, i.kind, i.tag, i.author, i.target, i.item_id, i.payload, i.attrs, i.digest, i.created_at, i.op \
      from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.=) any ($2) \
        and i.op operator(pg_catalog.=) any (array['append', 'open'])",
    &[INT8OID, INT8ARRAYOID],
);

// OFFSET keeps this a look-up per id: as one condition, 100 000 ids would be searched for each entry of the log.
static PLACES: KeptPlan = KeptPlan::new(
    c"select i.item_id, i.position from pg_catalog.unnest($2) as u (item_id) \
      cross join lateral ( \
        select i.item_id, i.position from agent_sessions.session_item i \
        where i.sid operator(pg_catalog.=) $1 and i.item_id operator(pg_catalog.=) u.item_id \
          and i.position operator(pg_catalog.<) $3 offset 0) i",
    &[INT8OID, TEXTARRAYOID, INT8OID],
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
    fn read(row: Row<'s>, changes: &Changes<'s>) -> Option<Item<'s>> {
        let position = row.int8(0)?;
        let revision = changes.revision_of(position);
        Some(Item {
            position,
            kind: row.text(1),
            tag: row.text(2),
            author: row.text(3),
            target: row.int8(4),
            item_id: row.text(5),
            first_payload: row.text(6),
            created_at: row.datum(9),
            live: !changes.retract(position),
            open: row.text(10) == Some(Op::Open.as_str()) && revision.is_none(),
            content_position: revision.map_or(position, |revision| revision.position),
            payload: revision.map_or_else(|| row.text(6), |revision| revision.payload_text()),
            attrs: revision.map_or_else(|| row.jsonb(7), |revision| revision.attrs()),
            digest: revision.map_or_else(|| row.datum(8), |revision| revision.digest()),
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
    pub fn at(spi: &'s Spi, lineage: &Lineage, positions: &[i64]) -> Vec<Item<'s>> {
        let mut first: Vec<Row> = Vec::new();
        for stretch in lineage.stretches() {
            let here = positions.iter().filter(|position| (stretch.from..stretch.until).contains(position));
            let here: Vec<_> = here.map(|position| Some(Datum::from(*position))).collect();
            if !here.is_empty() {
                let arguments = [Some(Datum::from(stretch.sid)), Some(array(Element::Int8, &here))];
                first.extend(stretch.run(&FIRST, spi, See::Now, &arguments).iter());
            }
        }
        let found: Vec<i64> = first.iter().filter_map(|row| row.int8(0)).collect();
        let changed = Changed::of(spi, See::Now, lineage);
        let changes = Changes::about(spi, See::Now, lineage, &changed, &found);
        let mut items: Vec<Item> = first.into_iter().filter_map(|row| Item::read(row, &changes)).collect();
        items.sort_unstable_by_key(|item| item.position);
        items
    }

    /// The item at `target`; SE011 if there is none.
    pub fn find(spi: &'s Spi, lineage: &Lineage, target: i64) -> Result<Item<'s>, Error> {
        Item::at(spi, lineage, &[target]).pop().ok_or(Error::ItemNotFound {
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

/// The ids as a text[].
pub fn id_array(item_ids: &[&str]) -> Datum {
    array(Element::Text, &item_ids.iter().map(|id| Some(text_datum(id))).collect::<Vec<_>>())
}

/// The positions of the items whose ids are in a text[], in no order. Ids that were never used are left out.
pub fn places<'s>(spi: &'s Spi, see: See, lineage: &Lineage, item_ids: Datum) -> Vec<(&'s str, i64)> {
    let mut places = Vec::new();
    for stretch in lineage.stretches() {
        let arguments = [Some(Datum::from(stretch.sid)), Some(item_ids), Some(Datum::from(stretch.until))];
        let rows = stretch.run(&PLACES, spi, see, &arguments);
        places.extend(rows.iter().filter_map(|row| Some((row.text(0)?, row.int8(1)?))));
    }
    places
}
