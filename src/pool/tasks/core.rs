//! What handles and runners of a task pool share: the state of the engine, the bound on its queue, and what was decided when the
//! pool was built. Futures, hooks, wakers and drops run outside the lock.

use super::entry::{Entry, UnstartedTask};
use super::runner;
use crate::pool::admission::{Admission, Asking, Refused, Ticket};
use crate::pool::cell::Ran;
use crate::pool::end_wait::Ends;
use crate::pool::engine::queue::Key;
use crate::pool::engine::seat::Seat;
use crate::pool::engine::state::{Acts, Next, State};
use crate::pool::engine::waits::{Held, Home};
use crate::pool::error::TaskError;
use crate::pool::hooks::{self, PanicHook, Payload, drop_quietly, wake};
use crate::pool::overflow::{Crowded, Overflow};
use crate::pool::quiet::Wait;
use crate::pool::room::Room;
use crate::pool::runtime::Runtime;
use crate::pool::state::Phase;
use crate::pool::stats::PoolStats;
use crate::sync::shim::Mutex;
use crate::time::{Clock, Sleep};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(super) type DiscardHook = dyn Fn(UnstartedTask) + Send + Sync;

pub(super) struct Settings {
    pub(super) clock: Clock,
    pub(super) admission: Admission,
    pub(super) overflow: Overflow,
    pub(super) on_panic: Option<Box<PanicHook>>,
    pub(super) on_discard: Option<Box<DiscardHook>>,
    pub(super) runtime: Runtime,
}

/// How a task ended that its runner has not told of.
pub(super) struct Ended {
    pub(super) ran: Ran,
    /// It had started on a lent slot.
    pub(super) borrowed: bool,
    pub(super) is_parked: bool,
}

pub(super) struct Core {
    state: Mutex<State<Entry>>,
    pub(super) room: Room,
    pub(super) settings: Settings,
    /// What tasks hold that are admitted, as it was found last.
    held: Mutex<Held>,
}

impl Core {
    pub(super) fn new(limit: usize, room: Room, settings: Settings) -> Self {
        // Slots that others share are all the slots that there are.
        let own = if settings.admission.slots.is_some() {
            usize::MAX
        } else {
            limit
        };
        Self {
            state: Mutex::new(State::new(own, settings.admission.is_gated())),
            room,
            held: Mutex::new(Arc::new([])),
            settings,
        }
    }

    /// Runs a transition, and then what it wants done.
    fn transition<T>(self: &Arc<Self>, step: impl FnOnce(&mut State<Entry>, &mut Acts) -> T) -> T {
        let mut acts = Acts::default();
        let result = step(&mut self.state.lock(), &mut acts);
        for seat in acts.call {
            seat.call();
        }
        for waker in acts.quiet {
            wake(Some(waker));
        }
        for seat in acts.start {
            let runner = runner::run(Arc::clone(self), seat);
            // A runner that is not started is dropped, and strikes itself off.
            drop(self.settings.runtime.spawn(runner));
        }
        result
    }

    pub(super) fn orphan(&self, payload: Payload) {
        hooks::tell_of_panic(self.settings.on_panic.as_deref(), payload);
    }

    fn is_late(&self, entry: &Entry) -> bool {
        entry
            .deadline
            .is_some_and(|deadline| self.settings.clock.now() > deadline)
    }

    /// Ends a task that was taken out of the queue without a run.
    fn refuse(&self, entry: Entry, why: TaskError) {
        self.room.give_back(1, u64::from(entry.weight));
        entry.task.refuse(why);
    }

    // ---- the queue ----

    /// Queues a task for which room has been taken. None when no more are taken: the submitter has another hold on it.
    pub(super) fn push(self: &Arc<Self>, entry: Entry) -> Option<Key> {
        self.transition(|state, acts| {
            if state.phase != Phase::Running {
                return None;
            }
            let priority = entry.priority;
            let key = state.push(entry, priority);
            state.call(acts);
            Some(key)
        })
    }

    /// Queues tasks, in order, at once. None, and none is queued, when no more are taken.
    pub(super) fn push_all(self: &Arc<Self>, entries: impl Iterator<Item = Entry>) -> Option<Vec<Key>> {
        self.transition(|state, acts| {
            if state.phase != Phase::Running {
                return None;
            }
            let push = |entry: Entry| {
                let priority = entry.priority;
                state.push(entry, priority)
            };
            let keys = entries.map(push).collect();
            state.call(acts);
            Some(keys)
        })
    }

    /// Ends a task that is queued. False when it is not.
    pub(super) fn cancel(self: &Arc<Self>, key: Key) -> bool {
        let entry = self.transition(|state, acts| {
            let entry = state.remove(key, acts);
            state.call(acts);
            entry
        });
        let is_queued = entry.is_some();
        if let Some(entry) = entry {
            self.refuse(entry, TaskError::Cancelled);
        }
        is_queued
    }

    pub(super) fn is_queued(&self, key: Key) -> bool {
        self.state.lock().get(key).is_some()
    }

    // ---- runners ----

    /// What the runner at `seat` does next, after its task has ended like this, on a slot that was lent or not.
    ///
    /// Both are one transition: the runner takes the task that its own end made startable, and no other is called for it.
    pub(super) fn next(self: &Arc<Self>, seat: &Arc<Seat>, ended: Option<(Ran, bool)>) -> Next<Entry> {
        let mut late = Vec::new();
        let (next, ran) = self.transition(|state, acts| {
            if let Some((ran, borrowed)) = ended {
                state.ended(ran, borrowed, acts);
            }
            let next = state.next(seat, |entry| self.is_late(entry), &mut late, acts);
            let ran = match &next {
                Next::Run(entry, _) => entry.start_at(seat),
                _ => seat.runs(None),
            };
            (next, ran)
        });
        drop_quietly(ran);
        for entry in late {
            self.refuse(entry, TaskError::Expired);
        }
        next
    }

    /// Asks what admits tasks, for the one that is first. Ready with the task that starts, if one does.
    pub(super) fn poll_admission(
        self: &Arc<Self>,
        seat: &Arc<Seat>,
        asking: &mut Option<Asking>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<(Entry, bool, Ticket)>> {
        loop {
            // Before the look at which task is first: whatever changes that after the look calls.
            seat.listen(cx);
            let mut late = None;
            let first = self.transition(|state, acts| {
                let key = state.asks(seat, acts)?;
                let entry = state.get(key)?;
                if self.is_late(entry) {
                    state.stats.expired += 1;
                    late = state.refused(seat, key, acts);
                    return None;
                }
                Some((key, entry.ask()))
            });
            let Some((key, ask)) = first else {
                // The place in the queue of the policy is given up.
                drop_quietly(asking.take());
                if let Some(entry) = late {
                    self.refuse(entry, TaskError::Expired);
                }
                return Poll::Ready(None);
            };
            let admission = &self.settings.admission;
            // An ask like the one before keeps its place there.
            drop_quietly(asking.take_if(|asking| asking.ask != ask && admission.gate.is_some()));
            let polled = asking
                .get_or_insert_with(|| admission.ask(ask, Arc::clone(seat)))
                .poll();
            let Poll::Ready(admitted) = polled else {
                return Poll::Pending;
            };
            drop_quietly(asking.take());
            // The policy is asked what its permits are, which may panic as well.
            let held = |ticket| match catch_unwind(AssertUnwindSafe(|| self.held())) {
                Ok(held) => Ok((ticket, held)),
                Err(payload) => {
                    Ticket::cancel(ticket);
                    Err(Refused::Task(TaskError::Panicked(payload)))
                }
            };
            match admitted.and_then(held) {
                Ok((ticket, held)) => {
                    let fits = |entry: &Entry| entry.ask() == ask && !self.is_late(entry);
                    let entry = self.transition(|state, acts| {
                        let (entry, borrows) = state.admitted(fits, acts)?;
                        entry.task.record().holds(held);
                        // It ran nothing while it asked.
                        let _none = entry.start_at(seat);
                        Some((entry, borrows))
                    });
                    match entry {
                        Some((entry, borrows)) => return Poll::Ready(Some((entry, borrows, ticket))),
                        // It was taken out meanwhile, or another is first now.
                        None => ticket.cancel(),
                    }
                }
                Err(Refused::Task(why)) => {
                    let entry = self.transition(|state, acts| {
                        let entry = state.refused(seat, key, acts)?;
                        state.stats.refused += 1;
                        Some(entry)
                    });
                    match entry {
                        Some(entry) => self.refuse(entry, why),
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

    /// The task of the runner waits for another: its slot is lent.
    pub(super) fn park(self: &Arc<Self>) {
        self.transition(State::park);
    }

    /// It goes on.
    pub(super) fn resume(&self) {
        self.state.lock().resume();
    }

    /// A runner has gone: in order, or dropped by its runtime, with the task that it ran, which may have been parked.
    pub(super) fn left(self: &Arc<Self>, seat: &Arc<Seat>, ran: Option<Ended>, in_order: bool) {
        let is_forlorn = self.transition(|state, acts| {
            if let Some(ended) = ran {
                if ended.is_parked {
                    state.resume();
                }
                state.ended(ended.ran, ended.borrowed, acts);
            }
            state.left(seat, in_order, acts)
        });
        if is_forlorn {
            self.abandon();
        }
    }

    /// Nothing that is queued will start.
    fn abandon(self: &Arc<Self>) {
        for entry in self.stop() {
            entry.task.refuse(TaskError::Abandoned);
        }
    }

    // ---- the pool ----

    pub(super) fn limit(&self) -> usize {
        match &self.settings.admission.slots {
            Some(slots) => slots.limit(),
            None => self.state.lock().limit(),
        }
    }

    pub(super) fn resize(self: &Arc<Self>, limit: usize) {
        match &self.settings.admission.slots {
            Some(slots) => hooks::quietly(|| slots.set_limit(limit)),
            None => self.transition(|state, acts| state.set_limit(limit, acts)),
        }
    }

    pub(super) fn close(self: &Arc<Self>) {
        self.transition(State::close);
        self.room.close();
    }

    /// Takes out everything that has not started, and starts nothing more.
    pub(super) fn stop(self: &Arc<Self>) -> Vec<Entry> {
        let entries = self.transition(State::stop);
        self.room.close();
        entries
    }

    /// Drops the futures that run.
    pub(super) fn abort_running(&self) {
        let workers = self.state.lock().workers().to_vec();
        for seat in workers {
            if let Some(task) = seat.running() {
                task.abort(TaskError::Abandoned);
            }
        }
    }

    pub(super) fn poll_idle(&self, wait: &mut Wait, waker: &Waker) -> Poll<()> {
        // What comes back is dropped after the lock.
        let mut waker = Some(waker.clone());
        self.state.lock().quiet.poll_idle(wait, &mut waker)
    }

    /// Polls for at most `patience` on the pool's clock. False when the time was over.
    pub(super) async fn within(&self, patience: Duration, mut poll: impl FnMut(&Waker) -> Poll<()>) -> bool {
        let clock = &self.settings.clock;
        let mut sleep = pin!(Sleep::until(clock, clock.after(clock.now(), patience)));
        poll_fn(|cx| match poll(cx.waker()) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => sleep.as_mut().poll(cx).map(|()| false),
        })
        .await
    }

    pub(super) fn stats(&self) -> PoolStats {
        let limit = self.limit();
        self.state.lock().stats(limit)
    }
}

impl Home for Core {
    fn held(&self) -> Held {
        let admission = &self.settings.admission;
        if !admission.is_gated() {
            return Arc::clone(&self.held.lock());
        }
        // The policy may have been reloaded. It is asked outside the lock.
        let now = admission.held();
        let mut held = self.held.lock();
        if **held != *now {
            *held = now.into();
        }
        Arc::clone(&held)
    }

    fn await_it(self: Arc<Self>, key: Key) {
        self.transition(|state, acts| state.await_it(key, acts));
    }

    fn await_no_more(self: Arc<Self>, key: Key) {
        self.transition(|state, acts| state.await_no_more(key, acts));
    }
}

impl Ends for Core {
    fn poll_gone(self: &Arc<Self>, wait: &mut Wait, waker: &Waker) -> Poll<()> {
        // What comes back is dropped after the lock.
        let mut waker = Some(waker.clone());
        let mut state = self.state.lock();
        let gone = !state.has_workers();
        state.quiet.poll_gone(wait, gone, &mut waker)
    }

    fn leave(&self, wait: &mut Wait) {
        let waker = self.state.lock().quiet.leave(wait);
        drop(waker);
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
        let entry = self.transition(State::evict)?;
        self.room.give_back(1, u64::from(entry.weight));
        Some(entry)
    }

    fn discard(&self, entry: Entry) {
        self.state.lock().stats.discarded += 1;
        hooks::discard(self.settings.on_discard.as_deref(), UnstartedTask::new(entry, true));
    }
}
