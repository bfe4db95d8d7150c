//! The request of a caller ([`Ask`]), and the part of it that one leg of a policy sees ([`Demand`]).
//!
//! One request weighs differently on each leg: one call for a requests-per-minute limit, two thousand for a
//! tokens-per-minute limit. The caller states all of it once, in the `Ask`. A leg counts calls, or the cost that it is made
//! [`per`](crate::LimiterExt::per). The core hands it a `Demand` with just that number in it.

use crate::core::decision::LegDecision;
use crate::sync::wait_queue::Place;
use crate::time::{Clock, ClockReading, Instant};
use std::cell::RefCell;
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
    class: u64,
    costs: [Option<(Cost, u64)>; MAX_COSTS],
}

impl Ask {
    /// One call.
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
    pub const fn many(count: u64) -> Self {
        Self {
            count,
            class: 0,
            costs: [None; MAX_COSTS],
        }
    }

    /// Sets the class, 0 unless set, in which the request waits in the queue of a policy, by its
    /// [order](crate::PolicyBuilder::order). A class beyond the last of a queue counts as its last. It changes no admission on the spot.
    ///
    /// ```
    /// # use tollgate::{Ask, ManualClock, Order, Policy, Semaphore};
    /// # use futures::join;
    /// let clock = ManualClock::new();
    /// const PAID: u64 = 0;
    /// const FREE: u64 = 1;
    /// let policy = Policy::builder()
    ///     .order(Order::Priority { classes: 2, patience: 8 })
    ///     .limit(Semaphore::new(1))
    ///     .on(&clock)
    ///     .build()?;
    /// let served = std::sync::Mutex::new(Vec::new());
    /// let call = async |class: u64| {
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
    #[must_use]
    pub const fn class(mut self, class: u64) -> Self {
        self.class = class;
        self
    }

    /// Sets a cost of the request in all (not per call). Setting a cost again replaces its number.
    ///
    /// Only [`MAX_COSTS`] costs fit. One more is dropped, and the leg that counts it refuses as `Unpriced`.
    #[inline(always)] // row: named, priced legs
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
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The [class](Self::class) that was set.
    pub const fn class_number(&self) -> u64 {
        self.class
    }

    /// The units named for `cost`, if it was named.
    #[inline(always)] // row: named, priced legs
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

    /// Adds another request's numbers to these, saturating: the sum of the requests ahead of a waiter.
    pub(crate) fn absorb(&mut self, other: &Ask) {
        self.count = self.count.saturating_add(other.count);
        for (cost, units) in other.costs() {
            *self = self.cost(cost, self.of(cost).unwrap_or(0).saturating_add(units));
        }
    }

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

/// What a demand has to do with a queue of waiters.
///
/// ```
/// # use tollgate::{Ask, ClockReading, Demand, Role};
/// let (ask, reading) = (Ask::one(), ClockReading::default());
/// assert_eq!(Demand::new(&ask, &reading).role(), Role::Newcomer);
/// ```
// As wide as its neighbours: a narrow field that is copied with them would stall the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Role {
    /// It waits nowhere, or behind others in the queue of its policy: it is only judged.
    Newcomer,
    /// The head of a policy's queue, asked for by the thread that drives the queue.
    Head,
    /// The head, which is to join the queue of waiters of the leg that refuses it.
    Joining,
}

/// The part of a [`Demand`] that only requests in the queue of a policy have.
#[derive(Clone, Copy)]
pub(crate) struct Waiting<'a> {
    /// The sum of all requests that are served before.
    pub(crate) ahead: &'a Ask,
    /// The place of the policy in the queues of waiters of its legs.
    pub(crate) place: Option<&'a Place>,
    pub(crate) role: Role,
    /// Where each leg writes its answer, for an explanation.
    pub(crate) answers: Option<&'a RefCell<Vec<LegDecision>>>,
}

/// The demand on one leg: a number of units, in one pass over all legs of a policy.
///
/// ```
/// # use tollgate::{Ask, ClockReading, Cost, Demand};
/// const BYTES: Cost = Cost::new("bytes");
/// let (ask, reading) = (Ask::many(2).cost(BYTES, 512), ClockReading::default());
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
    waiting: Option<&'a Waiting<'a>>,
}

impl<'a> Demand<'a> {
    /// A demand for the calls of `ask`, outside any queue.
    pub fn new(ask: &'a Ask, reading: &'a ClockReading) -> Self {
        Self {
            ask,
            units: ask.count,
            ahead: 0,
            reading,
            waiting: None,
        }
    }

    /// The same in the queue of a policy.
    pub(crate) fn waiting(ask: &'a Ask, reading: &'a ClockReading, waiting: &'a Waiting<'a>) -> Self {
        Self {
            ahead: waiting.ahead.count,
            waiting: Some(waiting),
            ..Self::new(ask, reading)
        }
    }

    /// The whole request.
    pub fn ask(&self) -> &'a Ask {
        self.ask
    }

    /// The units that this leg is asked for.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The units that the waiters ahead want, in this leg's measure. Zero unless it is only judged.
    pub fn ahead(&self) -> u64 {
        self.ahead
    }

    /// The instant of this pass on `clock`: read at most once, shared by all legs.
    #[inline(always)] // row: bare chain
    pub fn now(&self, clock: &Clock) -> Instant {
        self.reading.now(clock)
    }

    /// The reading of the clock that all legs of this pass share.
    pub fn reading(&self) -> &'a ClockReading {
        self.reading
    }

    /// What it has to do with queues of waiters.
    pub fn role(&self) -> Role {
        self.waiting.map_or(Role::Newcomer, |waiting| waiting.role)
    }

    /// The place of the policy whose head this is: `None` for a [newcomer](Role::Newcomer).
    pub fn place(&self) -> Option<&'a Place> {
        let waiting = self.waiting?;
        waiting.place.filter(|_| waiting.role != Role::Newcomer)
    }

    /// The place of the policy in whose queue this waits, at the head or behind it.
    pub(crate) fn place_of_policy(&self) -> Option<&'a Place> {
        self.waiting?.place
    }

    /// This demand as calls, also inside a leg that counts a cost.
    #[must_use]
    pub fn per_call(mut self) -> Self {
        self.units = self.ask.count;
        self.ahead = self.waiting.map_or(0, |waiting| waiting.ahead.count);
        self
    }

    /// This demand as counted by a leg that counts `cost`, or nothing when the request does not name it.
    #[inline(always)] // row: named, priced legs
    #[must_use]
    pub fn per(mut self, cost: Cost) -> Option<Self> {
        self.units = self.ask.of(cost)?;
        self.ahead = match self.waiting {
            Some(waiting) => waiting.ahead.of(cost).unwrap_or(0),
            None => 0,
        };
        Some(self)
    }

    /// This demand for `units`, behind `ahead`.
    #[must_use]
    pub fn with_units(self, units: u64, ahead: u64) -> Self {
        Self { units, ahead, ..self }
    }

    /// This demand with `waiting` in place of what it had.
    #[must_use]
    pub(crate) fn in_queue<'b>(self, waiting: Option<&'b Waiting<'b>>) -> Demand<'b>
    where
        'a: 'b,
    {
        Demand { waiting, ..self }
    }

    /// The request as the limiter counts it that is asked for this.
    pub(crate) fn as_ask(&self) -> Ask {
        let count = self.units;
        Ask { count, ..*self.ask }
    }

    /// What it has to do with the queue of a policy, if it waits in one.
    pub(crate) fn queue(&self) -> Option<&'a Waiting<'a>> {
        self.waiting
    }

    /// Where each leg writes its answer, if the decision is to be explained.
    pub(crate) fn answers(&self) -> Option<&'a RefCell<Vec<LegDecision>>> {
        self.waiting?.answers
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
