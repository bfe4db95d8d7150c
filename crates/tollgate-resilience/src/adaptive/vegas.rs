//! The queue below the limit, estimated from latency.

use super::law::{LimitLaw, Sample};

/// Estimates how many of those in flight are only queued, from the latency beside the shortest seen. It keeps that
/// number between two bounds that grow with the logarithm of the limit.
///
/// The shortest latency is measured anew now and then, so that a resource that has become slower for good is not taken
/// for a queue. After L. Brakmo and L. Peterson, *TCP Vegas* (1995), in the form of Netflix' concurrency-limits.
///
/// ```
/// # use tollgate_resilience::adaptive::{LimitLaw, Sample, Vegas};
/// # use std::time::Duration;
/// let mut law = Vegas::new();
/// let at = |ms, in_flight| Sample::new(Duration::from_millis(ms), in_flight);
/// assert_eq!(law.next(10.0, &at(10, 10)), 10.0);
/// assert_eq!(law.next(10.0, &at(10, 11)), 16.0);
/// assert_eq!(law.next(10.0, &at(50, 11)), 9.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vegas {
    smoothing: f64,
    /// The factor of a limit whose queue is too long; `None`: one logarithm less.
    backoff: Option<f64>,
    probe_every: f64,
    samples: f64,
    /// The shortest latency, in seconds.
    shortest: Option<f64>,
}

impl Vegas {
    /// No smoothing, and the shortest latency measured anew after 30 samples for each unit of the limit.
    pub fn new() -> Self {
        Self {
            smoothing: 1.0,
            backoff: None,
            probe_every: 30.0,
            samples: 0.0,
            shortest: None,
        }
    }

    /// How far each step goes towards the new limit: 0.01 to 1, clamped.
    #[must_use]
    pub fn smoothing(mut self, smoothing: f64) -> Self {
        self.smoothing = smoothing.clamp(0.01, 1.0);
        self
    }

    /// Multiplies the limit by `factor` when the queue is too long, 0.1 to 0.99, clamped, instead of subtracting its
    /// logarithm.
    ///
    #[must_use]
    pub fn backoff(mut self, factor: f64) -> Self {
        self.backoff = Some(factor.clamp(0.1, 0.99));
        self
    }

    fn less(&self, limit: f64) -> f64 {
        match self.backoff {
            Some(factor) => limit * factor,
            None => limit - step(limit),
        }
    }
}

impl Default for Vegas {
    fn default() -> Self {
        Self::new()
    }
}

/// The whole part of the decimal logarithm, at least 1.
fn step(limit: f64) -> f64 {
    limit.log10().floor().max(1.0)
}

impl LimitLaw for Vegas {
    fn next(&mut self, limit: f64, sample: &Sample) -> f64 {
        let latency = sample.seconds();
        self.samples += 1.0;
        if self.samples >= self.probe_every * limit {
            self.samples = 0.0;
            self.shortest = Some(latency);
            return limit;
        }
        let shortest = match self.shortest {
            Some(shortest) if shortest <= latency => shortest,
            _ => {
                self.shortest = Some(latency);
                if !sample.dropped {
                    return limit;
                }
                latency
            }
        };
        let queue = (limit * (1.0 - shortest / latency)).ceil();
        let step = step(limit);
        let new = if sample.dropped {
            self.less(limit)
        } else if sample.is_app_limited(limit) {
            return limit;
        } else if queue <= step {
            limit + 6.0 * step
        } else if queue < 3.0 * step {
            limit + step
        } else if queue > 6.0 * step {
            self.less(limit)
        } else {
            return limit;
        };
        limit + self.smoothing * (new.max(1.0) - limit)
    }
}
