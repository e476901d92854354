-- Long logs, made where they are kept.
create schema if not exists bench;
grant usage on schema bench to public;

create function bench.batch(items bigint, bytes integer) returns json
language sql immutable parallel safe
return (
  select ('[' || string_agg('{"payload":{"role":"assistant","content":"' || left(
    (select string_agg(md5(number || '.' || part), ' ') from generate_series(0, bytes / 33) part), bytes - 33) || '"}}', ',') || ']')::json
  from generate_series(1, items) number);
comment on function bench.batch(bigint, integer) is
  'The elements of a batch: messages of so many bytes each, of words that do not come again in the batch';

create procedure bench.fill(session text, items bigint, bytes integer)
language plpgsql as $$
declare
  size constant bigint := 1000;
  batch constant json := bench.batch(size, bytes);
  rest constant bigint := items % size;
begin
  for number in 1..items / size loop
    perform count(*) from agent_sessions.session_append_batch(session, batch, on_missing => 'create');
    commit;
  end loop;
  if rest > 0 then
    perform count(*) from agent_sessions.session_append_batch(session, bench.batch(rest, bytes), on_missing => 'create');
  end if;
end
$$;
comment on procedure bench.fill(text, bigint, integer) is 'Appends so many items to a session, which is created if it is not there';

create procedure bench.fill_sessions(sessions bigint, items bigint, bytes integer)
language plpgsql as $$
declare
  batch constant json := bench.batch(items, bytes);
begin
  for number in 1..sessions loop
    perform count(*) from agent_sessions.session_append_batch('s' || number, batch, on_missing => 'create');
    if number % 100 = 0 then
      commit;
    end if;
  end loop;
end
$$;
comment on procedure bench.fill_sessions(bigint, bigint, integer) is 'Appends so many items to each of the sessions s1, s2 and on';
