//! The desk behind its lock: what the handle, the permits and the driver share.

use super::backend::Backend;
use super::desk::Desk;
use crate::sync::wake::wake_all;
use crate::time::Clock;
use parking_lot::Mutex;

pub(super) struct Shared<B> {
    desk: Mutex<Desk>,
    pub(super) backend: B,
    pub(super) clock: Clock,
    pub(super) name: Box<str>,
}

impl<B: Backend> Shared<B> {
    pub(super) fn new(desk: Desk, backend: B, clock: Clock) -> Self {
        Self {
            name: desk.plan().key.as_str().into(),
            desk: Mutex::new(desk),
            backend,
            clock,
        }
    }

    /// Changes the desk, and wakes whom it names once it is unlocked.
    #[inline]
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Desk) -> R) -> R {
        let mut desk = self.desk.lock();
        let result = change(&mut desk);
        let wakers = desk.take_wakers();
        drop(desk);
        if !wakers.is_empty() {
            wake_all(wakers);
        }
        result
    }
}
