//! governor as an oracle: on what both can do, the token bucket gives the same verdicts, and the same times to wait.
//!
//! Both can do: a whole number of nanoseconds per token, one quota for ever, a clock that does not go back, no giving
//! back. The differences, all of them:
//! - Of more than the burst, governor says that it can never be admitted. The bucket refuses without a time to wait, since
//!   its quota can grow.
//! - Where all of the burst takes more than 2^44 ns to refill, almost five hours, the bucket counts in steps of more than a
//!   nanosecond, and may admit earlier by less than one step: 2^-44 of that time. The traces stay below.
//! - Zero tokens cannot be asked of governor. The bucket admits them, unless it is in debt.

use governor::clock::FakeRelativeClock;
use governor::{Quota as Theirs, RateLimiter};
use std::num::NonZeroU32;
use std::time::Duration;
use tollgate::{ManualClock, Quota, TokenBucket};

/// splitmix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// From 1 to `most`, each size as likely as the others.
    fn of_any_size(&mut self, most: u64) -> u64 {
        let bits = self.below(u64::from(most.ilog2()) + 1) + 1;
        (self.next() >> (64 - bits)).clamp(1, most)
    }
}

fn trace(seed: u64) {
    let mut random = Random(seed);
    // From one per nanosecond to one per hour.
    let nanos = random.of_any_size(3_600_000_000_000);
    let burst = random.of_any_size(((1 << 44) / nanos).min(1_000)) as u32;
    let clock = ManualClock::new();
    clock.advance(Duration::from_nanos(random.below(1 << 40)));
    let per_token = Duration::from_nanos(nanos);
    let ours = Quota::new(1, per_token).unwrap().with_burst(burst.into()).unwrap();
    let ours = TokenBucket::new(ours).on(&clock);
    let their_clock = FakeRelativeClock::default();
    let theirs = Theirs::with_period(per_token)
        .unwrap()
        .allow_burst(NonZeroU32::new(burst).unwrap());
    let theirs = RateLimiter::direct_with_clock(theirs, their_clock.clone());
    for step in 0..30 {
        // Often not at all, often just to an instant at which something is due, or next to it.
        let pause = match random.below(6) {
            0 | 1 => 0,
            2 => nanos,
            3 => nanos * (1 + random.below(burst.into())) + random.below(3) - 1,
            4 => random.of_any_size(nanos),
            _ => random.of_any_size(nanos.saturating_mul(2 * u64::from(burst))),
        };
        clock.advance(Duration::from_nanos(pause));
        their_clock.advance(Duration::from_nanos(pause));
        let more_than_fits = u64::from(random.below(8) == 0);
        let n = 1 + random.below(u64::from(burst) + more_than_fits);
        let said = theirs.check_n(NonZeroU32::new(n as u32).unwrap());
        let which = || format!("trace {seed}, step {step}: {n} of {burst}, one in {nanos} ns");
        match (ours.try_acquire(n), said) {
            (Ok(()), Ok(Ok(()))) => {}
            (Err(refused), Ok(Err(until))) => {
                use governor::clock::Clock;
                let wait = until.wait_time_from(their_clock.now());
                assert_eq!(refused.retry_after(), Some(wait), "{}", which());
            }
            (Err(refused), Err(_)) => {
                assert!(n > burst.into(), "{}", which());
                assert_eq!(refused.retry_after(), None, "{}", which());
            }
            (ours, theirs) => panic!("{}: {ours:?}, but governor says {theirs:?}", which()),
        }
    }
}

/// Given random quotas and random times, then both agree at every step. As many traces as `TOLLGATE_TRACES` says.
/// Keeps out governor#11.
#[test]
fn the_bucket_agrees_with_governor() {
    let traces = std::env::var("TOLLGATE_TRACES")
        .ok()
        .and_then(|traces| traces.parse().ok());
    for seed in 0..traces.unwrap_or(4_000) {
        trace(seed);
    }
}
