//! What a database administrator would want found: the checks are the views of `sql/doctor_*.sql`.

use pgrx::pg_sys::{INTERVALOID, TEXTOID};

use crate::postgres::call::{Call, Returns};
use crate::postgres::catalog;
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::text_datum;

static REPORT: KeptPlan = KeptPlan::new(
    c"select r.check_name, r.status, r.detail, r.remedy from agent_sessions.doctor_report($1, $2) r",
    &[TEXTOID, INTERVALOID],
);

/// Runs the checks past the policies, under which what is hidden would seem to be lost: as the owner, or as a superuser, who sees
/// other roles' transactions too.
pub fn doctor(call: &mut Call) -> Returns {
    let older_than = call.age("older_than")?;
    let mut set = call.set();
    let spi = Spi::connect();
    let _owner = (!catalog::is_superuser()).then(AsOwner::switch);
    let library = Some(text_datum(env!("CARGO_PKG_VERSION")));
    REPORT.run(&spi, See::Caller, &[library, older_than]).iter().for_each(|row| set.put(&row.datums()));
    Ok(None)
}
