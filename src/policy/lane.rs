//! A second line in front of the limiter of a policy.

use super::bounds::{Manner, Settings};
use super::policy::Policy;
use crate::core::ask::Demand;
use crate::core::limiter::{Callbacks, Limiter, Outcome, Settlement};
use crate::core::refusal::{ReadyAt, Refusal};
use crate::core::status::Status;
use crate::sync::wait_queue::WaitQueue;
use crate::time::{Clock, ClockReading};
use std::time::Duration;

impl<L: Limiter + 'static> Policy<L> {
    /// Another line in front of the same limiter, without a bound on its length: for the few who shall not stand behind
    /// everybody else, such as those who come back when a [`WaitingRoom`](crate::shed::WaitingRoom) has told them.
    ///
    /// The limits hold for both together. What is changed in the limiter, be it by a new version of a policy that is data,
    /// holds for both; the bounds of either line are its own.
    ///
    /// # Fairness
    /// Each queue is in order by itself. The two take turns at what they wait for, however long either is: a waiter that is
    /// alone in the lane waits for one permit, or for the tokens of one request, besides its own. The same goes for any
    /// policies that share a limiter.
    ///
    /// ```
    /// # use tollgate::{ManualClock, Policy, Semaphore};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder().clock(&clock).over(Semaphore::new(1))?;
    /// let lane = policy.lane(Duration::from_secs(1));
    /// let served = std::cell::RefCell::new(Vec::new());
    /// clock.run(async {
    ///     let busy = policy.admit(1).await.unwrap();
    ///     let line = futures::future::join_all((0..3).map(async |_| {
    ///         drop(policy.admit(1).await);
    ///         served.borrow_mut().push("line");
    ///     }));
    ///     let express = async {
    ///         drop(lane.admit(1).await);
    ///         served.borrow_mut().push("lane");
    ///     };
    ///     futures::join!(line, express, async { drop(busy) });
    /// });
    /// assert_eq!(served.into_inner(), ["line", "lane", "line", "line"]);
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn lane(&self, max_wait: Duration) -> Policy<Lane<L>> {
        self.lane_of(max_wait, usize::MAX)
    }

    /// A [`lane`](Self::lane) in which so many wait at most.
    pub(crate) fn lane_of(&self, max_wait: Duration, max_queue: usize) -> Policy<Lane<L>> {
        let clock = self.clock().clone();
        let settings = Settings {
            max_wait: Some(clock.ticks_of(max_wait)),
            max_queue,
            early: None,
            lateness: self.core().settings.lateness(),
            manner: Manner::FIFO,
            misfit: self.core().settings.misfit,
        };
        Policy::with(Lane(self.clone()), clock, settings)
    }
}

/// The limiter of a policy, past the policy's line. Made by [`Policy::lane`].
#[derive(Debug)]
pub struct Lane<L: Limiter + 'static>(Policy<L>);

impl<L: Limiter + 'static> Lane<L> {
    /// The policy whose limiter this is.
    pub fn policy(&self) -> &Policy<L> {
        &self.0
    }
}

impl<L: Limiter + 'static> Limiter for Lane<L> {
    type Ticket = L::Ticket;

    #[inline]
    fn try_reserve(&self, demand: Demand<'_>) -> Result<Self::Ticket, Refusal<'_>> {
        self.0.limiter().try_reserve(demand)
    }
    #[inline]
    fn cancel(&self, ticket: Self::Ticket, now: &ClockReading) {
        self.0.limiter().cancel(ticket, now);
    }
    #[inline]
    fn commit(&self, ticket: &mut Self::Ticket, now: &ClockReading) {
        self.0.limiter().commit(ticket, now);
    }
    #[inline]
    fn settle(&self, ticket: &mut Self::Ticket, actual: Settlement<'_>) -> u32 {
        self.0.limiter().settle(ticket, actual)
    }
    #[inline]
    fn finish(&self, ticket: Self::Ticket, outcome: Outcome, now: &ClockReading) {
        self.0.limiter().finish(ticket, outcome, now);
    }
    #[inline]
    fn forget(&self, ticket: Self::Ticket) {
        self.0.limiter().forget(ticket);
    }
    #[inline]
    fn callbacks(&self) -> Callbacks {
        self.0.limiter().callbacks()
    }
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        self.0.limiter().ready_at(demand)
    }
    fn clock(&self) -> Option<&Clock> {
        Some(self.0.clock())
    }
    fn queues<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn WaitQueue)) {
        self.0.limiter().queues(visit);
    }
    fn clocks<'a>(&'a self, visit: &mut dyn FnMut(&'a Clock)) {
        self.0.clocks(visit);
    }
    fn visit_status(&self, visit: &mut dyn FnMut(Status<'_>)) {
        self.0.limiter().visit_status(visit);
    }
}
