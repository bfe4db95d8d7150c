//! The kinds of legs of this crate, in a file and while it changes.

use std::time::Duration;
use tollgate::policy::file::{Format, Kinds};
use tollgate::policy::spec::{LegRule, LegSpec, LoadMetric, PolicySpec, When};
use tollgate::{Ask, LimiterExt, ManualClock, Outcome};
use tollgate_resilience::policy::{AdaptiveLaw, AdaptiveRateRule, AdaptiveRule, BreakerRule, kinds};

const ADAPTIVE: &str = r#"
[[leg]]
name = "in flight"
kind = "adaptive"
law = { kind = "aimd", backoff = 0.5, timeout = "2s" }
limit = 10
ceiling = 20
window = "0s"
samples = 1

[[leg]]
name = "batch"
kind = "semaphore"
limit = 0
when = { leg = "in flight", metric = "use", above = 0.5 }
"#;

/// Given an adaptive leg in a file, when its work reports an overload, then its limit falls, and its use is the held part of the
/// limit that it has learnt.
#[test]
fn an_adaptive_leg_learns_its_limit() {
    let clock = ManualClock::new();
    let spec = kinds().parse::<PolicySpec>(ADAPTIVE, Format::Toml).unwrap();
    let rule = spec.legs[0].rule.get::<AdaptiveRule>().unwrap();
    let aimd = tollgate_resilience::adaptive::Aimd::new()
        .backoff(0.5)
        .timeout(Duration::from_secs(2));
    assert_eq!(
        (&rule.law, rule.limit, rule.ceiling),
        (&AdaptiveLaw::Aimd(aimd), 10, 20)
    );
    let policy = spec.build(&clock).unwrap();
    let capacity = || policy.limiter().leg("in flight").unwrap().capacity;
    let held = policy.try_admit(4).unwrap();
    assert!(policy.try_admit(1).is_ok(), "4 of 10 are in use");
    policy.try_admit(1).unwrap().finish(Outcome::Overload);
    assert_eq!((capacity(), policy.limiter().in_use("in flight")), (Some(5), Some(4)));
    assert_eq!(policy.try_admit(1).unwrap_err().leg(), "batch", "4 of 5 are in use");
    policy.apply(spec).unwrap();
    assert_eq!(
        capacity(),
        Some(5),
        "a version that changes nothing keeps what was learnt"
    );
    drop(held);
    assert_eq!(policy.limiter().in_use("in flight"), Some(0));
}

#[test]
fn a_mistake_in_an_adaptive_leg_has_its_line_and_column() {
    for (from, to, line, column, words) in [
        (
            "\"aimd\"",
            "\"amd\"",
            5,
            16,
            "aimd, cubic, gradient, gradient2, trend, vegas",
        ),
        (
            "backoff = 0.5",
            "backoff = 0.1",
            5,
            34,
            "0.1 was given, and 0.5 to 0.99 is allowed",
        ),
        ("backoff", "smoothing", 5, 24, "key `smoothing` is unknown here"),
        (
            "limit = 10",
            "limit = 30",
            6,
            9,
            "30 was given, and 1 to 20, the floor and the ceiling",
        ),
        (
            "ceiling = 20",
            "floor = 2000",
            7,
            1,
            "a floor of 2000 and a ceiling of 1000",
        ),
    ] {
        let error = kinds()
            .parse::<PolicySpec>(&ADAPTIVE.replacen(from, to, 1), Format::Toml)
            .unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        if line != 7 {
            assert_eq!((error.line(), error.column()), (Some(line), Some(column)), "{error}");
        }
    }
}

const ADAPTIVE_RATE: &str = r#"
[[leg]]
name = "upstream"
kind = "adaptive-rate"
law = { kind = "cubic", backoff = 0.5, scale = 2 }
quota = "600/min burst 20"
floor = 60
ceiling = 1200
samples = 1

[[leg]]
name = "batch"
kind = "semaphore"
limit = 0
when = { leg = "upstream", metric = "use", above = 0.5 }
"#;

/// Given a rate in a file that finds itself, when its upstream refuses, then it falls to half, down to the floor; its burst stays,
/// its use is the part of the rate that it has found, and a version that changes nothing keeps that.
#[test]
fn an_adaptive_rate_in_a_file_finds_itself() {
    let clock = ManualClock::new();
    let mut spec = kinds().parse::<PolicySpec>(ADAPTIVE_RATE, Format::Toml).unwrap();
    let rule = spec.legs[0].rule.get::<AdaptiveRateRule>().unwrap();
    let cubic = tollgate_resilience::adaptive::Cubic::new().backoff(0.5).scale(2.0);
    assert_eq!(
        (&rule.law, rule.floor, rule.ceiling),
        (&AdaptiveLaw::Cubic(cubic), 60, 1_200)
    );
    let batch = spec.legs.remove(1);
    let policy = spec.build(&clock).unwrap();
    let found = || policy.limiter().leg("upstream").unwrap().per_second;
    assert_eq!(found(), Some(10.0));
    for per_second in [5.0, 2.5, 1.25, 1.0, 1.0] {
        policy.try_admit(1).unwrap().finish(Outcome::Overload);
        assert_eq!(found(), Some(per_second));
        clock.advance(Duration::from_secs(5));
    }
    assert_eq!(policy.limiter().leg("upstream").unwrap().capacity, Some(20));
    spec.legs.push(batch);
    policy.apply(spec).unwrap();
    assert_eq!(
        found(),
        Some(1.0),
        "another leg was added, and this one keeps what it has found"
    );
    // One in a second is all of the rate that it has found, and a tenth of that in the file.
    policy.try_admit(1).unwrap().finish(Outcome::Ignored);
    clock.advance(Duration::from_millis(500));
    assert_eq!(policy.try_admit(1).unwrap_err().leg(), "batch");
}

/// Given no refusals, when requests use the rate, then it rises to the ceiling and no further.
#[test]
fn an_adaptive_rate_in_a_file_rises_to_its_ceiling() {
    let clock = ManualClock::new();
    let policy = kinds()
        .parse::<PolicySpec>(ADAPTIVE_RATE, Format::Toml)
        .unwrap()
        .build(&clock)
        .unwrap();
    for _ in 0..400 {
        if let Ok(permit) = policy.limiter().try_admit(1) {
            permit.finish(Outcome::Success);
        }
        clock.advance(Duration::from_millis(50));
    }
    assert_eq!(policy.limiter().leg("upstream").unwrap().per_second, Some(20.0));
}

#[test]
fn a_mistake_in_an_adaptive_rate_has_its_line_and_column() {
    for (from, to, line, column, words) in [
        (
            "\"cubic\"",
            "\"qubic\"",
            5,
            16,
            "aimd, cubic, gradient, gradient2, trend, vegas",
        ),
        (
            "scale = 2",
            "scale = 0",
            5,
            48,
            "0 was given, and 0.000001 to 1000000 is allowed",
        ),
        ("scale", "timeout", 5, 40, "key `timeout` is unknown here"),
        ("ceiling = 1200\n", "", 2, 1, "`ceiling` is missing"),
        (
            "600/min",
            "30/min",
            6,
            9,
            "30 was given, and 60 to 1200, the floor and the ceiling",
        ),
        ("600/min burst 20", "unlimited", 6, 9, "the floor and the ceiling"),
        ("600/min", "600/ns", 6, 9, "600 per 1ns was given"),
        ("600/min", "600/us", 8, 11, "1200 in 1µs is above one per nanosecond"),
        (
            "floor = 60",
            "floor = 2000",
            7,
            9,
            "a floor of 2000 and a ceiling of 1200",
        ),
    ] {
        let error = kinds()
            .parse::<PolicySpec>(&ADAPTIVE_RATE.replacen(from, to, 1), Format::Toml)
            .unwrap_err();
        let place = (error.line(), error.column());
        assert_eq!(place, (Some(line), Some(column)), "{to}: {error}");
        assert!(error.to_string().contains(words), "{to}: {error}");
    }
}

#[test]
fn every_kind_can_be_written_and_built() {
    let legs = [
        "kind = 'breaker'\ntime_window = '1m'\nfailure_rate = 0.25\nslow_after = '2s'\nslow_rate = 1\nopen_for = '5s'\nprobes = 3\nminimum_calls = 5\nconsecutive_failures = 7",
        "kind = 'adaptive'\nlaw = { kind = 'vegas', smoothing = 0.5 }\nlimit = 5\nfloor = 2\nceiling = 40\nwindow = '500ms'",
        "kind = 'adaptive-rate'\nlaw = { kind = 'aimd', backoff = 0.8 }\nquota = '5/s'\nfloor = 2\nceiling = 40",
    ];
    let own = kinds();
    let standard: Vec<_> = Kinds::standard().names().collect();
    let own: Vec<_> = own.names().filter(|kind| !standard.contains(kind)).collect();
    assert_eq!(legs.len(), own.len());
    for (leg, kind) in legs.into_iter().zip(own) {
        let spec = kinds()
            .parse::<PolicySpec>(&format!("[[leg]]\nname = 'x'\n{leg}"), Format::Toml)
            .unwrap();
        assert_eq!(spec.legs[0].rule.kind(), kind);
        let policy = spec.build(&ManualClock::new()).unwrap();
        assert!(policy.try_admit(Ask::one()).is_ok(), "{kind}");
    }
}

#[test]
fn a_kind_that_was_not_added_is_refused_with_a_hint() {
    let text = "[[leg]]\nname = 'x'\nkind = 'adaptive'\n";
    let error = PolicySpec::parse(text, Format::Toml).unwrap_err();
    assert_eq!((error.line(), error.column()), (Some(3), Some(8)));
    for words in [
        "`adaptive` was given",
        "token-bucket",
        "`Kinds::with` adds the kinds of other crates",
    ] {
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_version_changes_the_numbers_of_a_leg() {
    let breaker = |probes| {
        let mut rule = BreakerRule::default();
        rule.probes = probes;
        rule
    };
    let adaptive = |limit| {
        let mut rule = AdaptiveRule::default();
        rule.limit = limit;
        rule
    };
    let rate = |ceiling| AdaptiveRateRule::new("10/s".parse().unwrap(), ceiling);
    let rows: [(LegRule, LegRule); 3] = [
        (breaker(10).into(), breaker(1).into()),
        (adaptive(20).into(), adaptive(9).into()),
        (rate(20).into(), rate(90).into()),
    ];
    for (from, to) in rows {
        let spec = |rule: &LegRule| PolicySpec::new([LegSpec::new("leg", rule.clone())]);
        let policy = spec(&from).build(&ManualClock::new()).unwrap();
        for rule in [&to, &from, &to] {
            policy.apply(spec(rule)).unwrap();
            assert_eq!(policy.limiter().leg("leg").unwrap().rule, *rule);
        }
    }
}

/// A cancel takes back exactly the metered count, for a breaker too.
#[test]
fn a_cancelled_call_of_a_breaker_is_no_load() {
    let clock = ManualClock::new();
    let spec = PolicySpec::new([
        LegSpec::new("circuit", BreakerRule::default()),
        LegSpec::new("throttle", LegRule::semaphore(0)).when(When::above("circuit", LoadMetric::Rate, 2.5)),
    ]);
    let policy = spec.build(&clock).unwrap();
    policy.try_admit(2).unwrap().forget();
    drop(policy.reserve(5).unwrap());
    assert!(policy.try_admit(1).is_ok(), "two calls in a second");
    assert!(policy.try_admit(1).is_err(), "three are above the mark");
}

#[test]
fn a_mistake_in_a_breaker_has_its_line_and_column() {
    for (numbers, line, column, words) in [
        ("failure_rate = 2.0", 4, 16, "failure rate"),
        ("failure_rate = 1.5", 4, 16, "1.5 was given"),
        ("slow_rate = 0.5", 1, 1, "`slow_after` is missing"),
        ("count_window = 4294967296", 4, 16, "a whole number of 1 to 65536"),
        (
            "count_window = 65537",
            4,
            16,
            "65537 was given, and a whole number of 1 to 65536",
        ),
        ("minimum_calls = 0", 4, 17, "a whole number of 1 to"),
        ("time_window = \"584y\"", 4, 15, "above zero to 365 days"),
        ("open_for = \"0s\"", 4, 12, "0ns was given"),
        ("slow_after = \"0s\"\nslow_rate = 0.5", 4, 14, "above zero to 365 days"),
        ("slow_after = \"1s\"\nslow_rate = 2", 5, 13, "2 was given"),
        ("probes = 1048577", 4, 10, "a whole number of 1 to 1048576"),
    ] {
        let text = format!("[[leg]]\nname = \"a\"\nkind = \"breaker\"\n{numbers}\n");
        let error = kinds().parse::<PolicySpec>(&text, Format::Toml).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!((error.line(), error.column()), (Some(line), Some(column)), "{error}");
    }
}

#[test]
fn a_number_of_an_adaptive_leg_is_refused_at_its_key() {
    for (numbers, line, column, words) in [
        ("kind = \"adaptive\"\nfloor = 2000", 4, 9, "1 <= floor <= ceiling"),
        (
            "kind = \"adaptive\"\nceiling = 4294967297",
            4,
            11,
            "a whole number of 1 to 4294967296",
        ),
        ("kind = \"adaptive\"\nwindow = \"584y\"", 4, 10, "up to 365 days"),
        (
            "kind = \"adaptive-rate\"\nquota = \"5/s\"\nceiling = 40\nwindow = \"584y\"",
            6,
            10,
            "up to 365 days",
        ),
    ] {
        let text = format!("[[leg]]\nname = \"a\"\n{numbers}\n");
        let error = kinds().parse::<PolicySpec>(&text, Format::Toml).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!((error.line(), error.column()), (Some(line), Some(column)), "{error}");
    }
}
