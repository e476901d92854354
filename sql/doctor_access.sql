-- Findings about who may do what.

create view agent_sessions.finding_ownership with (security_invoker = true) as
with extension as (
  select e.extowner as owner, r.rolname as owner_name from pg_extension e join pg_roles r on r.oid = e.extowner
  where e.extname = 'agent_sessions'
)
select 'ownership' as check_name, 'fail' as severity, format('%s %s is %s''s, not %s''s', o.kind, o.name, o.holder::regrole, owner_name) as finding,
  format(E'-- as a superuser\nalter %s %s owner to %I;', o.kind, o.name, owner_name) as remedy,
  1 as step, null::timestamptz as since
from agent_sessions.schema_object o, extension
where o.holder <> owner and not o.is_c and not o.follows
union all
select 'ownership', 'fail', format('%s cannot hand on %s', owner_name, o.name),
  format(E'-- as a superuser\ngrant execute on function %s to %I with grant option;', o.name, owner_name), 1, null
from agent_sessions.schema_object o, extension
where o.is_c and not o.is_trigger and not has_function_privilege(owner, o.oid, 'execute with grant option');
comment on view agent_sessions.finding_ownership is 'Internal, for doctor(): what the extension''s owner does not own, or cannot hand on';

create view agent_sessions.finding_access with (security_invoker = true) as
with extension as (
  select e.extowner as owner, r.rolname as owner_name from pg_extension e join pg_roles r on r.oid = e.extowner
  where e.extname = 'agent_sessions'
), granted as (
  select o.kind, o.grant_kind, o.name, null::name as column_name, o.oid, o.holder, g.grantor, g.grantee, g.privilege_type, g.is_grantable
  from agent_sessions.schema_object o, aclexplode(o.acl) g
  union all
  select o.kind, o.grant_kind, o.name, a.attname, o.oid, o.holder, g.grantor, g.grantee, g.privilege_type, g.is_grantable
  from agent_sessions.schema_object o join pg_attribute a on a.attrelid = o.oid, aclexplode(a.attacl) g
  where o.kind in ('table', 'view')
), client as (
  select distinct g.grantee as oid, g.grantee::regrole::text as name, r.rolname, r.rolsuper, r.rolbypassrls
  from granted g join pg_roles r on r.oid = g.grantee
  where g.kind = 'table' and g.grantee not in (g.holder, (select owner from extension))
), excess as (
  select g.grant_kind, g.name, g.column_name, g.privilege_type, g.grantor <> (select owner from extension) as by_superuser,
    case g.grantee when 0 then 'public' else g.grantee::regrole::text end as grantee
  from granted g
  where g.grantee <> g.holder and g.grantee <> (select owner from extension)
    and (g.grantee = 0
      or g.kind in ('table', 'sequence') and g.column_name is null
        and g.privilege_type <> 'SELECT' and (g.name, g.privilege_type) <> ('agent_sessions.session', 'DELETE')
      or g.privilege_type in ('UPDATE', 'REFERENCES') and g.column_name is not null and g.name <> 'agent_sessions.session'
      or g.privilege_type in ('INSERT', 'UPDATE') and g.column_name in (
        'sid', 'fork_digest', 'lease_digest', 'lease_fence', 'lease_holder', 'lease_expires_at', 'base_position', 'base_digest',
        'active_at', 'updated_at', 'deleted_at', 'salt', 'content_digest', 'digest', 'recorded_at')
        and (g.name, g.column_name) not in (('agent_sessions.session_item', 'sid'), ('agent_sessions.session_delta', 'sid'))
      or g.privilege_type = 'INSERT' and g.column_name is not null and g.name not in (
        'agent_sessions.session', 'agent_sessions.session_item', 'agent_sessions.session_delta', 'agent_sessions.audit_event')
      or g.kind = 'schema' and g.privilege_type = 'CREATE')
)
select 'row_security' as check_name, 'fail' as severity,
  format('%s is %sforced, and access_force_rls was told otherwise', r.name, case when c.relforcerowsecurity then '' else 'not ' end) as finding,
  format('select agent_sessions.access_force_rls(%s);', (not c.relforcerowsecurity)::text) as remedy,
  1 as step, null::timestamptz as since
from agent_sessions.as_installed r join pg_class c on c.oid = to_regclass(r.name)
where r.kind = 'row security'
  and c.relforcerowsecurity <> exists (select from agent_sessions.setting s where s.name = 'force_rls' and s.value = 'on')
union all
select 'row_security', 'warn', format('no policy holds for %s, which %s', c.name,
    case when c.rolsuper then 'is a superuser' when c.rolbypassrls then 'has BYPASSRLS' else format('may act as %s', owner_name) end),
  case when c.rolbypassrls and not c.rolsuper then format(E'-- as a superuser\nalter role %s nobypassrls;', c.name)
       when not c.rolsuper then format(E'-- as a superuser\nrevoke %I from %s;', owner_name, c.name)
       else format('select agent_sessions.access_revoke(%L);', c.rolname) end,
  1, null
from client c, extension
where c.rolsuper or c.rolbypassrls or pg_has_role(c.oid, owner, 'usage')
union all
select o.check_name, o.severity, o.finding, o.remedy, o.step, o.since from agent_sessions.finding_ownership o
union all
select 'grants', 'fail', format('%s has %s on %s%s', e.grantee, e.privilege_type, e.name, '.' || quote_ident(e.column_name)),
  format('%srevoke %s%s on %s %s from %s;', case when e.by_superuser then E'-- as a superuser\n' end, e.privilege_type,
    ' (' || quote_ident(e.column_name) || ')', e.grant_kind, e.name, e.grantee),
  1, null
from excess e
union all
select 'grants', 'warn', format('%s may hand on %s', g.grantee::regrole, g.name),
  format(E'-- as a superuser; then access_grant again for whom it was handed on to\nrevoke all on %s %s from %s cascade;',
    g.grant_kind, g.name, g.grantee::regrole),
  1, null
from granted g
where g.is_grantable and g.grantee <> 0 and g.grantee not in (g.holder, (select owner from extension)) and g.column_name is null
union all
select 'grants', 'warn', format('%s is a member of pg_write_all_data, which gives more than any level', c.name),
  format(E'-- as a superuser\nrevoke pg_write_all_data from %s;', c.name), 1, null
from client c
where not c.rolsuper and pg_has_role(c.oid, 'pg_write_all_data', 'usage')
union all
select 'bindings', 'warn', format('%s tenants are bound to roles that are gone, whose number another role may get', count(*)),
  'delete from agent_sessions.tenant_binding b where not exists (select from pg_catalog.pg_roles r where r.oid = b.role);', 1, null
from agent_sessions.tenant_binding b
where not exists (select from pg_roles r where r.oid = b.role)
having count(*) > 0;
comment on view agent_sessions.finding_access is 'Internal, for doctor(): who owns, holds or passes what nobody should';
