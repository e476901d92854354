//! What the engine asks of the catalogs: roles, and who owns the tables.

use std::ffi::CStr;

use pg_sys::{Datum, Oid};
use pgrx::pg_sys;

use super::invalidation::{self, Memory};

/// The current user.
pub fn current_user() -> Oid {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::GetUserId() }
}

/// The user that the client acts as, whoever a function or the engine acts as meanwhile.
pub fn acting_user() -> Oid {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::GetOuterUserId() }
}

/// The user that the session was authenticated or authorised as.
pub fn session_user() -> Oid {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::GetSessionUserId() }
}

/// The owner of the extension's tables.
pub fn owner() -> Oid {
    // SAFETY: a syscache look-up; the tuple is released before the function returns.
    unsafe {
        let relation = relation(c"session");
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as i32, pg_sys::Datum::from(relation));
        assert!(!tuple.is_null(), "agent_sessions.session does not exist");
        let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_class>();
        let owner = (*form).relowner;
        pg_sys::ReleaseSysCache(tuple);
        owner
    }
}

thread_local! {
    /// The tables by name, until a table or a schema is renamed, made or dropped. Two look-ups are 2 700 of an append's 80 000
    /// instructions.
    static TABLES: Memory<&'static CStr, Oid> = Memory::default();
}

/// Called once, when the library is loaded.
pub fn watch() {
    invalidation::on_rename(forget_tables);
}

unsafe extern "C-unwind" fn forget_tables(_: Datum, _: i32, _: u32) {
    TABLES.with(|tables| tables.forget(|_| true));
}

/// A table of the extension, or [`Oid::INVALID`] if it has none of that name.
pub fn relation(name: &'static CStr) -> Oid {
    // SAFETY: syscache look-ups.
    let find = || unsafe {
        let schema = pg_sys::get_namespace_oid(c"agent_sessions".as_ptr(), false);
        pg_sys::get_relname_relid(name.as_ptr(), schema)
    };
    TABLES.with(|tables| tables.of(name, find))
}

/// A table of the extension, locked until the transaction ends; before that, the backend takes in what others have changed.
pub fn lock_for_reading(name: &'static CStr) -> Oid {
    let relation = relation(name);
    // SAFETY: the lock is released by the end of the transaction.
    unsafe { pg_sys::LockRelationOid(relation, pg_sys::AccessShareLock as i32) };
    relation
}

/// Whether the current user is the tables' owner, or may act as it.
pub fn is_owner() -> bool {
    // SAFETY: syscache look-ups.
    unsafe { pg_sys::has_privs_of_role(current_user(), owner()) }
}

/// Whether the policies of a table hold for the current user: not for the owner, unless they are forced, nor for superusers.
pub fn is_bound_by_policies(relation: Oid) -> bool {
    // SAFETY: syscache look-ups.
    let active = unsafe { pg_sys::check_enable_rls(relation, Oid::INVALID, true) };
    active == pg_sys::CheckEnableRlsResult::RLS_ENABLED as i32
}

/// Whether `member` is `role` or a member of it. A superuser is no member by being one.
pub fn is_member(member: Oid, role: Oid) -> bool {
    // SAFETY: syscache look-ups.
    unsafe { pg_sys::is_member_of_role_nosuper(member, role) }
}

/// The role of that name; 42704 if there is none.
pub fn role(name: &CStr) -> Oid {
    // SAFETY: a syscache look-up.
    unsafe { pg_sys::get_role_oid(name.as_ptr(), false) }
}

/// A role's name, for people.
pub fn role_name(role: Oid) -> String {
    // SAFETY: returns a C string, or NULL for a role that is gone.
    unsafe {
        let name = pg_sys::GetUserNameFromId(role, true);
        if name.is_null() { role.to_string() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
    }
}

/// Whether all statements of the transaction see one snapshot: REPEATABLE READ and SERIALIZABLE.
pub fn one_snapshot() -> bool {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 }
}

/// The name as an identifier, quoted where it has to be.
pub fn quoted(name: &CStr) -> String {
    // SAFETY: returns the name itself or a new C string.
    unsafe { CStr::from_ptr(pg_sys::quote_identifier(name.as_ptr())).to_string_lossy().into_owned() }
}
