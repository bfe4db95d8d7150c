//! How a pool is closed, emptied, and waited for.

use super::core::Core;
use super::end_wait::Ends;
use super::entry::Entry;
use super::lanes::Ranked;
use super::locked::Locked;
use super::quiet::Wait;
use super::state::Phase;
use std::sync::Arc;
use std::task::{Poll, Waker};

impl<'j> Core<'j> {
    /// The lock, and no more tasks are taken from now on.
    fn lock_for_good(self: &Arc<Self>) -> Locked<'_, 'j> {
        // Before those that have been taken are entered.
        if !seeded!("pool_leaves_the_inbox_open") {
            self.inbox.lock().close();
        }
        self.lock()
    }

    /// Takes no more tasks; what is queued still runs.
    pub(super) fn close(self: &Arc<Self>) {
        {
            let mut state = self.lock_for_good();
            state.phase = state.phase.max(Phase::Draining);
        }
        self.room.close();
        if !seeded!("pool_quiet_close") {
            self.call_everybody();
        }
    }

    /// Takes out everything that has not started, and starts nothing more.
    pub(super) fn stop(self: &Arc<Self>) -> Vec<Entry<'j>> {
        let (unstarted, rest): (Vec<_>, Vec<_>) = {
            let mut state = self.lock_for_good();
            state.phase = Phase::Stopped;
            let mut out = Vec::new();
            for bench in &state.benches {
                out.extend(bench.held.lock().take());
                out.extend(bench.shelf.lock().drain());
            }
            out.extend(state.lanes.drain());
            state.finished(out.len());
            // Tasks that were cancelled or run elsewhere are not handed back. What is has not started and
            // does not, but where the owner of the report says so. Under this lock: who runs it elsewhere has been counted.
            let mine = |entry: &Entry<'j>| match seeded!("pool_runs_what_is_listed") {
                true => entry.is_live(),
                false => entry.set_aside(),
            };
            out.into_iter().partition(mine)
        };
        self.room.close();
        self.call_everybody();
        for entry in rest {
            entry.refuse(super::TaskError::Abandoned);
        }
        unstarted
    }

    /// True once everything that was let in has ended. Leaves `waker` otherwise.
    pub(super) fn poll_idle(self: &Arc<Self>, wait: &mut Wait, waker: &Waker) -> Poll<()> {
        // What comes back is dropped after the lock.
        let mut waker = Some(waker.clone());
        self.lock().quiet.poll_idle(wait, &mut waker)
    }
}

impl Ends for Core<'_> {
    fn poll_gone(self: &Arc<Self>, wait: &mut Wait, waker: &Waker) -> Poll<()> {
        // What comes back is dropped after the lock.
        let mut waker = Some(waker.clone());
        let mut state = self.lock();
        let gone = state.alive == 0;
        state.quiet.poll_gone(wait, gone, &mut waker)
    }

    fn leave(&self, wait: &mut Wait) {
        let waker = self.state.lock().quiet.leave(wait);
        drop(waker);
    }
}
