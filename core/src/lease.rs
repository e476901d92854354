//! Whether a write may pass: the lease that it brings against the one that the session holds.
//!
//! To clients a lease is an opaque text. Inside it is `sid:nonce`; the session keeps only the SHA-256 of the nonce,
//! since everyone who may read the session would see the nonce itself.

use sha2::{Digest as _, Sha256};

use crate::error::Error;

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
    fn is_live(&self, now: i64) -> bool {
        self.digest.is_some() && self.expires_at.is_some_and(|expires_at| expires_at > now)
    }

    fn is_proven_by(&self, lease: &str) -> bool {
        lease.split_once(':').is_some_and(|(sid, nonce)| {
            sid.parse() == Ok(self.sid) && self.digest == Some(Sha256::digest(nonce.as_bytes()).as_slice())
        })
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
