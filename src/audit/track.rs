//! The automatic trail: what the engine writes down of itself, in the same transaction, where a tenant wants it.

use agent_sessions_core::error::Error;
use pgrx::pg_sys::{Datum, INT8OID, TEXTOID};

use crate::audit::append::{self, Event};
use crate::audit::rule::actor;
use crate::identity;
use crate::postgres::call::{Call, Returns};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::{Json, text_datum};

static TRACKED: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.audit_tracking t \
      where t.tenant operator(pg_catalog.=) $1 and t.what operator(pg_catalog.=) $2",
    &[TEXTOID, TEXTOID],
);

static ENABLE: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.audit_tracking (tenant, what) values ($1, $2) on conflict (tenant, what) do nothing",
    &[TEXTOID, TEXTOID],
);

static DISABLE: KeptPlan = KeptPlan::new(
    c"delete from agent_sessions.audit_tracking \
      where tenant operator(pg_catalog.=) $1 and what operator(pg_catalog.=) $2",
    &[TEXTOID, TEXTOID],
);

static DELETIONS: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.audit_event e \
      where e.tenant operator(pg_catalog.=) $1 and e.stream operator(pg_catalog.=) $2 \
        and e.session_id operator(pg_catalog.=) $3 and e.action operator(pg_catalog.=) 'session_delete' \
        and coalesce(e.target, '') operator(pg_catalog.=) $4 and e.seq operator(pg_catalog.>) $5 limit 1",
    &[TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID],
);

/// The stream that the engine writes to.
pub const TRAIL: &str = "agent_sessions";

/// What can be tracked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    State,
    Delete,
    Branch,
    Import,
    Erase,
    Trim,
    Lease,
    Access,
    Tenant,
}

impl What {
    const ALL: [What; 9] = [
        What::State,
        What::Delete,
        What::Branch,
        What::Import,
        What::Erase,
        What::Trim,
        What::Lease,
        What::Access,
        What::Tenant,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            What::State => "state",
            What::Delete => "delete",
            What::Branch => "branch",
            What::Import => "import",
            What::Erase => "erase",
            What::Trim => "trim",
            What::Lease => "lease",
            What::Access => "access",
            What::Tenant => "tenant",
        }
    }
}

/// Something that was done to a session.
pub struct Deed<'a> {
    pub what: What,
    pub action: &'a str,
    pub tenant: &'a str,
    pub agent_id: &'a str,
    pub session_id: &'a str,
    pub payload: serde_json::Value,
}

/// Writes down what was done to a session, if its tenant tracks that. The target is the session's agent.
pub fn note(spi: &Spi, deed: &Deed) {
    let session = Event { session_id: Some(deed.session_id), ..Event::of(deed.action) };
    // An empty agent has no name that could stand as a target.
    let target = (!deed.agent_id.is_empty()).then_some(deed.agent_id);
    write(spi, deed.what, deed.tenant, Event { target, ..session }, &deed.payload);
}

/// Writes down what was done to a role, if the current tenant tracks that.
pub fn note_role(spi: &Spi, what: What, action: &str, role: &str, payload: &serde_json::Value) -> Result<(), Error> {
    write(spi, what, &identity::tenant()?, Event { target: Some(role), ..Event::of(action) }, payload);
    Ok(())
}

fn write(spi: &Spi, what: What, tenant: &str, event: Event, payload: &serde_json::Value) {
    let actor = actor();
    let _owner = AsOwner::switch();
    let tracked = [Some(text_datum(tenant)), Some(text_datum(what.as_str()))];
    if TRACKED.run(spi, See::Latest, &tracked).len() > 0 {
        let payload = payload.to_string();
        append::write(
            spi,
            tenant,
            TRAIL,
            &Event { actor: Some(&actor), payload: Some(Json::from_part(&payload)), ..event },
        );
    }
}

/// Whether the trail tells behind `since`, a seq, that a session was deleted.
pub fn tells_of_deletion(spi: &Spi, tenant: &str, agent_id: &str, session_id: &str, since: i64) -> bool {
    let [tenant, stream, session, agent] = [tenant, TRAIL, session_id, agent_id].map(|text| Some(text_datum(text)));
    DELETIONS.run(spi, See::Caller, &[tenant, stream, session, agent, Some(Datum::from(since))]).len() > 0
}

pub fn audit_track(call: &mut Call) -> Returns {
    let what = call.text().ok_or_else(|| Error::invalid("what", "must be given"))?;
    let enabled = call.bool().ok_or_else(|| Error::invalid("enabled", "must be given"))?;
    let whats: Vec<What> = What::ALL.into_iter().filter(|known| what == "all" || known.as_str() == what).collect();
    if whats.is_empty() {
        return Err(Error::invalid(
            "what",
            "must be all, state, delete, branch, import, erase, trim, lease, access or tenant",
        ));
    }
    let tenant = identity::tenant()?;
    let spi = Spi::connect();
    let _owner = AsOwner::switch();
    for what in whats {
        let plan = if enabled { &ENABLE } else { &DISABLE };
        plan.run(&spi, See::Now, &[Some(text_datum(&tenant)), Some(text_datum(what.as_str()))]);
    }
    Ok(Some(Datum::from(0)))
}
