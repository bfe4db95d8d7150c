//! Leases: a thread takes several tokens at once, and spends them without asking anybody.
//!
//! What admission costs is reading the clock and one compare-exchange. [`Leased`] does both once per `k` admissions: in
//! between, admission is a subtraction in the memory of the thread. Prefer a bare bucket where every token must be there
//! for whoever comes next, or where a window must hold by the instants of the work: parked tokens are spent later than they
//! were counted.

mod parked;

use crate::ask::{Ask, Cost, Demand};
use crate::keyed::Shared;
use crate::limiter::{Limiter, Outcome, Settlement};
use crate::rate::{BucketTicket, SlidingWindow, TokenBucket};
use crate::refusal::{ReadyAt, Refusal};
use crate::sync::bell::Bell;
use crate::sync::turn::Turnstile;
use crate::ticket::Ticket;
use crate::time::{Clock, Instant, Pass, Phase};
use parked::{Home, Parked};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A limiter whose units are spent by admission, so that `finish` and `forget` do nothing: a rate. Only of such can units
/// be taken ahead.
pub trait Spend: Limiter {
    /// Gives back the last `unspent` units of those that `ticket` took, by the rules of [`cancel`](Limiter::cancel): at most
    /// those, and no window is breached by it.
    fn give_back(&self, ticket: Self::Ticket, unspent: u64, now: Pass<'_>);

    /// Takes `units` that have been spent already, into debt if need be.
    fn charge(&self, units: u64, now: Pass<'_>);
}

impl Spend for TokenBucket {
    fn give_back(&self, ticket: Self::Ticket, unspent: u64, now: Pass<'_>) {
        self.cancel(ticket.last(unspent), now);
    }

    fn charge(&self, units: u64, now: Pass<'_>) {
        // Nothing was charged yet, and all of it should have been.
        let spent = Cost::new("spent");
        self.settle(
            &mut BucketTicket::NOTHING.clone(),
            Settlement::new(spent, units, now).per(spent),
        );
    }
}

impl Spend for SlidingWindow {
    fn give_back(&self, ticket: Self::Ticket, unspent: u64, now: Pass<'_>) {
        self.cancel(ticket.last(unspent), now);
    }

    fn charge(&self, units: u64, now: Pass<'_>) {
        let now = self.clock().map_or(Instant::ZERO, |clock| now.now(clock));
        self.charge(units, now);
    }
}

impl<L: Spend> Spend for Shared<L> {
    fn give_back(&self, ticket: Self::Ticket, unspent: u64, now: Pass<'_>) {
        L::give_back(self, ticket, unspent, now);
    }

    fn charge(&self, units: u64, now: Pass<'_>) {
        L::charge(self, units, now);
    }
}

/// A rate of which each thread takes `k` units at a time, and spends them alone. A handle: clones are the same.
///
/// It never admits more than the rate has given out. What is parked, at most `k` in each thread that uses it, is counted by
/// the rate when it is taken and spent later. So by the instants of the work, a span may hold that much more than the rate
/// allows: at most `threads x k`; and as much may be refused although it lies with an idle thread.
///
/// A request for `k` or more is taken of the limiter directly, and so is any when the limiter has no lease to give: near
/// exhaustion this is the bare limiter, but for what is parked.
/// [`release`](Self::release) gives back what the calling thread has parked, and so does the end of a thread. (A scoped
/// thread may be joined before it has ended for good: there, release explicitly.) What other threads have parked when the
/// last handle goes is lost.
///
/// An instant to retry at is that of the thread that asks, with what it has parked.
///
/// A reservation that was served from what was parked, and is cancelled, goes back to the thread that cancels it, up to `k`,
/// and whoever waits is told; the rest is lost. That is where the laws give way: what a lease took of a full bucket, which has filled up again since,
/// is there twice, once parked and once in the bucket; by law 3 a cancelled reservation should have left only one of the
/// two. It is part of the `threads x k`.
///
/// It never says that it is [fresh](Limiter::is_fresh), since one thread does not see what another has parked. So a
/// [`Keyed`](crate::Keyed) does not drop one.
///
/// It stands directly over the limiter, below [`per`](crate::LimiterExt::per): `Leased::new(bucket, 32).per(TOKENS)`.
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
pub struct Leased<L: Spend + 'static> {
    /// Tells apart what a thread has parked.
    id: u64,
    core: Arc<Core<L>>,
}

struct Core<L> {
    limiter: L,
    units: u64,
    /// Rung when something is put back where it was parked.
    bell: Bell,
}

impl<L> Core<L> {
    /// How many units a lease takes of the limiter for an admission of `units`, where so many are parked; nothing when it is
    /// taken without.
    fn wanted(&self, units: u64, parked: u64) -> Option<u64> {
        // What is parked already is part of the lease, so that never more than one is.
        (units < self.units).then(|| self.units - parked.min(units))
    }
}

impl<L: Spend> Home for Core<L> {
    fn come_back(&self, words: &[u64], unspent: u64) {
        self.limiter
            .give_back(L::Ticket::read(words), unspent, Phase::new().pass());
    }
}

/// What was taken of the limiter itself, if anything was.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTicket<T> {
    units: u64,
    direct: Option<T>,
}

impl<T: Ticket> Ticket for LeaseTicket<T> {
    const WORDS: usize = 2 + T::WORDS;
    #[inline]
    fn write(&self, words: &mut [u64]) {
        words[0] = self.units;
        words[1] = u64::from(self.direct.is_some());
        if let Some(direct) = &self.direct {
            direct.write(&mut words[2..]);
        }
    }
    #[inline]
    fn read(words: &[u64]) -> Self {
        Self {
            units: words[0],
            direct: (words[1] == 1).then(|| T::read(&words[2..])),
        }
    }
}

impl<L: Spend> Leased<L> {
    /// Leases of `units` each over `limiter`. With 0 or 1 it is the bare limiter.
    pub fn new(limiter: L, units: u64) -> Self {
        // Relaxed: only that no number is given twice matters.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            core: Arc::new(Core {
                limiter,
                units,
                bell: Bell::new(),
            }),
        }
    }

    /// The limiter that is leased from. To admit by it directly is to pass what is parked.
    pub fn limiter(&self) -> &L {
        &self.core.limiter
    }

    /// How many units a lease has.
    pub fn units(&self) -> u64 {
        self.core.units
    }

    /// How many units the calling thread has parked.
    pub fn parked_here(&self) -> u64 {
        Parked::units(self.id)
    }

    /// Gives back what the calling thread has parked: to be called by a thread that will not ask for long.
    pub fn release(&self) {
        Parked::release(self.id);
    }

    /// Takes `n` units, or refuses: the method for a rate that stands alone.
    ///
    /// # Errors
    /// Those of the limiter.
    #[inline]
    pub fn try_acquire(&self, n: u64) -> Result<(), Refusal<'_>> {
        if Parked::spend(self.id, n) {
            return Ok(());
        }
        let (ask, phase) = (Ask::many(n), Phase::new());
        self.take(Demand::new(&ask, phase.pass())).map(|_| ())
    }

    /// Takes a lease and spends `demand` from it, or just takes that.
    #[cold]
    fn take(&self, demand: Demand<'_>) -> Result<LeaseTicket<L::Ticket>, Refusal<'_>> {
        let (limiter, units) = (&self.core.limiter, demand.units());
        // What is parked may not have been at hand.
        let parked = Parked::units(self.id);
        if Parked::spend(self.id, units) {
            return Ok(LeaseTicket { units, direct: None });
        }
        let mut sooner = None;
        if let Some(wanted) = self.core.wanted(units, parked) {
            match limiter.try_reserve(demand.with_units(wanted, 0)) {
                Ok(mut ticket) => {
                    limiter.commit(&mut ticket, demand.pass());
                    if Parked::park(self.id, &self.core, &ticket, wanted, units) {
                        return Ok(LeaseTicket { units, direct: None });
                    }
                    // A thread that is ending keeps nothing any more.
                    limiter.give_back(ticket, wanted, demand.pass());
                }
                // With what is parked that is less than all of it.
                Err(refused) => sooner = (wanted < units).then(|| refused.wait()),
            }
        }
        match limiter.try_reserve(demand) {
            Ok(direct) => Ok(LeaseTicket {
                units,
                direct: Some(direct),
            }),
            Err(refused) => Err(match sooner {
                Some(wait) => refused.with_wait(wait),
                None => refused,
            }),
        }
    }

    /// Parks what was given back, and tells whoever waits.
    fn put_back(&self, units: u64) {
        Parked::put_back(self.id, units, self.core.units);
        self.core.bell.ring();
    }
}

impl<L: Spend> Limiter for Leased<L> {
    type Ticket = LeaseTicket<L::Ticket>;

    #[inline]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        let units = demand.units();
        if Parked::spend(self.id, units) {
            return Ok(LeaseTicket { units, direct: None });
        }
        self.take(demand)
    }

    fn cancel(&self, ticket: Self::Ticket, now: Pass<'_>) {
        match ticket.direct {
            Some(direct) => self.core.limiter.cancel(direct, now),
            None => self.put_back(ticket.units),
        }
    }

    fn commit(&self, ticket: &mut Self::Ticket, now: Pass<'_>) {
        if let Some(direct) = &mut ticket.direct {
            self.core.limiter.commit(direct, now);
        }
    }

    /// Of what was parked, a charge that was too high goes back to the thread that settles, up to a lease; one that was too
    /// low is taken of the limiter.
    fn settle(&self, ticket: &mut Self::Ticket, settlement: Settlement<'_>) -> u32 {
        let Some(actual) = settlement.actual() else { return 0 };
        if let Some(direct) = &mut ticket.direct {
            return self.core.limiter.settle(direct, settlement);
        }
        match actual.checked_sub(ticket.units) {
            Some(0) => {}
            Some(more) => self.core.limiter.charge(more, settlement.pass()),
            None => self.put_back(ticket.units - actual),
        }
        ticket.units = actual;
        1
    }

    #[inline]
    fn finish(&self, ticket: Self::Ticket, outcome: Outcome, now: Pass<'_>) {
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
        // Before what is parked is read.
        demand.listen(&self.core.bell);
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
            // What is parked is part of a lease, or is not made use of.
            0 => (
                self.core
                    .wanted(units, parked)
                    .map_or(units, |wanted| wanted.min(units)),
                0,
            ),
            // At least so many have to come until those ahead are through, whoever takes leases.
            _ => (units.min(missing), missing - units.min(missing)),
        };
        self.core.limiter.ready_at(demand.with_units(units, ahead))
    }

    fn clock(&self) -> Option<&Clock> {
        self.core.limiter.clock()
    }

    /// The limiter inside: what threads have parked counts as taken.
    fn survey(&self, visit: &mut dyn FnMut(crate::standing::Standing<'_>)) {
        self.core.limiter.survey(visit);
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn Turnstile)) {
        self.core.limiter.queues(visit);
    }
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        self.core.limiter.clocks(visit);
    }
}

impl<L: Spend> Clone for Leased<L> {
    fn clone(&self) -> Self {
        Self {
            id: self.id,
            core: Arc::clone(&self.core),
        }
    }
}

impl<L: Spend + fmt::Debug> fmt::Debug for Leased<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leased")
            .field("limiter", &self.core.limiter)
            .field("units", &self.core.units)
            .field("parked_here", &self.parked_here())
            .finish()
    }
}
