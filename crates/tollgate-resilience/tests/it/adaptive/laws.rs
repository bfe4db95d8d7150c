//! Limits that find themselves: the published tables of the laws, and the limiter around them.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::{LimiterExt, ManualClock, Outcome, Semaphore};
use tollgate_resilience::adaptive::{
    Adaptive, AdaptiveError, Aimd, Cubic, Gradient, Gradient2, LimitLaw, Sample, Trend, Vegas,
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A limit that starts at `start`, after each sample of (milliseconds, in flight), cut off to whole numbers.
fn follow(mut law: impl LimitLaw, start: f64, most: f64, samples: &[(u64, u64)]) -> Vec<u64> {
    let mut limit = start;
    let next = |&(latency, in_flight): &(u64, u64)| {
        limit = law.next(limit, &Sample::new(ms(latency), in_flight)).clamp(1.0, most);
        limit as u64
    };
    samples.iter().map(next).collect()
}

#[test]
fn vegas_follows_its_table() {
    let vegas = Vegas::new;
    assert_eq!(follow(vegas(), 10.0, 20.0, &[(10, 10), (10, 11)]), [10, 16]);
    assert_eq!(follow(vegas(), 10.0, 20.0, &[(10, 10), (50, 11)]), [10, 9]);
    assert_eq!(follow(vegas(), 10.0, 20.0, &[(10, 10), (14, 14)]), [10, 10]);
    let slow = [(10_000, 5_000), (10_000, 6_000)];
    assert_eq!(follow(vegas(), 10_000.0, 20_000.0, &slow), [10_000, 10_024]);
    let worse = [(10, 100), (20, 100), (20, 100)];
    let half = vegas().backoff(0.5);
    assert_eq!(follow(half.smoothing(0.5), 100.0, 200.0, &worse), [100, 75, 56]);
    assert_eq!(follow(half, 100.0, 200.0, &worse), [100, 50, 25]);
}

/// At a limit of 100 the decimal logarithm is 2: up by six of those with no more than one in the queue, by one below
/// three, down by one above six. The shortest latency is 100 ms, so that one per cent more is about one call in the queue.
#[test]
fn vegas_moves_by_the_length_of_the_queue() {
    for (latency, limit) in [
        (100, 112),
        (102, 112),
        (103, 102),
        (105, 102),
        (106, 100),
        (113, 100),
        (114, 98),
    ] {
        let moved = follow(Vegas::new(), 100.0, 200.0, &[(100, 100), (latency, 100)]);
        assert_eq!(moved, [100, limit], "{latency} ms");
    }
    assert_eq!(
        follow(Vegas::new(), 100.0, 200.0, &[(100, 100), (50, 100), (100, 100)]),
        [100, 100, 98],
        "a shorter latency is taken over, and decides nothing by itself"
    );
}

/// Once in thirty samples for each of the limit, the shortest latency is forgotten.
#[test]
fn vegas_measures_the_shortest_latency_anew_now_and_then() {
    let after = |idle: usize, busy: usize| {
        let mut samples = vec![(100, 100)];
        samples.extend(vec![(200, 1); idle]);
        samples.extend(vec![(200, 100); busy]);
        *follow(Vegas::new(), 4.0, 200.0, &samples).last().unwrap()
    };
    assert_eq!(after(117, 1), 5, "the 119th finds two of four in a queue");
    assert_eq!(after(118, 1), 4, "the 120th is the new shortest");
    assert_eq!(after(118, 2), 10, "and the 121st finds no queue");
}

#[test]
fn aimd_follows_its_table() {
    let dropped = Sample::new(ms(1), 30).dropped();
    assert_eq!(Aimd::new().next(30.0, &dropped), 27.0);
    assert_eq!(follow(Aimd::new(), 21.0, 21.0, &[(1, 10)]), [21]);
    assert_eq!(
        follow(Aimd::new(), 20.0, 21.0, &[(1, 10), (1, 11), (6_000, 11)]),
        [21, 21, 18]
    );
    assert_eq!(
        follow(Aimd::new().increase(2.5), 20.0, 30.0, &[(1, 11), (1, 12)]),
        [22, 25]
    );
}

#[test]
fn gradient_follows_its_table() {
    let mut law = Gradient2::new();
    let mut limit = 100.0;
    let mut after = |latency, in_flight| {
        limit = law.next(limit, &Sample::new(ms(latency), in_flight)).clamp(20.0, 200.0);
        limit
    };
    for step in 1..=10 {
        let expected = 100.0 + 0.8 * f64::from(step);
        assert!((after(10, 100) - expected).abs() < 1e-9);
    }
    for expected in [98.0, 89.0, 80.9, 73.61, 67.049] {
        assert!((after(40, 100) - expected).abs() < 1e-9);
    }
    assert!((after(10, 10) - 67.049).abs() < 1e-9);
}

/// The least is 5 ms, the buffer a quarter.
#[test]
fn the_gradient_beside_the_least_follows_its_table() {
    for (limit, micros, next) in [
        (100.0, 5_000, 136),
        (100.0, 6_250, 110),
        (100.0, 12_500, 57),
        (100.0, 50_000, 57),
        (100.0, 2_000, 214),
        (3.0, 50_000, 3),
    ] {
        let mut law = Gradient::new();
        assert_eq!(law.next(limit, &Sample::new(ms(5), 100)), limit);
        let sample = Sample::new(Duration::from_micros(micros), 100);
        assert_eq!(law.next(limit, &sample).max(3.0) as u64, next, "{micros}");
    }
}

/// Given 4 windows between two looks at the least, then the limit is low for two windows, and what the second of them shows
/// is the least from then on.
#[test]
fn the_least_is_measured_anew() {
    let mut law = Gradient::new().measure_every(4).measure_at(2).buffer(0.0);
    let first: Vec<_> = [5, 5, 10, 10, 10]
        .into_iter()
        .scan(100.0, |limit, millis| {
            *limit = law.next(*limit, &Sample::new(ms(millis), 200));
            Some(*limit as u64)
        })
        .collect();
    assert_eq!(first, [100, 110, 62, 36, 2]);
    // The calls in flight were slow; alone it takes 8 ms by now.
    assert_eq!(law.next(2.0, &Sample::new(ms(20), 2)), 2.0);
    let back = law.next(2.0, &Sample::new(ms(8), 2));
    assert_eq!(back as u64, 22);
    assert_eq!(law.next(back, &Sample::new(ms(8), 22)), back + back.sqrt());
    // Used by half at most, it does not grow; dropped for overload, it shrinks.
    assert_eq!(law.next(100.0, &Sample::new(ms(1), 49)), 100.0);
    assert_eq!(law.next(100.0, &Sample::new(ms(8), 100).dropped()) as u64, 57);
}

/// Given a queue that takes three windows to empty, then the window after those is measured, and what the queue took is
/// not the least.
#[test]
fn a_queue_is_not_taken_for_the_least() {
    let mut law = Gradient::new().measure_every(1).measure_at(3).buffer(0.0);
    assert_eq!(law.next(50.0, &Sample::new(ms(10), 50)), 50.0);
    assert_eq!(law.next(50.0, &Sample::new(ms(40), 50)), 3.0);
    for (millis, in_flight) in [(40, 50), (40, 30), (40, 4), (40, 3)] {
        assert_eq!(law.next(3.0, &Sample::new(ms(millis), in_flight)), 3.0, "{in_flight}");
    }
    let before = law.next(3.0, &Sample::new(ms(10), 3));
    assert_eq!(before as u64, 30);
    // At the latency that was measured it grows by its root, and goes down to measure again.
    assert_eq!(law.next(64.0, &Sample::new(ms(20), 64)), 3.0);
    assert_eq!(law.next(3.0, &Sample::new(ms(10), 3)), 3.0);
    assert_eq!(law.next(3.0, &Sample::new(ms(10), 3)), 32.0 + f64::sqrt(32.0));
}

/// The baseline is 1 s.
#[test]
fn the_trend_follows_its_table() {
    let after = |samples: &[(u64, u64)]| {
        let mut law = Trend::new();
        (0..10).for_each(|_| _ = law.next(20.0, &Sample::new(ms(1_000), 10)));
        follow(law, 20.0, 200.0, samples)
    };
    assert_eq!(after(&[(2_000, 10), (2_000, 10)]), [19, 18]);
    assert_eq!(after(&[(1_300, 10), (1_300, 10)]), [20, 20]);
    // Published with 5 in flight, of which no law here concludes that 20 are too few.
    assert_eq!(after(&[(1_000, 10), (500, 11)]), [21, 22]);
    assert_eq!(after(&[(1_000, 5), (500, 5)]), [20, 20]);
    let mut law = Trend::new();
    assert_eq!(law.next(100.0, &Sample::new(ms(1), 100).dropped()), 98.0);
}

fn gate(clock: &ManualClock, law: impl LimitLaw + 'static) -> Adaptive {
    let builder = Adaptive::builder(Semaphore::new(10)).law(law).bounds(2, 12);
    builder.window(Duration::ZERO, 1).on(clock).build().unwrap()
}

/// The second gradient law as published, step by step: the mean of ten samples, then an average over 600; 5 % less of it
/// where it is more than twice the latency; with each of its settings.
#[test]
fn the_second_gradient_follows_its_settings() {
    let script = [40, 40, 10, 10, 60, 20, 20, 30, 90, 5, 5, 10, 45, 80, 12];
    for (smoothing, tolerance, queue) in [(0.2, 1.5, 4), (1.0, 1.0, 10), (0.5, 3.0, 0), (0.01, 10.0, 1)] {
        let mut law = Gradient2::new().smoothing(smoothing).tolerance(tolerance).queue(queue);
        let (mut limit, mut wanted, mut average) = (100.0, 100.0, 0.0);
        for (at, millis) in script.into_iter().enumerate() {
            let latency = millis as f64 / 1_000.0;
            let weight = if at < 10 { 1.0 / (at as f64 + 1.0) } else { 2.0 / 601.0 };
            average += (latency - average) * weight;
            let gradient: f64 = tolerance * average / latency;
            let new = wanted * gradient.clamp(0.5, 1.0) + f64::from(queue);
            wanted += (new - wanted) * smoothing;
            if average > 2.0 * latency {
                average *= 0.95;
            }
            limit = law.next(limit, &Sample::new(Duration::from_millis(millis), 1_000));
            assert!(
                (limit - wanted).abs() < 1e-9 * wanted,
                "step {at}: {limit} for {wanted}"
            );
        }
    }
}

#[test]
fn the_limit_moves_between_floor_and_ceiling() {
    let clock = ManualClock::new();
    let gate = gate(&clock, Aimd::new());
    for _ in 0..100 {
        gate.try_admit(1).unwrap().finish(Outcome::Overload);
        assert!(gate.limit() >= 2);
    }
    assert_eq!((gate.limit(), gate.limiter().available_permits()), (2, 2));
    for _ in 0..100 {
        let held: Vec<_> = std::iter::from_fn(|| gate.try_admit(1).ok()).collect();
        held.into_iter().for_each(|permit| permit.finish(Outcome::Success));
        assert!(gate.limit() <= 12);
    }
    assert_eq!((gate.limit(), gate.limiter().in_use()), (12, 0));
}

#[test]
fn an_unused_limit_is_not_raised() {
    let clock = ManualClock::new();
    let gate = gate(&clock, Aimd::new());
    for _ in 0..100 {
        gate.try_admit(4).unwrap().finish(Outcome::Success);
    }
    assert_eq!(gate.limit(), 10);
    gate.try_admit(5).unwrap().finish(Outcome::Success);
    assert_eq!(gate.limit(), 11);
}

#[test]
fn a_window_has_its_length_and_its_least() {
    let clock = ManualClock::new();
    let builder = Adaptive::builder(Semaphore::new(10))
        .law(Aimd::new())
        .window(ms(100), 3);
    let gate = builder.on(&clock).build().unwrap();
    for _ in 0..2 {
        clock.advance(ms(60));
        gate.try_admit(1).unwrap().finish(Outcome::Overload);
        assert_eq!(gate.limit(), 10, "long enough, but of two");
    }
    gate.try_admit(1).unwrap().finish(Outcome::Success);
    assert_eq!(gate.limit(), 9);
    for _ in 0..50 {
        gate.try_admit(1).unwrap().finish(Outcome::Overload);
    }
    assert_eq!(gate.limit(), 9, "many enough, but at one instant");
    // Failures and permits that are dropped are no samples.
    clock.advance(ms(100));
    gate.try_admit(1).unwrap().finish(Outcome::Failure);
    drop(gate.try_admit(1).unwrap());
    gate.try_admit(1).unwrap().cancel();
    assert_eq!(gate.limit(), 9);
}

#[test]
fn a_percentile_of_the_window_counts() {
    let limit_at = |percentile| {
        let clock = ManualClock::new();
        let law = Aimd::new().timeout(ms(50));
        let builder = Adaptive::builder(Semaphore::new(10))
            .law(law)
            .window(Duration::ZERO, 10);
        let gate = builder.percentile(percentile).on(&clock).build().unwrap();
        for latency in 1..=10 {
            let held = gate.try_admit(10).unwrap();
            clock.advance(ms(latency * 9));
            held.finish(Outcome::Success);
        }
        gate.limit()
    };
    assert_eq!((limit_at(40.0), limit_at(90.0)), (11, 9));
}

#[test]
fn a_pinned_limit_stays() {
    let clock = ManualClock::new();
    let gate = gate(&clock, Aimd::new());
    gate.pin(7);
    gate.try_admit(1).unwrap().finish(Outcome::Overload);
    assert_eq!(gate.limit(), 7);
    gate.unpin();
    assert_eq!(gate.limit(), 9, "it has learned meanwhile");
    gate.pin(1_000);
    assert_eq!(gate.limit(), 12);
}

#[test]
fn headroom_holds_back_a_growing_law() {
    let clock = ManualClock::new();
    struct Double;
    impl LimitLaw for Double {
        fn next(&mut self, limit: f64, _: &Sample) -> f64 {
            2.0 * limit
        }
    }
    let builder = Adaptive::builder(Semaphore::new(20))
        .law(Double)
        .headroom(5.0, 1.0, 1.2);
    let gate = builder.window(Duration::ZERO, 1).on(&clock).build().unwrap();
    let in_flight = gate.try_admit(9).unwrap();
    for expected in [40, 40, 40] {
        gate.try_admit(1).unwrap().finish(Outcome::Success);
        assert_eq!(gate.limit(), expected);
    }
    drop(in_flight);
    gate.try_admit(1).unwrap().finish(Outcome::Success);
    assert_eq!(gate.limit(), 40, "to use little is no reason to shrink");
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let builder = || Adaptive::builder(Semaphore::new(1));
    for (builder, message) in [
        (
            builder().bounds(0, 5),
            "a floor of 0 and a ceiling of 5 were given, and 1 <= floor <= ceiling <= 2^32 is allowed",
        ),
        (
            builder().percentile(f64::NAN),
            "a percentile of NaN was given, and 0 to 100 is allowed",
        ),
        (
            builder().window(Duration::MAX, 1),
            "a window of 18446744073709551615.999999999s was given, and up to 365 days is allowed",
        ),
        (builder().keep(0), "0 samples were given, and 1 to 65536 are allowed"),
        (
            builder().headroom(1.0, 0.0, 2.0),
            "a headroom of factor 1, decay 0 and floor 2 was given, and factor >= floor >= 1 with decay >= 0 is allowed",
        ),
    ] {
        let error: AdaptiveError = builder.build().map(drop).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

/// A law that says anything at all.
struct Anything(Vec<f64>);

impl LimitLaw for Anything {
    fn next(&mut self, _: f64, _: &Sample) -> f64 {
        self.0.pop().unwrap_or(f64::NAN)
    }
}

fn law(which: usize, says: Vec<f64>) -> Box<dyn LimitLaw> {
    match which {
        0 => Box::new(Aimd::new()),
        1 => Box::new(Vegas::new()),
        2 => Box::new(Gradient2::new()),
        3 => Box::new(Gradient::new().measure_every(7)),
        4 => Box::new(Trend::new()),
        5 => Box::new(Cubic::new()),
        _ => Box::new(Anything(says)),
    }
}

proptest! {
    #![proptest_config(crate::cases(64))]

    /// Whatever the work meets, and whatever a law says, the limit is between floor and ceiling, and all permits are back
    /// in the end.
    #[test]
    fn no_limit_leaves_its_bounds(
        which in 0..7usize,
        says in prop::collection::vec(prop_oneof![Just(f64::NAN), Just(f64::INFINITY), -1e9..1e9f64], 200),
        floor in 1..20usize,
        room in 0..50usize,
        steps in prop::collection::vec((1..40u64, 0..5_000u64, 0..4u8), 1..200),
    ) {
        let clock = ManualClock::new();
        let ceiling = floor + room;
        let builder = Adaptive::builder(Semaphore::new(10)).law(law(which, says)).bounds(floor, ceiling);
        let gate = builder.window(ms(1), 2).on(&clock).build().unwrap();
        for (most, latency, outcome) in steps {
            let held: Vec<_> = (0..most).map_while(|_| gate.try_admit(1).ok()).collect();
            prop_assert!(held.len() >= floor.min(most as usize));
            clock.advance(ms(latency));
            let outcome = [Outcome::Success, Outcome::Overload, Outcome::Failure, Outcome::Ignored][usize::from(outcome)];
            held.into_iter().for_each(|permit| permit.finish(outcome));
            prop_assert!((floor..=ceiling).contains(&gate.limit()));
        }
        prop_assert_eq!(gate.limiter().in_use(), 0);
    }
}
