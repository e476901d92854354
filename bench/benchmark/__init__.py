"""Speed and size of agent_sessions, side by side with a bare INSERT and with its peers, in the same server and run."""
