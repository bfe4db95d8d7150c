//! How workers look for work, fall asleep, and leave.

use super::core::Core;
use super::entry::Entry;
use super::state::{Found, Phase, State, Told};
use super::worker::Bench;
use std::sync::Arc;

/// How many tasks a worker takes at once, at most, when all workers have plenty to do.
const BATCH: usize = 16;

impl<'j> Core<'j> {
    /// Gives `me` the next task. `done` tasks of its own are settled on the way.
    pub(super) fn take(self: &Arc<Self>, me: &Arc<Bench<'j>>, searching: &mut bool, done: &mut Told<'j>) -> Found<'j> {
        self.pay(me);
        let mut state = self.lock();
        done.tell(&mut state);
        me.note_untold(0);
        if std::mem::take(searching) {
            state.searching -= 1;
        }
        let found = if self.is_surplus(&state) {
            Found::Exit
        } else {
            self.find(&mut state, me)
        };
        state.leaving += usize::from(matches!(found, Found::Exit));
        if !matches!(found, Found::Nothing) {
            state.call_for_help();
        } else if state.searching == 0 {
            state.searching = 1;
            *searching = true;
        }
        found
    }

    pub(super) fn is_surplus(&self, state: &State<'j>) -> bool {
        state.phase == Phase::Stopped || state.staying() > state.most
    }

    pub(super) fn find(&self, state: &mut State<'j>, me: &Bench<'j>) -> Found<'j> {
        if state.taken >= state.shelves_due {
            state.clear_shelves();
        }
        if let Some(entry) = state.lanes.pop() {
            state.taken += 1;
            if self.settings.gate.is_some() {
                // Under this lock: whoever ends the pool finds it.
                *me.held.lock() = Some(entry);
                return Found::Held;
            }
            if state.staying() >= state.most
                && state.sleepers.is_empty()
                && state.lanes.is_uniform()
                && self.settings.gate.is_none()
            {
                let share = (state.lanes.len() / (2 * state.staying().max(1))).min(BATCH - 1);
                if share > 0 {
                    state.load(me, share);
                }
            }
            return Found::Entry(entry);
        }
        let stolen = state.benches.iter().find_map(|bench| bench.shelf.lock().take());
        match stolen {
            Some(entry) => Found::Entry(entry),
            None if state.phase == Phase::Draining => Found::Exit,
            None => Found::Nothing,
        }
    }

    /// Puts what `me` has not started back in front of the queue, and gives back the places that it owes.
    pub(super) fn unshelve(self: &Arc<Self>, me: &Bench<'j>) {
        let mut state = self.lock();
        me.shelf.lock().put_back(&mut state.lanes);
        drop(state);
        self.pay(me);
    }

    /// Gives back the places that `me` owes.
    pub(super) fn pay(&self, me: &Bench<'j>) {
        let owed = me.shelf.lock().owed();
        self.room.give_back(owed, 0);
    }

    /// The same with the task that `me` was about to start. It comes back when the pool has been stopped meanwhile:
    /// nobody would find it in the queue, so it counts as started.
    #[cold]
    pub(super) fn put_back(self: &Arc<Self>, me: &Bench<'j>, entry: Entry<'j>) -> Option<Entry<'j>> {
        let mut state = self.lock();
        if state.phase == Phase::Stopped {
            return Some(entry);
        }
        me.shelf.lock().put_back(&mut state.lanes);
        state.lanes.push_front(entry);
        None
    }

    /// The same with the task that `me` holds at the gate, if it still does.
    pub(super) fn put_back_held(self: &Arc<Self>, me: &Bench<'j>) {
        let mut state = self.lock();
        let held = me.held.lock().take();
        if let Some(entry) = held {
            state.lanes.push_front(entry);
        }
    }

    /// Lets `me` fall asleep, unless there is something to do.
    pub(super) fn fall_asleep(self: &Arc<Self>, me: &Arc<Bench<'j>>, searching: &mut bool) -> bool {
        let mut state = self.lock();
        // The last look at the queue is under the lock under which this worker is put to sleep.
        let queued = state.lanes.len() > 0 && !seeded!("pool_sleeps_blindly");
        if queued || state.phase != Phase::Running || self.is_surplus(&state) || !state.shelves_are_empty() {
            return false;
        }
        if std::mem::take(searching) && !seeded!("pool_searches_asleep") {
            state.searching -= 1;
        }
        me.sleep();
        state.sleepers.push(Arc::clone(me));
        true
    }

    /// `me` has slept for as long as it is kept: true when it may leave, false when it has been called or is needed.
    pub(super) fn may_leave(self: &Arc<Self>, me: &Arc<Bench<'j>>) -> bool {
        let mut state = self.lock();
        let Some(at) = state.sleepers.iter().position(|bench| Arc::ptr_eq(bench, me)) else {
            return false;
        };
        if state.staying() <= state.least {
            return false;
        }
        state.sleepers.remove(at);
        state.leaving += 1;
        true
    }

    /// True when a worker that waits for a slot is to leave instead.
    pub(super) fn should_exit(self: &Arc<Self>) -> bool {
        let mut state = self.lock();
        let may_go = state.phase == Phase::Draining;
        let exits = self.is_surplus(&state) || (may_go && state.lanes.len() == 0 && state.shelves_are_empty());
        state.leaving += usize::from(exits);
        exits
    }

    /// The slots have been closed: nothing more starts, and a worker leaves.
    pub(super) fn slots_closed(self: &Arc<Self>) {
        for entry in self.stop() {
            entry.refuse_aside(super::TaskError::Abandoned);
        }
        self.lock().leaving += 1;
    }

    /// A worker has ended.
    pub(super) fn left(self: &Arc<Self>, me: &Arc<Bench<'j>>, searching: bool, done: &mut Told<'j>) {
        self.unshelve(me);
        let mut state = self.lock();
        done.tell(&mut state);
        me.note_untold(0);
        state.leaving -= 1;
        state.strike_off(me, searching);
        state.call_for_help();
    }

    /// A worker was not started. With nobody else there, whatever is queued could wait for ever: it is abandoned.
    pub(super) fn never_started(self: &Arc<Self>, me: &Arc<Bench<'j>>) {
        let mut state = self.lock();
        state.strike_off(me, me.starts_searching);
        // Whoever fell asleep meanwhile left what came to the one that was to be started.
        if !state.sleepers.is_empty() {
            state.call_for_help();
        }
        let forlorn = state.alive == 0 && state.lanes.len() > 0;
        drop(state);
        if forlorn {
            for entry in self.stop() {
                entry.refuse_aside(super::TaskError::Abandoned);
            }
        }
    }

    /// Ends a task that is too late. False when it had been claimed elsewhere.
    #[cold]
    pub(super) fn expire(&self, entry: Entry<'j>) -> bool {
        entry.refuse(super::TaskError::Expired)
    }
}
