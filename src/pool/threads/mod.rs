//! The pool of threads: the kind of the [engine](super::engine) whose workers are threads.
//!
//! ```text
//!  Pool --push--> Injector --transition--> PriorityQueue --take--> worker (or its LocalQueue) --run--> Cell --result--> JoinHandle
//! ```

pub(super) mod entry;
pub(super) mod injector;
pub(super) mod kind;
pub(super) mod local_queue;
pub(super) mod pool;
pub(super) mod stateful;
pub(super) mod submit;
pub(super) mod worker;
