insert into floor.session_item (
  sid, position, tenant, agent_id, op, kind, item_id, tag, author, target, payload, attrs, salt, content_digest, digest, created_at,
  imported_at
)
select
  :session, :position::bigint * 100 + n, '', '', 'append', 'message', null, null, null, null, payload, null, gen_random_uuid(),
  sha256('content'), sha256('entry'), clock_timestamp(), null
from (values /* rows */) rows (n, payload);
