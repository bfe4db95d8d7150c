//! The bound on the queue: its places, and the weight of all queued tasks, are permits of semaphores. So a submission
//! that waits for room is served first come, first served, blocking or async, and can leave at any time.
//!
//! [`Overflow`] is the treatment of a task that finds the queue full.

use super::cache_padded::CachePadded;
use super::engine::entry::Entry;
use super::engine::scheduler::{Engine, Kind};
use super::engine::seat::Seat;
use super::engine::state::State;
use super::error::{PoolError, RejectReason};
use super::hooks::{drop_quietly, quietly};
use super::report::Unstarted;
use crate::semaphore::{Semaphore, SemaphorePermit};
use crate::sync::shim::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// The maximum number of tasks that a queue may hold.
pub const MAX_QUEUE: usize = u32::MAX as usize >> 1;

pub(super) struct Capacity {
    /// On cache lines of its own: submitters write it per task, and workers read the other fields before each task.
    places: CachePadded<Semaphore>,
    weight: Option<(Semaphore, u32)>,
    /// The number of submissions that have found no room, or wait for it.
    pressing: AtomicUsize,
}

/// Makes workers give every place back at once, until dropped.
pub(super) struct Pressing<'a>(&'a AtomicUsize);

impl Drop for Pressing<'_> {
    fn drop(&mut self) {
        // Relaxed: a worker that reads a stale count gives back early.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Capacity that has been taken. Gives the room back when dropped, and contains panics of the waiters' wakers.
struct Taken<'a>(Option<SemaphorePermit<'a>>);

impl Taken<'_> {
    /// Keeps the room for a task: the caller that claims the task gives it back.
    fn keep(mut self) {
        if let Some(mut permit) = self.0.take() {
            let _kept = permit.ticket_mut().take();
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            drop_quietly(permit);
        }
    }
}

impl Capacity {
    pub(super) fn checked(places: usize, weight: Option<u32>) -> Result<Self, PoolError> {
        if places == 0 || places > MAX_QUEUE {
            return Err(PoolError::Queue { given: places });
        }
        if weight == Some(0) {
            return Err(PoolError::Weight);
        }
        Ok(Self {
            places: CachePadded::new(Semaphore::new(places)),
            weight: weight.map(|most| (Semaphore::new(most as usize), most)),
            pressing: AtomicUsize::new(0),
        })
    }

    /// Returns an error if a task of this weight could never be accepted.
    pub(super) fn fits(&self, weight: u32) -> Result<(), RejectReason> {
        match &self.weight {
            Some((_, allowed)) if weight > *allowed => Err(RejectReason::Oversized {
                weight,
                allowed: *allowed,
            }),
            _ => Ok(()),
        }
    }

    /// Takes a place and this weight. Sets `serves` as [`put_back`](Self::put_back) does. Takes a lock only if there may be room.
    #[inline]
    pub(super) fn try_take(&self, weight: u32, serves: &mut bool) -> Result<(), RejectReason> {
        if self.try_take_place() {
            if self.try_take_weight(weight) {
                return Ok(());
            }
            *serves |= self.put_back(1);
        }
        Err(if self.places.is_closed() {
            RejectReason::Closed
        } else {
            RejectReason::Full
        })
    }

    /// Takes this weight, for a task that has its place.
    #[inline]
    pub(super) fn try_take_weight(&self, weight: u32) -> bool {
        let takes = |all: &Semaphore| all.may_have(weight.into()) && all.try_acquire_n(weight as usize).is_ok();
        self.weight.as_ref().is_none_or(|(all, _)| takes(all))
    }

    /// Takes up to `most` places, for the injector to give out, and returns their number. Takes at most one if a submission has found no
    /// room.
    #[inline(never)]
    pub(super) fn try_take_places(&self, most: usize) -> usize {
        let is_pressed = self.is_pressed() && !seeded!("pool_takes_room_ahead_blindly");
        if !is_pressed {
            let most = most.min(self.places.available_permits());
            if most > 1 && self.places.try_acquire_n(most).is_ok() {
                return most;
            }
        }
        usize::from(self.try_take_place())
    }

    #[inline]
    fn try_take_place(&self) -> bool {
        !self.seems_full() && self.places.try_acquire_n(1).is_ok()
    }

    /// Returns true if no place is free: a hint, without a lock.
    #[inline]
    pub(super) fn seems_full(&self) -> bool {
        !self.places.may_have(1)
    }

    /// Takes up to `n` places for tasks of this weight at once, and returns their number. Returns 0 if no place is
    /// free, or if weights count.
    pub(super) fn try_take_some(&self, n: usize, weight: u32) -> usize {
        let n = n.min(self.places.available_permits());
        if n == 0 || weight != 1 || self.weight.is_some() {
            return 0;
        }
        self.places.try_acquire_n(n).map_or(0, |()| n)
    }

    pub(super) async fn take(&self, weight: u32) -> Result<(), RejectReason> {
        let place = self
            .places
            .acquire()
            .await
            .map(|permit| Taken(Some(permit)))
            .map_err(|_| RejectReason::Closed)?;
        if let Some((all, _)) = &self.weight {
            Taken(Some(all.acquire_many(weight).await.map_err(|_| RejectReason::Closed)?)).keep();
        }
        place.keep();
        Ok(())
    }

    /// Takes a place and weight beyond the bound. The room given back next repays the excess.
    #[cold]
    pub(super) fn overdraw(&self, weight: u32) {
        self.places.overdraw(1);
        if let Some((all, _)) = &self.weight {
            all.overdraw(weight as usize);
        }
    }

    /// Frees a place and this weight. Panics of wakers do not reach the worker, because it has tasks in hand.
    #[inline]
    pub(super) fn give_back(&self, weight: u32) {
        self.places.release_quietly(1);
        self.give_back_weight(weight);
    }

    /// Frees these places under the lock under which they were counted, so that no submission with that lock misses them. Returns true if
    /// the caller must call [`serve`](Self::serve) once it has released the lock.
    #[inline]
    #[must_use]
    pub(super) fn put_back(&self, places: usize) -> bool {
        places > 0 && self.places.put_back(places)
    }

    /// Gives places that were put back to the submissions that wait for them, if [`put_back`](Self::put_back) says so.
    #[inline]
    pub(super) fn serve(&self, serves: bool) {
        if serves {
            self.places.hand_over_quietly();
        }
    }

    /// Frees this weight, as [`give_back`](Self::give_back) does.
    #[inline]
    pub(super) fn give_back_weight(&self, weight: u32) {
        if let Some((all, _)) = &self.weight {
            all.release_quietly(weight as usize);
        }
    }

    #[must_use]
    pub(super) fn press(&self) -> Pressing<'_> {
        // Relaxed: the submission looks at the injector and all local queues next, under their locks. A submission or a worker that has
        // such a lock after that look sees this count.
        self.pressing.fetch_add(1, Ordering::Relaxed);
        Pressing(&self.pressing)
    }

    /// Returns true if a place must be given back at once, and none may be taken ahead. Called under the lock of a local queue or of the
    /// injector.
    #[inline]
    pub(super) fn is_pressed(&self) -> bool {
        // Relaxed: see `press`.
        self.pressing.load(Ordering::Relaxed) > 0
    }

    /// Closes the room: no task is accepted any more, and waiters end with an error.
    pub(super) fn close(&self) {
        quietly(|| self.places.close());
        if let Some((all, _)) = &self.weight {
            quietly(|| all.close());
        }
    }
}

/// The treatment of a task that is submitted while the queue is full.
///
/// A submission that never waits, `try_submit`, refuses the task instead of waiting.
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate::{Semaphore, WorkerPool, pool::{Overflow, TaskError}};
/// let slots = Arc::new(Semaphore::new(1));
/// let slot = slots.clone().try_acquire_owned().unwrap();
/// // A pool for readings of which only the latest matters. No slot is free yet.
/// let builder = WorkerPool::builder().workers(1).slots(slots.clone());
/// let pool = builder.max_queue(1).overflow(Overflow::DropOldest).build()?;
/// let (old, new) = (pool.submit(|| 20)?, pool.submit(|| 21)?);
/// drop(slot);
/// assert!(matches!(old.join(), Err(TaskError::Discarded)));
/// assert_eq!((new.join()?, pool.stats().discarded), (21, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Overflow {
    /// The submitter waits for room. A task of the pool itself does not wait, because its slot may be the one that
    /// would make room. The tasks that it submits are queued beyond the bound.
    ///
    /// **Starvation**: submitters from outside find no room until the excess has started or ended, so a pool whose
    /// tasks keep submitting may keep them waiting. **Memory** is not bounded then. **Deadlock**: a task waits for ever
    /// if it waits for room in another pool whose tasks wait for its slot. So does a task that waits for a thread or a
    /// spawned task that submits.
    #[default]
    Block,
    /// The task is handed back.
    Reject,
    /// The oldest queued task of the lowest priority is evicted. A task that waits for the
    /// [policy](super::Builder::admit_by) is in the queue.
    DropOldest,
    /// The new task is discarded.
    DropNewest,
}

/// The decision on a submitted task.
pub(super) enum Verdict {
    /// The task has room, which is taken.
    In,
    /// The task is discarded.
    Out,
}

/// The treatment of submitters that have found no room.
impl<K: Kind> Engine<K> {
    /// Decides on a task of this weight that found no room. `turned` is the reason. `None`: the submitter waits for room.
    #[cold]
    pub(super) fn judge(self: &Arc<Self>, weight: u32, turned: RejectReason) -> Result<Option<Verdict>, RejectReason> {
        self.capacity.fits(weight)?;
        if turned == RejectReason::Closed {
            return Err(turned);
        }
        self.collect();
        match self.try_take(weight) {
            Err(RejectReason::Full) => {}
            taken => return taken.map(|()| Some(Verdict::In)),
        }
        match self.settings.overflow {
            Overflow::Block => Ok(None),
            Overflow::Reject => Err(RejectReason::Full),
            Overflow::DropOldest => self.make_room(weight).map(|()| Some(Verdict::In)),
            Overflow::DropNewest => Ok(Some(Verdict::Out)),
        }
    }

    /// Takes the room back that workers owe.
    fn collect(self: &Arc<Self>) {
        if K::THREADS {
            let pay = |serves, seat: &Arc<Seat<K::Worker>>| serves | K::pay(&seat.own, &self.capacity);
            self.capacity
                .serve(self.transition(|state, _| state.seats.iter().fold(false, pay)));
        }
    }

    /// Takes room for a task of this weight, without waiting.
    #[inline]
    pub(super) fn try_take(&self, weight: u32) -> Result<(), RejectReason> {
        let mut serves = false;
        let taken = self.kind.try_take(&self.capacity, weight, &mut serves);
        self.capacity.serve(serves);
        taken
    }

    /// Evicts tasks until there is room.
    fn make_room(self: &Arc<Self>, weight: u32) -> Result<(), RejectReason> {
        loop {
            match self.transition(State::evict) {
                Some(entry) => {
                    self.capacity.give_back(entry.weight());
                    self.discard(entry);
                }
                // All room belongs to submitters that have not queued their tasks yet.
                None => std::thread::yield_now(),
            }
            match self.try_take(weight) {
                Err(RejectReason::Full) => {}
                taken => return taken,
            }
        }
    }

    /// Discards a task that was not queued.
    pub(super) fn discard_new(&self, entry: Entry<K>) {
        entry.claim();
        self.discard(entry);
    }

    /// Passes a task that the pool has claimed to the hook.
    fn discard(&self, entry: Entry<K>) {
        self.look().stats.discarded += 1;
        let task = Unstarted::new(entry, true);
        match &self.on_discard {
            Some(hook) => quietly(|| hook(task)),
            None => drop_quietly(task),
        }
    }
}
