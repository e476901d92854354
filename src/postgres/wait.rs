//! Sleeping in a backend.

use pgrx::pg_sys;

/// Sleeps for that many milliseconds, or until the backend is told something; a cancel or a timeout is raised at once.
pub fn sleep(milliseconds: i64) {
    // SAFETY: the backend's own latch; the flags ask to leave if the postmaster dies.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as i32,
            milliseconds as std::ffi::c_long,
            pg_sys::PG_WAIT_EXTENSION,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    pgrx::check_for_interrupts!();
}
