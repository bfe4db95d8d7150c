//! Builds a policy: its legs, and the bounds of its queue.

use super::policy::Policy;
use super::settings::{QueueOrder, Settings};
use crate::core::and::And;
use crate::core::boxed::BoxLimiter;
use crate::core::limiter::Limiter;
use crate::semaphore::{Eviction, Order, OrderError};
use crate::sync::wait_queue::QueueId;
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
    /// By leg, the numbers of clocks and queues that it and the legs before it show.
    shown: Vec<(usize, usize)>,
    clock: Option<Clock>,
    max_wait: Option<Duration>,
    max_queue: usize,
    reject_early_from: Option<usize>,
    lateness: Duration,
    order: QueueOrder,
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
            reject_early_from: None,
            lateness: Self::LATENESS,
            order: QueueOrder::FIFO,
        }
    }

    /// Adds the first leg. It counts calls unless it says otherwise ([`per`](crate::LimiterExt::per)).
    pub fn limit<L: Limiter + 'static>(self, leg: L) -> PolicyBuilder<L> {
        self.with(|()| leg)
    }
}

impl<L: Limiter + 'static> PolicyBuilder<L> {
    /// Adds a leg. It counts calls unless it says otherwise ([`per`](crate::LimiterExt::per)).
    pub fn limit<M: Limiter + 'static>(self, leg: M) -> PolicyBuilder<And<L, M>> {
        self.with(|limiter| And::new(limiter, leg))
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
    pub fn boxed(self) -> PolicyBuilder<BoxLimiter> {
        self.map(BoxLimiter::new)
    }

    /// Builds the policy of the legs that were added.
    ///
    /// # Errors
    /// [`PolicyError`] when two clocks are used, when a queue stands in two legs, or when the order is wrong.
    pub fn build(self) -> Result<Policy<L>, PolicyError> {
        self.order.order.check().map_err(PolicyError::Order)?;
        let first = self.clock.clone().or_else(|| self.limiter.clock().cloned());
        let clock = first.unwrap_or_default();
        let leg = |known: fn(&(usize, usize)) -> usize, at: usize| {
            let leg = self.shown.iter().position(|leg| at < known(leg));
            leg.unwrap_or(self.shown.len() - 1)
        };
        match Misfit::of(&self.limiter, &clock) {
            Some(Misfit::OtherClock(at)) => Err(PolicyError::OtherClock {
                leg: leg(|shown| shown.0, at),
            }),
            Some(Misfit::SameQueue(at)) => Err(PolicyError::SameQueue {
                leg: leg(|shown| shown.1, at),
            }),
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
            reject_early_from: self.reject_early_from,
            lateness: self.lateness,
            order: self.order,
        }
    }

    /// Adds a leg, by `add`.
    fn with<M: Limiter>(self, add: impl FnOnce(L) -> M) -> PolicyBuilder<M> {
        let mut builder = self.map(add);
        let (mut clocks, mut queues) = (0, 0);
        builder.limiter.clocks(&mut |_| clocks += 1);
        builder.limiter.queues(&mut |_| queues += 1);
        builder.shown.push((clocks, queues));
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

    /// Units of all waiters at most: a request for three counts as three.
    ///
    /// ```
    /// # use tollgate::{LimiterExt, ManualClock, Policy, Reason, Semaphore};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder().limit(Semaphore::new(10)).max_queue_units(5).lateness(Duration::ZERO).on(&clock).build()?;
    /// let _held = policy.try_admit(10).unwrap();
    /// let refused = clock.run(policy.admit(6)).unwrap_err();
    /// assert_eq!(refused.reason(), Reason::QueueFull);
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn max_queue_units(mut self, units: u64) -> Self {
        self.order.max_units = units;
        self
    }

    /// What happens to a newcomer when the queue is full. Unless set, it is refused. With
    /// [`Oldest`](Eviction::Oldest) the oldest waiters are refused with `QueueFull`, as many as it takes; none for a
    /// newcomer that could not wait even alone.
    pub fn eviction(mut self, eviction: Eviction) -> Self {
        self.order.eviction = eviction;
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
        self.order.order = order;
        self
    }

    /// Refuses some newcomers by chance once `from` callers wait, and the more the longer the queue is. With 60 here and a
    /// [`max_queue`](Self::max_queue) of 100, half of the newcomers are refused while 80 wait. They are refused at once, as if
    /// the queue were full, while there is still time to go elsewhere; and a burst is thinned, not cut off.
    ///
    /// The chance is that of random early detection (S. Floyd and V. Jacobson, 1993), from a fixed seed.
    ///
    /// ```
    /// # use tollgate::{LimiterExt, ManualClock, Policy, Reason, Semaphore};
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder()
    ///     .limit(Semaphore::new(1))
    ///     .max_queue(100)
    ///     .reject_early(60)
    ///     .on(&clock)
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
    #[doc(alias = "random reject_early_from detection")]
    pub fn reject_early(mut self, from: usize) -> Self {
        self.reject_early_from = Some(from);
        self
    }

    /// The lateness of a waiter (timers are coarse) that still counts as of its due instant; 10 ms unless set.
    ///
    /// By counted instants every rate and window holds exactly. By real instants a leg may admit up to
    /// `lateness x rate` more while waiters are served. [`Duration::ZERO`] is strict: nothing is made up for, nothing
    /// exceeds, and a rate above one per timer tick is not met by waiters.
    pub fn lateness(mut self, lateness: Duration) -> Self {
        self.lateness = lateness;
        self
    }

    fn settings(&self, clock: &Clock) -> Settings {
        Settings {
            max_wait: self.max_wait.map(|max_wait| clock.ticks_of(max_wait)),
            max_queue: self.max_queue,
            reject_early_from: self.reject_early_from,
            lateness: clock.ticks_of(self.lateness),
            order: self.order.clone(),
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

/// Why no policy can wait for a limiter.
pub(super) enum Misfit {
    /// It decides by another clock than the policy waits by: instants of the two cannot be compared. With the number of clocks that
    /// it shows before that one.
    OtherClock(usize),
    /// One queue stands in it twice: a policy could not tell its two places there apart. With the number of queues that it shows
    /// before the second. A queue that hands nothing over may stand in several legs: its turn is one for all of them.
    SameQueue(usize),
}

impl Misfit {
    pub(super) fn of(limiter: &impl Limiter, clock: &Clock) -> Option<Self> {
        let (mut clocks, mut off) = (0, None);
        limiter.clocks(&mut |other| {
            if !other.is_same(clock) {
                off.get_or_insert(clocks);
            }
            clocks += 1;
        });
        let (mut queues, mut doubled) = (Vec::new(), None);
        limiter.queues(&mut |queue| {
            let id = (!queue.holds_nothing()).then(|| QueueId::of_queue(queue));
            if id.is_some() && queues.contains(&id) {
                doubled.get_or_insert(queues.len());
            }
            queues.push(id);
        });
        off.map(Self::OtherClock).or(doubled.map(Self::SameQueue))
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
