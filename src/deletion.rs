//! Deleting sessions, one or those that have expired. What branches still need is hidden, and goes with the last of them.

use std::collections::HashSet;

use agent_sessions_core::error::Error;
use agent_sessions_core::word::OnMissing;
use pgrx::pg_sys::{Datum, INT8ARRAYOID, INT8OID, INTERVALOID, TEXTOID, TIMESTAMPTZOID};

use crate::address::{Address, sid_of};
use crate::family::{Family, sids};
use crate::head::Head;
use crate::identity;
use crate::lease::Given;
use crate::paging;
use crate::postgres::call::{Call, Returns};
use crate::postgres::nesting;
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::text_datum;
use crate::sql;

static DELETE: KeptPlan =
    KeptPlan::new(c"delete from agent_sessions.session where sid operator(pg_catalog.=) $1", &[INT8OID]);

static DELETE_ALL: KeptPlan =
    KeptPlan::new(c"delete from agent_sessions.session where sid operator(pg_catalog.=) any ($1)", &[INT8ARRAYOID]);

static HIDE: KeptPlan = KeptPlan::new(
    c"update agent_sessions.session set deleted_at = pg_catalog.clock_timestamp(), lease_digest = null, \
        lease_holder = null, lease_expires_at = null \
      where sid operator(pg_catalog.=) $1",
    &[INT8OID],
);

// What no branch reads goes at once, but for what explains the rest.
static PRUNE: KeptPlan = KeptPlan::new(
    c"delete from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.op operator(pg_catalog.<>) all (array['erase', 'trim']) \
        and i.position operator(pg_catalog.>=) ( \
          select pg_catalog.max(b.fork_position) from agent_sessions.session b \
          where b.branched_from operator(pg_catalog.=) $1 and b.fork_position operator(pg_catalog.>) b.base_position)",
    &[INT8OID],
);

static DROP_DELTAS: KeptPlan =
    KeptPlan::new(c"delete from agent_sessions.session_delta where sid operator(pg_catalog.=) $1", &[INT8OID]);

/// The branches that read entries of these sessions, each behind its source.
static BRANCHES: KeptPlan = KeptPlan::new(
    c"select b.branched_from, b.sid from agent_sessions.session b \
      where b.branched_from operator(pg_catalog.=) any ($1) and b.fork_position operator(pg_catalog.>) b.base_position",
    &[INT8ARRAYOID],
);

// Held by who deletes a branch, and by all of them at once: in the way of deleting the source, not of writing to it.
static LOCK_VISIBLE: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session s \
      where s.sid operator(pg_catalog.=) $1 and s.deleted_at is null for key share",
    &[INT8OID],
);

static LOCK_HIDDEN: KeptPlan = KeptPlan::new(
    c"select s.branched_from from agent_sessions.session s \
      where s.sid operator(pg_catalog.=) $1 and s.deleted_at is not null for update",
    &[INT8OID],
);

/// The sessions of a tenant that are due at $column, before a bound, in the order of when.
macro_rules! due {
    ($column:literal, $bound:literal) => {
        KeptPlan::new(
            sql!(
                "select s.sid, s.",
                $column,
                " from agent_sessions.session s \
                 where s.tenant operator(pg_catalog.=) $1 and s.deleted_at is null and s.",
                $column,
                " operator(pg_catalog.<=) ",
                $bound,
                " and (s.",
                $column,
                ", s.sid) operator(pg_catalog.>) ($3, $4) order by s.",
                $column,
                ", s.sid limit $5"
            ),
            &[TEXTOID, INTERVALOID, TIMESTAMPTZOID, INT8OID, INT8OID],
        )
    };
}

static EXPIRED: KeptPlan = due!("expires_at", "pg_catalog.clock_timestamp()");

static INACTIVE: KeptPlan = due!("active_at", "(pg_catalog.clock_timestamp() operator(pg_catalog.-) $2)");

static STILL_DUE: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session s \
      where s.sid operator(pg_catalog.=) $1 and s.deleted_at is null \
        and (s.expires_at operator(pg_catalog.<=) pg_catalog.clock_timestamp() \
          or s.active_at operator(pg_catalog.<=) (pg_catalog.clock_timestamp() operator(pg_catalog.-) $2))",
    &[INT8OID, INTERVALOID],
);

const DEFAULT_EXPIRED_ROWS: i64 = 1_000;

pub fn session_delete(call: &mut Call) -> Returns {
    let session_id = call.text();
    let on_missing = OnMissing::parse_without_create(call.text())?;
    let agent_id = call.text();
    let lease = call.text();
    let address = Address::resolve(session_id, agent_id)?;

    let spi = Spi::connect();
    let named = || sid_of(&spi, See::Latest, &address.parameters());
    while let Some(sid) = named() {
        if let Some(family) = Family::lock(&spi, sid, || named() == Some(sid)) {
            let Some(head) = Head::lock(&spi, &address, on_missing)? else { return Ok(None) };
            head.admit(lease)?;
            let _lease = Given::to_triggers(lease);
            delete(&spi, sid, &family)?;
            return Ok(Some(Datum::from(true)));
        }
    }
    if on_missing == OnMissing::Ignore { Ok(None) } else { Err(address.not_found(&spi)) }
}

pub fn session_expire(call: &mut Call) -> Returns {
    let older_than = call.age("older_than")?;
    let max_rows = paging::rows(call.int4())?.unwrap_or(DEFAULT_EXPIRED_ROWS);
    let tenant = identity::tenant()?;

    let mut deleted = 0;
    for plan in [Some(&EXPIRED), older_than.map(|_| &INACTIVE)].into_iter().flatten() {
        let mut last = [Some(Datum::from(i64::MIN)), Some(Datum::from(i64::MIN))];
        while deleted < max_rows {
            let spi = Spi::connect();
            let [at, sid] = last;
            let page = [Some(text_datum(&tenant)), older_than, at, sid, Some(Datum::from(max_rows - deleted))];
            let due = plan.run(&spi, See::Now, &page);
            let Some(end) = due.last() else { break };
            last = [end.int8(1), end.int8(0)].map(|value| value.map(Datum::from));
            for sid in due.iter().filter_map(|row| row.int8(0)) {
                let is_due = || STILL_DUE.run(&spi, See::Latest, &[Some(Datum::from(sid)), older_than]).len() > 0;
                if let Some(family) = Family::seize(&spi, sid, is_due) {
                    delete(&spi, sid, &family)?;
                    deleted += 1;
                }
            }
        }
    }
    Ok(Some(Datum::from(deleted)))
}

/// Deletes a locked session with its sub-sessions; those that branches from elsewhere need are hidden.
fn delete(spi: &Spi, sid: i64, family: &Family) -> Result<(), Error> {
    let (gone, hidden) = divide(spi, family);
    for hidden in &hidden {
        hide(spi, *hidden)?;
    }
    if hidden.contains(&sid) {
        let _owner = AsOwner::switch();
        DELETE_ALL.run(spi, See::Latest, &[Some(sids(&gone))]);
    } else {
        // Its sub-sessions go by trigger.
        DELETE.run(spi, See::Now, &[Some(Datum::from(sid))]);
    }
    Ok(())
}

/// The members that can go, and those that a branch needs which stays.
fn divide(spi: &Spi, family: &Family) -> (Vec<i64>, Vec<i64>) {
    let _owner = AsOwner::switch();
    let mut gone: HashSet<i64> = family.members.iter().copied().collect();
    let branches = BRANCHES.run(spi, See::Latest, &[Some(sids(&family.members))]);
    let branches: Vec<(i64, i64)> = branches.iter().filter_map(|row| row.int8(0).zip(row.int8(1))).collect();
    // A session that is hidden needs its own source in turn.
    while branches.iter().any(|(source, branch)| !gone.contains(branch) && gone.remove(source)) {}
    let hidden = family.members.iter().copied().filter(|sid| !gone.contains(sid)).collect();
    (gone.into_iter().collect(), hidden)
}

fn hide(spi: &Spi, sid: i64) -> Result<(), Error> {
    let _owner = AsOwner::switch();
    if let Some(head) = Head::lock_latest(spi, sid) {
        head.admit(None)?;
        HIDE.run(spi, See::Latest, &[Some(Datum::from(sid))]);
        DROP_DELTAS.run(spi, See::Latest, &[Some(Datum::from(sid))]);
        PRUNE.run(spi, See::Latest, &[Some(Datum::from(sid))]);
    }
    Ok(())
}

/// Whether a branch reads entries of the session.
pub fn is_needed(spi: &Spi, sid: i64) -> bool {
    let _owner = AsOwner::switch();
    BRANCHES.run(spi, See::Latest, &[Some(sids(&[sid]))]).len() > 0
}

/// Deletes a hidden session that no branch needs any more, and those that only it has needed; else what no branch reads of it.
pub fn collect(spi: &Spi, source: Option<i64>) {
    let _owner = AsOwner::switch();
    let mut needless = Vec::new();
    let mut next = source;
    // Locked already where a function of ours deletes. All at once, since triggers nest only so deep.
    while let Some(sid) = next
        && let Some(hidden) = lock_if_hidden(spi, sid)
    {
        let branches = BRANCHES.run(spi, See::Latest, &[Some(sids(&[sid]))]);
        if branches.iter().any(|row| row.int8(1).is_some_and(|branch| !needless.contains(&branch))) {
            PRUNE.run(spi, See::Latest, &[Some(Datum::from(sid))]);
            break;
        }
        needless.push(sid);
        next = hidden;
    }
    if !needless.is_empty() {
        DELETE_ALL.run(spi, See::Latest, &[Some(sids(&needless))]);
    }
}

/// Locks a session that is hidden, and says what it branched off. Waits for who is just hiding it.
fn lock_if_hidden(spi: &Spi, sid: i64) -> Option<Option<i64>> {
    let sid = [Some(Datum::from(sid))];
    // In a subtransaction, so that of two who find it hidden none holds what the other waits for.
    let visible = nesting::attempt(|| LOCK_VISIBLE.run(spi, See::Latest, &sid).first().map(drop));
    if visible.is_some() {
        return None;
    }
    LOCK_HIDDEN.run(spi, See::Latest, &sid).first().map(|row| row.int8(0))
}
