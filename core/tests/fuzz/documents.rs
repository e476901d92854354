//! State documents that are merged, and what entries about others say in their payloads.

use agent_sessions_core::chain::{base_digest, erase_payload, names_erased, trim_payload};
use agent_sessions_core::members::{is_object, merge};
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::{prop_assert, prop_assert_eq};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::inputs::{json, of};
use crate::object::Members;
use crate::{cases, for_all};

#[test]
fn a_merge_does_what_serde_json_would_do() {
    for_all((json(), json()), |(stored, patch)| {
        let merged = merge(&stored, &patch);
        prop_assert_eq!(merged.is_some(), is_object(&stored) && is_object(&patch));
        let Some(merged) = merged else { return Ok(()) };
        prop_assert!(serde_json::from_str::<IgnoredAny>(&merged).is_ok(), "{}", merged);
        // Where it can read both; of a key that comes twice it takes the last.
        let maps = serde_json::from_str::<Map<String, Value>>(&stored).ok().zip(serde_json::from_str(&patch).ok());
        if let Some((mut wanted, patch)) = maps {
            wanted.extend::<Map<String, Value>>(patch);
            prop_assert_eq!(serde_json::from_str::<Map<String, Value>>(&merged).ok(), Some(wanted));
        }
        prop_assert_eq!(merge(&merged, &patch), Some(merged.clone()), "a second time changes nothing");
        // A key that is replaced stands once.
        if let (Ok(Members(merged)), Ok(Members(patch))) = (serde_json::from_str(&merged), serde_json::from_str(&patch))
        {
            for (key, _) in patch {
                prop_assert_eq!(merged.iter().filter(|(other, _)| *other == key).count(), 1, "{}", key);
            }
        }
        Ok(())
    });
}

/// Only what is JSON gets there: PostgreSQL has read it before.
#[test]
fn a_merge_of_any_json_does_not_panic() {
    for_all((of(cases::JSON), of(cases::JSON)), |(stored, patch)| {
        let is_json = |text: &str| serde_json::from_str::<IgnoredAny>(text).is_ok();
        if is_json(&stored) && is_json(&patch) {
            let merged = merge(&stored, &patch);
            prop_assert!(merged.is_none_or(|merged| is_json(&merged)));
        }
        Ok(())
    });
}

#[test]
fn explanations_are_read_as_they_were_written() {
    let reason = proptest::option::of("[a-z\"\\\\\u{1F680}]{0,5}");
    for_all(
        (reason, vec(any::<i64>(), 0..5), any::<i64>(), any::<[u8; 32]>()),
        |(reason, revisions, place, digest)| {
            let payload = erase_payload(reason.as_deref(), &revisions);
            prop_assert_eq!(names_erased(None, Some(&payload), place), revisions.contains(&place));
            prop_assert!(names_erased(Some(place), Some(&payload), place));
            prop_assert!(revisions.iter().all(|revision| names_erased(None, Some(&payload), *revision)));
            prop_assert_eq!(base_digest(&trim_payload(&digest)), Some(agent_sessions_core::digest::hex(&digest)));
            Ok(())
        },
    );
    for_all(of(cases::EXPLANATIONS), |payload| {
        names_erased(None, Some(&payload), 1);
        base_digest(&payload);
        Ok(())
    });
}
