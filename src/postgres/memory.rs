//! Rust's own memory. Where there is no more, the backend ends with 53200: Rust would abort it, whereupon PostgreSQL ends all
//! others too, and recovers.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::pg_sys;

#[global_allocator]
static MEMORY: Memory = Memory;

struct Memory;

// SAFETY: the system's memory, as the system gives it; what ends the backend does not return and does not unwind.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout is handed on, here and below.
        present(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        present(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        present(unsafe { System.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { System.dealloc(memory, layout) }
    }
}

fn present(memory: *mut u8) -> *mut u8 {
    if memory.is_null() {
        end();
    }
    memory
}

/// FATAL, as an ERROR would unwind through code that does not expect it. What is short of memory while it ends is left to Rust.
#[cold]
fn end() {
    static IS_ENDING: AtomicBool = AtomicBool::new(false);
    if IS_ENDING.swap(true, Ordering::Relaxed) {
        return;
    }
    let mut report = pg_sys::ErrorData {
        elevel: pg_sys::FATAL as i32,
        sqlerrcode: pg_sys::errcodes::PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as i32,
        message: c"out of memory".as_ptr().cast_mut(),
        filename: c"agent_sessions".as_ptr(),
        funcname: c"agent_sessions".as_ptr(),
        ..Default::default()
    };
    // SAFETY: the function is the server's and of this type; the texts are static. PostgreSQL keeps memory for reporting this, and
    // leaves the process.
    unsafe {
        let throw = dlsym(std::ptr::null_mut(), c"ThrowErrorData".as_ptr());
        if !throw.is_null() {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut pg_sys::ErrorData)>(throw)(&mut report);
        }
    }
}

unsafe extern "C" {
    /// By name, since the program that writes the extension's SQL is linked with this library and without a server.
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}
