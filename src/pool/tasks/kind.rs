//! Runs the engine on runners: tasks of a tokio runtime, each of which takes a task, polls it to its end, and repeats.

use super::cell::{Job, Run};
use crate::pool::admission::Ticket;
use crate::pool::cell::Ran;
use crate::pool::engine::entry::Entry;
use crate::pool::engine::scheduler::{Engine, Kind};
use crate::pool::engine::seat::Seat;
use crate::pool::engine::state::{Counts, Next, State};
use crate::pool::engine::waits::{Inside, PoolId, current};
use crate::pool::error::TaskError;
use crate::pool::group::Abort;
use crate::pool::handle::TaskHandle;
use crate::pool::hooks::drop_quietly;
use crate::pool::report::Unstarted;
use crate::pool::termination::{TerminationWait, Until};
use crate::sync::runtime::Runtime;
use crate::sync::shim::Mutex;
use crate::time::Sleep;
use std::convert::Infallible;
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(super) type Core = Engine<Tasks>;

/// The kind of a pool of async tasks.
///
/// ```
/// # use tollgate::pool::{Group, TaskPool, Tasks};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = TaskPool::builder(2).build()?;
/// let mut group: Group<Tasks, u32, std::io::Error> = pool.group();
/// group.submit(async { Ok(1) }).await.map_err(|error| error.reason.to_string())?;
/// assert_eq!(group.join().await?, [1]);
/// # Ok(())
/// # }
/// ```
pub struct Tasks {
    pub(super) runtime: Runtime,
}

/// The task that a runner runs.
pub(in crate::pool) type Running = Mutex<Option<Arc<dyn Run>>>;

impl Kind for Tasks {
    const THREADS: bool = false;
    type Inline = Infallible;
    type Run = dyn Run;
    type Job<T> = dyn Job<T>;
    type Worker = Running;
    type Shared = ();

    fn starts(entry: &Entry<Tasks>, seat: &Seat<Running>) {
        let task = entry.task().filter(|task| task.start());
        *seat.own.lock() = task.map(Arc::clone);
    }

    fn queued<T>(task: &Arc<Self::Job<T>>) -> Arc<Self::Run> {
        Arc::clone(task).into_run()
    }

    fn end_running<T>(task: &Self::Job<T>) -> bool {
        task.abort()
    }

    fn abort<T>(handle: &TaskHandle<T>) -> Option<Abort> {
        let task = Arc::downgrade(&Self::queued(&handle.task));
        Some(Box::new(move || {
            if let Some(task) = task.upgrade() {
                if !task.is_queued() && !task.refuse(TaskError::Cancelled) {
                    task.abort();
                }
                drop_quietly(task);
            }
        }))
    }

    fn start(core: &Arc<Core>, seat: Arc<Seat<Running>>) {
        let runner = run(Arc::clone(core), seat);
        // The drop of a runner that did not start removes it from the pool.
        drop(core.kind.runtime.spawn(runner));
    }
}

/// The operations that only a pool of async tasks has.
impl Core {
    /// Aborts the running tasks.
    pub(super) fn abort_running(&self) {
        let workers = self.look().seats.clone();
        for seat in workers {
            let task = seat.own.lock().clone();
            task.inspect(|task| _ = task.abort());
        }
    }

    /// Waits for at most `patience` on the pool's clock. Returns false on a timeout, and at once in a task of the pool.
    pub(in crate::pool) async fn wait(self: &Arc<Self>, patience: Option<Duration>, until: Until) -> bool {
        let Some(mut wait) = TerminationWait::of(self, until) else {
            return false;
        };
        self.within(patience, |waker| wait.poll(waker)).await.is_some()
    }

    /// Polls until ready, for at most `patience` on the pool's clock. Returns `None` on a timeout.
    pub(in crate::pool) async fn within<T>(
        &self,
        patience: Option<Duration>,
        mut poll: impl FnMut(&Waker) -> Poll<T>,
    ) -> Option<T> {
        let clock = &self.settings.clock;
        let sleep = patience.map(|patience| Sleep::until(clock, clock.after(clock.now(), patience)));
        let mut sleep = pin!(sleep);
        poll_fn(|cx| match (poll(cx.waker()), sleep.as_mut().as_pin_mut()) {
            (Poll::Ready(value), _) => Poll::Ready(Some(value)),
            (Poll::Pending, Some(sleep)) => sleep.poll(cx).map(|()| None),
            (Poll::Pending, None) => Poll::Pending,
        })
        .await
    }
}

/// A runner. If it is dropped while `in_order` is false, its runtime dropped it, perhaps before its first poll.
struct Runner {
    core: Arc<Core>,
    seat: Arc<Seat<Running>>,
    /// The ticket of the task that it has started.
    ticket: Option<Ticket>,
    is_parked: bool,
    /// The slot of the task, its membership and its end, until they are reported.
    counts: Counts,
    in_order: bool,
}

impl Drop for Runner {
    fn drop(&mut self) {
        let task = self.seat.own.lock().take();
        if let Some(task) = task {
            task.abort();
            task.record().end();
            drop_quietly(task);
        }
        // The runtime has dropped the task.
        if let Some(ticket) = self.ticket.take() {
            ticket.finish(Ran::Gone);
        }
        if self.is_parked {
            self.core.transition(|state, _| state.resume());
        }
        let mut ended = std::mem::take(&mut self.counts);
        if ended.slot.is_some() && ended.tasks == 0 {
            ended.count(Ran::Gone);
        }
        self.core.left(&self.seat, ended, self.in_order);
    }
}

/// Creates the runner's future. The [`Runner`] exists before the first poll, since the runtime may drop the future unpolled.
pub(super) fn run(core: Arc<Core>, seat: Arc<Seat<Running>>) -> impl Future<Output = ()> + Send {
    work(Runner {
        core,
        seat,
        ticket: None,
        is_parked: false,
        counts: Counts::default(),
        in_order: false,
    })
}

async fn work(mut runner: Runner) {
    let runner = &mut runner;
    let (core, seat) = (Arc::clone(&runner.core), Arc::clone(&runner.seat));
    loop {
        let ended = std::mem::take(&mut runner.counts);
        let started = match core.transition(|state, acts| {
            state.count(ended, acts);
            core.next(state, &seat, false, acts)
        }) {
            Next::Run(entry, borrows) => Some((entry, borrows, None)),
            Next::Ask => {
                let mut asking = None;
                let asked = poll_fn(|cx| core.poll_admission(&seat, &mut asking, cx)).await;
                asked.map(|(entry, borrows, ticket, held)| {
                    entry.task().inspect(|task| task.record().holds(held));
                    (entry, borrows, Some(ticket))
                })
            }
            Next::Sleep => {
                poll_fn(|cx| seat.poll_called(cx)).await;
                None
            }
            Next::Again => None,
            Next::Exit => break,
        };
        if let Some((entry, borrows, ticket)) = started {
            runner.run(entry, borrows, ticket).await;
        }
        // Futures that are ready at once, or refused, must not starve the runtime's other tasks.
        tokio::task::coop::consume_budget().await;
    }
    runner.in_order = true;
}

impl Runner {
    async fn run(&mut self, entry: Entry<Tasks>, borrows: bool, ticket: Option<Ticket>) {
        self.ticket = ticket;
        self.counts.slot = Some(borrows);
        self.counts.member = entry.member().map(Arc::clone);
        let core = &self.core;
        let mut ran = Ran::Gone;
        let task = self.seat.own.lock().clone();
        if let Some(task) = task {
            ran = poll_fn(|cx| poll(core, &task, &mut self.is_parked, cx)).await;
            task.record().end();
        }
        if let Some(ticket) = self.ticket.take() {
            ticket.finish(ran);
        }
        self.counts.count(ran);
        // If the handle is gone, this drops the result.
        let task = self.seat.own.lock().take();
        drop_quietly((task, entry));
    }
}

/// Polls the task. Parks a task that is pending and awaits a handle until it is woken, even if its last poll did not poll that
/// handle: a set of futures polls only those that were woken.
fn poll(core: &Arc<Core>, task: &Arc<dyn Run>, is_parked: &mut bool, cx: &mut Context<'_>) -> Poll<Ran> {
    if std::mem::take(is_parked) {
        core.transition(|state, _| state.resume());
    }
    let inside = Inside::enter(Arc::clone(task).into_task(), PoolId::of(&**core));
    let polled = task.poll_run(&|payload| core.orphan(payload), cx);
    drop(inside);
    if polled.is_pending() && task.record().awaits() {
        *is_parked = core.transition(State::park);
    }
    polled
}

impl Unstarted<Tasks> {
    /// Runs the task in this future. Its handle gets the result. Returns false when the task was cancelled.
    ///
    /// # Cancel safety
    /// Dropping this future drops the task.
    ///
    /// # Panics
    /// When the task panics and its handle is gone, or it never had one.
    pub async fn run(self) -> bool {
        let entry = self.take();
        let Some(task) = entry.as_ref().and_then(Entry::task).filter(|task| task.start()) else {
            return false;
        };
        // The abort has no effect once the task has ended.
        let task = AbortOnDrop(Arc::clone(task));
        drop(entry);
        let orphan = |payload| resume_unwind(payload);
        let ran = poll_fn(|cx| {
            // Inside another task, its waits count as waits of that task.
            let _inside = current()
                .is_none()
                .then(|| Inside::enter_aside(Some(Arc::clone(&task.0).into_task())));
            task.0.poll_run(&orphan, cx)
        });
        ran.await != Ran::Gone
    }
}

struct AbortOnDrop(Arc<dyn Run>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
        self.0.record().end();
    }
}
