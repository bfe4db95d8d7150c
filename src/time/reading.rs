//! The instant that all legs of one decision share: the clock is read when the first leg wants it, and once.

use super::{Clock, Instant};
use std::cell::Cell;

/// One reading of a clock, shared by all legs of one decision, settlement or end. The clock is read when the first leg asks for it.
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::{ClockReading, ManualClock};
/// let clock = ManualClock::new();
/// let reading = ClockReading::default();
/// let first = reading.now(&clock);
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(reading.now(&clock), first);
/// assert!(ClockReading::default().now(&clock) > first);
/// ```
#[derive(Debug, Default)]
pub struct ClockReading {
    reading: Cell<Option<(usize, Instant)>>,
}

impl ClockReading {
    /// A reading that is given: `instant` of `clock`, whatever the clock says.
    pub fn at(clock: &Clock, instant: Instant) -> Self {
        Self {
            reading: Cell::new(Some((clock.id(), instant))),
        }
    }

    /// The instant on `clock`. The first caller's clock is read and shared; a leg on another clock reads its own.
    #[inline(always)] // row: policy try_admit
    pub fn now(&self, clock: &Clock) -> Instant {
        match self.reading.get() {
            Some((id, instant)) if id == clock.id() => instant,
            Some(_) => clock.now(),
            None => {
                let instant = clock.now();
                self.reading.set(Some((clock.id(), instant)));
                instant
            }
        }
    }
}
