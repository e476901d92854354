-- What applications make themselves, at its least: a row to lock for each session, and its messages by number.
create schema hand_written;

create table hand_written.session (id bigint primary key);

create table hand_written.message (
  session_id bigint not null,
  position bigint not null,
  payload json not null,
  created_at timestamptz not null default now(),
  primary key (session_id, position)
);

grant usage on schema hand_written to bench_writer;
grant select, insert, update on hand_written.session to bench_writer;
grant select, insert on hand_written.message to bench_writer;
