//! Above which load a limit applies, and below which it stops to.

use super::load::Load;
use crate::core::ask::Demand;
use crate::sync::shim::atomic::{AtomicBool, Ordering};
use crate::time::{Clock, Instant};
use std::fmt;
use std::sync::Arc;

/// A mark on a load, with hysteresis: exceeded from when the load is above `above` until it is at or below `below`.
#[derive(Clone)]
pub struct Mark {
    load: Arc<dyn Load>,
    clock: Clock,
    above: f64,
    below: f64,
}

impl Mark {
    /// Exceeded while `load` is above `above`, on the real clock.
    pub fn above(load: Arc<dyn Load>, above: f64) -> Self {
        Self {
            load,
            clock: Clock::real(),
            above,
            below: above,
        }
    }

    /// The same, until the load is at or below `below`. One that is above `above` counts as that.
    #[must_use]
    pub fn below(self, below: f64) -> Self {
        let below = below.min(self.above);
        Self { below, ..self }
    }

    /// The same on `clock`.
    #[must_use]
    pub fn on(self, clock: &Clock) -> Self {
        let clock = clock.clone();
        Self { clock, ..self }
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mark")
            .field("above", &self.above)
            .field("below", &self.below)
            .finish_non_exhaustive()
    }
}

/// A mark, and whether it is exceeded.
#[derive(Debug)]
pub(crate) struct Gate {
    mark: Mark,
    exceeded: AtomicBool,
}

impl Gate {
    pub(crate) fn new(mark: Mark) -> Self {
        Self {
            mark,
            exceeded: AtomicBool::new(false),
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.mark.clock
    }

    /// True while the mark is exceeded, as of `now`.
    #[inline]
    pub(crate) fn is_exceeded(&self, now: Instant) -> bool {
        let load = self.mark.load.read(now);
        // Relaxed: between the two marks either answer is right, and outside them it is not looked at.
        let was = self.exceeded.load(Ordering::Relaxed);
        let is = load > if was { self.mark.below } else { self.mark.above };
        if is != was {
            self.exceeded.store(is, Ordering::Relaxed);
        }
        is
    }

    /// The upper mark, if it was exceeded when it was last looked at.
    pub(crate) fn was_above(&self) -> Option<f64> {
        // Relaxed: as in `is_exceeded`.
        self.exceeded.load(Ordering::Relaxed).then_some(self.mark.above)
    }

    /// Goes on from a load that was above `highest`, and had not fallen since as far as is known.
    pub(crate) fn goes_on_from(&self, highest: Option<f64>) {
        let is = highest.is_some_and(|highest| highest >= self.mark.above);
        self.exceeded.store(is, Ordering::Relaxed);
    }

    /// When it is no longer exceeded, if that is known.
    pub(crate) fn ends(&self, now: Instant) -> Option<Instant> {
        self.mark.load.falls_to(self.mark.below, now)
    }

    /// Lets whoever waits hear when the load falls. To be called before the load is read.
    pub(crate) fn listen(&self, demand: Demand<'_>) {
        if let Some(notify) = self.mark.load.notify() {
            demand.listen(notify);
        }
    }
}
