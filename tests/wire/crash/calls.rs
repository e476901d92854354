//! What clients ask of the server, and what it answers.

use agent_sessions_tests::Connection;
use tokio_postgres::SimpleQueryMessage;

/// An entry of a log that a call asks for; a payload that is None is the engine's to choose.
#[derive(Clone, Debug)]
pub struct Entry {
    pub op: &'static str,
    /// None for a pop that was not answered: the engine chooses.
    pub target: Option<i64>,
    pub item_id: Option<String>,
    pub payload: Option<String>,
}

/// A row of session_log.
#[derive(Clone, Debug)]
pub struct Stored {
    pub position: i64,
    pub op: String,
    pub target: Option<i64>,
    pub item_id: Option<String>,
    pub payload: Option<String>,
}

impl Entry {
    pub fn about(op: &'static str, target: i64) -> Entry {
        Entry { op, target: Some(target), item_id: None, payload: None }
    }

    /// A content that was erased is gone; session_verify knows by which entry, and that entry is accounted for as well.
    pub fn is(&self, stored: &Stored) -> bool {
        let same_target = self.target == stored.target || (self.op == "retract" && self.target.is_none());
        let same_payload = self.payload.is_none() || stored.payload.is_none() || self.payload == stored.payload;
        self.op == stored.op && self.item_id == stored.item_id && same_target && same_payload
    }
}

/// What was asked of a session.
#[derive(Clone, Debug)]
pub enum Call {
    Create(Entry),
    Append(Vec<Entry>),
    Revise(Entry),
    Retract(i64),
    RetractFrom(i64),
    Pop,
    Set(String),
    Delta {
        target: i64,
        number: i32,
        chunk: String,
    },
    Branch {
        at_target: Option<i64>,
        branch: usize,
    },
    Claim {
        last_fence: i64,
    },
    Extend,
    Release,
    Trim(i64),
    /// Through the logs from that of the session to that which holds the entry.
    Erase {
        target: i64,
        through: Vec<usize>,
    },
    Flatten,
    Delete,
}

impl Call {
    pub const NAMES: [&str; 17] = [
        "create",
        "append",
        "batch",
        "open",
        "revise",
        "retract",
        "retract from",
        "pop",
        "set",
        "delta",
        "branch",
        "claim",
        "extend and release",
        "trim",
        "erase",
        "delete",
        "flatten",
    ];

    pub fn name(&self) -> &'static str {
        let at = match self {
            Call::Create(_) => 0,
            Call::Append(entries) if entries.len() > 1 => 2,
            Call::Append(entries) if entries[0].op == "open" => 3,
            Call::Append(_) => 1,
            Call::Revise(_) => 4,
            Call::Retract(_) => 5,
            Call::RetractFrom(_) => 6,
            Call::Pop => 7,
            Call::Set(_) => 8,
            Call::Delta { .. } => 9,
            Call::Branch { .. } => 10,
            Call::Claim { .. } => 11,
            Call::Extend | Call::Release => 12,
            Call::Trim(_) => 13,
            Call::Erase { .. } => 14,
            Call::Delete => 15,
            Call::Flatten => 16,
        };
        Call::NAMES[at]
    }
}

#[derive(Clone, Debug)]
pub struct Asked {
    pub session: usize,
    pub lease: Option<String>,
    pub call: Call,
    /// The last position known of the log that is written to, when the call was sent.
    pub last: i64,
}

pub enum Answer {
    Rows(Vec<Vec<Option<String>>>),
    Refused(String),
    /// The server died meanwhile.
    None,
}

pub fn name(session: usize) -> String {
    format!("session {session}")
}

impl Asked {
    pub fn sql(&self) -> String {
        let session = format!("session_id => '{}'", name(self.session));
        let lease = self.lease.as_ref().map_or("lease => null".to_owned(), |lease| format!("lease => '{lease}'"));
        let payload = |entry: &Entry| entry.payload.clone().unwrap_or_default();
        let call = match &self.call {
            Call::Create(entry) => format!(
                "session_append({session}, payload => '{}', item_id => '{}', on_missing => 'create')",
                payload(entry),
                entry.item_id.as_deref().unwrap_or_default()
            ),
            Call::Append(entries) if entries.len() == 1 => format!(
                "session_append({session}, payload => '{}', item_id => '{}', open => {}, {lease})",
                payload(&entries[0]),
                entries[0].item_id.as_deref().unwrap_or_default(),
                entries[0].op == "open"
            ),
            Call::Append(entries) => {
                let element = |entry: &Entry| {
                    format!(
                        r#"{{"payload":{},"item_id":"{}"}}"#,
                        payload(entry),
                        entry.item_id.as_deref().unwrap_or_default()
                    )
                };
                let elements: Vec<String> = entries.iter().map(element).collect();
                return format!(
                    "select position from agent_sessions.session_append_batch({session}, items => '[{}]', {lease}) order by ordinal",
                    elements.join(",")
                );
            }
            Call::Revise(entry) => format!(
                "session_revise({session}, payload => '{}', target => {}, {lease})",
                payload(entry),
                entry.target.unwrap_or_default()
            ),
            Call::Retract(target) => format!("session_retract({session}, targets => '{{{target}}}', {lease})"),
            Call::RetractFrom(target) => format!("session_retract({session}, from_target => {target}, {lease})"),
            Call::Pop => return format!("select position from agent_sessions.session_pop({session}, {lease})"),
            Call::Set(state) => format!("session_set({session}, state => '{state}', {lease})"),
            Call::Delta { target, number, chunk } => {
                format!(
                    "session_delta({session}, target => {target}, chunk_no => {number}, chunk => '{chunk}', {lease})"
                )
            }
            Call::Branch { at_target, branch } => {
                let at = at_target.map_or("null".to_owned(), |target| target.to_string());
                return format!(
                    "select fork_position from agent_sessions.session_branch({session}, at_target => {at}, new_session_id => '{}', {lease})",
                    name(*branch)
                );
            }
            Call::Claim { .. } => {
                return format!(
                    "select lease, fence from agent_sessions.session_claim({session}, ttl => '200 ms', on_missing => 'error')"
                );
            }
            Call::Extend => {
                return format!("select 1 from agent_sessions.session_extend({session}, {lease}, ttl => '200 ms')");
            }
            Call::Release => format!("session_release({session}, {lease})"),
            Call::Trim(keep_from) => format!("session_trim({session}, keep_from => {keep_from}, {lease})"),
            Call::Erase { target, .. } => format!("session_erase({session}, target => {target}, {lease})"),
            Call::Flatten => format!("session_flatten({session}, {lease})"),
            Call::Delete => format!("session_delete({session}, {lease})"),
        };
        format!("select agent_sessions.{call}")
    }

    /// The codes with which it may be refused: the session was deleted, a lease is live, or its target is gone.
    pub fn may_be_refused_with(&self) -> &'static [&'static str] {
        match self.call {
            Call::Create(_) | Call::Release => &[],
            Call::Claim { .. } => &["SE002"],
            Call::Extend => &["SE002", "SE008"],
            Call::Revise(_) | Call::Retract(_) | Call::Erase { .. } => &["SE002", "SE008", "SE009", "SE011"],
            Call::Delta { .. } => &["SE002", "SE008", "SE009", "SE011", "SE013"],
            Call::Branch { .. } => &["SE002", "SE008", "SE009", "SE012"],
            _ => &["SE002", "SE008", "SE009"],
        }
    }
}

pub async fn call(connection: &Connection, sql: &str) -> Answer {
    match connection.simple_query(sql).await {
        Ok(messages) => {
            let rows = messages.iter().filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()),
                _ => None,
            });
            Answer::Rows(rows.collect())
        }
        Err(error) => match error.code().map(|code| code.code()) {
            // The server shuts down.
            None | Some("57P01" | "57P02" | "57P03") => Answer::None,
            Some(code) => Answer::Refused(code.to_owned()),
        },
    }
}
