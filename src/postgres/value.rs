//! Values in and out of PostgreSQL's datums.

use std::ffi::{CStr, CString};

use agent_sessions_core::digest::Digest;
use pg_sys::{Datum, Oid};
use pgrx::{IntoDatum, pg_sys, varlena};

/// A text-like datum (text, json) as UTF-8; the database's encoding is UTF8, or the extension could not be installed.
///
/// # Safety
/// `datum` is a varlena of that kind, in memory that outlives `'a`.
pub unsafe fn text<'a>(datum: Datum) -> &'a str {
    // SAFETY: by the caller's promise.
    unsafe { varlena::text_to_rust_str_unchecked(plain(datum)) }
}

/// A bytea datum.
///
/// # Safety
/// As for [`text`].
pub unsafe fn bytes<'a>(datum: Datum) -> &'a [u8] {
    // SAFETY: by the caller's promise.
    unsafe { varlena::varlena_to_byte_slice(plain(datum)) }
}

/// A varlena that is neither compressed nor elsewhere, as most are already.
///
/// # Safety
/// As for [`text`].
unsafe fn plain(datum: Datum) -> *mut pg_sys::varlena {
    // SAFETY: by the caller's promise; detoasting allocates in the current memory context.
    unsafe {
        let stored = datum.cast_mut_ptr::<pg_sys::varlena>();
        let is_short = varlena::varatt_is_1b(stored) && !varlena::varatt_is_1b_e(stored);
        if is_short || varlena::varatt_is_4b_u(stored) { stored } else { pg_sys::pg_detoast_datum_packed(stored) }
    }
}

/// A varlena as it is stored, header included, perhaps a pointer to its toast.
///
/// # Safety
/// As for [`text`].
pub unsafe fn raw_bytes<'a>(datum: Datum) -> &'a [u8] {
    // SAFETY: by the caller's promise; the size counts the header.
    unsafe {
        let start = datum.cast_mut_ptr::<pg_sys::varlena>();
        std::slice::from_raw_parts(start.cast::<u8>(), pgrx::varsize_any(start))
    }
}

/// A uuid datum.
///
/// # Safety
/// `datum` is a uuid, which is a pointer to 16 bytes.
pub unsafe fn uuid(datum: Datum) -> [u8; 16] {
    // SAFETY: by the caller's promise.
    unsafe { *datum.cast_mut_ptr::<[u8; 16]>() }
}

/// A name datum: a C string in 64 bytes.
///
/// # Safety
/// `datum` is a name, in memory that outlives `'a`.
pub unsafe fn name<'a>(datum: Datum) -> &'a CStr {
    // SAFETY: by the caller's promise.
    unsafe { CStr::from_ptr(datum.cast_mut_ptr()) }
}

/// The text of a jsonb datum, as `::text` gives it.
///
/// # Safety
/// `datum` is a jsonb.
pub unsafe fn jsonb_text<'a>(datum: Datum) -> &'a str {
    // SAFETY: the output function returns a C string in the database's encoding.
    unsafe {
        let text = pg_sys::OidOutputFunctionCall(Oid::from(pg_sys::F_JSONB_OUT), datum);
        std::str::from_utf8_unchecked(CStr::from_ptr(text).to_bytes())
    }
}

/// As the operator @>: whether a jsonb holds another.
pub fn jsonb_contains(whole: Datum, part: Datum) -> bool {
    // SAFETY: called for jsonb, which the function detoasts; it reads no collation and no flinfo.
    unsafe {
        pg_sys::OidFunctionCall2Coll(Oid::from(pg_sys::F_JSONB_CONTAINS), Oid::INVALID, whole, part).value() & 0xFF != 0
    }
}

/// The jsonb datum of a JSON text, or the server's words for why it is none.
pub fn jsonb(json: &str) -> Result<Datum, String> {
    input(pg_sys::F_JSONB_IN, json)
}

/// The json datum of a text that may be JSON. As [`jsonb`].
pub fn json(json: &str) -> Result<Datum, String> {
    input(pg_sys::F_JSON_IN, json)
}

/// The numeric datum of a text that may be a number. As [`jsonb`].
pub fn numeric(number: &str) -> Result<Datum, String> {
    input(pg_sys::F_NUMERIC_IN, number)
}

/// Runs the input function of a type.
///
/// Only errors of the class "data exception" are taken; these functions hold nothing that an error would have to release.
fn input(function: u32, text: &str) -> Result<Datum, String> {
    let input = CString::new(text).map_err(|_| "holds a NUL".to_owned())?;
    pgrx::PgTryBuilder::new(std::panic::AssertUnwindSafe(|| {
        // SAFETY: the input function reads the C string and returns a new datum.
        Ok(unsafe { pg_sys::OidInputFunctionCall(Oid::from(function), input.as_ptr().cast_mut(), Oid::INVALID, -1) })
    }))
    .catch_others(|caught| match &caught {
        pg_sys::panic::CaughtError::PostgresError(report)
            if matches!(
                report.sql_error_code(),
                pgrx::PgSqlErrorCode::ERRCODE_UNTRANSLATABLE_CHARACTER
                    | pgrx::PgSqlErrorCode::ERRCODE_INVALID_TEXT_REPRESENTATION
                    | pgrx::PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE
                    | pgrx::PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED
            ) =>
        {
            Err(report.message().to_owned())
        }
        _ => caught.rethrow(),
    })
    .execute()
}

/// A JSON value that is kept byte for byte: its text, and the datum that holds it.
#[derive(Clone, Copy)]
pub struct Json<'a> {
    pub text: &'a str,
    pub datum: Datum,
}

impl<'a> Json<'a> {
    /// # Safety
    /// As for [`text`].
    pub unsafe fn from_datum(datum: Datum) -> Json<'a> {
        // SAFETY: by the caller's promise.
        Json { text: unsafe { text(datum) }, datum }
    }

    /// A part of a JSON text that the server's json type has accepted.
    pub fn from_part(text: &'a str) -> Json<'a> {
        Json { text, datum: text_datum(text) }
    }
}

/// The bytes of a varlena (jsonb, json) as it would be uncompressed, without uncompressing it; 0 for NULL.
pub fn size(datum: Option<Datum>) -> usize {
    // SAFETY: called for varlenas; the size includes a header of four bytes.
    datum.map_or(0, |datum| unsafe { pg_sys::toast_raw_datum_size(datum) } - 4)
}

pub fn text_datum(text: &str) -> Datum {
    text.into_datum().expect("a text is never NULL")
}

pub fn bytes_datum(bytes: &[u8]) -> Datum {
    bytes.into_datum().expect("a bytea is never NULL")
}

pub fn digest(bytes: &[u8]) -> Option<Digest> {
    bytes.try_into().ok()
}

/// A uuid datum in the current memory context.
pub fn uuid_datum(bytes: [u8; 16]) -> Datum {
    // SAFETY: palloc returns 16 writable bytes, or raises.
    unsafe {
        let place = pg_sys::palloc(16).cast::<[u8; 16]>();
        *place = bytes;
        Datum::from(place)
    }
}

/// An array of one dimension. `element` is one of the types below.
pub fn array(element: Element, values: &[Option<Datum>]) -> Datum {
    let (oid, length, by_value, align) = element.layout();
    let mut datums: Vec<Datum> = values.iter().map(|value| value.unwrap_or(Datum::from(0))).collect();
    let mut nulls: Vec<bool> = values.iter().map(Option::is_none).collect();
    let (mut dimension, mut lower_bound) = (values.len() as i32, 1);
    // SAFETY: the two vectors have `dimension` elements each, which construct_md_array copies.
    Datum::from(unsafe {
        pg_sys::construct_md_array(
            datums.as_mut_ptr(),
            nulls.as_mut_ptr(),
            1,
            &mut dimension,
            &mut lower_bound,
            oid,
            length,
            by_value,
            align as std::ffi::c_char,
        )
    })
}

#[derive(Clone, Copy)]
pub enum Element {
    Int4,
    Int8,
    Oid,
    Text,
    Json,
    Jsonb,
    Uuid,
    Bytes,
    Time,
}

impl Element {
    /// Type, length, whether it is passed by value, and alignment, as pg_type has them.
    const fn layout(self) -> (Oid, i32, bool, u8) {
        match self {
            Element::Int8 => (pg_sys::INT8OID, 8, true, b'd'),
            Element::Oid => (pg_sys::OIDOID, 4, true, b'i'),
            Element::Text => (pg_sys::TEXTOID, -1, false, b'i'),
            Element::Json => (pg_sys::JSONOID, -1, false, b'i'),
            Element::Jsonb => (pg_sys::JSONBOID, -1, false, b'i'),
            Element::Int4 => (pg_sys::INT4OID, 4, true, b'i'),
            Element::Uuid => (pg_sys::UUIDOID, 16, false, b'c'),
            Element::Bytes => (pg_sys::BYTEAOID, -1, false, b'i'),
            Element::Time => (pg_sys::TIMESTAMPTZOID, 8, true, b'd'),
        }
    }
}

/// The elements of an array, or `None` unless it is a list of values: of one dimension (or empty) and without NULL.
///
/// # Safety
/// `datum` is an array of that element type.
pub unsafe fn elements(element: Element, datum: Datum) -> Option<Vec<Datum>> {
    let (oid, length, by_value, align) = element.layout();
    let (mut values, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    // SAFETY: by the caller's promise; deconstruct_array fills two arrays of `count` elements.
    unsafe {
        let array = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
        if (*array).ndim > 1 {
            return None;
        }
        pg_sys::deconstruct_array(
            array,
            oid,
            length,
            by_value,
            align as std::ffi::c_char,
            &mut values,
            &mut nulls,
            &mut count,
        );
        (0..count as usize).map(|at| (!*nulls.add(at)).then(|| *values.add(at))).collect()
    }
}

/// The server's clock: microseconds since 2000-01-01 UTC.
pub fn clock() -> i64 {
    // SAFETY: reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}
