//! A prototype of one engine under threads and async tasks.
//!
//! Two rules take the place of special cases: **a task that waits lends its slot**, and **there is one admission, bound late**.
//! `slots.rs` has the first as plain numbers, `engine.rs` the second; `waits.rs` refuses the waits that cannot be served.

#![forbid(unsafe_code)]
#![allow(private_bounds, private_interfaces)]

mod admission;
mod engine;
mod pool;
mod queue;
mod slots;
mod task;
mod tasks;
mod threads;
mod waits;

pub use engine::{MAX_INLINE, Numbers, RejectReason};
pub use pool::{Group, JoinError, JoinHandle, Pool, TaskPool, Wishes, WorkerPool, WouldDeadlock};
pub use queue::{AGEING, Priority};
pub use task::TaskError;
pub use tasks::Tasks;
pub use threads::Threads;
