//! Partitions, the throttler and the retry budget.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::shed::{Partitions, RetryBudget, ShedError, Throttler};
use tollgate::{LimiterExt, ManualClock, Outcome, Policy, Reason};

const SECOND: Duration = Duration::from_secs(1);

/// How many one class can take.
fn room(shared: &Partitions, class: usize) -> usize {
    let held: Vec<_> = std::iter::from_fn(|| shared.class(class).try_admit(1).ok()).collect();
    held.len()
}

#[test]
fn a_guaranteed_part_is_kept() {
    let shared = Partitions::guaranteed(10, &[0.3, 0.7]).unwrap();
    assert_eq!((shared.class(0).part(), shared.class(1).part()), (3, 7));
    assert_eq!((room(&shared, 0), room(&shared, 1)), (3, 7));
    let batch = shared.class(0).try_admit(3).unwrap();
    let live = shared.class(1).try_admit(7).unwrap();
    assert_eq!((room(&shared, 0), room(&shared, 1)), (0, 0));
    // The limit changes, and the parts with it; held permits stay held.
    shared.set_limit(20);
    assert_eq!((shared.in_use(), shared.class(0).part()), (10, 6));
    assert_eq!((room(&shared, 0), room(&shared, 1)), (3, 7));
    shared.set_limit(5);
    assert_eq!((shared.in_use(), room(&shared, 0)), (10, 0));
    drop((batch, live));
    assert_eq!((room(&shared, 0), room(&shared, 1)), (2, 4));
}

#[test]
fn the_unreserved_part_goes_to_any_partition() {
    let shared = Partitions::guaranteed(10, &[0.3, 0.5]).unwrap();
    assert_eq!((room(&shared, 0), room(&shared, 1)), (5, 7));
    let _borrowed = shared.class(0).try_admit(5).unwrap();
    assert_eq!(room(&shared, 1), 5);
}

#[test]
fn a_lent_part_is_waited_for() {
    let shared = Partitions::lent(10, 2).unwrap();
    let batch: Vec<_> = (0..10).map(|_| shared.class(0).try_admit(1).unwrap()).collect();
    assert_eq!((room(&shared, 0), room(&shared, 1)), (0, 0));
    let clock = ManualClock::new();
    let live = Policy::builder()
        .on(&clock)
        .limit(std::sync::Arc::clone(shared.class(1)))
        .build()
        .unwrap();
    clock.run(async {
        let wait = live.admit(2);
        let give_back = async { drop(batch) };
        let (permit, ()) = futures::join!(wait, give_back);
        drop(permit.unwrap());
    });
    assert_eq!(shared.in_use(), 0);
}

#[test]
fn levels_refuse_the_least_important_first() {
    let shared = Partitions::levels(10, &[1.0, 0.7, 0.2]).unwrap();
    let mut held = Vec::new();
    let mut admitted = [0; 3];
    for _ in 0..12 {
        for class in [2, 1, 0] {
            if let Ok(permit) = shared.class(class).try_admit(1) {
                admitted[class] += 1;
                held.push(permit);
            }
        }
    }
    assert_eq!(admitted, [6, 3, 1]);
}

/// Given held permits, when the parts change, then those stay held, the next are admitted by the new parts, and parts that cannot be
/// change nothing.
#[test]
fn parts_change_while_permits_are_held() {
    let shared = Partitions::guaranteed(10, &[0.3, 0.5]).unwrap();
    let held = shared.class(0).try_admit(5).unwrap();
    assert_eq!(room(&shared, 0), 0);
    shared.set_parts(&[0.6, 0.3]).unwrap();
    assert_eq!((shared.class(0).part(), room(&shared, 0), room(&shared, 1)), (6, 2, 4));
    for parts in [&[0.9, 0.2][..], &[0.1], &[-0.1, 0.0]] {
        assert!(shared.set_parts(parts).is_err());
    }
    assert_eq!((shared.class(0).part(), shared.class(1).part()), (6, 3));
    shared.set_parts(&[0.0, 1.0]).unwrap();
    assert_eq!((room(&shared, 0), room(&shared, 1)), (0, 5));
    drop(held);
    assert_eq!((room(&shared, 0), room(&shared, 1)), (0, 10));
}

#[test]
fn a_throttler_refuses_requests_that_the_service_would_refuse() {
    let clock = ManualClock::new();
    let throttler = Throttler::new(0.5, 0.9, 120 * SECOND).unwrap().on(&clock).seed(1);
    // The resource takes one in four: no more than about twice that are sent.
    let (mut sent, mut asked) = (0u32, 0u32);
    for second in 0..1_000u32 {
        clock.advance(SECOND);
        for request in 0..20 {
            asked += u32::from(second >= 200);
            if let Ok(permit) = throttler.try_admit(1) {
                sent += u32::from(second >= 200);
                let taken = request % 4 == 0;
                permit.finish(if taken { Outcome::Success } else { Outcome::Overload });
            }
        }
    }
    // Sent x with x / 4 accepted and asked 1: x = 1 - (1 - x / 2), so it goes down to the least that always goes.
    assert!(sent * 10 >= asked && sent * 5 < asked, "{sent} of {asked}");
    // Once the resource takes everything, nothing is refused soon after.
    for _ in 0..600 {
        clock.advance(SECOND);
        for _ in 0..20 {
            let _ = throttler.try_admit(1).map(|permit| permit.finish(Outcome::Success));
        }
    }
    assert_eq!(throttler.rate(), 0.0);
    assert_eq!(
        throttler.try_admit(1).map(drop).map_err(|refusal| refusal.reason()),
        Ok(())
    );
}

#[test]
fn cancelled_and_ignored_requests_do_not_count() {
    let clock = ManualClock::new();
    let throttler = Throttler::new(0.5, 0.9, 120 * SECOND).unwrap().on(&clock);
    for _ in 0..1_000 {
        drop(throttler.reserve(1).unwrap());
        drop(throttler.try_admit(1).unwrap());
    }
    assert_eq!(throttler.rate(), 0.0);
    throttler.try_admit(1).unwrap().finish(Outcome::Overload);
    assert_eq!(throttler.rate(), 0.5);
}

#[test]
fn retries_are_a_part_of_the_requests() {
    let budget = RetryBudget::new(0.1, 10).unwrap();
    let mut retries = 0;
    for _ in 0..1_000 {
        budget.deposit();
        // Everything fails, and everything is tried again while it may be.
        retries += std::iter::from_fn(|| budget.try_admit(1).ok()).count();
    }
    // The first deposit found the reserve full.
    assert_eq!(retries, 10 + 99);
    // A retry that is not made after all is given back, and no more than is kept.
    budget.deposit();
    (0..9).for_each(|_| budget.deposit());
    drop(budget.reserve(1).unwrap());
    assert_eq!(budget.available(), 1);
    let _ = budget.try_admit(u64::MAX).unwrap_err();
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let errors: [(ShedError, &str); 7] = [
        (
            Partitions::lent(1, 2).unwrap().set_parts(&[0.5]).unwrap_err(),
            "1 parts were given, and there are 2 classes",
        ),
        (
            Partitions::guaranteed(1, &[]).unwrap_err(),
            "0 classes were given, and 1 to 256 are allowed",
        ),
        (
            Partitions::guaranteed(1, &[0.75, 0.5]).unwrap_err(),
            "parts of 1.25 in all were given, and up to 1 is allowed",
        ),
        (
            Partitions::levels(1, &[1.0, f64::NAN]).unwrap_err(),
            "class 1: a part of NaN was given, and 0 to 1 is allowed",
        ),
        (
            Throttler::new(0.0, 0.5, SECOND).unwrap_err(),
            "accept rate: 0 was given, and 0.01 to 1 is allowed",
        ),
        (
            Throttler::new(0.5, 0.5, Duration::ZERO).unwrap_err(),
            "a window of 0ns was given, and above zero to 365 days is allowed",
        ),
        (
            RetryBudget::new(-0.1, 1).unwrap_err(),
            "ratio: -0.1 was given, and 0 to 1000 is allowed",
        ),
    ];
    for (error, message) in errors {
        assert_eq!(error.to_string(), message);
    }
}

proptest! {
    #![proptest_config(crate::cases(256))]

    /// Whatever is taken, given back and resized: what is admitted never brings the sum above the limit, and a class
    /// within its guaranteed part is never refused while the limit stands.
    #[test]
    fn the_sum_is_never_above_the_limit(
        rule in 0..3u8,
        limit in 0..40usize,
        steps in prop::collection::vec((0..3usize, 0..6u64, 0..8u8), 1..200),
    ) {
        let parts = [0.2, 0.3, 0.4];
        let shared = match rule {
            0 => Partitions::guaranteed(limit, &parts),
            1 => Partitions::lent(limit, parts.len()),
            _ => Partitions::levels(limit, &parts),
        }
        .unwrap();
        let mut held: Vec<(usize, u64, _)> = Vec::new();
        let mut resized = false;
        for (class, n, step) in steps {
            let of_class: u64 = held.iter().filter(|held| held.0 == class).map(|held| held.1).sum();
            match step {
                0..=4 => match shared.class(class).try_admit(n) {
                    Ok(permit) => {
                        held.push((class, n, permit));
                        prop_assert!(shared.in_use() <= shared.limit());
                    }
                    Err(_) => {
                        let within = of_class + n <= shared.class(class).part() as u64;
                        prop_assert!(!(rule == 0 && within && !resized), "refused within its part");
                    }
                },
                5 | 6 if !held.is_empty() => drop(held.swap_remove(n as usize % held.len())),
                7 => {
                    match class {
                        0 => shared.set_parts(&[0.3, 0.1 * n as f64, 0.2]).unwrap(),
                        _ => shared.set_limit(5 * n as usize),
                    }
                    resized = true;
                }
                _ => {}
            }
            let sum: u64 = held.iter().map(|held| held.1).sum();
            prop_assert_eq!(shared.in_use() as u64, sum);
        }
        drop(held);
        prop_assert_eq!(shared.in_use(), 0);
    }
}

/// No deposit fills a reserve that is too small.
#[test]
fn a_request_for_more_than_the_reserve_is_refused_for_good() {
    let budget = RetryBudget::new(1.0, 2).unwrap();
    let waits = |n| {
        let refused = budget.try_admit(n).unwrap_err();
        (refused.reason(), refused.reason().is_permanent())
    };
    assert_eq!(waits(3), (Reason::Oversized, true));
    assert_eq!(waits(u64::MAX), (Reason::Oversized, true));
    budget.try_admit(1).unwrap().forget();
    assert_eq!(waits(2), (Reason::Saturated, false));
}
