//! The table `session` as it was installed, and how its rows are read and locked without a statement.

use crate::address::Address;
use crate::hint;
use crate::identity;
use crate::postgres::direct::{Direction, Index, Key, Lock, Purpose, Shape, Slot, Table};
use crate::postgres::plan::See;
use crate::postgres::rows::Row;

/// The columns of `session`, in their order.
pub mod column {
    use pgrx::pg_sys::{BYTEAOID, INT8OID, JSONBOID, JSONOID, NUMERICOID, Oid, TEXTOID, TIMESTAMPTZOID};

    pub const SID: usize = 0;
    pub const TENANT: usize = 1;
    pub const AGENT_ID: usize = 2;
    pub const SESSION_ID: usize = 3;
    pub const OWNER: usize = 4;
    pub const PARENT_SID: usize = 5;
    pub const BRANCHED_FROM: usize = 6;
    pub const FORK_POSITION: usize = 7;
    pub const FORK_DIGEST: usize = 8;
    pub const ORIGIN: usize = 9;
    pub const TITLE: usize = 10;
    pub const STATUS: usize = 11;
    pub const METADATA: usize = 12;
    pub const STATE: usize = 13;
    pub const REVISION: usize = 14;
    pub const INPUT_TOKENS: usize = 15;
    pub const OUTPUT_TOKENS: usize = 16;
    pub const COST: usize = 17;
    pub const LEASE_DIGEST: usize = 18;
    pub const LEASE_FENCE: usize = 19;
    pub const LEASE_HOLDER: usize = 20;
    pub const LEASE_EXPIRES_AT: usize = 21;
    pub const BASE_POSITION: usize = 22;
    pub const BASE_DIGEST: usize = 23;
    pub const ACTIVE_AT: usize = 24;
    pub const CREATED_AT: usize = 25;
    pub const UPDATED_AT: usize = 26;
    pub const CLOSED_AT: usize = 27;
    pub const EXPIRES_AT: usize = 28;
    pub const DELETED_AT: usize = 29;

    /// Their types.
    pub const TYPES: &[Oid] = &[
        INT8OID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        INT8OID,
        INT8OID,
        INT8OID,
        BYTEAOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        JSONBOID,
        JSONOID,
        INT8OID,
        INT8OID,
        INT8OID,
        NUMERICOID,
        BYTEAOID,
        INT8OID,
        TEXTOID,
        TIMESTAMPTZOID,
        INT8OID,
        BYTEAOID,
        TIMESTAMPTZOID,
        TIMESTAMPTZOID,
        TIMESTAMPTZOID,
        TIMESTAMPTZOID,
        TIMESTAMPTZOID,
        TIMESTAMPTZOID,
    ];
}

use column::*;

/// The index of the visible sessions' names, among those of the shape.
const NAME: usize = 0;
const KEY: usize = 1;

const SHAPE: Shape = Shape {
    table: c"session",
    types: TYPES,
    prefix: SESSION_ID + 1,
    indexes: &[
        Index { name: c"session_key", columns: &[TENANT, SESSION_ID, AGENT_ID], is_unique: true },
        Index { name: c"session_pkey", columns: &[SID], is_unique: true },
    ],
    policy: "((tenant = ( SELECT visible_tenant() AS visible_tenant)) AND (deleted_at IS NULL) \
               AND ((( SELECT isolated_agent() AS isolated_agent) IS NULL) \
                 OR (agent_id = ( SELECT isolated_agent() AS isolated_agent))))",
    purpose: Purpose::Read,
};

static TO_READ: Shape = SHAPE;
static TO_LOCK: Shape = Shape { purpose: Purpose::Lock, ..SHAPE };

/// The table, where the session of an address can be locked without a statement.
pub fn open_to_lock(address: &Address) -> Option<Table> {
    Table::open(&TO_LOCK, || identity::shows(&address.tenant, &address.agent_id))
}

/// The table, where it can be read without a statement. `is_shown`: whether the policies show the caller what is read; for the
/// owner, as whom the engine acts, they do not hold.
pub fn open_to_read(is_shown: bool) -> Option<Table> {
    Table::open(&TO_READ, || is_shown)
}

/// Locks the session of that address, and reads it. `waits`: for another transaction that holds it.
pub fn lock<T>(table: &Table, address: &Address, waits: bool, read: impl Fn(Row, Lock) -> T) -> Option<T> {
    let known = hint::tid(address);
    let read = |row: Row, lock: Lock| {
        if known != Some(lock.tid) {
            hint::remember_tid(address, lock.tid);
        }
        read(row, lock)
    };
    known
        .and_then(|tid| table.lock_at(tid, waits, |slot| is_of(slot, address), read))
        .unwrap_or_else(|| table.lock(NAME, &keys(address), waits, is_there, read))
}

/// Reads the session of that address.
pub fn find<T>(table: &Table, address: &Address, see: See, read: impl Fn(Row) -> T) -> Option<T> {
    let known = hint::tid(address);
    let read = |slot: &Slot| {
        if known != Some(slot.tid()) {
            hint::remember_tid(address, slot.tid());
        }
        read(slot.row())
    };
    if let Some(found) = known.and_then(|tid| table.read_at(tid, see, |slot| is_of(slot, address), read)) {
        return Some(found);
    }
    let mut found = None;
    table.walk(NAME, &keys(address), Direction::Forward, see, |slot| {
        found = is_there(slot).then(|| read(slot));
        found.is_none()
    });
    found
}

/// Reads the session of that sid, hidden or not.
pub fn of_sid<T>(table: &Table, sid: i64, see: See, read: impl Fn(Row) -> T) -> Option<T> {
    let mut found = None;
    table.walk(KEY, &[Key::Is(sid)], Direction::Forward, see, |slot| {
        found = Some(read(slot.row()));
        false
    });
    found
}

/// Of a name there are hidden sessions, and versions from before one was hidden.
fn is_there(slot: &Slot) -> bool {
    slot.is_null(DELETED_AT)
}

/// Whether it is the session of that address: two that are there have no name in common.
fn is_of(slot: &Slot, address: &Address) -> bool {
    let name = slot.prefix();
    let is = |column, text: &str| name.text(column) == Some(text);
    is(SESSION_ID, &address.session_id)
        && is(TENANT, &address.tenant)
        && is(AGENT_ID, &address.agent_id)
        && is_there(slot)
}

fn keys(address: &Address) -> [Key; 3] {
    let [tenant, agent_id, session_id] = address.name();
    [tenant, session_id, agent_id].map(Key::IsText)
}
