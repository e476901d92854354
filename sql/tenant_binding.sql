create table agent_sessions.tenant_binding (
  role regrole not null,
  tenant text collate "C" not null,
  primary key (role, tenant)
);

comment on table agent_sessions.tenant_binding is 'The tenants that a role, and every member of it, is bound to; a role without a binding may use any tenant';
comment on column agent_sessions.tenant_binding.role is 'The bound role; it keeps its binding when it is renamed';
comment on column agent_sessions.tenant_binding.tenant is 'A tenant that the role may use';

create function agent_sessions.on_tenant_binding() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_tenant_binding';
comment on function agent_sessions.on_tenant_binding() is 'Makes every backend forget the bindings that it has read';

-- By row: logical replication fires no triggers of statements.
create trigger forget after insert or update or delete on agent_sessions.tenant_binding
for each row execute function agent_sessions.on_tenant_binding();
create trigger forget_all after truncate on agent_sessions.tenant_binding
for each statement execute function agent_sessions.on_tenant_binding();

-- ALWAYS: bindings that arrive by logical replication count, too
alter table agent_sessions.tenant_binding enable always trigger forget;
alter table agent_sessions.tenant_binding enable always trigger forget_all;
