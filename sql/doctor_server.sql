-- Findings about the server: who holds old rows, and settings under which the rules do not hold.

create view agent_sessions.finding_server with (security_invoker = true) as
with configured (place, setdatabase, setrole, name, value) as (
  select
    case when d.setdatabase = 0 then format('role %s', d.setrole::regrole)
         when d.setrole = 0 then format('database %I', current_database())
         else format('role %s in database %I', d.setrole::regrole, current_database()) end,
    d.setdatabase, d.setrole, lower(split_part(c.setting, '=', 1)), substr(c.setting, strpos(c.setting, '=') + 1)
  from pg_db_role_setting d, unnest(d.setconfig) c (setting)
  where d.setdatabase in (0, (select b.oid from pg_database b where b.datname = current_database()))
    and case when d.setrole <> 0 then has_schema_privilege(d.setrole, 'agent_sessions', 'usage') else d.setdatabase <> 0 end
), able as (
  select r.oid, r.rolname::text as name, r.oid = e.extowner as is_owner
  from pg_roles r, pg_extension e, pg_proc p
  where e.extname = 'agent_sessions' and p.pronamespace = 'agent_sessions'::regnamespace and p.proname = 'session_claim'
    and r.rolcanlogin and not r.rolsuper and has_function_privilege(r.oid, p.oid, 'execute')
), claimant as (
  -- the owner counts as long as it works alone
  select a.oid, a.name from able a where not a.is_owner or not exists (select from able other where not other.is_owner)
), timeout as (
  select c.name, s.place, coalesce(s.value, (
    select d.value from configured d where d.name = 'idle_in_transaction_session_timeout' and d.setrole = 0), (
    select g.reset_val from pg_settings g where g.name = 'idle_in_transaction_session_timeout')) as value
  from claimant c
  left join lateral (
    select d.place, d.value from configured d where d.name = 'idle_in_transaction_session_timeout' and d.setrole = c.oid
    order by d.setdatabase desc limit 1
  ) s on true
), idle as (
  select t.name, t.place,
    case when t.value ~ '^\s*\d+\s*$' then t.value::numeric * interval '1 millisecond' else t.value::interval end as timeout,
    (select max(s.lease_expires_at - s.updated_at) from agent_sessions.session s where s.lease_expires_at > now()) as ttl
  from timeout t
)
select 'snapshots' as check_name, 'warn' as severity,
  format('process %s of %s has had a transaction open since %s: vacuum keeps what was deleted since', a.pid, a.usename, a.xact_start) as finding,
  format('select pg_catalog.pg_terminate_backend(%s);', a.pid) as remedy, 1 as step, a.xact_start as since
from pg_stat_activity a
where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend' and a.xact_start is not null
union all
select 'snapshots', 'ok', format('transactions of %s processes cannot be seen', count(*)),
  format(E'-- as a superuser\ngrant pg_read_all_stats to %I;', current_user), 1, null
from pg_stat_activity a
where a.datname = current_database() and a.pid <> pg_backend_pid() and a.query = '<insufficient privilege>'
having count(*) > 0
union all
select 'snapshots', 'warn', format('the prepared transaction %L of %s waits since %s', p.gid, p.owner, p.prepared),
  format('rollback prepared %L;', p.gid), 1, p.prepared
from pg_prepared_xacts p
where p.database = current_database()
union all
select 'snapshots', 'warn', format('nobody reads the replication slot %s, which keeps old rows', s.slot_name),
  format(E'-- as a superuser\nselect pg_catalog.pg_drop_replication_slot(%L);', s.slot_name), 1, null
from pg_replication_slots s
where not s.active and coalesce(s.xmin, s.catalog_xmin) is not null and coalesce(s.database, current_database()) = current_database()
union all
select 'idle_timeout', 'warn',
  format('idle_in_transaction_session_timeout of %s is %s: a transaction of a worker that hangs outlives its lease', i.name,
    case when i.timeout = interval '0' then 'not set' else i.timeout::text end),
  format('%salter %s set idle_in_transaction_session_timeout = %L;', case when i.place is not null then E'-- as a superuser\n' end,
    coalesce(i.place, format('database %I', current_database())), floor(1000 * least(30, extract(epoch from i.ttl) / 2)) || 'ms'),
  1, null
from idle i
where i.timeout = interval '0' or i.timeout > i.ttl
union all
select 'replication_role', 'fail', 'no trigger fires in this session', 'set session_replication_role = origin;', 1, null
where current_setting('session_replication_role') = 'replica'
union all
select 'replication_role', 'fail', format('no trigger fires in sessions of %s', c.place),
  format(E'-- as a superuser\nalter %s reset session_replication_role;', c.place), 1, null
from configured c where c.name = 'session_replication_role' and c.value = 'replica'
union all
select 'settings', 'fail', format('%s has %s = %L, which means nothing', c.place, c.name, c.value),
  format(E'-- as a superuser\nalter %s reset %s;', c.place, c.name), 1, null
from configured c
where c.name like 'agent\_sessions.%'
  and not exists (
    select from pg_settings g where g.name = c.name and (g.enumvals is null or lower(c.value) = any (g.enumvals)))
union all
select 'durability', 'warn', format('%s is off: a crash can take back what was acknowledged, fences too', g.name),
  format(E'-- as a superuser\nalter system set %s = on; select pg_catalog.pg_reload_conf();', g.name), 1, null
from pg_settings g where g.name in ('fsync', 'full_page_writes') and g.setting = 'off';
comment on view agent_sessions.finding_server is 'Internal, for doctor(): transactions that last, settings that harm';
