//! A clock that is only ever told the time: what a client does with instants is the same.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Instant(u64);

impl Instant {
    pub(crate) const ZERO: Self = Self(0);

    pub(crate) const fn from_ticks(ticks: u64) -> Self {
        Self(ticks)
    }

    pub(crate) const fn ticks(self) -> u64 {
        self.0
    }
}

/// Its ticks are nanoseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock;

impl Clock {
    pub(crate) fn now(&self) -> Instant {
        Instant::ZERO
    }

    pub(crate) fn between(&self, earlier: Instant, later: Instant) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(earlier.0))
    }

    pub(crate) fn after(&self, instant: Instant, duration: Duration) -> Instant {
        Instant(
            instant
                .0
                .saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}
