create extension pageinspect;

-- Sessions that were idle, as most of many are: their next append moves active_at.
create procedure bench.age_sessions()
language sql
begin atomic
  update agent_sessions.session set active_at = active_at - interval '2 minutes';
end;

create function bench.pages_read() returns bigint
language sql volatile
return (
  select sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)
  from pg_statio_all_tables
  where schemaname = 'agent_sessions');
comment on function bench.pages_read() is 'How often a page of the extension''s tables and indexes was looked at so far, in memory or not';

create function bench.height(index regclass) returns bigint
language sql volatile
return (select level + 1 from bt_metap(index::text));
comment on function bench.height(regclass) is 'The pages from the root of an index to a leaf';
