//! What was erased is in no data file any more, once VACUUM FULL has rewritten the tables.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agent_sessions_tests::{Append, Connection, Database};
use uuid::Uuid;

use super::{assert_verifies, branch, call, delete};

/// How long what still looks at the old rows may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Large enough to be moved out of the row, whether it is compressed or not.
const LARGE: usize = 100_000;

/// Text in which no compression finds anything to shorten.
fn noise(length: usize) -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let bytes = (0..).flat_map(|_| Uuid::new_v4().into_bytes()).filter(|byte| *byte < 248);
    bytes.take(length).map(|byte| char::from(LETTERS[usize::from(byte) % LETTERS.len()])).collect()
}

/// Contents that can be told apart in a file: each begins with a marker, before which no compression has seen anything.
struct Markers {
    run: String,
}

impl Markers {
    fn new() -> Self {
        Self { run: noise(16) }
    }

    /// The marker of a name, of eight letters.
    fn of(&self, name: &str) -> String {
        assert_eq!(name.len(), 8, "{name}");
        format!("{}{name}", self.run)
    }

    /// The names whose markers are in a file.
    fn found_in(&self, bytes: &[u8]) -> impl Iterator<Item = String> {
        let run = self.run.as_bytes();
        // Most positions of a file are told by one byte.
        let starts = (0..bytes.len()).filter(|at| bytes[*at] == run[0] && bytes[*at..].starts_with(run));
        starts
            .filter_map(|at| bytes.get(at + run.len()..at + run.len() + 8))
            .map(|name| String::from_utf8_lossy(name).into())
    }
}

/// The files that hold anything of the database: all of the server's but the WAL and other databases' own.
fn data_files(directory: &Path, database: u32) -> Vec<PathBuf> {
    let own = directory.join("base").join(database.to_string());
    let mut folders = vec![directory.to_owned(), own];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("a readable folder").path();
            match path.is_dir() {
                true if folder == directory && (path.ends_with("base") || path.ends_with("pg_wal")) => {}
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files
}

/// The names of the markers that the data files hold now.
async fn found(superuser: &Connection, markers: &Markers) -> BTreeSet<String> {
    superuser.run("checkpoint").await;
    let directory: String = superuser.value("select current_setting('data_directory')", &[]).await;
    let database: u32 = superuser.value("select oid from pg_database where datname = current_database()", &[]).await;
    let mut names = BTreeSet::new();
    for file in data_files(Path::new(&directory), database) {
        match fs::read(&file) {
            Ok(bytes) => names.extend(markers.found_in(&bytes)),
            // Others use the server, too.
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{}", file.display()),
        }
    }
    names
}

fn names(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|name| (*name).to_owned()).collect()
}

/// Every place where a content may stand: in the row, compressed there, outside of it, in a revision, in attrs, in chunks.
async fn write(writer: &Connection, markers: &Markers) {
    let json = |name: &str, rest: &str| format!("\"{}{rest}\"", markers.of(name));
    let attrs = |name: &str, rest: &str| format!("{{\"{}\": \"{rest}\"}}", markers.of(name));
    let (random, same) = (noise(LARGE), "x".repeat(LARGE));
    for (item_id, payload, described) in [
        ("trimmed", json("trimmed0", &random), attrs("attrstrm", "")),
        ("short", json("inlined0", ""), attrs("attrsin0", "")),
        ("large", json("toasted0", &random), attrs("attrsout", &random)),
        ("same", json("squeezed", &same), attrs("attrssqz", &same)),
        ("kept", json("keptitem", ""), attrs("keptattr", "")),
    ] {
        for session in ["s", "deleted"] {
            let payload = if session == "s" { payload.clone() } else { json("deleted0", &random) };
            let append = Append::to(session, &payload).item_id(item_id).attrs(&described).on_missing("create");
            append.run(writer).await.expect("an append");
        }
    }
    // Attrs that many entries have are what statistics keep.
    for _ in 0..50 {
        Append::to("s", "0").tag("common").attrs(&attrs("attrscom", "")).run(writer).await.expect("an append");
    }
    let revise = "select agent_sessions.session_revise('s', payload => $1::text::json, item_id => 'short',
                  attrs => $2::text::jsonb)";
    for (payload, described) in [("revised0", "attrsrv0"), ("revised1", "attrsrv1")] {
        writer.query(revise, &[&json(payload, ""), &attrs(described, "")]).await.expect("a revision");
    }
    // Of what a branch inherits from, the rest is deleted with it.
    for payload in [json("inherite", ""), json("notneede", &random)] {
        Append::to("source", &payload).on_missing("create").run(writer).await.expect("an append");
    }
    branch(writer, "source", 0, "heir").await;
    for (item_id, chunks) in [("open", ["chunkin0", "chunkout"]), ("closed", ["chunkin1", "chunkin2"])] {
        let open = "select agent_sessions.session_append('s', $1::text::json, item_id => $2::text, open => true)";
        let target: i64 = writer.value(open, &[&json("openitem", ""), &item_id]).await;
        for (number, name) in (0..).zip(chunks) {
            let chunk = format!("{}{}", markers.of(name), if name == "chunkout" { &random } else { "" });
            let send = "select agent_sessions.session_delta('s', $1::bigint, $2::int, $3::text)";
            assert_eq!(writer.value::<i32>(send, &[&target, &number, &chunk]).await, number + 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn erased_trimmed_and_deleted_bytes_are_in_no_data_file() {
    let db = Database::create("erased_bytes").await;
    let (writer, superuser) = (db.writer().await, db.superuser().await);
    let markers = Markers::new();
    write(&writer, &markers).await;
    superuser.run("analyze").await;
    let kept = ["keptitem", "keptattr", "inherite"];
    let mut gone = vec![
        "inlined0", "attrsin0", "toasted0", "attrsout", "trimmed0", "attrstrm", "deleted0", "attrscom", "revised0",
        "attrsrv0", "revised1", "attrsrv1", "openitem", "chunkin0", "chunkout", "chunkin1", "chunkin2", "notneede",
    ];
    let by_lz4 = "select attcompression = 'l' from pg_attribute
                  where attrelid = 'agent_sessions.session_item'::regclass and attname = 'payload'";
    if superuser.value(by_lz4, &[]).await {
        // pglz writes a byte of its own among every eight: what it has compressed is not to be found.
        gone.extend(["squeezed", "attrssqz"]);
    }
    assert_eq!(found(&superuser, &markers).await, names(&[&kept[..], &gone[..]].concat()), "each can be found");

    // The branch reads what it inherits, and erases it there.
    let last: i64 = writer.value("select next_position - 1 from agent_sessions.session_get('s')", &[]).await;
    branch(&writer, "s", last, "b").await;
    for (session, item_id, entries) in [("s", "short", 3), ("b", "large", 1), ("b", "same", 1), ("s", "open", 1)] {
        let erase = format!("session_erase('{session}', item_id => '{item_id}')");
        assert_eq!(call(&writer, &erase).await, entries, "{erase}");
    }
    call(&writer, "session_revise('s', '0', item_id => 'closed')").await;
    call(&writer, "session_erase('s', item_id => 'closed')").await;
    let common = "select agent_sessions.session_erase('s', target => position)
                  from agent_sessions.session_history('s', tags => '{common}')";
    assert_eq!(writer.query(common, &[]).await.expect("erasures").len(), 50);
    delete(&writer, "b").await;
    assert_eq!(call(&writer, "session_trim('s', 1)").await, 1);
    delete(&writer, "deleted").await;
    delete(&writer, "source").await;
    let entries = writer.log("s").await.len() as i64;
    // Item, revisions and chunks' items: 3 + 1 + 1 + 1 + 2, and 50 by their positions.
    assert_verifies(&writer, "s", entries, 58).await;

    let deadline = Instant::now() + PATIENCE;
    loop {
        superuser.run("vacuum full agent_sessions.session_item").await;
        superuser.run("vacuum full agent_sessions.session_delta").await;
        let left = found(&superuser, &markers).await;
        if left == names(&kept) {
            break;
        }
        // Whatever holds a snapshot, like an ANALYZE of the server's own, makes VACUUM copy what that can still see.
        assert!(Instant::now() < deadline, "{left:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
