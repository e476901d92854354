//! Where a row lies, as somebody has once seen it there.

use pgrx::{itemptr, pg_sys};

/// A line of a table's file. What lies there now may be another row, or none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tid {
    /// The table's file: a rewritten table has another one.
    file: u32,
    block: pg_sys::BlockNumber,
    line: pg_sys::OffsetNumber,
}

impl Tid {
    /// # Safety
    /// The relation is open, and `pointer` is of a row of it.
    pub unsafe fn of(relation: pg_sys::Relation, pointer: pg_sys::ItemPointerData) -> Tid {
        let (block, line) = itemptr::item_pointer_get_both(pointer);
        // SAFETY: by the caller's promise.
        Tid { file: unsafe { file(relation) }, block, line }
    }

    /// The pointer to it, if the relation still has such a line: to read behind the end of a file is an ERROR.
    ///
    /// # Safety
    /// The relation is open.
    pub unsafe fn in_file_of(self, relation: pg_sys::Relation) -> Option<pg_sys::ItemPointerData> {
        // SAFETY: by the caller's promise.
        let is_there = unsafe {
            self.file == file(relation)
                && self.block < pg_sys::RelationGetNumberOfBlocksInFork(relation, pg_sys::ForkNumber::MAIN_FORKNUM)
        };
        is_there.then(|| {
            let mut pointer = pg_sys::ItemPointerData::default();
            itemptr::item_pointer_set_all(&mut pointer, self.block, self.line);
            pointer
        })
    }
}

#[cfg(feature = "pg15")]
unsafe fn file(relation: pg_sys::Relation) -> u32 {
    // SAFETY: by the caller's promise, the relation is open.
    unsafe { (*relation).rd_node.relNode.to_u32() }
}

#[cfg(not(feature = "pg15"))]
unsafe fn file(relation: pg_sys::Relation) -> u32 {
    // SAFETY: as above.
    unsafe { (*relation).rd_locator.relNumber.to_u32() }
}
