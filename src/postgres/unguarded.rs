//! Functions of the server without a guard of their own. pgrx guards every call by itself, in 100 instructions and a jump buffer; these
//! are called several under one guard, in a closure that owns nothing and cannot panic, since an ERROR jumps over it.

use std::ffi::c_int;

use pgrx::pg_sys;

/// Runs `calls` under one guard.
///
/// # Safety
/// The closure owns nothing that would have to be dropped, and does not panic.
pub use pg_sys::ffi::pg_guard_ffi_boundary as guarded;

unsafe extern "C-unwind" {
    pub fn CommandCounterIncrement();
    pub fn GetActiveSnapshot() -> pg_sys::Snapshot;
    pub fn GetCurrentCommandId(is_used: bool) -> pg_sys::CommandId;
    pub fn GetLatestSnapshot() -> pg_sys::Snapshot;
    pub fn GetTransactionSnapshot() -> pg_sys::Snapshot;
    pub fn PushActiveSnapshot(snapshot: pg_sys::Snapshot);
    pub fn ScanKeyEntryInitialize(
        entry: pg_sys::ScanKey,
        flags: c_int,
        attribute: pg_sys::AttrNumber,
        strategy: pg_sys::StrategyNumber,
        subtype: pg_sys::Oid,
        collation: pg_sys::Oid,
        procedure: pg_sys::RegProcedure,
        argument: pg_sys::Datum,
    );
    pub fn heap_form_tuple(
        descriptor: pg_sys::TupleDesc,
        values: *mut pg_sys::Datum,
        nulls: *mut bool,
    ) -> pg_sys::HeapTuple;
    fn index_beginscan(
        table: pg_sys::Relation,
        index: pg_sys::Relation,
        snapshot: pg_sys::Snapshot,
        #[cfg(feature = "pg18")] instrument: *mut pg_sys::IndexScanInstrumentation,
        keys: c_int,
        orders: c_int,
    ) -> pg_sys::IndexScanDesc;
    pub fn index_endscan(scan: pg_sys::IndexScanDesc);
    pub fn index_getnext_slot(
        scan: pg_sys::IndexScanDesc,
        direction: pg_sys::ScanDirection::Type,
        slot: *mut pg_sys::TupleTableSlot,
    ) -> bool;
    pub fn index_insert(
        index: pg_sys::Relation,
        values: *mut pg_sys::Datum,
        nulls: *mut bool,
        place: pg_sys::ItemPointer,
        table: pg_sys::Relation,
        check: pg_sys::IndexUniqueCheck::Type,
        is_unchanged: bool,
        info: *mut pg_sys::IndexInfo,
    ) -> bool;
    pub fn index_rescan(
        scan: pg_sys::IndexScanDesc,
        keys: pg_sys::ScanKey,
        key_count: c_int,
        orders: pg_sys::ScanKey,
        order_count: c_int,
    );
    pub fn UpdateActiveSnapshotCommandId();
    pub fn simple_heap_insert(table: pg_sys::Relation, tuple: pg_sys::HeapTuple);
    pub fn slot_getsomeattrs_int(slot: *mut pg_sys::TupleTableSlot, columns: c_int);
    pub fn table_slot_create(table: pg_sys::Relation, list: *mut *mut pg_sys::List) -> *mut pg_sys::TupleTableSlot;
}

/// Begins a scan of an index.
///
/// # Safety
/// Table and index are open, the snapshot outlives the scan, and a guard is around.
pub unsafe fn begin_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    keys: c_int,
) -> pg_sys::IndexScanDesc {
    // SAFETY: by the caller's promise; nobody counts what is scanned.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        return index_beginscan(table, index, snapshot, keys, 0);
        #[cfg(feature = "pg18")]
        return index_beginscan(table, index, snapshot, std::ptr::null_mut(), keys, 0);
    }
}
