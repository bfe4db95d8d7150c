//! What the crates around this one use beyond its public interface. No part of that interface: any version may change it.
//!
//! | name | user |
//! |---|---|
//! | [`Mutex`], [`atomic`] | tollgate-resilience: the state of its limiters, as the models of loom and shuttle see it |
//! | [`both`] | tollgate-observe: an end of work is counted, also when the limiter inside panics; tollgate-resilience: likewise for laws and listeners that panic |
//! | [`Rest`], [`ask`] | tollgate-resilience: a probe comes back, also when a listener or a classifier panics |
//! | [`permit_of`] | tollgate-observe: an admission of a limiter inside becomes one of the limiter around it |
//! | [`Rng`], [`nth_fraction`] | tollgate-resilience: samples, drops and jitter that a seed repeats |
//! | [`TaskTime`] | tollgate-resilience: the deadline and the delays of a retry, which a test of tokio may pause |
//! | [`may_reach`], [`with_count`], [`tokens`] | tollgate-resilience: semaphores and token buckets as limiters that a law resizes |
//! | [`Callbacks`] | tollgate-resilience: a policy of boxes leaves out the calls at which a limiter does nothing |
//! | [`InstantTicks`], [`ClockTicks`] | tollgate-resilience: instants and times as words, in tickets and in machines without a clock |

use crate::core::limiter::Limiter;
use crate::core::permit::Permit;
use crate::rate::{BucketTicket, Quota};
use crate::semaphore::Semaphore;
use crate::time::{Clock, Instant};
use std::time::Duration;

pub use crate::core::limiter::Callbacks;
pub use crate::rng::{Rng, nth_fraction};
pub use crate::sync::shim::{Mutex, atomic};
pub use crate::sync::unwind::{Rest, ask, both};
pub use crate::time::TaskTime;

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

/// Announces that the limit of `semaphore` may become as large as `most`: a request for no more than that waits for it.
pub fn may_reach(semaphore: &Semaphore, most: usize) {
    semaphore.may_reach(most);
}

/// `count` per the period of `quota`, with its burst, as far as both can be.
pub fn with_count(quota: Quota, count: u64) -> Quota {
    quota.with_count(count)
}

/// The tokens that are charged for an admission.
pub fn tokens(ticket: &BucketTicket) -> u64 {
    ticket.tokens()
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
