//! A snapshot that is held for long, by a report or a forgotten transaction, under append load: dead rows cannot be pruned, and
//! appends must not make any.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use agent_sessions_tests::{Append, Database, together};

use crate::crash::say;

const WRITERS: usize = 4;

/// How long the snapshot is held; 60 shows what hours do.
fn seconds() -> usize {
    let given = std::env::var("AGENT_SESSIONS_HELD_SECONDS").ok();
    given.map_or(4, |seconds| seconds.parse().expect("a number of seconds"))
}

async fn size(db: &Database, table: &str) -> i64 {
    let size = format!("select pg_relation_size('agent_sessions.{table}')");
    db.superuser().await.value(&size, &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_do_not_slow_down_under_a_held_snapshot() {
    let db = Database::create("held_snapshot").await;
    let writers = db.writers(WRITERS).await;
    // All into the same few rows: one session of all writers, and one of each.
    for session in ["shared", "0", "1", "2", "3"] {
        writers[0].create_session(session).await;
    }
    let (done, stopped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let load = tokio::spawn({
        let (done, stopped) = (done.clone(), stopped.clone());
        async move {
            together(WRITERS, |number| {
                let (writer, done, stopped) = (writers[number].clone(), done.clone(), stopped.clone());
                async move {
                    let own = number.to_string();
                    while !stopped.load(Ordering::Relaxed) {
                        for session in ["shared", &own] {
                            Append::to(session, r#"{"role":"user"}"#).run(&writer).await.expect("an append");
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            })
            .await;
        }
    });
    let rate = async || {
        let (begun, before) = (Instant::now(), done.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_secs(1)).await;
        (done.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64()
    };
    rate().await;
    let free = rate().await;
    let holder = db.reader().await;
    holder.begin("repeatable read").await;
    let shown: i64 = holder.value("select count(*) from agent_sessions.session_log('shared')", &[]).await;
    let (heads, items) = (size(&db, "session").await, size(&db, "session_item").await);
    let mut held = Vec::new();
    for _ in 0..seconds() {
        held.push(rate().await);
    }
    let (heads_after, items_after) = (size(&db, "session").await, size(&db, "session_item").await);
    let still: i64 = holder.value("select count(*) from agent_sessions.session_log('shared')", &[]).await;
    holder.commit().await;
    let again = rate().await;
    stopped.store(true, Ordering::Relaxed);
    load.await.expect("no append fails");

    let half = held.len() / 2;
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    let (first, last) = (mean(&held[..half]), mean(&held[half..]));
    say(&format!(
        "appends a second: {free:.0} before a snapshot is held, {first:.0} then {last:.0} in {} s of it, {again:.0} after it; \
         session {heads} to {heads_after} bytes, session_item {items} to {items_after}",
        held.len()
    ));
    assert_eq!(still, shown, "the snapshot is not held");
    assert!(items_after > items);
    assert!(heads_after <= heads + 2 * 8192, "session grows from {heads} to {heads_after} bytes");
    // With a counter in the head it falls to a fourth in half a minute. Other things run on the machine.
    assert!(last > first / 3.0, "{held:?}");
    let reader = db.reader().await;
    assert!(reader.verify("shared").await.ok);
}
