//! The elements of a batch: a JSON array of objects, their payloads taken raw.

use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::Error;
use crate::limit;
use crate::word::OnConflict;

/// One element, as it stands in the array.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Element<'a> {
    #[serde(borrow)]
    pub payload: &'a RawValue,
    pub kind: Option<String>,
    pub item_id: Option<String>,
    pub tag: Option<String>,
    pub author: Option<String>,
    #[serde(borrow, default, deserialize_with = "unless_null")]
    pub attrs: Option<&'a RawValue>,
    pub kept_from: Option<i64>,
    on_conflict: Option<String>,
}

impl Element<'_> {
    /// The element's own word, else the batch's.
    pub fn on_conflict(&self, batch: OnConflict) -> Result<OnConflict, Error> {
        self.on_conflict.as_deref().map_or(Ok(batch), |word| OnConflict::parse(Some(word)))
    }
}

/// For keys whose null means that they are not given.
pub fn unless_null<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<&'de RawValue>, D::Error> {
    let raw = <&RawValue>::deserialize(input)?;
    Ok((raw.get() != "null").then_some(raw))
}

/// The items of an array. As [`parse_as`].
pub fn parse(items: &str) -> Result<Vec<Element<'_>>, Error> {
    parse_as("items", items)
}

/// The elements of an array that an argument holds.
///
/// SE001 if it is no array, or, naming the element from 0, if one is no object, lacks a key that it needs, has one of another
/// name or a value of another type; SE018 if there are more than 100 000.
pub fn parse_as<'a, E: Deserialize<'a>>(argument: &'static str, array: &'a str) -> Result<Vec<E>, Error> {
    let parsed = |(index, element): (usize, &'a RawValue)| {
        // serde would read an array as an object whose keys are left out.
        if !element.get().starts_with('{') {
            return Err(Error::invalid(argument, NO_OBJECTS).in_element(index));
        }
        serde_json::from_str(element.get())
            .map_err(|error| Error::invalid(argument, error.to_string()).in_element(index))
    };
    split::<{ limit::BATCH_ELEMENTS }>(argument, array)?.into_iter().enumerate().map(parsed).collect()
}

const NO_OBJECTS: &str = "must be a JSON array of objects";

/// The elements of an array as they stand in it. SE001 if it is no array, SE018 if there are more than `LIMIT`.
pub fn split<'a, const LIMIT: usize>(argument: &'static str, array: &'a str) -> Result<Vec<&'a RawValue>, Error> {
    let raw = serde_json::from_str::<Bounded<LIMIT>>(array).map_err(|_| Error::invalid(argument, NO_OBJECTS))?;
    limit::at_most(argument, raw.count, LIMIT)?;
    Ok(raw.elements)
}

/// At most `LIMIT` elements of an array, and the count of them all: more are passed over, not kept.
struct Bounded<'a, const LIMIT: usize> {
    elements: Vec<&'a RawValue>,
    count: usize,
}

impl<'de: 'a, 'a, const LIMIT: usize> Deserialize<'de> for Bounded<'a, LIMIT> {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Bounded<'a, LIMIT>, D::Error> {
        struct Elements<'a, const LIMIT: usize>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a, const LIMIT: usize> Visitor<'de> for Elements<'a, LIMIT> {
            type Value = Bounded<'a, LIMIT>;

            fn expecting(&self, to: &mut std::fmt::Formatter) -> std::fmt::Result {
                to.write_str("an array")
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut array: S) -> Result<Bounded<'a, LIMIT>, S::Error> {
                let mut elements = Vec::new();
                while elements.len() < LIMIT
                    && let Some(element) = array.next_element()?
                {
                    elements.push(element);
                }
                let mut count = elements.len();
                if count == LIMIT {
                    while array.next_element::<IgnoredAny>()?.is_some() {
                        count += 1;
                    }
                }
                Ok(Bounded { elements, count })
            }
        }

        input.deserialize_seq(Elements(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element_of(error: &Error) -> serde_json::Value {
        assert_eq!(error.code(), "SE001", "{error}");
        let detail: serde_json::Value = serde_json::from_str(&error.detail()).unwrap();
        detail["element"].clone()
    }

    #[test]
    fn payloads_are_raw() {
        for payload in [r#"{"b":1,"a":2,"b":3}"#, "1e400000", "-0.0", r#""\u0000\ud83d""#, "null", "[ 1 , 2 ]"] {
            let items = format!("[ {{ \"payload\" : {payload} , \"kind\":\"event\"}}]");
            let elements = parse(&items).unwrap();
            assert_eq!(elements[0].payload.get(), payload);
            assert_eq!(elements[0].kind.as_deref(), Some("event"));
        }
    }

    #[test]
    fn deep_payloads_need_no_stack() {
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        let items = format!("[{{\"payload\":{deep}}}]");
        assert_eq!(parse(&items).unwrap()[0].payload.get(), deep);
    }

    #[test]
    fn a_bad_element_is_named() {
        for bad in [
            "null",
            "1",
            "[]",
            "[{}]",
            "{}",
            r#"{"payload":1,"payloads":2}"#,
            r#"{"payload":1,"payload":2}"#,
            r#"{"payload":1,"kind":7}"#,
            r#"{"payload":1,"item_id":["x"]}"#,
            r#"{"payload":1,"kept_from":"3"}"#,
            r#"{"payload":1,"kept_from":1.5}"#,
            r#"{"payload":1,"tag":"\ud83d"}"#,
        ] {
            let items = format!("[{{\"payload\":1}},{bad}]");
            assert_eq!(element_of(&parse(&items).unwrap_err()), 1, "{bad}");
        }
    }

    #[test]
    fn a_long_key_does_not_come_back_whole() {
        let items = format!("[{{\"payload\":1,\"{}\":2}}]", "\u{e9}".repeat(1_000_000));
        assert!(parse(&items).unwrap_err().detail().len() < 1_000);
    }

    #[test]
    fn only_an_array_is_a_batch() {
        for bad in ["{}", "null", "1", "\"[]\""] {
            assert_eq!(element_of(&parse(bad).unwrap_err()), serde_json::Value::Null);
        }
        assert!(parse("[]").unwrap().is_empty());
    }

    #[test]
    fn elements_are_counted() {
        let items = |count: usize| format!("[{}]", vec!["{\"payload\":1}"; count].join(","));
        assert_eq!(parse(&items(100_000)).unwrap().len(), 100_000);
        let error = parse(&items(100_003)).unwrap_err();
        assert_eq!(error, Error::LimitExceeded { argument: "items", limit: 100_000, actual: 100_003, element: None });
    }

    #[test]
    fn null_is_not_given() {
        let elements = parse(r#"[{"payload":1,"kind":null,"attrs":null,"on_conflict":null}]"#).unwrap();
        assert!(elements[0].kind.is_none() && elements[0].attrs.is_none());
        assert_eq!(elements[0].on_conflict(OnConflict::Keep), Ok(OnConflict::Keep));
        let elements = parse(r#"[{"payload":1,"attrs":{"a":1},"on_conflict":"replace"}]"#).unwrap();
        assert_eq!(elements[0].attrs.unwrap().get(), r#"{"a":1}"#);
        assert_eq!(elements[0].on_conflict(OnConflict::Keep), Ok(OnConflict::Replace));
        let elements = parse(r#"[{"payload":1,"on_conflict":"ignore"}]"#).unwrap();
        assert_eq!(elements[0].on_conflict(OnConflict::Keep).unwrap_err().code(), "SE001");
    }
}
