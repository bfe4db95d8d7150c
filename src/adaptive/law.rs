//! What a law is, and what it is told.

use std::time::Duration;

/// What a window of finished work adds up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// How long the work took: the percentile of the window.
    pub latency: Duration,
    /// The most that was in flight.
    pub in_flight: u64,
    /// True when something was dropped for overload.
    pub dropped: bool,
}

impl Sample {
    /// Work that took `latency` while so many were in flight, and nothing was dropped.
    pub fn new(latency: Duration, in_flight: u64) -> Self {
        Self {
            latency,
            in_flight,
            dropped: false,
        }
    }

    /// The same, and something was dropped for overload.
    #[must_use]
    pub fn dropped(mut self) -> Self {
        self.dropped = true;
        self
    }

    /// True when less than half of `limit` was used: what was seen says nothing about the limit, and no law raises it.
    pub fn is_app_limited(&self, limit: f64) -> bool {
        (self.in_flight as f64) * 2.0 < limit
    }

    /// In seconds, never zero.
    pub(crate) fn seconds(&self) -> f64 {
        self.latency.as_secs_f64().max(1e-9)
    }
}

/// A law by which a limit finds itself.
pub trait LimitLaw: Send {
    /// The limit after `sample`, where it was `limit`. Whoever asks keeps it between a floor and a ceiling.
    fn next(&mut self, limit: f64, sample: &Sample) -> f64;
}

impl LimitLaw for Box<dyn LimitLaw> {
    fn next(&mut self, limit: f64, sample: &Sample) -> f64 {
        (**self).next(limit, sample)
    }
}
