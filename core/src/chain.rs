//! Walking a log from its first entry to its last, and telling where it first stops being what was written.

use std::collections::BTreeSet;

use crate::digest::{self, Digest, Link, hex};
use crate::word::Op;

/// Where the entries of one session begin: its whole log, or what it adds to the one that it branched from.
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
    /// The digest that the inherited log ended with when the session branched off.
    pub forked_from: Option<Digest>,
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

type Fault = (i64, &'static str);

const MISSING: &str = "the entry is missing";

/// A walk along a log, session by session from its oldest ancestor on. Memory does not grow with its length, only with the
/// redacted entries whose erasure is still to come.
#[derive(Default)]
pub struct Walk {
    entered: bool,
    next_position: i64,
    previous: Digest,
    entries: i64,
    redacted: i64,
    /// Redacted entries of the session that no erase entry has named yet.
    unexplained: BTreeSet<i64>,
    /// The base of the session's log and the digest before it, until a trim entry has named them.
    unexplained_base: Option<(i64, Digest)>,
    fault: Option<Fault>,
}

impl Walk {
    /// Goes on with the entries of the next session, or of the first.
    pub fn enter(&mut self, start: &Start) {
        self.leave();
        if self.next_position != start.position && (self.entered || !start.trimmed) {
            self.note((self.next_position, MISSING));
        } else if self.entered && start.forked_from != Some(self.previous) {
            self.note((start.position, "the branch does not follow from the log that it inherits"));
        }
        self.entered = true;
        self.next_position = start.position;
        self.previous = start.previous;
        self.unexplained_base = start.trimmed.then_some((start.position, start.previous));
    }

    /// Goes on in the same session with entries that link to something else than those before: a flattened branch's own, behind
    /// the copies of what it inherited.
    pub fn rejoin(&mut self, previous: Digest) {
        self.previous = previous;
    }

    /// Takes the next entry in the order of positions.
    pub fn step(&mut self, start: &Start, entry: &Entry) {
        self.entries += 1;
        if entry.salt.is_none() {
            self.redacted += 1;
            self.unexplained.insert(entry.link.position);
        }
        self.note_explanation(entry);
        if self.fault.is_none() {
            self.fault = self.check(start, entry).map(|reason| (self.next_position, reason));
        }
        self.next_position = entry.link.position + 1;
        if let Ok(digest) = entry.digest.try_into() {
            self.previous = digest;
        }
    }

    /// Takes an entry of the session that says what became of others, and stands behind the fork: it is not linked to, but has
    /// to be what it says that it is.
    pub fn explain(&mut self, entry: &Entry) {
        let content = entry.salt.map(|salt| digest::content(&salt, entry.payload, entry.attrs));
        if content.as_ref().map(Digest::as_slice) == Some(entry.content_digest) {
            self.note_explanation(entry);
        }
    }

    fn note_explanation(&mut self, entry: &Entry) {
        let Link { op, target, .. } = entry.link;
        if op == Op::Erase.as_str() {
            self.unexplained.retain(|position| !names_erased(target, entry.payload, *position));
        } else if op == Op::Trim.as_str()
            && let Some((position, digest)) = self.unexplained_base
            && target == Some(position)
            && entry.payload.and_then(base_digest).is_some_and(|named| named == hex(&digest))
        {
            self.unexplained_base = None;
        }
    }

    pub fn finish(mut self) -> Verdict {
        self.leave();
        Verdict { entries: self.entries, redacted: self.redacted, fault: self.fault }
    }

    fn leave(&mut self) {
        if let Some((position, _)) = self.unexplained_base.take() {
            self.note((position, "the log begins later, and no trim entry says so"));
        }
        if let Some(&position) = std::mem::take(&mut self.unexplained).first() {
            self.note((position, "the content is gone, and no erase entry says so"));
        }
    }

    /// Keeps the fault that comes first in the log.
    fn note(&mut self, fault: Fault) {
        if self.fault.is_none_or(|(first, _)| fault.0 < first) {
            self.fault = Some(fault);
        }
    }

    fn check(&self, start: &Start, entry: &Entry) -> Option<&'static str> {
        let link = &entry.link;
        if link.position != self.next_position {
            return Some(MISSING);
        }
        if entry.tenant != start.tenant || entry.agent_id != start.agent_id {
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

/// The payload of an erase entry: the reason, and which revisions of the item at its target have lost their content too.
pub fn erase_payload(reason: Option<&str>, revisions: &[i64]) -> String {
    serde_json::json!({ "reason": reason, "revisions": revisions }).to_string()
}

/// Whether an erase entry names the content at `position`: as its target, or among the revisions in its payload.
pub fn names_erased(target: Option<i64>, payload: Option<&str>, position: i64) -> bool {
    let among_revisions = |payload| {
        let payload = serde_json::from_str::<serde_json::Value>(payload).ok()?;
        Some(payload["revisions"].as_array()?.iter().any(|revision| revision.as_i64() == Some(position)))
    };
    target == Some(position) || payload.and_then(among_revisions).unwrap_or(false)
}

/// The payload of a trim entry: the digest before the new base, in hex.
pub fn trim_payload(base_digest: &Digest) -> String {
    serde_json::json!({ "base_digest": hex(base_digest) }).to_string()
}

/// The digest that a trim entry's payload names.
pub fn base_digest(payload: &str) -> Option<String> {
    serde_json::from_str::<serde_json::Value>(payload).ok()?["base_digest"].as_str().map(str::to_owned)
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
        Start { tenant: "", agent_id: "a", position: 0, previous: GENESIS, trimmed: false, forked_from: None }
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

    fn entry(row: &Row) -> Entry<'_> {
        Entry {
            tenant: "",
            agent_id: row.agent_id,
            link: link(row),
            salt: row.salt,
            payload: row.payload.as_deref(),
            attrs: None,
            content_digest: &row.content,
            digest: &row.digest,
        }
    }

    fn walk(start: Start, log: &[Row]) -> Verdict {
        lineage(&[(start, log, &[])])
    }

    /// Walks the sessions of a lineage: of each its start, the entries that are inherited, and those behind the fork.
    fn lineage(sessions: &[(Start, &[Row], &[Row])]) -> Verdict {
        let mut walk = Walk::default();
        for (start, log, behind) in sessions {
            walk.enter(start);
            log.iter().for_each(|row| walk.step(start, &entry(row)));
            behind.iter().for_each(|row| walk.explain(&entry(row)));
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
        let named = erased.clone();
        write(&mut erased, "erase", Some(1), &erase_payload(None, &[2]));
        assert_eq!(walk(start(), &erased), Verdict { entries: 5, redacted: 2, fault: None });
        let mut alone = named;
        write(&mut alone, "erase", Some(1), &erase_payload(None, &[]));
        assert_eq!(fault(&alone), Some(2));
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
        write(&mut trimmed, "trim", Some(2), &trim_payload(&removed));
        trimmed.drain(..2);
        assert_eq!(walk(base, &trimmed).fault, None);
        let mut wrong = trimmed.clone();
        wrong.pop();
        assert_eq!(walk(base, &wrong).fault.map(|fault| fault.0), Some(2));
        write(&mut wrong, "trim", Some(2), "{\"base_digest\":\"00\"}");
        assert_eq!(walk(base, &wrong).fault.map(|fault| fault.0), Some(2));
    }

    /// The log, of which a branch inherits two entries, and what the branch adds.
    fn branched() -> (Vec<Row>, Start<'static>, Vec<Row>) {
        let parent = log();
        let start =
            Start { agent_id: "b", position: 2, previous: [9; 32], forked_from: Some(parent[1].digest), ..start() };
        let mut own = vec![Row { digest: [9; 32], ..parent[1].clone() }];
        write(&mut own, "append", None, "b");
        write(&mut own, "revise", Some(0), "b");
        own.remove(0);
        own.iter_mut().for_each(|row| row.agent_id = "b");
        (parent, start, own)
    }

    #[test]
    fn a_branch_verifies_through_what_it_inherits() {
        let (parent, fork, own) = branched();
        let (inherited, behind) = parent.split_at(2);
        let whole = lineage(&[(start(), inherited, behind), (fork, &own, &[])]);
        assert_eq!(whole, Verdict { entries: 4, redacted: 0, fault: None });
        let cut = lineage(&[(start(), &inherited[..1], &[]), (fork, &own, &[])]);
        assert_eq!(cut.fault.map(|fault| fault.0), Some(1));
        for lost in [lineage(&[(start(), &[], &[]), (fork, &own, &[])]), lineage(&[(fork, &own, &[])])] {
            assert_eq!(lost.fault.map(|fault| fault.0), Some(0));
        }
        let mut other = Vec::new();
        write(&mut other, "append", None, "0");
        write(&mut other, "append", None, "x");
        let rewritten = lineage(&[(start(), &other, &[]), (fork, &own, &[])]);
        assert_eq!(rewritten.fault.map(|fault| fault.0), Some(2));
        let mut tampered = own.clone();
        tampered[1].payload = Some("x".into());
        assert_eq!(lineage(&[(start(), inherited, &[]), (fork, &tampered, &[])]).fault.map(|fault| fault.0), Some(3));
    }

    #[test]
    fn an_inherited_redaction_is_explained_by_its_own_session_alone() {
        let (mut parent, fork, mut own) = branched();
        redact(&mut parent[1]);
        write(&mut own, "erase", Some(1), "{}");
        let own_alone = lineage(&[(start(), &parent[..2], &parent[2..]), (fork, &own[..2], &[])]);
        assert_eq!(own_alone.fault.map(|fault| fault.0), Some(1));
        let by_the_branch = lineage(&[(start(), &parent[..2], &parent[2..]), (fork, &own, &[])]);
        assert_eq!(by_the_branch.fault.map(|fault| fault.0), Some(1));
        write(&mut parent, "erase", Some(1), "{}");
        let explained = lineage(&[(start(), &parent[..2], &parent[2..]), (fork, &own[..2], &[])]);
        assert_eq!(explained, Verdict { entries: 4, redacted: 1, fault: None });
    }

    #[test]
    fn a_flattened_branch_verifies_by_itself() {
        let (_, fork, own) = branched();
        let copies = &log()[..2];
        let flattened = |rejoin: Digest| {
            let mut walk = Walk::default();
            let start = Start { agent_id: "b", ..start() };
            walk.enter(&start);
            copies.iter().for_each(|row| walk.step(&start, &Entry { agent_id: "b", ..entry(row) }));
            walk.rejoin(rejoin);
            own.iter().for_each(|row| walk.step(&start, &entry(row)));
            walk.finish()
        };
        assert_eq!(flattened(fork.previous), Verdict { entries: 4, redacted: 0, fault: None });
        assert_eq!(flattened([0; 32]).fault.map(|fault| fault.0), Some(2));
    }

    #[test]
    fn a_trim_names_the_base_digest() {
        assert_eq!(base_digest(&trim_payload(&GENESIS)), Some(hex(&GENESIS)));
        assert_eq!(base_digest("{}"), None);
        assert_eq!(base_digest("no json"), None);
    }

    #[test]
    fn a_target_lies_before() {
        let mut ahead = log();
        write(&mut ahead, "retract", Some(9), "{}");
        assert_eq!(fault(&ahead), Some(4));
    }
}
