//! Bookings that are given up: nobody's instant moves, no span has too many by the instants at which they start, and what
//! is left is what those who are kept would have left alone, each in its own instant.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::{Ask, Booking, Cost, Inherit, LeakyBucket, Limiter, LimiterExt, ManualClock, Quota, TokenBucket};

const SECOND: Duration = Duration::from_secs(1);
/// One token takes so many nanoseconds.
const NANOS: i64 = 100;

trait Books: Limiter + Sized {
    fn reserve_later(&self, n: u64) -> Option<Booking<'_, Self>>;
    fn take_now(&self, n: u64) -> bool;
    /// What is there, less what is owed; both rounded.
    fn standing(&self) -> (u64, u64);
}

macro_rules! books {
    ($ty:ty) => {
        impl Books for $ty {
            fn reserve_later(&self, n: u64) -> Option<Booking<'_, Self>> {
                self.book(n).ok()
            }
            fn take_now(&self, n: u64) -> bool {
                self.try_acquire(n).is_ok()
            }
            fn standing(&self) -> (u64, u64) {
                (self.available(), self.debt())
            }
        }
    };
}
books!(TokenBucket);
books!(LeakyBucket);

/// 1 a second.
fn bucket(clock: &ManualClock, burst: u64) -> TokenBucket {
    TokenBucket::new(Quota::per_second(1).burst(burst)).on(clock)
}

fn waits(bucket: &TokenBucket, amounts: &[u64]) -> Vec<u64> {
    let book = |&n: &u64| bucket.book(n).unwrap();
    let wait = |booked: Booking<'_, _>| {
        let wait = booked.wait().as_secs();
        booked.commit().forget();
        wait
    };
    amounts.iter().map(book).map(wait).collect()
}

/// Given 10 of 10 now, 10 in ten seconds, 10 in twenty, when the second is given up, then the third starts with a full
/// bucket as it is: the next is not booked beside it, but behind.
#[test]
fn nobody_is_booked_beside_one_who_takes_a_full_burst() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    let (first, second, third) = (bucket.book(10), bucket.book(10).unwrap(), bucket.book(10).unwrap());
    assert_eq!((second.wait(), third.wait()), (SECOND * 10, SECOND * 20));
    drop(second);
    assert_eq!((bucket.debt(), waits(&bucket, &[10])), (20, vec![30]));
    drop((first, third));
}

/// Given 4 in four seconds and 3 in seven, when the 4 are given up, then all of them come back, since 7 are no more than
/// the burst; when another 4 before the 3 are, then 3 of them.
#[test]
fn as_many_come_back_as_the_burst_leaves_beside_those_who_keep_their_instants() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    bucket.try_acquire(10).unwrap();
    let (first, second, third) = (
        bucket.book(4).unwrap(),
        bucket.book(4).unwrap(),
        bucket.book(3).unwrap(),
    );
    assert_eq!((second.wait(), third.wait()), (SECOND * 8, SECOND * 11));
    drop(first);
    assert_eq!(bucket.debt(), 7);
    drop(second);
    assert_eq!(bucket.debt(), 4, "7 beside the third, and not 8");
    assert_eq!(bucket.book(7).unwrap().wait(), SECOND * 11);
    // As soon as the one in the way is given up, the rest comes back.
    drop(third);
    assert_eq!(bucket.debt(), 0);
}

/// What waits to come back until the one in its way is given up is gone when that has begun.
#[test]
fn what_would_have_overflowed_before_a_start_does_not_come_back() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    bucket.try_acquire(10).unwrap();
    let (first, second, last) = (
        bucket.book(5).unwrap(),
        bucket.book(8).unwrap(),
        bucket.book(1).unwrap(),
    );
    drop(first);
    assert_eq!(bucket.debt(), 12, "2 came back");
    clock.advance(SECOND * 13);
    assert_eq!((bucket.debt(), bucket.available()), (0, 1));
    drop(second);
    assert_eq!(
        bucket.available(),
        8,
        "7 of 8: the bucket is full when the last one starts"
    );
    drop(last);
    assert_eq!(bucket.available(), 10);
}

/// Whoever has booked nothing, in its turn, is in nobody's way.
#[test]
fn a_booking_of_nothing_holds_nothing_back() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 5);
    bucket.try_acquire(5).unwrap();
    let many: Vec<_> = (0..3).map(|_| bucket.book(4).unwrap()).collect();
    assert_eq!(bucket.book(0).unwrap().wait(), SECOND * 12);
    let nothing = bucket.book(0).unwrap();
    drop(many);
    assert_eq!((bucket.debt(), nothing.wait()), (0, SECOND * 12));
    let leaky = LeakyBucket::new(Quota::per_second(1).burst(20))
        .slack(4)
        .unwrap()
        .on(&clock);
    leaky.try_acquire(5).unwrap();
    let many: Vec<_> = (0..3).map(|_| leaky.book(4).unwrap()).collect();
    let nothing = leaky.book(0).unwrap();
    drop(many);
    assert_eq!((leaky.debt(), nothing.wait()), (0, SECOND * 12));
}

/// Given up in any order at one instant, all is as if nobody had booked.
#[test]
fn all_that_are_given_up_leave_nothing() {
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 0, 1, 3], [1, 2, 0, 3]] {
        let mut booked: Vec<_> = [10, 9, 10, 3].map(|n| bucket.book(n).ok()).into_iter().collect();
        for index in order {
            booked[index] = None;
        }
        assert_eq!((bucket.available(), bucket.debt()), (10, 0), "{order:?}");
    }
}

/// What was overcharged flows back up to the burst, also of a bucket that will be full when somebody who has booked starts.
#[test]
fn a_settlement_fills_no_bucket_that_somebody_has_booked() {
    const TOKENS: Cost = Cost::new("tokens");
    let clock = ManualClock::new();
    let bucket = bucket(&clock, 10);
    let gate = (&bucket).per(TOKENS);
    let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 10)).unwrap();
    let booked = bucket.book(8).unwrap();
    permit.settle(TOKENS, 0).unwrap();
    assert_eq!(
        (bucket.debt(), waits(&bucket, &[2, 1])),
        (6, vec![8, 9]),
        "2 beside the 8"
    );
    drop(booked);
}

/// A quota that changes moves nobody's instant, and what is given up before others that were booked under the old one does
/// not come back; what lies behind them does.
#[test]
fn after_a_change_nothing_comes_back_before_those_who_keep_their_instants() {
    for rule in [Inherit::AsIs, Inherit::Additive] {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, 10);
        bucket.try_acquire(10).unwrap();
        let (first, second, third) = (
            bucket.book(1).unwrap(),
            bucket.book(1).unwrap(),
            bucket.book(1).unwrap(),
        );
        bucket.set_quota(Quota::per_second(2).burst(10), rule);
        let fourth = bucket.book(1).unwrap();
        drop(first);
        assert_eq!(bucket.debt(), 4, "{rule:?}");
        drop(fourth);
        assert_eq!(bucket.debt(), 3, "{rule:?}");
        drop((third, second));
        assert_eq!(bucket.debt(), 0, "{rule:?}: nobody is in the way any more");
    }
}

/// Given bookings, when the axis is started anew before they start, which it is every 4,398 seconds at that rate, then they
/// are in the way as before.
#[test]
fn promises_outlast_an_axis() {
    const UNIT: u64 = 100_000_000_000;
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(1_000_000_000).burst(8 * UNIT)).on(&clock);
    clock.advance(SECOND * 4_390);
    bucket.try_acquire(8 * UNIT).unwrap();
    let (first, second) = (bucket.book(UNIT).unwrap(), bucket.book(UNIT).unwrap());
    let third = bucket.book(7 * UNIT).unwrap();
    clock.advance(SECOND * 10);
    assert_eq!(bucket.debt(), 9 * UNIT - UNIT / 10);
    drop(first);
    assert_eq!(bucket.debt(), 8 * UNIT - UNIT / 10);
    drop(second);
    assert_eq!(
        bucket.debt(),
        8 * UNIT - UNIT / 10,
        "beside 7 of 8 there is room for one"
    );
    // Whoever books on the new axis stands behind them.
    let fourth = bucket.book(UNIT).unwrap();
    assert_eq!(bucket.debt(), 9 * UNIT - UNIT / 10);
    drop(fourth);
    assert_eq!(bucket.debt(), 8 * UNIT - UNIT / 10);
    drop(third);
    assert_eq!((bucket.debt(), bucket.available()), (0, UNIT / 10));
}

/// Given more bookings than are told apart, in which those given up are drawn at random, then no span has too many, and
/// when all are given up, no more is there than a burst.
#[test]
fn of_many_bookings_no_span_has_too_many() {
    for burst in [5, 40] {
        let clock = ManualClock::new();
        let bucket = bucket(&clock, burst);
        let leaky = LeakyBucket::new(Quota::per_second(1).burst(4_000))
            .slack(burst - 1)
            .unwrap()
            .on(&clock);
        many(&bucket, &clock, burst);
        many(&leaky, &clock, burst);
    }
}

fn many<L: Books>(limiter: &L, clock: &ManualClock, burst: u64) {
    let mut random = 88_172_645_463_325_252u64;
    // xorshift64 (Marsaglia, 2003).
    let mut below = |n: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % n as u64) as usize
    };
    let (mut held, mut kept, mut most, mut now) = (Vec::new(), Vec::new(), 0, 0);
    for step in 0..6_000 {
        let n = 1 + below(5);
        if let Some(booked) = limiter.reserve_later(n as u64) {
            let start = now + booked.wait().as_secs() as i64;
            held.push((booked, start, n as i64));
        }
        let ahead = held
            .iter()
            .map(|&(_, start, _)| start)
            .chain(kept.iter().map(|&(start, _)| start));
        most = most.max(ahead.filter(|&start| start > now).count());
        if step % 4 == 1 && !held.is_empty() {
            let (booked, start, n) = held.swap_remove(below(held.len()));
            if below(3) == 0 {
                booked.commit().forget();
                kept.push((start, n));
            }
        }
        if step % 4 == 0 {
            clock.advance(SECOND);
            now += 1;
        }
    }
    assert!(most > 260, "{most}");
    for (booked, start, n) in held {
        booked.commit().forget();
        kept.push((start, n));
    }
    kept.sort_unstable();
    // What was taken, less what has come, before each.
    let (mut taken, mut least) = (0, i64::MAX);
    for (start, n) in kept {
        least = least.min(taken - start);
        taken += n;
        assert!(taken - start - least <= burst as i64, "{taken} at {start}");
    }
    clock.advance(SECOND * 10_000);
    assert_eq!(limiter.standing(), (burst, 0));
}

/// A strict spacing has no room beside anybody: a place that is given up between two others stays empty.
#[test]
fn a_leaky_bucket_without_slack_leaves_a_hole() {
    let clock = ManualClock::new();
    let bucket = LeakyBucket::new(Quota::per_second(1).burst(10)).on(&clock);
    let mut booked: Vec<_> = (0..4).map(|_| bucket.book(1).ok()).collect();
    booked[1] = None;
    assert_eq!(bucket.book(1).unwrap().wait(), SECOND * 4);
    booked[3] = None;
    assert_eq!(
        bucket.book(1).unwrap().wait(),
        SECOND * 3,
        "the hole is still before the third"
    );
    booked[2] = None;
    assert_eq!(bucket.book(1).unwrap().wait(), SECOND, "nobody is behind it any more");
    // What would not flow out before others start is not settled back either.
    let slack = LeakyBucket::new(Quota::per_second(1).burst(10))
        .slack(9)
        .unwrap()
        .on(&clock);
    const TOKENS: Cost = Cost::new("tokens");
    let gate = (&slack).per(TOKENS);
    let mut permit = gate.try_admit(Ask::one().cost(TOKENS, 10)).unwrap();
    let booked = slack.book(8).unwrap();
    permit.settle(TOKENS, 0).unwrap();
    assert_eq!((slack.debt(), booked.wait()), (6, SECOND * 8));
}

#[derive(Clone, Copy, Debug)]
enum Plan {
    Advance(i64),
    Take(u64),
    Book(u64),
    Cancel(usize),
    Keep(usize),
}

fn plan() -> impl Strategy<Value = Plan> {
    prop_oneof![
        3 => (0i64..400).prop_map(Plan::Advance),
        2 => (1u64..7).prop_map(Plan::Take),
        5 => (1u64..9).prop_map(Plan::Book),
        4 => (0usize..9).prop_map(Plan::Cancel),
        1 => (0usize..9).prop_map(Plan::Keep),
    ]
}

/// An admission as a stretch of the axis, in nanoseconds of refill: from `top - units` to `top`.
#[derive(Clone, Copy, Debug)]
struct Entry {
    made: i64,
    start: i64,
    units: i64,
    top: i64,
    /// What was given up and has not come back yet.
    withheld: i64,
}

/// A bucket as a list of all that it has ever admitted.
#[derive(Debug)]
struct Model {
    full: i64,
    by: bool,
    now: i64,
    position: i64,
    entries: Vec<Entry>,
}

impl Model {
    fn came(&self, at: i64) -> i64 {
        if self.by { at / NANOS * NANOS } else { at }
    }

    fn floor(&self) -> i64 {
        self.came(self.now) - self.full
    }

    fn level(&self) -> i64 {
        self.came(self.now) - self.position.max(self.floor())
    }

    fn admit(&mut self, n: u64, start: i64) {
        let (units, made) = (n as i64 * NANOS, self.now);
        self.position = self.position.max(self.floor()) + units;
        let top = self.position;
        self.entries.push(Entry {
            made,
            start,
            units,
            top,
            withheld: 0,
        });
    }

    /// By how much the bucket would be less than full before an entry starts.
    fn room(&self, entry: &Entry) -> i64 {
        let full = self.full.max(entry.units);
        (entry.top - entry.units - (self.came(entry.start) - full)).max(0)
    }

    fn ahead(&self, entry: &Entry) -> bool {
        entry.start > self.now && entry.units > 0
    }

    fn cancel(&mut self, index: usize) {
        let freed = self.ahead(&self.entries[index]);
        self.entries[index].withheld = std::mem::take(&mut self.entries[index].units);
        for other in 0..self.entries.len() {
            if freed || other == index {
                self.let_back(other);
            }
        }
    }

    fn let_back(&mut self, index: usize) {
        let entry = self.entries[index];
        let most = entry.withheld.min(entry.top - self.floor()).max(0);
        let later = self.entries[index + 1..].iter().filter(|later| self.ahead(later));
        let back = later.map(|later| self.room(later)).min().unwrap_or(most).min(most);
        self.entries[index].withheld = most - back;
        self.entries[index..].iter_mut().for_each(|later| later.top -= back);
        self.position -= back;
    }

    fn pass(&mut self) {
        if !self.entries.iter().any(|entry| self.ahead(entry)) {
            self.entries.iter_mut().for_each(|entry| entry.withheld = 0);
        }
    }

    /// What those who were not given up would have left alone, each of whom takes from a bucket that is not more than full
    /// when it starts.
    fn alone(&self) -> i64 {
        let kept = self.entries.iter().filter(|entry| entry.units > 0);
        let position = kept.fold(i64::MIN / 2, |position, entry| {
            let full = self.full.max(entry.units);
            position
                .max(self.came(entry.made) - self.full)
                .max(self.came(entry.start) - full)
                + entry.units
        });
        self.came(self.now) - position.max(self.floor())
    }

    /// By how much the worst span has more than the burst, or one admission's own weight, and what comes in it.
    fn excess(&self) -> i64 {
        let mut kept: Vec<_> = self.entries.iter().filter(|entry| entry.units > 0).collect();
        kept.sort_by_key(|entry| entry.start);
        let most = kept.iter().map(|entry| entry.units).max().unwrap_or(0).max(self.full);
        let mut worst = 0;
        for (index, first) in kept.iter().enumerate() {
            let mut sum = 0;
            for last in &kept[index..] {
                sum += last.units;
                worst = worst.max(sum - most - self.came(last.start) + self.came(first.start));
            }
        }
        worst
    }
}

/// Runs the plans on a bucket beside its model.
fn run<L: Books>(limiter: &L, clock: &ManualClock, full: u64, by: bool, plans: Vec<Plan>) -> Result<(), TestCaseError> {
    let full = full as i64 * NANOS;
    let mut model = Model {
        full,
        by,
        now: 0,
        position: -full,
        entries: Vec::new(),
    };
    let (mut held, mut at_once) = (Vec::new(), true);
    for plan in plans {
        match plan {
            Plan::Advance(step) => {
                at_once &= held.is_empty() || step == 0;
                clock.advance(Duration::from_nanos(step as u64));
                model.now += step;
            }
            Plan::Take(n) => {
                if limiter.take_now(n) {
                    prop_assert!(model.level() >= n as i64 * NANOS);
                    model.admit(n, model.now);
                }
            }
            Plan::Book(n) => {
                if let Some(booked) = limiter.reserve_later(n) {
                    let start = model.now + booked.wait().as_nanos() as i64;
                    held.push((booked, model.entries.len()));
                    model.admit(n, start);
                    prop_assert!(model.came(start) >= model.position, "it starts too early");
                    prop_assert!(
                        start == model.now || model.came(start - 1) < model.position,
                        "it starts too late"
                    );
                }
            }
            Plan::Cancel(index) if index < held.len() => {
                let (booked, entry) = held.remove(index);
                drop(booked);
                model.cancel(entry);
            }
            Plan::Keep(index) if index < held.len() => held.remove(index).0.commit().forget(),
            Plan::Cancel(_) | Plan::Keep(_) => {}
        }
        model.pass();
        let there = |level: i64| {
            (
                (level.max(0) / NANOS) as u64,
                ((-level).max(0) as u64).div_ceil(NANOS as u64),
            )
        };
        prop_assert_eq!(limiter.standing(), there(model.level()), "{:?}", &model);
        prop_assert!(model.level() <= model.alone());
        if at_once {
            prop_assert_eq!(model.level(), model.alone(), "{:?}", &model);
        }
        prop_assert!(model.excess() <= 0, "{:?}", &model);
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::cases(1_500))]

    /// Given any takes, bookings and cancels at any time, then the bucket is a list of its admissions; no span exceeds its
    /// bound by when they start; it never holds more than those who were kept would leave alone; and exactly that, when all
    /// are given up at the instant at which they were booked.
    #[test]
    fn bookings_that_are_given_up_are_as_if_never_made(
        plans in prop::collection::vec(plan(), 1..80), burst in 1u64..9, by in any::<bool>(),
    ) {
        let clock = ManualClock::new();
        let quota = Quota::new(1, Duration::from_nanos(NANOS as u64)).unwrap().burst(burst);
        let bucket = TokenBucket::new(if by { quota.by_interval() } else { quota }).on(&clock);
        run(&bucket, &clock, burst, by, plans)?;
    }

    /// The same of a leaky bucket; there a weight may be more than goes out at once.
    #[test]
    fn bookings_of_leaky_buckets_are_as_if_never_made(
        plans in prop::collection::vec(plan(), 1..80), slack in 0u64..9, size in 1u64..40,
    ) {
        let clock = ManualClock::new();
        let quota = Quota::new(1, Duration::from_nanos(NANOS as u64)).unwrap().burst(size);
        let bucket = LeakyBucket::new(quota).on(&clock).slack(slack).unwrap();
        run(&bucket, &clock, slack + 1, false, plans)?;
    }
}
