create function agent_sessions.audit_payload(data text) returns json
language c immutable parallel safe as 'MODULE_PATHNAME', 'agent_sessions_audit_payload';
comment on function agent_sessions.audit_payload(text) is
  'The payload in an event''s data, as it was given; NULL if there is none. The operators of json would fail on \u0000 anywhere in data';

create view agent_sessions.audit_stream with (security_invoker = true) as
select c.stream, c.base_seq, coalesce(tail.seq, c.base_seq) as head_seq, coalesce(tail.hash, c.base_hash) as head_hash,
  coalesce(tail.seq, c.base_seq) - c.base_seq as events, tail.recorded_at as last_at
from agent_sessions.audit_chain c
left join lateral (
  select e.seq, e.hash, e.recorded_at from agent_sessions.audit_event e
  where e.tenant = c.tenant and e.stream = c.stream
  order by e.seq desc
  limit 1
) tail on true
where c.tenant = (select agent_sessions.visible_tenant());
comment on view agent_sessions.audit_stream is 'The tenant''s streams: how many events each has, and its head, to be kept elsewhere and given to audit_verify';

create type agent_sessions.audit_row as (
  stream text,
  seq bigint,
  event_id text,
  occurred_at timestamptz,
  recorded_at timestamptz,
  action text,
  actor text,
  target text,
  session_id text,
  status text,
  attrs jsonb,
  payload json,
  imported boolean,
  hash text
);
comment on type agent_sessions.audit_row is 'An event as audit_list shows it';

create function agent_sessions.audit_matching(
  tenant text, stream text, actor text, action text, target text, session_id text, status text, attrs jsonb,
  since timestamptz, until timestamptz
) returns setof agent_sessions.audit_event
language sql stable parallel safe
begin atomic
  select
    e.tenant, e.stream, e.seq, e.event_id, e.occurred_at, e.recorded_at, e.action, e.actor, e.target, e.session_id, e.status,
    e.attrs, e.payload, e.fields, e.data, e.prev_hash, e.hash
  from agent_sessions.audit_event e
  where e.tenant = case when audit_matching.tenant is null then (select agent_sessions.visible_tenant()) else audit_matching.tenant end
    and (audit_matching.tenant is not null or (select agent_sessions.current_tenant()) is not null)
    -- One CASE, as in session_matching: filters of their own would seem to leave one row.
    and case when (audit_matching.stream is null or e.stream = audit_matching.stream)
      and (audit_matching.actor is null or e.actor = audit_matching.actor)
      and (audit_matching.action is null or e.action = audit_matching.action)
      and (audit_matching.target is null or e.target = audit_matching.target)
      and (audit_matching.session_id is null or e.session_id = audit_matching.session_id)
      and (audit_matching.status is null or e.status = audit_matching.status)
      and (audit_matching.attrs is null or e.attrs @> audit_matching.attrs)
      and (audit_matching.since is null or coalesce(e.occurred_at, e.recorded_at) >= audit_matching.since)
      and (audit_matching.until is null or coalesce(e.occurred_at, e.recorded_at) < audit_matching.until) then true else false end;
end;
comment on function agent_sessions.audit_matching(text, text, text, text, text, text, text, jsonb, timestamptz, timestamptz) is
  'Internal: the events that the filters of audit_list let through; NULL filters nothing';

create function agent_sessions.audit_list(
  stream text default null,
  actor text default null,
  action text default null,
  target text default null,
  session_id text default null,
  status text default null,
  attrs jsonb default null,
  since timestamptz default null,
  until timestamptz default null,
  after bigint default null,
  before bigint default null,
  newest_first boolean default true,
  max_rows integer default null,
  tenant text default null
) returns setof agent_sessions.audit_row
language sql stable parallel safe
begin atomic
  with page as (
    (select m.stream, m.seq, m.event_id, m.occurred_at, m.recorded_at, m.action, m.actor, m.target, m.session_id, m.status, m.attrs,
       m.data, m.fields, m.hash
     from agent_sessions.audit_matching(audit_list.tenant, null, audit_list.actor, audit_list.action, audit_list.target,
       audit_list.session_id, audit_list.status, audit_list.attrs, audit_list.since, audit_list.until) m
     where (select audit_list.stream is not null and audit_list.newest_first is not false)
       and m.stream collate "C" = audit_list.stream
       and m.seq > (select greatest(audit_list.after, 0)) and m.seq < (select least(audit_list.before, 9223372036854775807))
     order by m.seq desc
     limit agent_sessions.page_rows(audit_list.max_rows, 100))
    union all
    (select m.stream, m.seq, m.event_id, m.occurred_at, m.recorded_at, m.action, m.actor, m.target, m.session_id, m.status, m.attrs,
       m.data, m.fields, m.hash
     from agent_sessions.audit_matching(audit_list.tenant, null, audit_list.actor, audit_list.action, audit_list.target,
       audit_list.session_id, audit_list.status, audit_list.attrs, audit_list.since, audit_list.until) m
     where (select audit_list.stream is not null and audit_list.newest_first is false)
       and m.stream collate "C" = audit_list.stream
       and m.seq > (select greatest(audit_list.after, 0)) and m.seq < (select least(audit_list.before, 9223372036854775807))
     order by m.seq
     limit agent_sessions.page_rows(audit_list.max_rows, 100))
    union all
    (select m.stream, m.seq, m.event_id, m.occurred_at, m.recorded_at, m.action, m.actor, m.target, m.session_id, m.status, m.attrs,
       m.data, m.fields, m.hash
     from agent_sessions.audit_matching(audit_list.tenant, null, audit_list.actor, audit_list.action, audit_list.target,
       audit_list.session_id, audit_list.status, audit_list.attrs, audit_list.since, audit_list.until) m
     where (select audit_list.stream is null and audit_list.newest_first is not false)
     order by coalesce(m.occurred_at, m.recorded_at) desc, m.stream desc, m.seq desc
     limit agent_sessions.page_rows(audit_list.max_rows, 100))
    union all
    (select m.stream, m.seq, m.event_id, m.occurred_at, m.recorded_at, m.action, m.actor, m.target, m.session_id, m.status, m.attrs,
       m.data, m.fields, m.hash
     from agent_sessions.audit_matching(audit_list.tenant, null, audit_list.actor, audit_list.action, audit_list.target,
       audit_list.session_id, audit_list.status, audit_list.attrs, audit_list.since, audit_list.until) m
     where (select audit_list.stream is null and audit_list.newest_first is false)
     order by coalesce(m.occurred_at, m.recorded_at), m.stream, m.seq
     limit agent_sessions.page_rows(audit_list.max_rows, 100))
  )
  select p.stream, p.seq, p.event_id, p.occurred_at, p.recorded_at, p.action, p.actor, p.target, p.session_id, p.status, p.attrs,
    agent_sessions.audit_payload(p.data), p.fields is not null, p.hash
  from page p;
end;
comment on function agent_sessions.audit_list(text, text, text, text, text, text, jsonb, timestamptz, timestamptz, bigint, bigint, boolean, integer, text) is
  'Events of a stream in the order of seq, or of all streams by occurred_at when stream is NULL; the newest first unless newest_first is false. after, before: seqs, themselves excluded, of a stream. since, until: times, until excluded. max_rows: 100 when NULL; SE001 if negative';

create function agent_sessions.audit_stats(
  stream text default null,
  since timestamptz default null,
  until timestamptz default null,
  tenant text default null
) returns table (action text, status text, events bigint, first_at timestamptz, last_at timestamptz)
language sql stable parallel safe
begin atomic
  select m.action, m.status, count(*), min(coalesce(m.occurred_at, m.recorded_at)), max(coalesce(m.occurred_at, m.recorded_at))
  from agent_sessions.audit_matching(audit_stats.tenant, audit_stats.stream, null, null, null, null, null, null,
    audit_stats.since, audit_stats.until) m
  group by m.action, m.status
  order by m.action, m.status;
end;
comment on function agent_sessions.audit_stats(text, timestamptz, timestamptz, text) is
  'The events of a stream, or of all when NULL, counted by action and status';

create function agent_sessions.audit_export(
  stream text default '',
  after bigint default null,
  max_rows integer default null,
  tenant text default null
) returns setof text
language sql stable parallel safe
begin atomic
  select json_build_object('stream', e.stream, 'seq', e.seq, 'prev_hash', e.prev_hash, 'hash', e.hash, 'data', e.data)::text
  from agent_sessions.audit_event e
  where e.tenant = case when audit_export.tenant is null then (select agent_sessions.visible_tenant()) else audit_export.tenant end
    and (audit_export.tenant is not null or (select agent_sessions.current_tenant()) is not null)
    and e.stream = case when audit_export.stream is null then '' else audit_export.stream end
    and e.seq > (select greatest(audit_export.after, 0))
  order by e.seq
  limit agent_sessions.page_rows(audit_export.max_rows, null);
end;
comment on function agent_sessions.audit_export(text, bigint, integer, text) is
  'A stream as NDJSON: a line per event, an object of stream, seq, prev_hash, hash and data, the exact text that was hashed. after: a seq, itself excluded. max_rows: all when NULL; SE001 if negative';

create function agent_sessions.audit_verify(
  stream text default null,
  from_seq bigint default null,
  head_seq bigint default null,
  head_hash text default null,
  tenant text default null
) returns table (stream text, entries bigint, redacted bigint, ok boolean, first_bad_seq bigint, reason text)
language c stable parallel restricted as 'MODULE_PATHNAME', 'agent_sessions_audit_verify';
comment on function agent_sessions.audit_verify(text, bigint, bigint, text, text) is
  'Recomputes the chain of a stream, or of every stream when NULL, a row each, in memory that does not grow with its length: every link, dense seqs, and that the columns say what data says. from_seq: begins there, trusting the event before. head_seq and head_hash: an older head that has to be in the chain, which a cut tail has lost. redacted: how many events audit_prune has removed. SE001';
