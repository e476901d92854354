-- The same rows in a table with nothing but its primary key, and no policy.
create table bench.history_floor (
  like agent_sessions.session_item including storage including compression
);
insert into bench.history_floor select * from agent_sessions.session_item order by sid, position;
alter table bench.history_floor add primary key (sid, position);
grant select on bench.history_floor to bench_writer;
