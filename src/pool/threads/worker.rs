//! The worker loop: takes a task, runs it, repeats.

use super::entry::{DeferredFree, Entry};
use super::kind::{Core, report_started};
use super::local_queue::LocalQueue;
use crate::pool::admission::Ticket;
use crate::pool::cell::Ran;
use crate::pool::engine::seat::Seat;
use crate::pool::engine::state::{Counts, Next};
use crate::pool::engine::waits::{Held, Inside, PoolId, Record, Slot, Under, work_on};
use crate::pool::hooks::{drop_quietly, opaque_debug, quietly};
use crate::sync::park::{block_on, block_on_timeout};
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicUsize, Ordering};
use crate::time::Sleep;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The number of times that a worker without work reads the hint before it sleeps. About a microsecond: less than it takes
/// to wake a thread.
const LOOKS: usize = if cfg!(any(tollgate_loom, tollgate_shuttle)) {
    0
} else {
    200
};

/// The state of a worker that other threads read. The worker writes it before and after each task, so it has cache lines of its
/// own.
#[derive(Default)]
#[repr(align(128))]
pub(in crate::pool) struct WorkerState<'j> {
    /// The tasks that it has taken and not started. Every worker may take them from here.
    pub(in crate::pool) local_queue: Mutex<LocalQueue<'j>>,
    /// The number of tasks that it has ended and not reported. The worker writes it; it becomes zero under the pool's lock.
    untold: AtomicUsize,
}

impl WorkerState<'_> {
    /// Returns the number of ended tasks that the worker has not reported. It is at most the pool's count of unfinished tasks:
    /// only its worker increases it, and it decreases only under the pool's lock.
    pub(in crate::pool) fn untold(&self) -> usize {
        // Relaxed, like the store in `note_untold`: a statistic that `numbers` sums.
        self.untold.load(Ordering::Relaxed)
    }

    /// Returns the number of tasks that the worker has started from its local queue since the last look.
    #[inline]
    pub(super) fn take_started(&self) -> usize {
        std::mem::take(&mut self.local_queue.lock().started)
    }

    #[inline]
    pub(in crate::pool) fn note_untold(&self, entries: usize) {
        // Relaxed: see the load in `untold`.
        self.untold.store(entries, Ordering::Relaxed);
    }
}

/// A worker for the hook of [`PoolBuilder::spawn_with`](crate::pool::PoolBuilder::spawn_with) to run on a thread of its own.
/// Dropping it unrun counts as a failure to start the thread.
///
/// ```
/// # use tollgate::WorkerPool;
/// let pool = WorkerPool::builder().workers(1).spawn_with(|worker| {
///     let thread = std::thread::Builder::new().name(format!("core {}", worker.index()));
///     thread.spawn(|| worker.run()).map(drop)
/// }).build()?;
/// let name = pool.run(|| std::thread::current().name().map(str::to_owned))?;
/// assert_eq!(name.as_deref(), Some("core 0"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a worker works while it is run"]
pub struct WorkerThread<'j> {
    core: Arc<Core<'j>>,
    seat: Arc<Seat<WorkerState<'j>>>,
    ran: bool,
}

impl<'j> WorkerThread<'j> {
    pub(in crate::pool) fn new(core: Arc<Core<'j>>, seat: Arc<Seat<WorkerState<'j>>>) -> Self {
        Self { core, seat, ran: false }
    }

    /// Returns the worker's number within its pool, counted from zero. The pool does not reuse numbers.
    pub fn index(&self) -> usize {
        self.seat.index
    }

    /// Runs tasks until the pool no longer needs this worker.
    pub fn run(mut self) {
        self.ran = true;
        if let Some(hook) = &self.core.kind.on_start {
            quietly(|| hook());
        }
        Work::new(&self.core, &self.seat).work();
    }
}

impl Drop for WorkerThread<'_> {
    fn drop(&mut self) {
        if !self.ran {
            self.core.never_started(&self.seat);
        }
    }
}

opaque_debug!([] WorkerThread<'_>, "WorkerThread", |this| index = this.index());

/// The loop of a worker, and its state between two tasks.
struct Work<'a, 'j> {
    core: &'a Arc<Core<'j>>,
    seat: &'a Arc<Seat<WorkerState<'j>>>,
    /// The slot that its task lends while it waits.
    slot: Arc<Slot>,
    /// The tasks that it has claimed and ended, and not reported to the pool.
    counts: Counts,
    /// The memory of tasks that it has run, for submitters to free.
    gathered: Vec<DeferredFree<'j>>,
}

impl<'a, 'j> Work<'a, 'j> {
    fn new(core: &'a Arc<Core<'j>>, seat: &'a Arc<Seat<WorkerState<'j>>>) -> Self {
        Self {
            core,
            seat,
            slot: Slot::of(core.kind.lends()),
            counts: Counts::default(),
            gathered: Vec::new(),
        }
    }

    fn work(mut self) {
        let inside = Inside::work(PoolId::of(&**self.core), Arc::clone(&self.slot));
        // A worker that has just started, or has run a task, looks again before it sleeps.
        let mut patient = LOOKS > 0;
        loop {
            // The local queue comes first.
            if self.run_local() {
                continue;
            }
            match self.core.take(self.seat, &mut self.counts, patient) {
                Next::Run(entry, borrows) => self.run(entry, borrows, None),
                Next::Ask => self.ask(),
                Next::Again => {
                    // Another worker may take the task first: then this one looks again.
                    patient = self.look();
                    continue;
                }
                Next::Sleep if self.sleep() => {}
                Next::Sleep | Next::Exit => break,
            }
            patient = LOOKS > 0;
        }
        drop(inside);
        self.core.left_by(self.seat, self.counts, true);
    }

    /// Spins on the hint. Returns true when there seems to be work.
    fn look(&self) -> bool {
        for _ in 0..LOOKS {
            if self.core.kind.seems_busy() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Sleeps until called. Returns false when it has been idle for `keep_alive` and is to exit.
    fn sleep(&self) -> bool {
        let (clock, keep_alive) = (&self.core.settings.clock, self.core.kind.keep_alive);
        let mut timer = clock
            .is_manual()
            .then(|| Sleep::until(clock, clock.after(clock.now(), keep_alive)));
        let patience = timer.is_none().then_some(keep_alive);
        let called = block_on_timeout(patience, |waker| {
            let mut cx = Context::from_waker(waker);
            match (self.seat.poll_called(&cx), &mut timer) {
                (Poll::Pending, Some(timer)) => Pin::new(timer).poll(&mut cx).map(|()| false),
                (polled, _) => polled.map(|()| true),
            }
        });
        if called != Some(true) {
            if self.core.transition(|state, _| state.leaves_idle(self.seat)) {
                return false;
            }
            // The worker has been called, or belongs to the minimum.
            block_on(|waker| self.seat.poll_called(&Context::from_waker(waker)));
        }
        true
    }

    /// Runs the next task of the local queue, or drops a dead entry. Returns false if there is none.
    #[inline]
    fn run_local(&mut self) -> bool {
        let mut local_queue = self.seat.own.local_queue.lock();
        let Some((entry, is_mine)) = local_queue.start_next() else {
            return false;
        };
        let is_pressed = self.core.kind.is_pressed();
        drop(local_queue);
        if !is_mine {
            drop_quietly(entry);
            return true;
        }
        if is_pressed {
            self.core.transition(|state, _| report_started(state, &self.seat.own));
        }
        let _under = entry.waiter().map(Under::enter);
        self.run_common(entry);
        self.seat.own.note_untold(self.counts.tasks);
        true
    }

    #[inline]
    fn run_common(&mut self, entry: Entry<'j>) -> Ran {
        let (ran, left) = entry.run_and_leave(&mut |payload| self.core.orphan(payload));
        self.counts.count(ran);
        if let Some(left) = left {
            self.core.kind.injector.defer(left, &mut self.gathered);
        }
        if self.slot.was_lent() {
            self.renew_slot();
        }
        ran
    }

    /// Replaces a slot that the task has lent, since other tasks may still hold it. The tasks of the local queue go back, to start on free
    /// slots.
    #[cold]
    fn renew_slot(&mut self) {
        self.core.transition(|state, _| {
            if self.slot.ends() {
                state.resume();
            }
            self.seat.own.local_queue.lock().put_back(&mut state.queue);
        });
        self.slot = Slot::of(self.core.kind.lends());
        work_on(Arc::clone(&self.slot));
    }

    /// Asks the policy and the given slots for admission, and runs the admitted task.
    #[cold]
    fn ask(&mut self) {
        let mut asking = None;
        let admitted = block_on(|waker| {
            self.core
                .poll_admission(self.seat, &mut asking, &mut Context::from_waker(waker))
        });
        if let Some((entry, borrows, ticket, held)) = admitted {
            self.run(entry, borrows, Some((ticket, held)));
        }
    }

    /// Runs a task that has left the queue, on a slot that is lent or not.
    #[inline]
    fn run(&mut self, entry: Entry<'j>, borrows: bool, admitted: Option<(Ticket, Held)>) {
        self.counts.slot = Some(borrows);
        self.counts.member = entry.member().map(Arc::clone);
        let held = admitted.as_ref().map(|(_, held)| held);
        let ran = if let Some(held) = held.filter(|held| !held.is_empty()) {
            let holder = Arc::new(Record::of(entry.waiter()));
            holder.holds(Arc::clone(held));
            let under = Under::enter(Arc::clone(&holder) as _);
            let ran = self.run_common(entry);
            drop(under);
            holder.end();
            holder.cut();
            ran
        } else {
            let _under = entry.waiter().map(Under::enter);
            self.run_common(entry)
        };
        if let Some((ticket, _)) = admitted {
            ticket.finish(ran);
        }
        self.seat.own.note_untold(self.counts.tasks);
    }
}
