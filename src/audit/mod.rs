//! The audit trail: chains of events, one per tenant and stream, that anyone can verify.
//!
//! An append reads straight down: `append` checks its arguments and inserts, the trigger in `rule` locks the chain, finds its
//! tail, knows a replay, builds the text that is hashed, and links it.

pub mod anchor;
pub mod append;
pub mod chain;
pub mod import;
pub mod proof;
pub mod prune;
pub mod rule;
pub mod track;
pub mod verify;
