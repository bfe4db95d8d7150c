//! Waits for the end of a pool, or for an idle moment. A cancelled wait removes its waker, because a pool may never
//! end.

use super::idle::Wait;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// A pool that can end.
pub(super) trait Termination {
    /// Ready once all accepted tasks have ended. Until then, registers `waker`.
    fn poll_idle(self: &Arc<Self>, wait: &mut Wait, waker: &Waker) -> Poll<()>;
    /// Ready once all accepted tasks have ended and the workers have gone. Until then, registers `waker`.
    fn poll_gone(self: &Arc<Self>, wait: &mut Wait, waker: &Waker) -> Poll<()>;
    /// Cancels the wait for the end or for idleness.
    fn leave(&self, wait: &mut Wait);
}

pub(super) struct TerminationWait<'a, C: Termination> {
    core: &'a Arc<C>,
    wait: Wait,
}

impl<'a, C: Termination> TerminationWait<'a, C> {
    pub(super) fn of(core: &'a Arc<C>) -> Self {
        let wait = Wait::default();
        Self { core, wait }
    }

    /// Ready once all accepted tasks have ended.
    pub(super) fn poll_idle(&mut self, waker: &Waker) -> Poll<()> {
        self.core.poll_idle(&mut self.wait, waker)
    }

    /// Ready once the workers have gone as well.
    pub(super) fn poll(&mut self, waker: &Waker) -> Poll<()> {
        self.core.poll_gone(&mut self.wait, waker)
    }
}

impl<C: Termination> Drop for TerminationWait<'_, C> {
    fn drop(&mut self) {
        self.core.leave(&mut self.wait);
    }
}
