//! How often each call was made and what came of it: a generator that has stopped making something tests nothing of it.

use std::collections::BTreeMap;

use super::contract::Answer;

/// All that steps are called.
const CALLS: [&str; 27] = [
    "session_create",
    "session_set",
    "session_append",
    "session_append_batch",
    "session_revise",
    "session_retract",
    "session_pop",
    "session_delta",
    "session_branch",
    "session_flatten",
    "session_trim",
    "session_erase",
    "session_delete",
    "session_claim",
    "session_extend",
    "session_release",
    "session_break_lease",
    "session_expire",
    "session_history",
    "session_context",
    "session_log",
    "insert append",
    "insert revise",
    "insert retract",
    "insert retract_from",
    "insert delta",
    "delete",
];

/// What only reads.
const READING: [&str; 3] = ["session_history", "session_context", "session_log"];

/// The codes that the model knows.
pub const CODES: [&str; 13] = [
    "SE001", "SE002", "SE003", "SE004", "SE006", "SE007", "SE008", "SE009", "SE010", "SE011", "SE012", "SE013", "SE022",
];

/// How often something was done, and how it ended.
#[derive(Clone, Debug, Default)]
pub struct Count {
    pub run: usize,
    pub succeeded: usize,
    /// It succeeded and changed something.
    pub wrote: usize,
}

#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub steps: usize,
    pub calls: BTreeMap<&'static str, Count>,
    pub refusals: BTreeMap<&'static str, usize>,
}

impl Tally {
    pub fn count(&mut self, what: &'static str, answer: &Answer, wrote: bool) {
        self.steps += 1;
        let count = self.calls.entry(what).or_default();
        count.run += 1;
        match answer {
            Ok(_) => {
                count.succeeded += 1;
                count.wrote += usize::from(wrote);
            }
            Err(refusal) => *self.refusals.entry(refusal.code).or_default() += 1,
        }
    }

    pub fn told(&self) -> String {
        let mut told = format!("{} steps", self.steps);
        for (call, Count { run, succeeded, wrote }) in &self.calls {
            told.push_str(&format!("\n  {call}: {run} run, {succeeded} succeeded, {wrote} wrote"));
        }
        let refusals: Vec<String> = self.refusals.iter().map(|(code, times)| format!("{code} {times}")).collect();
        format!("{told}\n  {}", refusals.join(", "))
    }

    /// Every call succeeded, every one that writes has written, and every code was seen.
    pub fn assert_complete(&self) {
        for call in CALLS {
            let count = self.calls.get(call).cloned().unwrap_or_default();
            assert!(count.succeeded > 0, "{call} never succeeds");
            assert!(count.wrote > 0 || READING.contains(&call), "{call} never changes anything");
        }
        for code in CODES {
            assert!(self.refusals.contains_key(code), "nothing is refused with {code}");
        }
    }
}
