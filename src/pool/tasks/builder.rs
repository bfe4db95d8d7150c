//! The builder of pools of async tasks, and their runtime.

use super::kind::Tasks;
use super::pool::TaskPool;
use crate::pool::builder::Builder;
use crate::pool::common::Pool;
use crate::pool::engine::scheduler::DiscardHook;
use crate::pool::error::PoolError;
use crate::pool::hooks::opaque_debug;
use crate::pool::report::Unstarted;
use crate::pool::runtime::Runtime;
use crate::pool::workers::Workers;
use tokio::runtime::Handle;

/// Builds a [`TaskPool`].
///
/// ```
/// # use tollgate::pool::TaskPool;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = tokio::runtime::Runtime::new()?;
/// // Outside the runtime, the builder needs its handle.
/// let pool = TaskPool::builder(8).max_queue(1_000).runtime(runtime.handle()).build()?;
/// let answer = pool.submit_blocking(async { 6 * 7 })?;
/// assert_eq!((answer.join_blocking()?, pool.stats().limit), (42, 8));
/// # Ok(())
/// # }
/// ```
pub type TaskPoolBuilder = Builder<Runners>;

/// The settings of a pool of async tasks, beyond those of every [`Builder`].
///
/// ```
/// # use tollgate::pool::{PoolError, TaskPool};
/// assert!(matches!(TaskPool::builder(8).build(), Err(PoolError::NoRuntime)));
/// ```
pub struct Runners {
    limit: usize,
    on_discard: Option<Box<DiscardHook<Tasks>>>,
    runtime: Option<Runtime>,
}

impl Builder<Runners> {
    pub(super) fn with_limit(limit: usize) -> Self {
        Self::of(Runners {
            limit,
            on_discard: None,
            runtime: None,
        })
    }

    /// Passes each task that a full queue discards to `hook`. Without a hook, the pool drops them.
    pub fn on_discard(mut self, hook: impl Fn(Unstarted<Tasks>) + Send + Sync + 'static) -> Self {
        self.kind.on_discard = Some(Box::new(hook));
        self
    }

    /// Sets the runtime on which the runners are spawned; the current one unless set.
    pub fn runtime(mut self, runtime: &Handle) -> Self {
        self.kind.runtime = Some(Runtime::of(runtime));
        self
    }

    /// Builds the pool. It starts runners as tasks arrive.
    ///
    /// # Errors
    /// [`PoolError`]: an invalid number, or no runtime.
    pub fn build(mut self) -> Result<TaskPool, PoolError> {
        let runtime = self.kind.runtime.take().or_else(Runtime::current);
        let Self { common, kind } = self;
        let (_, limit) = Workers::from(kind.limit).check()?;
        let tasks = Tasks {
            on_discard: kind.on_discard,
            runtime: runtime.ok_or(PoolError::NoRuntime)?,
        };
        let clock = common.clock();
        Ok(Pool::new(common.engine(limit, clock, tasks)?))
    }
}

opaque_debug!([] Runners, "Runners", |this| limit = this.limit);
