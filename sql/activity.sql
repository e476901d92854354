-- Both views show what row-level security lets a role see, of whatever tenant: its own to an application; all of them, and
-- the hidden sessions, to the tables' owner and to a role with BYPASSRLS. What a sub-select reads is not read unless its
-- column is asked for.

create view agent_sessions.session_activity with (security_invoker = true) as
select
  s.tenant, s.agent_id, s.session_id, s.owner, s.status, s.created_at, s.active_at,
  (select i.created_at from agent_sessions.session_item i where i.sid = s.sid order by i.position desc limit 1) as last_entry_at,
  coalesce((
    -- a branch that was flattened has its own log from the beginning
    select i.position + 1 - case when s.branched_from is null then s.base_position else greatest(s.base_position, s.fork_position) end
    from agent_sessions.session_item i where i.sid = s.sid order by i.position desc limit 1
  ), 0) as entries,
  -- Both ends are given, so that the planner takes a log for a short one, to be read by its index. By the average length it
  -- would read all logs for each of them: 31 s against 70 ms for 5 000 sessions, of which one has 100 000 entries.
  (
    select coalesce(sum(coalesce(pg_column_size(i.payload), 0) + coalesce(pg_column_size(i.attrs), 0)), 0)::bigint
    from agent_sessions.session_item i
    where i.sid = s.sid and i.position between s.base_position and 9223372036854775807
  ) as stored_bytes,
  (
    select count(*)
    from agent_sessions.session_item i
    where i.sid = s.sid and i.position between s.base_position and 9223372036854775807 and i.op = 'open'
      and (
        select c.position from agent_sessions.session_item c
        where c.sid = i.sid and c.target = i.position and c.op in ('revise', 'retract')
        order by c.position desc
        limit 1
      ) is null
      and (
        select max(c.position) from agent_sessions.session_item c
        where c.sid = i.sid and c.op = 'retract_from' and c.target <= i.position and c.position > i.position
      ) is null
  ) as open_items,
  (select count(*) from agent_sessions.session b where b.branched_from = s.sid) as branches,
  s.input_tokens, s.output_tokens, s.cost, s.lease_holder, s.lease_expires_at, s.deleted_at
from agent_sessions.session s;
comment on view agent_sessions.session_activity is
  'One row per session that the role may see: of its tenant; of all tenants and hidden ones too for the tables'' owner and roles with BYPASSRLS. A page in the order of active_at costs an index look-up or two per row and column; stored_bytes and open_items read each row''s log besides, without the values that are stored out of line';
comment on column agent_sessions.session_activity.tenant is 'The tenant';
comment on column agent_sessions.session_activity.agent_id is 'The agent';
comment on column agent_sessions.session_activity.session_id is 'The client''s id; a hidden session and a live one may share it';
comment on column agent_sessions.session_activity.owner is 'Whose session it is; not a PostgreSQL role';
comment on column agent_sessions.session_activity.status is 'A word of the client''s';
comment on column agent_sessions.session_activity.created_at is 'When the session was created';
comment on column agent_sessions.session_activity.active_at is 'The last append, to within 60 seconds; pages are cheap in this order';
comment on column agent_sessions.session_activity.last_entry_at is 'When the last entry of its own log was written; one index look-up';
comment on column agent_sessions.session_activity.entries is 'Entries in its own log: without what a branch inherits and what was trimmed; one index look-up';
comment on column agent_sessions.session_activity.stored_bytes is 'Bytes of payloads and attrs in its own log, as stored: compressed, without what was erased. Reads the log, 20 ms for 100 000 entries, but no TOAST';
comment on column agent_sessions.session_activity.open_items is 'Items of its own log that are streamed and not yet closed. Reads the log and looks up each item that was streamed';
comment on column agent_sessions.session_activity.branches is 'Sessions that are branches of this one; one index look-up';
comment on column agent_sessions.session_activity.input_tokens is 'Total of tokens read, as the client counts them';
comment on column agent_sessions.session_activity.output_tokens is 'Total of tokens written, as the client counts them';
comment on column agent_sessions.session_activity.cost is 'Total cost, in the client''s unit';
comment on column agent_sessions.session_activity.lease_holder is 'Who holds the lease, or held it last, for people';
comment on column agent_sessions.session_activity.lease_expires_at is 'When the lease ends or has ended, by the server''s clock; NULL if there is none. lease_status tells the live ones';
comment on column agent_sessions.session_activity.deleted_at is 'Since when the session is hidden, because branches still need its log; NULL for what is not';

create view agent_sessions.tenant_usage with (security_invoker = true) as
select
  head.tenant, head.sessions, head.hidden_sessions, head.live_leases, head.entries, coalesce(log.stored_bytes, 0) as stored_bytes,
  head.input_tokens, head.output_tokens, head.cost, head.active_at
from (
  select
    a.tenant,
    count(*) filter (where a.deleted_at is null) as sessions,
    count(*) filter (where a.deleted_at is not null) as hidden_sessions,
    count(*) filter (where a.deleted_at is null and a.lease_expires_at > statement_timestamp()) as live_leases,
    sum(a.entries)::bigint as entries,
    coalesce(sum(a.input_tokens), 0) as input_tokens,
    coalesce(sum(a.output_tokens), 0) as output_tokens,
    -- numeric ends at 131072 digits: no client may make the sum overflow for all
    coalesce(sum(case when a.cost < 1e100 then a.cost when a.cost >= 1e100 then 1e100 end), 0) as cost,
    max(a.active_at) as active_at
  from agent_sessions.session_activity a
  group by a.tenant
) head
-- One pass over the logs, whatever the number of sessions; the join is removed where stored_bytes is not asked for.
left join (
  select s.tenant, sum(coalesce(pg_column_size(i.payload), 0) + coalesce(pg_column_size(i.attrs), 0))::bigint as stored_bytes
  from agent_sessions.session s
  join agent_sessions.session_item i on i.sid = s.sid
  group by s.tenant
) log on log.tenant = head.tenant;
comment on view agent_sessions.tenant_usage is
  'One row per tenant that the role may see and that has sessions: its own; all of them for the tables'' owner and roles with BYPASSRLS. Reads the rows of session; entries looks each session up in an index, stored_bytes reads all of session_item, without the values that are stored out of line';
comment on column agent_sessions.tenant_usage.tenant is 'The tenant';
comment on column agent_sessions.tenant_usage.sessions is 'Its sessions, without the hidden ones';
comment on column agent_sessions.tenant_usage.hidden_sessions is 'Deleted sessions whose log branches still need; 0 for who is bound by row-level security. All other columns count them, too';
comment on column agent_sessions.tenant_usage.live_leases is 'Sessions that somebody holds now; never hidden ones';
comment on column agent_sessions.tenant_usage.entries is 'Entries of all logs, those that branches share counted once. One index look-up per session: 15 ms for 5 000';
comment on column agent_sessions.tenant_usage.stored_bytes is 'Bytes of payloads and attrs, as stored: compressed, without what was erased. Reads the logs of all tenants once, 30 ms for 100 000 entries, but no TOAST';
comment on column agent_sessions.tenant_usage.input_tokens is 'Total of tokens read, as the clients count them';
comment on column agent_sessions.tenant_usage.output_tokens is 'Total of tokens written, as the clients count them';
comment on column agent_sessions.tenant_usage.cost is 'Total cost, in the clients'' unit; what exceeds 1e100 counts as that';
comment on column agent_sessions.tenant_usage.active_at is 'The last append to any of the sessions, to within 60 seconds';
