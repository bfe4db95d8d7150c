//! Partitions: classes that share one limit.

use proptest::prelude::*;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use tollgate::policy::{Class, Partitions, PartitionsError};
use tollgate::{Limiter, LimiterExt, ManualClock, Permit, Policy, Quota, Reason, Refusal, TokenBucket};

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
    assert_eq!(
        Partitions::lent(10, 2).unwrap().class(1).part(),
        10,
        "a lent limit is the part of each"
    );
    let in_use = [0, 1].map(|class| (shared.class(class).part(), shared.class(class).in_use()));
    assert_eq!(in_use, [(3, 0), (5, 4)]);
    let mut standings = Vec::new();
    for class in [0, 1] {
        shared
            .class(class)
            .describe(&mut |leg| standings.push(format!("{:?}", leg.state)));
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

type Waiting = Pin<Box<dyn Future<Output = Result<Permit<Policy<Arc<Class>>>, Refusal>>>>;

/// A request of `units` that waits at a policy of its own.
fn waits(shared: &Partitions, class: usize, units: u64) -> Waiting {
    let policy = Policy::new(Arc::clone(shared.class(class)));
    let mut waiting: Waiting = Box::pin(async move { policy.admit_owned(units).await });
    assert!(poll(&mut waiting).is_none());
    waiting
}

fn poll(waiting: &mut Waiting) -> Option<Result<Permit<Policy<Arc<Class>>>, Refusal>> {
    match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        std::task::Poll::Ready(ended) => Some(ended),
        std::task::Poll::Pending => None,
    }
}

/// Given policies of two classes that may take all that is free, when permits come back one by one, then each goes to the policy that has
/// waited longest; a large request is not overtaken by small ones of the other class.
#[test]
fn a_returned_permit_goes_to_the_policy_that_has_waited_longest() {
    let shared = Partitions::lent(2, 2).unwrap();
    let mut held: Vec<_> = (0..2).map(|class| shared.class(class).try_admit(1).unwrap()).collect();
    let mut waiting = [waits(&shared, 1, 2), waits(&shared, 0, 1), waits(&shared, 1, 1)];
    drop(held.pop());
    assert!(
        waiting.iter_mut().all(|waiting| poll(waiting).is_none()),
        "two are wanted first"
    );
    assert!(shared.class(0).try_admit(1).is_err(), "a policy waits for it");
    drop(held.pop());
    let large = poll(&mut waiting[0]).unwrap().unwrap();
    assert!(waiting[1..].iter_mut().all(|waiting| poll(waiting).is_none()));
    drop(large);
    let [_, one, other] = &mut waiting;
    assert!(poll(one).is_some() && poll(other).is_some());
}

/// A class passes older waiters of others only by permits that these could not take.
#[test]
fn a_class_passes_others_within_its_part_or_by_a_higher_level() {
    let shared = Partitions::guaranteed(4, &[0.25, 0.25]).unwrap();
    let held: Vec<_> = (0..3).map(|_| shared.class(0).try_admit(1).unwrap()).collect();
    let mut older = waits(&shared, 0, 1);
    let own = shared.class(1).try_admit(1).unwrap();
    assert!(poll(&mut older).is_none());
    // Beyond its part the second class waits behind the first.
    let mut younger = waits(&shared, 1, 1);
    drop(held);
    assert!(poll(&mut older).is_some() && poll(&mut younger).is_some());
    drop(own);

    let shared = Partitions::levels(4, &[1.0, 0.5]).unwrap();
    let mut held: Vec<_> = (0..3).map(|_| shared.class(0).try_admit(1).unwrap()).collect();
    let mut low = waits(&shared, 1, 1);
    held.push(shared.class(0).try_admit(1).unwrap());
    let mut high = waits(&shared, 0, 1);
    drop(held.pop());
    assert!(poll(&mut low).is_none());
    let served = poll(&mut high).unwrap().unwrap();
    held.truncate(1);
    drop(served);
    assert!(poll(&mut low).is_some());
}

/// Given a head that waits for more than is free, when it leaves, then the next one is admitted, of whichever class.
#[test]
fn a_waiter_that_leaves_lets_the_next_in() {
    let shared = Partitions::lent(2, 2).unwrap();
    let _held = shared.class(0).try_admit(1).unwrap();
    let (first, mut second) = (waits(&shared, 0, 2), waits(&shared, 1, 1));
    drop(first);
    assert!(poll(&mut second).unwrap().is_ok());
}

/// Given an ask for more than its class could ever hold, then it is refused at once; and one that waits is refused as soon as a lower limit
/// or part does not suffice. A class that may hold nothing is paused, and its waiters wait.
#[test]
fn an_ask_above_the_limit_of_its_class_is_oversized() {
    let oversized = |ended: Option<Result<Permit<_>, Refusal>>| {
        let refused = ended.unwrap().map(drop).unwrap_err();
        assert_eq!((refused.reason(), refused.leg()), (Reason::Oversized, "partition"));
    };
    let shared = Partitions::guaranteed(10, &[0.3, 0.5]).unwrap();
    let policy = Policy::new(Arc::clone(shared.class(0)));
    let mut large: Waiting = Box::pin(async move { policy.admit_owned(6).await });
    oversized(poll(&mut large));
    let refused = shared.class(1).try_admit(8).map(drop).unwrap_err();
    assert_eq!(refused.reason(), Reason::Oversized);

    let held = shared.class(0).try_admit(5).unwrap();
    let mut waiting = waits(&shared, 0, 5);
    shared.set_limit(8);
    oversized(poll(&mut waiting));
    let mut waiting = waits(&shared, 0, 3);
    shared.set_parts(&[0.0, 1.0]).unwrap();
    assert!(poll(&mut waiting).is_none(), "it is paused");
    drop(held);
    assert!(poll(&mut waiting).is_none());
    shared.set_parts(&[0.5, 0.5]).unwrap();
    assert!(poll(&mut waiting).unwrap().is_ok());
}

/// Given a policy of a class and a rate, when its permit is there before its token, then others of the class do not wait for the rate.
#[test]
fn a_head_that_waits_for_another_leg_does_not_hold_up_the_class() {
    let (clock, shared) = (ManualClock::new(), Partitions::lent(1, 2).unwrap());
    let rate = TokenBucket::new(Quota::per_second(1).burst(1)).on(&clock);
    rate.try_acquire(1).unwrap();
    let both = Policy::builder()
        .limit(Arc::clone(shared.class(0)))
        .limit(rate)
        .on(&clock)
        .build()
        .unwrap();
    let alone = Policy::builder()
        .limit(Arc::clone(shared.class(1)))
        .on(&clock)
        .build()
        .unwrap();
    let held = shared.class(1).try_admit(1).unwrap();
    let at = |millis| Duration::from_millis(millis);
    clock.run(async {
        let slow = async {
            drop(both.admit(1).await.unwrap());
            assert_eq!(clock.elapsed(), at(1_000));
        };
        let quick = async {
            drop(held);
            for _ in 0..3 {
                drop(alone.admit(1).await.unwrap());
            }
            assert_eq!(clock.elapsed(), at(0));
        };
        futures::join!(slow, quick);
    });
}

/// Requests by number, with their classes and units: those that hold permits, and those that wait, by arrival.
#[derive(Default)]
struct Line {
    rule: u8,
    limit: u64,
    parts: [u64; 3],
    held: Vec<(usize, usize, u64)>,
    waiting: Vec<(usize, usize, u64)>,
}

impl Line {
    fn held(&self, class: usize) -> u64 {
        self.held.iter().filter(|held| held.1 == class).map(|held| held.2).sum()
    }

    /// How many of `class` may be held while the others hold what they do, or nothing.
    fn room(&self, class: usize, used: impl Fn(usize) -> u64) -> u64 {
        match self.rule {
            0 => {
                let others = (0..3).filter(|&other| other != class);
                let kept: u64 = others.map(|other| self.parts[other].max(used(other))).sum();
                self.limit.saturating_sub(kept + used(class))
            }
            1 => self.limit.saturating_sub((0..3).map(used).sum()),
            _ => self.parts[class].saturating_sub((0..3).map(used).sum()),
        }
    }

    fn most(&self, class: usize) -> u64 {
        self.room(class, |_| 0)
    }

    fn admits(&self, class: usize, n: u64, before: usize) -> bool {
        let passes = |other: usize| match self.rule {
            0 => class != other && self.held(class) + n <= self.parts[class],
            1 => false,
            _ => self.parts[class] > self.parts[other],
        };
        let mut older = self.waiting[..before].iter();
        n <= self.room(class, |class| self.held(class))
            && older.all(|&(_, other, units)| units > self.most(other) || passes(other))
    }

    /// Refuses those that never fit, and admits those that do.
    fn serve(&mut self) {
        let most = [0, 1, 2].map(|class| self.most(class));
        self.waiting
            .retain(|&(_, class, n)| n <= most[class] || most[class] == 0);
        while let Some(next) =
            (0..self.waiting.len()).find(|&at| self.admits(self.waiting[at].1, self.waiting[at].2, at))
        {
            let admitted = self.waiting.remove(next);
            self.held.push(admitted);
        }
    }
}

proptest! {
    #![proptest_config(crate::cases(256))]

    /// Given policies that wait in any classes, whatever is taken, given back, cancelled and changed, then after each step exactly those hold
    /// permits that have them in a queue that serves the oldest waiter first, unless that cannot be admitted yet.
    #[test]
    fn waiters_are_admitted_in_the_order_of_their_arrival(
        rule in 0..3u8,
        steps in prop::collection::vec((0..3usize, 1..5u64, 0..12u8), 1..60),
    ) {
        let parts = [0.2, 0.5, 0.2];
        let shared = match rule {
            0 => Partitions::guaranteed(10, &parts),
            1 => Partitions::lent(10, parts.len()),
            _ => Partitions::levels(10, &parts),
        }
        .unwrap();
        let mut expected = Line { rule, limit: 10, parts: [2, 5, 2], ..Line::default() };
        let mut waiting: Vec<(usize, Waiting)> = Vec::new();
        let mut held: Vec<(usize, Permit<_>)> = Vec::new();
        for (number, (class, n, step)) in steps.into_iter().enumerate() {
            match step {
                0..=5 => {
                    let policy = Policy::new(Arc::clone(shared.class(class)));
                    waiting.push((number, Box::pin(async move { policy.admit_owned(n).await })));
                    expected.waiting.push((number, class, n));
                }
                6..=8 if !held.is_empty() => {
                    let (number, permit) = held.swap_remove(n as usize % held.len());
                    expected.held.retain(|&(held, ..)| held != number);
                    drop(permit);
                }
                9 if !waiting.is_empty() => {
                    let (number, future) = waiting.swap_remove(n as usize % waiting.len());
                    expected.waiting.retain(|&(waits, ..)| waits != number);
                    drop(future);
                }
                10 => {
                    expected.limit = [0, 5, 10, 20][class];
                    let tenths = [[2, 5, 2], [5, 1, 0], [0, 3, 4]][n as usize % 3];
                    expected.parts = tenths.map(|part: u64| part * expected.limit / 10);
                    shared.set_limit(0);
                    // Lent parts are the whole limit.
                    if rule != 1 {
                        shared.set_parts(&tenths.map(|part| part as f64 / 10.0)).unwrap();
                    }
                    shared.set_limit(expected.limit as usize);
                }
                _ => {
                    let admitted = shared.class(class).try_admit(n);
                    prop_assert_eq!(admitted.is_ok(), expected.admits(class, n, expected.waiting.len()));
                    if let Ok(permit) = admitted {
                        permit.cancel();
                    }
                }
            }
            expected.serve();
            let polled = std::mem::take(&mut waiting);
            for (number, mut future) in polled {
                match poll(&mut future) {
                    None => waiting.push((number, future)),
                    Some(Ok(permit)) => held.push((number, permit)),
                    Some(Err(refused)) => prop_assert_eq!(refused.reason(), Reason::Oversized),
                }
            }
            let sorted = |mut numbers: Vec<usize>| {
                numbers.sort_unstable();
                numbers
            };
            prop_assert_eq!(
                sorted(held.iter().map(|(number, _)| *number).collect()),
                sorted(expected.held.iter().map(|(number, ..)| *number).collect())
            );
            prop_assert_eq!(
                sorted(waiting.iter().map(|(number, _)| *number).collect()),
                sorted(expected.waiting.iter().map(|(number, ..)| *number).collect())
            );
        }
    }

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
