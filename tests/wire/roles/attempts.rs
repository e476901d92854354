//! What came of a statement that every role has really run.

use agent_sessions_tests::{Database, sqlstate};

use super::{Level, Somebody};

/// A statement for every role, and from which level on it passes the privileges.
pub struct Attempt {
    /// What is tried, for the page.
    pub what: String,
    pub sql: String,
    pub allowed: Level,
    /// Whether PostgreSQL may refuse the statement for what it is before it asks who runs it.
    pub refused_unasked: bool,
}

impl Attempt {
    pub fn new(what: impl Into<String>, sql: impl Into<String>, allowed: Level) -> Attempt {
        Attempt { what: what.into(), sql: sql.into(), allowed, refused_unasked: false }
    }

    pub fn on_a_view(self) -> Attempt {
        Attempt { refused_unasked: true, ..self }
    }
}

/// What came of an attempt: for each role `ok` or the SQLSTATE.
pub struct Row {
    pub what: String,
    pub outcomes: Vec<String>,
}

impl Row {
    /// Runs the attempt as everybody, and undoes it.
    ///
    /// 42501 comes to those below the level, and to nobody else.
    pub async fn of(attempt: &Attempt, everybody: &[Somebody]) -> Row {
        let mut outcomes = Vec::with_capacity(everybody.len());
        for somebody in everybody {
            let connection = &somebody.connection;
            connection.begin("read committed").await;
            let tried = connection.batch_execute(&attempt.sql).await;
            connection.rollback().await;
            let outcome = tried.as_ref().err().map_or("ok", sqlstate).to_owned();
            let denied = outcome == "42501";
            assert!(
                denied != somebody.may(attempt.allowed) || (attempt.refused_unasked && !denied && outcome != "ok"),
                "{} as {}: {tried:?}\n{}",
                attempt.what,
                somebody.title,
                attempt.sql
            );
            outcomes.push(outcome);
        }
        Row { what: attempt.what.clone(), outcomes }
    }
}

/// Where every role may make tables and triggers of its own, and `own.pass` is a trigger's function.
pub async fn with_a_schema_for_all(db: &Database) {
    db.superuser()
        .await
        .run(
            "create schema own; grant usage, create on schema own to public;
             create function own.pass() returns trigger language plpgsql as $$ begin return new; end $$",
        )
        .await;
}
