//! Scans of an index, and the rows that they stand on.

use std::ffi::c_int;

use pg_sys::{Datum, Oid};
use pgrx::{PgMemoryContexts, pg_sys};

use super::Table;
use crate::postgres::plan::Spi;
use crate::postgres::rows::Row;
use crate::postgres::{catalog, raise};

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

/// A scan of an index under the active snapshot, and the row that it stands on.
pub struct Scan<'t> {
    table: &'t Table,
    scan: pg_sys::IndexScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
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
            let slot = pg_sys::table_slot_create(table.relation.0, std::ptr::null_mut());
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
        let (scan, slot, prefix) = (self.scan, self.slot, self.table.shape.prefix);
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

    /// The first columns of the row, which tell whether it is passed over.
    pub fn prefix(&self) -> Row<'_> {
        // SAFETY: the slot holds a row of the table, whose first columns are of these types, and were taken apart.
        unsafe {
            let types = &self.table.shape.types[..self.table.shape.prefix];
            Row::at((*self.slot).tts_values, (*self.slot).tts_isnull, types)
        }
    }

    pub fn row(&self) -> Row<'_> {
        let types = self.table.shape.types;
        // SAFETY: the slot holds a row of the table, whose columns are of these types; what is read of it borrows the scan.
        unsafe {
            if ((*self.slot).tts_nvalid as usize) < types.len() {
                pg_sys::slot_getsomeattrs_int(self.slot, types.len() as c_int);
            }
            Row::at((*self.slot).tts_values, (*self.slot).tts_isnull, types)
        }
    }

    /// A copy of the row, in the memory of the innermost connection.
    pub fn kept<'s>(&self, spi: &'s Spi) -> Row<'s> {
        spi.assert_innermost();
        let memory = PgMemoryContexts::CurrentMemoryContext.value();
        // SAFETY: the slot holds a row of the table; the memory is the connection's.
        unsafe {
            let tuple = pg_sys::ExecFetchSlotHeapTuple(self.slot, false, std::ptr::null_mut());
            let descriptor = (*self.table.relation.0).rd_att;
            Row::of(pg_sys::heap_copytuple(tuple), descriptor, self.table.shape.types, memory)
        }
    }

    /// Locks the row, and leaves the scan on its newest version; as a statement does FOR NO KEY UPDATE.
    pub fn lock(&mut self, waits: bool) -> bool {
        let one_snapshot = catalog::one_snapshot();
        let follow = if one_snapshot { 0 } else { pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION };
        let wait = if waits { pg_sys::LockWaitPolicy::LockWaitBlock } else { pg_sys::LockWaitPolicy::LockWaitSkip };
        // SAFETY: the slot holds a row of the table that the active snapshot sees.
        let result = unsafe {
            let table = self.table.relation.0;
            let lock = (*(*table).rd_tableam).tuple_lock.expect("a heap has it");
            let (mut place, mut failure) = ((*self.slot).tts_tid, pg_sys::TM_FailureData::default());
            let (one, cid) = (pg_sys::GetActiveSnapshot(), pg_sys::GetCurrentCommandId(true));
            let mode = pg_sys::LockTupleMode::LockTupleNoKeyExclusive;
            let flags = (pg_sys::TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS | follow) as u8;
            // Called by a pointer, it has no guard of its own.
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                lock(table, &mut place, one, self.slot, cid, mode, wait, flags, &mut failure)
            })
        };
        match result {
            pg_sys::TM_Result::TM_Ok => true,
            pg_sys::TM_Result::TM_Updated | pg_sys::TM_Result::TM_Deleted if one_snapshot => raise::concurrent_update(),
            _ => false,
        }
    }
}

impl Drop for Scan<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: begun by the constructor.
            unsafe {
                pg_sys::index_endscan(self.scan);
                pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            }
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
