//! The harness of the wire tests. Every test gets a database of its own, copied from one template in which a
//! non-superuser owner ran `CREATE EXTENSION`, on the private cluster that `make test` starts.
//!
//! ```text
//! #[tokio::test(flavor = "multi_thread")]
//! async fn a_stale_append_is_told_where_the_log_ends() {
//!     let db = Database::create("stale_append").await;
//!     let writer = db.connect(Role::Writer).await;            // Owner, Superuser, Writer, Reader, Stranger, Named(..)
//!     writer.create_session("s").await;
//!     writer.append("s", r#"{"a":1}"#).await;                 // -> 0, the position
//!     let refused = Append::to("s", "{}").expected_position(0).run(&writer).await;
//!     let error = assert_sqlstate!(refused, "SE007");
//!     assert_eq!(detail(&error), json!({"expected": 0, "actual": 1}));
//!     writer.assert_dense("s", 1).await;                      // positions 0..1, and session_verify says ok
//! }
//! ```
//!
//! - `Connection` is a `tokio_postgres::Client` with the helpers above; `begin`, `commit` and `rollback` take an isolation
//!   level by name. SQL of a test's own goes through `query`, `query_one`, `batch_execute` as usual.
//! - `db.role("auditor", Some("reader"))` makes a role that only this database uses, `Role::Named` connects as it.
//! - `db.wait_until_blocked(connection.pid)` returns when that backend waits for a lock: force a wait, never sleep.
//! - `together(8, |n| async move { .. })` runs tasks that start at the same moment and returns their results in order.
//! - `assert_one_winner(results, "SE007", &detail)` returns the one success; every other result has that code and DETAIL.
//! - `db.program("pg_dump", Role::Owner)` is a command of the server's own version with host, port, user and database set.
//! - `OwnCluster::start(&[])` is a server of the test's own, to `crash()` and `start_again()`; all else is on the shared one.
//! - `OwnCluster::with_files_of(&Installation::under_test())` has files of its own, to install other versions' scripts into.
//! - `Catalogue::of(&connection)` is all that the catalogue says of the extension; two of them tell their `differences`.
//! - `db.pooler(3)` is a pooler in front of it, where `connect` goes to as to a server.
//! - `transcripts()` are the NDJSON files under test: real ones beside the clone if present, else the project's examples.
//! - A test holds at most 30 connections, since all tests share one server.

mod support {
    pub mod admin;
    pub mod branch;
    pub mod catalogue;
    pub mod cluster;
    pub mod connection;
    pub mod database;
    pub mod errors;
    pub mod installation;
    pub mod own_cluster;
    pub mod own_directory;
    pub mod pooler;
    pub mod program;
    pub mod race;
    pub mod scratch;
    pub mod session;
    pub mod small_disk;
    pub mod together;
    pub mod transcripts;
}

pub use support::branch::{Branch, Branched};
pub use support::catalogue::{About, Catalogue};
pub use support::cluster::{Cluster, setting};
pub use support::connection::Connection;
pub use support::database::{Database, Role};
pub use support::errors::{detail, sqlstate};
pub use support::installation::Installation;
pub use support::own_cluster::OwnCluster;
pub use support::pooler::Pooler;
pub use support::program::{Program, Ran};
pub use support::race::assert_one_winner;
pub use support::scratch::Scratch;
pub use support::session::{Append, Item, Verdict};
pub use support::together::together;
pub use support::transcripts::{Transcript, examples, transcripts};
pub use tokio_postgres::Error;
