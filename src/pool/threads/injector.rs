//! The injector: receives submitted tasks under a lock of its own. A submission touches one cache line. Each worker that holds
//! the pool's lock moves all injected tasks into the priority queue.
//!
//! It takes the places of the next submissions in the queue together. These are free: a submission that finds the queue full takes them
//! back, and none are taken ahead while it waits.
//!
//! Lock order: the pool's, a local queue's, the injector's, that of the queue's capacity.

use super::deferred_free::DeferredFrees;
use super::entry::{DeferredFree, Entry, InlineTask};
use super::kind::Threads;
use crate::pool::capacity::Capacity;
use crate::pool::cell::Run;
use crate::pool::engine::entry::Boxed;
use crate::pool::engine::lane::Lane;
use crate::pool::engine::priority_queue::PriorityQueue;
use crate::pool::error::RejectReason;
use crate::sync::shim::atomic::{AtomicUsize, Ordering};
use crate::sync::shim::{Mutex, MutexGuard};
use std::sync::Arc;

/// The maximum number of queue places that the injector takes at once.
const AHEAD: usize = 32;

pub(in crate::pool) struct Injector<'j> {
    tray: Mutex<Tray<'j>>,
    /// The number of tasks. Written under the lock, and read without it.
    len: AtomicUsize,
}

pub(in crate::pool) struct Tray<'j> {
    tasks: Lane<Threads<'j>>,
    /// True if one of them is not common.
    special: bool,
    /// True once the pool takes no more tasks.
    closed: bool,
    /// The queue places that it has taken and not given to a task. Taken together, so that a submission takes no place by itself.
    places: u16,
    /// True while no worker looks for work and one could be called: then a submission calls. The docs of the [kind](super::kind) name its writer.
    pub(in crate::pool) calls: bool,
    /// Boxed, since the other fields fit in one cache line.
    deferred: Box<DeferredFrees<'j>>,
    /// True if `deferred` is not empty.
    any_spent: bool,
}

impl<'j> Injector<'j> {
    pub(in crate::pool) fn new() -> Self {
        let tray = Tray {
            tasks: Lane::new(),
            special: false,
            closed: false,
            places: 0,
            calls: true,
            deferred: Box::default(),
            any_spent: false,
        };
        Self {
            tray: Mutex::new(tray),
            len: AtomicUsize::new(0),
        }
    }

    pub(in crate::pool) fn lock(&self) -> MutexGuard<'_, Tray<'j>> {
        self.tray.lock()
    }

    /// Counts `n` more tasks, under the lock.
    #[inline]
    fn came(&self, n: usize) {
        // Relaxed, here and in `empty`: the lock orders the accesses. Without it, a hint for `seems_empty`.
        self.len.store(self.len.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    #[inline]
    pub(in crate::pool) fn seems_empty(&self) -> bool {
        // Relaxed: a hint, stored by `came`. A worker that acts on it takes the lock.
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Injects a task by `put`, which only converts it. Takes its capacity if `takes` has that and the task's weight. Returns true if the
    /// submission calls a worker, or the task if there is no capacity or the pool is closed. Moves the memory of two tasks, if there is
    /// any, to `deferred`: the caller frees it. This is an argument, since a result of several words is copied on its way.
    #[inline]
    pub(in crate::pool) fn put<J>(
        &self,
        job: J,
        takes: Option<(&Capacity, u32)>,
        put: impl FnOnce(&mut Tray<'j>, J),
        deferred: &mut [Option<DeferredFree<'j>>; 2],
    ) -> Result<bool, (J, RejectReason)> {
        let mut tray = self.lock();
        if let Err(reason) = tray.lets_in(takes) {
            return Err((job, reason));
        }
        put(&mut tray, job);
        self.came(1);
        if tray.any_spent {
            *deferred = tray.two_spent();
        }
        Ok(tray.calls)
    }

    /// Injects the first `n` of `jobs` by `put`, in order, and adds the memory that the caller frees to `deferred`. Returns true if the submission
    /// calls a worker; `None`, and takes no task, when the pool is closed.
    pub(in crate::pool) fn put_all<J>(
        &self,
        jobs: &mut Vec<J>,
        n: usize,
        put: impl Fn(&mut Tray<'j>, J),
        deferred: &mut Vec<DeferredFree<'j>>,
    ) -> Option<bool> {
        let mut tray = self.lock();
        if tray.closed {
            return None;
        }
        for job in jobs.drain(..n) {
            put(&mut tray, job);
        }
        self.came(n);
        if tray.any_spent {
            deferred.extend(tray.deferred.many(n));
            tray.any_spent = !tray.deferred.is_empty();
        }
        Some(tray.calls)
    }

    /// Moves all tasks into `lanes`, and returns their number.
    pub(in crate::pool) fn empty(&self, tray: &mut Tray<'j>, by_priority: &mut PriorityQueue<Threads<'j>>) -> usize {
        let uniform = !std::mem::take(&mut tray.special);
        let moved = self.len.load(Ordering::Relaxed);
        by_priority.take_over(&mut tray.tasks, moved, uniform);
        self.len.store(0, Ordering::Relaxed);
        moved
    }
}

impl<'j> Tray<'j> {
    #[inline]
    fn lets_in(&mut self, takes: Option<(&Capacity, u32)>) -> Result<(), RejectReason> {
        if self.closed {
            return Err(RejectReason::Closed);
        }
        if let Some((capacity, weight)) = takes {
            // Before places are taken: a task that never fits leaves none here that a waiting submission needs.
            capacity.fits(weight)?;
            if self.places == 0 {
                self.places = capacity.try_take_places(AHEAD)? as u16;
            }
            capacity.try_take_weight(weight)?;
            self.places -= 1;
        }
        Ok(())
    }

    /// Takes the places that no submission has used.
    pub(in crate::pool) fn places_ahead(&mut self) -> usize {
        std::mem::take(&mut self.places).into()
    }

    /// Adds the entry of a task without a handle, span and options.
    #[inline]
    pub(in crate::pool) fn put_plain<F: FnOnce() + Send + 'j>(&mut self, task: F) {
        if InlineTask::fits::<F>() {
            self.tasks.push_inline(|| InlineTask::new(task));
        } else {
            self.put(Entry::plain(task));
        }
    }

    /// Adds the entry of a task with a handle, without options.
    #[inline]
    pub(in crate::pool) fn put_held(&mut self, task: Arc<dyn Run + 'j>) {
        self.tasks.push_boxed(Boxed::Held(task));
    }

    #[inline]
    pub(in crate::pool) fn put(&mut self, entry: Entry<'j>) {
        self.special |= !entry.is_common();
        self.tasks.push(entry);
    }

    pub(in crate::pool) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(in crate::pool) fn close(&mut self) {
        self.closed = true;
    }

    /// Takes over the memory of tasks that have run, for submitters to free.
    #[inline]
    pub(in crate::pool) fn take_over(&mut self, deferred: &mut Box<DeferredFrees<'j>>) {
        if !self.any_spent && !deferred.is_empty() {
            std::mem::swap(&mut self.deferred, deferred);
            self.any_spent = true;
        }
    }

    fn two_spent(&mut self) -> [Option<DeferredFree<'j>>; 2] {
        let two = self.deferred.two();
        self.any_spent = !self.deferred.is_empty();
        two
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_never_fits_leaves_no_places_ahead() {
        let (injector, capacity) = (Injector::new(), Capacity::checked(2, Some(4)).unwrap());
        let put = |weight, put: fn(&mut Tray<'_>, ())| {
            let taken = injector.put((), Some((&capacity, weight)), put, &mut [None, None]);
            (taken.map_err(|((), reason)| reason), injector.lock().places_ahead())
        };
        let (refused, ahead) = put(9, |_, ()| unreachable!("it is refused"));
        assert!(matches!(
            refused,
            Err(RejectReason::Oversized { weight: 9, allowed: 4 })
        ));
        assert_eq!(ahead, 0);
        let (taken, ahead) = put(1, |_, ()| ());
        assert!(taken.is_ok());
        assert_eq!(ahead, 1, "the second place");
    }

    #[test]
    fn a_submission_touches_one_cache_line() {
        assert!(size_of::<Injector<'_>>() <= 64, "{}", size_of::<Injector<'_>>());
    }
}
