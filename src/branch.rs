//! Branching: a session whose log begins with another's, none of it copied.

use agent_sessions_core::error::Error;
use agent_sessions_core::word::{OnConflict, OnMissing, Op};
use agent_sessions_core::{name, title};
use pgrx::pg_sys::{Datum, INT8OID, TEXTOID};

use crate::address::Address;
use crate::append;
use crate::audit::track::{self, Deed, What};
use crate::draft::{self, Draft, Item};
use crate::history::{self, Wanted};
use crate::item;
use crate::lease::Given;
use crate::log::Log;
use crate::postgres::call::{Call, Returns};
use crate::postgres::catalog;
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::value::{Element, array, text_datum};
use crate::session;

/// The kind of the item that a branch's seed becomes.
const SEED: &str = "seed";

// The trigger looks at the source again, locks it again, and adds the digest that the genesis stands on.
static CREATE: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.session (tenant, agent_id, session_id, parent_sid, branched_from, fork_position, owner, \
        origin, title, metadata, state) \
      select s.tenant, $2, $3, s.parent_sid, s.sid, $4, s.owner, s.origin, coalesce($5, s.title), s.metadata, s.state \
      from agent_sessions.session s where s.sid operator(pg_catalog.=) $1 \
      on conflict (tenant, agent_id, session_id) where deleted_at is null do nothing",
    &[INT8OID, TEXTOID, TEXTOID, INT8OID, TEXTOID],
);

static SIBLING_TITLES: KeptPlan = KeptPlan::new(
    c"select s.title from agent_sessions.session s \
      where s.branched_from operator(pg_catalog.=) $1 and s.title is not null \
        and s.deleted_at is null",
    &[INT8OID],
);

/// Where a branch leaves the log of its source.
enum Point<'a> {
    /// Behind its last entry.
    End,
    Target(i64),
    ItemId(&'a str),
    Tag(&'a str),
}

pub fn session_branch(call: &mut Call) -> Returns {
    let session_id = call.text();
    let at_target = call.int8();
    let at_item_id = call.text();
    let at_tag = call.text();
    let new_session_id = call.text();
    let inherit = call.bool().unwrap_or(true);
    let seed = call.json();
    let title = call.text();
    let new_agent_id = call.text();
    let agent_id = call.text();
    let lease = call.text();

    draft::position("at_target", at_target)?;
    name::label("at_item_id", at_item_id)?;
    name::label("at_tag", at_tag)?;
    name::title(title)?;
    let point = match (at_target, at_item_id, at_tag) {
        (None, None, None) => Point::End,
        (Some(target), None, None) => Point::Target(target),
        (None, Some(item_id), None) => Point::ItemId(item_id),
        (None, None, Some(tag)) => Point::Tag(tag),
        _ => return Err(Error::invalid("at_target", "must not be given together with at_item_id or at_tag")),
    };
    if let Some(seed) = seed {
        draft::check_size("seed", seed.text)?;
    }
    let source = Address::resolve(session_id, agent_id)?;
    let generated = uuid::Uuid::now_v7().to_string();
    let branch = Address::of_branch(new_session_id.unwrap_or(&generated), new_agent_id.unwrap_or(&source.agent_id))?;
    let mut set = call.set();

    let spi = Spi::connect();
    let Some(log) = Log::open(&spi, &source, OnMissing::Error)? else { return Ok(None) };
    log.head.admit(lease)?;
    let fork = point.fork(&log)?;
    let title = title.map(|title| numbered(&log, title));
    name::title(title.as_deref())?;
    let _lease = Given::to_triggers(lease);
    let [_, agent_id, session_id] = branch.parameters();
    let created = CREATE.run(
        &spi,
        See::Now,
        &[
            Some(Datum::from(log.sid())),
            agent_id,
            session_id,
            inherit.then(|| Datum::from(fork)),
            title.as_deref().map(text_datum),
        ],
    );
    if created.len() == 0 {
        return Err(Error::SessionExists { session_id: branch.session_id, agent_id: branch.agent_id });
    }
    if catalog::is_owner() {
        // Of the owner's branches the trigger does not tell, since a restore brings them as well.
        let (tenant, agent_id, session_id) = (&branch.tenant, &branch.agent_id, &branch.session_id);
        let payload = serde_json::json!({ "fork_position": inherit.then_some(fork) });
        track::note(
            &spi,
            &Deed { what: What::Branch, action: "session_branch", tenant, agent_id, session_id, payload },
        );
    }
    if let Some(seed) = seed
        && let Some(log) = Log::open(&spi, &branch, OnMissing::Error)?
    {
        let draft = Draft { kind: Some(SEED), payload: Some(seed), ..Draft::of(Op::Append) };
        append::append(&log, &[Item { draft, on_conflict: OnConflict::Error, element: None }], None, None)?;
    }
    session::show(&spi, &branch, &mut set);
    Ok(None)
}

impl Point<'_> {
    /// The position behind the point. SE012 if the log has no such entry, or its history no such item.
    fn fork(&self, log: &Log) -> Result<i64, Error> {
        let last_inherited = match self {
            Point::End => return Ok(log.next_position()),
            Point::Target(target) => {
                (log.lineage.first_position()..log.next_position()).contains(target).then_some(*target)
            }
            Point::ItemId(item_id) => {
                let places = item::places(log.spi, See::Now, &log.lineage, item::id_array(&[item_id]));
                let place = places.first().map(|(_, position)| *position);
                place.filter(|place| item::Item::at(log.spi, &log.lineage, &[*place]).iter().any(|item| item.live))
            }
            Point::Tag(tag) => {
                let tags = Some(array(Element::Text, &[Some(text_datum(tag))]));
                let newest = Wanted { tags, newest_first: true, max_rows: Some(1), ..Wanted::ALL };
                let mut found = None;
                history::live_items(See::Now, &log.lineage, &newest, |_, item| {
                    found = Some(item.position());
                    true
                });
                found
            }
        };
        last_inherited.map(|position| position + 1).ok_or_else(|| self.not_found())
    }

    fn not_found(&self) -> Error {
        let (mut target, mut item_id, mut tag) = (None, None, None);
        match self {
            Point::End => {}
            Point::Target(position) => target = Some(*position),
            Point::ItemId(id) => item_id = Some((*id).to_owned()),
            Point::Tag(label) => tag = Some((*label).to_owned()),
        }
        Error::BranchPointNotFound { target, item_id, tag }
    }
}

/// The title with its number among the siblings, of which there are no more while the source is locked.
fn numbered(log: &Log, title: &str) -> String {
    if !title::is_numbered(title) {
        return title.to_owned();
    }
    // As the owner: siblings of other agents count, too.
    let _owner = AsOwner::switch();
    let siblings = SIBLING_TITLES.run(log.spi, See::Latest, &[Some(Datum::from(log.sid()))]);
    title::numbered(title, siblings.iter().filter_map(|row| row.text(0)))
}
