-- What pg_dump carries. The order lets a trigger find an entry's predecessor while the rows of a log come in.
select pg_catalog.pg_extension_config_dump('agent_sessions.setting', '');
select pg_catalog.pg_extension_config_dump('agent_sessions.tenant_binding', '');
select pg_catalog.pg_extension_config_dump('agent_sessions.session', 'ORDER BY sid');
select pg_catalog.pg_extension_config_dump('agent_sessions.session_sid_seq', '');
select pg_catalog.pg_extension_config_dump('agent_sessions.lease_fence_seq', '');
select pg_catalog.pg_extension_config_dump('agent_sessions.session_item', 'ORDER BY sid, position');
select pg_catalog.pg_extension_config_dump('agent_sessions.session_delta', 'ORDER BY sid, target, chunk_no');
select pg_catalog.pg_extension_config_dump('agent_sessions.audit_chain', '');
select pg_catalog.pg_extension_config_dump('agent_sessions.audit_event', 'ORDER BY tenant, stream, seq');
select pg_catalog.pg_extension_config_dump('agent_sessions.audit_anchor', '');
select pg_catalog.pg_extension_config_dump('agent_sessions.audit_anchor_leaf', '');
select pg_catalog.pg_extension_config_dump('agent_sessions.audit_tracking', '');
