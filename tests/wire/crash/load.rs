//! Clients that write all kinds of things until their server is gone, and hold the next one against what they were told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use agent_sessions_tests::{Connection, OwnCluster, together};
use tokio::sync::Notify;

use super::calls::{Answer, Asked, Call, call};
use super::ledger::Ledger;
use super::say;
use crate::items::Random;

struct Shared {
    ledger: Mutex<Ledger>,
    /// Steps that are left until the server is stopped.
    left: AtomicUsize,
    is_time: Notify,
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no client panics while it holds this")
    }

    fn step(&self) {
        // It wraps after the last: clients go on until the server is gone.
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.is_time.notify_one();
        }
    }
}

struct Client {
    random: Random,
    leases: BTreeMap<usize, String>,
    /// An append that was not answered, and is sent again.
    again: Option<Asked>,
}

impl Client {
    /// Goes on until the server is gone.
    async fn work(mut self, connection: Connection, shared: Arc<Shared>) -> Client {
        loop {
            shared.step();
            let asked = self.again.take();
            let asked = asked.unwrap_or_else(|| shared.ledger().ask(&mut self.random, &self.leases));
            let answer = call(&connection, &asked.sql()).await;
            let granted = shared.ledger().note(&asked, &answer);
            if let Some(lease) = granted {
                self.leases.insert(asked.session, lease);
            }
            match (answer, &asked.call) {
                (Answer::None, Call::Append(_)) => {
                    // A replay holds even if the lease is lost.
                    self.again = Some(Asked { lease: None, ..asked });
                    return self;
                }
                (Answer::None, _) => return self,
                (Answer::Refused(code), _) if code == "SE011" || code == "SE013" => {}
                (Answer::Refused(_), _) | (_, Call::Release) => {
                    self.leases.remove(&asked.session);
                }
                _ => {}
            }
        }
    }
}

pub struct Load {
    clients: Vec<Option<Client>>,
    ledger: Ledger,
}

impl Load {
    pub fn of(clients: usize, seed: u64) -> Load {
        let client = |number| Client { random: Random(seed * 1000 + number), leases: BTreeMap::new(), again: None };
        Load { clients: (0..clients as u64).map(|number| Some(client(number))).collect(), ledger: Ledger::default() }
    }

    /// The clients go on until the server is gone, which `stop` sees to after so many steps.
    pub async fn until_stopped(&mut self, server: &OwnCluster, steps: usize, stop: impl Future<Output = ()>) {
        let ledger = Mutex::new(std::mem::take(&mut self.ledger));
        let shared = Arc::new(Shared { ledger, left: AtomicUsize::new(steps), is_time: Notify::new() });
        let mut connections = Vec::new();
        for _ in &self.clients {
            connections.push(Some(server.app_client().await));
        }
        let working = together(connections.len(), |number| {
            let client = self.clients[number].take().expect("it has come back");
            client.work(connections[number].take().expect("one each"), shared.clone())
        });
        let stopping = async {
            shared.is_time.notified().await;
            stop.await;
        };
        let (worked, ()) = tokio::join!(working, stopping);
        self.clients = worked.into_iter().map(Some).collect();
        let shared = Arc::into_inner(shared).expect("the clients have ended");
        self.ledger = shared.ledger.into_inner().expect("no client has panicked");
    }

    /// What the server has is what the clients were told, and what they asked for without an answer.
    pub async fn audit(&mut self, server: &OwnCluster, when: &str) {
        assert!(self.ledger.unexpected.is_empty(), "{when}: {:#?}", self.ledger.unexpected);
        self.ledger.audit(&server.superuser().await).await;
        say(&format!("{when}: {} entries, as was told or asked for", self.ledger.entries()));
    }

    /// Says what was done.
    pub fn conclude(&self) {
        let ledger = &self.ledger;
        say(&format!(
            "{} sessions, {} of them live; acknowledged {:?}; refused {:?}; {} calls not answered, of which {} had written entries",
            ledger.made(),
            ledger.live().len(),
            ledger.acknowledged,
            ledger.refused,
            ledger.in_doubt,
            ledger.found
        ));
        assert!(ledger.in_doubt > 0);
    }

    /// Something of everything was done.
    pub fn assert_all_kinds(&self) {
        for name in Call::NAMES {
            assert!(self.ledger.acknowledged.contains_key(name), "no {name} was acknowledged");
        }
    }
}
