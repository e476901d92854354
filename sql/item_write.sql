create function agent_sessions.session_append(
  session_id text,
  payload json,
  kind text default 'message',
  item_id text default null,
  tag text default null,
  author text default null,
  attrs jsonb default null,
  kept_from bigint default null,
  open boolean default false,
  expected_position bigint default null,
  on_conflict text default 'error',
  on_missing text default 'error',
  agent_id text default null,
  lease text default null
) returns bigint
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_session_append';
comment on function agent_sessions.session_append(text, json, text, text, text, text, jsonb, bigint, boolean, bigint, text, text, text, text) is
  'Appends an item and returns its position. item_id: the same one with the same content yields the first position again, other content is SE010, unless on_conflict is keep or replace. kept_from: the item is a summary, and this position begins the tail that stays beside it. open: the item is streamed and still open. expected_position: SE007 if the item would land elsewhere. on_missing: error (SE002), create or ignore, which returns NULL. SE001, SE008, SE009, SE018; 40001 under REPEATABLE READ and SERIALIZABLE';

create function agent_sessions.session_append_batch(
  session_id text,
  items json,
  expected_position bigint default null,
  on_conflict text default 'error',
  on_missing text default 'error',
  agent_id text default null,
  lease text default null
) returns table (ordinal integer, "position" bigint, item_id text, digest bytea, created_at timestamptz, outcome text)
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_session_append_batch';
comment on function agent_sessions.session_append_batch(text, json, bigint, text, text, text, text) is
  'Appends the objects of a JSON array at contiguous positions, or none of them. An object has payload and, if wanted, kind, item_id, tag, author, attrs, kept_from, on_conflict. One row per object: ordinal from 0, outcome appended, replayed, kept or revised. expected_position: of the first entry written. SE001 and SE018 name the element in DETAIL; otherwise as session_append';

create function agent_sessions.session_revise(
  session_id text,
  payload json,
  target bigint default null,
  item_id text default null,
  kind text default null,
  attrs jsonb default null,
  expected_position bigint default null,
  agent_id text default null,
  lease text default null
) returns bigint
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_session_revise';
comment on function agent_sessions.session_revise(text, json, bigint, text, text, jsonb, bigint, text, text) is
  'Gives the live item at target, or with item_id, new content by a further entry, and returns that entry''s position; closes an open item. The same content as now writes nothing and returns the entry that it stands in. kind: SE011 if the item is of another. SE001, SE002, SE007, SE008, SE009, SE011, SE018, 40001';

create function agent_sessions.session_retract(
  session_id text,
  targets bigint[] default null,
  item_ids text[] default null,
  from_target bigint default null,
  expected_position bigint default null,
  on_missing text default 'error',
  agent_id text default null,
  lease text default null
) returns bigint
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_session_retract';
comment on function agent_sessions.session_retract(text, bigint[], text[], bigint, bigint, text, text, text) is
  'Takes items out of the history, by further entries, and returns how many were live: those at targets and with item_ids, or everything from from_target on (one entry). SE011 for an item that never was. on_missing: error (SE002) or ignore, which returns NULL. SE001, SE007, SE008, SE009, SE018, 40001';

create function agent_sessions.session_pop(
  session_id text,
  agent_id text default null,
  lease text default null
) returns setof agent_sessions.item_row
language c volatile parallel unsafe rows 1 as 'MODULE_PATHNAME', 'agent_sessions_session_pop';
comment on function agent_sessions.session_pop(text, text, text) is
  'Retracts the newest live item and returns it; no row when there is none, or no session. SE008, SE009, 40001';

create function agent_sessions.session_delta(
  session_id text,
  target bigint,
  chunk_no integer,
  chunk text,
  durable boolean default true,
  agent_id text default null,
  lease text default null
) returns integer
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_session_delta';
comment on function agent_sessions.session_delta(text, bigint, integer, text, boolean, text, text) is
  'Adds a chunk to the text of the open item at target, and returns how many there are. chunk_no: how many came before; the last one again is accepted, anything else is SE013. durable: false lets the transaction commit without waiting for the disk, if it writes nothing but such chunks. SE001, SE002, SE008, SE009, SE011, SE018, 40001';
