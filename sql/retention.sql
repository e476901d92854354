create function agent_sessions.session_trim(
  session_id text,
  keep_from bigint,
  force boolean default false,
  agent_id text default null,
  lease text default null
) returns bigint
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_session_trim';
comment on function agent_sessions.session_trim(text, bigint, boolean, text, text) is
  'Removes the entries before keep_from for good, and returns how many; the log then verifies from there, and a trim entry says so; item_ids that were removed are free again. Keeps the newest entry in any case, what the newest live summary keeps, unless force, and everything while a branch needs it. SE001, SE002, SE008, SE009, 40001';

create function agent_sessions.session_erase(
  session_id text,
  target bigint default null,
  item_id text default null,
  reason text default null,
  agent_id text default null,
  lease text default null
) returns bigint
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_session_erase';
comment on function agent_sessions.session_erase(text, bigint, text, text, text, text) is
  'Destroys the payload and attrs of the entry at target alone, or of the item with item_id and all its revisions, for every branch that shares them (revisions that another branch has made are its own to erase), and returns how many entries lost theirs. The chain still verifies, and an erase entry tells the reason (up to 500 characters). The bytes leave the data files with VACUUM FULL, WAL and backups as they age. SE001, SE002, SE008, SE009, SE011, 40001';

create function agent_sessions.session_expire(
  older_than interval default null,
  max_rows integer default 1000
) returns bigint
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_session_expire';
comment on function agent_sessions.session_expire(interval, integer) is
  'Deletes sessions of the tenant whose expires_at has passed and, with older_than, those that were inactive for longer; each with its sub-sessions, and at most max_rows of them. Returns how many; call it until that is less than max_rows. Leaves out what is locked or under a live lease. SE001';
