//! A limiter in shadow mode: its decisions are counted, not obeyed.

use crate::core::ask::Demand;
use crate::core::delegate::delegate;
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Reason, Refusal};
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading};

/// Counts what a limiter would have refused, and refuses nothing. Made by
/// [`LimiterExt::shadow`](crate::LimiterExt::shadow).
///
/// # Charges
/// A request that it would have refused passes without being charged. So it gets into no debt, and counts as an enforced
/// limiter does whose refused callers do not come again. [`visit_status`](Limiter::visit_status) does not show it, since it
/// limits nothing. Shadow mode never waits, so it over-counts refusals where callers would have waited.
///
/// ```
/// # use tollgate::{Ask, LimiterExt, ManualClock, Quota, TokenBucket};
/// let clock = ManualClock::new();
/// let trial = TokenBucket::new(Quota::per_second(10).burst(2)).on(&clock).shadow();
/// for _ in 0..5 {
///     assert!(trial.try_admit(Ask::one()).is_ok());
/// }
/// let stats = trial.stats();
/// assert_eq!((stats.admitted, stats.refused), (2, 3));
/// ```
#[derive(Debug)]
pub struct Shadow<L> {
    limiter: L,
    counts: Counts,
}

impl<L> Shadow<L> {
    pub(crate) fn new(limiter: L) -> Self {
        Self {
            limiter,
            counts: Counts::default(),
        }
    }

    /// The limiter.
    pub fn limiter(&self) -> &L {
        &self.limiter
    }

    /// Its decisions so far. A snapshot.
    pub fn stats(&self) -> ShadowStats {
        self.counts.stats()
    }
}

/// The decisions of a limiter in shadow mode.
///
/// ```
/// # use tollgate::{LimiterExt, Semaphore};
/// let shadow = Semaphore::new(1).shadow();
/// let permits = [shadow.try_admit(1).unwrap(), shadow.try_admit(1).unwrap()];
/// let stats = shadow.stats();
/// assert_eq!((stats.admitted, stats.refused), (1, 1));
/// # drop(permits);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ShadowStats {
    /// Requests that it agreed to. One that another leg refused later, or that was cancelled, counts as well.
    pub admitted: u64,
    /// Requests that it would have refused, for any reason.
    pub refused: u64,
    /// Those that no wait would have helped: `Oversized`, `Unpriced`, `Closed`.
    pub refused_for_good: u64,
}

/// The counts behind the stats.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    admitted: AtomicU64,
    refused: AtomicU64,
    for_good: AtomicU64,
}

// Relaxed throughout: statistics.
impl Counts {
    #[inline]
    pub(crate) fn admitted(&self) {
        self.admitted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self, reason: Reason) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if reason.is_permanent() {
            self.for_good.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn stats(&self) -> ShadowStats {
        ShadowStats {
            admitted: self.admitted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            refused_for_good: self.for_good.load(Ordering::Relaxed),
        }
    }
}

impl<L: Limiter> Limiter for Shadow<L> {
    /// The ticket of the limiter, if it agreed.
    type Ticket = Option<L::Ticket>;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        match self.limiter.try_reserve(demand) {
            Ok(ticket) => {
                self.counts.admitted();
                Ok(Some(ticket))
            }
            Err(refusal) => {
                self.counts.refused(refusal.reason());
                Ok(None)
            }
        }
    }

    fn ready_at(&self, _: Demand<'_>) -> ReadyAt<'_> {
        ReadyAt::NOW
    }

    delegate!(self => self.limiter; some: cancel commit settle finish forget visit_sources);
    // The counts are statistics, and go with the limiter when it is as new.
    delegate!(self => self.limiter; callbacks name clock clocks queues is_pristine);
}
