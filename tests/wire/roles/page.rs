//! `docs/privileges.md`: what came of every call and every statement, by role. The page is what the test finds; with
//! AGENT_SESSIONS_WRITE_PAGES set it writes it.

use std::fmt::Write;
use std::path::Path;

use agent_sessions_tests::Database;

use super::attempts::{Attempt, Row, with_a_schema_for_all};
use super::relations::RELATIONS;
use super::statements::{self, Places};
use super::{Somebody, calls, everybody, with_a_session};

const HEAD: &str = include_str!("privileges.head.md");

/// The page's section of these attempts.
async fn section(title: &str, attempts: &[Attempt], everybody: &[Somebody]) -> String {
    let mut rows: Vec<Row> = Vec::new();
    for attempt in attempts {
        let row = Row::of(attempt, everybody).await;
        match rows.last_mut() {
            Some(last) if last.takes(&row) => last.take(row),
            _ => rows.push(row),
        }
    }
    let titles: Vec<&str> = everybody.iter().map(|somebody| somebody.title).collect();
    let mut section = format!("\n## {title}\n\n| | {} |\n|{}\n", titles.join(" | "), " --- |".repeat(titles.len() + 1));
    for row in rows {
        let outcomes: Vec<&str> = row.outcomes.iter().map(|outcome| shown(outcome)).collect();
        writeln!(section, "| {} | {} |", row.what, outcomes.join(" | ")).expect("a string takes all");
    }
    section
}

/// A privilege that is missing is the usual thing.
fn shown(outcome: &str) -> &str {
    if outcome == "42501" { "–" } else { outcome }
}

impl Row {
    /// Whether a row about another column of the same statement tells the same.
    fn takes(&self, next: &Row) -> bool {
        let statement = |row: &Row| row.what.split_once(' ').map(|(statement, _)| statement.to_owned());
        self.what.contains('`')
            && statement(self).is_some()
            && statement(self) == statement(next)
            && self.outcomes == next.outcomes
    }

    fn take(&mut self, next: Row) {
        let (_, column) = next.what.split_once(' ').unwrap_or_default();
        write!(self.what, ", {column}").expect("a string takes all");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_privileges_is_what_every_role_may() {
    let db = Database::create("roles_page").await;
    let everybody = everybody(&db).await;
    let guest = db.role("guest", None).await;
    with_a_schema_for_all(&db).await;
    let writer = db.writer().await;
    with_a_session(&writer).await;

    let mut page = HEAD.to_owned();
    page += &section("Functions", &calls::attempts(&guest), &everybody).await;

    writer.create_session("streamed").await;
    writer
        .run(
            "select agent_sessions.session_append('streamed', '0', open => true);
             select agent_sessions.session_delta('streamed', 0, 0, 'c')",
        )
        .await;
    let superuser = db.superuser().await;
    let sid = "select sid from agent_sessions.session where session_id = $1::text";
    let places = Places {
        sid: superuser.value(sid, &[&"s"]).await,
        streamed: superuser.value(sid, &[&"streamed"]).await,
        role: guest,
    };
    for relation in RELATIONS {
        let attempts = relation.attempts(&superuser, &places).await;
        page += &section(&format!("{:?} `{}`", relation.kind, relation.name), &attempts, &everybody).await;
    }
    page += &section("The objects themselves", &statements::on_the_schema(), &everybody).await;

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/privileges.md");
    if std::env::var_os("AGENT_SESSIONS_WRITE_PAGES").is_some() {
        std::fs::write(&path, &page).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let written = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let differing = written.lines().zip(page.lines()).find(|(written, found)| written != found);
    assert_eq!(differing, None, "docs/privileges.md, and what is so: run the test with AGENT_SESSIONS_WRITE_PAGES=1");
    assert_eq!(written, page);
}
