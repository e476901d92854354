create table agent_sessions.session (
  sid bigint generated always as identity,
  tenant text collate "C" not null,
  agent_id text collate "C" not null,
  session_id text collate "C" not null,
  owner text collate "C",
  parent_sid bigint,
  branched_from bigint,
  fork_position bigint,
  fork_digest bytea,
  origin text collate "C",
  title text,
  status text collate "C",
  metadata jsonb,
  state json,
  revision bigint not null,
  input_tokens bigint,
  output_tokens bigint,
  cost numeric,
  lease_digest bytea,
  lease_fence bigint not null default 0,
  lease_holder text,
  lease_expires_at timestamptz,
  base_position bigint not null default 0,
  base_digest bytea,
  active_at timestamptz not null,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  closed_at timestamptz,
  expires_at timestamptz,
  deleted_at timestamptz,
  constraint session_revision_check check (revision >= 0),
  constraint session_usage_check check (input_tokens >= 0 and output_tokens >= 0 and cost >= 0 and cost < 'infinity'),
  constraint session_times_check check (isfinite(created_at) and isfinite(active_at)),
  constraint session_lease_check check (
    (lease_digest is null) = (lease_expires_at is null) and octet_length(lease_digest) = 32 and lease_fence >= 0
  ),
  constraint session_base_check check (base_position >= 0 and (base_position > 0) = (base_digest is not null)),
  constraint session_fork_check check (
    fork_position >= 0 and octet_length(fork_digest) = 32 and (fork_position is null) = (fork_digest is null)
  )
);

-- Values would survive an erasure in pg_statistic.
alter table agent_sessions.session
  alter column metadata set statistics 0,
  alter column state set statistics 0;

create index session_created_idx on agent_sessions.session (tenant, created_at, sid);
create index session_active_idx on agent_sessions.session (tenant, active_at, sid);
create index session_owner_idx on agent_sessions.session (tenant, owner, active_at, sid);
create index session_agent_idx on agent_sessions.session (tenant, agent_id, active_at, sid);
create index session_expires_idx on agent_sessions.session (tenant, expires_at, sid) where expires_at is not null;
create index session_parent_idx on agent_sessions.session (parent_sid) where parent_sid is not null;
create index session_branch_idx on agent_sessions.session (branched_from) where branched_from is not null;
-- The last ones: without statistics the planner takes the last one made, among those that cost the same.
create unique index session_key on agent_sessions.session (tenant, session_id, agent_id) where deleted_at is null;
alter table agent_sessions.session add constraint session_pkey primary key (sid);

comment on index agent_sessions.session_key is 'In this order, so that a session is found under whichever agent has it';
comment on table agent_sessions.session is 'One row per session: who it is, its state document, its lease. Appending locks the row and changes nothing in it';
comment on column agent_sessions.session.sid is 'Internal key; no function takes or returns it';
comment on column agent_sessions.session.tenant is 'The tenant, from the setting agent_sessions.tenant; up to 500 characters';
comment on column agent_sessions.session.agent_id is 'The agent, unique together with tenant and session_id; may be empty';
comment on column agent_sessions.session.session_id is 'The client''s id, 1 to 500 characters; a UUIDv7 when left out';
comment on column agent_sessions.session.owner is 'Whose session it is, for listing; not a PostgreSQL role';
comment on column agent_sessions.session.parent_sid is 'The session that this one is a sub-session of';
comment on column agent_sessions.session.branched_from is 'The session that this one is a branch of';
comment on column agent_sessions.session.fork_position is 'The branch''s first own position: one after the last that it inherits; NULL if it inherits nothing';
comment on column agent_sessions.session.fork_digest is 'The digest that the inherited log ended with: what the branch''s genesis stands on';
comment on column agent_sessions.session.origin is 'The program or place that the session belongs to; calls that name another get SE004';
comment on column agent_sessions.session.title is 'A title for people, up to 10000 characters';
comment on column agent_sessions.session.status is 'A word of the client''s; closed sets closed_at';
comment on column agent_sessions.session.metadata is 'Facts to search for';
comment on column agent_sessions.session.state is 'The state document, kept byte for byte';
comment on column agent_sessions.session.revision is 'Moves by one with every change of owner, origin, title, status, metadata, state or closed_at';
comment on column agent_sessions.session.input_tokens is 'Total of tokens read, as the client counts them';
comment on column agent_sessions.session.output_tokens is 'Total of tokens written, as the client counts them';
comment on column agent_sessions.session.cost is 'Total cost, in the client''s unit';
comment on column agent_sessions.session.lease_digest is 'SHA-256 of the live lease''s nonce';
comment on column agent_sessions.session.lease_fence is 'Larger with every claim';
comment on column agent_sessions.session.lease_holder is 'Who holds the lease, for people';
comment on column agent_sessions.session.lease_expires_at is 'When the lease ends, by the server''s clock';
comment on column agent_sessions.session.base_position is 'The first position that retention has left in the log';
comment on column agent_sessions.session.base_digest is 'The digest of the last entry that retention has removed';
comment on column agent_sessions.session.active_at is 'The last append, to within 60 seconds';
comment on column agent_sessions.session.created_at is 'When the session was created; part of its genesis digest';
comment on column agent_sessions.session.updated_at is 'The last change of this row';
comment on column agent_sessions.session.closed_at is 'Since when the status is closed';
comment on column agent_sessions.session.expires_at is 'After this time, retention may delete the session';
comment on column agent_sessions.session.deleted_at is 'Since when the session is hidden, because branches still need its log';
