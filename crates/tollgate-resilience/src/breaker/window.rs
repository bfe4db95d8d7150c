//! The window of a breaker: the last calls, or those of a span of time.

use super::count_window::CountWindow;
use super::thresholds::{Alarm, CallCounts, CallResult};
use super::time_window::TimeWindow;

pub(super) enum Window {
    Count(CountWindow),
    Time(TimeWindow),
}

impl Window {
    /// True if a result needs the instant at which it came.
    #[inline]
    pub(super) fn is_timed(&self) -> bool {
        matches!(self, Self::Time(_))
    }

    /// Begins `period` at `now`, empty. By the holder of the machine's lock, while the word admits no call.
    pub(super) fn reset(&self, period: u64, now: u64) {
        match self {
            Self::Count(window) => window.reset(period),
            Self::Time(window) => window.reset(now),
        }
    }

    /// Records `n` results of `period`, while `is_current` says that it is not over. True if the window should be
    /// evaluated.
    #[inline]
    pub(super) fn record(
        &self,
        period: u64,
        result: CallResult,
        n: u64,
        now: u64,
        alarm: &Alarm,
        is_current: impl Fn() -> bool,
    ) -> bool {
        match self {
            Self::Count(window) => window.record(period, result, n, alarm),
            Self::Time(window) => window.record(result, n, now, is_current),
        }
    }

    /// A quick count, which may see too many bad calls for a moment.
    pub(super) fn counts(&self, period: u64, now: u64) -> CallCounts {
        match self {
            Self::Count(window) => window.counts(period),
            Self::Time(window) => window.counts(now),
        }
    }

    /// An exact count, which takes longer.
    ///
    pub(super) fn recount(&self, period: u64, now: u64) -> CallCounts {
        match self {
            Self::Count(window) => window.recount(period),
            Self::Time(window) => window.counts(now),
        }
    }
}
