//! Semaphores: they limit how many operations run at once.
//!
//! | type | what it is |
//! |---|---|
//! | [`Semaphore`] | permits in one atomic word, strict FIFO, resizable at any moment, async and blocking |
//! | [`SemaphoreBuilder`] | the same in another [`Order`], with a bounded queue, a name, statistics |
//! | `ChannelSemaphore` | permits as messages of a crossbeam channel, for `select!` beside other channels; blocking; feature `channel` |
//!
#![doc = include_str!("README.md")]

mod acquire;
mod api;
mod atomic;
mod builder;
#[cfg(feature = "channel")]
mod channel;
#[cfg_attr(not(feature = "stats"), path = "counters_off.rs")]
mod counters;
mod error;
mod limiter;
pub(crate) mod queue;
mod scheduling;
mod slab;
#[cfg(feature = "stats")]
mod stats;

#[cfg(feature = "pool")]
pub(crate) use acquire::PassiveAcquire;
pub use api::{OwnedSemaphorePermit, OwnedSemaphoreRequest, SemaphorePermit, SemaphoreRequest};
pub use atomic::Semaphore;
pub use builder::{SemaphoreBuilder, SemaphoreError};
#[cfg(feature = "channel")]
#[cfg_attr(docsrs, doc(cfg(feature = "channel")))]
pub use channel::{ChannelLimitError, ChannelPermit, ChannelSemaphore, ChannelToken, OwnedChannelPermit};
pub use error::{AcquireError, AcquireTimeoutError, TryAcquireError};
pub use limiter::SemaphoreTicket;
pub(crate) use scheduling::Scheduler;
pub use scheduling::{Eviction, Order, OrderError};
#[cfg(feature = "stats")]
#[cfg_attr(docsrs, doc(cfg(feature = "stats")))]
pub use stats::SemaphoreStats;
