//! A limiter that records its admissions, refusals and ends of work.

use super::clock_of;
use super::observer::Observer;
use std::fmt;
use std::sync::Weak;
use std::time::Duration;
use tollgate::sync::{Finally, both};
use tollgate::sync::{Place, Watch};
use tollgate::{Ask, Clock, Demand, Description, Limiter, Outcome, Permit, Policy, Refusal, Role, Settlement};

/// Records each admission, refusal and end of work of a limiter or a policy, with the times of waiting and holding. See the
/// [crate](crate) for the names.
///
/// Put it outermost: it records each attempt, and a waiting policy attempts more than once. For waits use
/// [`admit`](Observed::admit) of an observed policy, or `LimitLayer::observed` of the crate `tollgate-http`.
///
/// # Memory ordering
/// That of the limiter inside.
///
/// ```
/// # use tollgate_observe::Observed;
/// # use tollgate::{LimiterExt, Semaphore};
/// let gate = Observed::new("api", Semaphore::new(1));
/// let permit = gate.try_admit(1).unwrap();
/// // Counted as rejected, and reported as an event at the level `debug`.
/// assert!(gate.try_admit(1).is_err());
/// # drop(permit);
/// ```
pub struct Observed<L> {
    limiter: L,
    observer: Observer,
}

impl<L: Limiter> Observed<L> {
    /// Records `limiter` under `name`, a constant of the program: never the key of a client, of which there are too many. For a
    /// limiter for each key use one [`Observer`] for all, as `LimitLayer::observed` does.
    ///
    /// Refusals are counted by the names of up to 31 legs; further legs count as `other`. See [`legs`](Self::legs).
    ///
    /// Install the recorder of `metrics` first: handles are looked up here.
    pub fn new(name: &'static str, limiter: L) -> Self {
        let observer = Observer::new(name);
        let observer = match clock_of(&limiter) {
            Some(clock) => observer.on(&clock),
            None => observer,
        };
        Self { limiter, observer }
    }

    /// Measures by `clock` if the limiter has no clock of its own.
    #[must_use]
    pub fn on(mut self, clock: &Clock) -> Self {
        if clock_of(&self.limiter).is_none() {
            self.observer = self.observer.on(clock);
        }
        self
    }

    /// Counts refusals by these legs, constants of the program, and by `other`: for a limiter whose legs have secret names, or
    /// too many.
    #[must_use]
    pub fn legs(mut self, legs: &'static [&'static str]) -> Self {
        self.observer = self.observer.legs(legs);
        self
    }

    /// The limiter inside. Its own verbs are not recorded.
    pub fn limiter(&self) -> &L {
        &self.limiter
    }

    pub(super) fn of(limiter: L, observer: Observer) -> Self {
        Self { limiter, observer }
    }
}

impl<L: Limiter + 'static> Observed<Policy<L>> {
    /// Admits in turn, as [`Policy::admit`], and records the wait.
    ///
    /// # Errors
    /// As [`Policy::admit`].
    ///
    /// # Cancel safety
    /// As [`Policy::admit`]; a dropped future is recorded as cancelled.
    ///
    /// ```
    /// # use tollgate_observe::{Observed, Observer};
    /// # use tollgate::{LimiterExt, ManualClock, Policy, Semaphore};
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder().limit(Semaphore::new(1)).max_queue(0).on(&clock).build()?;
    /// let policy = Observed::new("api", policy).legs(&["semaphore"]).on(&clock);
    /// clock.run(async {
    ///     let _permit = policy.admit(1).await.unwrap();
    ///     assert!(policy.admit(1).await.is_err());
    /// });
    /// // One observer for many limiters.
    /// let observer = Observer::new("tenants").legs(&["semaphore"]).on(&clock);
    /// assert!(observer.wrap(Semaphore::new(1)).try_admit(1).is_ok());
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub async fn admit(&self, ask: impl Into<Ask>) -> Result<Permit<Observed<Policy<L>>>, Refusal> {
        let wait = self.observer.wait();
        match self.limiter.admit_owned(ask).await {
            Ok(permit) => Ok(wait.admitted(permit)),
            Err(refusal) => {
                wait.refused(&refusal);
                Err(refusal)
            }
        }
    }
}

impl<L: Clone> Clone for Observed<L> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            observer: self.observer.clone(),
        }
    }
}

impl<L: fmt::Debug> fmt::Debug for Observed<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observed").field(&self.limiter).finish()
    }
}

impl<L: Limiter> Limiter for Observed<L> {
    /// The start of the work, in nanoseconds since the clock's origin, and the ticket of the limiter inside.
    type Ticket = (u64, L::Ticket);

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        let ticket = match self.limiter.try_reserve(demand) {
            Ok(ticket) => ticket,
            Err(refusal) => {
                self.observer.refused(&refusal);
                return Err(refusal);
            }
        };
        // A recorder that panics leaves nothing taken.
        let back = Finally::new(|| self.limiter.cancel(ticket));
        self.observer.meter.granted(Duration::ZERO);
        back.forget();
        // The reading of a head may be of an instant for which its timer was late.
        let started = match demand.role() {
            Role::Newcomer => demand.now(&self.observer.clock),
            _ => self.observer.clock.now(),
        };
        Ok((self.observer.nanos(started), ticket))
    }

    fn cancel(&self, (_, ticket): Self::Ticket) {
        both(|| self.limiter.cancel(ticket), || self.observer.meter.cancelled());
    }

    fn finish(&self, (started, ticket): Self::Ticket, outcome: Outcome) {
        if outcome == Outcome::Forgotten {
            return self.limiter.finish(ticket, outcome);
        }
        let ended = self.observer.nanos(self.observer.clock.now());
        let held = Duration::from_nanos(ended.saturating_sub(started));
        both(
            || self.limiter.finish(ticket, outcome),
            || self.observer.meter.finished(outcome, held),
        );
    }

    fn settle(&self, (_, ticket): &mut Self::Ticket, settlement: &Settlement) -> u32 {
        self.limiter.settle(ticket, settlement)
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.limiter.look(demand)
    }

    fn leave(&self, place: &Place) {
        self.limiter.leave(place);
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.limiter.watch(watcher);
    }

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.limiter.describe(visit);
    }
}
