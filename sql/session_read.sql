create type agent_sessions.session_row as (
  session_id text,
  agent_id text,
  owner text,
  title text,
  status text,
  metadata jsonb,
  state json,
  revision bigint,
  next_position bigint,
  last_entry_at timestamptz,
  input_tokens bigint,
  output_tokens bigint,
  cost numeric,
  origin text,
  parent_session_id text,
  branched_from text,
  fork_position bigint,
  lease_holder text,
  lease_expires_at timestamptz,
  expires_at timestamptz,
  created_at timestamptz,
  closed_at timestamptz,
  cursor text
);
comment on type agent_sessions.session_row is 'A session as the functions show it';

create view agent_sessions.session_head with (security_invoker = true) as
select
  s.sid, s.tenant, s.active_at,
  s.session_id, s.agent_id, s.owner, s.title, s.status, s.metadata, s.state, s.revision,
  coalesce(tail.position + 1, nullif(s.base_position, 0), s.fork_position, 0) as next_position,
  tail.created_at as last_entry_at,
  s.input_tokens, s.output_tokens, s.cost, s.origin,
  (select parent.session_id from agent_sessions.session parent where parent.sid = s.parent_sid) as parent_session_id,
  (select source.session_id from agent_sessions.session source where source.sid = s.branched_from) as branched_from,
  s.fork_position, s.lease_holder, s.lease_expires_at, s.expires_at, s.created_at, s.closed_at
from agent_sessions.session s
left join lateral (
  select i.position, i.created_at from agent_sessions.session_item i where i.sid = s.sid order by i.position desc limit 1
) tail on true
where s.deleted_at is null;
comment on view agent_sessions.session_head is 'Internal: the columns of session_row, with the keys that the functions look rows up by';

-- The settings stand in sub-selects: the planner would run a bare call, before tenant_use in the same statement has run.
create function agent_sessions.session_get(
  session_id text,
  agent_id text default null,
  tenant text default null
) returns setof agent_sessions.session_row
language sql stable parallel safe
begin atomic
  select
    h.session_id, h.agent_id, h.owner, h.title, h.status, h.metadata, h.state, h.revision, h.next_position, h.last_entry_at,
    h.input_tokens, h.output_tokens, h.cost, h.origin, h.parent_session_id, h.branched_from, h.fork_position,
    h.lease_holder, h.lease_expires_at, h.expires_at, h.created_at, h.closed_at,
    agent_sessions.list_cursor('created', h.created_at, h.sid)
  from agent_sessions.session_head h
  where h.tenant = case when session_get.tenant is null then (select agent_sessions.current_tenant()) else session_get.tenant end
    and h.agent_id = case when session_get.agent_id is null then (select agent_sessions.current_agent()) else session_get.agent_id end
    and h.session_id = session_get.session_id;
end;
comment on function agent_sessions.session_get(text, text, text) is
  'The session, or no row. agent_id: the setting agent_sessions.agent when NULL';

create function agent_sessions.session_matching(
  tenant text, agent_id text, owner text, origin text, status text, metadata jsonb, title text, roots_only boolean
) returns table (sid bigint, created_at timestamptz, active_at timestamptz, parent_sid bigint, branched_from bigint)
language sql stable parallel safe
begin atomic
  select s.sid, s.created_at, s.active_at, s.parent_sid, s.branched_from
  from agent_sessions.session s
  where s.deleted_at is null
    and s.tenant = case when session_matching.tenant is null then (select agent_sessions.current_tenant()) else session_matching.tenant end
    and (session_matching.agent_id is null or s.agent_id = session_matching.agent_id)
    and (session_matching.owner is null or s.owner = session_matching.owner)
    and (session_matching.origin is null or s.origin = session_matching.origin)
    and (session_matching.status is null or s.status = session_matching.status)
    and (session_matching.metadata is null or s.metadata @> session_matching.metadata)
    and (session_matching.title is null or position(lower(session_matching.title) in lower(s.title)) > 0)
    and (session_matching.roots_only is not true or s.parent_sid is null);
end;
comment on function agent_sessions.session_matching(text, text, text, text, text, jsonb, text, boolean) is
  'Internal: the sessions that the filters of session_list let through; NULL filters nothing';

-- One arm per access path; the flags in its WHERE are constants of a call, so that only one arm runs.
create function agent_sessions.session_list(
  owner text default null,
  origin text default null,
  status text default null,
  parent_session_id text default null,
  branched_from text default null,
  metadata jsonb default null,
  title text default null,
  roots_only boolean default true,
  order_by text default 'created',
  after text default null,
  max_rows integer default null,
  agent_id text default null,
  tenant text default null
) returns table (
  session_id text, agent_id text, owner text, title text, status text, metadata jsonb, revision bigint, next_position bigint,
  last_entry_at timestamptz, input_tokens bigint, output_tokens bigint, cost numeric, origin text, parent_session_id text,
  branched_from text, fork_position bigint, lease_holder text, lease_expires_at timestamptz, expires_at timestamptz,
  created_at timestamptz, closed_at timestamptz, cursor text
)
language sql stable parallel safe
begin atomic
  with page as (
    (select m.sid, m.created_at as at
     from agent_sessions.session_matching(session_list.tenant, session_list.agent_id, session_list.owner, session_list.origin,
       session_list.status, session_list.metadata, session_list.title, session_list.roots_only) m
     where (select agent_sessions.list_order(session_list.order_by) = 'created'
         and session_list.parent_session_id is null and session_list.branched_from is null)
       and (m.created_at, m.sid) < (agent_sessions.cursor_at(session_list.order_by, session_list.after),
         agent_sessions.cursor_sid(session_list.order_by, session_list.after))
     order by m.created_at desc, m.sid desc
     limit agent_sessions.page_rows(session_list.max_rows, 100))
    union all
    (select m.sid, m.active_at
     from agent_sessions.session_matching(session_list.tenant, session_list.agent_id, session_list.owner, session_list.origin,
       session_list.status, session_list.metadata, session_list.title, session_list.roots_only) m
     where (select agent_sessions.list_order(session_list.order_by) = 'activity'
         and session_list.parent_session_id is null and session_list.branched_from is null)
       and (m.active_at, m.sid) < (agent_sessions.cursor_at(session_list.order_by, session_list.after),
         agent_sessions.cursor_sid(session_list.order_by, session_list.after))
     order by m.active_at desc, m.sid desc
     limit agent_sessions.page_rows(session_list.max_rows, 100))
    union all
    -- the sub-sessions or branches of one session: few, found through it
    (select m.sid, case agent_sessions.list_order(session_list.order_by) when 'created' then m.created_at else m.active_at end
     from agent_sessions.session source
     cross join lateral agent_sessions.session_matching(session_list.tenant, session_list.agent_id, session_list.owner, session_list.origin,
       session_list.status, session_list.metadata, session_list.title, false) m
     where (select session_list.parent_session_id is not null)
       and source.session_id = session_list.parent_session_id and m.parent_sid = source.sid
       and (session_list.branched_from is null or m.branched_from in (
         select b.sid from agent_sessions.session b where b.session_id = session_list.branched_from))
       and (case agent_sessions.list_order(session_list.order_by) when 'created' then m.created_at else m.active_at end, m.sid)
         < (agent_sessions.cursor_at(session_list.order_by, session_list.after),
           agent_sessions.cursor_sid(session_list.order_by, session_list.after))
     order by 2 desc, 1 desc
     limit agent_sessions.page_rows(session_list.max_rows, 100))
    union all
    (select m.sid, case agent_sessions.list_order(session_list.order_by) when 'created' then m.created_at else m.active_at end
     from agent_sessions.session source
     cross join lateral agent_sessions.session_matching(session_list.tenant, session_list.agent_id, session_list.owner, session_list.origin,
       session_list.status, session_list.metadata, session_list.title, session_list.roots_only) m
     where (select session_list.branched_from is not null and session_list.parent_session_id is null)
       and source.session_id = session_list.branched_from and m.branched_from = source.sid
       and (case agent_sessions.list_order(session_list.order_by) when 'created' then m.created_at else m.active_at end, m.sid)
         < (agent_sessions.cursor_at(session_list.order_by, session_list.after),
           agent_sessions.cursor_sid(session_list.order_by, session_list.after))
     order by 2 desc, 1 desc
     limit agent_sessions.page_rows(session_list.max_rows, 100))
  )
  select
    h.session_id, h.agent_id, h.owner, h.title, h.status, h.metadata, h.revision, h.next_position, h.last_entry_at,
    h.input_tokens, h.output_tokens, h.cost, h.origin, h.parent_session_id, h.branched_from, h.fork_position,
    h.lease_holder, h.lease_expires_at, h.expires_at, h.created_at, h.closed_at,
    agent_sessions.list_cursor(session_list.order_by, page.at, page.sid)
  from page join agent_sessions.session_head h on h.sid = page.sid
  -- checks both words even if no arm has a row to compare
  where agent_sessions.cursor_sid(session_list.order_by, session_list.after) is not null
  order by page.at desc, page.sid desc;
end;
comment on function agent_sessions.session_list(text, text, text, text, text, jsonb, text, boolean, text, text, integer, text, text) is
  'The tenant''s sessions, newest first, without their state. agent_id NULL: all agents. after: the cursor of a row. max_rows: 100 when NULL. title (a part of it, in any case) and metadata (contained) scan the tenant''s sessions. roots_only counts unless parent_session_id is given. SE001 for a malformed order_by, after or max_rows';
