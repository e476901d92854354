//! What clients asked for and were told, against which the server is held after a crash.

use std::collections::{BTreeMap, BTreeSet};

use agent_sessions_tests::Connection;

use crate::items::Random;

use super::calls::{Answer, Asked, Call, Entry, Stored, name};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// Its creation was not answered.
    MaybeMade,
    Live,
    /// Its deletion was not answered.
    MaybeGone,
    Gone,
}

/// What clients were told of a session, and what they asked for without an answer.
struct Session {
    fate: Fate,
    /// The session that it branched off, and where.
    source: Option<(usize, i64)>,
    placed: BTreeMap<i64, Entry>,
    /// Acknowledged without a position, which is behind the one that is noted.
    unplaced: Vec<(i64, Entry)>,
    /// The entries of each call, which are there together or not at all.
    doubtful: Vec<Vec<Entry>>,
    /// What was asked for and is not in the log: trimmed since, and maybe copied before, or never written.
    unseen: Vec<Entry>,
    /// None: the revision of a call that was not answered.
    states: BTreeMap<i64, Option<String>>,
    doubtful_states: Vec<String>,
    chunks: BTreeMap<(i64, i32), String>,
    doubtful_chunks: BTreeMap<(i64, i32), Vec<String>>,
    fence: i64,
    has_doubtful_claim: bool,
    /// How many erasures are on their way through its log: their entries must not change hands meanwhile.
    erasing: usize,
    flattening: Flattening,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flattening {
    No,
    Asked,
    /// It was not answered.
    Maybe,
    /// What it wrote was not looked at yet.
    Fresh,
    Done,
}

impl Session {
    fn made_from(source: Option<(usize, i64)>, fate: Fate) -> Session {
        Session {
            fate,
            source,
            placed: BTreeMap::new(),
            unplaced: Vec::new(),
            doubtful: Vec::new(),
            unseen: Vec::new(),
            states: BTreeMap::new(),
            doubtful_states: Vec::new(),
            chunks: BTreeMap::new(),
            doubtful_chunks: BTreeMap::new(),
            fence: 0,
            has_doubtful_claim: false,
            erasing: 0,
            flattening: Flattening::No,
        }
    }

    fn fork(&self) -> i64 {
        self.source.map_or(0, |(_, fork)| fork)
    }

    /// Whether its own log has what it inherited.
    fn is_flattened(&self) -> bool {
        matches!(self.flattening, Flattening::Fresh | Flattening::Done)
    }

    /// Notes the entry that a position was told for. A call that is sent again is told the same.
    fn take(&mut self, position: i64, entry: &Entry) {
        let before = self.placed.insert(position, entry.clone());
        let is_same = before.as_ref().is_none_or(|before| before.op == entry.op && before.item_id == entry.item_id);
        assert!(is_same, "{position} was told for {before:?} and {entry:?}");
    }

    /// The last position that is known to be taken.
    fn last(&self) -> i64 {
        self.placed.keys().next_back().copied().unwrap_or(self.fork() - 1)
    }
}

/// All that was asked and told.
#[derive(Default)]
pub struct Ledger {
    sessions: Vec<Session>,
    names: usize,
    pub acknowledged: BTreeMap<&'static str, usize>,
    pub refused: BTreeMap<String, usize>,
    pub unexpected: Vec<String>,
    pub in_doubt: usize,
    pub found: usize,
}

/// How many sessions there are at least, and at most.
const FEWEST: usize = 6;
const MOST: usize = 10;

impl Ledger {
    pub fn live(&self) -> Vec<usize> {
        (0..self.sessions.len()).filter(|&at| self.sessions[at].fate == Fate::Live).collect()
    }

    /// The sessions from one to that which holds a position of its log.
    fn through(&self, session: usize, position: i64) -> Vec<usize> {
        let mut through = vec![session];
        let mut at = &self.sessions[session];
        while let Some((source, fork)) = at.source
            && position < fork
            && !at.is_flattened()
        {
            through.push(source);
            at = &self.sessions[source];
        }
        through
    }

    /// An item that stands in the log of a session, or was inherited by it.
    fn any_item(&self, random: &mut Random, session: usize, op: &str) -> Option<i64> {
        let last = self.sessions[session].last();
        let items: Vec<i64> =
            (0..=last).filter(|&at| self.known(session, at).is_some_and(|entry| entry.op == op)).collect();
        // The newest are the likeliest to be live.
        let from = if random.one_in(3) { 0 } else { items.len().saturating_sub(12) };
        (!items.is_empty()).then(|| random.pick(&items[from..]))
    }

    fn new_item(&mut self, random: &mut Random, op: &'static str) -> Entry {
        self.names += 1;
        let filler = "x".repeat([10, 10, 100, 3000][random.below(4)]);
        Entry {
            op,
            target: None,
            item_id: Some(format!("item {}", self.names)),
            payload: Some(format!(r#"{{"n": {}, "text":"{filler}"}}"#, self.names)),
        }
    }

    /// Chooses what a client asks for next.
    pub fn ask(&mut self, random: &mut Random, leases: &BTreeMap<usize, String>) -> Asked {
        let live = self.live();
        let made = self.sessions.iter().filter(|session| session.fate != Fate::Gone).count();
        if live.is_empty() || made < FEWEST {
            let first = self.new_item(random, "append");
            self.sessions.push(Session::made_from(None, Fate::MaybeMade));
            return Asked { session: self.sessions.len() - 1, lease: None, call: Call::Create(first), last: -1 };
        }
        let held: Vec<usize> = leases.keys().copied().filter(|held| live.contains(held)).collect();
        let session = if held.is_empty() || random.one_in(2) { random.pick(&live) } else { random.pick(&held) };
        let call = self.choose(random, session, leases.contains_key(&session), made);
        let mut written = session;
        match &call {
            Call::Erase { through, .. } => {
                through.iter().for_each(|&at| self.sessions[at].erasing += 1);
                written = *through.last().expect("a session");
            }
            Call::Flatten => self.sessions[session].flattening = Flattening::Asked,
            _ => {}
        }
        Asked { session, lease: leases.get(&session).cloned(), call, last: self.sessions[written].last() }
    }

    fn choose(&mut self, random: &mut Random, session: usize, is_held: bool, made: usize) -> Call {
        if is_held && random.one_in(4) {
            return if random.one_in(3) { Call::Extend } else { Call::Release };
        }
        let item = self.any_item(random, session, "append");
        let open = self.any_item(random, session, "open");
        let last = self.sessions[session].last();
        match (random.below(100), item, open) {
            (0..8, Some(target), _) => {
                Call::Revise(Entry { item_id: None, target: Some(target), ..self.new_item(random, "revise") })
            }
            (8..12, _, Some(target)) => {
                Call::Revise(Entry { item_id: None, target: Some(target), ..self.new_item(random, "revise") })
            }
            (12..17, Some(target), _) => Call::Retract(target),
            (17, _, _) => Call::RetractFrom((last - 3).max(0)),
            (18..21, _, _) => Call::Pop,
            (21..27, _, _) => {
                self.names += 1;
                Call::Set(format!("{{\"state\": {}}}", self.names))
            }
            (27..41, _, Some(target)) => {
                self.names += 1;
                let number = self.sessions[session].chunks.range((target, 0)..(target, i32::MAX)).count() as i32;
                Call::Delta { target, number, chunk: format!("chunk {}", self.names) }
            }
            (41..47, _, _) if made < MOST => {
                self.sessions.push(Session::made_from(Some((session, i64::MAX)), Fate::MaybeMade));
                Call::Branch { at_target: item.filter(|_| random.one_in(2)), branch: self.sessions.len() - 1 }
            }
            (47..51, _, _) => Call::Claim { last_fence: self.sessions[session].fence },
            (60..62, Some(target), _) if last > 20 => Call::Trim(target.min(last - 10)),
            (62..65, Some(target), _) if self.may_erase(session, target) => {
                Call::Erase { target, through: self.through(session, target) }
            }
            (65, _, _) if self.may_flatten(session) => Call::Flatten,
            (66, _, _) => Call::Delete,
            (67..71, _, _) => Call::Append(vec![self.new_item(random, "open")]),
            (71..80, _, _) => Call::Append((0..2 + random.below(4)).map(|_| self.new_item(random, "append")).collect()),
            _ => Call::Append(vec![self.new_item(random, "append")]),
        }
    }

    /// Which session would hold the erase entry has to be known: not below one that is flattened.
    fn may_erase(&self, session: usize, target: i64) -> bool {
        let is_whole = |at: &usize| self.sessions[*at].flattening == Flattening::No;
        let through = self.through(session, target);
        self.sessions[session].flattening != Flattening::Asked && through[1..].iter().all(is_whole)
    }

    fn may_flatten(&self, session: usize) -> bool {
        let Session { source, flattening, erasing, .. } = &self.sessions[session];
        source.is_some() && *flattening == Flattening::No && *erasing == 0
    }

    /// Writes down what became of a call. Returns the lease that it has granted.
    pub fn note(&mut self, asked: &Asked, answer: &Answer) -> Option<String> {
        match &asked.call {
            Call::Erase { through, .. } => through.iter().for_each(|&at| self.sessions[at].erasing -= 1),
            Call::Flatten => self.sessions[asked.session].flattening = Flattening::No,
            _ => {}
        }
        match answer {
            Answer::Rows(rows) => {
                *self.acknowledged.entry(asked.call.name()).or_default() += 1;
                self.acknowledge(asked, rows)
            }
            Answer::Refused(code) => {
                *self.refused.entry(code.clone()).or_default() += 1;
                if !asked.may_be_refused_with().contains(&code.as_str()) {
                    self.unexpected.push(format!("{code}: {asked:?}"));
                }
                if let Call::Create(_) = asked.call {
                    self.sessions[asked.session].fate = Fate::Gone;
                } else if let Call::Branch { branch, .. } = asked.call {
                    self.sessions[branch].fate = Fate::Gone;
                }
                None
            }
            Answer::None => {
                self.in_doubt += 1;
                self.doubt(asked);
                None
            }
        }
    }

    fn acknowledge(&mut self, asked: &Asked, rows: &[Vec<Option<String>>]) -> Option<String> {
        let number =
            |row: usize, column: usize| rows.get(row).and_then(|row| row[column].as_ref()?.parse::<i64>().ok());
        let told = || number(0, 0).unwrap_or_else(|| panic!("no answer to {asked:?}: {rows:?}"));
        let session = &mut self.sessions[asked.session];
        match &asked.call {
            Call::Create(entry) => {
                session.fate = Fate::Live;
                assert_eq!(told(), 0, "{asked:?}");
                session.take(0, entry);
            }
            Call::Append(entries) => {
                assert_eq!(rows.len(), entries.len(), "{asked:?}");
                for (row, entry) in entries.iter().enumerate() {
                    session.take(number(row, 0).expect("a position"), entry);
                }
            }
            Call::Revise(entry) => session.take(told(), entry),
            Call::Retract(target) if told() == 1 => {
                session.unplaced.push((asked.last, Entry::about("retract", *target)))
            }
            Call::RetractFrom(target) if told() > 0 => {
                session.unplaced.push((asked.last, Entry::about("retract_from", *target)));
            }
            Call::Pop if !rows.is_empty() => session.unplaced.push((asked.last, Entry::about("retract", told()))),
            Call::Set(state) => {
                let twice = session.states.insert(told(), Some(state.clone()));
                assert!(twice.is_none(), "a revision was told twice: {asked:?}, {twice:?}");
            }
            Call::Delta { target, number, chunk } => {
                assert_eq!(told(), i64::from(number + 1), "{asked:?}");
                let twice = session.chunks.insert((*target, *number), chunk.clone());
                assert!(twice.is_none(), "a chunk was taken twice: {asked:?}, {twice:?}");
            }
            Call::Branch { branch, .. } => {
                self.sessions[*branch].source = Some((asked.session, told()));
                self.sessions[*branch].fate = Fate::Live;
            }
            Call::Claim { last_fence } if !rows.is_empty() => {
                let fence = number(0, 1).expect("a fence");
                assert!(fence > *last_fence, "{asked:?}: fence {fence}");
                session.fence = session.fence.max(fence);
                return rows[0][0].clone();
            }
            Call::Trim(keep_from) if told() > 0 => {
                session.unplaced.push((asked.last, Entry::about("trim", *keep_from)))
            }
            Call::Erase { target, through } if told() > 0 => {
                let owner = *through.last().expect("a session");
                self.sessions[owner].unplaced.push((asked.last, Entry::about("erase", *target)));
            }
            Call::Flatten if told() > 0 => session.flattening = Flattening::Fresh,
            Call::Delete => session.fate = Fate::Gone,
            _ => {}
        }
        None
    }

    fn doubt(&mut self, asked: &Asked) {
        let session = &mut self.sessions[asked.session];
        match &asked.call {
            Call::Create(entry) | Call::Revise(entry) => session.doubtful.push(vec![entry.clone()]),
            Call::Append(entries) => session.doubtful.push(entries.clone()),
            Call::Retract(target) => session.doubtful.push(vec![Entry::about("retract", *target)]),
            Call::RetractFrom(target) => session.doubtful.push(vec![Entry::about("retract_from", *target)]),
            Call::Pop => session.doubtful.push(vec![Entry { target: None, ..Entry::about("retract", 0) }]),
            Call::Trim(keep_from) => session.doubtful.push(vec![Entry::about("trim", *keep_from)]),
            Call::Erase { target, through } => {
                let owner = *through.last().expect("a session");
                self.sessions[owner].doubtful.push(vec![Entry::about("erase", *target)]);
            }
            Call::Flatten => session.flattening = Flattening::Maybe,
            Call::Set(state) => session.doubtful_states.push(state.clone()),
            Call::Delta { target, number, chunk } => {
                session.doubtful_chunks.entry((*target, *number)).or_default().push(chunk.clone());
            }
            Call::Claim { .. } => session.has_doubtful_claim = true,
            Call::Delete if session.fate == Fate::Live => session.fate = Fate::MaybeGone,
            Call::Delete | Call::Branch { .. } | Call::Extend | Call::Release => {}
        }
    }
}

/// What the server has of a session's row.
struct Head {
    revision: i64,
    state: Option<String>,
    fork: Option<i64>,
    fence: i64,
    has_source: bool,
}

/// All else that it has of the session.
struct Contents {
    log: Vec<Stored>,
    chunks: BTreeMap<(i64, i32), String>,
    open: BTreeSet<i64>,
}

impl Head {
    async fn of(superuser: &Connection, session: usize) -> Option<Head> {
        let head = "select revision, state::text, fork_position, lease_fence, branched_from is not null
                    from agent_sessions.session
                    where session_id = $1::text and deleted_at is null";
        let row = superuser.query_opt(head, &[&name(session)]).await.expect("a head")?;
        Some(Head {
            revision: row.get(0),
            state: row.get(1),
            fork: row.get(2),
            fence: row.get(3),
            has_source: row.get(4),
        })
    }
}

impl Contents {
    async fn of(superuser: &Connection, session: usize) -> Contents {
        let name = name(session);
        let log = "select position, op, target, item_id, payload::text from agent_sessions.session_log($1::text)";
        let chunks = "select d.target, d.chunk_no, d.chunk from agent_sessions.session_delta d join agent_sessions.session s using (sid)
                      where s.session_id = $1::text and s.deleted_at is null";
        let open = "select position from agent_sessions.session_history($1::text) where open";
        let rows =
            async |sql: &str| superuser.query(sql, &[&name]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let stored = |row: &tokio_postgres::Row| Stored {
            position: row.get(0),
            op: row.get(1),
            target: row.get(2),
            item_id: row.get(3),
            payload: row.get(4),
        };
        Contents {
            log: rows(log).await.iter().map(stored).collect(),
            chunks: rows(chunks).await.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect(),
            open: rows(open).await.iter().map(|row| row.get(0)).collect(),
        }
    }
}

impl Ledger {
    /// How many entries it knows the places of.
    pub fn entries(&self) -> usize {
        self.sessions.iter().map(|session| session.placed.len()).sum()
    }

    pub fn made(&self) -> usize {
        self.sessions.len()
    }

    /// Compares what the server has with what was told and asked. What was in doubt is known afterwards.
    pub async fn audit(&mut self, superuser: &Connection) {
        for at in 0..self.sessions.len() {
            let head = Head::of(superuser, at).await;
            self.settle_fate(at, head.as_ref());
            let Some(head) = head else { continue };
            let contents = Contents::of(superuser, at).await;
            let verdict = superuser.verify(&name(at)).await;
            assert!(verdict.ok, "{}: {verdict:?}", name(at));
            assert_eq!(verdict.entries, contents.log.len() as i64, "{}", name(at));
            self.check_log(at, &contents.log);
            let session = &mut self.sessions[at];
            session.check_head(&name(at), &head);
            session.check_chunks(&name(at), &contents);
        }
        let left_over = "select
            (select count(*) from agent_sessions.session where deleted_at is null),
            (select count(*) from agent_sessions.session s where deleted_at is not null and not exists (
              select from agent_sessions.session b where b.branched_from = s.sid and b.fork_position > b.base_position)),
            (select count(*) from agent_sessions.session_item where sid not in (select sid from agent_sessions.session)),
            (select count(*) from agent_sessions.session_delta where sid not in (select sid from agent_sessions.session))";
        let row = superuser.query_one(left_over, &[]).await.expect("what is left over");
        let counts: Vec<i64> = (0..row.len()).map(|at| row.get(at)).collect();
        assert_eq!(
            counts,
            [self.live().len() as i64, 0, 0, 0],
            "sessions, needless hidden ones, orphaned entries and chunks"
        );
    }

    fn settle_fate(&mut self, at: usize, head: Option<&Head>) {
        let session = &mut self.sessions[at];
        match (session.fate, head) {
            (Fate::Live, None) => panic!("{} has vanished", name(at)),
            (Fate::Gone, Some(_)) => panic!("{} has come back", name(at)),
            (_, None) => session.fate = Fate::Gone,
            (_, Some(head)) => {
                session.fate = Fate::Live;
                if let (Some((_, fork)), Some(stored)) = (&mut session.source, head.fork) {
                    assert!(*fork == i64::MAX || *fork == stored, "{} is forked at {stored}, not {fork}", name(at));
                    *fork = stored;
                }
                if session.flattening == Flattening::Maybe {
                    session.flattening = if head.has_source { Flattening::No } else { Flattening::Fresh };
                }
                let is_branch = session.source.is_some() && !session.is_flattened();
                assert_eq!(head.has_source, is_branch, "{} reads entries of another", name(at));
            }
        }
    }

    fn check_log(&mut self, at: usize, log: &[Stored]) {
        let told = name(at);
        let fork = self.sessions[at].fork();
        let first = log.first().map_or(fork, |entry| entry.position);
        assert!(
            log.iter().zip(first..).all(|(entry, position)| entry.position == position),
            "{told} has gaps: {log:?}"
        );
        assert!(fork > 0 || !log.is_empty(), "{told} was created with an entry");
        let ids: Vec<&String> = log.iter().filter_map(|entry| entry.item_id.as_ref()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{told} has an item_id twice: {log:?}");

        if self.sessions[at].flattening == Flattening::Fresh {
            self.take_copies(at, log);
        }
        let mut rest = BTreeMap::new();
        for stored in log {
            match self.known(at, stored.position) {
                Some(entry) => assert!(entry.is(stored), "{told}: {stored:?} instead of {entry:?}"),
                None if stored.position >= fork => {
                    rest.insert(stored.position, stored);
                }
                None => assert!(self.may_have(at, stored), "{told} has inherited {stored:?}, which nobody asked for"),
            }
        }
        let end = first + log.len() as i64;
        let lost: Vec<_> = self.sessions[at].placed.range(end.max(first)..).collect();
        assert!(lost.is_empty(), "{told} ends at {end} and has lost {lost:?}");
        self.found += self.sessions[at].place(&told, first, &mut rest);
        let explaining = rest.values().filter(|stored| self.sessions[at].explains_copies(stored));
        let explaining: Vec<i64> = explaining.map(|stored| stored.position).collect();
        explaining.iter().for_each(|place| self.sessions[at].keep(*place, &mut rest));
        if self.sessions[at].is_flattened() {
            self.sessions[at].flattening = Flattening::Done;
        }
        assert!(rest.is_empty(), "{told} has what nobody asked for: {rest:?}");
    }

    /// A session that was flattened has copies of what its sources have.
    fn take_copies(&mut self, at: usize, log: &[Stored]) {
        let (source, fork) = self.sessions[at].source.expect("a branch");
        for stored in log.iter().take_while(|stored| stored.position < fork) {
            let expected = self.known(source, stored.position);
            let is_copy = expected.map_or_else(|| self.may_have(source, stored), |entry| entry.is(stored));
            assert!(is_copy, "{} has {stored:?} as a copy of {expected:?}", name(at));
            self.sessions[at].keep(stored.position, &mut BTreeMap::from([(stored.position, stored)]));
        }
    }

    /// The sessions whose log may hold a position of this one's: a copy is what the original is.
    fn lineage(&self, session: usize, position: i64) -> impl Iterator<Item = &Session> {
        std::iter::successors(Some(&self.sessions[session]), move |at| {
            at.source.filter(|(_, fork)| position < *fork).map(|(source, _)| &self.sessions[source])
        })
    }

    fn known(&self, session: usize, position: i64) -> Option<&Entry> {
        self.lineage(session, position).find_map(|at| at.placed.get(&position))
    }

    fn may_have(&self, session: usize, stored: &Stored) -> bool {
        self.lineage(session, stored.position).any(|at| at.may_have(stored))
    }
}

impl Session {
    /// Whether an entry may be one whose place is not known, of a session that is gone since or was trimmed.
    fn may_have(&self, stored: &Stored) -> bool {
        if self.unseen.iter().any(|entry| entry.is(stored)) {
            return true;
        }
        let unplaced = self.unplaced.iter().map(|(_, entry)| entry);
        let is_asked_for = unplaced.chain(self.doubtful.iter().flatten()).any(|entry| entry.is(stored));
        // What explains copies is asked for by nobody, and may have been trimmed after it was copied on.
        let explains = self.flattening != Flattening::No && self.is_about_copies(stored);
        self.fate == Fate::Gone && is_asked_for || explains
    }

    /// Whether an entry may be one that says where the copies of a flattened session begin, or what was erased of them.
    fn explains_copies(&self, stored: &Stored) -> bool {
        matches!(self.flattening, Flattening::Maybe | Flattening::Fresh) && self.is_about_copies(stored)
    }

    fn is_about_copies(&self, stored: &Stored) -> bool {
        matches!(stored.op.as_str(), "trim" | "erase") && stored.target < Some(self.fork())
    }

    /// Finds the places of what was told without one, and of what was not answered; how many calls of these there are.
    fn place(&mut self, told: &str, first: i64, rest: &mut BTreeMap<i64, &Stored>) -> usize {
        for (last, entry) in std::mem::take(&mut self.unplaced) {
            let place = rest.range(last + 1..).find(|(_, stored)| entry.is(stored)).map(|(&place, _)| place);
            match place {
                Some(place) => self.keep(place, rest),
                None => {
                    assert!(first > last + 1, "{told} has lost {entry:?}, behind {last}: {rest:?}");
                    self.unseen.push(entry);
                }
            }
        }
        let mut found = 0;
        let mut doubtful = std::mem::take(&mut self.doubtful);
        // A pop may be any retract that is left.
        doubtful.sort_by_key(|entries| entries[0].op == "retract" && entries[0].target.is_none());
        for entries in doubtful {
            let start = entries.iter().zip(0..).find_map(|(entry, ordinal)| {
                rest.iter().find(|(_, stored)| entry.is(stored)).map(|(place, _)| place - ordinal)
            });
            let Some(start) = start else {
                self.unseen.extend(entries);
                continue;
            };
            found += 1;
            for (entry, place) in entries.iter().zip(start..).filter(|(_, place)| *place >= first) {
                assert!(
                    rest.get(&place).is_some_and(|stored| entry.is(stored)),
                    "{told} has a part of {entries:?}: {rest:?}"
                );
                self.keep(place, rest);
            }
        }
        found
    }

    fn keep(&mut self, place: i64, rest: &mut BTreeMap<i64, &Stored>) {
        let Some(stored) = rest.remove(&place) else { return };
        let ops = ["append", "open", "revise", "retract", "retract_from", "trim", "erase"];
        let op = ops.into_iter().find(|op| *op == stored.op).expect("an op");
        let Stored { target, item_id, payload, .. } = stored.clone();
        let payload = if matches!(op, "trim" | "erase") { None } else { payload };
        self.placed.insert(place, Entry { op, target, item_id, payload });
    }

    fn check_head(&mut self, told: &str, head: &Head) {
        let last = self.states.keys().next_back().copied().unwrap_or(0);
        assert!(head.revision >= last, "{told} is at revision {}, and {last} was told", head.revision);
        let missing: Vec<i64> = (1..=head.revision).filter(|revision| !self.states.contains_key(revision)).collect();
        assert!(missing.len() <= self.doubtful_states.len(), "{told}: nobody asked for the revisions {missing:?}");
        self.states.extend(missing.iter().map(|revision| (*revision, None)));
        match self.states.get(&head.revision) {
            Some(Some(state)) => assert_eq!(head.state.as_ref(), Some(state), "{told}"),
            Some(None) => {
                let state = head.state.clone().expect("a state");
                assert!(self.doubtful_states.contains(&state), "{told}: nobody asked for the state {state}");
                self.states.insert(head.revision, Some(state));
            }
            None => {}
        }
        self.doubtful_states.clear();

        let is_known = if self.has_doubtful_claim { head.fence >= self.fence } else { head.fence == self.fence };
        assert!(is_known, "{told} has fence {}, and {} was told", head.fence, self.fence);
        (self.fence, self.has_doubtful_claim) = (head.fence, false);
    }

    fn check_chunks(&mut self, told: &str, contents: &Contents) {
        let Contents { chunks, open, .. } = contents;
        for (at, chunk) in chunks {
            let (target, number) = *at;
            assert!(open.contains(&target), "{told} has chunks of {target}, which is not open");
            assert!(
                number == 0 || chunks.contains_key(&(target, number - 1)),
                "{told}: chunk {number} of {target} is the first"
            );
            let doubtful = self.doubtful_chunks.get(at).is_some_and(|chunks| chunks.contains(chunk));
            let acknowledged = self.chunks.get(at) == Some(chunk);
            assert!(acknowledged || doubtful, "{told}: nobody asked for chunk {at:?}, {chunk}");
            self.chunks.insert(*at, chunk.clone());
        }
        for at in self.chunks.keys().filter(|at| !chunks.contains_key(at)) {
            assert!(!open.contains(&at.0), "{told} has lost chunk {at:?}");
        }
        self.doubtful_chunks.clear();
    }
}
