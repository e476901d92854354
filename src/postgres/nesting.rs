//! How deep in subtransactions and triggers the backend is.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

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

/// Runs `attempt` in a subtransaction, which is rolled back, its locks released, if that comes to `None` or to an ERROR.
pub fn attempt<T>(attempt: impl FnOnce() -> Option<T>) -> Option<T> {
    // SAFETY: the context and the resource owner are those of the caller again afterwards, as PL/pgSQL does it. An ERROR goes on
    // when its subtransaction is over: PostgreSQL would take one that is left for a client's, which waits for a ROLLBACK.
    unsafe {
        let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let result = catch_unwind(AssertUnwindSafe(attempt));
        if matches!(result, Ok(Some(_))) {
            pg_sys::ReleaseCurrentSubTransaction();
        } else {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        result.unwrap_or_else(|error| resume_unwind(error))
    }
}
