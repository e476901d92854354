//! The audit chain: the text of an event that is hashed, its hash, and the walk that checks them.
//!
//! `hash = 'sha256:' || hex(sha256(prev_hash || '\n' || data))`, and the first event's `prev_hash` is [`GENESIS`].

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::digest::{Digest, hex};
use crate::element::unless_null;
use crate::timestamp;

/// What the first event of a stream is linked to.
pub const GENESIS: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// The columns of an event that its text repeats. Times are microseconds since 2000-01-01 UTC.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    pub tenant: &'a str,
    pub stream: &'a str,
    pub event_id: Option<&'a str>,
    pub occurred_at: i64,
    pub recorded_at: i64,
    pub action: &'a str,
    pub actor: Option<&'a str>,
    pub target: Option<&'a str>,
    pub session_id: Option<&'a str>,
    pub status: Option<&'a str>,
    /// The text of the stored jsonb.
    pub attrs: Option<&'a str>,
}

/// The text of an event, as it is hashed: an object of its seq, its columns that are not NULL, and as the last key its payload
/// as it was given. `None` if a time is outside of the years 0 to 9999.
pub fn data(seq: i64, columns: &Columns, payload: &str) -> Option<String> {
    let mut data = head(seq, columns)?;
    data.push_str(payload);
    data.push('}');
    Some(data)
}

/// What only an event of that place begins with.
fn place(seq: i64, tenant: &str, stream: &str) -> String {
    format!("{{\"seq\":{seq},\"tenant\":{},\"stream\":{},\"occurred_at\":", Value::from(tenant), Value::from(stream))
}

/// Whether a text was built for that place, whatever else is said of it.
pub fn is_own(seq: i64, tenant: &str, stream: &str, data: &str) -> bool {
    data.starts_with(&place(seq, tenant, stream))
}

/// Whether a text that was built by the database says what the columns say.
pub fn agrees(seq: i64, columns: &Columns, data: &str) -> bool {
    head(seq, columns).is_some_and(|head| data.starts_with(&head))
}

/// The part of the text that the columns determine.
fn head(seq: i64, columns: &Columns) -> Option<String> {
    let mut head = place(seq, columns.tenant, columns.stream);
    head.push_str(&Value::from(timestamp::format(columns.occurred_at)?).to_string());
    let mut text = |key: &str, value: &str| {
        head.push_str(&format!(",\"{key}\":{}", Value::from(value)));
    };
    text("recorded_at", &timestamp::format(columns.recorded_at)?);
    let labels = [
        ("event_id", columns.event_id),
        ("action", Some(columns.action)),
        ("actor", columns.actor),
        ("target", columns.target),
        ("session_id", columns.session_id),
        ("status", columns.status),
    ];
    labels.into_iter().filter_map(|(key, value)| Some((key, value?))).for_each(|(key, value)| text(key, value));
    if let Some(attrs) = columns.attrs {
        head.push_str(",\"attrs\":");
        head.push_str(attrs);
    }
    head.push_str(",\"payload\":");
    Some(head)
}

/// One element of a batch of events.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Element<'a> {
    pub action: String,
    #[serde(borrow, default)]
    pub payload: Option<&'a RawValue>,
    pub actor: Option<String>,
    pub target: Option<String>,
    pub session_id: Option<String>,
    pub status: Option<String>,
    #[serde(borrow, default, deserialize_with = "unless_null")]
    pub attrs: Option<&'a RawValue>,
    /// RFC 3339.
    pub occurred_at: Option<String>,
    pub event_id: Option<String>,
}

/// An event that was chained elsewhere; the keys of an export's line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    pub data: String,
    pub hash: String,
    pub prev_hash: Option<String>,
    pub seq: Option<i64>,
    /// Where it was exported from; not looked at.
    #[serde(rename = "stream")]
    _stream: Option<String>,
}

/// The white space of JSON.
const SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// The columns that can be taken from the text of an imported event.
pub const MAPPED: [&str; 8] = ["event_id", "occurred_at", "action", "actor", "target", "session_id", "status", "attrs"];

/// What of an imported event's text goes into which column.
pub struct Fields(BTreeMap<String, Vec<String>>);

impl Fields {
    /// `{"action": "type", "actor": ["user", "id"]}`: columns, and the key, or the keys from the outermost on. `None` if it is
    /// anything else.
    pub fn parse(fields: &str) -> Option<Fields> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Place {
            Key(String),
            Path(Vec<String>),
        }
        let places: BTreeMap<String, Place> = serde_json::from_str(fields).ok()?;
        let fields = places.into_iter().map(|(column, place)| match place {
            Place::Key(key) => (column, vec![key]),
            Place::Path(path) => (column, path),
        });
        let fields: BTreeMap<String, Vec<String>> = fields.collect();
        fields.keys().all(|column| MAPPED.contains(&column.as_str())).then_some(Fields(fields))
    }

    /// Where a text of ours has them.
    pub fn own() -> Fields {
        Fields(MAPPED.iter().map(|column| ((*column).to_owned(), vec![(*column).to_owned()])).collect())
    }

    /// The values that the columns take, each as text, in the order of [`MAPPED`]; attrs as they stand in the text. `None` if the
    /// text is no JSON that can be read.
    pub fn values(&self, data: &str) -> Option<[Option<String>; 8]> {
        let mut values: [Option<String>; 8] = Default::default();
        for (column, value) in MAPPED.iter().zip(&mut values) {
            if let Some(path) = self.0.get(*column) {
                *value = value_at(data, path)?;
            }
        }
        Some(values)
    }
}

/// When an event of ours was recorded, as its text says.
pub fn recorded_at(data: &str) -> Option<i64> {
    value_at(data, &["recorded_at".to_owned()])?.as_deref().and_then(timestamp::parse)
}

/// What stands at a path of keys: a string's text, anything else as it stands. Only what is on the way is looked into: the rest may
/// hold what only PostgreSQL's json takes. The outer `None` is for what is no JSON.
fn value_at(data: &str, path: &[String]) -> Option<Option<String>> {
    let mut value: &RawValue = serde_json::from_str(data).ok()?;
    for key in path {
        if !value.get().starts_with('{') {
            return Some(None);
        }
        let members: HashMap<Cow<str>, &RawValue> = serde_json::from_str(value.get()).ok()?;
        match members.get(key.as_str()) {
            Some(member) => value = member,
            None => return Some(None),
        }
    }
    match value.get() {
        "null" => Some(None),
        text if text.starts_with('"') => serde_json::from_str(text).ok().map(Some),
        other => Some(Some(compact(other))),
    }
}

/// A JSON text without the white space between its parts.
fn compact(json: &str) -> String {
    let (mut in_string, mut is_escaped) = (false, false);
    let kept = |character: &char| {
        let is_kept = in_string || !SPACE.contains(character);
        in_string ^= *character == '"' && !is_escaped;
        is_escaped = in_string && *character == '\\' && !is_escaped;
        is_kept
    };
    json.chars().filter(kept).collect()
}

/// The payload in an event's text, with the white space around it.
pub fn payload(data: &str) -> Option<&str> {
    #[derive(Deserialize)]
    struct Text<'a> {
        #[serde(borrow)]
        payload: &'a RawValue,
    }
    // serde would read an array as an object whose keys are left out.
    let text: Text = serde_json::from_str(data).ok().filter(|_| data.trim_start_matches(SPACE).starts_with('{'))?;
    let found = text.payload.get();
    let start = found.as_ptr() as usize - data.as_ptr() as usize;
    let (before, after) = (&data[..start], &data[start + found.len()..]);
    let start = before.trim_end_matches(SPACE).len();
    let end = data.len() - after.trim_start_matches(SPACE).len();
    Some(&data[start..end])
}

pub fn hash(prev_hash: &str, data: &str) -> String {
    let digest: Digest = Sha256::new().chain_update(prev_hash).chain_update("\n").chain_update(data).finalize().into();
    format!("sha256:{}", hex(&digest))
}

/// An event as it is stored.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    pub seq: i64,
    pub prev_hash: &'a str,
    pub hash: &'a str,
    pub data: &'a str,
    /// Whether the columns say what the text says, if that is known otherwise: for an imported event.
    pub columns: Result<Columns<'a>, bool>,
}

/// A walk along a stream's events in the order of seq.
pub struct Walk {
    next_seq: i64,
    prev_hash: String,
    entries: i64,
    fault: Option<(i64, &'static str)>,
}

impl Walk {
    /// Begins at `seq`, whose event is linked to `prev_hash`.
    pub fn from(seq: i64, prev_hash: &str) -> Walk {
        Walk { next_seq: seq, prev_hash: prev_hash.to_owned(), entries: 0, fault: None }
    }

    pub fn step(&mut self, event: &Event) {
        self.entries += 1;
        if self.fault.is_none() {
            self.fault = self.check(event).map(|reason| (self.next_seq, reason));
        }
        self.next_seq = event.seq + 1;
        event.hash.clone_into(&mut self.prev_hash);
    }

    fn check(&self, event: &Event) -> Option<&'static str> {
        if event.seq != self.next_seq {
            return Some("the event is missing");
        }
        if event.prev_hash != self.prev_hash {
            return Some("the event is linked to another one");
        }
        if hash(event.prev_hash, event.data) != event.hash {
            return Some("the event is not what was written");
        }
        let agree = match event.columns {
            Ok(columns) => agrees(event.seq, &columns, event.data),
            Err(agree) => agree,
        };
        if agree { None } else { Some("the columns are not what was written") }
    }

    /// The seq and hash of the last event, or of what the first is linked to.
    pub fn head(&self) -> (i64, &str) {
        (self.next_seq - 1, &self.prev_hash)
    }

    pub fn entries(&self) -> i64 {
        self.entries
    }

    /// The first seq that is not as it was written, and why.
    pub fn fault(&self) -> Option<(i64, &'static str)> {
        self.fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: Columns = Columns {
        tenant: "acme",
        stream: "",
        event_id: Some("e\"1"),
        occurred_at: 0,
        recorded_at: 1,
        action: "login",
        actor: None,
        target: Some("\u{1F680}\n"),
        session_id: None,
        status: Some("ok"),
        attrs: Some("{\"a\": 1}"),
    };

    #[test]
    fn the_text_of_an_event() {
        assert_eq!(
            data(7, &COLUMNS, "{\"b\":1,\"a\":\"\\u0000\"}").unwrap(),
            "{\"seq\":7,\"tenant\":\"acme\",\"stream\":\"\",\"occurred_at\":\"2000-01-01T00:00:00.000000Z\",\
             \"recorded_at\":\"2000-01-01T00:00:00.000001Z\",\"event_id\":\"e\\\"1\",\"action\":\"login\",\
             \"target\":\"\u{1F680}\\n\",\"status\":\"ok\",\"attrs\":{\"a\": 1},\
             \"payload\":{\"b\":1,\"a\":\"\\u0000\"}}"
        );
        assert_eq!(data(1, &Columns { occurred_at: i64::MAX, ..COLUMNS }, "1"), None);
    }

    #[test]
    fn a_payload_is_found_as_it_was_given() {
        for given in ["{\"b\":1, \"b\":2}", "\"\\u0000\\ud83d\"", "1e400000", "null", "[ 1 ]", " \n1\t "] {
            let data = data(1, &Columns { attrs: Some("{\"payload\": 0}"), ..COLUMNS }, given).unwrap();
            assert_eq!(payload(&data), Some(given));
        }
        for without in ["{\"a\":1}", "[1]", "1", "no json"] {
            assert_eq!(payload(without), None);
        }
    }

    #[test]
    fn columns_are_taken_from_where_fields_say() {
        let fields =
            Fields::parse(r#"{"action": "type", "actor": ["user", "id"], "status": "code", "target": "x"}"#).unwrap();
        let values = fields.values(r#"{"type": "login", "user": {"id": "ann"}, "code": 7, "x": null}"#).unwrap();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(values, [None, None, text("login"), text("ann"), None, None, text("7"), None]);
        assert_eq!(fields.values("no json"), None);
        assert_eq!(Fields::parse("{}").unwrap().values("no json"), Some(Default::default()));
        let spaced = "{\"type\": [1, \n\"a \\\" b\\\\\" , 2]}";
        assert_eq!(fields.values(spaced).unwrap()[2], text("[1,\"a \\\" b\\\\\",2]"));
        let odd = r#"{"type": "x", "deep": "\ud83d", "n": 1e400000, "code": 12345678901234567890.10}"#;
        let values = fields.values(odd).unwrap();
        assert_eq!((values[2].as_deref(), values[6].as_deref()), (Some("x"), Some("12345678901234567890.10")));
        for bad in ["[]", "null", r#"{"seq": "n"}"#, r#"{"action": 1}"#, r#"{"action": [1]}"#] {
            assert!(Fields::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn the_published_formula() {
        // printf 'sha256:%064d\n{"a":1}' 0 | sha256sum
        assert_eq!(
            hash(GENESIS, "{\"a\":1}"),
            "sha256:fb266d6f8c297721fd1c1ae3e0de21556f01240660a0057000be727e7ea7f43a"
        );
    }

    #[test]
    fn a_text_of_ours_is_known_by_its_place_and_read_back() {
        let data = data(7, &COLUMNS, "{\"action\": \"other\"}").unwrap();
        assert!(is_own(7, "acme", "", &data) && agrees(7, &COLUMNS, &data));
        assert!(!is_own(8, "acme", "", &data) && !is_own(7, "", "", &data) && !is_own(7, "acme", "s", &data));
        let values = Fields::own().values(&data).unwrap();
        let text = |text: Option<&str>| text.map(str::to_owned);
        assert_eq!(values[0], text(COLUMNS.event_id));
        assert_eq!(values[1].as_deref().and_then(timestamp::parse), Some(COLUMNS.occurred_at));
        assert_eq!(
            (&values[2], &values[4], &values[7]),
            (&text(Some("login")), &text(COLUMNS.target), &text(Some("{\"a\":1}")))
        );
        assert_eq!(recorded_at(&data), Some(COLUMNS.recorded_at));
        assert_eq!(recorded_at("{}"), None);
    }

    fn chain() -> Vec<(i64, String, String, String)> {
        let mut prev = GENESIS.to_owned();
        (1..=4)
            .map(|seq| {
                let data = data(seq, &COLUMNS, &seq.to_string()).unwrap();
                let hash = hash(&prev, &data);
                (seq, std::mem::replace(&mut prev, hash.clone()), hash, data)
            })
            .collect()
    }

    fn fault(chain: &[(i64, String, String, String)], columns: Result<Columns, bool>) -> Option<i64> {
        let mut walk = Walk::from(1, GENESIS);
        for (seq, prev_hash, hash, data) in chain {
            walk.step(&Event { seq: *seq, prev_hash, hash, data, columns });
        }
        walk.fault().map(|(seq, _)| seq)
    }

    #[test]
    fn what_was_written_verifies() {
        assert_eq!(fault(&chain(), Ok(COLUMNS)), None);
        assert_eq!(fault(&chain(), Err(true)), None);
        let mut walk = Walk::from(3, &chain()[1].2);
        for (seq, prev_hash, hash, data) in &chain()[2..] {
            walk.step(&Event { seq: *seq, prev_hash, hash, data, columns: Ok(COLUMNS) });
        }
        assert_eq!((walk.fault(), walk.entries(), walk.head()), (None, 2, (4, chain()[3].2.as_str())));
    }

    #[test]
    fn tampering_is_found_where_it_is() {
        let mut changed = chain();
        changed[2].3 = changed[2].3.replace("login", "logout");
        assert_eq!(fault(&changed, Ok(COLUMNS)), Some(3));
        for at in 0..3 {
            let mut cut = chain();
            cut.remove(at);
            assert_eq!(fault(&cut, Ok(COLUMNS)), Some(at as i64 + 1));
        }
        let mut swapped = chain();
        swapped.swap(1, 2);
        assert_eq!(fault(&swapped, Ok(COLUMNS)), Some(2));
        assert_eq!(fault(&chain(), Ok(Columns { status: None, ..COLUMNS })), Some(1));
        assert_eq!(fault(&chain(), Ok(Columns { tenant: "other", ..COLUMNS })), Some(1));
        assert_eq!(fault(&chain(), Err(false)), Some(1));
    }
}
