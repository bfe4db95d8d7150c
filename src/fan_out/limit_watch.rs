//! Runners are started as tasks come and go. When all that there may be are busy for long, nobody does either: then whoever
//! raises the limit of the slots calls.

use crate::semaphore::Semaphore;
use crate::sync::watchers::Rest;
use std::task::Waker;

/// A watch that is kept while there is more to do than the limit allows. Plain data, for its owner's lock.
#[derive(Default)]
pub(super) struct LimitWatch {
    number: Option<u64>,
    above: usize,
}

impl LimitWatch {
    /// Has the waker be woken when the limit is above this, instead of what was asked for before. False, and it is not, when
    /// the limit is above now. `waker` only makes one.
    pub(super) fn keep(&mut self, slots: &Semaphore, above: usize, waker: impl FnOnce() -> Waker) -> bool {
        if self.number.is_some() && self.above == above {
            return true;
        }
        self.end(slots);
        self.above = above;
        slots.watch(&mut self.number, Rest::Above(above), waker)
    }

    /// Nobody is woken any more: for who has been, or needs it no longer.
    pub(super) fn end(&mut self, slots: &Semaphore) {
        slots.watch_no_more(&mut self.number);
    }
}
