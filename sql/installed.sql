-- Everything is made: what doctor() compares with, in PostgreSQL's own words.
set local quote_all_identifiers = off;
insert into agent_sessions.as_installed (kind, name, statement) select f.kind, f.name, f.statement from agent_sessions.as_found f;
