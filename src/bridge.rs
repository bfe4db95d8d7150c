//! What the crates around this one use beyond its public interface. No part of that interface: any version may change it.
//!
//! | name | user |
//! |---|---|
//! | [`Mutex`] | tollgate-resilience: the state of its limiters, as the models of loom and shuttle see it |
//! | [`both`] | tollgate-observe: an end of work is counted, also when the limiter inside panics |
//! | [`permit_of`] | tollgate-observe: an admission of a limiter inside becomes one of the limiter around it |
//! | [`InstantTicks`], [`ClockTicks`] | tollgate-resilience: instants and times as words, in tickets and in machines without a clock |

use crate::core::limiter::Limiter;
use crate::core::permit::Permit;
use crate::time::{Clock, Instant};
use std::time::Duration;

pub use crate::sync::shim::Mutex;
pub use crate::sync::unwind::both;

/// An instant as a number of ticks.
pub trait InstantTicks: Sized {
    /// The instant `ticks` after zero.
    fn from_ticks(ticks: u64) -> Self;
    /// The ticks since zero.
    fn ticks(self) -> u64;
    /// Saturating.
    #[must_use]
    fn after_ticks(self, ticks: u64) -> Self;
    /// Saturating: zero when `earlier` is later.
    fn ticks_since(self, earlier: Self) -> u64;
}

impl InstantTicks for Instant {
    #[inline]
    fn from_ticks(ticks: u64) -> Self {
        Self::from_ticks(ticks)
    }
    #[inline]
    fn ticks(self) -> u64 {
        self.ticks()
    }
    #[inline]
    fn after_ticks(self, ticks: u64) -> Self {
        self.after_ticks(ticks)
    }
    #[inline]
    fn ticks_since(self, earlier: Self) -> u64 {
        self.ticks_since(earlier)
    }
}

/// The ticks of a clock.
pub trait ClockTicks {
    /// The ticks of `duration`, rounded up, saturating.
    fn ticks_of(&self, duration: Duration) -> u64;
}

impl ClockTicks for Clock {
    fn ticks_of(&self, duration: Duration) -> u64 {
        self.ticks_of(duration)
    }
}

/// The admission of `permit` as one of `outer`, whose ticket holds that of the limiter inside.
pub fn permit_of<L: Limiter, O: Limiter>(
    outer: O,
    mut permit: Permit<L>,
    ticket: impl FnOnce(L::Ticket) -> O::Ticket,
) -> Permit<O> {
    let inner = permit.ticket_mut().take();
    Permit::with(outer, inner.map(ticket))
}
