//! What a hostile reading of the engine found, and must not find again.

use agent_sessions_tests::{Database, Role, assert_sqlstate, detail};
use serde_json::json;

/// Makes every session look as if nothing had been appended for two minutes.
async fn let_activity_age(db: &Database) {
    let age = "set session_replication_role = replica;
               update agent_sessions.session set active_at = active_at - interval '2 minutes'";
    db.superuser().await.run(age).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_append_and_an_update_of_its_session_are_one_statement() {
    let db = Database::create("append_and_update").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    let_activity_age(&db).await;
    writer
        .run(
            "with appended as (
               insert into agent_sessions.session_item (sid, payload)
                 select sid, '1' from agent_sessions.session where session_id = 's' returning position),
             counted as (
               update agent_sessions.session set input_tokens = 5
                 where session_id = 's' and (select count(*) from appended) = 1 returning revision)
             select * from appended, counted",
        )
        .await;
    writer.assert_dense("s", 1).await;
    let_activity_age(&db).await;
    writer.raw_append("s", "2").await.expect("an append");
    let touched = "select active_at > now() - interval '1 minute' from agent_sessions.session where session_id = 's'";
    assert!(writer.value::<bool>(touched, &[]).await, "a raw append is activity too");
}

#[tokio::test(flavor = "multi_thread")]
async fn merges_stay_within_the_limit_of_the_setting() {
    let db = Database::create("merge_limit").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    writer.run("set agent_sessions.max_payload_bytes = 200").await;
    for argument in ["metadata", "state"] {
        let merge = |key: &str| {
            let patch = json!({ key: "x".repeat(100) });
            format!("select agent_sessions.session_set('s', merge => true, {argument} => '{patch}')")
        };
        writer.run(&merge("a")).await;
        let error = assert_sqlstate!(writer.batch_execute(&merge("b")).await, "SE018");
        assert_eq!(detail(&error)["argument"], json!(argument));
        // That a patch is an object is judged before the session is looked for.
        let malformed = format!("select agent_sessions.session_set('none', merge => true, {argument} => '[1]')");
        let error = assert_sqlstate!(writer.batch_execute(&malformed).await, "SE001");
        assert_eq!(detail(&error)["argument"], json!(argument));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_keys_and_ids_take_no_longer_than_they_are() {
    let db = Database::create("short_work").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    writer.run("set statement_timeout = '15s'").await;
    let members =
        "(select '{' || string_agg('\"' || n || '\":' || n, ',') || '}' from generate_series(1, 60000) n)::json";
    for _ in 0..2 {
        writer.run(&format!("select agent_sessions.session_set('s', merge => true, state => {members})")).await;
    }
    let ids = "array(select 'i' || n from generate_series(100000, 1, -1) n)";
    let appended = "select count(*) from agent_sessions.session_append_batch('s', (
                      select json_agg(json_build_object('payload', n, 'item_id', 'i' || n)) from generate_series(1, 100000) n))";
    assert_eq!(writer.value::<i64>(appended, &[]).await, 100_000);
    let removed = format!("select agent_sessions.session_retract('s', item_ids => {ids})");
    assert_eq!(writer.value::<i64>(&removed, &[]).await, 100_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_misspelt_setting_is_an_error_and_not_a_rule_that_does_not_hold() {
    let db = Database::create("misspelt").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    assert_sqlstate!(writer.batch_execute("set agent_sessions.isolatoin = 'agent'").await, "42602");
    assert_sqlstate!(writer.batch_execute("set agent_sessions.isolation = 'agents'").await, "22023");
}

#[tokio::test(flavor = "multi_thread")]
async fn bindings_of_a_dropped_role_go_with_the_next_change() {
    let db = Database::create("dropped_binding").await;
    let (owner, superuser) = (db.owner().await, db.superuser().await);
    let gone = db.role("gone", None).await;
    owner.run(&format!("select agent_sessions.tenant_bind('{gone}', 'a')")).await;
    superuser.run(&format!("drop owned by {gone}; drop role {gone}")).await;
    let count = "select count(*) from agent_sessions.tenant_binding";
    assert_eq!(owner.value::<i64>(count, &[]).await, 1);
    let reader = db.role_name(&Role::Reader);
    owner.run(&format!("select agent_sessions.tenant_bind('{reader}', 'a')")).await;
    assert_eq!(owner.value::<i64>(count, &[]).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_finds_a_last_entry_that_was_moved_to_another_tenant() {
    let db = Database::create("moved_entry").await;
    let (writer, reader) = (db.writer().await, db.reader().await);
    writer.create_session("s").await;
    for payload in ["0", "1", "2"] {
        writer.append("s", payload).await;
    }
    db.superuser()
        .await
        .run(
            "set session_replication_role = replica;
             update agent_sessions.session_item set tenant = 'other' where position = 2",
        )
        .await;
    let found = "select not ok and first_bad_position = 2 from agent_sessions.session_verify('s')";
    assert!(reader.value::<bool>(found, &[]).await);
}

/// json has no equality: an untouched value is the same pointer to its toast, and the same bytes stored anew are no change.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_beside_a_large_state_moves_no_revision() {
    let db = Database::create("large_state").await;
    let writer = db.writer().await;
    writer.create_session("s").await;
    let large = "(select '\"' || string_agg(md5(n::text), '') || '\"' from generate_series(1, 200000) n)::json";
    assert_eq!(writer.value::<i64>(&format!("select agent_sessions.session_set('s', state => {large})"), &[]).await, 1);
    let usage = "update agent_sessions.session set input_tokens = 1 where session_id = 's' returning revision";
    assert_eq!(writer.value::<i64>(usage, &[]).await, 1);
    let same =
        "update agent_sessions.session set state = (state::text)::json where session_id = 's' returning revision";
    assert_eq!(writer.value::<i64>(same, &[]).await, 1);
}
