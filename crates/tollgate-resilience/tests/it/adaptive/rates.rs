//! Rates that find themselves: laws that drive a token bucket by nothing but refusals.

use futures::future::join_all;
use proptest::prelude::*;
use std::cell::RefCell;
use std::time::Duration;
use tollgate::status::State;
use tollgate::{Clock, FixedWindow, Inherit, Limiter, LimiterExt, ManualClock, Outcome, Policy, Quota, TokenBucket};
use tollgate_resilience::adaptive::{Adaptive, Aimd, Cubic, LimitLaw, Resizable, Sample};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn rate(clock: &ManualClock, quota: Quota, law: impl LimitLaw + 'static) -> Adaptive<TokenBucket> {
    let bucket = TokenBucket::new(quota).on(clock);
    let builder = Adaptive::builder(bucket).law(law).bounds(2, 2_000);
    builder.on(clock).build().unwrap()
}

/// A server with a quota that no client is told.
trait Server {
    fn allow(&self, per_second: u64);
    fn serve(&self) -> bool;
}

impl Server for TokenBucket {
    fn allow(&self, per_second: u64) {
        self.set_quota(
            Quota::per_second(per_second).burst(per_second.div_ceil(10)),
            Inherit::AsIs,
        );
    }
    fn serve(&self) -> bool {
        self.try_acquire(1).is_ok()
    }
}

impl Server for FixedWindow {
    fn allow(&self, per_second: u64) {
        self.set_limit(per_second, Inherit::AsIs);
    }
    fn serve(&self) -> bool {
        self.try_acquire(1).is_ok()
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Second {
    served: u64,
    refused: u64,
}

const SECONDS: usize = 600;

/// Ten virtual minutes of 64 tasks that call without a pause, against a quota that halves at 200 s and doubles at 400 s. Returns
/// the part of what the server allows that was used, and the part of the requests that was refused, both without the
/// second after the halving.
fn ten_minutes<S: Server>(per_second: u64, server: impl Fn(&Clock) -> S, law: impl LimitLaw + 'static) -> (f64, f64) {
    let clock = ManualClock::new();
    let server = server(&clock);
    server.allow(per_second);
    let policy = Policy::new(rate(&clock, Quota::per_second(10).burst(1), law));
    let seconds = RefCell::new([Second::default(); SECONDS]);
    let allowed = |second: usize| {
        if (200..400).contains(&second) {
            per_second / 2
        } else {
            per_second
        }
    };
    let change = async {
        for second in [200, 400] {
            clock
                .sleep_until(clock.after(Default::default(), Duration::from_secs(second)))
                .await;
            server.allow(allowed(second as usize));
        }
    };
    let task = async |task: u64| loop {
        let permit = policy.admit(1).await.unwrap();
        clock.sleep(ms(10 + task % 7 * 5)).await;
        let second = clock.elapsed().as_secs() as usize;
        if second >= SECONDS {
            return;
        }
        let is_served = server.serve();
        {
            let counts = &mut seconds.borrow_mut()[second];
            *if is_served {
                &mut counts.served
            } else {
                &mut counts.refused
            } += 1;
        }
        clock.sleep(ms(10)).await;
        permit.finish(if is_served { Outcome::Success } else { Outcome::Overload });
    };
    clock.run(async { futures::join!(change, join_all((0..64).map(task))) });
    let counted = |second: &usize| *second != 200;
    let of = |count: &dyn Fn(usize) -> u64| (0..SECONDS).filter(counted).map(count).sum::<u64>() as f64;
    let seconds = seconds.into_inner();
    let (served, refused) = (of(&|at| seconds[at].served), of(&|at| seconds[at].refused));
    (served / of(&|at| allowed(at)), refused / (served + refused))
}

/// Given 429s and nothing else, then at least 85 % of the quota is used, and at most 5 % of the requests are refused.
#[test]
fn a_hidden_quota_that_halves_and_doubles_is_found() {
    let bucket = |clock: &Clock| TokenBucket::new(Quota::per_second(1)).on(clock);
    let window = |clock: &Clock| FixedWindow::new(1, Duration::from_secs(1)).unwrap().on(clock);
    for (name, (used, refused)) in [
        ("CUBIC on a bucket", ten_minutes(100, bucket, Cubic::new())),
        ("CUBIC on a window", ten_minutes(100, window, Cubic::new())),
        ("AIMD on a bucket", ten_minutes(100, bucket, Aimd::new().increase(2.0))),
    ] {
        let found = format!("{name}: {:.1} % used, {:.2} % refused", used * 100.0, refused * 100.0);
        assert!(used >= 0.85 && refused <= 0.05, "{found}");
        assert!(used <= 1.01, "more than the server has: {found}");
        eprintln!("{found}");
    }
}

/// Given two windows in which all of the rate is used, then the limit doubles in each, and its burst stays. One drop lowers
/// it at once; drops within a window after that do not, but the limit rises only a window after the last of them.
#[test]
fn a_rate_rises_by_windows_and_falls_at_once() {
    let clock = ManualClock::new();
    let rate = rate(&clock, Quota::per_second(10).burst(3), Cubic::new());
    let second = |limit: usize| {
        for _ in 0..limit {
            clock.advance(Duration::from_secs(1) / limit as u32 + Duration::from_nanos(1));
            rate.try_admit(1).unwrap().finish(Outcome::Success);
        }
    };
    second(10);
    assert_eq!(
        (rate.limit(), rate.limiter().quota()),
        (20, Quota::per_second(20).burst(3))
    );
    second(20);
    let before = rate.try_admit(1).unwrap();
    rate.try_admit(1).unwrap().finish(Outcome::Overload);
    assert_eq!(rate.limit(), 28);
    clock.advance(ms(999));
    let within = rate.try_admit(1).unwrap();
    before.finish(Outcome::Overload);
    clock.advance(ms(1_100));
    within.finish(Outcome::Overload);
    assert_eq!(rate.limit(), 28, "admitted before the lower rate was known to work");
    second(28);
    assert_eq!(rate.limit(), 38);
    rate.try_admit(1).unwrap().finish(Outcome::Overload);
    assert_eq!((rate.limit(), rate.limiter().quota().burst_size()), (26, 3));
    let stats = rate.stats();
    assert_eq!(
        (stats.drops, stats.raised, stats.lowered, stats.pinned),
        (2, 3, 2, false)
    );
}

/// Given a rate of units, of which one admission takes several, then it is the units that count as use.
#[test]
fn an_unused_rate_is_not_raised_and_a_used_one_is() {
    for (units, limit) in [(1, 40), (5, 80)] {
        let clock = ManualClock::new();
        let rate = rate(&clock, Quota::per_second(40), Cubic::new());
        for _ in 0..10 {
            clock.advance(ms(100));
            rate.try_admit(units).unwrap().finish(Outcome::Success);
        }
        assert_eq!(rate.limit(), limit, "{units}0 of 40");
        drop(rate.try_admit(20).unwrap());
        assert_eq!(rate.limiter().in_use() as u64, 40 - rate.limiter().available());
    }
}

#[test]
fn the_status_of_a_rate_shows_what_it_has_found() {
    let clock = ManualClock::new();
    let rate = rate(&clock, Quota::per_second(100).burst(10), Aimd::new());
    rate.try_admit(1).unwrap().finish(Outcome::Overload);
    let mut seen = Vec::new();
    rate.describe(&mut |leg| seen.push((leg.kind, leg.state)));
    let state = State::Rate {
        limit: 10,
        window: Duration::from_nanos(111_111_112),
        available: 9,
        next: Some(Duration::ZERO),
        reset: None,
    };
    assert_eq!(seen, [("adaptive", state)]);
    rate.pin(50);
    assert_eq!((rate.limiter().quota().count(), rate.stats().pinned), (50, true));
}

/// Given that the rate is lowered, then a waiter behind it comes later, at the instant by the lower rate.
#[test]
fn a_waiter_waits_by_the_lower_rate() {
    let clock = ManualClock::new();
    let policy = Policy::new(rate(&clock, Quota::per_second(10).burst(1), Aimd::new().backoff(0.5)));
    clock.run(async {
        let first = policy.admit(1).await.unwrap();
        let waiter = async {
            drop(policy.admit(1).await.unwrap());
            assert_eq!(clock.elapsed(), ms(200));
        };
        futures::join!(waiter, async { first.finish(Outcome::Overload) });
    });
}

/// The function of RFC 9438, figure 1, beside what the law says at each second after a drop.
#[test]
fn cubic_follows_the_function_of_the_rfc() {
    for (max, scale, backoff) in [(100.0, 0.4, 0.7), (10.0, 0.4, 0.7), (1_000.0, 4.0, 0.5)] {
        let mut law = Cubic::new().scale(scale).backoff(backoff);
        let sample = Sample::new(ms(1), 1 << 40).over(ms(100));
        let mut limit = law.next(max, &sample.dropped());
        assert_eq!(limit, max * backoff);
        let back = f64::cbrt(max * (1.0 - backoff) / scale);
        for step in 1..200 {
            let after = f64::from(step) * 0.1 + 0.05;
            let expected = max + scale * (after - back).powi(3);
            let next = law.next(limit, &sample);
            let expected = expected.clamp(limit, limit * 1.5);
            assert!(
                (next - expected).abs() < 1e-6 * expected,
                "{max} after {after}: {next} for {expected}"
            );
            limit = next;
            let unused = Sample::new(ms(1), 0).over(Duration::from_secs(60));
            assert_eq!(law.next(limit, &unused), limit, "time without use does not count");
        }
    }
}

/// Any bucket takes any limit: what a quota cannot be is the nearest that it can.
#[test]
fn every_limit_makes_a_quota() {
    let unlimited = TokenBucket::new(Quota::unlimited());
    Resizable::set_limit(&unlimited, 7);
    assert_eq!(unlimited.quota(), Quota::per_second(7));
    let slow = TokenBucket::new("1000/s burst 1000000".parse().unwrap());
    Resizable::set_limit(&slow, 0);
    assert!(slow.quota().is_zero());
    Resizable::set_limit(&slow, usize::MAX);
    assert_eq!(slow.quota().to_string(), "1000000000/s burst 1000000");
    let year = TokenBucket::new("1000000/365d burst 1000000".parse().unwrap());
    Resizable::set_limit(&year, 1);
    assert_eq!(year.quota().to_string(), "1/365d burst 584");
}

proptest! {
    #![proptest_config(crate::cases(64))]

    /// Whatever the work meets, the limit is between floor and ceiling, the quota is that of the limit, and no span exceeds
    /// the burst and the highest rate.
    #[test]
    fn no_rate_leaves_its_bounds(
        which in 0..2usize,
        floor in 1..20usize,
        span in 0..50usize,
        burst in 1..10u64,
        steps in prop::collection::vec((1..4u64, 0..300u64, 0..4u8), 1..200),
    ) {
        let clock = ManualClock::new();
        let ceiling = floor + span;
        let law: Box<dyn LimitLaw> = match which {
            0 => Box::new(Aimd::new()),
            _ => Box::new(Cubic::new()),
        };
        let bucket = TokenBucket::new(Quota::per_second(10).burst(burst)).on(&clock);
        let builder = Adaptive::builder(bucket).law(law).bounds(floor, ceiling);
        let rate = builder.window(ms(200), 2).on(&clock).build().unwrap();
        let mut admitted = 0;
        for (units, later, outcome) in steps {
            let permit = rate.try_admit(units).ok();
            admitted += permit.as_ref().map_or(0, |_| units);
            clock.advance(ms(later));
            let outcome = [Outcome::Success, Outcome::Overload, Outcome::Failure, Outcome::Ignored][usize::from(outcome)];
            permit.into_iter().for_each(|permit| permit.finish(outcome));
            prop_assert!((floor..=ceiling).contains(&rate.limit()));
            prop_assert_eq!(rate.limiter().quota(), Quota::per_second(rate.limit() as u64).burst(burst));
            let most = burst as f64 + clock.elapsed().as_secs_f64() * ceiling as f64 + 1.0;
            prop_assert!(admitted as f64 <= most);
        }
    }
}
