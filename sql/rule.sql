-- The rules. They hold for the functions and for raw SQL alike; what each does is in the engine, under the same name.

create function agent_sessions.on_session_insert() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_session_insert';
comment on function agent_sessions.on_session_insert() is 'Fills in what the engine sets, and checks ids, labels and the parent';

create function agent_sessions.on_session_update() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_session_update';
comment on function agent_sessions.on_session_update() is 'Advances or checks the revision (SE006); identity and creation never change (SE014)';

create function agent_sessions.on_session_delete() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_session_delete';
comment on function agent_sessions.on_session_delete() is 'Takes the session''s log and its sub-sessions along; SE022 if branches need the log';

create function agent_sessions.on_item_insert() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_item_insert';
comment on function agent_sessions.on_item_insert() is 'Gives the entry its position, time and digests, or verifies those that it brings (SE007, SE017)';

create function agent_sessions.on_item_change() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_item_change';
comment on function agent_sessions.on_item_change() is 'Refuses to change or remove an entry (SE014), unless its session is gone or its position is below the base';

create function agent_sessions.on_items_inserted() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_items_inserted';
comment on function agent_sessions.on_items_inserted() is 'Notes that the sessions are active, at most once a minute for each';

create function agent_sessions.on_item_closed() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_item_closed';
comment on function agent_sessions.on_item_closed() is 'Drops the chunks of an open item that an entry closes or retracts';

create function agent_sessions.on_delta_insert() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_delta_insert';
comment on function agent_sessions.on_delta_insert() is 'Takes the next chunk of an open item (SE011, SE013), or the same one again, which it passes over';

create function agent_sessions.on_delta_update() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_delta_update';
comment on function agent_sessions.on_delta_update() is 'Refuses to change a chunk (SE014)';

create function agent_sessions.on_truncate() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_truncate';
comment on function agent_sessions.on_truncate() is 'Refuses TRUNCATE (SE014)';

create function agent_sessions.on_session_changed() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_session_changed';
comment on function agent_sessions.on_session_changed() is 'Writes a change of the document, or that the session was hidden, to the audit trail, where that is tracked';

create function agent_sessions.on_session_branched() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_session_branched';
comment on function agent_sessions.on_session_branched() is 'Writes a branch to the audit trail, where that is tracked';

create function agent_sessions.on_audit_insert() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_audit_insert';
comment on function agent_sessions.on_audit_insert() is 'Gives the event its seq, text and hashes, or verifies those that it brings (SE017)';

create function agent_sessions.on_audit_change() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_audit_change';
comment on function agent_sessions.on_audit_change() is 'Refuses to change or remove an event (SE014), unless audit_prune has moved the base past it';

create function agent_sessions.on_chain_change() returns trigger
language c as 'MODULE_PATHNAME', 'agent_sessions_on_chain_change';
comment on function agent_sessions.on_chain_change() is 'Lets a chain''s base move on to an event that an anchor covers, and nothing else (SE014)';

create trigger fill before insert on agent_sessions.session
for each row execute function agent_sessions.on_session_insert();
create trigger advance before update on agent_sessions.session
for each row execute function agent_sessions.on_session_update();
create trigger cascade after delete on agent_sessions.session
for each row execute function agent_sessions.on_session_delete();
create trigger keep before truncate on agent_sessions.session
for each statement execute function agent_sessions.on_truncate();

create trigger link before insert on agent_sessions.session_item
for each row execute function agent_sessions.on_item_insert();
create trigger activity after insert on agent_sessions.session_item
for each statement execute function agent_sessions.on_items_inserted();
create trigger append_only before update or delete on agent_sessions.session_item
for each row execute function agent_sessions.on_item_change();
create trigger keep before truncate on agent_sessions.session_item
for each statement execute function agent_sessions.on_truncate();
create trigger close after insert on agent_sessions.session_item
for each row when (new.op in ('revise', 'retract', 'retract_from')) execute function agent_sessions.on_item_closed();

create trigger next before insert on agent_sessions.session_delta
for each row execute function agent_sessions.on_delta_insert();
create trigger append_only before update on agent_sessions.session_delta
for each row execute function agent_sessions.on_delta_update();
create trigger keep before truncate on agent_sessions.session_delta
for each statement execute function agent_sessions.on_truncate();

create trigger track after update on agent_sessions.session
for each row when (old.revision is distinct from new.revision or old.deleted_at is distinct from new.deleted_at) execute function agent_sessions.on_session_changed();
create trigger track_branch after insert on agent_sessions.session
for each row when (new.branched_from is not null) execute function agent_sessions.on_session_branched();

create trigger link before insert on agent_sessions.audit_event
for each row execute function agent_sessions.on_audit_insert();
create trigger append_only before update or delete on agent_sessions.audit_event
for each row execute function agent_sessions.on_audit_change();
create trigger keep before truncate on agent_sessions.audit_event
for each statement execute function agent_sessions.on_truncate();
create trigger base before update or delete on agent_sessions.audit_chain
for each row execute function agent_sessions.on_chain_change();
create trigger keep before truncate on agent_sessions.audit_chain
for each statement execute function agent_sessions.on_truncate();
create trigger keep before truncate on agent_sessions.audit_anchor
for each statement execute function agent_sessions.on_truncate();
create trigger keep before truncate on agent_sessions.audit_anchor_leaf
for each statement execute function agent_sessions.on_truncate();
