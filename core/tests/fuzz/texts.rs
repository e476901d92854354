//! The short texts: names, titles, versions, words, times, cursors, leases.

use agent_sessions_core::archive::Time;
use agent_sessions_core::cursor::{Cursor, Order};
use agent_sessions_core::digest::{hex, unhex};
use agent_sessions_core::lease::{self, Held};
use agent_sessions_core::version::Version;
use agent_sessions_core::word::{OnConflict, OnMissing, Op};
use agent_sessions_core::{name, timestamp, title};
use proptest::collection::vec;
use proptest::prelude::{any, prop_oneof};
use proptest::sample::select;
use proptest::{prop_assert, prop_assert_eq};

use crate::inputs::of;
use crate::{cases, for_all};

#[test]
fn a_name_is_short_and_can_be_printed() {
    let long = "[a-z\u{e9}\u{1F680}]{490,510}";
    for_all(prop_oneof![of(cases::NAMES), of(cases::JSON), long], |text| {
        let is_fit = text.chars().count() <= 500 && !text.chars().any(char::is_control);
        prop_assert_eq!(name::optional("tenant", &text).is_ok(), is_fit);
        prop_assert_eq!(name::required("session_id", &text).is_ok(), is_fit && !text.is_empty());
        prop_assert_eq!(name::label("tag", Some(&text)).is_ok(), is_fit && !text.is_empty());
        Ok(())
    });
}

#[test]
fn a_number_in_a_title_is_new_among_its_siblings() {
    let numbers = select(&["1", "7", "007", "+5", "-1", "", " 3", "18446744073709551615", "99999999999999999999"][..]);
    for_all(
        (of(cases::TITLES), vec(of(cases::TITLES), 0..3), vec(numbers, 0..3)),
        |(pattern, mut siblings, numbers)| {
            siblings.extend(numbers.into_iter().map(|number| pattern.replacen("%d", number, 1)));
            let numbered = title::numbered(&pattern, siblings.iter().map(String::as_str));
            if !title::is_numbered(&pattern) {
                prop_assert_eq!(numbered, pattern);
            } else {
                let (before, after) = pattern.split_once("%d").expect("a place");
                let number = numbered.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
                let number: u64 = number.expect("the number").parse().expect("a number");
                prop_assert!(number == u64::MAX || !siblings.contains(&numbered));
                // And follows one that is there.
                let follows = |sibling: &String| {
                    let digits =
                        sibling.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)).unwrap_or_default();
                    !digits.starts_with('+')
                        && digits.parse::<u64>().is_ok_and(|digits| digits.saturating_add(1) == number)
                };
                prop_assert!(number == 1 || siblings.iter().any(follows));
            }
            Ok(())
        },
    );
}

#[test]
fn versions_and_words_are_these_or_refused() {
    for_all((of(cases::VERSIONS), any::<[u32; 3]>()), |(text, [major, minor, patch])| {
        let printed = format!("{major}.{minor}.{patch}");
        prop_assert!(Version::parse("min", &printed).is_ok());
        if Version::parse("min", &text).is_ok() {
            prop_assert_eq!(text.split('.').filter(|part| part.parse::<u32>().is_ok()).count(), 3);
        }
        if let Ok(op) = Op::parse(&text) {
            prop_assert_eq!(op.as_str(), &text);
        }
        let _ = (OnMissing::parse(Some(&text)), OnConflict::parse(Some(&text)));
        Ok(())
    });
}

#[test]
fn times_are_read_as_they_were_written() {
    for_all((any::<i64>(), -70_000_000_000_000_000..260_000_000_000_000_000_i64), |(any, near)| {
        for at in [any, near] {
            if let Some(text) = timestamp::format(at) {
                prop_assert_eq!(timestamp::parse(&text), Some(at), "{}", text);
                let finer = text.replace('Z', "987Z");
                prop_assert_eq!(timestamp::parse(&finer), Some(at), "{}", finer);
            }
            let line = serde_json::to_string(&Time(at)).expect("a number");
            prop_assert_eq!(serde_json::from_str::<Time>(&line).ok(), Some(Time(at)));
        }
        Ok(())
    });
    for_all(of(cases::TIMES), |text| {
        if let Some(at) = timestamp::parse(&text) {
            let printed = timestamp::format(at).expect("years 0 to 9999 have a text");
            prop_assert_eq!(timestamp::parse(&printed), Some(at));
        }
        Ok(())
    });
}

#[test]
fn cursors_are_read_as_they_were_written() {
    for_all((any::<i64>(), any::<i64>(), of(cases::CURSORS)), |(at, sid, text)| {
        let (cursor, other) = (Cursor { at, sid }, [Order::Activity, Order::Created]);
        for (order, other) in [Order::Created, Order::Activity].into_iter().zip(other) {
            let printed = cursor.encode(order);
            prop_assert_eq!(Cursor::decode(order, &printed), Ok(cursor));
            prop_assert!(Cursor::decode(other, &printed).is_err());
            if let Ok(found) = Cursor::decode(order, &text) {
                prop_assert_eq!(found.encode(order).to_lowercase(), text.to_lowercase());
            }
        }
        Ok(())
    });
}

#[test]
fn bytes_are_read_as_they_were_written() {
    for_all((any::<[u8; 32]>(), of(cases::CURSORS)), |(bytes, text)| {
        prop_assert_eq!(unhex(&hex(&bytes)), Some(bytes));
        prop_assert_eq!(
            unhex::<32>(&hex(&bytes).to_uppercase()).is_some(),
            !hex(&bytes).bytes().any(|b| b.is_ascii_lowercase())
        );
        if let Some(bytes) = unhex::<2>(&text) {
            prop_assert_eq!(hex(&bytes), text);
        }
        Ok(())
    });
}

#[test]
fn a_lease_proves_itself_and_no_other() {
    for_all((any::<i64>(), any::<[u8; 16]>(), of(cases::LEASES), any::<i64>()), |(sid, nonce, text, now)| {
        let (lease, digest) = lease::issue(sid, nonce);
        let held = Held { sid, digest: Some(&digest), holder: None, expires_at: Some(i64::MAX) };
        prop_assert!(held.is_proven_by(&lease));
        prop_assert_eq!(held.is_proven_by(&text), text == lease);
        let (_, secret) = lease.split_once(':').expect("two parts");
        let others = format!("{}:{secret}", sid.wrapping_add(1));
        prop_assert!(!held.is_proven_by(&others));
        prop_assert!(held.admits(Some(&lease), now).is_ok() || now == i64::MAX);
        prop_assert!(held.admits(Some(&text), now).is_err());
        let list = format!("{text},{lease} {text}");
        let found = lease::entry_for(&list, sid).expect("the lease is in the list");
        prop_assert!(list.contains(found) && (found == lease || text.contains(found)));
        if let Some(entry) = lease::entry_for(&text, sid) {
            prop_assert!(text.contains(entry));
        }
        Ok(())
    });
}
