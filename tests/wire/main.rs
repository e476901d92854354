//! All tests over the wire, in one binary: they share the template database that the harness makes once.

mod bad_input;
mod compare_and_set;
mod concurrency;
mod context;
mod digests;
mod documentation;
mod drivers;
mod dump;
mod hardening;
mod in_backend;
mod install;
mod isolation;
mod items;
mod leases;
mod model;
mod payloads;
mod plans;
mod races;
mod raw_sql;
mod replays;
mod roles;
mod sessions;
mod streaming;
mod tamper;
mod tenants;
mod wrong_tenant;
