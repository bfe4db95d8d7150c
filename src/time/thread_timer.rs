//! Timers without a runtime: one thread, started when first needed, that sleeps until the earliest of them.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::task::Waker;
use std::time::{Duration, Instant};

/// Identifies an armed timer.
pub(super) type Key = (Instant, u64);

#[derive(Default)]
struct Timers {
    armed: BTreeMap<Key, Waker>,
    next_id: u64,
}

#[derive(Default)]
struct Shared {
    timers: Mutex<Timers>,
    changed: Condvar,
}

fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    static STARTED: OnceLock<()> = OnceLock::new();
    let shared = SHARED.get_or_init(Shared::default);
    STARTED.get_or_init(|| {
        let started = std::thread::Builder::new()
            .name("tollgate-timer".into())
            .spawn(|| serve(SHARED.get_or_init(Shared::default)));
        // Without a thread no waiter would ever wake: nothing sensible can go on.
        drop(started.expect("a thread for timers can be started"));
    });
    shared
}

fn serve(shared: &Shared) {
    let mut timers = shared.timers.lock();
    loop {
        let now = Instant::now();
        match timers.armed.first_key_value() {
            None => shared.changed.wait(&mut timers),
            Some((&(at, _), _)) if at > now => {
                let _ = shared.changed.wait_until(&mut timers, at);
            }
            Some(_) => {
                let waker = timers.armed.pop_first().map(|(_, waker)| waker);
                // Woken outside the lock; a waker that panics must not end the timers of everybody else.
                parking_lot::MutexGuard::unlocked(&mut timers, || {
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.map(Waker::wake)));
                });
            }
        }
    }
}

pub(super) fn arm(after: Duration, waker: &Waker) -> Key {
    let shared = shared();
    let waker = waker.clone();
    let now = Instant::now();
    // A wait beyond what the machine's clock can name is woken once a year and armed again.
    let at = now
        .checked_add(after)
        .unwrap_or_else(|| now + Duration::from_secs(31_536_000));
    let mut timers = shared.timers.lock();
    timers.next_id += 1;
    let key = (at, timers.next_id);
    timers.armed.insert(key, waker);
    drop(timers);
    shared.changed.notify_one();
    key
}

pub(super) fn rearm(key: Key, waker: &Waker) -> bool {
    let waker = waker.clone();
    let old = match shared().timers.lock().armed.get_mut(&key) {
        Some(slot) => std::mem::replace(slot, waker),
        None => return false,
    };
    drop(old);
    true
}

pub(super) fn disarm(key: Key) {
    let waker = shared().timers.lock().armed.remove(&key);
    drop(waker);
}
