//! Tenants that a role is bound to, as one backend remembers and forgets them.

#[pgrx::pg_schema]
mod tests {
    use pgrx::{Spi, pg_test};

    use crate::identity;

    fn denied() -> bool {
        identity::tenant().is_err_and(|error| error.code() == "SE019")
    }

    fn run(sql: &str) {
        Spi::run(sql).expect(sql);
    }

    #[pg_test]
    fn a_binding_counts_at_once_and_so_does_its_end() {
        run("create role bound");
        run("select agent_sessions.access_grant('bound', 'reader'); set local role bound");
        assert!(!denied());
        run("reset role; select agent_sessions.tenant_bind('bound', 'mine'); set local role bound");
        assert!(denied());
        run("set local agent_sessions.tenant = 'mine'");
        assert!(!denied());
        run("set local agent_sessions.tenant = 'other'");
        assert!(denied());
        run("reset role; select agent_sessions.tenant_unbind('bound', 'mine'); set local role bound");
        assert!(!denied());
    }

    #[pg_test]
    fn a_membership_brings_its_bindings_and_takes_them_away() {
        run("create role member; create role bound_group; select agent_sessions.tenant_bind('bound_group', 'mine')");
        run("set local role member");
        assert!(!denied());
        run("reset role; grant bound_group to member; set local role member");
        assert!(denied());
        run("reset role; revoke bound_group from member; set local role member");
        assert!(!denied());
    }

    #[pg_test]
    fn a_rolled_back_binding_is_forgotten() {
        run("create role bound");
        run("do $$ begin
               perform agent_sessions.tenant_bind('bound', 'mine');
               raise exception using errcode = 'SE999';
             exception when sqlstate 'SE999' then null;
             end $$");
        run("set local role bound");
        assert!(!denied());
    }
}
