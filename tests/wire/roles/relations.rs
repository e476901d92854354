//! Every table, view, sequence and type of the schema: who may do what with it, and values that its columns accept.

use super::Level::{self, Auditor, Owner, Reader, Writer};

/// A table, with every column of it; or a view, a sequence or a type, which has none here.
pub struct Relation {
    pub name: &'static str,
    pub kind: Kind,
    /// From which level on its rows are read.
    pub select: Level,
    /// From which level on they are deleted; the rules decide which.
    pub delete: Level,
    pub columns: &'static [Column],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Table,
    View,
    Sequence,
    Type,
}

pub struct Column {
    pub name: &'static str,
    /// From which level on the column is given by INSERT, and changed by UPDATE.
    pub insert: Level,
    pub update: Level,
    /// What is inserted, and what it is changed to.
    pub value: &'static str,
    pub changed: &'static str,
    /// Whether no row goes without it.
    pub required: bool,
}

impl Column {
    const fn of(name: &'static str, insert: Level, update: Level, value: &'static str) -> Column {
        Column { name, insert, update, value, changed: value, required: false }
    }

    const fn becomes(mut self, changed: &'static str) -> Column {
        self.changed = changed;
        self
    }

    const fn required(mut self) -> Column {
        self.required = true;
        self
    }
}

/// A column that the engine sets.
const fn kept(name: &'static str, value: &'static str) -> Column {
    Column::of(name, Owner, Owner, value)
}

/// A column that a client gives once.
const fn given(name: &'static str, value: &'static str) -> Column {
    Column::of(name, Writer, Owner, value)
}

/// A column that a client gives and changes.
const fn free(name: &'static str, value: &'static str) -> Column {
    Column::of(name, Writer, Writer, value)
}

/// A column that the engine sets, and that a client's UPDATE may confirm.
const fn advanced(name: &'static str, value: &'static str) -> Column {
    Column::of(name, Owner, Writer, value)
}

const fn table(name: &'static str, select: Level, delete: Level, columns: &'static [Column]) -> Relation {
    Relation { name, kind: Kind::Table, select, delete, columns }
}

/// A table of the owner's alone.
const fn closed(name: &'static str, columns: &'static [Column]) -> Relation {
    table(name, Owner, Owner, columns)
}

const fn view(name: &'static str, select: Level) -> Relation {
    Relation { name, kind: Kind::View, select, delete: Owner, columns: &[] }
}

const fn sequence(name: &'static str) -> Relation {
    Relation { name, kind: Kind::Sequence, select: Owner, delete: Owner, columns: &[] }
}

const fn row_type(name: &'static str) -> Relation {
    Relation { name, kind: Kind::Type, select: Owner, delete: Owner, columns: &[] }
}

/// Used where there is a session `{sid}` of three items and one, `{streamed}`, with an open item at position 0.
pub const RELATIONS: &[Relation] = &[
    table(
        "session",
        Reader,
        Writer,
        &[
            kept("sid", "default"),
            given("tenant", "''").becomes("'x'"),
            given("agent_id", "'a'"),
            given("session_id", "'t'").required(),
            free("owner", "'o'"),
            given("parent_sid", "{sid}"),
            given("branched_from", "{sid}"),
            given("fork_position", "1"),
            kept("fork_digest", "null").becomes("sha256('')"),
            free("origin", "'cli'"),
            free("title", "'t'"),
            free("status", "'open'"),
            free("metadata", "'{}'"),
            free("state", "'{}'"),
            advanced("revision", "1"),
            free("input_tokens", "1"),
            free("output_tokens", "1"),
            free("cost", "0.5"),
            kept("lease_digest", "sha256('')").becomes("null"),
            kept("lease_fence", "1"),
            kept("lease_holder", "'h'"),
            kept("lease_expires_at", "now()").becomes("null"),
            kept("base_position", "0").becomes("1"),
            kept("base_digest", "null").becomes("sha256('')"),
            kept("active_at", "now()"),
            given("created_at", "'2020-01-01'"),
            kept("updated_at", "now()"),
            advanced("closed_at", "now()"),
            free("expires_at", "'2100-01-01'"),
            kept("deleted_at", "null").becomes("now()"),
        ],
    ),
    table(
        "session_item",
        Reader,
        Owner,
        &[
            given("sid", "{sid}").required(),
            given("position", "3"),
            kept("tenant", "''"),
            kept("agent_id", "''"),
            given("op", "'append'"),
            given("kind", "'note'"),
            given("item_id", "'j'"),
            given("tag", "'t'"),
            given("author", "'a'"),
            given("target", "1"),
            given("payload", "'1'").required(),
            given("attrs", "'{}'"),
            kept("salt", "gen_random_uuid()"),
            kept("content_digest", "sha256('')"),
            kept("digest", "sha256('')"),
            kept("created_at", "now()"),
        ],
    ),
    table(
        "session_delta",
        Reader,
        Owner,
        &[
            given("sid", "{streamed}").required(),
            given("target", "0").required(),
            given("chunk_no", "1").required(),
            kept("tenant", "''"),
            kept("agent_id", "''"),
            given("chunk", "'c'").required(),
        ],
    ),
    view("session_head", Reader),
    view("live_item", Reader),
    view("lease_status", Reader),
    view("session_activity", Reader),
    view("tenant_usage", Reader),
    table(
        "audit_event",
        Auditor,
        Owner,
        &[
            given("tenant", "''"),
            given("stream", "'logins'"),
            given("seq", "2"),
            given("event_id", "'e'"),
            given("occurred_at", "'2020-01-01'"),
            kept("recorded_at", "now()"),
            given("action", "'login'").required(),
            given("actor", "'ann'"),
            given("target", "'door'"),
            given("session_id", "'s'"),
            given("status", "'ok'"),
            given("attrs", "'{}'"),
            given("payload", "'{}'"),
            kept("fields", "'{}'"),
            kept("data", "'{}'"),
            given("prev_hash", "'sha256:' || repeat('0', 64)"),
            given("hash", "null").becomes("''"),
        ],
    ),
    table(
        "audit_chain",
        Auditor,
        Owner,
        &[
            kept("tenant", "''").required(),
            kept("stream", "'new'").required(),
            kept("base_seq", "0").becomes("1"),
            kept("base_hash", "null").becomes("''"),
        ],
    ),
    table(
        "audit_anchor",
        Auditor,
        Owner,
        &[
            kept("tenant", "''").required(),
            kept("anchor_id", "7").required(),
            kept("root", "''").required(),
            kept("chains", "1").required(),
            kept("at", "now()").required(),
        ],
    ),
    table(
        "audit_anchor_leaf",
        Auditor,
        Owner,
        &[
            kept("tenant", "''").required(),
            kept("anchor_id", "7").required(),
            kept("ordinal", "7").required(),
            kept("leaf", "''").required(),
            kept("stream", "''"),
            kept("seq", "1"),
        ],
    ),
    view("audit_stream", Auditor),
    closed("audit_tracking", &[kept("tenant", "''").required(), kept("what", "'state'").required()]),
    closed("setting", &[kept("name", "'force_rls'").required(), kept("value", "'off'").required()]),
    closed("tenant_binding", &[kept("role", "'{role}'").required(), kept("tenant", "'a'").required()]),
    view("as_installed", Owner),
    view("schema_object", Owner),
    view("as_found", Owner),
    view("finding_catalog", Owner),
    view("finding_access", Owner),
    view("finding_data", Owner),
    view("finding_ownership", Owner),
    view("finding_server", Owner),
    sequence("session_sid_seq"),
    sequence("lease_fence_seq"),
    row_type("session_row"),
    row_type("item_row"),
    row_type("audit_row"),
];
