//! Cancelled bookings beside a model: no span has too many by the instants at which they start, and the rest is what the kept
//! bookings would have left alone, each in its own instant. The model is in `fuzz/targets/bookings.rs`.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::{LeakyBucket, ManualClock, Quota, TokenBucket};

#[path = "../../../fuzz/targets/bookings.rs"]
mod program;

use program::{Books, Plan};

const SECOND: Duration = Duration::from_secs(1);

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

proptest! {
    #![proptest_config(crate::cases(1_500))]

    /// Given any takes, bookings and cancels at any time, then the bucket is a list of its admissions; no span exceeds its
    /// bound by when they start; it never holds more than the kept ones would leave alone; and exactly that, when all
    /// are given up at the instant at which they were booked.
    /// Keeps out go#56924, go#69419.
    #[test]
    fn bookings_that_are_given_up_are_as_if_never_made(
        plans in crate::ops(1..80, Plan::decode), burst in 1u64..9, by in any::<bool>(),
    ) {
        program::token_bucket(burst, by, plans);
    }

    /// The same of a leaky bucket; there a weight may be more than goes out at once.
    #[test]
    fn bookings_of_leaky_buckets_are_as_if_never_made(
        plans in crate::ops(1..80, Plan::decode), slack in 0u64..9, size in 1u64..40,
    ) {
        program::leaky_bucket(slack, size, plans);
    }
}
