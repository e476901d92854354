-- The installing superuser made everything; the extension's owner gets all but the C functions, which only a superuser may
-- own, and may hand those on, the triggers aside. Nobody else gets anything, whatever default privileges say.
do $$
declare
  owner_oid oid := (select e.extowner from pg_catalog.pg_extension e where e.extname = 'agent_sessions');
  owner name := (select r.rolname from pg_catalog.pg_roles r where r.oid = owner_oid);
begin
  execute (
    select string_agg(
      case when o.is_c then format('grant execute on function %s to %I with grant option', o.name, owner)
           else format('alter %s %s owner to %I', o.kind, o.name, owner) end, ';')
    from agent_sessions.schema_object o
    where not o.follows and not (o.is_c and o.is_trigger)
  );
  execute (
    select string_agg(
      format('revoke all on %s %s from %s', o.grant_kind, o.name, case a.grantee when 0 then 'public' else a.grantee::regrole::text end), ';')
    from agent_sessions.schema_object o, aclexplode(o.acl) a
    where a.grantee not in (o.holder, owner_oid)
  );
end
$$;
