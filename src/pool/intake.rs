//! How tasks come into a pool's queue, and leave it without a worker.

use super::cell::Ran;
use super::core::Core;
use super::entry::{Entry, Left};
use super::room::Pressing;
use super::state::{Phase, Told};
use std::sync::Arc;

impl<'j> Core<'j> {
    /// Queues a task for which room has been taken. Hands it back when no more are taken. `into` only converts.
    #[inline]
    pub(super) fn push<J>(self: &Arc<Self>, job: J, into: impl FnOnce(J) -> Entry<'j>) -> Result<(), J> {
        let put = self.inbox.put(job, into)?;
        if put.calls {
            self.call();
        }
        drop(put.spent);
        Ok(())
    }

    /// Queues the first `n` of `jobs` at once, in order. False, and nothing is taken, when no more are. `into` only
    /// converts; `buffer` is empty, before and after.
    pub(super) fn push_all<J>(
        self: &Arc<Self>,
        jobs: &mut Vec<J>,
        n: usize,
        into: impl Fn(J) -> Entry<'j>,
        buffer: &mut Vec<Left<'j>>,
    ) -> bool {
        let Some(put) = self.inbox.put_all(jobs, n, into, buffer) else {
            return false;
        };
        if put.calls {
            self.call();
        }
        buffer.clear();
        true
    }

    /// For whoever finds no room, or waits for it: workers give back what they owe, and owe nothing meanwhile.
    pub(super) fn press(&self) -> Pressing<'_> {
        let pressing = self.room.press();
        let owed = {
            let state = self.state.lock();
            state.benches.iter().map(|bench| bench.shelf.lock().owed()).sum()
        };
        self.room.give_back(owed, 0);
        pressing
    }

    /// A submitter has run its task itself.
    pub(super) fn ran_by_caller(self: &Arc<Self>, ran: Ran) {
        let stats = &mut self.lock().stats;
        stats.submitted += 1;
        stats.finished += 1;
        stats.panicked += u64::from(ran == Ran::Panicked);
    }

    /// Queues an errand of the pool itself, also while it drains. False when nothing more starts.
    pub(super) fn push_errand(self: &Arc<Self>, job: Box<dyn FnOnce() + Send + 'j>) -> bool {
        let mut state = self.lock();
        if state.phase == Phase::Stopped {
            drop(state);
            return false;
        }
        state.lanes.push(Entry::errand(job));
        state.quiet.begun(1);
        state.call_for_help();
        true
    }

    /// Throws the oldest task of the lowest priority out.
    pub(super) fn evict(self: &Arc<Self>) -> Option<Entry<'j>> {
        let mut state = self.lock();
        let mut at_gate = None;
        let entry = state.lanes.evict().or_else(|| {
            let mut benches = state.benches.iter();
            benches.find_map(|bench| {
                let held = bench.held.lock().take();
                at_gate = held.is_some().then(|| Arc::clone(bench));
                held.or_else(|| bench.shelf.lock().take())
            })
        })?;
        state.finished(1);
        drop(state);
        // Its worker need not wait for the admission any longer.
        if let Some(bench) = at_gate {
            bench.unpark();
        }
        self.room.give_back(1, u64::from(entry.weight()));
        Some(entry)
    }

    /// A queued task has been claimed by somebody who is no worker of this pool: it runs there, and counts.
    pub(super) fn guest_started(self: &Arc<Self>) {
        self.lock().quiet.begun(1);
        self.note_dead(false);
    }

    pub(super) fn guest_ended(self: &Arc<Self>, ran: Ran) {
        let mut told = Told::default();
        told.count(ran);
        told.tell(&mut self.lock());
    }

    /// Somebody has ended a queued task without taking it out: it is taken out when such are in the majority, or room
    /// is short.
    pub(super) fn note_dead(self: &Arc<Self>, expired: bool) {
        let dead = {
            let mut state = self.lock();
            state.dead += 1;
            state.stats.expired += u64::from(expired);
            if state.dead * 2 <= state.lanes.len() && !self.room.is_short() {
                return;
            }
            state.dead = 0;
            let dead = state.lanes.purge();
            state.finished(dead.len());
            dead
        };
        self.room
            .give_back(dead.len(), dead.iter().map(|entry| u64::from(entry.weight())).sum());
        for entry in dead {
            entry.refuse(super::TaskError::Cancelled);
        }
    }
}
