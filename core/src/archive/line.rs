//! The lines: one JSON object each, of one key that names the line's kind.
//!
//! JSON columns are texts, so that they come back byte for byte and others can hash them; digests and salts are in hex; times
//! are microseconds since 2000-01-01 UTC, as they are hashed. Who writes lines by hand may give a time in RFC 3339.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::chain;
use crate::digest::{hex, unhex};
use crate::timestamp;

pub type Text<'a> = Cow<'a, str>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Line<'a> {
    /// The first line.
    Session(Box<Session<'a>>),
    /// A session that the exported one inherits from, the oldest first, before the entries that are inherited from it.
    Ancestor(Ancestor<'a>),
    Entry(Entry<'a>),
    /// An entry of the ancestor behind what is inherited, which tells what was erased or trimmed of that.
    Explanation(Entry<'a>),
    /// A piece of an open item's text, behind all entries.
    Chunk(Chunk<'a>),
    /// The last line.
    End(End),
}

/// The session's row. Lines that were not exported have no `format`, and no more than a client may give.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session<'a> {
    pub format: Option<Format>,
    pub tenant: Option<Text<'a>>,
    pub agent_id: Option<Text<'a>>,
    pub session_id: Option<Text<'a>>,
    pub created_at: Option<Time>,
    pub parent_agent_id: Option<Text<'a>>,
    pub parent_session_id: Option<Text<'a>>,
    pub owner: Option<Text<'a>>,
    pub origin: Option<Text<'a>>,
    pub title: Option<Text<'a>>,
    pub status: Option<Text<'a>>,
    pub metadata: Option<Text<'a>>,
    pub state: Option<Text<'a>>,
    pub revision: Option<i64>,
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
    pub cost: Option<Text<'a>>,
    pub lease_fence: Option<i64>,
    pub closed_at: Option<Time>,
    pub expires_at: Option<Time>,
    pub fork_position: Option<i64>,
    pub fork_digest: Option<Hex<32>>,
    pub base_position: Option<i64>,
    pub base_digest: Option<Hex<32>>,
}

/// What of an ancestor its part of the chain stands on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ancestor<'a> {
    pub agent_id: Text<'a>,
    pub session_id: Text<'a>,
    pub created_at: Time,
    pub fork_position: Option<i64>,
    pub fork_digest: Option<Hex<32>>,
    pub base_position: Option<i64>,
    pub base_digest: Option<Hex<32>>,
}

/// An entry of the log. Of an erased one payload, attrs and salt are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry<'a> {
    pub position: Option<i64>,
    pub op: Option<Text<'a>>,
    pub kind: Option<Text<'a>>,
    pub item_id: Option<Text<'a>>,
    pub tag: Option<Text<'a>>,
    pub author: Option<Text<'a>>,
    pub target: Option<i64>,
    pub payload: Option<Text<'a>>,
    pub attrs: Option<Text<'a>>,
    pub salt: Option<Hex<16>>,
    pub content_digest: Option<Hex<32>>,
    pub digest: Option<Hex<32>>,
    pub created_at: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chunk<'a> {
    pub target: i64,
    pub chunk_no: i32,
    pub chunk: Text<'a>,
}

/// Says that nothing is missing and nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// Of all lines before this one as they were written, each with its newline.
    pub sha256: Hex<32>,
}

/// What the lines come to, one after the other.
#[derive(Default)]
pub struct Sum(Sha256);

impl Sum {
    /// Takes the text of the next line.
    pub fn add(&mut self, line: &str) {
        self.0.update(line);
        self.0.update("\n");
    }

    /// The line that says so.
    pub fn end(self) -> End {
        End { sha256: Hex(self.0.finalize().into()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    #[serde(rename = "agent_sessions/session/1")]
    Version1,
}

impl<'a> From<&chain::Entry<'a>> for Entry<'a> {
    fn from(entry: &chain::Entry<'a>) -> Entry<'a> {
        let link = &entry.link;
        Entry {
            position: Some(link.position),
            op: Some(link.op.into()),
            kind: link.kind.map(Text::from),
            item_id: link.item_id.map(Text::from),
            tag: link.tag.map(Text::from),
            author: link.author.map(Text::from),
            target: link.target,
            payload: entry.payload.map(Text::from),
            attrs: entry.attrs.map(Text::from),
            salt: entry.salt.map(Hex),
            content_digest: entry.content_digest.try_into().ok().map(Hex),
            digest: entry.digest.try_into().ok().map(Hex),
            created_at: Some(Time(link.created_at)),
        }
    }
}

/// A line whose kind is known.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Tagged<'a> {
    #[serde(borrow)]
    Session(&'a RawValue),
    Ancestor(&'a RawValue),
    Entry(&'a RawValue),
    Explanation(&'a RawValue),
    Chunk(&'a RawValue),
    End(&'a RawValue),
}

/// serde would read an array as an object without its keys.
fn object<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> serde_json::Result<T> {
    match raw.get().starts_with('{') {
        true => serde_json::from_str(raw.get()),
        false => Err(de::Error::custom("an object was expected")),
    }
}

impl Line<'static> {
    /// The line of a text, or why it is none.
    pub fn parse(text: &str) -> serde_json::Result<Line<'static>> {
        Ok(match serde_json::from_str(text)? {
            Tagged::Session(raw) => Line::Session(object(raw)?),
            Tagged::Ancestor(raw) => Line::Ancestor(object(raw)?),
            Tagged::Entry(raw) => Line::Entry(object(raw)?),
            Tagged::Explanation(raw) => Line::Explanation(object(raw)?),
            Tagged::Chunk(raw) => Line::Chunk(object(raw)?),
            Tagged::End(raw) => Line::End(object(raw)?),
        })
    }
}

impl Line<'_> {
    /// The line as an export writes it, without its newline. The same values always make the same text.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers can be written")
    }
}

/// Bytes in lower-case hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hex<const N: usize>(pub [u8; N]);

impl<const N: usize> fmt::Debug for Hex<N> {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str(&hex(&self.0))
    }
}

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex(&self.0))
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Hex<N>, D::Error> {
        let text = Text::deserialize(from)?;
        unhex(&text)
            .map(Hex)
            .ok_or_else(|| de::Error::custom(format_args!("{N} bytes in lower-case hex were expected")))
    }
}

/// Microseconds since 2000-01-01 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub i64);

impl Time {
    pub const INFINITY: Time = Time(i64::MAX);

    /// Whether PostgreSQL can hold the time: the years -4713 to 294276.
    pub fn is_finite(self) -> bool {
        (-211_813_488_000_000_000..9_223_371_331_200_000_000).contains(&self.0)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(self.0)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        struct NumberOrText;

        impl Visitor<'_> for NumberOrText {
            type Value = Time;

            fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
                to.write_str("microseconds since 2000-01-01 UTC, or a time as RFC 3339 writes it")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Time, E> {
                Ok(Time(number))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Time, E> {
                i64::try_from(number).map(Time).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
                timestamp::parse(text).map(Time).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }

        from.deserialize_any(NumberOrText)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry<'static> {
        Entry {
            position: Some(3),
            op: Some("append".into()),
            kind: Some("message".into()),
            payload: Some("{\"a\":\"\\u0000\",\n\"a\":1e2}".into()),
            salt: Some(Hex([0xAB; 16])),
            created_at: Some(Time(-1)),
            ..Entry::default()
        }
    }

    #[test]
    fn a_line_is_one_line_and_reads_back() {
        let chunk = Chunk { target: 3, chunk_no: 0, chunk: "\n\u{1F680}".into() };
        let session = Session { format: Some(Format::Version1), title: Some("a\r\nb".into()), ..Session::default() };
        let lines = [
            Line::Session(Box::new(session)),
            Line::Entry(entry()),
            Line::Explanation(entry()),
            Line::Chunk(chunk),
            Line::End(End { sha256: Hex([1; 32]) }),
        ];
        for line in lines {
            let text = line.text();
            assert!(!text.contains('\n'), "{text}");
            assert_eq!(Line::parse(&text).unwrap(), line);
        }
    }

    #[test]
    fn a_time_may_be_given_as_text() {
        let time = |text: &str| serde_json::from_str::<Time>(text).map(|time| time.0);
        assert_eq!(time("\"2000-01-01T00:00:01Z\"").unwrap(), 1_000_000);
        assert_eq!(time("-7").unwrap(), -7);
        for bad in ["\"today\"", "1.5", "9223372036854775808", "null", "[1]"] {
            assert!(time(bad).is_err(), "{bad}");
        }
        assert!(Time(0).is_finite() && !Time::INFINITY.is_finite() && !Time(i64::MIN).is_finite());
    }

    #[test]
    fn anything_else_is_no_line() {
        for bad in [
            "{}",
            "\"entry\"",
            "[]",
            "{\"entry\":[]}",
            "{\"end\":[\"0000000000000000000000000000000000000000000000000000000000000000\"]}",
            "{\"entry\":{},\"entry\":{}}",
            "{\"entry\":{\"kind\":\"\\ud83d\"}}",
            "{\"entry\":{\"postion\":1}}",
            "{\"entry\":{},\"end\":{}}",
            "{\"entry\":{\"position\":1,\"position\":1}}",
            "{\"entry\":{\"digest\":\"AB\"}}",
            "{\"chunk\":{\"target\":1,\"chunk_no\":0}}",
            "{\"session\":{\"format\":\"agent_sessions/session/2\"}}",
            "{\"item\":{}}",
        ] {
            assert!(Line::parse(bad).is_err(), "{bad}");
        }
    }
}
