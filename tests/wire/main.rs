//! All tests over the wire, in one binary: they share the template database that the harness makes once.

mod concurrency;
mod digests;
mod in_backend;
mod isolation;
mod races;
