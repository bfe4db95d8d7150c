//! A pool of threads that lends each task a state: a connection, a parser, a buffer.

use super::pool::{ThreadOptions, WorkerPool};
use crate::pool::builder::{Builder, MAX_WORKERS};
use crate::pool::error::{PoolError, SubmitError, TaskError};
use crate::pool::handle::JoinHandle;
use crate::pool::hooks::{drop_quietly, opaque_debug};
use crate::semaphore::Semaphore;
use crate::sync::shim::Mutex;
use std::ops::Deref;
use std::sync::Arc;

/// Builds a [`StatefulPool`]: see [`PoolBuilder::workers_with`](crate::pool::PoolBuilder::workers_with).
///
/// ```
/// # use tollgate::WorkerPool;
/// let pool = WorkerPool::builder().workers(1).workers_with(Vec::new).build()?;
/// // The tasks share one buffer, one after the other, and allocate it once.
/// let used = pool.run(|buffer| { buffer.resize(1 << 16, 0_u8); buffer.len() })?;
/// assert_eq!(pool.run(|buffer| buffer.len())?, used);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder builds nothing by itself"]
pub struct StatefulBuilder<S> {
    builder: Builder<ThreadOptions>,
    make: Box<Make<S>>,
}

type Make<S> = dyn Fn() -> S + Send + Sync;

impl Builder<ThreadOptions> {
    /// Gives each task exclusive use of a state made by `make`. If no state is idle, `make` runs on the thread of the task, so at most as
    /// many states are made as tasks run at once: the workers, or the permits of given [`slots`](Self::slots). A state whose task
    /// panics is dropped, and `make` replaces it. Set the number of workers before.
    ///
    /// After the limit was lowered, each task that ends drops one state too many; idle states stay until then. The last handle of the
    /// pool drops those that are left.
    ///
    /// A waiting task does not lend its state. A task that waits for another task of the pool gets [`TaskError::WouldDeadlock`].
    ///
    /// ```
    /// # use tollgate::WorkerPool;
    /// struct Connection(u32);
    /// let pool = WorkerPool::builder().workers(2).workers_with(|| Connection(0)).build()?;
    /// for _ in 0..10 {
    ///     pool.execute(|connection| connection.0 += 1)?;
    /// }
    /// assert!(pool.wait_idle());
    /// let used = [(); 2].map(|()| pool.run(|connection| connection.0).unwrap());
    /// assert!(used.iter().all(|&used| used <= 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn workers_with<S: Send + 'static>(
        mut self,
        make: impl Fn() -> S + Send + Sync + 'static,
    ) -> StatefulBuilder<S> {
        if self.settings.admission.slots.is_none() {
            // A waiting task lends slots, not permits. `build` checks the number.
            let most = self.kind.most().min(MAX_WORKERS);
            self = self.slots(Arc::new(Semaphore::new(most)));
        }
        let make = Box::new(make);
        StatefulBuilder { builder: self, make }
    }
}

impl<S: Send + 'static> StatefulBuilder<S> {
    /// Builds the pool and starts its minimum of threads. Makes no state.
    ///
    /// # Errors
    /// As [`PoolBuilder::build`](crate::pool::PoolBuilder::build).
    pub fn build(self) -> Result<StatefulPool<S>, PoolError> {
        let states = States {
            idle: Mutex::new(Vec::new()),
            make: self.make,
        };
        Ok(StatefulPool {
            pool: self.builder.build()?,
            states: Arc::new(states),
        })
    }
}

opaque_debug!([S] StatefulBuilder<S>, "StatefulBuilder", |this| builder = this.builder);

/// The idle states: the last one returned is the first one reused.
struct States<S> {
    idle: Mutex<Vec<S>>,
    make: Box<Make<S>>,
}

impl<S> States<S> {
    fn take(&self) -> S {
        let idle = self.idle.lock().pop();
        idle.unwrap_or_else(|| (self.make)())
    }

    /// Returns a state, or drops it if `most` are idle.
    fn give_back(&self, state: S, most: usize) {
        let mut idle = self.idle.lock();
        if idle.len() < most {
            return idle.push(state);
        }
        drop(idle);
        drop_quietly(state);
    }
}

/// A [`WorkerPool`] that gives each task a state: see [`PoolBuilder::workers_with`](crate::pool::PoolBuilder::workers_with).
/// Dereferences to the `WorkerPool`. For methods that it does not have itself, [`with`](Self::with) makes a task that they take.
///
/// ```
/// # use tollgate::{WorkerPool, pool::Priority};
/// let pool = WorkerPool::builder().workers(1).workers_with(String::new).build()?;
/// let first = pool.with(|text: &mut String| text.push('a'));
/// pool.priority(Priority::High).submit(first)?.join()?;
/// assert_eq!(pool.run(|text| text.len())?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StatefulPool<S> {
    pool: WorkerPool,
    states: Arc<States<S>>,
}

impl<S: Send + 'static> StatefulPool<S> {
    /// Wraps a task so that it takes a state while it runs.
    pub fn with<T>(&self, task: impl FnOnce(&mut S) -> T + Send + 'static) -> impl FnOnce() -> T + Send + 'static {
        let (states, slots) = (
            Arc::clone(&self.states),
            self.pool.core().settings.admission.slots.clone(),
        );
        move || {
            // A panic of the task drops the state.
            let mut state = states.take();
            let result = task(&mut state);
            states.give_back(state, slots.map_or(0, |slots| slots.limit()));
            result
        }
    }

    /// Submits like [`WorkerPool::submit`], with a state.
    ///
    /// # Errors
    /// [`SubmitError`], with the task as [`with`](Self::with) wraps it: the caller can run it.
    pub fn submit<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, SubmitError<impl FnOnce() -> T + Send + 'static>> {
        self.pool.submit(self.with(task))
    }

    /// Submits like [`WorkerPool::try_submit`], with a state.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn try_submit<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, SubmitError<impl FnOnce() -> T + Send + 'static>> {
        self.pool.try_submit(self.with(task))
    }

    /// Submits like [`WorkerPool::execute`], with a state.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn execute(
        &self,
        task: impl FnOnce(&mut S) + Send + 'static,
    ) -> Result<(), SubmitError<impl FnOnce() + Send + 'static>> {
        self.pool.execute(self.with(task))
    }

    /// Runs a task like [`WorkerPool::run`], with a state.
    ///
    /// # Errors
    /// As [`WorkerPool::run`].
    pub fn run<T: Send + 'static>(&self, task: impl FnOnce(&mut S) -> T + Send + 'static) -> Result<T, TaskError> {
        self.pool.run(self.with(task))
    }
}

impl<S> Deref for StatefulPool<S> {
    type Target = WorkerPool;
    fn deref(&self) -> &WorkerPool {
        &self.pool
    }
}

impl<S> Clone for StatefulPool<S> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            states: Arc::clone(&self.states),
        }
    }
}

opaque_debug!([S] StatefulPool<S>, "StatefulPool", |this| pool = this.pool);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_states_are_kept_than_the_limit() {
        let states = States {
            idle: Mutex::new(Vec::new()),
            make: Box::new(|| 0),
        };
        states.give_back(states.take(), 2);
        (1..=2).for_each(|state| states.give_back(state, 2));
        assert_eq!(*states.idle.lock(), [0, 1]);
        states.give_back(3, 1);
        assert_eq!((states.take(), states.take(), states.take()), (1, 0, 0));
    }
}
