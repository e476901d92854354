create function agent_sessions.schema_version() returns text
language c stable parallel safe as 'MODULE_PATHNAME', 'agent_sessions_schema_version';
comment on function agent_sessions.schema_version() is 'The version of the installed schema';

create function agent_sessions.schema_require(min text default null, max text default null) returns void
language c stable parallel safe as 'MODULE_PATHNAME', 'agent_sessions_schema_require';
comment on function agent_sessions.schema_require(text, text) is
  'SE005 unless min <= schema_version() <= max and the library is of that version too. A bound that is NULL does not bind. SE001 for a malformed version';
