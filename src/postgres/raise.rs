//! How an error of the contract becomes an error of PostgreSQL.

use std::ffi::CString;

use agent_sessions_core::error::Error;
use pgrx::pg_sys;

/// Raises `error` with its SQLSTATE, DETAIL and HINT. pgrx's own report cannot hold a private SQLSTATE.
pub fn raise(error: Error) -> ! {
    // Texts of arguments cannot hold NUL, since PostgreSQL's text type cannot.
    let text = |text: String| CString::new(text.replace('\0', "\u{FFFD}")).unwrap_or_default();
    let (message, detail, hint) = (text(error.to_string()), text(error.detail()), text(error.hint()));
    let mut report = pg_sys::ErrorData {
        elevel: pg_sys::PGERROR as i32,
        sqlerrcode: sqlstate(error.code()),
        message: message.as_ptr().cast_mut(),
        detail: detail.as_ptr().cast_mut(),
        hint: hint.as_ptr().cast_mut(),
        filename: c"agent_sessions".as_ptr(),
        funcname: c"agent_sessions".as_ptr(),
        ..Default::default()
    };
    // SAFETY: ThrowErrorData copies every text before it raises, and leaves fields that are NULL alone.
    unsafe { pg_sys::ThrowErrorData(&mut report) };
    unreachable!("ThrowErrorData raises at level ERROR")
}

/// 40001: the transaction's snapshot does not see what it would have to follow.
pub fn serialization_failure() -> ! {
    pgrx::ereport!(
        ERROR,
        pgrx::PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
        "could not serialize access due to a concurrent append",
        "The session's log has entries that this transaction's snapshot does not see; retry the transaction."
    );
}

/// 40001: a row was changed after the transaction's snapshot; as PostgreSQL says it of a statement that locks.
pub fn concurrent_update() -> ! {
    pgrx::ereport!(
        ERROR,
        pgrx::PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
        "could not serialize access due to concurrent update"
    );
}

/// 42804: a column of the engine's tables, or of the table that its trigger stands on, is not of the type that it was made with.
pub fn wrong_type() -> ! {
    pgrx::ereport!(
        ERROR,
        pgrx::PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
        "a table of agent_sessions has other columns than it was made with"
    );
}

/// 42501: what only the extension's owner may do.
pub fn owner_only(function: &str) -> ! {
    pgrx::ereport!(
        ERROR,
        pgrx::PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
        format!("only the owner of the extension may call {function}")
    );
}

/// 42501: what the policies would not let the caller write or see.
pub fn outside_of_policy() -> ! {
    pgrx::ereport!(
        ERROR,
        pgrx::PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
        "this takes a session of another agent than the one that agent_sessions.isolation leaves visible"
    );
}

/// 09000: another trigger has changed or dropped a row that the engine wrote, and the chain would have a gap.
pub fn row_was_dropped() -> ! {
    pgrx::ereport!(
        ERROR,
        pgrx::PgSqlErrorCode::ERRCODE_TRIGGERED_ACTION_EXCEPTION,
        "another trigger on agent_sessions' tables has dropped a row of the engine"
    );
}

fn sqlstate(code: &str) -> i32 {
    code.bytes().rev().fold(0, |state, byte| state << 6 | ((i32::from(byte) - i32::from(b'0')) & 0x3F))
}
