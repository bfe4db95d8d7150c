//! What handles and runners of a task pool share. One lock, held for a handful of moves; futures, hooks, wakers and
//! drops come after it. The protocol is that of the worker pool without its shelves: a task that is pushed calls a
//! runner only when none looks, and a runner that finds work and leaves some behind calls the next.

use super::cell::{Here, Run};
use super::entry::{Entry, UnstartedTask};
use super::runner;
use crate::pool::cell::Ran;
use crate::pool::gate::Gate;
use crate::pool::hooks::{self, PanicHook, Payload, drop_quietly, wake};
use crate::pool::kin::Kin;
use crate::pool::lanes::Lanes;
use crate::pool::limit_watch::LimitWatch;
use crate::pool::overflow::Overflow;
use crate::pool::quiet::Quiet;
use crate::pool::room::Room;
use crate::pool::runtime::Runtime;
use crate::pool::state::Phase;
use crate::pool::stats::PoolStats;
use crate::semaphore::Semaphore;
use crate::sync::shim::{Mutex, MutexGuard};
use crate::time::Clock;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

pub(super) type DiscardHook = dyn Fn(UnstartedTask) + Send + Sync;

pub(super) struct Settings {
    pub(super) clock: Clock,
    pub(super) gate: Option<Arc<dyn Gate>>,
    pub(super) overflow: Overflow,
    pub(super) on_panic: Option<Box<PanicHook>>,
    pub(super) on_discard: Option<Box<DiscardHook>>,
    pub(super) slots: Arc<Semaphore>,
    /// True when others hold permits of the slots as well.
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
    /// The task that it has taken and not started: it may wait for its admission.
    pub(super) held: Option<Entry>,
    /// True when it has been called since it fell idle.
    pub(super) called: bool,
    pub(super) waker: Option<Waker>,
}

impl Bench {
    pub(super) fn lock(&self) -> MutexGuard<'_, Place> {
        self.0.lock()
    }

    pub(super) fn call(&self) {
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
    pub(super) benches: Vec<Arc<Bench>>,
    pub(super) idle: Vec<Arc<Bench>>,
    /// Runners that look for work, or have been called to.
    pub(super) searching: usize,
    pub(super) phase: Phase,
    pub(super) quiet: Quiet,
    /// Queue entries whose task is known to have ended elsewhere.
    pub(super) dead: usize,
    /// There while all runners are busy that there may be, and tasks wait.
    pub(super) limit_watch: LimitWatch,
    pub(super) stats: PoolStats,
}

pub(super) struct Core {
    pub(super) kin: Kin,
    pub(super) state: Mutex<State>,
    pub(super) room: Room,
    pub(super) settings: Settings,
}

/// What is to be done after the lock.
#[derive(Default)]
#[must_use]
pub(super) struct After {
    call: Option<Arc<Bench>>,
    start: Option<Arc<Bench>>,
    /// A limit that is raised is to start one more.
    watch: bool,
    pub(super) quiet: Vec<Waker>,
}

pub(super) enum Found {
    /// One that waits to be started lies with the runner, where it can be taken out.
    Held,
    /// One that has started.
    Started(Entry),
    Nothing,
    Exit,
}

impl State {
    pub(super) fn call_for_help(&mut self, limit: usize, after: &mut After) {
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
        } else {
            after.watch = true;
        }
    }

    pub(super) fn finished(&mut self, tasks: usize, after: &mut After) {
        self.quiet.finished(tasks, &mut after.quiet);
    }

    pub(super) fn count(&mut self, ran: Ran) {
        self.stats.finished += u64::from(ran != Ran::Gone);
        self.stats.panicked += u64::from(ran == Ran::Panicked);
    }
}

impl Core {
    pub(super) fn new(kin: Kin, room: Room, settings: Settings) -> Self {
        let state = Mutex::new(State {
            lanes: Lanes::new(),
            benches: Vec::new(),
            idle: Vec::new(),
            searching: 0,
            phase: Phase::Running,
            quiet: Quiet::default(),
            dead: 0,
            limit_watch: LimitWatch::default(),
            stats: PoolStats::default(),
        });
        Self {
            kin,
            state,
            room,
            settings,
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.settings.slots.limit()
    }

    pub(super) fn after(self: &Arc<Self>, after: After) {
        if let Some(bench) = after.call {
            bench.call();
        }
        for waker in after.quiet {
            wake(Some(waker));
        }
        if let Some(bench) = after.start {
            let runner = runner::run(Arc::clone(self), bench);
            // A runner that is not started is dropped, and strikes itself off.
            drop(self.settings.runtime.spawn(runner));
        }
        if after.watch {
            self.watch_limit();
        }
    }

    /// All runners are busy that there may be, and tasks wait: a limit that is raised starts one more.
    fn watch_limit(self: &Arc<Self>) {
        let mut after = After::default();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let runners = state.benches.len().max(1);
        let waker = || Waker::from(Arc::new(LimitIsRaised(Arc::downgrade(self))));
        if !state.limit_watch.keep(&self.settings.slots, runners, waker) {
            state.call_for_help(self.limit(), &mut after);
        }
        drop(guard);
        self.after(after);
    }

    pub(super) fn orphan(&self, payload: Payload) {
        hooks::tell_of_panic(self.settings.on_panic.as_deref(), payload);
    }

    /// Polls a task of this pool.
    pub(super) fn poll(&self, task: &dyn Run, cx: &mut Context<'_>) -> Poll<Ran> {
        let here = Here {
            pool: self.kin,
            orphan: &|payload| self.orphan(payload),
        };
        task.poll_run(here, cx)
    }

    /// Gives `me` the next task; what it has `done` is counted on the way.
    pub(super) fn take(self: &Arc<Self>, me: &Arc<Bench>, searching: &mut bool, done: Option<Ran>) -> Found {
        let mut after = After::default();
        let mut state = self.state.lock();
        if let Some(ran) = done {
            state.count(ran);
            state.finished(1, &mut after);
        }
        if std::mem::take(searching) && !seeded!("tasks_search_for_ever") {
            state.searching -= 1;
        }
        let found = match state.lanes.pop() {
            // Under this lock: whoever ends the pool finds it.
            Some(entry) if entry.is_waiting() => {
                me.lock().held = Some(entry);
                Found::Held
            }
            Some(entry) => {
                me.lock().running = Some(Arc::clone(&entry.task));
                Found::Started(entry)
            }
            None if state.phase == Phase::Running => Found::Nothing,
            None => Found::Exit,
        };
        match found {
            Found::Held | Found::Started(_) => state.call_for_help(self.limit(), &mut after),
            Found::Nothing => {
                me.lock().called = false;
                state.idle.push(Arc::clone(me));
                state.limit_watch.end(&self.settings.slots);
            }
            Found::Exit => {}
        }
        drop(state);
        self.after(after);
        found
    }

    /// What `me` has taken and not started goes back to the front of the queue, unless it has been taken out.
    pub(super) fn put_back(&self, me: &Bench) {
        let mut state = self.state.lock();
        let held = me.lock().held.take();
        if let Some(entry) = held {
            state.lanes.push_front(entry);
        }
    }

    /// A task has ended, and whoever ran it does not look for the next at once.
    pub(super) fn ended(self: &Arc<Self>, ran: Ran) {
        let mut after = After::default();
        let mut state = self.state.lock();
        state.count(ran);
        state.finished(1, &mut after);
        drop(state);
        self.after(after);
    }

    pub(super) fn stats(&self) -> PoolStats {
        let state = self.state.lock();
        PoolStats {
            threads: state.benches.len(),
            idle: state.idle.len(),
            limit: self.limit(),
            queued: state.lanes.waiting(),
            unfinished: state.quiet.unfinished(),
            ..state.stats
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.state.get_mut().limit_watch.end(&self.settings.slots);
    }
}

/// What a limit wakes that is raised.
struct LimitIsRaised(Weak<Core>);

impl Wake for LimitIsRaised {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(core) = self.0.upgrade()
            && !seeded!("tasks_miss_a_limit")
        {
            core.state.lock().limit_watch.end(&core.settings.slots);
            core.resized();
            // It may be the last to have it, and whoever raises a limit has nothing to do with what a pool holds.
            drop_quietly(core);
        }
    }
}
