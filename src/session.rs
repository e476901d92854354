//! The session's own functions: create and set.

use agent_sessions_core::element;
use agent_sessions_core::error::Error;
use agent_sessions_core::limit;
use agent_sessions_core::members;
use agent_sessions_core::name;
use agent_sessions_core::word::{OnConflict, OnMissing};
use pgrx::pg_sys::{Datum, INT8OID, JSONBOID, JSONOID, NUMERICOID, TEXTOID, TIMESTAMPTZOID};

use crate::address::{Address, sid_of};
use crate::append;
use crate::draft;
use crate::head::{CREATION_ROUNDS, Head};
use crate::lease::Given;
use crate::log::Log;
use crate::postgres::call::{Call, Returns, Set};
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::raise;
use crate::postgres::setting;
use crate::postgres::value::{self, Json, text_datum};
use crate::session_rule::check_cost;

static CREATE: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.session (tenant, agent_id, session_id, title, metadata, state, owner, origin, parent_sid, \
        status, input_tokens, output_tokens, cost, expires_at, created_at) \
      values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) \
      on conflict (tenant, agent_id, session_id) where deleted_at is null do nothing",
    &[
        TEXTOID,
        TEXTOID,
        TEXTOID,
        TEXTOID,
        JSONBOID,
        JSONOID,
        TEXTOID,
        TEXTOID,
        INT8OID,
        TEXTOID,
        INT8OID,
        INT8OID,
        NUMERICOID,
        TIMESTAMPTZOID,
        TIMESTAMPTZOID,
    ],
);

static SHOW: KeptPlan = KeptPlan::new(
    c"select g.session_id, g.agent_id, g.owner, g.title, g.status, g.metadata, g.state, g.revision, g.next_position, \
        g.last_entry_at, g.input_tokens, g.output_tokens, g.cost, g.origin, g.parent_session_id, g.branched_from, \
        g.fork_position, g.lease_holder, g.lease_expires_at, g.expires_at, g.created_at, g.closed_at, g.cursor \
      from agent_sessions.session_get(tenant => $1, agent_id => $2, session_id => $3) g",
    &[TEXTOID, TEXTOID, TEXTOID],
);

static STORED: KeptPlan = KeptPlan::new(
    c"select s.revision, s.origin, s.metadata, s.state from agent_sessions.session s \
      where s.sid operator(pg_catalog.=) $1",
    &[INT8OID],
);

static CHANGE: KeptPlan = KeptPlan::new(
    c"update agent_sessions.session set \
        title = coalesce($2, title), status = coalesce($3, status), owner = coalesce($4, owner), \
        metadata = coalesce($5, metadata), state = coalesce($6, state), \
        input_tokens = coalesce($7, input_tokens), output_tokens = coalesce($8, output_tokens), \
        cost = coalesce($9, cost), expires_at = coalesce($10, expires_at) \
      where sid operator(pg_catalog.=) $1 returning revision",
    &[INT8OID, TEXTOID, TEXTOID, TEXTOID, JSONBOID, JSONOID, INT8OID, INT8OID, NUMERICOID, TIMESTAMPTZOID],
);

static FIRST_REVISION: KeptPlan = KeptPlan::new(
    c"update agent_sessions.session set revision = 1 where sid operator(pg_catalog.=) $1 returning revision",
    &[INT8OID],
);

static MERGE_METADATA: KeptPlan = KeptPlan::new(
    c"select coalesce($1, '{}'::pg_catalog.jsonb) operator(pg_catalog.||) $2 \
      where coalesce(pg_catalog.jsonb_typeof($1), 'object') operator(pg_catalog.=) 'object' \
        and pg_catalog.jsonb_typeof($2) operator(pg_catalog.=) 'object'",
    &[JSONBOID, JSONBOID],
);

const NOT_MERGEABLE: &str = "must be an object, as the stored one, to be merged";

/// The columns of a session that a client may give, checked before anything is locked.
struct Document<'a> {
    title: Option<&'a str>,
    status: Option<&'a str>,
    owner: Option<&'a str>,
    origin: Option<&'a str>,
    metadata: Option<Datum>,
    state: Option<Json<'a>>,
    input_tokens: Option<i64>,
    output_tokens: Option<i64>,
    cost: Option<Datum>,
    expires_at: Option<Datum>,
    created_at: Option<i64>,
}

impl Document<'_> {
    fn check(&self, tenant: &str) -> Result<(), Error> {
        name::title(self.title)?;
        name::label("status", self.status)?;
        name::label("owner", self.owner)?;
        name::label("origin", self.origin)?;
        limit::index_entry("owner", &[tenant, self.owner.unwrap_or_default()])?;
        limit::at_most("metadata", value::size(self.metadata), setting::max_payload_bytes())?;
        if let Some(state) = self.state {
            draft::check_size("state", state.text)?;
        }
        for (argument, tokens) in [("input_tokens", self.input_tokens), ("output_tokens", self.output_tokens)] {
            if tokens.is_some_and(|tokens| tokens < 0) {
                return Err(Error::invalid(argument, "must not be negative"));
            }
        }
        check_cost(self.cost)?;
        if self.created_at.is_some_and(|at| at == i64::MIN || at == i64::MAX) {
            return Err(Error::invalid("created_at", "must be finite"));
        }
        Ok(())
    }

    /// SE001 unless state and metadata, as far as they are given, are objects.
    fn check_mergeable(&self) -> Result<(), Error> {
        // SAFETY: the argument is a jsonb.
        let metadata = self.metadata.map(|metadata| unsafe { value::jsonb_text(metadata) });
        for (argument, patch) in [("state", self.state.map(|state| state.text)), ("metadata", metadata)] {
            if patch.is_some_and(|patch| !members::is_object(patch)) {
                return Err(Error::invalid(argument, NOT_MERGEABLE));
            }
        }
        Ok(())
    }

    /// Inserts the session unless it exists; whether it did not.
    fn create(&self, spi: &Spi, address: &Address, parent: Option<i64>) -> bool {
        let [tenant, agent_id, session_id] = address.parameters();
        let columns = [
            tenant,
            agent_id,
            session_id,
            self.title.map(text_datum),
            self.metadata,
            self.state.map(|state| state.datum),
            self.owner.map(text_datum),
            self.origin.map(text_datum),
            parent.map(Datum::from),
            self.status.map(text_datum),
            self.input_tokens.map(Datum::from),
            self.output_tokens.map(Datum::from),
            self.cost,
            self.expires_at,
            self.created_at.map(Datum::from),
        ];
        CREATE.run(spi, See::Now, &columns).len() == 1
    }

    fn changes_anything(&self) -> bool {
        let document = [self.title, self.status, self.owner].iter().any(Option::is_some) || self.state.is_some();
        let usage = [self.metadata, self.cost, self.expires_at].iter().any(Option::is_some)
            || self.input_tokens.is_some()
            || self.output_tokens.is_some();
        document || usage
    }
}

pub fn session_create(call: &mut Call) -> Returns {
    let session_id = call.text();
    let title = call.text();
    let metadata = call.datum();
    let state = call.json();
    let owner = call.text();
    let origin = call.text();
    let parent_session_id = call.text();
    let parent_agent_id = call.text();
    let items = call.json();
    let status = call.text();
    let input_tokens = call.int8();
    let output_tokens = call.int8();
    let cost = call.datum();
    let expires_at = call.datum();
    let created_at = call.int8();
    let on_conflict = OnConflict::parse(call.text())?;
    let agent_id = call.text();

    if on_conflict == OnConflict::Replace {
        return Err(Error::invalid("on_conflict", "must be error or keep"));
    }
    let generated = uuid::Uuid::now_v7().to_string();
    let address = Address::resolve(Some(session_id.unwrap_or(&generated)), agent_id)?;
    let document = Document {
        title,
        status,
        owner,
        origin,
        metadata,
        state,
        input_tokens,
        output_tokens,
        cost,
        expires_at,
        created_at,
    };
    document.check(&address.tenant)?;
    let parent =
        parent_session_id.map(|id| Address::of_parent(id, parent_agent_id.unwrap_or(&address.agent_id))).transpose()?;
    let elements = items.map(|items| element::parse(items.text)).transpose()?.unwrap_or_default();
    let items = append::from_elements(&elements, OnConflict::Error)?;
    let mut set = call.set();

    let spi = Spi::connect();
    let parent =
        parent.map(|at| sid_of(&spi, See::Now, &at.parameters()).ok_or_else(|| at.not_found(&spi))).transpose()?;
    for _ in 0..CREATION_ROUNDS {
        let created = document.create(&spi, &address, parent);
        if !created && on_conflict == OnConflict::Error {
            return Err(Error::SessionExists { session_id: address.session_id, agent_id: address.agent_id });
        }
        if created
            && !items.is_empty()
            && let Some(log) = Log::open(&spi, &address, OnMissing::Error)?
        {
            append::append(&log, &items, None, None)?;
        }
        // A session that is to be kept may be deleted before it is shown: then it is created after all.
        if show(&spi, &address, &mut set) {
            return Ok(None);
        }
    }
    raise::row_was_dropped()
}

/// Puts the session's row; whether there was one.
pub fn show(spi: &Spi, address: &Address, set: &mut Set) -> bool {
    let shown = SHOW.run(spi, See::Now, &address.parameters());
    shown.iter().for_each(|row| set.put(&row.datums()));
    shown.len() > 0
}

pub fn session_set(call: &mut Call) -> Returns {
    let session_id = call.text();
    let state = call.json();
    let metadata = call.datum();
    let merge = call.bool().unwrap_or(false);
    let title = call.text();
    let status = call.text();
    let owner = call.text();
    let input_tokens = call.int8();
    let output_tokens = call.int8();
    let cost = call.datum();
    let origin = call.text();
    let expires_at = call.datum();
    let created_at = call.int8();
    let expected_revision = call.int8();
    let on_missing = OnMissing::parse(call.text())?;
    let agent_id = call.text();
    let lease = call.text();

    draft::position("expected_revision", expected_revision)?;
    let address = Address::resolve(session_id, agent_id)?;
    let mut document = Document {
        title,
        status,
        owner,
        origin,
        metadata,
        state,
        input_tokens,
        output_tokens,
        cost,
        expires_at,
        created_at,
    };
    document.check(&address.tenant)?;
    if merge {
        document.check_mergeable()?;
    }

    let spi = Spi::connect();
    let Some((head, created)) = lock_or_create(&spi, &address, on_missing, &document)? else { return Ok(None) };
    head.admit(lease)?;
    let stored = STORED.run(&spi, See::Now, &[Some(Datum::from(head.sid))]);
    let Some(stored) = stored.first() else { return Err(address.not_found(&spi)) };
    let revision = stored.int8(0).unwrap_or_default();
    if let Some(expected) = expected_revision
        && expected != revision
    {
        return Err(Error::RevisionConflict { expected, actual: revision });
    }
    if let Some(origin) = origin
        && Some(origin) != stored.text(1)
    {
        return Err(Error::OriginMismatch { expected: origin.to_owned(), actual: stored.text(1).map(str::to_owned) });
    }
    if !created && !document.changes_anything() {
        return Ok(Some(Datum::from(revision)));
    }
    let merged;
    if merge {
        document.metadata = match document.metadata {
            Some(metadata) => Some(merge_metadata(&spi, stored.jsonb(2), metadata)?),
            None => None,
        };
        if let Some(state) = document.state {
            merged = members::merge(stored.text(3).unwrap_or("{}"), state.text)
                .ok_or_else(|| Error::invalid("state", NOT_MERGEABLE))?;
            draft::check_size("state", &merged)?;
            document.state = Some(Json::from_part(&merged));
        }
    }
    let _lease = Given::to_triggers(lease);
    let changed = CHANGE.run(
        &spi,
        See::Now,
        &[
            Some(Datum::from(head.sid)),
            document.title.map(text_datum),
            document.status.map(text_datum),
            document.owner.map(text_datum),
            document.metadata,
            document.state.map(|state| state.datum),
            document.input_tokens.map(Datum::from),
            document.output_tokens.map(Datum::from),
            document.cost,
            document.expires_at,
        ],
    );
    let mut revision = changed.first().and_then(|row| row.int8(0));
    if created && revision == Some(0) {
        revision =
            FIRST_REVISION.run(&spi, See::Now, &[Some(Datum::from(head.sid))]).first().and_then(|row| row.int8(0));
    }
    match revision {
        Some(revision) => Ok(Some(Datum::from(revision))),
        None => Err(address.not_found(&spi)),
    }
}

/// Locks the session; or creates it with what counts on creation only, so that the rest is its first change.
fn lock_or_create(
    spi: &Spi,
    address: &Address,
    on_missing: OnMissing,
    document: &Document,
) -> Result<Option<(Head, bool)>, Error> {
    if on_missing != OnMissing::Create {
        return Ok(Head::lock(spi, address, on_missing)?.map(|head| (head, false)));
    }
    let bare = Document { title: None, status: None, owner: None, metadata: None, state: None, ..*document };
    Ok(Some(Head::lock_or_create(spi, address, || bare.create(spi, address, None))))
}

fn merge_metadata(spi: &Spi, stored: Option<Datum>, patch: Datum) -> Result<Datum, Error> {
    let merged = MERGE_METADATA.run(spi, See::Now, &[stored, Some(patch)]).first().and_then(|row| row.jsonb(0));
    limit::at_most("metadata", value::size(merged), setting::max_payload_bytes())?;
    merged.ok_or_else(|| Error::invalid("metadata", NOT_MERGEABLE))
}
