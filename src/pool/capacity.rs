//! The bound on the queue: on the number of queued tasks, and on their weight. [`Overflow`] is the treatment of a task that finds the
//! queue full.
//!
//! [`Capacity`] is plain data under the pool's lock. A task takes capacity until it is claimed: the transition that counts the claim gives the
//! capacity to the submitters that wait, first come, first served. A submitter that was served has reserved capacity until it queues its
//! task or leaves.

use super::engine::entry::Entry;
use super::engine::scheduler::{Engine, Kind};
use super::engine::state::Phase;
use super::engine::waits::is_inside;
use super::error::{PoolError, RejectReason};
use super::hooks::{drop_quietly, quietly};
use super::report::Unstarted;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// The maximum bound on queued tasks: 2,147,483,647.
pub const MAX_QUEUE: usize = u32::MAX as usize >> 1;

/// The capacity of a queue, and the submitters that wait for it.
pub(super) struct Capacity {
    max_queue: usize,
    max_weight: Option<u32>,
    /// The tasks that were accepted, and not claimed, or whose claim was not reported; and those of submitters for which capacity is reserved.
    tasks: usize,
    /// Their weight; zero if weights are not bounded.
    weight: u64,
    /// The number of submitters that have reserved capacity, and not queued their tasks yet.
    reserved: usize,
    /// The submitters that wait, in order.
    waiting: BTreeMap<u64, (u32, Waker)>,
    /// The weights of those for which capacity was reserved since they last looked.
    served: BTreeMap<u64, u32>,
    next_key: u64,
}

impl Capacity {
    pub(super) fn checked(max_queue: usize, max_weight: Option<u32>) -> Result<Self, PoolError> {
        if max_queue == 0 || max_queue > MAX_QUEUE {
            return Err(PoolError::Queue { given: max_queue });
        }
        if max_weight == Some(0) {
            return Err(PoolError::Weight);
        }
        Ok(Self {
            max_queue,
            max_weight,
            tasks: 0,
            weight: 0,
            reserved: 0,
            waiting: BTreeMap::new(),
            served: BTreeMap::new(),
            next_key: 0,
        })
    }

    #[inline]
    fn weigh(&self, tasks: usize, weight: u32) -> u64 {
        self.max_weight.map_or(0, |_| tasks as u64 * u64::from(weight))
    }

    /// Returns the number of queued tasks.
    pub(super) fn queued(&self) -> usize {
        self.tasks - self.reserved
    }

    /// Returns true while submitters wait.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the number of tasks that may come without a look here: none while submitters wait, or if weights are bounded.
    #[inline]
    pub(super) fn free_places(&self) -> usize {
        let looks = self.waits() || self.max_weight.is_some();
        if looks {
            0
        } else {
            self.max_queue.saturating_sub(self.tasks)
        }
    }

    /// Counts as many tasks as [`free_places`](Self::free_places) has let in.
    #[inline]
    pub(super) fn came(&mut self, tasks: usize) {
        self.tasks += tasks;
    }

    /// Returns the number of tasks of this weight that fit.
    #[inline]
    fn room(&self, weight: u32) -> usize {
        let left = |most: u32| u64::from(most).saturating_sub(self.weight) / u64::from(weight);
        let by_weight = self.max_weight.map_or(u64::MAX, left);
        let by_number = self.max_queue.saturating_sub(self.tasks);
        usize::try_from(by_weight).map_or(by_number, |by_weight| by_number.min(by_weight))
    }

    /// Returns true if a task of this weight finds capacity.
    #[inline]
    pub(super) fn has_room(&self, weight: u32) -> bool {
        !self.waits() && self.room(weight) > 0
    }

    /// Takes capacity for at most `n` tasks of this weight: none while submitters wait. Returns their number.
    pub(super) fn take(&mut self, n: usize, weight: u32) -> usize {
        let n = if self.waits() { 0 } else { n.min(self.room(weight)) };
        self.tasks += n;
        self.weight += self.weigh(n, weight);
        n
    }

    /// Takes capacity for a submitter that is to queue its task, whether there is any or not.
    fn overdraw(&mut self, weight: u32) {
        self.tasks += 1;
        self.weight += self.weigh(1, weight);
        self.reserved += 1;
    }

    /// Gives back the capacity of tasks that were claimed.
    #[inline]
    pub(super) fn give_back(&mut self, tasks: usize, weight: u32) {
        self.tasks -= tasks;
        self.weight -= self.weigh(tasks, weight);
    }

    /// Reserves capacity for the submitters that wait, in order, as far as there is any.
    pub(super) fn serve(&mut self, wakers: &mut Vec<Waker>) {
        while let Some((key, (weight, waker))) = self.pop_fitting() {
            self.overdraw(weight);
            self.served.insert(key, weight);
            wakers.push(waker);
        }
    }

    /// Removes the first submitter that waits, if there is capacity for its task.
    fn pop_fitting(&mut self) -> Option<(u64, (u32, Waker))> {
        let (_, (weight, _)) = self.waiting.first_key_value()?;
        if self.room(*weight) > 0 {
            self.waiting.pop_first()
        } else {
            None
        }
    }

    /// Ready once capacity is reserved. Otherwise takes `waker`, and leaves the previous one in its place.
    fn poll(&mut self, key: &mut Option<u64>, weight: u32, waker: &mut Option<Waker>) -> Poll<()> {
        let is_served = match key {
            Some(key) => self.served.remove(key).is_some(),
            None => self.reserve(weight),
        };
        if is_served {
            *key = None;
            return Poll::Ready(());
        }
        if let Some(new) = waker.take() {
            let key = *key.get_or_insert_with(|| {
                self.next_key += 1;
                self.next_key
            });
            *waker = self.waiting.insert(key, (weight, new)).map(|(_, old)| old);
        }
        Poll::Pending
    }

    /// Reserves capacity for a submitter, if it is free and no submitter waits.
    fn reserve(&mut self, weight: u32) -> bool {
        let reserves = self.take(1, weight);
        self.reserved += reserves;
        reserves > 0
    }

    /// Ends a wait, and gives back the capacity that was reserved for it. Returns its waker, for the caller to drop outside the lock.
    fn leave(&mut self, key: &mut Option<u64>) -> Option<Waker> {
        let key = key.take()?;
        if let Some(weight) = self.served.remove(&key) {
            self.give_back(1, weight);
            self.reserved -= 1;
        }
        self.waiting.remove(&key).map(|(_, waker)| waker)
    }

    /// Ends all waits.
    pub(super) fn close(&mut self, wakers: &mut Vec<Waker>) {
        wakers.extend(std::mem::take(&mut self.waiting).into_values().map(|(_, waker)| waker));
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
    /// The task gets capacity, which is reserved for it.
    In,
    /// The task is discarded.
    Out,
}

/// The wait of a submitter for capacity.
pub(super) struct CapacityWait<'a, K: Kind> {
    core: &'a Arc<Engine<K>>,
    weight: u32,
    key: Option<u64>,
}

impl<'a, K: Kind> CapacityWait<'a, K> {
    pub(super) fn new(core: &'a Arc<Engine<K>>, weight: u32) -> Self {
        let key = None;
        Self { core, weight, key }
    }

    pub(super) fn poll(&mut self, waker: &Waker) -> Poll<Result<Verdict, RejectReason>> {
        // The old waker comes back here, and is dropped after the lock.
        let (core, weight, key, mut waker) = (self.core, self.weight, &mut self.key, Some(waker.clone()));
        // **Deadlock**: capacity may need the slot of the very task that waits here. Checked at each poll: a caller can move the
        // future into a task.
        let is_inside = is_inside(&**core);
        core.transition(|state, _| {
            if state.phase != Phase::Running {
                return Poll::Ready(Err(RejectReason::Closed));
            }
            if key.is_none() {
                core.kind.collect(state, weight);
            }
            let polled = state.capacity.poll(key, weight, &mut waker);
            if polled.is_pending() && is_inside {
                waker = state.capacity.leave(key);
                state.capacity.overdraw(weight);
                return Poll::Ready(Ok(Verdict::In));
            }
            polled.map(|()| Ok(Verdict::In))
        })
    }
}

impl<K: Kind> Drop for CapacityWait<'_, K> {
    fn drop(&mut self) {
        if self.key.is_some() {
            let waker = self.core.transition(|state, _| state.capacity.leave(&mut self.key));
            drop(waker);
        }
    }
}

impl<K: Kind> Engine<K> {
    /// Decides on a task that found the queue full, or closed. `None`: its submitter waits for capacity.
    #[cold]
    pub(super) fn judge(self: &Arc<Self>, weight: u32) -> Result<Option<Verdict>, RejectReason> {
        let overflow = self.settings.overflow;
        loop {
            let mut evicted = None;
            let reserves = self.transition(|state, acts| {
                if let Some(allowed) = state.capacity.max_weight.filter(|allowed| weight > *allowed) {
                    return Err(RejectReason::Oversized { weight, allowed });
                }
                if state.phase != Phase::Running {
                    return Err(RejectReason::Closed);
                }
                self.kind.collect(state, weight);
                let reserves = state.capacity.reserve(weight);
                if !reserves && overflow == Overflow::DropOldest {
                    evicted = state.evict(acts);
                }
                Ok(reserves)
            })?;
            match (overflow, evicted) {
                _ if reserves => return Ok(Some(Verdict::In)),
                (Overflow::Block, _) => return Ok(None),
                (Overflow::Reject, _) => return Err(RejectReason::Full),
                (Overflow::DropNewest, _) => return Ok(Some(Verdict::Out)),
                (Overflow::DropOldest, Some(entry)) => self.discard(entry),
                // All capacity belongs to submitters that have not queued their tasks yet.
                (Overflow::DropOldest, None) => std::thread::yield_now(),
            }
        }
    }

    /// Queues or discards a task by `entry`, as decided.
    pub(super) fn carry_out<J>(
        self: &Arc<Self>,
        job: J,
        entry: impl FnOnce(J) -> Entry<K>,
        verdict: Verdict,
    ) -> Result<(), (J, RejectReason)> {
        match verdict {
            Verdict::In => self.transition(|state, acts| {
                if state.phase != Phase::Running {
                    return Err((job, RejectReason::Closed));
                }
                state.capacity.reserved -= 1;
                state.queue.push(entry(job));
                state.came(1);
                state.call(acts);
                Ok(())
            }),
            Verdict::Out => {
                let entry = entry(job);
                entry.claim();
                self.discard(entry);
                Ok(())
            }
        }
    }

    fn discard(&self, entry: Entry<K>) {
        self.look().stats.discarded += 1;
        let task = Unstarted::new(entry, true);
        match &self.on_discard {
            Some(hook) => quietly(|| hook(task)),
            None => drop_quietly(task),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polled(capacity: &mut Capacity, key: &mut Option<u64>, weight: u32) -> bool {
        capacity.poll(key, weight, &mut Some(Waker::noop().clone())).is_ready()
    }

    #[test]
    fn a_newcomer_gets_nothing_while_others_wait() {
        let mut capacity = Capacity::checked(2, None).unwrap();
        assert!(capacity.has_room(1) && !Capacity::checked(2, Some(4)).unwrap().has_room(5));
        assert_eq!((capacity.take(3, 1), capacity.free_places()), (2, 0));
        assert!(!capacity.has_room(1));
        let (mut first, mut second, mut wakers) = (None, None, Vec::new());
        assert!(!polled(&mut capacity, &mut first, 1) && !polled(&mut capacity, &mut second, 1));
        capacity.give_back(1, 1);
        assert!(!capacity.has_room(1), "others wait");
        assert_eq!((capacity.take(1, 1), capacity.free_places()), (0, 0));
        capacity.serve(&mut wakers);
        assert_eq!(wakers.len(), 1);
        assert!(!polled(&mut capacity, &mut second, 1) && polled(&mut capacity, &mut first, 1));
        assert_eq!(capacity.queued(), 1, "the first has not queued its task yet");
        assert!(capacity.leave(&mut second).is_some() && capacity.leave(&mut second).is_none());
        capacity.give_back(1, 1);
        assert_eq!(capacity.free_places(), 1);
    }

    #[test]
    fn a_submitter_that_leaves_after_it_was_served_gives_its_capacity_back() {
        let mut capacity = Capacity::checked(10, Some(5)).unwrap();
        assert_eq!((capacity.take(4, 2), capacity.free_places()), (2, 0));
        let (mut key, mut wakers) = (None, Vec::new());
        assert!(!polled(&mut capacity, &mut key, 5));
        capacity.serve(&mut wakers);
        capacity.give_back(2, 2);
        capacity.serve(&mut wakers);
        assert_eq!((wakers.len(), capacity.take(1, 1)), (1, 0));
        assert!(capacity.leave(&mut key).is_none());
        assert_eq!((capacity.take(5, 1), capacity.queued()), (5, 5));
        capacity.overdraw(3);
        assert_eq!((capacity.queued(), capacity.take(1, 1)), (5, 0));
        capacity.give_back(3, 1);
        assert_eq!(capacity.take(1, 1), 0);
        capacity.give_back(1, 1);
        assert_eq!(capacity.take(1, 1), 1);
    }
}
