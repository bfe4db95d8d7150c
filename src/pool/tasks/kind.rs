//! Runs the engine on runners: tasks of a tokio runtime.

use super::cell::{Job, Run};
use super::runner;
use crate::pool::engine::entry::Entry;
use crate::pool::engine::scheduler::{DiscardHook, Engine, Kind};
use crate::pool::engine::seat::Seat;
use crate::pool::engine::state::Phase;
use crate::pool::error::TaskError;
use crate::pool::group::Abort;
use crate::pool::handle::TaskHandle;
use crate::pool::hooks::drop_quietly;
use crate::pool::runtime::Runtime;
use crate::sync::shim::Mutex;
use crate::time::Sleep;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
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
    pub(super) on_discard: Option<Box<DiscardHook<Tasks>>>,
    pub(super) runtime: Runtime,
}

/// The task that a runner runs.
#[derive(Default)]
pub(in crate::pool) struct Running(Mutex<Option<Arc<dyn Run>>>);

impl Running {
    pub(super) fn get(&self) -> Option<Arc<dyn Run>> {
        self.0.lock().clone()
    }

    /// Takes out the task, which has ended.
    pub(super) fn take(&self) -> Option<Arc<dyn Run>> {
        self.0.lock().take()
    }
}

impl From<usize> for Running {
    fn from(_: usize) -> Self {
        Self::default()
    }
}

impl Kind for Tasks {
    const THREADS: bool = false;
    type Inline = Infallible;
    type Own = Infallible;
    type Run = dyn Run;
    type Job<T> = dyn Job<T>;
    type Worker = Running;
    type Shared = ();

    fn on_discard(&self) -> Option<&DiscardHook<Self>> {
        self.on_discard.as_deref()
    }

    fn starts(entry: &Entry<Tasks>, seat: &Seat<Running>) {
        let task = entry.task().filter(|task| task.start());
        *seat.own.0.lock() = task.map(Arc::clone);
    }

    fn queued<T>(task: &Arc<Self::Job<T>>) -> Arc<Self::Run> {
        Arc::clone(task) as _
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
        let runner = runner::run(Arc::clone(core), seat);
        // The drop of a runner that did not start removes it from the pool.
        drop(core.kind.runtime.spawn(runner));
    }
}

/// The operations that only a pool of async tasks has.
impl Core {
    /// Queues tasks at once, in order, whose capacity has been taken. Returns false, and queues none, when the pool is
    /// closed: the submitter holds the tasks too.
    pub(super) fn push_all(self: &Arc<Self>, entries: impl Iterator<Item = Entry<Tasks>>) -> bool {
        self.transition(|state, acts| {
            if state.phase != Phase::Running {
                return false;
            }
            let before = state.queue.len();
            entries.for_each(|entry| state.queue.by_priority.push(entry));
            state.came(state.queue.len() - before);
            state.call(acts);
            true
        })
    }

    /// Aborts the running tasks.
    pub(super) fn abort_running(&self) {
        let workers = self.look().workers().to_vec();
        for seat in workers {
            if let Some(task) = seat.own.get() {
                task.abort();
            }
        }
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
