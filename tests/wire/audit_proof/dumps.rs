//! Dump and restore of the audit trail: every row comes back, chains go on, and anchors made before still hold.

use agent_sessions_tests::{Database, Role, Scratch};

use super::*;

const RESTORES: usize = 6;

/// Two tenants with streams of every kind, pruned ones too; anchors, a trail, and logs under them.
struct Source {
    db: Database,
    kept: Vec<(&'static str, Anchor)>,
    proofs: Vec<(String, String)>,
    rows: Vec<String>,
}

async fn filled(name: &str) -> Source {
    let db = Database::create(name).await;
    let (writer, admin) = (db.writer().await, admin(&db).await);
    let (mut kept, mut proofs) = (Vec::new(), Vec::new());
    for tenant in ["acme", "ünd \"so\"\\"] {
        for connection in [&writer, &admin] {
            connection.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        }
        admin.run("select agent_sessions.audit_track('all', true)").await;
        for number in 0..20 {
            fill(&writer, &format!("stream {number}"), 30).await;
        }
        fill(&writer, "", 2_000).await;
        imported::import(
            &writer,
            r#"{"action": "type", "occurred_at": "when", "attrs": "more", "actor": ["user", "id"]}"#,
        )
        .await;
        writer
            .run(
                "select agent_sessions.session_append(s, to_json(n), on_missing => 'create')
                 from unnest('{a,b,gone}'::text[]) s, generate_series(1, 20) n;
                 select agent_sessions.session_branch('a', new_session_id => 'branch'); select agent_sessions.session_append('branch', '1');
                 select agent_sessions.audit_append('bytes', E'{\"b\" :1e400000,\\t\"a\":\"\\\\u0000 \\\\ud83d \\\\\\\\N \\\\\\\\.\",\\n\"a\":-0.0} '::json,
                   stream => E'back\\\\slash', attrs => '{\"tab\": \"a\\tb\"}')",
            )
            .await;
        kept.push((tenant, anchor(&writer).await));
        for (stream, before, removed) in
            [("stream 0", 11, 10), ("stream 1", 1_000, 29), ("old", 4, 3), ("", 1_500, 1_499)]
        {
            assert_eq!(prune(&admin, stream, before).await.expect("pruned"), removed, "{stream}");
        }
        writer
            .run(
                "select agent_sessions.session_delete('gone'); select agent_sessions.session_trim('b', 5);
                 select agent_sessions.session_erase('a', target => 2)",
            )
            .await;
        fill(&writer, "stream 0", 2).await;
        let newest = anchor(&writer).await;
        for (stream, seq) in [("stream 0", 11), ("stream 5", 1), ("", 2_000), ("old", 6)] {
            proofs.push((self::proofs::proof(&writer, stream, seq, None).await, newest.root.clone()));
        }
        kept.push((tenant, newest));
        fill(&writer, "late", 1).await;
    }
    let rows = rows(&db).await;
    Source { db, kept, proofs, rows }
}

/// Each audit table's rows, as their number and a hash of all of them.
async fn rows(db: &Database) -> Vec<String> {
    let superuser = db.superuser().await;
    let mut rows = Vec::new();
    for (table, order) in [
        ("audit_event", "tenant, stream, seq"),
        ("audit_chain", "tenant, stream"),
        ("audit_anchor", "tenant, anchor_id"),
        ("audit_anchor_leaf", "tenant, anchor_id, ordinal"),
        ("audit_tracking", "tenant, what"),
    ] {
        let sql = format!(
            "select '{table} ' || count(*) || ' ' || md5(string_agg(md5(t::text), '' order by {order})) from agent_sessions.{table} t"
        );
        rows.push(superuser.value(&sql, &[]).await);
    }
    rows
}

impl Source {
    async fn dump(&self, arguments: &[&str]) -> Scratch {
        let scratch = Scratch::new(&self.db, &arguments.concat().replace('-', "_"));
        self.db.program("pg_dump", Role::Owner).args(arguments).args(["-f", scratch.path()]).output().await;
        scratch
    }

    /// Everything is there, verifies, is proven, and goes on.
    async fn assert_restored(&self, target: &Database, how: &str) {
        assert_eq!(rows(target).await, self.rows, "{how}");
        let (source, writer) = (self.db.writer().await, target.writer().await);
        for (tenant, kept) in &self.kept {
            for connection in [&source, &writer] {
                connection.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
            }
            assert_eq!(lost(&writer, kept).await, None, "{how}: {kept:?}");
            let found = verdicts(&writer, "").await;
            assert_eq!(found, verdicts(&source, "").await, "{how}");
            assert!(found.len() > 20 && found.values().all(|verdict| verdict.fault.is_none()), "{how}: {found:?}");
        }
        for (proof, root) in &self.proofs {
            assert!(proofs::checks(&writer, proof, root).await, "{how}");
        }
        assert_eq!(proofs::proof(&writer, "stream 0", 11, None).await, self.proofs[4].0, "{how}");
    }

    /// What comes after the restore follows from what came before.
    async fn assert_goes_on(&self, target: &Database) {
        let (writer, admin) = (target.writer().await, target.connect(Role::Named(self.admin(target).await)).await);
        let tenant = self.kept[0].0;
        for connection in [&writer, &admin] {
            connection.run(&format!("set agent_sessions.tenant = '{tenant}'")).await;
        }
        let append =
            "select seq || ' ' || outcome from agent_sessions.audit_append('after', stream => $1, event_id => $2)";
        for (stream, seq) in [("", 2_001), ("old", 7), ("stream 0", 33), ("stream 1", 31), ("late", 2), ("new", 1)] {
            for outcome in ["appended", "replayed"] {
                let told: String = writer.value(append, &[&stream, &"after"]).await;
                assert_eq!(told, format!("{seq} {outcome}"), "{stream}");
            }
        }
        // The ids of before are used, as far as their events are there.
        let used = writer.try_value::<String>(append, &[&"stream 5", &"e30"]).await;
        assert_eq!(agent_sessions_tests::sqlstate(&used.expect_err("other content")), "SE021");
        assert_eq!(writer.value::<String>(append, &[&"stream 1", &"e3"]).await, "32 appended");
        fill(&writer, "stream 0", 1).await;
        // What is tracked still is, and pruning goes as far as the anchors of before.
        writer.run("select agent_sessions.session_delete('b')").await;
        assert_eq!(
            prune(&admin, "stream 0", 100).await.map_err(|refused| agent_sessions_tests::sqlstate(&refused).to_owned()),
            Err("SE014".to_owned())
        );
        assert_eq!(prune(&admin, "stream 0", 33).await.expect("pruned"), 22);
        let newest = anchor(&writer).await;
        assert_eq!(newest.id, 3);
        for kept in self.kept.iter().filter(|(of, _)| *of == tenant).map(|(_, kept)| kept).chain([&newest]) {
            assert_eq!(lost(&writer, kept).await, None, "{kept:?}");
        }
        assert!(verdicts(&writer, "").await.values().all(|verdict| verdict.fault.is_none()));
    }

    async fn admin(&self, target: &Database) -> String {
        target.role("admin", Some("admin")).await
    }
}

async fn restored(dump: &Scratch) -> Database {
    let target = Database::empty("audit_restore").await;
    target
        .program("pg_restore", Role::Owner)
        .args(["-j4", "--exit-on-error", "-d", &target.name, dump.path()])
        .output()
        .await;
    target
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_restores_of_the_trail_are_complete_and_it_goes_on() {
    let source = filled("audit_dump_custom").await;
    let dump = source.dump(&["-Fc"]).await;
    for run in 0..RESTORES {
        let target = restored(&dump).await;
        source.assert_restored(&target, &format!("restore {run}")).await;
        if run == 0 {
            source.assert_goes_on(&target).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_the_trail_restores_and_dumps_the_same_again() {
    let source = filled("audit_dump_folder").await;
    let target = restored(&source.dump(&["-Fd", "-j4"]).await).await;
    source.assert_restored(&target, "folder").await;
    // A restored database is a source as any other.
    let again = Scratch::new(&target, "again");
    target.program("pg_dump", Role::Owner).args(["-Fd", "-j4", "-f", again.path()]).output().await;
    let second = restored(&again).await;
    source.assert_restored(&second, "restored twice").await;
    source.assert_goes_on(&second).await;
}

/// A restore brings rows as they are; one that was changed in between is refused, or found.
#[tokio::test(flavor = "multi_thread")]
async fn a_dump_of_a_tampered_trail_does_not_become_a_right_one() {
    for (change, is_restored) in [
        ("update agent_sessions.audit_event set actor = 'eve' where stream = 'orders' and seq = 4", true),
        ("delete from agent_sessions.audit_event where stream = 'orders' and seq = 4", true),
        ("update agent_sessions.audit_event set data = data || ' ' where stream = 'orders' and seq = 4", false),
        ("update agent_sessions.audit_event set prev_hash = hash where stream = 'orders' and seq = 4", false),
    ] {
        let db = Database::create("audit_dump_tampered").await;
        orders(&db).await;
        tamperer(&db).await.run(change).await;
        let dump = Scratch::new(&db, "tampered");
        db.program("pg_dump", Role::Owner).args(["-Fc", "-f", dump.path()]).output().await;
        let target = Database::empty("audit_restore_tampered").await;
        let ran = target
            .program("pg_restore", Role::Owner)
            .args(["--exit-on-error", "-d", &target.name, dump.path()])
            .run()
            .await;
        assert_eq!(ran.success, is_restored, "{change}: {}", ran.stderr);
        if is_restored {
            let auditor = target.writer().await;
            auditor.run("set agent_sessions.tenant = 'acme'").await;
            assert_eq!(first_bad(&auditor, "'orders'").await, Some(4), "{change}");
        }
    }
}
