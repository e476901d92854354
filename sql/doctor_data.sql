-- Findings in the rows, of all tenants: what nothing leads to any more, and sequences that are behind. They tell numbers, and
-- no tenant's names.

create view agent_sessions.finding_data with (security_invoker = true) as
with recursive log (sid) as (
  -- the first entry of each log, by one look-up each
  (select i.sid from agent_sessions.session_item i order by i.sid limit 1)
  union all
  select (select i.sid from agent_sessions.session_item i where i.sid > l.sid order by i.sid limit 1) from log l where l.sid is not null
), stream (tenant, stream) as (
  (select e.tenant, e.stream from agent_sessions.audit_event e order by e.tenant, e.stream limit 1)
  union all
  select n.tenant, n.stream
  from stream s
  cross join lateral (
    select e.tenant, e.stream from agent_sessions.audit_event e where (e.tenant, e.stream) > (s.tenant, s.stream)
    order by e.tenant, e.stream limit 1
  ) n
)
select f.check_name, f.severity, f.finding,
  -- under forced policies the owner sees one tenant's rows
  case when exists (select from agent_sessions.setting s where s.name = 'force_rls' and s.value = 'on') then E'-- as a superuser\n' || f.remedy
       else f.remedy end as remedy,
  f.step, f.since
from (
  select 'logs' as check_name, 'fail' as severity, format('%s logs have no session', count(*)) as finding,
    E'-- their session may be in a backup; this removes what is left of it\n'
      'delete from agent_sessions.session_item i where not exists (select from agent_sessions.session s where s.sid = i.sid);' as remedy,
    1 as step, null::timestamptz as since
  from log l
  where l.sid is not null and not exists (select from agent_sessions.session s where s.sid = l.sid)
  having count(*) > 0
  union all
  select 'logs', 'warn', format('%s chunks of text belong to no open item', count(*)),
    'delete from agent_sessions.session_delta d where not exists (select from agent_sessions.session_item i join agent_sessions.session s on s.sid = i.sid '
      'where i.sid = d.sid and i.position = d.target and i.op = ''open'' and s.deleted_at is null);',
    1, null
  from agent_sessions.session_delta d
  where not exists (
    select from agent_sessions.session_item i join agent_sessions.session s on s.sid = i.sid
    where i.sid = d.sid and i.position = d.target and i.op = 'open' and s.deleted_at is null)
  having count(*) > 0
  union all
  select 'sessions', 'fail', format('%s sub-sessions have no parent', count(*)),
    E'-- it may be in a backup; this removes them\n'
      'delete from agent_sessions.session c where c.deleted_at is null and c.parent_sid is not null '
      'and not exists (select from agent_sessions.session p where p.sid = c.parent_sid and p.deleted_at is null);',
    1, null
  from agent_sessions.session c
  where c.deleted_at is null and c.parent_sid is not null
    and not exists (select from agent_sessions.session p where p.sid = c.parent_sid and p.deleted_at is null)
  having count(*) > 0
  union all
  select 'sessions', 'fail', format('%s branches have lost the session that they go on from', count(*)),
    E'-- it may be in a backup; this removes them\n'
      'delete from agent_sessions.session b where b.fork_position > b.base_position '
      'and not exists (select from agent_sessions.session s where s.sid = b.branched_from);',
    1, null
  from agent_sessions.session b
  where b.fork_position > b.base_position and not exists (select from agent_sessions.session s where s.sid = b.branched_from)
  having count(*) > 0
  union all
  select 'sessions', 'warn', format('%s hidden sessions are kept for no branch', count(*)),
    'delete from agent_sessions.session s where s.deleted_at is not null '
      'and not exists (select from agent_sessions.session b where b.branched_from = s.sid and b.fork_position > b.base_position);',
    1, null
  from agent_sessions.session s
  where s.deleted_at is not null
    and not exists (select from agent_sessions.session b where b.branched_from = s.sid and b.fork_position > b.base_position)
  having count(*) > 0
  union all
  select 'audit', 'fail', format('%s streams of events have no chain', count(*)),
    'insert into agent_sessions.audit_chain (tenant, stream, base_seq, base_hash) '
      'select distinct on (e.tenant, e.stream) e.tenant, e.stream, e.seq - 1, case when e.seq > 1 then e.prev_hash end '
      'from agent_sessions.audit_event e order by e.tenant, e.stream, e.seq on conflict do nothing;',
    1, null
  from stream s
  where not exists (select from agent_sessions.audit_chain c where c.tenant = s.tenant and c.stream = s.stream)
  having count(*) > 0
  union all
  select 'audit', 'fail', format('%s anchors have lost heads that they were made of', count(*)),
    '-- restore agent_sessions.audit_anchor_leaf from a backup',
    1, null
  from agent_sessions.audit_anchor a
  where a.chains is distinct from 1 + coalesce((
    select max(l.ordinal) from agent_sessions.audit_anchor_leaf l where l.tenant = a.tenant and l.anchor_id = a.anchor_id), -1)
  having count(*) > 0
  union all
  select 'leases', 'warn', format('session %s has a lease that expired and was never released: its worker has died', s.sid),
    format('update agent_sessions.session set lease_digest = null, lease_holder = null, lease_expires_at = null where sid = %s;', s.sid),
    1, s.lease_expires_at
  from agent_sessions.session s
  where s.lease_expires_at < now()
  union all
  select 'leases', 'fail', format('session %s has a lease of more than 24 hours: the clock was put back', s.sid),
    format('update agent_sessions.session set lease_digest = null, lease_holder = null, lease_expires_at = null where sid = %s;', s.sid),
    1, null
  from agent_sessions.session s
  where s.lease_expires_at > now() + interval '24 hours'
  union all
  select 'sequences', 'fail', format('agent_sessions.%s is at %s, rows at %s', q.name, q.last_value, q.used),
    format('select pg_catalog.setval(''agent_sessions.%s'', %s);', q.name, q.used), 1, null
  from (
    select 'lease_fence_seq' as name, f.last_value - (not f.is_called)::integer as last_value, (select max(s.lease_fence) from agent_sessions.session s) as used
    from agent_sessions.lease_fence_seq f
    union all
    select 'session_sid_seq', f.last_value - (not f.is_called)::integer, (
      select greatest((select max(s.sid) from agent_sessions.session s), (select max(i.sid) from agent_sessions.session_item i)))
    from agent_sessions.session_sid_seq f
  ) q
  where q.used > q.last_value
) f;
comment on view agent_sessions.finding_data is 'Internal, for doctor(): rows that nothing leads to, old leases, sequences behind their rows';
