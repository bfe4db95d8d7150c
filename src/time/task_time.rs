//! The time of a task: what its deadlines are measured by.

use super::clock::{Clock, Instant};
use std::time::Duration;

/// Measures the time since a task began: on the clock of a tokio runtime where one is running and the clock is real, so that a test may
/// pause it.
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::ManualClock;
/// # use tollgate::time::TaskTime;
/// let clock = ManualClock::new();
/// let time = TaskTime::start(&clock);
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(time.elapsed(), Duration::from_secs(1));
/// ```
pub struct TaskTime {
    clock: Clock,
    started: Instant,
    #[cfg(feature = "tokio")]
    by_runtime: Option<tokio::time::Instant>,
}

impl TaskTime {
    /// Begins now.
    pub fn start(clock: &Clock) -> Self {
        Self {
            clock: clock.clone(),
            started: clock.now(),
            #[cfg(feature = "tokio")]
            by_runtime: (!clock.is_manual() && super::runtime().is_some()).then(tokio::time::Instant::now),
        }
    }

    /// The time since the beginning.
    pub fn elapsed(&self) -> Duration {
        #[cfg(feature = "tokio")]
        if let Some(started) = &self.by_runtime {
            return started.elapsed();
        }
        self.clock.between(self.started, self.clock.now())
    }
}
