select agent_sessions.session_append(:first, :payload);
