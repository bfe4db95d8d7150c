//! Runs the engine on threads: an injector, a priority queue, and a local queue for each worker.
//!
//! A submission puts its task into the injector, an [`Injector`], which has a lock of its own. Each transition moves the injected tasks into
//! the priority queue. A submission calls a worker, that is, wakes or starts one, only if the injector's `calls` is true: no worker looks
//! for work, and one could be called. A transition writes `calls` before it releases the pool's lock:
//!
//! - S1. A submission puts its task into the injector and reads `calls`, under the injector's lock.
//! - S2. If that was true, the submission takes the pool's lock, finds its task in the priority queue, and calls a worker.
//! - W1. A worker that falls asleep, or finds work and stops looking, writes `calls` under the injector's lock.
//! - W2. If it writes true and finds tasks there, it moves them into the priority queue and calls for the submitters.
//!
//! If S1 comes before W1, W2 finds the task, unless an earlier transition moved it: then the worker has seen it in the priority queue
//! under the same lock. If W1 comes before S1, S2 calls. A worker that is awake and looks takes the pool's lock once more before it
//! sleeps.
//!
//! A worker moves several tasks at once to its local queue only while no worker sleeps and no more may be started. No worker sleeps before
//! all local queues are empty, so every worker that is awake can take their tasks. Hence the invariant: a worker sleeps => all local
//! queues are empty, or no slot is free.

use super::entry::{DeferredFree, Entry, InlineTask};
use super::injector::{Injector, Received, Tray};
use super::worker::{WorkerState, WorkerThread};
use crate::pool::cell::{Job, Ran, Run};
use crate::pool::engine::scheduler::{Engine, Kind};
use crate::pool::engine::seat::Seat;
use crate::pool::engine::state::{Acts, Counts, Next, Phase, State};
use crate::pool::engine::waits::{Inlined, Lends, Under, current};
use crate::pool::error::TaskError;
use crate::pool::handle::ScopedJoinHandle;
use crate::pool::hooks::{drop_quietly, forget_panic};
use crate::pool::termination::{TerminationWait, Until};
use crate::rate::TokenBucket;
use crate::sync::park::block_on_timeout;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::time::{Clock, Sleep};
use crossbeam_utils::CachePadded;
use std::cmp::Reverse;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

pub(in crate::pool) type Spawner<'j> = dyn Fn(WorkerThread<'j>) -> io::Result<()> + Send + Sync + 'j;

/// The maximum number of tasks that a worker takes at once, when all workers have plenty to do.
const BATCH: usize = 16;

/// The number of tasks per worker that may overtake the tasks of a local queue. A multiple of [`BATCH`]: a worker that makes
/// progress has emptied its local queue by then.
const PATIENCE: u64 = 128;

/// The delay before the pool retries a failed thread start that tasks need.
const RETRY: Duration = Duration::from_millis(100);

pub(in crate::pool) type Core<'j> = Engine<Threads<'j>>;

type Guarded<'j> = State<Threads<'j>>;
type Bound<'j> = Acts<Threads<'j>>;

/// The kind of a pool of threads, whose tasks live for `'j`.
///
/// ```
/// # use tollgate::WorkerPool;
/// # use tollgate::pool::{Group, Threads};
/// let pool = WorkerPool::builder().workers(2).build()?;
/// let mut group: Group<Threads<'_>, u32, std::io::Error> = pool.group();
/// group.submit(|| Ok(1))?;
/// assert_eq!(group.join()?, [1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Threads<'j> {
    pub(in crate::pool) injector: CachePadded<Injector<'j>>,
    /// A copy of the priority queue's length, for readers without the lock.
    pending: CachePadded<AtomicUsize>,
    /// True while submitters wait for capacity: workers report each start at once.
    pressed: AtomicBool,
    pub(in crate::pool) keep_alive: Duration,
    growth: Option<TokenBucket>,
    spawner: Box<Spawner<'j>>,
    pub(in crate::pool) on_start: Option<Arc<ThreadHook>>,
    /// The timer after which the pool may grow.
    regrow: Mutex<Option<Pin<Box<Sleep>>>>,
    /// The pool, for its tasks that wait and lend their slots, and the waker that the timer wakes. None where tasks borrow.
    itself: OnceLock<(Weak<dyn Lends>, Waker)>,
}

/// Runs in each thread before its first task.
pub(in crate::pool) type ThreadHook = dyn Fn() + Send + Sync;

impl<'j> Threads<'j> {
    pub(in crate::pool) fn new(
        keep_alive: Duration,
        growth: Option<TokenBucket>,
        spawner: Box<Spawner<'j>>,
        on_start: Option<Arc<ThreadHook>>,
    ) -> Self {
        Self {
            injector: CachePadded::new(Injector::new()),
            pending: CachePadded::new(AtomicUsize::new(0)),
            pressed: AtomicBool::new(false),
            keep_alive,
            growth,
            spawner,
            on_start,
            regrow: Mutex::new(None),
            itself: OnceLock::new(),
        }
    }

    pub(in crate::pool) fn lends(&self) -> Option<Weak<dyn Lends>> {
        self.itself.get().map(|(lends, _)| Weak::clone(lends))
    }

    /// Returns true when there seems to be work. A hint.
    #[inline]
    pub(in crate::pool) fn seems_busy(&self) -> bool {
        // Relaxed: a hint, stored by `settle`. A worker that acts on it takes the lock.
        self.injector.len() > 0 || self.pending.load(Ordering::Relaxed) > 0
    }

    /// Returns true while submitters wait for capacity. Called under the lock of a local queue.
    #[inline]
    pub(in crate::pool) fn is_pressed(&self) -> bool {
        // Relaxed: see `collect`.
        self.pressed.load(Ordering::Relaxed)
    }

    /// Counts the injected tasks, and shows the submissions the free capacity. [`accept`] moves the tasks into the priority queue.
    #[inline]
    fn receive(&self, tray: &mut Tray<'j>, state: &mut Guarded<'j>) {
        if !tray.tasks.is_empty() {
            let tasks = self.injector.empty(tray, &mut state.own.received);
            state.capacity.came(tasks);
            state.came(tasks);
        }
        self.show(tray, state, state.capacity.free_places());
    }

    /// Shows the submissions the number of tasks that they may inject.
    #[inline]
    fn show(&self, tray: &mut Tray<'j>, state: &mut Guarded<'j>, places: usize) {
        // At most `MAX_QUEUE`.
        (tray.places, state.own.shown) = (places as u32, places);
    }
}

/// Moves the received tasks into the priority queue.
#[inline]
fn accept(state: &mut Guarded<'_>) {
    state.own.received.move_to(&mut state.queue);
}

/// The state under the lock that only pools of threads have.
#[derive(Default)]
pub(in crate::pool) struct Shared<'j> {
    /// Empty between two transitions.
    received: Received<'j>,
    /// The number of tasks taken at which the next local queue is due. `None`: all local queues are empty.
    local_queues_due: Option<u64>,
    /// The number of tasks that the injector last let come.
    shown: usize,
    /// The opposite of the injector's `calls`.
    is_silent: bool,
}

impl<'j> Kind for Threads<'j> {
    const THREADS: bool = true;
    type Inline = InlineTask<'j>;
    type Run = dyn Run + 'j;
    type Job<T> = dyn Job<'j, T> + 'j;
    type Worker = WorkerState<'j>;
    type Shared = Shared<'j>;

    #[inline]
    fn enter(&self, state: &mut Guarded<'j>) {
        debug_assert!(state.own.received.is_empty());
        self.receive(&mut self.injector.lock(), state);
        accept(state);
    }

    #[inline]
    fn settle(&self, state: &mut Guarded<'j>, acts: &mut Bound<'j>) {
        let calls = state.wants_call();
        if calls == state.own.is_silent {
            let mut tray = self.injector.lock();
            if calls && !tray.tasks.is_empty() {
                self.receive(&mut tray, state);
                accept(state);
                state.call(acts);
            }
            tray.calls = state.wants_call();
            state.own.is_silent = !tray.calls;
        }
        // Not at each task that starts: a submission that is shown no capacity looks here.
        if state.capacity.free_places() > 2 * state.own.shown {
            self.enter(state);
        }
        if self.is_pressed() && !state.capacity.waits() {
            // Relaxed: a worker that reads a stale value reports early.
            self.pressed.store(false, Ordering::Relaxed);
        }
        // Relaxed: a hint, read by `seems_busy`.
        self.pending.store(state.queue.len(), Ordering::Relaxed);
    }

    fn close(&self) {
        self.injector.lock().closed = true;
    }

    fn take_local(worker_state: &WorkerState<'j>) -> Option<Entry<'j>> {
        worker_state.local_queue.lock().take()
    }

    fn collect(&self, state: &mut Guarded<'j>, weight: u32) {
        let mut tray = self.injector.lock();
        self.receive(&mut tray, state);
        // Until the end of the caller's transition, submissions take no capacity.
        self.show(&mut tray, state, 0);
        drop(tray);
        accept(state);
        if state.capacity.has_room(weight) {
            return;
        }
        // Relaxed: the locks of the local queues order it. A worker that starts a task after the look below sees it.
        self.pressed.store(true, Ordering::Relaxed);
        let started: usize = state.seats.iter().map(|seat| seat.own.take_started()).sum();
        state.capacity.give_back(started, 1);
    }

    fn start(core: &Arc<Core<'j>>, seat: Arc<Seat<WorkerState<'j>>>) {
        let _ = core.spawn(seat);
    }

    #[cold]
    fn grow(core: &Arc<Core<'j>>) {
        // In the transition that starts the thread, so that no token is spent in vain.
        let later = core.transition(|state, acts| {
            if !state.wants_thread() {
                return None;
            }
            let growth = core.kind.growth.as_ref().filter(|_| !state.is_urgent());
            if let Some(Err(refusal)) = growth.map(|growth| growth.try_acquire(1)) {
                return refusal.retry_after();
            }
            state.starts(acts);
            None
        });
        if let Some(after) = later {
            core.grow_later(after);
        }
    }

    fn queued<T>(task: &Arc<Self::Job<T>>) -> Arc<Self::Run> {
        Arc::clone(task).into_run()
    }

    fn help<T>(handle: &ScopedJoinHandle<'j, T>) -> bool {
        let (core, task, options) = (&handle.core, &handle.task, handle.task.options());
        let is_member = options.is_some_and(|options| options.member.is_some());
        if core.settings.admission.is_gated() || is_member || !task.is_queued() {
            return false;
        }
        let Some(inlined) = Inlined::enter(&**core) else {
            return false;
        };
        if !core.transition(|state, acts| state.claim_aside(&**task, acts)) {
            return false;
        }
        let (mut counts, mut expired) = (Counts::default(), false);
        if core.is_late(options) {
            expired = task.refuse(TaskError::Expired);
            counts.count(Ran::Gone);
        } else {
            // On a thread that runs no task, the waits of the inlined task count as those of its waiter, which may hold permits.
            let under = if current().is_none() { task.waiter() } else { None };
            let under = under.map(Under::enter);
            counts.count(task.run(&mut |payload| core.orphan(payload)));
            drop(under);
        }
        drop(inlined);
        core.transition(|state, acts| {
            state.stats.expired += u64::from(expired);
            state.count(counts, acts);
        });
        true
    }

    fn unreported(worker_state: &WorkerState<'j>) -> (usize, usize) {
        (worker_state.local_queue.lock().started, worker_state.untold())
    }
}

/// The operations that only a pool of threads has.
impl<'j> Core<'j> {
    // ---- the queue ----

    /// Queues a task by `put`, which only converts it. Returns the task if there is no capacity, or the pool is closed.
    #[inline]
    pub(in crate::pool) fn push<J>(self: &Arc<Self>, job: J, put: impl FnOnce(&mut Tray<'j>, J)) -> Result<(), J> {
        if self.kind.injector.put(job, put)? {
            self.call();
        }
        Ok(())
    }

    /// Queues the first of `jobs` at once, in order, by `put`, which only converts them. Returns false if there is no capacity, or the pool
    /// is closed. Adds what `put` returns to `taken`. `buffer` is empty before and after.
    pub(in crate::pool) fn push_all<J, R>(
        self: &Arc<Self>,
        jobs: &mut Vec<J>,
        put: impl Fn(&mut Tray<'j>, J) -> R,
        taken: &mut Vec<R>,
        buffer: &mut Vec<DeferredFree<'j>>,
    ) -> bool {
        let Some(calls) = self.kind.injector.put_all(jobs, put, taken, buffer) else {
            return false;
        };
        if calls {
            self.call();
        }
        buffer.clear();
        true
    }

    /// Calls a worker, for a submission.
    #[cold]
    pub(in crate::pool) fn call(self: &Arc<Self>) {
        self.transition(State::call);
    }

    /// Blocks this thread for at most `patience`. Returns false on a timeout, and at once in a task of the pool.
    pub(in crate::pool) fn wait(self: &Arc<Self>, patience: Option<Duration>, until: Until) -> bool {
        let wait = TerminationWait::of(self, until);
        wait.is_some_and(|mut wait| block_on_timeout(patience, |waker| wait.poll(waker)).is_some())
    }

    // ---- workers ----

    /// Reports the ended tasks, and returns the worker's next step.
    pub(in crate::pool) fn take(
        self: &Arc<Self>,
        seat: &Arc<Seat<WorkerState<'j>>>,
        counts: &mut Counts,
        patient: bool,
    ) -> Next<Entry<'j>> {
        let is_gated = self.settings.admission.is_gated();
        self.transition(|state, acts| {
            state.count(std::mem::take(counts), acts);
            report(state, &seat.own);
            if state.own.local_queues_due.is_some_and(|due| state.queue.taken >= due) {
                clear_local_queues(state);
            }
            let next = self.next(state, seat, patient, acts);
            let is_common = matches!(&next, Next::Run(entry, false) if entry.is_common());
            if is_common && !is_gated && state.queue.is_uniform() && state.is_busy() {
                let share = state.queue.len() / (2 * state.staying().max(1));
                if share > 0 {
                    load(state, &seat.own, share.min(BATCH - 1));
                }
            }
            next
        })
    }

    /// Removes a worker that has exited, or was not started.
    pub(in crate::pool) fn left_by(
        self: &Arc<Self>,
        seat: &Arc<Seat<WorkerState<'j>>>,
        counts: Counts,
        in_order: bool,
    ) {
        self.transition(|state, _| {
            seat.own.local_queue.lock().put_back(&mut state.queue);
            report(state, &seat.own);
        });
        self.left(seat, counts, in_order);
    }

    fn spawn(self: &Arc<Self>, seat: Arc<Seat<WorkerState<'j>>>) -> io::Result<()> {
        let worker = WorkerThread::new(Arc::clone(self), seat);
        // The spawner is the user's, and the thread that calls it may own tasks.
        let started = catch_unwind(AssertUnwindSafe(|| (self.kind.spawner)(worker)));
        started.unwrap_or_else(|payload| {
            forget_panic(Err(payload));
            Err(io::Error::other("the thread spawner panicked"))
        })
    }

    /// Removes a worker whose thread did not start. The next submission tries again. So does a timer, when queued tasks need the thread.
    pub(in crate::pool) fn never_started(self: &Arc<Self>, seat: &Arc<Seat<WorkerState<'j>>>) {
        self.left_by(seat, Counts::default(), false);
        let wants = self.transition(|state, _| {
            state.stats.failed_starts += 1;
            state.wants_thread()
        });
        if wants {
            self.wake_later(&Clock::real(), RETRY);
        }
    }

    /// Starts threads up to the pool's minimum.
    pub(in crate::pool) fn start_least(self: &Arc<Self>) -> io::Result<()> {
        loop {
            let seat = self.transition(|state, _| {
                let wants = state.staying() < state.least && state.phase == Phase::Running;
                wants.then(|| state.enters())
            });
            match seat {
                Some(seat) => self.spawn(seat)?,
                None => return Ok(()),
            }
        }
    }

    pub(in crate::pool) fn set_workers(self: &Arc<Self>, least: usize, most: usize) -> io::Result<()> {
        self.transition(|state, acts| {
            state.set_least(least, acts);
            // Workers that are about to start must reach the tasks of local queues too.
            for seat in state.seats.clone() {
                seat.own.local_queue.lock().put_back(&mut state.queue);
            }
        });
        self.resize(most);
        self.start_least()
    }

    fn grow_later(self: &Arc<Self>, after: Duration) {
        // A pool whose tasks borrow has no such waker. Its submissions and workers try again.
        if self.kind.itself.get().is_some() {
            self.look().grows_later = true;
            self.wake_later(&self.settings.clock, after);
        }
    }

    fn wake_later(self: &Arc<Self>, clock: &Clock, after: Duration) {
        let Some((_, waker)) = self.kind.itself.get() else {
            return;
        };
        let mut regrow = self.kind.regrow.lock();
        if regrow.is_some() {
            return;
        }
        let mut sleep = Box::pin(Sleep::of_no_runtime(clock, clock.after(clock.now(), after)));
        match sleep.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Pending => *regrow = Some(sleep),
            Poll::Ready(()) => {
                drop(regrow);
                waker.wake_by_ref();
            }
        }
    }
}

impl Core<'static> {
    /// Gives the timer's waker and the waiting tasks weak references to the pool.
    pub(in crate::pool) fn know_itself(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        let regrow = Waker::from(Arc::new(Regrow(Weak::clone(&weak))));
        let _ = self.kind.itself.set((weak, regrow));
    }
}

/// The waker of the growth timer.
struct Regrow(Weak<Core<'static>>);

impl Wake for Regrow {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(core) = self.0.upgrade() {
            let fired = core.kind.regrow.lock().take();
            drop(fired);
            core.look().grows_later = false;
            core.call();
            // This may be the last reference, and a panic of a dropped task must not reach the timer.
            drop_quietly(core);
        }
    }
}

/// Counts the tasks that the worker has started from its local queue.
pub(super) fn report_started<'j>(state: &mut Guarded<'j>, worker_state: &WorkerState<'j>) {
    state.capacity.give_back(worker_state.take_started(), 1);
}

/// Counts these, beside those that it has ended.
#[inline]
fn report<'j>(state: &mut Guarded<'j>, worker_state: &WorkerState<'j>) {
    worker_state.note_untold(0);
    report_started(state, worker_state);
}

/// Moves the next `n` tasks to the local queue of a worker.
fn load<'j>(state: &mut Guarded<'j>, worker_state: &WorkerState<'j>, n: usize) {
    state.queue.taken += n as u64;
    let due = state.queue.taken + PATIENCE * state.staying() as u64;
    let first = state.own.local_queues_due.map_or(due, |first| first.min(due));
    state.own.local_queues_due = Some(first);
    worker_state.local_queue.lock().load(n, due, &mut state.queue);
}

/// Moves the tasks of local queues that are due back to the front of the queue, the latest taken first.
#[cold]
fn clear_local_queues(state: &mut Guarded<'_>) {
    let (mut late, mut due_next) = (Vec::new(), None);
    for seat in &state.seats {
        match seat.own.local_queue.lock().due() {
            Some(due) if due <= state.queue.taken => {
                late.push((due, Arc::clone(seat)));
            }
            Some(due) => due_next = Some(due_next.map_or(due, |next: u64| next.min(due))),
            None => {}
        }
    }
    late.sort_by_key(|(due, _)| Reverse(*due));
    for (_, seat) in late {
        seat.own.local_queue.lock().put_back(&mut state.queue);
    }
    state.own.local_queues_due = due_next;
}
