//! What can be said of a pool, be it of threads or of async tasks.

use super::error::PoolError;
use super::gate::Gate;
use super::hooks::PanicHook;
use super::overflow::Overflow;
use super::room::Room;
use crate::core::limiter::Limiter;
use crate::policy::Policy;
use crate::semaphore::Semaphore;
use crate::time::Clock;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Builds a pool: of [threads](super::PoolBuilder) or of [async tasks](super::TaskPoolBuilder). Below are first the
/// wishes that both know.
#[must_use = "a builder builds nothing by itself"]
pub struct Builder<K> {
    pub(super) common: Common,
    pub(super) kind: K,
}

/// What both kinds of pools know.
pub(super) struct Common {
    queue: usize,
    queue_weight: Option<u32>,
    pub(super) overflow: Overflow,
    clock: Option<Clock>,
    slots: Option<Arc<Semaphore>>,
    pub(super) gate: Option<Arc<dyn Gate>>,
    pub(super) on_panic: Option<Box<PanicHook>>,
}

impl Common {
    pub(super) fn room(&self) -> Result<Room, PoolError> {
        Room::checked(self.queue, self.queue_weight)
    }

    /// The clock that was given, or a real one.
    pub(super) fn clock(&self) -> Clock {
        self.clock.clone().unwrap_or_default()
    }

    pub(super) fn given_slots(&self) -> Option<Arc<Semaphore>> {
        self.slots.as_ref().map(Arc::clone)
    }
}

impl<K> Builder<K> {
    pub(super) fn of(kind: K) -> Self {
        let common = Common {
            queue: 1024,
            queue_weight: None,
            overflow: Overflow::Block,
            clock: None,
            slots: None,
            gate: None,
            on_panic: None,
        };
        Self { common, kind }
    }

    /// How many tasks may wait, at most; 1,024 unless set. Tasks of the pool itself may exceed it: see [`Overflow::Block`].
    pub fn queue(mut self, tasks: usize) -> Self {
        self.common.queue = tasks;
        self
    }

    /// How much all waiting tasks may weigh together; not bounded unless set.
    pub fn queue_weight(mut self, weight: u32) -> Self {
        self.common.queue_weight = Some(weight);
        self
    }

    /// What happens to a task that finds the queue full. In a pool of async tasks the submitter awaits room.
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.common.overflow = overflow;
        self
    }

    /// The clock of deadlines, and of how threads come and go: a real one unless set.
    pub fn on(mut self, clock: &Clock) -> Self {
        self.common.clock = Some(clock.clone());
        self
    }

    /// The slots: a task runs while it holds a permit of this semaphore. Without, the pool makes one with as many
    /// permits as it may have workers.
    ///
    /// Share it to bound several pools together, or let something else set its limit: no more tasks start than it has
    /// permits, at any moment. One more thread of a pool, if it may have one, waits for the next permit. Closing the semaphore closes
    /// the pool when its next task asks, and abandons what has not started. A bound on the semaphore's queue does not hold
    /// for workers.
    ///
    /// The limit of these slots takes the place of the number of async tasks that a `TaskPool` was built for, and resizing one of
    /// the pools changes it for all.
    ///
    /// A task that holds one of these slots and waits for a task that needs one, of this pool or another, is told
    /// [`WouldDeadlock`](super::TaskError::WouldDeadlock).
    pub fn slots(mut self, slots: Arc<Semaphore>) -> Self {
        self.common.slots = Some(slots);
        self
    }

    /// Each task is admitted by `policy` before it starts, in turn, for what its [`ask`](super::Submit::ask) says. A task that can never
    /// be admitted ends with [`TaskError::Refused`](super::TaskError::Refused). The permit ends as a success, or as a failure when the
    /// task panics, and counts for nothing when it is cancelled while it runs.
    ///
    /// One worker asks at a time, for the task that is first, and holds no slot meanwhile. The task stays in the queue until it is
    /// admitted.
    ///
    /// # Tasks that wait for tasks
    /// A task that waits for another which needs a permit that it holds is told
    /// [`WouldDeadlock`](super::TaskError::WouldDeadlock). A rate has no permits.
    ///
    /// # Fairness
    /// A task starts when its worker finds both, a slot and the admission. Where the slots are shared, and one comes free only
    /// when the policy has let another waiter pass, a task can be passed over again and again: then give each pool slots of its
    /// own, or the policy no queue that others keep full.
    pub fn admit_by<L>(mut self, policy: Policy<L>) -> Self
    where
        L: Limiter + 'static,
        L::Ticket: Send,
    {
        self.common.gate = Some(Arc::new(policy));
        self
    }

    /// Is given what a task panicked with that has no handle, or none any more. Without, that is dropped.
    pub fn on_panic(mut self, hook: impl Fn(Box<dyn Any + Send>) + Send + Sync + 'static) -> Self {
        self.common.on_panic = Some(Box::new(hook));
        self
    }
}

impl<K: fmt::Debug> fmt::Debug for Builder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("kind", &self.kind)
            .field("queue", &self.common.queue)
            .field("overflow", &self.common.overflow)
            .finish_non_exhaustive()
    }
}
