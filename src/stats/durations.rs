//! A histogram of durations.

use hdrhistogram::Histogram;
use std::fmt;
use std::time::Duration;

/// Longer durations count as this.
const LONGEST: Duration = Duration::from_secs(3_600);
/// A width of 1 % of the value, or less.
const DIGITS: u8 = 2;

/// A histogram of durations: any quantile to within 1 %, from a nanosecond to an hour. Longer durations count as an hour. It is
/// 40 KiB large, whatever it has counted.
///
/// ```
/// # use tollgate::{ManualClock, Semaphore};
/// # use std::{pin::pin, time::Duration};
/// # use futures::FutureExt;
/// let clock = ManualClock::new();
/// let semaphore = Semaphore::new(1).with_stats(&clock);
/// let held = semaphore.try_acquire().unwrap();
/// let mut waiter = pin!(semaphore.acquire());
/// assert!(waiter.as_mut().now_or_never().is_none());
/// clock.advance(Duration::from_millis(20));
/// drop(held);
/// assert!(waiter.now_or_never().is_some());
/// assert_eq!(semaphore.stats().unwrap().wait_time.max().as_millis(), 20);
/// ```
#[derive(Clone, PartialEq)]
pub struct Durations(Histogram<u64>);

impl Durations {
    pub(crate) fn new() -> Self {
        let longest = LONGEST.as_nanos() as u64;
        Self(Histogram::new_with_bounds(1, longest, DIGITS).expect("the bounds are constants that fit"))
    }

    pub(crate) fn record(&mut self, duration: Duration) {
        let nanos = duration.min(LONGEST).as_nanos() as u64;
        self.0.saturating_record(nanos);
    }

    /// The number of durations counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The shortest; zero when none was counted.
    pub fn min(&self) -> Duration {
        if self.0.is_empty() {
            Duration::ZERO
        } else {
            Duration::from_nanos(self.0.min())
        }
    }

    /// The longest; zero when none was counted.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max()).min(LONGEST)
    }

    /// The mean; zero when none was counted.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }

    /// The duration that this share of all did not exceed: 0.5 is the median. Shares beyond 0 and 1 count as those; zero when none
    /// was counted.
    pub fn quantile(&self, share: f64) -> Duration {
        // NaN counts as 0.
        let share = if share > 0.0 { share.min(1.0) } else { 0.0 };
        Duration::from_nanos(self.0.value_at_quantile(share)).min(LONGEST)
    }

    /// The number of durations of at most `duration`, to within the histogram's width. For cumulative buckets of any bounds.
    pub fn count_up_to(&self, duration: Duration) -> u64 {
        self.0.count_between(0, duration.min(LONGEST).as_nanos() as u64)
    }
}

impl fmt::Debug for Durations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durations")
            .field("count", &self.count())
            .field("p50", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .field("max", &self.max())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_within_one_percent() {
        let mut waits = Durations::new();
        for millis in 1..=1_000 {
            waits.record(Duration::from_millis(millis));
        }
        for (share, exact) in [(0.01, 10), (0.5, 500), (0.99, 990), (1.0, 1_000)] {
            let (seen, exact) = (waits.quantile(share).as_secs_f64(), exact as f64 / 1e3);
            assert!((seen - exact).abs() <= exact * 0.01, "{share}: {seen} for {exact}");
        }
        assert_eq!(waits.count_up_to(Duration::from_secs(2)), 1_000);
        assert_eq!(waits.quantile(f64::NAN), waits.quantile(0.0));
    }

    #[test]
    fn extremes_count_as_the_bounds() {
        let mut waits = Durations::new();
        assert_eq!((waits.min(), waits.max(), waits.mean()), Default::default());
        waits.record(Duration::MAX);
        assert_eq!((waits.min() > LONGEST * 99 / 100, waits.max()), (true, LONGEST));
        waits.record(Duration::ZERO);
        assert_eq!((waits.count(), waits.min()), (2, Duration::ZERO));
    }
}
