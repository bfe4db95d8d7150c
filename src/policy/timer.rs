//! The timer of a policy's queue: at its instant the queue is driven.
//!
//! Under a manual clock it is one of the clock's. Inside a tokio runtime a task of the runtime sleeps by tokio's timer, so that the paused
//! clock of a test works, and no thread is ours. Elsewhere it is the thread that all such timers share.

use crate::sync::shim::Mutex;
use crate::sync::wake::{drop_quietly, wake};
use crate::time::{Clock, Instant, Sleep};
use std::pin::Pin;
use std::sync::{Arc, Weak};
#[cfg(feature = "tokio")]
use std::task::Poll;
use std::task::{Context, Wake, Waker};

/// At most one instant at which a waker is woken.
pub(super) struct Timer {
    state: Mutex<Armed>,
}

struct Armed {
    at: Option<Instant>,
    by: By,
}

enum By {
    Nothing,
    /// A timer of the clock, or of the shared thread, and what it wakes.
    Sleep(Box<Sleep>, Waker),
    /// A task of this runtime; it is woken by this waker when the instant changes.
    #[cfg(feature = "tokio")]
    Task(tokio::runtime::Id, Option<Waker>),
}

/// What drives, when the instant of its timer has come.
pub(super) trait Driven: Send + Sync + 'static {
    fn clock(&self) -> &Clock;
    /// The instant of its clock, or the latest that a paused clock of a runtime has come to.
    fn now(&self) -> Instant;
    fn timer(&self) -> &Timer;
    fn waker(&self) -> &Waker;
    /// The runtime's clock has come to `at`, and the real clock has not: a test has paused the runtime's.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code))]
    fn runs_ahead(&self, at: Instant);
}

impl Timer {
    pub(super) fn new() -> Self {
        let (at, by) = (None, By::Nothing);
        let state = Mutex::new(Armed { at, by });
        Self { state }
    }

    /// Has `driven` driven at `at`. True when that has come already.
    pub(super) fn set<D: Driven>(&self, at: Option<Instant>, driven: &Arc<D>) -> bool {
        let mut armed = self.state.lock();
        if armed.at == at {
            return false;
        }
        armed.at = at;
        let next = armed.set(driven);
        drop(armed);
        // After the lock: a runtime that is shutting down drops the task at once, and a task that is dropped takes the lock.
        match next {
            Next::Nothing => false,
            Next::Due => true,
            #[cfg(feature = "tokio")]
            Next::Wake(task) => {
                task.wake();
                false
            }
            #[cfg(feature = "tokio")]
            Next::Spawn(runtime) => {
                runtime.spawn(Task::new(Arc::downgrade(driven), runtime.id()));
                false
            }
        }
    }

    /// Its instant has come: the next one is armed anew, also if it is the same by a clock that is behind.
    fn fired(&self) {
        self.state.lock().at = None;
    }

    /// A waiter has joined from outside the runtime whose task sleeps: from now on the shared thread does, since that runtime may not run.
    #[cfg(feature = "tokio")]
    pub(super) fn joined<D: Driven>(&self, driven: &Arc<D>) {
        let mut armed = self.state.lock();
        let By::Task(home, _) = &armed.by else { return };
        if runtime().is_some_and(|here| here.id() == *home) {
            return;
        }
        let task = std::mem::replace(&mut armed.by, By::not_armed(driven));
        let next = armed.set(driven);
        drop(armed);
        // The task finds that it is not the timer any more, and ends.
        if let By::Task(_, Some(waker)) = task {
            waker.wake();
        }
        if matches!(next, Next::Due) {
            wake(driven.waker().clone());
        }
    }
}

/// A task that sleeps for a policy that is gone ends.
#[cfg(feature = "tokio")]
impl Drop for Timer {
    fn drop(&mut self) {
        let by = std::mem::replace(&mut self.state.lock().by, By::Nothing);
        if let By::Task(_, Some(waker)) = by {
            waker.wake();
        }
    }
}

impl By {
    /// A timer of the clock, or of the shared thread.
    fn not_armed<D: Driven>(driven: &Arc<D>) -> Self {
        let waker = Waker::from(Arc::new(Fires(Arc::downgrade(driven))));
        Self::Sleep(Box::new(Sleep::of_no_runtime(driven.clock(), Instant::MAX)), waker)
    }
}

/// The waker of a timer: it drives.
struct Fires<D>(Weak<D>);

impl<D: Driven> Wake for Fires<D> {
    fn wake(self: Arc<Self>) {
        if let Some(driven) = self.0.upgrade() {
            driven.timer().fired();
            wake(driven.waker().clone());
            // This may be the last handle: then the legs are dropped here.
            drop_quietly(driven);
        }
    }
}

/// What is to be done after the lock of a timer that was set.
enum Next {
    Nothing,
    /// The instant has come.
    Due,
    /// The task looks at the new instant.
    #[cfg(feature = "tokio")]
    Wake(Waker),
    /// A task becomes the timer.
    #[cfg(feature = "tokio")]
    Spawn(tokio::runtime::Handle),
}

impl Armed {
    /// Sets the timer to the instant.
    fn set<D: Driven>(&mut self, driven: &Arc<D>) -> Next {
        #[cfg(feature = "tokio")]
        if let By::Task(_, waker) = &self.by {
            return waker.clone().map_or(Next::Nothing, Next::Wake);
        }
        let Some(at) = self.at else {
            if let By::Sleep(sleep, _) = &mut self.by {
                sleep.disarm();
            }
            self.by = By::Nothing;
            return Next::Nothing;
        };
        #[cfg(feature = "tokio")]
        if matches!(self.by, By::Nothing) && !driven.clock().is_manual() {
            if let Some(runtime) = runtime() {
                self.by = By::Task(runtime.id(), None);
                return Next::Spawn(runtime);
            }
        }
        if matches!(self.by, By::Nothing) {
            self.by = By::not_armed(driven);
        }
        if let By::Sleep(sleep, waker) = &mut self.by {
            sleep.reset(at);
            let polled = Pin::new(&mut **sleep).poll(&mut Context::from_waker(waker));
            if polled.is_ready() {
                self.at = None;
                return Next::Due;
            }
        }
        Next::Nothing
    }
}

/// The runtime of tokio that runs on this thread, unless a clock of ours does.
#[cfg(feature = "tokio")]
fn runtime() -> Option<tokio::runtime::Handle> {
    let here = !crate::time::runs_here();
    here.then(|| tokio::runtime::Handle::try_current().ok()).flatten()
}

/// Sleeps by tokio's timer, and drives. It ends when there is no instant, and starts anew with the next.
#[cfg(feature = "tokio")]
struct Task<D: Driven> {
    driven: Weak<D>,
    home: tokio::runtime::Id,
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
    armed: Option<Instant>,
    has_ended: bool,
}

#[cfg(feature = "tokio")]
impl<D: Driven> Task<D> {
    fn new(driven: Weak<D>, home: tokio::runtime::Id) -> Self {
        Self {
            driven,
            home,
            sleep: None,
            armed: None,
            has_ended: false,
        }
    }

    /// The instant that the timer is set to; `None` when this task is not the timer any more, or no instant is set.
    fn instant(&self, driven: &D, waker: &Waker) -> Option<Instant> {
        let waker = waker.clone();
        let mut state = driven.timer().state.lock();
        let at = state.at;
        match &mut state.by {
            By::Task(home, own) if *home == self.home && at.is_some() => *own = Some(waker),
            By::Task(home, _) if *home == self.home => state.by = By::Nothing,
            _ => return None,
        }
        at
    }
}

#[cfg(feature = "tokio")]
impl<D: Driven> Future for Task<D> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        /// The clocks of tokio and ours may differ by so much.
        const FRACTION: std::time::Duration = std::time::Duration::from_millis(2);
        let this = self.get_mut();
        let Some(driven) = this.driven.upgrade() else {
            return Poll::Ready(());
        };
        loop {
            let Some(at) = this.instant(&driven, cx.waker()) else {
                this.has_ended = true;
                return Poll::Ready(());
            };
            let now = driven.now();
            let slept = this.armed == Some(at) && this.sleep.as_mut().is_some_and(|sleep| sleep.is_elapsed());
            let left = driven.clock().between(now, at);
            if now >= at || (slept && left > FRACTION) {
                if now < at {
                    driven.runs_ahead(at);
                }
                driven.timer().state.lock().at = None;
                wake(driven.waker().clone());
                if driven.timer().state.lock().at == Some(at) {
                    // Others drive just now, and set the timer after that.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                continue;
            }
            let until = tokio::time::Instant::now().checked_add(left);
            let until =
                until.unwrap_or_else(|| tokio::time::Instant::now() + std::time::Duration::from_secs(31_536_000));
            if this.armed != Some(at) || slept {
                match &mut this.sleep {
                    Some(sleep) => sleep.as_mut().reset(until),
                    None => this.sleep = Some(Box::pin(tokio::time::sleep_until(until))),
                }
                this.armed = Some(at);
            }
            let Some(sleep) = &mut this.sleep else {
                return Poll::Pending;
            };
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

/// A runtime that is shut down drops its tasks: the shared thread is the timer from then on.
#[cfg(feature = "tokio")]
impl<D: Driven> Drop for Task<D> {
    fn drop(&mut self) {
        let Some(driven) = self.driven.upgrade().filter(|_| !self.has_ended) else {
            return;
        };
        let mut state = driven.timer().state.lock();
        if !matches!(&state.by, By::Task(home, _) if *home == self.home) {
            return;
        }
        state.by = By::not_armed(&driven);
        let next = state.set(&driven);
        drop(state);
        if matches!(next, Next::Due) {
            wake(driven.waker().clone());
        }
    }
}
