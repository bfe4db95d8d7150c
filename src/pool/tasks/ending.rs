//! How a task pool is resized, closed, emptied, and waited for; and how its runners go.

use super::core::{After, Bench, Core};
use super::entry::Entry;
use super::polled::is_inside;
use crate::pool::end_wait::Ends;
use crate::pool::error::TaskError;
use crate::pool::lanes::Ranked;
use crate::pool::quiet::Wait;
use crate::pool::state::Phase;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// A wait for idleness. Dropped, it leaves nothing behind.
pub(super) struct IdleWait<'a> {
    core: &'a Core,
    wait: Wait,
}

impl<'a> IdleWait<'a> {
    pub(super) fn of(core: &'a Core) -> Self {
        let wait = Wait::default();
        Self { core, wait }
    }

    /// True once everything that was let in has ended.
    pub(super) fn poll(&mut self, waker: &Waker) -> Poll<()> {
        // What comes back is dropped after the lock.
        let mut waker = Some(waker.clone());
        self.core.state.lock().quiet.poll_idle(&mut self.wait, &mut waker)
    }
}

impl Drop for IdleWait<'_> {
    fn drop(&mut self) {
        if !seeded!("tasks_wait_idly_for_ever") {
            self.core.leave(&mut self.wait);
        }
    }
}

impl Core {
    /// True when a runner that waits for a slot should stop waiting.
    pub(super) fn should_exit(&self) -> bool {
        let state = self.state.lock();
        state.phase != Phase::Running && state.lanes.len() == 0
    }

    /// A runner has ended. One that was dropped, the last of all, leaves nobody for what is queued.
    pub(super) fn left(self: &Arc<Self>, me: &Arc<Bench>, searching: bool, running: bool, in_order: bool) {
        let mut after = After::default();
        let mut state = self.state.lock();
        state.searching -= usize::from(searching);
        state.benches.retain(|bench| !Arc::ptr_eq(bench, me));
        state.idle.retain(|bench| !Arc::ptr_eq(bench, me));
        state.finished(usize::from(running), &mut after);
        if state.benches.is_empty() {
            state.quiet.tell(&mut after.quiet);
        }
        let forlorn = !in_order && state.benches.is_empty();
        if state.lanes.len() == 0 {
            state.limit_watch.end(&self.settings.slots);
        }
        // One that was dropped is not replaced: its runtime is gone, and drops the next as well.
        if in_order {
            state.call_for_help(self.limit(), &mut after);
        }
        drop(state);
        self.after(after);
        if forlorn {
            for entry in self.stop() {
                entry.task.abort(TaskError::Abandoned);
            }
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state.lock().phase == Phase::Stopped
    }

    fn call_everybody(&self) {
        let benches = {
            let mut state = self.state.lock();
            state.searching += state.idle.len();
            state.idle.clear();
            state.benches.clone()
        };
        for bench in benches {
            bench.call();
        }
    }

    pub(super) fn resized(self: &Arc<Self>) {
        let mut after = After::default();
        if !seeded!("tasks_quiet_resize") {
            self.state.lock().call_for_help(self.limit(), &mut after);
        }
        self.after(after);
    }

    pub(super) fn close(&self) {
        {
            let mut state = self.state.lock();
            state.phase = state.phase.max(Phase::Draining);
        }
        self.room.close();
        if !seeded!("tasks_quiet_close") {
            self.call_everybody();
        }
    }

    /// Takes out everything that has not started, and starts nothing more.
    pub(super) fn stop(self: &Arc<Self>) -> Vec<Entry> {
        let mut after = After::default();
        let (waiting, rest): (Vec<_>, Vec<_>) = {
            let mut state = self.state.lock();
            state.phase = Phase::Stopped;
            let held = state.benches.iter().filter_map(|bench| bench.lock().held.take());
            let mut out: Vec<_> = held.collect();
            out.extend(state.lanes.drain());
            state.finished(out.len(), &mut after);
            let mine = |entry: &Entry| match seeded!("tasks_run_what_is_listed") {
                true => entry.is_live(),
                false => entry.task.set_aside(),
            };
            // Under this lock: who runs it elsewhere has been counted.
            out.into_iter().partition(|entry| entry.is_waiting() && mine(entry))
        };
        self.room.close();
        self.after(after);
        self.call_everybody();
        // What somebody else runs by now is not this queue's.
        for entry in rest.into_iter().filter(|entry| !entry.is_waiting() && entry.is_live()) {
            entry.task.abort(TaskError::Abandoned);
        }
        waiting
    }

    /// Drops the futures that run.
    pub(super) fn abort_running(&self) {
        let benches = self.state.lock().benches.clone();
        for bench in benches {
            let running = bench.lock().running.clone();
            if let Some(task) = running {
                task.abort(TaskError::Abandoned);
            }
        }
    }

    /// True in a task that would wait for itself, were it to wait for this pool.
    pub(super) fn is_mine(&self) -> bool {
        is_inside(self.kin)
    }
}

impl Ends for Core {
    fn poll_gone(self: &Arc<Self>, wait: &mut Wait, waker: &Waker) -> Poll<()> {
        // What comes back is dropped after the lock.
        let mut waker = Some(waker.clone());
        let mut state = self.state.lock();
        let gone = state.benches.is_empty();
        state.quiet.poll_gone(wait, gone, &mut waker)
    }

    fn leave(&self, wait: &mut Wait) {
        let waker = self.state.lock().quiet.leave(wait);
        drop(waker);
    }
}
