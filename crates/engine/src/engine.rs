//! What threads and async tasks share: the queue, the slots and the admission of a pool.
//!
//! Everything is under one lock. A transition is plain data and returns what has to be done: the workers that are called and the one
//! that is started. That is done outside the lock.
//!
//! - A worker that is called looks for a task. One thread looks at a time: a transition that makes a task startable calls none
//!   while one looks, and the one that looks calls the next when it takes a task and another is startable. A runner that was called
//!   may stand behind a task that keeps its runtime's thread, so as many runners look as tasks are startable.
//! - A worker falls asleep under the lock, after it has found nothing startable there. So a transition either comes before, and the
//!   worker sees what it made startable, or after, and calls it.

use crate::admission::{Admission, Asking, Gate};
use crate::queue::{GroupId, Key, Priority, Queue};
use crate::slots::{Claim, Slots};
use crate::task::{TaskError, quietly};
use crate::waits::{Link, Wait};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};
use tollgate::Ask;

/// How deep tasks run on the stack of the task that waits for them.
pub const MAX_INLINE: u32 = 16;

/// A worker, or a caller that waits for a pool, as others call it.
#[derive(Default)]
pub(crate) struct Seat {
    /// It is the worker that looks for a task. Under the engine's lock.
    looks: AtomicBool,
    called: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Seat {
    /// The seat of a worker that was started to look for a task.
    pub(crate) fn of_worker() -> Arc<Self> {
        let seat = Self::default();
        seat.looks.store(true, Ordering::Relaxed);
        Arc::new(seat)
    }

    pub(crate) fn call(&self) {
        // Release: what was done before the call is seen by the one called. Pairs with `is_called`.
        self.called.store(true, Ordering::Release);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// True once for each time that it was called.
    pub(crate) fn is_called(&self) -> bool {
        // AcqRel: pairs with the store in `call`.
        self.called.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn poll(&self, waker: &Waker) -> Poll<()> {
        let waker = waker.clone();
        let old = self.waker.lock().replace(waker);
        drop(old);
        // After the waker was left: a call before that is seen here, and a later one wakes it.
        if self.is_called() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    pub(crate) fn wait(&self) {
        let waker = thread_waker();
        while self.poll(&waker).is_pending() {
            thread::park();
        }
    }
}

struct Unpark(Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn thread_waker() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

/// A task in the queue.
pub(crate) struct Entry<J> {
    pub(crate) job: J,
    pub(crate) ask: Ask,
    /// The task that submitted it.
    pub(crate) parent: u64,
    /// None when it has no handle.
    pub(crate) link: Option<Arc<Link>>,
}

/// A task that runs.
pub(crate) struct Running {
    pub(crate) id: u64,
    pub(crate) engine: Arc<dyn Target>,
    pub(crate) group: Option<GroupId>,
    pub(crate) link: Option<Arc<Link>>,
    /// It holds nothing any more.
    pub(crate) ended: AtomicBool,
    pub(crate) depth: u32,
    /// Handles that the task has polled, that had no result, and that have not been dropped since.
    pub(crate) awaits: AtomicUsize,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Running {
    pub(crate) fn new(
        engine: Arc<dyn Target>,
        group: Option<GroupId>,
        link: Option<Arc<Link>>,
        depth: u32,
    ) -> Arc<Self> {
        Arc::new(Self {
            // Relaxed: a number of its own is all that is asked for.
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            engine,
            group,
            link,
            ended: AtomicBool::new(false),
            depth,
            awaits: AtomicUsize::new(0),
        })
    }
}

impl Running {
    /// It has given back what it held.
    pub(crate) fn end(&self) {
        // Release: pairs with the load of those that look for what it holds.
        self.ended.store(true, Ordering::Release);
    }
}

thread_local! {
    static CURRENT: std::cell::RefCell<Vec<Arc<Running>>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// The task that this thread runs.
pub(crate) fn current() -> Option<Arc<Running>> {
    CURRENT.with_borrow(|stack| stack.last().cloned())
}

/// While it lives, this thread runs the task.
pub(crate) struct Inside(());

impl Inside {
    pub(crate) fn enter(task: &Arc<Running>) -> Self {
        CURRENT.with_borrow_mut(|stack| stack.push(Arc::clone(task)));
        Self(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let task = CURRENT.with_borrow_mut(Vec::pop);
        drop(task);
    }
}

/// A pool as handles and waiting tasks see it.
pub(crate) trait Target: Send + Sync {
    /// The semaphores whose permits its tasks hold and cannot lend, by their addresses.
    fn held(&self) -> &[usize];
    /// A task of this pool waits from now on. False when as many wait as may.
    fn park(&self, group: Option<GroupId>) -> bool;
    fn resume(&self, group: Option<GroupId>);
    /// A task awaits the queued task.
    fn await_it(&self, key: Key);
    fn await_no_more(&self, key: Key);
    fn cancel(&self, key: Key) -> bool;
    /// Runs a queued task on the stack of its parent, which waits for it.
    fn run_inline(&self, key: Key, parent: &Arc<Running>) -> bool;
}

/// What runs the tasks of a pool.
pub(crate) trait Runner: Send + Sync + Sized + 'static {
    type Job: Send;
    /// Starts a worker, which is counted already. False when the system refuses.
    fn start(&self, engine: &Arc<Engine<Self>>) -> bool;
    fn refuse(job: Self::Job, why: TaskError);
    /// How many threads, or runners, there may be besides one for each slot.
    fn max_spare(&self) -> usize;
    fn run_inline(_: &Arc<Engine<Self>>, _: Self::Job, _: &Arc<Running>) {
        unreachable!("it never takes one inline")
    }
    const INLINES: bool;
    /// How many workers look for a task at once.
    const MAX_LOOKS: usize;
}

pub(crate) struct Engine<R: Runner> {
    state: Mutex<State<R::Job>>,
    pub(crate) runner: R,
    pub(crate) gate: Option<Arc<dyn Gate>>,
    held: Box<[usize]>,
    pub(crate) id: u64,
    me: std::sync::Weak<Self>,
}

struct State<J> {
    queue: Queue<Entry<J>>,
    slots: Slots,
    groups: Vec<Slots>,
    idle: Vec<Arc<Seat>>,
    /// Workers that look for a task, or have been called to.
    looks: usize,
    max_looks: usize,
    workers: usize,
    /// Workers whose task is parked and that run nothing else.
    blocked: usize,
    /// Submitted and not ended.
    unfinished: usize,
    closed: bool,
    bound: usize,
    /// Places of the queue that are handed to submitters that have not come for them.
    granted: usize,
    submitters: VecDeque<(Arc<Seat>, bool)>,
    /// Of these, how many are tasks of a pool.
    task_submitters: usize,
    waiters: Vec<Arc<Seat>>,
    /// The worker that asks the gate, and for which entry.
    asker: Option<(Arc<Seat>, Option<Key>)>,
    most: usize,
    max_spare: usize,
}

/// What is to be done outside the lock.
#[derive(Default)]
struct Acts {
    call: Option<Arc<Seat>>,
    more: Vec<Arc<Seat>>,
    start: bool,
}

/// A task that has been taken, and its admission.
pub(crate) type Admitted<J> = (Entry<J>, Option<GroupId>, Admission);

/// What a worker does next.
pub(crate) enum Next<J> {
    Run(Entry<J>, Option<GroupId>),
    /// It is to ask the gate for this.
    Ask,
    Sleep,
    Exit,
}

impl<J> State<J> {
    /// The task that is to start next, and by which claim.
    fn first(&mut self) -> Option<Key> {
        if !self.slots.admits(Claim::Lent) || !self.has_thread() {
            return None;
        }
        let claim = self.claim();
        if self.slots.admits(claim) {
            while let Some(key) = self.queue.first() {
                match self.queue.group(key) {
                    Some(group) if !self.groups[group as usize].admits(claim) => self.queue.block(key),
                    _ => return Some(key),
                }
            }
        }
        let Self { queue, groups, .. } = self;
        let fits = |key: &Key| match queue.group(*key) {
            Some(group) => groups[group as usize].admits(Claim::Lent),
            None => true,
        };
        queue.awaited().find(fits)
    }

    /// True when the next task to start finds a thread. One may run always: a lowered limit leaves more parked than there may be.
    fn has_thread(&self) -> bool {
        let running = self.slots.running();
        running == 0 || running + self.blocked < self.slots.limit().saturating_add(self.max_spare)
    }

    /// True when the worker of a task that waits may block, so that one thread at least is left to run others.
    fn may_block(&self) -> bool {
        self.blocked + 1 < self.slots.limit().max(1).saturating_add(self.max_spare)
    }

    /// Calls or starts a worker, when a task can start for which none looks.
    fn call(&mut self, acts: &mut Acts) {
        let startable = self
            .queue
            .len()
            .min(self.slots.limit().saturating_sub(self.slots.running()));
        if self.looks > 0 && self.looks >= startable.min(self.max_looks) {
            return;
        }
        let first = self.first();
        if let Some((asker, asks)) = &self.asker {
            if *asks != first {
                acts.more.push(Arc::clone(asker));
            }
            return;
        }
        if first.is_none() {
            return;
        }
        self.looks += 1;
        match self.idle.pop() {
            Some(seat) => {
                seat.looks.store(true, Ordering::Relaxed);
                acts.call = Some(seat);
            }
            None => {
                self.workers += 1;
                self.most = self.most.max(self.workers);
                acts.start = true;
            }
        }
    }

    /// Takes the entry, for which there is a slot.
    fn take(&mut self, key: Key) -> Option<(Entry<J>, Option<GroupId>)> {
        let group = self.queue.group(key);
        let entry = self.queue.take(key)?;
        self.slots.start();
        if let Some(group) = group {
            self.groups[group as usize].start();
        }
        self.unblock(group);
        Some((entry, group))
    }

    /// Takes the entry out of the queue without starting it.
    fn remove(&mut self, key: Key, acts: &mut Acts) -> Option<Entry<J>> {
        let group = self.queue.group(key);
        let entry = self.queue.remove(key)?;
        self.unblock(group);
        self.finished(acts);
        Some(entry)
    }

    /// Hands places of the queue to submitters that wait for them.
    fn room(&mut self, acts: &mut Acts) {
        while self.queue.len() + self.granted < self.bound || self.closed {
            let Some((seat, is_task)) = self.submitters.pop_front() else {
                return;
            };
            self.task_submitters -= usize::from(is_task);
            self.granted += 1;
            acts.more.push(seat);
        }
    }

    fn ended(&mut self, group: Option<GroupId>) {
        self.slots.end();
        if let Some(group) = group {
            self.groups[group as usize].end();
        }
        self.unblock(group);
    }

    /// By which claim a task starts that no task awaits. A task that waits for room in this queue awaits the start of any task.
    fn claim(&self) -> Claim {
        if self.task_submitters > 0 {
            Claim::Lent
        } else {
            Claim::Free
        }
    }

    /// Keeps the invariant: where a group has room, an entry of it is ready, or none is queued.
    fn unblock(&mut self, group: Option<GroupId>) {
        let claim = self.claim();
        if let Some(group) = group
            && self.groups[group as usize].admits(claim)
        {
            self.queue.unblock(group);
        }
    }

    fn resume(&mut self, group: Option<GroupId>) {
        self.slots.resume();
        self.blocked -= 1;
        if let Some(group) = group {
            self.groups[group as usize].resume();
        }
    }

    /// Takes out what has not started.
    fn drain(&mut self, acts: &mut Acts) -> Vec<Entry<J>> {
        let entries = self.queue.drain();
        for _ in &entries {
            self.finished(acts);
        }
        entries
    }

    fn finished(&mut self, acts: &mut Acts) {
        self.unfinished -= 1;
        if self.unfinished == 0 {
            acts.more.append(&mut self.waiters);
            if self.closed {
                acts.more.append(&mut self.idle);
            }
        }
    }
}

/// How a full queue treats a submitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Wait,
    Refuse,
}

/// Why a task was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RejectReason {
    /// The queue is full.
    Full,
    /// The pool takes no more tasks.
    Closed,
    /// The submitter is a task of another pool, and as many of its tasks wait as may.
    TooManyParked,
    /// The queue is full, and its tasks need a permit that the submitter holds and cannot lend.
    WouldDeadlock,
}

impl<R: Runner> Engine<R> {
    pub(crate) fn new(runner: R, limit: usize, bound: usize, gate: Option<Arc<dyn Gate>>) -> Arc<Self> {
        let held = gate.iter().flat_map(|gate| gate.held()).collect();
        Arc::new_cyclic(|me| Self {
            state: Mutex::new(State {
                queue: Queue::new(),
                slots: Slots::new(limit),
                groups: Vec::new(),
                idle: Vec::new(),
                looks: 0,
                max_looks: R::MAX_LOOKS,
                workers: 0,
                blocked: 0,
                unfinished: 0,
                closed: false,
                // A task passes through the queue even when a worker is idle.
                bound: bound.max(1),
                granted: 0,
                submitters: VecDeque::new(),
                task_submitters: 0,
                waiters: Vec::new(),
                asker: None,
                most: 0,
                max_spare: runner.max_spare(),
            }),
            runner,
            gate,
            held,
            // Relaxed: a number of its own is all that is asked for.
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            me: me.clone(),
        })
    }

    fn me(&self) -> Arc<Self> {
        self.me.upgrade().expect("it is called through an Arc")
    }

    /// Does what follows from a transition, outside the lock.
    fn act(&self, state: MutexGuard<'_, State<R::Job>>, acts: Acts) {
        drop(state);
        if let Some(seat) = acts.call {
            seat.call();
        }
        for seat in acts.more {
            seat.call();
        }
        let mut start = acts.start;
        while start && !self.runner.start(&self.me()) {
            start = self.not_started();
        }
    }

    /// No worker could be started. Another that runs a task takes the next when that ends. Without one, the first task is refused, as
    /// its waiter would wait for ever. True when one more is to be tried.
    fn not_started(&self) -> bool {
        let (mut state, mut acts) = (self.state.lock(), Acts::default());
        state.looks -= 1;
        state.workers -= 1;
        if state.workers > state.blocked {
            return false;
        }
        let entry = state.first().and_then(|key| state.remove(key, &mut acts));
        state.room(&mut acts);
        state.call(&mut acts);
        let start = std::mem::take(&mut acts.start);
        self.act(state, acts);
        if let Some(entry) = entry {
            R::refuse(entry.job, TaskError::NoThread);
        }
        start
    }

    /// Runs a transition and does what follows.
    fn transition<T>(&self, step: impl FnOnce(&mut State<R::Job>, &mut Acts) -> T) -> T {
        let (mut state, mut acts) = (self.state.lock(), Acts::default());
        let result = step(&mut state, &mut acts);
        state.room(&mut acts);
        state.call(&mut acts);
        self.act(state, acts);
        result
    }

    // ---- submitting ----

    pub(crate) fn submit(
        &self,
        entry: Entry<R::Job>,
        priority: Priority,
        group: Option<GroupId>,
        room: Room,
    ) -> Result<Key, (Entry<R::Job>, RejectReason)> {
        let mut entry = Some(entry);
        let mut has_place = false;
        let mut wait = None;
        loop {
            let mine = || current().is_some_and(|task| std::ptr::addr_eq(Arc::as_ptr(&task.engine), self));
            let seat = {
                let (mut state, mut acts) = (self.state.lock(), Acts::default());
                state.granted -= usize::from(std::mem::take(&mut has_place));
                let reason = if state.closed {
                    Some(RejectReason::Closed)
                } else if state.queue.len() + state.granted < state.bound || (room == Room::Wait && mine()) {
                    None
                } else {
                    Some(RejectReason::Full)
                };
                match reason {
                    None => {
                        let key = state
                            .queue
                            .push(entry.take().expect("it is pushed once"), priority, group);
                        state.unfinished += 1;
                        state.call(&mut acts);
                        self.act(state, acts);
                        return Ok(key);
                    }
                    Some(RejectReason::Full) if room == Room::Wait => {
                        if wait.is_none()
                            && let Some(task) = current()
                        {
                            drop(state);
                            wait = Wait::begin(&task, &self.held);
                            if wait.is_none() {
                                let entry = entry.take().expect("it was not pushed");
                                return Err((entry, RejectReason::WouldDeadlock));
                            }
                            continue;
                        }
                    }
                    Some(reason) => {
                        drop(state);
                        return Err((entry.take().expect("it was not pushed"), reason));
                    }
                }
                let seat = Arc::<Seat>::default();
                state.submitters.push_back((Arc::clone(&seat), current().is_some()));
                if current().is_some() {
                    state.task_submitters += 1;
                    (0..state.groups.len() as GroupId).for_each(|group| state.unblock(Some(group)));
                }
                state.call(&mut acts);
                self.act(state, acts);
                seat
            };
            // A task of another pool waits: its slot is lent meanwhile.
            let waiter = current();
            if let Some(task) = &waiter
                && !task.engine.park(task.group)
            {
                self.transition(|state, _| {
                    let at = state.submitters.iter().position(|(known, _)| Arc::ptr_eq(known, &seat));
                    match at {
                        Some(at) => {
                            state.submitters.remove(at);
                            state.task_submitters -= 1;
                        }
                        None => state.granted -= 1,
                    }
                });
                return Err((entry.take().expect("it was not pushed"), RejectReason::TooManyParked));
            }
            seat.wait();
            has_place = true;
            if let Some(task) = waiter {
                task.engine.resume(task.group);
            }
        }
    }

    pub(crate) fn add_group(&self, limit: usize) -> GroupId {
        let mut state = self.state.lock();
        state.queue.add_group();
        state.groups.push(Slots::new(limit));
        state.groups.len() as GroupId - 1
    }

    pub(crate) fn set_limit(&self, limit: usize) {
        self.transition(|state, acts| {
            state.slots.set_limit(limit);
            // Those above the limit end when they look for a task.
            let above = (state.workers - state.blocked).saturating_sub(limit.max(1));
            let rest = state.idle.len().saturating_sub(above);
            acts.more.extend(state.idle.drain(rest..));
        });
    }

    /// No pool is left: a limit of 0 will not be raised, and what is queued is ended. Returns it.
    pub(crate) fn close_for_good(&self) -> Vec<Entry<R::Job>> {
        let is_paused = self.state.lock().slots.limit() == 0;
        self.close();
        if is_paused { self.abort() } else { Vec::new() }
    }

    pub(crate) fn close(&self) {
        self.transition(|state, acts| {
            state.closed = true;
            acts.more.append(&mut state.idle);
            acts.more.extend(state.asker.iter().map(|(seat, _)| Arc::clone(seat)));
        });
    }

    /// Takes out what has not started.
    pub(crate) fn abort(&self) -> Vec<Entry<R::Job>> {
        self.close();
        self.transition(State::drain)
    }

    /// False when this thread's task cannot wait for that: the pool is its own, or that of a task that waits for it.
    pub(crate) fn wait_idle(&self) -> bool {
        let Some(task) = current() else {
            self.wait_until_idle();
            return true;
        };
        let Some(wait) = Wait::for_idle(&task, self) else {
            return false;
        };
        if !task.engine.park(task.group) {
            return false;
        }
        self.wait_until_idle();
        task.engine.resume(task.group);
        drop(wait);
        true
    }

    fn wait_until_idle(&self) {
        loop {
            let seat = {
                let mut state = self.state.lock();
                if state.unfinished == 0 {
                    return;
                }
                let seat = Arc::<Seat>::default();
                state.waiters.push(Arc::clone(&seat));
                seat
            };
            seat.wait();
        }
    }

    pub(crate) fn numbers(&self) -> Numbers {
        let state = self.state.lock();
        Numbers {
            limit: state.slots.limit(),
            running: state.slots.running(),
            parked: state.slots.parked(),
            queued: state.queue.len(),
            workers: state.workers,
            most_workers: state.most,
            unfinished: state.unfinished,
        }
    }

    /// All of the state that is a number, for a program that hangs.
    pub(crate) fn describe(&self) -> String {
        let mut state = self.state.lock();
        let first = state.first();
        format!(
            "{:?} groups {:?} idle {} looks {} workers {} blocked {} unfinished {} closed {} bound {} granted {} submitters {} of tasks {} asker {:?} queued {} awaited {} first {first:?} gated {}",
            state.slots,
            state.groups,
            state.idle.len(),
            state.looks,
            state.workers,
            state.blocked,
            state.unfinished,
            state.closed,
            state.bound,
            state.granted,
            state.submitters.len(),
            state.task_submitters,
            state.asker.as_ref().map(|(_, key)| key),
            state.queue.len(),
            state.queue.awaited().count(),
            self.gate.is_some(),
        )
    }

    // ---- workers ----

    /// What the worker at `seat` does next, after the task of the group `ended` has ended.
    ///
    /// Both are one transition: the worker takes the task that its own end made startable, and no other worker is called for it.
    pub(crate) fn next(&self, seat: &Arc<Seat>, ended: Option<Option<GroupId>>) -> Next<R::Job> {
        let (mut state, mut acts) = (self.state.lock(), Acts::default());
        if let Some(group) = ended {
            state.ended(group);
            state.finished(&mut acts);
        }
        if seat.looks.swap(false, Ordering::Relaxed) {
            state.looks -= 1;
        } else if let Some(at) = state.idle.iter().position(|known| Arc::ptr_eq(known, seat)) {
            // It was woken by a call from before it fell asleep.
            state.idle.swap_remove(at);
        }
        let next = match state.first() {
            _ if state.workers - state.blocked > state.slots.limit().max(1) => self.exit(&mut state),
            Some(key) if self.gate.is_some() && state.asker.is_none() => {
                state.asker = Some((Arc::clone(seat), Some(key)));
                Next::Ask
            }
            Some(key) if self.gate.is_none() => match state.take(key) {
                Some((entry, group)) => Next::Run(entry, group),
                None => unreachable!("the first is queued"),
            },
            None if state.closed && state.unfinished == 0 => self.exit(&mut state),
            _ => {
                state.idle.push(Arc::clone(seat));
                Next::Sleep
            }
        };
        state.room(&mut acts);
        state.call(&mut acts);
        self.act(state, acts);
        next
    }

    fn exit(&self, state: &mut State<R::Job>) -> Next<R::Job> {
        state.workers -= 1;
        Next::Exit
    }

    /// The worker is gone before its time, with the task that it ran: its runtime has ended. No other worker will come.
    pub(crate) fn lost(&self, seat: &Arc<Seat>, ran: Option<(Option<GroupId>, bool)>) {
        let entries = self.transition(|state, acts| {
            if seat.looks.swap(false, Ordering::Relaxed) {
                state.looks -= 1;
            }
            state.idle.retain(|known| !Arc::ptr_eq(known, seat));
            if state.asker.as_ref().is_some_and(|(asker, _)| Arc::ptr_eq(asker, seat)) {
                state.asker = None;
            }
            state.workers -= 1;
            if let Some((group, parked)) = ran {
                if parked {
                    state.resume(group);
                }
                state.ended(group);
                state.finished(acts);
            }
            state.closed = true;
            state.drain(acts)
        });
        for entry in entries {
            R::refuse(entry.job, TaskError::Abandoned);
        }
    }

    // ---- admission ----

    /// Polls the gate for the entry that is first. Ready with what the worker does next.
    pub(crate) fn poll_admission(
        &self,
        seat: &Arc<Seat>,
        asking: &mut Option<Asking>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Admitted<R::Job>>> {
        let gate = self.gate.as_ref().expect("it asks because there is one");
        loop {
            let first = {
                let mut state = self.state.lock();
                let first = state.first();
                state.asker = first.map(|key| (Arc::clone(seat), Some(key)));
                first.map(|key| (key, state.queue.get(key).map_or(Ask::one(), |entry| entry.ask)))
            };
            let Some((key, ask)) = first else {
                // Nothing can start: the place in the gate's queue is given up.
                let given_up = asking.take();
                quietly(|| drop(given_up));
                self.transition(|_, _| ());
                return Poll::Ready(None);
            };
            let admitting = match asking {
                Some(asking) if asking.ask == ask => asking,
                _ => {
                    let given_up = asking.take();
                    quietly(|| drop(given_up));
                    asking.insert(Asking::new(&**gate, ask))
                }
            };
            let Poll::Ready(admitted) = admitting.poll(cx) else {
                // A change of the first entry calls the seat.
                match seat.poll(cx.waker()) {
                    Poll::Ready(()) => continue,
                    Poll::Pending => return Poll::Pending,
                }
            };
            let asked = asking.take();
            quietly(|| drop(asked));
            let (mut state, mut acts) = (self.state.lock(), Acts::default());
            let first = state.first();
            let is_same = |state: &State<R::Job>, key| state.queue.get(key).is_some_and(|entry| entry.ask == ask);
            let key = match first {
                Some(now) if now == key || is_same(&state, now) => now,
                _ => {
                    drop(state);
                    quietly(|| drop(admitted));
                    continue;
                }
            };
            state.asker = None;
            let taken = match admitted {
                Ok(admission) => state.take(key).map(|(entry, group)| (entry, group, admission)),
                Err(why) => {
                    let entry = state.remove(key, &mut acts);
                    state.room(&mut acts);
                    state.call(&mut acts);
                    self.act(state, acts);
                    if let Some(entry) = entry {
                        R::refuse(entry.job, TaskError::Refused(why));
                    }
                    return Poll::Ready(None);
                }
            };
            state.room(&mut acts);
            state.call(&mut acts);
            self.act(state, acts);
            return Poll::Ready(taken);
        }
    }
}

impl<R: Runner> Target for Engine<R> {
    fn held(&self) -> &[usize] {
        &self.held
    }

    fn park(&self, group: Option<GroupId>) -> bool {
        let (mut state, mut acts) = (self.state.lock(), Acts::default());
        if !state.may_block() {
            return false;
        }
        state.slots.park();
        state.blocked += 1;
        if let Some(group) = group {
            state.groups[group as usize].park();
        }
        state.unblock(group);
        state.call(&mut acts);
        self.act(state, acts);
        true
    }

    fn resume(&self, group: Option<GroupId>) {
        self.state.lock().resume(group);
    }

    fn await_it(&self, key: Key) {
        self.transition(|state, _| state.queue.await_it(key));
    }

    fn await_no_more(&self, key: Key) {
        // The entry that is asked for may be another then.
        self.transition(|state, _| state.queue.await_no_more(key));
    }

    fn cancel(&self, key: Key) -> bool {
        let entry = self.transition(|state, acts| state.remove(key, acts));
        let cancelled = entry.is_some();
        if let Some(entry) = entry {
            R::refuse(entry.job, TaskError::Cancelled);
        }
        cancelled
    }

    fn run_inline(&self, key: Key, parent: &Arc<Running>) -> bool {
        if !R::INLINES || self.gate.is_some() || parent.depth >= MAX_INLINE {
            return false;
        }
        if !std::ptr::addr_eq(Arc::as_ptr(&parent.engine), self) {
            return false;
        }
        let (mut state, mut acts) = (self.state.lock(), Acts::default());
        if !state.slots.admits_on_waiter() || state.queue.get(key).is_none_or(|entry| entry.parent != parent.id) {
            return false;
        }
        let group = state.queue.group(key);
        let has_room = match group.map(|group| &state.groups[group as usize]) {
            Some(slots) if group == parent.group => slots.admits_on_waiter(),
            Some(slots) => slots.admits(Claim::Lent),
            None => true,
        };
        if !has_room {
            return false;
        }
        let Some(entry) = state.queue.take(key) else {
            return false;
        };
        // The waiter's slot is lent to the task for which it waits.
        state.slots.park();
        state.slots.start_on_waiter();
        if let Some(waiting) = parent.group {
            state.groups[waiting as usize].park();
        }
        match group {
            Some(group) if Some(group) == parent.group => state.groups[group as usize].start_on_waiter(),
            Some(group) => state.groups[group as usize].start(),
            None => {}
        }
        state.unblock(parent.group);
        state.unblock(group);
        state.room(&mut acts);
        state.call(&mut acts);
        self.act(state, acts);
        let child = Running::new(self.me(), group, entry.link, parent.depth + 1);
        R::run_inline(&self.me(), entry.job, &child);
        child.end();
        self.transition(|state, acts| {
            state.ended(group);
            state.slots.resume();
            if let Some(waiting) = parent.group {
                state.groups[waiting as usize].resume();
            }
            state.finished(acts);
        });
        true
    }
}

/// The numbers of a pool at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Numbers {
    /// Slots.
    pub limit: usize,
    /// Tasks that run.
    pub running: usize,
    /// Tasks that have started and wait for another.
    pub parked: usize,
    /// Tasks that have not started.
    pub queued: usize,
    /// Threads, or runners.
    pub workers: usize,
    /// The most of them that there were.
    pub most_workers: usize,
    /// Tasks that were submitted and have not ended.
    pub unfinished: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Cell, Closure, Completer, Job};

    /// Its first `may` workers start, and run nothing by themselves.
    struct Refused {
        may: AtomicUsize,
    }

    impl Runner for Refused {
        type Job = Box<dyn Job>;
        const INLINES: bool = false;
        const MAX_LOOKS: usize = 1;
        fn start(&self, _: &Arc<Engine<Self>>) -> bool {
            self.may
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |may| may.checked_sub(1))
                .is_ok()
        }
        fn refuse(job: Self::Job, why: TaskError) {
            job.refuse(why);
        }
        fn max_spare(&self) -> usize {
            16
        }
    }

    fn submit(engine: &Engine<Refused>) -> Arc<Cell<()>> {
        let cell = Arc::new(Cell::new());
        let completer = Completer::of(&cell);
        let entry = Entry {
            job: Box::new(Closure { task: || (), completer }) as Box<dyn Job>,
            ask: Ask::one(),
            parent: 0,
            link: None,
        };
        assert!(engine.submit(entry, Priority::Normal, None, Room::Refuse).is_ok());
        cell
    }

    #[test]
    fn a_task_for_which_no_thread_can_be_started_is_refused() {
        let may = AtomicUsize::new(0);
        let engine = Engine::new(Refused { may }, 2, 100, None);
        for _ in 0..3 {
            let cell = submit(&engine);
            let polled = cell.poll(Waker::noop());
            assert!(matches!(polled, Poll::Ready(Err(TaskError::NoThread))));
        }
        let numbers = engine.numbers();
        assert_eq!((numbers.workers, numbers.unfinished), (0, 0));
    }

    #[test]
    fn a_task_waits_for_a_busy_worker_when_no_other_can_be_started() {
        let may = AtomicUsize::new(1);
        let engine = Engine::new(Refused { may }, 2, 100, None);
        let seat = Seat::of_worker();
        submit(&engine);
        assert!(matches!(engine.next(&seat, None), Next::Run(..)));
        let second = submit(&engine);
        assert!(second.poll(Waker::noop()).is_pending());
        assert!(matches!(engine.next(&seat, Some(None)), Next::Run(..)));
        assert!(matches!(engine.next(&seat, Some(None)), Next::Sleep));
    }
}
