//! How long a large session takes, and how much memory.

use std::io::Write;
use std::time::Instant;

use super::*;
use crate::long_logs;

/// What a backend needs above what it had, however long the log is.
const EXPORT_MEMORY: u64 = 16 << 10;

/// The highest resident memory of a backend so far, in kB.
fn peak(pid: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn say(text: &str) {
    writeln!(std::io::stdout(), "{text}").expect("standard output is open");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_entries_take_seconds() {
    let db = long_logs::database("import_long").await;
    let writer = db.writer().await;
    long_logs::append(&writer, "s", 0, long_logs::ITEMS).await;

    let reader = db.reader().await;
    // Pages of the table that it reads count as its memory: it reads them first.
    reader.run("select sum(length(payload::text)) from agent_sessions.session_log('s')").await;
    let (before, began) = (peak(reader.pid), Instant::now());
    reader.run("select count(*) from agent_sessions.session_export('s')").await;
    let took = began.elapsed();
    let grew = peak(reader.pid).zip(before).map(|(after, before)| after - before);
    say(&format!(
        "session_export of {} entries: {} ms, {grew:?} kB more at the height",
        long_logs::ITEMS,
        took.as_millis()
    ));
    assert!(grew.is_none_or(|grew| grew < EXPORT_MEMORY), "{grew:?}");

    let lines = export(&reader, "s").await;
    let began = Instant::now();
    super::program::assert_whole(&lines).await;
    say(&format!("a program of Python checks it in {} ms", began.elapsed().as_millis()));
    let importer = db.writer().await;
    let bytes: usize = lines.iter().map(|line| line.len() + 1).sum();
    let (before, began) = (peak(importer.pid), Instant::now());
    assert_eq!(try_import_as(&importer, &lines, Some("t"), None).await.expect("an import"), long_logs::ITEMS);
    let took = began.elapsed();
    let grew = peak(importer.pid).zip(before).map(|(after, before)| after - before);
    say(&format!("session_import of {} MB: {} ms, {grew:?} kB more at the height", bytes >> 20, took.as_millis()));
    assert!(took.as_secs() < 60, "{took:?}");
    importer.assert_dense("t", long_logs::ITEMS).await;
}
