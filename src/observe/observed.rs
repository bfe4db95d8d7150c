//! A limiter that is watched.

use super::meter::Meter;
use crate::core::ask::{Ask, Demand};
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::permit::Permit;
use crate::core::refusal::{ReadyAt, Refusal, Rejection};
use crate::core::status::Status;
use crate::policy::Policy;
use crate::sync::unwind::both;
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading, Instant};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A limiter, or a policy, that tells what it does: each admission, refusal and end of work, with how long was waited and
/// held. See the [module](super) for the names.
///
/// Put it around all: each attempt is told, and a policy that waits attempts more than once. What waits is
/// [`admit`](Observed::admit) of an observed policy, or `LimitLayer::observed` of a tower layer.
///
/// # Memory ordering
/// That of the limiter inside.
///
/// ```
/// # use tollgate::observe::Observed;
/// # use tollgate::{LimiterExt, Semaphore};
/// let gate = Observed::new("api", Semaphore::new(1));
/// let permit = gate.try_admit(1).unwrap();
/// // Counted as rejected, and told as an event at the level `debug`.
/// assert!(gate.try_admit(1).is_err());
/// # drop(permit);
/// ```
pub struct Observed<L> {
    limiter: L,
    watch: Watch,
}

/// Who is told, and by which clock.
#[derive(Clone)]
pub(crate) struct Watch {
    meter: Arc<Meter>,
    clock: Clock,
}

impl Watch {
    pub(crate) fn new(name: &'static str, clock: Option<&Clock>) -> Self {
        Self {
            meter: Arc::new(Meter::new(name, None)),
            clock: clock.cloned().unwrap_or_default(),
        }
    }

    /// The same, with refusals counted by these legs alone.
    pub(crate) fn only(&mut self, legs: &'static [&'static str]) {
        self.meter = Arc::new(Meter::new(self.meter.name(), Some(legs)));
    }

    #[cfg(feature = "tower")]
    pub(crate) fn refused(&self, rejection: &Rejection) {
        self.meter.refused(rejection, Duration::ZERO);
    }

    /// A wait begins: who drops this before it has ended has given it up.
    pub(crate) fn wait(&self) -> Wait {
        Wait {
            began: self.clock.now(),
            watch: Some(self.clone()),
        }
    }

    /// `permit`, told as admitted after `waited`, as one that tells its end.
    pub(crate) fn permit<L: Limiter + Clone>(&self, mut permit: Permit<L>, waited: Duration) -> Permit<Observed<L>> {
        self.meter.granted(waited);
        let limiter = Observed {
            limiter: permit.limiter().clone(),
            watch: self.clone(),
        };
        let now = self.clock.now().ticks();
        let ticket = permit.ticket_mut().take().map(|ticket| (now, ticket));
        Permit::with(limiter, ticket)
    }
}

/// A wait that is watched.
pub(crate) struct Wait {
    began: Instant,
    watch: Option<Watch>,
}

impl Wait {
    fn ended(&mut self) -> Option<(Watch, Duration)> {
        let watch = self.watch.take()?;
        let waited = watch.clock.between(self.began, watch.clock.now());
        Some((watch, waited))
    }

    pub(crate) fn admitted<L: Limiter + Clone>(mut self, permit: Permit<L>) -> Permit<Observed<L>> {
        let (watch, waited) = self.ended().expect("a wait ends once");
        watch.permit(permit, waited)
    }

    pub(crate) fn refused(mut self, rejection: &Rejection) {
        if let Some((watch, waited)) = self.ended() {
            watch.meter.refused(rejection, waited);
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.meter.cancelled();
        }
    }
}

impl<L: Limiter> Observed<L> {
    /// Watches `limiter` under `name`, a word of the program: never the key of a client, of which there are too many. For a
    /// limiter for each key use `LimitLayer::observed` around them all.
    ///
    /// Refusals are counted by the names of legs, 31 of them; further ones are all `other`. See [`legs`](Self::legs).
    ///
    /// Install the recorder of `metrics` before: handles are looked up here.
    pub fn new(name: &'static str, limiter: L) -> Self {
        let watch = Watch::new(name, limiter.clock());
        Self { limiter, watch }
    }

    /// Measures by `clock`, for a limiter that decides by none and shall go with others that do.
    #[must_use]
    pub fn on(mut self, clock: &Clock) -> Self {
        if self.limiter.clock().is_none() {
            self.watch.clock = clock.clone();
        }
        self
    }

    /// Counts refusals by these legs, words of the program, and by `other`, whatever names there are: for a limiter whose
    /// legs are named by what is not to be seen.
    #[must_use]
    pub fn legs(mut self, legs: &'static [&'static str]) -> Self {
        self.watch.only(legs);
        self
    }

    /// The limiter inside. What is asked of it directly is not told.
    pub fn inner(&self) -> &L {
        &self.limiter
    }

    #[cfg(feature = "tower")]
    pub(crate) fn handle(limiter: L, watch: Watch) -> Self {
        Self { limiter, watch }
    }
}

impl<L: Limiter + 'static> Observed<Policy<L>> {
    /// Admits when the turn comes, as [`Policy::admit`], and tells how long that took.
    ///
    /// # Errors
    /// As [`Policy::admit`].
    ///
    /// # Cancel safety
    /// As [`Policy::admit`]; a dropped future is told as cancelled.
    pub async fn admit(&self, ask: impl Into<Ask>) -> Result<Permit<Observed<Policy<L>>>, Rejection> {
        let wait = self.watch.wait();
        match self.limiter.admit_owned(ask).await {
            Ok(permit) => Ok(wait.admitted(permit)),
            Err(rejection) => {
                wait.refused(&rejection);
                Err(rejection)
            }
        }
    }
}

impl<L: Clone> Clone for Observed<L> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            watch: self.watch.clone(),
        }
    }
}

impl<L: fmt::Debug> fmt::Debug for Observed<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observed").field(&self.limiter).finish()
    }
}

impl<L: Limiter> Limiter for Observed<L> {
    /// When the work began, in ticks, and what the limiter inside remembers.
    type Ticket = (u64, L::Ticket);

    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        match self.limiter.try_reserve(demand) {
            Ok(ticket) => Ok((0, ticket)),
            Err(refusal) => {
                self.watch.meter.refused(&refusal.to_rejection(), Duration::ZERO);
                Err(refusal)
            }
        }
    }

    fn cancel(&self, (_, ticket): Self::Ticket, now: &ClockReading) {
        both(|| self.limiter.cancel(ticket, now), || self.watch.meter.cancelled());
    }

    fn commit(&self, (started, ticket): &mut Self::Ticket, now: &ClockReading) {
        *started = now.now(&self.watch.clock).ticks();
        both(
            || self.limiter.commit(ticket, now),
            || self.watch.meter.granted(Duration::ZERO),
        );
    }

    fn settle(&self, (_, ticket): &mut Self::Ticket, actual: Settlement<'_>) -> u32 {
        self.limiter.settle(ticket, actual)
    }

    fn finish(&self, (started, ticket): Self::Ticket, outcome: Outcome, now: &ClockReading) {
        let ended = now.now(&self.watch.clock);
        let held = self.watch.clock.between(Instant::from_ticks(started), ended);
        both(
            || self.limiter.finish(ticket, outcome, now),
            || self.watch.meter.finished(outcome, held),
        );
    }

    fn forget(&self, (_, ticket): Self::Ticket) {
        self.limiter.forget(ticket);
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.limiter.ready_at(demand)
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.watch.clock)
    }

    fn is_pristine(&self, now: &ClockReading) -> bool {
        self.limiter.is_pristine(now)
    }

    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        self.limiter.visit_status(visit);
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        self.limiter.queues(visit);
    }
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        visit(&self.watch.clock);
        self.limiter.clocks(visit);
    }
}
