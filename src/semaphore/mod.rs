//! Semaphores: how many may run at once.
//!
//! | type | what it is |
//! |---|---|
//! | [`Semaphore`] | permits in one atomic word, strict FIFO, resizable at any moment, async and blocking |

mod acquire;
mod atomic;
mod claim;
mod error;
mod limiter;
mod line;
mod permit;
mod resize;
mod tokio_api;

pub use atomic::Semaphore;
pub use error::{AcquireError, AcquireTimeoutError, TryAcquireError};
pub use limiter::SemaphoreTicket;
pub use permit::{OwnedSemaphorePermit, SemaphorePermit};
