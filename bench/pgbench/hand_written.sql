begin;
select from hand_written.session where id = :session for update;
insert into hand_written.message (session_id, position, payload)
select :session, coalesce(max(position) + 1, 0), :payload from hand_written.message where session_id = :session;
commit;
