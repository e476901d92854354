-- An agent's run: its state changes once in ten appends.
select agent_sessions.session_append(:session, :payload);
\if :position % 10 = 9
select agent_sessions.session_set(:session, state => json_build_object('step', :step::bigint, 'plan', 'look at the cache first'));
\endif
