//! What was found of tables and users, kept until it changes.

use std::cell::RefCell;
use std::rc::Rc;

use pg_sys::{Datum, Oid};
use pgrx::pg_sys;

use super::relation::Open;
use super::shape::Shape;
use crate::postgres::{catalog, invalidation};

/// What was found of the tables, until something about one of them, or about roles, changes.
#[derive(Default)]
struct Found {
    /// How often what was found has been forgotten.
    generation: u64,
    answers: Vec<Answer>,
}

struct Answer {
    shape: &'static Shape,
    table: Oid,
    user: Oid,
    indexes: Option<Rc<[Oid]>>,
}

impl Answer {
    fn is_about(&self, shape: &'static Shape, table: Oid, user: Oid) -> bool {
        std::ptr::eq(self.shape, shape) && self.table == table && self.user == user
    }
}

thread_local! {
    static FOUND: RefCell<Found> = RefCell::default();
}

/// The table's indexes in the order of the shape, or `None` if it takes a statement of the current user.
pub fn indexes(shape: &'static Shape, relation: &Open, table: Oid) -> Option<Rc<[Oid]>> {
    let user = catalog::current_user();
    let (known, generation) = FOUND.with_borrow(|found| {
        let answer = found.answers.iter().find(|answer| answer.is_about(shape, table, user));
        (answer.map(|answer| answer.indexes.clone()), found.generation)
    });
    known.unwrap_or_else(|| {
        let indexes = shape.allows(table, user).then(|| shape.find(relation)).flatten().map(Rc::from);
        FOUND.with_borrow_mut(|found| {
            // What is forgotten meanwhile was not found now.
            if found.generation == generation {
                found.answers.push(Answer { shape, table, user, indexes: indexes.clone() });
            }
        });
        indexes
    })
}

fn forget(concerns: impl Fn(&Answer) -> bool) {
    FOUND.with_borrow_mut(|found| {
        found.answers.retain(|answer| !concerns(answer));
        found.generation += 1;
    });
}

/// Called once, when the library is loaded.
pub fn watch() {
    invalidation::on_change(forget_table, forget_members);
}

unsafe extern "C-unwind" fn forget_table(_: Datum, relation: Oid) {
    forget(|answer| invalidation::concerns(relation, answer.table));
}

unsafe extern "C-unwind" fn forget_members(_: Datum, _: i32, _: u32) {
    forget(|_| true);
}
