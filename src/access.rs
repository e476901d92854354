//! Who may do what: exactly the privileges that a job needs, handed out by the extension's owner.

use std::ffi::CStr;

use agent_sessions_core::error::Error;
use pgrx::pg_sys::{Datum, TEXTOID};
use serde_json::json;

use crate::audit::track::{self, What};
use crate::postgres::call::{Call, Returns};
use crate::postgres::catalog;
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::raise;
use crate::postgres::value::text_datum;

static REMEMBER: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.setting (name, value) values ('force_rls', $1) \
      on conflict (name) do update set value = excluded.value",
    &[TEXTOID],
);

/// What a reader needs: what the policies let it see, and the functions that look.
const READER: &[&str] = &[
    "usage on schema agent_sessions",
    "select on agent_sessions.session, agent_sessions.session_item, agent_sessions.session_delta",
    "select on agent_sessions.session_head, agent_sessions.live_item, \
     agent_sessions.lease_status, agent_sessions.session_activity, agent_sessions.tenant_usage",
    "execute on function agent_sessions.current_tenant, agent_sessions.visible_tenant, agent_sessions.current_agent, \
     agent_sessions.isolated_agent, \
     agent_sessions.tenant_use, agent_sessions.schema_version, agent_sessions.schema_require",
    "execute on function agent_sessions.page_rows, agent_sessions.list_order, agent_sessions.list_cursor, \
     agent_sessions.cursor_at, agent_sessions.cursor_sid, agent_sessions.session_matching, agent_sessions.sids_named",
    "execute on function agent_sessions.session_get, agent_sessions.session_list, agent_sessions.session_history, \
     agent_sessions.session_context, agent_sessions.session_log, agent_sessions.session_stats, \
     agent_sessions.session_lineage, agent_sessions.session_verify",
];

/// What a writer needs besides: columns that are a client's to give. With table-wide privileges, raw SQL could hide
/// entries, backdate them or give itself a lease.
const WRITER: &[&str] = &[
    "insert (tenant, agent_id, session_id, owner, parent_sid, branched_from, fork_position, origin, title, status, metadata, state, input_tokens, \
     output_tokens, cost, created_at, expires_at) on agent_sessions.session",
    "update (owner, origin, title, status, metadata, state, revision, input_tokens, output_tokens, cost, closed_at, \
     expires_at) on agent_sessions.session",
    "delete on agent_sessions.session",
    "insert (sid, position, op, kind, item_id, tag, author, target, payload, attrs) on agent_sessions.session_item",
    "insert (sid, target, chunk_no, chunk) on agent_sessions.session_delta",
    "execute on function agent_sessions.session_create, agent_sessions.session_set, agent_sessions.session_delete, \
     agent_sessions.session_append, agent_sessions.session_append_batch, agent_sessions.session_revise, \
     agent_sessions.session_retract, agent_sessions.session_pop, agent_sessions.session_delta",
    "execute on function agent_sessions.session_branch, agent_sessions.session_flatten, agent_sessions.session_trim, agent_sessions.session_erase, \
     agent_sessions.session_expire",
    "execute on function agent_sessions.session_claim, agent_sessions.session_claim_next, agent_sessions.session_extend, \
     agent_sessions.session_release",
];

/// What who reads and verifies the audit trail needs besides.
const AUDITOR: &[&str] = &[
    "select on agent_sessions.audit_event, agent_sessions.audit_chain, agent_sessions.audit_anchor, \
     agent_sessions.audit_anchor_leaf, agent_sessions.audit_stream",
    "execute on function agent_sessions.audit_list, agent_sessions.audit_matching, agent_sessions.audit_payload, \
     agent_sessions.audit_stats, agent_sessions.audit_export, agent_sessions.audit_verify",
    "execute on function agent_sessions.audit_check_anchor, agent_sessions.audit_proof, agent_sessions.audit_check_proof",
];

/// What who writes the audit trail needs besides.
const AUDITED: &[&str] = &[
    "insert (tenant, stream, seq, event_id, occurred_at, action, actor, target, session_id, status, attrs, payload, \
     prev_hash, hash) on agent_sessions.audit_event",
    "execute on function agent_sessions.audit_append, agent_sessions.audit_append_batch, agent_sessions.audit_import, \
     agent_sessions.audit_anchor",
];

/// What an admin needs besides.
const ADMIN: &[&str] = &["execute on function agent_sessions.session_break_lease, agent_sessions.audit_track, \
     agent_sessions.audit_prune, agent_sessions.doctor"];

/// The privileges of a level. A reader sees the sessions, an auditor the audit trail too; a writer writes both; an admin may break
/// a lease, and says what is tracked and pruned.
fn privileges(level: &str) -> Result<Vec<&'static str>, Error> {
    match level {
        "reader" => Ok(READER.to_vec()),
        "auditor" => Ok([READER, AUDITOR].concat()),
        "writer" => Ok([READER, WRITER, AUDITOR, AUDITED].concat()),
        "admin" => Ok([READER, WRITER, AUDITOR, AUDITED, ADMIN].concat()),
        _ => Err(Error::invalid("level", "must be reader, writer, auditor or admin")),
    }
}

pub fn access_grant(call: &mut Call) -> Returns {
    let role = role_argument(call)?;
    let level = call.text().ok_or_else(|| Error::invalid("level", "must be given"))?;
    let privileges = privileges(level)?;
    as_owner("access_grant", |spi| {
        let to = grantee(role)?;
        privileges.iter().for_each(|privilege| spi.execute(&format!("grant {privilege} to {to}")));
        note(spi, "access_grant", role, &json!({ "level": level }))
    })
}

pub fn access_revoke(call: &mut Call) -> Returns {
    let role = role_argument(call)?;
    as_owner("access_revoke", |spi| {
        let from = grantee(role)?;
        // What was granted, and no more: the owner has no say over the trigger functions.
        for privilege in [READER, WRITER, AUDITOR, AUDITED, ADMIN].concat().iter().rev() {
            spi.execute(&format!("revoke {privilege} from {from}"));
        }
        note(spi, "access_revoke", role, &json!(null))
    })
}

pub fn access_force_rls(call: &mut Call) -> Returns {
    let enabled = call.bool().ok_or_else(|| Error::invalid("enabled", "must be given"))?;
    as_owner("access_force_rls", |spi| {
        let force = if enabled { "force" } else { "no force" };
        for table in [
            "session",
            "session_item",
            "session_delta",
            "audit_event",
            "audit_chain",
            "audit_anchor",
            "audit_anchor_leaf",
        ] {
            spi.execute(&format!("alter table agent_sessions.{table} {force} row level security"));
        }
        REMEMBER.run(spi, See::Now, &[Some(text_datum(if enabled { "on" } else { "off" }))]);
        let owner = catalog::role_name(catalog::owner());
        track::note_role(spi, What::Access, "access_force_rls", &owner, &json!({ "enabled": enabled }))
    })
}

fn role_argument<'a>(call: &mut Call<'a>) -> Result<&'a CStr, Error> {
    call.name().ok_or_else(|| Error::invalid("role", "must be given"))
}

/// The role as an identifier. 42704 if there is none, SE001 if it is the owner, whose privileges are its own.
fn grantee(role: &CStr) -> Result<String, Error> {
    if catalog::role(role) == catalog::owner() {
        return Err(Error::invalid("role", "must not be the owner of the extension"));
    }
    Ok(catalog::quoted(role))
}

fn note(spi: &Spi, action: &str, role: &CStr, payload: &serde_json::Value) -> Result<(), Error> {
    track::note_role(spi, What::Access, action, &role.to_string_lossy(), payload)
}

/// Runs statements as the owner, so that what a superuser grants the owner can take back. 42501 for anyone who may not
/// act as the owner.
fn as_owner(function: &str, run: impl FnOnce(&Spi) -> Result<(), Error>) -> Returns {
    if !catalog::is_owner() {
        raise::owner_only(function);
    }
    let spi = Spi::connect();
    let _owner = AsOwner::switch();
    run(&spi)?;
    Ok(Some(Datum::from(0)))
}
