select position, op, kind, item_id, tag, author, payload, attrs, created_at, digest, revised_at_position, open, delta_text
from agent_sessions.session_history(:session, newest_first => true, max_rows => :page);
