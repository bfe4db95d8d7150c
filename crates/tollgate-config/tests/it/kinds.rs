//! Kinds of legs that a program registers, in a file and while it changes.

use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tollgate::policy::conditional::LoadMetric;
use tollgate::{Ask, BoxLimiter, Clock, Cost, LimiterExt, ManualClock, Quota, Reason, Semaphore, TokenBucket};
use tollgate_config::{
    ConfigError, ConfigFile, Format, Kinds, LastGood, LegKind, LegSpec, PolicySetSpec, PolicySpec, Reload, When,
};

/// Gives its units away once.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    units: u64,
    #[serde(default)]
    currency: String,
}

fn budget(numbers: Budget, clock: &Clock) -> Result<BoxLimiter, ConfigError> {
    match numbers.units % 2 {
        0 => {
            let name = if numbers.currency.is_empty() {
                "EUR".into()
            } else {
                numbers.currency
            };
            let bucket = TokenBucket::new(Quota::zero().burst(numbers.units)).on(clock);
            Ok(bucket.named(name).boxed())
        }
        _ => Err(ConfigError::new(
            "units",
            "an odd number was given, and an even one is allowed",
        )),
    }
}

fn parse(text: &str) -> Result<PolicySpec, ConfigError> {
    Kinds::new().with("budget", budget).parse(text, Format::Toml)
}

fn text(rest: &str) -> String {
    format!(
        "[[leg]]\nname = \"month\"\nkind = \"budget\"\n{rest}\n[[leg]]\nname = \"in flight\"\nkind = \"semaphore\"\nlimit = 9\n"
    )
}

/// Given a file that names a registered kind, when it is built, then the leg admits, refuses, and is reported as any other.
#[test]
fn a_file_names_a_kind_that_a_program_registered() {
    let spec = parse(&text("units = 6\nper = \"coins\"")).unwrap();
    assert_eq!(spec.legs[0].kind.name(), "budget");
    let kinds = Kinds::new().with("budget", budget);
    let policy = spec.build_with(&ManualClock::new(), &kinds).unwrap();
    let coins = |n| Ask::one().cost(Cost::new("coins"), n);
    drop(policy.try_admit(coins(4)).unwrap());
    let refused = policy.try_admit(coins(3)).unwrap_err();
    assert_eq!((refused.leg(), refused.reason()), ("month", Reason::RateExceeded));
    let leg = policy.limiter().leg("month").unwrap();
    assert_eq!(
        (&*leg.kind, leg.available(), leg.capacity()),
        ("budget", Some(2), Some(6))
    );
}

#[test]
fn a_mistake_in_a_registered_kind_has_its_line_and_column() {
    let rows = [
        (
            text("units = 6\nunit = 6"),
            5,
            1,
            "key `unit` is unknown here; allowed: units, currency",
        ),
        (text("currency = \"CHF\""), 1, 1, "key `units` is missing"),
        (
            text("units = -2_000"),
            4,
            9,
            "-2000 was given, and a whole number of 0 to",
        ),
        (
            text("units = 2\ncurrency = 3"),
            5,
            12,
            "3 was given, and a text is allowed",
        ),
        (text("units = 3"), 4, 9, "an odd number was given"),
        (
            text("units = 2").replace("\"budget\"", "\"budge\""),
            3,
            8,
            "semaphore, partition, ",
        ),
        (
            text("units = 2").replace("\"budget\"", "\"budge\""),
            3,
            8,
            "budget is allowed",
        ),
    ];
    for (text, line, column, words) in rows {
        let error = parse(&text).unwrap_err();
        assert_eq!((error.line(), error.column()), (Some(line), Some(column)), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let unknown = tollgate_config::parse::<PolicySpec>(&text("units = 2"), Format::Toml).unwrap_err();
    assert!(unknown.to_string().contains("`budget` was given"), "{unknown}");
}

/// Given a leg of a registered kind that has spent something, when a version leaves it as it is, then it keeps its state; when a number
/// changes, then it starts fresh.
#[test]
fn a_version_keeps_the_state_of_a_registered_kind_unless_it_changes() {
    let built = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&built);
    let kinds = Kinds::new().with("budget", move |numbers: Budget, clock: &Clock| {
        count.fetch_add(1, Ordering::SeqCst);
        budget(numbers, clock)
    });
    let spec = |rest: &str| parse(&text(rest)).unwrap();
    let policy = spec("units = 6").build_with(&ManualClock::new(), &kinds).unwrap();
    let left = || policy.limiter().leg("month").unwrap().available();
    drop(policy.try_admit(5).unwrap());
    let mut other = spec("units = 6");
    other.max_queue = Some(3);
    policy.apply(other).unwrap();
    assert_eq!((left(), built.load(Ordering::SeqCst)), (Some(1), 1));
    policy.apply(spec("units = 8")).unwrap();
    assert_eq!(left(), Some(8));
}

/// Given a limiter that the program holds, when a file names it, then the leg shares its permits, and a version without it leaves it as
/// it is. It stands in one leg, and keeps the clock of the policy.
#[test]
fn a_file_names_a_limiter_that_the_program_holds() {
    let clock = ManualClock::new();
    let gpus = Arc::new(Semaphore::new(2));
    let held = Arc::clone(&gpus);
    let kinds = Kinds::new()
        .with("held", move |_: serde_json::Value, _: &Clock| {
            Ok::<_, ConfigError>(Arc::clone(&held).boxed())
        })
        .with("elsewhere", |_: serde_json::Value, _: &Clock| {
            let bucket = TokenBucket::new(Quota::per_second(1)).on(&ManualClock::new());
            Ok::<_, ConfigError>(bucket.boxed())
        });
    let leg = |name: &str, kind: &str| {
        let (kind, numbers) = (kind.into(), [("n".into(), name.into())].into_iter().collect());
        LegSpec::new(name, LegKind::Custom { kind, numbers })
    };
    let policy = PolicySpec::new([leg("gpus", "held")])
        .build_with(&clock, &kinds)
        .unwrap();
    clock.run(async {
        let permit = policy.admit(1).await.unwrap();
        let other = gpus.acquire().await.unwrap();
        let (waited, ()) = futures::join!(policy.admit(1), async { drop(other) });
        assert_eq!(policy.limiter().in_use("gpus"), Some(2));
        drop((waited.unwrap(), permit));
    });
    policy
        .apply(PolicySpec::new([LegSpec::new("x", LegKind::Semaphore { limit: 9 })]))
        .unwrap();
    assert!(gpus.try_acquire_many(2).is_ok());
    let twice = PolicySpec::new([leg("one", "held"), leg("two", "held")]);
    let error = twice.build_with(&clock, &kinds).unwrap_err();
    assert!(error.fault().contains("stands in two legs"), "{error}");
    let error = PolicySpec::new([leg("rate", "elsewhere")])
        .build_with(&clock, &kinds)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("leg[0].kind: its limiter decides by another clock"),
        "{error}"
    );
}

/// The use of a kind that shows no numbers cannot be asked for.
#[test]
fn the_use_of_a_leg_without_numbers_is_refused() {
    let mut spec = PolicySpec::new([
        LegSpec {
            when: Some(When::above("open", LoadMetric::Use, 0.5)),
            ..LegSpec::new("throttle", LegKind::Semaphore { limit: 0 })
        },
        LegSpec::new(
            "open",
            LegKind::TokenBucket {
                quota: Quota::unlimited(),
            },
        ),
    ]);
    let error = spec.check().unwrap_err();
    assert_eq!(error.key(), "metric");
    assert!(
        error.fault().contains("a token-bucket as `open` is in no use"),
        "{error}"
    );
    spec.legs[0].when = Some(When::above("open", LoadMetric::Rate, 0.5));
    assert!(spec.check().is_ok());
}

/// Given a kind of the program's own in a named policy and in a tier, then the last good version under a key of a store may name it too.
#[test]
fn registered_kinds_stand_in_a_file_of_a_service() {
    let kinds = Kinds::new().with("budget", budget);
    let text = "[[policy.global.leg]]\nname = 'a'\nkind = 'budget'\nunits = 2\n[keyed.t]\nmax_keys = 9\ndefault = 'x'\n\
                [[keyed.t.tier.x.leg]]\nname = 'a'\nkind = 'budget'\nunits = 4\n";
    assert!(tollgate_config::parse::<PolicySetSpec>(text, Format::Toml).is_err());
    let (spec, mut last_good) = LastGood::<PolicySetSpec>::first("service.toml", Ok(text.into()), &kinds).unwrap();
    let set = spec.build_with(&ManualClock::new(), &kinds).unwrap();
    assert!(set.policy("global").unwrap().try_admit(2).is_ok());
    assert!(set.keyed("t").unwrap().get("k").unwrap().try_admit(4).is_ok());
    let next = last_good
        .see(Ok(text.replace("units = 4", "units = 6").into()))
        .unwrap()
        .unwrap();
    assert_eq!(set.apply(next).unwrap(), 2);
    assert!(set.keyed("t").unwrap().get("k").unwrap().try_admit(6).is_ok());
}

/// `policy:3:8: key `kind`` was told for each of these.
#[cfg(feature = "resilience")]
#[test]
fn mistakes_of_breakers_and_adaptive_legs_have_their_place() {
    let error = |kind: &str, line: &str| {
        let text = format!("[[leg]]\nname = \"a\"\nkind = \"{kind}\"\n{line}\n");
        tollgate_config::parse::<PolicySpec>(&text, Format::Toml).unwrap_err()
    };
    let rows = [
        ("breaker", "count_window = 16777217", "1 to 65536"),
        ("breaker", "count_window = 4294967296", "1 to 65536"),
        ("breaker", "time_window = \"584y\"", "365 days"),
        ("breaker", "failure_rate = 1.5", "1.5 was given"),
        ("breaker", "open_for = \"0s\"", "0ns was given"),
        ("breaker", "slow_after = \"2s\"", "`slow_rate`, which is missing"),
        ("breaker", "probes = 0", "0 was given"),
        ("adaptive", "floor = 0", "0"),
        ("adaptive", "ceiling = 8589934592", "8589934592"),
        ("adaptive", "limit = 2000", "2000 was given, and 1 to 1000"),
        ("adaptive", "percentile = 101", "101"),
        (
            "adaptive",
            "law = \"aimed\"",
            "`aimed` was given, and one of aimd, cubic",
        ),
    ];
    for (kind, line, words) in rows {
        let error = error(kind, line);
        assert_eq!(error.line(), Some(4), "{error}");
        assert!(error.column() > Some(line.find('=').unwrap()), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let twice = error("breaker", "count_window = 3\ntime_window = \"1s\"");
    assert_eq!((twice.line(), twice.column()), (Some(5), Some(15)), "{twice}");
}
