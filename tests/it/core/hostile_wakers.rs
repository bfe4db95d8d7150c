//! Wakers whose wake and drop use the very object that calls them: every entry of the API from every callback.
//!
//! A waker made of an `Arc` runs user code when it is woken and when its last handle is dropped, never when it is
//! cloned. Every waker is cloned before a lock is taken or between two, never under one, and what may have happened
//! between two is looked at anew. Clones that panic are in `core::panic_sweep`.
//!
//! A deadlock would hang, so each situation runs on a thread of its own, and real time only bounds the failure.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;
use tollgate::{Ask, Cost, Inherit, LimiterExt, ManualClock, Permit, Policy, Quota, Semaphore};
use tollgate::{SlidingWindow, TokenBucket};

const TOKENS: Cost = Cost::new("tokens");

type Entry = Arc<dyn Fn() + Send + Sync>;

/// Calls `entry` when it is woken, or when it is dropped, or both.
struct Hostile {
    entry: Entry,
    on_wake: bool,
    on_drop: bool,
    calls: Arc<AtomicUsize>,
}

impl Hostile {
    fn strike(&self) {
        // Relaxed: read after the thread that counts has been joined by its message.
        self.calls.fetch_add(1, Ordering::Relaxed);
        (self.entry)();
    }
}

impl Wake for Hostile {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if self.on_wake {
            self.strike();
        }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        if self.on_drop {
            self.strike();
        }
    }
}

/// Polls `future` once, leaving nothing but the waker that it keeps itself.
fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>, waker: Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&waker))
}

/// Runs `situation` with each entry on each callback; it is handed a maker of hostile wakers, and must end.
#[track_caller]
fn each(entries: &[(&str, Entry)], situation: impl Fn(&dyn Fn() -> Waker) + Send + Sync + 'static) {
    let situation = Arc::new(situation);
    for (name, entry) in entries {
        for (on_wake, on_drop) in [(true, false), (false, true), (true, true)] {
            let (situation, entry) = (Arc::clone(&situation), Arc::clone(entry));
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&calls);
            let (tell, told) = mpsc::channel();
            thread::spawn(move || {
                situation(&|| {
                    Waker::from(Arc::new(Hostile {
                        entry: Arc::clone(&entry),
                        on_wake,
                        on_drop,
                        calls: Arc::clone(&counted),
                    }))
                });
                let _ = tell.send(());
            });
            let ended = told.recv_timeout(Duration::from_secs(20));
            assert!(
                ended.is_ok(),
                "`{name}` called back on wake: {on_wake}, on drop: {on_drop}: {ended:?}"
            );
            assert!(calls.load(Ordering::Relaxed) > 0, "`{name}` was never called back");
        }
    }
}

fn entry(call: impl Fn() + Send + Sync + 'static) -> Entry {
    Arc::new(call)
}

/// The calls that a callback may make without changing the final state of a semaphore.
fn semaphore_entries(semaphore: &Arc<Semaphore>) -> Vec<(&'static str, Entry)> {
    let with = |call: fn(&Arc<Semaphore>)| {
        let semaphore = Arc::clone(semaphore);
        entry(move || call(&semaphore))
    };
    vec![
        (
            "try_acquire and release",
            with(|semaphore| drop(semaphore.try_acquire())),
        ),
        (
            "try_acquire_many and release",
            with(|semaphore| drop(semaphore.try_acquire_many(2))),
        ),
        (
            "set_limit down and up",
            with(|semaphore| {
                semaphore.set_limit(0);
                semaphore.set_limit(2);
            }),
        ),
        (
            "add_permits and set_limit",
            with(|semaphore| {
                semaphore.add_permits(1);
                semaphore.set_limit(2);
            }),
        ),
        (
            "look",
            with(|semaphore| {
                let _ = (
                    semaphore.in_use(),
                    semaphore.waiting(),
                    semaphore.debt(),
                    semaphore.is_closed(),
                );
                let _ = (semaphore.available_permits(), semaphore.in_use());
            }),
        ),
        (
            "join and leave",
            with(|semaphore| {
                let mut waiter = Box::pin(semaphore.acquire_many(2));
                let _ = poll_once(waiter.as_mut(), Waker::noop().clone());
            }),
        ),
        ("try_admit", with(|semaphore| drop(semaphore.try_admit(1)))),
    ]
}

/// Keeps out tokio#2340, tokio#5429.
#[test]
fn a_waker_may_use_the_semaphore_that_wakes_or_drops_it() {
    let semaphore = Arc::new(Semaphore::new(2));
    let entries = semaphore_entries(&semaphore);
    each(&entries, move |waker| {
        for ending in ["release", "drop", "repoll", "resize", "leave as head"] {
            let held = semaphore.try_acquire_many(2).unwrap();
            let mut first = Box::pin(semaphore.acquire_many(2));
            let mut second = Box::pin(semaphore.acquire());
            assert!(poll_once(first.as_mut(), waker()).is_pending());
            assert!(poll_once(second.as_mut(), waker()).is_pending());
            match ending {
                "release" => drop(held),
                "drop" => drop((first, second)),
                "repoll" => {
                    assert!(poll_once(first.as_mut(), waker()).is_pending());
                    assert!(poll_once(second.as_mut(), waker()).is_pending());
                }
                "resize" => {
                    semaphore.set_limit(5);
                    semaphore.set_limit(2);
                }
                _ => drop(first),
            }
        }
        assert_eq!((semaphore.limit(), semaphore.available_permits()), (2, 2));
        assert_eq!((semaphore.waiting(), semaphore.in_use()), (0, 0));
    });
}

/// Watchers: those that wait until it is idle.
#[test]
fn a_waker_may_use_the_semaphore_that_it_watches() {
    let semaphore = Arc::new(Semaphore::new(2));
    let entries = semaphore_entries(&semaphore);
    each(&entries, move |waker| {
        let held = semaphore.try_acquire_many(2).unwrap();
        let mut watch = Box::pin(semaphore.until_idle());
        assert!(poll_once(watch.as_mut(), waker()).is_pending());
        assert!(poll_once(watch.as_mut(), waker()).is_pending());
        drop(held);
        drop(watch);
        assert_eq!((semaphore.limit(), semaphore.available_permits()), (2, 2));
        assert_eq!((semaphore.waiting(), semaphore.in_use()), (0, 0));
    });
}

/// Keeps out tokio#5429.
#[test]
fn a_waker_may_use_the_semaphore_that_closes() {
    type Call = fn(&Semaphore);
    let calls: [(&str, Call); 4] = [
        ("close", |semaphore| semaphore.close()),
        ("try_acquire", |semaphore| drop(semaphore.try_acquire())),
        ("set_limit", |semaphore| semaphore.set_limit(1)),
        ("acquire", |semaphore| {
            let mut waiter = Box::pin(semaphore.acquire());
            let _ = poll_once(waiter.as_mut(), Waker::noop().clone());
        }),
    ];
    for (name, call) in calls {
        // A closed one serves for one situation only: the callback finds the current one here.
        let current: Arc<Mutex<Arc<Semaphore>>> = Arc::new(Mutex::new(Arc::new(Semaphore::new(1))));
        let seen = Arc::clone(&current);
        let strike = entry(move || {
            let semaphore = Arc::clone(&seen.lock().unwrap());
            call(&semaphore);
        });
        each(&[(name, strike)], move |waker| {
            let semaphore = Arc::new(Semaphore::new(1));
            *current.lock().unwrap() = Arc::clone(&semaphore);
            let held = semaphore.try_acquire().unwrap();
            let mut waiters: Vec<_> = (0..3).map(|_| Box::pin(semaphore.acquire())).collect();
            for waiter in &mut waiters {
                assert!(poll_once(waiter.as_mut(), waker()).is_pending());
            }
            semaphore.close();
            for waiter in &mut waiters {
                assert!(matches!(poll_once(waiter.as_mut(), waker()), Poll::Ready(Err(_))));
            }
            drop(held);
            assert_eq!((semaphore.waiting(), semaphore.available_permits()), (0, 1));
        });
    }
}

#[test]
fn a_timer_may_use_the_clock_that_fires_or_disarms_it() {
    let clock = ManualClock::new();
    let with = |call: fn(&ManualClock)| {
        let clock = clock.clone();
        entry(move || call(&clock))
    };
    let entries = [
        ("advance", with(|clock| clock.advance(Duration::from_nanos(1)))),
        (
            "advance_to_next_timer",
            with(|clock| {
                let _ = clock.advance_to_next_timer();
            }),
        ),
        (
            "arm and disarm",
            with(|clock| {
                let at = clock.after(clock.now(), Duration::from_secs(9));
                let mut sleep = Box::pin(clock.sleep_until(at));
                let _ = poll_once(sleep.as_mut(), Waker::noop().clone());
            }),
        ),
    ];
    each(&entries, move |waker| {
        for ending in ["fire", "drop", "repoll"] {
            let at = clock.after(clock.now(), Duration::from_secs(1));
            let mut sleep = Box::pin(clock.sleep_until(at));
            assert!(poll_once(sleep.as_mut(), waker()).is_pending());
            match ending {
                "fire" => clock.advance(Duration::from_secs(2)),
                "repoll" => {
                    let _ = poll_once(sleep.as_mut(), waker());
                }
                _ => {}
            }
            drop(sleep);
        }
        assert!(!clock.advance_to_next_timer(), "a timer is left");
    });
}

#[test]
fn a_waker_may_use_the_policy_that_wakes_or_drops_it() {
    let clock = ManualClock::new();
    let semaphore = Arc::new(Semaphore::new(2));
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(1_000).burst(1_000)).on(&clock));
    let window = SlidingWindow::new(1_000_000, Duration::from_secs(1))
        .unwrap()
        .on(&clock);
    let gate = Arc::clone(&bucket)
        .per(TOKENS)
        .and(window.per(TOKENS))
        .and(Arc::clone(&semaphore));
    let policy = Policy::new(gate);
    let ask = Ask::one().cost(TOKENS, 10);
    let two = Ask::many(2).cost(TOKENS, 10);

    let mut entries = semaphore_entries(&semaphore);
    let shared = policy.clone();
    entries.push(("policy.try_admit", entry(move || drop(shared.try_admit(ask)))));
    let shared = policy.clone();
    entries.push((
        "policy.try_admit and settle",
        entry(move || {
            if let Ok(mut permit) = shared.try_admit(ask) {
                permit.settle(TOKENS, 1).unwrap();
            }
        }),
    ));
    let shared = policy.clone();
    entries.push((
        "policy.admit, polled and dropped",
        entry(move || {
            let mut waiter = Box::pin(shared.admit(ask));
            let _ = poll_once(waiter.as_mut(), Waker::noop().clone());
        }),
    ));
    let shared = policy.clone();
    entries.push(("policy.waiting", entry(move || drop(shared.waiting().to_string()))));
    let shared = Arc::clone(&bucket);
    entries.push((
        "bucket.set_quota",
        entry(move || shared.set_quota(Quota::per_second(1_000).burst(1_000), Inherit::AsIs)),
    ));
    let shared = clock.clone();
    entries.push(("clock.advance", entry(move || shared.advance(Duration::from_micros(1)))));

    each(&entries, move |waker| {
        for ending in [
            "finish",
            "cancel",
            "settle",
            "instant",
            "drop",
            "repoll",
            "leave as head",
            "set_quota",
        ] {
            clock.advance(Duration::from_secs(2));
            // Either the permits bind, or the tokens do.
            let by_rate = matches!(ending, "settle" | "instant" | "set_quota");
            let taken = if by_rate { Ask::one().cost(TOKENS, 1_000) } else { two };
            let mut held = Some(policy.try_admit(taken).unwrap());
            let mut first = Box::pin(policy.admit(ask));
            let mut second = Box::pin(policy.admit(ask));
            assert!(poll_once(first.as_mut(), waker()).is_pending());
            assert!(poll_once(second.as_mut(), waker()).is_pending());
            match ending {
                "finish" => drop(held.take()),
                "cancel" => held.take().into_iter().for_each(Permit::cancel),
                "settle" => drop(held.as_mut().unwrap().settle(TOKENS, 10)),
                "instant" => clock.advance(Duration::from_secs(1)),
                "set_quota" => bucket.set_quota(Quota::per_second(1_000).burst(1_000), Inherit::Reset),
                "drop" => drop((first, second)),
                "repoll" => {
                    let _ = poll_once(first.as_mut(), waker());
                    let _ = poll_once(second.as_mut(), waker());
                }
                _ => drop(first),
            }
        }
        assert_eq!(policy.waiting(), 0);
        assert_eq!((semaphore.limit(), semaphore.available_permits()), (2, 2));
        assert_eq!((semaphore.waiting(), semaphore.in_use()), (0, 0));
        clock.advance(Duration::from_secs(3));
        assert!(!clock.advance_to_next_timer(), "a timer is left");
        assert_eq!(bucket.available(), 1_000);
    });
}
