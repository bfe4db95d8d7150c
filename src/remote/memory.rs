//! A store in the memory of this process: the reference, and the double for tests.

use super::backend::{Backend, Notification, Rule, Session, StoreError, SyncReply, SyncRequest};
use super::error::RemoteError;
use super::key::Key;
use super::model::{KeyLegs, Model, Outcome};
use super::step::{KeyLeg, Step, StepReply};
use crate::sync::wake::wake_all;
use crate::time::Clock;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A store in memory, by a clock of its own. It answers at once.
///
/// Share it by `Arc`: limiters over the same one are limits that they share. With a manual clock all of it runs in virtual
/// time.
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate::remote::{Key, Memory, Remote, Rule};
/// # use tollgate::{LimiterExt, ManualClock};
/// let clock = ManualClock::new();
/// let store = Arc::new(Memory::new(&clock));
/// let key = Key::new("reports")?;
/// let machine = || Remote::permits(key.clone(), 2).on(&clock).in_place(Arc::clone(&store));
/// let (one, other) = (machine()?, machine()?);
///
/// clock.run(async {
///     let first = one.acquire(1).await.unwrap();
///     let second = other.acquire(1).await.unwrap();
///     assert!(first.fence() < second.fence());
///     assert!(one.acquire_now(1).await.is_err());
///     drop(second);
///     assert!(one.acquire_now(1).await.is_ok());
/// });
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
pub struct Memory {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    models: BTreeMap<Key, Model>,
    legs: BTreeMap<Key, KeyLegs>,
    /// With this number of keys with legs, those that are as good as new are looked for.
    many: usize,
    /// At least every token of a removed model.
    token: u64,
    /// The wakers of sessions that await a notification; and the sessions that have one.
    waiting: BTreeMap<(Key, Session), Waker>,
    notified: BTreeSet<(Key, Session)>,
}

impl State {
    /// Notes what is notified. Returns the wakers of the sessions that await it.
    fn notify(&mut self, key: &Key, sessions: impl IntoIterator<Item = Session>) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for session in sessions {
            let id = (key.clone(), session);
            wakers.extend(self.waiting.remove(&id));
            self.notified.insert(id);
        }
        wakers
    }
}

impl Memory {
    /// An empty store with this clock.
    pub fn new(clock: &Clock) -> Self {
        Self {
            clock: clock.clone(),
            state: Mutex::new(State::default()),
        }
    }

    fn now(&self) -> u64 {
        let since = self.clock.between(crate::time::Instant::ZERO, self.clock.now());
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    /// The number of keys, once those with only expired sessions are gone.
    pub fn keys(&self) -> usize {
        let now = self.now();
        let mut state = self.state.lock();
        let state = &mut *state;
        let token = &mut state.token;
        state.models.retain(|_, model| {
            model.sweep(now);
            *token = (*token).max(model.token());
            !model.is_empty(now)
        });
        state.legs.retain(|_, legs| !legs.is_empty(now));
        state.models.len() + state.legs.len()
    }

    /// Forgets everything, as a restarted server does.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.models.clear();
        state.legs.clear();
    }

    fn sync_now(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        let now = self.now();
        let kept = key.of_kind(rule.kind());
        let (reply, wakers) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let token = state.token;
            let model = state
                .models
                .entry(kept.clone())
                .or_insert_with(|| Model::new(rule, now, token));
            if !model.fits(rule) {
                let why = format!("`{key}` is another kind of limiter").into();
                return Err(StoreError::Refused { why });
            }
            let Outcome { reply, notify } = model.sync(now, rule, sync);
            state.token = state.token.max(model.token());
            if model.is_empty(now) {
                state.models.remove(&kept);
            }
            (reply, state.notify(key, notify))
        };
        wake_all(wakers);
        Ok(reply)
    }
}

impl Backend for Memory {
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        self.sync_now(key, rule, sync)
    }

    fn notified(&self, key: &Key, session: Session) -> impl Future<Output = ()> + Send {
        let id = (key.clone(), session);
        poll_fn(move |cx| {
            let waker = cx.waker().clone();
            let mut state = self.state.lock();
            if state.notified.remove(&id) {
                return Poll::Ready(());
            }
            let old = state.waiting.insert(id.clone(), waker);
            drop(state);
            drop(old);
            Poll::Pending
        })
    }

    fn notification(&self, key: &Key, session: Session) -> Notification {
        let state = self.state.lock();
        let model = state.models.get(&key.of_kind(Rule::PERMITS));
        model.map_or(Notification::Sync, |model| model.notification(session))
    }

    fn leave(&self, key: &Key, session: Session) {
        let id = (key.clone(), session);
        let mut state = self.state.lock();
        state.notified.remove(&id);
        let waker = state.waiting.remove(&id);
        drop(state);
        drop(waker);
    }

    fn supports_steps(&self) -> Result<(), RemoteError> {
        Ok(())
    }

    async fn step(&self, key: &Key, legs: &[KeyLeg], step: &Step) -> Result<StepReply, StoreError> {
        let now = self.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.legs.len() >= state.many {
            state.legs.retain(|_, legs| !legs.is_empty(now));
            state.many = 2 * state.legs.len() + 64;
        }
        let mut known = state.legs.remove(key).unwrap_or_default();
        let reply = known.step_beside(&mut state.legs, now, legs, step);
        let places = known.take_notified().into_iter().map(Session::of_place);
        if !known.is_empty(now) {
            state.legs.insert(key.clone(), known);
        }
        let wakers = state.notify(key, places);
        drop(guard);
        wake_all(wakers);
        Ok(reply)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Memory")
            .field("keys", &(state.models.len() + state.legs.len()))
            .finish_non_exhaustive()
    }
}
