//! Reports to the facades of `metrics` and `tracing`.

#[cfg(feature = "metrics")]
use super::labels::Labels;
use std::time::Duration;
#[cfg(feature = "metrics")]
use tollgate::Reason;
use tollgate::{Outcome, Refusal};

/// The metrics and events of one name. Handles are looked up once, when it is made.
pub(super) struct Meter {
    name: &'static str,
    #[cfg(feature = "metrics")]
    handles: Handles,
}

#[cfg(feature = "metrics")]
struct Handles {
    granted: metrics::Counter,
    rejected: metrics::Counter,
    timed_out: metrics::Counter,
    cancelled: metrics::Counter,
    closed: metrics::Counter,
    wait: metrics::Histogram,
    held: metrics::Histogram,
    legs: Labels,
}

impl Meter {
    /// Counts refusals by leg: by the first names up to a bound, or by `only` these.
    pub(super) fn new(name: &'static str, only: Option<&'static [&'static str]>) -> Self {
        let _ = only;
        #[cfg(feature = "metrics")]
        let counter = |outcome| metrics::counter!(super::ACQUIRE_TOTAL, "limiter" => name, "outcome" => outcome);
        Self {
            name,
            #[cfg(feature = "metrics")]
            handles: Handles {
                granted: counter("granted"),
                rejected: counter("rejected"),
                timed_out: counter("timed_out"),
                cancelled: counter("cancelled"),
                closed: counter("closed"),
                wait: metrics::histogram!(super::WAIT_TIME, "limiter" => name),
                held: metrics::histogram!(super::HELD_TIME, "limiter" => name),
                legs: Labels::new(only),
            },
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Reports an admission after a wait of `waited`; zero without a wait.
    #[inline]
    pub(super) fn granted(&self, waited: Duration) {
        #[cfg(feature = "metrics")]
        {
            self.handles.granted.increment(1);
            self.handles.wait.record(waited.as_secs_f64());
        }
        #[cfg(feature = "tracing")]
        tracing::trace!(limiter = self.name, waited = waited.as_secs_f64(), "admitted");
        let _ = waited;
    }

    /// Reports a refusal after a wait of `waited`.
    pub(super) fn refused(&self, refusal: &Refusal, waited: Duration) {
        #[cfg(feature = "metrics")]
        {
            let total = match refusal.reason() {
                Reason::TimedOut => &self.handles.timed_out,
                Reason::Closed => &self.handles.closed,
                _ => &self.handles.rejected,
            };
            total.increment(1);
            let leg = self.handles.legs.of(refusal.leg()).to_owned();
            metrics::counter!(super::REFUSALS_TOTAL, "limiter" => self.name, "leg" => leg).increment(1);
        }
        #[cfg(feature = "tracing")]
        tracing::debug!(
            limiter = self.name,
            leg = refusal.leg(),
            reason = ?refusal.reason(),
            retry_after = refusal.retry_after().map(|time| time.as_secs_f64()),
            waited = waited.as_secs_f64(),
            "refused"
        );
        let _ = (refusal, waited);
    }

    /// Reports a cancelled wait or admission.
    pub(super) fn cancelled(&self) {
        #[cfg(feature = "metrics")]
        self.handles.cancelled.increment(1);
        #[cfg(feature = "tracing")]
        tracing::trace!(limiter = self.name, "cancelled");
    }

    /// Reports the end of the work, `held` after its admission.
    #[inline]
    pub(super) fn finished(&self, outcome: Outcome, held: Duration) {
        #[cfg(feature = "metrics")]
        self.handles.held.record(held.as_secs_f64());
        #[cfg(feature = "tracing")]
        tracing::trace!(limiter = self.name, outcome = ?outcome, held = held.as_secs_f64(), "finished");
        let _ = (outcome, held);
    }
}
