create type agent_sessions.item_row as (
  position bigint,
  op text,
  kind text,
  item_id text,
  tag text,
  author text,
  payload json,
  attrs jsonb,
  created_at timestamptz,
  digest bytea,
  revised_at_position bigint,
  open boolean,
  delta_text text
);
comment on type agent_sessions.item_row is
  'A live item: place, item_id, kind, tag and author of its first entry; payload, attrs and digest of its newest revision';

-- What is live follows from the entries: the newest one about an item wins.
create view agent_sessions.live_entry with (security_invoker = true) as
select
  i.sid, i.position, i.tenant, i.agent_id, i.op, i.kind, i.item_id, i.tag, i.author,
  case when newest.position is null then i.payload else newest.payload end as payload,
  case when newest.position is null then i.attrs else newest.attrs end as attrs,
  i.created_at,
  case when newest.position is null then i.digest else newest.digest end as digest,
  newest.position as revised_at_position,
  i.op = 'open' and newest.position is null as open,
  i.target as kept_from,
  case when i.op = 'open' and newest.position is null then (
    select string_agg(d.chunk, '' order by d.chunk_no) from agent_sessions.session_delta d
    where d.sid = i.sid and d.target = i.position) end as delta_text
from agent_sessions.session_item i
left join lateral (
  select c.position, c.op, c.payload, c.attrs, c.digest
  from agent_sessions.session_item c
  where c.sid = i.sid and c.target = i.position and c.op in ('revise', 'retract')
  order by c.position desc
  limit 1
) newest on true
left join lateral (
  select max(c.position) as position
  from agent_sessions.session_item c
  where c.sid = i.sid and c.op = 'retract_from' and c.target <= i.position and c.position > i.position
) cut on true
where i.op in ('append', 'open')
  and newest.op is distinct from 'retract'
  and (cut.position is null or newest.position > cut.position);
comment on view agent_sessions.live_entry is 'Internal: the live items of every log, with the key of their session';

create view agent_sessions.live_item with (security_invoker = true) as
select
  s.session_id, s.agent_id, s.owner, e.position, e.op, e.kind, e.item_id, e.tag, e.author, e.payload, e.attrs,
  e.created_at, e.digest, e.revised_at_position, e.open, e.delta_text
from agent_sessions.session s
join agent_sessions.live_entry e on e.sid = s.sid
where s.tenant = (select agent_sessions.current_tenant()) and s.deleted_at is null;
comment on view agent_sessions.live_item is
  'The live items of all sessions of the tenant, each session''s own. Page by ranges of position: they are dense';

create function agent_sessions.log_of(session_id text, agent_id text, tenant text)
returns table (sid bigint, changed boolean)
language sql stable parallel safe
begin atomic
  select s.sid, exists (
    select from agent_sessions.session_item c
    where c.sid = s.sid and c.target is not null and c.op in ('revise', 'retract', 'retract_from'))
  from agent_sessions.session s
  where s.tenant = case when log_of.tenant is null then (select agent_sessions.current_tenant()) else log_of.tenant end
    and s.agent_id = case when log_of.agent_id is null then (select agent_sessions.current_agent()) else log_of.agent_id end
    and s.session_id = log_of.session_id
    and s.deleted_at is null;
end;
comment on function agent_sessions.log_of(text, text, text) is
  'Internal: the key of a session''s log, and whether any entry of it is about another, so that what is live has to be worked out';

-- One arm per access path and direction; the flags in its WHERE are constants of a call, so that only one arm runs.
-- Flags and bounds stand in sub-selects, which the planner does not fold: an arm that is folded away is planned with parallel
-- workers, which start even so (16 ms against 0.3 ms), and a bound that is folded away makes the page look expensive
-- enough for JIT (490 ms against 1.6 ms). The sub-selects are index conditions under row-level security, too.
create function agent_sessions.session_history(
  session_id text,
  after bigint default null,
  before bigint default null,
  max_rows integer default null,
  newest_first boolean default false,
  kinds text[] default null,
  tags text[] default null,
  item_ids text[] default null,
  attrs jsonb default null,
  agent_id text default null,
  tenant text default null
) returns setof agent_sessions.item_row
language sql stable parallel safe
begin atomic
  with log as materialized (
    select l.sid, l.changed
    from agent_sessions.log_of(session_history.session_id, session_history.agent_id, session_history.tenant) l
  )
  -- nothing in the log is about an earlier entry
  (select i.position, i.op, i.kind, i.item_id, i.tag, i.author, i.payload, i.attrs, i.created_at, i.digest,
     null::bigint, i.op = 'open',
     case when i.op = 'open' then (
       select string_agg(d.chunk, '' order by d.chunk_no) from agent_sessions.session_delta d
       where d.sid = i.sid and d.target = i.position) end
   from agent_sessions.session_item i
   where (select session_history.newest_first is not true) and session_history.tags is null and session_history.item_ids is null
     and not (select log.changed from log)
     and i.sid = (select log.sid from log)
     and i.position > (select greatest(session_history.after, -1)) and i.position < (select least(session_history.before, 9223372036854775807))
     and i.op in ('append', 'open')
     and (session_history.kinds is null or i.kind = any (session_history.kinds))
     and (session_history.attrs is null or i.attrs @> session_history.attrs)
   order by i.position
   limit agent_sessions.page_rows(session_history.max_rows, null))
  union all
  (select i.position, i.op, i.kind, i.item_id, i.tag, i.author, i.payload, i.attrs, i.created_at, i.digest,
     null::bigint, i.op = 'open',
     case when i.op = 'open' then (
       select string_agg(d.chunk, '' order by d.chunk_no) from agent_sessions.session_delta d
       where d.sid = i.sid and d.target = i.position) end
   from agent_sessions.session_item i
   where (select session_history.newest_first) and session_history.tags is null and session_history.item_ids is null
     and not (select log.changed from log)
     and i.sid = (select log.sid from log)
     and i.position > (select greatest(session_history.after, -1)) and i.position < (select least(session_history.before, 9223372036854775807))
     and i.op in ('append', 'open')
     and (session_history.kinds is null or i.kind = any (session_history.kinds))
     and (session_history.attrs is null or i.attrs @> session_history.attrs)
   order by i.position desc
   limit agent_sessions.page_rows(session_history.max_rows, null))
  union all
  (select e.position, e.op, e.kind, e.item_id, e.tag, e.author, e.payload, e.attrs, e.created_at, e.digest,
     e.revised_at_position, e.open, e.delta_text
   from agent_sessions.live_entry e
   where (select session_history.newest_first is not true) and session_history.tags is null and session_history.item_ids is null
     and (select log.changed from log)
     and e.sid = (select log.sid from log)
     and e.position > (select greatest(session_history.after, -1)) and e.position < (select least(session_history.before, 9223372036854775807))
     and (session_history.kinds is null or e.kind = any (session_history.kinds))
     and (session_history.attrs is null or e.attrs @> session_history.attrs)
   order by e.position
   limit agent_sessions.page_rows(session_history.max_rows, null))
  union all
  (select e.position, e.op, e.kind, e.item_id, e.tag, e.author, e.payload, e.attrs, e.created_at, e.digest,
     e.revised_at_position, e.open, e.delta_text
   from agent_sessions.live_entry e
   where (select session_history.newest_first) and session_history.tags is null and session_history.item_ids is null
     and (select log.changed from log)
     and e.sid = (select log.sid from log)
     and e.position > (select greatest(session_history.after, -1)) and e.position < (select least(session_history.before, 9223372036854775807))
     and (session_history.kinds is null or e.kind = any (session_history.kinds))
     and (session_history.attrs is null or e.attrs @> session_history.attrs)
   order by e.position desc
   limit agent_sessions.page_rows(session_history.max_rows, null))
  union all
  -- a page of each tag, then the page of them all
  (select e.position, e.op, e.kind, e.item_id, e.tag, e.author, e.payload, e.attrs, e.created_at, e.digest,
     e.revised_at_position, e.open, e.delta_text
   from (select distinct u.tag from unnest(session_history.tags) u (tag)) wanted
   cross join lateral (
     select t.position, t.op, t.kind, t.item_id, t.tag, t.author, t.payload, t.attrs, t.created_at, t.digest,
       t.revised_at_position, t.open, t.delta_text
     from agent_sessions.live_entry t
     where t.sid = (select log.sid from log) and t.tag = wanted.tag
       and t.position > (select greatest(session_history.after, -1)) and t.position < (select least(session_history.before, 9223372036854775807))
       and (session_history.kinds is null or t.kind = any (session_history.kinds))
       and (session_history.attrs is null or t.attrs @> session_history.attrs)
     order by t.position
     limit agent_sessions.page_rows(session_history.max_rows, null)
   ) e
   where (select session_history.newest_first is not true) and session_history.item_ids is null
   order by e.position
   limit agent_sessions.page_rows(session_history.max_rows, null))
  union all
  (select e.position, e.op, e.kind, e.item_id, e.tag, e.author, e.payload, e.attrs, e.created_at, e.digest,
     e.revised_at_position, e.open, e.delta_text
   from (select distinct u.tag from unnest(session_history.tags) u (tag)) wanted
   cross join lateral (
     select t.position, t.op, t.kind, t.item_id, t.tag, t.author, t.payload, t.attrs, t.created_at, t.digest,
       t.revised_at_position, t.open, t.delta_text
     from agent_sessions.live_entry t
     where t.sid = (select log.sid from log) and t.tag = wanted.tag
       and t.position > (select greatest(session_history.after, -1)) and t.position < (select least(session_history.before, 9223372036854775807))
       and (session_history.kinds is null or t.kind = any (session_history.kinds))
       and (session_history.attrs is null or t.attrs @> session_history.attrs)
     order by t.position desc
     limit agent_sessions.page_rows(session_history.max_rows, null)
   ) e
   where (select session_history.newest_first) and session_history.item_ids is null
   order by e.position desc
   limit agent_sessions.page_rows(session_history.max_rows, null))
  union all
  -- at most as many as ids were given
  (select e.position, e.op, e.kind, e.item_id, e.tag, e.author, e.payload, e.attrs, e.created_at, e.digest,
     e.revised_at_position, e.open, e.delta_text
   from agent_sessions.live_entry e
   where (select session_history.item_ids is not null)
     and e.sid = (select log.sid from log)
     and e.item_id = any (session_history.item_ids)
     -- no index condition: the ids are to be looked up, not the range
     and case when e.position > (select greatest(session_history.after, -1))
       and e.position < (select least(session_history.before, 9223372036854775807)) then true else false end
     and (session_history.tags is null or e.tag = any (session_history.tags))
     and (session_history.kinds is null or e.kind = any (session_history.kinds))
     and (session_history.attrs is null or e.attrs @> session_history.attrs)
   order by case when session_history.newest_first then -e.position else e.position end
   limit agent_sessions.page_rows(session_history.max_rows, null));
end;
comment on function agent_sessions.session_history(text, bigint, bigint, integer, boolean, text[], text[], text[], jsonb, text, text) is
  'The live items in the order of the log. after, before: positions, themselves excluded. max_rows: all when NULL. kinds, tags, item_ids: any of these; attrs: contained. No rows for a session that does not exist; SE001 for a negative max_rows';

create function agent_sessions.session_context(
  session_id text,
  max_rows integer default null,
  agent_id text default null,
  tenant text default null
) returns setof agent_sessions.item_row
language sql stable parallel safe
begin atomic
  with log as materialized (
    select l.sid from agent_sessions.log_of(session_context.session_id, session_context.agent_id, session_context.tenant) l
  ),
  summary as materialized (
    select e.position, e.op, e.kind, e.item_id, e.tag, e.author, e.payload, e.attrs, e.created_at, e.digest,
      e.revised_at_position, e.open, e.delta_text, e.kept_from
    from agent_sessions.live_entry e
    where e.sid = (select log.sid from log) and e.kept_from is not null
    order by e.position desc
    limit 1
  )
  select s.position, s.op, s.kind, s.item_id, s.tag, s.author, s.payload, s.attrs, s.created_at, s.digest,
    s.revised_at_position, s.open, s.delta_text
  from summary s
  union all
  (select t.position, t.op, t.kind, t.item_id, t.tag, t.author, t.payload, t.attrs, t.created_at, t.digest,
     t.revised_at_position, t.open, t.delta_text
   from (
     select e.position, e.op, e.kind, e.item_id, e.tag, e.author, e.payload, e.attrs, e.created_at, e.digest,
       e.revised_at_position, e.open, e.delta_text
     from agent_sessions.live_entry e
     where e.sid = (select log.sid from log)
       and e.position >= (select coalesce((select s.kept_from from summary s), 0))
       and e.kept_from is null
     order by e.position desc
     limit agent_sessions.page_rows(session_context.max_rows, null)
   ) t
   order by t.position);
end;
comment on function agent_sessions.session_context(text, integer, text, text) is
  'What the agent has to be shown: the newest live summary, if there is one, then the live items from its kept_from on, or the whole history, without older summaries. max_rows: only so many of these items, the newest; all when NULL. No rows for a session that does not exist; SE001 for a negative max_rows';

create function agent_sessions.session_log(
  session_id text,
  after bigint default null,
  before bigint default null,
  max_rows integer default null,
  newest_first boolean default false,
  agent_id text default null,
  tenant text default null
) returns table (
  "position" bigint, op text, target bigint, kind text, item_id text, tag text, author text, payload json, attrs jsonb,
  created_at timestamptz, digest bytea
)
language sql stable parallel safe
begin atomic
  with log as materialized (
    select l.sid from agent_sessions.log_of(session_log.session_id, session_log.agent_id, session_log.tenant) l
  )
  (select i.position, i.op, i.target, i.kind, i.item_id, i.tag, i.author, i.payload, i.attrs, i.created_at, i.digest
   from agent_sessions.session_item i
   where (select session_log.newest_first is not true)
     and i.sid = (select log.sid from log)
     and i.position > (select greatest(session_log.after, -1)) and i.position < (select least(session_log.before, 9223372036854775807))
   order by i.position
   limit agent_sessions.page_rows(session_log.max_rows, null))
  union all
  (select i.position, i.op, i.target, i.kind, i.item_id, i.tag, i.author, i.payload, i.attrs, i.created_at, i.digest
   from agent_sessions.session_item i
   where (select session_log.newest_first)
     and i.sid = (select log.sid from log)
     and i.position > (select greatest(session_log.after, -1)) and i.position < (select least(session_log.before, 9223372036854775807))
   order by i.position desc
   limit agent_sessions.page_rows(session_log.max_rows, null));
end;
comment on function agent_sessions.session_log(text, bigint, bigint, integer, boolean, text, text) is
  'Every entry of the log, with its op and target. after, before: positions, themselves excluded. max_rows: all when NULL. No rows for a session that does not exist';

create function agent_sessions.session_stats(
  session_id text,
  agent_id text default null,
  tenant text default null
) returns table (kind text, items bigint, bytes bigint, first_at timestamptz, last_at timestamptz)
language sql stable parallel safe
begin atomic
  select e.kind, count(*), coalesce(sum(octet_length(e.payload::text)), 0)::bigint, min(e.created_at), max(e.created_at)
  from agent_sessions.log_of(session_stats.session_id, session_stats.agent_id, session_stats.tenant) l
  join agent_sessions.live_entry e on e.sid = l.sid
  group by e.kind
  order by e.kind;
end;
comment on function agent_sessions.session_stats(text, text, text) is
  'The live items of a session, counted by kind; bytes are those of their payloads';

create function agent_sessions.session_verify(
  session_id text,
  agent_id text default null,
  tenant text default null
) returns table (entries bigint, redacted bigint, ok boolean, first_bad_position bigint, reason text)
language c stable parallel restricted as 'MODULE_PATHNAME', 'agent_sessions_session_verify';
comment on function agent_sessions.session_verify(text, text, text) is
  'Recomputes the chain from the genesis to the last entry, in memory that does not grow with its length. A removed tail needs an anchor to be noticed. No row for a session that does not exist';
