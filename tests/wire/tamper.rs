//! What a superuser changes with the triggers off, session_verify finds, and at the right position.

use agent_sessions_tests::{Connection, Database, Verdict};

/// Positions of the log that every test here begins with.
const ENTRIES: i64 = 9;

/// A log with an entry of every kind that clients write, and one entry with every column filled.
async fn with_a_log(db: &Database) -> Connection {
    let writer = db.writer().await;
    writer
        .run(
            "set agent_sessions.tenant = 'acme'; set agent_sessions.agent = 'coder';
             select agent_sessions.session_create(session_id => 's');
             select agent_sessions.session_append('s', '{\"a\":1}', item_id => 'first', tag => 'ab', author => 'c');
             select agent_sessions.session_append('s', '[1, 2]', kind => 'tool_call', item_id => 'full', tag => 'ab',
               author => 'cd', attrs => '{\"k\": [1]}', kept_from => 0);
             select agent_sessions.session_append('s', 'null');
             select agent_sessions.session_append('s', '\"text\"', attrs => '{}');
             select agent_sessions.session_revise('s', '{\"a\":2}', item_id => 'first');
             select agent_sessions.session_retract('s', targets => '{2}');
             select agent_sessions.session_append('s', '1.0', open => true);
             select agent_sessions.session_retract('s', from_target => 6);
             select agent_sessions.session_append('s', '{\"last\": true}', item_id => 'last', tag => 't', author => 'u',
               attrs => '{\"z\": 1}')",
        )
        .await;
    assert_eq!(verdict(&writer).await, untouched(ENTRIES));
    writer
}

fn untouched(entries: i64) -> Verdict {
    Verdict { entries, redacted: 0, ok: true, first_bad_position: None, reason: None }
}

async fn verdict(connection: &Connection) -> Verdict {
    verdict_of(connection, "acme", "coder", "s").await
}

async fn verdict_of(connection: &Connection, tenant: &str, agent: &str, session: &str) -> Verdict {
    let sql = "select entries, redacted, ok, first_bad_position, reason from agent_sessions.session_verify(
               session_id => $1::text, agent_id => $2::text, tenant => $3::text)";
    let row = connection.query_one(sql, &[&session, &agent, &tenant]).await.expect("the session is there");
    Verdict {
        entries: row.get(0),
        redacted: row.get(1),
        ok: row.get(2),
        first_bad_position: row.get(3),
        reason: row.get(4),
    }
}

/// A superuser whose statements fire no trigger.
async fn tamperer(db: &Database) -> Connection {
    let superuser = db.superuser().await;
    superuser.run("set session_replication_role = replica").await;
    superuser
}

/// Runs what an attacker would, asserts that exactly this position is found, and takes it back.
async fn assert_found(tamperer: &Connection, sql: &str, position: i64) {
    tamperer.begin("read committed").await;
    tamperer.run(sql).await;
    assert_bad(&verdict(tamperer).await, position, sql);
    tamperer.rollback().await;
    assert_eq!(verdict(tamperer).await, untouched(ENTRIES), "after {sql}");
}

fn assert_bad(verdict: &Verdict, position: i64, why: &str) {
    assert_eq!((verdict.ok, verdict.first_bad_position), (false, Some(position)), "{why}: {verdict:?}");
    assert!(verdict.reason.as_ref().is_some_and(|reason| !reason.is_empty()), "{why}: {verdict:?}");
}

/// One change of each column at each entry that can have it.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_column_is_found_at_its_entry() {
    let db = Database::create("tamper_columns").await;
    with_a_log(&db).await;
    let tamperer = tamperer(&db).await;
    // The change, and the positions where the constraints of the table would let it pass.
    let items: &[i64] = &[0, 1, 2, 3, 6, 8];
    let all: &[i64] = &[0, 1, 2, 3, 4, 5, 6, 7, 8];
    let contents: &[i64] = &[0, 1, 2, 3, 4, 6, 8];
    let changes: &[(&str, &[i64])] = &[
        ("tenant = 'acmf'", all),
        ("tenant = ''", all),
        ("agent_id = 'codes'", all),
        ("op = case op when 'append' then 'open' else 'append' end", items),
        ("op = case op when 'retract' then 'retract_from' else 'retract' end", &[5, 7]),
        ("op = 'erase'", &[4]),
        ("kind = kind || 'x'", items),
        ("kind = 'messagf'", &[0, 2, 3, 6, 8]),
        ("item_id = 'firsu'", &[0]),
        ("item_id = item_id || ' '", &[0, 1, 8]),
        ("item_id = null", &[0, 1, 8]),
        ("item_id = 'new'", &[2, 3, 6]),
        ("tag = null", &[0, 1, 8]),
        ("tag = ''", items),
        ("tag = 'aB'", &[0, 1]),
        ("author = null", &[0, 1, 8]),
        ("author = ''", items),
        ("author = 'ce'", &[1]),
        // What moves from one column to the next is not the same.
        ("tag = 'a', author = 'bc'", &[0]),
        ("tag = 'abc', author = ''", &[0]),
        ("tag = author, author = tag", &[0, 1, 8]),
        ("target = 1", &[1]),
        ("target = null", &[1]),
        ("target = 0", &[2, 3, 6, 8]),
        ("target = 3", &[4]),
        ("target = 1", &[4, 5, 7]),
        ("target = 5", &[7]),
        ("payload = '{\"a\":3}'", contents),
        ("payload = (payload::text || ' ')::json", contents),
        ("payload = '{\"a\": 1}'", &[0]),
        ("payload = '[1,2]'", &[1]),
        ("payload = '1'", &[6]),
        ("payload = '\"Text\"'", &[3]),
        ("attrs = '{\"k\": [2]}'", &[1]),
        ("attrs = null", &[1, 3, 8]),
        ("attrs = '{}'", &[0, 1, 2, 4, 6, 8]),
        ("attrs = '{\"y\": 1}'", &[8]),
        (
            "salt = overlay(salt::text placing case right(salt::text, 1) when '0' then '1' else '0' end from 36)::uuid",
            all,
        ),
        ("created_at = created_at + interval '1 microsecond'", all),
        ("created_at = created_at - interval '1 day'", all),
    ];
    for (change, positions) in changes {
        for position in *positions {
            let sql = format!("update agent_sessions.session_item set {change} where position = {position}");
            assert_found(&tamperer, &sql, *position).await;
        }
    }
    // Each byte of the digests, and the bits of one.
    for position in all {
        for column in ["content_digest", "digest"] {
            for byte in [0, 1, 15, 30, 31] {
                for bit in [1, 128] {
                    let sql = format!(
                        "update agent_sessions.session_item
                         set {column} = set_byte({column}, {byte}, get_byte({column}, {byte}) # {bit})
                         where position = {position}"
                    );
                    assert_found(&tamperer, &sql, *position).await;
                }
            }
        }
    }
}

/// Content together with the digest that it would have: the chain still tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_rewritten_content_needs_the_whole_rest_of_the_chain() {
    let db = Database::create("tamper_content").await;
    with_a_log(&db).await;
    let tamperer = tamperer(&db).await;
    let lp = |text: &str| format!("int4send(octet_length({text})) || convert_to({text}, 'UTF8')");
    let content = format!("sha256(uuid_send(salt) || {} || int4send(-1))", lp("'7'::text"));
    let rewrite =
        format!("update agent_sessions.session_item set payload = '7', attrs = null, content_digest = {content}");
    for position in [0, 2, 8] {
        assert_found(&tamperer, &format!("{rewrite} where position = {position}"), position).await;
    }
    // The formula is the right one: with the link recomputed as well, the fault moves to the next entry.
    let link = format!(
        "sha256(convert_to('agent_sessions/item/1', 'UTF8') || (select p.digest from agent_sessions.session_item p where p.position = i.position - 1)
         || int8send(position) || {} || {} || int4send(-1) || int4send(-1) || int4send(-1) || int8send(-1)
         || int8send((extract(epoch from created_at - '2000-01-01 00:00:00+00') * 1000000)::bigint) || content_digest)",
        lp("op"),
        lp("kind")
    );
    let relink = format!("update agent_sessions.session_item i set digest = {link} where position = 2");
    assert_found(&tamperer, &format!("{rewrite} where position = 2; {relink}"), 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_swapped_and_doubled_entries_are_found() {
    let db = Database::create("tamper_order").await;
    with_a_log(&db).await;
    let tamperer = tamperer(&db).await;
    for position in 0..ENTRIES - 1 {
        let remove = format!("delete from agent_sessions.session_item where position = {position}");
        assert_found(&tamperer, &remove, position).await;
        // Closing the gap does not hide it.
        let close = format!(
            "{remove}; update agent_sessions.session_item set position = position + 1000 where position > {position};
             update agent_sessions.session_item
             set position = position - 1001, target = target - case op when 'retract_from' then 1 else 0 end
             where position > 1000"
        );
        assert_found(&tamperer, &close, position).await;
    }
    assert_found(&tamperer, "delete from agent_sessions.session_item where position between 2 and 7", 2).await;
    assert_found(&tamperer, "delete from agent_sessions.session_item where position < 8", 0).await;
    for (one, other) in [(0, 1), (0, 8), (1, 2), (2, 3), (3, 6), (7, 8)] {
        let swap = format!(
            "update agent_sessions.session_item set position = 1000 where position = {one};
             update agent_sessions.session_item set position = {one} where position = {other};
             update agent_sessions.session_item set position = {other} where position = 1000"
        );
        assert_found(&tamperer, &swap, one).await;
    }
    let copy = |from: &str, to: &str| {
        format!(
            "insert into agent_sessions.session_item
             select sid, {to}, tenant, agent_id, op, kind, null, tag, author, target, payload, attrs, salt, content_digest,
               digest, created_at
             from agent_sessions.session_item where position = {from}"
        )
    };
    for from in ["0", "2", "3", "5", "6", "8"] {
        assert_found(&tamperer, &copy(from, "9"), 9).await;
    }
    assert_found(&tamperer, &copy("2", "10"), 9).await;
    let doubled = "update agent_sessions.session_item set position = position + 1000 where position >= 3;
                   update agent_sessions.session_item set position = position - 999 where position >= 1000;";
    assert_found(&tamperer, &format!("{doubled} {}", copy("2", "3")), 3).await;
    assert_found(&tamperer, "update agent_sessions.session_item set position = 9 where position = 8", 8).await;
    assert_found(&tamperer, "update agent_sessions.session_item set position = position + 1000", 0).await;

    // The head holds no tail: that entries are missing at the end is told by an anchor, and by nothing in the log.
    tamperer.begin("read committed").await;
    tamperer.run("delete from agent_sessions.session_item where position = 8").await;
    assert_eq!(verdict(&tamperer).await, untouched(ENTRIES - 1));
    tamperer.rollback().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_belongs_to_its_session() {
    let db = Database::create("tamper_session").await;
    let writer = with_a_log(&db).await;
    let tamperer = tamperer(&db).await;
    assert_found(&tamperer, "update agent_sessions.session set created_at = created_at + interval '1 microsecond'", 0)
        .await;
    assert_found(&tamperer, "update agent_sessions.session set created_at = created_at - interval '1 hour'", 0).await;
    for (change, tenant, agent, session) in [
        ("session_id = 't'", "acme", "coder", "t"),
        ("session_id = 's '", "acme", "coder", "s "),
        ("agent_id = 'codes'", "acme", "codes", "s"),
        ("agent_id = '', session_id = 'coders'", "acme", "", "coders"),
        ("tenant = 'acmf'", "acmf", "coder", "s"),
        ("tenant = 'acm', agent_id = 'ecoder'", "acm", "ecoder", "s"),
    ] {
        // The entries' own columns go along, as a careful attacker would have it.
        tamperer.begin("read committed").await;
        tamperer
            .run(&format!(
                "update agent_sessions.session set {change};
                 update agent_sessions.session_item i set tenant = s.tenant, agent_id = s.agent_id
                 from agent_sessions.session s where s.sid = i.sid"
            ))
            .await;
        assert_bad(&verdict_of(&tamperer, tenant, agent, session).await, 0, change);
        tamperer.rollback().await;
    }

    // The old log under a session that was created again, and under another one.
    tamperer.run("create table public.saved as table agent_sessions.session_item").await;
    writer
        .run("select agent_sessions.session_delete('s'); select agent_sessions.session_create(session_id => 's')")
        .await;
    assert_eq!(verdict(&writer).await, untouched(0));
    let bring = "update public.saved set sid = (select sid from agent_sessions.session where session_id = 's');
                 insert into agent_sessions.session_item select * from public.saved";
    tamperer.run(bring).await;
    assert_bad(&verdict(&tamperer).await, 0, "a log of a former session");
    assert_bad(&verdict(&writer).await, 0, "as a writer sees it");
    let reader = db.reader().await;
    reader.run("set agent_sessions.tenant = 'acme'; set agent_sessions.agent = 'coder'").await;
    assert_bad(&verdict(&reader).await, 0, "as a reader sees it");

    writer.run("select agent_sessions.session_create(session_id => 'other')").await;
    tamperer.run(&bring.replace("'s'", "'other'")).await;
    assert_bad(&verdict_of(&writer, "acme", "coder", "other").await, 0, "a log of another session");
}

/// A content that is gone needs an erase entry, and that has to be of the chain.
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_content_is_found() {
    let db = Database::create("tamper_redacted").await;
    with_a_log(&db).await;
    let tamperer = tamperer(&db).await;
    for position in 0..ENTRIES {
        let redact = format!(
            "update agent_sessions.session_item set payload = null, attrs = null, salt = null where position = {position}"
        );
        assert_found(&tamperer, &redact, position).await;
        tamperer.begin("read committed").await;
        tamperer.run(&redact).await;
        assert_eq!(verdict(&tamperer).await.redacted, 1);
        tamperer.rollback().await;
    }
    let redact = "update agent_sessions.session_item set payload = null, attrs = null, salt = null where position = 3";
    let forged = "insert into agent_sessions.session_item
                  select sid, 9, tenant, agent_id, 'erase', null, null, null, null, 3, '{}', null, salt, content_digest, digest,
                    created_at
                  from agent_sessions.session_item where position = 8";
    assert_found(&tamperer, &format!("{redact}; {forged}"), 9).await;
    // An entry that came to be an erase entry by a change is no better.
    let turned = "update agent_sessions.session_item set op = 'erase', target = 3 where position = 4";
    assert_found(&tamperer, &format!("{redact}; {turned}"), 4).await;
}

/// The log may begin later only if a trim entry of the chain says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_beginning_is_found() {
    let db = Database::create("tamper_base").await;
    with_a_log(&db).await;
    let tamperer = tamperer(&db).await;
    let base = "update agent_sessions.session set base_position = 4,
                  base_digest = (select digest from agent_sessions.session_item where position = 3);
                delete from agent_sessions.session_item where position < 4";
    assert_found(&tamperer, base, 4).await;
    assert_found(&tamperer, &base.replace("position = 3", "position = 2"), 4).await;
    let forged = "insert into agent_sessions.session_item
                  select sid, 9, tenant, agent_id, 'trim', null, null, null, null, 4,
                    json_build_object('base_digest', encode((select base_digest from agent_sessions.session), 'hex')),
                    null, salt, content_digest, digest, created_at
                  from agent_sessions.session_item where position = 8";
    assert_found(&tamperer, &format!("{base}; {forged}"), 9).await;
}

/// A tampered log stays found when it goes on, and other sessions are not blamed for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_fault_stays_where_it_is() {
    let db = Database::create("tamper_later").await;
    let writer = with_a_log(&db).await;
    writer.run("select agent_sessions.session_create(session_id => 'bystander', items => '[{\"payload\":1},{\"payload\":2}]')").await;
    let tamperer = tamperer(&db).await;
    tamperer
        .run(
            "update agent_sessions.session_item i set payload = '0' from agent_sessions.session s
             where s.sid = i.sid and s.session_id = 's' and i.position in (3, 6)",
        )
        .await;
    for entry in 0..3 {
        assert_eq!(writer.append("s", "1").await, ENTRIES + entry);
        let found = verdict(&writer).await;
        assert_bad(&found, 3, "two changed entries");
        assert_eq!((found.entries, found.redacted), (ENTRIES + entry + 1, 0));
    }
    assert_eq!(verdict_of(&writer, "acme", "coder", "bystander").await, untouched(2));
    let missing = "select * from agent_sessions.session_verify(session_id => 'no such session')";
    assert!(writer.query(missing, &[]).await.expect("no row").is_empty());
}
