//! The engine of `agent_sessions`: the rules, as triggers, and the functions that are the fast way to them.
//!
//! An append reads straight down: `append` checks its arguments, `log` locks the head and finds the tail, `item` knows what
//! an item_id stands for, `head` admits the lease, `log` has `item_rule` link the entry, as the trigger there does for every
//! statement, and writes it.
//!
//! A page reads as straight: `history` checks its arguments, `lineage` says whose entries the log is made of, `changes` what
//! later entries say about them.

mod access;
mod address;
mod append;
mod audit;
mod branch;
mod change;
mod changes;
mod deletion;
mod delta;
mod doctor;
mod draft;
mod erase;
mod export;
mod family;
mod flatten;
mod handoff;
mod head;
mod hint;
mod history;
mod identity;
mod import;
mod item;
mod item_rule;
mod item_table;
mod lease;
mod lineage;
mod log;
mod paging;
mod postgres;
mod session;
mod session_rule;
mod session_table;
mod tail;
mod trim;
mod verify;
mod version;

pgrx::pg_module_magic!();

#[cfg(feature = "pg_test")]
#[path = "../pgrx-tests/mod.rs"]
mod pgrx_tests;

/// Runs when a backend loads the library.
#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    postgres::setting::define();
    postgres::planner::hook();
    postgres::catalog::watch();
    postgres::direct::watch();
    identity::watch_bindings();
}

export! {
    call:
        identity::current_tenant as "current_tenant",
        identity::visible_tenant as "visible_tenant",
        identity::current_agent as "current_agent",
        identity::isolated_agent as "isolated_agent",
        identity::tenant_use as "tenant_use",
        identity::tenant_bind as "tenant_bind",
        identity::tenant_unbind as "tenant_unbind",
        paging::page_rows as "page_rows",
        paging::list_order as "list_order",
        paging::list_cursor as "list_cursor",
        paging::cursor_at as "cursor_at",
        paging::cursor_sid as "cursor_sid",
        session::session_create as "session_create",
        session::session_set as "session_set",
        deletion::session_delete as "session_delete",
        deletion::session_expire as "session_expire",
        append::session_append as "session_append",
        append::session_append_batch as "session_append_batch",
        change::session_revise as "session_revise",
        change::session_retract as "session_retract",
        change::session_pop as "session_pop",
        delta::session_delta as "session_delta",
        lease::session_claim as "session_claim",
        lease::session_claim_next as "session_claim_next",
        lease::session_extend as "session_extend",
        lease::session_release as "session_release",
        lease::session_break_lease as "session_break_lease",
        branch::session_branch as "session_branch",
        flatten::session_flatten as "session_flatten",
        trim::session_trim as "session_trim",
        erase::session_erase as "session_erase",
        lineage::session_lineage as "session_lineage",
        history::session_history as "session_history",
        history::session_context as "session_context",
        history::session_log as "session_log",
        history::session_stats as "session_stats",
        verify::session_verify as "session_verify",
        export::session_export as "session_export",
        import::session_import as "session_import",
        audit::append::audit_append as "audit_append",
        audit::append::audit_append_batch as "audit_append_batch",
        audit::append::audit_payload as "audit_payload",
        audit::verify::audit_verify as "audit_verify",
        audit::import::audit_import as "audit_import",
        audit::anchor::audit_anchor as "audit_anchor",
        audit::anchor::audit_check_anchor as "audit_check_anchor",
        audit::proof::audit_proof as "audit_proof",
        audit::proof::audit_check_proof as "audit_check_proof",
        audit::track::audit_track as "audit_track",
        audit::prune::audit_prune as "audit_prune",
        access::access_grant as "access_grant",
        access::access_revoke as "access_revoke",
        access::access_force_rls as "access_force_rls",
        version::schema_version as "schema_version",
        version::schema_require as "schema_require",
        doctor::doctor as "doctor",
}

export! {
    trigger:
        identity::on_tenant_binding as "on_tenant_binding",
        session_rule::on_session_insert as "on_session_insert",
        session_rule::on_session_update as "on_session_update",
        session_rule::on_session_delete as "on_session_delete",
        item_rule::on_item_insert as "on_item_insert",
        item_rule::on_items_inserted as "on_items_inserted",
        item_rule::on_item_change as "on_item_change",
        delta::on_item_closed as "on_item_closed",
        delta::on_delta_insert as "on_delta_insert",
        delta::on_delta_update as "on_delta_update",
        session_rule::on_session_changed as "on_session_changed",
        session_rule::on_session_branched as "on_session_branched",
        audit::rule::on_audit_insert as "on_audit_insert",
        audit::rule::on_audit_change as "on_audit_change",
        audit::prune::on_chain_change as "on_chain_change",
        item_rule::on_truncate as "on_truncate",
}

// The install order.
pgrx::extension_sql_file!("../sql/schema.sql", name = "schema", bootstrap);
pgrx::extension_sql_file!("../sql/setting.sql", name = "setting", requires = ["schema"]);
pgrx::extension_sql_file!("../sql/tenant_binding.sql", name = "tenant_binding", requires = ["setting"]);
pgrx::extension_sql_file!("../sql/session.sql", name = "session", requires = ["tenant_binding"]);
pgrx::extension_sql_file!("../sql/session_item.sql", name = "session_item", requires = ["session"]);
pgrx::extension_sql_file!("../sql/session_delta.sql", name = "session_delta", requires = ["session_item"]);
pgrx::extension_sql_file!("../sql/audit_event.sql", name = "audit_event", requires = ["session_delta"]);
pgrx::extension_sql_file!("../sql/identity.sql", name = "identity", requires = ["audit_event"]);
pgrx::extension_sql_file!("../sql/rule.sql", name = "rule", requires = ["identity"]);
pgrx::extension_sql_file!("../sql/policy.sql", name = "policy", requires = ["rule"]);
pgrx::extension_sql_file!("../sql/paging.sql", name = "paging", requires = ["policy"]);
pgrx::extension_sql_file!("../sql/session_read.sql", name = "session_read", requires = ["paging"]);
pgrx::extension_sql_file!("../sql/item_read.sql", name = "item_read", requires = ["session_read"]);
pgrx::extension_sql_file!("../sql/session_write.sql", name = "session_write", requires = ["item_read"]);
pgrx::extension_sql_file!("../sql/item_write.sql", name = "item_write", requires = ["session_write"]);
pgrx::extension_sql_file!("../sql/branch.sql", name = "branch", requires = ["item_write"]);
pgrx::extension_sql_file!("../sql/retention.sql", name = "retention", requires = ["branch"]);
pgrx::extension_sql_file!("../sql/archive.sql", name = "archive", requires = ["retention"]);
pgrx::extension_sql_file!("../sql/lease.sql", name = "lease", requires = ["archive"]);
pgrx::extension_sql_file!("../sql/activity.sql", name = "activity", requires = ["lease"]);
pgrx::extension_sql_file!("../sql/audit_write.sql", name = "audit_write", requires = ["activity"]);
pgrx::extension_sql_file!("../sql/audit_read.sql", name = "audit_read", requires = ["audit_write"]);
pgrx::extension_sql_file!("../sql/audit_anchor.sql", name = "audit_anchor", requires = ["audit_read"]);
pgrx::extension_sql_file!("../sql/access.sql", name = "access", requires = ["audit_anchor"]);
pgrx::extension_sql_file!("../sql/version.sql", name = "version", requires = ["access"]);
pgrx::extension_sql_file!("../sql/catalog.sql", name = "catalog", requires = ["version"]);
pgrx::extension_sql_file!("../sql/doctor_catalog.sql", name = "doctor_catalog", requires = ["catalog"]);
pgrx::extension_sql_file!("../sql/doctor_access.sql", name = "doctor_access", requires = ["doctor_catalog"]);
pgrx::extension_sql_file!("../sql/doctor_data.sql", name = "doctor_data", requires = ["doctor_access"]);
pgrx::extension_sql_file!("../sql/doctor_server.sql", name = "doctor_server", requires = ["doctor_data"]);
pgrx::extension_sql_file!("../sql/doctor.sql", name = "doctor", requires = ["doctor_server"]);
pgrx::extension_sql_file!("../sql/ownership.sql", name = "ownership", requires = ["doctor"]);
pgrx::extension_sql_file!("../sql/dump.sql", name = "dump", requires = ["ownership"]);
pgrx::extension_sql_file!("../sql/installed.sql", name = "installed", requires = ["dump"], finalize);
