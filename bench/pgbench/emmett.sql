-- The call that Emmett's client makes in a transaction of its own, with literals; here it is prepared and alone.
select success from emt_append_to_stream(
  array[gen_random_uuid()::text], array[:payload::jsonb], array['{}'::jsonb], array['1'], array['message'], array['E'],
  :session::text, 'session', :position::bigint, :partition
);
