//! Batches of items: the array, and what an element may be.

use std::collections::HashSet;

use agent_sessions_core::element;
use agent_sessions_core::error::Error;
use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::test_runner::{TestCaseError, TestCaseResult};
use proptest::{prop_assert, prop_assert_eq, prop_assume};
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::inputs::{changed, json, label, of};
use crate::object::Members;
use crate::{cases, for_all};

const KEYS: [&str; 8] = ["payload", "kind", "item_id", "tag", "author", "attrs", "kept_from", "on_conflict"];

/// What the contract says of an element: whether it may stand in a batch.
fn may_stand(element: &RawValue) -> bool {
    let Ok(Members(members)) = serde_json::from_str(element.get()) else { return false };
    let keys: HashSet<&str> = members.iter().map(|(key, _)| key.as_str()).collect();
    let is_fit = |(key, value): &(String, Box<RawValue>)| match key.as_str() {
        "payload" | "attrs" => true,
        "kept_from" => serde_json::from_str::<Option<i64>>(value.get()).is_ok(),
        key => KEYS.contains(&key) && serde_json::from_str::<Option<String>>(value.get()).is_ok(),
    };
    keys.len() == members.len() && keys.contains("payload") && members.iter().all(is_fit)
}

/// A batch that must be taken.
fn batch() -> impl Strategy<Value = String> {
    let element = (json(), label(), label(), any::<Option<i64>>()).prop_map(|(payload, kind, item_id, kept_from)| {
        let (kind, item_id) = (Value::from(kind), Value::from(item_id));
        format!(
            "{{\"kind\":{kind},\"payload\":{payload},\"item_id\":{item_id},\"kept_from\":{}}}",
            Value::from(kept_from)
        )
    });
    vec(element, 0..5).prop_map(|elements| format!("[{}]", elements.join(" , ")))
}

#[test]
fn a_batch_is_taken_as_it_was_written() {
    for_all(batch(), |batch| {
        let elements = element::parse(&batch).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let printed: Vec<String> = elements
            .iter()
            .map(|element| {
                let (kind, item_id) = (Value::from(element.kind.clone()), Value::from(element.item_id.clone()));
                let kept_from = Value::from(element.kept_from);
                format!(
                    "{{\"kind\":{kind},\"payload\":{},\"item_id\":{item_id},\"kept_from\":{kept_from}}}",
                    element.payload
                )
            })
            .collect();
        let printed = format!("[{}]", printed.join(" , "));
        let strip = |text: &str| text.replace([' ', '\n', '\t', '\r'], "");
        prop_assert_eq!(strip(&printed), strip(&batch));
        for element in &elements {
            prop_assert!(batch.contains(element.payload.get()));
        }
        Ok(())
    });
}

fn judged(text: &str) -> TestCaseResult {
    let elements = serde_json::from_str::<Vec<&RawValue>>(text);
    let first_bad = elements.as_ref().map(|elements| elements.iter().position(|element| !may_stand(element)));
    match (element::parse(text), first_bad) {
        (Ok(parsed), Ok(None)) => {
            let payloads: Vec<&str> = parsed.iter().map(|element| element.payload.get()).collect();
            prop_assert!(payloads.iter().all(|payload| serde_json::from_str::<IgnoredAny>(payload).is_ok()));
        }
        (Err(Error::InvalidArgument { element, .. }), Ok(first_bad)) => prop_assert_eq!(element, first_bad),
        (Err(Error::InvalidArgument { element: None, .. }), Err(_)) => {}
        (parsed, wanted) => prop_assert!(false, "{:?} where {:?} was wanted", parsed, wanted),
    }
    Ok(())
}

#[test]
fn what_is_no_batch_is_refused() {
    for_all(of(cases::BATCHES), |text| judged(&text));
    for_all(changed(batch(), cases::BATCHES), |text| judged(&text));
}

#[test]
fn an_element_that_serde_would_refuse_is_named() {
    for_all((batch(), "[a-z_]{1,6}"), |(batch, key)| {
        prop_assume!(!KEYS.contains(&key.as_str()));
        let count = element::parse(&batch).map_or(0, |elements| elements.len());
        let more =
            format!("{}{}{{\"payload\":1,\"{key}\":2}}]", &batch[..batch.len() - 1], if count > 0 { "," } else { "" });
        let Err(Error::InvalidArgument { element, .. }) = element::parse(&more) else { panic!("{more} was taken") };
        prop_assert_eq!(element, Some(count));
        Ok(())
    });
}
