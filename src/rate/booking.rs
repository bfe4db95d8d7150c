//! What a booking gives: a reservation, and the instant for which it was made.

use crate::core::limiter::Limiter;
use crate::core::permit::{Permit, Reservation};
use crate::time::{Clock, Instant};
use std::fmt;
use std::time::Duration;

/// Units that are taken now, for work that starts later. Dropping it gives them back, as a [`Reservation`] does.
///
/// Nobody watches the instant: whoever starts earlier breaks the rate.
#[must_use = "dropping a booking cancels it"]
pub struct Booking<'a, L: Limiter> {
    reservation: Reservation<&'a L>,
    clock: &'a Clock,
    made: Instant,
    start: Instant,
}

impl<'a, L: Limiter> Booking<'a, L> {
    pub(super) fn new(limiter: &'a L, ticket: L::Ticket, clock: &'a Clock, made: Instant, start: Instant) -> Self {
        Self {
            reservation: Reservation::new(limiter, ticket),
            clock,
            made,
            start: start.max(made),
        }
    }

    /// When the work may start.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// How long that was to wait when it was booked, rounded up to a nanosecond.
    pub fn wait(&self) -> Duration {
        self.clock.between(self.made, self.start)
    }

    /// Starts the work.
    pub fn commit(self) -> Permit<&'a L> {
        self.reservation.commit()
    }
}

impl<L: Limiter> fmt::Debug for Booking<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Booking")
            .field("wait", &self.wait())
            .finish_non_exhaustive()
    }
}
