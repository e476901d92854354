-- All columns of the row, by literals where a client would know them beforehand: the least work that stores it.
insert into floor.session_item (
  sid, position, tenant, agent_id, op, kind, item_id, tag, author, target, payload, attrs, salt, content_digest, digest, created_at,
  imported_at
)
values (
  :session, :position, '', '', 'append', 'message', null, null, null, null, :payload, null, gen_random_uuid(),
  sha256('content'), sha256('entry'), clock_timestamp(), null
);
