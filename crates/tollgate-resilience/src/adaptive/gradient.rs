//! The current latency beside the latency without load, which is measured now and then.

use super::law::{LimitLaw, Sample};

/// Compares the latency with the least, measured while only few requests are let through. The limit is multiplied by
/// `least x (1 + buffer) / latency`, from a half to twice, and may exceed that by its square root.
///
/// The first window measures the least, at any load. From then on, after [`measure_every`](Self::measure_every)
/// windows, the limit goes down to [`measure_at`](Self::measure_at) until a window has no more in flight than that. The
/// window after it measures: earlier requests have ended by then, however long their queue was. So a resource that has
/// become slower for good is told from one that is overloaded. The price is the traffic of two windows, and of as many
/// more as the queue takes to empty.
///
/// The gradient controller of Envoy's adaptive concurrency filter (2019).
///
/// ```
/// # use tollgate_resilience::adaptive::{Gradient, LimitLaw, Sample};
/// # use std::time::Duration;
/// let mut law = Gradient::new();
/// let at = |ms| Sample::new(Duration::from_millis(ms), 100);
/// assert_eq!(law.next(100.0, &at(10)), 100.0);
/// // Within the buffer of a quarter it grows, at twice the least it halves.
/// assert_eq!(law.next(100.0, &at(10)).floor(), 136.0);
/// assert_eq!(law.next(100.0, &at(25)).floor(), 57.0);
/// ```
#[doc(alias = "Envoy")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradient {
    buffer: f64,
    every: u32,
    measure_at: f64,
    /// In seconds.
    least: Option<f64>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Windows since the least was measured.
    Steady(u32),
    /// The limit is down from this, until earlier requests have ended.
    Draining(f64),
    /// The next window measures at the low limit.
    Measuring(f64),
}

impl Gradient {
    /// A buffer of 0.25; the least is measured every 600 windows, at a limit of 3.
    ///
    /// ```
    /// # use tollgate_resilience::adaptive::{Gradient, LimitLaw, Sample};
    /// # use std::time::Duration;
    /// let mut law = Gradient::new().buffer(0.1).measure_every(100).measure_at(3);
    /// let limit = law.next(20.0, &Sample::new(Duration::from_millis(10), 20));
    /// assert!(limit > 0.0);
    /// ```
    pub fn new() -> Self {
        Self {
            buffer: 0.25,
            every: 600,
            measure_at: 3.0,
            least: None,
            stage: Stage::Steady(0),
        }
    }

    /// The part of the least by which the latency may vary before it counts: 0 to 10, clamped.
    #[must_use]
    pub fn buffer(mut self, part: f64) -> Self {
        self.buffer = part.clamp(0.0, 10.0);
        self
    }

    /// After how many windows the least is measured anew; 0 counts as 1.
    #[must_use]
    pub fn measure_every(mut self, windows: u32) -> Self {
        self.every = windows.max(1);
        self
    }

    /// The limit while it measures, if that is lower; the limit's floor holds. 0 counts as 1.
    #[must_use]
    pub fn measure_at(mut self, limit: u32) -> Self {
        self.measure_at = limit.max(1).into();
        self
    }

    fn next_limit(&self, limit: f64, least: f64, sample: &Sample) -> f64 {
        let gradient = match sample.dropped {
            true => 0.5,
            false => (least * (1.0 + self.buffer) / sample.seconds()).clamp(0.5, 2.0),
        };
        let new = limit * gradient + (limit * gradient).sqrt();
        if sample.is_app_limited(limit) {
            new.min(limit)
        } else {
            new
        }
    }
}

impl Default for Gradient {
    fn default() -> Self {
        Self::new()
    }
}

impl LimitLaw for Gradient {
    fn next(&mut self, limit: f64, sample: &Sample) -> f64 {
        match (self.stage, self.least) {
            (Stage::Draining(before), _) => {
                // A window that began with a queue would measure the queue.
                if sample.in_flight as f64 <= limit {
                    self.stage = Stage::Measuring(before);
                }
                limit
            }
            (Stage::Measuring(before), _) => {
                self.least = Some(sample.seconds());
                self.stage = Stage::Steady(0);
                before
            }
            (Stage::Steady(_), None) => {
                self.least = Some(sample.seconds());
                limit
            }
            (Stage::Steady(windows), Some(least)) => {
                let new = self.next_limit(limit, least, sample);
                self.stage = Stage::Steady(windows + 1);
                if windows + 1 < self.every {
                    return new;
                }
                self.stage = Stage::Draining(new);
                new.min(self.measure_at)
            }
        }
    }
}
