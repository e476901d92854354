create table agent_sessions.audit_event (
  tenant text collate "C" not null,
  stream text collate "C" not null,
  seq bigint not null,
  event_id text collate "C",
  occurred_at timestamptz,
  recorded_at timestamptz not null,
  action text collate "C",
  actor text collate "C",
  target text collate "C",
  session_id text collate "C",
  status text collate "C",
  attrs jsonb,
  payload json,
  fields jsonb,
  data text not null,
  prev_hash text collate "C" not null,
  hash text collate "C" not null,
  constraint audit_event_seq_check check (seq > 0),
  constraint audit_event_payload_check check (payload is null),
  constraint audit_event_columns_check check (fields is not null or (action is not null and occurred_at is not null))
);

create table agent_sessions.audit_chain (
  tenant text collate "C" not null,
  stream text collate "C" not null,
  base_seq bigint not null default 0,
  base_hash text collate "C",
  constraint audit_chain_pkey primary key (tenant, stream),
  constraint audit_chain_base_check check (base_seq >= 0 and (base_seq > 0) = (base_hash is not null))
);

create table agent_sessions.audit_anchor (
  tenant text collate "C" not null,
  anchor_id bigint not null,
  root text not null,
  chains integer not null,
  at timestamptz not null,
  constraint audit_anchor_pkey primary key (tenant, anchor_id)
);

create table agent_sessions.audit_anchor_leaf (
  tenant text collate "C" not null,
  anchor_id bigint not null,
  ordinal bigint not null,
  leaf text not null,
  stream text collate "C",
  seq bigint,
  constraint audit_anchor_leaf_pkey primary key (tenant, anchor_id, ordinal)
);

create table agent_sessions.audit_tracking (
  tenant text collate "C" not null,
  what text collate "C" not null,
  constraint audit_tracking_pkey primary key (tenant, what)
);

do $$
begin
  alter table agent_sessions.audit_event alter column data set compression lz4, alter column attrs set compression lz4;
exception
  when feature_not_supported then
    null;  -- a server built without lz4 compresses with pglz
end
$$;

create index audit_event_time_idx on agent_sessions.audit_event (tenant, (coalesce(occurred_at, recorded_at)), stream, seq);
create index audit_event_session_idx on agent_sessions.audit_event (tenant, session_id, occurred_at) where session_id is not null;

-- In this order: without statistics the planner takes the last one made, among those that cost the same.
alter table agent_sessions.audit_event add constraint audit_event_pkey primary key (tenant, stream, seq);
create unique index audit_event_id_key on agent_sessions.audit_event (tenant, stream, event_id) where event_id is not null;
create index audit_anchor_leaf_stream_idx on agent_sessions.audit_anchor_leaf (tenant, stream, seq) where stream is not null;

comment on table agent_sessions.audit_event is 'The audit trail: one chain of events per tenant and stream, append-only for everybody';
comment on column agent_sessions.audit_event.tenant is 'The tenant, from the setting agent_sessions.tenant';
comment on column agent_sessions.audit_event.stream is 'The chain that the event belongs to; up to 500 characters, may be empty';
comment on column agent_sessions.audit_event.seq is 'The place in the chain: dense, from 1';
comment on column agent_sessions.audit_event.event_id is 'The client''s id, used once in a stream: the key of idempotency';
comment on column agent_sessions.audit_event.occurred_at is 'When it happened, as the client says; recorded_at when left out';
comment on column agent_sessions.audit_event.recorded_at is 'When the event was written, by the server''s clock';
comment on column agent_sessions.audit_event.action is 'What was done';
comment on column agent_sessions.audit_event.actor is 'Who did it: the setting agent_sessions.actor, or the current user, when left out';
comment on column agent_sessions.audit_event.target is 'What it was done to';
comment on column agent_sessions.audit_event.session_id is 'The session that it belongs to';
comment on column agent_sessions.audit_event.status is 'How it ended';
comment on column agent_sessions.audit_event.attrs is 'Facts to search for';
comment on column agent_sessions.audit_event.payload is 'Given by INSERT, and then a part of data; never stored by itself';
comment on column agent_sessions.audit_event.fields is 'Of an imported event: which keys of data the columns were taken from';
comment on column agent_sessions.audit_event.data is 'The exact text that is hashed: seq, columns and payload as one JSON object; of an imported event its own text';
comment on column agent_sessions.audit_event.prev_hash is 'The hash of the event before; of the first, sha256: and 64 zeros';
comment on column agent_sessions.audit_event.hash is 'sha256: and the hex of SHA-256 over prev_hash, a newline and data';
comment on table agent_sessions.audit_chain is 'One row per stream that was written to: its lock, and what audit_prune has left. The tail is in audit_event';
comment on column agent_sessions.audit_chain.tenant is 'The tenant of the stream';
comment on column agent_sessions.audit_chain.stream is 'The name of the stream';
comment on column agent_sessions.audit_chain.base_seq is 'The last seq that audit_prune has removed, 0 if none';
comment on column agent_sessions.audit_chain.base_hash is 'The hash of the event there, which the first that is left is linked to';
comment on table agent_sessions.audit_anchor is 'The anchors that were made: one root over the heads of all chains of a tenant';
comment on column agent_sessions.audit_anchor.tenant is 'The tenant';
comment on column agent_sessions.audit_anchor.anchor_id is 'Counts the tenant''s anchors, from 1';
comment on column agent_sessions.audit_anchor.root is 'The Merkle root (RFC 6962), in hex: keep it outside of the database';
comment on column agent_sessions.audit_anchor.chains is 'How many leaves it has';
comment on column agent_sessions.audit_anchor.at is 'When it was made';
comment on table agent_sessions.audit_anchor_leaf is 'The heads under each anchor, in the order of the tree';
comment on column agent_sessions.audit_anchor_leaf.tenant is 'The tenant';
comment on column agent_sessions.audit_anchor_leaf.anchor_id is 'The anchor';
comment on column agent_sessions.audit_anchor_leaf.ordinal is 'The place in the tree, from 0: streams by name, then sessions by session_id and agent_id';
comment on column agent_sessions.audit_anchor_leaf.leaf is 'What is hashed: ["stream",tenant,stream,seq,hash] or ["session",tenant,agent_id,session_id,position,digest]';
comment on column agent_sessions.audit_anchor_leaf.stream is 'The stream, if it is one';
comment on column agent_sessions.audit_anchor_leaf.seq is 'The seq of the stream''s head';
comment on table agent_sessions.audit_tracking is 'What the engine writes down of itself, by tenant';
comment on column agent_sessions.audit_tracking.tenant is 'The tenant';
comment on column agent_sessions.audit_tracking.what is 'state, delete, branch, import, erase, trim, lease, access or tenant';
