//! Scans of an index, and the rows that they stand on.

use std::ffi::c_int;

use pg_sys::{Datum, Oid};
use pgrx::pg_sys;

use super::Table;
use crate::postgres::plan::See;
use crate::postgres::{catalog, raise, value};

/// A row that a scan stands on, for as long as it does.
pub struct Place<'s> {
    slot: &'s pg_sys::TupleTableSlot,
}

impl Place<'_> {
    pub fn int8(&self, column: usize) -> Option<i64> {
        self.datum(column).map(|datum| datum.value() as i64)
    }

    pub fn text(&self, column: usize) -> Option<&str> {
        // SAFETY: the column is a text.
        self.datum(column).map(|datum| unsafe { value::text(datum) })
    }

    pub fn is_null(&self, column: usize) -> bool {
        self.datum(column).is_none()
    }

    pub fn bytes(&self, column: usize) -> Option<&[u8]> {
        // SAFETY: the column is a bytea.
        self.datum(column).map(|datum| unsafe { value::bytes(datum) })
    }

    fn datum(&self, column: usize) -> Option<Datum> {
        // SAFETY: all columns were deformed.
        unsafe { (!*self.slot.tts_isnull.add(column)).then(|| *self.slot.tts_values.add(column)) }
    }
}

/// What a column of an index has to be equal to, or at least.
pub enum Key {
    Int8(i64),
    Int8AtLeast(i64),
    /// Of a column under collation "C".
    Text(Datum),
}

/// A snapshot that is active for as long as this lives; taken as SPI does for a statement, so that own writes are seen.
pub struct Pushed;

impl Pushed {
    pub fn of(see: See) -> Pushed {
        // SAFETY: popped by the drop, or by the abort of an unwinding ERROR.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::PushActiveSnapshot(match see {
                See::Latest => pg_sys::GetLatestSnapshot(),
                _ => pg_sys::GetTransactionSnapshot(),
            });
            pg_sys::UpdateActiveSnapshotCommandId();
        }
        Pushed
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: pushed by the constructor.
            unsafe { pg_sys::PopActiveSnapshot() };
        }
    }
}

/// A scan of an index, and the row that it stands on.
pub struct Scan<'t> {
    table: &'t Table,
    scan: pg_sys::IndexScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
}

impl<'t> Scan<'t> {
    pub fn begin(table: &'t Table, index: usize, keys: &[Key]) -> Scan<'t> {
        let mut wanted = vec![pg_sys::ScanKeyData::default(); keys.len()];
        // SAFETY: table and index are open, the snapshot is active, and the keys are of the index's columns.
        unsafe {
            for (n, (key, entry)) in keys.iter().zip(&mut wanted).enumerate() {
                let (strategy, operator, value) = match key {
                    Key::Int8(value) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_INT8EQ, Datum::from(*value)),
                    Key::Int8AtLeast(value) => {
                        (pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_INT8GE, Datum::from(*value))
                    }
                    Key::Text(value) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_TEXTEQ, *value),
                };
                let collation = if matches!(key, Key::Text(_)) { pg_sys::C_COLLATION_OID } else { Oid::INVALID };
                pg_sys::ScanKeyEntryInitialize(
                    entry,
                    0,
                    n as pg_sys::AttrNumber + 1,
                    strategy as pg_sys::StrategyNumber,
                    Oid::INVALID,
                    collation,
                    operator.into(),
                    value,
                );
            }
            let slot = pg_sys::table_slot_create(table.relation.0, std::ptr::null_mut());
            let scan = begin_scan(table.relation.0, table.index(index), wanted.len() as c_int);
            pg_sys::index_rescan(scan, wanted.as_mut_ptr(), wanted.len() as c_int, std::ptr::null_mut(), 0);
            Scan { table, scan, slot }
        }
    }

    pub fn next(&mut self, direction: pg_sys::ScanDirection::Type) -> bool {
        // SAFETY: scan and slot are open.
        unsafe { pg_sys::index_getnext_slot(self.scan, direction, self.slot) }
    }

    pub fn place(&self) -> Place<'_> {
        // SAFETY: the slot holds a row; the place borrows the scan.
        unsafe {
            pg_sys::slot_getsomeattrs_int(self.slot, self.table.shape.types.len() as c_int);
            Place { slot: &*self.slot }
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
