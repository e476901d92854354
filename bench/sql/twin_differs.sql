-- The first entry of the engine's that the twin would hash in another way; no row if they agree on all of them.
select chained.sid, chained.position
from (
  select
    i.*,
    twin.content_digest(i.salt, i.payload::text, i.attrs::text) as content_of_twin,
    twin.entry_digest(
      lag(i.digest, 1, twin.genesis(s.tenant, s.agent_id, s.session_id, s.created_at)) over log,
      i.position, i.op, i.kind, i.item_id, i.tag, i.author, i.target, i.created_at, i.content_digest
    ) as digest_of_twin
  from agent_sessions.session_item i
  join agent_sessions.session s using (sid)
  window log as (partition by i.sid order by i.position)
) chained
where chained.content_digest <> chained.content_of_twin or chained.digest <> chained.digest_of_twin
order by chained.sid, chained.position
limit 1
