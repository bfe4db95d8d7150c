//! Runs the engine on runners: tasks of a tokio runtime.

use super::cell::{Job, Run};
use super::entry::Entry;
use super::runner;
use crate::pool::engine::queue::{Key, Queue};
use crate::pool::engine::scheduler::{DiscardHook, Engine, Kind};
use crate::pool::engine::seat::Seat;
use crate::pool::engine::state::{Phase, State, TaskQueue};
use crate::pool::error::TaskError;
use crate::pool::handle::TaskHandle;
use crate::pool::hooks::drop_quietly;
use crate::pool::runtime::Runtime;
use crate::pool::task_set::Abort;
use crate::sync::shim::Mutex;
use crate::time::Sleep;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

pub(super) type Core = Engine<Tasks>;

/// The kind of a pool of async tasks.
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

impl Kind for Tasks {
    type Entry = Entry;
    type TaskQueue = Queue<Entry, Running>;
    type Job<T> = dyn Job<T>;
    /// None: the task was never queued.
    type At = Option<Key>;
    type Target = Option<Key>;
    type Awaited = Option<Key>;

    fn drain(&self, state: &mut State<Self::TaskQueue>) -> Vec<Entry> {
        state.queue.drain()
    }

    fn evict(&self, state: &mut State<Self::TaskQueue>) -> Option<Entry> {
        let last = state.queue.last()?;
        state.queue.remove(last)
    }

    fn on_discard(&self) -> Option<&DiscardHook<Self>> {
        self.on_discard.as_deref()
    }

    fn starts(entry: &mut Entry, seat: &Seat<Running>) {
        entry.task.start();
        let _none = seat.own.0.lock().replace(Arc::clone(&entry.task));
    }

    fn cancel<T>(handle: &TaskHandle<T>) -> bool {
        handle.at.is_some_and(|key| handle.core.cancel(key)) || handle.task.abort(TaskError::Cancelled)
    }

    fn abort<T>(handle: &TaskHandle<T>) -> Option<Abort> {
        let task: Arc<dyn Run> = Arc::clone(&handle.task) as _;
        let (task, core, key) = (Arc::downgrade(&task), Arc::downgrade(&handle.core), handle.at);
        Some(Box::new(move || {
            let (Some(task), Some(core)) = (task.upgrade(), core.upgrade()) else {
                return;
            };
            if key.is_none_or(|key| core.look().get(key).is_none()) {
                task.abort(TaskError::Cancelled);
            }
            drop_quietly((task, core));
        }))
    }

    fn target<T>(handle: &TaskHandle<T>) -> Option<Key> {
        handle.at
    }

    fn await_it(core: &Arc<Core>, key: Option<Key>) -> Option<Key> {
        core.transition(|state, acts| {
            if key.is_some_and(|key| state.queue.await_it(key)) {
                state.call(acts);
            }
        });
        key
    }

    fn await_no_more(core: &Arc<Core>, key: Option<Key>) {
        core.transition(|state, acts| {
            key.inspect(|&key| state.queue.await_no_more(key));
            state.call(acts);
        });
    }

    fn start(core: &Arc<Core>, seat: Arc<Seat<Running>>) {
        let runner = runner::run(Arc::clone(core), seat);
        // The drop of a runner that did not start removes it from the pool.
        drop(core.kind.runtime.spawn(runner));
    }
}

/// The operations that only a pool of async tasks has.
impl Core {
    /// Queues a task whose capacity has been taken. Returns `None` when the pool is closed: the submitter holds the task too.
    pub(super) fn push(self: &Arc<Self>, entry: Entry) -> Option<Key> {
        self.push_all([entry].into_iter()).map(|keys| keys[0])
    }

    /// Queues tasks at once, in order. Returns `None`, and queues none, when the pool is closed.
    pub(super) fn push_all(self: &Arc<Self>, entries: impl Iterator<Item = Entry>) -> Option<Vec<Key>> {
        self.transition(|state, acts| {
            if state.phase != Phase::Running {
                return None;
            }
            let push = |entry: Entry| {
                let priority = entry.priority;
                state.queue.push(entry, priority)
            };
            let keys: Vec<_> = entries.map(push).collect();
            state.came(keys.len());
            state.call(acts);
            Some(keys)
        })
    }

    /// Ends a queued task. Returns false when it is not queued.
    pub(super) fn cancel(self: &Arc<Self>, key: Key) -> bool {
        let entry = self.transition(|state, acts| {
            let entry = state.remove(key, acts);
            state.call(acts);
            entry
        });
        self.refuse(entry, || TaskError::Cancelled) > 0
    }

    /// Aborts the running tasks.
    pub(super) fn abort_running(&self) {
        let workers = self.look().workers().to_vec();
        for seat in workers {
            if let Some(task) = seat.own.get() {
                task.abort(TaskError::Abandoned);
            }
        }
    }

    /// Polls for at most `patience` on the pool's clock. Returns `None` on a timeout.
    pub(in crate::pool) async fn within<T>(
        &self,
        patience: Duration,
        mut poll: impl FnMut(&Waker) -> Poll<T>,
    ) -> Option<T> {
        let clock = &self.settings.clock;
        let mut sleep = pin!(Sleep::until(clock, clock.after(clock.now(), patience)));
        poll_fn(|cx| match poll(cx.waker()) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
        })
        .await
    }
}
