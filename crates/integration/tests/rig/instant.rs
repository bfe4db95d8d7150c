//! One clock for all processes of a machine: `CLOCK_MONOTONIC`, in nanoseconds.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;

/// Nanoseconds of the machine's monotonic clock: the same for every process, whenever it was started.
pub(crate) type Nanos = u64;

pub(crate) fn now() -> Nanos {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    u64::try_from(tv_sec).expect("it counts from the machine's start") * 1_000_000_000
        + u64::try_from(tv_nsec).expect("below a second")
}

pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).expect("below 584 years")
}

/// How long it is until `instant`; zero when it is over.
pub(crate) fn until(instant: Nanos) -> Duration {
    Duration::from_nanos(instant.saturating_sub(now()))
}
