//! Tests that need a backend, and no second connection: what the engine's own pieces promise each other.
//!
//! Compiled in with the feature `pg_test` only; the wire tests run each function of schema `tests` in a transaction of its
//! own, which is rolled back.

mod bindings;
mod errors;
mod handoffs;
mod plans;
mod values;
