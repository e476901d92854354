//! An updated installation is the same as a fresh one, and an update that forgets a part of itself is told from one that does not.

use agent_sessions_tests::{About, Catalogue, assert_sqlstate};

use super::changes::{CHANGES, OLD, update_script};
use super::{Server, installed_version};

#[tokio::test(flavor = "multi_thread")]
async fn an_updated_installation_equals_a_fresh_one() {
    let server = Server::shared().await;
    for (number, version) in server.older_versions().iter().enumerate() {
        // The owner is no superuser.
        let owner = server.installed(&format!("updated_{number}"), version).await;
        owner.run("alter extension agent_sessions update").await;
        assert_eq!(installed_version(&owner).await, server.current, "from {version}");
        let updated = Catalogue::of(&owner).await;
        assert_eq!(server.fresh.differences(&updated), Default::default(), "from {version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_leaves_a_change_out_is_seen() {
    let server = Server::shared().await;
    let owner = server.installed("left_out", OLD).await;
    let script = server.current_script();
    for (number, change) in CHANGES.iter().enumerate() {
        let version = format!("without_{number}");
        server.install_script(&format!("{OLD}--{version}"), &update_script(&script, Some(number)));
        owner.begin("read committed").await;
        owner.run(&format!("alter extension agent_sessions update to '{version}'")).await;
        let differing = server.fresh.differences(&Catalogue::of(&owner).await);
        owner.rollback().await;
        let about: About = (change.kind.to_owned(), change.object.to_owned());
        assert!(differing.contains_key(&about), "{about:?} is not among {differing:#?}");
    }
}

/// A script that grants or revokes on what is there makes the user's own grants a part of the extension, and pg_dump leaves
/// them out from then on.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_grants_on_what_was_there_before_is_seen() {
    let server = Server::shared().await;
    let owner = server.installed("granting", OLD).await;
    let script = update_script(&server.current_script(), None);
    for (version, object, statement) in [
        ("regrants", "table agent_sessions.session", "revoke all on agent_sessions.session from public;"),
        (
            "revokes",
            "function agent_sessions.schema_version()",
            "revoke all on all functions in schema agent_sessions from public;",
        ),
    ] {
        server.install_script(&format!("{OLD}--{version}"), &(script.clone() + statement));
        owner.begin("read committed").await;
        owner.run(&format!("alter extension agent_sessions update to '{version}'")).await;
        let differing = server.fresh.differences(&Catalogue::of(&owner).await);
        owner.rollback().await;
        let about: About = ("initial privilege".to_owned(), object.to_owned());
        assert!(differing.contains_key(&about), "{statement}: {differing:#?}");
        assert!(differing.keys().all(|(kind, _)| kind == "initial privilege"), "{statement}: {differing:#?}");
    }
}

/// pg_upgrade gives the extension to a superuser, who is the only one to update it from then on.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_by_a_superuser_leaves_what_it_makes_to_the_tables_owner() {
    let server = Server::shared().await;
    let owner = server.installed("handed_over", OLD).await;
    let superuser = server.superuser("handed_over").await;
    superuser.run("update pg_extension set extowner = current_user::regrole where extname = 'agent_sessions'").await;
    assert_sqlstate!(owner.batch_execute("alter extension agent_sessions update").await, "42501");
    superuser.run("alter extension agent_sessions update").await;
    let differing = server.fresh.differences(&Catalogue::of(&owner).await);
    let abouts: Vec<&About> = differing.keys().collect();
    assert_eq!(abouts, [&("extension".to_owned(), "agent_sessions".to_owned())], "{differing:#?}");
}
