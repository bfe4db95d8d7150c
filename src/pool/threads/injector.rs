//! The injector: receives submitted tasks under a lock of its own. A submission touches one cache line. Each worker that holds
//! the pool's lock moves all injected tasks into the priority queue.
//!
//! It takes the places of the next submissions in the queue together. These are free: a submission that finds the queue full puts them
//! back, and none are taken ahead while it waits. Places are counted here or in the queue's capacity at any moment at which the lock is
//! free, so a queue with room refuses none.
//!
//! Lock order: the pool's, a local queue's, the injector's, that of the queue's capacity.
//!
//! # Deferred frees
//! Submitters free the memory of tasks that have run.
//!
//! A small closure leaves no memory. An allocator is slow if one thread frees the memory that another allocated, and slower if
//! both do so at once. So workers free little themselves. They gather the memory of tasks that are not large, and pass it on to the
//! injector. Each submission takes the memory of two tasks under the injector's lock, and frees it afterwards.

use super::entry::{DeferredFree, Entry, InlineTask};
use super::kind::Threads;
use crate::pool::capacity::Capacity;
use crate::pool::cell::Run;
use crate::pool::engine::entry::Boxed;
use crate::pool::engine::lane::Lane;
use crate::pool::engine::queue::Entries;
use crate::pool::error::RejectReason;
use crate::sync::shim::atomic::{AtomicUsize, Ordering};
use crate::sync::shim::{Mutex, MutexGuard};
use std::sync::Arc;

/// The maximum number of queue places that the injector takes at once.
const AHEAD: usize = 32;

/// One task in [`Injector::counts`]. The number of places is less.
const TASK: usize = 64;
const PLACES: usize = TASK - 1;

pub(in crate::pool) struct Injector<'j> {
    tray: Mutex<Tray<'j>>,
    /// The number of tasks, times [`TASK`], plus the number of queue places that the injector has taken and not given to a task. It takes
    /// them together, so that a submission takes no place by itself. Written under the lock, and read without it.
    counts: AtomicUsize,
}

pub(in crate::pool) struct Tray<'j> {
    pub(super) tasks: Lane<Threads<'j>>,
    /// True if one of them is not common.
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
            special: false,
            closed: false,
            calls: true,
            deferred: Box::default(),
            any_deferred: false,
        };
        Self {
            tray: Mutex::new(tray),
            counts: AtomicUsize::new(0),
        }
    }

    pub(in crate::pool) fn lock(&self) -> MutexGuard<'_, Tray<'j>> {
        self.tray.lock()
    }

    #[inline]
    fn counts(&self) -> usize {
        // Relaxed, here and in `set_counts`: the lock orders the accesses. Without it, a hint.
        self.counts.load(Ordering::Relaxed)
    }

    /// Sets the counts, under the lock.
    #[inline]
    fn set_counts(&self, _: &Tray<'j>, counts: usize) {
        self.counts.store(counts, Ordering::Relaxed);
    }

    /// Returns true if there seems to be no task. A worker that acts on it takes the lock.
    #[inline]
    pub(in crate::pool) fn seems_empty(&self) -> bool {
        self.counts() < TASK
    }

    /// Returns true if a submission will probably find no place, here or in the queue.
    #[inline]
    pub(in crate::pool) fn seems_full(&self, capacity: &Capacity) -> bool {
        // The queue first: its cache line is written less often.
        capacity.seems_full() && self.counts() & PLACES == 0
    }

    /// Injects a task by `put`, which only converts it. Takes its capacity if `takes` has that and the task's weight. Returns true if the
    /// submission calls a worker, or the task if there is no capacity or the pool is closed. Frees the memory of two tasks.
    #[inline]
    pub(in crate::pool) fn put<J>(
        &self,
        job: J,
        takes: Option<(&Capacity, u32)>,
        put: impl FnOnce(&mut Tray<'j>, J),
    ) -> Result<bool, (J, RejectReason)> {
        let mut tray = self.lock();
        let counts = match self.lets_in(&tray, takes) {
            Ok(counts) => counts,
            Err(reason) => return Err((job, reason)),
        };
        put(&mut tray, job);
        self.set_counts(&tray, counts + TASK);
        let calls = tray.calls;
        if tray.any_deferred {
            Self::free_two(tray);
        }
        Ok(calls)
    }

    /// Injects the first `n` of `jobs` by `put`, in order, and adds what `put` returns to `taken`, and the memory that the caller frees to
    /// `deferred`. Returns true if the submission calls a worker; `None`, and takes no task, when the pool is closed.
    pub(in crate::pool) fn put_all<J, R>(
        &self,
        jobs: &mut Vec<J>,
        n: usize,
        put: impl Fn(&mut Tray<'j>, J) -> R,
        taken: &mut Vec<R>,
        deferred: &mut Vec<DeferredFree<'j>>,
    ) -> Option<bool> {
        taken.reserve(n);
        let mut tray = self.lock();
        if tray.closed {
            return None;
        }
        taken.extend(jobs.drain(..n).map(|job| put(&mut tray, job)));
        self.set_counts(&tray, self.counts() + n * TASK);
        let left = tray.deferred.0.len().saturating_sub(2 * n);
        deferred.extend(tray.deferred.0.drain(left..));
        tray.any_deferred = left > 0;
        Some(tray.calls)
    }

    /// Moves all tasks into `lanes`, and returns their number.
    pub(in crate::pool) fn empty(&self, tray: &mut Tray<'j>, queue: &mut Entries<Threads<'j>>) -> usize {
        let uniform = !std::mem::take(&mut tray.special);
        let counts = self.counts();
        queue.take_over(&mut tray.tasks, counts / TASK, uniform);
        self.set_counts(tray, counts & PLACES);
        counts / TASK
    }

    /// Takes the room of one task. Returns the counts without its place.
    #[inline]
    fn lets_in(&self, tray: &Tray<'j>, takes: Option<(&Capacity, u32)>) -> Result<usize, RejectReason> {
        if tray.closed {
            return Err(RejectReason::Closed);
        }
        let mut counts = self.counts();
        if let Some((capacity, weight)) = takes {
            // Before places are taken: a task that never fits leaves none here that a waiting submission needs.
            capacity.fits(weight)?;
            if counts & PLACES == 0 {
                counts += capacity.try_take_places(AHEAD);
                if counts & PLACES == 0 {
                    return Err(RejectReason::Full);
                }
                self.set_counts(tray, counts);
            }
            if !capacity.try_take_weight(weight) {
                return Err(RejectReason::Full);
            }
            counts -= 1;
        }
        Ok(counts)
    }

    /// Puts back the places that no submission has used, and then [takes](Capacity::try_take) room. Other submissions with the lock see
    /// neither step alone.
    pub(in crate::pool) fn try_take(
        &self,
        capacity: &Capacity,
        weight: u32,
        serves: &mut bool,
    ) -> Result<(), RejectReason> {
        let tray = self.lock();
        if tray.closed {
            return Err(RejectReason::Closed);
        }
        let counts = self.counts();
        self.set_counts(&tray, counts & !PLACES);
        let _tray = (!seeded!("pool_returns_room_late")).then_some(tray);
        *serves |= capacity.put_back(counts & PLACES);
        capacity.try_take(weight, serves)
    }
}

impl<'j> Tray<'j> {
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
        if left.size() <= SMALL {
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
    fn a_task_that_never_fits_leaves_no_places_ahead() {
        let (injector, capacity) = (Injector::new(), Capacity::checked(2, Some(4)).unwrap());
        let put = |weight, put: fn(&mut Tray<'_>, ())| {
            let taken = injector.put((), Some((&capacity, weight)), put);
            (taken.map_err(|((), reason)| reason), injector.counts() & PLACES)
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

#[cfg(test)]
mod deferred_tests {
    use super::*;
    use crate::pool::caller::Caller;
    use crate::pool::task_options::TaskOptions;
    use crate::pool::threads::entry::Entry;

    fn ran<'j>(task: impl FnOnce() + Send + 'j) -> DeferredFree<'j> {
        let (_, left) = Entry::own(Caller::current(), task, &TaskOptions::DEFAULT).run_and_leave(&mut |_| ());
        left.expect("the closure is too large for the entry")
    }

    #[test]
    fn deferred_frees_are_bounded_and_exclude_large_items() {
        let (injector, mut gathered) = (Injector::new(), Vec::new());
        let deferred = || injector.lock().deferred.0.len();
        let (large, small) = ([0u8; SMALL], [0u8; SMALL - 1]);
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
        let (injector, capacity) = (Injector::new(), Capacity::checked(100, None).unwrap());
        let (mut gathered, mut freed) = (Vec::new(), Vec::new());
        let large = [0u8; 100];
        (0..GATHERED).for_each(|_| injector.defer(ran(move || _ = std::hint::black_box(large)), &mut gathered));
        let put = injector.put((), Some((&capacity, 1)), |_, ()| ());
        assert_eq!((put, injector.lock().deferred.0.len()), (Ok(true), GATHERED - 2));
        let put = |tasks, freed: &mut Vec<_>| {
            injector.put_all(&mut vec![(); tasks], tasks, |_, ()| (), &mut Vec::new(), freed)
        };
        assert_eq!((put(3, &mut freed), freed.len()), (Some(true), 6));
        assert_eq!((put(100, &mut freed), freed.len()), (Some(true), GATHERED - 2));
        assert!(!injector.lock().any_deferred);
    }
}
