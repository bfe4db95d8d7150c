//! Timers without a runtime: one thread, started when first needed, that sleeps until the earliest of them.
//!
//! It wakes at most once a millisecond, as runtimes do: a timer that comes sooner after others is up to a millisecond late.
//! One that comes alone is not.

use crate::sync::unwind::{drop_quietly, quietly};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::task::Waker;
use std::time::{Duration, Instant};

/// Identifies an armed timer.
pub(super) type Key = (Instant, u64);

/// The least time that the thread sleeps after it has woken others.
const GRAIN: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Timers {
    armed: BTreeMap<Key, Waker>,
    next_id: u64,
    /// When the thread looks again by itself. An earlier timer has to call it.
    looks_at: Option<Instant>,
    /// The thread was started.
    served: bool,
}

impl Timers {
    /// Takes the earliest timer if it is due at `now`; else returns the time to sleep.
    fn next(&mut self, now: Instant) -> Result<Waker, Option<Instant>> {
        match self.armed.first_entry() {
            Some(first) if first.key().0 <= now => Ok(first.remove()),
            first => Err(first.map(|first| first.key().0)),
        }
    }
}

#[derive(Default)]
struct Shared {
    timers: Mutex<Timers>,
    changed: Condvar,
}

fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(Shared::default)
}

fn start(shared: &'static Shared) {
    let started = std::thread::Builder::new()
        .name("tollgate-timer".into())
        .spawn(|| serve(shared));
    if started.is_err() {
        shared.timers.lock().served = false;
    }
    // Without a thread no waiter would ever wake: nothing sensible can go on.
    drop(started.expect("a thread for timers can be started"));
}

fn serve(shared: &Shared) {
    let mut timers = shared.timers.lock();
    loop {
        let mut now = Instant::now();
        let mut woken = false;
        let until = loop {
            match timers.next(now) {
                Ok(waker) => {
                    // Outside the lock. Neither its panic nor the drop of the payload ends the timers of others.
                    parking_lot::MutexGuard::unlocked(&mut timers, || quietly(|| waker.wake()));
                    woken = true;
                    now = Instant::now();
                }
                Err(until) => break until,
            }
        };
        if woken {
            // Timers that are armed meanwhile, at whatever instant, are looked at then: they need not call the thread.
            timers.looks_at = Some(now);
            parking_lot::MutexGuard::unlocked(&mut timers, || std::thread::sleep(GRAIN));
            continue;
        }
        timers.looks_at = until;
        match until {
            Some(until) => drop(shared.changed.wait_until(&mut timers, until)),
            None => shared.changed.wait(&mut timers),
        }
    }
}

pub(super) fn arm(after: Duration, waker: &Waker) -> Key {
    let shared = shared();
    let waker = waker.clone();
    let now = Instant::now();
    // A wait beyond the range of the machine's clock is woken once a year and armed again.
    let at = now
        .checked_add(after)
        .unwrap_or_else(|| now + Duration::from_secs(31_536_000));
    let mut timers = shared.timers.lock();
    timers.next_id += 1;
    let key = (at, timers.next_id);
    timers.armed.insert(key, waker);
    let starts = !std::mem::replace(&mut timers.served, true);
    let calls = timers.looks_at.is_none_or(|looks_at| at < looks_at);
    drop(timers);
    if starts {
        start(shared);
    } else if calls {
        shared.changed.notify_one();
    }
    key
}

pub(super) fn rearm(key: Key, waker: &Waker) -> bool {
    let waker = waker.clone();
    let old = match shared().timers.lock().armed.get_mut(&key) {
        Some(slot) => std::mem::replace(slot, waker),
        None => return false,
    };
    drop_quietly(old);
    true
}

pub(super) fn disarm(key: Key) {
    let waker = shared().timers.lock().armed.remove(&key);
    drop_quietly(waker);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::resume_unwind;
    use std::sync::{Arc, mpsc};
    use std::task::Wake;

    struct Calls<F>(F);

    impl<F: Fn() + Send + Sync + 'static> Wake for Calls<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }

    fn calls(call: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker::from(Arc::new(Calls(call)))
    }

    /// Panics with another such payload when it is dropped.
    struct Payload;

    impl Drop for Payload {
        fn drop(&mut self) {
            resume_unwind(Box::new(Payload));
        }
    }

    #[test]
    fn timers_go_on_whatever_a_waker_panics_with() {
        arm(Duration::ZERO, &calls(|| resume_unwind(Box::new(Payload))));
        let (sender, receiver) = mpsc::channel();
        arm(Duration::from_millis(1), &calls(move || sender.send(()).unwrap()));
        // The patience only bounds the failure.
        assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(()));
    }

    #[test]
    fn an_earlier_timer_fires_before_one_that_was_armed_first() {
        let (sender, receiver) = mpsc::channel();
        let last = sender.clone();
        let far = arm(Duration::from_secs(3_600), &calls(move || last.send("far").unwrap()));
        arm(Duration::from_millis(1), &calls(move || sender.send("near").unwrap()));
        assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok("near"));
        disarm(far);
    }
}
