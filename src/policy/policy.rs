//! The policy: any limiter with a clock and a queue of waiters in front of it.

use super::QUEUE;
use super::builder::{Misfit, PolicyBuilder};
use super::driver::{Core, Settings};
use super::order::{Eviction, Order};
use super::queue::End;
use super::waits::WaitStats;
use crate::core::ask::{Ask, Demand};
use crate::core::limiter::{Limiter, delegate};
use crate::core::permit::Permit;
use crate::core::refusal::{Reason, Refusal};
use crate::core::status::{Description, State};
use crate::sync::wait_queue::Watch;
use crate::time::{Clock, ClockReading};
use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Admits all-or-nothing, and lets callers wait in one queue. A handle: clones share the queue.
///
/// # Fairness
/// First come, first served: a waiter is admitted before any newcomer, however small the request. A
/// [`try_admit`](crate::LimiterExt::try_admit) is refused while there are waiters. ([Other orders](PolicyBuilder::order)
/// are an option: newest first, by priority with ageing, in turn, by shares.) At a semaphore that others use directly, the head of the
/// policy's queue is one more waiter. Policies that share a leg take it in the order of the ages of their heads: see
/// [`sync`](crate::sync). Nothing is held while waiting, except places in queues by the rule that stands there.
///
/// # Who drives the queue
/// The thread that joins as the head does, that removes the head, that gives something back or changes something, and a timer: inside
/// a tokio runtime that of the runtime, elsewhere one thread that all policies share, under a [`ManualClock`](crate::ManualClock) the
/// clock. A future that is not polled stops no other.
/// **Starvation**: a tokio runtime that is neither run nor dropped wakes no timer. A policy whose waiters all came from one such runtime
/// keeps its places at shared legs until the runtime runs again.
///
/// # Memory ordering
/// Where a leg is a [`Semaphore`](crate::Semaphore), all that happens before a permit is given back is seen by the next holder.
/// Rates order nothing.
///
/// ```
/// # use tollgate::{Ask, Cost, ManualClock, Policy, Quota, Semaphore, TokenBucket, LimiterExt};
/// # use std::time::Duration;
/// const TOKENS: Cost = Cost::new("tokens");
/// let clock = ManualClock::new();
/// let policy = Policy::builder()
///     .limit(TokenBucket::new(Quota::per_minute(60)).on(&clock).named("requests"))
///     .limit(TokenBucket::new(Quota::per_minute(6_000)).on(&clock).per(TOKENS).named("tokens"))
///     .limit(Semaphore::new(4).named("in flight"))
///     .max_wait(Duration::from_secs(5))
///     .max_queue(100)
///     .build()
///     .unwrap();
/// clock.run(async {
///     let mut permit = policy.admit(Ask::one().cost(TOKENS, 6_000)).await.unwrap();
///     permit.settle(TOKENS, 5_800).unwrap();
///     // 200 tokens are left; 100 more come each second.
///     let second = policy.admit(Ask::one().cost(TOKENS, 400)).await.unwrap();
///     assert_eq!(clock.elapsed(), Duration::from_secs(2));
///     let refused = policy.admit(Ask::one().cost(TOKENS, 1_000)).await.unwrap_err();
///     assert_eq!(refused.leg(), "tokens");
///     assert_eq!(refused.retry_after(), Some(Duration::from_secs(10)));
///     # drop(second);
/// });
/// ```
pub struct Policy<L: Limiter + 'static>(Arc<Core<L>>);

impl Policy<super::BoxLimiter> {
    /// A builder for a policy of any number of legs, of any types.
    pub fn builder() -> PolicyBuilder {
        PolicyBuilder::new()
    }
}

impl<L: Limiter + 'static> Policy<L> {
    /// A policy over `limiter`, on its clock, with no bound on waiting. For bounds see [`builder`](Policy::builder).
    ///
    /// Where a builder reports [`PolicyError::OtherClock`](super::PolicyError::OtherClock) or
    /// [`PolicyError::SameQueue`](super::PolicyError::SameQueue), this admits a request that fits on the spot. A wait is
    /// refused at once, as [`Misconfigured`](Reason::Misconfigured): none could end at the right instant.
    pub fn new(limiter: L) -> Self {
        let clock = super::builder::clock_of(&limiter).unwrap_or_default();
        let settings = Settings {
            max_wait: None,
            max_queue: usize::MAX,
            lateness: clock.ticks_of(PolicyBuilder::LATENESS),
            work: 0,
            order: Order::Fifo,
            eviction: Eviction::Never,
            misfit: Misfit::of(&limiter, &clock).is_some(),
        };
        Self::with(limiter, clock, settings)
    }

    pub(super) fn with(limiter: L, clock: Clock, settings: Settings) -> Self {
        Self(Core::new(limiter, clock, settings))
    }

    pub(super) fn core(&self) -> &Arc<Core<L>> {
        &self.0
    }

    /// The head of a policy around this one has places at the legs, which put it in order with the head of this one.
    fn is_passed_by(&self, demand: &Demand<'_>) -> bool {
        demand.place().is_some() && !self.0.is_closed()
    }

    /// A number that no other policy has while this one lives.
    #[cfg(feature = "fan-out")]
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The limiter behind the queue. Admitting by it directly overtakes the queue.
    pub fn limiter(&self) -> &L {
        &self.0.limiter
    }

    /// The clock that it waits by.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// The number of waiters. A snapshot.
    pub fn waiting(&self) -> usize {
        self.0.waiting()
    }

    /// How many callers waited, and how long.
    pub fn waits(&self) -> WaitStats {
        self.0.waits.stats()
    }

    /// Changes the longest wait, for callers that join from now on; `None` for no bound. Those that wait keep their deadlines.
    ///
    /// ```
    /// # use tollgate::{ManualClock, Policy, Reason, Semaphore};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder().limit(Semaphore::new(0)).on(&clock).build()?;
    /// policy.set_max_wait(Some(Duration::from_secs(3)));
    /// assert_eq!(clock.run(policy.admit(1)).unwrap_err().reason(), Reason::TimedOut);
    /// assert_eq!(clock.elapsed(), Duration::from_secs(3));
    /// policy.set_max_queue(0);
    /// assert_eq!(clock.run(policy.admit(1)).unwrap_err().reason(), Reason::QueueFull);
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn set_max_wait(&self, max_wait: Option<Duration>) {
        let ticks = max_wait.map_or(u64::MAX, |max_wait| self.clock().ticks_of(max_wait));
        self.0.max_wait.store(ticks, Ordering::Relaxed);
    }

    /// Changes the most waiters. Waiters beyond a lowered bound stay.
    pub fn set_max_queue(&self, max_queue: usize) {
        self.0.max_queue.store(max_queue, Ordering::Relaxed);
    }

    /// Waits in the queue, and admits.
    ///
    /// # Errors
    /// - `QueueFull`: the queue is full, or this waiter was evicted for [a newer one](PolicyBuilder::eviction).
    /// - `TimedOut`: the wait would end after the policy's `max_wait`; at once if that is known.
    /// - `Oversized`, `Unpriced`, `Unkeyed`, `Misconfigured`, `Closed`: no wait can help.
    /// - The refusal of a leg that is [not waited for](crate::LimiterExt::at_once), such as `CircuitOpen`, at once.
    ///
    /// The refusal names the leg that binds.
    ///
    /// # Panics
    /// If a leg panics when it is asked for this request.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue. A permit that it was admitted with comes back, and tokens come back as those of a
    /// [cancel](crate::Permit::cancel). **Starvation**: a future that was admitted and is not polled again holds its permits until it is dropped.
    pub fn admit(&self, ask: impl Into<Ask>) -> impl Future<Output = Result<Permit<&Self>, Refusal>> {
        Admit::new(self, ask.into(), None)
    }

    /// The same, for at most `patience`.
    ///
    /// # Errors
    /// As [`admit`](Policy::admit), with `TimedOut` when the wait would end after `patience`.
    ///
    /// # Cancel safety
    /// As [`admit`](Policy::admit).
    pub fn admit_timeout(
        &self,
        ask: impl Into<Ask>,
        patience: Duration,
    ) -> impl Future<Output = Result<Permit<&Self>, Refusal>> {
        Admit::new(self, ask.into(), Some(patience))
    }

    /// [`admit`](Policy::admit) with a permit that owns a handle of the policy and can be moved anywhere.
    ///
    /// # Errors
    /// As [`admit`](Policy::admit).
    ///
    /// # Cancel safety
    /// As [`admit`](Policy::admit).
    ///
    /// ```
    /// # use tollgate::{ManualClock, Policy, Semaphore};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder().limit(Semaphore::new(2)).on(&clock).build()?;
    /// clock.run(async {
    ///     let permit = policy.admit_owned(1).await.unwrap();
    ///     let _second = policy.admit(1).await.unwrap();
    ///     assert!(policy.admit_timeout(1, Duration::from_secs(1)).await.is_err());
    ///     drop(permit); // Borrows nothing: it may move into a task.
    /// });
    /// assert!(policy.admit_blocking(1).is_ok());
    /// assert!(policy.admit_blocking_timeout(2, Duration::from_secs(1)).is_ok());
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn admit_owned<A: Into<Ask>>(&self, ask: A) -> impl Future<Output = Result<Permit<Self>, Refusal>> + use<L, A> {
        Admit::new(self.clone(), ask.into(), None)
    }

    /// [`admit`](Policy::admit), parking this thread. It waits in the same queue as futures do.
    ///
    /// # Errors
    /// As [`admit`](Policy::admit).
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn admit_blocking(&self, ask: impl Into<Ask>) -> Result<Permit<&Self>, Refusal> {
        crate::blocking::check();
        crate::sync::park::run_blocking(self.admit(ask))
    }

    /// [`admit_timeout`](Policy::admit_timeout), parking this thread.
    ///
    /// # Errors
    /// As [`admit_timeout`](Policy::admit_timeout).
    ///
    /// # Panics
    /// In an async context of tokio, as tokio's own do.
    #[track_caller]
    pub fn admit_blocking_timeout(&self, ask: impl Into<Ask>, patience: Duration) -> Result<Permit<&Self>, Refusal> {
        crate::blocking::check();
        crate::sync::park::run_blocking(self.admit_timeout(ask, patience))
    }

    /// Refuses all waiters and all newcomers from now on, as [`Closed`](Reason::Closed). Permits that are out stay valid.
    ///
    /// ```
    /// # use tollgate::{LimiterExt, ManualClock, Policy, Reason, Semaphore};
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder().limit(Semaphore::new(1)).on(&clock).build()?;
    /// clock.run(async {
    ///     let held = policy.admit(1).await.unwrap();
    ///     let (waited, ()) = futures::join!(policy.admit(1), async { policy.close() });
    ///     assert_eq!(waited.unwrap_err().reason(), Reason::Closed);
    ///     assert_eq!(policy.try_admit(1).unwrap_err().reason(), Reason::Closed);
    ///     drop(held);
    /// });
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn close(&self) {
        self.0.close_to_newcomers();
        self.0.refuse_all();
    }

    /// Refuses newcomers from now on, serves the waiters for at most `patience`, and refuses those that are left. Returns the number of
    /// them. It does not wait for permits that are out.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the policy closed to newcomers; its waiters wait on.
    ///
    /// ```
    /// # use tollgate::{ManualClock, Policy, Quota, TokenBucket};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let policy = Policy::new(TokenBucket::new(Quota::per_second(1)).on(&clock));
    /// clock.run(async {
    ///     let callers = futures::future::join_all((0..5).map(|_| policy.admit(1)));
    ///     let (callers, left) = futures::join!(callers, policy.drain(Duration::from_secs(2)));
    ///     assert_eq!((callers.iter().filter(|end| end.is_ok()).count(), left), (3, 2));
    /// });
    /// ```
    pub async fn drain(&self, patience: Duration) -> usize {
        self.0.close_to_newcomers();
        let mut sleep = std::pin::pin!(self.clock().sleep(patience));
        std::future::poll_fn(|cx| match self.waiting() {
            0 => Poll::Ready(()),
            _ => match sleep.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => {
                    self.0.wake_when_empty(cx.waker());
                    match self.waiting() {
                        0 => Poll::Ready(()),
                        _ => Poll::Pending,
                    }
                }
            },
        })
        .await;
        self.0.refuse_all()
    }
}

impl<L: Limiter + 'static> Clone for Policy<L> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<L: Limiter + 'static> fmt::Debug for Policy<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("waiting", &self.waiting())
            .field("clock", self.clock())
            .finish_non_exhaustive()
    }
}

impl<L: Limiter + 'static> Limiter for Policy<L> {
    type Ticket = L::Ticket;

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        if self.0.is_open_and_empty() || self.is_passed_by(demand) {
            return self.0.limiter.try_reserve(demand);
        }
        match self.0.newest_first() {
            true => self.0.try_as_head(&demand.as_ask()),
            false => Err(self.0.refuse_behind(&demand.as_ask())),
        }
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let looked = self.0.limiter.look(demand);
        let is_last = self.0.is_open_and_empty() || self.0.newest_first() || self.is_passed_by(demand);
        if is_last || demand.answers().is_some() {
            return looked;
        }
        Err(match looked {
            Err(refusal) if !self.0.is_closed() => refusal,
            _ => self.0.refuse_behind(&demand.as_ask()),
        })
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.0.limiter.watch(watcher);
        self.0.watchers.watch(watcher);
    }

    /// The legs, and then the queue.
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let alone = Arc::strong_count(&self.0) == 1;
        // Acquire: sees the last writes of the other handles. Pairs with the release by which an `Arc` is dropped.
        fence(Ordering::Acquire);
        let as_new = alone && self.0.is_open_and_empty();
        self.0.limiter.describe(&mut |leg| {
            let as_new = leg.is_as_new && as_new;
            visit(leg.as_new(as_new));
        });
        let waiting = self.waiting() as u64;
        let queue = Description::new(QUEUE).on(self.clock()).as_new(as_new);
        visit(queue.state(State::Queue { waiting }));
    }

    delegate!(self => self.0.limiter; cancel settle finish leave);
}

/// One wait, by a reference to the policy or by a handle. Dropping it leaves the queue and loses nothing.
#[must_use = "futures do nothing unless polled"]
struct Admit<L: Limiter + 'static, H: Borrow<Policy<L>>> {
    policy: H,
    ask: Ask,
    patience: Option<Duration>,
    wait: Stage,
    of: PhantomData<fn() -> L>,
}

/// How far a wait is.
enum Stage {
    New,
    /// With its number of arrival.
    Queued(u64),
    Ended,
}

impl<L: Limiter, H: Borrow<Policy<L>> + Limiter<Ticket = L::Ticket> + Clone> Admit<L, H> {
    fn new(policy: H, ask: Ask, patience: Option<Duration>) -> Self {
        Self {
            policy,
            ask,
            patience,
            wait: Stage::New,
            of: PhantomData,
        }
    }

    #[cold]
    fn wait(&mut self, waker: &Waker) -> Poll<Result<Permit<H>, Refusal>> {
        let core = &self.policy.borrow().0;
        let newest_first = core.newest_first() && core.waiting() > 0;
        if let (Stage::New, true) = (&self.wait, newest_first) {
            // On the spot where that is possible: then none is evicted for it.
            if let Ok(ticket) = core.try_as_head(&self.ask) {
                self.wait = Stage::Ended;
                return Poll::Ready(Ok(Permit::new(self.policy.clone(), ticket)));
            }
        }
        let arrival = match self.wait {
            Stage::Queued(arrival) => arrival,
            Stage::Ended => panic!("a future is not polled after its end"),
            Stage::New => match core.join(&self.ask, self.patience) {
                Ok(arrival) => {
                    self.wait = Stage::Queued(arrival);
                    arrival
                }
                Err(refusal) => {
                    self.wait = Stage::Ended;
                    return Poll::Ready(Err(refusal));
                }
            },
        };
        let Some(end) = core.look(arrival, &self.ask, waker) else {
            return Poll::Pending;
        };
        self.wait = Stage::Ended;
        Poll::Ready(match end {
            End::Admitted(ticket) => Ok(Permit::new(self.policy.clone(), ticket)),
            End::Refused(refusal) => Err(refusal),
            End::Expired => Err(core.why(Reason::TimedOut, &self.ask)),
            End::Evicted => Err(core.why(Reason::QueueFull, &self.ask)),
            End::Panicked(panic) => resume_unwind(panic),
        })
    }
}

impl<L: Limiter, H: Borrow<Policy<L>> + Limiter<Ticket = L::Ticket> + Clone + Unpin> Future for Admit<L, H> {
    type Output = Result<Permit<H>, Refusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let core = &this.policy.borrow().0;
        if matches!(this.wait, Stage::New) && core.is_idle() {
            let reading = ClockReading::default();
            match core.limiter.try_reserve(&Demand::new(&this.ask, &reading)) {
                Ok(ticket) => {
                    this.wait = Stage::Ended;
                    return Poll::Ready(Ok(Permit::new(this.policy.clone(), ticket)));
                }
                Err(refusal) if refusal.reason().is_permanent() => {
                    this.wait = Stage::Ended;
                    return Poll::Ready(Err(refusal));
                }
                Err(_) => {}
            }
        }
        this.wait(cx.waker())
    }
}

impl<L: Limiter, H: Borrow<Policy<L>>> Drop for Admit<L, H> {
    fn drop(&mut self) {
        if let Stage::Queued(arrival) = self.wait {
            self.policy.borrow().0.leave(arrival, &self.ask);
        }
    }
}
