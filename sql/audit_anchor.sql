create function agent_sessions.audit_anchor() returns table (anchor_id bigint, root text, chains integer, at timestamptz)
language c volatile parallel unsafe rows 1 as 'MODULE_PATHNAME', 'agent_sessions_audit_anchor';
comment on function agent_sessions.audit_anchor() is
  'Records the heads of all chains of the tenant, audit streams and session logs, and returns the Merkle root over them (RFC 6962, in hex), to be kept outside of the database. A tail that is cut later is missed by audit_check_anchor';

create function agent_sessions.audit_check_anchor(
  root text,
  anchor_id bigint default null
) returns table (ok boolean, reason text)
language c stable parallel restricted rows 1 as 'MODULE_PATHNAME', 'agent_sessions_audit_check_anchor';
comment on function agent_sessions.audit_check_anchor(text, bigint) is
  'Whether the chains still hold the heads that were anchored under the root that was kept outside. What audit_prune and session_trim have removed since is accepted, and a deleted session if the trail tells of it (audit_track(''delete'', true)). anchor_id: the one with that root when NULL';

create function agent_sessions.audit_proof(
  stream text,
  seq bigint,
  anchor_id bigint default null
) returns json
language c stable parallel restricted as 'MODULE_PATHNAME', 'agent_sessions_audit_proof';
comment on function agent_sessions.audit_proof(text, bigint, bigint) is
  'A proof that the event was in the stream when the anchor was made, the newest when NULL: the texts from the event''s to the anchored head''s, and that head''s path to the root. As large as these texts: anchor often. SE011 if the anchor does not reach the event, SE018 above 255 MiB';

create function agent_sessions.audit_check_proof(
  proof json,
  root text
) returns boolean
language c immutable parallel safe as 'MODULE_PATHNAME', 'agent_sessions_audit_check_proof';
comment on function agent_sessions.audit_check_proof(json, text) is
  'Whether a proof leads to the root. Reads no table. false for anything that is no proof';

create function agent_sessions.audit_track(
  what text,
  enabled boolean
) returns void
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'agent_sessions_audit_track';
comment on function agent_sessions.audit_track(text, boolean) is
  'Has the engine write down what it does for the tenant, in the stream agent_sessions and in the same transaction: state (document changes), delete, branch, import, erase, trim, lease (broken ones), access, tenant, or all. The actor is the setting agent_sessions.actor, else the current user. Off unless enabled. For admins. SE001';
