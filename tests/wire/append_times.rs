//! What an append takes, compared with a prepared INSERT of the same row into a copy of the table that has nothing but its primary
//! key: no trigger, no policy, no chain. It prints what it measures. Its bounds are wide, since other programs may keep the
//! machine busy. Nothing waits for the disk: it is the work that is compared.

use std::io::Write;
use std::time::Instant;

use agent_sessions_tests::{Database, Role};

use crate::bare_client::BareClient;

const ROUNDS: usize = 21;
const WARM_UP: usize = 3;
const CALLS: usize = 100;
const PAYLOAD_BYTES: usize = 1_000;

/// A statement whose parameters are a payload and a number, and what it took in each round, in milliseconds a call.
struct Measured {
    name: &'static str,
    sql: String,
    /// How many times the bare INSERT it may take.
    most: f64,
    took: Vec<f64>,
}

impl Measured {
    fn new(name: &'static str, most: f64, sql: &str) -> Measured {
        Measured { name, sql: sql.to_owned(), most, took: Vec::new() }
    }

    fn run(&mut self, client: &mut BareClient, payload: &str, round: usize) {
        let start = Instant::now();
        for call in 0..CALLS {
            client.execute(self.name, &[payload, &(round * CALLS + call).to_string()]);
        }
        self.took.push(start.elapsed().as_secs_f64() * 1e3 / CALLS as f64);
    }

    fn median(&self) -> f64 {
        let mut took = self.took[WARM_UP..].to_vec();
        took.sort_by(f64::total_cmp);
        took[took.len() / 2]
    }
}

async fn all(db: &Database) -> Vec<Measured> {
    let (owner, writer) = (db.owner().await, db.writer().await);
    let role = db.role_name(&Role::Writer);
    owner
        .run(&format!(
            "create table public.floor (like agent_sessions.session_item, primary key (sid, position));
             grant insert on public.floor to {role}"
        ))
        .await;
    for session in ["s", "raw"] {
        writer.create_session(session).await;
    }
    let sid: i64 = writer.value("select sid from agent_sessions.session where session_id = 'raw'", &[]).await;
    let lease = "select lease from agent_sessions.session_claim('leased', ttl => '1 hour')";
    let lease: String = writer.value(lease, &[]).await;
    vec![
        Measured::new(
            "bare INSERT",
            1.0,
            "insert into public.floor (sid, position, tenant, agent_id, op, kind, payload, salt, content_digest, digest, created_at)
             values (1, $2::text::bigint, '', '', 'append', 'message', $1::text::json, gen_random_uuid(), sha256('a'), sha256('b'),
               clock_timestamp())",
        ),
        Measured::new("append", 5.0, "select agent_sessions.session_append('s', $1::text::json) where $2::text is not null"),
        Measured::new(
            "append, item_id and lease",
            6.0,
            &format!("select agent_sessions.session_append('leased', $1::text::json, item_id => $2::text, lease => '{lease}')"),
        ),
        Measured::new(
            "INSERT by plain SQL",
            15.0,
            &format!(
                "insert into agent_sessions.session_item (sid, payload)
                 select {sid}, $1::text::json where $2::text is not null"
            ),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_takes_little_longer_than_a_bare_insert() {
    let db = Database::create("append_times").await;
    let mut measured = all(&db).await;
    let mut client = BareClient::connect(&db, &Role::Writer);
    measured.iter().for_each(|one| client.prepare(one.name, &one.sql));
    let payload = serde_json::json!({ "role": "user", "content": "x".repeat(PAYLOAD_BYTES) }).to_string();
    // They take turns, so that what slows the machine down for a while slows all of them.
    for round in 0..WARM_UP + ROUNDS {
        measured.iter_mut().for_each(|one| one.run(&mut client, &payload, round));
    }
    let floor = measured[0].median();
    for one in &measured {
        let (took, ratio) = (one.median(), one.median() / floor);
        let line = format!("{:26} {took:.3} ms, {ratio:.2} times the bare INSERT", one.name);
        writeln!(std::io::stdout(), "{line}").expect("standard output is open");
        assert!(ratio <= one.most, "{line}");
    }
}
