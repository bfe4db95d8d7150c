//! Runs a pool: its lock with the state under it, the bound on its queue, and its settings. Tasks, hooks, wakers and
//! drops run outside the lock.

use super::entry::Entry;
use super::queue::Key;
use super::seat::Seat;
use super::state::{Acts, Counts, Next, State};
use super::waits::{Held, Inside, Lends, Slot};
use crate::pool::admission::{Admission, Asking, Refused, Ticket};
use crate::pool::capacity::{Capacity, Overflow};
use crate::pool::cell::{Await, Queued};
use crate::pool::common::PoolStats;
use crate::pool::error::{PoolError, TaskError};
use crate::pool::group::Abort;
use crate::pool::handle::Handle;
use crate::pool::hooks::{PanicHook, Payload, drop_quietly, forget_panic, quietly, wake};
use crate::pool::report::Unstarted;
use crate::pool::task_options::TaskOptions;
use crate::sync::shim::atomic::{AtomicBool, Ordering};
use crate::sync::shim::{Mutex, MutexGuard};
use crate::time::Clock;
use crossbeam_utils::CachePadded;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};

/// The operations in which kinds of pools differ.
pub(in crate::pool) trait Kind: Sized + Send + Sync {
    /// True if workers are threads: these are expensive to start, and are called one at a time.
    const THREADS: bool;
    /// A task inside its entry, without a handle.
    type Inline: Send;
    /// A task with a cell, as its queue sees it, and as its handle sees it.
    type Run: Queued + ?Sized;
    type Job<T>: Queued + Await<T> + ?Sized;
    /// The state of a worker that other threads read.
    type Worker: Default + Send + Sync;
    /// The state under the lock of the pool that only this kind has.
    type Shared: Default + Send;
    /// Runs before each transition, under the lock. `settle` runs after it, under the lock.
    fn enter(&self, _: &mut State<Self>) {}
    fn settle(&self, _: &mut State<Self>, _: &mut Acts<Self>) {}
    /// Closes the intake. Runs before the pool enters the tasks that it has already accepted.
    fn close(&self) {}
    /// Takes the next task of the worker's local queue.
    fn take_local(_: &Self::Worker) -> Option<Entry<Self>> {
        None
    }
    /// Counts the tasks that were submitted elsewhere, and those that were claimed elsewhere if there is no room for one of this weight.
    fn collect(&self, _: &mut State<Self>, _weight: u32) {}
    /// Gives the claimed task to the worker at `seat`. Runs under the lock of the pool, so the end of the pool finds the
    /// task either queued or started.
    fn starts(_: &Entry<Self>, _: &Seat<Self::Worker>) {}
    /// Starts a worker.
    fn start(engine: &Arc<Engine<Self>>, seat: Arc<Seat<Self::Worker>>);
    /// Starts one more worker, if the pool may have one more.
    fn grow(_: &Arc<Engine<Self>>) {}
    fn queued<T>(task: &Arc<Self::Job<T>>) -> Arc<Self::Run>;
    /// Ends a running task. Returns false if it has ended, or cannot be ended.
    fn end_running<T>(_: &Self::Job<T>) -> bool {
        false
    }
    /// Returns a function that ends the task, if it is running then. `None`: running tasks cannot be ended.
    fn abort<T>(_: &Handle<Self, T>) -> Option<Abort> {
        None
    }
    /// Runs the task inline, in its waiter, if the task is queued and needs only a slot. Returns whether it ran or expired.
    fn help<T>(_: &Handle<Self, T>) -> bool {
        false
    }
    /// Returns the numbers of tasks that the worker has started from its local queue, and that it has ended, and has not reported.
    fn unreported(_: &Self::Worker) -> (usize, usize) {
        (0, 0)
    }
}

/// A kind of pools: [`Threads`](crate::pool::Threads), or `Tasks` (feature `tokio`).
#[allow(private_bounds)]
pub trait PoolKind: Kind {}

#[allow(private_bounds)]
impl<K: Kind> PoolKind for K {}

/// Takes the tasks that a full queue has evicted.
pub(in crate::pool) type DiscardHook<K> = dyn Fn(Unstarted<K>) + Send + Sync;

/// The settings of a pool, fixed when it is built.
pub(in crate::pool) struct Settings {
    pub(in crate::pool) max_queue: usize,
    pub(in crate::pool) max_queue_weight: Option<u32>,
    pub(in crate::pool) clock: Clock,
    pub(in crate::pool) admission: Admission,
    pub(in crate::pool) overflow: Overflow,
    pub(in crate::pool) on_panic: Option<Box<PanicHook>>,
}

pub(in crate::pool) struct Engine<K: Kind> {
    state: CachePadded<Mutex<State<K>>>,
    /// True if the queue was full in the latest transition: then a submission makes no task before it has capacity. A hint.
    full: AtomicBool,
    pub(in crate::pool) settings: Settings,
    pub(in crate::pool) on_discard: Option<Box<DiscardHook<K>>>,
    /// The permits that an admitted task holds, as last read from the policy.
    held: Mutex<Held>,
    pub(in crate::pool) kind: K,
}

/// An admitted entry, whether it runs on a lent slot, its ticket, and the permits that it holds.
type Admitted<E> = (E, bool, Ticket, Held);

impl<K: Kind> Engine<K> {
    pub(in crate::pool) fn build(
        limit: usize,
        settings: Settings,
        on_discard: Option<Box<DiscardHook<K>>>,
        kind: K,
    ) -> Result<Arc<Self>, PoolError> {
        // Shared slots are the only slots of such a pool.
        let own = if settings.admission.slots.is_some() && !K::THREADS {
            usize::MAX
        } else {
            limit
        };
        let capacity = Capacity::checked(settings.max_queue, settings.max_queue_weight)?;
        let state = State::new(own, settings.admission.is_gated(), capacity);
        Ok(Arc::new(Self {
            state: CachePadded::new(Mutex::new(state)),
            full: AtomicBool::new(false),
            held: Mutex::new(Arc::new([])),
            settings,
            on_discard,
            kind,
        }))
    }

    /// Locks the state, for reading only.
    pub(in crate::pool) fn look(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock()
    }

    /// Returns true if a submission will probably find the queue full.
    #[inline]
    pub(in crate::pool) fn seems_full(&self) -> bool {
        // Relaxed: a hint, stored by `transition`.
        self.full.load(Ordering::Relaxed)
    }

    /// Runs a transition, and then its actions outside the lock.
    #[inline]
    pub(in crate::pool) fn transition<T>(self: &Arc<Self>, step: impl FnOnce(&mut State<K>, &mut Acts<K>) -> T) -> T {
        let mut acts = Acts::default();
        let mut state = self.state.lock();
        self.kind.enter(&mut state);
        let result = step(&mut state, &mut acts);
        if state.capacity.waits() {
            state.capacity.serve(&mut acts.wake);
        }
        if state.capacity.has_room(1) == self.seems_full() {
            // Relaxed: a hint.
            self.full.store(!self.seems_full(), Ordering::Relaxed);
        }
        self.kind.settle(&mut state, &mut acts);
        drop(state);
        if !acts.is_empty() {
            self.act(acts);
        }
        result
    }

    #[cold]
    fn act(self: &Arc<Self>, acts: Acts<K>) {
        for seat in acts.call {
            seat.call();
        }
        for waker in acts.wake {
            wake(Some(waker));
        }
        for seat in acts.start {
            K::start(self, seat);
        }
        if acts.grow {
            K::grow(self);
        }
        acts.dead.into_iter().for_each(drop_quietly);
        if !acts.late.is_empty() {
            self.expire(acts.late);
        }
    }

    /// Ends claimed tasks that are [late](Self::is_late).
    fn expire(self: &Arc<Self>, entries: Vec<Entry<K>>) {
        let is_stopped = |entry: &Entry<K>| entry.options().is_some_and(TaskOptions::is_stopped);
        self.refuse(entries, |entry| match is_stopped(entry) {
            true => TaskError::Cancelled,
            false => TaskError::Expired,
        });
    }

    /// Passes the payload of a panic that no handle takes to the hook, if there is one.
    pub(in crate::pool) fn orphan(&self, payload: Payload) {
        match &self.settings.on_panic {
            Some(hook) => quietly(|| hook(payload)),
            None => forget_panic(Err(payload)),
        }
    }

    /// Counts and passes on the payload of a panic in the drop of a result, whose task was counted before.
    #[cold]
    pub(in crate::pool) fn result_panicked(self: &Arc<Self>, payload: Payload) {
        self.transition(|state, _| state.stats.panicked += 1);
        self.orphan(payload);
    }

    /// Returns true if a task with these options is not to start: its deadline has passed, or its group has failed.
    pub(in crate::pool) fn is_late(&self, options: Option<&TaskOptions>) -> bool {
        options.is_some_and(|options| {
            let deadline = options.deadline;
            deadline.is_some_and(|deadline| self.settings.clock.now() > deadline) || options.is_stopped()
        })
    }

    /// Ends claimed tasks without running them. They count as ended when they are dropped, and as expired or refused unless they were
    /// cancelled.
    #[cold]
    fn refuse(self: &Arc<Self>, entries: Vec<Entry<K>>, mut why: impl FnMut(&Entry<K>) -> TaskError) {
        let (n, inside) = (entries.len(), (Inside::drops(&**self), Inside::aside()));
        let (mut cancelled, mut expired, mut refused) = (0, 0, 0);
        for entry in entries {
            let why = why(&entry);
            let count = match why {
                TaskError::Cancelled => &mut cancelled,
                TaskError::Expired => &mut expired,
                _ => &mut refused,
            };
            *count += u64::from(entry.refuse(why));
        }
        drop(inside);
        self.transition(|state, acts| {
            state.stats.expired += expired;
            state.stats.refused += refused;
            state.dropped(n, acts);
        });
    }

    // ---- handles ----

    /// Cancels a task. Returns false when it is too late.
    pub(in crate::pool) fn cancel<T>(handle: &Handle<K, T>) -> bool {
        let core = &handle.core;
        if !handle.task.is_queued() || !core.transition(|state, acts| state.cancel(&*handle.task, acts)) {
            return handle.task.refuse(TaskError::Cancelled) || K::end_running(&handle.task);
        }
        let dropping = Inside::drops(&**core);
        // False if a waker has cancelled the task as well.
        let ended = handle.task.refuse(TaskError::Cancelled);
        drop(dropping);
        core.transition(|state, acts| state.dropped(1, acts));
        ended
    }

    /// Returns the second entry of a queued task, by which it starts while it is awaited.
    pub(in crate::pool) fn awaited<T>(handle: &Handle<K, T>) -> Option<Entry<K>> {
        let is_queued = handle.task.is_queued();
        is_queued.then(|| Entry::of(K::queued(&handle.task)))
    }

    /// Lists the second entry of a task, if the task is queued. Returns its number.
    pub(super) fn await_it(self: &Arc<Self>, entry: Option<Entry<K>>) -> Option<u64> {
        let mut entry = Some(entry?);
        let number = self.transition(|state, acts| {
            // A task that was claimed meanwhile needs no worker.
            if !entry.as_ref()?.is_live() {
                return None;
            }
            let number = state.queue.await_it(entry.take()?);
            state.call(acts);
            Some(number)
        });
        drop(entry);
        number
    }

    pub(super) fn await_no_more(self: &Arc<Self>, number: Option<u64>) {
        let Some(number) = number else { return };
        let entry = self.transition(|state, acts| {
            let entry = state.queue.remove(Key::Awaited(number))?;
            state.call(acts);
            Some(entry)
        });
        drop(entry);
    }

    // ---- workers ----

    /// Returns the next step of the worker at `seat`, in the transition that counts the tasks that the worker has ended. So the
    /// worker takes the task that its own finished task made startable, and the pool calls no other worker for it.
    #[inline]
    pub(in crate::pool) fn next(
        &self,
        state: &mut State<K>,
        seat: &Arc<Seat<K::Worker>>,
        patient: bool,
        acts: &mut Acts<K>,
    ) -> Next<Entry<K>> {
        let next = state.next(seat, patient, |entry| self.is_late(entry.options()), acts);
        if let Next::Run(entry, _) = &next {
            K::starts(entry, seat);
        }
        next
    }

    /// Asks for the admission of the first task. Ready with the task that starts, or with `None`.
    pub(in crate::pool) fn poll_admission(
        self: &Arc<Self>,
        seat: &Arc<Seat<K::Worker>>,
        asking: &mut Option<Asking>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Admitted<Entry<K>>>> {
        loop {
            // Register the waker before reading which task is first: every later change of that task calls this worker.
            seat.listen(cx);
            let mut late = None;
            let first = self.transition(|state, acts| {
                let key = state.asks(seat, acts)?;
                let entry = state.queue.get(key)?;
                if !entry.is_live() || self.is_late(entry.options()) {
                    late = state.refused(seat, key, acts);
                    return None;
                }
                Some((key, entry.ask()))
            });
            let Some((key, ask)) = first else {
                // Gives up the place in the queue of the policy, or its permit. **Deadlock**: the drop of a late task may wait for
                // that permit, so the task is refused afterwards.
                drop_quietly(asking.take());
                if let Some(late) = late {
                    self.expire(vec![late]);
                }
                return Poll::Ready(None);
            };
            let admission = &self.settings.admission;
            // An ask that equals the previous one keeps its place in the policy's queue.
            drop_quietly(asking.take_if(|asking| asking.ask != ask && admission.gate.is_some()));
            let polled = asking.get_or_insert_with(|| admission.ask(ask, cx.waker())).poll();
            let Poll::Ready(admitted) = polled else {
                return Poll::Pending;
            };
            drop_quietly(asking.take());
            // Reading the policy's permits calls user code, which may panic as well.
            let held = |ticket| match catch_unwind(AssertUnwindSafe(|| self.held())) {
                Ok(held) => Ok((ticket, held)),
                Err(payload) => {
                    Ticket::cancel(ticket);
                    Err(Refused::Task(TaskError::panicked(payload)))
                }
            };
            match admitted.and_then(held) {
                Ok((ticket, held)) => {
                    let fits = |entry: &Entry<K>| entry.ask() == ask && !self.is_late(entry.options());
                    let entry = self.transition(|state, acts| {
                        let (entry, borrows) = state.admitted(fits, acts)?;
                        K::starts(&entry, seat);
                        Some((entry, borrows))
                    });
                    match entry {
                        Some((entry, borrows)) => return Poll::Ready(Some((entry, borrows, ticket, held))),
                        // The task has left the queue meanwhile, or another task is first now.
                        None => ticket.cancel(),
                    }
                }
                Err(Refused::Task(why)) => {
                    let entry = self.transition(|state, acts| state.refused(seat, key, acts));
                    let mut why = Some(why);
                    match entry {
                        Some(entry) => self.refuse(vec![entry], |_| why.take().unwrap_or(TaskError::Abandoned)),
                        None => drop_quietly(why),
                    }
                    return Poll::Ready(None);
                }
                Err(Refused::Closed) => {
                    self.abandon();
                    return Poll::Ready(None);
                }
            }
        }
    }

    /// Removes a worker that has exited in order, was dropped, or never started.
    pub(in crate::pool) fn left(self: &Arc<Self>, seat: &Arc<Seat<K::Worker>>, ended: Counts, in_order: bool) {
        let is_forlorn = self.transition(|state, acts| {
            state.count(ended, acts);
            state.left(seat, in_order, acts)
        });
        if is_forlorn {
            self.abandon();
        }
    }

    /// Ends all queued tasks as abandoned.
    fn abandon(self: &Arc<Self>) {
        let entries = self.stop();
        let _aside = Inside::aside();
        for entry in entries {
            entry.refuse(TaskError::Abandoned);
        }
    }

    // ---- the pool ----

    pub(in crate::pool) fn limit(&self) -> usize {
        match &self.settings.admission.slots {
            Some(slots) => slots.limit(),
            None => self.look().slots.limit,
        }
    }

    pub(in crate::pool) fn resize(self: &Arc<Self>, limit: usize) {
        if let Some(slots) = &self.settings.admission.slots {
            // The wakers of slot waiters may panic.
            quietly(|| slots.set_limit(limit));
        }
        if K::THREADS || self.settings.admission.slots.is_none() {
            self.transition(|state, acts| state.set_limit(limit, acts));
        }
    }

    pub(in crate::pool) fn close(self: &Arc<Self>) {
        self.kind.close();
        self.transition(State::close);
    }

    /// Stops the pool: removes all tasks that have not started, and starts no others.
    pub(in crate::pool) fn stop(self: &Arc<Self>) -> Vec<Entry<K>> {
        self.kind.close();
        self.transition(State::stop)
    }

    /// Returns the permits that a task holds while it runs, according to the current policy.
    pub(in crate::pool) fn held(&self) -> Held {
        let admission = &self.settings.admission;
        if !admission.is_gated() {
            return Arc::clone(&self.held.lock());
        }
        // The policy may have been reloaded. Ask it outside the lock.
        let now = admission.held();
        let mut held = self.held.lock();
        if **held != *now {
            *held = now.into();
        }
        Arc::clone(&held)
    }
}

impl<K: Kind> Lends for Engine<K> {
    fn lend(self: Arc<Self>, slot: &Slot) -> bool {
        self.transition(|state, acts| {
            let parks = !slot.adds() || state.park(acts);
            if !parks {
                slot.removes();
            }
            parks
        })
    }

    fn take_back(self: Arc<Self>, slot: &Slot) {
        self.transition(|state, _| {
            if slot.removes() {
                state.resume();
            }
        });
    }
}

/// The statistics of a pool.
impl<K: Kind> Engine<K> {
    pub(in crate::pool) fn stats(self: &Arc<Self>) -> PoolStats {
        let limit = self.limit();
        self.transition(|state, _| state.stats(limit))
    }
}
