-- session_append in PL/pgSQL, over tables of its own: what the engine would be without Rust. It refuses what the engine refuses,
-- by the same SQLSTATEs, and writes the same digests. It is written to be fast: two statements an append, all else is
-- expressions. It runs under READ COMMITTED, and leaves out what an append meets only after other calls (revisions, branches,
-- trimmed logs, tenant bindings, on_conflict => 'replace'), with the indexes, checks and triggers that those need.
create schema twin;

create table twin.session (
  like agent_sessions.session including storage including compression including identity,
  primary key (sid)
);
alter table twin.session alter column revision set default 0, alter column lease_fence set default 0, alter column base_position set default 0;
alter table twin.session alter column active_at set default clock_timestamp();
alter table twin.session alter column created_at set default clock_timestamp();
alter table twin.session alter column updated_at set default clock_timestamp();
create unique index on twin.session (tenant, session_id, agent_id) where deleted_at is null;

create table twin.session_item (
  like agent_sessions.session_item including storage including compression,
  primary key (sid, position)
);
create unique index on twin.session_item (item_id, sid) where item_id is not null;

alter table twin.session enable row level security;
create policy visible on twin.session
using (
  tenant = (select coalesce(current_setting('agent_sessions.tenant', true), ''))
  and deleted_at is null
  and ((select current_setting('agent_sessions.isolation', true)) is distinct from 'agent'
       or agent_id = (select coalesce(current_setting('agent_sessions.agent', true), '')))
);
alter table twin.session_item enable row level security;
create policy visible on twin.session_item
using (
  case when tenant = (select coalesce(current_setting('agent_sessions.tenant', true), ''))
    and ((select current_setting('agent_sessions.isolation', true)) is distinct from 'agent'
         or agent_id = (select coalesce(current_setting('agent_sessions.agent', true), '')))
  then true else false end
);

-- What is hashed, as the engine hashes it. Stable, as convert_to is, or else PostgreSQL would not inline it.

-- A length of 4 bytes and the text, or the length 0xFFFFFFFF for NULL.
create function twin.lp(value text) returns bytea
language sql stable parallel safe
return case when value is null then '\xffffffff'::bytea else int4send(octet_length(value)) || convert_to(value, 'UTF8') end;

create function twin.genesis(tenant text, agent_id text, session_id text, created_at timestamptz) returns bytea
language sql stable parallel safe
return sha256(
  'agent_sessions/genesis/1'::bytea || twin.lp(tenant) || twin.lp(agent_id) || twin.lp(session_id)
  || timestamptz_send(created_at) || int8send(-1) || decode(repeat('00', 32), 'hex')
);

create function twin.content_digest(salt uuid, content text, attrs text) returns bytea
language sql stable parallel safe
return sha256(uuid_send(salt) || twin.lp(content) || twin.lp(attrs));

create function twin.entry_digest(
  previous bytea, "position" bigint, op text, kind text, item_id text, tag text, author text, target bigint, created_at timestamptz,
  content_digest bytea
) returns bytea
language sql stable parallel safe
return sha256(
  'agent_sessions/item/1'::bytea || previous || int8send("position") || twin.lp(op) || twin.lp(kind) || twin.lp(item_id)
  || twin.lp(tag) || twin.lp(author) || int8send(coalesce(target, -1)) || timestamptz_send(created_at) || content_digest
);

-- SE001 unless a label is absent, or 1 to 500 characters without control characters.
create function twin.check_label(argument text, label text) returns void
language plpgsql immutable parallel safe as $$
begin
  if label = '' or length(label) > 500 or label ~ '[\x01-\x1f\x7f-\x9f]' then
    raise exception '%: must have 1 to 500 characters, none of them a control character', argument using errcode = 'SE001';
  end if;
end
$$;

create function twin.session_append(
  session_id text,
  payload json,
  kind text default 'message',
  item_id text default null,
  tag text default null,
  author text default null,
  attrs jsonb default null,
  kept_from bigint default null,
  open boolean default false,
  expected_position bigint default null,
  on_conflict text default 'error',
  on_missing text default 'error',
  agent_id text default null,
  lease text default null
) returns bigint
language plpgsql volatile parallel unsafe as $$
declare
  acting_tenant text := coalesce(current_setting('agent_sessions.tenant', true), '');
  acting_agent text := coalesce(session_append.agent_id, current_setting('agent_sessions.agent', true), '');
  label text := coalesce(session_append.kind, 'message');
  op text := case when open then 'open' else 'append' end;
  content text := payload::text;
  salt uuid := gen_random_uuid();
  content_digest bytea;
  now timestamptz;
  head record;
  first record;
  admitted boolean;
  landed bigint;
begin
  if content is null then
    raise exception 'payload: must be given' using errcode = 'SE001';
  end if;
  if octet_length(content) > 67108864 or octet_length(attrs::text) > 67108864 then
    raise exception 'payload, attrs: at most 64 MiB' using errcode = 'SE018';
  end if;
  if session_id is null or expected_position < 0 or kept_from < 0
    or on_conflict not in ('error', 'keep') or on_missing not in ('error', 'create', 'ignore')
  then
    raise exception 'an argument is missing or malformed' using errcode = 'SE001';
  end if;
  -- All in one, since a call costs more than it checks; what is wrong is found out once something is.
  if concat_ws('', session_id, label, item_id, tag, author, acting_agent, acting_tenant) ~ '[\x01-\x1f\x7f-\x9f]'
    or '' in (session_id, label) or item_id = '' or tag = '' or author = ''
    or length(concat_ws('', session_id, label, item_id, tag, author, acting_agent, acting_tenant)) > 500
  then
    perform twin.check_label('session_id', session_id), twin.check_label('kind', label), twin.check_label('item_id', item_id),
      twin.check_label('tag', tag), twin.check_label('author', author), twin.check_label('agent_id', nullif(acting_agent, '')),
      twin.check_label('tenant', nullif(acting_tenant, ''));
  end if;

  loop
    select s.sid, s.created_at, s.active_at, s.lease_digest, s.lease_expires_at into head
    from twin.session s
    where s.tenant = acting_tenant and s.agent_id = acting_agent
      and s.session_id = session_append.session_id and s.deleted_at is null
    for no key update;
    exit when found;
    if on_missing = 'ignore' then
      return null;
    elsif on_missing = 'error' then
      raise exception 'no session "%"', session_id using errcode = 'SE002';
    end if;
    insert into twin.session (tenant, agent_id, session_id) values (acting_tenant, acting_agent, session_id) on conflict do nothing;
  end loop;

  now := clock_timestamp();
  admitted := coalesce(
    case
      when lease is null then head.lease_digest is null or head.lease_expires_at <= now
      else head.lease_expires_at > now and split_part(lease, ':', 1) = head.sid::text
        and sha256(convert_to(split_part(lease, ':', 2), 'UTF8')) = head.lease_digest
    end, false);
  content_digest := twin.content_digest(salt, content, attrs::text);

  insert into twin.session_item (
    sid, position, tenant, agent_id, op, kind, item_id, tag, author, target, payload, attrs, salt, content_digest, digest, created_at
  )
  select
    head.sid, next.position, acting_tenant, acting_agent, op, label, session_append.item_id, session_append.tag, session_append.author, kept_from,
    session_append.payload, session_append.attrs, salt, content_digest,
    twin.entry_digest(
      next.previous, next.position, op, label, session_append.item_id, session_append.tag, session_append.author, kept_from, now,
      content_digest
    ),
    now
  from (
    select coalesce(tail.position + 1, 0), coalesce(tail.digest, twin.genesis(acting_tenant, acting_agent, session_id, head.created_at))
    from (values (1)) one
    left join lateral (
      select i.position, i.digest from twin.session_item i where i.sid = head.sid order by i.position desc limit 1
    ) tail on true
  ) next (position, previous)
  where admitted
    and (expected_position is null or expected_position = next.position)
    and (kept_from is null or kept_from <= next.position)
    and not exists (select from twin.session_item i where i.item_id = session_append.item_id and i.sid = head.sid)
  returning position into landed;

  if landed is null then
    -- Why not: a replay holds even if the lease or the position is lost.
    select i.* into first from twin.session_item i where i.item_id = session_append.item_id and i.sid = head.sid;
    if found then
      if on_conflict = 'keep' or (first.kind, first.tag, first.author, first.target, first.payload::text)
        is not distinct from (label, session_append.tag, session_append.author, kept_from, content)
      then
        return first.position;
      end if;
      raise exception 'item_id "%" is taken', item_id using errcode = 'SE010';
    elsif not admitted then
      raise exception 'the session is leased' using errcode = case when lease is null then 'SE009' else 'SE008' end;
    end if;
    select coalesce(max(i.position) + 1, 0) into landed from twin.session_item i where i.sid = head.sid;
    if expected_position <> landed then
      raise exception 'the next position is %', landed using errcode = 'SE007';
    end if;
    raise exception 'kept_from: must not lie behind the summary itself' using errcode = 'SE001';
  end if;

  if head.active_at < now - interval '60 s' then
    update twin.session s set active_at = now where s.sid = head.sid;
  end if;
  return landed;
end
$$;

grant usage on schema twin to bench_writer;
grant select, insert, update on twin.session to bench_writer;
grant select, insert on twin.session_item to bench_writer;
