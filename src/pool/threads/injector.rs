//! The injector: receives submitted tasks under a lock of its own. A submission touches one cache line. Each worker that holds
//! the pool's lock moves all injected tasks into the priority queue.
//!
//! Lock order: the pool's, a local queue's, the injector's.

use super::deferred_free::DeferredFrees;
use super::entry::{DeferredFree, Entry};
use super::kind::Threads;
use crate::pool::engine::lane::Lane;
use crate::pool::engine::priority_queue::PriorityQueue;
use crate::sync::shim::atomic::{AtomicUsize, Ordering};
use crate::sync::shim::{Mutex, MutexGuard};

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
    /// True while no worker looks for work and one could be called: then a submission calls. The docs of the [kind](super::kind) name its writer.
    pub(in crate::pool) calls: bool,
    /// Boxed, since the other fields fit in one cache line.
    deferred: Box<DeferredFrees<'j>>,
    /// True if `deferred` is not empty.
    any_spent: bool,
}

/// The steps that a submission takes after it has released the lock.
#[must_use]
pub(in crate::pool) struct Put<'j> {
    /// True if it calls a worker.
    pub(in crate::pool) calls: bool,
    /// The memory that it frees.
    pub(in crate::pool) deferred: Option<[Option<DeferredFree<'j>>; 2]>,
}

impl<'j> Injector<'j> {
    pub(in crate::pool) fn new() -> Self {
        let tray = Tray {
            tasks: Lane::new(),
            special: false,
            closed: false,
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

    /// Injects a task, or returns it when the pool is closed. `into` only converts.
    #[inline]
    pub(in crate::pool) fn put<J>(&self, job: J, into: impl FnOnce(J) -> Entry<'j>) -> Result<Put<'j>, J> {
        let mut tray = self.lock();
        if tray.closed {
            return Err(job);
        }
        tray.put(into(job));
        self.came(1);
        Ok(Put {
            calls: tray.calls,
            deferred: tray.any_spent.then(|| tray.two_spent()),
        })
    }

    /// Injects the first `n` of `jobs`, in order, and adds the memory that the caller frees to `deferred`. Returns `None`, and
    /// takes no task, when the pool is closed.
    pub(in crate::pool) fn put_all<J>(
        &self,
        jobs: &mut Vec<J>,
        n: usize,
        into: impl Fn(J) -> Entry<'j>,
        deferred: &mut Vec<DeferredFree<'j>>,
    ) -> Option<Put<'j>> {
        let mut tray = self.lock();
        if tray.closed {
            return None;
        }
        for job in jobs.drain(..n) {
            tray.put(into(job));
        }
        self.came(n);
        if tray.any_spent {
            deferred.extend(tray.deferred.many(n));
            tray.any_spent = !tray.deferred.is_empty();
        }
        Some(Put {
            calls: tray.calls,
            deferred: None,
        })
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
    fn put(&mut self, entry: Entry<'j>) {
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
    fn a_submission_touches_one_cache_line() {
        assert!(size_of::<Injector<'_>>() <= 64, "{}", size_of::<Injector<'_>>());
    }
}
