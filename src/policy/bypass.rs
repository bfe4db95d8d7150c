//! A bypass queue: a second queue in front of the limiter of a policy.

use super::driver::Settings;
use super::order::{Eviction, Order};
use super::policy::Policy;
use crate::core::limiter::{Limiter, delegate};
use crate::core::permit::Permit;
use std::time::Duration;

impl<L: Limiter + 'static> Policy<L> {
    /// A second queue in front of the same limiter, of any length unless it is [bounded](Policy::set_max_queue): for the few callers that
    /// shall not wait behind all others, such as those that return at the instant of a `WaitingRoom` of the crate `tollgate-http`.
    ///
    /// The limits hold for both together, and so does each change of the limiter, be it by a new version of a policy that is
    /// data. Each queue has bounds of its own.
    ///
    /// # Fairness
    /// Each queue is in order by itself. The two are served alternately, however long either is: a waiter that is alone in the bypass
    /// queue waits for one permit, or for the tokens of one request, besides its own. The same goes for any policies that share a
    /// limiter.
    ///
    /// ```
    /// # use tollgate::{ManualClock, Policy, Semaphore};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder().on(&clock).limit(Semaphore::new(1)).build()?;
    /// let bypass = policy.bypass_queue(Duration::from_secs(1));
    /// let served = std::cell::RefCell::new(Vec::new());
    /// clock.run(async {
    ///     let busy = policy.admit(1).await.unwrap();
    ///     let queue = futures::future::join_all((0..3).map(async |_| {
    ///         drop(policy.admit(1).await);
    ///         served.borrow_mut().push("queue");
    ///     }));
    ///     let express = async {
    ///         drop(bypass.admit(1).await);
    ///         served.borrow_mut().push("bypass");
    ///     };
    ///     futures::join!(queue, express, async { drop(busy) });
    /// });
    /// assert_eq!(served.into_inner(), ["queue", "bypass", "queue", "queue"]);
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn bypass_queue(&self, max_wait: Duration) -> Policy<Bypass<L>> {
        let clock = self.clock().clone();
        let settings = Settings {
            max_wait: Some(clock.ticks_of(max_wait)),
            max_queue: usize::MAX,
            order: Order::Fifo,
            eviction: Eviction::Never,
            ..self.core().settings.clone()
        };
        Policy::with(Bypass(self.clone()), clock, settings)
    }
}

/// The limiter of a policy, past the policy's queue. Made by [`Policy::bypass_queue`].
///
/// ```
/// # use tollgate::policy::Bypass;
/// # use tollgate::{LimiterExt, Policy, Semaphore};
/// # use std::time::Duration;
/// let policy = Policy::new(Semaphore::new(1));
/// let bypass: Policy<Bypass<Semaphore>> = policy.bypass_queue(Duration::from_secs(1));
/// let _permit = bypass.try_admit(1).unwrap();
/// assert!(policy.try_admit(1).is_err(), "one limiter, two queues");
/// assert_eq!(bypass.limiter().policy().limiter().in_use(), 1);
/// ```
#[derive(Debug)]
pub struct Bypass<L: Limiter + 'static>(Policy<L>);

impl<L: Limiter + 'static> Bypass<L> {
    /// The policy whose limiter this is.
    pub fn policy(&self) -> &Policy<L> {
        &self.0
    }
}

impl<L: Limiter + 'static> Permit<Policy<Bypass<L>>> {
    /// Converts a permit of the bypass queue into a permit of the policy: both take the same from the limits.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{LimiterExt, Permit, Policy, Semaphore};
    /// let policy = Policy::new(Semaphore::new(1));
    /// let bypass = policy.bypass_queue(Duration::from_secs(1));
    /// let permit: Permit<Policy<Semaphore>> = bypass.try_admit(1).unwrap().into_owned().into_policy();
    /// assert_eq!(policy.limiter().in_use(), 1);
    /// drop(permit);
    /// assert_eq!(policy.limiter().in_use(), 0);
    /// ```
    pub fn into_policy(self) -> Permit<Policy<L>> {
        let policy = self.limiter().limiter().policy().clone();
        self.owned_by(policy)
    }
}

impl<L: Limiter + 'static> Limiter for Bypass<L> {
    type Ticket = L::Ticket;
    delegate!(self => self.0.limiter(); try_reserve cancel settle finish look leave watch describe);
}
