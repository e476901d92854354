//! What a function has found out and hands to the trigger of the row that it inserts, to save the trigger the same work.
//!
//! No rule depends on it: a trigger that finds nothing here locks and looks for itself. It is taken by the one row that it
//! names, only by the trigger of the very statement that it was made for and in the same subtransaction, and gone when that
//! statement ends, however that ends.

use std::cell::RefCell;

use crate::postgres::nesting;
use crate::tail::Tail;

/// The locked log that the next row goes to.
#[derive(Clone)]
pub struct Handoff {
    pub sid: i64,
    pub tenant: String,
    pub agent_id: String,
    pub tail: Tail,
}

/// Where in the backend's work a hand-off may be taken.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Scope {
    subtransaction: u32,
    trigger_depth: i32,
}

thread_local! {
    static CURRENT: RefCell<Option<(Scope, Handoff)>> = const { RefCell::new(None) };
}

/// Holds a hand-off for the statement that is run while it lives.
pub struct Offer {
    outer: Option<(Scope, Handoff)>,
}

impl Offer {
    pub fn make(handoff: Handoff) -> Offer {
        // The statement's triggers run one level below the function that makes it.
        let here = Scope { trigger_depth: nesting::trigger_depth() + 1, ..scope() };
        Offer { outer: CURRENT.replace(Some((here, handoff))) }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        CURRENT.set(self.outer.take());
    }
}

fn scope() -> Scope {
    Scope { subtransaction: nesting::subtransaction(), trigger_depth: nesting::trigger_depth() }
}

/// Takes the hand-off if it is for this row and this trigger's call.
pub fn take(sid: i64, position: Option<i64>) -> Option<Handoff> {
    let here = scope();
    let for_this_row = |offered: &Handoff| offered.sid == sid && Some(offered.tail.next_position) == position;
    CURRENT
        .with_borrow_mut(|current| current.take_if(|(scope, offered)| *scope == here && for_this_row(offered)))
        .map(|(_, handoff)| handoff)
}

/// Leaves the log's new tail for the next row of the same statement.
pub fn renew(handoff: Handoff) {
    CURRENT.set(Some((scope(), handoff)));
}

/// Withdraws a hand-off for a log that is written in another way meanwhile.
pub fn withdraw(sid: i64) {
    CURRENT.with_borrow_mut(|current| current.take_if(|(_, offered)| offered.sid == sid));
}
