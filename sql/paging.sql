-- Arguments of the lists, checked where they are used: a function in a LIMIT or a row comparison runs once.

create function agent_sessions.page_rows(max_rows integer, otherwise integer) returns bigint
language c immutable parallel safe as 'MODULE_PATHNAME', 'agent_sessions_page_rows';
comment on function agent_sessions.page_rows(integer, integer) is 'max_rows, else otherwise, which may be NULL for all. SE001 if negative';

create function agent_sessions.list_order(order_by text) returns text
language c immutable parallel safe as 'MODULE_PATHNAME', 'agent_sessions_list_order';
comment on function agent_sessions.list_order(text) is 'created or activity, created when NULL. SE001 for any other word';

create function agent_sessions.list_cursor(order_by text, at timestamptz, sid bigint) returns text
language c immutable parallel safe as 'MODULE_PATHNAME', 'agent_sessions_list_cursor';
comment on function agent_sessions.list_cursor(text, timestamptz, bigint) is 'The opaque cursor of a row in a list of that order';

create function agent_sessions.cursor_at(order_by text, after text) returns timestamptz
language c immutable parallel safe as 'MODULE_PATHNAME', 'agent_sessions_cursor_at';
comment on function agent_sessions.cursor_at(text, text) is 'The time in a cursor, infinity when NULL. SE001 if it is not a cursor of that order';

create function agent_sessions.cursor_sid(order_by text, after text) returns bigint
language c immutable parallel safe as 'MODULE_PATHNAME', 'agent_sessions_cursor_sid';
comment on function agent_sessions.cursor_sid(text, text) is 'The key in a cursor, the largest when NULL. SE001 if it is not a cursor of that order';
