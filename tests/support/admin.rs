//! The life of the databases and roles of one test run. One thread keeps a connection for as long as the process lives:
//! its application name tells other runs on the same server which names are still in use.

use std::sync::OnceLock;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio_postgres::Error;

use crate::{Cluster, Connection};

const CLEANING: i64 = 7_236_001;

type Answer = Box<dyn FnOnce(Result<(), Error>) + Send>;

struct Job {
    sql: String,
    answer: Answer,
}

/// Every name that this run makes begins with this.
pub fn prefix() -> String {
    format!("as_test_{}", std::process::id())
}

/// Runs one statement as the superuser, in a database that no test uses.
pub async fn run(sql: String) {
    let (done, answer) = oneshot::channel();
    let told = sql.clone();
    send(sql, Box::new(move |result| done.send(result).expect("the test waits for this statement")));
    match answer.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => panic!("{told}\n{error:?}"),
        Err(_) => panic!("the administrating thread has ended: {told}"),
    }
}

/// The same from a destructor, which cannot await.
pub fn run_blocking(sql: String) {
    let (done, answer) = std::sync::mpsc::channel();
    let told = sql.clone();
    send(sql, Box::new(move |result| done.send(result).expect("the test waits for this statement")));
    match answer.recv() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => eprintln!("{told}\n{error:?}"),
        Err(_) => eprintln!("the administrating thread has ended: {told}"),
    }
}

fn send(sql: String, answer: Answer) {
    static JOBS: OnceLock<UnboundedSender<Job>> = OnceLock::new();
    let jobs = JOBS.get_or_init(|| {
        let cluster = Cluster::installed();
        let (sender, receiver) = unbounded_channel();
        std::thread::spawn(move || administrate(cluster, receiver));
        sender
    });
    assert!(jobs.send(Job { sql, answer }).is_ok(), "the administrating thread has ended");
}

fn administrate(cluster: Cluster, mut jobs: UnboundedReceiver<Job>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let admin = Connection::open(&cluster, &cluster.superuser, "postgres", &prefix()).await;
        drop_what_ended_runs_left(&admin).await;
        while let Some(job) = jobs.recv().await {
            (job.answer)(admin.batch_execute(&job.sql).await);
        }
    });
}

async fn drop_what_ended_runs_left(admin: &Connection) {
    admin.run(&format!("select pg_advisory_lock({CLEANING})")).await;
    let left = "
        with left_over(kind, name) as (
            select 'database', datname::text from pg_database union all select 'role', rolname::text from pg_roles
        )
        select kind, quote_ident(name)
        from left_over
        where name ~ '^as_test_[0-9]+_'
          and (substring(name from '^as_test_[0-9]+') = $1
               or substring(name from '^as_test_[0-9]+') not in (select application_name from pg_stat_activity))
        order by kind";
    let rows = admin.query(left, &[&prefix()]).await.expect("what ended runs left");
    for row in rows {
        let (kind, name): (&str, &str) = (row.get(0), row.get(1));
        let force = if kind == "database" { " with (force)" } else { "" };
        admin.run(&format!("drop {kind} {name}{force}")).await;
    }
    admin.run(&format!("select pg_advisory_unlock({CLEANING})")).await;
}
