//! One pass over the legs of a policy: the clock is read when the first leg wants it, and once.

use super::{Clock, Instant};
use std::cell::Cell;

/// Holds the reading that all legs of one pass share.
#[derive(Debug)]
pub struct ClockReading {
    reading: Cell<Option<(usize, Instant)>>,
}

impl ClockReading {
    /// A phase that has not looked at any clock yet.
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            reading: Cell::new(None),
        }
    }

    /// A phase that takes place at `instant` of `clock`, whatever the clock says.
    #[inline]
    pub fn at(clock: &Clock, instant: Instant) -> Self {
        Self {
            reading: Cell::new(Some((clock.id(), instant))),
        }
    }

    /// The handle that legs are given.
    #[inline(always)]
    pub fn pass(&self) -> &ClockReading {
        Pass { reading: self }
    }
}

impl Default for ClockReading {
    fn default() -> Self {
        Self::new()
    }
}

/// A leg's view of one pass.
#[derive(Clone, Copy, Debug)]
pub struct &'a ClockReading {
    reading: &'a ClockReading,
}

impl &ClockReading {
    /// The instant of this pass on `clock`. The first caller's clock is read and shared; a leg on another clock reads
    /// its own.
    #[inline(always)]
    pub fn now(self, clock: &Clock) -> Instant {
        match self.reading.reading.get() {
            Some((id, instant)) if id == clock.id() => instant,
            Some(_) => clock.now(),
            None => {
                let instant = clock.now();
                self.reading.reading.set(Some((clock.id(), instant)));
                instant
            }
        }
    }

    /// The same, or what `clock` says now where that is later: for whoever must not be behind what others have done since.
    #[inline]
    pub(crate) fn latest(self, clock: &Clock) -> Instant {
        let now = clock.now();
        match self.reading.reading.get() {
            Some((id, instant)) if id == clock.id() => now.max(instant),
            Some(_) => now,
            None => {
                self.reading.reading.set(Some((clock.id(), now)));
                now
            }
        }
    }
}
