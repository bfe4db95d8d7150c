//! The request of a caller ([`Ask`]), and the part of it that one leg of a policy sees ([`Demand`]).
//!
//! One request weighs differently on each leg: one call for a requests-per-minute limit, two thousand for a
//! tokens-per-minute limit. The caller states all of it once, in the `Ask`. Each leg says what it counts:
//! [`per_call`](crate::LimiterExt::per_call) or [`per`](crate::LimiterExt::per). The core hands it a `Demand` with just that
//! number in it.

use crate::core::turns::Holder;
use crate::sync::notify::{Listener, Notify};
use crate::sync::wait_queue::{QueueId, QueueKey};
use crate::time::{Clock, ClockReading, Instant};
use std::cell::Cell;
use std::collections::BTreeSet;

/// The name of something that a request costs besides being one call: tokens, bytes, rows.
///
/// Two costs are the same when their names are.
///
/// ```
/// # use tollgate::{Ask, Cost};
/// const TOKENS: Cost = Cost::new("tokens");
/// assert_eq!(Ask::one().cost(TOKENS, 2_000).of(TOKENS), Some(2_000));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Cost(&'static str);

impl PartialEq for Cost {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        // Nearly always the same constant: the names are compared only when it is not.
        std::ptr::eq(self.0, other.0) || self.0 == other.0
    }
}

impl Eq for Cost {}

impl Cost {
    /// A cost of this name.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// A cost with a name from elsewhere: a file, a program's arguments. The name is kept for good, once, however
    /// often it is asked for.
    ///
    /// ```
    /// # use tollgate::Cost;
    /// let name = String::from("tokens");
    /// assert_eq!(Cost::interned(&name), Cost::new("tokens"));
    /// ```
    pub fn interned(name: &str) -> Self {
        static NAMES: parking_lot::Mutex<BTreeSet<&'static str>> = parking_lot::Mutex::new(BTreeSet::new());
        let mut names = NAMES.lock();
        if let Some(known) = names.get(name) {
            return Self(known);
        }
        let name: &'static str = String::leak(name.to_owned());
        names.insert(name);
        Self(name)
    }

    /// The name it was made with.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

/// The number of named costs that one [`Ask`] can carry.
pub const MAX_COSTS: usize = 4;

/// A request for admission: a number of calls, and their costs by name. Copyable, nothing on the heap.
///
/// A cost that no `Ask` names is never taken as zero: a leg that counts it refuses with
/// [`Reason::Unpriced`](crate::Reason::Unpriced).
///
/// ```
/// # use tollgate::{Ask, Cost, LimiterExt, Quota, Reason, TokenBucket};
/// const TOKENS: Cost = Cost::new("tokens");
/// let tokens = TokenBucket::new(Quota::per_minute(1_000)).per(TOKENS);
/// assert!(tokens.try_admit(Ask::one().cost(TOKENS, 400)).is_ok());
/// assert_eq!(tokens.try_admit(Ask::one().cost(TOKENS, 700)).unwrap_err().reason(), Reason::RateExceeded);
/// assert_eq!(tokens.try_admit(Ask::one()).unwrap_err().reason(), Reason::Unpriced);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    count: u64,
    class: u8,
    costs: [Option<(Cost, u64)>; MAX_COSTS],
}

impl Ask {
    /// One call.
    #[inline(always)]
    pub const fn one() -> Self {
        Self::many(1)
    }

    /// `count` calls, admitted together or not at all. Zero is legal and asks only whether the gate is open.
    ///
    /// ```
    /// # use tollgate::{Ask, Cost};
    /// const BYTES: Cost = Cost::new("bytes");
    /// let ask = Ask::many(3).cost(BYTES, 14_000);
    /// assert_eq!((ask.count(), ask.of(BYTES)), (3, Some(14_000)));
    /// assert_eq!(ask.costs().map(|(cost, units)| (cost.name(), units)).collect::<Vec<_>>(), [("bytes", 14_000)]);
    /// ```
    #[inline(always)]
    pub const fn many(count: u64) -> Self {
        Self {
            count,
            class: 0,
            costs: [None; MAX_COSTS],
        }
    }

    /// Sets the class, 0 unless set, in which the request waits: in the queue of a policy by its
    /// [order](crate::PolicyBuilder::order), and at a semaphore by [that of the semaphore](crate::SemaphoreBuilder::order). A
    /// class beyond the last of a queue counts as its last. It changes no admission on the spot.
    ///
    /// ```
    /// # use tollgate::{Ask, ManualClock, Order, Policy, Semaphore};
    /// # use futures::join;
    /// let clock = ManualClock::new();
    /// const PAID: u8 = 0;
    /// const FREE: u8 = 1;
    /// let policy = Policy::builder()
    ///     .order(Order::Priority { classes: 2, patience: 8 })
    ///     .limit(Semaphore::new(1))
    ///     .on(&clock)
    ///     .build()?;
    /// let served = std::sync::Mutex::new(Vec::new());
    /// let call = async |class: u8| {
    ///     let _permit = policy.admit(Ask::one().class(class)).await.unwrap();
    ///     served.lock().unwrap().push(class);
    /// };
    /// clock.run(async {
    ///     let held = policy.admit(1).await.unwrap();
    ///     join!(call(FREE), call(FREE), call(PAID), async { drop(held) });
    /// });
    /// assert_eq!(served.into_inner().unwrap(), [PAID, FREE, FREE]);
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    #[inline(always)]
    #[must_use]
    pub const fn class(mut self, class: u8) -> Self {
        self.class = class;
        self
    }

    /// Sets a cost of the request in all (not per call). Setting a cost again replaces its number.
    ///
    /// Only [`MAX_COSTS`] costs fit. One more is dropped, and the leg that counts it refuses as `Unpriced`.
    #[inline(always)]
    #[must_use]
    pub fn cost(mut self, cost: Cost, units: u64) -> Self {
        for slot in &mut self.costs {
            match slot {
                Some((name, _)) if *name != cost => {}
                _ => {
                    *slot = Some((cost, units));
                    break;
                }
            }
        }
        self
    }

    /// The number of calls.
    #[inline]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The [class](Self::class) that was set.
    #[inline]
    pub const fn class_number(&self) -> u8 {
        self.class
    }

    /// The units named for `cost`, if it was named.
    #[inline(always)]
    pub fn of(&self, cost: Cost) -> Option<u64> {
        self.costs
            .iter()
            .flatten()
            .find_map(|&(name, units)| (name == cost).then_some(units))
    }

    /// Every named cost, in the order of naming.
    pub fn costs(&self) -> impl Iterator<Item = (Cost, u64)> + '_ {
        self.costs.iter().flatten().copied()
    }

    /// The cost that was named first.
    #[inline]
    pub(crate) fn first_cost(&self) -> Option<(Cost, u64)> {
        self.costs[0]
    }

    /// True when it names more than one cost.
    #[inline]
    pub(crate) fn has_costs(&self) -> bool {
        self.costs[1].is_some()
    }

    /// Adds another request's numbers to these, saturating: the sum of the requests ahead of a waiter.
    pub(crate) fn absorb(&mut self, other: &Ask) {
        self.count = self.count.saturating_add(other.count);
        for (cost, units) in other.costs() {
            *self = self.cost(cost, self.of(cost).unwrap_or(0).saturating_add(units));
        }
    }
}

impl Ask {
    /// Takes another request's numbers off again, stopping at zero.
    pub(crate) fn release(&mut self, other: &Ask) {
        self.count = self.count.saturating_sub(other.count);
        let left = |(cost, units): (Cost, u64)| (cost, units.saturating_sub(other.of(cost).unwrap_or(0)));
        let costs = std::mem::take(&mut self.costs);
        // A cost of which nothing is left makes room for another.
        let costs = costs.into_iter().flatten().map(left).filter(|&(_, units)| units > 0);
        for (place, left) in self.costs.iter_mut().zip(costs) {
            *place = Some(left);
        }
    }
}

impl From<u64> for Ask {
    fn from(count: u64) -> Self {
        Self::many(count)
    }
}

impl Default for Ask {
    fn default() -> Self {
        Self::one()
    }
}

/// A position in a policy's queue, as far as a leg needs to know it.
pub(crate) struct Place<'a> {
    /// The sum of all requests ahead.
    pub(crate) ahead: Ask,
    /// It is the first of its queue, or is to be.
    pub(crate) is_head: bool,
    /// It waits in the queue of a leg that hands over, and so takes no turn at others: two queues that both had to have the
    /// permit and the turn at once would hand both to and fro.
    pub(crate) is_claimant: bool,
    /// Notified after an event that could admit this request.
    pub(crate) watcher: &'a Listener,
    /// The position that the head of the queue holds at one leg.
    pub(crate) claim: &'a Cell<Option<QueueKey>>,
}

impl Place<'_> {
    /// The same position with no one ahead.
    pub(crate) fn at_the_front(&self) -> Place<'_> {
        Place {
            ahead: Ask::many(0),
            is_head: self.is_head,
            is_claimant: self.is_claimant,
            watcher: self.watcher,
            claim: self.claim,
        }
    }

    /// The position among the queues that wait at the leg `id` that counts for a demand at `place`.
    pub(crate) fn holder(place: Option<&Self>, id: QueueId) -> Holder {
        let claim = place.and_then(|place| Some((place.claim.get()?, place.is_head)));
        match claim.filter(|(claim, _)| claim.wait_queue() == id) {
            Some((claim, true)) => Holder::Head(claim.key()),
            Some((claim, false)) => Holder::Behind(claim.key()),
            None if place.is_some_and(|place| place.is_claimant) => Holder::Exempt,
            None => Holder::Newcomer,
        }
    }
}

/// The demand on one leg: a number of units, in one pass over all legs of a policy.
///
/// ```
/// # use tollgate::{Ask, ClockReading, Cost, Demand};
/// const BYTES: Cost = Cost::new("bytes");
/// let (ask, reading) = (Ask::many(2).cost(BYTES, 512), ClockReading::new());
/// let calls = Demand::new(&ask, &reading);
/// assert_eq!((calls.units(), calls.per(BYTES).unwrap().units()), (2, 512));
/// assert!(calls.per(Cost::new("seconds")).is_none());
/// ```
#[derive(Clone, Copy)]
pub struct Demand<'a> {
    ask: &'a Ask,
    units: u64,
    ahead: u64,
    reading: &'a ClockReading,
    place: Option<&'a Place<'a>>,
}

impl<'a> Demand<'a> {
    /// A demand for the calls of `ask`, outside any queue.
    #[inline(always)]
    pub fn new(ask: &'a Ask, reading: &'a ClockReading) -> Self {
        Self {
            ask,
            units: ask.count,
            ahead: 0,
            reading,
            place: None,
        }
    }

    /// The same, for a waiter in a queue.
    pub(crate) fn waiting(ask: &'a Ask, reading: &'a ClockReading, place: &'a Place<'a>) -> Self {
        Self {
            ask,
            units: ask.count,
            ahead: place.ahead.count,
            reading,
            place: Some(place),
        }
    }

    /// The whole request.
    #[inline]
    pub fn ask(&self) -> &'a Ask {
        self.ask
    }

    /// The units that this leg is asked for.
    #[inline]
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The units that the waiters ahead want, in this leg's measure.
    #[inline]
    pub fn ahead(&self) -> u64 {
        self.ahead
    }

    /// The clock reading that all legs of this pass share.
    #[inline]
    pub fn reading(&self) -> &'a ClockReading {
        self.reading
    }

    /// The instant of this pass on `clock`: read at most once, shared by all legs.
    #[inline]
    pub fn now(&self, clock: &Clock) -> Instant {
        self.reading.now(clock)
    }

    /// This demand as counted by a leg that counts calls.
    #[inline(always)]
    #[must_use]
    pub fn per_call(mut self) -> Self {
        self.units = self.ask.count;
        self.ahead = self.place.map_or(0, |place| place.ahead.count);
        self
    }

    /// This demand as counted by a leg that counts `cost`, or nothing when the request does not name it.
    #[inline(always)]
    #[must_use]
    pub fn per(mut self, cost: Cost) -> Option<Self> {
        self.units = self.ask.of(cost)?;
        self.ahead = match self.place {
            Some(place) => place.ahead.of(cost).unwrap_or(0),
            None => 0,
        };
        Some(self)
    }

    /// This demand for `units`, behind `ahead`.
    pub(crate) fn with_units(self, units: u64, ahead: u64) -> Self {
        Self { units, ahead, ..self }
    }

    /// This demand as one for a part of `ask`.
    pub(crate) fn of<'b>(self, ask: &'b Ask) -> Demand<'b>
    where
        'a: 'b,
    {
        Demand { ask, ..self }
    }

    /// This demand at `place`, unless it waits in a queue already.
    pub(crate) fn at_place<'b>(self, place: &'b Place<'b>) -> Demand<'b>
    where
        'a: 'b,
    {
        Demand {
            place: self.place.or(Some(place)),
            ..self
        }
    }

    /// True with others ahead.
    pub(crate) fn is_behind(&self) -> bool {
        self.ahead > 0 || self.place.is_some_and(|place| place.ahead != Ask::many(0))
    }

    /// This demand at another place, with no one ahead.
    pub(crate) fn placed<'b>(self, place: Option<&'b Place<'b>>) -> Demand<'b>
    where
        'a: 'b,
    {
        Demand {
            place,
            ahead: 0,
            ..self
        }
    }

    /// Has this demand's queue listen to `notify`, if it waits in one; otherwise does nothing.
    ///
    /// Call it *before* reading the state that the `Notify` announces, so that no change falls between the two.
    #[inline]
    pub fn listen(&self, notify: &Notify) {
        if let Some(place) = self.place {
            notify.listen(place.watcher);
        }
    }

    /// The key of the position that this demand holds in the queue of the leg `id`, if it holds one there.
    #[inline]
    pub fn queue_key(&self, id: QueueId) -> Option<QueueKey> {
        let place = self.place.filter(|place| place.is_head)?;
        let claim = place.claim.get()?;
        (claim.wait_queue() == id).then_some(claim)
    }

    /// The position among the queues that wait at the leg `id` that counts for this demand.
    pub(crate) fn holder(&self, id: QueueId) -> Holder {
        Place::holder(self.place, id)
    }

    /// Its position in a queue, if it has one: all that a leg with turns needs beside its units.
    #[inline(always)]
    pub(crate) fn place(&self) -> Option<&'a Place<'a>> {
        self.place
    }

    /// True when this demand waits in a queue.
    pub(crate) fn is_queued(&self) -> bool {
        self.place.is_some()
    }

    /// Turns the position at this leg into a ticket: its units are not given back to the queue any more.
    #[inline]
    pub fn redeem(&self, id: QueueId) {
        if self.queue_key(id).is_some() {
            if let Some(place) = self.place {
                place.claim.set(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_of_which_nothing_is_left_frees_its_entry_for_another() {
        let names = ["a", "b", "c", "d", "e", "f"].map(Cost::new);
        let mut sum = Ask::many(0);
        for pair in names.windows(2) {
            let ask = Ask::one().cost(pair[0], 2).cost(pair[1], 3);
            sum.absorb(&ask);
            sum.absorb(&Ask::one().cost(pair[1], 1));
            assert_eq!((sum.count(), sum.of(pair[0]), sum.of(pair[1])), (2, Some(2), Some(4)));
            sum.release(&ask);
            assert_eq!((sum.of(pair[0]), sum.of(pair[1])), (None, Some(1)));
            sum.release(&Ask::one().cost(pair[1], 1));
            assert_eq!((sum.count(), sum.costs().count()), (0, 0));
        }
    }
}
