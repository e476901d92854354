//! Sessions of 100 000 items, which branches inherit, and entries about them.

use agent_sessions_tests::{Connection, Database};

pub const ITEMS: i64 = 100_000;
pub const REVISIONS: i64 = 1_000;
pub const RETRACTIONS: i64 = 200;
/// Of summaries and of erasures.
pub const NOTES: i64 = 1_000;

/// A database that has no statistics until somebody asks for them.
pub async fn database(name: &str) -> Database {
    let db = Database::create(name).await;
    let owner = db.owner().await;
    for table in ["session", "session_item"] {
        owner.run(&format!("alter table agent_sessions.{table} set (autovacuum_enabled = off)")).await;
    }
    db
}

pub async fn analyze(db: &Database) {
    db.owner().await.run("analyze agent_sessions.session; analyze agent_sessions.session_item").await;
}

/// Appends the items from number `from` up to, but not including, number `until`.
pub async fn append(writer: &Connection, session: &str, from: i64, until: i64) {
    append_with_summaries(writer, session, from, until, None).await;
}

/// The same, every `step`-th a summary.
async fn append_with_summaries(writer: &Connection, session: &str, from: i64, until: i64, step: Option<i64>) {
    let batch = "select count(*) from agent_sessions.session_append_batch(session_id => $1, on_missing => 'create',
        items => (
          select coalesce(json_agg(json_build_object('item_id', 'i' || n, 'tag', 't' || n % 1000,
            'kind', case n % 2 when 0 then 'message' else 'tool' end, 'attrs', json_build_object('k', n % 10),
            'kept_from', case n % $4::bigint when 0 then n end,
            'payload', json_build_object('role', 'assistant', 'content', repeat(n || ' ', 20)))), '[]')
          from generate_series($2::bigint, $3::bigint - 1) n))";
    assert_eq!(writer.value::<i64>(batch, &[&session, &from, &until, &step]).await, until - from);
}

/// A log of 100 000 items, some of them summaries, some erased, and of `after` more. No item is revised or retracted.
pub async fn annotate(writer: &Connection, session: &str, after: i64) {
    let step = ITEMS / NOTES;
    append_with_summaries(writer, session, 0, ITEMS, Some(step)).await;
    let erase = format!(
        "select count(agent_sessions.session_erase('{session}', target => n))
         from generate_series(7, {ITEMS} - 1, {step}) n"
    );
    assert_eq!(writer.value::<i64>(&erase, &[]).await, NOTES);
    append(writer, session, ITEMS, ITEMS + after).await;
}

/// A log of 100 000 items that is changed in so many rounds: revisions, retractions, and two ends of the log that are
/// retracted. `after` more items follow the last round.
pub async fn change(writer: &Connection, session: &str, rounds: i64, after: i64) {
    let items = ITEMS / rounds;
    for round in 0..rounds {
        append(writer, session, round * items, (round + 1) * items).await;
        let end = next_position(writer, session).await;
        revise(writer, session, end - items, end, ITEMS / REVISIONS).await;
        let retract = format!(
            "select agent_sessions.session_retract('{session}',
               targets => array(select generate_series({} + 3, {end} - 1, {}))::bigint[])",
            end - items,
            ITEMS / RETRACTIONS
        );
        writer.run(&retract).await;
        for _ in 0..2 {
            let target = writer.append(session, "1").await;
            writer.run(&format!("select agent_sessions.session_retract('{session}', from_target => {target})")).await;
        }
    }
    append(writer, session, ITEMS, ITEMS + after).await;
    let counts = "select count(*) filter (where op = 'revise'), count(*) filter (where op = 'retract'),
                    count(*) filter (where op = 'retract_from')
                  from agent_sessions.session_log($1)";
    let counts = writer.query_one(counts, &[&session]).await.expect("counts");
    let counts: [i64; 3] = [0, 1, 2].map(|column| counts.get(column));
    assert_eq!(counts, [REVISIONS, RETRACTIONS, 2 * rounds], "{session}");
}

/// Revises every `step`-th entry from `from` on, up to `until`.
pub async fn revise(writer: &Connection, session: &str, from: i64, until: i64, step: i64) {
    let revise = "insert into agent_sessions.session_item (sid, op, target, payload)
                  select sid, 'revise', n, '{\"role\": \"assistant\", \"content\": \"revised\"}'
                  from agent_sessions.session, generate_series($2::bigint, $3::bigint - 1, $4::bigint) n
                  where session_id = $1";
    writer.execute(revise, &[&session, &from, &until, &step]).await.expect("revisions");
}

pub async fn branch(writer: &Connection, source: &str, branch: &str) {
    let sql = format!(
        "select session_id from agent_sessions.session_branch(session_id => '{source}', new_session_id => '{branch}')"
    );
    writer.run(&sql).await;
}

/// The name of the n-th session of a chain, of which the 0-th is the oldest.
pub fn link(chain: &str, number: i64) -> String {
    format!("{chain} {number}")
}

/// A branch of so many ancestors, which hold 100 000 items in equal parts. It has none of its own.
pub async fn chain(writer: &Connection, name: &str, ancestors: i64) {
    for number in 0..ancestors {
        let bound = |number| ITEMS * number / ancestors;
        append(writer, &link(name, number), bound(number), bound(number + 1)).await;
        branch(writer, &link(name, number), &link(name, number + 1)).await;
    }
}

pub async fn next_position(reader: &Connection, session: &str) -> i64 {
    reader.value("select next_position from agent_sessions.session_get($1)", &[&session]).await
}
