//! Scans of an index.

use std::ffi::c_int;

use pg_sys::{Datum, Oid};
use pgrx::pg_sys;

use super::Table;
use super::slot::Slot;

/// What an index is searched for: what its first columns are equal to, and then bounds of the next one, themselves excluded.
pub enum Key {
    Is(i64),
    /// Of a column under collation "C".
    IsText(Datum),
    Above(i64),
    Below(i64),
}

impl Key {
    fn is_bound(&self) -> bool {
        matches!(self, Key::Above(_) | Key::Below(_))
    }

    /// The operator's strategy, function, collation and right side.
    fn parts(&self) -> (u32, u32, Oid, Datum) {
        match self {
            Key::Is(value) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_INT8EQ, Oid::INVALID, Datum::from(*value)),
            Key::IsText(value) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_TEXTEQ, pg_sys::C_COLLATION_OID, *value),
            Key::Above(value) => (pg_sys::BTGreaterStrategyNumber, pg_sys::F_INT8GT, Oid::INVALID, Datum::from(*value)),
            Key::Below(value) => (pg_sys::BTLessStrategyNumber, pg_sys::F_INT8LT, Oid::INVALID, Datum::from(*value)),
        }
    }
}

/// What each row needs, in one guard for both: pgrx guards every call by itself, 150 instructions of the 4 000 for a row of a page.
mod unguarded {
    use std::ffi::c_int;

    use pgrx::pg_sys;

    unsafe extern "C-unwind" {
        pub fn index_getnext_slot(
            scan: pg_sys::IndexScanDesc,
            direction: pg_sys::ScanDirection::Type,
            slot: *mut pg_sys::TupleTableSlot,
        ) -> bool;
        pub fn slot_getsomeattrs_int(slot: *mut pg_sys::TupleTableSlot, columns: c_int);
    }
}

/// Which way an index is read.
#[derive(Clone, Copy)]
pub enum Direction {
    Forward,
    Backward,
}

/// A scan of an index under the active snapshot.
pub struct Scan<'t> {
    table: &'t Table,
    scan: pg_sys::IndexScanDesc,
    /// The row that it stands on.
    pub slot: Slot<'t>,
}

impl<'t> Scan<'t> {
    pub fn begin(table: &'t Table, index: usize, keys: &[Key]) -> Scan<'t> {
        let equalities = keys.iter().filter(|key| !key.is_bound()).count();
        let mut wanted = vec![pg_sys::ScanKeyData::default(); keys.len()];
        // SAFETY: table and index are open, a snapshot is active, and the keys are of the index's columns.
        unsafe {
            for (n, (key, entry)) in keys.iter().zip(&mut wanted).enumerate() {
                let (strategy, function, collation, value) = key.parts();
                pg_sys::ScanKeyEntryInitialize(
                    entry,
                    0,
                    n.min(equalities) as pg_sys::AttrNumber + 1,
                    strategy as pg_sys::StrategyNumber,
                    Oid::INVALID,
                    collation,
                    function.into(),
                    value,
                );
            }
            let slot = Slot::of(table);
            let scan = begin_scan(table.relation.0, table.index(index), wanted.len() as c_int);
            pg_sys::index_rescan(scan, wanted.as_mut_ptr(), wanted.len() as c_int, std::ptr::null_mut(), 0);
            Scan { table, scan, slot }
        }
    }

    pub fn next(&mut self, direction: Direction) -> bool {
        let direction = match direction {
            Direction::Forward => pg_sys::ScanDirection::ForwardScanDirection,
            Direction::Backward => pg_sys::ScanDirection::BackwardScanDirection,
        };
        let (scan, slot, prefix) = (self.scan, self.slot.slot, self.table.shape.prefix);
        // SAFETY: scan and slot are open; nothing in the closure has to be dropped.
        unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                let found = unguarded::index_getnext_slot(scan, direction, slot);
                if found && prefix > 0 {
                    unguarded::slot_getsomeattrs_int(slot, prefix as c_int);
                }
                found
            })
        }
    }
}

impl Drop for Scan<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: begun by the constructor.
            unsafe { pg_sys::index_endscan(self.scan) };
        }
    }
}

#[cfg(not(feature = "pg18"))]
unsafe fn begin_scan(table: pg_sys::Relation, index: pg_sys::Relation, keys: c_int) -> pg_sys::IndexScanDesc {
    // SAFETY: by the caller's promise, both are open and a snapshot is active.
    unsafe { pg_sys::index_beginscan(table, index, pg_sys::GetActiveSnapshot(), keys, 0) }
}

#[cfg(feature = "pg18")]
unsafe fn begin_scan(table: pg_sys::Relation, index: pg_sys::Relation, keys: c_int) -> pg_sys::IndexScanDesc {
    // SAFETY: as above; nobody counts what is scanned.
    unsafe { pg_sys::index_beginscan(table, index, pg_sys::GetActiveSnapshot(), std::ptr::null_mut(), keys, 0) }
}
