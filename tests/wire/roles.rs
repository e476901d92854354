//! Who may do what: every function, table, view, sequence and type of the schema, as every level of access, as the owner,
//! and as roles without a grant. What exists and is not listed here fails the test, so that nothing is added without an
//! answer to the question.

mod attempts;
mod calls;
pub mod functions;
mod grants;
mod hijack;
mod ownership;
mod page;
pub mod relations;
mod rows;
mod statements;

use agent_sessions_tests::{Connection, Database, Role};

/// From which level of access on something is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Reader,
    Auditor,
    Writer,
    Admin,
    Owner,
    Nobody,
}

/// A role, connected.
struct Somebody {
    /// The head of its column in the page.
    title: &'static str,
    role: String,
    connection: Connection,
    level: Option<Level>,
}

impl Somebody {
    fn may(&self, level: Level) -> bool {
        self.level.is_some_and(|own| own >= level)
    }
}

/// One of each kind. The second owns objects and may make more, databases and roles among them; nothing of that counts here.
async fn everybody(db: &Database) -> Vec<Somebody> {
    let other = db.role("other", None).await;
    db.superuser()
        .await
        .run(&format!(
            "alter role {other} createdb createrole;
             create schema {other} authorization {other};
             create table {other}.session (sid bigint primary key);
             alter table {other}.session owner to {other};
             do $$ begin execute format('grant create on database %I to {other}', current_database()); end $$"
        ))
        .await;
    let auditor = db.role("auditor", Some("auditor")).await;
    let admin = db.role("admin", Some("admin")).await;
    let kinds = [
        ("no grant", Role::Stranger, None),
        ("owner of other objects", Role::Named(other), None),
        ("`reader`", Role::Reader, Some(Level::Reader)),
        ("`auditor`", Role::Named(auditor), Some(Level::Auditor)),
        ("`writer`", Role::Writer, Some(Level::Writer)),
        ("`admin`", Role::Named(admin), Some(Level::Admin)),
        ("owner", Role::Owner, Some(Level::Owner)),
    ];
    let mut everybody = Vec::with_capacity(kinds.len());
    for (title, role, level) in kinds {
        let connection = db.connect(role.clone()).await;
        everybody.push(Somebody { title, role: db.role_name(&role), connection, level });
    }
    everybody
}

/// Makes what the calls in [`functions::FUNCTIONS`] are about, in the tenant of the connection.
pub async fn with_a_session(writer: &Connection) {
    writer.create_session("s").await;
    writer.append_batch("s", r#"[{"payload":0},{"payload":1},{"payload":2,"item_id":"i","tag":"t"}]"#).await;
    writer
        .run("select agent_sessions.audit_append('login', stream => 'logins'); select agent_sessions.audit_anchor()")
        .await;
}

async fn list(connection: &Connection, sql: &str) -> Vec<String> {
    let rows = connection.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

async fn assert_none(connection: &Connection, what: &str, sql: &str) {
    assert_eq!(list(connection, sql).await, Vec::<String>::new(), "{what}");
}
