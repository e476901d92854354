//! All tests over the wire, in one binary: they share the template database that the harness makes once.

mod compare_and_set;
mod concurrency;
mod digests;
mod in_backend;
mod isolation;
mod races;
mod replays;
mod wrong_tenant;
