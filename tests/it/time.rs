//! The clock and its timers.

use std::cell::RefCell;
use std::time::Duration;
use tollgate::time::{Phase, Sleep};
use tollgate::{Clock, Instant, ManualClock};

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
                Sleep::until(clock, clock.after(Instant::ZERO, SECOND * seconds)).await;
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
    let phase = Phase::new();
    let first = phase.pass().now(&clock);
    clock.advance(SECOND);
    assert_eq!(phase.pass().now(&clock), first);
    other.advance(SECOND);
    assert_eq!(
        phase.pass().now(&other),
        other.now(),
        "a leg on another clock reads its own"
    );
}

/// Given no runtime, when a future sleeps by the real clock, then it wakes, and not before its instant.
#[test]
fn the_real_clock_sleeps_without_a_runtime() {
    let clock = Clock::real();
    let at = clock.after(clock.now(), Duration::from_micros(100));
    clock.run(Sleep::until(&clock, at));
    assert!(clock.now() >= at);
}

/// Given a tokio runtime, when a future sleeps by the real clock, then it wakes, and not before its instant.
#[tokio::test]
async fn the_real_clock_sleeps_on_tokio() {
    let clock = Clock::real();
    let at = clock.after(clock.now(), Duration::from_micros(100));
    Sleep::until(&clock, at).await;
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
            Sleep::until(&spawned, spawned.after(spawned.now(), SECOND * 3_600)).await;
            spawned.elapsed()
        });
        assert_eq!(task.await.unwrap(), SECOND * 3_600);
    });
}
