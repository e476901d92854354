create table agent_sessions.session_delta (
  sid bigint not null,
  target bigint not null,
  chunk_no integer not null,
  tenant text collate "C" not null,
  agent_id text collate "C" not null,
  chunk text not null,
  constraint session_delta_pkey primary key (sid, target, chunk_no),
  constraint session_delta_chunk_no_check check (chunk_no >= 0)
);

-- Values would survive an erasure in pg_statistic.
alter table agent_sessions.session_delta alter column chunk set statistics 0;

comment on table agent_sessions.session_delta is 'The text of open items, chunk by chunk, outside the chain; gone when the item is closed or retracted';
comment on column agent_sessions.session_delta.sid is 'The session''s internal key';
comment on column agent_sessions.session_delta.target is 'The position of the open item';
comment on column agent_sessions.session_delta.chunk_no is 'How many chunks came before';
comment on column agent_sessions.session_delta.tenant is 'The session''s tenant';
comment on column agent_sessions.session_delta.agent_id is 'The session''s agent';
comment on column agent_sessions.session_delta.chunk is 'The text that this chunk adds';
