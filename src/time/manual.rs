//! Virtual time: a clock that stands still until it is advanced, by hand or by itself.

use super::clock::{Clock, Instant};
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::AtomicU64;
use crate::sync::unwind::drop_quietly;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The state behind a manual clock. One tick is one nanosecond.
#[derive(Default)]
pub(super) struct Manual {
    now: AtomicU64,
    timers: Mutex<Timers>,
    /// The time of day at an instant; at the origin unless it was set.
    wall: Mutex<Option<(Instant, SystemTime)>>,
}

#[derive(Default)]
struct Timers {
    armed: BTreeMap<(u64, u64), Waker>,
    next_id: u64,
}

impl Manual {
    pub(super) fn now(&self) -> u64 {
        // Acquire: a thread that sees an instant sees the writes before it was set. Pairs with the store in `move_to`.
        self.now.load(Ordering::Acquire)
    }

    /// Never backwards: an earlier instant changes nothing.
    fn move_to(&self, instant: u64) {
        // Release: pairs with the load in `now`.
        self.now.fetch_max(instant, Ordering::Release);
    }

    pub(super) fn wall(&self, now: Instant) -> SystemTime {
        let (at, wall) = self.wall.lock().unwrap_or((Instant::ZERO, UNIX_EPOCH));
        let since = Duration::from_nanos(now.ticks_since(at));
        // A time of day at the end of the system's range stands still.
        wall.checked_add(since).unwrap_or(wall)
    }

    /// Arms a timer and returns its key, or nothing when the instant has come.
    pub(super) fn arm(&self, at: Instant, waker: &Waker) -> Option<(u64, u64)> {
        let waker = waker.clone();
        let mut timers = self.timers.lock();
        if at.ticks() <= self.now() {
            drop(timers);
            return None;
        }
        timers.next_id += 1;
        let key = (at.ticks(), timers.next_id);
        timers.armed.insert(key, waker);
        Some(key)
    }

    pub(super) fn rearm(&self, key: (u64, u64), waker: &Waker) -> bool {
        let waker = waker.clone();
        let old = match self.timers.lock().armed.get_mut(&key) {
            Some(slot) => std::mem::replace(slot, waker),
            None => return false,
        };
        drop_quietly(old);
        true
    }

    pub(super) fn disarm(&self, key: (u64, u64)) {
        // The waker is dropped after the lock: it may run user code.
        let waker = self.timers.lock().armed.remove(&key);
        drop_quietly(waker);
    }

    /// The next timer that is due by `limit`; or, in the same step, moves time there when there is none.
    fn fire_or_move(&self, limit: u64) -> Option<Waker> {
        let mut timers = self.timers.lock();
        match timers.armed.first_key_value() {
            Some((&(at, _), _)) if at <= limit => {
                self.move_to(at);
                timers.armed.pop_first().map(|(_, waker)| waker)
            }
            _ => {
                self.move_to(limit);
                None
            }
        }
    }

    /// Takes the next timer that is due at or before `limit`, having moved time to it.
    fn fire_next(&self, limit: u64) -> Option<Waker> {
        let mut timers = self.timers.lock();
        let (&(at, _), _) = timers.armed.first_key_value()?;
        if at > limit {
            return None;
        }
        self.move_to(at);
        timers.armed.pop_first().map(|(_, waker)| waker)
    }
}

/// A clock that is advanced by hand. Dereferences to the [`Clock`] that limiters are built on.
///
/// One tick is one nanosecond; it starts at zero and ends after 584 years.
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::ManualClock;
/// let clock = ManualClock::new();
/// clock.advance(Duration::from_secs(1));
/// // A future that waits for time moves the clock to the next timer instead of sleeping.
/// clock.run(clock.sleep(Duration::from_secs(3_600)));
/// assert_eq!(clock.elapsed(), Duration::from_secs(3_601));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Clock);

impl ManualClock {
    /// A new clock, at zero.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self(Clock::of(Arc::default()))
    }

    fn manual(&self) -> &Manual {
        self.0.manual().expect("it was made from a manual one")
    }

    /// The clock, to be cloned into the limiters and timers that run by it.
    pub fn clock(&self) -> &Clock {
        &self.0
    }

    /// The time since it was made.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.now().ticks())
    }

    /// Sets the time of day that [`wall`](Clock::wall) shows now. It moves with the clock from here on. Timers and
    /// instants do not change.
    ///
    /// ```
    /// # use tollgate::ManualClock;
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// let clock = ManualClock::new();
    /// let wall = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    /// clock.set_wall(wall);
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(clock.wall(), wall + Duration::from_secs(60));
    /// ```
    pub fn set_wall(&self, wall: SystemTime) {
        *self.manual().wall.lock() = Some((self.now(), wall));
    }

    /// Lets `duration` pass. Timers on the way fire in order, each at its own instant; their tasks run when their
    /// executor next polls them.
    pub fn advance(&self, duration: Duration) {
        self.advance_to(self.after(self.now(), duration));
    }

    /// Lets time pass until `instant`; one in the past changes nothing.
    pub fn advance_to(&self, instant: Instant) {
        while let Some(waker) = self.manual().fire_or_move(instant.ticks()) {
            waker.wake();
        }
    }

    /// Lets time pass until the next timer and fires all timers of that instant. False when there is none.
    ///
    /// As the park hook of a current-thread runtime this makes time advance by itself whenever nothing can run.
    pub fn advance_to_next_timer(&self) -> bool {
        let Some(waker) = self.manual().fire_next(u64::MAX) else {
            return false;
        };
        waker.wake();
        let now = self.now().ticks();
        while let Some(waker) = self.manual().fire_next(now) {
            waker.wake();
        }
        true
    }
}

impl Deref for ManualClock {
    type Target = Clock;
    fn deref(&self) -> &Clock {
        &self.0
    }
}

/// Set when the future that `run` drives has been woken.
struct Signal {
    woken: AtomicBool,
    thread: Thread,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        // Release: pairs with the swap in `run`.
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// The runtime of tokio that runs on this thread. Where [`run`] does, a runtime that is current does not get to fire its timers.
#[cfg(feature = "tokio")]
pub(crate) fn runtime() -> Option<tokio::runtime::Handle> {
    let here = !RUNS.try_with(Cell::get).unwrap_or(false);
    here.then(|| tokio::runtime::Handle::try_current().ok()).flatten()
}

thread_local! {
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// Says that [`run`] runs on this thread, until it is dropped.
struct Runs(bool);

impl Runs {
    fn here() -> Self {
        Self(RUNS.replace(true))
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        RUNS.set(self.0);
    }
}

pub(super) fn run<F: Future>(clock: &Clock, future: F) -> F::Output {
    let _here = Runs::here();
    let mut future = pin!(future);
    let signal = Arc::new(Signal {
        woken: AtomicBool::new(true),
        thread: thread::current(),
    });
    let waker = Waker::from(Arc::clone(&signal));
    let mut context = Context::from_waker(&waker);
    loop {
        // Acquire: the poll sees the writes of the waking thread. Pairs with `wake_by_ref`.
        while signal.woken.swap(false, Ordering::Acquire) {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
        }
        let advanced = clock.is_manual() && ManualClock(clock.clone()).advance_to_next_timer();
        if !advanced && !signal.woken.load(Ordering::Acquire) {
            thread::park();
        }
    }
}
