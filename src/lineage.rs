//! A session's lineage: whose entries its log is made of.
//!
//! A branch's first positions are its ancestors'. Positions go on where a branch begins, so that all stretches together are
//! one dense log.

use agent_sessions_core::digest::Digest;
use pgrx::pg_sys::{Datum, INT8ARRAYOID, INT8OID, TEXTOID};

use crate::address::{self, Address, sid_of};
use crate::identity;
use crate::item_table;
use crate::postgres::call::{Call, Returns};
use crate::postgres::direct::Table;
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi, seeing};
use crate::postgres::rows::{Row, Rows};
use crate::postgres::value::{self, Element, array};
use crate::session_table;

static FIND: KeptPlan = KeptPlan::new(
    c"select s.sid, s.branched_from, s.fork_position, s.base_position from agent_sessions.session s \
      where s.tenant operator(pg_catalog.=) $1 and s.agent_id operator(pg_catalog.=) $2 \
        and s.session_id operator(pg_catalog.=) $3 and s.deleted_at is null",
    &[TEXTOID, TEXTOID, TEXTOID],
);

static ORIGIN: KeptPlan = KeptPlan::new(
    c"select s.sid, s.branched_from, s.fork_position, s.base_position from agent_sessions.session s \
      where s.sid operator(pg_catalog.=) $1",
    &[INT8OID],
);

static ANCESTORS: KeptPlan = KeptPlan::new(
    c"with recursive up (sid, depth, branched_from) as ( \
        select s.sid, 0::pg_catalog.int8, s.branched_from from agent_sessions.session s \
        where s.sid operator(pg_catalog.=) $1 \
        union all \
        select p.sid, u.depth operator(pg_catalog.+) 1, p.branched_from \
        from up u join agent_sessions.session p \
          on p.sid operator(pg_catalog.=) u.branched_from and p.sid operator(pg_catalog.<) u.sid) \
      select u.sid, u.depth from up u order by u.depth",
    &[INT8OID],
);

static SHOW: KeptPlan = KeptPlan::new(
    c"select u.depth::pg_catalog.int4, s.session_id, s.agent_id, s.fork_position, s.created_at \
      from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2)) as u (sid, depth) \
      join agent_sessions.session s on s.sid operator(pg_catalog.=) u.sid and s.deleted_at is null order by u.depth",
    &[INT8ARRAYOID, INT8ARRAYOID],
);

static DIGEST_AT: KeptPlan = KeptPlan::new(
    c"select i.digest from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.=) $2",
    &[INT8OID, INT8OID],
);

/// Where a session's own entries stand in its log.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The session that the entries before the fork are read from, unless it holds them itself.
    pub branched_from: Option<i64>,
    pub fork_position: Option<i64>,
    /// The first position that retention has left, 0 if it has removed none.
    pub base_position: i64,
}

impl Origin {
    /// The first position of the session's own entries.
    pub fn first_position(self) -> i64 {
        let fork = self.branched_from.and(self.fork_position).unwrap_or(0);
        fork.max(self.base_position)
    }

    /// Whether the session holds copies of what it once inherited.
    pub fn is_flattened(self) -> bool {
        self.branched_from.is_none() && self.fork_position.is_some()
    }

    /// Whether entries are read from the ancestors.
    pub fn inherits(self) -> bool {
        self.branched_from.is_some() && self.fork_position.is_some_and(|fork| fork > self.base_position)
    }
}

/// The entries that one session contributes: those from `from` up to, but not including, `until`.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    pub sid: i64,
    pub from: i64,
    pub until: i64,
    pub is_inherited: bool,
}

impl Stretch {
    /// Runs a statement about the stretch: on the session's own entries as the caller, on inherited ones as the owner, since
    /// the ancestor may be hidden from who may see the branch.
    pub fn run<'s>(&self, plan: &KeptPlan, spi: &'s Spi, see: See, arguments: &[Option<Datum>]) -> Rows<'s> {
        let _owner = self.is_inherited.then(AsOwner::switch);
        plan.run(spi, see, arguments)
    }

    /// The part of the stretch between two positions, both ends excluded; `None` if no position is there.
    pub fn between(&self, after: i64, before: i64) -> Option<(i64, i64)> {
        let (from, until) = (after.max(self.from - 1), before.min(self.until));
        (from < until.saturating_sub(1)).then_some((from, until))
    }
}

/// The stretches of a log, the oldest first. The last is the session's own.
pub struct Lineage {
    stretches: Vec<Stretch>,
    /// The table of entries, where the caller can read the session's own without a statement.
    own_table: Option<Table>,
    /// The same for those that are inherited, which are read as the owner.
    inherited_table: Option<Table>,
}

impl Lineage {
    /// The lineage of a session whose row says `origin`.
    pub fn of(spi: &Spi, see: See, sid: i64, origin: Origin) -> Lineage {
        let own = Stretch { sid, from: origin.first_position(), until: i64::MAX, is_inherited: false };
        let mut stretches = vec![own];
        let mut until = own.from;
        for (sid, origin) in ancestors(spi, see, sid, origin) {
            let from = origin.first_position();
            if from < until {
                stretches.push(Stretch { sid, from, until, is_inherited: true });
                until = from;
            }
        }
        stretches.reverse();
        Lineage { stretches, own_table: None, inherited_table: None }
    }

    /// The lineage of the session at an address, if the caller may see it.
    pub fn find(spi: &Spi, see: See, address: &Address) -> Option<Lineage> {
        let is_shown = identity::shows(&address.tenant, &address.agent_id);
        let found = match session_table::open_to_read(is_shown) {
            Some(table) => session_table::find(&table, address, see, Origin::stored),
            None => FIND.run(spi, see, &address.parameters()).first().map(Origin::read),
        };
        let (sid, origin) = found.flatten()?;
        let mut lineage = Lineage::of(spi, see, sid, origin);
        lineage.own_table = item_table::open_to_read(is_shown);
        if !lineage.inherited().is_empty() {
            let _owner = AsOwner::switch();
            lineage.inherited_table = item_table::open_to_read(false);
        }
        Some(lineage)
    }

    /// The table that a stretch can be read from without a statement.
    pub fn table(&self, stretch: &Stretch) -> Option<&Table> {
        if stretch.is_inherited { self.inherited_table.as_ref() } else { self.own_table.as_ref() }
    }

    pub fn stretches(&self) -> &[Stretch] {
        &self.stretches
    }

    pub fn inherited(&self) -> &[Stretch] {
        &self.stretches[..self.stretches.len() - 1]
    }

    pub fn own(&self) -> Stretch {
        self.stretches[self.stretches.len() - 1]
    }

    /// The first position of the log.
    pub fn first_position(&self) -> i64 {
        self.stretches[0].from
    }

    /// The stretch that holds a position; `None` before the log's first.
    pub fn stretch_of(&self, position: i64) -> Option<Stretch> {
        self.stretches.iter().copied().find(|stretch| (stretch.from..stretch.until).contains(&position))
    }

    /// The digest of the entry at `position`, if there is one.
    pub fn digest_at(&self, spi: &Spi, see: See, position: i64) -> Option<Digest> {
        let stretch = self.stretch_of(position)?;
        let rows = stretch.run(&DIGEST_AT, spi, see, &[Some(Datum::from(stretch.sid)), Some(Datum::from(position))]);
        rows.first().and_then(|row| row.bytes(0)).and_then(value::digest)
    }
}

impl Origin {
    /// What a session's row says, if the caller may see it.
    pub fn of(spi: &Spi, see: See, sid: i64) -> Option<Origin> {
        ORIGIN.run(spi, see, &[Some(Datum::from(sid))]).first().and_then(Origin::read).map(|(_, origin)| origin)
    }

    /// Reads a row of the table.
    fn stored(row: Row) -> Option<(i64, Origin)> {
        use session_table::column::*;
        Origin::from(row, [SID, BRANCHED_FROM, FORK_POSITION, BASE_POSITION])
    }

    /// Reads a row of a statement.
    fn read(row: Row) -> Option<(i64, Origin)> {
        Origin::from(row, [0, 1, 2, 3])
    }

    fn from(row: Row, [sid, branched_from, fork, base]: [usize; 4]) -> Option<(i64, Origin)> {
        let (branched_from, fork_position) = (row.int8(branched_from), row.int8(fork));
        Some((row.int8(sid)?, Origin { branched_from, fork_position, base_position: row.int8(base)? }))
    }
}

/// The sessions that a session inherits from, the nearest first, as one snapshot shows them.
///
/// Once retention has removed what was inherited, nothing is read from the ancestors any more. A source is older than its branch,
/// so that a row that was tampered with cannot lead in a circle.
fn ancestors(spi: &Spi, see: See, sid: i64, origin: Origin) -> Vec<(i64, Origin)> {
    if !origin.inherits() {
        return Vec::new();
    }
    let _owner = AsOwner::switch();
    let table = session_table::open_to_read(false);
    seeing(see, || {
        let (mut ancestors, mut branch) = (Vec::new(), (sid, origin));
        while let (sid, Origin { branched_from: Some(source), .. }) = branch
            && branch.1.inherits()
            && source < sid
            && let Some(origin) = match &table {
                Some(table) => session_table::of_sid(table, source, See::Caller, Origin::stored).flatten(),
                None => Origin::of(spi, See::Caller, source).map(|origin| (source, origin)),
            }
        {
            ancestors.push(origin);
            branch = origin;
        }
        ancestors
    })
}

pub fn session_lineage(call: &mut Call) -> Returns {
    let session_id = call.text();
    let agent_id = call.text();
    let tenant = call.text();
    let address = address::of_reader(session_id, agent_id, tenant)?;
    let mut set = call.set();

    let spi = Spi::connect();
    let Some(sid) = sid_of(&spi, See::Caller, &address.parameters()) else { return Ok(None) };
    let ancestors = {
        let _owner = AsOwner::switch();
        ANCESTORS.run(&spi, See::Caller, &[Some(Datum::from(sid))])
    };
    let column =
        |column| Some(array(Element::Int8, &ancestors.iter().map(|row| row.datum(column)).collect::<Vec<_>>()));
    // As the caller: an ancestor that is hidden from it stays hidden.
    SHOW.run(&spi, See::Caller, &[column(0), column(1)]).iter().for_each(|row| set.put(&row.datums()));
    Ok(None)
}
