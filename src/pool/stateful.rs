//! A pool of threads whose tasks are given a state: a connection, a parser, a buffer.

use super::builder::Builder;
use super::error::{PoolError, Rejected, TaskError};
use super::face::WorkerPool;
use super::handle::JoinHandle;
use super::hooks::drop_quietly;
use super::threads::Threads;
use super::workers::MAX_WORKERS;
use crate::semaphore::Semaphore;
use crate::sync::shim::Mutex;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Builds a [`StatefulPool`]: see [`PoolBuilder::workers_with`](super::PoolBuilder::workers_with).
#[must_use = "a builder builds nothing by itself"]
pub struct StatefulBuilder<S> {
    builder: Builder<Threads>,
    make: Box<Make<S>>,
}

type Make<S> = dyn Fn() -> S + Send + Sync;

impl Builder<Threads> {
    /// A pool whose tasks are given a state that `make` makes, one at a time: at most as many states exist as tasks run at once. A state
    /// is made when a task finds none idle, on the thread of the task. One whose task panics is dropped, and made anew. Set the number of
    /// workers before; the states of a pool with given [`slots`](Self::slots) are as many as those.
    ///
    /// A state is not lent: a task that waits for another task of the pool is told [`TaskError::WouldDeadlock`].
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
        if self.common.given_slots().is_none() {
            // Permits are not lent as slots are. The number is checked when the pool is built.
            let most = self.kind.most().min(MAX_WORKERS);
            self = self.slots(Arc::new(Semaphore::new(most)));
        }
        let make = Box::new(make);
        StatefulBuilder { builder: self, make }
    }
}

impl<S: Send + 'static> StatefulBuilder<S> {
    /// Builds the pool and starts the least of its threads. It makes no state.
    ///
    /// # Errors
    /// As [`PoolBuilder::build`](super::PoolBuilder::build).
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

impl<S> fmt::Debug for StatefulBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StatefulBuilder").field(&self.builder).finish()
    }
}

/// The states that no task has, the last to come back first.
struct States<S> {
    idle: Mutex<Vec<S>>,
    make: Box<Make<S>>,
}

impl<S> States<S> {
    fn take(&self) -> S {
        let idle = self.idle.lock().pop();
        idle.unwrap_or_else(|| (self.make)())
    }

    /// `most` are kept.
    fn give_back(&self, state: S, most: usize) {
        let mut idle = self.idle.lock();
        if idle.len() < most {
            return idle.push(state);
        }
        drop(idle);
        drop_quietly(state);
    }
}

/// A [`WorkerPool`] whose tasks are given a state: see [`PoolBuilder::workers_with`](super::PoolBuilder::workers_with). It is a
/// `WorkerPool` for all else: for verbs that it does not have itself, [`with`](Self::with) makes a task of the kind they take.
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
    /// The task, given a state while it runs.
    pub fn with<T>(&self, task: impl FnOnce(&mut S) -> T + Send + 'static) -> impl FnOnce() -> T + Send + 'static {
        let (states, slots) = (
            Arc::clone(&self.states),
            self.pool.core().settings.admission.slots.clone(),
        );
        move || {
            // Dropped with it, when the task panics.
            let mut state = states.take();
            let result = task(&mut state);
            states.give_back(state, slots.map_or(0, |slots| slots.limit()));
            result
        }
    }

    /// As [`WorkerPool::submit`], with a state.
    ///
    /// # Errors
    /// [`Rejected`], with the task as [`with`](Self::with) makes it: it can be run where it is.
    pub fn submit<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, Rejected<impl FnOnce() -> T + Send + 'static>> {
        self.pool.submit(self.with(task))
    }

    /// As [`WorkerPool::try_submit`], with a state.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn try_submit<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, Rejected<impl FnOnce() -> T + Send + 'static>> {
        self.pool.try_submit(self.with(task))
    }

    /// As [`WorkerPool::execute`], with a state.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn execute(
        &self,
        task: impl FnOnce(&mut S) + Send + 'static,
    ) -> Result<(), Rejected<impl FnOnce() + Send + 'static>> {
        self.pool.execute(self.with(task))
    }

    /// As [`WorkerPool::run`], with a state.
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

impl<S> fmt::Debug for StatefulPool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StatefulPool").field(&self.pool).finish()
    }
}
