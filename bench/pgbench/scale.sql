\set number random(1, :sessions)
select agent_sessions.session_append('s' || :number::text, :payload);
