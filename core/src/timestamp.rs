//! Times as PostgreSQL counts them, microseconds since 2000-01-01 UTC, and as RFC 3339 writes them.

use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

/// 2000-01-01 UTC in seconds since 1970.
const EPOCH_SECONDS: i128 = 946_684_800;

/// The time in UTC with six digits behind the second; `None` outside of the years 0 to 9999, and for infinity.
pub fn format(microseconds: i64) -> Option<String> {
    let nanoseconds = (EPOCH_SECONDS * 1_000_000 + i128::from(microseconds)) * 1_000;
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).ok().filter(|at| at.year() >= 0)?;
    let (hour, minute, second, microsecond) = at.time().as_hms_micro();
    Some(format!(
        "{:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{microsecond:06}Z",
        at.year(),
        u8::from(at.month()),
        at.day()
    ))
}

/// The time of an RFC 3339 text, whatever its offset, to the microsecond. `None` if it is none.
pub fn parse(text: &str) -> Option<i64> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?.checked_to_offset(UtcOffset::UTC)?;
    i64::try_from(at.unix_timestamp_nanos().div_euclid(1_000) - EPOCH_SECONDS * 1_000_000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times() {
        for (microseconds, text) in [
            (0, "2000-01-01T00:00:00.000000Z"),
            (-1, "1999-12-31T23:59:59.999999Z"),
            (849_266_105_000_042, "2026-11-29T11:15:05.000042Z"),
            (-63_113_904_000_000_000, "0000-01-01T00:00:00.000000Z"),
            (252_455_615_999_999_999, "9999-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(format(microseconds).as_deref(), Some(text));
            assert_eq!(parse(text), Some(microseconds));
        }
    }

    #[test]
    fn times_that_have_no_text() {
        for out_of_range in [i64::MIN, i64::MAX, -63_113_904_000_000_001, 252_455_616_000_000_000] {
            assert_eq!(format(out_of_range), None, "{out_of_range}");
        }
    }

    #[test]
    fn an_offset_is_another_way_to_write_the_same_time() {
        assert_eq!(parse("2000-01-01T02:30:00+02:30"), Some(0));
        assert_eq!(parse("2000-01-01T00:00:00.0000009Z"), Some(0));
        for bad in [
            "",
            "2000-01-01",
            "2000-01-01 00:00:00",
            "2000-01-01T00:00:00",
            "2000-13-01T00:00:00Z",
            "9999-12-31T23:59:59-01:00",
            "now",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
