-- The installing superuser made everything; the extension's owner gets all but the C functions, which only a superuser may
-- own, and may hand those on. Nothing is left to PUBLIC.
do $$
declare
  owner text := (select pg_catalog.quote_ident(r.rolname) from pg_catalog.pg_extension e
                 join pg_catalog.pg_roles r on r.oid = e.extowner where e.extname = 'agent_sessions');
  object record;
begin
  execute pg_catalog.format('alter schema agent_sessions owner to %s', owner);
  for object in
    select c.oid::regclass as name, c.relkind from pg_catalog.pg_class c
    where c.relnamespace = 'agent_sessions'::regnamespace and c.relkind in ('r', 'v', 'S')
      -- the sequence of an identity column follows its table
      and not exists (select from pg_catalog.pg_depend d where d.objid = c.oid and d.deptype = 'i')
  loop
    execute pg_catalog.format('alter %s %s owner to %s', case object.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end, object.name, owner);
    execute pg_catalog.format('revoke all on %s from public', object.name);
  end loop;
  for object in
    select t.oid::regtype as name from pg_catalog.pg_type t join pg_catalog.pg_class c on c.oid = t.typrelid
    where t.typnamespace = 'agent_sessions'::regnamespace and c.relkind = 'c'
  loop
    execute pg_catalog.format('alter type %s owner to %s', object.name, owner);
    execute pg_catalog.format('revoke all on type %s from public', object.name);
  end loop;
  for object in
    select p.oid::regprocedure as name, l.lanname from pg_catalog.pg_proc p join pg_catalog.pg_language l on l.oid = p.prolang
    where p.pronamespace = 'agent_sessions'::regnamespace
  loop
    execute pg_catalog.format('revoke all on function %s from public', object.name);
    if object.lanname = 'c' then
      execute pg_catalog.format('grant execute on function %s to %s with grant option', object.name, owner);
    else
      execute pg_catalog.format('alter function %s owner to %s', object.name, owner);
    end if;
  end loop;
end
$$;
