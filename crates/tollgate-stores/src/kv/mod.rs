//! Rates and windows at stores with compare-and-set: one [`RateDocument`] for each key.
//!
//! A sync reads the document, does what the reference does, and writes the result if the document is still the one that was
//! read; otherwise another writer was quicker, and it begins again. Between two syncs of this process at the same key nothing
//! is read: the last write is taken as current, until another writer was quicker once. A sync that is overtaken all the time
//! gives up after a while with [`StoreError::Busy`]: the store answers, so it does not count as unavailable.
//!
//! The refill is counted from what this process has observed: see [`Observer`]. So no clock of another machine, nor one that is
//! set, can create tokens, and none has to be right: it only has to run at the speed of time. If the store keeps a clock of its
//! own, a new process reads it, and so knows the time without an observer: see [`Time`](crate::document::Time).
//!
//! | part | what it is |
//! |---|---|
//! | [`Values`] | the interface to a store |
//! | [`Ledger`] | the syncs of a process |
//! | [`cached_value`] | the state of a key in this process |
//! | [`clock`] | the store's own clock |
//! | [`gc`] | deletes expired documents |

mod cached_value;
mod clock;
mod gc;
#[cfg(test)]
mod tests;

use crate::document::{Clock, DocumentChange, Mismatch, Observer, RateDocument, Transaction, transact};
use cached_value::{CachedValue, State};
pub(crate) use clock::Reading;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use tollgate::remote::Key;
use tollgate::remote::model::random_number;
use tollgate::remote::{Rule, Session, StoreError, SyncReply, SyncRequest};

/// A store with one value for each key, and compare-and-set.
pub(crate) trait Values: Send + Sync + 'static {
    /// The version of a value: unique for its key.
    type At: Clone + PartialEq + Send + Sync + 'static;

    /// Reads the value, as it was a moment ago at most. `ttl` is that of the limiter.
    fn read(
        &self,
        key: &Key,
        ttl: Duration,
    ) -> impl Future<Output = Result<Option<Found<Self::At>>, StoreError>> + Send;

    /// Writes this value, if the present one is at `at`; without `at`, if there is none. The value may be deleted when it was
    /// not changed for `lasts`.
    fn write(
        &self,
        key: &Key,
        ttl: Duration,
        at: Option<&Self::At>,
        value: Vec<u8>,
        lasts: Duration,
    ) -> impl Future<Output = Result<Written<Self::At>, StoreError>> + Send;

    /// Deletes the value, if it is the one at `at`. False when it is not.
    fn delete(&self, key: &Key, ttl: Duration, at: &Self::At) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Reads the store's own clock, if it has one, after the value at `at` was there. `clock` is the one by which the value is
    /// dated.
    fn time(
        &self,
        _key: &Key,
        _ttl: Duration,
        _at: &Self::At,
        _clock: Option<Clock>,
    ) -> impl Future<Output = Result<Option<Reading>, StoreError>> + Send {
        std::future::ready(Ok(None))
    }
}

/// A value that was read.
#[derive(Clone, Debug)]
pub(crate) struct Found<A> {
    pub(crate) at: A,
    pub(crate) value: Vec<u8>,
}

#[cfg(any(feature = "consul", feature = "etcd"))]
impl<A> Found<A> {
    /// The value at `place`, of all values in its folder: there must be no other.
    pub(crate) fn only(
        place: &str,
        there: impl IntoIterator<Item = (String, Self)>,
    ) -> Result<Option<Self>, StoreError> {
        let mut found = None;
        for (name, value) in there {
            if name != place {
                let why = format!("`{name}` is not of a rate or window").into();
                return Err(StoreError::Refused { why });
            }
            found = Some(value);
        }
        Ok(found)
    }
}

/// The outcome of a write.
#[derive(Clone, Debug)]
pub(crate) enum Written<A> {
    /// It was written.
    At(A),
    /// Another writer was quicker.
    Overtaken,
}

/// The longest document: all stores accept it.
const LONGEST: usize = 320 * 1024;
/// How long a sync is tried at most, less than limiters wait for it.
const LONGEST_STEP: Duration = Duration::from_millis(500);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

/// A handle for the syncs of a process at one store.
pub(crate) struct Ledger<V: Values>(Arc<Inner<V>>);

impl<V: Values> Clone for Ledger<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Inner<V: Values> {
    values: V,
    cache: Mutex<HashMap<Key, Arc<CachedValue<V::At>>>>,
    /// The first instant of this process, and its date in microseconds: later than all earlier runs.
    begun: (Instant, u64),
}

impl<V: Values> Ledger<V> {
    pub(crate) fn new(values: V) -> Self {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        // The date only names tokens and editions, which have to grow: nothing is counted by it.
        let named = u64::try_from(since.as_micros()).unwrap_or(0);
        Self(Arc::new(Inner {
            values,
            cache: Mutex::default(),
            begun: (Instant::now(), named),
        }))
    }

    /// Carries out `sync` at `key`.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when others were quicker all the time; errors of the store.
    pub(crate) async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        let (inner, key) = (&*self.0, &key.of_kind(rule.kind()));
        let cached = inner.cached(key, sync);
        let begun = Instant::now();
        let until = begun + (sync.ttl / 8).min(LONGEST_STEP);
        let transact = timeout_at(until, cached.state.lock()).await;
        let mut state = transact.map_err(|_| cached.late(begun))?;
        let before = state.due;
        state.ttl = sync.ttl;
        let mut reply = loop {
            let attempt = inner.attempt(key, rule, sync, &mut state).await?;
            cached.note_answer();
            if let Some(reply) = attempt {
                state.attempts = 0;
                break reply;
            }
            state.attempts = state.attempts.saturating_add(1);
            if Instant::now() >= until {
                return Err(cached.late(begun));
            }
            let pause = Duration::from_millis(1 << state.attempts.min(6)).min(LONGEST_PAUSE);
            sleep(inner.part_of(pause)).await;
        };
        // The taken tokens are known; more may have come back since.
        reply.bound = true;
        if before > state.due {
            cached.earlier.notify_one();
        }
        let uncollected = !state.has_collector;
        state.has_collector |= state.due.is_some();
        let collects = uncollected && state.has_collector;
        drop(state);
        if collects {
            tokio::spawn(gc::collect(self.clone(), key.clone(), cached));
        } else if uncollected {
            inner.forget(key, &cached);
        }
        Ok(reply)
    }

    /// This session sends no more syncs.
    pub(crate) fn leave(&self, key: &Key, session: Session) {
        for key in [Rule::RATE, Rule::WINDOW].map(|kind| key.of_kind(kind)) {
            let cached = self.0.cache.lock().get(&key).cloned();
            let Some(cached) = cached else { continue };
            cached.leave(session);
            // A running sync or the collector forgets it otherwise.
            if cached.state.try_lock().is_ok_and(|state| !state.has_collector) {
                self.0.forget(&key, &cached);
            }
        }
    }
}

impl<V: Values> Inner<V> {
    /// The cached value of the key, which stays as long as the client of this sync is there.
    fn cached(&self, key: &Key, sync: &SyncRequest) -> Arc<CachedValue<V::At>> {
        let mut cache = self.cache.lock();
        let cached = cache
            .entry(key.clone())
            .or_insert_with(|| Arc::new(CachedValue::new(sync.ttl)));
        if sync.end {
            cached.leave(sync.session);
        } else {
            cached.enter(sync.session);
        }
        Arc::clone(cached)
    }

    /// Forgets the cached value of a key without clients.
    fn forget(&self, key: &Key, cached: &Arc<CachedValue<V::At>>) {
        let mut cache = self.cache.lock();
        let gone = cache.get(key).is_some_and(|known| Arc::ptr_eq(known, cached)) && cached.is_empty();
        let gone = if gone { cache.remove(key) } else { None };
        drop(cache);
        drop(gone);
    }

    /// Makes one attempt. `None` when another writer was quicker.
    async fn attempt(
        &self,
        key: &Key,
        rule: &Rule,
        sync: &SyncRequest,
        state: &mut State<V::At>,
    ) -> Result<Option<SyncReply>, StoreError> {
        if !state.is_alone || state.known.is_none() {
            self.read(key, state).await?;
        }
        if sync.end
            && let Some((document, at)) = &state.known
        {
            // This process may observe nothing from now on: the dates serve the next one.
            let (clock, at) = (document.clock(), at.clone());
            self.look_at_the_clock(key, state, clock, &at).await;
        }
        // Until the outcome of the write is known, the present value is unknown.
        let known = state.known.take();
        let seen = known
            .as_ref()
            .map(|(document, _)| document)
            .zip(state.observer.as_ref());
        // Read after the instant of the sync: what counted then is dated before this reading.
        let now = self.now();
        let time = state.store_clock.time();
        let transacted = transact(seen, now, self.fresh(), rule, sync, time.as_ref());
        let Transaction { reply, after } = transacted.map_err(|mismatch| refused(key, mismatch))?;
        match after {
            DocumentChange::Same => {
                state.known = known;
                Ok(Some(reply))
            }
            DocumentChange::Gone => {
                let Some((_, at)) = known else { return Ok(Some(reply)) };
                let gone = self.values.delete(key, sync.ttl, &at).await?;
                state.is_alone &= gone;
                if gone {
                    (state.observer, state.due) = (None, None);
                }
                Ok(gone.then_some(reply))
            }
            DocumentChange::New(document, lasts) => {
                let value = self.text(key, &document)?;
                let at = known.as_ref().map(|(_, at)| at);
                let lasts = Duration::from_micros(lasts);
                let Written::At(at) = self.values.write(key, sync.ttl, at, value, lasts).await? else {
                    state.is_alone = false;
                    return Ok(None);
                };
                self.see(state, &document);
                state.due = Some(Instant::now() + lasts);
                state.known = Some((*document, at));
                Ok(Some(reply))
            }
        }
    }

    /// Reads and observes the value.
    async fn read(&self, key: &Key, state: &mut State<V::At>) -> Result<(), StoreError> {
        let known = state.known.take();
        let found = self.values.read(key, state.ttl).await?;
        state.is_alone = known.map(|(_, at)| at).as_ref() == found.as_ref().map(|found| &found.at);
        match found {
            Some(Found { at, value }) => {
                let document = RateDocument::read(&value).ok_or_else(|| refused(key, Mismatch::Document))?;
                state.store_clock.note_change();
                let reading = self.look_at_the_clock(key, state, document.clock(), &at).await;
                if state.observer.is_none() {
                    let said = reading.and_then(|reading| reading.said);
                    state.observer = Some(Observer::of(&document, self.now() + 1, said.as_ref()));
                } else {
                    self.see(state, &document);
                }
                state.known = Some((document, at));
            }
            None => state.observer = None,
        }
        Ok(())
    }

    fn see(&self, state: &mut State<V::At>, document: &RateDocument) {
        // Rounded up, while syncs round down: passed time is never counted as more.
        let now = self.now() + 1;
        match &mut state.observer {
            Some(observer) => observer.see(document, now),
            None => state.observer = Some(Observer::of(document, now, None)),
        }
        state.store_clock.note_change();
    }

    /// Reads the store's clock, if that is due. A missing answer stays unknown.
    async fn look_at_the_clock(
        &self,
        key: &Key,
        state: &mut State<V::At>,
        clock: Option<Clock>,
        at: &V::At,
    ) -> Option<Reading> {
        if seeded!("remote_asks_no_clock") || state.observer.is_some() && !state.store_clock.is_due(clock) {
            return None;
        }
        let sent = state.store_clock.ask();
        let reading = self.values.time(key, state.ttl, at, clock).await.ok().flatten()?;
        state.store_clock.read(sent, reading.next);
        Some(reading)
    }

    fn text(&self, key: &Key, document: &RateDocument) -> Result<Vec<u8>, StoreError> {
        let refused = |why: String| StoreError::Refused { why: why.into() };
        // No process could read it.
        if !document.holds() {
            return Err(refused(format!(
                "a sync at `{key}` counts further than can be written down"
            )));
        }
        let text = document.text().map_err(|error| refused(error.to_string()))?;
        if text.len() > LONGEST {
            let length = text.len();
            return Err(refused(format!(
                "what is known of `{key}` would be {length} bytes long, and {LONGEST} are allowed"
            )));
        }
        Ok(text)
    }

    /// Microseconds of this process.
    fn now(&self) -> u64 {
        let (begun, named) = self.begun;
        let passed = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        named.saturating_add(passed)
    }

    /// A number that was never used.
    fn fresh(&self) -> u64 {
        random_number()
    }

    /// A random part of `time`, so that colliding writers separate.
    fn part_of(&self, time: Duration) -> Duration {
        time.mul_f64((self.fresh() >> 11) as f64 / (1_u64 << 53) as f64)
    }
}

fn refused(key: &Key, mismatch: Mismatch) -> StoreError {
    let why = match mismatch {
        Mismatch::Document => format!("what lies at `{key}` is no rate or window"),
        Mismatch::Kind => format!("`{key}` is another kind of limiter, or a window of another length"),
    };
    StoreError::Refused { why: why.into() }
}
