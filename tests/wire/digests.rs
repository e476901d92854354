//! A second implementation of the digests, in another language and written from the design page alone, agrees with the
//! database, and both find the same tampered entry.

use std::path::{Path, PathBuf};

use agent_sessions_tests::{Append, Branch, Connection, Database, Program, Ran, Role, examples, setting, transcripts};

const EXPORT: &str = "
    select json_build_object(
        'table', 'session', 'sid', sid, 'tenant', tenant, 'agent_id', agent_id, 'session_id', session_id,
        'created_at', (extract(epoch from created_at) * 1000000)::bigint - 946684800000000,
        'branched_from', branched_from, 'fork_position', fork_position, 'fork_digest', encode(fork_digest, 'hex'),
        'base_position', base_position, 'base_digest', encode(base_digest, 'hex'), 'hidden', deleted_at is not null)::text
    from agent_sessions.session
    union all
    select json_build_object(
        'table', 'session_item', 'sid', sid, 'position', position, 'op', op, 'kind', kind, 'item_id', item_id,
        'tag', tag, 'author', author, 'target', target, 'payload', payload::text, 'attrs', attrs::text,
        'salt', replace(salt::text, '-', ''), 'content_digest', encode(content_digest, 'hex'),
        'digest', encode(digest, 'hex'),
        'created_at', (extract(epoch from created_at) * 1000000)::bigint - 946684800000000)::text
    from agent_sessions.session_item";

/// Two agents, two tenants, every operation, and values that a hash of text could get wrong.
pub async fn fill(db: &Database) {
    let writer = db.writer().await;
    every_operation(&writer, "").await;
    every_operation(&writer, "planner/東京").await;
    writer
        .run("set agent_sessions.tenant = 'Müller & Söhne'; set timezone = 'Asia/Kathmandu'; set datestyle = 'German'")
        .await;
    every_operation(&writer, "").await;
    writer.run("reset agent_sessions.tenant; set extra_float_digits = -15; set bytea_output = 'escape'").await;
    // Without transcripts beside the clone, the two are the same files.
    for (source, found) in [("transcript", transcripts()), ("example", examples())] {
        for transcript in found {
            let session = format!("{source} {}", transcript.name);
            writer.create_session(&session).await;
            for line in &transcript.lines {
                writer.append(&session, line).await;
            }
        }
    }
}

async fn every_operation(writer: &Connection, agent: &str) {
    let old = "select session_id from agent_sessions.session_create(
        session_id => 'before 2000', created_at => '1999-12-31 23:59:59.999999+00', agent_id => $1::text)";
    writer.value::<String>(old, &[&agent]).await;
    let create = "select session_id from agent_sessions.session_create(session_id => 'every op', agent_id => $1::text)";
    writer.value::<String>(create, &[&agent]).await;

    let bare = Append::to("every op", "1").agent_id(agent);
    let named = Append::to("every op", r#"{"b":1e2,"a":"x\u0000y","b":"\ud83d"}"#)
        .kind("tool")
        .item_id("näme-1")
        .tag("étape")
        .author("ines 🔥")
        .attrs(r#"{"z":1.50,"a":{"nested":[1e2,null,"ü"]},"long":123456789012345678901234567890}"#)
        .agent_id(agent);
    let empty_words = Append::to("every op", " { } ").item_id(" ").attrs("{}").agent_id(agent);
    for (place, append) in [&bare, &named, &empty_words].into_iter().enumerate() {
        assert_eq!(append.run(writer).await.expect("an append"), place as i64);
    }
    let summary = Append::to("every op", r#""so far""#).kind("summary").kept_from(1).agent_id(agent);
    assert_eq!(summary.run(writer).await.expect("a summary"), 3);
    let batch =
        r#"[{"payload":{"n":1},"item_id":"b1"},{"payload":[2 ],"kind":"event","attrs":{"n":2}},{"payload":null}]"#;
    let appended = "select count(*) from agent_sessions.session_append_batch(
        session_id => 'every op', items => $1::text::json, agent_id => $2::text)";
    assert_eq!(writer.value::<i64>(appended, &[&batch, &agent]).await, 3);

    let revise =
        "select agent_sessions.session_revise(session_id => 'every op', target => 1, payload => $1::text::json,
        attrs => '{\"k\": 2}', agent_id => $2::text)";
    assert_eq!(writer.value::<i64>(revise, &[&r#"{"revised" :true}"#, &agent]).await, 7);
    let retract = "select agent_sessions.session_retract(session_id => 'every op', targets => array[0]::bigint[],
        agent_id => $1::text)";
    assert_eq!(writer.value::<i64>(retract, &[&agent]).await, 1);
    let retract_from = "select agent_sessions.session_retract(session_id => 'every op', from_target => 5,
        agent_id => $1::text)";
    assert_eq!(writer.value::<i64>(retract_from, &[&agent]).await, 2);

    let raw = "insert into agent_sessions.session_item (sid, op, kind, item_id, payload)
        select sid, 'open', 'stream', 'opened', '\"\"' from agent_sessions.session
        where session_id = 'every op' and agent_id = $1::text
          and tenant = coalesce(current_setting('agent_sessions.tenant', true), '')";
    assert_eq!(writer.execute(raw, &[&agent]).await.expect("a raw insert"), 1);
    let late = Append::to("before 2000", "{}").agent_id(agent);
    assert_eq!(late.run(writer).await.expect("an append to the older session"), 0);
    branches(writer, agent).await;
}

/// Branches off every part of each other's logs, one without a source, some whose source is hidden, flattened or trimmed.
async fn branches(writer: &Connection, agent: &str) {
    let branch = |source: &'static str, name: &'static str, fork: i64| {
        let mut branch = Branch::of(source).named(name).agent_id(agent);
        if fork > 0 {
            branch = branch.at_target(fork - 1);
        }
        async move {
            let branched = writer.branched(branch).await;
            let append = Append::to(name, "\"own\"").item_id(name).agent_id(agent);
            assert_eq!(append.run(writer).await.expect("an append"), branched.next_position);
        }
    };
    let silent = |source: &'static str, name: &'static str| {
        let branch = Branch::of(source).named(name).agent_id(agent);
        async move { writer.branched(branch).await }
    };
    branch("every op", "branch", 5).await;
    branch("branch", "at its own fork", 5).await;
    branch("branch", "inside the source", 3).await;
    branch("branch", "of it all", 6).await;
    silent("branch", "without entries").await;
    branch("without entries", "through it", 6).await;
    let empty = "select from agent_sessions.session_create(session_id => 'empty', agent_id => $1::text)";
    writer.execute(empty, &[&agent]).await.expect("a session");
    branch("empty", "of nothing", 0).await;
    branch("of nothing", "of its beginning", 1).await;
    writer.branched(Branch::of("every op").named("seed alone").agent_id(agent).inherit(false).seed("1")).await;
    // Hidden, and what it has behind the fork is gone.
    branch("every op", "hidden", 4).await;
    branch("hidden", "of the hidden", 5).await;
    for payload in ["1", "2"] {
        Append::to("hidden", payload).agent_id(agent).run(writer).await.expect("an append");
    }
    for call in [
        "session_delete('hidden', agent_id => $1::text)",
        "session_flatten('of it all', agent_id => $1::text)",
        "session_append('of it all', '\"after\"', agent_id => $1::text)",
    ] {
        writer.execute(&format!("select agent_sessions.{call}"), &[&agent]).await.expect(call);
    }
    silent("of it all", "of the flattened").await;
    branch("of it all", "inside the flattened", 2).await;
    // At the beginning of a branch: what counts is its genesis.
    let at_zero = "insert into agent_sessions.session (agent_id, session_id, branched_from, fork_position)
                   select agent_id, 'at zero', sid, 0 from agent_sessions.session where session_id = 'branch' and agent_id = $1::text";
    assert_eq!(writer.execute(at_zero, &[&agent]).await.expect("a raw branch"), 1);
    Append::to("at zero", "1").agent_id(agent).run(writer).await.expect("an append");
    // A trimmed log with an erased entry, inherited and then copied.
    let kept = "select from agent_sessions.session_create('kept', agent_id => $1::text,
                  items => '[{\"payload\":1},{\"payload\":2},{\"payload\":3,\"item_id\":\"secret\"},{\"payload\":4}]')";
    writer.execute(kept, &[&agent]).await.expect("a session");
    let trim = "select agent_sessions.session_trim('kept', keep_from => 2, agent_id => $1::text)";
    assert_eq!(writer.value::<i64>(trim, &[&agent]).await, 2);
    branch("kept", "of the kept", 4).await;
    branch("of the kept", "of the kept to stay", 4).await;
    let erase = "select agent_sessions.session_erase('of the kept', item_id => 'secret', agent_id => $1::text)";
    assert_eq!(writer.value::<i64>(erase, &[&agent]).await, 1);
    let flatten = "select agent_sessions.session_flatten('of the kept', agent_id => $1::text)";
    assert_eq!(writer.value::<i64>(flatten, &[&agent]).await, 2);
}

async fn export(connection: &Connection) -> String {
    let rows = connection.query(EXPORT, &[]).await.expect("an export by plain SELECTs");
    rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect()
}

async fn verify(input: String) -> Ran {
    let script: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/verify_digests.py");
    let script = script.to_str().expect("a path in UTF-8");
    Program::new(Path::new(&setting("AGENT_SESSIONS_PYTHON"))).args(["-I", script]).input(input).run().await
}

/// The positions that the other implementation names, as `session_id position what`.
fn named(ran: &Ran) -> Vec<(String, i64, String)> {
    let text = std::str::from_utf8(&ran.stdout).expect("output in UTF-8");
    text.lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
            let text = |key: &str| line[key].as_str().expect("a text").to_owned();
            (text("session_id"), line["position"].as_i64().expect("a position"), text("what"))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn python_agrees_on_every_entry() {
    let db = Database::create("digests_agree").await;
    fill(&db).await;
    let superuser = db.superuser().await;
    let ops = "select string_agg(distinct op, ' ' order by op) from agent_sessions.session_item";
    assert_eq!(superuser.value::<String>(ops, &[]).await, "append erase open retract retract_from revise trim");

    let plain = db.psql(Role::Superuser).args(["-c", EXPORT]).output().await;
    let entries: i64 = superuser.value("select count(*) from agent_sessions.session_item", &[]).await;
    assert!(entries > 60, "the sample has {entries} entries");
    let ran = verify(plain).await;
    assert!(ran.success, "{}{}", String::from_utf8_lossy(&ran.stdout), ran.stderr);
    assert!(ran.stderr.contains(&format!(" {entries} entries, 0 mismatches")), "{}", ran.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_input_is_no_agreement() {
    let ran = verify(String::new()).await;
    assert!(!ran.success, "{}", ran.stderr);
}

/// Position 1 of the log holds a value in every column.
#[tokio::test(flavor = "multi_thread")]
async fn python_and_the_database_find_the_same_tampered_entry() {
    let db = Database::create("digests_tampered").await;
    fill(&db).await;
    let superuser = db.superuser().await;
    let item = "update agent_sessions.session_item i set";
    let place = "from agent_sessions.session s
                 where s.sid = i.sid and s.session_id = 'every op' and s.tenant = '' and s.agent_id = ''";
    let session = "update agent_sessions.session set";
    let key = "where session_id = 'every op' and tenant = '' and agent_id = ''";
    let cases = [
        (format!("{item} payload = overlay(payload::text placing '3' from 6 for 1)::json {place} and position = 1"), 1),
        (format!("{item} payload = (payload::text || ' ')::json {place} and position = 1"), 1),
        (format!("{item} attrs = jsonb_set(attrs, '{{z}}', '1.5') {place} and position = 1"), 1),
        (format!("{item} salt = md5(salt::text)::uuid {place} and position = 1"), 1),
        (
            format!(
                "{item} content_digest = set_byte(content_digest, 31, get_byte(content_digest, 31) # 1) {place} and position = 1"
            ),
            1,
        ),
        (format!("{item} digest = set_byte(digest, 0, get_byte(digest, 0) # 128) {place} and position = 1"), 1),
        (format!("{item} kind = 'message' {place} and position = 1"), 1),
        (format!("{item} item_id = null {place} and position = 1"), 1),
        (format!("{item} tag = '' {place} and position = 1"), 1),
        (format!("{item} author = tag, tag = author {place} and position = 1"), 1),
        (format!("{item} target = 0 {place} and position = 1"), 1),
        (format!("{item} created_at = i.created_at + interval '1 microsecond' {place} and position = 1"), 1),
        (format!("{item} op = 'open' {place} and position = 1"), 1),
        (format!("{item} target = 0 {place} and position = 7"), 7),
        (format!("{item} op = 'retract_from' {place} and position = 8"), 8),
        (format!("delete from agent_sessions.session_item i using {} and position = 1", &place["from ".len()..]), 1),
        (format!("{session} created_at = created_at - interval '1 microsecond' {key}"), 0),
        (format!("{session} agent_id = 'other' {key}"), 0),
        (format!("{session} session_id = 'every OP' {key}"), 0),
    ];
    for (tamper, position) in cases {
        // With this setting no trigger of the extension fires.
        superuser.run("begin; set local session_replication_role = replica").await;
        assert_eq!(superuser.execute(&tamper, &[]).await.unwrap_or_else(|e| panic!("{tamper}\n{e:?}")), 1, "{tamper}");
        let (session_id, agent): (String, String) = {
            let row = superuser
                .query_one(
                    "select session_id, agent_id from agent_sessions.session
                     where tenant = '' and session_id ilike 'every op' and agent_id in ('', 'other')",
                    &[],
                )
                .await
                .expect("the session");
            (row.get(0), row.get(1))
        };
        let ran = verify(export(&superuser).await).await;
        assert!(!ran.success, "{tamper}\n{}", ran.stderr);
        let (in_session, first, _) = named(&ran).into_iter().next().unwrap_or_else(|| panic!("{tamper}\n{ran:?}"));
        assert_eq!((in_session.as_str(), first), (session_id.as_str(), position), "{tamper}");

        let verdict = "select first_bad_position from agent_sessions.session_verify(
            session_id => $1::text, agent_id => $2::text, tenant => '')";
        let found: Option<i64> = superuser.value(verdict, &[&session_id, &agent]).await;
        assert_eq!(found, Some(position), "session_verify: {tamper}");
        superuser.rollback().await;
    }
}
