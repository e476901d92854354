//! Reading through a branch's ancestors: what every reader says of a branch is what it says of a flat session that holds the
//! same entries. And what a branch costs: the same at any length.

use std::io::Write;

use agent_sessions_tests::{Connection, Database};
use tokio_postgres::types::ToSql;

use crate::branches::lineage;
use crate::items::Random;
use crate::streaming::wal;

const KINDS: [&str; 3] = ["message", "tool", "event"];
const TAGS: [&str; 3] = ["red", "green", "blue"];

/// Everything of an item but its digest, which its session is part of.
const ITEM: &str = "(h.position, h.op, h.kind, h.item_id, h.tag, h.author, h.payload::text, h.attrs, h.created_at,
    h.revised_at_position, h.open, h.delta_text)::text";

/// The arguments of session_history; None is not given.
#[derive(Clone, Debug, Default)]
struct Page {
    after: Option<i64>,
    before: Option<i64>,
    max_rows: Option<i32>,
    newest_first: Option<bool>,
    kinds: Option<Vec<&'static str>>,
    tags: Option<Vec<&'static str>>,
    item_ids: Option<Vec<String>>,
    attrs: Option<&'static str>,
}

impl Page {
    /// Any mix of arguments about a log with so many entries.
    fn any(random: &mut Random, entries: i64) -> Page {
        let few = |random: &mut Random, words: &[&'static str]| -> Vec<&'static str> {
            (0..random.below(3)).map(|_| random.pick(words)).collect()
        };
        let bound = |random: &mut Random| random.below(entries as usize + 3) as i64 - 1;
        let mut page = Page::default();
        if random.one_in(2) {
            page.after = Some(bound(random));
        }
        if random.one_in(2) {
            page.before = Some(bound(random));
        }
        if random.one_in(2) {
            page.max_rows = Some(random.below(12) as i32);
        }
        if random.one_in(2) {
            page.newest_first = Some(random.one_in(2));
        }
        if random.one_in(3) {
            page.kinds = Some(few(random, &["message", "tool", "absent"]));
        }
        if random.one_in(3) {
            page.tags = Some(few(random, &["red", "green", "absent"]));
        }
        if random.one_in(4) {
            page.item_ids = Some((0..random.below(8)).map(|_| format!("i{}", bound(random))).collect());
        }
        if random.one_in(4) {
            page.attrs = Some(random.pick(&["{\"n\": 0}", "{\"n\": 1}", "{}"]));
        }
        page
    }

    async fn history(&self, reader: &Connection, session: &str) -> Vec<String> {
        let sql = format!(
            "select {ITEM} from agent_sessions.session_history(session_id => $1::text, after => $2::bigint,
               before => $3::bigint, max_rows => $4::int, newest_first => $5::boolean, kinds => $6::text[],
               tags => $7::text[], item_ids => $8::text[], attrs => $9::text::jsonb) h"
        );
        let given: &[&(dyn ToSql + Sync)] = &[
            &session,
            &self.after,
            &self.before,
            &self.max_rows,
            &self.newest_first,
            &self.kinds,
            &self.tags,
            &self.item_ids,
            &self.attrs,
        ];
        texts(reader, &sql, given).await
    }

    async fn log(&self, reader: &Connection, session: &str) -> Vec<String> {
        let sql = "select (position, op, target, kind, item_id, tag, author, payload::text, attrs, created_at)::text
                   from agent_sessions.session_log(session_id => $1::text, after => $2::bigint, before => $3::bigint,
                     max_rows => $4::int, newest_first => $5::boolean)";
        texts(reader, sql, &[&session, &self.after, &self.before, &self.max_rows, &self.newest_first]).await
    }

    async fn context(&self, reader: &Connection, session: &str) -> Vec<String> {
        let sql =
            format!("select {ITEM} from agent_sessions.session_context(session_id => $1::text, max_rows => $2::int) h");
        texts(reader, &sql, &[&session, &self.max_rows]).await
    }
}

pub async fn texts(reader: &Connection, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<String> {
    let rows = reader.query(sql, parameters).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

async fn stats(reader: &Connection, session: &str) -> Vec<String> {
    texts(reader, "select s::text from agent_sessions.session_stats(session_id => $1::text) s", &[&session]).await
}

pub async fn next_position(reader: &Connection, session: &str) -> i64 {
    reader.value("select next_position from agent_sessions.session_get(session_id => $1::text)", &[&session]).await
}

/// A session without ancestors that holds the entries of another, one by one, with their times.
pub async fn flatten(owner: &Connection, session: &str, flat: &str) {
    owner.create_session(flat).await;
    let copy = "insert into agent_sessions.session_item
          (sid, position, op, kind, item_id, tag, author, target, payload, attrs, created_at)
        select f.sid, l.position, l.op, l.kind, l.item_id, l.tag, l.author, l.target, l.payload, l.attrs, l.created_at
        from agent_sessions.session f, agent_sessions.session_log(session_id => $1::text) l
        where f.session_id = $2::text order by l.position";
    let copied = owner.execute(copy, &[&session, &flat]).await.expect("the entries once more");
    assert_eq!(copied as i64, next_position(owner, session).await, "an entry of {session} was not taken again");
}

/// All readers, with many mixes of arguments.
pub async fn assert_equal(reader: &Connection, random: &mut Random, branch: &str, flat: &str, mixes: usize) {
    let entries = next_position(reader, branch).await;
    assert_eq!(next_position(reader, flat).await, entries);
    let whole = [Page::default(), Page { newest_first: Some(true), ..Page::default() }];
    let pages = whole.into_iter().chain((0..mixes).map(|_| Page::any(random, entries))).collect::<Vec<_>>();
    for page in &pages {
        let of = format!("{branch} with {page:?}");
        assert_eq!(page.history(reader, branch).await, page.history(reader, flat).await, "history of {of}");
        assert_eq!(page.log(reader, branch).await, page.log(reader, flat).await, "log of {of}");
        assert_eq!(page.context(reader, branch).await, page.context(reader, flat).await, "context of {of}");
    }
    assert_eq!(stats(reader, branch).await, stats(reader, flat).await, "{branch}");
    for session in [branch, flat] {
        reader.assert_dense(session, entries).await;
    }
}

/// The history read page by page, each behind the last row of the one before.
async fn paged(reader: &Connection, session: &str, rows: i32, newest_first: bool) -> Vec<String> {
    let sql = format!(
        "select {ITEM}, h.position from agent_sessions.session_history(session_id => $1::text, after => $2::bigint,
           before => $3::bigint, max_rows => $4::int, newest_first => $5::boolean) h"
    );
    let (mut after, mut before, mut all) = (None::<i64>, None::<i64>, Vec::new());
    loop {
        let page = reader.query(&sql, &[&session, &after, &before, &rows, &newest_first]).await.expect("a page");
        let Some(last) = page.last() else { return all };
        assert!(page.len() <= rows as usize);
        let last = Some(last.get::<_, i64>(1));
        if newest_first {
            before = last
        } else {
            after = last
        }
        all.extend(page.iter().map(|row| row.get::<_, String>(0)));
    }
}

pub async fn assert_pages(reader: &Connection, branch: &str, flat: &str) {
    for newest_first in [false, true] {
        let whole = Page { newest_first: Some(newest_first), ..Page::default() }.history(reader, flat).await;
        for rows in [1, 2, 7, 100] {
            assert_eq!(paged(reader, branch, rows, newest_first).await, whole, "{branch} by {rows}, {newest_first}");
        }
    }
}

/// Pops until nothing is left, in step.
async fn assert_pops(writer: &Connection, branch: &str, flat: &str) {
    let sql = format!("select {ITEM} from agent_sessions.session_pop(session_id => $1::text) h");
    loop {
        let (popped, expected) = (texts(writer, &sql, &[&branch]).await, texts(writer, &sql, &[&flat]).await);
        assert_eq!(popped, expected, "{branch}");
        if popped.is_empty() {
            break;
        }
    }
    let entries = next_position(writer, flat).await;
    for session in [branch, flat] {
        assert!(writer.history(session).await.is_empty());
        writer.assert_dense(session, entries).await;
    }
}

/// One change of a session, drawn at random.
pub async fn change(writer: &Connection, random: &mut Random, session: &str) {
    let next = next_position(writer, session).await;
    let live: Vec<i64> = writer.history(session).await.iter().map(|item| item.position).collect();
    let kind = random.pick(&KINDS);
    let item_id = if random.one_in(2) { format!("'i{next}'") } else { "null".into() };
    let tag = if random.one_in(2) { format!("'{}'", random.pick(&TAGS)) } else { "null".into() };
    let attrs = if random.one_in(2) { format!("'{{\"n\": {}}}'", random.below(3)) } else { "null".into() };
    let open = random.one_in(6);
    let append = format!(
        "session_append($1::text, '{{\"at\":{next}}}', kind => '{kind}', item_id => {item_id}, tag => {tag},
           author => {tag}, attrs => {attrs}, open => {open})"
    );
    let call = match (random.below(16), live.as_slice()) {
        (0..=5, _) | (_, []) => append,
        (6..=7, _) => format!(
            "session_append_batch($1::text, '[{{\"payload\":{next}}},{{\"payload\":1,\"tag\":\"red\"}},{{\"payload\":2}}]')"
        ),
        (8..=10, live) => {
            let target = random.pick(live);
            format!("session_revise($1::text, '{{\"revised\":{next}}}', target => {target}, attrs => {attrs})")
        }
        (11..=12, live) => {
            format!("session_retract($1::text, targets => array[{}, {}])", random.pick(live), random.pick(live))
        }
        (13, live) => {
            let nearly_all = live.len() - 1 - random.below(live.len().min(5));
            format!("session_retract($1::text, from_target => {})", live[nearly_all])
        }
        (14, live) => {
            format!("session_append($1::text, '\"sum\"', kind => 'summary', kept_from => {})", random.pick(live))
        }
        _ => "session_pop($1::text)".into(),
    };
    let sql = format!("select agent_sessions.{call}");
    writer.query(&sql, &[&session]).await.unwrap_or_else(|error| panic!("{session}: {sql}\n{error:?}"));
}

/// Sessions that branch off each other anywhere, also inside of what they inherit, and are written to all the while.
pub async fn family(writer: &Connection, random: &mut Random, name: &str) -> Vec<String> {
    let mut sessions = vec![format!("{name} 0")];
    writer.create_session(&sessions[0]).await;
    for number in 1..=12 {
        for _ in 0..random.below(14) {
            let session = random.pick(&sessions);
            change(writer, random, &session).await;
        }
        // The newest half of the time: long chains.
        let source = if random.one_in(2) { random.pick(&sessions) } else { sessions[number - 1].clone() };
        let session = format!("{name} {number}");
        let end = next_position(writer, &source).await;
        // Every fourth leaves at the end, and every sixteenth at 0.
        let fork = match random.below(16) {
            0..=3 => end,
            4 => 0,
            _ => random.below(end as usize + 1) as i64,
        };
        branch_at(writer, &source, &session, fork).await;
        sessions.push(session);
    }
    for _ in 0..40 {
        let session = random.pick(&sessions);
        change(writer, random, &session).await;
    }
    sessions
}

/// A branch by plain SQL, which may leave its source at 0, too.
async fn branch_at(writer: &Connection, source: &str, session: &str, fork: i64) {
    let sql = "insert into agent_sessions.session (session_id, branched_from, fork_position)
               select $2::text, sid, $3::bigint from agent_sessions.session where session_id = $1::text";
    assert_eq!(writer.execute(sql, &[&source, &session, &fork]).await.expect("a branch"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_say_of_a_branch_what_they_say_of_a_flat_session() {
    let db = Database::create("branch_readers").await;
    let (writer, reader, owner) = (db.writer().await, db.reader().await, db.owner().await);
    for seed in 1..=5 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let sessions = family(&writer, &mut random, &seed.to_string()).await;
        for session in &sessions {
            let flat = format!("flat {session}");
            flatten(&owner, session, &flat).await;
            assert_equal(&reader, &mut random, session, &flat, 60).await;
            assert_pages(&reader, session, &flat).await;
            // What is written to both from here on has the same effect.
            let mut same = Random(random.below(1_000) as u64);
            let mut again = Random(same.0);
            for _ in 0..6 {
                change(&writer, &mut same, session).await;
                change(&writer, &mut again, &flat).await;
            }
            let untimed = "select (position, op, target, kind, item_id, tag, payload::text, attrs)::text
                           from agent_sessions.session_log(session_id => $1::text)";
            assert_eq!(texts(&reader, untimed, &[session]).await, texts(&reader, untimed, &[&flat]).await, "{session}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_reach_through_sixty_four_branches() {
    const DEPTH: usize = 64;
    let db = Database::create("branch_depth").await;
    let (writer, reader, owner) = (db.writer().await, db.reader().await, db.owner().await);
    let mut random = Random(64);
    let name = |depth: usize| format!("d{depth}");
    writer.create_session(&name(0)).await;
    for depth in 0..DEPTH {
        // Some add nothing of their own.
        for _ in 0..random.below(5) {
            change(&writer, &mut random, &name(depth)).await;
        }
        writer.branch(&name(depth), &name(depth + 1)).await;
        // The source goes its own way behind the fork.
        change(&writer, &mut random, &name(depth)).await;
    }
    change(&writer, &mut random, &name(DEPTH)).await;
    let below = lineage(&reader, &name(DEPTH)).await;
    assert_eq!(below.len(), DEPTH + 1);
    for (depth, row) in below.iter().enumerate() {
        assert!(row.starts_with(&format!("{depth} d{} ", DEPTH - depth)), "{row}");
    }
    for depth in [1, 2, DEPTH / 2, DEPTH - 1, DEPTH] {
        let flat = format!("flat {depth}");
        flatten(&owner, &name(depth), &flat).await;
        assert_equal(&reader, &mut random, &name(depth), &flat, 60).await;
        assert_pages(&reader, &name(depth), &flat).await;
        // Each branch is popped empty, and the next one still reads its own.
        assert_pops(&writer, &name(depth), &flat).await;
    }
}

/// Where a fork may lie, by hand: each case with the parts that the log is then made of.
#[tokio::test(flavor = "multi_thread")]
async fn forks_may_lie_anywhere_in_what_is_inherited() {
    let db = Database::create("branch_forks").await;
    let (writer, owner) = (db.writer().await, db.owner().await);
    let mut random = Random(1);
    writer.create_session("root").await;
    for number in 0..6 {
        writer.append("root", &number.to_string()).await;
    }
    writer.create_session("empty").await;
    for (source, fork, session) in [
        ("root", 4, "a"),
        // At the source's own fork, which has no entries yet; before it; at its beginning.
        ("a", 4, "of none"),
        ("a", 2, "below"),
        ("a", 0, "at zero"),
        ("empty", 0, "of empty"),
        ("of empty", 0, "of empty of empty"),
        ("below", 2, "below at its end"),
        ("below", 1, "below again"),
        ("at zero", 0, "zero of zero"),
    ] {
        branch_at(&writer, source, session, fork).await;
        assert_eq!(writer.append(session, &format!("\"{session}\"")).await, fork);
        writer.run(&format!("select agent_sessions.session_retract('{session}', targets => '{{0}}')")).await;
    }
    for (session, shown) in [
        ("a", "1 1,2 2,3 3,4 \"a\""),
        ("of none", "1 1,2 2,3 3,4 \"of none\""),
        ("below", "1 1,2 \"below\""),
        ("at zero", ""),
        ("of empty", ""),
        ("of empty of empty", ""),
        ("below at its end", "1 1,2 \"below at its end\""),
        ("below again", "1 \"below again\""),
        ("zero of zero", ""),
    ] {
        let history = crate::branches::shown(&writer, session).await;
        assert_eq!(history.join(","), shown, "{session}");
        let flat = format!("flat {session}");
        flatten(&owner, session, &flat).await;
        assert_equal(&writer, &mut random, session, &flat, 30).await;
    }
    assert_eq!(lineage(&writer, "below again").await, ["0 below again 1", "1 below 2", "2 a 4", "3 root -"]);
    // At either end of what each of a chain has added.
    for fork in 0..=next_position(&writer, "of none").await {
        let session = format!("cut {fork}");
        branch_at(&writer, "of none", &session, fork).await;
        let flat = format!("flat {session}");
        flatten(&owner, &session, &flat).await;
        assert_equal(&writer, &mut random, &session, &flat, 10).await;
    }
}

/// The middle one of what nine branches write to the WAL; a page image after a checkpoint is in one of them at most.
async fn branch_wal(writer: &Connection, source: &str) -> i64 {
    let mut bytes = Vec::new();
    for number in 0..9 {
        let call = format!("agent_sessions.session_branch('{source}', new_session_id => '{source} branch {number}')");
        bytes.push(wal(writer, &format!("select {call}")).await);
    }
    bytes.sort();
    bytes[bytes.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_costs_the_same_at_any_length() {
    const LONG: i64 = 200_000;
    let db = Database::create("branch_cost").await;
    let writer = db.writer().await;
    for (session, entries) in [("short", 10), ("long", LONG)] {
        writer.create_session(session).await;
        let batch = "select count(*) from agent_sessions.session_append_batch($1::text,
                       (select json_agg(json_build_object('payload', n)) from generate_series(1, $2::bigint) n))";
        let mut left = entries;
        while left > 0 {
            left -= writer.value::<i64>(batch, &[&session, &left.min(100_000)]).await;
        }
    }
    let (short, long) = (branch_wal(&writer, "short").await, branch_wal(&writer, "long").await);
    writeln!(std::io::stdout(), "a branch of 10 items: {short} bytes of WAL; of {LONG}: {long}")
        .expect("standard output is open");
    assert!(short > 0 && long <= short * 3 / 2 + 200, "{short} and {long}");
    let size = "select count(*) from agent_sessions.session_item";
    assert_eq!(writer.value::<i64>(size, &[]).await, LONG + 10, "an entry was copied");
    assert_eq!(next_position(&writer, "long branch 8").await, LONG);
    let last = Page { max_rows: Some(1), newest_first: Some(true), ..Page::default() };
    let source = last.history(&writer, "long").await;
    assert_eq!(last.history(&writer, "long branch 8").await, source);
    assert!(source[0].starts_with("(199999,"), "{source:?}");
}
