//! What somebody else has, and what nobody has: the same names but for one word, so that an answer about the one can be
//! compared with an answer about the other.

use agent_sessions_tests::{Connection, Database, Error, Role};
use tokio_postgres::SimpleQueryMessage;

use crate::roles::with_a_session;

/// Of the same length, as lengths are answers, too.
const THEIRS: &str = "theirs";
const ABSENT: &str = "absent";

/// What stands in the way of whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wall {
    /// What is asked about belongs to another tenant.
    Tenant,
    /// It belongs to another agent of the tenant, under isolation.
    Agent,
}

/// The names of one side.
pub struct Names {
    word: &'static str,
    pub sid: i64,
    pub branch_sid: i64,
    /// Of a session that was deleted and is kept for its branch.
    hidden_sid: i64,
    anchor_id: i64,
    root: String,
    lease: String,
}

impl Names {
    /// Writes the names into a statement that says `{name-…}`, `{sid}`, `{branch_sid}`, `{hidden_sid}`, `{anchor_id}`, `{root}` and `{lease}`.
    pub fn fill(&self, sql: &str) -> String {
        sql.replace("{name}", self.word)
            .replace("{sid}", &self.sid.to_string())
            .replace("{branch_sid}", &self.branch_sid.to_string())
            .replace("{hidden_sid}", &self.hidden_sid.to_string())
            .replace("{anchor_id}", &self.anchor_id.to_string())
            .replace("{root}", &self.root)
            .replace("{lease}", &self.lease)
    }

    /// Whether an answer has a name or a key of theirs.
    pub fn occur_in(&self, answer: &str) -> bool {
        [self.word, &self.root, &self.lease].iter().any(|name| answer.contains(name))
            || [self.sid, self.branch_sid, self.hidden_sid].iter().any(|sid| answer.contains(&sid.to_string()))
    }

    /// Takes the names out of an answer.
    fn hide(&self, answer: &str) -> String {
        answer
            .replace(&self.lease, "{lease}")
            .replace(&self.root, "{root}")
            .replace(&self.sid.to_string(), "{sid}")
            .replace(&self.branch_sid.to_string(), "{branch_sid}")
            .replace(&self.hidden_sid.to_string(), "{hidden_sid}")
            .replace(&self.anchor_id.to_string(), "{anchor_id}")
            .replace(self.word, "{name}")
    }
}

/// A database with what others have, and with a session and a stream of one's own.
pub struct World {
    pub db: Database,
    pub wall: Wall,
    pub theirs: Names,
    pub absent: Names,
}

/// Numbers that occur in no answer by accident.
const THEIR_SIDS: i64 = 42_000_000;
const ABSENT_SIDS: i64 = 97_000_000;
const THEIR_ANCHOR: i64 = 4_211;
const ABSENT_ANCHOR: i64 = 9_711;

impl World {
    pub async fn create(name: &str, wall: Wall) -> World {
        let db = Database::create(name).await;
        let own = db.writer().await;
        enter(&own, "own-tenant", if wall == Wall::Agent { "own-agent" } else { "" }).await;
        with_a_session(&own).await;

        let superuser = db.superuser().await;
        superuser.run(&format!("select setval('agent_sessions.session_sid_seq', {THEIR_SIDS})")).await;
        let others = db.writer().await;
        let lease = match wall {
            Wall::Agent => {
                enter(&others, "own-tenant", "theirs-agent").await;
                inhabit(&others).await
            }
            Wall::Tenant => {
                enter(&others, "theirs-tenant", "theirs-agent").await;
                inhabit(&others).await;
                others.run("reset agent_sessions.agent").await;
                inhabit(&others).await
            }
        };
        let root = if wall == Wall::Tenant { anchor(&others, &superuser).await } else { "c".repeat(64) };
        let sid = "select max(sid) from agent_sessions.session where session_id = $1::text";
        let theirs = Names {
            word: THEIRS,
            sid: superuser.value(sid, &[&"theirs-session"]).await,
            branch_sid: superuser.value(sid, &[&"theirs-branch"]).await,
            hidden_sid: superuser.value(sid, &[&"theirs-hidden"]).await,
            anchor_id: THEIR_ANCHOR,
            root,
            lease,
        };
        let absent = Names {
            word: ABSENT,
            sid: ABSENT_SIDS,
            branch_sid: ABSENT_SIDS + 1,
            hidden_sid: ABSENT_SIDS + 2,
            anchor_id: ABSENT_ANCHOR,
            root: "f".repeat(64),
            lease: format!("{ABSENT_SIDS}:{}", "f".repeat(32)),
        };
        World { db, wall, theirs, absent }
    }

    /// Everything that others have, as a superuser sees it.
    pub async fn fingerprint(&self) -> String {
        let (tenant, agent) = match self.wall {
            Wall::Tenant => ("theirs-tenant", "agent_id"),
            Wall::Agent => ("own-tenant", "'theirs-agent'"),
        };
        let of_agents = ["session", "session_item", "session_delta"].map(|table| {
            format!(
                "select t::text as row from agent_sessions.{table} t where tenant = '{tenant}' and agent_id = {agent}"
            )
        });
        let of_tenants = ["audit_event", "audit_chain", "audit_anchor", "audit_anchor_leaf", "audit_tracking"]
            .map(|table| format!("select t::text as row from agent_sessions.{table} t where tenant = '{tenant}'"));
        let tables: Vec<String> = match self.wall {
            Wall::Tenant => of_agents.into_iter().chain(of_tenants).collect(),
            Wall::Agent => of_agents.into(),
        };
        let sql = format!("select string_agg(row, e'\\n' order by row) from ({}) t", tables.join(" union all "));
        self.db.superuser().await.value(&sql, &[]).await
    }

    /// A connection of a role that wants to see what is behind the wall.
    pub async fn visitor(&self, role: Role) -> Connection {
        let connection = self.db.connect(role).await;
        match self.wall {
            Wall::Tenant => enter(&connection, "own-tenant", "").await,
            Wall::Agent => {
                enter(&connection, "own-tenant", "own-agent").await;
                connection.run("set agent_sessions.isolation = agent").await;
            }
        }
        connection
    }

    /// Asserts that a statement about what others have is answered as the same about what nobody has.
    pub async fn assert_alike(&self, visitor: &Connection, sql: &str) {
        self.assert_answered_alike(visitor, &self.theirs.fill(sql), &self.absent.fill(sql)).await;
    }

    /// The same of two statements.
    pub async fn assert_answered_alike(&self, visitor: &Connection, about_theirs: &str, about_absent: &str) {
        let theirs = self.theirs.hide(&answer(visitor, about_theirs).await);
        let absent = self.absent.hide(&answer(visitor, about_absent).await);
        assert_eq!(theirs, absent, "left: what others have; right: what nobody has\n{about_theirs}\n{about_absent}");
    }

    /// A role of this level that is bound to its own tenant.
    pub async fn bound(&self, level: &str) -> String {
        let bound = self.db.role("bound", Some(level)).await;
        self.db.owner().await.run(&format!("select agent_sessions.tenant_bind('{bound}', 'own-tenant')")).await;
        bound
    }
}

/// Settings of who is inside; without the policies nothing is shown rather than everything.
pub const INSIDE: [&str; 2] = ["reset agent_sessions.actor", "set local row_security = off"];

/// Settings that leave a bound role outside of its tenants: in that of others, in the empty one, in none.
pub const OUTSIDE: [&str; 3] = [
    "set local agent_sessions.tenant = '{name}-tenant'",
    "set local agent_sessions.tenant = ''",
    "set local agent_sessions.tenant = E'\\n'",
];

/// The settings of a connection; the library is loaded first, so that they are known.
async fn enter(connection: &Connection, tenant: &str, agent: &str) {
    connection
        .run(&format!(
            "select agent_sessions.schema_version(); set agent_sessions.tenant = '{tenant}'; set agent_sessions.agent = '{agent}'"
        ))
        .await;
}

/// Makes one of everything in the tenant and for the agent of the connection, and returns the lease of the session.
async fn inhabit(connection: &Connection) -> String {
    connection
        .run(
            r#"select agent_sessions.session_create('theirs-session', title => 'theirs-title', owner => 'theirs-owner',
                 origin => 'theirs-origin', status => 'theirs-status', metadata => '{"theirs": 1}', state => '{"theirs": 1}',
                 expires_at => '2020-01-01',
                 items => '[{"payload": 0, "item_id": "theirs-item", "tag": "theirs-tag", "kind": "theirs-kind",
                             "author": "theirs-author", "attrs": {"theirs": 1}},
                            {"payload": 1, "item_id": "theirs-second"}, {"payload": 2}]');
               select agent_sessions.session_append('theirs-session', '3', open => true);
               select agent_sessions.session_delta('theirs-session', 3, 0, 'theirs-chunk');
               select agent_sessions.session_create('theirs-sub', parent_session_id => 'theirs-session');
               select agent_sessions.session_branch('theirs-session', new_session_id => 'theirs-branch', title => '%d');
               select agent_sessions.session_create('theirs-hidden', items => '[{"payload": 0}, {"payload": 1}]');
               select agent_sessions.session_branch('theirs-hidden', new_session_id => 'theirs-heir');
               select agent_sessions.session_delete('theirs-hidden');
               select agent_sessions.audit_append('theirs-action', '{"theirs": 1}', stream => 'theirs-stream',
                 actor => 'theirs-actor', target => 'theirs-target', session_id => 'theirs-session',
                 status => 'theirs-status', occurred_at => '2020-01-01', event_id => 'theirs-event')"#,
        )
        .await;
    let claim = "select lease from agent_sessions.session_claim('theirs-session', '1 hour', holder => 'theirs-holder')";
    connection.value(claim, &[]).await
}

/// Anchors the tenant of the connection, and returns the root.
async fn anchor(connection: &Connection, superuser: &Connection) -> String {
    let root = connection.value("select root from agent_sessions.audit_anchor()", &[]).await;
    superuser
        .run(&format!(
            "update agent_sessions.audit_anchor set anchor_id = {THEIR_ANCHOR} where tenant = 'theirs-tenant';
             update agent_sessions.audit_anchor_leaf set anchor_id = {THEIR_ANCHOR} where tenant = 'theirs-tenant'"
        ))
        .await;
    root
}

/// All that a statement answers; nothing of it stays.
pub async fn answer(connection: &Connection, sql: &str) -> String {
    let answer = match connection.simple_query(&format!("begin; {sql}")).await {
        Ok(messages) => messages.iter().map(shown).collect::<Vec<_>>().join("\n"),
        Err(error) => told(&error),
    };
    connection.rollback().await;
    answer
}

fn shown(message: &SimpleQueryMessage) -> String {
    match message {
        SimpleQueryMessage::Row(row) => {
            let values: Vec<String> = (0..row.len()).map(|column| format!("{:?}", row.get(column))).collect();
            values.join(" ")
        }
        SimpleQueryMessage::CommandComplete(rows) => format!("{rows} rows"),
        _ => String::new(),
    }
}

/// All that an error tells.
fn told(error: &Error) -> String {
    let raised = error.as_db_error().unwrap_or_else(|| panic!("no answer of the server: {error:?}"));
    let (code, message, detail, hint) = (raised.code(), raised.message(), raised.detail(), raised.hint());
    let place = (raised.schema(), raised.table(), raised.column(), raised.datatype(), raised.constraint());
    format!("{code:?} {message} {detail:?} {hint:?} {place:?} {:?} {:?}", raised.where_(), raised.routine())
}
