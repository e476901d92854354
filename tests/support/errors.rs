//! What a client learns from a refused statement: the code, and the JSON in DETAIL.

use tokio_postgres::Error;

/// The SQLSTATE of an error that the server raised.
pub fn sqlstate(error: &Error) -> &str {
    match error.code() {
        Some(code) => code.code(),
        None => panic!("no answer of the server: {error:?}"),
    }
}

/// The DETAIL of one of the extension's own errors.
pub fn detail(error: &Error) -> serde_json::Value {
    let detail = error.as_db_error().and_then(|raised| raised.detail());
    let detail = detail.unwrap_or_else(|| panic!("no DETAIL: {error:?}"));
    serde_json::from_str(detail).unwrap_or_else(|_| panic!("DETAIL is no JSON: {detail}"))
}

/// Asserts that a statement was refused with this SQLSTATE, and yields its error.
#[macro_export]
macro_rules! assert_sqlstate {
    ($result:expr, $code:expr) => {
        match $result {
            Ok(value) => panic!("{} was expected, the statement succeeded: {value:?}", $code),
            Err(error) => {
                assert_eq!($crate::sqlstate(&error), $code, "{error:?}");
                error
            }
        }
    };
}
