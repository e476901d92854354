//! The rules of `session_item`, as triggers: they hold for every statement that writes it.

use agent_sessions_core::chain::names_erased;
use agent_sessions_core::digest::{self, Digest, Link};
use agent_sessions_core::error::Error;
use agent_sessions_core::limit;
use agent_sessions_core::name;
use agent_sessions_core::word::Op;
use pgrx::pg_sys::{INT8OID, TEXTOID};

use crate::draft;
use crate::handoff::{self, Handoff};
use crate::head::{self, Head};
use crate::history;
use crate::identity;
use crate::item::{self, Item};
use crate::item_table::column;
use crate::log::Log;
use crate::postgres::catalog;
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::trigger::{Decision, Event, Returns, Trigger, Tuple};
use crate::postgres::value::{self, Json, clock};
use crate::tail::Tail;

// Of a session that is hidden, no more is kept than branches read, and what explains that.
static KEEPS: KeptPlan = KeptPlan::new(
    c"select from agent_sessions.session s \
      where s.sid operator(pg_catalog.=) $1 and s.base_position operator(pg_catalog.<=) $2 \
        and (s.deleted_at is null or $3 operator(pg_catalog.=) any (array['erase', 'trim']) or exists ( \
          select from agent_sessions.session b \
          where b.branched_from operator(pg_catalog.=) s.sid and b.fork_position operator(pg_catalog.>) b.base_position \
            and b.fork_position operator(pg_catalog.>) $2))",
    &[INT8OID, INT8OID, TEXTOID],
);

static ERASURES: KeptPlan = KeptPlan::new(
    c"select i.target, i.payload from agent_sessions.session_item i \
      where i.sid operator(pg_catalog.=) $1 and i.op operator(pg_catalog.=) 'erase' \
        and i.position operator(pg_catalog.>) $2 and i.target operator(pg_catalog.=) any (array[$2, $3])",
    &[INT8OID, INT8OID, INT8OID],
);

/// Gives an entry its place in the chain, or checks the one that it brings.
pub fn on_item_insert<'a>(trigger: &Trigger<'a>) -> Returns<'a> {
    let mut row = trigger.row(column::TYPES);
    let sid = row.int8(column::SID).ok_or_else(|| Error::invalid("sid", "must be given"))?;
    if let Some(handed) = handoff::take(sid, row.int8(column::POSITION)) {
        let digest = link(&mut row, &handed.tenant, &handed.agent_id, handed.tail)?;
        handoff::renew(Handoff { tail: handed.tail.after(digest), ..handed });
        return Ok((Some(row), Decision::Write));
    }
    check(&mut row)?;
    handoff::withdraw(sid);
    let spi = Spi::connect();
    if is_full(&row) && catalog::is_owner() {
        return restore(&spi, sid, row);
    }
    write(&spi, sid, row)
}

/// An entry that a raw statement brings: as the functions would write it.
fn write<'a>(spi: &Spi, sid: i64, mut row: Tuple<'a>) -> Returns<'a> {
    let op = Op::parse(row.text(column::OP).unwrap_or_default())?;
    if matches!(op, Op::Trim | Op::Erase) && !catalog::is_owner() {
        return Err(Error::AppendOnly {
            object: "session_item",
            reason: "entries are trimmed and erased by functions",
        });
    }
    if op.has_payload() && row.datum(column::PAYLOAD).is_none() {
        return Err(Error::invalid("payload", "must be given"));
    }
    if !catalog::is_owner() {
        // Not a matter of privileges alone: nobody backdates an entry.
        row.clear(column::CREATED_AT);
        row.clear(column::SALT);
    }
    // SE019 before the look-up: it must not tell whether there is such a session.
    identity::tenant()?;
    let Some(log) = Head::lock_by_sid(spi, sid).and_then(|head| Log::of(spi, head)) else {
        return Err(head::unknown(sid));
    };
    if is_settled(&log, op, &mut row)? {
        return Ok((None, Decision::Skip));
    }
    log.head.admit(None)?;
    log.expect(row.int8(column::POSITION))?;
    link(&mut row, &log.head.tenant, &log.head.agent_id, log.tail())?;
    log.head.note_activity();
    Ok((Some(row), Decision::Write))
}

/// A full row of the owner's: what a restore brings, in any order of tables and without a head, or a copy of what a branch
/// inherits. Without the head of its own log an entry is judged by its content alone, its link by session_verify.
fn restore<'a>(spi: &Spi, sid: i64, mut row: Tuple<'a>) -> Returns<'a> {
    let position = row.int8(column::POSITION).unwrap_or_default();
    if let Some(head) = Head::lock_by_sid(spi, sid).filter(|head| position >= head.origin.first_position())
        && let Some(tail) = Tail::of(spi, &head, None)
    {
        head.admit(None)?;
        if position != tail.next_position {
            return Err(Error::PositionConflict { expected: position, actual: tail.next_position });
        }
        link(&mut row, &head.tenant, &head.agent_id, tail)?;
    } else {
        content(&mut row)?;
    }
    Ok((Some(row), Decision::Write))
}

/// Whether the row brings every column that the engine sets; an erased entry has no salt.
fn is_full(row: &Tuple) -> bool {
    use column::*;
    let set = [POSITION, TENANT, AGENT_ID, OP, CONTENT_DIGEST, DIGEST, CREATED_AT];
    set.iter().all(|&column| row.datum(column).is_some()) && (row.datum(SALT).is_some() || row.datum(PAYLOAD).is_none())
}

/// Names and sizes, and the words that a client may leave out; before anything is locked.
fn check(row: &mut Tuple) -> Result<(), Error> {
    use column::*;
    if row.datum(OP).is_none() {
        row.set_text(OP, Op::Append.as_str());
    }
    let op = Op::parse(row.text(OP).unwrap_or_default())?;
    if op.is_item() && row.datum(KIND).is_none() {
        row.set_text(KIND, "message");
    }
    for (name, column) in [("kind", KIND), ("item_id", ITEM_ID), ("tag", TAG), ("author", AUTHOR)] {
        let label = row.text(column);
        name::label(name, label)?;
        if label.is_some() && !op.is_item() {
            return Err(Error::invalid(name, "belongs to an item, not to an entry about another"));
        }
    }
    if !op.is_item() && row.datum(TARGET).is_none() {
        return Err(Error::invalid("target", "must be given"));
    }
    for (name, column) in [("payload", PAYLOAD), ("attrs", ATTRS)] {
        if !op.has_payload() && row.datum(column).is_some() {
            return Err(Error::invalid(name, "must not be given with a retract"));
        }
    }
    draft::position("target", row.int8(TARGET))?;
    draft::position("position", row.int8(POSITION))?;
    limit::at_most("payload", value::size(row.datum(PAYLOAD)), limit::MAX_PAYLOAD_BYTES)?;
    limit::at_most("attrs", value::size(row.datum(ATTRS)), limit::MAX_PAYLOAD_BYTES)
}

/// Whether the log already says what the entry would: a replay, a revision to the same content, a second retract.
/// SE010 for an item_id with other content, SE011 for a target that is no item.
fn is_settled(log: &Log, op: Op, row: &mut Tuple) -> Result<bool, Error> {
    let target = row.int8(column::TARGET).unwrap_or_default();
    match op {
        Op::Append | Op::Open => {
            if let Some(id) = row.text(column::ITEM_ID)
                && let Some((_, position)) = item::places(log.spi, See::Now, &log.lineage, item::id_array(&[id])).pop()
            {
                return match Item::find(log.spi, &log.lineage, position)?.is_replayed_by(&as_draft(op, row)) {
                    true => Ok(true),
                    false => Err(Error::ItemIdReused { item_id: id.to_owned(), position }),
                };
            }
            draft::kept_tail(op, row.int8(column::TARGET), log.next_position())?;
            Ok(false)
        }
        Op::Revise => {
            let item = Item::find(log.spi, &log.lineage, target)?;
            let (payload, attrs) = (as_draft(op, row).payload, row.datum(column::ATTRS));
            if let (None, Some(kept)) = (attrs, item.attrs) {
                row.set_jsonb(column::ATTRS, kept);
            }
            Ok(payload.is_some_and(|payload| item.shows(payload, attrs) && !item.open))
        }
        Op::Retract => Ok(!Item::find(log.spi, &log.lineage, target)?.live),
        Op::RetractFrom => Ok(history::count_from(See::Now, &log.lineage, target) == 0),
        Op::Trim | Op::Erase => Ok(false),
    }
}

fn as_draft<'a>(op: Op, row: &Tuple<'a>) -> draft::Draft<'a> {
    draft::Draft {
        op,
        kind: row.text(column::KIND),
        item_id: row.text(column::ITEM_ID),
        tag: row.text(column::TAG),
        author: row.text(column::AUTHOR),
        target: row.int8(column::TARGET),
        // SAFETY: the column is a json.
        payload: row.datum(column::PAYLOAD).map(|datum| unsafe { Json::from_datum(datum) }),
        attrs: row.datum(column::ATTRS),
    }
}

/// Fills in what the engine sets, and refuses what is given and differs (SE017). Returns the entry's digest.
pub fn link(row: &mut Tuple, tenant: &str, agent_id: &str, tail: Tail) -> Result<Digest, Error> {
    use column::*;
    row.set_int8(POSITION, tail.next_position);
    for (name, column, owned) in [("tenant", TENANT, tenant), ("agent_id", AGENT_ID, agent_id)] {
        match row.text(column) {
            Some(given) if given != owned => return Err(Error::invalid(name, "is not the session's")),
            Some(_) => {}
            None => row.set_text(column, owned),
        }
    }
    if row.datum(CREATED_AT).is_none() {
        row.set_int8(CREATED_AT, clock());
    }
    let content = content(row)?;
    let digest = Link {
        position: tail.next_position,
        op: row.text(OP).unwrap_or_default(),
        kind: row.text(KIND),
        item_id: row.text(ITEM_ID),
        tag: row.text(TAG),
        author: row.text(AUTHOR),
        target: row.int8(TARGET),
        created_at: row.int8(CREATED_AT).unwrap_or_default(),
    }
    .digest(&tail.previous, &content);
    demand(row, "digest", DIGEST, &digest)?;
    Ok(digest)
}

/// The digest of the content, with a new salt where none is given. An erased entry keeps the digest that it brings.
fn content(row: &mut Tuple) -> Result<Digest, Error> {
    use column::*;
    if row.datum(SALT).is_none() {
        if let Some(kept) = row.bytes(CONTENT_DIGEST).and_then(value::digest)
            && row.datum(PAYLOAD).is_none()
            && row.datum(ATTRS).is_none()
        {
            return Ok(kept);
        }
        row.set_uuid(SALT, uuid::Uuid::new_v4().into_bytes());
    }
    let salt = row.uuid(SALT).unwrap_or_default();
    let content = digest::content(&salt, row.text(PAYLOAD), row.jsonb_text(ATTRS));
    demand(row, "content_digest", CONTENT_DIGEST, &content)?;
    Ok(content)
}

/// Sets a digest, or refuses another one that the row brings.
fn demand(row: &mut Tuple, name: &'static str, column: usize, digest: &Digest) -> Result<(), Error> {
    match row.bytes(column) {
        Some(given) if given != digest => {
            Err(Error::DigestMismatch { column: name, position: row.int8(column::POSITION).unwrap_or_default() })
        }
        Some(_) => Ok(()),
        None => {
            row.set_bytes(column, digest);
            Ok(())
        }
    }
}

/// Touches the sessions that the statement has appended to by raw SQL; a BEFORE trigger must not write other rows.
pub fn on_items_inserted<'a>(_: &Trigger<'a>) -> Returns<'a> {
    head::touch_noted();
    Ok((None, Decision::Skip))
}

/// What an entry about another says: which session's, where it stands, what it does, and to which position.
pub struct Closing {
    pub sid: i64,
    pub position: i64,
    pub op: Op,
    pub target: i64,
}

/// The entry that an AFTER trigger was called for; its constraints have been checked.
pub fn closing(trigger: &Trigger) -> Result<Closing, Error> {
    let row = trigger.row(column::TYPES);
    Ok(Closing {
        sid: row.int8(column::SID).unwrap_or_default(),
        position: row.int8(column::POSITION).unwrap_or_default(),
        op: Op::parse(row.text(column::OP).unwrap_or_default())?,
        target: row.int8(column::TARGET).unwrap_or_default(),
    })
}

/// No entry changes but to lose a content that an erase entry names, as the owner, as whom the engine erases. None goes while
/// its session is there, unless it is below the base, or the session is hidden and no branch reads it.
pub fn on_item_change<'a>(trigger: &Trigger<'a>) -> Returns<'a> {
    if trigger.event() == Event::Delete {
        let row = trigger.row(column::TYPES);
        let spi = Spi::connect();
        let _owner = AsOwner::switch();
        let entry = [row.datum(column::SID), row.datum(column::POSITION), row.datum(column::OP)];
        if KEEPS.run(&spi, See::Latest, &entry).len() == 0 {
            return Ok((None, Decision::Write));
        }
    }
    if trigger.event() == Event::Update
        && catalog::is_owner()
        && is_erased(&trigger.row(column::TYPES), &trigger.new_row(column::TYPES))
    {
        return Ok((Some(trigger.new_row(column::TYPES)), Decision::Write));
    }
    Err(Error::AppendOnly { object: "session_item", reason: "an entry is changed or removed by a further entry" })
}

/// Whether an update leaves of a row all but its content, and an erase entry of its log says so.
fn is_erased(old: &Tuple, new: &Tuple) -> bool {
    use column::*;
    let words = [SID, POSITION, TARGET, CREATED_AT];
    let bytes = [TENANT, AGENT_ID, OP, KIND, ITEM_ID, TAG, AUTHOR, CONTENT_DIGEST, DIGEST];
    let same = words.iter().all(|&column| new.same_word(old, column))
        && bytes.iter().all(|&column| new.same_bytes(old, column));
    let gone = [PAYLOAD, ATTRS, SALT].iter().all(|&column| new.datum(column).is_none());
    let about = if old.text(OP) == Some(Op::Revise.as_str()) { old.datum(TARGET) } else { None };
    let position = old.int8(POSITION).unwrap_or_default();
    let named = || {
        let spi = Spi::connect();
        let erasures = ERASURES.run(&spi, See::Latest, &[old.datum(SID), old.datum(POSITION), about]);
        erasures.iter().any(|row| names_erased(row.int8(0), row.text(1), position))
    };
    same && gone && named()
}

/// No log, no list of sessions and no trail is emptied at once.
pub fn on_truncate<'a>(_: &Trigger<'a>) -> Returns<'a> {
    Err(Error::AppendOnly { object: "the table", reason: "TRUNCATE would remove what a chain proves" })
}
