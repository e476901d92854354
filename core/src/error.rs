//! Every error of the contract: its SQLSTATE, its DETAIL as JSON, its HINT.
//!
//! Clients branch on the code and read DETAIL; the message is for people.

use serde_json::json;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("invalid argument {argument}: {reason}")]
    InvalidArgument { argument: &'static str, reason: String, element: Option<usize> },
    #[error("session {session_id:?} does not exist for agent {agent_id:?}")]
    SessionNotFound { session_id: String, agent_id: String, found_under: Option<String> },
    #[error("session {session_id:?} exists already for agent {agent_id:?}")]
    SessionExists { session_id: String, agent_id: String },
    #[error("the session's origin is another one")]
    OriginMismatch { expected: String, actual: Option<String> },
    #[error("version {actual} is outside of what was asked for")]
    VersionMismatch { min: Option<String>, max: Option<String>, actual: String, library: String },
    #[error("the revision is {actual}, not {expected}")]
    RevisionConflict { expected: i64, actual: i64 },
    #[error("the next position is {actual}, not {expected}")]
    PositionConflict { expected: i64, actual: i64 },
    #[error("the lease given is not the live one")]
    LeaseLost,
    #[error("a lease is live, and none was given")]
    LeaseRequired { holder: Option<String> },
    #[error("item_id {item_id:?} was used before with other content")]
    ItemIdReused { item_id: String, position: i64 },
    #[error("there is no such item")]
    ItemNotFound { target: Option<i64>, item_id: Option<String>, reason: &'static str },
    #[error("there is no such entry to branch from")]
    BranchPointNotFound { target: Option<i64>, item_id: Option<String>, tag: Option<String> },
    #[error("chunk {expected} was given where chunk {actual} is next")]
    DeltaOutOfOrder { expected: i64, actual: i64 },
    #[error("{object} is append-only: {reason}")]
    AppendOnly { object: &'static str, reason: &'static str },
    #[error("{object} is immutable")]
    Immutable { object: &'static str },
    #[error("the content looks like a credential")]
    CredentialRejected { reason: String },
    #[error("the {column} given is not the one that the chain demands")]
    DigestMismatch { column: &'static str, position: i64 },
    #[error("{argument} exceeds its limit: {actual} > {limit}")]
    LimitExceeded { argument: &'static str, limit: u64, actual: u64, element: Option<usize> },
    #[error("tenant {tenant:?} is not allowed for this role")]
    TenantDenied { tenant: String, role: String },
    #[error("the status is {actual:?}, not {expected:?}")]
    TransitionConflict { expected: String, actual: String },
    #[error("the key was used before with other content")]
    DedupeConflict { key: String },
    #[error("the session has branches that need it")]
    HasBranches { session_id: String },
}

/// The longest reason that an error gives, in characters.
const REASON_CHARS: usize = 200;

impl Error {
    /// SE001 for an argument that is not part of a batch element.
    pub fn invalid(argument: &'static str, reason: impl Into<String>) -> Error {
        let mut reason = reason.into();
        // A parser's words may repeat its input, however long that is.
        if let Some((end, _)) = reason.char_indices().nth(REASON_CHARS) {
            reason.truncate(end);
        }
        Error::InvalidArgument { argument, reason, element: None }
    }

    /// The same error, naming the batch element (from 0) that caused it.
    pub fn in_element(self, index: usize) -> Error {
        match self {
            Error::InvalidArgument { argument, reason, .. } => {
                Error::InvalidArgument { argument, reason, element: Some(index) }
            }
            Error::LimitExceeded { argument, limit, actual, .. } => {
                Error::LimitExceeded { argument, limit, actual, element: Some(index) }
            }
            other => other,
        }
    }

    /// The SQLSTATE.
    pub const fn code(&self) -> &'static str {
        match self {
            Error::InvalidArgument { .. } => "SE001",
            Error::SessionNotFound { .. } => "SE002",
            Error::SessionExists { .. } => "SE003",
            Error::OriginMismatch { .. } => "SE004",
            Error::VersionMismatch { .. } => "SE005",
            Error::RevisionConflict { .. } => "SE006",
            Error::PositionConflict { .. } => "SE007",
            Error::LeaseLost => "SE008",
            Error::LeaseRequired { .. } => "SE009",
            Error::ItemIdReused { .. } => "SE010",
            Error::ItemNotFound { .. } => "SE011",
            Error::BranchPointNotFound { .. } => "SE012",
            Error::DeltaOutOfOrder { .. } => "SE013",
            Error::AppendOnly { .. } => "SE014",
            Error::Immutable { .. } => "SE015",
            Error::CredentialRejected { .. } => "SE016",
            Error::DigestMismatch { .. } => "SE017",
            Error::LimitExceeded { .. } => "SE018",
            Error::TenantDenied { .. } => "SE019",
            Error::TransitionConflict { .. } => "SE020",
            Error::DedupeConflict { .. } => "SE021",
            Error::HasBranches { .. } => "SE022",
        }
    }

    /// DETAIL: a JSON object with the values that a client needs to go on.
    pub fn detail(&self) -> String {
        let mut detail = match self {
            Error::InvalidArgument { argument, reason, .. } => json!({"argument": argument, "reason": reason}),
            Error::SessionNotFound { session_id, agent_id, .. } | Error::SessionExists { session_id, agent_id } => {
                json!({"session_id": session_id, "agent_id": agent_id})
            }
            Error::OriginMismatch { expected, actual } => json!({"expected": expected, "actual": actual}),
            Error::VersionMismatch { min, max, actual, library } => {
                json!({"min": min, "max": max, "actual": actual, "library": library})
            }
            Error::RevisionConflict { expected, actual }
            | Error::PositionConflict { expected, actual }
            | Error::DeltaOutOfOrder { expected, actual } => json!({"expected": expected, "actual": actual}),
            Error::LeaseLost => json!({}),
            Error::LeaseRequired { holder } => json!({"holder": holder}),
            Error::ItemIdReused { item_id, position } => json!({"item_id": item_id, "position": position}),
            Error::ItemNotFound { target, item_id, reason } => {
                json!({"target": target, "item_id": item_id, "reason": reason})
            }
            Error::BranchPointNotFound { target, item_id, tag } => {
                json!({"target": target, "item_id": item_id, "tag": tag})
            }
            Error::AppendOnly { object, reason } => json!({"object": object, "reason": reason}),
            Error::Immutable { object } => json!({"object": object}),
            Error::CredentialRejected { reason } => json!({"reason": reason}),
            Error::DigestMismatch { column, position } => json!({"column": column, "position": position}),
            Error::LimitExceeded { argument, limit, actual, .. } => {
                json!({"argument": argument, "limit": limit, "actual": actual})
            }
            Error::TenantDenied { tenant, role } => json!({"tenant": tenant, "role": role}),
            Error::TransitionConflict { expected, actual } => json!({"expected": expected, "actual": actual}),
            Error::DedupeConflict { key } => json!({"key": key}),
            Error::HasBranches { session_id } => json!({"session_id": session_id}),
        };
        if let Error::InvalidArgument { element: Some(index), .. } | Error::LimitExceeded { element: Some(index), .. } =
            self
        {
            detail["element"] = json!(index);
        }
        detail.to_string()
    }

    /// HINT: what to do.
    pub fn hint(&self) -> String {
        match self {
            Error::InvalidArgument { .. } => "Correct the argument; nothing was written.".into(),
            Error::SessionNotFound { found_under: Some(agent), .. } => {
                format!("A session of that id exists for agent {agent:?}: pass agent_id, or set agent_sessions.agent.")
            }
            Error::SessionNotFound { .. } => {
                "Create it with session_create, or pass on_missing => 'create' where the function takes it.".into()
            }
            Error::SessionExists { .. } => {
                "Use another id, or pass on_conflict => 'keep' to session_create to get the stored session.".into()
            }
            Error::OriginMismatch { .. } => "Use the session under the origin that created it.".into(),
            Error::VersionMismatch { .. } => {
                "Update the extension (ALTER EXTENSION agent_sessions UPDATE), its library, or the client.".into()
            }
            Error::RevisionConflict { .. } => {
                "Read the session again, and retry with expected_revision => actual.".into()
            }
            Error::PositionConflict { .. } => {
                "Read what was appended since, and retry with expected_position => actual.".into()
            }
            Error::LeaseLost => "Claim the session again, and read what was written since.".into(),
            Error::LeaseRequired { .. } => "Claim the session and pass the lease, or wait until it ends.".into(),
            Error::ItemIdReused { .. } => {
                "Use a new item_id for new content, or on_conflict => 'keep' or 'replace'.".into()
            }
            Error::ItemNotFound { .. } => "Name a live item of the session by its position or item_id.".into(),
            Error::BranchPointNotFound { .. } => {
                "Name a position of the session's log, or the item_id or tag of an item that its history shows.".into()
            }
            Error::DeltaOutOfOrder { .. } => "Send the chunk whose number is actual.".into(),
            Error::AppendOnly { object: "session", .. } => "Create another session for what differs.".into(),
            Error::AppendOnly { object: "audit_event" | "audit_chain", .. } => {
                "Append a further event; record an audit_anchor before audit_prune.".into()
            }
            Error::AppendOnly { .. } => "Revise or retract by a further entry; the log keeps what was written.".into(),
            Error::Immutable { .. } => "Make a new one instead of changing it.".into(),
            Error::CredentialRejected { .. } => "Store a reference to the secret, not the secret.".into(),
            Error::DigestMismatch { column: "lines", .. } => "Export the session again; nothing was written.".into(),
            Error::DigestMismatch { .. } => "Leave the column out to have it set.".into(),
            Error::LimitExceeded { .. } => "Split the content, or have the administrator raise the limit.".into(),
            Error::TenantDenied { .. } => {
                "Set agent_sessions.tenant (or call tenant_use) to a tenant that this role is bound to.".into()
            }
            Error::TransitionConflict { .. } => "Read the status again before you decide.".into(),
            Error::DedupeConflict { .. } => "Use a new key for new content.".into(),
            Error::HasBranches { .. } => "Use session_delete, which hides it until the last branch is gone.".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn detail(error: &Error) -> Value {
        serde_json::from_str(&error.detail()).expect("DETAIL is JSON")
    }

    #[test]
    fn a_conflict_tells_expected_and_actual() {
        let conflict = Error::PositionConflict { expected: 3, actual: 7 };
        assert_eq!(conflict.code(), "SE007");
        assert_eq!(detail(&conflict), json!({"expected": 3, "actual": 7}));
    }

    #[test]
    fn an_element_is_named_only_inside_a_batch() {
        let alone = Error::invalid("kind", "must not be empty");
        assert_eq!(detail(&alone), json!({"argument": "kind", "reason": "must not be empty"}));
        assert_eq!(detail(&alone.in_element(4))["element"], 4);
        let limit = Error::LimitExceeded { argument: "payload", limit: 1, actual: 2, element: None };
        assert_eq!(detail(&limit.in_element(0)), json!({"argument": "payload", "limit": 1, "actual": 2, "element": 0}));
    }

    #[test]
    fn hostile_names_stay_json() {
        let error = Error::SessionNotFound {
            session_id: "a\"\\\u{7}b".into(),
            agent_id: "\u{1F680}".into(),
            found_under: None,
        };
        assert_eq!(detail(&error)["session_id"], "a\"\\\u{7}b");
    }

    #[test]
    fn a_session_of_another_agent_is_named_in_the_hint() {
        let error = Error::SessionNotFound {
            session_id: "s".into(),
            agent_id: String::new(),
            found_under: Some("coder".into()),
        };
        assert!(error.hint().contains("coder"));
    }
}
