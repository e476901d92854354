//! Arguments of the lists: page sizes, orders and cursors.

use agent_sessions_core::cursor::{Cursor, Order};
use agent_sessions_core::error::Error;
use pgrx::pg_sys::Datum;

use crate::postgres::call::{Call, Returns};
use crate::postgres::value::text_datum;

/// The rows of a page. SE001 if negative.
pub fn rows(max_rows: Option<i32>) -> Result<Option<i64>, Error> {
    match max_rows {
        Some(rows) if rows < 0 => Err(Error::invalid("max_rows", "must not be negative")),
        _ => Ok(max_rows.map(i64::from)),
    }
}

pub fn page_rows(call: &mut Call) -> Returns {
    let (max_rows, otherwise) = (call.int4(), call.int4());
    Ok(rows(max_rows)?.or(otherwise.map(i64::from)).map(Datum::from))
}

pub fn list_order(call: &mut Call) -> Returns {
    Ok(Some(text_datum(match Order::parse(call.text())? {
        Order::Created => "created",
        Order::Activity => "activity",
    })))
}

pub fn list_cursor(call: &mut Call) -> Returns {
    let order = Order::parse(call.text())?;
    let (at, sid) = (call.int8(), call.int8());
    Ok(at.zip(sid).map(|(at, sid)| text_datum(&Cursor { at, sid }.encode(order))))
}

pub fn cursor_at(call: &mut Call) -> Returns {
    Ok(Some(Datum::from(cursor(call)?.at)))
}

pub fn cursor_sid(call: &mut Call) -> Returns {
    Ok(Some(Datum::from(cursor(call)?.sid)))
}

fn cursor(call: &mut Call) -> Result<Cursor, Error> {
    let order = Order::parse(call.text())?;
    call.text().map_or(Ok(Cursor::START), |after| Cursor::decode(order, after))
}
