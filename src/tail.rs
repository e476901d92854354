//! The end of a log: the next position, and the digest that the next entry links to.

use agent_sessions_core::digest::Digest;
use pgrx::pg_sys::{Datum, INT8OID};

use crate::head::{Base, Head};
use crate::item_table;
use crate::postgres::catalog::one_snapshot;
use crate::postgres::direct::Table;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::{raise, value};

static LAST: KeptPlan = KeptPlan::new(
    c"select i.position, i.digest from agent_sessions.session_item i where i.sid operator(pg_catalog.=) $1 \
      order by i.position desc limit 1",
    &[INT8OID],
);

#[derive(Clone, Copy, Debug)]
pub struct Tail {
    pub next_position: i64,
    pub previous: Digest,
}

impl Tail {
    /// The tail of a log whose head is locked, from the table where that is at hand. `None` if the session has vanished from the caller's sight.
    ///
    /// 40001 if the transaction has one snapshot and that does not see the tail. A head that others have only locked raises
    /// nothing by itself, so the tail is read as it is committed, and compared with what the snapshot shows.
    pub fn of(spi: &Spi, head: &Head, table: Option<&Table>) -> Option<Tail> {
        let written = head.take_written();
        if !one_snapshot() {
            return table
                .zip(written)
                .and_then(|(table, (position, tid))| item_table::written(table, head.sid, position, tid))
                .map(|(position, previous)| Tail { next_position: position + 1, previous })
                .or_else(|| Tail::read(spi, See::Now, head, table));
        }
        let latest = Tail::read(spi, See::Latest, head, table);
        let seen = Tail::read(spi, See::Now, head, table);
        if latest.map(|tail| tail.next_position) != seen.map(|tail| tail.next_position) {
            raise::serialization_failure();
        }
        latest
    }

    fn read(spi: &Spi, see: See, head: &Head, table: Option<&Table>) -> Option<Tail> {
        let last = match table {
            Some(table) => item_table::last(table, head.sid, see),
            None => {
                let rows = LAST.run(spi, see, &[Some(Datum::from(head.sid))]);
                rows.first().and_then(|row| row.int8(0).zip(row.bytes(1).and_then(value::digest)))
            }
        };
        let tail = match last {
            Some((position, previous)) => Tail { next_position: position + 1, previous },
            None => {
                let base = Base::of(spi, see, head.sid)?;
                Tail { next_position: base.position, previous: base.previous }
            }
        };
        if head.origin.is_flattened() && head.origin.fork_position == Some(tail.next_position) {
            let (_, previous) = Base::of(spi, see, head.sid)?.rejoin?;
            return Some(Tail { previous, ..tail });
        }
        Some(tail)
    }

    /// The tail after an entry of that digest.
    pub fn after(self, digest: Digest) -> Tail {
        Tail { next_position: self.next_position + 1, previous: digest }
    }
}
