select agent_sessions.session_append(:session, :payload);
select agent_sessions.session_set(:session, state => json_build_object('step', :step::bigint, 'plan', 'look at the cache first'));
