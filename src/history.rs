//! Reading a log: what is live in it, page by page, through all that a branch inherits.

use std::collections::BTreeMap;

use agent_sessions_core::word::Op;
use pgrx::pg_sys::{Datum, INT8ARRAYOID, INT8OID, TEXTARRAYOID};

use crate::address;
use crate::changes::{Changed, Changes, Revision};
use crate::item;
use crate::item_table::{self, column};
use crate::lineage::{Lineage, Stretch};
use crate::paging;
use crate::postgres::call::{Call, Returns};
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::rows::Row;
use crate::postgres::value::{self, Element, array, text_datum};
use crate::sql;

/// The columns of an entry, in the order of the table.
macro_rules! columns {
    () => {
        "i.sid, i.position, i.tenant, i.agent_id, i.op, i.kind, i.item_id, i.tag, i.author, i.target, i.payload, i.attrs, \
         i.salt, i.content_digest, i.digest, i.created_at, i.imported_at"
    };
}

/// Whether an entry is an item, which alone has a kind, of the kinds in a parameter. One CASE, which the planner takes to let
/// half of the rows through: as conditions of their own they would seem to leave one row, and until there are statistics a page
/// would sort the session.
macro_rules! item_of {
    ($kinds:literal) => {
        concat!(
            "case when i.kind is not null and (",
            $kinds,
            " is null or i.kind operator(pg_catalog.=) any (",
            $kinds,
            ")) then true else false end "
        )
    };
}

/// The pages of one stretch in one direction, by each way in.
struct Pages {
    items: KeptPlan,
    tagged: KeptPlan,
    entries: KeptPlan,
}

macro_rules! pages {
    ($direction:literal) => {
        Pages {
            items: KeptPlan::new(
                sql!(
                    "select ",
                    columns!(),
                    " from agent_sessions.session_item i \
                     where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.>) $2 \
                       and i.position operator(pg_catalog.<) $3 \
                       and ",
                    item_of!("$5"),
                    "\
                     order by i.position ",
                    $direction,
                    " limit $4"
                ),
                &[INT8OID, INT8OID, INT8OID, INT8OID, TEXTARRAYOID],
            ),
            // A page of each tag, then the page of them all.
            tagged: KeptPlan::new(
                sql!(
                    "select i.* from (select distinct t.tag from pg_catalog.unnest($6) as t (tag)) wanted \
                     cross join lateral ( \
                       select ",
                    columns!(),
                    " from agent_sessions.session_item i \
                       where i.sid operator(pg_catalog.=) $1 and i.tag operator(pg_catalog.=) wanted.tag \
                         and i.position operator(pg_catalog.>) $2 and i.position operator(pg_catalog.<) $3 \
                         and ",
                    item_of!("$5"),
                    "\
                       order by i.position ",
                    $direction,
                    " limit $4) i \
                     order by i.position ",
                    $direction,
                    " limit $4"
                ),
                &[INT8OID, INT8OID, INT8OID, INT8OID, TEXTARRAYOID, TEXTARRAYOID],
            ),
            entries: KeptPlan::new(
                sql!(
                    "select ",
                    columns!(),
                    " from agent_sessions.session_item i \
                     where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.>) $2 \
                       and i.position operator(pg_catalog.<) $3 \
                     order by i.position ",
                    $direction,
                    " limit $4"
                ),
                &[INT8OID, INT8OID, INT8OID, INT8OID],
            ),
        }
    };
}

static OLDEST_FIRST: Pages = pages!("asc");
static NEWEST_FIRST: Pages = pages!("desc");

static PLACED: KeptPlan = KeptPlan::new(
    sql!(
        "select ",
        columns!(),
        " from agent_sessions.session_item i \
         where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.=) any ($2) \
           and ",
        item_of!("$3"),
        "\
           and ($4 is null or i.tag operator(pg_catalog.=) any ($4)) \
         order by i.position"
    ),
    &[INT8OID, INT8ARRAYOID, TEXTARRAYOID, TEXTARRAYOID],
);

static SUMMARIES: KeptPlan = KeptPlan::new(
    sql!(
        "select ",
        columns!(),
        " from agent_sessions.session_item i \
         where i.sid operator(pg_catalog.=) $1 and i.position operator(pg_catalog.<) $2 \
           and i.op operator(pg_catalog.=) any (array['append', 'open']) and i.target is not null \
         order by i.position desc limit $3"
    ),
    &[INT8OID, INT8OID, INT8OID],
);

static FOLD: KeptPlan = KeptPlan::new(
    c"select pg_catalog.string_agg(d.chunk, '' order by d.chunk_no) from agent_sessions.session_delta d \
      where d.sid operator(pg_catalog.=) $1 and d.target operator(pg_catalog.=) $2",
    &[INT8OID, INT8OID],
);

/// Rows that are fetched at a time: what is fetched is freed before the next, so that memory does not grow with a log.
const CHUNK: i64 = 1_000;

/// Which items of a log are wanted. Labels are text[] datums, attrs is a jsonb.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub after: Option<i64>,
    pub before: Option<i64>,
    pub max_rows: Option<i64>,
    pub newest_first: bool,
    pub kinds: Option<Datum>,
    pub tags: Option<Datum>,
    pub attrs: Option<Datum>,
    pub with_summaries: bool,
}

impl Wanted {
    pub const ALL: Wanted = Wanted {
        after: None,
        before: None,
        max_rows: None,
        newest_first: false,
        kinds: None,
        tags: None,
        attrs: None,
        with_summaries: true,
    };

    fn pages(&self) -> &'static Pages {
        if self.newest_first { &NEWEST_FIRST } else { &OLDEST_FIRST }
    }

    /// Whether no label is asked for.
    fn has_no_label(&self) -> bool {
        self.kinds.is_none() && self.tags.is_none()
    }

    /// Whether every live item in the range is wanted.
    fn is_any(&self) -> bool {
        self.has_no_label() && self.attrs.is_none() && self.with_summaries
    }

    /// The positions that may be wanted, both ends excluded.
    fn bounds(&self) -> (i64, i64) {
        (self.after.unwrap_or(-1), self.before.unwrap_or(i64::MAX))
    }

    /// The stretches in the order in which they are read, each with its index.
    fn stretches(&self, lineage: &Lineage) -> Vec<(usize, Stretch)> {
        let mut stretches: Vec<_> = lineage.stretches().iter().copied().enumerate().collect();
        if self.newest_first {
            stretches.reverse();
        }
        stretches
    }
}

/// A live item: its first entry, and the revision that it shows.
pub struct Live<'s> {
    first: Row<'s>,
    revision: Option<Revision<'s>>,
}

impl<'s> Live<'s> {
    /// `None` if the item was retracted.
    fn of(first: Row<'s>, changes: &Changes<'s>) -> Option<Live<'s>> {
        let position = first.int8(column::POSITION)?;
        (!changes.retract(position)).then(|| Live { first, revision: changes.revision_of(position) })
    }

    pub fn position(&self) -> i64 {
        self.first.int8(column::POSITION).unwrap_or_default()
    }

    pub fn kept_from(&self) -> Option<i64> {
        self.first.int8(column::TARGET)
    }

    fn is_open(&self) -> bool {
        self.revision.is_none() && self.first.text(column::OP) == Some(Op::Open.as_str())
    }

    fn payload(&self) -> Option<Datum> {
        self.revision.map_or_else(|| self.first.datum(column::PAYLOAD), |revision| revision.payload())
    }

    fn attrs(&self) -> Option<Datum> {
        self.revision.map_or_else(|| self.first.jsonb(column::ATTRS), |revision| revision.attrs())
    }

    /// Whether the item is one of those that only its content can tell.
    fn is_wanted(&self, wanted: &Wanted) -> bool {
        let has = |attrs| self.attrs().is_some_and(|stored| value::jsonb_contains(stored, attrs));
        wanted.attrs.is_none_or(has) && (wanted.with_summaries || self.kept_from().is_none())
    }

    /// The columns of `item_row`. Chunks are of the session that they were sent to: what is streamed to an ancestor later
    /// does not show in a branch.
    pub fn columns(&self, spi: &Spi, see: See, lineage: &Lineage) -> [Option<Datum>; 13] {
        use column::*;
        let first = |column| self.first.datum(column);
        let (own, is_open) = (lineage.own(), self.is_open());
        let chunks = is_open.then(|| own.run(&FOLD, spi, see, &[Some(Datum::from(own.sid)), first(POSITION)]));
        [
            first(POSITION),
            first(OP),
            first(KIND),
            first(ITEM_ID),
            first(TAG),
            first(AUTHOR),
            self.payload(),
            self.attrs(),
            first(CREATED_AT),
            self.revision.map_or_else(|| first(DIGEST), |revision| revision.digest()),
            self.revision.map(|revision| Datum::from(revision.position)),
            Some(Datum::from(is_open)),
            chunks.and_then(|chunks| chunks.first().and_then(|row| row.datum(0))),
        ]
    }
}

/// Hands the live items that are wanted to `each`, in order, until there are no more or it returns false.
pub fn live_items(see: See, lineage: &Lineage, wanted: &Wanted, mut each: impl FnMut(&Spi, &Live) -> bool) {
    let changed = Changed::of(&Spi::connect(), see, lineage);
    let mut left = wanted.max_rows.unwrap_or(i64::MAX);
    let (mut after, mut before) = wanted.bounds();
    for (at, stretch) in wanted.stretches(lineage) {
        if left == 0 {
            break;
        }
        let is_changed = changed.from(at);
        if let Some(table) = lineage.table(&stretch).filter(|_| !is_changed && wanted.is_any())
            && let Some(bounds) = stretch.between(after, before)
        {
            let spi = Spi::connect();
            item_table::page(table, stretch.sid, bounds, left, wanted.newest_first, see, |slot| {
                if left > 0 && !slot.prefix().is_null(column::KIND) {
                    left = if each(&spi, &Live { first: slot.row(), revision: None }) { left - 1 } else { 0 };
                }
                left > 0
            });
            continue;
        }
        let drops = is_changed || wanted.attrs.is_some() || !wanted.with_summaries;
        let mut chunk = left.min(CHUNK);
        while left > 0
            && let Some((from, until)) = stretch.between(after, before)
        {
            let spi = Spi::connect();
            let rows = page(&spi, see, lineage, &stretch, wanted, [from, until, chunk]);
            let changes = if is_changed { changes_of(&spi, see, lineage, &changed, &rows) } else { Changes::default() };
            let shown = left;
            for item in rows.iter().filter_map(|row| Live::of(*row, &changes)).filter(|item| item.is_wanted(wanted)) {
                if left == 0 || !each(&spi, &item) {
                    return;
                }
                left -= 1;
            }
            let Some(last) = rows.last().filter(|_| rows.len() as i64 == chunk) else { break };
            let last = last.int8(column::POSITION).unwrap_or_default();
            let gap = if left == shown { changes.gap(&spi, see, lineage, last) } else { None };
            let (gap_from, gap_at) = gap.unwrap_or((last, last));
            if wanted.newest_first {
                before = gap_from
            } else {
                after = gap_at
            }
            // Pages out of which much is dropped become larger, so that few of them are needed.
            chunk = if drops { (chunk * 2).min(CHUNK) } else { left.min(CHUNK) };
        }
    }
}

fn page<'s>(
    spi: &'s Spi,
    see: See,
    lineage: &Lineage,
    stretch: &Stretch,
    wanted: &Wanted,
    [after, before, limit]: [i64; 3],
) -> Vec<Row<'s>> {
    if let Some(table) = lineage.table(stretch).filter(|_| wanted.has_no_label()) {
        let mut rows = Vec::new();
        item_table::page(table, stretch.sid, (after, before), limit, wanted.newest_first, see, |slot| {
            if !slot.prefix().is_null(column::KIND) {
                rows.push(slot.kept(spi));
            }
            (rows.len() as i64) < limit
        });
        return rows;
    }
    let [sid, after, before, limit] = [stretch.sid, after, before, limit].map(|bound| Some(Datum::from(bound)));
    let rows = match wanted.tags {
        None => stretch.run(&wanted.pages().items, spi, see, &[sid, after, before, limit, wanted.kinds]),
        tags => stretch.run(&wanted.pages().tagged, spi, see, &[sid, after, before, limit, wanted.kinds, tags]),
    };
    rows.iter().collect()
}

fn changes_of<'s>(spi: &'s Spi, see: See, lineage: &Lineage, changed: &Changed, rows: &[Row]) -> Changes<'s> {
    let positions: Vec<i64> = rows.iter().filter_map(|row| row.int8(column::POSITION)).collect();
    Changes::about(spi, see, lineage, changed, &positions)
}

/// Hands the live ones among the items with these ids to `each`, as [`live_items`] does.
fn items_with_ids(
    see: See,
    lineage: &Lineage,
    item_ids: Datum,
    wanted: &Wanted,
    mut each: impl FnMut(&Spi, &Live) -> bool,
) {
    let spi = Spi::connect();
    let places = item::places(&spi, see, lineage, item_ids);
    let places: Vec<i64> = places.into_iter().map(|(_, position)| position).collect();
    let changed = Changed::of(&spi, see, lineage);
    let (after, before) = wanted.bounds();
    let mut left = wanted.max_rows.unwrap_or(i64::MAX);
    for (_, stretch) in wanted.stretches(lineage) {
        let Some((from, until)) = stretch.between(after, before) else { continue };
        let here = places.iter().filter(|position| from < **position && **position < until);
        let here: Vec<_> = here.map(|position| Some(Datum::from(*position))).collect();
        if here.is_empty() {
            continue;
        }
        let arguments = [Some(Datum::from(stretch.sid)), Some(array(Element::Int8, &here)), wanted.kinds, wanted.tags];
        let rows: Vec<Row> = stretch.run(&PLACED, &spi, see, &arguments).iter().collect();
        let changes = changes_of(&spi, see, lineage, &changed, &rows);
        let mut items: Vec<Live> = rows.iter().filter_map(|row| Live::of(*row, &changes)).collect();
        if wanted.newest_first {
            items.reverse();
        }
        for item in items.iter().filter(|item| item.is_wanted(wanted)) {
            if left == 0 || !each(&spi, item) {
                return;
            }
            left -= 1;
        }
    }
}

/// How many live items stand at `target` or later.
pub fn count_from(see: See, lineage: &Lineage, target: i64) -> i64 {
    let mut count = 0;
    live_items(see, lineage, &Wanted { after: Some(target - 1), ..Wanted::ALL }, |_, _| {
        count += 1;
        true
    });
    count
}

pub fn session_history(call: &mut Call) -> Returns {
    let session_id = call.text();
    let after = call.int8();
    let before = call.int8();
    let max_rows = paging::rows(call.int4())?;
    let newest_first = call.bool().unwrap_or(false);
    let kinds = call.datum();
    let tags = call.datum();
    let item_ids = call.datum();
    let attrs = call.datum();
    let agent_id = call.text();
    let tenant = call.text();
    let address = address::of_reader(session_id, agent_id, tenant)?;
    let mut set = call.set();

    let Some(lineage) = Lineage::find(&Spi::connect(), See::Caller, &address) else { return Ok(None) };
    let wanted = Wanted { after, before, max_rows, newest_first, kinds, tags, attrs, ..Wanted::ALL };
    let each = |spi: &Spi, item: &Live| {
        set.put(&item.columns(spi, See::Caller, &lineage));
        true
    };
    match item_ids {
        None => live_items(See::Caller, &lineage, &wanted, each),
        Some(item_ids) => items_with_ids(See::Caller, &lineage, item_ids, &wanted, each),
    }
    Ok(None)
}

pub fn session_context(call: &mut Call) -> Returns {
    let session_id = call.text();
    let max_rows = paging::rows(call.int4())?;
    let agent_id = call.text();
    let tenant = call.text();
    let address = address::of_reader(session_id, agent_id, tenant)?;
    let mut set = call.set();

    let spi = Spi::connect();
    let Some(lineage) = Lineage::find(&spi, See::Caller, &address) else { return Ok(None) };
    let summary = newest_summary(&spi, See::Caller, &lineage);
    if let Some(summary) = &summary {
        set.put(&summary.columns(&spi, See::Caller, &lineage));
    }
    let kept_from = summary.and_then(|summary| summary.kept_from()).unwrap_or(0);
    let mut wanted = Wanted { after: Some(kept_from - 1), with_summaries: false, ..Wanted::ALL };
    if max_rows.is_some() {
        // The newest are wanted, in the order of the log: they begin with the last that a look from the end finds.
        let newest = Wanted { max_rows, newest_first: true, ..wanted };
        wanted.after = Some(i64::MAX);
        live_items(See::Caller, &lineage, &newest, |_, item| {
            wanted.after = Some(item.position() - 1);
            true
        });
    }
    live_items(See::Caller, &lineage, &wanted, |spi, item| {
        set.put(&item.columns(spi, See::Caller, &lineage));
        true
    });
    Ok(None)
}

/// The newest live item that is a summary.
pub fn newest_summary<'s>(spi: &'s Spi, see: See, lineage: &Lineage) -> Option<Live<'s>> {
    let changed = Changed::of(spi, see, lineage);
    for stretch in lineage.stretches().iter().rev() {
        let (mut before, mut few) = (stretch.until, 1);
        loop {
            let bounds = [stretch.sid, before, few].map(|bound| Some(Datum::from(bound)));
            let rows: Vec<Row> = stretch.run(&SUMMARIES, spi, see, &bounds).iter().collect();
            let changes = changes_of(spi, see, lineage, &changed, &rows);
            if let Some(summary) = rows.iter().find_map(|row| Live::of(*row, &changes)) {
                return Some(summary);
            }
            let Some(last) = rows.last().filter(|_| rows.len() as i64 == few) else { break };
            before = last.int8(column::POSITION).unwrap_or_default();
            few = (few * 2).min(CHUNK);
        }
    }
    None
}

pub fn session_log(call: &mut Call) -> Returns {
    let session_id = call.text();
    let after = call.int8();
    let before = call.int8();
    let max_rows = paging::rows(call.int4())?;
    let newest_first = call.bool().unwrap_or(false);
    let agent_id = call.text();
    let tenant = call.text();
    let address = address::of_reader(session_id, agent_id, tenant)?;
    let mut set = call.set();

    let Some(lineage) = Lineage::find(&Spi::connect(), See::Caller, &address) else { return Ok(None) };
    let wanted = Wanted { after, before, newest_first, ..Wanted::ALL };
    let mut left = max_rows.unwrap_or(i64::MAX);
    let (mut after, mut before) = wanted.bounds();
    for (_, stretch) in wanted.stretches(&lineage) {
        while left > 0
            && let Some((from, until)) = stretch.between(after, before)
        {
            let spi = Spi::connect();
            if let Some(table) = lineage.table(&stretch) {
                item_table::page(table, stretch.sid, (from, until), left, newest_first, See::Caller, |slot| {
                    set.put(&entry_columns(slot.row()));
                    left -= 1;
                    left > 0
                });
                break;
            }
            let limit = left.min(CHUNK);
            let bounds = [stretch.sid, from, until, limit].map(|bound| Some(Datum::from(bound)));
            let rows = stretch.run(&wanted.pages().entries, &spi, See::Caller, &bounds);
            rows.iter().for_each(|row| set.put(&entry_columns(row)));
            left -= rows.len() as i64;
            let Some(last) = rows.last().filter(|_| rows.len() as i64 == limit) else { break };
            let last = last.int8(column::POSITION).unwrap_or_default();
            if newest_first { before = last } else { after = last }
        }
    }
    Ok(None)
}

/// An entry as session_log shows it: its target stands behind its op.
fn entry_columns(row: Row) -> [Option<Datum>; 12] {
    use column::*;
    [POSITION, OP, TARGET, KIND, ITEM_ID, TAG, AUTHOR, PAYLOAD, ATTRS, CREATED_AT, DIGEST, IMPORTED_AT]
        .map(|column| row.datum(column))
}

/// What a session's items of one kind come to.
struct Count {
    items: i64,
    bytes: i64,
    first_at: i64,
    last_at: i64,
}

pub fn session_stats(call: &mut Call) -> Returns {
    let session_id = call.text();
    let agent_id = call.text();
    let tenant = call.text();
    let address = address::of_reader(session_id, agent_id, tenant)?;
    let mut set = call.set();

    let Some(lineage) = Lineage::find(&Spi::connect(), See::Caller, &address) else { return Ok(None) };
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    live_items(See::Caller, &lineage, &Wanted::ALL, |_, item| {
        let kind = item.first.text(column::KIND).unwrap_or_default();
        let at = item.first.int8(column::CREATED_AT).unwrap_or_default();
        if !counts.contains_key(kind) {
            counts.insert(kind.to_owned(), Count { items: 0, bytes: 0, first_at: at, last_at: at });
        }
        if let Some(count) = counts.get_mut(kind) {
            count.items += 1;
            count.bytes += value::size(item.payload()) as i64;
            count.first_at = count.first_at.min(at);
            count.last_at = count.last_at.max(at);
        }
        true
    });
    for (kind, count) in &counts {
        let numbers = [count.items, count.bytes, count.first_at, count.last_at].map(|number| Some(Datum::from(number)));
        set.put(&[&[Some(text_datum(kind))], &numbers[..]].concat());
    }
    Ok(None)
}
