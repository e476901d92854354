-- The physical limit: the engine's table with nothing but its primary key. No trigger, no policy, no check.
create schema floor;

create table floor.session_item (
  like agent_sessions.session_item including storage including compression,
  primary key (sid, position)
);

-- What is locked where a lock is part of the least work.
create table floor.session (sid bigint primary key);

grant usage on schema floor to bench_writer;
grant select, insert on floor.session_item to bench_writer;
grant select, update on floor.session to bench_writer;
