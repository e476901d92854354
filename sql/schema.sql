create schema agent_sessions;
