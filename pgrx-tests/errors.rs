//! Errors of the contract as a block in PL/pgSQL catches them: by their code, with DETAIL as JSON.

#[pgrx::pg_schema]
mod tests {
    use pgrx::{Spi, pg_test};

    #[pg_test]
    fn a_code_detail_and_hint_arrive_through_nested_calls() {
        let caught = Spi::get_one::<&str>(
            "create function pg_temp.caught() returns text language plpgsql as $$
             declare code text; detail text; hint text;
             begin
               perform agent_sessions.session_append('none', '1');
             exception when sqlstate 'SE002' then
               get stacked diagnostics code = returned_sqlstate, detail = pg_exception_detail, hint = pg_exception_hint;
               return code || ' ' || (detail::json ->> 'session_id') || ' ' || (hint <> '');
             end $$;
             select pg_temp.caught()",
        );
        assert_eq!(caught, Ok(Some("SE002 none true")));
    }

    #[pg_test]
    fn an_error_caught_by_a_block_restores_the_user() {
        let user = Spi::get_one::<&str>(
            "create role unbound;
             create function pg_temp.denied() returns text language plpgsql as $$
             begin
               perform agent_sessions.access_grant('no such role', 'reader');
             exception when undefined_object then
               return current_user;
             end $$;
             select pg_temp.denied()",
        );
        let current = Spi::get_one::<&str>("select current_user::text");
        assert!(user.is_ok() && user == current);
    }
}
