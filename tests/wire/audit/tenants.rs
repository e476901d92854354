//! Tenants: another one's streams are nobody's here, in every function and table, and nothing of theirs is locked.

use agent_sessions_tests::{Database, Role, assert_sqlstate};

use super::{
    Event, array_of, assert_chained, auditor, batch, count, export, import, in_tenant, texts, try_import,
    wait_for_nothing,
};

/// Every way to look, with what it shows of one event in the stream `s` of the tenant.
const READS: [&str; 10] = [
    "agent_sessions.audit_event",
    "agent_sessions.audit_chain",
    "agent_sessions.audit_stream",
    "agent_sessions.audit_list(stream => null)",
    "agent_sessions.audit_list(stream => 's', action => 'a')",
    "agent_sessions.audit_list(stream => null, newest_first => false)",
    "agent_sessions.audit_stats(stream => 's')",
    "agent_sessions.audit_export(stream => 's')",
    "agent_sessions.audit_verify(stream => null)",
    "agent_sessions.audit_verify(stream => 's')",
];

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_another_tenants_streams_is_seen() {
    let db = Database::create("audit_apart").await;
    let (ours, theirs) = (in_tenant(&db, "ours").await, in_tenant(&db, "theirs").await);
    let audits = auditor(&db).await;
    audits.run("set agent_sessions.tenant = 'theirs'").await;
    Event::in_stream("s", "a").append(&ours).await;
    for read in READS {
        assert_eq!(count(&ours, read).await, 1, "{read}");
        for other in [&theirs, &audits] {
            assert_eq!(count(other, read).await, 0, "{read}");
            // Saying the tenant is not being in it.
            if let Some(call) = read.strip_suffix(')') {
                assert_eq!(count(other, &format!("{call}, tenant => 'ours')")).await, 0, "{read}");
            }
        }
        if let Some(call) = read.strip_suffix(')') {
            assert_eq!(count(&ours, &format!("{call}, tenant => 'ours')")).await, 1, "{read}");
            assert_eq!(count(&ours, &format!("{call}, tenant => 'theirs')")).await, 0, "{read}");
        }
    }
}

/// The owner and the superuser pass the policies; the functions keep to one tenant all the same.
#[tokio::test(flavor = "multi_thread")]
async fn who_passes_the_policies_is_shown_one_tenant_by_the_functions() {
    let db = Database::create("audit_owner_tenant").await;
    for tenant in ["", "a", "b"] {
        Event::in_stream("s", "a").append(&in_tenant(&db, tenant).await).await;
    }
    for connection in [db.owner().await, db.superuser().await] {
        for (setting, wanted) in [("''", 1), ("'a'", 1), ("'none'", 0)] {
            connection.run(&format!("set agent_sessions.tenant = {setting}")).await;
            for read in
                READS.iter().filter(|read| !["agent_sessions.audit_event", "agent_sessions.audit_chain"].contains(read))
            {
                assert_eq!(count(&connection, read).await, wanted, "{read} in {setting}");
                if let Some(call) = read.strip_suffix(')') {
                    assert_eq!(count(&connection, &format!("{call}, tenant => 'b')")).await, 1, "{read}");
                    assert_eq!(count(&connection, &format!("{call}, tenant => 'none')")).await, 0, "{read}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_another_tenants_is_refused_and_nothing_there_is_locked() {
    let db = Database::create("audit_foreign_row").await;
    let (theirs, ours) = (in_tenant(&db, "theirs").await, in_tenant(&db, "ours").await);
    Event { event_id: Some("e"), ..Event::in_stream("s", "a") }.append(&theirs).await;
    theirs.begin("read committed").await;
    Event::in_stream("s", "a").append(&theirs).await;
    // Whoever asks for a lock that is held there would wait.
    wait_for_nothing(&ours).await;
    for values in [
        "('theirs', 's', 'a', null, null)",
        "('theirs', 's', 'a', 'e', null)",
        "('theirs', 's', 'b', 'e', null)",
        "('theirs', 'new', 'a', null, null)",
        "('theirs', 's', 'a', null, 2)",
        "('theirs', 's', 'a', null, 77)",
        "('ours', 's', 'a', null, null), ('theirs', 's', 'a', null, null)",
        "('', 's', 'a', null, null)",
    ] {
        let insert =
            format!("insert into agent_sessions.audit_event (tenant, stream, action, event_id, seq) values {values}");
        let error = assert_sqlstate!(ours.batch_execute(&insert).await, "42501");
        assert_sqlstate!(ours.batch_execute(&format!("{insert} on conflict do nothing")).await, "42501");
        // Not even whether there is such a stream or event.
        let raised = error.as_db_error().expect("the server's error");
        assert_eq!((raised.detail(), raised.hint()), (None, None), "{values}");
    }
    theirs.commit().await;
    assert_chained(&theirs, "s", 2).await;
    assert_chained(&ours, "s", 0).await;
    assert_eq!(count(&db.superuser().await, "agent_sessions.audit_chain").await, 1);
    // Who passes the policies may.
    db.owner()
        .await
        .run("insert into agent_sessions.audit_event (tenant, stream, action) values ('theirs', 's', 'a')")
        .await;
    assert_chained(&theirs, "s", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_is_set_for_a_transaction_or_used_for_a_statement() {
    let db = Database::create("audit_tenant_use").await;
    let role = db.role("bound", Some("writer")).await;
    db.owner().await.run(&format!("select agent_sessions.tenant_bind('{role}', 'a')")).await;
    let line = {
        let other = in_tenant(&db, "other").await;
        Event::in_stream("s", "a").append(&other).await;
        array_of(&export(&other, "s").await)
    };
    for (round, writer) in [db.writer().await, db.connect(Role::Named(role)).await].into_iter().enumerate() {
        writer.begin("read committed").await;
        writer.run("set local agent_sessions.tenant = 'a'").await;
        Event::in_stream("local", "a").append(&writer).await;
        Event::in_stream("local", "a").insert(&writer).await;
        writer.commit().await;
        for write in [
            "select (agent_sessions.audit_append('a', stream => 'used')).outcome from tenant_use",
            "select (agent_sessions.audit_append_batch('used', '[{\"action\":\"a\"}]')).outcome from tenant_use",
            "insert into agent_sessions.audit_event (tenant, stream, action) select t, 'used', 'a' from tenant_use
             returning 'appended'",
        ] {
            let write = write.replace("tenant_use", "agent_sessions.tenant_use($1::text) t");
            assert_eq!(writer.value::<String>(&write, &[&"a"]).await, "appended", "{write}");
            assert_eq!(writer.value::<String>("select current_setting('agent_sessions.tenant')", &[]).await, "");
        }
        let imports = "select agent_sessions.audit_import('imported ' || $2::text, $3::text::json)
                       from agent_sessions.tenant_use($1::text) t";
        assert_eq!(writer.value::<i64>(imports, &[&"a", &round.to_string(), &line]).await, 1);
        for plans in ["force_custom_plan", "force_generic_plan"] {
            writer.run(&format!("set plan_cache_mode = {plans}")).await;
            for (read, rows) in [
                ("audit_list('used', tenant => t)", 3 * (round as i64 + 1)),
                ("audit_list('local', newest_first => false, tenant => t)", 2 * (round as i64 + 1)),
                ("audit_stats('local', tenant => t)", 1),
                ("audit_export('local', tenant => t)", 2 * (round as i64 + 1)),
                ("audit_verify('local', tenant => t)", 1),
                ("audit_verify(tenant => t)", 3 + round as i64),
            ] {
                let sql = format!(
                    "select count(*) from agent_sessions.tenant_use($1::text) t, lateral agent_sessions.{read} h"
                );
                assert_eq!(writer.value::<i64>(&sql, &[&"a"]).await, rows, "{read}, {plans}");
            }
        }
    }
    let ours = in_tenant(&db, "a").await;
    assert_chained(&ours, "local", 4).await;
    assert_chained(&ours, "used", 6).await;
    assert_eq!(count(&db.superuser().await, "agent_sessions.audit_event where tenant = ''").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_role_writes_and_reads_in_its_tenant_only() {
    let db = Database::create("audit_bound").await;
    let role = db.role("bound", Some("writer")).await;
    let other = in_tenant(&db, "b").await;
    Event::in_stream("s", "a").append(&other).await;
    db.owner().await.run(&format!("select agent_sessions.tenant_bind('{role}', 'a')")).await;
    let bound = db.connect(Role::Named(role)).await;
    for tenant in ["", "b"] {
        bound.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        for sql in [
            "select * from agent_sessions.audit_list()",
            "select * from agent_sessions.audit_stats()",
            "select * from agent_sessions.audit_export()",
            "select * from agent_sessions.audit_verify()",
            "select * from agent_sessions.audit_append('a')",
            "select * from agent_sessions.audit_append_batch('s', '[]')",
            "select * from agent_sessions.audit_append_batch('s', '[{\"action\":\"a\"}]')",
            "select * from agent_sessions.audit_import('s', '[]')",
            "insert into agent_sessions.audit_event (action) values ('a')",
            "insert into agent_sessions.audit_event (tenant, action) values ('a', 'a')",
        ] {
            match bound.batch_execute(sql).await {
                Ok(()) => panic!("{sql} in {tenant:?}"),
                refused => drop(assert_sqlstate!(refused, "SE019")),
            }
        }
        for rows in ["agent_sessions.audit_event", "agent_sessions.audit_chain", "agent_sessions.audit_stream"] {
            assert_eq!(count(&bound, rows).await, 0, "{rows} in {tenant:?}");
        }
    }
    bound.run("set agent_sessions.tenant = 'a'").await;
    Event::in_stream("s", "a").append(&bound).await;
    assert_sqlstate!(
        bound.batch_execute("insert into agent_sessions.audit_event (tenant, action) values ('b', 'a')").await,
        "42501"
    );
    assert_chained(&bound, "s", 1).await;
    assert_chained(&other, "s", 1).await;
}

/// A backend keeps its plans; what one role may see does not become another role's.
#[tokio::test(flavor = "multi_thread")]
async fn plans_made_as_one_role_show_another_no_more() {
    let db = Database::create("audit_plans").await;
    let connection = db.superuser().await;
    let writer = db.role_name(&Role::Writer);
    for round in 1..=8 {
        connection.run("reset role; set agent_sessions.tenant = 'a'").await;
        Event::in_stream("s", "a").append(&connection).await;
        connection.run("insert into agent_sessions.audit_event (tenant, stream, action) values ('a', 's', 'a')").await;
        for read in READS {
            assert!(count(&connection, read).await > 0, "{read}, round {round}");
        }
        connection.run(&format!("set agent_sessions.tenant = 'b'; set role {writer}")).await;
        for read in READS {
            assert_eq!(count(&connection, read).await, 0, "{read}, round {round}");
        }
        let foreign = "insert into agent_sessions.audit_event (tenant, stream, action) values ('a', 's', 'a')";
        assert_sqlstate!(connection.batch_execute(foreign).await, "42501");
    }
    assert_chained(&in_tenant(&db, "a").await, "s", 16).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chains_of_tenants_with_the_same_stream_do_not_mix() {
    let db = Database::create("audit_same_stream").await;
    let tenants = [in_tenant(&db, "a").await, in_tenant(&db, "b").await];
    for round in 0..10 {
        for writer in &tenants {
            Event { event_id: Some(&round.to_string()), ..Event::in_stream("s", "a") }.append(writer).await;
            batch(writer, "s", r#"[{"action":"b"},{"action":"c"}]"#).await;
        }
    }
    for writer in &tenants {
        assert_chained(writer, "s", 30).await;
    }
    let heads = texts(&db.superuser().await, "select hash from agent_sessions.audit_event where seq = 30").await;
    assert_ne!(heads[0], heads[1]);
    // A chain of the other's does not go on here.
    let lines = export(&tenants[0], "s").await;
    assert_sqlstate!(try_import(&tenants[1], "s", &array_of(&lines), None).await, "SE017");
    assert_eq!(import(&tenants[1], "copy", &array_of(&lines), None).await, 30);
}
