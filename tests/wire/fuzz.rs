//! What the parsers take is what the server's own types take, and means the same there: random texts, made as the core's tests
//! make them. `AGENT_SESSIONS_FUZZ_CASES` and `AGENT_SESSIONS_FUZZ_SEED` as there.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;

use agent_sessions_core::archive::Line;
use agent_sessions_core::{audit, element, members, timestamp};
use agent_sessions_tests::{Connection, Database};
use proptest::prelude::{Strategy, any};
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::value::RawValue;

#[expect(dead_code, reason = "the core's tests use all of them")]
#[path = "../../core/tests/fuzz/cases.rs"]
mod cases;
#[expect(dead_code, reason = "the core's tests use all of them")]
#[path = "../../core/tests/fuzz/inputs.rs"]
mod inputs;

const CASES: usize = 2_000;

/// Functions that tell what a cast comes to, an error included.
const TELL: &str = "
    create function pg_temp.is_json(given text) returns boolean language plpgsql as $$
      begin
        perform given::json;
        return true;
      exception when others then
        return false;
      end $$;
    create function pg_temp.merges(stored text, patch text, merged text) returns boolean language plpgsql as $$
      begin
        return stored::jsonb || patch::jsonb = merged::jsonb;
      exception when others then
        return null;
      end $$";

/// So many random values, told by their seed.
struct Random(TestRunner, usize);

impl Random {
    fn new() -> Random {
        let number = |variable: &str| std::env::var(variable).ok().map(|value| value.parse().expect("a number"));
        let seed: u64 = number("AGENT_SESSIONS_FUZZ_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
        writeln!(std::io::stdout(), "AGENT_SESSIONS_FUZZ_SEED={seed}").expect("standard output is open");
        let mut seeded = [0; 32];
        seeded[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seeded);
        let cases = number("AGENT_SESSIONS_FUZZ_CASES").map_or(CASES, |cases| cases as usize);
        Random(TestRunner::new_with_rng(Config::default(), rng), cases)
    }

    fn some<T>(&mut self, from: impl Strategy<Value = T>) -> Vec<T> {
        (0..self.1).map(|_| from.new_tree(&mut self.0).expect("no input is rejected").current()).collect()
    }

    /// Texts that can be sent: none holds the character NUL.
    fn texts(&mut self, from: impl Strategy<Value = String>) -> Vec<String> {
        self.some(from).into_iter().filter(|text| !text.contains('\0')).collect()
    }
}

async fn are_json(connection: &Connection, texts: &[String]) -> Vec<bool> {
    let sql = "select array_agg(pg_temp.is_json(t) order by n) from unnest($1::text[]) with ordinality u (t, n)";
    connection.value(sql, &[&texts]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_json_here_is_json_there() {
    let db = Database::create("fuzz_json").await;
    let (owner, mut random) = (db.owner().await, Random::new());
    owner.run(TELL).await;
    let mut texts = random.texts(inputs::of(cases::JSON));
    texts.extend(random.texts(inputs::json()));
    texts.extend(random.texts(inputs::changed(inputs::json(), cases::JSON)));
    let there = are_json(&owner, &texts).await;
    let taken = there.iter().filter(|is_json| **is_json).count();
    assert!(taken > texts.len() / 3 && taken < texts.len(), "{taken} of {}", texts.len());
    for (text, there) in texts.iter().zip(there) {
        assert_eq!(serde_json::from_str::<&RawValue>(text).is_ok(), there, "{text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_parser_takes_the_server_takes() {
    let db = Database::create("fuzz_arrays").await;
    let (owner, mut random) = (db.owner().await, Random::new());
    owner.run(TELL).await;
    type Parser = fn(&str) -> bool;
    let parsers: [(Parser, &'static [&'static str]); 4] = [
        (|text| element::parse(text).is_ok(), cases::BATCHES),
        (|text| element::parse_as::<audit::Element>("events", text).is_ok(), cases::EVENTS),
        (|text| element::parse_as::<audit::Line>("lines", text).is_ok(), cases::EVENTS),
        (|text| Line::parse(text).is_ok(), cases::LINES),
    ];
    for (parse, cases) in parsers {
        let texts = random.texts(inputs::of(cases));
        let taken: Vec<String> = texts.into_iter().filter(|text| parse(text)).collect();
        assert!(!taken.is_empty());
        for (text, there) in taken.iter().zip(are_json(&owner, &taken).await) {
            assert!(there, "{text:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_means_what_the_server_makes_of_it() {
    let db = Database::create("fuzz_merge").await;
    let (owner, mut random) = (db.owner().await, Random::new());
    owner.run(TELL).await;
    let pairs = random.some((inputs::json(), inputs::json()));
    let merged: Vec<[String; 3]> = pairs
        .into_iter()
        .filter_map(|(stored, patch)| members::merge(&stored, &patch).map(|merged| [stored, patch, merged]))
        .collect();
    let column = |at: usize| merged.iter().map(|texts| texts[at].clone()).collect::<Vec<String>>();
    let sql = "select array_agg(pg_temp.merges(s, p, m) order by n)
        from unnest($1::text[], $2::text[], $3::text[]) with ordinality u (s, p, m, n)";
    let agree: Vec<Option<bool>> = owner.value(sql, &[&column(0), &column(1), &column(2)]).await;
    assert!(agree.iter().filter(|agree| agree.is_some()).count() > 20, "{}", agree.len());
    for (texts, agrees) in merged.iter().zip(agree) {
        // NULL: jsonb takes no \u0000, no lone surrogate and no such number.
        assert_ne!(agrees, Some(false), "{texts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_means_the_same_there() {
    let db = Database::create("fuzz_times").await;
    let (owner, mut random) = (db.owner().await, Random::new());
    owner.run("set timezone = 'Asia/Kathmandu'").await;
    let times = random.some(-63_000_000_000_000_000..252_000_000_000_000_000_i64);
    let texts: Vec<String> = times.iter().map(|at| timestamp::format(*at).expect("years 0 to 9999")).collect();
    // PostgreSQL knows no year 0.
    let (times, texts): (Vec<i64>, Vec<String>) =
        times.into_iter().zip(texts).filter(|(_, text)| !text.starts_with("0000")).unzip();
    let sql = "select array_agg((extract(epoch from t::timestamptz) * 1000000)::bigint - 946684800000000 order by n)
        from unnest($1::text[]) with ordinality u (t, n)";
    assert_eq!(owner.value::<Vec<i64>>(sql, &[&texts]).await, times);
    // And in any offset.
    let shifted =
        random.some((-60_000_000_000_000_000..240_000_000_000_000_000_i64, any::<bool>(), 0..24_i64, 0..60_i64));
    let shifted: Vec<String> = shifted
        .into_iter()
        .filter_map(|(at, is_west, hours, minutes)| {
            let text = timestamp::format(at).filter(|text| !text.starts_with("0000"))?;
            let sign = if is_west { '-' } else { '+' };
            // No offset of PostgreSQL is as large as 16 hours.
            Some(format!("{}{sign}{:02}:{minutes:02}", &text[..text.len() - 1], hours.min(15)))
        })
        .collect();
    let there: Vec<i64> = owner.value(sql, &[&shifted]).await;
    for (text, there) in shifted.iter().zip(there) {
        assert_eq!(timestamp::parse(text), Some(there), "{text}");
    }
}
