//! All tests over the wire, in one binary: they share the template database that the harness makes once.

mod bad_input;
mod compare_and_set;
mod concurrency;
mod digests;
mod documentation;
mod drivers;
mod in_backend;
mod isolation;
mod items;
mod payloads;
mod plans;
mod races;
mod replays;
mod sessions;
mod wrong_tenant;
