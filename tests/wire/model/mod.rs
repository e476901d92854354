//! The engine against the contract: random sequences of every writing function, and of plain INSERTs and DELETEs, over a
//! handful of sessions, sub-sessions and branches; after each step the answer and all that the readers show are what
//! a model in plain Rust says (`contract.rs`). A difference is shrunk and told as SQL.
//!
//! `AGENT_SESSIONS_MODEL_STEPS` is how many steps to run, about; `AGENT_SESSIONS_MODEL_SEED` repeats a run.

mod branches;
mod compare;
mod contract;
mod items;
mod log;
mod look_up;
mod plan;
mod run;
mod sessions;
mod sql;
mod step;
mod tally;

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::io::Write;

use agent_sessions_tests::Database;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use plan::{LONGEST, plan};
use run::Clients;
use step::Step;
use tally::Tally;

const STEPS: usize = 4000;

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is no number: {value}")))
}

fn say(text: &str) {
    writeln!(std::io::stdout(), "{text}").expect("standard output is open");
}

#[test]
fn the_engine_does_what_the_model_of_the_contract_says() {
    let steps = number("AGENT_SESSIONS_MODEL_STEPS").map_or(STEPS, |steps| steps as usize);
    let seed = number("AGENT_SESSIONS_MODEL_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    say(&format!("AGENT_SESSIONS_MODEL_SEED={seed} AGENT_SESSIONS_MODEL_STEPS={steps}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (_db, clients) = runtime.block_on(async {
        let db = Database::create("model").await;
        let clients = Clients::of(&db).await;
        (db, clients)
    });

    let mut seeded = [0; 32];
    seeded[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: steps.div_ceil(LONGEST / 2) as u32,
        failure_persistence: None,
        max_shrink_iters: 5000,
        max_shrink_time: 120_000,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seeded));
    let (tally, tenants) = (RefCell::new(Tally::default()), Cell::new(0));
    let run = |plan: &[Step]| {
        tenants.set(tenants.get() + 1);
        let tenant = format!("model {}", tenants.get());
        runtime.block_on(run::run(&clients, &tenant, plan, &mut tally.borrow_mut()))
    };
    match runner.run(&plan(), |plan| run(&plan).map_err(TestCaseError::fail)) {
        Ok(()) => {}
        Err(TestError::Fail(told, plan)) => {
            panic!("seed {seed}:\n{}", shortest(plan, &run).unwrap_or(told.to_string()))
        }
        Err(TestError::Abort(told)) => panic!("seed {seed}: {told}"),
    }
    let tally = tally.into_inner();
    say(&tally.told());
    if steps >= STEPS {
        tally.assert_complete();
    }
}

/// What the plan comes to without the steps that it can do without: proptest removes steps before it makes them simpler,
/// and not again afterwards.
fn shortest(mut plan: Vec<Step>, run: &impl Fn(&[Step]) -> Result<(), String>) -> Option<String> {
    let mut told = None;
    let mut n = plan.len();
    while n > 0 {
        n -= 1;
        let step = plan.remove(n);
        match run(&plan) {
            Ok(()) => plan.insert(n, step),
            Err(difference) => (told, n) = (Some(difference), plan.len()),
        }
    }
    told
}
