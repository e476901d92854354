//! The closed sets of words that arguments and columns may hold.

use crate::error::Error;

/// What an entry of the log does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A new item.
    Append,
    /// A new item that is streamed: open while no entry targets it.
    Open,
    /// New content for the item at `target`.
    Revise,
    /// The item at `target` is no longer live.
    Retract,
    /// No item from `target` up to this entry is live any more.
    RetractFrom,
    /// The log before `target` was removed.
    Trim,
    /// The payload of the entry at `target` was destroyed.
    Erase,
}

impl Op {
    pub const fn as_str(self) -> &'static str {
        match self {
            Op::Append => "append",
            Op::Open => "open",
            Op::Revise => "revise",
            Op::Retract => "retract",
            Op::RetractFrom => "retract_from",
            Op::Trim => "trim",
            Op::Erase => "erase",
        }
    }

    /// The word of the column `op`; SE001 for any other.
    pub fn parse(word: &str) -> Result<Op, Error> {
        [Op::Append, Op::Open, Op::Revise, Op::Retract, Op::RetractFrom, Op::Trim, Op::Erase]
            .into_iter()
            .find(|op| op.as_str() == word)
            .ok_or_else(|| Error::invalid("op", "must be append, open, revise, retract, retract_from, trim or erase"))
    }

    /// Whether the entry brings an item of its own, which others can be about.
    pub const fn is_item(self) -> bool {
        matches!(self, Op::Append | Op::Open)
    }

    /// Whether an entry of this kind always has a payload, unless that was erased.
    pub const fn has_payload(self) -> bool {
        !matches!(self, Op::Retract | Op::RetractFrom)
    }

    /// The highest target that an entry at `position` may name: earlier ones, and for a summary, whose kept tail
    /// may be empty, its own.
    pub const fn last_target(self, position: i64) -> i64 {
        if self.is_item() { position } else { position - 1 }
    }
}

/// What a writer does when the session does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMissing {
    Error,
    Create,
    Ignore,
}

impl OnMissing {
    pub fn parse(word: Option<&str>) -> Result<OnMissing, Error> {
        match word.unwrap_or("error") {
            "error" => Ok(OnMissing::Error),
            "create" => Ok(OnMissing::Create),
            "ignore" => Ok(OnMissing::Ignore),
            _ => Err(Error::invalid("on_missing", "must be error, create or ignore")),
        }
    }

    /// For functions that have nothing to create: SE001 for `create`.
    pub fn parse_without_create(word: Option<&str>) -> Result<OnMissing, Error> {
        match OnMissing::parse(word)? {
            OnMissing::Create => Err(Error::invalid("on_missing", "must be error or ignore")),
            other => Ok(other),
        }
    }
}

/// What a writer does when the id that it brings is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// The same content is a replay, other content is an error.
    Error,
    /// The first one stays.
    Keep,
    /// The new content replaces the first one's.
    Replace,
}

impl OnConflict {
    pub fn parse(word: Option<&str>) -> Result<OnConflict, Error> {
        match word.unwrap_or("error") {
            "error" => Ok(OnConflict::Error),
            "keep" => Ok(OnConflict::Keep),
            "replace" => Ok(OnConflict::Replace),
            _ => Err(Error::invalid("on_conflict", "must be error, keep or replace")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_parses_to_itself() {
        for word in ["append", "open", "revise", "retract", "retract_from", "trim", "erase"] {
            assert_eq!(Op::parse(word).unwrap().as_str(), word);
        }
        assert_eq!(Op::parse("delete").unwrap_err().code(), "SE001");
    }

    #[test]
    fn an_omitted_word_is_the_default() {
        assert_eq!(OnMissing::parse(None), Ok(OnMissing::Error));
        assert_eq!(OnConflict::parse(None), Ok(OnConflict::Error));
        assert_eq!(OnMissing::parse(Some("upsert")).unwrap_err().code(), "SE001");
        assert_eq!(OnMissing::parse_without_create(Some("create")).unwrap_err().code(), "SE001");
        assert_eq!(OnConflict::parse(Some("")).unwrap_err().code(), "SE001");
    }

    #[test]
    fn only_a_summary_may_name_its_own_position() {
        assert_eq!(Op::Append.last_target(5), 5);
        assert_eq!(Op::Retract.last_target(5), 4);
    }
}
