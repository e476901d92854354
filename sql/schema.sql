-- The schema is made here, not by the control file: with `schema = agent_sessions` CREATE EXTENSION would adopt a schema
-- that another user made beforehand, and its owner could drop everything in it.
do $$
begin
  if pg_catalog.getdatabaseencoding() <> 'UTF8' then
    raise exception using
      errcode = 'feature_not_supported',
      message = 'agent_sessions needs a database whose encoding is UTF8',
      hint = 'Create the database with ENCODING ''UTF8'' TEMPLATE template0.';
  end if;
end
$$;

create schema agent_sessions;

comment on schema agent_sessions is 'AI agents'' sessions: an append-only log, a state document under compare-and-set, a verifiable chain';
