//! How long a circuit stays open.

use super::builder::BreakerBuilder;
use super::error::BreakerError;
use std::fmt;
use std::time::Duration;

/// The input of a computed open time.
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock, Outcome};
/// # use tollgate_resilience::{CircuitBreaker, OpenTime};
/// # use std::time::Duration;
/// let by_attempt = OpenTime::computed(|trip| Duration::from_secs(5 * u64::from(trip.attempt.min(3))));
/// let builder = CircuitBreaker::builder().consecutive_failures(1).open_for(by_attempt);
/// let breaker = builder.on(&ManualClock::new()).build().unwrap();
/// breaker.try_admit(1).unwrap().finish(Outcome::Failure);
/// assert!(breaker.retry_after().is_some_and(|left| left <= Duration::from_secs(15)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Trip {
    /// How many times in a row it has opened, this time included; it starts anew once the circuit has closed.
    pub attempt: u32,
    /// How many calls were judged.
    pub calls: u64,
    /// How many of them had failed.
    pub failed: u64,
    /// How many of them were slow.
    pub slow: u64,
}

type Computed = Box<dyn Fn(Trip) -> Duration + Send + Sync>;

/// How long a circuit stays open before it lets probes through.
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock, Outcome};
/// # use tollgate_resilience::{CircuitBreaker, OpenTime};
/// # use std::time::Duration;
/// let second = Duration::from_secs(1);
/// let clock = ManualClock::new();
/// let builder = CircuitBreaker::builder().consecutive_failures(1).probes(1).on(&clock);
/// let breaker = builder.open_for(OpenTime::exponential(second, 2.0, second * 60)).build().unwrap();
/// for doubled in [1, 2, 4] {
///     breaker.try_admit(1).unwrap().finish(Outcome::Failure);
///     assert_eq!(breaker.retry_after(), Some(second * doubled));
///     clock.advance(second * doubled);
/// }
/// ```
#[must_use]
pub struct OpenTime {
    law: Law,
    jitter: f64,
}

enum Law {
    Growing {
        first: Duration,
        factor: f64,
        most: Duration,
    },
    Computed(Computed),
}

impl OpenTime {
    /// The same each time.
    pub fn fixed(time: Duration) -> Self {
        Self::exponential(time, 1.0, time)
    }

    /// `first`, and each time that the probes fail `factor` times as long, up to `most`.
    pub fn exponential(first: Duration, factor: f64, most: Duration) -> Self {
        Self {
            law: Law::Growing { first, factor, most },
            jitter: 0.0,
        }
    }

    /// The time that `compute` returns. It runs outside every lock. If it panics, the circuit opens for 30 s, and the
    /// panic goes on.
    ///
    /// ```
    /// # use tollgate::{LimiterExt, ManualClock, Outcome};
    /// # use tollgate_resilience::{CircuitBreaker, OpenTime};
    /// # use std::time::Duration;
    /// // A second for each time in a row.
    /// let by_attempt = OpenTime::computed(|trip| Duration::from_secs(1 + u64::from(trip.attempt)));
    /// let builder = CircuitBreaker::builder().consecutive_failures(1).open_for(by_attempt);
    /// let breaker = builder.on(&ManualClock::new()).build()?;
    /// breaker.try_admit(1).unwrap().finish(Outcome::Failure);
    /// assert!(breaker.retry_after() >= Some(Duration::from_secs(1)));
    /// # Ok::<(), tollgate_resilience::BreakerError>(())
    /// ```
    pub fn computed(compute: impl Fn(Trip) -> Duration + Send + Sync + 'static) -> Self {
        Self {
            law: Law::Computed(Box::new(compute)),
            jitter: 0.0,
        }
    }

    /// Spreads the time evenly by up to `fraction` of it in either direction, so that many clients do not come back at
    /// once.
    pub fn jitter(mut self, fraction: f64) -> Self {
        self.jitter = fraction;
        self
    }

    pub(super) fn check(&self) -> Result<(), BreakerError> {
        if let Law::Growing { first, factor, most } = self.law {
            BreakerBuilder::time("open time", first)?;
            BreakerBuilder::time("open time, the longest", most)?;
            if !(1.0..=100.0).contains(&factor) {
                return Err(BreakerError::Factor { given: factor });
            }
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return Err(BreakerError::Jitter { given: self.jitter });
        }
        Ok(())
    }

    /// The time for `trip`; `random` is a fraction from 0 to 1.
    pub(super) fn after(&self, trip: Trip, random: f64) -> Duration {
        let time = match &self.law {
            Law::Growing { first, factor, most } => {
                // Beyond this power any growth exceeds every allowed length, and a factor of 1 stays 1.
                let power = trip.attempt.saturating_sub(1).min(1 << 20) as i32;
                let seconds = first.as_secs_f64() * factor.powi(power);
                if *factor == 1.0 {
                    *first
                } else {
                    Duration::try_from_secs_f64(seconds).unwrap_or(*most)
                }
                .min(*most)
            }
            Law::Computed(compute) => compute(trip),
        };
        if self.jitter == 0.0 {
            return time;
        }
        let spread = 1.0 + self.jitter * (2.0 * random - 1.0);
        Duration::try_from_secs_f64(time.as_secs_f64() * spread).unwrap_or(time)
    }
}

impl fmt::Debug for OpenTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("OpenTime");
        match self.law {
            Law::Growing { first, factor, most } => {
                out.field("first", &first).field("factor", &factor).field("most", &most);
            }
            Law::Computed(_) => {
                out.field("computed", &true);
            }
        }
        out.field("jitter", &self.jitter).finish()
    }
}
