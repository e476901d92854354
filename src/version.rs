//! Which version is installed, and whether that is one that a client can work with.

use agent_sessions_core::version;
use pgrx::pg_sys::Datum;

use crate::postgres::call::{Call, Returns};
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::text_datum;

static INSTALLED: KeptPlan = KeptPlan::new(
    c"select e.extversion from pg_catalog.pg_extension e where e.extname operator(pg_catalog.=) 'agent_sessions'",
    &[],
);

fn installed() -> String {
    let spi = Spi::connect();
    let rows = INSTALLED.run(&spi, See::Caller, &[]);
    rows.first().and_then(|row| row.text(0)).unwrap_or_default().to_owned()
}

pub fn schema_version(_: &mut Call) -> Returns {
    Ok(Some(text_datum(&installed())))
}

pub fn schema_require(call: &mut Call) -> Returns {
    let (min, max) = (call.text(), call.text());
    version::require(&installed(), env!("CARGO_PKG_VERSION"), min, max)?;
    Ok(Some(Datum::from(0)))
}
