//! The treatment of a task that finds the queue full.

use super::engine::entry::Entry;
use super::engine::scheduler::{Engine, Kind};
use super::engine::seat::Seat;
use super::engine::state::State;
use super::error::RejectReason;
use super::hooks::{drop_quietly, quietly};
use super::report::Unstarted;
use std::sync::Arc;

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
                .serve(self.transition(|state, _| state.workers().iter().fold(false, pay)));
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
                    self.give_back(entry.weight());
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
        match self.kind.on_discard() {
            Some(hook) => quietly(|| hook(task)),
            None => drop_quietly(task),
        }
    }
}
