//! Quotas as text and as numbers, good and bad.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::{Quota, QuotaError};

#[test]
fn texts_are_read_as_they_are_meant() {
    let ms = Duration::from_millis;
    for (text, count, period, burst) in [
        ("100/s", 100, ms(1_000), 100),
        (" 5_000 / min burst 200 ", 5_000, ms(60_000), 200),
        ("10/100ms", 10, ms(100), 10),
        ("1/365d", 1, ms(365 * 86_400_000), 1),
        ("3/hour", 3, ms(3_600_000), 3),
        ("1000000000/s burst 1", 1_000_000_000, ms(1_000), 1),
    ] {
        let quota: Quota = text.parse().unwrap();
        assert_eq!(
            (quota.count(), quota.period(), quota.burst_size()),
            (count, period, burst),
            "{text}"
        );
    }
}

#[test]
fn the_extremes_and_the_intervals_have_texts() {
    let base = Quota::new(3, Duration::from_secs(20)).unwrap();
    for (text, quota) in [
        ("zero", Quota::zero()),
        (" zero  burst 5 ", Quota::zero().burst(5)),
        ("unlimited", Quota::unlimited()),
        ("3/20s by interval", base.by_interval()),
        ("3/20s burst 7 by interval", base.burst(7).by_interval()),
        ("3/20s burst 7 by  interval", base.by_interval().burst(7)),
    ] {
        assert_eq!(text.parse::<Quota>(), Ok(quota), "{text}");
        assert_eq!(quota.to_string().parse::<Quota>(), Ok(quota), "{quota}");
    }
    assert_eq!((Quota::zero().count(), Quota::zero().burst_size()), (0, 0));
    assert_eq!(
        (Quota::unlimited().count(), Quota::unlimited().burst_size()),
        (u64::MAX, u64::MAX)
    );
    assert!(base.by_interval().is_by_interval() && !base.is_by_interval());
    assert!(!Quota::zero().by_interval().is_by_interval() && !Quota::unlimited().by_interval().is_by_interval());
    for given in [0, 1, Quota::MAX_BURST, u64::MAX] {
        assert_eq!(Quota::unlimited().with_burst(given), Err(QuotaError::Burst { given }));
    }
    for given in [0, Quota::MAX_BURST + 1] {
        assert_eq!(Quota::zero().with_burst(given), Err(QuotaError::Burst { given }));
    }
}

#[test]
fn a_bad_text_is_refused_with_its_column() {
    for (text, column) in [
        ("", 1),
        ("s", 1),
        ("-1/s", 1),
        ("1.5/s", 2),
        ("99999999999999999999/s", 1),
        ("10", 3),
        ("10/", 4),
        ("10/parsec", 4),
        ("10/5", 5),
        ("10/99999999999999999d", 4),
        ("10/s bursts 5", 6),
        ("10/s burst", 11),
        ("10/s burst x", 12),
        ("10/s burst 5 more", 14),
        ("10/s by", 8),
        ("10/s by hand", 9),
        ("10/s by interval burst 5", 18),
        ("unlimited burst 5", 11),
        ("zero burst", 11),
        ("zero/s", 5),
        ("zeros", 1),
    ] {
        match text.parse::<Quota>() {
            Err(QuotaError::Text { column: at, given, .. }) => assert_eq!((at, &*given), (column, text)),
            other => panic!("{text:?}: {other:?}"),
        }
    }
}

/// Keeps out governor#203.
#[test]
fn numbers_out_of_range_are_refused_by_name() {
    let second = Duration::from_secs(1);
    let year = Duration::from_secs(365 * 86_400);
    assert!(Quota::new(1_000_000_000, second).is_ok());
    assert!(Quota::new(1, year).is_ok());
    for (count, period) in [(0, second), (1_000_000_001, second), (u64::MAX, year)] {
        assert_eq!(Quota::new(count, period), Err(QuotaError::Rate { count, period }));
    }
    for given in [Duration::ZERO, year + Duration::from_nanos(1), Duration::MAX] {
        assert_eq!(Quota::new(1, given), Err(QuotaError::Period { given }));
    }
    let quota = Quota::per_second(1);
    for given in [0, Quota::MAX_BURST + 1, u64::MAX] {
        assert_eq!(quota.with_burst(given), Err(QuotaError::Burst { given }));
    }
    assert!(
        quota.with_burst(Quota::MAX_BURST).is_err(),
        "it would not refill within 584 years"
    );
    assert!(Quota::per_second(1_000).with_burst(Quota::MAX_BURST).is_ok());
}

proptest! {
    #[test]
    fn a_quota_is_read_back_as_it_was_written(count in 1u64..1_000_000, seconds in 1u64..86_400, burst in 1u64..1_000_000) {
        let quota = Quota::new(count, Duration::from_secs(seconds)).unwrap().with_burst(burst).unwrap();
        prop_assert_eq!(quota.to_string().parse::<Quota>().unwrap(), quota);
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC*") {
        let _ = text.parse::<Quota>();
    }
}
