-- What is wrong, or about to be, and what to do about it. The views of findings find it; here each check becomes one row.

create function agent_sessions.doctor_report(
  library text,
  older_than interval
) returns table (check_name text, status text, detail text, remedy text)
language sql stable parallel restricted
begin atomic
  with checks (name, ordinal) as (
    select c.name, c.ordinal
    from unnest(array['library', 'members', 'columns', 'constraints', 'indexes', 'triggers', 'policies', 'row_security', 'views',
      'functions', 'dumps', 'statistics', 'ownership', 'grants', 'bindings', 'sessions', 'logs', 'audit', 'leases', 'sequences',
      'snapshots', 'idle_timeout', 'replication_role', 'settings', 'durability']) with ordinality c (name, ordinal)
  ), finding as (
    select 'library' as check_name, 'fail' as severity,
      format('the schema is of version %s, the library that this session has loaded of %s', e.extversion, doctor_report.library) as finding,
      format(E'-- connect anew, and if the library is the newer one then:\nalter extension agent_sessions update to %L;', doctor_report.library)
        as remedy,
      1 as step, null::timestamptz as since
    from pg_extension e where e.extname = 'agent_sessions' and e.extversion <> doctor_report.library
    union all
    select f.check_name, f.severity, f.finding, f.remedy, f.step, f.since from agent_sessions.finding_catalog f
    union all
    select f.check_name, f.severity, f.finding, f.remedy, f.step, f.since from agent_sessions.finding_access f
    union all
    select f.check_name, f.severity, f.finding, f.remedy, f.step, f.since from agent_sessions.finding_data f
    union all
    select f.check_name, f.severity, f.finding, f.remedy, f.step, f.since from agent_sessions.finding_server f
  ), current_finding as (
    select f.check_name, f.severity, f.finding, f.remedy, f.step,
      row_number() over (partition by f.check_name order by f.step, f.finding) as number,
      row_number() over (partition by f.check_name, f.remedy order by f.step) = 1 as is_first
    from finding f
    where f.since is null or f.since <= now() - coalesce(doctor_report.older_than, interval '1 hour')
  )
  select c.name,
    case when bool_or(f.severity = 'fail') then 'fail' when bool_or(f.severity = 'warn') then 'warn' else 'ok' end,
    string_agg(f.finding, E'\n' order by f.number) filter (where f.number <= 100)
      || case when count(*) > 100 then format(E'\nand %s more', count(*) - 100) else '' end,
    string_agg(f.remedy, E'\n' order by f.number) filter (where f.is_first and f.number <= 100)
  from checks c left join current_finding f on f.check_name = c.name
  group by c.name, c.ordinal
  order by c.ordinal;
end;
comment on function agent_sessions.doctor_report(text, interval) is
  'Internal: the report of doctor(), as the caller sees the tables; library: the version of the loaded library';

-- The path and the quoting are those under which as_installed was written.
create function agent_sessions.doctor(
  older_than interval default '1 hour'
) returns table (check_name text, status text, detail text, remedy text)
language c stable parallel restricted rows 25
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as 'MODULE_PATHNAME', 'agent_sessions_doctor';
comment on function agent_sessions.doctor(interval) is
  'Looks after the installation, over all tenants: a row for each check, with its status (ok, warn or fail), what was found, and statements that mend it, for the owner or where it says so for a superuser; read them before you run them, and call it again afterwards. older_than: from what age on a transaction that is still open, or a lease that has expired, is found. Changes nothing. Reads session once and looks up one entry per log, some 20 microseconds for each session. For admins, who learn numbers of other tenants and no names. SE001';
