//! The concurrent parts that limiters share: the queue of waiters, and what it is made of.

pub(crate) mod park;
#[cfg(all(feature = "pool", feature = "tokio"))]
pub(crate) mod runtime;
pub(crate) mod shim;
pub(crate) mod unwind;
pub(crate) mod wait_queue;
pub(crate) mod wake;

pub use unwind::{Finally, both};
pub use wait_queue::{Place, WaitQueue, Watch, Watchers};
