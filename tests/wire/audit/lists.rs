//! What audit_list, audit_stats and audit_export show, against a plain model of it.

use std::collections::BTreeMap;
use std::io::Write;

use agent_sessions_tests::{Connection, Database, assert_sqlstate, detail};
use serde_json::{Value, json};

use super::{Event, array_of, auditor, count, export, import, in_tenant, texts};
use crate::items::Random;

/// In the order of their bytes.
const STREAMS: [&str; 4] = ["", "B", "a", "ä"];
const LABELS: [&str; 3] = ["x", "y", "z"];
const STATUSES: [&str; 3] = ["ok", "error", "OK"];
const ATTRS: [&str; 4] = [r#"{"k":0}"#, r#"{"k":1,"x":[1,2]}"#, r#"{"k":0,"x":[2]}"#, "{}"];
/// Filters on attrs, each with those of ATTRS that contain it.
const CONTAINED: [(&str, &[usize]); 5] = [
    (r#"{"k":0}"#, &[0, 2]),
    (r#"{"x":[2]}"#, &[1, 2]),
    ("{}", &[0, 1, 2, 3]),
    (r#"{"k":0,"x":[]}"#, &[2]),
    ("[]", &[]),
];
const EVENTS: usize = 240;
const QUERIES: usize = 600;
const SECONDS: usize = 20;

/// An event as the model knows it; fields that are not there are None.
#[derive(Clone, Debug)]
struct Known {
    stream: usize,
    seq: i64,
    second: usize,
    action: &'static str,
    actor: Option<&'static str>,
    target: Option<&'static str>,
    session_id: Option<&'static str>,
    status: Option<&'static str>,
    attrs: Option<usize>,
}

fn time(second: usize) -> String {
    format!("2026-01-01T00:00:{second:02}Z")
}

/// A filter of audit_list; None lets everything through.
#[derive(Clone, Debug, Default)]
struct Filter {
    stream: Option<usize>,
    actor: Option<&'static str>,
    action: Option<&'static str>,
    target: Option<&'static str>,
    session_id: Option<&'static str>,
    status: Option<&'static str>,
    attrs: Option<usize>,
    since: Option<usize>,
    until: Option<usize>,
    after: Option<i64>,
    before: Option<i64>,
    newest_first: Option<bool>,
    max_rows: Option<i32>,
}

impl Filter {
    fn lets_through(&self, event: &Known) -> bool {
        fn is_as<T: PartialEq + Copy>(wanted: Option<T>, found: Option<T>) -> bool {
            wanted.is_none() || wanted == found
        }
        is_as(self.stream, Some(event.stream))
            && is_as(self.actor, event.actor)
            && is_as(self.action, Some(event.action))
            && is_as(self.target, event.target)
            && is_as(self.session_id, event.session_id)
            && is_as(self.status, event.status)
            && self.attrs.is_none_or(|filter| event.attrs.is_some_and(|attrs| CONTAINED[filter].1.contains(&attrs)))
            && self.since.is_none_or(|since| event.second >= since)
            && self.until.is_none_or(|until| event.second < until)
    }

    /// What audit_list has to answer: stream and seq.
    fn page(&self, known: &[Known]) -> Vec<(String, i64)> {
        let of_stream = self.stream.is_some();
        let inside = |event: &&Known| {
            !of_stream
                || (self.after.is_none_or(|after| event.seq > after)
                    && self.before.is_none_or(|before| event.seq < before))
        };
        let mut found: Vec<&Known> = known.iter().filter(|event| self.lets_through(event)).filter(inside).collect();
        // Of one stream by seq, of all by time.
        found.sort_by_key(|event| (if of_stream { 0 } else { event.second }, event.stream, event.seq));
        if self.newest_first.unwrap_or(true) {
            found.reverse();
        }
        found.truncate(self.max_rows.unwrap_or(100) as usize);
        found.iter().map(|event| (STREAMS[event.stream].to_owned(), event.seq)).collect()
    }

    async fn ask(&self, connection: &Connection) -> Vec<(String, i64)> {
        let sql = "select stream, seq from agent_sessions.audit_list(stream => $1::text, actor => $2::text,
            action => $3::text, target => $4::text, session_id => $5::text, status => $6::text,
            attrs => $7::text::jsonb, since => $8::text::timestamptz, until => $9::text::timestamptz,
            after => $10::bigint, before => $11::bigint, newest_first => $12::boolean, max_rows => $13::integer)";
        let rows = connection
            .query(
                sql,
                &[
                    &self.stream.map(|stream| STREAMS[stream]),
                    &self.actor,
                    &self.action,
                    &self.target,
                    &self.session_id,
                    &self.status,
                    &self.attrs.map(|filter| CONTAINED[filter].0),
                    &self.since.map(time),
                    &self.until.map(time),
                    &self.after,
                    &self.before,
                    &self.newest_first,
                    &self.max_rows,
                ],
            )
            .await
            .unwrap_or_else(|error| panic!("{self:?}: {error:?}"));
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    fn random(random: &mut Random, rarely: usize) -> Filter {
        fn some<T>(random: &mut Random, rarely: usize, of: impl FnOnce(&mut Random) -> T) -> Option<T> {
            random.one_in(rarely).then(|| of(random))
        }
        let label = |random: &mut Random| random.pick(&LABELS);
        let seq = |random: &mut Random| random.below(EVENTS / 3) as i64 - 2;
        Filter {
            stream: (!random.one_in(3)).then(|| random.below(STREAMS.len())),
            actor: some(random, rarely, label),
            action: some(random, rarely, label),
            target: some(random, rarely, label),
            session_id: some(random, rarely, label),
            status: some(random, rarely, |random| random.pick(&STATUSES)),
            attrs: some(random, rarely, |random| random.below(CONTAINED.len())),
            since: some(random, rarely, |random| random.below(SECONDS)),
            until: some(random, rarely, |random| random.below(SECONDS)),
            after: some(random, 3, seq),
            before: some(random, 3, seq),
            newest_first: some(random, 2, |random| random.one_in(2)),
            max_rows: some(random, 3, |random| random.pick(&[0, 1, 3, 10, 1_000])),
        }
    }
}

/// Random events, some of a stream imported with their columns, in the tenant of the connection.
async fn filled(writer: &Connection, random: &mut Random) -> Vec<Known> {
    let mut known: Vec<Known> = Vec::new();
    for _ in 0..EVENTS {
        let stream = random.below(STREAMS.len());
        let label = |random: &mut Random| (!random.one_in(4)).then(|| random.pick(&LABELS));
        let event = Known {
            stream,
            seq: known.iter().filter(|event| event.stream == stream).count() as i64 + 1,
            second: random.below(SECONDS),
            action: random.pick(&LABELS),
            // Left out, an actor would be the role.
            actor: Some(random.pick(&LABELS)),
            target: label(random),
            session_id: label(random),
            status: (!random.one_in(4)).then(|| random.pick(&STATUSES)),
            attrs: (!random.one_in(3)).then(|| random.below(ATTRS.len())),
        };
        let occurred_at = time(event.second);
        let given = Event {
            actor: event.actor,
            target: event.target,
            session_id: event.session_id,
            status: event.status,
            attrs: event.attrs.map(|attrs| ATTRS[attrs]),
            occurred_at: Some(&occurred_at),
            ..Event::in_stream(STREAMS[stream], event.action)
        };
        if random.one_in(3) {
            // The same, as the next event of a chain that was made elsewhere.
            import_next(writer, &given).await;
        } else {
            assert_eq!(given.append(writer).await.seq, event.seq);
        }
        known.push(event);
    }
    known
}

const FIELDS: &str = r#"{"action":"what","actor":["who","name"],"target":"target","session_id":["who","chat"],
    "status":"status","attrs":["facts"],"occurred_at":"at"}"#;

async fn import_next(writer: &Connection, event: &Event<'_>) {
    let facts: Value = event.attrs.map_or(Value::Null, |attrs| serde_json::from_str(attrs).expect("attrs are JSON"));
    let data = json!({
        "what": event.action, "who": {"name": event.actor, "chat": event.session_id}, "target": event.target,
        "status": event.status, "facts": facts, "at": event.occurred_at, "payload": {"imported": true},
    });
    let line = "select json_build_array(json_build_object('data', $2::text, 'hash',
          'sha256:' || encode(sha256(convert_to(prev || E'\\n' || $2::text, 'UTF8')), 'hex')))::text
        from (select coalesce((select head_hash from agent_sessions.audit_stream where stream = $1::text),
          'sha256:' || repeat('0', 64)) as prev) head";
    let stream = event.stream.unwrap_or_default();
    let lines: String = writer.value(line, &[&stream, &data.to_string()]).await;
    assert_eq!(import(writer, stream, &lines, Some(FIELDS)).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_filter_and_every_combination_finds_what_the_model_finds() {
    let seed = 20_261_129;
    writeln!(std::io::stdout(), "audit lists: seed {seed}").expect("standard output is open");
    let mut random = Random(seed);
    let db = Database::create("audit_list").await;
    // Another tenant's events, of the same streams, are nobody's here.
    filled(&in_tenant(&db, "other").await, &mut random).await;
    let known = filled(&db.writer().await, &mut random).await;
    assert_eq!(count(&db.writer().await, "agent_sessions.audit_event").await, EVENTS as i64);
    let mut found = 0;
    for (plans, reader) in [("force_custom_plan", db.owner().await), ("force_generic_plan", auditor(&db).await)] {
        reader.run(&format!("set plan_cache_mode = {plans}")).await;
        for query in 0..QUERIES {
            let filter = Filter::random(&mut random, if query % 3 == 0 { 3 } else { 12 });
            let page = filter.page(&known);
            assert_eq!(filter.ask(&reader).await, page, "{filter:?}");
            found += usize::from(!page.is_empty());
        }
    }
    // Most of them find something.
    assert!(found > QUERIES, "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_filter_alone_finds_what_the_model_finds() {
    let mut random = Random(7);
    let db = Database::create("audit_filters").await;
    let known = filled(&db.writer().await, &mut random).await;
    let reader = auditor(&db).await;
    let all = || Filter { max_rows: Some(1_000), ..Filter::default() };
    let mut filters = vec![all(), Filter::default()];
    for stream in 0..STREAMS.len() {
        filters.push(Filter { stream: Some(stream), ..all() });
    }
    for label in LABELS {
        filters.extend([
            Filter { actor: Some(label), ..all() },
            Filter { action: Some(label), ..all() },
            Filter { target: Some(label), ..all() },
            Filter { session_id: Some(label), ..all() },
        ]);
    }
    filters.extend(STATUSES.map(|status| Filter { status: Some(status), ..all() }));
    filters.extend((0..CONTAINED.len()).map(|attrs| Filter { attrs: Some(attrs), ..all() }));
    for second in 0..SECONDS {
        filters.push(Filter { since: Some(second), ..all() });
        filters.push(Filter { until: Some(second), ..all() });
    }
    for seq in [i64::MIN, -1, 0, 1, 30, 1_000, i64::MAX] {
        filters.push(Filter { stream: Some(1), after: Some(seq), ..all() });
        filters.push(Filter { stream: Some(1), before: Some(seq), ..all() });
    }
    for rows in [0, 1, 100, i32::MAX] {
        filters.push(Filter { max_rows: Some(rows), ..Filter::default() });
        filters.push(Filter { stream: Some(2), max_rows: Some(rows), ..Filter::default() });
    }
    for filter in filters {
        for newest_first in [None, Some(true), Some(false)] {
            let filter = Filter { newest_first, ..filter.clone() };
            assert_eq!(filter.ask(&reader).await, filter.page(&known), "{filter:?}");
        }
    }
    for function in
        ["audit_list(max_rows => -1)", "audit_list('a', max_rows => -1)", "audit_export('a', max_rows => -1)"]
    {
        let refused = reader.query(&format!("select * from agent_sessions.{function}"), &[]).await;
        assert_eq!(detail(&assert_sqlstate!(refused, "SE001"))["argument"], "max_rows", "{function}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_follow_one_another() {
    let mut random = Random(8);
    let db = Database::create("audit_pages").await;
    let known = filled(&db.writer().await, &mut random).await;
    let reader = auditor(&db).await;
    for newest_first in [true, false] {
        let whole = Filter { stream: Some(2), newest_first: Some(newest_first), ..Filter::default() };
        let mut pages = Vec::new();
        let mut page = Filter { max_rows: Some(7), ..whole.clone() };
        loop {
            let rows = page.ask(&reader).await;
            let Some((_, last)) = rows.last() else { break };
            if newest_first {
                page.before = Some(*last)
            } else {
                page.after = Some(*last)
            }
            pages.extend(rows);
        }
        assert_eq!(pages, whole.page(&known));
        assert!(pages.len() > 14);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_row_is_what_is_stored() {
    let mut random = Random(9);
    let db = Database::create("audit_rows").await;
    let writer = db.writer().await;
    filled(&writer, &mut random).await;
    let differ = "agent_sessions.audit_list(max_rows => 1000) l join agent_sessions.audit_event e
           on (e.stream, e.seq) = (l.stream, l.seq)
         where (l.event_id, l.occurred_at, l.recorded_at, l.action, l.actor, l.target, l.session_id, l.status, l.attrs,
                l.hash, l.imported)
           is distinct from (e.event_id, e.occurred_at, e.recorded_at, e.action, e.actor, e.target, e.session_id, e.status,
                e.attrs, e.hash, e.fields is not null)
           or l.payload::text is distinct from case when e.fields is null then 'null' else '{\"imported\":true}' end";
    assert_eq!(count(&writer, differ).await, 0);
    assert_eq!(count(&writer, "agent_sessions.audit_list(max_rows => 1000)").await, EVENTS as i64);
    let imported = count(&writer, "agent_sessions.audit_list(max_rows => 1000) where imported").await;
    assert!(imported > 20 && imported < EVENTS as i64, "{imported}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stats_count_by_action_and_status() {
    let mut random = Random(10);
    let db = Database::create("audit_stats").await;
    let known = filled(&db.writer().await, &mut random).await;
    filled(&in_tenant(&db, "other").await, &mut random).await;
    let reader = auditor(&db).await;
    for round in 0..60 {
        let filter = Filter {
            stream: (round % 2 == 0).then(|| random.below(STREAMS.len())),
            since: (round % 3 == 0).then(|| random.below(SECONDS)),
            until: (round % 5 == 0).then(|| random.below(SECONDS)),
            ..Filter::default()
        };
        let mut groups: BTreeMap<(&str, Option<&str>), Vec<usize>> = BTreeMap::new();
        for event in known.iter().filter(|event| filter.lets_through(event)) {
            groups.entry((event.action, event.status)).or_default().push(event.second);
        }
        let wanted: Vec<String> = groups
            .iter()
            .map(|((action, status), seconds)| {
                let (first, last) = (seconds.iter().min().expect("an event"), seconds.iter().max().expect("an event"));
                format!("{action} {} {} {first} {last}", status.unwrap_or("-"), seconds.len())
            })
            .collect();
        let sql = "select concat_ws(' ', action, coalesce(status, '-'), events, extract(second from first_at)::integer,
                     extract(second from last_at)::integer)
                   from agent_sessions.audit_stats(stream => $1::text, since => $2::text::timestamptz,
                     until => $3::text::timestamptz)";
        let stream = filter.stream.map(|stream| STREAMS[stream]);
        let rows =
            reader.query(sql, &[&stream, &filter.since.map(time), &filter.until.map(time)]).await.expect("audit_stats");
        let mut told: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        // Their order is the server's affair; what is counted is not.
        told.sort();
        let mut wanted = wanted;
        wanted.sort();
        assert_eq!(told, wanted, "{filter:?}");
    }
    assert_eq!(count(&reader, "agent_sessions.audit_stats('none')").await, 0);
}

/// Events that were imported without a time are listed and counted by when they were recorded.
#[tokio::test(flavor = "multi_thread")]
async fn an_imported_event_without_columns_is_listed_too() {
    let db = Database::create("audit_bare").await;
    let writer = db.writer().await;
    Event::in_stream("a", "a").append(&writer).await;
    let lines = array_of(&export(&writer, "a").await);
    assert_eq!(import(&writer, "b", &lines, None).await, 1);
    let row =
        "select concat_ws(' ', seq, coalesce(action, '-'), coalesce(actor, '-'), coalesce(occurred_at::text, '-'),
                 coalesce(attrs::text, '-'), payload::text, imported) from agent_sessions.audit_list";
    assert_eq!(texts(&writer, &format!("{row}('b')")).await, ["1 - - - - null t"]);
    assert_eq!(count(&writer, "agent_sessions.audit_list()").await, 2);
    for (filter, rows) in [
        ("since => now() - interval '1 hour'", 1),
        ("since => now() + interval '1 hour'", 0),
        ("until => now() + interval '1 hour'", 1),
        ("until => now() - interval '1 hour'", 0),
        ("action => 'a'", 0),
    ] {
        assert_eq!(count(&writer, &format!("agent_sessions.audit_list('b', {filter})")).await, rows, "{filter}");
    }
    let stats = "agent_sessions.audit_stats('b') where action is null and status is null and events = 1
                   and first_at = last_at and first_at > now() - interval '1 hour'";
    assert_eq!(count(&writer, stats).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_is_a_line_per_event_in_the_order_of_seq() {
    let db = Database::create("audit_export").await;
    let writer = db.writer().await;
    for (number, payload) in crate::payloads::CASES.iter().enumerate() {
        let action = format!("a\"{number}\\");
        Event { payload: Some(payload), ..Event::in_stream("s", &action) }.append(&writer).await;
        Event::in_stream("t", &action).append(&writer).await;
    }
    let events = crate::payloads::CASES.len();
    let lines = export(&writer, "s").await;
    assert_eq!(lines.len(), events);
    let stored = "select seq, prev_hash, hash, data from agent_sessions.audit_event where stream = 's' order by seq";
    let stored = writer.query(stored, &[]).await.expect("the events");
    for (line, row) in lines.iter().zip(&stored) {
        assert!(!line.contains(['\n', '\r']), "{line}");
        let line: Value = serde_json::from_str(line).expect("a line is JSON");
        let (seq, [prev_hash, hash, data]) =
            (row.get::<_, i64>(0), [1, 2, 3].map(|column| row.get::<_, String>(column)));
        assert_eq!(line, json!({"stream": "s", "seq": seq, "prev_hash": prev_hash, "hash": hash, "data": data}));
    }
    for (arguments, from, until) in [
        ("'s', after => 0", 0, events),
        ("'s', after => -5", 0, events),
        ("'s', after => 3", 3, events),
        ("'s', after => 3, max_rows => 2", 3, 5),
        ("'s', max_rows => 1", 0, 1),
        ("'s', max_rows => 0", 0, 0),
        ("'s', after => 9223372036854775807", 0, 0),
        ("'none'", 0, 0),
    ] {
        let sql = format!("select agent_sessions.audit_export({arguments})");
        assert_eq!(texts(&writer, &sql).await, lines[from..until], "{arguments}");
    }
    Event::of("unnamed").append(&writer).await;
    for arguments in ["", "null", "''"] {
        assert_eq!(count(&writer, &format!("agent_sessions.audit_export({arguments})")).await, 1, "{arguments}");
    }
}
