//! What later entries of a log say about earlier ones: revisions and retractions.
//!
//! The newest entry about an item wins. In a branch that may stand in any stretch from the item's own on, and what an
//! ancestor was told behind the fork does not count.

use std::collections::HashMap;

use agent_sessions_core::word::Op;
use pgrx::pg_sys::{Datum, INT8ARRAYOID, INT8OID};

use crate::item_table::{self, column};
use crate::lineage::{Lineage, Stretch};
use crate::postgres::direct::{Slot, Table};
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::rows::Row;
use crate::postgres::value::{Element, array};

static ANY: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session_item c \
      where c.sid operator(pg_catalog.=) $1 and c.position operator(pg_catalog.<) $2 \
        and c.op operator(pg_catalog.=) any (array['revise', 'retract', 'retract_from']) limit 1",
    &[INT8OID, INT8OID],
);

// The content of an item that was retracted is that of the revision before: a replay is compared with it.
static NEWEST: KeptPlan = KeptPlan::new(
    c"select t.target, case when newest.op operator(pg_catalog.=) 'retract' then newest.position end, \
        case when newest.op operator(pg_catalog.=) 'retract' then earlier.position else newest.position end, \
        case when newest.op operator(pg_catalog.=) 'retract' then earlier.payload else newest.payload end, \
        case when newest.op operator(pg_catalog.=) 'retract' then earlier.attrs else newest.attrs end, \
        case when newest.op operator(pg_catalog.=) 'retract' then earlier.digest else newest.digest end \
      from pg_catalog.unnest($3) as t (target) \
      cross join lateral ( \
        select c.position, c.op, c.payload, c.attrs, c.digest from agent_sessions.session_item c \
        where c.sid operator(pg_catalog.=) $1 and c.target operator(pg_catalog.=) t.target \
          and c.position operator(pg_catalog.<) $2 and c.op operator(pg_catalog.=) any (array['revise', 'retract']) \
        order by c.position desc limit 1) newest \
      left join lateral ( \
        select c.position, c.payload, c.attrs, c.digest from agent_sessions.session_item c \
        where newest.op operator(pg_catalog.=) 'retract' and c.sid operator(pg_catalog.=) $1 \
          and c.target operator(pg_catalog.=) t.target and c.position operator(pg_catalog.<) newest.position \
          and c.op operator(pg_catalog.=) 'revise' \
        order by c.position desc limit 1) earlier on true",
    &[INT8OID, INT8OID, INT8ARRAYOID],
);

static CUTS: KeptPlan = KeptPlan::new(
    c"select c.target, c.position from agent_sessions.session_item c \
      where c.sid operator(pg_catalog.=) $1 and c.position operator(pg_catalog.<) $2 \
        and c.position operator(pg_catalog.>) $3 and c.op operator(pg_catalog.=) 'retract_from'",
    &[INT8OID, INT8OID, INT8OID],
);

static REVIVED: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session_item c \
      where c.sid operator(pg_catalog.=) $1 and c.target operator(pg_catalog.>=) $2 \
        and c.target operator(pg_catalog.<) $3 and c.position operator(pg_catalog.>) $3 \
        and c.position operator(pg_catalog.<) $4 and c.op operator(pg_catalog.=) 'revise' limit 1",
    &[INT8OID, INT8OID, INT8OID, INT8OID],
);

/// How far apart items may stand whose changes are read in one scan.
const NEAR: i64 = 8;

/// How many entries about one item are passed over before the scan begins anew behind them.
const PASSED: usize = 8;

/// Which stretches of a log hold an entry about an earlier one. Most hold none.
pub struct Changed(Vec<bool>);

impl Changed {
    pub fn of(spi: &Spi, see: See, lineage: &Lineage) -> Changed {
        let is_changed = |stretch: &Stretch| {
            let (sid, until) = (stretch.sid, stretch.until);
            match lineage.table(stretch) {
                Some(table) => item_table::has_change(table, sid, until, see),
                None => stretch.run(&ANY, spi, see, &[sid, until].map(|bound| Some(Datum::from(bound)))).len() > 0,
            }
        };
        Changed(lineage.stretches().iter().map(is_changed).collect())
    }

    /// Whether what the stretch at that index brings may be changed, by itself or by a later one.
    pub fn from(&self, at: usize) -> bool {
        self.0[at..].contains(&true)
    }
}

/// The content that a revision gives an item: a row, and where in it position, payload, attrs and digest stand.
#[derive(Clone, Copy)]
pub struct Revision<'s> {
    pub position: i64,
    row: Row<'s>,
    columns: [usize; 4],
}

/// In the columns of [`NEWEST`].
const SELECTED: [usize; 4] = [2, 3, 4, 5];
/// In the columns of the table.
const STORED: [usize; 4] = [column::POSITION, column::PAYLOAD, column::ATTRS, column::DIGEST];

impl<'s> Revision<'s> {
    fn of(row: Row<'s>, columns: [usize; 4]) -> Option<Revision<'s>> {
        row.int8(columns[0]).map(|position| Revision { position, row, columns })
    }

    pub fn payload(&self) -> Option<Datum> {
        self.row.datum(self.columns[1])
    }

    pub fn payload_text(&self) -> Option<&'s str> {
        self.row.text(self.columns[1])
    }

    pub fn attrs(&self) -> Option<Datum> {
        self.row.jsonb(self.columns[2])
    }

    pub fn digest(&self) -> Option<Datum> {
        self.row.datum(self.columns[3])
    }
}

#[derive(Default)]
struct Change<'s> {
    retracted_at: Option<i64>,
    revision: Option<Revision<'s>>,
}

/// What became of the items at some positions.
#[derive(Default)]
pub struct Changes<'s> {
    of: HashMap<i64, Change<'s>>,
    /// Where entries that retract a range begin, and where they stand.
    cuts: Vec<(i64, i64)>,
}

impl<'s> Changes<'s> {
    pub fn about(spi: &'s Spi, see: See, lineage: &Lineage, changed: &Changed, positions: &[i64]) -> Changes<'s> {
        let mut changes = Changes::default();
        let Some(&lowest) = positions.iter().min() else { return changes };
        let mut undecided = positions.to_vec();
        undecided.sort_unstable();
        for (stretch, is_changed) in lineage.stretches().iter().zip(&changed.0).rev() {
            if *is_changed {
                let [sid, until] = [stretch.sid, stretch.until].map(|bound| Some(Datum::from(bound)));
                if let Some(table) = lineage.table(stretch) {
                    changes.read(spi, see, table, stretch, &undecided);
                } else {
                    let targets: Vec<_> = undecided.iter().map(|position| Some(Datum::from(*position))).collect();
                    let newest = [sid, until, Some(array(Element::Int8, &targets))];
                    stretch.run(&NEWEST, spi, see, &newest).iter().for_each(|row| changes.note(row));
                }
                // A revision decides; an item that was retracted here may have its content from an earlier stretch.
                undecided.retain(|position| changes.revision_of(*position).is_none());
                let cuts = stretch.run(&CUTS, spi, see, &[sid, until, Some(Datum::from(lowest))]);
                changes.cuts.extend(cuts.iter().filter_map(|row| row.int8(0).zip(row.int8(1))));
            }
            if stretch.from <= lowest {
                break;
            }
        }
        changes
    }

    /// The widest range that was retracted as a whole around `position`, unless an item in it was revised since: its first
    /// position, and the entry behind it.
    pub fn gap(&self, spi: &Spi, see: See, lineage: &Lineage, position: i64) -> Option<(i64, i64)> {
        let around = self.cuts.iter().copied().filter(|(from, at)| *from <= position && position < *at);
        let (from, at) = around.max_by_key(|(from, at)| at - from)?;
        let revived = |stretch: &Stretch| {
            let bounds = [stretch.sid, from, at, stretch.until].map(|bound| Some(Datum::from(bound)));
            stretch.run(&REVIVED, spi, see, &bounds).len() > 0
        };
        (!lineage.stretches().iter().any(revived)).then_some((from, at))
    }

    /// Takes in a row of [`NEWEST`].
    fn note(&mut self, row: Row<'s>) {
        let Some(target) = row.int8(0) else { return };
        let change = self.of.entry(target).or_default();
        change.retracted_at = change.retracted_at.or(row.int8(1));
        change.revision = Revision::of(row, SELECTED);
    }

    /// Does the same without a statement, for targets in ascending order.
    fn read(&mut self, spi: &'s Spi, see: See, table: &Table, stretch: &Stretch, targets: &[i64]) {
        if stretch.is_inherited {
            // What an ancestor was told behind the fork may be much.
            for target in targets {
                item_table::changes_of(table, stretch.sid, *target, stretch.until, see, |slot| self.take(spi, slot));
            }
            return;
        }
        for near in targets.chunk_by(|one, next| next - one <= NEAR) {
            let (Some(&lowest), Some(&highest)) = (near.first(), near.last()) else { continue };
            let mut upto = Some(highest);
            while let Some(highest) = upto {
                upto = self.read_between(spi, see, table, stretch.sid, (lowest, highest));
            }
        }
    }

    /// Reads the newest changes of the items between two positions, both included, the last item first. Stops at one about which much
    /// more is said than counts, and returns the position before it.
    fn read_between(&mut self, spi: &'s Spi, see: See, table: &Table, sid: i64, bounds: (i64, i64)) -> Option<i64> {
        let (mut last, mut passed, mut upto) = (None, 0, None);
        item_table::changes_between(table, sid, bounds, see, |slot| {
            let target = slot.row().int8(column::TARGET);
            passed = if target == last { passed + 1 } else { 0 };
            last = target;
            if !self.take(spi, slot) && passed > PASSED {
                upto = target.map(|target| target - 1);
            }
            upto.is_none()
        });
        upto
    }

    /// Takes in an entry about an item, the newest first. `false` if the older ones do not count.
    fn take(&mut self, spi: &'s Spi, slot: &Slot) -> bool {
        let row = slot.row();
        let op = row.text(column::OP).unwrap_or_default();
        let Some((target, position)) = row.int8(column::TARGET).zip(row.int8(column::POSITION)) else { return true };
        if op == Op::RetractFrom.as_str() {
            return true;
        }
        let change = self.of.entry(target).or_default();
        if change.revision.is_none() && op == Op::Revise.as_str() {
            change.revision = Revision::of(slot.kept(spi), STORED);
        } else if change.revision.is_none() {
            change.retracted_at = change.retracted_at.or(Some(position));
        }
        change.revision.is_none()
    }

    /// The newest revision of the item at `position`, be the item live or not.
    pub fn revision_of(&self, position: i64) -> Option<Revision<'s>> {
        self.of.get(&position).and_then(|change| change.revision)
    }

    /// Whether the item at `position` was retracted since it was last revised.
    pub fn retract(&self, position: i64) -> bool {
        let change = self.of.get(&position);
        let retracted = change.and_then(|change| change.retracted_at);
        let cuts = self.cuts.iter().filter(|(from, at)| *from <= position && position < *at).map(|(_, at)| *at);
        let last = cuts.chain(retracted).max();
        last > change.and_then(|change| change.revision).map(|revision| revision.position)
    }
}
