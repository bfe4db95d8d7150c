//! The trait of a law, and its input.

use std::time::Duration;

/// The summary of a window of finished work.
///
/// ```
/// # use tollgate_resilience::adaptive::{Aimd, LimitLaw, Sample};
/// # use std::time::Duration;
/// let good = Sample::new(Duration::from_millis(20), 10).over(Duration::from_secs(1));
/// let mut law = Aimd::new();
/// assert!(law.next(10.0, &good) > 10.0);
/// assert!(law.next(10.0, &good.dropped()) < 10.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// The latency of the work: the percentile of the window.
    pub latency: Duration,
    /// The most that was in flight. Of a rate: the units that ended, as a number per period.
    pub in_flight: u64,
    /// True if a request was dropped for overload.
    pub dropped: bool,
    /// The length of the window.
    pub elapsed: Duration,
}

impl Sample {
    /// Work that took `latency` with `in_flight` in flight, none dropped, in a window without length.
    pub fn new(latency: Duration, in_flight: u64) -> Self {
        Self {
            latency,
            in_flight,
            dropped: false,
            elapsed: Duration::ZERO,
        }
    }

    /// The same, with a request dropped for overload.
    #[must_use]
    pub fn dropped(mut self) -> Self {
        self.dropped = true;
        self
    }

    /// The same, of a window of this length.
    #[must_use]
    pub fn over(mut self, elapsed: Duration) -> Self {
        self.elapsed = elapsed;
        self
    }

    /// True if less than half of `limit` was used: the sample says nothing about the limit, and no law raises it.
    pub fn is_app_limited(&self, limit: f64) -> bool {
        (self.in_flight as f64) * 2.0 < limit
    }

    /// In seconds, never zero.
    pub(crate) fn seconds(&self) -> f64 {
        self.latency.as_secs_f64().max(1e-9)
    }
}

/// A law that computes a limit from samples.
///
/// ```
/// # use tollgate_resilience::adaptive::{Adaptive, LimitLaw, Sample};
/// # use tollgate::{LimiterExt, ManualClock, Outcome, Semaphore};
/// # use std::time::Duration;
/// /// Halves at a drop, and grows by one otherwise.
/// struct Halve;
/// impl LimitLaw for Halve {
///     fn next(&mut self, limit: f64, sample: &Sample) -> f64 {
///         if sample.dropped { limit / 2.0 } else { limit + 1.0 }
///     }
/// }
/// let clock = ManualClock::new();
/// let builder = Adaptive::builder(Semaphore::new(8)).law(Halve).bounds(1, 100).window(Duration::ZERO, 1);
/// let gate = builder.on(&clock).build()?;
/// gate.try_admit(1).unwrap().finish(Outcome::Overload);
/// assert_eq!(gate.limit(), 4);
/// # Ok::<(), tollgate_resilience::adaptive::AdaptiveError>(())
/// ```
pub trait LimitLaw: Send {
    /// The limit after `sample`, from the limit before. The caller clamps it between floor and ceiling.
    fn next(&mut self, limit: f64, sample: &Sample) -> f64;
}

impl LimitLaw for Box<dyn LimitLaw> {
    fn next(&mut self, limit: f64, sample: &Sample) -> f64 {
        (**self).next(limit, sample)
    }
}
