//! Every limiter of a rate under numbers and clocks that no caller should use: nothing panics, nothing is minted.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::time::ClockReading;
use tollgate::{
    Ask, BoxLimiter, Cost, Demand, Inherit, Instant, Limiter, LimiterExt, ManualClock, Permit, Quota, Settlement, Wait,
};
use tollgate::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket, Warmup};

const TOKENS: Cost = Cost::new("tokens");
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const RULES: [Inherit; 3] = [Inherit::AsIs, Inherit::Proportional, Inherit::Reset];

fn clocks() -> impl Iterator<Item = ManualClock> {
    [0, 1, u64::MAX / 2, u64::MAX - 1].into_iter().map(|nanos| {
        let clock = ManualClock::new();
        clock.advance(Duration::from_nanos(nanos));
        clock
    })
}

/// Extreme rates, each with its least and its largest burst.
fn quotas() -> Vec<Quota> {
    let rates = [
        (1, YEAR),
        (1, Duration::from_secs(86_400)),
        (1_000_000_000, Duration::from_secs(1)),
        (1, Duration::from_nanos(1)),
        (YEAR.as_nanos() as u64, YEAR),
    ];
    let mut quotas = vec![Quota::zero(), Quota::zero().burst(Quota::MAX_BURST), Quota::unlimited()];
    for (count, period) in rates {
        let quota = Quota::new(count, period).unwrap();
        quotas.push(quota.burst(1));
        let largest = (0..=40).rev().find_map(|bits| quota.with_burst(1 << bits).ok());
        quotas.push(largest.unwrap());
        quotas.push(largest.unwrap().by_interval());
    }
    quotas
}

const WEIGHTS: [u64; 6] = [0, 1, 2, 1 << 40, u32::MAX as u64 + 1, u64::MAX];
const STEPS: [u64; 4] = [0, 1, 1_000_000_007, u64::MAX / 3];

/// Everything that can be asked of a limiter, with every weight, as time passes.
macro_rules! every_verb {
    ($limiter:expr, $clock:expr) => {{
        let (limiter, clock) = (&$limiter, &$clock);
        for step in STEPS {
            for n in WEIGHTS {
                let free = limiter.available();
                let taken = limiter.try_acquire(n);
                assert!(n == 0 || taken.is_ok() == (n <= free), "{n} of {free}: {taken:?}");
                let _ = (limiter.time_until(n), limiter.time_until_full());
                assert!(limiter.acquire_up_to(n) <= n);
                let held = limiter.try_admit(n);
                limiter.force_acquire(n);
                let _ = held.map(Permit::cancel);
                if let Ok(mut permit) = limiter.try_admit(Ask::many(n)) {
                    let _ = permit.settle(TOKENS, n / 2);
                }
                let _ = format!("{limiter:?}");
            }
            clock.advance(Duration::from_nanos(step));
        }
        limiter.reset();
        clock.advance(Duration::from_nanos(1));
        limiter.reset();
    }};
}

/// Keeps out go#47221, governor#203, commonware#2487, resilience4j#61, resilience4j#66.
#[test]
fn buckets_bear_every_number() {
    for clock in clocks() {
        for quota in quotas() {
            let bucket = TokenBucket::new(quota).on(&clock);
            let leaky = LeakyBucket::new(quota).on(&clock);
            every_verb!(bucket, clock);
            every_verb!(leaky, clock);
            for other in quotas() {
                for rule in RULES {
                    bucket.set_quota(other, rule);
                    let _ = leaky.set_quota(other, other.burst_size(), rule);
                    bucket.force_acquire(3);
                    leaky.force_acquire(3);
                    let _ = (bucket.available(), bucket.debt(), leaky.available(), leaky.debt());
                }
            }
        }
    }
}

/// Keeps out commonware#2487, resilience4j#61, resilience4j#66.
#[test]
fn windows_bear_every_number() {
    for clock in clocks() {
        for length in [Duration::from_nanos(1), Duration::from_nanos(63), YEAR] {
            for limit in [0, 1, 7, u64::MAX - 1, u64::MAX] {
                let fixed = FixedWindow::new(limit, length).unwrap().on(&clock);
                let sliding = SlidingWindow::new(limit, length).unwrap().on(&clock);
                let log = SlidingLog::new(limit, length).unwrap().on(&clock);
                every_verb!(fixed, clock);
                every_verb!(sliding, clock);
                every_verb!(log, clock);
                #[cfg(feature = "calendar")]
                for period in tollgate::CalendarPeriod::ALL {
                    let window = tollgate::CalendarWindow::new(limit, period, "Pacific/Apia").unwrap();
                    let window = window.on(&clock);
                    every_verb!(window, clock);
                }
                for other in [0, 3, u64::MAX - 1, u64::MAX, 5] {
                    for rule in RULES {
                        fixed.set_limit(other, rule);
                        sliding.set_limit(other, rule);
                        log.set_limit(other, rule);
                        fixed.force_acquire(u64::MAX);
                        sliding.force_acquire(u64::MAX);
                        log.force_acquire(u64::MAX);
                    }
                    let _ = (fixed.debt(), sliding.debt(), log.debt());
                }
            }
        }
    }
}

/// Keeps out commonware#2487.
#[test]
fn warm_ups_bear_every_number() {
    for clock in clocks() {
        for quota in quotas() {
            for period in [Duration::from_nanos(1), Duration::from_secs(2), YEAR] {
                for cold in [1, 3, 100] {
                    let Ok(warmup) = Warmup::new(quota, period) else {
                        continue;
                    };
                    let warmup = warmup.cold_factor(cold).unwrap().on(&clock);
                    every_verb!(warmup, clock);
                    for other in quotas() {
                        for rule in RULES {
                            let _ = (warmup.set_quota(other, rule), warmup.interval(), warmup.available());
                        }
                    }
                }
            }
        }
    }
}

/// One limiter of each kind that knows the latest instant. (A bucket does not: by a stale instant it admits less.)
fn four_a_second(clock: &ManualClock) -> Vec<(&'static str, BoxLimiter)> {
    let second = Duration::from_secs(1);
    let quota = Quota::per_second(4);
    vec![
        (
            "fixed",
            FixedWindow::new(4, second).unwrap().on(clock).per(TOKENS).boxed(),
        ),
        #[cfg(feature = "calendar")]
        (
            "calendar",
            tollgate::CalendarWindow::new(4, tollgate::CalendarPeriod::Hour, "UTC")
                .unwrap()
                .on(clock)
                .per(TOKENS)
                .boxed(),
        ),
        (
            "sliding",
            SlidingWindow::new(4, second).unwrap().on(clock).per(TOKENS).boxed(),
        ),
        ("log", SlidingLog::new(4, second).unwrap().on(clock).per(TOKENS).boxed()),
        (
            "warm-up",
            Warmup::new(quota, second).unwrap().on(clock).per(TOKENS).boxed(),
        ),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Take(u64),
    Reserve(u64),
    Cancel(usize),
    Settle(usize, u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u64..4).prop_map(Op::Take),
        2 => (0u64..4).prop_map(Op::Reserve),
        2 => (0usize..4).prop_map(Op::Cancel),
        1 => (0usize..4, 0u64..4).prop_map(|(index, actual)| Op::Settle(index, actual)),
    ]
}

/// The instant before which it refuses.
fn next_of(limiter: &BoxLimiter, demand: &Demand<'_>) -> Option<Instant> {
    let refusal = limiter.look(demand).err()?;
    Wait::not_before(refusal.wait())
}

/// Runs one operation as of an instant.
fn run(
    limiter: &BoxLimiter,
    op: Op,
    reading: &ClockReading,
    held: &mut Vec<<BoxLimiter as Limiter>::Ticket>,
) -> String {
    let reserve = |n| {
        let ask = Ask::one().cost(TOKENS, n);
        limiter.try_reserve(&Demand::new(&ask, reading)).ok()
    };
    let ready = || {
        let ask = Ask::one().cost(TOKENS, 1);
        next_of(limiter, &Demand::new(&ask, reading))
    };
    // Whatever else is done, it has seen this instant.
    ready();
    let seen = match op {
        Op::Take(n) => format!("{}", reserve(n).is_some()),
        Op::Reserve(n) => {
            let ticket = reserve(n);
            held.extend(ticket);
            format!("{}", ticket.is_some())
        }
        Op::Cancel(index) if index < held.len() => {
            limiter.cancel(held.remove(index));
            String::new()
        }
        Op::Settle(index, actual) if index < held.len() => {
            limiter.settle(&mut held[index], &Settlement::new(TOKENS, actual));
            String::new()
        }
        _ => String::new(),
    };
    format!("{seen}, {:?}", ready())
}

proptest! {
    #![proptest_config(crate::cases(400))]

    /// Given stale instants on any mutator, then every limiter does what it would do at the latest instant so far.
    /// Keeps out go#71360, pd#10745, pd#8435, juju/ratelimit#22, filtermail#166.
    #[test]
    fn a_stale_instant_counts_as_the_latest(
        steps in prop::collection::vec((op(), 0u64..400_000_000, 0u64..600_000_000), 1..60), start in 0u64..3,
    ) {
        let clock = ManualClock::new();
        clock.advance(Duration::from_nanos([0, 1_000_000_007, u64::MAX / 2][start as usize]));
        for ((name, stale), (_, fresh)) in four_a_second(&clock).into_iter().zip(four_a_second(&clock)) {
            let (mut now, mut held, mut twins) = (clock.now(), Vec::new(), Vec::new());
            for &(op, step, back) in &steps {
                let ahead = clock.after(now, Duration::from_nanos(step));
                // What reads the clock late brings an instant from before.
                let behind = Duration::from_nanos(step.saturating_sub(back));
                let (seen, latest) = if back > step {
                    let earlier = clock.between(Instant::ZERO, now).saturating_sub(Duration::from_nanos(back - step));
                    (clock.after(Instant::ZERO, earlier), now)
                } else {
                    let seen = clock.after(now, behind);
                    (seen, seen.min(ahead))
                };
                now = latest;
                let one = run(&stale, op, &ClockReading::at(&clock, seen), &mut held);
                let two = run(&fresh, op, &ClockReading::at(&clock, latest), &mut twins);
                prop_assert_eq!(one, two, "{} at {:?}, not {:?}", name, seen, latest);
            }
        }
    }
}

/// Given a limiter that is empty again, and has seen a later instant, when one is admitted by a reading from before, then it
/// counts from the later one.
#[test]
fn an_admission_by_an_earlier_reading_counts_from_the_latest() {
    let clock = ManualClock::new();
    for (name, limiter) in four_a_second(&clock) {
        let mut held = Vec::new();
        let after = |millis| clock.after(Instant::ZERO, Duration::from_millis(millis));
        let [first, latest, before] = [0, 4_000, 2_500].map(|millis| ClockReading::at(&clock, after(millis)));
        run(&limiter, Op::Take(1), &first, &mut held);
        // A look is enough.
        run(&limiter, Op::Cancel(0), &latest, &mut held);
        let ask = Ask::one().cost(TOKENS, 1);
        let taken = limiter.try_reserve(&Demand::new(&ask, &before)).is_ok();
        for _ in 0..4 {
            let _ = limiter.try_reserve(&Demand::new(&ask, &before));
        }
        let next = next_of(&limiter, &Demand::new(&ask, &before));
        assert!(taken && next > Some(after(4_000)), "{name}: {next:?}");
    }
}

/// Eight threads take, reserve, give back and force, beside one that changes the quota and one that moves the clock: what
/// stays taken is never more than the burst and what time has brought.
/// Keeps out go#45245, go#65508.
#[test]
fn threads_take_no_more_than_the_available_tokens() {
    use std::sync::atomic::{AtomicU64, Ordering};
    for by in [false, true] {
        let clock = ManualClock::new();
        let quota = Quota::per_second(1_000).burst(50);
        let quota = if by {
            Quota::new(10, Duration::from_millis(10))
                .unwrap()
                .burst(50)
                .by_interval()
        } else {
            quota
        };
        let bucket = TokenBucket::new(quota).on(&clock);
        let log = SlidingLog::new(500, Duration::from_secs(10)).unwrap().on(&clock);
        let taken = AtomicU64::new(0);
        let logged = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let (bucket, log, taken, logged) = (&bucket, &log, &taken, &logged);
                scope.spawn(move || {
                    for turn in 0..5_000u64 {
                        match (thread + turn) % 5 {
                            0 => _ = bucket.try_admit(3).map(Permit::cancel),
                            1 => _ = bucket.try_admit(2).map(Permit::cancel),
                            2 => _ = log.try_admit(2).map(Permit::cancel),
                            3 => {
                                logged.fetch_add(log.acquire_up_to(2), Ordering::Relaxed);
                            }
                            _ => {
                                taken.fetch_add(bucket.acquire_up_to(2), Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
            for _ in 0..500 {
                clock.advance(Duration::from_millis(1));
                bucket.set_quota(quota, Inherit::AsIs);
                log.set_limit(500, Inherit::AsIs);
            }
        });
        let (taken, logged) = (taken.into_inner(), logged.into_inner());
        assert!(
            taken + bucket.available() <= 550,
            "{taken} taken and {} left",
            bucket.available()
        );
        assert_eq!(logged + log.available(), 500);
    }
}
