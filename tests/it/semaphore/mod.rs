//! Semaphores.

mod basics;
#[cfg(feature = "channel")]
mod channel;
mod corners;
mod drained;
mod reference;
mod resize;
mod tokio_twin;
