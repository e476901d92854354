//! The settings (GUCs) of the extension.

use std::cell::Cell;
use std::ffi::{CStr, CString};

use agent_sessions_core::limit;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum, pg_sys};

use super::transaction;

static TENANT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static AGENT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static ACTOR: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static LEASE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static ISOLATION: GucSetting<Isolation> = GucSetting::<Isolation>::new(Isolation::Shared);
static MAX_PAYLOAD: GucSetting<i32> = GucSetting::<i32>::new(limit::DEFAULT_PAYLOAD_BYTES as i32);

#[derive(Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum Isolation {
    #[name = c"shared"]
    Shared,
    #[name = c"agent"]
    Agent,
}

const TENANT_NAME: &CStr = c"agent_sessions.tenant";

pub fn define() {
    GucRegistry::define_string_guc(
        TENANT_NAME,
        c"The tenant whose sessions are visible and written.",
        c"Set it per transaction (SET LOCAL, or tenant_use) behind a pooler.",
        &TENANT,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"agent_sessions.agent",
        c"The agent that is meant where a function's agent_id is left out.",
        c"",
        &AGENT,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"agent_sessions.actor",
        c"Who acts, for the audit trail; the current user when empty.",
        c"",
        &ACTOR,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"agent_sessions.lease",
        c"The leases under which raw SQL writes: a list, separated by commas.",
        c"An entry for the session that is written must be its live lease.",
        &LEASE,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"agent_sessions.isolation",
        c"Whether all of the tenant's sessions are visible, or only those of agent_sessions.agent.",
        c"",
        &ISOLATION,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"agent_sessions.max_payload_bytes",
        c"The largest payload, state or attrs that the functions take.",
        c"",
        &MAX_PAYLOAD,
        1,
        limit::MAX_PAYLOAD_BYTES as i32,
        GucContext::Userset,
        GucFlags::UNIT_BYTE,
    );
    // A misspelt setting is an error, not a rule that silently does not hold.
    // SAFETY: the prefix is a static text.
    unsafe { pg_sys::MarkGUCPrefixReserved(c"agent_sessions".as_ptr()) };
    // SAFETY: the function lives as long as the library, which is never unloaded.
    unsafe { pg_sys::RegisterXactCallback(Some(before_commit), std::ptr::null_mut()) };
}

/// A text that every check of a name refuses.
const NOT_A_NAME: &str = "\u{FFFD}\u{1}";

/// A setting's text. A startup packet may bring one that is no UTF-8: two of those must not become one tenant.
fn text(setting: &'static GucSetting<Option<CString>>) -> String {
    match setting.get().map(CString::into_string) {
        Some(Ok(text)) => text,
        Some(Err(_)) => NOT_A_NAME.to_owned(),
        None => String::new(),
    }
}

pub fn tenant() -> String {
    text(&TENANT)
}

pub fn agent() -> String {
    text(&AGENT)
}

pub fn actor() -> String {
    text(&ACTOR)
}

pub fn leases() -> String {
    text(&LEASE)
}

pub fn isolation() -> Isolation {
    ISOLATION.get()
}

pub fn max_payload_bytes() -> usize {
    MAX_PAYLOAD.get() as usize
}

/// Sets the tenant until the transaction ends.
pub fn use_tenant(tenant: &str) {
    set_local(TENANT_NAME, &CString::new(tenant).expect("a text of PostgreSQL holds no NUL"));
}

/// Makes the transaction's commit wait until it is on disk, here and on the synchronous standbys that the server may have, if
/// the client has turned that off.
pub fn commit_durably() {
    if commits_asynchronously() {
        set_local(c"synchronous_commit", c"on");
    }
}

/// A transaction whose commit need not wait for the disk, if it writes nothing after `wal_end`.
#[derive(Clone, Copy)]
struct Relaxed {
    transaction: i64,
    wal_end: pg_sys::XLogRecPtr,
}

thread_local! {
    static RELAXED: Cell<Option<Relaxed>> = const { Cell::new(None) };
}

/// Runs `write`, and lets the transaction commit without waiting for the disk if all that it writes is written so. What else it
/// writes is not ours to risk.
pub fn committing_asynchronously<T>(write: impl FnOnce() -> T) -> T {
    // SAFETY: reads the state of the transaction.
    let is_first = unsafe { pg_sys::GetTopTransactionIdIfAny() } == pg_sys::InvalidTransactionId;
    let is_alone = is_first || RELAXED.get().is_some_and(is_all_there_is);
    let written = write();
    if is_alone {
        RELAXED.set(Some(Relaxed { transaction: transaction::start(), wal_end: wal_end() }));
    }
    written
}

fn is_all_there_is(relaxed: Relaxed) -> bool {
    relaxed.transaction == transaction::start() && relaxed.wal_end == wal_end()
}

/// The end of what the transaction has written.
fn wal_end() -> pg_sys::XLogRecPtr {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::XactLastRecEnd }
}

/// Decides at the last moment, when there is nothing left to write.
unsafe extern "C-unwind" fn before_commit(event: pg_sys::XactEvent::Type, _: *mut std::ffi::c_void) {
    if event == pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT && RELAXED.take().is_some_and(is_all_there_is) {
        set_local(c"synchronous_commit", c"off");
    }
}

/// Runs `read`, and takes back what it sets: a plain SET by code of others would outlive the call.
pub fn restoring<T>(read: impl FnOnce() -> T) -> T {
    // SAFETY: the level ends here, or by the abort of an ERROR.
    unsafe {
        let level = pg_sys::NewGUCNestLevel();
        let result = read();
        pg_sys::AtEOXact_GUC(false, level);
        result
    }
}

fn commits_asynchronously() -> bool {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::synchronous_commit == pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_OFF as i32 }
}

fn set_local(name: &CStr, value: &CStr) {
    // SAFETY: both texts outlive the call, which copies them.
    unsafe {
        pg_sys::set_config_option(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_LOCAL,
            true,
            0,
            false,
        );
    }
}
