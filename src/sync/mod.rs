//! The concurrent parts that limiters share: the two wake-up primitives, and what they are made of.
//!
#![doc = include_str!("README.md")]

pub(crate) mod arena;
#[cfg_attr(not(feature = "stats"), path = "counters_off.rs")]
pub(crate) mod counters;
pub(crate) mod notify;
pub(crate) mod queue;
pub(crate) mod scheduling;
pub(crate) mod shim;
mod slab;
pub(crate) mod turns;
pub(crate) mod unwind;
pub(crate) mod wait_queue;
pub(crate) mod wake;

pub use notify::{Listener, Notified, Notify};
#[doc(hidden)]
pub use wait_queue::Permits;
pub use wait_queue::{QueueId, QueueKey, WaitQueue};
