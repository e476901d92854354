-- The columns of a history, those that it works out as constants.
select
  position, op, kind, item_id, tag, author, payload, attrs, created_at, digest,
  null::bigint as revised_at_position, false as open, null::text as delta_text
from bench.history_floor
where sid = :sid
order by position desc
limit :page;
