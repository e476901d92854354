//! What a backend remembers of the sessions that it has met: where a session's row lies, and how its log ended. Who uses it has to
//! make sure that it still holds.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::address::Address;
use crate::postgres::direct::{Lock, Tid};

/// How many sessions it remembers at most, in some 100 bytes each.
const SESSIONS: usize = 4096;

/// How the log of a session ended when it was last read or written.
#[derive(Clone, Copy)]
struct End {
    position: i64,
    /// The tid of the row that was written there, and the lock on the session that it was written under.
    written: Option<(Tid, Lock)>,
}

#[derive(Default)]
struct Known {
    /// By the hash of the session's name.
    tids: HashMap<u64, Tid>,
    /// By the session's sid.
    ends: HashMap<i64, End>,
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
}

/// Makes room by forgetting all: who is busy with some sessions has soon met them again.
fn remember<K: Eq + Hash, V>(all: &mut HashMap<K, V>, key: K, value: V) {
    if all.len() >= SESSIONS && !all.contains_key(&key) {
        all.clear();
    }
    all.insert(key, value);
}

fn hash(address: &Address) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&address.tenant, &address.agent_id, &address.session_id).hash(&mut hasher);
    hasher.finish()
}

/// Where the row of the session at an address lay.
pub fn tid(address: &Address) -> Option<Tid> {
    KNOWN.with_borrow(|known| known.tids.get(&hash(address)).copied())
}

pub fn remember_tid(address: &Address, tid: Tid) {
    KNOWN.with_borrow_mut(|known| remember(&mut known.tids, hash(address), tid));
}

/// The position of the last entry that a session held.
pub fn end(sid: i64) -> Option<i64> {
    KNOWN.with_borrow(|known| known.ends.get(&sid).map(|end| end.position))
}

/// Remembers the position of an end that was read.
pub fn remember_end(sid: i64, position: i64) {
    KNOWN.with_borrow_mut(|known| {
        if known.ends.get(&sid).is_none_or(|end| end.position != position) {
            remember(&mut known.ends, sid, End { position, written: None });
        }
    });
}

/// Remembers an end that was written.
pub fn remember_written(sid: i64, position: i64, tid: Tid, lock: Lock) {
    KNOWN.with_borrow_mut(|known| remember(&mut known.ends, sid, End { position, written: Some((tid, lock)) }));
}

/// The end that was written last of all, its position and its row's tid, if nobody has locked the session since. It is forgotten by that:
/// who asks is about to write. Whether it has stayed is seen there.
pub fn take_written(sid: i64, lock: Option<Lock>) -> Option<(i64, Tid)> {
    KNOWN.with_borrow_mut(|known| {
        let end = known.ends.get_mut(&sid)?;
        let (tid, under) = end.written.take()?;
        lock?.follows(under).then_some((end.position, tid))
    })
}

pub fn forget_written(sid: i64) {
    take_written(sid, None);
}
