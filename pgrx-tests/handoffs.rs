//! The hand-off from a function to the trigger of its row: no rule depends on it, and none stays behind.

#[pgrx::pg_schema]
mod tests {
    use pgrx::{PgTryBuilder, Spi, pg_test};

    use crate::handoff::{self, Handoff, Offer};
    use crate::tail::Tail;

    #[pg_test]
    fn outside_of_the_statements_trigger_nothing_is_taken() {
        let _offer = Offer::make(Handoff {
            sid: 1,
            tenant: String::new(),
            agent_id: String::new(),
            tail: Tail { next_position: 5, previous: [0; 32] },
        });
        assert!(handoff::take(1, Some(5)).is_none());
    }

    #[pg_test]
    fn a_failed_append_leaves_none() {
        Spi::run("select agent_sessions.session_create('s')").expect("the session");
        Spi::run("alter table agent_sessions.session_item add constraint refused check (kind <> 'refused') not valid")
            .expect("the constraint");
        let sid = Spi::get_one::<i64>("select sid from agent_sessions.session").expect("one session").expect("its key");
        let refused =
            PgTryBuilder::new(|| Spi::run("select agent_sessions.session_append('s', '1', kind => 'refused')").is_ok())
                .catch_when(pgrx::PgSqlErrorCode::ERRCODE_CHECK_VIOLATION, |_| false)
                .execute();
        assert!(!refused);
        for position in 0..2 {
            assert!(handoff::take(sid, Some(position)).is_none(), "position {position}");
        }
    }

    #[pg_test]
    fn a_trigger_of_the_user_may_append_elsewhere_in_a_batch() {
        Spi::run(
            "select agent_sessions.session_create('batch'), agent_sessions.session_create('notes');
             create function pg_temp.note() returns trigger language plpgsql as
               $$ begin perform agent_sessions.session_append('notes', new.payload); return new; end $$;
             create trigger zz_note before insert on agent_sessions.session_item for each row
               when (new.kind = 'noted') execute function pg_temp.note();
             select agent_sessions.session_append_batch('batch',
               '[{\"payload\":0,\"kind\":\"noted\"},{\"payload\":1},{\"payload\":2,\"kind\":\"noted\"}]')",
        )
        .expect("the batch");
        let verified = "select string_agg(v.entries || ' ' || v.ok, ', ' order by s.session_id)
                        from agent_sessions.session s, agent_sessions.session_verify(s.session_id) v";
        assert_eq!(Spi::get_one::<&str>(verified), Ok(Some("3 true, 2 true")));
    }

    #[pg_test]
    fn a_row_that_another_trigger_drops_is_an_error_not_a_gap() {
        Spi::run(
            "select agent_sessions.session_create('s');
             create function pg_temp.dropped() returns trigger language plpgsql as $$ begin return null; end $$;
             create trigger zz_drop before insert on agent_sessions.session_item for each row
               when (new.kind = 'dropped') execute function pg_temp.dropped()",
        )
        .expect("the trigger");
        let raised = PgTryBuilder::new(|| {
            Spi::run(
                "select agent_sessions.session_append_batch('s', '[{\"payload\":0},{\"payload\":1,\"kind\":\"dropped\"}]')",
            )
            .is_err()
        })
        .catch_when(pgrx::PgSqlErrorCode::ERRCODE_TRIGGERED_ACTION_EXCEPTION, |_| true)
        .execute();
        assert!(raised);
    }

    fn verified(session: &str) -> Option<String> {
        let sql = format!("select v.entries || ' ' || v.ok from agent_sessions.session_verify('{session}') v");
        Spi::get_one::<String>(&sql).expect("a verdict")
    }

    #[pg_test]
    fn a_row_that_was_rolled_back_in_the_middle_leaves_none() {
        Spi::run(
            "select agent_sessions.session_create('s');
             create function pg_temp.probe() returns trigger language plpgsql as $$
             begin
               insert into agent_sessions.session_item (sid, position, op, kind, payload)
                 values (new.sid, new.position + 1, 'append', 'x', '\"rolled back\"');
               raise exception using errcode = 'SE999';
             exception when others then
               return new;
             end $$;
             create trigger zz_probe before insert on agent_sessions.session_item for each row
               when (new.kind = 'probe') execute function pg_temp.probe();
             select agent_sessions.session_append_batch('s',
               '[{\"payload\":0,\"kind\":\"probe\"},{\"payload\":1},{\"payload\":2},{\"payload\":3}]')",
        )
        .expect("the batch");
        assert_eq!(verified("s").as_deref(), Some("4 true"));
    }

    #[pg_test]
    fn a_raw_row_in_the_middle_of_a_statement_is_checked() {
        Spi::run(
            "select agent_sessions.session_create('s'); select agent_sessions.session_append('s', '0');
             create function pg_temp.smuggle() returns trigger language plpgsql as $$
             begin
               insert into agent_sessions.session_item (sid, position, op, target, payload)
                 values (new.sid, new.position + 1, 'erase', 0, '{}');
               return new;
             end $$;
             create trigger zz_smuggle before insert on agent_sessions.session_item for each row
               when (new.kind = 'smuggle') execute function pg_temp.smuggle();
             create function pg_temp.refused() returns text language plpgsql as $$
             begin
               perform agent_sessions.session_append_batch('s',
                 '[{\"payload\":1,\"kind\":\"smuggle\"},{\"payload\":2}]');
               return 'written';
             exception when sqlstate 'SE007' then
               return 'SE007';
             end $$",
        )
        .expect("the triggers");
        assert_eq!(Spi::get_one::<&str>("select pg_temp.refused()"), Ok(Some("SE007")));
        assert_eq!(verified("s").as_deref(), Some("1 true"));
    }
}
