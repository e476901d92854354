//! Rows that are written straight into a table and its indexes: the start and end of a statement cost more than its one row.
//!
//! Only where a statement would do the same and nothing besides. What the owner may have added (a trigger, a rule, an index, a
//! constraint, a column, a policy) is a statement's to obey, and so is what has to fail.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};

use pg_sys::{Datum, Oid};
use pgrx::pg_sys;

use super::catalog;
use super::invalidation;
use super::plan::See;
use super::trigger::Tuple;
use super::value;

/// What the engine knows of a table: as it was installed.
pub struct Shape {
    pub table: &'static CStr,
    pub types: &'static [Oid],
    /// The columns that a statement of the caller would name; the rest is the triggers' to set.
    pub given: &'static [usize],
    pub checks: u16,
    pub triggers: usize,
    pub indexes: &'static [Index],
    pub policy: &'static str,
}

/// An index of the table, and its columns, in their order.
pub struct Index {
    pub name: &'static CStr,
    pub columns: &'static [usize],
    pub is_unique: bool,
}

/// What was found of a table, until something about it, or about roles, changes.
#[derive(Default)]
struct Found {
    table: Oid,
    /// How often what was found has been forgotten.
    generation: u64,
    /// The users that were asked for: the indexes in the order of the shape, or `None` for whom it takes a statement.
    by_user: Vec<(Oid, Option<Vec<Oid>>)>,
}

thread_local! {
    static FOUND: RefCell<Found> = RefCell::default();
}

/// A relation that is about to be closed, as a statement closes it: its lock stays.
struct Open(pg_sys::Relation);

impl Open {
    fn table(relation: Oid) -> Open {
        // SAFETY: closed by the drop, or by the abort of an unwinding ERROR.
        Open(unsafe { pg_sys::table_open(relation, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE) })
    }

    fn index(relation: Oid) -> Open {
        // SAFETY: as above.
        Open(unsafe { pg_sys::index_open(relation, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE) })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: opened by the constructors.
            unsafe { pg_sys::relation_close(self.0, pg_sys::NoLock as pg_sys::LOCKMODE) };
        }
    }
}

/// A table that rows may be written to without a statement.
pub struct Table {
    shape: &'static Shape,
    relation: Open,
    indexes: Vec<Oid>,
}

impl Table {
    /// `None` if it takes a statement. `is_visible`: whether the table's policy, as it was installed, lets the rows through.
    pub fn open(shape: &'static Shape, is_visible: impl FnOnce() -> bool) -> Option<Table> {
        // SAFETY: reads variables of the backend.
        let takes_statement = unsafe {
            let hooks = [pg_sys::row_security_policy_hook_permissive, pg_sys::row_security_policy_hook_restrictive];
            hooks.iter().any(Option::is_some)
                || pg_sys::XactReadOnly
                || pg_sys::IsInParallelMode()
                || pg_sys::SessionReplicationRole != pg_sys::SESSION_REPLICATION_ROLE_ORIGIN as c_int
        };
        if takes_statement {
            return None;
        }
        let table = catalog::relation(shape.table);
        // Takes in what others have changed, before what was found is asked.
        let relation = Open::table(table);
        let indexes = found(shape, &relation, table)?;
        // SAFETY: syscache look-ups.
        let is_subject = unsafe {
            pg_sys::check_enable_rls(table, Oid::INVALID, true) == pg_sys::CheckEnableRlsResult::RLS_ENABLED as c_int
        };
        // SAFETY: reads a variable of the backend.
        let is_let_through = !is_subject || unsafe { pg_sys::row_security } && is_visible();
        is_let_through.then_some(Table { shape, relation, indexes })
    }

    /// Writes a row of the shape's columns. `wanted` says which of the shape's indexes it belongs into.
    pub fn insert(&self, row: &mut Tuple, wanted: impl Fn(usize) -> bool) {
        let (values, nulls) = row.parts();
        assert_eq!(values.len(), self.shape.types.len(), "a row of {:?}", self.shape.table);
        // SAFETY: the values are of the table's columns, whose types were compared; the tuple outlives its index entries.
        unsafe {
            let table = self.relation.0;
            let tuple = pg_sys::heap_form_tuple((*table).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
            pg_sys::simple_heap_insert(table, tuple);
            for (n, index) in self.shape.indexes.iter().enumerate().filter(|(n, _)| wanted(*n)) {
                let relation = Open::index(self.indexes[n]);
                let mut keys: Vec<Datum> = index.columns.iter().map(|column| values[*column]).collect();
                let mut are_null: Vec<bool> = index.columns.iter().map(|column| nulls[*column]).collect();
                let check = if index.is_unique {
                    pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES
                } else {
                    pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO
                };
                let info = pg_sys::BuildIndexInfo(relation.0);
                let place = &mut (*tuple).t_self;
                pg_sys::index_insert(
                    relation.0,
                    keys.as_mut_ptr(),
                    are_null.as_mut_ptr(),
                    place,
                    table,
                    check,
                    false,
                    info,
                );
            }
        }
    }
}

/// A row that a scan stands on, for as long as it does.
pub struct Place<'s> {
    slot: &'s pg_sys::TupleTableSlot,
}

impl Place<'_> {
    pub fn int8(&self, column: usize) -> Option<i64> {
        self.datum(column).map(|datum| datum.value() as i64)
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

impl Table {
    /// Reads the last row of an index whose first column, a bigint, is `key`.
    pub fn last<T>(&self, index: usize, key: i64, see: See, read: impl FnOnce(&Place) -> T) -> Option<T> {
        // SAFETY: the snapshot stays pushed while the scan is open, and the slot while its row is read; an ERROR's abort ends all
        // of them.
        unsafe {
            // As SPI does for a statement: own writes are seen.
            pg_sys::CommandCounterIncrement();
            pg_sys::PushActiveSnapshot(match see {
                See::Latest => pg_sys::GetLatestSnapshot(),
                _ => pg_sys::GetTransactionSnapshot(),
            });
            pg_sys::UpdateActiveSnapshotCommandId();
            let index = Open::index(self.indexes[index]);
            let mut wanted = pg_sys::ScanKeyData::default();
            let equal = pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber;
            pg_sys::ScanKeyInit(&mut wanted, 1, equal, pg_sys::F_INT8EQ.into(), Datum::from(key));
            let slot = pg_sys::table_slot_create(self.relation.0, std::ptr::null_mut());
            let scan = begin_scan(self.relation.0, index.0, 1);
            pg_sys::index_rescan(scan, &mut wanted, 1, std::ptr::null_mut(), 0);
            let found = pg_sys::index_getnext_slot(scan, pg_sys::ScanDirection::BackwardScanDirection, slot);
            let read = found.then(|| {
                pg_sys::slot_getsomeattrs_int(slot, self.shape.types.len() as c_int);
                read(&Place { slot: &*slot })
            });
            pg_sys::index_endscan(scan);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            pg_sys::PopActiveSnapshot();
            read
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

/// Makes what was written visible to the statements that follow.
pub fn finish() {
    // SAFETY: nothing else holds on to the command's id.
    unsafe { pg_sys::CommandCounterIncrement() };
}

fn found(shape: &Shape, relation: &Open, table: Oid) -> Option<Vec<Oid>> {
    let user = catalog::current_user();
    let known = FOUND.with_borrow(|found| {
        let of_user = found.by_user.iter().find(|(of, _)| *of == user && found.table == table);
        (of_user.map(|(_, indexes)| indexes.clone()), found.generation)
    });
    let (known, generation) = known;
    known.unwrap_or_else(|| {
        let indexes = is_allowed(table, user, shape).then(|| shape.find(relation)).flatten();
        FOUND.with_borrow_mut(|found| {
            // What is forgotten meanwhile was not found now.
            if found.generation == generation {
                found.table = table;
                found.by_user.push((user, indexes.clone()));
            }
        });
        indexes
    })
}

fn forget() {
    FOUND.with_borrow_mut(|found| {
        found.by_user.clear();
        found.generation += 1;
    });
}

fn is_allowed(table: Oid, user: Oid, shape: &Shape) -> bool {
    let may = |mode: u32, column: usize| {
        let number = column as pg_sys::AttrNumber + 1;
        // SAFETY: syscache look-ups.
        unsafe {
            pg_sys::pg_class_aclcheck(table, user, mode.into()) == pg_sys::AclResult::ACLCHECK_OK
                || pg_sys::pg_attribute_aclcheck(table, number, user, mode.into()) == pg_sys::AclResult::ACLCHECK_OK
        }
    };
    shape.given.iter().all(|column| may(pg_sys::ACL_INSERT, *column))
        && (0..shape.types.len()).all(|column| may(pg_sys::ACL_SELECT, column))
}

impl Shape {
    /// The indexes in the shape's order, if the table has just these, and all else as it was installed.
    fn find(&self, table: &Open) -> Option<Vec<Oid>> {
        // SAFETY: the relation is open, and its cache entry holds what is read here.
        unsafe {
            let relation = table.0;
            let (class, columns) = ((*relation).rd_rel, (*relation).rd_att);
            let is_plain = (*class).relkind == pg_sys::RELKIND_RELATION as c_char
                && (*class).relam == pg_sys::HEAP_TABLE_AM_OID
                && !(*class).relispartition
                && (*relation).rd_rules.is_null()
                && (*columns).natts as usize == self.types.len()
                && (1..).zip(self.types).all(|(number, wanted)| pg_sys::SPI_gettypeid(columns, number) == *wanted)
                && !(*columns).constr.is_null()
                && (*(*columns).constr).num_check == self.checks
                && !(*(*columns).constr).has_generated_stored
                && self.has_its_triggers(relation)
                && self.has_its_policy(relation);
            if is_plain { self.indexes_of(relation) } else { None }
        }
    }

    /// As many as were installed, all of them the engine's.
    unsafe fn has_its_triggers(&self, relation: pg_sys::Relation) -> bool {
        // SAFETY: as in find.
        unsafe {
            let triggers = (*relation).trigdesc;
            if triggers.is_null() || (*triggers).numtriggers as usize != self.triggers {
                return false;
            }
            let schema = (*(*relation).rd_rel).relnamespace;
            (0..self.triggers).map(|n| &*(*triggers).triggers.add(n)).all(|trigger| {
                trigger.tgenabled == pg_sys::TRIGGER_FIRES_ON_ORIGIN as c_char
                    && pg_sys::get_func_namespace(trigger.tgfoid) == schema
            })
        }
    }

    unsafe fn has_its_policy(&self, relation: pg_sys::Relation) -> bool {
        // SAFETY: as in find; a policy without an expression has none to print.
        unsafe {
            let policies = (*relation).rd_rsdesc;
            if policies.is_null() || list((*policies).policies).len() != 1 {
                return false;
            }
            let policy = list((*policies).policies)[0].ptr_value.cast::<pg_sys::RowSecurityPolicy>();
            if (*policy).polcmd != b'*' as c_char || !(*policy).permissive || (*policy).qual.is_null() {
                return false;
            }
            let names = pg_sys::deparse_context_for(self.table.as_ptr(), (*relation).rd_id);
            let printed = pg_sys::deparse_expression((*policy).qual.cast(), names, false, false);
            without_layout(&CStr::from_ptr(printed).to_string_lossy()) == without_layout(self.policy)
        }
    }

    unsafe fn indexes_of(&self, relation: pg_sys::Relation) -> Option<Vec<Oid>> {
        // SAFETY: as in find; the list is a copy.
        unsafe {
            let present: Vec<Oid> =
                list(pg_sys::RelationGetIndexList(relation)).iter().map(|cell| cell.oid_value).collect();
            if present.len() != self.indexes.len() {
                return None;
            }
            let named = |index: &Index| {
                present.iter().copied().find(|oid| {
                    let name = pg_sys::get_rel_name(*oid);
                    !name.is_null() && CStr::from_ptr(name) == index.name && index.is(&Open::index(*oid))
                })
            };
            self.indexes.iter().map(named).collect()
        }
    }
}

impl Index {
    unsafe fn is(&self, index: &Open) -> bool {
        // SAFETY: the relation is open, and indkey has as many elements as indnatts says.
        unsafe {
            let form = (*index.0).rd_index;
            let keys = (*form).indkey.values.as_slice((*form).indnatts as usize);
            (*form).indisvalid
                && (*form).indisready
                && (*form).indimmediate
                && (*form).indisunique == self.is_unique
                && keys.len() == self.columns.len()
                && keys.iter().zip(self.columns).all(|(key, column)| *key as usize == column + 1)
        }
    }
}

unsafe fn list<'a>(list: *mut pg_sys::List) -> &'a [pg_sys::ListCell] {
    // SAFETY: an empty list is NULL, any other has `length` cells.
    unsafe { if list.is_null() { &[] } else { std::slice::from_raw_parts((*list).elements, (*list).length as usize) } }
}

/// An expression without white space, and without the schema, which is printed or not as the search_path is.
fn without_layout(expression: &str) -> String {
    let words: String = expression.split_whitespace().collect();
    words.replace("agent_sessions.", "")
}

/// Called once, when the library is loaded.
pub fn watch() {
    invalidation::on_change(forget_table, forget_members);
}

unsafe extern "C-unwind" fn forget_table(_: Datum, relation: Oid) {
    if invalidation::concerns(relation, FOUND.with_borrow(|found| found.table)) {
        forget();
    }
}

unsafe extern "C-unwind" fn forget_members(_: Datum, _: i32, _: u32) {
    forget();
}
