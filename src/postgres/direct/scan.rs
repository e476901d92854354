//! Scans of an index.

use std::ffi::c_int;

use pg_sys::{Datum, Oid};
use pgrx::pg_sys;

use super::Table;
use super::slot::Slot;
use crate::postgres::unguarded::{self, guarded};

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

/// Which way an index is read.
#[derive(Clone, Copy)]
pub enum Direction {
    Forward,
    Backward,
}

/// A scan of an index.
pub struct Scan<'t> {
    table: &'t Table,
    scan: pg_sys::IndexScanDesc,
    /// The row that it stands on.
    pub slot: Slot<'t>,
}

impl<'t> Scan<'t> {
    /// Under the active snapshot.
    pub fn begin(table: &'t Table, index: usize, keys: &[Key]) -> Scan<'t> {
        // SAFETY: reads a variable of the backend; the snapshot outlives the scan.
        unsafe { Scan::under(pg_sys::GetActiveSnapshot(), table, index, keys) }
    }

    /// # Safety
    /// The snapshot outlives the scan.
    pub unsafe fn under(snapshot: pg_sys::Snapshot, table: &'t Table, index: usize, keys: &[Key]) -> Scan<'t> {
        let equalities = keys.iter().filter(|key| !key.is_bound()).count();
        let mut wanted = vec![pg_sys::ScanKeyData::default(); keys.len()];
        let (entries, count) = (wanted.as_mut_slice(), keys.len() as c_int);
        let (relation, index, slot) = (table.relation.0, table.index(index), Slot::of(table));
        // SAFETY: table and index are open, and the keys are of the index's columns.
        let scan = unsafe {
            guarded(|| {
                for (n, (key, entry)) in keys.iter().zip(&mut *entries).enumerate() {
                    let (strategy, function, collation, value) = key.parts();
                    unguarded::ScanKeyEntryInitialize(
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
                let scan = unguarded::begin_scan(relation, index, snapshot, count);
                unguarded::index_rescan(scan, entries.as_mut_ptr(), count, std::ptr::null_mut(), 0);
                scan
            })
        };
        Scan { table, scan, slot }
    }

    pub fn next(&mut self, direction: Direction) -> bool {
        let direction = match direction {
            Direction::Forward => pg_sys::ScanDirection::ForwardScanDirection,
            Direction::Backward => pg_sys::ScanDirection::BackwardScanDirection,
        };
        let (scan, slot, shape) = (self.scan, self.slot.slot, self.table.shape);
        let (prefix, all) = (shape.prefix, shape.types.len());
        // SAFETY: scan and slot are open; the prefix is some of the table's columns.
        unsafe {
            guarded(|| {
                let found = unguarded::index_getnext_slot(scan, direction, slot);
                if found {
                    unguarded::slot_getsomeattrs_int(slot, prefix as c_int);
                    // What is not passed over is read.
                    if !*(*slot).tts_isnull.add(prefix - 1) {
                        unguarded::slot_getsomeattrs_int(slot, all as c_int);
                    }
                }
                found
            })
        }
    }
}

impl Drop for Scan<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let scan = self.scan;
            // SAFETY: begun by the constructor.
            unsafe { guarded(|| unguarded::index_endscan(scan)) };
        }
    }
}
