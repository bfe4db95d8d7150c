//! Syncs at values in memory, in virtual time.

use super::*;
use crate::document::Time;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tollgate::Quota;

mod busy;
mod left;
mod swarm;

const TTL: Duration = Duration::from_secs(10);

/// A store of values.
#[derive(Clone, Default)]
struct Fake(Arc<Fakes>);

#[derive(Default)]
struct Fakes {
    values: Mutex<HashMap<Key, (u64, Vec<u8>)>>,
    writes: AtomicU64,
    reads: AtomicU64,
    is_away: AtomicBool,
    is_silent: AtomicBool,
    is_busy: AtomicBool,
    /// Nothing can be deleted.
    is_stuck: AtomicBool,
    deletes: AtomicU64,
    /// When its clock began, if it keeps one, and how many times that was read.
    clock: Mutex<Option<Instant>>,
    asked: AtomicU64,
}

impl Fake {
    fn len(&self) -> usize {
        self.0.values.lock().len()
    }

    fn reads(&self) -> u64 {
        self.0.reads.load(Ordering::SeqCst)
    }

    fn set_away(&self, away: bool) {
        self.0.is_away.store(away, Ordering::SeqCst);
    }

    async fn answer(&self) -> Result<(), StoreError> {
        if self.0.is_silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let why = "it is away".into();
        let away = self.0.is_away.load(Ordering::SeqCst);
        if away {
            Err(StoreError::Unreachable { why })
        } else {
            Ok(())
        }
    }
}

impl Values for Fake {
    type At = u64;

    async fn read(&self, key: &Key, _ttl: Duration) -> Result<Option<Found<u64>>, StoreError> {
        self.answer().await?;
        self.0.reads.fetch_add(1, Ordering::SeqCst);
        let found = self.0.values.lock().get(key).cloned();
        Ok(found.map(|(at, value)| Found { at, value }))
    }

    async fn write(
        &self,
        key: &Key,
        _ttl: Duration,
        at: Option<&u64>,
        value: Vec<u8>,
        _lasts: Duration,
    ) -> Result<Written<u64>, StoreError> {
        self.answer().await?;
        let busy = self.0.is_busy.load(Ordering::SeqCst);
        let mut values = self.0.values.lock();
        if busy || values.get(key).map(|(at, _)| at) != at {
            return Ok(Written::Overtaken);
        }
        let at = self.0.writes.fetch_add(1, Ordering::SeqCst) + 1;
        values.insert(key.clone(), (at, value));
        Ok(Written::At(at))
    }

    async fn delete(&self, key: &Key, _ttl: Duration, at: &u64) -> Result<bool, StoreError> {
        self.answer().await?;
        let deletes = self.0.deletes.fetch_add(1, Ordering::SeqCst);
        assert!(deletes < 1_000, "it does not end");
        let stuck = self.0.is_stuck.load(Ordering::SeqCst);
        let mut values = self.0.values.lock();
        let same = !stuck && values.get(key).is_some_and(|(known, _)| known == at);
        if same {
            values.remove(key);
        }
        Ok(same)
    }

    /// In whole seconds; the time of a write is unknown.
    async fn time(
        &self,
        _key: &Key,
        _ttl: Duration,
        _at: &u64,
        _clock: Option<Clock>,
    ) -> Result<Option<Reading>, StoreError> {
        self.answer().await?;
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        let begun = *self.0.clock.lock();
        Ok(begun.map(|begun| {
            let now = begun.elapsed().as_secs() * 1_000_000;
            let by = now + 1_000_000;
            let written = by;
            let next = Time {
                clock: (1, 1),
                now,
                by,
                written,
            };
            Reading { said: Some(next), next }
        }))
    }
}

/// A client of a process.
struct Client {
    ledger: Ledger<Fake>,
    sync: SyncRequest,
}

fn key() -> Key {
    Key::new("calls").unwrap()
}

impl Client {
    fn new(ledger: &Ledger<Fake>, client: u64) -> Self {
        let ledger = ledger.clone();
        let sync = SyncRequest::first(Session { client, number: 1 }, TTL);
        Self { ledger, sync }
    }

    async fn say(&mut self, say: impl FnOnce(&mut SyncRequest)) -> Result<u64, StoreError> {
        say(&mut self.sync);
        let quota = Quota::per_second(10).burst(10);
        let reply = self.ledger.sync(&key(), &Rule::Rate { quota }, &self.sync).await?;
        self.sync.seq += 1;
        self.sync.begin = false;
        let last = reply.grants.last().map(|grant| grant.token);
        self.sync.seen = last.unwrap_or(self.sync.seen);
        Ok(reply.grants.iter().map(|grant| grant.units).sum())
    }

    async fn take(&mut self, need: u64) -> Result<u64, StoreError> {
        let (id, want, queue) = (self.sync.seq, need, false);
        let request = tollgate::remote::Request { id, need, want, queue };
        self.say(|sync| sync.requests = vec![request]).await
    }

    async fn end(mut self) {
        self.say(|sync| sync.end = true).await.unwrap();
        self.ledger.leave(&key(), self.sync.session);
    }
}

fn cache(ledger: &Ledger<Fake>) -> usize {
    ledger.0.cache.lock().len()
}

#[tokio::test(start_paused = true)]
async fn a_closed_bucket_is_deleted_when_full_again_and_forgotten_here() {
    let store = Fake::default();
    let ledger = Ledger::new(store.clone());
    let mut one = Client::new(&ledger, 1);
    assert_eq!(one.take(10).await, Ok(10));
    one.end().await;
    sleep(Duration::from_millis(990)).await;
    assert_eq!((store.len(), cache(&ledger)), (1, 1));
    sleep(Duration::from_millis(20)).await;
    assert_eq!((store.len(), cache(&ledger)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_full_bucket_is_deleted_on_close() {
    let store = Fake::default();
    let ledger = Ledger::new(store.clone());
    let mut one = Client::new(&ledger, 1);
    assert_eq!(one.take(1).await, Ok(1));
    sleep(TTL / 2).await;
    one.end().await;
    assert_eq!(store.len(), 0);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(cache(&ledger), 0);
}

/// All handles are gone.
#[tokio::test(start_paused = true)]
async fn a_silent_bucket_is_deleted_after_its_time_to_live() {
    let store = Fake::default();
    let mut one = Client::new(&Ledger::new(store.clone()), 1);
    assert_eq!(one.take(10).await, Ok(10));
    drop(one);
    sleep(TTL - Duration::from_millis(10)).await;
    assert_eq!(store.len(), 1);
    sleep(Duration::from_millis(20)).await;
    assert_eq!(store.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_unacknowledged_request_is_sent_again() {
    let store = Fake::default();
    let ledger = Ledger::new(store.clone());
    let mut one = Client::new(&ledger, 1);
    assert_eq!(one.take(10).await, Ok(10));
    one.end().await;
    store.set_away(true);
    sleep(Duration::from_secs(30)).await;
    store.set_away(false);
    assert_eq!(store.len(), 1);
    sleep(Duration::from_secs(60)).await;
    assert_eq!((store.len(), cache(&ledger)), (0, 0));
}

/// It is remembered for a while, and no longer, though its process has a collector for it.
#[tokio::test(start_paused = true)]
async fn a_changed_rule_goes_a_day_after_it_was_last_asked_for() {
    let store = Fake::default();
    let ledger = Ledger::new(store.clone());
    let mut one = Client::new(&ledger, 1);
    assert_eq!(one.take(1).await, Ok(1));
    let quota = Quota::per_second(20).burst(10);
    let change = Some(Rule::Rate { quota });
    one.say(|sync| sync.change = change).await.unwrap();
    one.say(|sync| sync.change = None).await.unwrap();
    one.end().await;
    sleep(Rule::REMEMBERED - Duration::from_secs(2)).await;
    assert_eq!((store.len(), cache(&ledger)), (1, 1));
    sleep(Duration::from_secs(4)).await;
    assert_eq!((store.len(), cache(&ledger)), (0, 0));
}

/// None of them observes another for its time to live; together they do.
#[tokio::test(start_paused = true)]
async fn short_lived_processes_are_forgotten() {
    let store = Fake::default();
    for client in 0..20 {
        let mut one = Client::new(&Ledger::new(store.clone()), client);
        assert_eq!(one.take(1).await, Ok(1));
        sleep(Duration::from_secs(3)).await;
        assert_eq!(one.take(1).await, Ok(1));
    }
    let (_, value) = store.0.values.lock()[&key().of_kind(Rule::RATE)].clone();
    let document: serde_json::Value = serde_json::from_slice(&value).unwrap();
    let takers = document["takers"].as_object().unwrap().len();
    assert!((1..=5).contains(&takers), "{takers}");
}

/// A process without handles collects it for a while, and not as long as others are there.
#[tokio::test(start_paused = true)]
async fn a_departed_process_leaves_the_collection_to_the_others() {
    let store = Fake::default();
    let (ours, theirs) = (Ledger::new(store.clone()), Ledger::new(store.clone()));
    let (mut one, mut other) = (Client::new(&ours, 1), Client::new(&theirs, 2));
    assert_eq!(one.take(1).await, Ok(1));
    for _ in 0..10 {
        assert_eq!(other.take(1).await, Ok(1));
        sleep(TTL / 2).await;
    }
    one.end().await;
    for _ in 0..20 {
        assert_eq!(other.take(1).await, Ok(1));
        sleep(TTL / 2).await;
    }
    assert_eq!((cache(&ours), cache(&theirs)), (0, 1));
    sleep(TTL).await;
    assert_eq!((store.len(), cache(&theirs)), (0, 1));
    other.end().await;
    assert_eq!(cache(&theirs), 0);
}

#[tokio::test(start_paused = true)]
async fn a_process_without_rivals_does_not_read() {
    let store = Fake::default();
    let (ours, theirs) = (Ledger::new(store.clone()), Ledger::new(store.clone()));
    let (mut one, mut other) = (Client::new(&ours, 1), Client::new(&theirs, 2));
    for _ in 0..5 {
        assert_eq!(one.take(1).await, Ok(1));
    }
    assert_eq!(store.reads(), 1);
    assert_eq!(other.take(1).await, Ok(1));
    assert_eq!(store.reads(), 2);
    // It was overtaken, reads, and reads once more.
    for _ in 0..3 {
        assert_eq!(one.take(1).await, Ok(1));
    }
    assert_eq!(store.reads(), 4);
    // Nine of ten: all are counted.
    assert_eq!(other.take(2).await, Ok(0));
}

/// The absurd number of one client is refused to it alone.
#[tokio::test(start_paused = true)]
async fn a_count_beyond_the_document_is_refused_for_its_caller_alone() {
    let store = Fake::default();
    let (ours, theirs) = (Ledger::new(store.clone()), Ledger::new(store.clone()));
    let (mut one, mut other) = (Client::new(&ours, 1), Client::new(&theirs, 2));
    assert_eq!(one.take(1).await, Ok(1));
    let refused = one.say(|sync| sync.charged = u64::MAX - 5).await;
    let further = |error: &StoreError| error.to_string().contains("further");
    assert!(refused.as_ref().is_err_and(further), "{refused:?}");
    assert_eq!(other.take(1).await, Ok(1));
    // Nothing of it was written: it may go on.
    assert_eq!(one.say(|sync| sync.charged = 3).await, Ok(0));
    assert_eq!(other.take(6).await, Ok(0), "five are left");
    assert_eq!(other.take(5).await, Ok(5));
}

/// Nor does a window run over.
#[tokio::test(start_paused = true)]
async fn a_charge_to_a_window_may_exceed_a_64_bit_number() {
    let (store, key) = (Fake::default(), key());
    let rule = Rule::Window {
        limit: 10,
        length: Duration::from_secs(64),
    };
    let ledger = Ledger::new(store.clone());
    let mut sync = SyncRequest::first(Session { client: 1, number: 1 }, TTL);
    for charged in [2, u64::MAX - 1, u64::MAX >> 2, u64::MAX] {
        sync.charged = charged;
        let answer = ledger.sync(&key, &rule, &sync).await;
        assert_eq!(answer.is_ok(), charged <= u64::MAX >> 2, "{charged}: {answer:?}");
        (sync.seq, sync.begin) = (sync.seq + 1, false);
        let text = store.0.values.lock()[&key.of_kind(rule.kind())].1.clone();
        assert!(RateDocument::read(&text).is_some(), "{charged}");
    }
}
