//! Ids and labels: short texts that name something and may stand in an index.

use crate::error::Error;
use crate::limit::{NAME_CHARS, TITLE_CHARS};

/// An id or label: 1 to 500 characters, none of them a control character. SE001 otherwise.
pub fn required(argument: &'static str, text: &str) -> Result<(), Error> {
    if text.is_empty() {
        return Err(Error::invalid(argument, "must not be empty"));
    }
    optional(argument, text)
}

/// A tenant or agent_id: as [`required`], but it may be empty.
pub fn optional(argument: &'static str, text: &str) -> Result<(), Error> {
    // Bytes bound characters from above, so that short texts are not counted.
    if text.len() > NAME_CHARS && text.chars().count() > NAME_CHARS {
        return Err(Error::invalid(argument, "must have at most 500 characters"));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::invalid(argument, "must not contain control characters"));
    }
    Ok(())
}

/// A label that may be absent.
pub fn label(argument: &'static str, text: Option<&str>) -> Result<(), Error> {
    text.map_or(Ok(()), |text| required(argument, text))
}

/// A title: at most 10 000 characters of any kind.
pub fn title(text: Option<&str>) -> Result<(), Error> {
    match text {
        Some(text) if text.len() > TITLE_CHARS && text.chars().count() > TITLE_CHARS => {
            Err(Error::invalid("title", "must have at most 10000 characters"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_count_characters() {
        for character in ["a", "\u{e9}", "\u{1F680}"] {
            assert_eq!(required("session_id", character), Ok(()));
            assert_eq!(required("session_id", &character.repeat(500)), Ok(()));
            assert_eq!(required("session_id", &character.repeat(501)).unwrap_err().code(), "SE001");
        }
        assert_eq!(title(Some(&"t".repeat(10_000))), Ok(()));
        assert_eq!(title(Some(&"t".repeat(10_001))).unwrap_err().code(), "SE001");
    }

    #[test]
    fn spaces_quotes_and_slashes_are_kept_and_control_characters_refused() {
        assert_eq!(required("session_id", " a'b\"c\\d/e "), Ok(()));
        for bad in ["", "a\nb", "\t", "\u{7f}", "\u{85}"] {
            assert_eq!(required("session_id", bad).unwrap_err().code(), "SE001", "{bad:?}");
        }
        assert_eq!(optional("tenant", ""), Ok(()));
        assert_eq!(label("tag", None), Ok(()));
    }
}
