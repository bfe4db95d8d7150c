//! The bucket against a reference in exact fractions.

use super::*;
use crate::rng::Rng;
use crate::time::ManualClock;
use std::time::Duration;

type Bucket = super::Bucket<false>;

fn cancel(bucket: &Bucket, mut ticket: BucketTicket, clock: &Clock) {
    bucket.settle(&mut ticket, 0, clock);
}

const SECOND: u64 = 1_000_000_000;

/// In tokens: what rounding adds in a history.
const ROUNDING: f64 = 1e-6;

struct Draws(Rng);

impl Draws {
    fn of(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0.draw() % n
    }
}

/// A bucket in exact integers: the level times the period in nanoseconds, so that a nanosecond adds `count`.
#[derive(Clone, Debug)]
struct Exact {
    level: i128,
    quota: Quota,
    at: u64,
}

impl Exact {
    fn full(quota: Quota, at: u64) -> Self {
        let level = Self::whole(&quota, quota.burst_size());
        Self { level, quota, at }
    }

    fn whole(quota: &Quota, tokens: u64) -> i128 {
        i128::from(tokens) * quota.period().as_nanos() as i128
    }

    /// The most that it may hold: a bucket saves the gain of one tick beyond its burst.
    fn most(&self) -> i128 {
        Self::whole(&self.quota, self.quota.burst_size()) + i128::from(self.quota.count())
    }

    fn advance(&mut self, at: u64) {
        self.level = (self.level + i128::from(at - self.at) * i128::from(self.quota.count())).min(self.most());
        self.at = at;
    }

    fn take(&mut self, tokens: u64) {
        self.level -= Self::whole(&self.quota, tokens);
    }

    fn change(&mut self, quota: Quota, inherit: Inherit) {
        let (old, burst) = (self.quota, Self::whole(&quota, quota.burst_size()));
        let [before, period] = [old, quota].map(|quota| quota.period().as_nanos() as i128);
        // Rounded up: the reference may be generous by a billionth of a token.
        let kept = -(-self.level * period).div_euclid(before);
        self.level = match inherit {
            Inherit::Reset => burst,
            Inherit::Proportional if self.level > 0 => {
                self.level * burst / Self::whole(&old, old.burst_size()).max(1) + 1
            }
            _ => kept.min(burst + i128::from(quota.count())),
        };
        self.quota = quota;
    }

    fn tokens(&self) -> f64 {
        self.level as f64 / self.quota.period().as_nanos() as f64
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The charge with this number, of which it keeps what is charged in the end.
    Take(usize),
    Change(Quota, Inherit),
}

/// The history: the events in time, and what is kept of each charge. An admission has several after settlements upwards.
#[derive(Debug)]
struct History {
    first: Exact,
    events: Vec<(u64, Event)>,
    kept: Vec<u64>,
}

impl History {
    /// The bucket at `now`, had each charge only been what is kept of it.
    fn replay(&self, now: u64) -> Exact {
        let mut exact = self.first.clone();
        for &(at, event) in &self.events {
            exact.advance(at);
            match event {
                Event::Take(charge) => exact.take(self.kept[charge]),
                Event::Change(quota, inherit) => exact.change(quota, inherit),
            }
        }
        exact.advance(now);
        exact
    }

    /// Charges `tokens` at `at`, and returns the number of the charge.
    fn charge(&mut self, at: u64, tokens: u64) -> usize {
        self.kept.push(tokens);
        self.events.push((at, Event::Take(self.kept.len() - 1)));
        self.kept.len() - 1
    }

    /// Keeps `actual` of these charges: all, none, or a part of a single one.
    fn keep(&mut self, charges: &[usize], actual: u64) {
        let mut left = actual;
        for &charge in charges {
            self.kept[charge] = self.kept[charge].min(left);
            left -= self.kept[charge];
        }
    }
}

fn draw_quota(rng: &mut Draws) -> Quota {
    let period = [SECOND, 7_000_000, 86_400 * SECOND, 999_999_937][rng.below(4) as usize];
    let quota = Quota::new(1 + rng.below(40), Duration::from_nanos(period)).unwrap();
    match rng.below(8) {
        0 => Quota::zero().burst(1 + rng.below(40)),
        _ => quota.burst(1 + rng.below(40)),
    }
}

fn level(bucket: &Bucket, now: Instant) -> f64 {
    let seen = bucket.see(now);
    seen.level() as f64 / 2_f64.powi(seen.axis.scale as i32)
}

/// How often cancels gave back all that could be given back, and how often they gave less.
#[derive(Debug, Default)]
struct Cancels {
    exact: u32,
    less: u32,
}

/// One random history of takes, cancels, settlements and, if `changes`, changes of the quota by every rule.
fn run(seed: u64, changes: bool, cancels: &mut Cancels) {
    let mut rng = Draws::of(seed);
    let clock = ManualClock::new();
    let quota = draw_quota(&mut rng);
    let bucket = Bucket::new(quota, &clock);
    let now = |clock: &ManualClock| clock.now().ticks();
    let (mut history, mut open) = (
        History {
            first: Exact::full(quota, now(&clock)),
            events: Vec::new(),
            kept: Vec::new(),
        },
        Vec::<(Vec<usize>, BucketTicket)>::new(),
    );
    let (mut quota, mut rounding) = (quota, ROUNDING);
    for _ in 0..60 {
        let at = now(&clock);
        match rng.below(20) {
            0..8 => {
                let n = rng.below(6);
                match bucket.take(n, clock.now()) {
                    Ok(ticket) => {
                        let there = history.replay(at).tokens();
                        assert!(
                            n == 0 || there >= n as f64 - rounding,
                            "seed {seed}: took {n} of {there}"
                        );
                        open.push((vec![history.charge(at, n)], ticket));
                    }
                    Err(Forecast::At(due)) => {
                        // The first instant: it is there then, and not a nanosecond earlier.
                        let early = Instant::from_ticks(due.ticks() - 1);
                        assert_eq!(bucket.forecast(n, 0, due), Forecast::Now, "seed {seed}");
                        assert_ne!(bucket.forecast(n, 0, early), Forecast::Now, "seed {seed}");
                    }
                    Err(_) => {}
                }
            }
            8..12 => clock.advance(quota.period() * (rng.below(100) as u32) / 60 / (1 + rng.below(40) as u32)),
            12..16 if !open.is_empty() => {
                let (charges, ticket) = open.swap_remove(rng.below(open.len() as u64) as usize);
                let before = level(&bucket, clock.now());
                cancel(&bucket, ticket, &clock);
                let took = ticket.tokens() as f64;
                history.keep(&charges, 0);
                let gave = level(&bucket, clock.now()) - before;
                assert!(gave <= took + 1e-9, "seed {seed}");
                let most = (history.replay(at).tokens() - before).clamp(0.0, took);
                match gave < most - rounding {
                    true => cancels.less += 1,
                    false => cancels.exact += 1,
                }
            }
            16..18 if !open.is_empty() => {
                let index = rng.below(open.len() as u64) as usize;
                let (charges, ticket) = &mut open[index];
                let (mut actual, was) = (rng.below(8), ticket.tokens());
                if charges.len() > 1 && actual < was {
                    // Which of its charges is kept is not said.
                    actual = 0;
                }
                bucket.settle(ticket, actual, &clock);
                let charged = ticket.tokens();
                if charged > was {
                    charges.push(history.charge(at, charged - was));
                } else {
                    history.keep(charges, charged);
                }
            }
            18 if changes => {
                let old = std::mem::replace(&mut quota, draw_quota(&mut rng));
                let rule = [Inherit::AsIs, Inherit::Proportional, Inherit::Reset][rng.below(3) as usize];
                bucket.set_quota(quota, rule, &clock);
                if rule == Inherit::Proportional {
                    // The level is multiplied, and with it what was rounded before.
                    rounding = ROUNDING.max(rounding * quota.burst_size() as f64 / old.burst_size() as f64);
                }
                history.events.push((at, Event::Change(quota, rule)));
            }
            _ => {}
        }
        let (found, exact) = (level(&bucket, clock.now()), history.replay(now(&clock)).tokens());
        // Never above, by more than the rounding of all steps.
        assert!(
            found <= exact + rounding,
            "seed {seed}: {found} above {exact} after {history:?}"
        );
    }
}

/// Given any takes, cancels, settlements and changes of the quota, then the level is never above that of a bucket in which each
/// admission had only taken what it keeps, and each refusal is refused a nanosecond before its instant and admitted at it.
/// `TOLLGATE_HISTORIES` says how many.
#[test]
fn no_history_mints_and_every_instant_is_the_first() {
    let times = std::env::var("TOLLGATE_HISTORIES").map_or(3_000, |times| times.parse().unwrap());
    let (mut without, mut with) = (Cancels::default(), Cancels::default());
    for seed in 0..times {
        match seed % 3 {
            0 => run(seed, false, &mut without),
            _ => run(seed, true, &mut with),
        }
    }
    println!("cancels without changes: {without:?}, with changes: {with:?}");
    assert!(without.exact > 3 * without.less, "{without:?}");
    assert!(with.exact > 2 * with.less, "{with:?}");
}

#[test]
fn cancels_from_the_newest_to_the_oldest_are_exact_whatever_the_time() {
    let clock = ManualClock::new();
    let bucket = Bucket::new(Quota::per_second(10).burst(20), &clock);
    let mut rng = Draws::of(1);
    for _ in 0..2_000 {
        let mut tickets: Vec<_> = (0..5)
            .map(|_| bucket.take(1 + rng.below(3), clock.now()).unwrap())
            .collect();
        clock.advance(Duration::from_millis(rng.below(3)));
        while let Some(ticket) = tickets.pop() {
            cancel(&bucket, ticket, &clock);
        }
        assert_eq!(bucket.standing(clock.now()).free, 20);
    }
}

#[test]
fn refunds_survive_any_number_of_changes_of_the_rate() {
    let clock = ManualClock::new();
    let bucket = Bucket::new(Quota::per_second(10).burst(20), &clock);
    for rounds in [1, 16, 17, 1_000] {
        bucket.clear(&clock);
        bucket.take(15, clock.now()).unwrap();
        let mut ticket = bucket.take(5, clock.now()).unwrap();
        for rate in 0..rounds {
            bucket.set_quota(Quota::per_second(1 + rate % 50).burst(20), Inherit::AsIs, &clock);
        }
        bucket.settle(&mut ticket, 2, &clock);
        assert_eq!(bucket.standing(clock.now()).free, 3);
        cancel(&bucket, ticket, &clock);
        assert_eq!(bucket.standing(clock.now()).free, 5);
    }
}

/// Rates from the slowest to the fastest: a caller that takes each token as soon as it is there gets what the rate yields, and never more.
#[test]
fn a_steady_taker_gets_the_exact_rate() {
    for (count, period, burst) in [
        (7, SECOND, 3),
        (1_000_003, SECOND, 1),
        (3, 86_400 * SECOND, 2),
        (999_999_937, SECOND, 5),
        (7, 60 * SECOND, 1),
    ] {
        let clock = ManualClock::new();
        let quota = Quota::new(count, Duration::from_nanos(period)).unwrap().burst(burst);
        let bucket = Bucket::new(quota, &clock);
        let (start, mut taken) = (clock.now().ticks(), 0_u128);
        for _ in 0..50_000 {
            match bucket.take(1, clock.now()) {
                Ok(_) => taken += 1,
                Err(Forecast::At(due)) => clock.advance_to(due),
                Err(other) => panic!("{other:?}"),
            }
            let ticks = u128::from(clock.now().ticks() - start);
            // A tick longer, and a unit.
            let most = u128::from(burst) + (ticks + 1) * u128::from(count) / u128::from(period) + 1;
            assert!(taken <= most, "{taken} of {most} at {quota}");
        }
        let ticks = u128::from(clock.now().ticks() - start);
        let exact = u128::from(burst) + ticks * u128::from(count) / u128::from(period);
        assert!(taken + 1 >= exact, "{taken} of {exact} at {quota}");
    }
}

/// Seven a minute, each taken at the instant that was told, for a day; for a year with `TOLLGATE_HISTORIES`.
#[test]
fn a_year_of_steady_takes_has_no_drift() {
    let days = std::env::var("TOLLGATE_HISTORIES").map_or(1, |_| 365);
    let clock = ManualClock::new();
    let bucket = Bucket::new(Quota::per_minute(7).burst(1), &clock);
    for _ in 0..7 * 1_440 * days {
        bucket.take(1, clock.now()).unwrap();
        let Err(Forecast::At(due)) = bucket.take(1, clock.now()) else {
            panic!("it has one token")
        };
        clock.advance_to(due);
    }
    assert_eq!(clock.elapsed(), Duration::from_secs(86_400 * days));
}

#[test]
fn an_axis_that_has_ended_goes_on_where_it_stood() {
    let clock = ManualClock::new();
    let bucket = Bucket::new(Quota::per_second(1_000_000_000).burst(1_000), &clock);
    for days in [1, 3, 40, 4_000] {
        bucket.take(1_000, clock.now()).unwrap();
        let stale = clock.now();
        clock.advance(Duration::from_secs(86_400 * days));
        assert_eq!(bucket.standing(clock.now()).free, 1_000);
        // An earlier reading than the latest adds nothing.
        let _ = bucket.take(1_000, stale);
        assert!(bucket.take(1_001, clock.now()).is_err());
        clock.advance(Duration::from_secs(1));
        let before = bucket.take(400, clock.now()).unwrap();
        let newest = bucket.take(600, clock.now()).unwrap();
        cancel(&bucket, newest, &clock);
        cancel(&bucket, before, &clock);
        assert_eq!(bucket.standing(clock.now()).free, 1_000);
    }
}
