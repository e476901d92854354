select session_id from agent_sessions.session_branch(:session);
