//! The one place that talks to PostgreSQL's C interface. Everything outside is safe Rust over these types.
//!
//! A backend runs one thread, and an ERROR of PostgreSQL arrives here as an unwinding panic which the guard around every
//! entry turns back into the same ERROR. So destructors run while it unwinds, and then call nothing that may raise: they restore
//! the user and delete memory, and leave open connections to the abort that follows.

pub mod call;
pub mod catalog;
pub mod direct;
pub mod invalidation;
mod memory;
pub mod nesting;
pub mod owner;
pub mod plan;
pub mod planner;
pub mod raise;
pub mod rows;
pub mod setting;
pub mod transaction;
pub mod trigger;
mod unguarded;
pub mod value;
pub mod wait;
