//! Crashes: a server that is stopped in the middle and started again has all that it acknowledged, once, and nothing that
//! nobody asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use agent_sessions_tests::{Connection, OwnCluster, Random, together};
use tokio::sync::Notify;
use tokio_postgres::SimpleQueryMessage;

const DATABASE: &str = "crash";
const OWNER: &str = "crash_owner";
const CLIENT: &str = "crash_client";

/// The writer of WAL sleeps through the test, so that what does not wait for the disk is lost.
const ASLEEP: &str = "wal_writer_delay = 10s";

/// A server with a database whose owner, no superuser, has installed the extension.
async fn server() -> OwnCluster {
    let server = OwnCluster::start(&[ASLEEP]).await;
    let superuser = server.cluster.connect(&server.cluster.superuser, "postgres").await;
    superuser.run(&format!("create role {OWNER} login; create role {CLIENT} login")).await;
    superuser.run(&format!("create database {DATABASE} owner {OWNER}")).await;
    let owner = connect(&server, OWNER).await;
    owner.run("create extension agent_sessions").await;
    owner
        .run(&format!(
            "select agent_sessions.access_grant('{CLIENT}', 'admin');
             create schema app; grant usage on schema app to {CLIENT};
             create table app.told (number bigint); grant insert, select on app.told to {CLIENT}"
        ))
        .await;
    server
}

async fn connect(server: &OwnCluster, role: &str) -> Connection {
    server.cluster.connect(role, DATABASE).await
}

async fn after_a_crash(server: &OwnCluster) -> Connection {
    server.crash().await;
    server.start_again().await;
    connect(server, CLIENT).await
}

fn say(line: &str) {
    // The test runner keeps what print! says of a test that passes.
    writeln!(std::io::stdout(), "{line}").expect("standard output is open");
}

/// How a client has turned waiting for the disk off, in this session or for all of them.
#[derive(Clone, Copy, Debug)]
enum Careless {
    Not,
    Session,
    Transaction,
    Database,
}

impl Careless {
    async fn prepare(self, server: &OwnCluster) {
        if let Careless::Database = self {
            let off = format!("alter database {DATABASE} set synchronous_commit = off");
            connect(server, OWNER).await.run(&off).await;
        }
    }

    async fn claim(self, client: &Connection, session: &str) -> i64 {
        match self {
            Careless::Not | Careless::Database => {}
            Careless::Session => client.run("set synchronous_commit = off").await,
            Careless::Transaction => client.run("begin; set local synchronous_commit = off").await,
        }
        let fence = claim(client, session).await.expect("no lease is live");
        if let Careless::Transaction = self {
            client.commit().await;
        }
        fence
    }
}

/// The fence; `None` while a lease is live.
async fn claim(client: &Connection, session: &str) -> Option<i64> {
    let claim = "select fence from agent_sessions.session_claim($1::text, '1 hour')";
    client.query_opt(claim, &[&session]).await.expect("a claim").map(|row| row.get(0))
}

async fn end_lease(client: &Connection, session: &str) {
    let ended = "select agent_sessions.session_break_lease($1::text)";
    assert!(client.value::<bool>(ended, &[&session]).await, "{session} has a lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_was_told_is_not_given_again_after_a_crash() {
    let server = server().await;
    let mut random = Random(1);
    let mut careless_rows = 0;
    for (careless, rounds) in
        [(Careless::Not, 3), (Careless::Session, 7), (Careless::Transaction, 7), (Careless::Database, 7)]
    {
        careless.prepare(&server).await;
        for round in 0..rounds {
            let client = connect(&server, CLIENT).await;
            // The sequence is written down once in 32 fences: each round ends elsewhere in that.
            for _ in 0..random.below(40) {
                careless.claim(&client, "s").await;
                end_lease(&client, "s").await;
            }
            // The row of a session that the claim creates remembers nothing yet.
            let session = if round % 3 == 0 { format!("{careless:?} {round}") } else { "s".to_owned() };
            let told = careless.claim(&client, &session).await;
            if round % 2 == 0 {
                client.run("begin; set local synchronous_commit = off; insert into app.told values (0); commit").await;
                careless_rows += 1;
            }
            let client = after_a_crash(&server).await;
            assert_eq!(claim(&client, &session).await, None, "{careless:?} {round}: the lease lives on");
            end_lease(&client, &session).await;
            let next = claim(&client, &session).await.expect("it was broken");
            assert!(next > told, "{careless:?} {round}: {next} after {told}");
            end_lease(&client, &session).await;
            client.query("select agent_sessions.session_delete($1::text)", &[&session]).await.expect("a deletion");
            let last = claim(&client, &session).await.expect("a new session");
            assert!(last > next, "{careless:?} {round}: {last} after {next}");
            end_lease(&client, &session).await;
        }
    }
    let kept: i64 = connect(&server, CLIENT).await.value("select count(*) from app.told", &[]).await;
    say(&format!(
        "crashes took {} of {careless_rows} rows that did not wait for the disk, and no fence",
        careless_rows - kept
    ));
    assert!(kept < careless_rows, "the crashes lose nothing: nothing is shown");
}

async fn chunks(client: &Connection) -> Vec<String> {
    let chunks = "select chunk from agent_sessions.session_delta order by chunk_no";
    client.query(chunks, &[]).await.expect("the chunks").iter().map(|row| row.get(0)).collect()
}

async fn stream(client: &Connection, target: i64, number: usize, chunk: &str) {
    let delta = "select agent_sessions.session_delta('s', $1, $2, $3, durable => false)";
    let told: i32 = client.value(delta, &[&target, &(number as i32), &chunk]).await;
    assert_eq!(told as usize, number + 1);
}

const STREAM_ROUNDS: usize = 6;

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_takes_chunks_that_are_not_durable_and_nothing_else() {
    let server = server().await;
    let mut random = Random(2);
    let mut client = connect(&server, CLIENT).await;
    client.create_session("s").await;
    let (mut entries, mut sent, mut lost) = (0, 0, 0);
    for round in 0..STREAM_ROUNDS {
        let open = "select agent_sessions.session_append('s', '\"\"', open => true)";
        let target: i64 = client.value(open, &[]).await;
        let text: Vec<String> = (0..2 + random.below(30)).map(|number| format!("{round} {number}")).collect();
        // An entry in the same statement waits for the disk, and with it all that was written before.
        let durable = if round % 2 == 0 { 0 } else { 1 + random.below(text.len()) };
        for (number, chunk) in text.iter().enumerate() {
            if number + 1 == durable {
                let both = format!(
                    "select agent_sessions.session_delta('s', {target}, {number}, '{chunk}', durable => false),
                            agent_sessions.session_append('s', '\"beside\"')"
                );
                client.run(&both).await;
            } else {
                stream(&client, target, number, chunk).await;
            }
        }
        entries += 1 + i64::from(durable > 0);
        client = after_a_crash(&server).await;
        client.assert_dense("s", entries).await;
        let kept = chunks(&client).await;
        assert!(kept.len() >= durable, "round {round}: {} of {durable} chunks that were durable", kept.len());
        assert_eq!(kept, text[..kept.len()], "round {round}");
        (sent, lost) = (sent + text.len(), lost + text.len() - kept.len());

        stream(&client, target, kept.len(), "goes on").await;
        let close = "select agent_sessions.session_revise('s', '\"whole\"', target => $1)";
        assert_eq!(client.value::<i64>(close, &[&target]).await, entries);
        entries += 1;
        assert_eq!(chunks(&client).await, Vec::<String>::new());
        let shown = client.history("s").await.into_iter().find(|item| item.position == target);
        assert_eq!(shown.and_then(|item| item.payload).as_deref(), Some("\"whole\""));
    }
    client = after_a_crash(&server).await;
    client.assert_dense("s", entries).await;
    say(&format!("crashes took {lost} of {sent} chunks that were not durable, and none of {entries} entries"));
    assert!(lost > 0, "the crashes lose nothing: nothing is shown");
}

/// Statements that send a chunk and write a row, $number, and whether they are one that is also sent by the extended protocol.
const BESIDE: [(&str, bool); 9] = [
    ("insert into app.told values ($number); $delta", false),
    ("$delta; insert into app.told values ($number)", false),
    ("begin; $delta; insert into app.told values ($number); commit", false),
    ("with told as (insert into app.told values ($number) returning 1) $delta from told", true),
    ("insert into app.told select $number from ($delta) d", true),
    ("do $do$ begin perform $call; insert into app.told values ($number); end $do$", true),
    ("$delta, app.tell($number)", true),
    ("select app.tell($number), $call", true),
    ("select app.tell_and_send($number, $next)", true),
];

/// Only chunks may be lost, whatever else a client writes where it sends one.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_statement_writes_beside_a_chunk_outlive_a_crash() {
    let server = server().await;
    connect(&server, OWNER)
        .await
        .run(&format!(
            "create function app.tell(number bigint) returns void language plpgsql as $$
               begin insert into app.told values (number); end $$;
             create function app.tell_and_send(number bigint, next integer) returns integer language sql as $$
               select agent_sessions.session_delta('s', 0, next, 'x', durable => false);
               insert into app.told values (number) returning 1 $$;
             grant execute on all functions in schema app to {CLIENT}"
        ))
        .await;
    let client = connect(&server, CLIENT).await;
    client.create_session("s").await;
    client.run("select agent_sessions.session_append('s', '\"\"', open => true)").await;
    let simple = BESIDE.iter().map(|(sql, _)| (*sql, false));
    let extended = BESIDE.iter().filter(|(_, extended)| *extended).map(|(sql, _)| (*sql, true));
    let mut lost = Vec::new();
    for (number, (statement, is_extended)) in simple.chain(extended).enumerate() {
        let client = connect(&server, CLIENT).await;
        let next: i64 = client.value("select count(*) from agent_sessions.session_delta", &[]).await;
        let call = format!("agent_sessions.session_delta('s', 0, {next}, 'x', durable => false)");
        let sql = statement.replace("$delta", "select $call").replace("$call", &call);
        let sql = sql.replace("$number", &number.to_string()).replace("$next", &next.to_string());
        if is_extended {
            client.query(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        } else {
            client.run(&sql).await;
        }
        let client = after_a_crash(&server).await;
        let kept = "select count(*) from app.told where number = $1";
        if client.value::<i64>(kept, &[&(number as i64)]).await == 0 {
            lost.push((statement, is_extended));
        }
    }
    assert!(lost.is_empty(), "the rows of these are lost: {lost:#?}");
}

/// An entry of a log that a call asks for; a payload that is None is the engine's to choose.
#[derive(Clone, Debug)]
struct Entry {
    op: &'static str,
    /// None for a pop that was not answered: the engine chooses.
    target: Option<i64>,
    item_id: Option<String>,
    payload: Option<String>,
}

/// A row of session_log.
#[derive(Clone, Debug)]
struct Stored {
    position: i64,
    op: String,
    target: Option<i64>,
    item_id: Option<String>,
    payload: Option<String>,
}

impl Entry {
    fn about(op: &'static str, target: i64) -> Entry {
        Entry { op, target: Some(target), item_id: None, payload: None }
    }

    /// A content that was erased is gone; session_verify knows by which entry, and that entry is accounted for as well.
    fn is(&self, stored: &Stored) -> bool {
        let same_target = self.target == stored.target || (self.op == "retract" && self.target.is_none());
        let same_payload = self.payload.is_none() || stored.payload.is_none() || self.payload == stored.payload;
        self.op == stored.op && self.item_id == stored.item_id && same_target && same_payload
    }
}

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

    /// The last position that is known to be taken.
    fn last(&self) -> i64 {
        self.placed.keys().next_back().copied().unwrap_or(self.fork() - 1)
    }
}

/// What was asked of a session.
#[derive(Clone, Debug)]
enum Call {
    Create(Entry),
    Append(Vec<Entry>),
    Revise(Entry),
    Retract(i64),
    RetractFrom(i64),
    Pop,
    Set(String),
    Delta {
        target: i64,
        number: i32,
        chunk: String,
    },
    Branch {
        at_target: Option<i64>,
        branch: usize,
    },
    Claim {
        last_fence: i64,
    },
    Extend,
    Release,
    Trim(i64),
    /// Through the logs from that of the session to that which holds the entry.
    Erase {
        target: i64,
        through: Vec<usize>,
    },
    Flatten,
    Delete,
}

impl Call {
    const NAMES: [&str; 17] = [
        "create",
        "append",
        "batch",
        "open",
        "revise",
        "retract",
        "retract from",
        "pop",
        "set",
        "delta",
        "branch",
        "claim",
        "extend and release",
        "trim",
        "erase",
        "delete",
        "flatten",
    ];

    fn name(&self) -> &'static str {
        let at = match self {
            Call::Create(_) => 0,
            Call::Append(entries) if entries.len() > 1 => 2,
            Call::Append(entries) if entries[0].op == "open" => 3,
            Call::Append(_) => 1,
            Call::Revise(_) => 4,
            Call::Retract(_) => 5,
            Call::RetractFrom(_) => 6,
            Call::Pop => 7,
            Call::Set(_) => 8,
            Call::Delta { .. } => 9,
            Call::Branch { .. } => 10,
            Call::Claim { .. } => 11,
            Call::Extend | Call::Release => 12,
            Call::Trim(_) => 13,
            Call::Erase { .. } => 14,
            Call::Delete => 15,
            Call::Flatten => 16,
        };
        Call::NAMES[at]
    }
}

#[derive(Clone, Debug)]
struct Asked {
    session: usize,
    lease: Option<String>,
    call: Call,
    /// The last position known of the log that is written to, when the call was sent.
    last: i64,
}

enum Answer {
    Rows(Vec<Vec<Option<String>>>),
    Refused(String),
    /// The server died meanwhile.
    None,
}

fn name(session: usize) -> String {
    format!("session {session}")
}

impl Asked {
    fn sql(&self) -> String {
        let session = format!("session_id => '{}'", name(self.session));
        let lease = self.lease.as_ref().map_or("lease => null".to_owned(), |lease| format!("lease => '{lease}'"));
        let payload = |entry: &Entry| entry.payload.clone().unwrap_or_default();
        let call = match &self.call {
            Call::Create(entry) => format!(
                "session_append({session}, payload => '{}', item_id => '{}', on_missing => 'create')",
                payload(entry),
                entry.item_id.as_deref().unwrap_or_default()
            ),
            Call::Append(entries) if entries.len() == 1 => format!(
                "session_append({session}, payload => '{}', item_id => '{}', open => {}, {lease})",
                payload(&entries[0]),
                entries[0].item_id.as_deref().unwrap_or_default(),
                entries[0].op == "open"
            ),
            Call::Append(entries) => {
                let element = |entry: &Entry| {
                    format!(
                        r#"{{"payload":{},"item_id":"{}"}}"#,
                        payload(entry),
                        entry.item_id.as_deref().unwrap_or_default()
                    )
                };
                let elements: Vec<String> = entries.iter().map(element).collect();
                return format!(
                    "select position from agent_sessions.session_append_batch({session}, items => '[{}]', {lease}) order by ordinal",
                    elements.join(",")
                );
            }
            Call::Revise(entry) => format!(
                "session_revise({session}, payload => '{}', target => {}, {lease})",
                payload(entry),
                entry.target.unwrap_or_default()
            ),
            Call::Retract(target) => format!("session_retract({session}, targets => '{{{target}}}', {lease})"),
            Call::RetractFrom(target) => format!("session_retract({session}, from_target => {target}, {lease})"),
            Call::Pop => return format!("select position from agent_sessions.session_pop({session}, {lease})"),
            Call::Set(state) => format!("session_set({session}, state => '{state}', {lease})"),
            Call::Delta { target, number, chunk } => {
                format!(
                    "session_delta({session}, target => {target}, chunk_no => {number}, chunk => '{chunk}', {lease})"
                )
            }
            Call::Branch { at_target, branch } => {
                let at = at_target.map_or("null".to_owned(), |target| target.to_string());
                return format!(
                    "select fork_position from agent_sessions.session_branch({session}, at_target => {at}, new_session_id => '{}', {lease})",
                    name(*branch)
                );
            }
            Call::Claim { .. } => {
                return format!(
                    "select lease, fence from agent_sessions.session_claim({session}, ttl => '200 ms', on_missing => 'error')"
                );
            }
            Call::Extend => {
                return format!("select 1 from agent_sessions.session_extend({session}, {lease}, ttl => '200 ms')");
            }
            Call::Release => format!("session_release({session}, {lease})"),
            Call::Trim(keep_from) => format!("session_trim({session}, keep_from => {keep_from}, {lease})"),
            Call::Erase { target, .. } => format!("session_erase({session}, target => {target}, {lease})"),
            Call::Flatten => format!("session_flatten({session}, {lease})"),
            Call::Delete => format!("session_delete({session}, {lease})"),
        };
        format!("select agent_sessions.{call}")
    }

    /// The codes with which it may be refused: the session was deleted, a lease is live, or its target is gone.
    fn may_be_refused_with(&self) -> &'static [&'static str] {
        match self.call {
            Call::Create(_) | Call::Release => &[],
            Call::Claim { .. } => &["SE002"],
            Call::Extend => &["SE002", "SE008"],
            Call::Revise(_) | Call::Retract(_) | Call::Erase { .. } => &["SE002", "SE008", "SE009", "SE011"],
            Call::Delta { .. } => &["SE002", "SE008", "SE009", "SE011", "SE013"],
            Call::Branch { .. } => &["SE002", "SE008", "SE009", "SE012"],
            _ => &["SE002", "SE008", "SE009"],
        }
    }
}

/// All that was asked and told.
#[derive(Default)]
struct Ledger {
    sessions: Vec<Session>,
    names: usize,
    acknowledged: BTreeMap<&'static str, usize>,
    refused: BTreeMap<String, usize>,
    unexpected: Vec<String>,
    in_doubt: usize,
    found: usize,
}

/// How many sessions there are at least, and at most.
const FEWEST: usize = 6;
const MOST: usize = 10;

impl Ledger {
    fn live(&self) -> Vec<usize> {
        (0..self.sessions.len()).filter(|&at| self.sessions[at].fate == Fate::Live).collect()
    }

    /// The sessions from one to that which holds a position of its log.
    fn through(&self, session: usize, position: i64) -> Vec<usize> {
        let mut through = vec![session];
        let mut at = session;
        while let Some((source, fork)) = self.sessions[at].source
            && position < fork
            && !self.sessions[at].is_flattened()
        {
            through.push(source);
            at = source;
        }
        through
    }

    /// The session that holds a position of another's log.
    fn owner(&self, session: usize, position: i64) -> usize {
        *self.through(session, position).last().expect("the session itself at least")
    }

    /// An item that stands in the log of a session, or was inherited by it.
    fn any_item(&self, random: &mut Random, session: usize, op: &str) -> Option<i64> {
        let last = self.sessions[session].last();
        let items: Vec<i64> = (0..=last)
            .filter(|&at| self.sessions[self.owner(session, at)].placed.get(&at).is_some_and(|entry| entry.op == op))
            .collect();
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
    fn ask(&mut self, random: &mut Random, leases: &BTreeMap<usize, String>) -> Asked {
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
            Call::Erase { target, through } => {
                through.iter().for_each(|&at| self.sessions[at].erasing += 1);
                written = self.owner(session, *target);
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

    fn may_erase(&self, session: usize, target: i64) -> bool {
        self.through(session, target).iter().all(|&at| self.sessions[at].flattening != Flattening::Asked)
    }

    fn may_flatten(&self, session: usize) -> bool {
        let Session { source, flattening, erasing, .. } = &self.sessions[session];
        source.is_some() && *flattening == Flattening::No && *erasing == 0
    }

    /// Writes down what became of a call. Returns the lease that it has granted.
    fn note(&mut self, asked: &Asked, answer: &Answer) -> Option<String> {
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
                session.placed.insert(0, entry.clone());
            }
            Call::Append(entries) => {
                assert_eq!(rows.len(), entries.len(), "{asked:?}");
                for (row, entry) in entries.iter().enumerate() {
                    session.placed.insert(number(row, 0).expect("a position"), entry.clone());
                }
            }
            Call::Revise(entry) => {
                session.placed.insert(told(), entry.clone());
            }
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

struct Shared {
    ledger: Mutex<Ledger>,
    /// Steps that are left until the server is stopped.
    left: AtomicUsize,
    is_time: Notify,
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no client panics while it holds this")
    }

    fn step(&self) {
        // It wraps after the last: clients go on until the server is gone.
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.is_time.notify_one();
        }
    }
}

struct Client {
    random: Random,
    leases: BTreeMap<usize, String>,
    /// An append that was not answered, and is sent again.
    again: Option<Asked>,
}

impl Client {
    /// Goes on until the server is gone.
    async fn work(mut self, connection: Connection, shared: Arc<Shared>) -> Client {
        loop {
            shared.step();
            let asked = self.again.take();
            let asked = asked.unwrap_or_else(|| shared.ledger().ask(&mut self.random, &self.leases));
            let answer = call(&connection, &asked.sql()).await;
            let granted = shared.ledger().note(&asked, &answer);
            if let Some(lease) = granted {
                self.leases.insert(asked.session, lease);
            }
            match (answer, &asked.call) {
                (Answer::None, Call::Append(_)) => {
                    // A replay holds even if the lease is lost.
                    self.again = Some(Asked { lease: None, ..asked });
                    return self;
                }
                (Answer::None, _) => return self,
                (Answer::Refused(code), _) if code == "SE011" || code == "SE013" => {}
                (Answer::Refused(_), _) | (_, Call::Release) => {
                    self.leases.remove(&asked.session);
                }
                _ => {}
            }
        }
    }
}

async fn call(connection: &Connection, sql: &str) -> Answer {
    match connection.simple_query(sql).await {
        Ok(messages) => {
            let rows = messages.iter().filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()),
                _ => None,
            });
            Answer::Rows(rows.collect())
        }
        Err(error) => match error.code().map(|code| code.code()) {
            // The server shuts down.
            None | Some("57P01" | "57P02" | "57P03") => Answer::None,
            Some(code) => Answer::Refused(code.to_owned()),
        },
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
    /// Compares what the server has with what was told and asked. What was in doubt is known afterwards.
    async fn audit(&mut self, superuser: &Connection) {
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
}

impl Ledger {
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
    /// Whether an entry may be one whose place is not known, of a session that is gone since.
    fn may_have(&self, stored: &Stored) -> bool {
        let unplaced = self.unplaced.iter().map(|(_, entry)| entry);
        let is_asked_for = unplaced.chain(self.doubtful.iter().flatten()).any(|entry| entry.is(stored));
        self.fate == Fate::Gone && (is_asked_for || self.explains_copies(stored))
    }

    /// Whether an entry may be one that says where the copies of a flattened session begin, or what was erased of them.
    fn explains_copies(&self, stored: &Stored) -> bool {
        let is_about_copies = matches!(stored.op.as_str(), "trim" | "erase") && stored.target < Some(self.fork());
        matches!(self.flattening, Flattening::Maybe | Flattening::Fresh) && is_about_copies
    }

    /// Finds the places of what was told without one, and of what was not answered; how many calls of these there are.
    fn place(&mut self, told: &str, first: i64, rest: &mut BTreeMap<i64, &Stored>) -> usize {
        for (last, entry) in std::mem::take(&mut self.unplaced) {
            let place = rest.range(last + 1..).find(|(_, stored)| entry.is(stored)).map(|(&place, _)| place);
            match place {
                Some(place) => self.keep(place, rest),
                None => assert!(first > last + 1, "{told} has lost {entry:?}, behind {last}: {rest:?}"),
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
            let Some(start) = start else { continue };
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

const CLIENTS: usize = 8;
const CRASHES: usize = 6;
const SEED: u64 = 1;

#[tokio::test(flavor = "multi_thread")]
async fn all_that_was_acknowledged_outlives_crashes_once_and_in_place() {
    let server = server().await;
    let mut random = Random(SEED);
    let client = |number| Client { random: Random(SEED * 1000 + number), leases: BTreeMap::new(), again: None };
    let mut clients: Vec<Option<Client>> = (0..CLIENTS as u64).map(|number| Some(client(number))).collect();
    let mut ledger = Ledger::default();
    for crash in 1..=CRASHES {
        let steps = 400 + random.below(800);
        let shared =
            Arc::new(Shared { ledger: Mutex::new(ledger), left: AtomicUsize::new(steps), is_time: Notify::new() });
        let mut connections = Vec::new();
        for _ in 0..CLIENTS {
            connections.push(Some(connect(&server, CLIENT).await));
        }
        let working = together(CLIENTS, |number| {
            let client = clients[number].take().expect("it has come back");
            client.work(connections[number].take().expect("one each"), shared.clone())
        });
        let crashing = async {
            shared.is_time.notified().await;
            server.crash().await;
        };
        let (worked, ()) = tokio::join!(working, crashing);
        clients = worked.into_iter().map(Some).collect();
        server.start_again().await;
        let shared = Arc::into_inner(shared).expect("the clients have ended");
        ledger = shared.ledger.into_inner().expect("no client has panicked");
        assert!(ledger.unexpected.is_empty(), "seed {SEED}, crash {crash}: {:#?}", ledger.unexpected);
        let superuser = connect(&server, &server.cluster.superuser).await;
        ledger.audit(&superuser).await;
        say(&format!("seed {SEED}, crash {crash} at step {steps}: {}", ledger.summary()));
    }
    assert!(ledger.in_doubt > 0);
    for name in Call::NAMES {
        assert!(ledger.acknowledged.contains_key(name), "no {name} was acknowledged");
    }
}

impl Ledger {
    fn summary(&self) -> String {
        let entries: usize = self.sessions.iter().map(|session| session.placed.len()).sum();
        format!(
            "{} sessions, {} of them live, {entries} entries; acknowledged {:?}, refused {:?}, not answered {}, of which {} had written",
            self.sessions.len(),
            self.live().len(),
            self.acknowledged,
            self.refused,
            self.in_doubt,
            self.found
        )
    }
}
