//! Acting as the owner of the tables, for what follows from a rule rather than from the caller's privileges.

use pg_sys::Oid;
use pgrx::pg_sys;

use super::catalog;

/// While it lives, statements run as the tables' owner, as those of PostgreSQL's own referential triggers do.
pub struct AsOwner {
    user: Oid,
    context: i32,
}

impl AsOwner {
    pub fn switch() -> AsOwner {
        let owner = catalog::owner();
        let (mut user, mut context) = (Oid::INVALID, 0);
        // SAFETY: the drop below, or the abort of an unwinding ERROR, restores both.
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
            pg_sys::SetUserIdAndSecContext(
                owner,
                context | (pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_NOFORCE_RLS) as i32,
            );
        }
        AsOwner { user, context }
    }
}

/// Whether statements run as the owner at this moment.
pub fn is_acting() -> bool {
    let (mut user, mut context) = (Oid::INVALID, 0);
    // SAFETY: reads two variables of the backend.
    unsafe { pg_sys::GetUserIdAndSecContext(&mut user, &mut context) };
    context & pg_sys::SECURITY_NOFORCE_RLS as i32 != 0
}

impl Drop for AsOwner {
    fn drop(&mut self) {
        // SAFETY: restores what switch has found.
        unsafe { pg_sys::SetUserIdAndSecContext(self.user, self.context) };
    }
}
