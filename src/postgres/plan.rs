//! Statements of the engine: prepared once per backend, run through SPI.
//!
//! pgrx's SPI client copies argument types and results on every call, and its `select` may read an old snapshot; an append
//! runs three of these.

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::marker::PhantomData;

use pg_sys::{Datum, Oid};
use pgrx::{PgMemoryContexts, pg_sys};

use super::owner;
use super::planner;
use super::rows::{Row, Rows};
use super::unguarded::{self, guarded};

/// The text of a statement that is put together from parts.
#[macro_export]
macro_rules! sql {
    ($($part:expr),* $(,)?) => {
        match std::ffi::CStr::from_bytes_with_nul(concat!($($part,)* "\0").as_bytes()) {
            Ok(sql) => sql,
            Err(_) => panic!("a statement holds no NUL"),
        }
    };
}

/// Which rows a statement sees.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum See {
    /// What the calling statement sees, read-only: for STABLE functions. Assigns no transaction id.
    Caller,
    /// What the transaction sees now, its own writes included.
    Now,
    /// What is committed now, its own writes included, whatever snapshot the transaction has.
    Latest,
    /// What the catalogs would show now: committed, whatever the snapshot, and allowed in parallel workers.
    Committed,
}

/// Runs `read`, in which [`See::Caller`] means what `see` means now: several statements, or none, see the same.
pub fn seeing<T>(see: See, read: impl FnOnce() -> T) -> T {
    // SAFETY: the snapshot is copied when it is pushed, and popped here or by the abort of an unwinding ERROR. It is taken as SPI
    // does for a statement, so that own writes are seen.
    unsafe {
        match see {
            See::Caller => return read(),
            See::Committed => pg_sys::PushActiveSnapshot(pg_sys::GetCatalogSnapshot(Oid::INVALID)),
            See::Now | See::Latest => guarded(|| {
                unguarded::CommandCounterIncrement();
                unguarded::PushActiveSnapshot(match see {
                    See::Latest => unguarded::GetLatestSnapshot(),
                    _ => unguarded::GetTransactionSnapshot(),
                });
                unguarded::UpdateActiveSnapshotCommandId();
            }),
        }
        let result = read();
        pg_sys::PopActiveSnapshot();
        result
    }
}

/// A connection to SPI, for as long as it lives. Rows live as long.
///
/// Connections nest, and SPI works with the innermost: a statement run on another would leave its rows in the wrong memory.
pub struct Spi {
    depth: u32,
    _not_send: PhantomData<*mut ()>,
}

thread_local! {
    /// How many connections are open.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

impl Spi {
    pub fn connect() -> Spi {
        // SAFETY: connections nest; each is finished by its drop, or by the abort of its transaction.
        unsafe { pg_sys::SPI_connect() };
        DEPTH.set(DEPTH.get() + 1);
        Spi { depth: DEPTH.get(), _not_send: PhantomData }
    }

    pub fn assert_innermost(&self) {
        assert_eq!(self.depth, DEPTH.get(), "a statement needs the innermost connection");
    }

    /// Runs a utility statement, or one that is built for one call.
    pub fn execute(&self, sql: &str) {
        self.assert_innermost();
        let sql = CString::new(sql).expect("statements are built from quoted identifiers");
        // SAFETY: the text outlives the call.
        let result = unsafe { pg_sys::SPI_execute(sql.as_ptr(), false, 0) };
        assert!(result >= 0, "SPI_execute: {result}");
    }
}

impl Drop for Spi {
    fn drop(&mut self) {
        DEPTH.set(self.depth - 1);
        // An unwinding ERROR is followed by an abort, which closes what is open.
        if !std::thread::panicking() {
            // SAFETY: this connection is the innermost, since later ones were dropped before it.
            unsafe { pg_sys::SPI_finish() };
        }
    }
}

/// A statement that is planned once per backend and replanned by PostgreSQL when what it depends on changes; once more for
/// acting as the owner, since a plan that two users share is made anew with every turn.
///
/// Its text names every object and operator with its schema: a plan may be analysed again under another search_path.
pub struct KeptPlan {
    sql: &'static CStr,
    types: &'static [Oid],
    plans: [Cell<pg_sys::SPIPlanPtr>; 2],
}

// SAFETY: a backend has one thread.
unsafe impl Sync for KeptPlan {}

impl KeptPlan {
    pub const fn new(sql: &'static CStr, types: &'static [Oid]) -> KeptPlan {
        KeptPlan { sql, types, plans: [const { Cell::new(std::ptr::null_mut()) }; 2] }
    }

    fn plan(&self) -> pg_sys::SPIPlanPtr {
        let kept = &self.plans[usize::from(owner::is_acting())];
        if kept.get().is_null() {
            // SAFETY: text and types are static; a kept plan lives as long as the backend.
            unsafe {
                // Generic from the first run: a plan for the values of one page is made anew each time, and trusts their limit
                // more than the missing statistics (4 900 buffers instead of 20 for a page of 20 in 100 000 entries).
                let plan = pg_sys::SPI_prepare_cursor(
                    self.sql.as_ptr(),
                    self.types.len() as i32,
                    self.types.as_ptr().cast_mut(),
                    pg_sys::CURSOR_OPT_GENERIC_PLAN as i32 | planner::BY_KEY,
                );
                assert!(!plan.is_null(), "SPI_prepare: {:?}", self.sql);
                pg_sys::SPI_keepplan(plan);
                kept.set(plan);
            }
        }
        kept.get()
    }

    /// Runs the statement; `arguments` are of the plan's types, NULL where `None`.
    pub fn run<'s>(&self, spi: &'s Spi, see: See, arguments: &[Option<Datum>]) -> Rows<'s> {
        spi.assert_innermost();
        let plan = self.plan();
        let (mut values, nulls) = self.split(arguments);
        let (values, nulls) = (values.as_mut_ptr(), nulls.as_ptr());
        // SAFETY: values and nulls have as many elements as the plan has types, checked by split; the snapshots are valid
        // for the call, which pushes its own copy.
        let result = unsafe {
            match see {
                See::Caller => pg_sys::SPI_execute_plan(plan, values, nulls, true, 0),
                See::Now => pg_sys::SPI_execute_plan(plan, values, nulls, false, 0),
                See::Latest => {
                    let latest = pg_sys::GetLatestSnapshot();
                    pg_sys::SPI_execute_snapshot(plan, values, nulls, latest, std::ptr::null_mut(), false, true, 0)
                }
                See::Committed => {
                    let committed = pg_sys::GetCatalogSnapshot(Oid::INVALID);
                    pg_sys::SPI_execute_snapshot(plan, values, nulls, committed, std::ptr::null_mut(), true, true, 0)
                }
            }
        };
        assert!(result >= 0, "SPI_execute_plan: {result}");
        // SAFETY: SPI has just set both.
        unsafe { Rows::new(pg_sys::SPI_tuptable, pg_sys::SPI_processed as usize) }
    }

    /// Runs the statement read-only, and hands its rows to `each`, one by one; what it makes of a row is freed before the next, so
    /// that memory grows neither with their number nor with what they hold.
    pub fn stream(&self, spi: &Spi, arguments: &[Option<Datum>], mut each: impl FnMut(Row)) {
        spi.assert_innermost();
        let plan = self.plan();
        let (mut values, nulls) = self.split(arguments);
        let mut memory = PgMemoryContexts::new("agent_sessions row");
        // SAFETY: as in run; each batch and what was made of it are freed before the next is fetched, and the portal is
        // closed at the end or by the abort.
        unsafe {
            let portal = pg_sys::SPI_cursor_open(std::ptr::null(), plan, values.as_mut_ptr(), nulls.as_ptr(), true);
            loop {
                pgrx::check_for_interrupts!();
                pg_sys::SPI_cursor_fetch(portal, true, 1000);
                let table = pg_sys::SPI_tuptable;
                let rows = Rows::new(table, pg_sys::SPI_processed as usize);
                if rows.len() == 0 {
                    break;
                }
                for row in rows.iter() {
                    memory.switch_to(|_| each(row));
                    memory.reset();
                }
                pg_sys::SPI_freetuptable(table);
            }
            pg_sys::SPI_cursor_close(portal);
        }
    }

    fn split(&self, arguments: &[Option<Datum>]) -> (Vec<Datum>, Vec<std::ffi::c_char>) {
        assert_eq!(arguments.len(), self.types.len(), "arguments of {:?}", self.sql);
        let null = |argument: &Option<Datum>| if argument.is_some() { b' ' } else { b'n' } as std::ffi::c_char;
        let values = arguments.iter().map(|argument| argument.unwrap_or(Datum::from(0))).collect();
        (values, arguments.iter().map(null).collect())
    }
}
