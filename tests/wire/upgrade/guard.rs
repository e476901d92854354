//! An update records what it leaves behind as right: so it refuses a damaged installation. And it runs as a superuser, so nothing
//! of the owner's runs in it but as the owner.

use agent_sessions_tests::{About, Catalogue, assert_sqlstate};

use super::changes::OLD;
use super::{Server, installed_version};

const UPDATE: &str = "alter extension agent_sessions update";

/// One for each check of the catalogue.
const DAMAGES: &[(&str, &str)] = &[
    ("members", "alter extension agent_sessions drop view agent_sessions.live_item"),
    ("columns", "alter table agent_sessions.session alter revision drop not null"),
    ("constraints", "alter table agent_sessions.session drop constraint session_usage_check"),
    ("indexes", "drop index agent_sessions.session_key"),
    ("triggers", "alter table agent_sessions.session disable trigger advance"),
    ("policies", "drop policy visible on agent_sessions.session"),
    ("row_security", "alter table agent_sessions.session disable row level security"),
    ("views", "alter view agent_sessions.live_item set (security_invoker = false)"),
    ("functions", "alter function agent_sessions.session_get security definer"),
    (
        "dumps",
        "update pg_extension set extconfig = extconfig[2:], extcondition = extcondition[2:] where extname = 'agent_sessions'",
    ),
    ("statistics", "alter table agent_sessions.session alter state set statistics 10"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_installation_is_not_updated() {
    let server = Server::shared().await;
    let owner = server.installed("damaged", OLD).await;
    let superuser = server.superuser("damaged").await;
    for (check, damage) in DAMAGES {
        superuser.begin("read committed").await;
        superuser.run(damage).await;
        let failed: Vec<String> =
            superuser.value("select coalesce(array_agg(check_name), '{}') from agent_sessions.doctor() where status = 'fail' and check_name <> 'library'", &[]).await;
        assert_eq!(failed, [*check], "{damage}");
        assert_sqlstate!(superuser.batch_execute(UPDATE).await, "55000");
        superuser.rollback().await;
    }

    owner.run("alter table agent_sessions.session disable row level security").await;
    let before = Catalogue::of(&owner).await;
    assert_sqlstate!(owner.batch_execute(UPDATE).await, "55000");
    assert_eq!(installed_version(&owner).await, OLD);
    assert_eq!(before.differences(&Catalogue::of(&owner).await), Default::default());
    let remedy: String =
        owner.value("select remedy from agent_sessions.doctor() where check_name = 'row_security'", &[]).await;
    owner.run(&remedy).await;
    owner.run(UPDATE).await;
    assert_eq!(server.fresh.differences(&Catalogue::of(&owner).await), Default::default());
}

/// What an owner tries, who is no superuser: its function runs by a view, by a trigger, and by an operator on a path that it sets.
const TAKE: &str = "
create function public.take() returns boolean language plpgsql as $$
begin
  perform set_config('search_path', 'public, pg_catalog', false);
  begin
    create role upgrade_taken;
  exception when insufficient_privilege then null;
  end;
  return true;
end
$$;
create function public.take(a name, b name) returns boolean language plpgsql as $$
begin
  return take() and a operator(pg_catalog.=) b;
end
$$;
create operator public.= (leftarg = name, rightarg = name, function = public.take);
create function public.take_trigger() returns trigger language plpgsql as $$
begin
  perform public.take();
  return null;
end
$$;
create trigger take after insert or update on agent_sessions.setting execute function public.take_trigger();
do $$
begin
  execute format('create or replace view agent_sessions.as_found with (security_invoker = true) as select f.* from (%s) f where public.take()',
    rtrim(pg_get_viewdef('agent_sessions.as_found'::regclass), ';'));
end
$$;";

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_gains_nothing_by_an_update() {
    let server = Server::shared().await;
    let owner = server.installed("taken", OLD).await;
    owner.run(TAKE).await;
    owner.run(UPDATE).await;
    assert_eq!(installed_version(&owner).await, server.current);
    let taken = "select exists (select from pg_roles where rolname = 'upgrade_taken')";
    assert!(!owner.value::<bool>(taken, &[]).await);
    // The path that was set is its own session's.
    owner.run("reset search_path; drop trigger take on agent_sessions.setting").await;
    let differing = server.fresh.differences(&Catalogue::of(&owner).await);
    let abouts: Vec<&About> = differing.keys().collect();
    assert_eq!(abouts, [&("view".to_owned(), "agent_sessions.as_installed".to_owned())], "it knows the trigger");
}
