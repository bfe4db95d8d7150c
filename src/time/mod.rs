//! Time: one clock, its instants, and the one seam to a runtime's timers.

pub(crate) mod axis;
mod clock;
mod manual;
mod reading;
mod sleep;
mod task_time;
mod thread_timer;

pub(crate) use clock::nanos_since_1970;
pub use clock::{Clock, Instant};
pub use manual::ManualClock;
#[cfg(feature = "tokio")]
pub(crate) use manual::runtime;
pub use reading::ClockReading;
pub use sleep::Sleep;
pub use task_time::TaskTime;
