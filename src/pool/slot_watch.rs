//! A watch for a slot that is free, which ends with whoever keeps it: slots that are shared outlive the pool, and while
//! somebody watches every permit comes and goes by their lock.

use crate::semaphore::Semaphore;
use crate::sync::watchers::Rest;
use std::sync::Arc;
use std::task::Waker;

/// Plain data, for its owner's lock.
pub(super) struct SlotWatch {
    slots: Arc<Semaphore>,
    number: Option<u64>,
}

impl SlotWatch {
    pub(super) fn of(slots: &Arc<Semaphore>) -> Self {
        let slots = Arc::clone(slots);
        Self { slots, number: None }
    }

    /// Has the waker be woken when a slot is free. False, and it is not, when one is free now. `waker` only makes one.
    pub(super) fn keep(&mut self, waker: impl FnOnce() -> Waker) -> bool {
        self.slots.watch(&mut self.number, Rest::Free, waker)
    }

    /// Nobody is woken any more.
    pub(super) fn end(&mut self) {
        self.slots.watch_no_more(&mut self.number);
    }
}

impl Drop for SlotWatch {
    fn drop(&mut self) {
        self.end();
    }
}
