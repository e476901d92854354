create sequence agent_sessions.lease_fence_seq;
comment on sequence agent_sessions.lease_fence_seq is 'Where fences come from; a fence is larger than every earlier one of its session, whatever becomes of the sequence';

create function agent_sessions.session_claim(
  session_id text,
  ttl interval,
  holder text default null,
  wait interval default '0',
  on_missing text default 'create',
  agent_id text default null
) returns table (lease text, fence bigint, expires_at timestamptz, remaining_ms integer)
language c volatile parallel unsafe rows 1 as 'MODULE_PATHNAME', 'agent_sessions_session_claim';
comment on function agent_sessions.session_claim(text, interval, text, interval, text, text) is
  'Claims the session for ttl (up to 24 hours) and returns the lease, an opaque text, with its fence; no row while another''s is live. holder: a name for people. wait: how long to wait for a live lease or a transaction that holds the session (one that is just creating it is waited for in any case); 0 waits for the row lock only, up to lock_timeout. on_missing: create, error (SE002) or ignore. SE001';

create function agent_sessions.session_claim_next(
  status text default null,
  ttl interval default null,
  holder text default null,
  owner text default null,
  agent_id text default null
) returns table (lease text, fence bigint, expires_at timestamptz, remaining_ms integer, session_id text, agent_id text)
language c volatile parallel unsafe rows 1 as 'MODULE_PATHNAME', 'agent_sessions_session_claim_next';
comment on function agent_sessions.session_claim_next(text, interval, text, text, text) is
  'Claims the session that has been inactive for longest, among those of that status (not closed when NULL), owner and agent that nobody holds or has locked; no row when there is none. ttl: up to 24 hours. SE001';

create function agent_sessions.session_extend(
  session_id text,
  lease text,
  ttl interval,
  allow_expired boolean default false,
  agent_id text default null
) returns table (lease text, fence bigint, expires_at timestamptz, remaining_ms integer)
language c volatile parallel unsafe rows 1 as 'MODULE_PATHNAME', 'agent_sessions_session_extend';
comment on function agent_sessions.session_extend(text, text, interval, boolean, text) is
  'Makes the lease last ttl from now. SE008 if it is not the live one; allow_expired revives one that has expired if nobody has claimed since. SE001, SE002';

create function agent_sessions.session_release(
  session_id text,
  lease text,
  agent_id text default null
) returns boolean
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_session_release';
comment on function agent_sessions.session_release(text, text, text) is
  'Ends the lease; false, and nothing changes, if it was not the session''s last. Raises no error of the contract';

create function agent_sessions.session_break_lease(
  session_id text,
  agent_id text default null
) returns boolean
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_session_break_lease';
comment on function agent_sessions.session_break_lease(text, text) is
  'Ends whatever lease the session has; false if it has none. The holder''s next write is SE008. For admins. SE001, SE002';

create view agent_sessions.lease_status with (security_invoker = true) as
select
  s.session_id, s.agent_id, s.owner, s.lease_holder as holder, s.lease_fence as fence, s.lease_expires_at as expires_at,
  s.lease_expires_at > clock_timestamp() as live, s.lease_expires_at - clock_timestamp() as remaining
from agent_sessions.session s
where s.tenant = (select agent_sessions.visible_tenant()) and s.deleted_at is null and s.lease_expires_at is not null;
comment on view agent_sessions.lease_status is 'The sessions that have a lease, live or expired, and were not released since';
