//! Which session a call means: tenant, agent and id, checked before anything is looked up or locked.

use agent_sessions_core::error::Error;
use agent_sessions_core::{limit, name};
use pgrx::pg_sys::{Datum, TEXTOID};

use crate::identity;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::text_datum;

static OTHER_AGENT: KeptPlan = KeptPlan::new(
    c"select s.agent_id from agent_sessions.session s \
      where s.tenant operator(pg_catalog.=) $1 and s.session_id operator(pg_catalog.=) $2 and s.deleted_at is null \
      order by s.agent_id limit 1",
    &[TEXTOID, TEXTOID],
);

static FIND: KeptPlan = KeptPlan::new(
    c"select s.sid from agent_sessions.session s \
      where s.tenant operator(pg_catalog.=) $1 and s.agent_id operator(pg_catalog.=) $2 \
        and s.session_id operator(pg_catalog.=) $3 and s.deleted_at is null",
    &[TEXTOID, TEXTOID, TEXTOID],
);

#[derive(Clone, Debug)]
pub struct Address {
    pub tenant: String,
    pub agent_id: String,
    pub session_id: String,
}

impl Address {
    /// SE001 if the session's id is missing or malformed, SE018 if the three texts together do not fit an index entry.
    pub fn resolve(session_id: Option<&str>, agent_id: Option<&str>) -> Result<Address, Error> {
        let session_id = session_id.ok_or_else(|| Error::invalid("session_id", "must be given"))?;
        Address::of(["session_id", "agent_id"], session_id, agent_id)
    }

    /// The address of a parent; its agent is the child's when left out. As [`resolve`](Address::resolve), naming its arguments.
    pub fn of_parent(session_id: &str, agent_id: &str) -> Result<Address, Error> {
        Address::of(["parent_session_id", "parent_agent_id"], session_id, Some(agent_id))
    }

    /// The address of a branch that is to be made. As [`resolve`](Address::resolve), naming its arguments.
    pub fn of_branch(session_id: &str, agent_id: &str) -> Result<Address, Error> {
        Address::of(["new_session_id", "new_agent_id"], session_id, Some(agent_id))
    }

    fn of(arguments: [&'static str; 2], session_id: &str, agent_id: Option<&str>) -> Result<Address, Error> {
        name::required(arguments[0], session_id)?;
        let tenant = identity::tenant()?;
        let agent_id = agent_id.map_or_else(identity::agent, str::to_owned);
        name::optional(arguments[1], &agent_id)?;
        limit::index_entry(arguments[0], &[&tenant, &agent_id, session_id])?;
        Ok(Address { tenant, agent_id, session_id: session_id.to_owned() })
    }

    /// The parameters of statements that look the session up.
    pub fn parameters(&self) -> [Option<Datum>; 3] {
        self.name().map(Some)
    }

    /// Tenant, agent and id, as datums.
    pub fn name(&self) -> [Datum; 3] {
        [&self.tenant, &self.agent_id, &self.session_id].map(|text| text_datum(text))
    }

    /// SE002, which names the agent under which a visible session of that id exists.
    pub fn not_found(&self, spi: &Spi) -> Error {
        let [tenant, _, session_id] = self.parameters();
        let found = OTHER_AGENT.run(spi, See::Now, &[tenant, session_id]);
        Error::SessionNotFound {
            session_id: self.session_id.clone(),
            agent_id: self.agent_id.clone(),
            found_under: found.first().and_then(|row| row.text(0).map(str::to_owned)),
        }
    }
}

/// The sid of a session that is not to be locked, by the parameters of its address.
pub fn sid_of(spi: &Spi, see: See, parameters: &[Option<Datum>; 3]) -> Option<i64> {
    FIND.run(spi, see, parameters).first().and_then(|row| row.int8(0))
}

/// The address of the session that a reader means. NULL, as any id that no session can have, finds none.
pub fn of_reader(session_id: Option<&str>, agent_id: Option<&str>, tenant: Option<&str>) -> Result<Address, Error> {
    Ok(Address {
        tenant: tenant.map_or_else(identity::tenant, |tenant| Ok(tenant.to_owned()))?,
        agent_id: agent_id.map_or_else(identity::agent, str::to_owned),
        session_id: session_id.unwrap_or_default().to_owned(),
    })
}
