//! A wait for the end of a pool and of those below it. It waits in one of them at a time, and goes on to the next when that
//! one has ended. Given up, it leaves nothing behind: a pool may never end.

use super::hooks::drop_quietly;
use super::quiet::Wait;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker, ready};

/// A pool with others below it.
pub(super) trait Family: Sized {
    fn below(&self) -> Vec<Arc<Self>>;
    /// True once everything that was let in has ended, and the workers have gone; not asking the pools below. Leaves
    /// `waker` otherwise.
    fn poll_gone(self: &Arc<Self>, wait: &mut Wait, waker: &Waker) -> Poll<()>;
    /// Waits no more, for that or for idleness.
    fn leave(&self, wait: &mut Wait);
}

pub(super) struct EndWait<'a, C: Family> {
    core: &'a Arc<C>,
    /// Where it waits. Weak: one that nobody else has any more has ended.
    at: Weak<C>,
    wait: Wait,
}

impl<'a, C: Family> EndWait<'a, C> {
    pub(super) fn of(core: &'a Arc<C>) -> Self {
        Self {
            core,
            at: Weak::new(),
            wait: Wait::default(),
        }
    }

    /// True once everything that was let in has ended, here and in the pools below, and the workers have gone.
    pub(super) fn poll(&mut self, waker: &Waker) -> Poll<()> {
        self.poll_in(self.core, waker)
    }

    fn poll_in(&mut self, core: &Arc<C>, waker: &Waker) -> Poll<()> {
        for child in core.below() {
            ready!(self.poll_in(&child, waker));
        }
        if Weak::as_ptr(&self.at) == Arc::as_ptr(core) {
            return core.poll_gone(&mut self.wait, waker);
        }
        let mut wait = Wait::default();
        if core.poll_gone(&mut wait, waker).is_ready() {
            return Poll::Ready(());
        }
        self.leave();
        (self.at, self.wait) = (Arc::downgrade(core), wait);
        Poll::Pending
    }

    fn leave(&mut self) {
        if let Some(core) = self.at.upgrade()
            && !seeded!("pool_waits_for_the_end_for_ever")
        {
            core.leave(&mut self.wait);
            // It may be the last to have it.
            drop_quietly(core);
        }
    }
}

impl<C: Family> Drop for EndWait<'_, C> {
    fn drop(&mut self) {
        self.leave();
    }
}
