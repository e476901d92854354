select count(*) from agent_sessions.session_append_batch(:session, :items);
