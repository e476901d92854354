//! What is hashed, and how. Everything is hashed as stored, so that verifying needs no canonical form of JSON and no
//! setting: text as UTF-8 behind a 4-byte big-endian length (NULL: length 0xFFFFFFFF), integers as big-endian int8,
//! times as microseconds since 2000-01-01 UTC.

use sha2::{Digest as _, Sha256};

/// A SHA-256 digest.
pub type Digest = [u8; 32];

const ITEM: &[u8] = b"agent_sessions/item/1";
const GENESIS: &[u8] = b"agent_sessions/genesis/1";

/// What the first link of a log stands on: the session's identity, and for a branch its parent's digest.
#[derive(Clone, Copy, Debug)]
pub struct Genesis<'a> {
    pub tenant: &'a str,
    pub agent_id: &'a str,
    pub session_id: &'a str,
    /// Microseconds since 2000-01-01 UTC.
    pub created_at: i64,
    pub fork_position: Option<i64>,
    /// The parent's digest before the fork, or its genesis if the fork is 0; zero bytes for a session of its own.
    pub forked_from: Digest,
}

/// What a link says about an entry, besides its content.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    pub position: i64,
    pub op: &'a str,
    pub kind: Option<&'a str>,
    pub item_id: Option<&'a str>,
    pub tag: Option<&'a str>,
    pub author: Option<&'a str>,
    pub target: Option<i64>,
    /// Microseconds since 2000-01-01 UTC.
    pub created_at: i64,
}

impl Genesis<'_> {
    pub fn digest(&self) -> Digest {
        let mut hash = Hasher::new(GENESIS);
        hash.text(Some(self.tenant));
        hash.text(Some(self.agent_id));
        hash.text(Some(self.session_id));
        hash.int8(self.created_at);
        hash.int8(self.fork_position.unwrap_or(-1));
        hash.bytes(&self.forked_from);
        hash.finish()
    }
}

impl Link<'_> {
    /// The entry's digest, which links it to the one before.
    pub fn digest(&self, previous: &Digest, content: &Digest) -> Digest {
        let mut hash = Hasher::new(ITEM);
        hash.bytes(previous);
        hash.int8(self.position);
        hash.text(Some(self.op));
        hash.text(self.kind);
        hash.text(self.item_id);
        hash.text(self.tag);
        hash.text(self.author);
        hash.int8(self.target.unwrap_or(-1));
        hash.int8(self.created_at);
        hash.bytes(content);
        hash.finish()
    }
}

/// The digest of an entry's content: `attrs` is the text of the stored jsonb.
///
/// The salt makes an erasure real: without it, a short payload could be guessed from its digest.
pub fn content(salt: &[u8; 16], payload: Option<&str>, attrs: Option<&str>) -> Digest {
    let mut hash = Hasher::new(salt);
    hash.text(payload);
    hash.text(attrs);
    hash.finish()
}

struct Hasher(Sha256);

impl Hasher {
    fn new(prefix: &[u8]) -> Hasher {
        Hasher(Sha256::new_with_prefix(prefix))
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn int8(&mut self, value: i64) {
        self.0.update(value.to_be_bytes());
    }

    fn text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => {
                // A value of PostgreSQL is below 1 GiB, so its length always fits.
                self.0.update((text.len() as u32).to_be_bytes());
                self.0.update(text.as_bytes());
            }
            None => self.0.update(u32::MAX.to_be_bytes()),
        }
    }

    fn finish(self) -> Digest {
        self.0.finalize().into()
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

/// The bytes of as many pairs of hexadecimal digits, in lower case.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    fn genesis() -> Genesis<'static> {
        Genesis {
            tenant: "t",
            agent_id: "",
            session_id: "s-1",
            created_at: 1,
            fork_position: None,
            forked_from: [0; 32],
        }
    }

    fn link() -> Link<'static> {
        Link {
            position: 0,
            op: "append",
            kind: Some("message"),
            item_id: None,
            tag: None,
            author: Some("user"),
            target: None,
            created_at: 2,
        }
    }

    // The three vectors were computed with Python's hashlib and struct from the formulas of the design.
    #[test]
    fn known_answers() {
        let content = content(&SALT, Some("{\"a\":1}"), None);
        assert_eq!(hex(&content), CONTENT);
        assert_eq!(hex(&genesis().digest()), GENESIS_DIGEST);
        assert_eq!(hex(&link().digest(&genesis().digest(), &content)), LINK);
    }

    const CONTENT: &str = "e260104be55f61730d63b47bb11ff03d07dc0aa1eeabc1a045712be36525077b";
    const GENESIS_DIGEST: &str = "0917eeba0da9ae590047ae4ae9a6728e6375bc90b88f8cb420e7dd438cd84efd";
    const LINK: &str = "83b0ffe5bd4207bfadea669f899a0759405ba9a1b602fdb43bb580abaaa06c95";

    #[test]
    fn null_is_not_the_empty_text() {
        assert_ne!(content(&SALT, Some(""), None), content(&SALT, None, None));
        assert_ne!(content(&SALT, Some(""), None), content(&SALT, None, Some("")));
    }

    #[test]
    fn every_field_moves_the_digest() {
        let of = |link: Link| link.digest(&[0; 32], &[1; 32]);
        let base = of(link());
        for other in [
            Link { position: 1, ..link() },
            Link { op: "open", ..link() },
            Link { kind: None, ..link() },
            Link { item_id: Some("i"), ..link() },
            Link { tag: Some("t"), ..link() },
            Link { author: None, ..link() },
            Link { target: Some(0), ..link() },
            Link { created_at: 3, ..link() },
        ] {
            assert_ne!(of(other), base, "{other:?}");
        }
        assert_ne!(link().digest(&[2; 32], &[1; 32]), base);
        assert_ne!(link().digest(&[0; 32], &[2; 32]), base);
        let base = genesis().digest();
        for other in [
            Genesis { tenant: "u", ..genesis() },
            Genesis { agent_id: "a", ..genesis() },
            Genesis { session_id: "s-2", ..genesis() },
            Genesis { created_at: 0, ..genesis() },
            Genesis { fork_position: Some(0), ..genesis() },
            Genesis { forked_from: [1; 32], ..genesis() },
        ] {
            assert_ne!(other.digest(), base, "{other:?}");
        }
    }
}
