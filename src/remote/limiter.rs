//! The handle of a remote limiter, and how it is a leg of a policy.

use super::acquire::Acquire;
use super::backend::{Backend, Rule};
use super::builder::{self, RemoteBuilder};
use super::desk::{End, Kind, RemoteTicket};
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
use crate::sync::wait_queue::{Permits, QueueId, QueueKey, WaitQueue};
use crate::time::{Clock, ClockReading};
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// A limit that lies in a store, and that several processes share. See the [module](super).
///
/// # Fairness
/// Permits are granted in the order in which requests reach the store, over all processes: each request has its own place.
/// A large one is not overtaken. With [`Blocks`](super::Blocks) the place is that of the process, and its requests are served
/// in order from what it is given. A rate grants for later what is not there yet, in the order of asking, so that nobody asks
/// twice; what was granted to a request that is dropped meanwhile goes to the next of this process, or is lost. In a
/// window each process that waits has one place in line, for whoever is next there; those behind it, and those who do not wait, are
/// given what it leaves.
///
/// # Trying
/// `try_admit`, alone or by a policy, never asks the store: it finds what is at hand in this process. That is nothing without
/// [`Blocks`](super::Blocks). It also goes by the limit that the store said last, for the time of a
/// [renewal](RemoteBuilder::renewal): a limit that was raised elsewhere is known so much later at most. [`acquire_now`](Self::acquire_now) asks the store and does not wait in its queue.
///
/// # Forks
/// A limiter is closed in a process that was forked after it was made, and its permits there are lost: make it in the child.
///
/// # Cancel safety
/// Every future may be dropped at any point. A place in the queue is given up; what had been granted goes back.
pub struct Remote<B: Backend> {
    pub(super) shared: Arc<Shared<B>>,
}

impl Remote<Memory> {
    /// So many permits, which come back when they are dropped. If the store knows `key` already, its limit is left as it is, and
    /// [`RemoteStats::differs`] says that it is another one.
    pub fn permits(key: Key, limit: u64) -> RemoteBuilder {
        RemoteBuilder::new(key, builder::permits(limit))
    }

    /// A token bucket, counted in whole numbers by the store's clock. The quota of whoever asked last applies to all, until
    /// somebody [sets](Remote::set_quota) it.
    pub fn rate(key: Key, quota: Quota) -> RemoteBuilder {
        RemoteBuilder::new(key, builder::rate(quota))
    }

    /// At most `limit` in any span of `length`. The limit of whoever asked last applies to all, until somebody
    /// [sets](Remote::set_limit) it.
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
    /// `Oversized` above the limit as the store has it, `Unavailable` while the store is away, `Closed`.
    pub fn acquire(&self, n: u64) -> Acquire<'_, B> {
        Acquire::new(self, n, Kind::Turn)
    }

    /// Asks the store for `n` units, and waits for nothing but the answer. It overtakes nobody who waits.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and `Saturated` or `RateExceeded` when there are too few.
    pub fn acquire_now(&self, n: u64) -> Acquire<'_, B> {
        Acquire::new(self, n, Kind::Answer)
    }

    /// [`acquire`](Self::acquire) with a permit that owns its limiter.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_owned(self: Arc<Self>, n: u64) -> Result<OwnedRemotePermit<B>, Rejection> {
        let ticket = Acquire::new(&self, n, Kind::Turn).ticket().await;
        match ticket {
            Ok(ticket) => Ok(Permit::new(self, ticket)),
            Err(reason) => Err(self.refusal(reason, n, Wait::Never).to_rejection()),
        }
    }

    /// Takes `n` units of what is at hand in this process.
    ///
    /// # Errors
    /// As [`acquire_now`](Self::acquire_now), without asking the store.
    pub fn try_acquire(&self, n: u64) -> Result<RemotePermit<'_, B>, Refusal<'_>> {
        let now = self.shared.clock.now();
        match self.shared.with(|desk| desk.take(n, now)) {
            Ok(ticket) => Ok(Permit::new(self, ticket)),
            Err(reason) => Err(self.refusal(reason, n, self.way(reason))),
        }
    }

    /// Sets the limit of permits, or of a window, at the store, for everybody. It holds at once: lowered below what is in use,
    /// nothing is granted until enough has come back. Ends when the store has carried it out.
    ///
    /// Waiters that need more than a lowered limit are refused as `Oversized`; with a limit of zero these are all that there are.
    ///
    /// Raised, those who wait are served at once. In a window of Consul, ZooKeeper or etcd nobody tells other processes: they
    /// find it when they ask again, which is with their next [renewal](RemoteBuilder::renewal) at the latest.
    ///
    /// The store remembers the limit of permits as long as anybody uses them. For a window see [`set_quota`](Self::set_quota).
    ///
    /// # Errors
    /// [`RemoteError::Limit`] above [`MAX_UNITS`](super::MAX_UNITS); [`RemoteError::Rule`] for a rate;
    /// [`RemoteError::Unsupported`] when it is more than the store can do.
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

    /// Sets the quota of a rate at the store, for everybody. What was taken stays taken, in whole tokens: a burst that is raised
    /// is there at once, one that is lowered below what was taken gives nothing until enough has come back. Ends when the store
    /// has carried it out.
    ///
    /// Other processes learn of it with their next request, which it applies to, and bring it along from then on, so that it
    /// outlives a store that has lost its memory. A store that nobody asks remembers it for a
    /// [day](Rule::REMEMBERED). Of several changes the last one counts; of several at once, any one: it takes two round trips, and
    /// whoever finds that somebody else has made a change between them takes its own for made before.
    ///
    /// # Errors
    /// [`RemoteError::Quota`] when stores cannot count by it, [`RemoteError::Unsupported`] when this one cannot; [`RemoteError::Rule`] for permits and windows.
    ///
    /// # Cancel safety
    /// Once polled, it is carried out whether it is dropped or not.
    pub async fn set_quota(&self, quota: Quota) -> Result<(), RemoteError> {
        match self.rule() {
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
        let ttl = self.shared.with(|desk| desk.plan().ttl);
        self.shared.backend.supports(&rule, ttl)?;
        let change = self.shared.with(|desk| desk.change(rule));
        self.until(|desk| desk.has_changed(change) || desk.is_closed()).await;
        Ok(())
    }

    /// What is limited, and how, as far as it is known here: as it was set up, until the store has said otherwise.
    pub fn rule(&self) -> Rule {
        self.shared.with(|desk| desk.rule())
    }

    /// Refuses everybody from now on, and gives all that this process holds back to the store at once: permits that are still
    /// held are lost. Ends when the store has been told, or does not answer.
    pub async fn close(&self) {
        self.shared.with(|desk| desk.close());
        self.until(|desk| desk.is_gone()).await;
    }

    /// Waits until `holds` does, which watchers are told of.
    async fn until(&self, holds: impl Fn(&super::desk::Desk) -> bool) {
        let mut watch = Watching {
            shared: &self.shared,
            number: None,
        };
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let (held, old) = watch.shared.with(|desk| {
                if holds(desk) {
                    return (true, Some(waker));
                }
                (false, desk.watch(&mut watch.number, waker))
            });
            drop(old);
            if held { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// How things stand, here and at the store as of its last answer. No round trip.
    pub fn stats(&self) -> RemoteStats {
        let now = self.shared.clock.now();
        self.shared.with(|desk| RemoteStats::of(desk, &self.shared.clock, now))
    }

    /// The name under which the store knows it.
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

    /// How whoever is refused so may wait.
    fn way(&self, reason: Reason) -> Wait<'_> {
        match reason {
            Reason::Saturated | Reason::RateExceeded => Wait::Turn(self),
            _ => Wait::Never,
        }
    }
}

impl<B: Backend> Limiter for Remote<B> {
    type Ticket = RemoteTicket;

    // The clock is read anew: a lease that has run out is not good as of an earlier instant.

    fn try_reserve(&self, demand: Demand<'_>) -> Result<RemoteTicket, Refusal<'_>> {
        let (units, now) = (demand.units(), self.shared.clock.now());
        let id = QueueId::of(self);
        let claim = demand.queue_key(id);
        let taken = self.shared.with(|desk| {
            let Some(claim) = claim else {
                return desk.take(units, now);
            };
            match desk.look(claim.key(), None, now).0 {
                None => Err(Reason::Saturated),
                Some(End::Granted(ticket)) if ticket.units == units => {
                    demand.redeem(id);
                    Ok(ticket)
                }
                Some(End::Granted(ticket)) => {
                    // Made by somebody else at this limiter, for another number.
                    demand.redeem(id);
                    desk.put_back(ticket, true, now);
                    desk.take(units, now)
                }
                Some(End::Refused(_) | End::Lapsed) => {
                    demand.redeem(id);
                    desk.take(units, now)
                }
            }
        });
        taken.map_err(|reason| self.refusal(reason, units, self.way(reason)))
    }

    fn cancel(&self, ticket: RemoteTicket, _: &ClockReading) {
        let now = self.shared.clock.now();
        self.shared.with(|desk| desk.put_back(ticket, true, now));
    }

    fn finish(&self, ticket: RemoteTicket, _: Outcome, _: &ClockReading) {
        let now = self.shared.clock.now();
        self.shared.with(|desk| desk.put_back(ticket, false, now));
    }

    /// What a rate was charged is corrected: too much comes to hand in this process, too little is told to the store. Of more
    /// than [`MAX_UNITS`](super::MAX_UNITS) so many are charged.
    fn settle(&self, ticket: &mut RemoteTicket, settlement: Settlement<'_>) -> u32 {
        let now = self.shared.clock.now();
        let Some(actual) = settlement.actual() else { return 0 };
        self.shared.with(|desk| {
            if desk.plan().spends() {
                desk.settle(ticket, actual, now);
                1
            } else {
                0
            }
        })
    }

    /// It is held as long as this process lives.
    fn forget(&self, _: RemoteTicket) {}

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        let (units, now) = (demand.units(), self.shared.clock.now());
        let claim = demand.queue_key(QueueId::of(self));
        let ready = self.shared.with(|desk| {
            if let Some(claim) = claim {
                return Ok((!desk.waits(claim.key()), None));
            }
            desk.drop_stale(now);
            if desk.is_closed() {
                return Err(Reason::Closed);
            }
            if desk.is_oversized(units, now) {
                return Err(Reason::Oversized);
            }
            if desk.refuses_while_away() {
                return Err(Reason::Unavailable);
            }
            let all = units.saturating_add(demand.ahead());
            Ok((desk.has_free(all, now), desk.comes_at(all)))
        });
        match ready {
            Err(reason) => ReadyAt::never_for(reason, &self.shared.name, units),
            Ok((true, _)) => ReadyAt::NOW,
            // What was granted for later needs no request.
            Ok((false, Some(at))) => ReadyAt::at(&self.shared.name, at),
            Ok((false, None)) => ReadyAt::in_turn(&self.shared.name, self, units),
        }
    }

    fn clock(&self) -> Option<&Clock> {
        Some(&self.shared.clock)
    }

    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        visit(self);
    }

    /// As of the store's last answer; what waits is what waits here.
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        let stats = self.stats();
        let rule = self.rule();
        let available = stats.limit.saturating_sub(stats.in_use);
        let (kind, state) = match rule {
            Rule::Permits { .. } => {
                let state = status::State::Permits {
                    limit: stats.limit,
                    in_use: stats.in_use,
                    waiting: stats.waiting_here,
                };
                ("remote_semaphore", state)
            }
            Rule::Rate { quota } => match status::State::by_quota(&quota, available, None) {
                Some(state) => ("remote_rate", state),
                None => return,
            },
            Rule::Window { length, .. } => {
                let state = status::State::Rate {
                    limit: stats.limit,
                    window: length,
                    available,
                    next: None,
                };
                ("remote_window", state)
            }
        };
        visit(Status::new(&self.shared.name, kind, state));
    }
}

impl<B: Backend> WaitQueue for Remote<B> {
    fn join(&self, units: u64, waker: &Waker) -> QueueKey {
        let (waker, now) = (waker.clone(), self.shared.clock.now());
        let key = self.shared.with(|desk| desk.join(units, Kind::Claim, waker, now));
        QueueKey::new(QueueId::of(self), key)
    }

    fn leave(&self, claim: QueueKey) {
        let now = self.shared.clock.now();
        let waker = self.shared.with(|desk| desk.leave(claim.key(), now));
        drop(waker);
    }

    fn permits(&self) -> Permits {
        match self.rule() {
            Rule::Permits { .. } => Permits::Own,
            Rule::Rate { .. } | Rule::Window { .. } => Permits::None,
        }
    }
}

/// The last handle goes: permits cannot outlive it, except those that were forgotten.
impl<B: Backend> Drop for Remote<B> {
    fn drop(&mut self) {
        self.shared.with(|desk| desk.close());
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

/// A place among those who watch, given up when it is dropped.
pub(super) struct Watching<'a, B: Backend> {
    pub(super) shared: &'a Shared<B>,
    pub(super) number: Option<u64>,
}

impl<B: Backend> Drop for Watching<'_, B> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = self.shared.with(|desk| desk.unwatch(number));
            drop(waker);
        }
    }
}
