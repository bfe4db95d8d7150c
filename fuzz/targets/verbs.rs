//! The verbs of a token bucket, continuous or by interval, against whole numbers.

use std::time::Duration;
use tollgate::{ManualClock, Quota, TokenBucket};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Advance(u64),
    Take(u64),
    UpTo(u64),
    Force(u64),
}

impl Op {
    pub(crate) fn decode([which, a, b]: [u8; 3]) -> Self {
        let n = u64::from(a % 9);
        match which % 12 {
            0..4 => Self::Advance(u64::from(u16::from_le_bytes([a, b]) % 300)),
            4 => Self::Advance(u64::from(b) << (a % 43)),
            5..8 => Self::Take(n),
            8 => Self::UpTo(n),
            _ => Self::Force(n % 4),
        }
    }
}

/// `count` tokens in `nanos`, and bursts of `burst`.
pub(crate) fn run(count: u64, nanos: u64, burst: u64, by: bool, ops: Vec<Op>) {
    // So slow that the bucket distinguishes every two instants: a unit is less than what comes in one.
    let count = count.min(if by { nanos } else { 15.min(nanos) });
    // A token takes whole nanoseconds: of others the waits are rounded, and what that is counts.
    let nanos = if by { nanos } else { nanos * count };
    let quota = Quota::new(count, Duration::from_nanos(nanos)).unwrap().burst(burst);
    let quota = if by { quota.by_interval() } else { quota };
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(quota).on(&clock);
    // In `nanos`ths of a token.
    let (full, unit) = (i128::from(burst * nanos), i128::from(nanos));
    let (mut level, mut now) = (full, 0u64);
    let came = |at: u64| i128::from(if by { at / nanos * nanos } else { at }) * i128::from(count);
    for op in ops {
        // When so much will be there.
        let wait = |wanted: i128| {
            let missing = wanted - level;
            let at = if missing <= 0 {
                i128::from(now)
            } else {
                let at = (came(now) + missing + i128::from(count) - 1) / i128::from(count);
                if by { (at + unit - 1) / unit * unit } else { at }
            };
            Duration::from_nanos((at - i128::from(now)) as u64)
        };
        assert_eq!(i128::from(bucket.available()), level.max(0) / unit);
        assert_eq!(i128::from(bucket.debt()), ((-level).max(0) + unit - 1) / unit);
        assert_eq!(bucket.time_until_full(), Some(wait(full)));
        match op {
            Op::Advance(step) => {
                clock.advance(Duration::from_nanos(step));
                level = full.min(level + came(now + step) - came(now));
                now += step;
            }
            Op::Take(n) => {
                let (need, expected) = (i128::from(n) * unit, n <= burst);
                // Nothing is there at once, also in debt.
                let after = if n == 0 { Duration::ZERO } else { wait(need) };
                assert_eq!(bucket.time_until(n), expected.then_some(after));
                match bucket.try_acquire(n) {
                    Ok(()) => {
                        assert!(need <= level.max(0));
                        level -= need;
                    }
                    Err(refused) => {
                        assert!(need > level);
                        assert_eq!(refused.retry_after(), expected.then(|| wait(need)));
                    }
                }
            }
            Op::UpTo(n) => {
                let there = (level.max(0) / unit).min(n.into());
                assert_eq!(i128::from(bucket.acquire_up_to(n)), there);
                level -= there * unit;
            }
            Op::Force(n) => {
                bucket.force_acquire(n);
                level -= i128::from(n) * unit;
            }
        }
    }
}
