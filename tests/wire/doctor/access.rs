//! Who owns, holds or passes what nobody should.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn privileges_that_no_level_gives_are_found() {
    let db = healthy("doctor_grants").await;
    let writer = db.db.role_name(&Role::Writer);
    for broken in [
        "grant usage on schema agent_sessions to public",
        "grant select on agent_sessions.session to public",
        "grant select on agent_sessions.live_item to public",
        "grant select (title) on agent_sessions.session to public",
        "grant execute on function agent_sessions.schema_version() to public",
        "grant execute on function agent_sessions.session_get to public",
        "grant usage on type agent_sessions.item_row to public",
        "grant usage on sequence agent_sessions.lease_fence_seq to public",
        "grant insert on agent_sessions.session_item to {writer}",
        "grant update on agent_sessions.session to {writer}",
        "grant delete on agent_sessions.session_item to {writer}",
        "grant truncate, trigger, references on agent_sessions.session to {writer}",
        "grant update (payload) on agent_sessions.session_item to {writer}",
        "grant insert (digest, created_at) on agent_sessions.session_item to {writer}",
        "grant update (lease_digest, lease_expires_at) on agent_sessions.session to {writer}",
        "grant update (deleted_at) on agent_sessions.session to {writer}",
        "grant insert (tenant) on agent_sessions.tenant_binding to {writer}",
        "grant insert on agent_sessions.setting to {writer}",
        "grant usage, update on sequence agent_sessions.session_sid_seq to {writer}",
        "grant create on schema agent_sessions to {writer}",
        "grant all on all tables in schema agent_sessions to {writer}",
    ] {
        db.suffers(&broken.replace("{writer}", &writer), "grants", "fail").await;
        // The remedy takes away too much where a level gives a part of it.
        db.owner.run(&format!("select agent_sessions.access_grant('{writer}', 'writer')")).await;
        assert_well(&report(&db.owner).await);
    }
    // A role that dumps reads everything.
    db.superuser.run(&format!("grant select on all tables in schema agent_sessions to {writer}")).await;
    db.superuser.run(&format!("grant select on all sequences in schema agent_sessions to {writer}")).await;
    assert_well(&report(&db.owner).await);
    let stranger = db.db.role_name(&Role::Stranger);
    let handed_on = format!("grant execute on function agent_sessions.session_get to {stranger} with grant option");
    db.suffers(&handed_on, "grants", "warn").await;
    let client = db.db.role("client", Some("writer")).await;
    db.suffers(&format!("grant pg_write_all_data to {client}"), "grants", "warn").await;
    for level in ["reader", "auditor", "writer", "admin"] {
        let role = db.db.role(level, Some(level)).await;
        assert_well(&report(&db.owner).await);
        db.owner.run(&format!("select agent_sessions.access_revoke('{role}')")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_the_owners_is_found() {
    let db = healthy("doctor_owner").await;
    let owner = db.db.role_name(&Role::Owner);
    let other = db.db.role("other", None).await;
    for broken in [
        "alter table agent_sessions.session_item owner to {other}",
        "alter view agent_sessions.live_item owner to {other}",
        "alter sequence agent_sessions.lease_fence_seq owner to {other}",
        "alter function agent_sessions.session_get owner to {other}",
        "alter type agent_sessions.item_row owner to {other}",
        "alter table agent_sessions.setting owner to {other}; alter table agent_sessions.session_delta owner to {other}",
        "revoke all on function agent_sessions.current_tenant() from {owner} cascade",
        "revoke grant option for execute on function agent_sessions.doctor(interval) from {owner}",
    ] {
        let broken = broken.replace("{other}", &other).replace("{owner}", &owner);
        db.superuser.run(&broken).await;
        let ill = report(&db.superuser).await;
        assert_eq!(found(&ill), [("ownership", "fail")], "{broken}: {}", told(&ill));
        db.follow(&ill["ownership"], &broken).await;
        for (role, level) in [(Role::Writer, "writer"), (Role::Reader, "reader")] {
            let grant = format!("select agent_sessions.access_grant('{}', '{level}')", db.db.role_name(&role));
            db.owner.run(&grant).await;
        }
        assert_well(&report(&db.owner).await);
    }
}

/// REASSIGN OWNED leaves the functions in C behind, whose privileges the old owner goes on to have.
#[tokio::test(flavor = "multi_thread")]
async fn an_extension_that_changed_hands_is_mended() {
    let db = Database::empty("doctor_reassigned").await;
    let (old, new) = (db.role("old", None).await, db.role("new", None).await);
    let writer = db.role_name(&Role::Writer);
    let superuser = db.superuser().await;
    superuser.run(&format!("grant create on database {} to {old}", db.name)).await;
    let grant = format!("select agent_sessions.access_grant('{writer}', 'writer')");
    let installer = db.connect(Role::Named(old.clone())).await;
    installer.run("create extension agent_sessions").await;
    installer.run(&grant).await;
    set_timeout(&db).await;
    let client = db.writer().await;
    client.create_session("s").await;
    superuser.run(&format!("reassign owned by {old} to {new}")).await;
    let patient = Patient { owner: db.connect(Role::Named(new)).await, superuser, db };
    assert_sqlstate!(patient.owner.batch_execute(&grant).await, "42501");
    for check in ["ownership", "grants"] {
        let ill = report(&patient.superuser).await;
        let left: Vec<&str> = found(&ill).iter().map(|(name, _)| *name).collect();
        assert_eq!(left, if check == "ownership" { vec!["grants", "ownership"] } else { vec!["grants"] });
        patient.follow(&ill[check], "reassigned").await;
    }
    assert_well(&report(&patient.owner).await);
    patient.owner.run(&grant).await;
    client.append("s", "1").await;
    client.assert_dense("s", 1).await;
    assert_sqlstate!(installer.batch_execute("select agent_sessions.schema_version()").await, "42501");
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_that_pass_the_policies_are_found() {
    let db = healthy("doctor_bypass").await;
    let owner = db.db.role_name(&Role::Owner);
    let client = db.db.role("client", Some("writer")).await;
    for broken in [format!("alter role {client} bypassrls"), format!("grant {owner} to {client}")] {
        db.suffers(&broken, "row_security", "warn").await;
    }
    db.suffers(&format!("alter role {client} superuser"), "row_security", "warn").await;
    db.superuser.run(&format!("alter role {client} nosuperuser")).await;
    for broken in ["force", "no force"] {
        let forced = broken == "no force";
        db.owner.run(&format!("select agent_sessions.access_force_rls({forced})")).await;
        db.suffers(
            &format!("alter table agent_sessions.session_item {broken} row level security"),
            "row_security",
            "fail",
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bindings_of_roles_that_are_gone_are_found() {
    let db = healthy("doctor_bindings").await;
    let gone = db.db.role("gone", None).await;
    db.owner.run(&format!("select agent_sessions.tenant_bind('{gone}', 'a')")).await;
    assert_well(&report(&db.owner).await);
    db.suffers(&format!("drop owned by {gone}; drop role {gone}"), "bindings", "warn").await;
}
