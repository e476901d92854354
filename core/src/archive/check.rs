//! Whether lines are a session as it was exported: read one by one, in memory that does not grow with what they hold.

use std::collections::{BTreeSet, HashSet};
use std::ops::RangeInclusive;

use super::line::{Ancestor, Chunk, End, Entry, Hex, Line, Session, Sum, Text, Time};
use crate::chain::{self, Start, Walk};
use crate::digest::{Digest, Genesis, Link};
use crate::error::Error;
use crate::name;
use crate::word::Op;

/// Half of the range, so that what is counted can be counted on.
const COUNTS: RangeInclusive<i64> = 0..=i64::MAX / 2;

/// What the lines bring, once they are known to be whole.
#[derive(Debug)]
pub struct Checked {
    pub session: Session<'static>,
    /// Where the log begins if that is not at 0, and the digest before.
    pub base: Option<(i64, Digest)>,
    /// The first position that the session did not inherit from an ancestor among the lines.
    pub own_from: i64,
    pub next_position: i64,
    /// Of the last entry; `None` if there is none, or the lines bring no digests.
    pub digest: Option<Digest>,
    /// What the log itself does not tell of what is missing in it.
    pub explanations: Vec<Entry<'static>>,
}

impl Checked {
    /// Whether the lines were not exported, so that they are chained where they arrive.
    pub fn is_plain(&self) -> bool {
        self.session.format.is_none()
    }
}

/// Entries that one session contributes to the log.
struct Stretch {
    agent_id: String,
    base: Option<(i64, Digest)>,
    fork: Option<(i64, Digest)>,
    /// The genesis without a fork, and with it.
    unforked: Digest,
    forked: Digest,
    /// Whether entries come before it that it inherits.
    inherits: bool,
}

impl Stretch {
    fn of(identity: Genesis, fork: Option<(i64, Digest)>, base: Option<(i64, Digest)>, inherits: bool) -> Stretch {
        let forked = fork.map_or(identity, |(position, digest)| Genesis {
            fork_position: Some(position),
            forked_from: digest,
            ..identity
        });
        Stretch {
            agent_id: identity.agent_id.to_owned(),
            base,
            fork,
            unforked: identity.digest(),
            forked: forked.digest(),
            inherits,
        }
    }

    /// What inherits begins at its fork; the first of all has everything before that in its own log, as a flattened branch has.
    fn start<'a>(&'a self, tenant: &'a str) -> Start<'a> {
        let (position, previous) = match (self.inherits, self.fork, self.base) {
            (true, Some((fork, _)), _) => (fork, self.forked),
            (_, _, Some(base)) => base,
            _ => (0, self.unforked),
        };
        Start {
            tenant,
            agent_id: &self.agent_id,
            position,
            previous,
            trimmed: !self.inherits && self.base.is_some(),
            forked_from: self.fork.map(|(_, digest)| digest),
        }
    }

    /// What the entry at `position` links to, if that is not the entry before.
    fn joint(&self, position: i64) -> Option<Digest> {
        self.fork.filter(|(fork, _)| *fork == position).map(|_| self.forked)
    }
}

#[derive(Default)]
pub struct Check {
    session: Option<Session<'static>>,
    walk: Walk,
    stretch: Option<Stretch>,
    base: Option<(i64, Digest)>,
    is_own: bool,
    next_position: i64,
    digest: Option<Digest>,
    explanations: Vec<Entry<'static>>,
    item_ids: HashSet<String>,
    /// Open items that nothing has closed, and the last chunk.
    open: BTreeSet<i64>,
    chunk: Option<(i64, i32)>,
    lines: Sum,
    /// What the last line says that the lines come to.
    end: Option<End>,
}

impl Check {
    /// Takes the next line. SE001 for one that does not belong there or that no database would have written, SE010 for an
    /// item_id that comes twice.
    pub fn take(&mut self, line: Line<'static>) -> Result<(), Error> {
        if self.end.is_some() {
            return Err(wrong("comes behind the end line"));
        }
        if !matches!(line, Line::End(_)) {
            self.lines.add(&line.text());
        }
        match line {
            Line::Session(session) => self.session(*session),
            _ if self.session.is_none() => Err(wrong("must begin with the session's line")),
            Line::Ancestor(ancestor) => self.ancestor(&ancestor),
            Line::Entry(entry) => self.entry(&entry),
            Line::Explanation(entry) => self.explanation(entry),
            Line::Chunk(chunk) => self.chunk(&chunk),
            Line::End(end) => {
                self.end = Some(end);
                if self.is_plain() { Err(wrong("has an end, but no format")) } else { Ok(()) }
            }
        }
    }

    /// SE001 if the end is missing; SE017, naming the position, if the lines are not what was written.
    pub fn finish(mut self) -> Result<Checked, Error> {
        if self.session.is_none() {
            return Err(wrong("must begin with the session's line"));
        }
        if !self.is_plain() {
            let end = self.end.take().ok_or_else(|| wrong("must end with the end line"))?;
            self.enter_own()?;
            if let Some((position, _)) = self.walk.finish().fault {
                return Err(mismatch(position));
            }
            if self.lines.end() != end {
                return Err(mismatch(self.next_position));
            }
        }
        let session = self.session.unwrap_or_default();
        Ok(Checked {
            own_from: if self.stretch.is_some_and(|stretch| stretch.inherits) {
                session.fork_position.unwrap_or(0)
            } else {
                0
            },
            session,
            base: self.base,
            next_position: self.next_position,
            digest: self.digest,
            explanations: self.explanations,
        })
    }

    fn is_plain(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.format.is_none())
    }

    fn session(&mut self, session: Session<'static>) -> Result<(), Error> {
        if self.session.is_some() {
            return Err(wrong("must hold one session"));
        }
        let is_plain = session.format.is_none();
        let engine_set = session.tenant.is_some()
            || session.revision.is_some()
            || session.lease_fence.is_some()
            || session.fork_position.is_some()
            || session.base_position.is_some();
        let is_identified = session.tenant.is_some()
            && session.agent_id.is_some()
            && session.session_id.is_some()
            && session.created_at.is_some()
            && session.revision.is_some();
        if is_plain && engine_set {
            return Err(wrong("bring what only an export brings, but no format"));
        }
        if !is_plain && !is_identified {
            return Err(wrong("must tell tenant, agent_id, session_id, created_at and revision"));
        }
        name::label("owner", session.owner.as_deref())?;
        name::label("origin", session.origin.as_deref())?;
        name::label("status", session.status.as_deref())?;
        name::title(session.title.as_deref())?;
        no_nul("title", session.title.as_ref())?;
        no_nul("metadata", session.metadata.as_ref())?;
        no_nul("state", session.state.as_ref())?;
        no_nul("cost", session.cost.as_ref())?;
        let counts = [
            ("revision", session.revision),
            ("input_tokens", session.input_tokens),
            ("output_tokens", session.output_tokens),
            ("lease_fence", session.lease_fence),
            ("fork_position", session.fork_position),
            ("base_position", session.base_position),
        ];
        for (argument, count) in counts {
            if count.is_some_and(|count| !COUNTS.contains(&count)) {
                return Err(Error::invalid(argument, "must not be negative, nor as large"));
            }
        }
        check_time("created_at", session.created_at)?;
        check_time("closed_at", session.closed_at)?;
        if session.expires_at != Some(Time::INFINITY) {
            check_time("expires_at", session.expires_at)?;
        }
        place("fork_digest", session.fork_position, session.fork_digest)?;
        self.base = base(session.base_position, session.base_digest)?;
        self.session = Some(session);
        Ok(())
    }

    fn ancestor(&mut self, ancestor: &Ancestor) -> Result<(), Error> {
        if self.is_plain() || self.is_own || self.base.is_some() && self.stretch.is_none() {
            return Err(wrong("has an ancestor where none can be"));
        }
        check_time("created_at", Some(ancestor.created_at))?;
        let fork = place("fork_digest", ancestor.fork_position, ancestor.fork_digest)?;
        let base = base(ancestor.base_position, ancestor.base_digest)?;
        let inherits = self.stretch.is_some();
        if inherits && (fork.is_none() || base.is_some()) {
            return Err(wrong("has an ancestor that inherits nothing behind another"));
        }
        let tenant = self.tenant();
        let identity = Genesis {
            tenant: &tenant,
            agent_id: &ancestor.agent_id,
            session_id: &ancestor.session_id,
            created_at: ancestor.created_at.0,
            fork_position: None,
            forked_from: [0; 32],
        };
        let stretch = Stretch::of(identity, fork, base, inherits);
        self.enter(stretch, &tenant);
        Ok(())
    }

    /// Enters the session's own entries, unless it is there already.
    fn enter_own(&mut self) -> Result<(), Error> {
        if self.is_own {
            return Ok(());
        }
        let session = self.session.clone().unwrap_or_default();
        let fork = place("fork_digest", session.fork_position, session.fork_digest)?;
        let inherits = self.stretch.is_some();
        if inherits && fork.is_none() {
            return Err(wrong("has an ancestor, but the session has no fork"));
        }
        let (tenant, agent_id) = (session.tenant.unwrap_or_default(), session.agent_id.unwrap_or_default());
        let identity = Genesis {
            tenant: &tenant,
            agent_id: &agent_id,
            session_id: session.session_id.as_deref().unwrap_or_default(),
            created_at: session.created_at.map_or(0, |at| at.0),
            fork_position: None,
            forked_from: [0; 32],
        };
        let stretch = Stretch::of(identity, fork, base(session.base_position, session.base_digest)?, inherits);
        self.is_own = true;
        self.enter(stretch, &tenant);
        Ok(())
    }

    fn enter(&mut self, stretch: Stretch, tenant: &str) {
        let start = stretch.start(tenant);
        self.walk.enter(&start);
        if self.stretch.is_none() {
            self.base = stretch.base;
            self.next_position = start.position;
        }
        self.stretch = Some(stretch);
    }

    fn tenant(&self) -> String {
        self.session.as_ref().and_then(|session| session.tenant.as_deref()).unwrap_or_default().to_owned()
    }

    fn entry(&mut self, entry: &Entry<'static>) -> Result<(), Error> {
        if self.chunk.is_some() {
            return Err(wrong("has an entry behind the chunks"));
        }
        let op = Op::parse(entry.op.as_deref().unwrap_or(Op::Append.as_str()))?;
        check_entry(entry, op)?;
        if self.is_plain() {
            self.plain_entry(entry, op)?;
        } else {
            self.chained_entry(entry)?;
        }
        if let Some(id) = &entry.item_id
            && !self.item_ids.insert(id.clone().into_owned())
        {
            return Err(Error::ItemIdReused { item_id: id.clone().into_owned(), position: self.next_position - 1 });
        }
        match (op, entry.target) {
            (Op::Open, _) => drop(self.open.insert(self.next_position - 1)),
            (Op::Revise | Op::Retract, Some(target)) => drop(self.open.remove(&target)),
            (Op::RetractFrom, Some(target)) => drop(self.open.split_off(&target)),
            _ => {}
        }
        Ok(())
    }

    fn plain_entry(&mut self, entry: &Entry, op: Op) -> Result<(), Error> {
        let engine_set = entry.position.is_some()
            || entry.salt.is_some()
            || entry.content_digest.is_some()
            || entry.digest.is_some();
        if engine_set || op != Op::Append || entry.payload.is_none() {
            return Err(wrong(
                "must be an item with a payload, without position, salt and digests, where there is no format",
            ));
        }
        if entry.target.is_some_and(|target| target > self.next_position) {
            return Err(Error::invalid("target", "must not lie behind the summary itself"));
        }
        self.next_position += 1;
        Ok(())
    }

    fn chained_entry(&mut self, entry: &Entry) -> Result<(), Error> {
        let fork = self.session.as_ref().and_then(|session| session.fork_position);
        if self.stretch.is_none() || entry.position == fork && fork.is_some() {
            self.enter_own()?;
        }
        let (link, content_digest, digest) = linked(entry)?;
        let tenant = self.tenant();
        let Some(stretch) = &self.stretch else { return Err(wrong("has an entry of no session")) };
        // What inherits is entered with its joint.
        if !stretch.inherits
            && let Some(joint) = stretch.joint(link.position)
        {
            self.walk.rejoin(joint);
        }
        self.walk
            .step(&stretch.start(&tenant), &stored(entry, &tenant, &stretch.agent_id, link, &content_digest, &digest));
        self.next_position = link.position.saturating_add(1);
        self.digest = Some(digest.0);
        Ok(())
    }

    fn explanation(&mut self, entry: Entry<'static>) -> Result<(), Error> {
        let op = Op::parse(entry.op.as_deref().unwrap_or_default())?;
        check_entry(&entry, op)?;
        let Some(stretch) = self.stretch.as_ref().filter(|_| !self.is_own) else {
            return Err(wrong("has an explanation that is no ancestor's"));
        };
        if !matches!(op, Op::Erase | Op::Trim) || entry.payload.is_none() {
            return Err(wrong("has an explanation that tells nothing"));
        }
        let (link, content_digest, digest) = linked(&entry)?;
        let tenant = self.tenant();
        self.walk.explain(&stored(&entry, &tenant, &stretch.agent_id, link, &content_digest, &digest));
        // An older trim has nothing to say any more.
        if op == Op::Erase || entry.target == self.base.map(|(position, _)| position) {
            self.explanations.push(entry);
        }
        Ok(())
    }

    fn chunk(&mut self, chunk: &Chunk) -> Result<(), Error> {
        no_nul("chunk", Some(&chunk.chunk))?;
        let next = match self.chunk {
            Some((target, chunk_no)) if target == chunk.target => chunk_no + 1,
            Some((target, _)) if target > chunk.target => return Err(wrong("has chunks out of order")),
            _ => 0,
        };
        if !self.open.contains(&chunk.target) {
            return Err(wrong("has a chunk of an item that is not open"));
        }
        if chunk.chunk_no != next {
            return Err(wrong("has chunks out of order"));
        }
        self.chunk = Some((chunk.target, chunk.chunk_no));
        Ok(())
    }
}

fn wrong(reason: &'static str) -> Error {
    Error::invalid("lines", reason)
}

fn mismatch(position: i64) -> Error {
    Error::DigestMismatch { column: "lines", position }
}

/// A position and the digest that goes with it, both or none.
fn place(
    argument: &'static str,
    position: Option<i64>,
    digest: Option<Hex<32>>,
) -> Result<Option<(i64, Digest)>, Error> {
    match (position, digest) {
        (Some(position), Some(digest)) if position >= 0 => Ok(Some((position, digest.0))),
        (None, None) => Ok(None),
        _ => Err(Error::invalid(argument, "must be given together with its position")),
    }
}

fn base(position: Option<i64>, digest: Option<Hex<32>>) -> Result<Option<(i64, Digest)>, Error> {
    match place("base_digest", position, digest)? {
        Some((0, _)) => Err(Error::invalid("base_position", "must be absent if nothing was trimmed")),
        base => Ok(base),
    }
}

fn no_nul(argument: &'static str, text: Option<&Text>) -> Result<(), Error> {
    match text {
        Some(text) if text.contains('\0') => Err(Error::invalid(argument, "must not contain the character NUL")),
        _ => Ok(()),
    }
}

fn check_time(argument: &'static str, time: Option<Time>) -> Result<(), Error> {
    match time {
        Some(time) if !time.is_finite() => Err(Error::invalid(argument, "must be a time that PostgreSQL can hold")),
        _ => Ok(()),
    }
}

/// SE001 for what no entry can be.
fn check_entry(entry: &Entry, op: Op) -> Result<(), Error> {
    let names = [("kind", &entry.kind), ("item_id", &entry.item_id), ("tag", &entry.tag), ("author", &entry.author)];
    for (argument, label) in names {
        name::label(argument, label.as_deref())?;
        if label.is_some() && !op.is_item() {
            return Err(Error::invalid(argument, "belongs to an item, not to an entry about another"));
        }
    }
    if !op.is_item() && entry.target.is_none() {
        return Err(Error::invalid("target", "must be given"));
    }
    let has_content = entry.payload.is_some() || entry.attrs.is_some();
    if has_content && !op.has_payload() {
        return Err(Error::invalid("payload", "must not be given with a retract"));
    }
    no_nul("payload", entry.payload.as_ref())?;
    no_nul("attrs", entry.attrs.as_ref())?;
    check_time("created_at", entry.created_at)?;
    match entry.target {
        Some(target) if target < 0 => Err(Error::invalid("target", "must not be negative")),
        _ => Ok(()),
    }
}

type Linked<'a> = (Link<'a>, Hex<32>, Hex<32>);

/// What an exported entry always brings. SE001 if it does not.
fn linked<'a>(entry: &'a Entry) -> Result<Linked<'a>, Error> {
    let missing = |argument| Error::invalid(argument, "must be given");
    let op = entry.op.as_deref().ok_or_else(|| missing("op"))?;
    let item = Op::parse(op)?;
    if item.is_item() && entry.kind.is_none() {
        return Err(missing("kind"));
    }
    if item.has_payload() && entry.salt.is_some() && entry.payload.is_none() {
        return Err(missing("payload"));
    }
    let link = Link {
        position: entry.position.filter(|position| COUNTS.contains(position)).ok_or_else(|| missing("position"))?,
        op,
        kind: entry.kind.as_deref(),
        item_id: entry.item_id.as_deref(),
        tag: entry.tag.as_deref(),
        author: entry.author.as_deref(),
        target: entry.target,
        created_at: entry.created_at.ok_or_else(|| missing("created_at"))?.0,
    };
    let content_digest = entry.content_digest.ok_or_else(|| missing("content_digest"))?;
    Ok((link, content_digest, entry.digest.ok_or_else(|| missing("digest"))?))
}

fn stored<'a>(
    entry: &'a Entry,
    tenant: &'a str,
    agent_id: &'a str,
    link: Link<'a>,
    content_digest: &'a Hex<32>,
    digest: &'a Hex<32>,
) -> chain::Entry<'a> {
    chain::Entry {
        tenant,
        agent_id,
        link,
        salt: entry.salt.map(|salt| salt.0),
        payload: entry.payload.as_deref(),
        attrs: entry.attrs.as_deref(),
        content_digest: &content_digest.0,
        digest: &digest.0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::Format;
    use super::*;
    use crate::chain::{erase_payload, trim_payload};
    use crate::digest;

    const TENANT: &str = "acme";

    /// Writes a log of one session as it would be stored.
    struct Log {
        previous: Digest,
        position: i64,
    }

    impl Log {
        fn entry(&mut self, op: Op, target: Option<i64>, payload: Option<&str>) -> Entry<'static> {
            let kind = op.is_item().then_some("message");
            let item_id = op.is_item().then(|| format!("i{}", self.position));
            let salt = [self.position as u8; 16];
            let attrs = op.is_item().then_some("{\"a\": 1}");
            let content = digest::content(&salt, payload, attrs);
            let link = Link {
                position: self.position,
                op: op.as_str(),
                kind,
                item_id: item_id.as_deref(),
                tag: None,
                author: None,
                target,
                created_at: self.position,
            };
            self.previous = link.digest(&self.previous, &content);
            self.position += 1;
            Entry {
                position: Some(self.position - 1),
                op: Some(op.as_str().into()),
                kind: kind.map(Text::from),
                item_id: item_id.map(Text::from),
                target,
                payload: payload.map(|payload| payload.to_owned().into()),
                attrs: attrs.map(Text::from),
                salt: Some(Hex(salt)),
                content_digest: Some(Hex(content)),
                digest: Some(Hex(self.previous)),
                created_at: Some(Time(self.position - 1)),
                ..Entry::default()
            }
        }
    }

    fn erased(entry: &Entry<'static>) -> Entry<'static> {
        Entry { payload: None, attrs: None, salt: None, ..entry.clone() }
    }

    fn identity(session_id: &str) -> Genesis<'_> {
        Genesis { tenant: TENANT, agent_id: "a", session_id, created_at: 7, fork_position: None, forked_from: [0; 32] }
    }

    fn session() -> Session<'static> {
        Session {
            format: Some(Format::Version1),
            tenant: Some(TENANT.into()),
            agent_id: Some("a".into()),
            session_id: Some("s".into()),
            created_at: Some(Time(7)),
            revision: Some(2),
            title: Some("t".into()),
            state: Some("{}".into()),
            cost: Some("0.5".into()),
            lease_fence: Some(3),
            ..Session::default()
        }
    }

    fn ended(mut lines: Vec<Line<'static>>) -> Vec<Line<'static>> {
        lines.retain(|line| !matches!(line, Line::End(_)));
        let mut sum = Sum::default();
        lines.iter().for_each(|line| sum.add(&line.text()));
        lines.push(Line::End(sum.end()));
        lines
    }

    /// A log of its own: an item that is revised, one that is erased, one that is open and has chunks.
    fn flat() -> Vec<Line<'static>> {
        let mut log = Log { previous: identity("s").digest(), position: 0 };
        let secret = log.entry(Op::Append, None, Some("\"secret\""));
        let mut lines = vec![Line::Session(Box::new(session())), Line::Entry(erased(&secret))];
        lines.extend(
            [
                log.entry(Op::Append, Some(0), Some("2")),
                log.entry(Op::Revise, Some(1), Some("{\"x\": \"\\u0000\"}")),
                log.entry(Op::Open, None, Some("null")),
                log.entry(Op::Erase, Some(0), Some(&erase_payload(None, &[]))),
                log.entry(Op::Open, None, Some("1")),
                log.entry(Op::RetractFrom, Some(5), None),
            ]
            .map(Line::Entry),
        );
        for chunk_no in 0..2 {
            lines.push(Line::Chunk(Chunk { target: 3, chunk_no, chunk: "text".into() }));
        }
        ended(lines)
    }

    /// A branch of a branch of a session that was trimmed, and in which an entry was erased behind the fork.
    fn branch() -> Vec<Line<'static>> {
        let of = |session_id: &'static str, fork: Option<(i64, Digest)>| Ancestor {
            agent_id: "a".into(),
            session_id: session_id.into(),
            created_at: Time(7),
            fork_position: fork.map(|fork| fork.0),
            fork_digest: fork.map(|fork| Hex(fork.1)),
            base_position: None,
            base_digest: None,
        };
        let genesis = |session_id, fork: (i64, Digest)| {
            Genesis { fork_position: Some(fork.0), forked_from: fork.1, ..identity(session_id) }.digest()
        };
        let mut oldest = Log { previous: identity("o").digest(), position: 0 };
        oldest.entry(Op::Append, None, Some("0"));
        let base = oldest.previous;
        let (one, two) = (oldest.entry(Op::Append, None, Some("1")), oldest.entry(Op::Append, None, Some("2")));
        let fork = (3, oldest.previous);
        let explanations = [
            oldest.entry(Op::Trim, Some(1), Some(&trim_payload(&base))),
            oldest.entry(Op::Erase, Some(2), Some(&erase_payload(Some("why"), &[]))),
        ];
        let mut middle = Log { previous: genesis("m", fork), position: 3 };
        let three = middle.entry(Op::Append, None, Some("3"));
        let own_fork = (4, middle.previous);
        let mut own = Log { previous: genesis("s", own_fork), position: 4 };
        let head = Session { fork_position: Some(4), fork_digest: Some(Hex(own_fork.1)), ..session() };
        let oldest = Ancestor { base_position: Some(1), base_digest: Some(Hex(base)), ..of("o", None) };
        let mut lines =
            vec![Line::Session(Box::new(head)), Line::Ancestor(oldest), Line::Entry(one), Line::Entry(erased(&two))];
        lines.extend(explanations.map(Line::Explanation));
        lines.push(Line::Ancestor(of("m", Some(fork))));
        lines.push(Line::Entry(three));
        lines.push(Line::Entry(own.entry(Op::Append, None, Some("4"))));
        ended(lines)
    }

    fn checked(lines: &[Line<'static>]) -> Result<Checked, Error> {
        let mut check = Check::default();
        for (index, line) in lines.iter().enumerate() {
            check.take(line.clone()).map_err(|error| error.in_element(index))?;
        }
        check.finish()
    }

    fn refused(lines: &[Line<'static>], what: &str) -> &'static str {
        let code = checked(lines).expect_err(what).code();
        assert!(["SE001", "SE010", "SE017"].contains(&code), "{what}: {code}");
        code
    }

    #[test]
    fn what_was_exported_is_taken() {
        let flat = checked(&flat()).unwrap();
        assert_eq!((flat.next_position, flat.base, flat.own_from, flat.explanations.len()), (7, None, 0, 0));
        let branch = checked(&branch()).unwrap();
        assert_eq!((branch.next_position, branch.base.map(|base| base.0), branch.own_from), (5, Some(1), 4));
        assert_eq!(branch.explanations.len(), 2);
    }

    /// A branch without entries of its own still has to follow from what it inherits.
    #[test]
    fn a_branch_that_adds_nothing_is_taken() {
        let mut lines = branch();
        lines.drain(lines.len() - 2..);
        assert_eq!(checked(&ended(lines.clone())).unwrap().next_position, 4);
        if let Line::Session(session) = &mut lines[0] {
            session.fork_digest = Some(Hex([9; 32]));
        }
        assert_eq!(refused(&ended(lines), "another fork"), "SE017");
    }

    /// Every value of a line's text, made into another one of its type, into null, or taken away.
    fn tampered(text: &str) -> Vec<String> {
        let line: serde_json::Value = serde_json::from_str(text).unwrap();
        let (kind, row) = line.as_object().unwrap().iter().next().unwrap();
        let mut all = Vec::new();
        for (key, value) in row.as_object().unwrap() {
            let others = match value {
                serde_json::Value::Number(number) => {
                    vec![serde_json::json!(number.as_i64().unwrap() + 1), serde_json::json!(null)]
                }
                serde_json::Value::String(text) => {
                    let turned = if text.starts_with('0') { "1" } else { "0" };
                    let flipped = text.get(1..).map(|rest| format!("{turned}{rest}"));
                    vec![serde_json::json!(flipped), serde_json::json!(format!("{text} ")), serde_json::json!(null)]
                }
                _ => vec![
                    serde_json::json!(1),
                    serde_json::json!("x"),
                    serde_json::json!("00".repeat(16)),
                    serde_json::json!("00".repeat(32)),
                ],
            };
            for other in others.into_iter().filter(|other| other != value) {
                let mut changed = row.clone();
                changed[key] = other;
                all.push(serde_json::json!({ kind: changed }).to_string());
            }
        }
        all
    }

    #[test]
    fn whatever_is_changed_is_found() {
        for lines in [flat(), branch()] {
            for at in 0..lines.len() {
                let mut without = lines.clone();
                without.remove(at);
                refused(&without, "a line is missing");
                let mut twice = lines.clone();
                twice.insert(at, lines[at].clone());
                refused(&twice, "a line comes twice");
                if at > 0 {
                    let mut swapped = lines.clone();
                    swapped.swap(at - 1, at);
                    refused(&swapped, "two lines are swapped");
                }
                for text in tampered(&lines[at].text()) {
                    let Ok(line) = Line::parse(&text) else { continue };
                    let mut changed = lines.clone();
                    changed[at] = line;
                    refused(&changed, &text);
                }
            }
        }
    }

    /// The chain holds by itself: an end that was made anew does not help.
    #[test]
    fn a_changed_entry_is_found_behind_a_new_end() {
        for lines in [flat(), branch()] {
            for at in 0..lines.len() {
                // Of a log that was trimmed, the chain begins behind its genesis.
                let is_chained = match &lines[at] {
                    Line::Entry(_) => true,
                    Line::Ancestor(ancestor) => ancestor.base_position.is_none(),
                    _ => false,
                };
                if !is_chained {
                    continue;
                }
                let mut without = lines.clone();
                without.remove(at);
                // What is cut off at the end is what only the old end, or an anchor, tells of.
                if matches!(lines[at + 1], Line::Entry(_)) {
                    refused(&ended(without), "a line is missing");
                }
                for text in tampered(&lines[at].text()) {
                    let Ok(line) = Line::parse(&text) else { continue };
                    let mut changed = lines.clone();
                    changed[at] = line;
                    refused(&ended(changed), &text);
                }
            }
        }
    }

    #[test]
    fn the_fault_is_named_by_its_position() {
        let mut lines = flat();
        let Line::Entry(entry) = &mut lines[3] else { panic!("an entry") };
        entry.payload = Some("3".into());
        assert_eq!(checked(&lines).unwrap_err(), Error::DigestMismatch { column: "lines", position: 2 });
        let mut lines = branch();
        let Line::Session(session) = &mut lines[0] else { panic!("a session") };
        session.title = None;
        assert_eq!(checked(&lines).unwrap_err(), Error::DigestMismatch { column: "lines", position: 5 });
        let mut lines = branch();
        lines.remove(5);
        assert_eq!(checked(&ended(lines)).unwrap_err(), Error::DigestMismatch { column: "lines", position: 2 });
        let mut lines = branch();
        lines.remove(4);
        assert_eq!(checked(&ended(lines)).unwrap_err(), Error::DigestMismatch { column: "lines", position: 1 });
    }

    #[test]
    fn what_cannot_be_counted_on_is_refused() {
        for position in [-1, i64::MAX / 2 + 1, i64::MAX] {
            let mut lines = flat();
            let Line::Entry(entry) = &mut lines[2] else { panic!("an entry") };
            entry.position = Some(position);
            assert_eq!(refused(&ended(lines), "a position"), "SE001", "{position}");
            let mut lines = flat();
            let Line::Session(session) = &mut lines[0] else { panic!("a session") };
            session.revision = Some(position);
            assert_eq!(refused(&ended(lines), "a revision"), "SE001", "{position}");
        }
    }

    fn plain(session: Session<'static>, entries: Vec<Entry<'static>>) -> Result<Checked, Error> {
        let lines: Vec<Line> =
            std::iter::once(Line::Session(Box::new(session))).chain(entries.into_iter().map(Line::Entry)).collect();
        checked(&lines)
    }

    #[test]
    fn lines_of_another_store_need_no_digests() {
        let item = || Entry { payload: Some("1".into()), ..Entry::default() };
        let taken =
            plain(Session::default(), vec![item(), Entry { kind: Some("k".into()), target: Some(1), ..item() }]);
        let taken = taken.unwrap();
        assert!(taken.is_plain());
        assert_eq!((taken.next_position, taken.digest), (2, None));
        for bad in [
            Entry::default(),
            Entry { op: Some("revise".into()), target: Some(0), ..item() },
            Entry { position: Some(0), ..item() },
            Entry { salt: Some(Hex([0; 16])), ..item() },
            Entry { digest: Some(Hex([0; 32])), ..item() },
            Entry { target: Some(1), ..item() },
            Entry { target: Some(-1), ..item() },
            Entry { payload: Some("\"\0\"".into()), ..item() },
            Entry { attrs: Some("\0".into()), ..item() },
            Entry { tag: Some("".into()), ..item() },
            Entry { created_at: Some(Time(i64::MAX)), ..item() },
        ] {
            assert_eq!(plain(Session::default(), vec![bad.clone()]).unwrap_err().code(), "SE001", "{bad:?}");
        }
        for bad in [
            Session { tenant: Some("".into()), ..Session::default() },
            Session { revision: Some(0), ..Session::default() },
            Session { lease_fence: Some(0), ..Session::default() },
            Session { base_position: Some(1), base_digest: Some(Hex([0; 32])), ..Session::default() },
            Session { input_tokens: Some(-1), ..Session::default() },
            Session { state: Some("\0".into()), ..Session::default() },
            Session { closed_at: Some(Time::INFINITY), ..Session::default() },
            Session { owner: Some("a\nb".into()), ..Session::default() },
        ] {
            assert_eq!(plain(bad.clone(), vec![]).unwrap_err().code(), "SE001", "{bad:?}");
        }
        assert!(plain(Session { expires_at: Some(Time::INFINITY), ..Session::default() }, vec![]).is_ok());
        let twice = Entry { item_id: Some("i".into()), ..item() };
        assert_eq!(plain(Session::default(), vec![twice.clone(), twice]).unwrap_err().code(), "SE010");
    }
}
