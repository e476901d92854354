//! A stream's chain, locked: what the next event is linked to.

use agent_sessions_core::audit::GENESIS;
use pgrx::pg_sys::{Datum, TEXTOID};

use crate::postgres::catalog::one_snapshot;
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::raise;
use crate::postgres::value::text_datum;

static LOCK: KeptPlan = KeptPlan::new(
    c"select c.base_seq, c.base_hash from agent_sessions.audit_chain c \
      where c.tenant operator(pg_catalog.=) $1 and c.stream operator(pg_catalog.=) $2 for no key update",
    &[TEXTOID, TEXTOID],
);

static CREATE: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.audit_chain (tenant, stream) values ($1, $2) on conflict (tenant, stream) do nothing",
    &[TEXTOID, TEXTOID],
);

static LAST: KeptPlan = KeptPlan::new(
    c"select e.seq, e.hash from agent_sessions.audit_event e \
      where e.tenant operator(pg_catalog.=) $1 and e.stream operator(pg_catalog.=) $2 order by e.seq desc limit 1",
    &[TEXTOID, TEXTOID],
);

/// How often a chain is made whose row is gone again before it is locked; nothing of ours removes one.
const CREATION_ROUNDS: usize = 100;

pub struct Chain {
    pub next_seq: i64,
    pub prev_hash: String,
    /// The last seq that audit_prune has removed.
    pub base_seq: i64,
}

impl Chain {
    /// Locks a stream's chain, which is made on first use. 40001 if the transaction's snapshot does not see its tail.
    pub fn lock(spi: &Spi, tenant: &str, stream: &str) -> Chain {
        let _owner = AsOwner::switch();
        let name = [Some(text_datum(tenant)), Some(text_datum(stream))];
        for _ in 0..CREATION_ROUNDS {
            if let Some(chain) = Chain::find(spi, &name) {
                return chain;
            }
            CREATE.run(spi, See::Now, &name);
        }
        raise::row_was_dropped()
    }

    /// The same for a stream that there is.
    pub fn lock_existing(spi: &Spi, tenant: &str, stream: &str) -> Option<Chain> {
        let _owner = AsOwner::switch();
        Chain::find(spi, &[Some(text_datum(tenant)), Some(text_datum(stream))])
    }

    fn find(spi: &Spi, name: &[Option<Datum>; 2]) -> Option<Chain> {
        let rows = LOCK.run(spi, See::Now, name);
        let row = rows.first()?;
        let (base_seq, base_hash) = (row.int8(0)?, row.text(1).unwrap_or(GENESIS).to_owned());
        let see = if one_snapshot() { See::Latest } else { See::Now };
        let tail = Chain::tail(spi, see, name);
        if one_snapshot() && tail.as_ref().map(|tail| tail.0) != Chain::tail(spi, See::Now, name).map(|tail| tail.0) {
            raise::serialization_failure();
        }
        let (seq, prev_hash) = tail.unwrap_or((base_seq, base_hash));
        Some(Chain { next_seq: seq + 1, prev_hash, base_seq })
    }

    fn tail(spi: &Spi, see: See, name: &[Option<Datum>; 2]) -> Option<(i64, String)> {
        let rows = LAST.run(spi, see, name);
        let row = rows.first()?;
        Some((row.int8(0)?, row.text(1)?.to_owned()))
    }
}
