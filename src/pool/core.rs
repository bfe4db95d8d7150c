//! What all handles and workers of a pool share: the queue, who sleeps, who looks, and how it ends.
//!
//! Everything but a hint is under one lock, so that the protocol is short. The lock is held for a handful of moves;
//! tasks, hooks, wakers and drops of tasks run outside it.
//!
//! - A task that is pushed wakes a sleeper only when nobody looks for work already: whoever looks takes the lock once
//!   more before it sleeps, and sees the task there.
//! - Whoever finds work and leaves some behind wakes the next, when nobody looks any more.
//! - A worker takes several at once onto its shelf only while nobody sleeps, and nobody sleeps before all shelves are
//!   empty: what lies on a shelf is always within reach of everybody who is awake. Hence the invariant: somebody
//!   sleeps => all shelves are empty.

use super::cell::{Ran, forget_panic, wake};
use super::entry::{Entry, Unstarted};
use super::gate::Gate;
use super::lanes::Lanes;
use super::park::Parker;
use super::room::Room;
use super::stats::PoolStats;
use super::worker::{Bench, WorkerThread};
use crate::rate::TokenBucket;
use crate::semaphore::Semaphore;
use crate::sync::shim::atomic::{AtomicUsize, Ordering};
use crate::sync::shim::{Mutex, MutexGuard};
use crate::time::{Clock, Sleep};
use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How many tasks a worker takes at once, at most, when all workers have plenty to do.
const BATCH: usize = 16;

pub(crate) type Spawner<'j> = dyn Fn(WorkerThread<'j>) -> io::Result<()> + Send + Sync + 'j;
pub(crate) type DiscardHook = dyn Fn(Unstarted<'_>) + Send + Sync;
pub(crate) type PanicHook = dyn Fn(Box<dyn Any + Send>) + Send + Sync;

/// What is decided when a pool is built.
pub(crate) struct Settings<'j> {
    pub(crate) clock: Clock,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) growth: Option<TokenBucket>,
    pub(crate) gate: Option<Arc<dyn Gate>>,
    pub(crate) spawner: Box<Spawner<'j>>,
    pub(crate) on_start: Option<Arc<dyn Fn() + Send + Sync>>,
    pub(crate) on_panic: Option<Box<PanicHook>>,
    pub(crate) on_discard: Option<Box<DiscardHook>>,
    /// After so many tasks a worker starts anew: for workers that borrow the threads of another pool.
    pub(crate) quantum: Option<u32>,
    /// True when others hold permits of the slots as well.
    pub(crate) shared_slots: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Running,
    /// No more tasks are taken; what is queued still runs.
    Draining,
    /// What was queued has been taken out: nothing more starts.
    Stopped,
}

pub(crate) struct State<'j> {
    pub(crate) lanes: Lanes<'j>,
    pub(crate) benches: Vec<Arc<Bench<'j>>>,
    sleepers: Vec<Arc<Bench<'j>>>,
    /// Workers that are awake and look for work, or have been woken to look.
    searching: usize,
    /// Threads, those that are being started included.
    alive: usize,
    least: usize,
    most: usize,
    phase: Phase,
    /// Tasks that were let in and have neither ended nor been taken out, except for what workers have not told yet.
    unfinished: usize,
    /// How often `unfinished` has become zero.
    quiet_epoch: u64,
    quiet_waiters: Vec<Waker>,
    /// Queue entries whose task is known to have ended elsewhere.
    dead: usize,
    next_index: usize,
    pub(crate) stats: PoolStats,
}

pub(crate) struct Core<'j> {
    pub(crate) id: u64,
    /// The pool at the root: sub-pools run on its threads.
    pub(crate) family: u64,
    state: Mutex<State<'j>>,
    pub(crate) room: Room,
    pub(crate) slots: Arc<Semaphore>,
    /// A copy of the lanes' length, for whoever looks without the lock.
    pending: AtomicUsize,
    pub(crate) settings: Settings<'j>,
    /// The timer that lets the pool grow later, and who it wakes.
    regrow: Mutex<Option<Pin<Box<Sleep>>>>,
    pub(crate) regrow_waker: OnceLock<Waker>,
}

/// What a worker finds when it looks for work.
pub(crate) enum Found<'j> {
    Entry(Entry<'j>),
    Nothing,
    /// This worker is to end.
    Exit,
}

/// What must be done after the lock: nobody is woken, and no thread started, under it.
#[must_use]
#[derive(Default)]
struct After<'j> {
    wake: Option<Arc<Bench<'j>>>,
    grow: bool,
    quiet: Vec<Waker>,
}

impl<'j> State<'j> {
    fn new(least: usize, most: usize) -> Self {
        Self {
            lanes: Lanes::new(),
            benches: Vec::new(),
            sleepers: Vec::new(),
            searching: 0,
            alive: 0,
            least,
            most,
            phase: Phase::Running,
            unfinished: 0,
            quiet_epoch: 0,
            quiet_waiters: Vec::new(),
            dead: 0,
            next_index: 0,
            stats: PoolStats::default(),
        }
    }

    /// Whom to wake for the work that is queued, if anybody.
    #[inline]
    fn call_for_help(&mut self, after: &mut After<'j>) {
        if self.searching > 0 || self.lanes.len() == 0 {
            return;
        }
        match self.sleepers.pop() {
            Some(bench) => {
                self.searching += 1;
                after.wake = Some(bench);
            }
            None => after.grow = self.alive < self.most,
        }
    }

    fn finished(&mut self, tasks: usize, after: &mut After<'j>) {
        self.unfinished = self.unfinished.saturating_sub(tasks);
        if tasks > 0 && self.unfinished == 0 {
            self.quiet_epoch += 1;
            after.quiet.append(&mut self.quiet_waiters);
        }
    }

    fn strike_off(&mut self, me: &Arc<Bench<'j>>, searching: bool, after: &mut After<'j>) {
        self.searching -= usize::from(searching);
        self.alive -= 1;
        self.benches.retain(|bench| !Arc::ptr_eq(bench, me));
        if self.alive == 0 {
            after.quiet.append(&mut self.quiet_waiters);
        }
    }

    fn shelves_are_empty(&self) -> bool {
        self.benches.iter().all(|bench| bench.shelf.lock().is_empty())
    }
}

impl<'j> Core<'j> {
    pub(crate) fn new(
        id: u64,
        family: Option<u64>,
        workers: (usize, usize),
        room: Room,
        slots: Arc<Semaphore>,
        settings: Settings<'j>,
    ) -> Self {
        Self {
            id,
            family: family.unwrap_or(id),
            state: Mutex::new(State::new(workers.0, workers.1)),
            room,
            slots,
            pending: AtomicUsize::new(0),
            settings,
            regrow: Mutex::new(None),
            regrow_waker: OnceLock::new(),
        }
    }

    fn note_pending(&self, state: &State<'j>) {
        // Relaxed: a hint. Whoever acts on it takes the lock.
        self.pending.store(state.lanes.len(), Ordering::Relaxed);
    }

    /// True when there seems to be work. A hint.
    #[inline]
    pub(crate) fn seems_busy(&self) -> bool {
        self.pending.load(Ordering::Relaxed) > 0
    }

    fn after(self: &Arc<Self>, after: After<'j>) {
        if let Some(bench) = after.wake {
            bench.call();
        }
        for waker in after.quiet {
            wake(Some(waker));
        }
        if after.grow {
            self.grow();
        }
    }

    // ---- tasks come in ----

    /// Queues a task for which room has been taken. Hands it back when no more are taken. `into` only converts.
    #[inline]
    pub(crate) fn push<J>(self: &Arc<Self>, job: J, into: impl FnOnce(J) -> Entry<'j>) -> Result<(), J> {
        let mut after = After::default();
        let mut state = self.state.lock();
        if state.phase != Phase::Running {
            return Err(job);
        }
        state.lanes.push(into(job));
        state.unfinished += 1;
        state.stats.submitted += 1;
        self.note_pending(&state);
        state.call_for_help(&mut after);
        drop(state);
        self.after(after);
        Ok(())
    }

    /// Queues many at once, in order, under one lock.
    pub(crate) fn push_all<J>(self: &Arc<Self>, jobs: Vec<J>, into: impl Fn(J) -> Entry<'j>) -> Result<(), Vec<J>> {
        let mut after = After::default();
        let mut state = self.state.lock();
        if state.phase != Phase::Running {
            return Err(jobs);
        }
        state.unfinished += jobs.len();
        state.stats.submitted += jobs.len() as u64;
        for job in jobs {
            state.lanes.push(into(job));
        }
        self.note_pending(&state);
        state.call_for_help(&mut after);
        drop(state);
        self.after(after);
        Ok(())
    }

    /// A submitter has run its task itself.
    pub(crate) fn ran_by_caller(&self, ran: Ran) {
        let stats = &mut self.state.lock().stats;
        stats.submitted += 1;
        stats.finished += 1;
        stats.panicked += u64::from(ran == Ran::Panicked);
    }

    /// Queues an errand of the pool itself, also while it drains. False when nothing more starts.
    pub(crate) fn push_errand(self: &Arc<Self>, job: Box<dyn FnOnce() + Send + 'j>) -> bool {
        let mut after = After::default();
        let mut state = self.state.lock();
        if state.phase == Phase::Stopped || (state.phase == Phase::Draining && state.alive == 0) {
            drop(state);
            return false;
        }
        state.lanes.push(Entry::errand(job));
        state.unfinished += 1;
        self.note_pending(&state);
        state.call_for_help(&mut after);
        drop(state);
        self.after(after);
        true
    }

    /// Throws the oldest task of the lowest priority out.
    pub(crate) fn evict(self: &Arc<Self>) -> Option<Entry<'j>> {
        let mut state = self.state.lock();
        let entry = state.lanes.evict().or_else(|| {
            let mut shelves = state.benches.iter();
            shelves.find_map(|bench| bench.held.lock().take().or_else(|| bench.shelf.lock().pop_front()))
        })?;
        self.note_pending(&state);
        let mut after = After::default();
        state.finished(1, &mut after);
        drop(state);
        self.after(after);
        self.room.give_back(1, u64::from(entry.weight));
        Some(entry)
    }

    /// A queued task has been claimed by somebody who is no worker of this pool: it runs there, and counts.
    pub(crate) fn guest_started(self: &Arc<Self>) {
        self.state.lock().unfinished += 1;
        self.note_dead();
    }

    pub(crate) fn guest_ended(self: &Arc<Self>, ran: Ran) {
        let mut told = Told::default();
        let mut after = After::default();
        told.count(ran);
        told.tell(&mut self.state.lock(), &mut after);
        self.after(after);
    }

    /// Somebody has ended a queued task without taking it out: it is taken out when such are in the majority.
    pub(crate) fn note_dead(self: &Arc<Self>) {
        let mut after = After::default();
        let dead = {
            let mut state = self.state.lock();
            state.dead += 1;
            if state.dead * 2 <= state.lanes.len() {
                return;
            }
            state.dead = 0;
            let dead = state.lanes.purge();
            self.note_pending(&state);
            state.finished(dead.len(), &mut after);
            dead
        };
        self.room
            .give_back(dead.len(), dead.iter().map(|entry| u64::from(entry.weight)).sum());
        for entry in dead {
            entry.refuse(super::TaskError::Cancelled);
        }
        self.after(after);
    }

    // ---- workers look for work ----

    /// Gives `me` the next task. `done` tasks of its own are settled on the way.
    pub(crate) fn take(self: &Arc<Self>, me: &Arc<Bench<'j>>, searching: &mut bool, done: &mut Told) -> Found<'j> {
        let mut after = After::default();
        let mut state = self.state.lock();
        done.tell(&mut state, &mut after);
        if std::mem::take(searching) {
            state.searching -= 1;
        }
        let found = if self.is_surplus(&state) {
            Found::Exit
        } else {
            self.find(&mut state, me)
        };
        if !matches!(found, Found::Nothing) {
            state.call_for_help(&mut after);
        } else if state.searching == 0 {
            state.searching = 1;
            *searching = true;
        }
        drop(state);
        self.after(after);
        found
    }

    fn is_surplus(&self, state: &State<'j>) -> bool {
        state.phase == Phase::Stopped || state.alive > state.most
    }

    fn find(&self, state: &mut State<'j>, me: &Bench<'j>) -> Found<'j> {
        if let Some(entry) = state.lanes.pop() {
            if state.sleepers.is_empty() && state.lanes.is_uniform() && self.settings.gate.is_none() {
                let share = (state.lanes.len() / (2 * state.alive.max(1))).min(BATCH - 1);
                if share > 0 {
                    let mut shelf = me.shelf.lock();
                    shelf.extend(std::iter::from_fn(|| state.lanes.pop()).take(share));
                }
            }
            self.note_pending(state);
            return Found::Entry(entry);
        }
        let stolen = state.benches.iter().find_map(|bench| bench.shelf.lock().pop_front());
        match stolen {
            Some(entry) => Found::Entry(entry),
            None if state.phase == Phase::Draining => Found::Exit,
            None => Found::Nothing,
        }
    }

    /// Puts what `me` has not started back in front of the queue.
    pub(crate) fn unshelve(&self, me: &Bench<'j>) {
        let mut state = self.state.lock();
        let mut shelf = me.shelf.lock();
        while let Some(entry) = shelf.pop_back() {
            state.lanes.push_front(entry);
        }
        self.note_pending(&state);
    }

    /// The same with the task that `me` was about to start. It comes back when the pool has been stopped meanwhile:
    /// nobody would find it in the queue, so it counts as started.
    #[cold]
    pub(crate) fn put_back(&self, me: &Bench<'j>, entry: Entry<'j>) -> Option<Entry<'j>> {
        let mut state = self.state.lock();
        if state.phase == Phase::Stopped {
            return Some(entry);
        }
        let mut shelf = me.shelf.lock();
        while let Some(shelved) = shelf.pop_back() {
            state.lanes.push_front(shelved);
        }
        state.lanes.push_front(entry);
        self.note_pending(&state);
        None
    }

    /// Lets `me` fall asleep, unless there is something to do.
    pub(crate) fn fall_asleep(self: &Arc<Self>, me: &Arc<Bench<'j>>, searching: &mut bool) -> bool {
        let mut state = self.state.lock();
        if state.lanes.len() > 0
            || state.phase != Phase::Running
            || self.is_surplus(&state)
            || !state.shelves_are_empty()
        {
            return false;
        }
        if std::mem::take(searching) {
            state.searching -= 1;
        }
        me.sleep();
        state.sleepers.push(Arc::clone(me));
        true
    }

    /// `me` has slept for as long as it is kept: true when it may leave, false when it has been called or is needed.
    pub(crate) fn may_leave(&self, me: &Arc<Bench<'j>>) -> bool {
        let mut state = self.state.lock();
        let Some(at) = state.sleepers.iter().position(|bench| Arc::ptr_eq(bench, me)) else {
            return false;
        };
        if state.alive <= state.least {
            return false;
        }
        state.sleepers.remove(at);
        true
    }

    /// True when a worker that waits for a slot should stop waiting.
    pub(crate) fn should_exit(&self) -> bool {
        let state = self.state.lock();
        self.is_surplus(&state)
            || (state.phase == Phase::Draining && state.lanes.len() == 0 && state.shelves_are_empty())
    }

    /// A worker has ended.
    pub(crate) fn left(self: &Arc<Self>, me: &Arc<Bench<'j>>, searching: bool, done: &mut Told) {
        self.unshelve(me);
        let mut after = After::default();
        let mut state = self.state.lock();
        done.tell(&mut state, &mut after);
        state.strike_off(me, searching, &mut after);
        state.call_for_help(&mut after);
        drop(state);
        self.after(after);
    }

    /// A worker was not started. With nobody else there, whatever is queued could wait for ever: it is abandoned.
    pub(crate) fn never_started(self: &Arc<Self>, me: &Arc<Bench<'j>>) {
        let mut after = After::default();
        let mut state = self.state.lock();
        state.strike_off(me, me.starts_searching, &mut after);
        let forlorn = state.alive == 0 && state.lanes.len() > 0;
        drop(state);
        self.after(after);
        if forlorn {
            for entry in self.stop() {
                entry.refuse(super::TaskError::Abandoned);
            }
        }
    }

    /// A worker that borrows another pool's thread makes room there, and comes back at the end of that pool's queue.
    /// False when there is nothing to come back for.
    pub(crate) fn start_anew(self: &Arc<Self>, me: &Arc<Bench<'j>>, searching: bool, done: &mut Told) -> bool {
        let mut after = After::default();
        let again = {
            let mut state = self.state.lock();
            done.tell(&mut state, &mut after);
            if state.lanes.len() == 0 || self.is_surplus(&state) {
                None
            } else {
                state.strike_off(me, searching, &mut After::default());
                Some(self.engage(&mut state, true))
            }
        };
        self.after(after);
        // Where it cannot start, it is struck off again.
        again.is_some_and(|bench| {
            let _ = self.start(bench);
            true
        })
    }

    /// Ends a task that is too late. False when it had been claimed elsewhere.
    #[cold]
    pub(crate) fn expire(&self, entry: Entry<'j>) -> bool {
        entry.refuse(super::TaskError::Expired)
    }

    // ---- threads ----

    /// Starts a thread, if more are wanted and the rate of growth allows. It finds the rest of the work itself, and
    /// calls for the next.
    #[cold]
    pub(crate) fn grow(self: &Arc<Self>) {
        let wants = |state: &State<'j>| {
            state.alive < state.most
                && state.lanes.len() > 0
                && state.sleepers.is_empty()
                && state.searching == 0
                && state.phase != Phase::Stopped
                && (state.alive == 0 || self.slots.available_permits() > 0)
        };
        if !wants(&self.state.lock()) {
            return;
        }
        if let Some(growth) = &self.settings.growth
            && let Err(refusal) = growth.try_acquire(1)
        {
            if let Some(after) = refusal.retry_after() {
                self.grow_later(after);
            }
            return;
        }
        let bench = {
            let mut state = self.state.lock();
            if !wants(&state) {
                return;
            }
            self.engage(&mut state, true)
        };
        let _ = self.start(bench);
    }

    /// Enters a thread that is about to be started into the books.
    fn engage(&self, state: &mut State<'j>, searching: bool) -> Arc<Bench<'j>> {
        state.alive += 1;
        state.searching += usize::from(searching);
        state.stats.peak_threads = state.stats.peak_threads.max(state.alive);
        let bench = Arc::new(Bench::new(state.next_index, searching));
        state.next_index += 1;
        state.benches.push(Arc::clone(&bench));
        bench
    }

    fn start(self: &Arc<Self>, bench: Arc<Bench<'j>>) -> io::Result<()> {
        let worker = WorkerThread::new(Arc::clone(self), bench);
        let started = (self.settings.spawner)(worker);
        if started.is_err() {
            self.state.lock().stats.failed_starts += 1;
        }
        started
    }

    /// Starts the threads that are always there.
    pub(crate) fn start_least(self: &Arc<Self>) -> io::Result<()> {
        loop {
            let bench = {
                let mut state = self.state.lock();
                if state.alive >= state.least || state.phase != Phase::Running {
                    return Ok(());
                }
                self.engage(&mut state, false)
            };
            self.start(bench)?;
        }
    }

    fn grow_later(self: &Arc<Self>, after: Duration) {
        // A pool whose tasks borrow has no such waker: there, submissions and workers try again.
        let Some(waker) = self.regrow_waker.get() else { return };
        let clock = &self.settings.clock;
        let mut regrow = self.regrow.lock();
        if regrow.is_some() {
            return;
        }
        let mut sleep = Box::pin(Sleep::until(clock, clock.after(clock.now(), after)));
        match sleep.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Pending => *regrow = Some(sleep),
            Poll::Ready(()) => {
                drop(regrow);
                waker.wake_by_ref();
            }
        }
    }

    /// The timer has fired.
    pub(crate) fn grow_now(self: &Arc<Self>) {
        let fired = self.regrow.lock().take();
        drop(fired);
        self.grow();
    }

    pub(crate) fn resize(self: &Arc<Self>, least: usize, most: usize) -> io::Result<()> {
        {
            let mut state = self.state.lock();
            state.least = least;
            state.most = most;
        }
        self.call_everybody();
        self.start_least()?;
        self.grow();
        Ok(())
    }

    /// Everybody looks again: whoever sleeps, and whoever waits for a slot.
    fn call_everybody(&self) {
        let benches = {
            let mut state = self.state.lock();
            let sleepers = std::mem::take(&mut state.sleepers);
            state.searching += sleepers.len();
            for bench in &sleepers {
                bench.mark_called();
            }
            state.benches.clone()
        };
        for bench in benches {
            bench.unpark();
        }
    }

    // ---- the end ----

    /// Takes no more tasks; what is queued still runs.
    pub(crate) fn close(&self) {
        {
            let mut state = self.state.lock();
            state.phase = state.phase.max(Phase::Draining);
        }
        self.room.close();
        self.call_everybody();
    }

    /// Takes out everything that has not started, and starts nothing more.
    pub(crate) fn stop(self: &Arc<Self>) -> Vec<Entry<'j>> {
        let mut after = After::default();
        let mut out = {
            let mut state = self.state.lock();
            state.phase = Phase::Stopped;
            let mut out = Vec::new();
            for bench in &state.benches {
                out.extend(bench.held.lock().take());
                out.extend(bench.shelf.lock().drain(..));
            }
            out.extend(state.lanes.drain());
            self.note_pending(&state);
            state.finished(out.len(), &mut after);
            out
        };
        self.after(after);
        self.room.close();
        self.call_everybody();
        // Errands, and tasks that were cancelled or run elsewhere, are not handed back.
        let mut rest = Vec::new();
        for entry in out.drain(..) {
            if entry.weight > 0 && entry.is_live() {
                rest.push(entry);
            } else {
                entry.refuse(super::TaskError::Abandoned);
            }
        }
        rest
    }

    /// True once everything that was let in has ended; with `threads`, once the workers have gone as well. Leaves
    /// `waker` otherwise. `since` is the epoch at the first look.
    pub(crate) fn poll_quiet(&self, since: &mut Option<u64>, threads: bool, waker: &Waker) -> Poll<()> {
        let waker = waker.clone();
        let mut state = self.state.lock();
        let quiet = state.unfinished == 0 && (!threads || state.alive == 0);
        let epoch = *since.get_or_insert(state.quiet_epoch);
        if quiet || (!threads && epoch != state.quiet_epoch) {
            return Poll::Ready(());
        }
        state.quiet_waiters.push(waker);
        Poll::Pending
    }

    pub(crate) fn orphan(&self, payload: Box<dyn Any + Send>) {
        match &self.settings.on_panic {
            Some(hook) => forget_panic(catch_unwind(AssertUnwindSafe(|| hook(payload)))),
            None => forget_panic(Err(payload)),
        }
    }

    // ---- numbers ----

    pub(crate) fn lock(&self) -> MutexGuard<'_, State<'j>> {
        self.state.lock()
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let state = self.state.lock();
        let shelved: usize = state.benches.iter().map(|bench| bench.shelf.lock().len()).sum();
        PoolStats {
            threads: state.alive,
            idle: state.sleepers.len(),
            limit: self.slots.limit(),
            queued: state.lanes.len() + shelved,
            unfinished: state.unfinished,
            ..state.stats
        }
    }
}

/// What a worker has done since it last told.
#[derive(Default)]
pub(crate) struct Told {
    /// Queue entries, errands included.
    pub(crate) entries: usize,
    pub(crate) finished: u64,
    pub(crate) panicked: u64,
    pub(crate) expired: u64,
}

impl Told {
    #[inline]
    pub(crate) fn count(&mut self, ran: Ran) {
        self.entries += 1;
        self.finished += u64::from(ran != Ran::Gone);
        self.panicked += u64::from(ran == Ran::Panicked);
    }

    fn tell<'j>(&mut self, state: &mut State<'j>, after: &mut After<'j>) {
        let told = std::mem::take(self);
        state.stats.finished += told.finished;
        state.stats.panicked += told.panicked;
        state.stats.expired += told.expired;
        state.finished(told.entries, after);
    }
}

/// Everything that a parked worker is woken by.
impl Bench<'_> {
    fn call(&self) {
        self.mark_called();
        self.unpark();
    }

    fn unpark(&self) {
        if let Some(parker) = self.parker.get() {
            Parker::unpark(parker);
        }
    }
}
