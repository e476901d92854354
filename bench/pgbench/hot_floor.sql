-- In one statement, which is cheaper than a transaction of two. Positions of their own let the clients insert without a look at
-- the last one.
\set step :step + 1
with head as materialized (select sid from floor.session where sid = :first for no key update)
insert into floor.session_item (
  sid, position, tenant, agent_id, op, kind, item_id, tag, author, target, payload, attrs, salt, content_digest, digest, created_at,
  imported_at
)
select
  sid, :client_id::bigint * 1000000000 + :step, '', '', 'append', 'message', null, null, null, null, :payload, null,
  gen_random_uuid(), sha256('content'), sha256('entry'), clock_timestamp(), null
from head;
