//! The transaction that the backend is in, and those of others that have ended.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use pgrx::pg_sys;

/// A transaction's id.
pub type Xid = pg_sys::TransactionId;

/// The transaction's start, which no two transactions of a backend share.
pub fn start() -> i64 {
    // SAFETY: reads the state of the transaction.
    unsafe { pg_sys::GetCurrentTransactionStartTimestamp() }
}

/// How many transactions that wrote or locked have ended so far, in the whole server. What is read of others before the count and
/// after it is in this order.
pub fn ended() -> u64 {
    fence(Ordering::SeqCst);
    // SAFETY: shared memory that is there as long as the server; the counter is written under a lock that is only needed to count.
    let ended = unsafe { AtomicU64::from_ptr(counter()) }.load(Ordering::SeqCst);
    fence(Ordering::SeqCst);
    ended
}

#[cfg(any(feature = "pg15", feature = "pg16"))]
unsafe fn counter() -> *mut u64 {
    // SAFETY: set when the backend attaches to shared memory.
    unsafe { &raw mut (*pg_sys::ShmemVariableCache).xactCompletionCount }
}

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
unsafe fn counter() -> *mut u64 {
    // SAFETY: as above.
    unsafe { &raw mut (*pg_sys::TransamVariables).xactCompletionCount }
}
