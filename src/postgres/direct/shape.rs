//! What a table was installed as, and whether it still is.

use std::ffi::{CStr, c_char, c_int};

use pg_sys::{Datum, Oid};
use pgrx::pg_sys;

use super::relation::Open;
use crate::postgres::value::{self, Element};

/// What the engine knows of a table: as it was installed.
pub struct Shape {
    pub table: &'static CStr,
    pub types: &'static [Oid],
    /// How many of the first columns tell whether a row is passed over: most where the last of them is NULL, and few others.
    pub prefix: usize,
    pub indexes: &'static [Index],
    pub policy: &'static str,
    pub purpose: Purpose,
}

/// What is done with its rows.
pub enum Purpose {
    /// All columns are read.
    Read,
    Lock,
    Insert {
        /// The columns that a statement of the caller would name; the rest is the triggers' to set.
        given: &'static [usize],
        checks: u16,
        triggers: usize,
    },
}

impl Purpose {
    /// The lock that a statement of this purpose takes on the table.
    pub fn lock_mode(&self) -> u32 {
        match self {
            Purpose::Read => pg_sys::AccessShareLock,
            Purpose::Lock => pg_sys::RowShareLock,
            Purpose::Insert { .. } => pg_sys::RowExclusiveLock,
        }
    }

    /// Whether it fails, or goes another way, in this transaction.
    pub fn is_barred(&self) -> bool {
        // SAFETY: reads variables of the backend.
        let takes_statement = || unsafe {
            pg_sys::XactReadOnly
                || pg_sys::IsInParallelMode()
                || pg_sys::SessionReplicationRole != pg_sys::SESSION_REPLICATION_ROLE_ORIGIN as c_int
        };
        !matches!(self, Purpose::Read) && takes_statement()
    }
}

/// An index of the table, and its columns, in their order.
pub struct Index {
    pub name: &'static CStr,
    pub columns: &'static [usize],
    pub is_unique: bool,
}

impl Shape {
    /// Whether the user may do to the table what the statement would.
    pub fn allows(&self, table: Oid, user: Oid) -> bool {
        let may = |mode: pg_sys::AclMode, column: usize| {
            let number = column as pg_sys::AttrNumber + 1;
            // SAFETY: syscache look-ups.
            unsafe {
                pg_sys::pg_class_aclcheck(table, user, mode) == pg_sys::AclResult::ACLCHECK_OK
                    || pg_sys::pg_attribute_aclcheck(table, number, user, mode) == pg_sys::AclResult::ACLCHECK_OK
            }
        };
        let may_write = match self.purpose {
            Purpose::Read => true,
            // One column is enough, as for a statement that locks.
            Purpose::Lock => (0..self.types.len()).any(|column| may(pg_sys::ACL_UPDATE as pg_sys::AclMode, column)),
            Purpose::Insert { given, .. } => {
                given.iter().all(|column| may(pg_sys::ACL_INSERT as pg_sys::AclMode, *column))
            }
        };
        may_write && (0..self.types.len()).all(|column| may(pg_sys::ACL_SELECT as pg_sys::AclMode, column))
    }

    /// The indexes in the shape's order, if the table is as it was installed as far as the purpose goes.
    pub fn find(&self, table: &Open) -> Option<Vec<Oid>> {
        // SAFETY: the relation is open, and its cache entry holds what is read here.
        unsafe {
            let relation = table.0;
            let (class, columns) = ((*relation).rd_rel, (*relation).rd_att);
            let is_known = (*class).relkind == pg_sys::RELKIND_RELATION as c_char
                && (*class).relam == pg_sys::HEAP_TABLE_AM_OID
                && !(*class).relispartition
                && !(*class).relhassubclass
                && (*columns).natts as usize == self.types.len()
                && (1..).zip(self.types).all(|(number, wanted)| pg_sys::SPI_gettypeid(columns, number) == *wanted)
                && self.has_its_policy(relation);
            let is_plain = || match self.purpose {
                Purpose::Read | Purpose::Lock => true,
                Purpose::Insert { checks, triggers, .. } => {
                    (*relation).rd_rules.is_null()
                        && !(*columns).constr.is_null()
                        && (*(*columns).constr).num_check == checks
                        && !(*(*columns).constr).has_generated_stored
                        && has_just_its_triggers(relation, triggers)
                }
            };
            if is_known && is_plain() { self.indexes_of(relation) } else { None }
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
            let roles = value::elements(Element::Oid, Datum::from((*policy).roles));
            let is_for_all = (*policy).polcmd == b'*' as c_char
                && (*policy).permissive
                && (*policy).with_check_qual.is_null()
                && roles.is_some_and(|roles| roles.iter().map(|role| role.value() as u32).eq([pg_sys::ACL_ID_PUBLIC]));
            if !is_for_all || (*policy).qual.is_null() {
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
            if matches!(self.purpose, Purpose::Insert { .. }) && present.len() != self.indexes.len() {
                return None;
            }
            let named = |index: &Index| {
                present.iter().copied().find(|oid| {
                    let name = pg_sys::get_rel_name(*oid);
                    !name.is_null()
                        && CStr::from_ptr(name) == index.name
                        && index.is(&Open::index(*oid, self.purpose.lock_mode()))
                })
            };
            self.indexes.iter().map(named).collect()
        }
    }
}

/// As many as were installed, all of them the engine's.
unsafe fn has_just_its_triggers(relation: pg_sys::Relation, installed: usize) -> bool {
    // SAFETY: the relation is open.
    unsafe {
        let triggers = (*relation).trigdesc;
        if triggers.is_null() || (*triggers).numtriggers as usize != installed {
            return false;
        }
        let schema = (*(*relation).rd_rel).relnamespace;
        (0..installed).map(|n| &*(*triggers).triggers.add(n)).all(|trigger| {
            trigger.tgenabled == pg_sys::TRIGGER_FIRES_ON_ORIGIN as c_char
                && pg_sys::get_func_namespace(trigger.tgfoid) == schema
        })
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
