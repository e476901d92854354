//! Whether a write may pass: the lease that it brings against the one that the session holds.
//!
//! To clients a lease is an opaque text. Inside it is `sid:nonce`; the session keeps only the SHA-256 of the nonce,
//! since everyone who may read the session would see the nonce itself.

use sha2::{Digest as _, Sha256};

use crate::digest::{Digest, hex};
use crate::error::Error;

/// The longest time to live, in microseconds: 24 hours.
pub const LONGEST_TTL: i64 = 24 * 3_600 * 1_000_000;

/// A new lease of a session: the text for its holder, and the digest that the session keeps. `nonce` is random.
pub fn issue(sid: i64, nonce: [u8; 16]) -> (String, Digest) {
    let nonce = hex(&nonce);
    let digest = Sha256::digest(nonce.as_bytes()).into();
    (format!("{sid}:{nonce}"), digest)
}

/// The entry for a session in a list of leases, as the setting `agent_sessions.lease` holds it, separated by commas or spaces.
pub fn entry_for(list: &str, sid: i64) -> Option<&str> {
    list.split([',', ' ']).find(|lease| named(lease) == Some(sid))
}

/// The session that a lease is for.
fn named(lease: &str) -> Option<i64> {
    lease.split_once(':').and_then(|(sid, _)| sid.parse().ok())
}

/// SE001 unless a time to live, in microseconds, is more than nothing and at most 24 hours.
pub fn check_ttl(ttl: Option<i64>) -> Result<i64, Error> {
    match ttl {
        Some(ttl) if ttl > 0 && ttl <= LONGEST_TTL => Ok(ttl),
        _ => Err(Error::invalid("ttl", "must be given, more than nothing and at most 24 hours")),
    }
}

/// What a session's row says of its lease.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    pub sid: i64,
    pub digest: Option<&'a [u8]>,
    pub holder: Option<&'a str>,
    /// Microseconds since 2000-01-01 UTC.
    pub expires_at: Option<i64>,
}

impl Held<'_> {
    pub fn is_live(&self, now: i64) -> bool {
        self.digest.is_some() && self.expires_at.is_some_and(|expires_at| expires_at > now)
    }

    /// Whether `lease` is the one that was claimed last, live or expired.
    pub fn is_proven_by(&self, lease: &str) -> bool {
        named(lease) == Some(self.sid)
            && lease.split_once(':').map(|(_, nonce)| Sha256::digest(nonce.as_bytes())).as_ref().map(|d| d.as_slice())
                == self.digest
    }

    /// Ok if a write that brings `lease` may pass at `now`, the server's clock read after the session was locked.
    /// SE008 if the lease is not the live one, SE009 if one is live and none was brought.
    pub fn admits(&self, lease: Option<&str>, now: i64) -> Result<(), Error> {
        match lease {
            Some(lease) if self.is_live(now) && self.is_proven_by(lease) => Ok(()),
            Some(_) => Err(Error::LeaseLost),
            None if self.is_live(now) => Err(Error::LeaseRequired { holder: self.holder.map(str::to_owned) }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issued_lease_proves_itself_and_no_other_session() {
        let (lease, digest) = issue(7, [0xA5; 16]);
        let held = |sid| Held { sid, digest: Some(&digest), holder: None, expires_at: Some(1) };
        assert!(held(7).is_proven_by(&lease));
        assert!(!held(8).is_proven_by(&lease));
        assert!(!held(7).is_proven_by(&lease.replace('a', "b")));
        assert!(!lease.contains(&hex(&digest)));
    }

    #[test]
    fn a_list_holds_one_lease_for_each_session() {
        for list in ["7:a,8:b", "7:a 8:b", " 7:a, 8:b,", "x,7:a,:,8:b"] {
            assert_eq!(entry_for(list, 8), Some("8:b"), "{list}");
            assert_eq!(entry_for(list, 9), None);
        }
        assert_eq!(entry_for("", 7), None);
    }

    #[test]
    fn a_time_to_live_has_bounds() {
        assert_eq!(check_ttl(Some(1)), Ok(1));
        assert_eq!(check_ttl(Some(LONGEST_TTL)), Ok(LONGEST_TTL));
        for ttl in [None, Some(0), Some(-1), Some(LONGEST_TTL + 1)] {
            assert_eq!(check_ttl(ttl).unwrap_err().code(), "SE001");
        }
    }

    fn code(held: Held, lease: Option<&str>, now: i64) -> Result<(), &'static str> {
        held.admits(lease, now).map_err(|error| error.code())
    }

    #[test]
    fn only_the_live_lease_passes() {
        let digest = Sha256::digest(b"nonce");
        let held = Held { sid: 7, digest: Some(digest.as_slice()), holder: Some("worker"), expires_at: Some(100) };
        assert_eq!(code(held, Some("7:nonce"), 99), Ok(()));
        assert_eq!(code(held, Some("7:nonce"), 100), Err("SE008"));
        assert_eq!(code(held, Some("8:nonce"), 99), Err("SE008"));
        assert_eq!(code(held, Some("7:other"), 99), Err("SE008"));
        assert_eq!(code(held, Some("nonsense"), 99), Err("SE008"));
        assert_eq!(code(held, None, 99), Err("SE009"));
        assert_eq!(code(held, None, 100), Ok(()));
    }

    #[test]
    fn without_a_lease_anyone_may_write_but_none_is_live() {
        let free = Held { sid: 7, digest: None, holder: None, expires_at: None };
        assert_eq!(code(free, None, 0), Ok(()));
        assert_eq!(code(free, Some("7:nonce"), 0), Err("SE008"));
    }
}
