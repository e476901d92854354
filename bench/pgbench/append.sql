select agent_sessions.session_append(:session, :payload);
