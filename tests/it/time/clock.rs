//! The clock and its timers.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;
use tollgate::time::{ClockReading, TaskTime};
use tollgate::{Clock, Instant, ManualClock, Semaphore};

const SECOND: Duration = Duration::from_secs(1);

/// Given sleepers armed in any order, when time runs by itself, then each wakes exactly at its own instant, in order of
/// instants and, at the same instant, of arming.
#[test]
fn timers_fire_in_order_each_at_its_own_instant() {
    let clock = ManualClock::new();
    let log = RefCell::new(Vec::new());
    clock.run(futures::future::join_all([3, 1, 2, 1].into_iter().enumerate().map(
        |(index, seconds)| {
            let (clock, log) = (&clock, &log);
            async move {
                clock.sleep_until(clock.after(Instant::ZERO, SECOND * seconds)).await;
                log.borrow_mut().push((clock.elapsed().as_secs(), index));
            }
        },
    )));
    assert_eq!(*log.borrow(), [(1, 1), (1, 3), (2, 2), (3, 0)]);
}

#[test]
fn a_manual_clock_never_runs_backwards() {
    let clock = ManualClock::new();
    clock.advance(SECOND);
    let now = clock.now();
    clock.advance_to(Instant::ZERO);
    assert_eq!(clock.now(), now);
    clock.advance(Duration::MAX);
    let end = clock.now();
    clock.advance(SECOND);
    assert_eq!(clock.now(), end, "time ends, it does not wrap");
}

#[test]
fn durations_are_rounded_up_and_saturate() {
    let clock = Clock::real();
    let start = clock.now();
    for nanos in [1, 7, 1_000, 999_999_999] {
        let duration = Duration::from_nanos(nanos);
        let there = clock.after(start, duration);
        assert!(clock.between(start, there) >= duration);
    }
    assert_eq!(clock.between(clock.after(start, SECOND), start), Duration::ZERO);
    assert!(clock.after(start, Duration::MAX) >= start);
}

#[test]
fn a_pass_reads_the_clock_once() {
    let (clock, other) = (ManualClock::new(), ManualClock::new());
    let reading = ClockReading::default();
    let first = reading.now(&clock);
    clock.advance(SECOND);
    assert_eq!(reading.now(&clock), first);
    other.advance(SECOND);
    assert_eq!(reading.now(&other), other.now(), "a leg on another clock reads its own");
}

/// Given no runtime, when a future sleeps by the real clock, then it wakes, and not before its instant.
#[test]
fn the_real_clock_sleeps_without_a_runtime() {
    let clock = Clock::real();
    let at = clock.after(clock.now(), Duration::from_micros(100));
    clock.run(clock.sleep_until(at));
    assert!(clock.now() >= at);
}

/// Given a tokio runtime, when a future sleeps by the real clock, then it wakes, and not before its instant.
#[tokio::test]
async fn the_real_clock_sleeps_on_tokio() {
    let clock = Clock::real();
    let at = clock.after(clock.now(), Duration::from_micros(100));
    clock.sleep_until(at).await;
    assert!(clock.now() >= at);
}

/// Given a current-thread runtime whose park hook advances the clock, then spawned tasks see virtual time run by itself.
#[test]
fn a_park_hook_lets_virtual_time_run() {
    let clock = ManualClock::new();
    let hook = clock.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .on_thread_park(move || {
            hook.advance_to_next_timer();
        })
        .build()
        .unwrap();
    let spawned = clock.clone();
    runtime.block_on(async move {
        let task = tokio::spawn(async move {
            spawned.sleep(SECOND * 3_600).await;
            spawned.elapsed()
        });
        assert_eq!(task.await.unwrap(), SECOND * 3_600);
    });
}

/// A timer that is armed beside an advance is fired by it, or finds its instant past.
#[test]
fn a_timer_beside_an_advance_is_not_lost() {
    const ROUNDS: usize = 20_000;
    let clock = ManualClock::new();
    let (go, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                while go.load(Ordering::Acquire) < round {
                    thread::yield_now();
                }
                clock.advance(Duration::from_nanos(10));
                done.store(round, Ordering::Release);
            }
        });
        for round in 1..=ROUNDS {
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(Arc::clone(&woken));
            let mut sleep = pin!(clock.sleep(Duration::from_nanos(5)));
            go.store(round, Ordering::Release);
            for _ in 0..round % 40 {
                std::hint::spin_loop();
            }
            let ready = sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
            while done.load(Ordering::Acquire) < round {
                thread::yield_now();
            }
            assert!(
                ready || woken.0.load(Ordering::SeqCst),
                "a timer is due, and was not fired"
            );
        }
    });
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A runtime whose thread we block does not get to fire its timers: ours fire.
#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_clock_that_runs_inside_a_runtime_has_timers() {
    let semaphore = Semaphore::new(0);
    let waited = Clock::real().run(semaphore.acquire_timeout(Duration::from_millis(5)));
    assert!(waited.is_err());
}

/// A clock of tokio's that a test has paused counts: a wait on the real clock ends when that has come to its instant.
#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn a_wait_ends_by_the_paused_clock_of_a_runtime() {
    let (start, semaphore) = (tokio::time::Instant::now(), Semaphore::new(0));
    assert!(semaphore.acquire_timeout(Duration::from_secs(60)).await.is_err());
    let waited = start.elapsed();
    assert!(
        waited >= Duration::from_secs(60) && waited < Duration::from_secs(61),
        "{waited:?}"
    );
}

/// Given a timer that is armed, when it is reset to a later instant, and for an earlier one again, then it fires at the last of them.
#[tokio::test]
async fn a_timer_that_is_reset_fires_at_its_last_instant() {
    let clock = Clock::real();
    let after = |millis| clock.after(clock.now(), Duration::from_millis(millis));
    let mut timer = clock.sleep_until(after(2));
    for (first, last) in [(10, 20), (3_600_000, 5)] {
        let mut at = clock.now();
        for millis in [first, last] {
            at = after(millis);
            timer.reset(at);
            _ = futures::poll!(&mut timer);
        }
        (&mut timer).await;
        assert!(clock.now() >= at);
    }
}

/// Given a manual clock inside a runtime, then the time of a task is that of the manual clock.
#[tokio::test]
async fn the_time_of_a_task_is_that_of_its_clock() {
    let clock = ManualClock::new();
    let time = TaskTime::start(&clock);
    clock.advance(SECOND);
    assert_eq!(time.elapsed(), SECOND);
}
