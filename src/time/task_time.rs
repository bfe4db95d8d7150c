//! The time of a task: what its sleeps and its deadlines are measured by.

use super::clock::{Clock, Instant};
use super::sleep::Sleep;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// The time since a task began, and its sleeps, on one clock. That is the clock of a tokio runtime where one is running and
/// `clock` is real, so that a test may pause it.
pub enum TaskTime {
    /// Of a clock.
    Own(Clock, Instant),
    /// Of the runtime.
    #[cfg(feature = "tokio")]
    Tokio(tokio::time::Instant),
}

/// A sleep by the time of a task.
pub enum TaskSleep {
    /// Of a clock.
    Own(Sleep),
    /// Of the runtime.
    #[cfg(feature = "tokio")]
    Tokio(Pin<Box<tokio::time::Sleep>>),
}

impl TaskTime {
    /// Begins now.
    pub fn start(clock: &Clock) -> Self {
        #[cfg(feature = "tokio")]
        if clock.manual().is_none() && !super::manual::runs_here() && tokio::runtime::Handle::try_current().is_ok() {
            return Self::Tokio(tokio::time::Instant::now());
        }
        Self::Own(clock.clone(), clock.now())
    }

    /// The time since the beginning.
    pub fn elapsed(&self) -> Duration {
        match self {
            Self::Own(clock, started) => clock.between(*started, clock.now()),
            #[cfg(feature = "tokio")]
            Self::Tokio(started) => started.elapsed(),
        }
    }

    /// Sleeps for `duration` from now.
    pub fn sleep(&self, duration: Duration) -> TaskSleep {
        match self {
            Self::Own(clock, _) => TaskSleep::Own(clock.sleep(duration)),
            #[cfg(feature = "tokio")]
            Self::Tokio(_) => TaskSleep::Tokio(Box::pin(tokio::time::sleep(duration))),
        }
    }
}

impl Future for TaskSleep {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.get_mut() {
            Self::Own(sleep) => Pin::new(sleep).poll(cx),
            #[cfg(feature = "tokio")]
            Self::Tokio(sleep) => sleep.as_mut().poll(cx),
        }
    }
}
