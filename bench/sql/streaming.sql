create extension pg_walinspect;
create schema bench;
grant usage on schema bench to public;

create table bench.message (id bigint primary key, body json not null)
with (autovacuum_enabled = off, toast.autovacuum_enabled = off);
comment on table bench.message is 'Messages as most stores keep them, which are written anew as they grow';
grant select, insert, update on bench.message to bench_writer;

-- When these run is left to chance.
alter table agent_sessions.session set (autovacuum_enabled = off);
alter table agent_sessions.session_item set (autovacuum_enabled = off, toast.autovacuum_enabled = off);
alter table agent_sessions.session_delta set (autovacuum_enabled = off);

-- Full-page images depend on when the last checkpoint was; checkpoints and snapshots of the server are nobody's.
create function bench.wal(since pg_lsn, until pg_lsn) returns table (record text, records bigint, bytes bigint)
language sql volatile
begin atomic
  select resource_manager || ' ' || record_type, count(*), sum(record_length - fpi_length)
  from pg_get_wal_records_info(since, until)
  where resource_manager not in ('Standby', 'XLOG')
  group by resource_manager, record_type;
end;
comment on function bench.wal(pg_lsn, pg_lsn) is 'What was written between two places of the WAL, without full-page images';
