//! Partitions: classes that share one limit.

use proptest::prelude::*;
use tollgate::policy::{Partitions, PartitionsError};
use tollgate::{Limiter, LimiterExt, ManualClock, Policy};

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
fn settings_that_cannot_be_are_refused() {
    let errors: [(PartitionsError, &str); 4] = [
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
    ];
    for (error, message) in errors {
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn settings_on_the_edge() {
    assert!(Partitions::guaranteed(10, &[0.4, 0.6]).is_ok());
    assert!(Partitions::guaranteed(10, &[1.0]).is_ok());
    assert!(Partitions::guaranteed(10, &[0.4, 0.600001]).is_err());
    for (classes, is_allowed) in [(0, false), (1, true), (256, true), (257, false)] {
        assert_eq!(Partitions::lent(10, classes).is_ok(), is_allowed, "{classes}");
        assert_eq!(
            Partitions::levels(10, &vec![0.5; classes]).is_ok(),
            is_allowed,
            "{classes}"
        );
    }
    assert_eq!(
        Partitions::lent(10, usize::MAX).map(drop).unwrap_err(),
        Partitions::lent(10, 257).map(drop).unwrap_err()
    );
}

/// A class reports its part and its use of it; all together report the limit.
#[test]
fn classes_say_how_they_stand() {
    let shared = Partitions::guaranteed(10, &[0.3, 0.5]).unwrap();
    let held = shared.class(1).try_admit(4).unwrap();
    let in_use = [0, 1].map(|class| (shared.class(class).part(), shared.class(class).in_use()));
    assert_eq!(in_use, [(3, 0), (5, 4)]);
    let mut standings = Vec::new();
    for class in [0, 1] {
        shared
            .class(class)
            .visit_status(&mut |status| standings.push(format!("{:?}", status.state)));
    }
    assert!(standings[0].contains("limit: 3, in_use: 0"), "{standings:?}");
    assert!(standings[1].contains("limit: 5, in_use: 4"), "{standings:?}");
    let shown = format!("{shared:?}");
    assert!(
        shown.contains("limit: 10") && shown.contains("class: 1, in_use: 4, part: 5"),
        "{shown}"
    );
    drop(held);
    assert_eq!((shared.class(1).in_use(), shared.in_use()), (0, 0));
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
