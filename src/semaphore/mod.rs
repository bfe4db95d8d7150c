//! Semaphores: how many may run at once.
//!
//! | type | what it is |
//! |---|---|
//! | [`Semaphore`] | permits in one atomic word, strict FIFO, resizable at any moment, async and blocking |
//! | [`SemaphoreBuilder`] | the same in another [`Order`], with a bounded queue, a name |

mod acquire;
mod atomic;
mod builder;
mod claim;
mod error;
mod limiter;
mod line;
mod permit;
mod resize;
mod rest;
mod special;
mod tokio_api;

pub use crate::sync::rules::{Order, Overflow};
pub use atomic::Semaphore;
pub use builder::{Request, SemaphoreBuilder, SemaphoreError};
pub use error::{AcquireError, AcquireTimeoutError, TryAcquireError};
pub use limiter::SemaphoreTicket;
pub use permit::{OwnedSemaphorePermit, SemaphorePermit};
