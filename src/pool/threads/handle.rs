//! Task handles: the result, as a future or by blocking, and cancellation.

use super::entry::Entry;
use super::kind::Core;
use crate::pool::cell::Job;
use crate::pool::engine::group_limit::Membership;
use crate::pool::engine::waits::{Inlined, Under, Wait, Waiter, current};
use crate::pool::error::TaskError;
use crate::pool::park::block_on;
use crate::pool::task_options::RareOptions;
use crate::pool::task_options::TaskOptions;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Waits for a task's result, and cancels the task. Dropping the handle does not cancel the task.
///
/// # Tasks that wait for tasks
/// A task of a pool lends its slot while it waits for another task. An awaited task may start on the lent slot, on one of at most 256
/// threads beyond the limit. [`join`](Self::join) runs a queued task of the same pool inline, on the waiter's thread, at most 16 deep,
/// unless the task's group has a limit. So tasks may submit tasks and wait for them, across pools, and in pools of one worker.
///
/// A pool does not lend permits: those of a [policy](crate::pool::Builder::admit_by), and [slots](crate::pool::Builder::slots) that the pool was
/// given. A wait ends at once with [`TaskError::WouldDeadlock`] if the awaited task needs a permit that the waiter holds, or that a task
/// which waits for the waiter holds. It does so whether a permit is free or not. If as many tasks wait as there are slots and 255 more, the
/// next wait ends with [`TaskError::TooManyParked`]. In both cases the awaited task continues, and a handle that was polled, or
/// [joined](Self::join_by_ref), by reference is unchanged.
///
/// **Deadlock**: a pool detects only waits for handles. It does not detect a cycle of tasks on threads that wait for each other by
/// handles that were passed on. A task of a [scope](crate::pool::PoolBuilder::scope) keeps its slot while it waits for a task of another pool.
///
/// # Cancel safety
/// Polling can stop at any time: the task keeps its result until a caller takes it.
///
/// # Panics
/// Polling again after the result was returned panics.
#[must_use = "a handle that is dropped lets its task run unobserved"]
pub struct ScopedJoinHandle<'j, T> {
    cell: Arc<dyn Job<T> + 'j>,
    core: Arc<Core<'j>>,
    rare: Option<Box<RareOptions>>,
    wait: Option<Wait<Core<'j>>>,
}

/// The handle to a task of a [`WorkerPool`](crate::pool::WorkerPool).
pub type JoinHandle<T> = ScopedJoinHandle<'static, T>;

impl<'j, T: Send> ScopedJoinHandle<'j, T> {
    #[inline]
    pub(in crate::pool) fn new(
        cell: Arc<dyn Job<T> + 'j>,
        core: Arc<Core<'j>>,
        options: &TaskOptions,
        member: Option<&Arc<Membership>>,
    ) -> Self {
        Self {
            cell,
            core,
            rare: (!options.plain).then(|| Box::new(RareOptions::of(options, member))),
            wait: None,
        }
    }

    /// Runs the task inline, in its waiter, if the task is queued and needs only a slot. Returns whether it ran or expired.
    pub(in crate::pool) fn help(&self) -> bool {
        let is_member = self.rare.as_ref().is_some_and(|rare| rare.member.is_some());
        if self.core.settings.admission.is_gated() || is_member || !self.cell.is_queued() {
            return false;
        }
        let Some(inlined) = Inlined::enter(&*self.core) else {
            return false;
        };
        let deadline = self.rare.as_ref().and_then(|rare| rare.deadline);
        if deadline.is_some_and(|deadline| self.core.settings.clock.now() > deadline) {
            if self.cell.refuse(TaskError::Expired) {
                self.core.note_dead(|state| state.stats.expired += 1);
            }
            return true;
        }
        // On a thread that runs no task, the waits of the inlined task count as those of its waiter, which may hold permits.
        let under = if current().is_none() { self.cell.waiter() } else { None };
        let under = under.map(Under::enter);
        let ran = self.cell.run(&mut |payload| self.core.orphan(payload));
        drop((under, inlined));
        self.core.note_inlined(ran);
        true
    }

    /// Termination the wait: a lent slot is no longer lent for it.
    pub(in crate::pool) fn leave(&mut self) {
        self.wait = None;
    }

    pub(in crate::pool) fn is_queued(&self) -> bool {
        self.cell.is_queued()
    }

    /// Returns the task's second entry, under which it starts while it is awaited.
    fn awaited(&self) -> Option<Entry<'j>> {
        let rare = self.rare.as_deref().cloned();
        let cell = Arc::clone(&self.cell) as _;
        let entry = || {
            Entry::awaited(
                cell,
                rare.unwrap_or_else(|| RareOptions::of(&TaskOptions::DEFAULT, None)),
            )
        };
        self.cell.is_queued().then(entry)
    }

    /// Polls for the result. A task of a pool lends its slot while it waits.
    pub(in crate::pool) fn poll_join(&mut self, waker: &Waker) -> Poll<Result<T, TaskError>> {
        match Waiter::current(&*self.core) {
            Some(waiter) if self.wait.as_ref().is_some_and(|wait| wait.is_by(&waiter)) => {}
            Some(waiter) => {
                self.wait = None;
                self.wait = Wait::begin(waiter, None, &*self.core);
                if self.wait.is_none() {
                    return Poll::Ready(Err(TaskError::WouldDeadlock));
                }
            }
            None => self.wait = None,
        }
        let polled = self.cell.poll_result(waker);
        if polled.is_ready() {
            self.wait = None;
            return polled;
        }
        let (core, mut wait) = (Arc::clone(&self.core), self.wait.take());
        let waits = wait.as_mut().is_none_or(|wait| wait.list(&core, || self.awaited()));
        self.wait = wait;
        if waits {
            Poll::Pending
        } else {
            self.wait = None;
            Poll::Ready(Err(TaskError::TooManyParked))
        }
    }

    /// Returns the result of a task that ends within a few instructions.
    pub(in crate::pool) fn take_result(self) -> Result<T, TaskError> {
        let result = block_on(None, |waker| self.cell.poll_result(waker));
        // An unbounded wait always returns a result.
        result.unwrap_or(Err(TaskError::Abandoned))
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// [`TaskError`]: the task panicked, or never started.
    pub fn join(mut self) -> Result<T, TaskError> {
        self.join_by_ref()
    }

    /// Waits for the result, and keeps the handle, so that a caller can join again after a refused wait. See
    /// [`TaskError::WouldDeadlock`].
    ///
    /// # Errors
    /// As [`join`](Self::join).
    ///
    /// # Panics
    /// If the result was taken before.
    pub fn join_by_ref(&mut self) -> Result<T, TaskError> {
        self.help();
        let result = block_on(None, |waker| self.poll_join(waker));
        result.unwrap_or(Err(TaskError::Abandoned))
    }

    /// Waits for the result for at most `patience`.
    ///
    /// # Errors
    /// The handle itself on a timeout: the task continues.
    pub fn join_timeout(mut self, patience: Duration) -> Result<Result<T, TaskError>, Self> {
        let joined = block_on(Some(patience), |waker| self.poll_join(waker));
        self.wait = None;
        joined.ok_or(self)
    }

    /// Cancels the task, if it has not started: its result is then [`TaskError::Cancelled`]. Returns false when it is too
    /// late. Does not interrupt a running task.
    pub fn cancel(&self) -> bool {
        let ended = self.cell.refuse_aside(TaskError::Cancelled);
        if ended {
            let member = self.rare.as_ref().and_then(|rare| rare.member.as_deref());
            self.core
                .note_dead(|state| member.into_iter().for_each(|member| state.member_left(member)));
        }
        ended
    }

    /// Returns true once the task has a result.
    pub fn is_finished(&self) -> bool {
        self.cell.is_done()
    }

    /// Returns the result, if the task has one.
    ///
    /// # Errors
    /// The handle itself if it has none yet.
    pub fn try_join(self) -> Result<Result<T, TaskError>, Self> {
        match self.cell.poll_result(Waker::noop()) {
            Poll::Ready(result) => Ok(result),
            Poll::Pending => Err(self),
        }
    }
}

impl<T: Send> Future for ScopedJoinHandle<'_, T> {
    type Output = Result<T, TaskError>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_join(cx.waker())
    }
}

impl<T> Drop for ScopedJoinHandle<'_, T> {
    fn drop(&mut self) {
        self.wait = None;
        self.cell.detach();
    }
}

impl<T> fmt::Debug for ScopedJoinHandle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("finished", &self.cell.is_done())
            .finish_non_exhaustive()
    }
}
