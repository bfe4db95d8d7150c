//! Builds a policy: its legs, and the bounds of its queue.

use super::driver::Settings;
use super::order::{Eviction, Order, OrderError};
use super::policy::Policy;
use crate::core::legs::Legs;
use crate::core::limiter::Limiter;
use crate::time::Clock;
use std::fmt;
use std::time::Duration;

/// Builds a [`Policy`] of any number of legs. Legs are asked in the order in which they are added. Add the
/// cheapest, and those that refuse most, first; rates before semaphores.
///
/// The type of the policy names the types of its legs. So no call is dynamic, and a ticket has just the words of its legs.
/// [`boxed`](Self::boxed) gives the policy a type that a struct can name.
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock, Policy, Quota, Reason, Semaphore, TokenBucket};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let policy = Policy::builder()
///     .limit(TokenBucket::new(Quota::per_second(5)).on(&clock).named("rate"))
///     .limit(Semaphore::new(1).named("in flight"))
///     .max_wait(Duration::from_secs(2))
///     .on(&clock)
///     .build()
///     .unwrap();
/// let permit = policy.try_admit(1).unwrap();
/// assert_eq!(policy.try_admit(1).unwrap_err().leg(), "in flight");
/// # drop(permit);
/// ```
#[must_use = "a builder does nothing until it builds"]
pub struct PolicyBuilder<L = ()> {
    limiter: L,
    /// By leg, the number of descriptions that it and the legs before it show.
    shown: Vec<usize>,
    clock: Option<Clock>,
    max_wait: Option<Duration>,
    max_queue: usize,
    lateness: Duration,
    work_time: Duration,
    order: Order,
    eviction: Eviction,
}

impl PolicyBuilder {
    /// The default [lateness](Self::lateness).
    pub const LATENESS: Duration = Duration::from_millis(10);

    pub(super) fn new() -> Self {
        Self {
            limiter: (),
            shown: Vec::new(),
            clock: None,
            max_wait: None,
            max_queue: usize::MAX,
            lateness: Self::LATENESS,
            work_time: Duration::ZERO,
            order: Order::Fifo,
            eviction: Eviction::Never,
        }
    }

    /// Adds the first leg. It counts calls unless it says otherwise ([`per`](crate::LimiterExt::per)).
    pub fn limit<L: Limiter + 'static>(self, leg: L) -> PolicyBuilder<L> {
        self.with(|()| leg)
    }
}

impl<L: Limiter + 'static> PolicyBuilder<L> {
    /// Adds a leg. It counts calls unless it says otherwise ([`per`](crate::LimiterExt::per)).
    pub fn limit<M: Limiter + 'static>(self, leg: M) -> PolicyBuilder<(L, M)> {
        self.with(|limiter| (limiter, leg))
    }

    /// Puts the legs so far into a box: the policy is a `Policy<BoxLimiter>`, whatever they are. An admission then costs one
    /// dynamic call, and a ticket of fixed size.
    ///
    /// ```
    /// # use tollgate::{BoxLimiter, LimiterExt, Policy, Quota, Semaphore, TokenBucket};
    /// struct Upstream {
    ///     policy: Policy<BoxLimiter>,
    /// }
    /// let policy = Policy::builder()
    ///     .limit(TokenBucket::new(Quota::per_second(10)))
    ///     .limit(Semaphore::new(4))
    ///     .boxed()
    ///     .build()?;
    /// let upstream = Upstream { policy };
    /// assert!(upstream.policy.try_admit(1).is_ok());
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn boxed(self) -> PolicyBuilder<Legs> {
        self.map(|limiter| Legs::new().and(limiter))
    }

    /// Builds the policy of the legs that were added.
    ///
    /// # Errors
    /// [`PolicyError`] when two clocks are used, when a queue stands in two legs, or when the order is wrong.
    pub fn build(self) -> Result<Policy<L>, PolicyError> {
        self.order.check().map_err(PolicyError::Order)?;
        let clock = self
            .clock
            .clone()
            .or_else(|| clock_of(&self.limiter))
            .unwrap_or_default();
        let leg = |at: usize| {
            let leg = self.shown.iter().position(|&shown| at < shown);
            leg.unwrap_or(self.shown.len() - 1)
        };
        match Misfit::of(&self.limiter, &clock) {
            Some(Misfit::OtherClock(at)) => Err(PolicyError::OtherClock { leg: leg(at) }),
            Some(Misfit::SameQueue(at)) => Err(PolicyError::SameQueue { leg: leg(at) }),
            None => {
                let settings = self.settings(&clock);
                Ok(Policy::with(self.limiter, clock, settings))
            }
        }
    }
}

impl<L> PolicyBuilder<L> {
    fn map<M>(self, map: impl FnOnce(L) -> M) -> PolicyBuilder<M> {
        PolicyBuilder {
            limiter: map(self.limiter),
            shown: self.shown,
            clock: self.clock,
            max_wait: self.max_wait,
            max_queue: self.max_queue,
            lateness: self.lateness,
            work_time: self.work_time,
            order: self.order,
            eviction: self.eviction,
        }
    }

    /// Adds a leg, by `add`.
    fn with<M: Limiter>(self, add: impl FnOnce(L) -> M) -> PolicyBuilder<M> {
        let mut builder = self.map(add);
        let mut shown = 0;
        builder.limiter.describe(&mut |_| shown += 1);
        builder.shown.push(shown);
        builder
    }

    /// Waits by `clock`. Without this, the clock is that of the first leg that has one, else the real one.
    pub fn on(mut self, clock: &Clock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// The longest wait. A wait that is known to take longer is refused at once. Zero: no caller waits.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Waiters at most. Zero: no caller waits.
    pub fn max_queue(mut self, max_queue: usize) -> Self {
        self.max_queue = max_queue;
        self
    }

    /// What happens to a newcomer when the queue is full. Unless set, it is refused. With
    /// [`Oldest`](Eviction::Oldest) one waiter is refused with `QueueFull` for each newcomer; none for a newcomer that could not
    /// wait even alone.
    pub fn eviction(mut self, eviction: Eviction) -> Self {
        self.eviction = eviction;
        self
    }

    /// Serves the waiters in `order`; first come, first served unless set. A waiter is of the [class](crate::Ask::class) of its ask.
    ///
    /// By [`Order::Lifo`] the newest waiters are still in time under overload, and the oldest, whose callers have probably given
    /// up, time out. A newcomer is admitted on the spot where that is possible, past waiters for more units. In all other orders a
    /// [`try_admit`](crate::LimiterExt::try_admit) is refused while there are waiters, of whatever class. Where a wait is refused
    /// at once because it is known to end too late, only the waiters of its own class count as before it.
    ///
    /// ```
    /// # use tollgate::{Order, Eviction, Policy, Quota, Reason, ManualClock, TokenBucket, LimiterExt};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let bucket = TokenBucket::new(Quota::per_second(1)).on(&clock);
    /// let policy = Policy::builder()
    ///     .order(Order::Lifo)
    ///     .max_queue(2)
    ///     .eviction(Eviction::Oldest)
    ///     .limit(bucket)
    ///     .build()?;
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
    #[doc(alias = "priority")]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// The time that the work takes once it is admitted; zero unless set. A caller with a deadline
    /// ([`admit_timeout`](Policy::admit_timeout)) then waits for so much less: work that could not end in time does not start.
    ///
    /// ```
    /// # use tollgate::{ManualClock, Policy, Quota, Reason, TokenBucket};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder()
    ///     .limit(TokenBucket::new(Quota::per_second(1)).on(&clock))
    ///     .work_time(Duration::from_millis(300))
    ///     .build()?;
    /// clock.run(async {
    ///     drop(policy.admit(1).await);
    ///     let late = policy.admit_timeout(1, Duration::from_millis(1_200)).await.unwrap_err();
    ///     assert_eq!(late.reason(), Reason::TimedOut);
    ///     assert!(policy.admit_timeout(1, Duration::from_millis(1_300)).await.is_ok());
    /// });
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn work_time(mut self, work_time: Duration) -> Self {
        self.work_time = work_time;
        self
    }

    /// The lateness of a waiter (timers are coarse) that still counts as of its due instant; 10 ms unless set.
    ///
    /// By counted instants every rate and window holds exactly. By real instants a leg may admit up to
    /// `lateness x rate` more while waiters are served. [`Duration::ZERO`] is strict: a late timer loses its time. Rates above one per
    /// timer tick (1,000/s) are then not reached by waiting callers.
    pub fn lateness(mut self, lateness: Duration) -> Self {
        self.lateness = lateness;
        self
    }

    fn settings(&self, clock: &Clock) -> Settings {
        Settings {
            max_wait: self.max_wait.map(|max_wait| clock.ticks_of(max_wait)),
            max_queue: self.max_queue,
            lateness: clock.ticks_of(self.lateness),
            work: clock.ticks_of(self.work_time),
            order: self.order.clone(),
            eviction: self.eviction,
            misfit: false,
        }
    }
}

impl<L> fmt::Debug for PolicyBuilder<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyBuilder")
            .field("legs", &self.shown.len())
            .field("max_wait", &self.max_wait)
            .field("max_queue", &self.max_queue)
            .finish_non_exhaustive()
    }
}

/// The clock of the first leg that has one.
pub(super) fn clock_of(limiter: &impl Limiter) -> Option<Clock> {
    let mut clock = None;
    limiter.describe(&mut |leg| {
        if clock.is_none() {
            clock = leg.clock.cloned();
        }
    });
    clock
}

/// Why no policy can wait for a limiter, with the number of the description that says so.
pub(super) enum Misfit {
    /// It decides by another clock than the policy waits by: instants of the two cannot be compared.
    OtherClock(usize),
    /// One queue that hands over stands in it twice: a policy could not tell its two places there apart. A limiter that hands nothing
    /// over may stand in several legs: its place is one for all of them.
    SameQueue(usize),
}

impl Misfit {
    pub(super) fn of(limiter: &impl Limiter, clock: &Clock) -> Option<Self> {
        let (mut number, mut misfit, mut queues) = (0, None, Vec::new());
        limiter.describe(&mut |leg| {
            if leg.clock.is_some_and(|other| !other.is_same(clock)) {
                misfit.get_or_insert(Self::OtherClock(number));
            }
            if leg.hands_over.is_some_and(|queue| queues.contains(&queue)) {
                misfit.get_or_insert(Self::SameQueue(number));
            }
            queues.extend(leg.hands_over);
            number += 1;
        });
        misfit
    }
}

/// Why a policy could not be built.
///
/// ```
/// # use tollgate::{ManualClock, Policy, PolicyError, Quota, TokenBucket};
/// let bucket = || TokenBucket::new(Quota::per_second(1)).on(&ManualClock::new());
/// // Each has a clock of its own.
/// let error = Policy::builder().limit(bucket()).limit(bucket()).build().unwrap_err();
/// assert_eq!(error, PolicyError::OtherClock { leg: 1 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// A leg decides by another clock than the policy waits by.
    OtherClock {
        /// Its position, from zero.
        leg: usize,
    },
    /// A semaphore stands in two legs: a policy that waits for it could not tell its two places in the queue apart. Let one leg
    /// count the sum.
    SameQueue {
        /// The position of the second, from zero.
        leg: usize,
    },
    /// The order of the queue is wrong.
    Order(OrderError),
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherClock { leg } => write!(f, "leg {leg} decides by another clock than the policy waits by"),
            Self::SameQueue { leg } => write!(f, "leg {leg} has a semaphore that stands in another leg as well"),
            Self::Order(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PolicyError {}
