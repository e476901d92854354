//! How deep in subtransactions and triggers the backend is.

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

/// Runs `attempt` in a subtransaction, which is rolled back, its locks released, if that comes to `None`.
pub fn attempt<T>(attempt: impl FnOnce() -> Option<T>) -> Option<T> {
    // SAFETY: the context and the resource owner are those of the caller again afterwards, as PL/pgSQL does it; an ERROR in
    // between unwinds, and the abort that follows ends the subtransaction too.
    unsafe {
        let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let result = attempt();
        if result.is_some() {
            pg_sys::ReleaseCurrentSubTransaction();
        } else {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        result
    }
}
