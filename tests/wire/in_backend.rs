//! Runs what is tested inside the backend: the `#[pg_test]` functions, which the test build of the library brings in
//! schema `tests`, each in a transaction that is rolled back.

use std::io::Write;

use agent_sessions_tests::{Cluster, Connection};

const DATABASE: &str = "in_backend";

#[tokio::test(flavor = "multi_thread")]
async fn every_in_backend_test_passes() {
    let cluster = Cluster::in_backend();
    let admin = cluster.connect(&cluster.superuser, "postgres").await;
    admin.run(&format!("drop database if exists {DATABASE} with (force)")).await;
    admin.run(&format!("create database {DATABASE} template template0 encoding 'UTF8'")).await;
    let tests = cluster.connect(&cluster.superuser, DATABASE).await;
    tests.run("create extension agent_sessions").await;

    let names = names(&tests).await;
    assert!(
        !names.is_empty(),
        "the library on AGENT_SESSIONS_IN_BACKEND_PORT brings no test: it needs feature pg_test"
    );
    let mut failures = Vec::new();
    for name in &names {
        tests.run("begin").await;
        if let Err(error) = tests.batch_execute(&format!("select tests.{name}()")).await {
            failures.push(format!("tests.{name}: {error:?}"));
        }
        tests.run("rollback").await;
    }
    // The test runner keeps what println! says of a test that passes.
    writeln!(std::io::stdout(), "{} tests ran inside the backend", names.len()).expect("standard output is open");
    assert!(failures.is_empty(), "{} of {} failed\n{}", failures.len(), names.len(), failures.join("\n"));
}

async fn names(tests: &Connection) -> Vec<String> {
    let listed = "select quote_ident(proname) from pg_proc
                  where pronamespace = to_regnamespace('tests') and pronargs = 0 order by proname";
    let rows = tests.query(listed, &[]).await.expect("the functions of schema tests");
    rows.iter().map(|row| row.get(0)).collect()
}
