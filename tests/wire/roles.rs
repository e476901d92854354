//! Who may do what: every function, table and view of the schema, as a role without grants, a reader, a writer and the
//! owner. What exists and is not listed here fails the test, so that nothing is added without an answer to the question.

use std::collections::{BTreeMap, BTreeSet};

use agent_sessions_tests::{Cluster, Connection, Database, Role, assert_sqlstate, detail, sqlstate};
use serde_json::json;
use tokio_postgres::SimpleQueryMessage;

/// Who may call a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Caller {
    Reader,
    Auditor,
    Writer,
    Admin,
    Owner,
    /// A trigger's own; nobody calls it, and nobody makes a trigger of it on another table.
    Trigger,
}

struct Function {
    name: &'static str,
    caller: Caller,
    /// Every argument by name, with a value that is accepted; `{role}` is a role.
    arguments: &'static [(&'static str, &'static str)],
    /// What the call with NULL for every argument is refused with.
    all_null: Option<&'static str>,
}

const fn function(
    name: &'static str,
    caller: Caller,
    all_null: Option<&'static str>,
    arguments: &'static [(&'static str, &'static str)],
) -> Function {
    Function { name, caller, arguments, all_null }
}

use Caller::{Admin, Auditor, Owner, Reader, Trigger, Writer};

const MISSING: Option<&str> = Some("SE001");

/// Called on the session `s` with items at the positions 0 to 2, the last of them identified by `i`.
const FUNCTIONS: &[Function] = &[
    function("current_tenant", Reader, None, &[]),
    function("current_agent", Reader, None, &[]),
    function("isolated_agent", Reader, None, &[]),
    function("tenant_use", Reader, None, &[("tenant", "'a'")]),
    function("tenant_bind", Owner, MISSING, &[("role", "'{role}'"), ("tenant", "'a'")]),
    function("tenant_unbind", Owner, MISSING, &[("role", "'{role}'"), ("tenant", "'a'")]),
    function("access_grant", Owner, MISSING, &[("role", "'{role}'"), ("level", "'reader'")]),
    function("access_revoke", Owner, MISSING, &[("role", "'{role}'")]),
    function("access_force_rls", Owner, MISSING, &[("enabled", "true")]),
    function("schema_version", Reader, None, &[]),
    function("schema_require", Reader, None, &[("min", "'0.0.0'"), ("max", "'999.0.0'")]),
    function("page_rows", Reader, None, &[("max_rows", "1"), ("otherwise", "2")]),
    function("list_order", Reader, None, &[("order_by", "'created'")]),
    function("list_cursor", Reader, None, &[("order_by", "'created'"), ("at", "now()"), ("sid", "1")]),
    function(
        "cursor_at",
        Reader,
        None,
        &[("order_by", "'created'"), ("after", "agent_sessions.list_cursor('created', now(), 1)")],
    ),
    function(
        "cursor_sid",
        Reader,
        None,
        &[("order_by", "'created'"), ("after", "agent_sessions.list_cursor('created', now(), 1)")],
    ),
    function("session_get", Reader, None, &[("session_id", "'s'"), ("agent_id", "''"), ("tenant", "''")]),
    function(
        "session_matching",
        Reader,
        None,
        &[
            ("tenant", "''"),
            ("agent_id", "''"),
            ("owner", "'o'"),
            ("origin", "'cli'"),
            ("status", "'open'"),
            ("metadata", "'{}'"),
            ("title", "'t'"),
            ("roots_only", "true"),
        ],
    ),
    function(
        "session_list",
        Reader,
        None,
        &[
            ("owner", "'o'"),
            ("origin", "'cli'"),
            ("status", "'open'"),
            ("parent_session_id", "'s'"),
            ("branched_from", "'s'"),
            ("metadata", "'{}'"),
            ("title", "'t'"),
            ("roots_only", "false"),
            ("order_by", "'activity'"),
            ("after", "agent_sessions.list_cursor('activity', now(), 1)"),
            ("max_rows", "10"),
            ("agent_id", "''"),
            ("tenant", "''"),
        ],
    ),
    function("sids_named", Reader, None, &[("session_id", "'s'"), ("tenant", "''")]),
    function(
        "session_history",
        Reader,
        None,
        &[
            ("session_id", "'s'"),
            ("after", "0"),
            ("before", "9"),
            ("max_rows", "5"),
            ("newest_first", "true"),
            ("kinds", "'{message}'"),
            ("tags", "'{t}'"),
            ("item_ids", "'{i}'"),
            ("attrs", "'{}'"),
            ("agent_id", "''"),
            ("tenant", "''"),
        ],
    ),
    function(
        "session_log",
        Reader,
        None,
        &[
            ("session_id", "'s'"),
            ("after", "0"),
            ("before", "9"),
            ("max_rows", "5"),
            ("newest_first", "true"),
            ("agent_id", "''"),
            ("tenant", "''"),
        ],
    ),
    function(
        "session_context",
        Reader,
        None,
        &[("session_id", "'s'"), ("max_rows", "5"), ("agent_id", "''"), ("tenant", "''")],
    ),
    function("session_stats", Reader, None, &[("session_id", "'s'"), ("agent_id", "''"), ("tenant", "''")]),
    function("session_lineage", Reader, None, &[("session_id", "'s'"), ("agent_id", "''"), ("tenant", "''")]),
    function("session_verify", Reader, None, &[("session_id", "'s'"), ("agent_id", "''"), ("tenant", "''")]),
    function("session_export", Reader, None, &[("session_id", "'s'"), ("agent_id", "''"), ("tenant", "''")]),
    function(
        "session_import",
        Writer,
        MISSING,
        &[("lines", "'[{\"session\": {}}]'"), ("session_id", "'imported'"), ("agent_id", "''")],
    ),
    function(
        "session_create",
        Writer,
        None,
        &[
            ("session_id", "'new'"),
            ("title", "'t'"),
            ("metadata", "'{}'"),
            ("state", "'{}'"),
            ("owner", "'o'"),
            ("origin", "'cli'"),
            ("parent_session_id", "'s'"),
            ("parent_agent_id", "''"),
            ("items", "'[{\"payload\": 1}]'"),
            ("status", "'open'"),
            ("input_tokens", "1"),
            ("output_tokens", "2"),
            ("cost", "0.5"),
            ("expires_at", "'2100-01-01'"),
            ("created_at", "'2020-01-01'"),
            ("on_conflict", "'keep'"),
            ("agent_id", "'a'"),
        ],
    ),
    function(
        "session_set",
        Writer,
        MISSING,
        &[
            ("session_id", "'new'"),
            ("state", "'{}'"),
            ("metadata", "'{}'"),
            ("merge", "true"),
            ("title", "'t'"),
            ("status", "'open'"),
            ("owner", "'o'"),
            ("input_tokens", "1"),
            ("output_tokens", "2"),
            ("cost", "0.5"),
            ("origin", "'cli'"),
            ("expires_at", "'2100-01-01'"),
            ("created_at", "'2020-01-01'"),
            ("expected_revision", "0"),
            ("on_missing", "'create'"),
            ("agent_id", "''"),
            ("lease", "null"),
        ],
    ),
    function(
        "session_delete",
        Writer,
        MISSING,
        &[("session_id", "'s'"), ("on_missing", "'error'"), ("agent_id", "''"), ("lease", "null")],
    ),
    function(
        "session_append",
        Writer,
        MISSING,
        &[
            ("session_id", "'s'"),
            ("payload", "'{}'"),
            ("kind", "'note'"),
            ("item_id", "'j'"),
            ("tag", "'t'"),
            ("author", "'a'"),
            ("attrs", "'{}'"),
            ("kept_from", "1"),
            ("open", "false"),
            ("expected_position", "3"),
            ("on_conflict", "'error'"),
            ("on_missing", "'error'"),
            ("agent_id", "''"),
            ("lease", "null"),
        ],
    ),
    function(
        "session_append_batch",
        Writer,
        MISSING,
        &[
            ("session_id", "'s'"),
            ("items", "'[{\"payload\": 1}]'"),
            ("expected_position", "3"),
            ("on_conflict", "'error'"),
            ("on_missing", "'error'"),
            ("agent_id", "''"),
            ("lease", "null"),
        ],
    ),
    function(
        "session_revise",
        Writer,
        MISSING,
        &[
            ("session_id", "'s'"),
            ("payload", "'[]'"),
            ("target", "null"),
            ("item_id", "'i'"),
            ("kind", "'message'"),
            ("attrs", "'{}'"),
            ("expected_position", "3"),
            ("agent_id", "''"),
            ("lease", "null"),
        ],
    ),
    function(
        "session_retract",
        Writer,
        MISSING,
        &[
            ("session_id", "'s'"),
            ("targets", "'{0}'"),
            ("item_ids", "'{i}'"),
            ("from_target", "null"),
            ("expected_position", "3"),
            ("on_missing", "'error'"),
            ("agent_id", "''"),
            ("lease", "null"),
        ],
    ),
    function(
        "session_delta",
        Writer,
        MISSING,
        &[
            ("session_id", "'s'"),
            ("target", "agent_sessions.session_append('s', '1', open => true)"),
            ("chunk_no", "0"),
            ("chunk", "'c'"),
            ("durable", "true"),
            ("agent_id", "''"),
            ("lease", "null"),
        ],
    ),
    function(
        "session_branch",
        Writer,
        MISSING,
        &[
            ("session_id", "'s'"),
            ("at_target", "1"),
            ("at_item_id", "null"),
            ("at_tag", "null"),
            ("new_session_id", "'branch'"),
            ("inherit", "true"),
            ("seed", "'1'"),
            ("title", "'fork %d'"),
            ("new_agent_id", "''"),
            ("agent_id", "''"),
            ("lease", "null"),
        ],
    ),
    function("session_flatten", Writer, MISSING, &[("session_id", "'s'"), ("agent_id", "''"), ("lease", "null")]),
    function(
        "session_trim",
        Writer,
        MISSING,
        &[("session_id", "'s'"), ("keep_from", "1"), ("force", "true"), ("agent_id", "''"), ("lease", "null")],
    ),
    function(
        "session_erase",
        Writer,
        MISSING,
        &[
            ("session_id", "'s'"),
            ("target", "null"),
            ("item_id", "'i'"),
            ("reason", "'asked for'"),
            ("agent_id", "''"),
            ("lease", "null"),
        ],
    ),
    function("session_expire", Writer, None, &[("older_than", "'1 day'"), ("max_rows", "10")]),
    function("session_pop", Writer, MISSING, &[("session_id", "'s'"), ("agent_id", "''"), ("lease", "null")]),
    function(
        "session_claim",
        Writer,
        MISSING,
        &[
            ("session_id", "'s'"),
            ("ttl", "'1 minute'"),
            ("holder", "'h'"),
            ("wait", "'0'"),
            ("on_missing", "'error'"),
            ("agent_id", "''"),
        ],
    ),
    function(
        "session_claim_next",
        Writer,
        MISSING,
        &[("status", "'open'"), ("ttl", "'1 minute'"), ("holder", "'h'"), ("owner", "'o'"), ("agent_id", "''")],
    ),
    function(
        "session_extend",
        Writer,
        MISSING,
        &[
            ("session_id", "'s'"),
            ("lease", "(select c.lease from agent_sessions.session_claim('s', '1 minute') c)"),
            ("ttl", "'1 minute'"),
            ("allow_expired", "false"),
            ("agent_id", "''"),
        ],
    ),
    function("session_release", Writer, None, &[("session_id", "'s'"), ("lease", "'1:a'"), ("agent_id", "''")]),
    function("session_break_lease", Admin, MISSING, &[("session_id", "'s'"), ("agent_id", "''")]),
    function(
        "audit_append",
        Writer,
        MISSING,
        &[
            ("action", "'login'"),
            ("payload", "'{}'"),
            ("stream", "'logins'"),
            ("actor", "'ann'"),
            ("target", "'door'"),
            ("session_id", "'s'"),
            ("status", "'ok'"),
            ("attrs", "'{}'"),
            ("occurred_at", "'2020-01-01'"),
            ("event_id", "'e'"),
        ],
    ),
    function(
        "audit_append_batch",
        Writer,
        MISSING,
        &[("stream", "'logins'"), ("events", "'[{\"action\": \"login\"}]'")],
    ),
    function("audit_import", Writer, MISSING, &[("stream", "'old'"), ("lines", "'[]'"), ("fields", "'{}'")]),
    function("audit_prune", Admin, MISSING, &[("stream", "'logins'"), ("before_seq", "2")]),
    function("audit_payload", Auditor, None, &[("data", "'{\"payload\": 1}'")]),
    function(
        "audit_matching",
        Auditor,
        None,
        &[
            ("tenant", "''"),
            ("stream", "''"),
            ("actor", "'ann'"),
            ("action", "'login'"),
            ("target", "'door'"),
            ("session_id", "'s'"),
            ("status", "'ok'"),
            ("attrs", "'{}'"),
            ("since", "'2020-01-01'"),
            ("until", "'2100-01-01'"),
        ],
    ),
    function(
        "audit_list",
        Auditor,
        None,
        &[
            ("stream", "''"),
            ("actor", "'ann'"),
            ("action", "'login'"),
            ("target", "'door'"),
            ("session_id", "'s'"),
            ("status", "'ok'"),
            ("attrs", "'{}'"),
            ("since", "'2020-01-01'"),
            ("until", "'2100-01-01'"),
            ("after", "0"),
            ("before", "9"),
            ("newest_first", "false"),
            ("max_rows", "5"),
            ("tenant", "''"),
        ],
    ),
    function(
        "audit_stats",
        Auditor,
        None,
        &[("stream", "''"), ("since", "'2020-01-01'"), ("until", "'2100-01-01'"), ("tenant", "''")],
    ),
    function("audit_export", Auditor, None, &[("stream", "''"), ("after", "0"), ("max_rows", "5"), ("tenant", "''")]),
    function(
        "audit_verify",
        Auditor,
        None,
        &[("stream", "''"), ("from_seq", "1"), ("head_seq", "1"), ("head_hash", "'x'"), ("tenant", "''")],
    ),
    function("audit_anchor", Writer, None, &[]),
    function("audit_check_anchor", Auditor, MISSING, &[("root", "'00'"), ("anchor_id", "1")]),
    function("audit_proof", Auditor, MISSING, &[("stream", "'logins'"), ("seq", "1"), ("anchor_id", "1")]),
    function("audit_check_proof", Auditor, MISSING, &[("proof", "'{}'"), ("root", "'00'")]),
    function("audit_track", Admin, MISSING, &[("what", "'all'"), ("enabled", "true")]),
    function("on_session_insert", Trigger, None, &[]),
    function("on_session_changed", Trigger, None, &[]),
    function("on_session_branched", Trigger, None, &[]),
    function("on_audit_insert", Trigger, None, &[]),
    function("on_audit_change", Trigger, None, &[]),
    function("on_chain_change", Trigger, None, &[]),
    function("on_session_update", Trigger, None, &[]),
    function("on_session_delete", Trigger, None, &[]),
    function("on_item_insert", Trigger, None, &[]),
    function("on_item_change", Trigger, None, &[]),
    function("on_items_inserted", Trigger, None, &[]),
    function("on_item_closed", Trigger, None, &[]),
    function("on_delta_insert", Trigger, None, &[]),
    function("on_delta_update", Trigger, None, &[]),
    function("on_truncate", Trigger, None, &[]),
    function("on_tenant_binding", Trigger, None, &[]),
];

/// A table, view or sequence: what a reader and a writer may do with the whole of it, and a writer with its columns.
struct Relation {
    name: &'static str,
    reader: &'static [&'static str],
    writer: &'static [&'static str],
    inserts: &'static [&'static str],
    updates: &'static [&'static str],
}

const fn read_only(name: &'static str) -> Relation {
    Relation { name, reader: &["SELECT"], writer: &["SELECT"], inserts: &[], updates: &[] }
}

/// For who reads the audit trail, too.
const fn audited(name: &'static str) -> Relation {
    Relation { name, reader: &[], writer: &["SELECT"], inserts: &[], updates: &[] }
}

const fn closed(name: &'static str) -> Relation {
    Relation { name, reader: &[], writer: &[], inserts: &[], updates: &[] }
}

const RELATIONS: &[Relation] = &[
    Relation {
        name: "session",
        reader: &["SELECT"],
        writer: &["SELECT", "DELETE"],
        inserts: &[
            "tenant",
            "agent_id",
            "session_id",
            "owner",
            "parent_sid",
            "branched_from",
            "fork_position",
            "origin",
            "title",
            "status",
            "metadata",
            "state",
            "input_tokens",
            "output_tokens",
            "cost",
            "created_at",
            "expires_at",
        ],
        updates: &[
            "owner",
            "origin",
            "title",
            "status",
            "metadata",
            "state",
            "revision",
            "input_tokens",
            "output_tokens",
            "cost",
            "closed_at",
            "expires_at",
        ],
    },
    Relation {
        name: "session_item",
        reader: &["SELECT"],
        writer: &["SELECT"],
        inserts: &["sid", "position", "op", "kind", "item_id", "tag", "author", "target", "payload", "attrs"],
        updates: &[],
    },
    Relation {
        name: "session_delta",
        reader: &["SELECT"],
        writer: &["SELECT"],
        inserts: &["sid", "target", "chunk_no", "chunk"],
        updates: &[],
    },
    read_only("session_head"),
    read_only("live_item"),
    read_only("lease_status"),
    Relation {
        name: "audit_event",
        reader: &[],
        writer: &["SELECT"],
        inserts: &[
            "tenant",
            "stream",
            "seq",
            "event_id",
            "occurred_at",
            "action",
            "actor",
            "target",
            "session_id",
            "status",
            "attrs",
            "payload",
            "prev_hash",
            "hash",
        ],
        updates: &[],
    },
    audited("audit_chain"),
    audited("audit_anchor"),
    audited("audit_anchor_leaf"),
    audited("audit_stream"),
    closed("audit_tracking"),
    closed("lease_fence_seq"),
    closed("setting"),
    closed("tenant_binding"),
    closed("session_sid_seq"),
];

async fn with_a_session(db: &Database) {
    let writer = db.writer().await;
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

#[tokio::test(flavor = "multi_thread")]
async fn every_function_has_its_callers_and_takes_every_argument_by_name() {
    let db = Database::create("roles_functions").await;
    with_a_session(&db).await;
    let other = db.role("other", None).await;
    let sql = "select p.proname::text, coalesce(p.proargnames[:p.pronargs], '{}')::text[], p.proisstrict
               from pg_proc p where p.pronamespace = 'agent_sessions'::regnamespace";
    let installed = db.superuser().await.query(sql, &[]).await.expect("the functions");
    let mut unlisted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in &installed {
        let name: String = row.get(0);
        assert!(!row.get::<_, bool>(2), "{name} is STRICT");
        let arguments: Vec<String> = row.get(1);
        assert!(unlisted.insert(name.clone(), arguments.into_iter().collect()).is_none(), "{name} is overloaded");
    }

    let auditor = db.role("auditor", Some("auditor")).await;
    let admin = db.role("admin", Some("admin")).await;
    let callers = [
        (db.stranger().await, "stranger", None),
        (db.reader().await, "reader", Some(Reader)),
        (db.connect(Role::Named(auditor)).await, "auditor", Some(Auditor)),
        (db.writer().await, "writer", Some(Writer)),
        (db.connect(Role::Named(admin)).await, "admin", Some(Admin)),
        (db.owner().await, "owner", Some(Owner)),
    ];
    for function in FUNCTIONS {
        let name = function.name;
        let arguments = unlisted.remove(name).unwrap_or_else(|| panic!("{name} is not in the schema"));
        let listed: BTreeSet<String> = function.arguments.iter().map(|(argument, _)| argument.to_string()).collect();
        assert_eq!(listed, arguments, "the arguments of {name}");
        let given: Vec<String> =
            function.arguments.iter().map(|(argument, value)| format!("{argument} => {value}")).collect();
        let call = format!("select * from agent_sessions.{name}({})", given.join(", ")).replace("{role}", &other);
        for (connection, role, level) in &callers {
            let call = if function.caller == Trigger { call.replace("* from ", "") } else { call.clone() };
            connection.begin("read committed").await;
            let called = connection.batch_execute(&call).await;
            connection.rollback().await;
            let code = called.as_ref().err().map(sqlstate);
            let wanted = match function.caller {
                caller if level.is_some_and(|level| level >= caller) => None,
                _ => Some("42501"),
            };
            assert_eq!(code, wanted, "as {role}: {call}: {called:?}");
        }
    }
    assert!(unlisted.is_empty(), "functions without an entry in FUNCTIONS: {unlisted:?}");
}

/// NULL means not given, for every argument; what must be given is SE001.
#[tokio::test(flavor = "multi_thread")]
async fn every_function_takes_null_for_every_argument() {
    let db = Database::create("roles_nulls").await;
    with_a_session(&db).await;
    let owner = db.owner().await;
    for function in FUNCTIONS.iter().filter(|function| function.caller != Trigger) {
        let given: Vec<String> = function.arguments.iter().map(|(argument, _)| format!("{argument} => null")).collect();
        let call = format!("select * from agent_sessions.{}({})", function.name, given.join(", "));
        owner.begin("read committed").await;
        let called = owner.batch_execute(&call).await;
        owner.rollback().await;
        assert_eq!(called.as_ref().err().map(sqlstate), function.all_null, "{call}: {called:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_relation_has_its_privileges() {
    let db = Database::create("roles_relations").await;
    let superuser = db.superuser().await;
    let mut unlisted: BTreeSet<String> = list(
        &superuser,
        "select relname::text from pg_class
         where relnamespace = 'agent_sessions'::regnamespace and relkind not in ('i', 'c')",
    )
    .await
    .into_iter()
    .collect();
    let mut privileges = vec!["SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"];
    if Cluster::major() >= 17 {
        privileges.push("MAINTAIN");
    }
    let roles = [Role::Stranger, Role::Reader, Role::Writer].map(|role| (db.role_name(&role), role));
    for relation in RELATIONS {
        let name = relation.name;
        assert!(unlisted.remove(name), "{name} is not in the schema");
        for (role_name, role) in &roles {
            let (whole, inserts, updates): (&[&str], &[&str], &[&str]) = match role {
                Role::Writer => (relation.writer, relation.inserts, relation.updates),
                Role::Reader => (relation.reader, &[], &[]),
                _ => (&[], &[], &[]),
            };
            let holds = if name.ends_with("_seq") { "has_sequence_privilege" } else { "has_table_privilege" };
            let asked = if name.ends_with("_seq") { vec!["USAGE", "SELECT", "UPDATE"] } else { privileges.clone() };
            let sql = format!(
                "select p from unnest($1::text[]) p where {holds}('{role_name}', 'agent_sessions.{name}', p) order by 1"
            );
            let held: Vec<String> =
                superuser.query(&sql, &[&asked]).await.expect("privileges").iter().map(|row| row.get(0)).collect();
            let wanted: BTreeSet<&str> = whole.iter().copied().collect();
            assert_eq!(held.iter().map(String::as_str).collect::<BTreeSet<_>>(), wanted, "{role:?} on {name}");
            if name.ends_with("_seq") {
                continue;
            }
            for (privilege, wanted) in [("INSERT", inserts), ("UPDATE", updates), ("REFERENCES", &[])] {
                let sql = format!(
                    "select attname::text from pg_attribute
                     where attrelid = 'agent_sessions.{name}'::regclass and attnum > 0 and not attisdropped
                       and has_column_privilege('{role_name}', attrelid, attnum, '{privilege}')"
                );
                let held: BTreeSet<String> = list(&superuser, &sql).await.into_iter().collect();
                let wanted: BTreeSet<String> = wanted.iter().map(|column| column.to_string()).collect();
                assert_eq!(held, wanted, "{privilege} of {role:?} on columns of {name}");
            }
        }
    }
    assert!(unlisted.is_empty(), "relations without an entry in RELATIONS: {unlisted:?}");
    for (role_name, role) in &roles {
        let sql = format!(
            "select has_schema_privilege('{role_name}', 'agent_sessions', 'USAGE'),
                    has_schema_privilege('{role_name}', 'agent_sessions', 'CREATE')"
        );
        let row = superuser.query_one(&sql, &[]).await.expect("privileges");
        let held: (bool, bool) = (row.get(0), row.get(1));
        assert_eq!(held, (!matches!(role, Role::Stranger), false), "{role:?} on the schema");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_sees_the_rows_that_it_may() {
    let db = Database::create("roles_rows").await;
    let writer = db.writer().await;
    for tenant in ["", "other"] {
        writer.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        writer.create_session("s").await;
        writer.append("s", "1").await;
    }
    writer.run("reset agent_sessions.tenant").await;
    let (reader, owner, stranger) = (db.reader().await, db.owner().await, db.stranger().await);
    // The owner passes the policies, as it has to dump the tables; functions and the public view keep to the tenant.
    for (rows, tenant, of_the_owner) in [
        ("agent_sessions.session", 1, 2),
        ("agent_sessions.session_item", 1, 2),
        ("agent_sessions.session_head", 1, 2),
        ("agent_sessions.live_item", 1, 1),
        ("agent_sessions.session_get(session_id => 's')", 1, 1),
        ("agent_sessions.session_list()", 1, 1),
        ("agent_sessions.session_history(session_id => 's')", 1, 1),
        ("agent_sessions.session_log(session_id => 's')", 1, 1),
        ("agent_sessions.session_stats(session_id => 's')", 1, 1),
        ("agent_sessions.session_verify(session_id => 's')", 1, 1),
        ("agent_sessions.session_lineage(session_id => 's')", 1, 1),
    ] {
        let sql = format!("select count(*) from {rows}");
        for (connection, wanted) in [(&reader, tenant), (&writer, tenant), (&owner, of_the_owner)] {
            assert_eq!(connection.value::<i64>(&sql, &[]).await, wanted, "{rows}");
        }
        assert_sqlstate!(stranger.query(&sql, &[]).await, "42501");
    }
    for table in ["agent_sessions.setting", "agent_sessions.tenant_binding", "agent_sessions.audit_tracking"] {
        let sql = format!("select count(*) from {table}");
        for connection in [&reader, &writer, &stranger] {
            assert_sqlstate!(connection.query(&sql, &[]).await, "42501");
        }
        owner.value::<i64>(&sql, &[]).await;
    }
}

/// A reader writes nothing by raw SQL either.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_writes_nothing() {
    let db = Database::create("roles_reader").await;
    with_a_session(&db).await;
    let reader = db.reader().await;
    for sql in [
        "insert into agent_sessions.session (session_id) values ('t')",
        "insert into agent_sessions.session_item (sid, payload) select sid, '1' from agent_sessions.session",
        "update agent_sessions.session set title = 'x'",
        "delete from agent_sessions.session",
        "select from agent_sessions.session for update",
        "select from agent_sessions.session for key share",
        "truncate agent_sessions.session",
        "do $$ begin lock table agent_sessions.session in share mode; end $$",
    ] {
        assert_sqlstate!(reader.batch_execute(sql).await, "42501");
    }
    reader.assert_dense("s", 3).await;
}

const ACLS: &str = "
    with acls (object, acl) as (
      select 'relation ' || oid::regclass,
        coalesce(relacl, acldefault(case relkind when 'S' then 's' else 'r' end::\"char\", relowner))
      from pg_class where relnamespace = 'agent_sessions'::regnamespace and relkind in ('r', 'v', 'S', 'm')
      union all
      select 'column ' || attrelid::regclass || '.' || attname, attacl
      from pg_attribute join pg_class on pg_class.oid = attrelid
      where relnamespace = 'agent_sessions'::regnamespace and attacl is not null
      union all
      select 'function ' || oid::regprocedure, coalesce(proacl, acldefault('f', proowner))
      from pg_proc where pronamespace = 'agent_sessions'::regnamespace
      union all
      select 'schema ' || nspname, coalesce(nspacl, acldefault('n', nspowner)) from pg_namespace where nspname = 'agent_sessions'
      union all
      select 'type ' || oid::regtype, typacl from pg_type where typnamespace = 'agent_sessions'::regnamespace
      union all
      select 'default ' || oid, defaclacl from pg_default_acl
    )
    select object, grantee, grantor, privilege_type, is_grantable
    from acls, lateral aclexplode(acl)";

async fn acls(connection: &Connection) -> Vec<String> {
    let sql = format!(
        "select concat_ws(' ', object, grantee, grantor, privilege_type, is_grantable) from ({ACLS}) a order by 1"
    );
    list(connection, &sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_granted_to_public() {
    let db = Database::create("roles_public").await;
    let superuser = db.superuser().await;
    let public = format!("select object || ' ' || privilege_type from ({ACLS}) a where grantee = 0");
    assert_none(&superuser, "grants to PUBLIC", &public).await;
    assert!(acls(&superuser).await.len() > FUNCTIONS.len(), "the privileges are looked at");
}

/// What a superuser's default privileges would add to the objects that the installation makes is taken away again.
#[tokio::test(flavor = "multi_thread")]
async fn default_privileges_open_nothing() {
    let db = Database::empty("roles_defaults").await;
    let superuser = db.superuser().await;
    let other = db.role("other", None).await;
    for kind in ["tables", "sequences", "functions", "types", "schemas"] {
        superuser.run(&format!("alter default privileges grant all on {kind} to public, {other}")).await;
    }
    db.owner().await.run("create extension agent_sessions").await;
    let granted = format!(
        "select object || ' ' || privilege_type from ({ACLS}) a
         where object not like 'default %' and grantee in (0, '{other}'::regrole)"
    );
    assert_none(&superuser, "grants by default privileges", &granted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoke_leaves_nothing_of_a_grant() {
    let db = Database::create("roles_revoke").await;
    with_a_session(&db).await;
    let (owner, superuser) = (db.owner().await, db.superuser().await);
    let role = db.role("guest", None).await;
    let guest = db.connect(Role::Named(role.clone())).await;
    let count = "select count(*) from agent_sessions.session";
    let depends = format!(
        "select classid::regclass::text from pg_shdepend where refobjid = '{role}'::regrole
         and dbid = (select oid from pg_database where datname = current_database())"
    );
    let before = acls(&superuser).await;
    for granting in [&owner, &superuser] {
        for level in ["reader", "writer", "auditor", "admin"] {
            assert_sqlstate!(guest.query(count, &[]).await, "42501");
            granting.run(&format!("select agent_sessions.access_grant(role => '{role}', level => '{level}')")).await;
            assert_ne!(acls(&superuser).await, before, "{level}");
            assert_eq!(guest.value::<i64>(count, &[]).await, 1, "{level}");
            let again = acls(&superuser).await;
            granting.run(&format!("select agent_sessions.access_grant(role => '{role}', level => '{level}')")).await;
            assert_eq!(acls(&superuser).await, again, "{level} twice");
            if ["writer", "admin"].contains(&level) {
                guest.append("s", "1").await;
            } else {
                assert_sqlstate!(guest.try_append("s", "1").await, "42501");
            }
            // What a superuser has granted is the owner's to take back.
            owner.run(&format!("select agent_sessions.access_revoke(role => '{role}')")).await;
            assert_eq!(acls(&superuser).await, before, "{level}");
            assert_none(&superuser, level, &depends).await;
        }
        granting.run(&format!("select agent_sessions.access_revoke(role => '{role}')")).await;
        assert_eq!(acls(&superuser).await, before, "a revoke without a grant");
    }
    // A writer who becomes nothing at once, in a session that has its plans.
    owner.run(&format!("select agent_sessions.access_grant('{role}', 'writer')")).await;
    guest.append("s", "2").await;
    owner.run(&format!("select agent_sessions.access_revoke('{role}')")).await;
    assert_sqlstate!(guest.try_append("s", "3").await, "42501");
    assert_sqlstate!(guest.raw_append("s", "3").await, "42501");
}

#[tokio::test(flavor = "multi_thread")]
async fn access_is_handed_out_by_the_owner_only() {
    let db = Database::create("roles_grant").await;
    let (owner, superuser, writer) = (db.owner().await, db.superuser().await, db.writer().await);
    let role = db.role("guest", None).await;
    let deputy = db.role("deputy", Some("writer")).await;
    let before = acls(&superuser).await;
    let calls = [
        format!("select agent_sessions.access_grant('{role}', 'reader')"),
        format!("select agent_sessions.access_revoke('{}')", db.role_name(&Role::Reader)),
        "select agent_sessions.access_force_rls(true)".to_owned(),
        format!("select agent_sessions.tenant_bind('{role}', 'a')"),
        format!("select agent_sessions.tenant_unbind('{role}', 'a')"),
    ];
    for call in &calls {
        assert_sqlstate!(writer.batch_execute(call).await, "42501");
    }
    assert_eq!(acls(&superuser).await, before);

    // EXECUTE alone does not make an owner.
    for function in ["access_grant", "access_revoke", "access_force_rls", "tenant_bind", "tenant_unbind"] {
        owner.run(&format!("grant execute on function agent_sessions.{function} to {deputy}")).await;
    }
    let before = acls(&superuser).await;
    let connection = db.connect(Role::Named(deputy.clone())).await;
    for call in &calls {
        assert_sqlstate!(connection.batch_execute(call).await, "42501");
    }
    assert_eq!(acls(&superuser).await, before);
    assert_eq!(owner.value::<i64>("select count(*) from agent_sessions.tenant_binding", &[]).await, 0);
    assert_eq!(owner.value::<i64>("select count(*) from agent_sessions.setting", &[]).await, 0);
    // A member of the owner's role is as the owner.
    superuser.run(&format!("grant {} to {deputy}", db.role_name(&Role::Owner))).await;
    for call in &calls {
        connection.begin("read committed").await;
        connection.run(call).await;
        connection.rollback().await;
    }

    for level in ["", "owner", "Reader", "superuser"] {
        let call = format!("select agent_sessions.access_grant('{role}', '{level}')");
        let error = assert_sqlstate!(owner.batch_execute(&call).await, "SE001");
        assert_eq!(detail(&error)["argument"], "level");
    }
    for call in [
        "select agent_sessions.access_grant('no such role', 'reader')",
        "select agent_sessions.access_grant('public', 'reader')",
        "select agent_sessions.access_revoke('no such role')",
        "select agent_sessions.tenant_bind('no such role', 'a')",
        "select agent_sessions.tenant_unbind('no such role', 'a')",
    ] {
        assert_sqlstate!(owner.batch_execute(call).await, "42704");
    }
    // A name that has to be quoted is one name.
    let odd = r#"odd "role"; drop table agent_sessions.session_item"#;
    superuser.begin("read committed").await;
    superuser.run(&format!("create role {}", quoted(odd))).await;
    superuser.execute("select agent_sessions.access_grant($1::text::name, 'reader')", &[&odd]).await.expect("a grant");
    let may = "select has_table_privilege($1::text::name, 'agent_sessions.session', 'SELECT')";
    assert!(superuser.value::<bool>(may, &[&odd]).await);
    superuser.execute("select agent_sessions.access_revoke($1::text::name)", &[&odd]).await.expect("a revoke");
    assert!(!superuser.value::<bool>(may, &[&odd]).await);
    superuser.rollback().await;
}

fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_policies_hold_for_the_owner_and_are_remembered() {
    let db = Database::create("roles_force").await;
    let (owner, writer, superuser) = (db.owner().await, db.writer().await, db.superuser().await);
    writer.run("set agent_sessions.tenant = 'a'").await;
    writer.create_session("s").await;
    writer.append("s", "0").await;
    let forced = "select string_agg(distinct relforcerowsecurity::text, ',') from pg_class
                  where relnamespace = 'agent_sessions'::regnamespace and relrowsecurity";
    let remembered = "select coalesce(string_agg(name || ' ' || value, ','), '') from agent_sessions.setting";
    let entries = "select count(*) from agent_sessions.session_item";
    assert_eq!(superuser.value::<String>(forced, &[]).await, "false");
    assert_eq!(owner.value::<i64>(entries, &[]).await, 1);

    owner.run("select agent_sessions.access_force_rls(enabled => true)").await;
    assert_eq!(superuser.value::<String>(forced, &[]).await, "true");
    assert_eq!(superuser.value::<String>(remembered, &[]).await, "force_rls on");
    assert_eq!(owner.value::<i64>(entries, &[]).await, 0, "another tenant's entries");
    owner.run("set agent_sessions.tenant = 'a'").await;
    assert_eq!(owner.value::<i64>(entries, &[]).await, 1);
    owner.append("s", "1").await;
    writer.append("s", "2").await;
    writer.assert_dense("s", 3).await;
    // What follows from a rule still reaches all rows.
    owner.run("set agent_sessions.tenant = 'b'").await;
    writer.run("delete from agent_sessions.session").await;
    assert_eq!(superuser.value::<i64>(entries, &[]).await, 0);

    owner.run("select agent_sessions.access_force_rls(enabled => false)").await;
    assert_eq!(superuser.value::<String>(forced, &[]).await, "false");
    assert_eq!(superuser.value::<String>(remembered, &[]).await, "force_rls off");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_belongs_to_the_extensions_owner_but_c_functions() {
    let db = Database::create("roles_owner").await;
    let superuser = db.superuser().await;
    let owner = db.role_name(&Role::Owner);
    let extension = "select extowner::regrole::text from pg_extension where extname = 'agent_sessions'";
    assert_eq!(superuser.value::<String>(extension, &[]).await, owner);
    let foreign = format!(
        "select 'schema ' || nspname from pg_namespace where nspname = 'agent_sessions' and nspowner <> '{owner}'::regrole
         union all
         select 'relation ' || oid::regclass from pg_class
         where relnamespace = 'agent_sessions'::regnamespace and relowner <> '{owner}'::regrole
         union all
         select 'type ' || oid::regtype from pg_type
         where typnamespace = 'agent_sessions'::regnamespace and typowner <> '{owner}'::regrole
         union all
         select 'function ' || p.oid::regprocedure from pg_proc p join pg_language l on l.oid = p.prolang
         where p.pronamespace = 'agent_sessions'::regnamespace and l.lanname <> 'c' and p.proowner <> '{owner}'::regrole
         union all
         select 'function of no superuser ' || p.oid::regprocedure
         from pg_proc p join pg_language l on l.oid = p.prolang join pg_roles r on r.oid = p.proowner
         where p.pronamespace = 'agent_sessions'::regnamespace and l.lanname = 'c' and not r.rolsuper
         union all
         select 'function that the owner cannot hand on, or trigger that it can ' || p.oid::regprocedure from pg_proc p
         where p.pronamespace = 'agent_sessions'::regnamespace
           and (p.prorettype = 'trigger'::regtype) = has_function_privilege('{owner}', p.oid, 'EXECUTE WITH GRANT OPTION')
         union all
         select 'outside of the extension: ' || p.oid::regprocedure from pg_proc p
         where p.pronamespace = 'agent_sessions'::regnamespace and not exists (
           select from pg_depend d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')"
    );
    assert_none(&superuser, "objects of others", &foreign).await;
    let counts = "select count(*) filter (where l.lanname = 'c'), count(*) filter (where l.lanname = 'sql')
                  from pg_proc p join pg_language l on l.oid = p.prolang where p.pronamespace = 'agent_sessions'::regnamespace";
    let row = superuser.query_one(counts, &[]).await.expect("functions");
    assert!(row.get::<_, i64>(0) > 0 && row.get::<_, i64>(1) > 0, "there are functions of both languages");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_object_has_a_comment() {
    let db = Database::create("roles_comments").await;
    let uncommented = "
        select 'schema ' || nspname from pg_namespace
        where nspname = 'agent_sessions' and obj_description(oid, 'pg_namespace') is null
        union all
        select 'extension ' || extname from pg_extension
        where extname = 'agent_sessions' and obj_description(oid, 'pg_extension') is null
        union all
        select 'function ' || oid::regprocedure from pg_proc
        where pronamespace = 'agent_sessions'::regnamespace and obj_description(oid, 'pg_proc') is null
        union all
        select 'relation ' || oid::regclass from pg_class
        where relnamespace = 'agent_sessions'::regnamespace and relkind in ('r', 'v')
          and obj_description(oid, 'pg_class') is null
        union all
        select 'column ' || attrelid::regclass || '.' || attname from pg_attribute join pg_class on pg_class.oid = attrelid
        where relnamespace = 'agent_sessions'::regnamespace and relkind = 'r' and attnum > 0 and not attisdropped
          and col_description(attrelid, attnum) is null
        union all
        select 'type ' || pg_type.oid::regtype from pg_type join pg_class on pg_class.oid = typrelid
        where typnamespace = 'agent_sessions'::regnamespace and relkind = 'c' and obj_description(pg_type.oid, 'pg_type') is null
        union all
        select 'policy ' || polname || ' on ' || polrelid::regclass from pg_policy join pg_class on pg_class.oid = polrelid
        where relnamespace = 'agent_sessions'::regnamespace and obj_description(pg_policy.oid, 'pg_policy') is null";
    assert_none(&db.superuser().await, "objects without a comment", uncommented).await;
}

/// No function or view runs as its owner, and the bodies of SQL functions are bound to objects, not to names.
#[tokio::test(flavor = "multi_thread")]
async fn no_function_depends_on_a_search_path() {
    let db = Database::create("roles_bodies").await;
    let dependent = "select p.oid::regprocedure::text from pg_proc p join pg_language l on l.oid = p.prolang
                     where p.pronamespace = 'agent_sessions'::regnamespace
                       and (p.prosecdef or l.lanname not in ('c', 'sql') or (l.lanname = 'sql' and p.prosqlbody is null))";
    let superuser = db.superuser().await;
    assert_none(&superuser, "functions that look names up when they run", dependent).await;
    let definers = "select relname::text from pg_class
                    where relnamespace = 'agent_sessions'::regnamespace and relkind = 'v'
                      and not coalesce(reloptions @> '{security_invoker=true}', false)";
    assert_none(&superuser, "views that read as their owner", definers).await;
}

/// Everything that the engine's statements could find instead of what they mean, if they looked names up.
const ATTACK: &str = r#"
    create schema attack;
    grant usage on schema attack to public;
    do $do$
    declare
      kind text;
      symbol text;
      signature text;
      number integer := 0;
      body text := $body$ language plpgsql as $f$ begin raise exception 'hijacked'; end $f$ $body$;
    begin
      foreach kind in array array['bigint', 'integer', 'text', 'name', 'oid', 'boolean', 'jsonb', 'bytea', 'uuid',
                                  'timestamptz', 'numeric', 'regrole', 'text[]', 'interval'] loop
        number := number + 1;
        execute format('create function attack.compare_%s(%s, %s) returns boolean', number, kind, kind) || body;
        foreach symbol in array array['=', '<>', '<', '>', '<=', '>=', '+', '-', '||', '@>'] loop
          execute format('create operator attack.%s (leftarg = %s, rightarg = %s, function = attack.compare_%s)',
            symbol, kind, kind, number);
        end loop;
      end loop;
      foreach signature in array array[
        'now()', 'clock_timestamp()', 'lower(text)', 'position(text, text)', 'octet_length(text)', 'sha256(bytea)',
        'count()', 'max(bigint)', 'min(bigint)', 'sum(bigint)', 'unnest(text[])', 'unnest(bigint[])', 'unnest(anyarray)',
        'json_array_elements(json)', 'jsonb_typeof(jsonb)', 'gen_random_uuid()', 'array_agg(text)', 'current_setting(text)',
        'set_config(text, text, boolean)', 'current_tenant()', 'current_agent()', 'isolated_agent()',
        'log_of(text, text, text)', 'page_rows(integer, integer)', 'session_append(text, json)', 'quote_ident(text)',
        'has_privs_of_role(oid, oid)', 'pg_has_role(name, text)', 'length(text)', 'char_length(text)'
      ] loop
        execute format('create function attack.%s returns text', signature) || body;
      end loop;
      foreach kind in array array['pg_class', 'pg_extension', 'pg_roles', 'pg_authid', 'pg_auth_members', 'pg_proc',
                                  'pg_namespace', 'session', 'session_item', 'setting', 'tenant_binding', 'live_item',
                                  'session_head'] loop
        execute format('create table attack.%I ()', kind);
      end loop;
      foreach kind in array array['text', 'json', 'jsonb', 'name', 'oid', 'bytea', 'uuid', 'timestamptz', 'regrole',
                                  'regclass', 'int8', 'bool'] loop
        execute format('create type attack.%I as enum (''hijacked'')', kind);
      end loop;
    end
    $do$"#;

const HIJACKED_PATH: &str = "set search_path = attack, pg_temp, public, pg_catalog";

/// Statements in the simplest form, since everything else would be looked up in the attacker's schema as well.
async fn rows(connection: &Connection, sql: &str) -> Vec<Vec<Option<String>>> {
    let messages = connection.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}\n{error:?}"));
    messages
        .into_iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
            }
            _ => None,
        })
        .collect()
}

async fn one(connection: &Connection, sql: &str) -> String {
    let rows = rows(connection, sql).await;
    assert_eq!(rows.len(), 1, "{sql}");
    rows[0][0].clone().unwrap_or_else(|| panic!("{sql}: NULL"))
}

async fn write_and_read(writer: &Connection, session: &str) {
    let call = |function: &str, arguments: &str| {
        format!("select * from agent_sessions.{function}(session_id => '{session}'{arguments})")
    };
    let create = ", title => 'T', metadata => '{\"m\": 1}', state => '{\"a\": 1}', owner => 'o', cost => 1,
                  items => '[{\"payload\": 0, \"item_id\": \"first\"}]'";
    assert_eq!(one(writer, &call("session_create", create)).await, session);
    assert_eq!(one(writer, &call("session_append", ", payload => '1', tag => 't', attrs => '{\"k\": 1}'")).await, "1");
    assert_eq!(one(writer, &call("session_append", ", payload => '0', item_id => 'first'")).await, "0");
    let batch = ", items => '[{\"payload\": 2}, {\"payload\": 3, \"item_id\": \"i\", \"attrs\": {\"k\": 2}}]'";
    assert_eq!(rows(writer, &call("session_append_batch", batch)).await.len(), 2);
    assert_eq!(one(writer, &call("session_revise", ", payload => '4', item_id => 'i'")).await, "4");
    assert_eq!(one(writer, &call("session_retract", ", targets => '{1}', item_ids => '{first}'")).await, "2");
    assert_eq!(one(writer, &call("session_pop", "")).await, "3");
    assert_eq!(one(writer, &call("session_retract", ", from_target => 2")).await, "1");
    assert_eq!(
        one(writer, &call("session_set", ", state => '{\"b\": 2}', metadata => '{\"n\": 1}', merge => true")).await,
        "1"
    );
    let insert = "insert into agent_sessions.session_item (sid, payload) select sid, '5' from agent_sessions.session";
    writer.batch_execute(insert).await.expect("a raw INSERT");
    writer.batch_execute("update agent_sessions.session set title = 'U'").await.expect("a raw UPDATE");

    for (arguments, wanted) in [
        ("", 1),
        (", after => 3, before => 99, max_rows => 5, newest_first => true", 1),
        (", kinds => '{message}', attrs => '{}'", 0),
        (", tags => '{t}'", 0),
        (", item_ids => '{i}'", 0),
    ] {
        assert_eq!(rows(writer, &call("session_history", arguments)).await.len(), wanted, "{arguments}");
    }
    assert_eq!(rows(writer, &call("session_log", "")).await.len(), 10);
    assert_eq!(rows(writer, &call("session_stats", "")).await.len(), 1);
    assert_eq!(rows(writer, &call("session_get", "")).await[0][6].as_deref(), Some("{\"a\":1,\"b\":2}"));
    for arguments in
        ["", "title => 'u', metadata => '{\"m\": 1}', owner => 'o'", "order_by => 'activity', agent_id => ''"]
    {
        assert_eq!(rows(writer, &format!("select * from agent_sessions.session_list({arguments})")).await.len(), 1);
    }
    assert_eq!(rows(writer, "select * from agent_sessions.live_item").await.len(), 1);
    assert_eq!(rows(writer, &call("session_context", "")).await.len(), 1);
    let verdict = rows(writer, &call("session_verify", "")).await;
    assert_eq!(verdict, [[Some("10".to_owned()), Some("0".to_owned()), Some("t".to_owned()), None, None]]);
    let lease = one(writer, &call("session_claim", ", ttl => '1 minute', holder => 'h'")).await;
    let given = format!(", lease => '{lease}'");
    assert_eq!(one(writer, &call("session_append", &format!(", payload => '6'{given}"))).await, "10");
    assert_eq!(one(writer, &call("session_extend", &format!(", ttl => '1 hour'{given}"))).await, lease);
    assert_eq!(rows(writer, "select * from agent_sessions.lease_status").await.len(), 1);
    assert_eq!(one(writer, &call("session_release", &given)).await, "t");
    assert_eq!(one(writer, "select agent_sessions.tenant_use(tenant => 'a')").await, "a");
    rows(writer, "select agent_sessions.schema_version(), agent_sessions.schema_require(min => '0.0.0')").await;
    assert_eq!(one(writer, &call("session_delete", "")).await, "t");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_an_attackers_runs() {
    let db = Database::create("roles_hijack").await;
    let role = db.role("guest", None).await;
    db.superuser().await.run(ATTACK).await;

    let hijacked = db.writer().await;
    hijacked
        .run(&format!(
            "create temp table session (); create temp table session_item (); create temp table setting ();
             create temp table tenant_binding (); {HIJACKED_PATH}"
        ))
        .await;
    for sql in [
        "select now()",
        "select 1::pg_catalog.int8 = 1::pg_catalog.int8",
        "select 'a'::pg_catalog.text = 'b'::pg_catalog.text",
    ] {
        let error = hijacked.simple_query(sql).await.err().unwrap_or_else(|| panic!("{sql}: the attack does not work"));
        assert_eq!(sqlstate(&error), "P0001", "{sql}: {error:?}");
    }
    write_and_read(&hijacked, "hijacked").await;

    // Plans that were made before, and are made again under the attacker's path.
    let replanned = db.writer().await;
    write_and_read(&replanned, "before").await;
    db.superuser()
        .await
        .run("analyze agent_sessions.session; analyze agent_sessions.session_item; discard plans")
        .await;
    replanned.run(HIJACKED_PATH).await;
    write_and_read(&replanned, "after").await;

    for connection in [db.owner().await, db.superuser().await] {
        connection.run(HIJACKED_PATH).await;
        for call in [
            format!("select agent_sessions.access_grant(role => '{role}', level => 'writer')"),
            format!("select agent_sessions.tenant_bind(role => '{role}', tenant => 'a')"),
            "select agent_sessions.access_force_rls(enabled => true)".to_owned(),
            "select agent_sessions.access_force_rls(enabled => false)".to_owned(),
        ] {
            rows(&connection, &call).await;
        }
        let bound = db.connect(Role::Named(role.clone())).await;
        bound.run(HIJACKED_PATH).await;
        let refused = bound.simple_query("select agent_sessions.current_tenant()").await.map(|_| ());
        let error = assert_sqlstate!(refused, "SE019");
        assert_eq!(detail(&error), json!({"tenant": "", "role": role}));
        bound.run("set agent_sessions.tenant = 'a'").await;
        write_and_read(&bound, "bound").await;
        rows(&connection, &format!("select agent_sessions.tenant_unbind(role => '{role}', tenant => 'a')")).await;
        rows(&connection, &format!("select agent_sessions.access_revoke(role => '{role}')")).await;
    }
}
