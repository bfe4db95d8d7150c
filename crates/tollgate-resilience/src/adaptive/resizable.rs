//! Limiters that a law can drive: permits, and rates.

use std::sync::Arc;
use std::time::Duration;
use tollgate::{Inherit, Limiter, Semaphore, TokenBucket};

/// A limiter with a number of permits, or of units per period, that can be changed while it runs.
///
/// ```
/// # use tollgate_resilience::adaptive::Resizable;
/// # use tollgate::{ManualClock, Quota, Semaphore, TokenBucket};
/// let (slots, rate) = (Semaphore::new(4), TokenBucket::new("100/s burst 5".parse()?).on(&ManualClock::new()));
/// slots.set_limit(6);
/// Resizable::set_limit(&rate, 50);
/// assert_eq!((slots.limit(), Resizable::limit(&rate)), (6, 50));
/// assert_eq!(rate.quota(), Quota::per_second(50).burst(5));
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
pub trait Resizable: Limiter {
    /// The number of permits. Of a rate, the units per [`period`](Self::period).
    fn limit(&self) -> usize;

    /// Changes that number at once, also below the number held.
    fn set_limit(&self, limit: usize);

    /// The number of permits held. Of a rate, the units that have been taken and not been refilled yet.
    fn in_use(&self) -> usize;

    /// The period of a rate; `None` if the limit is one of permits that come back.
    fn period(&self) -> Option<Duration> {
        None
    }

    /// The units of a rate that the admission of `ticket` took.
    fn units(&self, ticket: &Self::Ticket) -> u64 {
        let _ = ticket;
        1
    }
}

impl Resizable for Semaphore {
    fn limit(&self) -> usize {
        Semaphore::limit(self)
    }
    fn set_limit(&self, limit: usize) {
        Semaphore::set_limit(self, limit);
    }
    fn in_use(&self) -> usize {
        Semaphore::in_use(self)
    }
}

/// The burst stays, whatever the limit: an ask that fits into it can be admitted at any rate. A limit of zero is
/// [`Quota::zero`](tollgate::Quota::zero).
impl Resizable for TokenBucket {
    fn limit(&self) -> usize {
        usize::try_from(self.quota().count()).unwrap_or(usize::MAX)
    }
    fn set_limit(&self, limit: usize) {
        self.set_quota(self.quota().with_count(limit as u64), Inherit::AsIs);
    }
    fn in_use(&self) -> usize {
        usize::try_from(self.quota().burst_size().saturating_sub(self.available())).unwrap_or(usize::MAX)
    }
    fn period(&self) -> Option<Duration> {
        Some(self.quota().period())
    }
    fn units(&self, ticket: &Self::Ticket) -> u64 {
        ticket.tokens()
    }
}

macro_rules! forward {
    ($l:ident, $ty:ty) => {
        impl<$l: Resizable + ?Sized> Resizable for $ty {
            fn limit(&self) -> usize {
                (**self).limit()
            }
            fn set_limit(&self, limit: usize) {
                (**self).set_limit(limit);
            }
            fn in_use(&self) -> usize {
                (**self).in_use()
            }
            fn period(&self) -> Option<Duration> {
                (**self).period()
            }
            fn units(&self, ticket: &Self::Ticket) -> u64 {
                (**self).units(ticket)
            }
        }
    };
}
forward!(L, &L);
forward!(L, Arc<L>);
