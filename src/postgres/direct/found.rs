//! What was found of tables and users, kept until it changes.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use pg_sys::{Datum, Oid};
use pgrx::pg_sys;

use super::relation::Open;
use super::shape::Shape;
use crate::postgres::catalog;
use crate::postgres::invalidation::{self, Memory};

/// What is asked: whether a table is of a shape, and a user may do what that is for. There is one of each shape.
#[derive(Clone, Copy)]
struct Question {
    shape: &'static Shape,
    table: Oid,
    user: Oid,
}

impl PartialEq for Question {
    fn eq(&self, other: &Question) -> bool {
        std::ptr::eq(self.shape, other.shape) && self.table == other.table && self.user == other.user
    }
}

impl Eq for Question {}

impl Hash for Question {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (std::ptr::from_ref(self.shape), self.table, self.user).hash(state);
    }
}

thread_local! {
    static FOUND: Memory<Question, Option<Rc<[Oid]>>> = Memory::default();
}

/// The table's indexes in the order of the shape, or `None` if it takes a statement of the current user.
pub fn indexes(shape: &'static Shape, relation: &Open, table: Oid) -> Option<Rc<[Oid]>> {
    let user = catalog::current_user();
    let find = || shape.allows(table, user).then(|| shape.find(relation)).flatten().map(Rc::from);
    FOUND.with(|found| found.of(Question { shape, table, user }, find))
}

/// Called once, when the library is loaded.
pub fn watch() {
    invalidation::on_change(forget_table, forget_members);
}

unsafe extern "C-unwind" fn forget_table(_: Datum, relation: Oid) {
    FOUND.with(|found| found.forget(|question| invalidation::concerns(relation, question.table)));
}

unsafe extern "C-unwind" fn forget_members(_: Datum, _: i32, _: u32) {
    FOUND.with(|found| found.forget(|_| true));
}
