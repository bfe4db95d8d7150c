//! The injector: receives submitted tasks under a lock of its own. A submission touches one cache line. Each worker that holds
//! the pool's lock moves all injected tasks into the priority queue. It takes their buffer by a swap, and reads the tasks after it has
//! released the injector's lock, for which submissions wait.
//!
//! A submission takes capacity that the latest transition has shown here. If there is none, it looks under the pool's lock, since tasks may
//! have started meanwhile.
//!
//! Lock order: the pool's, a local queue's, the injector's.
//!
//! # Deferred frees
//! Submitters free the cells of tasks that have run.
//!
//! A task without a handle and options has no cell. An allocator is slow if one thread frees the memory that another allocated, and slower if
//! both do so at once. So workers free few cells themselves. They gather those that are not large, and pass them on to the
//! injector. Each submission takes the cells of two tasks under the injector's lock, and frees it afterwards.

use super::entry::{DeferredFree, Entry, InlineTask};
use super::kind::Threads;
use crate::pool::cell::Run;
use crate::pool::engine::lane::Lane;
use crate::pool::engine::queue::Entries;
use crate::sync::shim::atomic::{AtomicUsize, Ordering};
use crate::sync::shim::{Mutex, MutexGuard};
use std::sync::Arc;

pub(in crate::pool) struct Injector<'j> {
    tray: Mutex<Tray<'j>>,
    /// The number of tasks. Written under the lock, and read without it.
    len: AtomicUsize,
}

pub(in crate::pool) struct Tray<'j> {
    pub(super) tasks: Lane<Threads<'j>>,
    /// The number of tasks that may still be injected.
    pub(super) places: u32,
    /// True if one of the tasks is not common.
    special: bool,
    /// True once the pool takes no more tasks.
    pub(super) closed: bool,
    /// True while no worker looks for work and one could be called: then a submission calls. The docs of the [kind](super::kind) name its writer.
    pub(in crate::pool) calls: bool,
    /// Boxed, since the other fields fit in one cache line.
    deferred: Box<DeferredFrees<'j>>,
    /// True if `deferred` is not empty.
    any_deferred: bool,
}

/// The memory of tasks that have run.
#[derive(Default)]
struct DeferredFrees<'j>(Vec<DeferredFree<'j>>);

impl<'j> Injector<'j> {
    pub(in crate::pool) fn new() -> Self {
        let tray = Tray {
            tasks: Lane::new(),
            places: 0,
            special: false,
            closed: false,
            calls: true,
            deferred: Box::default(),
            any_deferred: false,
        };
        Self {
            tray: Mutex::new(tray),
            len: AtomicUsize::new(0),
        }
    }

    #[inline]
    pub(in crate::pool) fn lock(&self) -> MutexGuard<'_, Tray<'j>> {
        self.tray.lock()
    }

    /// Returns the number of tasks. Without the lock, a hint: a worker that acts on it takes the lock.
    #[inline]
    pub(in crate::pool) fn len(&self) -> usize {
        // Relaxed, here and in `set_len`: the lock orders the accesses.
        self.len.load(Ordering::Relaxed)
    }

    /// Sets the number of tasks, under the lock.
    #[inline]
    fn set_len(&self, _: &Tray<'j>, len: usize) {
        self.len.store(len, Ordering::Relaxed);
    }

    /// Injects a task by `put`, which only converts it. Returns true if the submission calls a worker, or the task if there is no place.
    /// Frees the memory of two tasks.
    #[inline]
    pub(in crate::pool) fn put<J>(&self, job: J, put: impl FnOnce(&mut Tray<'j>, J)) -> Result<bool, J> {
        let mut tray = self.lock();
        if tray.take(1) == 0 {
            return Err(job);
        }
        put(&mut tray, job);
        self.set_len(&tray, self.len() + 1);
        let calls = tray.calls;
        if tray.any_deferred {
            Self::free_two(tray);
        }
        Ok(calls)
    }

    /// Injects the first of `jobs` by `put`, in order, as far as there are places. Adds what `put` returns to `taken`, and the memory that the
    /// caller frees to `deferred`. Returns true if the submission calls a worker; `None`, and takes no task, if there is no place.
    pub(in crate::pool) fn put_all<J, R>(
        &self,
        jobs: &mut Vec<J>,
        put: impl Fn(&mut Tray<'j>, J) -> R,
        taken: &mut Vec<R>,
        deferred: &mut Vec<DeferredFree<'j>>,
    ) -> Option<bool> {
        taken.reserve(jobs.len());
        let mut tray = self.lock();
        let n = tray.take(jobs.len());
        if n == 0 {
            return None;
        }
        taken.extend(jobs.drain(..n).map(|job| put(&mut tray, job)));
        self.set_len(&tray, self.len() + n);
        let left = tray.deferred.0.len().saturating_sub(2 * n);
        deferred.extend(tray.deferred.0.drain(left..));
        tray.any_deferred = left > 0;
        Some(tray.calls)
    }

    /// Exchanges all tasks for an empty buffer, and returns their number.
    #[inline]
    pub(super) fn empty(&self, tray: &mut Tray<'j>, received: &mut Received<'j>) -> usize {
        std::mem::swap(&mut tray.tasks, &mut received.tasks);
        received.len = self.len();
        received.special = std::mem::take(&mut tray.special);
        self.set_len(tray, 0);
        received.len
    }
}

/// The tasks that have left the injector, on their way to the priority queue.
#[derive(Default)]
pub(super) struct Received<'j> {
    tasks: Lane<Threads<'j>>,
    len: usize,
    /// True if one of them is not common.
    special: bool,
}

impl<'j> Received<'j> {
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    #[inline]
    pub(super) fn move_to(&mut self, queue: &mut Entries<Threads<'j>>) {
        if self.len > 0 {
            queue.take_over(&mut self.tasks, std::mem::take(&mut self.len), !self.special);
        }
    }
}

impl<'j> Tray<'j> {
    /// Takes at most `n` places, and returns their number.
    #[inline]
    fn take(&mut self, n: usize) -> usize {
        let n = if self.closed { 0 } else { n.min(self.places as usize) };
        self.places -= n as u32;
        n
    }

    /// Adds the entry of a task without a handle, span and options.
    #[inline]
    pub(in crate::pool) fn put_inline<F: FnOnce() + Send + 'j>(&mut self, task: F) {
        self.tasks.push_inline(|| InlineTask::new(task));
    }

    /// Adds the entry of a task with a cell.
    #[inline]
    pub(in crate::pool) fn put_cell(&mut self, task: Arc<dyn Run + 'j>) {
        self.special |= task.options().is_some();
        self.tasks.push_cell(task);
    }

    #[inline]
    pub(in crate::pool) fn put(&mut self, entry: Entry<'j>) {
        self.special |= !entry.is_common();
        self.tasks.push(entry);
    }
}

/// The maximum number of deferred frees. Workers free the excess.
const MOST: usize = 128;
/// The number that a worker gathers before it passes them on.
const GATHERED: usize = 16;
/// The maximum size in bytes of a deferred free. A worker frees larger memory at once.
const SMALL: usize = 256;

impl<'j> Injector<'j> {
    /// Adds the memory of a task that has run to what its worker has `gathered`.
    #[inline]
    pub(super) fn defer(&self, left: DeferredFree<'j>, gathered: &mut Vec<DeferredFree<'j>>) {
        if size_of_val(&*left) <= SMALL {
            gathered.push(left);
        }
        if gathered.len() == GATHERED {
            self.take_over(gathered);
            gathered.clear();
        }
    }

    /// Frees the memory of two tasks after it has released the lock.
    #[inline(never)]
    fn free_two(mut tray: MutexGuard<'_, Tray<'j>>) {
        let deferred = &mut tray.deferred.0;
        let two = (deferred.pop(), deferred.pop());
        tray.any_deferred = !deferred.is_empty();
        drop(tray);
        drop(two);
    }

    /// Takes over what fits.
    fn take_over(&self, gathered: &mut Vec<DeferredFree<'j>>) {
        let mut tray = self.lock();
        let fit = GATHERED.min(MOST - tray.deferred.0.len());
        tray.deferred.0.extend(gathered.drain(..fit));
        tray.any_deferred = true;
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

#[cfg(test)]
mod deferred_tests {
    use super::*;
    use crate::pool::caller::Caller;
    use crate::pool::cell::ClosureCell;
    use crate::pool::threads::entry::Entry;

    fn ran<'j>(task: impl FnOnce() + Send + 'j) -> DeferredFree<'j> {
        let (_, left) = Entry::of(ClosureCell::of(task, Caller::current(), None)).run_and_leave(&mut |_| ());
        left.expect("the task has a cell")
    }

    #[test]
    fn deferred_frees_are_bounded_and_exclude_large_items() {
        let (injector, mut gathered) = (Injector::new(), Vec::new());
        let deferred = || injector.lock().deferred.0.len();
        let (large, small) = ([0u8; SMALL], [0u8; SMALL / 2]);
        injector.defer(ran(move || _ = std::hint::black_box(large)), &mut gathered);
        assert_eq!(gathered.len(), 0);
        for n in 1..=MOST + 2 * GATHERED {
            injector.defer(ran(move || _ = std::hint::black_box(small)), &mut gathered);
            assert_eq!(
                (gathered.len(), deferred()),
                (n % GATHERED, (n - n % GATHERED).min(MOST))
            );
        }
    }

    #[test]
    fn each_submission_frees_two_items() {
        let injector = Injector::new();
        injector.lock().places = 104;
        let (mut gathered, mut freed) = (Vec::new(), Vec::new());
        let large = [0u8; 100];
        (0..GATHERED).for_each(|_| injector.defer(ran(move || _ = std::hint::black_box(large)), &mut gathered));
        let put = injector.put((), |_, ()| ());
        assert_eq!((put, injector.lock().deferred.0.len()), (Ok(true), GATHERED - 2));
        let put =
            |tasks, freed: &mut Vec<_>| injector.put_all(&mut vec![(); tasks], |_, ()| (), &mut Vec::new(), freed);
        assert_eq!((put(3, &mut freed), freed.len()), (Some(true), 6));
        assert_eq!((put(100, &mut freed), freed.len()), (Some(true), GATHERED - 2));
        assert!(!injector.lock().any_deferred);
    }
}
