//! The handle of a remote limiter, and its part as a leg of a policy.

use super::acquire::Acquire;
use super::backend::{Backend, Rule, StoreError};
use super::builder::{self, RemoteBuilder};
use super::client::{Client, Lack, RemoteTicket, WaitKind};
use super::error::RemoteError;
use super::key::Key;
use super::memory::Memory;
use super::permit::{OwnedRemotePermit, RemotePermit};
use super::shared::Shared;
use super::stats::RemoteStats;
use crate::core::ask::{Demand, Role};
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::permit::Permit;
use crate::core::refusal::{LegName, Reason, Refusal, Wait};
use crate::core::status::{Description, State};
use crate::rate::Quota;
use crate::sync::wait_queue::{Place, Watch};
use crate::time::Instant;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::Poll;
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
    ///     .prefetch(Prefetch { low: 1, span: Duration::from_millis(100), turn: Duration::from_millis(10), ..Prefetch::up_to(5) })
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
    pub async fn acquire_owned(self: Arc<Self>, n: u64) -> Result<OwnedRemotePermit<B>, Refusal> {
        let ticket = Acquire::new(&self, n, WaitKind::Queued).ticket().await;
        match ticket {
            Ok(ticket) => Ok(Permit::new(self, ticket)),
            Err(reason) => Err(self.refusal(reason)),
        }
    }

    /// Takes `n` of the units available in this process.
    ///
    /// # Errors
    /// As [`acquire_now`](Self::acquire_now), without asking the store: [`RoundTrip`](Reason::RoundTrip) when only the store can
    /// tell. Without a [prefetch](super::Prefetch) no units are available in this process.
    pub fn try_acquire(&self, n: u64) -> Result<RemotePermit<'_, B>, Refusal> {
        let now = self.shared.clock.now();
        match self.shared.acquire(n, now, |_, reason| reason) {
            Ok(ticket) => Ok(Permit::new(self, ticket)),
            Err(reason) => Err(self.refusal(reason)),
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

    pub(super) fn refusal(&self, reason: Reason) -> Refusal {
        refusal(reason, self.shared.leg)
    }

    /// The refusal of a demand that was judged at `now`.
    fn lacking(&self, (reason, at): Lack, now: Instant) -> Refusal {
        let refusal = self.refusal(reason);
        at.map_or(refusal, |at| {
            refusal.with_wait(Wait::until(&self.shared.clock, now, at))
        })
    }

    /// The look of the head of a policy, which waits here among the others once it has joined.
    fn look_as_head(&self, demand: &Demand<'_>, place: &Place) -> Result<(), Refusal> {
        let (units, now, id) = (demand.units(), self.shared.clock.now(), place.id());
        let (mut has_joined, mut looked) = self.shared.with(|client| match client.look_of_place(id, units, now) {
            Some(looked) => (true, looked),
            None => (false, client.judge(units, 0, now)),
        });
        let may_wait =
            |&(reason, at): &Lack| self.lacking((reason, at), now).wait() != Wait::Never && !is_at_once(reason);
        if !has_joined && demand.role() == Role::Joining && looked.as_ref().is_err_and(may_wait) {
            has_joined = true;
            let age = place.join(&*self.shared);
            let waker = place.waker().clone();
            self.shared
                .with(|client| client.join_of_place(id, age, units, waker, now));
            // A store that answers at once has answered.
            let again = self.shared.with(|client| client.look_of_place(id, units, now));
            looked = again.unwrap_or(looked);
        }
        let refusal = match looked {
            Ok(()) => return Ok(()),
            Err(lack) => self.lacking(lack, now),
        };
        match refusal.wait() {
            wait @ Wait::Until { .. } if has_joined => place.waits_here(wait),
            Wait::Event { .. } => place.waits_for_hand_over(has_joined),
            Wait::Until { .. } | Wait::Never => {}
        }
        Err(refusal)
    }
}

/// The refusal of the leg that is called `leg`, for a reason that has no instant.
pub(super) fn refusal(reason: Reason, leg: LegName) -> Refusal {
    let wait = if reason.is_permanent() {
        Wait::Never
    } else {
        Wait::EVENT
    };
    let refusal = Refusal::new(reason, leg, wait);
    if is_at_once(reason) { refusal.at_once() } else { refusal }
}

/// True where a policy does not wait: the store is away, or there is no room.
fn is_at_once(reason: Reason) -> bool {
    matches!(reason, Reason::Unavailable | Reason::QueueFull)
}

impl<B: Backend> Limiter for Remote<B> {
    type Ticket = RemoteTicket;

    // The clock is read anew: a lease may have ended since an earlier instant.

    fn try_reserve(&self, demand: &Demand<'_>) -> Result<RemoteTicket, Refusal> {
        let (units, now) = (demand.units(), self.shared.clock.now());
        let taken = match demand.place().filter(|place| place.age().is_some()) {
            Some(place) => self.shared.with(|client| client.redeem(place.id(), units, now)),
            None => self.shared.acquire(units, now, |_, reason| reason),
        };
        taken.map_err(|reason| self.refusal(reason))
    }

    fn cancel(&self, ticket: RemoteTicket) {
        self.shared.refund(ticket, true);
    }

    /// Forgotten units stay held as long as this process lives.
    fn finish(&self, ticket: RemoteTicket, outcome: Outcome) {
        if outcome != Outcome::Forgotten {
            self.shared.refund(ticket, false);
        }
    }

    /// Corrects the charge of a rate: a surplus becomes available in this process, and a shortage is reported to the store. At
    /// most [`MAX_UNITS`](super::MAX_UNITS) are charged.
    fn settle(&self, ticket: &mut RemoteTicket, settlement: &Settlement) -> u32 {
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

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        if let Some(place) = demand.place() {
            return self.look_as_head(demand, place);
        }
        let now = self.shared.clock.now();
        let judged = self
            .shared
            .with(|client| client.judge(demand.units(), demand.ahead(), now));
        judged.map_err(|lack| self.lacking(lack, now))
    }

    fn leave(&self, place: &Place) {
        if place.leaves(&*self.shared).is_some() {
            let now = self.shared.clock.now();
            let waker = self.shared.with(|client| client.leave_place(place.id(), now));
            drop(waker);
        }
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.shared.watchers.watch(watcher);
    }

    /// As of the store's last reply; `waiting` counts the waiters here. A lease of this process has a state of its own, of the same name.
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        let (stats, rule) = (self.stats(), self.rule());
        let (name, clock) = (&*self.shared.name, &self.shared.clock);
        let available = stats.limit.saturating_sub(stats.in_use);
        let state = match rule {
            Rule::Permits { .. } => State::Permits {
                limit: stats.limit,
                in_use: stats.in_use,
                waiting: stats.waiting_here,
            },
            Rule::Rate { quota } => quota.status(available, None),
            Rule::Window { length, .. } => State::Rate {
                limit: stats.limit,
                window: length,
                available,
                next: None,
                reset: None,
            },
        };
        let queue = &*self.shared;
        let leg = Description::new(kind_of(&rule)).named(name).on(clock).state(state);
        let leg = leg.hands_over_to(queue);
        visit(match rule {
            Rule::Permits { .. } => leg.holds_permits_of(queue),
            Rule::Rate { .. } | Rule::Window { .. } => leg,
        });
        if self.shared.with(|client| !client.config().spends()) {
            let lease = State::Lease {
                units: stats.units_held,
                requests: stats.requests,
                recalls: stats.recalls,
                lapses: stats.losses,
            };
            visit(Description::new("lease").named(name).on(clock).state(lease));
        }
    }
}

/// What a leg is that the store counts by this rule.
pub(super) fn kind_of(rule: &Rule) -> &'static str {
    match rule {
        Rule::Permits { .. } => "remote semaphore",
        Rule::Rate { .. } => "remote rate",
        Rule::Window { .. } => "remote window",
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
