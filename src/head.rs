//! The session's row, locked: what every write begins with.

use std::cell::RefCell;

use agent_sessions_core::digest::{Digest, Genesis};
use agent_sessions_core::error::Error;
use agent_sessions_core::lease::Held;
use agent_sessions_core::word::OnMissing;
use pgrx::pg_sys::{Datum, INT8OID, TEXTOID};

use crate::address::Address;
use crate::hint;
use crate::identity;
use crate::lease;
use crate::lineage::Origin;
use crate::postgres::direct::{Lock, Tid};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::rows::Row;
use crate::postgres::value::{self, clock, text_datum};
use crate::postgres::{nesting, raise, transaction};
use crate::session_table::{self, column};

static LOCK: KeptPlan = KeptPlan::new(
    c"select s.sid, s.active_at, s.lease_digest, s.lease_holder, s.lease_expires_at, s.tenant, s.agent_id, \
        s.branched_from, s.fork_position, s.base_position \
      from agent_sessions.session s \
      where s.tenant operator(pg_catalog.=) $1 and s.agent_id operator(pg_catalog.=) $2 \
        and s.session_id operator(pg_catalog.=) $3 and s.deleted_at is null \
      for no key update",
    &[TEXTOID, TEXTOID, TEXTOID],
);

static LOCK_UNLESS_HELD: KeptPlan = KeptPlan::new(
    c"select s.sid, s.active_at, s.lease_digest, s.lease_holder, s.lease_expires_at, s.tenant, s.agent_id, \
        s.branched_from, s.fork_position, s.base_position \
      from agent_sessions.session s \
      where s.tenant operator(pg_catalog.=) $1 and s.agent_id operator(pg_catalog.=) $2 \
        and s.session_id operator(pg_catalog.=) $3 and s.deleted_at is null \
      for no key update skip locked",
    &[TEXTOID, TEXTOID, TEXTOID],
);

static LOCK_BY_SID: KeptPlan = KeptPlan::new(
    c"select s.sid, s.active_at, s.lease_digest, s.lease_holder, s.lease_expires_at, s.tenant, s.agent_id, \
        s.branched_from, s.fork_position, s.base_position \
      from agent_sessions.session s where s.sid operator(pg_catalog.=) $1 and s.deleted_at is null for no key update",
    &[INT8OID],
);

static LOCK_HIDDEN_BY_SID: KeptPlan = KeptPlan::new(
    c"select s.sid, s.active_at, s.lease_digest, s.lease_holder, s.lease_expires_at, s.tenant, s.agent_id, \
        s.branched_from, s.fork_position, s.base_position \
      from agent_sessions.session s \
      where s.sid operator(pg_catalog.=) $1 and s.deleted_at is not null \
        and ($2 is null or s.agent_id operator(pg_catalog.=) $2) \
      for no key update",
    &[INT8OID, TEXTOID],
);

static CREATE: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.session (tenant, agent_id, session_id) values ($1, $2, $3) \
      on conflict (tenant, agent_id, session_id) where deleted_at is null do nothing",
    &[TEXTOID, TEXTOID, TEXTOID],
);

static GENESIS: KeptPlan = KeptPlan::new(
    c"select s.tenant, s.agent_id, s.session_id, s.created_at, s.branched_from, s.fork_position, s.fork_digest, \
        s.base_position, s.base_digest \
      from agent_sessions.session s where s.sid operator(pg_catalog.=) $1",
    &[INT8OID],
);

static TOUCH: KeptPlan = KeptPlan::new(
    c"update agent_sessions.session set active_at = pg_catalog.clock_timestamp() where sid operator(pg_catalog.=) $1",
    &[INT8OID],
);

/// What is read of a locked session, in the columns of the statements above.
const SELECTED: [usize; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
/// The same in the columns of the table.
const STORED: [usize; 10] = [
    column::SID,
    column::ACTIVE_AT,
    column::LEASE_DIGEST,
    column::LEASE_HOLDER,
    column::LEASE_EXPIRES_AT,
    column::TENANT,
    column::AGENT_ID,
    column::BRANCHED_FROM,
    column::FORK_POSITION,
    column::BASE_POSITION,
];

/// How often a session is created that is gone again before it is locked. More than a few rounds mean that it never comes.
pub const CREATION_ROUNDS: usize = 100;

/// How old active_at may become: a head that is only locked keeps its pages prunable while a snapshot is held.
const TOUCH_AFTER_MICROSECONDS: i64 = 60_000_000;

/// A session's row, locked until the transaction ends.
pub struct Head {
    pub sid: i64,
    pub tenant: String,
    pub agent_id: String,
    pub origin: Origin,
    active_at: i64,
    lease_digest: Option<Digest>,
    lease_holder: Option<String>,
    lease_expires_at: Option<i64>,
    /// Where it was locked without a statement.
    lock: Option<Lock>,
}

/// A session that a statement appends to and that is due to be touched, and where that statement runs.
struct Noted {
    transaction: i64,
    subtransaction: u32,
    sid: i64,
}

thread_local! {
    static NOTED: RefCell<Vec<Noted>> = const { RefCell::new(Vec::new()) };
}

/// Touches what the statement that ends has noted. What one has noted that failed is behind it, in a subtransaction that is over.
pub fn touch_noted() {
    let (start, subtransaction) = (transaction::start(), nesting::subtransaction());
    let mut noted = NOTED.take();
    noted.retain(|noted| noted.transaction == start && noted.subtransaction <= subtransaction);
    let (here, outside): (Vec<Noted>, _) = noted.into_iter().partition(|noted| noted.subtransaction == subtransaction);
    NOTED.set(outside);
    if !here.is_empty() {
        let spi = Spi::connect();
        let mut sids: Vec<i64> = here.iter().map(|noted| noted.sid).collect();
        sids.dedup();
        sids.into_iter().for_each(|sid| touch(&spi, sid));
    }
}

fn touch(spi: &Spi, sid: i64) {
    let _owner = AsOwner::switch();
    TOUCH.run(spi, See::Now, &[Some(Datum::from(sid))]);
}

/// SE002 for a session that a raw statement names by its sid.
pub fn unknown(sid: i64) -> Error {
    Error::SessionNotFound { session_id: format!("sid {sid}"), agent_id: String::new(), found_under: None }
}

/// What the entries that a session holds begin with.
pub struct Base {
    pub tenant: String,
    pub agent_id: String,
    /// The first position, and what the entry there links to.
    pub position: i64,
    pub previous: Digest,
    /// Whether retention has removed what was before.
    pub is_trimmed: bool,
    /// The digest that the inherited log ended with, if there is one.
    pub fork_digest: Option<Digest>,
    /// The genesis without the fork: what the copies of a flattened branch are chained from.
    pub unforked: Digest,
    /// Where a flattened branch's copies end, and what its first own entry links to.
    pub rejoin: Option<(i64, Digest)>,
}

impl Head {
    /// Locks the session, creates it first if that is wanted, or gives `None` to `ignore`. SE002 otherwise.
    pub fn lock(spi: &Spi, address: &Address, on_missing: OnMissing) -> Result<Option<Head>, Error> {
        match on_missing {
            OnMissing::Create => {
                let create = || CREATE.run(spi, See::Now, &address.parameters()).len() > 0;
                Ok(Some(Head::lock_or_create(spi, address, create).0))
            }
            OnMissing::Ignore => Ok(Head::find(spi, address)),
            OnMissing::Error => Head::find(spi, address).map(Some).ok_or_else(|| address.not_found(spi)),
        }
    }

    /// Locks the session, and says whether it is new. Whoever comes second waits in `create` for the first, and then finds the
    /// row, unless it was deleted meanwhile.
    pub fn lock_or_create(spi: &Spi, address: &Address, create: impl Fn() -> bool) -> (Head, bool) {
        let mut is_new = false;
        for _ in 0..CREATION_ROUNDS {
            if let Some(head) = Head::find_or_release(spi, address) {
                return (head, is_new);
            }
            is_new = create();
        }
        raise::row_was_dropped()
    }

    /// A row that is hidden while it is waited for stays locked. In a subtransaction, so that the next session of that name is not
    /// waited for with this lock held; without one where there is nothing to wait for.
    fn find_or_release(spi: &Spi, address: &Address) -> Option<Head> {
        Head::lock_unless_held(spi, address).or_else(|| nesting::attempt(|| Head::find(spi, address)))
    }

    fn find(spi: &Spi, address: &Address) -> Option<Head> {
        match session_table::open_to_lock(address) {
            Some(table) => session_table::lock(&table, address, true, Head::stored).flatten(),
            None => LOCK.run(spi, See::Now, &address.parameters()).first().and_then(Head::read),
        }
    }

    /// Locks the session unless another transaction holds it.
    pub fn lock_unless_held(spi: &Spi, address: &Address) -> Option<Head> {
        match session_table::open_to_lock(address) {
            Some(table) => session_table::lock(&table, address, false, Head::stored).flatten(),
            None => LOCK_UNLESS_HELD.run(spi, See::Now, &address.parameters()).first().and_then(Head::read),
        }
    }

    /// Locks the session that a raw statement names, if the caller may see it.
    pub fn lock_by_sid(spi: &Spi, sid: i64) -> Option<Head> {
        LOCK_BY_SID.run(spi, See::Now, &[Some(Datum::from(sid))]).first().and_then(Head::read)
    }

    /// Locks a session that the transaction's snapshot may not see.
    pub fn lock_latest(spi: &Spi, sid: i64) -> Option<Head> {
        LOCK_BY_SID.run(spi, See::Latest, &[Some(Datum::from(sid))]).first().and_then(Head::read)
    }

    /// Locks an ancestor of a session that the caller may see: one that is visible itself, or was hidden when it was deleted.
    pub fn lock_ancestor(spi: &Spi, sid: i64) -> Option<Head> {
        Head::lock_by_sid(spi, sid).or_else(|| {
            let agent = identity::isolated();
            let _owner = AsOwner::switch();
            let arguments = [Some(Datum::from(sid)), agent.as_deref().map(text_datum)];
            LOCK_HIDDEN_BY_SID.run(spi, See::Now, &arguments).first().and_then(Head::read)
        })
    }

    /// Reads a row of the table.
    fn stored(row: Row, lock: Lock) -> Option<Head> {
        Head::of(row, STORED).map(|head| Head { lock: Some(lock), ..head })
    }

    /// Reads a row of a statement that locks.
    fn read(row: Row) -> Option<Head> {
        Head::of(row, SELECTED)
    }

    fn of(row: Row, columns: [usize; 10]) -> Option<Head> {
        let [sid, active_at, digest, holder, expires_at, tenant, agent_id, branched_from, fork, base] = columns;
        Some(Head {
            sid: row.int8(sid)?,
            active_at: row.int8(active_at)?,
            lease_digest: row.bytes(digest).and_then(value::digest),
            lease_holder: row.text(holder).map(str::to_owned),
            lease_expires_at: row.int8(expires_at),
            tenant: row.text(tenant)?.to_owned(),
            agent_id: row.text(agent_id)?.to_owned(),
            origin: Origin {
                branched_from: row.int8(branched_from),
                fork_position: row.int8(fork),
                base_position: row.int8(base)?,
            },
            lock: None,
        })
    }

    /// The position of the last entry, and its row's tid, if this backend has written it and nobody has come after it: whoever
    /// writes locks the session first.
    pub fn take_written(&self) -> Option<(i64, Tid)> {
        hint::take_written(self.sid, self.lock)
    }

    pub fn remember_written(&self, position: i64, tid: Tid) {
        if let Some(lock) = self.lock {
            hint::remember_written(self.sid, position, tid, lock);
        }
    }

    /// SE008 or SE009 unless a write may pass now that brings `lease`, or else an entry in the setting.
    pub fn admit(&self, lease: Option<&str>) -> Result<(), Error> {
        match lease {
            Some(lease) => self.held().admits(Some(lease), clock()),
            None => self.held().admits(lease::brought_for(self.sid).as_deref(), clock()),
        }
    }

    pub fn is_leased(&self) -> bool {
        self.held().is_live(clock())
    }

    /// Whether there is a lease, live or expired, that was neither released nor broken.
    pub fn has_lease(&self) -> bool {
        self.lease_digest.is_some()
    }

    pub fn is_proven_by(&self, lease: &str) -> bool {
        self.held().is_proven_by(lease)
    }

    fn held(&self) -> Held<'_> {
        Held {
            sid: self.sid,
            digest: self.lease_digest.as_ref().map(Digest::as_slice),
            holder: self.lease_holder.as_deref(),
            expires_at: self.lease_expires_at,
        }
    }

    /// Writes down that the session is active, at most once in 60 seconds.
    pub fn touch(&self, spi: &Spi) {
        if self.is_due() {
            touch(spi, self.sid);
        }
    }

    /// Leaves that to the trigger at the end of the statement.
    pub fn note_activity(&self) {
        if self.is_due() {
            let noted =
                Noted { transaction: transaction::start(), subtransaction: nesting::subtransaction(), sid: self.sid };
            NOTED.with_borrow_mut(|all| all.push(noted));
        }
    }

    fn is_due(&self) -> bool {
        clock() - self.active_at > TOUCH_AFTER_MICROSECONDS
    }
}

impl Base {
    /// `None` if the session is not there or not visible.
    pub fn of(spi: &Spi, see: See, sid: i64) -> Option<Base> {
        let rows = GENESIS.run(spi, see, &[Some(Datum::from(sid))]);
        let row = rows.first()?;
        let (tenant, agent_id) = (row.text(0)?, row.text(1)?);
        let origin = Origin { branched_from: row.int8(4), fork_position: row.int8(5), base_position: row.int8(7)? };
        let fork_digest = row.bytes(6).and_then(value::digest);
        let unforked = Genesis {
            tenant,
            agent_id,
            session_id: row.text(2)?,
            created_at: row.int8(3)?,
            fork_position: None,
            forked_from: [0; 32],
        };
        let forked =
            Genesis { fork_position: origin.fork_position, forked_from: fork_digest.unwrap_or_default(), ..unforked };
        let genesis = if origin.is_flattened() { unforked } else { forked };
        Some(Base {
            tenant: tenant.to_owned(),
            agent_id: agent_id.to_owned(),
            position: origin.first_position(),
            is_trimmed: origin.base_position > 0,
            previous: row.bytes(8).and_then(value::digest).unwrap_or_else(|| genesis.digest()),
            fork_digest,
            unforked: unforked.digest(),
            rejoin: origin.fork_position.filter(|_| origin.is_flattened()).map(|fork| (fork, forked.digest())),
        })
    }
}
