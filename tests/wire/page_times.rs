//! How long the last page of a long log takes, compared with the bare index scan of the same rows by the same role. It prints
//! what it measures. Its bounds are wide, since other programs may keep the machine busy.

use std::io::Write;
use std::time::{Duration, Instant};

use agent_sessions_tests::{Connection, Role};

use crate::bare_client::BareClient;
use crate::long_logs::{self, ITEMS, REVISIONS, link};

const PAGE: usize = 50;
const DEPTHS: [i64; 3] = [1, 8, 64];
const ROUNDS: usize = 400;
/// Until a backend has planned all that it keeps.
const WARM_UP: usize = 20;

/// A statement under its own name, and what it took in each round.
struct Measured {
    name: String,
    parameters: [String; 2],
    rows: usize,
    took: Vec<Duration>,
}

impl Measured {
    fn new(wire: &mut BareClient, name: &str, sql: &str, parameters: [&dyn ToString; 2], rows: usize) -> Measured {
        wire.prepare(name, sql);
        let parameters = parameters.map(|parameter| parameter.to_string());
        Measured { name: name.to_owned(), parameters, rows, took: Vec::new() }
    }

    /// The items before a position, as the extension shows them.
    fn page(wire: &mut BareClient, name: &str, session: &str, position: i64) -> Measured {
        let page = format!(
            "select position, op, kind, item_id, tag, author, payload, attrs, created_at, digest
             from agent_sessions.session_history($1, before => $2, max_rows => {PAGE}, newest_first => true)"
        );
        Measured::new(wire, name, &page, [&session, &position], PAGE)
    }

    /// The entries of one session before the end of the items.
    fn bare(wire: &mut BareClient, name: &str, sid: i64) -> Measured {
        let scan = format!(
            "select position, op, kind, item_id, tag, author, payload, attrs, created_at, digest
             from agent_sessions.session_item where sid = $1 and position < $2 order by position desc limit {PAGE}"
        );
        Measured::new(wire, &format!("bare scan for {name}"), &scan, [&sid, &ITEMS], PAGE)
    }

    fn verification(wire: &mut BareClient, session: &str) -> Measured {
        let verify = "select ok from agent_sessions.session_verify($1) where ok and entries = $2";
        Measured::new(wire, &format!("session_verify of {session}"), verify, [&session, &ITEMS], 1)
    }

    fn run(&mut self, wire: &mut BareClient) {
        let start = Instant::now();
        let rows = wire.execute(&self.name, &[&self.parameters[0], &self.parameters[1]]);
        self.took.push(start.elapsed());
        assert_eq!(rows, self.rows, "{}", self.name);
    }

    fn median(&self) -> f64 {
        let mut took = self.took.clone();
        took.sort_unstable();
        took[took.len() / 2].as_secs_f64() * 1e3
    }
}

/// All of them take turns, so that what slows the machine down for a while slows all of them.
fn run(wire: &mut BareClient, rounds: usize, measured: &mut [Measured]) {
    for _ in 0..rounds {
        measured.iter_mut().for_each(|one| one.run(wire));
    }
}

/// Prints how something compares with what it is measured against, and asserts that this is not beyond a bound.
fn compare(one: &Measured, with: &Measured, most: f64) {
    let (took, base) = (one.median(), with.median());
    let ratio = took / base;
    say(&format!("{:30} {took:8.3} ms, {base:8.3} ms: {ratio:.2}", one.name));
    assert!(ratio < most, "{}: {ratio:.2} times as long", one.name);
}

fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("standard output is open");
}

/// A page under measure.
struct Page {
    name: String,
    session: String,
    /// The session that holds its rows.
    holder: String,
    before: i64,
    /// How many times the bare scan it may take.
    most: f64,
}

/// The sessions that are measured, each of them 100 000 items.
async fn fill(writer: &Connection) -> Vec<Page> {
    let page = |name: &str, session: &str, before, most| Page {
        name: name.to_owned(),
        session: session.to_owned(),
        holder: session.to_owned(),
        before,
        most,
    };
    for session in ["flat", "revised", "revised at its end"] {
        long_logs::append(writer, session, 0, ITEMS).await;
    }
    long_logs::revise(writer, "revised", 0, ITEMS, ITEMS / REVISIONS).await;
    long_logs::revise(writer, "revised at its end", ITEMS - REVISIONS, ITEMS, 1).await;
    let mut pages = vec![
        page("flat", "flat", ITEMS, 8.0),
        page("1 000 revisions", "revised", ITEMS, 12.0),
        page("all 50 revised", "revised at its end", ITEMS, 20.0),
        page("before 1 000 revisions", "revised", i64::MAX, 80.0),
    ];
    for depth in DEPTHS {
        let chain = format!("depth {depth}");
        long_logs::chain(writer, &chain, depth).await;
        let holder = link(&chain, depth - 1);
        pages.push(Page { holder, ..page(&chain, &link(&chain, depth), ITEMS, 12.0 + 2.0 * depth as f64) });
    }
    pages
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_page_of_a_long_log_takes_little_longer_than_its_bare_index_scan() {
    let db = long_logs::database("page_times").await;
    let writer = db.writer().await;
    let pages = fill(&writer).await;
    db.superuser().await.run("vacuum analyze agent_sessions.session, agent_sessions.session_item").await;
    // In mode auto the server may plan the bare scan anew each time, for the values that it is given.
    for mode in ["auto", "force_generic_plan"] {
        let mut wire = BareClient::connect(&db, &Role::Reader);
        wire.prepare("mode", &format!("set plan_cache_mode = {mode}"));
        wire.execute("mode", &[]);
        let mut measured = Vec::new();
        for page in &pages {
            let sid = "select sid from agent_sessions.session where session_id = $1";
            let sid = writer.value::<i64>(sid, &[&page.holder]).await;
            measured.push(Measured::page(&mut wire, &page.name, &page.session, page.before));
            measured.push(Measured::bare(&mut wire, &page.name, sid));
        }
        run(&mut wire, WARM_UP, &mut measured);
        measured.iter_mut().for_each(|one| one.took.clear());
        run(&mut wire, ROUNDS, &mut measured);
        say(&format!("The last {PAGE} of {ITEMS} items, and the bare scan of their rows ({mode})"));
        for (page, pair) in pages.iter().zip(measured.chunks(2)) {
            compare(&pair[0], &pair[1], page.most);
        }
    }
    let mut wire = BareClient::connect(&db, &Role::Reader);
    let mut verifications = vec![Measured::verification(&mut wire, "flat")];
    for depth in DEPTHS {
        verifications.push(Measured::verification(&mut wire, &link(&format!("depth {depth}"), depth)));
    }
    run(&mut wire, 5, &mut verifications);
    verifications[1..].iter().for_each(|branch| compare(branch, &verifications[0], 4.0));
}
