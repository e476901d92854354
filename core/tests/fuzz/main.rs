//! Random inputs for every parser: none makes it panic, what is printed is read back, and what must be refused is.
//!
//! `AGENT_SESSIONS_FUZZ_CASES` is how many inputs each property gets; `AGENT_SESSIONS_FUZZ_SEED` repeats a run. `make fuzz` runs longer.

mod archives;
mod audit;
mod batches;
mod cases;
mod documents;
mod inputs;
mod object;
mod texts;

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};

use proptest::prelude::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner};

const CASES: u64 = 256;

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is no number: {value}")))
}

/// Gives a property its inputs, and tells the seed if it does not hold.
fn for_all<S: Strategy>(inputs: S, property: impl Fn(S::Value) -> TestCaseResult)
where
    S::Value: Debug,
{
    let seed = number("AGENT_SESSIONS_FUZZ_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    let cases = number("AGENT_SESSIONS_FUZZ_CASES").unwrap_or(CASES) as u32;
    let mut seeded = [0; 32];
    seeded[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, max_global_rejects: u32::MAX, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seeded));
    if let Err(error) = runner.run(&inputs, property) {
        panic!("AGENT_SESSIONS_FUZZ_SEED={seed}: {error}");
    }
}
