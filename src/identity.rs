//! Who is asking: tenant and agent of the transaction, and which tenants a role is bound to.

use std::cell::Cell;
use std::rc::Rc;

use agent_sessions_core::error::Error;
use agent_sessions_core::name;
use pgrx::pg_sys::{Datum, Oid, REGROLEOID, TEXTOID};

use crate::audit::track::{self, What};
use crate::postgres::call::{Call, Returns};
use crate::postgres::catalog;
use crate::postgres::invalidation::{self, Memory};
use crate::postgres::owner::AsOwner;
use crate::postgres::plan::{KeptPlan, See, Spi};
use crate::postgres::raise;
use crate::postgres::setting::{self, Isolation};
use crate::postgres::trigger::{self, Decision, Trigger};
use crate::postgres::value::text_datum;

static BINDINGS: KeptPlan =
    KeptPlan::new(c"select role::pg_catalog.oid, tenant from agent_sessions.tenant_binding", &[]);

static BIND: KeptPlan = KeptPlan::new(
    c"insert into agent_sessions.tenant_binding (role, tenant) values ($1, $2) on conflict (role, tenant) do nothing",
    &[REGROLEOID, TEXTOID],
);

// A dropped role leaves its bindings behind, as numbers that another cluster would take for roles of its own.
static CLEAN: KeptPlan = KeptPlan::new(
    c"delete from agent_sessions.tenant_binding b where not exists ( \
        select from pg_catalog.pg_roles r where r.oid operator(pg_catalog.=) b.role::pg_catalog.oid)",
    &[],
);

static UNBIND: KeptPlan = KeptPlan::new(
    c"delete from agent_sessions.tenant_binding \
      where role operator(pg_catalog.=) $1 and tenant operator(pg_catalog.=) $2",
    &[REGROLEOID, TEXTOID],
);

thread_local! {
    /// The tenants that roles are bound to.
    static BOUND: Memory<Oid, Rc<[String]>> = Memory::default();
    /// The table of bindings, once it was read.
    static BINDING_TABLE: Cell<Oid> = const { Cell::new(Oid::INVALID) };
}

/// Registers what empties the memory of bindings. Once, when the library is loaded.
pub fn watch_bindings() {
    invalidation::on_change(forget_relation, forget_members);
}

unsafe extern "C-unwind" fn forget_relation(_: Datum, relation: Oid) {
    if invalidation::concerns(relation, BINDING_TABLE.get()) {
        forget();
    }
}

unsafe extern "C-unwind" fn forget_members(_: Datum, _: i32, _: u32) {
    forget();
}

fn forget() {
    BOUND.with(|bound| bound.forget(|_| true));
}

/// The tenant of the transaction.
///
/// SE001 if the setting is malformed; SE019 if the session's user or the current user is bound to other tenants. Both are
/// asked, since SET ROLE would escape a binding of either alone.
pub fn tenant() -> Result<String, Error> {
    let tenant = setting::tenant();
    admit(&tenant)?;
    Ok(tenant)
}

/// The agent of the transaction.
pub fn agent() -> String {
    setting::agent()
}

fn admit(tenant: &str) -> Result<(), Error> {
    name::optional("tenant", tenant)?;
    let (session_user, current_user) = (catalog::session_user(), catalog::current_user());
    for role in [session_user, current_user] {
        let bound = bindings_of(role);
        if !bound.is_empty() && !bound.iter().any(|allowed| allowed == tenant) {
            return Err(Error::TenantDenied { tenant: tenant.to_owned(), role: catalog::role_name(role) });
        }
    }
    Ok(())
}

/// The tenants that a role is bound to. The owner of the extension, who may change every binding, is bound to none.
fn bindings_of(role: Oid) -> Rc<[String]> {
    invalidation::receive();
    let find = || {
        // The lock takes in what others have committed, so that the snapshot after it shows it.
        BINDING_TABLE.set(catalog::lock_for_reading(c"tenant_binding"));
        read_bindings(role)
    };
    BOUND.with(|bound| bound.of(role, find))
}

fn read_bindings(role: Oid) -> Rc<[String]> {
    if role == catalog::owner() {
        return Rc::new([]);
    }
    let spi = Spi::connect();
    let _owner = AsOwner::switch();
    BINDINGS
        .run(&spi, See::Committed, &[])
        .iter()
        .filter(|row| row.oid(0).is_some_and(|bound| catalog::is_member(role, bound)))
        .filter_map(|row| row.text(1).map(str::to_owned))
        .collect()
}

pub fn current_tenant(_: &mut Call) -> Returns {
    Ok(Some(text_datum(&tenant()?)))
}

pub fn visible_tenant(_: &mut Call) -> Returns {
    Ok(tenant().ok().as_deref().map(text_datum))
}

pub fn current_agent(_: &mut Call) -> Returns {
    Ok(Some(text_datum(&agent())))
}

pub fn isolated_agent(_: &mut Call) -> Returns {
    Ok(isolated().as_deref().map(text_datum))
}

/// The only agent whose rows are visible, under isolation.
pub fn isolated() -> Option<String> {
    (setting::isolation() == Isolation::Agent).then(agent)
}

/// Whether the policies show a row of that tenant and agent.
pub fn shows(of_tenant: &str, of_agent: &str) -> bool {
    tenant().is_ok_and(|tenant| tenant == of_tenant) && isolated().is_none_or(|agent| agent == of_agent)
}

pub fn tenant_use(call: &mut Call) -> Returns {
    let tenant = call.text().map_or_else(setting::tenant, str::to_owned);
    admit(&tenant)?;
    setting::use_tenant(&tenant);
    Ok(Some(text_datum(&tenant)))
}

pub fn tenant_bind(call: &mut Call) -> Returns {
    change_binding(call, "tenant_bind", &BIND)
}

pub fn tenant_unbind(call: &mut Call) -> Returns {
    change_binding(call, "tenant_unbind", &UNBIND)
}

fn change_binding(call: &mut Call, function: &str, plan: &KeptPlan) -> Returns {
    let role = call.name().ok_or_else(|| Error::invalid("role", "must be given"))?;
    let tenant = call.text().ok_or_else(|| Error::invalid("tenant", "must be given"))?;
    name::optional("tenant", tenant)?;
    if !catalog::is_owner() {
        raise::owner_only(function);
    }
    let role = catalog::role(role);
    let spi = Spi::connect();
    let _owner = AsOwner::switch();
    CLEAN.run(&spi, See::Now, &[]);
    plan.run(&spi, See::Now, &[Some(Datum::from(role)), Some(text_datum(tenant))]);
    let payload = serde_json::json!({ "tenant": tenant });
    track::note_role(&spi, What::Tenant, function, &catalog::role_name(role), &payload)?;
    Ok(Some(Datum::from(0)))
}

pub fn on_tenant_binding<'a>(trigger: &Trigger<'a>) -> trigger::Returns<'a> {
    invalidation::announce(trigger.relation());
    Ok((None, Decision::Skip))
}
