//! The handle of a remote limiter, and its part as a leg of a policy.

use super::acquire::Acquire;
use super::backend::{Backend, Rule, StoreError};
use super::builder::{self, RemoteBuilder};
use super::client::{Client, End, RemoteTicket, WaitKind};
use super::error::RemoteError;
use super::key::Key;
use super::memory::Memory;
use super::permit::{OwnedRemotePermit, RemotePermit};
use super::shared::Shared;
use super::stats::RemoteStats;
use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::permit::Permit;
use crate::core::refusal::{ReadyAt, Reason, Refusal, Rejection, Wait};
use crate::core::status::{self, Status};
use crate::rate::Quota;
use crate::sync::wait_queue::{Permits, QueueDemand, QueueId, QueueKey, WaitQueue};
use crate::time::{Clock, ClockReading};
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// A limit that is kept in a store, and that several processes share. See the [module](super).
///
/// # Fairness
/// Permits are granted in the order in which requests reach the store, over all processes: each request has its own place. A
/// large one is not overtaken. With [`Prefetch`](super::Prefetch) the place is that of the process, and its waiters are served
/// in order from its grants. A rate grants tokens for later, in the order of requests, so that no process asks twice. The grant
/// of a waiter that is dropped meanwhile goes to the next one of this process, or is lost. In a window each process with
/// waiters has one place in the queue, for its first waiter; later places and requests that do not wait get the rest.
///
/// # Trying
/// `try_admit`, alone or by a policy, never asks the store: it takes what is available in this process. That is nothing without
/// [`Prefetch`](super::Prefetch). It also uses the last limit that the store reported, for the time of a
/// [renewal](RemoteBuilder::renewal): a limit raised elsewhere is known at most that much later.
/// [`acquire_now`](Self::acquire_now) asks the store and does not wait in its queue.
///
/// # Forks
/// A limiter is closed in a process that was forked after its construction, and its permits there are lost: create it in the
/// child.
///
/// # Cancel safety
/// Every future may be dropped at any point. Its place in the queue is given up, and its grant goes back.
///
/// ```
/// # use tollgate::remote::{Key, Memory, Remote};
/// # use tollgate::{LimiterExt, ManualClock};
/// # use std::sync::Arc;
/// let clock = ManualClock::new();
/// let store = Arc::new(Memory::new(&clock));
/// let exports = Remote::permits(Key::new("exports")?, 1).on(&clock).in_place(store)?;
/// clock.run(async {
///     let permit = exports.acquire(1).await.unwrap();
///     assert_eq!(exports.acquire_now(1).await.unwrap_err().leg(), "exports");
///     drop(permit);
/// });
///
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
pub struct Remote<B: Backend> {
    pub(super) shared: Arc<Shared<B>>,
}

impl Remote<Memory> {
    /// At most `limit` permits at a time, which come back when they are dropped. If the store knows `key` already, its limit
    /// stays, and [`RemoteStats::differs`] reports the difference.
    pub fn permits(key: Key, limit: u64) -> RemoteBuilder {
        RemoteBuilder::new(key, builder::permits(limit))
    }

    /// A token bucket, counted in whole numbers by the store's clock. Until [`set_quota`](Remote::set_quota) is called, the
    /// latest caller's quota applies to every process.
    ///
    /// ```
    /// # use tollgate::remote::{Key, Memory, Prefetch, Remote};
    /// # use tollgate::{ManualClock, Quota};
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let store = Arc::new(Memory::new(&clock));
    /// let calls = Remote::rate(Key::new("calls")?, Quota::per_second(10).burst(10))
    ///     .prefetch(Prefetch::up_to(5).keep(1).span(Duration::from_millis(100)).turn(Duration::from_millis(10)))
    ///     .on(&clock)
    ///     .in_place(Arc::clone(&store))?;
    /// let window = Remote::window(Key::new("calls")?, 2, Duration::from_secs(60)).on(&clock).in_place(store)?;
    /// clock.run(async {
    ///     assert!(calls.acquire(1).await.is_ok() && window.acquire_now(3).await.is_err());
    ///     calls.set_quota(Quota::per_second(100).burst(100)).await?; // For all processes.
    ///     window.set_limit(3).await?;
    ///     assert!(window.acquire_now(3).await.is_ok());
    ///     calls.close().await;
    ///     assert!(calls.try_acquire(1).is_err());
    ///     Ok::<(), tollgate::remote::RemoteError>(())
    /// })?;
    /// # Ok::<(), tollgate::remote::RemoteError>(())
    /// ```
    pub fn rate(key: Key, quota: Quota) -> RemoteBuilder {
        RemoteBuilder::new(key, builder::rate(quota))
    }

    /// At most `limit` units in any span of `length`. Until [`set_limit`](Remote::set_limit) is called, the latest caller's
    /// limit applies to every process.
    pub fn window(key: Key, limit: u64, length: Duration) -> RemoteBuilder {
        RemoteBuilder::new(key, Rule::Window { limit, length })
    }
}

impl<B: Backend> Remote<B> {
    pub(super) fn new(shared: Arc<Shared<B>>) -> Self {
        Self { shared }
    }

    /// Waits for `n` units in turn.
    ///
    /// # Errors
    /// `Oversized` above the limit as the store has it, `Unavailable` while the store is unavailable, `Misconfigured` while it
    /// [refuses](super::StoreError::Refused) for good, `Closed`.
    pub fn acquire(&self, n: u64) -> Acquire<'_, B> {
        Acquire::new(self, n, WaitKind::Queued)
    }

    /// Asks the store for `n` units, and waits only for the reply. It overtakes no waiter.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and `Saturated` or `RateExceeded` when there are too few.
    pub fn acquire_now(&self, n: u64) -> Acquire<'_, B> {
        Acquire::new(self, n, WaitKind::Immediate)
    }

    /// [`acquire`](Self::acquire) with a permit that owns its limiter.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use tollgate::remote::{Key, Memory, Remote};
    /// # use tollgate::ManualClock;
    /// # use std::sync::Arc;
    /// let clock = ManualClock::new();
    /// let reports = Arc::new(Remote::permits(Key::new("reports")?, 1).on(&clock).in_place(Memory::new(&clock))?);
    /// let permit = clock.run(Arc::clone(&reports).acquire_owned(1)).expect("it is free");
    /// assert!(!permit.is_lost() && permit.good_for().is_some());
    /// # Ok::<(), tollgate::remote::RemoteError>(())
    /// ```
    pub async fn acquire_owned(self: Arc<Self>, n: u64) -> Result<OwnedRemotePermit<B>, Rejection> {
        let ticket = Acquire::new(&self, n, WaitKind::Queued).ticket().await;
        match ticket {
            Ok(ticket) => Ok(Permit::new(self, ticket)),
            Err(reason) => Err(self.refusal(reason, n, Wait::Never).to_rejection()),
        }
    }

    /// Takes `n` of the units available in this process.
    ///
    /// # Errors
    /// As [`acquire_now`](Self::acquire_now), without asking the store: [`RoundTrip`](Reason::RoundTrip) when only the store can
    /// tell. Without a [prefetch](super::Prefetch) no units are available in this process.
    pub fn try_acquire(&self, n: u64) -> Result<RemotePermit<'_, B>, Refusal<'_>> {
        let now = self.shared.clock.now();
        match self.shared.acquire(n, now, |_, reason| reason) {
            Ok(ticket) => Ok(Permit::new(self, ticket)),
            Err(reason) => Err(self.refusal(reason, n, self.wait_for(reason))),
        }
    }

    /// Sets the limit of permits, or of a window, at the store, for all processes. It applies at once: below the units in use,
    /// nothing is granted until enough have come back. Ends when the store has carried it out.
    ///
    /// Waiters that need more than a lowered limit are refused as `Oversized`; with a limit of zero these are all waiters.
    ///
    /// A raised limit serves waiters at once.
    ///
    /// The store remembers the limit of permits as long as they are used. For a window see [`set_quota`](Self::set_quota).
    ///
    /// # Errors
    /// [`RemoteError::Limit`] above [`MAX_UNITS`](super::MAX_UNITS); [`RemoteError::Rule`] for a rate;
    /// [`RemoteError::Unsupported`] when it is more than the store can do; [`RemoteError::Unavailable`] while the store is
    /// unavailable, and [`RemoteError::Refused`] while it refuses: it is carried out once the store is back; [`RemoteError::Closed`].
    ///
    /// # Cancel safety
    /// Once polled, it is carried out whether it is dropped or not.
    pub async fn set_limit(&self, limit: u64) -> Result<(), RemoteError> {
        let rule = match self.rule() {
            Rule::Permits { .. } => Rule::Permits { limit },
            Rule::Window { length, .. } => Rule::Window { limit, length },
            Rule::Rate { .. } => {
                return Err(RemoteError::Rule {
                    given: "limit",
                    of: "rate",
                });
            }
        };
        self.change(rule).await
    }

    /// Sets the quota of a rate at the store, for all processes. Taken tokens stay taken, in whole tokens: a raised burst is
    /// there at once, and one that is lowered below the taken tokens gives nothing until enough have come back. Ends when the
    /// store has carried it out.
    ///
    /// Other processes learn of it with their next request, to which it applies. They repeat it from then on, so that it
    /// outlives a store that has lost its memory. An unused store remembers it for a [day](Rule::REMEMBERED). Of several
    /// changes the last one counts; of several at once, any one. A change takes two round trips, and a caller whose rule was
    /// changed between them takes its own change for the earlier one.
    ///
    /// # Errors
    /// [`RemoteError::Quota`] when stores cannot count by it, [`RemoteError::Unsupported`] when this one cannot;
    /// [`RemoteError::Rule`] for permits, windows and leased [capacity](super::RemoteBuilder::capacity); otherwise as
    /// [`set_limit`](Self::set_limit).
    ///
    /// # Cancel safety
    /// Once polled, it is carried out whether it is dropped or not.
    pub async fn set_quota(&self, quota: Quota) -> Result<(), RemoteError> {
        match self.rule() {
            Rule::Rate { .. } if self.shared.with(|client| client.config().quota_is_fixed) => Err(RemoteError::Rule {
                given: "quota for all processes",
                of: "rate whose capacity is leased",
            }),
            Rule::Rate { .. } => self.change(Rule::Rate { quota }).await,
            Rule::Permits { .. } => Err(RemoteError::Rule {
                given: "quota",
                of: "number of permits",
            }),
            Rule::Window { .. } => Err(RemoteError::Rule {
                given: "quota",
                of: "window",
            }),
        }
    }

    async fn change(&self, rule: Rule) -> Result<(), RemoteError> {
        builder::check_rule(&rule)?;
        let ttl = self.shared.with(|client| client.config().ttl);
        self.shared.backend.supports(&rule, ttl)?;
        let change = self.shared.with(|client| client.change(rule));
        let is_away = |client: &Client| client.is_unavailable() || client.is_misconfigured();
        self.until(|client| client.has_changed(change) || client.is_closed() || is_away(client))
            .await;
        self.shared.with(|client| match client.last_error() {
            _ if client.has_changed(change) => Ok(()),
            _ if client.is_closed() => Err(RemoteError::Closed),
            Some(StoreError::Refused { why }) => Err(RemoteError::Refused { why: why.clone() }),
            _ => Err(RemoteError::Unavailable),
        })
    }

    /// The rule of the limit as it is known here: as it was set up, until the store reports another one.
    pub fn rule(&self) -> Rule {
        self.shared.with(|client| client.rule())
    }

    /// Refuses all requests from now on, and returns all units of this process to the store at once: permits still held are
    /// lost. Ends when the store has carried it out, or does not answer.
    pub async fn close(&self) {
        self.shared.with(|client| client.close());
        self.until(|client| client.is_stopped()).await;
    }

    /// Waits until `holds` is true. Watchers are woken for each change of that.
    async fn until(&self, holds: impl Fn(&Client) -> bool) {
        let mut watch = Watching {
            shared: &self.shared,
            number: None,
        };
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let (held, old) = watch.shared.with(|client| {
                if holds(client) {
                    return (true, Some(waker));
                }
                (false, client.watch(&mut watch.number, waker))
            });
            drop(old);
            if held { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// The state here, and at the store as of its last reply. No round trip.
    pub fn stats(&self) -> RemoteStats {
        let now = self.shared.clock.now();
        self.shared
            .with(|client| RemoteStats::of(client, &self.shared.clock, now))
    }

    /// The name of the limiter at the store.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The store.
    pub fn backend(&self) -> &B {
        &self.shared.backend
    }

    pub(super) fn refusal<'a>(&'a self, reason: Reason, units: u64, wait: Wait<'a>) -> Refusal<'a> {
        Refusal::new(reason, &self.shared.name, units, wait)
    }

    /// How a caller refused with `reason` may wait.
    fn wait_for(&self, reason: Reason) -> Wait<'_> {
        match reason {
            Reason::Saturated | Reason::RateExceeded | Reason::RoundTrip => Wait::Turn(self),
            _ => Wait::Never,
        }
    }
}

impl<B: Backend> Limiter for Remote<B> {
    type Ticket = RemoteTicket;

    // The clock is read anew: a lease may have ended since an earlier instant.

    fn try_reserve(&self, demand: Demand<'_>) -> Result<RemoteTicket, Refusal<'_>> {
        let (units, now) = (demand.units(), self.shared.clock.now());
        let id = QueueId::of(self);
        let wait = |reason| self.refusal(reason, units, self.wait_for(reason));
        let Some(claim) = demand.queue_key(id) else {
            return self.shared.acquire(units, now, |_, reason| reason).map_err(wait);
        };
        let taken = self
            .shared
            .with(|client| match client.poll_wait(claim.key(), None, now).0 {
                None => Err(Reason::Saturated),
                Some(End::Granted(ticket)) if ticket.units == units => {
                    demand.redeem(id);
                    Ok(ticket)
                }
                Some(End::Granted(ticket)) => {
                    // Another user of this limiter made the claim, for another number.
                    demand.redeem(id);
                    client.refund(ticket, true, now);
                    client.acquire(units, now)
                }
                Some(End::Refused(_) | End::Lapsed) => {
                    demand.redeem(id);
                    client.acquire(units, now)
                }
            });
        taken.map_err(wait)
    }

    fn cancel(&self, ticket: RemoteTicket, _: &ClockReading) {
        self.shared.refund(ticket, true);
    }

    fn finish(&self, ticket: RemoteTicket, _: Outcome, _: &ClockReading) {
        self.shared.refund(ticket, false);
    }

    /// Corrects the charge of a rate: a surplus becomes available in this process, and a shortage is reported to the store. At
    /// most [`MAX_UNITS`](super::MAX_UNITS) are charged.
    fn settle(&self, ticket: &mut RemoteTicket, settlement: Settlement<'_>) -> u32 {
        let now = self.shared.clock.now();
        let Some(actual) = settlement.actual() else { return 0 };
        self.shared.with(|client| {
            if client.config().admits_tokens() {
                client.settle(ticket, actual, now);
                1
            } else {
                0
            }
        })
    }

    /// The units stay held as long as this process lives.
    fn forget(&self, _: RemoteTicket) {}

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        let (units, now) = (demand.units(), self.shared.clock.now());
        let claim = demand.queue_key(QueueId::of(self));
        let ready = self.shared.with(|client| {
            if let Some(claim) = claim {
                return Ok((!client.waits(claim.key()), None));
            }
            client.drop_stale(now);
            if client.is_closed() {
                return Err(Reason::Closed);
            }
            if client.is_oversized(units, now) {
                return Err(Reason::Oversized);
            }
            if let Some(reason) = client.refuses() {
                return Err(reason);
            }
            let all = units.saturating_add(demand.ahead());
            Ok((client.has_free(all, now), client.arrives_at(all)))
        });
        match ready {
            Err(reason) => ReadyAt::never_for(reason, &self.shared.name, units),
            Ok((true, _)) => ReadyAt::NOW,
            // A grant for later needs no request.
            Ok((false, Some(at))) => ReadyAt::at(&self.shared.name, at),
            Ok((false, None)) => {
                let reason = match self.permits() {
                    Permits::None => Reason::RateExceeded,
                    _ => Reason::Saturated,
                };
                ReadyAt::in_turn(&self.shared.name, self, units).because(reason)
            }
        }
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.shared.clock)
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        visit(self);
    }

    /// As of the store's last reply; `waiting` counts the waiters here. A lease of this process has a status of its own, of the same name.
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        let stats = self.stats();
        let rule = self.rule();
        let available = stats.limit.saturating_sub(stats.in_use);
        let lease = status::State::Lease {
            units: stats.units_held,
            requests: stats.requests,
            recalls: stats.recalls,
            lapses: stats.losses,
        };
        let (kind, state) = match rule {
            Rule::Permits { .. } => {
                let state = status::State::Permits {
                    limit: stats.limit,
                    in_use: stats.in_use,
                    waiting: stats.waiting_here,
                };
                ("remote_semaphore", state)
            }
            Rule::Rate { quota } => match quota.status(available, None) {
                Some(state) => ("remote_rate", state),
                None => return,
            },
            Rule::Window { length, .. } => {
                let state = status::State::Rate {
                    limit: stats.limit,
                    window: length,
                    available,
                    next: None,
                    reset: None,
                };
                ("remote_window", state)
            }
        };
        visit(Status::new(&self.shared.name, kind, state));
        if self.shared.with(|client| !client.config().spends()) {
            visit(Status::new(&self.shared.name, "lease", lease));
        }
    }
}

impl<B: Backend> WaitQueue for Remote<B> {
    fn join(&self, QueueDemand { units, .. }: QueueDemand<'_>, waker: &Waker) -> QueueKey {
        let (waker, now) = (waker.clone(), self.shared.clock.now());
        let key = self
            .shared
            .with(|client| client.join(units, WaitKind::Policy, waker, now));
        QueueKey::new(QueueId::of(self), key)
    }

    fn leave(&self, claim: QueueKey) {
        let now = self.shared.clock.now();
        let waker = self.shared.with(|client| client.leave(claim.key(), now));
        drop(waker);
    }

    fn permits(&self) -> Permits {
        match self.rule() {
            Rule::Permits { .. } => Permits::Own,
            Rule::Rate { .. } | Rule::Window { .. } => Permits::None,
        }
    }
}

/// The last handle goes: permits cannot outlive it, except forgotten ones.
impl<B: Backend> Drop for Remote<B> {
    fn drop(&mut self) {
        self.shared.with(|client| client.close());
    }
}

impl<B: Backend> fmt::Debug for Remote<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("name", &self.shared.name)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// The registration of a watcher, which ends when it is dropped.
pub(super) struct Watching<'a, B: Backend> {
    pub(super) shared: &'a Shared<B>,
    pub(super) number: Option<u64>,
}

impl<B: Backend> Drop for Watching<'_, B> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self.shared.with(|client| client.unwatch(number));
            drop(waker);
        }
    }
}
