//! Copies of the files: pg_basebackup of a server that is written to, and from one, by archived WAL, a point in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use agent_sessions_tests::{Append, OwnCluster};

use super::world::{self, World};
use super::{DATABASE, Site};

const WRITERS: usize = 4;

/// The tenant that is written to during the backup.
const LOAD: &str = "load";

/// What was acknowledged to one writer.
struct Acknowledged {
    entries: AtomicI64,
    fence: AtomicI64,
    events: AtomicI64,
}

impl Acknowledged {
    const fn new() -> Acknowledged {
        Acknowledged { entries: AtomicI64::new(0), fence: AtomicI64::new(0), events: AtomicI64::new(0) }
    }
}

impl Site {
    /// Copies the files of the running server to a place of their own.
    async fn copied(&self) -> OwnCluster {
        let copy = OwnCluster::without_data().await;
        let Site { server } = self;
        let backup = copy.program("pg_basebackup").connecting(&server.cluster, &server.cluster.superuser, "postgres");
        backup.args(["--checkpoint=fast", "--wal-method=stream", "--no-sync"]).output().await;
        copy.client("pg_verifybackup", &server.cluster.superuser, "postgres").args([copy.data()]).output().await;
        copy
    }

    /// Claims, appends and releases until it is told to stop.
    async fn write(&self, number: usize, told: &Acknowledged, stop: &AtomicBool) {
        let writer = self.writer().await;
        writer.run(&format!("set agent_sessions.tenant = '{LOAD}'")).await;
        let (session, stream) = (format!("session {number}"), format!("stream {number}"));
        let claim = "select lease, fence from agent_sessions.session_claim($1::text, '1 minute')";
        let release = "select agent_sessions.session_release($1::text, $2::text)";
        let event = "select seq from agent_sessions.audit_append('work', stream => $1::text)";
        while !stop.load(Ordering::Relaxed) {
            let claimed = writer.query_one(claim, &[&session]).await.expect("a claim");
            let (lease, fence): (String, i64) = (claimed.get(0), claimed.get(1));
            told.fence.store(fence, Ordering::Relaxed);
            for _ in 0..10 {
                let position = Append::to(&session, "\"under load\"").lease(&lease).run(&writer).await;
                told.entries.store(position.expect("an append") + 1, Ordering::Relaxed);
            }
            assert!(writer.value::<bool>(release, &[&session, &lease]).await);
            told.events.store(writer.value(event, &[&stream]).await, Ordering::Relaxed);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_backup_under_load_verifies_and_goes_on() {
    let site = Arc::new(Site::found(OwnCluster::start(&["fsync = off"]).await).await);
    world::grow(&site.owner().await).await;
    let quiet = World::of(&site.superuser(DATABASE).await).await;
    quiet.assert_whole();

    let (told, stop) = (Arc::new([const { Acknowledged::new() }; WRITERS]), Arc::new(AtomicBool::new(false)));
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let (site, told, stop) = (site.clone(), told.clone(), stop.clone());
            tokio::spawn(async move { site.write(number, &told[number], &stop).await })
        })
        .collect();
    while told.iter().any(|writer| writer.events.load(Ordering::Relaxed) < 3) {
        tokio::task::yield_now().await;
    }
    let read =
        |value: fn(&Acknowledged) -> &AtomicI64| told.each_ref().map(|writer| value(writer).load(Ordering::Relaxed));
    let (entries, events, fences) = (read(|told| &told.entries), read(|told| &told.events), read(|told| &told.fence));
    let copy = site.copied().await;
    assert!(read(|told| &told.entries).iter().zip(entries).all(|(after, before)| *after > before), "nobody wrote");
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.expect("a writer");
    }

    copy.configure(&[]);
    copy.start_again().await;
    let copy = Site { server: copy };
    let (original, superuser) = (site.superuser(DATABASE).await, copy.superuser(DATABASE).await);
    quiet.assert_read_but(LOAD, &superuser, "base backup").await;
    let last = "select max(position), max(digest::text) filter (where is_last) from
        (select i.position, i.digest, i.position = max(i.position) over () as is_last from agent_sessions.session s
         join agent_sessions.session_item i using (sid) where s.tenant = $1::text and s.session_id = $2::text) entries";
    let digest = "select i.digest::text from agent_sessions.session s join agent_sessions.session_item i using (sid)
        where s.tenant = $1::text and s.session_id = $2::text and i.position = $3::bigint";
    let head = "select entries from agent_sessions.audit_verify($1::text, tenant => $2::text) where ok";
    for number in 0..WRITERS {
        let (session, stream) = (format!("session {number}"), format!("stream {number}"));
        let end = superuser.query_one(last, &[&LOAD, &session]).await.expect("the end of the copy's log");
        let (position, found): (i64, String) = (end.get(0), end.get(1));
        assert!(position + 1 >= entries[number], "what was acknowledged before the backup is in it");
        assert_eq!(original.value::<String>(digest, &[&LOAD, &session, &position]).await, found, "the same chain");
        assert!(superuser.value::<i64>(head, &[&stream, &LOAD]).await >= events[number]);
        let claim = "select fence from agent_sessions.session_claim($1::text, '1 minute')";
        let end_lease = "select agent_sessions.session_break_lease($1::text)";
        superuser.run(&format!("set agent_sessions.tenant = '{LOAD}'")).await;
        // Whoever wrote when the backup ended has a lease in it.
        superuser.query(end_lease, &[&session]).await.expect("no lease");
        assert!(superuser.value::<i64>(claim, &[&session]).await > fences[number]);
        superuser.query(end_lease, &[&session]).await.expect("no lease");
    }
    superuser.run("reset agent_sessions.tenant").await;
    let copied = World::of(&superuser).await;
    copied.assert_goes_on(&superuser, &copy.writer().await, "base backup").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_point_in_time_is_restored_as_it_was() {
    let archive = OwnCluster::without_data().await;
    let kept = archive.directory().display().to_string();
    let site =
        OwnCluster::start(&["fsync = off", "archive_mode = on", &format!("archive_command = 'cp %p {kept}/%f'")]).await;
    let site = Site::found(site).await;
    let (owner, superuser) = (site.owner().await, site.superuser(DATABASE).await);
    owner.run("select agent_sessions.session_create('early', items => '[{\"payload\":1}]')").await;
    let copy = site.copied().await;
    world::grow(&owner).await;
    let then = World::of(&superuser).await;
    superuser.run("select pg_create_restore_point('then')").await;

    // What came later is lost, and what was kept outside of the database tells.
    let anchor = "select root from agent_sessions.audit_anchor()";
    owner.append("parent", "\"later\"").await;
    let later: String = owner.value(anchor, &[]).await;
    let claim = "select fence from agent_sessions.session_claim('later', '1 minute')";
    let mut told: i64 = 0;
    for _ in 0..100 {
        told = owner.value(claim, &[]).await;
        owner.run("select agent_sessions.session_break_lease('later')").await;
    }
    owner.run("select agent_sessions.session_delete('long'); select agent_sessions.session_erase('of trimmed', item_id => 'item 25')").await;
    superuser.run("select pg_switch_wal()").await;
    site.server.stop().await;

    copy.configure(&[
        &format!("restore_command = 'cp {kept}/%f %p'"),
        "recovery_target_name = 'then'",
        "recovery_target_action = promote",
        "archive_mode = off",
    ]);
    copy.signal("recovery.signal");
    copy.start_again().await;
    let restored = Site { server: copy };
    let superuser = restored.superuser(DATABASE).await;
    while superuser.value::<bool>("select pg_is_in_recovery()", &[]).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    then.assert_recovered(&superuser, "point in time").await;
    let check = "select ok from agent_sessions.audit_check_anchor($1::text)";
    assert!(!superuser.value::<bool>(check, &[&later]).await, "the anchor that came later");

    // A fence may be given again after such a restore; its owner says where they go on.
    let owner = restored.owner().await;
    owner.run(&format!("select setval('agent_sessions.lease_fence_seq', {told})")).await;
    assert!(owner.value::<i64>(claim, &[]).await > told);
    owner
        .run("select agent_sessions.session_break_lease('later'); select agent_sessions.session_delete('later')")
        .await;
    World::of(&superuser).await.assert_goes_on(&superuser, &restored.writer().await, "point in time").await;
}
