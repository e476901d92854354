//! Hashes and verdicts do not depend on how a session wants values written.

use agent_sessions_tests::Database;

use super::*;

const SETTINGS: &[&str] = &[
    "timezone = 'Asia/Kathmandu'",
    "timezone = 'America/St_Johns'",
    "timezone = '-15:59'",
    "datestyle = 'German'",
    "datestyle = 'SQL, DMY'",
    "datestyle = 'Postgres, MDY'",
    "extra_float_digits = -15",
    "extra_float_digits = 3",
    "bytea_output = 'escape'",
    "intervalstyle = 'sql_standard'",
    "intervalstyle = 'iso_8601'",
    "client_encoding = 'SQL_ASCII'",
    "client_encoding = 'LATIN1'",
    "client_encoding = 'UTF8'",
    "standard_conforming_strings = off",
    "search_path = ''",
    "lc_numeric = 'C'",
    "jit = off",
    "enable_indexscan = off",
    "work_mem = '64kB'",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_read_only = on",
    "plan_cache_mode = force_generic_plan",
];

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_verifies_under_every_setting() {
    let db = Database::create("audit_settings").await;
    let writer = orders(&db).await;
    imported::import(&writer, r#"{"occurred_at": "when", "attrs": "more", "actor": ["user", "id"]}"#).await;
    writer.run("select agent_sessions.session_append('chat', '1', on_missing => 'create')").await;
    let kept = anchor(&writer).await;
    let expected: BTreeMap<String, Verdict> =
        [("orders".to_owned(), untouched(EVENTS)), ("old".to_owned(), untouched(imported::IMPORTED))].into();
    // Some of them at once, too.
    let all = SETTINGS.join("; set ");
    for setting in SETTINGS.iter().copied().chain([all.as_str()]) {
        let connection = db.writer().await;
        connection.run(&format!("set agent_sessions.tenant = 'acme'; set {setting}")).await;
        assert_eq!(verdicts(&connection, "").await, expected, "{setting}");
        assert_eq!(lost(&connection, &kept).await, None, "{setting}");
        // Made and checked in the server: not every encoding can show it.
        let checks = "select agent_sessions.audit_check_proof(agent_sessions.audit_proof('orders', 3), $1)";
        assert!(connection.value::<bool>(checks, &[&kept.root]).await, "{setting}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_under_any_setting_verifies_under_the_usual() {
    let db = Database::create("audit_settings_written").await;
    let writer = orders(&db).await;
    // Where nothing can be written, or what is sent is read otherwise.
    let other = ["read_only", "client_encoding", "conforming_strings"];
    let writing = SETTINGS.iter().filter(|setting| !other.iter().any(|other| setting.contains(other)));
    let mut written = EVENTS;
    for setting in writing {
        let connection = db.writer().await;
        connection.run(&format!("set agent_sessions.tenant = 'acme'; set {setting}")).await;
        fill(&connection, "orders", 2).await;
        connection
            .run(
                "select agent_sessions.audit_append('look', stream => 'orders', occurred_at => '2001-02-03 04:05:06.7+00',
                   attrs => '{\"n\": 0.1, \"e\": 1e-7}')",
            )
            .await;
        written += 3;
        assert_eq!(verdict(&writer, "'orders'").await, untouched(written), "{setting}");
    }
    let spellings = "select count(distinct substring(data from '\"occurred_at\":\"2001[^\"]*\"'))
                     from agent_sessions.audit_event where status is null and data like '%\"occurred_at\":\"2001%'";
    assert_eq!(writer.value::<i64>(spellings, &[]).await, 1);
}
