//! Leases: who may write a session, for how long, and a fence that grows with every claim.
//!
//! All arithmetic is on the server's clock, read after the head is locked. Clients pass durations only.

use std::cell::RefCell;

use agent_sessions_core::error::Error;
use agent_sessions_core::lease::{check_ttl, entry_for, issue};
use agent_sessions_core::name;
use agent_sessions_core::word::OnMissing;
use pgrx::pg_sys::{BYTEAOID, Datum, INT8OID, TEXTOID, TIMESTAMPTZOID};

use crate::address::{Address, sid_of};
use crate::audit::track::{self, Deed, What};
use crate::head::Head;
use crate::identity;
use crate::postgres::call::{Call, Returns, Set};
use crate::postgres::catalog;
use crate::postgres::nesting;
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::raise;
use crate::postgres::setting;
use crate::postgres::value::{bytes_datum, clock, text_datum};
use crate::postgres::wait;

static GRANT: KeptPlan = KeptPlan::new(
    c"update agent_sessions.session set lease_digest = $2, lease_holder = $3, lease_expires_at = $4 \
      where sid operator(pg_catalog.=) $1 returning lease_fence",
    &[INT8OID, BYTEAOID, TEXTOID, TIMESTAMPTZOID],
);

static EXTEND: KeptPlan = KeptPlan::new(
    c"update agent_sessions.session set lease_expires_at = $2 where sid operator(pg_catalog.=) $1 returning lease_fence",
    &[INT8OID, TIMESTAMPTZOID],
);

static CLEAR: KeptPlan = KeptPlan::new(
    c"update agent_sessions.session set lease_digest = null, lease_holder = null, lease_expires_at = null \
      where sid operator(pg_catalog.=) $1",
    &[INT8OID],
);

static EXPIRY: KeptPlan = KeptPlan::new(
    c"select s.lease_expires_at from agent_sessions.session s where s.sid operator(pg_catalog.=) $1",
    &[INT8OID],
);

static NEXT: KeptPlan = KeptPlan::new(
    c"select s.sid, s.session_id, s.agent_id from agent_sessions.session s \
      where s.tenant operator(pg_catalog.=) $1 and s.deleted_at is null \
        and case when $2 is null then s.closed_at is null else s.status operator(pg_catalog.=) $2 end \
        and ($3 is null or s.owner operator(pg_catalog.=) $3) and ($4 is null or s.agent_id operator(pg_catalog.=) $4) \
        and (s.lease_expires_at is null or s.lease_expires_at operator(pg_catalog.<=) pg_catalog.clock_timestamp()) \
      order by s.active_at, s.sid limit 1 for no key update skip locked",
    &[TEXTOID, TEXTOID, TEXTOID, TEXTOID],
);

/// How often a waiting claim looks again, at least: a release tells nobody.
const LOOK_AGAIN_MILLISECONDS: i64 = 20;

thread_local! {
    /// The lease that the running function was called with: what the setting is to raw SQL.
    static GIVEN: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// While it lives, the triggers of what the function writes find its lease. It proves itself there as it did here.
pub struct Given {
    outer: Option<String>,
}

impl Given {
    pub fn to_triggers(lease: Option<&str>) -> Given {
        Given { outer: GIVEN.replace(lease.map(str::to_owned)) }
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        GIVEN.set(self.outer.take());
    }
}

/// The lease that the caller brings for a session besides an argument: its function's, or the entry in the setting.
pub fn brought_for(sid: i64) -> Option<String> {
    let given = GIVEN.with_borrow(|given| given.as_deref().and_then(|lease| entry_for(lease, sid)).map(str::to_owned));
    given.or_else(|| entry_for(&setting::leases(), sid).map(str::to_owned))
}

pub fn session_claim(call: &mut Call) -> Returns {
    let session_id = call.text();
    let ttl = check_ttl(call.microseconds("ttl")?)?;
    let holder = call.text();
    let wait = call.microseconds("wait")?.unwrap_or(0);
    let on_missing = OnMissing::parse(call.text().or(Some("create")))?;
    let agent_id = call.text();
    name::label("holder", holder)?;
    if wait < 0 {
        return Err(Error::invalid("wait", "must not be negative"));
    }
    let address = Address::resolve(session_id, agent_id)?;
    let mut set = call.set();

    let spi = Spi::connect();
    let Some(head) = head_when_free(&spi, &address, on_missing, wait)? else { return Ok(None) };
    if !head.is_leased() {
        put(&mut set, &grant(&spi, &head, holder, ttl), &[]);
    }
    Ok(None)
}

/// The locked head, once it looks free or the wait is over; `None` if another transaction holds it until then.
///
/// While it waits it locks nothing: the holder has to be able to release.
fn head_when_free(spi: &Spi, address: &Address, on_missing: OnMissing, wait: i64) -> Result<Option<Head>, Error> {
    let deadline = clock().saturating_add(wait);
    while wait > 0
        && let Some((now, expires_at)) = look(address)
    {
        if expires_at.is_none_or(|expires_at| expires_at <= now) {
            if catalog::one_snapshot() && sid_of(spi, See::Now, &address.parameters()).is_none() {
                raise::serialization_failure();
            }
            // In a subtransaction, so that a session that another has just claimed does not stay locked while this one waits.
            let free = nesting::attempt(|| Head::lock_unless_held(spi, address).filter(|head| !head.is_leased()));
            if free.is_some() {
                return Ok(free);
            }
        }
        let left = (deadline - now + 999) / 1_000;
        if left <= 0 {
            return Ok(None);
        }
        let until_expiry = expires_at.map_or(i64::MAX, |expires_at| (expires_at - now) / 1_000);
        wait::sleep(left.min(until_expiry.max(1)).min(LOOK_AGAIN_MILLISECONDS));
    }
    Head::lock(spi, address, on_missing)
}

/// The clock, and when the session's lease ends, as it is committed now; `None` if there is no such session.
fn look(address: &Address) -> Option<(i64, Option<i64>)> {
    // A connection of its own, which frees what a look leaves behind: a claim may wait for hours.
    let spi = Spi::connect();
    let now = clock();
    let sid = sid_of(&spi, See::Latest, &address.parameters())?;
    let rows = EXPIRY.run(&spi, See::Latest, &[Some(Datum::from(sid))]);
    Some((now, rows.first().and_then(|row| row.int8(0))))
}

pub fn session_claim_next(call: &mut Call) -> Returns {
    let status = call.text();
    let ttl = check_ttl(call.microseconds("ttl")?)?;
    let holder = call.text();
    let owner = call.text();
    let agent_id = call.text();
    name::label("status", status)?;
    name::label("holder", holder)?;
    let tenant = identity::tenant()?;
    let mut set = call.set();

    let spi = Spi::connect();
    let filters = [Some(tenant.as_str()), status, owner, agent_id].map(|text| text.map(text_datum));
    let found = NEXT.run(&spi, See::Now, &filters);
    if let Some(row) = found.first()
        && let Some(head) = row.int8(0).and_then(|sid| Head::lock_by_sid(&spi, sid))
        && !head.is_leased()
    {
        put(&mut set, &grant(&spi, &head, holder, ttl), &[row.datum(1), row.datum(2)]);
    }
    Ok(None)
}

pub fn session_extend(call: &mut Call) -> Returns {
    let session_id = call.text();
    let lease = call.text().unwrap_or_default();
    let ttl = check_ttl(call.microseconds("ttl")?)?;
    let allow_expired = call.bool().unwrap_or(false);
    let agent_id = call.text();
    let address = Address::resolve(session_id, agent_id)?;
    let mut set = call.set();

    let spi = Spi::connect();
    let Some(head) = Head::lock(&spi, &address, OnMissing::Error)? else { return Ok(None) };
    if !head.is_proven_by(lease) || !(head.is_leased() || allow_expired) {
        return Err(Error::LeaseLost);
    }
    let expires_at = clock() + ttl;
    let _owner = AsOwner::switch();
    let extended = EXTEND.run(&spi, See::Now, &[Some(Datum::from(head.sid)), Some(Datum::from(expires_at))]);
    let fence = extended.first().and_then(|row| row.int8(0)).unwrap_or_default();
    put(&mut set, &Granted { lease: lease.to_owned(), fence, expires_at }, &[]);
    Ok(None)
}

pub fn session_release(call: &mut Call) -> Returns {
    let session_id = call.text();
    let lease = call.text().unwrap_or_default();
    let agent_id = call.text();
    let released = Address::resolve(session_id, agent_id)
        .is_ok_and(|address| clear(&address, |head| head.is_proven_by(lease)).unwrap_or(false));
    Ok(Some(Datum::from(released)))
}

pub fn session_break_lease(call: &mut Call) -> Returns {
    let session_id = call.text();
    let agent_id = call.text();
    let address = Address::resolve(session_id, agent_id)?;
    let broken = clear(&address, Head::has_lease)?;
    if broken {
        let Address { tenant, agent_id, session_id } = &address;
        let payload = serde_json::Value::Null;
        let action = "session_break_lease";
        track::note(&Spi::connect(), &Deed { what: What::Lease, action, tenant, agent_id, session_id, payload });
    }
    Ok(Some(Datum::from(broken)))
}

/// Ends the session's lease if `may` says so; the fence stays, so that the next is larger.
fn clear(address: &Address, may: impl Fn(&Head) -> bool) -> Result<bool, Error> {
    let spi = Spi::connect();
    match Head::lock(&spi, address, OnMissing::Error)? {
        Some(head) if may(&head) => {
            let _owner = AsOwner::switch();
            CLEAR.run(&spi, See::Now, &[Some(Datum::from(head.sid))]);
            Ok(true)
        }
        _ => Ok(false),
    }
}

struct Granted {
    lease: String,
    fence: i64,
    expires_at: i64,
}

fn grant(spi: &Spi, head: &Head, holder: Option<&str>, ttl: i64) -> Granted {
    // A crash must not take back a fence that was told to a client.
    setting::commit_durably();
    let (lease, digest) = issue(head.sid, uuid::Uuid::new_v4().into_bytes());
    let expires_at = clock() + ttl;
    let _owner = AsOwner::switch();
    let granted = GRANT.run(
        spi,
        See::Now,
        &[
            Some(Datum::from(head.sid)),
            Some(bytes_datum(&digest)),
            holder.map(text_datum),
            Some(Datum::from(expires_at)),
        ],
    );
    Granted { lease, fence: granted.first().and_then(|row| row.int8(0)).unwrap_or_default(), expires_at }
}

fn put(set: &mut Set, granted: &Granted, session: &[Option<Datum>]) {
    let remaining = (granted.expires_at - clock()) / 1_000;
    let lease = [
        Some(text_datum(&granted.lease)),
        Some(Datum::from(granted.fence)),
        Some(Datum::from(granted.expires_at)),
        Some(Datum::from(remaining as i32)),
    ];
    set.put(&[&lease, session].concat());
}
