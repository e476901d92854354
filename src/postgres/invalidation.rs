//! Forgetting what a backend has read, when another has changed it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::Hash;

use pg_sys::{Datum, Oid};
use pgrx::pg_sys;

/// What a backend has found out, until it is told to forget it.
pub struct Memory<K, V> {
    answers: RefCell<HashMap<K, V>>,
    /// How often it was told.
    generation: Cell<u64>,
}

impl<K, V> Default for Memory<K, V> {
    fn default() -> Memory<K, V> {
        Memory { answers: RefCell::default(), generation: Cell::default() }
    }
}

impl<K: Copy + Eq + Hash, V: Clone> Memory<K, V> {
    /// The answer to `key`. What is told to be forgotten while it is looked for must not be remembered: it is looked for again.
    pub fn of(&self, key: K, find: impl Fn() -> V) -> V {
        loop {
            if let Some(known) = self.answers.borrow().get(&key) {
                return known.clone();
            }
            let generation = self.generation.get();
            let answer = find();
            if self.generation.get() == generation {
                self.answers.borrow_mut().insert(key, answer);
            }
        }
    }

    pub fn forget(&self, concerns: impl Fn(&K) -> bool) {
        self.answers.borrow_mut().retain(|key, _| !concerns(key));
        self.generation.set(self.generation.get() + 1);
    }
}

/// Has the first function called whenever a relation's cache entry is invalidated, by any backend, and the second whenever
/// roles' memberships are.
///
/// Registered once, when the library is loaded: PostgreSQL keeps no way to take a callback back.
pub fn on_change(
    forget_relation: unsafe extern "C-unwind" fn(Datum, Oid),
    forget_members: unsafe extern "C-unwind" fn(Datum, i32, u32),
) {
    // SAFETY: both functions live as long as the library, which is never unloaded.
    unsafe {
        pg_sys::CacheRegisterRelcacheCallback(Some(forget_relation), Datum::from(0));
        pg_sys::CacheRegisterSyscacheCallback(
            pg_sys::SysCacheIdentifier::AUTHMEMROLEMEM as i32,
            Some(forget_members),
            Datum::from(0),
        );
    }
}

/// Has a function called whenever a table or a schema may have another name, or is new, or gone. As [`on_change`].
pub fn on_rename(forget_names: unsafe extern "C-unwind" fn(Datum, i32, u32)) {
    for cache in [pg_sys::SysCacheIdentifier::RELNAMENSP, pg_sys::SysCacheIdentifier::NAMESPACENAME] {
        // SAFETY: as there.
        unsafe { pg_sys::CacheRegisterSyscacheCallback(cache as i32, Some(forget_names), Datum::from(0)) };
    }
}

/// Takes in what other backends have announced. A lock that is taken does that as well, but not one that the transaction holds
/// already.
pub fn receive() {
    // SAFETY: as where a lock is taken. If nothing was announced, it reads one flag.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

/// Whether an invalidation of `told` concerns `relation`; one of no relation concerns all.
pub fn concerns(told: Oid, relation: Oid) -> bool {
    told == Oid::INVALID || told == relation
}

/// Invalidates a relation's cache entry in every backend when the transaction commits, and in this one at once.
pub fn announce(relation: Oid) {
    // SAFETY: a relation that is open in the calling trigger.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(relation) };
}
