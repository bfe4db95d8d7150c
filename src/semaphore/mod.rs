//! Semaphores: how many may run at once.
//!
//! | type | what it is |
//! |---|---|
//! | [`Semaphore`] | permits in one atomic word, strict FIFO, resizable at any moment, async and blocking |
//! | [`SemaphoreBuilder`] | the same in another [`Order`], with a bounded queue, a name, statistics |
//! | `ChannelSemaphore` | permits as messages of a crossbeam channel, for `select!` beside other channels; blocking; feature `channel` |

mod acquire;
mod atomic;
mod builder;
#[cfg(feature = "channel")]
mod channel;
mod claim;
mod drained;
mod error;
#[cfg(feature = "pool")]
mod in_turn;
mod limiter;
mod line;
mod permit;
mod request;
mod resize;
mod special;
#[cfg(feature = "stats")]
mod stats;
mod tokio_api;

pub use crate::sync::scheduling::{Order, Overflow};
pub use atomic::Semaphore;
pub use builder::{SemaphoreBuilder, SemaphoreError};
#[cfg(feature = "channel")]
#[cfg_attr(docsrs, doc(cfg(feature = "channel")))]
pub use channel::{ChannelLimitError, ChannelPermit, ChannelSemaphore, ChannelToken, OwnedChannelPermit};
pub use error::{AcquireError, AcquireTimeoutError, TryAcquireError};
#[cfg(feature = "pool")]
pub(crate) use in_turn::InTurn;
pub use limiter::SemaphoreTicket;
pub use permit::{OwnedSemaphorePermit, SemaphorePermit};
pub use request::{OwnedRequest, Request};
#[cfg(feature = "stats")]
#[cfg_attr(docsrs, doc(cfg(feature = "stats")))]
pub use stats::SemaphoreStats;
