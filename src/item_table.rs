//! The table `session_item` as it was installed, and a row of it.

use agent_sessions_core::digest::Digest;
use pgrx::pg_sys::Datum;

use crate::draft::Draft;
use crate::head::Head;
use crate::hint;
use crate::identity;
use crate::postgres::direct::{Direction, Index, Key, Purpose, Shape, Slot, Table, Tid};
use crate::postgres::plan::See;
use crate::postgres::trigger::Tuple;
use crate::postgres::value::{self, text_datum};

/// The columns of `session_item`, in their order.
pub mod column {
    use pgrx::pg_sys::{BYTEAOID, INT8OID, JSONBOID, JSONOID, Oid, TEXTOID, TIMESTAMPTZOID, UUIDOID};

    pub const SID: usize = 0;
    pub const POSITION: usize = 1;
    pub const TENANT: usize = 2;
    pub const AGENT_ID: usize = 3;
    pub const OP: usize = 4;
    pub const KIND: usize = 5;
    pub const ITEM_ID: usize = 6;
    pub const TAG: usize = 7;
    pub const AUTHOR: usize = 8;
    pub const TARGET: usize = 9;
    pub const PAYLOAD: usize = 10;
    pub const ATTRS: usize = 11;
    pub const SALT: usize = 12;
    pub const CONTENT_DIGEST: usize = 13;
    pub const DIGEST: usize = 14;
    pub const CREATED_AT: usize = 15;
    pub const IMPORTED_AT: usize = 16;

    /// Their types.
    pub const TYPES: &[Oid] = &[
        INT8OID,
        INT8OID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        INT8OID,
        JSONOID,
        JSONBOID,
        UUIDOID,
        BYTEAOID,
        BYTEAOID,
        TIMESTAMPTZOID,
        TIMESTAMPTZOID,
    ];
}

use column::*;

/// The index of the primary key, among those of the shape.
const KEY: usize = 0;
const ID: usize = 1;
const TAGS: usize = 2;
const SUMMARIES: usize = 3;
const TARGETS: usize = 4;

const SHAPE: Shape = Shape {
    table: c"session_item",
    types: TYPES,
    prefix: KIND + 1,
    indexes: &[
        Index { name: c"session_item_pkey", columns: &[SID, POSITION], is_unique: true },
        Index { name: c"session_item_id_key", columns: &[SID, ITEM_ID], is_unique: true },
        Index { name: c"session_item_tag_idx", columns: &[SID, TAG, POSITION], is_unique: false },
        Index { name: c"session_item_summary_idx", columns: &[SID, POSITION], is_unique: false },
        Index { name: c"session_item_target_idx", columns: &[SID, TARGET, POSITION], is_unique: false },
        Index { name: c"session_item_cut_idx", columns: &[SID, POSITION], is_unique: false },
    ],
    policy: "CASE WHEN ((tenant = ( SELECT visible_tenant() AS visible_tenant)) \
               AND ((( SELECT isolated_agent() AS isolated_agent) IS NULL) \
                 OR (agent_id = ( SELECT isolated_agent() AS isolated_agent)))) THEN true ELSE false END",
    purpose: Purpose::Read,
};

static TO_READ: Shape = SHAPE;

static TO_INSERT: Shape = Shape {
    purpose: Purpose::Insert {
        given: &[SID, POSITION, OP, KIND, ITEM_ID, TAG, AUTHOR, TARGET, PAYLOAD, ATTRS],
        checks: 7,
        triggers: 5,
    },
    ..SHAPE
};

/// The table, where the log of that head can be written and read without a statement.
pub fn open_to_insert(head: &Head) -> Option<Table> {
    Table::open(&TO_INSERT, || identity::shows(&head.tenant, &head.agent_id))
}

/// The table, where it can be read without a statement. `is_shown`: whether the policies show the caller what is read; for the
/// owner, as whom the engine acts, they do not hold.
pub fn open_to_read(is_shown: bool) -> Option<Table> {
    Table::open(&TO_READ, || is_shown)
}

/// The position and the digest of the last entry that a session holds. Looked for from where it was last: that spares the rest of an
/// index page, whose 400 entries are 30 000 instructions.
pub fn last(table: &Table, sid: i64, see: See) -> Option<(i64, Digest)> {
    let from = |end: i64| {
        let mut last = None;
        table.walk(KEY, &[Key::Is(sid), Key::Above(end - 1)], Direction::Backward, see, |slot| {
            let row = slot.row();
            last = row.int8(POSITION).zip(row.bytes(DIGEST).and_then(value::digest));
            false
        });
        last
    };
    // What was seen once may have been rolled back, or a snapshot may see less.
    let last = hint::end(sid).and_then(from).or_else(|| from(0));
    if let Some((position, _)) = last {
        hint::remember_end(sid, position);
    }
    last
}

/// The entry that was written at a tid, its position and digest, if it has stayed.
pub fn written(table: &Table, sid: i64, position: i64, tid: Tid) -> Option<(i64, Digest)> {
    let is_it = |slot: &Slot| slot.prefix().int8(SID) == Some(sid) && slot.prefix().int8(POSITION) == Some(position);
    table
        .read_living_at(tid, is_it, |row| row.bytes(DIGEST).and_then(value::digest))
        .flatten()
        .map(|digest| (position, digest))
}

/// Whether a session that is locked holds an item of that id.
pub fn has_id(table: &Table, sid: i64, item_id: &str) -> bool {
    table.has(ID, &[Key::Is(sid), Key::IsText(text_datum(item_id))])
}

/// Whether a session holds, before `until`, an entry about an earlier one.
pub fn has_change(table: &Table, sid: i64, until: i64, see: See) -> bool {
    let mut found = false;
    table.walk(TARGETS, &[Key::Is(sid)], Direction::Forward, see, |slot| {
        found = slot.prefix().int8(POSITION).is_some_and(|position| position < until);
        !found
    });
    found
}

/// Hands the entries about an item that a session holds before `until` to `visit`, the newest first, until it returns false.
pub fn changes_of(table: &Table, sid: i64, target: i64, until: i64, see: See, visit: impl FnMut(&Slot) -> bool) {
    table.walk(TARGETS, &[Key::Is(sid), Key::Is(target), Key::Below(until)], Direction::Backward, see, visit);
}

/// The same for the items between two positions, both included, the last item first.
pub fn changes_between(
    table: &Table,
    sid: i64,
    (lowest, highest): (i64, i64),
    see: See,
    visit: impl FnMut(&Slot) -> bool,
) {
    let keys = [Key::Is(sid), Key::Above(lowest - 1), Key::Below(highest + 1)];
    table.walk(TARGETS, &keys, Direction::Backward, see, visit);
}

/// Hands the entries that a session holds between two positions, both excluded, to `visit`, until it returns false. About `few` are
/// wanted: positions are dense, so that a narrow part of the index has them, and no more of its pages is read.
pub fn page(
    table: &Table,
    sid: i64,
    (after, before): (i64, i64),
    few: i64,
    newest_first: bool,
    see: See,
    mut visit: impl FnMut(&Slot) -> bool,
) {
    let mut goes_on = true;
    // The end of the log, if that is what is read first.
    let mut is_end = newest_first && before == i64::MAX;
    let end = if is_end { hint::end(sid).map_or(before, |end| end + 1) } else { before };
    let mut walk = |after: i64, before: i64| {
        let direction = if newest_first { Direction::Backward } else { Direction::Forward };
        if goes_on && after < before.saturating_sub(1) {
            table.walk(KEY, &[Key::Is(sid), Key::Above(after), Key::Below(before)], direction, see, |slot| {
                if std::mem::take(&mut is_end)
                    && let Some(position) = slot.prefix().int8(POSITION)
                {
                    hint::remember_end(sid, position);
                }
                goes_on = visit(slot);
                goes_on
            });
        }
    };
    if newest_first {
        let edge = after.max(end.saturating_sub(few).saturating_sub(1));
        walk(edge, before);
        walk(after, edge + 1);
    } else {
        let edge = before.min(after.saturating_add(few).saturating_add(1));
        walk(after, edge);
        walk(edge - 1, before);
    }
}

/// An item's row, but for what links it.
pub fn row<'a>(sid: i64, draft: &Draft<'a>) -> Tuple<'a> {
    let mut row = Tuple::blank(TYPES.len());
    row.set(SID, Some(Datum::from(sid)));
    row.set_text(OP, draft.op.as_str());
    row.set(KIND, draft.kind.map(text_datum));
    row.set(ITEM_ID, draft.item_id.map(text_datum));
    row.set(TAG, draft.tag.map(text_datum));
    row.set(AUTHOR, draft.author.map(text_datum));
    row.set(TARGET, draft.target.map(Datum::from));
    row.set(PAYLOAD, draft.payload.map(|payload| payload.datum));
    row.set(ATTRS, draft.attrs);
    row
}

/// Whether an item belongs into an index of the shape: the predicates of those that are partial.
pub fn is_in(index: usize, item: &Draft) -> bool {
    match index {
        KEY => true,
        ID => item.item_id.is_some(),
        TAGS => item.tag.is_some(),
        SUMMARIES => item.target.is_some(),
        _ => false,
    }
}
