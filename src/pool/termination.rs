//! Waits for the end of a pool, or for an idle moment. A cancelled wait removes its waker, because a pool may never
//! end.

use super::engine::scheduler::{Engine, Kind};
use super::engine::waits::is_inside;
use super::idle::Wait;
use std::sync::Arc;
use std::task::{Poll, Waker};

pub(super) struct TerminationWait<'a, K: Kind> {
    core: &'a Arc<Engine<K>>,
    wait: Wait,
}

impl<'a, K: Kind> TerminationWait<'a, K> {
    /// Returns `None` in a task of the pool, which would wait for itself.
    pub(super) fn of(core: &'a Arc<Engine<K>>) -> Option<Self> {
        let wait = Wait::default();
        (!is_inside(&**core)).then_some(Self { core, wait })
    }

    /// Ready once all accepted tasks have ended. Until then, registers `waker`.
    pub(super) fn poll_idle(&mut self, waker: &Waker) -> Poll<()> {
        // The old waker comes back here, and is dropped after the lock.
        let mut waker = Some(waker.clone());
        let wait = &mut self.wait;
        self.core
            .transition(|state, _| state.idleness.poll_idle(wait, &mut waker))
    }

    /// Ready once the workers have gone as well. Until then, registers `waker`.
    pub(super) fn poll(&mut self, waker: &Waker) -> Poll<()> {
        // As in `poll_idle`.
        let mut waker = Some(waker.clone());
        let wait = &mut self.wait;
        self.core.transition(|state, _| {
            let gone = !state.has_workers();
            state.idleness.poll_gone(wait, gone, &mut waker)
        })
    }
}

impl<K: Kind> Drop for TerminationWait<'_, K> {
    fn drop(&mut self) {
        let waker = self.core.look().idleness.leave(&mut self.wait);
        drop(waker);
    }
}
