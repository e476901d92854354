//! Rows that are locked, read and written straight through a table's indexes: the start and end of a statement cost more than
//! its one row.
//!
//! Only where a statement would do the same and nothing besides. What the owner may have added (a trigger, a rule, an index, a
//! constraint, a column, a policy) is a statement's to obey, and so is what has to fail.

mod found;
mod relation;
mod scan;
mod shape;
mod slot;
mod tid;

use std::cell::OnceCell;
use std::ffi::c_int;
use std::rc::Rc;

use pg_sys::{Datum, Oid};
use pgrx::pg_sys;

pub use found::watch;
pub use scan::{Direction, Key};
pub use shape::{Index, Purpose, Shape};
pub use slot::{Lock, Slot};
pub use tid::Tid;

use super::catalog;
use super::plan::{See, seeing};
use super::rows::Row;
use super::trigger::Tuple;
use super::unguarded::{self, guarded};
use relation::Open;
use scan::Scan;

/// A table whose rows may be read, locked or written without a statement.
pub struct Table {
    shape: &'static Shape,
    relation: Open,
    indexes: Rc<[Oid]>,
    /// Opened by their first use.
    open_indexes: Vec<OnceCell<Open>>,
}

impl Table {
    /// `None` if it takes a statement. `is_visible`: whether the table's policy, as it was installed, lets the rows through.
    pub fn open(shape: &'static Shape, is_visible: impl FnOnce() -> bool) -> Option<Table> {
        if is_hooked() || shape.purpose.is_barred() {
            return None;
        }
        let table = catalog::relation(shape.table);
        if table == Oid::INVALID {
            return None;
        }
        // Takes in what others have changed, before what was found is asked.
        let relation = Open::table(table, shape.purpose.lock_mode());
        let indexes = found::indexes(shape, &relation, table)?;
        // SAFETY: syscache look-ups.
        let is_subject = unsafe {
            pg_sys::check_enable_rls(table, Oid::INVALID, true) == pg_sys::CheckEnableRlsResult::RLS_ENABLED as c_int
        };
        // SAFETY: reads a variable of the backend.
        let is_let_through = !is_subject || unsafe { pg_sys::row_security } && is_visible();
        is_let_through.then(|| {
            let open_indexes = indexes.iter().map(|_| OnceCell::new()).collect();
            Table { shape, relation, indexes, open_indexes }
        })
    }

    /// One of the shape's indexes.
    fn index(&self, index: usize) -> pg_sys::Relation {
        self.open_indexes[index].get_or_init(|| Open::index(self.indexes[index], self.shape.purpose.lock_mode())).0
    }

    /// Writes a row of the shape's columns, and says where. `wanted` says which of the shape's indexes it belongs into.
    pub fn insert(&self, row: &mut Tuple, wanted: impl Fn(usize) -> bool) -> Tid {
        let (values, nulls) = row.parts();
        assert_eq!(values.len(), self.shape.types.len(), "a row of {:?}", self.shape.table);
        let entry = |(n, index): (usize, &Index)| Entry {
            index: self.index(n),
            check: match index.is_unique {
                true => pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES,
                false => pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO,
            },
            values: index.columns.iter().map(|column| values[*column]).collect(),
            nulls: index.columns.iter().map(|column| nulls[*column]).collect(),
        };
        let mut entries: Vec<Entry> =
            self.shape.indexes.iter().enumerate().filter(|(n, _)| wanted(*n)).map(entry).collect();
        let (table, entries) = (self.relation.0, entries.as_mut_slice());
        // SAFETY: the values are of the table's columns, whose types were compared; the tuple outlives its index entries.
        unsafe {
            let pointer = guarded(|| {
                let tuple = unguarded::heap_form_tuple((*table).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
                unguarded::simple_heap_insert(table, tuple);
                let pointer = &raw mut (*tuple).t_self;
                for entry in entries {
                    let (values, nulls) = (entry.values.as_mut_ptr(), entry.nulls.as_mut_ptr());
                    // Only expressions and other access methods ask for it.
                    let info = std::ptr::null_mut();
                    unguarded::index_insert(entry.index, values, nulls, pointer, table, entry.check, false, info);
                }
                *pointer
            });
            Tid::of(table, pointer)
        }
    }

    /// Hands the rows that an index has for `keys` to `visit`, in the order of the index, until it returns false.
    pub fn walk(
        &self,
        index: usize,
        keys: &[Key],
        direction: Direction,
        see: See,
        mut visit: impl FnMut(&Slot) -> bool,
    ) {
        seeing(see, || {
            let mut scan = Scan::begin(self, index, keys);
            while scan.next(direction) && visit(&scan.slot) {
                pgrx::check_for_interrupts!();
            }
        });
    }

    /// Whether an index has a row for `keys`: as the transaction's snapshot shows it, if it has one for all, else one that is committed or
    /// our own. For rows that nobody else writes meanwhile; a snapshot is 1 400 instructions.
    pub fn has(&self, index: usize, keys: &[Key]) -> bool {
        if catalog::one_snapshot() {
            return seeing(See::Now, || Scan::begin(self, index, keys).next(Direction::Forward));
        }
        // SAFETY: the snapshot is static.
        unsafe { Scan::under(&raw mut pg_sys::SnapshotSelfData, self, index, keys) }.next(Direction::Forward)
    }

    /// Reads the row at a tid, if one is seen there and it `is_meant`.
    pub fn read_at<T>(
        &self,
        tid: Tid,
        see: See,
        is_meant: impl Fn(&Slot) -> bool,
        read: impl FnOnce(&Slot) -> T,
    ) -> Option<T> {
        seeing(see, || {
            let mut slot = Slot::of(self);
            // SAFETY: the active snapshot is valid.
            let is_there = unsafe { slot.stand(tid, pg_sys::GetActiveSnapshot()) };
            (is_there && is_meant(&slot)).then(|| read(&slot))
        })
    }

    /// Locks the row that an index has for `keys` and that `is_meant`, against other writers, and reads it. `None` if there is none,
    /// or none any more once it is locked, or if it is locked by another transaction and `waits` is not set. 40001 where the
    /// transaction has one snapshot, and the row was changed after it.
    pub fn lock<T>(
        &self,
        index: usize,
        keys: &[Key],
        waits: bool,
        is_meant: impl Fn(&Slot) -> bool,
        read: impl FnOnce(Row, Lock) -> T,
    ) -> Option<T> {
        seeing(See::Now, || {
            let mut scan = Scan::begin(self, index, keys);
            while scan.next(Direction::Forward) {
                if is_meant(&scan.slot) {
                    return lock_meant(&mut scan.slot, waits, is_meant, read);
                }
            }
            None
        })
    }

    /// The same for the row at a tid; `None` if the row there is not the one, so that it has to be looked for.
    pub fn lock_at<T>(
        &self,
        tid: Tid,
        waits: bool,
        is_meant: impl Fn(&Slot) -> bool,
        read: impl FnOnce(Row, Lock) -> T,
    ) -> Option<Option<T>> {
        // What there is to see of a transaction that has one snapshot is a matter of that.
        if catalog::one_snapshot() {
            return None;
        }
        let mut slot = self.living_at(tid)?;
        is_meant(&slot).then(|| lock_meant(&mut slot, waits, is_meant, read))
    }

    /// Reads the row at a tid that is committed or our own, and not superseded, if it `is_meant`.
    pub fn read_living_at<T>(
        &self,
        tid: Tid,
        is_meant: impl Fn(&Slot) -> bool,
        read: impl FnOnce(Row) -> T,
    ) -> Option<T> {
        let slot = self.living_at(tid)?;
        is_meant(&slot).then(|| read(slot.row()))
    }

    fn living_at(&self, tid: Tid) -> Option<Slot<'_>> {
        let mut slot = Slot::of(self);
        // SAFETY: the snapshot is static. What the command has written so far is to be locked as well.
        let is_there = unsafe {
            pg_sys::CommandCounterIncrement();
            slot.stand(tid, &raw mut pg_sys::SnapshotSelfData)
        };
        is_there.then_some(slot)
    }
}

fn lock_meant<T>(
    slot: &mut Slot,
    waits: bool,
    is_meant: impl Fn(&Slot) -> bool,
    read: impl FnOnce(Row, Lock) -> T,
) -> Option<T> {
    let lock = slot.lock(waits)?;
    is_meant(slot).then(|| read(slot.row(), lock))
}

/// What an index is to hold of a row.
struct Entry {
    index: pg_sys::Relation,
    check: pg_sys::IndexUniqueCheck::Type,
    values: Vec<Datum>,
    nulls: Vec<bool>,
}

/// Whether somebody's hook is to see the statements: their policies, or what they may read and write.
fn is_hooked() -> bool {
    // SAFETY: reads variables of the backend.
    let (policies, checks) = unsafe {
        let policies = [pg_sys::row_security_policy_hook_permissive, pg_sys::row_security_policy_hook_restrictive];
        (policies, pg_sys::ExecutorCheckPerms_hook)
    };
    policies.iter().any(Option::is_some) || checks.is_some()
}

/// Makes what was written visible to the statements that follow.
pub fn finish() {
    // SAFETY: nothing else holds on to the command's id.
    unsafe { pg_sys::CommandCounterIncrement() };
}
