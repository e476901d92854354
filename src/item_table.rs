//! The table `session_item` as it was installed, and a row of it.

use agent_sessions_core::digest::Digest;
use pgrx::pg_sys::Datum;

use crate::draft::Draft;
use crate::head::Head;
use crate::identity;
use crate::postgres::direct::{Index, Key, Place, Purpose, Shape, Table};
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

const SHAPE: Shape = Shape {
    table: c"session_item",
    types: TYPES,
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
    purpose: Purpose::Insert {
        given: &[SID, POSITION, OP, KIND, ITEM_ID, TAG, AUTHOR, TARGET, PAYLOAD, ATTRS],
        checks: 7,
        triggers: 5,
    },
};

/// The table, where it can be written and read without a statement.
pub fn open(head: &Head) -> Option<Table> {
    Table::open(&SHAPE, || identity::shows(&head.tenant, &head.agent_id))
}

/// The position and the digest of the last entry that a session holds, if that is at `from` or beyond.
pub fn last(table: &Table, sid: i64, from: i64, see: See) -> Option<(i64, Digest)> {
    let read = |place: &Place| place.int8(POSITION).zip(place.bytes(DIGEST).and_then(value::digest));
    table.last(KEY, &[Key::Int8(sid), Key::Int8AtLeast(from)], see, read).flatten()
}

/// Whether a session holds an item of that id.
pub fn has_id(table: &Table, sid: i64, item_id: &str) -> bool {
    table.last(ID, &[Key::Int8(sid), Key::Text(text_datum(item_id))], See::Now, |_| ()).is_some()
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
