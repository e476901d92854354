//! The top-level members of a JSON object, taken as bytes, and their merge.
//!
//! A parse into values would change what it does not understand: number forms, duplicate keys, lone surrogates. The text
//! is one that PostgreSQL's `json` type has accepted, so only its structure has to be followed here.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

/// A member: the raw key with its quotes, and the raw value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member<'a> {
    key: &'a str,
    value: &'a str,
}

/// `stored` with the top-level keys of `patch` replaced or added, each value byte for byte as given.
/// `None` unless both are JSON objects. A key that `stored` holds twice is replaced once, where it first stands.
pub fn merge(stored: &str, patch: &str) -> Option<String> {
    let mut merged: Vec<Member> = Vec::new();
    let mut place_of: HashMap<Vec<u16>, usize> = HashMap::new();
    let (stored, patch) = (members(stored)?, members(patch)?);
    let patched: HashSet<Vec<u16>> = patch.iter().map(|new| decode(new.key)).collect();
    for old in stored {
        let key = decode(old.key);
        if patched.contains(&key) {
            if place_of.contains_key(&key) {
                continue;
            }
            place_of.insert(key, merged.len());
        }
        merged.push(old);
    }
    for new in patch {
        match place_of.entry(decode(new.key)) {
            Entry::Occupied(place) => merged[*place.get()].value = new.value,
            Entry::Vacant(place) => {
                place.insert(merged.len());
                merged.push(new);
            }
        }
    }
    let members: Vec<String> = merged.iter().map(|member| format!("{}:{}", member.key, member.value)).collect();
    Some(format!("{{{}}}", members.join(",")))
}

/// Whether a JSON text is an object.
pub fn is_object(text: &str) -> bool {
    text.trim_ascii_start().starts_with('{')
}

fn members(text: &str) -> Option<Vec<Member<'_>>> {
    let mut scan = Scan { text, at: 0 };
    let mut members = Vec::new();
    if !scan.take(b'{') {
        return None;
    }
    while !scan.take(b'}') {
        let key = scan.string()?;
        scan.take(b':');
        members.push(Member { key, value: scan.value()? });
        scan.take(b',');
    }
    Some(members)
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Steps over `wanted` if it is next.
    fn take(&mut self, wanted: u8) -> bool {
        self.skip_space();
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn string(&mut self) -> Option<&'a str> {
        self.skip_space();
        let start = self.at;
        self.at += 1;
        while self.peek()? != b'"' {
            self.at += if self.peek()? == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
        self.text.get(start..self.at)
    }

    /// A value, without a stack: only the depth and the strings matter.
    fn value(&mut self) -> Option<&'a str> {
        self.skip_space();
        let start = self.at;
        let mut depth = 0;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                    if depth == 0 {
                        break;
                    }
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' | b',' if depth == 0 => break,
                b'}' | b']' => {
                    depth -= 1;
                    if depth == 0 {
                        self.at += 1;
                        break;
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
        self.text.get(start..self.at).map(|value| value.trim_end_matches([' ', '\t', '\n', '\r']))
    }
}

/// The key's characters as UTF-16, in which an escape, the character itself and a lone surrogate compare rightly.
fn decode(raw: &str) -> Vec<u16> {
    let mut units = Vec::with_capacity(raw.len());
    let mut characters = raw[1..raw.len() - 1].chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            units.extend_from_slice(character.encode_utf16(&mut [0; 2]));
            continue;
        }
        units.push(match characters.next() {
            Some('b') => 8,
            Some('f') => 12,
            Some('n') => 10,
            Some('r') => 13,
            Some('t') => 9,
            Some('u') => characters.by_ref().take(4).fold(0, |unit, digit| {
                unit << 4 | digit.to_digit(16).expect("the json type admits only hexadecimal digits") as u16
            }),
            Some(other) => other as u16,
            None => break,
        });
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_byte_for_byte() {
        let stored = r#" { "b" : 1e2 , "a":{"x": [1,2, "]}" ] }, "n": -0.0 } "#;
        let patch = r#"{"a": "\u0000\ud83d", "c": 1e400000}"#;
        assert_eq!(merge(stored, patch).unwrap(), r#"{"b":1e2,"a":"\u0000\ud83d","n":-0.0,"c":1e400000}"#);
    }

    #[test]
    fn keys_compare_by_their_characters() {
        assert_eq!(merge(r#"{"\u0061":1}"#, r#"{"a":2}"#).unwrap(), r#"{"\u0061":2}"#);
        assert_eq!(merge(r#"{"\ud83d\ude80":1}"#, "{\"\u{1F680}\":2}").unwrap(), r#"{"\ud83d\ude80":2}"#);
        assert_eq!(merge(r#"{"\ud83d":1}"#, r#"{"\ud83e":2}"#).unwrap(), r#"{"\ud83d":1,"\ud83e":2}"#);
        assert_eq!(merge(r#"{"a\"b":1}"#, r#"{"a\"b":2}"#).unwrap(), r#"{"a\"b":2}"#);
        assert_eq!(merge(r#"{"a\\":1}"#, r#"{"a":2}"#).unwrap(), r#"{"a\\":1,"a":2}"#);
    }

    #[test]
    fn a_duplicate_key_is_replaced_once() {
        assert_eq!(merge(r#"{"a":1,"b":2,"a":3}"#, r#"{"a":4}"#).unwrap(), r#"{"a":4,"b":2}"#);
        assert_eq!(merge(r#"{}"#, r#"{"a":1,"a":2}"#).unwrap(), r#"{"a":2}"#);
    }

    #[test]
    fn only_objects_merge() {
        for (stored, patch) in [("[]", "{}"), ("{}", "[]"), ("1", "{}"), ("{}", "\"x\""), ("{}", "null")] {
            assert_eq!(merge(stored, patch), None, "{stored} {patch}");
        }
        assert_eq!(merge(" {} ", "{ }").unwrap(), "{}");
    }

    #[test]
    fn many_keys_take_no_longer_than_they_are() {
        let object = |value: u32| {
            let members: Vec<String> = (0..100_000).map(|key| format!("\"{key}\":{value}")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert_eq!(merge(&object(1), &object(2)).unwrap(), object(2));
    }

    #[test]
    fn depth_needs_no_stack() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(1_000_000), "]".repeat(1_000_000));
        assert_eq!(merge("{}", &deep).unwrap(), deep);
    }
}
