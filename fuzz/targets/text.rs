//! What is read from text.

use std::time::Duration;
use tollgate::{Ask, LimiterExt, ManualClock, Quota, TokenBucket};
use tollgate_config::{Format, LegKind, LegSpec, PolicySetSpec, PolicySpec, Reload, parse};

/// What is read is written as it was meant; what is not is said to be wrong at a place within the text.
pub(crate) fn quota(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match text.parse::<Quota>() {
        Ok(quota) => {
            assert_eq!(quota.to_string().parse(), Ok(quota), "`{text}` is written as `{quota}`");
            let clock = ManualClock::new();
            let bucket = TokenBucket::new(quota).on(&clock);
            assert_eq!(bucket.available(), quota.burst_size(), "`{text}`");
            let _ = bucket.try_acquire(1);
            clock.advance(Duration::from_secs(1));
            assert!(bucket.available() <= quota.burst_size());
        }
        Err(tollgate::QuotaError::Text { column, .. }) => assert!((1..=text.chars().count() + 1).contains(&column)),
        Err(other) => assert!(!other.to_string().is_empty()),
    }
}

/// What is read can be built, asked, and put in force beside another; what is not is said to be wrong at a place within
/// the text.
pub(crate) fn policy_file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    for format in [Format::Toml, Format::Json] {
        if let Ok(spec) = parse::<PolicySetSpec>(text, format) {
            let set = spec.build(&ManualClock::new()).unwrap();
            set.apply(spec).unwrap();
        }
        match parse::<PolicySpec>(text, format) {
            Ok(spec) => {
                let clock = ManualClock::new();
                let policy = match spec.build(&clock) {
                    Ok(policy) => policy,
                    Err(error) => panic!("{error}\n{text}"),
                };
                let held = policy.try_admit(Ask::one()).ok();
                let _ = policy.explain(Ask::one());
                // Settings of the queue stay as the policy was built.
                let only = PolicySpec {
                    legs: vec![LegSpec::new("a", LegKind::Semaphore { limit: 1 })],
                    ..spec.clone()
                };
                for version in [only, spec] {
                    policy.apply(version).unwrap();
                }
                drop(held);
            }
            Err(error) => {
                let (line, column) = (error.line().unwrap(), error.column().unwrap());
                let lines: Vec<&str> = text.split('\n').collect();
                assert!((1..=lines.len()).contains(&line), "{error}\n{text}");
                let width = lines[line - 1].chars().count();
                assert!((1..=width + 1).contains(&column), "{error}\n{text}");
            }
        }
    }
}
