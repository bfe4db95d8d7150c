//! Semaphores: they limit how many operations run at once.
//!
//! | type | what it is |
//! |---|---|
//! | [`Semaphore`] | permits in one atomic word, strict FIFO, resizable at any moment, async and blocking |
//! | `ChannelSemaphore` | permits as messages of a crossbeam channel, for `select!` beside other channels; blocking; feature `channel` |
//!
//! Other orders (priorities, shares, the newest first) and bounded queues are those of a [`Policy`](crate::Policy) over a semaphore.
//!
#![doc = include_str!("README.md")]

mod acquire;
mod api;
mod atomic;
#[cfg(feature = "channel")]
mod channel;
mod error;
mod limiter;
#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests;
mod watchers;

pub use api::{OwnedSemaphorePermit, SemaphorePermit};
pub use atomic::Semaphore;
#[cfg(feature = "channel")]
#[cfg_attr(docsrs, doc(cfg(feature = "channel")))]
pub use channel::{ChannelSemaphore, ChannelToken};
pub use error::{AcquireError, AcquireTimeoutError, TryAcquireError};
pub use limiter::SemaphoreTicket;
