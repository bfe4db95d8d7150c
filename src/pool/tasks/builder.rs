//! How a task pool is to be.

use super::core::{Core, DiscardHook, Settings};
use super::face::TaskPool;
use super::unstarted::UnstartedTask;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::pool::builder::{Overflow, Workers};
use crate::pool::error::PoolError;
use crate::pool::face::next_id;
use crate::pool::gate::Gate;
use crate::pool::room::Room;
use crate::pool::runtime::Runtime;
use crate::semaphore::Semaphore;
use crate::time::Clock;
use std::fmt;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Builds a [`TaskPool`].
#[must_use = "a builder builds nothing by itself"]
pub struct TaskPoolBuilder {
    limit: usize,
    queue: usize,
    queue_weight: Option<u32>,
    overflow: Overflow,
    clock: Option<Clock>,
    slots: Option<Arc<Semaphore>>,
    gate: Option<Arc<dyn Gate>>,
    on_discard: Option<Box<DiscardHook>>,
    runtime: Option<Runtime>,
}

impl TaskPoolBuilder {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            queue: 1024,
            queue_weight: None,
            overflow: Overflow::Block,
            clock: None,
            slots: None,
            gate: None,
            on_discard: None,
            runtime: None,
        }
    }

    /// How many tasks may wait, at most; 1,024 unless set.
    pub fn queue(mut self, tasks: usize) -> Self {
        self.queue = tasks;
        self
    }

    /// How much all waiting tasks may weigh together; not bounded unless set.
    pub fn queue_weight(mut self, weight: u32) -> Self {
        self.queue_weight = Some(weight);
        self
    }

    /// What happens to a task that finds the queue full. Whoever waits, or runs the task itself, awaits that.
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// The clock of deadlines.
    pub fn on(mut self, clock: &Clock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// The slots: a task runs while it holds a permit of this semaphore, whose limit then counts instead of the pool's.
    /// Closing it abandons what has not started.
    pub fn slots(mut self, slots: Arc<Semaphore>) -> Self {
        self.slots = Some(slots);
        self
    }

    /// Each task is admitted by `policy` before it starts. The permit ends as a success, as a failure when the task
    /// panics, and counts for nothing when it is cancelled.
    pub fn admit_by<L>(mut self, policy: Policy<L>) -> Self
    where
        L: Limiter + 'static,
        L::Ticket: Send,
    {
        self.gate = Some(Arc::new(policy));
        self
    }

    /// Is given each task that a full queue throws out. Without, they are dropped.
    pub fn on_discard(mut self, hook: impl Fn(UnstartedTask) + Send + Sync + 'static) -> Self {
        self.on_discard = Some(Box::new(hook));
        self
    }

    /// The runtime whose tasks the runners are: the current one unless set.
    pub fn runtime(mut self, runtime: &Handle) -> Self {
        self.runtime = Some(Runtime::of(runtime));
        self
    }

    /// Builds the pool. Runners are started when tasks come.
    ///
    /// # Errors
    /// [`PoolError`]: numbers that make no sense, or no runtime.
    pub fn build(self) -> Result<TaskPool, PoolError> {
        let (_, limit) = Workers::from(self.limit).check()?;
        let room = Room::checked(self.queue, self.queue_weight)?;
        let runtime = self.runtime.or_else(Runtime::current);
        let settings = Settings {
            clock: self.clock.unwrap_or_default(),
            gate: self.gate,
            overflow: self.overflow,
            on_discard: self.on_discard,
            shared_slots: self.slots.is_some(),
            runtime: runtime.ok_or(PoolError::NoRuntime)?,
        };
        let slots = self.slots.unwrap_or_else(|| Arc::new(Semaphore::new(limit)));
        Ok(TaskPool::new(Core::new(next_id(), room, slots, settings)))
    }
}

impl fmt::Debug for TaskPoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskPoolBuilder")
            .field("limit", &self.limit)
            .field("queue", &self.queue)
            .field("overflow", &self.overflow)
            .finish_non_exhaustive()
    }
}
