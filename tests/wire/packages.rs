//! What the extension is packed into.

mod debian;
mod dockerfile;
mod pgxn;
mod versions;

use std::path::{Path, PathBuf};

use agent_sessions_tests::{Cluster, Program};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: &str) -> String {
    let file = project().join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// What pg_config of the server under test says.
async fn config(what: &str) -> PathBuf {
    let said = Program::new(&Cluster::programs().join("pg_config")).args([what]).output().await;
    PathBuf::from(said.trim())
}
