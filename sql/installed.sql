-- Everything is made: what doctor() compares with, in PostgreSQL's own words. One value, since 500 of them take a while to plan.
set local quote_all_identifiers = off;
do $$
begin
  execute format(
    'create or replace view agent_sessions.as_installed with (security_invoker = true) as
     select i.kind, i.name, i.statement from json_to_recordset(%L) i (kind text, name text, statement text)',
    (select json_agg(json_build_object('kind', f.kind, 'name', f.name, 'statement', f.statement) order by f.kind, f.name)
     from agent_sessions.as_found f)
  );
end
$$;
