//! Leases: a thread takes several tokens at once, and spends them without shared memory.
//!
//! The cost of an admission is reading the clock and one compare-exchange. [`Leased`] does both once per `k`
//! admissions; in between, an admission is a subtraction in the memory of the thread. Prefer a bare bucket if every
//! token must be available to the next caller, or if a window must hold by the instants of the work. Parked tokens are
//! spent later than they were counted.

mod parked;

use crate::core::ask::{Ask, Cost, Demand};
use crate::core::delegate::delegate;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::core::status::Status;
use crate::core::ticket::Ticket;
use crate::keyed::Shared;
use crate::rate::{BucketTicket, SlidingWindow, TokenBucket};
use crate::sync::notify::Notify;
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading, Instant};
use parked::{Origin, Parked};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A limiter whose units are spent by admission, so that `finish` and `forget` do nothing: a rate. Only such units can
/// be taken ahead.
///
/// ```
/// # use tollgate::lease::Prepaid;
/// # use tollgate::{ClockReading, ManualClock, Quota, TokenBucket};
/// let clock = ManualClock::new();
/// let bucket = TokenBucket::new(Quota::per_second(10)).on(&clock);
/// let now = ClockReading::new();
/// let ticket = bucket.charge(6, &now);
/// assert_eq!(bucket.available(), 4);
/// bucket.give_back(ticket, 2, &now);
/// assert_eq!(bucket.available(), 6);
/// ```
pub trait Prepaid: Limiter {
    /// Gives back the last `unspent` units of `ticket`, by the rules of [`cancel`](Limiter::cancel): at most those, and
    /// no window is breached by it.
    fn give_back(&self, ticket: Self::Ticket, unspent: u64, now: &ClockReading);

    /// Takes `units` that have been spent already, into debt if need be. The ticket can be settled and given back.
    fn charge(&self, units: u64, now: &ClockReading) -> Self::Ticket;
}

impl Prepaid for TokenBucket {
    fn give_back(&self, ticket: Self::Ticket, unspent: u64, now: &ClockReading) {
        self.give_back(&ticket, unspent, now);
    }

    fn charge(&self, units: u64, now: &ClockReading) -> BucketTicket {
        // Nothing is charged yet, and all of it should be.
        let mut ticket = BucketTicket::NOTHING;
        self.settle(&mut ticket, charged(units, now));
        ticket
    }
}

impl Prepaid for SlidingWindow {
    fn give_back(&self, ticket: Self::Ticket, unspent: u64, now: &ClockReading) {
        self.cancel(ticket.last(unspent), now);
    }

    fn charge(&self, units: u64, now: &ClockReading) -> Self::Ticket {
        let now = self.clock().map_or(Instant::ZERO, |clock| now.now(clock));
        self.charge(units, now)
    }
}

impl<L: Prepaid> Prepaid for Shared<L> {
    fn give_back(&self, ticket: Self::Ticket, unspent: u64, now: &ClockReading) {
        L::give_back(self, ticket, unspent, now);
    }

    fn charge(&self, units: u64, now: &ClockReading) -> Self::Ticket {
        L::charge(self, units, now)
    }
}

/// The settlement that charges `units` in all.
fn charged(units: u64, now: &ClockReading) -> Settlement<'_> {
    let spent = Cost::new("spent");
    Settlement::new(spent, units, now).per(spent)
}

/// A rate of which each thread takes `k` units at a time, and spends them alone. A handle: clones share the rate.
///
/// **Over-admission**: it never admits more than the rate has given out, but the rate counts units when they are
/// leased, and they are spent later. So by the instants of the work, a span may hold up to `threads x k` more than the
/// rate allows: `k` in each thread that uses it. Requests may be refused although idle threads have that many units
/// parked.
///
/// A request for `k` or more is taken of the limiter directly, and so is any if the limiter has no lease to give. Near
/// exhaustion this is the bare limiter, but for parked units. [`release`](Self::release) gives back the units parked by
/// the calling thread, and so does the end of a thread. (A scoped thread may be joined before it has ended for good:
/// there, release explicitly.) Units that other threads have parked when the last handle is dropped are lost.
///
/// `retry_after` is that of the calling thread, with its parked units.
///
/// A reservation that was served from parked units, and is cancelled or settled to less, returns to the thread's parked
/// units and notifies the waiters. The condition: the same thread cancels it, and still spends the same lease. After
/// the next lease the units are lost: the bucket may have filled up again since, so they would be there twice. So a
/// lease is spent once, and `threads x k` stays the bound.
///
/// It is never [pristine](Limiter::is_pristine), since one thread does not see the units parked by another. So a
/// [`Keyed`](crate::Keyed) does not evict one.
///
/// Put it directly over the limiter, below [`per`](crate::LimiterExt::per): `Leased::new(bucket, 32).per(TOKENS)`.
///
/// ```
/// # use tollgate::{Leased, ManualClock, Quota, TokenBucket};
/// let clock = ManualClock::new();
/// let rate = Leased::new(TokenBucket::new(Quota::per_second(100)).on(&clock), 8);
/// assert!(rate.try_acquire(1).is_ok());
/// assert_eq!((rate.limiter().available(), rate.parked_here()), (92, 7));
/// rate.release();
/// assert_eq!((rate.limiter().available(), rate.parked_here()), (99, 0));
/// ```
pub struct Leased<L: Prepaid + 'static> {
    /// The key of the thread's parked units.
    id: u64,
    core: Arc<Core<L>>,
}

struct Core<L> {
    limiter: L,
    units: u64,
    /// Notified when units return to the parked ones.
    notify: Notify,
}

impl<L> Core<L> {
    /// The units that a lease takes of the limiter for an admission of `units`, with `parked` parked; `None` for no
    /// lease.
    fn wanted(&self, units: u64, parked: u64) -> Option<u64> {
        // Parked units are part of the lease, so that never more than one is parked.
        (units < self.units).then(|| self.units - parked.min(units))
    }
}

impl<L: Prepaid> Origin for Core<L> {
    fn take_back(&self, words: &[u64], unspent: u64) {
        self.limiter
            .give_back(L::Ticket::read(words), unspent, &ClockReading::new());
    }
}

/// The parked units and their lease, and the ticket of the limiter itself, if any was taken.
///
/// ```
/// # use tollgate::lease::{LeaseTicket, Leased};
/// # use tollgate::{BucketTicket, Limiter, TokenBucket};
/// fn is_ticket<L: Limiter<Ticket = LeaseTicket<BucketTicket>>>(_: Option<L>) -> bool {
///     true
/// }
/// assert!(is_ticket::<Leased<TokenBucket>>(None));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LeaseTicket<T> {
    parked: u64,
    lease: u64,
    direct: Option<T>,
}

impl<T> LeaseTicket<T> {
    fn parked(units: u64, lease: u64) -> Self {
        Self {
            parked: units,
            lease,
            direct: None,
        }
    }

    fn direct(ticket: T) -> Self {
        Self {
            direct: Some(ticket),
            ..Self::parked(0, 0)
        }
    }
}

impl<T: Ticket> Ticket for LeaseTicket<T> {
    const WORDS: usize = 3 + T::WORDS;
    #[inline]
    fn write(&self, words: &mut [u64]) {
        words[..3].copy_from_slice(&[self.parked, self.lease, u64::from(self.direct.is_some())]);
        if let Some(direct) = &self.direct {
            direct.write(&mut words[3..]);
        }
    }
    #[inline]
    fn read(words: &[u64]) -> Self {
        Self {
            parked: words[0],
            lease: words[1],
            direct: (words[2] == 1).then(|| T::read(&words[3..])),
        }
    }
}

impl<L: Prepaid> Leased<L> {
    /// Leases of `units` each over `limiter`. With 0 or 1 it is the bare limiter.
    pub fn new(limiter: L, units: u64) -> Self {
        // Relaxed: only uniqueness matters.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            core: Arc::new(Core {
                limiter,
                units,
                notify: Notify::new(),
            }),
        }
    }

    /// The limiter that is leased from. Admitting by it directly ignores parked units.
    pub fn limiter(&self) -> &L {
        &self.core.limiter
    }

    /// The units of a lease.
    pub fn units(&self) -> u64 {
        self.core.units
    }

    /// The units parked by the calling thread.
    pub fn parked_here(&self) -> u64 {
        Parked::units(self.id)
    }

    /// Gives back the units parked by the calling thread. Call it in a thread that will be idle.
    pub fn release(&self) {
        Parked::release(self.id);
    }

    /// Takes `n` units, or refuses: the method for a rate that stands alone.
    ///
    /// # Errors
    /// Those of the limiter.
    #[inline]
    pub fn try_acquire(&self, n: u64) -> Result<(), Refusal<'_>> {
        if Parked::spend(self.id, n).is_some() {
            return Ok(());
        }
        let (ask, reading) = (Ask::many(n), ClockReading::new());
        self.take(Demand::new(&ask, &reading)).map(|_| ())
    }

    /// Takes a lease and spends `demand` from it, or takes only the demand.
    #[cold]
    fn take(&self, demand: Demand<'_>) -> Result<LeaseTicket<L::Ticket>, Refusal<'_>> {
        let (limiter, units) = (&self.core.limiter, demand.units());
        // The parked units may have been in the list.
        let parked = Parked::units(self.id);
        if let Some(lease) = Parked::spend(self.id, units) {
            return Ok(LeaseTicket::parked(units, lease));
        }
        let mut sooner = None;
        if let Some(wanted) = self.core.wanted(units, parked) {
            match limiter.try_reserve(demand.with_units(wanted, 0)) {
                Ok(mut ticket) => {
                    limiter.commit(&mut ticket, demand.reading());
                    if let Some(lease) = Parked::park(self.id, &self.core, &ticket, wanted, units) {
                        return Ok(LeaseTicket::parked(units, lease));
                    }
                    // A thread that is ending parks nothing any more.
                    limiter.give_back(ticket, wanted, demand.reading());
                }
                // With the parked units that is less than all of it.
                Err(refused) => sooner = (wanted < units).then_some(refused),
            }
        }
        match limiter.try_reserve(demand) {
            Ok(direct) => Ok(LeaseTicket::direct(direct)),
            Err(refused) => Err(match sooner {
                // Also if all of it can never be taken at once.
                Some(sooner) => refused.with_wait(sooner.wait()).with_reason(sooner.reason()),
                None => refused,
            }),
        }
    }

    /// Parks returned units of a lease, and notifies the waiters.
    fn put_back(&self, units: u64, lease: u64) {
        if units > 0 && Parked::put_back(self.id, units, lease) {
            self.core.notify.notify_all();
        }
    }
}

impl<L: Prepaid> Limiter for Leased<L> {
    type Ticket = LeaseTicket<L::Ticket>;

    #[inline]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        let units = demand.units();
        if let Some(lease) = Parked::spend(self.id, units) {
            return Ok(LeaseTicket::parked(units, lease));
        }
        self.take(demand)
    }

    fn cancel(&self, ticket: Self::Ticket, now: &ClockReading) {
        if let Some(direct) = ticket.direct {
            self.core.limiter.cancel(direct, now);
        }
        self.put_back(ticket.parked, ticket.lease);
    }

    fn commit(&self, ticket: &mut Self::Ticket, now: &ClockReading) {
        if let Some(direct) = &mut ticket.direct {
            self.core.limiter.commit(direct, now);
        }
    }

    /// The charge beyond the parked units is taken of the limiter, and goes back to it first.
    fn settle(&self, ticket: &mut Self::Ticket, settlement: Settlement<'_>) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        let (limiter, reading) = (&self.core.limiter, settlement.reading());
        let beyond = actual.saturating_sub(ticket.parked);
        match &mut ticket.direct {
            Some(direct) => {
                limiter.settle(direct, charged(beyond, reading));
            }
            None if beyond > 0 => ticket.direct = Some(limiter.charge(beyond, reading)),
            None => {}
        }
        let left = ticket.parked.min(actual);
        self.put_back(ticket.parked - left, ticket.lease);
        ticket.parked = left;
        1
    }

    #[inline]
    fn finish(&self, ticket: Self::Ticket, outcome: Outcome, now: &ClockReading) {
        if let Some(direct) = ticket.direct {
            self.core.limiter.finish(direct, outcome, now);
        }
    }

    #[inline]
    fn forget(&self, ticket: Self::Ticket) {
        if let Some(direct) = ticket.direct {
            self.core.limiter.forget(direct);
        }
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        // Before the parked units are read.
        demand.listen(&self.core.notify);
        let (units, ahead) = (demand.units(), demand.ahead());
        let parked = Parked::units(self.id);
        let Some(missing) = units
            .saturating_add(ahead)
            .checked_sub(parked)
            .filter(|missing| *missing > 0)
        else {
            return ReadyAt::NOW;
        };
        let (units, ahead) = match ahead {
            // Parked units are part of a lease, or are not used.
            0 => (
                self.core
                    .wanted(units, parked)
                    .map_or(units, |wanted| wanted.min(units)),
                0,
            ),
            // At least this many have to come until those ahead are served, by any leases.
            _ => (units.min(missing), missing - units.min(missing)),
        };
        self.core.limiter.ready_at(demand.with_units(units, ahead))
    }

    // Parked units count as taken in the status.
    delegate!(self => self.core.limiter; clock clocks queues visit_status);
}

impl<L: Prepaid> Clone for Leased<L> {
    fn clone(&self) -> Self {
        Self {
            id: self.id,
            core: Arc::clone(&self.core),
        }
    }
}

impl<L: Prepaid + fmt::Debug> fmt::Debug for Leased<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leased")
            .field("limiter", &self.core.limiter)
            .field("units", &self.core.units)
            .field("parked_here", &self.parked_here())
            .finish()
    }
}
