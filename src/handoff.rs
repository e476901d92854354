//! What a function has found out and hands to the trigger of the row that it inserts, to save the trigger the same work.
//!
//! No rule depends on it: a trigger that finds nothing here locks and looks for itself. It is taken by the one row that it
//! names, and gone when the statement that it was made for ends, however that ends.

use std::cell::RefCell;

use crate::tail::Tail;

/// The locked log that the next row goes to.
#[derive(Clone)]
pub struct Handoff {
    pub sid: i64,
    pub tenant: String,
    pub agent_id: String,
    pub tail: Tail,
}

thread_local! {
    static CURRENT: RefCell<Option<Handoff>> = const { RefCell::new(None) };
}

/// Holds a hand-off for the statement that is run while it lives.
pub struct Offer {
    outer: Option<Handoff>,
}

impl Offer {
    pub fn make(handoff: Handoff) -> Offer {
        Offer { outer: CURRENT.replace(Some(handoff)) }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        CURRENT.set(self.outer.take());
    }
}

/// Takes the hand-off if it is for this row.
pub fn take(sid: i64, position: Option<i64>) -> Option<Handoff> {
    CURRENT.with_borrow_mut(|current| {
        current.take_if(|offered| offered.sid == sid && Some(offered.tail.next_position) == position)
    })
}

/// Leaves the log's new tail for the next row of the same statement.
pub fn renew(handoff: Handoff) {
    CURRENT.set(Some(handoff));
}
