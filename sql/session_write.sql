create function agent_sessions.session_create(
  session_id text default null,
  title text default null,
  metadata jsonb default null,
  state json default null,
  owner text default null,
  origin text default null,
  parent_session_id text default null,
  parent_agent_id text default null,
  items json default null,
  status text default null,
  input_tokens bigint default null,
  output_tokens bigint default null,
  cost numeric default null,
  expires_at timestamptz default null,
  created_at timestamptz default null,
  on_conflict text default 'error',
  agent_id text default null
) returns setof agent_sessions.session_row
language c volatile parallel unsafe rows 1 as 'MODULE_PATHNAME', 'agent_sessions_session_create';
comment on function agent_sessions.session_create(text, text, jsonb, json, text, text, text, text, json, text, bigint, bigint, numeric, timestamptz, timestamptz, text, text) is
  'Creates a session at revision 0 and returns it. session_id: a UUIDv7 when NULL. items: a first batch, as in session_append_batch. parent_agent_id: agent_id when NULL. on_conflict: error (SE003) or keep, which returns the stored one unchanged. SE001 malformed, SE002 no such parent, SE018 too large';

create function agent_sessions.session_set(
  session_id text,
  state json default null,
  metadata jsonb default null,
  merge boolean default false,
  title text default null,
  status text default null,
  owner text default null,
  input_tokens bigint default null,
  output_tokens bigint default null,
  cost numeric default null,
  origin text default null,
  expires_at timestamptz default null,
  created_at timestamptz default null,
  expected_revision bigint default null,
  on_missing text default 'error',
  agent_id text default null,
  lease text default null
) returns bigint
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_session_set';
comment on function agent_sessions.session_set(text, json, jsonb, boolean, text, text, text, bigint, bigint, numeric, text, timestamptz, timestamptz, bigint, text, text, text) is
  'Changes what is given, and returns the new revision; 1 when it creates. merge: replace top-level keys of state and metadata only. origin: must equal the stored one (SE004); origin and created_at are set on creation only. expected_revision: SE006 if it has passed. SE001, SE002, SE008, SE009, SE018';

create function agent_sessions.session_delete(
  session_id text,
  on_missing text default 'error',
  agent_id text default null,
  lease text default null
) returns boolean
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_session_delete';
comment on function agent_sessions.session_delete(text, text, text, text) is
  'Deletes the session, its log and its sub-sessions. Those whose log a branch needs are hidden instead, and go with the last such branch. on_missing: error (SE002) or ignore, which returns NULL. SE001, SE008, SE009';
