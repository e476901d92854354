-- Findings in the catalogue: what is not as it was installed. Every view of findings has the columns of this one: the check that
-- has found it, how bad it is, what it is, what to do, in which step of a remedy, and since when it is so, if that counts.

create view agent_sessions.finding_catalog with (security_invoker = true) as
with rule (kind, check_name, if_lost, if_changed, if_added, superuser_mends, superuser_removes, step) as (
  values
    ('member', 'members', 'fail', 'fail', 'warn', true, true, 1),
    ('column', 'columns', 'fail', 'fail', 'fail', false, false, 1),
    ('not null', 'columns', 'fail', 'fail', 'warn', false, false, 2),
    ('default', 'columns', 'fail', 'fail', 'fail', false, false, 2),
    ('identity', 'columns', 'fail', 'fail', 'fail', false, false, 3),
    ('child', 'columns', null, null, 'fail', false, true, 1),
    ('constraint', 'constraints', 'fail', 'fail', 'warn', false, false, 1),
    ('reference', 'constraints', null, null, 'warn', false, true, 1),
    ('unique index', 'indexes', 'fail', 'fail', 'warn', false, false, 1),
    ('index', 'indexes', 'warn', 'fail', 'warn', false, false, 1),
    ('valid index', 'indexes', null, 'fail', null, false, false, 2),
    ('trigger', 'triggers', 'fail', 'fail', 'warn', true, false, 1),
    ('enabled trigger', 'triggers', 'fail', 'fail', null, false, false, 2),
    ('rule', 'triggers', null, null, 'warn', false, false, 1),
    ('policy', 'policies', 'fail', 'fail', 'fail', false, false, 1),
    ('restrictive policy', 'policies', null, null, 'warn', false, false, 1),
    ('row security', 'row_security', 'fail', 'fail', null, false, false, 1),
    ('view', 'views', 'fail', 'fail', null, false, false, 1),
    ('function', 'functions', 'fail', 'fail', null, true, false, 1),
    ('dumped', 'dumps', 'fail', 'fail', 'warn', true, false, 1),
    ('no statistics', 'statistics', 'fail', 'fail', null, false, false, 1),
    ('extended statistics', 'statistics', null, null, 'warn', false, true, 1)
), difference as (
  select r.check_name, r.step, d.how, d.kind, d.name,
    case d.how when 'lost' then r.if_lost when 'changed' then r.if_changed else r.if_added end as severity,
    case d.how when 'added' then r.superuser_removes else r.superuser_mends end as by_superuser,
    -- A changed column holds data: no statement is offered that would drop it.
    case when d.how = 'added' then d.removal
         when d.how = 'lost' or d.kind in ('default', 'identity') then d.statement
         when d.kind <> 'column' then concat_ws(E';\n', d.removal, d.statement) end as remedy
  from (
    select coalesce(i.kind, f.kind) as kind, coalesce(i.name, f.name) as name, i.statement, f.removal,
      case when f.kind is null then 'lost' when i.kind is null then 'added' else 'changed' end as how
    from agent_sessions.as_installed i
    full join agent_sessions.as_found f on f.kind = i.kind and f.name = i.name
    where f.statement is distinct from i.statement
  ) d
  join rule r on r.kind = d.kind
)
select
  d.check_name, d.severity, format('%s %s: %s', d.how, d.kind, d.name) as finding,
  case when d.remedy is null then '-- restore a dump into a new installation'
       else concat(case when d.by_superuser then E'-- as a superuser\n' end, d.remedy, ';') end as remedy,
  d.step, null::timestamptz as since
from difference d
where d.severity is not null
union all
-- values that an ANALYZE has taken, which outlive their erasure
select 'statistics', 'fail', format('values of %s.%I are in pg_statistic', s.tablename, s.attname),
  format(E'-- as a superuser\ndelete from pg_catalog.pg_statistic where starelid = %L::regclass and staattnum = %s;',
    format('agent_sessions.%I', s.tablename), a.attnum),
  2, null
from pg_stats s
join pg_attribute a on a.attrelid = to_regclass(format('agent_sessions.%I', s.tablename)) and a.attname = s.attname
join agent_sessions.as_installed i on i.kind = 'no statistics' and i.name = format('agent_sessions.%I.%I', s.tablename, s.attname)
where s.schemaname = 'agent_sessions'
union all
select 'members', 'warn', format('of no extension: %s %s', o.type, o.identity),
  format(E'-- as a superuser\nalter %s %s set schema public;', o.type, o.identity), 1, null
from pg_depend d
cross join lateral pg_identify_object(d.classid, d.objid, 0) o
where d.refclassid = 'pg_namespace'::regclass and d.refobjid = 'agent_sessions'::regnamespace and d.deptype = 'n'
  and not exists (select from pg_depend e where e.classid = d.classid and e.objid = d.objid and e.deptype in ('e', 'i'))
  and not exists (select from agent_sessions.schema_object s where s.catalog = d.classid and s.oid = d.objid);
comment on view agent_sessions.finding_catalog is 'Internal, for doctor(): what differs from as_installed';
