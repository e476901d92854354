//! How the engine's statements are planned: for tables of a million rows, whatever their statistics say.
//!
//! They are planned once, often when the tables are empty, or were analyzed so: 10 000 entries later, a sequential scan for the
//! tail is 0.35 ms an append. All of them look up a few rows by key, or go through a log in its order; so the plans that the
//! tests judge are the plans that everybody has.

use std::cell::{Cell, OnceCell};
use std::ffi::{CStr, c_char, c_int};

use pgrx::pg_sys;

/// Marks a statement as the engine's: an option that PostgreSQL does not know, and hands from SPI to the planner as it is.
pub const BY_KEY: c_int = 1 << 30;

const ROWS: f64 = 1e6;
const PAGES: u32 = 100_000;
const INDEX_PAGES: u32 = 5_000;
const INDEX_HEIGHT: c_int = 2;

/// When a session was hidden: few are. Unknown, IS NULL would be taken to hold for one row in 200, and the index of the others to
/// be the short way to all of them.
const MOSTLY_NULL: &CStr = c"deleted_at";
const NULLS: f32 = 0.99;

const SETTINGS: [(&CStr, &CStr); 5] = [
    (c"enable_seqscan", c"off"),
    (c"enable_bitmapscan", c"off"),
    (c"enable_hashjoin", c"off"),
    (c"enable_mergejoin", c"off"),
    (c"jit", c"off"),
];

/// The hooks of libraries that were loaded before.
struct Hooks {
    planner: pg_sys::planner_hook_type,
    relation_info: pg_sys::get_relation_info_hook_type,
    relation_stats: pg_sys::get_relation_stats_hook_type,
    index_stats: pg_sys::get_index_stats_hook_type,
}

thread_local! {
    static OTHERS: OnceCell<Hooks> = const { OnceCell::new() };
    /// Whether it is a statement of the engine that is being planned.
    static BY_KEY_NOW: Cell<bool> = const { Cell::new(false) };
}

/// Called once, when the library is loaded. Other libraries' hooks are called with a guard, which a pointer has not.
pub fn hook() {
    // SAFETY: a backend has one thread, and these variables are there to be set.
    unsafe {
        let others = Hooks {
            planner: pg_sys::planner_hook,
            relation_info: pg_sys::get_relation_info_hook,
            relation_stats: pg_sys::get_relation_stats_hook,
            index_stats: pg_sys::get_index_stats_hook,
        };
        assert!(OTHERS.with(|hooks| hooks.set(others)).is_ok(), "a library is loaded once");
        pg_sys::planner_hook = Some(plan);
        pg_sys::get_relation_info_hook = Some(size);
        pg_sys::get_relation_stats_hook = Some(column_statistics);
        pg_sys::get_index_stats_hook = Some(index_statistics);
    }
}

fn other<T>(hook: impl FnOnce(&Hooks) -> T) -> T {
    OTHERS.with(|hooks| hook(hooks.get().expect("set before the hooks are")))
}

/// Until it is dropped, also by an unwinding ERROR, statements of the engine are planned, or again those of others.
struct Planning {
    outer: bool,
}

impl Planning {
    fn begin(by_key: bool) -> Planning {
        Planning { outer: BY_KEY_NOW.replace(by_key) }
    }
}

impl Drop for Planning {
    fn drop(&mut self) {
        BY_KEY_NOW.set(self.outer);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn plan(
    query: *mut pg_sys::Query,
    text: *const c_char,
    options: c_int,
    parameters: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    let is_ours = options & BY_KEY != 0;
    let _planning = Planning::begin(is_ours);
    let hook = other(|hooks| hooks.planner);
    // SAFETY: the arguments are the planner's own, handed on; the settings end with the nest level, or by the abort of an ERROR.
    unsafe {
        let planner = |options| match hook {
            Some(hook) => pg_sys::ffi::pg_guard_ffi_boundary(|| hook(query, text, options, parameters)),
            None => pg_sys::standard_planner(query, text, options, parameters),
        };
        if !is_ours {
            return planner(options);
        }
        let level = pg_sys::NewGUCNestLevel();
        for (name, value) in SETTINGS {
            let (context, source) = (pg_sys::GucContext::PGC_USERSET, pg_sys::GucSource::PGC_S_SESSION);
            let action = pg_sys::GucAction::GUC_ACTION_SAVE;
            pg_sys::set_config_option(name.as_ptr(), value.as_ptr(), context, source, action, true, 0, false);
        }
        let planned = planner(options & !BY_KEY);
        pg_sys::AtEOXact_GUC(true, level);
        planned
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn size(
    root: *mut pg_sys::PlannerInfo,
    relation: pg_sys::Oid,
    is_parent: bool,
    info: *mut pg_sys::RelOptInfo,
) {
    // SAFETY: the planner's own structures, which it has filled in before it calls this.
    unsafe {
        if let Some(hook) = other(|hooks| hooks.relation_info) {
            pg_sys::ffi::pg_guard_ffi_boundary(|| hook(root, relation, is_parent, info));
        }
        if BY_KEY_NOW.get() {
            (*info).tuples = ROWS;
            (*info).pages = PAGES;
            let indexes = (*info).indexlist;
            for n in 0..if indexes.is_null() { 0 } else { (*indexes).length as usize } {
                let index = (*(*indexes).elements.add(n)).ptr_value.cast::<pg_sys::IndexOptInfo>();
                (*index).tuples = ROWS;
                (*index).pages = INDEX_PAGES;
                (*index).tree_height = INDEX_HEIGHT;
            }
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn column_statistics(
    root: *mut pg_sys::PlannerInfo,
    table: *mut pg_sys::RangeTblEntry,
    column: pg_sys::AttrNumber,
    found: *mut pg_sys::VariableStatData,
) -> bool {
    // SAFETY: the planner's own structures; true says that what is found there is all that there is.
    unsafe {
        if !BY_KEY_NOW.get() {
            return other(|hooks| hooks.relation_stats)
                .is_some_and(|hook| pg_sys::ffi::pg_guard_ffi_boundary(|| hook(root, table, column, found)));
        }
        let name = pg_sys::get_attname((*table).relid, column, true);
        if !name.is_null() && CStr::from_ptr(name) == MOSTLY_NULL {
            (*found).statsTuple = nulls((*table).relid, column);
            (*found).freefunc = Some(free);
        }
        true
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn free(tuple: pg_sys::HeapTuple) {
    // SAFETY: the planner is done with what `nulls` has made.
    unsafe { pg_sys::heap_freetuple(tuple) }
}

/// Statistics of a column that say of its values only that nearly all are NULL.
unsafe fn nulls(table: pg_sys::Oid, column: pg_sys::AttrNumber) -> pg_sys::HeapTuple {
    // SAFETY: the tuple has a value for each column of pg_statistic up to the slots, whose values alone are NULL.
    unsafe {
        let catalog = pg_sys::table_open(pg_sys::StatisticRelationId, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let columns = (*(*catalog).rd_att).natts as usize;
        let mut values = vec![pg_sys::Datum::from(0); columns];
        let mut is_null = vec![false; columns];
        is_null[pg_sys::Anum_pg_statistic_stanumbers1 as usize - 1..].fill(true);
        let mut set = |place: u32, value| values[place as usize - 1] = value;
        set(pg_sys::Anum_pg_statistic_starelid, pg_sys::Datum::from(table));
        set(pg_sys::Anum_pg_statistic_staattnum, pg_sys::Datum::from(column));
        set(pg_sys::Anum_pg_statistic_stanullfrac, pg_sys::Datum::from(NULLS.to_bits()));
        let tuple = pg_sys::heap_form_tuple((*catalog).rd_att, values.as_mut_ptr(), is_null.as_mut_ptr());
        pg_sys::table_close(catalog, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        tuple
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn index_statistics(
    root: *mut pg_sys::PlannerInfo,
    index: pg_sys::Oid,
    column: pg_sys::AttrNumber,
    found: *mut pg_sys::VariableStatData,
) -> bool {
    // SAFETY: as in column_statistics; all our indexes are of plain columns.
    BY_KEY_NOW.get()
        || other(|hooks| hooks.index_stats)
            .is_some_and(|hook| unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| hook(root, index, column, found)) })
}
