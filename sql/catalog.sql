-- What the schema consists of, as statements: those that made it, and those that would make what is there now.

-- Of no rows until installed.sql, which knows them.
create view agent_sessions.as_installed with (security_invoker = true) as
select null::text as kind, null::text as name, null::text as statement where false;
comment on view agent_sessions.as_installed is
  'Internal: what this version of the schema consists of, which is as_found when everything was made. A view, since no dump and no replication may bring other rows';

create view agent_sessions.schema_object with (security_invoker = true) as
select o.catalog, o.kind, o.grant_kind, o.name, o.oid, o.holder, o.acl, o.is_c, o.is_trigger, o.follows
from (
  select 'pg_namespace'::regclass as catalog, 'schema' as kind, 'schema' as grant_kind, n.nspname::text as name, n.oid,
    n.nspowner as holder, coalesce(n.nspacl, acldefault('n', n.nspowner)) as acl, false as is_c, false as is_trigger, false as follows
  from pg_namespace n where n.nspname = 'agent_sessions'
  union all
  select 'pg_class'::regclass,
    case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end,
    case c.relkind when 'S' then 'sequence' else 'table' end,
    format('agent_sessions.%I', c.relname), c.oid, c.relowner,
    coalesce(c.relacl, acldefault(case c.relkind when 'S' then 's' else 'r' end::"char", c.relowner)), false, false,
    exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i')
  from pg_class c where c.relnamespace = 'agent_sessions'::regnamespace and c.relkind in ('r', 'v', 'S')
  union all
  select 'pg_type'::regclass, 'type', 'type', format('agent_sessions.%I', t.typname), t.oid, t.typowner,
    coalesce(t.typacl, acldefault('T', t.typowner)), false, false, false
  from pg_type t join pg_class c on c.oid = t.typrelid
  where t.typnamespace = 'agent_sessions'::regnamespace and c.relkind = 'c'
  union all
  select 'pg_proc'::regclass, 'function', 'function',
    format('agent_sessions.%I(%s)', p.proname, pg_get_function_identity_arguments(p.oid)), p.oid, p.proowner,
    coalesce(p.proacl, acldefault('f', p.proowner)), l.lanname = 'c', p.prorettype = 'trigger'::regtype, false
  from pg_proc p join pg_language l on l.oid = p.prolang
  where p.pronamespace = 'agent_sessions'::regnamespace
) o
-- of the extension, or taken out of it since
where exists (
    select from pg_depend d join pg_extension e on e.oid = d.refobjid
    where d.classid = o.catalog and d.objid = o.oid and d.refclassid = 'pg_extension'::regclass and e.extname = 'agent_sessions')
  or exists (
    select from agent_sessions.as_installed m
    where m.kind = 'member' and m.name = case o.kind when 'function' then format('function %s', o.oid::regprocedure) else format('%s %s', o.kind, o.name) end);
comment on view agent_sessions.schema_object is
  'Internal: the schema, its relations, composite types and functions, with their owners and privileges; follows: the sequence of an identity column, which follows its table';

create view agent_sessions.as_found with (security_invoker = true) as
with relation as (
  select o.oid, o.name, o.kind from agent_sessions.schema_object o where o.kind in ('table', 'view', 'sequence')
), attribute as (
  select r.name as relation, r.kind as relation_kind, format('%s.%I', r.name, a.attname) as name,
    format('alter table %s alter column %I', r.name, a.attname) as alteration,
    a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attidentity, a.attstattarget, a.attcollation, t.typcollation,
    pg_get_expr(d.adbin, d.adrelid) as expression
  from relation r
  join pg_attribute a on a.attrelid = r.oid
  join pg_type t on t.oid = a.atttypid
  left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
  where r.kind = 'table' and a.attnum > 0 and not a.attisdropped
), member as (
  select i.type, case d.classid when 'pg_proc'::regclass then d.objid::regprocedure::text else i.identity end as identity
  from pg_extension e
  join pg_depend d on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid and d.deptype = 'e'
  cross join lateral pg_identify_object(d.classid, d.objid, 0) i
  where e.extname = 'agent_sessions'
    -- a table's row type and array types, which belong to it from PostgreSQL 17 on
    and not exists (select from pg_depend i where i.classid = 'pg_type'::regclass and i.objid = d.objid and i.deptype = 'i' and d.classid = i.classid)
)
select 'member' as kind, format('%s %s', m.type, m.identity) as name,
  format('alter extension agent_sessions add %s %s', m.type, m.identity) as statement,
  format('alter extension agent_sessions drop %s %s', m.type, m.identity) as removal
from member m
union all
select 'column', a.name,
  format('alter table %s add column %I %s', a.relation, a.attname, format_type(a.atttypid, a.atttypmod))
    || case when a.attcollation <> a.typcollation then (select format(' collate %I', l.collname) from pg_collation l where l.oid = a.attcollation) else '' end,
  format('alter table %s drop column %I', a.relation, a.attname)
from attribute a
union all
select 'not null', a.name, a.alteration || ' set not null', a.alteration || ' drop not null' from attribute a where a.attnotnull
union all
select 'default', a.name, format('%s set default %s', a.alteration, a.expression), a.alteration || ' drop default'
from attribute a where a.expression is not null
union all
select 'identity', a.name,
  format('%s set generated %s', a.alteration, case a.attidentity when 'a' then 'always' else 'by default' end),
  a.alteration || ' drop identity'
from attribute a where a.attidentity <> ''
union all
select 'no statistics', a.name, a.alteration || ' set statistics 0', null from attribute a where a.attstattarget = 0
union all
select 'constraint', format('%I on %s', c.conname, r.name),
  format('alter table %s add constraint %I %s', r.name, c.conname, pg_get_constraintdef(c.oid)),
  format('alter table %s drop constraint %I', r.name, c.conname)
from relation r join pg_constraint c on c.conrelid = r.oid where c.contype not in ('n', 't')
union all
select 'reference', format('%I on %s', c.conname, c.conrelid::regclass),
  format('alter table %s add constraint %I %s', c.conrelid::regclass, c.conname, pg_get_constraintdef(c.oid)),
  format('alter table %s drop constraint %I', c.conrelid::regclass, c.conname)
from relation r join pg_constraint c on c.confrelid = r.oid where c.conrelid not in (select own.oid from relation own)
union all
select case when i.indisunique then 'unique index' else 'index' end, format('%I on %s', c.relname, r.name),
  -- how full its pages are is the administrator's
  regexp_replace(pg_get_indexdef(i.indexrelid), ' WITH \([^)]*\)', ''), format('drop index agent_sessions.%I', c.relname)
from relation r join pg_index i on i.indrelid = r.oid join pg_class c on c.oid = i.indexrelid
where not exists (select from pg_constraint own where own.conindid = i.indexrelid and own.conrelid = i.indrelid)
union all
select 'valid index', format('%I on %s', c.relname, r.name),
  case when i.indisvalid and i.indisready then format('reindex index agent_sessions.%I', c.relname) end, null
from relation r join pg_index i on i.indrelid = r.oid join pg_class c on c.oid = i.indexrelid
union all
select 'trigger', format('%I on %s', t.tgname, r.name), pg_get_triggerdef(t.oid), format('drop trigger %I on %s', t.tgname, r.name)
from relation r join pg_trigger t on t.tgrelid = r.oid where not t.tgisinternal
union all
select 'enabled trigger', format('%I on %s', t.tgname, r.name),
  format('alter table %s %s trigger %I', r.name,
    case t.tgenabled when 'O' then 'enable' when 'A' then 'enable always' when 'R' then 'enable replica' else 'disable' end, t.tgname),
  null
from relation r join pg_trigger t on t.tgrelid = r.oid where not t.tgisinternal
union all
select 'rule', format('%I on %s', w.rulename, r.name), pg_get_ruledef(w.oid), format('drop rule %I on %s', w.rulename, r.name)
from relation r join pg_rewrite w on w.ev_class = r.oid where w.ev_type <> '1'
union all
select case when p.polpermissive then 'policy' else 'restrictive policy' end, format('%I on %s', p.polname, r.name),
  format('create policy %I on %s%s for %s to %s', p.polname, r.name, case when p.polpermissive then '' else ' as restrictive' end,
    case p.polcmd when 'r' then 'select' when 'a' then 'insert' when 'w' then 'update' when 'd' then 'delete' else 'all' end,
    (select string_agg(case g when 0 then 'public' else g::regrole::text end, ', ' order by g) from unnest(p.polroles) g))
    || coalesce(' using (' || pg_get_expr(p.polqual, p.polrelid) || ')', '')
    || coalesce(' with check (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')', ''),
  format('drop policy %I on %s', p.polname, r.name)
from relation r join pg_policy p on p.polrelid = r.oid
union all
select 'row security', r.name, format('alter table %s enable row level security', r.name),
  format('alter table %s disable row level security', r.name)
from relation r join pg_class c on c.oid = r.oid where c.relrowsecurity
union all
select 'child', format('%s of %s', i.inhrelid::regclass, r.name), format('alter table %s inherit %s', i.inhrelid::regclass, r.name),
  format('alter table %s no inherit %s', i.inhrelid::regclass, r.name)
from relation r join pg_inherits i on i.inhparent = r.oid
union all
select 'extended statistics', format('%s.%I on %s', s.stxnamespace::regnamespace, s.stxname, r.name), pg_get_statisticsobjdef(s.oid),
  format('drop statistics %s.%I', s.stxnamespace::regnamespace, s.stxname)
from relation r join pg_statistic_ext s on s.stxrelid = r.oid
union all
select 'view', r.name, format('alter view %s set (security_invoker = true)', r.name), null
from relation r join pg_class c on c.oid = r.oid where r.kind = 'view' and 'security_invoker=true' = any (c.reloptions)
union all
select 'function', o.name,
  format('alter function %s %s %s %s parallel %s security %s reset all', o.name,
    case p.provolatile when 'i' then 'immutable' when 's' then 'stable' else 'volatile' end,
    case when p.proisstrict then 'strict' else 'called on null input' end,
    case when p.proleakproof then 'leakproof' else 'not leakproof' end,
    case p.proparallel when 's' then 'safe' when 'r' then 'restricted' else 'unsafe' end,
    case when p.prosecdef then 'definer' else 'invoker' end)
    || coalesce((select string_agg(regexp_replace(setting, '^([^=]*)=(.*)$', ' set \1 to \2'), '') from unnest(p.proconfig) setting), ''),
  null
from agent_sessions.schema_object o join pg_proc p on p.oid = o.oid where o.kind = 'function'
union all
select 'dumped', dumped.oid::regclass::text,
  format('update pg_catalog.pg_extension set extconfig = extconfig || %L::regclass::oid, extcondition = extcondition || %L::text where extname = %L',
    dumped.oid::regclass, dumped.condition, e.extname),
  null
from pg_extension e, unnest(e.extconfig, e.extcondition) dumped (oid, condition)
where e.extname = 'agent_sessions';
comment on view agent_sessions.as_found is
  'Internal: what there is in the schema and on its tables, each thing as the statement that makes it, and the one that removes it';
