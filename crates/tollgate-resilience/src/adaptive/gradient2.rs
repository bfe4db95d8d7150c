//! The current latency beside its long average.

use super::law::{LimitLaw, Sample};

/// Compares the latency with its average over a long time. While it is within the tolerance, the limit grows by the
/// allowed queue; beyond, it shrinks in proportion, by half at most.
///
/// The average follows a load that lasts, so under a mild overload the limit keeps growing, to its ceiling: set one
/// that the resource can bear. The second gradient law of Netflix' concurrency-limits (2018).
///
/// ```
/// # use tollgate_resilience::adaptive::{Gradient2, LimitLaw, Sample};
/// # use std::time::Duration;
/// let mut law = Gradient2::new();
/// let steady = Sample::new(Duration::from_millis(10), 100);
/// assert_eq!(law.next(100.0, &steady), 100.8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradient2 {
    smoothing: f64,
    tolerance: f64,
    queue: f64,
    average: Average,
}

impl Gradient2 {
    /// Smoothing 0.2, tolerance 1.5, a queue of 4, an average over 600 samples.
    pub fn new() -> Self {
        Self {
            smoothing: 0.2,
            tolerance: 1.5,
            queue: 4.0,
            average: Average::default(),
        }
    }

    /// How far each step goes towards the new limit: 0.01 to 1, clamped.
    #[must_use]
    pub fn smoothing(mut self, smoothing: f64) -> Self {
        self.smoothing = smoothing.clamp(0.01, 1.0);
        self
    }

    /// How many times the average latency is tolerated: 1 to 10, clamped.
    #[must_use]
    pub fn tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = tolerance.clamp(1.0, 10.0);
        self
    }

    /// The allowed length of the queue.
    #[must_use]
    pub fn queue(mut self, queue: u32) -> Self {
        self.queue = queue.into();
        self
    }
}

impl Default for Gradient2 {
    fn default() -> Self {
        Self::new()
    }
}

impl LimitLaw for Gradient2 {
    fn next(&mut self, limit: f64, sample: &Sample) -> f64 {
        let latency = sample.seconds();
        let long = self.average.add(latency);
        if long > 2.0 * latency {
            // The resource was under load: come down faster than the average does.
            self.average.value *= 0.95;
        }
        if sample.is_app_limited(limit) && !sample.dropped {
            return limit;
        }
        let gradient = match sample.dropped {
            true => 0.5,
            false => (self.tolerance * long / latency).clamp(0.5, 1.0),
        };
        let new = limit * gradient + self.queue;
        limit * (1.0 - self.smoothing) + new * self.smoothing
    }
}

/// The mean of the first samples, then an exponential average.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
struct Average {
    value: f64,
    samples: u32,
}

impl Average {
    const MEAN_OF: u32 = 10;
    const WINDOW: f64 = 600.0;

    fn add(&mut self, sample: f64) -> f64 {
        let weight = if self.samples < Self::MEAN_OF {
            self.samples += 1;
            1.0 / f64::from(self.samples)
        } else {
            2.0 / (Self::WINDOW + 1.0)
        };
        self.value += (sample - self.value) * weight;
        self.value
    }
}
