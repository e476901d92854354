//! A trigger's call: the row that is about to be written, and the one that was.

use std::marker::PhantomData;

use agent_sessions_core::error::Error;
use pg_sys::Datum;
use pgrx::pg_sys;

use super::raise::{self, raise};
use super::value;

/// What a BEFORE trigger decides.
pub enum Decision {
    /// The row goes on as the trigger leaves it.
    Write,
    /// The row is passed over, without an error.
    Skip,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Insert,
    Update,
    Delete,
    Truncate,
}

/// The values of one row, in the order of the table's columns.
///
/// What a body sets is kept in the memory of the trigger's call: a connection to SPI, which has its own, ends before the row
/// is formed.
pub struct Tuple<'a> {
    values: Vec<Datum>,
    nulls: Vec<bool>,
    memory: pg_sys::MemoryContext,
    _call: PhantomData<&'a ()>,
}

impl<'a> Tuple<'a> {
    /// A row of NULLs.
    pub fn blank(columns: usize) -> Tuple<'a> {
        // SAFETY: reads a variable of the backend.
        let memory = unsafe { pg_sys::CurrentMemoryContext };
        Tuple { values: vec![Datum::from(0); columns], nulls: vec![true; columns], memory, _call: PhantomData }
    }

    /// # Safety
    /// `tuple` is a row of `descriptor`, and outlives `'a`.
    unsafe fn deform(tuple: pg_sys::HeapTuple, descriptor: pg_sys::TupleDesc, types: &[pg_sys::Oid]) -> Tuple<'a> {
        // SAFETY: both vectors have as many elements as the descriptor has columns.
        unsafe {
            let columns = (*descriptor).natts as usize;
            // The owner may alter its tables, and put triggers on others: a wrong type would be read as a wild pointer.
            let expected = columns >= types.len()
                && (1..).zip(types).all(|(number, wanted)| pg_sys::SPI_gettypeid(descriptor, number) == *wanted);
            if !expected {
                raise::wrong_type();
            }
            let (mut values, mut nulls) = (vec![Datum::from(0); columns], vec![true; columns]);
            pg_sys::heap_deform_tuple(tuple, descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
            Tuple { values, nulls, memory: pg_sys::CurrentMemoryContext, _call: PhantomData }
        }
    }

    pub fn datum(&self, column: usize) -> Option<Datum> {
        (!self.nulls[column]).then_some(self.values[column])
    }

    /// Its values, and which of them are NULL.
    pub fn parts(&mut self) -> (&mut [Datum], &mut [bool]) {
        (&mut self.values, &mut self.nulls)
    }

    /// Sets a value that lives as long as the row.
    pub fn set(&mut self, column: usize, value: Option<Datum>) {
        self.nulls[column] = value.is_none();
        self.values[column] = value.unwrap_or(Datum::from(0));
    }

    pub fn clear(&mut self, column: usize) {
        self.nulls[column] = true;
    }

    pub fn set_int8(&mut self, column: usize, value: i64) {
        self.put(column, || Datum::from(value));
    }

    pub fn set_text(&mut self, column: usize, value: &str) {
        self.put(column, || value::text_datum(value));
    }

    pub fn set_bytes(&mut self, column: usize, value: &[u8]) {
        self.put(column, || value::bytes_datum(value));
    }

    pub fn set_uuid(&mut self, column: usize, value: [u8; 16]) {
        self.put(column, || value::uuid_datum(value));
    }

    pub fn set_jsonb(&mut self, column: usize, value: Datum) {
        // SAFETY: a jsonb is a varlena; the copy is whole.
        self.put(column, || unsafe { Datum::from(pg_sys::pg_detoast_datum_copy(value.cast_mut_ptr())) });
    }

    fn put(&mut self, column: usize, make: impl FnOnce() -> Datum) {
        // SAFETY: the context is that of the call, which outlives the tuple. Were make to raise, the abort would reset the
        // current context.
        unsafe {
            let current = pg_sys::MemoryContextSwitchTo(self.memory);
            self.values[column] = make();
            pg_sys::MemoryContextSwitchTo(current);
        }
        self.nulls[column] = false;
    }

    pub fn int8(&self, column: usize) -> Option<i64> {
        self.datum(column).map(|datum| datum.value() as i64)
    }

    pub fn int4(&self, column: usize) -> Option<i32> {
        self.datum(column).map(|datum| datum.value() as i32)
    }

    pub fn text(&self, column: usize) -> Option<&'a str> {
        // SAFETY: the columns named here are text or json.
        self.datum(column).map(|datum| unsafe { value::text(datum) })
    }

    pub fn bytes(&self, column: usize) -> Option<&'a [u8]> {
        // SAFETY: the column is a bytea.
        self.datum(column).map(|datum| unsafe { value::bytes(datum) })
    }

    pub fn uuid(&self, column: usize) -> Option<[u8; 16]> {
        // SAFETY: the column is a uuid.
        self.datum(column).map(|datum| unsafe { value::uuid(datum) })
    }

    pub fn jsonb_text(&self, column: usize) -> Option<&'a str> {
        // SAFETY: the column is a jsonb.
        self.datum(column).map(|datum| unsafe { value::jsonb_text(datum) })
    }

    /// Whether a value passed by value (integer, time) is the same in both rows.
    pub fn same_word(&self, other: &Tuple, column: usize) -> bool {
        self.int8(column) == other.int8(column)
    }

    /// Whether a varlena holds the same bytes in both rows. json has no equality: its text is compared.
    pub fn same_bytes(&self, other: &Tuple, column: usize) -> bool {
        // SAFETY: the column is a varlena.
        match (self.datum(column), other.datum(column)) {
            (Some(left), Some(right)) => unsafe {
                // As stored first: a value that was not touched is the same pointer to its toast, however large.
                value::raw_bytes(left) == value::raw_bytes(right) || value::bytes(left) == value::bytes(right)
            },
            (left, right) => left.is_none() && right.is_none(),
        }
    }
}

pub struct Trigger<'a> {
    data: *mut pg_sys::TriggerData,
    _call: PhantomData<&'a ()>,
}

impl<'a> Trigger<'a> {
    pub fn event(&self) -> Event {
        // SAFETY: data is valid during the call.
        match unsafe { (*self.data).tg_event } & pg_sys::TRIGGER_EVENT_OPMASK {
            pg_sys::TRIGGER_EVENT_INSERT => Event::Insert,
            pg_sys::TRIGGER_EVENT_UPDATE => Event::Update,
            pg_sys::TRIGGER_EVENT_DELETE => Event::Delete,
            _ => Event::Truncate,
        }
    }

    /// The row that an INSERT brings, or the one that an UPDATE or DELETE finds. 42804 if its columns are not of `types`.
    pub fn row(&self, types: &[pg_sys::Oid]) -> Tuple<'a> {
        // SAFETY: a row trigger has this tuple, of the relation's descriptor; a statement trigger has none.
        unsafe {
            if (*self.data).tg_trigtuple.is_null() {
                raise::wrong_type();
            }
            Tuple::deform((*self.data).tg_trigtuple, self.descriptor(), types)
        }
    }

    /// The row that an UPDATE leaves. As [`row`](Trigger::row).
    pub fn new_row(&self, types: &[pg_sys::Oid]) -> Tuple<'a> {
        // SAFETY: as row, for UPDATE.
        unsafe {
            if (*self.data).tg_newtuple.is_null() {
                raise::wrong_type();
            }
            Tuple::deform((*self.data).tg_newtuple, self.descriptor(), types)
        }
    }

    /// Whether the UPDATE names the column in its SET list, even if it writes the value that was there.
    pub fn writes(&self, column: usize) -> bool {
        // The bitmap counts from the lowest system column.
        let member = column as i32 + 1 - pg_sys::FirstLowInvalidHeapAttributeNumber;
        // SAFETY: the bitmap is valid during the call, and NULL when empty.
        unsafe { pg_sys::bms_is_member(member, (*self.data).tg_updatedcols) }
    }

    fn descriptor(&self) -> pg_sys::TupleDesc {
        // SAFETY: the relation is open during the call.
        unsafe { (*(*self.data).tg_relation).rd_att }
    }

    /// The relation that the trigger stands on.
    pub fn relation(&self) -> pg_sys::Oid {
        // SAFETY: the relation is open during the call.
        unsafe { (*(*self.data).tg_relation).rd_id }
    }

    fn unchanged(&self) -> Datum {
        // SAFETY: data is valid during the call.
        unsafe {
            let new = if self.event() == Event::Update { (*self.data).tg_newtuple } else { (*self.data).tg_trigtuple };
            Datum::from(new)
        }
    }

    fn with(&self, mut row: Tuple) -> Datum {
        // SAFETY: the tuple's vectors have as many elements as the descriptor has columns.
        Datum::from(unsafe {
            pg_sys::heap_form_tuple(self.descriptor(), row.values.as_mut_ptr(), row.nulls.as_mut_ptr())
        })
    }
}

/// What a trigger's body returns: the row to go on with (`None`: as it came), and whether to.
pub type Returns<'a> = Result<(Option<Tuple<'a>>, Decision), Error>;

/// # Safety
/// As for [`super::call::enter`]; refused unless called as a trigger.
pub unsafe fn enter(fcinfo: pg_sys::FunctionCallInfo, body: for<'a> fn(&Trigger<'a>) -> Returns<'a>) -> Datum {
    // SAFETY: the context is a TriggerData if its tag says so.
    unsafe {
        pg_sys::panic::pgrx_extern_c_guard(|| {
            let context = (*fcinfo).context;
            if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
                pgrx::ereport!(
                    ERROR,
                    pgrx::PgSqlErrorCode::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
                    "this function can only be called as a trigger"
                );
            }
            let trigger = Trigger { data: context.cast(), _call: PhantomData };
            match body(&trigger) {
                Ok((Some(row), Decision::Write)) => trigger.with(row),
                Ok((None, Decision::Write)) => trigger.unchanged(),
                Ok((_, Decision::Skip)) => Datum::from(0),
                Err(error) => raise(error),
            }
        })
    }
}
