//! What handles and runners of a task pool share. One lock, held for a handful of moves; futures, hooks, wakers and
//! drops come after it. The protocol is that of the worker pool without its shelves: a task that is pushed calls a
//! runner only when none looks, and a runner that finds work and leaves some behind calls the next.

use super::cell::Run;
use super::runner;
use super::unstarted::UnstartedTask;
use crate::ask::Ask;
use crate::pool::builder::Overflow;
use crate::pool::cell::{Ran, drop_quietly, wake};
use crate::pool::entry::Priority;
use crate::pool::error::TaskError;
use crate::pool::gate::Gate;
use crate::pool::lanes::{Lanes, Ranked};
use crate::pool::room::Room;
use crate::pool::runtime::Runtime;
use crate::pool::state::Phase;
use crate::pool::stats::PoolStats;
use crate::semaphore::Semaphore;
use crate::sync::shim::{Mutex, MutexGuard};
use crate::time::{Clock, Instant};
use std::sync::Arc;
use std::task::{Poll, Waker};

pub(super) struct Entry {
    pub(super) task: Arc<dyn Run>,
    pub(super) weight: u32,
    pub(super) priority: Priority,
    pub(super) deadline: Option<Instant>,
    pub(super) ask: Option<Box<Ask>>,
    /// It has started before: whoever helped it has left it.
    pub(super) started: bool,
}

impl Ranked for Entry {
    fn priority(&self) -> Priority {
        self.priority
    }
    fn is_common(&self) -> bool {
        self.priority == Priority::Normal
    }
    fn is_evictable(&self) -> bool {
        !self.started
    }
    fn is_live(&self) -> bool {
        self.started || self.task.is_queued()
    }
}

pub(super) type DiscardHook = dyn Fn(UnstartedTask) + Send + Sync;

pub(super) struct Settings {
    pub(super) clock: Clock,
    pub(super) gate: Option<Arc<dyn Gate>>,
    pub(super) overflow: Overflow,
    pub(super) on_discard: Option<Box<DiscardHook>>,
    pub(super) shared_slots: bool,
    pub(super) runtime: Runtime,
}

/// What others see of a runner.
#[derive(Default)]
pub(super) struct Bench(Mutex<Place>);

#[derive(Default)]
pub(super) struct Place {
    /// What it runs.
    pub(super) running: Option<Arc<dyn Run>>,
    /// The task for which it waits at the gate.
    pub(super) held: Option<Entry>,
    /// True when it has been called since it fell idle.
    pub(super) called: bool,
    pub(super) waker: Option<Waker>,
}

impl Bench {
    pub(super) fn lock(&self) -> MutexGuard<'_, Place> {
        self.0.lock()
    }

    fn call(&self) {
        let waker = {
            let mut place = self.0.lock();
            place.called = true;
            place.waker.take()
        };
        wake(waker);
    }
}

pub(super) struct State {
    pub(super) lanes: Lanes<Entry>,
    benches: Vec<Arc<Bench>>,
    idle: Vec<Arc<Bench>>,
    /// Runners that look for work, or have been called to.
    searching: usize,
    phase: Phase,
    unfinished: usize,
    quiet_epoch: u64,
    quiet_waiters: Vec<Waker>,
    dead: usize,
    pub(super) stats: PoolStats,
}

pub(super) struct Core {
    pub(super) id: u64,
    pub(super) state: Mutex<State>,
    pub(super) room: Room,
    pub(super) slots: Arc<Semaphore>,
    pub(super) settings: Settings,
}

/// What is to be done after the lock.
#[derive(Default)]
#[must_use]
pub(super) struct After {
    call: Option<Arc<Bench>>,
    start: Option<Arc<Bench>>,
    quiet: Vec<Waker>,
}

pub(super) enum Found {
    Entry(Entry),
    Nothing,
    Exit,
}

impl State {
    fn call_for_help(&mut self, limit: usize, after: &mut After) {
        if self.searching > 0 || self.lanes.len() == 0 {
            return;
        }
        if let Some(bench) = self.idle.pop() {
            self.searching += 1;
            after.call = Some(bench);
        } else if self.benches.len() < limit.max(1) {
            self.searching += 1;
            let bench = Arc::new(Bench::default());
            self.benches.push(Arc::clone(&bench));
            self.stats.peak_threads = self.stats.peak_threads.max(self.benches.len());
            after.start = Some(bench);
        }
    }

    fn finished(&mut self, tasks: usize, after: &mut After) {
        self.unfinished -= tasks;
        if tasks > 0 && self.unfinished == 0 {
            self.quiet_epoch += 1;
            after.quiet.append(&mut self.quiet_waiters);
        }
    }
}

impl Core {
    pub(super) fn new(id: u64, room: Room, slots: Arc<Semaphore>, settings: Settings) -> Self {
        let state = Mutex::new(State {
            lanes: Lanes::new(),
            benches: Vec::new(),
            idle: Vec::new(),
            searching: 0,
            phase: Phase::Running,
            unfinished: 0,
            quiet_epoch: 0,
            quiet_waiters: Vec::new(),
            dead: 0,
            stats: PoolStats::default(),
        });
        Self {
            id,
            state,
            room,
            slots,
            settings,
        }
    }

    fn after(self: &Arc<Self>, after: After) {
        if let Some(bench) = after.call {
            bench.call();
        }
        for waker in after.quiet {
            wake(Some(waker));
        }
        if let Some(bench) = after.start {
            // Where the runtime is gone it drops the runner, who strikes itself off.
            let _ = self.settings.runtime.spawn(runner::run(Arc::clone(self), bench));
        }
    }

    /// Queues a task for which room has been taken. False when no more are taken.
    pub(super) fn push(self: &Arc<Self>, entry: Entry) -> bool {
        let mut after = After::default();
        let mut state = self.state.lock();
        if state.phase != Phase::Running {
            drop(state);
            // The submitter has another hold on the task, and takes it back.
            drop(entry);
            return false;
        }
        state.lanes.push(entry);
        state.unfinished += 1;
        state.stats.submitted += 1;
        state.call_for_help(self.slots.limit(), &mut after);
        drop(state);
        self.after(after);
        true
    }

    /// Queues many at once, in order, under one lock. False when no more are taken.
    pub(super) fn push_all(self: &Arc<Self>, entries: Vec<Entry>) -> bool {
        let mut after = After::default();
        let mut state = self.state.lock();
        if state.phase != Phase::Running {
            drop(state);
            // As above: each has another hold.
            drop(entries);
            return false;
        }
        state.unfinished += entries.len();
        state.stats.submitted += entries.len() as u64;
        for entry in entries {
            state.lanes.push(entry);
        }
        state.call_for_help(self.slots.limit(), &mut after);
        drop(state);
        self.after(after);
        true
    }

    /// A queued task has been claimed by one that waits for it: it runs there, and counts.
    pub(super) fn guest_started(self: &Arc<Self>) {
        self.state.lock().unfinished += 1;
        self.note_dead(false);
    }

    /// A guest, that counts as unfinished, is polled no more by whoever did: a runner goes on with it.
    pub(super) fn push_started(self: &Arc<Self>, task: Arc<dyn Run>) {
        let mut after = After::default();
        let mut state = self.state.lock();
        if state.phase == Phase::Stopped || state.benches.is_empty() {
            drop(state);
            task.abort(TaskError::Abandoned);
            self.ended(Ran::Gone);
            return;
        }
        state.lanes.push_front(Entry {
            task,
            weight: 0,
            priority: Priority::High,
            deadline: None,
            ask: None,
            started: true,
        });
        state.call_for_help(self.slots.limit(), &mut after);
        drop(state);
        self.after(after);
    }

    /// Throws the oldest task of the lowest priority out.
    pub(super) fn evict(self: &Arc<Self>) -> Option<Entry> {
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
        self.room.give_back(1, u64::from(entry.weight));
        Some(entry)
    }

    /// Somebody has ended, or begun to run, a queued task without taking it out.
    pub(super) fn note_dead(self: &Arc<Self>, expired: bool) {
        let mut after = After::default();
        let mut state = self.state.lock();
        state.dead += 1;
        state.stats.expired += u64::from(expired);
        if state.dead * 2 <= state.lanes.len() && !self.room.is_short() {
            return;
        }
        state.dead = 0;
        let dead = state.lanes.purge();
        state.finished(dead.len(), &mut after);
        drop(state);
        let weight = dead.iter().map(|entry| u64::from(entry.weight)).sum();
        self.room.give_back(dead.len(), weight);
        for entry in dead {
            drop_quietly(entry);
        }
        self.after(after);
    }

    /// A task has been run by somebody who is no runner.
    pub(super) fn ran_elsewhere(&self, ran: Ran, submitted: bool) {
        let stats = &mut self.state.lock().stats;
        stats.submitted += u64::from(submitted);
        stats.finished += u64::from(ran != Ran::Gone);
        stats.panicked += u64::from(ran == Ran::Panicked);
    }

    /// Gives `me` the next task; what it has `done` is counted on the way.
    pub(super) fn take(self: &Arc<Self>, me: &Arc<Bench>, searching: &mut bool, done: Option<Ran>) -> Found {
        let mut after = After::default();
        let mut state = self.state.lock();
        if let Some(ran) = done {
            state.stats.finished += u64::from(ran != Ran::Gone);
            state.stats.panicked += u64::from(ran == Ran::Panicked);
            state.finished(1, &mut after);
        }
        if std::mem::take(searching) && !seeded!("tasks_search_for_ever") {
            state.searching -= 1;
        }
        let found = match state.lanes.pop() {
            Some(entry) => Found::Entry(entry),
            None if state.phase == Phase::Running => Found::Nothing,
            None => Found::Exit,
        };
        match found {
            Found::Entry(_) => state.call_for_help(self.slots.limit(), &mut after),
            Found::Nothing => {
                me.lock().called = false;
                state.idle.push(Arc::clone(me));
            }
            Found::Exit => {}
        }
        drop(state);
        self.after(after);
        found
    }

    /// True when a runner that waits for a slot should stop waiting.
    pub(super) fn should_exit(&self) -> bool {
        let state = self.state.lock();
        state.phase != Phase::Running && state.lanes.len() == 0
    }

    /// A runner has ended. One that the runtime has dropped, the last of all, leaves nobody for what is queued.
    pub(super) fn left(self: &Arc<Self>, me: &Arc<Bench>, searching: bool, running: bool, in_order: bool) {
        let mut after = After::default();
        let mut state = self.state.lock();
        state.searching -= usize::from(searching);
        state.benches.retain(|bench| !Arc::ptr_eq(bench, me));
        state.idle.retain(|bench| !Arc::ptr_eq(bench, me));
        state.finished(usize::from(running), &mut after);
        if state.benches.is_empty() {
            after.quiet.append(&mut state.quiet_waiters);
        }
        let forlorn = !in_order && state.benches.is_empty();
        if !forlorn {
            state.call_for_help(self.slots.limit(), &mut after);
        }
        drop(state);
        self.after(after);
        if forlorn {
            for entry in self.stop() {
                entry.task.abort(TaskError::Abandoned);
            }
        }
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
            self.state.lock().call_for_help(self.slots.limit(), &mut after);
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

    /// Takes out everything that has not started.
    pub(super) fn stop(self: &Arc<Self>) -> Vec<Entry> {
        let mut after = After::default();
        let mut state = self.state.lock();
        state.phase = Phase::Stopped;
        let mut out: Vec<_> = state
            .benches
            .iter()
            .filter_map(|bench| bench.lock().held.take())
            .collect();
        out.extend(state.lanes.drain());
        state.finished(out.len(), &mut after);
        drop(state);
        self.room.close();
        self.after(after);
        self.call_everybody();
        let (waiting, rest): (Vec<_>, Vec<_>) = out.into_iter().partition(|entry| !entry.started && entry.is_live());
        for entry in rest.into_iter().filter(|entry| entry.started) {
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

    /// True once everything that was let in has ended; with `runners`, once they have gone as well.
    pub(super) fn poll_quiet(&self, since: &mut Option<u64>, runners: bool, waker: &Waker) -> Poll<()> {
        let waker = waker.clone();
        let mut state = self.state.lock();
        let quiet = state.unfinished == 0 && (!runners || state.benches.is_empty());
        let epoch = *since.get_or_insert(state.quiet_epoch);
        if quiet || (!runners && epoch != state.quiet_epoch) {
            return Poll::Ready(());
        }
        if !state.quiet_waiters.iter().any(|known| known.will_wake(&waker)) {
            state.quiet_waiters.push(waker);
        }
        Poll::Pending
    }

    pub(super) fn stats(&self) -> PoolStats {
        let state = self.state.lock();
        PoolStats {
            threads: state.benches.len(),
            idle: state.idle.len(),
            limit: self.slots.limit(),
            queued: state.lanes.len(),
            unfinished: state.unfinished,
            ..state.stats
        }
    }
}

impl Core {
    /// A runner has ended a task, and waits before it takes the next.
    pub(super) fn ended(self: &Arc<Self>, ran: Ran) {
        let mut after = After::default();
        let mut state = self.state.lock();
        state.stats.finished += u64::from(ran != Ran::Gone);
        state.stats.panicked += u64::from(ran == Ran::Panicked);
        state.finished(1, &mut after);
        drop(state);
        self.after(after);
    }
}
