//! Relations that are open.

use pg_sys::Oid;
use pgrx::pg_sys;

/// A relation that is about to be closed, as a statement closes it: its lock stays.
pub struct Open(pub pg_sys::Relation);

impl Open {
    pub fn table(relation: Oid, mode: u32) -> Open {
        // SAFETY: closed by the drop, or by the abort of an unwinding ERROR.
        Open(unsafe { pg_sys::table_open(relation, mode as pg_sys::LOCKMODE) })
    }

    pub fn index(relation: Oid, mode: u32) -> Open {
        // SAFETY: as above.
        Open(unsafe { pg_sys::index_open(relation, mode as pg_sys::LOCKMODE) })
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
