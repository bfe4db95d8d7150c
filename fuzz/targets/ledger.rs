//! No sequence of calls mints: whatever is admitted, cancelled, settled and changed, by readings of the clock that may be stale, no
//! span of time lets more be taken than the limiter's documentation states. A ledger of its own counts the charges.

use std::sync::Arc;
use std::time::Duration;
use tollgate::keyed::{FairBudget, KeyedRate};
use tollgate::time::ClockReading;
use tollgate::{
    Ask, Cost, Demand, FixedWindow, Inherit, Instant, Keyed, LeakyBucket, Limiter, ManualClock, Quota, Settlement,
    SlidingLog, SlidingWindow, TokenBucket, Warmup,
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const TOKENS: Cost = Cost::new("tokens");

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// By one of several limiters.
    Reserve(usize, u64),
    Cancel(usize),
    /// Nothing changes by these, for a rate.
    Finish(usize),
    Forget(usize),
    Settle(usize, u64),
    /// To one of a few settings.
    Change(usize, Inherit),
    Wait(Duration),
    /// The next call goes by a reading that is so old.
    Stale(Duration),
}

impl Step {
    pub(crate) fn decode([which, a, b]: [u8; 3]) -> Self {
        let (n, index) = (u64::from(b), usize::from(a % 8));
        let limiter = usize::from(a % 3);
        let both = u16::from_le_bytes([a, b]);
        match which % 30 {
            0..8 => Self::Reserve(limiter, 1 + n % 6),
            8..11 => Self::Cancel(index),
            11..13 => Self::Finish(index),
            13 => Self::Forget(index),
            14..19 => Self::Settle(index, n % 9),
            // The other rules forgive or withhold admissions, by intent.
            19..21 => Self::Change(limiter, Inherit::AsIs),
            // Often whole parts of a refill, so that limiters are just full, or just not.
            21..25 => Self::Wait(SECOND * u32::from(a % 30) / 10),
            25..29 => Self::Wait(Duration::from_micros(u64::from(both) * 46)),
            _ => Self::Stale(Duration::from_micros(1 + u64::from(both) * 30)),
        }
    }

    /// The same of one unit at a time.
    pub(crate) fn single(self) -> Self {
        match self {
            Self::Reserve(which, _) => Self::Reserve(which, 1),
            Self::Settle(index, actual) => Self::Settle(index, actual % 3),
            step => step,
        }
    }
}

/// A charge at an instant, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Entry {
    which: usize,
    at: u64,
    units: u64,
    /// Not admitted: what a settlement charged beyond that.
    forced: bool,
    /// The reservation that it belongs to.
    of: usize,
}

/// The kind of bound.
enum Bound {
    /// A burst, and the rate per second at each time.
    Rate { burst: u64, rates: Vec<(u64, u64)> },
    /// At most `limit` in any span of this length.
    Span { limit: u64, length: u64 },
    /// At most `limit` in each window of this length, from the first instant on.
    Windows { limit: u64, length: u64, from: u64 },
}

pub(crate) struct Ledger {
    entries: Vec<Entry>,
    bound: Bound,
    /// A later charge counts at the instant of the admission, not of the charge.
    charges_back: bool,
    /// A stale reading counts as the latest that the limiter has seen.
    by_latest: bool,
    /// A charge beyond the admission is not counted: a holder of a part of the rate may spend that.
    admitted_only: bool,
}

/// Billionths of a token.
const TOKEN: i128 = 1_000_000_000;

impl Ledger {
    fn of(&self, which: Option<usize>) -> Vec<Entry> {
        let mut entries: Vec<_> = self.entries.to_vec();
        entries.retain(|entry| which.is_none_or(|which| entry.which == which));
        entries.retain(|entry| !(self.admitted_only && entry.forced));
        entries.sort_by_key(|entry| entry.at);
        entries
    }

    /// True when the charges keep the bound. `newest` was admitted just now.
    fn holds(&self, which: Option<usize>, newest: Entry) -> bool {
        let entries = self.of(which);
        match &self.bound {
            // As a bucket would have it of which just that was taken. A sixteenth of a token is for rounding.
            Bound::Rate { burst, rates } => {
                let (mut level, mut last) = (i128::from(*burst) * TOKEN, 0);
                entries.iter().all(|entry| {
                    level += gained(rates, last, entry.at);
                    level = level.min(i128::from(*burst) * TOKEN) - i128::from(entry.units) * TOKEN;
                    last = entry.at;
                    entry.forced || entry.units == 0 || level >= -TOKEN / 16
                })
            }
            Bound::Span { limit, length } => {
                let within = |entry: &&Entry| entry.at + length > newest.at && entry.at <= newest.at;
                entries.iter().filter(within).map(|entry| entry.units).sum::<u64>() <= *limit
            }
            Bound::Windows { limit, length, from } => {
                let window = |at: u64| (at - from) / length;
                let within = |entry: &&Entry| window(entry.at) == window(newest.at);
                entries.iter().filter(within).map(|entry| entry.units).sum::<u64>() <= *limit
            }
        }
    }

    /// What a reservation counts as now.
    fn charged(&self, of: usize) -> u64 {
        let own = self.entries.iter().filter(|entry| entry.of == of);
        own.map(|entry| entry.units).sum()
    }

    /// A reservation counts as `actual` in the end: the last charge gives way first.
    fn correct(&mut self, of: usize, actual: u64, now: u64) {
        let own = |entry: &&mut Entry| entry.of == of;
        let charged = self.charged(of);
        if actual > charged {
            let latest = self.entries.iter().map(|entry| entry.at).max().unwrap_or(0).max(now);
            let Some(first) = self.entries.iter().find(|entry| entry.of == of).copied() else {
                return;
            };
            let at = if self.charges_back { first.at } else { latest };
            self.entries.push(Entry {
                at,
                units: actual - charged,
                forced: true,
                ..first
            });
        }
        let mut less = charged.saturating_sub(actual);
        for entry in self.entries.iter_mut().rev().filter(own) {
            let part = less.min(entry.units);
            entry.units -= part;
            less -= part;
        }
    }
}

/// Billionths of tokens that come from `from` to `until`, at rates each of which is in force from an instant on.
fn gained(rates: &[(u64, u64)], from: u64, until: u64) -> i128 {
    let ends = rates.iter().skip(1).map(|rate| rate.0).chain([u64::MAX]);
    let part = |(&(start, rate), end): (&(u64, u64), u64)| {
        let ticks = until.min(end).saturating_sub(from.max(start));
        i128::from(rate) * i128::from(ticks)
    };
    rates.iter().zip(ends).map(part).sum()
}

fn nanos(clock: &ManualClock, instant: Instant) -> u64 {
    clock.between(Instant::ZERO, instant).as_nanos() as u64
}

/// Runs the steps. `limiter` is the one of a number, if there is one now; `change` changes to a setting, and says at what
/// rate, if there is anything to change.
pub(crate) fn run<L: Limiter>(
    clock: &ManualClock,
    mut ledger: Ledger,
    all_together: bool,
    steps: &[Step],
    limiter: impl Fn(usize) -> Option<Arc<L>>,
    change: impl Fn(usize, Inherit) -> Option<u64>,
) {
    let mut held: Vec<(Arc<L>, L::Ticket, usize)> = Vec::new();
    let (mut stale, mut reservations) = (Duration::ZERO, 0);
    // Of all calls, and of all changes: before these nothing is distinguished.
    let (mut latest, mut changed) = (clock.now(), Instant::ZERO);
    for step in steps {
        let now = clock.elapsed().saturating_sub(stale);
        let now = clock.after(Instant::ZERO, now);
        let reading = ClockReading::at(clock, now);
        if !matches!(step, Step::Stale(_) | Step::Wait(_)) {
            stale = Duration::ZERO;
        }
        match *step {
            Step::Reserve(which, units) => {
                let Some(limiter) = limiter(which) else { continue };
                latest = latest.max(now);
                let seen = nanos(clock, if ledger.by_latest { latest } else { now.max(changed) });
                let ask = Ask::many(units);
                let Ok(ticket) = limiter.try_reserve(&Demand::new(&ask, &reading)) else {
                    continue;
                };
                held.push((limiter, ticket, reservations));
                let newest = Entry {
                    which,
                    at: seen,
                    units,
                    forced: false,
                    of: reservations,
                };
                reservations += 1;
                ledger.entries.push(newest);
                let which = if all_together { None } else { Some(which) };
                assert!(
                    ledger.holds(which, newest),
                    "{:?} takes too many: {:?}",
                    newest,
                    ledger.of(which)
                );
            }
            Step::Settle(index, actual) if index < held.len() => {
                let (limiter, ticket, of) = &mut held[index];
                // A settlement that changes nothing shows the limiter no instant.
                if actual != ledger.charged(*of) {
                    latest = latest.max(clock.now());
                }
                let settlement = Settlement::new(TOKENS, actual).per(TOKENS);
                // A limiter without costs keeps its charge.
                if limiter.settle(ticket, &settlement) > 0 {
                    ledger.correct(*of, actual, nanos(clock, latest));
                }
            }
            Step::Cancel(index) if index < held.len() => {
                latest = latest.max(clock.now());
                let (limiter, ticket, of) = held.remove(index);
                limiter.cancel(ticket);
                ledger.correct(of, 0, nanos(clock, latest));
            }
            Step::Finish(index) if index < held.len() => {
                let (limiter, ticket, _) = held.remove(index);
                limiter.finish(ticket, tollgate::Outcome::Success);
            }
            Step::Forget(index) if index < held.len() => {
                let (limiter, ticket, _) = held.remove(index);
                limiter.finish(ticket, tollgate::Outcome::Forgotten);
            }
            Step::Change(which, rule) => {
                let Some(rate) = change(which, rule) else { continue };
                (changed, latest) = (clock.now(), clock.now());
                if let Bound::Rate { rates, .. } = &mut ledger.bound {
                    rates.push((nanos(clock, changed), rate));
                }
            }
            Step::Wait(time) => clock.advance(time),
            Step::Stale(time) => stale = time,
            _ => {}
        }
    }
}

pub(crate) fn world() -> ManualClock {
    let clock = ManualClock::new();
    clock.advance(SECOND * 10);
    clock
}

fn ledger(bound: Bound) -> Ledger {
    Ledger {
        entries: Vec::new(),
        bound,
        charges_back: false,
        by_latest: true,
        admitted_only: false,
    }
}

/// With a limit of ten at most, and two per second.
pub(crate) fn rate(burst: u64) -> Ledger {
    ledger(Bound::Rate {
        burst,
        rates: vec![(0, 2)],
    })
}

const LIMITS: [u64; 3] = [10, 5, 8];

fn quota(which: usize) -> Quota {
    // The rates are two and three per second.
    Quota::per_second(2 + which as u64 % 2).burst(LIMITS[which])
}

fn each<L>(make: impl Fn() -> L) -> [Arc<L>; 3] {
    [(); 3].map(|()| Arc::new(make()))
}

const NOTHING: fn(usize, Inherit) -> Option<u64> = |_, _| None;

/// Each line: the limiter, what it may take, and how its quota changes, which returns the new rate, if it has one.
macro_rules! mints_nothing {
    ($($name:ident: |$clock:ident| $make:expr, $bound:expr, |$limiter:ident, $which:ident, $rule:ident| $change:expr;)*) => {
        $(pub(crate) fn $name(steps: &[Step]) {
            let $clock = &world();
            let $limiter = Arc::new($make);
            run($clock, $bound, true, steps, |_| Some(Arc::clone(&$limiter)), |$which, $rule| $change);
        })*
    };
}

const THREE_SECONDS: u64 = 3_000_000_000;

mints_nothing! {
    token_bucket: |clock| TokenBucket::new(quota(0)).on(clock),
        Ledger { by_latest: false, ..rate(10) },
        |bucket, which, rule| {
            bucket.set_quota(quota(which), rule);
            Some(quota(which).count())
        };
    // Two come at the end of each second: at most as if they had come at its start.
    bucket_by_interval: |clock| TokenBucket::new(quota(0).by_interval()).on(clock),
        Ledger { by_latest: false, ..rate(12) },
        |bucket, _which, _rule| None;
    leaky_bucket: |clock| LeakyBucket::new(quota(0)).slack(9).unwrap().on(clock),
        Ledger { by_latest: false, ..rate(10) },
        |bucket, which, rule| {
            bucket.set_quota(quota(which), LIMITS[which] - 1, rule).unwrap();
            Some(quota(which).count())
        };
    leaky_bucket_without_slack: |clock| LeakyBucket::new(quota(0)).on(clock),
        Ledger { by_latest: false, ..rate(1) },
        |bucket, which, rule| {
            bucket.set_quota(quota(which), 0, rule).unwrap();
            Some(quota(which).count())
        };
    bucket_with_a_burst_of_one: |clock| TokenBucket::new(quota(0).burst(1)).on(clock),
        Ledger { by_latest: false, ..rate(1) },
        |bucket, which, rule| {
            bucket.set_quota(quota(which).burst(1), rule);
            Some(quota(which).count())
        };
    // A later charge counts as if it had been made at once, or from now on.
    warm_up: |clock| Warmup::new(quota(0), SECOND * 2).unwrap().on(clock),
        Ledger { admitted_only: true, ..rate(10) },
        |warmup, which, rule| {
            warmup.set_quota(quota(which), rule).unwrap();
            Some(quota(which).count())
        };
    sliding_window: |clock| SlidingWindow::new(10, SECOND * 3).unwrap().on(clock),
        Ledger { charges_back: true, ..ledger(Bound::Span { limit: 10, length: THREE_SECONDS }) },
        |window, which, rule| {
            window.set_limit(LIMITS[which], rule);
            Some(0)
        };
    sliding_log: |clock| SlidingLog::new(10, SECOND * 3).unwrap().on(clock),
        Ledger { charges_back: true, ..ledger(Bound::Span { limit: 10, length: THREE_SECONDS }) },
        |log, which, rule| {
            log.set_limit(LIMITS[which], rule);
            Some(0)
        };
    fixed_window: |clock| FixedWindow::new(10, SECOND * 3).unwrap().on(clock),
        Ledger {
            charges_back: true,
            ..ledger(Bound::Windows { limit: 10, length: THREE_SECONDS, from: nanos(clock, clock.now()) })
        },
        |window, which, rule| {
            window.set_limit(LIMITS[which], rule);
            Some(0)
        };
}

pub(crate) fn share_of_a_budget(steps: &[Step]) {
    let clock = world();
    let budget = FairBudget::new(quota(0)).on(&clock);
    let shares = each(|| budget.share());
    run(
        &clock,
        rate(10),
        false,
        steps,
        |which| Some(Arc::clone(&shares[which])),
        NOTHING,
    );
    let clock = world();
    let budget = FairBudget::new(quota(0)).on(&clock);
    let shares = each(|| budget.share());
    let bound = Ledger {
        admitted_only: true,
        ..rate(30)
    };
    run(
        &clock,
        bound,
        true,
        steps,
        |which| Some(Arc::clone(&shares[which])),
        NOTHING,
    );
}

/// Two keys find room, and a third where one of them is dropped.
pub(crate) fn key_that_comes_back(steps: &[Step]) {
    let clock = world();
    let on = clock.clone();
    let buckets = Keyed::new(2, move |_: &usize| TokenBucket::new(quota(0)).on(&on));
    let bound = Ledger {
        by_latest: false,
        ..rate(10)
    };
    run(&clock, bound, false, steps, |which| buckets.get(&which).ok(), NOTHING);
}

/// The same for windows, logs, evenly spaced units, and shares of one budget.
pub(crate) fn key_of_any_limiter(steps: &[Step]) {
    // Each limiter has a latest instant of its own, which the ledger does not know.
    let mut steps = steps.to_vec();
    steps.retain(|step| !matches!(step, Step::Stale(_)));
    let span = || {
        ledger(Bound::Span {
            limit: 10,
            length: 3_000_000_000,
        })
    };
    let clock = world();
    let on = clock.clone();
    let windows = Keyed::new(2, move |_: &usize| SlidingWindow::new(10, SECOND * 3).unwrap().on(&on));
    let bound = Ledger {
        charges_back: true,
        ..span()
    };
    run(&clock, bound, false, &steps, |which| windows.get(&which).ok(), NOTHING);
    let clock = world();
    let on = clock.clone();
    let logs = Keyed::new(2, move |_: &usize| SlidingLog::new(10, SECOND * 3).unwrap().on(&on));
    let bound = Ledger {
        charges_back: true,
        ..span()
    };
    run(&clock, bound, false, &steps, |which| logs.get(&which).ok(), NOTHING);
    let clock = world();
    let on = clock.clone();
    let leaky = Keyed::new(2, move |_: &usize| LeakyBucket::new(quota(0)).slack(9).unwrap().on(&on));
    run(&clock, rate(10), false, &steps, |which| leaky.get(&which).ok(), NOTHING);
    let clock = world();
    let budget = FairBudget::new(quota(0)).on(&clock);
    let shares = Keyed::new(2, move |_: &usize| budget.share());
    run(
        &clock,
        rate(10),
        false,
        &steps,
        |which| shares.get(&which).ok(),
        NOTHING,
    );
}

pub(crate) fn rate_by_key(steps: &[Step]) {
    let clock = world();
    let rates = KeyedRate::new(2, quota(0)).on(&clock);
    let mut ledger = rate(10);
    for &step in steps {
        match step {
            Step::Reserve(which, units) if rates.try_acquire(&which, units).is_ok() => {
                let at = nanos(&clock, clock.now());
                let newest = Entry {
                    which,
                    at,
                    units,
                    forced: false,
                    of: 0,
                };
                ledger.entries.push(newest);
                assert!(ledger.holds(Some(which), newest), "{:?}", ledger.of(Some(which)));
            }
            Step::Wait(time) => clock.advance(time),
            _ => {}
        }
    }
}
