//! One limiter on its own clock, seen from outside.
//!
//! States are compared by their future: two worlds are in the same state when they admit the same from then on. That
//! needs no undoing, so the check of one law presumes no other law.

use super::suite::Suite;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{Ask, ClockReading, Demand, Instant, Limiter, LimiterExt, ManualClock, Permit, Wait};

pub(super) struct World<L> {
    pub(super) clock: ManualClock,
    pub(super) limiter: Arc<L>,
}

pub(super) type Held<'a, L> = Permit<&'a Arc<L>>;

/// The answer of `look`, without the leg's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) not_before: Option<Instant>,
    pub(super) event: bool,
    pub(super) never: bool,
}

impl<L: Limiter> World<L> {
    pub(super) fn new(clock: ManualClock, limiter: L) -> Self {
        Self {
            clock,
            limiter: Arc::new(limiter),
        }
    }

    pub(super) fn admit(&self, ask: Ask) -> Option<Held<'_, L>> {
        self.limiter.try_admit(ask).ok()
    }

    /// Admits until refused, at most `most` times.
    pub(super) fn fill(&self, ask: Ask, most: usize) -> Vec<Held<'_, L>> {
        (0..most).map_while(|_| self.admit(ask)).collect()
    }

    pub(super) fn ready(&self, ask: Ask) -> Ready {
        let reading = ClockReading::default();
        let wait = match self.limiter.look(&Demand::new(&ask, &reading)) {
            Ok(()) => None,
            Err(refusal) => Some(refusal.wait()),
        };
        Ready {
            not_before: wait.and_then(Wait::not_before),
            event: matches!(wait, Some(Wait::Event { .. })),
            never: wait == Some(Wait::Never),
        }
    }
}

/// `n` times the ask.
pub(super) fn times(ask: Ask, n: usize) -> Ask {
    let n = n as u64;
    ask.costs()
        .fold(Ask::many(ask.count().saturating_mul(n)), |sum, (cost, units)| {
            sum.cost(cost, units.saturating_mul(n))
        })
}

/// The number of steps in which a refill is observed.
const STEPS: u32 = 8;

impl<L: Limiter + 'static> Suite<L> {
    /// More than the limiter can admit at once.
    pub(super) fn plenty(&self) -> usize {
        2 * self.capacity + 2
    }

    /// The delays after which some capacity may have come back.
    pub(super) fn delays(&self) -> Vec<Duration> {
        match self.refill {
            Some(refill) => vec![refill / STEPS, refill / 2, refill, refill * 2],
            None => vec![Duration::from_secs(1)],
        }
    }

    /// The admissions of a world from now on: at once, as time passes, and once everything has been released.
    pub(super) fn future<'a>(&self, world: &'a World<L>, mut held: Vec<Held<'a, L>>) -> Vec<usize> {
        let mut admitted = Vec::new();
        let steps = self.refill.map_or(0, |_| STEPS + STEPS / 2);
        for step in 0..=steps {
            if let Some(refill) = self.refill.filter(|_| step > 0) {
                world.clock.advance(refill.div_ceil(STEPS));
            }
            let new = world.fill(self.ask, self.plenty());
            admitted.push(new.len());
            held.extend(new);
        }
        if self.holds {
            drop(held);
            if let Some(refill) = self.refill {
                world.clock.advance(refill);
            }
            admitted.push(world.fill(self.ask, self.plenty()).len());
        }
        admitted
    }
}

trait DivCeil {
    fn div_ceil(self, by: u32) -> Self;
}

impl DivCeil for Duration {
    fn div_ceil(self, by: u32) -> Self {
        let part = self / by;
        if part * by < self {
            part + Duration::from_nanos(1)
        } else {
            part
        }
    }
}
