create function agent_sessions.session_export(
  session_id text,
  agent_id text default null,
  tenant text default null
) returns setof text
language c stable parallel restricted as 'MODULE_PATHNAME', 'agent_sessions_session_export';
comment on function agent_sessions.session_export(text, text, text) is
  'A session as NDJSON, for session_import, and for other programs to check: a line each for the session, for every entry of its log and for every chunk of an open item, and a last one with the SHA-256 of all lines before. An object of one key that names the kind of the line. JSON columns are texts, byte for byte; bytes are hex; times are microseconds since 2000-01-01 UTC, as they are hashed. Of a branch it names the sessions that it inherits from, those that were deleted included, since the chain stands on them, and brings the entries that it inherits; 42501 if isolation keeps one of them from the caller. Not exported: the lease, but its fence is. No rows for a session that does not exist';

create function agent_sessions.session_import(
  lines json,
  session_id text default null,
  agent_id text default null
) returns setof agent_sessions.session_row
language c volatile parallel unsafe rows 1 as 'MODULE_PATHNAME', 'agent_sessions_session_import';
comment on function agent_sessions.session_import(json, text, text) is
  'Makes a session of the lines of session_export, an array of at most 1000000, and returns it. session_id, agent_id: as the lines say when NULL; the tenant is the current one. Under the same tenant, agent_id and session_id all digests stay, so that an anchor that covered the log holds; else the log is chained anew. A branch becomes a session of its own, as by session_flatten. All lines are verified before anything is written: SE017 with the position of the first entry that is not what was exported. What is imported proves no more than that: whoever may write can make such lines, with any time in them. So every entry is marked for good (imported_at), and audit_track(''import'', true) tells of it. Lines without a format and without digests bring the log of another store: entry lines with payload and, if wanted, kind, item_id, tag, author, target (a summary''s kept_from), attrs and created_at, which may be RFC 3339. SE001, SE003, SE010, SE017, SE018';
