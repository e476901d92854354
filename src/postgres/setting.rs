//! The settings (GUCs) of the extension.

use std::cell::RefCell;
use std::ffi::{CStr, CString};

use agent_sessions_core::limit;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum, pg_sys};

static TENANT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static AGENT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
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

/// Makes the transaction's commit wait until it is on disk, if the client has turned that off.
pub fn commit_durably() {
    if commits_asynchronously() {
        set_local(c"synchronous_commit", c"local");
    }
}

/// Lets a statement commit without waiting for the disk, if it is a transaction of its own and has written nothing yet: what
/// else a transaction writes is not ours to risk.
pub fn commit_asynchronously() {
    // SAFETY: reads the state of the transaction.
    let alone =
        unsafe { !pg_sys::IsTransactionBlock() && pg_sys::GetTopTransactionIdIfAny() == pg_sys::InvalidTransactionId };
    if alone && !commits_asynchronously() {
        RELAXED.set(Some((transaction(), value_of(c"synchronous_commit"))));
        set_local(c"synchronous_commit", c"off");
    }
}

/// Takes [`commit_asynchronously`] back in the same transaction, which writes more than chunks after all.
pub fn commit_as_before() {
    RELAXED.with_borrow(|relaxed| {
        if let Some((relaxed, before)) = relaxed
            && *relaxed == transaction()
            && commits_asynchronously()
        {
            set_local(c"synchronous_commit", before);
        }
    });
}

thread_local! {
    /// The transaction that was let off waiting for the disk, and what the setting was before.
    static RELAXED: RefCell<Option<(i64, CString)>> = const { RefCell::new(None) };
}

/// The transaction's start, which no two transactions of a backend share.
pub fn transaction() -> i64 {
    // SAFETY: reads the state of the transaction.
    unsafe { pg_sys::GetCurrentTransactionStartTimestamp() }
}

fn commits_asynchronously() -> bool {
    // SAFETY: reads a variable of the backend.
    unsafe { pg_sys::synchronous_commit == pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_OFF as i32 }
}

fn value_of(name: &CStr) -> CString {
    // SAFETY: a setting that exists, whose value is a C string.
    unsafe { CStr::from_ptr(pg_sys::GetConfigOption(name.as_ptr(), false, false)).to_owned() }
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
