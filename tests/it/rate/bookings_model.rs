//! Cancelled bookings beside a model: no span has too many by the instants at which they start, and the rest is what the kept
//! bookings would have left alone, each in its own instant.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::{FutureReservation, LeakyBucket, Limiter, ManualClock, Quota, TokenBucket};

const SECOND: Duration = Duration::from_secs(1);
/// Nanoseconds that one token takes.
const NANOS: i64 = 100;

trait Books: Limiter + Sized {
    fn reserve_later(&self, n: u64) -> Option<FutureReservation<'_, Self>>;
    fn take_now(&self, n: u64) -> bool;
    /// The available tokens, less the debt; both rounded.
    fn standing(&self) -> (u64, u64);
}

macro_rules! books {
    ($ty:ty) => {
        impl Books for $ty {
            fn reserve_later(&self, n: u64) -> Option<FutureReservation<'_, Self>> {
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

/// Given more bookings than are kept apart, of which random ones are cancelled, then no span has too many, and
/// when all are given up, no more is there than a burst.
#[test]
fn of_many_bookings_no_span_has_too_many() {
    for burst in [5, 40] {
        let clock = ManualClock::new();
        let bucket = TokenBucket::new(Quota::per_second(1).burst(burst)).on(&clock);
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
    // The charges, less the refill, before each.
    let (mut taken, mut least) = (0, i64::MAX);
    for (start, n) in kept {
        least = least.min(taken - start);
        taken += n;
        assert!(taken - start - least <= burst as i64, "{taken} at {start}");
    }
    clock.advance(SECOND * 10_000);
    assert_eq!(limiter.standing(), (burst, 0));
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
    /// Cancelled tokens that have not come back yet.
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

    /// What the bookings that were not cancelled would have left alone. Each takes from a bucket that is not more than full
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
    /// bound by when they start; it never holds more than the kept ones would leave alone; and exactly that, when all
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
