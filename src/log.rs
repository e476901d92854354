//! A log that is open for writing: its head locked, its tail known.

use agent_sessions_core::digest::Digest;
use agent_sessions_core::error::Error;
use agent_sessions_core::word::OnMissing;
use pgrx::pg_sys::{
    Datum, INT8ARRAYOID, INT8OID, JSONARRAYOID, JSONBARRAYOID, JSONBOID, JSONOID, TEXTARRAYOID, TEXTOID,
};

use crate::address::Address;
use crate::draft::Draft;
use crate::handoff::{Handoff, Offer};
use crate::head::{Base, Head};
use crate::hint;
use crate::item_rule;
use crate::item_table::{self, column};
use crate::lease::Given;
use crate::lineage::Lineage;
use crate::postgres::direct::{self, Table};
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::raise;
use crate::postgres::value::{Element, array, text_datum};
use crate::tail::Tail;

static INSERT: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.session_item (sid, position, op, kind, item_id, tag, author, target, payload, attrs) \
      values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) returning digest, created_at",
    &[INT8OID, INT8OID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID, JSONOID, JSONBOID],
);

// One statement for a batch: its start and end cost more than its rows.
static INSERT_MANY: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.session_item (sid, position, op, kind, item_id, tag, author, target, payload, attrs) \
      select $1, e.position, e.op, e.kind, e.item_id, e.tag, e.author, e.target, e.payload, e.attrs \
      from rows from (pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4), pg_catalog.unnest($5), \
                      pg_catalog.unnest($6), pg_catalog.unnest($7), pg_catalog.unnest($8), pg_catalog.unnest($9), \
                      pg_catalog.unnest($10)) \
        as e (position, op, kind, item_id, tag, author, target, payload, attrs) \
      returning digest, created_at",
    &[
        INT8OID,
        INT8ARRAYOID,
        TEXTARRAYOID,
        TEXTARRAYOID,
        TEXTARRAYOID,
        TEXTARRAYOID,
        TEXTARRAYOID,
        INT8ARRAYOID,
        JSONARRAYOID,
        JSONBARRAYOID,
    ],
);

pub struct Log<'s> {
    pub spi: &'s Spi,
    pub head: Head,
    pub lineage: Lineage,
    tail: Tail,
    /// Its table, where that can be written without a statement.
    table: Option<Table>,
}

/// An entry as it was written; the datums live as long as the connection.
#[derive(Clone, Copy)]
pub struct Written {
    pub position: i64,
    pub digest: Option<Datum>,
    pub created_at: Option<Datum>,
}

impl<'s> Log<'s> {
    /// Locks the head and reads the tail. SE002, or `None` to `ignore`; 40001 if the snapshot does not see the tail.
    pub fn open(spi: &'s Spi, address: &Address, on_missing: OnMissing) -> Result<Option<Log<'s>>, Error> {
        let Some(head) = Head::lock(spi, address, on_missing)? else { return Ok(None) };
        Log::of(spi, head).map(Some).ok_or_else(|| address.not_found(spi))
    }

    /// The log of a head that is locked already.
    pub fn of(spi: &'s Spi, head: Head) -> Option<Log<'s>> {
        let table = item_table::open_to_insert(&head);
        let tail = Tail::of(spi, &head, table.as_ref())?;
        let lineage = Lineage::of(spi, See::Latest, head.sid, head.origin);
        Some(Log { spi, head, lineage, tail, table })
    }

    pub fn sid(&self) -> i64 {
        self.head.sid
    }

    pub fn next_position(&self) -> i64 {
        self.tail.next_position
    }

    pub fn tail(&self) -> Tail {
        self.tail
    }

    /// The digest of the entry before `fork`, which may stand in an ancestor; the session's genesis if the fork is 0. `None` if
    /// the log has no such place.
    pub fn digest_before(&self, fork: i64) -> Option<Digest> {
        if fork == 0 && self.lineage.first_position() == 0 {
            return Base::of(self.spi, See::Latest, self.sid()).map(|base| base.previous);
        }
        if fork > self.next_position() {
            return None;
        }
        self.lineage.digest_at(self.spi, See::Latest, fork - 1)
    }

    /// `false` if the log has no item of that id, where that can be looked up without a statement.
    pub fn may_hold(&self, item_id: &str) -> bool {
        match &self.table {
            Some(table) if self.lineage.inherited().is_empty() => item_table::has_id(table, self.sid(), item_id),
            _ => true,
        }
    }

    /// SE007 unless the next entry lands at `expected`.
    pub fn expect(&self, expected: Option<i64>) -> Result<(), Error> {
        match expected {
            Some(expected) if expected != self.next_position() => {
                Err(Error::PositionConflict { expected, actual: self.next_position() })
            }
            _ => Ok(()),
        }
    }

    /// Writes the drafts at the next positions, under the lease that was admitted.
    pub fn write(&self, drafts: &[Draft], lease: Option<&str>) -> Vec<Written> {
        if drafts.is_empty() {
            return Vec::new();
        }
        let written = self.write_directly(drafts).unwrap_or_else(|| self.write_by_statement(drafts, lease));
        self.head.touch(self.spi);
        written
    }

    /// Links the items and writes their rows as the statement and its trigger would; `None` where that may not be the same.
    fn write_directly(&self, drafts: &[Draft]) -> Option<Vec<Written>> {
        // What an entry about another closes is the business of an AFTER trigger.
        if !drafts.iter().all(|draft| draft.op.is_item()) {
            return None;
        }
        let table = self.table.as_ref()?;
        let (tenant, agent_id) = (&self.head.tenant, &self.head.agent_id);
        let (mut tail, mut last) = (self.tail, None);
        let mut written = Vec::with_capacity(drafts.len());
        for draft in drafts {
            pgrx::check_for_interrupts!();
            let mut row = item_table::row(self.sid(), draft);
            let digest = item_rule::link(&mut row, tenant, agent_id, tail).expect("nothing is given that could differ");
            last = Some(table.insert(&mut row, |index| item_table::is_in(index, draft)));
            let [digest_datum, created_at] = [column::DIGEST, column::CREATED_AT].map(|column| row.datum(column));
            written.push(Written { position: tail.next_position, digest: digest_datum, created_at });
            tail = tail.after(digest);
        }
        direct::finish();
        if let Some(tid) = last {
            self.head.remember_written(tail.next_position - 1, tid);
        }
        Some(written)
    }

    fn write_by_statement(&self, drafts: &[Draft], lease: Option<&str>) -> Vec<Written> {
        hint::forget_written(self.sid());
        let _lease = Given::to_triggers(lease);
        let offer = Offer::make(Handoff {
            sid: self.sid(),
            tenant: self.head.tenant.clone(),
            agent_id: self.head.agent_id.clone(),
            tail: self.tail,
        });
        let rows = match drafts {
            [draft] => INSERT.run(self.spi, See::Now, &self.one(draft)),
            _ => INSERT_MANY.run(self.spi, See::Now, &self.many(drafts)),
        };
        drop(offer);
        if rows.len() != drafts.len() {
            raise::row_was_dropped();
        }
        (self.next_position()..)
            .zip(rows.iter())
            .map(|(position, row)| Written { position, digest: row.datum(0), created_at: row.datum(1) })
            .collect()
    }

    fn one(&self, draft: &Draft) -> [Option<Datum>; 10] {
        [
            Some(Datum::from(self.sid())),
            Some(Datum::from(self.next_position())),
            Some(text_datum(draft.op.as_str())),
            draft.kind.map(text_datum),
            draft.item_id.map(text_datum),
            draft.tag.map(text_datum),
            draft.author.map(text_datum),
            draft.target.map(Datum::from),
            draft.payload.map(|payload| payload.datum),
            draft.attrs,
        ]
    }

    fn many(&self, drafts: &[Draft]) -> [Option<Datum>; 10] {
        let positions: Vec<_> =
            (self.next_position()..).take(drafts.len()).map(|position| Some(Datum::from(position))).collect();
        let column = |element, value: &dyn Fn(&Draft) -> Option<Datum>| {
            Some(array(element, &drafts.iter().map(value).collect::<Vec<_>>()))
        };
        [
            Some(Datum::from(self.sid())),
            Some(array(Element::Int8, &positions)),
            column(Element::Text, &|draft| Some(text_datum(draft.op.as_str()))),
            column(Element::Text, &|draft| draft.kind.map(text_datum)),
            column(Element::Text, &|draft| draft.item_id.map(text_datum)),
            column(Element::Text, &|draft| draft.tag.map(text_datum)),
            column(Element::Text, &|draft| draft.author.map(text_datum)),
            column(Element::Int8, &|draft| draft.target.map(Datum::from)),
            column(Element::Json, &|draft| draft.payload.map(|payload| payload.datum)),
            column(Element::Jsonb, &|draft| draft.attrs),
        ]
    }
}
