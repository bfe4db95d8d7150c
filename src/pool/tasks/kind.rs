//! Runs the engine on runners: tasks of a tokio runtime.

use super::cell::Run;
use super::entry::{Entry, UnstartedTask};
use super::runner;
use crate::pool::engine::queue::{Key, Queue};
use crate::pool::engine::scheduler::{Engine, Kind};
use crate::pool::engine::seat::Seat;
use crate::pool::engine::state::{Phase, State, TaskQueue};
use crate::pool::engine::waits::{Held, Home};
use crate::pool::error::TaskError;
use crate::pool::hooks;
use crate::pool::runtime::Runtime;
use crate::sync::shim::Mutex;
use crate::time::Sleep;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

pub(super) type DiscardHook = dyn Fn(UnstartedTask) + Send + Sync;

pub(super) type Core = Engine<Tasks>;

pub(super) struct Tasks {
    pub(super) on_discard: Option<Box<DiscardHook>>,
    pub(super) runtime: Runtime,
}

/// The task that a runner runs.
#[derive(Default)]
pub(super) struct Running(Mutex<Option<Arc<dyn Run>>>);

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

    fn drain(&self, state: &mut State<Self::TaskQueue>) -> Vec<Entry> {
        state.queue.drain()
    }

    fn evict(&self, state: &mut State<Self::TaskQueue>) -> Option<Entry> {
        let last = state.queue.last()?;
        state.queue.remove(last)
    }

    fn discard(core: &Arc<Core>, entry: Entry) {
        core.look().stats.discarded += 1;
        hooks::discard(core.kind.on_discard.as_deref(), UnstartedTask::new(entry, true));
    }

    fn starts(entry: &mut Entry, seat: &Seat<Running>) {
        entry.task.start();
        let _none = seat.own.0.lock().replace(Arc::clone(&entry.task));
    }

    fn start(core: &Arc<Core>, seat: Arc<Seat<Running>>) {
        let runner = runner::run(Arc::clone(core), seat);
        // The drop of a runner that did not start removes it from the pool.
        drop(core.kind.runtime.spawn(runner));
    }
}

impl Home for Core {
    type Target = Key;
    type Awaited = Key;

    fn held(&self) -> Held {
        self.held()
    }

    fn await_it(self: &Arc<Self>, key: Key) -> Key {
        self.transition(|state, acts| {
            if state.queue.await_it(key) {
                state.call(acts);
            }
        });
        key
    }

    fn await_no_more(self: &Arc<Self>, key: Key) {
        self.transition(|state, acts| {
            state.queue.await_no_more(key);
            state.call(acts);
        });
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

    /// Termination a queued task. Returns false when it is not queued.
    pub(super) fn cancel(self: &Arc<Self>, key: Key) -> bool {
        let entry = self.transition(|state, acts| {
            let entry = state.remove(key, acts);
            state.call(acts);
            entry
        });
        self.refuse(entry, || TaskError::Cancelled) > 0
    }

    pub(super) fn is_queued(&self, key: Key) -> bool {
        self.look().get(key).is_some()
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

    /// Polls for at most `patience` on the pool's clock. Returns false on a timeout.
    pub(super) async fn within(&self, patience: Duration, mut poll: impl FnMut(&Waker) -> Poll<()>) -> bool {
        let clock = &self.settings.clock;
        let mut sleep = pin!(Sleep::until(clock, clock.after(clock.now(), patience)));
        poll_fn(|cx| match poll(cx.waker()) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => sleep.as_mut().poll(cx).map(|()| false),
        })
        .await
    }
}
