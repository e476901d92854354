create function agent_sessions.audit_append(
  action text,
  payload json default null,
  stream text default '',
  actor text default null,
  target text default null,
  session_id text default null,
  status text default null,
  attrs jsonb default null,
  occurred_at timestamptz default null,
  event_id text default null
) returns table (seq bigint, hash text, outcome text)
language c volatile parallel unsafe rows 1 as 'MODULE_PATHNAME', 'agent_sessions_audit_append';
comment on function agent_sessions.audit_append(text, json, text, text, text, text, text, jsonb, timestamptz, text) is
  'Appends an event to a stream, which is made on first use, and returns its place and hash; outcome appended or, for an event_id that came before with the same content, replayed (SE021 for other content). actor: the setting agent_sessions.actor, else the current user. occurred_at: now when NULL; years 0 to 9999. payload: null when NULL. SE001, SE018, SE021; 40001 under REPEATABLE READ and SERIALIZABLE';

create function agent_sessions.audit_append_batch(
  stream text default '',
  events json default null
) returns table (seq bigint, hash text, outcome text)
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_audit_append_batch';
comment on function agent_sessions.audit_append_batch(text, json) is
  'Appends the objects of a JSON array, all or none, and returns a row each, in their order. An object has action and, if wanted, payload, actor, target, session_id, status, attrs, occurred_at (RFC 3339), event_id. SE001 and SE018 name the element in DETAIL; otherwise as audit_append';

create function agent_sessions.audit_import(
  stream text,
  lines json,
  fields jsonb default null
) returns bigint
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_audit_import';
comment on function agent_sessions.audit_import(text, json, jsonb) is
  'Appends events that were chained elsewhere by the same formula, and returns how many: an array of objects with data (the exact text) and hash and, if wanted, prev_hash and seq, as audit_export gives them. The first has to follow the end of the stream. fields: which keys of data go into columns, as {"action": "type", "actor": ["user", "id"]}; occurred_at has to be RFC 3339. Lines of this very stream that come back to their place get all their columns, and are not marked as imported. Verifies all before it writes any: SE017 with the seq of the first that is wrong. SE001, SE018';

create function agent_sessions.audit_prune(
  stream text,
  before_seq bigint
) returns bigint
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_audit_prune';
comment on function agent_sessions.audit_prune(text, bigint) is
  'Removes the events before before_seq for good, and returns how many; the chain verifies from there on. Only as far as an anchor has recorded the stream (SE014). The newest event stays. For admins. SE001';
