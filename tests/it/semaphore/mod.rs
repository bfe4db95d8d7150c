//! Semaphores.

mod basics;
#[cfg(feature = "channel")]
mod channel;
mod corners;
mod drained;
mod reference;
mod resize;
#[cfg(feature = "stats")]
mod stats;
mod tokio_twin;
