//! The timer of a policy's queue: at its instant the queue is driven.
//!
//! Under a manual clock it is one of the clock's. Inside a tokio runtime a task of the runtime sleeps by tokio's timer, so that the paused
//! clock of a test works, and no thread is ours. Elsewhere it is the thread that all such timers share.

use super::driver::Core;
use crate::core::limiter::Limiter;
use crate::sync::shim::Mutex;
#[cfg(feature = "tokio")]
use crate::sync::wake::wake;
use crate::time::{Instant, Sleep};
use std::sync::Arc;
use std::task::Context;
#[cfg(feature = "tokio")]
use {
    std::pin::Pin,
    std::sync::Weak,
    std::task::{Poll, Waker},
    tokio::runtime::Id,
};

/// At most one instant at which a policy is driven.
#[derive(Default)]
pub(super) struct Timer(Mutex<Armed>);

#[derive(Default)]
struct Armed {
    at: Option<Instant>,
    /// A timer of the clock, or of the shared thread, which wakes what drives.
    sleep: Option<Sleep>,
    /// The runtime a task of which is the timer, and the waker of the task once it sleeps.
    #[cfg(feature = "tokio")]
    task: Option<(Id, Option<Waker>)>,
}

impl Timer {
    /// Has `core` driven at `at`. True when that has come already.
    pub(super) fn set<L: Limiter + 'static>(&self, at: Option<Instant>, core: &Arc<Core<L>>) -> bool {
        let mut armed = self.0.lock();
        #[cfg(feature = "tokio")]
        if let Some((_, task)) = &armed.task {
            let task = task.clone().filter(|_| armed.at != at);
            armed.at = at;
            drop(armed);
            task.into_iter().for_each(Waker::wake);
            return false;
        }
        armed.at = at;
        #[cfg(feature = "tokio")]
        if at.is_some() && armed.sleep.is_none() && !core.clock.is_manual() {
            if let Some(runtime) = crate::time::runtime() {
                armed.task = Some((runtime.id(), None));
                // After the lock: a runtime that is shutting down drops the task at once, which takes the lock.
                drop(armed);
                let (core, home, sleep) = (Arc::downgrade(core), runtime.id(), None);
                runtime.spawn(Task { core, home, sleep });
                return false;
            }
        }
        armed.sleep(core)
    }

    /// A waiter has joined. If it comes from outside the runtime whose task sleeps, then the shared thread is the timer from now on, since
    /// that runtime may not run.
    #[cfg(feature = "tokio")]
    pub(super) fn joined<L: Limiter + 'static>(&self, core: &Arc<Core<L>>) {
        let home = self.0.lock().task.as_ref().map(|(home, _)| *home);
        let Some(home) = home else { return };
        if crate::time::runtime().is_none_or(|here| here.id() != home) {
            self.leave_runtime(core, home);
        }
    }

    /// The shared thread is the timer from now on, instead of a task of the runtime `home`.
    #[cfg(feature = "tokio")]
    fn leave_runtime<L: Limiter + 'static>(&self, core: &Arc<Core<L>>, home: Id) {
        let mut armed = self.0.lock();
        let Some((_, task)) = armed.task.take_if(|(own, _)| *own == home) else {
            return;
        };
        let due = armed.sleep(core);
        drop(armed);
        // The task finds that it is not the timer any more, and ends.
        task.into_iter().for_each(Waker::wake);
        if due {
            wake(core.place.waker().clone());
        }
    }
}

/// A task that sleeps for a policy that is gone ends.
#[cfg(feature = "tokio")]
impl Drop for Timer {
    fn drop(&mut self) {
        let task = self.0.lock().task.take();
        task.and_then(|(_, waker)| waker).into_iter().for_each(Waker::wake);
    }
}

impl Armed {
    /// Sleeps by the clock, or by the shared thread. True when the instant has come.
    fn sleep<L: Limiter + 'static>(&mut self, core: &Core<L>) -> bool {
        let Some(at) = self.at else {
            self.sleep = None;
            return false;
        };
        let sleep = self.sleep.get_or_insert_with(|| Sleep::of_no_runtime(&core.clock, at));
        sleep.reset(at);
        let mut cx = Context::from_waker(core.place.waker());
        sleep.poll_at(core.now(), &mut cx).is_ready()
    }
}

/// Sleeps by tokio's timer, and drives. It ends when there is no instant; another one starts with the next.
#[cfg(feature = "tokio")]
struct Task<L: Limiter + 'static> {
    core: Weak<Core<L>>,
    home: Id,
    sleep: Option<Sleep>,
}

#[cfg(feature = "tokio")]
impl<L: Limiter + 'static> Task<L> {
    /// The instant that the timer is set to; `None` when this task is not the timer any more, or no instant is set.
    fn instant(&self, timer: &Timer, waker: Waker) -> Option<Instant> {
        let mut armed = timer.0.lock();
        armed.task.as_ref().filter(|(home, _)| *home == self.home)?;
        armed.task = armed.at.map(|_| (self.home, Some(waker)));
        armed.at
    }
}

#[cfg(feature = "tokio")]
impl<L: Limiter + 'static> Future for Task<L> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Some(core) = this.core.upgrade() else {
            return Poll::Ready(());
        };
        loop {
            let Some(at) = this.instant(&core.timer, cx.waker().clone()) else {
                this.core = Weak::new();
                return Poll::Ready(());
            };
            let sleep = this.sleep.get_or_insert_with(|| Sleep::until(&core.clock, at));
            sleep.reset(at);
            if sleep.poll_at(core.now(), cx).is_pending() {
                return Poll::Pending;
            }
            core.has_come_to(at);
            core.timer.0.lock().at = None;
            wake(core.place.waker().clone());
            if core.timer.0.lock().at == Some(at) {
                // Others drive just now, and set the timer after that.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
}

/// A runtime that is shut down drops its tasks.
#[cfg(feature = "tokio")]
impl<L: Limiter + 'static> Drop for Task<L> {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.timer.leave_runtime(&core, self.home);
        }
    }
}
