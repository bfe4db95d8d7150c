//! The circuit breaker against published tables, in virtual time. E is an error, S a success, I an ignored outcome.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use tollgate::{LimiterExt, ManualClock, Outcome, Reason};
use tollgate_resilience::BreakerState::{Closed, Disabled, ForcedOpen, HalfOpen, MetricsOnly, Open};
use tollgate_resilience::{BreakerBuilder, BreakerError, BreakerMetrics, CircuitBreaker, OpenTime};

const SECOND: Duration = Duration::from_secs(1);

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A time window of 20 s, at least 5 calls, half of them failed, half of them longer than 4 s; 4 probes, open for 5 s.
fn table(clock: &ManualClock) -> BreakerBuilder {
    CircuitBreaker::builder()
        .time_window(20 * SECOND)
        .minimum_calls(5)
        .failure_rate(0.5)
        .slow_calls(4 * SECOND, 0.5)
        .probes(4)
        .open_for(OpenTime::fixed(5 * SECOND))
        .on(clock)
}

fn breaker(clock: &ManualClock) -> CircuitBreaker {
    table(clock).build().unwrap()
}

fn outcome(letter: char) -> Outcome {
    match letter {
        'S' => Outcome::Success,
        'E' => Outcome::Failure,
        'O' => Outcome::Overload,
        'I' => Outcome::Ignored,
        _ => unreachable!("no outcome is called {letter}"),
    }
}

/// One call after the other, each at once.
#[track_caller]
fn calls(breaker: &CircuitBreaker, letters: &str) {
    for letter in letters.chars().filter(|letter| !letter.is_whitespace()) {
        breaker.try_admit(1).unwrap().finish(outcome(letter));
    }
}

/// One call that takes so long.
#[track_caller]
fn call(breaker: &CircuitBreaker, clock: &ManualClock, letter: char, took: Duration) {
    let permit = breaker.try_admit(1).unwrap();
    clock.advance(took);
    permit.finish(outcome(letter));
}

fn refused(breaker: &CircuitBreaker) -> bool {
    breaker.try_admit(1).is_err()
}

/// Calls, failed, slow.
fn seen(metrics: &BreakerMetrics) -> (u64, u64, u64) {
    (metrics.calls, metrics.failed, metrics.slow)
}

/// Opened, and its time over.
fn half_open(clock: &ManualClock, breaker: &CircuitBreaker) {
    breaker.trip(5 * SECOND);
    clock.advance(6 * SECOND);
}

#[test]
fn opens_when_enough_calls_have_failed() {
    let clock = ManualClock::new();
    let breaker = breaker(&clock);
    calls(&breaker, "E E E S");
    assert_eq!(breaker.state(), Closed);
    assert_eq!(breaker.metrics().failure_rate(), None);
    calls(&breaker, "S");
    let metrics = breaker.metrics();
    assert_eq!(metrics.state, Open);
    assert_eq!((seen(&metrics), metrics.failure_rate()), ((5, 3, 0), Some(0.6)));
    let refusal = breaker.try_admit(1).map(drop).unwrap_err();
    assert_eq!(
        (refusal.reason(), refusal.leg(), refusal.retry_after()),
        (Reason::CircuitOpen, "breaker", Some(5 * SECOND))
    );
    assert_eq!(breaker.metrics().refused, 1);
}

#[test]
fn opens_by_calls_that_are_seconds_apart() {
    let clock = ManualClock::new();
    let breaker = breaker(&clock);
    for letter in ["S", "S", "S", "E", "E"] {
        calls(&breaker, letter);
        clock.advance(SECOND);
    }
    assert_eq!(breaker.state(), Closed);
    calls(&breaker, "E");
    assert_eq!((breaker.state(), seen(&breaker.metrics())), (Open, (6, 3, 0)));
}

#[test]
fn opens_when_enough_calls_were_slow() {
    let clock = ManualClock::new();
    let breaker = breaker(&clock);
    for (letter, ms) in [('E', 5_000), ('S', 5_000), ('E', 100), ('S', 100), ('S', 5_000)] {
        assert_eq!(breaker.state(), Closed);
        call(&breaker, &clock, letter, millis(ms));
    }
    let metrics = breaker.metrics();
    assert_eq!((metrics.state, metrics.slow_rate()), (Open, Some(0.6)));
    // Four seconds are not longer than four seconds.
    let breaker = self::breaker(&clock);
    for _ in 0..5 {
        call(&breaker, &clock, 'S', 4 * SECOND);
    }
    assert_eq!((breaker.state(), seen(&breaker.metrics()).2), (Closed, 0));
}

#[test]
fn lets_probes_through_when_its_time_is_over() {
    let clock = ManualClock::new();
    let breaker = breaker(&clock);
    breaker.trip(5 * SECOND);
    assert!(refused(&breaker));
    clock.advance(3 * SECOND);
    assert!(refused(&breaker));
    assert_eq!(
        (breaker.metrics().refused, breaker.retry_after()),
        (2, Some(2 * SECOND))
    );
    // Exactly at its time, not a nanosecond before.
    clock.advance(2 * SECOND - Duration::from_nanos(1));
    assert!(refused(&breaker));
    clock.advance(Duration::from_nanos(1));
    let _probe = breaker.try_admit(1).unwrap();
    assert_eq!((breaker.state(), seen(&breaker.metrics())), (HalfOpen, (0, 0, 0)));
}

#[test]
fn open_times_grow() {
    let clock = ManualClock::new();
    let times = OpenTime::exponential(5 * SECOND, 1.5, 10 * SECOND);
    let breaker = table(&clock).open_for(times).build().unwrap();
    calls(&breaker, "EEEEE");
    clock.advance(3 * SECOND);
    assert!(refused(&breaker));
    clock.advance(3 * SECOND);
    calls(&breaker, "EEEE");
    assert_eq!(breaker.retry_after(), Some(millis(7_500)));
    clock.advance(6 * SECOND);
    assert!(refused(&breaker));
    clock.advance(5 * SECOND);
    // The third time would be longer than the longest.
    calls(&breaker, "EEEE");
    assert_eq!(breaker.retry_after(), Some(10 * SECOND));
    clock.advance(10 * SECOND);
    calls(&breaker, "SSSS");
    // Once it has closed, the first time is the first again.
    calls(&breaker, "EEEEE");
    assert_eq!(breaker.retry_after(), Some(5 * SECOND));
}

#[test]
fn a_probe_that_is_given_back_is_free_again() {
    let clock = ManualClock::new();
    let breaker = breaker(&clock);
    half_open(&clock, &breaker);
    let mut probes: Vec<_> = (0..4).map(|_| breaker.try_admit(1).unwrap()).collect();
    assert!(refused(&breaker));
    assert!(refused(&breaker));
    drop(probes.pop());
    let _again = breaker.try_admit(1).unwrap();
    assert!(refused(&breaker));
}

#[test]
fn probes_are_judged_by_rate() {
    let slow = [5_000, 5_000, 5_000, 1_000];
    let fast = [0; 4];
    for (letters, times, state, counts) in [
        ("EESE", fast, Open, (4, 3, 0)),
        ("ESSS", fast, Closed, (0, 0, 0)),
        ("OOSS", fast, Open, (4, 2, 0)),
        ("SSSS", slow, Open, (4, 0, 3)),
    ] {
        let clock = ManualClock::new();
        let breaker = breaker(&clock);
        half_open(&clock, &breaker);
        for (letter, ms) in letters.chars().zip(times) {
            call(&breaker, &clock, letter, millis(ms));
        }
        assert_eq!(
            (breaker.state(), seen(&breaker.metrics())),
            (state, counts),
            "{letters}"
        );
    }
}

#[test]
fn ignored_probes_decide_nothing() {
    let clock = ManualClock::new();
    let breaker = breaker(&clock);
    half_open(&clock, &breaker);
    calls(&breaker, "SSSI");
    assert_eq!((breaker.state(), breaker.metrics().calls), (HalfOpen, 3));
    calls(&breaker, "E");
    assert_eq!(breaker.state(), Closed);
    half_open(&clock, &breaker);
    calls(&breaker, "IIII");
    assert_eq!((breaker.state(), breaker.metrics().calls), (HalfOpen, 0));
    calls(&breaker, "SSSS");
    assert_eq!(breaker.state(), Closed);
}

#[test]
fn states_set_by_hand_stay() {
    let clock = ManualClock::new();
    let breaker = breaker(&clock);
    breaker.force_open();
    assert!(refused(&breaker));
    clock.advance(6 * SECOND);
    assert!(refused(&breaker));
    assert_eq!((breaker.state(), breaker.metrics().refused), (ForcedOpen, 2));
    assert_eq!(breaker.try_admit(1).map(drop).unwrap_err().retry_after(), None);
    breaker.disable();
    calls(&breaker, "EEEEEEEE");
    assert_eq!((breaker.state(), breaker.metrics().calls), (Disabled, 0));
    breaker.metrics_only();
    calls(&breaker, "EEEEEEEE");
    assert_eq!(
        (breaker.state(), breaker.metrics().failure_rate()),
        (MetricsOnly, Some(1.0))
    );
    breaker.reset();
    assert_eq!((breaker.state(), breaker.metrics().calls), (Closed, 0));
}

#[test]
fn a_count_window_forgets_the_oldest() {
    let clock = ManualClock::new();
    let builder = CircuitBreaker::builder().count_window(10).minimum_calls(10);
    let breaker = builder.on(&clock).build().unwrap();
    breaker.metrics_only();
    calls(&breaker, "SSEE");
    assert_eq!(breaker.metrics().failure_rate(), None);
    calls(&breaker, "EEEESSSS");
    assert_eq!(breaker.metrics().failure_rate(), Some(0.6));
    calls(&breaker, "SSS");
    assert_eq!(breaker.metrics().failure_rate(), Some(0.3));
}

#[test]
fn a_time_window_forgets_the_oldest() {
    let clock = ManualClock::new();
    let breaker = table(&clock).time_window(5 * SECOND).build().unwrap();
    breaker.metrics_only();
    let rows = [
        (0, 'E', (1, 1)),
        (100, 'S', (2, 1)),
        (100, 'S', (3, 1)),
        (1_000, 'S', (4, 1)),
        (1_000, 'S', (5, 1)),
        (1_000, 'E', (6, 2)),
        (1_000, 'S', (7, 2)),
        (1_000, 'S', (5, 1)),
        (1_000, 'S', (5, 1)),
        (5_000, 'S', (1, 0)),
    ];
    for (row, (ms, letter, expected)) in rows.into_iter().enumerate() {
        clock.advance(millis(ms));
        calls(&breaker, &letter.to_string());
        let (calls, failed, _) = seen(&breaker.metrics());
        assert_eq!((calls, failed), expected, "row {row}");
    }

    let clock = ManualClock::new();
    let breaker = table(&clock)
        .time_window(5 * SECOND)
        .slow_calls(millis(500), 0.9)
        .build()
        .unwrap();
    calls(&breaker, "E");
    let slow = breaker.try_admit(1).unwrap();
    clock.advance(millis(100));
    calls(&breaker, "S");
    clock.advance(millis(700));
    slow.finish(Outcome::Failure);
    clock.advance(4 * SECOND);
    assert_eq!(seen(&breaker.metrics()), (3, 2, 1));
    clock.advance(SECOND);
    assert_eq!(seen(&breaker.metrics()), (0, 0, 0));
}

/// Two of three, three in a row, three of four; and probes judged two of three, three of four, three of three.
#[test]
fn thresholds_of_n_of_m() {
    let clock = ManualClock::new();
    let of = |window: usize, rate: f64| {
        let builder = CircuitBreaker::builder().count_window(window).failure_rate(rate);
        builder.probes(window as u64).on(&clock)
    };
    let two_of_three = of(3, 2.0 / 3.0).build().unwrap();
    calls(&two_of_three, "ES");
    assert_eq!(two_of_three.state(), Closed);
    calls(&two_of_three, "E");
    assert_eq!(two_of_three.state(), Open);

    let in_a_row = of(100, 1.0).any_failure_rate().consecutive_failures(3).build().unwrap();
    calls(&in_a_row, "ESEE");
    assert_eq!(in_a_row.state(), Closed);
    calls(&in_a_row, "E");
    assert_eq!(in_a_row.state(), Open);

    let three_of_four = of(4, 0.75).build().unwrap();
    calls(&three_of_four, &"SE".repeat(50));
    assert_eq!(three_of_four.state(), Closed);

    for (probes, rate, letters) in [(3, 2.0 / 3.0, "ESE"), (4, 0.5, "SESE"), (3, 1.0 / 3.0, "SSE")] {
        let breaker = of(probes, rate).build().unwrap();
        half_open(&clock, &breaker);
        calls(&breaker, letters);
        assert_eq!(breaker.state(), Open, "{letters}");
    }
}

#[test]
fn results_of_an_older_state_decide_nothing() {
    let clock = ManualClock::new();
    let breaker = breaker(&clock);
    let old: Vec<_> = (0..8).map(|_| breaker.try_admit(1).unwrap()).collect();
    half_open(&clock, &breaker);
    let probe = breaker.try_admit(1).unwrap();
    let mut old = old.into_iter();
    old.by_ref().take(4).for_each(|permit| permit.finish(Outcome::Failure));
    assert_eq!((breaker.state(), breaker.metrics().calls), (HalfOpen, 0));
    // A probe of a trial that is over frees none of the next.
    half_open(&clock, &breaker);
    let probes: Vec<_> = (0..4).map(|_| breaker.try_admit(1).unwrap()).collect();
    drop(probe);
    assert!(refused(&breaker));
    probes.into_iter().for_each(|probe| probe.finish(Outcome::Success));
    old.for_each(|permit| permit.finish(Outcome::Failure));
    assert_eq!((breaker.state(), breaker.metrics().calls), (Closed, 0));
}

#[test]
fn open_times_are_jittered_computed_and_held_off() {
    let clock = ManualClock::new();
    let jittered = |seed| {
        let time = OpenTime::fixed(10 * SECOND).jitter(0.2);
        let breaker = table(&clock).open_for(time).seed(seed).build().unwrap();
        calls(&breaker, "EEEEE");
        breaker.retry_after().unwrap()
    };
    let times: Vec<_> = (0..64).map(jittered).collect();
    assert!(times.iter().all(|time| (8 * SECOND..=12 * SECOND).contains(time)));
    assert!(times.iter().min().unwrap() < &millis(8_500) && times.iter().max().unwrap() > &millis(11_500));
    assert_eq!(jittered(7), times[7], "the same seed, the same time");

    let computed = OpenTime::computed(|trip| SECOND * trip.attempt * trip.failed as u32);
    let breaker = table(&clock).open_for(computed).build().unwrap();
    calls(&breaker, "EEESS");
    assert_eq!(breaker.retry_after(), Some(3 * SECOND));
    clock.advance(3 * SECOND);
    calls(&breaker, "EEEE");
    assert_eq!(breaker.retry_after(), Some(8 * SECOND));

    // An upstream that says when to come back is believed, before the circuit opens and after.
    let breaker = table(&clock).build().unwrap();
    breaker.hold_off(20 * SECOND);
    calls(&breaker, "EEEEE");
    assert_eq!(breaker.retry_after(), Some(20 * SECOND));
    breaker.hold_off(10 * SECOND);
    assert_eq!(breaker.retry_after(), Some(20 * SECOND));
    breaker.hold_off(60 * SECOND);
    assert_eq!(breaker.retry_after(), Some(60 * SECOND));
}

#[test]
fn a_classifier_decides_the_meaning_of_an_outcome() {
    let clock = ManualClock::new();
    let classify = |outcome, took: Duration| match outcome {
        Outcome::Overload => Outcome::Ignored,
        Outcome::Success if took > SECOND => Outcome::Failure,
        outcome => outcome,
    };
    let breaker = table(&clock).classifier(classify).build().unwrap();
    calls(&breaker, "OOOOOOOO");
    assert_eq!(breaker.metrics().calls, 0);
    for _ in 0..5 {
        call(&breaker, &clock, 'S', 2 * SECOND);
    }
    assert_eq!((breaker.state(), seen(&breaker.metrics())), (Open, (5, 5, 0)));
}

#[test]
fn each_change_of_state_is_reported() {
    let clock = ManualClock::new();
    let events = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&events);
    let tell = move |event: tollgate_resilience::BreakerEvent| told.lock().unwrap().push(event);
    let breaker = table(&clock).on_event(tell).build().unwrap();
    calls(&breaker, "EEEES");
    clock.advance(5 * SECOND);
    calls(&breaker, "EESS");
    clock.advance(5 * SECOND);
    calls(&breaker, "SSSE");
    breaker.force_open();
    breaker.reset();
    let told: Vec<_> = events
        .lock()
        .unwrap()
        .iter()
        .map(|event| {
            (
                event.period,
                event.from,
                event.to,
                event.calls,
                event.failed,
                event.open_for,
            )
        })
        .collect();
    let open_for = Some(5 * SECOND);
    assert_eq!(
        told,
        [
            (1, Closed, Open, 5, 4, open_for),
            (2, Open, HalfOpen, 0, 0, None),
            (3, HalfOpen, Open, 4, 2, open_for),
            (4, Open, HalfOpen, 0, 0, None),
            (5, HalfOpen, Closed, 4, 1, None),
            (6, Closed, ForcedOpen, 0, 0, None),
            (7, ForcedOpen, Closed, 0, 0, None),
        ]
    );
}

#[test]
fn several_calls_in_one_ask_count_as_many() {
    let clock = ManualClock::new();
    let breaker = breaker(&clock);
    breaker.try_admit(3).unwrap().finish(Outcome::Success);
    breaker.try_admit(3).unwrap().finish(Outcome::Failure);
    assert_eq!((breaker.state(), seen(&breaker.metrics())), (Open, (6, 3, 0)));
    clock.advance(5 * SECOND);
    breaker.try_admit(0).unwrap().finish(Outcome::Failure);
    breaker.try_admit(1).unwrap().finish(Outcome::Success);
    let one = breaker.try_admit(1).unwrap();
    assert!(breaker.try_admit(3).is_err(), "two probes are left");
    drop(one);
    // Three results are to come: an ask of five is all of them.
    let five = breaker.try_admit(5).unwrap();
    assert!(breaker.try_admit(1).is_err());
    drop(five);
    breaker.try_admit(5).unwrap().finish(Outcome::Success);
    assert_eq!(breaker.state(), Closed);
    breaker.try_admit(u64::MAX).unwrap().finish(Outcome::Success);
    assert_eq!(breaker.state(), Closed);
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let builder = CircuitBreaker::builder;
    for (builder, message) in [
        (
            builder().failure_rate(1.01),
            "failure rate: 1.01 was given, and above 0 (a millionth at least) to 1 is allowed",
        ),
        (
            builder().failure_rate(f64::NAN),
            "failure rate: NaN was given, and above 0 (a millionth at least) to 1 is allowed",
        ),
        (
            builder().slow_calls(SECOND, 0.0),
            "slow call rate: 0 was given, and above 0 (a millionth at least) to 1 is allowed",
        ),
        (
            builder().slow_calls(Duration::ZERO, 0.5),
            "slow calls: 0ns was given, and above zero to 365 days is allowed",
        ),
        (
            builder().count_window(65_537),
            "count window: 65537 was given, and 1 to 65536 is allowed",
        ),
        (
            builder().time_window(Duration::MAX),
            "time window: 18446744073709551615.999999999s was given, and above zero to 365 days is allowed",
        ),
        (builder().probes(0), "probes: 0 was given, and 1 to 1048576 is allowed"),
        (
            builder().open_for(OpenTime::exponential(SECOND, 0.5, SECOND)),
            "open time: a factor of 0.5 was given, and 1 to 100 is allowed",
        ),
        (
            builder().open_for(OpenTime::fixed(SECOND).jitter(-1.0)),
            "open time: a jitter of -1 was given, and 0 to 1 is allowed",
        ),
    ] {
        let error: BreakerError = builder.build().unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    assert!(builder().on(&ManualClock::new()).build().is_ok());
}
