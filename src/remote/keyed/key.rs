//! One key of many, as a limiter.

use super::client::{Client, End, Looked, PlaceId};
use super::legs::Legs;
use super::permit::{RemoteKeyPermit, RemoteKeyTicket, UNCOUNTED};
use super::reserved::Charge;
use super::usage::RemoteKeyUsage;
use super::{Handles, Shared};
use crate::core::ask::{Ask, Demand, Role};
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::permit::Permit;
use crate::core::refusal::{LegName, Reason, Refusal, Wait};
use crate::core::status::Description;
use crate::remote::backend::{Backend, StoreError};
use crate::remote::config::MAX_UNITS;
use crate::remote::error::RemoteError;
use crate::remote::key::Key;
use crate::remote::limiter::{kind_of, refusal};
use crate::remote::step::{KeyLeg, LegUnits};
use crate::sync::wait_queue::Place;
use crate::time::{Instant, Sleep};
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// One key of a [`RemoteKeyed`](super::RemoteKeyed): a [`Limiter`] over all its legs. A handle.
///
/// `try_admit` never asks the store, and so refuses; [`acquire_now`](Self::acquire_now) asks it. In a [`Policy`](crate::Policy),
/// also beside other legs, `admit` does. When a later leg refuses, the units go back, and are asked for again in their turn.
///
/// ```
/// # use tollgate::remote::{Key, KeyedLimits, Memory, Remote, RemoteLeg};
/// # use tollgate::{ManualClock, Quota};
/// let clock = ManualClock::new();
/// let calls = RemoteLeg::rate("calls", Quota::per_second(1).burst(2));
/// let tenants = Remote::keyed(Key::new("tenants")?, KeyedLimits::new(1_000, "free", [calls])).on(&clock).in_place(Memory::new(&clock))?;
/// let acme = tenants.get("acme")?;
/// clock.run(async {
///     assert!(acme.acquire_now(2).await.is_ok());
///     assert_eq!(acme.acquire_now(1).await.unwrap_err().leg(), "calls");
///     acme.grant("calls", 1).await?; // By an operator.
///     assert!(acme.acquire(1).await.is_ok());
///     acme.reset().await?;
///     assert!(acme.usage().await?.legs().count() == 1 && acme.key_of("calls").is_some());
///     Ok::<(), Box<dyn std::error::Error>>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RemoteKey<B: Backend> {
    pub(super) handles: Arc<Handles<B>>,
    pub(super) key: Key,
    pub(super) legs: Arc<Legs>,
}

/// A wait for the store's answer, which ends when this is dropped.
struct Asking<'a, B: Backend> {
    shared: &'a Shared<B>,
    number: u64,
}

impl<B: Backend> Drop for Asking<'_, B> {
    fn drop(&mut self) {
        let wakers = self.shared.with(|client| client.leave(self.number));
        drop(wakers);
    }
}

impl<B: Backend> RemoteKey<B> {
    /// Asks the store for all units of `ask`, and waits only for the reply.
    ///
    /// # Errors
    /// `RateExceeded` with the leg and the instant at which it admits; `Saturated` with the leg whose permits are in use, or awaited;
    /// `Oversized`, `Unpriced`, `Unavailable` while the store is unavailable, or when the permits were lost before they were handed out,
    /// `Misconfigured` when the store [refuses](StoreError::Refused) the key for good, `QueueFull` when this process knows as many keys as it
    /// may, `Closed`.
    ///
    /// # Cancel safety
    /// It may be dropped at any point. What it was granted goes back.
    pub async fn acquire_now(&self, ask: impl Into<Ask>) -> Result<RemoteKeyPermit<B>, Refusal> {
        let (ask, now) = (ask.into(), self.now());
        let units = self.units_of(&ask)?;
        if let Some(refusal) = self.refused(&units, now) {
            return Err(refusal);
        }
        self.ask(units, false).await
    }

    /// Waits for the store's answer, or with `queued` for the permits in turn.
    async fn ask(&self, units: LegUnits, queued: bool) -> Result<RemoteKeyPermit<B>, Refusal> {
        let now = self.now();
        let join = |client: &mut Client, number, waker| {
            client.join(number, queued, &self.key, &self.legs, units, waker, now);
        };
        let end = self.wait(join).await;
        let ticket = self.ended(end, units, self.now())?;
        Ok(Permit::new(self.clone(), ticket))
    }

    /// Waits for the end of what `join` begins at the first poll, with the number of the wait.
    async fn wait(&self, join: impl FnOnce(&mut Client, u64, Waker)) -> End {
        let shared = &*self.handles.0;
        let mut join = Some(join);
        let mut asking: Option<Asking<'_, B>> = None;
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let (end, old) = match (&asking, join.take()) {
                (None, Some(join)) => {
                    let number = shared.with(Client::next_wait);
                    // First of all the wait has an owner: a waker that panics leaves nothing behind.
                    asking = Some(Asking { shared, number });
                    shared.with(|client| join(client, number, waker));
                    // A store that answers at once has answered.
                    shared.with(|client| client.poll(number, None))
                }
                (Some(asking), _) => shared.with(|client| client.poll(asking.number, Some(waker))),
                (None, None) => (None, None),
            };
            drop(old);
            end.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Asks the store for the usage of each leg, as an operator does. Nothing is taken.
    ///
    /// # Errors
    /// [`RemoteError::Unavailable`] while the store is unavailable, or this process knows as many keys as it may; [`RemoteError::Refused`] while
    /// the store refuses for good; [`RemoteError::Closed`].
    ///
    /// ```
    /// # use tollgate::remote::{Key, KeyedLimits, Memory, Remote, RemoteError, RemoteLeg};
    /// # use tollgate::status::State;
    /// # use tollgate::{ManualClock, Quota};
    /// let clock = ManualClock::new();
    /// let requests = RemoteLeg::rate("requests", Quota::per_hour(60));
    /// let tenants = Remote::keyed(Key::new("tenants")?, KeyedLimits::new(100, "free", [requests])).on(&clock).in_place(Memory::new(&clock))?;
    /// # clock.run(async {
    /// let acme = tenants.get("acme")?;
    /// drop(acme.acquire_now(60).await.unwrap());
    /// let available = |usage: &tollgate::remote::RemoteKeyUsage| match usage.legs().next().unwrap().state {
    ///     State::Rate { available, .. } => available,
    ///     _ => unreachable!("it is a rate"),
    /// };
    /// assert_eq!(available(&acme.usage().await?), 0);
    /// assert_eq!(available(&acme.grant("requests", 5).await?), 5);
    /// assert_eq!(available(&acme.reset().await?), 60);
    /// # Ok::<(), RemoteError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn usage(&self) -> Result<RemoteKeyUsage, RemoteError> {
        self.look(LegUnits::default()).await
    }

    /// Gives back `units` of a rate or window, taken by any process, and no more than were taken. Returns the usage after that.
    ///
    /// This process asks again at once. Another one that remembers a refusal asks again within a [time to
    /// live](super::RemoteKeyedBuilder::ttl); what waits there for an instant goes on to wait for it.
    ///
    /// # Errors
    /// [`RemoteError::Leg`] when the key has no rate or window of this name; otherwise as [`usage`](Self::usage): it may be carried out
    /// all the same.
    ///
    /// # Cancel safety
    /// If the future is dropped, the grant may or may not be carried out.
    pub async fn grant(&self, leg: &str, units: u64) -> Result<RemoteKeyUsage, RemoteError> {
        let mut grant = LegUnits::default();
        let of_time = (0..self.legs.counted.len()).filter(|&leg| !self.legs.is_permits(leg));
        let Some(position) = of_time.clone().find(|&position| self.legs.name(position) == leg) else {
            let known: Vec<_> = of_time
                .map(|position| format!("`{}`", self.legs.name(position)))
                .collect();
            return Err(RemoteError::Leg {
                given: leg.into(),
                known: known.join(", ").into(),
            });
        };
        grant[position] = units;
        self.look(grant).await
    }

    /// Gives back all units of all rates and windows, as if the key were new. Permits stay with their holders. Returns the usage after
    /// that.
    ///
    /// # Errors
    /// As [`grant`](Self::grant), which also says when other processes see it.
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not be carried out.
    pub async fn reset(&self) -> Result<RemoteKeyUsage, RemoteError> {
        self.look([u64::MAX; KeyLeg::MOST]).await
    }

    async fn look(&self, grant: LegUnits) -> Result<RemoteKeyUsage, RemoteError> {
        let now = self.now();
        let join = |client: &mut Client, number, waker| client.grant(number, &self.key, &self.legs, grant, waker, now);
        match self.wait(join).await {
            End::Usage(usage) => Ok(RemoteKeyUsage::new(&self.legs, usage)),
            End::Failed(Reason::Closed) => Err(RemoteError::Closed),
            End::Failed(Reason::Misconfigured) => Err(self.why_refused()),
            _ => Err(RemoteError::Unavailable),
        }
    }

    /// The store has refused.
    fn why_refused(&self) -> RemoteError {
        let error = self.handles.0.with(|client| client.last_error().cloned());
        match error {
            Some(StoreError::Refused { why }) => RemoteError::Refused { why },
            // It has answered since.
            _ => RemoteError::Unavailable,
        }
    }

    /// Waits until the store admits `ask`: it asks again at each instant that the store names, and when permits are there.
    ///
    /// # Errors
    /// As [`acquire_now`](Self::acquire_now), except `RateExceeded` and `Saturated`.
    ///
    /// # Cancel safety
    /// It may be dropped at any point. What it was granted goes back.
    ///
    /// # Fairness
    /// Waiters that need permits have places: those of a process in order, and one place at the store for the first of each process. Other
    /// waiters of one key race at that instant. For an order, and for deadlines, wait in a [`Policy`](crate::Policy).
    pub async fn acquire(&self, ask: impl Into<Ask>) -> Result<RemoteKeyPermit<B>, Refusal> {
        let ask = ask.into();
        let units = self.units_of(&ask)?;
        if self.legs.permits(&units).next().is_some() {
            return self.ask(units, true).await;
        }
        loop {
            let refusal = match self.acquire_now(ask).await {
                Ok(permit) => return Ok(permit),
                Err(refusal) => refusal,
            };
            let Wait::Until { at, .. } = refusal.wait() else {
                return Err(refusal);
            };
            Sleep::until(&self.handles.0.clock, at).await;
        }
    }

    /// The key, as the store has it; of several its own one.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The key at which a leg is counted, by the [name of the leg](Refusal::leg) in a refusal.
    pub fn key_of(&self, leg: &str) -> Option<&Key> {
        let leg = &self.legs.counted[self.legs.position(leg)?];
        Some(leg.key.as_ref().unwrap_or(&self.key))
    }

    fn now(&self) -> Instant {
        self.handles.0.clock.now()
    }

    /// Hands a correction to the store. Waiters ask again, behind it.
    fn correct(&self, at: u64, before: &Charge, after: &Charge) {
        if at != UNCOUNTED {
            let shared = &self.handles.0;
            shared.with(|client| client.recharge(&self.key, &self.legs, at, before, after, true));
        }
    }

    /// What a permit that ends has reserved is used.
    fn use_up(&self, ticket: &RemoteKeyTicket) {
        if self.handles.0.reserves {
            let spent = ticket.units;
            self.correct(
                ticket.at,
                &ticket.charge(),
                &Charge {
                    units: ticket.units,
                    spent,
                },
            );
        }
    }

    /// Gives the permits of `ticket` back.
    fn give(&self, ticket: &RemoteKeyTicket) {
        if ticket.lease > 0 {
            let shared = &self.handles.0;
            shared.with(|client| client.give_permits(&self.key, &self.legs, ticket.lease, &ticket.units));
        }
    }

    fn units_of(&self, ask: &Ask) -> Result<LegUnits, Refusal> {
        match self.legs.units(ask.count(), |cost| ask.of(cost)) {
            Err(leg) => Err(refusal(Reason::Unpriced, self.legs.leg_name(leg))),
            Ok(units) => match self.legs.oversized(&units) {
                Some(leg) => Err(refusal(Reason::Oversized, self.legs.leg_name(leg))),
                None => Ok(units),
            },
        }
    }

    /// What the store has refused for some time yet.
    fn refused(&self, units: &LegUnits, now: Instant) -> Option<Refusal> {
        let shared = &self.handles.0;
        let refused = shared.with(|client| client.refused(&self.key, &self.legs, units, now));
        refused.map(|(leg, until)| self.rate_exceeded(leg, now, until))
    }

    fn rate_exceeded(&self, leg: usize, now: Instant, until: Instant) -> Refusal {
        let wait = Wait::until(&self.handles.0.clock, now, until);
        Refusal::new(Reason::RateExceeded, self.legs.leg_name(leg), wait)
    }

    /// A refusal of all legs.
    fn failed(&self, reason: Reason) -> Refusal {
        refusal(reason, LegName::copied(self.handles.0.name.as_str()))
    }

    fn ended(&self, end: End, units: LegUnits, now: Instant) -> Result<RemoteKeyTicket, Refusal> {
        match end {
            End::Granted { at, lease } => Ok(RemoteKeyTicket {
                at,
                lease,
                units,
                spent: Charge::new(&self.legs, &units).spent,
            }),
            // Of a grant, which admits nothing.
            End::Usage(_) => Err(self.failed(Reason::Closed)),
            End::Uncounted => Ok(RemoteKeyTicket {
                at: UNCOUNTED,
                lease: 0,
                units,
                spent: LegUnits::default(),
            }),
            End::Saturated(leg) => Err(refusal(Reason::Saturated, self.legs.leg_name(leg))),
            End::Refused(leg, Some(until)) => Err(self.rate_exceeded(leg, now, until)),
            End::Refused(leg, None) => Err(refusal(Reason::Oversized, self.legs.leg_name(leg))),
            End::Failed(reason) => Err(self.failed(reason)),
        }
    }

    fn id_of(&self, place: &Place) -> PlaceId {
        (place.id(), std::ptr::from_ref(self).addr())
    }

    /// The look of the head of a policy. One that has joined has the store asked as long as it stays.
    fn look_as_head(&self, demand: &Demand<'_>, units: &LegUnits, place: &Place) -> Result<(), Refusal> {
        let (shared, now, id) = (&self.handles.0, self.now(), self.id_of(place));
        let look = |client: &mut Client| client.look_of_place(id, &self.key, &self.legs, units, now);
        let (mut looked, mut has_joined) = shared.with(|client| (look(client), client.has_joined(id)));
        let is_refused = matches!(looked, Looked::Unasked(_) | Looked::Refused(..));
        if is_refused && (has_joined || demand.role() == Role::Joining) {
            let age = match place.age().filter(|_| has_joined) {
                Some(age) => age,
                None => place.join(self),
            };
            has_joined = true;
            let head = (age, place.waker());
            shared.with(|client| client.stand(id, &self.key, &self.legs, units, head, now));
            // A store that answers at once has answered.
            looked = shared.with(look);
        }
        let refused = self.refusal_of(looked, now);
        match looked {
            Looked::Refused(..) if has_joined => refused.inspect_err(|refusal| place.waits_here(refusal.wait())),
            // It was refused for no time: it asks again.
            Looked::Unasked(_) if has_joined => refused.map_err(|refusal| {
                let again = Wait::until(&shared.clock, now, now);
                place.waits_here(again);
                refusal.with_wait(again)
            }),
            Looked::Asked(_) | Looked::Unasked(_) => refused.inspect_err(|_| place.waits_for_hand_over(has_joined)),
            _ => refused,
        }
    }

    fn refusal_of(&self, looked: Looked, now: Instant) -> Result<(), Refusal> {
        Err(match looked {
            Looked::Ready => return Ok(()),
            Looked::Refused(leg, until) => self.rate_exceeded(leg, now, until),
            Looked::Oversized(leg) => refusal(Reason::Oversized, self.legs.leg_name(leg)),
            Looked::Failed(reason) => self.failed(reason),
            Looked::Asked(told) | Looked::Unasked(told) => match told {
                None => self.failed(Reason::RoundTrip),
                Some((leg, _)) if self.legs.is_permits(leg) => refusal(Reason::Saturated, self.legs.leg_name(leg)),
                Some((leg, until)) => {
                    let refusal = self.rate_exceeded(leg, now, until);
                    refusal.with_wait(refusal.wait().and(Wait::EVENT))
                }
            },
        })
    }
}

impl<B: Backend> Limiter for RemoteKey<B> {
    type Ticket = RemoteKeyTicket;

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<RemoteKeyTicket, Refusal> {
        let units = self.units_of(demand.ask())?;
        let (shared, now) = (&self.handles.0, self.now());
        if let Some(place) = demand.place() {
            let id = self.id_of(place);
            let end = shared.with(|client| client.take_end(id, &self.key, &self.legs, &units, now));
            if let Some(end) = end {
                return self.ended(end, units, now);
            }
        }
        if let Some(refusal) = self.refused(&units, now) {
            return Err(refusal);
        }
        let failed = shared.with(|client| client.refuses(&self.key, now));
        Err(self.failed(failed.unwrap_or(Reason::RoundTrip)))
    }

    fn cancel(&self, ticket: RemoteKeyTicket) {
        self.correct(ticket.at, &ticket.charge(), &Charge::default());
        self.give(&ticket);
    }

    /// At most [`MAX_UNITS`] are charged.
    fn settle(&self, ticket: &mut RemoteKeyTicket, settlement: &Settlement) -> u32 {
        // Each leg says for itself whether it counts the cost.
        let Some(units) = settlement.per(settlement.cost()).actual() else {
            return 0;
        };
        let units = units.min(MAX_UNITS);
        let (before, mut legs) = (ticket.charge(), 0);
        for leg in self.legs.counting(settlement.cost()) {
            ticket.units[leg] = units;
            ticket.spent[leg] = ticket.spent[leg].min(units);
            legs += 1;
        }
        self.correct(ticket.at, &before, &ticket.charge());
        legs
    }

    /// Forgotten permits stay held as long as this process lives.
    fn finish(&self, ticket: RemoteKeyTicket, outcome: Outcome) {
        self.use_up(&ticket);
        if outcome != Outcome::Forgotten {
            self.give(&ticket);
        }
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let units = self.units_of(demand.ask())?;
        if let Some(place) = demand.place() {
            return self.look_as_head(demand, &units, place);
        }
        let (shared, now) = (&self.handles.0, self.now());
        let looked = shared.with(|client| client.look(&self.key, &self.legs, &units, now));
        self.refusal_of(looked, now)
    }

    fn leave(&self, place: &Place) {
        if place.leaves(self).is_some() {
            let id = self.id_of(place);
            let wakers = self.handles.0.with(|client| client.leave_place(id, &self.key));
            drop(wakers);
        }
    }

    /// The legs and their clock; their numbers are at the store: see [`usage`](Self::usage).
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        for (position, leg) in self.legs.counted.iter().enumerate() {
            let description = Description::new(kind_of(&leg.rule)).on(&self.handles.0.clock);
            let mut description = self.legs.describe(position, description);
            if position == 0 {
                description = description.hands_over_to(self);
            }
            if self.legs.is_permits(position) {
                description = description.holds_permits_of(self);
            }
            visit(description);
        }
    }
}

impl<B: Backend> Clone for RemoteKey<B> {
    fn clone(&self) -> Self {
        Self {
            handles: Arc::clone(&self.handles),
            key: self.key.clone(),
            legs: Arc::clone(&self.legs),
        }
    }
}

impl<B: Backend> fmt::Debug for RemoteKey<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteKey")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}
