create table agent_sessions.session_item (
  sid bigint not null,
  position bigint not null,
  tenant text collate "C" not null,
  agent_id text collate "C" not null,
  op text collate "C" not null,
  kind text collate "C",
  item_id text collate "C",
  tag text collate "C",
  author text collate "C",
  target bigint,
  payload json,
  attrs jsonb,
  salt uuid,
  content_digest bytea not null,
  digest bytea not null,
  created_at timestamptz not null,
  imported_at timestamptz,
  constraint session_item_pkey primary key (sid, position),
  constraint session_item_position_check check (position >= 0),
  constraint session_item_op_check check (op in ('append', 'open', 'revise', 'retract', 'retract_from', 'trim', 'erase')),
  constraint session_item_kind_check check ((kind is not null) = (op in ('append', 'open'))),
  constraint session_item_names_check check (op in ('append', 'open') or (item_id is null and tag is null and author is null)),
  constraint session_item_target_check check (
    target >= 0 and (target < position or (target = position and op in ('append', 'open'))) or (target is null and op in ('append', 'open'))
  ),
  constraint session_item_payload_check check (
    case when salt is null then payload is null and attrs is null
         else (payload is null) = (op in ('retract', 'retract_from')) end
  ),
  constraint session_item_digest_check check (octet_length(content_digest) = 32 and octet_length(digest) = 32)
);

-- Values would survive an erasure in pg_statistic.
alter table agent_sessions.session_item
  alter column payload set statistics 0,
  alter column attrs set statistics 0;

do $$
begin
  alter table agent_sessions.session_item alter column payload set compression lz4, alter column attrs set compression lz4;
  alter table agent_sessions.session alter column state set compression lz4, alter column metadata set compression lz4;
exception
  when feature_not_supported then
    null;  -- a server built without lz4 compresses with pglz
end
$$;

create unique index session_item_id_key on agent_sessions.session_item (sid, item_id) where item_id is not null;
create index session_item_target_idx on agent_sessions.session_item (sid, target, position) where op in ('revise', 'retract', 'retract_from');
create index session_item_tag_idx on agent_sessions.session_item (sid, tag, position) where tag is not null;
create index session_item_cut_idx on agent_sessions.session_item (sid, position) where op = 'retract_from';
create index session_item_summary_idx on agent_sessions.session_item (sid, position) where target is not null and op in ('append', 'open', 'erase', 'trim');

comment on table agent_sessions.session_item is 'The logs: one row per entry, in the order of position, never updated by a later entry';
comment on column agent_sessions.session_item.sid is 'The session''s internal key';
comment on column agent_sessions.session_item.position is 'The offset in the session''s log: dense, from 0, never reused';
comment on column agent_sessions.session_item.tenant is 'The session''s tenant';
comment on column agent_sessions.session_item.agent_id is 'The session''s agent';
comment on column agent_sessions.session_item.op is 'append, open, revise, retract, retract_from, trim or erase';
comment on column agent_sessions.session_item.kind is 'What the item is, a word of the client''s; message when left out. NULL for an entry about another';
comment on column agent_sessions.session_item.item_id is 'The client''s id, used once in a session: the key of idempotency. Hashed unsalted: keep personal data out';
comment on column agent_sessions.session_item.tag is 'A label to find items by. Hashed unsalted: keep personal data out';
comment on column agent_sessions.session_item.author is 'Who wrote the item. Hashed unsalted: keep personal data out';
comment on column agent_sessions.session_item.target is 'The earlier position that the entry is about: what is revised or retracted, or where a summary''s kept tail begins';
comment on column agent_sessions.session_item.payload is 'The content, kept byte for byte; up to 64 MiB, or what agent_sessions.max_payload_bytes allows';
comment on column agent_sessions.session_item.attrs is 'Facts to search for, given by the client';
comment on column agent_sessions.session_item.salt is 'Random bytes that keep content_digest from telling an erased content';
comment on column agent_sessions.session_item.content_digest is 'SHA-256 of salt, payload and attrs; stays when they are erased';
comment on column agent_sessions.session_item.digest is 'SHA-256 of the previous digest and of the entry: the link of the chain';
comment on column agent_sessions.session_item.created_at is 'When the entry was written, by the server''s clock';

comment on column agent_sessions.session_item.imported_at is 'When session_import has brought the entry: what it says, its time included, is what was imported. NULL for an entry that was written here';

comment on index agent_sessions.session_item_cut_idx is 'The few entries that retract a range, which every reader of a changed log has to know';
comment on index agent_sessions.session_item_target_idx is 'The entries that change what is live; a session without any reads as a bare index scan';
comment on index agent_sessions.session_item_summary_idx is 'The few items that are summaries, of which session_context takes the newest, and what was erased or trimmed';
