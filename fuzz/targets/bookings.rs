//! A bucket with bookings that are kept and cancelled, against a list of all that it has ever admitted: no span has too many by the
//! instants at which they start, and the rest is what the kept bookings would have left alone, each in its own instant.

use std::time::Duration;
use tollgate::{FutureReservation, LeakyBucket, Limiter, ManualClock, Quota, TokenBucket};

/// Nanoseconds that one token takes.
const NANOS: i64 = 100;

pub(crate) trait Books: Limiter + Sized {
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

#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    Advance(i64),
    Take(u64),
    Book(u64),
    Cancel(usize),
    Keep(usize),
}

impl Plan {
    pub(crate) fn decode([which, a, b]: [u8; 3]) -> Self {
        let at = usize::from(a % 9);
        match which % 15 {
            0..3 => Self::Advance(i64::from(u16::from_le_bytes([a, b]) % 400)),
            3..5 => Self::Take(u64::from(1 + a % 6)),
            5..10 => Self::Book(u64::from(1 + a % 8)),
            10..14 => Self::Cancel(at),
            _ => Self::Keep(at),
        }
    }
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
fn run<L: Books>(limiter: &L, clock: &ManualClock, full: u64, by: bool, plans: Vec<Plan>) {
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
                    assert!(model.level() >= n as i64 * NANOS);
                    model.admit(n, model.now);
                }
            }
            Plan::Book(n) => {
                if let Some(booked) = limiter.reserve_later(n) {
                    let start = model.now + booked.wait().as_nanos() as i64;
                    held.push((booked, model.entries.len()));
                    model.admit(n, start);
                    assert!(model.came(start) >= model.position, "it starts too early");
                    assert!(
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
        assert_eq!(limiter.standing(), there(model.level()), "{:?}", &model);
        assert!(model.level() <= model.alone());
        if at_once {
            assert_eq!(model.level(), model.alone(), "{:?}", &model);
        }
        assert!(model.excess() <= 0, "{:?}", &model);
    }
}

/// One token in `NANOS`, and bursts of `burst`.
pub(crate) fn token_bucket(burst: u64, by: bool, plans: Vec<Plan>) {
    let clock = ManualClock::new();
    let quota = Quota::new(1, Duration::from_nanos(NANOS as u64)).unwrap().burst(burst);
    let bucket = TokenBucket::new(if by { quota.by_interval() } else { quota }).on(&clock);
    run(&bucket, &clock, burst, by, plans);
}

/// There a weight may be more than goes out at once.
pub(crate) fn leaky_bucket(slack: u64, size: u64, plans: Vec<Plan>) {
    let clock = ManualClock::new();
    let quota = Quota::new(1, Duration::from_nanos(NANOS as u64)).unwrap().burst(size);
    let bucket = LeakyBucket::new(quota).on(&clock).slack(slack).unwrap();
    run(&bucket, &clock, slack + 1, false, plans);
}
