//! Deleting sessions, one or those that have expired. What branches still need is hidden, and goes with the last of them.

use std::collections::HashSet;

use agent_sessions_core::error::Error;
use agent_sessions_core::word::OnMissing;
use pgrx::pg_sys::{Datum, INT8ARRAYOID, INT8OID, INTERVALOID, TEXTOID, TIMESTAMPTZOID};

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

static WITH_SUB_SESSIONS: KeptPlan = KeptPlan::new(
    c"with recursive below (sid) as ( \
        select $1 union \
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

static LOCK_FREE: KeptPlan = KeptPlan::new(
    c"select s.sid from agent_sessions.session s \
      where s.sid operator(pg_catalog.=) any ($1) and (s.lease_expires_at is null \
        or s.lease_expires_at operator(pg_catalog.<=) pg_catalog.clock_timestamp()) \
      order by s.sid for update skip locked",
    &[INT8ARRAYOID],
);

// What the deletion of these sessions locks above them: their sources, and above a hidden one its own.
static SOURCES: KeptPlan = KeptPlan::new(
    c"with recursive up (sid) as ( \
        select s.branched_from from agent_sessions.session s where s.sid operator(pg_catalog.=) any ($1) \
        union \
        select s.branched_from from agent_sessions.session s join up u on s.sid operator(pg_catalog.=) u.sid \
        where s.deleted_at is not null) \
      select s.sid, s.deleted_at from agent_sessions.session s join up u on s.sid operator(pg_catalog.=) u.sid",
    &[INT8ARRAYOID],
);

static LOCK_SOURCES: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session s where s.sid operator(pg_catalog.=) any ($1) for key share skip locked",
    &[INT8ARRAYOID],
);

static LOCK_HIDDEN_SOURCES: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session s where s.sid operator(pg_catalog.=) any ($1) for update skip locked",
    &[INT8ARRAYOID],
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
                if seize(&spi, sid, older_than) {
                    delete(&spi, sid)?;
                    deleted += 1;
                }
            }
        }
    }
    Ok(Some(Datum::from(deleted)))
}

/// Locks a session that is due, with all that its deletion touches, unless a part of that is locked or under a live lease.
fn seize(spi: &Spi, sid: i64, older_than: Option<Datum>) -> bool {
    // In a subtransaction, so that what cannot be had whole is not kept in part. Nothing is waited for: others may hold one
    // part and want another.
    let seized = nesting::attempt(|| {
        let _owner = AsOwner::switch();
        let family = with_sub_sessions(spi, sid);
        let is_free = LOCK_FREE.run(spi, See::Latest, &[Some(sids(&family))]).len() == family.len();
        let is_whole = is_free && with_sub_sessions(spi, sid) == family;
        // A lost lease among those that are brought would fail the deletion.
        let is_admitted =
            || family.iter().all(|sid| Head::lock_latest(spi, *sid).is_some_and(|head| head.admit(None).is_ok()));
        let is_due = || STILL_DUE.run(spi, See::Latest, &[Some(Datum::from(sid)), older_than]).len() > 0;
        (is_whole && is_due() && is_admitted() && seize_sources(spi, &family)).then_some(())
    });
    seized.is_some()
}

fn seize_sources(spi: &Spi, family: &[i64]) -> bool {
    let sources = SOURCES.run(spi, See::Latest, &[Some(sids(family))]);
    let (hidden, visible): (Vec<_>, Vec<_>) = sources.iter().partition(|row| row.int8(1).is_some());
    [(&LOCK_SOURCES, visible), (&LOCK_HIDDEN_SOURCES, hidden)].iter().all(|(plan, rows)| {
        let of: Vec<i64> = rows.iter().filter_map(|row| row.int8(0)).collect();
        plan.run(spi, See::Latest, &[Some(sids(&of))]).len() == of.len()
    })
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

/// The session and all below it, in the order of sid.
fn with_sub_sessions(spi: &Spi, sid: i64) -> Vec<i64> {
    let below = WITH_SUB_SESSIONS.run(spi, See::Latest, &[Some(Datum::from(sid))]);
    below.iter().filter_map(|row| row.int8(0)).collect()
}

/// Locks the session and all below it, those included that came while this waited.
fn lock_with_sub_sessions(spi: &Spi, sid: i64) -> Vec<i64> {
    let mut locked = Vec::new();
    loop {
        let below = with_sub_sessions(spi, sid);
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
