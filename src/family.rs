//! Which sessions go together, and the one order in which they are locked: sub-sessions before their parents, and branches before
//! their sources, since that is the way in which a call goes on from the session that it names.

use std::collections::BTreeMap;

use pgrx::pg_sys::{Datum, INT8ARRAYOID, INT8OID};

use crate::head::Head;
use crate::postgres::nesting;
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::{Element, array};

static WITH_SUB_SESSIONS: KeptPlan = KeptPlan::new(
    c"with recursive below (sid) as ( \
        select $1 union \
        select s.sid from agent_sessions.session s join below b on s.parent_sid operator(pg_catalog.=) b.sid \
        where s.deleted_at is null) \
      select b.sid from below b order by b.sid",
    &[INT8OID],
);

// What the deletion of these sessions may take along: their sources, and above a hidden one its own.
static SOURCES: KeptPlan = KeptPlan::new(
    c"with recursive up (sid) as ( \
        select s.branched_from from agent_sessions.session s where s.sid operator(pg_catalog.=) any ($1) \
        union \
        select s.branched_from from agent_sessions.session s join up u on s.sid operator(pg_catalog.=) u.sid \
        where s.deleted_at is not null) \
      select s.sid, s.deleted_at from agent_sessions.session s join up u on s.sid operator(pg_catalog.=) u.sid",
    &[INT8ARRAYOID],
);

static WITH_READERS: KeptPlan = KeptPlan::new(
    c"with recursive below (sid) as ( \
        select $1 union \
        select s.sid from agent_sessions.session s join below b on s.branched_from operator(pg_catalog.=) b.sid \
        where s.fork_position operator(pg_catalog.>) s.base_position) \
      select b.sid from below b order by b.sid desc",
    &[INT8OID],
);

static LOCK_FOR_WRITING: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session s where s.sid operator(pg_catalog.=) $1 for no key update",
    &[INT8OID],
);

static LOCK: KeptPlan =
    KeptPlan::new(c"select from agent_sessions.session s where s.sid operator(pg_catalog.=) $1 for update", &[INT8OID]);

// Many may hold it at once: in the way of deleting the session, not of writing to it.
static KEEP_VISIBLE: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session s \
      where s.sid operator(pg_catalog.=) $1 and s.deleted_at is null for key share",
    &[INT8OID],
);

static LOCK_FREE: KeptPlan = KeptPlan::new(
    c"select s.sid from agent_sessions.session s \
      where s.sid operator(pg_catalog.=) any ($1) and (s.lease_expires_at is null \
        or s.lease_expires_at operator(pg_catalog.<=) pg_catalog.clock_timestamp()) \
      order by s.sid for update skip locked",
    &[INT8ARRAYOID],
);

static KEEP_FREE: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session s where s.sid operator(pg_catalog.=) any ($1) for key share skip locked",
    &[INT8ARRAYOID],
);

/// A session with all that is below it, locked together with its sources.
pub struct Family {
    pub members: Vec<i64>,
}

impl Family {
    /// Locks a session, all below it, and what their deletion may take along. Waits for who holds a part; `None`, and nothing is
    /// locked, if by then the session is not the one that `is_meant`.
    pub fn lock(spi: &Spi, sid: i64, is_meant: impl Fn() -> bool) -> Option<Family> {
        loop {
            // In a subtransaction, so that who has come below meanwhile is not waited for with the locks of those above held.
            let family = nesting::attempt(|| Family::lock_present(spi, sid).filter(|_| is_meant()));
            if family.is_some() || !is_meant() {
                return family;
            }
        }
    }

    /// `None` if there are others by the time that all of those are locked that were there.
    fn lock_present(spi: &Spi, sid: i64) -> Option<Family> {
        let _owner = AsOwner::switch();
        let members = with_sub_sessions(spi, sid);
        let sources = sources(spi, &members);
        let mut wanted = sources.clone();
        wanted.extend(members.iter().map(|member| (*member, Hold::Alone)));
        // The younger first: a sid is larger than that of the parent and of the source.
        let is_held = wanted.iter().rev().all(|(sid, hold)| hold.take(spi, *sid));
        let is_whole = || with_sub_sessions(spi, sid) == members && self::sources(spi, &members) == sources;
        (is_held && is_whole()).then_some(Family { members })
    }

    /// Locks the same, unless a part of it is locked or under a live lease: nothing is waited for, and what cannot be had whole is
    /// not kept in part. `is_wanted` is asked once it is.
    pub fn seize(spi: &Spi, sid: i64, is_wanted: impl FnOnce() -> bool) -> Option<Family> {
        nesting::attempt(|| {
            let _owner = AsOwner::switch();
            let members = with_sub_sessions(spi, sid);
            let free = LOCK_FREE.run(spi, See::Latest, &[Some(sids(&members))]).len();
            let is_whole = free == members.len() && with_sub_sessions(spi, sid) == members;
            // A lost lease among those that are brought would fail the deletion.
            let is_admitted =
                || members.iter().all(|sid| Head::lock_latest(spi, *sid).is_some_and(|head| head.admit(None).is_ok()));
            (is_whole && is_admitted() && seize_sources(spi, &members) && is_wanted()).then_some(Family { members })
        })
    }
}

/// Locks a session and all that read its log, through however many branches, against their writers. `false`, and nothing is
/// locked, if by then the session is not the one that `is_meant`.
pub fn lock_with_readers(spi: &Spi, sid: i64, is_meant: impl Fn() -> bool) -> bool {
    let readers = || {
        let rows = WITH_READERS.run(spi, See::Latest, &[Some(Datum::from(sid))]);
        rows.iter().filter_map(|row| row.int8(0)).collect::<Vec<i64>>()
    };
    let lock_present = || {
        let _owner = AsOwner::switch();
        let present = readers();
        for reader in &present {
            LOCK_FOR_WRITING.run(spi, See::Latest, &[Some(Datum::from(*reader))]);
        }
        (readers() == present && is_meant()).then_some(())
    };
    // As in Family::lock. A further one has to wait now: a branch locks its source.
    loop {
        let is_locked = nesting::attempt(lock_present).is_some();
        if is_locked || !is_meant() {
            return is_locked;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// What goes, or may go.
    Alone,
    /// What has to stay.
    Shared,
}

impl Hold {
    /// Whether the session was there to be held so. No subtransaction of its own: who waits for a lock of one that has ended goes on
    /// to wait for the end of the transaction, though the lock is given up before.
    fn take(self, spi: &Spi, sid: i64) -> bool {
        let plan = match self {
            Hold::Alone => &LOCK,
            Hold::Shared => &KEEP_VISIBLE,
        };
        plan.run(spi, See::Latest, &[Some(Datum::from(sid))]).len() > 0
    }
}

/// The session and all below it, in the order of sid.
fn with_sub_sessions(spi: &Spi, sid: i64) -> Vec<i64> {
    let below = WITH_SUB_SESSIONS.run(spi, See::Latest, &[Some(Datum::from(sid))]);
    below.iter().filter_map(|row| row.int8(0)).collect()
}

fn sources(spi: &Spi, members: &[i64]) -> BTreeMap<i64, Hold> {
    let sources = SOURCES.run(spi, See::Latest, &[Some(sids(members))]);
    let hold = |is_hidden: bool| if is_hidden { Hold::Alone } else { Hold::Shared };
    sources.iter().filter_map(|row| Some((row.int8(0)?, hold(row.int8(1).is_some())))).collect()
}

fn seize_sources(spi: &Spi, members: &[i64]) -> bool {
    let sources = sources(spi, members);
    [(&LOCK_FREE, Hold::Alone), (&KEEP_FREE, Hold::Shared)].iter().all(|(plan, wanted)| {
        let of: Vec<i64> = sources.iter().filter(|(_, hold)| *hold == wanted).map(|(sid, _)| *sid).collect();
        plan.run(spi, See::Latest, &[Some(sids(&of))]).len() == of.len()
    })
}

pub fn sids(sids: &[i64]) -> Datum {
    array(Element::Int8, &sids.iter().map(|sid| Some(Datum::from(*sid))).collect::<Vec<_>>())
}
