//! An entry that is to be written, checked as far as that needs no look at the log.

use agent_sessions_core::element::Element;
use agent_sessions_core::error::Error;
use agent_sessions_core::word::{OnConflict, Op};
use agent_sessions_core::{limit, name};
use pgrx::pg_sys::Datum;

use crate::postgres::setting;
use crate::postgres::value::{self, Json};

#[derive(Clone, Copy)]
pub struct Draft<'a> {
    pub op: Op,
    pub kind: Option<&'a str>,
    pub item_id: Option<&'a str>,
    pub tag: Option<&'a str>,
    pub author: Option<&'a str>,
    pub target: Option<i64>,
    pub payload: Option<Json<'a>>,
    /// A jsonb.
    pub attrs: Option<Datum>,
}

/// An item to append, and what to do if its item_id is taken.
pub struct Item<'a> {
    pub draft: Draft<'a>,
    pub on_conflict: OnConflict,
    /// Its index in the batch, which errors name.
    pub element: Option<usize>,
}

impl<'a> Draft<'a> {
    pub fn revise(target: i64, payload: Json<'a>, attrs: Option<Datum>) -> Draft<'a> {
        Draft { payload: Some(payload), attrs, ..Draft::about(Op::Revise, target) }
    }

    pub fn retract(target: i64) -> Draft<'a> {
        Draft::about(Op::Retract, target)
    }

    pub fn retract_from(target: i64) -> Draft<'a> {
        Draft::about(Op::RetractFrom, target)
    }

    /// An entry about another.
    pub fn about(op: Op, target: i64) -> Draft<'a> {
        Draft { target: Some(target), ..Draft::of(op) }
    }

    /// An entry that says no more than what it does.
    pub const fn of(op: Op) -> Draft<'a> {
        Draft { op, target: None, kind: None, item_id: None, tag: None, author: None, payload: None, attrs: None }
    }

    /// The labels of an item: SE001 for one that is empty, too long or holds control characters.
    pub fn check_names(&self) -> Result<(), Error> {
        name::label("kind", self.kind)?;
        name::label("item_id", self.item_id)?;
        name::label("tag", self.tag)?;
        name::label("author", self.author)?;
        position("kept_from", self.target)
    }
}

impl<'a> Item<'a> {
    /// SE001 if the item is a summary whose kept tail would begin behind its own `position`.
    pub fn check_kept_tail(&self, position: i64) -> Result<(), Error> {
        kept_tail(self.draft.op, self.draft.target, position).map_err(|error| match self.element {
            Some(index) => error.in_element(index),
            None => error,
        })
    }

    /// The item of an element of a batch. SE001 or SE018, naming the element.
    pub fn from_element(index: usize, element: &'a Element<'a>, batch: OnConflict) -> Result<Item<'a>, Error> {
        let item = || {
            let draft = Draft {
                op: Op::Append,
                kind: Some(element.kind.as_deref().unwrap_or("message")),
                item_id: element.item_id.as_deref(),
                tag: element.tag.as_deref(),
                author: element.author.as_deref(),
                target: element.kept_from,
                payload: Some(Json::from_part(element.payload.get())),
                attrs: None,
            };
            draft.check_names()?;
            check_size("payload", element.payload.get())?;
            let attrs = element.attrs.map(|attrs| {
                check_size("attrs", attrs.get())?;
                value::jsonb(attrs.get()).map_err(|reason| Error::invalid("attrs", reason))
            });
            let on_conflict = element.on_conflict(batch)?;
            Ok(Item { draft: Draft { attrs: attrs.transpose()?, ..draft }, on_conflict, element: Some(index) })
        };
        item().map_err(|error: Error| error.in_element(index))
    }
}

/// SE018 if a JSON text is larger than the setting `agent_sessions.max_payload_bytes` allows.
pub fn check_size(argument: &'static str, json: &str) -> Result<(), Error> {
    limit::at_most(argument, json.len(), setting::max_payload_bytes())
}

/// SE018 if a jsonb is larger than that.
pub fn check_attrs(attrs: Option<Datum>) -> Result<(), Error> {
    limit::at_most("attrs", value::size(attrs), setting::max_payload_bytes())
}

/// SE001 if an item at `position` is a summary whose kept tail would begin behind it.
pub fn kept_tail(op: Op, kept_from: Option<i64>, position: i64) -> Result<(), Error> {
    match kept_from {
        Some(kept_from) if kept_from > op.last_target(position) => {
            Err(Error::invalid("kept_from", "must not lie behind the summary itself"))
        }
        _ => Ok(()),
    }
}

/// SE001 if a position is negative.
pub fn position(argument: &'static str, position: Option<i64>) -> Result<(), Error> {
    match position {
        Some(position) if position < 0 => Err(Error::invalid(argument, "must not be negative")),
        _ => Ok(()),
    }
}
