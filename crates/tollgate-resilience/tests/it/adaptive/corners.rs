//! Adaptive limits at the edges: of settings, of headroom, and where the limiter inside is asked.

use std::time::Duration;
use tollgate::{Cost, Limiter, LimiterExt, ManualClock, Outcome, Policy, Semaphore};
use tollgate_resilience::adaptive::{Adaptive, Aimd, LimitLaw, Sample, Trend};

/// Each setting on the edge of its range, and just beyond it.
#[test]
fn settings_on_the_edge() {
    let clock = ManualClock::new();
    let builder = || Adaptive::builder(Semaphore::new(1)).on(&clock);
    let year = Duration::from_secs(365 * 86_400);
    for (place, builder) in [
        builder().bounds(1, 1 << 32),
        builder().bounds(5, 5),
        builder().percentile(0.0),
        builder().percentile(100.0),
        builder().window(year, 1),
        builder().keep(1),
        builder().keep(65_536),
        builder().headroom(1.0, 0.0, 1.0),
    ]
    .into_iter()
    .enumerate()
    {
        assert!(builder.build().is_ok(), "{place}");
    }
    for (place, builder) in [
        builder().bounds(1, (1 << 32) + 1),
        builder().bounds(6, 5),
        builder().percentile(-0.1),
        builder().percentile(100.1),
        builder().window(year + Duration::from_nanos(1), 1),
        builder().keep(65_537),
        builder().headroom(1.5, 0.0, 0.9),
        builder().headroom(1.5, -0.1, 1.0),
        builder().headroom(f64::INFINITY, 0.0, 1.0),
        builder().headroom(1.5, f64::INFINITY, 1.0),
        builder().headroom(1.5, f64::NAN, 1.0),
    ]
    .into_iter()
    .enumerate()
    {
        assert!(builder.build().is_err(), "{place}");
    }
    assert_eq!(builder().bounds(3, 9).build().unwrap().limit(), 3);
}

/// Given a headroom of next to nothing, then a limit of one still grows, by one.
#[test]
fn headroom_lets_a_small_limit_grow() {
    let clock = ManualClock::new();
    let law = Aimd::new();
    let builder = Adaptive::builder(Semaphore::new(1)).law(law).headroom(1.0, 0.0, 1.0);
    let gate = builder.window(Duration::ZERO, 1).on(&clock).build().unwrap();
    for expected in 2..10 {
        let held: Vec<_> = std::iter::from_fn(|| gate.try_admit(1).ok()).collect();
        for (place, permit) in held.into_iter().enumerate() {
            let outcome = if place == 0 { Outcome::Success } else { Outcome::Ignored };
            permit.finish(outcome);
        }
        assert_eq!(gate.limit(), expected);
    }
}

/// Given a limit that the law lowers while little is in flight, then headroom neither raises it nor lowers it further.
#[test]
fn headroom_applies_only_to_growing_laws() {
    struct Says(Vec<f64>);
    impl LimitLaw for Says {
        fn next(&mut self, limit: f64, _: &Sample) -> f64 {
            self.0.pop().unwrap_or(limit)
        }
    }
    let clock = ManualClock::new();
    let builder = Adaptive::builder(Semaphore::new(30)).law(Says(vec![25.0, 20.0, 20.0, 30.0]));
    let builder = builder.headroom(2.0, 0.0, 2.0).window(Duration::ZERO, 1);
    let gate = builder.on(&clock).build().unwrap();
    for expected in [30, 20, 20, 20] {
        gate.try_admit(1).unwrap().finish(Outcome::Success);
        assert_eq!(gate.limit(), expected);
    }
}

/// The limiter inside handles all but the law: costs, forgotten permits, status, turns.
#[test]
fn all_else_is_the_limiters_inside() {
    const TOKENS: Cost = Cost::new("tokens");
    let clock = ManualClock::new();
    let window = Adaptive::builder(Semaphore::new(5)).on(&clock).build().unwrap();
    window.try_admit(2).unwrap().forget();
    // What a semaphore forgets is gone.
    assert_eq!((window.limiter().in_use(), window.limit()), (0, 3));
    let mut permit = window.try_admit(1).unwrap();
    assert!(permit.settle(TOKENS, 1).is_err(), "a semaphore counts no tokens");
    let mut kinds = Vec::new();
    window.describe(&mut |leg| kinds.push((leg.kind, leg.clock.is_some_and(|seen| seen.is_same(&clock)))));
    assert_eq!(kinds, [("adaptive", true)]);
    assert!(format!("{window:?}").contains("limit: 3") && format!("{window:?}").contains("in_use: 1"));
    let builder = Adaptive::builder(Semaphore::new(5)).bounds(2, 77);
    assert!(format!("{builder:?}").contains("77"), "{builder:?}");
}

/// A policy that waits for an adaptive limit stands in the queue of the semaphore inside, and is woken by its release.
#[test]
fn a_policy_waits_in_the_queue_inside() {
    let clock = ManualClock::new();
    let limit = Adaptive::builder(Semaphore::new(1)).on(&clock).build().unwrap();
    let policy = Policy::builder().on(&clock).limit(limit).build().unwrap();
    clock.run(async {
        let held = policy.admit(1).await.unwrap();
        let mut waits = std::pin::pin!(policy.admit(1));
        std::future::poll_fn(|context| {
            assert!(waits.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        assert_eq!(policy.limiter().limiter().waiting(), 1);
        held.finish(Outcome::Success);
        drop(waits.await.unwrap());
    });
    assert_eq!(policy.limiter().limiter().in_use(), 0);
}

/// An additive law backs off by the configured factor, above its time-out and not at it.
#[test]
fn aimd_keeps_to_its_settings() {
    let mut law = Aimd::new().backoff(0.5).timeout(Duration::from_millis(100));
    let after = |millis| Sample::new(Duration::from_millis(millis), 10);
    assert_eq!(law.next(10.0, &after(100)), 11.0);
    assert_eq!(law.next(10.0, &after(101)), 5.0);
}

/// The average of a trend covers the configured number of windows: one is the latency itself, so that nothing ever queues.
#[test]
fn a_trend_averages_over_what_is_set() {
    let next = |mut law: Trend| {
        for _ in 0..11 {
            law.next(20.0, &Sample::new(Duration::from_millis(10), 12));
        }
        law.next(20.0, &Sample::new(Duration::from_millis(20), 12))
    };
    assert_eq!(next(Trend::new().average_over(1)), 21.0);
    assert_eq!(next(Trend::new().average_over(1_000)), 19.0);
}
