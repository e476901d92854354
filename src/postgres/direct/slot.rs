//! A row of a table, where it lies.

use pgrx::{PgMemoryContexts, pg_sys};

use super::Table;
use super::tid::Tid;
use crate::postgres::plan::Spi;
use crate::postgres::rows::Row;
use crate::postgres::transaction::{self, Xid};
use crate::postgres::unguarded::{self, guarded};
use crate::postgres::{catalog, raise};

/// The row that a scan or a look stands on.
pub struct Slot<'t> {
    table: &'t Table,
    pub(super) slot: *mut pg_sys::TupleTableSlot,
}

/// A lock on a row, and what is certain of the one before.
#[derive(Clone, Copy)]
pub struct Lock {
    pub tid: Tid,
    /// The transaction that holds it, as it is written into the row.
    holder: Option<Xid>,
    /// The transaction that had locked this version of the row last, and alone; nobody has locked it between that and this.
    before: Option<Xid>,
}

impl Lock {
    /// Whether nobody has held the row, and it was not changed, between another lock and this. An id that has come round after four
    /// thousand million others is no other's: vacuum has long removed it from the row.
    pub fn follows(&self, other: Lock) -> bool {
        self.tid == other.tid && self.before.is_some() && self.before == other.holder
    }
}

impl<'t> Slot<'t> {
    pub fn of(table: &'t Table) -> Slot<'t> {
        let relation = table.relation.0;
        // SAFETY: the table is open; the drop ends the slot.
        let slot = unsafe { guarded(|| unguarded::table_slot_create(relation, std::ptr::null_mut())) };
        Slot { table, slot }
    }

    /// Stands on the row at that tid, or on the version of it that the snapshot sees, if it was changed since.
    ///
    /// # Safety
    /// The snapshot is valid for the call.
    pub(super) unsafe fn stand(&mut self, tid: Tid, snapshot: pg_sys::Snapshot) -> bool {
        let (table, slot) = (self.table.relation.0, self.slot);
        // SAFETY: the table is open, and has that page; what is called by a pointer has no guard of its own.
        unsafe {
            let Some(mut pointer) = tid.in_file_of(table) else { return false };
            let methods = &*(*table).rd_tableam;
            let fetch = methods.tuple_fetch_row_version.expect("a heap has it");
            if guarded(|| fetch(table, &mut pointer, snapshot, slot)) {
                return true;
            }
            let (begin, end) = (methods.scan_begin.expect("as above"), methods.scan_end.expect("as above"));
            let newest = methods.tuple_get_latest_tid.expect("as above");
            let (no_keys, not_parallel) = (std::ptr::null_mut(), std::ptr::null_mut());
            guarded(|| {
                let scan = begin(table, snapshot, 0, no_keys, not_parallel, pg_sys::ScanOptions::SO_TYPE_TIDSCAN);
                newest(scan, &mut pointer);
                end(scan);
                Tid::of(table, pointer) != tid && fetch(table, &mut pointer, snapshot, slot)
            })
        }
    }

    pub fn tid(&self) -> Tid {
        // SAFETY: the slot holds a row of the table, which is open.
        unsafe { Tid::of(self.table.relation.0, (*self.slot).tts_tid) }
    }

    /// The first columns of the row, which tell whether it is passed over.
    pub fn prefix(&self) -> Row<'_> {
        self.first(self.table.shape.prefix)
    }

    pub fn row(&self) -> Row<'_> {
        self.first(self.table.shape.types.len())
    }

    fn first(&self, columns: usize) -> Row<'_> {
        let types = &self.table.shape.types[..columns];
        // SAFETY: the slot holds a row of the table, whose columns are of these types; what is read of it borrows the slot.
        unsafe {
            if ((*self.slot).tts_nvalid as usize) < columns {
                pg_sys::slot_getsomeattrs_int(self.slot, columns as std::ffi::c_int);
            }
            Row::at((*self.slot).tts_values, (*self.slot).tts_isnull, types)
        }
    }

    /// Whether a column is NULL, without a look at those before it.
    pub fn is_null(&self, column: usize) -> bool {
        // SAFETY: the slot of a heap holds a tuple of the table's descriptor.
        unsafe {
            let tuple = (*self.slot.cast::<pg_sys::HeapTupleTableSlot>()).tuple;
            pg_sys::heap_attisnull(tuple, column as std::ffi::c_int + 1, (*self.table.relation.0).rd_att)
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

    /// Locks the row, and leaves the slot on its newest version; as a statement does FOR NO KEY UPDATE. `None` if it is gone, or if
    /// another transaction holds it and `waits` is not set. 40001 where the transaction has one snapshot, and the row was
    /// changed after it.
    pub fn lock(&mut self, waits: bool) -> Option<Lock> {
        let one_snapshot = catalog::one_snapshot();
        let follow = if one_snapshot { 0 } else { pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION };
        let wait = if waits { pg_sys::LockWaitPolicy::LockWaitBlock } else { pg_sys::LockWaitPolicy::LockWaitSkip };
        // In this order: who locks the row after the look, and is done before this lock, has ended in between.
        let ended = transaction::ended();
        let last = self.last_locker();
        // SAFETY: the slot holds a row of the table that the transaction sees.
        let result = unsafe {
            let (table, slot) = (self.table.relation.0, self.slot);
            let lock = (*(*table).rd_tableam).tuple_lock.expect("a heap has it");
            let (mut pointer, mut failure) = ((*self.slot).tts_tid, pg_sys::TM_FailureData::default());
            let mode = pg_sys::LockTupleMode::LockTupleNoKeyExclusive;
            let flags = (pg_sys::TUPLE_LOCK_FLAG_LOCK_UPDATE_IN_PROGRESS | follow) as u8;
            guarded(|| {
                let (one, cid) = (unguarded::GetActiveSnapshot(), unguarded::GetCurrentCommandId(true));
                lock(table, &mut pointer, one, slot, cid, mode, wait, flags, &mut failure)
            })
        };
        match result {
            pg_sys::TM_Result::TM_Ok => Some(Lock {
                tid: self.tid(),
                holder: self.last_locker(),
                before: last.filter(|_| transaction::ended() == ended),
            }),
            pg_sys::TM_Result::TM_Updated | pg_sys::TM_Result::TM_Deleted if one_snapshot => raise::concurrent_update(),
            _ => None,
        }
    }

    /// The transaction that has locked this version of the row last, if it was one, and did no more.
    fn last_locker(&self) -> Option<Xid> {
        // SAFETY: the slot of a heap holds a pinned tuple; its header is read as it is, since others may write it meanwhile.
        unsafe {
            let tuple = (*self.slot.cast::<pg_sys::HeapTupleTableSlot>()).tuple;
            let header = (*tuple).t_data;
            let flags = std::ptr::read_volatile(&raw const (*header).t_infomask) as u32;
            let xmax = std::ptr::read_volatile(&raw const (*header).t_choice.t_heap.t_xmax);
            let is_one_lock = flags & pg_sys::HEAP_XMAX_LOCK_ONLY != 0 && flags & pg_sys::HEAP_XMAX_IS_MULTI == 0;
            is_one_lock.then(|| Xid::from(xmax))
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: created by the constructor.
            unsafe { pg_sys::ExecDropSingleTupleTableSlot(self.slot) };
        }
    }
}
