//! Fixed maxima. A setting may be stricter; a row once stored always restores.

use crate::error::Error;

/// Characters of an id or label (tenant, agent_id, session_id, item_id, kind, tag, author, owner, origin, status).
pub const NAME_CHARS: usize = 500;
/// Bytes of the texts that share one index entry: a B-tree entry holds at most 2 704 bytes, headers included.
pub const KEY_BYTES: usize = 2_600;
/// Characters of a title.
pub const TITLE_CHARS: usize = 10_000;
/// Default of the setting `agent_sessions.max_payload_bytes`.
pub const DEFAULT_PAYLOAD_BYTES: usize = 64 << 20;
/// What no setting can exceed: `jsonb` stops at 256 MiB, and a dumped line doubles its escapes within 1 GiB.
pub const MAX_PAYLOAD_BYTES: usize = 255 << 20;
/// Elements of one batch, and targets of one retract.
pub const BATCH_ELEMENTS: usize = 100_000;
/// Lines of one import. They are read one by one, so that there may be more of them than elements of a batch.
pub const ARCHIVE_LINES: usize = 1_000_000;

/// SE018 if `actual` is more than `limit`.
pub fn at_most(argument: &'static str, actual: usize, limit: usize) -> Result<(), Error> {
    if actual > limit {
        return Err(Error::LimitExceeded { argument, limit: limit as u64, actual: actual as u64, element: None });
    }
    Ok(())
}

/// SE018 if texts that share one index entry are together longer than an entry can be.
pub fn index_entry(argument: &'static str, texts: &[&str]) -> Result<(), Error> {
    at_most(argument, texts.iter().map(|text| text.len()).sum(), KEY_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_itself_is_allowed() {
        assert_eq!(at_most("payload", 10, 10), Ok(()));
        assert_eq!(at_most("payload", 11, 10).unwrap_err().code(), "SE018");
    }

    #[test]
    fn an_index_entry_counts_bytes_not_characters() {
        let long = "\u{1F680}".repeat(500);
        assert_eq!(index_entry("session_id", &["", "", &long]), Ok(()));
        assert_eq!(index_entry("session_id", &["", &long, &long]).unwrap_err().code(), "SE018");
    }
}
