//! The concurrent parts that limiters share: the interface of queues, the notifications, and what they are made of.

pub(crate) mod arena;
pub(crate) mod notify;
pub(crate) mod park;
#[cfg(all(feature = "pool", feature = "tokio"))]
pub(crate) mod runtime;
pub(crate) mod shim;
pub(crate) mod unwind;
pub(crate) mod wait_queue;
pub(crate) mod wake;

pub use notify::Notify;
#[doc(hidden)]
pub use wait_queue::Permits;
pub use wait_queue::{QueueDemand, QueueId, QueueKey, WaitQueue};
