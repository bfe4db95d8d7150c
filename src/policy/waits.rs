//! Counts and quantiles of the waits of a policy.

use crate::sync::shim::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;
use std::time::Duration;

/// The waits of a policy so far: how many callers waited, and how long. Times are exact to a quarter.
///
/// ```
/// # use tollgate::{ManualClock, Policy, Quota, TokenBucket};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let policy = Policy::new(TokenBucket::new(Quota::per_second(1)).on(&clock));
/// clock.run(async {
///     for _ in 0..3 {
///         drop(policy.admit(1).await);
///     }
/// });
/// let waits = policy.waits();
/// assert_eq!(waits.count, 2); // The first did not wait.
/// assert!(waits.p99 >= Duration::from_secs(1) && waits.p99 <= Duration::from_millis(1_250));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WaitStats {
    /// The callers that waited and were admitted.
    pub count: u64,
    /// Half of them waited no longer.
    pub p50: Duration,
    /// Nine in ten waited no longer.
    pub p90: Duration,
    /// All but one in a hundred waited no longer.
    pub p99: Duration,
    /// The longest wait.
    pub longest: Duration,
    /// The longest time for which a leg has kept the queue: a leg that blocks delays all waiters behind by it.
    pub slowest_leg: Duration,
}

/// Four buckets for each power of two of nanoseconds. Relaxed throughout: statistics.
pub(super) struct Waits {
    buckets: OnceLock<Box<[AtomicU64]>>,
    longest: AtomicU64,
    slowest: AtomicU64,
}

const BUCKETS: usize = 4 * 64;

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn bucket_of(nanos: u64) -> usize {
    let nanos = nanos.max(4);
    let power = nanos.ilog2();
    power as usize * 4 + (nanos >> (power - 2) & 3) as usize
}

/// The largest number of a bucket.
fn end_of(bucket: usize) -> u64 {
    let (power, quarter) = (bucket as u32 / 4, bucket as u64 % 4);
    let end = (u128::from(quarter) + 5) << power >> 2;
    u64::try_from(end - 1).unwrap_or(u64::MAX)
}

impl Waits {
    pub(super) fn new() -> Self {
        Self {
            buckets: OnceLock::new(),
            longest: AtomicU64::new(0),
            slowest: AtomicU64::new(0),
        }
    }

    /// A caller was admitted after `time`.
    pub(super) fn waited(&self, time: Duration) {
        let nanos = nanos(time);
        let buckets = self
            .buckets
            .get_or_init(|| (0..BUCKETS).map(|_| AtomicU64::new(0)).collect());
        buckets[bucket_of(nanos)].fetch_add(1, Ordering::Relaxed);
        self.longest.fetch_max(nanos, Ordering::Relaxed);
    }

    /// The legs were asked for `time`.
    pub(super) fn asked(&self, time: Duration) {
        let nanos = nanos(time);
        if nanos > self.slowest.load(Ordering::Relaxed) {
            self.slowest.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    pub(super) fn stats(&self) -> WaitStats {
        let counts: Vec<u64> = match self.buckets.get() {
            Some(buckets) => buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect(),
            None => Vec::new(),
        };
        let count: u64 = counts.iter().sum();
        let longest = self.longest.load(Ordering::Relaxed);
        let quantile = |percent: u64| {
            let mut left = (u128::from(count) * u128::from(percent)).div_ceil(100) as u64;
            let reached = counts.iter().position(|&own| {
                left = left.saturating_sub(own);
                left == 0
            });
            let end = reached.filter(|_| count > 0).map_or(0, end_of);
            Duration::from_nanos(end.min(longest))
        };
        WaitStats {
            count,
            p50: quantile(50),
            p90: quantile(90),
            p99: quantile(99),
            longest: Duration::from_nanos(longest),
            slowest_leg: Duration::from_nanos(self.slowest.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_within_a_quarter_of_what_it_holds() {
        for nanos in [4_u64, 5, 7, 8, 1_000, 1 << 40, u64::MAX - 1, u64::MAX] {
            let end = end_of(bucket_of(nanos));
            assert!(end >= nanos && end - nanos <= nanos / 4, "{nanos}: {end}");
        }
    }
}
