-- The installing superuser made everything; the extension's owner gets all but the C functions, which only a superuser may
-- own, and may hand those on, the triggers aside. Nobody else gets anything, whatever default privileges say.
do $$
declare
  owner name := (select r.rolname from pg_catalog.pg_extension e join pg_catalog.pg_roles r on r.oid = e.extowner
                 where e.extname = 'agent_sessions');
  object record;
  grantee oid;
begin
  for object in
    select 'schema' as kind, 'agent_sessions' as name, false as is_c, false as is_trigger
    union all
    select case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end, c.oid::regclass::text, false, false
    from pg_catalog.pg_class c
    where c.relnamespace = 'agent_sessions'::regnamespace and c.relkind in ('r', 'v', 'S')
      -- the sequence of an identity column follows its table
      and not exists (select from pg_catalog.pg_depend d where d.objid = c.oid and d.deptype = 'i')
    union all
    select 'type', t.oid::regtype::text, false, false
    from pg_catalog.pg_type t join pg_catalog.pg_class c on c.oid = t.typrelid
    where t.typnamespace = 'agent_sessions'::regnamespace and c.relkind = 'c'
    union all
    select 'function', p.oid::regprocedure::text, l.lanname = 'c', p.prorettype = 'trigger'::regtype
    from pg_catalog.pg_proc p join pg_catalog.pg_language l on l.oid = p.prolang
    where p.pronamespace = 'agent_sessions'::regnamespace
  loop
    if not object.is_c then
      execute pg_catalog.format('alter %s %s owner to %I', object.kind, object.name, owner);
    elsif not object.is_trigger then
      execute pg_catalog.format('grant execute on function %s to %I with grant option', object.name, owner);
    end if;
  end loop;

  for object in
    select case c.relkind when 'S' then 'sequence' else 'table' end as kind, c.oid::regclass::text as name, c.relacl as acl, c.relowner as holder
    from pg_catalog.pg_class c where c.relnamespace = 'agent_sessions'::regnamespace and c.relkind in ('r', 'v', 'S')
    union all
    select 'type', t.oid::regtype::text, coalesce(t.typacl, pg_catalog.acldefault('T', t.typowner)), t.typowner
    from pg_catalog.pg_type t join pg_catalog.pg_class c on c.oid = t.typrelid
    where t.typnamespace = 'agent_sessions'::regnamespace and c.relkind = 'c'
    union all
    select 'function', p.oid::regprocedure::text, coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner)), p.proowner
    from pg_catalog.pg_proc p where p.pronamespace = 'agent_sessions'::regnamespace
    union all
    select 'schema', n.nspname::text, n.nspacl, n.nspowner from pg_catalog.pg_namespace n where n.nspname = 'agent_sessions'
  loop
    for grantee in
      select distinct a.grantee from pg_catalog.aclexplode(object.acl) a
      where a.grantee <> object.holder and a.grantee <> (select r.oid from pg_catalog.pg_roles r where r.rolname = owner)
    loop
      execute pg_catalog.format('revoke all on %s %s from %s', object.kind, object.name,
        case when grantee = 0 then 'public' else (select pg_catalog.quote_ident(r.rolname) from pg_catalog.pg_roles r where r.oid = grantee) end);
    end loop;
  end loop;
end
$$;
