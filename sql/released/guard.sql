-- What is damaged now would be recorded as right when the update ends. doctor() alone is asked, by its exact signature: a view of
-- findings belongs to the owner, who may have changed it, and this runs as a superuser.
do $$
declare
  damage text := (
    select pg_catalog.string_agg(d.detail, pg_catalog.chr(10))
    from agent_sessions.doctor('1 hour'::pg_catalog.interval) d
    where d.status operator(pg_catalog.=) 'fail' and d.check_name operator(pg_catalog.=) any (array['members', 'columns', 'constraints',
      'indexes', 'triggers', 'policies', 'row_security', 'views', 'functions', 'dumps', 'statistics'])
  );
begin
  if damage is not null then
    raise exception using errcode = 'object_not_in_prerequisite_state', message = 'the installation is damaged, and was not updated',
      detail = damage, hint = 'Mend it first: select * from agent_sessions.doctor()';
  end if;
end
$$;
-- What doctor() ran as the owner may have left another path.
set local search_path = pg_catalog, pg_temp;
