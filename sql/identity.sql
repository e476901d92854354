-- Who is asking: the settings of the transaction, as policies and functions read them.

create function agent_sessions.current_tenant() returns text
language c stable parallel safe as 'MODULE_PATHNAME', 'agent_sessions_current_tenant';
comment on function agent_sessions.current_tenant() is
  'The setting agent_sessions.tenant, '''' when unset. SE019 if the session''s user or the current user is bound to other tenants';

create function agent_sessions.visible_tenant() returns text
language c stable parallel safe as 'MODULE_PATHNAME', 'agent_sessions_visible_tenant';
comment on function agent_sessions.visible_tenant() is
  'current_tenant(), or NULL where that is an error. What policies and views ask: an error that comes with the first row would tell that there is one';

create function agent_sessions.current_agent() returns text
language c stable parallel safe as 'MODULE_PATHNAME', 'agent_sessions_current_agent';
comment on function agent_sessions.current_agent() is 'The setting agent_sessions.agent, '''' when unset';

create function agent_sessions.isolated_agent() returns text
language c stable parallel safe as 'MODULE_PATHNAME', 'agent_sessions_isolated_agent';
comment on function agent_sessions.isolated_agent() is
  'The only agent whose rows are visible: current_agent() under agent_sessions.isolation = agent, else NULL';

create function agent_sessions.tenant_use(tenant text) returns text
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_tenant_use';
comment on function agent_sessions.tenant_use(text) is
  'Sets the tenant until the transaction ends, and returns it; usable in FROM of the statement that needs it. NULL: the one that is set. SE001 if malformed, SE019 if not allowed';

create function agent_sessions.tenant_bind(role name, tenant text) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_tenant_bind';
comment on function agent_sessions.tenant_bind(name, text) is
  'Binds a role and all its members to a tenant, besides those that it is bound to already. For the extension''s owner. SE001 if malformed, 42704 if there is no such role';

create function agent_sessions.tenant_unbind(role name, tenant text) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_tenant_unbind';
comment on function agent_sessions.tenant_unbind(name, text) is
  'Removes a binding; a role without any may use every tenant. For the extension''s owner. 42704 if there is no such role';
