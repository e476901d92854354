create function agent_sessions.access_grant(role name, level text) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_access_grant';
comment on function agent_sessions.access_grant(name, text) is
  'Gives a role what reader, writer, auditor or admin needs, and no more. For the extension''s owner. SE001 for another level, 42704 if there is no such role';

create function agent_sessions.access_revoke(role name) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_access_revoke';
comment on function agent_sessions.access_revoke(name) is
  'Takes back all that access_grant gave. For the extension''s owner. 42704 if there is no such role';

create function agent_sessions.access_force_rls(enabled boolean) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_access_force_rls';
comment on function agent_sessions.access_force_rls(boolean) is
  'Makes the policies hold for the tables'' owner too, and remembers it; dumps then need a role with BYPASSRLS. For the extension''s owner';
