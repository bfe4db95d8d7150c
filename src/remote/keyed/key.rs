//! One key of many, as a limiter.

use super::client::{Client, End};
use super::legs::Legs;
use super::permit::{RemoteKeyPermit, RemoteKeyTicket, UNCOUNTED};
use super::reserved::Charge;
use super::usage::RemoteKeyUsage;
use super::{Handles, Shared};
use crate::core::ask::{Ask, Cost, Demand};
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::permit::Permit;
use crate::core::refusal::{Due, ReadyAt, Reason, Refusal, Wait};
use crate::remote::backend::{Backend, StoreError};
use crate::remote::config::MAX_UNITS;
use crate::remote::error::RemoteError;
use crate::remote::key::Key;
use crate::remote::step::{KeyLeg, LegUnits};
use crate::sync::wait_queue::{Permits, QueueDemand, QueueId, QueueKey, WaitQueue};
use crate::time::{Clock, ClockReading, Instant, Sleep};
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
/// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySpec};
/// # use tollgate::remote::{Key, Memory, Remote};
/// # use tollgate::ManualClock;
/// let clock = ManualClock::new();
/// let free = PolicySpec::new([LegSpec::new("calls", LegRule::token_bucket("1/s burst 2".parse()?))]);
/// let spec = KeyedSpec::new(1_000, "free", free);
/// let tenants = Remote::keyed(Key::new("tenants")?, spec).on(&clock).in_place(Memory::new(&clock))?;
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
    pub async fn acquire_now(&self, ask: impl Into<Ask>) -> Result<RemoteKeyPermit<B>, Refusal<'_>> {
        let (ask, now) = (ask.into(), self.now());
        let units = self.units_of(&ask)?;
        if let Some(refusal) = self.refused(&units, now) {
            return Err(refusal);
        }
        self.ask(units, false).await
    }

    /// Waits for the store's answer, or with `queued` for the permits in turn.
    async fn ask(&self, units: LegUnits, queued: bool) -> Result<RemoteKeyPermit<B>, Refusal<'_>> {
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
    /// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySpec};
    /// # use tollgate::remote::{Key, Memory, Remote, RemoteError};
    /// # use tollgate::status::State;
    /// # use tollgate::ManualClock;
    /// let clock = ManualClock::new();
    /// let policy = PolicySpec::new([LegSpec::new("requests", LegRule::token_bucket("60/h".parse()?))]);
    /// let spec = KeyedSpec::new(100, "free", policy);
    /// let tenants = Remote::keyed(Key::new("tenants")?, spec).on(&clock).in_place(Memory::new(&clock))?;
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
    pub async fn acquire(&self, ask: impl Into<Ask>) -> Result<RemoteKeyPermit<B>, Refusal<'_>> {
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
            let Wait::Until(due) = refusal.wait() else {
                return Err(refusal);
            };
            Sleep::until(&self.handles.0.clock, due.instant()).await;
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

    fn units_of(&self, ask: &Ask) -> Result<LegUnits, Refusal<'_>> {
        let refusal = |reason, leg, units| Err(Refusal::new(reason, self.legs.name(leg), units, Wait::Never));
        match self.legs.units(ask.count(), |cost| ask.of(cost)) {
            Err(leg) => refusal(Reason::Unpriced, leg, 0),
            Ok(units) => match self.legs.oversized(&units) {
                Some(leg) => refusal(Reason::Oversized, leg, units[leg]),
                None => Ok(units),
            },
        }
    }

    /// What the store has refused for some time yet.
    fn refused(&self, units: &LegUnits, now: Instant) -> Option<Refusal<'_>> {
        let shared = &self.handles.0;
        let refused = shared.with(|client| client.refused(&self.key, &self.legs, units, now));
        refused.map(|(leg, until)| self.rate_exceeded(leg, units, now, until))
    }

    fn rate_exceeded(&self, leg: usize, units: &LegUnits, now: Instant, until: Instant) -> Refusal<'_> {
        let wait = Wait::Until(Due::at(&self.handles.0.clock, now, until));
        Refusal::new(Reason::RateExceeded, self.legs.name(leg), units[leg], wait)
    }

    fn ended(&self, end: End, units: LegUnits, now: Instant) -> Result<RemoteKeyTicket, Refusal<'_>> {
        match end {
            End::Granted { at, lease } => Ok(RemoteKeyTicket {
                at,
                lease,
                units,
                spent: Charge::new(&self.legs, &units).spent,
            }),
            // Of a grant, which admits nothing.
            End::Usage(_) => Err(Refusal::new(
                Reason::Closed,
                self.handles.0.name.as_str(),
                units[0],
                Wait::Never,
            )),
            End::Uncounted => Ok(RemoteKeyTicket {
                at: UNCOUNTED,
                lease: 0,
                units,
                spent: LegUnits::default(),
            }),
            End::Saturated(leg) => {
                let wait = Wait::Turn(self);
                Err(Refusal::new(Reason::Saturated, self.legs.name(leg), units[leg], wait))
            }
            End::Refused(leg, Some(until)) => Err(self.rate_exceeded(leg, &units, now, until)),
            End::Refused(leg, None) => {
                let leg_units = units[leg];
                Err(Refusal::new(
                    Reason::Oversized,
                    self.legs.name(leg),
                    leg_units,
                    Wait::Never,
                ))
            }
            End::Failed(reason) => Err(Refusal::new(
                reason,
                self.handles.0.name.as_str(),
                units[0],
                Wait::Never,
            )),
        }
    }
}

impl<B: Backend> Limiter for RemoteKey<B> {
    type Ticket = RemoteKeyTicket;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<RemoteKeyTicket, Refusal<'_>> {
        let units = self.units_of(demand.ask())?;
        let (shared, now, id) = (&self.handles.0, self.now(), QueueId::of(self));
        if let Some(claim) = demand.queue_key(id) {
            let (end, _) = shared.with(|client| client.poll(claim.key(), None));
            if let Some(end) = end {
                demand.redeem(id);
                return self.ended(end, units, now);
            }
        } else if let Some(refusal) = self.refused(&units, now) {
            return Err(refusal);
        }
        let name = shared.name.as_str();
        if let Some(reason) = shared.with(|client| client.refuses(&self.key, now)) {
            return Err(Refusal::new(reason, name, demand.units(), Wait::Never));
        }
        Err(Refusal::new(Reason::RoundTrip, name, demand.units(), Wait::Turn(self)))
    }

    fn cancel(&self, ticket: RemoteKeyTicket, _: &ClockReading) {
        self.correct(ticket.at, &ticket.charge(), &Charge::default());
        self.give(&ticket);
    }

    /// At most [`MAX_UNITS`] are charged.
    fn settle(&self, ticket: &mut RemoteKeyTicket, actual: Settlement<'_>) -> u32 {
        // Each leg says for itself whether it counts the cost.
        let Some(units) = actual.per(actual.cost()).actual() else {
            return 0;
        };
        let units = units.min(MAX_UNITS);
        let (before, mut legs) = (ticket.charge(), 0);
        for leg in self.legs.counting(actual.cost()) {
            ticket.units[leg] = units;
            ticket.spent[leg] = ticket.spent[leg].min(units);
            legs += 1;
        }
        self.correct(ticket.at, &before, &ticket.charge());
        legs
    }

    fn finish(&self, ticket: RemoteKeyTicket, _: Outcome, _: &ClockReading) {
        self.use_up(&ticket);
        self.give(&ticket);
    }

    /// Permits stay held as long as this process lives.
    fn forget(&self, ticket: RemoteKeyTicket) {
        self.use_up(&ticket);
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        let units = match self.units_of(demand.ask()) {
            Ok(units) => units,
            Err(refusal) => {
                let (reason, units) = (refusal.reason(), refusal.units());
                let leg = (0..self.legs.counted.len()).find(|&leg| self.legs.name(leg) == refusal.leg());
                return ReadyAt::never_for(reason, leg.map_or("", |leg| self.legs.name(leg)), units);
            }
        };
        let (shared, now) = (&self.handles.0, self.now());
        let claim = demand.queue_key(QueueId::of(self));
        let name = shared.name.as_str();
        // First, so that no refusal ends unheard.
        if let Some(notify) = shared.with(|client| client.notify(&self.key)) {
            demand.listen(&notify);
        }
        let (waits, refused, told, failed) = shared.with(|client| {
            let waits = claim.map(|claim| client.is_waiting(claim.key()));
            let refused = client.refused(&self.key, &self.legs, &units, now);
            let told = client.told(&self.key, &self.legs, now);
            (waits, refused, told, client.refuses(&self.key, now))
        });
        // The first waiter of a policy joins at once, or others would be before it at that instant.
        let joins = demand.is_queued() && !demand.is_behind() && waits.is_none();
        match (waits, refused, failed) {
            (Some(false), ..) => ReadyAt::NOW,
            (None, _, Some(reason)) => ReadyAt::never_for(reason, name, demand.units()),
            (None, Some((leg, until)), None) => ReadyAt::at(self.legs.name(leg), until).because(Reason::RateExceeded),
            _ => match told.map(|(leg, until)| (self.legs.name(leg), self.legs.is_permits(leg), until)) {
                None => ReadyAt::in_turn(name, self, demand.units()).because(Reason::RoundTrip),
                Some((leg, true, _)) => ReadyAt::in_turn(leg, self, demand.units()).because(Reason::Saturated),
                Some((leg, false, until)) => {
                    let turn = ReadyAt::in_turn(leg, self, demand.units()).because(Reason::RateExceeded);
                    if joins { turn } else { turn.and(ReadyAt::at(leg, until)) }
                }
            },
        }
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.handles.0.clock)
    }

    fn callbacks(&self) -> Callbacks {
        if self.legs.has_permits() || self.handles.0.reserves {
            Callbacks::FINISH
        } else {
            Callbacks::NONE
        }
    }

    fn finish_may_panic(&self) -> bool {
        self.legs.has_permits() || self.handles.0.reserves
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        visit(self);
    }
}

impl<B: Backend> WaitQueue for RemoteKey<B> {
    fn join(&self, demand: QueueDemand<'_>, waker: &Waker) -> QueueKey {
        let (news, waker, now) = (waker.clone(), waker.clone(), self.now());
        let named = |cost: Cost| {
            let mut costs = demand.costs.iter();
            costs.find_map(|&(name, units)| (name == cost.name()).then_some(units))
        };
        // The policy has asked before: a cost is missing only if it asks for something else now.
        let units = self.legs.units(demand.calls, named).unwrap_or_default();
        let number = self.handles.0.with(|client| {
            let number = client.next_wait();
            client.join(number, true, &self.key, &self.legs, units, waker, now);
            client.on_news(number, news);
            number
        });
        QueueKey::new(QueueId::of(self), number)
    }

    fn leave(&self, claim: QueueKey) {
        let wakers = self.handles.0.with(|client| client.leave(claim.key()));
        drop(wakers);
    }

    fn permits(&self) -> Permits {
        if self.legs.has_permits() {
            Permits::Own
        } else {
            Permits::None
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
