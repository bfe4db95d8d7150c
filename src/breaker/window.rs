//! The window that a breaker judges by: the last so many calls, or those of the last so much time.

use super::count_window::CountWindow;
use super::thresholds::{Alarm, CallCounts, CallResult};
use super::time_window::TimeWindow;

pub(super) enum Window {
    Count(CountWindow),
    Time(TimeWindow),
}

impl Window {
    /// True when a result needs the instant at which it came.
    #[inline]
    pub(super) fn is_timed(&self) -> bool {
        matches!(self, Self::Time(_))
    }

    /// Begins `period` at `now`, empty. By the holder of the machine's lock, while the word admits nobody.
    pub(super) fn reset(&self, period: u64, now: u64) {
        match self {
            Self::Count(window) => window.reset(period),
            Self::Time(window) => window.reset(now),
        }
    }

    /// Records `n` results of `period`, while `is_current` says that it is not over. True when it is worth judging.
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

    /// A quick look, which may see too many bad calls for a moment.
    pub(super) fn counts(&self, period: u64, now: u64) -> CallCounts {
        match self {
            Self::Count(window) => window.counts(period),
            Self::Time(window) => window.counts(now),
        }
    }

    /// A look that takes longer.
    pub(super) fn recount(&self, period: u64, now: u64) -> CallCounts {
        match self {
            Self::Count(window) => window.recount(period),
            Self::Time(window) => window.counts(now),
        }
    }
}
