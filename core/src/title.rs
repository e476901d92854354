//! Titles that hold a number.

/// What stands for the number in a title.
const PLACE: &str = "%d";

/// Whether a title holds a place for a number.
pub fn is_numbered(title: &str) -> bool {
    title.contains(PLACE)
}

/// The title with its first `%d` replaced by a number: one more than the largest that a sibling's title has there, 1 if none
/// has. A title without `%d` stays as it is.
pub fn numbered<'a>(title: &str, siblings: impl IntoIterator<Item = &'a str>) -> String {
    let Some((before, after)) = title.split_once(PLACE) else { return title.to_owned() };
    let number = |sibling: &'a str| {
        let digits = sibling.strip_prefix(before)?.strip_suffix(after)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>().ok())?
    };
    let largest = siblings.into_iter().filter_map(number).max().unwrap_or(0);
    format!("{before}{}{after}", largest.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_follows_the_largest() {
        assert_eq!(numbered("fork %d", []), "fork 1");
        assert_eq!(numbered("fork %d", ["fork 1", "fork 7", "fork 3"]), "fork 8");
        assert_eq!(numbered("%d", ["9"]), "10");
        assert_eq!(numbered("a %d of %d", ["a 4 of %d"]), "a 5 of %d");
    }

    #[test]
    fn other_titles_do_not_count() {
        for other in
            ["fork", "fork ", "fork x", "fork +5", "fork -5", "fork 5 ", " fork 5", "fork 99999999999999999999"]
        {
            assert_eq!(numbered("fork %d", [other]), "fork 1", "{other:?}");
        }
        assert_eq!(numbered("%d%d", ["1"]), "1%d");
    }

    #[test]
    fn a_title_without_a_place_stays() {
        assert_eq!(numbered("100 %", ["100 %"]), "100 %");
    }
}
