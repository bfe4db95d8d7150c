//! A store in the memory of this process: the reference, and the double for tests.

use super::backend::{Backend, News, Reply, Rule, Session, Step, StoreError};
use super::book::{Book, Outcome};
use super::key::Key;
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
/// let machine = || Remote::permits(key.clone(), 2).clock(&clock).in_place(Arc::clone(&store));
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
    books: BTreeMap<Key, Book>,
    /// Above every token of a book that is gone.
    token: u64,
    /// Who waits for news, and for whom there is some.
    ears: BTreeMap<(Key, Session), Waker>,
    rung: BTreeSet<(Key, Session)>,
}

impl Memory {
    /// An empty store that goes by `clock`.
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

    /// How many keys there are, once those have gone whose sessions have expired.
    pub fn len(&self) -> usize {
        let now = self.now();
        let mut state = self.state.lock();
        let state = &mut *state;
        let token = &mut state.token;
        state.books.retain(|_, book| {
            book.sweep(now);
            *token = (*token).max(book.token());
            !book.is_empty(now)
        });
        state.books.len()
    }

    /// True when there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything, as a server does that is started anew.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.books.clear();
    }

    fn step_now(&self, key: &Key, rule: &Rule, step: &Step) -> Result<Reply, StoreError> {
        let now = self.now();
        let kept = key.of(rule.kind());
        let (reply, wakers) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let token = state.token;
            let book = state
                .books
                .entry(kept.clone())
                .or_insert_with(|| Book::new(rule, now, token));
            if !book.fits(rule) {
                let why = format!("`{key}` is another kind of limiter").into();
                return Err(StoreError::Refused { why });
            }
            let Outcome { reply, told } = book.step(now, rule, step);
            state.token = state.token.max(book.token());
            if book.is_empty(now) {
                state.books.remove(&kept);
            }
            let mut wakers = Vec::new();
            for session in told {
                let ear = (key.clone(), session);
                wakers.extend(state.ears.remove(&ear));
                state.rung.insert(ear);
            }
            (reply, wakers)
        };
        wake_all(wakers);
        Ok(reply)
    }
}

impl Backend for Memory {
    async fn step(&self, key: &Key, rule: &Rule, step: &Step) -> Result<Reply, StoreError> {
        self.step_now(key, rule, step)
    }

    fn news(&self, key: &Key, session: Session) -> impl Future<Output = ()> + Send {
        let ear = (key.clone(), session);
        poll_fn(move |cx| {
            let waker = cx.waker().clone();
            let mut state = self.state.lock();
            if state.rung.remove(&ear) {
                return Poll::Ready(());
            }
            let old = state.ears.insert(ear.clone(), waker);
            drop(state);
            drop(old);
            Poll::Pending
        })
    }

    fn told(&self, key: &Key, session: Session) -> News {
        let state = self.state.lock();
        let book = state.books.get(&key.of(Rule::PERMITS));
        book.map_or(News::Look, |book| book.told(session))
    }

    fn leave(&self, key: &Key, session: Session) {
        let ear = (key.clone(), session);
        let mut state = self.state.lock();
        state.rung.remove(&ear);
        let waker = state.ears.remove(&ear);
        drop(state);
        drop(waker);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Memory")
            .field("keys", &state.books.len())
            .finish_non_exhaustive()
    }
}
