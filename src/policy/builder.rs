//! Building a policy: its legs, and the bounds of its line.

use super::bounds::{Manner, Settings};
use super::legs::Legs;
use super::policy::Policy;
use crate::core::limiter::Limiter;
use crate::semaphore::Overflow;
use crate::sync::wait_queue::QueueId;
use crate::time::Clock;
use std::fmt;
use std::time::Duration;

/// Builds a [`Policy`] of any number of legs. Legs are asked in the order in which they are added: the cheapest, and
/// those that refuse most, first; rates before semaphores.
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct PolicyBuilder {
    legs: Legs,
    clock: Option<Clock>,
    max_wait: Option<Duration>,
    max_queue: usize,
    early: Option<usize>,
    lateness: Duration,
    manner: Manner,
}

impl PolicyBuilder {
    /// How late a waiter may be served and still count as of its due instant, unless set otherwise.
    pub const LATENESS: Duration = Duration::from_millis(10);

    pub(super) fn new() -> Self {
        Self {
            legs: Legs::empty(),
            clock: None,
            max_wait: None,
            max_queue: usize::MAX,
            early: None,
            lateness: Self::LATENESS,
            manner: Manner::FIFO,
        }
    }

    /// Adds a leg. It counts calls unless it says otherwise ([`per`](crate::LimiterExt::per)).
    pub fn limit<L: Limiter + 'static>(mut self, leg: L) -> Self {
        self.legs.push(leg);
        self
    }

    /// Waits by `clock`. Without this, the clock is that of the first leg that has one, else the real one.
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// The longest that anybody waits. A wait that is known to take longer is refused at once. Zero: nobody waits.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// How many may wait at once. Zero: nobody waits.
    pub fn max_queue(mut self, max_queue: usize) -> Self {
        self.max_queue = max_queue;
        self
    }

    /// How many units all who wait may ask for together: a request for three counts as three.
    pub fn max_queue_units(mut self, units: u64) -> Self {
        self.manner.max_units = units;
        self
    }

    /// Who has to go when the line is as long as it may be: whoever comes, unless set otherwise. With
    /// [`EvictOldest`](Overflow::EvictOldest) as many as it takes of those who have waited longest are refused with
    /// `QueueFull`; nobody for a newcomer that could not wait even alone.
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.manner.overflow = overflow;
        self
    }

    /// Last come, first served: under overload the newest still make it in time, and the oldest, whose callers have
    /// probably given up, time out. Whoever comes is admitted on the spot where that is possible, past those who wait for
    /// more.
    ///
    /// ```
    /// # use tollgate::{Overflow, Policy, Quota, Reason, ManualClock, TokenBucket, LimiterExt};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let bucket = TokenBucket::new(Quota::per_second(1)).on(&clock);
    /// let policy = Policy::builder()
    ///     .newest_first()
    ///     .max_queue(2)
    ///     .overflow(Overflow::EvictOldest)
    ///     .over(bucket)?;
    /// clock.run(async {
    ///     policy.try_admit(1).unwrap().forget();
    ///     let wait = async || policy.admit(1).await.map(|permit| {
    ///         permit.forget();
    ///         clock.elapsed().as_secs()
    ///     });
    ///     let (oldest, older, newest) = futures::join!(wait(), wait(), wait());
    ///     assert_eq!(oldest.unwrap_err().reason(), Reason::QueueFull);
    ///     assert_eq!((newest.unwrap(), older.unwrap()), (1, 2));
    /// });
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    #[doc(alias = "lifo")]
    pub fn newest_first(mut self) -> Self {
        self.manner.newest_first = true;
        self
    }

    /// Refuses some of those who would wait, by chance, once so many do, and the more the longer the line is: with 60 here
    /// and a [`max_queue`](Self::max_queue) of 100, half of those who come while 80 wait. They are told at once, as if the
    /// line were full, while there is still time to go elsewhere; and a burst is thinned, not cut off.
    ///
    /// The chance is that of random early detection (S. Floyd and V. Jacobson, 1993), from a fixed seed.
    ///
    /// ```
    /// # use tollgate::{LimiterExt, ManualClock, Policy, Reason, Semaphore};
    /// # let clock = ManualClock::new();
    /// let policy = Policy::builder()
    ///     .limit(Semaphore::new(1))
    ///     .max_queue(100)
    ///     .reject_early(60)
    ///     .clock(&clock)
    ///     .build()?;
    /// let held = policy.try_admit(1).unwrap();
    /// let mut waits: Vec<_> = (0..120).map(|_| Box::pin(policy.admit(1))).collect();
    /// let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// let refused = waits.iter_mut().filter_map(|wait| match wait.as_mut().poll(&mut context) {
    ///     std::task::Poll::Ready(refused) => refused.err(),
    ///     std::task::Poll::Pending => None,
    /// });
    /// assert!(refused.into_iter().all(|refused| refused.reason() == Reason::QueueFull));
    /// assert!((61..100).contains(&policy.waiting()));
    /// # drop((waits, held));
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    #[doc(alias = "random early detection")]
    pub fn reject_early(mut self, from: usize) -> Self {
        self.early = Some(from);
        self
    }

    /// How late a waiter may be served (timers are coarse) and still count as of its due instant; 10 ms unless set.
    ///
    /// By counted instants every rate and window holds exactly. By real instants a leg may admit up to
    /// `lateness x rate` more while waiters are served. [`Duration::ZERO`] is strict: nothing is made up for, nothing
    /// exceeds, and a rate above one per timer tick is not met by waiters.
    pub fn lateness(mut self, lateness: Duration) -> Self {
        self.lateness = lateness;
        self
    }

    /// Builds the policy of the legs that were added.
    ///
    /// # Errors
    /// [`PolicyError`] when there is no leg, when two clocks are used, or when a queue stands in two legs.
    pub fn build(mut self) -> Result<Policy<Legs>, PolicyError> {
        let legs = std::mem::replace(&mut self.legs, Legs::empty());
        if legs.is_empty() {
            return Err(PolicyError::NoLegs);
        }
        let clock = self.clock_for(&legs);
        if let Some(leg) = legs.off(&clock) {
            return Err(PolicyError::OtherClock { leg });
        }
        if let Some(leg) = legs.doubled() {
            return Err(PolicyError::SameQueue { leg });
        }
        Ok(Policy::with(legs, clock.clone(), self.settings(&clock)))
    }

    /// Builds a policy over `limiter` alone, keeping its type: what [`Policy::new`] makes, with bounds.
    ///
    /// # Errors
    /// [`PolicyError`] when `limiter` decides by another clock, or when legs were added, which this would drop.
    pub fn over<L: Limiter + 'static>(self, limiter: L) -> Result<Policy<L>, PolicyError> {
        if !self.legs.is_empty() {
            return Err(PolicyError::LegsAndLimiter { legs: self.legs.len() });
        }
        let clock = self.clock_for(&limiter);
        match Misfit::of(&limiter, &clock) {
            Some(Misfit::OtherClock) => return Err(PolicyError::OtherClock { leg: 0 }),
            Some(Misfit::SameQueue) => return Err(PolicyError::SameQueue { leg: 0 }),
            None => {}
        }
        let settings = self.settings(&clock);
        Ok(Policy::with(limiter, clock, settings))
    }

    fn clock_for(&self, limiter: &impl Limiter) -> Clock {
        self.clock
            .clone()
            .or_else(|| limiter.clock().cloned())
            .unwrap_or_default()
    }

    fn settings(&self, clock: &Clock) -> Settings {
        Settings {
            max_wait: self.max_wait.map(|max_wait| clock.ticks_of(max_wait)),
            max_queue: self.max_queue,
            early: self.early,
            lateness: clock.ticks_of(self.lateness),
            manner: self.manner,
            misfit: false,
        }
    }
}

/// Why no policy can wait for a limiter.
pub(super) enum Misfit {
    /// It decides by another clock than the policy waits by: instants of the two cannot be compared.
    OtherClock,
    /// One queue stands in it twice: a policy could not tell its two places there apart.
    SameQueue,
}

impl Misfit {
    pub(super) fn of(limiter: &impl Limiter, clock: &Clock) -> Option<Self> {
        let (mut off, mut doubled) = (false, false);
        limiter.clocks(&mut |other| off |= !other.is_same(clock));
        let mut known = Vec::new();
        limiter.queues(&mut |queue| {
            if queue.holds_nothing() {
                return;
            }
            let id = QueueId::of_queue(queue);
            doubled |= known.contains(&id);
            known.push(id);
        });
        match (off, doubled) {
            (true, _) => Some(Self::OtherClock),
            (_, true) => Some(Self::SameQueue),
            _ => None,
        }
    }
}

/// Why a policy could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// A policy needs at least one leg.
    NoLegs,
    /// A leg decides by another clock than the policy waits by.
    OtherClock {
        /// Its position, from zero.
        leg: usize,
    },
    /// A semaphore stands in two legs: a policy that waits for it could not tell its two places in line apart. Let one leg
    /// count the sum.
    SameQueue {
        /// The position of the second, from zero.
        leg: usize,
    },
    /// [`PolicyBuilder::over`] was called on a builder that legs had been added to.
    LegsAndLimiter {
        /// How many.
        legs: usize,
    },
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLegs => f.write_str("a policy needs at least one leg, and none was added"),
            Self::OtherClock { leg } => write!(f, "leg {leg} decides by another clock than the policy waits by"),
            Self::SameQueue { leg } => write!(f, "leg {leg} has a semaphore that stands in another leg as well"),
            Self::LegsAndLimiter { legs } => {
                write!(
                    f,
                    "{legs} legs were added to a builder that is to build over one limiter"
                )
            }
        }
    }
}

impl std::error::Error for PolicyError {}
