//! Runs a pool: its lock with the state under it, the bound on its queue, and its settings. Tasks, hooks, wakers and
//! drops run outside the lock.

use super::group_limit::Membership;
use super::seat::Seat;
use super::state::{Acts, Counts, Gone, Next, Phase, State, TaskQueue};
use super::waits::{Held, Inside, Lends, Slot};
use crate::core::ask::Ask;
use crate::pool::admission::{Admission, Asking, Refused, Ticket};
use crate::pool::cache_padded::CachePadded;
use crate::pool::capacity::Capacity;
use crate::pool::cell::Await;
use crate::pool::error::TaskError;
use crate::pool::handle::Handle;
use crate::pool::hooks::{self, PanicHook, Payload, drop_quietly, wake};
use crate::pool::overflow::Overflow;
use crate::pool::report::Unstarted;
use crate::pool::stats::PoolStats;
use crate::pool::task_options::Priority;
use crate::pool::task_set::Abort;
use crate::sync::shim::{Mutex, MutexGuard};
use crate::time::{Clock, Instant};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};

/// An entry in the queue of a pool.
pub(in crate::pool) trait Entry {
    /// Returns the number of queue places that the entry takes.
    fn places(&self) -> usize {
        1
    }
    /// Returns the queue weight that the entry takes.
    fn weight(&self) -> u32;
    fn priority(&self) -> Priority;
    fn ask(&self) -> Ask;
    fn deadline(&self) -> Option<Instant>;
    /// Returns true if the task has started through another entry, or has ended.
    fn is_dead(&self) -> bool {
        false
    }
    /// Claims the task: no other entry of the task starts it from now on, unless one already has. Called under the lock
    /// of the pool.
    fn claim(&mut self) {}
    /// Returns the task's membership in its group, if the group has a limit.
    fn member(&self) -> Option<&Arc<Membership>>;
    /// Ends the task without running it. Returns false if the task had already started or ended.
    fn refuse(self, why: TaskError) -> bool;
    /// Ends a task like `refuse`, after it was set aside.
    fn refuse_aside(self, why: TaskError) -> bool
    where
        Self: Sized,
    {
        self.refuse(why)
    }
    /// Sets the task aside, to be returned to the user. Returns false if the task has started through another entry, or has ended.
    fn set_aside(&self) -> bool {
        true
    }
    fn is_returned(&self) -> bool {
        self.set_aside()
    }
}

/// The operations in which kinds of pools differ.
pub(in crate::pool) trait Kind: Sized + Send + Sync {
    type Entry: Entry;
    type TaskQueue: TaskQueue<Entry = Self::Entry>;
    /// A task, as its handle sees it, and what the handle finds it by in the queue.
    type Job<T>: Await<T> + ?Sized;
    type At;
    /// A queued task that is to be awaited, and one that is.
    type Target;
    type Awaited;
    const THREADS: bool = <Self::TaskQueue as TaskQueue>::THREADS;
    /// Runs before each transition, under the lock. `settle` runs after it, under the lock.
    fn enter(&self, _: &mut State<Self::TaskQueue>) {}
    fn settle(&self, _: &mut State<Self::TaskQueue>, _: &mut Acts<Own<Self>>) {}
    /// Closes the intake. Runs before the pool enters the tasks that it has already accepted.
    fn close(&self) {}
    /// Removes all entries from the queue and from every other place where they wait.
    fn drain(&self, state: &mut State<Self::TaskQueue>) -> Vec<Self::Entry>;
    /// Removes the entry that a full queue evicts first.
    fn evict(&self, state: &mut State<Self::TaskQueue>) -> Option<Self::Entry>;
    /// Returns the hook for tasks that the pool discarded.
    fn on_discard(&self) -> Option<&DiscardHook<Self>>;
    /// Marks the entry as taken by the worker at `seat`. Runs under the lock of the pool, so the end of the pool finds
    /// the entry either queued or started.
    fn starts(entry: &mut Self::Entry, seat: &Seat<Own<Self>>);
    /// Starts a worker.
    fn start(engine: &Arc<Engine<Self>>, seat: Arc<Seat<Own<Self>>>);
    /// Starts one more worker, if the pool may have one more.
    fn grow(_: &Arc<Engine<Self>>) {}
    /// Collects the capacity that workers and ended tasks still have, for a submitter that found the queue full.
    fn collect(_: &Arc<Engine<Self>>) {}
    /// Cancels the task. Returns false when it is too late.
    fn cancel<T>(handle: &Handle<Self, T>) -> bool;
    /// Returns a function that ends the task, if it is running then. `None`: running tasks cannot be ended.
    fn abort<T>(_: &Handle<Self, T>) -> Option<Abort> {
        None
    }
    /// Runs the task inline, in its waiter, if the task is queued and needs only a slot. Returns whether it ran or expired.
    fn help<T>(_: &Handle<Self, T>) -> bool {
        false
    }
    /// Returns false if the task needs no help any more.
    fn may_help<T>(_: &Handle<Self, T>) -> bool {
        true
    }
    /// Returns the task's place in the queue, by which it is awaited.
    fn target<T>(handle: &Handle<Self, T>) -> Self::Target;
    /// Marks the queued task as awaited by one more task.
    fn await_it(engine: &Arc<Engine<Self>>, target: Self::Target) -> Self::Awaited;
    fn await_no_more(engine: &Arc<Engine<Self>>, awaited: Self::Awaited);
    /// Corrects the statistics by the tasks that only workers know.
    fn correct(_: &State<Self::TaskQueue>, _: &mut PoolStats) {}
}

/// A kind of pools: [`Threads`](crate::pool::Threads), or `Tasks` (feature `tokio`).
#[allow(private_bounds)]
pub trait PoolKind: Kind {}

#[allow(private_bounds)]
impl<K: Kind> PoolKind for K {}

/// The state of a worker that other threads read.
pub(in crate::pool) type Own<K> = <<K as Kind>::TaskQueue as TaskQueue>::Own;

/// Takes the tasks that a full queue has evicted.
pub(in crate::pool) type DiscardHook<K> = dyn Fn(Unstarted<K>) + Send + Sync;

/// The settings of a pool, fixed when it is built.
pub(in crate::pool) struct Settings {
    pub(in crate::pool) clock: Clock,
    pub(in crate::pool) admission: Admission,
    pub(in crate::pool) overflow: Overflow,
    pub(in crate::pool) on_panic: Option<Box<PanicHook>>,
}

pub(in crate::pool) struct Engine<K: Kind> {
    state: CachePadded<Mutex<State<K::TaskQueue>>>,
    pub(in crate::pool) capacity: Capacity,
    pub(in crate::pool) settings: Settings,
    /// The permits that an admitted task holds, as last read from the policy.
    held: Mutex<Held>,
    pub(in crate::pool) kind: K,
}

/// An admitted entry, whether it runs on a lent slot, its ticket, and the permits that it holds.
type Admitted<E> = (E, bool, Ticket, Held);

impl<K: Kind> Engine<K> {
    pub(in crate::pool) fn new(
        queue: K::TaskQueue,
        limit: usize,
        capacity: Capacity,
        settings: Settings,
        kind: K,
    ) -> Self {
        // Shared slots are the only slots of such a pool.
        let own = if settings.admission.slots.is_some() && !K::THREADS {
            usize::MAX
        } else {
            limit
        };
        Self {
            state: CachePadded::new(Mutex::new(State::new(queue, own, settings.admission.is_gated()))),
            capacity,
            held: Mutex::new(Arc::new([])),
            settings,
            kind,
        }
    }

    /// Locks the state, for reading only.
    pub(in crate::pool) fn look(&self) -> MutexGuard<'_, State<K::TaskQueue>> {
        self.state.lock()
    }

    /// Runs a transition, and then its actions outside the lock.
    #[inline]
    pub(in crate::pool) fn transition<T>(
        self: &Arc<Self>,
        step: impl FnOnce(&mut State<K::TaskQueue>, &mut Acts<Own<K>>) -> T,
    ) -> T {
        let mut acts = Acts::default();
        let mut state = self.state.lock();
        self.kind.enter(&mut state);
        let result = step(&mut state, &mut acts);
        self.kind.settle(&mut state, &mut acts);
        drop(state);
        if !acts.is_empty() {
            self.act(acts);
        }
        result
    }

    #[cold]
    fn act(self: &Arc<Self>, acts: Acts<Own<K>>) {
        for seat in acts.call {
            seat.call();
        }
        for waker in acts.idleness {
            wake(Some(waker));
        }
        for seat in acts.start {
            K::start(self, seat);
        }
        if acts.grow {
            K::grow(self);
        }
    }

    pub(in crate::pool) fn orphan(&self, payload: Payload) {
        hooks::tell_of_panic(self.settings.on_panic.as_deref(), payload);
    }

    pub(in crate::pool) fn is_late(&self, entry: &K::Entry) -> bool {
        entry
            .deadline()
            .is_some_and(|deadline| self.settings.clock.now() > deadline)
    }

    fn is_gone(&self, entry: &K::Entry) -> Option<Gone> {
        if entry.is_dead() {
            Some(Gone::Dead)
        } else {
            self.is_late(entry).then_some(Gone::Late)
        }
    }

    /// Ends dequeued tasks without running them. Returns the number of tasks that it ended.
    pub(in crate::pool) fn refuse(
        &self,
        entries: impl IntoIterator<Item = K::Entry>,
        mut why: impl FnMut() -> TaskError,
    ) -> usize {
        let (mut refused, _aside) = (0, Inside::aside());
        for entry in entries {
            self.give_back(&entry);
            refused += usize::from(entry.refuse(why()));
        }
        refused
    }

    /// Gives back the queue places and the weight of an entry that has left the queue.
    pub(in crate::pool) fn give_back(&self, entry: &K::Entry) {
        self.capacity.give_back(entry.places(), u64::from(entry.weight()));
    }

    /// Ends tasks whose deadline has passed. The caller has already counted them.
    #[cold]
    fn expire(self: &Arc<Self>, entries: Vec<K::Entry>) {
        self.refuse(entries, || TaskError::Expired);
    }

    // ---- workers ----

    /// Returns the next step of the worker at `seat`. First counts the tasks that the worker has ended, and frees its
    /// slot, lent or not.
    ///
    /// All of this is one transition. So the worker takes the task that its own finished task made startable, and the
    /// pool calls no other worker for it.
    #[inline]
    pub(in crate::pool) fn next(
        self: &Arc<Self>,
        seat: &Arc<Seat<Own<K>>>,
        ended: Counts,
        slot: Option<bool>,
        patient: bool,
        before: impl FnOnce(&mut State<K::TaskQueue>),
        after: impl FnOnce(&mut State<K::TaskQueue>, &Next<K::Entry>),
    ) -> Next<K::Entry> {
        let mut gone = Vec::new();
        let next = self.transition(|state, acts| {
            state.count(ended, acts);
            if let Some(borrowed) = slot {
                state.free_slot(borrowed);
            }
            before(state);
            let mut next = state.next(seat, patient, |entry| self.is_gone(entry), &mut gone, acts);
            if let Next::Run(entry, _) = &mut next {
                K::starts(entry, seat);
            }
            after(state, &next);
            next
        });
        if !gone.is_empty() {
            self.expire(gone);
        }
        next
    }

    /// Asks for the admission of the first task. Ready with the task that starts, or with `None`.
    pub(in crate::pool) fn poll_admission(
        self: &Arc<Self>,
        seat: &Arc<Seat<Own<K>>>,
        asking: &mut Option<Asking>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Admitted<K::Entry>>> {
        loop {
            // Register the waker before reading which task is first: every later change of that task calls this worker.
            seat.listen(cx);
            let mut gone = None;
            let first = self.transition(|state, acts| {
                let key = state.asks(seat, acts)?;
                let entry = state.get(key)?;
                if let Some(why) = self.is_gone(entry) {
                    state.stats.expired += u64::from(why == Gone::Late);
                    gone = state.refused(seat, key, acts);
                    return None;
                }
                Some((key, entry.ask()))
            });
            let Some((key, ask)) = first else {
                // Gives up the place in the queue of the policy.
                drop_quietly(asking.take());
                self.expire(gone.into_iter().collect());
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
                    let fits = |entry: &K::Entry| entry.ask() == ask && self.is_gone(entry).is_none();
                    let entry = self.transition(|state, acts| {
                        let (mut entry, borrows) = state.admitted(fits, acts)?;
                        K::starts(&mut entry, seat);
                        Some((entry, borrows))
                    });
                    match entry {
                        Some((entry, borrows)) => return Poll::Ready(Some((entry, borrows, ticket, held))),
                        // The task has left the queue meanwhile, or another task is first now.
                        None => ticket.cancel(),
                    }
                }
                Err(Refused::Task(why)) => {
                    let entry = self.transition(|state, acts| {
                        let mut entry = state.refused(seat, key, acts)?;
                        state.stats.refused += u64::from(!entry.is_dead());
                        entry.claim();
                        Some(entry)
                    });
                    let mut why = Some(why);
                    match entry {
                        Some(entry) => _ = self.refuse([entry], || why.take().unwrap_or(TaskError::Abandoned)),
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
    pub(in crate::pool) fn left(
        self: &Arc<Self>,
        seat: &Arc<Seat<Own<K>>>,
        ended: Counts,
        slot: Option<bool>,
        member: Option<Arc<Membership>>,
        in_order: bool,
    ) {
        let is_forlorn = self.transition(|state, acts| {
            if let Some(member) = member {
                state.member_ended(&member);
            }
            if let Some(borrowed) = slot {
                state.free_slot(borrowed);
            }
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

    /// Lends the slot of a runner whose task waits. `resume` ends the loan.
    pub(in crate::pool) fn park(self: &Arc<Self>) -> bool {
        self.transition(State::park)
    }

    pub(in crate::pool) fn resume(self: &Arc<Self>) {
        self.transition(|state, _| state.resume());
    }

    // ---- the pool ----

    pub(in crate::pool) fn limit(&self) -> usize {
        match &self.settings.admission.slots {
            Some(slots) => slots.limit(),
            None => self.look().limit(),
        }
    }

    pub(in crate::pool) fn resize(self: &Arc<Self>, limit: usize) {
        if let Some(slots) = &self.settings.admission.slots {
            // The wakers of slot waiters may panic.
            hooks::quietly(|| slots.set_limit(limit));
        }
        if K::THREADS || self.settings.admission.slots.is_none() {
            self.transition(|state, acts| state.set_limit(limit, acts));
        }
    }

    pub(in crate::pool) fn close(self: &Arc<Self>) {
        self.kind.close();
        self.transition(State::close);
        self.capacity.close();
    }

    /// Stops the pool: removes all tasks that have not started, and starts no others.
    pub(in crate::pool) fn stop(self: &Arc<Self>) -> Vec<K::Entry> {
        self.kind.close();
        let entries = self.transition(|state, acts| {
            state.phase = Phase::Stopped;
            let entries = self.kind.drain(state);
            state.stop(entries.len(), acts);
            entries
        });
        self.capacity.close();
        entries
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

    fn end(self: Arc<Self>, slot: &Slot) {
        self.transition(|state, _| {
            if slot.ends() {
                state.resume();
            }
        });
    }
}

/// The statistics of a pool.
impl<K: Kind> Engine<K> {
    pub(in crate::pool) fn stats(self: &Arc<Self>) -> PoolStats {
        let limit = self.limit();
        self.transition(|state, _| {
            let mut stats = state.stats(limit);
            K::correct(state, &mut stats);
            stats
        })
    }
}
