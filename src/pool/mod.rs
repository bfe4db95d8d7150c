//! Runs tasks on a bounded number of workers, which are threads or async tasks, behind a bounded queue.
//!
//! | you want to | use |
//! |---|---|
//! | run blocking or computing tasks on a bounded number of threads | [`WorkerPool`] |
//! | have as many threads as the load needs, within bounds | [`PoolBuilder::workers`]`(4..=32)` |
//! | run tasks that borrow | [`PoolBuilder::scope`] |
//! | end several tasks together, the first error ending all | [`Group`] |
//! | give one kind of tasks a bound of its own | [`Group::limit`], or a second pool |
//! | bound several pools together | the same [`slots`](Builder::slots) in each |
//! | let a rate, or any policy, admit tasks | [`PoolBuilder::admit_by`] |
//! | let other code size the pool | [`PoolBuilder::slots`] |
//! | give each worker a connection, for one task at a time | [`PoolBuilder::workers_with`] |
//! | run async tasks, with the same contract | `TaskPool` (feature `tokio`) |
//!
//! # Fixed or elastic?
//! Choose a fixed pool if tasks compute: give it as many workers as processors, and no thread ever starts under load.
//!
//! Choose an elastic pool if tasks block and the load varies. The minimum covers the quiet hours, and the maximum is
//! the load that the resource behind the tasks bears. An elastic pool starts a thread when a task finds no idle worker,
//! at most at its growth rate. So a short burst starts few threads. It reaches the number of threads that the load
//! needs later than a fixed pool of that size.
//!
//! The table shows a burst of 2,000 tasks that compute for 10 µs, on two processors. The pool is built before the burst
//! and ended after it (`cargo bench -p tollgate-compare --bench compare -- pool/fixed-elastic`):
//!
//! | workers | CPU time per task | |
//! |---|---|---|
//! | `2` | 10.28 to 10.36 µs | 2 threads are started |
//! | `1..=32` | 10.41 to 10.58 µs | one at first, then no more than 16 at once and 100 a second |
//! | `32` | 10.64 to 10.75 µs | 32 threads are started, 30 of them for nothing |
//!
//! So if tasks compute, an elastic pool costs 1-2 % more than a fixed pool of the right size, and less than a fixed
//! pool that is too large. Once the threads are started, both cost the same per task.
//!
//! A task needs room in the queue when it is submitted, and a slot when it starts. With 4 workers and a queue of 100,
//! at most 104 accepted tasks have not ended. Tasks of the pool itself may submit beyond that bound
//! ([`Overflow::Block`]).

mod admission;
mod builder;
mod caller;
mod capacity;
mod cell;
mod common;
mod engine;
mod error;
mod group;
mod handle;
mod hooks;
mod report;
mod task_options;
#[cfg(feature = "tokio")]
mod tasks;
mod termination;
mod threads;

#[cfg(feature = "fan-out")]
pub(crate) use admission::{Admission, Admitted, Gate, Refused, Ticket, poll_admitting};
pub use builder::{Builder, MAX_WORKERS, Workers};
#[cfg(feature = "fan-out")]
pub(crate) use caller::Caller;
pub use capacity::{MAX_QUEUE, Overflow};
pub use common::{Pool, PoolStats};
pub use error::{GroupError, PanicPayload, PoolError, RejectReason, SubmitError, TaskError};
pub use group::{Group, StopFlag};
#[cfg(feature = "tokio")]
pub use handle::TaskHandle;
pub use handle::{Handle, JoinHandle, ScopedJoinHandle};
#[cfg(feature = "fan-out")]
pub(crate) use hooks::{drop_quietly, opaque_debug, wake};
pub use report::{ShutdownReport, Unstarted};
pub use task_options::{AGEING, Priority};
#[cfg(feature = "tokio")]
pub use tasks::{Runners, TaskPool, TaskPoolBuilder, Tasks};
pub use threads::kind::Threads;
pub use threads::pool::{PoolBuilder, Scoped, ThreadOptions, WorkerPool};
pub use threads::stateful::{StatefulBuilder, StatefulPool};
pub use threads::worker::WorkerThread;
