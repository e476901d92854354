//! Transactions that last, and settings under which the rules do not hold.

use agent_sessions_tests::OwnCluster;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_last_are_found() {
    let db = healthy("doctor_snapshots").await;
    let held = db.db.owner().await;
    held.begin("repeatable read").await;
    held.run("select from agent_sessions.session").await;
    assert_well(&report(&db.owner).await);
    let ill = report_of(&db.owner, "0").await;
    assert_eq!(found(&ill), [("snapshots", "warn")]);
    assert!(ill["snapshots"].detail.contains(&held.pid.to_string()), "{}", told(&ill));
    db.follow(&ill["snapshots"], "a held snapshot").await;
    while db.superuser.value::<i64>("select count(*) from pg_stat_activity where pid = $1", &[&held.pid]).await > 0 {}
    assert_well(&report_of(&db.owner, "0").await);

    let gid = format!("'{}'", db.db.name);
    db.owner.run(&format!("begin; select agent_sessions.session_create('s'); prepare transaction {gid}")).await;
    assert_well(&report(&db.owner).await);
    let ill = report_of(&db.owner, "0").await;
    assert_eq!(found(&ill), [("snapshots", "warn")]);
    db.follow(&ill["snapshots"], "a prepared transaction").await;
    assert_well(&report_of(&db.owner, "0").await);
}

/// Who is no member of pg_read_all_stats is told that it does not see all.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_seen_is_said() {
    let db = Database::empty("doctor_unseen").await;
    let role = db.role("owner", None).await;
    db.owner().await.run(&format!("grant create on database {} to {role}", db.name)).await;
    set_timeout(&db).await;
    let owner = db.connect(Role::Named(role.clone())).await;
    owner.run("create extension agent_sessions").await;
    assert!(report_of(&owner, "0").await["snapshots"].detail.is_empty(), "nobody else is there");
    let held = db.stranger().await;
    held.begin("repeatable read").await;
    held.run("select 1").await;
    let blind = report_of(&owner, "0").await;
    assert_well(&blind);
    assert!(!blind["snapshots"].detail.is_empty());
    assert!(blind["snapshots"].remedy.contains("-- as a superuser"), "{}", blind["snapshots"].remedy);
    db.superuser().await.run(&blind["snapshots"].remedy).await;
    let seeing = report_of(&owner, "0").await;
    assert_eq!(found(&seeing), [("snapshots", "warn")]);
    assert!(seeing["snapshots"].detail.contains(&held.pid.to_string()), "{}", told(&seeing));
    assert_well(&report(&owner).await);
}

/// Of the roles that can claim, by the setting that each gets.
#[tokio::test(flavor = "multi_thread")]
async fn idle_transactions_that_outlive_leases_are_found() {
    let db = healthy("doctor_idle").await;
    let worker = db.db.role("worker", Some("writer")).await;
    let name = &db.db.name;
    for broken in [
        format!("alter role {worker} set idle_in_transaction_session_timeout = 0"),
        format!("alter role {worker} in database {name} set idle_in_transaction_session_timeout = 0"),
        format!("alter database {name} set idle_in_transaction_session_timeout = 0"),
    ] {
        db.suffers(&broken, "idle_timeout", "warn").await;
    }
    let writer = db.db.writer().await;
    writer.run("select agent_sessions.session_claim('long', ttl => '20 minutes')").await;
    for (value, is_well) in
        [("19min", true), ("21min", false), ("1h", false), ("1300000", false), ("1100000ms", true), ("1d", false)]
    {
        let set = format!("alter role {worker} in database {name} set idle_in_transaction_session_timeout = '{value}'");
        if is_well {
            db.superuser.run(&set).await;
            assert_well(&report(&db.owner).await);
        } else {
            db.suffers(&set, "idle_timeout", "warn").await;
        }
    }
    // A reader claims nothing.
    let reader = db.db.role("lazy", Some("reader")).await;
    db.superuser.run(&format!("alter role {reader} set idle_in_transaction_session_timeout = 0")).await;
    assert_well(&report(&db.owner).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_under_which_no_rule_holds_are_found() {
    let db = healthy("doctor_settings").await;
    let role = db.db.role("replica", Some("writer")).await;
    for broken in [
        format!("alter role {role} set session_replication_role = replica"),
        format!("alter role {role} in database {} set session_replication_role = replica", db.db.name),
        format!("alter database {} set session_replication_role = replica", db.db.name),
    ] {
        db.suffers(&broken, "replication_role", "fail").await;
    }
    db.superuser.run("set session_replication_role = replica").await;
    let ill = report(&db.superuser).await;
    assert_eq!(found(&ill), [("replication_role", "fail")]);
    db.superuser.run(&ill["replication_role"].remedy).await;
    assert_well(&report(&db.superuser).await);

    // Stored before the library was loaded, which passes over what it does not know.
    for broken in ["agent_sessions.isolatoin = agent", "agent_sessions.isolation = agents", "agent_sessions.tenent = a"]
    {
        for place in [
            format!("role {role}"),
            format!("database {}", db.db.name),
            format!("role {role} in database {}", db.db.name),
        ] {
            let fresh = db.db.superuser().await;
            fresh.run(&format!("alter {place} set {broken}")).await;
            let ill = report(&db.owner).await;
            assert_eq!(found(&ill), [("settings", "fail")], "{place} {broken}: {}", told(&ill));
            db.superuser.run(&ill["settings"].remedy).await;
            assert_well(&report(&db.owner).await);
        }
    }
    let known = format!("alter role {role} set agent_sessions.isolation = AGENT");
    db.superuser.run(&format!("{known}; alter role {role} set agent_sessions.tenant = 'a=b'")).await;
    assert_well(&report(&db.owner).await);
}

/// A server of its own, whose settings change and whose slots others do not see.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_keeps_old_rows_or_loses_new_ones_is_found() {
    let own = OwnCluster::start(&["wal_level = logical", "idle_in_transaction_session_timeout = 10s"]).await;
    let superuser = own.cluster.connect(&own.cluster.superuser, "postgres").await;
    superuser.run("create extension agent_sessions").await;
    let is_well = |report: &Report| report.values().all(|check| check.status == "ok");
    assert!(is_well(&report(&superuser).await));

    superuser.run("select pg_create_logical_replication_slot('left', 'test_decoding')").await;
    let ill = report(&superuser).await;
    assert_eq!(found(&ill), [("snapshots", "warn")]);
    superuser.run(&ill["snapshots"].remedy).await;
    assert!(is_well(&report(&superuser).await));

    for setting in ["fsync", "full_page_writes"] {
        superuser.run(&format!("alter system set {setting} = off")).await;
        superuser.run("select pg_reload_conf()").await;
        let in_force = async |wanted: &str| {
            while superuser.value::<String>("select current_setting($1::text)", &[&setting]).await != wanted {}
        };
        in_force("off").await;
        let ill = report(&superuser).await;
        assert_eq!(ill["durability"].status, "warn", "{setting}");
        for statement in ill["durability"].remedy.split(';') {
            superuser.run(statement).await;
        }
        in_force("on").await;
        assert!(is_well(&report(&superuser).await));
    }
}
