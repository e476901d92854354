//! What has become of the chains since an anchor: what it misses, and what it takes as retention's own work.

use agent_sessions_tests::{Append, Database, assert_sqlstate};

use super::*;

/// Streams and logs of the tenant acme, all under one anchor.
async fn anchored(db: &Database) -> (Connection, Anchor) {
    let writer = orders(db).await;
    fill(&writer, "other", 2).await;
    for (session, items) in [("chat", 5), ("short", 1), ("source", 4)] {
        for item in 0..items {
            let append = Append::to(session, "[1, 2]").on_missing("create").agent_id("bot");
            assert_eq!(append.run(&writer).await.expect("an append"), item);
        }
    }
    writer.run("set agent_sessions.agent = 'bot'").await;
    writer
        .run("select session_id from agent_sessions.session_branch('source', at_target => 2, new_session_id => 'branch')")
        .await;
    writer.append_batch("branch", "[{\"payload\": 3}, {\"payload\": 4}]").await;
    let made = anchor(&writer).await;
    assert_eq!(made.chains, 6);
    assert_eq!(lost(&writer, &made).await, None);
    (writer, made)
}

async fn session_is_ok(connection: &Connection, session: &str) -> bool {
    let sql = "select bool_and(ok) from agent_sessions.session_verify($1, agent_id => 'bot', tenant => 'acme')";
    connection.value(sql, &[&session]).await
}

/// SQL that gives the entry of a log another content and hashes it and all that follow it anew.
fn rewritten_log(session: &str, position: i64) -> String {
    let lp =
        |text: &str| format!("coalesce(int4send(octet_length({text})) || convert_to({text}, 'UTF8'), int4send(-1))");
    let (content, link) = (
        format!("sha256(uuid_send(entry.salt) || {} || {})", lp("entry.payload::text"), lp("entry.attrs::text")),
        format!(
            "sha256(convert_to('agent_sessions/item/1', 'UTF8') || previous || int8send(entry.position) || {} || {} || {} || {} || {}
               || int8send(coalesce(entry.target, -1)) || int8send((extract(epoch from entry.created_at
                 - '2000-01-01 00:00:00+00') * 1000000)::bigint) || entry.content_digest)",
            lp("entry.op"),
            lp("entry.kind"),
            lp("entry.item_id"),
            lp("entry.tag"),
            lp("entry.author")
        ),
    );
    format!(
        "do $$
         declare
           entry agent_sessions.session_item;
           its bigint := (select s.sid from agent_sessions.session s where s.session_id = '{session}');
           previous bytea := (select i.digest from agent_sessions.session_item i where i.sid = its and i.position = {position} - 1);
         begin
           for entry in select * from agent_sessions.session_item i where i.sid = its and i.position >= {position} order by 2 loop
             if entry.position = {position} then
               entry.payload := '\"forged\"';
             end if;
             entry.content_digest := {content};
             entry.digest := {link};
             update agent_sessions.session_item i
               set payload = entry.payload, content_digest = entry.content_digest, digest = entry.digest
               where i.sid = its and i.position = entry.position;
             previous := entry.digest;
           end loop;
         end
         $$"
    )
}

/// What the chains themselves do not show.
#[tokio::test(flavor = "multi_thread")]
async fn a_tail_that_was_cut_or_rewritten_is_missed() {
    let db = Database::create("anchored_tails").await;
    let (_writer, made) = anchored(&db).await;
    let connection = tamperer(&db).await;
    let (event, item) = ("agent_sessions.audit_event", "agent_sessions.session_item");
    let of = |session: &str| format!("sid = (select sid from agent_sessions.session where session_id = '{session}')");
    let attacks = [
        (format!("delete from {event} where stream = 'orders' and seq = 9"), "orders"),
        (format!("delete from {event} where stream = 'orders' and seq > 2"), "orders"),
        (format!("delete from {event} where stream = 'orders'"), "orders"),
        (
            format!(
                "delete from {event} where stream = 'other'; delete from agent_sessions.audit_chain where stream = 'other'"
            ),
            "other",
        ),
        (rewritten("orders", 9), "orders"),
        (rewritten("orders", 5), "orders"),
        (rewritten("orders", 1), "orders"),
        (rewritten("other", 1), "other"),
        (format!("delete from {item} where {} and position = 4", of("chat")), "chat"),
        (format!("delete from {item} where {} and position > 0", of("chat")), "chat"),
        (format!("delete from {item} where {}", of("chat")), "chat"),
        (format!("delete from {item} where {}", of("short")), "short"),
        (format!("delete from {item} where {} and position = 3", of("source")), "source"),
        (format!("delete from {item} where {}", of("branch")), "branch"),
        (rewritten_log("chat", 4), "chat"),
        (rewritten_log("chat", 2), "chat"),
        (rewritten_log("source", 3), "source"),
        (rewritten_log("branch", 4), "branch"),
    ];
    for (attack, name) in attacks {
        connection.begin("read committed").await;
        connection.run(&attack).await;
        assert!(verdicts(&connection, "").await.values().all(|verdict| verdict.fault.is_none()), "{attack}");
        for session in ["chat", "short", "source", "branch"] {
            assert!(session_is_ok(&connection, session).await, "{session}: {attack}");
        }
        let reason = lost(&connection, &made).await.unwrap_or_else(|| panic!("not missed: {attack}"));
        assert!(reason.contains(&format!("{name:?}")), "{reason}: {attack}");
        connection.rollback().await;
        assert_eq!(lost(&connection, &made).await, None, "after {attack}");
    }
}

/// A tail that is cut and then goes on has another event where the anchored head was.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_went_on_behind_a_cut_is_missed() {
    let db = Database::create("anchored_cut").await;
    let (writer, made) = anchored(&db).await;
    tamperer(&db)
        .await
        .run(
            "delete from agent_sessions.audit_event where stream = 'other' and seq = 2;
             delete from agent_sessions.session_item i using agent_sessions.session s
             where s.sid = i.sid and s.session_id = 'chat' and position = 4",
        )
        .await;
    assert!(lost(&writer, &made).await.is_some());
    fill(&writer, "other", 2).await;
    assert_eq!(verdict(&writer, "'other'").await, untouched(3));
    assert!(lost(&writer, &made).await.is_some_and(|reason| reason.contains("\"other\"")));
    // The stream is put right, the log is not.
    let later = anchor(&writer).await;
    assert_eq!(writer.append("chat", "[1, 2]").await, 4);
    assert_eq!(lost(&writer, &later).await, None, "3 was the head then, and still is there");
    assert!(lost(&writer, &made).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_removed_or_made_anew_is_missed() {
    let db = Database::create("anchored_sessions").await;
    let (_writer, made) = anchored(&db).await;
    let connection = tamperer(&db).await;
    let removed = "delete from agent_sessions.session_item i using agent_sessions.session s
                   where s.sid = i.sid and s.session_id = 'chat';
                   delete from agent_sessions.session where session_id = 'chat'";
    let created = "set local session_replication_role = origin; set local agent_sessions.agent = 'bot';
                   select agent_sessions.session_append('chat', '[1, 2]', on_missing => 'create') from generate_series(1, 5)";
    for attack in [
        removed.to_owned(),
        "delete from agent_sessions.session where session_id = 'chat'".to_owned(),
        format!("{removed}; {created}"),
        "update agent_sessions.session set session_id = 'taht' where session_id = 'chat'".to_owned(),
        "update agent_sessions.session set agent_id = 'other' where session_id = 'chat'".to_owned(),
        "update agent_sessions.session set tenant = 'other' where session_id = 'chat'".to_owned(),
        "update agent_sessions.session set deleted_at = now() where session_id = 'chat'".to_owned(),
        // By the functions, of which the trail tells nothing.
        "set local session_replication_role = origin; select agent_sessions.session_delete('chat', agent_id => 'bot')".to_owned(),
        "set local session_replication_role = origin; select agent_sessions.session_delete('source', agent_id => 'bot')".to_owned(),
        "set local session_replication_role = origin; delete from agent_sessions.session where session_id = 'chat'".to_owned(),
    ] {
        connection.begin("read committed").await;
        connection.run(&attack).await;
        assert!(lost(&connection, &made).await.is_some(), "not missed: {attack}");
        connection.rollback().await;
        assert_eq!(lost(&connection, &made).await, None, "after {attack}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chains_that_went_on_or_were_cut_back_by_retention_are_accepted() {
    let db = Database::create("anchored_retention").await;
    let (writer, made) = anchored(&db).await;
    let admin = admin(&db).await;
    let mut kept = vec![made];
    for work in [
        "select agent_sessions.audit_append('later', stream => 'orders') from generate_series(1, 3)",
        "select agent_sessions.audit_append('first', stream => 'new')",
        "select agent_sessions.session_append('chat', '1')",
        "select agent_sessions.session_append('new', '1', on_missing => 'create')",
        "select agent_sessions.session_revise('chat', '2', target => 0)",
        "select agent_sessions.session_retract('chat', targets => '{1}')",
        "select agent_sessions.session_erase('chat', target => 4, reason => 'asked for')",
        "select agent_sessions.session_erase('source', target => 3)",
        "select agent_sessions.session_set('chat', title => 'other', metadata => '{}', state => '1')",
        "do $$ begin assert agent_sessions.session_trim('chat', 3) = 3; end $$",
        "do $$ begin assert agent_sessions.session_trim('chat', 1000) > 3; end $$",
        "select agent_sessions.session_branch('chat')",
        "select agent_sessions.session_branch('source', at_target => 3)",
        "do $$ begin assert agent_sessions.session_flatten('branch') = 3; end $$",
        "select agent_sessions.session_append('branch', '1')",
    ] {
        writer.run(work).await;
        for one in &kept {
            assert_eq!(lost(&writer, one).await, None, "{work}: {one:?}");
        }
        kept.push(anchor(&writer).await);
    }
    for (before, removed) in [(5, 4), (9, 4), (10, 1), (1000, 2)] {
        assert_eq!(prune(&admin, "orders", before).await.expect("pruned"), removed);
        for one in &kept {
            assert_eq!(lost(&writer, one).await, None, "pruned before {before}: {one:?}");
        }
        kept.push(anchor(&writer).await);
    }
    // None of it covers for what goes behind the base, whatever the anchor.
    let connection = tamperer(&db).await;
    for attack in [
        "delete from agent_sessions.audit_event where stream = 'orders'".to_owned(),
        rewritten("orders", 12),
        "delete from agent_sessions.session_item i using agent_sessions.session s
         where s.sid = i.sid and session_id = 'chat' and position = (
           select max(position) from agent_sessions.session_item m where m.sid = s.sid)"
            .to_owned(),
    ] {
        connection.begin("read committed").await;
        connection.run(&attack).await;
        assert!(lost(&connection, kept.last().expect("the newest")).await.is_some(), "{attack}");
        connection.rollback().await;
    }
}

/// Only as far as an anchor has recorded the stream is a beginning taken as pruned.
#[tokio::test(flavor = "multi_thread")]
async fn a_base_that_no_anchor_covers_hides_nothing() {
    let db = Database::create("anchored_base").await;
    let (writer, made) = anchored(&db).await;
    fill(&writer, "orders", 2).await;
    let connection = tamperer(&db).await;
    for (base, hash) in [(11, "hash"), (10, "hash"), (10, "'forged'"), (12, "hash"), (i64::MAX, "hash")] {
        connection.begin("read committed").await;
        connection
            .run(&format!(
                "update agent_sessions.audit_chain c set base_seq = {base}, base_hash = {hash}
                 from agent_sessions.audit_event e where (c.stream, e.stream, e.seq) = ('orders', 'orders', least({base}, 11));
                 delete from agent_sessions.audit_event where stream = 'orders' and seq <= {base}"
            ))
            .await;
        assert!(lost(&connection, &made).await.is_some(), "a base at {base}");
        connection.rollback().await;
        assert_eq!(lost(&connection, &made).await, None);
    }
    // A base at the anchored head is that event.
    connection
        .run(
            "update agent_sessions.audit_chain c set base_seq = 9, base_hash = 'forged' where stream = 'orders';
             delete from agent_sessions.audit_event where stream = 'orders'",
        )
        .await;
    assert!(lost(&connection, &made).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_is_accepted_if_the_trail_tells_of_it() {
    let db = Database::create("anchored_deletions").await;
    let (writer, made) = anchored(&db).await;
    let admin = admin(&db).await;
    // A session below another, one that is to expire, and one of an agent without a name.
    writer
        .run(
            "select agent_sessions.session_create('below', parent_session_id => 'chat', items => '[{\"payload\": 1}]');
             select agent_sessions.session_create('brief', expires_at => now() - interval '1 s', items => '[{\"payload\": 1}]');
             select agent_sessions.session_create('nobody''s', agent_id => '', items => '[{\"payload\": 1}]')",
        )
        .await;
    let more = anchor(&writer).await;
    let deletions = [
        "select agent_sessions.session_delete('chat')",
        "select agent_sessions.session_expire()",
        "select agent_sessions.session_delete('nobody''s', agent_id => '')",
        "delete from agent_sessions.session where session_id = 'short'",
        // Hidden first, and gone with its branch.
        "select agent_sessions.session_delete('source')",
        "select agent_sessions.session_delete('branch')",
    ];
    // Nothing tells of it yet.
    for deletion in deletions {
        admin.begin("read committed").await;
        admin.run("set local agent_sessions.agent = 'bot'").await;
        admin.run(deletion).await;
        assert!(lost(&admin, &more).await.is_some(), "{deletion}");
        admin.rollback().await;
    }
    admin.run("select agent_sessions.audit_track('delete', true); set agent_sessions.agent = 'bot'").await;
    for deletion in deletions {
        admin.run(deletion).await;
        for one in [&made, &more] {
            assert_eq!(lost(&writer, one).await, None, "{deletion}");
        }
    }
    let left: i64 = writer.value("select count(*) from agent_sessions.session", &[]).await;
    assert_eq!(left, 0);

    // What is made anew under the name has to stay, whatever became of its predecessor.
    writer
        .run("select agent_sessions.session_append('chat', '1', on_missing => 'create') from generate_series(1, 3)")
        .await;
    let anew = anchor(&writer).await;
    for one in [&made, &more, &anew] {
        assert_eq!(lost(&writer, one).await, None);
    }
    let connection = tamperer(&db).await;
    for attack in [
        "delete from agent_sessions.session_item where position = 2",
        "delete from agent_sessions.session_item; delete from agent_sessions.session",
        // Without the trail, the older anchors miss what it told of.
        "delete from agent_sessions.audit_event where stream = 'agent_sessions'",
    ] {
        connection.begin("read committed").await;
        connection.run(attack).await;
        assert!(lost(&connection, &anew).await.is_some(), "{attack}");
        connection.rollback().await;
    }
    connection
        .run("delete from agent_sessions.audit_event where stream = 'agent_sessions' and session_id = 'chat'")
        .await;
    assert!(lost(&connection, &made).await.is_some());
    // No longer tracked, no longer accepted.
    admin.run("select agent_sessions.audit_track('all', false); select agent_sessions.session_delete('chat')").await;
    assert!(lost(&writer, &anew).await.is_some());
}

/// An event that looks like the engine's does not make a session's loss right: only the trail's own do.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_told_elsewhere_or_of_another_is_none() {
    let db = Database::create("anchored_told").await;
    let (writer, made) = anchored(&db).await;
    for event in [
        "'session_delete', stream => 'orders', session_id => 'chat', target => 'bot'",
        "'session_delete', stream => 'agent_session', session_id => 'chat', target => 'bot'",
    ] {
        writer.run(&format!("select agent_sessions.audit_append({event})")).await;
    }
    let admin = admin(&db).await;
    admin
        .run(
            "select agent_sessions.audit_track('all', true); set agent_sessions.agent = 'bot';
             select agent_sessions.session_delete('short');
             select agent_sessions.session_create('chat', agent_id => 'other'); select agent_sessions.session_delete('chat', agent_id => 'other');
             set agent_sessions.tenant = 'other'; select agent_sessions.audit_track('all', true);
             select agent_sessions.session_create('chat'); select agent_sessions.session_delete('chat')",
        )
        .await;
    assert_eq!(lost(&writer, &made).await, None);
    tamperer(&db).await.run("delete from agent_sessions.session where session_id = 'chat'").await;
    assert!(lost(&writer, &made).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_root_or_a_changed_record_is_no_anchor() {
    let db = Database::create("anchored_records").await;
    let (writer, made) = anchored(&db).await;
    fill(&writer, "orders", 1).await;
    let later = anchor(&writer).await;
    let flipped = |root: &str| format!("{}{}", if root.starts_with('0') { "1" } else { "0" }, &root[1..]);
    for (root, id) in [
        (flipped(&made.root), None),
        (flipped(&made.root), Some(1)),
        (made.root.to_uppercase(), None),
        (made.root.clone(), Some(later.id)),
        (later.root.clone(), Some(made.id)),
        (made.root.clone(), Some(99)),
        (made.root.clone(), Some(0)),
        (made.root.clone(), Some(-1)),
        (String::new(), None),
        (String::new(), Some(1)),
        (made.root[1..].to_owned(), Some(1)),
        ("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".to_owned(), Some(1)),
    ] {
        assert!(lost_by(&writer, "$1, $2", &[&root, &id]).await.is_some(), "{root} {id:?}");
    }
    for call in ["audit_check_anchor(null)", "audit_check_anchor(root => null, anchor_id => 1)"] {
        assert_sqlstate!(writer.query(&format!("select * from agent_sessions.{call}"), &[]).await, "SE001");
    }

    let connection = tamperer(&db).await;
    let (record, leaf) = ("agent_sessions.audit_anchor", "agent_sessions.audit_anchor_leaf");
    for attack in [
        format!("update {record} set root = '{}' where anchor_id = 1", flipped(&made.root)),
        format!("update {record} set root = '{}' where anchor_id = 1", later.root),
        format!("update {record} set tenant = 'other'"),
        format!("update {record} set anchor_id = 3 where anchor_id = 1"),
        format!("delete from {record} where anchor_id = 1"),
        format!("delete from {leaf} where anchor_id = 1"),
        format!("delete from {leaf} where anchor_id = 1 and ordinal = 0"),
        format!("delete from {leaf} where anchor_id = 1 and ordinal = 5"),
        format!("update {leaf} set tenant = 'other' where anchor_id = 1 and ordinal = 5"),
        format!("update {leaf} set ordinal = 6 where anchor_id = 1 and ordinal = 0"),
        format!("update {leaf} set leaf = replace(leaf, ',9,', ',8,') where anchor_id = 1 and stream = 'orders'"),
        format!("update {leaf} set leaf = leaf || ' ' where anchor_id = 1 and ordinal = 3"),
        format!("update {leaf} set leaf = '' where anchor_id = 1 and ordinal = 3"),
        format!("update {leaf} set leaf = '[\"stream\",\"acme\",\"orders\",9]' where anchor_id = 1 and ordinal = 3"),
        format!("update {leaf} set leaf = replace(leaf, 'acme', 'acmf') where anchor_id = 1"),
        format!(
            "insert into {leaf} select tenant, anchor_id, 6, leaf, stream, seq from {leaf} where anchor_id = 1 and ordinal = 5"
        ),
        format!(
            "insert into {leaf} select tenant, anchor_id, -1, leaf, stream, seq from {leaf} where anchor_id = 1 and ordinal = 0"
        ),
        // The record of a cut tail in place of the whole one's.
        format!(
            "delete from agent_sessions.audit_event where stream = 'orders' and seq > 8;
             update {leaf} set seq = 8, leaf = (select format('[\"stream\",\"acme\",\"orders\",8,\"%s\"]', hash)
               from agent_sessions.audit_event where stream = 'orders' and seq = 8) where stream = 'orders'"
        ),
    ] {
        connection.begin("read committed").await;
        connection.run(&attack).await;
        assert!(lost(&connection, &made).await.is_some(), "not missed: {attack}");
        connection.rollback().await;
        assert_eq!(lost(&connection, &made).await, None, "after {attack}");
    }
}
