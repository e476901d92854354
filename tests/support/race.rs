//! The shape of a race that one writer wins.

use std::fmt::Debug;

use tokio_postgres::Error;

use crate::{detail, sqlstate};

/// One of the results is a success, which is returned; all others have this code and this DETAIL.
pub fn assert_one_winner<T: Debug>(results: Vec<Result<T, Error>>, code: &str, told: &serde_json::Value) -> T {
    let mut winners = Vec::new();
    for result in results {
        match result {
            Ok(won) => winners.push(won),
            Err(error) => {
                assert_eq!(sqlstate(&error), code, "{error:?}");
                assert_eq!(&detail(&error), told);
            }
        }
    }
    assert_eq!(winners.len(), 1, "{winners:?}");
    winners.remove(0)
}
