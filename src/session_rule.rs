//! The rules of `session`, as triggers: they hold for every statement that writes it.

use agent_sessions_core::digest::Digest;
use agent_sessions_core::error::Error;
use agent_sessions_core::lease::{Held, LONGEST_TTL};
use agent_sessions_core::{chain, digest};
use agent_sessions_core::{limit, name};
use pgrx::AnyNumeric;
use pgrx::FromDatum;
use pgrx::pg_sys::{Datum, INT8OID};

use crate::audit::track::{self, Deed, What};
use crate::deletion;
use crate::head::{self, Head};
use crate::identity;
use crate::lease;
use crate::lineage::{Lineage, Origin};
use crate::log::Log;
use crate::postgres::catalog;
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::trigger::{Decision, Returns, Trigger, Tuple};
use crate::postgres::value::{self, clock};
use crate::session_table::column::*;

const CLOSED: &str = "closed";

static NEXT_FENCE: KeptPlan =
    KeptPlan::new(c"select pg_catalog.nextval('agent_sessions.lease_fence_seq'::pg_catalog.regclass)", &[]);

// FOR KEY SHARE keeps the parent from being deleted before this transaction ends, without waiting for its writers.
static PARENT: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session s \
      where s.sid operator(pg_catalog.=) $1 and s.tenant operator(pg_catalog.=) $2 and s.deleted_at is null \
      for key share",
    &[INT8OID, pgrx::pg_sys::TEXTOID],
);

static SUB_SESSION: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session s \
      where s.sid operator(pg_catalog.=) $1 and s.parent_sid operator(pg_catalog.=) $2",
    &[INT8OID, INT8OID],
);

static HOLDS: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.=) $2",
    &[INT8OID, INT8OID],
);

static TRIMS: KeptPlan = KeptPlan::new(
    c"select i.payload from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.target operator(pg_catalog.=) $2 and i.op operator(pg_catalog.=) 'trim'",
    &[INT8OID, INT8OID],
);

static DELETE_LOG: KeptPlan =
    KeptPlan::new(c"delete from agent_sessions.session_item where sid operator(pg_catalog.=) $1", &[INT8OID]);

static DELETE_DELTAS: KeptPlan =
    KeptPlan::new(c"delete from agent_sessions.session_delta where sid operator(pg_catalog.=) $1", &[INT8OID]);

// All generations at once, so that the triggers of the deleted find none left: a level of nesting each would end at 54001.
// What is hidden goes with the last of its branches.
static DELETE_DESCENDANTS: KeptPlan = KeptPlan::new(
    c"with recursive below (sid) as ( \
        select s.sid from agent_sessions.session s where s.parent_sid operator(pg_catalog.=) $1 \
        union \
        select s.sid from agent_sessions.session s join below b on s.parent_sid operator(pg_catalog.=) b.sid) \
      delete from agent_sessions.session d using below b where d.sid operator(pg_catalog.=) b.sid and d.deleted_at is null",
    &[INT8OID],
);

/// Fills in what the engine sets. A full row of the owner's, as a restore brings it, keeps all but its lease.
pub fn on_session_insert<'a>(trigger: &Trigger<'a>) -> Returns<'a> {
    let mut row = trigger.row(TYPES);
    let restored = is_full(&row) && catalog::is_owner();
    for column in [LEASE_DIGEST, LEASE_HOLDER, LEASE_EXPIRES_AT] {
        row.clear(column);
    }
    if restored {
        check_names(&row)?;
        return Ok((Some(row), Decision::Write));
    }
    let now = clock();
    let current = identity::tenant()?;
    if row.datum(TENANT).is_none() {
        row.set_text(TENANT, &current);
    }
    if row.datum(AGENT_ID).is_none() {
        row.set_text(AGENT_ID, &identity::agent());
    }
    if row.datum(SESSION_ID).is_none() {
        row.set_text(SESSION_ID, &uuid::Uuid::now_v7().to_string());
    }
    for (column, default) in [(REVISION, 0), (CREATED_AT, now)] {
        if row.datum(column).is_none() {
            row.set_int8(column, default);
        }
    }
    for column in [FORK_DIGEST, BASE_DIGEST, DELETED_AT] {
        row.clear(column);
    }
    row.set_int8(LEASE_FENCE, 0);
    row.set_int8(BASE_POSITION, 0);
    row.set_int8(ACTIVE_AT, now);
    row.set_int8(UPDATED_AT, now);
    check_names(&row)?;
    check_document(&row)?;
    if row.text(STATUS) == Some(CLOSED) && row.datum(CLOSED_AT).is_none() {
        row.set_int8(CLOSED_AT, now);
    }
    check_parent(&row)?;
    branch_off(&mut row)?;
    Ok((Some(row), Decision::Write))
}

fn is_full(row: &Tuple) -> bool {
    [TENANT, AGENT_ID, SESSION_ID, REVISION, ACTIVE_AT, CREATED_AT, UPDATED_AT]
        .iter()
        .all(|&column| row.datum(column).is_some())
}

fn check_names(row: &Tuple) -> Result<(), Error> {
    let text = |column| row.text(column).unwrap_or_default();
    name::optional("tenant", text(TENANT))?;
    name::optional("agent_id", text(AGENT_ID))?;
    name::required("session_id", text(SESSION_ID))?;
    limit::index_entry("session_id", &[text(TENANT), text(AGENT_ID), text(SESSION_ID)])?;
    if !is_finite(row.int8(CREATED_AT)) {
        return Err(Error::invalid("created_at", "must be finite"));
    }
    check_labels(row)
}

fn check_labels(row: &Tuple) -> Result<(), Error> {
    name::label("owner", row.text(OWNER))?;
    name::label("origin", row.text(ORIGIN))?;
    name::label("status", row.text(STATUS))?;
    name::title(row.text(TITLE))?;
    let tenant_and_owner = [row.text(TENANT).unwrap_or_default(), row.text(OWNER).unwrap_or_default()];
    limit::index_entry("owner", &tenant_and_owner)
}

fn check_document(row: &Tuple) -> Result<(), Error> {
    for (argument, column) in [("input_tokens", INPUT_TOKENS), ("output_tokens", OUTPUT_TOKENS)] {
        if row.int8(column).is_some_and(|tokens| tokens < 0) {
            return Err(Error::invalid(argument, "must not be negative"));
        }
    }
    check_cost(row.datum(COST))?;
    limit::at_most("metadata", value::size(row.datum(METADATA)), limit::MAX_PAYLOAD_BYTES)?;
    limit::at_most("state", value::size(row.datum(STATE)), limit::MAX_PAYLOAD_BYTES)
}

/// SE001 unless a numeric is absent, or finite and not negative.
pub fn check_cost(cost: Option<Datum>) -> Result<(), Error> {
    // SAFETY: the datum is a numeric.
    let cost = cost.and_then(|cost| unsafe { AnyNumeric::from_datum(cost, false) });
    match cost {
        Some(cost) if cost.is_nan() || cost < AnyNumeric::from(0) || cost.to_string().contains("Inf") => {
            Err(Error::invalid("cost", "must be a number that is not negative"))
        }
        _ => Ok(()),
    }
}

fn is_finite(at: Option<i64>) -> bool {
    at.is_some_and(|at| at != i64::MAX && at != i64::MIN)
}

/// SE002 unless the parent is visible to the caller; another tenant's is not.
fn check_parent(row: &Tuple) -> Result<(), Error> {
    let Some(parent) = row.datum(PARENT_SID) else { return Ok(()) };
    let spi = Spi::connect();
    let lock_parent = || PARENT.run(&spi, See::Now, &[Some(parent), row.datum(TENANT)]).len() > 0;
    if lock_parent() {
        return Ok(());
    }
    // A branch is below its source's parent, visible or not.
    let is_source_below = SUB_SESSION.run(&spi, See::Now, &[row.datum(BRANCHED_FROM), Some(parent)]).len() > 0;
    let _owner = is_source_below.then(AsOwner::switch);
    if is_source_below && lock_parent() { Ok(()) } else { Err(head::unknown(parent.value() as i64)) }
}

/// Gives a branch the digest that its inherited log ends with. SE002 unless the caller may see the session that it branches
/// off, SE008 or SE009 unless the caller may write there, SE012 for a fork outside of that log.
fn branch_off(row: &mut Tuple) -> Result<(), Error> {
    let Some(source) = row.int8(BRANCHED_FROM) else {
        row.clear(FORK_POSITION);
        return Ok(());
    };
    let spi = Spi::connect();
    // Locked, so that nobody removes what the branch is about to need.
    let head = Head::lock_by_sid(&spi, source).filter(|head| Some(head.tenant.as_str()) == row.text(TENANT));
    let head = head.ok_or_else(|| head::unknown(source))?;
    head.admit(None)?;
    if row.int8(SID) <= Some(source) {
        return Err(Error::invalid("sid", "must be larger than that of the source"));
    }
    if let Some(fork) = row.int8(FORK_POSITION) {
        let log = Log::of(&spi, head).ok_or_else(|| head::unknown(source))?;
        let digest = log.digest_before(fork).ok_or_else(|| Error::BranchPointNotFound {
            target: fork.checked_sub(1),
            item_id: None,
            tag: None,
        })?;
        row.set_bytes(FORK_DIGEST, &digest);
    }
    Ok(())
}

/// Advances the revision with the document, or checks the one that is written.
pub fn on_session_update<'a>(trigger: &Trigger<'a>) -> Returns<'a> {
    let (old, mut new) = (trigger.row(TYPES), trigger.new_row(TYPES));
    check_identity(&old, &new)?;
    check_source(&old, &new)?;
    check_base(&old, &new)?;
    check_hiding(&old, &new)?;
    let now = clock();
    if !new.same_bytes(&old, STATUS) && new.same_word(&old, CLOSED_AT) {
        match new.text(STATUS) {
            Some(CLOSED) => new.set_int8(CLOSED_AT, new.int8(CLOSED_AT).unwrap_or(now)),
            _ => new.clear(CLOSED_AT),
        }
    }
    let document_changed = [OWNER, ORIGIN, TITLE, STATUS, METADATA, STATE].iter().any(|&c| !new.same_bytes(&old, c))
        || !new.same_word(&old, CLOSED_AT);
    let usage_changed = [INPUT_TOKENS, OUTPUT_TOKENS, EXPIRES_AT].iter().any(|&c| !new.same_word(&old, c))
        || !new.same_bytes(&old, COST);
    if document_changed || usage_changed || trigger.writes(REVISION) {
        admit(&old)?;
    }
    if document_changed || usage_changed {
        check_labels(&new)?;
        check_document(&new)?;
        new.set_int8(UPDATED_AT, now);
    }
    let (before, after) = (old.int8(REVISION).unwrap_or_default(), new.int8(REVISION).unwrap_or_default());
    // The SET list tells, not the value: a stale writer's revision may be the one that the winner has just written.
    if !trigger.writes(REVISION) {
        new.set_int8(REVISION, before + i64::from(document_changed));
    } else if after != before + 1 {
        return Err(Error::RevisionConflict { expected: after.saturating_sub(1), actual: before });
    }
    change_lease(&old, &mut new)?;
    Ok((Some(new), Decision::Write))
}

/// Tells the trail which columns of the document a statement has changed, or that it has hidden the session.
pub fn on_session_changed<'a>(trigger: &Trigger<'a>) -> Returns<'a> {
    let (old, new) = (trigger.row(TYPES), trigger.new_row(TYPES));
    if !new.same_word(&old, DELETED_AT) {
        note(&new, What::Delete, "session_delete", serde_json::Value::Null);
        return Ok((None, Decision::Skip));
    }
    let columns = [
        ("owner", OWNER),
        ("origin", ORIGIN),
        ("title", TITLE),
        ("status", STATUS),
        ("metadata", METADATA),
        ("state", STATE),
    ];
    let mut changed: Vec<&str> =
        columns.iter().filter(|(_, column)| !new.same_bytes(&old, *column)).map(|(name, _)| *name).collect();
    if !new.same_word(&old, CLOSED_AT) {
        changed.push("closed_at");
    }
    let payload = serde_json::json!({ "revision": new.int8(REVISION), "changed": changed });
    note(&new, What::State, "session_set", payload);
    Ok((None, Decision::Skip))
}

/// Tells the trail of a branch. Of the owner's rows it is the function that tells: a restore brings them, too.
pub fn on_session_branched<'a>(trigger: &Trigger<'a>) -> Returns<'a> {
    if !catalog::is_owner() {
        let row = trigger.row(TYPES);
        note(&row, What::Branch, "session_branch", serde_json::json!({ "fork_position": row.int8(FORK_POSITION) }));
    }
    Ok((None, Decision::Skip))
}

/// Tells the trail what was done to the session of a row.
fn note(row: &Tuple, what: What, action: &str, payload: serde_json::Value) {
    let text = |column| row.text(column).unwrap_or_default();
    let (tenant, agent_id, session_id) = (text(TENANT), text(AGENT_ID), text(SESSION_ID));
    track::note(&Spi::connect(), &Deed { what, action, tenant, agent_id, session_id, payload });
}

/// What the row says of its lease.
fn held<'a>(row: &Tuple<'a>) -> Held<'a> {
    Held {
        sid: row.int8(SID).unwrap_or_default(),
        digest: row.bytes(LEASE_DIGEST),
        holder: row.text(LEASE_HOLDER),
        expires_at: row.int8(LEASE_EXPIRES_AT),
    }
}

/// SE008 or SE009 unless the caller brings the lease of the row, if one is live.
fn admit(row: &Tuple) -> Result<(), Error> {
    let held = held(row);
    held.admits(lease::brought_for(held.sid).as_deref(), clock())
}

/// A new lease is only taken when none is live (SE009), for at most 24 hours, and gets the next fence. Ending one keeps it.
fn change_lease(old: &Tuple, new: &mut Tuple) -> Result<(), Error> {
    let claimed = !new.same_bytes(old, LEASE_DIGEST) && new.datum(LEASE_DIGEST).is_some();
    new.set_int8(LEASE_FENCE, old.int8(LEASE_FENCE).unwrap_or_default());
    if new.same_bytes(old, LEASE_DIGEST) && new.same_word(old, LEASE_EXPIRES_AT) {
        return Ok(());
    }
    if new.datum(LEASE_DIGEST).is_none() {
        new.clear(LEASE_HOLDER);
        return Ok(());
    }
    if new.int8(LEASE_EXPIRES_AT).is_some_and(|expires_at| expires_at.saturating_sub(clock()) > LONGEST_TTL) {
        return Err(Error::invalid("lease_expires_at", "must lie at most 24 hours ahead"));
    }
    if claimed {
        // A lost lease among those that are brought is no reason not to claim anew.
        if held(old).is_live(clock()) {
            admit(old)?;
        }
        let spi = Spi::connect();
        let _owner = AsOwner::switch();
        let drawn = NEXT_FENCE.run(&spi, See::Now, &[]).first().and_then(|row| row.int8(0)).unwrap_or_default();
        // A restored or rolled-back sequence may be behind the row.
        new.set_int8(LEASE_FENCE, drawn.max(old.int8(LEASE_FENCE).unwrap_or_default() + 1));
    }
    Ok(())
}

/// SE014 for what makes the session what it is.
fn check_identity(old: &Tuple, new: &Tuple) -> Result<(), Error> {
    let texts = [TENANT, AGENT_ID, SESSION_ID, FORK_DIGEST];
    let words = [SID, PARENT_SID, FORK_POSITION, CREATED_AT];
    let same = texts.iter().all(|&column| new.same_bytes(old, column))
        && words.iter().all(|&column| new.same_word(old, column));
    allow(same, "identity, creation and lineage are not changed by UPDATE")
}

/// A branch lets go of its source once it holds copies of what it inherits, or goes over to another session whose log holds the
/// same entry before the fork; only for the owner, as whom the engine flattens.
fn check_source(old: &Tuple, new: &Tuple) -> Result<(), Error> {
    if new.same_word(old, BRANCHED_FROM) {
        return Ok(());
    }
    let spi = Spi::connect();
    let last_inherited = new.int8(FORK_POSITION).map(|fork| fork - 1);
    let holds = || match (new.int8(BRANCHED_FROM), last_inherited) {
        (None, last) => HOLDS.run(&spi, See::Latest, &[new.datum(SID), last.map(Datum::from)]).len() > 0,
        // Further up the same ancestry.
        (Some(source), Some(last)) if Some(source) < old.int8(BRANCHED_FROM) => Origin::of(&spi, See::Latest, source)
            .is_some_and(|origin| {
                let digest = Lineage::of(&spi, See::Latest, source, origin).digest_at(&spi, See::Latest, last);
                digest.as_ref().map(Digest::as_slice) == new.bytes(FORK_DIGEST)
            }),
        _ => false,
    };
    allow(catalog::is_owner() && holds(), "the source is given up by session_flatten")
}

/// The base only moves on, to where a trim entry says that it is, and only for the owner, as whom the engine trims.
fn check_base(old: &Tuple, new: &Tuple) -> Result<(), Error> {
    if new.same_word(old, BASE_POSITION) && new.same_bytes(old, BASE_DIGEST) {
        return Ok(());
    }
    let moves_on = new.int8(BASE_POSITION) > old.int8(BASE_POSITION);
    let named = || {
        let spi = Spi::connect();
        let trims = TRIMS.run(&spi, See::Latest, &[new.datum(SID), new.datum(BASE_POSITION)]);
        let digest = new.bytes(BASE_DIGEST).map(digest::hex);
        trims.iter().any(|row| row.text(0).and_then(chain::base_digest) == digest)
    };
    allow(moves_on && catalog::is_owner() && named(), "the base is moved by session_trim")
}

/// A session is hidden once, while branches need it, and only by the owner, as whom the engine hides it.
fn check_hiding(old: &Tuple, new: &Tuple) -> Result<(), Error> {
    if new.same_word(old, DELETED_AT) {
        return Ok(());
    }
    let needed = || deletion::is_needed(&Spi::connect(), new.int8(SID).unwrap_or_default());
    let hides = old.datum(DELETED_AT).is_none() && catalog::is_owner() && needed();
    allow(hides, "a session is hidden by session_delete, while branches need it")
}

fn allow(allowed: bool, reason: &'static str) -> Result<(), Error> {
    if allowed { Ok(()) } else { Err(Error::AppendOnly { object: "session", reason }) }
}

/// What a session leaves behind goes with it, whoever owns it: its sub-sessions, its log, and hidden sessions that only it has
/// needed. SE022 if branches need the log.
pub fn on_session_delete<'a>(trigger: &Trigger<'a>) -> Returns<'a> {
    let row = trigger.row(TYPES);
    let was_hidden = row.datum(DELETED_AT).is_some();
    // The lease of a hidden session ended with it; that it is still brought is no fault of who deletes its last branch.
    if !was_hidden {
        admit(&row)?;
    }
    let spi = Spi::connect();
    let _owner = AsOwner::switch();
    let sid = [row.datum(SID)];
    // Latest: entries and sub-sessions that an old snapshot does not see must not stay behind.
    DELETE_DESCENDANTS.run(&spi, See::Latest, &sid);
    if deletion::is_needed(&spi, row.int8(SID).unwrap_or_default()) {
        return Err(Error::HasBranches { session_id: row.text(SESSION_ID).unwrap_or_default().to_owned() });
    }
    DELETE_LOG.run(&spi, See::Latest, &sid);
    DELETE_DELTAS.run(&spi, See::Latest, &sid);
    deletion::collect(&spi, row.int8(BRANCHED_FROM));
    drop(spi);
    // Of a hidden session the trail was told when it was hidden.
    if !was_hidden {
        note(&row, What::Delete, "session_delete", serde_json::Value::Null);
    }
    Ok((None, Decision::Skip))
}
