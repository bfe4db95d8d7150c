//! The schedule of delays. Pure: numbers in, durations out.

use crate::rng::Rng;
use std::fmt;
use std::time::Duration;

/// Exponential back-off with decorrelated jitter: each delay is drawn between `base` and three times the delay before, and is at
/// most `cap`.
///
/// So delays grow, and clients that failed at the same instant do not come back at the same instant. The rule is that of
/// M. Brooker, *Exponential Backoff And Jitter* (AWS, 2015).
///
/// ```
/// # use tollgate_resilience::retry::Backoff;
/// # use std::time::Duration;
/// let (base, cap) = (Duration::from_millis(50), Duration::from_secs(5));
/// let backoff = Backoff::new(base, cap)?;
/// let delays: Vec<Duration> = backoff.delays(7).take(20).collect();
/// assert!(delays.iter().all(|delay| (base..=cap).contains(delay)));
/// assert!(delays.windows(2).all(|pair| pair[1] <= pair[0] * 3));
/// assert_eq!(delays, backoff.delays(7).take(20).collect::<Vec<_>>(), "the same seed gives the same delays");
/// # Ok::<(), tollgate_resilience::retry::BackoffError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
}

impl Backoff {
    const MOST: Duration = Duration::from_secs(365 * 86_400);

    /// Delays of at least `base`, which is above zero, and of at most `cap`, which is up to 365 days.
    ///
    /// # Errors
    /// [`BackoffError`] when the two are out of bounds, or contradict each other.
    pub const fn new(base: Duration, cap: Duration) -> Result<Self, BackoffError> {
        if base.is_zero() || base.as_nanos() > cap.as_nanos() || cap.as_nanos() > Self::MOST.as_nanos() {
            return Err(BackoffError { base, cap });
        }
        Ok(Self { base, cap })
    }

    /// The delays of one sequence of retries. Different seeds give independent sequences.
    pub fn delays(&self, seed: u64) -> Delays {
        Delays {
            backoff: *self,
            previous: self.base,
            rng: Rng::new(seed),
        }
    }
}

/// 100 ms to 20 s.
impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(100),
            cap: Duration::from_secs(20),
        }
    }
}

/// The delays of one sequence of retries, without an end. Made by [`Backoff::delays`].
///
/// ```
/// # use tollgate_resilience::retry::Backoff;
/// # use std::time::Duration;
/// let (least, most) = (Duration::from_millis(100), Duration::from_secs(10));
/// let delays = Backoff::new(least, most)?.delays(7);
/// assert!(delays.take(100).all(|delay| (least..=most).contains(&delay)));
/// # Ok::<(), tollgate_resilience::retry::BackoffError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Delays {
    backoff: Backoff,
    previous: Duration,
    rng: Rng,
}

impl Delays {
    /// The next delay, or `least` and up to the part `jitter` of it more, whichever is longer.
    pub(super) fn at_least(&mut self, least: Duration, jitter: f64) -> Duration {
        let more = least.as_secs_f64() * jitter * self.rng.fraction();
        let spread = least.saturating_add(Duration::try_from_secs_f64(more).unwrap_or(Duration::MAX));
        self.next().unwrap_or_default().max(spread)
    }
}

impl Iterator for Delays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let Backoff { base, cap } = self.backoff;
        let span = self.previous.saturating_mul(3).saturating_sub(base);
        let delay = base.saturating_add(span.mul_f64(self.rng.fraction())).min(cap);
        self.previous = delay;
        Some(delay)
    }
}

/// The bounds of a [`Backoff`] that cannot be.
///
/// ```
/// # use tollgate_resilience::retry::Backoff;
/// # use std::time::Duration;
/// let error = Backoff::new(Duration::from_secs(9), Duration::from_secs(3)).unwrap_err();
/// assert_eq!(error.to_string(), "a base of 9s and a cap of 3s were given, and 0 < base <= cap <= 365 days is allowed");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffError {
    base: Duration,
    cap: Duration,
}

impl fmt::Display for BackoffError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base, cap } = self;
        write!(
            f,
            "a base of {base:?} and a cap of {cap:?} were given, and 0 < base <= cap <= 365 days is allowed"
        )
    }
}

impl std::error::Error for BackoffError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_delay_is_between_the_base_and_three_times_the_delay_before(
            seed: u64,
            base in 1..=Backoff::MOST.as_nanos() as u64,
            more in 0..=Backoff::MOST.as_nanos() as u64,
        ) {
            let [base, cap] = [base, base.saturating_add(more)].map(Duration::from_nanos);
            let cap = cap.min(Backoff::MOST);
            let backoff = Backoff::new(base, cap).unwrap();
            let mut previous = base;
            for delay in backoff.delays(seed).take(50) {
                prop_assert!(base <= delay && delay <= cap && delay <= previous * 3);
                previous = delay;
            }
        }
    }

    /// Given many sequences, then the first delay is uniform from once to three times the base, and the mean grows up to the
    /// region of the cap.
    #[test]
    fn delays_grow_and_spread() {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10)).unwrap();
        let mean = |nth: usize| {
            let delays = (0..2_000).map(|seed| backoff.delays(seed * 7_919).nth(nth).unwrap().as_secs_f64());
            delays.sum::<f64>() / 2_000.0
        };
        assert!((mean(0) - 0.2).abs() < 0.005, "{}", mean(0));
        assert!((mean(1) - 0.35).abs() < 0.02, "{}", mean(1));
        assert!(mean(12) > 2.0 && mean(12) < 10.0, "{}", mean(12));
    }
}
