//! Walking a log from its first entry to its last, and telling where it first stops being what was written.

use std::collections::BTreeMap;

use crate::digest::{self, Digest, Link, hex};
use crate::word::Op;

/// Where a log begins.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    pub tenant: &'a str,
    pub agent_id: &'a str,
    /// The first position that must be present.
    pub position: i64,
    /// What the first link stands on: the genesis, or the digest before the base of a trimmed log.
    pub previous: Digest,
    /// Whether the log before `position` was removed, so that a trim entry has to say so.
    pub trimmed: bool,
}

/// An entry as it is stored.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub tenant: &'a str,
    pub agent_id: &'a str,
    pub link: Link<'a>,
    pub salt: Option<[u8; 16]>,
    pub payload: Option<&'a str>,
    /// The text of the stored jsonb.
    pub attrs: Option<&'a str>,
    pub content_digest: &'a [u8],
    pub digest: &'a [u8],
}

/// What a walk has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub entries: i64,
    pub redacted: i64,
    /// The first position that is not as it was written, and why.
    pub fault: Option<(i64, &'static str)>,
}

/// A walk along a log. Memory does not grow with its length, only with the redacted entries whose erasure is still to come.
pub struct Walk<'a> {
    start: Start<'a>,
    next_position: i64,
    previous: Digest,
    entries: i64,
    redacted: i64,
    /// Redacted entries that no erase entry has covered yet, each with the item that it is about.
    unexplained: BTreeMap<i64, i64>,
    trim_found: bool,
    fault: Option<(i64, &'static str)>,
}

impl<'a> Walk<'a> {
    pub fn from(start: Start<'a>) -> Walk<'a> {
        Walk {
            start,
            next_position: start.position,
            previous: start.previous,
            entries: 0,
            redacted: 0,
            unexplained: BTreeMap::new(),
            trim_found: false,
            fault: None,
        }
    }

    /// Takes the next entry in the order of positions.
    pub fn step(&mut self, entry: &Entry) {
        self.entries += 1;
        self.note_redaction(entry);
        if self.fault.is_none() {
            self.fault = self.check(entry).map(|reason| (self.next_position, reason));
        }
        self.next_position = entry.link.position + 1;
        if let Ok(digest) = entry.digest.try_into() {
            self.previous = digest;
        }
    }

    pub fn finish(mut self) -> Verdict {
        if self.fault.is_none() && self.start.trimmed && !self.trim_found {
            self.fault = Some((self.start.position, "the log begins later, and no trim entry says so"));
        }
        if let Some(&position) = self.unexplained.keys().next()
            && self.fault.is_none_or(|(fault, _)| position < fault)
        {
            self.fault = Some((position, "the content is gone, and no erase entry says so"));
        }
        Verdict { entries: self.entries, redacted: self.redacted, fault: self.fault }
    }

    fn note_redaction(&mut self, entry: &Entry) {
        let Link { position, op, target, .. } = entry.link;
        if entry.salt.is_none() {
            self.redacted += 1;
            let about = if op == Op::Revise.as_str() { target.unwrap_or(position) } else { position };
            self.unexplained.insert(position, about);
        } else if op == Op::Erase.as_str() {
            self.unexplained.retain(|position, about| target != Some(*position) && target != Some(*about));
        } else if op == Op::Trim.as_str() && target == Some(self.start.position) {
            self.trim_found |= entry.payload.is_some_and(|payload| self.names_the_base(payload));
        }
    }

    fn names_the_base(&self, payload: &str) -> bool {
        serde_json::from_str::<serde_json::Value>(payload)
            .is_ok_and(|payload| payload["base_digest"] == hex(&self.start.previous))
    }

    fn check(&self, entry: &Entry) -> Option<&'static str> {
        let link = &entry.link;
        if link.position != self.next_position {
            return Some("the entry is missing");
        }
        if entry.tenant != self.start.tenant || entry.agent_id != self.start.agent_id {
            return Some("the entry is another session's");
        }
        let Ok(op) = Op::parse(link.op) else { return Some("the entry's op is unknown") };
        if link.target.is_some_and(|target| target < 0 || target > op.last_target(link.position)) {
            return Some("the target does not lie before the entry");
        }
        let Ok(content_digest) = Digest::try_from(entry.content_digest) else {
            return Some("the content digest has another length");
        };
        if entry.salt.is_some_and(|salt| digest::content(&salt, entry.payload, entry.attrs) != content_digest) {
            return Some("the content is not what was written");
        }
        if entry.salt.is_none() && (entry.payload.is_some() || entry.attrs.is_some()) {
            return Some("the content has no salt");
        }
        if link.digest(&self.previous, &content_digest) != entry.digest {
            return Some("the link does not follow from the entry and the one before");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stored entry that tests may tamper with.
    #[derive(Clone)]
    struct Row {
        position: i64,
        op: &'static str,
        target: Option<i64>,
        salt: Option<[u8; 16]>,
        payload: Option<String>,
        content: Digest,
        digest: Digest,
        agent_id: &'static str,
    }

    const GENESIS: Digest = [7; 32];

    fn start() -> Start<'static> {
        Start { tenant: "", agent_id: "a", position: 0, previous: GENESIS, trimmed: false }
    }

    fn link(row: &Row) -> Link<'_> {
        Link {
            position: row.position,
            op: row.op,
            kind: Some("message"),
            item_id: None,
            tag: None,
            author: None,
            target: row.target,
            created_at: 5,
        }
    }

    fn write(log: &mut Vec<Row>, op: &'static str, target: Option<i64>, payload: &str) {
        let previous = log.last().map_or(GENESIS, |row| row.digest);
        let position = log.last().map_or(0, |row| row.position + 1);
        let salt = [position as u8; 16];
        let content = digest::content(&salt, Some(payload), None);
        let mut row = Row {
            position,
            op,
            target,
            salt: Some(salt),
            payload: Some(payload.into()),
            content,
            digest: [0; 32],
            agent_id: "a",
        };
        row.digest = link(&row).digest(&previous, &content);
        log.push(row);
    }

    fn log() -> Vec<Row> {
        let mut log = Vec::new();
        write(&mut log, "append", None, "0");
        write(&mut log, "append", None, "1");
        write(&mut log, "revise", Some(1), "2");
        write(&mut log, "append", None, "3");
        log
    }

    fn walk(start: Start, log: &[Row]) -> Verdict {
        let mut walk = Walk::from(start);
        for row in log {
            walk.step(&Entry {
                tenant: "",
                agent_id: row.agent_id,
                link: link(row),
                salt: row.salt,
                payload: row.payload.as_deref(),
                attrs: None,
                content_digest: &row.content,
                digest: &row.digest,
            });
        }
        walk.finish()
    }

    fn fault(log: &[Row]) -> Option<i64> {
        walk(start(), log).fault.map(|(position, _)| position)
    }

    #[test]
    fn what_was_written_verifies() {
        assert_eq!(walk(start(), &log()), Verdict { entries: 4, redacted: 0, fault: None });
        assert_eq!(walk(start(), &[]), Verdict { entries: 0, redacted: 0, fault: None });
    }

    #[test]
    fn a_changed_content_is_found_at_its_position() {
        for at in 0..4 {
            let mut changed = log();
            changed[at].payload = Some("x".into());
            assert_eq!(fault(&changed), Some(at as i64));
        }
    }

    #[test]
    fn a_removed_first_or_middle_entry_is_found() {
        for at in 0..3 {
            let mut cut = log();
            cut.remove(at);
            assert_eq!(fault(&cut), Some(at as i64));
        }
    }

    #[test]
    fn swapped_and_duplicated_entries_are_found() {
        let mut swapped = log();
        let first = swapped[0].clone();
        swapped[0] = Row { position: 0, ..swapped[1].clone() };
        swapped[1] = Row { position: 1, ..first };
        assert_eq!(fault(&swapped), Some(0));
        let mut doubled = log();
        doubled.push(Row { position: 4, ..doubled[3].clone() });
        assert_eq!(fault(&doubled), Some(4));
        let mut doubled = log();
        doubled.insert(1, doubled[0].clone());
        assert_eq!(fault(&doubled), Some(1));
    }

    #[test]
    fn a_log_of_another_session_is_found() {
        let other = Start { previous: [8; 32], ..start() };
        assert_eq!(walk(other, &log()).fault.map(|fault| fault.0), Some(0));
        let mut foreign = log();
        foreign[2].agent_id = "b";
        assert_eq!(fault(&foreign), Some(2));
    }

    fn redact(row: &mut Row) {
        row.salt = None;
        row.payload = None;
    }

    #[test]
    fn a_redaction_needs_its_erase_entry() {
        let mut erased = log();
        redact(&mut erased[1]);
        redact(&mut erased[2]);
        assert_eq!(fault(&erased), Some(1));
        write(&mut erased, "erase", Some(1), "{}");
        assert_eq!(walk(start(), &erased), Verdict { entries: 5, redacted: 2, fault: None });
        redact(&mut erased[3]);
        assert_eq!(fault(&erased), Some(3));
        let mut revision_only = log();
        redact(&mut revision_only[2]);
        write(&mut revision_only, "erase", Some(2), "{}");
        assert_eq!(fault(&revision_only), None);
    }

    #[test]
    fn a_base_needs_its_trim_entry() {
        let mut trimmed = log();
        let base = Start { position: 2, previous: trimmed[1].digest, trimmed: true, ..start() };
        let removed = trimmed[1].digest;
        write(&mut trimmed, "trim", Some(2), &format!("{{\"base_digest\":\"{}\"}}", hex(&removed)));
        trimmed.drain(..2);
        assert_eq!(walk(base, &trimmed).fault, None);
        let mut wrong = trimmed.clone();
        wrong.pop();
        assert_eq!(walk(base, &wrong).fault.map(|fault| fault.0), Some(2));
        write(&mut wrong, "trim", Some(2), "{\"base_digest\":\"00\"}");
        assert_eq!(walk(base, &wrong).fault.map(|fault| fault.0), Some(2));
    }

    #[test]
    fn a_target_lies_before() {
        let mut ahead = log();
        write(&mut ahead, "retract", Some(9), "{}");
        assert_eq!(fault(&ahead), Some(4));
    }
}
