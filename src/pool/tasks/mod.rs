//! Pools of async tasks: the contract of the [`WorkerPool`](super::WorkerPool), on runners. A runner is a task of a tokio
//! runtime and lives as long as the pool.
//!
//! ```text
//!  TaskPool --push--> Core (queue, slots, runners) --next--> runner --poll--> TaskCell --result--> TaskHandle
//! ```
//! The `engine` defines the transitions.

pub(super) mod cell;
mod kind;
mod pool;
mod submit;

pub use kind::Tasks;
pub use pool::{Runners, TaskPool, TaskPoolBuilder};
