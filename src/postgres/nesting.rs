//! How deep in subtransactions and triggers the backend is.

use std::panic::AssertUnwindSafe;

use pgrx::pg_sys;

pub fn subtransaction() -> u32 {
    // SAFETY: reads the state of the transaction.
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

/// As pg_trigger_depth(): 0 outside of triggers.
pub fn trigger_depth() -> i32 {
    // SAFETY: the function reads a variable of the backend, and no argument.
    unsafe { pg_sys::pg_trigger_depth(std::ptr::null_mut()) }.value() as i32
}

/// Runs `attempt` in a subtransaction, which is rolled back, its locks released, if that comes to `None`, or to an ERROR: one that
/// were left open would leave the client's session in an aborted transaction.
pub fn attempt<T>(attempt: impl FnOnce() -> Option<T>) -> Option<T> {
    // SAFETY: the context and the resource owner are those of the caller again afterwards, as PL/pgSQL does it.
    unsafe {
        let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        let back = || {
            pg_sys::MemoryContextSwitchTo(context);
            pg_sys::CurrentResourceOwner = owner;
        };
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        pgrx::PgTryBuilder::new(AssertUnwindSafe(|| {
            let result = attempt();
            if result.is_some() {
                pg_sys::ReleaseCurrentSubTransaction();
            } else {
                pg_sys::RollbackAndReleaseCurrentSubTransaction();
            }
            back();
            result
        }))
        .catch_others(|caught| {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
            back();
            caught.rethrow()
        })
        .execute()
    }
}
