//! Additive increase, multiplicative decrease.

use super::law::{LimitLaw, Sample};
use std::time::Duration;

/// Raises the limit by one, or by [`increase`](Self::increase), while all goes well. Lowers it by a tenth if a request is dropped for overload or takes too
/// long.
///
/// Simple and hard to fool; it only learns by being too high. The law of D. Chiu and R. Jain (1989).
///
/// ```
/// # use tollgate_resilience::adaptive::{Aimd, LimitLaw, Sample};
/// # use std::time::Duration;
/// let mut law = Aimd::new();
/// let fast = Sample::new(Duration::from_millis(1), 30);
/// assert_eq!(law.next(30.0, &fast), 31.0);
/// assert_eq!(law.next(30.0, &fast.dropped()), 27.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aimd {
    backoff: f64,
    increase: f64,
    timeout: Duration,
}

impl Aimd {
    /// A factor of 0.9, an increase of 1, and a time-out of 5 s.
    ///
    /// ```
    /// # use tollgate_resilience::adaptive::{Aimd, LimitLaw, Sample};
    /// # use std::time::Duration;
    /// let mut law = Aimd::new().backoff(0.5).increase(2.0).timeout(Duration::from_secs(1));
    /// let slow = Sample::new(Duration::from_secs(2), 10);
    /// assert_eq!(law.next(10.0, &slow), 5.0);
    /// ```
    pub fn new() -> Self {
        Self {
            backoff: 0.9,
            increase: 1.0,
            timeout: Duration::from_secs(5),
        }
    }

    /// The factor of a limit that is too high: 0.5 to 0.99, clamped.
    #[must_use]
    pub fn backoff(mut self, factor: f64) -> Self {
        self.backoff = factor.clamp(0.5, 0.99);
        self
    }

    /// The number that is added after each window: 0.001 to 10^6, clamped. A rate of thousands per period needs more than 1.
    #[must_use]
    pub fn increase(mut self, by: f64) -> Self {
        self.increase = by.clamp(1e-3, 1e6);
        self
    }

    /// A latency above this counts as dropped.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl Default for Aimd {
    fn default() -> Self {
        Self::new()
    }
}

impl LimitLaw for Aimd {
    fn next(&mut self, limit: f64, sample: &Sample) -> f64 {
        if sample.dropped || sample.latency > self.timeout {
            (limit * self.backoff).floor()
        } else if sample.is_app_limited(limit) {
            limit
        } else {
            limit + self.increase
        }
    }
}
