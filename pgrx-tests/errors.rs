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

    /// The SQLSTATE that a statement ends with.
    fn sqlstate(sql: &str) -> Option<String> {
        Spi::run(&format!(
            "create or replace function pg_temp.state() returns text language plpgsql as $f$
             begin
               {sql};
               return 'none';
             exception when others then
               return sqlstate;
             end $f$"
        ))
        .expect("the function");
        Spi::get_one::<String>("select pg_temp.state()").expect("a state")
    }

    #[pg_test]
    fn a_column_of_another_type_is_an_error_and_not_a_wild_pointer() {
        Spi::run(
            "select agent_sessions.session_create('s');
             alter table agent_sessions.session_item alter column salt type bigint using 1",
        )
        .expect("the owner may alter its tables");
        let append = "perform agent_sessions.session_append('s', '1')";
        assert_eq!(sqlstate(append).as_deref(), Some("42804"));
        Spi::run(
            "create table public.fake (sid bigint, \"position\" bigint, tenant text, agent_id text);
             create trigger link before insert on public.fake for each row
               execute function agent_sessions.on_item_insert()",
        )
        .expect("a superuser may put the trigger elsewhere");
        assert_eq!(sqlstate("insert into public.fake values (1, 0, 'a', 'b')").as_deref(), Some("42804"));
        Spi::run("create trigger wrong after insert on public.fake execute function agent_sessions.on_item_insert()")
            .expect("a statement trigger");
        Spi::run("drop trigger link on public.fake").expect("the row trigger goes");
        assert_eq!(sqlstate("insert into public.fake values (1, 0, 'a', 'b')").as_deref(), Some("42804"));
    }

    #[pg_test]
    fn a_trigger_that_drops_every_session_ends_the_attempts() {
        Spi::run(
            "create function pg_temp.never() returns trigger language plpgsql as $$ begin return null; end $$;
             create trigger zz_never before insert on agent_sessions.session for each row execute function pg_temp.never()",
        )
        .expect("the trigger");
        for create in [
            "perform agent_sessions.session_append('s', '1', on_missing => 'create')",
            "perform agent_sessions.session_set('s', title => 't', on_missing => 'create')",
            "perform agent_sessions.session_create('s', on_conflict => 'keep')",
        ] {
            assert_eq!(sqlstate(create).as_deref(), Some("09000"), "{create}");
        }
    }
}
