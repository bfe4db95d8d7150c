//! How tasks come into the queue of a task pool, and leave it without a runner.

use super::cell::Run;
use super::core::{After, Core, State};
use super::entry::{Entry, UnstartedTask};
use crate::pool::cell::Ran;
use crate::pool::error::TaskError;
use crate::pool::gate::Admitted;
use crate::pool::hooks::{self, drop_quietly};
use crate::pool::intake::Counted;
use crate::pool::lanes::Ranked;
use crate::pool::overflow::{Crowded, Overflow};
use crate::pool::room::Room;
use crate::pool::state::Phase;
use crate::sync::shim::MutexGuard;
use std::sync::Arc;

impl Core {
    /// Queues tasks for which room has been taken, in order, under one lock. False when no more are taken. Whoever
    /// submits them has another hold on each, and takes them back.
    pub(super) fn push(self: &Arc<Self>, entries: impl ExactSizeIterator<Item = Entry>) -> bool {
        let mut after = After::default();
        let mut state = self.state.lock();
        if state.phase != Phase::Running {
            return false;
        }
        state.quiet.begun(entries.len());
        state.stats.submitted += entries.len() as u64;
        for entry in entries {
            state.lanes.push(entry);
        }
        state.call_for_help(self.limit(), &mut after);
        drop(state);
        self.after(after);
        true
    }

    /// A task that waits for one in the queue takes that in: it runs there, and counts. False when somebody else has it, be it
    /// the owner of a report. What it was `admitted` by is with the task then.
    pub(super) fn let_guest_in(self: &Arc<Self>, task: &dyn Run, admitted: &mut Admitted) -> bool {
        {
            let mut state = self.state.lock();
            let stopped = state.phase == Phase::Stopped && !seeded!("tasks_run_what_is_listed");
            // Under this lock: what is claimed here is not listed, and what is seen to be claimed has been counted.
            if stopped || !(task.claim(admitted) || task.claim_left()) {
                return false;
            }
            state.quiet.begun(1);
        }
        self.note_dead(&Counted::Started);
        true
    }

    /// A guest, that counts as unfinished, is polled no more by whoever did: a runner goes on with it, or whoever waits.
    pub(super) fn push_left(self: &Arc<Self>, task: &Arc<dyn Run>) {
        task.leave();
        let mut after = After::default();
        let mut state = self.state.lock();
        if state.phase == Phase::Stopped || state.benches.is_empty() {
            drop(state);
            task.abort(TaskError::Abandoned);
            self.ended(Ran::Gone);
            return;
        }
        state.lanes.push_front(Entry::left(Arc::clone(task)));
        state.call_for_help(self.limit(), &mut after);
        drop(state);
        self.after(after);
    }

    /// Somebody has ended, or begun to run, a queued task without taking it out. One that a runner holds at the gate is let
    /// go at once; others are taken out when such are in the majority, or room is short.
    pub(super) fn note_dead(self: &Arc<Self>, counted: &Counted) {
        let mut state = self.state.lock();
        state.dead += 1;
        counted.count(&mut state.stats);
        let many = state.dead * 2 > state.lanes.len() || self.room.is_short() && self.room.is_helped_by(state.dead);
        self.bury(state, many);
    }

    /// For whoever finds no room: what is known to be dead is taken out.
    pub(super) fn sweep(self: &Arc<Self>) {
        let state = self.state.lock();
        let any = self.room.is_helped_by(state.dead) && !seeded!("tasks_full_of_dead");
        self.bury(state, any);
    }

    /// Takes out what is dead at the gate; and all the rest, if wanted.
    fn bury(self: &Arc<Self>, mut state: MutexGuard<'_, State>, all: bool) {
        let mut after = After::default();
        let (mut dead, mut at_gate) = (Vec::new(), Vec::new());
        if self.settings.gate.is_some() && !seeded!("tasks_hold_dead_at_the_gate") {
            for bench in &state.benches {
                if let Some(entry) = bench.lock().held.take_if(|entry| !entry.is_live()) {
                    dead.push(entry);
                    at_gate.push(Arc::clone(bench));
                }
            }
        }
        if all {
            state.dead = 0;
            dead.extend(state.lanes.purge());
        }
        state.finished(dead.len(), &mut after);
        drop(state);
        let weight = dead.iter().map(|entry| u64::from(entry.weight())).sum();
        // Those that had been left take no room.
        let places = dead.iter().filter(|entry| entry.is_waiting()).count();
        self.room.give_back(places, weight);
        for bench in at_gate {
            bench.call();
        }
        for entry in dead {
            drop_quietly(entry);
        }
        self.after(after);
    }
}

impl Crowded for Arc<Core> {
    type Entry = Entry;

    fn room(&self) -> &Room {
        &self.room
    }

    fn overflow(&self) -> Overflow {
        self.settings.overflow
    }

    fn evict(&self) -> Option<Entry> {
        let mut after = After::default();
        let mut state = self.state.lock();
        let mut waiting = None;
        let entry = state.lanes.evict().or_else(|| {
            state.benches.iter().find_map(|bench| {
                let held = bench.lock().held.take();
                waiting = held.is_some().then(|| Arc::clone(bench));
                held
            })
        })?;
        state.finished(1, &mut after);
        drop(state);
        if let Some(bench) = waiting {
            bench.call();
        }
        self.after(after);
        self.room.give_back(1, u64::from(entry.weight()));
        Some(entry)
    }

    fn discard(&self, entry: Entry) {
        if !entry.task.set_aside() {
            return drop_quietly(entry);
        }
        self.state.lock().stats.discarded += 1;
        let task = UnstartedTask::new(entry, true, self.kin);
        hooks::discard(self.settings.on_discard.as_deref(), task);
    }
}
