//! All tests over the wire, in one binary: they share the template database that the harness makes once.

mod in_backend;
