//! A wait for idleness. Given up, it leaves nothing behind.

use super::core::Core;
use crate::pool::end_wait::Ends;
use crate::pool::quiet::Wait;
use std::task::{Poll, Waker};

pub(super) struct IdleWait<'a> {
    core: &'a Core,
    wait: Wait,
}

impl<'a> IdleWait<'a> {
    pub(super) fn of(core: &'a Core) -> Self {
        let wait = Wait::default();
        Self { core, wait }
    }

    /// Ready once everything that was let in has ended.
    pub(super) fn poll(&mut self, waker: &Waker) -> Poll<()> {
        self.core.poll_idle(&mut self.wait, waker)
    }
}

impl Drop for IdleWait<'_> {
    fn drop(&mut self) {
        if !seeded!("tasks_wait_idly_for_ever") {
            self.core.leave(&mut self.wait);
        }
    }
}
