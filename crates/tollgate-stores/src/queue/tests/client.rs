//! Clients that repeat unacknowledged requests, at a store that fails.

use super::fake::{Fake, LIMIT, Random, State, TTL, failing, store};
use crate::queue::Queue;
use std::collections::BTreeSet;
use std::time::Duration;
use tollgate::remote::Key;
use tollgate::remote::{Grant, Request, Rule, Session, StoreError, SyncReply, SyncRequest};

/// A client like that of a limiter: it repeats all that is not acknowledged.
pub(super) struct Client {
    pub(super) sync: SyncRequest,
    requests: u64,
    /// Requests that the store has not answered.
    pub(super) untold: Vec<Request>,
    /// Requests that wait in the queue.
    waiting: BTreeSet<u64>,
    pub(super) held: u64,
}

impl Client {
    pub(super) fn new(client: u64) -> Self {
        let sync = SyncRequest {
            seq: 0,
            ..SyncRequest::first(Session { client, number: 1 }, TTL)
        };
        Self {
            sync,
            requests: 0,
            untold: Vec::new(),
            waiting: BTreeSet::new(),
            held: 0,
        }
    }

    pub(super) async fn say<const REPORTS: bool>(&mut self, queue: &Queue<Fake<REPORTS>>) -> Option<SyncReply> {
        self.sync.seq += 1;
        self.sync.requests.clone_from(&self.untold);
        let key = Key::new("fake").expect("a name");
        let reply = queue
            .sync(&key, &Rule::Permits { limit: LIMIT }, &self.sync)
            .await
            .ok()?;
        assert!(reply.alive);
        self.sync.begin = false;
        self.sync.limit = None;
        for id in self.sync.withdrawn.drain(..) {
            self.waiting.remove(&id);
        }
        for request in self
            .untold
            .drain(..)
            .filter(|request| request.queue && request.need <= reply.usage.limit)
        {
            self.waiting.insert(request.id);
        }
        for &Grant { request, units, token } in &reply.grants {
            assert!(token > self.sync.seen, "tokens grow");
            self.sync.seen = token;
            self.waiting.remove(&request);
            self.held += units;
        }
        Some(reply)
    }

    pub(super) fn requests_units(&mut self, need: u64) {
        self.requests += 1;
        let (id, want, queue) = (self.requests, need, true);
        self.untold.push(Request { id, need, want, queue });
    }

    pub(super) async fn ends<const REPORTS: bool>(
        &mut self,
        queue: &Queue<Fake<REPORTS>>,
    ) -> Result<SyncReply, StoreError> {
        self.sync.seq += 1;
        self.sync.end = true;
        let (key, rule) = (Key::new("fake").expect("a name"), Rule::Permits { limit: LIMIT });
        queue.sync(&key, &rule, &self.sync).await
    }

    /// A random action of a client.
    fn act(&mut self, random: &mut Random) {
        match random.below(5) {
            0 | 1 => {
                self.requests += 1;
                let need = 1 + random.below(LIMIT);
                let want = need + random.below(3);
                let (id, queue) = (self.requests, random.below(3) > 0);
                self.untold.push(Request { id, need, want, queue });
            }
            2 if self.held > 0 => {
                let units = 1 + random.below(self.held);
                self.held -= units;
                self.sync.returned += units;
            }
            3 => {
                if let Some(&id) = self.waiting.first() {
                    self.sync.withdrawn.push(id);
                }
            }
            _ => {}
        }
    }
}

/// Clients at one store that fails in one of `fails` calls. At the end all requests are granted, and nothing is left.
async fn play(seed: u64, fails: u64) {
    let mut random = Random::of_seed(seed);
    let queue = failing::<false>(State::new(!seed, fails));
    let mut clients: Vec<_> = (1..=4).map(Client::new).collect();
    for _ in 0..300 {
        let client = &mut clients[random.below(4) as usize];
        client.act(&mut random);
        let reply = client.say(&queue).await;
        let held: u64 = clients.iter().map(|client| client.held).sum();
        assert!(held <= LIMIT, "seed {seed}: {held} of {LIMIT}");
        if let Some(reply) = reply {
            assert!(reply.usage.in_use <= LIMIT, "seed {seed}: {reply:?}");
        }
    }
    queue.store().0.lock().fails = 0;
    // Each returns its grants: the waiters are served, in a bounded number of rounds.
    for round in 0.. {
        let mut waiting = 0;
        for client in &mut clients {
            client.sync.returned += std::mem::take(&mut client.held);
            client.say(&queue).await.expect("nothing fails any more");
            waiting += client.waiting.len() + client.untold.len();
        }
        if waiting == 0 {
            break;
        }
        assert!(round < 1_000, "seed {seed}: {waiting} wait for ever");
    }
    for client in &mut clients {
        client.sync.returned += std::mem::take(&mut client.held);
        client.say(&queue).await.expect("nothing fails any more");
    }
    let requests = queue.store().0.lock().nodes.len();
    assert_eq!(requests, 0, "seed {seed}: unknown nodes");
    for client in &mut clients {
        client.ends(&queue).await.expect("nothing fails any more");
    }
    assert!(queue.store().0.lock().sessions.is_empty());
}

#[tokio::test(start_paused = true)]
async fn permits_are_never_over_admitted_nor_lost_under_faults() {
    for seed in 0..60 {
        play(seed, [0, 2, 5][seed as usize % 3]).await;
    }
}

/// A limiter that has gone silently, while its store's client keeps up the term.
#[tokio::test(start_paused = true)]
async fn a_silent_session_is_reaped_after_its_time_to_live() {
    let queue = store();
    let (mut gone, mut lives) = (Client::new(1), Client::new(2));
    for (client, need) in [(&mut gone, LIMIT), (&mut lives, 1)] {
        let (id, want, queue) = (1, need, true);
        client.untold.push(Request { id, need, want, queue });
    }
    gone.say(&queue).await.unwrap();
    assert_eq!(gone.held, LIMIT);
    lives.say(&queue).await.unwrap();
    for _ in 0..3 {
        tokio::time::advance(TTL / 3 - Duration::from_millis(1)).await;
        lives.say(&queue).await.unwrap();
        assert_eq!(lives.held, 0, "not before its time");
    }
    queue.store().0.lock().fails = 1;
    tokio::time::sleep(Duration::from_secs(1)).await;
    queue.store().0.lock().fails = 0;
    // A failed attempt is repeated.
    tokio::time::sleep(Duration::from_secs(1)).await;
    lives.say(&queue).await.unwrap();
    assert_eq!(lives.held, 1);
}
