//! What a database administrator would want found: the checks are the views of `sql/doctor_*.sql`.

use pgrx::pg_sys::{INTERVALOID, TEXTOID};

use crate::postgres::call::{Call, Returns};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::setting;
use crate::postgres::value::text_datum;

// An owner that cannot read its own tables is told that alone: all other checks would fail for it.
static UNREADABLE: KeptPlan = KeptPlan::new(
    c"select 'ownership'::pg_catalog.text, 'fail'::pg_catalog.text, \
        pg_catalog.string_agg(f.finding, pg_catalog.chr(10)), pg_catalog.string_agg(f.remedy, pg_catalog.chr(10)) \
      from agent_sessions.finding_ownership f \
      having exists (select from agent_sessions.schema_object o where o.kind operator(pg_catalog.=) any (array['table', 'sequence']) \
        and not pg_catalog.has_table_privilege(o.oid, 'select'))",
    &[],
);

static REPORT: KeptPlan = KeptPlan::new(
    c"select r.check_name, r.status, r.detail, r.remedy from agent_sessions.doctor_report($1, $2) r",
    &[TEXTOID, INTERVALOID],
);

/// Runs the checks as the owner, past the policies: under them what is hidden would seem to be lost. Not as a superuser who calls,
/// since the views are the owner's, who may change them, and what
/// they call might SET something for the caller's session.
pub fn doctor(call: &mut Call) -> Returns {
    let older_than = call.age("older_than")?;
    let mut set = call.set();
    let spi = Spi::connect();
    let _owner = AsOwner::switch();
    let rows = setting::restoring(|| {
        let unreadable = UNREADABLE.run(&spi, See::Caller, &[]);
        let library = Some(text_datum(env!("CARGO_PKG_VERSION")));
        if unreadable.len() > 0 { unreadable } else { REPORT.run(&spi, See::Caller, &[library, older_than]) }
    });
    rows.iter().for_each(|row| set.put(&row.datums()));
    Ok(None)
}
