//! A call of an SQL function: its arguments in the order of their declaration, and its result.

use std::ffi::CStr;
use std::marker::PhantomData;

use agent_sessions_core::error::Error;
use pg_sys::Datum;
use pgrx::pg_sys;

use super::raise::raise;
use super::value::{self, Element, Json};

/// What a function gives back: a datum, or NULL.
pub type Returns = Result<Option<Datum>, Error>;

pub struct Call<'a> {
    fcinfo: pg_sys::FunctionCallInfo,
    next: usize,
    _arguments: PhantomData<&'a ()>,
}

impl<'a> Call<'a> {
    /// The next argument, whatever its type.
    pub fn datum(&mut self) -> Option<Datum> {
        let at = self.next;
        self.next += 1;
        // SAFETY: fcinfo is valid during the call; the declaration in sql/ has as many arguments as the function reads.
        unsafe {
            assert!(at < (*self.fcinfo).nargs as usize, "the function is declared with fewer arguments");
            let argument = (*self.fcinfo).args.as_ptr().add(at);
            (!(*argument).isnull).then_some((*argument).value)
        }
    }

    pub fn text(&mut self) -> Option<&'a str> {
        // SAFETY: declared as text; arguments outlive the call.
        self.datum().map(|datum| unsafe { value::text(datum) })
    }

    pub fn json(&mut self) -> Option<Json<'a>> {
        // SAFETY: declared as json.
        self.datum().map(|datum| unsafe { Json::from_datum(datum) })
    }

    /// The text of a jsonb.
    pub fn jsonb_text(&mut self) -> Option<&'a str> {
        // SAFETY: declared as jsonb.
        self.datum().map(|datum| unsafe { value::jsonb_text(datum) })
    }

    pub fn int8(&mut self) -> Option<i64> {
        self.datum().map(|datum| datum.value() as i64)
    }

    pub fn int4(&mut self) -> Option<i32> {
        self.datum().map(|datum| datum.value() as i32)
    }

    /// An interval as microseconds, a day as 24 hours. SE001 if it holds months, or does not fit.
    pub fn microseconds(&mut self, argument: &'static str) -> Result<Option<i64>, Error> {
        // SAFETY: declared as interval, which is a pointer to this struct.
        let Some(interval) = self.datum().map(|datum| unsafe { *datum.cast_mut_ptr::<pg_sys::Interval>() }) else {
            return Ok(None);
        };
        let days = i64::from(interval.day).checked_mul(86_400_000_000);
        match days.and_then(|days| days.checked_add(interval.time)).filter(|_| interval.month == 0) {
            Some(microseconds) => Ok(Some(microseconds)),
            None => Err(Error::invalid(argument, "must be a number of days at most, without months")),
        }
    }

    /// An interval that is an age, not negative; SE001 otherwise.
    pub fn age(&mut self, argument: &'static str) -> Result<Option<Datum>, Error> {
        let age = self.datum();
        // SAFETY: declared as interval, which is a pointer to this struct.
        let interval = age.map(|datum| unsafe { *datum.cast_mut_ptr::<pg_sys::Interval>() });
        match interval {
            Some(interval) if interval.time < 0 || interval.day < 0 || interval.month < 0 => {
                Err(Error::invalid(argument, "must not be negative"))
            }
            _ => Ok(age),
        }
    }

    pub fn bool(&mut self) -> Option<bool> {
        self.datum().map(|datum| datum.value() & 0xFF != 0)
    }

    pub fn name(&mut self) -> Option<&'a CStr> {
        // SAFETY: declared as name.
        self.datum().map(|datum| unsafe { value::name(datum) })
    }

    /// A bigint[]; SE001 unless it is a list without NULL.
    pub fn int8_array(&mut self, argument: &'static str) -> Result<Option<Vec<i64>>, Error> {
        Ok(self.array(argument, Element::Int8)?.map(|values| values.iter().map(|value| value.value() as i64).collect()))
    }

    /// A text[]; SE001 unless it is a list without NULL.
    pub fn text_array(&mut self, argument: &'static str) -> Result<Option<Vec<&'a str>>, Error> {
        // SAFETY: declared as text[].
        Ok(self
            .array(argument, Element::Text)?
            .map(|values| values.iter().map(|value| unsafe { value::text(*value) }).collect()))
    }

    fn array(&mut self, argument: &'static str, element: Element) -> Result<Option<Vec<Datum>>, Error> {
        self.datum()
            // SAFETY: declared as an array of that element type.
            .map(|datum| unsafe { value::elements(element, datum) })
            .map(|elements| elements.ok_or_else(|| Error::invalid(argument, "must be a list without NULL")))
            .transpose()
    }

    /// Makes the function return a set, row by row.
    pub fn set(&mut self) -> Set<'a> {
        self.set_as(0)
    }

    /// Makes the function return a set of values that are no rows.
    pub fn set_of_values(&mut self) -> Set<'a> {
        self.set_as(pg_sys::MAT_SRF_USE_EXPECTED_DESC)
    }

    fn set_as(&mut self, flags: u32) -> Set<'a> {
        // SAFETY: PostgreSQL checks that the caller takes a materialised set; the store lives as long as the query.
        unsafe {
            pg_sys::InitMaterializedSRF(self.fcinfo, flags);
            Set { info: (*self.fcinfo).resultinfo.cast(), values: Vec::new(), nulls: Vec::new(), _call: PhantomData }
        }
    }
}

/// The rows of a function that returns a set.
pub struct Set<'a> {
    info: *mut pg_sys::ReturnSetInfo,
    /// The columns of the row that is added, kept for the next one.
    values: Vec<Datum>,
    nulls: Vec<bool>,
    _call: PhantomData<&'a ()>,
}

impl Set<'_> {
    /// Adds a row; `columns` are of the declared types, and copied.
    pub fn put(&mut self, columns: &[Option<Datum>]) {
        self.values.resize(columns.len(), Datum::from(0));
        self.nulls.resize(columns.len(), true);
        for ((column, value), null) in columns.iter().zip(&mut self.values).zip(&mut self.nulls) {
            *value = column.unwrap_or(Datum::from(0));
            *null = column.is_none();
        }
        // SAFETY: the store and its descriptor were made by InitMaterializedSRF; the row has as many columns.
        unsafe {
            assert_eq!(
                (*(*self.info).setDesc).natts as usize,
                columns.len(),
                "the function is declared with other columns"
            );
            pg_sys::tuplestore_putvalues(
                (*self.info).setResult,
                (*self.info).setDesc,
                self.values.as_mut_ptr(),
                self.nulls.as_mut_ptr(),
            );
        }
    }
}

/// Runs a function's body for PostgreSQL: its error becomes PostgreSQL's, and no panic leaves it.
///
/// # Safety
/// Called by the function manager with a valid `fcinfo`.
pub unsafe fn enter(fcinfo: pg_sys::FunctionCallInfo, body: fn(&mut Call) -> Returns) -> Datum {
    // SAFETY: the guard turns an unwinding ERROR back into PostgreSQL's.
    unsafe {
        pg_sys::panic::pgrx_extern_c_guard(|| match body(&mut Call { fcinfo, next: 0, _arguments: PhantomData }) {
            Ok(Some(datum)) => datum,
            Ok(None) => {
                (*fcinfo).isnull = true;
                Datum::from(0)
            }
            Err(error) => raise(error),
        })
    }
}

/// Exports functions under the symbols that `sql/` declares them with: `agent_sessions_` and the name. `call` takes bodies
/// over a [`Call`], `trigger` over a [`Trigger`](super::trigger::Trigger).
#[macro_export]
macro_rules! export {
    ($way:ident: $($body:path as $name:literal,)*) => {$(
        const _: () = {
            #[unsafe(export_name = concat!("agent_sessions_", $name))]
            unsafe extern "C-unwind" fn entry(fcinfo: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
                // SAFETY: the function manager calls with a valid fcinfo.
                unsafe { $crate::postgres::$way::enter(fcinfo, $body) }
            }

            #[unsafe(export_name = concat!("pg_finfo_agent_sessions_", $name))]
            extern "C" fn info() -> &'static pgrx::pg_sys::Pg_finfo_record {
                const VERSION_1: pgrx::pg_sys::Pg_finfo_record = pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
                &VERSION_1
            }
        };
    )*};
}
