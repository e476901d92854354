//! The rows of a statement, read in place.

use pg_sys::{Datum, Oid};
use pgrx::pg_sys;

use super::{raise, value};

/// Rows in SPI's memory, which lasts until the connection `'s` ends.
pub struct Rows<'s> {
    table: *mut pg_sys::SPITupleTable,
    count: usize,
    types: &'s [Oid],
}

impl<'s> Rows<'s> {
    /// # Safety
    /// `table` holds `count` rows, or is NULL (a statement without RETURNING), and lives as long as `'s`.
    pub unsafe fn new(table: *mut pg_sys::SPITupleTable, count: usize) -> Rows<'s> {
        if table.is_null() {
            return Rows { table, count, types: &[] };
        }
        // SAFETY: the memory is of the size, and goes with the table.
        let types = unsafe {
            let descriptor = (*table).tupdesc;
            let columns = (*descriptor).natts as usize;
            let types = pg_sys::MemoryContextAlloc((*table).tuptabcxt, columns * size_of::<Oid>()).cast::<Oid>();
            for column in 0..columns {
                types.add(column).write(pg_sys::SPI_gettypeid(descriptor, column as i32 + 1));
            }
            std::slice::from_raw_parts(types, columns)
        };
        Rows { table, count, types }
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
        // SAFETY: the table has `count` tuples of its descriptor, and goes with its memory.
        unsafe {
            let (tuple, memory) = (*(*self.table).vals.add(at), (*self.table).tuptabcxt);
            Row::of(tuple, (*self.table).tupdesc, self.types, memory)
        }
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
    values: &'s [Datum],
    nulls: &'s [bool],
    types: &'s [Oid],
}

impl<'s> Row<'s> {
    /// Takes a tuple apart at once: column by column, the twelve of an entry cost three times as much.
    ///
    /// # Safety
    /// The tuple is of the descriptor, whose columns are of `types`; it and the memory live as long as `'s`.
    pub unsafe fn of(
        tuple: pg_sys::HeapTuple,
        descriptor: pg_sys::TupleDesc,
        types: &'s [Oid],
        memory: pg_sys::MemoryContext,
    ) -> Row<'s> {
        let columns = types.len();
        // SAFETY: by the caller's promise; the memory has room for the columns.
        unsafe {
            let size = columns * (size_of::<Datum>() + size_of::<bool>());
            let values = pg_sys::MemoryContextAlloc(memory, size).cast::<Datum>();
            let nulls = values.add(columns).cast::<bool>();
            pg_sys::heap_deform_tuple(tuple, descriptor, values, nulls);
            Row::at(values, nulls, types)
        }
    }

    /// A row that was taken apart.
    ///
    /// # Safety
    /// There are as many values and nulls as types; they live as long as `'s`.
    pub unsafe fn at(values: *const Datum, nulls: *const bool, types: &'s [Oid]) -> Row<'s> {
        // SAFETY: by the caller's promise.
        unsafe {
            let columns = types.len();
            Row {
                values: std::slice::from_raw_parts(values, columns),
                nulls: std::slice::from_raw_parts(nulls, columns),
                types,
            }
        }
    }

    pub fn is_null(&self, column: usize) -> bool {
        self.nulls[column]
    }

    pub fn datum(&self, column: usize) -> Option<Datum> {
        (!self.nulls[column]).then_some(self.values[column])
    }

    /// The column if it is of one of `types`; 42804 otherwise, since it would be read as what it is not.
    fn typed(&self, column: usize, types: &[Oid]) -> Option<Datum> {
        if !types.contains(&self.types[column]) {
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

    pub fn oid(&self, column: usize) -> Option<Oid> {
        self.typed(column, &[pg_sys::OIDOID]).map(|datum| Oid::from(datum.value() as u32))
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
        (0..self.values.len()).map(|column| self.datum(column)).collect()
    }
}
