create function agent_sessions.session_branch(
  session_id text,
  at_target bigint default null,
  at_item_id text default null,
  at_tag text default null,
  new_session_id text default null,
  inherit boolean default true,
  seed json default null,
  title text default null,
  new_agent_id text default null,
  agent_id text default null,
  lease text default null
) returns setof agent_sessions.session_row
language c volatile parallel unsafe rows 1 as 'MODULE_PATHNAME', 'agent_sessions_session_branch';
comment on function agent_sessions.session_branch(text, bigint, text, text, text, boolean, json, text, text, text, text) is
  'Makes a session whose log begins with the source''s, up to and including an entry, and returns it. Nothing of the log is copied; owner, origin, title, metadata and state are. at_target: the last position that it inherits, which shows as it was then; at_item_id, at_tag: the live item of that id, the newest live one of that tag; the whole log when none is given. new_session_id: a UUIDv7 when NULL. new_agent_id: agent_id when NULL. inherit: false records the source and begins an empty log. seed: the payload of a first item of kind seed. title: %d becomes a number among the branches of the source. SE001, SE002, SE003, SE008, SE009, SE012, SE018, 40001';

create function agent_sessions.session_lineage(
  session_id text,
  agent_id text default null,
  tenant text default null
) returns table (depth integer, session_id text, agent_id text, fork_position bigint, created_at timestamptz)
language c stable parallel restricted rows 5 as 'MODULE_PATHNAME', 'agent_sessions_session_lineage';
comment on function agent_sessions.session_lineage(text, text, text) is
  'The session (depth 0), the one that it branched off (1), and so on to the oldest. Those that were deleted are left out. No row for a session that does not exist';

create function agent_sessions.session_flatten(
  session_id text,
  agent_id text default null,
  lease text default null
) returns bigint
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_session_flatten';
comment on function agent_sessions.session_flatten(text, text, text) is
  'Copies what a branch inherits into its own log, at the same positions, and lets go of its source, whose deletion is then free. Returns how many entries were copied; 0 for a session that inherits nothing. History and positions stay; the copies are chained anew, the branch''s own entries keep their digests, and entries that explain a trimmed beginning or an erased copy are added. Branches of it that leave within the inheritance become branches of the ancestor that holds it. SE017 if the inherited log does not verify. SE001, SE002, SE008, SE009, 40001';
