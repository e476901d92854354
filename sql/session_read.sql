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
  coalesce(tail.position + 1, greatest(s.base_position, s.fork_position)) as next_position,
  tail.created_at as last_entry_at,
  s.input_tokens, s.output_tokens, s.cost, s.origin,
  (select parent.session_id from agent_sessions.session parent where parent.sid = s.parent_sid and parent.deleted_at is null) as parent_session_id,
  (select source.session_id from agent_sessions.session source where source.sid = s.branched_from and source.deleted_at is null) as branched_from,
  s.fork_position, s.lease_holder, s.lease_expires_at, s.expires_at, s.created_at, s.closed_at
from agent_sessions.session s
left join lateral (
  select i.position, i.created_at from agent_sessions.session_item i where i.sid = s.sid order by i.position desc limit 1
) tail on true
where s.deleted_at is null;
comment on view agent_sessions.session_head is 'Internal: the columns of session_row, with the keys that the functions look rows up by';

-- The settings stand in sub-selects: the planner would run a bare call, before tenant_use in the same statement has run. Where no
-- tenant is given, current_tenant() is asked once more, before the first row: its error then tells nothing of what there is.
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
  where h.tenant = case when session_get.tenant is null then (select agent_sessions.visible_tenant()) else session_get.tenant end
    and (session_get.tenant is not null or (select agent_sessions.current_tenant()) is not null)
    and h.agent_id = case when session_get.agent_id is null then (select agent_sessions.current_agent()) else session_get.agent_id end
    and h.session_id = session_get.session_id;
end;
comment on function agent_sessions.session_get(text, text, text) is
  'The session, or no row. agent_id: the setting agent_sessions.agent when NULL';

create function agent_sessions.session_matching(
  tenant text, agent_id text, owner text, origin text, status text, metadata jsonb, title text, roots_only boolean
) returns table (
  sid bigint, owner text, agent_id text, created_at timestamptz, active_at timestamptz, parent_sid bigint, branched_from bigint
)
language sql stable parallel safe
begin atomic
  select s.sid, s.owner, s.agent_id, s.created_at, s.active_at, s.parent_sid, s.branched_from
  from agent_sessions.session s
  where s.deleted_at is null
    and s.tenant = case when session_matching.tenant is null then (select agent_sessions.visible_tenant()) else session_matching.tenant end
    and (session_matching.tenant is not null or (select agent_sessions.current_tenant()) is not null)
    -- One CASE, which the planner takes to let half of the rows through. As filters of their own they would seem to leave one
    -- row, for which sorting the tenant's sessions looks cheaper than keeping to the order of the page.
    and case when (session_matching.agent_id is null or s.agent_id = session_matching.agent_id)
      and (session_matching.owner is null or s.owner = session_matching.owner)
      and (session_matching.origin is null or s.origin = session_matching.origin)
      and (session_matching.status is null or s.status = session_matching.status)
      and (session_matching.metadata is null or s.metadata @> session_matching.metadata)
      and (session_matching.title is null or position(lower(session_matching.title) in lower(s.title)) > 0)
      and (session_matching.roots_only is not true or s.parent_sid is null) then true else false end;
end;
comment on function agent_sessions.session_matching(text, text, text, text, text, jsonb, text, boolean) is
  'Internal: the sessions that the filters of session_list let through; NULL filters nothing';

create function agent_sessions.sids_named(session_id text, tenant text) returns setof bigint
language sql stable parallel safe
begin atomic
  select s.sid from agent_sessions.session s
  where s.tenant = case when sids_named.tenant is null then (select agent_sessions.visible_tenant()) else sids_named.tenant end
    and (sids_named.tenant is not null or (select agent_sessions.current_tenant()) is not null)
    and s.session_id = sids_named.session_id and s.deleted_at is null;
end;
comment on function agent_sessions.sids_named(text, text) is
  'Internal: the keys of the sessions of that id, one for each agent that has one';

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
       and (m.created_at, m.sid)
         < (agent_sessions.cursor_at(session_list.order_by, session_list.after),
           agent_sessions.cursor_sid(session_list.order_by, session_list.after))
     order by m.created_at desc, m.sid desc
     limit agent_sessions.page_rows(session_list.max_rows, 100))
    union all
    (select m.sid, m.active_at
     from agent_sessions.session_matching(session_list.tenant, session_list.agent_id, session_list.owner, session_list.origin,
       session_list.status, session_list.metadata, session_list.title, session_list.roots_only) m
     where (select agent_sessions.list_order(session_list.order_by) = 'activity'
         and session_list.owner is null and session_list.agent_id is null and session_list.parent_session_id is null and session_list.branched_from is null)
       and (m.active_at, m.sid)
         < (agent_sessions.cursor_at(session_list.order_by, session_list.after),
           agent_sessions.cursor_sid(session_list.order_by, session_list.after))
     order by m.active_at desc, m.sid desc
     limit agent_sessions.page_rows(session_list.max_rows, 100))
    union all
    (select m.sid, m.active_at
     from agent_sessions.session_matching(session_list.tenant, session_list.agent_id, session_list.owner, session_list.origin,
       session_list.status, session_list.metadata, session_list.title, session_list.roots_only) m
     where (select agent_sessions.list_order(session_list.order_by) = 'activity'
         and session_list.owner is not null and session_list.parent_session_id is null and session_list.branched_from is null)
       -- a column of a function's table has the default collation, which the index has not
       and m.owner collate "C" = session_list.owner
       and (m.active_at, m.sid)
         < (agent_sessions.cursor_at(session_list.order_by, session_list.after),
           agent_sessions.cursor_sid(session_list.order_by, session_list.after))
     order by m.active_at desc, m.sid desc
     limit agent_sessions.page_rows(session_list.max_rows, 100))
    union all
    (select m.sid, m.active_at
     from agent_sessions.session_matching(session_list.tenant, session_list.agent_id, session_list.owner, session_list.origin,
       session_list.status, session_list.metadata, session_list.title, session_list.roots_only) m
     where (select agent_sessions.list_order(session_list.order_by) = 'activity'
         and session_list.owner is null and session_list.agent_id is not null and session_list.parent_session_id is null and session_list.branched_from is null)
       and m.agent_id collate "C" = session_list.agent_id
       and (m.active_at, m.sid)
         < (agent_sessions.cursor_at(session_list.order_by, session_list.after),
           agent_sessions.cursor_sid(session_list.order_by, session_list.after))
     order by m.active_at desc, m.sid desc
     limit agent_sessions.page_rows(session_list.max_rows, 100))
    union all
    -- the sub-sessions or branches of one session: few, and OFFSET has them found through it before they are put in order
    (select w.sid, w.at
     from (
       select m.sid, m.branched_from,
         case agent_sessions.list_order(session_list.order_by) when 'created' then m.created_at else m.active_at end as at
       from agent_sessions.session_matching(session_list.tenant, session_list.agent_id, session_list.owner, session_list.origin,
         session_list.status, session_list.metadata, session_list.title, false) m
       where m.parent_sid = any (array(select n from agent_sessions.sids_named(session_list.parent_session_id, session_list.tenant) n))
       offset 0
     ) w
     where (select session_list.parent_session_id is not null)
       and (session_list.branched_from is null or w.branched_from = any (
         array(select n from agent_sessions.sids_named(session_list.branched_from, session_list.tenant) n)))
       and (w.at, w.sid)
         < (agent_sessions.cursor_at(session_list.order_by, session_list.after),
           agent_sessions.cursor_sid(session_list.order_by, session_list.after))
     order by w.at desc, w.sid desc
     limit agent_sessions.page_rows(session_list.max_rows, 100))
    union all
    (select w.sid, w.at
     from (
       select m.sid, m.branched_from,
         case agent_sessions.list_order(session_list.order_by) when 'created' then m.created_at else m.active_at end as at
       from agent_sessions.session_matching(session_list.tenant, session_list.agent_id, session_list.owner, session_list.origin,
         session_list.status, session_list.metadata, session_list.title, session_list.roots_only) m
       where m.branched_from = any (array(select n from agent_sessions.sids_named(session_list.branched_from, session_list.tenant) n))
       offset 0
     ) w
     where (select session_list.branched_from is not null and session_list.parent_session_id is null)
       and (w.at, w.sid)
         < (agent_sessions.cursor_at(session_list.order_by, session_list.after),
           agent_sessions.cursor_sid(session_list.order_by, session_list.after))
     order by w.at desc, w.sid desc
     limit agent_sessions.page_rows(session_list.max_rows, 100))
  )
  select
    h.session_id, h.agent_id, h.owner, h.title, h.status, h.metadata, h.revision, h.next_position, h.last_entry_at,
    h.input_tokens, h.output_tokens, h.cost, h.origin, h.parent_session_id, h.branched_from, h.fork_position,
    h.lease_holder, h.lease_expires_at, h.expires_at, h.created_at, h.closed_at,
    agent_sessions.list_cursor(session_list.order_by, page.at, page.sid)
  from page
  -- OFFSET keeps this a look-up per row: the planner takes a page for a tenth of the table, and would hash all of it
  cross join lateral (
    select
      head.session_id, head.agent_id, head.owner, head.title, head.status, head.metadata, head.revision, head.next_position,
      head.last_entry_at, head.input_tokens, head.output_tokens, head.cost, head.origin, head.parent_session_id,
      head.branched_from, head.fork_position, head.lease_holder, head.lease_expires_at, head.expires_at, head.created_at,
      head.closed_at
    from agent_sessions.session_head head where head.sid = page.sid offset 0
  ) h
  -- checks both words even if no arm has a row to compare
  where agent_sessions.cursor_sid(session_list.order_by, session_list.after) is not null
  order by page.at desc, page.sid desc;
end;
comment on function agent_sessions.session_list(text, text, text, text, text, jsonb, text, boolean, text, text, integer, text, text) is
  'The tenant''s sessions, newest first, without their state. agent_id NULL: all agents. after: the cursor of a row. max_rows: 100 when NULL. title (a part of it, in any case) and metadata (contained) scan the tenant''s sessions. roots_only counts unless parent_session_id is given. SE001 for a malformed order_by, after or max_rows';
