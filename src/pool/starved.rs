//! A pool that has work and could have one more worker, but for a slot: it is called when one is free.
//!
//! It stands in no line for it: a slot that nobody would use at once is not kept from others. It watches, and whoever gives
//! a slot back, or raises the limit, calls. The watch ends with that, and with the pool.

use super::core::Core;
use super::hooks::drop_quietly;
use super::state::State;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

impl<'j> Core<'j> {
    /// True when a worker that is started now would find a slot. Otherwise the pool grows when there is one.
    pub(super) fn has_free_slot(&self, state: &mut State<'j>) -> bool {
        if self.settings.slots.available_permits() > 0 {
            return true;
        }
        // A pool whose tasks borrow has no such waker: there, submissions and workers try again.
        match self.slots_waker.get() {
            Some(waker) => !state.slot_watch.keep(|| waker.clone()),
            None => false,
        }
    }
}

/// What slots wake.
pub(super) struct SlotIsFree(Weak<Core<'static>>);

impl SlotIsFree {
    pub(super) fn waker(core: &Arc<Core<'static>>) -> Waker {
        Waker::from(Arc::new(Self(Arc::downgrade(core))))
    }
}

impl Wake for SlotIsFree {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(core) = self.0.upgrade()
            && !seeded!("pool_misses_a_slot")
        {
            core.grow();
            // It may be the last to have it, and whoever gives a slot back has nothing to do with what a pool holds.
            drop_quietly(core);
        }
    }
}

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use crate::pool::{PoolBuilder, WorkerPool};
    use crate::semaphore::Semaphore;
    use std::sync::Arc;
    use std::task::{Context, Waker};
    use std::thread;

    fn elastic(slots: &Arc<Semaphore>) -> PoolBuilder {
        WorkerPool::builder().workers(1..=2).slots(Arc::clone(slots))
    }

    /// Leaves a worker in the line for a slot, and a task for which one more would be started.
    fn starve(pool: &WorkerPool, slots: &Semaphore) {
        let tasks = [(); 3].map(|()| pool.submit(|| ()).unwrap());
        while !slots.is_watched() {
            // Whoever submits tries again.
            pool.core().call();
            thread::yield_now();
        }
        drop(tasks);
    }

    /// Given slots of which none is ever free, when pools come and are stopped, then nobody watches for one any more.
    #[test]
    fn a_pool_that_is_stopped_does_not_watch_for_a_slot() {
        let slots = Arc::new(Semaphore::new(0));
        for _ in 0..20 {
            let pool = elastic(&slots).build().unwrap();
            starve(&pool, &slots);
            assert_eq!(pool.abort().unstarted.len(), 3);
            assert!(!slots.is_watched());
        }
    }

    /// Given slots for which others always stand in line, when pools come, do what they have, and are dropped, then nobody
    /// watches for a slot any more, and the slots are nobody else's.
    #[test]
    fn a_pool_that_is_dropped_does_not_watch_for_a_slot() {
        for _ in 0..20 {
            let mut slots = Arc::new(Semaphore::new(1));
            let mut held = Some(slots.try_acquire().unwrap());
            let pool = elastic(&slots).build().unwrap();
            starve(&pool, &slots);
            let core = Arc::downgrade(pool.core());
            drop(pool);
            // The permit goes from hand to hand, and is never free.
            while core.strong_count() > 0 {
                let mut next = Box::pin(slots.acquire());
                assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                drop(held.take());
                while held.is_none() {
                    if let std::task::Poll::Ready(permit) = next.as_mut().poll(&mut Context::from_waker(Waker::noop()))
                    {
                        held = Some(permit.unwrap());
                    }
                    thread::yield_now();
                }
            }
            held.unwrap().forget();
            while Arc::get_mut(&mut slots).is_none() {
                thread::yield_now();
            }
            assert!(!slots.is_watched());
        }
    }
}
