//! The opaque cursor of a row of `session_list`: where a page that follows it begins (keyset paging).

use crate::error::Error;

/// What a list is ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Created,
    Activity,
}

impl Order {
    pub fn parse(word: Option<&str>) -> Result<Order, Error> {
        match word.unwrap_or("created") {
            "created" => Ok(Order::Created),
            "activity" => Ok(Order::Activity),
            _ => Err(Error::invalid("order_by", "must be created or activity")),
        }
    }

    const fn letter(self) -> char {
        match self {
            Order::Created => 'c',
            Order::Activity => 'a',
        }
    }
}

/// A row's place in a list: its time (microseconds since 2000-01-01 UTC) and its sid, which breaks ties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub at: i64,
    pub sid: i64,
}

impl Cursor {
    /// Before every row of a list that runs from the newest.
    pub const START: Cursor = Cursor { at: i64::MAX, sid: i64::MAX };

    pub fn encode(self, order: Order) -> String {
        format!("{}{:016x}{:016x}", order.letter(), self.at as u64, self.sid as u64)
    }

    /// SE001 unless `text` is a cursor of a list in that order.
    pub fn decode(order: Order, text: &str) -> Result<Cursor, Error> {
        let malformed = || Error::invalid("after", "must be the cursor of a row of a list in the same order");
        let digits = text.strip_prefix(order.letter()).ok_or_else(malformed)?;
        if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(malformed());
        }
        let half = |digits: &str| u64::from_str_radix(digits, 16).map(|bits| bits as i64).map_err(|_| malformed());
        Ok(Cursor { at: half(&digits[..16])?, sid: half(&digits[16..])? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back() {
        for (at, sid) in [(0, 1), (-1, i64::MAX), (i64::MIN, 0)] {
            for order in [Order::Created, Order::Activity] {
                let cursor = Cursor { at, sid };
                assert_eq!(Cursor::decode(order, &cursor.encode(order)), Ok(cursor));
            }
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let other_order = Cursor { at: 1, sid: 1 }.encode(Order::Activity);
        let short = "c".to_owned() + &"0".repeat(31);
        let sign = "c+".to_owned() + &"0".repeat(31);
        let wide = "c".to_owned() + &"\u{e9}".repeat(16);
        for text in ["", "c", other_order.as_str(), &short, &sign, &wide] {
            assert_eq!(Cursor::decode(Order::Created, text).unwrap_err().code(), "SE001", "{text:?}");
        }
        assert_eq!(Order::parse(Some("title")).unwrap_err().code(), "SE001");
    }
}
