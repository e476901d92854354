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

/// A transaction that need not wait for the disk.
struct Relaxed {
    transaction: i64,
    /// The setting before.
    before: CString,
    /// The command that comes after the last write that is ours.
    command: pg_sys::CommandId,
}

thread_local! {
    static RELAXED: RefCell<Option<Relaxed>> = const { RefCell::new(None) };
}

/// Runs `write`, and lets the transaction commit without waiting for the disk if that is all that it writes: a statement of its
/// own that is a plain SELECT, which calls this function itself. What else a transaction writes is not ours to risk.
pub fn committing_asynchronously<T>(write: impl FnOnce() -> T) -> T {
    // SAFETY: reads the state of the transaction.
    let is_first = unsafe { pg_sys::GetTopTransactionIdIfAny() } == pg_sys::InvalidTransactionId;
    let alone = is_first || RELAXED.with_borrow(|relaxed| relaxed.as_ref().is_some_and(is_all_there_is));
    if !alone || !is_called_by_a_plain_select() {
        return write();
    }
    let written = write();
    if !commits_asynchronously() {
        let before = value_of(c"synchronous_commit");
        RELAXED.set(Some(Relaxed { transaction: transaction(), before, command: 0 }));
        set_local(c"synchronous_commit", c"off");
    }
    let command = next_command();
    RELAXED.with_borrow_mut(|relaxed| relaxed.iter_mut().for_each(|relaxed| relaxed.command = command));
    written
}

/// Whether the transaction that was relaxed has written nothing more.
fn is_all_there_is(relaxed: &Relaxed) -> bool {
    relaxed.transaction == transaction() && relaxed.command == next_command()
}

/// The command that comes next; another one than before if there was a write in between.
fn next_command() -> pg_sys::CommandId {
    // SAFETY: the counter moves on only if the current command has written something, which is then visible to the next.
    unsafe {
        pg_sys::CommandCounterIncrement();
        pg_sys::GetCurrentCommandId(false)
    }
}

unsafe extern "C-unwind" {
    /// PostgreSQL's own; what pgrx calls by that name is a wrapper with another address.
    #[link_name = "ParamsErrorCallback"]
    fn params_error_callback(argument: *mut std::ffi::c_void);
}

fn is_called_by_a_plain_select() -> bool {
    // SAFETY: the portal that runs is valid; its statements are planned. SPI, PL/pgSQL and functions in SQL put a callback on
    // the stack while they run a statement; at the top there is at most the one that shows a portal's parameters.
    unsafe {
        let callback = pg_sys::error_context_stack;
        let is_at_the_top = callback.is_null()
            || ((*callback).previous.is_null()
                && (*callback).callback.is_some_and(|called| {
                    std::ptr::fn_addr_eq(called, params_error_callback as unsafe extern "C-unwind" fn(_))
                }));
        let portal = pg_sys::ActivePortal;
        if !is_at_the_top || pg_sys::IsTransactionBlock() || portal.is_null() {
            return false;
        }
        let statements = (*portal).stmts;
        !statements.is_null()
            && (0..(*statements).length as usize).all(|at| {
                let statement = (*(*statements).elements.add(at)).ptr_value.cast::<pg_sys::PlannedStmt>();
                (*statement).commandType == pg_sys::CmdType::CMD_SELECT && !(*statement).hasModifyingCTE
            })
    }
}

/// Before a transaction commits: waits for the disk after all if more was written than what may be lost.
unsafe extern "C-unwind" fn before_commit(event: pg_sys::XactEvent::Type, _: *mut std::ffi::c_void) {
    if event == pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT
        && let Some(relaxed) = RELAXED.take()
        && relaxed.transaction == transaction()
        && !is_all_there_is(&relaxed)
    {
        set_local(c"synchronous_commit", &relaxed.before);
    }
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
