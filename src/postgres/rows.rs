//! The rows of a statement, read in place.

use std::marker::PhantomData;

use pg_sys::Datum;
use pgrx::pg_sys;

use super::{raise, value};

/// Rows in SPI's memory, which lasts until the connection `'s` ends.
pub struct Rows<'s> {
    table: *mut pg_sys::SPITupleTable,
    count: usize,
    _spi: PhantomData<&'s ()>,
}

impl<'s> Rows<'s> {
    /// # Safety
    /// `table` holds `count` rows, or is NULL (a statement without RETURNING), and lives as long as `'s`.
    pub unsafe fn new(table: *mut pg_sys::SPITupleTable, count: usize) -> Rows<'s> {
        Rows { table, count, _spi: PhantomData }
    }

    /// How many rows the statement returned or, without RETURNING, wrote.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn iter(&self) -> impl Iterator<Item = Row<'s>> + '_ {
        (0..self.present()).map(|at| self.at(at))
    }

    fn present(&self) -> usize {
        if self.table.is_null() { 0 } else { self.count }
    }

    fn at(&self, at: usize) -> Row<'s> {
        assert!(at < self.present());
        // SAFETY: the table has `count` tuples.
        unsafe { Row::new(*(*self.table).vals.add(at), (*self.table).tupdesc) }
    }

    pub fn first(&self) -> Option<Row<'s>> {
        self.iter().next()
    }

    pub fn last(&self) -> Option<Row<'s>> {
        self.present().checked_sub(1).map(|at| self.at(at))
    }
}

/// One row. Columns count from 0; their types are those that the reader's statement names.
#[derive(Clone, Copy)]
pub struct Row<'s> {
    tuple: pg_sys::HeapTuple,
    descriptor: pg_sys::TupleDesc,
    _spi: PhantomData<&'s ()>,
}

impl<'s> Row<'s> {
    unsafe fn new(tuple: pg_sys::HeapTuple, descriptor: pg_sys::TupleDesc) -> Row<'s> {
        Row { tuple, descriptor, _spi: PhantomData }
    }

    pub fn datum(&self, column: usize) -> Option<Datum> {
        let mut null = false;
        // SAFETY: tuple and descriptor belong together; SPI_getbinval checks the column's number.
        let datum = unsafe { pg_sys::SPI_getbinval(self.tuple, self.descriptor, column as i32 + 1, &mut null) };
        (!null).then_some(datum)
    }

    /// The column if it is of one of `types`; 42804 otherwise, since it would be read as what it is not.
    fn typed(&self, column: usize, types: &[pg_sys::Oid]) -> Option<Datum> {
        // SAFETY: SPI_gettypeid checks the column's number.
        if !types.contains(&unsafe { pg_sys::SPI_gettypeid(self.descriptor, column as i32 + 1) }) {
            raise::wrong_type();
        }
        self.datum(column)
    }

    /// A bigint column, or the microseconds of a timestamptz.
    pub fn int8(&self, column: usize) -> Option<i64> {
        self.typed(column, &[pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID]).map(|datum| datum.value() as i64)
    }

    pub fn int4(&self, column: usize) -> Option<i32> {
        self.typed(column, &[pg_sys::INT4OID]).map(|datum| datum.value() as i32)
    }

    pub fn oid(&self, column: usize) -> Option<pg_sys::Oid> {
        self.typed(column, &[pg_sys::OIDOID]).map(|datum| pg_sys::Oid::from(datum.value() as u32))
    }

    /// A text or json column.
    pub fn text(&self, column: usize) -> Option<&'s str> {
        // SAFETY: the column is of that type, in SPI's memory.
        self.typed(column, &[pg_sys::TEXTOID, pg_sys::JSONOID]).map(|datum| unsafe { value::text(datum) })
    }

    pub fn bytes(&self, column: usize) -> Option<&'s [u8]> {
        // SAFETY: as for text.
        self.typed(column, &[pg_sys::BYTEAOID]).map(|datum| unsafe { value::bytes(datum) })
    }

    pub fn uuid(&self, column: usize) -> Option<[u8; 16]> {
        // SAFETY: as for text.
        self.typed(column, &[pg_sys::UUIDOID]).map(|datum| unsafe { value::uuid(datum) })
    }

    /// A jsonb column, as it is.
    pub fn jsonb(&self, column: usize) -> Option<Datum> {
        self.typed(column, &[pg_sys::JSONBOID])
    }

    /// The text of a jsonb column.
    pub fn jsonb_text(&self, column: usize) -> Option<&'s str> {
        // SAFETY: as for text.
        self.jsonb(column).map(|datum| unsafe { value::jsonb_text(datum) })
    }

    /// All columns, for handing the row on as it is.
    pub fn datums(&self) -> Vec<Option<Datum>> {
        // SAFETY: the descriptor is the row's.
        let columns = unsafe { (*self.descriptor).natts } as usize;
        (0..columns).map(|column| self.datum(column)).collect()
    }
}
