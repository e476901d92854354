//! Deleting sessions, one or those that have expired. What branches still need is hidden, and goes with the last of them.

use std::collections::HashSet;

use agent_sessions_core::error::Error;
use agent_sessions_core::word::OnMissing;
use pgrx::pg_sys::{Datum, INT8ARRAYOID, INT8OID, INTERVALOID, TEXTOID};

use crate::address::Address;
use crate::head::Head;
use crate::identity;
use crate::lease::Given;
use crate::paging;
use crate::postgres::call::{Call, Returns};
use crate::postgres::nesting;
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::{Element, array, text_datum};

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

static WITH_SUB_SESSIONS: KeptPlan = KeptPlan::new(
    c"with recursive below (sid) as ( \
        select $1 union all \
        select s.sid from agent_sessions.session s join below b on s.parent_sid operator(pg_catalog.=) b.sid \
        where s.deleted_at is null) \
      select b.sid from below b order by b.sid",
    &[INT8OID],
);

// A branch that is made meanwhile waits, and then finds its source gone.
static LOCK_ALL: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session s where s.sid operator(pg_catalog.=) any ($1) order by s.sid for update",
    &[INT8ARRAYOID],
);

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

/// The sessions of a tenant that have expired, or were inactive for longer than $2, and are not held, nor any below them.
macro_rules! expired {
    ($condition:literal, $order:literal) => {
        KeptPlan::new(
            crate::sql!(
                "select s.sid from agent_sessions.session s \
                 where s.tenant operator(pg_catalog.=) $1 and s.deleted_at is null and ",
                $condition,
                " and not exists ( \
                    with recursive below (sid, lease_expires_at) as ( \
                      select s.sid, s.lease_expires_at union all \
                      select c.sid, c.lease_expires_at from agent_sessions.session c \
                      join below b on c.parent_sid operator(pg_catalog.=) b.sid) \
                    select from below b \
                    where b.lease_expires_at operator(pg_catalog.>) pg_catalog.clock_timestamp()) \
                 order by ",
                $order,
                " limit $3 for no key update of s skip locked"
            ),
            &[TEXTOID, INTERVALOID, INT8OID],
        )
    };
}

static EXPIRED: KeptPlan =
    expired!("s.expires_at operator(pg_catalog.<=) pg_catalog.clock_timestamp()", "s.expires_at, s.sid");

static INACTIVE: KeptPlan = expired!(
    "s.active_at operator(pg_catalog.<) (pg_catalog.clock_timestamp() operator(pg_catalog.-) $2)",
    "s.active_at, s.sid"
);

const DEFAULT_EXPIRED_ROWS: i64 = 1_000;

pub fn session_delete(call: &mut Call) -> Returns {
    let session_id = call.text();
    let on_missing = OnMissing::parse_without_create(call.text())?;
    let agent_id = call.text();
    let lease = call.text();
    let address = Address::resolve(session_id, agent_id)?;

    let spi = Spi::connect();
    let Some(head) = Head::lock(&spi, &address, on_missing)? else { return Ok(None) };
    head.admit(lease)?;
    let _lease = Given::to_triggers(lease);
    delete(&spi, head.sid)?;
    Ok(Some(Datum::from(true)))
}

pub fn session_expire(call: &mut Call) -> Returns {
    let older_than = call.age("older_than")?;
    let max_rows = paging::rows(call.int4())?.unwrap_or(DEFAULT_EXPIRED_ROWS);
    let tenant = identity::tenant()?;

    let spi = Spi::connect();
    let expired = |plan: &KeptPlan, rows: i64| -> Vec<i64> {
        let rows = plan.run(&spi, See::Now, &[Some(text_datum(&tenant)), older_than, Some(Datum::from(rows))]);
        rows.iter().filter_map(|row| row.int8(0)).collect()
    };
    let mut deleted = 0;
    for plan in [Some(&EXPIRED), older_than.map(|_| &INACTIVE)].into_iter().flatten() {
        for sid in expired(plan, max_rows - deleted) {
            // One that was a sub-session of another is gone already.
            if Head::lock_by_sid(&spi, sid).is_some() {
                delete(&spi, sid)?;
            }
            deleted += 1;
        }
    }
    Ok(Some(Datum::from(deleted)))
}

/// Deletes a locked session with its sub-sessions; those that branches from elsewhere need are hidden.
fn delete(spi: &Spi, sid: i64) -> Result<(), Error> {
    let (gone, hidden) = divide(spi, sid);
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

/// The session and its sub-sessions: those that can go, and those that a branch needs which stays.
fn divide(spi: &Spi, sid: i64) -> (Vec<i64>, Vec<i64>) {
    let _owner = AsOwner::switch();
    let all = lock_with_sub_sessions(spi, sid);
    let mut gone: HashSet<i64> = all.iter().copied().collect();
    let branches = BRANCHES.run(spi, See::Latest, &[Some(sids(&all))]);
    let branches: Vec<(i64, i64)> = branches.iter().filter_map(|row| row.int8(0).zip(row.int8(1))).collect();
    // A session that is hidden needs its own source in turn.
    while branches.iter().any(|(source, branch)| !gone.contains(branch) && gone.remove(source)) {}
    let hidden = all.into_iter().filter(|sid| !gone.contains(sid)).collect();
    (gone.into_iter().collect(), hidden)
}

/// Locks the session and all below it, those included that came while this waited.
fn lock_with_sub_sessions(spi: &Spi, sid: i64) -> Vec<i64> {
    let mut locked = Vec::new();
    loop {
        let below = WITH_SUB_SESSIONS.run(spi, See::Latest, &[Some(Datum::from(sid))]);
        let below: Vec<i64> = below.iter().filter_map(|row| row.int8(0)).collect();
        if below == locked {
            return locked;
        }
        LOCK_ALL.run(spi, See::Latest, &[Some(sids(&below))]);
        locked = below;
    }
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
    // From branch to source, as every call locks that locks both. All at once, since triggers nest only so deep.
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

fn sids(sids: &[i64]) -> Datum {
    array(Element::Int8, &sids.iter().map(|sid| Some(Datum::from(*sid))).collect::<Vec<_>>())
}
